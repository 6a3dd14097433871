"""Google's description of Compute Engine (`api/v1.json`): its methods, and checks of requests and answers. Also the parameters `filter` and `fields` of its methods."""

import json
import re


class ApiError(Exception):
    """An error answer. `late` is the code of the operation error, if the service reports the error in an operation."""

    def __init__(self, status, reason, message, late=None):
        self.status, self.reason, self.message, self.late = status, reason, message, late


def invalid(field, value, why):
    return ApiError(400, "invalid", f"resource.{field} is {value!r}: {why}")


class Method:
    def __init__(self, verb, template, operation):
        self.verb, self.operation = verb, operation
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(template))
        self.pattern = re.compile(pattern + "$")
        _, self.resource, self.name = operation["operationId"].split(".")
        self.query = {p["name"]: p["schema"] for p in operation["parameters"] if p["in"] == "query"}
        self.answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
        self.is_write = "x-operation" in operation and not self.resource.endswith("Operations")

    @property
    def body(self):
        return self.operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")


class Description:
    def __init__(self, file):
        with open(file) as text:
            document = json.load(text)
        self.schemas = document["components"]["schemas"]
        self.common_query = set(document["x-common-query"])
        self.methods = [
            Method(verb.upper(), template, operation)
            for template, operations in document["paths"].items()
            for verb, operation in operations.items()
        ]

    def find(self, verb, path):
        """The method of a request and the parameters in its path."""
        for method in self.methods:
            found = method.pattern.match(path) if method.verb == verb else None
            if found:
                return method, found.groupdict()
        raise ApiError(404, "notFound", f"no method for {verb} {path}")

    def check_query(self, method, query):
        for key, value in query.items():
            schema = method.query.get(key)
            if schema is None:
                # Google's SDKs add parameters that begin with `$`.
                if key not in self.common_query and not key.startswith("$"):
                    raise ApiError(400, "badRequest", f"unknown query parameter {key!r}")
            elif schema.get("type") not in ("integer", "boolean", "array"):
                self.check(schema, value, key)

    def check(self, schema, value, at):
        """Raises the service's refusal of a value that does not match its schema."""
        if value is None:
            return
        if "$ref" in schema:
            return self.check(self.schemas[schema["$ref"].rsplit("/", 1)[1]], value, at)
        kind = schema.get("type")
        if kind == "object" or "properties" in schema:
            self.check_object(schema, value, at)
        elif kind == "array":
            if not isinstance(value, list):
                raise ApiError(400, "badRequest", f"{at} is not a list")
            for index, item in enumerate(value):
                self.check(schema["items"], item, f"{at}[{index}]")
        elif not has_type(schema, value):
            raise ApiError(400, "badRequest", f"{at} is not of type {kind}: {json.dumps(value)}")
        elif "enum" in schema and value not in schema["enum"]:
            raise ApiError(400, "invalid", f"{at} is {value!r}, which is none of its values")

    def check_object(self, schema, value, at):
        if not isinstance(value, dict):
            raise ApiError(400, "badRequest", f"{at} is not an object")
        properties, additional = schema.get("properties", {}), schema.get("additionalProperties")
        for key, item in value.items():
            if key in properties:
                self.check(properties[key], item, f"{at}.{key}")
            elif isinstance(additional, dict):
                self.check(additional, item, f"{at}.{key}")
            elif additional is False:
                raise ApiError(400, "badRequest", f"{at} has no field {key!r}")


def has_type(schema, value):
    kind = schema.get("type")
    if kind == "string":
        # 64-bit numbers are strings, and the service also accepts numbers.
        return isinstance(value, str) or "int64" in schema.get("format", "") and isinstance(value, int)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("integer", "number"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return True


TERM = re.compile(r"\(?\s*([\w.]+)\s*(eq|ne|!=|=)\s*(\"[^\"]*\"|[^()\s]+)\s*\)?(?:\s+AND)?")


def matcher(text):
    """The test of the `filter` parameter: (a eq regex) (b ne regex), or a = "x" AND b != "x". A regular expression matches the whole field."""
    terms = [(field.split("."), operator, value.strip('"')) for field, operator, value in TERM.findall(text or "")]
    if text and not terms:
        raise ApiError(400, "invalid", f"the filter {text!r} cannot be read")

    def matches(resource):
        for fields, operator, wanted in terms:
            value = resource
            for field in fields:
                value = value.get(field) if isinstance(value, dict) else None
            value = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            equal = bool(re.fullmatch(wanted, value)) if operator in ("eq", "ne") else value == wanted
            if equal != (operator in ("eq", "=")):
                return False
        return True

    return matches


def masked(answer, mask):
    """The answer with only the fields of `fields=a,b(c,d),e/*/f`."""
    position = 0

    def names():
        nonlocal position
        path = []
        while True:
            end = position
            while end < len(mask) and mask[end] not in ",/()":
                end += 1
            path.append(mask[position:end].strip())
            position = end
            if position < len(mask) and mask[position] == "/":
                position += 1
            else:
                return path

    def selection():
        nonlocal position
        tree = {}
        while position < len(mask):
            *parents, last = names()
            below = None
            if position < len(mask) and mask[position] == "(":
                position += 1
                below = selection()
                position += 1
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = below
            if position < len(mask) and mask[position] == ",":
                position += 1
            else:
                break
        return tree

    def cut(value, tree):
        if tree is None:
            return value
        if isinstance(value, list):
            return [cut(item, tree) for item in value]
        if isinstance(value, dict):
            return {key: cut(item, tree[key] if key in tree else tree["*"]) for key, item in value.items() if key in tree or "*" in tree}
        return value

    return cut(answer, selection())
