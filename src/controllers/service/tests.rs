//! The controller with an API server in memory and a paused clock.
#![allow(clippy::unwrap_used)]

use std::{pin::pin, task::Poll, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerMetrics,
        events::{EventMetrics, Writer},
    },
    load_balancer::{
        Discovery, LoadBalancers, PartReport, ProviderFinalizers, Request, ServiceId, ServiceView,
    },
    plan::PlanMetrics,
    testkit::{FakeBalancers, FakeCloud},
};
use futures_util::future::poll_fn;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::{api::answering, controllers::fixture, server::Status};

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

/// A running controller.
pub(super) struct Running {
    pub(super) checks: Checks,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Running {
    /// Starts the controller. The namespace `kube-system` is refused with this code for this long.
    pub(super) fn start(balancers: Arc<dyn LoadBalancers>, code: u16, refused_for: Duration) -> Self {
        let client = client(Server {
            refusal: (code, Instant::now() + refused_for),
            was_read: false,
            has_sent: false,
        });
        let writer = Writer::new(client.clone(), &EventMetrics::default());
        let nodes = Informer::new(client.clone(), Needs::default());
        let services = Informer::new(client.clone(), Needs::default());
        let setup = ControllerSetup {
            cloud: Arc::new(FakeCloud::default().with_engine(balancers)),
            cluster_name: "test".to_owned(),
            flags: Default::default(),
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
        let checks = Checks::default();
        let framework = Framework {
            // One worker, and no comparison with the cloud without a reason.
            config: fixture::config(&["--concurrent-service-syncs=1", "--service-drift-period=0"]),
            cluster_id_client: client.clone(),
            client,
            status: Status::default(),
            checks: checks.clone(),
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
        Self { checks, tasks, stop }
    }

    /// Ends it in order.
    pub(super) async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

pub(super) async fn until<T>(what: &str, found: impl Fn() -> Option<T>) -> T {
    for _ in 0..7200 {
        if let Some(found) = found() {
            return found;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("not within two hours: {what}")
}

/// What the provider does instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// It waits for ever.
    Waits,
    /// It computes for 61 s without waiting.
    Computes,
}

/// A provider in trouble.
struct Troubled {
    engine: Arc<dyn LoadBalancers>,
    discover: Option<Trouble>,
    run: Option<Trouble>,
    /// The failing checks of `/livez`, as seen while it computes.
    checks: Arc<Mutex<Option<Checks>>>,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Troubled {
    async fn trouble(&self, trouble: Option<Trouble>) {
        match trouble {
            None => {}
            Some(Trouble::Waits) => std::future::pending().await,
            Some(Trouble::Computes) => {
                let mut passes = pin!(advance(Duration::from_secs(61)));
                // The first poll advances the clock, within one poll of the caller.
                poll_fn(|context| {
                    let _ = passes.as_mut().poll(context);
                    Poll::Ready(())
                })
                .await;
                if let Some(checks) = &*self.checks.lock() {
                    self.seen.lock().extend(failing(checks));
                }
            }
        }
    }
}

#[async_trait]
impl LoadBalancers for Troubled {
    fn claims(&self, service: &ServiceView) -> Claim {
        self.engine.claims(service)
    }

    fn classes(&self) -> &[&'static str] {
        self.engine.classes()
    }

    fn finalizers(&self, service: &ServiceView) -> ProviderFinalizers {
        self.engine.finalizers(service)
    }

    async fn discover(&self, request: &Request) -> ccm_core::Result<Discovery> {
        self.trouble(self.discover).await;
        self.engine.discover(request).await
    }

    async fn run(&self, part: &PartKey, request: &Request) -> PartReport {
        self.trouble(self.run).await;
        self.engine.run(part, request).await
    }

    async fn plan(&self, request: &Request, only: Option<&ServiceId>) -> ccm_core::Result<Vec<PartReport>> {
        self.engine.plan(request, only).await
    }
}

/// The failing checks of `/livez`.
fn failing(checks: &Checks) -> Vec<String> {
    let failing = checks.failing_live().into_iter();
    failing.map(|(name, reason)| format!("{name}: {reason}")).collect()
}

/// Runs the controller with this provider for 30 minutes. Returns the failing checks of `/livez`.
async fn half_an_hour(discover: Option<Trouble>, run: Option<Trouble>) -> Vec<String> {
    let troubled = Troubled {
        engine: FakeBalancers::default().engine(PlanMetrics::default()),
        discover,
        run,
        checks: Arc::default(),
        seen: Arc::default(),
    };
    let (checks, seen) = (Arc::clone(&troubled.checks), Arc::clone(&troubled.seen));
    let running = Running::start(Arc::new(troubled), 403, Duration::ZERO);
    *checks.lock() = Some(running.checks.clone());
    for _ in 0..360 {
        sleep(Duration::from_secs(5)).await;
        seen.lock().extend(failing(&running.checks));
    }
    // A provider that waits for ever does not end.
    drop(running);
    seen.lock().dedup();
    seen.lock().clone()
}

#[tokio::test(start_paused = true)]
async fn a_cloud_that_never_answers_restarts_nothing() {
    for (discover, run) in [
        (None, None),
        (Some(Trouble::Waits), None),
        (None, Some(Trouble::Waits)),
    ] {
        let seen = half_an_hour(discover, run).await;
        assert_eq!(seen, [""; 0], "{discover:?} {run:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_computes_for_a_minute_is_stuck() {
    let seen = half_an_hour(Some(Trouble::Computes), None).await;
    let event_loop = format!("{EVENT_LOOP_CHECK}: the event loop has made no turn for more than 60 s");
    assert!(seen.contains(&event_loop), "{seen:?}");
    let seen = half_an_hour(None, Some(Trouble::Computes)).await;
    let workers = format!("{WORKERS_CHECK}: a worker has been computing for more than 60 s");
    assert!(seen.contains(&workers), "{seen:?}");
}
