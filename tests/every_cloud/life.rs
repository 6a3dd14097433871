//! A cluster from its first node to its last Service: its objects, the output of `plan`, and a restart that writes nothing.

use std::{process::Command, sync::Arc};

use ccm_testbed::{
    binary::Ccm,
    nodes::{self, NodeSpec},
    observe::is_initialized,
    stage::Stage,
    test_cloud::TestCloud,
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{LIMIT, on_each, program};

const FLAGS: [&str; 3] = [
    "--leader-elect=false",
    "--cluster-name=test",
    "--configure-cloud-routes=false",
];
const NODES: usize = 3;

/// A cluster on a cloud.
pub(crate) struct Life {
    pub(crate) cloud: Arc<dyn TestCloud>,
    pub(crate) stage: Stage,
    pub(crate) nodes: Api<Node>,
    pub(crate) services: Api<Service>,
}

impl Life {
    /// Starts a cluster with `count` machines and their uninitialized nodes.
    pub(crate) async fn begin(cloud: Arc<dyn TestCloud>, count: usize) -> Self {
        let stage = Stage::set(program()).await.unwrap();
        stage.write_cloud_config(&cloud.config()).unwrap();
        let client = stage.control_plane.client().await.unwrap();
        let mut specs = Vec::new();
        for at in 1..=count {
            let machine = cloud.create_machine(&format!("life-{at}")).await.unwrap();
            specs.push(NodeSpec::new(machine.node));
        }
        nodes::register(&client, &specs).await.unwrap();
        Self {
            cloud,
            nodes: Api::all(client.clone()),
            services: Api::default_namespaced(client),
            stage,
        }
    }

    async fn start(&self) -> Ccm {
        let kubeconfig = self.stage.control_plane.kubeconfig();
        let mut launch = self.stage.command(self.cloud.provider(), &kubeconfig, &FLAGS);
        launch.envs = self.cloud.environment();
        let mut ccm = Ccm::start(&launch).unwrap();
        ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
        ccm
    }

    /// The exit code and the output of `plan`.
    fn plan(&self) -> (i32, String) {
        let output = Command::new(program())
            .arg("plan")
            .arg(format!("--cloud-provider={}", self.cloud.provider()))
            .arg(format!("--cloud-config={}", self.stage.cloud_config().display()))
            .arg(format!("--kubeconfig={}", self.stage.control_plane.kubeconfig().display()))
            .args(FLAGS.into_iter().skip(1))
            .envs(self.cloud.environment())
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text)
    }

    /// The program's log so far.
    pub(crate) fn log(&self) -> String {
        self.stage.log()
    }

    pub(crate) async fn eventually<T>(&self, what: &str, check: impl AsyncFn() -> Option<T>) -> T {
        self.stage.eventually(what, check).await
    }

    pub(crate) async fn initialized(&self, count: usize) {
        let check = async || {
            let nodes = self.nodes.list(&ListParams::default()).await.ok()?.items;
            (nodes.iter().filter(|node| is_initialized(node)).count() == count).then_some(())
        };
        self.eventually("all nodes are initialized", check).await;
    }

    /// Waits until the only Service of the cloud is served.
    pub(crate) async fn served(&self, name: &str) {
        let check = async || {
            let service = self.services.get(name).await.ok()?;
            self.cloud.unserved(&service).await.ok()?.is_none().then_some(())
        };
        self.eventually("the Service is served", check).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_the_first_node_to_the_last_service() {
    on_each(async |cloud| {
        let life = Life::begin(cloud, NODES).await;
        let provider = life.cloud.provider();
        let ccm = life.start().await;
        life.initialized(NODES).await;
        drop(ccm);

        let shape = life.cloud.service();
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "annotations": shape.annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]},
        });
        let service = serde_json::from_value(service).unwrap();
        life.services.create(&PostParams::default(), &service).await.unwrap();
        let (code, text) = life.plan();
        assert_eq!(code, 2, "{provider}: the plan does not create a load balancer: {text}");

        let ccm = life.start().await;
        life.served("web").await;
        let before = life.cloud.picture(&[]).await.unwrap();
        // All objects of the load balancer exist when the program has reported success.
        let nothing_to_do = async || {
            let (code, _) = life.plan();
            (code == 0).then_some(())
        };
        life.eventually("plan has nothing to do", nothing_to_do).await;
        drop(ccm);

        let (picture, writes) = (life.cloud.picture(&[]).await.unwrap(), life.stage.control_plane.audit_log().unwrap().len());
        assert!(!before.is_empty() && writes > 0);
        life.cloud.party().forget();
        let ccm = life.start().await;
        // A node that joins now is initialized after all existing objects have been compared.
        let machine = life.cloud.create_machine("life-late").await.unwrap();
        let spec = NodeSpec {
            labels: [("node.kubernetes.io/exclude-from-external-load-balancers".to_owned(), "true".to_owned())].into(),
            ..NodeSpec::new(&machine.node)
        };
        nodes::register(&life.nodes.clone().into_client(), [&spec]).await.unwrap();
        let late = async || is_initialized(&life.nodes.get(&machine.node).await.ok()?).then_some(());
        life.eventually("the late node is initialized", late).await;
        let after = life.cloud.picture(&[]).await.unwrap();
        assert_eq!(after.differs(&picture), None, "{provider}: a restart changes nothing");

        let patch = Patch::Merge(json!({"metadata": {"annotations": shape.changed}}));
        life.services.patch("web", &PatchParams::default(), &patch).await.unwrap();
        let changed = async || {
            let now = life.cloud.picture(&[]).await.ok()?;
            now.differs(&picture).map(drop)
        };
        life.eventually("the load balancer changes", changed).await;

        life.services.delete("web", &DeleteParams::default()).await.unwrap();
        let all_deleted = async || {
            let deleted = life.services.get_opt("web").await.ok()?.is_none();
            (deleted && life.cloud.picture(&[]).await.ok()?.is_empty()).then_some(())
        };
        life.eventually("everything is deleted", all_deleted).await;
        drop(ccm);
    })
    .await;
}
