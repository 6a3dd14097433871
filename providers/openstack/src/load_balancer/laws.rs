//! The laws of the plan engine, for clouds in any state.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::plan::objects::{self, Object, Objects};
use ccm_core::{
    load_balancer::{ClusterTag, ClusterView, Ownership, OwnershipTag},
    plan::{GatheredInputs, Member as Joiner},
    testkit::laws::{Lawful, laws},
};

use super::{
    desired::{ActiveService, Desired, DesiredListener, Inputs, ServiceInputs},
    directory::{Directory, Entry},
    features::{Capabilities, Version},
    groups::{Group, RULES},
    kinds::{Kind, MEMBERS, tags, texts},
    member::Member,
    names,
    observe::{self, LoadBalancerSnapshot, Observed, is_broken, tags_of},
    part::{Key, Model},
    responses::{LoadBalancer, Provisioning, Rule},
    steps::{Change, Reply},
    tags::Unrecorded,
};
use crate::instances::records::Port;

/// What is in the cloud.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    /// Load balancers, each with what is below it.
    trees: Vec<Objects<Kind>>,
    floating: Vec<Object<Kind>>,
    groups: Vec<Object<Group>>,
    ports: BTreeMap<String, Port>,
}

fn ownership_tag() -> OwnershipTag {
    OwnershipTag::Known(ClusterTag::of("me"))
}

fn root(tree: &Objects<Kind>) -> &Object<Kind> {
    tree.of(Kind::Balancer).next().unwrap()
}

fn created(tree: &Objects<Kind>) -> bool {
    root(tree).text("name").starts_with(names::SERVICE_PREFIX)
}

fn is_foreign(tree: &Objects<Kind>) -> bool {
    let tags = texts(root(tree), "tags");
    !created(tree) || matches!(ownership_tag().ownership(tags), Ownership::Foreign(_))
}

fn of_key(tree: &Objects<Kind>, key: &Key) -> bool {
    match key {
        Key::Balancer(id) => root(tree).id == *id,
        Key::New(name) => root(tree).text("name") == *name,
        _ => false,
    }
}

/// An object without its ids.
fn text(object: &Object<Kind>) -> String {
    let fields = [
        "name",
        "protocol",
        "type",
        "delay",
        "lb_algorithm",
        "connection_limit",
        "insert_headers",
        "default_tls_container_ref",
    ];
    let fields: Vec<_> = fields.iter().map(|name| object.attributes.get(*name)).collect();
    let members: BTreeSet<_> = object.set(MEMBERS).iter().map(Member::identity).collect();
    let tags: BTreeSet<_> = texts(object, "tags").collect();
    format!("{:?} {fields:?} {tags:?} {members:?}", object.kind)
}

fn tree_text(tree: &Objects<Kind>) -> String {
    let all: BTreeSet<_> = tree.all.iter().map(text).collect();
    format!("{all:?}")
}

/// Whether the listener there is what the Service with this tag wants.
fn right(tree: &Objects<Kind>, port: &DesiredListener, active: &ActiveService) -> bool {
    let key = port.listener_key.to_string();
    let [Some(listener), Some(pool)] = [Kind::Listener, Kind::Pool].map(|kind| tree.get(kind, &key)) else {
        return false;
    };
    let have: BTreeSet<_> = pool.set(MEMBERS).iter().map(Member::identity).collect();
    let want = port
        .members
        .as_ref()
        .map(|members| members.iter().map(Member::identity).collect());
    let monitor = tree.get(Kind::Monitor, &key).map(|monitor| monitor.text("type"));
    let header = listener.attributes["insert_headers"].get("X-Forwarded-For");
    let tagged = |object, requested: &BTreeSet<String>| {
        let tags = tags(object);
        requested.iter().all(|tag| tags.contains(tag))
    };
    pool.text("protocol") == port.pool_protocol
        && want.is_none_or(|want: BTreeSet<_>| want == have)
        && monitor == port.monitor.map(|monitor| monitor.check.kind())
        && tagged(pool, &active.tags.pool)
        && listener.text("protocol") == port.protocol
        && tags(listener).contains(&active.owner.tag)
        && tagged(listener, &active.tags.listener)
        && listener.attributes["connection_limit"] == port.connection_limit
        && listener.text("default_tls_container_ref") == port.tls
        && header.is_some() == port.forwarded_for
}

impl Lawful for Model {
    type Truth = Truth;

    fn view(&self, truth: &Truth, key: &Key, members: &[Joiner<Self>], cluster: &ClusterView) -> Observed {
        match key {
            Key::Balancer(_) | Key::New(_) => {
                let trees = truth.trees.iter().filter(|tree| of_key(tree, key));
                let trees: Vec<_> = trees.map(|tree| tree.all.as_slice()).collect();
                // Of several nothing is read but themselves.
                let objects = match trees.as_slice() {
                    [tree] => tree.to_vec(),
                    several => several.iter().map(|tree| tree[0].clone()).collect(),
                };
                let objects: Objects<_> = objects.into_iter().chain(truth.floating.clone()).collect();
                Observed::Balancers(LoadBalancerSnapshot {
                    is_being_created: false,
                    external: true,
                    cluster: cluster.name.to_string(),
                    ownership_tag: cluster.ownership_tag.clone(),
                    annotated: Unrecorded::default()
                        .annotated(members.iter().map(|member| &*member.service), || {
                            tags_of(&objects, |_| true)
                        }),
                    objects,
                })
            }
            Key::Group(name) => {
                let groups = truth.groups.iter().filter(|group| group.key == *name);
                Observed::Groups(groups.cloned().collect())
            }
            Key::NodePorts => Observed::Ports(truth.ports.clone()),
        }
    }

    fn store(&self, truth: &mut Truth, key: &Key, after: Observed) {
        match after {
            Observed::Balancers(snapshot) => {
                let (floating, tree): (Vec<_>, Vec<_>) = snapshot
                    .objects
                    .all
                    .into_iter()
                    .partition(|object| object.kind == Kind::Floating);
                truth.floating = floating;
                truth.trees.retain(|tree| !of_key(tree, key));
                if !tree.is_empty() {
                    let mut tree: Objects<_> = tree.into_iter().collect();
                    // As it is read: by its name.
                    let name = root(&tree).text("name").to_owned();
                    for object in &mut tree.all {
                        match object.kind {
                            Kind::Balancer => object.key.clone_from(&name),
                            Kind::Listener => object.parent = Some(name.clone()),
                            _ => {}
                        }
                    }
                    truth.trees.push(tree);
                }
                for floating in &mut truth.floating {
                    // As it is read: by its address.
                    floating.key = floating.text("floating_ip_address").to_owned();
                    floating.parent = None;
                    let port = floating.text("port_id");
                    let there = |tree: &Objects<Kind>| root(tree).text("vip_port_id") == port;
                    if port.starts_with("vip-") && !truth.trees.iter().any(there) {
                        floating.attributes.remove("port_id");
                    }
                }
                truth.trees.sort_by(|a, b| root(a).id.cmp(&root(b).id));
                truth.floating.sort_by(|a, b| a.id.cmp(&b.id));
            }
            Observed::Groups(groups) => {
                if let Key::Group(name) = key {
                    truth.groups.retain(|group| group.key != *name);
                }
                truth.groups.extend(groups.all);
            }
            Observed::Ports(ports) => truth.ports = ports,
        }
    }

    fn directory(&self, truth: &Truth) -> Directory {
        let balancers = truth.trees.iter().map(|tree| {
            let root = root(tree);
            let entry = Entry {
                name: root.text("name").to_owned(),
                tags: tags(root),
            };
            (root.id.clone(), entry)
        });
        let groups = truth.groups.iter();
        let groups = groups.map(|group| (group.key.clone(), group.text("description").to_owned()));
        Directory::new(balancers, groups)
    }

    fn inputs(&self, _: &Key, members: &[Joiner<Self>], _: &ClusterView) -> GatheredInputs<Inputs> {
        let found = ServiceInputs {
            vip_subnet: "sub".into(),
            member_subnet: "sub".into(),
            member_range: "10.0.0.0/24".into(),
            floating_network: Some("public".into()),
            floating_subnets: Vec::new(),
        };
        let each = members
            .iter()
            .map(|member| (member.service.id.clone(), found.clone()));
        let groups = members.iter().map(|member| {
            let name = names::security_group(&member.service.id);
            (name.clone(), vec![format!("id-{name}")])
        });
        Inputs {
            port_owners: Default::default(),
            can: Capabilities::of(Version(27), "amphora"),
            each: each.collect(),
            groups: groups.collect(),
            balancer: None,
        }
        .into()
    }

    fn reply(&self, _: &Key, change: &Change, _: &Observed, serial: u64) -> Reply {
        match change {
            Change::Balancer(_, change) => {
                let mut reply = objects::Reply::default();
                if let objects::Action::Create(new, _) = &change.action {
                    let (prefix, object) = match new.kind {
                        Kind::Balancer => {
                            let balancer = LoadBalancer {
                                name: new.key.clone(),
                                tags: tags(new),
                                vip_address: format!("10.9.{}.{}", serial / 250, serial % 250),
                                vip_port_id: format!("vip-new-{serial}"),
                                vip_subnet_id: new.text("vip_subnet_id").to_owned(),
                                provisioning_status: Provisioning::Active,
                                ..LoadBalancer::default()
                            };
                            ("lb", Object::from(&balancer))
                        }
                        Kind::Floating => {
                            let address = format!("203.0.{}.{}", serial / 250, serial % 250);
                            let object = Object::new(new.kind, &*new.key);
                            ("f", object.with("floating_ip_address", address))
                        }
                        kind => ("below", Object::new(kind, &*new.key)),
                    };
                    let id = format!("{prefix}-{serial}");
                    reply = objects::Reply::object(Object { id, ..object });
                }
                Reply::Balancer(reply)
            }
            Change::Group(group) => {
                let mut reply = objects::Reply::default();
                match &group.action {
                    objects::Action::Create(group, _) => {
                        let rules = ["IPv4", "IPv6"].map(|ethertype| Rule {
                            id: format!("{ethertype}-{serial}"),
                            direction: "egress".into(),
                            ethertype: ethertype.into(),
                            ..Rule::default()
                        });
                        reply.objects.push(Object {
                            id: format!("id-{}", group.key),
                            ..Object::new(Group, &group.key).entries(RULES, rules)
                        });
                    }
                    objects::Action::Add(_, rules) => reply.entries.extend(rules.iter().map(|rule| Rule {
                        id: format!("r-{serial}"),
                        ..rule.clone()
                    })),
                    _ => {}
                }
                Reply::Group(reply)
            }
            _ => Reply::Nothing,
        }
    }

    fn fail(&self, truth: &mut Truth, key: &Key) {
        for tree in truth.trees.iter_mut().filter(|tree| of_key(tree, key)) {
            set_status(tree, "ERROR");
        }
    }

    fn repair(&self, truth: &mut Truth) {
        let is_shared = |tree: &Objects<Kind>| {
            let tags = texts(root(tree), "tags");
            tags.filter(|tag| names::is_service_tag(tag)).count() > 1
        };
        let trees = truth.trees.iter_mut();
        for tree in trees.filter(|tree| !created(tree) || is_shared(tree)) {
            set_status(tree, "ACTIVE");
        }
    }

    fn shape(&self, truth: &Truth) -> Vec<String> {
        let mut shape: Vec<_> = truth.trees.iter().map(tree_text).collect();
        shape.extend(truth.floating.iter().map(|floating| {
            let port = floating.text("port_id");
            let mut roots = truth.trees.iter().map(root);
            let at = roots.find(|root| root.text("vip_port_id") == port);
            let at = at.map(|root| root.text("name"));
            format!("floating {} at {at:?}", floating.text("description"))
        }));
        shape.extend(truth.groups.iter().map(|group| {
            let rules: BTreeSet<_> = group.set(RULES).iter().map(ToString::to_string).collect();
            format!("group {} {rules:?}", group.key)
        }));
        shape.extend(truth.ports.iter().map(|(id, port)| {
            let groups: BTreeSet<_> = port.security_groups.iter().collect();
            format!("port {id} {groups:?}")
        }));
        shape.sort();
        shape
    }

    fn foreign(&self, truth: &Truth) -> Vec<String> {
        let mut foreign = Vec::new();
        for tree in truth.trees.iter().filter(|tree| is_foreign(tree)) {
            let theirs: BTreeSet<_> = tree
                .of(Kind::Listener)
                .filter(|listener| created(tree) || !texts(listener, "tags").any(names::is_service_tag))
                .map(|listener| &listener.key)
                .collect();
            let below = tree.all.iter().filter(|object| object.parent.is_some());
            let below: Vec<_> = below.filter(|object| theirs.contains(&object.key)).collect();
            let root = root(tree);
            let tags = texts(root, "tags");
            let tags: Vec<_> = tags
                .filter(|tag| created(tree) || (!names::is_service_tag(tag) && !tag.starts_with("t-")))
                .collect();
            let port = root.text("vip_port_id");
            let floating = truth
                .floating
                .iter()
                .filter(|floating| floating.text("port_id") == port);
            let floating: Vec<_> = floating.map(|floating| &floating.id).collect();
            foreign.push(format!("{} {tags:?} {below:?} {floating:?}", root.text("name")));
        }
        let theirs =
            |floating: &&Object<Kind>| !floating.text("description").contains(names::FLOATING_IP_MARK);
        foreign.extend(
            truth
                .floating
                .iter()
                .filter(theirs)
                .map(|floating| floating.id.clone()),
        );
        for (id, port) in &truth.ports {
            let groups = port.security_groups.iter();
            let groups: Vec<_> = groups.filter(|group| !group.starts_with("id-lb-sg-")).collect();
            foreign.push(format!("{id} {groups:?}"));
        }
        foreign
    }

    fn differences(&self, desired: &Desired, observed: &Observed) -> Vec<String> {
        match (desired, observed) {
            (Desired::Balancer(desired), Observed::Balancers(snapshot)) => {
                let all = |text: String| desired.active.iter().map(|_| text.clone()).collect();
                let Some(balancer) = snapshot.balancer() else {
                    let (Key::Balancer(name) | Key::New(name)) = &desired.key else {
                        return Vec::new();
                    };
                    return all(format!("load balancer {name}"));
                };
                let tree = &snapshot.objects;
                let name = balancer.text("name");
                let mut found = Vec::new();
                let tags = tags(balancer);
                let has = |tag: &String| tags.contains(tag);
                if created(tree) && is_foreign(tree) {
                    return all(format!("load balancer {name}"));
                }
                if is_broken(balancer) {
                    return all(format!("state of load balancer {name}"));
                }
                if desired.leaving.iter().any(|leaving| has(&leaving.owner.tag)) {
                    found.push(format!("tags of load balancer {name}"));
                }
                let floating = observe::floating(tree, balancer);
                for active in &desired.active {
                    let owner = active.owner.owns(name);
                    let tagged = active.tags.load_balancer.iter().all(has);
                    if !tagged || !has(&active.owner.tag) || (!owner && active.internal) {
                        found.push(format!("load balancer {name}"));
                        continue;
                    }
                    let wants = !active.internal && floating.is_none();
                    let wrong = owner && active.internal && floating.is_some();
                    if wants || wrong {
                        found.push(format!("address of load balancer {name}"));
                    }
                    let wrong = active.ports.iter().filter(|port| !right(tree, port, active));
                    found.extend(
                        wrong.map(|port| format!("listener {} of load balancer {name}", port.listener_key)),
                    );
                }
                found
            }
            (Desired::Group(None), Observed::Groups(_)) => Vec::new(),
            (Desired::Group(Some(desired)), Observed::Groups(groups)) => {
                match (desired.objects.as_slice(), groups.all.as_slice()) {
                    ([], []) => Vec::new(),
                    ([want], [have]) if have.set(RULES).len() == want.set(RULES).len() => Vec::new(),
                    ([group, ..], _) | (_, [group, ..]) => vec![group.title()],
                }
            }
            (Desired::Ports(desired), Observed::Ports(ports)) => {
                let forbidden = ports.values().any(|port| {
                    port.security_groups
                        .iter()
                        .any(|group| desired.forbidden.iter().any(|gone| gone.id.to_string() == *group))
                });
                let missing = desired.required.iter().any(|(address, server, group)| {
                    ports.values().any(|port| {
                        port.device_id == *server
                            && port.fixed_ips.iter().any(|fixed| fixed.ip_address == *address)
                            && !port.security_groups.contains(&group.id.to_string())
                    })
                });
                if forbidden || missing {
                    vec!["ports".to_owned()]
                } else {
                    Vec::new()
                }
            }
            _ => vec!["kind".to_owned()],
        }
    }

    fn destroys(&self, change: &Change) -> bool {
        let Change::Balancer(_, change) = change else {
            return false;
        };
        change.kind == Kind::Balancer && matches!(change.action, objects::Action::Delete(_))
    }
}

fn set_status(tree: &mut Objects<Kind>, status: &str) {
    let mut roots = tree.all.iter_mut().filter(|object| object.kind == Kind::Balancer);
    let root = roots.next().unwrap();
    root.attributes.insert("provisioning_status", status.into());
}

fn model() -> Model {
    let path = tempfile::tempdir().unwrap();
    let file = path.path().join("cloud.conf");
    let text = "[Global]\nauth-url = http://127.0.0.1:1\nusername = u\npassword = p\ntenant-id = t\n\
                domain-id = d\n[LoadBalancer]\nmanage-security-groups = true\ncreate-monitor = true\n";
    std::fs::write(&file, text).unwrap();
    let loaded = crate::config::load(
        Some(&file),
        &ccm_core::Environment::default(),
        &mut ccm_core::config::ConfigFiles::default(),
    )
    .unwrap();
    Model {
        settings: Arc::new(loaded.value.settings.load_balancing),
    }
}

#[test]
fn openstack_keeps_the_laws() {
    laws(&model(), &cases::some_case(), 60);
}
