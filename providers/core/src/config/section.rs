//! Reads a document into config structs, and reports unknown sections and keys.
//!
//! A file of `gcfg` has sections. A YAML or JSON file is one section, whose name is empty; nested maps are values of keys.

use std::{
    any::TypeId,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;

use super::{
    docs::{KeyDoc, SectionDoc},
    gcfg::{Document, GcfgEntry, Position, same},
    names::{EMPTY_NAME, NameList},
    probe::ValueKind,
    problems::{KeyPath, Problems},
    suggest, value,
    yaml::{self, KeyCase, Node},
};

/// The warning about a secret that may be cut. Go's library reads it in the same way.
const CUT_SECRET: &str = "the value ends before an unquoted # or ;, which begins a comment; if it is part of the secret, write the \
                          secret in double quotes";

/// A whole config file as a struct, one field per section. Defined with [`config_file!`](crate::config_file).
pub trait ConfigFile: Default {
    /// Sections that are accepted without a warning although they are not read.
    const IGNORED: &'static [&'static str];

    /// Reads the known sections of the file.
    fn read(reader: &mut FileReader<'_>) -> Self;

    /// The documentation of each section, in the order of the fields.
    fn sections() -> Vec<SectionDoc>;

    /// The keys whose values differ, in the order of the fields, each as `[Section] key`. Different
    /// spellings of the same value do not differ.
    fn changed_keys(&self, new: &Self) -> Vec<String>;
}

/// The keys that differ between two configs, as `[Section] key`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChanges {
    /// The keys that can be applied while running.
    pub live: Vec<String>,
    /// The keys that need a restart.
    pub restart: Vec<String>,
    /// Whether the provider must reconnect to the cloud to apply the `live` keys.
    pub reconnect: bool,
}

/// One section as a struct, one field per key. Defined with [`config_section!`](crate::config_section).
pub trait Section: Default {
    /// The lines of the struct's doc comment.
    const ABOUT: &'static [&'static str];

    /// Reads the known keys of the section; missing keys keep their defaults.
    fn read(reader: &mut SectionReader<'_, '_>) -> Self;

    /// The documentation of each key, in the order of the fields.
    fn keys() -> Vec<KeyDoc>;

    /// The keys whose values differ, in the order of the fields.
    fn changed_keys(&self, new: &Self) -> Vec<&'static str>;
}

/// The type of a field of a [`ConfigFile`]: a [`Section`], or a map of sections by the name of their subsection.
pub trait FileField: Sized {
    /// Reads the section of the file.
    fn read(reader: &mut FileReader<'_>, name: &'static str) -> Self;

    /// The documentation of the section.
    fn doc(name: &'static str) -> SectionDoc;

    /// The keys whose values differ, each as `[Section] key`.
    fn changed_keys(&self, name: &'static str, new: &Self) -> Vec<String>;
}

impl<S: Section> FileField for S {
    fn read(reader: &mut FileReader<'_>, name: &'static str) -> Self {
        reader.section(name)
    }

    fn doc(name: &'static str) -> SectionDoc {
        SectionDoc::new(name, false, S::ABOUT, S::keys())
    }

    fn changed_keys(&self, name: &'static str, new: &Self) -> Vec<String> {
        let header = KeyPath::new(name, None, None);
        Section::changed_keys(self, new).into_iter().map(|key| header.with_key(key)).collect()
    }
}

impl<S: Section> FileField for BTreeMap<String, S> {
    fn read(reader: &mut FileReader<'_>, name: &'static str) -> Self {
        reader.subsections(name)
    }

    fn doc(name: &'static str) -> SectionDoc {
        SectionDoc::new(name, true, S::ABOUT, S::keys())
    }

    /// A section that is added or removed differs in the keys that it sets.
    fn changed_keys(&self, name: &'static str, new: &Self) -> Vec<String> {
        let none = S::default();
        let names: BTreeSet<&String> = self.keys().chain(new.keys()).collect();
        let mut changed = Vec::new();
        for subsection in names {
            let header = KeyPath::new(name, Some(subsection), None);
            let old = self.get(subsection).unwrap_or(&none);
            let new = new.get(subsection).unwrap_or(&none);
            for key in old.changed_keys(new) {
                changed.push(header.with_key(key));
            }
        }
        changed
    }
}

/// Whether a type contains a secret: neither its value nor its default may be shown.
pub(super) fn is_secret<T: 'static>() -> bool {
    [
        TypeId::of::<SecretString>(),
        TypeId::of::<Option<SecretString>>(),
        TypeId::of::<Vec<SecretString>>(),
    ]
    .contains(&TypeId::of::<T>())
}

/// The old and the new value of a key, for [`same_value!`](crate::same_value). Secrets have no `PartialEq`. Their comparison is
/// a method of this type, which the compiler prefers to the trait's.
#[doc(hidden)]
#[derive(Debug)]
pub struct KeyValues<'a, T>(pub &'a T, pub &'a T);

/// The comparison of values that are not secret.
#[doc(hidden)]
pub trait CompareValues {
    /// Whether both values are equal.
    fn are_same(&self) -> bool;
}

impl<T: PartialEq> CompareValues for KeyValues<'_, T> {
    fn are_same(&self) -> bool {
        self.0 == self.1
    }
}

impl KeyValues<'_, SecretString> {
    /// Whether both secrets are equal.
    #[must_use]
    pub fn are_same(&self) -> bool {
        same_secret(self.0, self.1)
    }
}

impl KeyValues<'_, Option<SecretString>> {
    /// Whether both secrets are equal, or both missing.
    #[must_use]
    pub fn are_same(&self) -> bool {
        match (self.0, self.1) {
            (Some(old), Some(new)) => same_secret(old, new),
            (None, None) => true,
            _ => false,
        }
    }
}

impl KeyValues<'_, Vec<SecretString>> {
    /// Whether both lists have the same secrets in the same order.
    #[must_use]
    pub fn are_same(&self) -> bool {
        let (old, new) = (self.0, self.1);
        old.len() == new.len() && old.iter().zip(new).all(|(old, new)| same_secret(old, new))
    }
}

fn same_secret(old: &SecretString, new: &SecretString) -> bool {
    old.expose_secret() == new.expose_secret()
}

/// All headers of one section (and subsection) as one: a section may be repeated.
#[derive(Debug)]
struct Group<'d> {
    name: &'d str,
    subsection: Option<&'d str>,
    header: Position,
    entries: Vec<&'d GcfgEntry>,
}

impl<'d> Group<'d> {
    fn path<'a>(&self, key: Option<&'a str>) -> KeyPath<'a>
    where
        'd: 'a,
    {
        KeyPath::new(self.name, self.subsection, key)
    }
}

/// An unknown key of a section.
#[derive(Debug)]
struct Unknown<'d> {
    path: KeyPath<'d>,
    entry: &'d GcfgEntry,
    known: Vec<&'static str>,
}

/// Reads the sections of a document and collects the problems.
#[derive(Debug)]
pub struct FileReader<'d> {
    groups: Vec<Group<'d>>,
    unknown: Vec<Unknown<'d>>,
    problems: Problems,
}

impl<'d> FileReader<'d> {
    pub(super) fn new(document: &'d Document, mut problems: Problems) -> Self {
        let mut groups: Vec<Group<'d>> = Vec::new();
        let mut index: BTreeMap<(String, Option<&str>), usize> = BTreeMap::new();
        for section in &document.sections {
            let subsection = section.subsection.as_ref().map(|name| name.text.as_str());
            let name = section.name.text.as_str();
            let at = *index.entry((name.to_lowercase(), subsection)).or_insert(groups.len());
            if at == groups.len() {
                groups.push(Group {
                    name,
                    subsection,
                    header: section.name.start,
                    entries: Vec::new(),
                });
                problems.locations_mut().add(KeyPath::new(name, subsection, None), section.name.start);
            }
            if let Some(group) = groups.get_mut(at) {
                group.entries.extend(&section.entries);
            }
        }
        Self {
            groups,
            unknown: Vec::new(),
            problems,
        }
    }

    /// Takes a section that has no subsections; its defaults if the file does not have it.
    pub fn section<S: Section>(&mut self, name: &'static str) -> S {
        let mut value = None;
        for group in self.take(name) {
            if group.subsection.is_none() {
                value = Some(self.read(name, &group));
            } else {
                let message = "this section takes no subsection, so this part of the file is ignored";
                self.problems.warn_at(group.header, group.path(None), message);
            }
        }
        value.unwrap_or_default()
    }

    /// Reads the section's subsections by name. One without a name gets the empty name, as in Go, where
    /// nothing can refer to it.
    pub fn subsections<S: Section>(&mut self, name: &'static str) -> BTreeMap<String, S> {
        let mut sections = BTreeMap::new();
        for group in self.take(name) {
            if group.subsection.is_none() {
                let message = format!(
                    "this section needs a name, as in [{name} \"name\"]; without a name, it has no effect"
                );
                self.problems.warn_at(group.header, group.path(None), &message);
            }
            let section = self.read(name, &group);
            sections.insert(group.subsection.unwrap_or_default().to_owned(), section);
        }
        sections
    }

    fn take(&mut self, name: &str) -> Vec<Group<'d>> {
        self.groups.extract_if(.., |group| same(group.name, name)).collect()
    }

    fn read<S: Section>(&mut self, name: &'static str, group: &Group<'d>) -> S {
        let mut reader = SectionReader {
            name,
            subsection: group.subsection,
            left: UnreadKeys::Gcfg(group.entries.clone()),
            known: Vec::new(),
            problems: &mut self.problems,
        };
        let section = S::read(&mut reader);
        let SectionReader { left, known, .. } = reader;
        let UnreadKeys::Gcfg(left) = left else {
            return section;
        };
        self.unknown.extend(left.into_iter().map(|entry| Unknown {
            path: group.path(Some(&entry.key.text)),
            entry,
            known: known.clone(),
        }));
        section
    }

    /// Reports everything that was not read as a warning.
    pub(super) fn finish<T: ConfigFile>(mut self) -> Problems {
        let docs = T::sections();
        for group in &self.groups {
            if T::IGNORED.iter().any(|ignored| same(ignored, group.name)) {
                continue;
            }
            let near = suggest::nearest(group.name, docs.iter().map(|section| section.name));
            let message = match near {
                Some(near) => format!("unknown section, ignored; did you mean [{near}]?"),
                None => "unknown section, ignored".to_owned(),
            };
            self.problems.warn_at(group.header, group.path(None), &message);
        }
        for Unknown { path, entry, known } in &self.unknown {
            let elsewhere =
                || docs.iter().find(|section| section.keys.iter().any(|key| entry.key.is(key.name)));
            let near = suggest::nearest(&entry.key.text, known.iter().copied());
            let message = if let Some(section) = elsewhere() {
                format!("unknown key, ignored; it belongs in {}", section.header())
            } else {
                unknown_key(near)
            };
            // A word on its own line that resembles no key may be the rest of a value with a line break, such as a
            // password, whose base64 may end in `=`. The message does not repeat it.
            let is_word = entry.value.as_ref().is_none_or(|value| value.text.chars().all(|c| c == '='));
            let hidden = is_word && near.is_none() && elsewhere().is_none();
            let path = if hidden { path.section_only() } else { *path };
            self.problems.warn_at(entry.key.start, path, &message);
        }
        self.problems
    }
}

/// The keys of a section that are not read yet.
#[derive(Debug)]
enum UnreadKeys<'d> {
    Gcfg(Vec<&'d GcfgEntry>),
    Yaml(Vec<&'d yaml::MappingEntry>, KeyCase),
}

/// Reads the keys of a section and collects the problems.
#[derive(Debug)]
pub struct SectionReader<'p, 'd> {
    name: &'static str,
    subsection: Option<&'d str>,
    left: UnreadKeys<'d>,
    known: Vec<&'static str>,
    problems: &'p mut Problems,
}

impl SectionReader<'_, '_> {
    /// Reads a key. If it is missing or invalid, `target` keeps its default.
    pub fn key<T: DeserializeOwned + fmt::Debug + 'static>(&mut self, name: &'static str, target: &mut T) {
        self.known.push(name);
        let path = KeyPath::new(self.name, self.subsection, Some(name));
        let value = match &mut self.left {
            UnreadKeys::Gcfg(left) => {
                let entries: Vec<&GcfgEntry> = left.extract_if(.., |entry| entry.key.is(name)).collect();
                read_entries(&entries, path, self.problems)
            }
            UnreadKeys::Yaml(left, case) => {
                let entries = left.extract_if(.., |entry| case.same(&entry.key, name));
                entries.last().and_then(|entry| read_node(&entry.node, *case, path, self.problems))
            }
        };
        if let Some(value) = value {
            *target = value;
        }
    }

    /// Reads the key's environment variable, which overrides the file.
    pub fn variable<T: DeserializeOwned + fmt::Debug + 'static>(
        &mut self,
        name: &'static str,
        variable: &'static str,
        target: &mut T,
    ) {
        let Some(text) = self.problems.variable(name, variable) else {
            return;
        };
        let node = Node::of_variable(&text, is_list::<T>());
        let empty = empty_names::<T>(&node);
        if !empty.is_empty() {
            self.problems.warn(KeyPath::key(name), EMPTY_NAME);
        }
        let Some(read) = read_without::<T>(&node, KeyCase::Sensitive, empty) else {
            return;
        };
        for (_, error) in read.errors {
            self.problems.error(KeyPath::key(name), described::<T>(&error));
        }
        if let Some(value) = read.value {
            *target = value;
        }
    }
}

fn is_list<T: DeserializeOwned>() -> bool {
    matches!(ValueKind::of::<T>(), ValueKind::ListOf(_))
}

/// Whether the type leaves empty names out itself.
fn is_name_list<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<NameList>()
}

/// The positions of the empty names in a key's list. Lists inside of other values keep theirs: in a label selector, an empty
/// value is a value.
fn empty_names<T: DeserializeOwned>(node: &Node) -> BTreeSet<Position> {
    match &node.value {
        yaml::Value::List(items) if is_list::<T>() => {
            items.iter().filter(|item| item.is_empty()).map(|item| item.at).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Reads a value without the empty names of its list. A list of nothing else is a missing key: `None`.
fn read_without<T: DeserializeOwned + 'static>(
    node: &Node,
    case: KeyCase,
    empty: BTreeSet<Position>,
) -> Option<value::ReadNode<T>> {
    if is_name_list::<T>() {
        return Some(value::read_node(node, case, BTreeSet::new()));
    }
    if let yaml::Value::List(items) = &node.value
        && !empty.is_empty()
        && items.iter().all(|item| empty.contains(&item.at))
    {
        return None;
    }
    Some(value::read_node(node, case, empty))
}

/// The text of an error. Errors of a secret are replaced, since they could repeat it.
fn described<T: 'static>(error: &value::ValueError) -> String {
    if is_secret::<T>() {
        "value not accepted; write a text".to_owned()
    } else {
        error.to_string()
    }
}

fn read_entries<T: DeserializeOwned + 'static>(
    entries: &[&GcfgEntry],
    path: KeyPath<'_>,
    problems: &mut Problems,
) -> Option<T> {
    let last = entries.last()?;
    problems.locations_mut().add(path, last.position());
    let mut entries = entries.to_vec();
    if is_list::<T>() {
        for empty in entries.iter().filter(|entry| entry.is_empty()) {
            problems.warn_at(empty.position(), path, EMPTY_NAME);
        }
        if !is_name_list::<T>() {
            entries.retain(|entry| !entry.is_empty());
        }
    }
    if is_secret::<T>() {
        for entry in &entries {
            if entry.value.as_ref().is_some_and(|value| value.is_cut) {
                problems.warn_at(entry.position(), path, CUT_SECRET);
            }
        }
    }
    let read = value::read::<T>(&entries);
    for (number, error) in read.errors {
        let position = entries.get(number).unwrap_or(last).position();
        // The errors of a secret could repeat it.
        let blank = entries.get(number).is_some_and(|entry| entry.value.is_none());
        let (message, hint) = if is_secret::<T>() && !blank {
            ("value not accepted", None)
        } else {
            (error.message(), error.correction())
        };
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        let text = format!("{message} at {}{hint}", path.place());
        problems.error_at(position, Some(path), text);
    }
    read.value
}

/// Reads a key of a YAML file. `null` is the same as a missing key.
fn read_node<T: DeserializeOwned + 'static>(
    node: &Node,
    case: KeyCase,
    path: KeyPath<'_>,
    problems: &mut Problems,
) -> Option<T> {
    if node.value == yaml::Value::Null {
        return None;
    }
    problems.locations_mut().add(path, node.at);
    let empty = empty_names::<T>(node);
    for at in &empty {
        problems.warn_at(*at, path, EMPTY_NAME);
    }
    let read = read_without::<T>(node, case, empty)?;
    for (position, error) in read.errors {
        problems.error_inside(position, path, error.path(), &described::<T>(&error));
    }
    for unknown in read.unknown {
        let inside = KeyPath::new("", None, Some(&unknown.key));
        problems.warn_at(unknown.at, inside, &unknown.message());
    }
    read.value
}

pub(super) fn unknown_key(near: Option<&str>) -> String {
    match near {
        Some(near) => format!("unknown key, ignored; did you mean {near}?"),
        None => "unknown key, ignored; remove it, or see --help-cloud-config".to_owned(),
    }
}

/// Reads a YAML or JSON file, which is a map. Without a file, only variables and defaults apply.
pub(super) fn read_yaml<S: Section>(root: Option<&Node>, case: KeyCase, problems: &mut Problems) -> S {
    if let Some(root) = root {
        let whole = KeyPath::new("", None, None);
        problems.locations_mut().add(whole, root.at);
    }
    for duplicate in root.into_iter().flat_map(|root| root.duplicates(case)) {
        let path = KeyPath::new("", None, Some(&duplicate.entry.key));
        let line = duplicate.first.line;
        let message = format!("given twice, first in line {line}; the last one counts, keep only one");
        problems.warn_at(duplicate.entry.at, path, &message);
    }
    let mut reader = SectionReader {
        name: "",
        subsection: None,
        left: UnreadKeys::Yaml(root.into_iter().flat_map(Node::entries).collect(), case),
        known: Vec::new(),
        problems,
    };
    let section = S::read(&mut reader);
    let SectionReader {
        left,
        known,
        problems,
        ..
    } = reader;
    if let UnreadKeys::Yaml(left, _) = left {
        for entry in left {
            let near = suggest::nearest(&entry.key, known.iter().copied());
            let path = KeyPath::new("", None, Some(&entry.key));
            problems.warn_at(entry.at, path, &unknown_key(near));
        }
    }
    section
}
