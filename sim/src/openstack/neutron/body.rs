//! Bodies of changing requests, checked as by Neutron: attribute by attribute.

use serde_json::{Map, Value};

use super::NeutronFault;
use crate::http::Request;
use crate::openstack::ids::is_uuid_like;
pub(super) use crate::openstack::python::python;

/// The type of an attribute's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum AttributeKind {
    Text,
    Uuid,
    UuidOrNull,
    AddressOrNull,
    Bool,
    List,
    /// Checked elsewhere.
    Other,
}

/// An attribute of a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute {
    pub(super) name: &'static str,
    kind: AttributeKind,
    create: bool,
    update: bool,
    required: bool,
}

const fn attribute(name: &'static str, kind: AttributeKind, create: bool, update: bool) -> Attribute {
    Attribute {
        name,
        kind,
        create,
        update,
        required: false,
    }
}

/// An attribute that can be set at any time.
pub(super) const fn free(name: &'static str, kind: AttributeKind) -> Attribute {
    attribute(name, kind, true, true)
}

/// An attribute that is only set at creation.
pub(super) const fn once(name: &'static str, kind: AttributeKind) -> Attribute {
    attribute(name, kind, true, false)
}

/// An attribute that is only set at creation, and is required.
pub(super) const fn needed(name: &'static str, kind: AttributeKind) -> Attribute {
    Attribute {
        required: true,
        ..once(name, kind)
    }
}

/// A read-only attribute.
pub(super) const fn shown(name: &'static str) -> Attribute {
    attribute(name, AttributeKind::Other, false, false)
}

/// A request's body.
pub(super) fn document(request: &Request) -> Result<Value, NeutronFault> {
    if request.body.is_empty() {
        return Err(NeutronFault::http_bad_request("Resource body required"));
    }
    serde_json::from_slice(&request.body).map_err(|_| {
        NeutronFault::new(
            http::StatusCode::BAD_REQUEST,
            "MalformedRequestBody",
            "Malformed request body: Cannot understand JSON.",
        )
    })
}

/// The attributes in a request's body.
pub(super) fn resource(
    request: &Request,
    singular: &str,
    attributes: &[Attribute],
    creating: bool,
) -> Result<Map<String, Value>, NeutronFault> {
    let document = document(request)?;
    let Some(fields) = document.get(singular).and_then(Value::as_object) else {
        return Err(NeutronFault::http_bad_request(format!("Unable to find '{singular}' in request body")));
    };
    let find = |name: &str| attributes.iter().find(|attribute| attribute.name == name);
    let unknown: Vec<&str> = fields
        .keys()
        .map(String::as_str)
        .filter(|name| find(name).is_none() && !matches!(*name, "tenant_id" | "project_id"))
        .collect();
    if !unknown.is_empty() {
        return Err(NeutronFault::http_bad_request(format!(
            "Unrecognized attribute(s) '{}'",
            unknown.join(", ")
        )));
    }
    if creating
        && let Some(missing) = attributes
            .iter()
            .find(|attribute| attribute.required && !fields.contains_key(attribute.name))
    {
        return Err(NeutronFault::http_bad_request(format!(
            "Failed to parse request. Required attribute '{}' not specified",
            missing.name
        )));
    }
    for (name, value) in fields {
        let Some(attribute) = find(name) else {
            continue;
        };
        if creating && !attribute.create {
            return Err(NeutronFault::http_bad_request(format!("Attribute '{name}' not allowed in POST")));
        }
        if !creating && !attribute.update {
            return Err(NeutronFault::http_bad_request(format!("Cannot update read-only attribute {name}")));
        }
        check(attribute, value)?;
    }
    Ok(fields.clone())
}

fn check(attribute: &Attribute, value: &Value) -> Result<(), NeutronFault> {
    let uuid = |value: &Value| value.as_str().is_some_and(is_uuid_like);
    let address = |value: &Value| {
        let text = value.as_str().unwrap_or_default();
        text.parse::<std::net::IpAddr>().is_ok()
    };
    let reason = match attribute.kind {
        AttributeKind::Text if !value.is_string() => format!("'{}' is not a valid string.", python(value)),
        AttributeKind::Uuid if !uuid(value) => format!("'{}' is not a valid UUID.", python(value)),
        AttributeKind::UuidOrNull if !value.is_null() && !uuid(value) => {
            format!("'{}' is not a valid UUID.", python(value))
        }
        AttributeKind::AddressOrNull if !value.is_null() && !address(value) => {
            format!("'{}' is not a valid IP address.", python(value))
        }
        AttributeKind::Bool if !value.is_boolean() => {
            format!("'{}' cannot be converted to boolean.", python(value))
        }
        AttributeKind::List if !value.is_array() => format!("'{}' is not a list.", python(value)),
        _ => return Ok(()),
    };
    Err(invalid(attribute.name, &reason))
}

/// The fault of an invalid value.
pub(super) fn invalid(name: &str, reason: &str) -> NeutronFault {
    NeutronFault::http_bad_request(format!("Invalid input for {name}. Reason: {reason}"))
}

/// A text attribute, if it is given.
pub(super) fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str)
}
