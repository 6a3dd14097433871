//! Manifests: the Services of type LoadBalancer in a file, and the problems of their form.

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    check::{Field, Finding, Place, Severity},
    config::{
        KeyCase, Position,
        yaml::{self, MappingEntry, Node, Value},
    },
    controllers::ServiceObject,
    load_balancer::ServiceView,
};
use serde::Serialize;
use serde_json::json;

/// The content of one file.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Services of type LoadBalancer, in order.
    pub(super) services: Vec<Manifest>,
    /// Other Services.
    pub(super) skipped: Vec<Skipped>,
    /// The number of objects of every other kind.
    pub(super) others: BTreeMap<String, usize>,
    /// The problems, each with its Service.
    pub(super) findings: Vec<(Option<String>, Finding)>,
}

impl Reading {
    pub(super) fn is_empty(&self) -> bool {
        let objects = self.services.len() + self.skipped.len() + self.others.len();
        objects + self.findings.len() == 0
    }
}

/// A Service in a file.
#[derive(Debug)]
pub(super) struct Manifest {
    file: String,
    /// `namespace/name`, or the name alone: the namespace is then chosen when the manifest is applied.
    pub(super) name: String,
    root: Node,
    pub(super) view: Arc<ServiceView>,
}

impl Manifest {
    /// The position of a field, or the position where it is missing.
    pub(super) fn place(&self, field: &Field) -> Place {
        Place {
            file: self.file.clone(),
            position: Some(self.root.locate(&field.path())),
        }
    }

    /// This Service, left out for a reason.
    pub(super) fn skipped(&self, why: String) -> Skipped {
        Skipped::new(&self.file, self.root.at, &self.name, why)
    }
}

/// A Service that is not checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Skipped {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) service: String,
    pub(super) why: String,
}

impl Skipped {
    fn new(file: &str, at: Position, service: &str, why: String) -> Self {
        Self {
            file: file.to_owned(),
            line: at.line,
            service: service.to_owned(),
            why,
        }
    }
}

/// Reads a file. `file`: its name, for messages.
pub(super) fn read(file: &str, content: &[u8]) -> Reading {
    let mut reader = ManifestReader {
        file,
        reading: Reading::default(),
    };
    let text = match yaml::utf8(content) {
        Ok(text) => text,
        Err(error) => {
            let fix = error.hint.unwrap_or_default();
            reader.wrong(None, error.position, error.message, fix);
            return reader.reading;
        }
    };
    for document in yaml::documents(text) {
        match document {
            Ok(node) => reader.object(node, None),
            Err(error) => {
                let fix = if text.contains("{{") {
                    "pass the rendered template, such as the output of `helm template`"
                } else {
                    "correct this document; the others were read"
                };
                reader.wrong(None, error.position, format!("not YAML: {}", error.message), fix);
            }
        }
    }
    reader.reading
}

struct ManifestReader<'a> {
    file: &'a str,
    reading: Reading,
}

impl ManifestReader<'_> {
    fn wrong(&mut self, service: Option<&str>, at: Position, message: impl Into<String>, fix: &str) {
        self.add((service, ""), at, message, fix);
    }

    fn add(
        &mut self,
        (service, field): (Option<&str>, &str),
        at: Position,
        message: impl Into<String>,
        fix: &str,
    ) {
        let place = Place {
            file: self.file.to_owned(),
            position: Some(at),
        };
        let finding = Finding::new(Severity::Error, field, message).at(place).fix(fix);
        self.reading.findings.push((service.map(str::to_owned), finding));
    }

    /// One object; `kind`: the default of its apiVersion and kind.
    fn object(&mut self, node: Node, kind: Option<(&str, &str)>) {
        let fix = "write apiVersion and kind, such as v1 and Service";
        if !matches!(node.value, Value::Map(_)) {
            let message = format!("not a Kubernetes object, but {}", node.value.kind());
            return self.wrong(None, node.at, message, fix);
        }
        let given = node.text("apiVersion").zip(node.text("kind")).or(kind);
        let Some((version, kind)) = given.map(|(version, kind)| (version.to_owned(), kind.to_owned())) else {
            return self.wrong(None, node.at, "an object without apiVersion and kind", fix);
        };
        match (version.as_str(), kind.as_str()) {
            ("v1", "List" | "ServiceList") => {
                let of = (kind == "ServiceList").then_some(("v1", "Service"));
                let items = node.entries().iter().find(|entry| entry.key == "items");
                if let Some(Value::List(items)) = items.map(|items| items.node.value.clone()) {
                    for item in items {
                        self.object(item, of);
                    }
                }
            }
            ("v1", "Service") => self.service(node),
            _ => *self.reading.others.entry(kind).or_default() += 1,
        }
    }

    fn service(&mut self, mut node: Node) {
        let name = name(&node);
        let kind = node.get("spec").and_then(|spec| spec.text("type"));
        if kind != Some("LoadBalancer") {
            let why = format!("type {}, not LoadBalancer", kind.unwrap_or("ClusterIP"));
            let skipped = Skipped::new(self.file, node.at, &name, why);
            self.reading.skipped.push(skipped);
            return;
        }
        let service = Some(name.as_str());
        if node.get("metadata").and_then(|meta| meta.text("name")).is_none() {
            let at = node.locate(&["metadata"]);
            self.wrong(service, at, "a Service without metadata.name", "give it a name");
        }
        self.duplicates(service, &node);
        self.annotations(service, &mut node);
        let mut json = node.to_json();
        let wrong = wrong_fields(&node, &mut json);
        // Without its ports, a Service would have problems that it does not have.
        let is_readable = !wrong.iter().any(|(path, _)| *path == ["spec", "ports"]);
        for (path, error) in &wrong {
            self.invalid(service, &node, path, error);
        }
        match serde_json::from_value::<ServiceObject>(json) {
            Ok(_) if !is_readable => {}
            Ok(mut object) => {
                allocate_node_ports(Arc::make_mut(&mut object.view));
                self.reading.services.push(Manifest {
                    file: self.file.to_owned(),
                    name,
                    root: node,
                    view: object.view,
                });
            }
            Err(error) => self.invalid(service, &node, &[], &error),
        }
    }

    fn invalid(&mut self, service: Option<&str>, node: &Node, path: &[&str], error: &serde_json::Error) {
        let message = format!("not valid in a Service: {error}");
        let fix = "see `kubectl explain service`";
        self.add((service, &path.join(".")), node.locate(path), message, fix);
    }

    /// Reports duplicate keys: one of the two is ignored, and which one depends on the reader.
    fn duplicates(&mut self, service: Option<&str>, node: &Node) {
        for duplicate in node.duplicates(KeyCase::Sensitive) {
            let MappingEntry { key, at, .. } = duplicate.entry;
            let message = format!("duplicate key, first in line {}", duplicate.first.line);
            self.add((service, key), *at, message, "keep only one of them");
        }
    }

    /// Reports annotations that are not texts, and replaces them by the text that was probably meant.
    fn annotations(&mut self, service: Option<&str>, node: &mut Node) {
        let mut wrong = Vec::new();
        let metadata = values_mut(node, "metadata");
        for annotations in metadata.flat_map(|metadata| values_mut(metadata, "annotations")) {
            for MappingEntry { key, at, node } in entries_mut(annotations) {
                let text = match &node.value {
                    Value::Text(_) => continue,
                    Value::Null => String::new(),
                    Value::Bool(_, text) | Value::Number(_, text) => text.clone(),
                    Value::List(_) | Value::Map(_) => node.to_json().to_string(),
                };
                // The API server reads null as an empty text.
                if node.value != Value::Null {
                    wrong.push((key.clone(), *at, node.value.kind(), text.clone()));
                }
                node.value = Value::Text(text);
            }
        }
        for (key, at, kind, text) in wrong {
            let message =
                format!("the value is {kind}, and annotations are texts: the API server refuses it");
            let fix = format!("write it in quotes: {text:?}");
            self.add((service, &key), at, message, &fix);
        }
    }
}

fn entries_mut(node: &mut Node) -> &mut [MappingEntry] {
    match &mut node.value {
        Value::Map(entries) => entries,
        _ => &mut [],
    }
}

/// The values of this key; a key may occur twice.
fn values_mut<'a>(node: &'a mut Node, key: &'a str) -> impl Iterator<Item = &'a mut Node> {
    let entries = entries_mut(node).iter_mut();
    entries.filter(move |entry| entry.key == key).map(|entry| &mut entry.node)
}

/// Allocates a node port for each port without one, as the API server does when the Service is created.
fn allocate_node_ports(service: &mut ServiceView) {
    /// The API server's default range begins here. Only whether there is a node port counts.
    const FIRST: u16 = 30_000;
    if service.allocates_node_ports {
        for (node_port, port) in (FIRST..).zip(&mut service.ports) {
            if port.node_port == 0 {
                port.node_port = node_port;
            }
        }
    }
}

/// `namespace/name`, as far as they are set.
fn name(node: &Node) -> String {
    let metadata = node.get("metadata");
    let text = |key| metadata.and_then(|metadata| metadata.text(key));
    let name = text("name").unwrap_or("(no name)");
    match text("namespace") {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// Removes the fields that are not valid, and returns their paths with the errors.
fn wrong_fields<'a>(node: &'a Node, json: &mut serde_json::Value) -> Vec<([&'a str; 2], serde_json::Error)> {
    let mut wrong = Vec::new();
    for part in ["metadata", "spec", "status"] {
        let fields = json.get_mut(part).and_then(serde_json::Value::as_object_mut);
        let (Some(fields), Some(given)) = (fields, node.get(part)) else {
            continue;
        };
        for MappingEntry { key, .. } in given.entries() {
            let alone = json!({"metadata": {}, part: {key: fields.get(key)}});
            if let Err(error) = serde_json::from_value::<ServiceObject>(alone) {
                fields.remove(key);
                wrong.push(([part, key], error));
            }
        }
    }
    wrong
}
