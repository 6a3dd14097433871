//! The laws of the plan engine for this model.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::{
    load_balancer::{ClusterView, Policy, Protocol, ServiceId, ServiceView},
    plan::{
        GatheredInputs, Member,
        objects::{self as plan_objects, Action, Kind as _, Object, Objects},
    },
    testkit::laws::{
        Clusters, Edit, Ids, Lawful, Line, Owner, SERVICES, Setting, laws, objects, other_cluster_tag,
        ownership_tag, remove, service_id,
    },
};

use super::{
    annotations as a,
    desired::{Observed, foreign},
    kinds::{CERTIFICATES, Entry, Key, Kind, OWNER_TAG, RULES, Rule, TAGS, tag_map},
    model::{Directory, Inputs, Model, Reply},
    names,
    node_groups::NodeGroup,
    spec::{self, Flavor, Spec},
    subnets::Place,
};
use crate::{
    cluster::{Cluster, SERVICE_NAME},
    config::{DefaultType, LoadBalancing},
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

fn model(default_type: DefaultType, managed_security_groups: bool) -> Model {
    let settings = LoadBalancing {
        disable_security_group_ingress: false,
        elb_security_group: None,
        shared_probe: None,
        managed_security_groups,
        default_type,
    };
    Model {
        settings: Arc::new(settings),
        cluster: cluster(),
    }
}

fn cluster() -> Cluster {
    Cluster {
        id: "c".to_owned(),
        legacy: false,
    }
}

/// The Service that an object is for.
fn service_of(object: &Object<Kind>) -> Option<ServiceId> {
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

fn is_of(object: &Object<Kind>, key: &Key) -> bool {
    match key {
        Key::NodeGroups => object.kind == Kind::NodeGroup,
        // An orphan has its own name.
        Key::Balancer(name) => {
            object.key == *name || service_of(object).is_some_and(|id| names::balancer(&id) == *name)
        }
    }
}

/// Who else an object, or the load balancer that it is of, belongs to.
fn foreign_of(truth: &Objects<Kind>, object: &Object<Kind>) -> Option<String> {
    let parent = object.kind.schema().parent.zip(object.parent.as_deref());
    let parent = parent.and_then(|(kind, key)| truth.get(kind, key));
    foreign(parent.unwrap_or(object), &cluster(), &ownership_tag())
}

/// Gives everything of a Service this ownership tag.
fn own(truth: &mut Objects<Kind>, number: usize, tag: Option<&str>) {
    let service = service_id(number % SERVICES);
    for object in &mut truth.all {
        if service_of(object).as_ref() == Some(&service) && !object.set(TAGS).is_empty() {
            let mut tags = tag_map(object);
            tags.remove(OWNER_TAG);
            tags.extend(tag.map(|tag| (OWNER_TAG.to_owned(), tag.to_owned())));
            let tags = tags.iter().map(|(key, value)| Entry::tag(key, value));
            object.sets.insert(TAGS, tags.collect());
        }
    }
}

fn rules(truth: &Objects<Kind>) -> impl Iterator<Item = &Rule> {
    let groups = truth.of(Kind::NodeGroup);
    groups.flat_map(|group| group.set(RULES).iter().filter_map(Entry::rule))
}

fn place(subnet: &str) -> Place {
    Place {
        zone: subnet.replace("subnet", "zone"),
        subnet: subnet.to_owned(),
    }
}

impl Lawful for Model {
    type Truth = Objects<Kind>;

    /// A load balancer of somebody else, and the security group of the nodes.
    fn ground(&self) -> Self::Truth {
        let ssh = Rule::new("tcp", (22, 22), "0.0.0.0/0", BY_HAND);
        let mut nodes = Object::new(Kind::NodeGroup, NODES).entries(RULES, [Entry::Rule(ssh)]);
        nodes.id = NODES.to_owned();
        let mine = Object::new(Kind::Balancer, "mine").with("type", "network");
        [nodes, mine.with("scheme", "internal")].into_iter().collect()
    }

    fn clusters(&self) -> Clusters {
        let is_classic = self.settings.default_type == DefaultType::Classic;
        let settings = SETTINGS.iter().map(|(key, values, network, classic)| {
            let is_managed_group = *key == a::SECURITY_GROUPS && self.settings.managed_security_groups;
            let is_visible = if is_classic { *classic } else { *network } || is_managed_group;
            let setting = |value: &&str| Setting::annotation(*key, *value);
            let settings = values.iter().map(setting);
            settings
                .map(|one| if is_visible { one } else { one.invisible() })
                .collect()
        });
        let ranges: fn(&mut ServiceView) = |service| service.source_ranges = Some(vec!["10.0.0.0/8".into()]);
        let local: fn(&mut ServiceView) = |service| {
            service.external_policy = Policy::Local;
            service.health_check_node_port = 32000;
        };
        let fields = [ranges, local].map(|field| vec![Setting::field(field)]);
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
            Edit::new("revoke rule", |truth: &mut Objects<Kind>, number| {
                let groups = truth.all.iter_mut();
                let groups = groups.filter(|object| matches!(object.kind, Kind::Group | Kind::NodeGroup));
                for group in groups {
                    let mut rules = group.set(RULES).to_vec();
                    let is_ours =
                        |entry: &Entry| entry.rule().is_some_and(|rule| rule.description != BY_HAND);
                    remove(&mut rules, number, is_ours);
                    group.sets.insert(RULES, rules.into());
                }
            }),
        ]);
        edits
    }

    fn view(&self, truth: &Self::Truth, key: &Key, _: &[Member<Self>], _: &ClusterView) -> Observed {
        let all = truth.all.iter().filter(|object| is_of(object, key));
        let objects = all.map(|object| Object {
            foreign: foreign_of(truth, object),
            ..object.clone()
        });
        Observed {
            objects: objects.collect(),
            ..Observed::default()
        }
    }

    fn store(&self, truth: &mut Self::Truth, key: &Key, after: Observed) {
        let mut after = after.objects;
        let listeners = after
            .all
            .iter_mut()
            .filter(|object| object.kind == Kind::Listener);
        for plain in listeners.filter(|object| object.text("protocol") != "TLS") {
            plain.sets.remove(CERTIFICATES);
            for name in ["certificate", "ssl_policy", "alpn_policy"] {
                plain.attributes.remove(name);
            }
        }
        objects::replace(truth, after, |object| is_of(object, key));
        // AWS does not delete a security group that rules refer to, and the calls revoke them then.
        let groups: BTreeSet<_> = truth.of(Kind::Group).map(|group| group.key.clone()).collect();
        let is_dangling = |rule: &Rule| {
            rule.source.starts_with(&names::classic_group("")) && !groups.contains(&rule.source)
        };
        for group in truth
            .all
            .iter_mut()
            .filter(|object| object.kind == Kind::NodeGroup)
        {
            let rules = group.set(RULES).iter();
            let rules = rules
                .filter(|entry| !entry.rule().is_some_and(is_dangling))
                .cloned();
            group.sets.insert(RULES, rules.collect());
        }
    }

    fn directory(&self, truth: &Self::Truth) -> Directory {
        let balancers = truth.of(Kind::Balancer).chain(truth.of(Kind::Classic));
        let balancers = balancers.filter(|object| service_of(object).is_some()).cloned();
        let nodes = truth.of(Kind::NodeGroup).map(|group| Object {
            id: group.id.clone(),
            ..Object::new(Kind::Group, "nodes").entries(RULES, group.set(RULES).to_vec())
        });
        let groups: Vec<_> = truth.of(Kind::Group).cloned().chain(nodes).collect();
        let used = truth
            .of(Kind::Listener)
            .map(|listener| listener.text("target_group"));
        let used: BTreeSet<_> = used.collect();
        let loose = truth
            .of(Kind::TargetGroup)
            .filter(|group| !used.contains(&*group.key));
        Directory::new(balancers, groups.iter(), loose.cloned().collect())
    }

    fn inputs(&self, _: &Key, members: &[Member<Self>], cluster: &ClusterView) -> GatheredInputs<Inputs> {
        let mut inputs = Inputs::default();
        let subnets = ["subnet-a", "subnet-b", "subnet-c"];
        let cidrs = (0..).zip(subnets);
        inputs.cidrs = cidrs
            .map(|(at, subnet)| (subnet.to_owned(), vec![format!("10.0.{at}.0/24")]))
            .collect();
        for Member { service, .. } in members {
            let named = Spec::read(service, &self.settings, Flavor::Network).subnets;
            let named: Vec<_> = named.iter().map(|subnet| place(subnet)).collect();
            let all = || subnets[..2].iter().map(|subnet| place(subnet)).collect();
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

    fn inputs_of(
        &self,
        truth: &Self::Truth,
        key: &Key,
        members: &[Member<Self>],
        cluster: &ClusterView,
    ) -> GatheredInputs<Inputs> {
        let mut gathered = self.inputs(key, members, cluster);
        gathered.inputs.directory = Arc::new(self.directory(truth));
        gathered
    }

    fn reply(&self, _: &Key, change: &plan_objects::Change<Kind>, _: &Observed, ids: &Ids) -> Reply {
        let subnets = match &change.action {
            Action::Create(object, _) => object.texts("subnets"),
            _ => Vec::new(),
        };
        let zones: Vec<_> = subnets.into_iter().map(|subnet| place(subnet).zone).collect();
        let objects = objects::reply(change, ids, |object| {
            let hostname = format!("{}-1.elb.amazonaws.com", object.key);
            match object.kind {
                Kind::Balancer => {
                    let object = object.with("type", "network").with("zones", zones.clone());
                    object.with("dns_name", hostname)
                }
                // As an imagined plan names it.
                Kind::Group => Object {
                    id: object.key.clone(),
                    ..object
                },
                Kind::Classic => object.with("dns_name", hostname),
                _ => object,
            }
        });
        let denied = None;
        Reply { objects, denied }
    }

    fn picture(&self, truth: &Self::Truth) -> Vec<Line> {
        let mut picture = Vec::new();
        for object in truth.all.iter().filter(|object| object.kind != Kind::NodeGroup) {
            let service = service_of(object).filter(|_| foreign_of(truth, object).is_none());
            let owner = service.map_or(Owner::Foreign, |id| Owner::service(names::balancer(&id)));
            let kept = ["description", "subnets", "eip_allocations"];
            let is_managed = |entry: &Entry| !matches!(entry, Entry::Tag { key, .. } if key == OWNER_TAG);
            let lines = objects::lines(object, &owner, [&[], &kept], is_managed).into_iter();
            picture.extend(lines.filter(|line| !line.text.ends_with("\"None\"")).map(|line| {
                // People may add certificates.
                let is_exact = line.is_exact && !line.text.starts_with("certificate of");
                Line { is_exact, ..line }
            }));
        }
        picture.extend(rules(truth).map(|rule| {
            let Rule {
                protocol,
                from,
                to,
                source,
                ..
            } = rule;
            let owner = match (rule.balancer(), source.strip_prefix(&names::classic_group(""))) {
                _ if rule.description == BY_HAND => Owner::Foreign,
                // Several load balancers may need one rule for their health checks.
                (Some(name), _) if rule.description.contains("client=") => Owner::service(name),
                (None, Some(name)) => Owner::service(name),
                _ => Owner::Cluster,
            };
            Line::exact(format!("{protocol} {from}-{to} from {source} to nodes"), &owner)
        }));
        picture
    }

    fn owner(&self, service: &ServiceId, _: &str) -> String {
        names::balancer(service)
    }

    fn destroys(&self, change: &plan_objects::Change<Kind>) -> bool {
        matches!(change.kind, Kind::Balancer | Kind::Classic) && matches!(change.action, Action::Delete(_))
    }
}

#[test]
fn network_load_balancers_keep_the_laws() {
    laws(&model(DefaultType::Nlb, false), 30);
}

#[test]
fn network_load_balancers_with_security_groups_keep_the_laws() {
    laws(&model(DefaultType::Nlb, true), 20);
}

#[test]
fn classic_load_balancers_keep_the_laws() {
    laws(&model(DefaultType::Classic, false), 20);
}
