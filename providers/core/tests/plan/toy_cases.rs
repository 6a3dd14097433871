//! The contents of a toy cloud, and their variations.

use std::collections::BTreeSet;
use std::sync::Arc;

use ccm_core::{
    Labels, NodeView,
    load_balancer::{
        ClusterSnapshot, ClusterView, NodeSet, Ownership, OwnershipTag, Protocol, ServiceId, ServiceNode,
        ServicePort, ServiceType, ServiceView,
    },
    plan::{Fact, Member},
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, other_cluster_tag, ownership_tag, pick,
        remove, service_id,
    },
};

use crate::toy::{
    ALGORITHM, BALANCER, Balancer, Directory, FLAVOR, FOREIGN, Firewall, Flaw, Key, Listener, Observed, Toy,
    ToyChange, ToyReply, balancer_name, ownership, tag,
};

#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub balancers: Vec<Balancer>,
    pub firewall: Firewall,
}

pub fn tags() -> OwnershipTag {
    ownership_tag()
}

/// Whether another cluster or a person created it.
fn is_foreign(balancer: &Balancer) -> bool {
    !balancer.is_created_by_a_cluster() || matches!(ownership(&tags(), balancer), Ownership::Foreign(_))
}

fn known(id: &Fact<u64>) -> u64 {
    id.known().copied().unwrap_or_default()
}

impl Lawful for Toy {
    type Truth = Truth;

    /// A balancer that a person created.
    fn ground(&self) -> Truth {
        Truth {
            balancers: vec![Balancer {
                id: Fact::Known(7),
                name: "library".to_owned(),
                tags: ["books".to_owned()].into(),
                flavor: "ash".to_owned(),
                address: Fact::Known("192.0.2.77".to_owned()),
                listeners: [(90, foreign_listener())].into(),
            }],
            firewall: Firewall::new(),
        }
    }

    fn clusters(&self) -> Clusters {
        Clusters {
            names: vec!["toys"],
            ports: [80, 81, 82].map(|port| (Protocol::Tcp, port)).to_vec(),
            settings: vec![
                ["red", "plaid"].map(|algorithm| Setting::annotation(ALGORITHM, algorithm)).to_vec(),
                vec![Setting::annotation(FLAVOR, "oak")],
                ["7", "10"].map(|balancer| Setting::annotation(BALANCER, balancer)).to_vec(),
            ],
            provider_id: |index| format!("toy:///{index}"),
        }
    }

    fn edits(&self) -> Vec<Edit<Truth>> {
        fn edit_balancer(name: &'static str, edit: fn(&mut Balancer, usize)) -> Edit<Truth> {
            Edit::new(name, move |truth: &mut Truth, number| {
                if let Some(balancer) = pick(&mut truth.balancers, number) {
                    edit(balancer, number);
                }
            })
        }
        fn edit_listener(name: &'static str, edit: fn(&mut Listener, usize)) -> Edit<Truth> {
            Edit::new(name, move |truth: &mut Truth, number| {
                let listeners =
                    truth.balancers.iter_mut().flat_map(|balancer| balancer.listeners.values_mut());
                let listeners = listeners.filter(|found| found.owner.starts_with("svc:"));
                if let Some(found) = pick(listeners, number) {
                    edit(found, number);
                }
            })
        }
        vec![
            edit_listener("update listener", |found, _| found.algorithm = "blue".to_owned()),
            edit_listener("empty listener", |found, _| found.nodes.clear()),
            edit_listener("give listener to another Service", |found, number| {
                found.owner = tag(&id(number % SERVICES));
            }),
            edit_balancer("remove listeners", |balancer, _| {
                balancer.listeners.retain(|_, found| !found.owner.starts_with("svc:"));
            }),
            edit_balancer("put listener on balancer", |balancer, _| {
                drop(balancer.listeners.insert(80, foreign_listener()));
            }),
            edit_balancer("tag balancer", |balancer, number| {
                balancer.tags.insert(tag(&id(number % SERVICES)));
            }),
            edit_balancer("untag balancer", |balancer, number| {
                balancer.tags.remove(&tag(&id(number % SERVICES)));
            }),
            edit_balancer("remove ownership tag", |balancer, _| {
                balancer.tags.retain(|tag_text| !tag_text.starts_with("kube_"));
            }),
            edit_balancer("give to another cluster", |balancer, _| {
                if balancer.is_created_by_a_cluster() {
                    balancer.tags.retain(|tag_text| !tag_text.starts_with("kube_"));
                    balancer.tags.insert(other_cluster_tag().to_string());
                }
            }),
            edit_balancer("change flavor", |balancer, _| {
                if balancer.is_created_by_a_cluster() {
                    balancer.flavor = "elm".to_owned();
                }
            }),
            Edit::new("delete balancer", |truth: &mut Truth, number| {
                remove(&mut truth.balancers, number, Balancer::is_created_by_a_cluster);
            }),
            Edit::new("delete rule", |truth: &mut Truth, number| {
                let key = truth.firewall.keys().nth(number % truth.firewall.len().max(1)).cloned();
                drop(key.and_then(|key| truth.firewall.remove(&key)));
            }),
            Edit::new("rule", |truth: &mut Truth, number| {
                let tags = ["somebody".to_owned(), tag(&id(number % SERVICES))];
                let rules = tags.into_iter().map(|tag| ("node0".to_owned(), tag));
                let address = Fact::Known("192.0.2.99".to_owned());
                truth.firewall.extend(rules.map(|rule| (rule, address.clone())));
            }),
        ]
    }

    fn view(&self, truth: &Truth, key: &Key, _: &[Member<Self>], cluster: &ClusterView) -> Observed {
        let seen = |balancer: &Balancer| {
            let mut balancer = balancer.clone();
            if matches!(ownership(&cluster.ownership_tag, &balancer), Ownership::Foreign(_)) {
                balancer.tags.insert(FOREIGN.to_owned());
            }
            balancer
        };
        let balancers = truth.balancers.iter();
        match key {
            Key::Firewall => Observed::Firewall(truth.firewall.clone()),
            Key::Id(id) => Observed::Balancer(
                balancers.filter(|balancer| known(&balancer.id) == *id).map(seen).collect(),
            ),
            Key::New(_) if self.has(Flaw::TagsLater) => Observed::Balancer(Vec::new()),
            Key::New(name) => {
                Observed::Balancer(balancers.filter(|balancer| balancer.name == *name).map(seen).collect())
            }
        }
    }

    fn store(&self, truth: &mut Truth, key: &Key, after: Observed) {
        match (key, after) {
            (Key::Id(id), Observed::Balancer(after)) => {
                truth.balancers.retain(|balancer| known(&balancer.id) != *id);
                truth.balancers.extend(after);
            }
            (Key::New(name), Observed::Balancer(after)) => {
                if !self.has(Flaw::TagsLater) {
                    truth.balancers.retain(|balancer| balancer.name != *name);
                }
                truth.balancers.extend(after);
            }
            (_, Observed::Firewall(after)) => truth.firewall = after,
            (Key::Firewall, Observed::Balancer(_)) => {}
        }
        for balancer in &mut truth.balancers {
            balancer.tags.remove(FOREIGN);
        }
        truth.balancers.sort_by_key(|balancer| known(&balancer.id));
    }

    fn directory(&self, truth: &Truth) -> Directory {
        Directory {
            balancers: truth
                .balancers
                .iter()
                .map(|balancer| (known(&balancer.id), balancer.name.clone(), balancer.tags.clone()))
                .collect(),
            pinned: truth.firewall.keys().map(|(_, tag)| tag.clone()).collect(),
            tags: tags(),
        }
    }

    fn inputs(&self, _: &Truth, _: &Key, _: &[Member<Self>], _: &ClusterView) {}

    fn reply(&self, change: &ToyChange, _: &Observed, ids: &Ids) -> ToyReply {
        let is_of =
            |index: &usize| ids.id("", &change.balancer) == format!("-{}", balancer_name(&id(*index)));
        let by_name = (0..SERVICES).find(is_of).map(|index| 10 + index as u64);
        ToyReply {
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
        for balancer in &truth.balancers {
            let name = &balancer.name;
            let is_created = balancer.is_created_by_a_cluster();
            let is_foreign_cluster = is_created && is_foreign(balancer);
            let cluster = if is_foreign(balancer) {
                Owner::Foreign
            } else {
                Owner::Cluster
            };
            for tag_text in &balancer.tags {
                let owner = match owner_of(tag_text, is_foreign_cluster) {
                    Owner::Foreign => cluster.clone(),
                    owner => owner,
                };
                picture.push(Line::exact(format!("{name} has {tag_text}"), &owner));
            }
            for (port, found) in &balancer.listeners {
                let owner = match owner_of(&found.owner, is_foreign_cluster) {
                    Owner::Foreign => cluster.clone(),
                    // It is found by the balancer's tags.
                    _ if !balancer.tags.contains(&found.owner) => Owner::Cluster,
                    owner => owner,
                };
                picture.push(Line::exact(format!("{name} {port} {found:?}"), &owner));
            }
            let mut ids = (0..SERVICES).map(id);
            let own = ids.find(|id| balancer_name(id) == *name && balancer.tags.contains(&tag(id)));
            let owner = own.filter(|_| !is_foreign_cluster).map(|id| Owner::service(tag(&id)));
            picture.push(Line::exact(format!("{name} {}", balancer.flavor), &owner.unwrap_or(cluster)));
        }
        // An address differs from run to run; whether it is that of a balancer of the Service does not.
        picture.extend(truth.firewall.iter().map(|((node, tag), address)| {
            let mut balancers = truth.balancers.iter().filter(|balancer| balancer.tags.contains(tag));
            let right = balancers.any(|balancer| balancer.address == *address);
            Line::exact(format!("{node} {tag} {right}"), &owner_of(tag, false))
        }));
        picture
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        tag(service)
    }

    fn destroys(&self, change: &ToyChange, _: &Observed, _: &ServiceView) -> bool {
        change.action == crate::toy::Action::DeleteBalancer
    }
}

fn foreign_listener() -> Listener {
    Listener {
        owner: "somebody".to_owned(),
        algorithm: "white".to_owned(),
        nodes: BTreeSet::new(),
    }
}

pub fn id(index: usize) -> ServiceId {
    service_id(index)
}

/// A Service with its own balancer.
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
    let cluster = ClusterView {
        name: "toys".into(),
        ownership_tag: tags(),
        nodes,
    };
    ClusterSnapshot::new(services.into_iter().map(Arc::new).collect(), cluster)
}
