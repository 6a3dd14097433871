//! The engine's state of Services between passes. It can be rebuilt by reading: after a restart it is empty, and the first
//! pass over each part fills it without a write.
//!
//! It has what a pass over one part must know of the other parts of its members:
//!
//! ```text
//!   pass over lb/7 --- facts (early, then final) ---> member of sg/a joins
//!   pass over sg/a --- serves -----------------------> member may leave what it no longer names
//!   pass over lb/7 --- left -------------------------> member may leave the part before
//!   create in lb/new:web --- renamed to lb/7 --------> discoveries of older listings
//! ```
//!
//! The caller has what follows from these for the Service as a whole: whether it is served, with which effects, and which parts
//! are due. Reports return it ([`MemberReport`](crate::load_balancer::MemberReport)), and nothing of it is asked back.
//!
//! # Why a part has no ID of its own
//!
//! A part is known by its key, and a create gives it another one ([`Memory::rename`]). An ID from the engine would not make that
//! unnecessary: a listing may show `lb/7` before the create in `lb/new:web` has a reply, and only the reply shows that both are one
//! part. Then two IDs would have to become one, here, in the queue and in the caller's state: a rename that happens so seldom
//! that hardly a test executes it, while each create executes this one. The ownership tag does not decide it earlier, since a load
//! balancer that another client made may have the same tag.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    discovery::ServiceEntry,
    index::{PartIndex, ReadListings, Scope},
    model::{PartModel, PartOutput},
};
use crate::load_balancer::{ClusterSnapshot, Effects, ServiceId, ServiceView};

/// The state of all Services.
pub(super) struct Memory<M: PartModel> {
    services: HashMap<ServiceId, ServiceMemory<M>>,
    /// Keys that a create replaced, until the listings show the new ones.
    aliases: HashMap<M::Key, Alias<M::Key>>,
    /// The snapshots of requests in the order in which they came, with their numbers.
    snapshots: Vec<(Weak<ClusterSnapshot>, u64)>,
    /// The number of the newest snapshot.
    newest: u64,
    /// Discoveries are numbered in the order in which they begin to read.
    discoveries: u64,
    /// The discoveries that have not ended.
    reading: BTreeSet<u64>,
    /// The parts of all Services.
    pub(super) index: Option<PartIndex<M>>,
    /// What has changed for the index since its last update.
    changed: ChangedParts<M::Key>,
    /// Grows whenever a pass over another part may have another result.
    pub(super) version: u64,
    /// The number of the last [`Moment`].
    moments: u64,
    /// When Services that no longer exist were last forgotten.
    retained: Option<Instant>,
}

/// A moment in the order of events. The clock alone does not order events within one tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    number: u64,
    pub(super) at: Instant,
}

/// What has another result in the next discovery.
pub(super) struct ChangedParts<K> {
    /// Keys that were replaced, or are valid again.
    pub(super) keys: HashSet<K>,
    /// Services that have left a part.
    pub(super) services: HashSet<ServiceId>,
}

impl<K> Default for ChangedParts<K> {
    fn default() -> Self {
        Self {
            keys: HashSet::new(),
            services: HashSet::new(),
        }
    }
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
    /// It had nothing to leave in a discovery since it began to: what it has to leave later, it begins to leave then.
    has_nothing_to_leave: bool,
    /// The parts that it leaves although it wants a load balancer, since it does not name them. The last step removes the
    /// ownership tag or the object, so that the listings no longer show such a part before the Service has left it.
    unnamed: Vec<M::Key>,
    /// Grows whenever a report about the Service may be another one.
    version: u64,
    /// The last report of each part that many Services share, if nothing was left to do for the Service.
    settled: BTreeMap<M::Key, SettledReport<M::Key>>,
    /// The last create for it in each part.
    creates: BTreeMap<M::Key, LastCreate>,
    /// Parts in which steps were sent while it joined them.
    claims: BTreeMap<M::Key, PartClaim>,
}

/// Steps for a Service in a part that it joins. They may set its ownership tag, which a listing that was read before does not show. If
/// the Service moves meanwhile, it leaves the part, unless a later listing shows that the part has no such tag.
#[derive(Clone, Copy)]
enum PartClaim {
    InProgress,
    /// They had ended when this discovery was the last one that had begun.
    EndedDuring(u64),
}

/// A report of a part that nothing was left to do for a Service: it need not be repeated while nothing changes.
struct SettledReport<K> {
    entry: Arc<ServiceEntry<K>>,
    /// [`ServiceMemory::version`] then.
    version: u64,
    /// [`PartRecord::reports`](super::record::PartRecord::reports) then.
    reports: u64,
}

/// The last creates for a Service in a part, of which a pass may send several at a time.
#[derive(Clone, Copy)]
struct LastCreate {
    sent: Instant,
    in_flight: usize,
    /// Since when none is in flight.
    ended: Option<EndedCreate>,
    /// From when on the cloud shows the objects of those that have ended.
    shown: Instant,
    /// A pass has continued the Service since they ended.
    is_continued: bool,
}

#[derive(Clone, Copy)]
struct EndedCreate {
    moment: Moment,
    /// From when on the cloud shows its object. Later than its end if it had no reply: until then, the cloud may carry it out.
    shown: Instant,
}

impl LastCreate {
    /// Whether a pass that began at this moment sees its object.
    fn is_seen_at(self, began: Moment) -> bool {
        match self.ended {
            Some(ended) => ended.moment.number < began.number && ended.shown <= began.at,
            None => began.at.saturating_duration_since(self.sent) >= CREATING,
        }
    }
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
            has_nothing_to_leave: false,
            unnamed: Vec::new(),
            version: 0,
            settled: BTreeMap::new(),
            creates: BTreeMap::new(),
            claims: BTreeMap::new(),
        }
    }
}

impl<M: PartModel> Default for Memory<M> {
    fn default() -> Self {
        Self {
            services: HashMap::new(),
            aliases: HashMap::new(),
            snapshots: Vec::new(),
            newest: 0,
            discoveries: 0,
            reading: BTreeSet::new(),
            index: None,
            changed: ChangedParts::default(),
            version: 0,
            moments: 0,
            retained: None,
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
    /// Its facts were early before.
    pub(super) is_finished: bool,
}

/// Replaces a key. A listing may have shown the new key before the pass that created the object reported it: then the part is
/// in the list under both keys, and must not be in it twice, since a member leaves one part after the other.
fn replace_key<K: Clone + PartialEq>(keys: &mut Vec<K>, old: &K, new: &K) {
    if keys.contains(new) {
        keys.retain(|key| key != old);
        return;
    }
    for key in keys.iter_mut().filter(|key| *key == old) {
        key.clone_from(new);
    }
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

    /// Applies what was read to the index; see [`PartIndex::update`]. Returns whether all Services are of these listings.
    pub(super) fn update_index(
        &mut self,
        model: &M,
        read: &ReadListings<M>,
        scope: &Scope<'_, M::Key>,
    ) -> (&PartIndex<M>, bool) {
        let mut index = self.index.take().unwrap_or_else(|| PartIndex::new(read));
        let is_whole = index.update(model, read, self, scope);
        (self.index.insert(index), is_whole)
    }

    /// Takes what has changed for the index.
    pub(super) fn take_changed(&mut self) -> ChangedParts<M::Key> {
        std::mem::take(&mut self.changed)
    }

    /// A request with this snapshot begins.
    pub(super) fn snapshot_begins(&mut self, snapshot: &Arc<ClusterSnapshot>) {
        let is_known = |(known, _): &(Weak<_>, _)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(snapshot));
        if !self.snapshots.iter().any(is_known) {
            self.newest += 1;
            self.snapshots.retain(|(known, _)| known.strong_count() > 0);
            self.snapshots.push((Arc::downgrade(snapshot), self.newest));
        }
    }

    /// Whether a request with a newer snapshot has begun, in which this Service is another one. A pass that began before a Service
    /// changed must not undo what is known of the Service as it is now.
    pub(super) fn is_old(&self, view: &Arc<ServiceView>, snapshot: &Arc<ClusterSnapshot>) -> bool {
        let number_of = |(known, number): &(Weak<ClusterSnapshot>, u64)| {
            std::ptr::eq(known.as_ptr(), Arc::as_ptr(snapshot)).then_some(*number)
        };
        if self.snapshots.iter().find_map(number_of).is_none_or(|number| number == self.newest) {
            return false;
        }
        let newest = self.snapshots.iter().find(|(_, number)| *number == self.newest);
        let Some(newest) = newest.and_then(|(snapshot, _)| snapshot.upgrade()) else {
            return true;
        };
        newest.service(&view.id).is_none_or(|now| !Arc::ptr_eq(now, view))
    }

    /// The oldest discovery that has not ended. A listing that is new now was read after it began.
    pub(super) fn oldest_reading(&self) -> Option<u64> {
        self.reading.first().copied()
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
        self.changed.keys.extend([old.clone(), new.clone()]);
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
                known.version += 1;
            }
            if known.early.remove(old) {
                known.early.insert(new.clone());
            }
            if let Some(view) = known.served.remove(old) {
                known.served.insert(new.clone(), view);
            }
            if let Some(create) = known.creates.remove(old) {
                known.creates.insert(new.clone(), create);
            }
            if let Some(claim) = known.claims.remove(old) {
                known.claims.insert(new.clone(), claim);
            }
            replace_key(&mut known.leaves, old, new);
            replace_key(&mut known.unnamed, old, new);
        }
    }

    /// The object of this key was deleted before a listing showed it: its old keys are valid again.
    pub(super) fn vanished(&mut self, key: &M::Key) {
        self.aliases.retain(|_, alias| alias.now != *key || alias.shown.is_some());
        self.changed.keys.insert(key.clone());
    }

    /// The listings show these keys: from the next discovery on, their old keys are no longer replaced.
    pub(super) fn listed(&mut self, keys: &HashSet<M::Key>) {
        let next = self.discoveries + 1;
        for (old, alias) in &mut self.aliases {
            if alias.shown.is_none() && keys.contains(&alias.now) {
                alias.shown = Some(next);
                self.changed.keys.extend([old.clone(), alias.now.clone()]);
            }
        }
    }

    /// Forgets Services that no longer exist. `exists`: is in the snapshot of a discovery, maybe not of the newest one.
    pub(super) fn retain(&mut self, exists: impl Fn(&ServiceId) -> bool) {
        let now = Instant::now();
        if self.retained.is_some_and(|last| now.saturating_duration_since(last) < FORGOTTEN / 10) {
            return;
        }
        self.retained = Some(now);
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

    /// Whether the output of a part is early, since the part is still being built.
    pub(super) fn is_early(&self, id: &ServiceId, key: &M::Key) -> bool {
        self.services.get(id).is_some_and(|known| known.early.contains(key))
    }

    /// This moment, after all earlier ones.
    pub(super) fn moment(&mut self) -> Moment {
        self.moments += 1;
        Moment {
            number: self.moments,
            at: Instant::now(),
        }
    }

    /// A create for the Service is sent in this part.
    pub(super) fn create_begins(&mut self, id: &ServiceId, key: &M::Key) {
        let now = Instant::now();
        let known = self.services.entry(id.clone()).or_default();
        // No pass takes that long.
        known.creates.retain(|_, create| now.saturating_duration_since(create.sent) < CREATING);
        let create = known.creates.entry(key.clone()).or_insert(LastCreate {
            sent: now,
            in_flight: 0,
            ended: None,
            shown: now,
            is_continued: false,
        });
        if create.in_flight == 0 {
            create.shown = now;
        }
        create.sent = now;
        create.in_flight += 1;
        create.ended = None;
        create.is_continued = false;
    }

    /// Whether creates for the Service in this part have ended, and no pass has continued the Service since.
    pub(super) fn has_ended_create(&self, id: &ServiceId, key: &M::Key) -> bool {
        let create = self.services.get(id).and_then(|known| known.creates.get(key));
        create.is_some_and(|create| create.ended.is_some() && !create.is_continued)
    }

    /// A pass continues the Service after its creates in this part.
    pub(super) fn continued_after_create(&mut self, id: &ServiceId, key: &M::Key) {
        let known = self.services.get_mut(id);
        if let Some(create) = known.and_then(|known| known.creates.get_mut(key)) {
            create.is_continued = true;
        }
    }

    /// The create in this part has ended. The cloud shows its object after this time.
    pub(super) fn create_ended(&mut self, id: &ServiceId, key: &M::Key, shown: Instant) {
        let moment = self.moment();
        if let Some(known) = self.services.get_mut(id)
            && let Some(create) = known.creates.get_mut(key)
        {
            create.in_flight = create.in_flight.saturating_sub(1);
            create.shown = create.shown.max(shown);
            if create.in_flight == 0 {
                let shown = create.shown;
                create.ended = Some(EndedCreate { moment, shown });
            }
        }
    }

    /// The parts in which a create for the Service is in progress.
    pub(super) fn creates_in(&self, id: &ServiceId) -> impl Iterator<Item = &M::Key> {
        let known = self.services.get(id);
        let creates = known.into_iter().flat_map(|known| &known.creates);
        let in_progress =
            creates.filter(|(_, create)| create.ended.is_none() && create.sent.elapsed() < CREATING);
        in_progress.map(|(key, _)| key)
    }

    /// The parts with a create for the Service that a pass that began at this moment may not see.
    pub(super) fn creates_since(&self, id: &ServiceId, began: Moment) -> impl Iterator<Item = &M::Key> {
        let known = self.services.get(id);
        let creates = known.into_iter().flat_map(|known| &known.creates);
        creates.filter(move |(_, create)| !create.is_seen_at(began)).map(|(key, _)| key)
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

    /// Steps for the Service are sent in this part, which the Service joins.
    pub(super) fn claim(&mut self, id: &ServiceId, key: &M::Key) {
        let known = self.services.entry(id.clone()).or_default();
        known.claims.insert(key.clone(), PartClaim::InProgress);
        let entry = self.index.as_ref().and_then(|index| index.entry(id));
        if entry.is_some_and(|entry| !entry.joins.contains(key)) {
            // It has moved since the pass began.
            self.changed.services.insert(id.clone());
        }
    }

    /// The steps for the Service in this part have ended.
    pub(super) fn claim_ended(&mut self, id: &ServiceId, key: &M::Key) {
        let claim = self.services.get_mut(id).and_then(|known| known.claims.get_mut(key));
        if let Some(claim @ PartClaim::InProgress) = claim {
            *claim = PartClaim::EndedDuring(self.discoveries);
        }
    }

    /// The parts that may have the Service's ownership tag although a listing does not show it.
    pub(super) fn claimed(&self, id: &ServiceId) -> impl Iterator<Item = &M::Key> {
        self.services.get(id).into_iter().flat_map(|known| known.claims.keys())
    }

    /// The Service is no longer ours: it leaves nothing.
    pub(super) fn forget_claims(&mut self, id: &ServiceId) {
        if let Some(known) = self.services.get_mut(id) {
            known.claims.clear();
        }
    }

    /// The listings were read after this discovery began: they show what was done before.
    pub(super) fn forget_listed_claims(&mut self, id: &ServiceId, read_since: u64) {
        if let Some(known) = self.services.get_mut(id) {
            known.claims.retain(|_, claim| match claim {
                PartClaim::InProgress => true,
                PartClaim::EndedDuring(last) => read_since <= *last,
            });
        }
    }

    /// The parts that a Service that wants a load balancer (again) leaves: `tagged`, which have its ownership tag, and those
    /// that had it before and that the Service has not left.
    pub(super) fn unnamed(
        &mut self,
        id: &ServiceId,
        named: &[M::Key],
        tagged: Vec<M::Key>,
        is_old: bool,
    ) -> Vec<M::Key> {
        let known = self.services.entry(id.clone()).or_default();
        if is_old && !known.leaves.is_empty() {
            return tagged;
        }
        if !known.leaves.is_empty() {
            known.version += 1;
        }
        known.leaves.clear();
        // What it removed when it wanted none does not count any more.
        known.last_effects = Effects::default();
        let is_listed = |key: &M::Key| named.contains(key) || tagged.contains(key);
        known.unnamed.retain(|key| !is_listed(key) && !known.left.contains(key));
        known.unnamed.splice(0..0, tagged);
        known.unnamed.clone()
    }

    /// The parts that [`Memory::unnamed`] returned last.
    pub(super) fn known_unnamed(&self, id: &ServiceId) -> &[M::Key] {
        self.services.get(id).map(|known| known.unnamed.as_slice()).unwrap_or_default()
    }

    /// The parts that a Service that wants no load balancer leaves: those that it left or leaves already, or `all` if
    /// it begins now, and those that still have its ownership tag.
    pub(super) fn leaves(
        &mut self,
        id: &ServiceId,
        all: Vec<M::Key>,
        tagged: &[M::Key],
        is_old: bool,
    ) -> Vec<M::Key> {
        if all.is_empty() {
            if let Some(known) = self.services.get_mut(id) {
                known.has_nothing_to_leave |= !is_old;
            }
            return all;
        }
        let known = self.services.entry(id.clone()).or_default();
        if std::mem::take(&mut known.has_nothing_to_leave) {
            known.leaves.clear();
        }
        if known.leaves.is_empty() && is_old {
            return all;
        }
        if known.leaves.is_empty() {
            known.version += 1;
            known.leaves.clone_from(&all);
            // If it returns to the form in which they served it, they no longer do.
            known.served.clear();
            // It may have left some of them before. Each is left again, so that its pass continues with the one before it.
            known.left.retain(|key| !all.contains(key));
            return all;
        }
        // A create may have ended after the Service began to leave. Its part is known until the Service has left it, also when the
        // listings no longer show it.
        let new = tagged.iter().filter(|key| !known.leaves.contains(key));
        let new: Vec<_> = new.cloned().collect();
        known.leaves.splice(0..0, new);
        known.leaves.clone()
    }

    /// The parts that a Service leaves since it wants no load balancer. `None`: it has not begun to.
    pub(super) fn leaving(&self, id: &ServiceId) -> Option<&[M::Key]> {
        let leaves = &self.services.get(id)?.leaves;
        (!leaves.is_empty()).then_some(leaves)
    }

    /// The Service joins this part (again).
    pub(super) fn rejoin(&mut self, id: &ServiceId, key: &M::Key) {
        if let Some(known) = self.services.get_mut(id)
            && known.left.remove(key)
        {
            known.version += 1;
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
            is_finished: known.early.remove(key),
        };
        if changed.serves || changed.is_finished || known.output.get(key) != Some(&output) {
            known.version += 1;
        }
        known.output.insert(key.clone(), output);
        if serves {
            known.served.insert(key.clone(), Arc::clone(view));
        }
        if changed.facts {
            // They served with the old facts.
            for key in later {
                known.served.remove(key);
            }
        }
        if changed.serves || changed.facts || changed.is_finished {
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
        known.version += 1;
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
            known.version += 1;
            self.version += 1;
        }
    }

    /// The Service has left this part, whose last effects on the Service object are these. False if it had left before.
    ///
    /// `is_old`: the pass has an older form of the Service. What the part did for it is gone, but the Service may have begun to leave
    /// again since, in which it leaves part after part.
    pub(super) fn leave(
        &mut self,
        id: &ServiceId,
        key: &M::Key,
        last_effects: Option<&Effects>,
        is_old: bool,
    ) -> bool {
        let known = self.services.entry(id.clone()).or_default();
        known.output.remove(key);
        known.early.remove(key);
        known.served.remove(key);
        known.version += 1;
        if is_old && !known.leaves.is_empty() {
            return false;
        }
        if let Some(effects) = last_effects {
            known.last_effects.merge(effects);
        }
        let is_new = known.left.insert(key.clone());
        known.claims.remove(key);
        if is_new {
            self.changed.services.insert(id.clone());
        }
        self.version += u64::from(is_new);
        is_new
    }

    /// Whether the report of this part about the Service would be the last one again, and nothing was left to do then.
    pub(super) fn is_settled(&self, key: &M::Key, entry: &Arc<ServiceEntry<M::Key>>, reports: u64) -> bool {
        self.services.get(&entry.view.id).is_some_and(|known| {
            known.settled.get(key).is_some_and(|last| {
                Arc::ptr_eq(&last.entry, entry) && last.version == known.version && last.reports == reports
            })
        })
    }

    /// Whether nothing is left to do for the Service, as the report of this part with this number says.
    pub(super) fn set_settled(
        &mut self,
        key: &M::Key,
        entry: &Arc<ServiceEntry<M::Key>>,
        reports: Option<u64>,
    ) {
        let Some(known) = self.services.get_mut(&entry.view.id) else {
            return;
        };
        let Some(reports) = reports else {
            known.settled.remove(key);
            return;
        };
        let last = SettledReport {
            entry: Arc::clone(entry),
            version: known.version,
            reports,
        };
        known.settled.insert(key.clone(), last);
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
