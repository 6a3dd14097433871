//! The program is killed at calls that it makes of the cloud and at writes to the API server; and everything around it fails at
//! random.

use std::{sync::Arc, time::Duration};

use ccm_testbed::{
    cache::say,
    scenarios::Kind,
    sweep::{Scenario, Selection, Storm, Sweep},
    test_cloud::TestCloud,
};

use crate::{on_each, program};

/// Longest storm.
const STORM: Duration = Duration::from_secs(6);

/// The scenario on this cloud. None for routes on a cloud that has none.
async fn set(kind: Kind, cloud: Arc<dyn TestCloud>, nodes: usize) -> Option<Box<dyn Scenario>> {
    let (provider, has_routes) = (cloud.provider(), cloud.routes().is_some());
    let scenario = kind.set_on(&program(), cloud, nodes).await.unwrap();
    assert!(
        scenario.is_some() || kind == Kind::Routes && !has_routes,
        "{provider}: {kind:?} cannot be played"
    );
    scenario
}

/// Plays a scenario in a storm. What failed once can be repeated with its seed:
/// `cargo xtask sweep --cloud CLOUD --scenario SCENARIO --storms --seed N`.
async fn storm(kind: Kind, nodes: usize, seed: u64) {
    on_each(async |cloud| {
        let provider = cloud.provider();
        let Some(scenario) = set(kind, cloud, nodes).await else {
            return;
        };
        let calm = Sweep::default().rehearse(&*scenario).await.unwrap();
        let storm = Storm {
            longest: STORM,
            ..Storm::new(seed)
        };
        let report = storm.run(&*scenario, &calm).await.unwrap();
        say(format!("{provider}: {report}"));
        assert!(
            report.failures.values().sum::<u64>() > 0,
            "{provider}: that was no storm: {report}"
        );
        report.verdict().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_join_in_a_storm() {
    storm(Kind::Join, 12, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_leave_in_a_storm() {
    storm(Kind::Leave, 3, 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_comes_in_a_storm() {
    storm(Kind::Serve, 2, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_changes_in_a_storm() {
    storm(Kind::Reshape, 2, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_goes_in_a_storm() {
    storm(Kind::Release, 2, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_change_in_a_storm() {
    storm(Kind::Routes, 6, 11).await;
}

/// Plays a scenario with this many nodes, at these points.
async fn sweep(kind: Kind, nodes: usize, selection: Selection) {
    on_each(async |cloud| {
        let provider = cloud.provider();
        let Some(scenario) = set(kind, cloud, nodes).await else {
            return;
        };
        let sweep = Sweep {
            selection,
            ..Sweep::default()
        };
        let report = sweep.run(&*scenario, |_| {}).await.unwrap();
        say(format!("{provider}: {report}"));
        report.verdict().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_call_while_nodes_join_it_finishes_after_its_restart() {
    sweep(Kind::Join, 6, Selection::All).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_call_while_nodes_leave_it_finishes_after_its_restart() {
    sweep(Kind::Leave, 3, Selection::All).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_somewhere_while_a_service_comes_it_finishes_after_its_restart() {
    // All of its points, as of those below: `cargo xtask sweep`.
    sweep(Kind::Serve, 2, Selection::Every(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_somewhere_while_a_service_changes_it_finishes_after_its_restart() {
    sweep(Kind::Reshape, 2, Selection::Every(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_somewhere_while_a_service_goes_it_finishes_after_its_restart() {
    sweep(Kind::Release, 2, Selection::Every(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_call_while_routes_change_it_finishes_after_its_restart() {
    sweep(Kind::Routes, 4, Selection::All).await;
}
