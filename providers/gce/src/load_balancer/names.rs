//! Names and descriptions of objects, and the form of ports in firewall rules: equal to those of upstream.

use std::collections::BTreeSet;

/// The name of the load balancer of a Service. Most of its objects have the same name.
pub(crate) use ccm_core::load_balancer::default_name as balancer;
use ccm_core::load_balancer::{Protocol, ServiceId};

/// The most characters of a load balancer's name.
const NAME_LENGTH: usize = 32;
/// The prefix of the names of firewall rules for the traffic of a load balancer.
const FIREWALL: &str = "k8s-fw-";
/// The suffix of the name of the rule that denies all other traffic.
const DENY: &str = "-deny";
/// The suffix of the name of the firewall rule for a legacy health check.
const HTTP_CHECK_FIREWALL: &str = "-http-hc";
/// The suffix of the name of the firewall rule for a health check.
const CHECK_FIREWALL: &str = "-hc";
/// The shortest prefix of the names of instance groups, which is also their name in a cluster without an ID.
const GROUP: &str = "k8s-ig";

/// Whether a name may be one of [`balancer`], for a Service with any UID.
pub(crate) fn may_be_balancer(name: &str) -> bool {
    let is_plain = name.chars().all(|c| c.is_ascii_digit() || c.is_ascii_lowercase());
    name.len() <= NAME_LENGTH && name.starts_with('a') && is_plain
}

/// The firewall rule for the traffic of a load balancer.
pub(crate) fn firewall(balancer: &str) -> String {
    format!("{FIREWALL}{balancer}")
}

/// The firewall rule that denies all other traffic to a load balancer.
pub(crate) fn deny_firewall(balancer: &str) -> String {
    format!("{FIREWALL}{balancer}{DENY}")
}

/// The health checks that Services share, of both kinds: the port of kube-proxy.
pub(crate) fn node_check(cluster_id: &str) -> String {
    format!("k8s-{cluster_id}-node")
}

/// The firewall rule for the legacy health check that Services share.
pub(crate) fn node_http_check_firewall(cluster_id: &str) -> String {
    format!("{}{HTTP_CHECK_FIREWALL}", node_check(cluster_id))
}

/// The firewall rule for the health check that internal load balancers share.
pub(crate) fn node_check_firewall(cluster_id: &str) -> String {
    format!("{}{CHECK_FIREWALL}", node_check(cluster_id))
}

/// The firewall rule for the legacy health check of one load balancer.
pub(crate) fn http_check_firewall(balancer: &str) -> String {
    format!("k8s-{balancer}{HTTP_CHECK_FIREWALL}")
}

/// The firewall rule for the health check of one internal load balancer.
pub(crate) fn check_firewall(balancer: &str) -> String {
    format!("{balancer}{CHECK_FIREWALL}")
}

/// The instance group of the cluster in each zone.
pub(crate) fn group(cluster_id: &str) -> String {
    if cluster_id.is_empty() {
        GROUP.to_owned()
    } else {
        format!("{GROUP}--{cluster_id}")
    }
}

/// The zone of an instance group, whose key is the zone or `<zone>/<name>`.
pub(crate) fn group_zone(key: &str) -> &str {
    key.split('/').next().unwrap_or_default()
}

/// The backend service that internal load balancers with the same protocol and session affinity share.
pub(crate) fn shared_backend(cluster_id: &str, protocol: Protocol, affinity: Affinity) -> String {
    let protocol = protocol.as_str().to_ascii_lowercase();
    // The first 16 digits of the SHA-1 sum of the name of the affinity in Kubernetes: `None`, `ClientIP`.
    let hash = match affinity {
        Affinity::None => "6eef6648406c333a",
        Affinity::ClientIp => "1668fd70f588116e",
    };
    format!("{}{protocol}-nmv1-{hash}", shared_backend_prefix(cluster_id))
}

/// The prefix of the names of shared backend services.
pub(crate) fn shared_backend_prefix(cluster_id: &str) -> String {
    format!("k8s-{cluster_id}-internal-")
}

/// The load balancer to which an object with this name belongs, if it belongs to only one.
pub(crate) fn owner(name: &str) -> &str {
    if let Some(rest) = name.strip_prefix(FIREWALL) {
        return rest.strip_suffix(DENY).unwrap_or(rest);
    }
    if let Some(rest) = name.strip_suffix(HTTP_CHECK_FIREWALL) {
        return rest.strip_prefix("k8s-").unwrap_or(rest);
    }
    name.strip_suffix(CHECK_FIREWALL).unwrap_or(name)
}

/// The session affinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Affinity {
    #[default]
    None,
    ClientIp,
}

impl Affinity {
    /// The name in the API.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::ClientIp => "CLIENT_IP",
        }
    }
}

/// The description of an object that is for one Service.
pub(crate) fn description(service: &ServiceId) -> String {
    named_description(&service.to_string())
}

/// The description of a legacy health check, which has its own name in the place of the Service's.
pub(crate) fn named_description(name: &str) -> String {
    format!("{{\"kubernetes.io/service-name\":\"{name}\"}}")
}

/// The description of a firewall rule for the traffic to an address.
pub(crate) fn firewall_description(service: &ServiceId, address: &str) -> String {
    format!("{{\"kubernetes.io/service-name\":\"{service}\", \"kubernetes.io/service-ip\":\"{address}\"}}")
}

/// The description of the firewall rule for the legacy health check that Services share.
pub(crate) fn node_firewall_description(cluster_id: &str) -> String {
    format!("{{\"kubernetes.io/cluster-id\":\"{cluster_id}\"}}")
}

/// The Service in a description, as `namespace/name`.
pub(crate) fn described_service(description: &str) -> Option<String> {
    let fields: serde_json::Value = serde_json::from_str(description).ok()?;
    fields.get("kubernetes.io/service-name")?.as_str().map(str::to_owned)
}

/// Ports as a firewall rule takes them: each once, sorted, and consecutive ones as a range, since a rule takes at most 100 entries.
pub(crate) fn port_ranges(ports: impl IntoIterator<Item = u16>) -> Vec<String> {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for port in ports.into_iter().collect::<BTreeSet<_>>() {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
            _ => ranges.push((port, port)),
        }
    }
    ranges
        .into_iter()
        .map(|(first, last)| {
            if first == last {
                format!("{first}")
            } else {
                format!("{first}-{last}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_upstream() {
        let id = ServiceId::new("default", "web", "0b1d5fc4-93a1-4b4b-8cde-0f9c1e2d3a4b");
        let name = balancer(&id);
        assert_eq!(name, "a0b1d5fc493a14b4b8cde0f9c1e2d3a4");
        assert!(may_be_balancer(&name) && !may_be_balancer(&firewall(&name)));
        assert_eq!(firewall(&name), format!("k8s-fw-{name}"));
        assert_eq!(deny_firewall(&name), format!("k8s-fw-{name}-deny"));
        assert_eq!(http_check_firewall(&name), format!("k8s-{name}-http-hc"));
        assert_eq!(check_firewall(&name), format!("{name}-hc"));
        assert_eq!(node_check("c1"), "k8s-c1-node");
        assert_eq!(node_http_check_firewall("c1"), "k8s-c1-node-http-hc");
        assert_eq!(node_check_firewall("c1"), "k8s-c1-node-hc");
        assert_eq!([group("c1"), group("")], ["k8s-ig--c1", "k8s-ig"]);
        let own = [
            firewall(&name),
            deny_firewall(&name),
            http_check_firewall(&name),
            check_firewall(&name),
            name.clone(),
        ];
        assert!(own.iter().all(|own| owner(own) == name), "{own:?}");
    }

    #[test]
    fn a_shared_backend_service_is_named_by_protocol_and_affinity() {
        let name = shared_backend("c1", Protocol::Tcp, Affinity::None);
        assert_eq!(name, "k8s-c1-internal-tcp-nmv1-6eef6648406c333a");
        let name = shared_backend("c1", Protocol::Udp, Affinity::ClientIp);
        assert_eq!(name, "k8s-c1-internal-udp-nmv1-1668fd70f588116e");
    }

    #[test]
    fn descriptions_are_those_of_upstream() {
        let id = ServiceId::new("default", "web", "u");
        assert_eq!(description(&id), r#"{"kubernetes.io/service-name":"default/web"}"#);
        let firewall = firewall_description(&id, "34.1.0.10");
        let expected =
            r#"{"kubernetes.io/service-name":"default/web", "kubernetes.io/service-ip":"34.1.0.10"}"#;
        assert_eq!(firewall, expected);
        assert_eq!(node_firewall_description("c1"), r#"{"kubernetes.io/cluster-id":"c1"}"#);
        assert_eq!(described_service(&firewall).as_deref(), Some("default/web"));
        assert_eq!(described_service("by hand"), None);
    }

    #[test]
    fn consecutive_ports_are_a_range() {
        for (ports, expected) in [
            (&[8, 66, 23, 13, 89][..], "8 13 23 66 89"),
            (&[56, 78, 67, 79, 21, 80, 12], "12 21 56 67 78-80"),
            (&[15, 37, 900, 2002, 2003, 2003, 2004, 2004], "15 37 900 2002-2004"),
            (&[10, 10, 10, 10, 10], "10"),
            (&[6000, 6001, 6002, 6003, 6004, 6005], "6000-6005"),
            (&[65535, 65534, 1], "1 65534-65535"),
            (&[], ""),
        ] {
            assert_eq!(port_ranges(ports.iter().copied()).join(" "), expected);
        }
    }
}
