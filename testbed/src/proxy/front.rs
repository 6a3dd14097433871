//! The server side of a proxy: accepts connections and applies rules to requests.

use std::sync::Arc;

use ccm_sim::Moment;
use ccm_sim::wire::{Connection, Line};
use http::request::Parts;
use http::{HeaderMap, HeaderName, Response, header};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::answer::{ProxyBody, collect, empty_json, refused, truncate};
use super::{Action, Controls, Request};

/// The interface of a proxy for one kind of server.
pub(super) trait Front: Send + Sync + 'static {
    /// Rules and log.
    fn controls(&self) -> &Controls;

    /// Parses a request.
    fn read(&self, head: &Parts, body: &[u8]) -> Request;

    /// The body of an error of the server.
    fn refusal(&self, request: &Request, code: u16) -> String;

    /// Forwards a request to the server.
    fn forward(
        shared: &Arc<Self>,
        head: &Parts,
        body: Bytes,
        request: &Request,
    ) -> impl Future<Output = Result<Response<ProxyBody>, ()>> + Send;
}

/// Serves all connections forever.
pub(super) async fn accept<F: Front>(listener: TcpListener, shared: Arc<F>) {
    let mut connections = JoinSet::new();
    loop {
        // Removes finished connections, so that the set does not grow.
        while connections.try_join_next().is_some() {}
        let Ok((stream, _peer)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        connections.spawn(connection(stream, Arc::clone(&shared)));
    }
}

async fn connection<F: Front>(stream: TcpStream, shared: Arc<F>) {
    let line = Arc::new(Line::default());
    let io = TokioIo::new(Connection::new(stream, Arc::clone(&line)));
    let service = service_fn(move |request| {
        let (shared, line) = (Arc::clone(&shared), Arc::clone(&line));
        async move { serve(request, &shared, &line).await }
    });
    // An error is a disconnected client or an injected fault.
    let _outcome = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(io, service)
        .await;
}

/// Makes hyper close the connection instead of answering.
#[derive(Debug)]
struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection is closed by an injected fault")
    }
}

impl std::error::Error for Closed {}

async fn serve<F: Front>(
    request: http::Request<Incoming>,
    shared: &Arc<F>,
    line: &Arc<Line>,
) -> Result<Response<ProxyBody>, Closed> {
    let (head, body) = request.into_parts();
    let body = collect(body).await.map_err(|_| Closed)?;
    let request = shared.controls().record(shared.read(&head, &body));
    let verdict = shared.controls().rules.decide(|rule| rule.matches(&request));
    let action = verdict.rule.map(|(id, rule)| (id, rule.action));
    if let Some((_, action)) = &action {
        shared.controls().update(request.seq, |request| request.fault = Some(action.name()));
    }
    if !verdict.delay.is_zero() {
        tokio::time::sleep(verdict.delay).await;
    }
    let reset = || {
        line.reset();
        Closed
    };
    let forward = async || {
        let answer = F::forward(shared, &head, body.clone(), &request).await;
        answer.map_err(|()| reset())
    };
    let response = match action {
        None | Some((_, Action::Delay(_))) => forward().await?,
        Some((id, Action::Hold(Moment::Before) | Action::Silence)) => {
            shared.controls().rules.hold(id, request.to_string()).await;
            forward().await?
        }
        Some((id, Action::Hold(Moment::AfterCommit))) => {
            let response = forward().await?;
            shared.controls().rules.hold(id, request.to_string()).await;
            response
        }
        Some((id, Action::Hold(Moment::AfterReply))) => {
            let (head, body) = forward().await?.into_parts();
            let body = match body {
                ProxyBody::Whole(body) => {
                    let (body, sent) = body.with_notification(line);
                    let (shared, request) = (Arc::clone(shared), request.clone());
                    tokio::spawn(async move {
                        if sent.await {
                            shared.controls().rules.reach(id, request.to_string());
                        }
                    });
                    ProxyBody::Whole(body)
                }
                stream @ ProxyBody::Stream(_) => stream,
            };
            Response::from_parts(head, body)
        }
        Some((
            _,
            Action::Status {
                code,
                retry_after,
                body,
            },
        )) => {
            let body = body.unwrap_or_else(|| shared.refusal(&request, code));
            refused(code, retry_after, body)
        }
        Some((_, Action::EmptyJson)) => empty_json(),
        Some((_, Action::Reset)) => return Err(reset()),
        Some((_, Action::CommitThenReset)) => {
            forward().await?;
            return Err(reset());
        }
        Some((_, Action::Truncate)) => truncate(forward().await?, line).await,
    };
    shared.controls().update(request.seq, |request| {
        request.status = Some(response.status().as_u16());
    });
    Ok(response)
}

/// The end-to-end headers, without the given one.
pub(super) fn passed_on(headers: &HeaderMap, without: HeaderName) -> HeaderMap {
    let mut headers = headers.clone();
    for name in [
        header::HOST,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        without,
    ] {
        headers.remove(name);
    }
    headers
}
