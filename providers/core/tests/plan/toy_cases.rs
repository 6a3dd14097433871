//! What a cloud of toys holds, and what there may be in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ccm_core::{
    Labels, NodeView,
    load_balancer::{
        ClusterSnapshot, ClusterTag, ClusterView, NodeSet, Ownership, OwnershipTag, ServiceId, ServiceNode,
        ServicePort, ServiceType, ServiceView,
    },
    plan::{Fact, GatheredInputs, Member},
    testkit::laws::{Case, Lawful, weather},
};
use proptest::{collection::vec, option, prelude::*, sample::subsequence};

use crate::toy::{
    Board, Box, COLOUR, Desired, Directory, FOREIGN, Flaw, Key, Observed, Reply, SHELF, Shelf, Toy,
    ToyChange, WOOD, ownership, shelf_name, tag,
};

#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub shelves: Vec<Shelf>,
    pub board: Board,
}

pub fn marks() -> OwnershipTag {
    OwnershipTag::Known(ClusterTag::of("me"))
}

/// Whether a cluster that is not ours made it, or a person.
fn is_foreign(shelf: &Shelf) -> bool {
    !shelf.is_made_by_a_cluster() || matches!(ownership(&marks(), shelf), Ownership::Foreign(_))
}

fn known(id: &Fact<u64>) -> u64 {
    id.known().copied().unwrap_or_default()
}

impl Lawful for Toy {
    type Truth = Truth;

    fn view(&self, truth: &Truth, key: &Key, _: &[Member<Self>], cluster: &ClusterView) -> Observed {
        let seen = |shelf: &Shelf| {
            let mut shelf = shelf.clone();
            if matches!(ownership(&cluster.ownership_tag, &shelf), Ownership::Foreign(_)) {
                shelf.marks.insert(FOREIGN.to_owned());
            }
            shelf
        };
        let shelves = truth.shelves.iter();
        match key {
            Key::Board => Observed::Board(truth.board.clone()),
            Key::Id(id) => Observed::Shelf(
                shelves
                    .filter(|shelf| known(&shelf.id) == *id)
                    .map(seen)
                    .collect(),
            ),
            Key::New(_) if self.has(Flaw::TagsLater) => Observed::Shelf(Vec::new()),
            Key::New(name) => {
                Observed::Shelf(shelves.filter(|shelf| shelf.name == *name).map(seen).collect())
            }
        }
    }

    fn store(&self, truth: &mut Truth, key: &Key, after: Observed) {
        match (key, after) {
            (Key::Id(id), Observed::Shelf(after)) => {
                truth.shelves.retain(|shelf| known(&shelf.id) != *id);
                truth.shelves.extend(after);
            }
            (Key::New(name), Observed::Shelf(after)) => {
                if !self.has(Flaw::TagsLater) {
                    truth.shelves.retain(|shelf| shelf.name != *name);
                }
                truth.shelves.extend(after);
            }
            (_, Observed::Board(after)) => truth.board = after,
            (Key::Board, Observed::Shelf(_)) => {}
        }
        for shelf in &mut truth.shelves {
            shelf.marks.remove(FOREIGN);
        }
        truth.shelves.sort_by_key(|shelf| known(&shelf.id));
    }

    fn directory(&self, truth: &Truth) -> Directory {
        Directory {
            shelves: truth
                .shelves
                .iter()
                .map(|shelf| (known(&shelf.id), shelf.name.clone(), shelf.marks.clone()))
                .collect(),
            pinned: truth.board.keys().map(|(_, tag)| tag.clone()).collect(),
            marks: marks(),
        }
    }

    fn inputs(&self, _: &Key, _: &[Member<Self>], _: &ClusterView) -> GatheredInputs<()> {
        ().into()
    }

    fn reply(&self, _: &Key, _: &ToyChange, _: &Observed, serial: u64) -> Reply {
        Reply {
            id: 100 + serial,
            address: format!("10.0.0.{serial}"),
        }
    }

    fn shape(&self, truth: &Truth) -> Vec<String> {
        let mut shape: Vec<_> = truth
            .shelves
            .iter()
            .map(|shelf| {
                format!(
                    "{} {:?} {} {:?}",
                    shelf.name, shelf.marks, shelf.wood, shelf.boxes
                )
            })
            .collect();
        // An address differs from run to run; whether it is that of a shelf of the Service does not.
        shape.extend(truth.board.iter().map(|((node, tag), address)| {
            let right = truth
                .shelves
                .iter()
                .any(|shelf| shelf.marks.contains(tag) && shelf.address == *address);
            format!("{node} {tag} {right}")
        }));
        shape.sort();
        shape
    }

    fn foreign(&self, truth: &Truth) -> Vec<String> {
        let shelves = truth
            .shelves
            .iter()
            .filter(|shelf| is_foreign(shelf))
            .map(|shelf| {
                let boxes: BTreeMap<_, _> = shelf
                    .boxes
                    .iter()
                    .filter(|(_, have)| !have.owner.starts_with("svc:"))
                    .collect();
                let marks: Vec<_> = shelf
                    .marks
                    .iter()
                    .filter(|mark| !mark.starts_with("svc:"))
                    .collect();
                format!("{} {} {marks:?} {} {boxes:?}", shelf.id, shelf.name, shelf.wood)
            });
        let pins = truth
            .board
            .iter()
            .filter(|((_, tag), _)| !tag.starts_with("svc:"));
        shelves.chain(pins.map(|pin| format!("{pin:?}"))).collect()
    }

    fn differences(&self, desired: &Desired, observed: &Observed) -> Vec<String> {
        match (desired, observed) {
            (
                Desired::Board {
                    pins,
                    services,
                    leaving,
                    ..
                },
                Observed::Board(have),
            ) => {
                let of = |tags: &dyn Fn(&String) -> bool, board: &Board| {
                    let board = board.iter().filter(|((_, tag), _)| tags(tag));
                    board
                        .map(|(key, address)| (key.clone(), address.clone()))
                        .collect::<Board>()
                };
                let joined = of(&|tag| services.contains_key(tag), have);
                let gone = of(&|tag| leaving.contains(tag), have);
                let same = (pins.is_empty() || joined == *pins) && gone.is_empty();
                if same { vec![] } else { vec!["board".to_owned()] }
            }
            (desired @ Desired::Shelf { .. }, Observed::Shelf(shelves)) => {
                shelf_differences(desired, shelves.first())
            }
            _ => vec!["kind".to_owned()],
        }
    }

    fn destroys(&self, change: &ToyChange) -> bool {
        change.action == crate::toy::Action::DeleteShelf
    }
}

fn shelf_differences(desired: &Desired, shelf: Option<&Shelf>) -> Vec<String> {
    let Desired::Shelf {
        wood,
        joined,
        following,
        leaving,
        boxes,
        nodes,
        ..
    } = desired
    else {
        return Vec::new();
    };
    let Some(shelf) = shelf else {
        return joined.keys().map(|_| "shelf".to_owned()).collect();
    };
    if shelf.is_made_by_a_cluster() && is_foreign(shelf) {
        return joined.keys().map(|_| "shelf".to_owned()).collect();
    }
    let mut differences = Vec::new();
    if wood.as_ref().is_some_and(|wood| *wood != shelf.wood) {
        differences.push("wood".to_owned());
    }
    let has = |tag: &String| shelf.marks.contains(tag);
    if !joined.keys().all(has) || leaving.iter().any(has) {
        differences.push("marks".to_owned());
    }
    for (port, want) in boxes {
        let right = shelf.boxes.get(port).is_some_and(|have| {
            have.owner == tag(&want.service)
                && have.colour == want.colour
                && (nodes.is_none() || have.nodes == want.nodes)
        });
        if !right {
            differences.push(format!("box {port}"));
        }
    }
    for (port, have) in &shelf.boxes {
        let owner = &have.owner;
        let surplus = (joined.contains_key(owner) && !boxes.contains_key(port)) || leaving.contains(owner);
        let old = following.contains(owner) && nodes.as_ref().is_some_and(|nodes| *nodes != have.nodes);
        if surplus || old {
            differences.push(format!("box {port}"));
        }
    }
    differences
}

pub fn id(index: usize) -> ServiceId {
    ServiceId::new("n", format!("s{index}"), format!("u{index}"))
}

/// A Service that wants a shelf of its own.
pub fn service(index: usize, ports: &[u16], annotations: &[(&str, &str)]) -> ServiceView {
    ServiceView {
        id: id(index),
        annotations: annotations.iter().copied().collect::<Labels>(),
        finalizers: vec![ServiceView::FINALIZER.into()],
        service_type: ServiceType::LoadBalancer,
        ports: ports
            .iter()
            .map(|port| ServicePort {
                port: *port,
                ..ServicePort::default()
            })
            .collect(),
        ..ServiceView::default()
    }
}

pub fn nodes<'a>(names: impl IntoIterator<Item = (&'a str, bool)>) -> NodeSet {
    names
        .into_iter()
        .map(|(name, eligible)| ServiceNode {
            view: Arc::new(NodeView {
                name: name.to_owned(),
                ..NodeView::default()
            }),
            eligible,
            ..ServiceNode::default()
        })
        .collect()
}

pub fn world(services: Vec<ServiceView>, nodes: NodeSet) -> ClusterSnapshot {
    ClusterSnapshot {
        services: services.into_iter().map(Arc::new).collect(),
        cluster: ClusterView {
            name: "toys".into(),
            ownership_tag: marks(),
            nodes,
        },
    }
}

const SERVICES: usize = 3;
const NODES: [&str; 3] = ["n0", "n1", "n2"];
const PORTS: [u16; 3] = [80, 81, 82];

fn some_service(index: usize) -> impl Strategy<Value = Option<ServiceView>> {
    let annotations = (
        prop_oneof![4 => Just("grey"), 2 => Just("red"), 1 => Just("plaid")],
        prop_oneof![3 => Just("pine"), 1 => Just("oak")],
        prop_oneof![3 => Just(None), 2 => Just(Some("7")), 2 => Just(Some("10"))],
    );
    let life = prop_oneof![5 => Just(0), 1 => Just(1), 1 => Just(2), 1 => Just(3)];
    let some = (annotations, subsequence(PORTS.to_vec(), 1..=3), life).prop_map(
        move |((colour, wood, shelf), ports, life)| {
            let mut annotations = vec![(COLOUR, colour), (WOOD, wood)];
            annotations.extend(shelf.map(|shelf| (SHELF, shelf)));
            let mut service = service(index, &ports, &annotations);
            match life {
                1 => service.deleting = true,
                2 => service.service_type = ServiceType::ClusterIp,
                3 => {
                    service.service_type = ServiceType::ClusterIp;
                    service.finalizers.clear();
                }
                _ => {}
            }
            service
        },
    );
    prop_oneof![1 => Just(None), 5 => some.prop_map(Some)]
}

fn some_world() -> impl Strategy<Value = ClusterSnapshot> {
    let services = (0..SERVICES).map(some_service).collect::<Vec<_>>();
    let nodes_of = vec(option::weighted(0.8, proptest::bool::weighted(0.8)), NODES.len());
    (services, nodes_of).prop_map(|(services, eligible)| {
        let there = NODES.into_iter().zip(eligible);
        let set = nodes(there.filter_map(|(name, eligible)| Some((name, eligible?))));
        world(services.into_iter().flatten().collect(), set)
    })
}

fn some_nodes() -> impl Strategy<Value = BTreeSet<String>> {
    subsequence(NODES.to_vec(), 0..=3).prop_map(|names| names.into_iter().map(str::to_owned).collect())
}

fn some_boxes() -> impl Strategy<Value = BTreeMap<u16, Box>> {
    let one = (0..SERVICES, prop_oneof![Just("grey"), Just("blue")], some_nodes()).prop_map(
        |(owner, colour, nodes)| Box {
            owner: tag(&id(owner)),
            colour: colour.to_owned(),
            nodes,
        },
    );
    proptest::collection::btree_map(proptest::sample::select(&PORTS[..]), one, 0..3)
}

fn some_tags() -> impl Strategy<Value = BTreeSet<String>> {
    subsequence((0..SERVICES).collect::<Vec<_>>(), 0..=2)
        .prop_map(|services| services.into_iter().map(|index| tag(&id(index))).collect())
}

/// A shelf that bears the name of Service `index`: ours, upstream's or another cluster's, half-made or edited.
fn made_shelf(index: usize) -> impl Strategy<Value = Shelf> {
    let mark = prop_oneof![
        3 => Just(Some(ClusterTag::of("me"))),
        2 => Just(None),
        1 => Just(Some(ClusterTag::of("others")))
    ];
    (
        mark,
        proptest::bool::weighted(0.8),
        some_tags(),
        some_boxes(),
        prop_oneof![3 => Just("pine"), 1 => Just("oak")],
    )
        .prop_map(move |(mark, own, tags, boxes, wood)| {
            let own = own.then(|| tag(&id(index)));
            Shelf {
                id: Fact::Known(10 + index as u64),
                name: shelf_name(&id(index)),
                marks: tags
                    .into_iter()
                    .chain(mark.map(|mark| mark.to_string()))
                    .chain(own)
                    .collect(),
                wood: wood.to_owned(),
                address: Fact::Known(format!("192.0.2.{index}")),
                boxes,
            }
        })
}

/// A shelf that a person made.
fn users_shelf() -> impl Strategy<Value = Shelf> {
    (some_tags(), some_boxes(), option::of(Just("red"))).prop_map(|(tags, mut boxes, foreign)| {
        let theirs = |colour: &str| Box {
            owner: "somebody".to_owned(),
            colour: colour.to_owned(),
            nodes: BTreeSet::new(),
        };
        boxes.insert(90, theirs("white"));
        if let Some(colour) = foreign {
            boxes.insert(80, theirs(colour));
        }
        Shelf {
            id: Fact::Known(7),
            name: "library".to_owned(),
            marks: tags.into_iter().chain(["books".to_owned()]).collect(),
            wood: "ash".to_owned(),
            address: Fact::Known("192.0.2.77".to_owned()),
            boxes,
        }
    })
}

fn some_board() -> impl Strategy<Value = Board> {
    let tags = prop_oneof![
        3 => (0..SERVICES).prop_map(|index| tag(&id(index))),
        1 => Just("somebody".to_owned())
    ];
    let address = prop_oneof![Just("192.0.2.77"), Just("192.0.2.0"), Just("192.0.2.99")];
    let pin = (
        (proptest::sample::select(&NODES[..]).prop_map(str::to_owned), tags),
        address.prop_map(|address| Fact::Known(address.to_owned())),
    );
    vec(pin, 0..4).prop_map(|pins| pins.into_iter().collect())
}

fn some_truth() -> impl Strategy<Value = Truth> {
    let shelves = (0..SERVICES)
        .map(|index| option::weighted(0.4, made_shelf(index)))
        .collect::<Vec<_>>();
    (shelves, option::weighted(0.7, users_shelf()), some_board()).prop_map(|(made, users, board)| Truth {
        shelves: users.into_iter().chain(made.into_iter().flatten()).collect(),
        board,
    })
}

/// Clouds in any state, and clusters that change.
pub fn some_case() -> impl Strategy<Value = Case<Truth>> {
    (some_truth(), vec(some_world(), 1..3), weather()).prop_map(|(truth, worlds, weather)| Case {
        truth,
        worlds,
        weather,
    })
}
