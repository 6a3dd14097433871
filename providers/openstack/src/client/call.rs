//! Single requests: how a call becomes one, and what its answer means.

use std::time::Duration;

use ::http::{Method, StatusCode, header::IF_MATCH};
use ccm_core::{
    Error, ErrorKind, Outcome, Priority, Result,
    client::{CallOptions, Operation},
};
use futures_util::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;
use tracing::trace;
use url::Url;

use super::{Api, BODY_MAX, FAULT_MAX, Op, body, catalogue::Service, precise};
use crate::error::{Asked, Failure, REQUEST_ID, Refusal};

/// How long a call may wait for quota beside its one long attempt.
const BESIDE_LONG: Duration = Duration::from_secs(60);

/// A read of the cloud's API.
#[derive(Clone, Debug)]
pub(crate) struct Get<'a> {
    /// What kind of call it is.
    pub(crate) op: Op,
    /// Of which service.
    pub(crate) service: Service,
    /// Below the service's URL. Escaped here.
    pub(crate) path: &'a [&'a str],
    /// Escaped here.
    pub(crate) query: &'a [(&'static str, &'a str)],
    /// Nova's microversion; none is 2.1.
    pub(crate) microversion: Option<&'static str>,
}

/// How a write changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Makes.
    Post,
    /// Changes.
    Put,
    /// Deletes.
    Delete,
}

/// A change of something in the cloud.
#[derive(Clone, Debug)]
pub(crate) struct Write<'a, B: ?Sized = ()> {
    /// What kind of call it is.
    pub(crate) op: Op,
    /// Of which service.
    pub(crate) service: Service,
    /// How it changes it.
    pub(crate) verb: Verb,
    /// Below the service's URL. Escaped here.
    pub(crate) path: &'a [&'a str],
    /// Escaped here.
    pub(crate) query: &'a [(&'static str, &'a str)],
    /// Sent as JSON.
    pub(crate) body: Option<&'a B>,
    /// Only if this is still the revision of the object (Neutron alone); otherwise the error is
    /// [stale](crate::error::is_stale).
    pub(crate) revision: Option<i64>,
    /// How long the request may take, if it is one that takes longer than others.
    pub(crate) timeout: Option<Duration>,
}

impl<'a> Write<'a> {
    /// A write without a body.
    pub(crate) fn new(op: Op, service: Service, verb: Verb, path: &'a [&'a str]) -> Self {
        Self {
            op,
            service,
            verb,
            path,
            query: &[],
            body: None,
            revision: None,
            timeout: None,
        }
    }

    /// The same with a body.
    pub(crate) fn json<B: ?Sized>(self, body: &'a B) -> Write<'a, B> {
        Write {
            op: self.op,
            service: self.service,
            verb: self.verb,
            path: self.path,
            query: self.query,
            body: Some(body),
            revision: self.revision,
            timeout: self.timeout,
        }
    }
}

/// A request that may be sent several times.
struct Request<'a> {
    method: Method,
    service: Service,
    /// Below the service's URL without its version.
    unversioned: bool,
    path: &'a [&'a str],
    query: &'a [(&'static str, &'a str)],
    microversion: Option<&'static str>,
    revision: Option<i64>,
    body: Option<Vec<u8>>,
}

impl Api {
    /// Reads, repeating what may help.
    ///
    /// # Errors
    ///
    /// As [`crate::error`] maps them.
    pub(crate) async fn get<T: DeserializeOwned>(&self, get: &Get<'_>, priority: Priority) -> Result<T> {
        self.read(get, false, priority).await
    }

    /// Reads what stands above the service's version.
    ///
    /// # Errors
    ///
    /// As [`crate::error`] maps them.
    pub(crate) async fn get_unversioned<T: DeserializeOwned>(
        &self,
        get: &Get<'_>,
        priority: Priority,
    ) -> Result<T> {
        self.read(get, true, priority).await
    }

    async fn read<T: DeserializeOwned>(
        &self,
        get: &Get<'_>,
        unversioned: bool,
        priority: Priority,
    ) -> Result<T> {
        let request = Request {
            method: Method::GET,
            service: get.service,
            unversioned,
            path: get.path,
            query: get.query,
            microversion: get.microversion,
            revision: None,
            body: None,
        };
        self.gate
            .call(get.op, priority, || async {
                let (asked, reply) = self.attempt_boxed(get.op, &request).await?;
                let body = body::read(reply, BODY_MAX).await;
                parse(&asked, &body.map_err(|failure| failure.into_error(&asked))?)
            })
            .await
            .map_err(|error| error.with_operation(get.op.name()))
    }

    /// Changes something and reads what it is now.
    ///
    /// # Errors
    ///
    /// As [`crate::error`] maps them. With [`Outcome::Unknown`] it may have been done nevertheless.
    pub(crate) async fn write<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        write: &Write<'_, B>,
        priority: Priority,
    ) -> Result<T> {
        self.change(write, priority, parse).await
    }

    /// Changes something of which the answer says nothing more. That what is to be deleted is not there is an error
    /// here, of kind `NotFound`.
    ///
    /// # Errors
    ///
    /// As for [`Self::write`].
    pub(crate) async fn execute<B: Serialize + ?Sized>(
        &self,
        write: &Write<'_, B>,
        priority: Priority,
    ) -> Result<()> {
        self.change(write, priority, |_, _| Ok(())).await
    }

    async fn change<B: Serialize + ?Sized, T>(
        &self,
        write: &Write<'_, B>,
        priority: Priority,
        end: fn(&Asked, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let body = write.body.map(serde_json::to_vec).transpose().map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the request has no JSON").with_source(error)
        })?;
        let request = Request {
            method: match write.verb {
                Verb::Post => Method::POST,
                Verb::Put => Method::PUT,
                Verb::Delete => Method::DELETE,
            },
            service: write.service,
            unversioned: false,
            path: write.path,
            query: write.query,
            microversion: None,
            revision: write.revision,
            body,
        };
        let mut options = CallOptions::new(priority);
        if let Some(timeout) = write.timeout {
            options = options
                .attempt_timeout(timeout)
                .deadline(timeout.saturating_add(BESIDE_LONG));
        }
        self.gate
            .call(write.op, options, || async {
                let (asked, reply) = self.attempt_boxed(write.op, &request).await?;
                // That the answer was cut off leaves nothing to read; it may still be that there is nothing to say.
                let body = body::read(reply, BODY_MAX).await;
                match (end(&asked, body.as_deref().unwrap_or_default()), body) {
                    (Err(_), Err(failure)) => Err(failure.into_error(&asked)),
                    (result, _) => result,
                }
            })
            .await
            .map_err(|error| error.with_operation(write.op.name()))
    }

    /// As [`Self::attempt`], in a box: it is part of every future of this crate, and large.
    fn attempt_boxed<'a>(
        &'a self,
        op: Op,
        request: &'a Request<'_>,
    ) -> BoxFuture<'a, Result<(Asked, reqwest::Response)>> {
        Box::pin(self.attempt(op, request))
    }

    /// Sends the request once, or twice if the token turns out to be no good. The answer says yes.
    async fn attempt(&self, op: Op, request: &Request<'_>) -> Result<(Asked, reqwest::Response)> {
        // Before the request, so that its own errors keep their form.
        let token = self.keystone.token().await?;
        let mut url = self.endpoint(request.service).await?;
        if request.unversioned {
            url = super::catalogue::unversioned(url);
        }
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(request.path);
            if request.path.is_empty() {
                path.push("");
            }
        }
        if !request.query.is_empty() {
            url.query_pairs_mut().extend_pairs(request.query);
        }
        let asked = Asked {
            method: request.method.clone(),
            path: url.path().to_owned(),
        };
        let mut reply = self.send(op, &url, request, &asked).await?;
        if reply.status() == StatusCode::UNAUTHORIZED {
            // Revoked, or forgotten by Keystone. Once more with a new token, unless somebody else got one meanwhile.
            self.keystone.renew(token.generation).await?;
            reply = self.send(op, &url, request, &asked).await?;
        }
        let status = reply.status();
        let reads = request.method == Method::GET;
        // A redirect can make a GET of anything else, and its answer says nothing of what was to be changed.
        if !reads && *reply.url() != url {
            let text = format!(
                "{} {}: was led to {}",
                asked.method,
                asked.path,
                reply.url().path()
            );
            return Err(Error::new(ErrorKind::Unexpected, text).with_outcome(Outcome::Unknown));
        }
        let yes = match status {
            StatusCode::OK => true,
            // Of a list of versions.
            StatusCode::MULTIPLE_CHOICES => request.unversioned,
            _ => !reads && status.is_success(),
        };
        if yes {
            return Ok((asked, reply));
        }
        let headers = reply.headers().clone();
        let body = body::read(reply, FAULT_MAX).await.unwrap_or_default();
        let refusal = Refusal {
            status,
            headers,
            body,
        };
        let error = Failure::Refused(refusal).into_error(&asked);
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.keystone.about(error),
            _ => error,
        })
    }

    async fn send(
        &self,
        op: Op,
        url: &Url,
        request: &Request<'_>,
        asked: &Asked,
    ) -> Result<reqwest::Response> {
        let client = self.session.client();
        let mut http = client
            .inner()
            .request(request.method.clone(), url.clone())
            .header(::http::header::ACCEPT, "application/json");
        if let Some(version) = request.microversion {
            // A Nova that does not know this header yet ignores it and answers as 2.1.
            http = http.header("OpenStack-API-Version", format!("compute {version}"));
        }
        if let Some(revision) = request.revision {
            http = http.header(IF_MATCH, format!("revision_number={revision}"));
        }
        if let Some(body) = &request.body {
            http = http
                .header(::http::header::CONTENT_TYPE, "application/json")
                .body(body.clone());
        }
        let http = client
            .auth_type()
            .authenticate(client.inner(), http)
            .await
            .map_err(|error| precise(self.keystone.last_failure(), error))?;
        let began = Instant::now();
        let reply = http.send().await;
        let ok = reply.as_ref().is_ok_and(|reply| {
            let gone = request.method == Method::DELETE && reply.status() == StatusCode::NOT_FOUND;
            reply.status().is_success() || gone
        });
        let took = began.elapsed();
        self.requests.requested(op.name(), took, ok);
        if let Ok(reply) = &reply {
            // The span has the number of the call; this joins it to the cloud's own logs.
            let id = reply.headers().get(REQUEST_ID).and_then(|id| id.to_str().ok());
            trace!(
                method = %asked.method,
                path = asked.path,
                status = reply.status().as_u16(),
                request_id = id,
                elapsed = ?took,
                "Asked the cloud"
            );
        }
        reply.map_err(|error| Failure::Transport(error).into_error(asked))
    }
}

fn parse<T: DeserializeOwned>(asked: &Asked, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| Failure::Shape(error).into_error(asked))
}
