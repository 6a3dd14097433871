//! What a cloud of [`Objects`] does, for models whose parts consist of them.

use serde_json::Value;

use super::{Edit, Ids, Line, Owner, pick, remove};
use crate::plan::objects::{Action, Change, Kind, Object, Objects, Policy, Reply, SetOrder};

/// The objects of a cloud as trees: an object that is below no other one is a root, and everything below it follows.
#[derive(Clone, Debug)]
pub struct ObjectTrees<K: Kind>(pub Vec<Objects<K>>);

impl<K: Kind> ObjectTrees<K> {
    /// A cloud with these objects.
    pub fn new(objects: impl IntoIterator<Item = Object<K>>) -> Self {
        let mut trees = Self(Vec::new());
        trees.store(objects.into_iter().collect(), |_| false);
        trees
    }

    /// The trees that are meant, by their roots.
    fn trees(&self, is_meant: impl Fn(&Object<K>) -> bool) -> impl Iterator<Item = &Objects<K>> {
        let trees = self.0.iter();
        trees.filter(move |tree| tree.all.first().is_some_and(&is_meant))
    }

    /// The objects of a kind that has no parent, with everything below them.
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

    /// What observing a part finds: the trees with roots that are of it.
    pub fn view(&self, is_of_part: impl Fn(&Object<K>) -> bool) -> Objects<K> {
        let trees = self.trees(is_of_part);
        trees.flat_map(|tree| tree.all.clone()).collect()
    }

    /// Puts back what [`view`](Self::view) found, after a change.
    pub fn store(&mut self, after: Objects<K>, is_of_part: impl Fn(&Object<K>) -> bool) {
        self.0.retain(|tree| !tree.all.first().is_some_and(&is_of_part));
        let mut after = after.all;
        for object in &mut after {
            // The owner is derived from the tags with every read.
            object.foreign = None;
        }
        // A number chooses the same object in whatever order objects were created.
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

    /// Deletes one of the objects that are meant, by number, with everything below it.
    pub fn delete(&mut self, number: usize, is_meant: impl Fn(&Object<K>) -> bool) -> Option<Object<K>> {
        let meant = self.0.iter().enumerate().flat_map(|(at, tree)| {
            let objects = tree.all.iter().filter(|object| is_meant(object));
            objects.map(move |object| (at, object.clone()))
        });
        let (at, object) = pick(meant, number)?;
        self.0
            .get_mut(at)?
            .fold(&object.change(Action::Delete(true)), None);
        self.0.retain(|tree| !tree.all.is_empty());
        Some(object)
    }
}

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

/// Edits the entries of one of an object's sets, if it has the set.
pub fn edit_set<K: Kind>(object: &mut Object<K>, set: &str, edit: impl FnOnce(&mut Vec<K::Entry>)) {
    if let Some(entries) = object.sets.get_mut(set) {
        let mut edited = entries.to_vec();
        edit(&mut edited);
        *entries = edited.into();
    }
}

/// The lines of an object: itself, its attributes, the entries of its sets. `hidden` attributes have no line; a difference of
/// `kept` attributes and of entries that are kept is accepted. This is not taken from the schema, whose policies the laws
/// check.
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
    for attribute in schema
        .attributes
        .iter()
        .filter(|shown| !hidden.contains(&shown.name))
    {
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

/// Objects that others edit.
pub struct ObjectEdits<T, K: Kind> {
    trees: fn(&mut T) -> &mut ObjectTrees<K>,
    is_meant: fn(&Object<K>) -> bool,
}

impl<T: 'static, K: Kind> ObjectEdits<T, K> {
    /// The objects in these trees that are meant.
    pub fn new(trees: fn(&mut T) -> &mut ObjectTrees<K>, is_meant: fn(&Object<K>) -> bool) -> Self {
        Self { trees, is_meant }
    }

    /// An edit of all of them.
    pub fn edit_all(
        &self,
        name: impl Into<String>,
        edit: impl Fn(Vec<&mut Object<K>>, usize) + Send + Sync + 'static,
    ) -> Edit<T> {
        let Self { trees, is_meant } = *self;
        Edit::new(name, move |truth: &mut T, number| {
            let objects = trees(truth).0.iter_mut().flat_map(|tree| &mut tree.all);
            edit(objects.filter(|object| is_meant(object)).collect(), number);
        })
    }

    /// An edit of one of them. `edit` gets what is left of the number.
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

    /// The deletion of one of them with everything below it.
    pub fn delete(&self, name: impl Into<String>) -> Edit<T> {
        let Self { trees, is_meant } = *self;
        Edit::new(name, move |truth: &mut T, number| {
            trees(truth).delete(number, is_meant);
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
