"""Compute Engine v1 as far as a cloud controller uses it, and its metadata server: in memory, on plain HTTP on loopback. Needs only Python.

Types are Google's: every request (method, path, query, body) and every answer is checked against the extract of the discovery document (`api/v1.json`).
Behavior is in `kinds.py` and `compute.py`. `--help` lists the options.

    /compute/v1/..                           the API; paths of the beta and alpha versions are served as v1
    /v1/projects/P:testIamPermissions        the method of Resource Manager
    /computeMetadata/v1/..                   the metadata server
    /admin/objects?kinds=a,b                 the resources, by path
    /admin/calls                             the calls by method since the last request
    /admin/permissions                       the permissions that requests needed since the last request
    /admin/faults    POST [{method, status, reason, message, times, late}]     `late`: the error is in the operation
    /admin/limits    POST {"firewalls": 3, "reads": 100}     quotas of resources, and of calls per minute and region: reads, writes, operations, heavy
    /admin/iam       POST {"PROJECT": {"granted": [..], "denied": [..]}}     permissions, with `*`; without a project all are granted
    /admin/tokens    POST {"issued": "t", "seconds": 3599, "accepted": ["t"]}     the token of the metadata server and its life, and those that the API accepts; without `accepted` any
    /admin/options   POST {"operation": 1.0, "instance_bytes": 20000}     options that change while the server runs
    /admin/instances POST {"names": [..], "zones": [..], "instance": {..}}     creates instances
    /admin/drop?path=..                      removes a resource without an operation"""

import argparse
import json
import os
import re
import sys
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# The server must not write into its folder.
sys.dont_write_bytecode = True

from compute import Cloud  # noqa: E402
from description import ApiError, Description, masked  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
QUOTA_REASONS = ("rateLimitExceeded", "quotaExceeded")


def regions(text):
    parts = [part.partition(":") for part in text.split(";")]
    return {region: zones.split(",") for region, _, zones in parts}


def rates(text):
    return {group: int(calls) for group, _, calls in (part.partition("=") for part in text.split(",") if part)}


def options():
    parser = argparse.ArgumentParser(description="Compute Engine in memory")
    add = parser.add_argument
    add("--port", type=int, default=0, help="0: a free port")
    add("--ready", help="the file to which the port is written when the server answers")
    add("--operation", type=float, default=0.05, help="the duration of an operation in seconds")
    add("--latency", type=float, default=0.0, help="the delay of each answer in seconds")
    add("--longest-wait", type=float, default=120.0, help="the longest time in seconds that the wait methods take; they then return an operation that has not finished")
    add("--late-errors", action="store_true", help="the error of a resource in use is in the operation, as at times with the service")
    add("--projects", type=lambda text: text.split(","), default=["parity"], help="the cluster's project, and host projects of shared networks")
    add("--regions", type=regions, default="us-central1:a,b,c,f;europe-west1:b,c,d", help="regions with their zones; the first is the cluster's")
    add("--subnet", default="10.128.0.0/20", help="the range of the subnetwork `default` in the first region")
    add("--instance-bytes", type=int, default=0, help="the size of an instance in an answer")
    add("--rate", type=rates, default="", help="calls per minute and region: reads=100,writes=20,operations=50,heavy=10")
    add("--minute", type=float, default=60.0, help="the length in seconds of a minute of the quotas")
    add("--token", default="parity-token", help="the token that the metadata server returns; the API accepts any")
    add("--base", default="https://www.googleapis.com/compute/v1/", help="the start of selfLink, which does not depend on the host of a request")
    add("--api", default=os.path.join(HERE, "api/v1.json"))
    return parser.parse_args()


OPTIONS = options()
CLOUD = Cloud(Description(OPTIONS.api), OPTIONS)


def metadata():
    project, region = OPTIONS.projects[0], next(iter(OPTIONS.regions))
    number, zone = CLOUD.projects[project], f"{region}-{OPTIONS.regions[region][0]}"
    account = "instance/service-accounts/default"
    return {
        "project/project-id": project,
        "project/numeric-project-id": number,
        "instance/zone": f"projects/{number}/zones/{zone}",
        "instance/network-interfaces/0/network": f"projects/{number}/networks/default",
        "universe/universe-domain": "googleapis.com",
        f"{account}/email": "parity@example.iam.gserviceaccount.com",
        f"{account}/scopes": "https://www.googleapis.com/auth/cloud-platform\n",
    }


def token():
    issued, seconds = TOKENS.get("issued", OPTIONS.token), TOKENS.get("seconds", 3599)
    return json.dumps({"access_token": issued, "expires_in": seconds, "token_type": "Bearer"})


METADATA = metadata()
TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
TOKENS = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body of an answer are one packet.
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *_):
        pass

    def serve(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        path = urllib.parse.unquote(url.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path.startswith("/admin/"):
            self.serve_admin(path[len("/admin/") :], query, json.loads(body or b"null"))
        elif path == "/" or path.startswith("/computeMetadata/"):
            self.serve_metadata(path)
        else:
            self.serve_api(path, query, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

    def answer(self, status, data, kind="application/json; charset=UTF-8", **headers):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def serve_metadata(self, path):
        """The path `/` answers the detection of the metadata server."""
        if path == TOKEN_PATH:
            value = token()
        else:
            value = "" if path == "/" else METADATA.get(path.removeprefix("/computeMetadata/v1/"))
        if path != "/" and self.headers.get("Metadata-Flavor") != "Google":
            status = 403
        else:
            status = 404 if value is None else 200
        kind = "application/json" if path == TOKEN_PATH else "application/text"
        self.answer(status, (value or "").encode(), kind, Metadata_Flavor="Google")

    def serve_api(self, path, query, body):
        time.sleep(OPTIONS.latency)
        try:
            if not self.headers.get("Authorization", "").startswith("Bearer "):
                raise ApiError(401, "required", "the request has no token")
            accepted = TOKENS.get("accepted")
            if accepted is not None and self.headers["Authorization"].removeprefix("Bearer ") not in accepted:
                raise ApiError(401, "authError", "Request had invalid authentication credentials.")
            try:
                body = json.loads(body) if body else None
            except ValueError:
                raise ApiError(400, "parseError", "the body is not JSON") from None
            self.answer(200, self.call(re.sub("^/compute/(beta|alpha)/", "/compute/v1/", path), query, body))
        except ApiError as error:
            domain = "usageLimits" if error.reason in QUOTA_REASONS else "global"
            details = [{"message": error.message, "domain": domain, "reason": error.reason}]
            self.answer(error.status, {"error": {"code": error.status, "message": error.message, "errors": details}})

    def call(self, path, query, body):
        permissions = re.fullmatch(r"/v[13]/projects/([^/:]+):testIamPermissions", path)
        with CLOUD.lock:
            CLOUD.settle()
            if permissions and self.command == "POST":
                return CLOUD.test_permissions(permissions[1], body or {})
            answer = CLOUD.call(self.command, path, query, body)
        if path.endswith("/wait"):
            self.wait_for(answer)
        with CLOUD.lock:
            CLOUD.settle()
            answer = {key: value for key, value in answer.items() if not key.startswith("_")}
            method, _ = CLOUD.description.find(self.command, path)
            try:
                CLOUD.description.check(method.answer, answer, "answer")
            except ApiError as error:
                raise ApiError(500, "emulatorFault", f"the answer does not match the description: {error.message}") from None
            answer = masked(answer, query["fields"]) if query.get("fields") else answer
            return json.dumps(answer).encode()

    def wait_for(self, operation):
        until = min(operation["_due"], time.time() + OPTIONS.longest_wait)
        while operation["status"] != "DONE" and time.time() < until:
            time.sleep(max(0.001, min(0.05, until - time.time())))

    def serve_admin(self, what, query, body):
        with CLOUD.lock:
            CLOUD.settle()
            answer = {}
            if what == "calls":
                answer = {call: count for call, count in CLOUD.calls.items() if count}
                CLOUD.calls.clear()
            elif what == "permissions":
                answer = sorted(CLOUD.used_permissions)
                CLOUD.used_permissions.clear()
            elif what == "objects":
                answer = CLOUD.dump(query["kinds"].split(",") if "kinds" in query else None)
            elif what == "faults":
                CLOUD.faults[:] = body or []
            elif what == "limits":
                CLOUD.limits = body or {}
            elif what == "options":
                OPTIONS.operation = body.get("operation", OPTIONS.operation)
                OPTIONS.instance_bytes = body.get("instance_bytes", OPTIONS.instance_bytes)
            elif what == "tokens":
                TOKENS.clear()
                TOKENS.update(body or {})
            elif what == "iam":
                CLOUD.iam = body or {}
            elif what == "instances":
                answer = CLOUD.create_instances(body["names"], body["zones"], body.get("instance", {}))
            elif what == "drop" and query["path"] in CLOUD.objects:
                answer = CLOUD.view(query["path"], CLOUD.objects[query["path"]])
                CLOUD.remove(query["path"])
            elif what != "drop":
                return self.answer(404, {})
        self.answer(200, answer)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


def main():
    server = Server(("127.0.0.1", OPTIONS.port), Handler)
    if OPTIONS.ready:
        with open(OPTIONS.ready + ".new", "w") as file:
            file.write(str(server.server_port))
        os.rename(OPTIONS.ready + ".new", OPTIONS.ready)
    server.serve_forever()


if __name__ == "__main__":
    main()
