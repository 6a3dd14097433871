//! The comparison of two answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::http::Answer;
use crate::world::ClusterSnapshot;

/// The compared headers.
const HEADERS: &[&str] = &[
    "allow",
    "content-type",
    "location",
    "openstack-api-version",
    "retry-after",
    "vary",
    "www-authenticate",
    "x-compute-request-id",
    "x-openstack-nova-api-version",
    "x-openstack-request-id",
    "x-subject-token",
];

/// Lists without an order. The IDs of networks, and so the order, differ between the clouds.
const SETS: &[&str] = &[
    "allowed_cidrs",
    "endpoints",
    "listeners",
    "members",
    "methods",
    "networks",
    "pools",
    "resources",
    "roles",
    "routes",
    "security_group_rules",
    "security_groups",
    "subnets",
    "tags",
    "values",
    "versions",
];

/// The beginnings of parts of error messages that show Python's own data: the schema, and sets in any order.
const PYTHON_DATA: &[&str] = &[
    "\n\nFailed validating ",
    "is not one of [",
    "Value should be one of: ",
    "Value: '{",
    "\n[SQL: ",
];

/// Replaces values that differ between the clouds: everything that the cloud has a name for, and everything in the form
/// of an ID, a time, a MAC address or a token.
fn normal(world: &ClusterSnapshot, text: &str) -> String {
    let mut known: Vec<(&str, &str)> =
        world.vars.iter().map(|(name, value)| (*name, value.as_str())).collect();
    // The longest first, since one may be part of another.
    known.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
    let mut text = text.to_owned();
    for (name, value) in known {
        text = replace_whole(&text, value, &format!("<{name}>"));
    }
    for python_data in PYTHON_DATA {
        if let Some(at) = text.find(python_data) {
            text.truncate(at);
        }
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_:.".contains(c);
    let mut normal = String::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        normal.push_str(&form(word));
        let next = after.chars().next().map_or(0, char::len_utf8);
        let (separator, remaining) = after.split_at(next);
        normal.push_str(separator);
        rest = remaining;
    }
    normal
}

/// Replaces a text unless it is part of a longer number: one address may be a prefix of another.
fn replace_whole(text: &str, value: &str, with: &str) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(value).filter(|_| !value.is_empty()) {
        let (before, found) = rest.split_at(at);
        let after = &found[value.len()..];
        let goes_on =
            value.ends_with(|c: char| c.is_ascii_digit()) && after.starts_with(|c: char| c.is_ascii_digit());
        replaced.push_str(before);
        replaced.push_str(if goes_on { value } else { with });
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

fn form(word: &str) -> String {
    let hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let groups = |text: &str, separator: char, lengths: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        parts.len() == lengths.len()
            && parts.iter().zip(lengths).all(|(part, length)| part.len() == *length && hex(part))
    };
    if let Some(id) = word.strip_prefix("req-") {
        return format!("req-{}", form(id));
    }
    if groups(word, '-', &[8, 4, 4, 4, 12]) {
        return "<uuid>".to_owned();
    }
    if groups(word, ':', &[2; 6]) {
        return "<mac>".to_owned();
    }
    if word.len() >= 32 && hex(word) {
        return format!("<{} hex>", word.len());
    }
    if word.starts_with("203.0.113.") {
        return "<outer address>".to_owned();
    }
    // Keeps the format and replaces the digits.
    let year = word.get(..5).is_some_and(|year| year.starts_with("20") && year.ends_with('-'));
    if year && word.contains('T') {
        return word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    }
    if word.starts_with("gAAAAA") {
        return "<token>".to_owned();
    }
    word.to_owned()
}

/// The part of the catalog that clients read, by type: the common services of both clouds and their public endpoints.
/// The real cloud has additional services. In the simulator, the other interfaces have different paths, so that its
/// call log shows which was used. The URL of Keystone may end in its version or not.
fn catalog(world: &ClusterSnapshot, services: &[Value]) -> Value {
    let mut shown = Map::new();
    for service in services {
        let kind = service["type"].as_str().unwrap_or_default();
        if !["identity", "compute", "network", "load-balancer"].contains(&kind) {
            continue;
        }
        let mut service = normal_json(world, service);
        for endpoint in service["endpoints"].as_array_mut().into_iter().flatten() {
            let public = endpoint["interface"] == "public";
            endpoint["url"] = match endpoint["url"].as_str() {
                Some(url) if public => json!(url.trim_end_matches("/v3")),
                Some(_) => json!("text"),
                None => Value::Null,
            };
        }
        if let Some(list) = service["endpoints"].as_array_mut() {
            list.sort_by_key(Value::to_string);
        }
        shown.insert(kind.to_owned(), service);
    }
    Value::Object(shown)
}

fn normal_json(world: &ClusterSnapshot, value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(normal(world, text)),
        Value::Array(list) => list.iter().map(|entry| normal_json(world, entry)).collect(),
        Value::Object(fields) => {
            let mut normal_fields = Map::new();
            for (key, value) in fields {
                let mut value = match (key.as_str(), value) {
                    ("audit_ids", Value::Array(ids)) => json!(format!("{} audit ids", ids.len())),
                    // Null or false at random, inside a group; no client reads it.
                    ("belongs_to_default_sg", Value::Null) => json!(false),
                    // A number in the service's database.
                    ("standard_attr_id", Value::Number(_)) => json!("a number"),
                    // Neutron's later changes of a floating IP count, too.
                    ("revision_number", Value::Number(_)) if fields.contains_key("floating_ip_address") => {
                        json!("a number")
                    }
                    // Null until Octavia's worker starts, which may be before the answer.
                    ("updated_at", Value::Null)
                        if fields.get("provisioning_status") == Some(&json!("PENDING_CREATE")) =>
                    {
                        json!("0000-00-00T00:00:00")
                    }
                    // The member that is created with its load balancer and a health monitor has one or the other:
                    // Octavia asks whether the pool has a monitor, and the database session answers from an object
                    // without one until Python's garbage collection removes it.
                    ("operating_status", status)
                        if status == "NO_MONITOR"
                            && fields.get("address") == Some(&json!("10.8.0.201"))
                            && fields.get("protocol_port") == Some(&json!(30080)) =>
                    {
                        json!("OFFLINE")
                    }
                    ("catalog", Value::Array(services)) => catalog(world, services),
                    _ => normal_json(world, value),
                };
                if let (true, Value::Array(list)) = (SETS.contains(&key.as_str()), &mut value) {
                    list.sort_by_key(Value::to_string);
                }
                normal_fields.insert(normal(world, key), value);
            }
            Value::Object(normal_fields)
        }
        other => other.clone(),
    }
}

/// An answer as one document, without values that differ between the clouds.
pub(crate) fn document(world: &ClusterSnapshot, answer: &Answer) -> Value {
    let headers: BTreeMap<&str, String> = HEADERS
        .iter()
        .filter_map(|name| {
            let value = answer.headers.get(*name)?;
            let mut parts: Vec<&str> = value.split(", ").collect();
            if *name == "allow" {
                // A set.
                parts.sort_unstable();
            }
            Some((*name, normal(world, &parts.join(", "))))
        })
        .collect();
    let body = answer
        .json
        .as_ref()
        .map_or_else(|| json!(normal(world, &answer.text)), |json| normal_json(world, json));
    json!({"status": answer.status, "headers": headers, "body": body})
}

/// A difference between two documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) path: String,
    pub(crate) real: Option<Value>,
    pub(crate) simulated: Option<Value>,
}

/// The outermost differences of two documents.
pub(crate) fn differences(real: &Value, simulated: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", Some(real), Some(simulated), &mut found);
    found
}

fn walk(path: &str, real: Option<&Value>, simulated: Option<&Value>, found: &mut Vec<Difference>) {
    match (real, simulated) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                walk(&format!("{path}/{key}"), a.get(key), b.get(key), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                walk(&format!("{path}/{index}"), Some(a), Some(b), found);
            }
        }
        _ if real == simulated => {}
        _ => found.push(Difference {
            path: path.to_owned(),
            real: real.cloned(),
            simulated: simulated.cloned(),
        }),
    }
}
