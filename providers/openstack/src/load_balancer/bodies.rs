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

/// Declares bodies. A field with a function behind its name is left out if the function is true of it.
macro_rules! bodies {
    ($($(#[$about:meta])* $name:ident { $($(#[$meta:meta])* $field:ident $([$skip:literal])?: $type:ty,)+ })+) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub(crate) struct $name {
            $($(#[$meta])* $(#[serde(skip_serializing_if = $skip)])? pub(crate) $field: $type,)+
        }
    )+};
}

bodies! {
    /// A new load balancer. Empty texts are left out.
    NewLoadBalancer {
        name: String,
        description: String,
        provider["String::is_empty"]: String,
        tags["Vec::is_empty"]: Vec<String>,
        flavor_id["String::is_empty"]: String,
        availability_zone["String::is_empty"]: String,
        vip_port_id["String::is_empty"]: String,
        vip_subnet_id["String::is_empty"]: String,
        vip_network_id["String::is_empty"]: String,
        vip_address["String::is_empty"]: String,
        listeners["Vec::is_empty"]: Vec<NewListener>,
    }

    /// A new listener, by itself or within a new load balancer.
    NewListener {
        /// Left out within a new load balancer.
        loadbalancer_id["String::is_empty"]: String,
        name: String,
        protocol: &'static str,
        protocol_port: u16,
        connection_limit: i64,
        tags["Vec::is_empty"]: Vec<String>,
        #[serde(flatten)]
        timeouts: Option<Timeouts>,
        insert_headers["BTreeMap::is_empty"]: BTreeMap<&'static str, &'static str>,
        default_tls_container_ref["String::is_empty"]: String,
        allowed_cidrs["Vec::is_empty"]: Vec<String>,
        /// Only within a new load balancer.
        default_pool["Option::is_none"]: Option<NewPool>,
    }

    /// A new pool, by itself or within a new listener.
    NewPool {
        /// Left out within a new listener.
        listener_id["String::is_empty"]: String,
        name: String,
        protocol: &'static str,
        lb_algorithm: String,
        tags["Vec::is_empty"]: Vec<String>,
        session_persistence["Option::is_none"]: Option<NewPersistence>,
        members["Vec::is_empty"]: Vec<MemberBody>,
        healthmonitor["Option::is_none"]: Option<NewMonitor>,
    }

    /// A member, new or as it is to be. What is left out of a list of members gets Octavia's default, also if the member is
    /// there: what was seen has to be sent back.
    MemberBody {
        address: String,
        protocol_port: u16,
        name["String::is_empty"]: String,
        subnet_id["String::is_empty"]: String,
        monitor_port["Option::is_none"]: Option<u16>,
        monitor_address["Option::is_none"]: Option<String>,
        weight["Option::is_none"]: Option<i64>,
        backup["Option::is_none"]: Option<bool>,
        admin_state_up["Option::is_none"]: Option<bool>,
    }

    /// A new health monitor, by itself or within a new pool.
    NewMonitor {
        /// Left out within a new pool.
        pool_id["String::is_empty"]: String,
        name: String,
        #[serde(rename = "type")]
        kind: &'static str,
        delay: i64,
        timeout: i64,
        max_retries: i64,
        max_retries_down: i64,
        url_path["Option::is_none"]: Option<&'static str>,
        http_method["Option::is_none"]: Option<&'static str>,
        expected_codes["Option::is_none"]: Option<&'static str>,
    }

    /// A change of a load balancer's own fields.
    LoadBalancerChange {
        name["Set::is_keep"]: Set<String>,
        tags["Set::is_keep"]: Set<Vec<String>>,
    }

    /// A change of a listener.
    ListenerChange {
        name["Set::is_keep"]: Set<String>,
        tags["Set::is_keep"]: Set<Vec<String>>,
        connection_limit["Set::is_keep"]: Set<i64>,
        insert_headers["Set::is_keep"]: Set<BTreeMap<String, String>>,
        default_tls_container_ref["Set::is_keep"]: Set<String>,
        timeout_client_data["Set::is_keep"]: Set<i64>,
        timeout_member_connect["Set::is_keep"]: Set<i64>,
        timeout_member_data["Set::is_keep"]: Set<i64>,
        timeout_tcp_inspect["Set::is_keep"]: Set<i64>,
        allowed_cidrs["Set::is_keep"]: Set<Vec<String>>,
        default_pool_id["Set::is_keep"]: Set<String>,
    }

    /// A change of a pool.
    PoolChange {
        name["Set::is_keep"]: Set<String>,
        lb_algorithm["Set::is_keep"]: Set<String>,
        tags["Set::is_keep"]: Set<Vec<String>>,
        session_persistence["Set::is_keep"]: Set<NewPersistence>,
    }

    /// A change of a health monitor. Its type can not be changed.
    MonitorChange {
        name["Set::is_keep"]: Set<String>,
        delay["Set::is_keep"]: Set<i64>,
        timeout["Set::is_keep"]: Set<i64>,
        max_retries["Set::is_keep"]: Set<i64>,
        max_retries_down["Set::is_keep"]: Set<i64>,
    }

    /// A new floating address.
    NewFloatingIp {
        floating_network_id: String,
        port_id["String::is_empty"]: String,
        description: String,
        subnet_id["String::is_empty"]: String,
        floating_ip_address["String::is_empty"]: String,
    }

    /// A floating address gets another port, or none.
    FloatingIpChange {
        port_id["Set::is_keep"]: Set<String>,
    }

    /// A new security group.
    NewSecurityGroup {
        name: String,
        description: String,
    }

    /// A new rule of a security group.
    #[derive(Hash)]
    NewRule {
        security_group_id: String,
        direction: &'static str,
        ethertype: &'static str,
        protocol: String,
        port_range_min: u16,
        port_range_max: u16,
        remote_ip_prefix: String,
    }

    /// A change of a port.
    PortChange {
        security_groups["Set::is_keep"]: Set<Vec<String>>,
    }
}

/// A listener's timeouts, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Timeouts {
    pub(crate) timeout_client_data: i64,
    pub(crate) timeout_member_connect: i64,
    pub(crate) timeout_member_data: i64,
    pub(crate) timeout_tcp_inspect: i64,
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

/// Many members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Members<'a> {
    pub(crate) members: &'a [MemberBody],
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
