//! The file of a leader migration, read strictly: everything that is wrong with it is told at once, each with its line.

use std::{collections::BTreeMap, fmt};

use ccm_core::config::suggest;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::{COMPONENT, is_ours};
use crate::options::{
    config::{ControllerLeader, MigrationConfig},
    election::is_object_name,
    selection::Known,
    value::Reader,
};

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
    fn wrong(&mut self, line: u64, message: impl fmt::Display) {
        self.errors += 1;
        let place = self.place(line);
        self.reader.refuse(format!("{place}: {message}"));
    }

    fn suspicious(&mut self, line: u64, message: impl fmt::Display) {
        let place = self.place(line);
        self.reader.warn(format!("{place}: {message}"));
    }

    fn place(&self, line: u64) -> String {
        // Where there is nothing, there is no line.
        match line {
            0 => format!("--{FLAG}: {}", self.file),
            line => format!("--{FLAG}: {}:{line}", self.file),
        }
    }
}

fn document(text: &str, told: &mut Told<'_>) -> Option<MigrationConfig> {
    let document: Node = match serde_saphyr::from_str(text) {
        Ok(document) => document,
        Err(error) => {
            let line = error.location().map_or(0, |at| at.line());
            let message = match error.without_snippet() {
                serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
                    format!("{} stands there twice", key.as_deref().unwrap_or("a key"))
                }
                serde_saphyr::Error::MultipleDocuments { .. } => {
                    format!("a second document begins here; write one {KIND}")
                }
                error => format!("neither YAML nor JSON: {error}"),
            };
            told.wrong(line, message);
            return None;
        }
    };
    let Value::Map(fields) = &document.value else {
        told.wrong(
            0,
            format!("{} is no {KIND}; see docs/operations.md", document.value),
        );
        return None;
    };
    let fields = Fields::new(fields, "", &KEYS, told);
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
    let Some((key, _)) = fields.get("resourceLock") else {
        return;
    };
    let line = key.referenced.line();
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
    let items = match fields.get("controllerLeaders") {
        Some((
            _,
            Node {
                value: Value::List(items),
                ..
            },
        )) => items.as_slice(),
        Some((_, node)) if !matches!(node.value, Value::Nothing) => {
            told.wrong(
                node.referenced.line(),
                format!(
                    "controllerLeaders: {} is no list of name and component",
                    node.value
                ),
            );
            return Vec::new();
        }
        _ => &[],
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
        let Value::Map(map) = &item.value else {
            told.wrong(
                item.referenced.line(),
                format!("controllerLeaders[{number}]: {} is no name and component", item.value),
            );
            return None;
        };
        let fields = Fields {
            line: item.referenced.line(),
            ..Fields::new(map, &path, &LEADER_KEYS, told)
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
fn check_component(component: &str, line: u64, path: &str, told: &mut Told<'_>) {
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
fn unknown(name: &str, line: u64, path: &str, told: &mut Told<'_>) {
    match suggest::slip(name, told.known.migrated_names()) {
        Some(meant) => told.wrong(line, format!("{path}name {name:?}: did you mean {meant:?}?")),
        None => told.suspicious(
            line,
            format!("{path}name {name:?}: this program has no such controller, it does not take part in handing it over"),
        ),
    }
}

/// The entries of a map, by key.
struct Fields<'a> {
    entries: &'a [(Spanned<String>, Node)],
    /// What stands before the keys in messages.
    path: &'a str,
    /// Where the map is, for what is missing in it; 0 for the whole file.
    line: u64,
}

impl<'a> Fields<'a> {
    fn new(
        entries: &'a [(Spanned<String>, Node)],
        path: &'a str,
        known: &[&'static str],
        told: &mut Told<'_>,
    ) -> Self {
        for (key, _) in entries {
            if known.contains(&key.value.as_str()) {
                continue;
            }
            let hint = match suggest::nearest(&key.value, known.iter().copied()) {
                Some(meant) => format!("did you mean {meant:?}?"),
                None => format!("there are {}", known.join(", ")),
            };
            told.wrong(
                key.referenced.line(),
                format!("{path}{}: unknown key; {hint}", key.value),
            );
        }
        Self {
            entries,
            path,
            line: 0,
        }
    }

    fn get(&self, key: &str) -> Option<&'a (Spanned<String>, Node)> {
        self.entries.iter().find(|(name, _)| name.value == key)
    }

    /// A text that has to be there and not to be empty, and its line.
    fn text(&self, key: &str, told: &mut Told<'_>) -> Option<(&'a str, u64)> {
        let Some((_, node)) = self.get(key) else {
            told.wrong(self.line, format!("{}{key} is missing", self.path));
            return None;
        };
        let line = node.referenced.line();
        match &node.value {
            Value::Text(text) if !text.is_empty() => Some((text, line)),
            Value::Text(_) | Value::Nothing => {
                told.wrong(line, format!("{}{key} is empty", self.path));
                None
            }
            other => {
                told.wrong(
                    line,
                    format!("{}{key}: {other} is no text; put it in quotes", self.path),
                );
                None
            }
        }
    }
}

/// A value with its place.
type Node = Spanned<Value>;

/// Anything that may stand in the file.
enum Value {
    Map(Vec<(Spanned<String>, Node)>),
    List(Vec<Node>),
    Text(String),
    Nothing,
    /// A number, true or false.
    Scalar(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(_) => f.write_str("a map"),
            Self::List(_) => f.write_str("a list"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Nothing => f.write_str("nothing"),
            Self::Scalar(scalar) => f.write_str(scalar),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Nothing)
            }

            fn visit_bool<E>(self, scalar: bool) -> Result<Value, E> {
                Ok(Value::Scalar(scalar.to_string()))
            }

            fn visit_i64<E>(self, scalar: i64) -> Result<Value, E> {
                Ok(Value::Scalar(scalar.to_string()))
            }

            fn visit_u64<E>(self, scalar: u64) -> Result<Value, E> {
                Ok(Value::Scalar(scalar.to_string()))
            }

            fn visit_f64<E>(self, scalar: f64) -> Result<Value, E> {
                Ok(Value::Scalar(scalar.to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    items.push(item);
                }
                Ok(Value::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Value::Map(entries))
            }
        }

        deserializer.deserialize_any(Any)
    }
}
