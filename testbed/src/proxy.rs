//! A proxy between the program and the API server that can misbehave, stop at any request, and knows every write.
//!
//! Towards the program it is an API server without TLS on loopback, for whom it writes a kubeconfig; towards the real
//! one it is a client with the rights of whoever started it. Answers that end are passed on whole; watches are
//! passed on as they come.

mod answer;
mod cloud;
mod front;
mod request;
mod rules;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use ccm_sim::wire::{CutOff, WireBody};
use http::request::Parts;
use http::{Response, header};
use hyper::body::Bytes;
use kube::client::Body as KubeBody;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use answer::{ProxyBody, collect, next, refusal};
pub use cloud::CloudProxy;
use front::{Front, accept, passed_on};
pub use request::Request;
use rules::Rules;
pub use rules::{Action, Rule};

/// A running proxy. Dropping it closes it and all its connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    kubeconfig: PathBuf,
    task: JoinHandle<()>,
}

struct Shared {
    upstream: kube::Client,
    rules: Rules,
    log: Mutex<Log>,
    /// Changes with the log.
    changes: watch::Sender<()>,
    /// Watches that are open, each with what ends it.
    streams: Mutex<BTreeMap<u64, OpenWatch>>,
}

/// A watch and what ends it.
type OpenWatch = (Arc<Request>, oneshot::Sender<()>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Log {
    last: u64,
    requests: BTreeMap<u64, Request>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Starts a proxy that asks the API server as this client; its kubeconfig is written to the folder.
    ///
    /// # Errors
    /// When it cannot listen or write the file.
    pub async fn start(upstream: kube::Client, folder: &Path) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let kubeconfig = folder.join(format!("proxy-{}.kubeconfig", address.port()));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "proxy", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "proxy", "user": {} }],
            "contexts": [{ "name": "proxy", "context": { "cluster": "proxy", "user": "proxy" } }],
            "current-context": "proxy",
        });
        std::fs::write(&kubeconfig, serde_json::to_vec_pretty(&config)?)
            .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
        let shared = Arc::new(Shared {
            upstream,
            rules: Rules::default(),
            log: Mutex::default(),
            changes: watch::Sender::new(()),
            streams: Mutex::default(),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            shared,
            address,
            kubeconfig,
            task,
        })
    }

    /// A kubeconfig whose server is this proxy.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a rule and returns its number. Rules are asked in the order in which they were added.
    pub fn add(&self, rule: Rule) -> u64 {
        self.shared.rules.add(rule)
    }

    /// Removes a rule; what it held goes on.
    pub fn remove(&self, id: u64) {
        self.shared.rules.retain(|rule| rule != id);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.shared.rules.retain(|_| false);
    }

    /// How often the rules in force have fired.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.shared.rules.fired()
    }

    /// Waits until no request is held any more: those of a client that is gone are forgotten, not carried out.
    pub fn none_held(&self) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.rules.none_held().await }
    }

    /// The request that a rule holds ([`Action::Hold`]), as soon as there is one; none if the rule is removed before.
    pub fn reached(&self, id: u64) -> impl Future<Output = Option<String>> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.rules.reached(id).await }
    }

    /// Makes the API server unreachable for these requests: connections are reset, and watches that are open break.
    /// Removing the rule makes it reachable again.
    pub fn refuse(&self, condition: impl Fn(&Request) -> bool + Send + Sync + Clone + 'static) -> u64 {
        let id = self.add(Rule::when(condition.clone(), Action::Reset));
        self.break_watches(condition);
        id
    }

    /// Breaks the watches that are open.
    pub fn break_watches(&self, condition: impl Fn(&Request) -> bool) {
        let mut streams = self.shared.streams.lock();
        let broken: Vec<u64> = streams
            .iter()
            .filter(|(_, (request, _))| condition(request))
            .map(|(&seq, _)| seq)
            .collect();
        for seq in broken {
            if let Some((_, end)) = streams.remove(&seq) {
                // It may have ended by itself.
                let _ended = end.send(());
            }
        }
    }

    /// Number of watches that are open.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.shared.streams.lock().len()
    }

    /// All requests since the start or the last [`Self::forget`], in the order of their arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.log.lock().requests.values().cloned().collect()
    }

    /// Those of them that may change something.
    #[must_use]
    pub fn writes(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(Request::is_write);
        requests
    }

    /// Forgets all requests so far.
    pub fn forget(&self) {
        self.shared.log.lock().requests.clear();
    }

    /// Waits until the log of requests satisfies a condition.
    pub async fn wait_for(&self, done: impl Fn(&[Request]) -> bool) {
        let mut changes = self.shared.changes.subscribe();
        loop {
            changes.borrow_and_update();
            // The sender is in `self`, so that waiting can not fail.
            if done(&self.requests()) || changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Front for Shared {
    fn rules(&self) -> &Rules {
        &self.rules
    }

    fn read(&self, head: &Parts) -> Request {
        let agent = head.headers.get(header::USER_AGENT);
        Request::new(
            head.method.as_str(),
            head.uri.path(),
            head.uri.query().unwrap_or_default(),
            agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default(),
        )
    }

    fn enter(&self, mut request: Request) -> Request {
        {
            let mut log = self.log.lock();
            log.last += 1;
            request.seq = log.last;
            log.requests.insert(request.seq, request.clone());
        }
        self.changes.send_replace(());
        request
    }

    fn update(&self, seq: u64, change: impl FnOnce(&mut Request)) {
        if let Some(request) = self.log.lock().requests.get_mut(&seq) {
            change(request);
        }
        self.changes.send_replace(());
    }

    fn refusal(&self, _: &Request, code: u16, retry_after: Option<u32>) -> Response<ProxyBody> {
        refusal(code, retry_after)
    }

    async fn forward(
        shared: &Arc<Self>,
        head: &Parts,
        body: Bytes,
        request: &Request,
    ) -> Result<Response<ProxyBody>, ()> {
        forward(head, body, request, shared).await
    }
}

/// Asks the API server. An answer that ends is read whole, so that whoever gets it knows that all was done.
async fn forward(
    head: &http::request::Parts,
    body: Bytes,
    request: &Request,
    shared: &Arc<Shared>,
) -> Result<Response<ProxyBody>, ()> {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut asked = http::Request::builder()
        .method(head.method.clone())
        .uri(target)
        .body(KubeBody::from(body.to_vec()))
        .map_err(drop)?;
    *asked.headers_mut() = passed_on(&head.headers, header::AUTHORIZATION);
    let answer = shared.upstream.send(asked).await.map_err(drop)?;
    let (answered, mut body) = answer.into_parts();
    let body = if request.is_watch() && answered.status.is_success() {
        ProxyBody::Stream(stream(body, request, shared))
    } else {
        ProxyBody::Whole(WireBody::whole(collect(&mut body).await.map_err(drop)?))
    };
    let mut response = Response::new(body);
    *response.status_mut() = answered.status;
    *response.headers_mut() = passed_on(&answered.headers, header::AUTHORIZATION);
    Ok(response)
}

/// Passes a watch on, until it ends or is broken.
fn stream(
    mut body: KubeBody,
    request: &Request,
    shared: &Arc<Shared>,
) -> mpsc::Receiver<Result<Bytes, CutOff>> {
    let (sender, receiver) = mpsc::channel(1);
    let (end, mut ended) = oneshot::channel();
    let request = Arc::new(request.clone());
    let shared = Arc::clone(shared);
    shared
        .streams
        .lock()
        .insert(request.seq, (Arc::clone(&request), end));
    tokio::spawn(async move {
        loop {
            let frame = tokio::select! {
                biased;
                () = sender.closed() => break,
                _ = &mut ended => {
                    let _gone = sender.send(Err(CutOff)).await;
                    break;
                }
                frame = next(&mut body) => frame,
            };
            let part = match frame {
                None => break,
                Some(Ok(data)) => Ok(data),
                Some(Err(())) => Err(CutOff),
            };
            tokio::select! {
                biased;
                () = sender.closed() => break,
                _ = &mut ended => {
                    let _gone = sender.send(Err(CutOff)).await;
                    break;
                }
                () = shared.rules.silence(&request) => {}
            }
            if sender.send(part).await.is_err() {
                break;
            }
        }
        shared.streams.lock().remove(&request.seq);
    });
    receiver
}
