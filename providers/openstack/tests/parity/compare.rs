//! What two answers have to have in common, and what not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::http::Answer;
use crate::world::World;

/// The headers that a client may go by.
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

/// Lists whose order means nothing.
const SETS: &[&str] = &["catalog", "endpoints", "roles", "resources", "versions", "values"];

/// Words that stand for what is different in each cloud: everything that the world knows by name, and what has the
/// form of an id, a time, a physical address or a token.
fn normal(world: &World, text: &str) -> String {
    let mut known: Vec<(&str, &str)> = world.vars.iter().map(|(name, value)| (*name, value.as_str())).collect();
    // The longest first: one may be part of another.
    known.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
    let mut text = text.to_owned();
    for (name, value) in known {
        text = text.replace(value, &format!("<{name}>"));
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
    // In its own format, with nothing but the digits gone.
    let year = word.get(..5).is_some_and(|year| year.starts_with("20") && year.ends_with('-'));
    if year && word.contains('T') {
        return word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    }
    if word.starts_with("gAAAAA") {
        return "<token>".to_owned();
    }
    if word.len() == 22 && word.chars().any(|c| c.is_ascii_uppercase()) && !word.contains('.') {
        return "<audit id>".to_owned();
    }
    word.to_owned()
}

fn normal_json(world: &World, value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(normal(world, text)),
        Value::Array(list) => list.iter().map(|entry| normal_json(world, entry)).collect(),
        Value::Object(fields) => {
            let mut normal_fields = Map::new();
            for (key, value) in fields {
                let mut value = normal_json(world, value);
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

/// An answer as one document, free of what differs from cloud to cloud.
pub(crate) fn document(world: &World, answer: &Answer) -> Value {
    let headers: BTreeMap<&str, String> = HEADERS
        .iter()
        .filter_map(|name| Some((*name, normal(world, answer.headers.get(*name)?))))
        .collect();
    let body = answer
        .json
        .as_ref()
        .map_or_else(|| json!(normal(world, &answer.text)), |json| normal_json(world, json));
    json!({"status": answer.status, "headers": headers, "body": body})
}

/// A place where two documents differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) path: String,
    pub(crate) real: Option<Value>,
    pub(crate) simulated: Option<Value>,
}

/// Where two documents differ, the outermost places only.
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
