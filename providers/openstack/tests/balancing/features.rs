//! The features that Services can request, and their effects.

use ccm_core::load_balancer::{IpMode, Policy, Protocol, ServiceView, SessionAffinity};
use ccm_sim::openstack::{BalancerState, ObjectState, SecretSpec, Settings};
use serde_json::{Value, json};

use crate::stage::{Stage, annotate, service};

pub(crate) fn annotation_key(name: &str) -> String {
    format!("loadbalancer.openstack.org/{name}")
}

pub(crate) fn web(ports: &[u16], annotations: &[(&str, &str)]) -> ServiceView {
    let mut web = service("web", ports);
    for (name, value) in annotations {
        annotate(&mut web, &annotation_key(name), Some(value));
    }
    web
}

/// A cloud with other settings, and a cluster of two nodes on it.
pub(crate) async fn cloud(more: &str, change: impl FnOnce(&mut Settings)) -> Stage {
    let mut stage = Stage::new(2, more).await;
    stage.sim.configure(change);
    stage.restart().await;
    stage
}

pub(crate) async fn served(stage: &mut Stage, web: ServiceView) -> BalancerState {
    stage.services = vec![web];
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    quiet(stage).await;
    balancer
}

/// The observed state is as desired, also for a new process.
pub(crate) async fn quiet(stage: &mut Stage) {
    stage.restart().await;
    stage.sim.clear_calls();
    stage.settle().await;
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
}

pub(crate) fn warnings(stage: &Stage) -> Vec<&'static str> {
    let reports = stage.reports.iter();
    reports.flat_map(|report| &report.events).map(|warning| warning.reason).collect()
}

/// One attribute of each object.
fn all<'a>(objects: &'a [ObjectState], attribute: &str) -> Vec<&'a Value> {
    objects.iter().map(|object| &object.attributes[attribute]).collect()
}

#[tokio::test]
async fn protocols_of_listeners_pools_and_monitors() {
    let mut stage = cloud("create-monitor = true", |_| {}).await;
    let secret = stage.sim.create_secret(&SecretSpec {
        name: "tls".into(),
        container: true,
        ..SecretSpec::default()
    });
    let secret = secret.unwrap();
    type Case<'a> = (Protocol, &'a [(&'a str, &'a str)], [&'a str; 3]);
    let cases: [Case<'_>; 7] = [
        (Protocol::Tcp, &[], ["TCP", "TCP", "TCP"]),
        (Protocol::Udp, &[], ["UDP", "UDP", "UDP-CONNECT"]),
        (Protocol::Sctp, &[], ["SCTP", "SCTP", "SCTP"]),
        (Protocol::Tcp, &[("x-forwarded-for", "true")], ["HTTP", "HTTP", "TCP"]),
        (Protocol::Tcp, &[("proxy-protocol", "true")], ["TCP", "PROXY", "TCP"]),
        (Protocol::Tcp, &[("proxy-protocol", "v2")], ["TCP", "PROXYV2", "TCP"]),
        (
            Protocol::Tcp,
            &[("default-tls-container-ref", &secret)],
            ["TERMINATED_HTTPS", "HTTP", "TCP"],
        ),
    ];
    // Each combination follows the one before, or starts without a load balancer.
    for recreate in [false, true] {
        for (protocol, annotations, expected) in &cases {
            if recreate {
                stage.services.clear();
                for balancer in stage.balancers() {
                    stage.sim.delete_object(&balancer.loadbalancer.id).unwrap();
                }
                stage.restart().await;
            }
            let mut desired = web(&[443], annotations);
            desired.ports[0].protocol = *protocol;
            if let Some(before) = stage.services.first() {
                for key in ["load-balancer-id", "load-balancer-address"].map(annotation_key) {
                    annotate(&mut desired, &key, before.annotation(&key));
                }
                desired.ingress.clone_from(&before.ingress);
            }
            let balancer = served(&mut stage, desired).await;
            let found = [
                all(&balancer.listeners, "protocol"),
                all(&balancer.pools, "protocol"),
                all(&balancer.healthmonitors, "type"),
            ];
            assert_eq!(
                found,
                expected.map(|one| json!(one)).each_ref().map(|one| vec![one]),
                "{annotations:?}"
            );
            let listener = &balancer.listeners[0].attributes;
            let forwarded = annotations.first().is_some_and(|(key, _)| *key == "x-forwarded-for");
            let inserted = listener["insert_headers"].get("X-Forwarded-For");
            assert_eq!(inserted, forwarded.then(|| json!("true")).as_ref(), "{listener:?}");
            let tls = listener.get("default_tls_container_ref").and_then(Value::as_str);
            assert_eq!(tls == Some(&secret), expected[0] == "TERMINATED_HTTPS", "{listener:?}");
            assert_eq!(balancer.members.len(), 2);
        }
    }
}

#[tokio::test]
async fn one_port_number_for_tcp_and_udp() {
    let mut stage = cloud("", |_| {}).await;
    let mut dns = web(&[53, 53], &[]);
    dns.ports[1].protocol = Protocol::Udp;
    let balancer = served(&mut stage, dns).await;
    assert_eq!((balancer.listeners.len(), balancer.members.len()), (2, 4));
}

#[tokio::test]
async fn numbers_of_listeners_at_first_and_later() {
    let mut stage = cloud("", |_| {}).await;
    let names = [
        ("connection-limit", "connection_limit", -1),
        ("timeout-client-data", "timeout_client_data", 50_000),
        ("timeout-member-connect", "timeout_member_connect", 5_000),
        ("timeout-member-data", "timeout_member_data", 50_000),
        ("timeout-tcp-inspect", "timeout_tcp_inspect", 0),
    ];
    let values: Vec<_> = (0..names.len()).map(|index| (1000 + index).to_string()).collect();
    let given: Vec<_> = names.iter().zip(&values).map(|((key, ..), value)| (*key, value.as_str())).collect();
    let balancer = served(&mut stage, web(&[80], &given)).await;
    for ((_, attribute, _), value) in names.iter().zip(&values) {
        assert_eq!(balancer.listeners[0].attributes[*attribute].to_string(), *value, "{attribute}");
    }
    for (key, ..) in names {
        annotate(stage.service("web"), &annotation_key(key), None);
    }
    stage.settle().await;
    let balancer = stage.balancers().remove(0);
    for (_, attribute, default) in names {
        assert_eq!(balancer.listeners[0].attributes[attribute], json!(default), "{attribute}");
    }
    assert_eq!(stage.sim.call_counts()["loadbalancer_listener_update"], 1);
    annotate(stage.service("web"), &annotation_key("timeout-client-data"), Some("-1"));
    stage.settle().await;
    stage.assert_complaints(&["timeout-client-data: -1"]);
}

#[tokio::test]
async fn clients_by_field_and_by_annotation() {
    let mut stage = cloud("", |_| {}).await;
    let mut desired = web(&[80], &[]);
    annotate(
        &mut desired,
        "service.beta.kubernetes.io/load-balancer-source-ranges",
        Some("192.168.32.1/24"),
    );
    let balancer = served(&mut stage, desired).await;
    assert_eq!(balancer.listeners[0].attributes["allowed_cidrs"], json!(["192.168.32.0/24"]));
    stage.service("web").source_ranges = Some(vec!["10.0.0.0/8".into(), "10.1.2.3/8".into()]);
    stage.settle().await;
    assert_eq!(stage.balancers()[0].listeners[0].attributes["allowed_cidrs"], json!(["10.0.0.0/8"]));
    quiet(&mut stage).await;
}

#[tokio::test]
async fn monitors_come_change_and_go() {
    let mut stage = cloud("monitor-delay = 7s\nmonitor-timeout = 4s", |_| {}).await;
    let balancer = served(&mut stage, web(&[80], &[])).await;
    assert!(balancer.healthmonitors.is_empty());
    let paces = [
        (vec![("enable-health-monitor", "true")], [7, 4, 1, 3]),
        (
            vec![
                ("health-monitor-delay", "9"),
                ("health-monitor-timeout", "8"),
                ("health-monitor-max-retries", "2"),
                ("health-monitor-max-retries-down", "5"),
            ],
            [9, 8, 2, 5],
        ),
    ];
    for (annotations, expected) in paces {
        for (key, value) in annotations {
            annotate(stage.service("web"), &annotation_key(key), Some(value));
        }
        stage.settle().await;
        let monitor = stage.balancers().remove(0).healthmonitors.remove(0).attributes;
        let found =
            ["delay", "timeout", "max_retries", "max_retries_down"].map(|key| monitor[key].as_i64().unwrap());
        assert_eq!(found, expected);
    }
    // Nodes are only asked if only some of them have endpoints.
    let web = stage.service("web");
    (web.external_policy, web.health_check_node_port) = (Policy::Local, 32000);
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    let monitor = &balancer.healthmonitors[0].attributes;
    let found =
        ["type", "url_path", "http_method", "expected_codes"].map(|key| monitor[key].as_str().unwrap());
    assert_eq!(found, ["HTTP", "/healthz", "GET", "200"]);
    assert_eq!(all(&balancer.members, "monitor_port"), [&json!(32000); 2]);
    quiet(&mut stage).await;
    // A user's name stays: names are written only once.
    let name = json!({"name": "mine"});
    let id = &balancer.healthmonitors[0].id;
    stage.sim.patch_object(id, name.as_object().unwrap()).unwrap();
    stage.restart().await;
    quiet(&mut stage).await;
    assert_eq!(stage.balancers()[0].healthmonitors[0].name, "mine");
    annotate(stage.service("web"), &annotation_key("enable-health-monitor"), Some("false"));
    stage.settle().await;
    let balancer = stage.balancers().remove(0);
    assert!(balancer.healthmonitors.is_empty());
    assert_eq!(all(&balancer.members, "monitor_port"), [&Value::Null; 2]);
    quiet(&mut stage).await;
}

#[tokio::test]
async fn an_old_octavia_gets_only_known_attributes() {
    for (minor, ignored) in [
        (
            1,
            vec![
                "LoadBalancerSourceRangesIgnored",
                "LoadBalancerAvailabilityZonesIgnored",
            ],
        ),
        (
            5,
            vec![
                "LoadBalancerSourceRangesIgnored",
                "LoadBalancerAvailabilityZonesIgnored",
            ],
        ),
        (12, vec!["LoadBalancerAvailabilityZonesIgnored"]),
        (14, vec![]),
    ] {
        let mut stage = cloud("create-monitor = true", |settings| {
            settings.load_balancing.max_minor = minor;
        })
        .await;
        stage.sim.create_balancer_zone("az1", true).unwrap();
        let flavor = stage.sim.create_balancer_flavor("big", true).unwrap();
        let mut desired = web(&[80], &[("availability-zone", "az1"), ("flavor-id", &flavor)]);
        desired.source_ranges = Some(vec!["10.0.0.0/8".into()]);
        let balancer = served(&mut stage, desired).await;
        let found: Vec<_> =
            warnings(&stage).into_iter().filter(|warning| warning.ends_with("Ignored")).collect();
        assert_eq!(found, ignored, "v2.{minor}");
        if minor == 14 {
            let attributes = &balancer.loadbalancer.attributes;
            assert_eq!(
                (&attributes["availability_zone"], &attributes["flavor_id"]),
                (&json!("az1"), &json!(flavor))
            );
        }
        stage.join();
        stage.settle().await;
        assert_eq!(stage.balancers()[0].members.len(), 3, "v2.{minor}");
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty(), "v2.{minor}");
    }
}

#[tokio::test]
async fn the_provider_ovn_only_passes_packets_on() {
    let conf = "lb-provider = ovn\nlb-method = SOURCE_IP_PORT\ncreate-monitor = true\nflavor-id = none\n\
                availability-zone = nowhere";
    for managed in [false, true] {
        let mut stage = cloud(&format!("{conf}\nmanage-security-groups = {managed}"), |_| {}).await;
        let mut desired = web(&[80], &[("timeout-client-data", "7")]);
        desired.source_ranges = Some(vec!["10.0.0.0/8".into()]);
        (desired.external_policy, desired.health_check_node_port) = (Policy::Local, 32000);
        let balancer = served(&mut stage, desired).await;
        assert_eq!(balancer.loadbalancer.attributes["provider"], json!("ovn"));
        assert_eq!(all(&balancer.healthmonitors, "type"), [&json!("TCP")]);
        // There, security groups restrict clients.
        let ignored = warnings(&stage).contains(&"LoadBalancerSourceRangesIgnored");
        assert_eq!(ignored, !managed);
        for (key, value) in [
            ("proxy-protocol", "true"),
            ("x-forwarded-for", "true"),
            ("default-tls-container-ref", "x"),
        ] {
            annotate(stage.service("web"), &annotation_key(key), Some(value));
            stage.settle().await;
            assert!(stage.complaints().join("").contains("ovn"), "{key}: {:?}", stage.complaints());
            annotate(stage.service("web"), &annotation_key(key), None);
        }
    }
}

#[tokio::test]
async fn a_load_balancer_keeps_the_features_of_its_own_provider() {
    let managed = "manage-security-groups = true";
    let mut stage = cloud(managed, |_| {}).await;
    let mut desired = web(&[80], &[("proxy-protocol", "true")]);
    desired.source_ranges = Some(vec!["10.0.0.0/8".into()]);
    served(&mut stage, desired).await;
    let ovn = format!("lb-provider = ovn\nlb-method = SOURCE_IP_PORT\n{managed}");
    stage.restart_with(&ovn).await;
    stage.service("web").ports = service("web", &[80, 443]).ports;
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(all(&balancer.pools, "protocol"), [&json!("PROXY"); 2]);
    assert_eq!(all(&balancer.listeners, "allowed_cidrs"), [&json!(["10.0.0.0/8"]); 2]);
}

#[tokio::test]
async fn one_call_for_each_thing_where_the_provider_needs_it() {
    let conf = "provider-requires-serial-api-calls = true\ncreate-monitor = true\ncascade-delete = false";
    let mut stage = cloud(conf, |_| {}).await;
    stage.services = vec![web(&[80, 443], &[])];
    stage.service("web").external_policy = Policy::Local;
    stage.service("web").health_check_node_port = 32000;
    stage.settle_well().await;
    let counts = stage.sim.call_counts();
    let count = |op: &str| counts.get(op).copied().unwrap_or_default();
    assert_eq!(count("loadbalancer_member_create"), 4, "{counts:?}");
    assert_eq!(count("loadbalancer_listener_create"), 2, "{counts:?}");
    assert_eq!(count("loadbalancer_members_update"), 0, "{counts:?}");
    let balancer = stage.balancers().remove(0);
    assert_eq!((balancer.members.len(), balancer.healthmonitors.len()), (4, 2));
    assert!(balancer.members.iter().all(|member| member.name.starts_with("member_node-")));
    assert_eq!(all(&balancer.members, "monitor_port"), [&json!(32000); 4]);
    quiet(&mut stage).await;
    for (policy, port, expected) in [
        (Policy::Cluster, 0, json!(null)),
        (Policy::Local, 32001, json!(32001)),
    ] {
        let service = stage.service("web");
        (service.external_policy, service.health_check_node_port) = (policy, port);
        stage.settle().await;
        let balancer = stage.balancers().remove(0);
        assert_eq!(all(&balancer.members, "monitor_port"), [&expected; 4]);
        let counts = stage.sim.call_counts();
        assert_eq!(counts["loadbalancer_member_update"], 4);
        assert_eq!(counts.get("loadbalancer_member_create"), None);
        quiet(&mut stage).await;
    }
    stage.nodes.remove(0);
    stage.join();
    stage.settle().await;
    assert_eq!(stage.balancers()[0].members.len(), 4);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.balancers().is_empty());
    assert_eq!(stage.sim.call_counts()["loadbalancer_listener_delete"], 2);
}

#[tokio::test]
async fn certificates_have_to_exist_where_barbican_keeps_them() {
    let missing = "https://barbican/v1/containers/6b0a5a2e-0000-4000-8000-000000000000";
    for (store, refused) in [("barbican", true), ("external", false)] {
        let mut stage = cloud(&format!("container-store = {store}"), |_| {}).await;
        stage.services = vec![web(&[443], &[("default-tls-container-ref", missing)])];
        stage.settle().await;
        let complaints = stage.complaints().join("");
        assert_eq!(complaints.contains("does not exist in Barbican"), refused, "{store}: {complaints}");
    }
}

#[tokio::test]
async fn statuses() {
    let mut stage =
        cloud("enable-ingress-hostname = true\ningress-hostname-suffix = example.org", |_| {}).await;
    served(&mut stage, web(&[80], &[])).await;
    let ip = stage.address("web");
    let mode = |stage: &mut Stage| stage.service("web").ingress[0].ip_mode;
    assert_eq!(mode(&mut stage), Some(IpMode::Vip));
    for (annotation, hostname) in [
        (("proxy-protocol", "true"), format!("{ip}.example.org")),
        (("hostname", "web.example.net"), "web.example.net".to_owned()),
    ] {
        annotate(stage.service("web"), &annotation_key(annotation.0), Some(annotation.1));
        stage.settle().await;
        let ingress = stage.service("web").ingress.clone();
        assert_eq!(ingress.len(), 1);
        assert_eq!(
            (ingress[0].ip.as_deref(), ingress[0].hostname.as_deref()),
            (None, Some(hostname.as_str()))
        );
        quiet(&mut stage).await;
    }
    let mut stage = cloud("", |_| {}).await;
    served(&mut stage, web(&[80], &[("proxy-protocol", "v1")])).await;
    assert_eq!(mode(&mut stage), Some(IpMode::Proxy));
    // The annotation precedes the config, in both directions.
    let ip = stage.address("web");
    let name = format!("{ip}.nip.io");
    for (config, value, shown) in [
        ("", "true", Some(name.as_str())),
        ("enable-ingress-hostname = true", "false", None),
        ("enable-ingress-hostname = true", "yes", Some(&name)),
        ("", "", None),
    ] {
        stage.configure(config);
        stage.restart().await;
        let key = annotation_key("enable-ingress-hostname");
        annotate(stage.service("web"), &key, Some(value));
        stage.settle_well().await;
        let ingress = stage.service("web").ingress.clone();
        assert_eq!(ingress[0].hostname.as_deref(), shown, "{config} {value:?}");
        assert_eq!(
            warnings(&stage).contains(&"LoadBalancerAnnotationIgnored"),
            ["yes", ""].contains(&value),
            "{:?}",
            warnings(&stage)
        );
    }
    assert_ne!(stage.address("web"), "");
}

#[tokio::test]
async fn the_proxy_protocol_is_for_tcp_ports_and_other_ports_are_served_without_it() {
    let mut both = service("web", &[443, 443]).ports;
    both[1].protocol = Protocol::Udp;
    both[1].node_port = 31443;
    // With both ports from the start, and with the UDP port added later.
    for later in [false, true] {
        let mut stage = cloud("create-monitor = true", |_| {}).await;
        let mut desired = web(&[443], &[("proxy-protocol", "true")]);
        if later {
            let before = served(&mut stage, desired).await;
            stage.sim.clear_calls();
            stage.service("web").ports.clone_from(&both);
            stage.settle_well().await;
            assert_eq!(stage.sim.call_counts().get("listener_update"), None);
            let listeners = &stage.balancers()[0].listeners;
            assert!(listeners.iter().any(|listener| listener.id == before.listeners[0].id));
        } else {
            desired.ports.clone_from(&both);
            served(&mut stage, desired).await;
        }
        assert_eq!(warnings(&stage), ["LoadBalancerProxyProtocolIgnored"]);
        stage.join();
        stage.settle_well().await;
        let balancer = stage.balancers().remove(0);
        let texts = |objects: &[ObjectState], field: &str| {
            let mut texts: Vec<_> = all(objects, field).into_iter().map(ToString::to_string).collect();
            texts.sort();
            texts
        };
        assert_eq!(texts(&balancer.listeners, "protocol"), ["\"TCP\"", "\"UDP\""]);
        assert_eq!(texts(&balancer.pools, "protocol"), ["\"PROXY\"", "\"UDP\""]);
        assert_eq!(texts(&balancer.healthmonitors, "type"), ["\"TCP\"", "\"UDP-CONNECT\""]);
        assert_eq!(balancer.members.len(), 2 * stage.nodes.len());
        assert_eq!(stage.service("web").ingress[0].ip_mode, Some(IpMode::Proxy));
        quiet(&mut stage).await;
    }
    // Without a TCP port, nodes may bypass the load balancer.
    let mut stage = cloud("", |_| {}).await;
    let mut desired = web(&[53], &[("proxy-protocol", "true")]);
    desired.ports[0].protocol = Protocol::Udp;
    served(&mut stage, desired).await;
    assert_eq!(stage.service("web").ingress[0].ip_mode, Some(IpMode::Vip));
}

#[tokio::test]
async fn session_persistence_follows_the_service_unless_someone_set_it_by_hand() {
    let mut stage = cloud("", |_| {}).await;
    let sticky = SessionAffinity::ClientIp {
        timeout_seconds: None,
    };
    let persistence = |stage: &Stage| {
        let pool = stage.balancers().remove(0).pools.remove(0);
        pool.attributes["session_persistence"]["type"].clone()
    };
    let mut desired = web(&[80], &[]);
    desired.session_affinity = sticky;
    served(&mut stage, desired).await;
    assert_eq!(persistence(&stage), "SOURCE_IP");
    stage.service("web").session_affinity = SessionAffinity::None;
    stage.settle_well().await;
    assert_eq!(persistence(&stage), Value::Null);
    stage.service("web").session_affinity = sticky;
    stage.settle_well().await;
    stage.service("web").session_affinity = SessionAffinity::None;
    stage.restart().await;
    stage.settle_well().await;
    assert_eq!(persistence(&stage), Value::Null);

    // The Go program leaves this one unchanged, too.
    let pool = stage.balancers().remove(0).pools.remove(0);
    let by_hand = json!({"session_persistence": {"type": "SOURCE_IP"}});
    stage.sim.patch_object(&pool.id, by_hand.as_object().unwrap()).unwrap();
    stage.restart().await;
    stage.sim.clear_calls();
    stage.join();
    stage.settle().await;
    assert_eq!(persistence(&stage), "SOURCE_IP");
    assert!(!stage.sim.call_counts().contains_key("pool_update"));
    stage.assert_complaints(&["session persistence"]);
}

#[tokio::test]
async fn pools_of_upstream_get_session_persistence_only_after_a_change_of_the_service() {
    let mut stage = cloud("", |_| {}).await;
    let balancer = served(&mut stage, web(&[80], &[])).await;
    let persistence = |stage: &Stage| {
        let pool = stage.balancers().remove(0).pools.remove(0);
        let persistence = pool.attributes.get("session_persistence");
        persistence.map_or(Value::Null, |persistence| persistence["type"].clone())
    };
    let tags = |stage: &Stage| {
        let balancer = stage.balancers().remove(0).loadbalancer;
        let tags: Vec<String> = serde_json::from_value(balancer.attributes["tags"].clone()).unwrap();
        tags
    };
    let sticky = SessionAffinity::ClientIp {
        timeout_seconds: None,
    };
    // As upstream leaves it: without our tag, and the Service was changed after the pool was created.
    let mut of_upstream = tags(&stage);
    of_upstream.retain(|tag| !tag.starts_with("kube_cluster_id_"));
    let of_upstream = json!({"tags": of_upstream});
    stage
        .sim
        .patch_object(&balancer.loadbalancer.id, of_upstream.as_object().unwrap())
        .unwrap();
    stage.service("web").session_affinity = sticky;
    stage.restart().await;
    stage.sim.clear_calls();
    stage.settle().await;
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
    stage.assert_complaints(&["session persistence"]);

    // The first write adds our tag, and the record for the next process.
    let record = "kube_session_affinity_not_applied".to_owned();
    stage.join();
    for _ in 0..2 {
        stage.settle().await;
        assert_eq!(persistence(&stage), Value::Null);
        assert!(tags(&stage).contains(&record), "{:?}", tags(&stage));
        stage.assert_complaints(&["session persistence"]);
        stage.restart().await;
    }
    stage.sim.clear_calls();
    stage.settle().await;
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());

    stage.service("web").session_affinity = SessionAffinity::None;
    stage.settle_well().await;
    assert!(!tags(&stage).contains(&record), "{:?}", tags(&stage));
    stage.service("web").session_affinity = sticky;
    stage.settle_well().await;
    assert_eq!(persistence(&stage), "SOURCE_IP");
    quiet(&mut stage).await;
}

#[tokio::test]
async fn a_method_that_octavia_does_not_know() {
    let mut stage = cloud("", |_| {}).await;
    let balancer = served(&mut stage, web(&[80], &[("lb-method", "LEAST_CONNECTIONS")])).await;
    assert_eq!(all(&balancer.pools, "lb_algorithm"), [&json!("LEAST_CONNECTIONS")]);
    annotate(stage.service("web"), &annotation_key("lb-method"), Some("FASTEST"));
    stage.join();
    stage.settle_well().await;
    assert!(warnings(&stage).contains(&"LoadBalancerLbMethodUnknown"));
    let balancer = stage.balancers().remove(0);
    assert_eq!(all(&balancer.pools, "lb_algorithm"), [&json!("LEAST_CONNECTIONS")]);
    assert_eq!(balancer.members.len(), 3);
    // Octavia refuses this one for separate pools of amphorae.
    annotate(stage.service("web"), &annotation_key("lb-method"), Some("SOURCE_IP_PORT"));
    stage.service("web").ports = service("web", &[80, 443]).ports;
    stage.settle_well().await;
    assert!(warnings(&stage).contains(&"LoadBalancerLbMethodUnknown"));
    let balancer = stage.balancers().remove(0);
    let mut methods: Vec<_> = all(&balancer.pools, "lb_algorithm");
    methods.sort_by_key(ToString::to_string);
    assert_eq!(methods, [&json!("LEAST_CONNECTIONS"), &json!("ROUND_ROBIN")]);
    // A load balancer is not created with another method.
    let mut other = service("other", &[80]);
    annotate(&mut other, &annotation_key("lb-method"), Some("FASTEST"));
    stage.services.push(other);
    stage.settle().await;
    assert_eq!(stage.balancers().len(), 1);
    stage.assert_complaints(&["FASTEST"]);
}
