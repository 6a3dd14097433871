//! The laws of the plan engine, for clouds in any state.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::plan::objects::{self, Object};
use ccm_core::{
    load_balancer::{ClusterTag, ClusterView, Ownership, OwnershipTag},
    plan::{GatheredInputs, Member as Joiner},
    testkit::laws::{Lawful, laws},
};

use super::{
    desired::{ActiveService, Desired, DesiredListener, DesiredMember, Inputs, ServiceInputs},
    directory::{Directory, Entry},
    features::{Capabilities, Version},
    fold::Reply,
    groups::{Group, RULES},
    member::Member,
    names,
    observe::{ListenerTree, LoadBalancerSnapshot, LoadBalancerTree, Observed, PoolTree, tags_of},
    part::{Key, Model},
    responses::{FloatingIp, Listener, LoadBalancer, Monitor, Pool, Provisioning, Rule},
    steps::{Action, Change},
    tags::Unrecorded,
    writes::CreatedLoadBalancer,
};
use crate::instances::records::Port;

/// What is in the cloud.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    trees: Vec<LoadBalancerTree>,
    floating: Vec<FloatingIp>,
    groups: Vec<Object<Group>>,
    ports: BTreeMap<String, Port>,
}

fn ownership_tag() -> OwnershipTag {
    OwnershipTag::Known(ClusterTag::of("me"))
}

fn created(tree: &LoadBalancerTree) -> bool {
    tree.balancer.name.starts_with(names::SERVICE_PREFIX)
}

fn is_foreign(tree: &LoadBalancerTree) -> bool {
    let tags = tree.balancer.tags.iter().map(String::as_str);
    !created(tree) || matches!(ownership_tag().ownership(tags), Ownership::Foreign(_))
}

fn of_key(tree: &LoadBalancerTree, key: &Key) -> bool {
    match key {
        Key::Balancer(id) => tree.balancer.id == *id,
        Key::New(name) => tree.balancer.name == *name,
        _ => false,
    }
}

fn tree_text(tree: &LoadBalancerTree) -> String {
    let listener_trees: BTreeSet<_> = tree
        .listener_trees
        .iter()
        .map(|listener_tree| {
            let listener = &listener_tree.listener;
            let pool_tree = listener_tree.pool_tree.as_ref().map(|pool_tree| {
                let members: BTreeSet<_> = pool_tree.members.iter().map(Member::identity).collect();
                let monitor = pool_tree
                    .monitor
                    .as_ref()
                    .map(|monitor| (&monitor.name, &monitor.kind, monitor.delay));
                format!(
                    "{} {} {} {:?} {members:?} {monitor:?}",
                    pool_tree.pool.name,
                    pool_tree.pool.protocol,
                    pool_tree.pool.lb_algorithm,
                    pool_tree.pool.tags
                )
            });
            format!(
                "{} {} {} {:?} {:?} {:?} {:?} {pool_tree:?}",
                listener_tree.listener_key(),
                listener.name,
                listener.protocol,
                listener.tags,
                listener.connection_limit,
                listener.insert_headers,
                listener.default_tls_container_ref,
            )
        })
        .collect();
    let tags: BTreeSet<_> = tree.balancer.tags.iter().collect();
    format!("{} {tags:?} {listener_trees:?}", tree.balancer.name)
}

/// Whether the listener there is what the Service with this tag wants.
fn right(listener_tree: &ListenerTree, port: &DesiredListener, active: &ActiveService) -> bool {
    let listener = &listener_tree.listener;
    let (tag, tags) = (&active.owner.tag, &active.tags);
    let members = |pool_tree: &PoolTree| {
        let have: BTreeSet<_> = pool_tree.members.iter().map(Member::identity).collect();
        let want = port.members.as_ref().map(|members| {
            let each = members.iter();
            each.map(DesiredMember::identity).collect::<BTreeSet<_>>()
        });
        want.is_none_or(|want| want == have)
    };
    let monitor = |pool_tree: &PoolTree| {
        let have = pool_tree.monitor.as_ref().map(|monitor| monitor.kind.as_str());
        have == port.monitor.map(|monitor| monitor.check.kind())
    };
    let tagged = |pool_tree: &PoolTree| tags.pool.iter().all(|tag| pool_tree.pool.tags.contains(tag));
    let pool = |pool_tree: &PoolTree| {
        pool_tree.pool.protocol == port.pool_protocol
            && members(pool_tree)
            && monitor(pool_tree)
            && tagged(pool_tree)
    };
    listener_tree.pool_tree.as_ref().is_some_and(pool)
        && listener.protocol == port.protocol
        && listener.tags.contains(tag)
        && tags.listener.iter().all(|tag| listener.tags.contains(tag))
        && listener.connection_limit == Some(port.connection_limit)
        && listener.default_tls_container_ref == port.tls
        && listener.insert_headers.contains_key("X-Forwarded-For") == port.forwarded_for
}

impl Lawful for Model {
    type Truth = Truth;

    fn view(&self, truth: &Truth, key: &Key, members: &[Joiner<Self>], cluster: &ClusterView) -> Observed {
        match key {
            Key::Balancer(_) | Key::New(_) => {
                let trees =
                    truth
                        .trees
                        .iter()
                        .filter(|tree| of_key(tree, key))
                        .map(|tree| LoadBalancerTree {
                            floating: truth
                                .floating
                                .iter()
                                .find(|floating| floating.port_id == tree.balancer.vip_port_id)
                                .cloned(),
                            ..tree.clone()
                        });
                let trees: Vec<_> = trees.collect();
                Observed::Balancers(LoadBalancerSnapshot {
                    floating: truth.floating.clone(),
                    external: true,
                    cluster: cluster.name.to_string(),
                    ownership_tag: cluster.ownership_tag.clone(),
                    annotated: Unrecorded::default()
                        .annotated(members.iter().map(|member| &*member.service), || {
                            tags_of(&trees, |_| true)
                        }),
                    trees,
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
                truth.floating = snapshot.floating;
                truth.trees.retain(|tree| !of_key(tree, key));
                for mut tree in snapshot.trees {
                    if let Some(floating) = tree.floating.take() {
                        truth.floating.retain(|other| other.id != floating.id);
                        truth.floating.push(floating);
                    }
                    truth.trees.push(tree);
                }
                for floating in &mut truth.floating {
                    let there = |tree: &LoadBalancerTree| tree.balancer.vip_port_id == floating.port_id;
                    if floating.port_id.starts_with("vip-") && !truth.trees.iter().any(there) {
                        floating.port_id.clear();
                    }
                }
                truth.trees.sort_by(|a, b| a.balancer.id.cmp(&b.balancer.id));
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
            let entry = Entry {
                name: tree.balancer.name.clone(),
                tags: tree.balancer.tags.clone(),
            };
            (tree.balancer.id.clone(), entry)
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

    fn reply(&self, _: &Key, change: &Change, observed: &Observed, serial: u64) -> Reply {
        let port = match observed {
            Observed::Balancers(snapshot) => snapshot
                .trees
                .first()
                .map(|tree| tree.balancer.vip_port_id.clone()),
            _ => None,
        };
        match &change.action {
            Action::CreateBalancer(body) => Reply::Balancer(Box::new(CreatedLoadBalancer {
                members: Vec::new(),
                balancer: LoadBalancer {
                    id: format!("lb-{serial}"),
                    name: body.name.clone(),
                    tags: body.tags.clone(),
                    vip_address: format!("10.9.{}.{}", serial / 250, serial % 250),
                    vip_port_id: format!("vip-new-{serial}"),
                    vip_subnet_id: body.vip_subnet_id.clone(),
                    provisioning_status: Provisioning::Active,
                    ..LoadBalancer::default()
                },
            })),
            Action::CreateListener(..) => Reply::Listener(Box::new(Listener {
                id: format!("l-{serial}"),
                ..Listener::default()
            })),
            Action::CreatePool(..) => Reply::Pool(Box::new(Pool {
                id: format!("p-{serial}"),
                ..Pool::default()
            })),
            Action::CreateMonitor(..) => Reply::Monitor(Box::new(Monitor {
                id: format!("m-{serial}"),
                ..Monitor::default()
            })),
            Action::CreateFloating(desired) => Reply::Floating(Box::new(FloatingIp {
                id: format!("f-{serial}"),
                floating_ip_address: format!("203.0.{}.{}", serial / 250, serial % 250),
                port_id: port.unwrap_or_default(),
                description: desired.description.clone(),
                ..FloatingIp::default()
            })),
            Action::Group(group) => {
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
            tree.balancer.provisioning_status = Provisioning::Error;
        }
    }

    fn repair(&self, truth: &mut Truth) {
        let is_shared = |tree: &LoadBalancerTree| {
            let tags = tree.balancer.tags.iter();
            tags.filter(|tag| names::is_service_tag(tag)).count() > 1
        };
        let trees = truth.trees.iter_mut();
        for tree in trees.filter(|tree| !created(tree) || is_shared(tree)) {
            tree.balancer.provisioning_status = Provisioning::Active;
        }
    }

    fn shape(&self, truth: &Truth) -> Vec<String> {
        let mut shape: Vec<_> = truth.trees.iter().map(tree_text).collect();
        shape.extend(truth.floating.iter().map(|floating| {
            let at = truth
                .trees
                .iter()
                .find(|tree| tree.balancer.vip_port_id == floating.port_id)
                .map(|tree| &tree.balancer.name);
            format!("floating {} at {at:?}", floating.description)
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
            let theirs = |tags: &[String]| !tags.iter().any(|tag| names::is_service_tag(tag));
            let listener_trees = tree.listener_trees.iter();
            let listener_trees =
                listener_trees.filter(|listener_tree| created(tree) || theirs(&listener_tree.listener.tags));
            let tags = tree.balancer.tags.iter();
            let tags: Vec<_> = tags
                .filter(|tag| created(tree) || (!names::is_service_tag(tag) && !tag.starts_with("t-")))
                .collect();
            let listener_trees: Vec<_> = listener_trees.collect();
            let floating = truth
                .floating
                .iter()
                .filter(|floating| floating.port_id == tree.balancer.vip_port_id);
            let floating: Vec<_> = floating.map(|floating| &floating.id).collect();
            foreign.push(format!(
                "{} {tags:?} {listener_trees:?} {floating:?}",
                tree.balancer.name
            ));
        }
        let theirs = |floating: &&FloatingIp| !floating.description.contains(names::FLOATING_IP_MARK);
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
                let [tree] = snapshot.trees.as_slice() else {
                    let (Key::Balancer(name) | Key::New(name)) = &desired.key else {
                        return Vec::new();
                    };
                    return desired
                        .active
                        .iter()
                        .map(|_| format!("load balancer {name}"))
                        .collect();
                };
                let name = &tree.balancer.name;
                let mut found = Vec::new();
                let has = |tag: &String| tree.balancer.tags.contains(tag);
                if created(tree) && is_foreign(tree) {
                    return desired
                        .active
                        .iter()
                        .map(|_| format!("load balancer {name}"))
                        .collect();
                }
                if tree.balancer.provisioning_status == Provisioning::Error {
                    return desired
                        .active
                        .iter()
                        .map(|_| format!("state of load balancer {name}"))
                        .collect();
                }
                if desired.leaving.iter().any(|leaving| has(&leaving.owner.tag)) {
                    found.push(format!("tags of load balancer {name}"));
                }
                for active in &desired.active {
                    let owner = active.owner.owns(name);
                    let tagged = active.tags.load_balancer.iter().all(has);
                    if !tagged || !has(&active.owner.tag) || (!owner && active.internal) {
                        found.push(format!("load balancer {name}"));
                        continue;
                    }
                    let wants = !active.internal && tree.floating.is_none();
                    let wrong = owner && active.internal && tree.floating.is_some();
                    if wants || wrong {
                        found.push(format!("address of load balancer {name}"));
                    }
                    for port in &active.ports {
                        let is_right = |listener_tree: &ListenerTree| right(listener_tree, port, active);
                        let right = tree.listener_tree(port.listener_key).is_some_and(is_right);
                        if !right {
                            found.push(format!("listener {} of load balancer {name}", port.listener_key));
                        }
                    }
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
        matches!(change.action, Action::DeleteBalancer { recreate: false, .. })
    }
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
