//! Requests of Services that are refused, and credentials without permissions.

use ccm_core::load_balancer::ServiceView;
use ccm_sim::openstack::AppCredentialSpec;
use ccm_testbed::picture::Picture;

use crate::stage::{ID, MANAGED, Stage, annotate, service};

const PREFIX: &str = "loadbalancer.openstack.org/";

#[tokio::test]
async fn credentials_of_another_project_change_nothing_and_end_nothing() {
    let mut stage = Stage::served().await;
    stage.services.push(service("other", &[81]));
    stage.settle().await;
    let project = stage.sim.create_project("other");
    stage.sim.add_member(None, &project).unwrap();
    let spec = AppCredentialSpec {
        name: "other".to_owned(),
        project: Some(project),
        ..AppCredentialSpec::default()
    };
    let credential = stage.sim.create_app_credential(&spec).unwrap();
    let before = Picture::of(&stage.sim, &[]);
    stage.restart_as(&stage.sim.cloud_conf_for(&credential)).await;
    stage.service("web").deleting = true;
    stage.service("other").ports = service("other", &[82]).ports;
    stage.sim.clear_calls();
    for _ in 0..3 {
        stage.settle_in_trouble().await;
    }
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
    // Octavia hides whether the load balancer exists in another project.
    stage.assert_complaints(&["403", "as="]);
    assert_eq!(stage.services.len(), 2);
    for name in ["web", "other"] {
        let service = stage.service(name);
        assert!(service.finalizers.contains(&ServiceView::FINALIZER.into()), "{name}");
        assert!(!service.ingress.is_empty() && service.annotation(ID).is_some(), "{name}");
    }
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&before), None);

    // With the right credentials, everything works again.
    stage.restart().await;
    stage.settle_well().await;
    assert_eq!((stage.services.len(), stage.balancers().len()), (1, 1));
}

#[tokio::test]
async fn a_create_only_field_is_blocked_and_the_rest_is_applied() {
    let mut stage = Stage::served().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    for (key, value) in [
        ("subnet-id", "6b0a5a2e-0000-4000-8000-000000000000"),
        ("network-id", "6b0a5a2e-0000-4000-8000-000000000001"),
        ("port-id", "6b0a5a2e-0000-4000-8000-000000000002"),
        ("flavor-id", "6b0a5a2e-0000-4000-8000-000000000003"),
        ("availability-zone", "moon"),
    ] {
        let key = format!("{PREFIX}{key}");
        annotate(stage.service("web"), &key, Some(value));
        stage.settle().await;
        stage.assert_complaints(&[value]);
        assert_eq!(stage.balancers()[0].loadbalancer.id, id, "{key}");
        annotate(stage.service("web"), &key, None);
    }
    annotate(stage.service("web"), &format!("{PREFIX}availability-zone"), Some("moon"));
    stage.service("web").ports = service("web", &[80, 444]).ports;
    stage.join();
    stage.settle().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(balancer.loadbalancer.id, id);
    assert_eq!(balancer.members.len(), 6);
    let ports = balancer.listeners.iter();
    assert!(ports.map(|one| &one.attributes["protocol_port"]).any(|port| port == 444));
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.services.is_empty() && stage.balancers().is_empty());
}

#[tokio::test]
async fn values_without_a_meaning_are_named_in_one_note_and_their_defaults_used() {
    let mut stage = Stage::served().await;
    let before = Picture::of(&stage.sim, &[]);
    let odd = [
        ("connection-limit", "many"),
        ("timeout-client-data", "1m"),
        ("proxy-protocol", "v9"),
        ("x-forwarded-for", "maybe"),
        ("enable-health-monitor", "on"),
        ("health-monitor-delay", "soon"),
        ("keep-floatingip", "yes"),
    ];
    for (key, value) in odd {
        annotate(stage.service("web"), &format!("{PREFIX}{key}"), Some(value));
    }
    stage.settle_well().await;
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&before), None);
    let warnings: Vec<_> = stage.reports.iter().flat_map(|report| &report.events).collect();
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}")
    };
    assert!(warning.warning && warning.reason == "LoadBalancerAnnotationIgnored");
    for (key, value) in odd {
        assert!(warning.message.contains(&format!("{key}: \"{value}\"")), "{key}: {}", warning.message);
    }
}

#[tokio::test]
async fn a_service_with_refused_values_still_follows_nodes_and_can_be_deleted() {
    let refused = [
        ("connection-limit", "-2"),
        ("timeout-client-data", "-1"),
        ("timeout-member-connect", "9999999999"),
        ("health-monitor-delay", "0"),
        ("health-monitor-max-retries", "11"),
        ("health-monitor-max-retries-down", "0"),
        ("class", "unknown"),
    ];
    for (key, value) in refused {
        let mut stage = Stage::served().await;
        let id = stage.balancers()[0].loadbalancer.id.clone();
        annotate(stage.service("web"), &format!("{PREFIX}{key}"), Some(value));
        // Its other requests wait, too.
        stage.service("web").ports = service("web", &[80, 444]).ports;
        stage.join();
        stage.settle().await;
        stage.assert_complaints(&[key]);
        let balancer = stage.balancers().remove(0);
        assert_eq!(balancer.loadbalancer.id, id, "{key}");
        let ports: Vec<_> = balancer
            .listeners
            .iter()
            .map(|listener| listener.attributes["protocol_port"].as_i64().unwrap())
            .collect();
        assert!(ports.contains(&443) && !ports.contains(&444), "{key}: {ports:?}");
        let of_80 = balancer.members.iter().filter(|member| member.attributes["protocol_port"] == 30080);
        assert_eq!(of_80.count(), 3, "{key}: its members follow the nodes");
        let groups = stage.sim.security_groups();
        let group = groups.iter().find(|group| group.name.starts_with("lb-sg-"));
        assert_eq!(group.unwrap().ports.len(), 3, "{key}: and so does its security group");
        assert_ne!(stage.address("web"), "", "{key}");
        stage.service("web").deleting = true;
        stage.settle().await;
        assert!(stage.services.is_empty() && Picture::of(&stage.sim, &[]).is_empty(), "{key}");
    }
    // A Service that never had a load balancer gets none, and is deleted.
    let mut stage = Stage::new(1, MANAGED).await;
    let mut web = service("web", &[80]);
    annotate(&mut web, &format!("{PREFIX}health-monitor-max-retries"), Some("11"));
    annotate(&mut web, &format!("{PREFIX}proxy-protocol"), Some("true"));
    annotate(&mut web, &format!("{PREFIX}x-forwarded-for"), Some("true"));
    stage.services.push(web);
    stage.sim.clear_calls();
    stage.settle().await;
    stage.assert_complaints(&["max-retries", "cannot be used together"]);
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.services.is_empty());
}
