//! The engine's state of Services between passes. It can be rebuilt by reading: after a restart it is empty, and the first
//! pass over each part fills it without a write.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::model::{PartModel, PartOutput};
use crate::load_balancer::{Effects, ServiceId, ServiceView};

/// The state of all Services.
pub(super) struct Memory<M: PartModel> {
    services: HashMap<ServiceId, ServiceMemory<M>>,
    /// Keys that a create replaced, until the listings show the new ones.
    aliases: HashMap<M::Key, Alias<M::Key>>,
    /// Discoveries are numbered in the order in which they begin to read.
    discoveries: u64,
    /// The discoveries that have not ended.
    reading: BTreeSet<u64>,
    /// Grows whenever a discovery would have another result: a key is replaced, a part is left.
    pub(super) names: u64,
    /// Grows whenever a pass over another part may have another result.
    pub(super) version: u64,
}

/// The key that replaced another one.
struct Alias<K> {
    now: K,
    /// Discoveries from this one on see the new key in the listings. Earlier ones may have read listings that do not show
    /// it yet: for them the old key still means the new one.
    shown: Option<u64>,
}

/// A Service that was in no snapshot for this long is forgotten. A pass has the snapshot of when it began: a Service that is
/// not in it may be newer.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// A create that takes longer has ended without a notice.
const CREATING: Duration = Duration::from_secs(300);

struct ServiceMemory<M: PartModel> {
    /// When the Service was last in the snapshot of a discovery.
    seen: Instant,
    /// The output of its parts.
    output: BTreeMap<M::Key, PartOutput<M::Facts>>,
    /// The parts whose `output` is early, since they are still being built.
    early: BTreeSet<M::Key>,
    /// The view of the Service that each part serves.
    served: BTreeMap<M::Key, Arc<ServiceView>>,
    /// Parts that it has left.
    left: BTreeSet<M::Key>,
    /// The effects on the Service object of the parts that it left.
    last_effects: Effects,
    /// The parts that it leaves since it wants no load balancer. A part that is deleted has another key afterwards (its
    /// name, not its id), and is not left a second time under that key.
    leaves: Vec<M::Key>,
    /// The parts that it leaves although it wants a load balancer, since it does not name them. The last step removes the
    /// ownership tag or the object, so that the listings no longer show such a part before the Service has left it.
    unnamed: Vec<M::Key>,
    /// The part in which a create for it is in progress, and since when.
    creating: Option<(M::Key, Instant)>,
}

impl<M: PartModel> Default for ServiceMemory<M> {
    fn default() -> Self {
        Self {
            seen: Instant::now(),
            output: BTreeMap::new(),
            early: BTreeSet::new(),
            served: BTreeMap::new(),
            left: BTreeSet::new(),
            last_effects: Effects::default(),
            leaves: Vec::new(),
            unnamed: Vec::new(),
            creating: None,
        }
    }
}

impl<M: PartModel> Default for Memory<M> {
    fn default() -> Self {
        Self {
            services: HashMap::new(),
            aliases: HashMap::new(),
            discoveries: 0,
            reading: BTreeSet::new(),
            names: 0,
            version: 0,
        }
    }
}

/// The changes of a part's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    /// It now serves the current view of the Service.
    pub(super) serves: bool,
    /// It has other facts than before.
    pub(super) facts: bool,
}

impl<M: PartModel> Memory<M> {
    /// The current key for this one.
    pub(super) fn current(&self, key: &M::Key) -> M::Key {
        self.aliases.get(key).map_or(key, |alias| &alias.now).clone()
    }

    /// The current key for this one in a discovery.
    pub(super) fn current_in(&self, discovery: u64, key: &M::Key) -> M::Key {
        let alias = self.aliases.get(key);
        let alias = alias.filter(|alias| alias.shown.is_none_or(|shown| discovery < shown));
        alias.map_or(key, |alias| &alias.now).clone()
    }

    /// Begins a discovery; returns its number.
    pub(super) fn begin_discovery(&mut self) -> u64 {
        self.discoveries += 1;
        self.reading.insert(self.discoveries);
        self.discoveries
    }

    /// Ends a discovery.
    pub(super) fn end_discovery(&mut self, discovery: u64) {
        self.reading.remove(&discovery);
        let oldest = self.reading.first().copied().unwrap_or(u64::MAX);
        self.aliases.retain(|_, alias| alias.shown.is_none_or(|shown| oldest < shown));
    }

    /// From now on `old` means `new`.
    pub(super) fn rename(&mut self, old: &M::Key, new: &M::Key) {
        self.names += 1;
        self.version += 1;
        // No chains: a key that meant the old one means the new one.
        for alias in self.aliases.values_mut().filter(|alias| alias.now == *old) {
            alias.now.clone_from(new);
        }
        let alias = Alias {
            now: new.clone(),
            shown: None,
        };
        self.aliases.insert(old.clone(), alias);
        self.aliases.retain(|from, alias| *from != alias.now);
        for known in self.services.values_mut() {
            if let Some(output) = known.output.remove(old) {
                known.output.insert(new.clone(), output);
            }
            if known.early.remove(old) {
                known.early.insert(new.clone());
            }
            if let Some(view) = known.served.remove(old) {
                known.served.insert(new.clone(), view);
            }
            let leaves = known.leaves.iter_mut().chain(&mut known.unnamed);
            for key in leaves.filter(|key| *key == old) {
                key.clone_from(new);
            }
        }
    }

    /// The object of this key was deleted before a listing showed it: its old keys are valid again.
    pub(super) fn vanished(&mut self, key: &M::Key) {
        let before = self.aliases.len();
        self.aliases.retain(|_, alias| alias.now != *key || alias.shown.is_some());
        self.names += u64::from(self.aliases.len() < before);
    }

    /// The listings show these keys: from the next discovery on, their old keys are no longer replaced.
    pub(super) fn listed(&mut self, keys: &HashSet<M::Key>) {
        let next = self.discoveries + 1;
        for alias in self.aliases.values_mut() {
            if alias.shown.is_none() && keys.contains(&alias.now) {
                alias.shown = Some(next);
                self.names += 1;
            }
        }
    }

    /// Forgets Services that no longer exist. `exists`: is in the snapshot of a discovery, maybe not of the newest one.
    pub(super) fn retain(&mut self, exists: impl Fn(&ServiceId) -> bool) {
        let now = Instant::now();
        self.services.retain(|id, known| {
            if exists(id) {
                known.seen = now;
            }
            now.saturating_duration_since(known.seen) < FORGOTTEN
        });
    }

    pub(super) fn output(&self, id: &ServiceId, key: &M::Key) -> Option<&PartOutput<M::Facts>> {
        self.services.get(id)?.output.get(key)
    }

    /// A create for the Service is sent in this part.
    pub(super) fn create_begins(&mut self, id: &ServiceId, key: &M::Key) {
        let known = self.services.entry(id.clone()).or_default();
        known.creating = Some((key.clone(), Instant::now()));
    }

    /// The create in this part has ended.
    pub(super) fn create_ended(&mut self, id: &ServiceId, key: &M::Key) {
        if let Some(known) = self.services.get_mut(id) {
            known.creating.take_if(|(creating, _)| creating == key);
        }
    }

    /// The part in which a create for the Service is in progress.
    pub(super) fn creates_in(&self, id: &ServiceId) -> Option<&M::Key> {
        let (key, since) = self.services.get(id)?.creating.as_ref()?;
        (since.elapsed() < CREATING).then_some(key)
    }

    pub(super) fn has_served(&self, id: &ServiceId, key: &M::Key) -> bool {
        self.services.get(id).is_some_and(|known| known.served.contains_key(key))
    }

    pub(super) fn serves_now(&self, view: &ServiceView, key: &M::Key) -> bool {
        self.services
            .get(&view.id)
            .and_then(|known| known.served.get(key))
            .is_some_and(|served| served.asks_the_same(view))
    }

    pub(super) fn has_left(&self, id: &ServiceId, key: &M::Key) -> bool {
        self.services.get(id).is_some_and(|known| known.left.contains(key))
    }

    /// The parts that a Service that wants a load balancer (again) leaves: `tagged`, which have its ownership tag, and those
    /// that had it before and that the Service has not left.
    pub(super) fn unnamed(&mut self, id: &ServiceId, named: &[M::Key], tagged: Vec<M::Key>) -> Vec<M::Key> {
        let known = self.services.entry(id.clone()).or_default();
        known.leaves.clear();
        // What it removed when it wanted none does not count any more.
        known.last_effects = Effects::default();
        let is_listed = |key: &M::Key| named.contains(key) || tagged.contains(key);
        known.unnamed.retain(|key| !is_listed(key) && !known.left.contains(key));
        known.unnamed.splice(0..0, tagged);
        known.unnamed.clone()
    }

    /// The parts that a Service that wants no load balancer leaves: those that it left or leaves already, or `all` if
    /// it begins now, and those that still have its ownership tag.
    pub(super) fn leaves(&mut self, id: &ServiceId, all: Vec<M::Key>, tagged: &[M::Key]) -> Vec<M::Key> {
        if all.is_empty() {
            return all;
        }
        let known = self.services.entry(id.clone()).or_default();
        if known.leaves.is_empty() {
            known.leaves.clone_from(&all);
            // If it returns to the form in which they served it, they no longer do.
            known.served.clear();
            return all;
        }
        let new = tagged.iter().filter(|key| !known.leaves.contains(key));
        new.chain(&known.leaves).cloned().collect()
    }

    /// The Service joins this part (again).
    pub(super) fn rejoin(&mut self, id: &ServiceId, key: &M::Key) {
        if let Some(known) = self.services.get_mut(id)
            && known.left.remove(key)
        {
            self.version += 1;
        }
    }

    /// Sets the output of a part. `serves`: the part applies the whole spec. `later`: the parts that use its facts.
    pub(super) fn set_output(
        &mut self,
        view: &Arc<ServiceView>,
        key: &M::Key,
        output: PartOutput<M::Facts>,
        serves: bool,
        later: &[M::Key],
    ) -> Changed {
        let known = self.services.entry(view.id.clone()).or_default();
        let changed = Changed {
            serves: serves && !known.served.get(key).is_some_and(|served| served.asks_the_same(view)),
            facts: known.output.get(key).is_none_or(|before| before.facts != output.facts),
        };
        known.output.insert(key.clone(), output);
        known.early.remove(key);
        if serves {
            known.served.insert(key.clone(), Arc::clone(view));
        }
        if changed.facts {
            // They served with the old facts.
            for key in later {
                known.served.remove(key);
            }
        }
        if changed.serves || changed.facts {
            self.version += 1;
        }
        changed
    }

    /// Sets the facts of a part that is being built. True if they changed; then the `later` parts can run.
    pub(super) fn set_early_facts(
        &mut self,
        id: &ServiceId,
        key: &M::Key,
        facts: M::Facts,
        later: &[M::Key],
    ) -> bool {
        let known = self.services.entry(id.clone()).or_default();
        if known.output.get(key).is_some_and(|before| before.facts == facts) {
            return false;
        }
        let effects = Effects::default();
        known.output.insert(key.clone(), PartOutput { facts, effects });
        known.early.insert(key.clone());
        for key in later.iter().chain([key]) {
            known.served.remove(key);
        }
        self.version += 1;
        true
    }

    /// Removes the facts of a part whose create failed.
    pub(super) fn withdraw_early_facts(&mut self, id: &ServiceId, key: &M::Key) {
        let known = self.services.get(id);
        if known.is_some_and(|known| known.early.contains(key)) {
            self.withdraw_output(id, key);
        }
    }

    /// Removes the output of a part that no longer serves the Service.
    pub(super) fn withdraw_output(&mut self, id: &ServiceId, key: &M::Key) {
        if let Some(known) = self.services.get_mut(id)
            && (known.early.remove(key)
                | known.output.remove(key).is_some()
                | known.served.remove(key).is_some())
        {
            self.version += 1;
        }
    }

    /// The Service has left this part, whose last effects on the Service object are these. False if it had left before.
    pub(super) fn leave(&mut self, id: &ServiceId, key: &M::Key, last_effects: Option<&Effects>) -> bool {
        let known = self.services.entry(id.clone()).or_default();
        known.output.remove(key);
        known.early.remove(key);
        known.served.remove(key);
        if let Some(effects) = last_effects {
            known.last_effects.merge(effects);
        }
        let is_new = known.left.insert(key.clone());
        self.names += u64::from(is_new);
        self.version += u64::from(is_new);
        is_new
    }

    /// The effects of all parts on the Service object: those that it left, then those that it has, in order.
    pub(super) fn effects(&self, id: &ServiceId, joins: &[M::Key]) -> Effects {
        let Some(known) = self.services.get(id) else {
            return Effects::default();
        };
        let mut effects = known.last_effects.clone();
        for output in joins.iter().filter_map(|key| known.output.get(key)) {
            effects.merge(&output.effects);
        }
        effects
    }
}
