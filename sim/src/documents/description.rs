//! The published description of a cloud's API (OpenAPI 3.0): its operations, and checks of requests and answers.
//!
//! The `jsonschema` crate checks JSON Schema. OpenAPI 3.0 differs in one keyword, `nullable`, which is rewritten.
//! Requests are checked more strictly than described: an unknown field or parameter is a violation, since a misspelled
//! name has neither an effect nor an error.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, Method};
use jsonschema::{Draft, ValidationError, Validator, error::ValidationErrorKind as Kind};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// A value that the service accepts or returns and its description lacks. The JSON pointer is that of a list of choices
/// with another choice, or of a map of fields with another field and its schema.
pub(crate) type Gap = (&'static str, &'static str);

/// A described API.
#[derive(Debug)]
pub(crate) struct Description {
    operations: Vec<Operation>,
    requests: Schemas,
    answers: Schemas,
}

/// An operation of a described API.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The operation's id in the description.
    pub(crate) name: String,
    method: Method,
    /// Segments of the path; those in braces are parameters.
    path: Vec<String>,
    /// The JSON pointer of the operation.
    pointer: String,
}

impl Operation {
    /// The parameters in a path; `None` if the path is that of another operation.
    fn params(&self, path: &[String]) -> Option<Vec<String>> {
        if self.path.len() != path.len() {
            return None;
        }
        let mut params = Vec::new();
        for (pattern, segment) in self.path.iter().zip(path) {
            if pattern.starts_with('{') && !segment.is_empty() {
                params.push(segment.clone());
            } else if pattern != segment || pattern.starts_with('{') {
                return None;
            }
        }
        Some(params)
    }
}

impl Description {
    /// Reads a description with gaps.
    ///
    /// # Errors
    /// If it is not JSON, or the location of a gap does not exist.
    pub(crate) fn parse(text: &str, gaps: &[Gap]) -> Result<Self, String> {
        let mut root: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (pointer, addition) in gaps {
            match root.pointer_mut(pointer) {
                Some(Value::Array(choices)) => choices.push(json!(addition)),
                Some(Value::Object(fields)) => {
                    fields.insert((*addition).to_owned(), json!({}));
                }
                _ => return Err(format!("there is no list or map {pointer}")),
            }
        }
        let mut operations = Vec::new();
        let paths = root.get("paths").and_then(Value::as_object);
        for (path, methods) in paths.into_iter().flatten() {
            for (method, document) in methods.as_object().into_iter().flatten() {
                let name = document.get("operationId").and_then(Value::as_str);
                let upper = method.to_uppercase().parse::<Method>();
                let (Some(name), Ok(upper)) = (name, upper) else {
                    continue;
                };
                operations.push(Operation {
                    name: name.to_owned(),
                    method: upper,
                    path: crate::http::segments(path),
                    pointer: format!("/paths/{}/{method}", escaped(path)),
                });
            }
        }
        rewrite_nullable(&mut root);
        let mut closed = root.clone();
        close(&mut closed);
        Ok(Self {
            operations,
            requests: Schemas::new(closed),
            answers: Schemas::new(root),
        })
    }

    /// The operation of a request, with the path's parameters.
    pub(crate) fn find(&self, method: &Method, path: &[String]) -> Option<(&Operation, Vec<String>)> {
        self.operations
            .iter()
            .filter(|operation| operation.method == method)
            .find_map(|operation| Some((operation, operation.params(path)?)))
    }

    /// An operation by its name.
    pub(crate) fn operation(&self, name: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.name == name)
    }

    /// Checks the parameters and the body of a request.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_request(
        &self,
        operation: &Operation,
        path: &[String],
        query: &[(String, String)],
        body: &Value,
    ) -> Result<(), String> {
        let schemas = &self.requests;
        let names = operation
            .path
            .iter()
            .filter(|segment| segment.starts_with('{'))
            .map(|name| name.trim_matches(['{', '}']));
        let mut given: HashMap<(&str, &str), &str> = HashMap::new();
        given.extend(names.zip(path).map(|(name, value)| (("path", name), value.as_str())));
        given.extend(query.iter().map(|(name, value)| (("query", name.as_str()), value.as_str())));
        let params = schemas.list(format!("{}/parameters", operation.pointer));
        for param in params {
            let text = |field: &str| schemas.at(&format!("{param}/{field}")).as_str().unwrap_or_default();
            let (place, name) = (text("in"), text("name"));
            let schema = schemas.follow(format!("{param}/schema"));
            match given.remove(&(place, name)) {
                Some(value) => schemas.check(&schema, &typed(schemas.at(&schema), value), name)?,
                None if *schemas.at(&format!("{param}/required")) == json!(true) => {
                    return Err(format!("{name} is required"));
                }
                None => {}
            }
        }
        if let Some((_, name)) = given.keys().find(|(place, _)| *place == "query") {
            return Err(format!("parameter {name} is not described"));
        }
        let requested = schemas.follow(format!("{}/requestBody", operation.pointer));
        match schemas.json(&requested) {
            Some(schema)
                if !body.is_null() || *schemas.at(&format!("{requested}/required")) == json!(true) =>
            {
                schemas.check(&schema, body, "body")
            }
            _ => Ok(()),
        }
    }

    /// Checks an answer: its status, the headers that it needs, and its body.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_answer(
        &self,
        operation: &Operation,
        status: u16,
        headers: &HeaderMap,
        body: Option<&Value>,
    ) -> Result<(), String> {
        let schemas = &self.answers;
        let mut pointer = format!("{}/responses/{status}", operation.pointer);
        if schemas.at(&pointer).is_null() && status >= 400 {
            pointer = format!("{}/responses/default", operation.pointer);
        }
        if schemas.at(&pointer).is_null() {
            return Err(format!("status {status} is not described"));
        }
        let response = schemas.follow(pointer);
        let described = schemas.at(&format!("{response}/headers")).as_object();
        for name in described.into_iter().flat_map(Map::keys) {
            if name != "content-type" && !headers.contains_key(name.as_str()) {
                return Err(format!("header {name} is missing"));
            }
        }
        match (schemas.json(&response), body) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err("a body is not described".to_owned()),
            (Some(schema), body) => schemas.check(&schema, body.unwrap_or(&Value::Null), "body"),
        }
    }
}

/// A description whose schemas are compiled when they are needed. Locations are JSON pointers.
#[derive(Debug)]
struct Schemas {
    root: Value,
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Schemas {
    fn new(root: Value) -> Self {
        Self {
            root,
            validators: Mutex::default(),
        }
    }

    /// The value at a location; null if there is none.
    fn at(&self, pointer: &str) -> &Value {
        self.root.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// Follows a reference at this location, if there is one.
    fn follow(&self, pointer: String) -> String {
        match self.at(&format!("{pointer}/$ref")).as_str() {
            Some(reference) => self.follow(reference.trim_start_matches('#').to_owned()),
            None => pointer,
        }
    }

    /// The locations of the items of a list.
    fn list(&self, pointer: String) -> impl Iterator<Item = String> {
        let count = self.at(&pointer).as_array().map_or(0, Vec::len);
        (0..count).map(move |index| self.follow(format!("{pointer}/{index}")))
    }

    /// The schema of the JSON body of a request or an answer.
    fn json(&self, content: &str) -> Option<String> {
        let pointer = format!("{content}/content/application~1json/schema");
        (!self.at(&pointer).is_null()).then_some(pointer)
    }

    fn check(&self, schema: &str, value: &Value, at: &str) -> Result<(), String> {
        let validator = self.validator(schema)?;
        // If there are other errors, no field counts as described.
        let errors = validator.iter_errors(value);
        let is_secondary =
            |error: &ValidationError<'_>| matches!(error.kind(), Kind::UnevaluatedProperties { .. });
        let first = errors.min_by_key(is_secondary);
        first.map_or(Ok(()), |error| Err(format!("{at}{}", reason(&error))))
    }

    fn validator(&self, pointer: &str) -> Result<Arc<Validator>, String> {
        let mut known = self.validators.lock();
        if let Some(validator) = known.get(pointer) {
            return Ok(Arc::clone(validator));
        }
        // References in it point to the rest of the description.
        let mut schema = self.root.clone();
        let escaped = pointer.replace('{', "%7B").replace('}', "%7D");
        schema["$ref"] = json!(format!("#{escaped}"));
        let options = jsonschema::options().with_draft(Draft::Draft202012);
        let validator = Arc::new(options.build(&schema).map_err(|error| error.to_string())?);
        known.insert(pointer.to_owned(), Arc::clone(&validator));
        Ok(validator)
    }
}

/// The location and text of an error. If all alternatives fail, the error of the first one counts.
fn reason(error: &ValidationError<'_>) -> String {
    match error.kind() {
        Kind::AnyOf { context } | Kind::OneOfNotValid { context } => {
            let first = context.iter().flatten().next();
            first.map_or_else(|| error.to_string(), reason)
        }
        _ => format!("{}: {error}", error.instance_path()),
    }
}

/// Rewrites OpenAPI's `nullable: true` to JSON Schema.
fn rewrite_nullable(value: &mut Value) {
    for value in children(value) {
        rewrite_nullable(value);
    }
    if value.get("nullable") == Some(&json!(true)) {
        let schema = value.take();
        *value = json!({"anyOf": [schema, {"type": "null"}]});
    }
}

/// Turns fields that no schema describes into violations, in bodies and nested objects.
fn close(value: &mut Value) {
    for value in children(value) {
        close(value);
    }
    let Some(fields) = value.as_object_mut() else {
        return;
    };
    for (name, value) in fields {
        match name.as_str() {
            "properties" => children(value).into_iter().for_each(refuse_other_properties),
            "items" | "schema" => refuse_other_properties(value),
            _ => {}
        }
    }
}

fn refuse_other_properties(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("unevaluatedProperties".to_owned(), json!(false));
    }
}

fn children(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Object(fields) => fields.values_mut().collect(),
        Value::Array(list) => list.iter_mut().collect(),
        _ => Vec::new(),
    }
}

/// Escapes a name for a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A parameter's text as a value of its type, if possible.
fn typed(schema: &Value, text: &str) -> Value {
    let is_text = schema.get("type").is_none_or(|kind| kind == "string");
    match serde_json::from_str(text) {
        Ok(value) if !is_text => value,
        _ => json!(text),
    }
}
