#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU16, Ordering};

use ccm_core::{
    BuildFuture, Error, Provider,
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerContext, ControllerMetrics, ControllerSetup, Informer, Needs,
        events::{EventMetrics, Writer},
    },
    testkit::{FakeCloud, FakeRoutes},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Client};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::answering,
    controllers::Framework,
    options::{self, Request},
    server::Status,
};

/// An API server with one node without the condition. `code`: the answer to a patch.
fn client(code: &Arc<AtomicU16>) -> Client {
    let code = Arc::clone(code);
    answering::client(move |request| {
        let code = code.load(Ordering::Relaxed);
        async move {
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1"},
                "spec": {"providerID": "fake://n1", "podCIDRs": ["10.244.1.0/24"]},
                "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
            });
            let query = request.uri().query().unwrap_or_default();
            match *request.method() {
                http::Method::GET if query.contains("watch=true") => std::future::pending().await,
                http::Method::GET => {
                    let metadata = json!({"resourceVersion": "1"});
                    let list = json!({"apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": [node]});
                    (200, list)
                }
                _ if code == 200 => (200, node),
                _ => answering::failure(code),
            }
        }
    })
}

/// A controller whose store has the node.
async fn controller(client: Client) -> RouteController {
    let build =
        |_| -> BuildFuture { Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "never built")) }) };
    let provider: &'static Provider = Box::leak(Box::new(Provider::new("fake", "for this test", build)));
    let Ok(Request::Run(config)) = options::parse(["--cloud-provider=fake".into()], &[provider]) else {
        panic!("not a request to run")
    };
    let writer = Writer::new(client.clone(), &EventMetrics::default());
    let needs = Needs {
        pod_cidrs: true,
        ..Needs::default()
    };
    let nodes = Informer::new(Api::all(client.clone()), needs);
    let context = ControllerContext {
        setup: ControllerSetup {
            cloud: Arc::new(FakeCloud::default().with_routes(&FakeRoutes::default())),
            cluster_name: "test".to_owned(),
            flags: Default::default(),
            framework: Arc::new(()),
        },
        client: client.clone(),
        nodes: Arc::clone(&nodes),
        services: Informer::new(Api::all(client.clone()), Needs::default()),
        recorder: writer.recorder(COMPONENT),
        fence: Fence::default(),
        metrics: ControllerMetrics::default(),
        cloud_metrics: ClientMetrics::default(),
        shutdown: CancellationToken::new(),
    };
    let framework = Framework {
        config: Arc::new(*config),
        client,
        status: Status::default(),
        process: ObjectReference::default(),
    };
    let controller = RouteController::new(context, &framework);
    tokio::spawn(writer.discard());
    let running = Arc::clone(&nodes);
    tokio::spawn(async move { running.run(CancellationToken::new()).await });
    nodes.synced().await;
    controller
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_cannot_be_written_is_tried_again_after_growing_waits() {
    let code = Arc::new(AtomicU16::new(403));
    let mut controller = controller(client(&code)).await;
    let cidrs = ClusterCidrs::parse("10.244.0.0/16").unwrap();
    let mut waits = Vec::new();
    for answer in [403, 403, 403, 403, 403, 403, 403, 403, 200, 403] {
        code.store(answer, Ordering::Relaxed);
        controller.written.clear();
        controller.pass(&cidrs).await;
        waits.push((controller.next - Instant::now()).as_secs_f64());
    }
    assert!(waits[0] <= 1.0 && waits[1] > 1.0 && waits[3] > 4.0, "{waits:?}");
    assert!(waits[7] > 45.0 && waits[7] <= 60.0, "{waits:?}");
    assert!(waits[8] > 60.0, "the usual period: {waits:?}");
    assert!(waits[9] <= 1.0, "from the beginning: {waits:?}");
}
