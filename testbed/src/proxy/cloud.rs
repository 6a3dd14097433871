//! A proxy between the program and a cloud, with the same rules as the proxy for the API server.
//!
//! A [`Dialect`] defines the differences between clouds: parsing of requests, their targets, and the format of errors.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

use anyhow::Result;
use ccm_sim::Moment;
use ccm_sim::wire::WireBody;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{HeaderMap, Response, header};
use hyper::body::Bytes;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::answer::{ProxyBody, refused};
use super::front::{Front, accept, passed_on};
use super::{Action, Controls, Request, Rule};
use crate::sweep::{LIKELY, Party, REFUSAL, status, storm};

/// The protocol of one kind of cloud.
pub trait Dialect: Send + Sync + 'static {
    /// Parses a request.
    fn read(&self, head: &Parts, body: &[u8]) -> Request;

    /// Whether the request may be a write. A token request is not a write.
    fn is_change(&self, request: &Request) -> bool;

    /// The target URL of the request; adds headers. None if it is unknown: the connection is reset.
    fn target(&self, request: &Request, headers: &mut HeaderMap) -> Option<String>;

    /// Rewrites the body of the answer.
    fn rewrite(&self, _request: &Request, body: Bytes) -> Bytes {
        body
    }

    /// Looks at the headers of the answer.
    fn inspect(&self, _request: &Request, _headers: &HeaderMap) {}

    /// The body of an error of the cloud.
    fn refusal(&self, request: &Request, code: u16) -> String;

    /// The status of throttled requests.
    fn throttled(&self) -> u16 {
        429
    }

    /// How the cloud words its other limits and refusals.
    fn refusals(&self) -> Vec<Rule> {
        Vec::new()
    }

    /// From now on, imitates the cloud where its emulator is kinder, in [`Self::premature`] and [`Self::rewrite`].
    fn imitate_real_service(&self) {}

    /// From now on, all servers of the cloud know everything that was created before.
    fn spread(&self) {}

    /// The answer to a request that names an object before all servers of the cloud know it: status and body.
    fn premature(&self, _request: &Request) -> Option<(u16, String)> {
        None
    }
}

/// A running proxy. Dropping it closes it and all its connections.
pub struct CloudProxy<D: Dialect> {
    shared: Arc<Shared<D>>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

struct Shared<D> {
    client: reqwest::Client,
    dialect: D,
    controls: Controls,
}

impl<D: Dialect> std::fmt::Debug for CloudProxy<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloudProxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<D: Dialect> Drop for CloudProxy<D> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<D: Dialect> CloudProxy<D> {
    /// Starts a proxy; the dialect may need to know its address.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start_with(dialect: impl FnOnce(SocketAddr) -> D) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            // Timeouts and retries are left to the client.
            client: crate::http::client().redirect(reqwest::redirect::Policy::none()).build()?,
            dialect: dialect(address),
            controls: Controls::default(),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            shared,
            address,
            task,
        })
    }

    /// The address of the proxy.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The protocol of the cloud.
    #[must_use]
    pub fn dialect(&self) -> &D {
        &self.shared.dialect
    }

    /// The requests that may be writes.
    #[must_use]
    pub fn writes(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|request| self.dialect().is_change(request));
        requests
    }

    /// A rule for requests that may be writes.
    #[must_use]
    pub fn rule_for_changes(&self, action: Action) -> Rule {
        let shared = Arc::downgrade(&self.shared);
        let is_change = move |request: &Request| {
            let shared = shared.upgrade();
            shared.is_some_and(|shared| shared.dialect.is_change(request))
        };
        Rule::when(is_change, action)
    }
}

impl<D: Dialect> Deref for CloudProxy<D> {
    type Target = Controls;

    fn deref(&self) -> &Controls {
        &self.shared.controls
    }
}

impl<D: Dialect> Party for CloudProxy<D> {
    fn name(&self) -> &'static str {
        "cloud"
    }

    fn forget(&self) {
        Controls::forget(self);
        self.dialect().spread();
    }

    fn calls(&self) -> Vec<String> {
        self.writes().iter().map(ToString::to_string).collect()
    }

    fn stop_at(&self, nth: u64, moment: Moment) -> BoxFuture<'static, Option<String>> {
        let rule = self.add(self.rule_for_changes(Action::Hold(moment)).at(nth));
        self.reached(rule).boxed()
    }

    fn none_held(&self) -> BoxFuture<'static, ()> {
        Controls::none_held(self).boxed()
    }

    fn inject_faults(&self, seed: u64) {
        let throttled = [(status(self.dialect().throttled(), None), 2.0 * LIKELY)];
        for rule in storm(seed, throttled, Rule::new) {
            self.add(rule);
        }
        for (seed, mut refusal) in (seed + 50..).zip(self.dialect().refusals()) {
            (refusal.probability, refusal.seed) = (Some(REFUSAL), seed);
            self.add(refusal);
        }
    }

    fn imitate_real_service(&self) {
        self.dialect().imitate_real_service();
    }

    fn failures(&self) -> u64 {
        self.fired()
    }

    fn clear_faults(&self) {
        self.clear();
    }
}

impl<D: Dialect> Front for Shared<D> {
    fn controls(&self) -> &Controls {
        &self.controls
    }

    fn read(&self, head: &Parts, body: &[u8]) -> Request {
        self.dialect.read(head, body)
    }

    fn refusal(&self, request: &Request, code: u16) -> String {
        self.dialect.refusal(request, code)
    }

    /// Forwards a request to the cloud, and reads the whole answer, so that the request is complete.
    async fn forward(
        shared: &Arc<Self>,
        head: &Parts,
        body: Bytes,
        request: &Request,
    ) -> Result<Response<ProxyBody>, ()> {
        if let Some((status, body)) = shared.dialect.premature(request) {
            return Ok(refused(status, None, body));
        }
        // Compressed bodies cannot be rewritten.
        let mut headers = passed_on(&head.headers, header::ACCEPT_ENCODING);
        let url = shared.dialect.target(request, &mut headers).ok_or(())?;
        let asked = shared.client.request(head.method.clone(), url);
        let answer = asked.headers(headers).body(body).send().await.map_err(drop)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        shared.dialect.inspect(request, &headers);
        let bytes = answer.bytes().await.map_err(drop)?;
        let body = shared.dialect.rewrite(request, bytes);
        let mut response = Response::new(ProxyBody::Whole(WireBody::whole(body)));
        *response.status_mut() = status;
        *response.headers_mut() = passed_on(&headers, header::ACCEPT_ENCODING);
        Ok(response)
    }
}
