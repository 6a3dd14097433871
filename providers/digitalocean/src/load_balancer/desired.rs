//! Computes the fields of a load balancer from a Service, nodes and settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
};

use ccm_core::{
    AddressType, Result,
    load_balancer::{
        AnnotationReader, IgnoredValue, InvalidField, IpFamily, NodeLeftOut, NodeSet, Protocol, ServicePort,
        ServiceView, SourceRanges, default_name,
    },
};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{
    annotations as a,
    document::{Balancer, WriteOnly, field, is_internal, kind},
};
use crate::{
    config::{LbType, Settings, is_name, is_uuid},
    instances::droplet_id,
};

/// Ports that the API reserves.
const RESERVED: RangeInclusive<u16> = 50053..=50055;
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
/// The values of the annotation `algorithm`.
const ALGORITHMS: [&str; 2] = [DEFAULT_ALGORITHM, "least_connections"];
const DEFAULT_ALGORITHM: &str = "round_robin";
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
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) spec: Spec,
    pub(crate) ignored: Vec<IgnoredValue>,
    pub(crate) invalid: Vec<InvalidField>,
}

/// The desired name of the load balancer.
pub(crate) fn name(service: &ServiceView) -> String {
    match service.annotation_text(a::NAME) {
        Some(custom) => custom.to_owned(),
        None => default_name(&service.id),
    }
}

/// The type of the load balancer: that of the existing one, else the requested one.
pub(crate) fn balancer_type(
    service: &ServiceView,
    settings: &Settings,
    existing: Option<&Balancer>,
) -> LbType {
    existing
        .and_then(kind)
        .or_else(|| LbType::parse(service.annotation_text(a::TYPE)?))
        .unwrap_or(settings.conf.default_type)
}

/// Whether the load balancer must be left unchanged.
///
/// # Errors
/// A value that is no boolean.
pub(crate) fn is_disowned(service: &ServiceView) -> Result<bool> {
    let mut reader = AnnotationReader::new(&service.annotations);
    let is_disowned = reader.strict_flag(a::DISOWN) == Some(true);
    let (_, invalid) = reader.finish();
    if !invalid.is_empty() {
        return Err(InvalidField::error(&invalid));
    }
    Ok(is_disowned)
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
        match service.annotation_text(a::CERTIFICATE_ID) {
            Some(id) => Some(Self::Id(id.to_owned())),
            None => Some(Self::Name(service.annotation_text(a::CERTIFICATE_NAME)?.to_owned())),
        }
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
    let named = CertificateRef::of(service);
    let certificate = match (certificate, &named) {
        (Some(id), _) => Some(id),
        (None, Some(CertificateRef::Id(text) | CertificateRef::Name(text))) => Some(text.as_str()),
        (None, None) => None,
    };
    let spec = reader.spec(settings, existing, certificate);
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
            field::NAME: name,
            field::FORWARDING_RULES: rules,
            field::HEALTH_CHECK: check,
            field::FIREWALL: self.firewall(),
            field::TAG: null,
        });
        let mut slug = None;
        match size {
            Some(Size::Unit(unit)) => fields[field::SIZE_UNIT] = json!(unit),
            Some(Size::Slug(name)) if !existing.is_some_and(|found| has_size(found, name)) => {
                fields[field::SIZE] = json!(name);
                slug = Some(name);
            }
            Some(Size::Slug(_)) => {}
            None => self.keep(a::SIZE_UNIT, field::SIZE_UNIT, existing, 1),
        }
        let subnet = self.reader.strict_text(a::SUBNET, "UUID", is_uuid);
        let ip = self.reader.strict_text(a::IP, "IPv4 address", |text| text.parse::<Ipv4Addr>().is_ok());
        let mut create = json!({
            field::TYPE: kind,
            field::NETWORK: if internal { "INTERNAL" } else { "EXTERNAL" },
            field::VPC: settings.vpc,
            field::SUBNET: subnet,
            field::IP: ip,
        });
        // A load balancer of type REGIONAL_NETWORK ignores these: it keeps the values that the API chooses.
        self.http_fields(match kind {
            LbType::Regional => &mut fields,
            LbType::RegionalNetwork => &mut create,
        });
        if kind == LbType::Regional && self.reader.get(a::IDLE_TIMEOUT).is_none() {
            self.keep(a::IDLE_TIMEOUT, field::IDLE_TIMEOUT, existing, 60);
        }
        let algorithm = self.algorithm();
        self.reader.strict_flag(a::DISOWN);
        self.reader.lenient_flag(a::FIREWALL_MANAGED, true);
        let mut requested = Vec::new();
        for (field, value) in [
            (field::TYPE, asked),
            (field::NETWORK, network),
            (field::NETWORK_STACK, stack),
            (field::VPC, settings.vpc.as_deref()),
            (field::SUBNET, subnet.as_deref()),
        ] {
            if let Some(value) = value {
                requested.push((field, value.to_owned()));
            }
        }
        Spec {
            kind,
            internal,
            stack,
            requested,
            fields,
            create,
            write_only: WriteOnly {
                algorithm: Some(algorithm),
                plain_checks: Some(plain_checks),
                slug,
                vpc: settings.vpc.clone(),
                subnet,
            },
            health_port,
        }
    }

    /// The API ignores it. So a value that only upstream accepts refuses no Service.
    fn algorithm(&mut self) -> &'static str {
        let Some(reader) = self.reader.unless_empty(a::ALGORITHM) else {
            return DEFAULT_ALGORITHM;
        };
        reader.parsed(a::ALGORITHM, DEFAULT_ALGORITHM, DEFAULT_ALGORITHM, |text| {
            ALGORITHMS.into_iter().find(|known| *known == text)
        })
    }

    /// One of these values. An empty text counts as unset.
    fn choice(&mut self, key: &'static str, values: &[&'static str]) -> Option<&'static str> {
        self.reader.given(key)?;
        self.reader.strict_choice(key, values)
    }

    fn name(&mut self) -> String {
        let name = name(self.service);
        if name.len() > 255 || name.ends_with('-') || !is_name(&name) {
            let text = format!(
                "{name:?} is not a documented name, and DigitalOcean may refuse it: at most 255 letters, digits, dots and \
                 dashes, the first a letter or digit, the last no dash"
            );
            self.reader.warn(a::NAME, text);
        }
        name
    }

    /// Reports a field that no annotation sets and that is not the API's default: it keeps its value, as with the Go cloud
    /// controller, which does not send it.
    fn keep(&mut self, key: &'static str, field: &str, existing: Option<&Balancer>, default: u64) {
        if let Some(value) = existing.and_then(|found| found.fields()[field].as_u64())
            && value != default
        {
            let text = format!(
                "not set, so that the load balancer keeps its {field} {value}; set it to change that"
            );
            self.reader.warn(key, text);
        }
    }

    /// The size; `None` if the Service requests none.
    fn size(&mut self) -> Option<Size> {
        let slug = self.choice(a::SIZE_SLUG, &["lb-small", "lb-medium", "lb-large"]);
        // The API checks the limit of the account.
        let unit = self
            .reader
            .unless_empty(a::SIZE_UNIT)
            .and_then(|reader| reader.strict_number(a::SIZE_UNIT, 0..=u32::MAX))
            .filter(|unit| *unit > 0);
        if slug.is_some() && unit.is_some() {
            self.reader.refuse(a::SIZE_UNIT, "cannot be used together with size-slug");
        }
        unit.map(Size::Unit).or(slug.map(Size::Slug))
    }

    fn refuse_port(&mut self, port: u16, problem: &str) {
        self.reader.refuse_spec("ports", format_args!("port {port} {problem}"));
    }

    /// The ports that a load balancer supports.
    fn ports(&mut self) -> Vec<&'a ServicePort> {
        let service = self.service;
        let (sctp, ports): (Vec<_>, Vec<_>) =
            service.ports.iter().partition(|port| port.protocol == Protocol::Sctp);
        for port in &service.ports {
            if RESERVED.contains(&port.port) {
                self.refuse_port(port.port, "is reserved by DigitalOcean");
            }
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
        let mut rules = Vec::new();
        for port in self.ports() {
            let protocol = port.protocol.as_str().to_lowercase();
            rules.push(rule(&protocol, port.port, &protocol, port.port));
        }
        rules
    }

    fn port_list(&mut self, key: &'static str) -> BTreeSet<u16> {
        let ports = self.reader.strict_list(key, |text| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("{text:?} is not a port")),
        });
        ports.into_iter().flatten().collect()
    }

    /// The rules of type `REGIONAL`: the load balancer connects to the node ports.
    fn regional_rules(&mut self, certificate: Option<&str>) -> Vec<Value> {
        let default = self.choice(a::PROTOCOL, &["tcp", "http", "https", "http2", "http3"]).unwrap_or("tcp");
        let tls = Tls {
            passthrough: self.reader.lenient_flag(a::TLS_PASSTHROUGH, false),
            certificate,
        };
        let special = self.special_ports(tls);
        let mut entries = Vec::new();
        for port in self.ports() {
            let protocol = match port.protocol {
                Protocol::Tcp => special.protocol(port.port).unwrap_or(default),
                _ => "udp",
            };
            entries.push((protocol, port));
            if port.node_port == 0 {
                let text = format!(
                    "has no node port, which a load balancer of type REGIONAL needs; {SET_NODE_PORTS}"
                );
                self.refuse_port(port.port, &text);
            }
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
        let unserved: BTreeSet<_> =
            entries.iter().map(|(entry, _)| *entry).filter(|entry| !tls.serves(entry)).collect();
        for entry in unserved {
            let certificate = "a certificate (certificate-id or certificate-name)";
            let text = if entry == "http3" {
                format!("HTTP/3 needs {certificate} and no tls-passthrough")
            } else {
                format!("ports with {entry} need either {certificate} or tls-passthrough")
            };
            self.reader.refuse(a::TLS_PASSTHROUGH, text);
        }
        entries.into_iter().map(|(entry, port)| tls.rule(entry, port)).collect()
    }

    /// The ports whose protocol annotations set. A port in two of them is refused.
    fn special_ports(&mut self, tls: Tls<'_>) -> SpecialPorts {
        let http = self.port_list(a::HTTP_PORTS);
        let mut https = self.port_list(a::TLS_PORTS);
        let http2 = self.port_list(a::HTTP2_PORTS);
        let mut twice: BTreeSet<u16> = http.intersection(&https).copied().collect();
        twice.extend(http2.intersection(&https).chain(http2.intersection(&http)));
        if !twice.is_empty() {
            let ports: Vec<_> = twice.iter().map(ToString::to_string).collect();
            let text = "are in more than one of http-ports, tls-ports and http2-ports";
            self.reader.refuse(a::TLS_PORTS, format_args!("ports {} {text}", ports.join(", ")));
        }
        let uses_tls = tls.certificate.is_some() || tls.passthrough;
        if uses_tls && https.is_empty() && !http2.contains(&443) {
            https.insert(443);
        }
        SpecialPorts { http, https, http2 }
    }

    /// Adds the fields that concern HTTP.
    fn http_fields(&mut self, fields: &mut Value) {
        for (field, key) in [
            (field::REDIRECT, a::REDIRECT),
            (field::PROXY_PROTOCOL, a::PROXY_PROTOCOL),
            (field::KEEPALIVE, a::KEEPALIVE),
            (field::DISABLE_DNS_RECORDS, a::DISABLE_DNS_RECORDS),
        ] {
            fields[field] = json!(self.reader.strict_flag(key).unwrap_or(false));
        }
        if let Some(idle) = self.reader.strict_number(a::IDLE_TIMEOUT, 30..=600_u64) {
            fields[field::IDLE_TIMEOUT] = json!(idle);
        }
        fields[field::STICKY_SESSIONS] = self.sticky_sessions();
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

    /// A number whose range only DigitalOcean's documentation has: the API decides about others, as with upstream.
    fn documented(&mut self, key: &'static str, range: RangeInclusive<i64>, default: i64) -> i64 {
        let Some(number) = self.reader.strict_number(key, i64::MIN..=i64::MAX) else {
            return default;
        };
        if !range.contains(&number) {
            let (least, most) = range.into_inner();
            let text = format!("{number} is not between {least} and {most}; DigitalOcean may refuse it");
            self.reader.warn(key, text);
        }
        number
    }

    /// The health check, and whether it never uses the PROXY protocol.
    fn health_check(&mut self) -> (Value, bool) {
        let mut check = json!({
            "check_interval_seconds": self.documented(a::HEALTH_INTERVAL, 3..=300, 3),
            "response_timeout_seconds": self.documented(a::HEALTH_TIMEOUT, 3..=300, 5),
            "unhealthy_threshold": self.documented(a::HEALTH_UNHEALTHY, 2..=10, 3),
            "healthy_threshold": self.documented(a::HEALTH_HEALTHY, 2..=10, 5),
        });
        let override_check = self.reader.get(a::OVERRIDE_HEALTH_CHECK);
        if override_check == Some("false") {
            let text = "\"false\" means no override; the Go cloud-controller-manager accepted any value as an override";
            self.reader.warn(a::OVERRIDE_HEALTH_CHECK, text);
        }
        if override_check.is_none_or(|value| value == "false") {
            let of_override = [a::HEALTH_PORT, a::HEALTH_PATH, a::HEALTH_PROTOCOL];
            self.reader.warn_each(&of_override, "has no effect without override-health-check");
            check["protocol"] = json!("http");
            check["port"] = json!(self.service.health_check_port().unwrap_or(KUBE_PROXY_HEALTH));
            check["path"] = json!(HEALTH_PATH);
            check["proxy_protocol"] = json!(false);
            return (check, true);
        }
        let path = self.reader.get(a::HEALTH_PATH).filter(|path| !path.is_empty());
        let default = if path.is_some() { "http" } else { "tcp" };
        let protocol = self.choice(a::HEALTH_PROTOCOL, &["tcp", "http", "https"]).unwrap_or(default);
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
        let found = self
            .service
            .ports
            .iter()
            .find(|port| port.protocol == Protocol::Tcp && asked.is_none_or(|asked| port.port == asked));
        if let Some(found) = found {
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
        let deny = self.reader.strict_list(a::DENY_RULES, firewall_rule).unwrap_or_default();
        let mut allow = self.reader.strict_list(a::ALLOW_RULES, firewall_rule).unwrap_or_default();
        let allowed: Vec<_> = allow.iter().filter_map(|rule| network_of(rule)).collect();
        let (ranges, invalid) = SourceRanges::of_spec(self.service);
        let ranges: Vec<_> = ranges.into_iter().collect();
        let mut used = &allowed;
        if !(ranges.is_empty() && invalid.is_empty()) {
            if !allowed.is_empty()
                && let Some(problem) = SourceRanges::not_admitted_by(&allowed, &ranges)
            {
                self.reader.warn(a::ALLOW_RULES, problem);
            }
            allow = ranges.iter().map(|range| format!("cidr:{range}")).collect();
            used = &ranges;
        }
        // As in upstream, this annotation is never used.
        if let Some(ignored) = SourceRanges::ignored_annotation(self.service, used) {
            self.reader.warn(ignored.key, ignored.problem);
        }
        self.reader.refuse_fields(invalid);
        json!({"allow": allow, "deny": deny})
    }
}

/// The TCP ports whose protocol annotations set.
struct SpecialPorts {
    http: BTreeSet<u16>,
    https: BTreeSet<u16>,
    http2: BTreeSet<u16>,
}

impl SpecialPorts {
    fn protocol(&self, port: u16) -> Option<&'static str> {
        if self.http2.contains(&port) {
            Some("http2")
        } else if self.https.contains(&port) {
            Some("https")
        } else if self.http.contains(&port) {
            Some("http")
        } else {
            None
        }
    }
}

/// Where TLS ends.
#[derive(Clone, Copy)]
struct Tls<'a> {
    /// The ID of the certificate of the load balancer.
    certificate: Option<&'a str>,
    /// At the Pods.
    passthrough: bool,
}

impl Tls<'_> {
    /// Whether a port can have this protocol.
    fn serves(self, entry: &str) -> bool {
        match entry {
            "https" | "http2" => self.passthrough != self.certificate.is_some(),
            "http3" => self.certificate.is_some() && !self.passthrough,
            _ => true,
        }
    }

    /// The rule of a port with this protocol.
    fn rule(self, entry: &str, port: &ServicePort) -> Value {
        let target = match entry {
            "tcp" | "udp" | "http" => entry,
            "https" | "http2" if self.passthrough => entry,
            _ => "http",
        };
        let mut rule = rule(entry, port.port, target, port.node_port);
        if matches!(entry, "https" | "http2" | "http3") {
            let certificate = if self.passthrough { None } else { self.certificate };
            // Both, because an update keeps fields of the observed rule that are not set here.
            rule["certificate_id"] = json!(certificate.unwrap_or_default());
            rule["tls_passthrough"] = json!(self.passthrough);
        }
        rule
    }
}

/// The size of a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// A number of nodes.
    Unit(u32),
    /// A former name. Regions that do not know numbers accept it.
    Slug(&'static str),
}

/// Whether a load balancer has the size with this name. The API may report it as a number.
fn has_size(balancer: &Balancer, slug: &str) -> bool {
    let nodes = match slug {
        "lb-large" => 6,
        "lb-medium" => 3,
        _ => 1,
    };
    balancer.text(field::SIZE) == slug || balancer.fields()[field::SIZE_UNIT].as_u64().unwrap_or(1) == nodes
}

/// A rule of the firewall as it was written, if it is valid.
fn firewall_rule(text: &str) -> Result<String, String> {
    let is_valid = match text.split_once(':') {
        Some(("ip", ip)) => ip.parse::<IpAddr>().is_ok(),
        Some(("cidr", cidr)) => cidr.parse::<IpNet>().is_ok(),
        _ => false,
    };
    if !is_valid {
        return Err(format!("{text:?} is not a rule; write ip:<address> or cidr:<network>"));
    }
    Ok(text.to_owned())
}

/// The network that a rule of the firewall names.
fn network_of(rule: &str) -> Option<IpNet> {
    match rule.split_once(':')? {
        ("ip", address) => address.parse::<IpAddr>().ok().map(IpNet::from),
        (_, network) => network.parse().ok(),
    }
}

/// Whether the load balancer has a health check that we set without an override, at one of these node ports
/// or at kube-proxy, and the API omits that this check never uses the PROXY protocol.
pub(crate) fn omits_plain_check(balancer: &Balancer, node_ports: &[u16]) -> bool {
    let check = &balancer.fields()[field::HEALTH_CHECK];
    let is_ours = check["port"] == KUBE_PROXY_HEALTH || node_ports.iter().any(|port| check["port"] == *port);
    is_ours && check["path"] == HEALTH_PATH && check["proxy_protocol"].is_null()
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
    /// Nodes whose droplets are not known, with the reason: `node-1 (provider ID k3s://node-1)`.
    pub(crate) unknown: Vec<NodeLeftOut>,
}

impl Backends {
    /// Which nodes are left out because their droplets are not known, and what to do about them; `None` if there are none.
    pub(crate) fn left_out(&self) -> Option<String> {
        if self.unknown.is_empty() {
            return None;
        }
        let (count, shown) = (self.unknown.len(), NodeLeftOut::list(&self.unknown));
        Some(format!(
            "{count} nodes get no traffic, because their droplets are not known: {shown}; delete the Node objects and have \
             the kubelets register them without a provider ID or with digitalocean://<droplet id>"
        ))
    }
}

/// The first texts of a list.
fn first(all: &[String]) -> String {
    let mut shown: Vec<_> = all.iter().take(SHOWN).map(String::as_str).collect();
    if all.len() > SHOWN {
        shown.push("..");
    }
    shown.join(", ")
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
    let mut unknown = Vec::new();
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
        let name = &node.view.name;
        let (id, reason) = match node.view.provider_id.as_deref() {
            None | Some("") => {
                let id = by_name.get(name).copied();
                (id, "no provider ID, and not exactly one droplet with its name".to_owned())
            }
            Some(provider_id) => {
                let id = droplet_id(provider_id).ok().flatten();
                (id, format!("provider ID {provider_id}"))
            }
        };
        match id {
            Some(id) if missing.contains(&id) => {}
            Some(id) => {
                droplets.insert(id);
            }
            None => unknown.push(NodeLeftOut::new(name, format!("({reason})"))),
        }
    }
    let lacks_v6 = kind == LbType::RegionalNetwork && (!dual || !only_v4.is_empty());
    let stack = if internal || lacks_v6 { "IPV4" } else { "DUALSTACK" };
    Backends {
        droplets: (!droplets.is_empty()).then(|| droplets.into_iter().collect()),
        stack,
        unreachable,
        only_v4,
        unknown,
    }
}

/// Why a load balancer cannot be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uncreatable {
    pub(crate) text: String,
    /// Whether an Event reports it, also of a load balancer that exists.
    pub(crate) needs_event: bool,
}

/// Why a load balancer with these backends cannot be created.
pub(crate) fn uncreatable(spec: &Spec, backends: &Backends) -> Option<Uncreatable> {
    let (is_network, is_dual) = (spec.kind == LbType::RegionalNetwork, spec.stack == Some("DUALSTACK"));
    if spec.internal && is_dual {
        return Some(Uncreatable {
            text: format!("{}: {ONLY_IPV4}", a::NETWORK_STACK),
            needs_event: true,
        });
    }
    if is_dual && is_network && !backends.only_v4.is_empty() {
        let text = format!(
            "network stack DUALSTACK needs nodes with public IPv6 addresses; these nodes have none: {}",
            first(&backends.only_v4)
        );
        return Some(Uncreatable {
            text,
            needs_event: true,
        });
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
        return Some(Uncreatable {
            text,
            needs_event: true,
        });
    }
    if let Some(text) = backends.left_out() {
        return Some(Uncreatable {
            text,
            needs_event: false,
        });
    }
    if backends.unreachable > 0 {
        let count = backends.unreachable;
        return Some(Uncreatable {
            text: format!("{count} nodes have no IPv4 address; a load balancer needs a node with one"),
            needs_event: true,
        });
    }
    Some(Uncreatable {
        text: "no ready nodes available for load balancer".to_owned(),
        needs_event: false,
    })
}

#[cfg(test)]
pub(crate) mod tests;
