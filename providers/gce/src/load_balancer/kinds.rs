//! The kinds of objects, and the parts that they belong to.

use std::fmt;

use ccm_core::plan::{
    objects::{self, Policy, Scalar, Schema, Set, attributes},
    part_keys,
};

use super::{fields, names};
use crate::client::last_component;

/// The set of the instances of a target pool or an instance group.
pub(crate) const INSTANCES: &str = "instance";
/// The most instances of one call that adds or removes some.
const BATCH: usize = 1000;

part_keys! {
    /// The parts.
    pub(crate) enum PartKey {
        /// The legacy health check that external Services share, and its firewall rule.
        NodeHttpCheck = "http-check";
        /// The instance group in this zone.
        Group(String) = "group/";
        /// The health check that internal Services share, and its firewall rule.
        NodeCheck = "check";
        /// The shared backend service with this name.
        SharedBackend(String) = "backend/";
        /// The load balancer with this name, external or internal, and everything that only it uses.
        Balancer(String) = "lb/";
    }
}

/// A kind needs those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ObjectKind {
    /// The instance group of a zone, by zone.
    Group,
    /// A regional address that is reserved while a load balancer has no forwarding rule.
    Address,
    /// The firewall rule for a health check.
    CheckFirewall,
    /// A legacy health check, of target pools.
    HttpCheck,
    /// A health check, of backend services.
    Check,
    /// A regional backend service.
    Backend,
    /// A target pool.
    Pool,
    /// The firewall rule for the traffic of a load balancer.
    Firewall,
    /// A forwarding rule.
    Rule,
    /// The firewall rule that denies all other traffic to a load balancer. After those that admit traffic.
    DenyFirewall,
}

/// An object of the project.
pub(crate) type Object = objects::Object<ObjectKind>;
/// The objects of a part.
pub(crate) type Objects = objects::Objects<ObjectKind>;
/// A change of a part.
pub(crate) type ObjectChange = objects::ObjectChange<ObjectKind>;

/// An instance as a member of a target pool or an instance group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InstanceEntry {
    pub(crate) zone: String,
    pub(crate) name: String,
}

impl InstanceEntry {
    pub(crate) fn new(zone: &str, name: &str) -> Self {
        Self {
            zone: zone.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The instance in a URL or resource path.
    pub(crate) fn of_link(link: &str) -> Option<Self> {
        let (_, rest) = link.rsplit_once("/zones/")?;
        let (zone, name) = rest.split_once("/instances/")?;
        Some(Self::new(zone, name))
    }
}

impl fmt::Display for InstanceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.zone, self.name)
    }
}

impl objects::KeyedEntry for InstanceEntry {
    type Key = Self;

    fn key(&self) -> Self {
        self.clone()
    }
}

const fn instances(add: &'static str, remove: &'static str) -> Set<ObjectKind> {
    Set {
        batch: BATCH,
        ..Set::new(INSTANCES, add, remove)
    }
}

static GROUP: Schema<ObjectKind> = Schema {
    sets: &[instances(
        "instanceGroups_addInstances",
        "instanceGroups_removeInstances",
    )],
    ..Schema::new("instance group", "instanceGroups_insert", "instanceGroups_delete")
};

static ADDRESS: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] fields::DESCRIPTION;
        [Policy::Replace, Scalar::Text("EXTERNAL")] fields::SCHEME;
        [Policy::Replace] fields::TIER, fields::SUBNETWORK, fields::ADDRESS;
    },
    ..Schema::new("address", "addresses_insert", "addresses_delete")
};

const FIREWALL_CHANGE: Policy<&str> = Policy::Update("firewalls_patch");

static FIREWALL: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] fields::NETWORK;
        [FIREWALL_CHANGE, Scalar::Text("")] fields::DESCRIPTION;
        [FIREWALL_CHANGE, Scalar::List] fields::SOURCES, fields::DESTINATIONS, fields::TARGET_TAGS, fields::ALLOWED, fields::DENIED;
        [FIREWALL_CHANGE, Scalar::Number(1000)] fields::PRIORITY;
    },
    ..Schema::new("firewall rule", "firewalls_insert", "firewalls_delete")
};

const HTTP_CHECK_CHANGE: Policy<&str> = Policy::Update("httpHealthChecks_patch");

static HTTP_CHECK: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [HTTP_CHECK_CHANGE, Scalar::Text("")] fields::DESCRIPTION;
        [HTTP_CHECK_CHANGE] fields::PORT, fields::PATH, fields::INTERVAL, fields::TIMEOUT, fields::HEALTHY, fields::UNHEALTHY;
    },
    ..Schema::new("HTTP health check", "httpHealthChecks_insert", "httpHealthChecks_delete")
};

const CHECK_CHANGE: Policy<&str> = Policy::Update("healthChecks_patch");

static CHECK: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [CHECK_CHANGE, Scalar::Text("")] fields::DESCRIPTION;
        [CHECK_CHANGE] fields::PORT, fields::PATH, fields::INTERVAL, fields::TIMEOUT, fields::HEALTHY, fields::UNHEALTHY;
    },
    ..Schema::new("health check", "healthChecks_insert", "healthChecks_delete")
};

const BACKEND_CHANGE: Policy<&str> = Policy::Update("backendServices_patch");

static BACKEND: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::Replace, Scalar::Text("EXTERNAL")] fields::SCHEME;
        // Not while a forwarding rule refers to it.
        [BACKEND_CHANGE] fields::PROTOCOL;
        [BACKEND_CHANGE, Scalar::Text("")] fields::DESCRIPTION;
        [BACKEND_CHANGE, Scalar::Text("NONE")] fields::AFFINITY;
        [BACKEND_CHANGE] fields::HEALTH_CHECK;
        [BACKEND_CHANGE, Scalar::List] fields::GROUPS;
    },
    ..Schema::new("backend service", "backendServices_insert", "backendServices_delete")
};

static POOL: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] fields::DESCRIPTION;
        [Policy::Replace, Scalar::Text("NONE")] fields::AFFINITY;
        [Policy::Replace] fields::HEALTH_CHECK;
    },
    sets: &[Set {
        created_with_object: true,
        ..instances("targetPools_addInstance", "targetPools_removeInstance")
    }],
    ..Schema::new("target pool", "targetPools_insert", "targetPools_delete")
};

static RULE: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] fields::DESCRIPTION, fields::NETWORK;
        [Policy::Replace, Scalar::Text("EXTERNAL")] fields::SCHEME;
        [Policy::Replace] fields::ADDRESS, fields::PROTOCOL, fields::PORT_RANGE, fields::TARGET, fields::BACKEND_SERVICE,
            fields::SUBNETWORK, fields::TIER;
        [Policy::Replace, Scalar::List] fields::PORTS;
        [Policy::Replace, Scalar::Bool(false)] fields::ALL_PORTS;
        [Policy::Update("forwardingRules_patch"), Scalar::Bool(false)] fields::GLOBAL_ACCESS;
    },
    ..Schema::new("forwarding rule", "forwardingRules_insert", "forwardingRules_delete")
};

impl objects::Kind for ObjectKind {
    type Entry = InstanceEntry;
    type Update = &'static str;

    /// A forwarding rule comes last, since it admits the traffic: everything else is ready then.
    fn references(self, object: &Object) -> Option<Vec<(Self, String)>> {
        let key = object.key.as_str();
        let balancer = || names::owner(key).to_owned();
        let named_by = |field| last_component(object.text(field)).to_owned();
        let references = match self {
            Self::Group | Self::Address | Self::HttpCheck | Self::Check => Vec::new(),
            Self::CheckFirewall | Self::Firewall => vec![(Self::Address, balancer())],
            Self::Backend => vec![(Self::Check, named_by(fields::HEALTH_CHECK))],
            Self::Pool => vec![(Self::HttpCheck, named_by(fields::HEALTH_CHECK))],
            Self::Rule => vec![
                (Self::Address, key.to_owned()),
                (Self::Firewall, names::firewall(key)),
                (Self::Pool, named_by(fields::TARGET)),
                (Self::Backend, named_by(fields::BACKEND_SERVICE)),
            ],
            // Without those that admit traffic, it would deny all.
            Self::DenyFirewall => vec![
                (Self::Address, balancer()),
                (Self::Firewall, names::firewall(&balancer())),
                (Self::CheckFirewall, names::http_check_firewall(&balancer())),
            ],
        };
        Some(references.into_iter().filter(|(_, key)| !key.is_empty()).collect())
    }

    fn schema(self) -> &'static Schema<Self> {
        match self {
            Self::Group => &GROUP,
            Self::Address => &ADDRESS,
            Self::CheckFirewall | Self::Firewall | Self::DenyFirewall => &FIREWALL,
            Self::HttpCheck => &HTTP_CHECK,
            Self::Check => &CHECK,
            Self::Backend => &BACKEND,
            Self::Pool => &POOL,
            Self::Rule => &RULE,
        }
    }
}

impl ObjectKind {
    /// Whether the object is a firewall rule.
    pub(crate) fn is_firewall(self) -> bool {
        matches!(self, Self::CheckFirewall | Self::Firewall | Self::DenyFirewall)
    }
}
