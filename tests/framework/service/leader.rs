//! A new leader.

use std::{collections::BTreeMap, time::Duration};

use ccm_testbed::proxy::{Action, Proxy, Request, Rule};
use cloud_controller_manager::options::{Config, ElectionConfig};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::stage::{Stage, has_finalizer};
use crate::fake::eventually;

/// The Lease of a contest, which another process holds until it is released.
pub(crate) struct HeldLease {
    leases: Api<Lease>,
    name: String,
}

impl HeldLease {
    pub(crate) async fn new(stage: &Stage, name: &str) -> Self {
        let leases: Api<Lease> = Api::namespaced(stage.client.clone(), "kube-system");
        let now = MicroTime(Timestamp::now());
        let lease = Lease {
            metadata: kube::api::ObjectMeta {
                name: Some(name.to_owned()),
                ..Default::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some("another-process".to_owned()),
                lease_duration_seconds: Some(3600),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                ..LeaseSpec::default()
            }),
        };
        leases.create(&PostParams::default(), &lease).await.unwrap();
        Self {
            leases,
            name: name.to_owned(),
        }
    }

    /// Lets the program take part, with client-go's times.
    pub(crate) fn contend(&self, config: &mut Config) {
        config.election = Some(ElectionConfig {
            namespace: "kube-system".to_owned(),
            name: self.name.clone(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            migration: None,
        });
    }

    /// Releases it, as a leader does at its end.
    pub(crate) async fn release(&self) {
        let released = json!({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}});
        let params = PatchParams::default();
        let patch = Patch::Merge(released);
        self.leases.patch(&self.name, &params, &patch).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_does_not_decide_with_the_store_of_a_silent_watch() {
    let mut stage = Stage::start("silent-watch").await;
    stage.served("web").await;
    stage.kill();
    let lease = HeldLease::new(&stage, "silent-watch").await;
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(stage.client.clone(), folder.path()).await.unwrap();
    let kubeconfig = proxy.kubeconfig().to_owned();
    stage.run(|config| {
        config.api_server.kubeconfig = Some(kubeconfig);
        lease.contend(config);
    });
    let follows = |request: &Request| request.is_watch() && request.path.ends_with("/services");
    eventually("the standby follows the Services", async || {
        proxy.with_requests(|all| all.iter().any(follows)).then_some(())
    })
    .await;
    // The connection of the watches dies, and nobody notices.
    proxy.add(Rule::when(Request::is_watch, Action::Silence));
    // The leader finishes a deletion.
    stage.cloud.edit(BTreeMap::clear);
    stage.merge("web", json!({"metadata": {"finalizers": null}})).await;
    stage.delete("web").await;
    stage.deleted("web").await;
    stage.create("new", |_| {}).await;
    let before = stage.cloud.writes().len();
    lease.release().await;
    // It has listed the Services: the silent watch shows neither this one nor its finalizer.
    stage.service("new", "has the finalizer", has_finalizer).await;
    proxy.clear();
    stage.balancer("new", |_| true).await;
    let writes = stage.cloud.writes().split_off(before);
    let again = writes.iter().find(|write| write.contains("balancer_default_web"));
    assert_eq!(again, None, "{writes:#?}");
}
