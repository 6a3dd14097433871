//! The program is killed at every call to the cloud and every write to the API server, in scenarios that only OpenStack has,
//! and in one with many nodes. Scenarios of every cloud are in `tests/every_cloud`.

use ccm_testbed::scenarios::Kind;
use ccm_testbed::sweep::{Selection, Sweep};

use crate::scene::program;

/// Runs a scenario with this many nodes, and kills the program at these points.
async fn sweep(kind: Kind, nodes: usize, selection: Selection) {
    let scenario = kind.set(&program(), nodes).await.unwrap().unwrap();
    let sweep = Sweep {
        selection,
        ..Sweep::default()
    };
    let report = sweep.run(&*scenario, |_| {}).await.unwrap();
    ccm_testbed::cache::say(report.to_string());
    report.verdict().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_nodes_that_join_finish_after_a_kill() {
    // `cargo xtask sweep --full` covers all of its points.
    sweep(Kind::Join, 100, Selection::Every(200)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_addresses_finish_after_a_kill_at_any_call() {
    sweep(Kind::Readdress, 3, Selection::All).await;
}
