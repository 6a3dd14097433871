//! Who vouches for the cloud.

use std::sync::Arc;

use ccm_core::{
    Error, ErrorKind, Freshness, Instance, NodeView, Priority,
    load_balancer::{Ask, ClusterView, NodeSet, ServiceNode},
    plan::{Vouch, vouch_by_nodes},
    testkit::FakeCloud,
};

fn cluster(provider_ids: &[&str]) -> ClusterView {
    ClusterView {
        nodes: provider_ids
            .iter()
            .enumerate()
            .map(|(index, id)| ServiceNode {
                view: Arc::new(NodeView {
                    name: format!("n{index}"),
                    provider_id: (!id.is_empty()).then(|| (*id).to_owned()),
                    ..NodeView::default()
                }),
                ..ServiceNode::default()
            })
            .collect::<NodeSet>(),
        ..ClusterView::default()
    }
}

async fn vouch(cloud: &FakeCloud, cluster: &ClusterView) -> ccm_core::Result<Vouch> {
    let ask = Ask {
        freshness: Freshness::now(),
        priority: Priority::User,
    };
    vouch_by_nodes(cloud, cluster, ask).await
}

#[tokio::test]
async fn one_node_that_is_there_vouches() {
    let cloud = FakeCloud::default();
    cloud.insert("b", Instance::default());
    let three = cluster(&["fake://a", "", "other://x", "fake://b"]);
    assert_eq!(vouch(&cloud, &three).await.unwrap(), Vouch::Ours);
    assert_eq!(cloud.calls().len(), 1, "one call for all");
    assert_eq!(cloud.calls()[0].nodes, ["n0", "n3"]);
}

#[tokio::test]
async fn a_cluster_without_nodes_needs_nobody_to_vouch() {
    assert_eq!(
        vouch(&FakeCloud::default(), &cluster(&[])).await.unwrap(),
        Vouch::Ours
    );
}

#[tokio::test]
async fn nodes_that_are_not_there_or_not_ours_do_not_vouch() {
    let cloud = FakeCloud::default();
    for ids in [&["fake://a", "fake://b"][..], &["other://x", ""]] {
        let vouched = vouch(&cloud, &cluster(ids)).await.unwrap();
        assert!(matches!(vouched, Vouch::Unproven(_)), "{ids:?}: {vouched:?}");
    }
}

#[tokio::test]
async fn not_knowing_is_an_error() {
    let cloud = FakeCloud::default();
    cloud.break_down(Some(Error::new(ErrorKind::Unavailable, "down")));
    assert!(vouch(&cloud, &cluster(&["fake://a"])).await.is_err());
}
