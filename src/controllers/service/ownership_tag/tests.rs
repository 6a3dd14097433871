#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ccm_core::{
    Priority,
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerMetrics,
        events::{EventMetrics, Writer},
    },
    plan::PlanMetrics,
    testkit::{FakeBalancers, FakeCloud},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{super::*, *};
use crate::{api::answering, controllers::fixture, server::Status};

const TAG: &str = "kube_cluster_id_cluster-1";

/// An API server with a Service; another one comes when the namespace was read.
struct Server {
    /// How the namespace is refused, and until when.
    refusal: (u16, Instant),
    was_read: bool,
    has_sent: bool,
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": "2",
            "finalizers": ["service.kubernetes.io/load-balancer-cleanup"],
        },
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]},
    })
}

fn list(kind: &str, items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": "1"}, "items": items})
}

impl Server {
    /// `None`: a watch on which nothing has happened yet.
    fn answer(&mut self, request: &http::Request<Body>) -> Option<(u16, Value)> {
        let uri = request.uri();
        let watch = uri.query().is_some_and(|query| query.contains("watch=true"));
        let found = match (uri.path(), watch) {
            ("/api/v1/namespaces/kube-system", _) => {
                let (code, end) = self.refusal;
                if Instant::now() < end {
                    return Some(answering::failure(code));
                }
                self.was_read = true;
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": "cluster-1"}})
            }
            ("/api/v1/services", true) if self.was_read && !self.has_sent => {
                self.has_sent = true;
                json!({"type": "ADDED", "object": service("later")})
            }
            (_, true) => return None,
            ("/api/v1/nodes", _) => {
                list("NodeList", &[json!({"metadata": {"name": "n1"}, "spec": {"providerID": "fake://n1"}})])
            }
            ("/api/v1/services", _) => list("ServiceList", &[service("web")]),
            (path, _) if path.starts_with("/api/v1/namespaces/ns/services/later") => service("later"),
            _ => service("web"),
        };
        Some((200, found))
    }
}

fn client(server: Server) -> Client {
    let server = Arc::new(Mutex::new(server));
    answering::client(move |request| {
        let server = Arc::clone(&server);
        async move {
            loop {
                if let Some(answer) = server.lock().answer(&request) {
                    return answer;
                }
                sleep(Duration::from_secs(1)).await;
            }
        }
    })
}

/// Runs the controller while the namespace is refused in this way for so many seconds. Returns when it began to work, the
/// tag of its first load balancer, and the tag of the one that was created after the namespace was read.
async fn life(code: u16, seconds: u64) -> (Duration, Option<String>, Option<String>) {
    let began = Instant::now();
    let client = client(Server {
        refusal: (code, began + Duration::from_secs(seconds)),
        was_read: false,
        has_sent: false,
    });
    let balancers = FakeBalancers::default();
    let writer = Writer::new(client.clone(), &EventMetrics::default());
    let nodes = Informer::new(Api::all(client.clone()), Needs::default());
    let services = Informer::new(Api::all(client.clone()), Needs::default());
    let setup = ControllerSetup {
        cloud: Arc::new(FakeCloud::default().with_balancers(&balancers, PlanMetrics::default())),
        cluster_name: "test".to_owned(),
        flags: Default::default(),
        framework: Arc::new(()),
    };
    let stop = CancellationToken::new();
    let context = ControllerContext {
        setup,
        client: client.clone(),
        nodes: Arc::clone(&nodes),
        services: Arc::clone(&services),
        recorder: writer.recorder(COMPONENT),
        fence: Fence::default(),
        metrics: ControllerMetrics::default(),
        cloud_metrics: ClientMetrics::default(),
        shutdown: stop.clone(),
    };
    let framework = Framework {
        // One worker, and no comparison with the cloud without a reason.
        config: fixture::config(&["--concurrent-service-syncs=1", "--service-drift-period=0"]),
        client: client.clone(),
        status: Status::default(),
        process: ObjectReference::default(),
    };
    let controller = ServiceController::new(context, &framework);
    let mut tasks = JoinSet::new();
    tasks.spawn(writer.discard());
    let stopped = stop.clone();
    tasks.spawn(async move { services.run(stopped).await });
    let stopped = stop.clone();
    tasks.spawn(async move { nodes.run(stopped).await });
    tasks.spawn(controller.run());

    let first = created(&balancers, "web").await;
    let worked = began.elapsed();
    let later = created(&balancers, "later").await;
    if first.is_none() && later.is_some() {
        // Nobody waits for this comparison, so that it is the only read in the background.
        let compared = || {
            let mut reads = balancers.reads().into_iter();
            reads.find(|read| read.priority == Priority::Background)
        };
        until("all load balancers are compared", compared).await;
    }
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    (worked, first, later)
}

/// The tag of the Service's load balancer, once it is there.
async fn created(balancers: &FakeBalancers, name: &str) -> Option<String> {
    until(name, || balancers.of(&format!("ns/{name}"))).await.tag
}

async fn until<T>(what: &str, found: impl Fn() -> Option<T>) -> T {
    for _ in 0..7200 {
        if let Some(found) = found() {
            return found;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("not within two hours: {what}")
}

#[tokio::test(start_paused = true)]
async fn one_401_at_the_start_costs_no_tag() {
    let (worked, first, later) = life(401, 1).await;
    assert!(worked < Duration::from_secs(10), "{worked:?}");
    assert_eq!((first.as_deref(), later.as_deref()), (Some(TAG), Some(TAG)));
}

#[tokio::test(start_paused = true)]
async fn controllers_start_after_a_minute_and_learn_the_tag_later() {
    for code in [401, 404, 500] {
        let (worked, first, later) = life(code, 120).await;
        assert!(worked >= START_LIMIT && worked < START_LIMIT * 5 / 4, "{code}: {worked:?}");
        assert_eq!((first.as_deref(), later.as_deref()), (None, Some(TAG)), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_role_that_is_repaired_is_noticed() {
    let (worked, first, later) = life(403, 900).await;
    assert!(worked < Duration::from_secs(10), "{worked:?}");
    assert_eq!((first.as_deref(), later.as_deref()), (None, Some(TAG)));
}
