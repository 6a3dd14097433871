//! A toy cloud of shelves: everything that makes load balancers hard, and nothing else.
//!
//! A *shelf* (a load balancer) has a name that is not unique, an id and an address that the cloud gives, a wood that
//! can not be changed, marks, and *boxes* (listeners) by port, each with an owner, a colour and nodes. Services share a
//! shelf by its id. The *board* (a security group that all share) has one pin for each Service and node, which needs
//! the shelf's address.

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

/// The shelf that is meant, by id.
pub const SHELF: &str = "toy/shelf";
pub const COLOUR: &str = "toy/colour";
pub const WOOD: &str = "toy/wood";
/// The mark that an observed shelf has if another cluster made it. The cloud does not hold it.
pub const FOREIGN: &str = "foreign";
/// Written by us: the id that the shelf had.
pub const WAS: &str = "toy/was";

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Id(u64),
    New(String),
    Board,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "shelf/#{id}"),
            Self::New(name) => write!(f, "shelf/new:{name}"),
            Self::Board => f.write_str("board"),
        }
    }
}

impl FromStr for Key {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "board" {
            Ok(Self::Board)
        } else if let Some(id) = text.strip_prefix("shelf/#") {
            id.parse().map(Self::Id).map_err(|_| ())
        } else {
            let name = text.strip_prefix("shelf/new:").ok_or(())?;
            Ok(Self::New(name.to_owned()))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Box {
    /// The tag of the Service; anything else is somebody else's.
    pub owner: String,
    pub colour: String,
    pub nodes: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shelf {
    pub id: Fact<u64>,
    pub name: String,
    pub marks: BTreeSet<String>,
    pub wood: String,
    pub address: Fact<String>,
    pub boxes: BTreeMap<u16, Box>,
}

impl Shelf {
    pub fn is_made_by_a_cluster(&self) -> bool {
        self.name.starts_with("shelf_")
    }

    pub fn tags(&self) -> impl Iterator<Item = &String> {
        self.marks.iter().filter(|mark| mark.starts_with("svc:"))
    }
}

pub type Board = BTreeMap<(String, String), Fact<String>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    Shelf(Vec<Shelf>),
    Board(Board),
}

#[derive(Debug)]
pub struct WantedBox {
    pub service: ServiceId,
    pub colour: String,
    pub nodes: BTreeSet<String>,
}

#[derive(Debug)]
pub enum Desired {
    Shelf {
        marks: OwnershipTag,
        /// Under which name it may be made, and by whom it is asked for.
        name: Option<String>,
        wood: Option<String>,
        joined: BTreeMap<String, ServiceId>,
        kept: BTreeSet<String>,
        /// Of the kept ones those whose boxes follow the nodes.
        following: BTreeSet<String>,
        leaving: BTreeSet<String>,
        boxes: BTreeMap<u16, WantedBox>,
        /// `None`: there are none, so boxes keep theirs.
        nodes: Option<BTreeSet<String>>,
    },
    Board {
        pins: Board,
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

/// What the listings show: ids and marks by name.
pub struct Directory {
    pub shelves: Vec<(u64, String, BTreeSet<String>)>,
    pub pinned: BTreeSet<String>,
    pub marks: OwnershipTag,
}

/// What a toy does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Never looks at colours.
    ForgetsColour,
    /// Paints whatever the colour is.
    PaintsAlways,
    /// Makes a shelf anew if its wood is wrong.
    Recreates,
    /// Says something else every time.
    Chatty,
    /// Tags a shelf only after it was made, and finds shelves by their marks.
    TagsLater,
    /// Wipes foreign marks when it writes its own.
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

pub fn shelf_name(id: &ServiceId) -> String {
    format!("shelf_{}_{}", id.namespace, id.name)
}

fn colour(service: &ServiceView) -> String {
    service.annotation(COLOUR).unwrap_or("grey").to_owned()
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
            Key::Board => "board",
            _ => "shelf",
        }
    }

    fn parts(&self, service: &ServiceView, _: &ClusterView, directory: &Directory) -> Parts<Key> {
        let (tag, name) = (tag(&service.id), shelf_name(&service.id));
        let shelf = match service.annotation(SHELF).map(str::parse) {
            Some(Ok(id)) => Key::Id(id),
            _ => {
                let found = directory.shelves.iter().find(|(_, shelf, marks)| {
                    if self.has(Flaw::TagsLater) {
                        shelf == &name && marks.contains(&tag)
                    } else {
                        shelf == &name
                    }
                });
                found.map_or(Key::New(name), |(id, ..)| Key::Id(*id))
            }
        };
        let tagged = directory
            .shelves
            .iter()
            .filter(|(.., marks)| marks.contains(&tag));
        let board = directory.pinned.contains(&tag).then_some(Key::Board);
        Parts {
            named: vec![shelf, Key::Board],
            tagged: tagged.map(|(id, ..)| Key::Id(*id)).chain(board).collect(),
        }
    }

    fn orphans(&self, world: &ClusterSnapshot, directory: &Directory) -> Vec<Orphan<Key>> {
        let services = &world.services;
        let known: BTreeSet<_> = services.iter().map(|service| tag(&service.id)).collect();
        let is_orphan = |marks: &BTreeSet<String>| {
            let mut tags = marks.iter().filter(|mark| mark.starts_with("svc:")).peekable();
            tags.peek().is_some() && tags.all(|tag| !known.contains(tag))
        };
        let orphans = directory.shelves.iter().filter(|(.., marks)| is_orphan(marks));
        orphans
            .map(|(id, name, marks)| Orphan {
                key: Key::Id(*id),
                what: format!("shelf {name}"),
                deletable: name.starts_with("shelf_")
                    && directory
                        .marks
                        .ownership(marks.iter().map(String::as_str))
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
            if *key == Key::Board || member.membership != Membership::Active {
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
            } else if colour(&member.service) == "plaid" {
                Some("plaid is no colour".to_owned())
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
        if *key == Key::Board {
            let mut pins = Board::new();
            for member in joined() {
                let Some((_, address)) = member.facts.last() else {
                    continue;
                };
                for node in nodes.iter().flatten() {
                    pins.insert((node.clone(), tag(&member.service.id)), address.clone());
                }
            }
            return Desired::Board {
                pins,
                services: joined()
                    .map(|member| (tag(&member.service.id), member.service.id.clone()))
                    .collect(),
                kept,
                leaving,
            };
        }
        let owner = joined().find(|member| member.service.annotation(SHELF).is_none());
        let mut boxes = BTreeMap::new();
        for member in joined() {
            for port in &member.service.ports {
                boxes.insert(
                    port.port,
                    WantedBox {
                        service: member.service.id.clone(),
                        colour: colour(&member.service),
                        nodes: nodes.clone().unwrap_or_default(),
                    },
                );
            }
        }
        Desired::Shelf {
            marks: cluster.ownership_tag.clone(),
            name: owner.map(|owner| shelf_name(&owner.service.id)),
            wood: owner.map(|owner| owner.service.annotation(WOOD).unwrap_or("pine").to_owned()),
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
            boxes,
            nodes,
        }
    }

    fn missing(&self, key: &Key, members: &[Member<Self>], observed: &Observed) -> Option<String> {
        let knew = members
            .iter()
            .find_map(|member| member.service.annotation(WAS)?.parse::<u64>().ok())?;
        match (key, observed) {
            (Key::Id(id), Observed::Shelf(shelves)) if shelves.is_empty() && *id == knew => {
                Some(format!("shelf #{id}"))
            }
            _ => None,
        }
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<ToyChange> {
        match (desired, observed) {
            (Desired::Shelf { .. }, Observed::Shelf(shelves)) => {
                crate::toy_plan::shelf(self, desired, shelves.first())
            }
            (
                Desired::Board {
                    pins,
                    services,
                    kept,
                    leaving,
                },
                Observed::Board(have),
            ) => crate::toy_plan::board(pins, services, kept, leaving, have),
            _ => Plan::default(),
        }
    }

    fn fold(&self, _: &Key, change: &ToyChange, reply: Option<&Reply>, observed: &mut Observed) {
        crate::toy_plan::fold(self, change, reply, observed);
    }

    fn rekey(&self, key: &Key, observed: &Observed) -> Option<Key> {
        match (key, observed) {
            (Key::New(_), Observed::Shelf(shelves)) => shelves.first()?.id.known().map(|id| Key::Id(*id)),
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
            if *key != Key::Board {
                told.effects.annotations.insert(WAS.to_owned(), None);
            }
            return Some(told);
        }
        let tag = tag(&member.service.id);
        match observed {
            Observed::Board(_) => Some(told(Fact::Known(String::new()))),
            Observed::Shelf(shelves) => {
                let serves = |shelf: &&Shelf| shelf.marks.contains(&tag) && !shelf.marks.contains(FOREIGN);
                let shelf = shelves.iter().find(serves)?;
                let mut told = told(shelf.address.clone());
                let effects = &mut told.effects;
                if let Fact::Known(address) = &shelf.address {
                    effects.ingress = Some(vec![Ingress {
                        ip: Some(address.as_str().into()),
                        ..Ingress::default()
                    }]);
                } else if self.has(Flaw::Vague) {
                    return None;
                }
                let id = shelf.id.known().map(ToString::to_string);
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

/// Whose a shelf is whose name says that a cluster made it.
pub fn ownership(marks: &OwnershipTag, shelf: &Shelf) -> Ownership {
    marks.ownership(shelf.marks.iter().map(String::as_str))
}

pub fn blocked(service: Option<&ServiceId>, field: impl Into<String>, have: &str, want: &str) -> Blocked {
    Blocked {
        service: service.cloned(),
        field: field.into(),
        have: have.to_owned(),
        want: want.to_owned(),
    }
}
