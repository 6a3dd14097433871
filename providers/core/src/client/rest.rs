//! Calls of HTTP APIs with JSON bodies, for clouds without an SDK of their own (feature `rest`).
//!
//! A provider implements [`RestApi`]: the API's URL, the credentials of a request, and the meaning of a refusal. A
//! [`Call`] then passes the [`Gate`] like every other cloud call. One attempt is one request, or two if the credentials are
//! refused and newer ones are available.
//!
//! | Item | Does |
//! |---|---|
//! | [`http_client`] | connects: TLS material, proxies, redirects, timeouts |
//! | [`json`], [`execute`] | send a [`Call`] and read its answer |
//! | [`Answer`] | a refusal: status, `Retry-After`, body; the kinds of errors that follow from the status alone |
//! | [`Failure`] | no usable answer: the connection failed, or the body is incomplete, too large or unexpected |

mod failure;
mod http;

use std::time::Duration;

use ::http::{
    HeaderMap, Method, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use futures_util::future::BoxFuture;
pub use reqwest;
use reqwest::{RequestBuilder, Response};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;
use tracing::trace;
use url::Url;

pub use self::{
    failure::{Answer, Failure, Target, is_too_large, one_line},
    http::{Proxies, Tls, client_identity, http_client, root_certificates},
};
use super::{CallOptions, Gate, Operation};
use crate::{Error, ErrorKind, Priority, RequestOutcome, Result};

/// The longest body of a refusal that is read, in bytes.
const REFUSAL_MAX: usize = 1 << 20;

/// An HTTP API of a cloud. The functions of this module send [`Call`]s to it.
pub trait RestApi: Sync {
    /// The kinds of calls.
    type Operation: Operation;
    /// A part of the API with its own URL; `()` if the API has only one.
    type Endpoint: Copy + Send + Sync;
    /// The credentials of a request, such as a token.
    type Credentials: Send + Sync;

    /// The longest body that is read, in bytes. Longer ones are errors: see [`is_too_large`].
    const BODY_MAX: usize = 64 << 20;
    /// The header of an answer that carries the cloud's own id of the request.
    const REQUEST_ID: &'static str = "x-request-id";

    /// The client that sends the requests.
    fn http(&self) -> &reqwest::Client;

    /// The gate that all calls pass.
    fn gate(&self) -> &Gate;

    /// The credentials for the next request. Requested before every attempt, so cache them.
    fn credentials(&self) -> impl Future<Output = Result<Self::Credentials>> + Send;

    /// Newer credentials than these, which the API refused with status 401. `None`: no others are available.
    fn renew(
        &self,
        refused: &Self::Credentials,
    ) -> impl Future<Output = Result<Option<Self::Credentials>>> + Send {
        let _ = refused;
        async { Ok(None) }
    }

    /// The base URL of the paths of an endpoint.
    fn base_url(&self, endpoint: Self::Endpoint) -> impl Future<Output = Result<Url>> + Send;

    /// Adds the credentials to a request.
    fn authorize(&self, request: RequestBuilder, credentials: &Self::Credentials) -> RequestBuilder;

    /// Whether a status means success: 200 for a read, any 2xx for a write.
    fn is_success(&self, endpoint: Self::Endpoint, method: &Method, status: StatusCode) -> bool {
        let _ = endpoint;
        match *method {
            Method::GET => status == StatusCode::OK,
            _ => status.is_success(),
        }
    }

    /// The error for a refusal. See [`Answer::error`] and [`Answer::kind`].
    fn refused(&self, target: &Target, answer: &Answer) -> Error;

    /// Called after every single request, for metrics and rate limits. `answer` is `None` if the request failed; `elapsed`
    /// ends with the headers.
    fn answered(
        &self,
        operation: Self::Operation,
        method: &Method,
        answer: Option<(StatusCode, &HeaderMap)>,
        elapsed: Duration,
    ) {
        let _ = (operation, method, answer, elapsed);
    }
}

/// A call of an API. It may be sent several times.
#[derive(Clone, Debug)]
pub struct Call<'a, O, E> {
    /// Its kind.
    pub operation: O,
    /// The part of the API.
    pub endpoint: E,
    /// The HTTP method. Everything but `GET` is a write.
    pub method: Method,
    /// Segments below the endpoint's URL, escaped here. Empty: that URL itself, with a slash at its end.
    pub path: &'a [&'a str],
    /// The query. Escaped here.
    pub query: &'a [(&'static str, &'a str)],
    /// Further headers.
    pub headers: HeaderMap,
    /// The body, as JSON.
    pub body: Option<Vec<u8>>,
    /// How long one attempt may take, if longer than others.
    pub timeout: Option<Duration>,
}

impl<'a, O, E> Call<'a, O, E> {
    /// A call without query and body.
    #[must_use]
    pub fn new(operation: O, endpoint: E, method: Method, path: &'a [&'a str]) -> Self {
        Self {
            operation,
            endpoint,
            method,
            path,
            query: &[],
            headers: HeaderMap::new(),
            body: None,
            timeout: None,
        }
    }

    /// The same call with a body.
    ///
    /// # Errors
    /// The value cannot be encoded as JSON.
    pub fn json(mut self, body: &(impl Serialize + ?Sized)) -> Result<Self> {
        let bytes = serde_json::to_vec(body).map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the request cannot be encoded as JSON").with_source(error)
        })?;
        self.body = Some(bytes);
        Ok(self)
    }
}

/// Sends a call and reads the JSON of its answer.
///
/// # Errors
/// As [`RestApi::refused`] and [`Failure`] map them. After an error with [`RequestOutcome::Unknown`] a write may have been carried
/// out.
pub async fn json<A: RestApi, T: DeserializeOwned + Send>(
    api: &A,
    call: &Call<'_, A::Operation, A::Endpoint>,
    priority: Priority,
) -> Result<T> {
    send(api, call, priority, |target, body| {
        serde_json::from_slice(body).map_err(|error| Failure::Shape(error).into_error(target))
    })
    .await
}

/// Sends a call whose answer has only a status.
///
/// # Errors
/// As [`json`].
pub async fn execute<A: RestApi>(
    api: &A,
    call: &Call<'_, A::Operation, A::Endpoint>,
    priority: Priority,
) -> Result<()> {
    send(api, call, priority, |_, _| Ok(())).await
}

async fn send<A: RestApi, T: Send>(
    api: &A,
    call: &Call<'_, A::Operation, A::Endpoint>,
    priority: Priority,
    decode: fn(&Target, &[u8]) -> Result<T>,
) -> Result<T> {
    let options = CallOptions {
        priority,
        timeout: call.timeout,
    };
    api.gate()
        .call(call.operation, options, || async {
            // The same for all types of replies.
            let attempt: BoxFuture<'_, _> = Box::pin(attempt(api, call));
            let (target, body) = attempt.await?;
            // The answer may be complete for a call that expects no body.
            match (decode(&target, body.as_deref().unwrap_or_default()), body) {
                (Err(_), Err(failure)) => Err(failure.into_error(&target)),
                (result, _) => result,
            }
        })
        .await
        .map_err(|error| error.with_operation(call.operation.name()))
}

/// Sends the request once, or twice if the credentials are refused. The answer means success; its body may not have arrived.
async fn attempt<A: RestApi>(
    api: &A,
    call: &Call<'_, A::Operation, A::Endpoint>,
) -> Result<(Target, Result<Vec<u8>, Failure>)> {
    let credentials = api.credentials().await?;
    let mut url = api.base_url(call.endpoint).await?;
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(call.path);
        if call.path.is_empty() {
            path.push("");
        }
    }
    if !call.query.is_empty() {
        url.query_pairs_mut().extend_pairs(call.query);
    }
    let target = Target {
        method: call.method.clone(),
        path: url.path().to_owned(),
    };
    let mut response = request(api, call, &url, &target, &credentials).await?;
    if response.status() == StatusCode::UNAUTHORIZED
        && let Some(renewed) = api.renew(&credentials).await?
    {
        response = request(api, call, &url, &target, &renewed).await?;
    }
    // A redirect can turn any other method into a GET, whose answer does not confirm the change.
    if call.method != Method::GET && *response.url() != url {
        let text = format!("{target}: redirected to {}", response.url().path());
        return Err(Error::new(ErrorKind::Unexpected, text).with_outcome(RequestOutcome::Unknown));
    }
    if api.is_success(call.endpoint, &call.method, response.status()) {
        return Ok((target, read_body(response, A::BODY_MAX).await));
    }
    let (status, headers) = (response.status(), response.headers().clone());
    let body = read_body(response, REFUSAL_MAX).await.unwrap_or_default();
    let answer = Answer {
        status,
        headers,
        body,
    };
    Err(api.refused(&target, &answer))
}

async fn request<A: RestApi>(
    api: &A,
    call: &Call<'_, A::Operation, A::Endpoint>,
    url: &Url,
    target: &Target,
    credentials: &A::Credentials,
) -> Result<Response> {
    let mut request = api
        .http()
        .request(call.method.clone(), url.clone())
        .header(ACCEPT, "application/json")
        .headers(call.headers.clone());
    if let Some(body) = &call.body {
        request = request.header(CONTENT_TYPE, "application/json").body(body.clone());
    }
    let began = Instant::now();
    let response = api.authorize(request, credentials).send().await;
    let elapsed = began.elapsed();
    let answer = response.as_ref().ok().map(|response| (response.status(), response.headers()));
    api.answered(call.operation, &call.method, answer, elapsed);
    if let Some((status, headers)) = answer {
        // The span has the number of the call; the id joins it to the cloud's own logs.
        let id = headers.get(A::REQUEST_ID).and_then(|id| id.to_str().ok());
        trace!(
            method = %target.method,
            path = target.path,
            status = status.as_u16(),
            request_id = id,
            ?elapsed,
            "The cloud answered"
        );
    }
    response.map_err(|error| Failure::Transport(error).into_error(target))
}

/// Reads a whole body.
///
/// # Errors
/// The connection was lost, or the body has more than `max` bytes.
pub async fn read_body(mut response: Response, max: usize) -> Result<Vec<u8>, Failure> {
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    if announced > max {
        return Err(Failure::TooLarge(max));
    }
    let mut body = Vec::with_capacity(announced);
    while let Some(chunk) = response.chunk().await.map_err(Failure::Transport)? {
        if body.len() + chunk.len() > max {
            return Err(Failure::TooLarge(max));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
