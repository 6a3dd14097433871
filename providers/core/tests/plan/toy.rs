//! A toy cloud with the difficulties of load balancers.
//!
//! A load balancer has a name that is not unique, an id and an address that the cloud assigns, a flavor that cannot be changed,
//! tags, and listeners by port, each with an owner, an algorithm and nodes. Services share a load balancer by its id. The
//! firewall, which all share, has one rule for each Service and node, which needs the load balancer's address.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, Effects, FormerLoadBalancer, Ingress, Ownership,
        OwnershipTag, ServiceId, ServiceView,
    },
    plan::{CheckResult, Fact, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan, part_keys},
};

pub use crate::toy_step::{Action, ToyChange, ToyStep, step};

/// The id of the Service's balancer.
pub const BALANCER: &str = "toy/balancer";
pub const ALGORITHM: &str = "toy/algorithm";
pub const FLAVOR: &str = "toy/flavor";
/// The tag of an observed balancer that another cluster created. The cloud does not store it.
pub const FOREIGN: &str = "foreign";
/// The id that the balancer had, written by the provider.
pub const WAS: &str = "toy/was";

part_keys! {
    pub enum Key {
        Id(u64) = "balancer/#";
        New(String) = "balancer/new:";
        Firewall = "firewall";
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The tag of the Service; any other value is another client's.
    pub owner: String,
    pub algorithm: String,
    pub nodes: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    pub id: Fact<u64>,
    pub name: String,
    pub tags: BTreeSet<String>,
    pub flavor: String,
    pub address: Fact<String>,
    pub listeners: BTreeMap<u16, Listener>,
}

impl Balancer {
    pub fn is_created_by_a_cluster(&self) -> bool {
        self.name.starts_with("balancer_")
    }

    pub fn service_tags(&self) -> impl Iterator<Item = &String> {
        self.tags.iter().filter(|tag_text| tag_text.starts_with("svc:"))
    }
}

pub type Firewall = BTreeMap<(String, String), Fact<String>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    Balancer(Vec<Balancer>),
    Firewall(Firewall),
}

#[derive(Debug)]
pub struct DesiredListener {
    pub service: ServiceId,
    pub algorithm: String,
    pub nodes: BTreeSet<String>,
}

#[derive(Debug)]
pub enum Desired {
    Balancer {
        tags: OwnershipTag,
        /// The name with which it may be created.
        name: Option<String>,
        flavor: Option<String>,
        joined: BTreeMap<String, ServiceId>,
        frozen: BTreeSet<String>,
        /// The frozen ones whose listeners follow the nodes.
        following: BTreeSet<String>,
        leaving: BTreeSet<String>,
        listeners: BTreeMap<u16, DesiredListener>,
        /// `None`: the cluster has none, so listeners keep theirs.
        nodes: Option<BTreeSet<String>>,
    },
    Firewall {
        rules: Firewall,
        services: BTreeMap<String, ServiceId>,
        frozen: BTreeSet<String>,
        leaving: BTreeSet<String>,
    },
}

#[derive(Clone, Debug)]
pub struct ToyReply {
    pub id: u64,
    pub address: String,
}

/// The listings: ids and tags by name.
pub struct Directory {
    pub balancers: Vec<(u64, String, BTreeSet<String>)>,
    pub pinned: BTreeSet<String>,
    pub tags: OwnershipTag,
}

/// A flaw of a toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Ignores algorithms.
    IgnoresAlgorithm,
    /// Updates listeners without a difference.
    UpdatesAlways,
    /// Recreates a balancer if its flavor differs.
    Recreates,
    /// Reports other effects every time.
    ChangesEffects,
    /// Tags a balancer only after its creation, and finds balancers by their tags.
    TagsLater,
    /// Removes foreign tags when it writes its own.
    RemovesForeignTags,
    /// Provides no facts that are known later.
    HidesLaterFacts,
}

#[derive(Clone, Debug, Default)]
pub struct Toy {
    pub flaw: Option<Flaw>,
}

impl Toy {
    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

pub fn tag(id: &ServiceId) -> String {
    format!("svc:{id}/{}", id.uid)
}

pub fn balancer_name(id: &ServiceId) -> String {
    format!("balancer_{}_{}", id.namespace, id.name)
}

fn algorithm(service: &ServiceView) -> String {
    service.annotation(ALGORITHM).unwrap_or("grey").to_owned()
}

impl PartModel for Toy {
    type Key = Key;
    type Directory = Directory;
    type Inputs = ();
    type Spec = ();
    type Facts = Fact<String>;
    type Desired = Desired;
    type Observed = Observed;
    type Change = ToyChange;
    type Reply = ToyReply;

    fn provider(&self) -> &'static str {
        "toy"
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        match service.class.as_deref() {
            None => Claim::Ours,
            Some("other") => Claim::Elsewhere,
            Some(_) => Claim::NotOurs,
        }
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    fn parts(&self, service: &ServiceView, _: &ClusterView, directory: &Directory) -> Parts<Key> {
        let (tag, name) = (tag(&service.id), balancer_name(&service.id));
        let balancer = match service.annotation(BALANCER).map(str::parse) {
            Some(Ok(id)) => Key::Id(id),
            _ => {
                let found = directory.balancers.iter().find(|(_, balancer, tags)| {
                    if self.has(Flaw::TagsLater) {
                        balancer == &name && tags.contains(&tag)
                    } else {
                        balancer == &name
                    }
                });
                found.map_or(Key::New(name), |(id, ..)| Key::Id(*id))
            }
        };
        let tagged = directory.balancers.iter().filter(|(.., tags)| tags.contains(&tag));
        let firewall = directory.pinned.contains(&tag).then_some(Key::Firewall);
        Parts {
            named: vec![balancer, Key::Firewall],
            tagged: tagged.map(|(id, ..)| Key::Id(*id)).chain(firewall).collect(),
        }
    }

    fn former(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &Directory,
    ) -> FormerLoadBalancer {
        let tag = tag(&service.id);
        let mut balancers = directory.balancers.iter();
        let Some((_, name, tags)) = balancers.find(|(.., tags)| tags.contains(&tag)) else {
            return FormerLoadBalancer::Missing;
        };
        let ownership = cluster.ownership_tag.ownership(tags.iter().map(String::as_str));
        FormerLoadBalancer::new(format!("balancer {name}"), &ownership, false)
    }

    fn orphans(&self, world: &ClusterSnapshot, directory: &Directory) -> Vec<Orphan<Key>> {
        let services = &world.services;
        let known: BTreeSet<_> = services.iter().map(|service| tag(&service.id)).collect();
        let is_orphan = |tags: &BTreeSet<String>| {
            let mut tags = tags.iter().filter(|tag_text| tag_text.starts_with("svc:")).peekable();
            tags.peek().is_some() && tags.all(|tag| !known.contains(tag))
        };
        let orphans = directory.balancers.iter().filter(|(.., tags)| is_orphan(tags));
        orphans
            .map(|(id, name, tags)| Orphan {
                key: Key::Id(*id),
                what: format!("balancer {name}"),
                deletable: name.starts_with("balancer_")
                    && directory.tags.ownership(tags.iter().map(String::as_str)).allows_orphan_deletion(),
            })
            .collect()
    }

    fn check(&self, key: &Key, members: &[Member<Self>], _: &ClusterView, (): &()) -> CheckResult {
        let mut review = CheckResult::default();
        let mut taken = BTreeMap::new();
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_by_key(|member| &member.service.id);
        for member in sorted {
            if *key == Key::Firewall || member.membership != Membership::Active {
                continue;
            }
            let id = &member.service.id;
            let clash = member.service.ports.iter().find(|port| taken.contains_key(&port.port));
            let problem = if let Some(port) = clash {
                Some(format!("port {} is used by another Service", port.port))
            } else if algorithm(&member.service) == "plaid" {
                Some("plaid is no algorithm".to_owned())
            } else {
                None
            };
            if let Some(problem) = problem {
                let error = Error::new(ErrorKind::InvalidSpec, problem);
                review.refused.push((id.clone(), error));
            } else {
                taken.extend(member.service.ports.iter().map(|port| (port.port, id)));
            }
        }
        review
    }

    fn desired(&self, key: &Key, members: &[Member<Self>], cluster: &ClusterView, (): &()) -> Desired {
        let membership = |filter: fn(&Membership) -> bool| {
            members
                .iter()
                .filter(move |member| filter(&member.membership))
                .map(|member| tag(&member.service.id))
                .collect::<BTreeSet<_>>()
        };
        let frozen = membership(|membership| matches!(membership, Membership::Frozen(_)));
        let leaving = membership(|membership| *membership == Membership::Leaving);
        let joined = || members.iter().filter(|member| member.membership == Membership::Active);
        let nodes: Option<BTreeSet<String>> = (!cluster.nodes.keeps_members())
            .then(|| cluster.nodes.eligible().map(|node| node.view.name.clone()).collect());
        if *key == Key::Firewall {
            let mut rules = Firewall::new();
            for member in joined() {
                let Some((_, address)) = member.facts.last() else {
                    continue;
                };
                for node in nodes.iter().flatten() {
                    rules.insert((node.clone(), tag(&member.service.id)), address.clone());
                }
            }
            return Desired::Firewall {
                rules,
                services: joined()
                    .map(|member| (tag(&member.service.id), member.service.id.clone()))
                    .collect(),
                frozen,
                leaving,
            };
        }
        let owner = joined().find(|member| member.service.annotation(BALANCER).is_none());
        let mut listeners = BTreeMap::new();
        for member in joined() {
            for port in &member.service.ports {
                listeners.insert(
                    port.port,
                    DesiredListener {
                        service: member.service.id.clone(),
                        algorithm: algorithm(&member.service),
                        nodes: nodes.clone().unwrap_or_default(),
                    },
                );
            }
        }
        Desired::Balancer {
            tags: cluster.ownership_tag.clone(),
            name: owner.map(|owner| balancer_name(&owner.service.id)),
            flavor: owner.map(|owner| owner.service.annotation(FLAVOR).unwrap_or("pine").to_owned()),
            joined: joined().map(|member| (tag(&member.service.id), member.service.id.clone())).collect(),
            following: members
                .iter()
                .filter(|member| member.follows_nodes())
                .map(|member| tag(&member.service.id))
                .filter(|tag| frozen.contains(tag))
                .collect(),
            frozen,
            leaving,
            listeners,
            nodes,
        }
    }

    fn missing(&self, key: &Key, members: &[Member<Self>], observed: &Observed) -> Option<String> {
        let knew = members.iter().find_map(|member| member.service.annotation(WAS)?.parse::<u64>().ok())?;
        match (key, observed) {
            (Key::Id(id), Observed::Balancer(balancers)) if balancers.is_empty() && *id == knew => {
                Some(format!("balancer #{id}"))
            }
            _ => None,
        }
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<ToyChange> {
        match (desired, observed) {
            (Desired::Balancer { .. }, Observed::Balancer(balancers)) => {
                crate::toy_plan::balancer(self, desired, balancers.first())
            }
            (
                Desired::Firewall {
                    rules,
                    services,
                    frozen,
                    leaving,
                },
                Observed::Firewall(have),
            ) => crate::toy_plan::firewall(rules, services, frozen, leaving, have),
            _ => Plan::default(),
        }
    }

    fn fold(&self, _: &Key, change: &ToyChange, reply: Option<&ToyReply>, observed: &mut Observed) {
        crate::toy_plan::fold(self, change, reply, observed);
    }

    fn rekey(&self, key: &Key, observed: &Observed) -> Option<Key> {
        match (key, observed) {
            (Key::New(_), Observed::Balancer(balancers)) => {
                balancers.first()?.id.known().map(|id| Key::Id(*id))
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
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        if member.membership == Membership::Leaving {
            let mut output = output(Fact::Known(String::new()));
            if *key != Key::Firewall {
                output.effects.annotations.insert(WAS.to_owned(), None);
            }
            return Some(output);
        }
        let tag = tag(&member.service.id);
        match observed {
            Observed::Firewall(_) => Some(output(Fact::Known(String::new()))),
            Observed::Balancer(balancers) => {
                let serves =
                    |balancer: &&Balancer| balancer.tags.contains(&tag) && !balancer.tags.contains(FOREIGN);
                let balancer = balancers.iter().find(serves)?;
                let mut output = output(balancer.address.clone());
                let effects = &mut output.effects;
                if let Fact::Known(address) = &balancer.address {
                    effects.ingress = Some(vec![Ingress {
                        ip: Some(address.as_str().into()),
                        ..Ingress::default()
                    }]);
                } else if self.has(Flaw::HidesLaterFacts) {
                    return None;
                }
                let id = balancer.id.known().map(ToString::to_string);
                effects.annotations.insert(WAS.to_owned(), id);
                if self.has(Flaw::ChangesEffects) {
                    let counter = COUNTER.fetch_add(1, Ordering::Relaxed).to_string();
                    effects.annotations.insert("toy/counter".to_owned(), Some(counter));
                }
                Some(output)
            }
        }
    }
}

fn output(facts: Fact<String>) -> PartOutput<Fact<String>> {
    PartOutput {
        facts,
        effects: Effects::default(),
    }
}

/// The owner of a balancer whose name is that of a cluster's balancer.
pub fn ownership(tags: &OwnershipTag, balancer: &Balancer) -> Ownership {
    tags.ownership(balancer.tags.iter().map(String::as_str))
}

pub fn blocked(service: Option<&ServiceId>, field: impl Into<String>, have: &str, want: &str) -> Blocked {
    Blocked {
        service: service.cloned(),
        field: field.into(),
        observed: have.to_owned(),
        desired: want.to_owned(),
    }
}
