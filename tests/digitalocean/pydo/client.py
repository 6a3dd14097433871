"""DigitalOcean's own client reads and writes the simulator: arguments are its URL, the token and a droplet's ID."""

import json
import sys

from azure.core.pipeline.policies import _authentication
from pydo import Client

# The simulator speaks plain HTTP on the loopback interface, over which the client would not send a token.
_authentication._enforce_https = lambda request: None

url, token, droplet = sys.argv[1:]
client = Client(token, endpoint=url)

droplets = client.droplets.list(per_page=200)["droplets"]
assert [found["id"] for found in droplets] == [int(droplet)], droplets
assert client.droplets.get(int(droplet))["droplet"]["networks"]["v4"], droplet
assert client.droplets.list(type="gpus")["droplets"] == []

rule = {"entry_protocol": "tcp", "entry_port": 80, "target_protocol": "tcp", "target_port": 30080}
body = {"name": "by-pydo", "region": "nyc3", "forwarding_rules": [rule], "droplet_ids": [int(droplet)]}
created = client.load_balancers.create(body=body)["load_balancer"]
assert created["status"] == "new", created
read = client.load_balancers.get(created["id"])["load_balancer"]
assert read["status"] == "active" and read["ip"], read
updated = client.load_balancers.update(created["id"], body={**body, "size_unit": 2})["load_balancer"]
assert updated["size_unit"] == 2, updated

inbound = {"protocol": "tcp", "ports": "80", "sources": {"addresses": ["0.0.0.0/0"]}}
firewall = client.firewalls.create(body={"name": "by-pydo", "inbound_rules": [inbound], "droplet_ids": []})["firewall"]
assert client.firewalls.get(firewall["id"])["firewall"]["inbound_rules"][0]["ports"] == "80"
client.firewalls.delete(firewall["id"])
assert client.tags.create(body={"name": "k8s:c-1"})["tag"]["name"] == "k8s:c-1"
assert client.account.get()["account"]["status"] == "active"
assert client.regions.list()["regions"][0]["slug"] == "nyc3"
assert client.certificates.list()["certificates"] == []

# The load balancers of the program under test.
names = [found["name"] for found in client.load_balancers.list(per_page=200)["load_balancers"]]
client.load_balancers.delete(created["id"])
missing = client.load_balancers.get(created["id"])
assert missing["id"] == "not_found", missing
print(json.dumps(names))
