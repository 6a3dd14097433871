//! What Neutron shows of networks, subnets and ports, and by what they can be filtered and sorted.

mod more;

use std::sync::Arc;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::Api;
use crate::openstack::ids::address_at;
use crate::openstack::region::{Network, NetworkState, Port, Subnet};

/// An attribute of a resource.
pub(super) struct Field<T> {
    pub(super) name: &'static str,
    pub(super) get: fn(&T, &NetworkState) -> Value,
    pub(super) filter: bool,
    pub(super) sort: bool,
}

const fn field<T>(name: &'static str, kind: Kind, get: fn(&T, &NetworkState) -> Value) -> Field<T> {
    let (filter, sort) = match kind {
        Kind::Shown => (false, false),
        Kind::Filter => (true, false),
        Kind::FilterSort => (true, true),
    };
    Field {
        name,
        get,
        filter,
        sort,
    }
}

/// What an attribute serves for, as the API definitions of Neutron say.
#[derive(Clone, Copy)]
enum Kind {
    Shown,
    Filter,
    FilterSort,
}

/// A kind of resource.
pub(super) trait Resource: Sized + 'static {
    const SINGULAR: &'static str;
    const PLURAL: &'static str;
    /// Class of the exception for an unknown id.
    const NOT_FOUND: &'static str;
    /// The thing's name in that exception's message.
    const TITLE: &'static str;
    /// How that message ends.
    const ABSENT: &'static str = "could not be found.";
    /// Filters beside those on attributes.
    const EXTRA_FILTERS: &'static [&'static str] = &["tags", "tags-any", "not-tags", "not-tags-any"];
    const FIELDS: &'static [Field<Self>];
    /// Whether a marker has to exist. One that need not is ignored.
    const KNOWS_MARKER: bool = true;

    fn id(&self) -> &str;
    fn find<'a>(api: &Api<'a>, id: &str) -> Option<&'a Arc<Self>>;
    /// Everything that can pass the request's filters, in the order of ids.
    fn candidates<'a>(api: &Api<'a>) -> Vec<&'a Arc<Self>>;
    /// Whether the caller may see it.
    fn visible(&self, api: &Api<'_>) -> bool;
    fn tags(&self) -> &[String] {
        &[]
    }
    /// A filter on fixed addresses: key and value. No answer if there is no such key.
    fn has_fixed_ip(&self, _key: &str, _value: &str) -> Option<bool> {
        None
    }
    /// Whether an attribute is there at all.
    fn has(&self, _field: &str) -> bool {
        true
    }
}

impl Resource for Network {
    const SINGULAR: &'static str = "network";
    const PLURAL: &'static str = "networks";
    const NOT_FOUND: &'static str = "NetworkNotFound";
    const TITLE: &'static str = "Network";
    const FIELDS: &'static [Field<Self>] = &[
        field("id", Kind::FilterSort, |net, _| json!(net.id)),
        field("name", Kind::FilterSort, |net, _| json!(net.name)),
        field("tenant_id", Kind::FilterSort, |net, _| json!(net.project_id)),
        field("admin_state_up", Kind::FilterSort, |_, _| json!(true)),
        field("mtu", Kind::FilterSort, |net, _| {
            json!(if net.external { 1500 } else { 1450 })
        }),
        field("status", Kind::FilterSort, |_, _| json!("ACTIVE")),
        field("subnets", Kind::Shown, |net, _| json!(net.subnets)),
        field("shared", Kind::Filter, |net, _| json!(net.shared)),
        field("availability_zone_hints", Kind::Shown, |_, _| json!([])),
        field("availability_zones", Kind::Shown, |_, _| json!([])),
        field("ipv4_address_scope", Kind::Shown, |_, _| Value::Null),
        field("ipv6_address_scope", Kind::Shown, |_, _| Value::Null),
        field("router:external", Kind::Filter, |net, _| json!(net.external)),
        field("is_default", Kind::Filter, |_, _| json!(false)),
        field("qinq", Kind::Shown, |_, _| json!(false)),
        field("vlan_transparent", Kind::Shown, |_, _| json!(false)),
        field("description", Kind::Filter, |_, _| json!("")),
        field("port_security_enabled", Kind::Shown, |_, _| json!(true)),
        field("tags", Kind::Shown, |net, _| json!(net.tags)),
        field("created_at", Kind::Shown, |net, _| json!(net.created)),
        field("updated_at", Kind::Shown, |net, _| json!(net.created)),
        field("revision_number", Kind::Filter, |net, _| {
            json!(1 + net.subnets.len())
        }),
        field("project_id", Kind::FilterSort, |net, _| json!(net.project_id)),
    ];

    fn id(&self) -> &str {
        &self.id
    }

    fn find<'a>(api: &Api<'a>, id: &str) -> Option<&'a Arc<Self>> {
        api.region.network.networks.get(id)
    }

    fn candidates<'a>(api: &Api<'a>) -> Vec<&'a Arc<Self>> {
        api.region.network.networks.values().collect()
    }

    fn visible(&self, api: &Api<'_>) -> bool {
        api.caller.admin || self.project_id == api.caller.project_id || self.shared || self.external
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }

    fn has(&self, field: &str) -> bool {
        field != "is_default" || self.external
    }
}

impl Resource for Subnet {
    const SINGULAR: &'static str = "subnet";
    const PLURAL: &'static str = "subnets";
    const NOT_FOUND: &'static str = "SubnetNotFound";
    const KNOWS_MARKER: bool = false;
    const TITLE: &'static str = "Subnet";
    const FIELDS: &'static [Field<Self>] = &[
        field("id", Kind::FilterSort, |subnet, _| json!(subnet.id)),
        field("name", Kind::FilterSort, |subnet, _| json!(subnet.name)),
        field("tenant_id", Kind::FilterSort, |subnet, _| {
            json!(subnet.project_id)
        }),
        field("network_id", Kind::FilterSort, |subnet, _| {
            json!(subnet.network_id)
        }),
        field("ip_version", Kind::FilterSort, |subnet, _| {
            json!(ip_version(&subnet.cidr))
        }),
        field("subnetpool_id", Kind::FilterSort, |_, _| Value::Null),
        field("enable_dhcp", Kind::FilterSort, |subnet, state| {
            json!(!subnet.is_external(state))
        }),
        field("ipv6_ra_mode", Kind::FilterSort, |subnet, _| slaac(&subnet.cidr)),
        field("ipv6_address_mode", Kind::FilterSort, |subnet, _| {
            slaac(&subnet.cidr)
        }),
        field("gateway_ip", Kind::FilterSort, |subnet, _| {
            json!(address_at(&subnet.cidr, 1))
        }),
        field("cidr", Kind::FilterSort, |subnet, _| json!(subnet.cidr)),
        field("allocation_pools", Kind::Shown, |subnet, _| pools(&subnet.cidr)),
        field("host_routes", Kind::Shown, |_, _| json!([])),
        field("dns_nameservers", Kind::Shown, |_, _| json!([])),
        field("description", Kind::Filter, |_, _| json!("")),
        field("service_types", Kind::Shown, |_, _| json!([])),
        field("router:external", Kind::Filter, |subnet, state| {
            json!(subnet.is_external(state))
        }),
        field("tags", Kind::Shown, |subnet, _| json!(subnet.tags)),
        field("created_at", Kind::Shown, |subnet, _| json!(subnet.created)),
        field("updated_at", Kind::Shown, |subnet, _| json!(subnet.created)),
        field("revision_number", Kind::Filter, |_, _| json!(0)),
        field("project_id", Kind::FilterSort, |subnet, _| {
            json!(subnet.project_id)
        }),
    ];

    fn id(&self) -> &str {
        &self.id
    }

    fn find<'a>(api: &Api<'a>, id: &str) -> Option<&'a Arc<Self>> {
        api.region.network.subnets.get(id)
    }

    fn candidates<'a>(api: &Api<'a>) -> Vec<&'a Arc<Self>> {
        api.region.network.subnets.values().collect()
    }

    fn visible(&self, api: &Api<'_>) -> bool {
        let shared = || {
            api.region
                .network
                .networks
                .get(&self.network_id)
                .is_some_and(|network| network.shared || network.external)
        };
        api.caller.admin || self.project_id == api.caller.project_id || shared()
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }
}

impl Resource for Port {
    const SINGULAR: &'static str = "port";
    const PLURAL: &'static str = "ports";
    const NOT_FOUND: &'static str = "PortNotFound";
    const TITLE: &'static str = "Port";
    const EXTRA_FILTERS: &'static [&'static str] = &[
        "tags",
        "tags-any",
        "not-tags",
        "not-tags-any",
        "fixed_ips",
        "security_groups",
    ];
    const FIELDS: &'static [Field<Self>] = &[
        field("id", Kind::FilterSort, |port, _| json!(port.id)),
        field("name", Kind::FilterSort, |port, _| json!(port.name)),
        field("network_id", Kind::FilterSort, |port, _| json!(port.network_id)),
        field("tenant_id", Kind::FilterSort, |port, _| json!(port.project_id)),
        field("mac_address", Kind::FilterSort, |port, _| json!(port.mac)),
        field("admin_state_up", Kind::FilterSort, |port, _| {
            json!(port.admin_state_up)
        }),
        field("status", Kind::FilterSort, |port, _| json!(port.status)),
        field("device_id", Kind::FilterSort, |port, _| json!(port.device_id)),
        field("device_owner", Kind::FilterSort, |port, _| {
            json!(port.device_owner)
        }),
        field("fixed_ips", Kind::Filter, |port, _| {
            let ips = port
                .fixed_ips
                .iter()
                .map(|ip| json!({"subnet_id": ip.subnet_id, "ip_address": ip.address}));
            Value::Array(ips.collect())
        }),
        field("allowed_address_pairs", Kind::Shown, |port, _| {
            let pairs = port.address_pairs.iter();
            pairs
                .map(|(address, mac)| json!({"ip_address": address, "mac_address": mac}))
                .collect()
        }),
        field("extra_dhcp_opts", Kind::Shown, |_, _| json!([])),
        field("security_groups", Kind::Filter, |port, _| {
            json!(port.security_groups)
        }),
        field("description", Kind::Filter, |port, _| json!(port.description)),
        field("binding:vnic_type", Kind::Shown, |_, _| json!("normal")),
        field("binding:host_id", Kind::Filter, |port, _| {
            json!(port.device_owner.replace(':', "-"))
        }),
        field("port_security_enabled", Kind::Shown, |port, _| {
            json!(port.port_security)
        }),
        field("tags", Kind::Shown, |port, _| json!(port.tags)),
        field("created_at", Kind::Shown, |port, _| json!(port.created)),
        field("updated_at", Kind::Shown, |port, _| json!(port.updated)),
        field("revision_number", Kind::Filter, |port, _| json!(port.revision)),
        field("project_id", Kind::FilterSort, |port, _| json!(port.project_id)),
        field("trunk_details", Kind::Shown, |port, _| {
            let Some(trunk) = &port.trunk else {
                return Value::Null;
            };
            let sub_ports = trunk.sub_ports.iter().map(|sub| {
                json!({
                    "segmentation_id": sub.segmentation_id,
                    "segmentation_type": "vlan",
                    "port_id": sub.port_id,
                    "mac_address": sub.mac,
                })
            });
            json!({"trunk_id": trunk.id, "sub_ports": sub_ports.collect::<Vec<_>>()})
        }),
    ];

    fn id(&self) -> &str {
        &self.id
    }

    fn find<'a>(api: &Api<'a>, id: &str) -> Option<&'a Arc<Self>> {
        api.region.network.ports.get(id)
    }

    fn candidates<'a>(api: &Api<'a>) -> Vec<&'a Arc<Self>> {
        let network = &api.region.network;
        let by_id: Vec<_> = api
            .request
            .all("id")
            .filter_map(|id| network.ports.get(id))
            .collect();
        let mut found = if api.request.all("id").next().is_some() {
            by_id
        } else if api.request.all("device_id").next().is_some() {
            api.request
                .all("device_id")
                .flat_map(|device| network.ports_of(device))
                .collect()
        } else {
            return network.ports.values().collect();
        };
        found.sort_by(|a, b| a.id.cmp(&b.id));
        found.dedup_by(|a, b| a.id == b.id);
        found
    }

    fn visible(&self, api: &Api<'_>) -> bool {
        let of_my_network = || {
            let network = api.region.network.networks.get(&self.network_id);
            network.is_some_and(|network| network.project_id == api.caller.project_id)
        };
        self.visible <= api.cloud.clock.now()
            && (api.caller.admin || self.project_id == api.caller.project_id || of_my_network())
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }

    fn has_fixed_ip(&self, key: &str, value: &str) -> Option<bool> {
        let mut ips = self.fixed_ips.iter();
        Some(match key {
            "ip_address" => ips.any(|ip| ip.address.to_string() == value),
            "ip_address_substr" => ips.any(|ip| ip.address.to_string().contains(value)),
            "subnet_id" => ips.any(|ip| ip.subnet_id == value),
            _ => return None,
        })
    }

    fn has(&self, field: &str) -> bool {
        // Who is no administrator may filter by the host and not see it.
        field != "binding:host_id" && (field != "trunk_details" || self.trunk.is_some())
    }
}

impl Subnet {
    fn is_external(&self, state: &NetworkState) -> bool {
        let network = state.networks.get(&self.network_id);
        network.is_some_and(|network| network.external)
    }
}

fn ip_version(cidr: &IpNet) -> u8 {
    if matches!(cidr, IpNet::V4(_)) { 4 } else { 6 }
}

fn slaac(cidr: &IpNet) -> Value {
    if matches!(cidr, IpNet::V4(_)) {
        Value::Null
    } else {
        json!("slaac")
    }
}

fn pools(cidr: &IpNet) -> Value {
    let last = match cidr {
        // The last address of an IPv4 network is its broadcast address.
        IpNet::V4(net) => net
            .broadcast()
            .to_bits()
            .checked_sub(1)
            .map(|bits| std::net::Ipv4Addr::from_bits(bits).to_string()),
        IpNet::V6(net) => Some(net.broadcast().to_string()),
    };
    json!([{"start": address_at(cidr, 2), "end": last}])
}
