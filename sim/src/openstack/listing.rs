//! Listings of Neutron and Octavia: filters, pages and the choice of fields, over the documents of the service.

use serde_json::{Map, Value};

use crate::http::Request;

/// An object as the service shows it.
pub(super) type ListedDocument = Map<String, Value>;

/// Parameters that the simulator does not have.
const UNSENT: [&str; 8] = [
    "sort",
    "sort_key",
    "sort_dir",
    "page_reverse",
    "tags",
    "tags-any",
    "not-tags",
    "not-tags-any",
];

/// Whether a listing uses parameters that the simulator does not have.
pub(super) fn is_unsupported(request: &Request) -> bool {
    UNSENT.iter().any(|name| request.last(name).is_some())
}

/// The query of a listing.
pub(super) struct Query<'a> {
    /// Filters by attribute; the values of one attribute are alternatives.
    pub(super) filters: Vec<(&'a str, Vec<&'a str>)>,
    /// The requested fields; empty: all. Unknown ones select nothing.
    fields: Vec<&'a str>,
    pub(super) limit: Option<&'a str>,
    pub(super) marker: Option<&'a str>,
}

impl<'a> Query<'a> {
    pub(super) fn new(request: &'a Request) -> Self {
        let mut query = Self {
            filters: Vec::new(),
            fields: Vec::new(),
            limit: None,
            marker: None,
        };
        for (name, value) in &request.params {
            let filter = query.filters.iter_mut().find(|(known, _)| known == name);
            match (name.as_str(), filter) {
                ("fields", _) => query.fields.push(value),
                ("limit", _) => query.limit = Some(value),
                ("marker", _) => query.marker = (!value.is_empty()).then_some(value),
                (_, Some((_, values))) => values.push(value),
                (name, None) => query.filters.push((name, vec![value])),
            }
        }
        query
    }

    /// Whether a document matches all filters.
    pub(super) fn matches(&self, document: &ListedDocument) -> bool {
        self.filters.iter().all(|(name, requested)| {
            let matches = |have: &Value| requested.iter().any(|requested| equals(have, requested));
            match document.get(*name) {
                Some(Value::Array(list)) => list.iter().any(matches),
                have => matches(have.unwrap_or(&Value::Null)),
            }
        })
    }

    /// The requested fields of a document.
    pub(super) fn choose(&self, mut document: ListedDocument) -> ListedDocument {
        if !self.fields.is_empty() {
            document.retain(|name, _| self.fields.contains(&name.as_str()));
        }
        document
    }
}

/// Whether an attribute has the value of a filter. The databases ignore case.
fn equals(have: &Value, requested: &str) -> bool {
    match have {
        Value::String(have) => have.eq_ignore_ascii_case(requested),
        Value::Bool(have) => is_true(requested) == *have,
        Value::Null => requested.is_empty(),
        // A part of a port's address, by its name.
        Value::Object(parts) => requested.split_once('=').is_some_and(|(name, requested)| {
            let part = parts.get(name);
            part.is_some_and(|have| equals(have, requested))
        }),
        other => serde_json::from_str::<Value>(requested).is_ok_and(|requested| requested == *other),
    }
}

/// Whether a text of a query means true.
pub(super) fn is_true(text: &str) -> bool {
    matches!(text.to_lowercase().as_str(), "true" | "t" | "yes" | "y" | "on" | "1")
}

/// The id of an object.
pub(super) fn id_of(document: &ListedDocument) -> &str {
    document.get("id").and_then(Value::as_str).unwrap_or_default()
}

/// Cuts a listing to the page after the object at `start - 1`.
pub(super) fn cut(documents: &mut Vec<ListedDocument>, start: usize, limit: usize) {
    documents.drain(..start.min(documents.len()));
    documents.truncate(limit);
}
