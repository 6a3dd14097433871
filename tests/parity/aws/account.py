"""An account on moto with a cluster, created and read with boto3, so that the program under test is compared with an independent client."""
import hashlib, json, re
import boto3
from botocore.config import Config

REGION = "us-east-1"
# One moto process serves many accounts. On a busy machine it answers late.
PATIENT = Config(read_timeout=600, retries={"total_max_attempts": 1})


class Account:
    """A VPC of three public and three private subnets, a tagged group of the nodes, and instances."""

    def __init__(s, url, cluster, account="123456789012"):
        def client(name):
            c = boto3.client(name, endpoint_url=url, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x", config=PATIENT)
            c.meta.events.register("before-sign.*", lambda request, **_: request.headers.__setitem__("x-moto-account-id", account)); return c
        s.ec2, s.v2, s.elb, s.acm = (client(n) for n in ("ec2", "elbv2", "elb", "acm")); s.cluster, s.names, s.nodes = cluster, {}, []

    def tag(s, kind, **more):
        return [{"ResourceType": kind, "Tags": [{"Key": f"kubernetes.io/cluster/{s.cluster}", "Value": "owned"}] + [{"Key": k, "Value": v} for k, v in more.items()]}]

    def seed(s, instances):
        """Creates all objects, and returns their IDs by the names of the cases."""
        s.vpc = s.ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=s.tag("vpc"))["Vpc"]["VpcId"]; s.names[s.vpc] = "<vpc>"
        igw = s.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]; s.ec2.attach_internet_gateway(InternetGatewayId=igw, VpcId=s.vpc)
        pub = s.ec2.create_route_table(VpcId=s.vpc, TagSpecifications=s.tag("route-table"))["RouteTable"]["RouteTableId"]; s.ec2.create_route(RouteTableId=pub, DestinationCidrBlock="0.0.0.0/0", GatewayId=igw)
        pri = s.ec2.create_route_table(VpcId=s.vpc)["RouteTable"]["RouteTableId"]; s.subnets = {}
        for i, z in enumerate("abc"):
            for j, (kind, table, role) in enumerate((("public", pub, "elb"), ("private", pri, "internal-elb"))):
                n = s.ec2.create_subnet(VpcId=s.vpc, CidrBlock=f"10.0.{i*32+j*16}.0/20", AvailabilityZone=f"us-east-1{z}", TagSpecifications=s.tag("subnet", **{f"kubernetes.io/role/{role}": "1", "Name": f"{kind}-{z}"}))["Subnet"]["SubnetId"]
                s.ec2.associate_route_table(RouteTableId=table, SubnetId=n); s.subnets[f"{kind}-{z}"] = n; s.names[n] = f"<subnet:{kind}-{z}>"
        s.group = s.ec2.create_security_group(GroupName="nodes", Description="n", VpcId=s.vpc, TagSpecifications=s.tag("security-group"))["GroupId"]; s.names[s.group] = "<sg:nodes>"
        s.extra = s.ec2.create_security_group(GroupName="extra", Description="e", VpcId=s.vpc)["GroupId"]; s.names[s.extra] = "<sg:extra>"
        for g in s.ec2.describe_security_groups()["SecurityGroups"]: s.names.setdefault(g["GroupId"], f"<sg:{g['GroupName']}>")
        s.cert = [s.acm.request_certificate(DomainName=f"{n}.example.com")["CertificateArn"] for n in ("one", "two")]
        for i, c in enumerate(s.cert): s.names[c] = f"<cert-{i+1}>"
        s.eip = [s.ec2.allocate_address(Domain="vpc")["AllocationId"] for _ in range(3)]
        for i, e in enumerate(s.eip): s.names[e] = f"<eip-{i+1}>"
        s.base = {g["GroupId"] for g in s.ec2.describe_security_groups()["SecurityGroups"]}
        s.launch([f"node-{i + 1}" for i in range(instances)]); return s.env()

    def launch(s, names):
        """Runs an instance for each name, spread over the zones: name, private DNS name, instance id and zone of each."""
        new = []
        for name in names:
            subnet = s.subnets[f"private-{'abc'[(len(s.nodes) + len(new)) % 3]}"]
            x = s.ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, InstanceType="m5.large", SubnetId=subnet, SecurityGroupIds=[s.group], TagSpecifications=s.tag("instance", Name=name))["Instances"][0]
            new.append((name, x["PrivateDnsName"], x["InstanceId"], x["Placement"]["AvailabilityZone"])); s.names[x["InstanceId"]] = f"<{name}>"
        s.nodes += new; return new

    def call(s, service, operation, **arguments):
        """Any operation of EC2 (`ec2`), ELBv2 (`v2`), classic ELB (`elb`) and ACM (`acm`), by boto3's names."""
        answer = getattr(getattr(s, service), operation)(**arguments); answer.pop("ResponseMetadata", None); return answer

    def env(s): return {"VPC": s.vpc, "SG_NODES": s.group, "SG_EXTRA": s.extra, "CERT1": s.cert[0], "CERT2": s.cert[1], **{f"EIP{i+1}": e for i, e in enumerate(s.eip)}, **{n.upper().replace("-", "_"): i for n, i in s.subnets.items()}}

    def dump(s, lbs_of):
        names, out = dict(s.names), {"v2": [], "target_groups": [], "classic": [], "security_groups": [], "orphan_target_groups": []}
        tags = lambda l: sorted(f"{t['Key']}={t['Value']}" for t in l)
        v2 = s.v2.describe_load_balancers()["LoadBalancers"]; tgs = s.v2.describe_target_groups()["TargetGroups"]
        classic = s.elb.describe_load_balancers()["LoadBalancerDescriptions"]
        for l in v2: names[l["LoadBalancerArn"]] = f"<lb:{lbs_of.get(l['LoadBalancerName'], l['LoadBalancerName'])}>"; names[l["LoadBalancerName"]] = f"<lbname:{lbs_of.get(l['LoadBalancerName'], '?')}>"
        for l in classic: names[l["LoadBalancerName"]] = f"<lbname:{lbs_of.get(l['LoadBalancerName'], '?')}>"
        groups = s.ec2.describe_security_groups()["SecurityGroups"]
        for g in groups:
            if g["GroupId"] not in s.base:
                n = g["GroupName"]
                for k in sorted(lbs_of, key=len, reverse=True): n = n.replace(k, f"<lbname:{lbs_of[k]}>")
                names[g["GroupId"]] = f"<sg:{n}>"
        listeners = {l["LoadBalancerArn"]: s.v2.describe_listeners(LoadBalancerArn=l["LoadBalancerArn"])["Listeners"] for l in v2}
        for l in v2:
            for x in listeners[l["LoadBalancerArn"]]:
                for a in x["DefaultActions"]: names.setdefault(a.get("TargetGroupArn", ""), f"<tg:{lbs_of.get(l['LoadBalancerName'], '?')}:{x['Protocol']}:{x['Port']}>")
        names.pop("", None)
        for t in tgs: names.setdefault(t["TargetGroupArn"], "<tg:loose>"); names[t["TargetGroupName"]] = names[t["TargetGroupArn"]].replace("<tg", "<tgname")
        for l in v2:
            a = l["LoadBalancerArn"]
            d = {"name": l["LoadBalancerName"], "scheme": l.get("Scheme"), "type": l["Type"], "ip": l.get("IpAddressType"), "zones": sorted((z["SubnetId"], json.dumps(z.get("LoadBalancerAddresses", []), sort_keys=True)) for z in l["AvailabilityZones"]), "groups": sorted(l.get("SecurityGroups", [])),
                 "tags": tags(s.v2.describe_tags(ResourceArns=[a])["TagDescriptions"][0]["Tags"]), "attributes": {x["Key"]: x["Value"] for x in s.v2.describe_load_balancer_attributes(LoadBalancerArn=a)["Attributes"]}, "listeners": []}
            for x in listeners[a]:
                d["listeners"].append({"name": f"{x['Protocol']}:{x['Port']}", "certificates": [c["CertificateArn"] for c in x.get("Certificates", [])], "policy": x.get("SslPolicy") if x["Protocol"] == "TLS" else None, "alpn": x.get("AlpnPolicy", []), "target": [y.get("TargetGroupArn") for y in x["DefaultActions"]],
                     "tags": tags(s.v2.describe_tags(ResourceArns=[x["ListenerArn"]])["TagDescriptions"][0]["Tags"])})
            d["listeners"].sort(key=lambda x: x["name"]); out["v2"].append(d)
        for t in tgs:
            a = t["TargetGroupArn"]
            d = {"name": t["TargetGroupName"], "protocol": t["Protocol"], "port": t["Port"], "type": t.get("TargetType"), "health": {k: v for k, v in t.items() if k.startswith(("HealthCheck", "HealthyThr", "UnhealthyThr", "Matcher"))},
                 "attributes": {x["Key"]: x["Value"] for x in s.v2.describe_target_group_attributes(TargetGroupArn=a)["Attributes"]}, "tags": tags(s.v2.describe_tags(ResourceArns=[a])["TagDescriptions"][0]["Tags"]),
                 "targets": sorted(f"{h['Target']['Id']}:{h['Target'].get('Port')}" for h in s.v2.describe_target_health(TargetGroupArn=a)["TargetHealthDescriptions"])}
            out["target_groups" if t.get("LoadBalancerArns") else "orphan_target_groups"].append(d)
        for l in classic:
            n = l["LoadBalancerName"]
            out["classic"].append({"name": n, "scheme": l.get("Scheme"), "subnets": sorted(l["Subnets"]), "groups": sorted(l["SecurityGroups"]), "instances": sorted(i["InstanceId"] for i in l["Instances"]), "health": l.get("HealthCheck"),
                "listeners": sorted(({"name": f"{x['Listener']['Protocol']}:{x['Listener']['LoadBalancerPort']}", **x["Listener"], "policies": x["PolicyNames"]} for x in l["ListenerDescriptions"]), key=lambda x: x["name"]), "backends": sorted(json.dumps(b, sort_keys=True) for b in l["BackendServerDescriptions"]),
                "attributes": s.elb.describe_load_balancer_attributes(LoadBalancerName=n)["LoadBalancerAttributes"], "tags": tags(s.elb.describe_tags(LoadBalancerNames=[n])["TagDescriptions"][0]["Tags"])})
        for g in groups:
            if g["GroupId"] in s.base and g["GroupName"] not in ("nodes", "extra"): continue
            rules = []
            for r in g["IpPermissions"]:
                base = f"{r['IpProtocol']} {r.get('FromPort')}-{r.get('ToPort')}"
                rules += [f"{base} from {x['CidrIp']} ({x.get('Description', '')})" for x in r["IpRanges"]] + [f"{base} from {x['CidrIpv6']} ({x.get('Description', '')})" for x in r.get("Ipv6Ranges", [])] + [f"{base} from {x['GroupId']} ({x.get('Description', '')})" for x in r["UserIdGroupPairs"]]
            out["security_groups"].append({"name": g["GroupName"], "description": g["Description"], "rules": sorted(rules), "tags": tags(g.get("Tags", []))})
        for k in out: out[k].sort(key=lambda x: json.dumps(x, sort_keys=True))
        return out, names

    def rebuild(s, cloud, words):
        """Creates the objects of a recorded phase (a result of `dump`, with names in place of ids). `words`: the values of names. Returns the values of further names: ids of the account, and host names of the load balancers."""
        words = {**{n: i for i, n in s.names.items()}, **dict(words)}; uid = {k[5:-1]: v for k, v in words.items() if k.startswith("<uid:")}; hosts = {}
        for n, u in uid.items(): words[f"<lbname:{n}>"] = ("a" + u.replace("-", ""))[:32]
        def real(x):
            if isinstance(x, dict): return {k: real(v) for k, v in x.items()}
            if isinstance(x, list): return [real(v) for v in x]
            if not isinstance(x, str): return x
            if x in words: return words[x]
            for k in sorted(words, key=len, reverse=True): x = x.replace(k, str(words[k]))
            return x
        short = lambda n: re.sub("[^A-Za-z0-9]", "", n)[:8]
        tags = lambda o: [dict(zip(("Key", "Value"), t.split("=", 1))) for t in real(o["tags"])]
        changed = lambda want, have: [{"Key": k, "Value": v} for k, v in want.items() if {x["Key"]: x["Value"] for x in have}.get(k) != v]
        for g in cloud["security_groups"]:
            if g["name"] in ("nodes", "extra"): continue
            n = real(g["name"])
            for svc, u in uid.items():
                if n == f"k8s-default-{short(svc)}-<hash>": n = n.replace("<hash>", hashlib.sha256((s.cluster + svc + "default" + u).encode()).hexdigest()[:10])
            spec = [{"ResourceType": "security-group", "Tags": tags(g)}]
            words[f"<sg:{g['name']}>"] = s.ec2.create_security_group(GroupName=n, Description=real(g["description"]), VpcId=s.vpc, TagSpecifications=spec)["GroupId"]
        for g in cloud["security_groups"]:
            for r in g["rules"]:
                protocol, first, last, source, why = re.fullmatch(r"(\S+) (\S+)-(\S+) from (\S+) \((.*)\)", real(r)).groups(); why = {"Description": why} if why else {}
                p = {"IpProtocol": protocol, **({} if first == "None" else {"FromPort": int(first), "ToPort": int(last)})}
                p |= {"UserIdGroupPairs": [{"GroupId": source, **why}]} if source.startswith("sg-") else {"IpRanges": [{"CidrIp": source, **why}]}
                try: s.ec2.authorize_security_group_ingress(GroupId=words[f"<sg:{g['name']}>"], IpPermissions=[p])
                except s.ec2.exceptions.ClientError as e:   # the rule for the path MTU is the same for all load balancers
                    if e.response["Error"]["Code"] != "InvalidPermission.Duplicate": raise
        for t in cloud["target_groups"]:
            svc, _, port = t["name"][8:-1].split(":"); h = t["health"]
            key = "".join(map(str, (s.cluster, "default", svc, port, real(t["port"]), t["protocol"], t["type"], h["HealthCheckProtocol"], h["HealthCheckIntervalSeconds"])))
            words[t["name"]] = n = f"k8s-default-{short(svc)}-{hashlib.sha1(key.encode()).hexdigest()[:10]}"
            a = s.v2.create_target_group(Name=n, VpcId=s.vpc, Protocol=t["protocol"], Port=int(real(t["port"])), TargetType=t["type"], Tags=tags(t), **{**real(h), "HealthCheckPort": str(real(h["HealthCheckPort"]))})["TargetGroups"][0]["TargetGroupArn"]
            words[t["name"].replace("<tgname", "<tg")] = a; s.v2.register_targets(TargetGroupArn=a, Targets=[{"Id": i, "Port": int(p)} for i, p in (x.split(":") for x in real(t["targets"]))])
            more = changed(t["attributes"], s.v2.describe_target_group_attributes(TargetGroupArn=a)["Attributes"])
            if more: s.v2.modify_target_group_attributes(TargetGroupArn=a, Attributes=more)
        for l in cloud["v2"]:
            mapping = lambda subnet, addresses: {"SubnetId": subnet, **{k: v for x in json.loads(addresses) for k, v in x.items() if k in ("AllocationId", "PrivateIPv4Address")}}
            made = s.v2.create_load_balancer(Name=real(l["name"]), Type="network", SubnetMappings=[mapping(*z) for z in real(l["zones"])], SecurityGroups=real(l["groups"]), Tags=tags(l), **({"Scheme": l["scheme"]} if l["scheme"] else {}))["LoadBalancers"][0]
            a = made["LoadBalancerArn"]; hosts[f"{l['name']}-<key>.elb.{REGION}.amazonaws.com"] = made["DNSName"]
            more = changed(l["attributes"], s.v2.describe_load_balancer_attributes(LoadBalancerArn=a)["Attributes"])
            if more: s.v2.modify_load_balancer_attributes(LoadBalancerArn=a, Attributes=more)
            for x in real(l["listeners"]):
                protocol, port = x["name"].split(":"); tls = {"Certificates": [{"CertificateArn": c} for c in x["certificates"]], "SslPolicy": x["policy"]} if protocol == "TLS" else {}
                s.v2.create_listener(LoadBalancerArn=a, Protocol=protocol, Port=int(port), DefaultActions=[{"Type": "forward", "TargetGroupArn": t} for t in x["target"]], Tags=tags(x), **tls)
        for l in cloud["classic"]:
            n = real(l["name"]); l = {**real(l), "name": l["name"]}
            listener = lambda x: {k: int(v) if k.endswith("Port") else v for k, v in x.items() if k not in ("name", "policies")}
            hosts[f"{l['name']}.{REGION}.elb.amazonaws.com"] = s.elb.create_load_balancer(LoadBalancerName=n, Listeners=[listener(x) for x in l["listeners"]], Subnets=l["subnets"], SecurityGroups=l["groups"], Tags=tags(l), **({"Scheme": "internal"} if l["scheme"] == "internal" else {}))["DNSName"]
            s.elb.configure_health_check(LoadBalancerName=n, HealthCheck=l["health"]); s.elb.register_instances_with_load_balancer(LoadBalancerName=n, Instances=[{"InstanceId": i} for i in l["instances"]])
            s.elb.modify_load_balancer_attributes(LoadBalancerName=n, LoadBalancerAttributes={k: v for k, v in l["attributes"].items() if k != "AdditionalAttributes"})
            for b in map(json.loads, l["backends"]):
                if "k8s-proxyprotocol-enabled" not in b["PolicyNames"]: continue
                s.elb.create_load_balancer_policy(LoadBalancerName=n, PolicyName="k8s-proxyprotocol-enabled", PolicyTypeName="ProxyProtocolPolicyType", PolicyAttributes=[{"AttributeName": "ProxyProtocol", "AttributeValue": "true"}])
                s.elb.set_load_balancer_policies_for_backend_server(LoadBalancerName=n, InstancePort=b["InstancePort"], PolicyNames=b["PolicyNames"])
        return {**{n: i for i, n in s.names.items()}, **hosts}

    def clean(s):
        for l in s.v2.describe_load_balancers()["LoadBalancers"]: s.v2.delete_load_balancer(LoadBalancerArn=l["LoadBalancerArn"])
        for t in s.v2.describe_target_groups()["TargetGroups"]: s.v2.delete_target_group(TargetGroupArn=t["TargetGroupArn"])
        for l in s.elb.describe_load_balancers()["LoadBalancerDescriptions"]: s.elb.delete_load_balancer(LoadBalancerName=l["LoadBalancerName"])
        for g in s.ec2.describe_security_groups()["SecurityGroups"]:
            if g["GroupId"] in (s.group, s.extra) and g["IpPermissions"]: s.ec2.revoke_security_group_ingress(GroupId=g["GroupId"], IpPermissions=g["IpPermissions"])
        for g in s.ec2.describe_security_groups()["SecurityGroups"]:
            if g["GroupId"] not in s.base: s.ec2.delete_security_group(GroupId=g["GroupId"])
