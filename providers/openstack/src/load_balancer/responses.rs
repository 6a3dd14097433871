//! The stored part of the records of Octavia and Neutron. `null` counts as missing, and unknown fields are ignored.

use std::collections::BTreeMap;

use ccm_core::load_balancer::IpFamily;
use serde::{Deserialize, Serialize};

use super::member_id::MemberId;
use crate::{client::listing::resources, instances::records::records};

records! {
    /// A load balancer.
    LoadBalancer[id] {
        name: String,
        description: String,
        project_id: String,
        provider: String,
        provisioning_status: Provisioning,
        operating_status: String,
        /// When it was last changed: unset until it has been active once.
        updated_at: Option<String>,
        vip_address: String,
        vip_port_id: String,
        vip_subnet_id: String,
        vip_network_id: String,
        additional_vips: Vec<AdditionalVip>,
        flavor_id: String,
        availability_zone: String,
        tags: Vec<String>,
        listeners: Vec<Ref>,
        pools: Vec<Ref>,
    }

    /// A virtual address in addition to the first one, on the same port.
    AdditionalVip {
        subnet_id: String,
        ip_address: String,
    }

    /// The polled state of a load balancer.
    LoadBalancerState {
        provisioning_status: Provisioning,
        operating_status: String,
        updated_at: Option<String>,
    }

    /// A listener.
    Listener[id] {
        name: String,
        protocol: String,
        protocol_port: u16,
        /// `None` if Octavia does not return it.
        connection_limit: Option<i64>,
        default_pool_id: String,
        insert_headers: BTreeMap<String, String>,
        default_tls_container_ref: String,
        timeout_client_data: Option<i64>,
        timeout_member_connect: Option<i64>,
        timeout_member_data: Option<i64>,
        timeout_tcp_inspect: Option<i64>,
        /// `None`: all clients, or a version of Octavia without the field.
        allowed_cidrs: Option<Vec<String>>,
        tags: Vec<String>,
        provisioning_status: Provisioning,
        loadbalancers: Vec<Ref>,
    }

    /// A pool.
    Pool[id] {
        name: String,
        protocol: String,
        lb_algorithm: String,
        session_persistence: Option<Persistence>,
        healthmonitor_id: String,
        #[serde(skip_serializing)]
        members: Box<[Ref<MemberId>]>,
        tags: Vec<String>,
        provisioning_status: Provisioning,
        loadbalancers: Vec<Ref>,
    }

    /// The session persistence of a pool.
    Persistence {
        #[serde(rename = "type")]
        kind: String,
        cookie_name: String,
    }

    /// A member of a pool, as it is read. It is stored as another [`Member`](super::member::Member).
    Member[id] {
        name: String,
        address: String,
        protocol_port: u16,
        subnet_id: String,
        monitor_port: Option<u16>,
        monitor_address: Option<String>,
        weight: Option<i64>,
        backup: Option<bool>,
        admin_state_up: Option<bool>,
        provisioning_status: Provisioning,
    }

    /// A health monitor.
    Monitor[id] {
        name: String,
        #[serde(rename = "type")]
        kind: String,
        delay: i64,
        timeout: i64,
        max_retries: i64,
        max_retries_down: i64,
        url_path: String,
        http_method: String,
        expected_codes: String,
        provisioning_status: Provisioning,
        pools: Vec<Ref>,
    }

    /// A floating IP.
    FloatingIp[id] {
        floating_ip_address: String,
        floating_network_id: String,
        port_id: String,
        description: String,
        tags: Vec<String>,
        revision_number: Option<i64>,
    }

    /// A security group with its rules.
    SecurityGroup[id] {
        name: String,
        description: String,
        tags: Vec<String>,
        #[serde(rename = "security_group_rules")]
        rules: Vec<Rule>,
    }

    /// A rule of a security group.
    #[derive(Hash, PartialOrd, Ord)]
    Rule[id] {
        security_group_id: String,
        direction: String,
        ethertype: String,
        protocol: String,
        port_range_min: Option<u16>,
        port_range_max: Option<u16>,
        remote_ip_prefix: String,
        remote_group_id: String,
        description: String,
    }

    /// A subnet.
    Subnet[id] {
        name: String,
        network_id: String,
        cidr: String,
        ip_version: u8,
        tags: Vec<String>,
    }
}

impl LoadBalancer {
    /// The virtual addresses, the first one first.
    pub(crate) fn virtual_addresses(&self) -> Vec<&str> {
        let additional = self.additional_vips.iter().map(|vip| &*vip.ip_address);
        std::iter::once(&*self.vip_address).chain(additional).collect()
    }
}

impl Subnet {
    /// The IP family of its addresses.
    pub(crate) fn family(&self) -> IpFamily {
        if self.ip_version == 6 {
            IpFamily::V6
        } else {
            IpFamily::V4
        }
    }
}

/// A reference to another object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct Ref<I = String> {
    pub(crate) id: I,
}

/// The provisioning status of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Provisioning {
    /// `ACTIVE`: no change is in progress.
    Active,
    /// `PENDING_CREATE`.
    PendingCreate,
    /// `PENDING_UPDATE`.
    PendingUpdate,
    /// `PENDING_DELETE`.
    PendingDelete,
    /// `ERROR`: the last change failed.
    Error,
    /// `DELETED`: deleted, but still shown.
    Deleted,
    /// Another status, or none.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Provisioning {
    /// Whether Octavia is working on the object and refuses changes of it.
    pub(crate) fn is_pending(&self) -> bool {
        matches!(self, Self::PendingCreate | Self::PendingUpdate | Self::PendingDelete)
    }

    /// Whether the object exists, even if it is being deleted.
    pub(crate) fn exists(&self) -> bool {
        *self != Self::Deleted
    }

    /// Whether the object exists and is not being deleted.
    pub(crate) fn remains(&self) -> bool {
        !matches!(self, Self::Deleted | Self::PendingDelete)
    }
}

/// The [`LoadBalancerState`] of a load balancer in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Status {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) state: LoadBalancerState,
}

resources! {
    Status: "loadbalancer" "loadbalancers" of LoadBalancer at ["lbaas", "loadbalancers"], LoadBalancerList;
    LoadBalancer: "loadbalancer" "loadbalancers" of LoadBalancer at ["lbaas", "loadbalancers"], LoadBalancerList;
    Listener: "listener" "listeners" of LoadBalancer at ["lbaas", "listeners"], ListenerList;
    Pool: "pool" "pools" of LoadBalancer at ["lbaas", "pools"], PoolList;
    Monitor: "healthmonitor" "healthmonitors" of LoadBalancer at ["lbaas", "healthmonitors"], MonitorList;
    // The path contains the pool.
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
    fn null_counts_as_missing_and_new_fields_are_ignored() {
        tolerant::<LoadBalancer>(&[
            "name",
            "description",
            "provider",
            "vip_address",
            "vip_port_id",
            "flavor_id",
            "availability_zone",
            "tags",
            "listeners",
            "pools",
            "provisioning_status",
            "updated_at",
            "additional_vips",
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
    fn statuses_are_parsed_and_unknown_ones_stay_unknown() {
        let read = |text: &str| {
            let record: LoadBalancer =
                serde_json::from_value(json!({"id": "x", "provisioning_status": text})).unwrap();
            record.provisioning_status
        };
        assert_eq!(read("ACTIVE"), Provisioning::Active);
        assert!(read("PENDING_UPDATE").is_pending() && read("PENDING_UPDATE").remains());
        assert!(read("PENDING_DELETE").is_pending() && !read("PENDING_DELETE").remains());
        assert!(!read("DELETED").remains());
        assert_eq!(read("FUZZY"), Provisioning::Unknown);
    }
}
