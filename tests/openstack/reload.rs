//! Credentials that change, expire or are revoked while nodes join.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ccm_sim::openstack::{AppCredentialSpec, UserSpec};
use ccm_testbed::binary::Ccm;

use crate::scene::{Scene, names};

/// The object of Events about the process if no manifest names the Pod.
const LEASE: &str = "cloud-controller-manager";

/// A scene whose cloud config is mounted as the kubelet mounts a Secret: with two links, of which the second is replaced.
struct MountedConfig {
    scene: Scene,
    version: AtomicU64,
}

impl MountedConfig {
    async fn with(conf: impl FnOnce(&Scene) -> String) -> Self {
        let scene = Scene::set().await;
        let mounted = Self {
            version: AtomicU64::new(0),
            scene,
        };
        fs::remove_file(mounted.scene.stage.cloud_config()).unwrap();
        mounted.update(&conf(&mounted.scene));
        symlink("..data/cloud.conf", mounted.scene.stage.cloud_config()).unwrap();
        mounted
    }

    fn update(&self, conf: &str) {
        let folder = self.scene.stage.folder();
        let version = self.version.fetch_add(1, Ordering::SeqCst);
        let name = |version: u64| format!("..2030_01_01.{version}");
        fs::create_dir(folder.join(name(version))).unwrap();
        fs::write(folder.join(name(version)).join("cloud.conf"), conf).unwrap();
        symlink(name(version), folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
        if let Some(old) = version.checked_sub(1) {
            fs::remove_dir_all(folder.join(name(old))).unwrap();
        }
    }

    /// Creates servers and their nodes, and waits until all nodes so far are initialized.
    async fn join(&self, prefix: &str, count: usize, in_all: usize) {
        let nodes = names(prefix, count);
        self.scene.servers(&nodes);
        self.scene.register(&nodes).await;
        self.scene.all_initialized(in_all).await;
    }

    /// Waits until this many changes were applied.
    async fn applied(&self, ccm: &Ccm, count: usize) {
        let line = format!("ccm_config_reloads_total{{result=\"applied\"}} {count}");
        let check = async || ccm.get("/metrics").await.ok().filter(|(_, text)| text.contains(&line));
        self.scene.eventually(&line, check).await;
    }

    async fn no_warnings(&self) {
        let warnings = self.scene.warnings().await;
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_join_through_rotations_and_none_fails() {
    let mounted = MountedConfig::with(|scene| scene.cloud.cloud_conf()).await;
    let cloud = &mounted.scene.cloud;
    let ccm = mounted.scene.start(&["--node-status-update-frequency=1s"]).await;
    mounted.join("start", 10, 10).await;
    let start = cloud.cloud_conf();
    let mut old = "ccm".to_owned();
    for round in 1..=3 {
        let (user, password) = (format!("user-{round}"), format!("hunter-{round}"));
        let spec = UserSpec {
            name: user.clone(),
            password: password.clone(),
            projects: None,
            ..UserSpec::default()
        };
        cloud.create_user(&spec).unwrap();
        let conf = start.replace("\"ccm\"", &format!("\"{user}\"")).replace("correct-horse", &password);
        // Nodes join before, during and after the change.
        let nodes = names(&format!("round-{round}"), 60);
        mounted.scene.servers(&nodes);
        let (first, rest) = nodes.split_at(20);
        mounted.scene.register(first).await;
        mounted.update(&conf);
        let (second, last) = rest.split_at(20);
        mounted.scene.register(second).await;
        mounted.applied(&ccm, round).await;
        // From now on, password and tokens of the old user are invalid.
        cloud.set_password(Some(&old), "changed").unwrap();
        mounted.scene.register(last).await;
        mounted.scene.all_initialized(10 + 60 * round).await;
        old = user;
    }
    mounted.no_warnings().await;
    let (_, metrics) = ccm.get("/metrics").await.unwrap();
    let failed: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("ccm_node_initializations_total") && !line.contains("\"success\""))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
    let log = mounted.scene.log();
    assert!(!log.contains("hunter-"), "a password is in the log");
    assert!(!log.contains("restart needed"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_config_is_reported_and_the_former_one_stays_in_force() {
    let mounted = MountedConfig::with(|scene| scene.cloud.cloud_conf()).await;
    let good = mounted.scene.cloud.cloud_conf();
    let ccm = mounted.scene.start(&[]).await;
    mounted.update(&format!("{good}use-clouds=perhaps\n[Quota]\ncompute-burst=many\n[Networking\n"));
    let event = mounted.scene.event(LEASE, "CloudConfigInvalid").await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.involved_object.kind.as_deref(), Some("Lease"));
    assert_eq!(event.metadata.namespace.as_deref(), Some("kube-system"));
    let message = event.message.unwrap();
    for part in ["use-clouds", "compute-burst", "cloud.conf:"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    mounted.join("invalid", 3, 3).await;

    mounted.update(&good.replace("correct-horse", "hunter2"));
    let message = mounted.scene.event(LEASE, "CloudConfigRejected").await.message.unwrap();
    assert!(message.contains("user \"ccm\""), "{message}");
    mounted.join("rejected", 3, 6).await;
    let (_, metrics) = ccm.get("/metrics").await.unwrap();
    assert!(metrics.contains("ccm_config_last_reload_successful 0"), "{metrics}");

    // The probe stays healthy, and a valid file ends the failure.
    assert_eq!(ccm.get("/readyz").await.unwrap().0, 200);
    mounted.update(&format!("{good}[Quota]\ncompute-burst=60\n"));
    let event = mounted.scene.event(LEASE, "CloudConfigReloaded").await;
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    let message = event.message.unwrap();
    assert!(
        message.contains("[Quota] compute-burst") && message.contains("project \"k8s\""),
        "{message}"
    );
    mounted.join("good", 3, 9).await;
    let warnings = mounted.scene.warnings().await;
    assert_eq!(warnings.len(), 2, "more than one for each: {warnings:?}");
    let all = format!("{warnings:?}{}", mounted.scene.log());
    assert!(!all.contains("hunter2") && !all.contains("correct-horse"), "a password is in the output");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_need_a_restart_are_named_and_change_nothing() {
    let mounted = MountedConfig::with(|scene| scene.cloud.cloud_conf()).await;
    let good = mounted.scene.cloud.cloud_conf();
    let _ccm = mounted.scene.start(&[]).await;
    let conf = good.replace("RegionOne", "RegionTwo");
    mounted.update(&format!("{conf}[Networking]\nipv6-support-disabled=true\n"));
    let log = mounted.scene.logged("restart needed").await;
    let line = log.lines().find(|line| line.contains("restart needed")).unwrap();
    assert!(
        line.contains("[Global] region") && line.contains("[Networking] ipv6-support-disabled"),
        "{line}"
    );
    mounted.join("still", 3, 3).await;
    mounted.no_warnings().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_expire_or_are_revoked_meanwhile_fail_no_node() {
    let mounted = MountedConfig::with(|scene| scene.cloud.cloud_conf()).await;
    let cloud = &mounted.scene.cloud;
    let _ccm = mounted.scene.start(&["--node-status-update-frequency=1s"]).await;
    mounted.join("before", 10, 10).await;
    for (round, end) in [1, 2].into_iter().zip(["expired", "revoked"]) {
        let nodes = names(end, 40);
        mounted.scene.servers(&nodes);
        let (first, rest) = nodes.split_at(20);
        mounted.scene.register(first).await;
        match end {
            "expired" => cloud.advance_clock(Duration::from_secs(2 * 3600)),
            _ => cloud.revoke_tokens(),
        }
        mounted.scene.register(rest).await;
        mounted.scene.all_initialized(10 + 40 * round).await;
    }
    let refused = cloud.calls().iter().filter(|call| call.status == Some(401)).count();
    assert!(refused > 0, "no token was refused");
    mounted.no_warnings().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_replaces_a_revoked_application_credential_without_a_restart() {
    let make = |scene: &Scene, name: &str| {
        let spec = AppCredentialSpec {
            name: name.to_owned(),
            ..AppCredentialSpec::default()
        };
        scene.cloud.create_app_credential(&spec).unwrap()
    };
    let mounted = MountedConfig::with(|scene| scene.cloud.cloud_conf_for(&make(scene, "first"))).await;
    let scene = &mounted.scene;
    let mut ccm = scene.start(&[]).await;
    mounted.join("before", 5, 5).await;
    scene.cloud.delete_app_credential("first").unwrap();
    let nodes = names("during", 5);
    scene.servers(&nodes);
    scene.register(&nodes).await;
    let event = scene.event("during-1", "Unauthenticated").await;
    let message = event.message.unwrap();
    assert!(message.contains(&scene.cloud.auth_url()), "{message}");

    let second = make(scene, "second");
    mounted.update(&scene.cloud.cloud_conf_for(&second));
    scene.event(LEASE, "CloudConfigReloaded").await;
    scene.all_initialized(10).await;
    assert!(ccm.exit_status().unwrap().is_none());
    assert!(!scene.log().contains(&second.secret));
}
