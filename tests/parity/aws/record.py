"""Record what an AWS cloud-controller-manager builds on moto for a set of Services, object by object.

usage: python record.py --binary CCM --kubeconfig FILE --cases DIR --out DIR [--only NAME,..] [-- extra flags]
Python needs the packages of requirements.txt.
For each case: create the Services, wait until all is quiet, dump; for each step patch, wait, dump; delete, wait, dump the remaining objects.
moto_server.py beside this file corrects differences from AWS; a proxy in front of it counts calls. IDs, ARNs, addresses and node ports are replaced by names.
"""
import argparse, base64, collections, copy, ctypes, http.client, json, os, re, shutil, signal, socket, subprocess, sys, threading, time, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import requests, yaml
from account import Account
def free():
    with socket.socket() as s: s.bind(("127.0.0.1", 0)); return s.getsockname()[1]
MOTO_PORT, PROXY, HTTPS = (free() for _ in range(3))
API, CLUSTER = "", "parity"
S = requests.Session(); S.trust_env = False
calls, lock, last = collections.Counter(), threading.Lock(), [0.0]


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def go(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        q = urllib.parse.parse_qs(body.decode("latin1")); act = q.get("Action", [self.path.split("?")[0]])[0]
        v2 = q.get("Version", [""])[0] == "2015-12-01"
        with lock: calls[act if v2 or not q.get("Version", [""])[0] == "2012-06-01" else "classic " + act] += 1; last[0] = time.time()
        c = http.client.HTTPConnection("127.0.0.1", MOTO_PORT, timeout=60)
        h = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length", "accept-encoding", "connection")}
        c.request(self.command, self.path, body, {**h, "Host": self.headers["Host"]}); r = c.getresponse(); d = r.read()
        self.reply(r.status, [(k, v) for k, v in r.getheaders() if k.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server")], d)
    def reply(self, status, headers, d):
        self.send_response(status)
        for k, v in headers: self.send_header(k, v)
        self.send_header("Content-Length", str(len(d))); self.end_headers(); self.wfile.write(d)
    do_GET = do_POST = do_PUT = go


class Server(ThreadingHTTPServer): daemon_threads = True; request_queue_size = 512


def take():
    with lock: c = collections.Counter(calls); calls.clear()
    return c


def connect(kubeconfig, folder):
    """Takes server, certificate authority and client certificate from a kubeconfig."""
    global API
    c = yaml.safe_load(open(kubeconfig)); cluster, user = c["clusters"][0]["cluster"], c["users"][0]["user"]; API = cluster["server"]
    def file(o, key):
        if key in o: return o[key]
        path = f"{folder}/{key}"
        with open(path, "wb") as f: f.write(base64.b64decode(o[key + "-data"]))
        return path
    S.verify = file(cluster, "certificate-authority"); S.cert = (file(user, "client-certificate"), file(user, "client-key"))


def kube(m, p, b=None, ct="application/json", ok=True):
    r = S.request(m, API + p, data=None if b is None else json.dumps(b), headers={"Content-Type": ct}, timeout=60)
    if ok and r.status_code >= 300: raise SystemExit(f"{m} {p} {r.status_code} {r.text[:300]}")
    return r.json()


def merge(p, b): return kube("PATCH", p, b, "application/merge-patch+json")


def normal(o, names, words):
    pairs = sorted({**{k: v for k, v in names.items() if k}, **words}.items(), key=lambda kv: -len(kv[0]))
    def text(t):
        for k, v in pairs:
            t = re.sub(rf"(?<!\d){k}(?!\d)", v, t) if k.isdigit() else t.replace(k, v)
        t = re.sub(r"arn:aws:elasticloadbalancing:[^\s\",]+", "<arn>", t)
        t = re.sub(r"\b(k8s-[a-z0-9]+-[a-z0-9]+)-[0-9a-f]{10}\b", r"\1-<hash>", t)
        t = re.sub(r"(?i)request ?id: ?[\w-]+", "RequestID: <id>", t)
        t = re.sub(r"-[0-9a-f]{16}\.elb\.", "-<key>.elb.", t)
        return re.sub(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z?\b", "<time>", t)
    def walk(x):
        if isinstance(x, dict): return {text(k): walk(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):   # the order follows the IDs, before they are replaced
            x = [walk(v) for v in x]; return x if any("reason" in v for v in x if isinstance(v, dict)) else sorted(x, key=lambda v: json.dumps(v, sort_keys=True))
        if isinstance(x, str): return text(x)
        if isinstance(x, int) and not isinstance(x, bool) and str(x) in words: return words[str(x)]
        return x
    return walk(o)


def main():
    ap = argparse.ArgumentParser()
    for f in ("binary", "kubeconfig", "cases", "out"): ap.add_argument("--" + f, required=True)
    ap.add_argument("--only", default=""); ap.add_argument("extra", nargs="*")
    a = ap.parse_args(); os.makedirs(a.out, exist_ok=True); W = os.path.abspath(a.out) + ".work"; shutil.rmtree(W, ignore_errors=True); os.makedirs(W); procs = []
    env = {**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{PROXY}"}
    tie = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)   # PR_SET_PDEATHSIG: no process outlives the recorder
    def run(*c, log): procs.append(subprocess.Popen(c, stdout=open(f"{W}/{log}", "a"), stderr=subprocess.STDOUT, env=env, preexec_fn=tie)); return procs[-1]
    def wait(cond, limit=60):
        t = time.time()
        while time.time() - t < limit:
            try:
                if cond(): return
            except requests.RequestException: pass
            time.sleep(0.1)
        raise SystemExit("timeout: see " + W)
    cases = []
    for f in sorted(os.listdir(a.cases)):
        if f.endswith(".yaml"): cases += [c for c in yaml.safe_load_all(open(f"{a.cases}/{f}")) if c and (not a.only or c["name"] in a.only.split(","))]
    cases.sort(key=lambda c: json.dumps(c.get("config", {}), sort_keys=True))
    try:
        connect(a.kubeconfig, W); run(sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "moto_server.py"), "-H", "127.0.0.1", "-p", str(MOTO_PORT), log="moto.log")
        threading.Thread(target=Server(("127.0.0.1", PROXY), Proxy).serve_forever, daemon=True).start()
        wait(lambda: requests.get(f"http://127.0.0.1:{MOTO_PORT}/moto-api/").status_code == 200);
        cloud = Account(f"http://127.0.0.1:{MOTO_PORT}", CLUSTER); cloud.seed(4); subst = lambda o: json.loads(re.sub(r"\$\{(\w+)\}", lambda m: cloud.env().get(m[1], m[0]), json.dumps(o)))
        for i, (name, dns, inst, zone) in enumerate(cloud.nodes[:3]):
            kube("POST", "/api/v1/nodes", {"metadata": {"name": dns, "labels": {"pool": "a" if i < 2 else "b", "kubernetes.io/hostname": dns}}, "spec": {"providerID": f"aws:///{zone}/{inst}", "taints": [{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}]}})
            t = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()); merge(f"/api/v1/nodes/{dns}/status", {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "", "lastHeartbeatTime": t, "lastTransitionTime": t}]}})
        node = {n: d for n, d, _, _ in cloud.nodes}; proc, current = None, None
        def stop():
            if proc and proc.poll() is None:
                proc.send_signal(signal.SIGTERM)
                try: proc.wait(30)
                except subprocess.TimeoutExpired: proc.kill()
        def start(config):
            conf = {"Zone": "us-east-1a", "VPC": cloud.vpc, "SubnetID": cloud.subnets["public-a"], "KubernetesClusterID": CLUSTER, **subst(config)}
            with open(f"{W}/cloud.conf", "w") as fh:
                fh.write("[Global]\n" + "".join(f"{k}={v}\n" for k, v in conf.items()) + "".join(f'[ServiceOverride "{n}"]\nService={s}\nRegion=us-east-1\nURL=http://127.0.0.1:{PROXY}\nSigningRegion=us-east-1\n' for n, s in enumerate(("EC2", "Elastic Load Balancing", "Elastic Load Balancing v2", "elasticloadbalancing", "ec2"))))
            p = run(a.binary, f"--kubeconfig={a.kubeconfig}", "--cloud-provider=aws", f"--cloud-config={W}/cloud.conf", "--leader-elect=false", f"--cluster-name={CLUSTER}", "--allocate-node-cidrs=false", "--configure-cloud-routes=false", f"--secure-port={HTTPS}", "--bind-address=127.0.0.1", f"--cert-dir={W}/certs", *a.extra, log="ccm.log")
            wait(lambda: p.poll() is not None or not any("uninitialized" in t["key"] for n in kube("GET", "/api/v1/nodes")["items"] for t in n["spec"].get("taints", [])))
            if p.poll() is not None: raise SystemExit(f"the program ended with {p.returncode}: see {W}/ccm.log")
            return p
        def events(uid):
            seen = []
            for e in kube("GET", "/api/v1/namespaces/default/events?limit=2000")["items"]:
                if e["reason"] in ("ClusterIPNotAllocated", "ClusterIPOutOfSync") or e["involvedObject"].get("uid") != uid: continue
                e = {"type": e["type"], "reason": e["reason"], "message": e.get("message", ""), "component": e.get("source", {}).get("component") or e.get("reportingComponent", "")}
                if e not in seen: seen.append(e)
            return seen
        def waiting():
            return [o for o in kube("GET", "/api/v1/namespaces/default/services")["items"] if o["metadata"].get("deletionTimestamp") or (o["spec"]["type"] == "LoadBalancer" and not o.get("status", {}).get("loadBalancer", {}).get("ingress") and not any(e["type"] == "Warning" for e in events(o["metadata"]["uid"])))]
        def settle(limit=90, quiet=3.0):
            total, t = collections.Counter(), time.time()
            while time.time() - t < limit:
                total += take()
                if time.time() - last[0] > quiet and time.time() - t > quiet and (time.time() - t > 40 or not waiting()): break
                time.sleep(0.3)
            return total, max(0.0, round(last[0] - t, 1))
        for case in cases:
            cfg = case.get("config", {})
            if current != cfg or proc is None or proc.poll() is not None: stop(); proc = start(cfg); current = cfg; settle()
            rec, svcs, uid, seen, lbs_of = {"name": case["name"], "note": case.get("note", ""), "phases": []}, {}, {}, {}, {}
            for s in case["services"]:
                s = subst(copy.deepcopy(s)); s["metadata"].setdefault("namespace", "default"); s.setdefault("spec", {}).setdefault("type", "LoadBalancer"); s["spec"].setdefault("selector", {"app": "x"}); svcs[s["metadata"]["name"]] = s
            def snap(what, total, secs):
                words, live = {}, {}
                for n, u in uid.items():
                    lbs_of[("a" + u.replace("-", ""))[:32]] = n; words[u] = f"<uid:{n}>"
                    r = S.get(f"{API}/api/v1/namespaces/default/services/{n}").json()
                    if r.get("code") == 404: continue
                    for p in r["spec"]["ports"]:
                        if p.get("nodePort"): words[str(p["nodePort"])] = f"<nodeport:{n}:{p['port']}>"
                    if r["spec"].get("healthCheckNodePort"): words[str(r["spec"]["healthCheckNodePort"])] = f"<hcnodeport:{n}>"
                    live[n] = {"annotations": r["metadata"].get("annotations", {}), "finalizers": r["metadata"].get("finalizers", []), "status": r.get("status", {})}
                objs, names = cloud.dump(lbs_of); seen.update(words)
                rec["phases"].append({"phase": what, "seconds": secs, "cloud": normal(objs, names, seen), "services": normal(live, names, seen), "events": normal({n: events(u) for n, u in uid.items()}, names, seen), "calls": dict(sorted(total.items()))})
            take()
            for n, s in svcs.items(): uid[n] = kube("POST", "/api/v1/namespaces/default/services", s)["metadata"]["uid"]
            snap("create", *settle())
            for step in case.get("steps", []):
                step = subst(step); take()
                if "patch" in step: merge(f"/api/v1/namespaces/default/services/{step.get('service', next(iter(svcs)))}", step["patch"])
                if "node" in step: merge(f"/api/v1/nodes/{node[step['node']]}", step["patch_node"])
                if "delete" in step: kube("DELETE", f"/api/v1/namespaces/default/services/{step['delete']}", ok=False)
                snap(step["name"], *settle(quiet=step.get("quiet", 3.0)))
            take()
            for n in svcs: kube("DELETE", f"/api/v1/namespaces/default/services/{n}", ok=False)
            snap("delete", *settle())
            for step in case.get("steps", []):
                if "undo_node" in step: merge(f"/api/v1/nodes/{node[step['node']]}", step["undo_node"])
            json.dump(rec, open(f"{a.out}/{case['name']}.json", "w"), indent=1, sort_keys=True)
            left = rec["phases"][-1]["cloud"]; print(f"{case['name']}: " + ", ".join(f"{p['phase']} {sum(p['calls'].values())} calls {p['seconds']} s" for p in rec["phases"]) + "; left: " + (", ".join(k for k in left if left[k] and k != "security_groups") or "nothing"), flush=True)
            for n in uid:
                r = S.get(f"{API}/api/v1/namespaces/default/services/{n}").json()
                if r.get("metadata", {}).get("finalizers"): merge(f"/api/v1/namespaces/default/services/{n}", {"metadata": {"finalizers": None}})
            cloud.clean()
    finally:
        for p in reversed(procs):
            if p.poll() is None: p.send_signal(signal.SIGTERM)
        for p in procs:
            try: p.wait(10)
            except Exception: p.kill()


main()
