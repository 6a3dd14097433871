//! What a cloud of [`Objects`] does, for models whose parts consist of them.

use super::{Edit, Ids, Served, remove};
use crate::plan::objects::{Action, Change, Kind, Object, Objects, Policy, Reply, Scalar, SetOrder};

/// The answer to a change: ids for what it creates. `detail` adds attributes that the cloud chooses.
pub fn reply<K: Kind>(change: &Change<K>, ids: &Ids, detail: impl Fn(Object<K>) -> Object<K>) -> Reply<K> {
    let mut reply = Reply::default();
    if let Action::Create(object, children) = &change.action {
        let created = std::iter::once(&**object).chain(children);
        reply.objects.extend(created.map(|object| {
            let mut answered = Object::new(object.kind, object.key.clone());
            answered.id = ids.id(&format!("{:?}", object.kind), &object.key);
            detail(answered)
        }));
    }
    reply
}

/// Puts back the objects of a part after a change.
pub fn replace<K: Kind>(truth: &mut Objects<K>, after: Objects<K>, is_of_part: impl Fn(&Object<K>) -> bool) {
    truth.all.retain(|object| !is_of_part(object));
    // Whose an object is is derived from its tags with every read.
    let after = after.all.into_iter().map(|object| Object {
        foreign: None,
        ..object
    });
    truth.all.extend(after);
    truth
        .all
        .sort_by(|a, b| (a.kind, &a.parent, &a.key).cmp(&(b.kind, &b.parent, &b.key)));
}

/// An object without its id and without these attributes, which differ from run to run.
pub fn line<K: Kind>(object: &Object<K>, hidden: &[&str]) -> String {
    let attributes = object.attributes.iter();
    let attributes: Vec<_> = attributes.filter(|(name, _)| !hidden.contains(name)).collect();
    let sets = object.sets.iter().map(|(name, entries)| {
        let mut entries: Vec<_> = entries.iter().map(ToString::to_string).collect();
        entries.sort();
        format!("{name}s {entries:?}")
    });
    let sets: Vec<_> = sets.collect();
    format!("{} {attributes:?} {sets:?}", object.title())
}

/// What can be done to objects of which `is_editable` is true: deleted, their attributes changed, their entries removed.
pub fn edits<K: Kind>(is_editable: fn(&Object<K>) -> bool) -> Vec<Edit<Objects<K>>> {
    let delete = move |truth: &mut Objects<K>, number: usize| {
        let mut all = truth.all.clone();
        if let Some(object) = remove(&mut all, number, is_editable) {
            let change = Change {
                kind: object.kind,
                key: object.key,
                parent: object.parent,
                action: Action::Delete(true),
            };
            truth.fold(&change, None);
        }
    };
    // The number chooses among all attributes, or entries, of all objects.
    let change = move |truth: &mut Objects<K>, number: usize| {
        let editable = truth.all.iter_mut().filter(|object| is_editable(object));
        let changeable = editable.flat_map(|object| {
            let attributes = object.kind.schema().attributes.iter();
            let changeable = attributes.filter(|attribute| attribute.policy != Policy::CreateOnly);
            let changeable: Vec<_> = changeable
                .map(|attribute| (attribute.name, attribute.default))
                .collect();
            let known = object.attributes.iter_mut();
            known.filter_map(move |(name, value)| {
                let (_, default) = changeable.iter().find(|(changeable, _)| changeable == name)?;
                Some((value, *default))
            })
        });
        let mut changeable: Vec<_> = changeable.collect();
        let count = changeable.len().max(1);
        if let Some((value, default)) = changeable.get_mut(number % count) {
            **value = match default {
                Scalar::Null if value.is_number() => 77.into(),
                default => (*default).into(),
            };
        }
    };
    let drain = move |truth: &mut Objects<K>, number: usize| {
        let editable = truth.all.iter_mut().filter(|object| is_editable(object));
        let filled = editable.flat_map(|object| {
            let sets = object.kind.schema().sets.iter();
            // Tags say whose an object is.
            let names = sets
                .filter(|set| set.order != SetOrder::Around)
                .map(|set| set.name);
            let names: Vec<_> = names.collect();
            object
                .sets
                .iter_mut()
                .filter(move |(name, _)| names.contains(name))
        });
        let mut filled: Vec<_> = filled.filter(|(_, entries)| !entries.is_empty()).collect();
        let count = filled.len().max(1);
        if let Some((_, entries)) = filled.get_mut(number % count) {
            let mut kept = entries.to_vec();
            kept.remove(number % kept.len());
            **entries = kept.into();
        }
    };
    vec![
        Edit::new("delete object", delete),
        Edit::new("change attribute", change),
        Edit::new("remove entry", drain),
    ]
}

/// What these objects of a Service are like. `is_managed`: whether an entry is the Service's.
pub fn served<'a, K: Kind>(
    objects: impl Iterator<Item = &'a Object<K>>,
    is_managed: impl Fn(&K::Entry) -> bool,
) -> Served {
    let mut served = Served::default();
    for object in objects {
        let (title, schema) = (object.title(), object.kind.schema());
        for attribute in schema.attributes {
            // A difference of the others is accepted.
            if attribute.policy != Policy::CreateOnly
                && let Some(value) = object.attributes.get(attribute.name)
            {
                let value = Some(value.clone()).filter(|value| !value.is_null());
                let value = value.unwrap_or_else(|| attribute.default.into());
                served
                    .at_least
                    .insert(format!("{} of {title}: {value}", attribute.name));
            }
        }
        for set in schema.sets {
            let entries = object.set(set.name).iter().filter(|entry| is_managed(entry));
            let lines = entries.map(|entry| format!("{} of {title}: {entry}", set.name));
            if set.order == SetOrder::Around {
                served.at_least.extend(lines);
            } else {
                served.exact.extend(lines);
            }
        }
        served.exact.insert(title);
    }
    served
}
