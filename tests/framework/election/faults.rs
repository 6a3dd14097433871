//! Faults that end the leadership of a replica.

use std::time::{Duration, Instant};

use ccm_testbed::{binary::Ccm, manifests};
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::{SignedDuration, Timestamp},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use super::contest::{LIMIT, Stage, THIEF, short};

/// Waits for the end of a replica that has lost its Lease.
async fn loses_lease(stage: &Stage, name: &str, ccm: &mut Ccm) {
    let status = ccm.wait(LIMIT).await.unwrap();
    let log = stage.log(name);
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("leaderelection lost: "), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_followed_when_its_lease_expires() {
    let stage = Stage::set().await;
    let mut first = stage.ours("a", &short(), &[]);
    stage.wait_for_writes("a").await;
    let _second = stage.standby("b", &short()).await;
    first.kill().unwrap();
    stage.wait_for_writes("b").await;
    assert_eq!(stage.writes.successions(), ["a", "b"]);
}

/// The leader sleeps between two writes, because a request that the kernel has already accepted cannot be cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_wakes_up_too_late_does_not_write() {
    let stage = Stage::set().await;
    for round in 1..=3 {
        let (leader, successor) = (format!("a{round}"), format!("b{round}"));
        let mut first = stage.ours(&leader, &short(), &["--node-status-update-frequency=2s"]);
        stage
            .eventually("it has written", async || {
                let entries = stage.writes.entries();
                let last = entries.last().filter(|entry| entry.writer == leader)?;
                let age = last.returned?.elapsed().ok()?;
                (age < Duration::from_millis(300)).then_some(())
            })
            .await;
        first.pause().unwrap();
        let written = stage.writes.count(&leader);
        let mut second = stage.ours(&successor, &short(), &[]);
        stage.wait_for_writes(&successor).await;
        first.resume().unwrap();
        loses_lease(&stage, &leader, &mut first).await;
        assert_eq!(stage.writes.count(&leader), written, "{}", stage.log(&leader));
        stage.wait_for_writes(&successor).await;
        second.terminate().unwrap();
        second.wait(LIMIT).await.unwrap();
    }
    assert_eq!(stage.writes.successions(), ["a1", "b1", "a2", "b2", "a3", "b3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_api_server_ends_the_leader_and_not_the_standby() {
    let mut stage = Stage::set().await;
    let mut first = stage.ours("a", &short(), &[]);
    stage.wait_for_writes("a").await;
    let mut second = stage.standby("b", &short()).await;
    stage.control_plane.kill().unwrap();
    let began = Instant::now();
    loses_lease(&stage, "a", &mut first).await;
    let ended = began.elapsed();
    assert!(ended < short().lease_duration, "{ended:?}: another replica may lead by then");
    let written = stage.writes.count("a");
    stage.control_plane.restart().await.unwrap();
    stage.wait_for_writes("b").await;
    assert!(second.exit_status().unwrap().is_none());
    assert_eq!(stage.writes.count("a"), written);
    assert_eq!(stage.writes.successions(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_rights_for_leases_stops_writing() {
    let stage = Stage::set().await;
    let kubeconfig = stage.control_plane.service_account_kubeconfig("kube-system", "replica").await.unwrap();
    let role = "system:controller:node-controller";
    manifests::bind(&stage.client, "kube-system", "replica", role).await.unwrap();
    let post = PostParams::default();
    // Exactly the rights of leader election.
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
        "subjects": [{"kind": "ServiceAccount", "namespace": "kube-system", "name": "replica"}],
    }))
    .unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(stage.client.clone(), "kube-system");
    bindings.create(&post, &binding).await.unwrap();

    let mut first = stage.ours_as("a", &short(), &kubeconfig, &[]);
    stage.wait_for_writes("a").await;
    let _second = stage.standby("b", &short()).await;
    bindings.delete("election", &DeleteParams::default()).await.unwrap();
    loses_lease(&stage, "a", &mut first).await;
    stage.wait_for_writes("b").await;
    assert_eq!(stage.writes.successions(), ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_lease_is_stolen_ends_and_does_not_take_it_back() {
    let stage = Stage::set().await;
    let mut first = stage.ours("a", &short(), &[]);
    stage.wait_for_writes("a").await;
    let _second = stage.standby("b", &short()).await;
    stage.steal(&short().name).await;
    loses_lease(&stage, "a", &mut first).await;
    let log = stage.log("a");
    assert!(log.contains(THIEF) && log.contains("has acquired the lease"), "{log}");
    assert_eq!(stage.holder(&short().name).await, THIEF);
    // A thief that does not renew is followed like any holder.
    stage.wait_for_writes("b").await;
    assert_eq!(stage.writes.successions(), ["a", "b"]);
}

/// Renews the Lease as a holder whose clock is wrong.
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
            leases.replace(&short().name, &PostParams::default(), &lease).await.unwrap()
        }
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_clock_is_wrong_is_waited_for_like_any_other() {
    for seconds in [-30, 30] {
        let stage = Stage::set().await;
        renew_with_skew(&stage.leases, seconds).await;
        let _replica = stage.standby("a", &short()).await;
        // Renewals for twice the duration of the Lease.
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(8) {
            renew_with_skew(&stage.leases, seconds).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert_eq!(stage.writes.count("a"), 0, "{seconds} s: it did not wait");
        let last = Instant::now();
        stage.wait_for_writes("a").await;
        let waited = last.elapsed();
        assert!(
            (Duration::from_secs(3)..Duration::from_secs(15)).contains(&waited),
            "{seconds} s: {waited:?}"
        );
    }
}
