"""Record what a GCE cloud-controller-manager builds on the server for a set of Services, object by object.

usage: python record.py --binary CCM --controlplane BIN --cases DIR --out DIR [--only NAME,..] [--operation SECONDS] [-- extra flags]
Python needs the packages of requirements.txt. Ports from RECORD_PORT (18843) to 45 above it.
For each case: create the Services, wait until all is quiet, dump; for each step patch, wait, dump; delete, wait, dump the remaining objects.
gce_server.py beside this file is Compute Engine and the metadata server, and counts calls by method. Names that consist of UIDs, addresses and node ports are replaced by names.
"""

import argparse
import base64
import collections
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import requests
import urllib3
import yaml

urllib3.disable_warnings()
HERE = os.path.dirname(os.path.abspath(__file__))
PORT = int(os.environ.get("RECORD_PORT", 18843))
SERVER, HTTPS, CLUSTER, PROJECT, REGION = PORT + 7, PORT + 45, "parity", "parity", "us-central1"
API, GCE = f"https://127.0.0.1:{PORT}", f"http://127.0.0.1:{SERVER}"
S = requests.Session()
S.verify = False
S.trust_env = False
G = requests.Session()
G.headers["Authorization"] = "Bearer x"
G.trust_env = False
KINDS = (
    "addresses",
    "forwardingRules",
    "targetPools",
    "backendServices",
    "httpHealthChecks",
    "healthChecks",
    "instanceGroups",
    "firewalls",
    "routes",
)
DROP = {"id", "selfLink", "creationTimestamp", "fingerprint", "labelFingerprint", "kind", "region", "zone"}
NODES = [("node-1", "a"), ("node-2", "b"), ("node-3", "c"), ("node-4", "a")]
last = [0.0]


def kube(m, p, b=None, ct="application/json", ok=True):
    r = S.request(m, API + p, data=None if b is None else json.dumps(b), headers={"Content-Type": ct}, timeout=60)
    if ok and r.status_code >= 300:
        raise SystemExit(f"{m} {p} {r.status_code} {r.text[:300]}")
    return r.json()


def merge(p, b):
    return kube("PATCH", p, b, "application/merge-patch+json")


def control_plane(binary, W, run):
    """Starts etcd and kube-apiserver by a binary that takes -dir and -port (token admin-token), or by one that writes DIR/admin.kubeconfig. Writes W/kubeconfig."""
    global API
    if "-port" in subprocess.run([binary, "-h"], capture_output=True, text=True).stderr:
        run(binary, "-dir", f"{W}/cp", "-port", str(PORT), log="cp.log")
        S.headers["Authorization"] = "Bearer admin-token"
        json.dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                "clusters": [{"name": "x", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
                "users": [{"name": "x", "user": {"token": "admin-token"}}],
            },
            open(f"{W}/kubeconfig", "w"),
        )
        return
    run(binary, "-dir", f"{W}/cp", log="cp.log")
    f = f"{W}/cp/admin.kubeconfig"
    while not os.path.exists(f) or '"ready":true' not in open(f"{W}/cp.log").read():
        time.sleep(0.2)
    shutil.copy(f, f"{W}/kubeconfig")
    c = yaml.safe_load(open(f))
    API = c["clusters"][0]["cluster"]["server"]
    u = c["users"][0]["user"]
    if "token" in u:
        S.headers["Authorization"] = "Bearer " + u["token"]
    else:
        for k in ("client-certificate", "client-key"):
            if k + "-data" in u:
                open(f"{W}/{k}", "wb").write(base64.b64decode(u[k + "-data"]))
                u[k] = f"{W}/{k}"
        S.cert = (u["client-certificate"], u["client-key"])


def take():
    c = collections.Counter(G.get(GCE + "/admin/calls", timeout=30).json())
    if c:
        last[0] = time.time()
    return c


def compute(m, p, b=None):
    r = G.request(m, f"{GCE}/compute/v1/projects/{PROJECT}/{p}", json=b, timeout=60)
    if r.status_code >= 300:
        raise SystemExit(f"{m} {p} {r.status_code} {r.text[:300]}")
    op = r.json()
    at = op["selfLink"].split("/compute/v1/")[1]
    while op["status"] != "DONE":
        time.sleep(0.02)
        op = G.get(f"{GCE}/compute/v1/{at}").json()
    if op.get("error"):
        raise SystemExit(f"{m} {p} {op['error']}")


class Cloud:
    """The project with four instances in three zones and four reserved addresses."""

    def __init__(s):
        for n, z in NODES:
            compute(
                "POST",
                f"zones/{REGION}-{z}/instances",
                {
                    "name": n,
                    "tags": {"items": ["node", "no"]},
                    "canIpForward": True,
                    "machineType": "e2-standard-4",
                    "networkInterfaces": [
                        {"network": "global/networks/default", "accessConfigs": [{"natIP": f"34.9.0.{n[-1]}"}]}
                    ],
                },
            )
        s.static = {}
        for n, b in (
            ("static-premium", {}),
            ("static-premium-2", {}),
            ("static-standard", {"networkTier": "STANDARD"}),
            ("static-internal", {"addressType": "INTERNAL"}),
        ):
            compute("POST", f"regions/{REGION}/addresses", {"name": n, **b})
            s.static[n] = G.get(f"{GCE}/compute/v1/projects/{PROJECT}/regions/{REGION}/addresses/{n}").json()["address"]
        s.base = set(s.objects())

    def env(s):
        return {n.upper().replace("-", "_"): ip for n, ip in s.static.items()}

    def objects(s):
        return G.get(GCE + "/admin/objects").json()

    def dump(s):
        out = {k: [] for k in KINDS}
        for p, o in sorted(s.objects().items()):
            k = p.split("/")[-2]
            if p in s.base and not (k == "addresses" and o.get("users")) or k not in out:
                continue
            where = "/".join(p.split("/")[2:-2])
            out[k].append(
                {
                    **{a: b for a, b in o.items() if a not in DROP},
                    "scope": where,
                    "name": f"{where}/{o['name']}" if where.startswith("zones/") else o["name"],
                }
            )
        for k in out:
            out[k].sort(key=lambda o: json.dumps(o, sort_keys=True))
        return out

    def clean(s):
        for k in (
            "forwardingRules",
            "targetPools",
            "backendServices",
            "httpHealthChecks",
            "healthChecks",
            "instanceGroups",
            "firewalls",
            "addresses",
            "routes",
        ):
            for p in s.objects():
                if p not in s.base and p.split("/")[-2] == k:
                    compute("DELETE", p.split("/", 2)[2])


def normal(o, words):
    pairs = sorted(((k, v) for k, v in words.items() if k), key=lambda kv: -len(kv[0]))

    def text(t):
        t = t.replace("https://www.googleapis.com/compute/v1/", "<api>/").replace(GCE + "/compute/v1/", "<api>/")
        for k, v in pairs:
            t = re.sub(rf"(?<![\d.]){re.escape(k)}(?![\d])", v, t) if re.fullmatch(r"[\d.]+", k) else t.replace(k, v)
        return re.sub(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z?\b", "<time>", t)

    def walk(x):
        if isinstance(x, dict):
            return {text(k): walk(v) for k, v in x.items()}
        if isinstance(x, list):
            return sorted((walk(v) for v in x), key=lambda v: json.dumps(v, sort_keys=True))
        if isinstance(x, str):
            return text(x)
        if isinstance(x, int) and not isinstance(x, bool) and str(x) in words:
            return words[str(x)]
        return x

    return walk(o)


def main():
    ap = argparse.ArgumentParser()
    for f in ("binary", "controlplane", "cases", "out"):
        ap.add_argument("--" + f, required=True)
    ap.add_argument("--only", default="")
    ap.add_argument("--operation", default="0.05")
    ap.add_argument("extra", nargs="*")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    W = os.path.abspath(a.out) + ".work"
    shutil.rmtree(W, ignore_errors=True)
    os.makedirs(W)
    procs = []
    env = {**os.environ, "GCE_METADATA_HOST": f"127.0.0.1:{SERVER}"}

    def run(*c, log):
        procs.append(subprocess.Popen(c, stdout=open(f"{W}/{log}", "a"), stderr=subprocess.STDOUT, env=env))
        return procs[-1]

    def wait(cond, limit=90):
        t = time.time()
        while time.time() - t < limit:
            try:
                if cond():
                    return
            except requests.RequestException:
                pass
            time.sleep(0.1)
        raise SystemExit("timeout: see " + W)

    cases = []
    for f in sorted(os.listdir(a.cases)):
        if f.endswith(".yaml"):
            cases += [
                c
                for c in yaml.safe_load_all(open(f"{a.cases}/{f}"))
                if c and (not a.only or c["name"] in a.only.split(","))
            ]
    key = lambda c: json.dumps([c.get("config", {}), c.get("flags", [])], sort_keys=True)
    cases.sort(key=key)
    try:
        run(
            sys.executable,
            f"{HERE}/gce_server.py",
            "--port",
            str(SERVER),
            "--projects",
            PROJECT,
            "--operation",
            a.operation,
            log="gce.log",
        )
        control_plane(a.controlplane, W, run)
        wait(lambda: G.get(GCE + "/admin/calls").status_code == 200)
        wait(lambda: S.get(API + "/readyz", timeout=2).text == "ok")
        cloud = Cloud()
        subst = lambda o: json.loads(re.sub(r"\$\{(\w+)\}", lambda m: cloud.env().get(m[1], m[0]), json.dumps(o)))
        for n, z in NODES[:3]:
            kube(
                "POST",
                "/api/v1/nodes",
                {
                    "metadata": {"name": n, "labels": {"kubernetes.io/hostname": n}},
                    "spec": {
                        "podCIDR": f"10.200.{n[-1]}.0/24",
                        "podCIDRs": [f"10.200.{n[-1]}.0/24"],
                        "providerID": f"gce://{PROJECT}/{REGION}-{z}/{n}",
                        "taints": [
                            {
                                "key": "node.cloudprovider.kubernetes.io/uninitialized",
                                "value": "true",
                                "effect": "NoSchedule",
                            }
                        ],
                    },
                },
            )
            t = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            merge(
                f"/api/v1/nodes/{n}/status",
                {
                    "status": {
                        "conditions": [
                            {
                                "type": "Ready",
                                "status": "True",
                                "reason": "x",
                                "message": "",
                                "lastHeartbeatTime": t,
                                "lastTransitionTime": t,
                            }
                        ]
                    }
                },
            )
        proc, current = None, None

        def stop():
            if proc and proc.poll() is None:
                proc.send_signal(signal.SIGTERM)
                try:
                    proc.wait(30)
                except subprocess.TimeoutExpired:
                    proc.kill()

        def start(case):
            conf = {
                "project-id": PROJECT,
                "local-zone": f"{REGION}-a",
                "multizone": "true",
                "network-name": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/default",
                "node-instance-prefix": "node",
                "api-endpoint": f"{GCE}/compute/v1/",
                **case.get("config", {}),
            }
            open(f"{W}/gce.conf", "w").write(
                "[global]\n"
                + "".join(f"{k} = {x}\n" for k, v in conf.items() for x in (v if isinstance(v, list) else [v]))
            )
            p = run(
                a.binary,
                f"--kubeconfig={W}/kubeconfig",
                "--cloud-provider=gce",
                f"--cloud-config={W}/gce.conf",
                "--leader-elect=false",
                f"--cluster-name={CLUSTER}",
                "--allocate-node-cidrs=false",
                "--configure-cloud-routes=false",
                f"--secure-port={HTTPS}",
                "--bind-address=127.0.0.1",
                f"--cert-dir={W}/certs",
                *case.get("flags", []),
                *a.extra,
                log="ccm.log",
            )
            wait(
                lambda: (
                    p.poll() is not None
                    or not any(
                        "uninitialized" in t["key"]
                        for n in kube("GET", "/api/v1/nodes")["items"]
                        for t in n["spec"].get("taints", [])
                    )
                )
            )
            if p.poll() is not None:
                raise SystemExit(f"the program ended with {p.returncode}: see {W}/ccm.log")
            return p

        def events(uid):
            seen = []
            for e in kube("GET", "/api/v1/namespaces/default/events?limit=2000")["items"]:
                if (
                    e["reason"] in ("ClusterIPNotAllocated", "ClusterIPOutOfSync")
                    or e["involvedObject"].get("uid") != uid
                ):
                    continue
                e = {
                    "type": e["type"],
                    "reason": e["reason"],
                    "message": e.get("message", ""),
                    "component": e.get("source", {}).get("component") or e.get("reportingComponent", ""),
                }
                if e not in seen:
                    seen.append(e)
            return sorted(seen, key=lambda e: (e["reason"], e["message"]))

        def waiting():
            return [
                o
                for o in kube("GET", "/api/v1/namespaces/default/services")["items"]
                if o["metadata"].get("deletionTimestamp")
                or (
                    o["spec"]["type"] == "LoadBalancer"
                    and not o.get("status", {}).get("loadBalancer", {}).get("ingress")
                    and not o["metadata"].get("annotations", {}).get("parity/elsewhere")
                    and not any(e["type"] == "Warning" for e in events(o["metadata"]["uid"]))
                )
            ]

        def settle(limit=90, quiet=4.0):
            total, t = collections.Counter(), time.time()
            last[0] = t
            while time.time() - t < limit:
                total += take()
                if time.time() - last[0] > quiet and (time.time() - t > 40 or not waiting()):
                    break
                time.sleep(0.2)
            return total, max(0.0, round(last[0] - t, 1))

        for case in cases:
            if current != key(case) or proc is None or proc.poll() is not None:
                stop()
                proc = start(case)
                current = key(case)
                settle()
            rec, svcs, uid, words = (
                {"name": case["name"], "note": case.get("note", ""), "phases": []},
                {},
                {},
                {ip: f"<{n}>" for n, ip in cloud.static.items()},
            )
            for s in case["services"]:
                s = subst(copy.deepcopy(s))
                s["metadata"].setdefault("namespace", "default")
                s.setdefault("spec", {}).setdefault("type", "LoadBalancer")
                s["spec"].setdefault("selector", {"app": "x"})
                svcs[s["metadata"]["name"]] = s

            def snap(what, total, secs):
                live = {}
                m = kube("GET", "/api/v1/namespaces/kube-system/configmaps/ingress-uid", ok=False).get("data", {})
                words.update({v: "<cid>" for v in m.values()})
                words.update(
                    {
                        o["metadata"]["uid"]: f"<uid:{o['metadata']['name']}>"
                        for o in kube("GET", "/api/v1/nodes")["items"]
                    }
                )
                objs = cloud.dump()
                for n, u in uid.items():
                    lb = ("a" + u.replace("-", ""))[:32]
                    words[lb] = f"<lb:{n}>"
                    words[u] = f"<uid:{n}>"
                    for o in objs["forwardingRules"]:
                        if o["name"] == lb and o["IPAddress"] not in words:
                            words[o["IPAddress"]] = (
                                f"<ip:{n}>"
                                if f"<ip:{n}>" not in words.values()
                                else f"<ip:{n}:{sum(v.startswith(f'<ip:{n}') for v in words.values()) + 1}>"
                            )
                    r = S.get(f"{API}/api/v1/namespaces/default/services/{n}").json()
                    if r.get("code") == 404:
                        continue
                    for p in r["spec"]["ports"]:
                        if p.get("nodePort"):
                            words[str(p["nodePort"])] = f"<nodeport:{n}:{p['port']}>"
                    if r["spec"].get("healthCheckNodePort"):
                        words[str(r["spec"]["healthCheckNodePort"])] = f"<hcnodeport:{n}>"
                    live[n] = {
                        "annotations": {
                            k: v for k, v in r["metadata"].get("annotations", {}).items() if k != "parity/elsewhere"
                        },
                        "finalizers": r["metadata"].get("finalizers", []),
                        "status": r.get("status", {}),
                    }
                rec["phases"].append(
                    {
                        "phase": what,
                        "seconds": secs,
                        "cloud": normal(objs, words),
                        "services": normal(live, words),
                        "events": normal({n: events(u) for n, u in uid.items()}, words),
                        "calls": dict(sorted(total.items())),
                    }
                )

            take()
            for n, s in svcs.items():
                uid[n] = kube("POST", "/api/v1/namespaces/default/services", s)["metadata"]["uid"]
                time.sleep(case.get("apart", 0))
            snap("create", *settle(quiet=case.get("quiet", 4.0)))
            for step in case.get("steps", []):
                step = subst(step)
                take()
                if "patch" in step:
                    merge(f"/api/v1/namespaces/default/services/{step.get('service', next(iter(svcs)))}", step["patch"])
                if "node" in step:
                    merge(f"/api/v1/nodes/{step['node']}", step["patch_node"])
                if "drop" in step:
                    p = next(p for p in cloud.objects() if re.search(step["drop"], p) and p not in cloud.base)
                    G.get(GCE + "/admin/drop", params={"path": p})
                if "delete" in step:
                    kube("DELETE", f"/api/v1/namespaces/default/services/{step['delete']}", ok=False)
                snap(step["name"], *settle(quiet=step.get("quiet", 4.0)))
            take()
            for n in svcs:
                kube("DELETE", f"/api/v1/namespaces/default/services/{n}", ok=False)
            if svcs:
                snap("delete", *settle())
            for step in case.get("steps", []):
                if "undo_node" in step:
                    merge(f"/api/v1/nodes/{step['node']}", step["undo_node"])
            json.dump(rec, open(f"{a.out}/{case['name']}.json", "w"), indent=1, sort_keys=True)
            left = rec["phases"][-1]["cloud"]
            print(
                f"{case['name']}: "
                + ", ".join(f"{p['phase']} {sum(p['calls'].values())} calls {p['seconds']} s" for p in rec["phases"])
                + "; left: "
                + (", ".join(f"{len(left[k])} {k}" for k in left if left[k]) or "nothing"),
                flush=True,
            )
            for n in uid:
                r = S.get(f"{API}/api/v1/namespaces/default/services/{n}").json()
                if r.get("metadata", {}).get("finalizers"):
                    merge(f"/api/v1/namespaces/default/services/{n}", {"metadata": {"finalizers": None}})
            cloud.clean()
    finally:
        for p in reversed(procs):
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
        for p in procs:
            try:
                p.wait(10)
            except Exception:
                p.kill()


if __name__ == "__main__":
    main()
