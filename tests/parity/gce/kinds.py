"""The rules of Compute Engine for each kind of resource: defaults, references, refusals and custom methods.

The description (`api/v1.json`) has only types. Each rule has its source in a comment, or the word `guess`."""

import base64
import hashlib
import ipaddress
import json
import secrets

from description import ApiError, invalid

TIER, STANDARD, PREMIUM = "networkTier", "STANDARD", "PREMIUM"
EXTERNAL_POOLS = {PREMIUM: "34.1.0.0/22", STANDARD: "35.2.0.0/22"}
# Addresses of instances are not static, and their pool is large enough for a large cluster.
INSTANCE_POOL = "34.72.0.0/16"
HEALTH_CHECK_DEFAULTS = {"checkIntervalSec": 5, "timeoutSec": 5, "healthyThreshold": 2, "unhealthyThreshold": 2, "description": ""}



def fingerprint(value):
    return base64.urlsafe_b64encode(hashlib.sha1(json.dumps(value, sort_keys=True).encode()).digest()[:8]).decode()


def new_fingerprint(value):
    """A fingerprint that no earlier state had."""
    return fingerprint([value, secrets.token_hex(4)])


def set_defaults(resource, defaults):
    for key, value in defaults.items():
        resource.setdefault(key, value)


def kind_of(path):
    return path.split("/")[-2]


def path_of(link):
    return link[link.index("projects/") :] if "projects/" in link else link


def ports_of(rule):
    """The ports of a forwarding rule."""
    if rule.get("ports"):
        return {int(port) for port in rule["ports"]}
    if rule.get("allPorts") or not rule.get("portRange"):
        return set(range(65536))
    first, last = rule["portRange"].split("-")
    return set(range(int(first), int(last) + 1))


class Kinds:
    """The part of the cloud that differs between kinds. `insert_X` completes a new resource, `update_X` a changed one, `view_X` an answer, `call_X` is a custom method.
    The store is in `compute.Cloud`."""

    # Addresses. Sources: kubernetes#18502, #66762, helm/charts#22732, ingress-gce#1057, k8s-multicluster-ingress#132.

    def insert_addresses(self, context, address):
        set_defaults(address, {"addressType": "EXTERNAL", TIER: PREMIUM, "description": "", "ipVersion": "IPV4"})
        address["region"] = self.url(context.scope_path)
        address["labelFingerprint"] = fingerprint({})
        ip = address.get("address")
        if address["addressType"] == "INTERNAL":
            address.setdefault("purpose", "GCE_ENDPOINT")
            address["subnetwork"] = self.link(context, address.get("subnetwork") or "default", "subnetworks")
            network = self.resource(address["subnetwork"])["ipCidrRange"]
            if ip and ipaddress.ip_address(ip) not in ipaddress.ip_network(network):
                raise invalid("address", ip, "outside of the subnetwork")
            if ip and any(kind_of(path) != "forwardingRules" for path in self.users_of_ip(ip)):
                code = "IP_IN_USE_BY_ANOTHER_RESOURCE"
                raise ApiError(409, code, f"another resource uses {ip}", late=code)
            address["address"] = ip or self.free_ip(network)
            return
        if ip:
            users = list(self.users_of_ip(ip))
            if any(kind_of(path) == "addresses" for path in users):
                raise invalid("address", ip, "already reserved")
            if not users:
                raise invalid("address", ip, "not available")  # guess
            for path in users:
                if kind_of(path) == "forwardingRules" and self.objects[path].get(TIER) != address[TIER]:
                    raise invalid(TIER, address[TIER], "the forwarding rule at this address has another tier")  # guess
        address["address"] = ip or self.free_ip(EXTERNAL_POOLS[address[TIER]])

    def view_addresses(self, path, address):
        users = [self.url(user) for user in self.users_of_ip(address["address"]) if kind_of(user) == "forwardingRules"]
        return {**address, "status": "IN_USE" if users else "RESERVED", **({"users": users} if users else {})}

    def delete_addresses(self, path, address):
        """An address in use can be deleted, and becomes ephemeral (kubernetes#20662)."""
        return None

    # Forwarding rules.

    def insert_forwardingRules(self, context, rule):
        set_defaults(rule, {"loadBalancingScheme": "EXTERNAL", "IPProtocol": "TCP", "description": "", TIER: PREMIUM})
        rule["region"] = self.url(context.scope_path)
        # Labels are set only by setLabels.
        rule.pop("labels", None)
        ip = rule.get("IPAddress") or ""
        if "/" in ip:
            ip = self.need(path_of(ip))["address"]
        if bool(rule.get("target")) == bool(rule.get("backendService")):
            raise ApiError(400, "invalid", "one of target and backendService is required")  # guess
        if rule.get("target"):
            rule["target"] = self.link(context, rule["target"], "targetPools")
        else:
            rule["backendService"] = self.link(context, rule["backendService"], "backendServices")
        if rule.get("portRange"):
            first, _, last = rule["portRange"].partition("-")
            rule["portRange"] = f"{first}-{last or first}"
        elif rule.get("ports") and rule.get("target"):
            rule["portRange"] = f"{rule['ports'][0]}-{rule['ports'][0]}"
            rule.pop("ports")
        if rule["loadBalancingScheme"] == "INTERNAL":
            self.place_internal_rule(context, rule, ip)
        else:
            self.place_external_rule(rule, ip)
        for path, other in self.all("forwardingRules"):
            if other["IPAddress"] == rule["IPAddress"] and other["IPProtocol"] == rule["IPProtocol"] and ports_of(other) & ports_of(rule):
                raise invalid("IPAddress", rule["IPAddress"], f"{path} uses this address and port")
        rule["fingerprint"], rule["labelFingerprint"] = fingerprint(rule), fingerprint({})

    def place_internal_rule(self, context, rule, ip):
        if rule[TIER] != PREMIUM:
            raise ApiError(400, "badRequest", "an internal forwarding rule has the tier PREMIUM")  # openshift/installer#4380
        if len(rule.get("ports", [])) > 5:
            raise invalid("ports", rule["ports"], "more than five")  # description of ports
        rule["network"] = self.link(context, rule.get("network") or "default", "networks")
        rule["subnetwork"] = self.link(context, rule.get("subnetwork") or "default", "subnetworks")
        subnet = self.resource(rule["subnetwork"])["ipCidrRange"]
        if self.resource(rule["backendService"]).get("protocol") not in (rule["IPProtocol"], "UNSPECIFIED"):
            raise invalid("IPProtocol", rule["IPProtocol"], "the backend service has another protocol")  # guess
        if ip and ipaddress.ip_address(ip) not in ipaddress.ip_network(subnet):
            raise invalid("IPAddress", ip, "outside of the subnetwork")
        if ip and any(kind_of(path) == "instances" for path in self.users_of_ip(ip)):
            raise invalid("IPAddress", ip, "an instance has this address")
        rule["IPAddress"] = ip or self.free_ip(subnet)
        if not rule.get("allowGlobalAccess"):
            rule.pop("allowGlobalAccess", None)

    def place_external_rule(self, rule, ip):
        reserved = [address for _, address in self.all("addresses") if address["address"] == ip]
        if ip and reserved and reserved[0][TIER] != rule[TIER]:
            raise invalid("IPAddress", ip, f"its tier is {reserved[0][TIER]}, not {rule[TIER]}")  # description of networkTier
        if ip and not reserved:
            raise invalid("IPAddress", ip, "not reserved")  # guess
        rule["IPAddress"] = ip or self.free_ip(EXTERNAL_POOLS[rule[TIER]])

    def call_setLabels(self, context, path, resource, body):
        if body.get("labelFingerprint") != resource.get("labelFingerprint"):
            raise ApiError(412, "conditionNotMet", "the fingerprint of the labels is stale")
        resource["labels"] = body.get("labels", {})
        resource["labelFingerprint"] = fingerprint(resource["labels"])

    def call_setTarget(self, context, path, rule, body):
        rule["target"] = self.link(context, body["target"], "targetPools")

    # Target pools.

    def insert_targetPools(self, context, pool):
        set_defaults(pool, {"sessionAffinity": "NONE", "description": ""})
        pool["region"] = self.url(context.scope_path)
        if len(pool.get("healthChecks", [])) > 1:
            raise invalid("healthChecks", pool["healthChecks"], "more than one")  # description of healthChecks
        if len(pool.get("instances", [])) > 200:
            raise invalid("instances", len(pool["instances"]), "more than 200 in one request")  # guess: the limit of the Go program
        for key, kind in (("healthChecks", "httpHealthChecks"), ("instances", "instances")):
            if key in pool:
                pool[key] = [self.link(context, link, kind) for link in pool[key]]

    def call_addInstance(self, context, path, pool, body):
        added = [self.link(context, entry["instance"], "instances") for entry in body.get("instances", [])]
        pool["instances"] = list(dict.fromkeys(pool.get("instances", []) + added))

    def call_removeInstance(self, context, path, pool, body):
        removed = {self.link(context, entry["instance"], "instances", must_exist=False) for entry in body.get("instances", [])}
        pool["instances"] = [link for link in pool.get("instances", []) if link not in removed]

    def call_addHealthCheck(self, context, path, pool, body):
        pool["healthChecks"] = [self.link(context, entry["healthCheck"], "httpHealthChecks") for entry in body.get("healthChecks", [])]

    def call_removeHealthCheck(self, context, path, pool, body):
        pool["healthChecks"] = []

    # Health checks. Defaults: descriptions of the properties.

    def insert_httpHealthChecks(self, context, check):
        set_defaults(check, {**HEALTH_CHECK_DEFAULTS, "port": 80, "requestPath": "/"})
        self.check_timeout(check)

    update_httpHealthChecks = insert_httpHealthChecks

    def insert_healthChecks(self, context, check):
        set_defaults(check, HEALTH_CHECK_DEFAULTS)
        if not check.get("type"):
            raise ApiError(400, "required", "resource.type is required")
        details = check.get(check["type"].lower() + "HealthCheck")
        if details is not None:
            details.setdefault("proxyHeader", "NONE")
            if check["type"] == "HTTP":
                set_defaults(details, {"port": 80, "requestPath": "/"})
        self.check_timeout(check)
        if context.scope.startswith("regions/"):
            check["region"] = self.url(context.scope_path)

    update_healthChecks = insert_healthChecks

    def check_timeout(self, check):
        if check["timeoutSec"] > check["checkIntervalSec"]:
            raise invalid("timeoutSec", check["timeoutSec"], "longer than checkIntervalSec")

    # Backend services.

    def insert_backendServices(self, context, service):
        is_internal = service.setdefault("loadBalancingScheme", "EXTERNAL") == "INTERNAL"
        set_defaults(
            service,
            {"protocol": "TCP" if is_internal else "HTTP", "sessionAffinity": "NONE", "timeoutSec": 30, "description": "", "connectionDraining": {}, "affinityCookieTtlSec": 0},
        )
        service["connectionDraining"].setdefault("drainingTimeoutSec", 0)
        service["region"] = self.url(context.scope_path)
        service["healthChecks"] = [self.link(context, link, "healthChecks") for link in service.get("healthChecks", [])]
        if is_internal and len(service["healthChecks"]) != 1:
            raise invalid("healthChecks", service["healthChecks"], "one health check is required")  # guess
        for backend in service.get("backends", []):
            backend["group"] = self.link(context, backend["group"], "instanceGroups")
            backend.setdefault("balancingMode", "CONNECTION" if is_internal else "UTILIZATION")
            if is_internal:
                backend.setdefault("failover", False)
                if backend["balancingMode"] != "CONNECTION":
                    raise invalid("backends[0].balancingMode", backend["balancingMode"], "an internal backend service has CONNECTION")  # terraform-google-lb-internal#146
            if not self.resource(backend["group"]).get("network"):
                raise invalid("backends[0].group", backend["group"], "an instance group without instances has no network")  # terraform#15027
        service["fingerprint"] = fingerprint({key: value for key, value in service.items() if key != "fingerprint"})
        self.check_memberships(service)

    def update_backendServices(self, context, service):
        old = self.objects[context.path]
        if "fingerprint" not in service:
            raise ApiError(400, "required", "resource.fingerprint is required")  # ansible google.cloud#342
        if service["fingerprint"] != old["fingerprint"]:
            raise ApiError(412, "conditionNotMet", "the fingerprint is stale")
        if service.get("protocol", old["protocol"]) != old["protocol"] and any(self.users_of(context.path)):
            raise invalid("protocol", service["protocol"], "forwarding rules use the backend service")  # guess
        self.insert_backendServices(context, service)
        service["fingerprint"] = new_fingerprint(service)

    def check_memberships(self, new_service=None):
        """An instance may be in one load-balanced group only (continuous-deployment-on-kubernetes#49)."""
        services = [service for _, service in self.all("backendServices")] + [new_service or {}]
        balanced = {backend["group"] for service in services for backend in service.get("backends", [])}
        group_of = {}
        for path, group in self.all("instanceGroups"):
            for member in group.get("_members", []) if self.url(path) in balanced else []:
                if group_of.setdefault(member, path) != path:
                    raise ApiError(400, "instanceInMultipleLoadBalancedIgs", f"{path_of(member)} is already in the load-balanced group {group_of[member]}")

    # Instance groups.

    def insert_instanceGroups(self, context, group):
        group["zone"] = self.url(context.scope_path)
        group["_members"] = []
        group.setdefault("description", "")
        group["fingerprint"] = fingerprint({})

    def view_instanceGroups(self, path, group):
        return {**group, "size": len(self.existing_members(group))}

    def existing_members(self, group):
        return [member for member in group["_members"] if path_of(member) in self.objects]

    def call_addInstances(self, context, path, group, body):
        added = [self.link(context, entry["instance"], "instances") for entry in body.get("instances", [])]
        for member in added:
            if member in group["_members"]:
                raise ApiError(400, "memberAlreadyExists", f"{path_of(member)} is already in {path}")  # ansible#72897
        before = list(group["_members"])
        group["_members"] += added
        try:
            self.check_memberships()
        except ApiError:
            group["_members"] = before
            raise
        if added and not group.get("network"):
            interface = self.resource(added[0])["networkInterfaces"][0]
            group["network"] = interface["network"]
            if interface.get("subnetwork"):
                group["subnetwork"] = interface["subnetwork"]

    def call_removeInstances(self, context, path, group, body):
        removed = [self.link(context, entry["instance"], "instances", must_exist=False) for entry in body.get("instances", [])]
        for member in removed:
            if member not in group["_members"]:
                raise ApiError(400, "invalid", f"{path_of(member)} is not in {path}")  # guess: the reason
        group["_members"] = [member for member in group["_members"] if member not in removed]

    def call_listInstances(self, context, path, group, body):
        members = [{"instance": member, "status": self.resource(member)["status"]} for member in self.existing_members(group)]
        wanted = body.get("instanceState", "ALL")
        return {"kind": "compute#instanceGroupsListInstances", "id": path, "items": [member for member in members if wanted in ("ALL", member["status"])]}

    def call_setNamedPorts(self, context, path, group, body):
        group["namedPorts"] = body.get("namedPorts", [])

    # Firewalls and routes.

    def insert_firewalls(self, context, firewall):
        set_defaults(firewall, {"priority": 1000, "direction": "INGRESS", "disabled": False, "description": "", "logConfig": {"enable": False}})
        firewall["network"] = self.link(context, firewall.get("network") or "default", "networks")
        if bool(firewall.get("allowed")) == bool(firewall.get("denied")):
            raise ApiError(400, "invalid", "one of allowed and denied is required")  # guess
        sources = [key for key in ("sourceRanges", "sourceTags", "sourceServiceAccounts") if firewall.get(key)]
        if not sources and firewall["direction"] == "INGRESS":
            firewall["sourceRanges"] = ["0.0.0.0/0"]
        for network in firewall.get("sourceRanges", []) + firewall.get("destinationRanges", []):
            try:
                ipaddress.ip_network(network)
            except ValueError:
                raise invalid("sourceRanges", network, "not a network") from None

    update_firewalls = insert_firewalls

    def insert_routes(self, context, route):
        for key in ("destRange", "network", "priority"):
            if route.get(key) is None:
                raise ApiError(400, "required", f"resource.{key} is required")
        route["network"] = self.link(context, route["network"], "networks")
        route.setdefault("description", "")
        if route.get("nextHopInstance"):
            route["nextHopInstance"] = self.link(context, route["nextHopInstance"], "instances")

    def view_routes(self, path, route):
        if not route.get("nextHopInstance"):
            return route
        instance = self.objects.get(path_of(route["nextHopInstance"]))
        if instance is None:
            code = "NEXT_HOP_INSTANCE_NOT_FOUND"
        elif not instance.get("canIpForward"):
            code = "NEXT_HOP_CANNOT_IP_FORWARD"
        else:
            return route
        return {**route, "warnings": [{"code": code, "message": f"see {route['nextHopInstance']}"}]}

    # Instances.

    def insert_instances(self, context, instance):
        set_defaults(instance, {"status": "RUNNING", "canIpForward": False, "machineType": "n1-standard-1", "tags": {}, "networkInterfaces": [{}]})
        instance["zone"] = self.url(context.scope_path)
        instance["tags"].setdefault("fingerprint", fingerprint(instance["tags"]))
        if "/" not in instance["machineType"]:
            instance["machineType"] = self.url(f"{context.scope_path}/machineTypes/{instance['machineType']}")
        for index, interface in enumerate(instance["networkInterfaces"]):
            self.complete_interface(context, index, interface)
        if self.options.instance_bytes:
            padding = max(0, self.options.instance_bytes - len(json.dumps(instance)))
            instance["metadata"] = {"kind": "compute#metadata", "items": [{"key": "startup-script", "value": "#" * padding}]}
        instance["labelFingerprint"] = fingerprint(instance.get("labels", {}))
        instance["fingerprint"] = new_fingerprint(instance["name"])

    def complete_interface(self, context, index, interface):
        set_defaults(interface, {"name": f"nic{index}", "kind": "compute#networkInterface"})
        interface["network"] = self.link(context, interface.get("network") or "default", "networks")
        network = self.resource(interface["network"])
        if network.get("IPv4Range"):
            # A legacy network has no subnetworks.
            interface.setdefault("networkIP", self.free_ip(network["IPv4Range"], is_next=True))
        else:
            region = f"regions/{self.regions_by_zone[context.scope.split('/')[1]]}"
            if not interface.get("subnetwork") and not network["autoCreateSubnetworks"]:
                raise invalid(f"networkInterfaces[{index}].subnetwork", "", "a network in custom mode has no default subnetwork")
            subnetwork = interface.get("subnetwork") or network["name"]
            interface["subnetwork"] = self.link(context.in_scope(region), subnetwork, "subnetworks")
            subnet = self.resource(interface["subnetwork"])
            interface["network"] = subnet["network"]
            interface.setdefault("stackType", "IPV4_ONLY")
            if interface["stackType"] != "IPV6_ONLY":
                interface.setdefault("networkIP", self.free_ip(subnet["ipCidrRange"], is_next=True))
            if interface["stackType"] != "IPV4_ONLY":
                self.assign_ipv6(interface, subnet)
        for access in interface.get("accessConfigs", []):
            set_defaults(access, {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": "External NAT", TIER: PREMIUM})
            if "natIP" not in access:
                access["natIP"] = self.free_ip(INSTANCE_POOL, is_next=True)
        interface["fingerprint"] = new_fingerprint(interface["name"])

    def assign_ipv6(self, interface, subnet):
        if subnet.get("stackType") not in ("IPV4_IPV6", "IPV6_ONLY"):
            raise invalid("networkInterfaces[0].stackType", interface["stackType"], "the subnetwork has no IPv6 range")
        self.next_ipv6 += 1
        interface["ipv6AccessType"] = subnet["ipv6AccessType"]
        prefix = ipaddress.ip_network(subnet.get("internalIpv6Prefix") or subnet["externalIpv6Prefix"])
        # Each interface has a range of /96.
        address = str(prefix[self.next_ipv6 << 32])
        if subnet["ipv6AccessType"] == "INTERNAL":
            interface["ipv6Address"] = address
            interface["internalIpv6PrefixLength"] = 96
        else:
            access = {"kind": "compute#accessConfig", "type": "DIRECT_IPV6", "name": "external-ipv6", TIER: PREMIUM}
            interface["ipv6AccessConfigs"] = [{**access, "externalIpv6": address, "externalIpv6PrefixLength": 96}]

    def call_stop(self, context, path, instance, body):
        """A stopped instance has no ephemeral external address; its access configuration stays."""
        instance["status"] = "TERMINATED"
        for interface in instance["networkInterfaces"]:
            for access in interface.get("accessConfigs", []):
                access.pop("natIP", None)

    def call_start(self, context, path, instance, body):
        instance["status"] = "RUNNING"
        for interface in instance["networkInterfaces"]:
            for access in interface.get("accessConfigs", []):
                access.setdefault("natIP", self.free_ip(INSTANCE_POOL, is_next=True))

    def call_setTags(self, context, path, instance, body):
        instance["tags"] = {**body, "fingerprint": fingerprint(body.get("items"))}

    def call_updateNetworkInterface(self, context, path, instance, body):
        wanted = context.query.get("networkInterface")
        for interface in instance["networkInterfaces"]:
            if interface["name"] != wanted:
                continue
            if body.get("fingerprint") != interface["fingerprint"]:
                raise ApiError(412, "conditionNotMet", "the fingerprint is stale")
            interface.update({key: value for key, value in body.items() if key in ("aliasIpRanges", "stackType")})
            interface["fingerprint"] = new_fingerprint(interface["name"])
            return
        raise invalid("networkInterface", wanted, "the instance has no such interface")
