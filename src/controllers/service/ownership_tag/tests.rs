#![allow(clippy::unwrap_used)]

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ccm_core::{
    BuildFuture, Error, ErrorKind, Priority, Provider,
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerMetrics,
        events::{EventMetrics, Writer},
    },
    plan::PlanMetrics,
    testkit::{FakeBalancers, FakeCloud},
};
use http::Response;
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{super::*, *};
use crate::{
    options::{self, Config, Request},
    server::Status,
};

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
    /// `None`: a watch on which nothing happens.
    fn answer(&mut self, request: &http::Request<Body>) -> (u16, Option<Value>) {
        let uri = request.uri();
        let watch = uri.query().is_some_and(|query| query.contains("watch=true"));
        let found = match (uri.path(), watch) {
            ("/api/v1/namespaces/kube-system", _) => {
                let (code, end) = self.refusal;
                if Instant::now() < end {
                    let status = json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": "no",
                    });
                    return (code, Some(status));
                }
                self.was_read = true;
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": "cluster-1"}})
            }
            ("/api/v1/services", true) if self.was_read && !self.has_sent => {
                self.has_sent = true;
                json!({"type": "ADDED", "object": service("later")})
            }
            (_, true) => return (200, None),
            ("/api/v1/nodes", _) => list(
                "NodeList",
                &[json!({"metadata": {"name": "n1"}, "spec": {"providerID": "fake://n1"}})],
            ),
            ("/api/v1/services", _) => list("ServiceList", &[service("web")]),
            (path, _) if path.starts_with("/api/v1/namespaces/ns/services/later") => service("later"),
            _ => service("web"),
        };
        (200, Some(found))
    }
}

fn client(server: Server) -> Client {
    let server = Arc::new(Mutex::new(server));
    let answer = tower::service_fn(move |request: http::Request<Body>| {
        let (code, body) = server.lock().answer(&request);
        let body = Answer(body.map(|body| format!("{body}\n").into_bytes().into()));
        let response = Response::builder().status(code).body(body).unwrap();
        async move { Ok::<_, Infallible>(response) }
    });
    Client::new(answer, "default")
}

/// A body that ends after this, or never comes.
struct Answer(Option<Bytes>);

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            None => Poll::Pending,
            Some(rest) if rest.is_empty() => Poll::Ready(None),
            Some(rest) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(rest))))),
        }
    }
}

/// One worker, and no comparison with the cloud without a reason.
fn config() -> Arc<Config> {
    let build =
        |_| -> BuildFuture { Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "never built")) }) };
    let provider: &'static Provider = Box::leak(Box::new(Provider::new("fake", "for this test", build)));
    let words = [
        "--cloud-provider=fake",
        "--concurrent-service-syncs=1",
        "--service-drift-period=0",
    ];
    match options::parse(words.map(Into::into), &[provider]) {
        Ok(Request::Run(config)) => Arc::new(*config),
        other => panic!("{other:?}"),
    }
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
        config: config(),
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
        assert!(
            worked >= START_LIMIT && worked < START_LIMIT * 5 / 4,
            "{code}: {worked:?}"
        );
        assert_eq!((first.as_deref(), later.as_deref()), (None, Some(TAG)), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_role_that_is_repaired_is_noticed() {
    let (worked, first, later) = life(403, 900).await;
    assert!(worked < Duration::from_secs(10), "{worked:?}");
    assert_eq!((first.as_deref(), later.as_deref()), (None, Some(TAG)));
}
