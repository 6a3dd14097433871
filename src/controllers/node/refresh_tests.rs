#![allow(clippy::unwrap_used)]

use std::time::Duration;

use ccm_core::{
    AddressType, BuildFuture, Error, ErrorKind, NodeAddress, Provider,
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerContext, ControllerMetrics, ControllerSetup, Informer, Needs,
        events::{EventMetrics, Writer},
    },
    testkit::FakeCloud,
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Client};
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    api::answering,
    controllers::Framework,
    options::{self, Config, Request},
    server::Status,
};

/// The patches that the API server receives.
struct Patches {
    /// The code of every answer.
    code: u16,
    begun: Semaphore,
    /// How many may be answered.
    answers: Semaphore,
}

impl Patches {
    fn new(code: u16, answers: usize) -> Arc<Self> {
        Arc::new(Self {
            code,
            begun: Semaphore::new(0),
            answers: Semaphore::new(answers),
        })
    }
}

/// An API server with one node.
fn client(patches: &Arc<Patches>) -> Client {
    let patches = Arc::clone(patches);
    answering::client(move |request| {
        let patches = Arc::clone(&patches);
        async move {
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1"},
                "spec": {"providerID": "fake://n1"},
            });
            let is_watch = request
                .uri()
                .query()
                .is_some_and(|query| query.contains("watch=true"));
            match *request.method() {
                http::Method::GET if is_watch => std::future::pending().await,
                http::Method::GET => {
                    let metadata = json!({"resourceVersion": "1"});
                    let list = json!({"apiVersion": "v1", "kind": "NodeList", "metadata": metadata, "items": [node]});
                    (200, list)
                }
                _ => {
                    patches.begun.add_permits(1);
                    patches.answers.acquire().await.unwrap().forget();
                    match patches.code {
                        200 => (200, node),
                        code => answering::failure(code),
                    }
                }
            }
        }
    })
}

fn config() -> Arc<Config> {
    let build =
        |_| -> BuildFuture { Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "never built")) }) };
    let provider: &'static Provider = Box::leak(Box::new(Provider::new("fake", "for this test", build)));
    match options::parse(["--cloud-provider=fake".into()], &[provider]) {
        Ok(Request::Run(config)) => Arc::new(*config),
        other => panic!("{other:?}"),
    }
}

/// A controller whose store has the node. The cloud reports an address that the node lacks.
async fn controller(patches: &Arc<Patches>) -> Arc<NodeController> {
    let client = client(patches);
    let cloud = FakeCloud::default();
    let instance = Instance {
        addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")],
        ..Instance::default()
    };
    cloud.insert("n1", instance);
    let writer = Writer::new(client.clone(), &EventMetrics::default());
    let nodes = Informer::new(Api::all(client.clone()), Needs::default());
    let services = Informer::new(Api::all(client.clone()), Needs::default());
    let context = ControllerContext {
        setup: ControllerSetup {
            cloud: Arc::new(cloud),
            cluster_name: "test".to_owned(),
            flags: Default::default(),
            framework: Arc::new(()),
        },
        client: client.clone(),
        nodes: Arc::clone(&nodes),
        services,
        recorder: writer.recorder(COMPONENT),
        fence: Fence::default(),
        metrics: ControllerMetrics::default(),
        cloud_metrics: ClientMetrics::default(),
        shutdown: CancellationToken::new(),
    };
    let framework = Framework {
        config: config(),
        client,
        status: Status::default(),
        process: ObjectReference::default(),
    };
    let controller = NodeController::new(context, &framework);
    tokio::spawn(writer.discard());
    let running = Arc::clone(&nodes);
    tokio::spawn(async move { running.run(CancellationToken::new()).await });
    nodes.synced().await;
    controller
}

#[tokio::test(start_paused = true)]
async fn a_write_that_has_begun_is_finished_at_shutdown() {
    let patches = Patches::new(200, 0);
    let controller = controller(&patches).await;
    let mut refreshes = tokio::spawn(Arc::clone(&controller).refresh_forever());
    patches.begun.acquire().await.unwrap().forget();
    controller.shutdown.cancel();
    let early = timeout(Duration::from_secs(1), &mut refreshes).await;
    assert!(early.is_err(), "the write was dropped");
    patches.answers.add_permits(1);
    refreshes.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_writes_are_reported_until_they_work() {
    let (mut memory, failing) = (Memory::default(), Failing::default());
    for (code, fails) in [(403, true), (500, true), (200, false)] {
        let controller = controller(&Patches::new(code, 1)).await;
        controller.refresh(&mut memory, &failing).await;
        assert_eq!(failing.is_ongoing(), fails, "{code}");
    }
}
