//! Which servers a listing selects, and in which order.

use std::collections::BTreeSet;
use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use regex::{Regex, RegexBuilder};

use super::list::{KNOWN, parse_time};
use super::{Api, Fault};
use crate::openstack::region::{Server, is_status, task_states, vm_state_of};

const PAGING: &[&str] = &["limit", "marker", "offset", "page_size", "sort_key", "sort_dir"];

/// The filters that a caller without the role `admin` may use; others are dropped in silence, as Nova does.
const FOR_MEMBERS: &[(&str, u32)] = &[
    ("reservation_id", 1),
    ("name", 1),
    ("status", 1),
    ("image", 1),
    ("flavor", 1),
    ("ip", 1),
    ("changes-since", 1),
    ("all_tenants", 1),
    ("ip6", 5),
    ("tags", 26),
    ("tags-any", 26),
    ("not-tags", 26),
    ("not-tags-any", 26),
    ("changes-before", 66),
    ("locked", 73),
    ("availability_zone", 83),
    ("config_drive", 83),
    ("key_name", 83),
    ("created_at", 83),
    ("launched_at", 83),
    ("terminated_at", 83),
    ("power_state", 83),
    ("task_state", 83),
    ("vm_state", 83),
    ("progress", 83),
    ("user_id", 83),
    ("hostname", 90),
];

enum NameFilter {
    Exactly(String),
    Pattern(Regex),
}

/// One page: whole records, and those of which little is known.
pub(super) type Selection<'a> = (Vec<&'a Arc<Server>>, Vec<&'a Arc<Server>>);

/// What a listing is narrowed to.
pub(super) struct Filter {
    project: Option<String>,
    name: Option<NameFilter>,
    statuses: Option<BTreeSet<String>>,
    since: Option<Timestamp>,
    before: Option<Timestamp>,
    deleted: bool,
    /// Filters on one field each, by parameter name.
    fields: Vec<(String, String)>,
    /// Whether the answer may hold partial records of cells that do not answer.
    partial: bool,
    /// Whether the answer is known to be empty.
    nothing: bool,
}

impl Filter {
    pub(super) fn new(api: &Api<'_>) -> Result<Self, Fault> {
        let allowed = |key: &str| {
            let table = if api.caller.admin { KNOWN } else { FOR_MEMBERS };
            !PAGING.contains(&key)
                && table
                    .iter()
                    .any(|(name, since)| *name == key && api.at_least(*since))
        };
        let keys: BTreeSet<&str> = api
            .request
            .params
            .iter()
            .map(|(key, _)| key.as_str())
            .filter(|key| allowed(key))
            .collect();
        let paged = api
            .request
            .params
            .iter()
            .any(|(key, _)| PAGING.contains(&key.as_str()));
        let get = |key: &str| {
            api.request
                .params
                .iter()
                .rev()
                .find(|(name, _)| name == key && allowed(name))
                .map(|(_, value)| value.as_str())
        };
        let since = get("changes-since").and_then(parse_time);
        let before = get("changes-before").and_then(parse_time);
        if since.zip(before).is_some_and(|(since, before)| before < since) {
            let message = "The value of changes-since must be less than or equal to changes-before.";
            return Err(Fault::bad_request(message));
        }
        // Without a value it is meant.
        let all_tenants = get("all_tenants").map_or(Ok(false), |text| {
            if text.is_empty() {
                Ok(true)
            } else {
                parse_bool(text)
            }
        })?;
        if all_tenants && !api.caller.admin {
            let rule = if api.request.path.ends_with("/detail") {
                "detail"
            } else {
                "index"
            };
            let message = format!(
                "Policy doesn't allow os_compute_api:servers:{rule}:get_all_tenants to be performed."
            );
            return Err(Fault::new(StatusCode::FORBIDDEN, message));
        }
        let mut filter = Self {
            project: (!all_tenants).then(|| api.caller.project_id.clone()),
            name: None,
            statuses: None,
            since,
            before,
            deleted: since.is_some()
                || before.is_some()
                || get("deleted").is_some_and(|text| parse_bool(text).unwrap_or(false)),
            fields: Vec::new(),
            partial: api.at_least(69) && !paged && keys.iter().all(|key| *key == "all_tenants"),
            nothing: false,
        };
        for key in keys {
            let value = get(key).unwrap_or_default();
            match key {
                "name" | "display_name" => filter.name = Some(name_filter(value)?),
                "status" => filter.set_statuses(api)?,
                "changes-since" | "changes-before" | "all_tenants" | "deleted" => {}
                // Without all_tenants the project is the caller's, whatever is asked for.
                "tenant_id" | "project_id" if !all_tenants => {}
                "locked" => {
                    parse_bool(value)?;
                    filter.fields.push((key.to_owned(), value.to_owned()));
                }
                _ => filter.fields.push((key.to_owned(), value.to_owned())),
            }
        }
        for (key, _) in &filter.fields {
            if field_matches(api, None, key, "").is_none() {
                return Err(Fault::bad_request(format!(
                    "The simulator does not have the filter {key}."
                )));
            }
        }
        Ok(filter)
    }

    fn set_statuses(&mut self, api: &Api<'_>) -> Result<(), Fault> {
        let asked: BTreeSet<String> = api.request.all("status").map(str::to_uppercase).collect();
        let valid: BTreeSet<String> = asked.into_iter().filter(|status| is_status(status)).collect();
        if valid.is_empty() {
            if api.at_least(38) {
                return Err(Fault::bad_request("Invalid status value"));
            }
            self.nothing = true;
        }
        if valid.iter().all(|status| status == "DELETED") && !valid.is_empty() {
            if !api.caller.admin {
                let message = "Only administrators may list deleted instances";
                return Err(Fault::new(StatusCode::FORBIDDEN, message));
            }
            self.deleted = true;
        }
        self.statuses = Some(valid);
        Ok(())
    }

    fn matches(&self, api: &Api<'_>, server: &Server) -> bool {
        let name_matches = match &self.name {
            None => true,
            Some(NameFilter::Exactly(name)) => server.name.to_lowercase() == *name,
            Some(NameFilter::Pattern(pattern)) => pattern.is_match(&server.name),
        };
        // Below the API statuses are states of the virtual machine; a status with tasks of its own needs both.
        let status_matches = self.statuses.as_ref().is_none_or(|statuses| {
            statuses.iter().any(|status| {
                status == server.shown_status()
                    || (task_states(status).is_empty()
                        && vm_state_of(status) == vm_state_of(server.shown_status()))
            })
        });
        name_matches
            && status_matches
            && (self.deleted || server.deleted.is_none())
            && self
                .project
                .as_ref()
                .is_none_or(|project| *project == server.project_id)
            && self.since.is_none_or(|since| server.updated >= since)
            && self.before.is_none_or(|before| server.updated <= before)
            && self
                .fields
                .iter()
                .all(|(key, value)| field_matches(api, Some(server), key, value) == Some(true))
    }

    pub(super) fn select<'a>(
        &self,
        api: &Api<'a>,
        limit: usize,
        after: Option<&Server>,
    ) -> Result<Selection<'a>, Fault> {
        if self.nothing {
            return Ok((Vec::new(), Vec::new()));
        }
        let now = api.cloud.clock.now();
        let servers = &api.region.servers;
        let is_down = |server: &Server| api.region.cells_down.contains(&server.cell);
        let answers =
            |server: &&Arc<Server>| server.visible <= now && !is_down(server) && self.matches(api, server);
        let position = after.and_then(|server| servers.position(&server.id));
        let candidates = || match &self.name {
            Some(NameFilter::Exactly(name)) => servers.named(name, position.as_ref()),
            _ => servers.newest_first(self.project.as_deref(), position.as_ref()),
        };
        let sorted = ["sort_key", "sort_dir"]
            .iter()
            .any(|key| api.request.last(key).is_some());
        let page = if sorted {
            let all = servers
                .newest_first(self.project.as_deref(), None)
                .filter(answers)
                .collect();
            let sorted = sort(api, all)?;
            let start = after.and_then(|marker| sorted.iter().position(|server| server.id == marker.id));
            sorted
                .into_iter()
                .skip(start.map_or(0, |start| start + 1))
                .take(limit)
                .collect()
        } else {
            candidates().filter(answers).take(limit).collect::<Vec<_>>()
        };
        let partial = if self.partial && page.len() < limit {
            let down =
                |server: &&Arc<Server>| is_down(server) && server.deleted.is_none() && server.visible <= now;
            candidates().filter(down).take(limit - page.len()).collect()
        } else {
            Vec::new()
        };
        Ok((page, partial))
    }
}

fn parse_bool(text: &str) -> Result<bool, Fault> {
    match text.to_lowercase().as_str() {
        "1" | "t" | "true" | "on" | "y" | "yes" => Ok(true),
        "0" | "f" | "false" | "off" | "n" | "no" => Ok(false),
        _ => Err(Fault::bad_request(format!(
            "Unrecognized value '{text}', acceptable values are: '0', '1', 'f', 'false', 'n', 'no', 'off', 'on', \
             't', 'true', 'y', 'yes'"
        ))),
    }
}

/// A filter on the name as the database evaluates it: a search, without regard to case, and with every `|` escaped
/// by Nova before, so that alternatives are impossible.
fn name_filter(pattern: &str) -> Result<NameFilter, Fault> {
    let escaped = pattern.replace('|', "\\|");
    let anchored = escaped.strip_prefix('^').and_then(|rest| rest.strip_suffix('$'));
    if let Some(name) = anchored.and_then(literal) {
        return Ok(NameFilter::Exactly(name.to_lowercase()));
    }
    let compiled = RegexBuilder::new(&escaped).case_insensitive(true).build();
    compiled
        .map(NameFilter::Pattern)
        .map_err(|_| Fault::unexpected("oslo_db.exception.DBError"))
}

/// The text that a pattern without any operator stands for.
fn literal(pattern: &str) -> Option<String> {
    let mut literal = String::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => literal.push(chars.next().filter(|next| !next.is_alphanumeric())?),
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' | '|' => return None,
            _ => literal.push(char),
        }
    }
    Some(literal)
}

/// Whether a server passes a filter on one field; `None` if the simulator does not have that filter. Without a server
/// the answer only says whether it has.
fn field_matches(api: &Api<'_>, server: Option<&Server>, key: &str, value: &str) -> Option<bool> {
    let searched = |text: &str| Regex::new(value).is_ok_and(|pattern| pattern.is_match(text));
    let tags = || value.split(',');
    let test: Box<dyn Fn(&Server) -> bool + '_> = match key {
        "flavor" => Box::new(|server| server.flavor.id == value),
        "image" | "image_ref" => Box::new(|server| server.image_id == value),
        "uuid" => Box::new(|server| server.id == value),
        "reservation_id" => Box::new(|server| server.reservation_id == value),
        "user_id" => Box::new(|server| server.user_id == value),
        "project_id" | "tenant_id" => Box::new(|server| server.project_id == value),
        "host" => Box::new(|server| server.host == value),
        "vm_state" => Box::new(|server| vm_state_of(server.shown_status()) == value),
        "task_state" => Box::new(|server| server.task_state.as_deref() == Some(value)),
        "power_state" => Box::new(|server| server.power_state.to_string() == value),
        "availability_zone" => Box::new(|server| searched(&server.availability_zone)),
        "key_name" => Box::new(|server| server.key_name.as_deref().is_some_and(&searched)),
        "hostname" => Box::new(|server| searched(&server.hostname())),
        "locked" => Box::new(|_| matches!(parse_bool(value), Ok(false))),
        // With Neutron's substring extension, Nova looks for ports with such an address.
        "ip" | "ip6" => Box::new(|server| {
            let ports = server
                .ports
                .iter()
                .filter_map(|id| api.region.network.ports.get(id));
            let mut addresses = ports.flat_map(|port| &port.fixed_ips);
            addresses.any(|ip| ip.address.to_string().contains(value))
        }),
        "tags" => Box::new(|server| tags().all(|tag| server.tags.iter().any(|known| known == tag))),
        "tags-any" => Box::new(|server| tags().any(|tag| server.tags.iter().any(|known| known == tag))),
        "not-tags" => Box::new(|server| !tags().all(|tag| server.tags.iter().any(|known| known == tag))),
        "not-tags-any" => Box::new(|server| !tags().any(|tag| server.tags.iter().any(|known| known == tag))),
        _ => return None,
    };
    Some(server.is_none_or(test))
}

/// Sorts by the keys that a request names; the id breaks ties.
fn sort<'a>(api: &Api<'_>, mut servers: Vec<&'a Arc<Server>>) -> Result<Vec<&'a Arc<Server>>, Fault> {
    let dirs: Vec<&str> = api.request.all("sort_dir").collect();
    let mut asked: Vec<&str> = api.request.all("sort_key").map(str::trim).collect();
    if asked.is_empty() {
        asked.push("created_at");
    }
    let mut keys = Vec::new();
    for (index, key) in asked.into_iter().enumerate() {
        if matches!(key, "host" | "node") && !api.caller.admin {
            let message = format!("Only administrators can sort servers by {key}");
            return Err(Fault::new(StatusCode::FORBIDDEN, message));
        }
        if sort_value(key, None).is_none() {
            return Err(Fault::bad_request(format!(
                "The simulator does not sort by {key}."
            )));
        }
        let dir = dirs.get(index).or(dirs.first()).copied().unwrap_or("desc");
        if !matches!(dir, "asc" | "desc") {
            let message = "Invalid input received: Unknown sort direction, must be 'desc' or 'asc'";
            return Err(Fault::bad_request(message));
        }
        keys.push((key, dir == "desc"));
    }
    if dirs.len() > keys.len() {
        return Err(Fault::bad_request(
            "Invalid input received: Sort direction size exceeds sort key size",
        ));
    }
    servers.sort_by(|a, b| {
        let mut order = std::cmp::Ordering::Equal;
        for (key, descending) in &keys {
            let by_key = sort_value(key, Some(a)).cmp(&sort_value(key, Some(b)));
            order = order.then(if *descending { by_key.reverse() } else { by_key });
        }
        order.then_with(|| a.id.cmp(&b.id))
    });
    Ok(servers)
}

fn sort_value(key: &str, server: Option<&Server>) -> Option<String> {
    let value: fn(&Server) -> String = match key {
        "created_at" => |server| server.created.to_string(),
        "updated_at" => |server| server.updated.to_string(),
        "launched_at" => |server| server.launched.map(|at| at.to_string()).unwrap_or_default(),
        "display_name" => |server| server.name.to_lowercase(),
        "uuid" => |server| server.id.clone(),
        "vm_state" => |server| vm_state_of(server.shown_status()).to_owned(),
        "task_state" => |server| server.task_state.clone().unwrap_or_default(),
        "power_state" => |server| server.power_state.to_string(),
        "project_id" => |server| server.project_id.clone(),
        "user_id" => |server| server.user_id.clone(),
        "availability_zone" => |server| server.availability_zone.clone(),
        "key_name" => |server| server.key_name.clone().unwrap_or_default(),
        "host" | "node" => |server| server.host.clone(),
        _ => return None,
    };
    Some(server.map(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn anchored_text_is_looked_up_and_anything_else_searched() {
        for (pattern, want) in [
            ("node-1", Some("node-1")),
            (r"node\.a", Some("node.a")),
            (r"node\-1", Some("node-1")),
            ("node.a", None),
            (r"node\d", None),
            ("a(b)", None),
        ] {
            assert_eq!(literal(pattern).as_deref(), want, "{pattern}");
        }
    }
}
