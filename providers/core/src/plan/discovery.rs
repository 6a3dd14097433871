//! The parts of each Service.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::{
    memory::Memory,
    model::{Member, Membership, Orphan, PartModel, Parts},
};
use crate::load_balancer::{
    Claim, ClusterSnapshot, Discovery, OrphanPart, PartKey, ServiceId, ServiceParts, ServiceView,
};

/// A [`Discovery`] in the provider's own keys, with the members of each part.
pub(super) struct DiscoveredParts<M: PartModel> {
    pub(super) snapshot: Arc<ClusterSnapshot>,
    pub(super) directory: Arc<M::Directory>,
    /// [`Memory::names`] when it was computed: keys may have been replaced since.
    names: u64,
    pub(super) services: Vec<Entry<M::Key>>,
    members: HashMap<M::Key, Vec<usize>>,
    by_id: HashMap<ServiceId, usize>,
    pub(super) orphans: Vec<Orphan<M::Key>>,
}

/// The parts of one Service.
pub(super) struct Entry<K> {
    pub(super) view: Arc<ServiceView>,
    claim: Claim,
    pub(super) joins: Vec<K>,
    pub(super) leaves: Vec<K>,
    /// The parts among `leaves` that may still have objects of the Service.
    pub(super) traces: Vec<K>,
}

impl<M: PartModel> DiscoveredParts<M> {
    pub(super) fn new(
        model: &M,
        snapshot: &Arc<ClusterSnapshot>,
        directory: &Arc<M::Directory>,
        memory: &mut Memory<M>,
        number: u64,
    ) -> Self {
        let parts: Vec<_> = snapshot
            .services
            .iter()
            .map(|view| {
                let claim = model.claims(view);
                let parts = if claim == Claim::Ours {
                    model.parts(view, &snapshot.cluster, directory)
                } else {
                    Parts::default()
                };
                (view, claim, parts)
            })
            .collect();
        let orphans = model.orphans(snapshot, directory);
        let listed: HashSet<_> = parts
            .iter()
            .flat_map(|(.., parts)| parts.named.iter().chain(&parts.tagged))
            .cloned()
            .collect();
        memory.listed(&listed);
        let exists: HashSet<_> = snapshot.services.iter().map(|view| &view.id).collect();
        memory.retain(|id| exists.contains(id));
        let services: Vec<_> = parts
            .into_iter()
            .map(|(view, claim, parts)| entry(model, view, claim, parts, memory, number))
            .collect();
        let by_id = services.iter().enumerate();
        let by_id = by_id.map(|(index, entry)| (entry.view.id.clone(), index));
        let by_id = by_id.collect();
        let mut members: HashMap<M::Key, Vec<usize>> = HashMap::new();
        for (index, entry) in services.iter().enumerate() {
            for key in entry.joins.iter().chain(&entry.traces) {
                members.entry(key.clone()).or_default().push(index);
            }
        }
        Self {
            snapshot: Arc::clone(snapshot),
            directory: Arc::clone(directory),
            names: memory.names,
            services,
            members,
            by_id,
            orphans,
        }
    }

    /// Whether it is still valid for this snapshot and this directory.
    pub(super) fn is_current(
        &self,
        snapshot: &Arc<ClusterSnapshot>,
        directory: &Arc<M::Directory>,
        memory: &Memory<M>,
    ) -> bool {
        self.names == memory.names
            && Arc::ptr_eq(&self.snapshot, snapshot)
            && Arc::ptr_eq(&self.directory, directory)
    }

    pub(super) fn knows(&self, key: &M::Key) -> bool {
        self.members.contains_key(key) || self.orphans.iter().any(|orphan| &orphan.key == key)
    }

    pub(super) fn entries(&self, key: &M::Key) -> impl Iterator<Item = &Entry<M::Key>> {
        self.members.get(key).into_iter().flatten().filter_map(|index| self.services.get(*index))
    }

    pub(super) fn entry(&self, id: &ServiceId) -> Option<&Entry<M::Key>> {
        self.services.get(*self.by_id.get(id)?)
    }

    /// Whether the part as a whole belongs to a Service that does not exist, and may be deleted.
    pub(super) fn is_deletable_orphan(&self, key: &M::Key) -> bool {
        let mut orphans = self.orphans.iter();
        orphans.any(|orphan| orphan.deletable && &orphan.key == key)
    }

    /// All keys with members, in an order in which few passes have to wait: first the joined parts, in order, then the parts
    /// that are left, in reverse.
    pub(super) fn keys(&self) -> Vec<M::Key> {
        let joins = self.services.iter().map(|entry| entry.joins.len()).max().unwrap_or(0);
        let mut ranks: HashMap<&M::Key, usize> = HashMap::new();
        let mut at_least = |key, rank: usize| {
            let known = ranks.entry(key).or_default();
            *known = rank.max(*known);
        };
        for entry in &self.services {
            for (rank, key) in entry.joins.iter().enumerate() {
                at_least(key, rank);
            }
            for (rank, key) in entry.traces.iter().rev().enumerate() {
                at_least(key, joins + rank);
            }
        }
        let mut keys: Vec<_> = ranks.into_iter().collect();
        keys.sort_by(|(a, a_rank), (b, b_rank)| (a_rank, a).cmp(&(b_rank, b)));
        keys.into_iter().map(|(key, _)| key.clone()).collect()
    }

    /// The members of a part.
    pub(super) fn members(&self, key: &M::Key, memory: &Memory<M>) -> Vec<Member<M>> {
        self.entries(key).map(|entry| entry.member(key, memory)).collect()
    }

    pub(super) fn public(&self) -> Discovery {
        let name = |key: &M::Key| PartKey::new(key.to_string());
        Discovery {
            parts: self.keys().iter().map(name).collect(),
            services: self
                .services
                .iter()
                .map(|entry| ServiceParts {
                    service: entry.view.id.clone(),
                    claim: entry.claim,
                    joins: entry.joins.iter().map(name).collect(),
                    leaves: entry.traces.iter().map(name).collect(),
                })
                .collect(),
            orphans: self
                .orphans
                .iter()
                .map(|orphan| OrphanPart {
                    part: name(&orphan.key),
                    what: orphan.what.clone(),
                    deletable: orphan.deletable,
                })
                .collect(),
        }
    }
}

/// The parts that a Service joins and leaves. It joins the parts that it names if it wants a load balancer. It leaves the parts
/// that have its ownership tag, or had it until it began to leave them, and that it does not name, and all parts if it wants no
/// load balancer.
fn entry<M: PartModel>(
    model: &M,
    view: &Arc<ServiceView>,
    claim: Claim,
    parts: Parts<M::Key>,
    memory: &mut Memory<M>,
    discovery: u64,
) -> Entry<M::Key> {
    let current = |keys: Vec<M::Key>| {
        let mut current: Vec<M::Key> = Vec::with_capacity(keys.len());
        for key in keys {
            let key = memory.current_in(discovery, &key);
            if !current.contains(&key) {
                current.push(key);
            }
        }
        current
    };
    let (named, tagged) = (current(parts.named), current(parts.tagged));
    let wants = view.wants_load_balancer();
    // A Service without a finalizer of ours never had a load balancer, or lost the finalizer: it leaves only parts with its
    // tag.
    let needs_cleanup = model.finalizers(view).needs_cleanup(view);
    let leaves_named = |key: &&M::Key| !wants && (needs_cleanup || tagged.contains(key));
    let leaves: Vec<_> = tagged
        .iter()
        .filter(|key| !named.contains(key))
        .chain(named.iter().filter(leaves_named))
        .cloned()
        .collect();
    // One that is not ours has no parts.
    let (joins, leaves, traces) = if wants && claim == Claim::Ours {
        let leaves = memory.unnamed(&view.id, &named, leaves);
        (named, leaves.clone(), leaves)
    } else {
        let leaves = memory.leaves(&view.id, leaves, &tagged);
        let listed = |key: &M::Key| named.contains(key) || tagged.contains(key);
        let traces = leaves.iter().filter(|key| listed(key) || !memory.has_left(&view.id, key));
        let traces = traces.cloned().collect();
        (Vec::new(), leaves, traces)
    };
    Entry {
        view: Arc::clone(view),
        claim,
        joins,
        leaves,
        traces,
    }
}

impl<K: Clone + Ord + std::fmt::Display + std::hash::Hash> Entry<K> {
    fn member<M: PartModel<Key = K>>(&self, key: &K, memory: &Memory<M>) -> Member<M> {
        let id = &self.view.id;
        let (earlier, membership) = if let Some(at) = self.joins.iter().position(|own| own == key) {
            let earlier = self.joins.get(..at).unwrap_or_default();
            let pending = earlier.iter().find(|earlier| memory.output(id, earlier).is_none());
            // A create in a part that it named before: what that creates may be found by its reply only.
            let former = memory.creates_in(id).filter(|part| !self.joins.contains(part));
            let membership = pending
                .or(former)
                .map_or(Membership::Active, |pending| Membership::Frozen(format!("it waits for {pending}")));
            (earlier, membership)
        } else {
            (self.joins.as_slice(), self.leaving(key, memory))
        };
        Member {
            service: Arc::clone(&self.view),
            membership,
            facts: earlier
                .iter()
                .filter_map(|key| Some((key.clone(), memory.output(id, key)?.facts.clone())))
                .collect(),
        }
    }

    /// Whether a member leaves now: everything that it joins must serve, then it leaves part after part, in reverse order.
    fn leaving<M: PartModel<Key = K>>(&self, key: &K, memory: &Memory<M>) -> Membership {
        let id = &self.view.id;
        if let Some(waits) = self.joins.iter().find(|join| !memory.has_served(id, join)) {
            return Membership::Frozen(format!("this object stays until {waits} serves the Service"));
        }
        let later = self.leaves.iter().skip_while(|own| *own != key).skip(1);
        match later.into_iter().find(|later| !memory.has_left(id, later)) {
            Some(waits) => {
                Membership::Frozen(format!("this object stays until the Service has left {waits}"))
            }
            None => Membership::Leaving,
        }
    }

    /// Whether nothing is left to do for the Service.
    pub(super) fn is_finished<M: PartModel<Key = K>>(
        &self,
        memory: &Memory<M>,
        current: impl Fn(&K) -> K,
    ) -> bool {
        let id = &self.view.id;
        self.joins.iter().all(|key| memory.serves_now(&self.view, &current(key)))
            && self.leaves.iter().all(|key| memory.has_left(id, &current(key)))
    }
}
