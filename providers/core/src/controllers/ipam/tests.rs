#![allow(clippy::unwrap_used)]

use http::{Method, Request, Response};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    client::{ClientMetrics, Fence},
    controllers::{
        ControllerMetrics, ControllerSetup, Informer, Needs,
        events::{EventMetrics, Writer},
    },
    testkit::FakeCloud,
};

/// An API server in memory. Its watches show each change.
#[derive(Default)]
struct Server {
    nodes: Vec<Value>,
    /// The status with which patches are refused, how many of them, and whether they are carried out nevertheless.
    refusal: (u16, usize, bool),
    patches: Vec<Value>,
    events: Vec<String>,
    /// The lines of the watch that were not sent yet.
    pending: Vec<String>,
}

/// An API server and the tasks of a controller on it.
struct Cluster {
    server: Arc<Mutex<Server>>,
    changed: Arc<Notify>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

fn node(name: &str, pod_cidrs: &[&str]) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"podCIDRs": pod_cidrs}, "status": {},
    })
}

fn response(code: u16, body: impl Into<Body>) -> Response<Body> {
    Response::builder().status(code).body(body.into()).unwrap()
}

fn json_of(code: u16, body: &Value) -> Response<Body> {
    response(code, serde_json::to_vec(body).unwrap())
}

async fn answer(server: Arc<Mutex<Server>>, changed: Arc<Notify>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    if parts.uri.query().is_some_and(|query| query.contains("watch=true")) {
        // A watch ends after what it has sent, and is opened again.
        loop {
            let more = changed.notified();
            let lines = std::mem::take(&mut server.lock().pending).concat();
            if !lines.is_empty() {
                return response(200, lines.into_bytes());
            }
            more.await;
        }
    }
    let body = body.collect_bytes().await.unwrap();
    let mut server = server.lock();
    if path.ends_with("/events") {
        let event: Value = serde_json::from_slice(&body).unwrap();
        server.events.push(event["message"].as_str().unwrap_or_default().to_owned());
        return json_of(201, &event);
    }
    if parts.method == Method::GET {
        let list = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": server.nodes});
        return json_of(200, &list);
    }
    let patch: Value = serde_json::from_slice(&body).unwrap();
    server.patches.push(patch.clone());
    let (code, count, is_done) = server.refusal;
    if count > 0 {
        server.refusal.1 -= 1;
        if !is_done {
            let status =
                json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "X", "code": code});
            return json_of(code, &status);
        }
    }
    let name = path.trim_end_matches("/status").rsplit('/').next().unwrap_or_default().to_owned();
    let found = server.nodes.iter_mut().find(|node| node["metadata"]["name"] == *name).unwrap();
    if let Some(cidrs) = patch.pointer("/spec/podCIDRs") {
        found["spec"]["podCIDRs"] = cidrs.clone();
    }
    if let Some(conditions) = patch.pointer("/status/conditions") {
        found["status"]["conditions"] = conditions.clone();
    }
    let found = found.clone();
    server.pending.push(format!("{}\n", json!({"type": "MODIFIED", "object": found})));
    changed.notify_waiters();
    if count > 0 {
        // The answer is lost.
        return response(code, b"x".to_vec());
    }
    json_of(200, &found)
}

impl Cluster {
    /// Starts the controller with this allocator on a cluster of these nodes.
    fn start<A: CidrAllocator + 'static>(
        nodes: Vec<Value>,
        refusal: (u16, usize, bool),
        allocator: A,
    ) -> Self {
        let server = Arc::new(Mutex::new(Server {
            nodes,
            refusal,
            ..Server::default()
        }));
        let changed = Arc::new(Notify::new());
        let (answering, notify) = (Arc::clone(&server), Arc::clone(&changed));
        let service = tower::service_fn(move |request| {
            let answered = answer(Arc::clone(&answering), Arc::clone(&notify), request);
            async move { Ok::<_, tower::BoxError>(answered.await) }
        });
        let client = Client::new(service, "default");
        let writer = Writer::new(client.clone(), &EventMetrics::default());
        let needs = Needs {
            pod_cidrs: true,
            ..Needs::default()
        };
        let informer = Informer::new(client.clone(), needs);
        let stop = CancellationToken::new();
        let context = ControllerContext {
            setup: ControllerSetup {
                cloud: Arc::new(FakeCloud::default()),
                cluster_name: "test".to_owned(),
                flags: Default::default(),
            },
            client: client.clone(),
            nodes: Arc::clone(&informer),
            services: Informer::new(client, Needs::default()),
            recorder: writer.recorder("node-ipam-controller"),
            fence: Fence::default(),
            metrics: ControllerMetrics::default(),
            cloud_metrics: ClientMetrics::default(),
            shutdown: stop.clone(),
        };
        let mut tasks = JoinSet::new();
        let stopped = stop.clone();
        tasks.spawn(async move { informer.run(stopped).await });
        let stopped = stop.clone();
        tasks.spawn(async move {
            stopped.run_until_cancelled(writer.run()).await;
        });
        tasks.spawn(run(context, allocator, |node| node.view.name != "excluded"));
        Self {
            server,
            changed,
            stop,
            tasks,
        }
    }

    /// Waits until the nodes are so.
    async fn until<T>(&self, what: &str, found: impl Fn(&Server) -> Option<T>) -> T {
        let waiting = async {
            loop {
                if let Some(found) = found(&self.server.lock()) {
                    return found;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        let ended = timeout(Duration::from_secs(600), waiting).await;
        ended.unwrap_or_else(|_| panic!("{what}: {:#?}", self.server.lock().patches))
    }

    /// The networks of all nodes, when each has some.
    async fn networks(&self) -> Vec<String> {
        self.until("all nodes have networks", |server| {
            let texts = |node: &Value| {
                let cidrs = node["spec"]["podCIDRs"].as_array()?;
                let texts: Vec<_> = cidrs.iter().filter_map(Value::as_str).collect();
                (!texts.is_empty()).then(|| texts.join(","))
            };
            server.nodes.iter().map(texts).collect()
        })
        .await
    }

    /// A change of the nodes by another client.
    fn change(&self, kind: &str, object: &Value) {
        let mut server = self.server.lock();
        let name = object["metadata"]["name"].clone();
        server.nodes.retain(|node| node["metadata"]["name"] != name);
        if kind != "DELETED" {
            server.nodes.push(object.clone());
        }
        server.pending.push(format!("{}\n", json!({"type": kind, "object": object})));
        self.changed.notify_waiters();
    }

    async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

fn range(cluster_cidr: &str) -> RangeAllocator {
    let flags = RangeFlags {
        cluster_cidr,
        ..RangeFlags::default()
    };
    RangeAllocator::new(&flags).unwrap()
}

const ACCEPTED: (u16, usize, bool) = (0, 0, false);

#[tokio::test(start_paused = true)]
async fn nodes_without_networks_get_those_that_no_other_node_has() {
    let nodes = vec![node("a", &[]), node("b", &["10.244.0.0/24"]), node("c", &[])];
    let cluster = Cluster::start(nodes, ACCEPTED, range("10.244.0.0/22"));
    let mut networks = cluster.networks().await;
    networks.sort();
    assert_eq!(networks, ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"]);
    let patches = cluster.server.lock().patches.clone();
    assert_eq!(patches.len(), 2, "{patches:#?}");
    for patch in &patches {
        assert_eq!(patch["spec"]["podCIDR"], patch["spec"]["podCIDRs"][0]);
        assert!(patch["metadata"]["uid"].as_str().unwrap().starts_with("uid-"));
    }

    // The fourth node takes the last one, and the fifth waits for a node to leave.
    cluster.change("ADDED", &node("d", &[]));
    assert!(cluster.networks().await.contains(&"10.244.3.0/24".to_owned()));
    cluster.change("ADDED", &node("e", &[]));
    let message = cluster.until("an Event", |server| server.events.first().cloned()).await;
    assert_eq!(
        message,
        "Node e status is now: CIDRNotAvailable: all networks of --cluster-cidr 10.244.0.0/22 are in use"
    );
    cluster.change("DELETED", &node("b", &["10.244.0.0/24"]));
    assert_eq!(cluster.networks().await.last().unwrap(), "10.244.0.0/24");
    cluster.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_tried_again() {
    for refusal in [(409, 2, false), (500, 3, false)] {
        let cluster = Cluster::start(vec![node("a", &[])], refusal, range("10.244.0.0/22"));
        assert!(cluster.networks().await[0].starts_with("10.244."));
        let patches = cluster.server.lock().patches.len();
        assert_eq!(patches, refusal.1 + 1);
        cluster.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_network_that_two_nodes_have_is_not_given_to_a_third() {
    let nodes = vec![
        node("a", &["10.244.0.0/24"]),
        node("b", &["10.244.0.0/24"]),
        node("c", &["10.244.1.0/24"]),
    ];
    let cluster = Cluster::start(nodes, ACCEPTED, range("10.244.0.0/23"));
    cluster.networks().await;
    cluster.change("DELETED", &node("a", &["10.244.0.0/24"]));
    cluster.change("ADDED", &node("d", &[]));
    cluster.until("an Event", |server| server.events.first().cloned()).await;
    cluster.change("DELETED", &node("b", &["10.244.0.0/24"]));
    assert_eq!(cluster.networks().await, ["10.244.1.0/24", "10.244.0.0/24"]);
    cluster.end().await;
}

/// An allocator of a cloud.
struct OfCloud;

#[async_trait]
impl CidrAllocator for OfCloud {
    const REPAIRS_NETWORK: bool = true;

    fn occupy(&mut self, _: &str, _: &[IpNet]) -> Result<()> {
        Ok(())
    }

    fn release(&mut self, _: &str, _: &[IpNet]) {}

    async fn allocate(&mut self, nodes: &[Arc<NodeObject>]) -> Vec<Result<Vec<IpNet>>> {
        let of = |node: &Arc<NodeObject>| match node.view.name.as_str() {
            "bare" => Err(Error::new(ErrorKind::InvalidSpec, "no range")),
            _ => Ok(vec!["10.9.0.0/24".parse().unwrap()]),
        };
        nodes.iter().map(of).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn the_network_of_a_node_is_reported_as_available() {
    let nodes = vec![
        node("excluded", &[]),
        node("bare", &[]),
        node("a", &[]),
        node("b", &["10.9.0.0/24"]),
    ];
    let cluster = Cluster::start(nodes, ACCEPTED, OfCloud);
    let conditions = cluster
        .until("both conditions", |server| {
            let of = |node: &Value| node.pointer("/status/conditions/0").cloned();
            server.nodes.iter().skip(2).map(of).collect::<Option<Vec<_>>>()
        })
        .await;
    for condition in conditions {
        assert_eq!(condition["type"], "NetworkUnavailable");
        assert_eq!(
            (condition["status"].as_str(), condition["reason"].as_str()),
            (Some("False"), Some("RouteCreated"))
        );
        assert_eq!(condition["message"], "NodeController create implicit route");
    }
    let message = cluster.until("an Event", |server| server.events.first().cloned()).await;
    assert_eq!(message, "Node bare status is now: CIDRNotAvailable: no range");
    let written = cluster.server.lock().patches.len();
    assert_eq!(written, 3, "the networks of one node, and two conditions");
    cluster.end().await;
}
