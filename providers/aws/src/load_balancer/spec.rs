//! From a Service's fields and annotations to the requested load balancer.

use std::collections::BTreeSet;

use ccm_core::{
    NodeView,
    load_balancer::{
        AnnotationReader, Claim, ClusterView, IgnoredValue, InvalidField, IpFamily, NodeLeftOut,
        NodeSelector, Protocol, ServiceId, ServicePort, ServiceView, SessionAffinity, SourceRanges,
    },
    plan::objects::{Attributes, Kind as _, Policy},
};
use serde_json::Value;

use super::{
    annotations as a, fields,
    kinds::{BALANCER_ATTRIBUTE, ObjectKind, TARGET_GROUP_ATTRIBUTE},
    names,
    updates::ObjectUpdate,
};
use crate::{
    config::LoadBalancing,
    instances::provider_id::{self, ProviderId, instance_of},
    site::Tags,
};

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
    service
        .ingress
        .iter()
        .filter_map(|ingress| ingress.hostname.as_deref())
        .find(|hostname| names::is_hostname_of(hostname, &service.id))
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

/// Why a Service gets no new load balancer of this kind: a mode in the config is not supported. Existing ones are not refused.
pub(crate) fn refused_as_new(flavor: Flavor, settings: &LoadBalancing) -> Vec<InvalidField> {
    match flavor {
        Flavor::Network => {
            let modes = settings.unsupported_modes.iter();
            modes
                .map(|problem| {
                    InvalidField::spec("type", format!("no network load balancer is created: {problem}"))
                })
                .collect()
        }
        Flavor::Classic | Flavor::Elsewhere => Vec::new(),
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
    /// Attributes in `target_group` that no annotation names, and that only new target groups get.
    pub(crate) defaulted: BTreeSet<&'static str>,
    /// The defaults of AWS that depend on the Service, and those that are not in the schema of a kind.
    pub(crate) defaults: Attributes,
    /// Whether existing target groups keep the protocol, port and path of their health checks.
    pub(crate) keeps_check: bool,
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

/// The selector of the nodes that become targets.
pub(crate) fn selector(service: &ServiceView) -> NodeSelector {
    // As upstream, a second `=` ends the value, and an item without a key is ignored.
    let labels = service.annotation(a::NODE_LABELS).unwrap_or_default();
    let items: Vec<_> = labels
        .split(',')
        .map(|item| item.trim().splitn(3, '=').take(2).collect::<Vec<_>>().join("="))
        .filter(|item| !item.starts_with('='))
        .collect();
    NodeSelector::parse(&items.join(","))
}

/// The instances of a Service's eligible nodes, without untagged ones; `None`: no node is eligible, or all instances are
/// untagged, and targets stay unchanged.
pub(crate) fn instances(
    service: &ServiceView,
    cluster: &ClusterView,
    untagged: &BTreeSet<String>,
) -> Option<BTreeSet<String>> {
    let (tagged, others): (BTreeSet<_>, BTreeSet<_>) = selected_nodes(service, cluster)
        .filter_map(instance_of)
        .partition(|id| !untagged.contains(id));
    let is_plausible = !tagged.is_empty() || others.is_empty();
    if is_plausible && !cluster.nodes.keeps_members() {
        Some(tagged)
    } else {
        None
    }
}

/// A Service's eligible nodes with the labels that its annotation names.
fn selected_nodes<'a>(service: &ServiceView, cluster: &'a ClusterView) -> impl Iterator<Item = &'a NodeView> {
    let selector = selector(service);
    let nodes = cluster.nodes.eligible().map(|node| &*node.view);
    nodes.filter(move |node| selector.matches(&node.labels))
}

/// A Service's nodes that cannot be targets because of their provider IDs, each with the reason. A node without one is not
/// initialized yet. Fargate nodes are never targets, and there is one for each Pod.
pub(crate) fn unusable_nodes(service: &ServiceView, cluster: &ClusterView) -> Vec<NodeLeftOut> {
    let nodes = selected_nodes(service, cluster).filter_map(|node| {
        let id = node.provider_id.as_deref().filter(|id| !id.is_empty())?;
        let why = match provider_id::parse(id) {
            Ok(ProviderId::Foreign) => format!("(its provider ID {id:?} is not of AWS)"),
            Err(error) => format!("({})", error.message()),
            Ok(ProviderId::Instance(_) | ProviderId::Fargate(_)) => return None,
        };
        Some(NodeLeftOut::new(&*node.name, why))
    });
    nodes.collect()
}

/// The nodes of these instances, each with the instance.
pub(crate) fn nodes_of(instances: &BTreeSet<String>, cluster: &ClusterView) -> Vec<NodeLeftOut> {
    let nodes = cluster.nodes.all().iter().filter_map(|node| {
        let id = instance_of(&node.view).filter(|id| instances.contains(id))?;
        Some(NodeLeftOut::new(&*node.view.name, format!("({id})")))
    });
    nodes.collect()
}

/// The security groups that a Service names for a classic load balancer instead of an own one, and those beside them.
pub(crate) fn classic_security_groups(service: &ServiceView, settings: &LoadBalancing) -> Vec<String> {
    let reader = AnnotationReader::new(&service.annotations);
    let mut groups = reader.texts(a::SECURITY_GROUPS);
    if groups.is_empty() {
        groups.extend(settings.elb_security_group.clone());
    }
    if !groups.is_empty() {
        groups.extend(reader.texts(a::EXTRA_SECURITY_GROUPS));
    }
    groups
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
        reader.parsed(a::TYPE, (), "DefaultLoadBalancerType", |kind| match kind {
            "" | "nlb" | "external" | "nlb-ip" => Some(()),
            _ => None,
        });
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
        let internal = service.annotation(a::INTERNAL);
        let is_internal = !matches!(internal, None | Some("" | "false"));
        // The narrower setting counts.
        if scheme == Some("internet-facing") && is_internal {
            let problem =
                format!("internet-facing contradicts {}; the load balancer is internal", a::INTERNAL);
            reader.warn(a::SCHEME, problem);
        }
        if scheme == Some("internal") && internal == Some("false") {
            let problem = format!("false contradicts {}; the load balancer is internal", a::SCHEME);
            reader.warn(a::INTERNAL, problem);
        }
        let subnets = reader.texts(a::SUBNETS);
        if subnets.is_empty() && reader.get(a::SUBNETS).is_some() {
            reader.refuse(a::SUBNETS, "contains no subnet");
        }
        let has_v6 = service.ip_families.contains(&IpFamily::V6);
        if has_v6 && !service.ip_families.contains(&IpFamily::V4) {
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
                None => has_v6 && !has_udp,
            };
        let (ranges, invalid) = SourceRanges::of(service);
        reader.refuse_fields(invalid);
        if let Some(ignored) = SourceRanges::narrower_annotation(service) {
            reader.warn(ignored.key, ignored.problem);
        }
        let tags = reader.map(a::TAGS).into_iter().flatten();
        // Upstream does not trim them, and a listener must not change its protocol when this program takes over.
        let mut ssl_ports = reader.get(a::SSL_PORTS).unwrap_or_default().split(',');
        if let Some(port) = ssl_ports.find(|port| port.trim() != *port) {
            let problem = format!("{port:?} matches no port, because of its space");
            reader.warn(a::SSL_PORTS, problem);
        }
        let certificates = reader.texts(a::CERTIFICATES);
        Self {
            internal: is_internal || scheme == Some("internal"),
            subnets,
            security_groups: reader.texts(a::SECURITY_GROUPS),
            // As upstream, a second `=` ends the value.
            tags: tags
                .map(|(key, value)| (key.into(), value.split('=').next().unwrap_or_default().into()))
                .collect(),
            ranges: match (ranges.given, dual_stack) {
                (true, _) => ranges.texts(),
                (false, true) => ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec(),
                // It has IPv4 addresses, whatever families the Service has.
                (false, false) => SourceRanges::all(None).texts(),
            },
            dual_stack,
            listener: Attributes::from([(fields::CERTIFICATE, certificates.first().cloned().into())]),
            certificates,
            ..Self::default()
        }
    }

    fn read_network(&mut self, source: SpecSource<'_>, reader: &mut AnnotationReader<'_>) {
        let unsupported = "a network load balancer does not support it";
        reader.strict(a::EXTRA_SECURITY_GROUPS, |_| Err::<(), _>(unsupported));
        reader.parsed(a::TARGET_TYPE, (), "instance", |text| match text {
            "instance" => Some(()),
            _ => None,
        });
        if !source.settings.managed_security_groups && !self.security_groups.is_empty() {
            let problem = "it has no effect without NLBSecurityGroupMode=Managed in cloud.conf";
            reader.warn(a::SECURITY_GROUPS, problem.to_owned());
        }
        self.ports = self.network_ports(source.service, reader);
        let is_udp = self.ports.iter().any(|port| port.protocol.contains("UDP"));
        if self.dual_stack && is_udp {
            let problem = "dual-stack load balancers with UDP ports are not supported";
            reader.refuse_spec("ipFamilies", problem);
        }
        let alpn_policy = reader.parsed(a::ALPN_POLICY, None, "None", |text| {
            let known = ALPN_POLICIES.iter().copied().find(|policy| *policy == text);
            known.map(Some)
        });
        if let Some(policy) = alpn_policy {
            self.listener.insert(fields::ALPN_POLICY, policy.into());
        }
        if let Some(policy) = reader.given(a::SSL_POLICY) {
            self.listener.insert(fields::SSL_POLICY, policy.into());
        }
        self.defaults.insert(fields::SSL_POLICY, DEFAULT_SSL_POLICY.into());
        self.balancer = balancer_attributes(reader);
        if self.dual_stack {
            self.balancer.insert(fields::IP_ADDRESS_TYPE, "dualstack".into());
        }
        for (attribute, key) in ADDRESSES {
            let values = reader.texts(key);
            if !values.is_empty() {
                self.balancer.insert(attribute, values.into());
            }
        }
        if reader.given(a::PROXY_PROTOCOL).is_some() {
            let problem = format!("it has no effect on a network load balancer; {PROXY_PROTOCOL_FIX}");
            reader.warn(a::PROXY_PROTOCOL, problem);
        }
        self.target_group = health_check(source, reader);
        self.keeps_check = source.settings.keeps_health_checks && !source.service.is_local();
        self.default_check(source.service.is_local(), reader);
        let annotated = target_group_attributes(is_udp, reader);
        self.named = annotated.keys().copied().collect();
        self.target_group.extend(annotated);
    }

    /// Sets the values of the health check that apply where no annotation names them.
    fn default_check(&mut self, is_local: bool, reader: &AnnotationReader<'_>) {
        let check = &self.target_group;
        if reader.get(a::CHECK_UNHEALTHY).is_none() {
            self.defaulted.insert(fields::UNHEALTHY_THRESHOLD);
        }
        let is_http = check.get(fields::HEALTH_CHECK_PROTOCOL).is_some_and(|protocol| protocol == "HTTP");
        let interval = check.get(fields::HEALTH_CHECK_INTERVAL).and_then(Value::as_i64);
        let usual = if is_http { 6 } else { 10 };
        let timeout = interval.map_or(usual, |interval| interval.min(usual));
        let unhealthy = if is_local { 2 } else { 3 };
        // AWS refuses a timeout above the interval, also its own default.
        if timeout < usual && !self.target_group.contains_key(fields::HEALTH_CHECK_TIMEOUT) {
            self.target_group.insert(fields::HEALTH_CHECK_TIMEOUT, timeout.into());
            self.defaulted.insert(fields::HEALTH_CHECK_TIMEOUT);
        }
        self.defaults.extend([
            (fields::HEALTH_CHECK_TIMEOUT, timeout.into()),
            (fields::HEALTH_CHECK_CODES, "200-399".into()),
            (fields::UNHEALTHY_THRESHOLD, unhealthy.into()),
        ]);
    }

    /// The attributes that annotations name. See [`ObjectKind::named_attributes`].
    pub(crate) fn named_attributes(&self) -> BTreeSet<&'static str> {
        let mut named = BTreeSet::new();
        for (kind, attributes) in [
            (ObjectKind::TargetGroup, &self.target_group),
            (ObjectKind::Balancer, &self.balancer),
            (ObjectKind::Listener, &self.listener),
        ] {
            for name in kind.named_attributes() {
                if attributes.contains_key(name) && !self.defaulted.contains(name) {
                    named.insert(*name);
                }
            }
        }
        named
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
        if self.certificates.is_empty() {
            return false;
        }
        ["", "*"].contains(&ports)
            || ports
                .split(',')
                .any(|item| item.parse() == Ok(port) || (!name.is_empty() && item == name))
    }

    /// Why the addresses do not fit this number of subnets.
    pub(crate) fn wrong_addresses(&self, subnets: usize) -> Option<String> {
        ADDRESSES.iter().find_map(|(attribute, key)| {
            let count = self.balancer.get(attribute)?.as_array()?.len();
            if count == subnets {
                return None;
            }
            Some(format!("annotation {key}: {count} values for {subnets} subnets; each needs one"))
        })
    }

    /// The names of the ports' target groups.
    pub(crate) fn target_group_names(&self, cluster: &str, service: &ServiceId) -> Vec<String> {
        let protocol = self.target_group.get(fields::HEALTH_CHECK_PROTOCOL).and_then(Value::as_str);
        let interval = self.target_group.get(fields::HEALTH_CHECK_INTERVAL).and_then(Value::as_i64);
        let check = (protocol.unwrap_or_default(), interval.unwrap_or_default());
        let ports = self.ports.iter();
        ports.map(|port| names::target_group(cluster, service, port, "instance", check)).collect()
    }
}

/// The attributes with the addresses in the subnets, and their annotations.
pub(crate) const ADDRESSES: [(&str, &str); 2] = [
    (fields::EIP_ALLOCATIONS, a::EIP_ALLOCATIONS),
    (fields::PRIVATE_ADDRESSES, a::PRIVATE_ADDRESSES),
];

/// How to enable the PROXY protocol of a network load balancer.
pub(super) const PROXY_PROTOCOL_FIX: &str = "to enable the PROXY protocol, set service.beta.kubernetes.io/\
     aws-load-balancer-target-group-attributes: proxy_protocol_v2.enabled=true";

/// The policy of a TLS listener that is created without one.
pub(crate) const DEFAULT_SSL_POLICY: &str = "ELBSecurityPolicy-2016-08";

/// The values of the annotation with the ALPN policy.
const ALPN_POLICIES: [&str; 5] = [
    "None",
    "HTTP1Only",
    "HTTP2Only",
    "HTTP2Optional",
    "HTTP2Preferred",
];

/// The attribute of a kind that an annotation names.
fn attribute(kind: ObjectKind, policy: Policy<ObjectUpdate>, name: &str) -> Option<&'static str> {
    let mut attributes = kind.schema().attributes.iter();
    let known = attributes.find(|known| known.policy == policy && known.name == name)?;
    Some(known.name)
}

fn target_group_attributes(is_udp: bool, reader: &mut AnnotationReader<'_>) -> Attributes {
    let mut attributes = Attributes::new();
    for (key, value) in reader.map(a::TARGET_GROUP_ATTRIBUTES).into_iter().flatten() {
        let problem = match (attribute(ObjectKind::TargetGroup, TARGET_GROUP_ATTRIBUTE, key), value) {
            (None, _) => format!("{key:?} is not supported"),
            (Some(fields::PRESERVE_CLIENT_IP), "false") if is_udp => {
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
    let cross_zone = is_enabled(a::CROSS_ZONE, reader);
    let logs = is_enabled(a::ACCESS_LOG, reader);
    let mut attributes = Attributes::from([
        (fields::CROSS_ZONE_ENABLED, cross_zone.to_string().into()),
        (fields::ACCESS_LOGS_ENABLED, logs.to_string().into()),
    ]);
    if logs {
        require_bucket(reader);
        let text = |key| reader.text(key, "").into();
        attributes.insert(fields::ACCESS_LOGS_BUCKET, text(a::ACCESS_LOG_BUCKET));
        attributes.insert(fields::ACCESS_LOGS_PREFIX, text(a::ACCESS_LOG_PREFIX));
    }
    for (key, value) in reader.map(a::ATTRIBUTES).into_iter().flatten() {
        match attribute(ObjectKind::Balancer, BALANCER_ATTRIBUTE, key) {
            Some(known) if !value.is_empty() => {
                attributes.insert(known, value.into());
            }
            Some(_) => reader.warn(a::ATTRIBUTES, format!("{key} has no value")),
            None => {
                let problem = format!("a network load balancer has no attribute {key:?}");
                reader.warn(a::ATTRIBUTES, problem);
            }
        }
    }
    attributes
}

/// Whether an annotation is true. Empty means false, as for upstream.
pub(super) fn is_enabled(key: &'static str, reader: &mut AnnotationReader<'_>) -> bool {
    let flag = reader.unless_empty(key).and_then(|reader| reader.strict_flag(key));
    flag == Some(true)
}

/// Refuses access logs without a bucket, as AWS does.
pub(super) fn require_bucket(reader: &mut AnnotationReader<'_>) {
    if reader.given(a::ACCESS_LOG_BUCKET).is_none() {
        reader.refuse(a::ACCESS_LOG_BUCKET, "is needed for access logs");
    }
}

/// The protocol of the health check, in upper or lower case.
pub(super) fn check_protocol(
    reader: &mut AnnotationReader<'_>,
    known: &[&'static str],
) -> Option<&'static str> {
    reader.strict(a::CHECK_PROTOCOL, |text| {
        let found = known.iter().copied().find(|known| known.eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("{text:?} is not one of {}", known.join(", ").to_lowercase()))
    })
}

/// The numbers of a health check that no annotation names.
#[derive(Clone, Copy)]
pub(super) struct CheckDefaults {
    /// Successful checks in a row after which a target is healthy.
    pub(super) healthy: i64,
    /// Failed checks in a row after which a target is unhealthy.
    pub(super) unhealthy: i64,
    /// Seconds between two checks.
    pub(super) interval: i64,
}

/// The thresholds and the interval of the health check, with their defaults.
pub(super) fn check_numbers(reader: &mut AnnotationReader<'_>, defaults: CheckDefaults) -> Attributes {
    let healthy = reader.strict_number(a::CHECK_HEALTHY, 2..=10).unwrap_or(defaults.healthy);
    let unhealthy = reader.strict_number(a::CHECK_UNHEALTHY, 2..=10).unwrap_or(defaults.unhealthy);
    let interval = reader.strict_number(a::CHECK_INTERVAL, 5..=300).unwrap_or(defaults.interval);
    Attributes::from([
        (fields::HEALTHY_THRESHOLD, healthy.into()),
        (fields::UNHEALTHY_THRESHOLD, unhealthy.into()),
        (fields::HEALTH_CHECK_INTERVAL, interval.into()),
    ])
}

fn health_check(source: SpecSource<'_>, reader: &mut AnnotationReader<'_>) -> Attributes {
    let local = source.service.is_local();
    let (default_protocol, default_path) = if local { ("HTTP", "/healthz") } else { ("TCP", "/") };
    let mut protocol = check_protocol(reader, &["TCP", "HTTP", "HTTPS"]).unwrap_or(default_protocol);
    let given_port = reader.strict(a::CHECK_PORT, |text| match text.parse::<u16>() {
        Ok(1..) => Ok(text.to_owned()),
        _ if text == "traffic-port" => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is neither a port nor traffic-port")),
    });
    let own_port = source.service.health_check_port().map(|port| port.to_string());
    let mut port = given_port.or(own_port).unwrap_or_else(|| "traffic-port".to_owned());
    let mut path = reader.given(a::CHECK_PATH).unwrap_or_else(|| default_path.to_owned());
    if let Some(shared) = &source.settings.shared_probe
        && !local
    {
        protocol = "HTTP";
        port = shared.port.to_string();
        path.clone_from(&shared.path);
    }
    let defaults = if local {
        CheckDefaults {
            healthy: 2,
            unhealthy: 2,
            interval: 10,
        }
    } else {
        CheckDefaults {
            healthy: 3,
            unhealthy: 3,
            interval: 30,
        }
    };
    let mut check = check_numbers(reader, defaults);
    // Upstream does not send the timeout, so a Service may have one that AWS would refuse.
    let interval = check.get(fields::HEALTH_CHECK_INTERVAL).and_then(Value::as_i64);
    let longest = interval.unwrap_or_default().min(120);
    match reader.strict_number(a::CHECK_TIMEOUT, i64::MIN..=i64::MAX) {
        Some(timeout) if !(2..=longest).contains(&timeout) => {
            let problem = format!("{timeout} is not between 2 and {longest} (the interval, at most 120)");
            reader.warn(a::CHECK_TIMEOUT, problem + "; the default is used");
        }
        Some(timeout) => {
            check.insert(fields::HEALTH_CHECK_TIMEOUT, timeout.into());
        }
        None => {}
    }
    check.insert(fields::HEALTH_CHECK_PROTOCOL, protocol.into());
    check.insert(fields::HEALTH_CHECK_PORT, port.into());
    if protocol != "TCP" {
        check.insert(fields::HEALTH_CHECK_PATH, path.into());
        if let Some(codes) = reader.given(a::CHECK_CODES) {
            check.insert(fields::HEALTH_CHECK_CODES, codes.into());
        }
    }
    check
}

#[cfg(test)]
mod tests;
