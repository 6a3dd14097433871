//! An API server whose etcd was restored from a backup: resource versions go back, objects are missing, and deleted ones exist
//! again.

use std::{fs, path::Path, time::Duration};

use ccm_testbed::controlplane::ControlPlane;
use kube::api::ListParams;
use serde_json::json;

use super::{
    orphans::{id_of, reports},
    stage::{Stage, addresses, has_finalizer},
};

/// Changes of a Service after the backup, more than an API server writes at its start.
const CHANGES: usize = 400;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The resource version of the API server.
async fn version(stage: &Stage) -> u64 {
    let list = stage.services.list(&ListParams::default().limit(1)).await.unwrap();
    list.metadata.resource_version.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_restored_from_a_backup_costs_no_load_balancer() {
    let folder = tempfile::tempdir().unwrap();
    let control_plane = ControlPlane::start_in(&folder.path().join("plane")).await.unwrap();
    let (etcd, backup) = (control_plane.dir().join("etcd"), folder.path().join("backup"));
    let mut stage = Stage::prepare_with(control_plane, "restored").await;
    stage.run(|config| {
        config.service.orphans.delete = true;
        config.service.orphans.report_after = Duration::ZERO;
    });
    let old = stage.served("old").await;
    stage.served("returns").await;

    stage.control_plane.kill().unwrap();
    copy(&etcd, &backup);
    stage.control_plane.restart().await.unwrap();
    let newer = stage.served("newer").await;
    stage.delete("returns").await;
    stage.deleted("returns").await;
    for change in 0..CHANGES {
        stage.merge("old", json!({"metadata": {"labels": {"change": change.to_string()}}})).await;
    }
    let before = version(&stage).await;
    let writes = stage.cloud.writes().len();

    stage.control_plane.kill().unwrap();
    fs::remove_dir_all(&etcd).unwrap();
    copy(&backup, &etcd);
    stage.control_plane.restart().await.unwrap();
    let after = version(&stage).await;
    assert!(after < before, "{after} after {before}");
    assert!(stage.services.get_opt("newer").await.unwrap().is_none());

    // The Service that was deleted exists again, and so does its load balancer.
    stage.balancer("returns", |balancer| !balancer.members.is_empty()).await;
    // Its watch works: new Services are served, and deleted ones are cleaned up.
    stage.marker("marker").await;
    stage.merge("old", json!({"spec": {"ports": [{"name": "https", "port": 443}]}})).await;
    let changed = stage
        .balancer("old", |balancer| balancer.ports.iter().any(|port| port.contains("443")))
        .await;
    assert_eq!(Some(&changed.id.to_string()), id_of(&old));
    // The load balancer of the Service that is missing is reported and stays.
    let report =
        crate::fake::eventually("the orphan is reported", async || reports(&stage).await.pop()).await;
    assert!(report.contains("balancer balancer_default_newer"), "{report}");
    assert!(stage.cloud.of("default/newer").is_some());
    let is_unrelated = |write: &String| write.contains("marker");
    let log = stage.cloud.writes().split_off(writes);
    let deleted: Vec<_> =
        log.iter().filter(|write| write.starts_with("delete") && !is_unrelated(write)).collect();
    let created: Vec<_> =
        log.iter().filter(|write| write.starts_with("create") && !is_unrelated(write)).collect();
    assert!(deleted.is_empty(), "{log:?}");
    assert!(matches!(created[..], [one] if one.contains("returns")), "{log:?}");
    // The user creates it again.
    let again = stage.served("newer").await;
    assert_ne!(again.metadata.uid, newer.metadata.uid);
    assert_eq!((id_of(&again), addresses(&again)), (id_of(&newer), addresses(&newer)));
    let returned = stage.service("returns", "has an address", |service| !addresses(service).is_empty()).await;
    assert!(has_finalizer(&returned));
}
