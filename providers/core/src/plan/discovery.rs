//! The parts of a Service, and the members of a part.

use std::sync::{Arc, atomic::AtomicU64};

use super::{
    memory::Memory,
    model::{Member, Membership, PartModel, Parts, RequiredFacts},
};
use crate::load_balancer::{
    Claim, ClusterSnapshot, FormerLoadBalancer, PartKey, ServiceId, ServiceParts, ServiceView,
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
        self.entries.iter().map(|entry| entry.member(model, key, memory)).collect()
    }
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
        let (named, tagged) = (current(parts.named), current(parts.tagged));
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

    fn member<M: PartModel<Key = K>>(&self, model: &M, key: &K, memory: &Memory<M>) -> Member<M> {
        let id = &self.view.id;
        let (earlier, membership) = if let Some(at) = self.joins.iter().position(|own| own == key) {
            let earlier = self.joins.get(..at).unwrap_or_default();
            let is_pending = |earlier: &&K| {
                let needs_end = || model.required_facts(key, earlier) == RequiredFacts::Finished;
                memory.output(id, earlier).is_none() || (memory.is_early(id, earlier) && needs_end())
            };
            let pending = earlier.iter().find(is_pending);
            // A create in a part that it named before: what that creates may be found by its reply only.
            let former = memory.creates_in(id).find(|part| !self.joins.contains(part));
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
        let has_left = |key: &K| memory.has_left(id, &current(key));
        self.joins.iter().all(|key| memory.serves_now(&self.view, &current(key)))
            && self.leaves.iter().all(has_left)
            && self.known_leaves(memory).iter().all(has_left)
    }

    /// The parts that the Service leaves, by all discoveries since it began to leave. A later one than that of this entry may
    /// have found a part whose create had not ended before.
    pub(super) fn known_leaves<'a, M: PartModel<Key = K>>(&'a self, memory: &'a Memory<M>) -> &'a [K] {
        if self.view.wants_load_balancer() {
            return &self.leaves;
        }
        memory.leaving(&self.view.id).unwrap_or(&self.leaves)
    }
}
