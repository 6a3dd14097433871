"""Extracts the types of the methods below from a Google discovery document, as OpenAPI 3.0 without prose.

usage: extract.py compute.v1.json v1.json
Kept: methods, paths, path and query parameters, bodies, answers, types, formats, enums, patterns, bounds. 64-bit integers are strings, as in requests.
`readOnly`: the description calls the property output only. `x-required`: methods for which the document requires the property. `x-operation`: the answer is an Operation."""

import json
import re
import sys

d = json.load(open(sys.argv[1]))
CRUD = "get list insert delete"
KEEP = {
    "projects": "get",
    "zones": "get list",
    "regions": "get list",
    "networks": "get list",
    "subnetworks": "get list",
    "instances": CRUD + " aggregatedList updateNetworkInterface stop start setTags",
    "addresses": CRUD + " aggregatedList setLabels",
    "forwardingRules": CRUD + " aggregatedList patch setLabels setTarget",
    "targetPools": CRUD + " aggregatedList addInstance removeInstance addHealthCheck removeHealthCheck getHealth",
    "regionBackendServices": CRUD + " update patch getHealth",
    "healthChecks": CRUD + " update patch",
    "regionHealthChecks": CRUD + " update patch",
    "httpHealthChecks": CRUD + " update patch",
    "instanceGroups": CRUD + " aggregatedList addInstances removeInstances listInstances setNamedPorts",
    "firewalls": CRUD + " update patch",
    "routes": CRUD,
    "zoneOperations": "get list wait",
    "regionOperations": "get list wait",
    "globalOperations": "get list wait",
}
FACTS = ("type", "format", "enum", "pattern", "minimum", "maximum", "default")


def schema(s, prop=False):
    out = {k: s[k] for k in FACTS if k in s}
    for k in ("minimum", "maximum", "default"):
        if k in out and s.get("type") in ("integer", "number"):
            out[k] = json.loads(out[k])
        elif k in out and k != "default":
            del out[k]
    if s.get("type") == "boolean" and "default" in out:
        out["default"] = out["default"] == "true"
    if s.get("type") == "any":
        del out["type"]
    if "$ref" in s:
        out["$ref"] = "#/components/schemas/" + s["$ref"]
    if "items" in s:
        out["items"] = schema(s["items"])
    if "properties" in s:
        out["properties"] = {k: schema(v, True) for k, v in s["properties"].items()}
    if isinstance(s.get("additionalProperties"), dict):
        out["additionalProperties"] = schema(s["additionalProperties"])
    elif "properties" in s:
        out["additionalProperties"] = False
    if prop and (s.get("readOnly") or re.match(r"\s*(\[)?output[ -]only", s.get("description", ""), re.I)):
        out["readOnly"] = True
    if s.get("annotations", {}).get("required"):
        out["x-required"] = s["annotations"]["required"]
    return out


out = {
    "openapi": "3.0.3",
    "info": {"title": "extract", "version": "v1", "x-revision": d["revision"]},
    "x-common-query": sorted(d["parameters"]),
    "paths": {},
    "components": {"schemas": {}},
}
for res, names in KEEP.items():
    for n in names.split():
        m = d["resources"][res]["methods"][n]
        p = out["paths"].setdefault("/" + d["servicePath"] + m["flatPath"], {})
        op = {
            "operationId": m["id"],
            "parameters": [
                {
                    "name": k,
                    "in": v["location"],
                    "required": v.get("required", False),
                    "schema": {**({"type": "array", "items": schema(v)} if v.get("repeated") else schema(v))},
                }
                for k, v in m["parameters"].items()
            ],
        }
        if "request" in m:
            op["requestBody"] = {
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/" + m["request"]["$ref"]}}}
            }
        answer = m["response"]["$ref"]
        if answer == "Operation":
            op["x-operation"] = True
        op["responses"] = {
            "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/" + answer}}}},
            "default": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}},
        }
        p[m["httpMethod"].lower()] = op


def refs(x):
    if isinstance(x, dict):
        if isinstance(x.get("$ref"), str):
            yield x["$ref"].rsplit("/", 1)[1]
        for v in x.values():
            yield from refs(v)
    elif isinstance(x, list):
        for v in x:
            yield from refs(v)


text = {"type": "string"}
S = out["components"]["schemas"]
S["ErrorBody"] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer"},
                "message": text,
                "status": text,
                "details": {"type": "array", "items": {"type": "object"}},
                "errors": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "domain": text,
                            "reason": text,
                            "message": text,
                            "location": text,
                            "locationType": text,
                        },
                    },
                },
            },
        }
    },
}
todo = list(refs(out["paths"]))
while todo:
    r = todo.pop()
    if r in S:
        continue
    S[r] = schema(d["schemas"][r])
    todo += list(refs(S[r]))
json.dump(out, open(sys.argv[2], "w"), indent=1, sort_keys=True)
open(sys.argv[2], "a").write("\n")
print(len(out["paths"]), "paths,", sum(len(v) for v in out["paths"].values()), "methods,", len(S), "schemas")
