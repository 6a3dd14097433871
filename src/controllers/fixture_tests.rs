//! A controller and one node, with an API server in memory.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    BuildFuture, Error, ErrorKind, Provider,
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerContext, ControllerMetrics, ControllerSetup, Informer, Needs, NodeObject,
        events::{EventMetrics, Writer},
    },
    testkit::FakeCloud,
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Framework;
use crate::{
    api::answering,
    options::{self, Config, Request},
    server::{Checks, Status},
};

/// An API server with this node. `answer`: the status of the answer to a patch.
pub(super) fn client<F>(node: Value, answer: impl Fn() -> F + Send + Sync + 'static) -> Client
where
    F: Future<Output = u16> + Send + 'static,
{
    answering::client(move |request| {
        let (node, code) = (node.clone(), answer());
        async move {
            let query = request.uri().query().unwrap_or_default();
            match *request.method() {
                http::Method::GET if query.contains("watch=true") => std::future::pending().await,
                http::Method::GET => {
                    let metadata = json!({"resourceVersion": "1"});
                    let list = json!({"apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": [node]});
                    (200, list)
                }
                _ => match code.await {
                    200 => (200, node),
                    code => answering::failure(code),
                },
            }
        }
    })
}

/// The config of a fake provider and these flags.
pub(super) fn config(flags: &[&str]) -> Arc<Config> {
    let build =
        |_| -> BuildFuture { Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "never built")) }) };
    let provider: &'static Provider = Box::leak(Box::new(Provider::new("fake", "for this test", build)));
    let words = [&["--cloud-provider=fake"], flags].concat();
    match options::parse(words.into_iter().map(Into::into), &[provider]) {
        Ok(Request::Run(config)) => Arc::new(*config),
        other => panic!("{other:?}"),
    }
}

/// The controller that `new` makes, once its store has the node.
pub(super) async fn controller<C>(
    client: Client,
    cloud: FakeCloud,
    needs: Needs,
    component: &'static str,
    new: impl FnOnce(ControllerContext, &Framework) -> C,
) -> C {
    let writer = Writer::new(client.clone(), &EventMetrics::default());
    let nodes = Informer::new(client.clone(), needs);
    let context = ControllerContext {
        setup: ControllerSetup {
            cloud: Arc::new(cloud),
            cluster_name: "test".to_owned(),
            flags: Default::default(),
        },
        client: client.clone(),
        nodes: Arc::clone(&nodes),
        services: Informer::new(client.clone(), Needs::default()),
        recorder: writer.recorder(component),
        fence: Fence::default(),
        metrics: ControllerMetrics::default(),
        cloud_metrics: ClientMetrics::default(),
        shutdown: CancellationToken::new(),
    };
    let framework = Framework {
        config: config(&[]),
        cluster_id_client: client.clone(),
        client,
        status: Status::default(),
        checks: Checks::default(),
        process: ObjectReference::default(),
    };
    let controller = new(context, &framework);
    tokio::spawn(writer.discard());
    let running = Arc::clone(&nodes);
    tokio::spawn(async move { running.run(CancellationToken::new()).await });
    nodes.synced().await;
    controller
}

/// The answers of an API server with nodes, whose number grows with each listing.
#[derive(Default)]
struct GrowingCluster {
    lists: AtomicUsize,
    watches: AtomicUsize,
    /// Listings and watches that are refused with 403.
    refuses: AtomicBool,
    /// Watches are accepted, and never report a change.
    accepts_watches: AtomicBool,
    /// The resource version of listings and their nodes, less one.
    version: AtomicUsize,
}

impl GrowingCluster {
    fn client(self: &Arc<Self>) -> Client {
        let cluster = Arc::clone(self);
        answering::client(move |request| {
            let cluster = Arc::clone(&cluster);
            let query = request.uri().query().unwrap_or_default().to_owned();
            async move {
                if query.contains("watch=true") {
                    cluster.watches.fetch_add(1, Ordering::Relaxed);
                    if !cluster.accepts_watches.load(Ordering::Relaxed) {
                        return answering::failure(403);
                    }
                    tokio::time::sleep(Duration::from_secs(20)).await;
                    let mark =
                        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}});
                    return (200, json!({"type": "BOOKMARK", "object": mark}));
                }
                assert!(!query.contains("resourceVersion"), "a listing may be old: {query}");
                if cluster.refuses.load(Ordering::Relaxed) {
                    return answering::failure(403);
                }
                let nodes = 0..=cluster.lists.fetch_add(1, Ordering::Relaxed);
                let version = (1 + cluster.version.load(Ordering::Relaxed)).to_string();
                let items: Vec<_> = nodes
                    .map(|node| json!({"metadata": {"name": format!("n{node}"), "resourceVersion": version}}))
                    .collect();
                let metadata = json!({"resourceVersion": version});
                (200, json!({"apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": items}))
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_lists_again_before_it_decides() {
    let cluster = Arc::new(GrowingCluster::default());
    cluster.accepts_watches.store(true, Ordering::Relaxed);
    let nodes = Informer::<NodeObject>::new(cluster.client(), Needs::default());
    let running = Arc::clone(&nodes);
    tokio::spawn(async move { running.run(CancellationToken::new()).await });
    nodes.synced().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((nodes.list().len(), nodes.failing_for()), (1, None));
    // The old store stays while the listing fails, and nothing is decided.
    cluster.refuses.store(true, Ordering::Relaxed);
    nodes.renew();
    let waited = tokio::time::timeout(Duration::from_secs(300), nodes.synced()).await;
    assert!(waited.is_err());
    assert_eq!(nodes.list().len(), 1);
    cluster.refuses.store(false, Ordering::Relaxed);
    nodes.synced().await;
    assert_eq!(nodes.list().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_refused_is_failing_until_one_is_accepted() {
    let cluster = Arc::new(GrowingCluster::default());
    let nodes = Informer::<NodeObject>::new(cluster.client(), Needs::default());
    let running = Arc::clone(&nodes);
    tokio::spawn(async move { running.run(CancellationToken::new()).await });
    nodes.synced().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let failing = nodes.failing_for().unwrap();
    assert!(failing >= Duration::from_secs(590), "{failing:?}");
    assert_eq!(nodes.list().len(), 1, "the store keeps its objects");
    cluster.accepts_watches.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(120)).await;
    // An idle watch reports no change.
    let watches = cluster.watches.load(Ordering::Relaxed);
    assert_eq!(nodes.failing_for(), None, "after {watches} watches");
}

#[tokio::test(start_paused = true)]
async fn a_watch_begins_with_a_new_listing_if_resource_versions_went_back() {
    let cluster = Arc::new(GrowingCluster::default());
    cluster.version.store(500, Ordering::Relaxed);
    let nodes = Informer::<NodeObject>::new(cluster.client(), Needs::default());
    let running = Arc::clone(&nodes);
    tokio::spawn(async move { running.run(CancellationToken::new()).await });
    nodes.synced().await;
    // Watches are refused. As long as versions grow, the store stays.
    cluster.version.store(510, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(nodes.list().len(), 1);
    cluster.version.store(400, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(120)).await;
    let listed = nodes.list().len();
    assert!(listed > 1, "{listed}");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(nodes.list().len(), listed, "once");
}
