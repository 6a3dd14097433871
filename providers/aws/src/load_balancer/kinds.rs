//! The kinds of objects, and the parts that they belong to.

use std::fmt;

use ccm_core::plan::{
    objects::{self, Policy, Scalar, Schema, Set, SetOrder, attributes},
    part_keys,
};

use super::{
    fields,
    updates::{EntrySet, ObjectUpdate},
};
use crate::site::Tags;

/// The prefix of the descriptions of our rules in the security groups of nodes.
pub(crate) const RULE_PREFIX: &str = "kubernetes.io/rule/nlb/";
/// The description of the rules for path MTU discovery, which serve all load balancers.
pub(crate) const MTU: &str = "kubernetes.io/rule/nlb/mtu";
/// The tag with this cluster's [`ClusterTag`](ccm_core::load_balancer::ClusterTag).
pub(crate) const OWNER_TAG: &str = "cloud-controller-manager/cluster";
/// The tag of an adopted load balancer with the values of annotations that upstream does not read.
pub(crate) const RECORD_TAG: &str = "cloud-controller-manager/adopted-annotations";
/// The tag with the names of the object's [named attributes](ObjectKind::named_attributes) that this program set.
pub(crate) const ATTRIBUTES_TAG: &str = "cloud-controller-manager/attributes";

/// The action that reads tags. Like the next two, it may be denied.
pub(crate) const DESCRIBE_TAGS: &str = "DescribeTags";
/// The action that reads the attributes of a target group.
pub(crate) const DESCRIBE_TARGET_GROUP_ATTRIBUTES: &str = "DescribeTargetGroupAttributes";
/// The action that reads a listener's certificates beside the default one.
pub(crate) const DESCRIBE_LISTENER_CERTIFICATES: &str = "DescribeListenerCertificates";

/// The set of tags.
pub(crate) const TAGS: &str = EntrySet::Tags.name();
/// The set of a target group's targets.
pub(crate) const TARGETS: &str = EntrySet::Targets.name();
/// The set of a security group's rules.
pub(crate) const RULES: &str = EntrySet::Rules.name();
/// The set of a TLS listener's certificates beside the default one.
pub(crate) const CERTIFICATES: &str = EntrySet::Certificates.name();
/// The set of a classic load balancer's instances.
pub(crate) const INSTANCES: &str = EntrySet::Instances.name();
/// The set of a classic load balancer's ports whose targets get the PROXY protocol.
pub(crate) const PROXY_PORTS: &str = EntrySet::ProxyPorts.name();

part_keys! {
    /// The parts.
    pub(crate) enum PartKey {
        /// The load balancer with this name, and everything that only it uses.
        Balancer(String) = "lb/";
        /// The rules in the security groups of all nodes.
        NodeGroups = "node-sg";
    }
}

/// A kind needs those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ObjectKind {
    /// The security group of a load balancer, by name.
    Group,
    /// A security group of nodes, by ID. Never created or deleted.
    NodeGroup,
    /// By name, which contains a hash of the attributes that cannot be changed.
    TargetGroup,
    /// A network load balancer, by name.
    Balancer,
    /// By port, which identifies a listener of a network load balancer.
    Listener,
    /// A classic load balancer, by name.
    Classic,
    /// A listener of a classic load balancer, by port.
    ClassicListener,
}

/// An object of the account.
pub(crate) type Object = objects::Object<ObjectKind>;
/// The objects of a part.
pub(crate) type Objects = objects::Objects<ObjectKind>;
/// A change of a part.
pub(crate) type ObjectChange = objects::ObjectChange<ObjectKind>;

/// An entry of a set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SetEntry {
    /// A tag.
    Tag { key: String, value: String },
    /// An instance at a port.
    Target { instance: String, port: u16 },
    /// An ingress rule.
    Rule(Rule),
    /// A certificate's ARN, an instance's ID or a port.
    Name(String),
}

/// An ingress rule. Its description does not distinguish it: EC2 refuses two rules that differ only in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    /// `tcp`, `udp`, `icmp`, `icmpv6` or `-1`.
    pub(crate) protocol: String,
    /// The first port or the ICMP type; -1 for all.
    pub(crate) from: i32,
    /// The last port or the ICMP code; -1 for all.
    pub(crate) to: i32,
    /// A CIDR, or the ID of a security group or of a prefix list.
    pub(crate) source: String,
    /// The description; may be empty.
    pub(crate) description: String,
}

impl Rule {
    pub(crate) fn new(protocol: &str, ports: (i32, i32), source: &str, description: &str) -> Self {
        Self {
            protocol: protocol.to_owned(),
            from: ports.0,
            to: ports.1,
            source: source.to_owned(),
            description: description.to_owned(),
        }
    }

    /// The rule that lets a client learn the path's MTU.
    pub(crate) fn mtu(source: &str, description: &str) -> Self {
        if source.contains(':') {
            Self::new("icmpv6", (2, 0), source, description)
        } else {
            Self::new("icmp", (3, 4), source, description)
        }
    }

    /// The same rule without its description.
    pub(crate) fn tuple(&self) -> Self {
        Self {
            description: String::new(),
            ..self.clone()
        }
    }

    /// The name of the network load balancer in its description.
    pub(crate) fn balancer(&self) -> Option<&str> {
        let purpose_and_name = self.description.strip_prefix(RULE_PREFIX)?;
        match purpose_and_name.split_once('=')? {
            ("client" | "health", name) => Some(name),
            _ => None,
        }
    }

    /// Whether a classic load balancer with this security group may reach the nodes by it.
    pub(crate) fn is_from_group(&self) -> bool {
        // In a plan, a group that does not exist yet is referenced by its name.
        self.protocol == "-1" && !self.source.contains('/') && !self.source.starts_with("pl-")
    }
}

impl SetEntry {
    pub(crate) fn tag(key: &str, value: &str) -> Self {
        Self::Tag {
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }

    /// Key and value of a tag.
    pub(crate) fn as_tag(&self) -> Option<(&str, &str)> {
        match self {
            Self::Tag { key, value } => Some((key, value)),
            _ => None,
        }
    }

    /// The rule.
    pub(crate) fn rule(&self) -> Option<&Rule> {
        match self {
            Self::Rule(rule) => Some(rule),
            _ => None,
        }
    }
}

impl fmt::Display for SetEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag { key, value } => write!(f, "{key}={value}"),
            Self::Target { instance, port } => write!(f, "{instance}:{port}"),
            Self::Name(name) => f.write_str(name),
            Self::Rule(rule) => match (rule.from, rule.to) {
                (-1, _) => write!(f, "{} from {}", rule.protocol, rule.source),
                (from, to) => write!(f, "{} {from}-{to} from {}", rule.protocol, rule.source),
            },
        }
    }
}

impl objects::KeyedEntry for SetEntry {
    type Key = String;

    fn key(&self) -> String {
        match self {
            Self::Tag { key, .. } => key.clone(),
            entry => entry.to_string(),
        }
    }

    fn is_as(&self, desired: &Self) -> bool {
        match (self, desired) {
            (Self::Rule(rule), Self::Rule(desired)) => {
                !rule.description.starts_with(RULE_PREFIX) || rule.description == desired.description
            }
            (Self::Tag { .. }, _) => self == desired,
            _ => true,
        }
    }
}

/// The tags of an object.
pub(crate) fn tag_map(object: &Object) -> Tags {
    let tags = object.set(TAGS).iter().filter_map(SetEntry::as_tag);
    tags.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The texts in an attribute that is a list.
pub(crate) fn texts<T: FromIterator<String>>(object: &Object, name: &str) -> T {
    object.texts(name).into_iter().map(str::to_owned).collect()
}

/// The ID of a security group by its name.
pub(crate) fn group_id(objects: &Objects, name: &str) -> String {
    objects.id(ObjectKind::Group, name).unwrap_or(name).to_owned()
}

/// Tags, which are never removed.
const fn tags(add: &'static str) -> Set<ObjectKind> {
    Set {
        batch: 50,
        created_with_object: true,
        order: SetOrder::Around,
        is_removable: |_| false,
        ..Set::new(TAGS, add, "")
    }
}

const fn set(name: &'static str, [add, remove]: [&'static str; 2], batch: usize) -> Set<ObjectKind> {
    Set {
        batch,
        ..Set::new(name, add, remove)
    }
}

const AUTHORIZE: [&str; 2] = ["AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"];
const RULE_SET: Set<ObjectKind> = set(RULES, AUTHORIZE, 50);

static GROUP: Schema<ObjectKind> = Schema {
    attributes: attributes! { [Policy::CreateOnly] fields::DESCRIPTION; },
    sets: &[tags("CreateTags"), RULE_SET],
    ..Schema::new("security group", "CreateSecurityGroup", "DeleteSecurityGroup")
};

static NODE_GROUP: Schema<ObjectKind> = Schema {
    sets: &[Set {
        is_removable: |entry| {
            entry
                .rule()
                .is_some_and(|rule| rule.description.starts_with(RULE_PREFIX) || rule.is_from_group())
        },
        ..RULE_SET
    }],
    ..Schema::new("security group", "", "")
};

const CHECK: Policy<ObjectUpdate> = ObjectUpdate::TargetGroup.policy();
/// The call that changes the attributes of a target group that the annotation sets.
pub(crate) const TARGET_GROUP_ATTRIBUTE: Policy<ObjectUpdate> = ObjectUpdate::TargetGroupAttributes.policy();

static TARGET_GROUP: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] fields::PORT, fields::PROTOCOL;
        [CHECK] fields::HEALTH_CHECK_PROTOCOL, fields::HEALTH_CHECK_INTERVAL, fields::HEALTH_CHECK_TIMEOUT;
        [CHECK, Scalar::Text("traffic-port")] fields::HEALTH_CHECK_PORT;
        [CHECK] fields::HEALTH_CHECK_PATH, fields::HEALTH_CHECK_CODES, fields::HEALTHY_THRESHOLD, fields::UNHEALTHY_THRESHOLD;
        [TARGET_GROUP_ATTRIBUTE, Scalar::Text("true"); after_create] fields::PRESERVE_CLIENT_IP;
        [TARGET_GROUP_ATTRIBUTE, Scalar::Text("false"); after_create] fields::PROXY_PROTOCOL_V2;
    },
    sets: &[
        tags("AddTags"),
        Set {
            batch: 200,
            order: SetOrder::RemoveFirst,
            ..Set::new(TARGETS, "RegisterTargets", "DeregisterTargets")
        },
    ],
    ..Schema::new("target group", "CreateTargetGroup", "DeleteTargetGroup")
};

/// The call that changes the attributes of a network load balancer that the annotation sets.
pub(crate) const BALANCER_ATTRIBUTE: Policy<ObjectUpdate> = ObjectUpdate::LoadBalancerAttributes.policy();

static BALANCER: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::Blocked, Scalar::Text("internet-facing")] fields::SCHEME;
        [Policy::Blocked, Scalar::Text("ipv4")] fields::IP_ADDRESS_TYPE;
        [ObjectUpdate::LoadBalancerSubnets.policy(), Scalar::List] fields::SUBNETS;
        [Policy::CreateOnly] fields::EIP_ALLOCATIONS, fields::PRIVATE_ADDRESSES;
        [ObjectUpdate::LoadBalancerSecurityGroups.policy(), Scalar::List] fields::SECURITY_GROUPS;
        [BALANCER_ATTRIBUTE, Scalar::Text("false"); after_create]
            fields::CROSS_ZONE_ENABLED, fields::ACCESS_LOGS_ENABLED, fields::DELETION_PROTECTION,
            fields::DENY_IGW_TRAFFIC, fields::ZONAL_SHIFT;
        [BALANCER_ATTRIBUTE, Scalar::Text(""); after_create] fields::ACCESS_LOGS_BUCKET, fields::ACCESS_LOGS_PREFIX;
        [BALANCER_ATTRIBUTE, Scalar::Text("any_availability_zone"); after_create] fields::CLIENT_ROUTING_POLICY;
        [BALANCER_ATTRIBUTE, Scalar::Text("0"); after_create] fields::SECONDARY_IPS;
    },
    sets: &[tags("AddTags")],
    ..Schema::new("load balancer", "CreateLoadBalancer", "DeleteLoadBalancer")
};

const CERTIFY: [&str; 2] = ["AddListenerCertificates", "RemoveListenerCertificates"];
const LISTENER_CHANGE: Policy<ObjectUpdate> = ObjectUpdate::Listener.policy();

static LISTENER: Schema<ObjectKind> = Schema {
    parent: Some(ObjectKind::Balancer),
    deleted_with_parent: true,
    attributes: attributes! {
        // A listener changes between TCP and TLS in place.
        [Policy::Replace] fields::TRANSPORT;
        [LISTENER_CHANGE] fields::PROTOCOL, fields::CERTIFICATE, fields::SSL_POLICY, fields::TARGET_GROUP;
        [LISTENER_CHANGE, Scalar::Text("None")] fields::ALPN_POLICY;
    },
    sets: &[tags("AddTags"), set(CERTIFICATES, CERTIFY, 20)],
    ..Schema::new("listener", "CreateListener", "DeleteListener")
};

const CLASSIC_ATTRIBUTE: Policy<ObjectUpdate> = ObjectUpdate::ClassicAttributes.policy();
const PROXY: &str = "SetLoadBalancerPoliciesForBackendServer";
const CLASSIC_REGISTER: [&str; 2] = [
    "RegisterInstancesWithLoadBalancer",
    "DeregisterInstancesFromLoadBalancer",
];

static CLASSIC: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::Blocked, Scalar::Text("internet-facing")] fields::SCHEME;
        [ObjectUpdate::ClassicSubnets.policy(), Scalar::List] fields::SUBNETS;
        [ObjectUpdate::ClassicSecurityGroups.policy(), Scalar::List] fields::SECURITY_GROUPS;
        [ObjectUpdate::ClassicHealthCheck.policy(); after_create] fields::HEALTH_CHECK, fields::HEALTHY_THRESHOLD,
            fields::UNHEALTHY_THRESHOLD, fields::HEALTH_CHECK_TIMEOUT, fields::HEALTH_CHECK_INTERVAL;
        [CLASSIC_ATTRIBUTE, Scalar::Bool(false); after_create] fields::CROSS_ZONE, fields::ACCESS_LOG, fields::DRAINING;
        [CLASSIC_ATTRIBUTE, Scalar::Text(""); after_create] fields::ACCESS_LOG_BUCKET, fields::ACCESS_LOG_PREFIX;
        [CLASSIC_ATTRIBUTE; after_create] fields::ACCESS_LOG_INTERVAL, fields::DRAINING_TIMEOUT;
        [CLASSIC_ATTRIBUTE, Scalar::Number(60); after_create] fields::IDLE_TIMEOUT;
    },
    sets: &[
        tags("ClassicAddTags"),
        set(INSTANCES, CLASSIC_REGISTER, 100),
        Set {
            order: SetOrder::Last,
            ..Set::new(PROXY_PORTS, PROXY, PROXY)
        },
    ],
    ..Schema::new("classic load balancer", "ClassicCreateLoadBalancer", "ClassicDeleteLoadBalancer")
};

static CLASSIC_LISTENER: Schema<ObjectKind> = Schema {
    parent: Some(ObjectKind::Classic),
    created_with_parent: true,
    deleted_with_parent: true,
    attributes: attributes! {
        [Policy::Replace] fields::PROTOCOL, fields::INSTANCE_PROTOCOL, fields::INSTANCE_PORT, fields::CERTIFICATE;
        [ObjectUpdate::ClassicListenerPolicies.policy(); after_create] fields::POLICY;
    },
    ..Schema::new("listener", "CreateLoadBalancerListeners", "DeleteLoadBalancerListeners")
};

impl ObjectKind {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 7] = [
        Self::Group,
        Self::NodeGroup,
        Self::TargetGroup,
        Self::Balancer,
        Self::Listener,
        Self::Classic,
        Self::ClassicListener,
    ];

    /// The attributes that are managed only while an annotation names them, since upstream leaves them alone
    /// otherwise, and people set them by hand.
    pub(crate) fn named_attributes(self) -> &'static [&'static str] {
        match self {
            Self::TargetGroup => &[
                fields::PRESERVE_CLIENT_IP,
                fields::PROXY_PROTOCOL_V2,
                fields::HEALTH_CHECK_TIMEOUT,
                fields::HEALTH_CHECK_CODES,
                fields::UNHEALTHY_THRESHOLD,
            ],
            Self::Balancer => &[
                fields::DELETION_PROTECTION,
                fields::DENY_IGW_TRAFFIC,
                fields::ZONAL_SHIFT,
                fields::CLIENT_ROUTING_POLICY,
                fields::SECONDARY_IPS,
            ],
            Self::Listener => &[fields::ALPN_POLICY, fields::SSL_POLICY],
            Self::Group | Self::NodeGroup | Self::Classic | Self::ClassicListener => &[],
        }
    }
}

impl objects::Kind for ObjectKind {
    type Entry = SetEntry;
    type Update = ObjectUpdate;

    fn schema(self) -> &'static Schema<Self> {
        match self {
            Self::Group => &GROUP,
            Self::NodeGroup => &NODE_GROUP,
            Self::TargetGroup => &TARGET_GROUP,
            Self::Balancer => &BALANCER,
            Self::Listener => &LISTENER,
            Self::Classic => &CLASSIC,
            Self::ClassicListener => &CLASSIC_LISTENER,
        }
    }
}
