//! From a Service, nodes and settings to the fields of a load balancer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use ccm_core::{
    AddressType,
    check::Field,
    load_balancer::{
        AnnotationReader, IgnoredValue, InvalidField, NodeSet, Protocol, ServiceNode, ServiceView,
    },
};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::{
    annotations as a,
    document::{Balancer, Unread},
};
use crate::{
    config::{LbType, Settings, is_uuid},
    instances::droplet_id,
};

/// Ports that the API keeps for itself.
const RESERVED: std::ops::RangeInclusive<u16> = 50053..=50055;
/// The port at which kube-proxy says whether the node serves.
const KUBE_PROXY_HEALTH: u16 = 10256;
/// The path of health checks by kube-proxy and by `externalTrafficPolicy: Local`.
const HEALTH_PATH: &str = "/healthz";
/// How many nodes a message names.
const SHOWN: usize = 3;

/// What the load balancer of a Service consists of, nodes and tags not included.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Of the load balancer that exists, else of the one to create.
    pub(crate) kind: LbType,
    pub(crate) internal: bool,
    /// The families that the Service asks for.
    pub(crate) stack: Option<&'static str>,
    /// The fields that are compared.
    pub(crate) fields: Map<String, Value>,
    /// Fields that only a create has.
    pub(crate) create: Map<String, Value>,
    pub(crate) unread: Unread,
    /// Immutable fields that the Service or the configuration names, with their values.
    pub(crate) requested: Vec<(&'static str, String)>,
    /// The port of health checks.
    pub(crate) health_port: u64,
}

/// A [`Spec`] and what is wrong with it.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) spec: Spec,
    pub(crate) ignored: Vec<IgnoredValue>,
    pub(crate) invalid: Vec<InvalidField>,
}

/// The default name: `a` and the Service's UID without dashes, 32 characters in all.
pub(crate) fn default_name(service: &ServiceView) -> String {
    let uid: String = service.id.uid.chars().filter(|c| *c != '-').collect();
    format!("a{uid}").chars().take(32).collect()
}

/// The name that the load balancer gets.
pub(crate) fn name(service: &ServiceView) -> String {
    let custom = service.annotation(a::NAME).filter(|name| !name.is_empty());
    custom.map_or_else(|| default_name(service), str::to_owned)
}

/// Whether the load balancer is to be left unchanged.
pub(crate) fn is_disowned(service: &ServiceView) -> bool {
    AnnotationReader::new(&service.annotations).strict_flag(a::DISOWN) == Some(true)
}

/// The status shows this name in place of addresses.
pub(crate) fn hostname(service: &ServiceView) -> Option<String> {
    let name = service.annotation(a::HOSTNAME).filter(|name| !name.is_empty());
    name.map(str::to_lowercase)
}

/// The certificate that a Service names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CertificateRef {
    Id(String),
    Name(String),
}

impl CertificateRef {
    /// The id wins.
    pub(crate) fn of(service: &ServiceView) -> Option<Self> {
        let text = |key| service.annotation(key).filter(|text: &&str| !text.is_empty());
        let id = text(a::CERTIFICATE_ID).map(|id| Self::Id(id.to_owned()));
        id.or_else(|| Some(Self::Name(text(a::CERTIFICATE_NAME)?.to_owned())))
    }
}

/// Reads a Service. `existing`: its load balancer, whose immutable fields stay. `certificate`: the id of the certificate that
/// it names; without it (`validate`) the name stands for it.
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

impl Reader<'_> {
    fn spec(&mut self, settings: &Settings, existing: Option<&Balancer>, certificate: Option<&str>) -> Spec {
        let asked = self.choice(a::TYPE, &["REGIONAL", "REGIONAL_NETWORK"]);
        let network = self.choice(a::NETWORK, &["EXTERNAL", "INTERNAL"]);
        let stack = self.choice(a::NETWORK_STACK, &["IPV4", "DUALSTACK"]);
        let kind = existing.and_then(|balancer| LbType::parse(balancer.kind()));
        let kind = kind.or_else(|| asked.and_then(LbType::parse));
        let kind = kind.unwrap_or(settings.default_type);
        let internal = existing.map_or(network == Some("INTERNAL"), Balancer::is_internal);
        if internal && stack == Some("DUALSTACK") {
            let text = "an internal load balancer has only IPv4 addresses; leave it out or write IPV4";
            self.reader.refuse(a::NETWORK_STACK, text);
        }
        let mut fields = Map::new();
        let mut create = Map::new();
        fields.insert("name".to_owned(), json!(self.name()));
        fields.insert("size_unit".to_owned(), json!(self.size()));
        let rules = match kind {
            LbType::Regional => self.regional_rules(certificate),
            LbType::Network => self.network_rules(),
        };
        fields.insert("forwarding_rules".to_owned(), Value::Array(rules));
        let (check, plain_checks) = self.health_check();
        let health_port = check.get("port").and_then(Value::as_u64).unwrap_or_default();
        fields.insert("health_check".to_owned(), check);
        fields.insert("firewall".to_owned(), self.firewall());
        fields.insert("tag".to_owned(), Value::Null);
        // A load balancer of packets has no use for these: whatever the API makes of them stays.
        let of_http = match kind {
            LbType::Regional => &mut fields,
            LbType::Network => &mut create,
        };
        of_http.extend(self.http_fields());
        let algorithm = self.choice(a::ALGORITHM, &["round_robin", "least_connections"]);
        let mut requested = Vec::new();
        let mut request =
            |field, value: Option<&str>| requested.extend(value.map(|value| (field, value.to_owned())));
        request("type", asked);
        request("network", network);
        request("network_stack", stack);
        request("vpc_uuid", settings.vpc.as_deref());
        let subnet = self.uuid(a::SUBNET);
        request("subnet_uuid", subnet.as_deref());
        let network = if internal { "INTERNAL" } else { "EXTERNAL" };
        create.extend([
            ("type".to_owned(), json!(kind.as_str())),
            ("network".to_owned(), json!(network)),
            ("vpc_uuid".to_owned(), json!(settings.vpc)),
            ("subnet_uuid".to_owned(), json!(subnet)),
            ("ip".to_owned(), json!(self.own_address())),
        ]);
        Spec {
            kind,
            internal,
            stack,
            fields,
            create,
            unread: Unread {
                algorithm: algorithm.unwrap_or("round_robin"),
                plain_checks,
            },
            requested,
            health_port,
        }
    }

    /// One of these values. An empty text counts as none.
    fn choice(&mut self, key: &'static str, values: &[&'static str]) -> Option<&'static str> {
        self.reader.get(key).filter(|text| !text.is_empty())?;
        self.reader.strict(key, |text| {
            let found = values.iter().copied().find(|value| *value == text);
            found.ok_or_else(|| format!("{text:?} is none of {}", values.join(", ")))
        })
    }

    fn flag(&mut self, key: &'static str) -> bool {
        self.reader.strict_flag(key).unwrap_or(false)
    }

    fn uuid(&mut self, key: &'static str) -> Option<String> {
        let text = self.reader.get(key)?.trim();
        if text.is_empty() {
            return None;
        }
        if !is_uuid(text) {
            self.reader.refuse(key, format_args!("{text:?} is no UUID"));
        }
        Some(text.to_owned())
    }

    fn own_address(&mut self) -> Option<String> {
        let text = self.reader.get(a::IP)?.trim();
        if text.is_empty() {
            return None;
        }
        if text.parse::<Ipv4Addr>().is_err() {
            self.reader
                .refuse(a::IP, format_args!("{text:?} is no IPv4 address"));
        }
        Some(text.to_owned())
    }

    fn name(&mut self) -> String {
        let name = name(self.service);
        let alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let valid = name.len() <= 255
            && alphanumeric(name.chars().next())
            && !name.ends_with('-')
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        if !valid {
            let text =
                "at most 255 letters, digits, dots and dashes, the first a letter or digit, the last no dash";
            self.reader
                .refuse(a::NAME, format_args!("{name:?} is no name: {text}"));
        }
        name
    }

    fn size(&mut self) -> u64 {
        let slug = self.choice(a::SIZE_SLUG, &["lb-small", "lb-medium", "lb-large"]);
        let unit = self
            .reader
            .strict_number(a::SIZE_UNIT, 0..=100_u64)
            .filter(|unit| *unit > 0);
        if slug.is_some() && unit.is_some() {
            self.reader
                .refuse(a::SIZE_UNIT, "cannot be used together with size-slug");
        }
        unit.unwrap_or(match slug {
            Some("lb-large") => 6,
            Some("lb-medium") => 3,
            _ => 1,
        })
    }

    fn check_entry(&mut self, port: u16) {
        if RESERVED.contains(&port) {
            let text = format!("spec.ports: port {port} is reserved by DigitalOcean");
            self.refuse_ports(text);
        }
    }

    fn refuse_ports(&mut self, message: String) {
        self.reader.refuse_field(InvalidField {
            field: Field::Spec("ports"),
            message,
        });
    }

    fn refuse_sctp(&mut self, port: u16) {
        self.refuse_ports(format!(
            "spec.ports: port {port} has the protocol SCTP; only TCP and UDP are supported"
        ));
    }

    /// Packets reach the nodes at the port of the Service.
    fn network_rules(&mut self) -> Vec<Value> {
        let mut rules = Vec::new();
        for port in &self.service.ports {
            self.check_entry(port.port);
            match port.protocol {
                Protocol::Sctp => self.refuse_sctp(port.port),
                Protocol::Tcp => rules.push(rule("tcp", port.port, "tcp", port.port)),
                Protocol::Udp => rules.push(rule("udp", port.port, "udp", port.port)),
            }
        }
        const OF_HTTP: [&str; 12] = [
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
        for key in OF_HTTP
            .into_iter()
            .filter(|key| self.service.annotation(key).is_some())
        {
            self.reader.warn(
                key,
                "has no effect on a load balancer of type REGIONAL_NETWORK".to_owned(),
            );
        }
        rules
    }

    fn port_list(&mut self, key: &'static str) -> BTreeSet<u16> {
        let port = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("{text:?} is no port")),
        };
        self.reader
            .strict_list(key, port)
            .unwrap_or_default()
            .into_iter()
            .collect()
    }

    /// The load balancer connects to the node ports.
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
            let text = format!(
                "ports {} are in more than one of http-ports, tls-ports and http2-ports",
                ports.join(", ")
            );
            self.reader.refuse(a::TLS_PORTS, text);
        }
        let passthrough = self.reader.parsed(a::TLS_PASSTHROUGH, false, "false", |text| {
            matches!(
                text,
                "1" | "t" | "T" | "TRUE" | "true" | "True" | "0" | "f" | "F" | "FALSE" | "false" | "False"
            )
            .then(|| matches!(text, "1" | "t" | "T" | "TRUE" | "true" | "True"))
        });
        if (certificate.is_some() || passthrough) && tls.is_empty() && !http2.contains(&443) {
            tls.insert(443);
        }
        let mut rules = Vec::new();
        let mut lacks_tls = BTreeSet::new();
        let service = self.service;
        let mut add = |entry: &'static str, port: u16, node_port: u16| {
            let secure = matches!(entry, "https" | "http2" | "http3");
            if secure && (passthrough == certificate.is_some() || (passthrough && entry == "http3")) {
                lacks_tls.insert(entry);
            }
            let target = match entry {
                "tcp" | "udp" | "http" => entry,
                _ if passthrough && entry != "http3" => entry,
                _ => "http",
            };
            let mut rule = rule(entry, port, target, node_port);
            if secure && passthrough {
                rule["tls_passthrough"] = json!(true);
            } else if secure {
                rule["certificate_id"] = json!(certificate.unwrap_or_default());
            }
            rules.push(rule);
        };
        let (mut sctp, mut unreachable) = (Vec::new(), Vec::new());
        for port in &service.ports {
            let entry = match port.protocol {
                Protocol::Sctp => {
                    sctp.push(port.port);
                    continue;
                }
                Protocol::Udp => "udp",
                Protocol::Tcp if http2.contains(&port.port) => "http2",
                Protocol::Tcp if tls.contains(&port.port) => "https",
                Protocol::Tcp if http.contains(&port.port) => "http",
                Protocol::Tcp => default,
            };
            if port.node_port == 0 {
                unreachable.push(port.port);
            }
            add(entry, port.port, port.node_port);
        }
        let http3 = self.reader.strict_number(a::HTTP3_PORT, 1..=u16::MAX);
        if let Some(http3) = http3 {
            match service.ports.iter().find(|port| port.port == http3) {
                Some(port) => add("http3", port.port, port.node_port),
                None => {
                    let text = format!("{http3} is no port of the Service, so there is no HTTP/3");
                    self.reader.warn(a::HTTP3_PORT, text);
                }
            }
        }
        for entry in lacks_tls {
            let text = match entry {
                "http3" => {
                    "HTTP/3 needs a certificate (certificate-id or certificate-name) and no tls-passthrough"
                        .to_owned()
                }
                _ => format!(
                    "ports with {entry} need either a certificate (certificate-id or certificate-name) or tls-passthrough"
                ),
            };
            self.reader.refuse(a::TLS_PASSTHROUGH, text);
        }
        sctp.into_iter().for_each(|port| self.refuse_sctp(port));
        for port in unreachable {
            let text = "has no node port, which a load balancer of type REGIONAL needs; set \
                        spec.allocateLoadBalancerNodePorts to true";
            self.refuse_ports(format!("spec.ports: port {port} {text}"));
        }
        service.ports.iter().for_each(|port| self.check_entry(port.port));
        rules
    }

    /// The fields that concern HTTP.
    fn http_fields(&mut self) -> Map<String, Value> {
        let idle = self.reader.strict_number(a::IDLE_TIMEOUT, 30..=600_u64);
        Map::from_iter([
            ("sticky_sessions".to_owned(), self.sticky_sessions()),
            ("redirect_http_to_https".to_owned(), json!(self.flag(a::REDIRECT))),
            (
                "enable_proxy_protocol".to_owned(),
                json!(self.flag(a::PROXY_PROTOCOL)),
            ),
            (
                "enable_backend_keepalive".to_owned(),
                json!(self.flag(a::KEEPALIVE)),
            ),
            (
                "disable_lets_encrypt_dns_records".to_owned(),
                json!(self.flag(a::DISABLE_DNS_RECORDS)),
            ),
            ("http_idle_timeout_seconds".to_owned(), json!(idle)),
        ])
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
            self.reader.refuse(
                a::STICKY_COOKIE_NAME,
                "missing; sticky sessions with cookies need a name",
            );
        }
        let ttl = self.reader.strict_number(a::STICKY_COOKIE_TTL, 1..=u32::MAX);
        if self.reader.get(a::STICKY_COOKIE_TTL).is_none() {
            self.reader.refuse(
                a::STICKY_COOKIE_TTL,
                "missing; sticky sessions with cookies need a lifetime",
            );
        }
        json!({"type": kind, "cookie_name": name, "cookie_ttl_seconds": ttl})
    }

    /// The health check, and whether it is never made with the PROXY protocol.
    fn health_check(&mut self) -> (Value, bool) {
        let mut number = |key, allowed, default| self.reader.strict_number(key, allowed).unwrap_or(default);
        let mut check = json!({
            "check_interval_seconds": number(a::HEALTH_INTERVAL, 3..=300_u64, 3),
            "response_timeout_seconds": number(a::HEALTH_TIMEOUT, 3..=300, 5),
            "unhealthy_threshold": number(a::HEALTH_UNHEALTHY, 2..=10, 3),
            "healthy_threshold": number(a::HEALTH_HEALTHY, 2..=10, 5),
        });
        let overrides = match self.reader.get(a::OVERRIDE_HEALTH_CHECK) {
            Some("false") => {
                let text =
                    "\"false\" is taken for no override; the former cloud controller took any value for one";
                self.reader.warn(a::OVERRIDE_HEALTH_CHECK, text.to_owned());
                false
            }
            value => value.is_some(),
        };
        if !overrides {
            for key in [a::HEALTH_PORT, a::HEALTH_PATH, a::HEALTH_PROTOCOL] {
                if self.reader.get(key).is_some() {
                    self.reader
                        .warn(key, "has no effect without override-health-check".to_owned());
                }
            }
            check["protocol"] = json!("http");
            check["port"] = json!(self.service.health_check_port().unwrap_or(KUBE_PROXY_HEALTH));
            check["path"] = json!(HEALTH_PATH);
            check["proxy_protocol"] = json!(false);
            return (check, true);
        }
        let path = self.reader.text(a::HEALTH_PATH, "");
        let default = if path.is_empty() { "tcp" } else { "http" };
        let protocol = self
            .choice(a::HEALTH_PROTOCOL, &["tcp", "http", "https"])
            .unwrap_or(default);
        check["protocol"] = json!(protocol);
        if protocol != "tcp" {
            check["path"] = json!(if path.is_empty() { "/" } else { &path });
        }
        check["port"] = json!(self.checked_port());
        (check, false)
    }

    /// The node port of the port that is checked.
    fn checked_port(&mut self) -> u16 {
        let asked = self.reader.strict_number(a::HEALTH_PORT, 1..=u16::MAX);
        let mut tcp = self
            .service
            .ports
            .iter()
            .filter(|port| port.protocol == Protocol::Tcp);
        let found = match asked {
            Some(asked) => tcp.find(|port| port.port == asked),
            None => tcp.next(),
        };
        match (found, asked) {
            (Some(port), _) => return port.node_port,
            (None, Some(asked)) => {
                self.reader.refuse(
                    a::HEALTH_PORT,
                    format_args!("{asked} is no TCP port of the Service"),
                );
            }
            (None, None) if self.reader.get(a::HEALTH_PORT).is_none() => {
                let text = "no health check port: the Service has no TCP port";
                self.reader.refuse(a::OVERRIDE_HEALTH_CHECK, text);
            }
            (None, None) => {}
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
            let wrong = || format!("{text:?} is no rule; write ip:<address> or cidr:<network>");
            valid.then(|| text.to_owned()).ok_or_else(wrong)
        };
        let deny = self.reader.strict_list(a::DENY_RULES, rule).unwrap_or_default();
        let mut allow = self.reader.strict_list(a::ALLOW_RULES, rule).unwrap_or_default();
        let ranges: Vec<_> = self
            .service
            .source_ranges
            .iter()
            .flatten()
            .map(|range| range.trim())
            .collect();
        for range in ranges.iter().filter(|range| range.parse::<IpNet>().is_err()) {
            self.reader.refuse_field(InvalidField {
                field: Field::Spec("loadBalancerSourceRanges"),
                message: format!(
                    "spec.loadBalancerSourceRanges: {range:?} is no CIDR; a valid one is 10.0.0.0/24"
                ),
            });
        }
        if !ranges.is_empty() {
            allow = ranges.iter().map(|range| format!("cidr:{range}")).collect();
        }
        json!({"allow": allow, "deny": deny})
    }
}

fn rule(entry: &str, port: u16, target: &str, target_port: u16) -> Value {
    json!({"entry_protocol": entry, "entry_port": port, "target_protocol": target, "target_port": target_port})
}

/// The droplets behind a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backends {
    /// Sorted. `None`: there is no usable node, and the load balancer keeps the droplets that it has.
    pub(crate) droplets: Option<Vec<u64>>,
    /// The families that a new load balancer has if the Service does not ask for one.
    pub(crate) stack: &'static str,
    /// Nodes that were left out because they have no public IPv4 address.
    pub(crate) unreachable: usize,
    /// Nodes with a public IPv4 address and no public IPv6 address.
    pub(crate) only_v4: Vec<String>,
}

/// Which droplets serve. `by_name`: the droplets of nodes without a provider ID. `gone`: droplets that do not exist.
pub(crate) fn backends(
    kind: LbType,
    internal: bool,
    nodes: &NodeSet,
    by_name: &BTreeMap<String, u64>,
    gone: &BTreeSet<u64>,
) -> Backends {
    let mut droplets = BTreeSet::new();
    let (mut unreachable, mut only_v4, mut dual) = (0, Vec::new(), false);
    for node in nodes.eligible() {
        let has = |kind: AddressType, v4: bool| has_address(node, kind, v4);
        let (v4, v6) = (
            has(AddressType::ExternalIP, true),
            has(AddressType::ExternalIP, false),
        );
        dual |= v4 && v6;
        if v4 && !v6 {
            only_v4.push(node.view.name.clone());
        }
        let private_only = !v4 && !v6 && has(AddressType::InternalIP, true);
        if !(internal || v4 || (private_only && kind == LbType::Regional)) {
            unreachable += 1;
            continue;
        }
        let id = match node.view.provider_id.as_deref().filter(|id| !id.is_empty()) {
            Some(provider_id) => droplet_id(provider_id).ok().flatten(),
            None => by_name.get(&node.view.name).copied(),
        };
        droplets.extend(id.filter(|id| !gone.contains(id)));
    }
    let stack = match kind {
        _ if internal => "IPV4",
        LbType::Regional => "DUALSTACK",
        LbType::Network if dual && only_v4.is_empty() => "DUALSTACK",
        LbType::Network => "IPV4",
    };
    Backends {
        droplets: (!droplets.is_empty()).then(|| droplets.into_iter().collect()),
        stack,
        unreachable,
        only_v4,
    }
}

fn has_address(node: &ServiceNode, kind: AddressType, v4: bool) -> bool {
    let mut found = node.addresses.iter().filter(|address| address.kind == kind);
    found.any(|address| {
        address
            .address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_ipv4() == v4)
    })
}

/// Why a load balancer with these backends cannot be created. The flag says whether an Event of its own is due.
pub(crate) fn uncreatable(spec: &Spec, backends: &Backends) -> Option<(String, bool)> {
    if spec.stack == Some("DUALSTACK") && spec.kind == LbType::Network && !backends.only_v4.is_empty() {
        let names: Vec<_> = backends.only_v4.iter().take(SHOWN).map(String::as_str).collect();
        let text = format!(
            "network stack DUALSTACK needs nodes with public IPv6 addresses, which these do not have: {}{}",
            names.join(", "),
            if backends.only_v4.len() > SHOWN {
                ", .."
            } else {
                ""
            }
        );
        return Some((text, true));
    }
    if backends.droplets.is_some() {
        return None;
    }
    if backends.unreachable > 0 && spec.kind == LbType::Network && !spec.internal {
        let text = format!(
            "{} nodes have no public IPv4 address, which an external load balancer of type REGIONAL_NETWORK needs; set \
             {} to REGIONAL or {} to INTERNAL",
            backends.unreachable,
            a::TYPE,
            a::NETWORK
        );
        return Some((text, true));
    }
    Some(("no ready nodes available for load balancer".to_owned(), false))
}

#[cfg(test)]
mod tests;
