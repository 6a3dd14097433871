//! What is sent to Octavia and Neutron.
//!
//! A field that is left out and one that is `null` are not the same: on a PUT the first stays and the second is cleared;
//! on a POST many are refused as `null`. So optional fields of a POST are `Option`s that are left out, and those of a
//! PUT are [`Set`]s.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// What a PUT does to a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Set<T> {
    /// It stays as it is: left out.
    #[default]
    Keep,
    /// It is cleared: `null`.
    Clear,
    /// It becomes this.
    To(T),
}

impl<T> Set<T> {
    /// Whether the field is left out.
    pub(crate) fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }
}

impl<T: Serialize> Serialize for Set<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Keep | Self::Clear => serializer.serialize_none(),
            Self::To(value) => value.serialize(serializer),
        }
    }
}

/// The document around one thing, under its key.
#[derive(Clone, Debug)]
pub(crate) struct Envelope<T>(pub(crate) &'static str, pub(crate) T);

impl<T: Serialize> Serialize for Envelope<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.0, &self.1)])
    }
}

/// A new load balancer. Empty texts are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NewLoadBalancer {
    pub(crate) name: String,
    pub(crate) description: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) provider: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) flavor_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) availability_zone: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) vip_port_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) vip_subnet_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) vip_network_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) vip_address: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) listeners: Vec<NewListener>,
}

/// A new listener, by itself or within a new load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NewListener {
    /// Left out within a new load balancer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) loadbalancer_id: String,
    pub(crate) name: String,
    pub(crate) protocol: &'static str,
    pub(crate) protocol_port: u16,
    pub(crate) connection_limit: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
    #[serde(flatten)]
    pub(crate) timeouts: Option<Timeouts>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) insert_headers: BTreeMap<&'static str, &'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) default_tls_container_ref: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allowed_cidrs: Vec<String>,
    /// Only within a new load balancer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default_pool: Option<NewPool>,
}

/// A listener's timeouts, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Timeouts {
    pub(crate) timeout_client_data: i64,
    pub(crate) timeout_member_connect: i64,
    pub(crate) timeout_member_data: i64,
    pub(crate) timeout_tcp_inspect: i64,
}

/// A new pool, by itself or within a new listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NewPool {
    /// Left out within a new listener.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) listener_id: String,
    pub(crate) name: String,
    pub(crate) protocol: &'static str,
    pub(crate) lb_algorithm: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_persistence: Option<NewPersistence>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) members: Vec<MemberBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) healthmonitor: Option<NewMonitor>,
}

/// How a pool is to keep clients with their member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NewPersistence {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
}

impl NewPersistence {
    /// By the client's address.
    pub(crate) const SOURCE_IP: Self = Self { kind: "SOURCE_IP" };
}

/// A member, new or as it is to be. What is left out of a list of members gets Octavia's default, also if the member is
/// there: what was seen has to be sent back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct MemberBody {
    pub(crate) address: String,
    pub(crate) protocol_port: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) subnet_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) monitor_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) monitor_address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backup: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_state_up: Option<bool>,
}

/// Many members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Members<'a> {
    pub(crate) members: &'a [MemberBody],
}

/// A new health monitor, by itself or within a new pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NewMonitor {
    /// Left out within a new pool.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) pool_id: String,
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) delay: i64,
    pub(crate) timeout: i64,
    pub(crate) max_retries: i64,
    pub(crate) max_retries_down: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url_path: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_method: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected_codes: Option<&'static str>,
}

/// A change of a load balancer's own fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LoadBalancerChange {
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) name: Set<String>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) tags: Set<Vec<String>>,
}

/// A change of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ListenerChange {
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) name: Set<String>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) tags: Set<Vec<String>>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) connection_limit: Set<i64>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) insert_headers: Set<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) default_tls_container_ref: Set<String>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) timeout_client_data: Set<i64>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) timeout_member_connect: Set<i64>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) timeout_member_data: Set<i64>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) timeout_tcp_inspect: Set<i64>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) allowed_cidrs: Set<Vec<String>>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) default_pool_id: Set<String>,
}

/// A change of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PoolChange {
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) name: Set<String>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) lb_algorithm: Set<String>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) tags: Set<Vec<String>>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) session_persistence: Set<NewPersistence>,
}

/// A change of a health monitor. Its type can not be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct MonitorChange {
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) name: Set<String>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) delay: Set<i64>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) timeout: Set<i64>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) max_retries: Set<i64>,
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) max_retries_down: Set<i64>,
}

/// A new floating address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NewFloatingIp {
    pub(crate) floating_network_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) port_id: String,
    pub(crate) description: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) subnet_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) floating_ip_address: String,
}

/// A floating address gets another port, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct FloatingIpChange {
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) port_id: Set<String>,
}

/// A new security group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct NewSecurityGroup {
    pub(crate) name: String,
    pub(crate) description: String,
}

/// A new rule of a security group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(crate) struct NewRule {
    pub(crate) security_group_id: String,
    pub(crate) direction: &'static str,
    pub(crate) ethertype: &'static str,
    pub(crate) protocol: String,
    pub(crate) port_range_min: u16,
    pub(crate) port_range_max: u16,
    pub(crate) remote_ip_prefix: String,
}

/// A change of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PortChange {
    #[serde(skip_serializing_if = "Set::is_keep")]
    pub(crate) security_groups: Set<Vec<String>>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn what_stays_is_left_out_and_what_is_cleared_is_null() {
        let change = PoolChange {
            session_persistence: Set::Clear,
            lb_algorithm: Set::To("SOURCE_IP".to_owned()),
            ..PoolChange::default()
        };
        assert_eq!(
            to_value(Envelope("pool", change)).unwrap(),
            json!({"pool": {"session_persistence": null, "lb_algorithm": "SOURCE_IP"}})
        );
        let detach = FloatingIpChange { port_id: Set::Clear };
        assert_eq!(to_value(detach).unwrap(), json!({"port_id": null}));
        assert_eq!(to_value(LoadBalancerChange::default()).unwrap(), json!({}));
        let none = LoadBalancerChange {
            tags: Set::To(vec![]),
            ..LoadBalancerChange::default()
        };
        assert_eq!(to_value(none).unwrap(), json!({"tags": []}));
    }

    #[test]
    fn a_new_load_balancer_is_sent_without_what_is_not_set() {
        let balancer = NewLoadBalancer {
            name: "lb".into(),
            description: "d".into(),
            vip_subnet_id: "s".into(),
            listeners: vec![NewListener {
                name: "l".into(),
                protocol: "TCP",
                protocol_port: 80,
                connection_limit: -1,
                timeouts: Some(Timeouts {
                    timeout_client_data: 1,
                    timeout_member_connect: 2,
                    timeout_member_data: 3,
                    timeout_tcp_inspect: 0,
                }),
                default_pool: Some(NewPool {
                    name: "p".into(),
                    protocol: "TCP",
                    lb_algorithm: "ROUND_ROBIN".into(),
                    session_persistence: Some(NewPersistence::SOURCE_IP),
                    members: vec![MemberBody {
                        address: "10.0.0.1".into(),
                        protocol_port: 30000,
                        ..MemberBody::default()
                    }],
                    ..NewPool::default()
                }),
                ..NewListener::default()
            }],
            ..NewLoadBalancer::default()
        };
        assert_eq!(
            to_value(balancer).unwrap(),
            json!({"name": "lb", "description": "d", "vip_subnet_id": "s", "listeners": [{
                "name": "l", "protocol": "TCP", "protocol_port": 80, "connection_limit": -1,
                "timeout_client_data": 1, "timeout_member_connect": 2, "timeout_member_data": 3,
                "timeout_tcp_inspect": 0,
                "default_pool": {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
                    "session_persistence": {"type": "SOURCE_IP"},
                    "members": [{"address": "10.0.0.1", "protocol_port": 30000}]}}]})
        );
    }
}
