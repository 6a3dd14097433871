//! Changes of an object that the cloud reads and writes as one JSON document, such as DigitalOcean's load balancers.
//!
//! A provider describes the fields that it manages as a [`Value`], and [`Rules::edit`] compares them with the document that
//! was read. If something differs, the answer is a copy of that document with the differences applied, to be written with
//! one PUT, and a list of them for the step's reason. Fields that the provider does not mention keep their values, at every
//! depth, so that settings by other clients survive a PUT that replaces the whole document.
//!
//! | Desired field | Meaning |
//! |---|---|
//! | missing | not managed: it stays |
//! | `null` | unset: the field is removed, and the cloud uses its default |
//! | an object | its fields are compared one by one |
//! | a list | elements are compared by position, or as a [set](Rules::set); surplus ones are removed |
//! | anything else | the value itself |
//!
//! Documents that many clients write have more rules. An element of a set may belong to another client
//! ([`Rules::edit_owned`]). A value may differ in its case alone ([`Rules::any_case`]), or may be chosen once and then left
//! unchanged ([`Rules::keep`]). If nothing differs, no rule changes the document: [`Rules::writable`] is what was read, without
//! the read-only fields.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Map, Value};

use super::{
    model,
    objects::{list, text},
};
use crate::{
    client::{Indexed, Operation},
    load_balancer::{Effect, StepDescription},
};

/// An object as the cloud returns it, or as it will be after a change. One that was read has the field `id`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document(Value);

impl Document {
    /// The document after a create with this body, before it has an id.
    #[must_use]
    pub fn planned(body: &Value) -> Self {
        Self(body.clone())
    }

    /// All fields.
    #[must_use]
    pub fn fields(&self) -> &Value {
        &self.0
    }

    /// A field that is a text; empty if it is missing.
    #[must_use]
    pub fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// The items of a field that is a list; none if it is missing.
    pub fn list(&self, field: &str) -> impl Iterator<Item = &Value> {
        self.0.get(field).and_then(Value::as_array).into_iter().flatten()
    }

    /// The field `id`.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text("id")
    }

    /// The field `name`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text("name")
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let document = Self(Value::deserialize(deserializer)?);
        if document.id().is_empty() {
            return Err(D::Error::custom("the document has no id"));
        }
        Ok(document)
    }
}

impl Indexed for Document {
    fn id(&self) -> &str {
        self.id()
    }

    /// Also the id, so that one document can be read again.
    fn index_keys(&self) -> Vec<&str> {
        vec![self.name(), self.id()]
    }
}

/// Sets all of `fields` in an object.
pub fn extend(object: &mut Value, fields: &Value) {
    if let (Value::Object(object), Value::Object(fields)) = (object, fields) {
        object.extend(fields.clone());
    }
}

/// The owner of the object that an error names: the only one whose names stand in its text as whole words, in any case. For
/// [`PartModel::named_member`](model::PartModel::named_member).
///
/// ```
/// use ccm_core::plan::document::named_owner;
///
/// let text = "Resource /../loadBalancingRules/A12-TCP-80 references an invalid frontend";
/// let rules = [("web", "a12-TCP-80"), ("shop", "a1-TCP-80"), ("mail", "a12-TCP-8")];
/// assert_eq!(named_owner(text, rules), Some("web"));
/// assert_eq!(named_owner("Too many rules", rules), None);
/// ```
pub fn named_owner<'a, T: PartialEq>(text: &str, names: impl IntoIterator<Item = (T, &'a str)>) -> Option<T> {
    let text = text.to_ascii_lowercase();
    let mut owner = None;
    for (named, name) in names {
        if !has_word(&text, &name.to_ascii_lowercase()) {
            continue;
        }
        if owner.as_ref().is_some_and(|owner| *owner != named) {
            return None;
        }
        owner = Some(named);
    }
    owner
}

/// Whether the word stands in the text, without characters of names around it.
fn has_word(text: &str, word: &str) -> bool {
    let is_of_name = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    !word.is_empty()
        && text.match_indices(word).any(|(at, _)| {
            let before = text.get(..at).and_then(|before| before.chars().next_back());
            let mut after = text.get(at + word.len()..).unwrap_or_default().chars();
            // A period may end the sentence.
            let is_end = match (after.next(), after.next()) {
                (Some('.'), next) => !next.is_some_and(is_of_name),
                (next, _) => !next.is_some_and(is_of_name),
            };
            !before.is_some_and(is_of_name) && is_end
        })
}

/// A change of a document: one call.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentChange<O> {
    /// The call.
    pub operation: O,
    /// The effect of the call.
    pub effect: Effect,
    /// The kind and the name of the object: `load balancer web`.
    pub title: String,
    /// The body to write; null for a deletion.
    pub body: Value,
}

impl<O: Operation> model::CloudChange for DocumentChange<O> {
    fn describe(&self) -> StepDescription {
        let verb = match self.effect {
            Effect::Create => "create",
            Effect::Change => "update",
            Effect::Delete => "delete",
        };
        let sentence = format!("{verb} {}", self.title);
        StepDescription::new(self.operation.name(), self.effect, sentence)
    }
}

/// How documents of one kind are compared. Paths name fields without positions: `forwarding_rules[].tls_passthrough`.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    sets: BTreeMap<&'static str, &'static [&'static str]>,
    defaults: BTreeMap<&'static str, Value>,
    read_only: &'static [&'static str],
    shown: &'static [&'static str],
    kept: &'static [&'static str],
    any_case: &'static [&'static str],
    empty_is_missing: bool,
}

/// Whether an element of the set at a path may be removed.
type Owns<'a> = dyn Fn(&str, &Value) -> bool + 'a;

/// A document that differs from the one that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// The document to write.
    pub document: Value,
    /// The differences, one sentence each: `forwarding_rules[1].target_port 30001 -> 30002`.
    pub changes: Vec<String>,
}

impl Rules {
    /// The list at this path is a set: its order has no meaning. Elements are matched by these fields (`properties.port`), or as
    /// a whole if there are none; fields of a matched element that are not managed keep their values.
    #[must_use]
    pub fn set(mut self, path: &'static str, key: &'static [&'static str]) -> Self {
        self.sets.insert(path, key);
        self
    }

    /// Missing fields mean these values, by their paths: a cloud that fills one in, or leaves it out, has not changed
    /// anything.
    #[must_use]
    pub fn defaults<const N: usize>(mut self, defaults: [(&'static str, Value); N]) -> Self {
        self.defaults.extend(defaults);
        self
    }

    /// Fields at these paths, which the cloud reports and does not accept: they are not written back.
    #[must_use]
    pub fn read_only(mut self, paths: &'static [&'static str]) -> Self {
        self.read_only = paths;
        self
    }

    /// Fields at these paths, which the cloud returns in another form than it accepts.
    #[must_use]
    pub fn shown(mut self, paths: &'static [&'static str]) -> Self {
        self.shown = paths;
        self
    }

    /// Fields at these paths keep the value that they have: the desired one is only for a field that has none. Example: the
    /// priority of a rule, which another client may have changed to make room.
    #[must_use]
    pub fn keep(mut self, paths: &'static [&'static str]) -> Self {
        self.kept = paths;
        self
    }

    /// Texts at these paths are equal if only their case differs, such as the ids of Azure's resources.
    #[must_use]
    pub fn any_case(mut self, paths: &'static [&'static str]) -> Self {
        self.any_case = paths;
        self
    }

    /// A list without elements is the same as a missing one.
    #[must_use]
    pub fn empty_is_missing(mut self) -> Self {
        self.empty_is_missing = true;
        self
    }

    /// The document without its read-only fields: for a write that changes nothing else.
    #[must_use]
    pub fn writable(&self, document: &Document) -> Value {
        let mut written = document.0.clone();
        self.strip(&Path::default(), &mut written);
        written
    }

    /// Removes the read-only fields.
    fn strip(&self, path: &Path, value: &mut Value) {
        match value {
            Value::Object(fields) => fields.retain(|name, value| {
                let path = path.field(name);
                let stays = !self.read_only.contains(&path.pattern.as_str());
                if stays {
                    self.strip(&path, value);
                }
                stays
            }),
            Value::Array(elements) => {
                for (index, element) in elements.iter_mut().enumerate() {
                    self.strip(&path.element(index), element);
                }
            }
            _ => {}
        }
    }

    /// The document after a write of `body`. `reply`: the cloud's answer, as far as it is known.
    #[must_use]
    pub fn after(&self, before: &Document, body: &Value, reply: Option<&Document>) -> Document {
        let mut after = body.clone();
        self.report(&Path::default(), &mut after, &before.0);
        if let Some(reply) = reply {
            self.report(&Path::default(), &mut after, &reply.0);
        }
        Document(after)
    }

    /// Sets the fields that only the cloud sets, as it reported them.
    fn report(&self, path: &Path, after: &mut Value, reported: &Value) {
        match (after, reported) {
            (Value::Object(after), Value::Object(reported)) => {
                for (name, reported) in reported {
                    let path = path.field(name);
                    let pattern = path.pattern.as_str();
                    if self.read_only.contains(&pattern) || self.shown.contains(&pattern) {
                        after.insert(name.clone(), reported.clone());
                    } else if let Some(after) = after.get_mut(name) {
                        self.report(&path, after, reported);
                    }
                }
            }
            (Value::Array(after), Value::Array(reported)) => {
                let key = self.sets.get(path.pattern.as_str()).copied();
                for (index, after) in after.iter_mut().enumerate() {
                    let path = path.element(index);
                    let same = match key {
                        Some(key) => {
                            let identity = self.identity(&path, key, after);
                            reported.iter().find(|other| self.identity(&path, key, other) == identity)
                        }
                        None => reported.get(index),
                    };
                    if let Some(same) = same {
                        self.report(&path, after, same);
                    }
                }
            }
            _ => {}
        }
    }

    /// The identity of an element of a set: the values of its key, or all of it.
    fn identity(&self, path: &Path, key: &[&str], element: &Value) -> String {
        let shown = |path: &Path, value: &Value| {
            let text = value.to_string();
            if self.any_case.contains(&path.pattern.as_str()) {
                text.to_ascii_lowercase()
            } else {
                text
            }
        };
        if key.is_empty() {
            return shown(path, element);
        }
        let values = key.iter().map(|field| {
            let mut names = field.split('.');
            let value = names.try_fold(element, |value, name| value.get(name));
            shown(&path.field(field), value.unwrap_or(&Value::Null))
        });
        values.collect::<Vec<_>>().join(" ")
    }

    /// Applies a change: [`PartModel::fold`](model::PartModel::fold) of a part that is one document.
    pub fn fold<O>(
        &self,
        change: &DocumentChange<O>,
        reply: Option<&Document>,
        observed: &mut Option<Document>,
    ) {
        *observed = match (change.effect, observed.as_ref()) {
            (Effect::Delete, _) => None,
            (Effect::Create, _) => Some(reply.cloned().unwrap_or_else(|| Document::planned(&change.body))),
            (Effect::Change, before) => before.map(|before| self.after(before, &change.body, reply)),
        };
    }

    /// The document to write in place of `observed` to apply `desired`; `None` if nothing differs.
    #[must_use]
    pub fn edit(&self, observed: &Document, desired: &Value) -> Option<Edit> {
        self.edit_owned(observed, desired, |_, _| true)
    }

    /// As [`edit`](Self::edit), of a document that other clients write, too. `owns`: whether an element of the set at this path
    /// belongs to this program. Other elements stay in their places, unless one has the identity of a desired one.
    #[must_use]
    pub fn edit_owned(
        &self,
        observed: &Document,
        desired: &Value,
        owns: impl Fn(&str, &Value) -> bool,
    ) -> Option<Edit> {
        let mut edited = observed.clone();
        let mut comparison = Comparison {
            rules: self,
            owns: &owns,
            changes: Vec::new(),
        };
        comparison.apply(&Path::default(), &mut edited.0, &self.distinct(&Path::default(), desired));
        let changes = comparison.changes;
        (!changes.is_empty()).then(|| Edit {
            document: self.writable(&edited),
            changes,
        })
    }

    /// The same value with each element of a set once: the first one with its identity.
    fn distinct(&self, path: &Path, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields = fields.iter();
                fields
                    .map(|(name, value)| (name.clone(), self.distinct(&path.field(name), value)))
                    .collect()
            }
            Value::Array(elements) => {
                let mut distinct = Vec::with_capacity(elements.len());
                let mut known = BTreeSet::new();
                for (index, element) in elements.iter().enumerate() {
                    let element_path = path.element(index);
                    let element = self.distinct(&element_path, element);
                    let key = self.sets.get(path.pattern.as_str());
                    if key.is_none_or(|key| known.insert(self.identity(&element_path, key, &element))) {
                        distinct.push(element);
                    }
                }
                Value::Array(distinct)
            }
            value => value.clone(),
        }
    }

    fn is_missing(&self, value: &Value) -> bool {
        let is_empty = value.as_array().is_some_and(Vec::is_empty);
        value.is_null() || (self.empty_is_missing && is_empty)
    }

    fn is_equal(&self, path: &Path, one: &Value, other: &Value) -> bool {
        if let (Value::String(one), Value::String(other)) = (one, other)
            && self.any_case.contains(&path.pattern.as_str())
        {
            return one.eq_ignore_ascii_case(other);
        }
        one == other
    }
}

/// A comparison of an observed document, which is edited, with the desired one.
struct Comparison<'a> {
    rules: &'a Rules,
    owns: &'a Owns<'a>,
    changes: Vec<String>,
}

impl Comparison<'_> {
    fn apply(&mut self, path: &Path, observed: &mut Value, desired: &Value) {
        match (&mut *observed, desired) {
            (Value::Object(have), Value::Object(want)) => self.apply_fields(path, have, want),
            (Value::Array(have), Value::Array(want)) => match self.rules.sets.get(path.pattern.as_str()) {
                Some(key) => self.apply_set(path, key, have, want),
                None => self.apply_list(path, have, want),
            },
            (have, want) if self.rules.is_equal(path, have, want) => {}
            (have, want) => {
                self.changes.push(format!("{} {} -> {}", path.shown, text(have), text(want)));
                *have = want.clone();
            }
        }
    }

    fn apply_fields(&mut self, path: &Path, have: &mut Map<String, Value>, want: &Map<String, Value>) {
        for (name, want) in want {
            let path = path.field(name);
            let default = self.rules.defaults.get(path.pattern.as_str());
            let or_default = |value: &Value| match value {
                Value::Null => default.cloned().unwrap_or_default(),
                value => value.clone(),
            };
            let had = have.get(name).cloned().unwrap_or_default();
            let (mut edited, wanted) = (or_default(&had), or_default(want));
            let is_kept = !had.is_null() && self.rules.kept.contains(&path.pattern.as_str());
            if is_kept || (self.rules.is_missing(&edited) && self.rules.is_missing(&wanted)) {
                continue;
            }
            let before = self.changes.len();
            if wanted.is_null() && self.has_others(&path, &edited) {
                self.apply(&path, &mut edited, &Value::Array(Vec::new()));
            } else {
                self.apply(&path, &mut edited, &wanted);
            }
            if self.changes.len() == before {
                continue;
            }
            if want.is_null() && !self.has_others(&path, &edited) {
                have.remove(name);
            } else {
                have.insert(name.clone(), edited);
            }
        }
    }

    /// Whether a set has elements of other clients.
    fn has_others(&self, path: &Path, set: &Value) -> bool {
        let is_set = self.rules.sets.contains_key(path.pattern.as_str());
        let mut elements = set.as_array().into_iter().flatten();
        is_set && elements.any(|element| !(self.owns)(&path.pattern, element))
    }

    fn apply_list(&mut self, path: &Path, have: &mut Vec<Value>, want: &[Value]) {
        for (index, want) in want.iter().enumerate() {
            let path = path.element(index);
            match have.get_mut(index) {
                Some(have) => self.apply(&path, have, want),
                None => {
                    self.changes.push(format!("{} added: {}", path.shown, text(want)));
                    have.push(want.clone());
                }
            }
        }
        for (index, surplus) in have.iter().enumerate().skip(want.len()) {
            self.changes.push(format!("{} removed: {}", path.element(index).shown, text(surplus)));
        }
        have.truncate(want.len());
    }

    /// Observed elements keep their order, so that a document that is equal stays equal; new ones follow.
    fn apply_set(&mut self, path: &Path, key: &[&str], have: &mut Vec<Value>, want: &[Value]) {
        let rules = self.rules;
        let identity = |element: &Value| rules.identity(&path.element(0), key, element);
        let mut missing: BTreeMap<String, &Value> = want.iter().map(|want| (identity(want), want)).collect();
        let mut removed = Vec::new();
        let mut index = 0;
        have.retain_mut(|element| {
            let path_of_element = path.element(index);
            index += 1;
            if let Some(want) = missing.remove(&identity(element)) {
                self.apply(&path_of_element, element, want);
                return true;
            }
            let stays = !(self.owns)(&path.pattern, element);
            if !stays {
                removed.push(text(element));
            }
            stays
        });
        let mut added = Vec::new();
        for want in want {
            if missing.remove(&identity(want)).is_some() {
                added.push(text(want));
                have.push(want.clone());
            }
        }
        for (verb, elements) in [("added", added), ("removed", removed)] {
            if !elements.is_empty() {
                self.changes.push(format!("{} {verb}: {}", path.shown, list(&elements)));
            }
        }
    }
}

/// The path of a value: with positions for people, without them for the rules.
#[derive(Default)]
struct Path {
    shown: String,
    pattern: String,
}

impl Path {
    fn field(&self, name: &str) -> Self {
        let join = |path: &str| match path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        Self {
            shown: join(&self.shown),
            pattern: join(&self.pattern),
        }
    }

    fn element(&self, index: usize) -> Self {
        Self {
            shown: format!("{}[{index}]", self.shown),
            pattern: format!("{}[]", self.pattern),
        }
    }
}

#[cfg(test)]
mod tests;
