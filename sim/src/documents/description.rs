//! The published description of a cloud's API (OpenAPI 3.0): its operations, and checks of requests and answers.

use std::collections::HashMap;

use http::{HeaderMap, Method};
use regex::Regex;
use serde_json::{Map, Value, json};

/// A described API.
#[derive(Debug)]
pub(crate) struct Description {
    root: Value,
    operations: Vec<Operation>,
    patterns: HashMap<String, Regex>,
}

/// An operation of a described API.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The operation's id in the description.
    pub(crate) name: String,
    method: Method,
    /// Segments of the path; those in braces stand for parameters.
    path: Vec<String>,
    document: Value,
}

/// Keywords of schemas that say nothing about validity, or nothing that is checked.
const SILENT: &str = "default description example format readOnly title";
/// Keywords that are checked.
const CHECKED: &str = "$ref type nullable properties required additionalProperties items minItems enum minimum maximum \
                       multipleOf maxLength pattern allOf anyOf oneOf";

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// What is wrong with it: no JSON, a pattern that cannot be compiled, a keyword that is not known.
    #[cfg(test)]
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with_gaps(text, &[])
    }

    /// Reads a description with gaps: lists of choices by their JSON pointers, each with a value that the service accepts in
    /// addition.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), and if there is no such list.
    pub(crate) fn parse_with_gaps(text: &str, gaps: &[(&str, &str)]) -> Result<Self, String> {
        let mut root: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for (pointer, value) in gaps {
            let choices = root.pointer_mut(pointer).and_then(Value::as_array_mut);
            choices
                .ok_or_else(|| format!("there is no list {pointer}"))?
                .push(json!(value));
        }
        let mut operations = Vec::new();
        for (path, methods) in object(&root, "/paths") {
            for (method, document) in methods.as_object().into_iter().flatten() {
                let name = document.get("operationId").and_then(Value::as_str);
                let method = method.to_uppercase().parse::<Method>();
                let (Some(name), Ok(method)) = (name, method) else {
                    continue;
                };
                operations.push(Operation {
                    name: name.to_owned(),
                    method,
                    path: crate::http::segments(path),
                    document: document.clone(),
                });
            }
        }
        let mut patterns = HashMap::new();
        for schema in object(&root, "/components/schemas").values() {
            read_schema(schema, &mut patterns)?;
        }
        read_inline(&root, &mut patterns)?;
        Ok(Self {
            root,
            operations,
            patterns,
        })
    }

    /// The operation of a request, with the path's parameters.
    pub(crate) fn find(&self, method: &Method, path: &[String]) -> Option<(&Operation, Vec<String>)> {
        let of_path = |operation: &Operation| {
            let segments = operation.path.iter().zip(path);
            (operation.path.len() == path.len() && operation.method == method).then_some(())?;
            let mut params = Vec::new();
            for (pattern, segment) in segments {
                match pattern.starts_with('{') {
                    true if !segment.is_empty() => params.push(segment.clone()),
                    false if pattern == segment => {}
                    _ => return None,
                }
            }
            Some(params)
        };
        self.operations
            .iter()
            .find_map(|operation| Some((operation, of_path(operation)?)))
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
        let names = operation.path.iter().filter(|segment| segment.starts_with('{'));
        let in_path: Vec<(&str, &str)> = names
            .map(|name| name.trim_matches(['{', '}']))
            .zip(path.iter().map(String::as_str))
            .collect();
        let params = list(&operation.document, "parameters");
        for param in params.map(|param| self.resolve(param)) {
            let text = |key: &str| param.get(key).and_then(Value::as_str).unwrap_or_default();
            let name = text("name");
            let value = match text("in") {
                "path" => in_path
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| *value),
                "query" => query
                    .iter()
                    .rev()
                    .find(|(known, _)| known == name)
                    .map(|(_, value)| value.as_str()),
                _ => continue,
            };
            let schema = param.get("schema").unwrap_or(&Value::Null);
            match value {
                Some(value) => self.check(schema, &typed(self.resolve(schema), value), name)?,
                None if param.get("required") == Some(&json!(true)) => {
                    return Err(format!("{name} is required"));
                }
                None => {}
            }
        }
        match operation
            .document
            .get("requestBody")
            .map(|body| self.resolve(body))
        {
            Some(wanted) if !body.is_null() || wanted.get("required") == Some(&json!(true)) => {
                self.check(json_schema(wanted), body, "body")
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
        let described = operation.document.get("responses");
        let find = |key: &str| described.and_then(|described| described.get(key));
        let response = find(&status.to_string()).or_else(|| find("default").filter(|_| status >= 400));
        let response = self.resolve(response.ok_or_else(|| format!("status {status} is not described"))?);
        let needed = response
            .get("headers")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        for (name, _) in needed.filter(|(name, _)| *name != "content-type") {
            if !headers.contains_key(name.as_str()) {
                return Err(format!("header {name} is missing"));
            }
        }
        match (json_schema(response), body) {
            (Value::Null, None) => Ok(()),
            (Value::Null, Some(_)) => Err("a body is not described".to_owned()),
            (schema, body) => self.check(schema, body.unwrap_or(&Value::Null), "body"),
        }
    }

    /// What a reference points to.
    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        let reference = value.get("$ref").and_then(Value::as_str);
        match reference.and_then(|reference| self.root.pointer(reference.trim_start_matches('#'))) {
            Some(found) => self.resolve(found),
            None => value,
        }
    }

    fn check(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let schema = self.resolve(schema);
        if value.is_null() && schema.get("nullable") == Some(&json!(true)) {
            return Ok(());
        }
        let each = |key: &str| list(schema, key).map(|schema| self.check(schema, value, at));
        each("allOf").collect::<Result<(), String>>()?;
        for (key, most) in [("anyOf", usize::MAX), ("oneOf", 1)] {
            let matching = each(key).filter(Result::is_ok).count();
            if schema.get(key).is_some() && (matching == 0 || matching > most) {
                let reason = each(key).find_map(Result::err).unwrap_or_default();
                return Err(format!("{at} matches {matching} of {key}: {reason}"));
            }
        }
        let wrong = |what: &str, wanted: &Value| Err(format!("{at} violates {what} {wanted}: {value}"));
        if let Some(kind) = schema.get("type")
            && !is_of_type(value, kind.as_str().unwrap_or_default())
        {
            return wrong("type", kind);
        }
        if let Some(choices) = schema.get("enum")
            && !list(schema, "enum").any(|choice| choice == value)
        {
            return wrong("enum", choices);
        }
        let limit = |key: &str| schema.get(key).and_then(|limit| Some((limit, limit.as_f64()?)));
        let length = value.as_str().map(|text| text.chars().count() as f64);
        let count = value.as_array().map(|list| list.len() as f64);
        for (key, have, fits) in [
            (
                "minimum",
                value.as_f64(),
                (|have, limit| have >= limit) as fn(f64, f64) -> bool,
            ),
            ("maximum", value.as_f64(), |have, limit| have <= limit),
            ("multipleOf", value.as_f64(), |have, limit| have % limit == 0.0),
            ("maxLength", length, |have, limit| have <= limit),
            ("minItems", count, |have, limit| have >= limit),
        ] {
            if let (Some((wanted, limit)), Some(have)) = (limit(key), have)
                && !fits(have, limit)
            {
                return wrong(key, wanted);
            }
        }
        if let (Some(pattern), Some(text)) = (schema.get("pattern"), value.as_str())
            && let Some(regex) = self.patterns.get(pattern.as_str().unwrap_or_default())
            && !regex.is_match(text)
        {
            return wrong("pattern", pattern);
        }
        if let (Some(items), Some(list)) = (schema.get("items"), value.as_array()) {
            for (index, item) in list.iter().enumerate() {
                self.check(items, item, &format!("{at}[{index}]"))?;
            }
        }
        let Some(fields) = value.as_object() else {
            return Ok(());
        };
        if let Some(missing) = list(schema, "required")
            .filter_map(Value::as_str)
            .find(|name| !fields.contains_key(*name))
        {
            return Err(format!("{at}.{missing} is required"));
        }
        let properties = schema.get("properties");
        for (name, value) in fields {
            let property = properties.and_then(|properties| properties.get(name));
            let property = property.or_else(|| schema.get("additionalProperties"));
            match property {
                Some(Value::Bool(false)) => return Err(format!("{at}.{name} is not described")),
                Some(property) => self.check(property, value, &format!("{at}.{name}"))?,
                None => {}
            }
        }
        Ok(())
    }
}

/// Compiles the patterns of the schemas inside parameters, bodies and answers.
fn read_inline(value: &Value, patterns: &mut HashMap<String, Regex>) -> Result<(), String> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| match name.as_str() {
            "schema" => read_schema(value, patterns),
            // These are schemas by their names.
            "schemas" => Ok(()),
            _ => read_inline(value, patterns),
        }),
        Value::Array(list) => list.iter().try_for_each(|value| read_inline(value, patterns)),
        _ => Ok(()),
    }
}

/// Compiles the patterns of a schema.
///
/// # Errors
/// A keyword that [`Description`] does not know, since what it demands would not be checked.
fn read_schema(schema: &Value, patterns: &mut HashMap<String, Regex>) -> Result<(), String> {
    let is_known = |name: &str| {
        CHECKED
            .split(' ')
            .chain(SILENT.split(' '))
            .any(|known| known == name)
    };
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        match keyword.as_str() {
            "pattern" => {
                let pattern = value.as_str().unwrap_or_default();
                let regex = Regex::new(pattern).map_err(|error| error.to_string())?;
                patterns.insert(pattern.to_owned(), regex);
            }
            "properties" => {
                for schema in value.as_object().into_iter().flat_map(Map::values) {
                    read_schema(schema, patterns)?;
                }
            }
            "items" | "additionalProperties" => read_schema(value, patterns)?,
            "allOf" | "anyOf" | "oneOf" => {
                for schema in value.as_array().into_iter().flatten() {
                    read_schema(schema, patterns)?;
                }
            }
            name if !is_known(name) => return Err(format!("unknown keyword {name} in a schema")),
            _ => {}
        }
    }
    Ok(())
}

fn object<'a>(root: &'a Value, pointer: &str) -> &'a Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    root.pointer(pointer).and_then(Value::as_object).unwrap_or(&EMPTY)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// The schema of a JSON body; null if there is none.
fn json_schema(content: &Value) -> &Value {
    content
        .pointer("/content/application~1json/schema")
        .unwrap_or(&Value::Null)
}

/// A parameter's text as a value of its type, if it is one.
fn typed(schema: &Value, text: &str) -> Value {
    let is_text = schema.get("type").is_none_or(|kind| kind == "string");
    let value = serde_json::from_str(text).ok().filter(|_| !is_text);
    value.unwrap_or_else(|| json!(text))
}

fn is_of_type(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => false,
    }
}
