//! From the objects of the API to the objects of parts, and back.

use std::collections::BTreeSet;

use ccm_core::plan::objects::Attributes;
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::{
    fields,
    kinds::{INSTANCES, InstanceEntry, Object, ObjectKind},
    names,
    settings::BalancerSettings,
    spec::Scheme,
};
use crate::{
    client::{Collection, ObjectPlace, last_component},
    config::resource_path,
};

/// The largest port.
const LAST_PORT: u16 = u16::MAX;

/// The owner of a forwarding rule with a name of ours and a backend service.
const OTHER_CONTROLLER: &str =
    "a forwarding rule of the GKE ingress controller, since it is external and has a backend service";

/// Fields of an object of the API.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn text(&self, name: &str) -> String {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn texts(&self, name: &str) -> BTreeSet<String> {
        let list = self.0.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    fn number(&self, name: &str) -> Value {
        self.0.get(name).cloned().unwrap_or_default()
    }

    fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    /// The resource path of another object.
    fn path(&self, name: &str) -> String {
        path_of(&self.text(name))
    }

    /// The resource path of the first of several objects.
    fn first_path(&self, name: &str) -> String {
        let list = self.0.get(name).and_then(Value::as_array);
        let first = list.and_then(|list| list.first()?.as_str());
        path_of(first.unwrap_or_default())
    }
}

fn path_of(link: &str) -> String {
    resource_path(link).unwrap_or(link).to_owned()
}

/// Networks without duplicates, sorted, in the notation of a CIDR.
pub(crate) fn networks(texts: impl IntoIterator<Item = String>) -> Vec<String> {
    let (mut networks, mut others) = (BTreeSet::new(), Vec::new());
    for text in texts {
        let network = text.parse::<IpNet>().or_else(|_| text.parse().map(|ip: std::net::IpAddr| ip.into()));
        match network {
            Ok(network) => {
                networks.insert(network.trunc());
            }
            Err(_) => others.push(text),
        }
    }
    networks.iter().map(ToString::to_string).chain(others).collect()
}

/// Addresses without the length of a prefix that has only one address.
fn destinations(texts: BTreeSet<String>) -> Vec<String> {
    texts
        .into_iter()
        .map(|text| text.strip_suffix("/32").unwrap_or(&text).to_owned())
        .collect()
}

/// What a firewall rule admits or denies, as [`allowed`](super::desired::allowed): the ports of each protocol as ranges.
fn firewall_ports(list: Option<&Value>) -> Vec<String> {
    let mut all = Vec::new();
    for entry in list.and_then(Value::as_array).into_iter().flatten() {
        let entry = Fields(entry);
        let protocol = entry.text("IPProtocol").to_lowercase();
        let mut ports = BTreeSet::new();
        let texts = entry.texts("ports");
        for text in &texts {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let first: u16 = first.parse().unwrap_or_default();
            ports.extend(first..=last.parse().unwrap_or(LAST_PORT));
        }
        if texts.is_empty() {
            all.push(protocol);
        } else {
            all.extend(names::port_ranges(ports).into_iter().map(|range| format!("{protocol}:{range}")));
        }
    }
    all
}

/// The kind of a firewall rule, by its name.
fn firewall_kind(name: &str) -> ObjectKind {
    if name.ends_with("-hc") {
        ObjectKind::CheckFirewall
    } else if name.ends_with("-deny") {
        ObjectKind::DenyFirewall
    } else {
        ObjectKind::Firewall
    }
}

/// Whether an object has the name of one that load balancers of the cluster share.
fn is_shared(name: &str, cluster_id: &str) -> bool {
    name == names::node_check(cluster_id)
        || name == names::node_check_firewall(cluster_id)
        || name == names::node_http_check_firewall(cluster_id)
        || name.starts_with(&names::shared_backend_prefix(cluster_id))
}

/// An object of the API; `None` if it is none of this cluster. Of addresses, all are of interest.
pub(crate) fn object_of(place: ObjectPlace<'_>, value: &Value, cluster_id: &str) -> Option<Object> {
    let from = Fields(value);
    let name = from.text("name");
    let is_own = match place.collection {
        Collection::Addresses => true,
        Collection::InstanceGroups => name.starts_with(&names::group(cluster_id)),
        _ => names::may_be_balancer(names::owner(&name)) || is_shared(&name, cluster_id),
    };
    if !is_own {
        return None;
    }
    let mut object = match place.collection {
        Collection::Addresses => Object::new(ObjectKind::Address, &name)
            .with(fields::ADDRESS, from.text("address"))
            .with(fields::SCHEME, from.text("addressType"))
            .with(fields::TIER, from.text("networkTier"))
            .with(fields::SUBNETWORK, from.path("subnetwork")),
        Collection::ForwardingRules => rule_of(&name, &from),
        Collection::TargetPools => {
            let instances = from.texts("instances");
            Object::new(ObjectKind::Pool, &name)
                .with(fields::AFFINITY, from.text("sessionAffinity"))
                .with(fields::HEALTH_CHECK, from.first_path("healthChecks"))
                .entries(INSTANCES, instances.iter().filter_map(|link| InstanceEntry::of_link(link)))
        }
        Collection::BackendServices => {
            let backends = value.get("backends").and_then(Value::as_array).into_iter().flatten();
            let groups: BTreeSet<_> = backends.map(|backend| Fields(backend).path("group")).collect();
            Object::new(ObjectKind::Backend, &name)
                .with(fields::SCHEME, from.text("loadBalancingScheme"))
                .with(fields::PROTOCOL, from.text("protocol"))
                .with(fields::AFFINITY, from.text("sessionAffinity"))
                .with(fields::HEALTH_CHECK, from.first_path("healthChecks"))
                .with(fields::GROUPS, groups.into_iter().collect::<Vec<_>>())
        }
        Collection::HttpHealthChecks => check_of(ObjectKind::HttpCheck, &name, &from, &from),
        Collection::HealthChecks => {
            let http = value.get("httpHealthCheck").cloned().unwrap_or_default();
            check_of(ObjectKind::Check, &name, &from, &Fields(&http))
        }
        Collection::Firewalls => Object::new(firewall_kind(&name), &name)
            .with(fields::NETWORK, from.path("network"))
            .with(fields::SOURCES, networks(from.texts("sourceRanges")))
            .with(fields::DESTINATIONS, destinations(from.texts("destinationRanges")))
            .with(fields::TARGET_TAGS, from.texts("targetTags").into_iter().collect::<Vec<_>>())
            .with(fields::ALLOWED, firewall_ports(value.get("allowed")))
            .with(fields::DENIED, firewall_ports(value.get("denied")))
            .with(fields::PRIORITY, from.number("priority")),
        Collection::InstanceGroups => {
            let key = if name == names::group(cluster_id) {
                place.zone.to_owned()
            } else {
                format!("{}/{name}", place.zone)
            };
            Object::new(ObjectKind::Group, key)
        }
    };
    object.id = place.path(&name);
    Some(object.with(fields::DESCRIPTION, from.text("description")))
}

fn rule_of(name: &str, from: &Fields<'_>) -> Object {
    let scheme = from.text("loadBalancingScheme");
    let backend = from.path("backendService");
    let is_foreign = scheme == Scheme::External.as_str() && !backend.is_empty();
    let mut rule = Object::new(ObjectKind::Rule, name)
        .with(fields::ADDRESS, from.text("IPAddress"))
        .with(fields::PROTOCOL, from.text("IPProtocol"))
        .with(fields::PORT_RANGE, from.text("portRange"))
        .with(fields::PORTS, from.texts("ports").into_iter().collect::<Vec<_>>())
        .with(fields::ALL_PORTS, from.flag("allPorts"))
        .with(fields::TARGET, from.path("target"))
        .with(fields::BACKEND_SERVICE, backend)
        .with(fields::SCHEME, scheme)
        .with(fields::TIER, from.text("networkTier"))
        .with(fields::SUBNETWORK, from.path("subnetwork"))
        .with(fields::NETWORK, from.path("network"))
        .with(fields::GLOBAL_ACCESS, from.flag("allowGlobalAccess"));
    if is_foreign {
        rule.foreign = Some(OTHER_CONTROLLER.to_owned());
    }
    rule
}

fn check_of(kind: ObjectKind, name: &str, from: &Fields<'_>, http: &Fields<'_>) -> Object {
    Object::new(kind, name)
        .with(fields::PORT, http.number("port"))
        .with(fields::PATH, http.text("requestPath"))
        .with(fields::INTERVAL, from.number("checkIntervalSec"))
        .with(fields::TIMEOUT, from.number("timeoutSec"))
        .with(fields::HEALTHY, from.number("healthyThreshold"))
        .with(fields::UNHEALTHY, from.number("unhealthyThreshold"))
}

/// The collection of a kind.
pub(crate) fn collection(kind: ObjectKind) -> Collection {
    match kind {
        ObjectKind::Group => Collection::InstanceGroups,
        ObjectKind::Address => Collection::Addresses,
        ObjectKind::HttpCheck => Collection::HttpHealthChecks,
        ObjectKind::Check => Collection::HealthChecks,
        ObjectKind::Backend => Collection::BackendServices,
        ObjectKind::Pool => Collection::TargetPools,
        ObjectKind::CheckFirewall | ObjectKind::Firewall | ObjectKind::DenyFirewall => Collection::Firewalls,
        ObjectKind::Rule => Collection::ForwardingRules,
    }
}

/// The fields of the API for these attributes.
pub(crate) fn body_of(kind: ObjectKind, attributes: &Attributes) -> Map<String, Value> {
    let mut body = Map::new();
    for (name, value) in attributes {
        if let Some((field, value)) = field_of(kind, name, value) {
            body.insert(field.to_owned(), value);
        }
    }
    if kind == ObjectKind::Check {
        let port = attributes.get(fields::PORT).cloned().unwrap_or_default();
        let path = attributes.get(fields::PATH).cloned().unwrap_or_default();
        body.insert("type".to_owned(), json!("HTTP"));
        body.insert("httpHealthCheck".to_owned(), json!({"port": port, "requestPath": path}));
    }
    body
}

/// The field of the API for an attribute; `None`: the field is left out.
fn field_of(kind: ObjectKind, name: &str, value: &Value) -> Option<(&'static str, Value)> {
    let is_empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() && name != fields::DESCRIPTION,
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    if is_empty {
        return None;
    }
    let value = value.clone();
    let field = match (kind, name) {
        (_, fields::DESCRIPTION) => "description",
        (ObjectKind::Address, fields::ADDRESS) => "address",
        (ObjectKind::Address, fields::SCHEME) => "addressType",
        (ObjectKind::Rule, fields::ADDRESS) => "IPAddress",
        (ObjectKind::Rule, fields::PROTOCOL) => "IPProtocol",
        (ObjectKind::Rule | ObjectKind::Backend, fields::SCHEME) => "loadBalancingScheme",
        (_, fields::TIER) => "networkTier",
        (_, fields::SUBNETWORK) => "subnetwork",
        (_, fields::NETWORK) => "network",
        (_, fields::PORT_RANGE) => "portRange",
        (_, fields::PORTS) => "ports",
        (_, fields::ALL_PORTS) if value == json!(false) => return None,
        (_, fields::ALL_PORTS) => "allPorts",
        (_, fields::TARGET) => "target",
        (_, fields::BACKEND_SERVICE) => "backendService",
        (_, fields::GLOBAL_ACCESS) => "allowGlobalAccess",
        (ObjectKind::Backend, fields::PROTOCOL) => "protocol",
        (_, fields::AFFINITY) => "sessionAffinity",
        (_, fields::HEALTH_CHECK) => return Some(("healthChecks", json!([value]))),
        (_, fields::GROUPS) => return Some(("backends", backends(&value, None))),
        (ObjectKind::HttpCheck, fields::PORT) => "port",
        (ObjectKind::HttpCheck, fields::PATH) => "requestPath",
        (_, fields::INTERVAL) => "checkIntervalSec",
        (_, fields::TIMEOUT) => "timeoutSec",
        (_, fields::HEALTHY) => "healthyThreshold",
        (_, fields::UNHEALTHY) => "unhealthyThreshold",
        (_, fields::SOURCES) => "sourceRanges",
        (_, fields::DESTINATIONS) => "destinationRanges",
        (_, fields::TARGET_TAGS) => "targetTags",
        (_, fields::ALLOWED) => return Some(("allowed", protocols(&value))),
        (_, fields::DENIED) => return Some(("denied", protocols(&value))),
        (_, fields::PRIORITY) => "priority",
        _ => return None,
    };
    Some((field, value))
}

/// The backends of a backend service: those of `present` with these groups, and new ones. Without a mode, Google chooses one that instance
/// groups of HTTP load balancers cannot have.
pub(crate) fn backends(groups: &Value, present: Option<&Value>) -> Value {
    let known = present
        .and_then(|present| present.get("backends")?.as_array().cloned())
        .unwrap_or_default();
    let groups = groups.as_array().into_iter().flatten().filter_map(Value::as_str);
    let backends = groups.map(|group| {
        let kept = known.iter().find(|backend| Fields(backend).path("group") == group).cloned();
        kept.unwrap_or_else(|| json!({"group": group, "balancingMode": "CONNECTION"}))
    });
    backends.collect()
}

/// What a firewall rule admits or denies, in the form of the API.
fn protocols(value: &Value) -> Value {
    let mut all: Vec<(String, Vec<String>)> = Vec::new();
    for entry in value.as_array().into_iter().flatten().filter_map(Value::as_str) {
        let (protocol, range) = entry.split_once(':').unwrap_or((entry, ""));
        if all.last().is_none_or(|(last, _)| last != protocol) {
            all.push((protocol.to_owned(), Vec::new()));
        }
        if !range.is_empty()
            && let Some((_, ranges)) = all.last_mut()
        {
            ranges.push(range.to_owned());
        }
    }
    let entries = all.into_iter().map(|(protocol, ranges)| {
        if ranges.is_empty() {
            json!({"IPProtocol": protocol})
        } else {
            json!({"IPProtocol": protocol, "ports": ranges})
        }
    });
    entries.collect()
}

/// The resource path of an instance.
pub(crate) fn instance_path(project: &str, instance: &InstanceEntry) -> String {
    format!("projects/{project}/zones/{}/instances/{}", instance.zone, instance.name)
}

/// The name of an object in the API.
pub(crate) fn object_name(object: &Object) -> &str {
    if object.kind == ObjectKind::Group {
        last_component(&object.id)
    } else {
        &object.key
    }
}

/// Where the objects of a kind are. `zone`: of an instance group.
pub(crate) fn place_of<'a>(
    kind: ObjectKind,
    settings: &'a BalancerSettings,
    zone: &'a str,
) -> ObjectPlace<'a> {
    let project = if kind.is_firewall() {
        &settings.network_project
    } else {
        &settings.project
    };
    ObjectPlace {
        collection: collection(kind),
        project,
        region: &settings.region,
        zone,
    }
}
