//! Creation, change and deletion of security groups and their rules.

use http::StatusCode;
use ipnet::IpNet;
use serde_json::{Map, Value};

use super::body::{self, Attribute, AttributeKind, free, needed, once, shown};
use super::{NeutronEdit, NeutronFault};
use crate::openstack::region::{SecurityGroup, SecurityGroupRule};

const GROUP: &[Attribute] = &[
    free("name", AttributeKind::Text),
    free("description", AttributeKind::Text),
    free("stateful", AttributeKind::Bool),
    shown("id"),
    shown("security_group_rules"),
    shown("tags"),
    shown("shared"),
    shown("created_at"),
    shown("updated_at"),
    shown("revision_number"),
];

const RULE: &[Attribute] = &[
    needed("security_group_id", AttributeKind::Other),
    needed("direction", AttributeKind::Other),
    once("ethertype", AttributeKind::Other),
    once("protocol", AttributeKind::Other),
    once("port_range_min", AttributeKind::Other),
    once("port_range_max", AttributeKind::Other),
    once("remote_ip_prefix", AttributeKind::Other),
    once("remote_group_id", AttributeKind::Other),
    once("remote_address_group_id", AttributeKind::Other),
    free("description", AttributeKind::Text),
    shown("id"),
    shown("normalized_cidr"),
    shown("belongs_to_default_sg"),
    shown("created_at"),
    shown("updated_at"),
    shown("revision_number"),
];

/// `POST /v2.0/security-groups`.
pub(super) fn create(edit: &mut NeutronEdit<'_>) -> Result<String, NeutronFault> {
    let fields = body::resource(edit.request, "security_group", GROUP, true)?;
    let name = body::text(&fields, "name").unwrap_or_default().to_owned();
    if name == "default" {
        return Err(NeutronFault::new(
            StatusCode::CONFLICT,
            "SecurityGroupDefaultAlreadyExists",
            "Default security group already exists.",
        ));
    }
    let project = edit.caller.project_id.clone();
    let groups = edit.region.network.groups.values();
    let have = groups.filter(|group| group.project_id == project).count();
    edit.check_quota("security_group", have)?;
    let rules = edit.region.network.rules.values();
    let have = rules.filter(|rule| rule.project_id == project).count();
    edit.check_quota("security_group_rule", have + 1)?;
    let description = body::text(&fields, "description").unwrap_or_default();
    let now = edit.cloud.clock.now();
    let id = edit.region.network.create_group(&project, &name, description, now, &edit.cloud.ids);
    Ok(id)
}

/// `DELETE /v2.0/security-groups/{id}`.
pub(super) fn delete(edit: &mut NeutronEdit<'_>, id: &str) -> Result<(), NeutronFault> {
    edit.find::<SecurityGroup>(id)?;
    if edit.region.network.is_default_group(id) && !edit.caller.admin {
        return Err(NeutronFault::new(
            StatusCode::CONFLICT,
            "SecurityGroupCannotRemoveDefault",
            "Insufficient rights for removing default security group.",
        ));
    }
    if edit.region.network.is_group_in_use(id) {
        return Err(NeutronFault::new(
            StatusCode::CONFLICT,
            "SecurityGroupInUse",
            format!("Security Group {id} in use."),
        ));
    }
    edit.region.network.remove_group(id);
    Ok(())
}

const PROTOCOLS: [&str; 26] = [
    "any",
    "ah",
    "dccp",
    "egp",
    "esp",
    "gre",
    "hopopt",
    "icmp",
    "igmp",
    "ip",
    "ipip",
    "ipv6-encap",
    "ipv6-frag",
    "ipv6-icmp",
    "icmpv6",
    "ipv6-nonxt",
    "ipv6-opts",
    "ipv6-route",
    "ospf",
    "pgm",
    "rsvp",
    "sctp",
    "tcp",
    "udp",
    "udplite",
    "vrrp",
];

fn refuse(class: &'static str, message: impl Into<String>) -> NeutronFault {
    NeutronFault::new(StatusCode::BAD_REQUEST, class, message)
}

/// `POST /v2.0/security-group-rules`.
pub(super) fn create_rule(edit: &mut NeutronEdit<'_>) -> Result<String, NeutronFault> {
    let fields = body::resource(edit.request, "security_group_rule", RULE, true)?;
    let rule = wanted_rule(edit, &fields)?;
    let group = edit.find::<SecurityGroup>(&rule.group_id)?;
    let rules = edit.region.network.rules.values();
    let have = rules.filter(|known| known.project_id == rule.project_id).count();
    edit.check_quota("security_group_rule", have)?;
    let rules = &edit.region.network.rules;
    let same = group.rules.iter().filter_map(|id| rules.get(id)).find(|known| known.is_like(&rule));
    if let Some(same) = same {
        let message = format!("Security group rule already exists. Rule id is {}.", same.id);
        return Err(NeutronFault::new(StatusCode::CONFLICT, "SecurityGroupRuleExists", message));
    }
    let id = rule.id.clone();
    edit.region.network.insert_rule(rule);
    Ok(id)
}

fn choice(fields: &Map<String, Value>, name: &str, of: &[&str]) -> Result<Option<String>, NeutronFault> {
    let Some(value) = fields.get(name) else {
        return Ok(None);
    };
    let text = value.as_str().unwrap_or_default();
    match of.iter().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) => Ok(Some((*known).to_owned())),
        None if name == "ethertype" => Err(refuse(
            "SecurityGroupRuleInvalidEtherType",
            format!(
                "Security group rule for ethertype '{}' not supported. Allowed values are ['IPv4', 'IPv6'].",
                body::python(value)
            ),
        )),
        None => {
            let reason = format!("{} is not in valid_values.", body::python(value));
            Err(body::invalid(name, &reason))
        }
    }
}

fn port_number(fields: &Map<String, Value>, name: &str) -> Result<Option<i64>, NeutronFault> {
    let Some(value) = fields.get(name).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let number = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    match number {
        Some(number) if (0..=65535).contains(&number) => Ok(Some(number)),
        _ => Err(refuse(
            "SecurityGroupInvalidPortValue",
            format!("Invalid value for port {}", body::python(value)),
        )),
    }
}

fn wanted_rule(
    edit: &NeutronEdit<'_>,
    fields: &Map<String, Value>,
) -> Result<SecurityGroupRule, NeutronFault> {
    let direction = choice(fields, "direction", &["ingress", "egress"])?.unwrap_or_default();
    let ethertype = choice(fields, "ethertype", &["IPv4", "IPv6"])?.unwrap_or_else(|| "IPv4".to_owned());
    let protocol = match fields.get("protocol") {
        None | Some(Value::Null) => None,
        Some(value) => {
            let text = body::python(value).to_lowercase();
            let known = PROTOCOLS.contains(&&*text)
                || text.parse::<i64>().is_ok_and(|number| (0..=255).contains(&number));
            if !known {
                let known: Vec<String> = PROTOCOLS.iter().map(|known| format!("'{known}'")).collect();
                return Err(refuse(
                    "SecurityGroupRuleInvalidProtocol",
                    format!(
                        "Security group rule protocol {text} not supported. Only protocol values (None, {}) and \
                         integer representations [0 to 255] are supported.",
                        known.join(", ")
                    ),
                ));
            }
            Some(text)
        }
    };
    let (port_min, port_max) =
        (port_number(fields, "port_range_min")?, port_number(fields, "port_range_max")?);
    let prefix = match fields.get("remote_ip_prefix") {
        None | Some(Value::Null) => None,
        Some(value) => {
            let text = body::python(value);
            // A single address is a network of its own.
            let whole = match text.parse::<std::net::IpAddr>() {
                Ok(address) => Some(IpNet::from(address)),
                Err(_) => text.parse().ok(),
            };
            let Some(net) = whole else {
                return Err(refuse("InvalidCIDR", format!("Invalid CIDR {text} given as IP prefix.")));
            };
            Some((text, net))
        }
    };
    let ports = (port_min, port_max);
    let ranged = matches!(
        protocol.as_deref(),
        Some("tcp" | "udp" | "sctp" | "dccp" | "udplite" | "6" | "17" | "132" | "33" | "136")
    );
    if ranged {
        let ordered = match ports {
            (None, None) => true,
            (Some(min), Some(max)) => min <= max,
            _ => false,
        };
        if !ordered {
            return Err(refuse(
                "SecurityGroupInvalidPortRange",
                "For TCP/UDP protocols, port_range_min must be <= port_range_max",
            ));
        }
    } else if protocol.is_none() && (port_min.is_some() || port_max.is_some()) {
        return Err(refuse(
            "SecurityGroupProtocolRequiredWithPorts",
            "Must also specify protocol if port range is given.",
        ));
    }
    if let Some((text, net)) = &prefix {
        let family = if matches!(net, IpNet::V4(_)) {
            "IPv4"
        } else {
            "IPv6"
        };
        if family != ethertype {
            return Err(refuse(
                "SecurityGroupRuleParameterConflict",
                format!("Conflicting value ethertype {ethertype} for CIDR {text}"),
            ));
        }
    }
    let remote_group = body::text(fields, "remote_group_id").map(str::to_owned);
    if prefix.is_some() && remote_group.is_some() {
        return Err(refuse(
            "SecurityGroupMultipleRemoteEntites",
            "Only one of remote_ip_prefix or remote_group_id or remote_address_group_id may be provided.",
        ));
    }
    Ok(SecurityGroupRule {
        id: edit.cloud.ids.uuid(),
        project_id: edit.caller.project_id.clone(),
        group_id: body::text(fields, "security_group_id").unwrap_or_default().to_owned(),
        direction,
        ethertype,
        protocol,
        port_min,
        port_max,
        remote_prefix: prefix.map(|(text, net)| if text.contains('/') { text } else { net.to_string() }),
        remote_group,
        description: Some(body::text(fields, "description").unwrap_or_default().to_owned()),
        created: crate::clock::seconds(edit.cloud.clock.now()),
    })
}

/// `DELETE /v2.0/security-group-rules/{id}`.
pub(super) fn delete_rule(edit: &mut NeutronEdit<'_>, id: &str) -> Result<(), NeutronFault> {
    edit.find::<SecurityGroupRule>(id)?;
    let now = edit.cloud.clock.now();
    edit.region.network.remove_rule(id, now);
    Ok(())
}
