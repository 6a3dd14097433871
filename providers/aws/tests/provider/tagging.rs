//! The tagging controller on a real API server.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerContext, ControllerDef, ControllerMetrics, ControllerSetup, Informer, Needs,
        events::{EventMetrics, Writer},
    },
};
use ccm_testbed::{
    controlplane::ControlPlane,
    proxy::{Action, Request, Rule},
};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    context::provider,
    stage::{Stage, refusal},
};

const LABEL: &str = "k8s.io/cloud-provider-aws";
/// The checksum of `key1=value1`.
const CHECKSUM: &str = "9767c4972ba72e87ab553bad2afde741";

fn definition() -> &'static ControllerDef {
    let mut all = provider().controllers.iter();
    all.find(|def| def.names.is_called("tagging")).unwrap()
}

/// Runs the controller until the token is cancelled. `more`: flags.
fn run(
    client: &kube::Client,
    cloud: &Arc<dyn Cloud>,
    more: &[(&str, &str)],
) -> (tokio::task::JoinHandle<()>, CancellationToken) {
    let flags = [("tags", "key1=value1"), ("resources", "instance")];
    let flags = flags.iter().chain(more);
    let flags = flags.map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
    let shutdown = CancellationToken::new();
    let nodes = Informer::new(client.clone(), Needs::default());
    let watch = Arc::clone(&nodes);
    let until = shutdown.clone();
    tokio::spawn(async move { watch.run(until).await });
    let writer = Writer::new(client.clone(), &EventMetrics::default());
    let context = ControllerContext {
        setup: ControllerSetup {
            cloud: Arc::clone(cloud),
            cluster_name: "kubernetes".into(),
            flags: flags.collect(),
        },
        client: client.clone(),
        nodes,
        services: Informer::new(client.clone(), Needs::default()),
        recorder: writer.recorder("tagging-controller"),
        fence: Fence::default(),
        metrics: ControllerMetrics::default(),
        cloud_metrics: ClientMetrics::default(),
        shutdown: shutdown.clone(),
    };
    let running = (definition().start)(context).unwrap();
    (tokio::spawn(running), shutdown)
}

/// Polls until the condition is true.
async fn wait_for<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let polling = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), polling).await;
    ended.expect(what);
}

async fn create(nodes: &Api<Node>, name: &str, provider_id: &str) {
    let node = json!({"metadata": {"name": name}, "spec": {"providerID": provider_id}});
    let node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
}

async fn tag(stage: &Stage, id: &str) -> Option<String> {
    let filters = json!([{"Name": "resource-id", "Values": [id]}, {"Name": "key", "Values": ["key1"]}]);
    let filter = json!({ "Filters": filters });
    let found = stage.call("ec2", "describe_tags", filter).await;
    found["Tags"][0]["Value"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_are_tagged_with_their_nodes_and_untagged_after_them() {
    let stage = Stage::new(0, "").await;
    let control_plane = ControlPlane::start().await.unwrap();
    let client = control_plane.client().await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let machines = stage.launch_all(&["a".to_owned(), "b".to_owned()]).await;
    let ids = machines.iter().map(|(name, _, id, zone)| (name.clone(), format!("aws:///{zone}/{id}")));
    let mut ids: BTreeMap<String, String> = ids.collect();
    // A node whose instance EC2 does not find (yet), and one of another cloud: neither delays the others.
    ids.insert("c".into(), "aws:///us-east-1a/i-0123456789abcdef0".into());
    let fargate = "aws:///us-east-1a/1abc/fargate-ip-10-0-0-9.internal";
    ids.insert("d".into(), fargate.into());
    // An instance that has too many tags.
    let (_, _, full, _) = stage.launch("f").await;
    ids.insert("f".into(), format!("aws:///us-east-1a/{full}"));
    let refused = Action::answer(400, refusal("TagLimitExceeded", "no more than 50 tags"));
    let is_full = move |request: &Request| request.name == "CreateTags" && request.body.contains(&full);
    stage.account.proxy.add(Rule::when(is_full, refused));
    for (name, id) in &ids {
        create(&nodes, name, id).await;
    }
    stage.account.proxy.forget();
    let label = |name: &'static str| {
        let nodes = nodes.clone();
        async move { nodes.get(name).await.unwrap().metadata.labels?.remove(LABEL) }
    };
    let (running, shutdown) = run(&client, &stage.cloud, &[]);
    for name in ["a", "b"] {
        let has_label = || async { label(name).await.as_deref() == Some(CHECKSUM) };
        wait_for("label", has_label).await;
    }
    for (_, _, id, _) in &machines {
        assert_eq!(tag(&stage, id).await.as_deref(), Some("value1"));
    }
    for name in ["c", "d", "f"] {
        assert_eq!(label(name).await, None, "{name}");
    }
    // One request was for both at first.
    let both = |request: &Request| {
        let mut ids = machines.iter().map(|(_, _, id, _)| id.as_str());
        ids.all(|id| request.body.contains(id))
    };
    assert!(stage.account.proxy.writes().iter().any(both));

    nodes.delete("a", &DeleteParams::default()).await.unwrap();
    let id = &machines[0].2;
    wait_for("tags are removed", || async { tag(&stage, id).await.is_none() }).await;
    shutdown.cancel();
    running.await.unwrap();
    // A new process writes nothing for nodes that are already labeled.
    for name in ["c", "f"] {
        nodes.delete(name, &DeleteParams::default()).await.unwrap();
    }
    stage.account.proxy.forget();
    let (running, shutdown) = run(&client, &stage.cloud, &[]);
    create(&nodes, "e", &format!("aws:///us-east-1a/{id}")).await;
    wait_for("the next node", || async { label("e").await.is_some() }).await;
    let writes = stage.account.proxy.writes();
    let is_one = writes.len() == 1 && writes[0].body.contains(id.as_str());
    assert!(is_one, "{writes:?}");
    shutdown.cancel();
    running.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_delays_only_the_nodes_beyond_it() {
    let stage = Stage::new(0, "").await;
    let control_plane = ControlPlane::start().await.unwrap();
    let client = control_plane.client().await.unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    let names = ["a", "b", "c"].map(str::to_owned);
    for (name, _, id, zone) in stage.launch_all(&names).await {
        create(&nodes, &name, &format!("aws:///{zone}/{id}")).await;
    }
    let limit = [
        ("tagging-controller-rate-limit", "0.001"),
        ("tagging-controller-burst-limit", "2"),
    ];
    let (running, shutdown) = run(&client, &stage.cloud, &limit);
    let labeled = || async {
        let all = nodes.list(&ListParams::default()).await.unwrap();
        let labels = all.items.iter().filter_map(|node| node.metadata.labels.as_ref());
        labels.filter(|labels| labels.contains_key(LABEL)).count()
    };
    wait_for("two nodes", || async { labeled().await == 2 }).await;
    // The controller also ends while a node waits.
    shutdown.cancel();
    running.await.unwrap();
    assert_eq!(labeled().await, 2);
}
