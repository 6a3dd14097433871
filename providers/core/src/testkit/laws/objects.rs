//! What a cloud of [`Objects`] does, for models whose parts consist of them.

use serde_json::Value;

use super::{Edit, Ids, Line, Owner, pick, remove};
use crate::plan::objects::{Action, Change, Kind, Object, Objects, Policy, Reply, SetOrder};

/// The answer to a change: ids for what it creates. `detail` gets what is created and the answer to it, and adds what the cloud
/// chooses.
pub fn reply<K: Kind>(
    change: &Change<K>,
    ids: &Ids,
    detail: impl Fn(&Object<K>, Object<K>) -> Object<K>,
) -> Reply<K> {
    let mut reply = Reply::default();
    if let Action::Create(object, children) = &change.action {
        let created = std::iter::once(&**object).chain(children);
        reply.objects.extend(created.map(|object| {
            let mut answer = Object::new(object.kind, object.key.clone());
            answer.id = ids.id(&format!("{:?}", object.kind), &object.key);
            detail(object, answer)
        }));
    }
    reply
}

/// Whether a change deletes an object of one of these kinds.
pub fn deletes<K: Kind>(change: &Change<K>, kinds: &[K]) -> bool {
    matches!(change.action, Action::Delete(_)) && kinds.contains(&change.kind)
}

/// Puts back the objects of a part after a change.
pub fn replace<K: Kind>(truth: &mut Objects<K>, after: Objects<K>, is_of_part: impl Fn(&Object<K>) -> bool) {
    truth.all.retain(|object| !is_of_part(object));
    // The owner is derived from the tags with every read.
    let after = after.all.into_iter().map(|object| Object {
        foreign: None,
        ..object
    });
    truth.all.extend(after);
    truth
        .all
        .sort_by(|a, b| (a.kind, &a.parent, &a.key).cmp(&(b.kind, &b.parent, &b.key)));
}

/// The lines of an object: itself, its attributes, the entries of its sets. `hidden` attributes have no line; a difference of
/// `kept` attributes, and entries that are not `is_managed`, is accepted. This is not taken from the schema, whose policies
/// the laws check.
pub fn lines<K: Kind>(
    object: &Object<K>,
    owner: &Owner,
    [hidden, kept]: [&[&str]; 2],
    is_managed: impl Fn(&K::Entry) -> bool,
) -> Vec<Line> {
    let (title, schema) = (object.title(), object.kind.schema());
    let mut lines = vec![Line::exact(&*title, owner)];
    let shown = schema
        .attributes
        .iter()
        .filter(|shown| !hidden.contains(&shown.name));
    lines.extend(shown.filter_map(|attribute| {
        let value = object.attributes.get(attribute.name)?.clone();
        let value = Some(value).filter(|value| !value.is_null());
        let value = value.unwrap_or_else(|| attribute.default.into());
        let text = format!("{} of {title}: {value}", attribute.name);
        let is_kept = kept.contains(&attribute.name);
        let owner = if is_kept {
            owner.or_cluster()
        } else {
            owner.clone()
        };
        Some(Line::at_least(text, &owner))
    }));
    for set in schema.sets {
        lines.extend(object.set(set.name).iter().map(|entry| {
            let owner = if is_managed(entry) {
                owner.clone()
            } else {
                owner.or_cluster()
            };
            let is_exact = set.order != SetOrder::Around;
            let text = format!("{} of {title}: {entry}", set.name);
            Line {
                text,
                owner,
                is_exact,
            }
        }));
    }
    lines
}

/// Which objects are meant.
type Filter<K> = fn(&Object<K>) -> bool;

/// What can be done to objects: deletion, other values of their attributes, removal of their entries. `what` is in the names
/// of the edits; `part` chooses the objects, and of these only those that are `is_editable` are edited.
pub fn edits<T: 'static, K: Kind>(
    what: &str,
    part: fn(&mut T, usize) -> Option<&mut Objects<K>>,
    is_editable: Filter<K>,
) -> Vec<Edit<T>> {
    // One number chooses the part, the object or value in it, and the entry.
    let edit = |name: &str, edit: fn(&mut Objects<K>, usize, Filter<K>)| {
        Edit::new(format!("{name} of {what}"), move |truth: &mut T, number| {
            if let Some(objects) = part(truth, number) {
                edit(objects, number / 4, is_editable);
            }
        })
    };
    vec![
        edit("delete object", delete),
        edit("change attribute", change),
        edit("remove entry", remove_entry),
    ]
}

fn delete<K: Kind>(objects: &mut Objects<K>, number: usize, is_editable: fn(&Object<K>) -> bool) {
    let mut all = objects.all.clone();
    if let Some(object) = remove(&mut all, number, is_editable) {
        let change = Change {
            kind: object.kind,
            key: object.key,
            parent: object.parent,
            action: Action::Delete(true),
        };
        objects.fold(&change, None);
    }
}

fn change<K: Kind>(objects: &mut Objects<K>, number: usize, is_editable: fn(&Object<K>) -> bool) {
    let editable = objects.all.iter_mut().filter(|object| is_editable(object));
    let mut changeable: Vec<_> = editable
        .flat_map(|object| {
            let schema = object.kind.schema();
            object.attributes.iter_mut().filter_map(|(name, value)| {
                let mut attributes = schema.attributes.iter();
                let attribute = attributes.find(|attribute| attribute.name == *name)?;
                (attribute.policy != Policy::CreateOnly && !value.is_null()).then_some((attribute, value))
            })
        })
        .collect();
    if let Some((attribute, value)) = pick(&mut changeable, number, |_| true) {
        let default = Value::from(attribute.default);
        **value = match &**value {
            value if !default.is_null() && *value != default => default,
            Value::Number(_) => 77.into(),
            Value::String(_) => "other".into(),
            _ => Value::Null,
        };
    }
}

fn remove_entry<K: Kind>(objects: &mut Objects<K>, number: usize, is_editable: fn(&Object<K>) -> bool) {
    let editable = objects.all.iter_mut().filter(|object| is_editable(object));
    let mut filled: Vec<_> = editable
        .flat_map(|object| {
            let sets = object.kind.schema().sets.iter();
            // Tags identify the owner.
            let names = sets
                .filter(|set| set.order != SetOrder::Around)
                .map(|set| set.name);
            let names: Vec<_> = names.collect();
            let sets = object.sets.iter_mut();
            sets.filter(move |(name, entries)| names.contains(name) && !entries.is_empty())
        })
        .collect();
    if let Some((_, entries)) = pick(&mut filled, number, |_| true) {
        let mut kept = entries.to_vec();
        remove(&mut kept, number / 8, |_| true);
        **entries = kept.into();
    }
}
