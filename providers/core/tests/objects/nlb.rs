//! AWS's network load balancers as objects: the kinds, the model, no calls. Names, tags and descriptions are those of the Go
//! cloud controller.
//!
//! Parts: `lb/<name>` with the load balancer, its listeners, its target groups and its security group, and `node-sg` with the
//! rules of the nodes' security groups for all Services.

use std::{collections::BTreeSet, fmt, str::FromStr};

use ccm_core::{
    Error, ErrorKind,
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, Effects, Ingress, Ownership, OwnershipTag, ServiceId,
        ServicePort, ServiceView,
    },
    plan::{
        CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan,
        objects::{self, Attribute, Desired, Object, Objects, Policy, Scalar, Schema, Set, SetOrder},
    },
};

pub const CLUSTER_TAG: &str = "kubernetes.io/cluster/parity";
pub const SERVICE_TAG: &str = "kubernetes.io/service-name";
/// The key of the tag with the UID of the `kube-system` namespace.
pub const OWNER_TAG: &str = "cloud-controller-manager/cluster";
const RULES: &str = "kubernetes.io/rule/nlb/";
const ANNOTATION: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// A kind needs those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The security group of a load balancer, by name.
    Group,
    /// A security group of nodes, by id. Never created or deleted.
    NodeGroup,
    /// By name, which holds a hash of what cannot be changed.
    TargetGroup,
    /// By name.
    Balancer,
    /// By port, which is all that distinguishes listeners of a network load balancer.
    Listener,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    Tag { key: String, value: String },
    Target { instance: String, port: u16 },
    Rule(Rule),
}

/// An ingress rule. Its description does not distinguish it: EC2 refuses two that differ in nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub protocol: &'static str,
    pub from: u16,
    pub to: u16,
    pub range: String,
    pub description: String,
}

impl Entry {
    pub fn tag(key: &str, value: impl Into<String>) -> Self {
        let (key, value) = (key.to_owned(), value.into());
        Self::Tag { key, value }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag { key, value } => write!(f, "{key}={value}"),
            Self::Target { instance, port } => write!(f, "{instance}:{port}"),
            Self::Rule(Rule {
                protocol,
                from,
                to,
                range,
                ..
            }) => write!(f, "{protocol} {from}-{to} from {range}"),
        }
    }
}

impl objects::Entry for Entry {
    type Key = String;

    fn key(&self) -> String {
        match self {
            Self::Tag { key, .. } => key.clone(),
            entry => entry.to_string(),
        }
    }

    fn is_as(&self, desired: &Self) -> bool {
        !matches!(self, Self::Tag { .. }) || self == desired
    }
}

const fn tags(add: &'static str, remove: &'static str) -> Set<Kind> {
    Set {
        batch: 50,
        created_with_object: true,
        order: SetOrder::Around,
        is_removable: |_| false,
        ..Set::new("tag", add, remove)
    }
}

const RULE_SET: Set<Kind> = Set {
    batch: 50,
    ..Set::new(
        "rule",
        "AuthorizeSecurityGroupIngress",
        "RevokeSecurityGroupIngress",
    )
};

static GROUP: Schema<Kind> = Schema {
    attributes: &[Attribute::new("description", Policy::CreateOnly)],
    sets: &[tags("CreateTags", "DeleteTags"), RULE_SET],
    ..Schema::new("security group", "CreateSecurityGroup", "DeleteSecurityGroup")
};

static NODE_GROUP: Schema<Kind> = Schema {
    sets: &[Set {
        is_removable: |entry| matches!(entry, Entry::Rule(rule) if rule.description.starts_with(RULES)),
        ..RULE_SET
    }],
    ..Schema::new("security group of nodes", "", "")
};

const CHECK: Policy = Policy::Update("ModifyTargetGroup");
const TARGET_GROUP_ATTRIBUTE: Policy = Policy::Update("ModifyTargetGroupAttributes");

static TARGET_GROUP: Schema<Kind> = Schema {
    attributes: &[
        Attribute::new("port", Policy::CreateOnly),
        Attribute::new("protocol", Policy::CreateOnly),
        Attribute::new("health_check_protocol", CHECK),
        Attribute::new("health_check_interval_seconds", CHECK),
        Attribute::new("health_check_port", CHECK).or(Scalar::Text("traffic-port")),
        Attribute::new("health_check_path", CHECK),
        Attribute::new("healthy_threshold_count", CHECK),
        Attribute::new("unhealthy_threshold_count", CHECK),
        Attribute::new("preserve_client_ip.enabled", TARGET_GROUP_ATTRIBUTE).or(Scalar::Text("true")),
        Attribute::new("proxy_protocol_v2.enabled", TARGET_GROUP_ATTRIBUTE).or(Scalar::Text("false")),
    ],
    sets: &[
        tags("AddTags", "RemoveTags"),
        Set {
            batch: 200,
            order: SetOrder::RemoveFirst,
            ..Set::new("target", "RegisterTargets", "DeregisterTargets")
        },
    ],
    ..Schema::new("target group", "CreateTargetGroup", "DeleteTargetGroup")
};

const BALANCER_ATTRIBUTE: Policy = Policy::Update("ModifyLoadBalancerAttributes");

static BALANCER: Schema<Kind> = Schema {
    attributes: &[
        Attribute::new("scheme", Policy::Blocked).or(Scalar::Text("internet-facing")),
        Attribute::new("subnets", Policy::Update("SetSubnets")).or(Scalar::List),
        Attribute::new("security_groups", Policy::Update("SetSecurityGroups")).or(Scalar::List),
        Attribute::new("load_balancing.cross_zone.enabled", BALANCER_ATTRIBUTE).or(Scalar::Text("false")),
        Attribute::new("access_logs.s3.enabled", BALANCER_ATTRIBUTE).or(Scalar::Text("false")),
        Attribute::new("access_logs.s3.bucket", BALANCER_ATTRIBUTE).or(Scalar::Text("")),
        Attribute::new("access_logs.s3.prefix", BALANCER_ATTRIBUTE).or(Scalar::Text("")),
    ],
    sets: &[tags("AddTags", "RemoveTags")],
    ..Schema::new("load balancer", "CreateLoadBalancer", "DeleteLoadBalancer")
};

const LISTENER_CHANGE: Policy = Policy::Update("ModifyListener");

static LISTENER: Schema<Kind> = Schema {
    parent: Some(Kind::Balancer),
    deleted_with_parent: true,
    attributes: &[
        Attribute::new("transport", Policy::Replace),
        Attribute::new("protocol", LISTENER_CHANGE),
        Attribute::new("certificates", LISTENER_CHANGE).or(Scalar::List),
        Attribute::new("ssl_policy", LISTENER_CHANGE),
        Attribute::new("target_group", LISTENER_CHANGE),
    ],
    sets: &[tags("AddTags", "RemoveTags")],
    ..Schema::new("listener", "CreateListener", "DeleteListener")
};

impl objects::Kind for Kind {
    type Entry = Entry;

    fn schema(self) -> &'static Schema<Self> {
        match self {
            Self::Group => &GROUP,
            Self::NodeGroup => &NODE_GROUP,
            Self::TargetGroup => &TARGET_GROUP,
            Self::Balancer => &BALANCER,
            Self::Listener => &LISTENER,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Balancer(String),
    NodeGroups,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balancer(name) => write!(f, "lb/{name}"),
            Self::NodeGroups => f.write_str("node-sg"),
        }
    }
}

impl FromStr for Key {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix("lb/") {
            Some(name) => Ok(Self::Balancer(name.to_owned())),
            None => (text == "node-sg").then_some(Self::NodeGroups).ok_or(()),
        }
    }
}

/// What the shared listings show.
#[derive(Debug, Default)]
pub struct Directory {
    /// Names of load balancers of which something is left, with their Services, and whether all of it is certainly ours.
    pub balancers: Vec<(String, String, bool)>,
    /// Services in the tags of anything that belongs to a load balancer.
    pub tagged: BTreeSet<String>,
    /// Names of load balancers in descriptions of rules of node groups.
    pub ruled: BTreeSet<String>,
}

/// What the model is asked to make of a part.
#[derive(Debug)]
pub struct DesiredPart {
    pub objects: Desired<Kind>,
    /// Load balancers whose rules stay as they are.
    pub kept: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Nlb;

pub fn name_of(service: &ServiceId) -> String {
    let uid: String = service.uid.chars().filter(|letter| *letter != '-').collect();
    format!("a{uid}").chars().take(32).collect()
}

pub fn service_tag(service: &ServiceId) -> String {
    format!("{}/{}", service.namespace, service.name)
}

fn annotation<'a>(service: &'a ServiceView, name: &str) -> Option<&'a str> {
    service.annotation(&format!("{ANNOTATION}{name}"))
}

fn certificate(service: &ServiceView) -> Option<&str> {
    annotation(service, "ssl-cert").filter(|certificate| !certificate.is_empty())
}

fn protocol(service: &ServiceView, port: &ServicePort) -> &'static str {
    match port.protocol.as_str() {
        "UDP" => "UDP",
        _ if certificate(service).is_some() => "TLS",
        _ => "TCP",
    }
}

fn transport(protocol: &str) -> &'static str {
    if protocol == "UDP" { "udp" } else { "tcp" }
}

fn health_check(service: &ServiceView) -> (&str, i64) {
    let protocol = annotation(service, "healthcheck-protocol");
    let interval = annotation(service, "healthcheck-interval").and_then(|text| text.parse().ok());
    let default = if service.is_local() {
        ("HTTP", 10)
    } else {
        ("TCP", 30)
    };
    (protocol.unwrap_or(default.0), interval.unwrap_or(default.1))
}

/// The name of the target group of a port. In place of the real hash: what goes into it.
pub fn target_group(service: &ServiceView, port: &ServicePort) -> String {
    let (check, interval) = health_check(service);
    let traffic = if protocol(service, port) == "UDP" {
        "UDP"
    } else {
        "TCP"
    };
    let (id, from, to) = (&service.id, port.port, port.node_port);
    format!(
        "k8s-{}-{}-{from}-{to}-{traffic}-{check}-{interval}",
        id.namespace, id.name
    )
}

fn ranges(service: &ServiceView) -> Vec<String> {
    let ranges = service.source_ranges.iter().flatten().map(ToString::to_string);
    let ranges: Vec<_> = ranges.collect();
    if ranges.is_empty() {
        vec!["0.0.0.0/0".to_owned()]
    } else {
        ranges
    }
}

fn rules(service: &ServiceView, ports: impl Fn(&ServicePort) -> u16, description: &str) -> Vec<Entry> {
    let ports = service
        .ports
        .iter()
        .map(|port| (transport(protocol(service, port)), ports(port), ports(port)));
    let rules = ports.chain([("icmp", 3, 4)]).flat_map(|(protocol, from, to)| {
        ranges(service).into_iter().map(move |range| Rule {
            protocol,
            from,
            to,
            range,
            // One rule for path MTU discovery serves all load balancers.
            description: match protocol {
                "icmp" if !description.is_empty() => format!("{RULES}mtu"),
                _ => description.to_owned(),
            },
        })
    });
    rules.map(Entry::Rule).collect()
}

fn is_managed(service: &ServiceView) -> bool {
    annotation(service, "managed-group").is_some()
}

impl Nlb {
    fn object(service: &ServiceView, cluster: &ClusterView, kind: Kind, key: String) -> Object<Kind> {
        let owner = cluster.ownership_tag.for_create();
        let tags = [
            Entry::tag(CLUSTER_TAG, "owned"),
            Entry::tag(SERVICE_TAG, service_tag(&service.id)),
        ];
        let tags = tags
            .into_iter()
            .chain(owner.map(|tag| Entry::tag(OWNER_TAG, tag.as_str())));
        Object {
            service: Some(service.id.clone()),
            ..Object::new(kind, key).entries("tag", tags)
        }
    }

    /// All objects of a Service that gets what it asks for.
    fn balancer(service: &ServiceView, cluster: &ClusterView) -> Vec<Object<Kind>> {
        let name = name_of(&service.id);
        let object = |kind, key| Self::object(service, cluster, kind, key);
        let flag = |name| annotation(service, name).unwrap_or("false").to_owned();
        let group = format!("k8s-{}-{}", service.id.namespace, service.id.name);
        let mut objects = Vec::new();
        if is_managed(service) {
            let description = "[k8s] Managed SecurityGroup for LoadBalancer";
            let rules = rules(service, |port| port.port, "");
            let object = object(Kind::Group, group.clone());
            objects.push(object.with("description", description).entries("rule", rules));
        }
        let is_internal = flag("internal") != "false";
        let mut balancer = object(Kind::Balancer, name.clone())
            .with(
                "scheme",
                if is_internal {
                    "internal"
                } else {
                    "internet-facing"
                },
            )
            .with(
                "load_balancing.cross_zone.enabled",
                flag("cross-zone-load-balancing-enabled"),
            )
            .with("access_logs.s3.enabled", flag("access-log-enabled"));
        if is_managed(service) {
            balancer = balancer.with("security_groups", vec![group]);
        }
        objects.push(balancer);
        let (check, interval) = health_check(service);
        for port in &service.ports {
            let (protocol, group) = (protocol(service, port), target_group(service, port));
            let targets = cluster.nodes.eligible().filter_map(|node| {
                let (_, instance) = node.view.provider_id.as_deref()?.rsplit_once('/')?;
                let (instance, port) = (instance.to_owned(), port.node_port);
                Some(Entry::Target { instance, port })
            });
            let mut target_group = object(Kind::TargetGroup, group.clone())
                .with("port", port.node_port)
                .with("protocol", if protocol == "UDP" { "UDP" } else { "TCP" })
                .with("health_check_protocol", check)
                .with("health_check_interval_seconds", interval)
                .with("health_check_port", "traffic-port")
                .with("healthy_threshold_count", 3);
            if let Some(value) = annotation(service, "preserve-client-ip") {
                target_group = target_group.with("preserve_client_ip.enabled", value);
            }
            if !cluster.nodes.keeps_members() {
                target_group = target_group.entries("target", targets);
            }
            let certificates: Vec<_> = certificate(service)
                .filter(|_| protocol == "TLS")
                .into_iter()
                .collect();
            let listener = object(Kind::Listener, port.port.to_string())
                .with("transport", transport(protocol))
                .with("protocol", protocol)
                .with("certificates", certificates)
                .with("target_group", group);
            objects.push(target_group);
            objects.push(Object {
                parent: Some(name.clone()),
                ..listener
            });
        }
        objects
    }
}

impl PartModel for Nlb {
    type Key = Key;
    type Directory = Directory;
    type Inputs = ();
    /// The name of the load balancer.
    type Facts = String;
    type Desired = DesiredPart;
    type Observed = Objects<Kind>;
    type Change = objects::Change<Kind>;
    type Reply = objects::Reply<Kind>;

    fn provider(&self) -> &'static str {
        "aws"
    }

    fn claims(&self, _: &ServiceView) -> Claim {
        Claim::Ours
    }

    fn kind(&self, key: &Key) -> &'static str {
        match key {
            Key::Balancer(_) => "lb",
            Key::NodeGroups => "node-sg",
        }
    }

    fn parts(&self, service: &ServiceView, _: &ClusterView, directory: &Directory) -> Parts<Key> {
        let name = name_of(&service.id);
        let (balancer, tag) = (Key::Balancer(name.clone()), service_tag(&service.id));
        let is_tagged = directory.tagged.contains(&tag);
        let is_ruled = directory.ruled.contains(&name);
        let tagged = is_tagged.then_some(balancer.clone()).into_iter();
        Parts {
            named: vec![balancer, Key::NodeGroups],
            tagged: tagged.chain(is_ruled.then_some(Key::NodeGroups)).collect(),
        }
    }

    fn orphans(&self, world: &ClusterSnapshot, directory: &Directory) -> Vec<Orphan<Key>> {
        let known: BTreeSet<_> = world
            .services
            .iter()
            .map(|service| service_tag(&service.id))
            .collect();
        let orphans = directory
            .balancers
            .iter()
            .filter(|(_, service, _)| !known.contains(service));
        orphans
            .map(|(name, _, is_ours)| Orphan {
                key: Key::Balancer(name.clone()),
                what: format!("load balancer {name}"),
                deletable: *is_ours,
            })
            .collect()
    }

    fn check(&self, _: &Key, members: &[Member<Self>], _: &ClusterView, (): &()) -> CheckResult {
        let mut result = CheckResult::default();
        for member in members
            .iter()
            .filter(|member| member.membership == Membership::Active)
        {
            let (check, _) = health_check(&member.service);
            let mut ports = BTreeSet::new();
            let problem = if !["TCP", "HTTP", "HTTPS"].contains(&check) {
                format!("health check protocol {check} is not supported")
            } else if !member.service.ports.iter().all(|port| ports.insert(port.port)) {
                "two ports have the same number".to_owned()
            } else {
                continue;
            };
            let error = Error::new(ErrorKind::InvalidSpec, problem);
            result.refused.push((member.service.id.clone(), error));
        }
        result
    }

    fn desired(&self, key: &Key, members: &[Member<Self>], cluster: &ClusterView, (): &()) -> DesiredPart {
        let with =
            |wanted: fn(&Membership) -> bool| members.iter().filter(move |member| wanted(&member.membership));
        let active = with(|membership| *membership == Membership::Active);
        let frozen = with(|membership| matches!(membership, Membership::Frozen(_)));
        let objects = match key {
            Key::Balancer(_) => active
                .flat_map(|member| Self::balancer(&member.service, cluster))
                .collect(),
            Key::NodeGroups => {
                let rules = active.flat_map(|member| {
                    let description = format!("{RULES}client={}", name_of(&member.service.id));
                    rules(&member.service, |port| port.node_port, &description)
                });
                let group = Object::new(Kind::NodeGroup, "sg-nodes").entries("rule", rules);
                vec![Object {
                    if_present: true,
                    ..group
                }]
            }
        };
        DesiredPart {
            objects: Desired {
                objects,
                reason: "no Service needs it",
                ..Desired::default()
            },
            kept: frozen.map(|member| name_of(&member.service.id)).collect(),
        }
    }

    fn plan(&self, part: &DesiredPart, observed: &Objects<Kind>) -> Plan<objects::Change<Kind>> {
        let mut desired = part.objects.clone();
        if !part.kept.is_empty() {
            match desired.objects.as_slice() {
                [group] if group.kind == Kind::NodeGroup => {
                    let observed = observed.of(Kind::NodeGroup).flat_map(|group| group.set("rule"));
                    let kept = observed.filter(|entry| match entry {
                        Entry::Rule(Rule { description, .. }) => {
                            description.ends_with("mtu")
                                || part.kept.iter().any(|name| description.ends_with(name))
                        }
                        _ => false,
                    });
                    let rules = group.set("rule").iter().chain(kept).cloned();
                    desired.objects = vec![group.clone().entries("rule", rules)];
                }
                // The one member keeps everything that it has.
                _ => return Plan::default(),
            }
        }
        let balancer = observed.of(Kind::Balancer).next();
        if balancer.is_some_and(|balancer| balancer.foreign.is_some()) {
            // Listeners and target groups are of no use without it.
            desired.objects.retain(|object| object.kind == Kind::Balancer);
        }
        desired.diff_and_adopt(
            observed,
            |entry| matches!(entry, Entry::Tag { key, .. } if key == OWNER_TAG),
        )
    }

    fn fold(
        &self,
        _: &Key,
        change: &objects::Change<Kind>,
        reply: Option<&objects::Reply<Kind>>,
        observed: &mut Objects<Kind>,
    ) {
        observed.fold(change, reply);
    }

    fn facts(
        &self,
        key: &Key,
        member: &Member<Self>,
        observed: &Objects<Kind>,
    ) -> Option<PartOutput<String>> {
        let mut output = PartOutput {
            facts: name_of(&member.service.id),
            effects: Effects::default(),
        };
        if member.membership == Membership::Leaving || *key == Key::NodeGroups {
            return Some(output);
        }
        let balancer = observed.get(Kind::Balancer, &output.facts)?;
        if balancer.foreign.is_some() {
            return None;
        }
        let hostname = balancer.text("dns_name");
        if !hostname.is_empty() {
            output.effects.ingress = Some(vec![Ingress {
                hostname: Some(hostname.into()),
                ..Ingress::default()
            }]);
        }
        Some(output)
    }
}

/// Who a load balancer belongs to, by its tags.
pub fn ownership(tag: &OwnershipTag) -> impl Fn(&Object<Kind>) -> Ownership {
    move |object| {
        let owners = object.set("tag").iter().filter_map(|entry| match entry {
            Entry::Tag { key, value } if key == OWNER_TAG => Some(value.as_str()),
            _ => None,
        });
        tag.ownership(owners)
    }
}
