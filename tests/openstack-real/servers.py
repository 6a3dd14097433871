"""Create, delete, stop and start servers of the tenant, in parallel; waits until done. Prints the servers as JSON.

  servers.py create|delete|stop|start NAME...      servers.py list
"""
import concurrent.futures
import json
import os
import sys
import time

import openstack

LIMIT = 300
ATTEMPTS = 3


def seeded():
    return dict(line.strip().split("=", 1) for line in open(os.environ["OSREAL_DIR"] + "/seed.env"))


def parallel(fn, items):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(fn, items))


def poll(c, names, done, details=True):
    """One list call for all servers, without details if possible. A poll for each server would slow down nova."""
    end = time.time() + LIMIT
    while True:
        now = {s.name: s.status for s in c.compute.servers(details=details) if s.name in names}
        if done(now) or time.time() > end:
            return now
        time.sleep(0.3)


def wait(c, what, names, done, details=True):
    now = poll(c, names, done, details)
    if not done(now):
        sys.exit(f"{what}: not done after {LIMIT} s: {now}; see log/nova*.log")


def finished(c, names):
    return poll(c, names, lambda now: len(now) == len(names) and set(now.values()) <= {"ACTIVE", "ERROR"})


def create(c, names):
    env = seeded()
    for _ in range(ATTEMPTS):
        parallel(lambda name: c.compute.create_server(
            name=name, image_id=env["IMAGE"], flavor_id=env["FLAVOR"], networks=[{"uuid": env["NET"]}], key_name="k8s",
            security_groups=[{"name": "k8s-nodes"}], metadata={"role": "node"}), names)
        now = finished(c, names)
        names = [name for name in names if now.get(name) != "ACTIVE"]
        if not names:
            return
        # On a busy machine a call between nova's own services times out: ERROR, or BUILD forever.
        print(f"not created, next attempt follows: {names}: {now}", file=sys.stderr)
        delete(c, [name for name in names if name in now])
    sys.exit(f"servers {names} could not be created in {ATTEMPTS} attempts; see log/nova*.log")


def reach(c, names, status):
    wait(c, f"servers {status}", names, lambda now: len(now) == len(names) and set(now.values()) == {status})


def by_name(c, names):
    now = {s.name: s for s in c.compute.servers(details=False)}
    absent = [n for n in names if n not in now]
    if absent:
        sys.exit(f"no such server: {absent}")
    return [now[n] for n in names]


def delete(c, names):
    parallel(lambda s: c.compute.delete_server(s), by_name(c, names))
    wait(c, "servers deleted", names, lambda now: not now, details=False)


def stop(c, names):
    parallel(lambda s: c.compute.stop_server(s), by_name(c, names))
    reach(c, names, "SHUTOFF")


def start(c, names):
    parallel(lambda s: c.compute.start_server(s), by_name(c, names))
    reach(c, names, "ACTIVE")


def main():
    os.environ["OS_CLIENT_CONFIG_FILE"] = os.environ["OSREAL_DIR"] + "/clouds.yaml"
    c = openstack.connect(cloud="k8s")
    verb, names = sys.argv[1], sys.argv[2:]
    if verb != "list":
        {"create": create, "delete": delete, "stop": stop, "start": start}[verb](c, names)
    print(json.dumps([{
        "id": s.id, "name": s.name, "status": s.status,
        "addresses": [a["addr"] for net in (s.addresses or {}).values() for a in net],
    } for s in c.compute.servers()]))


if __name__ == "__main__":
    main()
