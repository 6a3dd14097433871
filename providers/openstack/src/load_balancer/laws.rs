//! The laws of the plan engine.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    load_balancer::{ClusterView, Ownership, Protocol, ServiceId, ServiceView, SessionAffinity},
    plan::objects::Object,
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, concurrent, laws,
        objects::{self, ObjectEdits, ObjectTrees},
        other_cluster_tag, ownership_tag, pick, service_id,
    },
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    annotations as a,
    desired::{PartInputs, ServiceInputs},
    directory::{LoadBalancerDirectory, LoadBalancerEntry},
    features::{Capabilities, Version},
    fields,
    groups::Group,
    kinds::{ListenerKey, OWNER, ObjectKind, service_tags, tags, texts},
    names,
    observe::{LoadBalancerSnapshot, ObservedPart, floating, ownership_of_floating, tags_of},
    part::{Model, OpenStackPart, PartMember},
    settings::LoadBalancing,
    steps::{PartChange, PartReply},
    tags::Unrecorded,
};
use crate::instances::records::Port;

/// The state of the cloud.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    /// Load balancers and floating IPs.
    objects: ObjectTrees<ObjectKind>,
    groups: ObjectTrees<Group>,
    ports: BTreeMap<String, Port>,
    requested: RequestedTags,
}

/// The tags that Services requested. The calls of a process remember them, and annotations record them.
#[derive(Debug, Default)]
struct RequestedTags(Mutex<Unrecorded>);

impl Clone for RequestedTags {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }
}

/// The cluster's name at first, and the one that it may get.
const CLUSTERS: [&str; 2] = ["c", "new_c"];
/// The id of the load balancer that a person created.
const USERS: &str = "users";
/// Octavia's state of an object.
const STATUS: &str = fields::PROVISIONING_STATUS;
/// Attributes that differ from run to run, or have lines of their own.
const HIDDEN: [&str; 4] = [fields::VIP_PORT_ID, fields::VIP_ADDRESS, STATUS, fields::TAGS];
/// Attributes that keep the value that they were created with.
const KEPT: [&str; 2] = [fields::NAME, fields::DESCRIPTION];
/// The session affinity that a setting gives to Services.
const STICKY: SessionAffinity = SessionAffinity::ClientIp {
    timeout_seconds: None,
};
/// The tag that edits of other tags add.
const EDITED: &str = "edited";

/// Settings of Services: annotation and values, and whether they alone change what a Service has.
const SETTINGS: [(&str, &[&str], bool); 12] = [
    (a::LOAD_BALANCER_ID, &[USERS], true),
    (a::TLS_CONTAINER_REF, &["containers/one", "containers/two"], true),
    (a::PROXY_PROTOCOL, &["true", "v2"], true),
    (a::INTERNAL, &["true"], true),
    (a::KEEP_FLOATING_IP, &["true"], false),
    (a::LOAD_BALANCER_TAGS, &["t-a,t-b"], true),
    (a::LISTENER_TAGS, &["t-a,t-b"], true),
    (a::POOL_TAGS, &["t-b,t-c"], true),
    (a::APPLIED_LOAD_BALANCER_TAGS, &["t-a,t-c"], false),
    (a::APPLIED_LISTENER_TAGS, &["t-c"], false),
    (a::HEALTH_MONITOR_MAX_RETRIES, &["99"], true),
    (a::HEALTH_MONITOR_DELAY, &["9"], true),
];

/// The tag of a Service, by number, under the cluster's first name.
fn tag(number: usize) -> String {
    names::load_balancer(CLUSTERS[0], &service_id(number % SERVICES))
}

fn set(object: &mut Object<ObjectKind>, name: &'static str, value: impl Into<Value>) {
    object.attributes.insert(name, value.into());
}

fn is_created(object: &Object<ObjectKind>) -> bool {
    object.kind == ObjectKind::Balancer && names::is_service_tag(&object.key)
}

/// Floating IPs are in every part with a load balancer.
fn is_of(root: &Object<ObjectKind>, key: &OpenStackPart) -> bool {
    let keys = [
        OpenStackPart::Balancer(root.id.clone()),
        OpenStackPart::New(root.key.clone()),
    ];
    root.kind == ObjectKind::Floating || keys.contains(key)
}

fn persons_listener(port: u16, balancer: &str) -> Object<ObjectKind> {
    let (transport, id) = (Protocol::Tcp, format!("listener-{port}"));
    let record = json!({
        fields::PROTOCOL: "TCP",
        fields::PROTOCOL_PORT: port,
        fields::CONNECTION_LIMIT: -1,
        fields::ALLOWED_CIDRS: ["0.0.0.0/0"],
        fields::INSERT_HEADERS: {},
        fields::DEFAULT_TLS_CONTAINER_REF: "",
        fields::TIMEOUT_CLIENT_DATA: 50000,
        fields::TIMEOUT_MEMBER_CONNECT: 5000,
        fields::TIMEOUT_MEMBER_DATA: 50000,
        fields::TIMEOUT_TCP_INSPECT: 0,
    });
    ObjectKind::Listener.below(ListenerKey { transport, port }, balancer, &id, &record)
}

impl Lawful for Model {
    type Truth = Truth;

    fn ground(&self) -> Truth {
        let described = |tag| names::floating_ip_description(CLUSTERS[0], &service_id(0), tag);
        let (others, untagged) = (described(Some(&other_cluster_tag())), described(None));
        let floating = [("vip-users", ""), ("", ""), ("", &*others), ("", &*untagged)];
        let floating = (1..).zip(floating).map(|(number, (port, description))| {
            let address = format!("192.0.2.{number}");
            let record = json!({
                fields::FLOATING_IP_ADDRESS: address,
                fields::PORT_ID: port,
                fields::DESCRIPTION: description,
            });
            ObjectKind::Floating.object(&*address, &address, &record)
        });
        let balancer = json!({
            fields::NAME: "mine",
            fields::TAGS: ["kept"],
            fields::VIP_ADDRESS: "10.1.0.99",
            fields::VIP_PORT_ID: "vip-users",
            STATUS: "ACTIVE",
        });
        let balancer = ObjectKind::Balancer.object("mine", USERS, &balancer);
        let objects = [balancer, persons_listener(9000, "mine")];
        let ports = [0, 1].map(|node| {
            let (id, address) = (format!("port{node}"), format!("10.0.0.1{node}"));
            let port = json!({"id": id, "device_id": format!("server{node}"), "security_groups": ["default"],
                              "fixed_ips": [{"ip_address": address, "subnet_id": "sub"}],
                              "port_security_enabled": true});
            (id, serde_json::from_value(port).unwrap())
        });
        Truth {
            objects: ObjectTrees::new(objects.into_iter().chain(floating)),
            groups: ObjectTrees::new([]),
            ports: ports.into(),
            requested: RequestedTags::default(),
        }
    }

    fn clusters(&self) -> Clusters {
        let settings = SETTINGS.map(|(key, values, is_visible)| Setting::choices(key, values, is_visible));
        let built = [0, 1, 2].map(|number| format!("Balancer-{}", tag(number)));
        let built = Setting::choices(a::LOAD_BALANCER_ID, &built, false);
        let is_sticky = Setting::field(|service| service.session_affinity = STICKY);
        let forwards = Setting::annotation(a::X_FORWARDED_FOR, "true").shows("X-Forwarded-For");
        let others = [is_sticky, forwards, Setting::source_ranges()].map(|setting| vec![setting]);
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        Clusters {
            names: CLUSTERS.to_vec(),
            ports: vec![(tcp, 80), (tcp, 443), (udp, 443), (Protocol::Sctp, 80)],
            settings: [&settings[..], &others, &[built]].concat(),
            provider_id: |index| format!("openstack:///server{index}"),
        }
    }

    fn edits(&self) -> Vec<Edit<Truth>> {
        let of = |is_meant| ObjectEdits::new(|truth: &mut Truth| &mut truth.objects, is_meant);
        let below = of(|object| object.text(fields::NAME).contains("_kube_service_"));
        let balancers = of(is_created);
        let listeners = of(|object| object.kind == ObjectKind::Listener);
        let floating = of(|object| object.kind == ObjectKind::Floating);
        let groups = ObjectEdits::new(|truth: &mut Truth| &mut truth.groups, |_| true);
        let retag = |name: &str, edit: fn(&mut Vec<String>, usize)| {
            balancers.edit(name, move |balancer, number| {
                let mut tags = tags(balancer);
                edit(&mut tags, number);
                tags.push(EDITED.to_owned());
                set(balancer, fields::TAGS, tags);
            })
        };
        let mut edits = below.edits("object below load balancer");
        // Neutron keeps a group that ports have.
        edits.extend(groups.changes("security group"));
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
            balancers.edit("fail load balancer", |balancer, _| set(balancer, STATUS, "ERROR")),
            Edit::new("delete load balancer", |truth: &mut Truth, number| {
                let deleted = truth.objects.delete(number, is_created);
                // Octavia deletes its port, which detaches the floating IP.
                let is_at =
                    |port: &str| deleted.iter().any(|deleted| deleted.text(fields::VIP_PORT_ID) == port);
                let floating = truth.objects.of_mut(ObjectKind::Floating);
                let attached = floating.filter(|floating| is_at(floating.text(fields::PORT_ID)));
                attached.for_each(|floating| set(floating, fields::PORT_ID, ""));
            }),
            listeners.edit("give listener to another Service", |listener, number| {
                set(listener, fields::TAGS, [tag(number), EDITED.to_owned()]);
            }),
            Edit::new("create listener", |truth: &mut Truth, number| {
                let trees = truth.objects.0.iter_mut().filter(|tree| {
                    tree.all[0].kind == ObjectKind::Balancer
                        && tree.get(ObjectKind::Listener, "tcp/80").is_none()
                });
                if let Some(tree) = pick(trees, number) {
                    tree.all.push(persons_listener(80, &tree.all[0].key.clone()));
                }
            }),
            floating.edit("detach floating IP", |floating, _| set(floating, fields::PORT_ID, "")),
            floating.delete("delete floating IP"),
            Edit::new("delete security groups", |truth: &mut Truth, _| {
                truth.groups = ObjectTrees::new([]);
                let ports = truth.ports.values_mut();
                ports.for_each(|port| port.security_groups.truncate(1));
            }),
            Edit::new("remove groups from port", |truth: &mut Truth, number| {
                let port = pick(truth.ports.values_mut(), number);
                port.unwrap().security_groups.truncate(1);
            }),
        ]);
        edits
    }

    fn view(
        &self,
        truth: &Truth,
        key: &OpenStackPart,
        members: &[PartMember],
        cluster: &ClusterView,
    ) -> ObservedPart {
        match key {
            OpenStackPart::Balancer(_) | OpenStackPart::New(_) => {
                let mut objects = truth.objects.view(|root| is_of(root, key));
                // Of several load balancers nothing else is read.
                let is_alone = objects.of(ObjectKind::Balancer).count() < 2;
                objects.all.retain(|object| is_alone || is_of(object, key));
                let services = members.iter().map(|member| &*member.service);
                let mut requested = truth.requested.0.lock();
                let name = objects.of(ObjectKind::Balancer).next().map(|balancer| balancer.key.as_str());
                ObservedPart::Balancers(LoadBalancerSnapshot {
                    external: true,
                    cluster: cluster.name.to_string(),
                    ownership_tag: cluster.ownership_tag.clone(),
                    annotated: requested.annotated(key, name, services, || tags_of(&objects, |_| true)),
                    objects,
                    ..LoadBalancerSnapshot::default()
                })
            }
            OpenStackPart::Group(name) => ObservedPart::Groups(truth.groups.view(|group| group.key == *name)),
            OpenStackPart::NodePorts => ObservedPart::Ports(truth.ports.clone(), BTreeSet::new()),
        }
    }

    fn store(&self, truth: &mut Truth, key: &OpenStackPart, after: ObservedPart) {
        match after {
            ObservedPart::Balancers(LoadBalancerSnapshot { mut objects, .. }) => {
                let balancer = objects.of(ObjectKind::Balancer).next();
                let name = balancer.map(|balancer| balancer.text(fields::NAME).to_owned());
                for object in &mut objects.all {
                    object.attributes.remove(OWNER);
                    // Names may be other ones now.
                    match object.kind {
                        ObjectKind::Balancer => object.key = object.text(fields::NAME).to_owned(),
                        ObjectKind::Listener => object.parent.clone_from(&name),
                        ObjectKind::Floating => {
                            object.key = object.text(fields::FLOATING_IP_ADDRESS).to_owned();
                        }
                        ObjectKind::Pool | ObjectKind::Monitor => {}
                    }
                }
                truth.objects.store(objects, |root| is_of(root, key));
            }
            ObservedPart::Groups(groups) => {
                truth.groups.store(groups, |group| *key == OpenStackPart::Group(group.key.clone()));
            }
            ObservedPart::Ports(ports, _) => truth.ports = ports,
        }
    }

    fn directory(&self, truth: &Truth) -> LoadBalancerDirectory {
        let balancers = truth.objects.of(ObjectKind::Balancer).map(|balancer| {
            let (name, tags) = (balancer.key.clone(), tags(balancer));
            (balancer.id.clone(), LoadBalancerEntry { name, tags })
        });
        let groups = truth.groups.of(Group);
        let groups = groups.map(|group| (group.key.clone(), group.text(fields::DESCRIPTION).to_owned()));
        let floating = truth.objects.of(ObjectKind::Floating);
        let floating = floating.filter(|floating| floating.text(fields::PORT_ID).is_empty());
        let floating = floating.map(|found| (found.key.clone(), found.text(fields::DESCRIPTION).to_owned()));
        LoadBalancerDirectory::new(balancers, groups, floating)
    }

    fn inputs(&self, _: &Truth, key: &OpenStackPart, members: &[PartMember], _: &ClusterView) -> PartInputs {
        let found = ServiceInputs {
            vip_subnet: "sub".into(),
            member_subnet: "sub".into(),
            member_range: "10.0.0.0/24".into(),
            floating_network: Some("public".into()),
            ..ServiceInputs::default()
        };
        let services = members.iter().map(|member| &member.service.id);
        let each = services.clone().map(|id| (id.clone(), found.clone()));
        let groups = services.map(names::security_group);
        let groups = groups.map(|name| (name.clone(), vec![format!("id-{name}")]));
        let mut inputs = PartInputs {
            can: Capabilities::of(Version(27), "amphora"),
            each: each.collect(),
            groups: groups.collect(),
            // Otherwise a pool of a load balancer without our tag may stay as it is.
            changed_affinity: members.iter().map(|member| member.service.id.clone()).collect(),
            ..PartInputs::default()
        };
        inputs.read_specs(&self.settings, key, members);
        inputs
    }

    fn reply(&self, change: &PartChange, _: &ObservedPart, ids: &Ids) -> PartReply {
        match change {
            PartChange::Balancer(_, change) => {
                PartReply::Balancer(objects::reply(change, ids, |_, answer| match answer.kind {
                    ObjectKind::Balancer => answer
                        .with(fields::VIP_ADDRESS, ids.address())
                        .with(fields::VIP_PORT_ID, ids.id("vip", &change.key))
                        .with(fields::VIP_SUBNET_ID, "sub")
                        .with(STATUS, "ACTIVE"),
                    ObjectKind::Floating => answer.with(fields::FLOATING_IP_ADDRESS, ids.address()),
                    _ => answer,
                }))
            }
            PartChange::Group(change) => PartReply::Group(objects::reply(change, ids, |_, group| {
                let id = format!("id-{}", group.key);
                Object { id, ..group }
            })),
            _ => PartReply::Nothing,
        }
    }

    fn fail(&self, truth: &mut Truth, key: &OpenStackPart) {
        let balancers = truth.objects.of_mut(ObjectKind::Balancer);
        let of_part = balancers.filter(|balancer| is_of(balancer, key));
        of_part.for_each(|balancer| set(balancer, STATUS, "ERROR"));
    }

    fn repair(&self, truth: &mut Truth) {
        for balancer in truth.objects.of_mut(ObjectKind::Balancer) {
            // One that its own Service alone uses can be deleted.
            if !service_tags(balancer).eq([&*balancer.key]) {
                set(balancer, STATUS, "ACTIVE");
            }
        }
    }

    fn picture(&self, truth: &Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        let is_edited = |object: &Object<ObjectKind>| texts(object, fields::TAGS).any(|tag| tag == EDITED);
        let owner_of_group = |group: &str| self.owner_if(|id| group.ends_with(&names::security_group(id)));
        let floating_ips = truth.objects.view(|root| root.kind == ObjectKind::Floating);
        for (balancer, tree) in truth.objects.roots(ObjectKind::Balancer) {
            let ownership = ownership_tag().ownership(texts(balancer, fields::TAGS));
            let is_others = is_created(balancer) && !ownership.allows_changes();
            let all_users = service_tags(balancer).map(str::to_owned).collect();
            let all_users = Owner::Services(all_users).foreign_if(is_others);
            let cluster = Owner::Cluster.foreign_if(is_others || !is_created(balancer));
            for object in &tree.all {
                let listener = tree.get(ObjectKind::Listener, &object.key);
                let may_stay = is_edited(balancer) || listener.is_some_and(is_edited);
                let owner_of = |tag: &str| match names::is_service_tag(tag) && !is_others {
                    // Its children are found by the load balancer's tags. If others changed those, they stay.
                    true if may_stay && !service_tags(balancer).any(|user| user == tag) => Owner::Cluster,
                    true => Owner::service(tag),
                    false if tag.starts_with("t-") => all_users.clone(),
                    false => cluster.clone(),
                };
                let service = listener.and_then(|listener| service_tags(listener).next());
                let owner = owner_of(service.unwrap_or_default());
                picture.extend(objects::lines(object, &owner, [&HIDDEN, &KEPT], |_| false));
                let line = |tag| {
                    let of_pool = tag == names::SESSION_AFFINITY_TAG;
                    let owner = if of_pool { owner.clone() } else { owner_of(tag) };
                    Line::at_least(format!("{} has {tag}", object.title()), &owner)
                };
                let tags = texts(object, fields::TAGS).filter(|tag| *tag != EDITED);
                picture.extend(tags.map(line));
            }
            let is_owned = ownership == Ownership::Ours || is_edited(balancer);
            let has_floating = floating(&floating_ips, balancer).is_some();
            let facts = [("the ownership tag", is_owned), ("a floating IP", has_floating)];
            let line = |(what, has)| format!("{} has {what}: {has}", balancer.title());
            picture.extend(facts.map(|fact| Line::exact(line(fact), &all_users)));
        }
        for line in &mut picture {
            // Octavia has two forms of all clients, and the model leaves both unchanged.
            line.text = line.text.replace("[\"0.0.0.0/0\"]", "[]");
        }
        picture.extend(floating_ips.all.iter().map(|floating| {
            let (description, port) = (floating.text(fields::DESCRIPTION), floating.text(fields::PORT_ID));
            let ownership = ownership_of_floating(floating, &ownership_tag());
            let is_foreign = description.is_empty() || !ownership.allows_changes();
            let text = format!("floating IP {description} is attached: {}", !port.is_empty());
            Line::exact(text, &Owner::Cluster.foreign_if(is_foreign))
        }));
        for group in truth.groups.of(Group) {
            let owner = owner_of_group(&group.key);
            picture.extend(objects::lines(group, &owner, [&[], &KEPT], |_| false));
        }
        for (id, port) in &truth.ports {
            let line = |group: &String| Line::at_least(format!("{id} in {group}"), &owner_of_group(group));
            picture.extend(port.security_groups.iter().map(line));
        }
        picture
    }

    fn owner(&self, service: &ServiceId, cluster: &str) -> String {
        names::load_balancer(cluster, service)
    }

    fn destroys(&self, change: &PartChange, view: &ObservedPart, service: &ServiceView) -> bool {
        let names = CLUSTERS.map(|cluster| names::load_balancer(cluster, &service.id));
        // An internal Service is refused on the load balancer of another one, and does not use it.
        let uses = |balancer: &Object<ObjectKind>| {
            let mut users = service_tags(balancer).chain([&*balancer.key]);
            service.annotation(a::INTERNAL).is_none()
                || users.any(|user| names.iter().any(|name| name == user))
        };
        match (change, view) {
            (PartChange::Balancer(_, change), ObservedPart::Balancers(snapshot)) => {
                objects::deletes(change, &[ObjectKind::Balancer])
                    && snapshot.objects.of(ObjectKind::Balancer).any(uses)
            }
            _ => false,
        }
    }
}

fn model() -> Model {
    let mut settings = LoadBalancing::default();
    let conf = &mut settings.conf;
    (conf.manage_security_groups, conf.create_monitor) = (true, true);
    Model {
        settings: Arc::new(settings),
    }
}

#[test]
fn openstack_keeps_the_laws() {
    laws(&model(), 30);
}

#[test]
fn openstack_keeps_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&model(), 200);
}
