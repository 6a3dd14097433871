#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;

fn read(service: Value) -> ServiceObject {
    serde_json::from_value(service).unwrap()
}

#[test]
fn keeps_the_fields_that_decide_about_a_load_balancer() {
    let service = read(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "7",
            "annotations": {"a": "b", LAST_APPLIED_ANNOTATION: "{}"}, "labels": {"app": "web"},
            "finalizers": [ServiceView::FINALIZER], "managedFields": [{"manager": "kubectl"}],
            "deletionTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "example.com/lb", "loadBalancerIP": "10.0.0.9",
            "clusterIP": "10.96.0.1", "selector": {"app": "web"},
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080, "targetPort": "web"},
                {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053, "targetPort": 5353, "appProtocol": "dns"},
            ],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
            "loadBalancerSourceRanges": ["10.0.0.0/8"], "externalIPs": ["192.0.2.1"],
            "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Cluster", "healthCheckNodePort": 31000,
            "ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack", "allocateLoadBalancerNodePorts": false,
        },
        "status": {
            "loadBalancer": {"ingress": [{"ip": "203.0.113.1", "ipMode": "VIP", "ports": []}, {"hostname": "web.example.com"}]},
            "conditions": [{"type": "Ok", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
        },
    }));
    let view = &service.view;
    assert_eq!(view.id, ServiceId::new("shop", "web", "u1"));
    assert_eq!(view.annotations.iter().collect::<Vec<_>>(), [("a", "b")]);
    assert!(view.deleting && view.is_load_balancer() && view.has_finalizer());
    assert!(!view.wants_load_balancer());
    assert_eq!(view.labels.iter().collect::<Vec<_>>(), [("app", "web")]);
    assert_eq!(view.class.as_deref(), Some("example.com/lb"));
    assert_eq!(view.ports[0].target, PortTarget::Name("web".into()));
    let dns = &view.ports[1];
    assert_eq!((dns.protocol, dns.port, dns.node_port), (Protocol::Udp, 53, 30053));
    assert_eq!(dns.target, PortTarget::Number(5353));
    assert_eq!(dns.app_protocol.as_deref(), Some("dns"));
    let timeout_seconds = Some(10_800);
    assert_eq!(view.session_affinity, SessionAffinity::ClientIp { timeout_seconds });
    assert_eq!(view.source_ranges.as_deref(), Some(&["10.0.0.0/8".into()][..]));
    assert_eq!((view.is_local(), view.health_check_port()), (true, Some(31_000)));
    assert_eq!(view.ip_families, [IpFamily::V6, IpFamily::V4]);
    assert!(view.requires_dual_stack && !view.allocates_node_ports);
    assert_eq!(view.ingress[0].ip_mode, Some(IpMode::Vip));
    assert_eq!(view.ingress[1].hostname.as_deref(), Some("web.example.com"));
    assert!(view.conditions[0].is_true);
    assert!(service.meta.managed_fields.is_none() && service.meta.annotations.is_none());
}

#[test]
fn a_bare_service_is_enough() {
    let service = read(json!({"metadata": {"name": "web", "namespace": "shop"}}));
    assert!(service.view.allocates_node_ports && service.view.source_ranges.is_none());
    assert!(!service.view.wants_load_balancer());
    for (text, service_type) in [
        ("ClusterIP", ServiceType::ClusterIp),
        ("NodePort", ServiceType::NodePort),
        ("LoadBalancer", ServiceType::LoadBalancer),
        ("ExternalName", ServiceType::ExternalName),
        ("", ServiceType::ClusterIp),
    ] {
        let service = read(json!({"metadata": {"name": "web"}, "spec": {"type": text}}));
        assert_eq!(service.view.service_type, service_type, "{text}");
    }
}

#[test]
fn only_needed_services_are_stored() {
    let needs = |node_port_services| Needs {
        node_port_services,
        ..Needs::default()
    };
    let is_stored = |kind: &str, finalizers: Value, ingress: Value| {
        let service = read(json!({
            "metadata": {"name": "web", "namespace": "shop", "finalizers": finalizers},
            "spec": {"type": kind}, "status": {"loadBalancer": {"ingress": ingress}},
        }));
        service.is_needed(&needs(false))
    };
    assert!(is_stored("LoadBalancer", json!(null), json!(null)));
    assert!(is_stored("ClusterIP", json!([ServiceView::FINALIZER]), json!(null)));
    assert!(is_stored("NodePort", json!(null), json!([{"ip": "192.0.2.1"}])));
    assert!(!is_stored("ClusterIP", json!(["example.com/other"]), json!([])));
    assert!(!is_stored("ExternalName", json!(null), json!(null)));
    let node_port = read(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]},
    }));
    assert!(!node_port.is_needed(&needs(false)) && node_port.is_needed(&needs(true)));
    let internal = read(json!({
        "metadata": {"name": "db", "namespace": "shop"}, "spec": {"type": "ClusterIP", "ports": [{"port": 80}]},
    }));
    assert!(!internal.is_needed(&needs(true)));
}
