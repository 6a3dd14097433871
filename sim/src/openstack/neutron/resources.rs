//! The documents and filters of Neutron's resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::NeutronApi;
use crate::openstack::ids::address_at;
use crate::openstack::region::{
    FloatingIp, Network, NetworkState, Port, Router, SecurityGroup, SecurityGroupRule, Subnet,
};

/// A kind of resource.
pub(super) trait Resource: Sized + 'static {
    const SINGULAR: &'static str;
    const PLURAL: &'static str;
    /// Class of the exception for an unknown id.
    const NOT_FOUND: &'static str;
    /// The resource's name in that exception's message.
    const TITLE: &'static str;
    /// The end of that message.
    const ABSENT: &'static str = "could not be found.";
    /// Attributes by which a listing can be filtered.
    const FILTERS: &'static [&'static str];
    /// Whether a marker has to exist. Otherwise an unknown one is ignored.
    const KNOWS_MARKER: bool = true;

    fn project(&self) -> &str;
    fn all(state: &NetworkState) -> &BTreeMap<String, Arc<Self>>;
    /// Whether other projects see it, too.
    fn is_shared(&self, _: &NeutronApi<'_>) -> bool {
        false
    }
    /// All objects that can match the request's filters, in the order of IDs.
    fn candidates<'a>(api: &NeutronApi<'a>) -> Vec<&'a Arc<Self>> {
        Self::all(&api.region.network).values().collect()
    }
    /// All attributes that are visible to the caller.
    fn document(&self, state: &NetworkState) -> Value;
}

/// The collection of a kind of resource.
macro_rules! stored {
    ($place:ident) => {
        fn project(&self) -> &str {
            &self.project_id
        }

        fn all(state: &NetworkState) -> &BTreeMap<String, Arc<Self>> {
            &state.$place
        }
    };
}

impl Resource for Network {
    const SINGULAR: &'static str = "network";
    const PLURAL: &'static str = "networks";
    const NOT_FOUND: &'static str = "NetworkNotFound";
    const TITLE: &'static str = "Network";
    const FILTERS: &'static [&'static str] = &[
        "id",
        "name",
        "tenant_id",
        "project_id",
        "admin_state_up",
        "mtu",
        "status",
        "shared",
        "router:external",
        "is_default",
        "description",
        "revision_number",
    ];

    stored!(networks);

    fn is_shared(&self, _: &NeutronApi<'_>) -> bool {
        self.shared || self.external
    }

    fn document(&self, _: &NetworkState) -> Value {
        let mut shown = json!({
            "id": self.id,
            "name": self.name,
            "tenant_id": self.project_id,
            "project_id": self.project_id,
            "admin_state_up": true,
            "mtu": if self.external { 1500 } else { 1450 },
            "status": "ACTIVE",
            "subnets": self.subnets,
            "shared": self.shared,
            "availability_zone_hints": [],
            "availability_zones": [],
            "ipv4_address_scope": null,
            "ipv6_address_scope": null,
            "router:external": self.external,
            "qinq": false,
            "vlan_transparent": false,
            "description": "",
            "port_security_enabled": true,
            "tags": self.tags,
            "created_at": self.created,
            "updated_at": self.created,
            "revision_number": 1 + self.subnets.len(),
        });
        if self.external {
            shown["is_default"] = json!(false);
        }
        shown
    }
}

impl Resource for Subnet {
    const SINGULAR: &'static str = "subnet";
    const PLURAL: &'static str = "subnets";
    const NOT_FOUND: &'static str = "SubnetNotFound";
    const TITLE: &'static str = "Subnet";
    const KNOWS_MARKER: bool = false;
    const FILTERS: &'static [&'static str] = &[
        "id",
        "name",
        "tenant_id",
        "project_id",
        "network_id",
        "ip_version",
        "subnetpool_id",
        "enable_dhcp",
        "ipv6_ra_mode",
        "ipv6_address_mode",
        "gateway_ip",
        "cidr",
        "description",
        "router:external",
        "revision_number",
    ];

    stored!(subnets);

    fn is_shared(&self, api: &NeutronApi<'_>) -> bool {
        let network = api.region.network.networks.get(&self.network_id);
        network.is_some_and(|network| network.is_shared(api))
    }

    fn document(&self, state: &NetworkState) -> Value {
        let external = state.networks.get(&self.network_id).is_some_and(|network| network.external);
        let v4 = matches!(self.cidr, IpNet::V4(_));
        let slaac = (!v4).then_some("slaac");
        json!({
            "id": self.id,
            "name": self.name,
            "tenant_id": self.project_id,
            "project_id": self.project_id,
            "network_id": self.network_id,
            "ip_version": if v4 { 4 } else { 6 },
            "subnetpool_id": null,
            "enable_dhcp": !external,
            "ipv6_ra_mode": slaac,
            "ipv6_address_mode": slaac,
            "gateway_ip": address_at(&self.cidr, 1),
            "cidr": self.cidr,
            "allocation_pools": pools(&self.cidr),
            "host_routes": [],
            "dns_nameservers": [],
            "description": "",
            "service_types": [],
            "router:external": external,
            "tags": self.tags,
            "created_at": self.created,
            "updated_at": self.created,
            "revision_number": 0,
        })
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

impl Resource for Port {
    const SINGULAR: &'static str = "port";
    const PLURAL: &'static str = "ports";
    const NOT_FOUND: &'static str = "PortNotFound";
    const TITLE: &'static str = "Port";
    const FILTERS: &'static [&'static str] = &[
        "id",
        "name",
        "tenant_id",
        "project_id",
        "network_id",
        "mac_address",
        "admin_state_up",
        "status",
        "device_id",
        "device_owner",
        "fixed_ips",
        "security_groups",
        "description",
        "binding:host_id",
        "revision_number",
    ];

    stored!(ports);

    fn is_shared(&self, api: &NeutronApi<'_>) -> bool {
        let network = api.region.network.networks.get(&self.network_id);
        network.is_some_and(|network| network.project_id == api.caller.project_id)
    }

    fn candidates<'a>(api: &NeutronApi<'a>) -> Vec<&'a Arc<Self>> {
        let (network, request) = (&api.region.network, api.request);
        let mut found: Vec<_> = if request.last("id").is_some() {
            let ids = request.all("id");
            ids.filter_map(|id| network.ports.get(id)).collect()
        } else if request.last("device_id").is_some() {
            let devices = request.all("device_id");
            devices.flat_map(|device| network.ports_of(device)).collect()
        } else {
            return network.ports.values().collect();
        };
        found.sort_by(|a, b| a.id.cmp(&b.id));
        found.dedup_by(|a, b| a.id == b.id);
        found
    }

    fn document(&self, _: &NetworkState) -> Value {
        let fixed_ips = self.fixed_ips.iter();
        let pairs = self.address_pairs.iter();
        let mut shown = json!({
            "id": self.id,
            "name": self.name,
            "network_id": self.network_id,
            "tenant_id": self.project_id,
            "project_id": self.project_id,
            "mac_address": self.mac,
            "admin_state_up": self.admin_state_up,
            "status": self.status,
            "device_id": self.device_id,
            "device_owner": self.device_owner,
            "fixed_ips": fixed_ips
                .map(|ip| json!({"subnet_id": ip.subnet_id, "ip_address": ip.address}))
                .collect::<Value>(),
            "allowed_address_pairs": pairs
                .map(|(address, mac)| json!({"ip_address": address, "mac_address": mac}))
                .collect::<Value>(),
            "extra_dhcp_opts": [],
            "security_groups": self.security_groups,
            "description": self.description,
            "binding:vnic_type": "normal",
            "port_security_enabled": self.port_security,
            "tags": self.tags,
            "created_at": self.created,
            "updated_at": self.updated,
            "revision_number": self.revision,
        });
        if let (Some(trunk), Some(fields)) = (&self.trunk, shown.as_object_mut()) {
            let sub_ports = trunk.sub_ports.iter().map(|sub| {
                json!({
                    "segmentation_id": sub.segmentation_id,
                    "segmentation_type": "vlan",
                    "port_id": sub.port_id,
                    "mac_address": sub.mac,
                })
            });
            let details = json!({"trunk_id": trunk.id, "sub_ports": sub_ports.collect::<Value>()});
            fields.insert("trunk_details".to_owned(), details);
        }
        shown
    }
}

impl Resource for FloatingIp {
    const SINGULAR: &'static str = "floatingip";
    const PLURAL: &'static str = "floatingips";
    const NOT_FOUND: &'static str = "FloatingIPNotFound";
    const TITLE: &'static str = "Floating IP";
    const ABSENT: &'static str = "could not be found";
    const FILTERS: &'static [&'static str] = &[
        "id",
        "tenant_id",
        "project_id",
        "floating_ip_address",
        "floating_network_id",
        "router_id",
        "port_id",
        "fixed_ip_address",
        "status",
        "description",
        "revision_number",
    ];

    stored!(floating);

    fn document(&self, state: &NetworkState) -> Value {
        let port = self.port_id.as_ref().and_then(|id| state.ports.get(id)).map(|port| {
            json!({
                "name": port.name,
                "network_id": port.network_id,
                "mac_address": port.mac,
                "admin_state_up": port.admin_state_up,
                "status": port.status,
                "device_id": port.device_id,
                "device_owner": port.device_owner,
            })
        });
        json!({
            "id": self.id,
            "tenant_id": self.project_id,
            "project_id": self.project_id,
            "floating_ip_address": self.address,
            "floating_network_id": self.network_id,
            "router_id": self.router_id,
            "port_id": self.port_id,
            "fixed_ip_address": self.fixed,
            "status": self.status,
            "description": self.description,
            "port_details": port,
            "tags": self.tags,
            "created_at": self.created,
            "updated_at": self.updated,
            "revision_number": self.revision,
        })
    }
}

impl Resource for SecurityGroup {
    const SINGULAR: &'static str = "security_group";
    const PLURAL: &'static str = "security_groups";
    const NOT_FOUND: &'static str = "SecurityGroupNotFound";
    const TITLE: &'static str = "Security group";
    const ABSENT: &'static str = "does not exist";
    const FILTERS: &'static [&'static str] = &[
        "id",
        "name",
        "stateful",
        "tenant_id",
        "project_id",
        "description",
        "shared",
        "revision_number",
    ];

    stored!(groups);

    fn document(&self, state: &NetworkState) -> Value {
        let rules = self.rules.iter().filter_map(|id| state.rules.get(id));
        json!({
            "id": self.id,
            "name": self.name,
            "stateful": self.stateful,
            "tenant_id": self.project_id,
            "project_id": self.project_id,
            "description": self.description,
            "shared": false,
            "security_group_rules": rules.map(|rule| inside_group(rule, state)).collect::<Value>(),
            "tags": self.tags,
            "created_at": self.created,
            "updated_at": self.updated,
            "revision_number": self.revision,
        })
    }
}

/// A rule in the document of its group, which has additional fields.
fn inside_group(rule: &SecurityGroupRule, state: &NetworkState) -> Value {
    let mut shown = rule.document(state);
    // A number in the service's database without a meaning for clients.
    let digits = rule.id.get(..6).unwrap_or_default();
    let number = u32::from_str_radix(digits, 16).unwrap_or_default();
    if let Some(fields) = shown.as_object_mut() {
        fields.insert("belongs_to_default_sg".to_owned(), Value::Null);
        fields.insert("tags".to_owned(), json!([]));
        fields.insert("standard_attr_id".to_owned(), json!(number));
    }
    shown
}

impl Resource for SecurityGroupRule {
    const SINGULAR: &'static str = "security_group_rule";
    const PLURAL: &'static str = "security_group_rules";
    const NOT_FOUND: &'static str = "SecurityGroupRuleNotFound";
    const TITLE: &'static str = "Security group rule";
    const ABSENT: &'static str = "does not exist";
    const FILTERS: &'static [&'static str] = &[
        "id",
        "tenant_id",
        "project_id",
        "security_group_id",
        "ethertype",
        "direction",
        "protocol",
        "port_range_min",
        "port_range_max",
        "remote_ip_prefix",
        "remote_address_group_id",
        "normalized_cidr",
        "remote_group_id",
        "belongs_to_default_sg",
        "description",
        "revision_number",
    ];

    stored!(rules);

    fn document(&self, state: &NetworkState) -> Value {
        let prefix = self.remote_prefix.as_deref();
        let net = prefix.and_then(|prefix| prefix.parse::<IpNet>().ok());
        json!({
            "id": self.id,
            "tenant_id": self.project_id,
            "project_id": self.project_id,
            "security_group_id": self.group_id,
            "ethertype": self.ethertype,
            "direction": self.direction,
            "protocol": self.protocol,
            "port_range_min": self.port_min,
            "port_range_max": self.port_max,
            "remote_ip_prefix": prefix,
            "remote_address_group_id": null,
            "normalized_cidr": net.map(|net| net.trunc()),
            "remote_group_id": self.remote_group,
            "belongs_to_default_sg": state.is_default_group(&self.group_id),
            "description": self.description,
            "created_at": self.created,
            "updated_at": self.created,
            "revision_number": 0,
        })
    }
}

impl Resource for Router {
    const SINGULAR: &'static str = "router";
    const PLURAL: &'static str = "routers";
    const NOT_FOUND: &'static str = "RouterNotFound";
    const TITLE: &'static str = "Router";
    const ABSENT: &'static str = "could not be found";
    const FILTERS: &'static [&'static str] = &[
        "id",
        "name",
        "tenant_id",
        "project_id",
        "admin_state_up",
        "status",
        "description",
        "flavor_id",
        "revision_number",
    ];

    stored!(routers);

    fn document(&self, _: &NetworkState) -> Value {
        let gateway = self.gateway.as_ref().map(|(network, fixed, _)| {
            json!({
                "network_id": network,
                "external_fixed_ips": [{"subnet_id": fixed.subnet_id, "ip_address": fixed.address}],
                "enable_snat": true,
            })
        });
        let routes = self.routes.iter();
        json!({
            "id": self.id,
            "name": self.name,
            "tenant_id": self.project_id,
            "project_id": self.project_id,
            "admin_state_up": true,
            "status": "ACTIVE",
            "external_gateway_info": gateway,
            "description": "",
            "availability_zones": [],
            "availability_zone_hints": [],
            "routes": routes
                .map(|route| json!({"destination": route.destination, "nexthop": route.nexthop}))
                .collect::<Value>(),
            "flavor_id": null,
            "tags": self.tags,
            "created_at": self.created,
            "updated_at": self.updated,
            "revision_number": self.revision,
        })
    }
}
