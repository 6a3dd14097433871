//! The plan from observed to desired objects.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Action, Attributes, KeyedEntry, Kind, Object, ObjectChange, Objects, Policy, Set, SetOrder, list, spaced,
    text,
};
use crate::{
    load_balancer::{Blocked, ServiceId, StepObjects},
    plan::{Plan, Step},
};

/// The desired state of a part.
#[derive(Clone, Debug)]
pub struct Desired<K: Kind> {
    /// All objects. Observed objects that are not foreign and not among them are deleted.
    pub objects: Vec<Object<K>>,
    /// Kinds that are created and deleted with separate calls although the call for their parent includes them.
    pub separate: BTreeSet<K>,
    /// Whether only objects without a parent are created together with their children.
    pub is_below_separate: bool,
    /// Whether the whole list of entries is written, where several changes of a set are one call.
    pub is_whole: fn(&SetDifference) -> bool,
    /// Why objects are deleted.
    pub reason: &'static str,
}

/// How many entries of a set differ, in a set whose [batch](Set::batch) is unlimited.
#[derive(Clone, Copy, Debug)]
pub struct SetDifference {
    /// Observed entries.
    pub observed: usize,
    /// Entries that are missing.
    pub add: usize,
    /// Entries that are present, but not [as desired](super::KeyedEntry::is_as).
    pub change: usize,
    /// Entries that are not desired.
    pub remove: usize,
}

impl<K: Kind> Default for Desired<K> {
    fn default() -> Self {
        Self {
            objects: Vec::new(),
            separate: BTreeSet::new(),
            is_below_separate: false,
            is_whole: |_| false,
            reason: "",
        }
    }
}

impl<K: Kind> Desired<K> {
    /// The changes from the observed to the desired objects, in order.
    #[must_use]
    pub fn diff(&self, observed: &Objects<K>) -> Plan<ObjectChange<K>> {
        let mut diff = Diff {
            desired: self,
            now: observed.clone(),
            first: Vec::new(),
            steps: Vec::new(),
            last: Vec::new(),
            blocked: Vec::new(),
        };
        diff.delete_replaced();
        let mut desired: Vec<_> = self.objects.iter().collect();
        desired.sort_by_key(|object| object.kind);
        for object in desired {
            diff.create_or_update(object);
        }
        diff.delete_surplus();
        let steps = diff.first.into_iter().chain(diff.steps).chain(diff.last);
        Plan {
            steps: steps.collect(),
            blocked: diff.blocked,
        }
    }

    /// As [`diff`](Self::diff), but ownership tags are added to existing objects only if another change is due: an object that
    /// another program created is not written just to be tagged.
    #[must_use]
    pub fn diff_and_adopt(
        &self,
        observed: &Objects<K>,
        is_ownership_tag: impl Fn(&K::Entry) -> bool,
    ) -> Plan<ObjectChange<K>> {
        let mut untagged = self.clone();
        for object in &mut untagged.objects {
            let Some(have) = observed.get(object.kind, &object.key) else {
                continue;
            };
            for (name, entries) in &mut object.sets {
                let is_present = |tag: &K::Entry| have.set(name).iter().any(|entry| entry.key() == tag.key());
                let stay = entries.iter().filter(|entry| !is_ownership_tag(entry) || is_present(entry));
                *entries = stay.cloned().collect();
            }
        }
        let plan = untagged.diff(observed);
        if plan.steps.is_empty() {
            plan
        } else {
            self.diff(observed)
        }
    }

    fn get(&self, object: &Object<K>) -> Option<&Object<K>> {
        self.objects.iter().find(|desired| desired.is_same(object))
    }
}

struct Diff<'a, K: Kind> {
    desired: &'a Desired<K>,
    /// The objects once the steps so far are done.
    now: Objects<K>,
    first: Vec<Step<ObjectChange<K>>>,
    steps: Vec<Step<ObjectChange<K>>>,
    last: Vec<Step<ObjectChange<K>>>,
    blocked: Vec<Blocked>,
}

impl<K: Kind> Diff<'_, K> {
    fn push(&mut self, step: Step<ObjectChange<K>>) {
        self.now.fold(&step.change, None);
        self.steps.push(step);
    }

    fn block(&mut self, object: &Object<K>, field: String, observed: &str, desired: &str) {
        self.blocked.push(Blocked {
            service: object.service.clone(),
            field,
            observed: observed.to_owned(),
            desired: desired.to_owned(),
        });
    }

    fn delete_replaced(&mut self) {
        let replaced = self.now.all.iter().filter_map(|object| {
            let desired = self.desired.get(object).filter(|desired| !desired.if_present)?;
            let (attribute, have, want) = desired.replacement(object)?;
            let reason = format!("its {} is {}, not {}", spaced(attribute.name), text(&have), text(&want));
            Some((object.clone(), desired.service.clone(), reason))
        });
        let replaced = replaced.collect();
        self.delete_all(replaced);
    }

    fn delete_surplus(&mut self) {
        let surplus = self.now.all.iter().filter(|object| self.desired.get(object).is_none());
        let surplus =
            surplus.map(|object| (object.clone(), object.service.clone(), self.desired.reason.to_owned()));
        let surplus = surplus.collect();
        self.delete_all(surplus);
    }

    /// Deletes objects, those that need others first. Skips foreign ones and those that are deleted with their parents.
    fn delete_all(&mut self, mut objects: Vec<(Object<K>, Option<ServiceId>, String)>) {
        objects.retain(|(object, ..)| object.foreign.is_none());
        objects.sort_by_key(|(object, ..)| Reverse(object.kind));
        for (object, service, reason) in &objects {
            let mut parents = objects.iter().filter(|(parent, ..)| object.is_child_of(parent));
            if parents.next().is_none() || !self.is_deleted_with_parent(object) {
                self.delete(object, service.as_ref(), reason);
            }
        }
    }

    fn is_deleted_with_parent(&self, object: &Object<K>) -> bool {
        object.kind.schema().deleted_with_parent && !self.desired.separate.contains(&object.kind)
    }

    /// Deletes an object, and before it those below it that are not deleted with it.
    fn delete(&mut self, object: &Object<K>, service: Option<&ServiceId>, reason: &str) {
        let children = self.now.all.iter().filter(|child| child.is_child_of(object));
        let children = children.map(|child| (child.clone(), service.cloned(), reason.to_owned()));
        let (covered, separate): (Vec<_>, Vec<_>) =
            children.partition(|(child, ..)| self.is_deleted_with_parent(child));
        self.delete_all(separate);
        let step = Step::new(object.change(Action::Delete(!covered.is_empty())));
        let mut step = with_needs(step.for_service(service).because(reason), [object]);
        if let Some(objects) = &mut step.description.objects {
            self.add_below(object, objects);
            objects.uses = &objects.uses - &objects.changes;
        }
        self.push(step);
    }

    /// Adds the objects below this one, which are deleted with it, and those that they refer to.
    fn add_below(&self, object: &Object<K>, objects: &mut StepObjects) {
        for child in self.now.all.iter().filter(|child| child.is_child_of(object)) {
            objects.changes.insert(child.step_name());
            objects.uses.extend(child.needs().unwrap_or_default());
            self.add_below(child, objects);
        }
    }

    fn create_or_update(&mut self, desired: &Object<K>) {
        let same = |object: &&Object<K>| object.is_same(desired);
        let found: Vec<_> = self.now.all.iter().filter(same).cloned().collect();
        match found.as_slice() {
            [] => self.create(desired),
            [object] if object.foreign.is_some() => {
                let owner = object.foreign.as_deref().filter(|_| !desired.if_present);
                if let Some(owner) = owner {
                    self.block(desired, desired.title(), owner, "of this cluster");
                }
            }
            [observed] => self.update(desired, observed, false),
            several => {
                let observed = format!("present {} times", several.len());
                self.block(desired, desired.title(), &observed, "present once");
            }
        }
    }

    fn create(&mut self, desired: &Object<K>) {
        let parent = desired.kind.schema().parent.zip(desired.parent.as_ref());
        let has_parent = parent.is_none_or(|(kind, key)| self.now.get(kind, key).is_some());
        if desired.if_present || !has_parent {
            return;
        }
        let mut children = Vec::new();
        if parent.is_none() || !self.desired.is_below_separate {
            self.children_created_with(desired, &mut children);
        }
        let all: Vec<_> = std::iter::once(desired.clone()).chain(children.iter().cloned()).collect();
        self.push(desired.step(Action::Create(Box::new(desired.clone()), children)));
        for desired in all {
            if let Some(created) = self.now.get(desired.kind, &desired.key).cloned() {
                self.update(&desired, &created, true);
            }
        }
    }

    fn children_created_with(&self, parent: &Object<K>, children: &mut Vec<Object<K>>) {
        let is_covered = |child: &&Object<K>| {
            child.is_child_of(parent)
                && !child.if_present
                && child.kind.schema().created_with_parent
                && !self.desired.separate.contains(&child.kind)
        };
        for child in self.desired.objects.iter().filter(is_covered) {
            children.push(child.clone());
            self.children_created_with(child, children);
        }
    }

    fn update(&mut self, desired: &Object<K>, observed: &Object<K>, is_new: bool) {
        let mut updates: BTreeMap<K::Update, (Attributes, Vec<String>)> = BTreeMap::new();
        for (attribute, have, want) in desired.differences(observed) {
            let (name, have, shown) = (spaced(attribute.name), text(&have), text(&want));
            match attribute.policy {
                Policy::Update(call) => {
                    let (attributes, reasons) = updates.entry(call).or_default();
                    attributes.insert(attribute.name, want);
                    reasons.push(format!("{name} {have} -> {shown}"));
                }
                Policy::Blocked => {
                    self.block(desired, format!("{name} of {}", desired.title()), &have, &shown);
                }
                Policy::Replace | Policy::CreateOnly => {}
            }
        }
        for (call, (attributes, reasons)) in updates {
            let step = desired.step(Action::Update(call, attributes));
            self.push(with_needs(step.because(reasons.join(", ")), [desired, observed]));
        }
        self.fill(desired, observed, is_new);
    }

    /// Adds and removes entries of the object's sets.
    fn fill(&mut self, desired: &Object<K>, observed: &Object<K>, is_new: bool) {
        for set in desired.kind.schema().sets {
            let Some(want) = desired.sets.get(set.name) else {
                continue;
            };
            let (missing, surplus) = self.entries(desired, observed, set, want);
            if set.batch == usize::MAX
                && (self.desired.is_whole)(&difference(observed.set(set.name), &missing, &surplus))
            {
                let step = desired.step(Action::Set(set, Arc::clone(want)));
                self.push(with_needs(step, [desired, observed]));
                continue;
            }
            let chunk = |entries: &[K::Entry], action: &dyn Fn(Arc<[K::Entry]>) -> Action<K>| -> Vec<_> {
                let chunks = entries.chunks(set.batch.max(1));
                let steps = chunks.map(|chunk| {
                    let mut step = desired.step(action(chunk.into()));
                    if is_new && set.order == SetOrder::Around {
                        // Nothing else waits for the tags of a new object.
                        step.description.objects =
                            desired.needs().map(|_| StepObjects::changing([desired.step_name()]));
                    }
                    with_needs(step, [desired, observed])
                });
                steps.collect()
            };
            let add = chunk(&missing, &|entries| Action::Add(set, entries));
            let remove = chunk(&surplus, &|entries| Action::Remove(set, entries));
            for step in add.iter().chain(&remove) {
                self.now.fold(&step.change, None);
            }
            match set.order {
                SetOrder::RemoveFirst => self.steps.extend(remove.into_iter().chain(add)),
                SetOrder::Around if !is_new => {
                    self.first.extend(add);
                    self.last.extend(remove);
                }
                SetOrder::Last if !is_new => self.last.extend(add.into_iter().chain(remove)),
                SetOrder::AddFirst | SetOrder::Last | SetOrder::Around => {
                    self.steps.extend(add.into_iter().chain(remove));
                }
            }
        }
    }

    /// The entries to add and to remove. An entry that the cloud refused since the part was read is blocked instead.
    fn entries(
        &mut self,
        desired: &Object<K>,
        observed: &Object<K>,
        set: &Set<K>,
        want: &[K::Entry],
    ) -> (Vec<K::Entry>, Vec<K::Entry>) {
        let want: BTreeMap<_, _> = want.iter().map(|entry| (entry.key(), entry)).collect();
        let mut have = BTreeMap::new();
        let mut surplus = Vec::new();
        for entry in observed.set(set.name) {
            let key = entry.key();
            match want.get(&key) {
                Some(want) if !have.contains_key(&key) => drop(have.insert(key, entry.is_as(want))),
                None if !(set.is_removable)(entry) => {}
                _ => surplus.push(entry.clone()),
            }
        }
        let missing = want.into_iter().filter(|(key, _)| have.get(key) != Some(&true));
        let mut missing: Vec<_> = missing.map(|(_, entry)| entry.clone()).collect();
        for (entries, state, other) in [
            (&mut missing, "absent", "present"),
            (&mut surplus, "present", "absent"),
        ] {
            let mut refused: BTreeMap<&str, Vec<K::Entry>> = BTreeMap::new();
            entries.retain(|entry| {
                let reason = self.now.why_refused(desired, set, entry);
                let same = reason.map(|reason| refused.entry(reason).or_default());
                same.map(|same| same.push(entry.clone())).is_none()
            });
            // Hundreds may be refused for one reason.
            self.blocked.extend(refused.into_iter().map(|(reason, entries)| Blocked {
                service: desired.service.clone(),
                field: format!("{} {} of {}", set.name, list(&entries), desired.title()),
                observed: format!("{state} ({reason})"),
                desired: other.to_owned(),
            }));
        }
        (missing, surplus)
    }
}

/// The step, which also needs what these objects refer to.
fn with_needs<'a, K: Kind>(
    mut step: Step<ObjectChange<K>>,
    objects: impl IntoIterator<Item = &'a Object<K>>,
) -> Step<ObjectChange<K>> {
    if let Some(concerned) = &mut step.description.objects {
        let needs = objects.into_iter().filter_map(Object::needs).flatten();
        concerned.uses.extend(needs.filter(|name| !concerned.changes.contains(name)));
    }
    step
}

fn difference<E: KeyedEntry>(have: &[E], missing: &[E], surplus: &[E]) -> SetDifference {
    let keys: BTreeSet<_> = have.iter().map(E::key).collect();
    let change = missing.iter().filter(|entry| keys.contains(&entry.key())).count();
    SetDifference {
        observed: have.len(),
        add: missing.len() - change,
        change,
        remove: surplus.len(),
    }
}
