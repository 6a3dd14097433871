//! The life of a load balancer: creation, changes and deletion.

use ccm_testbed::picture::Picture;

use crate::stage::{ADDRESS, ID, INTERNAL, KEEP, MANAGED, Stage, annotate, service};

#[tokio::test]
async fn a_service_gets_one_listener_per_port_and_one_member_per_node() {
    let mut stage = Stage::new(6, MANAGED).await;
    stage.services.push(service("web", &[80, 443, 8080]));
    stage.settle_well().await;

    let balancers = stage.balancers();
    let [balancer] = balancers.as_slice() else {
        panic!("{balancers:#?}")
    };
    assert_eq!(balancer.loadbalancer.name, "kube_service_kubernetes_shop_web");
    assert_eq!((balancer.listeners.len(), balancer.members.len()), (3, 18));
    assert_eq!(balancer.healthmonitors.len(), 3);
    let web = stage.service("web");
    assert_eq!(web.annotation(ID), Some(balancer.loadbalancer.id.as_str()));
    let address = web.annotation(ADDRESS).unwrap().to_owned();
    assert_eq!(stage.address("web"), address);

    stage.join();
    stage.settle().await;
    assert_eq!(stage.balancers()[0].members.len(), 21);
    stage.nodes.pop();
    stage.settle().await;
    assert_eq!(stage.balancers()[0].members.len(), 18);
}

#[tokio::test]
async fn ports_come_change_and_go_in_place() {
    let mut stage = Stage::new(2, "").await;
    stage.services.push(service("web", &[80, 443]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    let web = stage.service("web");
    web.ports = service("web", &[443, 8080]).ports;
    annotate(web, "loadbalancer.openstack.org/connection-limit", Some("7"));
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(balancer.loadbalancer.id, id);
    let mut ports: Vec<_> = balancer
        .listeners
        .iter()
        .map(|listener| {
            let get = |key: &str| listener.attributes[key].as_i64().unwrap();
            (get("protocol_port"), get("connection_limit"))
        })
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [(443, 7), (8080, 7)]);
    assert_eq!((balancer.pools.len(), balancer.members.len()), (2, 4));

    // A port with another protocol is created again, and the PROXY protocol needs another pool.
    let web = stage.service("web");
    annotate(web, "loadbalancer.openstack.org/x-forwarded-for", Some("true"));
    stage.settle_well().await;
    let balancer = stage.balancers().remove(0);
    assert!(balancer.listeners.iter().all(|listener| listener.attributes["protocol"] == "HTTP"));
    let web = stage.service("web");
    annotate(web, "loadbalancer.openstack.org/x-forwarded-for", None);
    annotate(web, "loadbalancer.openstack.org/proxy-protocol", Some("true"));
    stage.settle().await;
    let balancer = stage.balancers().remove(0);
    assert!(balancer.pools.iter().all(|pool| pool.attributes["protocol"] == "PROXY"));
    assert_eq!(balancer.members.len(), 4);
}

/// A Service that became internal and keeps its floating IP; and the address of this floating IP.
async fn internal_with_kept_address() -> (Stage, String) {
    let mut stage = Stage::new(1, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let public = stage.address("web");
    annotate(stage.service("web"), KEEP, Some("true"));
    annotate(stage.service("web"), INTERNAL, Some("true"));
    stage.settle().await;
    (stage, public)
}

#[tokio::test]
async fn an_internal_service_has_no_floating_address_and_a_kept_one_survives() {
    let (mut stage, public) = internal_with_kept_address().await;
    let private = stage.address("web");
    assert_ne!(public, private);
    assert_eq!(stage.sim.call_counts().get("floating_ip_delete"), None);

    // The floating IP is created again if it is requested.
    annotate(stage.service("web"), INTERNAL, None);
    stage.service("web").load_balancer_ip = public.as_str().into();
    stage.settle_well().await;
    assert_eq!(stage.address("web"), public);
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.balancers().is_empty());
    assert_eq!(stage.sim.call_counts().get("floating_ip_delete"), None);

    // A later Service of the same name gets another one, and does not delete the kept one.
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    assert_ne!(stage.address("web"), public);
    stage.service("web").deleting = true;
    stage.settle().await;
    let remaining = stage.sim.floating_ips();
    let remaining: Vec<_> = remaining.iter().map(|one| one.address.to_string()).collect();
    assert_eq!(remaining, [public]);
}

#[tokio::test]
async fn a_detached_address_that_was_kept_outlives_the_annotation() {
    let (mut stage, public) = internal_with_kept_address().await;
    assert_eq!(stage.sim.call_counts()["floating_ip_update"], 1);
    annotate(stage.service("web"), KEEP, None);
    stage.settle().await;
    stage.service("web").deleting = true;
    stage.settle().await;
    assert!(stage.balancers().is_empty() && stage.services.is_empty());
    let remaining = stage.sim.floating_ips();
    let remaining: Vec<_> = remaining.iter().map(|one| one.address.to_string()).collect();
    assert_eq!(remaining, [public]);
}

#[tokio::test]
async fn a_shared_load_balancer_outlives_its_owner() {
    let mut stage = Stage::new(1, "").await;
    stage.services.push(service("web", &[80]));
    stage.settle().await;
    let id = stage.balancers()[0].loadbalancer.id.clone();
    for (name, port) in [("api", 81), ("more", 82), ("same", 80)] {
        let mut service = service(name, &[port]);
        annotate(&mut service, ID, Some(&id));
        stage.services.push(service);
        stage.settle().await;
    }
    // Two Services may share it.
    stage.assert_complaints(&["already shared by 2 Services"]);
    assert_eq!(stage.balancers()[0].listeners.len(), 2);
    assert_eq!(stage.address("api"), stage.address("web"));
    assert_eq!(stage.address("more"), "");
    stage.services.retain(|service| ["web", "api"].contains(&&*service.id.name));
    stage.settle().await;

    stage.service("web").deleting = true;
    stage.settle().await;
    let balancer = stage.balancers().remove(0);
    assert_eq!(balancer.loadbalancer.id, id);
    assert_eq!(balancer.listeners.len(), 1);
    stage.service("api").deleting = true;
    stage.settle_well().await;
    assert!(stage.balancers().is_empty() && stage.services.is_empty());
}

#[tokio::test]
async fn a_service_deleted_without_a_running_process_leaves_nothing() {
    // The suite for all providers uses the configuration with all features.
    for conf in ["", "manage-security-groups = true\ncascade-delete = false"] {
        let mut stage = Stage::new(2, conf).await;
        stage.services.push(service("stays", &[81]));
        stage.settle().await;
        let before = Picture::of(&stage.sim, &[]);
        stage.services.push(service("web", &[80, 443]));
        stage.settle().await;
        assert_eq!(stage.balancers().len(), 2, "{conf}");
        stage.service("web").deleting = true;
        stage.restart().await;
        stage.settle().await;
        assert_eq!(stage.complaints(), [""; 0], "{conf}");
        assert_eq!(Picture::of(&stage.sim, &[]).differs(&before), None, "{conf}");
        assert_eq!(stage.services.len(), 1, "{conf}");
    }
}
