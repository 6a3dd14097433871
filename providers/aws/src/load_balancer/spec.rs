//! From a Service's fields and annotations to the requested load balancer.

use std::collections::BTreeSet;

use ccm_core::{
    load_balancer::{
        AnnotationReader, Claim, ClusterView, IgnoredValue, InvalidField, IpFamily, NodeSelector, Protocol,
        ServiceId, ServicePort, ServiceView, SessionAffinity, SourceRanges,
    },
    plan::objects::{Attribute, Attributes, Kind as _, Policy},
};
use serde_json::Value;

use super::{
    annotations as a,
    kinds::{BALANCER_ATTRIBUTE, Kind, TARGET_GROUP_ATTRIBUTE},
    names,
};
use crate::{config::LoadBalancing, instances::provider_id::instance_of, site::Tags};

/// The kind of a load balancer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flavor {
    /// A network load balancer.
    Network,
    /// A classic load balancer, which is the default, as upstream.
    #[default]
    Classic,
    /// The AWS Load Balancer Controller, or no controller, is responsible.
    Elsewhere,
}

impl Flavor {
    /// The kind that the Service's annotation names. Others are ignored as upstream; [`Spec::read`] warns of them.
    pub(crate) fn named(service: &ServiceView) -> Option<Self> {
        match service.annotation(a::TYPE)? {
            "external" | "nlb-ip" => Some(Self::Elsewhere),
            "nlb" => Some(Self::Network),
            _ => None,
        }
    }

    /// The kind of a new load balancer.
    pub(crate) fn of(service: &ServiceView, settings: &LoadBalancing) -> Self {
        Self::named(service).unwrap_or(settings.default_type)
    }

    /// The kind of the load balancer in the Service's status, else of a new one.
    pub(crate) fn known(service: &ServiceView, settings: &LoadBalancing) -> Self {
        match own_hostname(service) {
            Some(hostname) if names::is_classic_hostname(hostname) => Self::Classic,
            Some(_) => Self::Network,
            None => Self::of(service, settings),
        }
    }

    /// The text in messages.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Network => "network load balancer",
            Self::Classic => "classic load balancer",
            Self::Elsewhere => "load balancer of another controller",
        }
    }
}

/// The host name of the Service's own load balancer, if the status has it: then this program stays responsible, whatever the
/// Service requests.
pub(crate) fn own_hostname(service: &ServiceView) -> Option<&str> {
    let ingress = service.ingress.iter();
    let mut hostnames = ingress.filter_map(|ingress| ingress.hostname.as_deref());
    hostnames.find(|hostname| names::is_hostname_of(hostname, &service.id))
}

/// The controller that is responsible for a Service.
pub(crate) fn claims(service: &ServiceView, settings: &LoadBalancing) -> Claim {
    if own_hostname(service).is_some() {
        return Claim::Ours;
    }
    match (&service.class, Flavor::of(service, settings)) {
        (Some(_), _) => Claim::NotOurs,
        // The status is empty once a Service has another type, but its load balancer may still exist.
        (None, Flavor::Elsewhere) if service.is_load_balancer() || !service.has_finalizer() => {
            Claim::Elsewhere
        }
        (None, _) => Claim::Ours,
    }
}

/// The sources of a spec.
#[derive(Clone, Copy)]
pub(super) struct SpecSource<'a> {
    pub(super) service: &'a ServiceView,
    pub(super) settings: &'a LoadBalancing,
}

/// The desired load balancer of a Service. Invalid values are replaced by defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spec {
    pub(crate) internal: bool,
    /// Subnets by ID or name; empty: by tags.
    pub(crate) subnets: Vec<String>,
    /// Security groups by ID; empty: one that only this load balancer has.
    pub(crate) security_groups: Vec<String>,
    /// Additional security groups.
    pub(crate) extra_groups: Vec<String>,
    pub(crate) tags: Tags,
    /// The CIDRs of the clients.
    pub(crate) ranges: Vec<String>,
    pub(crate) dual_stack: bool,
    pub(crate) ports: Vec<PortSpec>,
    /// The certificates of all secure listeners, the default one first.
    pub(crate) certificates: Vec<String>,
    /// Attributes of secure listeners.
    pub(crate) listener: Attributes,
    pub(crate) proxy_protocol: bool,
    /// Attributes of the load balancer. Those of a classic one include the health check.
    pub(crate) balancer: Attributes,
    /// Attributes of the target groups of a network load balancer, the health check included.
    pub(crate) target_group: Attributes,
    /// The attributes of target groups that the annotation names, which upstream sets, too.
    pub(crate) named: Vec<&'static str>,
    /// Values that are ignored.
    pub(crate) ignored: Vec<IgnoredValue>,
    /// Why the Service is refused.
    pub(crate) invalid: Vec<InvalidField>,
}

/// A listener and its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortSpec {
    pub(crate) port: u16,
    pub(crate) node_port: u16,
    /// On a network load balancer `TCP`, `UDP`, `TCP_UDP` or `TLS`, on a classic one `TCP`, `HTTP`, `SSL` or `HTTPS`.
    pub(crate) protocol: &'static str,
    /// The protocol to the targets.
    pub(crate) target_protocol: &'static str,
}

impl PortSpec {
    /// The listener of a Service's port, with its protocol and that to the targets.
    pub(super) fn new(port: &ServicePort, [protocol, target_protocol]: [&'static str; 2]) -> Self {
        Self {
            port: port.port,
            node_port: port.node_port,
            protocol,
            target_protocol,
        }
    }

    /// Whether the listener has a certificate.
    pub(crate) fn is_secure(&self) -> bool {
        ["TLS", "SSL", "HTTPS"].contains(&self.protocol)
    }
}

/// The IP protocols of a protocol of AWS.
pub(crate) fn transports(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "UDP" => &["udp"],
        "TCP_UDP" => &["tcp", "udp"],
        _ => &["tcp"],
    }
}

/// The instances of a Service's eligible nodes, without untagged ones; `None`: no node is eligible, or all instances are
/// untagged, and targets stay unchanged.
pub(crate) fn instances(
    service: &ServiceView,
    cluster: &ClusterView,
    untagged: &BTreeSet<String>,
) -> Option<BTreeSet<String>> {
    // As upstream, a second `=` ends the value, and an item without a key is ignored.
    let items = service.annotation(a::NODE_LABELS).unwrap_or_default().split(',');
    let items = items.map(|item| item.trim().splitn(3, '=').take(2).collect::<Vec<_>>().join("="));
    let items: Vec<_> = items.filter(|item| !item.starts_with('=')).collect();
    let selector = NodeSelector::parse(&items.join(","));
    let nodes = cluster.nodes.eligible().map(|node| &node.view);
    let nodes = nodes.filter(|node| selector.matches(&node.labels));
    let (tagged, others): (BTreeSet<_>, BTreeSet<_>) =
        nodes.filter_map(|node| instance_of(node)).partition(|id| !untagged.contains(id));
    let is_plausible = !tagged.is_empty() || others.is_empty();
    (is_plausible && !cluster.nodes.keeps_members()).then_some(tagged)
}

/// Whether a Service accepts an IPv4 load balancer where a dual-stack one is not possible.
pub(crate) fn prefers_dual_stack(service: &ServiceView) -> bool {
    let is_given = service.annotation(a::IP_ADDRESS_TYPE).is_some();
    !is_given && !service.requires_dual_stack && service.ip_families.contains(&IpFamily::V4)
}

impl Spec {
    /// Reads a Service with a load balancer of this kind. All problems are found at once.
    pub(crate) fn read(service: &ServiceView, settings: &LoadBalancing, flavor: Flavor) -> Self {
        let mut reader = AnnotationReader::new(&service.annotations);
        let mut spec = Self::common(service, flavor, &mut reader);
        let source = SpecSource { service, settings };
        match flavor {
            Flavor::Classic => spec.read_classic(source, &mut reader),
            Flavor::Network | Flavor::Elsewhere => spec.read_network(source, &mut reader),
        }
        let is_known = |kind: &str| ["", "nlb", "external", "nlb-ip"].contains(&kind).then_some(());
        reader.parsed(a::TYPE, (), "DefaultLoadBalancerType", is_known);
        (spec.ignored, spec.invalid) = reader.finish();
        spec
    }

    /// The part that is the same for both kinds.
    fn common(service: &ServiceView, flavor: Flavor, reader: &mut AnnotationReader<'_>) -> Self {
        if service.ports.is_empty() {
            reader.refuse_spec("ports", "is empty");
        }
        if service.session_affinity != SessionAffinity::None {
            let problem = "ClientIP is not supported; AWS chooses the target by the connection";
            reader.refuse_spec("sessionAffinity", problem);
        }
        if !service.load_balancer_ip.is_empty() {
            let key = a::EIP_ALLOCATIONS;
            let problem = format!("not supported; the annotation {key} sets addresses");
            reader.refuse_spec("loadBalancerIP", problem);
        }
        let scheme = reader.strict_choice(a::SCHEME, &["internal", "internet-facing"]);
        let is_internal = || !matches!(service.annotation(a::INTERNAL), None | Some("" | "false"));
        let subnets = reader.texts(a::SUBNETS);
        if subnets.is_empty() && reader.get(a::SUBNETS).is_some() {
            reader.refuse(a::SUBNETS, "contains no subnet");
        }
        let has = |family| service.ip_families.contains(&family);
        if has(IpFamily::V6) && !has(IpFamily::V4) {
            let problem = "IPv6 alone is not supported, since load balancers reach nodes by IPv4; add IPv4";
            reader.refuse_spec("ipFamilies", problem);
        }
        // With a UDP port there are only IPv4 load balancers.
        let has_udp = service.ports.iter().any(|port| port.protocol == Protocol::Udp);
        let dual_stack = flavor != Flavor::Classic
            && match reader.get(a::IP_ADDRESS_TYPE) {
                Some(_) => reader.parsed(a::IP_ADDRESS_TYPE, false, "ipv4", |text| match text {
                    "ipv4" => Some(false),
                    "dualstack" => Some(true),
                    _ => None,
                }),
                None => has(IpFamily::V6) && !has_udp,
            };
        let (ranges, invalid) = SourceRanges::of(service);
        reader.refuse_fields(invalid);
        let tags = reader.map(a::TAGS).into_iter().flatten();
        // Upstream does not trim them, and a listener must not change its protocol when this program takes over.
        let mut ssl_ports = reader.get(a::SSL_PORTS).unwrap_or_default().split(',');
        if let Some(port) = ssl_ports.find(|port| port.trim() != *port) {
            let problem = format!("{port:?} matches no port, because of its space");
            reader.warn(a::SSL_PORTS, problem);
        }
        let certificates = reader.texts(a::CERTIFICATES);
        Self {
            internal: scheme.map_or_else(is_internal, |scheme| scheme == "internal"),
            subnets,
            security_groups: reader.texts(a::SECURITY_GROUPS),
            tags: tags.map(|(key, value)| (key.into(), value.into())).collect(),
            ranges: match (ranges.given, dual_stack) {
                (true, _) => ranges.texts(),
                (false, true) => ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec(),
                // It has IPv4 addresses, whatever families the Service has.
                (false, false) => SourceRanges::all(None).texts(),
            },
            dual_stack,
            listener: Attributes::from([("certificate", certificates.first().cloned().into())]),
            certificates,
            ..Self::default()
        }
    }

    fn read_network(&mut self, source: SpecSource<'_>, reader: &mut AnnotationReader<'_>) {
        let unsupported = "a network load balancer does not support it";
        reader.strict(a::EXTRA_SECURITY_GROUPS, |_| Err::<(), _>(unsupported));
        let is_instance = |text: &str| (text == "instance").then_some(());
        reader.parsed(a::TARGET_TYPE, (), "instance", is_instance);
        if !source.settings.managed_security_groups && !self.security_groups.is_empty() {
            let problem = "it has no effect without NLBSecurityGroupMode=Managed in cloud.conf";
            reader.warn(a::SECURITY_GROUPS, problem.to_owned());
        }
        self.ports = self.network_ports(source.service, reader);
        let is_udp = self.ports.iter().any(|port| port.protocol.contains("UDP"));
        if self.dual_stack && is_udp {
            let problem = "a dual-stack load balancer does not support UDP ports";
            reader.refuse_spec("ipFamilies", problem);
        }
        let alpn_policy = reader.parsed(a::ALPN_POLICY, None, "None", |text| {
            let mut known = ALPN_POLICIES.split_whitespace();
            known.find(|policy| *policy == text).map(Some)
        });
        self.listener.insert("alpn_policy", alpn_policy.into());
        let ssl_policy = reader.given(a::SSL_POLICY);
        let ssl_policy = ssl_policy.map(|policy| ("ssl_policy", policy.into()));
        self.listener.extend(ssl_policy);
        self.balancer = balancer_attributes(reader);
        if self.dual_stack {
            self.balancer.insert("ip_address_type", "dualstack".into());
        }
        for (attribute, key) in ADDRESSES {
            let values = reader.texts(key);
            if !values.is_empty() {
                self.balancer.insert(attribute, values.into());
            }
        }
        let proxy = reader.unless_empty(a::PROXY_PROTOCOL);
        self.proxy_protocol = proxy.is_some_and(|reader| {
            let is_on = |text: &str| (text == "*").then_some(true);
            reader.parsed(a::PROXY_PROTOCOL, false, "off", is_on)
        });
        let mut group = health_check(source, reader);
        group.insert("preserve_client_ip.enabled", Value::Null);
        let version_2 = self.proxy_protocol.to_string();
        group.insert("proxy_protocol_v2.enabled", version_2.into());
        let annotated = target_group_attributes(is_udp, reader);
        self.named = annotated.keys().copied().collect();
        group.extend(annotated);
        self.target_group = group;
    }

    fn network_ports(&self, service: &ServiceView, reader: &mut AnnotationReader<'_>) -> Vec<PortSpec> {
        let backend = reader.get(a::BACKEND_PROTOCOL).unwrap_or_default();
        if !["", "tcp", "ssl", "http", "https"].contains(&backend) {
            let problem = format!("{backend:?} is not one of tcp, ssl, http, https; tcp is used");
            reader.warn(a::BACKEND_PROTOCOL, problem);
        }
        let mut ports: Vec<PortSpec> = Vec::new();
        // A Service without node ports has a load balancer without listeners.
        for port in service.ports.iter().filter(|port| port.node_port > 0) {
            let tls = self.has_certificate(reader, port.port, &port.name);
            let protocols = match port.protocol {
                Protocol::Udp => ["UDP"; 2],
                Protocol::Tcp if tls => ["TLS", if backend == "ssl" { "TLS" } else { "TCP" }],
                Protocol::Tcp => ["TCP"; 2],
                Protocol::Sctp => {
                    let problem = format!("port {}: SCTP is not supported", port.port);
                    reader.refuse_spec("ports", problem);
                    continue;
                }
            };
            let Some(known) = ports.iter_mut().find(|known| known.port == port.port) else {
                ports.push(PortSpec::new(port, protocols));
                continue;
            };
            // The same port twice, by TCP and by UDP, is one listener.
            let problem = if known.protocol == "TLS" || protocols[0] == "TLS" {
                "TLS and UDP"
            } else if known.node_port != port.node_port {
                "TCP and UDP with different node ports"
            } else {
                (known.protocol, known.target_protocol) = ("TCP_UDP", "TCP_UDP");
                continue;
            };
            let fix = "use one node port for both, or two ports";
            let problem = format!("port {}: a listener cannot have {problem}; {fix}", port.port);
            reader.refuse_spec("ports", problem);
        }
        ports
    }

    /// Whether TLS is requested for a port.
    pub(super) fn has_certificate(&self, reader: &AnnotationReader<'_>, port: u16, name: &str) -> bool {
        let ports = reader.get(a::SSL_PORTS).unwrap_or_default();
        let is_named = |item: &str| item.parse() == Ok(port) || (!name.is_empty() && item == name);
        !self.certificates.is_empty() && (["", "*"].contains(&ports) || ports.split(',').any(is_named))
    }

    /// Why the addresses do not fit this number of subnets.
    pub(crate) fn wrong_addresses(&self, subnets: usize) -> Option<String> {
        ADDRESSES.iter().find_map(|(attribute, key)| {
            let count = self.balancer.get(attribute)?.as_array()?.len();
            let text = format!("annotation {key}: {count} values for {subnets} subnets; each needs one");
            (count != subnets).then_some(text)
        })
    }

    /// The names of the ports' target groups.
    pub(crate) fn target_group_names(&self, cluster: &str, service: &ServiceId) -> Vec<String> {
        let check = |name: &str| self.target_group.get(name);
        let protocol = check("health_check_protocol").and_then(Value::as_str);
        let interval = check("health_check_interval").and_then(Value::as_i64);
        let check = (protocol.unwrap_or_default(), interval.unwrap_or_default());
        let name = |port: &PortSpec| names::target_group(cluster, service, port, "instance", check);
        self.ports.iter().map(name).collect()
    }
}

/// The attributes with the addresses in the subnets, and their annotations.
pub(crate) const ADDRESSES: [(&str, &str); 2] = [
    ("eip_allocations", a::EIP_ALLOCATIONS),
    ("private_addresses", a::PRIVATE_ADDRESSES),
];

/// The values of the annotation with the ALPN policy.
const ALPN_POLICIES: &str = "None HTTP1Only HTTP2Only HTTP2Optional HTTP2Preferred";

/// The attribute of a kind that an annotation names.
fn attribute(kind: Kind, policy: Policy, name: &str) -> Option<&'static str> {
    let is_named = |known: &&Attribute| known.policy == policy && known.name == name;
    Some(kind.schema().attributes.iter().find(is_named)?.name)
}

fn target_group_attributes(is_udp: bool, reader: &mut AnnotationReader<'_>) -> Attributes {
    let mut attributes = Attributes::new();
    for (key, value) in reader.map(a::TARGET_GROUP_ATTRIBUTES).into_iter().flatten() {
        let problem = match (attribute(Kind::TargetGroup, TARGET_GROUP_ATTRIBUTE, key), value) {
            (None, _) => format!("{key:?} is not supported"),
            (Some("preserve_client_ip.enabled"), "false") if is_udp => {
                format!("{key}: cannot be false with a UDP port")
            }
            (Some(known), "true" | "false") => {
                attributes.insert(known, value.into());
                continue;
            }
            _ => format!("{key}: {value:?} is neither true nor false"),
        };
        reader.refuse(a::TARGET_GROUP_ATTRIBUTES, problem);
    }
    attributes
}

fn balancer_attributes(reader: &mut AnnotationReader<'_>) -> Attributes {
    let mut flag = |key| reader.unless_empty(key)?.strict_flag(key);
    let [cross_zone, logs] = [a::CROSS_ZONE, a::ACCESS_LOG].map(|key| flag(key) == Some(true));
    let mut attributes = Attributes::from([
        ("load_balancing.cross_zone.enabled", cross_zone.to_string().into()),
        ("access_logs.s3.enabled", logs.to_string().into()),
    ]);
    if logs {
        let text = |key| reader.text(key, "").into();
        attributes.insert("access_logs.s3.bucket", text(a::ACCESS_LOG_BUCKET));
        attributes.insert("access_logs.s3.prefix", text(a::ACCESS_LOG_PREFIX));
    }
    for (key, value) in reader.map(a::ATTRIBUTES).into_iter().flatten() {
        match attribute(Kind::Balancer, BALANCER_ATTRIBUTE, key) {
            Some(known) if !value.is_empty() => drop(attributes.insert(known, value.into())),
            Some(_) => reader.warn(a::ATTRIBUTES, format!("{key} has no value")),
            None => {
                let problem = format!("a network load balancer has no attribute {key:?}");
                reader.warn(a::ATTRIBUTES, problem);
            }
        }
    }
    attributes
}

/// The protocol of the health check, in upper or lower case.
pub(super) fn check_protocol(
    reader: &mut AnnotationReader<'_>,
    known: &[&'static str],
) -> Option<&'static str> {
    reader.strict(a::CHECK_PROTOCOL, |text| {
        let mut names = known.iter().copied();
        let found = names.find(|known| known.eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("{text:?} is not one of {}", known.join(", ").to_lowercase()))
    })
}

/// The thresholds and the interval of the health check, with their defaults.
pub(super) fn check_numbers(
    reader: &mut AnnotationReader<'_>,
    [healthy, unhealthy, interval]: [i64; 3],
) -> Attributes {
    let numbers = [
        ("healthy_threshold", a::CHECK_HEALTHY, 2..=10, healthy),
        ("unhealthy_threshold", a::CHECK_UNHEALTHY, 2..=10, unhealthy),
        ("health_check_interval", a::CHECK_INTERVAL, 5..=300, interval),
    ];
    let numbers = numbers.into_iter().map(|(name, key, allowed, default)| {
        let number = reader.strict_number(key, allowed).unwrap_or(default);
        (name, number.into())
    });
    numbers.collect()
}

fn health_check(source: SpecSource<'_>, reader: &mut AnnotationReader<'_>) -> Attributes {
    let local = source.service.is_local();
    let (protocol, path) = if local { ("HTTP", "/healthz") } else { ("TCP", "/") };
    let mut protocol = check_protocol(reader, &["TCP", "HTTP", "HTTPS"]).unwrap_or(protocol);
    let port = reader.strict(a::CHECK_PORT, |text| match text.parse::<u16>() {
        Ok(1..) => Ok(text.to_owned()),
        _ if text == "traffic-port" => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is neither a port nor traffic-port")),
    });
    let own = source.service.health_check_port().map(|port| port.to_string());
    let mut port = port.or(own).unwrap_or_else(|| "traffic-port".to_owned());
    let mut path = reader.given(a::CHECK_PATH).unwrap_or_else(|| path.to_owned());
    if let Some(shared) = source.settings.shared_probe.as_ref().filter(|_| !local) {
        (protocol, port, path) = ("HTTP", shared.port.to_string(), shared.path.clone());
    }
    let mut check = check_numbers(reader, if local { [2, 2, 10] } else { [3, 3, 30] });
    // Upstream does not send the timeout, so a Service may have one that AWS would refuse.
    let interval = check.get("health_check_interval").and_then(Value::as_i64);
    let longest = interval.unwrap_or_default().min(120);
    match reader.strict_number(a::CHECK_TIMEOUT, i64::MIN..=i64::MAX) {
        Some(timeout) if !(2..=longest).contains(&timeout) => {
            let problem = format!("{timeout} is not between 2 and {longest} (the interval, at most 120)");
            reader.warn(a::CHECK_TIMEOUT, problem + "; the default is used");
        }
        timeout => check.extend(timeout.map(|timeout| ("health_check_timeout", timeout.into()))),
    }
    check.insert("health_check_protocol", protocol.into());
    check.insert("health_check_port", port.into());
    if protocol != "TCP" {
        check.insert("health_check_path", path.into());
        let codes = reader.given(a::CHECK_CODES);
        check.extend(codes.map(|codes| ("health_check_codes", codes.into())));
    }
    check
}

#[cfg(test)]
mod tests;
