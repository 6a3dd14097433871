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

use std::collections::BTreeMap;

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

/// A change of a document: one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Change<O> {
    /// The call.
    pub operation: O,
    /// The effect of the call.
    pub effect: Effect,
    /// The kind and the name of the object: `load balancer web`.
    pub title: String,
    /// The body to write; null for a deletion.
    pub body: Value,
}

impl<O: Operation> model::Change for Change<O> {
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
}

/// A document that differs from the one that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// The document to write.
    pub document: Value,
    /// The differences, one sentence each: `forwarding_rules[1].target_port 30001 -> 30002`.
    pub changes: Vec<String>,
}

impl Rules {
    /// The list at this path is a set: its order has no meaning. Elements are matched by these fields, or as a whole if
    /// there are none; fields of a matched element that are not managed keep their values.
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

    /// Fields of the document that the cloud reports and does not accept: they are not written back.
    #[must_use]
    pub fn read_only(mut self, fields: &'static [&'static str]) -> Self {
        self.read_only = fields;
        self
    }

    /// Fields that the cloud returns in another form than it accepts.
    #[must_use]
    pub fn shown(mut self, fields: &'static [&'static str]) -> Self {
        self.shown = fields;
        self
    }

    /// The document without its read-only fields: for a write that changes nothing else.
    #[must_use]
    pub fn writable(&self, document: &Document) -> Value {
        let mut written = document.0.clone();
        if let Value::Object(fields) = &mut written {
            fields.retain(|field, _| !self.read_only.contains(&field.as_str()));
        }
        written
    }

    /// The document after a write of `body`. `reply`: the cloud's answer, as far as it is known.
    #[must_use]
    pub fn after(&self, before: &Document, body: &Value, reply: Option<&Document>) -> Document {
        let mut after = body.clone();
        for field in self.read_only.iter().chain(self.shown) {
            let replied = reply.and_then(|reply| reply.0.get(field));
            if let Some(value) = replied.or_else(|| before.0.get(field)) {
                after[*field] = value.clone();
            }
        }
        Document(after)
    }

    /// Applies a change: [`PartModel::fold`](model::PartModel::fold) of a part that is one document.
    pub fn fold<O>(&self, change: &Change<O>, reply: Option<&Document>, observed: &mut Option<Document>) {
        *observed = match (change.effect, observed.as_ref()) {
            (Effect::Delete, _) => None,
            (Effect::Create, _) => Some(reply.cloned().unwrap_or_else(|| Document::planned(&change.body))),
            (Effect::Change, before) => before.map(|before| self.after(before, &change.body, reply)),
        };
    }

    /// The document to write in place of `observed` to apply `desired`; `None` if nothing differs.
    #[must_use]
    pub fn edit(&self, observed: &Document, desired: &Value) -> Option<Edit> {
        let mut changes = Vec::new();
        let mut edited = observed.clone();
        self.apply(&Path::default(), &mut edited.0, desired, &mut changes);
        (!changes.is_empty()).then(|| Edit {
            document: self.writable(&edited),
            changes,
        })
    }

    fn apply(&self, path: &Path, observed: &mut Value, desired: &Value, changes: &mut Vec<String>) {
        match (&mut *observed, desired) {
            (Value::Object(have), Value::Object(want)) => self.apply_fields(path, have, want, changes),
            (Value::Array(have), Value::Array(want)) => match self.sets.get(path.pattern.as_str()) {
                Some(key) => self.apply_set(path, key, have, want, changes),
                None => self.apply_list(path, have, want, changes),
            },
            (have, want) if have == want => {}
            (have, want) => {
                changes.push(format!("{} {} -> {}", path.shown, text(have), text(want)));
                *have = want.clone();
            }
        }
    }

    fn apply_fields(
        &self,
        path: &Path,
        have: &mut Map<String, Value>,
        want: &Map<String, Value>,
        changes: &mut Vec<String>,
    ) {
        for (name, want) in want {
            let path = path.field(name);
            let default = self.defaults.get(path.pattern.as_str());
            let or_default = |value: &Value| match value {
                Value::Null => default.cloned().unwrap_or_default(),
                value => value.clone(),
            };
            let had = have.get(name).cloned().unwrap_or_default();
            let mut edited = or_default(&had);
            let before = changes.len();
            self.apply(&path, &mut edited, &or_default(want), changes);
            if changes.len() == before {
                continue;
            }
            if want.is_null() {
                have.remove(name);
            } else {
                have.insert(name.clone(), edited);
            }
        }
    }

    fn apply_list(&self, path: &Path, have: &mut Vec<Value>, want: &[Value], changes: &mut Vec<String>) {
        for (index, want) in want.iter().enumerate() {
            let path = path.element(index);
            match have.get_mut(index) {
                Some(have) => self.apply(&path, have, want, changes),
                None => {
                    changes.push(format!("{} added: {}", path.shown, text(want)));
                    have.push(want.clone());
                }
            }
        }
        for (index, surplus) in have.iter().enumerate().skip(want.len()) {
            changes.push(format!("{} removed: {}", path.element(index).shown, text(surplus)));
        }
        have.truncate(want.len());
    }

    /// Observed elements keep their order, so that a document that is equal stays equal; new ones follow.
    fn apply_set(
        &self,
        path: &Path,
        key: &[&str],
        have: &mut Vec<Value>,
        want: &[Value],
        changes: &mut Vec<String>,
    ) {
        let identity = |element: &Value| -> String {
            let fields = key.iter().map(|field| element.get(*field).unwrap_or(&Value::Null));
            match key {
                [] => element.to_string(),
                _ => fields.map(ToString::to_string).collect::<Vec<_>>().join(" "),
            }
        };
        let mut missing: BTreeMap<String, &Value> = want.iter().map(|want| (identity(want), want)).collect();
        let mut removed = Vec::new();
        let mut index = 0;
        have.retain_mut(|element| {
            let path = path.element(index);
            index += 1;
            match missing.remove(&identity(element)) {
                Some(want) => {
                    self.apply(&path, element, want, changes);
                    true
                }
                None => {
                    removed.push(text(element));
                    false
                }
            }
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
                changes.push(format!("{} {verb}: {}", path.shown, list(&elements)));
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
