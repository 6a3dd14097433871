//! Bodies of requests, checked against types like in Octavia's framework, with its words.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::OctaviaFault;
pub(super) use crate::openstack::python::python;

/// The type of an attribute's value.
pub(super) enum Type {
    /// A text with a maximum length in characters.
    Text(usize),
    Texts,
    Bool,
    Integer(Option<i64>, Option<i64>),
    Uuid,
    Address,
    Cidrs,
    OneOf(Vec<&'static str>),
    Headers,
    UrlPath,
    Codes,
    One(Vec<Attr>),
    Many(Vec<Attr>),
}

/// An attribute.
pub(super) struct Attr {
    name: &'static str,
    kind: Type,
    default: Option<Value>,
    mandatory: bool,
    /// Minor number of the version of the API that introduced it.
    since: u32,
}

pub(super) fn attr(name: &'static str, kind: Type) -> Attr {
    Attr {
        name,
        kind,
        default: None,
        mandatory: false,
        since: 0,
    }
}

impl Attr {
    pub(super) fn or(mut self, default: Value) -> Self {
        self.default = Some(default);
        self
    }

    pub(super) fn mandatory(mut self) -> Self {
        self.mandatory = true;
        self
    }

    pub(super) fn since(mut self, minor: u32) -> Self {
        self.since = minor;
        self
    }

    /// For a change, to which no defaults are added.
    pub(super) fn bare(mut self) -> Self {
        self.default = None;
        self.mandatory = false;
        self
    }
}

/// Why a document is invalid.
enum Misfit {
    /// Unknown attributes, and their location.
    Unknown(String, Vec<String>),
    /// An attribute with an invalid value.
    Invalid(&'static str, String, String),
    /// A value that cannot be parsed; the framework then repeats the whole document.
    Nonsense(String),
    /// A value that makes the framework fail unexpectedly.
    Stumble(String),
}

type Fit<T> = Result<T, Misfit>;

/// The attributes below `root` in a body that the framework calls `argument`.
pub(super) fn parse(
    body: &[u8],
    argument: &str,
    root: &'static str,
    kind: Type,
    minor: u32,
) -> Result<Value, OctaviaFault> {
    if body.is_empty() {
        return Err(OctaviaFault::client(format!("Missing argument: \"{argument}\"")));
    }
    let document: Value = serde_json::from_slice(body)
        .map_err(|_| OctaviaFault::client("Request is not in valid JSON format"))?;
    let attrs = [attr(root, kind)];
    let fields = match object(&attrs, &document, minor) {
        Ok(fields) => fields,
        Err(Misfit::Unknown(path, names)) => {
            let path = format!("{argument}{path}");
            let s = if names.len() > 1 { "s" } else { "" };
            return Err(OctaviaFault::client(format!(
                "Unknown attribute{s} for argument {path}: {}",
                names.join(", ")
            )));
        }
        Err(Misfit::Invalid(name, value, message)) => {
            return Err(OctaviaFault::client(format!(
                "Invalid input for field/attribute {name}. Value: '{value}'. {message}"
            )));
        }
        Err(Misfit::Nonsense(message)) => {
            let document = python(&document);
            return Err(OctaviaFault::client(format!(
                "Invalid input for field/attribute {argument}. Value: '{document}'. {message}"
            )));
        }
        Err(Misfit::Stumble(message)) => return Err(OctaviaFault::server(message)),
    };
    match fields.get(root) {
        Some(found) => Ok(found.clone()),
        None => Err(stumble("UnsetType", argument)),
    }
}

/// Octavia's error if the document in the body is missing.
pub(super) fn stumble(kind: &str, argument: &str) -> OctaviaFault {
    let first = match argument {
        "listener_" | "pool_" => "loadbalancer_id",
        "health_monitor_" => "pool_id",
        _ => "project_id",
    };
    OctaviaFault::server(format!("'{kind}' object has no attribute '{first}'"))
}

fn object(attrs: &[Attr], value: &Value, minor: u32) -> Fit<Map<String, Value>> {
    let Some(given) = value.as_object() else {
        let kind = kind_name(value);
        return Err(Misfit::Stumble(format!("'{kind}' object has no attribute 'keys'")));
    };
    let mut unknown: Vec<String> = given.keys().cloned().collect();
    unknown.retain(|name| !attrs.iter().any(|attr| attr.name == name && attr.since <= minor));
    if !unknown.is_empty() {
        return Err(Misfit::Unknown(String::new(), unknown));
    }
    let mut fields = Map::new();
    for attr in attrs {
        match given.get(attr.name) {
            Some(value) => {
                fields.insert(attr.name.to_owned(), fit(attr, value, minor)?);
            }
            None if attr.mandatory => {
                return Err(Misfit::Invalid(
                    attr.name,
                    "None".to_owned(),
                    "Mandatory field missing.".to_owned(),
                ));
            }
            None => {
                if let Some(default) = &attr.default {
                    fields.insert(attr.name.to_owned(), default.clone());
                }
            }
        }
    }
    Ok(fields)
}

fn fit(attr: &Attr, value: &Value, minor: u32) -> Fit<Value> {
    if value.is_null() {
        return Ok(Value::Null);
    }
    let invalid = |message: &str| Misfit::Invalid(attr.name, python(value), message.to_owned());
    let below = |misfit: Misfit| match misfit {
        Misfit::Unknown(path, names) => Misfit::Unknown(format!(".{}{path}", attr.name), names),
        other => other,
    };
    match &attr.kind {
        Type::Text(max) => text(value, *max).map_err(|message| invalid(&message)),
        Type::Texts => list(value)?
            .iter()
            .map(|entry| text(entry, 255).map_err(|message| invalid(&message)))
            .collect(),
        Type::Bool => boolean(value),
        Type::Integer(min, max) => {
            let number = integer(value)?;
            match (min, max) {
                (Some(min), _) if number < *min => {
                    Err(invalid(&format!("Value should be greater or equal to {min}")))
                }
                (_, Some(max)) if number > *max => {
                    Err(invalid(&format!("Value should be lower or equal to {max}")))
                }
                _ => Ok(json!(number)),
            }
        }
        Type::Uuid => uuid(value).ok_or_else(|| invalid("Value should be UUID format")),
        Type::Address => address(value).ok_or_else(|| invalid("Value should be IPv4 or IPv6 format")),
        Type::Cidrs => list(value)?
            .iter()
            .map(|entry| cidr(entry).ok_or_else(|| invalid("Value should be IPv4 or IPv6 CIDR format")))
            .collect(),
        Type::OneOf(choices) => {
            let known = value.as_str().is_some_and(|text| choices.contains(&text));
            if known {
                Ok(value.clone())
            } else {
                Err(invalid(&format!("Value should be one of: {}", choices.join(", "))))
            }
        }
        Type::Headers => {
            let Some(headers) = value.as_object() else {
                return Err(Misfit::Nonsense(format!("Value not a valid dict: {}", python(value))));
            };
            for header in headers.values() {
                text(header, 255).map_err(|message| invalid(&message))?;
            }
            Ok(value.clone())
        }
        Type::UrlPath => {
            let path = value.as_str().unwrap_or_default();
            let good =
                path.starts_with('/') && !path.starts_with("//") && !path.contains(char::is_whitespace);
            if good {
                Ok(value.clone())
            } else {
                Err(invalid("Value must be a valid URL Path string"))
            }
        }
        Type::Codes => {
            if value.as_str().is_some_and(are_codes) {
                Ok(value.clone())
            } else {
                let pattern = r"^(\d{3}(\s*,\s*\d{3})*)$|^(\d{3}-\d{3})$";
                Err(invalid(&format!("Value should match the pattern {pattern}")))
            }
        }
        Type::One(attrs) => object(attrs, value, minor).map(Value::Object).map_err(below),
        Type::Many(attrs) => list(value)?
            .iter()
            .map(|entry| object(attrs, entry, minor).map(Value::Object).map_err(below))
            .collect(),
    }
}

fn list(value: &Value) -> Fit<&Vec<Value>> {
    value
        .as_array()
        .ok_or_else(|| Misfit::Nonsense(format!("Value not a valid list: {}", python(value))))
}

fn text(value: &Value, max: usize) -> Result<Value, String> {
    let text = value.as_str().ok_or("Value should be string")?;
    if text.chars().count() > max {
        return Err(format!("Value should have a maximum character requirement of {max}"));
    }
    Ok(value.clone())
}

fn boolean(value: &Value) -> Fit<Value> {
    let nonsense = || Misfit::Nonsense(format!("Value not an unambiguous boolean: {}", python(value)));
    match value {
        Value::Bool(_) => Ok(value.clone()),
        Value::Number(number) if number.is_i64() => Ok(json!(number.as_i64() != Some(0))),
        Value::String(text) => match text.as_str() {
            "true" | "t" | "yes" | "y" | "on" | "1" => Ok(json!(true)),
            "false" | "f" | "no" | "n" | "off" | "0" => Ok(json!(false)),
            _ => Err(nonsense()),
        },
        _ => Err(nonsense()),
    }
}

fn integer(value: &Value) -> Fit<i64> {
    match value {
        Value::Bool(truth) => Ok(i64::from(*truth)),
        // Numbers beyond these bounds are beyond all others, too.
        Value::Number(number) => {
            Ok(number.as_i64().or_else(|| number.as_f64().map(|float| float as i64)).unwrap_or(i64::MAX))
        }
        Value::String(text) => text
            .trim()
            .parse()
            .map_err(|_| Misfit::Nonsense(format!("invalid literal for int() with base 10: '{text}'"))),
        other => Err(Misfit::Stumble(format!(
            "int() argument must be a string, a bytes-like object or a real number, not '{}'",
            kind_name(other)
        ))),
    }
}

fn uuid(value: &Value) -> Option<Value> {
    let digits = value.as_str()?.replace('-', "");
    let uuid = Uuid::try_parse(&digits).ok()?;
    Some(json!(uuid.to_string()))
}

fn address(value: &Value) -> Option<Value> {
    value.as_str()?.parse::<IpAddr>().ok().map(|_| value.clone())
}

fn cidr(value: &Value) -> Option<Value> {
    let text = value.as_str()?;
    let net = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().ok()?,
    };
    Some(json!(net.trunc()))
}

/// Three digits, a list of such codes, or a range.
fn are_codes(text: &str) -> bool {
    let code = |code: &str| code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('-').is_some_and(|(low, high)| code(low) && code(high))
        || text.split(',').enumerate().all(|(at, part)| {
            let trimmed = if at == 0 { part.trim_end() } else { part.trim() };
            code(trimmed)
        }) && !text.ends_with(char::is_whitespace)
}

fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}
