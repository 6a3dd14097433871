//! Plans for clouds whose load balancers consist of several objects, such as OpenStack, AWS and GCE.
//!
//! A provider lists its [kinds](Kind) of objects once, each with a [`Schema`]: attributes with a [`Policy`], sets of entries
//! (targets, rules, tags), the parent, and the labels of the calls. A part is then a list of [`Object`]s, as observed and as
//! desired, and everything else is derived here: the difference, its order, reasons and sentences ([`Desired::diff`]), the
//! effect on the observed objects ([`Objects::fold`]), and the call to send ([`send`]). A provider implements at most create,
//! update, delete, add and remove ([`ObjectCalls`]).
//!
//! # Identity
//!
//! An object is known by its kind and the cloud's own unique key within the part (a listener by its port, a target group by
//! its name), never by an id. The id is looked up among the observed objects when a call is sent.
//!
//! # Order
//!
//! Kinds are ordered: a kind comes after those that it needs. A plan has these steps:
//!
//! 1. Sets with [`SetOrder::Around`] get their missing entries: ownership tags come first.
//! 2. Objects that must be [replaced](Policy::Replace) under the same key are deleted.
//! 3. By kind, missing objects are created and filled, and objects that differ are updated.
//! 4. By kind in reverse, objects that are no longer desired are deleted.
//! 5. Sets with [`SetOrder::Around`] lose their surplus entries: ownership tags go last.
//!
//! If [`Kind::references`] says so, steps are sent at the same time unless one needs the other: the plan's order then only
//! decides which of two steps on the same object, or on an object and one that refers to it, is the first. Additions and
//! removals around everything else stay where they are.
//!
//! An object whose key depends on immutable attributes (a hash in the name) is replaced without a gap: the new one is
//! created and filled, references point to it, then the old one is deleted.

mod diff;
mod send;

use std::{
    collections::BTreeMap,
    fmt::{Debug, Display},
    sync::Arc,
};

use serde_json::Value;
use tokio::time::Instant;

pub use self::{
    diff::{Desired, SetDifference},
    send::{ObjectCalls, send, stale, unsupported},
};
pub use crate::attributes;

use super::{Step, model};
use crate::{
    Result,
    client::Indexed,
    load_balancer::{Effect, OwnNames, ServiceId, StepDescription, StepObjects},
};

/// The kinds of objects of a cloud, usually an enum. A kind is greater than those that its objects need.
pub trait Kind: Copy + Debug + Ord + Send + Sync + 'static {
    /// An entry of the sets of these objects.
    type Entry: KeyedEntry;
    /// A call that gives attributes of an object other values.
    type Update: UpdateCall;

    /// The schema of objects of this kind.
    fn schema(self) -> &'static Schema<Self>;

    /// The other objects of the part that this one refers to, besides its parent: `[(Pool, "web")]` of a forwarding rule. They
    /// are finished before it is created or updated, and deleted after it. With `Some`, the steps on objects of this kind are
    /// sent as soon as the steps on these have ended, at the same time as steps on others. `None`: they are sent one after the
    /// other, in the order of the plan.
    fn references(self, _object: &Object<Self>) -> Option<Vec<(Self, String)>> {
        None
    }

    /// An object in sentences: `listener tcp/80 of load balancer web`.
    fn title(self, key: &str, parent: Option<&str>) -> String {
        let schema = self.schema();
        let parent = schema.parent.zip(parent);
        let parent = parent.map(|(kind, key)| format!(" of {} {key}", kind.schema().name));
        format!("{} {key}{}", schema.name, parent.unwrap_or_default())
    }
}

/// The calls that give attributes of objects other values, usually an enum. A metric label alone is one, for a provider whose call
/// follows from the kind.
pub trait UpdateCall: Copy + Debug + Ord + Send + Sync + 'static {
    /// Its metric label.
    fn label(self) -> &'static str;
}

impl UpdateCall for &'static str {
    fn label(self) -> &'static str {
        self
    }
}

/// An entry of a set: a target, a rule, a tag. `Display` is for sentences.
pub trait KeyedEntry: Clone + Debug + Display + PartialEq + Send + Sync + 'static {
    /// The key of an entry, unique in its set.
    type Key: Ord;

    /// The key of the entry.
    fn key(&self) -> Self::Key;

    /// Whether this observed entry equals the desired one with the same key. If not, the desired one is added over it.
    fn is_as(&self, _desired: &Self) -> bool {
        true
    }
}

/// The schema of a kind of objects.
#[derive(Debug)]
pub struct Schema<K: Kind> {
    /// The kind in sentences: `security group`.
    pub name: &'static str,
    /// The kind that they belong to.
    pub parent: Option<K>,
    /// The metric label of a create.
    pub create: &'static str,
    /// The metric label of a delete.
    pub delete: &'static str,
    /// Whether the call that creates the parent creates them, too.
    pub created_with_parent: bool,
    /// Whether the call that deletes the parent deletes them, too.
    pub deleted_with_parent: bool,
    /// Whether they have a place for the ownership tag. If not, only their names prove that they are this cluster's; see
    /// [`Objects::hold_unproven`].
    pub has_ownership_tag: bool,
    /// Their attributes.
    pub attributes: &'static [Attribute<K::Update>],
    /// Their sets.
    pub sets: &'static [Set<K>],
}

impl<K: Kind> Schema<K> {
    /// A kind without a parent, attributes and sets.
    #[must_use]
    pub const fn new(name: &'static str, create: &'static str, delete: &'static str) -> Self {
        Self {
            name,
            parent: None,
            create,
            delete,
            created_with_parent: false,
            deleted_with_parent: false,
            has_ownership_tag: true,
            attributes: &[],
            sets: &[],
        }
    }
}

/// An attribute of a kind.
#[derive(Debug)]
pub struct Attribute<U> {
    /// Its name in [`Attributes`].
    pub name: &'static str,
    /// How it is changed.
    pub policy: Policy<U>,
    /// Its value if the cloud does not report it, or if it is unset again.
    pub default: Scalar,
    /// Whether the call that creates the object does not accept it: a new object has the default, and is updated at once.
    pub after_create: bool,
}

impl<U: Copy> Attribute<U> {
    /// An attribute without a default.
    #[must_use]
    pub const fn new(name: &'static str, policy: Policy<U>) -> Self {
        Self {
            name,
            policy,
            default: Scalar::Null,
            after_create: false,
        }
    }

    /// The attribute, which the call that creates the object does not accept.
    #[must_use]
    pub const fn after_create(mut self) -> Self {
        self.after_create = true;
        self
    }

    /// The attribute with this default.
    #[must_use]
    pub const fn or(mut self, default: Scalar) -> Self {
        self.default = default;
        self
    }
}

/// Lists attributes: a line for each policy, with the default and `after_create` if they apply, and the names.
///
/// ```
/// use ccm_core::plan::objects::{Attribute, Policy, Scalar, attributes};
///
/// const CHECK: Policy<&str> = Policy::Update("check_update");
/// static ATTRIBUTES: &[Attribute<&str>] = attributes! {
///     [Policy::CreateOnly] "name", "network";
///     [CHECK, Scalar::Number(3)] "threshold";
///     [CHECK, Scalar::Bool(false); after_create] "strict";
/// };
///
/// assert_eq!(ATTRIBUTES.len(), 4);
/// assert!(ATTRIBUTES[3].after_create && ATTRIBUTES[2].default == Scalar::Number(3));
/// ```
#[macro_export]
macro_rules! attributes {
    (@one $name:expr, [$policy:expr $(, $default:expr)? $(; $later:ident)?]) => {
        $crate::plan::objects::Attribute::new($name, $policy) $(.or($default))? $(.$later())?
    };
    ($($how:tt $($name:expr),+;)+) => {
        &[$($($crate::attributes!(@one $name, $how)),+),+]
    };
}

/// A constant value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// No value.
    Null,
    /// A flag.
    Bool(bool),
    /// A number.
    Number(i64),
    /// A text.
    Text(&'static str),
    /// The empty list.
    List,
}

impl From<Scalar> for Value {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Null => Self::Null,
            Scalar::Bool(value) => value.into(),
            Scalar::Number(value) => value.into(),
            Scalar::Text(value) => value.into(),
            Scalar::List => Self::Array(Vec::new()),
        }
    }
}

/// How an attribute is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy<U> {
    /// By this call. Attributes with the same call are changed together.
    Update(U),
    /// The object is deleted and created again, since its key is unique.
    Replace,
    /// It is used for new objects only; a difference is accepted.
    CreateOnly,
    /// It cannot be changed, and the difference is reported as blocked.
    Blocked,
}

/// A set of entries that objects of a kind have.
#[derive(Debug)]
pub struct Set<K: Kind> {
    /// An entry in sentences: `rule`.
    pub name: &'static str,
    /// The metric label of adding.
    pub add: &'static str,
    /// The metric label of removing.
    pub remove: &'static str,
    /// The most entries of one call. One: an entry is created and deleted like an object. `usize::MAX`: one call has all of
    /// them, and they are refused together.
    pub batch: usize,
    /// Whether the call that creates the object includes the entries.
    pub created_with_object: bool,
    /// Whether the call that creates the object's parent and, with it, the object includes the entries.
    pub created_with_parent: bool,
    /// When entries are added and removed.
    pub order: SetOrder,
    /// The entries that the cloud itself adds to a new object.
    pub initial: fn() -> Vec<K::Entry>,
    /// Whether an entry that is not desired may be removed; other entries belong to other clients.
    pub is_removable: fn(&K::Entry) -> bool,
}

impl<K: Kind> Set<K> {
    /// A set that is managed as a whole, with one call for each entry.
    #[must_use]
    pub const fn new(name: &'static str, add: &'static str, remove: &'static str) -> Self {
        Self {
            name,
            add,
            remove,
            batch: 1,
            created_with_object: false,
            created_with_parent: false,
            order: SetOrder::AddFirst,
            initial: Vec::new,
            is_removable: |_| true,
        }
    }
}

/// When the entries of a set are added and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetOrder {
    /// Missing entries are added before surplus ones are removed, so that traffic is not interrupted.
    AddFirst,
    /// Surplus entries are removed before missing ones are added, so that a full set can be exchanged.
    RemoveFirst,
    /// As `AddFirst`, after everything else: the entries refer to other objects of the part.
    Last,
    /// Missing entries are added before everything else and surplus ones removed after it, so that a process that is killed
    /// in between finds the remaining objects by them.
    Around,
}

/// Attributes by name.
pub type Attributes = BTreeMap<&'static str, Value>;

/// An object of a part, observed or desired.
#[derive(Clone, Debug, PartialEq)]
pub struct Object<K: Kind> {
    /// Its kind.
    pub kind: K,
    /// Its key, unique among the objects of its kind in the part.
    pub key: String,
    /// The key of its parent.
    pub parent: Option<String>,
    /// Its id in the cloud; empty while it is not known.
    pub id: String,
    /// Its attributes. A desired object lists those that are managed; `null` means the default.
    pub attributes: Attributes,
    /// Its sets by name. A desired object lists those that are managed.
    pub sets: BTreeMap<&'static str, Arc<[K::Entry]>>,
    /// Its other owner, for messages; `None` if it may be changed and deleted. Observed objects only.
    pub foreign: Option<String>,
    /// The Service that it is for; `None` if several. Of an observed object: the Service for which it is deleted.
    pub service: Option<ServiceId>,
    /// Whether it is not created if it does not exist. Desired objects only.
    pub if_present: bool,
}

impl<K: Kind> Object<K> {
    /// An object with this key.
    pub fn new(kind: K, key: impl Into<String>) -> Self {
        Self {
            kind,
            key: key.into(),
            parent: None,
            id: String::new(),
            attributes: Attributes::new(),
            sets: BTreeMap::new(),
            foreign: None,
            service: None,
            if_present: false,
        }
    }

    /// The object with this attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.insert(name, value.into());
        self
    }

    /// The object with this set.
    #[must_use]
    pub fn entries(mut self, set: &'static str, entries: impl IntoIterator<Item = K::Entry>) -> Self {
        self.sets.insert(set, entries.into_iter().collect());
        self
    }

    /// The entries of a set.
    #[must_use]
    pub fn set(&self, name: &str) -> &[K::Entry] {
        self.sets.get(name).map(|entries| &**entries).unwrap_or_default()
    }

    /// The entry of a set that corresponds to `entry`: an equal one, else one with the same key.
    fn entry(&self, set: &str, entry: &K::Entry) -> Option<&K::Entry> {
        let entries = self.set(set);
        let same = entries.iter().find(|known| *known == entry);
        same.or_else(|| entries.iter().find(|known| known.key() == entry.key()))
    }

    /// An attribute that is a text; empty if it is missing.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.attributes.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// The texts in an attribute that is a list.
    #[must_use]
    pub fn texts(&self, name: &str) -> Vec<&str> {
        let list = self.attributes.get(name).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// The object in sentences.
    #[must_use]
    pub fn title(&self) -> String {
        self.kind.title(&self.key, self.parent.as_deref())
    }

    fn is(&self, kind: K, key: &str) -> bool {
        self.kind == kind && self.key == key
    }

    fn is_same(&self, other: &Self) -> bool {
        self.is(other.kind, &other.key)
    }

    pub(crate) fn is_child_of(&self, parent: &Self) -> bool {
        self.kind.schema().parent == Some(parent.kind) && self.parent.as_ref() == Some(&parent.key)
    }

    /// Whether the observed object is deleted and created again as this one.
    #[must_use]
    pub fn replaces(&self, observed: &Self) -> bool {
        self.replacement(observed).is_some()
    }

    /// The first difference that cannot be changed in place, with both values.
    fn replacement(&self, observed: &Self) -> Option<(&'static Attribute<K::Update>, Value, Value)> {
        let mut differences = self.differences(observed);
        differences.find(|(attribute, ..)| attribute.policy == Policy::Replace)
    }

    /// The managed attributes that differ from the observed ones, with both values.
    fn differences(
        &self,
        observed: &Self,
    ) -> impl Iterator<Item = (&'static Attribute<K::Update>, Value, Value)> {
        self.kind.schema().attributes.iter().filter_map(|attribute| {
            let or_default = |value: Option<&Value>| {
                let value = value.filter(|value| !value.is_null()).cloned();
                value.unwrap_or_else(|| attribute.default.into())
            };
            let want = or_default(Some(self.attributes.get(attribute.name)?));
            let have = or_default(observed.attributes.get(attribute.name));
            (have != want).then_some((attribute, have, want))
        })
    }

    /// A change of the object.
    #[must_use]
    pub fn change(&self, action: Action<K>) -> ObjectChange<K> {
        ObjectChange {
            kind: self.kind,
            key: self.key.clone(),
            parent: self.parent.clone(),
            action,
        }
    }

    /// The name of the object in [`StepObjects`].
    fn step_name(&self) -> String {
        step_name(self.kind, &self.key)
    }

    /// The objects that a step on this one needs: its parent, and those that it refers to. `None`: the step is sent alone.
    fn needs(&self) -> Option<Vec<String>> {
        let parent = self.kind.schema().parent.zip(self.parent.clone());
        let references = self.kind.references(self)?;
        Some(references.into_iter().chain(parent).map(|(kind, key)| step_name(kind, &key)).collect())
    }

    /// A step for the object's Service.
    #[must_use]
    pub fn step(&self, action: Action<K>) -> Step<ObjectChange<K>> {
        Step::new(self.change(action)).for_service(self.service.as_ref())
    }

    /// The object as it is observed after its creation, as far as that is known before.
    fn created(&self, with_parent: bool) -> Self {
        let mut new = self.clone();
        (new.service, new.if_present) = (None, false);
        for attribute in self.kind.schema().attributes.iter().filter(|attribute| attribute.after_create) {
            new.attributes.remove(attribute.name);
        }
        for set in self.kind.schema().sets {
            if !(set.created_with_object || (with_parent && set.created_with_parent)) {
                new.sets.insert(set.name, (set.initial)().into());
            }
        }
        new
    }
}

/// In a shared listing, an object is found by its ID, its key and the key of its parent.
impl<K: Kind> Indexed for Object<K> {
    fn id(&self) -> &str {
        &self.id
    }

    fn index_keys(&self) -> Vec<&str> {
        let parent = self.parent.as_deref().into_iter();
        parent.chain([self.key.as_str()]).collect()
    }
}

/// The observed objects of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Objects<K: Kind> {
    /// All objects.
    pub all: Vec<Object<K>>,
    /// Entries that the cloud refused since the part was read, and since an entry of their set was removed.
    pub refused: Vec<Refused<K>>,
}

impl<K: Kind> Default for Objects<K> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            refused: Vec::new(),
        }
    }
}

impl<K: Kind> FromIterator<Object<K>> for Objects<K> {
    fn from_iter<I: IntoIterator<Item = Object<K>>>(objects: I) -> Self {
        Self {
            all: objects.into_iter().collect(),
            refused: Vec::new(),
        }
    }
}

/// An entry that the cloud refused.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused<K: Kind> {
    /// The kind of the object.
    pub kind: K,
    /// Its key.
    pub key: String,
    /// The set.
    pub set: &'static str,
    /// The entry.
    pub entry: K::Entry,
    /// The reason.
    pub reason: String,
    /// The time of the refusal. A provider that remembers observed objects forgets it after some minutes, so that the entry is
    /// tried again.
    pub since: Instant,
}

/// One change of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectChange<K: Kind> {
    /// The kind of the object.
    pub kind: K,
    /// Its key.
    pub key: String,
    /// The key of its parent.
    pub parent: Option<String>,
    /// The action.
    pub action: Action<K>,
}

/// The action of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<K: Kind> {
    /// Creates the object and, by the same call, these below it.
    Create(Box<Object<K>>, Vec<Object<K>>),
    /// Gives attributes other values, by this call.
    Update(K::Update, Attributes),
    /// Deletes the object; whether with everything below it.
    Delete(bool),
    /// Adds entries to a set.
    Add(&'static Set<K>, Arc<[K::Entry]>),
    /// Removes entries from a set.
    Remove(&'static Set<K>, Arc<[K::Entry]>),
    /// Gives a set these entries and no others.
    Set(&'static Set<K>, Arc<[K::Entry]>),
}

impl<K: Kind> PartialEq for Set<K> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

/// The cloud's reply to a change.
#[derive(Clone, Debug)]
pub struct ChangeReply<K: Kind> {
    /// Objects in the reply, with ids and addresses. Merged into the objects with the same keys.
    pub objects: Vec<Object<K>>,
    /// The added entries as they are read, if they differ from those that were sent.
    pub entries: Vec<K::Entry>,
    /// Entries that were refused, with the reason.
    pub refused: Vec<(K::Entry, String)>,
}

impl<K: Kind> Default for ChangeReply<K> {
    fn default() -> Self {
        Self {
            objects: Vec::new(),
            entries: Vec::new(),
            refused: Vec::new(),
        }
    }
}

impl<K: Kind> ChangeReply<K> {
    /// A reply with one object.
    #[must_use]
    pub fn object(object: Object<K>) -> Self {
        Self {
            objects: vec![object],
            ..Self::default()
        }
    }
}

impl<K: Kind> Objects<K> {
    /// The object with this key.
    #[must_use]
    pub fn get(&self, kind: K, key: &str) -> Option<&Object<K>> {
        self.all.iter().find(|object| object.is(kind, key))
    }

    /// The id of the object with this key.
    ///
    /// # Errors
    /// [`stale`] if it is not known: the part changed since it was observed and must be read again.
    pub fn id(&self, kind: K, key: &str) -> Result<&str> {
        let object = self.get(kind, key).filter(|object| !object.id.is_empty());
        object.map(|object| object.id.as_str()).ok_or_else(stale)
    }

    /// The objects of a kind.
    pub fn of(&self, kind: K) -> impl Iterator<Item = &Object<K>> {
        self.all.iter().filter(move |object| object.kind == kind)
    }

    /// Marks objects of kinds that have [no place for the ownership tag](Schema::has_ownership_tag) as foreign unless their names
    /// prove that they are this cluster's: by the UID of a member, or by the cluster's ID.
    pub fn hold_unproven(&mut self, names: &OwnNames) {
        for object in &mut self.all {
            let has_tag = object.kind.schema().has_ownership_tag;
            if !has_tag && object.foreign.is_none() && !names.prove(&object.key) {
                object.foreign = Some("with a name that does not prove that it is this cluster's".to_owned());
            }
        }
    }

    /// Applies a change. Without a reply: as far as its effect is known beforehand.
    pub fn fold(&mut self, change: &ObjectChange<K>, reply: Option<&ChangeReply<K>>) {
        let none = ChangeReply::default();
        let reply = reply.unwrap_or(&none);
        match &change.action {
            Action::Create(object, children) => {
                let objects = std::iter::once((&**object, false));
                for (object, with_parent) in objects.chain(children.iter().map(|child| (child, true))) {
                    if self.get(object.kind, &object.key).is_none() {
                        self.all.push(object.created(with_parent));
                    }
                }
            }
            Action::Delete(_) => {
                let deleted = self.all.iter().position(|object| object.is(change.kind, &change.key));
                if let Some(deleted) = deleted.map(|at| self.all.remove(at)) {
                    self.delete_below(&deleted);
                }
            }
            Action::Update(_, attributes) => {
                if let Some(object) = self.get_mut(change.kind, &change.key) {
                    object.attributes.extend(attributes.clone());
                }
            }
            Action::Add(set, entries) => self.change_set(change, set, entries, &[], reply),
            Action::Remove(set, entries) => self.change_set(change, set, &[], entries, reply),
            Action::Set(set, entries) => {
                if let Some(object) = self.get_mut(change.kind, &change.key) {
                    object.sets.insert(set.name, Arc::clone(entries));
                }
            }
        }
        for answered in &reply.objects {
            if let Some(object) = self.get_mut(answered.kind, &answered.key) {
                object.id.clone_from(&answered.id);
                object.attributes.extend(answered.attributes.clone());
                object.sets.extend(answered.sets.clone());
            }
        }
    }

    fn change_set(
        &mut self,
        change: &ObjectChange<K>,
        set: &'static Set<K>,
        add: &[K::Entry],
        remove: &[K::Entry],
        reply: &ChangeReply<K>,
    ) {
        if remove.len() > reply.refused.len() {
            // A removed entry frees space for one that exceeded a quota.
            let of = (change.kind, &change.key, set.name);
            self.refused.retain(|refused| (refused.kind, &refused.key, refused.set) != of);
        }
        self.refused.extend(reply.refused.iter().map(|(entry, reason)| Refused {
            kind: change.kind,
            key: change.key.clone(),
            set: set.name,
            entry: entry.clone(),
            reason: reason.clone(),
            since: Instant::now(),
        }));
        let Some(object) = self.get_mut(change.kind, &change.key) else {
            return;
        };
        let is_done = |entry: &&K::Entry| {
            let mut refused = reply.refused.iter();
            !refused.any(|(refused, _)| refused.key() == entry.key())
        };
        let added = add.iter().filter(is_done).chain(&reply.entries);
        // The last one of several with the same key counts.
        let added: BTreeMap<_, _> = added.map(|entry| (entry.key(), entry)).collect();
        let removed = remove.iter().filter(is_done);
        let removed: Vec<_> = removed.filter_map(|entry| object.entry(set.name, entry)).collect();
        let is_removed = |entry: &K::Entry| removed.contains(&entry);
        let is_kept = |entry: &&K::Entry| !added.contains_key(&entry.key()) && !is_removed(entry);
        let have = object.set(set.name).iter().filter(is_kept);
        let now = have.chain(added.values().copied()).cloned().collect();
        object.sets.insert(set.name, now);
    }

    fn get_mut(&mut self, kind: K, key: &str) -> Option<&mut Object<K>> {
        self.all.iter_mut().find(|object| object.is(kind, key))
    }

    fn delete_below(&mut self, parent: &Object<K>) {
        while let Some(child) = self.all.iter().position(|object| object.is_child_of(parent)) {
            let child = self.all.remove(child);
            self.delete_below(&child);
        }
    }

    fn why_refused(&self, object: &Object<K>, set: &Set<K>, entry: &K::Entry) -> Option<&str> {
        let mut refused = self.refused.iter();
        let same = |refused: &&Refused<K>| {
            object.is(refused.kind, &refused.key)
                && refused.set == set.name
                && refused.entry.key() == entry.key()
        };
        refused.find(same).map(|refused| refused.reason.as_str())
    }
}

impl<K: Kind> model::CloudChange for ObjectChange<K> {
    fn describe(&self) -> StepDescription {
        let schema = self.kind.schema();
        let title = self.kind.title(&self.key, self.parent.as_deref());
        let (label, effect, sentence) = match &self.action {
            Action::Create(_, children) => {
                let direct = children.iter().filter(|child| child.parent.as_ref() == Some(&self.key));
                let direct: Vec<_> =
                    direct.map(|child| format!("{} {}", child.kind.schema().name, child.key)).collect();
                let with = if direct.is_empty() { "" } else { " with " };
                let children = if direct.is_empty() {
                    String::new()
                } else {
                    list(&direct)
                };
                (schema.create, Effect::Create, format!("create {title}{with}{children}"))
            }
            Action::Update(call, _) => (call.label(), Effect::Change, format!("change {title}")),
            Action::Delete(cascade) => {
                let below = if *cascade { " and everything below it" } else { "" };
                (schema.delete, Effect::Delete, format!("delete {title}{below}"))
            }
            Action::Add(set, entries) => set.describe(set.add, Effect::Create, &title, entries),
            Action::Remove(set, entries) => set.describe(set.remove, Effect::Delete, &title, entries),
            Action::Set(set, entries) => {
                let sentence = format!("set the {}s of {title} to {}", set.name, list(entries));
                (set.add, Effect::Change, sentence)
            }
        };
        let is_object = matches!(self.action, Action::Create(..));
        StepDescription {
            objects: self.step_objects(),
            creates: is_object.then_some(title),
            ..StepDescription::new(label, effect, sentence)
        }
    }
}

impl<K: Kind> ObjectChange<K> {
    /// The objects that the change concerns, as far as it names them.
    fn step_objects(&self) -> Option<StepObjects> {
        let around = |set: &'static Set<K>| set.order == SetOrder::Around;
        let mut objects = Object::new(self.kind, self.key.clone());
        objects.parent.clone_from(&self.parent);
        match &self.action {
            Action::Create(object, children) => {
                let all = || std::iter::once(&**object).chain(children);
                let needs: Option<Vec<_>> = all().map(Object::needs).collect();
                let created = StepObjects::changing(all().map(Object::step_name));
                let needs = needs?.into_iter().flatten().filter(|name| !created.changes.contains(name));
                let needs: Vec<_> = needs.collect();
                return Some(created.using(needs));
            }
            Action::Add(set, _) | Action::Remove(set, _) | Action::Set(set, _) if around(set) => {
                return None;
            }
            Action::Update(_, attributes) => objects.attributes.clone_from(attributes),
            Action::Delete(_) | Action::Add(..) | Action::Remove(..) | Action::Set(..) => {}
        }
        Some(StepObjects::changing([objects.step_name()]).using(objects.needs()?))
    }
}

impl<K: Kind> Set<K> {
    /// Entries that are sent one by one are created and deleted; batches are added and removed.
    fn describe(
        &self,
        label: &'static str,
        effect: Effect,
        title: &str,
        entries: &[K::Entry],
    ) -> (&'static str, Effect, String) {
        let (name, entries) = (self.name, list(entries));
        match (effect, self.batch) {
            (Effect::Create, 1) => (label, effect, format!("create {name} in {title}: {entries}")),
            (_, 1) => (label, effect, format!("delete {name} in {title}: {entries}")),
            (Effect::Create, _) => (label, Effect::Change, format!("add {name}s {entries} to {title}")),
            (..) => (label, Effect::Change, format!("remove {name}s {entries} from {title}")),
        }
    }
}

fn step_name<K: Kind>(kind: K, key: &str) -> String {
    format!("{} {key}", kind.schema().name)
}

/// Items for people, only the first ones if there are many.
pub(super) fn list(items: &[impl Display]) -> String {
    const SHOWN: usize = 10;
    let shown: Vec<_> = items.iter().take(SHOWN).map(ToString::to_string).collect();
    match items.len() {
        0 => "none".to_owned(),
        all if all > SHOWN => format!("{} and {} more", shown.join(", "), all - SHOWN),
        _ => shown.join(", "),
    }
}

/// A value for people.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) if text.is_empty() => "not set".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn spaced(name: &str) -> String {
    name.replace('_', " ")
}
