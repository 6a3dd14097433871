//! From a Service's fields and annotations to what its load balancer is asked to be.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    check::Field,
    load_balancer::{
        AnnotationReader, ClusterView, IgnoredValue, InvalidField, IpFamily, NodeSelector, Protocol,
        ServiceId, ServiceView, SessionAffinity, SourceRanges,
    },
    plan::objects::Kind as _,
};

use super::{
    annotations::{
        ACCESS_LOG, ACCESS_LOG_BUCKET, ACCESS_LOG_PREFIX, ALPN_POLICY, ATTRIBUTES, BACKEND_PROTOCOL,
        CERTIFICATES, CHECK_CODES, CHECK_HEALTHY, CHECK_INTERVAL, CHECK_PATH, CHECK_PORT, CHECK_PROTOCOL,
        CHECK_TIMEOUT, CHECK_UNHEALTHY, CROSS_ZONE, EIP_ALLOCATIONS, EXTRA_SECURITY_GROUPS, INTERNAL,
        IP_ADDRESS_TYPE, NODE_LABELS, PRIVATE_ADDRESSES, PROXY_PROTOCOL, SCHEME, SECURITY_GROUPS, SSL_POLICY,
        SSL_PORTS, SUBNETS, TAGS, TARGET_GROUP_ATTRIBUTES, TARGET_TYPE, TYPE,
    },
    kinds::{BALANCER_ATTRIBUTE, Kind},
    names::{self, TargetGroupId},
};
use crate::{
    config::{DefaultType, LoadBalancing},
    instances::provider_id::{self, ProviderId},
};

/// The kind of a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    /// A network load balancer.
    Network,
    /// A classic load balancer.
    Classic,
    /// The AWS Load Balancer Controller, or nobody, is responsible.
    Elsewhere,
}

impl Flavor {
    /// What a Service asks for.
    pub(crate) fn of(service: &ServiceView, settings: &LoadBalancing) -> Self {
        match (service.annotation(TYPE), settings.default_type) {
            (Some("external" | "nlb-ip"), _) => Self::Elsewhere,
            (Some("nlb"), _) | (_, DefaultType::Nlb) => Self::Network,
            (_, DefaultType::Classic) => Self::Classic,
            (_, DefaultType::None) => Self::Elsewhere,
        }
    }

    /// For messages.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Network => "network load balancer",
            Self::Classic => "classic load balancer",
            Self::Elsewhere => "load balancer of another controller",
        }
    }
}

/// Whether the Service's status names the load balancer that has its name: then it stays ours, whatever it asks for.
pub(crate) fn has_own_hostname(service: &ServiceView) -> bool {
    let mut hostnames = service
        .ingress
        .iter()
        .filter_map(|ingress| ingress.hostname.as_deref());
    hostnames.any(|hostname| names::is_hostname_of(hostname, &service.id))
}

/// A port of a network load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortSpec {
    pub(crate) port: u16,
    pub(crate) node_port: u16,
    /// `TCP`, `UDP`, `TCP_UDP` or `TLS`.
    pub(crate) protocol: &'static str,
    /// The protocol to the targets.
    pub(crate) target_protocol: &'static str,
}

impl PortSpec {
    /// The protocols of the rules that let its traffic pass.
    pub(crate) fn transports(&self) -> &'static [&'static str] {
        transports(self.protocol)
    }
}

/// The protocols of IP that a protocol of AWS stands for.
pub(crate) fn transports(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "UDP" => &["udp"],
        "TCP_UDP" => &["tcp", "udp"],
        _ => &["tcp"],
    }
}

/// The health check of targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    /// `TCP`, `HTTP` or `HTTPS`.
    pub(crate) protocol: &'static str,
    /// `traffic-port` or a number.
    pub(crate) port: String,
    pub(crate) path: Option<String>,
    pub(crate) codes: Option<String>,
    pub(crate) interval: i64,
    /// `None`: AWS's default.
    pub(crate) timeout: Option<i64>,
    pub(crate) healthy: i64,
    pub(crate) unhealthy: i64,
}

/// What a Service asks of its load balancer, of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommonSpec {
    pub(crate) internal: bool,
    /// Subnets by ID or name; `None`: by tags.
    pub(crate) subnets: Option<Vec<String>>,
    pub(crate) security_groups: Vec<String>,
    pub(crate) tags: BTreeMap<String, String>,
    /// The CIDRs of the clients.
    pub(crate) ranges: Vec<String>,
}

/// What a Service asks of its network load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkSpec {
    pub(crate) common: CommonSpec,
    pub(crate) dual_stack: bool,
    pub(crate) eip_allocations: Vec<String>,
    pub(crate) private_addresses: Vec<String>,
    pub(crate) ports: Vec<PortSpec>,
    pub(crate) certificates: Vec<String>,
    pub(crate) ssl_policy: Option<String>,
    pub(crate) alpn_policy: Option<String>,
    pub(crate) check: HealthCheck,
    /// Attributes of the load balancer.
    pub(crate) attributes: BTreeMap<&'static str, String>,
    /// Attributes of target groups: those that the annotation names, which upstream sets too.
    pub(crate) target_group_attributes: BTreeMap<&'static str, String>,
    /// Whether targets get the PROXY protocol by its own annotation, which upstream ignores.
    pub(crate) proxy_protocol: bool,
}

/// What was read, what was ignored in it, and because of what the Service is refused.
#[derive(Clone, Debug)]
pub(crate) struct Reading<T> {
    /// With a default in the place of everything that is wrong.
    pub(crate) spec: T,
    pub(crate) ignored: Vec<IgnoredValue>,
    pub(crate) invalid: Vec<InvalidField>,
}

/// The nodes that a Service takes.
pub(crate) fn selector(service: &ServiceView) -> NodeSelector {
    NodeSelector::parse(service.annotation(NODE_LABELS).unwrap_or_default())
}

/// The instances behind the nodes that a Service takes; `None`: no node is eligible, and targets stay as they are.
pub(crate) fn instances(service: &ServiceView, cluster: &ClusterView) -> Option<BTreeSet<String>> {
    let selector = selector(service);
    let eligible = cluster
        .nodes
        .eligible()
        .filter(|node| selector.matches(&node.view.labels));
    let ids = eligible.filter_map(
        |node| match provider_id::parse(node.view.provider_id.as_deref()?) {
            Ok(ProviderId::Instance(id)) => Some(id),
            // Fargate has no instances, and what is not ours is no target.
            _ => None,
        },
    );
    (!cluster.nodes.keeps_members()).then(|| ids.collect())
}

/// What is the same for both kinds.
pub(crate) fn common(service: &ServiceView, reader: &mut AnnotationReader<'_>) -> CommonSpec {
    if service.ports.is_empty() {
        reader.refuse_field(spec_field("ports", "there is none"));
    }
    if service.session_affinity != SessionAffinity::None {
        let problem = "ClientIP is not supported; AWS chooses the target by the connection";
        reader.refuse_field(spec_field("sessionAffinity", problem));
    }
    if !service.load_balancer_ip.is_empty() {
        let problem = format!("not supported; the annotation {EIP_ALLOCATIONS} sets addresses");
        reader.refuse_field(spec_field("loadBalancerIP", &problem));
    }
    let scheme = reader.strict(SCHEME, |text| match text {
        "internal" => Ok(true),
        "internet-facing" => Ok(false),
        _ => Err(format!("{text:?} is neither internal nor internet-facing")),
    });
    let internal = service
        .annotation(INTERNAL)
        .is_some_and(|text| !matches!(text, "" | "false"));
    let list = |reader: &AnnotationReader<'_>, key| {
        let items = reader
            .list(key)
            .map(|items| items.into_iter().map(str::to_owned).collect::<Vec<_>>());
        items.filter(|items| !items.is_empty())
    };
    let subnets = list(reader, SUBNETS);
    if subnets.is_none() && reader.get(SUBNETS).is_some() {
        reader.refuse(SUBNETS, "there is no subnet in it");
    }
    let tags = reader.map(TAGS).into_iter().flatten();
    let ranges = SourceRanges::of(service).unwrap_or_else(|invalid| {
        reader.refuse_field(invalid);
        SourceRanges::all(None)
    });
    CommonSpec {
        internal: scheme.unwrap_or(internal),
        subnets,
        security_groups: list(reader, SECURITY_GROUPS).unwrap_or_default(),
        tags: tags
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        ranges: ranges.texts(),
    }
}

/// A field of the Service's spec with this problem.
pub(crate) fn spec_field(name: &'static str, problem: &str) -> InvalidField {
    InvalidField {
        field: Field::Spec(name),
        message: format!("spec.{name}: {problem}"),
    }
}

impl NetworkSpec {
    /// The names of the ports' target groups.
    pub(crate) fn target_group_names(&self, cluster: &str, service: &ServiceId) -> Vec<String> {
        let name = |port: &PortSpec| {
            let id = TargetGroupId {
                cluster,
                service,
                port: port.port,
                node_port: port.node_port,
                protocol: port.target_protocol,
                check_protocol: self.check.protocol,
                check_interval: self.check.interval,
            };
            id.name()
        };
        self.ports.iter().map(name).collect()
    }

    /// Reads a Service. Everything that is wrong is found at once.
    pub(crate) fn read(service: &ServiceView, settings: &LoadBalancing) -> Reading<Self> {
        let mut reader = AnnotationReader::new(&service.annotations);
        let mut common = common(service, &mut reader);
        if reader.get(EXTRA_SECURITY_GROUPS).is_some() {
            reader.refuse(
                EXTRA_SECURITY_GROUPS,
                "a network load balancer does not support it",
            );
        }
        reader.strict(TARGET_TYPE, |text| match text {
            "instance" => Ok(()),
            _ => Err(format!("{text:?} is not supported here; instance is")),
        });
        if !settings.managed_security_groups && !common.security_groups.is_empty() {
            let problem = "it has no effect without NLBSecurityGroupMode=Managed in cloud.conf";
            reader.warn(SECURITY_GROUPS, problem.to_owned());
        }
        let families = &service.ip_families;
        let dual_stack = reader.strict(IP_ADDRESS_TYPE, |text| match text {
            "ipv4" => Ok(false),
            "dualstack" => Ok(true),
            _ => Err(format!("{text:?} is neither ipv4 nor dualstack")),
        });
        let dual_stack = dual_stack.unwrap_or_else(|| families.contains(&IpFamily::V6));
        if dual_stack && !ranges_given(service) {
            common.ranges = ["0.0.0.0/0", "::/0"].map(str::to_owned).to_vec();
        }
        let owned =
            |items: Option<Vec<&str>>| items.into_iter().flatten().map(str::to_owned).collect::<Vec<_>>();
        let certificates = owned(reader.list(CERTIFICATES));
        let ports = ports(service, &certificates, &mut reader);
        if dual_stack && ports.iter().any(|port| port.protocol.contains("UDP")) {
            let problem = "a load balancer with IPv4 and IPv6 has no UDP ports to nodes";
            reader.refuse_field(spec_field("ipFamilies", problem));
        }
        let alpn_policy = reader.strict(ALPN_POLICY, |text| {
            let known = [
                "None",
                "HTTP1Only",
                "HTTP2Only",
                "HTTP2Optional",
                "HTTP2Preferred",
            ];
            let known = known.into_iter().find(|known| *known == text);
            known
                .map(str::to_owned)
                .ok_or_else(|| format!("{text:?} is not an ALPN policy"))
        });
        let is_udp = ports.iter().any(|port| port.protocol.contains("UDP"));
        let target_group_attributes = target_group_attributes(is_udp, &mut reader);
        let proxy_protocol = proxy_protocol(&mut reader);
        let spec = Self {
            dual_stack,
            eip_allocations: owned(reader.list(EIP_ALLOCATIONS)),
            private_addresses: owned(reader.list(PRIVATE_ADDRESSES)),
            ports,
            certificates,
            ssl_policy: given(reader.get(SSL_POLICY)),
            alpn_policy,
            check: check(service, settings, &mut reader),
            attributes: attributes(&mut reader),
            target_group_attributes,
            proxy_protocol,
            common,
        };
        let (ignored, invalid) = reader.finish();
        Reading {
            spec,
            ignored,
            invalid,
        }
    }
}

/// Whether the Service names its clients.
pub(crate) fn ranges_given(service: &ServiceView) -> bool {
    SourceRanges::of(service).is_ok_and(|ranges| ranges.given)
}

/// `*` turns on the PROXY protocol.
pub(crate) fn proxy_protocol(reader: &mut AnnotationReader<'_>) -> bool {
    let on = reader.strict(PROXY_PROTOCOL, |text| match text {
        "*" => Ok(true),
        "" => Ok(false),
        _ => Err(format!("{text:?} is not supported; `*` is")),
    });
    on.unwrap_or(false)
}

/// A text that is not empty.
pub(crate) fn given(text: Option<&str>) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Whether TLS is asked for at a port.
pub(crate) fn is_tls_port(reader: &AnnotationReader<'_>, port: u16, name: &str) -> bool {
    let ports = reader.list(SSL_PORTS).unwrap_or_default();
    let number = port.to_string();
    let is_named = |item: &&str| *item == number || (!name.is_empty() && *item == name);
    ports.is_empty() || ports == ["*"] || ports.iter().any(is_named)
}

fn ports(service: &ServiceView, certificates: &[String], reader: &mut AnnotationReader<'_>) -> Vec<PortSpec> {
    let backend = reader.get(BACKEND_PROTOCOL).unwrap_or_default();
    if !["", "tcp", "ssl", "http", "https"].contains(&backend) {
        reader.warn(
            BACKEND_PROTOCOL,
            format!("{backend:?} has no meaning, tcp is used"),
        );
    }
    let mut ports: Vec<PortSpec> = Vec::new();
    // A Service without node ports has a load balancer without listeners.
    for port in service.ports.iter().filter(|port| port.node_port > 0) {
        let tls = !certificates.is_empty() && is_tls_port(reader, port.port, &port.name);
        let (protocol, target_protocol) = match port.protocol {
            Protocol::Udp => ("UDP", "UDP"),
            Protocol::Tcp if tls => ("TLS", if backend == "ssl" { "TLS" } else { "TCP" }),
            Protocol::Tcp => ("TCP", "TCP"),
            Protocol::Sctp => {
                reader.refuse_field(spec_field(
                    "ports",
                    &format!("port {}: SCTP is not supported", port.port),
                ));
                continue;
            }
        };
        let Some(known) = ports.iter_mut().find(|known| known.port == port.port) else {
            ports.push(PortSpec {
                port: port.port,
                node_port: port.node_port,
                protocol,
                target_protocol,
            });
            continue;
        };
        // The same port twice, by TCP and by UDP, is one listener.
        let problem = if [known.protocol, protocol].contains(&"TLS") {
            "TLS and UDP"
        } else if known.node_port != port.node_port {
            "TCP and UDP with different node ports"
        } else {
            (known.protocol, known.target_protocol) = ("TCP_UDP", "TCP_UDP");
            continue;
        };
        let problem = format!(
            "port {}: a listener cannot have {problem}; use one node port for both, or two ports",
            port.port
        );
        reader.refuse_field(spec_field("ports", &problem));
    }
    ports
}

fn target_group_attributes(
    is_udp: bool,
    reader: &mut AnnotationReader<'_>,
) -> BTreeMap<&'static str, String> {
    let mut attributes = BTreeMap::new();
    for (key, value) in reader.map(TARGET_GROUP_ATTRIBUTES).into_iter().flatten() {
        let known = ["preserve_client_ip.enabled", "proxy_protocol_v2.enabled"]
            .into_iter()
            .find(|known| *known == key);
        let Some(known) = known else {
            reader.refuse(TARGET_GROUP_ATTRIBUTES, format!("{key:?} is not supported"));
            continue;
        };
        if !["true", "false"].contains(&value) {
            reader.refuse(
                TARGET_GROUP_ATTRIBUTES,
                format!("{key}: {value:?} is neither true nor false"),
            );
        } else if is_udp && known == "preserve_client_ip.enabled" && value == "false" {
            reader.refuse(
                TARGET_GROUP_ATTRIBUTES,
                format!("{key} cannot be false with a UDP port"),
            );
        }
        attributes.insert(known, value.to_owned());
    }
    attributes
}

fn attributes(reader: &mut AnnotationReader<'_>) -> BTreeMap<&'static str, String> {
    let mut attributes = BTreeMap::new();
    let cross_zone = reader.strict_flag(CROSS_ZONE).unwrap_or(false);
    attributes.insert("load_balancing.cross_zone.enabled", cross_zone.to_string());
    let logs = reader.strict_flag(ACCESS_LOG).unwrap_or(false);
    attributes.insert("access_logs.s3.enabled", logs.to_string());
    if logs {
        attributes.insert("access_logs.s3.bucket", reader.text(ACCESS_LOG_BUCKET, ""));
        attributes.insert("access_logs.s3.prefix", reader.text(ACCESS_LOG_PREFIX, ""));
    }
    for (key, value) in reader.map(ATTRIBUTES).into_iter().flatten() {
        let mut known = Kind::Balancer.schema().attributes.iter();
        match known.find(|known| known.policy == BALANCER_ATTRIBUTE && known.name == key) {
            Some(known) if !value.is_empty() => drop(attributes.insert(known.name, value.to_owned())),
            Some(_) => reader.refuse(ATTRIBUTES, format!("{key} has no value")),
            None => reader.refuse(
                ATTRIBUTES,
                format!("a network load balancer has no attribute {key:?}"),
            ),
        }
    }
    attributes
}

fn check(service: &ServiceView, settings: &LoadBalancing, reader: &mut AnnotationReader<'_>) -> HealthCheck {
    let local = service.is_local();
    let protocol = reader.strict(CHECK_PROTOCOL, |text| {
        let known = ["TCP", "HTTP", "HTTPS"]
            .into_iter()
            .find(|known| known.eq_ignore_ascii_case(text));
        known.ok_or_else(|| format!("{text:?} is none of tcp, http and https"))
    });
    let mut protocol = protocol.unwrap_or(if local { "HTTP" } else { "TCP" });
    let port = reader.strict(CHECK_PORT, |text| match text.parse::<u16>() {
        Ok(1..) => Ok(text.to_owned()),
        _ if text == "traffic-port" => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is neither a port nor traffic-port")),
    });
    let mut port = port.unwrap_or_else(|| match service.health_check_node_port {
        number @ 1.. if local => number.to_string(),
        _ => "traffic-port".to_owned(),
    });
    let mut path =
        given(reader.get(CHECK_PATH)).unwrap_or_else(|| if local { "/healthz" } else { "/" }.to_owned());
    if let Some(shared) = settings.shared_probe.as_ref().filter(|_| !local) {
        (protocol, port, path) = ("HTTP", shared.port.to_string(), shared.path.clone());
    }
    let threshold = if local { 2 } else { 3 };
    HealthCheck {
        protocol,
        port,
        path: (protocol != "TCP").then_some(path),
        codes: given(reader.get(CHECK_CODES)).filter(|_| protocol != "TCP"),
        interval: reader
            .strict_number(CHECK_INTERVAL, 5..=300)
            .unwrap_or(if local { 10 } else { 30 }),
        timeout: reader.strict_number(CHECK_TIMEOUT, 2..=120),
        healthy: reader.strict_number(CHECK_HEALTHY, 2..=10).unwrap_or(threshold),
        unhealthy: reader.strict_number(CHECK_UNHEALTHY, 2..=10).unwrap_or(threshold),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ccm_core::load_balancer::{Policy, ServiceId, ServicePort};

    use super::*;
    use crate::{config::SharedProbe, load_balancer::classic::ClassicSpec};

    const SETTINGS: LoadBalancing = LoadBalancing {
        disable_security_group_ingress: false,
        elb_security_group: None,
        shared_probe: None,
        managed_security_groups: false,
        default_type: DefaultType::Classic,
    };

    fn service(annotations: &[(&str, &str)]) -> ServiceView {
        ServiceView {
            id: ServiceId::new("n", "s", "u"),
            annotations: annotations.iter().copied().collect(),
            ports: vec![ServicePort {
                name: "https".into(),
                port: 443,
                node_port: 30443,
                ..ServicePort::default()
            }],
            ..ServiceView::default()
        }
    }

    /// Protocol, port, path, interval and thresholds, as they are sent.
    fn checked(service: &ServiceView, settings: &LoadBalancing) -> String {
        let reading = NetworkSpec::read(service, settings);
        assert_eq!(reading.invalid, [], "{service:?}");
        let HealthCheck {
            protocol,
            port,
            path,
            interval,
            healthy,
            unhealthy,
            ..
        } = reading.spec.check;
        format!(
            "{protocol}:{port}{} {interval} {healthy}/{unhealthy}",
            path.unwrap_or_default()
        )
    }

    #[test]
    fn the_health_check_is_that_of_upstream() {
        let local = |annotations: &[(&str, &str)]| ServiceView {
            external_policy: Policy::Local,
            health_check_node_port: 31000,
            ..service(annotations)
        };
        let shared = LoadBalancing {
            shared_probe: Some(SharedProbe {
                port: 10256,
                path: "/healthz".to_owned(),
            }),
            ..SETTINGS
        };
        let own = [(CHECK_PROTOCOL, "https"), (CHECK_PORT, "81"), (CHECK_PATH, "/x")];
        for (service, settings, expected) in [
            (service(&[]), &SETTINGS, "TCP:traffic-port 30 3/3"),
            (local(&[]), &SETTINGS, "HTTP:31000/healthz 10 2/2"),
            (
                local(&[(CHECK_PROTOCOL, "TCP"), (CHECK_PORT, "8001")]),
                &SETTINGS,
                "TCP:8001 10 2/2",
            ),
            (
                service(&[(CHECK_PROTOCOL, "Http")]),
                &SETTINGS,
                "HTTP:traffic-port/ 30 3/3",
            ),
            (
                service(&[(CHECK_INTERVAL, "23")]),
                &SETTINGS,
                "TCP:traffic-port 23 3/3",
            ),
            (
                service(&[(CHECK_HEALTHY, "4"), (CHECK_UNHEALTHY, "5")]),
                &SETTINGS,
                "TCP:traffic-port 30 4/5",
            ),
            (service(&own), &SETTINGS, "HTTPS:81/x 30 3/3"),
            (service(&own), &shared, "HTTP:10256/healthz 30 3/3"),
            (local(&[]), &shared, "HTTP:31000/healthz 10 2/2"),
        ] {
            assert_eq!(checked(&service, settings), expected);
        }
    }

    #[test]
    fn tls_is_chosen_by_number_or_name() {
        let protocols = |ports: &str, backend: &str| {
            let annotations = [
                (CERTIFICATES, "arn:1,arn:2"),
                (SSL_PORTS, ports),
                (BACKEND_PROTOCOL, backend),
            ];
            let spec = NetworkSpec::read(&service(&annotations), &SETTINGS).spec;
            (spec.ports[0].protocol, spec.ports[0].target_protocol)
        };
        for (ports, backend, expected) in [
            ("*", "", ("TLS", "TCP")),
            ("", "ssl", ("TLS", "TLS")),
            ("80, 443", "https", ("TLS", "TCP")),
            ("https", "ssl", ("TLS", "TLS")),
            ("http", "ssl", ("TCP", "TCP")),
        ] {
            assert_eq!(protocols(ports, backend), expected, "{ports} {backend}");
        }
    }

    #[test]
    fn every_wrong_value_is_named_and_all_of_them_at_once() {
        let wrong = [
            (SCHEME, "public"),
            (TARGET_TYPE, "ip"),
            (IP_ADDRESS_TYPE, "ipv6"),
            (SUBNETS, " ,"),
            (EXTRA_SECURITY_GROUPS, "sg-1"),
            (ALPN_POLICY, "h3"),
            (CROSS_ZONE, "perhaps"),
            (ACCESS_LOG, "yes"),
            (ATTRIBUTES, "idle=1"),
            (TARGET_GROUP_ATTRIBUTES, "stickiness.enabled=true"),
            (PROXY_PROTOCOL, "v2"),
            (CHECK_PROTOCOL, "quic"),
            (CHECK_PORT, "http"),
            (CHECK_HEALTHY, "11"),
            (CHECK_UNHEALTHY, "1"),
            (CHECK_TIMEOUT, "often"),
            (CHECK_INTERVAL, "1"),
        ];
        let named = |invalid: &[InvalidField]| -> BTreeSet<String> {
            invalid.iter().map(|invalid| invalid.field.to_string()).collect()
        };
        let all = named(&NetworkSpec::read(&service(&wrong), &SETTINGS).invalid);
        for (key, value) in wrong {
            let one = NetworkSpec::read(&service(&[(key, value)]), &SETTINGS).invalid;
            assert_eq!(named(&one), [key.to_owned()].into(), "{value}");
            assert!(all.contains(key), "{key}");
        }
        let affinity = ServiceView {
            session_affinity: SessionAffinity::ClientIp {
                timeout_seconds: None,
            },
            load_balancer_ip: "192.0.2.1".into(),
            source_ranges: Some(vec!["x".into()]),
            ports: Vec::new(),
            ..service(&[])
        };
        assert_eq!(NetworkSpec::read(&affinity, &SETTINGS).invalid.len(), 4);
    }

    #[test]
    fn wrong_values_of_classic_load_balancers_are_named() {
        let wrong = [
            (BACKEND_PROTOCOL, "quic"),
            (CERTIFICATES, "arn:1"),
            (super::super::annotations::IDLE_TIMEOUT, "0"),
            (super::super::annotations::DRAINING, "maybe"),
            (super::super::annotations::DRAINING_TIMEOUT, "1h"),
            (super::super::annotations::ACCESS_LOG_INTERVAL, "7m"),
            (TARGET_GROUP_ATTRIBUTES, "preserve_client_ip.enabled=true"),
            (CHECK_PROTOCOL, "quic"),
            (CHECK_PORT, "http"),
            (PROXY_PROTOCOL, "true"),
        ];
        let invalid = ClassicSpec::read(&service(&wrong), &SETTINGS).invalid;
        assert_eq!(invalid.len(), wrong.len() - 1, "{invalid:#?}");
    }

    #[test]
    fn the_status_keeps_a_service_that_asks_for_another_controller() {
        let flavor = |annotations: &[(&str, &str)], default_type| {
            let settings = LoadBalancing {
                default_type,
                ..SETTINGS
            };
            Flavor::of(&service(annotations), &settings)
        };
        assert_eq!(flavor(&[], DefaultType::Classic), Flavor::Classic);
        assert_eq!(flavor(&[], DefaultType::Nlb), Flavor::Network);
        assert_eq!(flavor(&[], DefaultType::None), Flavor::Elsewhere);
        assert_eq!(flavor(&[(TYPE, "nlb")], DefaultType::None), Flavor::Network);
        assert_eq!(flavor(&[(TYPE, "external")], DefaultType::Nlb), Flavor::Elsewhere);
        assert_eq!(flavor(&[(TYPE, "NLB")], DefaultType::Classic), Flavor::Classic);
        let mut served = service(&[(TYPE, "external")]);
        assert!(!has_own_hostname(&served));
        let hostname = Some("au-0123.elb.us-east-1.amazonaws.com".into());
        served.ingress = vec![ccm_core::load_balancer::Ingress {
            hostname,
            ..Default::default()
        }];
        assert!(has_own_hostname(&served));
    }
}
