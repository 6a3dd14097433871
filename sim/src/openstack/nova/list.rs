//! Nova's server listings: filters, order, pages, and what becomes of cells that do not answer.

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use regex::Regex;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::{Value, json};

use super::filter::Filter;
use super::view::ServerView;
use super::{Api, Fault, quoted};
use crate::http::Reply;
use crate::openstack::region::Server;

/// Every query parameter of the listing with the microversion that brought it.
pub(super) const KNOWN: &[(&str, u32)] = &[
    ("access_ip_v4", 1),
    ("access_ip_v6", 1),
    ("all_tenants", 1),
    ("auto_disk_config", 1),
    ("availability_zone", 1),
    ("changes-before", 66),
    ("changes-since", 1),
    ("config_drive", 1),
    ("created_at", 1),
    ("deleted", 1),
    ("description", 1),
    ("display_description", 1),
    ("display_name", 1),
    ("flavor", 1),
    ("host", 1),
    ("hostname", 1),
    ("image", 1),
    ("image_ref", 1),
    ("ip", 1),
    ("ip6", 1),
    ("kernel_id", 1),
    ("key_name", 1),
    ("launch_index", 1),
    ("launched_at", 1),
    ("limit", 1),
    ("locked", 73),
    ("locked_by", 1),
    ("marker", 1),
    ("name", 1),
    ("node", 1),
    ("not-tags", 26),
    ("not-tags-any", 26),
    ("power_state", 1),
    ("progress", 1),
    ("project_id", 1),
    ("ramdisk_id", 1),
    ("reservation_id", 1),
    ("root_device_name", 1),
    ("soft_deleted", 1),
    ("sort_dir", 1),
    ("sort_key", 1),
    ("status", 1),
    ("tags", 26),
    ("tags-any", 26),
    ("task_state", 1),
    ("tenant_id", 1),
    ("terminated_at", 1),
    ("user_id", 1),
    ("uuid", 1),
    ("vm_state", 1),
];

const SORT_KEYS: &[&str] = &[
    "access_ip_v4",
    "access_ip_v6",
    "auto_disk_config",
    "availability_zone",
    "config_drive",
    "created_at",
    "display_description",
    "display_name",
    "host",
    "hostname",
    "image_ref",
    "instance_type_id",
    "kernel_id",
    "key_name",
    "launch_index",
    "launched_at",
    "locked_by",
    "node",
    "power_state",
    "progress",
    "project_id",
    "ramdisk_id",
    "root_device_name",
    "task_state",
    "terminated_at",
    "updated_at",
    "user_id",
    "uuid",
    "vm_state",
];

/// `GET /servers` and `GET /servers/detail`.
pub(super) fn list(api: &Api<'_>, detail: bool) -> Result<Reply, Fault> {
    let known: Vec<&str> = KNOWN
        .iter()
        .filter(|(_, since)| api.at_least(*since))
        .map(|(name, _)| *name)
        .collect();
    check_values(api, &known)?;
    let filter = Filter::new(api)?;
    let limit = api.limit()?;
    let after = match api.request.last("marker").filter(|marker| !marker.is_empty()) {
        None => None,
        Some(marker) => Some(find_marker(api, marker)?),
    };
    let (servers, partial) = filter.select(api, limit, after.as_deref())?;
    let collection = if detail { "servers/detail" } else { "servers" };
    let last = servers.last().or(partial.last()).map(|server| server.id.as_str());
    let links = api.next_link(collection, &known, servers.len() + partial.len(), last);
    let page = Page {
        api,
        servers,
        partial,
        detail,
        links,
    };
    Ok(Reply::json(StatusCode::OK, &page))
}

/// Checks values as the request schema does.
fn check_values(api: &Api<'_>, known: &[&str]) -> Result<(), Fault> {
    let invalid = Fault::bad_value;
    for (key, value) in &api.request.params {
        match key.as_str() {
            "sort_key" if !SORT_KEYS.contains(&value.as_str()) => {
                let why = format!("'{value}' is not one of {}", quoted(SORT_KEYS));
                return Err(invalid(key, value, &why));
            }
            "name" | "display_name" | "ip" | "ip6" | "flavor" | "reservation_id" | "key_name"
            | "hostname"
                if value.is_empty() || Regex::new(value).is_err() =>
            {
                let shown = value.replace('\\', "\\\\");
                return Err(invalid(key, value, &format!("'{shown}' is not a 'regex'")));
            }
            "changes-since" if parse_time(value).is_none() => {
                return Err(invalid(key, value, &format!("'{value}' is not a 'date-time'")));
            }
            "changes-before" if api.at_least(66) && parse_time(value).is_none() => {
                return Err(invalid(key, value, &format!("'{value}' is not a 'date-time'")));
            }
            _ => {}
        }
    }
    api.limit()?;
    let unknown = |key: &&str| !known.contains(key) && !key.starts_with('_');
    let mut keys = api.request.params.iter().map(|(key, _)| key.as_str());
    match keys.find(unknown).filter(|_| api.at_least(75)) {
        Some(key) => Err(Fault::bad_request(format!(
            "'{key}' does not match any of the regexes: '^_'"
        ))),
        None => Ok(()),
    }
}

/// A time as Nova takes it: without a zone it is UTC.
pub(super) fn parse_time(text: &str) -> Option<Timestamp> {
    let zoned = text.replacen(' ', "+", usize::from(text.contains('T')));
    zoned.parse().ok().or_else(|| {
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        civil
            .to_zoned(jiff::tz::TimeZone::UTC)
            .ok()
            .map(|zoned| zoned.timestamp())
    })
}

/// Finds the server after which a page begins. Nova finds deleted ones too, but has to ask the server's own cell.
fn find_marker(api: &Api<'_>, marker: &str) -> Result<Arc<Server>, Fault> {
    let server = api.region.servers.get(marker);
    let server = server.ok_or_else(|| Fault::bad_request(format!("marker [{marker}] not found")))?;
    if api.region.cells_down.contains(&server.cell) {
        return Err(Fault::unexpected("oslo_db.exception.DBConnectionError"));
    }
    Ok(Arc::clone(server))
}

/// A page on its way out; partial records come first.
struct Page<'a> {
    api: &'a Api<'a>,
    servers: Vec<&'a Arc<Server>>,
    partial: Vec<&'a Arc<Server>>,
    detail: bool,
    links: Option<Value>,
}

impl Serialize for Page<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let partial = self.partial.iter().map(|server| (server, true));
        let whole = self.servers.iter().map(|server| (server, false));
        let mut records = Vec::with_capacity(self.servers.len() + self.partial.len());
        for (server, partial) in partial.chain(whole) {
            let view = ServerView {
                api: self.api,
                server,
                is_list: true,
            };
            records.push(Record {
                view,
                detail: self.detail,
                partial,
            });
        }
        map.serialize_entry("servers", &records)?;
        if let Some(links) = &self.links {
            map.serialize_entry("servers_links", links)?;
        }
        map.end()
    }
}

struct Record<'a> {
    view: ServerView<'a>,
    detail: bool,
    partial: bool,
}

impl Serialize for Record<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.detail, self.partial) {
            (true, false) => self.view.serialize(serializer),
            (true, true) => json!(self.view.partial()).serialize(serializer),
            (false, false) => self.view.brief().serialize(serializer),
            (false, true) => self.view.brief_partial().serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_time;

    #[test]
    fn times_are_read_with_and_without_a_zone() {
        let want = parse_time("2026-11-21T04:38:05Z");
        assert!(want.is_some());
        for text in [
            "2026-11-21T04:38:05",
            "2026-11-21T05:38:05+01:00",
            "2026-11-21T05:38:05 01:00",
        ] {
            assert_eq!(parse_time(text), want, "{text}");
        }
        assert_eq!(parse_time("yesterday"), None);
    }
}
