"""Compute Engine in memory: the store of resources, operations, lists, permissions and quotas. The rules of the kinds are in `kinds.py`.

A mutation is an operation that ends after `operation` seconds. Until then a new resource is not ready (400 resourceNotReady when used), and a deleted one
is still there (409 on insert)."""

import base64
import dataclasses
import fnmatch
import ipaddress
import itertools
import json
import re
import secrets
import threading
import time
from collections import Counter

from description import ApiError, invalid, matcher
from kinds import Kinds, kind_of, path_of

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
NO_LIMIT = 10**9
PAGE = 500
# Fields that a request cannot set.
OUTPUT_ONLY = ("id", "selfLink", "kind", "creationTimestamp", "fingerprint", "status", "users")
GLOBAL_KINDS = ("networks", "healthChecks", "httpHealthChecks", "firewalls", "routes")
HTTP_MESSAGES = {400: "BAD REQUEST", 403: "FORBIDDEN", 409: "CONFLICT"}
# Methods whose permission has another name. Source: the lists of permissions in the documentation of IAM for Compute Engine.
VERBS = {"insert": "create", "patch": "update", "aggregatedList": "list", "wait": "get", "getHealth": "get", "listInstances": "list", "addInstances": "update",
         "removeInstances": "update", "setNamedPorts": "update", "addHealthCheck": "update", "removeHealthCheck": "update"}
# Permissions on the resources that a request uses: for the methods of a resource, the reference in the body and the permission.
USES = {
    "targetPools": {"healthChecks": "compute.httpHealthChecks.useReadOnly", "instances": "compute.instances.use"},
    "instanceGroups": {"instances": "compute.instances.use"},
    "regionBackendServices": {"healthChecks": "compute.healthChecks.useReadOnly", "backends": "compute.instanceGroups.use"},
    "routes": {"nextHopInstance": "compute.instances.use"},
    "forwardingRules": {"target": "compute.targetPools.use", "backendService": "compute.regionBackendServices.use"},
}


@dataclasses.dataclass(frozen=True)
class Context:
    """The place of a request."""

    project: str
    scope: str
    query: dict
    path: str = ""

    @property
    def scope_path(self):
        return f"projects/{self.project}/{self.scope}"

    def in_scope(self, scope):
        return dataclasses.replace(self, scope=scope)

    def at(self, path):
        return dataclasses.replace(self, path=path)


def now():
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}-00:00"


def copy(value):
    return json.loads(json.dumps(value))


def without_private(resource):
    return {key: value for key, value in resource.items() if not key.startswith("_")}


class Cloud(Kinds):
    def __init__(self, description, options):
        self.description, self.options = description, options
        self.lock = threading.RLock()
        self.objects, self.by_kind, self.instance_ips = {}, {}, {}
        self.operations, self.pending, self.answers = {}, [], {}
        self.calls, self.faults, self.limits, self.used, self.iam = Counter(), [], dict(options.rate), Counter(), {}
        self.used_permissions = set()
        self.counter, self.next_host, self.next_ipv6 = 0, {}, 0
        self.regions_by_zone = {f"{region}-{zone}": region for region, zones in options.regions.items() for zone in zones}
        self.projects = {}
        for index, project in enumerate(options.projects):
            self.projects[project] = str(123456789012 + index)
            self.create_project(project)

    # The resources that exist from the start.

    def create_project(self, project):
        is_host = project != self.options.projects[0]
        path, home = f"projects/{project}", next(iter(self.options.regions))
        status = "HOST" if is_host else "UNSPECIFIED_XPN_PROJECT_STATUS"
        self.put(path, {"kind": "compute#project", "name": project, "id": self.projects[project], "defaultNetworkTier": "PREMIUM", "xpnProjectStatus": status})
        for region, zones in self.options.regions.items():
            links = [self.url(f"{path}/zones/{region}-{zone}") for zone in zones]
            self.put(f"{path}/regions/{region}", {"kind": "compute#region", "name": region, "status": "UP", "description": region, "zones": links})
        for zone, region in self.regions_by_zone.items():
            self.put(f"{path}/zones/{zone}", {"kind": "compute#zone", "name": zone, "status": "UP", "description": zone, "region": self.url(f"{path}/regions/{region}")})
        for network, is_auto in (("default", True), ("custom", False), ("dual", False)):
            self.put(f"{path}/global/networks/{network}", {"kind": "compute#network", "name": network, "autoCreateSubnetworks": is_auto, "routingConfig": {"routingMode": "REGIONAL"}})
        self.put(f"{path}/global/networks/legacy", {"kind": "compute#network", "name": "legacy", "IPv4Range": "10.240.0.0/16", "gatewayIPv4": "10.240.0.1"})
        for index, region in enumerate(self.options.regions):
            automatic = self.options.subnet if region == home else f"10.{132 + 4 * index}.0.0/20"
            self.create_subnet(project, region, "default", "default", automatic)
        self.create_subnet(project, home, "other", "default", "10.20.0.0/24")
        self.create_subnet(project, home, "custom", "custom", "192.168.0.0/24")
        self.create_subnet(project, home, "dual-internal", "dual", "10.40.0.0/20", stackType="IPV4_IPV6", ipv6AccessType="INTERNAL", internalIpv6Prefix="fd20:0:0:1::/64")
        self.create_subnet(project, home, "dual-external", "dual", "10.41.0.0/20", stackType="IPV4_IPV6", ipv6AccessType="EXTERNAL", externalIpv6Prefix="2600:1900:4000:1::/64")

    def create_subnet(self, project, region, name, network, cidr, **more):
        path = f"projects/{project}"
        subnet = {"kind": "compute#subnetwork", "name": name, "network": self.url(f"{path}/global/networks/{network}"), "region": self.url(f"{path}/regions/{region}"), "ipCidrRange": cidr,
                  "gatewayAddress": str(ipaddress.ip_network(cidr)[1]), "purpose": "PRIVATE", "stackType": "IPV4_ONLY", "privateIpGoogleAccess": False, **more}
        self.put(f"{path}/regions/{region}/subnetworks/{name}", subnet)

    # The store.

    def url(self, path):
        return self.options.base + path

    def put(self, path, resource):
        self.counter += 1
        resource.setdefault("id", str(4000000000000000000 + self.counter))
        resource.setdefault("creationTimestamp", now())
        resource["selfLink"] = self.url(path)
        self.store(path, resource)
        return resource

    def store(self, path, resource):
        self.objects[path] = resource
        self.by_kind.setdefault(kind_of(path), {})[path] = resource
        for interface in resource.get("networkInterfaces", []):
            if interface.get("networkIP"):
                self.instance_ips[interface["networkIP"]] = path

    def remove(self, path):
        resource = self.objects.pop(path, None)
        self.by_kind.get(kind_of(path), {}).pop(path, None)
        for interface in (resource or {}).get("networkInterfaces", []):
            self.instance_ips.pop(interface.get("networkIP"), None)
        return resource

    def all(self, kind, under=""):
        return [(path, resource) for path, resource in self.by_kind.get(kind, {}).items() if path.startswith(under)]

    def resource(self, link):
        return self.objects[path_of(link)]

    def need(self, path, is_used=True):
        resource = self.objects.get(path)
        if resource is None:
            raise ApiError(404, "notFound", f"{path} does not exist")
        if is_used and resource.get("_busy"):
            raise ApiError(400, "resourceNotReady", f"an operation on {path} has not finished")
        return resource

    def link(self, context, value, kind, must_exist=True):
        """A reference in any of its forms (URL, partial path, name) as the service answers it."""
        if "projects/" in value:
            path = self.with_project_id(path_of(value))
        elif "/" in value:
            path = f"projects/{context.project}/" + value.lstrip("/")
        else:
            scope = "global" if kind in GLOBAL_KINDS else context.scope
            path = f"projects/{context.project}/{scope}/{kind}/{value}"
        if must_exist:
            self.need(path)
        return self.url(path)

    def with_project_id(self, path):
        """The path with the ID of a project in place of its number."""
        for project, number in self.projects.items():
            if path.startswith(f"projects/{number}/") or path == f"projects/{number}":
                return path.replace(number, project, 1)
        return path

    def users_of(self, path):
        """The resources that refer to this one."""
        link = self.url(path)
        for kind in ("forwardingRules", "targetPools", "backendServices"):
            for user, resource in self.all(kind):
                groups = [backend.get("group") for backend in resource.get("backends", [])]
                links = [resource.get("target"), resource.get("backendService"), *resource.get("healthChecks", []), *groups]
                if link in links and not resource.get("_deleted"):
                    yield user

    def users_of_ip(self, ip):
        for kind, field in (("addresses", "address"), ("forwardingRules", "IPAddress")):
            for path, resource in self.all(kind):
                if resource.get(field) == ip:
                    yield path
        if ip in self.instance_ips:
            yield self.instance_ips[ip]

    def free_ip(self, pool, is_next=False):
        """The lowest free address, or with `is_next` the next one: many instances are created at once."""
        network = ipaddress.ip_network(pool)
        used = {resource.get("address") for _, resource in self.all("addresses")} | {resource.get("IPAddress") for _, resource in self.all("forwardingRules")}
        first, last = 10, network.num_addresses - 2
        start = self.next_host.get(pool, first) if is_next else first
        for index in itertools.chain(range(start, last), range(first, start)):
            ip = str(network[index])
            if ip not in used and ip not in self.instance_ips:
                if is_next:
                    self.next_host[pool] = index + 1
                return ip
        raise ApiError(403, "quotaExceeded", f"{pool} has no free address")

    # Requests.

    def call(self, verb, path, query, body):
        self.settle()
        request = query.get("requestId")
        if request in self.answers:
            # A repeated request has the first operation as its answer.
            self.calls["repeated requestId"] += 1
            return self.answers[request]
        answer = self.act(verb, path, query, body)
        if request and answer.get("kind") == "compute#operation":
            self.answers[request] = answer
        return answer

    def act(self, verb, path, query, body):
        method, parameters = self.description.find(verb, path)
        call = f"{method.resource}.{method.name}"
        self.calls[call] += 1
        self.description.check_query(method, query)
        self.raise_fault(call)
        scope = f"zones/{parameters['zone']}" if "zone" in parameters else f"regions/{parameters['region']}" if "region" in parameters else "global"
        self.count_call(method, scope)
        relative = self.with_project_id(path[len("/compute/v1/") :])
        project = self.with_project_id(f"projects/{parameters['project']}").split("/")[1]
        if project not in self.projects:
            raise ApiError(404, "notFound", f"projects/{project} does not exist")
        self.check_permissions(project, method, relative, body or {})
        context = Context(project, scope, query)
        if method.resource.endswith("Operations"):
            return self.call_operation(method, relative, query)
        if scope != "global":
            self.need(context.scope_path)
        if method.body:
            self.description.check(method.body, body, "resource")
        if method.name == "get":
            return self.view(relative, self.need(relative, is_used=False))
        if method.name in ("list", "aggregatedList"):
            return self.list(method, relative, project, query)
        late = self.take_fault(call, is_late=True)
        if late:
            error = ApiError(late.get("status", 400), "", late.get("message", "injected"), late.get("reason", "INTERNAL_ERROR"))
            return self.start_operation(context, method.name, relative, None, error=error)
        try:
            return self.change(context, method, relative, body or {})
        except ApiError as error:
            if error.late:
                return self.start_operation(context, method.name, relative, None, error=error)
            raise

    def change(self, context, method, path, body):
        if method.name == "insert":
            return self.insert(context, path, method.resource, body)
        if method.name == "delete":
            return self.delete(context, path)
        if method.name in ("update", "patch"):
            return self.update(context, path, method.name, body)
        custom = getattr(self, "call_" + method.name, None)
        if custom is None:
            raise ApiError(501, "notImplemented", f"{method.resource}.{method.name} is not served")
        path = path.rsplit("/", 1)[0]
        answer = custom(context.at(path), path, self.need(path), body)
        return self.start_operation(context, method.name, path, self.objects[path]) if answer is None else answer

    def insert(self, context, parent, resource, body):
        name = body.get("name", "")
        path, kind = f"{parent}/{name}", parent.rsplit("/", 1)[1]
        if not NAME.match(name):
            raise invalid("name", name, "not a name of RFC 1035")
        if path in self.objects:
            raise ApiError(409, "alreadyExists", f"{path} already exists")
        if len(self.all(kind)) >= self.limits.get(resource, NO_LIMIT):
            metric = re.sub("([A-Z])", lambda letter: "_" + letter[1], resource).upper()
            raise ApiError(403, "quotaExceeded", f"the quota {metric} of {context.scope} is used up: {self.limits[resource]}")
        created = copy({key: value for key, value in body.items() if key not in OUTPUT_ONLY})
        getattr(self, "insert_" + kind)(context.at(path), created)
        created["kind"] = "compute#" + self.schema_of(kind)
        created["_busy"] = True
        self.put(path, created)
        return self.start_operation(context, "insert", path, created, end=lambda: created.pop("_busy", None))

    def schema_of(self, kind):
        for singular in (kind[:-1], kind[:-2]):
            if singular[:1].upper() + singular[1:] in self.description.schemas:
                return singular
        raise KeyError(kind)

    def delete(self, context, path):
        resource = self.need(path)
        delete = getattr(self, "delete_" + kind_of(path), None)
        user = next(self.users_of(path), None) if delete is None else delete(path, resource)
        if user:
            late = "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE" if self.options.late_errors else None
            raise ApiError(400, "resourceInUseByAnotherResource", f"{path} is being used by {user}", late=late)
        resource["_busy"] = resource["_deleted"] = True
        return self.start_operation(context, "delete", path, resource, end=lambda: self.remove(path))

    def update(self, context, path, method, body):
        old = self.need(path)
        base = without_private(old) if method == "patch" else {}
        base.pop("fingerprint", None)
        changed = copy({**base, **body})
        getattr(self, "update_" + kind_of(path), lambda context, resource: None)(context.at(path), changed)
        changed.update({key: old[key] for key in ("id", "selfLink", "kind", "creationTimestamp", "name")})
        changed["_busy"] = True
        self.store(path, changed)
        return self.start_operation(context, method, path, changed, end=lambda: changed.pop("_busy", None))

    # Answers.

    def view(self, path, resource):
        view = getattr(self, "view_" + kind_of(path), None) if path.count("/") > 1 else None
        return without_private(view(path, resource) if view else resource)

    def page(self, rows, query):
        size = min(int(query.get("maxResults") or PAGE), PAGE)
        start = int(base64.b64decode(query["pageToken"]).decode()) if query.get("pageToken") else 0
        following = {"nextPageToken": base64.b64encode(str(start + size).encode()).decode()} if start + size < len(rows) else {}
        return rows[start : start + size], following

    def list(self, method, path, project, query):
        kind, matches = path.rsplit("/", 1)[1], matcher(query.get("filter"))
        answer = method.answer["$ref"].rsplit("/", 1)[1]
        under = path + "/" if method.name == "list" else f"projects/{project}/"
        rows = sorted((found, resource) for found, resource in self.all(kind, under))
        # Only rows of the page are completed, unless a filter needs all of them.
        if query.get("filter"):
            rows = [(found, resource) for found, resource in rows if matches(self.view(found, resource))]
        rows, following = self.page(rows, query)
        rows = [(found, self.view(found, resource)) for found, resource in rows]
        head = {"kind": self.description.schemas[answer]["properties"]["kind"]["default"], "id": path, "selfLink": self.url(path), **following}
        if method.name == "list":
            return {**head, **({"items": [resource for _, resource in rows]} if rows else {})}
        scopes = [f"zones/{zone}" for zone in self.regions_by_zone] if kind in ("instances", "instanceGroups") else [f"regions/{region}" for region in self.options.regions]
        items = {scope: {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "nothing in this scope"}} for scope in scopes}
        for found, resource in rows:
            entry = items.setdefault("/".join(found.split("/")[2:4]), {})
            entry.pop("warning", None)
            entry.setdefault(kind, []).append(resource)
        return {**head, "items": items}

    # Operations.

    def start_operation(self, context, what, path, resource, end=None, error=None):
        self.counter += 1
        name = f"operation-{int(time.time() * 1000)}-{secrets.token_hex(6)}"
        place = f"{context.scope_path}/operations/{name}"
        operation = {
            "kind": "compute#operation", "id": str(5000000000000000000 + self.counter), "name": name, "operationType": what, "targetLink": self.url(path), "targetId": (resource or {}).get("id", "0"),
            "status": "RUNNING", "progress": 0, "user": "parity@example.iam.gserviceaccount.com", "insertTime": now(), "startTime": now(), "selfLink": self.url(place),
            "_due": time.time() + self.options.operation, "_end": end, "_error": error,
        }
        if context.scope != "global":
            operation[context.scope.split("s/")[0]] = self.url(context.scope_path)
        self.operations[place] = operation
        self.pending.append(operation)
        self.settle()
        return operation

    def settle(self):
        """Ends the operations whose time has come."""
        due = [operation for operation in self.pending if operation["_due"] <= time.time()]
        for operation in due:
            operation.update(status="DONE", progress=100, endTime=now())
            error = operation["_error"]
            if error:
                operation.update(error={"errors": [{"code": error.late, "message": error.message}]}, httpErrorStatusCode=error.status, httpErrorMessage=HTTP_MESSAGES.get(error.status, "ERROR"))
            elif operation["_end"]:
                operation["_end"]()
            self.pending.remove(operation)

    def call_operation(self, method, path, query):
        if method.name == "list":
            matches = matcher(query.get("filter"))
            rows = [without_private(operation) for place, operation in self.operations.items() if place.startswith(path + "/")]
            order = query.get("orderBy", "name")
            if order not in ("name", "creationTimestamp desc"):
                raise ApiError(400, "invalid", f"orderBy is {order!r}: it must be name or creationTimestamp desc")
            rows.sort(key=lambda row: row[order if order == "name" else "insertTime"], reverse=order != "name")
            rows, following = self.page([row for row in rows if matches(row)], query)
            return {"kind": "compute#operationList", "id": path, "selfLink": self.url(path), "items": rows, **following}
        operation = self.operations.get(path.removesuffix("/wait"))
        if operation is None:
            raise ApiError(404, "notFound", f"{path} does not exist")
        return operation

    # Permissions, quotas and faults.

    def permissions(self, method, body):
        """The permissions that a request needs."""
        resource = method.resource
        if resource in ("targetPools", "forwardingRules", "addresses") and method.name in ("addInstance", "removeInstance", "setLabels", "setTarget"):
            verb = method.name
        else:
            verb = VERBS.get(method.name, method.name)
        internal = "Internal" if resource == "addresses" and verb in ("create", "delete") and body.get("addressType") == "INTERNAL" else ""
        needed = [f"compute.{resource}.{verb}{internal}"]
        if resource in ("firewalls", "routes") and method.is_write:
            needed.append("compute.networks.updatePolicy")
        if method.is_write:
            needed += [permission for field, permission in USES.get(resource, {}).items() if body.get(field)]
        return needed

    def is_granted(self, project, permission):
        rights = self.iam.get(project, {})
        fits = lambda patterns: any(fnmatch.fnmatch(permission, pattern) for pattern in patterns)
        return fits(rights.get("granted", ["*"])) and not fits(rights.get("denied", []))

    def check_permissions(self, project, method, path, body):
        if method.name == "delete" and method.resource == "addresses":
            body = self.objects.get(path, {})
        for permission in self.permissions(method, body):
            self.used_permissions.add(permission)
            if not self.is_granted(project, permission):
                raise ApiError(403, "forbidden", f"the permission {permission} is missing on {path}")

    def test_permissions(self, project, body):
        """The method projects.testIamPermissions of Resource Manager."""
        self.calls["projects.testIamPermissions"] += 1
        self.raise_fault("projects.testIamPermissions")
        project = self.with_project_id(f"projects/{project}").split("/")[1]
        if project not in self.projects:
            raise ApiError(403, "forbidden", f"projects/{project} does not exist or is not visible")
        granted = [permission for permission in body.get("permissions", []) if self.is_granted(project, permission)]
        return {"permissions": granted} if granted else {}

    def count_call(self, method, scope):
        """Quotas count calls by group, by region and by minute. The minutes of all groups begin together. `wait` and aggregated lists count as heavy reads."""
        region = self.regions_by_zone.get(scope.split("/")[-1], scope.split("/")[-1])
        if method.name in ("wait", "aggregatedList") and method.resource != "globalOperations":
            group = "heavy"
        elif method.resource.endswith("Operations"):
            group = "operations"
        else:
            group = "writes" if method.is_write else "reads"
        minute = int(time.time() // self.options.minute)
        self.used[(minute, group, region)] += 1
        if self.used[(minute, group, region)] > self.limits.get(group, NO_LIMIT):
            raise ApiError(403, "rateLimitExceeded", f"the quota of {group} per minute in {region} is used up: {self.limits[group]}")

    def take_fault(self, call, is_late):
        for fault in self.faults:
            if fault.get("times", 1) > 0 and fnmatch.fnmatch(call, fault["method"]) and bool(fault.get("late")) == is_late:
                fault["times"] = fault.get("times", 1) - 1
                return fault
        return None

    def raise_fault(self, call):
        fault = self.take_fault(call, is_late=False)
        if fault:
            raise ApiError(fault.get("status", 503), fault.get("reason", "backendError"), fault.get("message", "injected"))

    # Control by tests.

    def create_instances(self, names, zones, body):
        """Creates instances in these zones in turn, without operations."""
        created = []
        for index, name in enumerate(names):
            project, scope = self.options.projects[0], f"zones/{zones[index % len(zones)]}"
            path = f"projects/{project}/{scope}/instances/{name}"
            context, instance = Context(project, scope, {}, path), copy({"canIpForward": True, "networkInterfaces": [{"accessConfigs": [{}]}], **body, "name": name})
            self.insert_instances(context, instance)
            instance["kind"] = "compute#instance"
            created.append(self.view(path, self.put(path, instance)))
        return created

    def dump(self, kinds=None):
        """All resources by path, and the members of groups."""
        found = {}
        for path, resource in self.objects.items():
            if kinds is None or kind_of(path) in kinds:
                members = {"instances": resource["_members"]} if "_members" in resource else {}
                found[path] = {**self.view(path, resource), **members}
        return found
