"""Google's own Python client (google-cloud-compute) against the server: defaults, references, operations, refusals, pages and filters.

usage: check_client.py PORT. Prints every difference from the expected answers, and then exits with 1. The only project is `parity`."""

import sys

from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import Credentials
from google.cloud import compute_v1 as compute

PROJECT, REGION, ZONE = "parity", "us-central1", "us-central1-a"
GLOBAL, REGIONAL, ZONAL = {"project": PROJECT}, {"project": PROJECT, "region": REGION}, {"project": PROJECT, "zone": ZONE}


class Token(Credentials):
    """A token that is always valid."""

    valid, expired, token = True, False, "x"

    def refresh(self, request):
        pass

    def apply(self, headers, token=None):
        headers["Authorization"] = "Bearer x"

    def before_request(self, request, method, url, headers):
        self.apply(headers)


class OperationFailed(Exception):
    def __init__(self, operation):
        self.status, self.reason = operation.http_error_status_code, operation.error.errors[0].code


class Check:
    def __init__(self, port):
        self.problems, self.port = [], port

    def client(self, name):
        kind = getattr(compute, name + "Client")
        return kind(credentials=Token(), client_options={"api_endpoint": f"http://127.0.0.1:{self.port}"})

    def equal(self, what, got, expected):
        if got != expected:
            self.problems.append(f"{what}: {got!r} instead of {expected!r}")

    def done(self, operation):
        if operation.zone:
            operation = self.client("ZoneOperations").wait(**ZONAL, operation=operation.name)
        elif operation.region:
            operation = self.client("RegionOperations").wait(**REGIONAL, operation=operation.name)
        else:
            operation = self.client("GlobalOperations").wait(**GLOBAL, operation=operation.name)
        if operation.error.errors:
            raise OperationFailed(operation)

    def refused(self, status, reason, call, **arguments):
        try:
            answer = call(**arguments)
            if hasattr(answer, "operation_type"):
                self.done(answer)
            self.problems.append(f"not refused: {status} {reason}")
        except GoogleAPICallError as error:
            self.equal("refusal", (error.code, error.errors[0]["reason"]), (status, reason))
        except OperationFailed as error:
            self.equal("refusal", (error.status, error.reason), (status, reason))

    def link(self, path):
        return f"projects/{PROJECT}/{path}"


def instance(check, number):
    return compute.InstanceReference(instance=check.link(f"zones/{ZONE}/instances/node-{number}"))


def check_instances(check):
    instances = check.client("Instances")
    for number in (1, 2):
        resource = compute.Instance(name=f"node-{number}", can_ip_forward=number == 1, tags=compute.Tags(items=["node"]))
        check.done(instances.insert(**ZONAL, instance_resource=resource))
    check.equal("aggregated list", sum(len(scope.instances) for _, scope in instances.aggregated_list(**GLOBAL)), 2)
    check.refused(404, "notFound", check.client("Zones").get, project=PROJECT, zone="mars-a")
    for subnet, field in (("dual-internal", "ipv6_address"), ("dual-external", "ipv6_access_configs")):
        subnetwork = check.link(f"regions/{REGION}/subnetworks/{subnet}")
        interface = compute.NetworkInterface(subnetwork=subnetwork, stack_type="IPV4_IPV6")
        check.done(instances.insert(**ZONAL, instance_resource=compute.Instance(name=subnet, network_interfaces=[interface])))
        got = instances.get(**ZONAL, instance=subnet).network_interfaces[0]
        check.equal(subnet, bool(getattr(got, field)), True)
        check.done(instances.delete(**ZONAL, instance=subnet))
    legacy = compute.NetworkInterface(network=check.link("global/networks/legacy"))
    check.done(instances.insert(**ZONAL, instance_resource=compute.Instance(name="legacy", network_interfaces=[legacy])))
    got = instances.get(**ZONAL, instance="legacy").network_interfaces[0]
    check.equal("legacy network", (got.network_i_p.startswith("10.240."), got.subnetwork), (True, ""))
    check.done(instances.delete(**ZONAL, instance="legacy"))


def check_groups(check):
    groups, services = check.client("InstanceGroups"), check.client("RegionBackendServices")
    http = compute.HTTPHealthCheck(port=10256, request_path="/healthz")
    health_check = compute.HealthCheck(name="hc", type_="HTTP", http_health_check=http)
    check.done(check.client("HealthChecks").insert(**GLOBAL, health_check_resource=health_check))
    for name in ("ig", "ig2"):
        check.done(groups.insert(**ZONAL, instance_group_resource=compute.InstanceGroup(name=name)))
    group = check.link(f"zones/{ZONE}/instanceGroups/ig")

    def service(**fields):
        defaults = {"name": "b", "load_balancing_scheme": "INTERNAL", "protocol": "TCP", "health_checks": [check.link("global/healthChecks/hc")], "backends": [compute.Backend(group=group)]}
        return compute.BackendService(**{**defaults, **fields})

    def add(number, group="ig"):
        request = compute.InstanceGroupsAddInstancesRequest(instances=[instance(check, number)])
        return groups.add_instances(**ZONAL, instance_group=group, instance_groups_add_instances_request_resource=request)

    check.refused(400, "invalid", services.insert, **REGIONAL, backend_service_resource=service())
    check.done(add(1))
    check.refused(400, "memberAlreadyExists", add, number=1)
    check.refused(404, "notFound", add, number=9)
    utilization = service(backends=[compute.Backend(group=group, balancing_mode="UTILIZATION")])
    check.refused(400, "invalid", services.insert, **REGIONAL, backend_service_resource=utilization)
    unknown = service(health_checks=[check.link("global/healthChecks/no")])
    check.refused(404, "notFound", services.insert, **REGIONAL, backend_service_resource=unknown)
    check.done(services.insert(**REGIONAL, backend_service_resource=service()))
    got = services.get(**REGIONAL, backend_service="b")
    check.equal("defaults of a backend service", (got.backends[0].balancing_mode, got.timeout_sec, got.session_affinity), ("CONNECTION", 30, "NONE"))
    check.done(add(1, "ig2"))
    both = service(backends=[compute.Backend(group=group), compute.Backend(group=group + "2")], fingerprint=got.fingerprint)
    check.refused(400, "instanceInMultipleLoadBalancedIgs", services.update, **REGIONAL, backend_service="b", backend_service_resource=both)
    got.fingerprint = "AAAAAAAAAAA="
    check.refused(412, "conditionNotMet", services.update, **REGIONAL, backend_service="b", backend_service_resource=got)
    return got.self_link


def check_internal_rules(check, backend_service):
    addresses, rules = check.client("Addresses"), check.client("ForwardingRules")
    check.done(addresses.insert(**REGIONAL, address_resource=compute.Address(name="int", address_type="INTERNAL")))
    address = addresses.get(**REGIONAL, address="int")
    check.equal("new address", (address.status, address.purpose), ("RESERVED", "GCE_ENDPOINT"))

    def insert(name, **fields):
        defaults = {"name": name, "load_balancing_scheme": "INTERNAL", "backend_service": backend_service, "ports": ["80", "443"]}
        return rules.insert(**REGIONAL, forwarding_rule_resource=compute.ForwardingRule(**{**defaults, **fields}))

    check.refused(400, "invalid", insert, name="f", ports=[str(port) for port in range(80, 86)])
    check.refused(400, "invalid", insert, name="f", I_p_address="172.31.0.1")
    check.refused(400, "badRequest", insert, name="f", network_tier="STANDARD")
    check.done(insert("f", I_p_address=address.address))
    check.equal("address of a rule", addresses.get(**REGIONAL, address="int").status, "IN_USE")
    check.refused(400, "invalid", insert, name="f2", I_p_address=address.address, ports=["443"])
    check.refused(409, "alreadyExists", insert, name="f")
    check.done(addresses.delete(**REGIONAL, address="int"))
    check.equal("address after its release", rules.get(**REGIONAL, forwarding_rule="f").I_p_address, address.address)
    promoted = compute.Address(name="int2", address_type="INTERNAL", address=address.address)
    check.done(addresses.insert(**REGIONAL, address_resource=promoted))
    check.equal("promoted address", addresses.get(**REGIONAL, address="int2").status, "IN_USE")
    again = compute.Address(name="int3", address_type="INTERNAL", address=address.address)
    check.refused(409, "IP_IN_USE_BY_ANOTHER_RESOURCE", addresses.insert, **REGIONAL, address_resource=again)
    in_use = "resourceInUseByAnotherResource"
    check.refused(400, in_use, check.client("HealthChecks").delete, **GLOBAL, health_check="hc")
    check.refused(400, in_use, check.client("RegionBackendServices").delete, **REGIONAL, backend_service="b")
    check.refused(400, in_use, check.client("InstanceGroups").delete, **ZONAL, instance_group="ig")
    check.refused(404, "notFound", rules.get, **REGIONAL, forwarding_rule="nope")


def check_firewalls_and_routes(check):
    firewalls, routes = check.client("Firewalls"), check.client("Routes")
    tcp = compute.Allowed(I_p_protocol="tcp", ports=["80"])
    check.refused(400, "invalid", firewalls.insert, **GLOBAL, firewall_resource=compute.Firewall(name="BAD", allowed=[tcp]))
    names = [f"fw{number}" for number in range(7)]
    for name in names:
        check.done(firewalls.insert(**GLOBAL, firewall_resource=compute.Firewall(name=name, allowed=[tcp])))
    pages = firewalls.list(request=compute.ListFirewallsRequest(**GLOBAL, max_results=3))
    check.equal("pages", [firewall.name for firewall in pages], names)
    filtered = firewalls.list(request=compute.ListFirewallsRequest(**GLOBAL, filter="name eq fw[2-4]"))
    check.equal("filter", [firewall.name for firewall in filtered], names[2:5])
    got = firewalls.get(**GLOBAL, firewall="fw0")
    check.equal("defaults of a firewall", (got.priority, got.direction, list(got.source_ranges)), (1000, "INGRESS", ["0.0.0.0/0"]))
    operations = check.client("GlobalOperations")
    request = compute.ListGlobalOperationsRequest(**GLOBAL, max_results=2)
    check.equal("pages of operations", len({operation.name for operation in operations.list(request=request)}) >= len(names), True)
    for number in (1, 2):
        route = compute.Route(name=f"r{number}", dest_range=f"10.1.{number}.0/24", network=check.link("global/networks/default"), priority=1000)
        route.next_hop_instance = f"zones/{ZONE}/instances/node-{number}"
        check.done(routes.insert(**GLOBAL, route_resource=route))
    warnings = [warning.code for warning in routes.get(**GLOBAL, route="r2").warnings]
    check.equal("warnings of a route", warnings, ["NEXT_HOP_CANNOT_IP_FORWARD"])


def check_external_rules(check):
    addresses, rules, pools = check.client("Addresses"), check.client("ForwardingRules"), check.client("TargetPools")
    pool = compute.TargetPool(name="t", instances=[instance(check, 1).instance])
    check.done(pools.insert(**REGIONAL, target_pool_resource=pool))

    def insert(name, **fields):
        defaults = {"name": name, "target": check.link(f"regions/{REGION}/targetPools/t"), "port_range": "80", "I_p_protocol": "TCP"}
        return rules.insert(**REGIONAL, forwarding_rule_resource=compute.ForwardingRule(**{**defaults, **fields}))

    check.done(insert("e"))
    got = rules.get(**REGIONAL, forwarding_rule="e")
    check.equal("defaults of a rule", (got.port_range, got.load_balancing_scheme, got.network_tier), ("80-80", "EXTERNAL", "PREMIUM"))
    check.done(addresses.insert(**REGIONAL, address_resource=compute.Address(name="ext", address=got.I_p_address)))
    again = compute.Address(name="ext2", address=got.I_p_address)
    check.refused(400, "invalid", addresses.insert, **REGIONAL, address_resource=again)
    check.refused(400, "invalid", insert, name="e3", I_p_address=got.I_p_address, port_range="81", network_tier="STANDARD")
    check.refused(400, "resourceInUseByAnotherResource", pools.delete, **REGIONAL, target_pool="t")


def main():
    check = Check(sys.argv[1])
    check_instances(check)
    check_internal_rules(check, check_groups(check))
    check_firewalls_and_routes(check)
    check_external_rules(check)
    return "\n".join(check.problems) or None


# A text is printed to standard error, and the exit code is 1.
sys.exit(main())
