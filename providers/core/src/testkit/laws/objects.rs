//! The behavior of a cloud of [`Objects`], for models whose parts consist of them.

use serde_json::Value;

use super::{Edit, Ids, Line, Owner, pick, remove};
use crate::plan::objects::{Action, ChangeReply, Kind, Object, ObjectChange, Objects, Policy, SetOrder};

/// The objects of a cloud as trees: a root without a parent, followed by its descendants.
#[derive(Clone, Debug)]
pub struct ObjectTrees<K: Kind>(pub Vec<Objects<K>>);

impl<K: Kind> ObjectTrees<K> {
    /// A cloud with these objects.
    pub fn new(objects: impl IntoIterator<Item = Object<K>>) -> Self {
        let mut trees = Self(Vec::new());
        trees.store(objects.into_iter().collect(), |_| false);
        trees
    }

    /// The trees whose roots are selected.
    fn trees(&self, is_selected: impl Fn(&Object<K>) -> bool) -> impl Iterator<Item = &Objects<K>> {
        let trees = self.0.iter();
        trees.filter(move |tree| tree.all.first().is_some_and(&is_selected))
    }

    /// The objects of a kind without a parent, with their descendants.
    pub fn roots(&self, kind: K) -> impl Iterator<Item = (&Object<K>, &Objects<K>)> {
        let trees = self.trees(move |root| root.kind == kind);
        trees.filter_map(|tree| Some((tree.all.first()?, tree)))
    }

    /// The objects of a kind.
    pub fn of(&self, kind: K) -> impl Iterator<Item = &Object<K>> {
        self.0.iter().flat_map(move |tree| tree.of(kind))
    }

    /// The objects of a kind, for edits.
    pub fn of_mut(&mut self, kind: K) -> impl Iterator<Item = &mut Object<K>> {
        let all = self.0.iter_mut().flat_map(|tree| &mut tree.all);
        all.filter(move |object| object.kind == kind)
    }

    /// The observed state of a part: the trees with its roots.
    pub fn view(&self, is_of_part: impl Fn(&Object<K>) -> bool) -> Objects<K> {
        let trees = self.trees(is_of_part);
        trees.flat_map(|tree| tree.all.clone()).collect()
    }

    /// Stores the [`view`](Self::view) of a part after a change.
    pub fn store(&mut self, after: Objects<K>, is_of_part: impl Fn(&Object<K>) -> bool) {
        self.0.retain(|tree| !tree.all.first().is_some_and(&is_of_part));
        let mut after = after.all;
        for object in &mut after {
            // The owner is derived from the tags with every read.
            object.foreign = None;
        }
        // A number selects the same object in any order of creation.
        let order = |object: &Object<K>| (object.kind, object.parent.clone(), object.key.clone());
        after.sort_by_cached_key(order);
        let is_root = |object: &&Object<K>| !after.iter().any(|parent| object.is_child_of(parent));
        for root in after.iter().filter(is_root) {
            let mut tree = vec![root.clone()];
            let mut at = 0;
            while let Some(parent) = tree.get(at).cloned() {
                tree.extend(after.iter().filter(|object| object.is_child_of(&parent)).cloned());
                at += 1;
            }
            self.0.push(tree.into_iter().collect());
        }
        self.0.sort_by_cached_key(|tree| tree.all.first().map(order));
    }

    /// Deletes one of the selected objects, by number, with its descendants.
    pub fn delete(&mut self, number: usize, is_selected: impl Fn(&Object<K>) -> bool) -> Option<Object<K>> {
        let selected = self.0.iter().enumerate().flat_map(|(at, tree)| {
            let objects = tree.all.iter().filter(|object| is_selected(object));
            objects.map(move |object| (at, object.clone()))
        });
        let (at, object) = pick(selected, number)?;
        self.0.get_mut(at)?.fold(&object.change(Action::Delete(true)), None);
        self.0.retain(|tree| !tree.all.is_empty());
        Some(object)
    }
}

/// The answer to a change: ids of the objects that it creates. `detail` gets an object and the answer, and adds the cloud's values.
pub fn reply<K: Kind>(
    change: &ObjectChange<K>,
    ids: &Ids,
    detail: impl Fn(&Object<K>, Object<K>) -> Object<K>,
) -> ChangeReply<K> {
    let mut reply = ChangeReply::default();
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

/// Why a cloud refuses this change of these objects: the object is in use, or it refers to one that does not exist.
pub fn refusal<K: Kind>(change: &ObjectChange<K>, objects: &Objects<K>) -> Option<String> {
    let references = |object: &Object<K>| object.kind.references(object).unwrap_or_default();
    let missing = |object: &Object<K>| {
        let parent = object.kind.schema().parent.zip(object.parent.clone());
        let mut needed = references(object).into_iter().chain(parent);
        let missing = needed.find(|(kind, key)| objects.get(*kind, key).is_none());
        missing.map(|(kind, key)| format!("{} does not exist", kind.title(&key, None)))
    };
    match &change.action {
        Action::Create(object, _) => missing(object),
        Action::Update(_, attributes) => {
            let mut object = Object::new(change.kind, change.key.clone());
            object.attributes.clone_from(attributes);
            missing(&object)
        }
        Action::Delete(_) => {
            let is_used = |other: &&Object<K>| references(other).contains(&(change.kind, change.key.clone()));
            let user = objects.all.iter().find(is_used)?;
            Some(format!("{} is in use by {}", change.kind.title(&change.key, None), user.title()))
        }
        Action::Add(..) | Action::Remove(..) | Action::Set(..) => None,
    }
}

/// Whether a change deletes an object of one of these kinds.
pub fn deletes<K: Kind>(change: &ObjectChange<K>, kinds: &[K]) -> bool {
    matches!(change.action, Action::Delete(_)) && kinds.contains(&change.kind)
}

/// Edits the entries of one of an object's sets, if it has the set.
pub fn edit_set<K: Kind>(object: &mut Object<K>, set: &str, edit: impl FnOnce(&mut Vec<K::Entry>)) {
    if let Some(entries) = object.sets.get_mut(set) {
        let mut edited = entries.to_vec();
        edit(&mut edited);
        *entries = edited.into();
    }
}

/// The lines of an object: itself, its attributes, the entries of its sets. `hidden` attributes have no line. Differences of
/// `kept` attributes and of kept entries are accepted. The schema is not used, since the laws check its policies.
pub fn lines<K: Kind>(
    object: &Object<K>,
    owner: &Owner,
    [hidden, kept]: [&[&str]; 2],
    is_kept: impl Fn(&K::Entry) -> bool,
) -> Vec<Line> {
    let (title, schema) = (object.title(), object.kind.schema());
    let owner_if = |is_compared| match is_compared {
        true => owner.clone(),
        false => owner.or_cluster(),
    };
    let mut lines = vec![Line::exact(&*title, owner)];
    for attribute in schema.attributes.iter().filter(|shown| !hidden.contains(&shown.name)) {
        let Some(value) = object.attributes.get(attribute.name) else {
            continue;
        };
        let value = match value {
            Value::Null => attribute.default.into(),
            value => value.clone(),
        };
        let text = format!("{} of {title}: {value}", attribute.name);
        lines.push(Line::at_least(text, &owner_if(!kept.contains(&attribute.name))));
    }
    for set in schema.sets {
        lines.extend(object.set(set.name).iter().map(|entry| {
            let text = format!("{} of {title}: {entry}", set.name);
            Line {
                is_exact: set.order != SetOrder::Around,
                ..Line::exact(text, &owner_if(!is_kept(entry)))
            }
        }));
    }
    lines
}

/// Objects that other clients edit.
pub struct ObjectEdits<T, K: Kind> {
    trees: fn(&mut T) -> &mut ObjectTrees<K>,
    is_selected: fn(&Object<K>) -> bool,
}

impl<T: 'static, K: Kind> ObjectEdits<T, K> {
    /// The selected objects in these trees.
    pub fn new(trees: fn(&mut T) -> &mut ObjectTrees<K>, is_selected: fn(&Object<K>) -> bool) -> Self {
        Self { trees, is_selected }
    }

    /// An edit of all selected objects.
    pub fn edit_all(
        &self,
        name: impl Into<String>,
        edit: impl Fn(Vec<&mut Object<K>>, usize) + Send + Sync + 'static,
    ) -> Edit<T> {
        let Self { trees, is_selected } = *self;
        Edit::new(name, move |truth: &mut T, number| {
            let objects = trees(truth).0.iter_mut().flat_map(|tree| &mut tree.all);
            edit(objects.filter(|object| is_selected(object)).collect(), number);
        })
    }

    /// An edit of one selected object. `edit` gets the remainder of the number.
    pub fn edit(
        &self,
        name: impl Into<String>,
        edit: impl Fn(&mut Object<K>, usize) + Send + Sync + 'static,
    ) -> Edit<T> {
        self.edit_all(name, move |objects, number| {
            if let Some(object) = pick(objects, number) {
                edit(object, number / 8);
            }
        })
    }

    /// The deletion of one selected object with its descendants.
    pub fn delete(&self, name: impl Into<String>) -> Edit<T> {
        let Self { trees, is_selected } = *self;
        Edit::new(name, move |truth: &mut T, number| {
            trees(truth).delete(number, is_selected);
        })
    }

    /// Other values of their attributes, and removal of their entries. `what` is in the names of the edits.
    pub fn changes(&self, what: &str) -> Vec<Edit<T>> {
        vec![
            self.edit_all(format!("change attribute of {what}"), change),
            self.edit_all(format!("remove entry of {what}"), remove_entry),
        ]
    }

    /// As [`changes`](Self::changes), and deletion.
    pub fn edits(&self, what: &str) -> Vec<Edit<T>> {
        let mut edits = self.changes(what);
        edits.push(self.delete(format!("delete {what}")));
        edits
    }
}

fn change<K: Kind>(objects: Vec<&mut Object<K>>, number: usize) {
    let changeable = objects.into_iter().flat_map(|object| {
        let schema = object.kind.schema();
        object.attributes.iter_mut().filter_map(|(name, value)| {
            let mut attributes = schema.attributes.iter();
            let attribute = attributes.find(|attribute| attribute.name == *name)?;
            (attribute.policy != Policy::CreateOnly && !value.is_null()).then_some((attribute, value))
        })
    });
    if let Some((attribute, value)) = pick(changeable, number) {
        let default = Value::from(attribute.default);
        *value = match &*value {
            value if !default.is_null() && *value != default => default,
            Value::Number(_) => 77.into(),
            Value::String(_) => "other".into(),
            _ => Value::Null,
        };
    }
}

fn remove_entry<K: Kind>(objects: Vec<&mut Object<K>>, number: usize) {
    let filled = objects.into_iter().flat_map(|object| {
        let schema = object.kind.schema();
        object.sets.iter_mut().filter(|(name, entries)| {
            let mut sets = schema.sets.iter();
            // Tags identify the owner.
            !entries.is_empty() && sets.any(|set| set.name == **name && set.order != SetOrder::Around)
        })
    });
    if let Some((_, entries)) = pick(filled, number) {
        let mut kept = entries.to_vec();
        remove(&mut kept, number / 8, |_| true);
        *entries = kept.into();
    }
}
