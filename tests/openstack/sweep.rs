//! The program is killed at every call that it makes of the cloud, and at every write to the API server: scenarios that
//! only OpenStack has, and one with many nodes. Those of every cloud are in `tests/every_cloud`.

use ccm_testbed::scenarios::Kind;
use ccm_testbed::sweep::{Selection, Sweep};

use crate::scene::program;

/// Plays a scenario with this many nodes, at these points.
async fn sweep(kind: Kind, nodes: usize, selection: Selection) {
    let Some(scenario) = kind.set(&program(), nodes).await.unwrap() else {
        ccm_testbed::cache::say(format!("{kind:?} is left out: the program cannot do it yet"));
        return;
    };
    let sweep = Sweep {
        selection,
        ..Sweep::default()
    };
    let report = sweep.run(&*scenario, |_| {}).await.unwrap();
    ccm_testbed::cache::say(report.to_string());
    report.verdict().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_somewhere_while_many_nodes_join_it_finishes_after_its_restart() {
    // All of its points: `cargo xtask sweep --full`.
    sweep(Kind::Join, 100, Selection::Every(200)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_call_while_addresses_change_it_finishes_after_its_restart() {
    sweep(Kind::Readdress, 3, Selection::All).await;
}
