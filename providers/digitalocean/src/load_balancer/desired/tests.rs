#![allow(clippy::unwrap_used)]

use ccm_core::{
    BuildContext, Environment, NodeAddress,
    load_balancer::{Policy, ServiceNode, ServicePort},
    testkit::{
        cluster::{annotate, annotate_all, service},
        nodes::{node_view, service_node},
    },
};
use ccm_sim::digitalocean::{Config, DigitalOcean};

use super::*;
use crate::client::Api;

pub(crate) fn context(variables: &[(&str, &str)]) -> BuildContext {
    let environment = Environment::default().with("DO_ACCESS_TOKEN", "x");
    let variables = variables.iter();
    BuildContext {
        environment: variables.fold(environment, |all, (name, value)| all.with(*name, *value)),
        cluster_name: "kubernetes".into(),
        user_agent: "test".into(),
        ..BuildContext::default()
    }
}

pub(crate) fn settings(variables: &[(&str, &str)]) -> Settings {
    let loaded = crate::config::load(&context(variables), &mut Default::default());
    loaded.unwrap().value
}

/// The API of a simulated DigitalOcean.
pub(crate) fn api(sim: &DigitalOcean) -> Api {
    let token = Config::default().token;
    let variables = [
        ("DO_OVERRIDE_URL", sim.url()),
        ("DO_ACCESS_TOKEN", token.as_str()),
    ];
    Api::new(&settings(&variables), &context(&variables)).unwrap()
}

/// Creates an object of a simulated DigitalOcean, and returns its ID.
#[expect(clippy::needless_pass_by_value, reason = "the callers create it")]
pub(crate) fn create(sim: &DigitalOcean, collection: &str, fields: Value) -> String {
    sim.create(collection, fields.as_object().cloned().unwrap())
}

/// A load balancer that others created.
pub(crate) fn create_balancer(sim: &DigitalOcean, name: &str) -> String {
    let rule =
        json!({"entry_protocol": "tcp", "entry_port": 80, "target_protocol": "tcp", "target_port": 80});
    let fields = json!({"name": name, "type": "REGIONAL_NETWORK", "forwarding_rules": [rule]});
    create(sim, "load_balancers", fields)
}

/// A Service with ports 80 and 443 and these annotations, written as `type=REGIONAL; size-unit=2`.
fn web(annotations: &str) -> ServiceView {
    let mut service = service("web", &[80, 443]);
    let prefix = "service.beta.kubernetes.io/do-loadbalancer-";
    annotate_all(&mut service, prefix, annotations);
    service
}

fn regional(service: &ServiceView) -> Reading {
    read(service, &settings(&[("DEFAULT_LB_TYPE", "REGIONAL")]), None, None)
}

/// The values that were refused.
fn problems(reading: &Reading) -> String {
    let invalid = reading.invalid.iter();
    let all: Vec<_> = invalid.map(|invalid| invalid.message.as_str()).collect();
    all.join("; ")
}

/// The rules as `https 443 -> http 30443 cert`.
fn rules(reading: &Reading) -> String {
    assert_eq!(problems(reading), "");
    let rules = reading.spec.fields["forwarding_rules"].as_array().unwrap();
    let show = |rule: &Value| {
        let text = |field: &str| rule[field].as_str().unwrap_or_default().to_owned();
        let end = |end: &str| format!("{} {}", text(&format!("{end}_protocol")), rule[format!("{end}_port")]);
        let passthrough = (rule["tls_passthrough"] == true).then_some(" passthrough");
        let (ends, passthrough) = (["entry", "target"].map(end), passthrough.unwrap_or_default());
        let shown = format!("{} {}{passthrough}", ends.join(" -> "), text("certificate_id"));
        shown.trim_end().replace("  ", " ")
    };
    rules.iter().map(show).collect::<Vec<_>>().join(", ")
}

#[test]
fn forwarding_rules_follow_ports_and_annotations() {
    for case in [
        " => tcp 80 -> tcp 30080, tcp 443 -> tcp 30443",
        "protocol=http => http 80 -> http 30080, http 443 -> http 30443",
        "certificate-id=c; tls-ports=443 => tcp 80 -> tcp 30080, https 443 -> http 30443 c",
        "tls-passthrough=true; tls-ports=443 => tcp 80 -> tcp 30080, https 443 -> https 30443 passthrough",
        "certificate-id=c; http2-ports=80,443 => http2 80 -> http 30080 c, http2 443 -> http 30443 c",
        "tls-passthrough=true; http2-ports=443 => tcp 80 -> tcp 30080, http2 443 -> http2 30443 passthrough",
        "certificate-id=c => tcp 80 -> tcp 30080, https 443 -> http 30443 c",
        "certificate-id=c; http-ports=80 => http 80 -> http 30080, https 443 -> http 30443 c",
        "certificate-id=c; tls-ports=443; http3-port=443 => tcp 80 -> tcp 30080, https 443 -> http 30443 c, \
            http3 443 -> http 30443 c",
        "certificate-id=c; http3-port=99 => tcp 80 -> tcp 30080, https 443 -> http 30443 c",
        "tls-passthrough=maybe => tcp 80 -> tcp 30080, tcp 443 -> tcp 30443",
    ] {
        let (annotations, expected) = case.split_once(" => ").unwrap();
        assert_eq!(rules(&regional(&web(annotations))), expected, "{annotations}");
    }
}

#[test]
fn values_that_the_api_would_refuse_are_errors_with_their_key() {
    for case in [
        "tls-ports=443 => ports with https need either a certificate",
        "tls-ports=443; tls-passthrough=true; certificate-id=c => either a certificate",
        "protocol=http2 => ports with http2 need",
        "protocol=udp => do-loadbalancer-protocol: \"udp\" is not one of tcp, http",
        "certificate-id=c; http-ports=443,80; tls-ports=80,443 => ports 80, 443 are in more than one",
        "http-ports=80,x => http-ports: \"x\" is not a port",
        "http3-port=443 => HTTP/3 needs a certificate",
        "http3-port=443; tls-passthrough=1 => HTTP/3 needs a certificate",
        "type=GLOBAL => do-loadbalancer-type: \"GLOBAL\" is not one of REGIONAL, REGIONAL_NETWORK",
        "network=PRIVATE => is not one of EXTERNAL, INTERNAL",
        "network=INTERNAL; network-stack=DUALSTACK => network-stack: an internal load balancer",
        "size-slug=lb-huge => is not one of lb-small, lb-medium, lb-large",
        "size-unit=-1 => size-unit: -1 is not between 0 and 4294967295",
        "size-unit=2; size-slug=lb-small => cannot be used together with size-slug",
        "sticky-sessions-type=cookies => sticky-sessions-cookie-name: missing",
        "sticky-sessions-type=cookies; sticky-sessions-cookie-name=a => sticky-sessions-cookie-ttl: missing",
        "redirect-http-to-https=yes => redirect-http-to-https: \"yes\" is neither true nor false",
        "http-idle-timeout-seconds=10 => 10 is not between 30 and 600",
        "override-health-check=; healthcheck-port=81 => healthcheck-port: 81 is not a TCP port",
        "override-health-check=; healthcheck-port=80,443 => is not a whole number",
        "override-health-check=; healthcheck-protocol=grpc => is not one of tcp, http, https",
        "allow-rules=ip:1.2.3.4,1.2.3.5 => allow-rules: \"1.2.3.5\" is not a rule",
        "deny-rules=cidr:10.0.0.0/40 => deny-rules: \"cidr:10.0.0.0/40\" is not a rule",
        "ip=2001:db8::1; subnet-uuid=y => is not a valid UUID",
    ] {
        let (annotations, expected) = case.split_once(" => ").unwrap();
        let error = problems(&regional(&web(annotations)));
        assert!(error.contains(expected), "{annotations}: {error}");
    }
    let several = problems(&regional(&web("ip=x; subnet-uuid=y; size-unit=z")));
    assert_eq!(several.matches("; ").count(), 2, "all at once: {several}");
    let name = regional(&web("name=-x"));
    assert_eq!((problems(&name), name.spec.fields["name"].as_str()), (String::new(), Some("-x")));
    assert!(name.ignored[0].problem.contains("DigitalOcean may refuse it"), "{:?}", name.ignored);
    let mut odd = web("");
    odd.ports[0].protocol = Protocol::Sctp;
    odd.ports[1].port = 50053;
    odd.source_ranges = Some(vec!["10.0.0.0".into()]);
    let error = problems(&regional(&odd));
    for part in ["protocol SCTP", "50053 is reserved", "\"10.0.0.0\" is not a CIDR"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}

#[test]
fn a_network_load_balancer_keeps_the_ports() {
    let mut service = web("protocol=http; certificate-id=c");
    service.ports.push(ServicePort {
        protocol: Protocol::Udp,
        port: 53,
        node_port: 30053,
        ..ServicePort::default()
    });
    annotate(&mut service, a::FIREWALL_MANAGED, Some("fasle"));
    let reading = read(&service, &settings(&[]), None, None);
    let expected = "tcp 80 -> tcp 80, tcp 443 -> tcp 443, udp 53 -> udp 53";
    assert_eq!(rules(&reading), expected);
    assert_eq!(reading.ignored.len(), 3, "{:?}", reading.ignored);
    let regional = rules(&regional(&service));
    let udp = regional.ends_with(", udp 53 -> udp 30053");
    assert!(udp, "UDP ports are UDP whatever the protocol: {regional}");
    let existing: Balancer = serde_json::from_value(json!({"id": "x", "type": "REGIONAL"})).unwrap();
    let kept = read(&web(""), &settings(&[]), Some(&existing), None).spec.kind;
    assert_eq!(kept, LbType::Regional, "an existing load balancer keeps its type");
}

#[test]
fn health_checks_follow_the_traffic_policy_unless_overridden() {
    let check = |service: &ServiceView| {
        let reading = regional(service);
        assert_eq!(problems(&reading), "");
        let check = &reading.spec.fields["health_check"];
        let text = |field: &str| check[field].as_str().unwrap_or("-").to_owned();
        let plain = reading.spec.write_only.plain_checks == Some(true);
        format!("{} {} {} {plain}", text("protocol"), check["port"], text("path"))
    };
    for case in [
        " => http 10256 /healthz true",
        "override-health-check=true => tcp 30080 - false",
        "override-health-check=true; healthcheck-path=/up => http 30080 /up false",
        "override-health-check=true; healthcheck-protocol=https; healthcheck-port=443 => https 30443 / false",
        "override-health-check=false => http 10256 /healthz true",
    ] {
        let (annotations, expected) = case.split_once(" => ").unwrap();
        assert_eq!(check(&web(annotations)), expected, "{annotations}");
    }
    let mut local = web("");
    local.external_policy = Policy::Local;
    local.health_check_node_port = 31000;
    assert_eq!(check(&local), "http 31000 /healthz true");
    let numbers = &regional(&web("healthcheck-unhealthy-threshold=7")).spec.fields["health_check"];
    let fields = ["unhealthy_threshold", "healthy_threshold"];
    assert_eq!(fields.map(|field| numbers[field].as_u64()), [7, 5].map(Some));
    assert_eq!(numbers["check_interval_seconds"], 3);
    let ignored = regional(&web("healthcheck-port=443")).ignored;
    let problem = &ignored[0].problem;
    assert!(problem.contains("without override-health-check"), "{ignored:?}");
    type Change = fn(&mut ServicePort);
    let no_tcp: (Change, _) = (|port| port.protocol = Protocol::Udp, "no health check port");
    for (change, expected) in [
        no_tcp,
        (|port| port.node_port = 0, "port 80 has no node port to check"),
    ] {
        let mut service = web("override-health-check=true; type=REGIONAL_NETWORK");
        service.ports.iter_mut().for_each(change);
        let error = problems(&regional(&service));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn numbers_of_health_checks_have_a_default_and_documented_bounds() {
    for (field, default, [least, most]) in [
        ("check_interval_seconds", 3, [3, 300]),
        ("response_timeout_seconds", 5, [3, 300]),
        ("unhealthy_threshold", 3, [2, 10]),
        ("healthy_threshold", 5, [2, 10]),
    ] {
        let key = format!("healthcheck-{}", field.replace('_', "-"));
        let with = |value: &str| regional(&web(&format!("{key}={value}")));
        let number = |reading: Reading| {
            assert_eq!(problems(&reading), "", "{key}");
            reading.spec.fields["health_check"][field].clone()
        };
        assert_eq!(number(regional(&web(""))), default, "{key}");
        for (number_text, warns) in [(least, false), (most, false), (least - 1, true), (most + 1, true)] {
            let reading = with(&number_text.to_string());
            assert_eq!(!reading.ignored.is_empty(), warns, "{key} {number_text}");
            assert_eq!(number(reading), number_text, "{key}: the API decides");
        }
        for invalid in ["many", ""] {
            let error = problems(&with(invalid));
            let times = error.matches(&format!("do-loadbalancer-{key}: ")).count();
            assert_eq!(times, 1, "{invalid:?} is reported once: {error}");
        }
    }
}

#[test]
fn other_fields_follow_the_annotations() {
    let spec = |annotations: &str| regional(&web(annotations)).spec;
    let none = spec("").fields;
    assert_eq!(none["name"], "auidweb", "`a` and the UID without dashes");
    for (annotations, field, expected) in [
        ("", "size_unit", json!(null)),
        ("", "size", json!(null)),
        ("", "sticky_sessions", json!(null)),
        ("", "firewall", json!({"allow": [], "deny": []})),
        ("size-slug=lb-medium", "size", json!("lb-medium")),
        ("size-slug=lb-medium", "size_unit", json!(null)),
        ("size-unit=0", "size_unit", json!(null)),
        ("size-unit=200", "size_unit", json!(200)),
        ("sticky-sessions-type=magic", "sticky_sessions", json!(null)),
    ] {
        assert_eq!(spec(annotations).fields[field], expected, "{annotations}");
    }
    let rules = spec("allow-rules= ip:1.2.3.4 ,, cidr:10.0.0.0/8; deny-rules=ip:::1").fields;
    let firewall = json!({"allow": ["ip:1.2.3.4", "cidr:10.0.0.0/8"], "deny": ["ip:::1"]});
    assert_eq!(rules["firewall"], firewall);
    let mut ranges = web("allow-rules=ip:1.2.3.4");
    ranges.source_ranges = Some(vec![" 10.1.2.3/8 ".into()]);
    let firewall = regional(&ranges).spec.fields["firewall"].clone();
    assert_eq!(firewall["allow"], json!(["cidr:10.0.0.0/8"]));
    let sticky =
        spec("sticky-sessions-type=cookies; sticky-sessions-cookie-name=c; sticky-sessions-cookie-ttl=60");
    let cookies = json!({"type": "cookies", "cookie_name": "c", "cookie_ttl_seconds": 60});
    assert_eq!(sticky.fields["sticky_sessions"], cookies);
    let create = spec("ip= 203.0.113.5 ; network=INTERNAL").create;
    assert_eq!(create["ip"], "203.0.113.5");
    assert_eq!(create["network"], "INTERNAL");
    let hostname = hostname(&web("hostname=Web.Example"));
    assert_eq!(hostname.as_deref(), Some("web.example"));
}

#[test]
fn a_setting_that_is_not_used_is_reported_if_it_admits_fewer_clients() {
    let ignored = |annotations: &str, field: &[&str], annotation: Option<&str>| {
        let mut service = web(annotations);
        service.source_ranges = Some(field.iter().map(|range| (*range).into()).collect());
        annotate(&mut service, SourceRanges::ANNOTATION, annotation);
        let ignored = regional(&service).ignored;
        ignored.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let found = ignored("allow-rules=ip:10.0.0.4", &["10.0.0.0/8"], None);
    assert!(found.contains("allow-rules: it is not used") && found.contains("10.0.0.0/8"), "{found}");
    let found = ignored("", &[], Some("10.0.0.0/8"));
    assert!(found.contains("source-ranges: it is not used") && found.contains("0.0.0.0/0"), "{found}");
    assert_eq!(ignored("allow-rules=cidr:10.0.0.0/8", &[], Some("10.0.0.0/8")), "");
    assert_eq!(ignored("allow-rules=cidr:10.0.0.0/8", &["10.0.0.0/8"], Some("0.0.0.0/0")), "");
}

/// A node with a droplet of this id: `p` private, `4` and `6` public.
fn node(id: u64, addresses: &str) -> ServiceNode {
    let address = |c: char| match c {
        'p' => NodeAddress::new(AddressType::InternalIP, "10.0.0.1"),
        '4' => NodeAddress::new(AddressType::ExternalIP, "203.0.113.1"),
        _ => NodeAddress::new(AddressType::ExternalIP, "2001:db8::1"),
    };
    let addresses = addresses.chars().map(address).collect();
    ServiceNode {
        ready: false,
        ..service_node(&format!("node-{id}"), &format!("digitalocean://{id}"), addresses)
    }
}

/// The backends among nodes that all have provider IDs.
fn backends_of(kind: LbType, internal: bool, nodes: &[ServiceNode]) -> Backends {
    let nodes = nodes.iter().cloned().collect();
    backends(kind, internal, &nodes, &BTreeMap::new(), &BTreeSet::new())
}

#[test]
fn only_droplets_with_suitable_addresses_are_backends() {
    use LbType::{Regional, RegionalNetwork as Network};
    let nodes = [(1, "p4"), (2, "p46"), (3, "p"), (4, "p6"), (5, "")];
    let nodes = nodes.map(|(id, addresses)| node(id, addresses));
    for (kind, internal, droplets, unreachable) in [
        (Regional, false, vec![1, 2, 3], 2),
        (Network, false, vec![1, 2], 3),
        (Regional, true, vec![1, 2, 3, 4, 5], 0),
        (Network, true, vec![1, 2, 3, 4, 5], 0),
    ] {
        let found = backends_of(kind, internal, &nodes);
        assert_eq!((found.droplets, found.unreachable), (Some(droplets), unreachable));
    }
    let (v4, dual) = (&nodes[..1], &nodes[1..2]);
    for (kind, internal, nodes, stack) in [
        (Regional, false, vec![], "DUALSTACK"),
        (Regional, true, dual.to_vec(), "IPV4"),
        (Network, false, dual.to_vec(), "DUALSTACK"),
        (Network, false, [v4, dual].concat(), "IPV4"),
        (Network, false, vec![], "IPV4"),
    ] {
        assert_eq!(backends_of(kind, internal, &nodes).stack, stack, "{nodes:?}");
    }
}

#[test]
fn a_node_counts_once_and_only_with_a_droplet_that_exists() {
    let named = |name: &str, provider_id: Option<&str>| ServiceNode {
        view: node_view(name, provider_id),
        ..node(1, "p4")
    };
    let nodes = [
        node(1, "p4"),
        named("again", Some("digitalocean://1")),
        node(2, "p4"),
        named("nameless", None),
        named("odd", Some("digitalocean://8x")),
    ];
    let names = BTreeMap::from([("nameless".to_owned(), 7)]);
    let (nodes, missing) = (nodes.into_iter().collect(), BTreeSet::from([2]));
    let found = backends(LbType::RegionalNetwork, false, &nodes, &names, &missing);
    assert_eq!(found.droplets, Some(vec![1, 7]));
    // A droplet that no longer exists is not reported: its Node is about to be deleted.
    let unknown = NodeLeftOut::new("odd", "(provider ID digitalocean://8x)");
    assert_eq!(found.unknown, [unknown]);
}

#[test]
fn nodes_whose_droplets_are_not_known_are_named_with_the_reason() {
    let nodes = [
        ("a", Some("k3s://a")),
        ("b", Some("digitalocean://8x")),
        ("c", None),
        ("d", Some("aws:///z/i")),
    ];
    let nodes = nodes.map(|(name, provider_id)| ServiceNode {
        view: node_view(name, provider_id),
        ..node(1, "p4")
    });
    let left_out = |count: usize| backends_of(LbType::Regional, false, &nodes[..count]).left_out();
    assert_eq!(left_out(0), None);
    let text = left_out(4).unwrap();
    let named = "4 nodes get no traffic, because their droplets are not known: a (provider ID k3s://a); \
        b (provider ID digitalocean://8x); c (no provider ID, and not exactly one droplet with its name); and 1 more;";
    assert!(text.starts_with(named), "{text}");
}

/// The effect of an annotation.
struct Row {
    key: &'static str,
    value: &'static str,
    /// Other annotations, with and without this one.
    with: &'static str,
    /// The fields that it changes on an existing load balancer of type `REGIONAL`, and on one of type `REGIONAL_NETWORK`.
    changed: [&'static [&'static str]; 2],
    /// The fields that it sets only on a new load balancer of type `REGIONAL_NETWORK`.
    created: &'static [&'static str],
}

/// The effects of all annotations are those that they have in upstream: on an existing load balancer of type
/// `REGIONAL_NETWORK` those about HTTP change nothing.
const ROWS: &[Row] = &[
    row(a::ID, "11111111-2222-4333-8444-555555555555", "", [&[], &[]], &[]),
    row(a::DISOWN, "true", "", [&[], &[]], &[]),
    row(a::FIREWALL_MANAGED, "false", "", [&[], &[]], &[]),
    row(a::NAME, "shop", "", [&["name"], &["name"]], &[]),
    row(a::NETWORK, "INTERNAL", "", [&[], &[]], &["network"]),
    row(a::NETWORK_STACK, "IPV4", "", [&[], &[]], &["network_stack"]),
    row(a::PROTOCOL, "http", "", [RULES_ONLY, &[]], &[]),
    row(a::HTTP_PORTS, "80", "", [RULES_ONLY, &[]], &[]),
    row(a::TLS_PORTS, "80", "certificate-id=c", [RULES_ONLY, &[]], &[]),
    row(a::HTTP2_PORTS, "80", "certificate-id=c", [RULES_ONLY, &[]], &[]),
    row(a::HTTP3_PORT, "443", "certificate-id=c", [RULES_ONLY, &[]], &[]),
    row(a::TLS_PASSTHROUGH, "true", "", [RULES_ONLY, &[]], &[]),
    row(a::CERTIFICATE_ID, "c", "", [RULES_ONLY, &[]], &[]),
    row(a::CERTIFICATE_NAME, "c", "", [RULES_ONLY, &[]], &[]),
    row(
        a::DISABLE_DNS_RECORDS,
        "true",
        "",
        [&["disable_lets_encrypt_dns_records"], &[]],
        &["disable_lets_encrypt_dns_records"],
    ),
    row(a::HOSTNAME, "web.example", "", [&[], &[]], &[]),
    // Sent with every change, and not compared.
    row(a::ALGORITHM, "least_connections", "", [&[], &[]], &[]),
    row(a::SIZE_SLUG, "lb-large", "", [&["size"], &["size"]], &[]),
    row(a::SIZE_UNIT, "2", "", [&["size_unit"], &["size_unit"]], &[]),
    row(
        a::STICKY_TYPE,
        "cookies",
        "sticky-sessions-cookie-name=c; sticky-sessions-cookie-ttl=9",
        [STICKY, &[]],
        STICKY,
    ),
    row(a::STICKY_COOKIE_NAME, "d", COOKIES, [STICKY, &[]], STICKY),
    row(a::STICKY_COOKIE_TTL, "8", COOKIES, [STICKY, &[]], STICKY),
    row(a::REDIRECT, "true", "", [&["redirect_http_to_https"], &[]], &["redirect_http_to_https"]),
    row(
        a::PROXY_PROTOCOL,
        "true",
        "",
        [&["enable_proxy_protocol"], &[]],
        &["enable_proxy_protocol"],
    ),
    row(
        a::KEEPALIVE,
        "true",
        "",
        [&["enable_backend_keepalive"], &[]],
        &["enable_backend_keepalive"],
    ),
    row(
        a::IDLE_TIMEOUT,
        "90",
        "",
        [&["http_idle_timeout_seconds"], &[]],
        &["http_idle_timeout_seconds"],
    ),
    row(a::DENY_RULES, "ip:192.0.2.1", "", [FIREWALL, FIREWALL], &[]),
    row(a::ALLOW_RULES, "ip:192.0.2.1", "", [FIREWALL, FIREWALL], &[]),
    row(a::OVERRIDE_HEALTH_CHECK, "", "", [CHECK, CHECK], &[]),
    row(a::HEALTH_PORT, "443", "override-health-check=", [CHECK, CHECK], &[]),
    row(a::HEALTH_PATH, "/up", "override-health-check=", [CHECK, CHECK], &[]),
    row(a::HEALTH_PROTOCOL, "https", "override-health-check=", [CHECK, CHECK], &[]),
    row(a::HEALTH_INTERVAL, "9", "", [CHECK, CHECK], &[]),
    row(a::HEALTH_TIMEOUT, "9", "", [CHECK, CHECK], &[]),
    row(a::HEALTH_UNHEALTHY, "9", "", [CHECK, CHECK], &[]),
    row(a::HEALTH_HEALTHY, "9", "", [CHECK, CHECK], &[]),
    row(a::IP, "203.0.113.5", "", [&[], &[]], &["ip"]),
    row(a::SUBNET, "11111111-2222-4333-8444-555555555555", "", [&[], &[]], &["subnet_uuid"]),
];
const RULES_ONLY: &[&str] = &["forwarding_rules"];
const STICKY: &[&str] = &["sticky_sessions"];
const FIREWALL: &[&str] = &["firewall"];
const CHECK: &[&str] = &["health_check"];
const COOKIES: &str =
    "sticky-sessions-type=cookies; sticky-sessions-cookie-name=c; sticky-sessions-cookie-ttl=9";

const fn row(
    key: &'static str,
    value: &'static str,
    with: &'static str,
    changed: [&'static [&'static str]; 2],
    created: &'static [&'static str],
) -> Row {
    Row {
        key,
        value,
        with,
        changed,
        created,
    }
}

/// The names of fields that differ.
fn differing(before: &Value, after: &Value) -> Vec<String> {
    let names = [before, after].map(|value| value.as_object().unwrap().keys().cloned());
    let names: BTreeSet<String> = names.into_iter().flatten().collect();
    let differs = |name: &String| before.get(name) != after.get(name);
    names.into_iter().filter(differs).collect()
}

#[test]
fn every_annotation_has_the_effect_that_it_has_in_the_go_cloud_controller() {
    use crate::load_balancer::document::RULES;
    let rows = ROWS.iter().map(|row| row.key).chain([a::TYPE]);
    let rows: BTreeSet<_> = rows.collect();
    let declared: BTreeSet<_> = a::TABLE.entries.iter().map(|entry| entry.name).collect();
    assert_eq!(rows, declared, "the type is that of the load balancer");
    for Row {
        key,
        value,
        with,
        changed,
        created,
    } in ROWS
    {
        for (kind, expected) in ["REGIONAL", "REGIONAL_NETWORK"].into_iter().zip(changed) {
            let shown = format!("{key} {kind}");
            let before = web(with);
            let mut after = before.clone();
            annotate(&mut after, key, Some(value));
            let settings = settings(&[("DEFAULT_LB_TYPE", kind)]);
            let new = |service: &ServiceView| {
                let spec = read(service, &settings, None, None).spec;
                let mut create = spec.create;
                create["network_stack"] = json!(spec.stack);
                (create, spec.fields)
            };
            let ((create, fields), (create_after, _)) = (new(&before), new(&after));
            if kind == "REGIONAL_NETWORK" {
                assert_eq!(differing(&create, &create_after), *created, "{shown}");
            }
            // The load balancer as it was created without the annotation.
            let mut document = create.clone();
            ccm_core::plan::document::extend(&mut document, &fields);
            document["id"] = json!("x");
            let existing: Balancer = serde_json::from_value(document).unwrap();
            let reading = read(&after, &settings, Some(&existing), None);
            assert_eq!(problems(&reading), "", "{shown}");
            let edit = RULES.edit(&existing, &reading.spec.fields);
            let edited = edit.map(|edit| Balancer::planned(&edit.document));
            let changed = edited.map_or(Vec::new(), |edited| {
                let all = differing(existing.fields(), edited.fields()).into_iter();
                all.filter(|name| name != "id" && name != "ip").collect()
            });
            assert_eq!(changed, *expected, "{shown}");
        }
    }
}

#[test]
fn what_no_annotation_sets_and_the_go_cloud_controller_does_not_send_keeps_its_value() {
    use crate::load_balancer::document::RULES;
    let by_hand = json!({
        "id": "x", "type": "REGIONAL", "size_unit": 3, "http_idle_timeout_seconds": 90, "project_id": "p",
        "tls_cipher_policy": "STRONG", "network": "INTERNAL",
    });
    let mut document = by_hand.clone();
    ccm_core::plan::document::extend(&mut document, &regional(&web("")).spec.fields);
    let existing: Balancer = serde_json::from_value(document).unwrap();
    let read = |annotations: &str| read(&web(annotations), &settings(&[]), Some(&existing), None);
    let reading = read("network=EXTERNAL");
    let edit = RULES.edit(&existing, &reading.spec.fields);
    assert_eq!(edit, None);
    assert!(reading.spec.internal, "an existing load balancer keeps its network");
    let problems: Vec<_> = reading.ignored.iter().map(ToString::to_string).collect();
    for part in [
        "size-unit: not set, so that the load balancer keeps its size_unit 3",
        "keeps its http_idle_timeout_seconds 90",
    ] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{problems:?}");
    }
    assert_eq!(read("size-unit=3; http-idle-timeout-seconds=90").ignored, []);
}

#[test]
fn a_former_size_is_equal_to_its_number() {
    use crate::load_balancer::document::{RULES, sendable};
    for (observed, is_equal) in [
        (json!({"size_unit": 3}), true),
        (json!({"size": "lb-medium"}), true),
        (json!({"size": "lb-medium", "size_unit": 1}), true),
        (json!({"size_unit": 1}), false),
        (json!({"size": "lb-small"}), false),
        (json!({}), false),
    ] {
        let service = web("size-slug=lb-medium");
        let mut document = json!({"id": "x", "type": "REGIONAL"});
        ccm_core::plan::document::extend(&mut document, &regional(&web("")).spec.fields);
        ccm_core::plan::document::extend(&mut document, &observed);
        let existing: Balancer = serde_json::from_value(document).unwrap();
        let spec = read(&service, &settings(&[]), Some(&existing), None).spec;
        let edit = RULES.edit(&existing, &spec.fields);
        assert_eq!(edit.is_none(), is_equal, "{observed}");
        if let Some(edit) = edit {
            let body = sendable(edit.document, &spec.write_only);
            assert_eq!((&body["size"], body.get("size_unit")), (&json!("lb-medium"), None), "{observed}");
        }
    }
}

#[test]
fn source_ranges_replace_allow_rules_with_a_warning_if_they_allow_more() {
    for (ranges, rules, warns) in [
        (vec!["10.0.0.0/8"], "", false),
        (vec!["10.0.0.0/8"], "cidr:10.1.0.0/16", true),
        (vec!["10.1.0.0/16", "192.0.2.1/32"], "cidr:10.0.0.0/8, ip:192.0.2.1", false),
        (vec!["10.1.0.0/16", "192.0.2.0/24"], "cidr:10.0.0.0/8, ip:192.0.2.1", true),
        (vec!["2001:db8::/32"], "cidr:10.0.0.0/8", true),
        (vec![], "cidr:10.1.0.0/16", false),
    ] {
        let mut service = web(&format!("allow-rules={rules}"));
        service.source_ranges = Some(ranges.iter().map(|range| (*range).into()).collect());
        let reading = regional(&service);
        let allow = &reading.spec.fields["firewall"]["allow"];
        assert_eq!(
            allow.to_string().contains("10.1.0.0/16"),
            ranges.contains(&"10.1.0.0/16") || ranges.is_empty()
        );
        let warned = reading.ignored.iter().any(|ignored| ignored.key == a::ALLOW_RULES);
        assert_eq!(warned, warns, "{ranges:?} {rules}");
    }
}

#[test]
fn a_load_balancer_is_created_only_with_a_usable_node() {
    let check = |annotations: &str, nodes: &[ServiceNode]| {
        let spec = read(&web(annotations), &settings(&[]), None, None).spec;
        uncreatable(&spec, &backends_of(LbType::RegionalNetwork, false, nodes))
    };
    assert_eq!(check("", &[node(1, "p4")]), None);
    let problem = check("", &[node(1, "p")]).unwrap();
    let no_address = problem.text.contains("1 nodes have no public IPv4 address");
    assert!(no_address && problem.needs_event, "{problem:?}");
    let none = Uncreatable {
        text: "no ready nodes available for load balancer".to_owned(),
        needs_event: false,
    };
    assert_eq!(check("", &[]), Some(none));
    let foreign = ServiceNode {
        view: node_view("node-1", Some("k3s://node-1")),
        ..node(1, "p4")
    };
    let problem = check("", &[foreign]).unwrap();
    assert!(problem.text.contains("node-1 (provider ID k3s://node-1)"), "{problem:?}");
    let spec = regional(&web("")).spec;
    let only_v6 = backends_of(LbType::Regional, false, &[node(1, "6")]);
    let problem = uncreatable(&spec, &only_v6).unwrap();
    assert!(
        problem.text.starts_with("1 nodes have no IPv4 address") && problem.needs_event,
        "{problem:?}"
    );
    let nodes: Vec<_> = (1..6).map(|id| node(id, "p4")).collect();
    let problem = check("network-stack=DUALSTACK", &nodes).unwrap();
    assert!(problem.text.ends_with("node-1, node-2, node-3, ..") && problem.needs_event, "{problem:?}");
}
