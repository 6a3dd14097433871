//! The file of a leader migration, read strictly: everything that is wrong with it is told at once, each with its line.

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
/// The newest; it alone has no `resourceLock`.
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
const LEADER_KEYS: [&str; 2] = ["name", "component"];

/// Reads what stands in the file. `None` with errors.
pub(super) fn read(file: &str, text: &str, known: &Known, reader: &mut Reader) -> Option<MigrationConfig> {
    let mut told = Told {
        file,
        known,
        reader,
        errors: 0,
    };
    let migration = document(text, &mut told);
    migration.filter(|_| told.errors == 0)
}

/// Where what is wrong is told.
struct Told<'a> {
    file: &'a str,
    known: &'a Known,
    reader: &'a mut Reader,
    errors: usize,
}

impl Told<'_> {
    fn wrong(&mut self, line: usize, message: impl fmt::Display) {
        self.errors += 1;
        let place = self.place(line);
        self.reader.refuse(format!("{place}: {message}"));
    }

    fn suspicious(&mut self, line: usize, message: impl fmt::Display) {
        let place = self.place(line);
        self.reader.warn(format!("{place}: {message}"));
    }

    fn place(&self, line: usize) -> String {
        // Where there is nothing, there is no line.
        match line {
            0 => format!("--{FLAG}: {}", self.file),
            line => format!("--{FLAG}: {}:{line}", self.file),
        }
    }
}

fn document(text: &str, told: &mut Told<'_>) -> Option<MigrationConfig> {
    let document = match yaml::document(text) {
        Ok(document) => document,
        Err(error) => {
            let message = match error.hint {
                Some(_) => format!("{}; write one {KIND}", error.message),
                None => format!("neither YAML nor JSON: {}", error.message),
            };
            told.wrong(error.position.line, message);
            return None;
        }
    };
    let what = document.as_ref().map_or("nothing".to_owned(), name_of);
    let Some(document) = document.filter(is_map) else {
        told.wrong(0, format!("{what} is no {KIND}; see docs/operations.md"));
        return None;
    };
    for duplicate in document.duplicates(KeyCase::Sensitive) {
        let entry = duplicate.entry;
        told.wrong(entry.at.line, format!("{} stands there twice", entry.key));
    }
    let fields = Fields::new(&document, "", &KEYS, told);
    let version = fields.text("apiVersion", told);
    if let Some((version, line)) = version
        && !VERSIONS.contains(&version)
    {
        told.wrong(
            line,
            format!("apiVersion {version:?}: write one of {}", VERSIONS.join(", ")),
        );
    }
    if let Some((kind, line)) = fields.text("kind", told)
        && kind != KIND
    {
        told.wrong(line, format!("kind {kind:?}: write {KIND}"));
    }
    check_lock(&fields, version.map(|(version, _)| version), told);
    let lease = fields.text("leaderName", told);
    if let Some((lease, line)) = lease
        && !is_object_name(lease, true)
    {
        told.wrong(
            line,
            format!(
                "leaderName {lease:?}: write a name of a Lease: lower-case letters, digits, - and ., such as \
                 cloud-provider-extraction-migration"
            ),
        );
    }
    let leaders = leaders(&fields, told);
    lease.map(|(lease, _)| MigrationConfig {
        lease: lease.to_owned(),
        leaders,
    })
}

fn check_lock(fields: &Fields<'_>, version: Option<&str>, told: &mut Told<'_>) {
    let Some(lock) = fields.map.entry("resourceLock") else {
        return;
    };
    let line = lock.at.line;
    if version == Some(NEWEST) {
        told.wrong(
            line,
            format!("resourceLock: {NEWEST} has no such key, the lock is always a Lease; leave it out"),
        );
        return;
    }
    match fields.text("resourceLock", told) {
        None | Some(("leases", _)) => {}
        Some((lock, line)) => told.wrong(
            line,
            format!("resourceLock {lock:?}: there is only one kind of lock: write leases"),
        ),
    }
}

fn leaders(fields: &Fields<'_>, told: &mut Told<'_>) -> Vec<ControllerLeader> {
    let items = match fields.map.get("controllerLeaders") {
        Some(node) => match &node.value {
            Value::List(items) => items.as_slice(),
            Value::Null => &[],
            _ => {
                let what = name_of(node);
                let message = format!("controllerLeaders: {what} is no list of name and component");
                told.wrong(node.at.line, message);
                return Vec::new();
            }
        },
        None => &[],
    };
    if items.is_empty() {
        told.suspicious(
            0,
            "there are no controllerLeaders, so that no controller is handed over",
        );
    }
    let mut seen = BTreeMap::new();
    let read = items.iter().enumerate().filter_map(|(number, item)| {
        let path = format!("controllerLeaders[{number}].");
        if !is_map(item) {
            let what = name_of(item);
            let message = format!("controllerLeaders[{number}]: {what} is no name and component");
            told.wrong(item.at.line, message);
            return None;
        }
        let fields = Fields {
            line: item.at.line,
            ..Fields::new(item, &path, &LEADER_KEYS, told)
        };
        let (name, component) = (fields.text("name", told), fields.text("component", told));
        let ((name, name_line), (component, component_line)) = (name?, component?);
        check_component(component, component_line, &path, told);
        match told.known.migrated(name) {
            None => unknown(name, name_line, &path, told),
            // By two of its names it may stand there twice, since not every manager knows both.
            Some(controller) => {
                let ours = is_ours(component);
                let (first, line) = *seen.entry(controller).or_insert((ours, name_line));
                if first != ours {
                    told.wrong(
                        name_line,
                        format!(
                            "{path}name {name:?}: line {line} has given the same controller to another component"
                        ),
                    );
                }
            }
        }
        Some(ControllerLeader {
            name: name.to_owned(),
            component: component.to_owned(),
        })
    });
    read.collect()
}

/// A slip in it would leave a controller to nobody, or to two.
fn check_component(component: &str, line: usize, path: &str, told: &mut Told<'_>) {
    if let Some(meant) = suggest::slip(component, [COMPONENT, "kube-controller-manager"])
        && meant != component
    {
        told.wrong(
            line,
            format!("{path}component {component:?}: did you mean {meant:?}?"),
        );
    }
}

/// The file is for other managers as well, and they have controllers that this one has not.
fn unknown(name: &str, line: usize, path: &str, told: &mut Told<'_>) {
    match suggest::slip(name, told.known.migrated_names()) {
        Some(meant) => told.wrong(line, format!("{path}name {name:?}: did you mean {meant:?}?")),
        None => told.suspicious(
            line,
            format!("{path}name {name:?}: this program has no such controller, it does not take part in handing it over"),
        ),
    }
}

/// A map whose keys are known.
struct Fields<'a> {
    map: &'a Node,
    /// What stands before the keys in messages.
    path: &'a str,
    /// Where the map is, for what is missing in it; 0 for the whole file.
    line: usize,
}

impl<'a> Fields<'a> {
    fn new(map: &'a Node, path: &'a str, known: &[&'static str], told: &mut Told<'_>) -> Self {
        for entry in map.entries() {
            if known.contains(&entry.key.as_str()) {
                continue;
            }
            let hint = match suggest::nearest(&entry.key, known.iter().copied()) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("there are {}", known.join(", ")),
            };
            told.wrong(entry.at.line, format!("{path}{}: unknown key; {hint}", entry.key));
        }
        Self { map, path, line: 0 }
    }

    /// A text that has to be there and not to be empty, and its line.
    fn text(&self, key: &str, told: &mut Told<'_>) -> Option<(&'a str, usize)> {
        let Some(node) = self.map.get(key) else {
            told.wrong(self.line, format!("{}{key} is missing", self.path));
            return None;
        };
        let line = node.at.line;
        let wrong = match &node.value {
            Value::Text(text) if !text.is_empty() => return Some((text, line)),
            Value::Text(_) | Value::Null => format!("{}{key} is empty", self.path),
            _ => format!(
                "{}{key}: {} is no text; put it in quotes",
                self.path,
                name_of(node)
            ),
        };
        told.wrong(line, wrong);
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
