//! What is kept of the records of Octavia and Neutron. Only what is read; `null` is as good as missing, and what is
//! unknown is left out.

use std::collections::BTreeMap;

use ccm_core::load_balancer::Ownership;
use serde::Deserialize;

use super::{id::Id, names};
use crate::{client::listing::resources, instances::records::nullable};

/// A load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct LoadBalancer {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) description: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) project_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) provider: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) provisioning_status: Provisioning,
    #[serde(deserialize_with = "nullable")]
    pub(crate) operating_status: String,
    /// Whether it was changed since it was made: set only once it has been active.
    pub(crate) updated_at: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) vip_address: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) vip_port_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) vip_subnet_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) vip_network_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) additional_vips: Vec<Vip>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) flavor_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) availability_zone: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) tags: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) listeners: Vec<Ref>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) pools: Vec<Ref>,
}

impl LoadBalancer {
    /// Whether this cluster had it made, as far as its mark and its name tell.
    pub(crate) fn is_of(&self, cluster: &str, ownership: &Ownership) -> bool {
        *ownership == Ownership::Ours || names::cluster_of(&self.name) == Some(cluster)
    }
}

/// A further virtual address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Vip {
    #[serde(deserialize_with = "nullable")]
    pub(crate) ip_address: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) subnet_id: String,
}

/// One thing in the record of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub(crate) struct Ref<I = String> {
    pub(crate) id: I,
}

/// How far Octavia is with a thing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(crate) enum Provisioning {
    /// `ACTIVE`: nothing is under way.
    Active,
    /// `PENDING_CREATE`.
    PendingCreate,
    /// `PENDING_UPDATE`.
    PendingUpdate,
    /// `PENDING_DELETE`.
    PendingDelete,
    /// `ERROR`: the last change failed.
    Error,
    /// `DELETED`: gone, but not forgotten yet.
    Deleted,
    /// Another one, or none.
    #[default]
    Unknown,
}

impl From<String> for Provisioning {
    fn from(text: String) -> Self {
        match text.as_str() {
            "ACTIVE" => Self::Active,
            "PENDING_CREATE" => Self::PendingCreate,
            "PENDING_UPDATE" => Self::PendingUpdate,
            "PENDING_DELETE" => Self::PendingDelete,
            "ERROR" => Self::Error,
            "DELETED" => Self::Deleted,
            _ => Self::Unknown,
        }
    }
}

impl std::fmt::Display for Provisioning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Active => "ACTIVE",
            Self::PendingCreate => "PENDING_CREATE",
            Self::PendingUpdate => "PENDING_UPDATE",
            Self::PendingDelete => "PENDING_DELETE",
            Self::Error => "ERROR",
            Self::Deleted => "DELETED",
            Self::Unknown => "in an unknown state",
        })
    }
}

impl Provisioning {
    /// Whether Octavia is at work on it, so that it can not be changed now.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(
            self,
            Self::PendingCreate | Self::PendingUpdate | Self::PendingDelete
        )
    }

    /// Whether it exists, if only for a while yet.
    pub(crate) fn exists(&self) -> bool {
        *self != Self::Deleted
    }

    /// Whether it is there, and is to stay.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(self, Self::Deleted | Self::PendingDelete)
    }
}

/// The state of a load balancer, as it is polled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    #[serde(deserialize_with = "nullable")]
    pub(crate) provisioning_status: Provisioning,
    #[serde(deserialize_with = "nullable")]
    pub(crate) operating_status: String,
    pub(crate) updated_at: Option<String>,
}

/// The [`State`] of a load balancer in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Status {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) state: State,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Listener {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) protocol: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) protocol_port: u16,
    /// `None` where Octavia does not say.
    pub(crate) connection_limit: Option<i64>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) default_pool_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) insert_headers: BTreeMap<String, String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) default_tls_container_ref: String,
    pub(crate) timeout_client_data: Option<i64>,
    pub(crate) timeout_member_connect: Option<i64>,
    pub(crate) timeout_member_data: Option<i64>,
    pub(crate) timeout_tcp_inspect: Option<i64>,
    /// `None`: everybody, or a version of Octavia without it.
    pub(crate) allowed_cidrs: Option<Vec<String>>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) tags: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) provisioning_status: Provisioning,
    #[serde(deserialize_with = "nullable")]
    pub(crate) loadbalancers: Vec<Ref>,
}

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Pool {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) protocol: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) lb_algorithm: String,
    pub(crate) session_persistence: Option<Persistence>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) healthmonitor_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) listeners: Vec<Ref>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) members: Box<[Ref<Id>]>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) tags: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) provisioning_status: Provisioning,
    #[serde(deserialize_with = "nullable")]
    pub(crate) loadbalancers: Vec<Ref>,
}

/// How a pool keeps clients with their member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Persistence {
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub(crate) kind: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) cookie_name: String,
}

/// A member of a pool, as it is read. Kept as another [`Member`](super::member::Member).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Member {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) address: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) protocol_port: u16,
    #[serde(deserialize_with = "nullable")]
    pub(crate) subnet_id: String,
    pub(crate) monitor_port: Option<u16>,
    pub(crate) monitor_address: Option<String>,
    pub(crate) weight: Option<i64>,
    pub(crate) backup: Option<bool>,
    pub(crate) admin_state_up: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) provisioning_status: Provisioning,
}

/// A health monitor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Monitor {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub(crate) kind: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) delay: i64,
    #[serde(deserialize_with = "nullable")]
    pub(crate) timeout: i64,
    #[serde(deserialize_with = "nullable")]
    pub(crate) max_retries: i64,
    #[serde(deserialize_with = "nullable")]
    pub(crate) max_retries_down: i64,
    #[serde(deserialize_with = "nullable")]
    pub(crate) url_path: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) http_method: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) expected_codes: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) provisioning_status: Provisioning,
    #[serde(deserialize_with = "nullable")]
    pub(crate) pools: Vec<Ref>,
}

/// A floating address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct FloatingIp {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) floating_ip_address: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) floating_network_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) port_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) description: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) tags: Vec<String>,
    pub(crate) revision_number: Option<i64>,
}

/// A security group with its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct SecurityGroup {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) description: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) tags: Vec<String>,
    #[serde(deserialize_with = "nullable", rename = "security_group_rules")]
    pub(crate) rules: Vec<Rule>,
}

/// A rule of a security group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub(crate) struct Rule {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) security_group_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) direction: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) ethertype: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) protocol: String,
    pub(crate) port_range_min: Option<u16>,
    pub(crate) port_range_max: Option<u16>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) remote_ip_prefix: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) remote_group_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) description: String,
}

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Subnet {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) network_id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) cidr: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) ip_version: u8,
    #[serde(deserialize_with = "nullable")]
    pub(crate) tags: Vec<String>,
}

resources! {
    Status: "loadbalancer" "loadbalancers" of LoadBalancer at ["lbaas", "loadbalancers"], LoadBalancerList;
    LoadBalancer: "loadbalancer" "loadbalancers" of LoadBalancer at ["lbaas", "loadbalancers"], LoadBalancerList;
    Listener: "listener" "listeners" of LoadBalancer at ["lbaas", "listeners"], ListenerList;
    Pool: "pool" "pools" of LoadBalancer at ["lbaas", "pools"], PoolList;
    Monitor: "healthmonitor" "healthmonitors" of LoadBalancer at ["lbaas", "healthmonitors"], MonitorList;
    // The path needs the pool.
    Member: "member" "members" of LoadBalancer at [], MemberList;
    FloatingIp: "floatingip" "floatingips" of Network at ["floatingips"], FloatingIpList;
    SecurityGroup: "security_group" "security_groups" of Network at ["security-groups"], SecurityGroupList;
    Rule: "security_group_rule" "security_group_rules" of Network at ["security-group-rules"], SecurityGroupRuleList;
    Subnet: "subnet" "subnets" of Network at ["subnets"], SubnetList;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::client::listing::Resource;

    fn tolerant<T: Resource + Default + PartialEq + std::fmt::Debug>(fields: &[&str]) {
        let bare: T = serde_json::from_value(json!({"id": "x"})).unwrap();
        let mut nulls = json!({"id": "x", "something_new": {"a": [1]}});
        for field in fields {
            nulls[*field] = Value::Null;
        }
        let null: T = serde_json::from_value(nulls).unwrap();
        assert_eq!(bare, null, "{}", T::ONE);
        assert_eq!(bare.id(), "x");
    }

    #[test]
    fn null_is_as_good_as_missing_and_what_is_new_is_left_out() {
        tolerant::<LoadBalancer>(&[
            "name",
            "description",
            "provider",
            "vip_address",
            "vip_port_id",
            "flavor_id",
            "availability_zone",
            "tags",
            "additional_vips",
            "listeners",
            "pools",
            "provisioning_status",
            "updated_at",
        ]);
        tolerant::<Listener>(&[
            "name",
            "default_pool_id",
            "insert_headers",
            "default_tls_container_ref",
            "allowed_cidrs",
            "tags",
            "connection_limit",
            "timeout_client_data",
            "loadbalancers",
            "protocol_port",
        ]);
        tolerant::<Pool>(&[
            "session_persistence",
            "healthmonitor_id",
            "members",
            "tags",
            "listeners",
            "loadbalancers",
        ]);
        tolerant::<Member>(&[
            "subnet_id",
            "monitor_port",
            "monitor_address",
            "weight",
            "backup",
            "name",
        ]);
        tolerant::<Monitor>(&[
            "url_path",
            "http_method",
            "expected_codes",
            "max_retries_down",
            "pools",
            "delay",
        ]);
        tolerant::<FloatingIp>(&["port_id", "description", "tags", "revision_number"]);
        tolerant::<SecurityGroup>(&["description", "tags", "security_group_rules"]);
        tolerant::<Rule>(&[
            "protocol",
            "port_range_min",
            "port_range_max",
            "remote_ip_prefix",
            "remote_group_id",
        ]);
        tolerant::<Subnet>(&["name", "tags", "cidr", "ip_version"]);
    }

    #[test]
    fn statuses_are_read_and_unknown_ones_are_not_taken_for_known_ones() {
        let read = |text: &str| {
            let record: LoadBalancer =
                serde_json::from_value(json!({"id": "x", "provisioning_status": text})).unwrap();
            record.provisioning_status
        };
        assert_eq!(read("ACTIVE"), Provisioning::Active);
        assert!(read("PENDING_UPDATE").is_pending() && read("PENDING_UPDATE").is_there());
        assert!(read("PENDING_DELETE").is_pending() && !read("PENDING_DELETE").is_there());
        assert!(!read("DELETED").is_there());
        assert_eq!(read("FUZZY"), Provisioning::Unknown);
    }
}
