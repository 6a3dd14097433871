#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use ccm_core::{
    BuildContext, Environment, NodeAddress, NodeView,
    load_balancer::{Policy, ServiceNode, ServicePort},
    testkit::cluster::{annotate, service},
};

use ccm_sim::digitalocean::{Config, DigitalOcean};

use super::*;
use crate::client::Api;

pub(crate) fn context(variables: &[(&str, &str)]) -> BuildContext {
    let environment = Environment::default().with("DO_ACCESS_TOKEN", "x");
    let environment = variables.iter().fold(environment, |environment, (name, value)| {
        environment.with(*name, *value)
    });
    BuildContext {
        environment,
        cloud_config: None,
        flags: Default::default(),
        cluster_name: "kubernetes".into(),
        user_agent: "test".into(),
        metrics: Default::default(),
        plan: Default::default(),
        fences: Default::default(),
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

/// A Service with ports 80 and 443 and these annotations, by the suffixes of their names.
fn web(annotations: &[(&str, &str)]) -> ServiceView {
    let mut service = service("web", &[80, 443]);
    for (end, value) in annotations {
        annotate(
            &mut service,
            &format!("service.beta.kubernetes.io/do-loadbalancer-{end}"),
            Some(value),
        );
    }
    service
}

fn regional(service: &ServiceView) -> Reading {
    read(service, &settings(&[("DEFAULT_LB_TYPE", "REGIONAL")]), None, None)
}

/// The rules as `https 443 -> http 30443 cert`, or all refused values.
fn rules(reading: &Reading) -> Result<Vec<String>, String> {
    if !reading.invalid.is_empty() {
        let all: Vec<_> = reading
            .invalid
            .iter()
            .map(|invalid| invalid.message.as_str())
            .collect();
        return Err(all.join("; "));
    }
    let rules = reading.spec.fields["forwarding_rules"].as_array().unwrap().iter();
    let text = |rule: &Value, field: &str| rule[field].as_str().unwrap_or_default().to_owned();
    let show = |rule: &Value| {
        let passthrough = if rule["tls_passthrough"] == json!(true) {
            " passthrough"
        } else {
            ""
        };
        let certificate = text(rule, "certificate_id");
        let certificate = if certificate.is_empty() {
            certificate
        } else {
            format!(" {certificate}")
        };
        format!(
            "{} {} -> {} {}{certificate}{passthrough}",
            text(rule, "entry_protocol"),
            rule["entry_port"],
            text(rule, "target_protocol"),
            rule["target_port"]
        )
    };
    Ok(rules.map(show).collect())
}

#[test]
fn forwarding_rules_follow_ports_and_annotations() {
    const CERT: (&str, &str) = ("certificate-id", "c");
    const PASS: (&str, &str) = ("tls-passthrough", "true");
    type Annotations = &'static [(&'static str, &'static str)];
    let cases: [(Annotations, &[&str]); 11] = [
        (&[], &["tcp 80 -> tcp 30080", "tcp 443 -> tcp 30443"]),
        (
            &[("protocol", "http")],
            &["http 80 -> http 30080", "http 443 -> http 30443"],
        ),
        (
            &[CERT, ("tls-ports", "443")],
            &["tcp 80 -> tcp 30080", "https 443 -> http 30443 c"],
        ),
        (
            &[PASS, ("tls-ports", "443")],
            &["tcp 80 -> tcp 30080", "https 443 -> https 30443 passthrough"],
        ),
        (
            &[CERT, ("http2-ports", "80,443")],
            &["http2 80 -> http 30080 c", "http2 443 -> http 30443 c"],
        ),
        (
            &[PASS, ("http2-ports", "443")],
            &["tcp 80 -> tcp 30080", "http2 443 -> http2 30443 passthrough"],
        ),
        (&[CERT], &["tcp 80 -> tcp 30080", "https 443 -> http 30443 c"]),
        (
            &[CERT, ("http-ports", "80")],
            &["http 80 -> http 30080", "https 443 -> http 30443 c"],
        ),
        (
            &[CERT, ("tls-ports", "443"), ("http3-port", "443")],
            &[
                "tcp 80 -> tcp 30080",
                "https 443 -> http 30443 c",
                "http3 443 -> http 30443 c",
            ],
        ),
        (
            &[CERT, ("http3-port", "99")],
            &["tcp 80 -> tcp 30080", "https 443 -> http 30443 c"],
        ),
        (
            &[("tls-passthrough", "maybe")],
            &["tcp 80 -> tcp 30080", "tcp 443 -> tcp 30443"],
        ),
    ];
    for (annotations, expected) in cases {
        let found = rules(&regional(&web(annotations)));
        assert_eq!(found.unwrap(), expected, "{annotations:?}");
    }
}

#[test]
fn values_that_the_api_would_refuse_are_errors_with_their_key() {
    let cases: [(&[(&str, &str)], &str); 25] = [
        (
            &[("tls-ports", "443")],
            "ports with https need either a certificate",
        ),
        (
            &[
                ("tls-ports", "443"),
                ("tls-passthrough", "true"),
                ("certificate-id", "c"),
            ],
            "either a certificate",
        ),
        (&[("protocol", "http2")], "ports with http2 need"),
        (
            &[("protocol", "udp")],
            "do-loadbalancer-protocol: \"udp\" is not one of tcp, http",
        ),
        (
            &[
                ("certificate-id", "c"),
                ("http-ports", "443,80"),
                ("tls-ports", "80,443"),
            ],
            "ports 80, 443 are in more than one",
        ),
        (&[("http-ports", "80,x")], "http-ports: \"x\" is not a port"),
        (&[("http3-port", "443")], "HTTP/3 needs a certificate"),
        (
            &[("http3-port", "443"), ("tls-passthrough", "1")],
            "HTTP/3 needs a certificate",
        ),
        (
            &[("type", "GLOBAL")],
            "do-loadbalancer-type: \"GLOBAL\" is not one of REGIONAL, REGIONAL_NETWORK",
        ),
        (&[("network", "PRIVATE")], "is not one of EXTERNAL, INTERNAL"),
        (
            &[("network", "INTERNAL"), ("network-stack", "DUALSTACK")],
            "network-stack: an internal load balancer",
        ),
        (
            &[("size-slug", "lb-huge")],
            "is not one of lb-small, lb-medium, lb-large",
        ),
        (&[("size-unit", "-1")], "size-unit: \"-1\" is not a whole number"),
        (
            &[("size-unit", "2"), ("size-slug", "lb-small")],
            "cannot be used together with size-slug",
        ),
        (
            &[("sticky-sessions-type", "cookies")],
            "sticky-sessions-cookie-name: missing",
        ),
        (
            &[
                ("sticky-sessions-type", "cookies"),
                ("sticky-sessions-cookie-name", "a"),
            ],
            "sticky-sessions-cookie-ttl: missing",
        ),
        (
            &[("redirect-http-to-https", "yes")],
            "redirect-http-to-https: \"yes\" is neither true nor false",
        ),
        (
            &[("http-idle-timeout-seconds", "10")],
            "10 is not between 30 and 600",
        ),
        (
            &[("healthcheck-check-interval-seconds", "1")],
            "1 is not between 3 and 300",
        ),
        (
            &[("override-health-check", ""), ("healthcheck-port", "81")],
            "healthcheck-port: 81 is not a TCP port",
        ),
        (
            &[("override-health-check", ""), ("healthcheck-port", "80,443")],
            "is not a whole number",
        ),
        (
            &[("override-health-check", ""), ("healthcheck-protocol", "grpc")],
            "is not one of tcp, http, https",
        ),
        (
            &[("allow-rules", "ip:1.2.3.4,1.2.3.5")],
            "allow-rules: \"1.2.3.5\" is not a rule",
        ),
        (
            &[("deny-rules", "cidr:10.0.0.0/40")],
            "deny-rules: \"cidr:10.0.0.0/40\" is not a rule",
        ),
        (
            &[("ip", "2001:db8::1"), ("name", "-x"), ("subnet-uuid", "y")],
            "is not a valid UUID",
        ),
    ];
    for (annotations, expected) in cases {
        let error = rules(&regional(&web(annotations))).unwrap_err();
        assert!(error.contains(expected), "{annotations:?}: {error}");
    }
    let several = rules(&regional(&web(&[
        ("ip", "x"),
        ("name", "-x"),
        ("subnet-uuid", "y"),
    ])))
    .unwrap_err();
    assert_eq!(several.matches("; ").count(), 2, "all at once: {several}");
    let mut odd = web(&[]);
    odd.ports[0].protocol = Protocol::Sctp;
    odd.ports[1].port = 50053;
    odd.source_ranges = Some(vec!["10.0.0.0".into()]);
    let error = rules(&regional(&odd)).unwrap_err();
    for part in ["protocol SCTP", "50053 is reserved", "\"10.0.0.0\" is not a CIDR"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
}

#[test]
fn a_network_load_balancer_keeps_the_ports() {
    let mut service = web(&[("protocol", "http"), ("certificate-id", "c")]);
    service.ports.push(ServicePort {
        protocol: Protocol::Udp,
        port: 53,
        node_port: 30053,
        ..ServicePort::default()
    });
    let reading = read(&service, &settings(&[]), None, None);
    let expected = ["tcp 80 -> tcp 80", "tcp 443 -> tcp 443", "udp 53 -> udp 53"];
    assert_eq!(rules(&reading).unwrap(), expected);
    assert_eq!(reading.ignored.len(), 2, "{:?}", reading.ignored);
    let regional = rules(&regional(&service)).unwrap();
    assert_eq!(
        regional[2], "udp 53 -> udp 30053",
        "UDP ports are UDP whatever the protocol"
    );
    let existing: Balancer = serde_json::from_value(json!({"id": "x", "type": "REGIONAL"})).unwrap();
    let kept = read(&web(&[]), &settings(&[]), Some(&existing), None);
    assert_eq!(
        kept.spec.kind,
        LbType::Regional,
        "an existing load balancer keeps its type"
    );
}

#[test]
fn health_checks_follow_the_traffic_policy_unless_overridden() {
    let check = |service: &ServiceView| {
        let reading = regional(service);
        assert_eq!(reading.invalid, []);
        let check = reading.spec.fields["health_check"].clone();
        let path = check["path"].as_str().unwrap_or("-").to_owned();
        format!(
            "{} {} {path} {}",
            check["protocol"],
            check["port"],
            reading.spec.write_only.plain_checks == Some(true)
        )
    };
    assert_eq!(check(&web(&[])), "\"http\" 10256 /healthz true");
    let mut local = web(&[]);
    local.external_policy = Policy::Local;
    local.health_check_node_port = 31000;
    assert_eq!(check(&local), "\"http\" 31000 /healthz true");
    const ON: (&str, &str) = ("override-health-check", "true");
    assert_eq!(check(&web(&[ON])), "\"tcp\" 30080 - false");
    assert_eq!(
        check(&web(&[ON, ("healthcheck-path", "/up")])),
        "\"http\" 30080 /up false"
    );
    let https = web(&[ON, ("healthcheck-protocol", "https"), ("healthcheck-port", "443")]);
    assert_eq!(check(&https), "\"https\" 30443 / false");
    assert_eq!(
        check(&web(&[("override-health-check", "false")])),
        "\"http\" 10256 /healthz true"
    );
    let ignored = regional(&web(&[("healthcheck-port", "443")])).ignored;
    assert!(
        ignored[0].problem.contains("without override-health-check"),
        "{ignored:?}"
    );
    let numbers = regional(&web(&[("healthcheck-unhealthy-threshold", "7")]))
        .spec
        .fields["health_check"]
        .clone();
    let thresholds = (
        &numbers["unhealthy_threshold"],
        &numbers["healthy_threshold"],
        &numbers["check_interval_seconds"],
    );
    assert_eq!(thresholds, (&json!(7), &json!(5), &json!(3)));
    let mut udp = web(&[ON]);
    udp.ports
        .iter_mut()
        .for_each(|port| port.protocol = Protocol::Udp);
    assert!(
        rules(&regional(&udp))
            .unwrap_err()
            .contains("no health check port")
    );
}

#[test]
fn numbers_of_health_checks_have_a_default_and_bounds() {
    for (key, field, default, [least, most]) in [
        ("check-interval-seconds", "check_interval_seconds", 3, [3, 300]),
        (
            "response-timeout-seconds",
            "response_timeout_seconds",
            5,
            [3, 300],
        ),
        ("unhealthy-threshold", "unhealthy_threshold", 3, [2, 10]),
        ("healthy-threshold", "healthy_threshold", 5, [2, 10]),
    ] {
        let key = format!("healthcheck-{key}");
        let number = |value: Option<&str>| {
            let annotations: Vec<_> = value.map(|value| (key.as_str(), value)).into_iter().collect();
            let reading = regional(&web(&annotations));
            rules(&reading).map(|_| reading.spec.fields["health_check"][field].clone())
        };
        assert_eq!(number(None), Ok(json!(default)), "{key}");
        for valid in [least, most] {
            assert_eq!(number(Some(&valid.to_string())), Ok(json!(valid)), "{key}");
        }
        for invalid in ["many", "", &(least - 1).to_string(), &(most + 1).to_string()] {
            let error = number(Some(invalid)).unwrap_err();
            let times = error.matches(&format!("do-loadbalancer-{key}: ")).count();
            assert_eq!(times, 1, "{invalid:?} is reported once: {error}");
        }
    }
}

#[test]
fn other_fields_follow_the_annotations() {
    let fields = |annotations: &[(&str, &str)]| regional(&web(annotations)).spec.fields;
    let none = fields(&[]);
    assert_eq!(
        (&none["size_unit"], &none["sticky_sessions"]),
        (&json!(1), &Value::Null)
    );
    assert_eq!(none["name"], "auidweb", "`a` and the UID without dashes");
    assert_eq!(none["firewall"], json!({"allow": [], "deny": []}));
    assert_eq!(fields(&[("size-slug", "lb-medium")])["size_unit"], 3);
    assert_eq!(fields(&[("size-unit", "0")])["size_unit"], 1);
    assert_eq!(fields(&[("size-unit", "200")])["size_unit"], 200);
    let rules = fields(&[
        ("allow-rules", " ip:1.2.3.4 ,, cidr:10.0.0.0/8"),
        ("deny-rules", "ip:::1"),
    ]);
    assert_eq!(
        rules["firewall"],
        json!({"allow": ["ip:1.2.3.4", "cidr:10.0.0.0/8"], "deny": ["ip:::1"]})
    );
    let mut ranges = web(&[("allow-rules", "ip:1.2.3.4")]);
    ranges.source_ranges = Some(vec![" 10.1.2.3/8 ".into()]);
    assert_eq!(
        regional(&ranges).spec.fields["firewall"]["allow"],
        json!(["cidr:10.0.0.0/8"])
    );
    let sticky = fields(&[
        ("sticky-sessions-type", "cookies"),
        ("sticky-sessions-cookie-name", "c"),
        ("sticky-sessions-cookie-ttl", "60"),
    ]);
    let cookies = json!({"type": "cookies", "cookie_name": "c", "cookie_ttl_seconds": 60});
    assert_eq!(sticky["sticky_sessions"], cookies);
    assert_eq!(
        fields(&[("sticky-sessions-type", "magic")])["sticky_sessions"],
        Value::Null
    );
    let create = regional(&web(&[("ip", " 203.0.113.5 "), ("network", "INTERNAL")]))
        .spec
        .create;
    assert_eq!(
        (&create["ip"], &create["network"]),
        (&json!("203.0.113.5"), &json!("INTERNAL"))
    );
    assert_eq!(
        hostname(&web(&[("hostname", "Web.Example")])).as_deref(),
        Some("web.example")
    );
}

/// A node with a droplet of this id: `p` private, `4` and `6` public.
fn node(id: u64, addresses: &str) -> ServiceNode {
    let address = |c: char| match c {
        'p' => NodeAddress::new(AddressType::InternalIP, "10.0.0.1"),
        '4' => NodeAddress::new(AddressType::ExternalIP, "203.0.113.1"),
        _ => NodeAddress::new(AddressType::ExternalIP, "2001:db8::1"),
    };
    ServiceNode {
        view: Arc::new(NodeView {
            name: format!("node-{id}"),
            provider_id: Some(format!("digitalocean://{id}")),
            ..NodeView::default()
        }),
        addresses: addresses.chars().map(address).collect(),
        eligible: true,
        ready: false,
    }
}

#[test]
fn only_droplets_with_suitable_addresses_are_backends() {
    use LbType::{Regional, RegionalNetwork as Network};
    let nodes: NodeSet = [
        node(1, "p4"),
        node(2, "p46"),
        node(3, "p"),
        node(4, "p6"),
        node(5, ""),
    ]
    .into_iter()
    .collect();
    let droplets = |kind, internal| {
        let found = backends(kind, internal, &nodes, &BTreeMap::new(), &BTreeSet::new());
        (found.droplets.unwrap(), found.unreachable)
    };
    assert_eq!(droplets(Regional, false), (vec![1, 2, 3], 2));
    assert_eq!(droplets(Network, false), (vec![1, 2], 3));
    assert_eq!(droplets(Regional, true), (vec![1, 2, 3, 4, 5], 0));
    assert_eq!(droplets(Network, true), (vec![1, 2, 3, 4, 5], 0));
    let stack = |kind, internal, nodes: &[ServiceNode]| {
        let nodes = nodes.iter().cloned().collect();
        backends(kind, internal, &nodes, &BTreeMap::new(), &BTreeSet::new()).stack
    };
    let (v4, dual) = (node(1, "p4"), node(2, "p46"));
    assert_eq!(stack(Regional, false, &[]), "DUALSTACK");
    assert_eq!(stack(Regional, true, std::slice::from_ref(&dual)), "IPV4");
    assert_eq!(stack(Network, false, std::slice::from_ref(&dual)), "DUALSTACK");
    assert_eq!(stack(Network, false, &[v4, dual]), "IPV4");
    assert_eq!(stack(Network, false, &[]), "IPV4");
}

#[test]
fn a_node_counts_once_and_only_with_a_droplet_that_exists() {
    let mut by_name = node(7, "p4");
    let mut view = (*by_name.view).clone();
    (view.name, view.provider_id) = ("nameless".to_owned(), None);
    by_name.view = Arc::new(view);
    let mut malformed = node(8, "p4");
    let mut view = (*malformed.view).clone();
    (view.name, view.provider_id) = ("odd".to_owned(), Some("digitalocean://8x".to_owned()));
    malformed.view = Arc::new(view);
    let mut again = node(1, "p4");
    let mut view = (*again.view).clone();
    view.name = "again".to_owned();
    again.view = Arc::new(view);
    let nodes: NodeSet = [node(1, "p4"), again, node(2, "p4"), by_name, malformed]
        .into_iter()
        .collect();
    let names = BTreeMap::from([("nameless".to_owned(), 7)]);
    let found = backends(
        LbType::RegionalNetwork,
        false,
        &nodes,
        &names,
        &BTreeSet::from([2]),
    );
    assert_eq!(found.droplets, Some(vec![1, 7]));
}

#[test]
fn a_load_balancer_is_created_only_with_a_usable_node() {
    let spec = |annotations: &[(&str, &str)]| read(&web(annotations), &settings(&[]), None, None).spec;
    let of = |nodes: &[ServiceNode]| {
        let nodes = nodes.iter().cloned().collect();
        backends(
            LbType::RegionalNetwork,
            false,
            &nodes,
            &BTreeMap::new(),
            &BTreeSet::new(),
        )
    };
    assert_eq!(uncreatable(&spec(&[]), &of(&[node(1, "p4")])), None);
    let (text, event) = uncreatable(&spec(&[]), &of(&[node(1, "p")])).unwrap();
    assert!(
        text.contains("1 nodes have no public IPv4 address") && event,
        "{text}"
    );
    let (text, event) = uncreatable(&spec(&[]), &of(&[])).unwrap();
    assert!(
        text == "no ready nodes available for load balancer" && !event,
        "{text}"
    );
    let nodes: Vec<_> = (1..6).map(|id| node(id, "p4")).collect();
    let (text, event) = uncreatable(&spec(&[("network-stack", "DUALSTACK")]), &of(&nodes)).unwrap();
    assert!(text.ends_with("node-1, node-2, node-3, ..") && event, "{text}");
}
