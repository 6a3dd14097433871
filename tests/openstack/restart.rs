//! The program, or the API server, ends in the middle.

use std::{collections::BTreeMap, time::Duration};

use ccm_sim::{Latency, Scope};
use ccm_testbed::observe::is_initialized;
use kube::api::ListParams;

use crate::scene::{LIMIT, Scene, names};

const NODES: usize = 300;

/// A burst of nodes that is under way: some are initialised, some are not.
async fn in_the_middle(flags: &[&str]) -> (Scene, ccm_testbed::binary::Ccm) {
    let scene = Scene::set().await;
    scene.cloud.set_latency(
        Scope::all(),
        Some(Latency::Fixed {
            time: Duration::from_millis(50),
        }),
    );
    let nodes = names("mid", NODES);
    scene.servers(&nodes);
    // One node is written at a time, so that the middle lasts.
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
async fn killed_in_the_middle_it_finishes_after_its_restart() {
    let (scene, mut ccm) = in_the_middle(&[]).await;
    ccm.kill().unwrap();
    let done = initialized(&scene).await;
    assert!(done < NODES, "there was no middle");
    let _again = scene.launch(&[]);
    scene.all_initialized(NODES).await;
    // What was done before was not done again: the node that was being written at most.
    let mut writes = BTreeMap::<_, usize>::new();
    for entry in scene.stage.control_plane.audit_log().unwrap() {
        let ours = entry.user_agent.starts_with("cloud-controller-manager");
        if ours && entry.resource == "nodes" && entry.verb == "patch" && entry.code == 200 {
            *writes.entry(entry.name).or_default() += 1;
        }
    }
    assert_eq!(writes.len(), NODES);
    assert!(writes.values().all(|count| *count <= 2), "{writes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn asked_to_end_in_the_middle_it_ends_in_order() {
    let (scene, mut ccm) = in_the_middle(&[]).await;
    ccm.terminate().unwrap();
    let status = ccm.wait(LIMIT).await.unwrap();
    assert!(status.success(), "{status}: {}", scene.log());
    let done = initialized(&scene).await;
    assert!(done < NODES, "there was no middle");
    // Every node that was finished has its event: nothing was cut off.
    let synced = ListParams::default().fields("reason=Synced");
    assert_eq!(scene.events.list(&synced).await.unwrap().items.len(), done);
    let _again = scene.launch(&[]);
    scene.all_initialized(NODES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_restarts_in_the_middle_loses_no_node() {
    // How long it takes to be back is up to the machine: not so long that the lease is lost.
    let patience = [
        "--leader-elect-lease-duration=200s",
        "--leader-elect-renew-deadline=150s",
    ];
    let (mut scene, mut ccm) = in_the_middle(&patience).await;
    scene.stage.control_plane.kill().unwrap();
    scene.stage.control_plane.restart().await.unwrap();
    assert!(initialized(&scene).await < NODES, "there was no middle");
    scene.all_initialized(NODES).await;
    assert!(
        ccm.exit_status().unwrap().is_none(),
        "it did not survive: {}",
        scene.log()
    );
    assert_eq!(ccm.get("/healthz").await.unwrap().0, 200);
}
