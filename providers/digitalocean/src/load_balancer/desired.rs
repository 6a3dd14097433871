//! Computes the fields of a load balancer from a Service, nodes and settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use ccm_core::{
    AddressType, Result,
    load_balancer::{
        AnnotationReader, IgnoredValue, InvalidField, IpFamily, NodeSet, Protocol, ServicePort, ServiceView,
        SourceRanges, default_name,
    },
};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{
    annotations as a,
    document::{Balancer, WriteOnly, is_internal, kind},
};
use crate::{
    config::{LbType, Settings, is_name, is_uuid},
    instances::droplet_id,
};

/// Ports that the API reserves.
const RESERVED: std::ops::RangeInclusive<u16> = 50053..=50055;
/// The port of kube-proxy's health check.
const KUBE_PROXY_HEALTH: u16 = 10256;
/// The path of health checks by kube-proxy and by `externalTrafficPolicy: Local`.
const HEALTH_PATH: &str = "/healthz";
/// Annotations without effect on type `REGIONAL_NETWORK`.
const HTTP_ONLY: [&str; 12] = [
    a::PROTOCOL,
    a::HTTP_PORTS,
    a::TLS_PORTS,
    a::HTTP2_PORTS,
    a::HTTP3_PORT,
    a::TLS_PASSTHROUGH,
    a::CERTIFICATE_ID,
    a::CERTIFICATE_NAME,
    a::STICKY_TYPE,
    a::REDIRECT,
    a::PROXY_PROTOCOL,
    a::KEEPALIVE,
];
/// Why an internal load balancer cannot have both families.
const ONLY_IPV4: &str = "an internal load balancer has only IPv4 addresses; leave it out or write IPV4";
/// The fix for a port without a node port.
const SET_NODE_PORTS: &str = "set spec.allocateLoadBalancerNodePorts to true";
/// Maximum number of nodes in a message.
const SHOWN: usize = 3;

/// The desired load balancer of a Service, without nodes and tags.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// From the existing load balancer, else for the one to create.
    pub(crate) kind: LbType,
    pub(crate) internal: bool,
    /// The families that the Service requests.
    pub(crate) stack: Option<&'static str>,
    /// The fields that are compared.
    pub(crate) fields: Value,
    /// Fields that only a create sends.
    pub(crate) create: Value,
    pub(crate) write_only: WriteOnly,
    /// Immutable fields that the Service or the configuration sets, with their values.
    pub(crate) requested: Vec<(&'static str, String)>,
    /// The port of health checks.
    pub(crate) health_port: u64,
}

/// A [`Spec`] and its problems.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) spec: Spec,
    pub(crate) ignored: Vec<IgnoredValue>,
    pub(crate) invalid: Vec<InvalidField>,
}

/// The desired name of the load balancer.
pub(crate) fn name(service: &ServiceView) -> String {
    let custom = service.annotation_text(a::NAME);
    custom.map_or_else(|| default_name(&service.id), str::to_owned)
}

/// The type of the load balancer: that of the existing one, else the requested one.
pub(crate) fn balancer_type(
    service: &ServiceView,
    settings: &Settings,
    existing: Option<&Balancer>,
) -> LbType {
    let asked = || LbType::parse(service.annotation_text(a::TYPE)?);
    let kind = existing.and_then(kind).or_else(asked);
    kind.unwrap_or(settings.conf.default_type)
}

/// Whether the load balancer must be left unchanged.
///
/// # Errors
/// A value that is no boolean.
pub(crate) fn is_disowned(service: &ServiceView) -> Result<bool> {
    let mut reader = AnnotationReader::new(&service.annotations);
    let is_disowned = reader.strict_flag(a::DISOWN) == Some(true);
    match reader.finish() {
        (_, invalid) if !invalid.is_empty() => Err(InvalidField::error(&invalid)),
        _ => Ok(is_disowned),
    }
}

/// The host name that replaces addresses in the status.
pub(crate) fn hostname(service: &ServiceView) -> Option<String> {
    service.annotation_text(a::HOSTNAME).map(str::to_lowercase)
}

/// The certificate in a Service's annotations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CertificateRef {
    Id(String),
    Name(String),
}

impl CertificateRef {
    /// The id wins.
    pub(crate) fn of(service: &ServiceView) -> Option<Self> {
        let text = |key| service.annotation_text(key).map(str::to_owned);
        let id = text(a::CERTIFICATE_ID).map(Self::Id);
        id.or_else(|| text(a::CERTIFICATE_NAME).map(Self::Name))
    }
}

/// Reads a Service. `existing`: its load balancer, whose immutable fields are kept. `certificate`: the ID of its certificate.
/// Without it (in `validate`), the certificate's name is used.
pub(crate) fn read(
    service: &ServiceView,
    settings: &Settings,
    existing: Option<&Balancer>,
    certificate: Option<&str>,
) -> Reading {
    let mut reader = Reader {
        service,
        reader: AnnotationReader::new(&service.annotations),
    };
    let named = CertificateRef::of(service).map(|named| match named {
        CertificateRef::Id(text) | CertificateRef::Name(text) => text,
    });
    let certificate = certificate.map(str::to_owned).or(named);
    let spec = reader.spec(settings, existing, certificate.as_deref());
    let (ignored, invalid) = reader.reader.finish();
    Reading {
        spec,
        ignored,
        invalid,
    }
}

struct Reader<'a> {
    service: &'a ServiceView,
    reader: AnnotationReader<'a>,
}

impl<'a> Reader<'a> {
    fn spec(&mut self, settings: &Settings, existing: Option<&Balancer>, certificate: Option<&str>) -> Spec {
        let asked = self.choice(a::TYPE, &["REGIONAL", "REGIONAL_NETWORK"]);
        let network = self.choice(a::NETWORK, &["EXTERNAL", "INTERNAL"]);
        let stack = self.choice(a::NETWORK_STACK, &["IPV4", "DUALSTACK"]);
        let kind = balancer_type(self.service, settings, existing);
        let internal = existing.map_or(network == Some("INTERNAL"), is_internal);
        if internal && stack == Some("DUALSTACK") {
            self.reader.refuse(a::NETWORK_STACK, ONLY_IPV4);
        }
        let (name, size) = (self.name(), self.size());
        let rules = match kind {
            LbType::Regional => self.regional_rules(certificate),
            LbType::RegionalNetwork => self.network_rules(),
        };
        let (check, plain_checks) = self.health_check();
        let health_port = check["port"].as_u64().unwrap_or_default();
        let mut fields = json!({
            "name": name, "size_unit": size, "forwarding_rules": rules, "health_check": check,
            "firewall": self.firewall(), "tag": null,
        });
        let subnet = self.reader.strict_text(a::SUBNET, "UUID", is_uuid);
        let is_ipv4 = |text: &str| text.parse::<Ipv4Addr>().is_ok();
        let ip = self.reader.strict_text(a::IP, "IPv4 address", is_ipv4);
        let mut create = json!({
            "type": kind, "network": if internal { "INTERNAL" } else { "EXTERNAL" },
            "vpc_uuid": settings.vpc, "subnet_uuid": subnet, "ip": ip,
        });
        // A load balancer of type REGIONAL_NETWORK ignores these: it keeps the values that the API chooses.
        self.http_fields(match kind {
            LbType::Regional => &mut fields,
            LbType::RegionalNetwork => &mut create,
        });
        // The API ignores it. So a value that only the Go cloud controller accepts refuses no Service.
        let algorithm = self.reader.unless_empty(a::ALGORITHM).map(|reader| {
            let known = ["round_robin", "least_connections"];
            let find = |text: &str| known.into_iter().find(|known| *known == text);
            reader.parsed(a::ALGORITHM, known[0], known[0], find)
        });
        self.reader.strict_flag(a::DISOWN);
        self.reader.lenient_flag(a::FIREWALL_MANAGED, true);
        let requested = [
            ("type", asked),
            ("network", network),
            ("network_stack", stack),
            ("vpc_uuid", settings.vpc.as_deref()),
            ("subnet_uuid", subnet.as_deref()),
        ];
        let set = |(field, value): (_, Option<&str>)| Some((field, value?.to_owned()));
        Spec {
            kind,
            internal,
            stack,
            requested: requested.into_iter().filter_map(set).collect(),
            fields,
            create,
            write_only: WriteOnly {
                algorithm: algorithm.or(Some("round_robin")),
                plain_checks: Some(plain_checks),
            },
            health_port,
        }
    }

    /// One of these values. An empty text counts as unset.
    fn choice(&mut self, key: &'static str, values: &[&'static str]) -> Option<&'static str> {
        self.reader.given(key)?;
        self.reader.strict_choice(key, values)
    }

    fn name(&mut self) -> String {
        let name = name(self.service);
        if name.len() > 255 || name.ends_with('-') || !is_name(&name) {
            let text =
                "at most 255 letters, digits, dots and dashes, the first a letter or digit, the last no dash";
            self.reader.refuse(a::NAME, format_args!("{name:?} is not a valid name: {text}"));
        }
        name
    }

    fn size(&mut self) -> u32 {
        let slug = self.choice(a::SIZE_SLUG, &["lb-small", "lb-medium", "lb-large"]);
        // The API checks the limit of the account.
        let unit = self.reader.unless_empty(a::SIZE_UNIT);
        let unit = unit.and_then(|reader| reader.strict_number(a::SIZE_UNIT, 0..=u32::MAX));
        let unit = unit.filter(|unit| *unit > 0);
        if slug.is_some() && unit.is_some() {
            let text = "cannot be used together with size-slug";
            self.reader.refuse(a::SIZE_UNIT, text);
        }
        unit.unwrap_or(match slug {
            Some("lb-large") => 6,
            Some("lb-medium") => 3,
            _ => 1,
        })
    }

    fn refuse_port(&mut self, port: u16, problem: &str) {
        self.reader.refuse_spec("ports", format_args!("port {port} {problem}"));
    }

    /// The ports that a load balancer supports.
    fn ports(&mut self) -> Vec<&'a ServicePort> {
        let service = self.service;
        let is_sctp = |port: &&ServicePort| port.protocol == Protocol::Sctp;
        let (sctp, ports): (Vec<_>, Vec<_>) = service.ports.iter().partition(is_sctp);
        for port in service.ports.iter().filter(|port| RESERVED.contains(&port.port)) {
            self.refuse_port(port.port, "is reserved by DigitalOcean");
        }
        for port in sctp {
            self.refuse_port(port.port, "has the protocol SCTP; only TCP and UDP are supported");
        }
        ports
    }

    /// The rules of type `REGIONAL_NETWORK`: packets reach the nodes at the port of the Service.
    fn network_rules(&mut self) -> Vec<Value> {
        let text = "has no effect on a load balancer of type REGIONAL_NETWORK";
        self.reader.warn_each(&HTTP_ONLY, text);
        let pass = |port: &&ServicePort| {
            let protocol = port.protocol.as_str().to_lowercase();
            rule(&protocol, port.port, &protocol, port.port)
        };
        self.ports().iter().map(pass).collect()
    }

    fn port_list(&mut self, key: &'static str) -> BTreeSet<u16> {
        let port = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("{text:?} is not a port")),
        };
        let ports = self.reader.strict_list(key, port);
        ports.into_iter().flatten().collect()
    }

    /// The rules of type `REGIONAL`: the load balancer connects to the node ports.
    fn regional_rules(&mut self, certificate: Option<&str>) -> Vec<Value> {
        const PROTOCOLS: [&str; 5] = ["tcp", "http", "https", "http2", "http3"];
        let default = self.choice(a::PROTOCOL, &PROTOCOLS).unwrap_or("tcp");
        let http = self.port_list(a::HTTP_PORTS);
        let mut tls = self.port_list(a::TLS_PORTS);
        let http2 = self.port_list(a::HTTP2_PORTS);
        let mut twice: BTreeSet<u16> = http.intersection(&tls).copied().collect();
        twice.extend(http2.intersection(&tls).chain(http2.intersection(&http)));
        if !twice.is_empty() {
            let ports: Vec<_> = twice.iter().map(ToString::to_string).collect();
            let text = "are in more than one of http-ports, tls-ports and http2-ports";
            self.reader.refuse(a::TLS_PORTS, format_args!("ports {} {text}", ports.join(", ")));
        }
        let passthrough = self.reader.lenient_flag(a::TLS_PASSTHROUGH, false);
        if (certificate.is_some() || passthrough) && tls.is_empty() && !http2.contains(&443) {
            tls.insert(443);
        }
        let ports = self.ports();
        let entry = |port: &'a ServicePort| match port.protocol {
            Protocol::Tcp if http2.contains(&port.port) => ("http2", port),
            Protocol::Tcp if tls.contains(&port.port) => ("https", port),
            Protocol::Tcp if http.contains(&port.port) => ("http", port),
            Protocol::Tcp => (default, port),
            _ => ("udp", port),
        };
        let mut entries: Vec<_> = ports.into_iter().map(entry).collect();
        for (_, port) in entries.iter().filter(|(_, port)| port.node_port == 0) {
            let text =
                format!("has no node port, which a load balancer of type REGIONAL needs; {SET_NODE_PORTS}");
            self.refuse_port(port.port, &text);
        }
        if let Some(http3) = self.reader.strict_number(a::HTTP3_PORT, 1..=u16::MAX) {
            match self.service.ports.iter().find(|port| port.port == http3) {
                Some(port) => entries.push(("http3", port)),
                None => {
                    let text = format!("{http3} is not a port of the Service; HTTP/3 is disabled");
                    self.reader.warn(a::HTTP3_PORT, text);
                }
            }
        }
        let mut lacks_tls = BTreeSet::new();
        let rules = entries.into_iter().map(|(entry, port)| {
            let is_secure = matches!(entry, "https" | "http2" | "http3");
            if is_secure && (passthrough == certificate.is_some() || (passthrough && entry == "http3")) {
                lacks_tls.insert(entry);
            }
            let target = match entry {
                "tcp" | "udp" | "http" => entry,
                _ if passthrough && entry != "http3" => entry,
                _ => "http",
            };
            let mut rule = rule(entry, port.port, target, port.node_port);
            if is_secure {
                // Both, because an update keeps fields of the observed rule that are not set here.
                let certificate = certificate.filter(|_| !passthrough);
                rule["certificate_id"] = json!(certificate.unwrap_or_default());
                rule["tls_passthrough"] = json!(passthrough);
            }
            rule
        });
        let rules = rules.collect();
        for entry in lacks_tls {
            let (ports, or) = match entry {
                "http3" => ("HTTP/3 needs".to_owned(), "and no"),
                _ => (format!("ports with {entry} need either"), "or"),
            };
            let text = "a certificate (certificate-id or certificate-name)";
            let text = format_args!("{ports} {text} {or} tls-passthrough");
            self.reader.refuse(a::TLS_PASSTHROUGH, text);
        }
        rules
    }

    /// Adds the fields that concern HTTP.
    fn http_fields(&mut self, fields: &mut Value) {
        for (field, key) in [
            ("redirect_http_to_https", a::REDIRECT),
            ("enable_proxy_protocol", a::PROXY_PROTOCOL),
            ("enable_backend_keepalive", a::KEEPALIVE),
            ("disable_lets_encrypt_dns_records", a::DISABLE_DNS_RECORDS),
        ] {
            fields[field] = json!(self.reader.strict_flag(key).unwrap_or(false));
        }
        let idle = self.reader.strict_number(a::IDLE_TIMEOUT, 30..=600_u64);
        fields["http_idle_timeout_seconds"] = json!(idle);
        fields["sticky_sessions"] = self.sticky_sessions();
    }

    fn sticky_sessions(&mut self) -> Value {
        let kind = self.reader.parsed(a::STICKY_TYPE, "none", "none", |text| {
            ["none", "cookies"].into_iter().find(|kind| *kind == text)
        });
        if kind == "none" {
            return Value::Null;
        }
        let name = self.reader.text(a::STICKY_COOKIE_NAME, "");
        if name.is_empty() {
            let text = "missing; sticky sessions with cookies need a name";
            self.reader.refuse(a::STICKY_COOKIE_NAME, text);
        }
        let ttl = self.reader.strict_number(a::STICKY_COOKIE_TTL, 1..=u32::MAX);
        if self.reader.get(a::STICKY_COOKIE_TTL).is_none() {
            let text = "missing; sticky sessions with cookies need a lifetime";
            self.reader.refuse(a::STICKY_COOKIE_TTL, text);
        }
        json!({"type": kind, "cookie_name": name, "cookie_ttl_seconds": ttl})
    }

    /// The health check, and whether it never uses the PROXY protocol.
    fn health_check(&mut self) -> (Value, bool) {
        let mut number = |key, allowed, default| self.reader.strict_number(key, allowed).unwrap_or(default);
        let mut check = json!({
            "check_interval_seconds": number(a::HEALTH_INTERVAL, 3..=300_u64, 3),
            "response_timeout_seconds": number(a::HEALTH_TIMEOUT, 3..=300, 5),
            "unhealthy_threshold": number(a::HEALTH_UNHEALTHY, 2..=10, 3),
            "healthy_threshold": number(a::HEALTH_HEALTHY, 2..=10, 5),
        });
        let text = self.reader.get(a::OVERRIDE_HEALTH_CHECK);
        if text == Some("false") {
            let text =
                "\"false\" means no override; the Go cloud controller accepted any value as an override";
            self.reader.warn(a::OVERRIDE_HEALTH_CHECK, text);
        }
        if text.is_none_or(|text| text == "false") {
            let of_override = [a::HEALTH_PORT, a::HEALTH_PATH, a::HEALTH_PROTOCOL];
            self.reader.warn_each(&of_override, "has no effect without override-health-check");
            check["protocol"] = json!("http");
            check["port"] = json!(self.service.health_check_port().unwrap_or(KUBE_PROXY_HEALTH));
            check["path"] = json!(HEALTH_PATH);
            check["proxy_protocol"] = json!(false);
            return (check, true);
        }
        let path = self.reader.get(a::HEALTH_PATH).filter(|path| !path.is_empty());
        let protocol = self.choice(a::HEALTH_PROTOCOL, &["tcp", "http", "https"]);
        let protocol = protocol.unwrap_or(if path.is_some() { "http" } else { "tcp" });
        check["protocol"] = json!(protocol);
        if protocol != "tcp" {
            check["path"] = json!(path.unwrap_or("/"));
        }
        check["port"] = json!(self.checked_port());
        (check, false)
    }

    /// The node port of the port that is checked.
    fn checked_port(&mut self) -> u16 {
        let asked = self.reader.strict_number(a::HEALTH_PORT, 1..=u16::MAX);
        let ports = self.service.ports.iter();
        let mut tcp = ports.filter(|port| port.protocol == Protocol::Tcp);
        if let Some(found) = tcp.find(|port| asked.is_none_or(|asked| port.port == asked)) {
            if found.node_port == 0 {
                let text = format_args!("port {} has no node port to check; {SET_NODE_PORTS}", found.port);
                self.reader.refuse(a::OVERRIDE_HEALTH_CHECK, text);
            }
            return found.node_port;
        }
        if let Some(asked) = asked {
            let text = format!("{asked} is not a TCP port of the Service");
            self.reader.refuse(a::HEALTH_PORT, text);
        } else if self.reader.get(a::HEALTH_PORT).is_none() {
            let text = "no health check port: the Service has no TCP port";
            self.reader.refuse(a::OVERRIDE_HEALTH_CHECK, text);
        }
        0
    }

    fn firewall(&mut self) -> Value {
        let rule = |text: &str| {
            let valid = match text.split_once(':') {
                Some(("ip", ip)) => ip.parse::<IpAddr>().is_ok(),
                Some(("cidr", cidr)) => cidr.parse::<IpNet>().is_ok(),
                _ => false,
            };
            let wrong = || format!("{text:?} is not a rule; write ip:<address> or cidr:<network>");
            valid.then(|| text.to_owned()).ok_or_else(wrong)
        };
        let deny = self.reader.strict_list(a::DENY_RULES, rule).unwrap_or_default();
        let mut allow = self.reader.strict_list(a::ALLOW_RULES, rule).unwrap_or_default();
        let (ranges, invalid) = SourceRanges::of_spec(self.service);
        if !(ranges.is_empty() && invalid.is_empty()) {
            allow = ranges.iter().map(|range| format!("cidr:{range}")).collect();
        }
        self.reader.refuse_fields(invalid);
        json!({"allow": allow, "deny": deny})
    }
}

/// Whether the load balancer has a health check that we set without an override, at one of these node ports
/// or at kube-proxy, and the API omits that this check never uses the PROXY protocol.
pub(crate) fn omits_plain_check(balancer: &Balancer, node_ports: &[u16]) -> bool {
    let check = &balancer.fields()["health_check"];
    let mut ports = node_ports.iter().chain([&KUBE_PROXY_HEALTH]);
    check["path"] == HEALTH_PATH
        && ports.any(|port| check["port"] == *port)
        && check["proxy_protocol"].is_null()
}

fn rule(entry: &str, port: u16, target: &str, target_port: u16) -> Value {
    json!({"entry_protocol": entry, "entry_port": port, "target_protocol": target, "target_port": target_port})
}

/// The droplets behind a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backends {
    /// Sorted. `None`: no usable node exists, and the load balancer keeps its droplets.
    pub(crate) droplets: Option<Vec<u64>>,
    /// The families of a new load balancer if the Service requests none.
    pub(crate) stack: &'static str,
    /// The number of nodes that were skipped because they have no public IPv4 address.
    pub(crate) unreachable: usize,
    /// Nodes with a public IPv4 address and no public IPv6 address.
    pub(crate) only_v4: Vec<String>,
}

/// The droplets that serve. `by_name`: the droplets of nodes without a provider ID. `missing`: droplets that do not exist.
pub(crate) fn backends(
    kind: LbType,
    internal: bool,
    nodes: &NodeSet,
    by_name: &BTreeMap<String, u64>,
    missing: &BTreeSet<u64>,
) -> Backends {
    let mut droplets = BTreeSet::new();
    let (mut unreachable, mut only_v4, mut dual) = (0, Vec::new(), false);
    for node in nodes.eligible() {
        let v4 = node.has_address(AddressType::ExternalIP, IpFamily::V4);
        let v6 = node.has_address(AddressType::ExternalIP, IpFamily::V6);
        dual |= v4 && v6;
        if v4 && !v6 {
            only_v4.push(node.view.name.clone());
        }
        let private_only = !v4 && !v6 && node.has_address(AddressType::InternalIP, IpFamily::V4);
        if !(internal || v4 || (private_only && kind == LbType::Regional)) {
            unreachable += 1;
            continue;
        }
        let id = match node.view.provider_id.as_deref().filter(|id| !id.is_empty()) {
            Some(provider_id) => droplet_id(provider_id).ok().flatten(),
            None => by_name.get(&node.view.name).copied(),
        };
        droplets.extend(id.filter(|id| !missing.contains(id)));
    }
    let stack = match kind {
        _ if internal => "IPV4",
        LbType::RegionalNetwork if !dual || !only_v4.is_empty() => "IPV4",
        _ => "DUALSTACK",
    };
    Backends {
        droplets: (!droplets.is_empty()).then(|| droplets.into_iter().collect()),
        stack,
        unreachable,
        only_v4,
    }
}

/// Why a load balancer with these backends cannot be created. The flag is set if the reason needs a separate Event.
pub(crate) fn uncreatable(spec: &Spec, backends: &Backends) -> Option<(String, bool)> {
    let (is_network, is_dual) = (spec.kind == LbType::RegionalNetwork, spec.stack == Some("DUALSTACK"));
    if spec.internal && is_dual {
        return Some((format!("{}: {ONLY_IPV4}", a::NETWORK_STACK), true));
    }
    if is_dual && is_network && !backends.only_v4.is_empty() {
        let mut names: Vec<_> = backends.only_v4.iter().take(SHOWN).map(String::as_str).collect();
        if backends.only_v4.len() > SHOWN {
            names.push("..");
        }
        let text = "network stack DUALSTACK needs nodes with public IPv6 addresses; these nodes have none";
        return Some((format!("{text}: {}", names.join(", ")), true));
    }
    if backends.droplets.is_some() {
        return None;
    }
    if backends.unreachable > 0 && is_network && !spec.internal {
        let (count, kind, network) = (backends.unreachable, a::TYPE, a::NETWORK);
        let text = format!(
            "{count} nodes have no public IPv4 address, which an external load balancer of type REGIONAL_NETWORK needs; \
             one that is created with {kind} REGIONAL or {network} INTERNAL needs none"
        );
        return Some((text, true));
    }
    Some(("no ready nodes available for load balancer".to_owned(), false))
}

#[cfg(test)]
pub(crate) mod tests;
