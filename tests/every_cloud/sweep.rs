//! The program is killed at calls that it makes of the cloud and at writes to the API server.

use ccm_testbed::{
    cache::say,
    scenarios::Kind,
    sweep::{Selection, Sweep},
};

use crate::{on_each, program};

/// Plays a scenario with this many nodes, at these points.
async fn sweep(kind: Kind, nodes: usize, selection: Selection) {
    on_each(async |cloud| {
        let provider = cloud.provider();
        let scenario = kind.set_on(&program(), cloud, nodes).await.unwrap();
        let scenario = scenario.unwrap_or_else(|| panic!("{provider}: {kind:?} cannot be played"));
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
