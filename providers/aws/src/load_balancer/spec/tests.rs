#![allow(clippy::unwrap_used)]

use ccm_core::{
    load_balancer::{Policy, ServiceType},
    testkit::{cluster as testkit, nodes::service_node},
};

use super::*;
use crate::config::SharedProbe;

const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";

const SETTINGS: LoadBalancing = LoadBalancing {
    disable_security_group_ingress: false,
    elb_security_group: None,
    shared_probe: None,
    managed_security_groups: false,
    unsupported_modes: Vec::new(),
    keeps_health_checks: false,
    default_type: Flavor::Classic,
};

/// A Service with the port 443 and these annotations, written as `type=nlb; scheme=internal`.
fn service(annotations: &str) -> ServiceView {
    let mut service = testkit::service("s", &[443]);
    service.ports[0].name = "https".into();
    testkit::annotate_all(&mut service, PREFIX, annotations);
    service
}

/// A Service with the external traffic policy Local.
fn local(annotations: &str) -> ServiceView {
    ServiceView {
        external_policy: Policy::Local,
        health_check_node_port: 31000,
        ..service(annotations)
    }
}

fn read(annotations: &str, flavor: Flavor) -> Spec {
    Spec::read(&service(annotations), &SETTINGS, flavor)
}

/// Protocol, port, path, interval and thresholds, as they are sent.
fn checked(service: &ServiceView, settings: &LoadBalancing) -> String {
    let spec = Spec::read(service, settings, Flavor::Network);
    assert_eq!(spec.invalid, [], "{service:?}");
    let text = |name: &str| match spec.target_group.get(name) {
        Some(Value::String(text)) => text.clone(),
        value => value.map(ToString::to_string).unwrap_or_default(),
    };
    let [protocol, port, path, interval] =
        ["protocol", "port", "path", "interval"].map(|name| text(&format!("health_check_{name}")));
    let [healthy, unhealthy] = [fields::HEALTHY_THRESHOLD, fields::UNHEALTHY_THRESHOLD].map(text);
    format!("{protocol}:{port}{path} {interval} {healthy}/{unhealthy}")
}

/// A case such as `local; healthcheck-port=81 => TCP:81`: a Service, whether the probe is shared, and the expected text.
fn case(case: &str) -> (ServiceView, bool, &str) {
    let (annotations, expected) = case.split_once("=> ").unwrap();
    let (words, annotations): (Vec<_>, Vec<_>) =
        annotations.split("; ").partition(|word| !word.contains('='));
    let has = |word: &str| words.iter().any(|known| known.trim() == word);
    let annotations = annotations.join("; ");
    let annotations = annotations.trim();
    let service = if has("local") {
        local(annotations)
    } else {
        service(annotations)
    };
    (service, has("shared"), expected)
}

#[test]
fn the_health_check_is_that_of_upstream() {
    let shared = LoadBalancing {
        shared_probe: Some(SharedProbe {
            port: 10256,
            path: "/healthz".to_owned(),
        }),
        ..SETTINGS
    };
    for text in [
        "=> TCP:traffic-port 30 3/3",
        "local => HTTP:31000/healthz 10 2/2",
        "local; healthcheck-protocol=TCP; healthcheck-port=8001 => TCP:8001 10 2/2",
        "healthcheck-protocol=Http => HTTP:traffic-port/ 30 3/3",
        "healthcheck-interval=23 => TCP:traffic-port 23 3/3",
        "healthcheck-healthy-threshold=4; healthcheck-unhealthy-threshold=5 => TCP:traffic-port 30 4/5",
        "healthcheck-protocol=https; healthcheck-port=81; healthcheck-path=/x => HTTPS:81/x 30 3/3",
        "shared; healthcheck-protocol=https; healthcheck-port=81; healthcheck-path=/x => HTTP:10256/healthz 30 3/3",
        "shared; local => HTTP:31000/healthz 10 2/2",
    ] {
        let (service, is_shared, expected) = case(text);
        let settings = if is_shared { &shared } else { &SETTINGS };
        assert_eq!(checked(&service, settings), expected, "{text}");
    }
}

#[test]
fn the_health_check_of_a_classic_load_balancer_is_that_of_upstream() {
    for text in [
        "=> TCP:30443",
        "healthcheck-port=traffic-port => TCP:30443",
        "healthcheck-port=81 => TCP:81",
        "local => HTTP:31000/healthz",
        "local; healthcheck-port=traffic-port; healthcheck-protocol=TCP => TCP:30443",
        "local; healthcheck-port=traffic-port => HTTP:30443/healthz",
    ] {
        let (service, _, expected) = case(text);
        let spec = Spec::read(&service, &SETTINGS, Flavor::Classic);
        assert_eq!(spec.invalid, [], "{text}");
        assert_eq!(spec.balancer[fields::HEALTH_CHECK], expected, "{text}");
    }
}

#[test]
fn a_timeout_that_aws_would_refuse_is_ignored() {
    let read = |timeout: &str, interval: &str| {
        let annotations = format!("healthcheck-timeout={timeout}; healthcheck-interval={interval}");
        let spec = self::read(&annotations, Flavor::Network);
        assert_eq!(spec.invalid, []);
        let timeout = spec.target_group.get(fields::HEALTH_CHECK_TIMEOUT);
        let timeout = timeout.and_then(Value::as_i64);
        (timeout, spec.ignored.len())
    };
    assert_eq!(read("10", "10"), (Some(10), 0));
    for (timeout, interval) in [("30", "10"), ("1", "10"), ("150", "200")] {
        assert_eq!(read(timeout, interval), (None, 1), "{timeout} {interval}");
    }
}

#[test]
fn only_the_spelling_of_upstream_changes_listeners() {
    let listeners = |backend: &str| {
        let spec = read(&format!("backend-protocol={backend}"), Flavor::Classic);
        (spec.ports[0].protocol, spec.ports[0].target_protocol)
    };
    assert_eq!(listeners("http"), ("HTTP", "HTTP"));
    assert_eq!(listeners("HTTP"), ("TCP", "TCP"));
    let proxy = |flavor| {
        let spec = read("proxy-protocol=v2", flavor);
        (spec.proxy_protocol, spec.ignored.len(), spec.invalid.len())
    };
    assert_eq!(proxy(Flavor::Network), (false, 1, 0));
    assert_eq!(proxy(Flavor::Classic), (false, 0, 1));
}

#[test]
fn tls_is_chosen_by_number_or_name() {
    let protocols = |ports: &str, backend: &str| {
        let annotations = format!("ssl-cert=arn:1,arn:2; ssl-ports={ports}; backend-protocol={backend}");
        let spec = read(&annotations, Flavor::Network);
        (spec.ports[0].protocol, spec.ports[0].target_protocol)
    };
    for (ports, backend, expected) in [
        ("*", "", ("TLS", "TCP")),
        ("", "ssl", ("TLS", "TLS")),
        ("80,443", "https", ("TLS", "TCP")),
        ("80, 443", "https", ("TCP", "TCP")),
        ("https", "ssl", ("TLS", "TLS")),
        ("http", "ssl", ("TCP", "TCP")),
    ] {
        assert_eq!(protocols(ports, backend), expected, "{ports} {backend}");
    }
}

#[test]
fn a_load_balancer_is_dual_stack_if_it_can_be() {
    let spec = |flavor, port: Protocol, annotations: &str| {
        let mut service = service(annotations);
        service.ip_families = [IpFamily::V6, IpFamily::V4].into();
        service.ports[0].protocol = port;
        let spec = Spec::read(&service, &SETTINGS, flavor);
        (spec.ranges.join(" "), spec.invalid.len())
    };
    let dual_stack = "ip-address-type=dualstack";
    let (v4, both) = ("0.0.0.0/0".to_owned(), "0.0.0.0/0 ::/0".to_owned());
    assert_eq!(spec(Flavor::Network, Protocol::Tcp, ""), (both.clone(), 0));
    assert_eq!(spec(Flavor::Network, Protocol::Udp, ""), (v4.clone(), 0));
    assert_eq!(spec(Flavor::Network, Protocol::Udp, dual_stack), (both, 1));
    assert_eq!(spec(Flavor::Classic, Protocol::Tcp, ""), (v4, 0));
    let only = ServiceView {
        ip_families: [IpFamily::V6].into(),
        ..service("")
    };
    let invalid = Spec::read(&only, &SETTINGS, Flavor::Network).invalid;
    assert!(invalid.len() == 1 && invalid[0].message.contains("add IPv4"), "{invalid:?}");
}

#[test]
fn node_labels_are_read_as_upstream_reads_them() {
    let mut node = ccm_core::testkit::nodes::service_node("n", "aws:///a/i-00000001", Vec::new());
    std::sync::Arc::make_mut(&mut node.view).labels = [("pool", "a")].into_iter().collect();
    let cluster = ClusterView {
        nodes: [node].into_iter().collect(),
        ..ClusterView::default()
    };
    for (labels, is_target) in [("pool=a=b, =x", true), ("pool,", true), ("pool=b", false)] {
        let mut service = service("");
        testkit::annotate(&mut service, a::NODE_LABELS, Some(labels));
        let found = instances(&service, &cluster, &BTreeSet::new()).unwrap();
        assert_eq!(!found.is_empty(), is_target, "{labels}");
    }
}

#[test]
fn values_that_upstream_ignores_are_defaults() {
    let empty = "cross-zone-load-balancing-enabled=; access-log-enabled=; access-log-emit-interval=; \
        connection-idle-timeout=; connection-draining-enabled=; connection-draining-timeout=; backend-protocol=SSL";
    for flavor in [Flavor::Network, Flavor::Classic] {
        assert_eq!(read(empty, flavor).invalid, []);
    }
    let unknown = "type=nl; nlb-target-type=ip; ip-address-type=ipv6; alpn-policy=h3; attributes=idle=1";
    let spec = read(unknown, Flavor::Network);
    assert_eq!((spec.invalid.len(), spec.ignored.len()), (0, 5));
    assert!(!spec.dual_stack && !spec.listener.contains_key(fields::ALPN_POLICY));
    let spec = read(empty, Flavor::Classic);
    assert_eq!(spec.balancer[fields::HEALTH_CHECK], "SSL:30443");
}

#[test]
fn all_invalid_values_are_reported_at_once() {
    let wrong = "scheme=public; subnets= ,; extra-security-groups=sg-1; cross-zone-load-balancing-enabled=perhaps; \
        access-log-enabled=yes; target-group-attributes=stickiness.enabled=true; healthcheck-protocol=quic; \
        healthcheck-port=http; healthcheck-healthy-threshold=11; healthcheck-unhealthy-threshold=1; \
        healthcheck-timeout=often; healthcheck-interval=1";
    let named = |annotations: &str| -> BTreeSet<String> {
        let invalid = read(annotations, Flavor::Network).invalid;
        invalid.iter().map(|invalid| invalid.field.to_string()).collect()
    };
    let all = named(wrong);
    for annotation in wrong.split("; ") {
        let (name, _) = annotation.split_once('=').unwrap();
        let key = format!("{PREFIX}{name}");
        assert!(all.contains(&key), "{key}");
        assert_eq!(named(annotation), [key].into(), "{annotation}");
    }
    let affinity = ServiceView {
        session_affinity: SessionAffinity::ClientIp {
            timeout_seconds: None,
        },
        load_balancer_ip: "192.0.2.1".into(),
        source_ranges: Some(vec!["x".into()]),
        ports: Vec::new(),
        ..service("")
    };
    assert_eq!(Spec::read(&affinity, &SETTINGS, Flavor::Network).invalid.len(), 4);
}

#[test]
fn invalid_values_of_classic_load_balancers_are_reported() {
    let wrong = "backend-protocol=quic; ssl-cert=arn:1; connection-idle-timeout=0; connection-draining-enabled=maybe; \
        connection-draining-timeout=1h; access-log-emit-interval=7m; \
        target-group-attributes=preserve_client_ip.enabled=true; healthcheck-protocol=quic; healthcheck-port=http; \
        proxy-protocol=true";
    let invalid = read(wrong, Flavor::Classic).invalid;
    assert_eq!(invalid.len(), 9, "all but the attributes of target groups: {invalid:#?}");
}

#[test]
fn a_service_with_our_hostname_is_kept_if_it_requests_another_controller() {
    use Flavor::{Classic, Elsewhere, Network};
    for (annotations, default_type, expected) in [
        ("", Classic, Classic),
        ("", Network, Network),
        ("", Elsewhere, Elsewhere),
        ("type=nlb", Elsewhere, Network),
        ("type=external", Network, Elsewhere),
        ("type=NLB", Classic, Classic),
    ] {
        let settings = LoadBalancing {
            default_type,
            ..SETTINGS
        };
        assert_eq!(Flavor::of(&service(annotations), &settings), expected, "{annotations}");
    }
    let mut served = service("type=external");
    assert_eq!(own_hostname(&served), None);
    let hostname = Some("auids-0123.elb.us-east-1.amazonaws.com".into());
    served.ingress = vec![ccm_core::load_balancer::Ingress {
        hostname,
        ..Default::default()
    }];
    assert!(own_hostname(&served).is_some());
}

#[test]
fn what_a_service_of_another_controller_had_is_deleted_when_it_leaves_its_type() {
    let mut service = service("type=external");
    service.finalizers = vec![ServiceView::FINALIZER.into()];
    assert_eq!(claims(&service, &SETTINGS), Claim::Elsewhere);
    service.deleting = true;
    assert_eq!(claims(&service, &SETTINGS), Claim::Elsewhere);
    service.service_type = ServiceType::ClusterIp;
    assert_eq!(claims(&service, &SETTINGS), Claim::Ours);
    service.finalizers.clear();
    assert_eq!(claims(&service, &SETTINGS), Claim::Elsewhere);
}

#[test]
fn the_narrower_of_two_settings_about_the_exposure_counts() {
    for (annotations, internal, warnings) in [
        ("", false, 0),
        ("internal=true", true, 0),
        ("internal=false", false, 0),
        ("scheme=internal", true, 0),
        ("scheme=internet-facing", false, 0),
        ("internal=true; scheme=internal", true, 0),
        ("internal=false; scheme=internet-facing", false, 0),
        ("internal=true; scheme=internet-facing", true, 1),
        ("internal=false; scheme=internal", true, 1),
    ] {
        for flavor in [Flavor::Network, Flavor::Classic] {
            let spec = read(annotations, flavor);
            assert_eq!((spec.internal, spec.ignored.len()), (internal, warnings), "{annotations}");
        }
    }
}

#[test]
fn an_annotation_with_narrower_ranges_than_the_field_is_reported() {
    let mut service = service("");
    testkit::annotate(&mut service, SourceRanges::ANNOTATION, Some("10.1.0.0/16"));
    let ignored = |service: &ServiceView| Spec::read(service, &SETTINGS, Flavor::Network).ignored;
    assert_eq!(ignored(&service), []);
    service.source_ranges = Some(vec!["10.0.0.0/8".into()]);
    assert_eq!(ignored(&service)[0].key, SourceRanges::ANNOTATION);
}

#[test]
fn nodes_that_cannot_be_targets_are_named() {
    let node = |name: &str, id: &str| service_node(name, id, Vec::new());
    let nodes = [
        node("a", "aws:///us-east-1a/i-00000001"),
        node("b", "openstack:///1"),
        node("c", "aws:///us-east-1a/web"),
        node("d", "aws:///us-east-1a/fargate-ip-192-0-2-7.internal"),
        node("e", ""),
        node("f", "kind://f"),
        node("g", "kind://g"),
    ];
    let cluster = ClusterView {
        nodes: nodes.into_iter().collect(),
        ..ClusterView::default()
    };
    let unusable = unusable_nodes(&service(""), &cluster);
    assert_eq!(unusable.len(), 4, "{unusable:?}");
    let text = NodeLeftOut::list(&unusable);
    assert!(
        text.starts_with("b (its provider ID \"openstack:///1\" is not of AWS); c (provider ID"),
        "{text}"
    );
    assert!(text.ends_with("f (its provider ID \"kind://f\" is not of AWS); and 1 more"), "{text}");
    // A node without the labels would not be a target anyway.
    assert_eq!(unusable_nodes(&service("target-node-labels=pool=a"), &cluster), []);
}

#[test]
fn values_that_aws_refuses_are_refused() {
    let refused = |annotations: &str, flavor| -> Vec<_> {
        let invalid = read(annotations, flavor).invalid;
        invalid.iter().map(|invalid| invalid.field.to_string().replace(PREFIX, "")).collect()
    };
    let bucket = "access-log-s3-bucket-name";
    for flavor in [Flavor::Network, Flavor::Classic] {
        assert_eq!(refused("access-log-enabled=true", flavor), [bucket]);
        assert_eq!(refused(&format!("access-log-enabled=true; {bucket}=b"), flavor), [""; 0]);
    }
    let logs = format!("access-log-enabled=true; {bucket}=b; access-log-emit-interval");
    for (interval, is_valid) in [("5", true), ("60", true), ("30", false)] {
        let found = refused(&format!("{logs}={interval}"), Flavor::Classic);
        assert_eq!(found.is_empty(), is_valid, "{interval}: {found:?}");
    }
    for (check, is_valid) in [
        ("healthcheck-interval=5", false),
        ("healthcheck-interval=6", true),
        ("healthcheck-timeout=10", false),
        ("healthcheck-timeout=20; healthcheck-interval=30", true),
    ] {
        let found = refused(check, Flavor::Classic);
        assert_eq!(found.is_empty(), is_valid, "{check}: {found:?}");
    }
    for (check, timeout) in [
        ("healthcheck-interval=5", Some(5)),
        ("healthcheck-interval=10", None),
        ("healthcheck-interval=5; healthcheck-protocol=http", Some(5)),
        ("healthcheck-interval=6; healthcheck-protocol=http", None),
        ("healthcheck-interval=5; healthcheck-timeout=3", Some(3)),
    ] {
        let spec = read(check, Flavor::Network);
        let found = spec.target_group.get(fields::HEALTH_CHECK_TIMEOUT).and_then(Value::as_i64);
        assert_eq!(found, timeout, "{check}");
    }
}

#[test]
fn a_second_equals_sign_ends_the_value_of_a_tag() {
    let spec = read("additional-resource-tags=a=b=c,d", Flavor::Network);
    assert_eq!(
        spec.tags,
        [("a", "b"), ("d", "")].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    );
}
