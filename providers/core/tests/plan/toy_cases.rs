//! What a cloud of toys holds, and what there may be in it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ccm_core::{
    Labels, NodeView,
    load_balancer::{
        ClusterSnapshot, ClusterView, NodeSet, Ownership, OwnershipTag, Protocol, ServiceId, ServiceNode,
        ServicePort, ServiceType, ServiceView,
    },
    plan::{Fact, GatheredInputs, Member},
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, other_cluster_tag, ownership_tag, pick,
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
                found.owner = tag(&id(number % SERVICES));
            }),
            edit_shelf("remove boxes", |shelf, _| {
                shelf.boxes.retain(|_, found| !found.owner.starts_with("svc:"));
            }),
            edit_shelf("put box on shelf", |shelf, _| {
                drop(shelf.boxes.insert(80, persons_box()));
            }),
            edit_shelf("tag shelf", |shelf, number| {
                shelf.marks.insert(tag(&id(number % SERVICES)));
            }),
            edit_shelf("untag shelf", |shelf, number| {
                shelf.marks.remove(&tag(&id(number % SERVICES)));
            }),
            edit_shelf("remove ownership tag", |shelf, _| {
                shelf.marks.retain(|mark| !mark.starts_with("kube_"));
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

    fn picture(&self, truth: &Truth) -> Vec<Line> {
        let owner_of = |owner: &String, is_foreign: bool| {
            if owner.starts_with("svc:") && !is_foreign {
                Owner::service(owner)
            } else {
                Owner::Foreign
            }
        };
        let mut picture = Vec::new();
        for shelf in &truth.shelves {
            let name = &shelf.name;
            let is_made = shelf.is_made_by_a_cluster();
            let is_others = is_made && is_foreign(shelf);
            let cluster = if is_foreign(shelf) {
                Owner::Foreign
            } else {
                Owner::Cluster
            };
            for mark in &shelf.marks {
                let owner = match owner_of(mark, is_others) {
                    Owner::Foreign => cluster.clone(),
                    owner => owner,
                };
                picture.push(Line::exact(format!("{name} has {mark}"), &owner));
            }
            for (port, found) in &shelf.boxes {
                let owner = match owner_of(&found.owner, is_others) {
                    Owner::Foreign => cluster.clone(),
                    // It is found by the shelf's marks.
                    _ if !shelf.marks.contains(&found.owner) => Owner::Cluster,
                    owner => owner,
                };
                picture.push(Line::exact(format!("{name} {port} {found:?}"), &owner));
            }
            let mut ids = (0..SERVICES).map(id);
            let own = ids.find(|id| shelf_name(id) == *name && shelf.marks.contains(&tag(id)));
            let owner = own.filter(|_| !is_others).map(|id| Owner::service(tag(&id)));
            picture.push(Line::exact(
                format!("{name} {}", shelf.wood),
                &owner.unwrap_or(cluster),
            ));
        }
        // An address differs from run to run; whether it is that of a shelf of the Service does not.
        picture.extend(truth.board.iter().map(|((node, tag), address)| {
            let mut shelves = truth.shelves.iter().filter(|shelf| shelf.marks.contains(tag));
            let right = shelves.any(|shelf| shelf.address == *address);
            Line::exact(format!("{node} {tag} {right}"), &owner_of(tag, false))
        }));
        picture
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        tag(service)
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
