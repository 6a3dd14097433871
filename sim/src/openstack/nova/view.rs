//! How Nova shows a server, field by field as the microversion has them.

use std::net::IpAddr;

use serde::ser::{SerializeMap as _, SerializeSeq as _};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Api;
use crate::openstack::region::{Server, ShownAddress, task_states, vm_state_of};

/// A server as `GET /servers/{id}` and `GET /servers/detail` show it.
pub(super) struct ServerView<'a> {
    pub(super) api: &'a Api<'a>,
    pub(super) server: &'a Server,
    pub(super) is_list: bool,
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

impl ServerView<'_> {
    /// What is known of a server whose cell does not answer.
    pub(super) fn partial(&self) -> Value {
        let server = self.server;
        let mut partial = json!({
            "id": server.id,
            "status": "UNKNOWN",
            "tenant_id": server.project_id,
            "created": server.created.to_string(),
            "links": Links(self),
        });
        if let Some(fields) = partial.as_object_mut().filter(|_| !self.is_list) {
            let mut add = |key: &str, value: Value| fields.insert(key.to_owned(), value);
            add("image", json!(Image(self)));
            add("flavor", json!(FlavorView(self)));
            add("OS-EXT-AZ:availability_zone", json!("UNKNOWN"));
            add("OS-EXT-STS:power_state", json!(0));
            add("user_id", json!(server.user_id));
            if self.api.at_least(71) {
                add("server_groups", json!([]));
            }
        }
        partial
    }

    /// The short form of `GET /servers`.
    pub(super) fn brief(&self) -> Value {
        json!({"id": self.server.id, "name": self.server.name, "links": Links(self)})
    }

    /// The short form for a server whose cell does not answer.
    pub(super) fn brief_partial(&self) -> Value {
        json!({"id": self.server.id, "status": "UNKNOWN", "links": Links(self)})
    }
}

impl Serialize for ServerView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { api, server, is_list } = *self;
        let status = server.shown_status();
        let building = status == "BUILD";
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &server.id)?;
        map.serialize_entry("name", &server.name)?;
        map.serialize_entry("status", status)?;
        map.serialize_entry("tenant_id", &server.project_id)?;
        map.serialize_entry("user_id", &server.user_id)?;
        map.serialize_entry("metadata", &server.metadata)?;
        map.serialize_entry("hostId", if building { "" } else { &server.host_id })?;
        map.serialize_entry("image", &Image(self))?;
        map.serialize_entry("flavor", &FlavorView(self))?;
        map.serialize_entry("created", &server.created)?;
        map.serialize_entry("updated", &server.updated)?;
        map.serialize_entry("addresses", &Addresses(self))?;
        map.serialize_entry(
            "accessIPv4",
            &server.access_ipv4.map(|ip| ip.to_string()).unwrap_or_default(),
        )?;
        map.serialize_entry(
            "accessIPv6",
            &server.access_ipv6.map(|ip| ip.to_string()).unwrap_or_default(),
        )?;
        map.serialize_entry("links", &Links(self))?;
        map.serialize_entry("OS-DCF:diskConfig", "MANUAL")?;
        if IN_PROGRESS.contains(&status) {
            map.serialize_entry("progress", &0)?;
        }
        if let Some(message) = server
            .fault
            .as_ref()
            .filter(|_| matches!(status, "ERROR" | "DELETED"))
        {
            let fault = json!({"code": 500, "created": server.updated.to_string(), "message": message});
            map.serialize_entry("fault", &fault)?;
        }
        map.serialize_entry("OS-EXT-AZ:availability_zone", &server.availability_zone)?;
        map.serialize_entry("config_drive", "")?;
        map.serialize_entry("key_name", &server.key_name)?;
        let sql_time =
            |at: Option<jiff::Timestamp>| at.map(|at| at.strftime("%Y-%m-%dT%H:%M:%S.000000").to_string());
        map.serialize_entry("OS-SRV-USG:launched_at", &sql_time(server.launched))?;
        map.serialize_entry("OS-SRV-USG:terminated_at", &sql_time(server.deleted))?;
        if !server.ports.is_empty() {
            // One entry for each binding of a port to a group, repetitions included.
            let groups = vec![json!({"name": "default"}); server.ports.len()];
            map.serialize_entry("security_groups", &groups)?;
        }
        let task = server
            .task_state
            .as_deref()
            .or_else(|| task_states(&server.status).first().copied());
        map.serialize_entry("OS-EXT-STS:task_state", &task)?;
        map.serialize_entry("OS-EXT-STS:vm_state", vm_state_of(status))?;
        map.serialize_entry("OS-EXT-STS:power_state", &server.power_state)?;
        map.serialize_entry("os-extended-volumes:volumes_attached", &[(); 0])?;
        if api.caller.admin {
            map.serialize_entry("OS-EXT-SRV-ATTR:host", &server.host)?;
            map.serialize_entry("OS-EXT-SRV-ATTR:hypervisor_hostname", &server.host)?;
            map.serialize_entry(
                "OS-EXT-SRV-ATTR:instance_name",
                &format!("instance-{}", server.id),
            )?;
            if api.at_least(3) {
                map.serialize_entry("OS-EXT-SRV-ATTR:reservation_id", &server.reservation_id)?;
                map.serialize_entry("OS-EXT-SRV-ATTR:launch_index", &0)?;
                map.serialize_entry("OS-EXT-SRV-ATTR:root_device_name", "/dev/vda")?;
                map.serialize_entry("OS-EXT-SRV-ATTR:kernel_id", "")?;
                map.serialize_entry("OS-EXT-SRV-ATTR:ramdisk_id", "")?;
                map.serialize_entry("OS-EXT-SRV-ATTR:user_data", &None::<String>)?;
            }
        }
        if api.at_least(if api.caller.admin { 3 } else { 90 }) {
            map.serialize_entry("OS-EXT-SRV-ATTR:hostname", &server.hostname())?;
        }
        if api.at_least(9) {
            map.serialize_entry("locked", &false)?;
        }
        if api.at_least(16) && api.caller.admin {
            map.serialize_entry("host_status", if building { "" } else { "UP" })?;
        }
        if api.at_least(19) {
            map.serialize_entry("description", &None::<String>)?;
        }
        if api.at_least(26) {
            map.serialize_entry("tags", &server.tags)?;
        }
        if api.at_least(63) {
            map.serialize_entry("trusted_image_certificates", &None::<String>)?;
        }
        if api.at_least(71) && !is_list {
            map.serialize_entry("server_groups", &[(); 0])?;
        }
        if api.at_least(73) {
            map.serialize_entry("locked_reason", &None::<String>)?;
        }
        if api.at_least(96) {
            map.serialize_entry("pinned_availability_zone", &None::<String>)?;
        }
        if api.at_least(100) {
            map.serialize_entry("scheduler_hints", &json!({}))?;
        }
        map.end()
    }
}

struct Links<'a>(&'a ServerView<'a>);

impl Serialize for Links<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (api, id) = (&self.0.api, &self.0.server.id);
        let mut links = serializer.serialize_seq(Some(2))?;
        links.serialize_element(&Link {
            rel: "self",
            href: &api.link(&format!("servers/{id}")),
        })?;
        links.serialize_element(&Link {
            rel: "bookmark",
            href: &api.bookmark(&format!("servers/{id}")),
        })?;
        links.end()
    }
}

#[derive(Serialize)]
struct Link<'a> {
    rel: &'a str,
    href: &'a str,
}

struct Image<'a>(&'a ServerView<'a>);

impl Serialize for Image<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (api, id) = (self.0.api, &self.0.server.image_id);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", id)?;
        let href = api.bookmark(&format!("images/{id}"));
        map.serialize_entry(
            "links",
            &[Link {
                rel: "bookmark",
                href: &href,
            }],
        )?;
        if api.at_least(98) {
            map.serialize_entry("properties", &json!({}))?;
        }
        map.end()
    }
}

struct FlavorView<'a>(&'a ServerView<'a>);

impl Serialize for FlavorView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (api, flavor) = (self.0.api, &self.0.server.flavor);
        let mut map = serializer.serialize_map(None)?;
        if api.at_least(47) {
            map.serialize_entry("vcpus", &flavor.vcpus)?;
            map.serialize_entry("ram", &flavor.ram)?;
            map.serialize_entry("disk", &flavor.disk)?;
            map.serialize_entry("ephemeral", &0)?;
            map.serialize_entry("swap", &0)?;
            map.serialize_entry("original_name", &flavor.name)?;
            map.serialize_entry("extra_specs", &flavor.extra_specs)?;
        } else {
            map.serialize_entry("id", &flavor.id)?;
            let href = api.bookmark(&format!("flavors/{}", flavor.id));
            map.serialize_entry(
                "links",
                &[Link {
                    rel: "bookmark",
                    href: &href,
                }],
            )?;
        }
        map.end()
    }
}

struct Addresses<'a>(&'a ServerView<'a>);

impl Serialize for Addresses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        // Nova hides the addresses of a server that is still being built.
        if self.0.server.status != "BUILD" {
            for (network, addresses) in self.0.api.region.addresses(self.0.server) {
                let shown: Vec<AddressView<'_>> = addresses.into_iter().map(AddressView).collect();
                map.serialize_entry(network, &shown)?;
            }
        }
        map.end()
    }
}

struct AddressView<'a>(ShownAddress<'a>);

impl Serialize for AddressView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ShownAddress { addr, kind, mac } = &self.0;
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("version", &if matches!(addr, IpAddr::V4(_)) { 4 } else { 6 })?;
        map.serialize_entry("addr", addr)?;
        map.serialize_entry("OS-EXT-IPS:type", kind)?;
        map.serialize_entry("OS-EXT-IPS-MAC:mac_addr", mac)?;
        map.end()
    }
}
