//! The file of a leader migration, read strictly: all problems are reported at once, each with its line.

use std::{collections::BTreeMap, fmt};

use ccm_core::config::{
    KeyCase, suggest,
    yaml::{self, Node, Value},
};

use super::{COMPONENT, is_ours};
use crate::config::{ControllerLeader, MigrationConfig};
use crate::options::{controllers::Known, election::is_object_name, value::Reader};

const FLAG: &str = "leader-migration-config";
const KIND: &str = "LeaderMigrationConfiguration";
/// The newest version. It alone has no `resourceLock`.
const NEWEST: &str = "controllermanager.config.k8s.io/v1";
const VERSIONS: [&str; 3] = [
    NEWEST,
    "controllermanager.config.k8s.io/v1beta1",
    "controllermanager.config.k8s.io/v1alpha1",
];
const KEYS: [&str; 5] = [
    "apiVersion",
    "kind",
    "leaderName",
    "resourceLock",
    "controllerLeaders",
];

/// Reads the file. `None` with errors.
pub(super) fn read(file: &str, text: &str, known: &Known, reader: &mut Reader) -> Option<MigrationConfig> {
    let before = reader.errors.len();
    let migration = FileReader { file, known, reader }.document(text);
    migration.filter(|_| reader.errors.len() == before)
}

/// Collects what is wrong with the file.
struct FileReader<'a> {
    file: &'a str,
    known: &'a Known,
    reader: &'a mut Reader,
}

impl FileReader<'_> {
    fn wrong(&mut self, line: usize, message: impl fmt::Display) {
        let place = self.place(line);
        self.reader.refuse(format!("{place}: {message}"));
    }

    fn warn(&mut self, line: usize, message: impl fmt::Display) {
        let place = self.place(line);
        self.reader.warn(format!("{place}: {message}"));
    }

    fn place(&self, line: usize) -> String {
        // What is missing has no line.
        match line {
            0 => format!("--{FLAG}: {}", self.file),
            line => format!("--{FLAG}: {}:{line}", self.file),
        }
    }

    fn document(&mut self, text: &str) -> Option<MigrationConfig> {
        let document = match yaml::document(text) {
            Ok(document) => document,
            Err(error) => {
                let message = match error.hint {
                    Some(_) => format!("{}; write one {KIND}", error.message),
                    None => format!("neither YAML nor JSON: {}", error.message),
                };
                self.wrong(error.position.line, message);
                return None;
            }
        };
        let what = document.as_ref().map_or("nothing".to_owned(), name_of);
        let Some(document) = document.filter(is_map) else {
            self.wrong(0, format!("{what} is no {KIND}; see docs/operations.md"));
            return None;
        };
        for duplicate in document.duplicates(KeyCase::Sensitive) {
            let entry = duplicate.entry;
            self.wrong(entry.at.line, format!("{} stands there twice", entry.key));
        }
        let top = Place { path: "", line: 0 };
        self.check_keys(&document, "", &KEYS);
        let version = self.text(&document, &top, "apiVersion");
        if let Some((version, line)) = version
            && !VERSIONS.contains(&version)
        {
            let versions = VERSIONS.join(", ");
            self.wrong(line, format!("apiVersion {version:?}: write one of {versions}"));
        }
        if let Some((kind, line)) = self.text(&document, &top, "kind")
            && kind != KIND
        {
            self.wrong(line, format!("kind {kind:?}: write {KIND}"));
        }
        self.check_lock(&document, &top, version.map(|(version, _)| version));
        let lease = self.text(&document, &top, "leaderName");
        if let Some((lease, line)) = lease
            && !is_object_name(lease, true)
        {
            let message = format!(
                "leaderName {lease:?}: write a name of a Lease: lower-case letters, digits, - and ., such as \
                 cloud-provider-extraction-migration"
            );
            self.wrong(line, message);
        }
        let leaders = self.leaders(&document);
        lease.map(|(lease, _)| MigrationConfig {
            lease: lease.to_owned(),
            leaders,
        })
    }

    fn check_lock(&mut self, document: &Node, top: &Place<'_>, version: Option<&str>) {
        let Some(lock) = document.entry("resourceLock") else {
            return;
        };
        let message = if version == Some(NEWEST) {
            format!("resourceLock: {NEWEST} has no such key, the lock is always a Lease; leave it out")
        } else {
            match self.text(document, top, "resourceLock") {
                None | Some(("leases", _)) => return,
                Some((lock, _)) => {
                    format!("resourceLock {lock:?}: there is only one kind of lock: write leases")
                }
            }
        };
        self.wrong(lock.at.line, message);
    }

    fn leaders(&mut self, document: &Node) -> Vec<ControllerLeader> {
        let items = match document.get("controllerLeaders").map(|node| (node, &node.value)) {
            Some((_, Value::List(items))) => items.as_slice(),
            None | Some((_, Value::Null)) => &[],
            Some((node, _)) => {
                let what = name_of(node);
                let message = format!("controllerLeaders: {what} is no list of name and component");
                self.wrong(node.at.line, message);
                return Vec::new();
            }
        };
        if items.is_empty() {
            self.warn(
                0,
                "there are no controllerLeaders, so that no controller is handed over",
            );
        }
        let mut seen = BTreeMap::new();
        let read = items.iter().enumerate();
        read.filter_map(|(number, item)| self.leader(number, item, &mut seen))
            .collect()
    }

    /// `seen`: whether this program runs the controllers that were read, and their lines.
    fn leader(
        &mut self,
        number: usize,
        item: &Node,
        seen: &mut BTreeMap<&'static str, (bool, usize)>,
    ) -> Option<ControllerLeader> {
        if !is_map(item) {
            let message = format!(
                "controllerLeaders[{number}]: {} is no name and component",
                name_of(item)
            );
            self.wrong(item.at.line, message);
            return None;
        }
        let path = &format!("controllerLeaders[{number}].");
        let place = Place {
            path,
            line: item.at.line,
        };
        self.check_keys(item, path, &["name", "component"]);
        let (name, component) = (
            self.text(item, &place, "name"),
            self.text(item, &place, "component"),
        );
        let ((name, line), (component, component_line)) = (name?, component?);
        // A slip in it would leave a controller to nobody, or to two.
        if let Some(meant) = suggest::slip(component, [COMPONENT, "kube-controller-manager"])
            && meant != component
        {
            let message = format!("{path}component {component:?}: did you mean {meant:?}?");
            self.wrong(component_line, message);
        }
        if let Some(controller) = self.known.migrated(name) {
            // It may be there by two of its names, since not every manager knows both.
            let ours = is_ours(component);
            let (first, first_line) = *seen.entry(controller).or_insert((ours, line));
            if first != ours {
                let message = format!(
                    "{path}name {name:?}: line {first_line} has given the same controller to another component"
                );
                self.wrong(line, message);
            }
        } else if let Some(meant) = suggest::slip(name, self.known.migrated_names()) {
            self.wrong(line, format!("{path}name {name:?}: did you mean {meant:?}?"));
        } else {
            // The file is for other managers as well, and they have controllers that this one lacks.
            let message = format!(
                "{path}name {name:?}: this program has no such controller, it does not take part in handing it over"
            );
            self.warn(line, message);
        }
        Some(ControllerLeader {
            name: name.to_owned(),
            component: component.to_owned(),
        })
    }

    fn check_keys(&mut self, map: &Node, path: &str, known: &[&'static str]) {
        let is_unknown = |key: &str| !known.contains(&key);
        for entry in map.entries().iter().filter(|entry| is_unknown(&entry.key)) {
            let hint = match suggest::nearest(&entry.key, known.iter().copied()) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("there are {}", known.join(", ")),
            };
            self.wrong(entry.at.line, format!("{path}{}: unknown key; {hint}", entry.key));
        }
    }

    /// A text that has to be there and not to be empty, and its line.
    fn text<'n>(&mut self, map: &'n Node, place: &Place<'_>, key: &str) -> Option<(&'n str, usize)> {
        let path = place.path;
        let Some(node) = map.get(key) else {
            self.wrong(place.line, format!("{path}{key} is missing"));
            return None;
        };
        let wrong = match &node.value {
            Value::Text(text) if !text.is_empty() => return Some((text, node.at.line)),
            Value::Text(_) | Value::Null => format!("{path}{key} is empty"),
            _ => format!("{path}{key}: {} is no text; put it in quotes", name_of(node)),
        };
        self.wrong(node.at.line, wrong);
        None
    }
}

/// Where a map is, for messages.
struct Place<'a> {
    /// Precedes its keys.
    path: &'a str,
    /// Its line, for what is missing in it; 0 for the whole file.
    line: usize,
}

fn is_map(node: &Node) -> bool {
    matches!(node.value, Value::Map(_))
}

/// A value, as messages name it.
fn name_of(value: &Node) -> String {
    match &value.value {
        Value::Text(text) => format!("{text:?}"),
        other => value.scalar().unwrap_or(other.kind()).to_owned(),
    }
}
