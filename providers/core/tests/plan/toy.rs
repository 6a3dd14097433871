//! A toy cloud: everything that makes load balancers hard, and nothing else.
//!
//! A load balancer has a name that is not unique, an id and an address that the cloud gives, a flavor that cannot be changed,
//! tags, and listeners by port, each with an owner, an algorithm and nodes. Services share a load balancer by its id. The
//! firewall, which all share, has one rule for each Service and node, which needs the load balancer's address.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, Effects, Ingress, Ownership, OwnershipTag, ServiceId,
        ServiceView,
    },
    plan::{CheckResult, Fact, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan},
};

pub use crate::toy_step::{Action, ToyChange, ToyStep, step};

/// The balancer that is meant, by id.
pub const BALANCER: &str = "toy/balancer";
pub const ALGORITHM: &str = "toy/algorithm";
pub const FLAVOR: &str = "toy/flavor";
/// The tag that an observed balancer has if another cluster made it. The cloud does not hold it.
pub const FOREIGN: &str = "foreign";
/// Written by us: the id that the balancer had.
pub const WAS: &str = "toy/was";

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Id(u64),
    New(String),
    Firewall,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "balancer/#{id}"),
            Self::New(name) => write!(f, "balancer/new:{name}"),
            Self::Firewall => f.write_str("firewall"),
        }
    }
}

impl FromStr for Key {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "firewall" {
            Ok(Self::Firewall)
        } else if let Some(id) = text.strip_prefix("balancer/#") {
            id.parse().map(Self::Id).map_err(|_| ())
        } else {
            let name = text.strip_prefix("balancer/new:").ok_or(())?;
            Ok(Self::New(name.to_owned()))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The tag of the Service; anything else is somebody else's.
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
    pub fn is_made_by_a_cluster(&self) -> bool {
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
        /// Under which name it may be made, and by whom it is asked for.
        name: Option<String>,
        flavor: Option<String>,
        joined: BTreeMap<String, ServiceId>,
        kept: BTreeSet<String>,
        /// Of the kept ones those whose listeners follow the nodes.
        following: BTreeSet<String>,
        leaving: BTreeSet<String>,
        listeners: BTreeMap<u16, DesiredListener>,
        /// `None`: there are none, so listeners keep theirs.
        nodes: Option<BTreeSet<String>>,
    },
    Firewall {
        rules: Firewall,
        services: BTreeMap<String, ServiceId>,
        kept: BTreeSet<String>,
        leaving: BTreeSet<String>,
    },
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub id: u64,
    pub address: String,
}

/// What the listings show: ids and tags by name.
pub struct Directory {
    pub balancers: Vec<(u64, String, BTreeSet<String>)>,
    pub pinned: BTreeSet<String>,
    pub tags: OwnershipTag,
}

/// What a toy does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Never looks at algorithms.
    ForgetsAlgorithm,
    /// Updates whatever the algorithm is.
    UpdatesAlways,
    /// Makes a balancer anew if its flavor is wrong.
    Recreates,
    /// Says something else every time.
    Chatty,
    /// Tags a balancer only after it was made, and finds balancers by their tags.
    TagsLater,
    /// Wipes foreign tags when it writes its own.
    Rude,
    /// Tells later parts nothing that is not known yet.
    Vague,
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
    type Facts = Fact<String>;
    type Desired = Desired;
    type Observed = Observed;
    type Change = ToyChange;
    type Reply = Reply;

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

    fn kind(&self, key: &Key) -> &'static str {
        match key {
            Key::Firewall => "firewall",
            _ => "balancer",
        }
    }

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
        let tagged = directory
            .balancers
            .iter()
            .filter(|(.., tags)| tags.contains(&tag));
        let firewall = directory.pinned.contains(&tag).then_some(Key::Firewall);
        Parts {
            named: vec![balancer, Key::Firewall],
            tagged: tagged.map(|(id, ..)| Key::Id(*id)).chain(firewall).collect(),
        }
    }

    fn orphans(&self, world: &ClusterSnapshot, directory: &Directory) -> Vec<Orphan<Key>> {
        let services = &world.services;
        let known: BTreeSet<_> = services.iter().map(|service| tag(&service.id)).collect();
        let is_orphan = |tags: &BTreeSet<String>| {
            let mut tags = tags
                .iter()
                .filter(|tag_text| tag_text.starts_with("svc:"))
                .peekable();
            tags.peek().is_some() && tags.all(|tag| !known.contains(tag))
        };
        let orphans = directory.balancers.iter().filter(|(.., tags)| is_orphan(tags));
        orphans
            .map(|(id, name, tags)| Orphan {
                key: Key::Id(*id),
                what: format!("balancer {name}"),
                deletable: name.starts_with("balancer_")
                    && directory
                        .tags
                        .ownership(tags.iter().map(String::as_str))
                        .allows_orphan_deletion(),
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
            let clash = member
                .service
                .ports
                .iter()
                .find(|port| taken.contains_key(&port.port));
            let problem = if let Some(port) = clash {
                Some(format!("port {} is wanted by another Service", port.port))
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
        let membership = |wanted: fn(&Membership) -> bool| {
            members
                .iter()
                .filter(move |member| wanted(&member.membership))
                .map(|member| tag(&member.service.id))
                .collect::<BTreeSet<_>>()
        };
        let kept = membership(|membership| matches!(membership, Membership::Frozen(_)));
        let leaving = membership(|membership| *membership == Membership::Leaving);
        let joined = || {
            members
                .iter()
                .filter(|member| member.membership == Membership::Active)
        };
        let nodes: Option<BTreeSet<String>> = (!cluster.nodes.keeps_members()).then(|| {
            cluster
                .nodes
                .eligible()
                .map(|node| node.view.name.clone())
                .collect()
        });
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
                kept,
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
            joined: joined()
                .map(|member| (tag(&member.service.id), member.service.id.clone()))
                .collect(),
            following: members
                .iter()
                .filter(|member| member.follows_nodes())
                .map(|member| tag(&member.service.id))
                .filter(|tag| kept.contains(tag))
                .collect(),
            kept,
            leaving,
            listeners,
            nodes,
        }
    }

    fn missing(&self, key: &Key, members: &[Member<Self>], observed: &Observed) -> Option<String> {
        let knew = members
            .iter()
            .find_map(|member| member.service.annotation(WAS)?.parse::<u64>().ok())?;
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
                    kept,
                    leaving,
                },
                Observed::Firewall(have),
            ) => crate::toy_plan::firewall(rules, services, kept, leaving, have),
            _ => Plan::default(),
        }
    }

    fn fold(&self, _: &Key, change: &ToyChange, reply: Option<&Reply>, observed: &mut Observed) {
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
        static CHATTER: AtomicU64 = AtomicU64::new(0);
        if member.membership == Membership::Leaving {
            let mut told = told(Fact::Known(String::new()));
            if *key != Key::Firewall {
                told.effects.annotations.insert(WAS.to_owned(), None);
            }
            return Some(told);
        }
        let tag = tag(&member.service.id);
        match observed {
            Observed::Firewall(_) => Some(told(Fact::Known(String::new()))),
            Observed::Balancer(balancers) => {
                let serves =
                    |balancer: &&Balancer| balancer.tags.contains(&tag) && !balancer.tags.contains(FOREIGN);
                let balancer = balancers.iter().find(serves)?;
                let mut told = told(balancer.address.clone());
                let effects = &mut told.effects;
                if let Fact::Known(address) = &balancer.address {
                    effects.ingress = Some(vec![Ingress {
                        ip: Some(address.as_str().into()),
                        ..Ingress::default()
                    }]);
                } else if self.has(Flaw::Vague) {
                    return None;
                }
                let id = balancer.id.known().map(ToString::to_string);
                effects.annotations.insert(WAS.to_owned(), id);
                if self.has(Flaw::Chatty) {
                    let chatter = CHATTER.fetch_add(1, Ordering::Relaxed).to_string();
                    effects
                        .annotations
                        .insert("toy/chatter".to_owned(), Some(chatter));
                }
                Some(told)
            }
        }
    }
}

fn told(facts: Fact<String>) -> PartOutput<Fact<String>> {
    PartOutput {
        facts,
        effects: Effects::default(),
    }
}

/// Whose a balancer is whose name says that a cluster made it.
pub fn ownership(tags: &OwnershipTag, balancer: &Balancer) -> Ownership {
    tags.ownership(balancer.tags.iter().map(String::as_str))
}

pub fn blocked(service: Option<&ServiceId>, field: impl Into<String>, have: &str, want: &str) -> Blocked {
    Blocked {
        service: service.cloned(),
        field: field.into(),
        have: have.to_owned(),
        want: want.to_owned(),
    }
}
