//! A control plane, a cloud in memory and the program in this process, with short times.

use std::time::Duration;

use ccm_core::{Instance, testkit::FakeCloud};
use ccm_testbed::{
    controlplane::ControlPlane,
    in_process::InProcess,
    nodes::{self, NodeSpec},
};
use cloud_controller_manager::options::Config;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::fake::{self, Fake, eventually};

pub(crate) const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
pub(crate) const AUTOSCALER: &str = "ToBeDeletedByClusterAutoscaler";

pub(crate) struct Stage {
    /// Dropped first, so that the program has ended when another test gets the control plane.
    #[allow(dead_code)] // For the test of the end, which has a process of its own.
    pub(crate) program: InProcess,
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: kube::Client,
    pub(crate) cloud: FakeCloud,
    pub(crate) nodes: Api<Node>,
    pub(crate) events: Api<Event>,
}

/// An initialized node with the provider ID of the machine of its name.
pub(crate) fn node(name: &str, ready: bool) -> NodeSpec {
    NodeSpec {
        provider_id: Some(format!("fake://{name}")),
        uninitialized: false,
        ready,
        ..NodeSpec::new(name)
    }
}

impl Stage {
    /// Starts the program with short times, which `change` can override.
    pub(crate) async fn start(cluster: &str, change: impl FnOnce(&mut Config)) -> Self {
        let cloud = Fake::default();
        let control_plane = ControlPlane::start().await.unwrap();
        let client = control_plane.client().await.unwrap();
        let program = fake::start(&control_plane, cluster, &cloud, &[], |config| {
            config.lifecycle.monitor_period = Duration::from_millis(200);
            config.lifecycle.deletion_confirm = Duration::from_millis(500);
            config.lifecycle.deletion_grace = Some(Duration::ZERO);
            change(config);
        });
        Self {
            program,
            control_plane,
            nodes: Api::all(client.clone()),
            events: Api::all(client.clone()),
            client,
            cloud: cloud.machines,
        }
    }

    pub(crate) async fn register(&self, specs: &[NodeSpec]) {
        nodes::register(&self.client, specs).await.unwrap();
    }

    /// Adds machines and their nodes, which are ready.
    pub(crate) async fn healthy(&self, names: &[String]) {
        for name in names {
            self.cloud.insert(name, Instance::default());
        }
        let specs: Vec<_> = names.iter().map(|name| node(name, true)).collect();
        self.register(&specs).await;
    }

    pub(crate) async fn set_ready(&self, name: &str, ready: bool) {
        nodes::set_ready(&self.client, name, ready).await.unwrap();
    }

    /// Sets the status of the condition `Ready`, such as `Unknown`.
    pub(crate) async fn set_ready_status(&self, name: &str, status: &str) {
        let condition = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        let patch = Patch::Strategic(condition);
        self.nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn merge(&self, name: &str, patch: serde_json::Value) {
        let patch = Patch::Merge(patch);
        self.nodes.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn exists(&self, name: &str) -> bool {
        self.nodes.get_opt(name).await.unwrap().is_some()
    }

    pub(crate) async fn names(&self) -> Vec<String> {
        let nodes = self.nodes.list(&ListParams::default()).await.unwrap();
        nodes.items.into_iter().map(|node| node.metadata.name.unwrap()).collect()
    }

    pub(crate) async fn deleted(&self, name: &str) {
        eventually(&format!("{name} is deleted"), async || (!self.exists(name).await).then_some(())).await;
    }

    pub(crate) async fn node(&self, name: &str, what: &str, condition: impl Fn(&Node) -> bool) -> Node {
        eventually(&format!("{name}: {what}"), async || {
            self.nodes.get(name).await.ok().filter(|node| condition(node))
        })
        .await
    }

    pub(crate) async fn events(&self, fields: &str) -> Vec<Event> {
        self.events.list(&ListParams::default().fields(fields)).await.unwrap().items
    }

    pub(crate) async fn event(&self, node: &str, reason: &str) -> Event {
        let fields = format!("involvedObject.name={node},reason={reason}");
        eventually(&fields, async || self.events(&fields).await.pop()).await
    }

    /// The number of requests of the lifecycle controller for the node.
    pub(crate) fn lookups(&self, name: &str) -> usize {
        let calls = self.cloud.calls();
        let own = calls.iter().filter(|call| !call.metadata);
        own.filter(|call| call.nodes.iter().any(|node| node == name)).count()
    }

    pub(crate) async fn more_lookups(&self, name: &str, times: usize) {
        let before = self.lookups(name);
        eventually(&format!("more requests for {name}"), async || {
            (self.lookups(name) >= before + times).then_some(())
        })
        .await;
    }

    /// Waits until a new node without a machine is deleted. All deletions that were due before have then happened.
    pub(crate) async fn a_pass_deletes(&self, name: &str) {
        self.register(&[node(name, false)]).await;
        self.deleted(name).await;
    }

    /// Delays the cloud's second answer about the node, after which the node would be deleted.
    pub(crate) async fn delay_the_last_answer(&self, name: &str) {
        self.register(&[node(name, false)]).await;
        let requested = async |times| {
            eventually(&format!("a request for {name}"), async || {
                (self.lookups(name) >= times).then_some(())
            })
            .await;
        };
        requested(1).await;
        self.cloud.pause();
        requested(2).await;
    }

    /// The number of the program's requests to the API server for a node.
    pub(crate) fn requests(&self, verb: &str, name: &str) -> usize {
        let log = self.control_plane.audit_log().unwrap();
        let ours = log.iter().filter(|entry| {
            entry.is_ours() && entry.resource == "nodes" && entry.verb == verb && entry.name == name
        });
        ours.count()
    }
}

pub(crate) fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}-{i}")).collect()
}
