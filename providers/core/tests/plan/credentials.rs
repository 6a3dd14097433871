//! The nodes that prove that the credentials are right.

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::{
    Error, ErrorKind, Freshness, Instance, NodeView, Priority,
    load_balancer::{ClusterView, NodeSet, ReadOptions, ServiceNode},
    plan::{CredentialsCheck, ScopeCheck},
    testkit::FakeCloud,
};

/// A cluster whose nodes `n0`, `n1`, ... have these provider IDs, some of them ready.
fn cluster_with_ready(provider_ids: &[&str], is_ready: impl Fn(usize) -> bool) -> ClusterView {
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
                ready: is_ready(index),
                ..ServiceNode::default()
            })
            .collect::<NodeSet>(),
        ..ClusterView::default()
    }
}

fn cluster(provider_ids: &[&str]) -> ClusterView {
    cluster_with_ready(provider_ids, |_| true)
}

async fn run(
    check: &CredentialsCheck,
    cloud: &FakeCloud,
    cluster: &ClusterView,
) -> ccm_core::Result<ScopeCheck> {
    let read = ReadOptions {
        freshness: Freshness::now(),
        priority: Priority::User,
    };
    check.run(cloud, cluster, read).await
}

/// The first check of a process.
async fn first(cloud: &FakeCloud, cluster: &ClusterView) -> ccm_core::Result<ScopeCheck> {
    run(&CredentialsCheck::default(), cloud, cluster).await
}

/// The names in each call.
fn asked(cloud: &FakeCloud) -> Vec<Vec<String>> {
    cloud.calls().into_iter().map(|call| call.nodes).collect()
}

#[tokio::test]
async fn one_node_that_exists_is_proof() {
    let cloud = FakeCloud::default();
    cloud.insert("b", Instance::default());
    let three = cluster(&["fake://a", "", "other://x", "fake://b"]);
    assert_eq!(first(&cloud, &three).await.unwrap(), ScopeCheck::Verified);
    assert_eq!(asked(&cloud), [["n0", "n3"]], "one call for all");
}

#[tokio::test]
async fn a_cluster_without_nodes_needs_no_proof() {
    assert_eq!(first(&FakeCloud::default(), &cluster(&[])).await.unwrap(), ScopeCheck::Verified);
}

#[tokio::test]
async fn nodes_that_do_not_exist_or_are_of_another_cloud_are_no_proof() {
    let cloud = FakeCloud::default();
    for ids in [&["fake://a", "fake://b"][..], &["other://x", ""]] {
        let answer = first(&cloud, &cluster(ids)).await.unwrap();
        assert!(matches!(answer, ScopeCheck::Unverified(_)), "{ids:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_failed_lookup_is_an_error() {
    let cloud = FakeCloud::default();
    cloud.fail_all(Some(Error::new(ErrorKind::Unavailable, "down")));
    assert!(first(&cloud, &cluster(&["fake://a"])).await.is_err());
}

const SEVEN: [&str; 7] = [
    "fake://n0",
    "fake://n1",
    "fake://n2",
    "fake://n3",
    "fake://n4",
    "fake://n5",
    "fake://n6",
];

#[tokio::test]
async fn ready_nodes_are_looked_up_first() {
    let cloud = FakeCloud::default();
    cloud.insert("n4", Instance::default());
    // Three dead nodes are the first in the alphabet.
    let three_dead = cluster_with_ready(&SEVEN, |index| index > 2);
    assert_eq!(first(&cloud, &three_dead).await.unwrap(), ScopeCheck::Verified);
    assert_eq!(asked(&cloud), [["n3", "n4", "n5"]]);
}

#[tokio::test]
async fn nodes_that_are_not_ready_are_looked_up_if_no_ready_one_exists() {
    let cloud = FakeCloud::default();
    cloud.insert("n1", Instance::default());
    let cluster = cluster_with_ready(&SEVEN, |index| index > 2);
    assert_eq!(first(&cloud, &cluster).await.unwrap(), ScopeCheck::Verified);
    assert_eq!(asked(&cloud), [["n3", "n4", "n5"], ["n0", "n1", "n2"]]);
}

#[tokio::test]
async fn the_next_check_continues_with_other_nodes_until_one_exists() {
    for last in 0..SEVEN.len() {
        for ready in [true, false] {
            let (cloud, check) = (FakeCloud::default(), CredentialsCheck::default());
            cloud.insert(&format!("n{last}"), Instance::default());
            let cluster = cluster_with_ready(&SEVEN, |_| ready);
            let (mut checks, mut reasons) = (1, BTreeSet::new());
            while let ScopeCheck::Unverified(why) = run(&check, &cloud, &cluster).await.unwrap() {
                reasons.insert(why);
                checks += 1;
                assert!(checks <= 3, "n{last} is never looked up: {:?}", asked(&cloud));
            }
            assert!(reasons.len() <= 1, "each one is another Event: {reasons:?}");
            // A node that was found is looked up first.
            assert_eq!(run(&check, &cloud, &cluster).await.unwrap(), ScopeCheck::Verified);
        }
    }
}

#[tokio::test]
async fn after_a_failed_check_the_next_one_looks_up_other_nodes() {
    let (cloud, check) = (FakeCloud::default(), CredentialsCheck::default());
    cloud.insert("n3", Instance::default());
    for name in ["n0", "n1", "n2"] {
        cloud.fail(name, &Error::new(ErrorKind::Unavailable, "its cell is down"), 9);
    }
    let seven = cluster(&SEVEN);
    assert!(run(&check, &cloud, &seven).await.is_err());
    assert_eq!(run(&check, &cloud, &seven).await.unwrap(), ScopeCheck::Verified);
}

#[tokio::test]
async fn nodes_that_cannot_be_looked_up_are_skipped() {
    let cloud = FakeCloud::default();
    for name in ["n0", "n1", "n2", "n3"] {
        let error = Error::new(ErrorKind::InvalidSpec, format!("{name} is in another region"));
        cloud.fail(name, &error, 9);
    }
    let seven = cluster(&SEVEN);
    let answer = first(&cloud, &seven).await.unwrap();
    assert!(
        matches!(&answer, ScopeCheck::Unverified(why) if why.starts_with("no node that was looked up exists")),
        "an answer about others, and no error: {answer:?}"
    );
    cloud.insert("n5", Instance::default());
    assert_eq!(first(&cloud, &seven).await.unwrap(), ScopeCheck::Verified);
    let (four, check) = (cluster(&SEVEN[..4]), CredentialsCheck::default());
    for _ in 0..3 {
        let answer = run(&check, &cloud, &four).await.unwrap();
        let why = "no node could be looked up: n0 is in another region";
        assert_eq!(answer, ScopeCheck::Unverified(why.to_owned()));
    }
}
