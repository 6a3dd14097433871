//! The documents of a server, with the fields of its microversion.

use std::net::IpAddr;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::NovaApi;
use crate::openstack::region::{Server, power_state_of, vm_state_of};

/// A server in `GET /servers/{id}` and `GET /servers/detail`.
pub(super) struct ServerView<'a> {
    pub(super) api: &'a NovaApi<'a>,
    pub(super) server: &'a Server,
}

/// Statuses in which Nova shows a progress.
const IN_PROGRESS: [&str; 6] = [
    "ACTIVE",
    "BUILD",
    "REBUILD",
    "RESIZE",
    "VERIFY_RESIZE",
    "MIGRATING",
];

impl Serialize for ServerView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.document().serialize(serializer)
    }
}

impl ServerView<'_> {
    fn document(&self) -> Value {
        let Self { api, server } = *self;
        let (id, status) = (&server.id, server.status.as_str());
        let text = |address: Option<IpAddr>| address.map(|ip| ip.to_string()).unwrap_or_default();
        let image = api.bookmark(&format!("images/{}", server.image_id));
        let mut shown = json!({
            "id": id,
            "name": server.name,
            "status": status,
            "tenant_id": server.project_id,
            "user_id": server.user_id,
            "metadata": server.metadata,
            "hostId": if status == "BUILD" { "" } else { &server.host_id },
            "image": {"id": server.image_id, "links": [{"rel": "bookmark", "href": image}]},
            "flavor": self.flavor(),
            "created": server.created,
            "updated": server.updated,
            "addresses": self.addresses(),
            "accessIPv4": text(server.access_ipv4.map(IpAddr::from)),
            "accessIPv6": text(server.access_ipv6.map(IpAddr::from)),
            "links": [
                {"rel": "self", "href": api.link(&format!("servers/{id}"))},
                {"rel": "bookmark", "href": api.bookmark(&format!("servers/{id}"))},
            ],
            "OS-DCF:diskConfig": "MANUAL",
            "OS-EXT-AZ:availability_zone": server.availability_zone,
            "config_drive": "",
            "key_name": null,
            "OS-SRV-USG:launched_at": server.launched.map(database_time),
            "OS-SRV-USG:terminated_at": null,
            "OS-EXT-STS:task_state": null,
            "OS-EXT-STS:vm_state": vm_state_of(status),
            "OS-EXT-STS:power_state": power_state_of(status),
            "os-extended-volumes:volumes_attached": [],
        });
        let Some(fields) = shown.as_object_mut() else {
            return shown;
        };
        let mut add = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        if IN_PROGRESS.contains(&status) {
            add("progress", json!(0));
        }
        if !server.ports.is_empty() {
            // One entry for each binding of a port to a group, repetitions included.
            let groups = vec![json!({"name": "default"}); server.ports.len()];
            add("security_groups", Value::Array(groups));
        }
        if api.newer {
            add("locked", json!(false));
            add("description", Value::Null);
            add("tags", json!([]));
        }
        shown
    }

    fn flavor(&self) -> Value {
        let flavor = &self.server.flavor;
        if self.api.newer {
            return json!({
                "vcpus": flavor.vcpus,
                "ram": flavor.ram,
                "disk": flavor.disk,
                "ephemeral": 0,
                "swap": 0,
                "original_name": flavor.name,
                "extra_specs": {},
            });
        }
        let href = self.api.bookmark(&format!("flavors/{}", flavor.id));
        json!({"id": flavor.id, "links": [{"rel": "bookmark", "href": href}]})
    }

    fn addresses(&self) -> Map<String, Value> {
        let mut shown = Map::new();
        // Nova hides the addresses of a server that is still being built.
        if self.server.status == "BUILD" {
            return shown;
        }
        for (network, addresses) in self.api.region.addresses(self.server) {
            let list = addresses.iter().map(|address| {
                json!({
                    "version": if address.addr.is_ipv4() { 4 } else { 6 },
                    "addr": address.addr,
                    "OS-EXT-IPS:type": address.kind,
                    "OS-EXT-IPS-MAC:mac_addr": address.mac,
                })
            });
            shown.insert(network.to_owned(), list.collect());
        }
        shown
    }
}

/// A time in the format of Nova's database.
fn database_time(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.000000").to_string()
}
