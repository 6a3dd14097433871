//! The model of the fake load balancers.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    Balancer, CLASS, CLASS_ELSEWHERE, COLOUR, FINALIZER_INSIDE, FINALIZER_OUTSIDE, ID, NO_PARTS, PLACE,
    PLACE_ELSEWHERE, WOOD, region::RegionState,
};
use crate::{
    Error, ErrorKind,
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, Effect, Effects, FormerLoadBalancer, Ingress,
        OwnershipTag, ProviderFinalizers, ServiceEvent, ServiceId, ServiceNode, ServiceView, StepDescription,
        StepObjects,
    },
    plan::{
        self, CheckResult, Fact, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan, Step,
        part_keys,
    },
};

/// The model of [`FakeBalancers`](super::FakeBalancers).
#[derive(Clone, Copy, Debug)]
pub struct Model;

part_keys! {
    /// A part.
    pub enum Key {
        /// A balancer.
        Id(u64) = "lb/#";
        /// A balancer that does not exist yet.
        New(String) = "lb/new:";
        /// The Services of each node.
        Hosts = "hosts";
    }
}

/// The Services of each node. A listing or a read shares most of them with the next one.
pub(super) type Hosts = BTreeMap<String, Arc<BTreeSet<String>>>;

/// Adds Services to a node, and removes others.
pub(super) fn change_host(
    hosts: &mut Hosts,
    host: &str,
    joins: &BTreeSet<String>,
    leaves: &BTreeSet<String>,
) {
    let services = Arc::make_mut(hosts.entry(host.to_owned()).or_default());
    services.extend(joins.iter().cloned());
    services.retain(|service| !leaves.contains(service));
    hosts.retain(|_, services| !services.is_empty());
}

/// The listings.
#[derive(Debug, Default)]
pub struct Directory {
    pub(super) balancers: Vec<Arc<Balancer>>,
    /// The first balancer of each name.
    by_name: HashMap<Arc<str>, usize>,
    hosts: Hosts,
    lookups: Arc<AtomicUsize>,
}

impl Directory {
    pub(super) fn new(state: &RegionState) -> Self {
        let balancers: Vec<_> = state.balancers.values().map(Arc::clone).collect();
        let mut by_name = HashMap::with_capacity(balancers.len());
        for (index, balancer) in balancers.iter().enumerate() {
            by_name.entry(Arc::from(balancer.name.as_str())).or_insert(index);
        }
        Self {
            balancers,
            by_name,
            hosts: state.hosts.clone(),
            lookups: Arc::clone(&state.lookups),
        }
    }

    fn named(&self, name: &str) -> Option<&Balancer> {
        self.balancers.get(*self.by_name.get(name)?).map(AsRef::as_ref)
    }

    /// How often the parts of a Service were looked up in the listings of this cloud.
    #[must_use]
    pub fn lookups(&self) -> usize {
        self.lookups.load(Ordering::Relaxed)
    }
}

/// The observed state of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// A balancer, or none.
    Balancer(Option<Balancer>),
    /// The Services by node.
    Hosts(Hosts),
}

/// The desired state of a part.
#[derive(Debug)]
pub enum Desired {
    /// A balancer like this; without nodes it keeps its members.
    Balancer {
        like: Balancer,
        service: ServiceId,
        nodes: Option<BTreeSet<String>>,
        ownership_tag: OwnershipTag,
    },
    /// The existing balancer, with other members if there are nodes.
    Frozen(Option<BTreeSet<String>>),
    /// No balancer.
    Absent(OwnershipTag),
    /// The Services to add and to remove, and the nodes, if there are any.
    Hosts {
        joins: BTreeSet<String>,
        leaves: BTreeSet<String>,
        nodes: Option<BTreeSet<String>>,
    },
}

/// The cloud's reply to a create.
#[derive(Clone, Debug)]
pub struct RegionReply {
    pub(super) id: u64,
    pub(super) address: String,
}

/// The action of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Creates a balancer.
    Create(Balancer),
    /// Sets its ports.
    Ports(BTreeSet<String>),
    /// Sets its members.
    Members(BTreeSet<String>),
    /// Deletes it.
    Delete,
    /// On a node: Services to add, and to remove.
    Host(BTreeSet<String>, BTreeSet<String>),
}

/// A change of a balancer or node.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelChange {
    /// The name of the balancer or node.
    pub thing: String,
    /// The action.
    pub action: Action,
}

impl plan::CloudChange for ModelChange {
    fn describe(&self) -> StepDescription {
        let thing = &self.thing;
        let (label, effect, sentence) = match &self.action {
            Action::Create(_) => ("balancer_create", Effect::Create, format!("create balancer {thing}")),
            Action::Ports(ports) => {
                ("balancer_update", Effect::Change, format!("set ports of balancer {thing} to {ports:?}"))
            }
            Action::Members(members) => (
                "balancer_update",
                Effect::Change,
                format!("set members of balancer {thing} to {members:?}"),
            ),
            Action::Delete => ("balancer_delete", Effect::Delete, format!("delete balancer {thing}")),
            Action::Host(joins, leaves) => {
                ("host_update", Effect::Change, format!("add {joins:?} to node {thing}, remove {leaves:?}"))
            }
        };
        StepDescription::new(label, effect, sentence)
    }
}

fn balancer_name(id: &ServiceId) -> String {
    format!("balancer_{}_{}", id.namespace, id.name)
}

fn node_names(cluster: &ClusterView) -> Option<BTreeSet<String>> {
    let names = cluster.nodes.eligible().map(|node| node.view.name.clone());
    (!cluster.nodes.keeps_members()).then(|| names.collect())
}

fn wood(service: &ServiceView) -> String {
    service.annotation(WOOD).unwrap_or("pine").to_owned()
}

fn desired_balancer(member: &Member<Model>, cluster: &ClusterView) -> Desired {
    let service = &member.service;
    let nodes = node_names(cluster);
    let like = Balancer {
        id: Fact::Later("the balancer's id".into()),
        name: balancer_name(&service.id),
        address: Fact::Later("the balancer's address".into()),
        owner: service.id.to_string(),
        tag: cluster.ownership_tag.for_create().map(ToString::to_string),
        wood: wood(service),
        ports: service
            .ports
            .iter()
            .map(|port| format!("{}/{}->{}", port.protocol, port.port, port.node_port))
            .collect(),
        members: nodes.clone().unwrap_or_default(),
    };
    Desired::Balancer {
        like,
        service: service.id.clone(),
        nodes,
        ownership_tag: cluster.ownership_tag.clone(),
    }
}

impl PartModel for Model {
    type Key = Key;
    type Directory = Directory;
    type Inputs = ();
    type Spec = ();
    type Facts = Fact<String>;
    type Desired = Desired;
    type Observed = Observed;
    type Change = ModelChange;
    type Reply = Option<RegionReply>;

    fn provider(&self) -> &'static str {
        "fake"
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        match service.class.as_deref() {
            Some(CLASS_ELSEWHERE) => Claim::Elsewhere,
            None if service.annotation(PLACE) == Some(PLACE_ELSEWHERE) => Claim::Elsewhere,
            None | Some(CLASS) => Claim::Ours,
            Some(_) => Claim::NotOurs,
        }
    }

    fn classes(&self) -> &[&'static str] {
        &[CLASS]
    }

    fn finalizers(&self, service: &ServiceView) -> ProviderFinalizers {
        ProviderFinalizers {
            needed: match service.annotation(PLACE) {
                Some("inside") => &[FINALIZER_INSIDE],
                Some(_) => &[FINALIZER_OUTSIDE],
                None => &[],
            },
            all: &[FINALIZER_INSIDE, FINALIZER_OUTSIDE],
        }
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    fn parts(&self, service: &ServiceView, _: &ClusterView, directory: &Directory) -> Parts<Key> {
        if service.labels.contains_key(NO_PARTS) {
            return Parts::default();
        }
        directory.lookups.fetch_add(1, Ordering::Relaxed);
        let name = balancer_name(&service.id);
        let owner = service.id.to_string();
        let balancer = match directory.named(&name).and_then(|balancer| balancer.id.known()) {
            Some(id) => Key::Id(*id),
            None => Key::New(name),
        };
        let mut tagged = Vec::new();
        if matches!(balancer, Key::Id(_)) {
            tagged.push(balancer.clone());
        }
        if directory.hosts.values().any(|services| services.contains(&owner)) {
            tagged.push(Key::Hosts);
        }
        Parts {
            named: vec![balancer, Key::Hosts],
            tagged,
        }
    }

    fn former(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &Directory,
    ) -> FormerLoadBalancer {
        let name = balancer_name(&service.id);
        let Some(balancer) = directory.named(&name) else {
            return FormerLoadBalancer::Missing;
        };
        let ownership = cluster.ownership_tag.ownership(balancer.tag.as_deref());
        let is_member = |node: &ServiceNode| balancer.members.contains(&node.view.name);
        let has_node = cluster.nodes.all().iter().any(is_member);
        FormerLoadBalancer::new(format!("balancer {name}"), &ownership, has_node)
    }

    fn orphans(&self, snapshot: &ClusterSnapshot, directory: &Directory) -> Vec<Orphan<Key>> {
        let services = &snapshot.services;
        let known: BTreeSet<_> = services.iter().map(|service| service.id.to_string()).collect();
        let orphans = directory.balancers.iter().filter(|balancer| !known.contains(&balancer.owner));
        orphans
            .filter_map(|balancer| {
                Some(Orphan {
                    key: Key::Id(*balancer.id.known()?),
                    what: format!("balancer {}", balancer.name),
                    deletable: balancer.tag.is_some(),
                })
            })
            .collect()
    }

    fn check(&self, key: &Key, members: &[Member<Self>], _: &ClusterView, (): &()) -> CheckResult {
        let mut review = CheckResult::default();
        for member in members.iter().filter(|_| *key != Key::Hosts) {
            let id = member.service.id.clone();
            match member.service.annotation(COLOUR) {
                Some("plaid") if member.membership == Membership::Active => {
                    let error = Error::new(ErrorKind::InvalidSpec, "plaid is no colour");
                    review.refused.push((id, error));
                }
                Some("pink") => review.events.push(ServiceEvent {
                    service: id,
                    reason: "ColourIgnored",
                    message: "pink is taken for grey".to_owned(),
                    warning: true,
                }),
                _ => {}
            }
        }
        review
    }

    fn desired(&self, key: &Key, members: &[Member<Self>], cluster: &ClusterView, (): &()) -> Desired {
        if *key == Key::Hosts {
            let (mut joins, mut leaves) = (BTreeSet::new(), BTreeSet::new());
            for member in members {
                match member.membership {
                    Membership::Active => joins.insert(member.service.id.to_string()),
                    Membership::Leaving => leaves.insert(member.service.id.to_string()),
                    Membership::Frozen(_) => continue,
                };
            }
            return Desired::Hosts {
                joins,
                leaves,
                nodes: node_names(cluster),
            };
        }
        match members.first() {
            Some(member) if member.membership == Membership::Active => desired_balancer(member, cluster),
            Some(member) if member.membership != Membership::Leaving => {
                Desired::Frozen(if member.follows_nodes() {
                    node_names(cluster)
                } else {
                    None
                })
            }
            _ => Desired::Absent(cluster.ownership_tag.clone()),
        }
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<ModelChange> {
        match (desired, observed) {
            (Desired::Hosts { joins, leaves, nodes }, Observed::Hosts(have)) => {
                plan_hosts(joins, leaves, nodes, have)
            }
            (desired, Observed::Balancer(have)) => plan_balancer(desired, have.as_ref()),
            _ => Plan::default(),
        }
    }

    fn fold(
        &self,
        _: &Key,
        change: &ModelChange,
        reply: Option<&Option<RegionReply>>,
        observed: &mut Observed,
    ) {
        match (&change.action, observed) {
            (Action::Host(joins, leaves), Observed::Hosts(hosts)) => {
                change_host(hosts, &change.thing, joins, leaves);
            }
            (Action::Create(new), Observed::Balancer(have)) => {
                let have = have.get_or_insert_with(|| new.clone());
                if let Some(Some(reply)) = reply {
                    have.id = Fact::Known(reply.id);
                    have.address = Fact::Known(reply.address.clone());
                }
            }
            (Action::Delete, Observed::Balancer(have)) => *have = None,
            (Action::Ports(ports), Observed::Balancer(Some(have))) => have.ports.clone_from(ports),
            (Action::Members(members), Observed::Balancer(Some(have))) => have.members.clone_from(members),
            _ => {}
        }
    }

    fn rekey(&self, key: &Key, observed: &Observed) -> Option<Key> {
        match (key, observed) {
            (Key::New(_) | Key::Id(_), Observed::Balancer(Some(balancer))) => {
                balancer.id.known().map(|id| Key::Id(*id)).filter(|now| now != key)
            }
            _ => None,
        }
    }

    fn facts(
        &self,
        key: &Key,
        member: &Member<Self>,
        observed: &Observed,
    ) -> Option<PartOutput<Fact<String>>> {
        let mut effects = Effects::default();
        let mut facts = Fact::Known(String::new());
        if member.membership == Membership::Leaving {
            if *key != Key::Hosts {
                effects.annotations.insert(ID.to_owned(), None);
            }
        } else if let Observed::Balancer(balancer) = observed {
            let balancer = balancer.as_ref()?;
            facts = balancer.address.clone();
            let id = balancer.id.known()?.to_string();
            effects.annotations.insert(ID.to_owned(), Some(id));
            effects.ingress = Some(vec![Ingress {
                ip: Some(balancer.address.known()?.as_str().into()),
                ..Ingress::default()
            }]);
        }
        Some(PartOutput { facts, effects })
    }
}

fn plan_hosts(
    joins: &BTreeSet<String>,
    leaves: &BTreeSet<String>,
    nodes: &Option<BTreeSet<String>>,
    have: &Hosts,
) -> Plan<ModelChange> {
    let mut plan = Plan::default();
    let all: BTreeSet<_> = nodes.iter().flatten().chain(have.keys()).collect();
    let nothing = BTreeSet::new();
    for node in all {
        let on = have.get(node).map_or(&nothing, AsRef::as_ref);
        let add: BTreeSet<_> = match nodes {
            Some(nodes) if nodes.contains(node) => joins.difference(on).cloned().collect(),
            _ => BTreeSet::new(),
        };
        let lost = nodes.as_ref().is_some_and(|nodes| !nodes.contains(node));
        let remove: BTreeSet<_> = on
            .iter()
            .filter(|service| leaves.contains(*service) || (lost && joins.contains(*service)))
            .cloned()
            .collect();
        if !add.is_empty() || !remove.is_empty() {
            let step = Step::new(ModelChange {
                thing: node.clone(),
                action: Action::Host(add, remove),
            });
            // Nodes are independent of each other.
            plan.steps.push(step.with_objects(StepObjects::changing([format!("node {node}")])));
        }
    }
    plan
}

fn plan_balancer(desired: &Desired, have: Option<&Balancer>) -> Plan<ModelChange> {
    let mut plan = Plan::default();
    let mut step = |thing: &str, action, service: Option<&ServiceId>| {
        let thing = thing.to_owned();
        let step = Step::new(ModelChange { thing, action });
        plan.steps.push(step.for_service(service));
    };
    let may_change = |ownership_tag: &OwnershipTag, have: &Balancer| {
        ownership_tag.ownership(have.tag.as_deref()).allows_changes()
    };
    match (desired, have) {
        (Desired::Balancer { like, service, .. }, None) => {
            step(&like.name, Action::Create(like.clone()), Some(service));
        }
        (
            Desired::Balancer {
                like,
                service,
                nodes,
                ownership_tag,
            },
            Some(have),
        ) if may_change(ownership_tag, have) => {
            if like.ports != have.ports {
                step(&have.name, Action::Ports(like.ports.clone()), Some(service));
            }
            if let Some(nodes) = nodes
                && nodes != &have.members
            {
                step(&have.name, Action::Members(nodes.clone()), Some(service));
            }
            if like.wood != have.wood {
                plan.blocked.push(Blocked {
                    service: Some(service.clone()),
                    field: format!("wood of balancer {}", have.name),
                    observed: have.wood.clone(),
                    desired: like.wood.clone(),
                });
            }
        }
        (Desired::Frozen(Some(nodes)), Some(have)) if nodes != &have.members => {
            step(&have.name, Action::Members(nodes.clone()), None);
        }
        (Desired::Absent(ownership_tag), Some(have)) if may_change(ownership_tag, have) => {
            step(&have.name, Action::Delete, None);
        }
        _ => {}
    }
    plan
}
