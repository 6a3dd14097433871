//! A controller and one node, with an API server in memory.
#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
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
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Framework;
use crate::{
    api::answering,
    options::{self, Config, Request},
    server::Status,
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
    let nodes = Informer::new(Api::all(client.clone()), needs);
    let context = ControllerContext {
        setup: ControllerSetup {
            cloud: Arc::new(cloud),
            cluster_name: "test".to_owned(),
            flags: Default::default(),
            framework: Arc::new(()),
        },
        client: client.clone(),
        nodes: Arc::clone(&nodes),
        services: Informer::new(Api::all(client.clone()), Needs::default()),
        recorder: writer.recorder(component),
        fence: Fence::default(),
        metrics: ControllerMetrics::default(),
        cloud_metrics: ClientMetrics::default(),
        shutdown: CancellationToken::new(),
    };
    let framework = Framework {
        config: config(&[]),
        client,
        status: Status::default(),
        process: ObjectReference::default(),
    };
    let controller = new(context, &framework);
    tokio::spawn(writer.discard());
    let running = Arc::clone(&nodes);
    tokio::spawn(async move { running.run(CancellationToken::new()).await });
    nodes.synced().await;
    controller
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_lists_what_a_failing_watch_may_have_missed() {
    let (lists, watches) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&lists), Arc::clone(&watches));
    let client = answering::client(move |request| {
        let (lists, watches) = &counts;
        let answer = if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            watches.fetch_add(1, Ordering::Relaxed);
            answering::failure(503)
        } else {
            let nodes = 0..=lists.fetch_add(1, Ordering::Relaxed);
            let items: Vec<_> = nodes.map(|node| json!({"metadata": {"name": format!("n{node}")}})).collect();
            let metadata = json!({"resourceVersion": "1"});
            (200, json!({"apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": items}))
        };
        std::future::ready(answer)
    });
    let nodes = Informer::<NodeObject>::new(Api::all(client), Needs::default());
    let running = Arc::clone(&nodes);
    tokio::spawn(async move { running.run(CancellationToken::new()).await });
    nodes.synced().await;
    while watches.load(Ordering::Relaxed) < 2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(nodes.list().len(), 1);
    nodes.renew();
    nodes.synced().await;
    assert_eq!(nodes.list().len(), 2);
}
