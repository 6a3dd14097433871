//! The laws of the plan engine for this model.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::{
    load_balancer::{ClusterTag, ClusterView, Policy, Protocol, ServiceId, ServiceView},
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, concurrent, laws,
        objects::{self, ObjectEdits, ObjectTrees, edit_set},
        other_cluster_tag, ownership_tag, remove, service_id,
    },
};
use serde_json::Value;

use super::{
    adoption::FirstObserved,
    annotations as a,
    desired::{ObservedPart, foreign, is_owner_tag},
    fields,
    kinds::{
        CERTIFICATES, OWNER_TAG, Object, ObjectChange, ObjectKind, PartKey, RULES, Rule, SetEntry, TAGS,
    },
    model::{BalancerDirectory, ChangeReply, Model, PartInputs, PartMember},
    names,
    node_groups::NodeGroup,
    spec::{self, Flavor, Spec},
    subnets,
};
use crate::{client::ec2::Subnet, config::LoadBalancing, site};

/// The value of `--cluster-name`.
const CLUSTER: &str = "parity";
/// The security group of the nodes.
const NODES: &str = "sg-nodes";
/// The description of rules that users add.
const BY_HAND: &str = "by hand";
/// Services with this annotation have changed since the process began.
const CHANGED: &str = "test/changed";
/// An attribute of target groups.
const NO_CLIENT_IP: &str = "preserve_client_ip.enabled=false";

/// Settings of Services: annotation, values, and whether they visibly change a network and a classic load balancer.
const SETTINGS: [(&str, &[&str], bool, bool); 23] = [
    (CHANGED, &["true"], false, false),
    (a::TYPE, &["nlb"], false, true),
    (a::SCHEME, &["internal"], true, true),
    (a::SUBNETS, &["subnet-a", "subnet-a,subnet-c"], false, false),
    (a::SECURITY_GROUPS, &["sg-mine"], false, true),
    (a::EXTRA_SECURITY_GROUPS, &["sg-extra"], true, true),
    (a::CERTIFICATES, &["arn:1", "arn:1,arn:2"], true, true),
    (a::SSL_PORTS, &["443"], false, false),
    (a::SSL_POLICY, &["strict"], false, false),
    (a::ALPN_POLICY, &["HTTP2Only"], false, false),
    (a::BACKEND_PROTOCOL, &["ssl"], false, true),
    (a::CROSS_ZONE, &["true"], true, true),
    (a::ATTRIBUTES, &["zonal_shift.config.enabled=true"], true, false),
    (a::TARGET_GROUP_ATTRIBUTES, &[NO_CLIENT_IP], true, true),
    (a::PROXY_PROTOCOL, &["*"], false, true),
    (a::IP_ADDRESS_TYPE, &["dualstack"], true, false),
    (a::EIP_ALLOCATIONS, &["eip-1,eip-2"], false, false),
    (a::NODE_LABELS, &["disk=fast"], true, true),
    (a::TAGS, &["team=web"], true, true),
    (a::CHECK_PROTOCOL, &["HTTP", "QUIC"], true, true),
    (a::CHECK_PORT, &["10256"], true, true),
    (a::CHECK_INTERVAL, &["20"], true, true),
    (a::CHECK_HEALTHY, &["5"], true, true),
];

fn model(default_type: Flavor, managed_security_groups: bool) -> Model {
    let mut settings = LoadBalancing::default();
    (settings.managed_security_groups, settings.default_type) = (managed_security_groups, default_type);
    let (settings, id, legacy) = (Arc::new(settings), "c".to_owned(), false);
    let cluster = site::Cluster { id, legacy };
    Model { settings, cluster }
}

/// The name of the load balancer of the Service that an object is for.
fn balancer_of(object: &Object) -> Option<String> {
    let is_for = |id: &ServiceId| {
        let name = names::balancer(id);
        let keys = [names::group(CLUSTER, id), names::classic_group(&name), name];
        let tag = SetEntry::tag(site::SERVICE_NAME, &names::service_tag(id));
        keys.contains(object.parent.as_ref().unwrap_or(&object.key)) || object.set(TAGS).contains(&tag)
    };
    let service = (0..SERVICES).map(service_id).find(is_for);
    service.map(|id| names::balancer(&id))
}

fn is_of(root: &Object, key: &PartKey) -> bool {
    match key {
        PartKey::NodeGroups => root.kind == ObjectKind::NodeGroup,
        // An orphan has its own name.
        PartKey::Balancer(name) => root.key == *name || balancer_of(root).as_ref() == Some(name),
    }
}

/// Drops all TLS attributes, as AWS does when a listener gets another protocol.
fn drop_tls(object: &mut Object) {
    if object.kind == ObjectKind::Listener && object.text(fields::PROTOCOL) != "TLS" {
        object.sets.remove(CERTIFICATES);
        let attributes = &mut object.attributes;
        attributes
            .retain(|name, _| ![fields::CERTIFICATE, fields::SSL_POLICY, fields::ALPN_POLICY].contains(name));
    }
}

/// Sets this ownership tag on all objects of a Service.
fn own(objects: Vec<&mut Object>, number: usize, tag: Option<&ClusterTag>) {
    let name = Some(names::balancer(&service_id(number % SERVICES)));
    for object in objects.into_iter().filter(|object| balancer_of(object) == name) {
        edit_set(object, TAGS, |tags| {
            tags.retain(|tag| !is_owner_tag(tag));
            tags.extend(tag.map(|tag| SetEntry::tag(OWNER_TAG, tag.as_str())));
        });
    }
}

fn network() -> [Subnet; 3] {
    [("a", "10.0.0.0/24"), ("b", "10.0.1.0/24"), ("c", "10.0.2.0/24")].map(|(zone, cidr)| Subnet {
        id: format!("subnet-{zone}"),
        zone: format!("zone-{zone}"),
        cidrs: vec![cidr.to_owned()],
        ..Subnet::default()
    })
}

impl Lawful for Model {
    type Truth = ObjectTrees<ObjectKind>;

    /// A foreign load balancer, and the security group of the nodes.
    fn ground(&self) -> Self::Truth {
        let ssh = Rule::new("tcp", (22, 22), "0.0.0.0/0", BY_HAND);
        let mut nodes = Object::new(ObjectKind::NodeGroup, NODES).entries(RULES, [SetEntry::Rule(ssh)]);
        nodes.id = NODES.to_owned();
        let foreign = Object::new(ObjectKind::Balancer, "mine").with(fields::TYPE, "network");
        ObjectTrees::new([nodes, foreign.with(fields::SCHEME, "internal")])
    }

    fn clusters(&self) -> Clusters {
        let is_classic = self.settings.default_type == Flavor::Classic;
        let settings = SETTINGS.iter().map(|(key, values, network, classic)| {
            let is_managed_group = *key == a::SECURITY_GROUPS && self.settings.managed_security_groups;
            let is_visible = if is_classic { *classic } else { *network };
            Setting::choices(key, values, is_visible || is_managed_group)
        });
        let local = Setting::field(|service| {
            (service.external_policy, service.health_check_node_port) = (Policy::Local, 32000);
        });
        let fields = [vec![Setting::source_ranges()], vec![local]];
        let ports = [(Protocol::Tcp, 80), (Protocol::Tcp, 443), (Protocol::Udp, 443)];
        Clusters {
            names: vec![CLUSTER],
            // A classic load balancer has no UDP ports.
            ports: ports[..if is_classic { 2 } else { 3 }].to_vec(),
            settings: settings.chain(fields).collect(),
            provider_id: |index| format!("aws:///zone-a/i-{index:08}"),
        }
    }

    fn edits(&self) -> Vec<Edit<Self::Truth>> {
        // AWS does not delete a security group that is in use.
        let is_editable = |object: &Object| object.kind != ObjectKind::Group && balancer_of(object).is_some();
        let mut edits = ObjectEdits::new(|truth| truth, is_editable).edits("object of Service");
        let all = ObjectEdits::new(|truth| truth, |_| true);
        let give = |all: Vec<&mut Object>, number| own(all, number, Some(&other_cluster_tag()));
        edits.extend([
            all.edit_all("remove ownership tags", |all, number| own(all, number, None)),
            all.edit_all("give to another cluster", give),
            all.edit_all("revoke rule", |all, number| {
                let is_ours = |entry: &SetEntry| entry.rule().is_some_and(|rule| rule.description != BY_HAND);
                let revoke = |rules: &mut _| drop(remove(rules, number, is_ours));
                all.into_iter().for_each(|object| edit_set(object, RULES, revoke));
            }),
        ]);
        edits
    }

    fn view(&self, truth: &Self::Truth, key: &PartKey, _: &[PartMember], _: &ClusterView) -> ObservedPart {
        let mut objects = truth.view(|root| is_of(root, key));
        for object in &mut objects.all {
            drop_tls(object);
            object.foreign = foreign(object, &self.cluster, &ownership_tag());
        }
        let denied = Default::default();
        ObservedPart { objects, denied }
    }

    fn store(&self, truth: &mut Self::Truth, key: &PartKey, after: ObservedPart) {
        truth.store(after.objects, |root| is_of(root, key));
        truth.of_mut(ObjectKind::Listener).for_each(drop_tls);
        // AWS does not delete a security group that rules refer to, and the calls revoke them first.
        let groups: BTreeSet<_> = truth.of(ObjectKind::Group).map(|group| group.key.clone()).collect();
        let exists = |source: &String| !source.starts_with(names::CLASSIC_GROUP) || groups.contains(source);
        let stays = |entry: &SetEntry| entry.rule().is_some_and(|rule| exists(&rule.source));
        let nodes = truth.of_mut(ObjectKind::NodeGroup);
        nodes.for_each(|group| edit_set(group, RULES, |rules| rules.retain(stays)));
    }

    fn directory(&self, truth: &Self::Truth) -> BalancerDirectory {
        let balancers = truth.of(ObjectKind::Balancer).chain(truth.of(ObjectKind::Classic));
        let balancers = balancers.filter(|object| balancer_of(object).is_some()).cloned();
        let groups = truth.of(ObjectKind::Group).chain(truth.of(ObjectKind::NodeGroup));
        let used = || truth.of(ObjectKind::Listener).map(|one| one.text(fields::TARGET_GROUP));
        let is_unused = |group: &&Object| !used().any(|name| name == group.key);
        let unused = truth.of(ObjectKind::TargetGroup).filter(is_unused);
        BalancerDirectory::new(balancers, groups, unused.cloned().collect())
    }

    fn inputs(
        &self,
        truth: &Self::Truth,
        _: &PartKey,
        members: &[PartMember],
        cluster: &ClusterView,
    ) -> PartInputs {
        let network = network();
        let cidrs = |subnet: &Subnet| (subnet.id.clone(), subnet.cidrs.clone());
        let mut inputs = PartInputs {
            directory: Arc::new(self.directory(truth)),
            cidrs: network.iter().map(cidrs).collect(),
            ..PartInputs::default()
        };
        for service in members.iter().map(|member| &member.service) {
            let subnets = match &*Spec::read(service, &self.settings, Flavor::Network).subnets {
                [] => network[..2].to_vec(),
                names => subnets::named(names, &network).unwrap(),
            };
            inputs.subnets.insert(service.id.clone(), subnets);
            let changed = service.annotation(CHANGED);
            let mut first = FirstObserved::new(service);
            first.changed = changed.is_some();
            inputs.first_observed.insert(service.id.clone(), first);
            let choose = |instance| (instance, NodeGroup::choose(vec![NODES.to_owned()], |_| true, ""));
            let instances = spec::instances(service, cluster, &inputs.untagged).unwrap_or_default();
            inputs.groups.extend(instances.into_iter().map(choose));
        }
        inputs.read_requests(members, &self.settings, cluster);
        inputs
    }

    fn reply(&self, change: &ObjectChange, _: &ObservedPart, ids: &Ids) -> ChangeReply {
        let objects = objects::reply(change, ids, |created, answer| {
            let is_classic = created.kind == ObjectKind::Classic;
            let zone = if is_classic { "elb" } else { "elb.region" };
            let answer = answer.with(fields::DNS_NAME, format!("{}-1.{zone}.amazonaws.com", created.key));
            let zones = created.texts(fields::SUBNETS).into_iter();
            let zones: Value = zones.map(|id| id.replace("subnet", "zone")).collect();
            let id = created.key.clone();
            match created.kind {
                ObjectKind::Balancer => answer.with(fields::ZONES, zones).with(fields::TYPE, "network"),
                // The ID that a plan uses before the object exists.
                ObjectKind::Group => Object { id, ..answer },
                _ => answer,
            }
        });
        let denied = None;
        ChangeReply { objects, denied }
    }

    fn picture(&self, truth: &Self::Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        for object in &truth.view(|root| root.kind != ObjectKind::NodeGroup).all {
            let owner = balancer_of(object).map_or(Owner::Foreign, Owner::service);
            let foreign = foreign(object, &self.cluster, &ownership_tag());
            let owner = owner.foreign_if(foreign.is_some());
            // An unhealthy threshold that someone set by hand stays.
            let kept = [
                fields::DESCRIPTION,
                fields::SUBNETS,
                fields::EIP_ALLOCATIONS,
                fields::UNHEALTHY_THRESHOLD,
            ];
            picture.extend(objects::lines(object, &owner, [&[], &kept], is_owner_tag));
        }
        picture.retain(|line| !line.text.ends_with("\"None\""));
        for line in &mut picture {
            // Users may add certificates.
            line.is_exact &= !line.text.starts_with("certificate of");
        }
        let rules = truth.of(ObjectKind::NodeGroup).flat_map(|group| group.set(RULES));
        picture.extend(rules.filter_map(SetEntry::rule).map(|rule| {
            // Several load balancers may need one rule for their health checks.
            let client = rule.balancer().filter(|_| rule.description.contains("client="));
            let group = rule.source.strip_prefix(names::CLASSIC_GROUP);
            let owner = client.or(group).map_or(Owner::Cluster, Owner::service);
            let owner = owner.foreign_if(rule.description == BY_HAND);
            Line::exact(format!("{:?} to nodes", rule.tuple()), &owner)
        }));
        picture
    }

    fn destroys(&self, change: &ObjectChange, _: &ObservedPart, _: &ServiceView) -> bool {
        objects::deletes(change, &[ObjectKind::Balancer, ObjectKind::Classic])
    }
}

#[test]
fn network_load_balancers_keep_the_laws() {
    laws(&model(Flavor::Network, false), 15);
}

#[test]
fn network_load_balancers_with_security_groups_keep_the_laws() {
    laws(&model(Flavor::Network, true), 10);
}

#[test]
fn classic_load_balancers_keep_the_laws() {
    laws(&model(Flavor::Classic, false), 10);
}

#[test]
fn network_load_balancers_keep_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&model(Flavor::Network, true), 200);
}

#[test]
fn classic_load_balancers_keep_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&model(Flavor::Classic, false), 200);
}
