"""Tenant-side objects, as an operator provides them for a cluster. See seed.sh."""
import os
import sys
import time

import openstack

D = os.environ["OSREAL_DIR"]
CLOUDS = f"{D}/clouds.yaml"
os.environ["OS_CLIENT_CONFIG_FILE"] = CLOUDS
AUTH, REGION = os.environ["AUTH_URL"], os.environ["REGION"]
t0 = time.time()


def find(seq, name):
    return next((x for x in seq if x.name == name), None)


def add_cloud(name, auth, kind=""):
    text = open(CLOUDS).read()
    if f"\n  {name}:" not in text:
        text += f"  {name}:\n{kind}    auth: {{auth_url: {AUTH}, {auth}}}\n    region_name: {REGION}\n"
        open(CLOUDS, "w").write(text)


def project_with_user(admin, name):
    """A project, and a user of that name with access to it. Returns the project and an application credential."""
    ident, dom = admin.identity, "default"
    proj = ident.find_project(name, domain_id=dom) or ident.create_project(name=name, domain_id=dom)
    user = ident.find_user(name, domain_id=dom) or ident.create_user(name=name, password=f"{name}-password", domain_id=dom)
    roles = [{"name": "member"}, {"name": "load-balancer_member"}]
    for r in roles:
        ident.assign_project_role_to_user(proj, user, ident.find_role(r["name"]))
    add_cloud(name, f"username: {name}, password: {name}-password, project_name: {name}, "
                    "user_domain_name: Default, project_domain_name: Default")
    saved = f"{D}/seed.appcred-{name}"
    if not os.path.exists(saved):
        own = openstack.connect(cloud=name)
        made = own.identity.create_application_credential(own.current_user_id, name=f"ccm-{int(time.time())}", roles=roles)
        open(saved, "w").write(f"{made.id} {made.secret}")
    cred = open(saved).read().split()
    add_cloud(f"{name}-appcred", f"application_credential_id: {cred[0]}, application_credential_secret: {cred[1]}",
              "    auth_type: v3applicationcredential\n")
    return proj, cred


adm = openstack.connect(cloud="admin")
proj, cred = project_with_user(adm, "k8s")
_, other_cred = project_with_user(adm, "other")

pub = adm.network.find_network("public") or adm.network.create_network(
    name="public", is_router_external=True, provider_network_type="flat", provider_physical_network="ext")
if not list(adm.network.subnets(network_id=pub.id)):
    adm.network.create_subnet(name="public-subnet", network_id=pub.id, ip_version=4, cidr="203.0.113.0/24",
                              gateway_ip="203.0.113.1", enable_dhcp=False)
for name, ram, cpu in (("m1.small", 2048, 1), ("m1.large", 8192, 4)):
    adm.compute.find_flavor(name) or adm.compute.create_flavor(name=name, ram=ram, vcpus=cpu, disk=10)
img = adm.image.find_image("node-image") or adm.image.create_image(
    "node-image", container_format="bare", disk_format="raw", data=b"\0" * 512, visibility="public",
    validate_checksum=False)

c = openstack.connect(cloud="k8s")
n = c.network
net = find(n.networks(project_id=proj.id), "k8s-net") or n.create_network(name="k8s-net")
sub = find(n.subnets(network_id=net.id), "k8s-subnet") or n.create_subnet(
    name="k8s-subnet", network_id=net.id, ip_version=4, cidr="10.0.0.0/22", enable_dhcp=False)
rtr = find(n.routers(project_id=proj.id), "k8s-router")
if not rtr:
    rtr = n.create_router(name="k8s-router", external_gateway_info={"network_id": pub.id})
    n.add_interface_to_router(rtr, subnet_id=sub.id)
sg = find(n.security_groups(project_id=proj.id), "k8s-nodes") or n.create_security_group(name="k8s-nodes")
c.compute.find_keypair("k8s") or c.compute.create_keypair(name="k8s")
flavor = c.compute.find_flavor("m1.small")

with open(f"{D}/seed.env", "w") as f:
    f.write(f"OS_AUTH_URL={AUTH}\nPROJECT_ID={proj.id}\nPUBLIC_NET={pub.id}\nNET={net.id}\nSUBNET={sub.id}\n"
            f"ROUTER={rtr.id}\nNODE_SG={sg.id}\nIMAGE={img.id}\nFLAVOR={flavor.id}\n")


def write_conf(name, auth):
    with open(f"{D}/{name}", "w") as f:
        f.write(f"""[Global]
auth-url={AUTH}
{auth}
region={REGION}

[Networking]
public-network-name=public

[LoadBalancer]
subnet-id={sub.id}
floating-network-id={pub.id}
lb-provider=amphora
create-monitor=true
manage-security-groups=true

[Route]
router-id={rtr.id}
""")


def app_credential(pair):
    return f"application-credential-id={pair[0]}\napplication-credential-secret={pair[1]}"


write_conf("cloud.conf", app_credential(cred))
write_conf("cloud-other.conf", app_credential(other_cred))

have = {s.name for s in c.compute.servers(details=False)}
want = [f"node-{i}" for i in range(1, int(sys.argv[1]) + 1)]
missing = [name for name in want if name not in have]
if missing:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import servers
    servers.create(c, missing)
print(f"seeded in {time.time()-t0:.0f} s ({len(missing)} new servers); clouds: k8s, k8s-appcred, other, other-appcred")
