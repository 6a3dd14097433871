"""End-to-end check of the running cloud, as the tenant (application credential). Exit status 0 only if all pass.

  . ./env.sh; $VENV/bin/python verify.py
"""
import os
import sys
import time
import traceback

import openstack
from keystoneauth1.exceptions import http as ksa
from openstack import exceptions as ex

D = os.environ["OSREAL_DIR"]
os.environ["OS_CLIENT_CONFIG_FILE"] = f"{D}/clouds.yaml"
env = dict(line.strip().split("=", 1) for line in open(f"{D}/seed.env"))
c = openstack.connect(cloud="k8s-appcred")
adm = openstack.connect(cloud="admin")
svc = openstack.connect(cloud="svc")
L, N, C = c.load_balancer, c.network, c.compute
tag = f"v{int(time.time())}"
results = []


def until(what, fn, limit=90):
    t = time.time()
    while True:
        v = fn()
        if v:
            return v
        if time.time() - t > limit:
            raise TimeoutError(f"{what}: not after {limit} s")
        time.sleep(0.3)


def step(fn):
    t = time.time()
    try:
        note = fn() or ""
        results.append(True)
        print(f"ok   {time.time()-t:6.1f}s {fn.__doc__}  {note}", flush=True)
    except Exception as e:
        results.append(False)
        print(f"FAIL {time.time()-t:6.1f}s {fn.__doc__}: {type(e).__name__}: {e}", flush=True)
        if os.environ.get("V"):
            traceback.print_exc()
    return fn


def status(code, fn):
    try:
        fn()
    except (ex.HttpException, ksa.HttpError) as e:
        got = getattr(e, "status_code", None) or e.http_status
        assert got == code, f"HTTP {got}, expected {code}: {e}"
        return
    raise AssertionError(f"succeeded, expected HTTP {code}")


def active(lb):
    def f():
        s = L.get_load_balancer(lb).provisioning_status
        assert s != "ERROR", "load balancer is in ERROR"
        return s == "ACTIVE"
    return until("LB ACTIVE", f)


S = {}


# ------------------------------------------------------------------ keystone
@step
def _():
    "keystone: application-credential login, catalog, v3 discovery"
    cat = {s["type"] for s in c.session.auth.get_access(c.session)._data["token"]["catalog"]}
    assert {"compute", "network", "load-balancer", "image", "placement", "identity"} <= cat, cat
    r = c.session.get(env["OS_AUTH_URL"], authenticated=False)
    return r.json()["version"]["id"]


@step
def _():
    "keystone: wrong secret is 401, unknown application credential is 404"
    import requests
    acid = open(f"{D}/seed.appcred-k8s").read().split()[0]
    for i, code in ((acid, 401), ("nope", 404)):
        r = requests.post(env["OS_AUTH_URL"] + "/auth/tokens", json={"auth": {"identity": {
            "methods": ["application_credential"], "application_credential": {"id": i, "secret": "x"}}}})
        assert r.status_code == code, r.text


# ------------------------------------------------------------------ placement
@step
def _():
    "placement: resource provider of the fake hypervisor, tenant is refused"
    rps = svc.session.get("/resource_providers", endpoint_filter={"service_type": "placement"}).json()["resource_providers"]
    assert rps
    r = c.session.get("/resource_providers", endpoint_filter={"service_type": "placement"}, raise_exc=False)
    assert r.status_code == 403, r.status_code
    return ",".join(r["name"] for r in rps)


# ------------------------------------------------------------------ nova
@step
def _():
    "nova: server create -> ACTIVE with port, address, metadata"
    s = C.create_server(name=tag, image_id=env["IMAGE"], flavor_id=env["FLAVOR"], networks=[{"uuid": env["NET"]}],
                        metadata={"a": "b"})
    s = C.wait_for_server(s, wait=90)
    p = list(N.ports(device_id=s.id))
    assert len(p) == 1 and p[0].status == "ACTIVE", p
    assert s.addresses["k8s-net"][0]["addr"] == p[0].fixed_ips[0]["ip_address"]
    assert C.get_server_metadata(s).metadata == {"a": "b"}
    S.update(server=s, port=p[0])
    return f"az={s.availability_zone} port={p[0].status}/{adm.network.get_port(p[0].id).binding_vif_type}"


@step
def _():
    "nova: os-interface lists the port; list servers by name"
    i = list(C.server_interfaces(S["server"]))
    assert i[0].port_id == S["port"].id
    assert [s.id for s in C.servers(name=f"^{tag}$")] == [S["server"].id]


@step
def _():
    "nova: attach and detach a second interface"
    p = N.create_port(network_id=env["NET"], name=tag + "-2")
    i = C.create_server_interface(S["server"], port_id=p.id)
    until("2 interfaces", lambda: len(list(C.server_interfaces(S["server"]))) == 2)
    C.delete_server_interface(i, S["server"])
    until("1 interface", lambda: len(list(C.server_interfaces(S["server"]))) == 1)
    N.delete_port(p)


@step
def _():
    "nova: stop -> SHUTOFF, start -> ACTIVE"
    C.stop_server(S["server"])
    C.wait_for_server(C.get_server(S["server"]), status="SHUTOFF", wait=60)
    C.start_server(S["server"])
    C.wait_for_server(C.get_server(S["server"]), wait=60)


# ------------------------------------------------------------------ neutron
@step
def _():
    "neutron: floating IP create/associate; nova's addresses follow; disassociate/delete"
    f = N.create_ip(floating_network_id=env["PUBLIC_NET"], description="fip for " + tag)
    f = N.update_ip(f, port_id=S["port"].id)
    assert f.fixed_ip_address == S["port"].fixed_ips[0]["ip_address"] and f.router_id == env["ROUTER"]
    t = time.time()
    until("floating IP in server addresses", lambda: any(
        a["OS-EXT-IPS:type"] == "floating" and a["addr"] == f.floating_ip_address
        for a in C.get_server(S["server"]).addresses["k8s-net"]))
    note = f"{f.floating_ip_address} in server after {time.time()-t:.1f}s"
    assert N.get_ip(f).status == "ACTIVE"
    assert {p.status for p in N.ports(device_id=env["ROUTER"])} <= {"ACTIVE"}
    N.update_ip(f, port_id=None)
    assert N.get_ip(f).status == "DOWN"
    N.delete_ip(f)
    return note


@step
def _():
    "neutron: extraroute-atomic add/remove and plain extraroute PUT"
    hop = S["port"].fixed_ips[0]["ip_address"]
    r = env["ROUTER"]
    N.add_extra_routes_to_router(r, {"router": {"routes": [{"destination": "10.244.1.0/24", "nexthop": hop}]}})
    N.add_extra_routes_to_router(r, {"router": {"routes": [{"destination": "10.244.2.0/24", "nexthop": hop}]}})
    assert len(N.get_router(r).routes) == 2
    N.remove_extra_routes_from_router(r, {"router": {"routes": [{"destination": "10.244.1.0/24", "nexthop": hop}]}})
    assert [x["destination"] for x in N.get_router(r).routes] == ["10.244.2.0/24"]
    N.update_router(r, routes=[])
    status(400, lambda: N.update_router(r, routes=[{"destination": "10.244.9.0/24", "nexthop": "192.0.2.77"}]))


@step
def _():
    "neutron: allowed address pairs on a port, port security"
    N.update_port(S["port"].id, allowed_address_pairs=[{"ip_address": "10.244.1.0/24"}])
    assert N.get_port(S["port"].id).allowed_address_pairs[0]["ip_address"] == "10.244.1.0/24"
    N.update_port(S["port"].id, allowed_address_pairs=[])


@step
def _():
    "neutron: security group + rules (cidr, remote group), duplicate is 409, in-use delete is 409"
    g = N.create_security_group(name=tag)
    kw = dict(security_group_id=g.id, direction="ingress", ethertype="IPv4", protocol="tcp")
    N.create_security_group_rule(port_range_min=80, port_range_max=80, remote_ip_prefix="0.0.0.0/0", **kw)
    N.create_security_group_rule(port_range_min=1, port_range_max=65535, remote_group_id=g.id, **kw)
    status(409, lambda: N.create_security_group_rule(port_range_min=80, port_range_max=80, remote_ip_prefix="0.0.0.0/0", **kw))
    N.update_port(S["port"].id, security_group_ids=S["port"].security_group_ids + [g.id])
    status(409, lambda: N.delete_security_group(g.id, ignore_missing=False))
    N.update_port(S["port"].id, security_group_ids=S["port"].security_group_ids)
    N.delete_security_group(g)


@step
def _():
    "neutron: tags on floating IP / security group / port, filter by tags"
    f = N.create_ip(floating_network_id=env["PUBLIC_NET"])
    N.set_tags(f, [tag, "x"])
    assert [i.id for i in N.ips(tags=tag)] == [f.id]
    N.set_tags(S["port"], [tag])
    assert [p.id for p in N.ports(tags=tag)] == [S["port"].id]
    N.set_tags(S["port"], [])
    N.delete_ip(f)


@step
def _():
    "neutron: second network + router wiring; IPv6 subnet"
    n2 = N.create_network(name=tag)
    s4 = N.create_subnet(network_id=n2.id, ip_version=4, cidr="10.9.0.0/24")
    N.create_subnet(network_id=n2.id, ip_version=6, cidr="fd00:9::/64", ipv6_address_mode="slaac", ipv6_ra_mode="slaac")
    r2 = N.create_router(name=tag, external_gateway_info={"network_id": env["PUBLIC_NET"]})
    N.add_interface_to_router(r2, subnet_id=s4.id)
    p = N.create_port(network_id=n2.id)
    assert len(p.fixed_ips) == 2, p.fixed_ips
    status(409, lambda: N.delete_router(r2, ignore_missing=False))
    N.delete_port(p)
    N.remove_interface_from_router(r2, subnet_id=s4.id)
    N.delete_router(r2)
    N.delete_network(n2)


# ------------------------------------------------------------------ octavia
@step
def _():
    "octavia: providers, API version >= 2.26"
    v = [x["id"] for x in c.session.get("/", endpoint_filter={"service_type": "load-balancer"}, authenticated=False,
                                        endpoint_override=L.get_endpoint().split("/v2")[0]).json()["versions"]]
    v.sort(key=lambda x: [int(y) for y in x[1:].split(".")])
    assert "amphora" in [p.name for p in L.providers()]
    return v[-1]


@step
def _():
    "octavia: LB create -> ACTIVE, real VIP port in neutron"
    lb = L.create_load_balancer(name=tag, vip_subnet_id=env["SUBNET"], tags=[tag])
    assert lb.provisioning_status == "PENDING_CREATE"
    status(409, lambda: L.create_listener(loadbalancer_id=lb.id, protocol="TCP", protocol_port=1))
    active(lb.id)
    lb = L.get_load_balancer(lb.id)
    p = N.get_port(lb.vip_port_id)
    assert p.device_owner == "Octavia" and p.fixed_ips[0]["ip_address"] == lb.vip_address
    amps = list(svc.load_balancer.amphorae(loadbalancer_id=lb.id))
    srv = svc.compute.get_server(amps[0].compute_id)
    S["lb"] = lb
    return f"vip={lb.vip_address} op={lb.operating_status} amphora={amps[0].status} nova={srv.status}"


@step
def _():
    "octavia: listener (allowed_cidrs, timeouts, tags), SG rule appears on VIP"
    l = L.create_listener(name=tag, loadbalancer_id=S["lb"].id, protocol="TCP", protocol_port=80,
                          allowed_cidrs=["198.51.100.0/24"], timeout_client_data=70000, tags=[tag])
    active(S["lb"].id)
    sg = svc.network.get_port(S["lb"].vip_port_id).security_group_ids
    rules = [r for g in sg for r in svc.network.security_group_rules(security_group_id=g) if r.port_range_min == 80]
    assert [r.remote_ip_prefix for r in rules] == ["198.51.100.0/24"], rules
    status(409, lambda: L.create_listener(loadbalancer_id=S["lb"].id, protocol="TCP", protocol_port=80))
    S["l"] = l


@step
def _():
    "octavia: pool, batch member update (2 -> 3 -> 1), update one"
    p = L.create_pool(name=tag, listener_id=S["l"].id, protocol="TCP", lb_algorithm="ROUND_ROBIN",
                      session_persistence={"type": "SOURCE_IP"})
    active(S["lb"].id)
    S["p"] = p

    def batch(addrs):
        r = c.session.put(f"/v2/lbaas/pools/{p.id}/members", endpoint_filter={"service_type": "load-balancer"},
                          endpoint_override=L.get_endpoint().split("/v2")[0],
                          json={"members": [{"address": a, "protocol_port": 30080, "name": a, "subnet_id": env["SUBNET"],
                                             "monitor_port": 10256} for a in addrs]})
        assert r.status_code == 202, r.status_code
        active(S["lb"].id)
        got = sorted(m.address for m in L.members(p.id))
        assert got == sorted(addrs), got
    batch(["10.0.0.11", "10.0.0.12"])
    batch(["10.0.0.11", "10.0.0.12", "10.0.0.13"])
    batch(["10.0.0.12"])


@step
def _():
    "octavia: health monitor create/update/delete"
    h = L.create_health_monitor(pool_id=S["p"].id, type="TCP", delay=5, timeout=3, max_retries=1, name=tag)
    active(S["lb"].id)
    L.update_health_monitor(h, delay=10)
    active(S["lb"].id)
    assert L.get_health_monitor(h.id).delay == 10
    L.delete_health_monitor(h)
    active(S["lb"].id)
    L.create_health_monitor(pool_id=S["p"].id, type="HTTP", delay=5, timeout=3, max_retries=1, url_path="/healthz")
    active(S["lb"].id)


@step
def _():
    "octavia: floating IP on the VIP port"
    f = N.create_ip(floating_network_id=env["PUBLIC_NET"], port_id=S["lb"].vip_port_id)
    assert f.fixed_ip_address == S["lb"].vip_address
    S["fip"] = f
    return f.floating_ip_address


@step
def _():
    "octavia: UDP + HTTP(X-Forwarded-For) listeners, PROXY pool, L7 policy"
    L.create_listener(loadbalancer_id=S["lb"].id, protocol="UDP", protocol_port=53)
    active(S["lb"].id)
    h = L.create_listener(loadbalancer_id=S["lb"].id, protocol="HTTP", protocol_port=8080,
                          insert_headers={"X-Forwarded-For": "true"})
    active(S["lb"].id)
    L.create_pool(listener_id=h.id, protocol="PROXY", lb_algorithm="LEAST_CONNECTIONS")
    active(S["lb"].id)
    L.create_l7_policy(listener_id=h.id, action="REDIRECT_TO_URL", redirect_url="http://example.invalid/", name=tag)
    active(S["lb"].id)


@step
def _():
    "octavia: delete with children is 400; cascade delete removes LB, VIP port, amphora"
    f = S["fip"]
    status(400, lambda: c.session.delete(f"{L.get_endpoint().split('/v2')[0]}/v2/lbaas/loadbalancers/{S['lb'].id}"))
    amp = list(svc.load_balancer.amphorae(loadbalancer_id=S["lb"].id))[0]
    L.delete_load_balancer(S["lb"].id, cascade=True)
    until("LB 404", lambda: L.find_load_balancer(S["lb"].id) is None)
    assert N.find_port(S["lb"].vip_port_id) is None, "VIP port leaked"
    # octavia does not wait for nova to finish deleting, so neither LB 404 nor this is instantaneous
    until("amphora server deleted", lambda: svc.compute.find_server(amp.compute_id) is None, 30)
    assert N.get_ip(f.id).port_id is None
    N.delete_ip(f)


@step
def _():
    "octavia: fully populated create (listener+pool+members+monitor in one request)"
    lb = L.create_load_balancer(name=tag + "-full", vip_subnet_id=env["SUBNET"], listeners=[{
        "name": "l", "protocol": "TCP", "protocol_port": 443, "default_pool": {
            "name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
            "healthmonitor": {"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 1},
            "members": [{"address": "10.0.0.12", "protocol_port": 30443}]}}])
    active(lb.id)
    st = L.get_load_balancer_statuses(lb.id) if hasattr(L, "get_load_balancer_statuses") else None
    assert len(list(L.pools(loadbalancer_id=lb.id))) == 1
    L.delete_load_balancer(lb.id, cascade=True)
    until("LB 404", lambda: L.find_load_balancer(lb.id) is None)


@step
def _():
    "octavia: LB on a port created by the tenant keeps that port; named VIP address"
    p = N.create_port(network_id=env["NET"], name=tag + "-vip")
    lb = L.create_load_balancer(name=tag + "-port", vip_port_id=p.id)
    active(lb.id)
    L.delete_load_balancer(lb.id, cascade=True)
    until("LB 404", lambda: L.find_load_balancer(lb.id) is None)
    N.get_port(p.id)
    N.delete_port(p.id)


@step
def _():
    "octavia: dual-stack LB (additional_vips), LB flavor, availability-zone list"
    n2 = N.create_network(name=tag + "-ds")
    s4 = N.create_subnet(network_id=n2.id, ip_version=4, cidr="10.8.0.0/24")
    s6 = N.create_subnet(network_id=n2.id, ip_version=6, cidr="fd00:8::/64")
    A = adm.load_balancer
    fp = A.create_flavor_profile(name=tag, provider_name="amphora", flavor_data='{"loadbalancer_topology": "SINGLE"}')
    fl = A.create_flavor(name=tag, flavor_profile_id=fp.id)
    assert tag in [x.name for x in L.flavors()]
    list(L.availability_zones())
    lb = L.create_load_balancer(name=tag + "-ds", vip_subnet_id=s4.id, flavor_id=fl.id,
                                additional_vips=[{"subnet_id": s6.id}])
    active(lb.id)
    assert len(N.get_port(lb.vip_port_id).fixed_ips) == 2
    L.delete_load_balancer(lb.id, cascade=True)
    until("LB 404", lambda: L.find_load_balancer(lb.id) is None)
    A.delete_flavor(fl.id)
    A.delete_flavor_profile(fp.id)
    N.delete_network(n2)


@step
def _():
    "octavia: 3 LBs at once"
    ids = [L.create_load_balancer(name=f"{tag}-{i}", vip_subnet_id=env["SUBNET"]).id for i in range(3)]
    t = time.time()
    for i in ids:
        active(i)
    d = time.time() - t
    for i in ids:
        L.delete_load_balancer(i, cascade=True)
    for i in ids:
        until("LB 404", lambda: L.find_load_balancer(i) is None)
    return f"all ACTIVE after {d:.1f}s"


@step
def _():
    "nova: delete -> 404, port deleted"
    C.delete_server(S["server"].id)
    until("server 404", lambda: C.find_server(S["server"].id) is None)
    assert N.find_port(S["port"].id) is None


print(f"{sum(results)}/{len(results)} passed")
sys.exit(0 if all(results) else 1)
