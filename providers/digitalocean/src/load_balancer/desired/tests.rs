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
        "healthcheck-check-interval-seconds=1 => 1 is not between 3 and 300",
        "override-health-check=; healthcheck-port=81 => healthcheck-port: 81 is not a TCP port",
        "override-health-check=; healthcheck-port=80,443 => is not a whole number",
        "override-health-check=; healthcheck-protocol=grpc => is not one of tcp, http, https",
        "allow-rules=ip:1.2.3.4,1.2.3.5 => allow-rules: \"1.2.3.5\" is not a rule",
        "deny-rules=cidr:10.0.0.0/40 => deny-rules: \"cidr:10.0.0.0/40\" is not a rule",
        "ip=2001:db8::1; name=-x; subnet-uuid=y => is not a valid UUID",
    ] {
        let (annotations, expected) = case.split_once(" => ").unwrap();
        let error = problems(&regional(&web(annotations)));
        assert!(error.contains(expected), "{annotations}: {error}");
    }
    let several = problems(&regional(&web("ip=x; name=-x; subnet-uuid=y")));
    assert_eq!(several.matches("; ").count(), 2, "all at once: {several}");
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
fn numbers_of_health_checks_have_a_default_and_bounds() {
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
        for valid in [least, most] {
            assert_eq!(number(with(&valid.to_string())), valid, "{key}");
        }
        for invalid in ["many", "", &(least - 1).to_string(), &(most + 1).to_string()] {
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
        ("", "size_unit", json!(1)),
        ("", "sticky_sessions", json!(null)),
        ("", "firewall", json!({"allow": [], "deny": []})),
        ("size-slug=lb-medium", "size_unit", json!(3)),
        ("size-unit=0", "size_unit", json!(1)),
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
}

#[test]
fn a_load_balancer_is_created_only_with_a_usable_node() {
    let check = |annotations: &str, nodes: &[ServiceNode]| {
        let spec = read(&web(annotations), &settings(&[]), None, None).spec;
        uncreatable(&spec, &backends_of(LbType::RegionalNetwork, false, nodes))
    };
    assert_eq!(check("", &[node(1, "p4")]), None);
    let (text, event) = check("", &[node(1, "p")]).unwrap();
    let no_address = text.contains("1 nodes have no public IPv4 address");
    assert!(no_address && event, "{text}");
    let none = "no ready nodes available for load balancer".to_owned();
    assert_eq!(check("", &[]), Some((none, false)));
    let nodes: Vec<_> = (1..6).map(|id| node(id, "p4")).collect();
    let (text, event) = check("network-stack=DUALSTACK", &nodes).unwrap();
    assert!(text.ends_with("node-1, node-2, node-3, ..") && event, "{text}");
}
