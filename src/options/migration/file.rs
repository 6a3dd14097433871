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
    if reader.errors.len() > before {
        return None;
    }
    migration
}

/// Reads the file, and collects its problems.
struct FileReader<'a> {
    file: &'a str,
    known: &'a Known,
    reader: &'a mut Reader,
}

impl FileReader<'_> {
    fn refuse(&mut self, line: usize, message: impl fmt::Display) {
        self.reader.refuse(self.at(line, message));
    }

    fn warn(&mut self, line: usize, message: impl fmt::Display) {
        self.reader.warn(self.at(line, message));
    }

    /// `line`: 0 for the whole file.
    fn at(&self, line: usize, message: impl fmt::Display) -> String {
        match line {
            0 => format!("--{FLAG}: {}: {message}", self.file),
            line => format!("--{FLAG}: {}:{line}: {message}", self.file),
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
                self.refuse(error.position.line, message);
                return None;
            }
        };
        let what = document.as_ref().map_or("an empty file".to_owned(), name_of);
        let Some(document) = document.filter(is_map) else {
            self.refuse(0, format!("{what} is not a {KIND}; see docs/operations.md"));
            return None;
        };
        for duplicate in document.duplicates(KeyCase::Sensitive) {
            let entry = duplicate.entry;
            self.refuse(entry.at.line, format!("{}: duplicate key", entry.key));
        }
        self.check_keys(&document, "", &KEYS);
        let version = self.text(&document, "", "apiVersion");
        if let Some((version, line)) = version
            && !VERSIONS.contains(&version)
        {
            let versions = VERSIONS.join(", ");
            self.refuse(line, format!("apiVersion {version:?}: write one of {versions}"));
        }
        if let Some((kind, line)) = self.text(&document, "", "kind")
            && kind != KIND
        {
            self.refuse(line, format!("kind {kind:?}: write {KIND}"));
        }
        self.check_lock(&document, version.map(|(version, _)| version));
        let lease = self.text(&document, "", "leaderName");
        if let Some((lease, line)) = lease
            && !is_object_name(lease, true)
        {
            let message = format!(
                "leaderName {lease:?}: write a name of a Lease: lower-case letters, digits, - and ., such as \
                 cloud-provider-extraction-migration"
            );
            self.refuse(line, message);
        }
        let leaders = self.leaders(&document);
        lease.map(|(lease, _)| MigrationConfig {
            lease: lease.to_owned(),
            leaders,
        })
    }

    fn check_lock(&mut self, document: &Node, version: Option<&str>) {
        let Some(lock) = document.entry("resourceLock") else {
            return;
        };
        let message = if version == Some(NEWEST) {
            format!("resourceLock: {NEWEST} has no such key, the lock is always a Lease; leave it out")
        } else {
            match self.text(document, "", "resourceLock") {
                None | Some(("leases", _)) => return,
                Some((lock, _)) => {
                    format!("resourceLock {lock:?}: there is only one kind of lock: write leases")
                }
            }
        };
        self.refuse(lock.at.line, message);
    }

    fn leaders(&mut self, document: &Node) -> Vec<ControllerLeader> {
        let items = match document.get("controllerLeaders").map(|node| (node, &node.value)) {
            Some((_, Value::List(items))) => items.as_slice(),
            None | Some((_, Value::Null)) => &[],
            Some((node, _)) => {
                let what = name_of(node);
                let message = format!("controllerLeaders: {what} is not a list of name and component");
                self.refuse(node.at.line, message);
                return Vec::new();
            }
        };
        if items.is_empty() {
            self.warn(0, "there are no controllerLeaders, so that no controller is migrated");
        }
        let mut seen = BTreeMap::new();
        let read = items.iter().enumerate();
        read.filter_map(|(number, item)| self.leader(number, item, &mut seen)).collect()
    }

    /// `seen`: whether this program runs the controllers that were read, and their lines.
    fn leader(
        &mut self,
        number: usize,
        item: &Node,
        seen: &mut BTreeMap<&'static str, (bool, usize)>,
    ) -> Option<ControllerLeader> {
        if !is_map(item) {
            let what = name_of(item);
            let message = format!("controllerLeaders[{number}]: {what} does not have a name and a component");
            self.refuse(item.at.line, message);
            return None;
        }
        let path = &format!("controllerLeaders[{number}].");
        self.check_keys(item, path, &["name", "component"]);
        let name = self.text(item, path, "name");
        let (component, component_line) = self.text(item, path, "component")?;
        let (name, line) = name?;
        // With a typo in it, no component or two components would run a controller.
        if let Some(meant) = suggest::typo(component, [COMPONENT, "kube-controller-manager"])
            && meant != component
        {
            let message = format!("{path}component {component:?}: did you mean {meant:?}?");
            self.refuse(component_line, message);
        }
        if let Some(controller) = self.known.migrated(name) {
            // A controller may occur under two names, since not every manager knows both.
            let ours = is_ours(component);
            let (first, first_line) = *seen.entry(controller).or_insert((ours, line));
            if first != ours {
                let message = format!(
                    "{path}name {name:?}: line {first_line} assigns the same controller to another component"
                );
                self.refuse(line, message);
            }
        } else if let Some(meant) = suggest::typo(name, self.known.migrated_names()) {
            self.refuse(line, format!("{path}name {name:?}: did you mean {meant:?}?"));
        } else {
            // The file is for other managers as well, and they have controllers that this one lacks.
            let message = format!(
                "{path}name {name:?}: this program has no such controller and takes no part in its migration"
            );
            self.warn(line, message);
        }
        Some(ControllerLeader {
            name: name.to_owned(),
            component: component.to_owned(),
        })
    }

    fn check_keys(&mut self, map: &Node, path: &str, known: &[&'static str]) {
        for entry in map.entries() {
            if known.contains(&&*entry.key) {
                continue;
            }
            let hint = match suggest::nearest(&entry.key, known.iter().copied()) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("known keys: {}", known.join(", ")),
            };
            self.refuse(entry.at.line, format!("{path}{}: unknown key; {hint}", entry.key));
        }
    }

    /// A required text that is not empty, and its line. `path`: that of the map; empty for the whole file.
    fn text<'n>(&mut self, map: &'n Node, path: &str, key: &str) -> Option<(&'n str, usize)> {
        let Some(node) = map.get(key) else {
            let line = if path.is_empty() { 0 } else { map.at.line };
            self.refuse(line, format!("{path}{key} is missing"));
            return None;
        };
        let problem = match &node.value {
            Value::Text(text) if !text.is_empty() => return Some((text, node.at.line)),
            Value::Text(_) | Value::Null => format!("{path}{key} is empty"),
            _ => format!("{path}{key}: {} is not a text; write it in quotes", name_of(node)),
        };
        self.refuse(node.at.line, problem);
        None
    }
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
