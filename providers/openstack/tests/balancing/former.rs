//! Load balancers of upstream whose Services got the class of another controller while no leader ran.

use ccm_core::load_balancer::{ClusterTag, FormerLoadBalancer};
use serde_json::json;

use crate::stage::{Stage, node};

/// A served Service with the class of another controller, whose load balancer has no ownership tag, as upstream leaves it.
async fn of_another_class() -> Stage {
    let mut stage = Stage::served().await;
    let balancer = stage.balancers().remove(0).loadbalancer;
    let mut tags: Vec<String> = serde_json::from_value(balancer.attributes["tags"].clone()).unwrap();
    tags.retain(|tag| !tag.starts_with(ClusterTag::PREFIX));
    let of_upstream = json!({ "tags": tags });
    stage.sim.patch_object(&balancer.id, of_upstream.as_object().unwrap()).unwrap();
    let web = stage.service("web");
    web.class = Some("example.com/other".into());
    web.ingress.clear();
    web.deleting = true;
    stage.restart().await;
    stage
}

#[tokio::test]
async fn a_node_as_a_member_proves_that_a_load_balancer_of_upstream_is_the_clusters() {
    let mut stage = of_another_class().await;
    let former = stage.clean_up_former().await.unwrap();
    assert!(matches!(former[..], [FormerLoadBalancer::Ours(_)]), "{former:?}");
    stage.settle_well().await;
    assert!(stage.balancers().is_empty() && stage.services.is_empty());
}

#[tokio::test]
async fn without_a_node_of_the_cluster_as_a_member_a_load_balancer_stays() {
    let mut stage = of_another_class().await;
    // Another server has the address of a member in another network.
    let mut other = node(&stage.sim, "other");
    other.addresses = stage.nodes[0].addresses.clone();
    stage.nodes = vec![other];
    for _ in 0..2 {
        let former = stage.clean_up_former().await.unwrap();
        assert!(matches!(former[..], [FormerLoadBalancer::Unproven { .. }]), "{former:?}");
        stage.settle().await;
        assert_eq!((stage.balancers().len(), stage.services.len()), (1, 1));
        assert!(stage.service("web").has_finalizer());
        stage.restart().await;
    }
}
