//! Several Services and one load balancer.

use ccm_core::{Freshness, load_balancer::ServiceType};
use ccm_testbed::picture::Picture;
use serde_json::json;

use crate::{
    other_client::OtherClient,
    stage::{ADDRESS, ID, INTERNAL, KEEP, Stage, annotate, service},
};

const CONFIG: &str = "create-monitor = true";

/// The ports of the listeners of a load balancer.
fn listeners(stage: &Stage, id: &str) -> Vec<i64> {
    let balancers = stage.balancers();
    let balancer = balancers.iter().find(|one| one.loadbalancer.id == id).unwrap();
    let ports = balancer.listeners.iter();
    let mut ports: Vec<_> =
        ports.map(|listener| listener.attributes["protocol_port"].as_i64().unwrap()).collect();
    ports.sort_unstable();
    ports
}

fn tags(stage: &Stage, id: &str) -> Vec<String> {
    let balancers = stage.balancers();
    let balancer = balancers.iter().find(|one| one.loadbalancer.id == id).unwrap();
    serde_json::from_value(balancer.loadbalancer.attributes["tags"].clone()).unwrap()
}

/// Adds a Service that names its load balancer.
fn push(stage: &mut Stage, name: &str, ports: &[u16], balancer: &str) {
    let mut service = service(name, ports);
    annotate(&mut service, ID, Some(balancer));
    stage.services.push(service);
}

/// A cluster, and a user's load balancer with a public address.
pub(crate) async fn with_a_users() -> (Stage, String) {
    with_a_users_under(CONFIG).await
}

async fn with_a_users_under(config: &str) -> (Stage, String) {
    let stage = Stage::new(2, config).await;
    let id = OtherClient::of(&stage.sim).await.balancer("mine").await;
    let balancer = stage.balancers().remove(0).loadbalancer;
    let port = balancer.attributes["vip_port_id"].as_str().unwrap().to_owned();
    stage.sim.add_floating(&port, "203.0.113.77".parse().unwrap()).unwrap();
    (stage, id)
}

#[tokio::test]
async fn two_that_come_at_once_are_both_served_and_one_port_has_one_winner() {
    let (mut stage, id) = with_a_users().await;
    push(&mut stage, "one", &[80], &id);
    push(&mut stage, "two", &[81], &id);
    stage.settle_well().await;
    assert_eq!(listeners(&stage, &id), [80, 81, 9999]);
    assert_eq!(stage.address("one"), "203.0.113.77");
    assert_eq!(stage.address("two"), "203.0.113.77");
    for name in ["one", "two"] {
        stage.service(name).deleting = true;
    }
    stage.settle().await;
    assert!(stage.services.is_empty());
    assert_eq!(tags(&stage, &id), ["mine"]);

    push(&mut stage, "three", &[80], &id);
    push(&mut stage, "four", &[80], &id);
    stage.settle().await;
    let complaints = stage.complaints().join("\n");
    assert!(complaints.contains("port TCP/80") || complaints.contains("80"), "{complaints}");
    assert_eq!(listeners(&stage, &id), [80, 9999]);
    let served = |stage: &Stage| ["three", "four"].map(|name| !stage.address(name).is_empty());
    let first = served(&stage);
    assert_eq!(first.iter().filter(|served| **served).count(), 1, "{complaints}");
    // The first Service leaves, and the other one gets its port.
    stage.service(if first[0] { "three" } else { "four" }).deleting = true;
    stage.settle_well().await;
    assert_eq!(stage.services.len(), 1);
    let left = stage.services[0].id.name.to_string();
    assert_eq!(stage.address(&left), "203.0.113.77");
    assert_eq!(listeners(&stage, &id), [80, 9999]);
}

#[tokio::test]
async fn a_taken_port_is_refused_and_stays_with_its_service() {
    let mut stage = Stage::new(2, CONFIG).await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let before = Picture::of(&stage.sim, &[]);
    push(&mut stage, "api", &[80], &id);
    stage.settle().await;
    let complaints = stage.complaints().join("\n");
    assert!(complaints.contains("shop/web") || complaints.contains("shop/api"), "{complaints}");
    assert_ne!(stage.address("web"), "", "the first Service keeps it: {complaints}");
    assert_eq!(stage.address("api"), "");
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&before), None);
    // A new process only knows the cloud.
    stage.restart().await;
    stage.settle().await;
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&before), None);
    stage.service("api").deleting = true;
    stage.settle().await;
    assert_eq!(stage.services.len(), 1);
    stage.assert_no_complaints();
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&before), None);
}

#[tokio::test]
async fn one_leaves_while_the_other_is_updated() {
    let mut stage = Stage::new(2, CONFIG).await;
    stage.services.push(service("web", &[80, 443]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    push(&mut stage, "api", &[81, 82], &id);
    stage.settle_well().await;
    assert_eq!(listeners(&stage, &id), [80, 81, 82, 443]);

    // One Service leaves the port that the other one requests.
    stage.service("api").deleting = true;
    stage.service("web").ports = service("web", &[80, 81]).ports;
    stage.settle_well().await;
    assert_eq!(stage.services.len(), 1);
    assert_eq!(listeners(&stage, &id), [80, 81]);
    let balancer = stage.balancers().remove(0);
    assert_eq!((balancer.pools.len(), balancer.members.len()), (2, 4));
    let own = ["kube_service_kubernetes_shop_web".to_owned()];
    let services: Vec<_> =
        tags(&stage, &id).into_iter().filter(|tag| tag.starts_with("kube_service_")).collect();
    assert_eq!(services, own);
}

#[tokio::test]
async fn internal_services_share_a_load_balancer_that_never_becomes_public() {
    let mut stage = Stage::new(1, &format!("{CONFIG}\nmax-shared-lb = 3")).await;
    let mut first = service("a", &[3306]);
    annotate(&mut first, INTERNAL, Some("true"));
    stage.services.push(first);
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0).loadbalancer;
    push(&mut stage, "b", &[5432], &balancer.id);
    annotate(stage.service("b"), INTERNAL, Some("true"));
    // Without the annotation, beside internal ones.
    push(&mut stage, "c", &[6379], &balancer.id);
    stage.settle_well().await;
    let vip = balancer.attributes["vip_address"].as_str().unwrap().to_owned();
    assert_eq!(listeners(&stage, &balancer.id), [3306, 5432, 6379]);
    for name in ["a", "b", "c"] {
        assert_eq!(stage.address(name), vip, "{name}");
    }
    let forced: Vec<_> = stage
        .reports
        .iter()
        .flat_map(|report| &report.events)
        .filter(|event| event.reason == "LoadBalancerForcedInternal")
        .map(|event| event.service.name.to_string())
        .collect();
    assert_eq!(forced, ["c"]);
    assert!(stage.sim.floating_ips().is_empty());
    stage.restart().await;
    stage.sim.clear_calls();
    stage.settle_well().await;
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());

    // The owner cannot expose the others.
    annotate(stage.service("a"), INTERNAL, None);
    stage.settle().await;
    stage.assert_complaints(&["because internal Service shop/b shares it"]);
    assert!(stage.sim.floating_ips().is_empty());
    assert_eq!(stage.address("b"), vip);
    annotate(stage.service("a"), INTERNAL, Some("true"));
    stage.settle_well().await;

    stage.service("a").deleting = true;
    stage.settle_well().await;
    assert_eq!(listeners(&stage, &balancer.id), [5432, 6379]);
    assert_eq!((stage.address("b"), stage.address("c")), (vip.clone(), vip));
    for name in ["b", "c"] {
        stage.service(name).deleting = true;
    }
    stage.settle_well().await;
    assert!(stage.services.is_empty() && stage.balancers().is_empty());
}

#[tokio::test]
async fn an_internal_service_never_joins_a_public_load_balancer() {
    let mut stage = Stage::new(1, CONFIG).await;
    stage.services.push(service("web", &[80]));
    stage.settle_well().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    push(&mut stage, "db", &[5432], &id);
    annotate(stage.service("db"), INTERNAL, Some("true"));
    // Also while the floating IP of the owner is on its way, or cannot be read.
    for gone in [false, true] {
        if gone {
            let floating = stage.sim.floating_ips().remove(0);
            stage.sim.remove_floating(floating.address).unwrap();
            stage.restart().await;
        }
        stage.settle().await;
        stage.assert_complaints(&["used by an internal Service"]);
        assert_eq!(listeners(&stage, &id), [80]);
        assert_eq!(stage.address("db"), "");
    }
}

#[tokio::test]
async fn the_owner_leaves_first_and_the_last_one_decides_about_the_address() {
    for keep in [false, true] {
        let mut stage = Stage::new(1, CONFIG).await;
        stage.services.push(service("web", &[80]));
        stage.settle().await;
        let id = stage.balancers()[0].loadbalancer.id.clone();
        let address = stage.address("web");
        push(&mut stage, "api", &[81], &id);
        stage.settle().await;
        stage.service("web").deleting = true;
        stage.settle_well().await;
        assert_eq!(listeners(&stage, &id), [81]);
        assert_eq!(stage.address("api"), address);
        stage.restart().await;
        stage.sim.clear_calls();
        stage.settle().await;
        assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
        if keep {
            annotate(stage.service("api"), KEEP, Some("true"));
        }
        stage.service("api").deleting = true;
        stage.settle().await;
        assert!(stage.balancers().is_empty() && stage.services.is_empty());
        let left = stage.sim.floating_ips();
        assert_eq!(left.len(), usize::from(keep), "{left:?}");
        assert!(left.iter().all(|floating| floating.port_id.is_none()));
    }
}

#[tokio::test]
async fn a_refused_service_keeps_no_load_balancer_from_its_deletion() {
    let mut stage = Stage::new(1, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    push(&mut stage, "api", &[81], &id);
    annotate(stage.service("api"), INTERNAL, Some("true"));
    stage.settle().await;
    assert_eq!(stage.complaints().len(), 1);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.balancers().is_empty() && stage.sim.floating_ips().is_empty());
    annotate(stage.service("api"), ID, None);
    stage.settle_well().await;
    assert_ne!(stage.balancers()[0].loadbalancer.id, id);
}

#[tokio::test]
async fn a_service_moves_to_another_load_balancer_and_back() {
    let (mut stage, mine) = with_a_users().await;
    let foreign = Picture::of(&stage.sim, &[]);
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let own = stage.service("web").annotation(ID).unwrap().to_owned();
    assert_ne!(own, mine);
    let address = stage.address("web");

    annotate(stage.service("web"), ID, Some(&mine));
    stage.settle_well().await;
    let balancers = stage.balancers();
    assert_eq!(balancers.len(), 1, "its own one is deleted: {balancers:#?}");
    assert_eq!(listeners(&stage, &mine), [80, 9999]);
    assert_eq!(stage.address("web"), "203.0.113.77");
    assert_eq!(stage.service("web").annotation(ADDRESS), Some("203.0.113.77"));
    let floating = stage.sim.floating_ips();
    assert!(
        !floating.iter().any(|one| one.address.to_string() == address),
        "its address is deleted with its load balancer: {floating:?}"
    );

    annotate(stage.service("web"), ID, None);
    annotate(stage.service("web"), ADDRESS, None);
    stage.settle_well().await;
    let now = stage.service("web").annotation(ID).unwrap().to_owned();
    assert_ne!(now, mine);
    assert_eq!(listeners(&stage, &now), [80]);
    assert_eq!(tags(&stage, &mine), ["mine"]);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&foreign), None);
}

#[tokio::test]
async fn a_load_balancer_that_a_service_left_before_the_takeover_is_reported() {
    let (mut stage, mine) = with_a_users().await;
    let client = OtherClient::of(&stage.sim).await;
    let left = client.balancer("kube_service_kubernetes_shop_web").await;
    push(&mut stage, "web", &[80], &mine);
    stage.settle().await;
    assert_eq!(listeners(&stage, &mine), [80, 9999]);
    assert_eq!(listeners(&stage, &left), [9999]);
    let blocked = stage.reports.iter().flat_map(|report| &report.blocked);
    let blocked: Vec<_> = blocked.map(|blocked| &blocked.field).collect();
    assert!(blocked[0].contains("kube_service_kubernetes_shop_web"), "{blocked:?}");
    // The Go program deletes only the one that the Service names.
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.services.is_empty(), "{:?}", stage.complaints());
    assert_eq!(listeners(&stage, &left), [9999]);
    assert_eq!(listeners(&stage, &mine), [9999]);
}

#[tokio::test]
async fn the_same_load_balancer_named_by_id_and_by_name_is_one() {
    let (mut stage, id) = with_a_users().await;
    push(&mut stage, "by-id", &[80], &id);
    push(&mut stage, "by-name", &[81], "mine");
    stage.settle_well().await;
    assert_eq!(listeners(&stage, &id), [80, 81, 9999]);
    assert_eq!(stage.address("by-name"), stage.address("by-id"));
    let parts = stage.reports.iter().filter(|report| report.part.as_str().starts_with("lb/"));
    assert_eq!(parts.count(), 1);
    stage.restart().await;
    stage.sim.clear_calls();
    stage.settle().await;
    assert_eq!(stage.cost().0, 0, "{:?}", stage.sim.call_counts());
    stage.service("by-id").deleting = true;
    stage.settle().await;
    assert_eq!(listeners(&stage, &id), [81, 9999]);
    stage.service("by-name").deleting = true;
    stage.settle().await;
    assert_eq!(listeners(&stage, &id), [9999]);
    assert_eq!(tags(&stage, &id), ["mine"]);
}

#[tokio::test]
async fn a_users_objects_on_their_load_balancer_are_never_changed() {
    let (mut stage, id) = with_a_users().await;
    let foreign = Picture::of(&stage.sim, &[]);
    push(&mut stage, "web", &[80, 443], &id);
    stage.settle_well().await;
    // A user's port does not become the Service's.
    stage.service("web").ports = service("web", &[443, 9999]).ports;
    annotate(stage.service("web"), "loadbalancer.openstack.org/connection-limit", Some("5"));
    stage.settle().await;
    stage.assert_complaints(&["another user's"]);
    stage.service("web").ports = service("web", &[443]).ports;
    stage.join();
    stage.settle().await;
    stage.restart().await;
    stage.settle_well().await;
    assert_eq!(listeners(&stage, &id), [443, 9999]);
    // The load balancer is deleted by another client, and the Service leaves it and returns.
    let ours = stage.balancers().remove(0).listeners;
    let ours = ours.iter().find(|listener| listener.attributes["protocol_port"] == json!(443));
    stage.sim.delete_object(&ours.unwrap().id).unwrap();
    stage.restart().await;
    stage.settle().await;
    assert_eq!(listeners(&stage, &id), [443, 9999]);
    stage.service("web").service_type = ServiceType::ClusterIp;
    stage.settle().await;
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&foreign), None);
    assert!(stage.service("web").finalizers.is_empty());
}

#[tokio::test]
async fn a_users_listener_that_shares_a_pool_does_not_take_it() {
    let (mut stage, id) = with_a_users().await;
    push(&mut stage, "web", &[80], &id);
    stage.settle().await;
    let pools = stage.balancers().remove(0).pools;
    let pool = pools.iter().find(|pool| pool.name.starts_with("pool_0_"));
    let client = OtherClient::of(&stage.sim).await;
    // Some of their IDs come before that of the Service's listener.
    for port in 9001..9007 {
        let body = json!({"loadbalancer_id": id, "protocol": "TCP", "protocol_port": port,
                          "default_pool_id": pool.unwrap().id});
        client.create("listeners", "listener", body).await;
    }
    stage.join();
    stage.restart().await;
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!((balancer.pools.len(), balancer.members.len()), (pools.len(), 1 + 3));
}

#[tokio::test]
async fn a_users_security_group_and_its_rules_are_never_changed() {
    let (mut stage, id) = with_a_users_under("manage-security-groups = true").await;
    let other = OtherClient::of(&stage.sim).await;
    let group = other
        .create_in_network("security-groups", "security_group", json!({"name": "mine"}))
        .await;
    // The Service needs exactly this rule, too.
    let rule = json!({
        "security_group_id": group, "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp",
        "port_range_min": 30000, "port_range_max": 32767, "remote_ip_prefix": "10.0.0.0/8",
    });
    other.create_in_network("security-group-rules", "security_group_rule", rule).await;
    for node in &stage.nodes {
        let server = node.view.provider_id.as_deref().unwrap();
        let ports = stage.sim.server_ports(server.trim_start_matches("openstack:///"));
        other.join_group(&ports[0], &group).await;
    }
    let of_the_user = |stage: &Stage| {
        let groups = stage.sim.security_groups();
        let mut mine = groups.into_iter().find(|found| found.id == group).unwrap();
        mine.ports.sort();
        format!("{mine:?}")
    };
    let (whole, before) = (Picture::of(&stage.sim, &[]), of_the_user(&stage));
    push(&mut stage, "web", &[80], &id);
    stage.settle().await;
    assert_eq!(of_the_user(&stage), before);
    stage.assert_no_complaints();
    stage.service("web").ports = service("web", &[80, 443]).ports;
    stage.settle().await;
    stage.restart().await;
    stage.settle().await;
    assert_eq!(of_the_user(&stage), before);
    assert_ne!(Picture::of(&stage.sim, &[]).differs(&whole), None);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert_eq!(Picture::of(&stage.sim, &[]).differs(&whole), None);
}

#[tokio::test]
async fn a_load_balancer_that_another_cluster_uses_outlives_our_last_service() {
    let mut stage = Stage::new(1, "manage-security-groups = true").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let balancer = stage.balancers().remove(0).loadbalancer;
    let other = "kube_service_elsewhere_shop_api";
    // The tag is added while the cached listing is fresh, and so is the decision whether to delete the load balancer.
    let mut all = tags(&stage, &balancer.id);
    all.push(other.to_owned());
    let patch = json!({"tags": all});
    stage.sim.patch_object(&balancer.id, patch.as_object().unwrap()).unwrap();
    let body = json!({
        "loadbalancer_id": balancer.id, "name": format!("listener_0_{other}"), "protocol": "TCP",
        "protocol_port": 8443, "tags": [other],
    });
    OtherClient::of(&stage.sim).await.create("listeners", "listener", body).await;
    stage.read.freshness = Freshness::now();
    stage.service("web").deleting = true;
    stage.run_through().await;
    stage.settle_well().await;
    assert!(stage.services.is_empty());
    assert_eq!(listeners(&stage, &balancer.id), [8443]);
    let left = tags(&stage, &balancer.id);
    assert!(left.contains(&other.to_owned()) && !left.contains(&balancer.name), "{left:?}");
}

#[tokio::test]
async fn a_second_service_that_is_refused_keeps_what_it_has_and_follows_the_nodes() {
    let config = "manage-security-groups = true";
    for restart in [false, true] {
        let mut stage = Stage::new(2, config).await;
        stage.services.push(service("web", &[80]));
        stage.settle().await;
        let id = stage.balancers()[0].loadbalancer.id.clone();
        push(&mut stage, "api", &[81], &id);
        stage.settle_well().await;
        annotate(stage.service("api"), INTERNAL, Some("true"));
        stage.settle().await;
        stage.assert_complaints(&["internal Service"]);
        if restart {
            stage.restart().await;
        }
        stage.join();
        stage.settle().await;
        let members = stage.balancers().remove(0).members;
        for node_port in [30080, 30081] {
            let at = members.iter().filter(|member| member.attributes["protocol_port"] == node_port);
            assert_eq!(at.count(), 3, "{node_port}");
        }
        assert_eq!(listeners(&stage, &id), [80, 81]);
        for name in ["web", "api"] {
            let groups = stage.sim.security_groups();
            let group = groups.iter().find(|group| group.name == format!("lb-sg-uid-{name}-shop-{name}"));
            assert_eq!(group.unwrap().ports.len(), 3, "{name}");
        }
        stage.service("api").deleting = true;
        stage.settle_well().await;
        assert_eq!(listeners(&stage, &id), [80]);
    }
}
