//! The laws of the plan engine for this model.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::{
    load_balancer::{ClusterView, Policy, Protocol, ServiceId},
    plan::{GatheredInputs, Member, objects::Kind as _},
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, laws, objects, other_cluster_tag,
        ownership_tag, remove, service_id,
    },
};
use serde_json::Value;

use super::{
    annotations as a,
    desired::{Observed, foreign, is_owner_tag},
    kinds::{CERTIFICATES, Change, Entry, Key, Kind, OWNER_TAG, Object, Objects, RULES, Rule, TAGS, tag_map},
    model::{Directory, Inputs, Model, Reply},
    names,
    node_groups::NodeGroup,
    spec::{self, Flavor, Spec},
};
use crate::{
    client::ec2::Subnet,
    cluster::{Cluster, SERVICE_NAME},
    config::LoadBalancing,
};

/// The value of `--cluster-name`.
const CLUSTER: &str = "parity";
/// The security group of the nodes.
const NODES: &str = "sg-nodes";
/// The description of rules that people add.
const BY_HAND: &str = "by hand";
/// Services with this annotation have changed since the process began.
const CHANGED: &str = "test/changed";

/// What Services may ask for: annotation and values, and whether they alone change a network and a classic load balancer.
const SETTINGS: [(&str, &[&str], bool, bool); 24] = [
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
    (a::ACCESS_LOG, &["true"], true, true),
    (a::ATTRIBUTES, &["zonal_shift.config.enabled=true"], true, false),
    (
        a::TARGET_GROUP_ATTRIBUTES,
        &["preserve_client_ip.enabled=false"],
        true,
        true,
    ),
    (a::PROXY_PROTOCOL, &["*"], true, true),
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
    let settings = LoadBalancing {
        managed_security_groups,
        default_type,
        ..LoadBalancing::default()
    };
    let cluster = Cluster {
        id: "c".to_owned(),
        legacy: false,
    };
    let settings = Arc::new(settings);
    Model { settings, cluster }
}

/// The Service that an object is for.
fn service_of(object: &Object) -> Option<ServiceId> {
    let tags = tag_map(object);
    (0..SERVICES).map(service_id).find(|id| {
        let name = names::balancer(id);
        match object.kind {
            Kind::NodeGroup => false,
            Kind::Group => [names::group(CLUSTER, id), names::classic_group(&name)].contains(&object.key),
            Kind::ClassicListener => object.parent.as_ref() == Some(&name),
            _ => tags.get(SERVICE_NAME) == Some(&names::service_tag(id)),
        }
    })
}

fn is_of(object: &Object, key: &Key) -> bool {
    match key {
        Key::NodeGroups => object.kind == Kind::NodeGroup,
        // An orphan has its own name.
        Key::Balancer(name) => {
            object.key == *name || service_of(object).is_some_and(|id| names::balancer(&id) == *name)
        }
    }
}

/// Who else an object, or the load balancer that it is of, belongs to.
fn foreign_of(truth: &Objects, object: &Object, cluster: &Cluster) -> Option<String> {
    let parent = object.kind.schema().parent.zip(object.parent.as_deref());
    let parent = parent.and_then(|(kind, key)| truth.get(kind, key));
    foreign(parent.unwrap_or(object), cluster, &ownership_tag())
}

/// AWS drops everything of TLS when a listener gets another protocol, also if people change it.
fn without_tls(mut object: Object) -> Object {
    if object.kind == Kind::Listener && object.text("protocol") != "TLS" {
        object.sets.remove(CERTIFICATES);
        for name in ["certificate", "ssl_policy", "alpn_policy"] {
            object.attributes.remove(name);
        }
    }
    object
}

/// Edits the entries of a set of these objects.
fn edit_set(
    truth: &mut Objects,
    set: &'static str,
    is_meant: impl Fn(&Object) -> bool,
    edit: impl Fn(&mut Vec<Entry>),
) {
    for object in truth.all.iter_mut().filter(|object| is_meant(object)) {
        if let Some(entries) = object.sets.get_mut(set) {
            let mut edited = entries.to_vec();
            edit(&mut edited);
            *entries = edited.into();
        }
    }
}

/// Gives everything of a Service that has tags this ownership tag.
fn own(truth: &mut Objects, number: usize, tag: Option<&str>) {
    let service = Some(service_id(number % SERVICES));
    let is_tagged = |object: &Object| service_of(object) == service && !object.set(TAGS).is_empty();
    edit_set(truth, TAGS, is_tagged, |tags| {
        tags.retain(|tag| !is_owner_tag(tag));
        tags.extend(tag.map(|tag| Entry::tag(OWNER_TAG, tag)));
    });
}

fn subnet(id: &str) -> Subnet {
    Subnet {
        id: id.to_owned(),
        zone: id.replace("subnet", "zone"),
        ..Subnet::default()
    }
}

impl Lawful for Model {
    type Truth = Objects;

    /// A load balancer of somebody else, and the security group of the nodes.
    fn ground(&self) -> Self::Truth {
        let ssh = Rule::new("tcp", (22, 22), "0.0.0.0/0", BY_HAND);
        let mut nodes = Object::new(Kind::NodeGroup, NODES).entries(RULES, [Entry::Rule(ssh)]);
        nodes.id = NODES.to_owned();
        let mine = Object::new(Kind::Balancer, "mine").with("type", "network");
        [nodes, mine.with("scheme", "internal")].into_iter().collect()
    }

    fn clusters(&self) -> Clusters {
        let is_classic = self.settings.default_type == Flavor::Classic;
        let settings = SETTINGS.iter().map(|(key, values, network, classic)| {
            let is_managed_group = *key == a::SECURITY_GROUPS && self.settings.managed_security_groups;
            let is_visible = if is_classic { *classic } else { *network } || is_managed_group;
            let setting = |value: &&str| Setting::annotation(*key, *value).visible_if(is_visible);
            values.iter().map(setting).collect()
        });
        let local = Setting::field(|service| {
            service.external_policy = Policy::Local;
            service.health_check_node_port = 32000;
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
        let mut edits = objects::edits(
            "Service",
            |truth, _| Some(truth),
            |object| object.kind != Kind::Group && service_of(object).is_some(),
        );
        edits.extend([
            Edit::new("remove ownership tags", |truth, number| own(truth, number, None)),
            Edit::new("give to another cluster", |truth, number| {
                own(truth, number, Some(other_cluster_tag().as_str()));
            }),
            Edit::new("revoke rule", |truth: &mut Objects, number| {
                let is_ours = |entry: &Entry| entry.rule().is_some_and(|rule| rule.description != BY_HAND);
                let revoke = |rules: &mut Vec<Entry>| drop(remove(rules, number, is_ours));
                edit_set(truth, RULES, |_| true, revoke);
            }),
        ]);
        edits
    }

    fn view(&self, truth: &Self::Truth, key: &Key, _: &[Member<Self>], _: &ClusterView) -> Observed {
        let all = truth.all.iter().filter(|object| is_of(object, key));
        let objects = all.map(|object| Object {
            foreign: foreign_of(truth, object, &self.cluster),
            ..without_tls(object.clone())
        });
        Observed {
            objects: objects.collect(),
            ..Observed::default()
        }
    }

    fn store(&self, truth: &mut Self::Truth, key: &Key, after: Observed) {
        let after = after.objects.all.into_iter().map(without_tls).collect();
        objects::replace(truth, after, |object| is_of(object, key));
        // AWS does not delete a security group that rules refer to, and the calls revoke them then.
        let groups: BTreeSet<_> = truth.of(Kind::Group).map(|group| group.key.clone()).collect();
        let is_dangling = |rule: &Rule| {
            rule.source.starts_with(&names::classic_group("")) && !groups.contains(&rule.source)
        };
        let is_of_nodes = |object: &Object| object.kind == Kind::NodeGroup;
        edit_set(truth, RULES, is_of_nodes, |rules| {
            rules.retain(|entry| !entry.rule().is_some_and(is_dangling));
        });
    }

    fn directory(&self, truth: &Self::Truth) -> Directory {
        let balancers = truth.of(Kind::Balancer).chain(truth.of(Kind::Classic));
        let balancers = balancers.filter(|object| service_of(object).is_some()).cloned();
        let nodes = truth.of(Kind::NodeGroup).map(|group| Object {
            kind: Kind::Group,
            ..group.clone()
        });
        let groups: Vec<_> = truth.of(Kind::Group).cloned().chain(nodes).collect();
        let listeners = truth.of(Kind::Listener);
        let used: BTreeSet<_> = listeners.map(|listener| listener.text("target_group")).collect();
        let is_loose = |group: &&Object| !used.contains(&*group.key);
        let loose = truth.of(Kind::TargetGroup).filter(is_loose);
        Directory::new(balancers, groups.iter(), loose.cloned().collect())
    }

    fn inputs(
        &self,
        truth: &Self::Truth,
        _: &Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
    ) -> GatheredInputs<Inputs> {
        let subnets = ["subnet-a", "subnet-b", "subnet-c"];
        let cidrs = (0..).zip(subnets);
        let cidrs = cidrs.map(|(at, id)| (id.to_owned(), vec![format!("10.0.{at}.0/24")]));
        let mut inputs = Inputs {
            directory: Arc::new(self.directory(truth)),
            cidrs: cidrs.collect(),
            ..Inputs::default()
        };
        for Member { service, .. } in members {
            let named = Spec::read(service, &self.settings, Flavor::Network).subnets;
            let named: Vec<_> = named.iter().map(|id| subnet(id)).collect();
            let all = || subnets[..2].iter().map(|id| subnet(id)).collect();
            let places = if named.is_empty() { all() } else { named };
            inputs.places.insert(service.id.clone(), places);
            if service.annotation(CHANGED).is_some() {
                inputs.changed.insert(service.id.clone());
            }
            let group = |instance| {
                let (id, others) = (NODES.to_owned(), Vec::new());
                (instance, Ok(NodeGroup { id, others }))
            };
            let instances = spec::instances(service, cluster).into_iter().flatten();
            inputs.groups.extend(instances.map(group));
        }
        inputs.into()
    }

    fn reply(&self, _: &Key, change: &Change, _: &Observed, ids: &Ids) -> Reply {
        let objects = objects::reply(change, ids, |created, answer| {
            let hostname = format!("{}-1.elb.amazonaws.com", created.key);
            match created.kind {
                Kind::Balancer => {
                    let zones = created.texts("subnets").into_iter().map(|id| subnet(id).zone);
                    let answer = answer.with("zones", zones.collect::<Value>());
                    answer.with("type", "network").with("dns_name", hostname)
                }
                // As an imagined plan names it.
                Kind::Group => Object {
                    id: created.key.clone(),
                    ..answer
                },
                Kind::Classic => answer.with("dns_name", hostname),
                _ => answer,
            }
        });
        let denied = None;
        Reply { objects, denied }
    }

    fn picture(&self, truth: &Self::Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        for object in truth.all.iter().filter(|object| object.kind != Kind::NodeGroup) {
            let service = service_of(object).filter(|_| foreign_of(truth, object, &self.cluster).is_none());
            let owner = service.map_or(Owner::Foreign, |id| Owner::service(names::balancer(&id)));
            let kept = ["description", "subnets", "eip_allocations"];
            let lines = objects::lines(object, &owner, [&[], &kept], |entry| !is_owner_tag(entry));
            let lines = lines.into_iter();
            picture.extend(lines.filter(|line| !line.text.ends_with("\"None\"")).map(|line| {
                // People may add certificates.
                let is_exact = line.is_exact && !line.text.starts_with("certificate of");
                Line { is_exact, ..line }
            }));
        }
        let rules = truth.of(Kind::NodeGroup).flat_map(|group| group.set(RULES));
        picture.extend(rules.filter_map(|entry| {
            let rule = entry.rule()?;
            let group = rule.source.strip_prefix(&names::classic_group(""));
            let owner = match (rule.balancer(), group) {
                _ if rule.description == BY_HAND => Owner::Foreign,
                // Several load balancers may need one rule for their health checks.
                (Some(name), _) if rule.description.contains("client=") => Owner::service(name),
                (None, Some(name)) => Owner::service(name),
                _ => Owner::Cluster,
            };
            Some(Line::exact(format!("{entry} to nodes"), &owner))
        }));
        picture
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        names::balancer(service)
    }

    fn destroys(&self, change: &Change) -> bool {
        objects::deletes(change, &[Kind::Balancer, Kind::Classic])
    }
}

#[test]
fn network_load_balancers_keep_the_laws() {
    laws(&model(Flavor::Network, false), 30);
}

#[test]
fn network_load_balancers_with_security_groups_keep_the_laws() {
    laws(&model(Flavor::Network, true), 20);
}

#[test]
fn classic_load_balancers_keep_the_laws() {
    laws(&model(Flavor::Classic, false), 20);
}
