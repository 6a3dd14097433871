//! What takes the lease away from a leader.

use std::time::{Duration, Instant};

use ccm_testbed::binary::Ccm;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        rbac::v1::{ClusterRoleBinding, Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::contest::{LIMIT, Stage, THIEF, short};

/// Waits for the end of one that has lost its lease.
async fn gives_up(stage: &Stage, name: &str, ccm: &mut Ccm) {
    let status = ccm.wait(LIMIT).await.unwrap();
    let log = stage.log(name);
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("leaderelection lost: "), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_followed_when_its_lease_is_over() {
    let stage = Stage::set().await;
    let mut first = stage.ours("a", &short(), &[]);
    stage.writes("a").await;
    let _second = stage.standby("b", &short()).await;
    first.kill().unwrap();
    stage.writes("b").await;
    assert_eq!(stage.ledger.successions(), ["a", "b"]);
}

/// It sleeps between two writes: a request that the system has in hand already nobody can call back.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_wakes_up_too_late_writes_no_more() {
    let stage = Stage::set().await;
    for round in 1..=3 {
        let (leader, successor) = (format!("a{round}"), format!("b{round}"));
        let mut first = stage.ours(&leader, &short(), &["--node-status-update-frequency=2s"]);
        stage
            .eventually("it has written", async || {
                let entries = stage.ledger.entries();
                let last = entries.last().filter(|entry| entry.writer == leader)?;
                let age = last.returned?.elapsed().ok()?;
                (age < Duration::from_millis(300)).then_some(())
            })
            .await;
        first.pause().unwrap();
        let written = stage.ledger.count(&leader);
        let mut second = stage.ours(&successor, &short(), &[]);
        stage.writes(&successor).await;
        first.resume().unwrap();
        gives_up(&stage, &leader, &mut first).await;
        assert_eq!(stage.ledger.count(&leader), written, "{}", stage.log(&leader));
        stage.writes(&successor).await;
        second.terminate().unwrap();
        second.wait(LIMIT).await.unwrap();
    }
    assert_eq!(stage.ledger.successions(), ["a1", "b1", "a2", "b2", "a3", "b3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_ends_the_leader_and_not_the_standby() {
    let mut stage = Stage::set().await;
    let mut first = stage.ours("a", &short(), &[]);
    stage.writes("a").await;
    let mut second = stage.standby("b", &short()).await;
    stage.control_plane.kill().unwrap();
    let began = Instant::now();
    gives_up(&stage, "a", &mut first).await;
    let ended = began.elapsed();
    assert!(
        ended < short().lease_duration,
        "{ended:?}: somebody else may lead by then"
    );
    let written = stage.ledger.count("a");
    stage.control_plane.restart().await.unwrap();
    stage.writes("b").await;
    assert!(second.exit_status().unwrap().is_none());
    assert_eq!(stage.ledger.count("a"), written);
    assert_eq!(stage.ledger.successions(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_the_lease_api_alone_stops_writing() {
    let stage = Stage::set().await;
    let kubeconfig = stage
        .control_plane
        .service_account_kubeconfig("kube-system", "replica")
        .await
        .unwrap();
    let subjects = json!([{"kind": "ServiceAccount", "namespace": "kube-system", "name": "replica"}]);
    let post = PostParams::default();
    let all: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "replica"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:controller:node-controller"},
        "subjects": subjects,
    }))
    .unwrap();
    Api::all(stage.client.clone()).create(&post, &all).await.unwrap();
    // What the election needs, and no more.
    let role: Role = serde_json::from_value(json!({
        "metadata": {"name": "election"},
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}],
    }))
    .unwrap();
    let roles: Api<Role> = Api::namespaced(stage.client.clone(), "kube-system");
    roles.create(&post, &role).await.unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "election"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "election"},
        "subjects": subjects,
    }))
    .unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(stage.client.clone(), "kube-system");
    bindings.create(&post, &binding).await.unwrap();

    let mut first = stage.ours_as("a", &short(), &kubeconfig, &[]);
    stage.writes("a").await;
    let _second = stage.standby("b", &short()).await;
    bindings
        .delete("election", &DeleteParams::default())
        .await
        .unwrap();
    gives_up(&stage, "a", &mut first).await;
    stage.writes("b").await;
    assert_eq!(stage.ledger.successions(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_lease_is_stolen_ends_and_leaves_it_to_the_thief() {
    let stage = Stage::set().await;
    let mut first = stage.ours("a", &short(), &[]);
    stage.writes("a").await;
    let _second = stage.standby("b", &short()).await;
    stage.steal(&short().name).await;
    gives_up(&stage, "a", &mut first).await;
    let log = stage.log("a");
    assert!(
        log.contains(THIEF) && log.contains("has acquired the lease"),
        "{log}"
    );
    assert_eq!(stage.holder(&short().name).await, THIEF);
    // Who steals and does not renew is followed as anybody else.
    stage.writes("b").await;
    assert_eq!(stage.ledger.successions(), ["a", "b"]);
}

/// A holder whose clock is wrong, played by the test.
async fn renew_with_skew(leases: &Api<Lease>, seconds: i64) {
    let time = MicroTime(Timestamp::now() + SignedDuration::from_secs(seconds));
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(short().name),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some("elsewhere".to_owned()),
            lease_duration_seconds: Some(4),
            acquire_time: Some(time.clone()),
            renew_time: Some(time),
            lease_transitions: Some(0),
            ..LeaseSpec::default()
        }),
    };
    match leases.get_opt(&short().name).await.unwrap() {
        None => leases.create(&PostParams::default(), &lease).await.unwrap(),
        Some(old) => {
            let mut lease = lease;
            lease.metadata.resource_version = old.metadata.resource_version;
            leases
                .replace(&short().name, &PostParams::default(), &lease)
                .await
                .unwrap()
        }
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_clock_is_wrong_is_waited_for_like_any_other() {
    for seconds in [-30, 30] {
        let stage = Stage::set().await;
        renew_with_skew(&stage.leases, seconds).await;
        let _replica = stage.standby("a", &short()).await;
        // For twice the lease's duration.
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(8) {
            renew_with_skew(&stage.leases, seconds).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert_eq!(stage.ledger.count("a"), 0, "{seconds} s: it did not wait");
        let last = Instant::now();
        stage.writes("a").await;
        let waited = last.elapsed();
        assert!(
            (Duration::from_secs(3)..Duration::from_secs(15)).contains(&waited),
            "{seconds} s: {waited:?}"
        );
    }
}
