//! A proxy between the program and the API server that can inject faults, stop at any request, and logs every request.
//!
//! For the program it is an API server without TLS on loopback, with a kubeconfig. For the real API server it is a client
//! with the permissions of the given client. Complete answers are forwarded whole, and watches event by event.

mod answer;
mod aws;
mod azure;
mod cloud;
mod controls;
mod front;
mod gce;
mod listing;
mod new_objects;
mod openstack;
mod request;
mod rules;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
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
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use answer::{ProxyBody, collect, next, refusal};
pub use ccm_sim::Moment;

pub use aws::{AwsDialect, READS as AWS_READS, refusal as aws_refusal};
pub use azure::{AzureDialect, is_write as is_azure_write, refusal as azure_refusal};
pub use cloud::{CloudProxy, Dialect};
pub use controls::Controls;
use front::{Front, accept, passed_on};
pub use gce::{GceDialect, is_write as is_gce_write, refusal as gce_refusal};
pub use openstack::OpenStackDialect;
pub use request::Request;
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
    /// Sends requests with a token, if they are sent with it.
    with_token: Option<kube::Client>,
    controls: Controls,
    /// Open watches, each with the sender that ends it.
    streams: Mutex<BTreeMap<u64, OpenWatch>>,
}

/// A watch and the sender that ends it.
type OpenWatch = (Arc<Request>, oneshot::Sender<()>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Starts a proxy that forwards to the API server with this client, and writes its kubeconfig to the folder.
    ///
    /// # Errors
    /// When it cannot listen or write the file.
    pub async fn start(upstream: kube::Client, folder: &Path) -> Result<Self> {
        Self::start_with(upstream, None, folder).await
    }

    /// As [`Self::start`]. Requests with a token are sent with it, by a client without credentials.
    ///
    /// # Errors
    /// When it cannot listen or write the file.
    pub async fn start_with_tokens(
        upstream: kube::Client,
        without_credentials: kube::Client,
        folder: &Path,
    ) -> Result<Self> {
        Self::start_with(upstream, Some(without_credentials), folder).await
    }

    async fn start_with(
        upstream: kube::Client,
        with_token: Option<kube::Client>,
        folder: &Path,
    ) -> Result<Self> {
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
            with_token,
            controls: Controls::default(),
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

    /// Makes the API server unreachable for these requests: connections are reset, and open watches break.
    /// Removing the rule makes it reachable again.
    pub fn refuse(&self, condition: impl Fn(&Request) -> bool + Send + Sync + Clone + 'static) -> u64 {
        let id = self.add(Rule::when(condition.clone(), Action::Reset));
        self.break_watches(condition);
        id
    }

    /// Breaks open watches.
    pub fn break_watches(&self, condition: impl Fn(&Request) -> bool) {
        let mut streams = self.shared.streams.lock();
        let broken: Vec<u64> = streams
            .iter()
            .filter(|(_, (request, _))| condition(request))
            .map(|(&seq, _)| seq)
            .collect();
        for seq in broken {
            if let Some((_, end)) = streams.remove(&seq) {
                // The watch may have already ended.
                let _ended = end.send(());
            }
        }
    }

    /// Number of open watches.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.shared.streams.lock().len()
    }
}

impl Deref for Proxy {
    type Target = Controls;

    fn deref(&self) -> &Controls {
        &self.shared.controls
    }
}

impl Front for Shared {
    fn controls(&self) -> &Controls {
        &self.controls
    }

    fn read(&self, head: &Parts, _: &[u8]) -> Request {
        let agent = head.headers.get(header::USER_AGENT);
        Request::new(
            head.method.as_str(),
            head.uri.path(),
            head.uri.query().unwrap_or_default(),
            agent.and_then(|agent| agent.to_str().ok()).unwrap_or_default(),
        )
    }

    fn refusal(&self, _: &Request, code: u16) -> String {
        refusal(code)
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

/// Forwards a request to the API server. Except for watches, the answer is read whole, so that the request is complete.
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
    let client = match (&shared.with_token, head.headers.get(header::AUTHORIZATION)) {
        (Some(client), Some(token)) => {
            asked.headers_mut().insert(header::AUTHORIZATION, token.clone());
            client
        }
        _ => &shared.upstream,
    };
    let answer = client.send(asked).await.map_err(drop)?;
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

/// Forwards a watch until it ends or is broken.
fn stream(
    mut body: KubeBody,
    request: &Request,
    shared: &Arc<Shared>,
) -> mpsc::Receiver<Result<Bytes, CutOff>> {
    let (sender, receiver) = mpsc::channel(1);
    let (end, mut ended) = oneshot::channel();
    let request = Arc::new(request.clone());
    let shared = Arc::clone(shared);
    shared.streams.lock().insert(request.seq, (Arc::clone(&request), end));
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
                () = shared.controls.rules.while_any(|rule| rule.action == Action::Silence && rule.matches(&request)) => {}
            }
            if sender.send(part).await.is_err() {
                break;
            }
        }
        shared.streams.lock().remove(&request.seq);
    });
    receiver
}
