//! The HTTP server: accepts connections, and passes every request through the call log, the faults, the quota and the
//! latency to the simulated cloud.
//!
//! It uses hyper directly, since faults need access that frameworks do not offer: closing or resetting a connection
//! instead of answering, and stopping in the middle of a body.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::calls::{Call, CallLog};
use crate::clock::Clock;
use crate::control::{self, Behavior};
use crate::error::{Error, Result};
use crate::faults::{Action, Fault, Faults, Moment, Snapshot};
use crate::http::{Reply, Request, collect};
use crate::quota::Quotas;
use crate::wire::{Connection, Line, WireBody};

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) service: &'static str,
    pub(crate) region: String,
    pub(crate) interface: &'static str,
    pub(crate) op: &'static str,
    /// Path segments below the service's endpoint.
    pub(crate) rest: Vec<String>,
}

/// A simulated cloud behind the server.
pub(crate) trait Cloud: Send + Sync + 'static {
    /// The names of the services in quotas and the call log.
    fn services(&self) -> Vec<&'static str>;
    /// The service and operation of a request.
    fn target(&self, request: &Request) -> Target;
    /// Answers a request, from a frozen state if one is given.
    fn handle(&self, request: &Request, target: &Target, snapshot: Option<&Snapshot>) -> Reply;
    /// An error document in the service's format.
    fn refuse(&self, target: &Target, status: StatusCode) -> Reply;
    /// The answer to a request beyond the quota, with the seconds to wait.
    fn throttle(&self, target: &Target, retry_after: u64) -> Reply;
    /// How the real service words its limits and refusals, beyond [`Cloud::throttle`]: each is a fault.
    fn refusals(&self) -> Vec<Fault>;
    /// Freezes the current state.
    fn snapshot(&self) -> Snapshot;
    /// Answers a request of the control API, below `/_sim`, that only this cloud has.
    fn control(
        self: Arc<Self>,
        request: &Request,
        method: &str,
        path: &[&str],
        behavior: Behavior,
    ) -> control::Answer;
}

/// The layers between a connection and the cloud.
pub(crate) struct Traffic {
    pub(crate) clock: Arc<Clock>,
    pub(crate) calls: CallLog,
    pub(crate) faults: Faults,
    pub(crate) quotas: Quotas,
    /// How long every answer takes.
    pub(crate) latency: Mutex<Duration>,
    /// Whether listings have a different order each time.
    pub(crate) any_order: AtomicBool,
    pub(crate) max_request_line: usize,
}

impl Traffic {
    pub(crate) fn new(clock: Arc<Clock>, max_request_line: usize) -> Self {
        Self {
            clock,
            calls: CallLog::default(),
            faults: Faults::default(),
            quotas: Quotas::default(),
            latency: Mutex::default(),
            any_order: AtomicBool::default(),
            max_request_line,
        }
    }
}

/// A running listener; dropping it closes the listener and every connection.
#[derive(Debug)]
pub(crate) struct Server {
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens a listener first, so that the cloud can know its address.
pub(crate) async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let failed = |source| Error::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

impl Server {
    pub(crate) fn start(listener: TcpListener, traffic: Arc<Traffic>, cloud: Arc<dyn Cloud>) -> Self {
        Self {
            task: tokio::spawn(accept(listener, traffic, cloud)),
        }
    }

    /// Stops and waits until the listener is closed.
    pub(crate) async fn shutdown(mut self) {
        self.task.abort();
        // The task was aborted, so its result has no information.
        let _aborted = (&mut self.task).await;
    }
}

async fn accept(listener: TcpListener, traffic: Arc<Traffic>, cloud: Arc<dyn Cloud>) {
    let mut connections = JoinSet::new();
    loop {
        // Removes finished connections here, so that the set does not grow forever.
        while connections.try_join_next().is_some() {}
        // A failed accept concerns one connection (or a moment without file descriptors), never the listener.
        let Ok((stream, _peer)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        connections.spawn(connection(stream, Arc::clone(&traffic), Arc::clone(&cloud)));
    }
}

async fn connection(stream: TcpStream, traffic: Arc<Traffic>, cloud: Arc<dyn Cloud>) {
    let line = Arc::new(Line::default());
    let io = TokioIo::new(Connection::new(stream, Arc::clone(&line)));
    let service = service_fn(move |request| {
        let (traffic, cloud, line) = (Arc::clone(&traffic), Arc::clone(&cloud), Arc::clone(&line));
        async move { serve(request, &traffic, &cloud, &line).await }
    });
    // An error here is a disconnected client or an executed fault.
    let _outcome = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(io, service)
        .await;
}

/// Makes hyper close the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed on purpose")]
struct Closed;

async fn serve(
    request: http::Request<Incoming>,
    traffic: &Arc<Traffic>,
    cloud: &Arc<dyn Cloud>,
    line: &Arc<Line>,
) -> std::result::Result<Response<WireBody>, Closed> {
    let (parts, body) = request.into_parts();
    let body = collect(body).await.map_err(|_| Closed)?;
    let request = Request::new(&parts, body);
    let segments = crate::http::segments(&request.path);
    if let Some((first, rest)) = segments.split_first()
        && first == "_sim"
    {
        return Ok(whole(control::handle(cloud, traffic, &request, rest)));
    }
    let target = cloud.target(&request);
    let mut entry = Entry::open(&request, &target, traffic, line);
    let verdict = traffic.faults.decide(|armed| {
        let method = request.method.as_str();
        armed.fault.matches(target.service, method, &request.target(), target.op)
    });
    let (rule, armed) = verdict.rule.unzip();
    let (action, snapshot) = armed.map(|armed| (armed.fault.action, armed.snapshot)).unzip();
    if let Some(action) = &action {
        traffic.calls.update(entry.seq, |call| call.fault = Some(action.name()));
    }
    let rule = rule.unwrap_or_default();
    let answer_time = *traffic.latency.lock() + verdict.delay;
    if request.line_length() > traffic.max_request_line {
        return Ok(entry.close(too_long(), None));
    }
    if let Err(retry_after) = traffic.quotas.take(target.service, traffic.clock.elapsed()) {
        return Ok(entry.close(cloud.throttle(&target, retry_after), None));
    }
    if !answer_time.is_zero() {
        tokio::time::sleep(answer_time).await;
    }
    let handle = || {
        let reply = cloud.handle(&request, &target, snapshot.flatten().as_ref());
        if request.method == Method::GET && traffic.any_order.load(Ordering::Relaxed) {
            return reordered(reply, entry.seq);
        }
        reply
    };
    match action {
        None | Some(Action::Delay { .. } | Action::StaleRead) => Ok(entry.close(handle(), None)),
        Some(Action::Status { code, body, headers }) => {
            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut reply = cloud.refuse(&target, status);
            if let Some(body) = body {
                reply.body = body.into_bytes();
            }
            for (name, value) in headers {
                reply = reply.with(name.as_str(), &value);
            }
            Ok(entry.close(reply, None))
        }
        Some(Action::EmptyJson) => Ok(entry.close(Reply::json(StatusCode::OK, &serde_json::json!({})), None)),
        Some(Action::Partial { share }) => Ok(entry.close(partial(handle(), share), None)),
        Some(Action::Truncate { bytes }) => {
            let reply = handle();
            // At least one byte is missing, or the body would not be cut.
            let sent = bytes.unwrap_or(reply.body.len() / 2).min(reply.body.len().saturating_sub(1));
            Ok(entry.close(reply, Some(sent)))
        }
        Some(Action::Timeout) => std::future::pending().await,
        Some(Action::CommitThenHang) => {
            handle();
            std::future::pending().await
        }
        Some(Action::Hold { at: Moment::Before }) => {
            traffic.faults.hold(rule, target.op).await;
            Ok(entry.close(handle(), None))
        }
        Some(Action::Hold {
            at: Moment::AfterCommit,
        }) => {
            let reply = handle();
            traffic.faults.hold(rule, target.op).await;
            Ok(entry.close(reply, None))
        }
        Some(Action::Hold {
            at: Moment::AfterReply,
        }) => {
            let (head, body) = entry.close(handle(), None).into_parts();
            let (body, sent) = body.with_notification(line);
            let (traffic, op) = (Arc::clone(traffic), target.op);
            tokio::spawn(async move {
                if sent.await {
                    traffic.faults.reach(rule, op);
                }
            });
            Ok(Response::from_parts(head, body))
        }
        Some(Action::Drop) => Err(Closed),
        Some(Action::Reset) => {
            line.reset();
            Err(Closed)
        }
        Some(Action::CommitThenDrop) => {
            handle();
            Err(Closed)
        }
    }
}

/// A listing with its first items only, without a next page.
fn partial(mut reply: Reply, share: f64) -> Reply {
    use serde_json::{Map, Value};
    let Ok(mut document) = serde_json::from_slice::<Map<String, Value>>(&reply.body) else {
        return reply;
    };
    document.retain(|key, _| !key.ends_with("_links"));
    for items in document.values_mut().filter_map(Value::as_array_mut) {
        items.truncate((items.len() as f64 * share) as usize);
    }
    if let Ok(body) = serde_json::to_vec(&document) {
        reply.body = body;
    }
    reply
}

/// A listing with its items in another order. A page that has a next one keeps its order, which defines that next one.
fn reordered(mut reply: Reply, seed: u64) -> Reply {
    use serde_json::{Map, Value};
    let Ok(mut document) = serde_json::from_slice::<Map<String, Value>>(&reply.body) else {
        return reply;
    };
    if document.keys().any(|key| key.ends_with("_links")) {
        return reply;
    }
    let mut order = StdRng::seed_from_u64(seed);
    for items in document.values_mut().filter_map(Value::as_array_mut) {
        items.shuffle(&mut order);
    }
    if let Ok(body) = serde_json::to_vec(&document) {
        reply.body = body;
    }
    reply
}

/// The answer of a usual front end to a request line beyond its limit.
fn too_long() -> Reply {
    let body = "<!DOCTYPE HTML PUBLIC \"-//IETF//DTD HTML 2.0//EN\">\n<html><head>\n\
        <title>414 Request-URI Too Long</title>\n</head><body>\n<h1>Request-URI Too Long</h1>\n\
        <p>The requested URL's length exceeds the capacity\nlimit for this server.<br />\n</p>\n</body></html>\n";
    Reply::new(StatusCode::URI_TOO_LONG, "text/html; charset=iso-8859-1", body)
}

fn whole(reply: Reply) -> Response<WireBody> {
    let mut response = Response::new(WireBody::whole(reply.body));
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response
}

/// An answer with the length of its whole body that ends early.
fn cut(mut reply: Reply, sent: usize, line: Arc<Line>) -> Response<WireBody> {
    let promised = reply.body.len();
    let mut body = std::mem::take(&mut reply.body);
    body.truncate(sent);
    let mut response = whole(reply).map(|_| WireBody::cut(body, line));
    response.headers_mut().insert(http::header::CONTENT_LENGTH, promised.into());
    response
}

/// The log entry of a call in progress. If the client disconnects, hyper drops the call, and its duration is logged.
struct Entry<'a> {
    traffic: &'a Traffic,
    line: &'a Arc<Line>,
    seq: u64,
    started: Duration,
}

impl<'a> Entry<'a> {
    fn open(request: &Request, target: &Target, traffic: &'a Traffic, line: &'a Arc<Line>) -> Self {
        let header = |name| request.header(name).map(str::to_owned);
        let started = traffic.clock.uptime();
        let seq = traffic.calls.begin(Call {
            seq: 0,
            service: target.service,
            region: target.region.clone(),
            interface: target.interface,
            method: request.method.to_string(),
            path: request.path.clone(),
            query: request.query.clone(),
            op: target.op,
            status: None,
            started,
            duration: Duration::ZERO,
            user_agent: header("user-agent"),
            microversion: header("openstack-api-version"),
            bytes: 0,
            fault: None,
        });
        Self {
            traffic,
            line,
            seq,
            started,
        }
    }

    /// Answers, with only the first bytes of the body if `sent` is given.
    fn close(&mut self, reply: Reply, sent: Option<usize>) -> Response<WireBody> {
        let bytes = sent.unwrap_or(reply.body.len());
        self.traffic.calls.update(self.seq, |call| {
            call.status = Some(reply.status.as_u16());
            call.bytes = bytes;
        });
        match sent {
            Some(sent) => cut(reply, sent, Arc::clone(self.line)),
            None => whole(reply),
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let duration = self.traffic.clock.uptime().saturating_sub(self.started);
        self.traffic.calls.update(self.seq, |call| call.duration = duration);
    }
}
