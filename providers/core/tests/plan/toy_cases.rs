//! What a cloud of toys holds, and what there may be in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ccm_core::{
    Labels, NodeView,
    load_balancer::{
        ClusterSnapshot, ClusterView, NodeSet, Ownership, OwnershipTag, Protocol, ServiceId, ServiceNode,
        ServicePort, ServiceType, ServiceView,
    },
    plan::{Fact, GatheredInputs, Member},
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, SERVICES, Served, Setting, other_cluster_tag, ownership_tag, pick,
        remove, service_id,
    },
};

use crate::toy::{
    Board, Box, COLOUR, Directory, FOREIGN, Flaw, Key, Observed, Reply, SHELF, Shelf, Toy, ToyChange, WOOD,
    ownership, shelf_name, tag,
};

#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub shelves: Vec<Shelf>,
    pub board: Board,
}

pub fn marks() -> OwnershipTag {
    ownership_tag()
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

    /// A shelf that a person made.
    fn ground(&self) -> Truth {
        Truth {
            shelves: vec![Shelf {
                id: Fact::Known(7),
                name: "library".to_owned(),
                marks: ["books".to_owned()].into(),
                wood: "ash".to_owned(),
                address: Fact::Known("192.0.2.77".to_owned()),
                boxes: [(90, persons_box())].into(),
            }],
            board: Board::new(),
        }
    }

    fn clusters(&self) -> Clusters {
        Clusters {
            names: vec!["toys"],
            ports: [80, 81, 82].map(|port| (Protocol::Tcp, port)).to_vec(),
            settings: vec![
                ["red", "plaid"]
                    .map(|colour| Setting::annotation(COLOUR, colour))
                    .to_vec(),
                vec![Setting::annotation(WOOD, "oak")],
                ["7", "10"]
                    .map(|shelf| Setting::annotation(SHELF, shelf))
                    .to_vec(),
            ],
            provider_id: |index| format!("toy:///{index}"),
        }
    }

    fn edits(&self) -> Vec<Edit<Truth>> {
        fn edit_shelf(name: &'static str, edit: fn(&mut Shelf, usize)) -> Edit<Truth> {
            Edit::new(name, move |truth: &mut Truth, number| {
                if let Some(shelf) = pick(&mut truth.shelves, number, |_| true) {
                    edit(shelf, number);
                }
            })
        }
        fn edit_box(name: &'static str, edit: fn(&mut Box, usize)) -> Edit<Truth> {
            Edit::new(name, move |truth: &mut Truth, number| {
                let boxes = truth
                    .shelves
                    .iter_mut()
                    .flat_map(|shelf| shelf.boxes.values_mut());
                let mut boxes: Vec<_> = boxes.filter(|found| found.owner.starts_with("svc:")).collect();
                if let Some(found) = pick(&mut boxes, number, |_| true) {
                    edit(found, number);
                }
            })
        }
        vec![
            edit_box("paint box", |found, _| found.colour = "blue".to_owned()),
            edit_box("empty box", |found, _| found.nodes.clear()),
            edit_box("give box to another Service", |found, number| {
                found.owner = tag(&id(number % SERVICES))
            }),
            edit_shelf("remove boxes", |shelf, _| {
                shelf.boxes.retain(|_, found| !found.owner.starts_with("svc:"))
            }),
            edit_shelf("put box on shelf", |shelf, _| {
                drop(shelf.boxes.insert(80, persons_box()))
            }),
            edit_shelf("tag shelf", |shelf, number| {
                shelf.marks.insert(tag(&id(number % SERVICES)));
            }),
            edit_shelf("untag shelf", |shelf, number| {
                shelf.marks.remove(&tag(&id(number % SERVICES)));
            }),
            edit_shelf("remove ownership tag", |shelf, _| {
                shelf.marks.retain(|mark| !mark.starts_with("kube_"))
            }),
            edit_shelf("give to another cluster", |shelf, _| {
                if shelf.is_made_by_a_cluster() {
                    shelf.marks.retain(|mark| !mark.starts_with("kube_"));
                    shelf.marks.insert(other_cluster_tag().to_string());
                }
            }),
            edit_shelf("change wood", |shelf, _| {
                if shelf.is_made_by_a_cluster() {
                    shelf.wood = "elm".to_owned();
                }
            }),
            Edit::new("delete shelf", |truth: &mut Truth, number| {
                remove(&mut truth.shelves, number, Shelf::is_made_by_a_cluster);
            }),
            Edit::new("unpin", |truth: &mut Truth, number| {
                let key = truth.board.keys().nth(number % truth.board.len().max(1)).cloned();
                drop(key.and_then(|key| truth.board.remove(&key)));
            }),
            Edit::new("pin", |truth: &mut Truth, number| {
                let tags = ["somebody".to_owned(), tag(&id(number % SERVICES))];
                let pins = tags.into_iter().map(|tag| ("node0".to_owned(), tag));
                let address = Fact::Known("192.0.2.99".to_owned());
                truth.board.extend(pins.map(|pin| (pin, address.clone())));
            }),
        ]
    }

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

    fn reply(&self, _: &Key, change: &ToyChange, _: &Observed, ids: &Ids) -> Reply {
        let is_of = |index: &usize| ids.id("", &change.shelf) == format!("-{}", shelf_name(&id(*index)));
        let by_name = (0..SERVICES).find(is_of).map(|index| 10 + index as u64);
        Reply {
            id: by_name.unwrap_or(100 + ids.number()),
            address: ids.address(),
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

    fn served(&self, truth: &Truth, service: &ServiceId, _: &str) -> Served {
        let mut served = Served::default();
        let tag = tag(service);
        let is_ours = |shelf: &&Shelf| !shelf.is_made_by_a_cluster() || !is_foreign(shelf);
        for shelf in truth.shelves.iter().filter(is_ours) {
            if shelf.marks.contains(&tag) {
                served.exact.insert(format!("shelf {}", shelf.name));
                if shelf.name == shelf_name(service) {
                    served.exact.insert(shelf.wood.clone());
                }
            }
            let own = shelf.boxes.iter().filter(|(_, found)| found.owner == tag);
            served.exact.extend(own.map(|found| format!("{found:?}")));
        }
        let pins = truth.board.keys().filter(|(_, owner)| *owner == tag);
        served.exact.extend(pins.map(|(node, _)| format!("pin {node}")));
        served
    }

    fn destroys(&self, change: &ToyChange) -> bool {
        change.action == crate::toy::Action::DeleteShelf
    }
}

fn persons_box() -> Box {
    Box {
        owner: "somebody".to_owned(),
        colour: "white".to_owned(),
        nodes: BTreeSet::new(),
    }
}

pub fn id(index: usize) -> ServiceId {
    service_id(index)
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
