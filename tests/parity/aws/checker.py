"""Checks requests to EC2, Elastic Load Balancing (classic and v2) and STS as AWS does, where moto accepts too much.

`problems(service, form, state)` decodes the form of a request by the models of botocore and reports what AWS would refuse: unknown and missing parameters, types, lengths, ranges, patterns,
enums and sizes of lists. RULES has what only the documentation says, each with its source. LOOSER has limits of the models that are stricter than AWS. A request with a problem is refused.
"""
import functools, ipaddress, re
import botocore.session

DOCS, API = "https://docs.aws.amazon.com", "https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/"
CLASSIC, EC2 = DOCS + "/elasticloadbalancing/2012-06-01/APIReference/", DOCS + "/AWSEC2/latest/APIReference/"
VERSIONS = {"2016-11-15": "ec2", "2012-06-01": "elb", "2015-12-01": "elbv2", "2011-06-15": "sts"}
# Limits of the models that are stricter than AWS: service, shape, limit, and the value of AWS.
LOOSER = {
    ("elb", "IdleTimeout", "max"): 4000,  # DOCS/elasticloadbalancing/latest/classic/config-idle-timeout.html
}


@functools.cache
def model(service): return botocore.session.get_session().get_service_model(service)


@functools.cache
def pattern(text):
    # Python has no classes of Unicode. Letters, digits and spaces are what these mean.
    return re.compile(text.replace(r"\p{L}", r"\w").replace(r"\p{Z}", r"\s").replace(r"\p{N}", r"\d"))


def tree(form):
    """The pairs of a form as nested dictionaries. The value itself is at the key ""."""
    root = {}
    for key, value in form:
        at = root
        for part in key.split("."): at = at.setdefault(part, {})
        at[""] = value
    return root


class Check:
    def __init__(self, service):
        self.service, self.is_ec2, self.problems = service, service == "ec2", []

    def report(self, path, text): self.problems.append(f"{path or 'the request'}: {text}")

    def name(self, shape, default):
        known = shape.serialization
        if self.is_ec2 and "queryName" in known: return known["queryName"]
        if "name" in known: return known["name"][:1].upper() + known["name"][1:] if self.is_ec2 else known["name"]
        return default

    def limit(self, shape, key):
        return LOOSER.get((self.service, shape.name, key), shape.metadata.get(key))

    def sized(self, shape, path, what, size):
        low, high = self.limit(shape, "min"), self.limit(shape, "max")
        if low is not None and size < low: self.report(path, f"{what} {size} is less than {low}")
        if high is not None and size > high: self.report(path, f"{what} {size} is more than {high}")

    def value(self, shape, node, path):
        """The value of a node of the form."""
        return getattr(self, "type_" + shape.type_name, self.scalar)(shape, node, path)

    def type_structure(self, shape, node, path):
        out, known = {}, {}
        for name, member in shape.members.items(): known[self.name(member, name)] = (name, member)
        for key, child in node.items():
            if key == "": self.report(path, "a structure has a value"); continue
            if key not in known: self.report(path, f"{key} is not a parameter"); continue
            name, member = known[key]; out[name] = self.value(member, child, f"{path}.{name}".lstrip("."))
        for name in shape.required_members:
            if name not in out: self.report(path, f"{name} is missing")
        return out

    def type_list(self, shape, node, path):
        # An empty list is an empty value.
        if node.get("") == "" and len(node) == 1: self.sized(shape, path, "the size", 0); return []
        if not self.is_ec2 and not shape.serialization.get("flattened"):
            member = shape.member.serialization.get("name", "member")
            if set(node) != {member}: self.report(path, f"a list has {sorted(node)}"); return []
            node = node[member]
        numbers = [key for key in node if key.isdigit()]
        if len(numbers) != len(node) or sorted(map(int, numbers)) != list(range(1, len(node) + 1)): self.report(path, f"a list has the indexes {sorted(node)}")
        self.sized(shape, path, "the size", len(numbers))
        return [self.value(shape.member, node[key], f"{path}[{key}]") for key in sorted(numbers, key=int)]

    def scalar(self, shape, node, path):
        if set(node) != {""}: self.report(path, f"a value has {sorted(set(node) - {''})}"); return None
        text, kind = node[""], shape.type_name
        if kind in ("integer", "long"):
            if not re.fullmatch(r"-?\d+", text): self.report(path, f"{text!r} is not a number"); return None
            self.sized(shape, path, "the number", int(text)); return int(text)
        if kind == "boolean":
            if text not in ("true", "false"): self.report(path, f"{text!r} is neither true nor false")
            return text == "true"
        if kind == "string":
            self.sized(shape, path, "the length", len(text))
            if getattr(shape, "enum", None) and text not in shape.enum: self.report(path, f"{text!r} is not one of {', '.join(shape.enum)}")
            if shape.metadata.get("pattern") and not pattern(shape.metadata["pattern"]).search(text): self.report(path, f"{text!r} does not match {shape.metadata['pattern']}")
        return text


RULES = []


def rule(service, operations, source):
    """Decorator: a rule that only the documentation has. It gets the parameters and the state, and yields problems."""
    def to(f): RULES.append((service, operations.split(), source, f)); return f
    return to


class State:
    """What the rules need to know about existing objects: the protocol of a listener, and a target group. This one knows none."""
    def listener(self, arn): return None
    def target_group(self, arn): return None


@rule("elbv2", "AddListenerCertificates RemoveListenerCertificates", API + "API_AddListenerCertificates.html: one certificate per call")
@rule("elbv2", "CreateListener ModifyListener", API + "API_CreateListener.html: exactly one certificate")
def _(p, state):
    if len(p.get("Certificates") or []) > 1: yield "more than one certificate"


@rule("elbv2", "CreateListener", API + "API_CreateListener.html: a TLS listener needs a certificate, other listeners have none")
def _(p, state):
    if (p.get("Protocol") in ("TLS", "HTTPS")) != bool(p.get("Certificates")): yield f"protocol {p.get('Protocol')} with certificates {p.get('Certificates')}"
    if p.get("Protocol") not in ("TLS", "HTTPS") and (p.get("SslPolicy") or p.get("AlpnPolicy")): yield "a policy of TLS on another protocol"


@rule("elbv2", "ModifyListener", API + "API_ModifyListener.html: TCP to TLS needs the security policy and the default certificate")
def _(p, state):
    had = state.listener(p.get("ListenerArn"))
    if p.get("Protocol") == "TLS" and had in ("TCP", "UDP", "TCP_UDP") and not (p.get("SslPolicy") and p.get("Certificates")): yield f"a listener becomes TLS from {had} without a security policy or a certificate"
    now = p.get("Protocol") or had
    if now in ("TCP", "UDP", "TCP_UDP") and (p.get("SslPolicy") or p.get("Certificates") or p.get("AlpnPolicy")): yield f"a policy or certificate of TLS on {now}"


@rule("elbv2", "CreateTargetGroup ModifyTargetGroup", "Health check interval must be greater than the timeout: cloudposse/terraform-aws-nlb#54, aws-load-balancer-controller#2898. Equal values are accepted, as a TCP check with the interval 10 has the timeout 10 by default")
def _(p, state):
    have = state.target_group(p.get("TargetGroupArn")) or {}
    protocol = p.get("HealthCheckProtocol") or have.get("protocol") or "TCP"
    interval = p.get("HealthCheckIntervalSeconds") or have.get("interval") or 30
    timeout = p.get("HealthCheckTimeoutSeconds") or have.get("timeout") or (6 if protocol == "HTTP" else 10)
    if timeout > interval: yield f"the timeout {timeout} is more than the interval {interval}"
    if protocol not in ("HTTP", "HTTPS") and (p.get("HealthCheckPath") or p.get("Matcher")): yield f"path or codes of a {protocol} health check"


@rule("elbv2", "ModifyTargetGroupAttributes", DOCS + "/elasticloadbalancing/latest/network/edit-target-group-attributes.html: client IP preservation cannot be disabled for UDP and TCP_UDP")
def _(p, state):
    have = (state.target_group(p.get("TargetGroupArn")) or {}).get("group_protocol")
    off = [a for a in p.get("Attributes", []) if a.get("Key") == "preserve_client_ip.enabled" and a.get("Value") != "true"]
    if off and have in ("UDP", "TCP_UDP"): yield f"client IP preservation is disabled for {have}"


@rule("elbv2", "ModifyLoadBalancerAttributes", API + "API_LoadBalancerAttribute.html: access logs need a bucket")
def _(p, state):
    have = {a.get("Key"): a.get("Value") for a in p.get("Attributes", [])}
    if have.get("access_logs.s3.enabled") == "true" and have.get("access_logs.s3.bucket") == "": yield "access logs without a bucket"


@rule("elbv2", "CreateLoadBalancer", API + "API_CreateLoadBalancer.html: either subnets or subnet mappings")
def _(p, state):
    if bool(p.get("Subnets")) == bool(p.get("SubnetMappings")): yield "either Subnets or SubnetMappings"


@rule("elbv2", "CreateLoadBalancer CreateTargetGroup", API + "API_CreateLoadBalancer.html: at most 32 alphanumeric characters or hyphens, not at the ends; not internal-")
@rule("elb", "CreateLoadBalancer", CLASSIC + "API_CreateLoadBalancer.html: at most 32 alphanumeric characters or hyphens, not at the ends")
def _(p, state):
    name = p.get("Name") or p.get("LoadBalancerName") or ""
    if not re.fullmatch(r"(?!internal-)[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?", name): yield f"the name {name!r}"


@rule("elbv2", "DescribeTags AddTags RemoveTags", API + "API_DescribeTags.html: at most 20 resources")
def _(p, state):
    if len(p.get("ResourceArns", [])) > 20: yield "more than 20 resources"


@rule("elbv2", "AddTags CreateLoadBalancer CreateTargetGroup CreateListener", DOCS + "/elasticloadbalancing/latest/network/load-balancer-tags.html: at most 50 tags, keys once and without aws:")
@rule("elb", "AddTags CreateLoadBalancer", CLASSIC + "API_AddTags.html")
@rule("ec2", "CreateTags", EC2 + "API_CreateTags.html: at most 1,000 resources")
def _(p, state):
    keys = [t.get("Key", "") for t in p.get("Tags") or []]
    if len(keys) > 50 or len(set(keys)) != len(keys) or any(k.lower().startswith("aws:") for k in keys): yield f"the tags {keys}"
    if len(p.get("Resources", [])) > 1000: yield "more than 1,000 resources"


@rule("elb", "AddTags RemoveTags", CLASSIC + "API_AddTags.html: one load balancer only")
def _(p, state):
    if len(p.get("LoadBalancerNames", [])) != 1: yield "not one load balancer"


@rule("elb", "ConfigureHealthCheck", CLASSIC + "API_HealthCheck.html: the timeout is less than the interval")
def _(p, state):
    check = p.get("HealthCheck", {})
    if (check.get("Timeout") or 0) >= (check.get("Interval") or 0): yield f"the timeout {check.get('Timeout')} is not less than the interval {check.get('Interval')}"
    if not re.fullmatch(r"(TCP|SSL):\d+|HTTPS?:\d+/.*", check.get("Target", "")): yield f"the target {check.get('Target')!r}"


@rule("elb", "ModifyLoadBalancerAttributes", CLASSIC + "API_AccessLog.html: the interval is 5 or 60 minutes; a bucket is needed")
def _(p, state):
    log = p.get("LoadBalancerAttributes", {}).get("AccessLog", {})
    if log.get("EmitInterval") not in (None, 5, 60): yield f"the interval {log['EmitInterval']}"
    if log.get("Enabled") and not log.get("S3BucketName"): yield "access logs without a bucket"


@rule("elb", "CreateLoadBalancer CreateLoadBalancerListeners", CLASSIC + "API_Listener.html: HTTP with HTTP, TCP with TCP; a certificate for HTTPS and SSL alone")
def _(p, state):
    for l in p.get("Listeners", []):
        front, back = l.get("Protocol", "").upper(), (l.get("InstanceProtocol") or l.get("Protocol", "")).upper()
        if front not in ("HTTP", "HTTPS", "TCP", "SSL") or back not in ("HTTP", "HTTPS", "TCP", "SSL"): yield f"the protocols {front} and {back}"
        if front.startswith("HTTP") != back.startswith("HTTP"): yield f"{front} with {back}"
        if (front in ("HTTPS", "SSL")) != bool(l.get("SSLCertificateId")): yield f"{front} with the certificate {l.get('SSLCertificateId')}"


@rule("ec2", "CreateSecurityGroup CreateRoute RunInstances", EC2 + "API_TagSpecification.html: Tag specification must have at least one tag")
def _(p, state):
    for spec in p.get("TagSpecifications") or []:
        if not spec.get("Tags"): yield "a tag specification without tags"


@rule("ec2", "CreateSecurityGroup", EC2 + "API_CreateSecurityGroup.html: at most 255 characters of a set")
def _(p, state):
    for key in ("GroupName", "Description"):
        if not re.fullmatch(r"[A-Za-z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{1,255}", p.get(key, "")): yield f"{key} {p.get(key)!r}"
    if p.get("GroupName", "").startswith("sg-"): yield "a name that begins with sg-"


@rule("ec2", "AuthorizeSecurityGroupIngress RevokeSecurityGroupIngress UpdateSecurityGroupRuleDescriptionsIngress", EC2 + "API_IpPermission.html")
def _(p, state):
    for x in p.get("IpPermissions") or []:
        protocol, first, last = x.get("IpProtocol"), x.get("FromPort"), x.get("ToPort")
        if protocol not in ("tcp", "udp", "icmp", "icmpv6", "-1"): yield f"the protocol {protocol!r}"
        if protocol in ("tcp", "udp") and not (first is not None and last is not None and 0 <= first <= last <= 65535): yield f"{protocol} with the ports {first} to {last}"
        if protocol == "-1" and (first not in (None, -1) or last not in (None, -1)): yield "all protocols with ports"
        sources = [r.get("CidrIp") for r in x.get("IpRanges") or []] + [r.get("CidrIpv6") for r in x.get("Ipv6Ranges") or []]
        for cidr in sources:
            try: ipaddress.ip_network(cidr)
            except ValueError as e: yield str(e)
        if not (sources or x.get("UserIdGroupPairs") or x.get("PrefixListIds")): yield "a rule without a source"
        for r in [*(x.get("IpRanges") or []), *(x.get("Ipv6Ranges") or []), *(x.get("UserIdGroupPairs") or [])]:
            if not re.fullmatch(r"[A-Za-z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{0,255}", r.get("Description") or ""): yield f"the description {r['Description']!r}"


@rule("ec2", "DescribeInstances DescribeInstanceTopology DescribeSecurityGroups DescribeSubnets DescribeRouteTables", EC2 + "API_DescribeInstances.html: MaxResults and ids exclude each other; FilterLimitExceeded: at most 200 values")
def _(p, state):
    ids = [k for k in ("InstanceIds", "GroupIds", "SubnetIds", "RouteTableIds") if p.get(k)]
    if ids and p.get("MaxResults") is not None: yield f"MaxResults with {ids[0]}"
    for f in p.get("Filters") or []:
        if not f.get("Values") or not f.get("Name"): yield f"the filter {f}"
    if sum(len(f.get("Values") or []) for f in p.get("Filters") or []) > 200: yield "more than 200 values of filters"


@rule("ec2", "DescribeInstanceTopology", EC2 + "API_DescribeInstanceTopology.html: at most 100 instances")
def _(p, state):
    if len(p.get("InstanceIds") or []) > 100: yield "more than 100 instances"


def problems(form, state=State()):
    """The problems of a request whose form has these pairs."""
    fields = dict(form); action, service = fields.get("Action"), VERSIONS.get(fields.get("Version"))
    if service is None: return [f"the version {fields.get('Version')!r} is not known"]
    if action not in model(service).operation_names: return [f"{service} has no action {action}"]
    check = Check(service)
    shape = model(service).operation_model(action).input_shape
    pairs = [(key, value) for key, value in form if key not in ("Action", "Version")]
    parameters = check.value(shape, tree(pairs), "") if shape else {}
    found = check.problems
    if not found:
        for of, operations, source, f in RULES:
            if of == service and action in operations: found += [f"{problem} ({source})" for problem in f(parameters, state)]
    return [f"{service} {action}: {problem}" for problem in found]
