"""moto's server, behaving as AWS where moto 5.2.5 differs in ways that change what a cloud controller does. Arguments are those of moto_server.

Corrections: network load balancers have their own ARNs and DNS names; listeners may become TLS, UDP or TCP_UDP, and change their ALPN policy; a target group keeps the codes of its health check, and is attached to exactly the load balancers whose listeners name it;
DescribeTargetGroups of a load balancer without any is empty; access_logs.s3.enabled has its default; a classic load balancer has a health check from the start, and its additional attributes do not repeat.
DescribeInstanceTopology returns no network; a second network load balancer of a name and a second listener on a port are refused, also with equal settings, for which AWS returns the first one; tags of deleted instances are refused; rules of a security group change all or none; classic listeners keep the protocol to instances;
tokens of the metadata service contain their lifetime. Requests run one after the other: moto answers with 500 when two change a dictionary at once.
Requests that AWS would refuse are refused with a header that makes the test fail (checker.py).
With `--ready FILE` as the only argument it has ports from the operating system, and also serves JSON: POST /ACCOUNT/METHOD with keyword arguments calls a method of that account (account.py).
"""
import functools, json, os, re, sys, threading, traceback
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape
import checker
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
# Each account would get 1,301 images.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
import moto.backends
import moto.elb.models as elb
import moto.elbv2.models as v2
from moto.core.responses import BaseResponse
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.responses import EC2Response
from moto.elbv2.responses import ELBV2Response
from moto.instance_metadata.responses import InstanceMetadataResponse
from moto.server import ThreadedMotoServer, main

B = v2.ELBv2Backend
# The requests of the Go program are recorded as they are.
checked = sys.argv[1] == "--ready"
# Each certificate would get a key of RSA, created and checked, and each request would list moto's modules.
rsa.generate_private_key = functools.cache(rsa.generate_private_key)
serialization.load_pem_private_key = functools.cache(serialization.load_pem_private_key)
modules = list(moto.backends.list_of_moto_modules())
moto.backends.list_of_moto_modules = lambda: modules


def patch(cls, name):
    """Decorator: `f(old, self, ..)` replaces the method."""
    def to(f):
        old = getattr(cls, name)
        setattr(cls, name, functools.wraps(old)(lambda self, *a, **k: f(old, self, *a, **k)))
    return to


one_at_a_time = threading.RLock()


class Known(checker.State):
    """The objects of an account."""
    def __init__(self, account, region): self.backend = moto.backends.get_backend("elbv2")[account][region]
    def listener(self, arn): return next((lb.listeners[arn].protocol for lb in self.backend.load_balancers.values() if arn in lb.listeners), None)
    def target_group(self, arn):
        t = self.backend.target_groups.get(arn)
        if t is None: return None
        # moto has the timeout 10 where AWS has 6 by default, so it is at most the interval.
        interval = int(t.health_check_interval_seconds); timeout = min(int(t.health_check_timeout_seconds), interval)
        return {"protocol": t.health_check_protocol, "interval": interval, "timeout": timeout, "group_protocol": t.protocol}


def refusal(request):
    """The answer to a request that AWS would refuse, with a header that makes the test fail; None if AWS would not. Requests of tests and of the recorder are not checked."""
    # The body is read only once.
    form = list(request.form.items(multi=True)) or parse_qsl(request.get_data(as_text=True), keep_blank_values=True); agent = request.headers.get("User-Agent", "")
    if not checked or not any(key == "Action" for key, _ in form) or "Boto3" in agent: return None
    region = next(iter(re.findall(r"Credential=[^/]+/\d+/([^/]+)/", request.headers.get("Authorization", ""))), "us-east-1")
    found = checker.problems(form, Known(request.headers.get("x-moto-account-id", "123456789012"), region))
    if not found: return None
    text = escape("; ".join(found)); error = f"<Error><Type>Sender</Type><Code>ValidationError</Code><Message>{text}</Message></Error>"
    body = f"<Response><Errors>{error}</Errors><RequestID>x</RequestID></Response>" if dict(form).get("Version") == "2016-11-15" else f"<ErrorResponse>{error}<RequestId>x</RequestId></ErrorResponse>"
    return 400, {"content-type": "text/xml", "x-refused-by-the-checker": text.encode("ascii", "replace").decode()}, body


@patch(BaseResponse, "_dispatch")
def _(old, self, request, *a, **k):
    with one_at_a_time: return refusal(request) or old(self, request, *a, **k)


def attach(backend):
    for t in backend.target_groups.values(): t.load_balancer_arns = []
    for arn, lb in backend.load_balancers.items():
        for l in lb.listeners.values():
            actions = list(l.default_actions) + [a for r in l.rules.values() for a in r.actions]
            for a in actions:
                if getattr(a, "type", None) != "forward": continue
                for t in backend._get_target_group_arns_from(action_data=a.data):
                    if t in backend.target_groups and arn not in backend.target_groups[t].load_balancer_arns: backend.target_groups[t].load_balancer_arns.append(arn)


@patch(B, "create_load_balancer")
def _(old, self, name, *a, **k):
    if any(lb.name == name for lb in self.load_balancers.values()): raise v2.DuplicateLoadBalancerName()
    lb = old(self, name, *a, **k)
    lb.attrs.setdefault("access_logs.s3.enabled", "false")
    if lb.type == "network":
        tags = self.tagging_service.list_tags_for_resource(lb.arn)["Tags"]; del self.load_balancers[lb.arn]
        key = lb.arn.rsplit("/", 1)[1]; lb.arn = lb.arn.replace(":loadbalancer/app/", ":loadbalancer/net/"); lb.dns_name = f"{lb.name}-{key}.elb.{self.region_name}.amazonaws.com"
        self.load_balancers[lb.arn] = lb; self.tagging_service.tag_resource(lb.arn, tags)
    return lb


@patch(B, "modify_listener")
def _(old, self, arn, port=None, protocol=None, ssl_policy=None, certificates=None, actions=None):
    other = protocol in ("TLS", "UDP", "TCP_UDP")
    l = old(self, arn, port, None if other else protocol, ssl_policy, certificates, actions)
    if other: l.protocol = protocol
    if certificates and l.protocol == "TLS":
        l.certificate = certificates[0]["CertificateArn"]; l.certificates = [c["CertificateArn"] for c in certificates]
    attach(self); return l


@patch(B, "modify_target_group")
def _(old, self, arn, *a, **k):
    t = old(self, arn, *a, **k); codes = k.get("http_codes") or (a[7] if len(a) > 7 else None)
    if codes: t.matcher["HttpCode"] = codes
    return t


@patch(ELBV2Response, "modify_listener")
def _(old, self):
    arn, alpn = self._get_param("ListenerArn"), self._get_param("AlpnPolicy", [])
    for lb in self.elbv2_backend.load_balancers.values():
        if alpn and arn in lb.listeners: lb.listeners[arn].alpn_policy = alpn
    return old(self)


for name in ("create_listener", "delete_listener", "create_rule", "modify_rule", "delete_rule"):
    @patch(B, name)
    def _(old, self, *a, **k):
        out = old(self, *a, **k); attach(self); return out


@patch(B, "delete_load_balancer")
def _(old, self, arn):
    old(self, arn); attach(self)


@patch(B, "describe_target_groups")
def _(old, self, load_balancer_arn, target_group_arns, names):
    try: return old(self, load_balancer_arn, target_group_arns, names)
    except v2.TargetGroupNotFoundError:
        if load_balancer_arn and load_balancer_arn in self.load_balancers: return []
        raise


C = elb.ELBBackend


@patch(C, "create_load_balancer")
def _(old, self, *a, **k):
    lb = old(self, *a, **k)
    if not lb.health_check and lb.listeners: lb.health_check = elb.FakeHealthCheck("5", "10", "2", "30", f"TCP:{lb.listeners[0].instance_port}")
    return lb


elb.FakeListener.instance_protocol = property(lambda l: l.__dict__.get("to_instances", l.protocol))
for name in ("create_load_balancer", "create_load_balancer_listeners"):
    @patch(C, name)
    def _(old, self, name, *a, ports, **k):
        lb = old(self, name, *a, ports=ports, **k)
        for p in ports:
            for l in self.load_balancers[name].listeners:
                if str(l.load_balancer_port) == str(p["LoadBalancerPort"]) and p.get("InstanceProtocol"): l.to_instances = p["InstanceProtocol"].upper()
        return lb


@patch(C, "modify_load_balancer_attributes")
def _(old, self, load_balancer_name, *a, **k):
    old(self, load_balancer_name, *a, **k); x = self.get_load_balancer(load_balancer_name).attributes
    x["additional_attributes"] = list(dict.fromkeys(x["additional_attributes"]))


for name in ("authorize_security_group_ingress", "revoke_security_group_ingress"):
    @patch(EC2Response, name)
    def _(old, self, *a, **k):
        group = self.ec2_backend.get_security_group_by_name_or_id(self._get_param("GroupId")); before = list(group.ingress_rules) if group else []
        try: return old(self, *a, **k)
        except Exception:
            if group: group.ingress_rules[:] = before
            raise


EC2Response.describe_instance_topology = lambda self: '<?xml version="1.0" encoding="UTF-8"?><DescribeInstanceTopologyResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>x</requestId><instanceSet/></DescribeInstanceTopologyResponse>'


@patch(B, "create_listener")
def _(old, self, load_balancer_arn, protocol, port, *a, **k):
    lb = self.load_balancers.get(load_balancer_arn)
    if lb and any(str(l.port) == str(port) for l in lb.listeners.values()): raise v2.DuplicateListenerError()
    return old(self, load_balancer_arn, protocol, port, *a, **k)


for name in ("create_tags", "delete_tags"):
    @patch(EC2Response, name)
    def _(old, self):
        ids = self._get_param("Resources", []); there = {i.id for i in self.ec2_backend.all_instances()}
        missing = [i for i in ids if i.startswith("i-") and i not in there]
        if missing: raise InvalidInstanceIdError(missing)
        return old(self)


@patch(InstanceMetadataResponse, "metadata_response")
def _(old, request, url, headers):
    status, more, body = old(request, url, headers)
    return status, {**more, "x-aws-ec2-metadata-token-ttl-seconds": "21600"} if url.endswith("/api/token") else more, body


def serve(ready):
    """Serves moto and the control requests on ports from the operating system, and writes both ports as JSON to the file `ready`."""
    from account import Account
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False); moto.start(); port = moto.get_host_and_port()[1]
    accounts, lock = {}, threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        def log_message(self, *a): pass
        def do_POST(self):
            number, method = self.path.strip("/").split("/"); arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                with lock:
                    if method == "seed": accounts[number] = Account(f"http://127.0.0.1:{port}", arguments.pop("cluster"), number)
                if method == "check": found = [p for form in arguments["forms"] for p in checker.problems(parse_qsl(form, keep_blank_values=True))]
                else: found = getattr(accounts[number], method)(**arguments)
                status, answer = 200, json.dumps(found, default=str)
            except Exception: status, answer = 400, traceback.format_exc(limit=-2)
            answer = answer.encode(); self.send_response(status); self.send_header("Content-Length", str(len(answer))); self.end_headers(); self.wfile.write(answer)

    control = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with open(ready + ".new", "w") as file: json.dump([port, control.server_port], file)
    os.rename(ready + ".new", ready); control.serve_forever()


if sys.argv[1] == "--ready": serve(sys.argv[2])
sys.exit(main())
