//! The program is killed at its calls to the cloud and its writes to the API server. In storms, cloud and API server fail at
//! random.

use std::{sync::Arc, time::Duration};

use ccm_testbed::{
    cache::say,
    scenarios::Kind,
    sweep::{Scenario, Selection, Storm, Sweep},
    test_cloud::TestCloud,
};

use crate::{on_each, program};

/// The longest duration of a storm.
const STORM: Duration = Duration::from_secs(6);

/// The scenario on this cloud. Returns `None` for routes on a cloud without routes.
async fn set(kind: Kind, cloud: Arc<dyn TestCloud>, nodes: usize) -> Option<Box<dyn Scenario>> {
    let provider = cloud.provider();
    let is_unsupported = kind == Kind::Routes && cloud.routes().is_none();
    let scenario = kind.set_on(&program(), cloud, nodes).await.unwrap();
    assert!(scenario.is_some() || is_unsupported, "{provider}: {kind:?} is not supported");
    scenario
}

/// Runs a scenario in a storm. A failure can be repeated with its seed:
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
            "{provider}: the storm had too few faults: {report}"
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
async fn a_service_is_created_in_a_storm() {
    storm(Kind::Serve, 2, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_changes_in_a_storm() {
    storm(Kind::Reshape, 2, 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_deleted_in_a_storm() {
    storm(Kind::Release, 2, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_change_in_a_storm() {
    storm(Kind::Routes, 6, 11).await;
}

/// A share of all points for each cloud. The program's writes do not differ between clouds: together they are killed at each
/// one. `cargo xtask sweep` covers all points of a cloud.
fn share(provider: &str) -> Selection {
    let all = cloud_controller_manager::providers::registered().unwrap();
    let number = all.iter().position(|known| known.name == provider).unwrap();
    Selection::Share {
        number,
        of: all.len(),
    }
}

/// Runs a scenario with this many nodes, and kills the program at these points, by cloud.
async fn sweep(kind: Kind, nodes: usize, selection: impl Fn(&str) -> Selection) {
    on_each(async |cloud| {
        let provider = cloud.provider();
        let Some(scenario) = set(kind, cloud, nodes).await else {
            return;
        };
        let sweep = Sweep {
            selection: selection(provider),
            ..Sweep::default()
        };
        let report = sweep.run(&*scenario, |_| {}).await.unwrap();
        say(format!("{provider}: {report}"));
        report.verdict().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_join_finish_after_a_kill_at_any_call() {
    sweep(Kind::Join, 6, share).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_leave_finish_after_a_kill_at_any_call() {
    sweep(Kind::Leave, 3, share).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_created_service_finishes_after_a_kill() {
    // `cargo xtask sweep` covers all points of this scenario and of those below.
    sweep(Kind::Serve, 2, |_| Selection::Every(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_service_finishes_after_a_kill() {
    sweep(Kind::Reshape, 2, |_| Selection::Every(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_service_finishes_after_a_kill() {
    sweep(Kind::Release, 2, |_| Selection::Every(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_that_change_finish_after_a_kill_at_any_call() {
    sweep(Kind::Routes, 4, |_| Selection::All).await;
}
