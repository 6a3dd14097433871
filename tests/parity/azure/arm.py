"""A small Azure Resource Manager: the network and compute resources that a cloud controller uses, stateful, over plain HTTP.

usage: python arm.py --port P [--ready FILE] [--description DIR] [--uniform N] [--flex N] [--standalone N] [--lro S] [--latency S] [--page N] [--retry-after S] [--stack]
Held to Microsoft's description (api/): every request and every answer is checked against it (unknown members, types, enums, required), also operations and api-versions; GET /_sim/findings lists what failed.
Codes, headers and default values of answers are those of Azure; texts are our own. What nobody could check is marked `guess`.
Control: GET /_sim/calls (counts since the last time), /_sim/docs (with ?type=loadBalancers those of that type of the network), /_sim/log, /_sim/findings; POST /_sim/settings {lro, latency, page, retry_after, permissions, token_life, refresh_in, login_status, base}, /_sim/fault {method, type, name, status, code, message, headers, times, skip (so many calls before), lro, canceled (the end of the operation), body (in place of the error)},
/_sim/node {kind, name, ..}, /_sim/dump {nodes} (the objects as the recordings have them, and the names of IDs and addresses), /_sim/set {name, mode}, /_sim/power {id, code}, /_sim/delete {id}, /_sim/patch {id, merge}, /_sim/put {id, body}, /_sim/seed {type, name, body, group} (unless it exists), /_sim/reset (the documents of the start), /_sim/revoke (refuse all tokens so far), /_sim/faults (none from now on), /_sim/unlist {id} (missing in lists).
A login with the secret `wrong` is refused. --stack: an Azure Stack, with its API versions and without zones. A machine of its own is in the availability set that /_sim/node names as `set`.
"""
import argparse, collections, copy, fnmatch, ipaddress, json, os, re, sys, threading, time, urllib.parse, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
SUB, TENANT, GROUP, LOCATION = "11111111-2222-3333-4444-555555555555", "99999999-8888-7777-6666-555555555555", "k8s", "eastus"
VERSIONS = {"microsoft.network": {"2025-05-01"}, "microsoft.compute": {"2025-04-01"}}   # and 2018-10-01 for what Network serves below scale sets
NET, COM = "Microsoft.Network", "Microsoft.Compute"
STACK = {"privatelinkservices": "2019-03-01", "virtualmachines": "2017-12-01", "virtualmachinescalesets": "2019-07-01"}   # the versions of Azure Stack; of the others 2018-11-01
UNDESCRIBED = ("kind", "allowPort25Out", "resourceGuid")   # Azure answers them all the same
LB_KINDS = ("frontendIPConfigurations", "backendAddressPools", "loadBalancingRules", "probes", "inboundNatRules", "outboundRules", "inboundNatPools")
TYPES = {"loadbalancers": "loadBalancers", "publicipaddresses": "publicIPAddresses", "publicipprefixes": "publicIPPrefixes", "networksecuritygroups": "networkSecurityGroups", "routetables": "routeTables", "networkinterfaces": "networkInterfaces", "virtualnetworks": "virtualNetworks", "subnets": "subnets",
         "privatelinkservices": "privateLinkServices", "privateendpointconnections": "privateEndpointConnections", "backendaddresspools": "backendAddressPools", "virtualmachines": "virtualMachines", "virtualmachinescalesets": "virtualMachineScaleSets", "availabilitysets": "availabilitySets"}


def described():
    """The folder of the API description."""
    return os.environ.get("ARM_DESCRIPTION") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "api")


class Fault(Exception):
    def __init__(s, status, code, message, details=None, headers=None, **more): s.status, s.headers, s.error = status, headers or {}, {"code": code, "message": message, **({"details": details} if details is not None else {}), **more}


class Description:
    """The subset of OpenAPI that the extracts use. Unknown members are errors."""
    def __init__(s, folder):
        s.paths, s.schemas = [], {}
        for area in ("network", "compute"):
            d = json.load(open(f"{folder}/{area}.json")); s.schemas[area] = d["components"]["schemas"]
            for p, v in d["paths"].items(): s.paths.append((re.compile("(?i)" + re.sub(r"\\{\w+\\}", "[^/]+", re.escape(p)) + r"\Z"), area, v))
    def find(s, method, path):
        for rx, area, v in s.paths:
            if rx.match(path): return area, v.get(method.lower())
        return None, None
    def look(s, area, sch):
        ro = sch.get("readOnly", False)
        while "$ref" in sch or "allOf" in sch:
            sch = s.schemas[area][sch["$ref"].rsplit("/", 1)[1]] if "$ref" in sch else sch["allOf"][0]; ro = ro or sch.get("readOnly", False)
        return sch, ro
    def check(s, area, sch, v, at="", out=None):
        out = [] if out is None else out; sch, _ = s.look(area, sch); t = sch.get("type")
        if v is None: return out
        good = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}.get(t)
        if good and (not isinstance(v, good) or (t in ("integer", "number") and isinstance(v, bool))): out.append(f"{at}: {t} wanted, got {json.dumps(v)[:80]}"); return out
        if "enum" in sch and isinstance(v, str) and v.lower() not in [e.lower() for e in sch["enum"]]: out.append(f"{at}: {v!r} is none of {sch['enum']}")
        if isinstance(v, (int, float)) and not isinstance(v, bool):
            if v < sch.get("minimum", v) or v > sch.get("maximum", v): out.append(f"{at}: {v} out of bounds")
        if t == "array":
            for i, x in enumerate(v): s.check(area, sch.get("items", {}), x, f"{at}[{i}]", out)
        if t == "object" and not sch.get("x-ms-cut"):
            props, more = sch.get("properties"), sch.get("additionalProperties")
            for k in sch.get("required", []):
                if k not in v: out.append(f"{at}.{k}: required")
            for k, x in v.items():
                if props and k in props: s.check(area, props[k], x, f"{at}.{k}", out)
                elif isinstance(more, dict): s.check(area, more, x, f"{at}.{k}", out)
                elif props is not None and k not in UNDESCRIBED: out.append(f"{at}.{k}: unknown member")
        return out
    def strip(s, area, sch, v):
        """What a client may set: v without read-only members."""
        sch, _ = s.look(area, sch)
        if isinstance(v, list): return [s.strip(area, sch.get("items", {}), x) for x in v]
        if not isinstance(v, dict) or "properties" not in sch: return v
        return {k: s.strip(area, sch["properties"][k], x) for k, x in v.items() if k in sch["properties"] and x is not None and not s.look(area, sch["properties"][k])[1]}


def merge(a, b):
    if not (isinstance(a, dict) and isinstance(b, dict)): return copy.deepcopy(b)
    out = dict(a)
    for k, v in b.items():
        if v is None: out.pop(k, None)
        else: out[k] = merge(a.get(k), v) if isinstance(v, dict) else copy.deepcopy(v)
    return out


def same(a, b): return (a or "").lower() == (b or "").lower()
def ref(o): return (o or {}).get("id")
def guid(): return str(uuid.uuid4())
def parts(rid):
    """id -> (group, namespace, [type, name, ..])"""
    m = re.match(r"(?i)/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/([^/]+)/(.+)\Z", rid or ""); return (m[1], m[2], m[3].split("/")) if m else (None, None, [])


class Arm:
    def __init__(s, description, lro=0.0, latency=0.0, page=0, retry_after=None, zones=("1", "2", "3"), base="", stack=False):
        s.d, s.lro, s.latency, s.page, s.retry_after, s.zones, s.base = Description(description), lro, latency, page, retry_after, [] if stack else list(zones), base; s.stack = stack
        s.docs, s.groups, s.ops, s.hidden, s.lock = {}, {GROUP: GROUP}, {}, {}, threading.RLock(); s.calls, s.log, s.findings, s.faults, s.last, s.counter = collections.Counter(), [], [], [], 0.0, collections.Counter()
        s.permissions, s.token_life, s.tokens, s.revoked, s.logins, s.unlisted, s.refresh_in, s.login_status = [{"actions": ["*"], "notActions": []}], 86399, 0, 0, [], set(), None, None

    # ---- documents
    def get(s, rid): return s.docs.get((rid or "").lower())
    def need(s, rid, by):
        d = s.get(rid) or s.child(rid)
        if d is None: raise Fault(400, "InvalidResourceReference", f"the body refers to something that does not exist: {rid}, {by}", [])
        return d
    def child(s, rid):
        """Children of a load balancer or network are parts of its document."""
        g, ns, p = parts(rid)
        if len(p) != 4: return None
        d = s.docs.get(f"/subscriptions/{SUB}/resourcegroups/{g}/providers/{ns}/{p[0]}/{p[1]}".lower()); c = TYPES.get(p[2].lower(), p[2])
        return next((x for k, v in (d or {}).get("properties", {}).items() if same(k, c) and isinstance(v, list) for x in v if same(x.get("name"), p[3])), None)
    def all(s, kind, group=None):
        return [d for d in s.docs.values() if same(d["type"].split("/", 1)[1], kind) and (group is None or same(parts(d["id"])[0], group))]
    def touch(s, d):
        old = d.get("etag")
        if "/Microsoft.Compute/" in d["id"]: d["etag"] = '"%d"' % (int((old or '"0"').strip('"')) + 1)
        else:
            d["etag"] = f'W/"{guid()}"'
            for v in d.get("properties", {}).values():
                for c in v if isinstance(v, list) else []:
                    if isinstance(c, dict) and c.get("etag"): c["etag"] = d["etag"]
    def put(s, rid, body):
        """Place a document as it is; for seeds."""
        g, ns, p = parts(rid); s.groups.setdefault(g.lower(), g); d = {"name": p[-1], "id": rid, "type": ns + "/" + "/".join(p[::2]), **copy.deepcopy(body)}; s.docs[rid.lower()] = d; s.touch(d) if "etag" not in body and p[0] != "availabilitySets" else None; return d

    # ---- what is derived from other documents
    def members(s):
        """pool id -> ids of the ip configurations in it"""
        out = collections.defaultdict(list)
        for d in s.all("networkInterfaces"):
            for c in d["properties"]["ipConfigurations"]:
                for p in c["properties"].get("loadBalancerBackendAddressPools") or []: out[ref(p).lower()].append(c["id"])
        for d in s.all("virtualMachineScaleSets/virtualMachines"):
            if same(d["properties"].get("provisioningState"), "Deleting"): continue
            for n in d["properties"]["networkProfileConfiguration"]["networkInterfaceConfigurations"]:
                for c in n["properties"]["ipConfigurations"]:
                    for p in c["properties"].get("loadBalancerBackendAddressPools") or []: out[ref(p).lower()].append(f"{d['id']}/networkInterfaces/{n['name']}/ipConfigurations/{c['name']}")
        return out
    def scale_sets_using(s, pools):
        pools = {p.lower() for p in pools}; hit = lambda n: any(ref(p).lower() in pools for i in n or [] for c in i["properties"]["ipConfigurations"] for p in c["properties"].get("loadBalancerBackendAddressPools") or [])
        return [d["id"] for d in s.all("virtualMachineScaleSets") if hit(((d["properties"].get("virtualMachineProfile") or {}).get("networkProfile") or {}).get("networkInterfaceConfigurations"))
                or any(hit(v["properties"]["networkProfileConfiguration"]["networkInterfaceConfigurations"]) for v in s.all("virtualMachineScaleSets/virtualMachines") if v["id"].lower().startswith(d["id"].lower() + "/"))]
    def private(s, but=None):
        """address -> id of what holds it"""
        out = {}
        for d in s.docs.values():
            for k in ("frontendIPConfigurations", "ipConfigurations"):
                for c in d.get("properties", {}).get(k) or []:
                    if c["properties"].get("privateIPAddress") and not same(c["id"], but): out[c["properties"]["privateIPAddress"]] = c["id"]
        for rid, h in s.hidden.items():
            for a in h.get("ips", []): out[a] = rid
        return out
    def address(s, subnet, version, used):
        pre = subnet["properties"].get("addressPrefixes") or [subnet["properties"]["addressPrefix"]]
        net = next((n for n in map(ipaddress.ip_network, pre) if n.version == (6 if same(version, "IPv6") else 4)), None)
        if net is None: raise Fault(400, "SubnetDoesNotHaveAddressPrefixOfVersion", f"Subnet {subnet['id']} has no {version} prefix.")   # guess
        for i in range(4, min(net.num_addresses - 1, 65000)):
            if str(net[i]) not in used: return str(net[i])
        raise Fault(400, "SubnetIsFull", f"the subnet has no free address: {subnet['name']}, {net}")
    def render(s, d):
        """The document as a GET shows it: with what refers to its children."""
        d = copy.deepcopy(d); kind = d["type"].split("/")[1]; p = d.get("properties", {})
        if kind == "loadBalancers" and d["type"].count("/") == 1:
            back = collections.defaultdict(lambda: collections.defaultdict(list)); mem = s.members()
            for coll in ("loadBalancingRules", "outboundRules", "inboundNatRules", "inboundNatPools"):
                for r in p.get(coll, []):
                    q = r["properties"]; to = [ref(q.get("frontendIPConfiguration")), ref(q.get("backendAddressPool")), ref(q.get("probe"))] + [ref(x) for k in ("backendAddressPools", "frontendIPConfigurations") for x in q.get(k) or []]
                    for t in {t.lower() for t in to if t}: back[t][coll].append({"id": r["id"]})
            for coll in ("frontendIPConfigurations", "backendAddressPools", "probes"):
                for c in p.get(coll, []):
                    for k, v in back[c["id"].lower()].items():
                        if not (coll == "probes" and k != "loadBalancingRules") and not (coll == "backendAddressPools" and k == "inboundNatPools"): c["properties"][k] = v
                    if coll == "backendAddressPools" and mem.get(c["id"].lower()): c["properties"]["backendIPConfigurations"] = [{"id": i} for i in sorted(mem[c["id"].lower()])]
        if kind == "publicIPAddresses":
            for lb in s.all("loadBalancers"):
                for f in lb["properties"]["frontendIPConfigurations"]:
                    if same(ref(f["properties"].get("publicIPAddress")), d["id"]): p["ipConfiguration"] = {"id": f["id"]}
        if kind == "virtualNetworks":
            for sn in p.get("subnets", []): s.render_subnet(sn)
        return d
    def render_subnet(s, sn):
        use = [c["id"] for d in s.docs.values() for k in ("frontendIPConfigurations", "ipConfigurations") for c in d.get("properties", {}).get(k) or [] if same(ref(c["properties"].get("subnet")), sn["id"])]
        if use: sn["properties"]["ipConfigurations"] = [{"id": i} for i in use]
        return sn

    # ---- writes, one function a type; each gets what the client may set
    def base_doc(s, rid, body, old):
        g, ns, p = parts(rid)
        if not body.get("location") and not old: raise Fault(400, "LocationRequired", "a new resource needs a location")
        if old and body.get("location") and not same(body["location"].replace(" ", ""), old["location"]): raise Fault(409, "InvalidResourceLocation", f"the resource exists in another region: {p[-1]}, {old['location']}, {g}, {body['location']}")
        for k, v in (body.get("tags") or {}).items():
            if len(v) > 256: raise Fault(400, "InvalidTagValueLength", f"the value of a tag has at most 256 characters: {k}, {len(v)}")   # guess of the code
        d = {"name": old["name"] if old else p[-1], "id": old["id"] if old else re.sub(r"(?i)/subscriptions/[^/]+/resourceGroups/[^/]+", f"/subscriptions/{SUB}/resourceGroups/{s.groups[g.lower()]}", rid), "type": ns + "/" + "/".join(TYPES.get(x.lower(), x) for x in p[::2]), "location": (body.get("location") or old["location"]).lower().replace(" ", "")}
        d.update({k: copy.deepcopy(body[k]) for k in ("tags", "sku", "zones", "extendedLocation", "identity", "plan") if body.get(k)}); d["properties"] = {"provisioningState": "Succeeded", "resourceGuid": (old or {}).get("properties", {}).get("resourceGuid") or guid()}
        return d
    def kids(s, d, coll, items, old, make):
        out, seen = [], set()
        for it in items or []:
            n = it.get("name")
            if not n: raise Fault(400, "InvalidRequestFormat", "the body is not what the description allows", [{"code": "MissingJsonProperty", "message": f"Required property 'name' not found in {coll}."}])   # guess
            if n.lower() in seen: raise Fault(400, "DuplicateResourceName", f"two children have one name: {d['id']}, {n}", [])
            seen.add(n.lower()); o = next((x for x in ((old or {}).get("properties", {}).get(coll) or []) if same(x["name"], n)), None)
            c = {"name": n, "id": f"{d['id']}/{coll}/{n}", "etag": "-", "type": f"{d['type']}/{coll}"}
            if it.get("zones"): c["zones"] = it["zones"]
            c["properties"] = {"provisioningState": "Succeeded", **make(c, copy.deepcopy(it.get("properties") or {}), o)}; out.append(c)
        return out

    def put_loadbalancers(s, rid, body, old):
        d = s.base_doc(rid, body, old); p = body.get("properties") or {}; standard = same((body.get("sku") or {}).get("name"), "Standard"); d["sku"] = {"name": (body.get("sku") or {}).get("name", "Basic"), "tier": (body.get("sku") or {}).get("tier", "Regional")}
        if old and not same(old["sku"]["name"], d["sku"]["name"]): raise Fault(400, "PropertyChangeNotAllowed", "this property keeps its value")   # guess
        used = s.private(); used = {a: i for a, i in used.items() if not i.lower().startswith(d["id"].lower() + "/")}; held = {}; pips = {}
        inuse = {ref(f["properties"].get("publicIPAddress")).lower(): f["id"] for lb in s.all("loadBalancers") if not same(lb["id"], d["id"]) for f in lb["properties"]["frontendIPConfigurations"] if f["properties"].get("publicIPAddress")}
        stat = [f["properties"]["privateIPAddress"] for f in p.get("frontendIPConfigurations") or [] if (f.get("properties") or {}).get("privateIPAddress")]
        def frontend(c, q, o):
            sub, pip = q.get("subnet"), q.get("publicIPAddress")
            if sub and pip: raise Fault(400, "FrontendIPConfigHasBothSubnetAndPublicIP", f"a frontend has a subnet and a public address: {c['id']}", [])
            if pip:
                x = s.need(ref(pip), c["id"])
                if not same(x["sku"]["name"], d["sku"]["name"]): raise Fault(400, "PublicIPAndLBSkuDoNotMatch", f"the SKUs of load balancer and public address differ: {d['sku']['name']}, {d['id']}, {x['sku']['name']}, {x['id']}", [])
                if x["id"].lower() in inuse: raise Fault(400, "PublicIPAddressInUse", f"another resource uses the public address: {c['id']}, {x['id']}, {inuse[x['id'].lower()]}", [])
                if x["id"].lower() in pips: raise Fault(400, "PublicIPReferencedByMultipleIPConfigs", f"two frontends use one public address: {x['id']}, {d['id']}", [])
                if x["properties"]["provisioningState"] != "Succeeded": raise Fault(429, "ReferencedResourceNotProvisioned", f"a resource that the body refers to is not ready: {x['id']}, {d['id']}, {x['properties']['provisioningState']}", [])
                if c.get("zones"): raise Fault(400, "LoadBalancerFrontendIPConfigCannotHaveZoneWhenReferencingPublicIPAddress", f"zones belong to the public address, not to the frontend: {c['id']}", [])
                pips[x["id"].lower()] = c["id"]; return {"privateIPAllocationMethod": "Dynamic", "publicIPAddress": {"id": x["id"]}}
            if sub:
                x = s.need(ref(sub), c["id"]); v = q.get("privateIPAddressVersion") or "IPv4"; oq = (o or {}).get("properties", {}); a = q.get("privateIPAddress"); static = same(q.get("privateIPAllocationMethod"), "Static")
                if o and same(ref(oq.get("subnet")), x["id"]) and not same(v, oq.get("privateIPAddressVersion")): raise Fault(400, "PropertyChangeNotAllowed", "this property keeps its value")   # guess
                if static and not a: raise Fault(400, "StaticPrivateIPAddressRequired", f"IP configuration {c['id']} has static allocation and no address.")   # guess
                if static:
                    if not any(ipaddress.ip_address(a) in ipaddress.ip_network(n) for n in x["properties"].get("addressPrefixes") or [x["properties"]["addressPrefix"]]): raise Fault(400, "PrivateIPAddressNotInSubnet", f"the private address is outside of its subnet: {a}, {x['properties'].get('addressPrefix') or x['properties']['addressPrefixes']}", [])
                    if a in held: raise Fault(400, "MultipleIpConfigsRequestSamePrivateIpAddress", f"two configurations ask for one private address: {c['id']}, {a}, {held[a]}, {a}", [])
                    if a in used: raise Fault(400, "PrivateIPAddressIsAllocated", f"another configuration has this private address: {c['id']}, {a}, {used[a]}", [])
                elif same(ref(oq.get("subnet")), x["id"]) and same(v, oq.get("privateIPAddressVersion")): a = oq["privateIPAddress"]
                else: a = s.address(x, v, {**used, **held, **dict.fromkeys(stat)})
                held[a] = c["id"]; return {"privateIPAddress": a, "privateIPAllocationMethod": "Static" if static else "Dynamic", "subnet": {"id": x["id"]}, "privateIPAddressVersion": v}
            if q.get("publicIPPrefix"): return {"privateIPAllocationMethod": "Dynamic", "publicIPPrefix": {"id": ref(q["publicIPPrefix"])}}
            raise Fault(400, "LoadBalancerFrontendIPConfigMustHaveSubnetOrPublicIP", f"a frontend has neither subnet nor public address: {c['id']}", [])   # guess
        P = d["properties"]; P["frontendIPConfigurations"] = s.kids(d, "frontendIPConfigurations", p.get("frontendIPConfigurations"), old, frontend)
        P["backendAddressPools"] = s.kids(d, "backendAddressPools", p.get("backendAddressPools"), old, lambda c, q, o: s.pool(c, q, standard))
        P["probes"] = s.kids(d, "probes", p.get("probes"), old, lambda c, q, o: s.probe(c, q))
        if not standard and any(x["properties"]["protocol"] == "Https" for x in P["probes"]): raise Fault(400, "HttpsProbeNeedsStandardSku", f"only a standard load balancer has HTTPS probes: {d['id']}")   # guess of the code
        own = {k: {x["id"].lower(): x for x in P[k]} for k in ("frontendIPConfigurations", "backendAddressPools", "probes")}
        def to(by, o, coll):
            if o is None: return None
            x = own[coll].get((ref(o) or "").lower())
            if x is None: raise Fault(400, "InvalidResourceReference", f"the body refers to something that does not exist: {ref(o)}, {by['id']}", [])
            return {"id": x["id"]}
        def rule(c, q, o):
            r = {"frontendIPConfiguration": to(c, q.get("frontendIPConfiguration"), "frontendIPConfigurations"), "frontendPort": q["frontendPort"], "backendPort": q.get("backendPort", q["frontendPort"]), "enableFloatingIP": q.get("enableFloatingIP", False), "idleTimeoutInMinutes": q.get("idleTimeoutInMinutes", 4), "protocol": q["protocol"].capitalize(),
                 "enableTcpReset": q.get("enableTcpReset", False), "loadDistribution": q.get("loadDistribution", "Default"), "disableOutboundSnat": q.get("disableOutboundSnat", False)}
            if not 4 <= r["idleTimeoutInMinutes"] <= 100: raise Fault(400, "LoadBalancingRuleIdleTimeoutOutOfRange", f"Idle timeout of {c['id']} must be between 4 and 100 minutes.")   # guess
            if r["frontendIPConfiguration"] is None: raise Fault(400, "LoadBalancingRuleMustReferenceFrontend", f"{c['id']} has no frontend.")   # guess
            if not 0 <= r["frontendPort"] <= 65534 or not 0 <= r["backendPort"] <= 65535: raise Fault(400, "LoadBalancingRuleInvalidPort", f"Port of {c['id']} is out of range.")   # guess
            ps = [to(c, x, "backendAddressPools") for x in (q.get("backendAddressPools") or ([q["backendAddressPool"]] if q.get("backendAddressPool") else []))]
            if q.get("backendAddressPool"): r["backendAddressPool"] = to(c, q["backendAddressPool"], "backendAddressPools")
            elif ps: r["backendAddressPool"] = ps[0]
            r["backendAddressPools"] = ps
            if q.get("probe"): r["probe"] = to(c, q["probe"], "probes")
            if q.get("enableConnectionTracking") is not None: r["enableConnectionTracking"] = q["enableConnectionTracking"]
            if r["protocol"] == "All" and (not standard or "publicIPAddress" in own["frontendIPConfigurations"][ref(r["frontendIPConfiguration"]).lower()]["properties"]) : raise Fault(400, "LoadBalancingRuleProtocolAllOnlyForInternalStandard", f"{c['id']} has protocol All.")   # guess
            if not standard and (r["enableTcpReset"] or r["disableOutboundSnat"]): raise Fault(400, "LoadBalancingRuleNeedsStandardSku", f"only rules of a standard load balancer have TCP reset and outbound settings: {c['id']}")   # guess of the code
            if r["protocol"] != "Tcp" and r["enableTcpReset"] and r["protocol"] != "All": raise Fault(400, "TcpResetOnNonTcpRule", f"TCP reset is not allowed for {c['id']}.")   # guess
            return r
        P["loadBalancingRules"] = s.kids(d, "loadBalancingRules", p.get("loadBalancingRules"), old, rule); seen = {}
        for r in P["loadBalancingRules"]:
            q = r["properties"]; f = ref(q["frontendIPConfiguration"])
            k = ("f", f.lower(), q["protocol"], q["frontendPort"])
            if k in seen: raise Fault(400, "RulesUseSameFrontendPortAndFrontendIPConfig", f"two rules have one frontend, protocol and port: {seen[k]}, {r['id']}, {f}, {q['protocol']}, {q['frontendPort']}", [])   # guess of the code
            seen[k] = r["id"]
            for b in q["backendAddressPools"]:
                fl = q["enableFloatingIP"]; k = ("b", ref(b).lower(), q["protocol"], q["backendPort"], f.lower() if fl else None)
                if k in seen: raise Fault(400, "RulesUseSameBackendPortProtocolAndPoolAndFrontendIPWithFloatingIPEnabled" if fl else "RulesUseSameBackendPortProtocolAndPool", f"two rules have one pool, protocol and backend port: {seen[k]}, {r['id']}, {'enabled' if fl else 'disabled'}, {q['protocol']}, {q['backendPort']}, {ref(b)}", [])
                seen[k] = r["id"]
        keep = lambda c, q, o: {k: v for k, v in q.items()}
        for k in ("inboundNatRules", "outboundRules", "inboundNatPools"): P[k] = s.kids(d, k, p.get(k), old, keep)
        for r in P["outboundRules"]:
            for x in r["properties"].get("frontendIPConfigurations") or []: to(r, x, "frontendIPConfigurations")
            to(r, r["properties"].get("backendAddressPool"), "backendAddressPools")
        if old:
            gone = [c["id"] for c in old["properties"]["backendAddressPools"] if c["id"].lower() not in own["backendAddressPools"]]
            for v in s.scale_sets_using(gone) if gone else []: raise Fault(400, "CannotRemoveBackendAddressPoolInUseByVirtualMachineScaleSet", f"a scale set still names the pool: {gone[0].rsplit('/', 1)[1]}, {v}", [])   # guess of the code
            s.detach(gone); s.frontends_free([c["id"] for c in old["properties"]["frontendIPConfigurations"] if c["id"].lower() not in own["frontendIPConfigurations"]])
        elif not P["frontendIPConfigurations"] and P["loadBalancingRules"]: raise Fault(400, "InvalidRequestFormat", "the body is not what the description allows")
        before = {ref(f["properties"].get("publicIPAddress")) for f in (old or {}).get("properties", {}).get("frontendIPConfigurations", [])}; after = {ref(f["properties"].get("publicIPAddress")) for f in P["frontendIPConfigurations"]}
        for x in before ^ after:
            if x and s.get(x): s.touch(s.get(x))
        return d, s.lro if P["loadBalancingRules"] else 0
    def frontends_free(s, gone):
        for pls in s.all("privateLinkServices"):
            for f in pls["properties"]["loadBalancerFrontendIpConfigurations"]:
                if any(same(ref(f), g) for g in gone): raise Fault(400, "LoadBalancerFrontendIPConfigurationInUseByPrivateLinkService", f"Frontend IP configuration {ref(f)} is in use by private link service {pls['id']}.", [])   # guess of the code
    def set_of(s, rid):
        """The scale set or availability set of a scale set, an instance, an interface or one of its configurations; of a machine in none the machine."""
        g, ns, p = parts(rid)
        if same(p[0], "virtualMachineScaleSets"): return f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{COM}/{p[0]}/{p[1]}".lower()
        vm = ref((s.get(f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{NET}/networkInterfaces/{p[1]}") or {"properties": {}})["properties"].get("virtualMachine")); q = (s.get(vm) or {"properties": {}})["properties"]
        return (ref(q.get("virtualMachineScaleSet")) or ref(q.get("availabilitySet")) or vm or rid).lower()
    def may_join(s, rid, pools):
        """A basic load balancer has the machines of one availability set or scale set."""
        own = s.set_of(rid)
        for p in pools:
            lb = s.get(p.rsplit("/", 2)[0])
            if not lb or not same(lb["sku"]["name"], "Basic"): continue
            if any(same(r["properties"].get("orchestrationMode"), "Flexible") for r in [s.get(own)] if r): raise Fault(400, "LoadBalancerSkuNotSupportedForFlexibleScaleSet", f"a flexible scale set needs a standard load balancer: {rid}, {lb['id']}")   # guess of the code
            ids = [b["id"] for b in lb["properties"]["backendAddressPools"]]; others = [m for i in ids for m in s.members()[i.lower()]] + s.scale_sets_using(ids)
            for o in others:
                if s.set_of(o) != own: raise Fault(400, "NetworkInterfaceAndLoadBalancerAreInDifferentAvailabilitySets", f"a basic load balancer has the machines of one set: {rid}, {lb['id']}, {o}", [])   # guess of the code
    def detach(s, pools):
        for d in s.all("networkInterfaces") if pools else []:
            for c in d["properties"]["ipConfigurations"]:
                q = c["properties"]; l = [x for x in q.get("loadBalancerBackendAddressPools") or [] if not any(same(ref(x), g) for g in pools)]
                if len(l) != len(q.get("loadBalancerBackendAddressPools") or []): q["loadBalancerBackendAddressPools"] = l; s.touch(d)
    def pool(s, c, q, standard):
        r = {k: q[k] for k in ("virtualNetwork", "drainPeriodInSeconds", "syncMode", "location", "tunnelInterfaces") if q.get(k)}; out, ips, names = [], set(), set()
        for a in q.get("loadBalancerBackendAddresses") or []:
            ip = (a.get("properties") or {}).get("ipAddress"); n = a.get("name")
            if n.lower() in names: raise Fault(400, "DuplicateResourceName", f"two children have one name: {c['id']}, {n}", [])
            if ip and ip in ips: raise Fault(400, "LoadBalancerBackendAddressesHaveSameIpAddress", f"Backend addresses of {c['id']} have the same IP address {ip}.", [])   # guess of the code
            names.add(n.lower()); ips.add(ip); x = {k: v for k, v in a["properties"].items() if k in ("ipAddress", "virtualNetwork", "subnet", "adminState") and v}
            vn = ref(x.get("virtualNetwork")) or ref(r.get("virtualNetwork"))
            if ip and not vn and not ref(x.get("subnet")): raise Fault(400, "BackendAddressMissingVirtualNetwork", f"Backend address {n} of {c['id']} has no virtual network.", [])   # guess of the code
            if vn: s.need(vn, c["id"])
            out.append({"name": n, "properties": x})
        if out and s.members().get(c["id"].lower()): raise Fault(400, "BackendPoolCannotHaveBothNicAndIpBasedMembers", f"Backend address pool {c['id']} has network interfaces and IP addresses.", [])   # guess of the code
        r["loadBalancerBackendAddresses"] = out; return r
    def probe(s, c, q):
        r = {"protocol": q["protocol"].capitalize(), "port": q["port"], **({"requestPath": q["requestPath"]} if q.get("requestPath") else {}), "intervalInSeconds": q.get("intervalInSeconds", 15), "numberOfProbes": q.get("numberOfProbes", 2), "probeThreshold": q.get("probeThreshold", 1), "noHealthyBackendsBehavior": q.get("noHealthyBackendsBehavior", "AllProbedDown")}   # guess of the defaults
        if s.stack:   # its API version lacks these two
            for k in ("probeThreshold", "noHealthyBackendsBehavior"):
                r.pop(k)
                if k in q: s.finding(f"{c['id']}: Azure Stack has no {k}")
        if r["protocol"] != "Tcp" and not r.get("requestPath"): raise Fault(400, "LoadBalancerProbeMissingRequestPath", f"Probe {c['id']} needs a request path.")   # guess
        if r["intervalInSeconds"] < 5: raise Fault(400, "LoadBalancerProbeInvalidInterval", f"Interval of probe {c['id']} must be at least 5 seconds.")   # guess
        return r

    def put_publicipaddresses(s, rid, body, old):
        d = s.base_doc(rid, body, old); p = body.get("properties") or {}; P = d["properties"]; d["sku"] = {"name": (body.get("sku") or {}).get("name", "Basic"), "tier": (body.get("sku") or {}).get("tier", "Regional")}
        v = p.get("publicIPAddressVersion", "IPv4"); m = p.get("publicIPAllocationMethod", "Dynamic"); std = same(d["sku"]["name"], "Standard")
        if std and not same(m, "Static"): raise Fault(400, "StandardSkuPublicIPAddressesMustHaveStaticAllocation", f"a standard public address is static: {d['id']}", [])
        P.update({"publicIPAddressVersion": v, "publicIPAllocationMethod": m, "idleTimeoutInMinutes": p.get("idleTimeoutInMinutes", 4), "ipTags": p.get("ipTags") or [], **({"ddosSettings": p.get("ddosSettings") or {"protectionMode": "VirtualNetworkInherited"}} if std else {})})
        if p.get("publicIPPrefix"):
            x = s.need(ref(p["publicIPPrefix"]), d["id"]); P["publicIPPrefix"] = {"id": x["id"]}
        if old:
            o = old["properties"]; d["zones"] = old.get("zones") or d.get("zones") or []
            if not d["zones"]: d.pop("zones")
            for k, a, b in (("publicIPAddressVersion", o["publicIPAddressVersion"], v), ("publicIPPrefix", (ref(o.get("publicIPPrefix")) or "").lower(), (ref(P.get("publicIPPrefix")) or "").lower()), ("sku.name", old["sku"]["name"], d["sku"]["name"])):
                if a != b: raise Fault(400, "PropertyChangeNotAllowed", f"this property keeps its value: {k}, {d['id']}")   # guess
            if sorted(map(json.dumps, o.get("ipTags", []))) != sorted(map(json.dumps, P["ipTags"])) and s.render(old)["properties"].get("ipConfiguration"): raise Fault(400, "PublicIPAddressInUseCannotUpdateIpTags", f"Ip tags of {d['id']} cannot be changed while it is in use.")   # guess
        lab = (p.get("dnsSettings") or {}).get("domainNameLabel")
        if lab:
            fq = f"{lab}.{d['location']}.cloudapp.azure.com"
            if any(same((x["properties"].get("dnsSettings") or {}).get("fqdn"), fq) and not same(x["id"], d["id"]) for x in s.all("publicIPAddresses")): raise Fault(400, "DnsRecordInUse", f"another address has this DNS name: {fq}", [])
            P["dnsSettings"] = {"domainNameLabel": lab, "fqdn": fq}
        if old and old["properties"].get("ipAddress"): P["ipAddress"] = old["properties"]["ipAddress"]
        elif same(m, "Static"):
            s.counter[v] += 1; n = s.counter[v]
            if P.get("publicIPPrefix"):
                net = ipaddress.ip_network(s.get(ref(P["publicIPPrefix"]))["properties"]["ipPrefix"]); used = {x["properties"].get("ipAddress") for x in s.all("publicIPAddresses")}
                a = next((str(h) for h in net if str(h) not in used), None)
                if a is None: raise Fault(400, "PublicIPPrefixOutOfIPAddresses", f"Public IP prefix {ref(P['publicIPPrefix'])} has no free address.")   # guess of the code
            else: a = f"20.{50 + n // 65536}.{n // 256 % 256}.{n % 256}" if v == "IPv4" else f"2603:1030:{n:x}::1"
            s.hidden.setdefault(d["id"].lower(), {})["later"] = {"ipAddress": a}   # shown when the operation has ended
        return d, s.lro
    def put_networksecuritygroups(s, rid, body, old):
        d = s.base_doc(rid, body, old); p = body.get("properties") or {}; seen = {}
        def rule(c, q, o):
            k = (q["direction"].lower(), q["priority"])
            if k in seen: raise Fault(400, "SecurityRuleConflict", f"two rules of a direction have one priority: {c['name']}, {seen[k]}", [])
            seen[k] = c["name"]
            if not 100 <= q["priority"] <= 4096: raise Fault(400, "SecurityRuleInvalidPriority", f"a priority is between 100 and 4096: {q['priority']}", [])
            for side in ("source", "destination"):
                one, many, grp = q.get(f"{side}AddressPrefix"), q.get(f"{side}AddressPrefixes") or [], q.get(f"{side}ApplicationSecurityGroups")
                if not one and not many and not grp: raise Fault(400, "SecurityRuleInvalidAddressPrefix", f"not an address prefix of a rule: {c['name']}, {side}")   # guess of the text
                if one and many: raise Fault(400, "SecurityRuleParameterContainsUnsupportedValue", f"Security rule {c['name']} has both {side}AddressPrefix and {side}AddressPrefixes.")   # guess of the text
                for a in many + ([one] if one else []):
                    if not re.match(r"[A-Za-z*]", a) or ":" in a:
                        try: ipaddress.ip_network(a)
                        except ValueError: raise Fault(400, "SecurityRuleInvalidAddressPrefix", f"not an address prefix of a rule: {a}", [])
                for pr in (q.get(f"{side}PortRanges") or []) + ([q[f"{side}PortRange"]] if q.get(f"{side}PortRange") else []):
                    if pr != "*" and not re.match(r"\d+(-\d+)?\Z", pr): raise Fault(400, "SecurityRuleInvalidPortRange", f"not a port or a range of ports: {pr}", [])
            return {**{k: [] for k in ("sourcePortRanges", "destinationPortRanges", "sourceAddressPrefixes", "destinationAddressPrefixes")}, **q}
        d["properties"]["securityRules"] = s.kids(d, "securityRules", p.get("securityRules"), old, rule)
        if len(d["properties"]["securityRules"]) > 1000: raise Fault(400, "SecurityRuleCountLimitReached", "Cannot have more than 1000 rules.")   # guess of the code
        for side in ("source", "destination"):
            prefixes = sum(len(q.get(f"{side}AddressPrefixes") or []) + bool(q.get(f"{side}AddressPrefix")) for q in (r["properties"] for r in d["properties"]["securityRules"]))
            if prefixes > 4000: raise Fault(400, "SecurityRuleAddressPrefixLimitReached", f"the rules of a group have at most 4000 {side} prefixes, not {prefixes}")   # guess of the code
        base = dict(protocol="*", sourcePortRange="*", destinationPortRange="*", sourcePortRanges=[], destinationPortRanges=[], sourceAddressPrefixes=[], destinationAddressPrefixes=[])
        d["properties"]["defaultSecurityRules"] = s.kids(d, "defaultSecurityRules", [{"name": n, "properties": {"description": t, **base, "sourceAddressPrefix": a, "destinationAddressPrefix": b, "access": c, "priority": pr, "direction": di}} for n, t, a, b, c, pr, di in (("AllowVnetInBound", "in: within the network", "VirtualNetwork", "VirtualNetwork", "Allow", 65000, "Inbound"), ("AllowAzureLoadBalancerInBound", "in: health probes", "AzureLoadBalancer", "*", "Allow", 65001, "Inbound"), ("DenyAllInBound", "in: everything else is denied", "*", "*", "Deny", 65500, "Inbound"),
            ("AllowVnetOutBound", "out: within the network", "VirtualNetwork", "VirtualNetwork", "Allow", 65000, "Outbound"), ("AllowInternetOutBound", "out: to the Internet", "*", "Internet", "Allow", 65001, "Outbound"), ("DenyAllOutBound", "out: everything else is denied", "*", "*", "Deny", 65500, "Outbound"))], None, lambda c, q, o: q)
        return d, s.lro
    def put_routetables(s, rid, body, old):
        d = s.base_doc(rid, body, old); p = body.get("properties") or {}
        def route(c, q, o):
            try: ipaddress.ip_network(q.get("addressPrefix", "")) if not re.match("[A-Za-z]", q.get("addressPrefix", "")) else None
            except ValueError: raise Fault(400, "InvalidAddressPrefixFormat", f"not a network in CIDR notation: {q.get('addressPrefix')}, {c['id']}", [])
            if same(q["nextHopType"], "VirtualAppliance") and not q.get("nextHopIpAddress"): raise Fault(400, "NextHopIpAddressRequired", f"Route {c['id']} needs a next hop address.")   # guess
            return {"addressPrefix": q["addressPrefix"], "nextHopType": q["nextHopType"], **({"nextHopIpAddress": q["nextHopIpAddress"]} if q.get("nextHopIpAddress") else {}), "hasBgpOverride": False}
        d["properties"].update({"disableBgpRoutePropagation": p.get("disableBgpRoutePropagation", False), "routes": s.kids(d, "routes", p.get("routes"), old, route)})
        if len(d["properties"]["routes"]) > 400: raise Fault(400, "TooManyRoutesInRouteTable", f"Route table {d['id']} cannot have more than 400 routes.")   # guess of the code
        return d, s.lro
    def put_networkinterfaces(s, rid, body, old):
        d = s.base_doc(rid, body, old); p = body.get("properties") or {}; used = s.private()
        def conf(c, q, o):
            x = s.need(ref(q.get("subnet")), c["id"]); oq = (o or {}).get("properties", {}); v = q.get("privateIPAddressVersion", "IPv4"); static = same(q.get("privateIPAllocationMethod"), "Static")
            r = {"privateIPAddress": (q.get("privateIPAddress") if static else oq.get("privateIPAddress")) or s.address(x, v, used), "privateIPAllocationMethod": "Static" if static else "Dynamic", "subnet": {"id": x["id"]}, "primary": q.get("primary", False), "privateIPAddressVersion": v}
            if q.get("loadBalancerBackendAddressPools"): r["loadBalancerBackendAddressPools"] = [{"id": s.need(ref(l), c["id"])["id"]} for l in q["loadBalancerBackendAddressPools"]]
            if q.get("publicIPAddress"): r["publicIPAddress"] = {"id": ref(q["publicIPAddress"])}
            return r
        d["properties"]["ipConfigurations"] = s.kids(d, "ipConfigurations", p.get("ipConfigurations"), old, conf); c = d["properties"]["ipConfigurations"]
        s.may_join(rid, [ref(b) for x in c for b in x["properties"].get("loadBalancerBackendAddressPools") or []])
        if c and not any(x["properties"]["primary"] for x in c): c[0]["properties"]["primary"] = True
        d["properties"].update({k: (old or {}).get("properties", {}).get(k, p.get(k)) for k in ("virtualMachine", "primary", "enableAcceleratedNetworking", "enableIPForwarding", "networkSecurityGroup") if (old or {}).get("properties", {}).get(k, p.get(k)) is not None}); d["kind"] = "Regular"
        for k, v in (("dnsSettings", {"dnsServers": [], "appliedDnsServers": [], "internalDomainNameSuffix": "x.bx.internal.cloudapp.net"}), ("enableAcceleratedNetworking", False), ("vnetEncryptionSupported", False), ("enableIPForwarding", False), ("disableTcpStateTracking", False), ("hostedWorkloads", []), ("tapConfigurations", []), ("nicType", "Standard"), ("allowPort25Out", True), ("defaultOutboundConnectivityEnabled", False), ("auxiliaryMode", "None"), ("auxiliarySku", "None")): d["properties"].setdefault(k, v)
        return d, None
    def put_virtualnetworks(s, rid, body, old):
        d = s.base_doc(rid, body, old); p = body.get("properties") or {}; d["properties"].update({"addressSpace": p["addressSpace"], "privateEndpointVNetPolicies": "Disabled", "virtualNetworkPeerings": [], "enableDdosProtection": False}); d["properties"]["subnets"] = s.kids(d, "subnets", p.get("subnets"), old, s.subnet); return d, s.lro
    def subnet(s, c, q, o):
        return {"delegations": [], "privateEndpointNetworkPolicies": "Disabled", "privateLinkServiceNetworkPolicies": "Enabled", **{k: v for k, v in q.items() if k != "ipConfigurations"}}
    def put_privatelinkservices(s, rid, body, old):
        d = s.base_doc(rid, body, old); p = body.get("properties") or {}; P = d["properties"]; fs = p.get("loadBalancerFrontendIpConfigurations") or []
        if not fs: raise Fault(400, "PrivateLinkServiceMustReferenceLoadBalancerFrontend", f"{d['id']} has no frontend.")   # guess
        for f in fs:
            s.need(ref(f), d["id"])
            for o in s.all("privateLinkServices"):
                if not same(o["id"], d["id"]) and any(same(ref(f), ref(x)) for x in o["properties"]["loadBalancerFrontendIpConfigurations"]): raise Fault(400, "LoadBalancerFrontendIPConfigurationInUseByPrivateLinkService", f"Frontend IP configuration {ref(f)} is in use by private link service {o['id']}.", [])   # guess of the code
        def conf(c, q, o):
            x = s.need(ref(q.get("subnet")), c["id"])
            if not same(x["properties"].get("privateLinkServiceNetworkPolicies"), "Disabled"): raise Fault(400, "PrivateLinkServiceNetworkPoliciesCannotBeEnabledOnPrivateLinkServiceSubnet", f"the subnet still applies network policies to private link services: {x['id']}", [])
            static = same(q.get("privateIPAllocationMethod"), "Static"); r = {"privateIPAllocationMethod": "Static" if static else "Dynamic", "subnet": {"id": x["id"]}, "primary": q.get("primary", False), "privateIPAddressVersion": q.get("privateIPAddressVersion", "IPv4")}
            if static: r["privateIPAddress"] = q["privateIPAddress"]
            return r
        P.update({"fqdns": p.get("fqdns") or [], "alias": (old or {}).get("properties", {}).get("alias") or f"{d['name'].lower()}.{guid()}.{d['location']}.azure.privatelinkservice", "enableProxyProtocol": p.get("enableProxyProtocol", False), "loadBalancerFrontendIpConfigurations": [{"id": ref(f)} for f in fs], "ipConfigurations": s.kids(d, "ipConfigurations", p.get("ipConfigurations"), old, conf),
                  "privateEndpointConnections": (old or {}).get("properties", {}).get("privateEndpointConnections", []), "networkInterfaces": (old or {}).get("properties", {}).get("networkInterfaces") or [{"id": f"{d['id'].split('/privateLinkServices/')[0]}/networkInterfaces/{d['name']}.nic.{guid()}"}]})
        P.update({k: p[k] for k in ("visibility", "autoApproval") if p.get(k)}); return d, s.lro
    def compute(s, rid, body, old):
        """Compute merges what it is sent."""
        if not old: raise Fault(404, "ResourceNotFound", f"no such resource: {rid}")
        new = merge(old, {k: v for k, v in body.items() if k in ("tags", "sku", "zones", "identity", "plan", "properties")})
        for k, path in (("virtualMachineProfile", ("networkProfile", "networkInterfaceConfigurations")), ("networkProfileConfiguration", ("networkInterfaceConfigurations",)), ):
            o = new["properties"].get(k) or {}
            for x in path: o = (o or {}).get(x) or {}
            for n in o or []:
                for c in n["properties"]["ipConfigurations"]:
                    for b in c["properties"].get("loadBalancerBackendAddressPools") or []: s.need(ref(b), old["id"]); s.may_join(old["id"], [ref(b)])
        (new["properties"].get("osProfile") or {}).pop("adminPassword", None); ((new["properties"].get("virtualMachineProfile") or {}).get("osProfile") or {}).pop("adminPassword", None)
        if not new.get("identity") or same(new["identity"].get("type"), "None"): new.pop("identity", None)
        if "/virtualMachineScaleSets/" in old["id"] and "/virtualMachines/" in old["id"]:
            new.pop("tags", None)   # an instance shows none
            if new["properties"].get("networkProfileConfiguration") != old["properties"].get("networkProfileConfiguration"):
                parent = s.get(old["id"].split("/virtualMachines/")[0]); new["properties"]["modelDefinitionApplied"] = "VirtualMachine"
                if parent: s.touch(parent)
        return new, s.lro

    # ---- requests
    def op(s, rid, ns, delay, after=None, error=None):
        o = guid()
        for x in s.ops.values():   # Network: a later write ends an earlier one
            if x["id"] == rid.lower() and x["status"] == "InProgress" and time.time() < x["due"] and ns == NET: x.update(status="Canceled", error={"code": "CanceledAndSupersededDueToAnotherOperation", "message": f"a later write ended this operation: {x['op']}, {o}"})
        s.ops[o] = {"op": o, "id": rid.lower(), "due": time.time() + delay, "status": "InProgress", "after": after, "error": error, "ns": ns}; return o
    def tick(s):
        for x in list(s.ops.values()):
            if x["status"] == "InProgress" and time.time() >= x["due"]:
                x["status"] = "Canceled" if (x["error"] or {}).pop("canceled", None) else "Failed" if x["error"] else "Succeeded"; d = s.docs.get(x["id"])
                if x["after"]: x["after"]()
                elif d and not any(y is not x and y["id"] == x["id"] and y["status"] == "InProgress" for y in s.ops.values()): s.settle(d, "Failed" if x["error"] else "Succeeded")
    def settle(s, d, state):
        d["properties"]["provisioningState"] = state; later = s.hidden.get(d["id"].lower(), {}).pop("later", None)
        if later and state == "Succeeded": d["properties"].update(later)
        for v in d["properties"].values():
            for c in v if isinstance(v, list) else []:
                if isinstance(c, dict) and "provisioningState" in (c.get("properties") or {}): c["properties"]["provisioningState"] = state
    def headers(s, o, ns, final):
        v = next(iter(VERSIONS[ns.lower()])); u = f"{s.base}/subscriptions/{SUB}/providers/{ns}/locations/{LOCATION}"; h = {"Azure-AsyncOperation": f"{u}/operations/{o}?api-version={v}&t=t", "Azure-AsyncNotification": "Enabled"}
        if final: h["Location"] = f"{u}/operationResults/{o}?api-version={v}&t=t" if ns == NET else f"{u}/operations/{o}?api-version={v}&monitor=true"
        if s.retry_after is not None: h["Retry-After"] = str(s.retry_after)
        return h
    def notfound(s, g, ns, p):
        if g.lower() not in s.groups: raise Fault(404, "ResourceGroupNotFound", f"no such resource group: {g}", headers={"x-ms-failure-cause": "gateway"})
        parent = s.get(f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{ns}/{p[0]}/{p[1]}") if len(p) > 1 else None
        if len(p) > 2 and parent: raise Fault(404, "NotFound", f"no such child: {SUB}, {g}, {ns}, {'/'.join(p)}", [])
        if len(p) > 2: raise Fault(404, "ParentResourceNotFound", f"the parent does not exist: {'/'.join(p[::2])}, {SUB}, {g}, {ns}, {p[0]}, {p[1]}", headers={"x-ms-failure-cause": "gateway"})
        raise Fault(404, "ResourceNotFound", f"no such resource: {ns}, {p[0]}, {p[1]}, {g}", headers={"x-ms-failure-cause": "gateway"})

    def handle(s, method, path, query, headers, body):
        s.tick()
        m = re.match(r"(?i)/subscriptions/([^/]+)/providers/([^/]+)/locations/[^/]+/(operations|operationResults)/([^/]+)\Z", path)
        if m:
            x = s.ops.get(m[4])
            if not x: raise Fault(404, "OperationNotFound", "no such operation")
            h = {"Retry-After": str(s.retry_after)} if s.retry_after is not None and x["status"] == "InProgress" else {}
            if m[3].lower() == "operationresults" or "monitor" in query: return (202, {**h, "Location": s.base + path + "?" + urllib.parse.urlencode(query)}, None) if x["status"] == "InProgress" else (204, {}, None)
            b = {"status": x["status"], **({"error": x["error"]} if x["error"] else {})}
            if same(x["ns"], COM): b = {"startTime": "2026-08-01T00:00:00Z", "name": m[4], **b}
            return 200, h, b
        if re.match(r"(?i)/subscriptions/[^/]+/providers/Microsoft.Compute\Z", path):
            return 200, {}, {"id": path, "namespace": COM, "registrationState": "Registered", "resourceTypes": [{"resourceType": "virtualMachines", "locations": ["East US"], "apiVersions": ["2025-04-01"], "zoneMappings": [{"location": "East US", "zones": s.zones}]}]}
        if re.match(r"(?i)/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft.Authorization/permissions\Z", path):
            return 200, {}, {"value": s.permissions}
        area, spec = s.d.find(method, path); g, ns, p = parts(path)
        if not p or not same(path.split("/")[2], SUB): raise Fault(404, "SubscriptionNotFound" if p else "InvalidResourceType", f"{path}: not served")
        if spec is None: s.finding(f"{method} {path}: not in the description"); raise Fault(404 if area is None else 405, "InvalidResourceType" if area is None else "MethodNotAllowed", f"{method} {path}: not in the description")
        v = query.get("api-version"); want = next(x["schema"]["enum"] for x in spec["parameters"] if x["name"] == "api-version")
        if not v: raise Fault(400, "MissingApiVersionParameter", "the query has no api-version")
        if s.stack and "2018-10-01" not in want: want = [STACK.get(p[0].lower(), "2018-11-01")]
        if v not in want: s.finding(f"{method} {path}: api-version {v}, described is {want}")
        for k in query:
            if k not in [x["name"] for x in spec["parameters"]] and k != "$skiptoken": s.finding(f"{method} {path}: unknown query parameter {k}")
        if body is not None:
            sch = spec["requestBody"]["content"]["application/json"]["schema"]; bad = [b for b in s.d.check(area, sch, body) if not (b == ".location: required" and "/virtualMachines/" in path)]   # Azure takes an instance without it
            if bad: s.finding(f"{method} {path}: {bad}"); raise Fault(400, "InvalidRequestFormat", "the body is not what the description allows", [{"code": "InvalidJson", "message": bad[0]}])
            body = s.d.strip(area, sch, body)
        ns = NET if same(ns, NET) else COM; kind = p[0].lower()
        if "networkinterfaces" in [x.lower() for x in p[2:]] or (kind == "virtualmachinescalesets" and len(p) > 2 and p[2].lower() in ("networkinterfaces", "publicipaddresses")): return s.scale_set_nics(g, p)
        if len(p) % 2 and method == "POST": return s.migrate(g, p, body)
        if len(p) % 2 and not same(p[-1], "instanceView"): return s.listing(g, ns, p, query)
        view = same(p[-1], "instanceView"); rid = f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{ns}/{'/'.join(p[:-1] if view else p)}"
        if kind == "virtualmachinescalesets" and len(p) > 3 and not p[3].isdigit(): raise Fault(400, "InvalidParameter", "the ID of an instance is a number", target="instanceId")
        if method in ("PUT", "DELETE") and g.lower() not in s.groups: raise Fault(404, "ResourceGroupNotFound", f"no such resource group: {g}", headers={"x-ms-failure-cause": "gateway"})
        if len(p) == 4 and kind in ("loadbalancers", "virtualnetworks", "privatelinkservices"): return s.sub(method, rid, g, ns, p, headers, body)
        old = s.get(rid)
        if method == "GET":
            if not old: s.notfound(g, ns, p[:-1] if view else p)
            d = s.render(old); iv = s.hidden.get(old["id"].lower(), {}).get("view")
            if view: return 200, {}, iv
            if same(query.get("$expand"), "instanceView") and iv: d["properties"]["instanceView"] = iv
            return 200, {"ETag": d["etag"]} if "etag" in d else {}, d
        if method == "PUT":
            im = headers.get("if-match")
            if im and im != "*" and (not old or im != old["etag"]): s.mismatch(im, old, ns, rid)
            if not im and old: s.counter[f"PUT {kind} without If-Match"] += 1
            f = s.compute if ns == COM else getattr(s, "put_" + kind); d, delay = f(rid, body, old)
            d["etag"] = (old or {}).get("etag"); s.docs[rid.lower()] = d
            if not (ns == COM and d == old): s.touch(d)   # a scale set that does not change keeps its etag
            if delay is None: return 200 if old else 201, {}, s.render(d)
            x = s.fault_of("lro", kind, d["name"]); o = s.op(rid, ns, delay, error=x)
            if delay > 0 or x or ns == COM or (not old and kind != "loadbalancers"): s.updating(d)
            out = s.render(d); s.tick(); return 200 if old else 201, s.headers(o, ns, False), out
        if method == "DELETE":
            if not old: return 204, {}, None
            s.may_delete(kind, old); o = s.op(rid, ns, s.lro, after=lambda: s.drop(rid)); old["properties"]["provisioningState"] = "Deleting"; s.tick(); return 202, s.headers(o, ns, True), None
    def updating(s, d):
        """State of a document and, where Azure shows them so, of its children while an operation runs."""
        d["properties"]["provisioningState"] = "Updating"
        for k in ("securityRules", "defaultSecurityRules", "routes", "subnets"):
            for c in d["properties"].get(k) or []: c["properties"]["provisioningState"] = "Updating"
    def mismatch(s, im, old, ns, rid):
        if ns == COM: raise Fault(412, "PreconditionFailed", f"the etag is not the current one: {im if im.startswith(chr(34)) else json.dumps(im)}, {(old or {}).get('etag')}")
        raise Fault(412, "PreconditionFailed", "the etag is not the current one", [{"code": "PreconditionFailedEtagMismatch", "message": f"the etag is not the current one: {im if im.startswith('W/') else 'W/%s' % json.dumps(im)}, {(old or {}).get('etag')}, {(old or {}).get('id', rid)}"}])
    def may_delete(s, kind, d):
        if kind == "publicipaddresses":
            c = s.render(d)["properties"].get("ipConfiguration")
            if c: raise Fault(400, "PublicIPAddressCannotBeDeleted", f"something uses the public address: {d['id']}, {c['id']}", [])
        if kind == "loadbalancers":
            pools = [c["id"] for c in d["properties"]["backendAddressPools"]]; s.frontends_free([c["id"] for c in d["properties"]["frontendIPConfigurations"]])
            for v in s.scale_sets_using(pools) if pools else []: raise Fault(400, "LoadBalancerInUseByVirtualMachineScaleSet", f"a scale set still names a pool of the load balancer: {d['id']}, {', '.join((p.rsplit('/', 1)[1] for p in pools))}, {v}", [])
        if kind == "privatelinkservices" and d["properties"]["privateEndpointConnections"]: raise Fault(400, "PrivateLinkServiceWithPrivateEndpointConnectionsCannotBeDeleted", f"Private link service {d['id']} has private endpoint connections.")   # guess of the code
    def drop(s, rid):
        d = s.docs.pop(rid.lower(), None); s.hidden.pop(rid.lower(), None)
        if d and d["type"] == f"{NET}/loadBalancers":
            s.detach([c["id"] for c in d["properties"]["backendAddressPools"]])
            for f in d["properties"]["frontendIPConfigurations"]:
                x = s.get(ref(f["properties"].get("publicIPAddress")))
                if x: s.touch(x)
    def sub(s, method, rid, g, ns, p, headers, body):
        """Children with an API of their own: pools, subnets, private endpoint connections."""
        parent = s.get(f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{ns}/{p[0]}/{p[1]}"); coll = TYPES[p[2].lower()]
        if not parent: s.notfound(g, ns, p)
        kids = parent["properties"][coll]; old = next((c for c in kids if same(c["name"], p[3])), None)
        show = lambda: next(c for c in s.render(parent)["properties"][coll] if same(c["name"], p[3]))
        if method == "GET":
            if not old: s.notfound(g, ns, p)
            c = show(); return 200, {"ETag": c["etag"]}, c
        if method == "PUT":
            im = headers.get("if-match")
            if im and im != "*" and (not old or im != old["etag"]): s.mismatch(im, old, ns, rid)
            if not im and old: s.counter[f"PUT {p[2].lower()} without If-Match"] += 1
            n = old["name"] if old else p[3]; c = {"name": n, "id": f"{parent['id']}/{coll}/{n}", "etag": "-", "type": f"{parent['type']}/{coll}"}; q = copy.deepcopy(body.get("properties") or {})
            c["properties"] = {"provisioningState": "Succeeded", **(s.pool(c, q, True) if coll == "backendAddressPools" else s.subnet(c, q, old))}
            if old: kids[kids.index(old)] = c
            else: kids.append(c)
            s.touch(parent); o = s.op(rid, ns, s.lro, after=lambda: c["properties"].update(provisioningState="Succeeded")); c["properties"]["provisioningState"] = "Succeeded" if old and s.lro == 0 else "Updating"; out = show(); s.tick(); return (200 if old else 201), s.headers(o, ns, False), out
        if method == "DELETE":
            if not old: return 204, {}, None
            if coll == "backendAddressPools":
                used = [r["id"] for k in ("loadBalancingRules", "outboundRules") for r in parent["properties"][k] if any(same(ref(x), old["id"]) for x in [r["properties"].get("backendAddressPool") or {}] + (r["properties"].get("backendAddressPools") or []))]
                if used: raise Fault(400, "InUseBackendAddressPoolCannotBeDeleted", f"a rule still names the pool: {old['id']}, {used[0]}", [])   # guess
                for v in s.scale_sets_using([old["id"]]): raise Fault(400, "CannotRemoveBackendAddressPoolInUseByVirtualMachineScaleSet", f"a scale set still names the pool: {old['name']}, {v}", [])   # guess of the code
                s.detach([old["id"]])
            kids.remove(old); s.touch(parent); o = s.op(rid, ns, s.lro, after=lambda: None); return 202, s.headers(o, ns, True), None
    def migrate(s, g, p, body):
        lb = s.get(f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{NET}/{p[0]}/{p[1]}")
        if not lb: s.notfound(g, NET, p[:2])
        mem = s.members()
        for c in lb["properties"]["backendAddressPools"]:
            if c["name"] in body["pools"]:
                ids = mem.get(c["id"].lower(), []); ips = [s.ip_of(i) for i in ids]; s.detach([c["id"]])
                for v in s.all("virtualMachineScaleSets/virtualMachines") + s.all("virtualMachineScaleSets"):
                    for n in (v["properties"].get("networkProfileConfiguration") or v["properties"].get("virtualMachineProfile", {}).get("networkProfile") or {}).get("networkInterfaceConfigurations", []):
                        for q in n["properties"]["ipConfigurations"]: q["properties"]["loadBalancerBackendAddressPools"] = [x for x in q["properties"].get("loadBalancerBackendAddressPools") or [] if not same(ref(x), c["id"])]
                vn = s.all("virtualNetworks")[0]["id"]; c["properties"].update(s.pool(c, {"virtualNetwork": {"id": vn}, "loadBalancerBackendAddresses": [{"name": f"addr-{i}", "properties": {"ipAddress": a}} for i, a in enumerate(ips)]}, True))
        s.touch(lb); return 200, {}, {"migratedPools": body["pools"]}
    def ip_of(s, rid):
        m = re.match(r"(?i)(.+/virtualMachineScaleSets/[^/]+/virtualMachines/\d+)/", rid)
        return s.hidden[m[1].lower()]["ips"][0] if m else s.child(rid)["properties"]["privateIPAddress"]
    def listing(s, g, ns, p, query):
        if g.lower() not in s.groups: s.notfound(g, ns, p)
        if len(p) == 3:
            if not s.get(f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{ns}/{p[0]}/{p[1]}"): s.notfound(g, ns, p[:2])
            if ns == NET: items = s.render(s.get(f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{ns}/{p[0]}/{p[1]}"))["properties"][TYPES[p[2].lower()]]
            else: items = [d for d in s.all("/".join(p[::2]), g) if same(parts(d["id"])[2][1], p[1])]
        else: items = s.all(p[0], g)
        f = re.match(r"'virtualMachineScaleSet/id' eq '(.*)'\Z", query.get("$filter", ""))
        if f: items = [d for d in items if same(ref(d["properties"].get("virtualMachineScaleSet")), f[1])]
        out = []; items = [d for d in items if d.get("id", "").lower() not in s.unlisted]
        for d in items:
            x = s.render(d) if ns == COM or len(p) == 1 else d
            if same(query.get("$expand"), "instanceView") and s.hidden.get(d["id"].lower(), {}).get("view"): x["properties"]["instanceView"] = s.hidden[d["id"].lower()]["view"]
            out.append(x)
        at = int(query.get("$skiptoken", 0)); size = s.page or len(out) or 1; body = {"value": out[at:at + size]}
        if at + size < len(out): body["nextLink"] = f"{s.base}/subscriptions/{SUB}/resourceGroups/{g}/providers/{ns}/{'/'.join(p)}?" + urllib.parse.urlencode({**query, "$skiptoken": at + size})
        return 200, {}, body
    def scale_set_nics(s, g, p):
        vm = lambda i: s.get(f"/subscriptions/{SUB}/resourceGroups/{g}/providers/{COM}/virtualMachineScaleSets/{p[1]}/virtualMachines/{i}")
        def nics(d):
            out = []; h = s.hidden[d["id"].lower()]; it = iter(h["ips"])
            for n in d["properties"]["networkProfileConfiguration"]["networkInterfaceConfigurations"]:
                rid = f"{d['id']}/networkInterfaces/{n['name']}"
                conf = [{"name": c["name"], "id": f"{rid}/ipConfigurations/{c['name']}", "etag": d["etag"], "properties": {"provisioningState": "Succeeded", "privateIPAddress": next(it), "privateIPAllocationMethod": "Dynamic", "subnet": c["properties"]["subnet"], "primary": c["properties"].get("primary", len(n["properties"]["ipConfigurations"]) == 1), "privateIPAddressVersion": c["properties"].get("privateIPAddressVersion", "IPv4"),
                    **({"loadBalancerBackendAddressPools": c["properties"]["loadBalancerBackendAddressPools"]} if c["properties"].get("loadBalancerBackendAddressPools") else {})}} for c in n["properties"]["ipConfigurations"]]
                out.append({"name": n["name"], "id": rid, "etag": 'W/"%s"' % d["properties"]["vmId"], "properties": {"provisioningState": "Succeeded", "primary": n["properties"].get("primary", True), "virtualMachine": {"id": d["id"]}, "ipConfigurations": conf}})
                for a in public(d):
                    for c in conf:
                        if a["properties"]["ipConfiguration"]["id"] == c["id"]: c["properties"]["publicIPAddress"] = {"id": a["id"]}
            return out
        def public(d):
            """The public addresses of an instance: those whose configuration has one."""
            return [{"name": name, "id": f"{d['id']}/networkInterfaces/{n['name']}/ipConfigurations/{c['name']}/publicIPAddresses/{name}", "properties": {"provisioningState": "Succeeded", "ipAddress": f"20.60.{i}.{d['instanceId']}", "publicIPAddressVersion": "IPv4", "publicIPAllocationMethod": "Dynamic",
                "ipConfiguration": {"id": f"{d['id']}/networkInterfaces/{n['name']}/ipConfigurations/{c['name']}"}}}
                for n in d["properties"]["networkProfileConfiguration"]["networkInterfaceConfigurations"] for i, c in enumerate(n["properties"]["ipConfigurations"]) if (name := (c["properties"].get("publicIPAddressConfiguration") or {}).get("name"))]
        if len(p) == 3 and same(p[2], "networkInterfaces"): return 200, {}, {"value": [n for d in s.all("virtualMachineScaleSets/virtualMachines", g) if same(parts(d["id"])[2][1], p[1]) for n in nics(d)]}
        if len(p) == 3: return 200, {}, {"value": [a for d in s.all("virtualMachineScaleSets/virtualMachines", g) if same(parts(d["id"])[2][1], p[1]) for a in public(d)]}
        d = vm(p[3])
        if not d: s.notfound(g, COM, p[:4])
        if len(p) == 5: return 200, {}, {"value": nics(d)}
        n = next((n for n in nics(d) if same(n["name"], p[5])), None)
        if not n or len(p) > 6: s.notfound(g, COM, p)
        return 200, {}, n
    def finding(s, text):
        if text not in s.findings: s.findings.append(text)
    def fault_of(s, method, kind, name):
        for f in s.faults:
            if f.get("times", 1) > 0 and fnmatch.fnmatch(method.lower(), f.get("method", "*").lower()) and fnmatch.fnmatch(kind.lower(), f.get("type", "*").lower()) and fnmatch.fnmatch((name or "").lower(), f.get("name", "*").lower()) and (method == "lro") == bool(f.get("lro")):
                if f.get("skip", 0): f["skip"] -= 1; continue
                f["times"] = f.get("times", 1) - 1; return f if method != "lro" else {"code": f["code"], "message": f.get("message", f["code"]), **({"canceled": True} if f.get("canceled") else {})}
    def permitted(s, method, ns, p):
        """Whether a role permits the action of a call. Every read is `read`, also a list."""
        verb = {"GET": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}.get(method)
        a = f"{ns}/{'/'.join(x for x in p[::2] if not same(x, 'instanceView'))}/{verb or 'action'}".lower()
        return any(any(fnmatch.fnmatch(a, x.lower()) for x in r["actions"]) and not any(fnmatch.fnmatch(a, x.lower()) for x in r.get("notActions", [])) for r in s.permissions)
    def request(s, method, path, query, headers, raw):
        """One call: counted, delayed, faulted, answered and checked."""
        g, ns, p = parts(path); kind = "/".join(TYPES.get(x.lower(), x) for x in p[::2]) if p else "operations" if "/operation" in path else "providers" if path.count("/") == 4 else path.split("/")[1]
        verb = "LIST" if method == "GET" and len(p) % 2 and not same(p[-1], "instanceView") else "POLL" if kind == "operations" else method
        if s.latency: time.sleep(s.latency)
        with s.lock:
            try:
                if not headers.get("authorization", "").startswith("Bearer "): raise Fault(401, "AuthenticationFailed", "the request has no token", headers={"WWW-Authenticate": f'Bearer authorization_uri="{s.base}/{TENANT}", error="invalid_token"'})
                t = re.match(r"Bearer token-(\d+)\Z", headers["authorization"])
                if t and int(t[1]) <= s.revoked: raise Fault(401, "ExpiredAuthenticationToken", "the token is no longer valid", headers={"WWW-Authenticate": f'Bearer authorization_uri="{s.base}/{TENANT}", error="invalid_token"'})
                if p and not same(ns, "Microsoft.Authorization") and not s.permitted(method, ns, p): raise Fault(403, "AuthorizationFailed", f"no role permits {method} of {kind}")
                f = s.fault_of(method, kind, p[-1] if p else "")
                if f and "body" in f: s.calls[f"{verb} {kind} {f['status']}"] += 1; return f["status"], {**(f.get("headers") or {}), "Content-Type": f.get("content", "text/html")}, f["body"].encode()
                if f: raise Fault(f["status"], f["code"], f.get("message", f["code"]), headers=f.get("headers"))
                body = json.loads(raw) if raw else None; st, h, out = s.handle(method, path, query, headers, body)
                if out is not None and p:
                    area, spec = s.d.find(method, path); sch = (spec["responses"].get(str(st)) or {}).get("content", {}).get("application/json", {}).get("schema") if spec else None
                    if spec and str(st) not in spec["responses"]: s.finding(f"answer {st} of {method} {kind} is not described")
                    for b in (s.d.check(area, sch, out) if sch else [])[:3]: s.finding(f"answer of {method} {kind}: {b}")
            except Fault as e: st, h, out = e.status, e.headers, {"error": e.error}
            except Exception as e:
                import traceback; traceback.print_exc(); st, h, out = 500, {}, {"error": {"code": "InternalServerError", "message": repr(e)}}; s.finding(f"{method} {path}: {e!r}")
            k = f"{verb} {kind}" + (f" {st}" if st >= 400 else ""); s.calls[k] += 1; s.last = time.time(); s.log.append((round(time.time(), 3), verb, path, st, headers.get("if-match", ""), out.get("error", {}).get("code") if st >= 400 else None))
            h = {**h, "x-ms-request-id": guid(), "x-ms-ratelimit-remaining-subscription-global-reads" if method == "GET" else "x-ms-ratelimit-remaining-subscription-global-writes": "16499" if method == "GET" else "11999"}
            return st, h, None if out is None else json.dumps(out).encode()
    def take(s):
        with s.lock: c = dict(s.calls); s.calls.clear(); return c

    # ---- a cluster to begin with
    def cluster(s, uniform=0, flex=0, standalone=0, ipv6=False, group=GROUP):
        r = f"/subscriptions/{SUB}/resourceGroups/{group}/providers"; s.sets = {}
        s.docs[f"{r}/{NET}/virtualNetworks/vnet".lower()] = v = s.put_virtualnetworks(f"{r}/{NET}/virtualNetworks/vnet", {"location": LOCATION, "properties": {"addressSpace": {"addressPrefixes": ["10.240.0.0/12"] + (["fd00:240::/48"] if ipv6 else [])}, "subnets": [{"name": "nodes", "properties": {"addressPrefixes": ["10.240.0.0/16"] + (["fd00:240:0:1::/64"] if ipv6 else [])}} if ipv6 else {"name": "nodes", "properties": {"addressPrefix": "10.240.0.0/16"}}, {"name": "apps", "properties": {"addressPrefix": "10.241.0.0/24"}}]}}, None)[0]; s.touch(v)
        for kind, name, body in (("networkSecurityGroups", "nsg", {"location": LOCATION, "properties": {"securityRules": [{"name": "ssh", "properties": {"protocol": "Tcp", "access": "Allow", "direction": "Inbound", "priority": 200, "sourceAddressPrefix": "10.0.0.0/8", "sourcePortRange": "*", "destinationAddressPrefix": "*", "destinationPortRange": "22"}}]}}), ("routeTables", "routes", {"location": LOCATION, "properties": {"routes": []}})):
            d = getattr(s, "put_" + kind.lower())(f"{r}/{NET}/{kind}/{name}", body, None)[0]; s.docs[d["id"].lower()] = d; s.touch(d)
        if uniform: s.scale_set("pool-a", "Uniform")
        if flex: s.scale_set("pool-f", "Flexible")
        nodes = [s.node("uniform") for _ in range(uniform)] + [s.node("flex") for _ in range(flex)] + [s.node("standalone") for _ in range(standalone)]; s.initial = copy.deepcopy(s.docs); return nodes
    def reset(s):
        """All documents as they were when the cluster had been created."""
        s.docs = copy.deepcopy(s.initial); s.ops.clear()
    def seed(s, x):
        """The document of a resource of the user: {type, name, body, group}. It is created unless it exists."""
        group = x.get("group", GROUP); s.groups.setdefault(group.lower(), group); rid = f"/subscriptions/{SUB}/resourceGroups/{group}/providers/{x['type']}/{x['name']}"; b = {"location": LOCATION, **x["body"]}
        if s.get(rid): return s.get(rid)
        f = getattr(s, "put_" + x["type"].split("/")[1].lower(), None)
        if f is None: return s.put(rid, b)
        d = f(rid, b, None)[0]; s.docs[rid.lower()] = d; s.touch(d); s.settle(d, "Succeeded"); return d
    def scale_set(s, name, mode, group=GROUP):
        r = f"/subscriptions/{SUB}/resourceGroups/{group}/providers"; sn = s.child(f"{r}/{NET}/virtualNetworks/vnet/subnets/nodes"); v6 = any(":" in x for x in sn["properties"].get("addressPrefixes", []))
        conf = [{"name": "ipconfig1", "properties": {"primary": True, "subnet": {"id": sn["id"]}, "privateIPAddressVersion": "IPv4"}}] + ([{"name": "ipconfig1-v6", "properties": {"primary": False, "subnet": {"id": sn["id"]}, "privateIPAddressVersion": "IPv6"}}] if v6 else [])
        net = {"networkInterfaceConfigurations": [{"name": name + "-nic", "properties": {"primary": True, "enableIPForwarding": True, "ipConfigurations": conf}}]}
        s.put(f"{r}/{COM}/virtualMachineScaleSets/{name}", {"location": LOCATION, "sku": {"name": "Standard_D2s_v3", "tier": "Standard", "capacity": 0}, "zones": s.zones, "tags": {}, "properties": {"orchestrationMode": mode, "provisioningState": "Succeeded", "singlePlacementGroup": mode == "Uniform", "overprovision": False, "upgradePolicy": {"mode": "Manual"}, "uniqueId": guid(), "platformFaultDomainCount": 1,
            "virtualMachineProfile": {"osProfile": {"computerNamePrefix": name}, "storageProfile": {"imageReference": {"publisher": "Canonical", "offer": "ubuntu", "sku": "24_04", "version": "latest"}}, "networkProfile": net if mode == "Uniform" else {**net, "networkApiVersion": "2020-11-01"}}}})
    def node(s, kind, group=GROUP, zone=None, power="running", set=None):
        """One more machine: {name of its node, id, addresses}."""
        r = f"/subscriptions/{SUB}/resourceGroups/{group}/providers"; sn = s.child(f"{r}/{NET}/virtualNetworks/vnet/subnets/nodes"); v6 = any(":" in x for x in sn["properties"].get("addressPrefixes", [])); n = s.counter["node " + kind]; s.counter["node " + kind] += 1
        used = s.private(); ips = [s.address(sn, "IPv4", used)] + ([s.address(sn, "IPv6", used)] if v6 else []); zone = None if kind == "standalone" and set else zone or (s.zones[n % len(s.zones)] if s.zones else None)
        b36 = lambda i: "".join("0123456789abcdefghijklmnopqrstuvwxyz"[i // 36 ** k % 36] for k in range(5, -1, -1)); view = {"platformFaultDomain": 0, "platformUpdateDomain": 0, "statuses": [{"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"}, {"code": f"PowerState/{power}", "level": "Info", "displayStatus": f"VM {power}"}]}
        if kind == "uniform":
            vs = s.get(f"{r}/{COM}/virtualMachineScaleSets/{set or 'pool-a'}"); vs["sku"]["capacity"] += 1; rid = f"{vs['id']}/virtualMachines/{n}"; name = vs["name"] + b36(n); prof = vs["properties"]["virtualMachineProfile"]
            s.put(rid, {"name": f"{vs['name']}_{n}", "instanceId": str(n), "location": LOCATION, "sku": {"name": vs["sku"]["name"], "tier": "Standard"}, **({"zones": [zone]} if zone else {}), "properties": {"latestModelApplied": True, "modelDefinitionApplied": "VirtualMachineScaleSet", "provisioningState": "Succeeded", "vmId": guid(), "hardwareProfile": {"vmSize": vs["sku"]["name"]}, "osProfile": {"computerName": name},
                "networkProfile": {"networkInterfaces": [{"id": f"{rid}/networkInterfaces/{vs['name']}-nic"}]}, "networkProfileConfiguration": copy.deepcopy({k: v for k, v in prof["networkProfile"].items() if k != "networkApiVersion"})}})
        else:
            vs = s.get(f"{r}/{COM}/virtualMachineScaleSets/{set or 'pool-f'}") if kind == "flex" else None; name = f"{vs['name']}{b36(n)}" if vs else f"vm-{n}"; vm = f"{vs['name']}_{n:08x}" if vs else name; rid = f"{r}/{COM}/virtualMachines/{vm}"; nic = f"{r}/{NET}/networkInterfaces/{vm}-nic"
            if vs: vs["sku"]["capacity"] += 1
            d = s.put_networkinterfaces(nic, {"location": LOCATION, "properties": {"ipConfigurations": [{"name": "ipconfig1" if i == 0 else "ipconfig1-v6", "properties": {"subnet": {"id": sn["id"]}, "primary": i == 0, "privateIPAllocationMethod": "Static", "privateIPAddress": a, "privateIPAddressVersion": "IPv6" if ":" in a else "IPv4",
                **({"loadBalancerBackendAddressPools": c} if (c := (vs or {}) and vs["properties"]["virtualMachineProfile"]["networkProfile"]["networkInterfaceConfigurations"][0]["properties"]["ipConfigurations"][i]["properties"].get("loadBalancerBackendAddressPools")) else {})}} for i, a in enumerate(ips)]}}, None)[0]
            d["properties"].update({"virtualMachine": {"id": rid}, "primary": True}); s.docs[nic.lower()] = d; s.touch(d); avail = f"{r}/{COM}/availabilitySets/{set}" if kind == "standalone" and set else None
            if avail and not s.get(avail): s.put(avail, {"location": LOCATION, "sku": {"name": "Aligned"}, "properties": {"platformFaultDomainCount": 2, "platformUpdateDomainCount": 5}})
            s.put(rid, {"location": LOCATION, **({"zones": [zone]} if zone else {}), "properties": {"provisioningState": "Succeeded", "vmId": guid(), "hardwareProfile": {"vmSize": "Standard_D2s_v3"}, "osProfile": {"computerName": name}, "networkProfile": {"networkInterfaces": [{"id": nic, "properties": {"primary": True}}]}, **({"virtualMachineScaleSet": {"id": vs["id"]}} if vs else {}), **({"availabilitySet": {"id": avail}} if avail else {})}})
        s.hidden[rid.lower()] = {"view": view, **({"ips": ips} if kind == "uniform" else {})}
        return {"name": name, "id": rid, "ips": ips, "zone": f"{LOCATION}-{zone}" if zone else None, "kind": kind}
    def power(s, rid, code):
        with s.lock: s.hidden[rid.lower()]["view"]["statuses"][1]["code"] = f"PowerState/{code}"
    def remove(s, rid):
        with s.lock: s.docs.pop(rid.lower(), None); s.hidden.pop(rid.lower(), None)


def dump(arm, nodes):
    """The objects of the cloud without what ARM derives, and names for what is random."""
    with arm.lock:
        docs = {k: arm.render(d) for k, d in arm.docs.items()}; names = {}; out = {"load_balancers": [], "public_ips": [], "security_rules": [], "private_link_services": [], "scale_set_models": {}, "routes": []}
        for i, n in enumerate(nodes):
            names[n["id"]] = f"<vm:node-{i+1}>"; names[n["name"]] = f"<node-{i+1}>"
            for j, a in enumerate(n["ips"]): names[a] = f"<ip{'6' if ':' in a else ''}:node-{i+1}>"
        for d in docs.values():
            if d["type"] == f"{NET}/publicIPAddresses" and d["properties"].get("ipAddress"): names[d["properties"]["ipAddress"]] = f"<ip:{d['name']}>"
            if d["type"] == f"{NET}/loadBalancers":
                for f in d["properties"]["frontendIPConfigurations"]:
                    if f["properties"].get("privateIPAddress"): names[f["properties"]["privateIPAddress"]] = f"<ip:{d['name']}:{f['name']}>"
        member = {}
        for n in nodes: member[n["id"].lower()] = n["name"]
        for d in docs.values():
            if d["type"] == f"{NET}/networkInterfaces" and ref(d["properties"].get("virtualMachine")): member[d["id"].lower()] = member.get(ref(d["properties"]["virtualMachine"]).lower(), "?")
        def who(i):
            i = i.lower(); return next((v for k, v in member.items() if i.startswith(k + "/")), i) + " " + i.rsplit("/", 1)[1]
        for d in docs.values():
            p, t = d["properties"], d["type"].split("/", 1)[1]; tags = sorted(f"{k}={v}" for k, v in (d.get("tags") or {}).items())
            if t == "loadBalancers":
                rid = lambda o: (ref(o) or "").split("/loadBalancers/")[-1].split("/")[-1] or None
                out["load_balancers"].append({"name": d["name"], "group": parts(d["id"])[0], "sku": d["sku"]["name"], "tags": tags, "state": p["provisioningState"],
                    "frontends": [{"name": f["name"], "zones": f.get("zones", []), "public_ip": ref(f["properties"].get("publicIPAddress")), "subnet": (ref(f["properties"].get("subnet")) or "").rsplit("/", 1)[-1] or None, "address": f["properties"].get("privateIPAddress"), "allocation": f["properties"]["privateIPAllocationMethod"], "version": f["properties"].get("privateIPAddressVersion")} for f in p["frontendIPConfigurations"]],
                    "pools": [{"name": b["name"], "virtual_network": (ref(b["properties"].get("virtualNetwork")) or "").rsplit("/", 1)[-1] or None, "members": [who(ref(m)) for m in b["properties"].get("backendIPConfigurations", [])], "addresses": [f"{x['name']} {x['properties'].get('ipAddress')} {(ref(x['properties'].get('virtualNetwork')) or '').rsplit('/', 1)[-1]}".strip() for x in b["properties"]["loadBalancerBackendAddresses"]]} for b in p["backendAddressPools"]],
                    "rules": [{"name": r["name"], **{k: v for k, v in r["properties"].items() if k not in ("provisioningState", "backendAddressPools", "frontendIPConfiguration", "backendAddressPool", "probe")}, "frontend": rid(r["properties"]["frontendIPConfiguration"]), "pool": rid(r["properties"].get("backendAddressPool")), "probe": rid(r["properties"].get("probe"))} for r in p["loadBalancingRules"]],
                    "probes": [{"name": x["name"], **{k: v for k, v in x["properties"].items() if k not in ("provisioningState", "loadBalancingRules", "numberOfProbes", "noHealthyBackendsBehavior")}} for x in p["probes"]], "outbound_rules": [x["name"] for x in p["outboundRules"]]})
            if t == "publicIPAddresses": out["public_ips"].append({"name": d["name"], "group": parts(d["id"])[0], "sku": d["sku"]["name"], "zones": d.get("zones", []), "tags": tags, "used_by": (ref(p.get("ipConfiguration")) or "").split("/loadBalancers/")[-1] or None, **{k: p.get(k) for k in ("publicIPAddressVersion", "publicIPAllocationMethod", "ipTags", "dnsSettings", "idleTimeoutInMinutes", "publicIPPrefix") if p.get(k)}})
            if t == "networkSecurityGroups":
                out["security_group_tags"] = tags
                for r in p["securityRules"]:
                    q = r["properties"]; both = lambda k: sorted((q.get(k + "es") or q.get(k + "s") or []) + ([q[k]] if q.get(k) else []))
                    out["security_rules"].append({"name": r["name"], "access": q["access"], "flow": q["direction"], "protocol": q["protocol"], "priority": q["priority"], "sources": both("sourceAddressPrefix"), "source_ports": both("sourcePortRange"), "destinations": both("destinationAddressPrefix"), "ports": both("destinationPortRange")})
            if t == "privateLinkServices": out["private_link_services"].append({"name": d["name"], "tags": tags, "frontends": [ref(f).split("/loadBalancers/")[-1] for f in p["loadBalancerFrontendIpConfigurations"]], "ips": [{"name": c["name"], **{k: v for k, v in c["properties"].items() if k not in ("provisioningState",)}} for c in p["ipConfigurations"]], **{k: p.get(k) for k in ("enableProxyProtocol", "fqdns", "visibility", "autoApproval")}})
            if t == "virtualMachineScaleSets": out["scale_set_models"][d["name"]] = sorted(ref(b).split("/loadBalancers/")[-1] for n in p["virtualMachineProfile"]["networkProfile"]["networkInterfaceConfigurations"] for c in n["properties"]["ipConfigurations"] for b in c["properties"].get("loadBalancerBackendAddressPools") or [])
            if t == "routeTables": out["routes"] += [{"name": x["name"], "tags": tags, **{k: x["properties"].get(k) for k in ("addressPrefix", "nextHopType", "nextHopIpAddress")}} for x in p["routes"]]
        return out, names


def serve(arm, port, host="127.0.0.1"):
    class H(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"; disable_nagle_algorithm = True; wbufsize = 65536
        def log_message(s, *a): pass
        def go(s):
            n = int(s.headers.get("Content-Length") or 0); raw = s.rfile.read(n) if n else b""; u = urllib.parse.urlsplit(s.path); q = dict(urllib.parse.parse_qsl(u.query, keep_blank_values=True)); p = urllib.parse.unquote(u.path).rstrip("/")
            st, h, out = s.other(p, q, raw) or arm.request(s.command, p, q, {k.lower(): v for k, v in s.headers.items()}, raw)
            s.send_response(st)
            for k, v in h.items(): s.send_header(k, v)
            if out is not None and "Content-Type" not in h: s.send_header("Content-Type", "application/json; charset=utf-8")
            if st != 204: s.send_header("Content-Length", str(len(out or b"")))
            s.end_headers()
            if out and st != 204: s.wfile.write(out)
            s.wfile.flush()
        def other(s, p, q, raw):
            j = lambda o, st=200: (st, {}, json.dumps(o).encode())
            def token():
                with arm.lock: arm.tokens += 1; arm.calls["token"] += 1; n = arm.tokens
                life = arm.token_life; return j({"token_type": "Bearer", "access_token": f"token-{n}", "expires_in": str(life), "expires_on": str(int(time.time()) + life), "resource": "x", "ext_expires_in": life, **({} if arm.refresh_in is None else {"refresh_in": arm.refresh_in})})
            if p == "/metadata/endpoints": return j([{"name": n, "resourceManager": arm.base, "authentication": {"audiences": [arm.base], "loginEndpoint": arm.base + "/", "tenant": "common", "identityProvider": "AAD"}, "suffixes": {}} for n in ("AzurePublicCloud", "AzureCloud", "AzureStackCloud")])
            if p in ("/msi/token", "/metadata/identity/oauth2/token"): return token()
            if p.endswith(("/oauth2/v2.0/token", "/oauth2/token")) and s.command == "POST":
                form = urllib.parse.parse_qs(raw.decode())
                arm.logins.append({k: v[0] for k, v in form.items()} | {"path": p})
                if arm.login_status: return j({"error": "temporarily_unavailable"}, arm.login_status)
                if form.get("client_secret") == ["wrong"]: return j({"error": "invalid_client", "error_description": "AADSTS7000215: the secret is not the one of the client.\r\nTrace ID: 1"}, 401)
                return token()
            if p.startswith("/_sim/"):
                with arm.lock:
                    b = json.loads(raw or b"{}")
                    if p == "/_sim/calls": return j(arm.take())
                    if p == "/_sim/dump": return j(dump(arm, b["nodes"]))
                    if p == "/_sim/docs": return j({k: arm.render(d) for k, d in arm.docs.items() if "type" not in q or d["type"] == f"{NET}/{q['type']}"})
                    if p == "/_sim/findings": return j({"findings": arm.findings, "counts": dict(arm.counter)})
                    if p == "/_sim/log": return j(arm.log)
                    if p == "/_sim/logins": return j(arm.logins)
                    if p == "/_sim/revoke": arm.revoked = arm.tokens; return j({})
                    if p == "/_sim/set": arm.scale_set(b["name"], b.get("mode", "Uniform")); return j({})
                    if p == "/_sim/reset": arm.reset(); return j({})
                    if p == "/_sim/seed": return j(arm.seed(b))
                    if p == "/_sim/put": return j(arm.put(b["id"], b["body"]))
                    if p == "/_sim/settings": [setattr(arm, k, v) for k, v in b.items() if k in ("lro", "latency", "page", "retry_after", "permissions", "token_life", "refresh_in", "login_status", "base")]; return j({})
                    if p == "/_sim/fault": arm.faults.append(b); return j({})
                    if p == "/_sim/faults": arm.faults.clear(); return j({})
                    if p == "/_sim/unlist": arm.unlisted.add(b["id"].lower()); return j({})
                    if p == "/_sim/node": return j(arm.node(**b))
                    if p == "/_sim/power": arm.power(b["id"], b["code"]); return j({})
                    if p == "/_sim/delete": arm.remove(b["id"]); return j({})
                    if p == "/_sim/patch": d = arm.get(b["id"]); d.update(merge(d, b["merge"])); arm.touch(d); return j(d)
                return j({"error": {"code": "NotFound"}}, 404)
        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_HEAD = go
    class S(ThreadingHTTPServer): daemon_threads = True; request_queue_size = 512
    srv = S((host, port), H); arm.base = arm.base or f"http://{host}:{srv.server_address[1]}"; threading.Thread(target=srv.serve_forever, daemon=True).start(); return srv


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--port", type=int, default=0); ap.add_argument("--ready"); ap.add_argument("--description", default=described()); ap.add_argument("--ipv6", action="store_true"); ap.add_argument("--stack", action="store_true")
    for f in ("uniform", "flex", "standalone", "page"): ap.add_argument("--" + f, type=int, default=0)
    for f in ("lro", "latency"): ap.add_argument("--" + f, type=float, default=0.0)
    ap.add_argument("--retry-after", type=int); a = ap.parse_args()
    arm = Arm(a.description, a.lro, a.latency, a.page, a.retry_after, stack=a.stack); nodes = arm.cluster(a.uniform, a.flex, a.standalone, a.ipv6); serve(arm, a.port)
    ready = json.dumps({"endpoint": arm.base, "subscription": SUB, "tenant": TENANT, "group": GROUP, "location": LOCATION, "nodes": nodes})
    print(ready, flush=True)
    if a.ready:
        with open(a.ready + ".new", "w") as f: f.write(ready)
        os.rename(a.ready + ".new", a.ready)
    threading.Event().wait()
