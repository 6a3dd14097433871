//! The program, or the API server, ends during a burst of nodes.

use std::{collections::BTreeMap, time::Duration};

use ccm_testbed::observe::is_initialized;
use kube::api::ListParams;

use crate::scene::{LIMIT, Scene, names};

const NODES: usize = 300;

/// Starts a burst of nodes, and returns when some are initialized and some are not.
async fn during_a_burst(flags: &[&str]) -> (Scene, ccm_testbed::binary::Ccm) {
    let scene = Scene::set().await;
    scene.cloud.set_latency(Duration::from_millis(50));
    let nodes = names("mid", NODES);
    scene.servers(&nodes);
    // One node is written at a time, so that the burst lasts.
    let mut all = vec!["--concurrent-node-syncs=1"];
    all.extend_from_slice(flags);
    scene.register(&nodes).await;
    let ccm = scene.launch(&all);
    scene.all_initialized(5).await;
    (scene, ccm)
}

async fn initialized(scene: &Scene) -> usize {
    let nodes = scene.nodes.list(&ListParams::default()).await.unwrap();
    nodes.items.iter().filter(|node| is_initialized(node)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_program_finishes_after_its_restart() {
    let (scene, mut ccm) = during_a_burst(&[]).await;
    ccm.kill().unwrap();
    let done = initialized(&scene).await;
    assert!(done < NODES, "the burst ended too early");
    let _again = scene.launch(&[]);
    scene.all_initialized(NODES).await;
    // Nodes were not written twice, except for the one in progress.
    let mut writes = BTreeMap::<_, usize>::new();
    for entry in scene.stage.control_plane.audit_log().unwrap() {
        let ours = entry.is_ours();
        if ours && entry.resource == "nodes" && entry.verb == "patch" && entry.code == 200 {
            *writes.entry(entry.name).or_default() += 1;
        }
    }
    assert_eq!(writes.len(), NODES);
    assert!(writes.values().all(|count| *count <= 2), "{writes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_the_program_in_order() {
    let (scene, mut ccm) = during_a_burst(&[]).await;
    ccm.terminate().unwrap();
    let status = ccm.wait(LIMIT).await.unwrap();
    assert!(status.success(), "{status}: {}", scene.log());
    let done = initialized(&scene).await;
    assert!(done < NODES, "the burst ended too early");
    // Every initialized node has its Event, so nothing was cut off.
    let synced = ListParams::default().fields("reason=Synced");
    assert_eq!(scene.events.list(&synced).await.unwrap().items.len(), done);
    let _again = scene.launch(&[]);
    scene.all_initialized(NODES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_api_server_loses_no_node() {
    // Long times, so that the Lease is not lost however long the restart takes.
    let patience = [
        "--leader-elect-lease-duration=200s",
        "--leader-elect-renew-deadline=150s",
    ];
    let (mut scene, mut ccm) = during_a_burst(&patience).await;
    scene.stage.control_plane.kill().unwrap();
    scene.stage.control_plane.restart().await.unwrap();
    assert!(initialized(&scene).await < NODES, "the burst ended too early");
    scene.all_initialized(NODES).await;
    assert!(ccm.exit_status().unwrap().is_none(), "the program ended: {}", scene.log());
    assert_eq!(ccm.get("/healthz").await.unwrap().0, 200);
}
