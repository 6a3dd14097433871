//! The laws of the plan engine.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    Environment,
    config::{Locations, Problems},
    load_balancer::{ClusterView, Ownership, Protocol, ServiceId, SessionAffinity},
    plan::{
        GatheredInputs, Member,
        objects::{Action, Object, Objects},
    },
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, laws, objects, other_cluster_tag,
        ownership_tag, pick, remove, service_id,
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    annotations as a,
    desired::{Inputs, ServiceInputs},
    directory::{Directory, Entry},
    features::{Capabilities, Version},
    groups::{Group, RULES},
    kinds::{Kind, OWNER, SUBNETS, tags, texts},
    names,
    observe::{ListenerKey, LoadBalancerSnapshot, Observed, ownership_of_floating, tags_of},
    part::{Key, Model},
    responses::{self, FloatingIp, Listener},
    settings::{LoadBalancer, LoadBalancing},
    steps::{Change, Reply},
    tags::Unrecorded,
};
use crate::instances::records::Port;

/// What is in the cloud.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    /// Load balancers, each with what is below it.
    balancers: Vec<Objects<Kind>>,
    floating: Vec<Object<Kind>>,
    groups: Objects<Group>,
    ports: BTreeMap<String, Port>,
}

/// The cluster's name at first, and the one that it may get.
const CLUSTERS: [&str; 2] = ["c", "new_c"];
/// The id of the load balancer that a person created.
const USERS: &str = "users";
/// Tags that Services request have this prefix. People may use the same ones.
const REQUESTED: &str = "t-";
/// Attributes that differ from run to run, or are not the cloud's.
const HIDDEN: [&str; 6] = [
    "vip_port_id",
    "vip_address",
    "provisioning_status",
    "tags",
    OWNER,
    SUBNETS,
];

/// Attributes that keep the value that they were created with.
const KEPT: [&str; 6] = [
    "name",
    "description",
    "provider",
    "url_path",
    "http_method",
    "expected_codes",
];

fn record<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The tag of a Service, by number, under the cluster's first name.
fn tag(number: usize) -> String {
    names::load_balancer(CLUSTERS[0], &service_id(number % SERVICES))
}

fn root(objects: &Objects<Kind>) -> &Object<Kind> {
    objects.of(Kind::Balancer).next().unwrap()
}

fn edit_tags(object: &mut Object<Kind>, edit: impl Fn(&mut Vec<String>)) {
    let mut tags = tags(object);
    edit(&mut tags);
    tags.sort();
    object.attributes.insert("tags", tags.into());
}

fn is_created(objects: &Objects<Kind>) -> bool {
    names::is_service_tag(root(objects).text("name"))
}

fn is_foreign(objects: &Objects<Kind>) -> bool {
    let ownership = ownership_tag().ownership(texts(root(objects), "tags"));
    !is_created(objects) || matches!(ownership, Ownership::Foreign(_))
}

fn is_of_part(objects: &Objects<Kind>, key: &Key) -> bool {
    match key {
        Key::Balancer(id) => root(objects).id == *id,
        Key::New(name) => root(objects).text("name") == *name,
        _ => false,
    }
}

fn has_address(floating: &Object<Kind>, objects: &Objects<Kind>) -> bool {
    floating.text("port_id") == root(objects).text("vip_port_id")
}

/// With a load balancer, Octavia deletes its port, which detaches the floating IP.
fn detach(truth: &mut Truth) {
    let balancers = truth.balancers.iter();
    for floating in &mut truth.floating {
        if !balancers.clone().any(|objects| has_address(floating, objects)) {
            floating.attributes.insert("port_id", "".into());
        }
    }
}

fn persons_listener(port: u16) -> Object<Kind> {
    let id = format!("listener-{port}");
    let listener: Listener = record(json!({"id": id, "protocol": "TCP", "protocol_port": port,
        "connection_limit": -1, "allowed_cidrs": ["0.0.0.0/0"]}));
    Kind::Listener.below(ListenerKey::of(&listener), "mine", &id, &listener)
}

fn set_status(objects: &mut Objects<Kind>, status: &str) {
    let attributes = &mut objects.all[0].attributes;
    attributes.insert("provisioning_status", status.into());
}

fn created(truth: &mut Truth, number: usize) -> Option<&mut Objects<Kind>> {
    pick(&mut truth.balancers, number, is_created)
}

fn groups(truth: &mut Truth, _: usize) -> Option<&mut Objects<Group>> {
    Some(&mut truth.groups)
}

impl Lawful for Model {
    type Truth = Truth;

    fn ground(&self) -> Truth {
        let ports = (0..2).map(|node| {
            let address = json!([{"ip_address": format!("10.0.0.1{node}"), "subnet_id": "sub"}]);
            let id = format!("port{node}");
            let port = json!({"id": id, "device_id": format!("server{node}"), "fixed_ips": address,
                              "security_groups": ["default"], "port_security_enabled": true});
            (id, record(port))
        });
        let description = |number, tag| names::floating_ip_description(CLUSTERS[0], &service_id(number), tag);
        let floating = [
            ("vip-users", "192.0.2.1", String::new()),
            ("", "192.0.2.2", String::new()),
            ("", "192.0.2.3", description(0, Some(&other_cluster_tag()))),
            ("", "192.0.2.4", description(0, None)),
        ];
        let floating = floating.map(|(port, address, description)| {
            let floating = json!({"id": address, "floating_ip_address": address, "port_id": port,
                                  "description": description});
            Object::from(&record::<FloatingIp>(floating))
        });
        let balancer = json!({"id": USERS, "name": "mine", "tags": ["kept"], "vip_address": "10.1.0.99",
                              "vip_port_id": "vip-users", "provisioning_status": "ACTIVE"});
        let balancer = Object::from(&record::<responses::LoadBalancer>(balancer));
        Truth {
            balancers: vec![[balancer, persons_listener(9000)].into_iter().collect()],
            floating: floating.to_vec(),
            groups: Objects::default(),
            ports: ports.collect(),
        }
    }

    fn clusters(&self) -> Clusters {
        let set = |key: &str, value: &str| Setting::annotation(key, value);
        let hidden = |key: &str, value: &str| set(key, value).invisible();
        let mut balancers = vec![set(a::LOAD_BALANCER_ID, USERS)];
        let by_id = |number| hidden(a::LOAD_BALANCER_ID, &format!("Balancer-{}", tag(number)));
        balancers.extend((0..SERVICES).map(by_id));
        let is_sticky = Setting::field(|service| {
            let timeout_seconds = None;
            service.session_affinity = SessionAffinity::ClientIp { timeout_seconds };
        });
        let (tcp, tls) = (Protocol::Tcp, "containers/one");
        Clusters {
            names: CLUSTERS.to_vec(),
            ports: vec![(tcp, 80), (tcp, 443), (Protocol::Udp, 443), (Protocol::Sctp, 80)],
            settings: vec![
                balancers,
                vec![
                    set(a::X_FORWARDED_FOR, "true"),
                    set(a::TLS_CONTAINER_REF, tls),
                    set(a::TLS_CONTAINER_REF, "containers/two"),
                    set(a::X_FORWARDED_FOR, "true").and(a::TLS_CONTAINER_REF, tls),
                    set(a::PROXY_PROTOCOL, "true"),
                    set(a::PROXY_PROTOCOL, "v2"),
                    set(a::PROXY_PROTOCOL, "v2").and(a::TLS_CONTAINER_REF, tls),
                ],
                vec![set(a::INTERNAL, "true")],
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
                vec![is_sticky],
                vec![Setting::source_ranges()],
            ],
            provider_id: |index| format!("openstack:///server{index}"),
        }
    }

    fn edits(&self) -> Vec<Edit<Truth>> {
        let retag = |name: &str, edit: fn(&mut Vec<String>, usize)| {
            Edit::new(name, move |truth: &mut Truth, number| {
                if let Some(objects) = created(truth, number) {
                    edit_tags(&mut objects.all[0], |tags| edit(tags, number / 4));
                }
            })
        };
        let mut edits = objects::edits("load balancer", created, |object| object.kind != Kind::Balancer);
        let mut of_groups = objects::edits("security group", groups, |_| true);
        // Neutron keeps a group that ports have.
        edits.extend(of_groups.split_off(1));
        edits.extend([
            retag("remove ownership tag", |tags, _| {
                tags.retain(|tag| names::is_service_tag(tag));
            }),
            retag("give to another cluster", |tags, _| {
                tags.retain(|tag| names::is_service_tag(tag));
                tags.push(other_cluster_tag().to_string());
            }),
            retag("remove Service tags", |tags, _| {
                tags.retain(|tag| !names::is_service_tag(tag));
            }),
            retag("tag for another Service", |tags, number| tags.push(tag(number))),
            retag("tag load balancer", |tags, _| tags.push("t-c".to_owned())),
            Edit::new("fail load balancer", |truth: &mut Truth, number| {
                let balancer = created(truth, number).into_iter();
                balancer.for_each(|objects| set_status(objects, "ERROR"));
            }),
            Edit::new("delete load balancer", |truth: &mut Truth, number| {
                remove(&mut truth.balancers, number, is_created);
                detach(truth);
            }),
            Edit::new("give listener to another Service", |truth: &mut Truth, number| {
                let objects = created(truth, number).map(|objects| objects.all.as_mut_slice());
                let is_listener = |object: &Object<Kind>| object.kind == Kind::Listener;
                if let Some(listener) = objects.and_then(|objects| pick(objects, number / 4, is_listener)) {
                    edit_tags(listener, |tags| *tags = vec![tag(number / 8)]);
                }
            }),
            Edit::new("create listener", |truth: &mut Truth, number| {
                let lacks_it = |objects: &Objects<Kind>| objects.get(Kind::Listener, "tcp/80").is_none();
                if let Some(objects) = pick(&mut truth.balancers, number, lacks_it) {
                    let mut listener = persons_listener(80);
                    listener.parent = Some(root(objects).key.clone());
                    objects.all.push(listener);
                }
            }),
            Edit::new("detach floating IP", |truth: &mut Truth, number| {
                let floating = pick(&mut truth.floating, number, |_| true);
                floating.unwrap().attributes.insert("port_id", "".into());
            }),
            Edit::new("delete floating IP", |truth: &mut Truth, number| {
                let is_ours = |floating: &Object<Kind>| !floating.text("description").is_empty();
                remove(&mut truth.floating, number, is_ours);
            }),
            Edit::new("delete security groups", |truth: &mut Truth, _| {
                truth.groups = Objects::default();
                let ports = truth.ports.values_mut();
                ports.for_each(|port| port.security_groups.truncate(1));
            }),
            Edit::new("remove groups from port", |truth: &mut Truth, number| {
                let mut ports: Vec<_> = truth.ports.values_mut().collect();
                let port = pick(&mut ports, number, |_| true);
                port.unwrap().security_groups.truncate(1);
            }),
        ]);
        edits
    }

    fn view(&self, truth: &Truth, key: &Key, members: &[Member<Self>], cluster: &ClusterView) -> Observed {
        match key {
            Key::Balancer(_) | Key::New(_) => {
                let found = truth.balancers.iter().filter(|objects| is_of_part(objects, key));
                let found: Vec<_> = found.collect();
                // Of several nothing else is read.
                let all: Vec<_> = match found.as_slice() {
                    [objects] => objects.all.clone(),
                    several => several.iter().map(|objects| root(objects).clone()).collect(),
                };
                let objects: Objects<_> = all.into_iter().chain(truth.floating.clone()).collect();
                let services = members.iter().map(|member| &*member.service);
                Observed::Balancers(LoadBalancerSnapshot {
                    is_being_created: false,
                    external: true,
                    cluster: cluster.name.to_string(),
                    ownership_tag: cluster.ownership_tag.clone(),
                    annotated: Unrecorded::default().annotated(services, || tags_of(&objects, |_| true)),
                    objects,
                })
            }
            Key::Group(name) => {
                let groups = truth.groups.all.iter().filter(|group| group.key == *name);
                Observed::Groups(groups.cloned().collect())
            }
            Key::NodePorts => Observed::Ports(truth.ports.clone()),
        }
    }

    fn store(&self, truth: &mut Truth, key: &Key, after: Observed) {
        match after {
            Observed::Balancers(snapshot) => {
                let all = snapshot.objects.all.into_iter();
                let is_floating = |object: &Object<Kind>| object.kind == Kind::Floating;
                let (floating, mut all): (Vec<_>, Vec<_>) = all.partition(is_floating);
                truth.balancers.retain(|objects| !is_of_part(objects, key));
                // It may have another name now.
                if let Some(name) = all.first().map(|object| object.text("name").to_owned()) {
                    for object in &mut all {
                        match object.kind {
                            Kind::Balancer => object.key.clone_from(&name),
                            Kind::Listener => object.parent = Some(name.clone()),
                            _ => {}
                        }
                        edit_tags(object, |_| {});
                    }
                    truth.balancers.push(all.into_iter().collect());
                }
                truth.balancers.sort_by(|a, b| root(a).id.cmp(&root(b).id));
                truth.floating = floating;
                for floating in &mut truth.floating {
                    floating.key = floating.text("floating_ip_address").to_owned();
                    floating.parent = None;
                }
                detach(truth);
                truth.floating.sort_by(|a, b| a.id.cmp(&b.id));
            }
            Observed::Groups(groups) => {
                let is_of_part = |group: &Object<Group>| *key == Key::Group(group.key.clone());
                objects::replace(&mut truth.groups, groups, is_of_part);
            }
            Observed::Ports(ports) => truth.ports = ports,
        }
    }

    fn directory(&self, truth: &Truth) -> Directory {
        let balancers = truth.balancers.iter().map(root).map(|balancer| {
            let (name, tags) = (balancer.text("name").to_owned(), tags(balancer));
            (balancer.id.clone(), Entry { name, tags })
        });
        let groups = truth.groups.all.iter();
        let groups = groups.map(|group| (group.key.clone(), group.text("description").to_owned()));
        let is_free = |floating: &&Object<Kind>| floating.text("port_id").is_empty();
        let floating = truth.floating.iter().filter(is_free).map(|floating| {
            let text = |name| floating.text(name).to_owned();
            (text("floating_ip_address"), text("description"))
        });
        Directory::new(balancers, groups, floating)
    }

    fn inputs(
        &self,
        _: &Truth,
        _: &Key,
        members: &[Member<Self>],
        _: &ClusterView,
    ) -> GatheredInputs<Inputs> {
        let found = ServiceInputs {
            vip_subnet: "sub".into(),
            member_subnet: "sub".into(),
            member_range: "10.0.0.0/24".into(),
            floating_network: Some("public".into()),
            floating_subnets: Vec::new(),
        };
        let services = || members.iter().map(|member| &member.service.id);
        let groups = services().map(names::security_group);
        let groups = groups.map(|name| (name.clone(), vec![format!("id-{name}")]));
        Inputs {
            can: Capabilities::of(Version(27), "amphora"),
            each: services().map(|id| (id.clone(), found.clone())).collect(),
            groups: groups.collect(),
            ..Inputs::default()
        }
        .into()
    }

    fn reply(&self, _: &Key, change: &Change, _: &Observed, ids: &Ids) -> Reply {
        match change {
            Change::Balancer(_, change) => {
                Reply::Balancer(objects::reply(change, ids, |_, answer| match answer.kind {
                    Kind::Balancer => answer
                        .with("vip_address", ids.address())
                        .with("vip_port_id", ids.id("vip", &change.key))
                        .with("vip_subnet_id", "sub")
                        .with("provisioning_status", "ACTIVE"),
                    Kind::Floating => answer.with("floating_ip_address", ids.address()),
                    _ => answer,
                }))
            }
            Change::Group(change) => {
                let mut reply = objects::reply(change, ids, |_, mut group| {
                    let rule = |family| {
                        let id = ids.id("rule", &format!("{family} {}", group.key));
                        record(json!({"id": id, "direction": "egress", "ethertype": family}))
                    };
                    let rules = ["IPv4", "IPv6"].map(rule);
                    group.id = format!("id-{}", group.key);
                    group.entries(RULES, rules)
                });
                if let Action::Add(_, rules) = &change.action {
                    reply.entries = rules.to_vec();
                    let rules = reply.entries.iter_mut();
                    rules.for_each(|rule| rule.id = ids.id("rule", &rule.to_string()));
                }
                Reply::Group(reply)
            }
            _ => Reply::Nothing,
        }
    }

    fn fail(&self, truth: &mut Truth, key: &Key) {
        let balancers = truth.balancers.iter_mut();
        for objects in balancers.filter(|objects| is_of_part(objects, key)) {
            set_status(objects, "ERROR");
        }
    }

    fn repair(&self, truth: &mut Truth) {
        for objects in &mut truth.balancers {
            let tags = texts(root(objects), "tags");
            let users: Vec<_> = tags.filter(|tag| names::is_service_tag(tag)).collect();
            // One that its own Service alone uses can be deleted.
            if users != [root(objects).text("name")] {
                set_status(objects, "ACTIVE");
            }
        }
    }

    fn picture(&self, truth: &Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        for objects in &truth.balancers {
            let (balancer, is_foreign) = (root(objects), is_foreign(objects));
            let is_others = is_created(objects) && is_foreign;
            let cluster = Owner::Cluster.foreign_if(is_foreign);
            let users = texts(balancer, "tags").filter(|tag| names::is_service_tag(tag) && !is_others);
            let users: Vec<_> = users.map(str::to_owned).collect();
            // What is below it is found by the load balancer's tags.
            let owner_of = |tag: &str| match tag {
                tag if users.iter().any(|user| user == tag) => Owner::service(tag),
                tag if names::is_service_tag(tag) && !is_others => Owner::Cluster,
                _ => cluster.clone(),
            };
            let users = Owner::Services(users.clone()).foreign_if(is_others);
            for object in &objects.all {
                let listener = objects.get(Kind::Listener, &object.key);
                let mut tags = listener.into_iter().flat_map(|listener| texts(listener, "tags"));
                let owner = tags.find(|tag| names::is_service_tag(tag));
                let owner = owner.map_or_else(|| cluster.clone(), owner_of);
                picture.extend(objects::lines(object, &owner, [&HIDDEN, &KEPT], |_| true));
                let requested = if object == balancer { &users } else { &owner };
                picture.extend(texts(object, "tags").map(|tag| {
                    let owner = match tag.starts_with(REQUESTED) {
                        true => requested.clone(),
                        false => owner_of(tag),
                    };
                    Line::at_least(format!("{} has {tag}", object.title()), &owner)
                }));
            }
            let mut floating = truth.floating.iter();
            let has_floating = floating.any(|floating| has_address(floating, objects));
            let text = format!("{} has a floating IP: {has_floating}", balancer.title());
            picture.push(Line::exact(text, &users));
        }
        picture.extend(truth.floating.iter().map(|floating| {
            let (description, port) = (floating.text("description"), floating.text("port_id"));
            let ownership = ownership_of_floating(floating, &ownership_tag());
            let is_foreign = description.is_empty() || matches!(ownership, Ownership::Foreign(_));
            let is_used = description.is_empty() || !port.is_empty();
            let text = format!("floating IP {description} {is_used}");
            Line::exact(text, &Owner::Cluster.foreign_if(is_foreign))
        }));
        for id in (0..SERVICES).map(service_id) {
            let group = names::security_group(&id);
            let tags = CLUSTERS.map(|cluster| names::load_balancer(cluster, &id));
            let owner = Owner::Services(tags.to_vec());
            let groups = truth.groups.all.iter().filter(|found| found.key == group);
            picture.extend(groups.flat_map(|group| objects::lines(group, &owner, [&[], &KEPT], |_| true)));
            let ports = truth.ports.values();
            let ports = ports.filter(|port| port.security_groups.contains(&format!("id-{group}")));
            picture.extend(ports.map(|port| Line::at_least(format!("{} in {group}", port.id), &owner)));
        }
        for port in truth.ports.values() {
            let groups = port.security_groups.iter();
            let theirs = groups.filter(|group| !group.starts_with("id-lb-sg-"));
            picture
                .extend(theirs.map(|group| Line::exact(format!("{} in {group}", port.id), &Owner::Foreign)));
        }
        picture
    }

    fn owner(&self, service: &ServiceId, cluster: &str) -> String {
        names::load_balancer(cluster, service)
    }

    fn destroys(&self, change: &Change) -> bool {
        matches!(change, Change::Balancer(_, change) if objects::deletes(change, &[Kind::Balancer]))
    }
}

#[test]
fn openstack_keeps_the_laws() {
    let conf = LoadBalancer {
        manage_security_groups: true,
        create_monitor: true,
        ..LoadBalancer::default()
    };
    let mut problems = Problems::new("laws", Locations::default());
    let settings = LoadBalancing::of(&conf, &BTreeMap::new(), &Environment::default(), &mut problems);
    let settings = Arc::new(settings);
    laws(&Model { settings }, 60);
}
