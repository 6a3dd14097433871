//! The same of floating addresses, security groups, their rules, and routers.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Field, Kind, Resource, field};
use crate::openstack::neutron::Api;
use crate::openstack::region::{FloatingIp, NetworkState, Router, SecurityGroup, SecurityGroupRule};

const TAGS: &[&str] = &["tags", "tags-any", "not-tags", "not-tags-any"];

fn is_own(api: &Api<'_>, project: &str) -> bool {
    api.caller.admin || project == api.caller.project_id
}

impl Resource for FloatingIp {
    const SINGULAR: &'static str = "floatingip";
    const PLURAL: &'static str = "floatingips";
    const NOT_FOUND: &'static str = "FloatingIPNotFound";
    const TITLE: &'static str = "Floating IP";
    const ABSENT: &'static str = "could not be found";
    const FIELDS: &'static [Field<Self>] = &[
        field("id", Kind::FilterSort, |ip, _| json!(ip.id)),
        field("tenant_id", Kind::FilterSort, |ip, _| json!(ip.project_id)),
        field("project_id", Kind::FilterSort, |ip, _| json!(ip.project_id)),
        field("floating_ip_address", Kind::FilterSort, |ip, _| json!(ip.address)),
        field("floating_network_id", Kind::FilterSort, |ip, _| {
            json!(ip.network_id)
        }),
        field("router_id", Kind::FilterSort, |ip, _| json!(ip.router_id)),
        field("port_id", Kind::FilterSort, |ip, _| json!(ip.port_id)),
        field("fixed_ip_address", Kind::FilterSort, |ip, _| json!(ip.fixed)),
        field("status", Kind::FilterSort, |ip, _| json!(ip.status)),
        field("description", Kind::Filter, |ip, _| json!(ip.description)),
        field("port_details", Kind::Shown, |ip, state| {
            let Some(port) = ip.port_id.as_ref().and_then(|id| state.ports.get(id)) else {
                return Value::Null;
            };
            json!({
                "name": port.name,
                "network_id": port.network_id,
                "mac_address": port.mac,
                "admin_state_up": port.admin_state_up,
                "status": port.status,
                "device_id": port.device_id,
                "device_owner": port.device_owner,
            })
        }),
        field("tags", Kind::Shown, |ip, _| json!(ip.tags)),
        field("created_at", Kind::Shown, |ip, _| json!(ip.created)),
        field("updated_at", Kind::Shown, |ip, _| json!(ip.updated)),
        field("revision_number", Kind::Filter, |ip, _| json!(ip.revision)),
    ];

    fn id(&self) -> &str {
        &self.id
    }

    fn find<'a>(api: &Api<'a>, id: &str) -> Option<&'a Arc<Self>> {
        api.region.network.floating.get(id)
    }

    fn candidates<'a>(api: &Api<'a>) -> Vec<&'a Arc<Self>> {
        api.region.network.floating.values().collect()
    }

    fn visible(&self, api: &Api<'_>) -> bool {
        is_own(api, &self.project_id)
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }
}

impl Resource for SecurityGroup {
    const SINGULAR: &'static str = "security_group";
    const PLURAL: &'static str = "security_groups";
    const NOT_FOUND: &'static str = "SecurityGroupNotFound";
    const TITLE: &'static str = "Security group";
    const ABSENT: &'static str = "does not exist";
    const FIELDS: &'static [Field<Self>] = &[
        field("id", Kind::FilterSort, |group, _| json!(group.id)),
        field("name", Kind::FilterSort, |group, _| json!(group.name)),
        field("stateful", Kind::FilterSort, |group, _| json!(group.stateful)),
        field("tenant_id", Kind::FilterSort, |group, _| json!(group.project_id)),
        field("project_id", Kind::FilterSort, |group, _| json!(group.project_id)),
        field("description", Kind::Filter, |group, _| json!(group.description)),
        field("shared", Kind::Filter, |_, _| json!(false)),
        field("security_group_rules", Kind::Shown, |group, state| {
            let rules = group.rules.iter().filter_map(|id| state.rules.get(id));
            rules.map(|rule| inside_group(rule, state)).collect()
        }),
        field("tags", Kind::Shown, |group, _| json!(group.tags)),
        field("created_at", Kind::Shown, |group, _| json!(group.created)),
        field("updated_at", Kind::Shown, |group, _| json!(group.updated)),
        field("revision_number", Kind::Filter, |group, _| json!(group.revision)),
    ];

    fn id(&self) -> &str {
        &self.id
    }

    fn find<'a>(api: &Api<'a>, id: &str) -> Option<&'a Arc<Self>> {
        api.region.network.groups.get(id)
    }

    fn candidates<'a>(api: &Api<'a>) -> Vec<&'a Arc<Self>> {
        api.region.network.groups.values().collect()
    }

    fn visible(&self, api: &Api<'_>) -> bool {
        is_own(api, &self.project_id)
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }
}

/// A rule as a group shows it, with more than the rule shows of itself.
fn inside_group(rule: &SecurityGroupRule, state: &NetworkState) -> Value {
    let mut fields: serde_json::Map<String, Value> = SecurityGroupRule::FIELDS
        .iter()
        .map(|field| (field.name.to_owned(), (field.get)(rule, state)))
        .collect();
    fields.insert("belongs_to_default_sg".to_owned(), Value::Null);
    fields.insert("tags".to_owned(), json!([]));
    // A number in the service's database, which means nothing outside.
    let number = rule
        .id
        .get(..6)
        .and_then(|digits| u32::from_str_radix(digits, 16).ok());
    fields.insert("standard_attr_id".to_owned(), json!(number.unwrap_or_default()));
    Value::Object(fields)
}

impl Resource for SecurityGroupRule {
    const SINGULAR: &'static str = "security_group_rule";
    const PLURAL: &'static str = "security_group_rules";
    const NOT_FOUND: &'static str = "SecurityGroupRuleNotFound";
    const TITLE: &'static str = "Security group rule";
    const ABSENT: &'static str = "does not exist";
    const EXTRA_FILTERS: &'static [&'static str] = &[];
    const FIELDS: &'static [Field<Self>] = &[
        field("id", Kind::FilterSort, |rule, _| json!(rule.id)),
        field("project_id", Kind::FilterSort, |rule, _| json!(rule.project_id)),
        field("security_group_id", Kind::FilterSort, |rule, _| {
            json!(rule.group_id)
        }),
        field("ethertype", Kind::FilterSort, |rule, _| json!(rule.ethertype)),
        field("direction", Kind::FilterSort, |rule, _| json!(rule.direction)),
        field("protocol", Kind::FilterSort, |rule, _| json!(rule.protocol)),
        field("port_range_min", Kind::FilterSort, |rule, _| json!(rule.port_min)),
        field("port_range_max", Kind::FilterSort, |rule, _| json!(rule.port_max)),
        field("remote_ip_prefix", Kind::FilterSort, |rule, _| {
            json!(rule.remote_prefix)
        }),
        field("remote_address_group_id", Kind::FilterSort, |_, _| Value::Null),
        field("normalized_cidr", Kind::Filter, |rule, _| {
            let net = rule
                .remote_prefix
                .as_ref()
                .and_then(|prefix| prefix.parse::<ipnet::IpNet>().ok());
            json!(net.map(|net| net.trunc()))
        }),
        field("remote_group_id", Kind::FilterSort, |rule, _| {
            json!(rule.remote_group)
        }),
        field("belongs_to_default_sg", Kind::Filter, |rule, state| {
            json!(state.is_default_group(&rule.group_id))
        }),
        field("description", Kind::Filter, |rule, _| json!(rule.description)),
        field("created_at", Kind::Shown, |rule, _| json!(rule.created)),
        field("updated_at", Kind::Shown, |rule, _| json!(rule.created)),
        field("revision_number", Kind::Filter, |_, _| json!(0)),
        field("tenant_id", Kind::FilterSort, |rule, _| json!(rule.project_id)),
    ];

    fn id(&self) -> &str {
        &self.id
    }

    fn find<'a>(api: &Api<'a>, id: &str) -> Option<&'a Arc<Self>> {
        api.region.network.rules.get(id)
    }

    fn candidates<'a>(api: &Api<'a>) -> Vec<&'a Arc<Self>> {
        api.region.network.rules.values().collect()
    }

    fn visible(&self, api: &Api<'_>) -> bool {
        is_own(api, &self.project_id)
    }
}

impl Resource for Router {
    const SINGULAR: &'static str = "router";
    const PLURAL: &'static str = "routers";
    const NOT_FOUND: &'static str = "RouterNotFound";
    const TITLE: &'static str = "Router";
    const ABSENT: &'static str = "could not be found";
    const EXTRA_FILTERS: &'static [&'static str] = TAGS;
    const FIELDS: &'static [Field<Self>] = &[
        field("id", Kind::FilterSort, |router, _| json!(router.id)),
        field("name", Kind::FilterSort, |router, _| json!(router.name)),
        field("project_id", Kind::FilterSort, |router, _| {
            json!(router.project_id)
        }),
        field("admin_state_up", Kind::FilterSort, |_, _| json!(true)),
        field("status", Kind::FilterSort, |_, _| json!("ACTIVE")),
        field("external_gateway_info", Kind::Shown, |router, _| {
            let Some((network, fixed, _)) = &router.gateway else {
                return Value::Null;
            };
            json!({
                "network_id": network,
                "external_fixed_ips": [{"subnet_id": fixed.subnet_id, "ip_address": fixed.address}],
                "enable_snat": true,
            })
        }),
        field("description", Kind::Filter, |_, _| json!("")),
        field("availability_zones", Kind::Shown, |_, _| json!([])),
        field("availability_zone_hints", Kind::Shown, |_, _| json!([])),
        field("routes", Kind::Shown, |router, _| {
            let routes = router.routes.iter();
            routes
                .map(|route| json!({"destination": route.destination, "nexthop": route.nexthop}))
                .collect()
        }),
        field("flavor_id", Kind::Filter, |_, _| Value::Null),
        field("tags", Kind::Shown, |router, _| json!(router.tags)),
        field("created_at", Kind::Shown, |router, _| json!(router.created)),
        field("updated_at", Kind::Shown, |router, _| json!(router.updated)),
        field("revision_number", Kind::Filter, |router, _| {
            json!(router.revision)
        }),
        field("tenant_id", Kind::FilterSort, |router, _| {
            json!(router.project_id)
        }),
    ];

    fn id(&self) -> &str {
        &self.id
    }

    fn find<'a>(api: &Api<'a>, id: &str) -> Option<&'a Arc<Self>> {
        api.region.network.routers.get(id)
    }

    fn candidates<'a>(api: &Api<'a>) -> Vec<&'a Arc<Self>> {
        api.region.network.routers.values().collect()
    }

    fn visible(&self, api: &Api<'_>) -> bool {
        is_own(api, &self.project_id)
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }
}
