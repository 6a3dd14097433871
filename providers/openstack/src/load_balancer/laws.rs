//! The laws of the plan engine.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::plan::objects::{self, Object};
use ccm_core::{
    load_balancer::{ClusterView, Ownership, Protocol, ServiceId, ServiceView, SessionAffinity},
    plan::{GatheredInputs, Member as PartMember},
    testkit::laws::{
        self, Clusters, Edit, Ids, Lawful, SERVICES, Served, Setting, laws, other_cluster_tag, ownership_tag,
        pick, remove, service_id,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    annotations,
    desired::{Inputs, ServiceInputs},
    directory::{Directory, Entry},
    features::{Capabilities, Version},
    fold::Reply,
    groups::{Group, RULES},
    member::Member,
    names,
    observe::{ListenerTree, LoadBalancerSnapshot, LoadBalancerTree, Observed, tags_of},
    part::{Key, Model},
    responses::{FloatingIp, Provisioning},
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

/// The cluster's name at first, and the one that it may get.
const CLUSTERS: [&str; 2] = ["c", "new_c"];
/// The load balancer that a person created.
const USERS: &str = "users";
/// The person's tags have this prefix if a Service may request the same ones.
const REQUESTED: &str = "t-";

fn record<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The tag of a Service, by number, under the cluster's first name.
fn tag(number: usize) -> String {
    names::load_balancer(CLUSTERS[0], &service_id(number % SERVICES))
}

fn is_created(tree: &LoadBalancerTree) -> bool {
    tree.balancer.name.starts_with(names::SERVICE_PREFIX)
}

fn is_foreign(tree: &LoadBalancerTree) -> bool {
    let tags = tree.balancer.tags.iter().map(String::as_str);
    !is_created(tree) || matches!(ownership_tag().ownership(tags), Ownership::Foreign(_))
}

fn is_of_service(listener_tree: &ListenerTree) -> bool {
    let mut tags = listener_tree.listener.tags.iter();
    tags.any(|tag| names::is_service_tag(tag))
}

fn is_of_part(tree: &LoadBalancerTree, key: &Key) -> bool {
    match key {
        Key::Balancer(id) => tree.balancer.id == *id,
        Key::New(name) => tree.balancer.name == *name,
        _ => false,
    }
}

fn at<'a>(truth: &'a Truth, tree: &LoadBalancerTree) -> Option<&'a FloatingIp> {
    let mut floating = truth.floating.iter();
    floating.find(|floating| floating.port_id == tree.balancer.vip_port_id)
}

/// What a Service decides about a listener.
fn listener_text(listener_tree: &ListenerTree) -> String {
    let listener = &listener_tree.listener;
    let pool = listener_tree.pool_tree.as_ref().map(|pool_tree| {
        let members: BTreeSet<_> = pool_tree.members.iter().map(Member::identity).collect();
        let pool = &pool_tree.pool;
        let monitor = pool_tree.monitor.as_ref();
        let monitor = monitor.map(|monitor| (&monitor.kind, monitor.delay, monitor.max_retries));
        let text = (&pool.protocol, &pool.lb_algorithm, &pool.session_persistence);
        format!("{text:?} {members:?} {monitor:?}")
    });
    let (limit, headers) = (listener.connection_limit, &listener.insert_headers);
    let (key, tls) = (listener_tree.listener_key(), &listener.default_tls_container_ref);
    format!(
        "listener {key} {} {limit:?} {headers:?} {tls} {:?}: {pool:?}",
        listener.protocol, listener.allowed_cidrs
    )
}

fn edit_tree(name: &'static str, edit: fn(&mut LoadBalancerTree, usize)) -> Edit<Truth> {
    Edit::new(name, move |truth: &mut Truth, number| {
        if let Some(tree) = pick(&mut truth.trees, number, is_created) {
            edit(tree, number);
        }
    })
}

fn edit_tags(name: &'static str, edit: fn(&mut Vec<String>, usize)) -> Edit<Truth> {
    Edit::new(name, move |truth: &mut Truth, number| {
        if let Some(tree) = pick(&mut truth.trees, number, |_| true) {
            edit(&mut tree.balancer.tags, number);
        }
    })
}

fn edit_listener(name: &'static str, edit: fn(&mut ListenerTree, usize)) -> Edit<Truth> {
    Edit::new(name, move |truth: &mut Truth, number| {
        let all = truth.trees.iter_mut().flat_map(|tree| &mut tree.listener_trees);
        let mut all: Vec<_> = all.filter(|listener_tree| is_of_service(listener_tree)).collect();
        if let Some(listener_tree) = pick(&mut all, number, |_| true) {
            edit(listener_tree, number);
        }
    })
}

fn edit_group(name: &'static str, edit: fn(&mut Truth, &str)) -> Edit<Truth> {
    Edit::new(name, move |truth: &mut Truth, number| {
        let name = names::security_group(&service_id(number % SERVICES));
        edit(truth, &name);
    })
}

fn leave_group(truth: &mut Truth, name: &str) {
    for port in truth.ports.values_mut() {
        port.security_groups.retain(|group| !group.ends_with(name));
    }
}

fn persons_listener(port: u16) -> ListenerTree {
    ListenerTree {
        listener: record(json!({
            "id": format!("listener-{port}"), "name": "mine", "protocol": "TCP", "protocol_port": port,
        })),
        pool_tree: None,
    }
}

impl Lawful for Model {
    type Truth = Truth;

    fn ground(&self) -> Truth {
        let ports = (0..2).map(|node| {
            let address = json!([{"ip_address": format!("10.0.0.1{node}"), "subnet_id": "sub"}]);
            let port = json!({
                "id": format!("port{node}"), "device_id": format!("server{node}"), "fixed_ips": address,
                "security_groups": ["default"], "port_security_enabled": true,
            });
            (format!("port{node}"), record(port))
        });
        let floating = [("vip-users", 1), ("", 2)].map(|(port, number)| {
            let address = format!("192.0.2.{number}");
            record(json!({
                "id": format!("floating-{number}"), "floating_ip_address": address, "port_id": port,
                "description": "somebody's",
            }))
        });
        Truth {
            trees: vec![LoadBalancerTree {
                balancer: record(json!({
                    "id": USERS, "name": "mine", "tags": ["kept"], "vip_address": "10.1.0.99",
                    "vip_port_id": "vip-users", "provisioning_status": "ACTIVE",
                })),
                listener_trees: vec![persons_listener(9000)],
                ..LoadBalancerTree::default()
            }],
            floating: floating.to_vec(),
            groups: Vec::new(),
            ports: ports.collect(),
        }
    }

    fn clusters(&self) -> Clusters {
        use annotations as a;
        let set = |key: &str, value: &str| Setting::annotation(key, value);
        let on = |key| set(key, "true");
        let hidden = |key, value: &str| set(key, value).invisible();
        let balancer = |number| hidden(a::LOAD_BALANCER_ID, &format!("lb-{}", tag(number)));
        let is_sticky: fn(&mut ServiceView) = |service| {
            service.session_affinity = SessionAffinity::ClientIp {
                timeout_seconds: None,
            }
        };
        let ranges: fn(&mut ServiceView) = |service| service.source_ranges = Some(vec!["10.0.0.0/8".into()]);
        Clusters {
            names: CLUSTERS.to_vec(),
            ports: vec![
                (Protocol::Tcp, 80),
                (Protocol::Tcp, 443),
                (Protocol::Udp, 443),
                (Protocol::Sctp, 80),
            ],
            settings: vec![
                vec![
                    set(a::LOAD_BALANCER_ID, USERS),
                    balancer(0),
                    balancer(1),
                    balancer(2),
                ],
                vec![
                    on(a::X_FORWARDED_FOR),
                    set(a::TLS_CONTAINER_REF, "containers/one"),
                    set(a::TLS_CONTAINER_REF, "containers/two"),
                    on(a::X_FORWARDED_FOR).and(a::TLS_CONTAINER_REF, "containers/one"),
                    on(a::PROXY_PROTOCOL),
                    set(a::PROXY_PROTOCOL, "v2"),
                    set(a::PROXY_PROTOCOL, "v2").and(a::TLS_CONTAINER_REF, "containers/one"),
                ],
                vec![on(a::INTERNAL)],
                vec![hidden(a::KEEP_FLOATING_IP, "true")],
                vec![set(a::LOAD_BALANCER_TAGS, "t-a,t-b")],
                vec![set(a::LISTENER_TAGS, "t-a,t-b")],
                vec![set(a::POOL_TAGS, "t-b,t-c")],
                vec![hidden(a::APPLIED_LOAD_BALANCER_TAGS, "t-a,t-c")],
                vec![hidden(a::APPLIED_LISTENER_TAGS, "t-c")],
                vec![
                    set(a::HEALTH_MONITOR_MAX_RETRIES, "99"),
                    set(a::HEALTH_MONITOR_DELAY, "9"),
                ],
                vec![Setting::field(is_sticky)],
                vec![Setting::field(ranges)],
            ],
            provider_id: |index| format!("openstack:///server{index}"),
        }
    }

    fn edits(&self) -> Vec<Edit<Truth>> {
        vec![
            edit_tree("fail load balancer", |tree, _| {
                tree.balancer.provisioning_status = Provisioning::Error
            }),
            edit_tree("give to another cluster", |tree, _| {
                let tags = &mut tree.balancer.tags;
                tags.retain(|tag| !tag.starts_with("kube_cluster"));
                tags.push(other_cluster_tag().to_string());
            }),
            edit_tags("remove ownership tag", |tags, _| {
                tags.retain(|tag| !tag.starts_with("kube_cluster"))
            }),
            edit_tags("remove Service tags", |tags, _| {
                tags.retain(|tag| !names::is_service_tag(tag))
            }),
            edit_tags("tag for another Service", |tags, number| tags.push(tag(number))),
            edit_tags("tag load balancer", |tags, _| tags.push("t-c".to_owned())),
            edit_listener("delete pool", |tree, _| tree.pool_tree = None),
            edit_listener("give to another Service", |tree, number| {
                tree.listener.tags = vec![tag(number)]
            }),
            edit_listener("untag listener", |tree, _| tree.listener.tags.clear()),
            edit_listener("limit connections", |tree, _| {
                tree.listener.connection_limit = Some(5)
            }),
            edit_listener("change certificate", |tree, _| {
                tree.listener.default_tls_container_ref = "containers/two".to_owned();
            }),
            edit_listener("recreate with HTTP", |tree, _| {
                if tree.listener.protocol == "TCP" {
                    tree.listener.protocol = "HTTP".to_owned();
                }
            }),
            edit_listener("recreate pool", |tree, _| {
                if let Some(pool_tree) = &mut tree.pool_tree {
                    pool_tree.pool.protocol = "PROXY".to_owned();
                    pool_tree.monitor = None;
                }
            }),
            edit_listener("delete members", |tree, number| {
                if let Some(pool_tree) = &mut tree.pool_tree {
                    let members = pool_tree.members.iter().take(number % 2);
                    pool_tree.members = members.cloned().collect();
                }
            }),
            Edit::new("delete load balancer", |truth: &mut Truth, number| {
                remove(&mut truth.trees, number, is_created);
            }),
            Edit::new("delete listener", |truth: &mut Truth, number| {
                if let Some(tree) = pick(&mut truth.trees, number, is_created) {
                    remove(&mut tree.listener_trees, number, |_| true);
                }
            }),
            Edit::new("create listener", |truth: &mut Truth, number| {
                let key = persons_listener(80).listener_key();
                if let Some(tree) = pick(&mut truth.trees, number, |tree| tree.listener_tree(key).is_none()) {
                    tree.listener_trees.push(persons_listener(80));
                }
            }),
            Edit::new("detach floating IP", |truth: &mut Truth, number| {
                pick(&mut truth.floating, number, |_| true)
                    .unwrap()
                    .port_id
                    .clear();
            }),
            Edit::new("delete floating IP", |truth: &mut Truth, number| {
                remove(&mut truth.floating, number, |floating| {
                    floating.description != "somebody's"
                });
            }),
            edit_group("delete security group", |truth, name| {
                leave_group(truth, name);
                truth.groups.retain(|group| group.key != name);
            }),
            edit_group("delete rules", |truth, name| {
                for group in truth.groups.iter_mut().filter(|group| group.key == name) {
                    group.sets.clear();
                }
            }),
            edit_group("remove group from ports", leave_group),
        ]
    }

    fn view(
        &self,
        truth: &Truth,
        key: &Key,
        members: &[PartMember<Self>],
        cluster: &ClusterView,
    ) -> Observed {
        match key {
            Key::Balancer(_) | Key::New(_) => {
                let trees = truth.trees.iter().filter(|tree| is_of_part(tree, key));
                let trees = trees.map(|tree| LoadBalancerTree {
                    floating: at(truth, tree).cloned(),
                    ..tree.clone()
                });
                let trees: Vec<_> = trees.collect();
                let services = members.iter().map(|member| &*member.service);
                Observed::Balancers(LoadBalancerSnapshot {
                    floating: truth.floating.clone(),
                    external: true,
                    cluster: cluster.name.to_string(),
                    ownership_tag: cluster.ownership_tag.clone(),
                    annotated: Unrecorded::default().annotated(services, || tags_of(&trees, |_| true)),
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
                truth.trees.retain(|tree| !is_of_part(tree, key));
                for mut tree in snapshot.trees {
                    if let Some(floating) = tree.floating.take() {
                        truth.floating.retain(|other| other.id != floating.id);
                        truth.floating.push(floating);
                    }
                    truth.trees.push(tree);
                }
                for floating in &mut truth.floating {
                    if !truth
                        .trees
                        .iter()
                        .any(|tree| tree.balancer.vip_port_id == floating.port_id)
                    {
                        floating.port_id.clear();
                    }
                }
                truth.trees.sort_by(|a, b| a.balancer.id.cmp(&b.balancer.id));
                truth.floating.sort_by(|a, b| a.id.cmp(&b.id));
            }
            Observed::Groups(groups) => {
                truth.groups.retain(|group| *key != Key::Group(group.key.clone()));
                truth.groups.extend(groups.all);
            }
            Observed::Ports(ports) => truth.ports = ports,
        }
    }

    fn directory(&self, truth: &Truth) -> Directory {
        let balancers = truth.trees.iter().map(|tree| {
            let (name, tags) = (tree.balancer.name.clone(), tree.balancer.tags.clone());
            (tree.balancer.id.clone(), Entry { name, tags })
        });
        let groups = truth.groups.iter();
        let groups = groups.map(|group| (group.key.clone(), group.text("description").to_owned()));
        Directory::new(balancers, groups)
    }

    fn inputs(&self, _: &Key, members: &[PartMember<Self>], _: &ClusterView) -> GatheredInputs<Inputs> {
        let found = ServiceInputs {
            vip_subnet: "sub".into(),
            member_subnet: "sub".into(),
            member_range: "10.0.0.0/24".into(),
            floating_network: Some("public".into()),
            floating_subnets: Vec::new(),
        };
        let services = || members.iter().map(|member| &member.service.id);
        let group = |id| {
            (
                names::security_group(id),
                vec![format!("id-{}", names::security_group(id))],
            )
        };
        Inputs {
            can: Capabilities::of(Version(27), "amphora"),
            each: services().map(|id| (id.clone(), found.clone())).collect(),
            groups: services().map(group).collect(),
            ..Inputs::default()
        }
        .into()
    }

    fn reply(&self, _: &Key, change: &Change, observed: &Observed, ids: &Ids) -> Reply {
        let id = |kind| ids.id(kind, &change.to_string());
        let port = match observed {
            Observed::Balancers(snapshot) => snapshot.trees.first().map(|tree| &tree.balancer.vip_port_id),
            _ => None,
        };
        match &change.action {
            Action::CreateBalancer(body) => Reply::Balancer(Box::new(CreatedLoadBalancer {
                members: Vec::new(),
                balancer: record(json!({
                    "id": ids.id("lb", &body.name), "name": body.name, "tags": body.tags,
                    "vip_address": ids.address(), "vip_port_id": ids.id("vip", &body.name),
                    "vip_subnet_id": body.vip_subnet_id, "provisioning_status": "ACTIVE",
                })),
            })),
            Action::CreateListener(..) => Reply::Listener(record(json!({"id": id("listener")}))),
            Action::CreatePool(..) => Reply::Pool(record(json!({"id": id("pool")}))),
            Action::CreateMonitor(..) => Reply::Monitor(record(json!({"id": id("monitor")}))),
            Action::CreateFloating(desired) => Reply::Floating(record(json!({
                "id": id("floating"), "floating_ip_address": ids.address(), "port_id": port,
                "description": desired.description,
            }))),
            Action::Group(group) => {
                // Rules have ids that nothing else has.
                let mut reply = laws::objects::reply(group, ids, |group| {
                    let id = format!("id-{}", group.key);
                    let rules = ["IPv4", "IPv6"].map(|family| {
                        let id = ids.id("rule", &format!("{id} {family}"));
                        record(json!({"id": id, "direction": "egress", "ethertype": family}))
                    });
                    Object { id, ..group }.entries(RULES, rules)
                });
                if let objects::Action::Add(_, rules) = &group.action {
                    reply.entries = rules.to_vec();
                    for rule in &mut reply.entries {
                        rule.id = ids.id("rule", &rule.to_string());
                    }
                }
                Reply::Group(reply)
            }
            _ => Reply::Nothing,
        }
    }

    fn fail(&self, truth: &mut Truth, key: &Key) {
        for tree in truth.trees.iter_mut().filter(|tree| is_of_part(tree, key)) {
            tree.balancer.provisioning_status = Provisioning::Error;
        }
    }

    fn repair(&self, truth: &mut Truth) {
        for tree in &mut truth.trees {
            let (name, tags) = (&tree.balancer.name, &tree.balancer.tags);
            let users = tags.iter().filter(|tag| names::is_service_tag(tag)).count();
            // One that its own Service alone uses can be deleted.
            if users > 1 || !tags.contains(name) {
                tree.balancer.provisioning_status = Provisioning::Active;
            }
        }
    }

    fn shape(&self, truth: &Truth) -> Vec<String> {
        let mut shape = Vec::new();
        for tree in &truth.trees {
            let name = &tree.balancer.name;
            let floating = at(truth, tree).map(|floating| &floating.description);
            let tags: BTreeSet<_> = tree.balancer.tags.iter().collect();
            let listeners = tree.listener_trees.iter().map(|listener_tree| {
                let listener = &listener_tree.listener;
                let pool = listener_tree
                    .pool_tree
                    .as_ref()
                    .map(|tree| (&tree.pool.name, &tree.pool.tags));
                let (name, tags) = (&listener.name, &listener.tags);
                format!("{} {name} {tags:?} {pool:?}", listener_text(listener_tree))
            });
            let listeners: BTreeSet<_> = listeners.collect();
            shape.push(format!("{name} {tags:?} {floating:?} {listeners:?}"));
        }
        let unused = truth
            .floating
            .iter()
            .filter(|floating| floating.port_id.is_empty());
        shape.extend(unused.map(|floating| format!("floating {}", floating.description)));
        shape.extend(truth.groups.iter().map(|group| laws::objects::line(group, &[])));
        shape.extend(truth.ports.iter().map(|(id, port)| {
            let groups: BTreeSet<_> = port.security_groups.iter().collect();
            format!("port {id} {groups:?}")
        }));
        shape.sort();
        shape
    }

    fn foreign(&self, truth: &Truth) -> Vec<String> {
        let mut foreign = truth.clone();
        foreign.groups.clear();
        foreign.trees.retain(is_foreign);
        for tree in foreign.trees.iter_mut().filter(|tree| !is_created(tree)) {
            let is_theirs = |tag: &String| !names::is_service_tag(tag) && !tag.starts_with(REQUESTED);
            tree.balancer.tags.retain(is_theirs);
            tree.listener_trees
                .retain(|listener_tree| !is_of_service(listener_tree));
        }
        let floating = &mut foreign.floating;
        floating.retain(|floating| !floating.description.contains(names::FLOATING_IP_MARK));
        for port in foreign.ports.values_mut() {
            port.security_groups
                .retain(|group| !group.starts_with("id-lb-sg-"));
        }
        vec![format!("{foreign:?}")]
    }

    fn served(&self, truth: &Truth, service: &ServiceId, cluster: &str) -> Served {
        let (tag, group) = (
            names::load_balancer(cluster, service),
            names::security_group(service),
        );
        let mut served = Served::default();
        let requested = |tags: &[String]| {
            let requested = tags.iter().filter(|tag| tag.starts_with(REQUESTED));
            requested.cloned().collect::<Vec<_>>()
        };
        for tree in &truth.trees {
            let is_own = tree.balancer.name == tag;
            if (is_created(tree) && is_foreign(tree)) || !(is_own || tree.balancer.tags.contains(&tag)) {
                continue;
            }
            let has_floating = at(truth, tree).is_some();
            served
                .exact
                .insert(format!("load balancer {}", tree.balancer.name));
            if is_own {
                served.exact.insert(format!("floating IP: {has_floating}"));
            } else if has_floating {
                served.at_least.insert("floating IP".to_owned());
            }
            served.at_least.extend(requested(&tree.balancer.tags));
            let own = tree
                .listener_trees
                .iter()
                .filter(|own| own.listener.tags.contains(&tag));
            for own in own {
                served.exact.insert(listener_text(own));
                let pool = own
                    .pool_tree
                    .iter()
                    .flat_map(|pool_tree| requested(&pool_tree.pool.tags));
                let pool = pool.map(|tag| format!("pool {} {tag}", own.listener_key()));
                let listener = requested(&own.listener.tags).into_iter();
                let listener = listener.map(|tag| format!("listener {} {tag}", own.listener_key()));
                served.at_least.extend(listener.chain(pool));
            }
        }
        let groups = truth.groups.iter().filter(|have| have.key == group);
        served
            .exact
            .extend(groups.map(|group| laws::objects::line(group, &["description"])));
        let ports = truth
            .ports
            .values()
            .filter(|port| port.security_groups.contains(&format!("id-{group}")));
        served.at_least.extend(ports.map(|port| port.id.clone()));
        served
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
    let environment = ccm_core::Environment::default();
    let loaded = crate::config::load(
        Some(&file),
        &environment,
        &mut ccm_core::config::ConfigFiles::default(),
    );
    Model {
        settings: Arc::new(loaded.unwrap().value.settings.load_balancing),
    }
}

#[test]
fn openstack_keeps_the_laws() {
    laws(&model(), 60);
}
