//! The kinds of objects, and the parts that they belong to.

use std::fmt;

use ccm_core::plan::{
    objects::{self, Policy, Scalar, Schema, Set, SetOrder, attributes},
    part_keys,
};

use crate::site::Tags;

/// The prefix of the descriptions of our rules in the security groups of nodes.
pub(crate) const RULE_PREFIX: &str = "kubernetes.io/rule/nlb/";
/// The description of the rules for path MTU discovery, which serve all load balancers.
pub(crate) const MTU: &str = "kubernetes.io/rule/nlb/mtu";
/// The tag with this cluster's [`ClusterTag`](ccm_core::load_balancer::ClusterTag).
pub(crate) const OWNER_TAG: &str = "cloud-controller-manager/cluster";

/// The set of tags.
pub(crate) const TAGS: &str = "tag";
/// The set of a target group's targets.
pub(crate) const TARGETS: &str = "target";
/// The set of a security group's rules.
pub(crate) const RULES: &str = "rule";
/// The set of a TLS listener's certificates beside the default one.
pub(crate) const CERTIFICATES: &str = "certificate";
/// The set of a classic load balancer's instances.
pub(crate) const INSTANCES: &str = "instance";
/// The set of a classic load balancer's ports whose targets get the PROXY protocol.
pub(crate) const PROXY_PORTS: &str = "port with the PROXY protocol";

part_keys! {
    /// The parts.
    pub(crate) enum Key {
        /// The load balancer with this name, and everything that only it uses.
        Balancer(String) = "lb/";
        /// The rules in the security groups of all nodes.
        NodeGroups = "node-sg";
    }
}

/// A kind needs those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
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
pub(crate) type Object = objects::Object<Kind>;
/// The objects of a part.
pub(crate) type Objects = objects::Objects<Kind>;
/// A change of a part.
pub(crate) type Change = objects::Change<Kind>;

/// An entry of a set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
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
        let rest = self.description.strip_prefix(RULE_PREFIX)?;
        let client = rest.strip_prefix("client=");
        client.or_else(|| rest.strip_prefix("health="))
    }

    /// Whether a classic load balancer with this security group may reach the nodes by it.
    pub(crate) fn is_from_group(&self) -> bool {
        // In a plan, a group that does not exist yet is referenced by its name.
        self.protocol == "-1" && !self.source.contains('/') && !self.source.starts_with("pl-")
    }
}

impl Entry {
    pub(crate) fn tag(key: &str, value: &str) -> Self {
        let (key, value) = (key.to_owned(), value.to_owned());
        Self::Tag { key, value }
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
        let Self::Rule(rule) = self else { return None };
        Some(rule)
    }
}

impl fmt::Display for Entry {
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

impl objects::Entry for Entry {
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
    let tags = object.set(TAGS).iter().filter_map(Entry::as_tag);
    tags.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The texts in an attribute that is a list.
pub(crate) fn texts<T: FromIterator<String>>(object: &Object, name: &str) -> T {
    object.texts(name).into_iter().map(str::to_owned).collect()
}

/// The ID of a security group by its name.
pub(crate) fn group_id(objects: &Objects, name: &str) -> String {
    objects.id(Kind::Group, name).unwrap_or(name).to_owned()
}

/// Tags, which are never removed.
const fn tags(add: &'static str) -> Set<Kind> {
    Set {
        batch: 50,
        created_with_object: true,
        order: SetOrder::Around,
        is_removable: |_| false,
        ..Set::new(TAGS, add, "")
    }
}

const fn set(name: &'static str, [add, remove]: [&'static str; 2], batch: usize) -> Set<Kind> {
    Set {
        batch,
        ..Set::new(name, add, remove)
    }
}

const AUTHORIZE: [&str; 2] = ["AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"];
const RULE_SET: Set<Kind> = set(RULES, AUTHORIZE, 50);

static GROUP: Schema<Kind> = Schema {
    attributes: attributes! { [Policy::CreateOnly] "description"; },
    sets: &[tags("CreateTags"), RULE_SET],
    ..Schema::new("security group", "CreateSecurityGroup", "DeleteSecurityGroup")
};

static NODE_GROUP: Schema<Kind> = Schema {
    sets: &[Set {
        is_removable: |entry| {
            let rule = entry.rule();
            rule.is_some_and(|rule| rule.description.starts_with(RULE_PREFIX) || rule.is_from_group())
        },
        ..RULE_SET
    }],
    ..Schema::new("security group", "", "")
};

const CHECK: Policy = Policy::Update("ModifyTargetGroup");
/// The call that changes the attributes of a target group that the annotation sets.
pub(crate) const TARGET_GROUP_ATTRIBUTE: Policy = Policy::Update("ModifyTargetGroupAttributes");

static TARGET_GROUP: Schema<Kind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] "port", "protocol";
        [CHECK] "health_check_protocol", "health_check_interval", "health_check_timeout";
        [CHECK, Scalar::Text("traffic-port")] "health_check_port";
        [CHECK] "health_check_path", "health_check_codes", "healthy_threshold", "unhealthy_threshold";
        [TARGET_GROUP_ATTRIBUTE, Scalar::Text("true"); after_create] "preserve_client_ip.enabled";
        [TARGET_GROUP_ATTRIBUTE, Scalar::Text("false"); after_create] "proxy_protocol_v2.enabled";
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
pub(crate) const BALANCER_ATTRIBUTE: Policy = Policy::Update("ModifyLoadBalancerAttributes");

static BALANCER: Schema<Kind> = Schema {
    attributes: attributes! {
        [Policy::Blocked, Scalar::Text("internet-facing")] "scheme";
        [Policy::Blocked, Scalar::Text("ipv4")] "ip_address_type";
        [Policy::Update("SetSubnets"), Scalar::List] "subnets";
        [Policy::CreateOnly] "eip_allocations", "private_addresses";
        [Policy::Update("SetSecurityGroups"), Scalar::List] "security_groups";
        [BALANCER_ATTRIBUTE, Scalar::Text("false"); after_create]
            "load_balancing.cross_zone.enabled", "access_logs.s3.enabled", "deletion_protection.enabled",
            "ipv6.deny_all_igw_traffic", "zonal_shift.config.enabled";
        [BALANCER_ATTRIBUTE, Scalar::Text(""); after_create] "access_logs.s3.bucket", "access_logs.s3.prefix";
        [BALANCER_ATTRIBUTE, Scalar::Text("any_availability_zone"); after_create] "dns_record.client_routing_policy";
        [BALANCER_ATTRIBUTE, Scalar::Text("0"); after_create] "secondary_ips.auto_assigned.per_subnet";
    },
    sets: &[tags("AddTags")],
    ..Schema::new("load balancer", "CreateLoadBalancer", "DeleteLoadBalancer")
};

const CERTIFY: [&str; 2] = ["AddListenerCertificates", "RemoveListenerCertificates"];
const LISTENER_CHANGE: Policy = Policy::Update("ModifyListener");

static LISTENER: Schema<Kind> = Schema {
    parent: Some(Kind::Balancer),
    deleted_with_parent: true,
    attributes: attributes! {
        // A listener changes between TCP and TLS in place.
        [Policy::Replace] "transport";
        [LISTENER_CHANGE] "protocol", "certificate", "ssl_policy", "target_group";
        [LISTENER_CHANGE, Scalar::Text("None")] "alpn_policy";
    },
    sets: &[tags("AddTags"), set(CERTIFICATES, CERTIFY, 20)],
    ..Schema::new("listener", "CreateListener", "DeleteListener")
};

const CLASSIC_ATTRIBUTE: Policy = Policy::Update("ClassicModifyLoadBalancerAttributes");
const PROXY: &str = "SetLoadBalancerPoliciesForBackendServer";
const CLASSIC_REGISTER: [&str; 2] = [
    "RegisterInstancesWithLoadBalancer",
    "DeregisterInstancesFromLoadBalancer",
];

static CLASSIC: Schema<Kind> = Schema {
    attributes: attributes! {
        [Policy::Blocked, Scalar::Text("internet-facing")] "scheme";
        [Policy::Update("AttachLoadBalancerToSubnets"), Scalar::List] "subnets";
        [Policy::Update("ApplySecurityGroupsToLoadBalancer"), Scalar::List] "security_groups";
        [Policy::Update("ConfigureHealthCheck"); after_create] "health_check", "healthy_threshold",
            "unhealthy_threshold", "health_check_timeout", "health_check_interval";
        [CLASSIC_ATTRIBUTE, Scalar::Bool(false); after_create] "cross_zone", "access_log", "draining";
        [CLASSIC_ATTRIBUTE, Scalar::Text(""); after_create] "access_log_bucket", "access_log_prefix";
        [CLASSIC_ATTRIBUTE; after_create] "access_log_interval", "draining_timeout";
        [CLASSIC_ATTRIBUTE, Scalar::Number(60); after_create] "idle_timeout";
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

static CLASSIC_LISTENER: Schema<Kind> = Schema {
    parent: Some(Kind::Classic),
    created_with_parent: true,
    deleted_with_parent: true,
    attributes: attributes! {
        [Policy::Replace] "protocol", "instance_protocol", "instance_port", "certificate";
        [Policy::Update("SetLoadBalancerPoliciesOfListener"); after_create] "policy";
    },
    ..Schema::new("listener", "CreateLoadBalancerListeners", "DeleteLoadBalancerListeners")
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
            Self::Classic => &CLASSIC,
            Self::ClassicListener => &CLASSIC_LISTENER,
        }
    }
}
