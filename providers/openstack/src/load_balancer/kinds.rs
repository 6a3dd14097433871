//! Load balancers, the objects below them and their floating IPs.
//!
//! The names of attributes are those of Octavia's and Neutron's fields, except for [`OWNER`] and [`SUBNETS`].

use std::{fmt, net::IpAddr};

use ccm_core::{
    load_balancer::{Protocol, ServicePort, ServiceView},
    plan::objects::{
        self, Action, Attributes, KeyedEntry, Object, Policy, Scalar, Schema, Set, UpdateCall, attributes,
    },
};
use serde::Serialize;
use serde_json::Value;

use super::{
    fields,
    member::Member,
    responses::{FloatingIp, Listener, LoadBalancer},
};

/// The kinds of objects. Each kind needs those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
    /// By name.
    Balancer,
    /// By [`ListenerKey`].
    Listener,
    /// By the key of its listener; by its ID if it has no listener.
    Pool,
    /// By the key of its listener.
    Monitor,
    /// By address; empty if Neutron chooses the address.
    Floating,
}

/// A change of an existing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectUpdate {
    Balancer,
    /// Replaces the machines of a load balancer in ERROR.
    Failover,
    Listener,
    Pool,
    Monitor,
    Floating,
    /// Detaches a floating IP, and attaches this one in its place.
    ReplaceFloating,
}

impl UpdateCall for ObjectUpdate {
    fn label(self) -> &'static str {
        match self {
            Self::Balancer => "loadbalancer_update",
            Self::Failover => "loadbalancer_failover",
            Self::Listener => "listener_update",
            Self::Pool => "pool_update",
            Self::Monitor => "healthmonitor_update",
            Self::Floating => "floatingip_update",
            Self::ReplaceFloating => "floatingip_replace",
        }
    }
}

impl ObjectUpdate {
    const fn policy(self) -> Policy<Self> {
        Policy::Update(self)
    }

    /// The action that gives fields of an object other values.
    pub(crate) fn action(self, fields: Attributes) -> Action<ObjectKind> {
        Action::Update(self, fields)
    }
}

/// The set with the members of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberSet {
    /// Octavia accepts lists of them.
    Listed,
    /// Each member needs its own call.
    Single,
}

impl MemberSet {
    const ALL: [Self; 2] = [Self::Listed, Self::Single];

    /// The set, depending on `provider-requires-serial-api-calls`.
    pub(crate) const fn with(is_serial: bool) -> Self {
        if is_serial { Self::Single } else { Self::Listed }
    }

    /// The name of an entry in sentences, by which the plan engine knows the set.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Listed => "member",
            Self::Single => "single member",
        }
    }

    /// The set with this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name() == name)
    }
}

/// The identity of a listener within its load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ListenerKey {
    /// The transport protocol below the listener's protocol.
    pub(crate) transport: Protocol,
    pub(crate) port: u16,
}

impl fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.transport.as_str().to_lowercase(), self.port)
    }
}

impl ListenerKey {
    /// The listeners that the ports of a Service need.
    pub(crate) fn all_of(service: &ServiceView) -> impl Iterator<Item = Self> {
        service.ports.iter().map(Self::from)
    }

    /// The identity of a listener.
    pub(crate) fn of(listener: &Listener) -> Self {
        Self {
            transport: match listener.protocol.as_str() {
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                _ => Protocol::Tcp,
            },
            port: listener.protocol_port,
        }
    }
}

impl From<&ServicePort> for ListenerKey {
    fn from(port: &ServicePort) -> Self {
        Self {
            transport: port.protocol,
            port: port.port,
        }
    }
}

/// The Service of a listener: its tag. A listener of another Service is created again.
pub(crate) const OWNER: &str = "owner";
/// The subnets of a new floating IP, to be tried in order.
pub(crate) const SUBNETS: &str = "subnets";
/// Octavia's field with the virtual addresses in addition to the first one.
pub(crate) const ADDITIONAL_VIPS: &str = "additional_vips";
/// The subnets of a new virtual address, to be tried in order if the first choice has no free address.
pub(crate) const OTHER_VIP_SUBNETS: &str = "other_vip_subnets";
/// The same for the additional virtual address.
pub(crate) const OTHER_ADDITIONAL_SUBNETS: &str = "other_additional_subnets";
/// The attached floating IP that another one replaces: its address.
pub(crate) const REPLACED: &str = "replaced";
/// Neutron's answer to the last attempt to attach a floating IP.
pub(crate) const REFUSED: &str = "refused";

const LISTENER_UPDATE: Policy<ObjectUpdate> = ObjectUpdate::Listener.policy();

static BALANCER: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] fields::NAME, fields::TAGS, fields::DESCRIPTION, fields::PROVIDER, fields::FLAVOR_ID, fields::AVAILABILITY_ZONE, fields::VIP_PORT_ID,
            fields::VIP_SUBNET_ID, fields::VIP_NETWORK_ID, fields::VIP_ADDRESS, ADDITIONAL_VIPS, OTHER_VIP_SUBNETS, OTHER_ADDITIONAL_SUBNETS,
            fields::PROVISIONING_STATUS;
    },
    ..Schema::new("load balancer", "loadbalancer_create", "loadbalancer_delete")
};

static LISTENER: Schema<ObjectKind> = Schema {
    parent: Some(ObjectKind::Balancer),
    created_with_parent: true,
    deleted_with_parent: true,
    attributes: attributes! {
        [Policy::Replace] OWNER, fields::PROTOCOL;
        [Policy::CreateOnly] fields::PROTOCOL_PORT, fields::NAME;
        [LISTENER_UPDATE] fields::TAGS;
        [LISTENER_UPDATE, Scalar::Number(-1)] fields::CONNECTION_LIMIT;
        [LISTENER_UPDATE] fields::TIMEOUT_CLIENT_DATA, fields::TIMEOUT_MEMBER_CONNECT, fields::TIMEOUT_MEMBER_DATA, fields::TIMEOUT_TCP_INSPECT,
            fields::INSERT_HEADERS;
        [LISTENER_UPDATE, Scalar::Text("")] fields::DEFAULT_TLS_CONTAINER_REF;
        [LISTENER_UPDATE, Scalar::List] fields::ALLOWED_CIDRS;
        [Policy::CreateOnly] fields::PROVISIONING_STATUS;
    },
    ..Schema::new("listener", "listener_create", "listener_delete")
};

static POOL: Schema<ObjectKind> = Schema {
    parent: Some(ObjectKind::Listener),
    created_with_parent: true,
    attributes: attributes! {
        [Policy::Replace] fields::PROTOCOL;
        [Policy::CreateOnly] fields::NAME;
        [ObjectUpdate::Pool.policy()] fields::TAGS, fields::LB_ALGORITHM, fields::SESSION_PERSISTENCE;
        [Policy::CreateOnly] fields::PROVISIONING_STATUS;
    },
    sets: &[
        Set {
            batch: usize::MAX,
            created_with_parent: true,
            ..Set::new(MemberSet::Listed.name(), "members_update", "member_delete")
        },
        Set::new(MemberSet::Single.name(), "member_create", "member_delete"),
    ],
    ..Schema::new("pool", "pool_create", "pool_delete")
};

static MONITOR: Schema<ObjectKind> = Schema {
    parent: Some(ObjectKind::Pool),
    created_with_parent: true,
    deleted_with_parent: true,
    attributes: attributes! {
        [Policy::Replace] fields::TYPE;
        [Policy::CreateOnly] fields::NAME;
        [ObjectUpdate::Monitor.policy()] fields::DELAY, fields::TIMEOUT, fields::MAX_RETRIES, fields::MAX_RETRIES_DOWN;
        [Policy::CreateOnly] fields::URL_PATH, fields::HTTP_METHOD, fields::EXPECTED_CODES;
    },
    ..Schema::new("health monitor", "healthmonitor_create", "healthmonitor_delete")
};

static FLOATING: Schema<ObjectKind> = Schema {
    attributes: attributes! {
        [Policy::CreateOnly] fields::FLOATING_IP_ADDRESS, fields::FLOATING_NETWORK_ID, fields::DESCRIPTION, fields::PORT_ID, SUBNETS,
            REFUSED;
    },
    ..Schema::new("floating IP", "floatingip_create", "floatingip_delete")
};

impl objects::Kind for ObjectKind {
    type Entry = Member;
    type Update = ObjectUpdate;

    fn schema(self) -> &'static Schema<Self> {
        match self {
            Self::Balancer => &BALANCER,
            Self::Listener => &LISTENER,
            Self::Pool => &POOL,
            Self::Monitor => &MONITOR,
            Self::Floating => &FLOATING,
        }
    }

    fn title(self, key: &str, parent: Option<&str>) -> String {
        let name = self.schema().name;
        match (self, parent) {
            (Self::Listener, Some(balancer)) => format!("{name} {key} of load balancer {balancer}"),
            (Self::Pool | Self::Monitor, Some(listener)) => format!("{name} of listener {listener}"),
            (Self::Pool, None) => format!("{name} {key} without a listener"),
            (Self::Floating, Some(balancer)) if key.is_empty() => {
                format!("{name} for load balancer {balancer}")
            }
            (Self::Floating, Some(balancer)) => format!("{name} {key} of load balancer {balancer}"),
            _ => format!("{name} {key}"),
        }
    }
}

impl ObjectKind {
    /// The update of the object's own fields.
    pub(crate) fn update(self) -> ObjectUpdate {
        match self {
            Self::Balancer => ObjectUpdate::Balancer,
            Self::Listener => ObjectUpdate::Listener,
            Self::Pool => ObjectUpdate::Pool,
            Self::Monitor => ObjectUpdate::Monitor,
            Self::Floating => ObjectUpdate::Floating,
        }
    }

    /// The object of a record.
    pub(crate) fn object(self, key: impl Into<String>, id: &str, record: &impl Serialize) -> Object<Self> {
        let mut fields = serde_json::to_value(record).unwrap_or_default();
        let attributes = objects::Kind::schema(self).attributes.iter().filter_map(|attribute| {
            let value = fields.get_mut(attribute.name)?;
            Some((attribute.name, value.take()))
        });
        Object {
            id: id.to_owned(),
            attributes: attributes.collect(),
            ..Object::new(self, key)
        }
    }
}

impl ObjectKind {
    /// The object of a record below a load balancer, with the key of its listener.
    pub(crate) fn below(
        self,
        listener: ListenerKey,
        balancer: &str,
        id: &str,
        record: &impl Serialize,
    ) -> Object<Self> {
        let object = below(self, listener, balancer);
        let parent = object.parent;
        Object {
            parent,
            ..self.object(object.key, id, record)
        }
    }
}

impl From<&LoadBalancer> for Object<ObjectKind> {
    fn from(balancer: &LoadBalancer) -> Self {
        ObjectKind::Balancer.object(&balancer.name, &balancer.id, balancer)
    }
}

impl From<&FloatingIp> for Object<ObjectKind> {
    fn from(floating: &FloatingIp) -> Self {
        ObjectKind::Floating.object(&floating.floating_ip_address, &floating.id, floating)
    }
}

/// A new object below a load balancer, with the key of its listener.
pub(crate) fn below(kind: ObjectKind, listener: ListenerKey, balancer: &str) -> Object<ObjectKind> {
    let key = listener.to_string();
    let parent = if kind == ObjectKind::Listener {
        balancer
    } else {
        &key
    };
    Object {
        parent: Some(parent.to_owned()),
        ..Object::new(kind, &*key)
    }
}

/// The texts of a list attribute.
pub(crate) fn texts<'a>(object: &'a Object<ObjectKind>, name: &str) -> impl Iterator<Item = &'a str> + Clone {
    let list = object.attributes.get(name).and_then(Value::as_array);
    let texts = list.into_iter().flatten().filter_map(Value::as_str);
    texts.filter(|text| !text.is_empty())
}

/// The tags of the Services that use the object.
pub(crate) fn service_tags(object: &Object<ObjectKind>) -> impl Iterator<Item = &str> {
    texts(object, fields::TAGS).filter(|tag| super::names::is_service_tag(tag))
}

/// Tags as they are sent. Older versions of Octavia ignore an empty list, so that an empty tag replaces the last one.
pub(crate) fn sent(tags: &[String]) -> Value {
    let empty = [String::new()];
    Value::from(if tags.is_empty() { &empty[..] } else { tags })
}

/// The object's tags.
pub(crate) fn tags(object: &Object<ObjectKind>) -> Vec<String> {
    texts(object, fields::TAGS).map(str::to_owned).collect()
}

impl KeyedEntry for Member {
    type Key = (Result<IpAddr, String>, u16);

    fn key(&self) -> Self::Key {
        let address = self.host.address.parse();
        (address.map_err(|_| self.host.address.clone()), self.protocol_port)
    }

    fn is_as(&self, desired: &Self) -> bool {
        let (have, want) = (&self.host.name, &desired.host);
        let is_named = *have == want.name || want.other_names.contains(have);
        is_named && self.is_checked_as(desired)
    }
}
