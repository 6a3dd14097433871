//! The parts of all Services, by the newest snapshot and listings that a pass or a discovery had.
//!
//! Work is done only for what has changed, since thousands of Services may be created one after the other, and each changes the
//! listings:
//!
//! | Changed | The parts are computed again |
//! |---|---|
//! | a Service | of this Service |
//! | a part's key, or that a Service has left a part | of the Services with that part, or of this Service |
//! | the listings | by a pass: of the members of its part; by a discovery: of the Services that it asks for, or of all |
//! | the nodes | by a pass: of the members of its part; by a discovery: of all Services |
//!
//! So a pass may not know a member that its part has only by newer listings. The next discovery of all Services finds it, and
//! runs the part again.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
};

use super::{
    discovery::{DiscoveredPart, DiscoveryInput, ServiceEntry},
    memory::Memory,
    model::{Orphan, PartModel},
};
use crate::load_balancer::{Claim, ClusterSnapshot, Discovery, OrphanPart, PartKey, ServiceId, ServiceView};

/// The Services with a part, in the order of their ids.
type PartMembers<K> = BTreeMap<ServiceId, Arc<ServiceEntry<K>>>;

/// The parts of all Services, and the members of each part.
pub(super) struct PartIndex<M: PartModel> {
    snapshot: Arc<ClusterSnapshot>,
    pub(super) directory: Arc<M::Directory>,
    /// The listings were read after the discovery with this number began.
    read_since: u64,
    /// Grows with every change of the listings, and of the cluster apart from its Services.
    revision: u64,
    services: BTreeMap<ServiceId, IndexedService<M>>,
    /// The Services with each part, also those that have left it.
    members: HashMap<M::Key, PartMembers<M::Key>>,
    orphans: Vec<Orphan<M::Key>>,
    orphan_keys: HashSet<M::Key>,
    /// The orphans are those of the snapshot and the listings.
    knows_orphans: bool,
    /// All entries were of this revision.
    complete: Option<u64>,
    /// All entries were of this form of the cluster apart from its Services.
    complete_cluster: Option<u64>,
    /// Grows with every change of the cluster apart from its Services.
    cluster: u64,
}

struct IndexedService<M: PartModel> {
    view: Arc<ServiceView>,
    entry: Option<Arc<ServiceEntry<M::Key>>>,
}

/// A moment of the cluster, and listings of the cloud.
pub(super) struct ReadListings<M: PartModel> {
    pub(super) snapshot: Arc<ClusterSnapshot>,
    pub(super) directory: Arc<M::Directory>,
    /// The number of the discovery that read them.
    pub(super) number: u64,
}

/// The Services whose parts are computed again although they have not changed, if the listings or the nodes have.
pub(super) enum Scope<'a, K> {
    /// The members of a part.
    Part(&'a K),
    /// These, unless the nodes have changed: then all.
    Services(&'a BTreeSet<ServiceId>),
    /// All.
    All,
}

/// Whether they are the same value of a Service, not only equal.
fn is_same(known: &Arc<ServiceView>, view: &Arc<ServiceView>) -> bool {
    Arc::ptr_eq(known, view)
}

impl<M: PartModel> PartIndex<M> {
    pub(super) fn new(read: &ReadListings<M>) -> Self {
        let mut index = Self {
            snapshot: Arc::clone(&read.snapshot),
            directory: Arc::clone(&read.directory),
            read_since: 0,
            revision: 0,
            services: BTreeMap::new(),
            members: HashMap::new(),
            orphans: Vec::new(),
            orphan_keys: HashSet::new(),
            knows_orphans: false,
            complete: None,
            complete_cluster: None,
            cluster: 0,
        };
        let views = read.snapshot.services.iter();
        index.services.extend(views.map(|view| {
            let service = IndexedService {
                view: Arc::clone(view),
                entry: None,
            };
            (view.id.clone(), service)
        }));
        index
    }

    /// Applies what was read. Returns whether all Services are of these listings, and the orphans are known.
    pub(super) fn update(
        &mut self,
        model: &M,
        read: &ReadListings<M>,
        memory: &mut Memory<M>,
        scope: &Scope<'_, M::Key>,
    ) -> bool {
        let mut outdated = self.apply_changed_parts(memory);
        if !Arc::ptr_eq(&self.snapshot, &read.snapshot) {
            self.apply_snapshot(&read.snapshot, &mut outdated);
        }
        if !Arc::ptr_eq(&self.directory, &read.directory) {
            self.directory = Arc::clone(&read.directory);
            self.read_since = memory.oldest_reading().unwrap_or(read.number);
            self.revision += 1;
            self.knows_orphans = false;
        }
        let is_whole = match scope {
            Scope::Part(key) => !self.members.contains_key(key),
            Scope::Services(_) => self.complete_cluster != Some(self.cluster),
            Scope::All => true,
        };
        if is_whole {
            if self.complete != Some(self.revision) {
                outdated.extend(self.services.keys().filter(|id| !self.is_current(id)).cloned());
                self.complete = Some(self.revision);
                self.complete_cluster = Some(self.cluster);
            }
            self.update_orphans(model);
            memory.retain(|id| self.services.contains_key(id));
        } else {
            let asked: Vec<&ServiceId> = match scope {
                Scope::Part(key) => self.members.get(key).into_iter().flat_map(BTreeMap::keys).collect(),
                Scope::Services(services) => services.iter().collect(),
                Scope::All => Vec::new(),
            };
            outdated.extend(asked.into_iter().filter(|id| !self.is_current(id)).cloned());
        }
        self.compute(model, outdated, memory, read.number);
        is_whole
    }

    /// The Services that are concerned by what passes have changed since the last update.
    fn apply_changed_parts(&self, memory: &mut Memory<M>) -> BTreeSet<ServiceId> {
        let changed = memory.take_changed();
        let of_keys = changed.keys.iter().filter_map(|key| self.members.get(key));
        let of_keys = of_keys.flat_map(BTreeMap::keys).cloned();
        of_keys.chain(changed.services).filter(|id| self.services.contains_key(id)).collect()
    }

    /// Whether the parts of this Service follow from the listings and the nodes as they are now.
    fn is_current(&self, id: &ServiceId) -> bool {
        self.entry(id)
            .is_some_and(|entry| entry.revision.load(Ordering::Relaxed) == self.revision)
    }

    fn apply_snapshot(&mut self, snapshot: &Arc<ClusterSnapshot>, outdated: &mut BTreeSet<ServiceId>) {
        if self.snapshot.cluster != snapshot.cluster {
            self.revision += 1;
            self.cluster += 1;
        }
        // Both are in the order of the ids, and nearly all Services are the same.
        let (mut missing, mut new) = (Vec::new(), Vec::new());
        let mut known = self.services.iter_mut().peekable();
        for view in &snapshot.services {
            while let Some((id, _)) =
                known.next_if(|(id, known)| !is_same(&known.view, view) && **id < view.id)
            {
                missing.push(id.clone());
            }
            match known.next_if(|(id, known)| is_same(&known.view, view) || **id == view.id) {
                Some((_, known)) if is_same(&known.view, view) => {}
                Some((id, known)) => {
                    known.view = Arc::clone(view);
                    outdated.insert(id.clone());
                }
                None => new.push(view),
            }
        }
        missing.extend(known.map(|(id, _)| id.clone()));
        for id in missing {
            self.set_entry(&id, None);
            self.services.remove(&id);
            outdated.remove(&id);
        }
        for view in new {
            outdated.insert(view.id.clone());
            let service = IndexedService {
                view: Arc::clone(view),
                entry: None,
            };
            self.services.insert(view.id.clone(), service);
        }
        self.snapshot = Arc::clone(snapshot);
        self.knows_orphans = false;
    }

    fn update_orphans(&mut self, model: &M) {
        if !std::mem::replace(&mut self.knows_orphans, true) {
            self.orphans = model.orphans(&self.snapshot, &self.directory);
            self.orphan_keys = self.orphans.iter().map(|orphan| orphan.key.clone()).collect();
        }
    }

    /// Computes the parts of these Services.
    fn compute(&mut self, model: &M, outdated: BTreeSet<ServiceId>, memory: &mut Memory<M>, number: u64) {
        let mut named = Vec::with_capacity(outdated.len());
        let mut listed = HashSet::new();
        for id in outdated {
            let Some(service) = self.services.get(&id) else {
                continue;
            };
            let claim = model.claims(&service.view);
            let parts = match claim {
                Claim::Ours => model.parts(&service.view, &self.snapshot.cluster, &self.directory),
                Claim::Elsewhere | Claim::NotOurs => super::model::Parts::default(),
            };
            listed.extend(parts.named.iter().chain(&parts.tagged).cloned());
            named.push((Arc::clone(&service.view), claim, parts));
        }
        memory.listed(&listed);
        let input = DiscoveryInput {
            number,
            revision: self.revision,
            snapshot: Arc::clone(&self.snapshot),
            directory: Arc::clone(&self.directory),
            read_since: self.read_since,
        };
        for (view, claim, parts) in named {
            let entry = ServiceEntry::new(model, &view, claim, parts, memory, &input);
            self.set_entry(&view.id, Some(Arc::new(entry)));
        }
    }

    /// Replaces the entry of a Service, unless the new one says the same.
    fn set_entry(&mut self, id: &ServiceId, entry: Option<Arc<ServiceEntry<M::Key>>>) {
        let Some(service) = self.services.get_mut(id) else {
            return;
        };
        if let (Some(before), Some(now)) = (&service.entry, &entry)
            && before.says_the_same(now)
        {
            before.revision.store(self.revision, Ordering::Relaxed);
            return;
        }
        let before = std::mem::replace(&mut service.entry, entry.clone());
        for key in before.iter().flat_map(|before| before.keys()) {
            if let Some(members) = self.members.get_mut(key) {
                members.remove(id);
                if members.is_empty() {
                    self.members.remove(key);
                }
            }
        }
        if let Some(entry) = entry {
            for key in entry.keys() {
                let members = self.members.entry(key.clone()).or_default();
                members.insert(id.clone(), Arc::clone(&entry));
            }
        }
    }

    pub(super) fn knows(&self, key: &M::Key) -> bool {
        let mut members = self.members.get(key).into_iter().flat_map(BTreeMap::values);
        members.any(|entry| entry.is_member(key)) || self.orphan_keys.contains(key)
    }

    /// What a pass over this part has to know.
    pub(super) fn part(&self, key: &M::Key) -> DiscoveredPart<M> {
        let members = self.members.get(key).into_iter().flat_map(BTreeMap::values);
        let mut orphans = self.orphans.iter();
        DiscoveredPart {
            snapshot: Arc::clone(&self.snapshot),
            entries: members.filter(|entry| entry.is_member(key)).map(Arc::clone).collect(),
            is_known: self.knows(key),
            is_deletable_orphan: orphans.any(|orphan| orphan.deletable && &orphan.key == key),
        }
    }

    pub(super) fn entry(&self, id: &ServiceId) -> Option<&Arc<ServiceEntry<M::Key>>> {
        self.services.get(id)?.entry.as_ref()
    }

    /// The entries, in the order of the Services of the snapshot.
    fn entries(&self) -> impl Iterator<Item = &Arc<ServiceEntry<M::Key>>> {
        self.services.values().filter_map(|service| service.entry.as_ref())
    }

    /// All keys with members, in an order in which few passes have to wait: first the joined parts, in order, then the parts
    /// that are left, in reverse.
    pub(super) fn keys(&self) -> Vec<M::Key> {
        let joins = self.entries().map(|entry| entry.joins.len()).max().unwrap_or(0);
        let mut ranks: HashMap<&M::Key, usize> = HashMap::new();
        let mut at_least = |key, rank: usize| {
            let known = ranks.entry(key).or_default();
            *known = rank.max(*known);
        };
        for entry in self.entries() {
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

    /// The parts of all Services. `is_whole`: all are of these listings, and the orphans are known.
    pub(super) fn public(&self, is_whole: bool) -> Discovery {
        let orphans = self.orphans.iter().map(|orphan| OrphanPart {
            part: PartKey::new(orphan.key.to_string()),
            what: orphan.what.clone(),
            deletable: orphan.deletable,
        });
        Discovery {
            services: self.entries().map(|entry| Arc::clone(&entry.public)).collect(),
            orphans: is_whole.then(|| orphans.collect()),
        }
    }
}

#[cfg(all(test, feature = "testkit"))]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;
    use crate::{
        load_balancer::{ClusterView, NodeSet, ServiceNode, ServiceType},
        testkit::balancers::{Directory, Key, Model},
    };

    fn service(name: &str) -> Arc<ServiceView> {
        Arc::new(ServiceView {
            id: ServiceId::new("shop", name, format!("uid-{name}")),
            service_type: ServiceType::LoadBalancer,
            ..ServiceView::default()
        })
    }

    fn snapshot(services: &[Arc<ServiceView>]) -> Arc<ClusterSnapshot> {
        Arc::new(ClusterSnapshot {
            services: services.to_vec(),
            cluster: ClusterView::default(),
        })
    }

    /// An index, and how often the parts of a Service were looked up.
    #[derive(Default)]
    struct Fixture {
        memory: Memory<Model>,
        index: Option<PartIndex<Model>>,
        directory: Arc<Directory>,
    }

    impl Fixture {
        /// Updates the index. Returns how many Services were looked up in the listings.
        fn update(&mut self, snapshot: &Arc<ClusterSnapshot>, scope: &Scope<'_, Key>) -> usize {
            let before = self.directory.lookups();
            let read = ReadListings {
                snapshot: Arc::clone(snapshot),
                directory: Arc::clone(&self.directory),
                number: 1,
            };
            self.index.get_or_insert_with(|| PartIndex::new(&read)).update(
                &Model,
                &read,
                &mut self.memory,
                scope,
            );
            self.directory.lookups() - before
        }

        fn index(&self) -> &PartIndex<Model> {
            self.index.as_ref().expect("it was updated")
        }
    }

    fn new(name: &str) -> Key {
        Key::New(format!("balancer_shop_{name}"))
    }

    #[test]
    fn only_the_parts_of_changed_services_are_looked_up() {
        let mut fixture = Fixture::default();
        let services = ["a", "b", "c"].map(service);
        let first = snapshot(&services);
        assert_eq!(fixture.update(&first, &Scope::All), 3);
        assert_eq!(fixture.update(&first, &Scope::All), 0);

        let mut changed = services.to_vec();
        changed[1] = service("b");
        changed.push(service("d"));
        let second = snapshot(&changed);
        assert_eq!(fixture.update(&second, &Scope::Part(&new("a"))), 2);
        let names: Vec<_> = fixture.index().entries().map(|entry| entry.view.id.name.to_string()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(fixture.index().part(&Key::Hosts).entries.len(), 4);
        changed.remove(0);
        let third = snapshot(&changed);
        assert_eq!(fixture.update(&third, &Scope::All), 0);
        assert_eq!(fixture.index().part(&Key::Hosts).entries.len(), 3);
        assert!(!fixture.index().knows(&new("a")));

        // A Service whose part has another key, or that has left a part, has other parts.
        fixture.memory.rename(&new("b"), &Key::Id(1));
        assert_eq!(fixture.update(&third, &Scope::All), 1);
        assert_eq!(fixture.index().entry(&changed[0].id).unwrap().joins, [Key::Id(1), Key::Hosts]);
        fixture.memory.leave(&changed[1].id, &Key::Id(7), None, false);
        assert_eq!(fixture.update(&third, &Scope::All), 1);
    }

    #[test]
    fn with_other_listings_or_nodes_a_pass_looks_up_the_members_of_its_part_and_a_discovery_all_services() {
        let mut fixture = Fixture::default();
        let services = snapshot(&["a", "b", "c"].map(service));
        fixture.update(&services, &Scope::All);
        fixture.directory = Arc::default();
        assert_eq!(fixture.update(&services, &Scope::Part(&new("a"))), 1);
        assert_eq!(fixture.update(&services, &Scope::Part(&new("a"))), 0);
        assert_eq!(fixture.update(&services, &Scope::All), 2);

        let mut nodes = ClusterSnapshot::clone(&services);
        nodes.cluster.nodes = std::iter::once(ServiceNode::default()).collect::<NodeSet>();
        let nodes = Arc::new(nodes);
        assert_eq!(fixture.update(&nodes, &Scope::Part(&new("b"))), 1);
        // A part that no Service is known to have may be one of the new listings.
        assert_eq!(fixture.update(&nodes, &Scope::Part(&Key::Id(9))), 2);
    }

    #[test]
    fn a_discovery_of_some_services_looks_up_the_others_only_with_other_nodes() {
        let mut fixture = Fixture::default();
        let views = ["a", "b", "c"].map(service);
        let services = snapshot(&views);
        let some = BTreeSet::from([views[0].id.clone()]);
        assert_eq!(fixture.update(&services, &Scope::Services(&some)), 3, "the first one looks up all");
        fixture.directory = Arc::default();
        assert_eq!(fixture.update(&services, &Scope::Services(&some)), 1);
        assert_eq!(fixture.update(&services, &Scope::Services(&some)), 0);
        let mut changed = views.to_vec();
        changed[2] = service("c");
        let changed = snapshot(&changed);
        assert_eq!(fixture.update(&changed, &Scope::Services(&BTreeSet::new())), 1);
        assert_eq!(fixture.update(&changed, &Scope::All), 1);

        let mut nodes = ClusterSnapshot::clone(&changed);
        nodes.cluster.nodes = std::iter::once(ServiceNode::default()).collect::<NodeSet>();
        assert_eq!(fixture.update(&Arc::new(nodes), &Scope::Services(&some)), 3);
    }

    #[test]
    fn a_part_that_a_listing_showed_before_its_new_key_was_known_is_left_once() {
        let mut memory = Memory::<Model>::default();
        let (id, new) = (&service("a").id, Key::New("balancer_shop_a".to_owned()));
        let leaves = memory.leaves(id, vec![Key::Id(1), new.clone(), Key::Hosts], &[], false);
        assert_eq!(leaves, [Key::Id(1), new.clone(), Key::Hosts]);
        memory.rename(&new, &Key::Id(1));
        assert_eq!(memory.leaves(id, vec![Key::Hosts], &[], false), [Key::Id(1), Key::Hosts]);
    }
}
