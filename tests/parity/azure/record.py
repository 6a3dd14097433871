"""Record what an Azure cloud-controller-manager builds on the ARM server beside this file for a set of Services, object by object.

usage: python record.py --binary CCM --controlplane BIN --cases DIR --out DIR [--only NAME,..] [--auth secret|msi] [--description DIR] [-- extra flags]
python needs: requests, pyyaml. BIN takes -dir and -port, and -service-range for the dual-stack cases.
For each case: create the Services, wait until all is quiet, dump; for each step patch, wait, dump; delete, wait, dump what is left.
A case may name `config` (keys of azure.json), `cluster` (uniform, flex, standalone, ipv6), `flags` and `seed` (documents that exist before); cases with equal ones share a running program.
Ids, addresses, node ports and node names are replaced by names. What is a guess of the server is not recorded (see README.md).
"""
import argparse, collections, copy, json, os, re, shutil, signal, subprocess, sys, threading, time
import requests, urllib3, yaml
import arm as A
urllib3.disable_warnings()
PORT, ARM_PORT, HTTPS = 19643, 19650, 19688
API, CLUSTER = f"https://127.0.0.1:{PORT}", "parity"
S = requests.Session(); S.verify = False; S.headers["Authorization"] = "Bearer admin-token"; S.trust_env = False
R = f"/subscriptions/{A.SUB}/resourceGroups/{A.GROUP}/providers"


def kube(m, p, b=None, ct="application/json", ok=True):
    r = S.request(m, API + p, data=None if b is None else json.dumps(b), headers={"Content-Type": ct}, timeout=60)
    if ok and r.status_code >= 300: raise SystemExit(f"{m} {p} {r.status_code} {r.text[:300]}")
    return r.json()


def merge(p, b): return kube("PATCH", p, b, "application/merge-patch+json")


def normal(o, names, words):
    bases = [(k, v) for k, v in words.items() if len(k) == 32 and k[0] == "a"]
    for k, v in list(names.items()):   # the name of an address contains the name of its object
        for b, w in bases: v = v.replace(b, w)
        names[k] = v
    pairs = sorted({**{k: v for k, v in names.items() if k}, **words}.items(), key=lambda kv: -len(kv[0]))
    def text(t):
        for k, v in pairs: t = re.sub(rf"(?<![\w.]){re.escape(k)}(?![\w]|\.\d)", v, t) if re.match(r"[\d.:a-f]+\Z", k) else re.sub(rf"(?i){re.escape(k)}", v, t) if k[0] == "a" and len(k) == 32 else t.replace(k, v)
        t = re.sub(rf"(?i)/subscriptions/{A.SUB}/resourceGroups/", "/", t).replace(A.SUB, "<subscription>"); t = re.sub(r"/providers/Microsoft\.(Network|Compute)/", "/", t, flags=re.I)
        t = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<guid>", t); t = re.sub(r"https?://127\.0\.0\.1:\d+", "<arm>", t)
        return re.sub(r"\b20\d\d-\d\d-\d\d[T ][\d:.]+Z?\b", "<time>", t)
    def walk(x):
        if isinstance(x, dict):
            if str(x.get("name", "")).startswith("k8s-azure-lb_") and "ports" in x and any(str(p) in words for p in x["ports"]): x = {**x, "name": re.sub(r"[0-9a-f]{32}", "<hash>", x["name"])}   # the name hashes node ports
            return {text(k): walk(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            x = [walk(v) for v in x]; return x if any("reason" in v for v in x if isinstance(v, dict)) else sorted(x, key=lambda v: json.dumps(v, sort_keys=True))
        if isinstance(x, str): return text(x)
        if isinstance(x, int) and not isinstance(x, bool) and str(x) in words: return words[str(x)]
        return x
    return walk(o)


def main():
    ap = argparse.ArgumentParser()
    for f in ("binary", "controlplane", "cases", "out"): ap.add_argument("--" + f, required=True)
    ap.add_argument("--only", default=""); ap.add_argument("--auth", default="secret", choices=("secret", "msi")); ap.add_argument("--description", default=A.described()); ap.add_argument("extra", nargs="*")
    a = ap.parse_args(); os.makedirs(a.out, exist_ok=True); W = os.path.abspath(a.out) + ".work"; shutil.rmtree(W, ignore_errors=True); os.makedirs(W); procs = []
    arm = A.Arm(a.description); srv = A.serve(arm, ARM_PORT); base = arm.base
    env = {**os.environ, "NO_PROXY": "127.0.0.1", **({"IDENTITY_ENDPOINT": base + "/msi/token", "IDENTITY_HEADER": "x"} if a.auth == "msi" else {})}
    def run(*c, log): procs.append(subprocess.Popen(c, stdout=open(f"{W}/{log}", "a"), stderr=subprocess.STDOUT, env=env)); return procs[-1]
    def wait(cond, limit=90, what=""):
        t = time.time()
        while time.time() - t < limit:
            try:
                if cond(): return
            except requests.RequestException: pass
            time.sleep(0.1)
        raise SystemExit(f"timeout {what}: see {W}")
    cases = []
    for f in sorted(os.listdir(a.cases)):
        if f.endswith(".yaml"): cases += [c for c in yaml.safe_load_all(open(f"{a.cases}/{f}")) if c and (not a.only or c["name"] in a.only.split(","))]
    key = lambda c: json.dumps([c.get("cluster", {"uniform": 3}), c.get("config", {}), c.get("flags", [])], sort_keys=True)
    cases.sort(key=key); dual = any(c.get("cluster", {}).get("ipv6") for c in cases); findings = []
    try:
        run(a.controlplane, "-dir", f"{W}/cp", "-port", str(PORT), *(["-service-range=10.0.0.0/16,fd00:10::/112"] if dual else []), log="cp.log"); wait(lambda: S.get(API + "/readyz", timeout=2).text == "ok", what="kube-apiserver")
        json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "clusters": [{"name": "x", "cluster": {"server": API, "insecure-skip-tls-verify": True}}], "users": [{"name": "x", "user": {"token": "admin-token"}}]}, open(f"{W}/kubeconfig", "w"))
        proc, current, nodes = None, None, []
        def stop():
            if proc and proc.poll() is None:
                proc.send_signal(signal.SIGTERM)
                try: proc.wait(30)
                except subprocess.TimeoutExpired: proc.kill()
        def start(case):
            """A fresh cloud, fresh nodes and the program."""
            cl = case.get("cluster", {"uniform": 3})
            for n in kube("GET", "/api/v1/nodes")["items"]: kube("DELETE", f"/api/v1/nodes/{n['metadata']['name']}")
            S.delete(API + "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aks-managed-resource-locker")
            with arm.lock:
                findings.extend(f for f in arm.findings if f not in findings); arm.__init__(a.description, base=base); ns = arm.cluster(**cl)
                for x in case.get("seed", []): arm.seed(x)
            for i, n in enumerate(ns):   # as a node manager has left them: the Go program does not initialise nodes
                labels = {"pool": "a" if i < 2 else "b", "kubernetes.io/hostname": n["name"], "topology.kubernetes.io/region": A.LOCATION, "topology.kubernetes.io/zone": n["zone"], "node.kubernetes.io/instance-type": "Standard_D2s_v3"}
                kube("POST", "/api/v1/nodes", {"metadata": {"name": n["name"], "labels": labels}, "spec": {"providerID": "azure://" + n["id"], "podCIDR": f"10.244.{i}.0/24", "podCIDRs": [f"10.244.{i}.0/24"]}})
                t = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()); merge(f"/api/v1/nodes/{n['name']}/status", {"status": {"addresses": [{"type": "InternalIP", "address": x} for x in n["ips"]] + [{"type": "Hostname", "address": n["name"]}], "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "", "lastHeartbeatTime": t, "lastTransitionTime": t}]}})
            conf = {"cloud": "AzurePublicCloud", "tenantId": A.TENANT, "subscriptionId": A.SUB, "resourceManagerEndpoint": base, "resourceGroup": A.GROUP, "location": A.LOCATION, "vnetName": "vnet", "vnetResourceGroup": A.GROUP, "subnetName": "nodes", "securityGroupName": "nsg", "securityGroupResourceGroup": A.GROUP, "routeTableName": "routes", "loadBalancerSku": "standard",
                **({"vmType": "vmss", "primaryScaleSetName": "pool-a"} if cl.get("uniform") else {"vmType": "vmssflex", "primaryScaleSetName": "pool-f"} if cl.get("flex") else {"vmType": "standard"}), **({"useManagedIdentityExtension": True} if a.auth == "msi" else {"aadClientId": "client", "aadClientSecret": "secret"}), **case.get("config", {})}
            json.dump(conf, open(f"{W}/azure.json", "w"), indent=1)
            p = run(a.binary, f"--kubeconfig={W}/kubeconfig", "--cloud-provider=azure", f"--cloud-config={W}/azure.json", "--leader-elect=false", f"--cluster-name={CLUSTER}", "--allocate-node-cidrs=false", f"--secure-port={HTTPS}", "--bind-address=127.0.0.1", f"--cert-dir={W}/certs", *(["--configure-cloud-routes=false"] if not case.get("flags") else case["flags"]), *a.extra, log="ccm.log")
            wait(lambda: p.poll() is not None or S.get(f"https://127.0.0.1:{HTTPS}/healthz", timeout=2).status_code == 200, what="healthz")
            if p.poll() is not None: raise SystemExit(f"the program ended with {p.returncode}: see {W}/ccm.log")
            return p, ns
        def events(uid):
            seen = []
            for e in kube("GET", "/api/v1/namespaces/default/events?limit=2000")["items"]:
                if e["reason"] in ("ClusterIPNotAllocated", "ClusterIPOutOfSync") or e["involvedObject"].get("uid") != uid: continue
                e = {"type": e["type"], "reason": e["reason"], "message": e.get("message", ""), "component": e.get("source", {}).get("component") or e.get("reportingComponent", "")}
                if e not in seen: seen.append(e)
            return seen
        def waiting(): return [o for o in kube("GET", "/api/v1/namespaces/default/services")["items"] if o["metadata"].get("deletionTimestamp") or (o["spec"]["type"] == "LoadBalancer" and not o.get("status", {}).get("loadBalancer", {}).get("ingress") and not any(e["type"] == "Warning" for e in events(o["metadata"]["uid"])))]
        def settle(limit=90, quiet=3.0):
            total, t = collections.Counter(), time.time()
            while time.time() - t < limit:
                total.update(arm.take())
                if time.time() - arm.last > quiet and time.time() - t > quiet and (time.time() - t > 40 or not waiting()): break
                time.sleep(0.3)
            return total, max(0.0, round(arm.last - t, 1))
        for case in cases:
            if current != key(case) or proc is None or proc.poll() is not None: stop(); proc, nodes = start(case); current = key(case); settle(quiet=4.0)
            with arm.lock:
                for x in case.get("seed", []): arm.seed(x)
            rec, svcs, uid, seen = {"name": case["name"], "note": case.get("note", ""), "phases": []}, {}, {}, {}; base_rules = None
            env_ = {"IP_" + d["name"].replace("-", "_").upper(): d["properties"].get("ipAddress", "") for d in arm.docs.values() if d["type"].endswith("/publicIPAddresses")}; env_["PREFIX"] = f"{R}/{A.NET}/publicIPPrefixes"
            subst = lambda o: json.loads(re.sub(r"\$\{(\w+)\}", lambda m: env_.get(m[1], m[0]), json.dumps(o)))
            for s in case["services"]:
                s = subst(copy.deepcopy(s)); s["metadata"].setdefault("namespace", "default"); s.setdefault("spec", {}).setdefault("type", "LoadBalancer"); s["spec"].setdefault("selector", {"app": "x"}); svcs[s["metadata"]["name"]] = s
            def snap(what, total, secs):
                words, live = {}, {}
                for n, u in uid.items():
                    words[("a" + u.replace("-", ""))[:32]] = f"<base:{n}>"; words[u] = f"<uid:{n}>"
                    r = S.get(f"{API}/api/v1/namespaces/default/services/{n}").json()
                    if r.get("code") == 404: continue
                    for p in r["spec"]["ports"]:
                        if p.get("nodePort"): words[str(p["nodePort"])] = f"<nodeport:{n}:{p['port']}>"
                    if r["spec"].get("healthCheckNodePort"): words[str(r["spec"]["healthCheckNodePort"])] = f"<hcnodeport:{n}>"
                    live[n] = {"annotations": r["metadata"].get("annotations", {}), "finalizers": r["metadata"].get("finalizers", []), "status": {k: v for k, v in r.get("status", {}).items() if k == "loadBalancer"}}
                objs, names = A.dump(arm, nodes); seen.update(words); allnames.update(names)
                rec["phases"].append({"phase": what, "seconds": secs, "cloud": normal(objs, allnames, seen), "services": normal(live, allnames, seen), "events": normal({n: events(u) for n, u in uid.items()}, allnames, seen), "calls": dict(sorted(total.items()))})
            allnames = {}; arm.take()
            for n, s in svcs.items():
                if n in case.get("later", []): continue
                uid[n] = kube("POST", "/api/v1/namespaces/default/services", s)["metadata"]["uid"]
            snap("create", *settle())
            for step in case.get("steps", []):
                step = subst(step); arm.take(); node = nodes[step["node"] - 1]["name"] if "node" in step else None
                if "create" in step: uid[step["create"]] = kube("POST", "/api/v1/namespaces/default/services", svcs[step["create"]])["metadata"]["uid"]
                if "patch" in step: merge(f"/api/v1/namespaces/default/services/{step.get('service', next(iter(svcs)))}", step["patch"])
                if node: merge(f"/api/v1/nodes/{node}", step["patch_node"])
                if "delete" in step: kube("DELETE", f"/api/v1/namespaces/default/services/{step['delete']}", ok=False)
                snap(step["name"], *settle(quiet=step.get("quiet", 3.0)))
            arm.take()
            for n in svcs: kube("DELETE", f"/api/v1/namespaces/default/services/{n}", ok=False)
            snap("delete", *settle())
            for step in case.get("steps", []):
                if "undo_node" in step: merge(f"/api/v1/nodes/{nodes[step['node'] - 1]['name']}", step["undo_node"])
            json.dump(rec, open(f"{a.out}/{case['name']}.json", "w"), indent=1, sort_keys=True)
            left = rec["phases"][-1]["cloud"]; seeded = {x["name"] for x in case.get("seed", [])}; left = [k for k in ("load_balancers", "private_link_services", "routes") if left[k]] + [f"ip {x['name']}" for x in left["public_ips"] if x["name"] not in seeded] + [f"rule {x['name']}" for x in left["security_rules"] if x["name"].startswith("k8s-azure-lb")]
            print(f"{case['name']}: " + ", ".join(f"{p['phase']} {sum(p['calls'].values())} calls {p['seconds']} s" for p in rec["phases"]) + "; left: " + (", ".join(left) or "nothing"), flush=True)
            for n in uid:
                r = S.get(f"{API}/api/v1/namespaces/default/services/{n}").json()
                if r.get("metadata", {}).get("finalizers"): merge(f"/api/v1/namespaces/default/services/{n}", {"metadata": {"finalizers": None}})
            if left or case.get("seed"): current = None   # the next case gets a fresh cloud
        findings.extend(f for f in arm.findings if f not in findings); json.dump(findings, open(f"{W}/findings.json", "w"), indent=1)
        print(f"requests and answers that the description does not allow: {len(findings)}" + (f", see {W}/findings.json" if findings else ""))
    finally:
        for p in reversed(procs):
            if p.poll() is None: p.send_signal(signal.SIGTERM)
        for p in procs:
            try: p.wait(10)
            except Exception: p.kill()


main()
