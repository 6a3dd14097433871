//! The parts of a Service, and the members of a part.

use std::sync::{Arc, atomic::AtomicU64};

use super::{
    memory::Memory,
    model::{Member, Membership, PartModel, Parts, RequiredFacts},
};
use crate::load_balancer::{
    Claim, ClusterSnapshot, ClusterView, FormerLoadBalancer, PartKey, ServiceId, ServiceParts, ServiceView,
};

/// What a pass over one part knows of its members.
pub(super) struct DiscoveredPart<M: PartModel> {
    pub(super) snapshot: Arc<ClusterSnapshot>,
    /// The members, in the order of their ids.
    pub(super) entries: Vec<Arc<ServiceEntry<M::Key>>>,
    /// Whether the part has members, or is an orphan.
    pub(super) is_known: bool,
    /// Whether the part as a whole belongs to a Service that does not exist, and may be deleted.
    pub(super) is_deletable_orphan: bool,
}

/// What the parts of a Service follow from, apart from the Service itself.
pub(super) struct DiscoveryInput<M: PartModel> {
    /// The number of the discovery that read the listings.
    pub(super) number: u64,
    /// The revision of the index.
    pub(super) revision: u64,
    pub(super) snapshot: Arc<ClusterSnapshot>,
    pub(super) directory: Arc<M::Directory>,
    /// The listings were read after the discovery with this number began.
    pub(super) read_since: u64,
}

/// The parts of one Service.
pub(super) struct ServiceEntry<K> {
    pub(super) view: Arc<ServiceView>,
    /// The revision of the index for which it holds.
    pub(super) revision: AtomicU64,
    /// As callers of the engine see it.
    pub(super) public: Arc<ServiceParts>,
    pub(super) joins: Vec<K>,
    pub(super) leaves: Vec<K>,
    /// The parts among `leaves` that may still have objects of the Service.
    pub(super) traces: Vec<K>,
}

impl<M: PartModel> DiscoveredPart<M> {
    pub(super) fn entry(&self, id: &ServiceId) -> Option<&ServiceEntry<M::Key>> {
        self.shared_entry(id).map(AsRef::as_ref)
    }

    pub(super) fn shared_entry(&self, id: &ServiceId) -> Option<&Arc<ServiceEntry<M::Key>>> {
        let found = self.entries.binary_search_by(|entry| entry.view.id.cmp(id)).ok()?;
        self.entries.get(found)
    }

    /// Whether the members are those of this snapshot.
    pub(super) fn is_of(&self, snapshot: &Arc<ClusterSnapshot>) -> bool {
        Arc::ptr_eq(&self.snapshot, snapshot)
    }

    /// The members of the part.
    pub(super) fn members(&self, model: &M, key: &M::Key, memory: &Memory<M>) -> Vec<Member<M>> {
        let cluster = &self.snapshot.cluster;
        self.entries.iter().map(|entry| entry.member(model, key, cluster, memory)).collect()
    }
}

/// The part that a Service must leave before this one: a later one that is not independent of it. `leaves`: all parts that it leaves.
pub(super) fn part_to_leave_first<'a, M: PartModel>(
    model: &M,
    leaves: &'a [M::Key],
    key: &M::Key,
    has_left: impl Fn(&M::Key) -> bool,
) -> Option<&'a M::Key> {
    let mut later = leaves.iter().skip_while(|own| *own != key).skip(1);
    later.find(|later| model.required_facts(later, key) != RequiredFacts::Independent && !has_left(later))
}

/// The former load balancer of a Service for which another controller is responsible, if it has our finalizer.
fn former<M: PartModel>(
    model: &M,
    view: &ServiceView,
    claim: Claim,
    snapshot: &ClusterSnapshot,
    directory: &M::Directory,
) -> Option<FormerLoadBalancer> {
    if claim == Claim::Ours {
        return None;
    }
    let view = view.cleanup(view);
    let needs_cleanup = model.finalizers(&view).needs_cleanup(&view);
    (needs_cleanup && model.claims(&view) == Claim::Ours)
        .then(|| model.former(&view, &snapshot.cluster, directory))
}

impl<K: Clone + Ord + std::fmt::Display + std::hash::Hash> ServiceEntry<K> {
    /// The parts that a Service joins and leaves. It joins the parts that it names if it wants a load balancer. It leaves the
    /// parts that have its ownership tag, or had it until it began to leave them, and that it does not name, and all parts if it
    /// wants no load balancer.
    pub(super) fn new<M: PartModel<Key = K>>(
        model: &M,
        view: &Arc<ServiceView>,
        claim: Claim,
        parts: Parts<K>,
        memory: &mut Memory<M>,
        input: &DiscoveryInput<M>,
    ) -> Self {
        let current = |keys: Vec<K>| {
            let mut current: Vec<K> = Vec::with_capacity(keys.len());
            for key in keys {
                let key = memory.current_in(input.number, &key);
                if !current.contains(&key) {
                    current.push(key);
                }
            }
            current
        };
        let (named, mut tagged) = (current(parts.named), current(parts.tagged));
        if claim == Claim::Ours {
            memory.forget_listed_claims(&view.id, input.read_since);
        } else {
            memory.forget_claims(&view.id);
        }
        for key in memory.claimed(&view.id) {
            if !tagged.contains(key) {
                tagged.insert(0, key.clone());
            }
        }
        let wants = view.wants_load_balancer();
        let is_old = memory.is_old(view, &input.snapshot);
        // A Service without a finalizer of ours never had a load balancer, or lost the finalizer: it leaves only parts with its
        // tag.
        let needs_cleanup = model.finalizers(view).needs_cleanup(view);
        let leaves_named = |key: &&K| !wants && (needs_cleanup || tagged.contains(key));
        let leaves: Vec<_> = tagged
            .iter()
            .filter(|key| !named.contains(key))
            .chain(named.iter().filter(leaves_named))
            .cloned()
            .collect();
        // One that is not ours has no parts.
        let (joins, leaves, traces) = if wants && claim == Claim::Ours {
            let leaves = memory.unnamed(&view.id, &named, leaves, is_old);
            (named, leaves.clone(), leaves)
        } else {
            let leaves = memory.leaves(&view.id, leaves, &tagged, is_old);
            let listed = |key: &K| named.contains(key) || tagged.contains(key);
            let traces = leaves.iter().filter(|key| listed(key) || !memory.has_left(&view.id, key));
            let traces = traces.cloned().collect();
            (Vec::new(), leaves, traces)
        };
        let name = |key: &K| PartKey::new(key.to_string());
        let public = ServiceParts {
            service: view.id.clone(),
            claim,
            joins: joins.iter().map(name).collect(),
            leaves: traces.iter().map(name).collect(),
            selects_by_labels: model.selects_by_labels(view),
            former: former(model, view, claim, &input.snapshot, &input.directory),
        };
        Self {
            view: Arc::clone(view),
            revision: AtomicU64::new(input.revision),
            public: Arc::new(public),
            joins,
            leaves,
            traces,
        }
    }

    /// Whether it says the same as another entry of the Service.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.view, &other.view)
            && (&self.leaves, &self.public) == (&other.leaves, &other.public)
            && (&self.joins, &self.traces) == (&other.joins, &other.traces)
    }

    /// All parts of the Service, also those that it has left.
    pub(super) fn keys(&self) -> impl Iterator<Item = &K> {
        self.joins.iter().chain(&self.leaves)
    }

    /// Whether the Service is a member of this part.
    pub(super) fn is_member(&self, key: &K) -> bool {
        self.joins.contains(key) || self.traces.contains(key)
    }

    fn member<M: PartModel<Key = K>>(
        &self,
        model: &M,
        key: &K,
        cluster: &ClusterView,
        memory: &Memory<M>,
    ) -> Member<M> {
        let id = &self.view.id;
        let (earlier, membership) = if let Some(at) = self.joins.iter().position(|own| own == key) {
            let earlier = self.joins.get(..at).unwrap_or_default();
            let is_pending = |earlier: &&K| match model.required_facts(key, earlier) {
                RequiredFacts::Independent | RequiredFacts::Nothing => false,
                RequiredFacts::Accepted => memory.output(id, earlier).is_none(),
                RequiredFacts::Finished => {
                    memory.output(id, earlier).is_none() || memory.is_early(id, earlier)
                }
            };
            let pending = earlier.iter().find(is_pending);
            // A create in a part that it named before: what that creates may be found by its reply only.
            let former = memory.creates_in(id).find(|part| !self.joins.contains(part));
            let membership = pending
                .or(former)
                .map_or(Membership::Active, |pending| Membership::Frozen(format!("it waits for {pending}")));
            (earlier, membership)
        } else {
            (self.joins.as_slice(), self.leaving(model, key, memory))
        };
        Member {
            service: Arc::clone(&self.view),
            spec: Arc::new(model.spec(&self.view, cluster)),
            membership,
            facts: earlier
                .iter()
                .filter_map(|key| Some((key.clone(), memory.output(id, key)?.facts.clone())))
                .collect(),
        }
    }

    /// Whether a member leaves now: everything that it joins must serve, then it leaves part after part, in reverse order, and
    /// independent parts at the same time.
    fn leaving<M: PartModel<Key = K>>(&self, model: &M, key: &K, memory: &Memory<M>) -> Membership {
        let id = &self.view.id;
        if let Some(waits) = self.joins.iter().find(|join| !memory.has_served(id, join)) {
            return Membership::Frozen(format!("this object stays until {waits} serves the Service"));
        }
        match part_to_leave_first(model, &self.leaves, key, |later| memory.has_left(id, later)) {
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
        self.joins.iter().all(|key| memory.serves_now(&self.view, &current(key)))
            && self.known_leaves(memory, current).iter().all(|key| memory.has_left(&self.view.id, key))
    }

    /// The current keys of the parts that the Service leaves, by all discoveries since it began to leave. A later one than that of
    /// this entry, or a step that was sent since, may have found a part that this entry does not have.
    pub(super) fn known_leaves<M: PartModel<Key = K>>(
        &self,
        memory: &Memory<M>,
        current: impl Fn(&K) -> K,
    ) -> Vec<K> {
        let id = &self.view.id;
        let wants = self.view.wants_load_balancer();
        let leaving = memory.leaving(id).filter(|_| !wants).unwrap_or(&self.leaves);
        let leaving: Vec<K> = leaving.iter().map(&current).collect();
        let joins: Vec<K> = self.joins.iter().map(&current).collect();
        let found_later = if wants { memory.known_unnamed(id) } else { &[] };
        let mut leaves = Vec::new();
        for key in memory.claimed(id).chain(found_later).chain(&self.leaves).map(&current) {
            if !joins.contains(&key) && !leaving.contains(&key) && !leaves.contains(&key) {
                leaves.push(key);
            }
        }
        leaves.extend(leaving);
        leaves
    }
}
