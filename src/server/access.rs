//! Authentication and authorization of requests.
//!
//! Open paths are served without a review, so that probes work while the API server is down. Requests for other paths are
//! authenticated and authorized, as everywhere in Kubernetes:
//!
//! | Credentials, in this order | Verified by |
//! |---|---|
//! | a client certificate | authorities of `--client-ca-file`, or those that the cluster publishes |
//! | a bearer token | the API server: TokenReview |
//! | none | `system:anonymous` |
//!
//! `system:masters` may read everything; for others the API server decides: SubjectAccessReview. Results are cached for a few
//! seconds. While the API server is unreachable, requests that need a review are refused.

mod authorities;
mod cache;
mod reviews;
mod user;

use http::{StatusCode, request};
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use tokio::{sync::watch, time::timeout};
use tracing::debug;

pub(crate) use reviews::Reviewers;

use self::{
    authorities::{Authorities, LoadedAuthorities, Published},
    reviews::{LIMIT, Reviews},
    user::User,
};
use crate::config::AccessConfig;

const AUTHENTICATE: &str = "authenticate this client";

/// Decides which requests are served.
pub(super) struct Access {
    open_paths: Vec<String>,
    clients: Option<LoadedAuthorities>,
    /// Whether the cluster's client CA is used.
    looks_up: bool,
    tolerates: bool,
    published: Published,
    reviews: Reviews,
}

/// Why a request is not served: the status and the body of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessRefusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl AccessRefusal {
    fn unauthorized() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            message: "unauthorized: the credentials are not valid\n".to_owned(),
        }
    }

    fn unavailable(what: &str) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: format!("the API server could not {what}; see the log\n"),
        }
    }
}

impl Access {
    /// Reads files. No request is sent yet.
    ///
    /// # Errors
    /// The problem of a file, for the user.
    pub(super) fn open(config: &AccessConfig, registry: &mut Registry) -> Result<Self, String> {
        let clients = config.client_authorities.clone().map(authorities::open).transpose()?;
        let looks_up = !config.skip_lookup && clients.is_none();
        Ok(Self {
            open_paths: config.open_paths.clone(),
            clients,
            looks_up,
            tolerates: config.tolerate_lookup_failure,
            published: watch::Sender::new((!looks_up).then_some(None)),
            reviews: Reviews::new(config, registry),
        })
    }

    /// Reads changes of the cluster's client CA, forever.
    ///
    /// # Errors
    /// The cluster refuses a required lookup.
    pub(super) async fn follow(&self, reviewers: &Reviewers) -> Result<(), String> {
        if self.looks_up {
            let required = reviewers.lookup_required && !self.tolerates;
            authorities::follow(reviewers.authentication.clone(), required, &self.published).await?;
        }
        std::future::pending().await
    }

    /// Whether the path is served without authentication.
    pub(super) fn is_open(&self, path: &str) -> bool {
        let path = path.trim_start_matches('/');
        let mut open_paths = self.open_paths.iter().map(|open| open.trim_start_matches('/'));
        open_paths.any(|open| match open.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == open,
        })
    }

    /// Authenticates and authorizes a request. The certificates of its client are not verified yet.
    ///
    /// # Errors
    /// The request is refused, or a review failed.
    pub(super) async fn check(
        &self,
        request: &request::Parts,
        certificates: &[CertificateDer<'static>],
        reviewers: &Reviewers,
    ) -> Result<(), AccessRefusal> {
        let user = match timeout(LIMIT, self.identify(request, certificates, reviewers)).await {
            Ok(user) => user?,
            Err(_) => return Err(AccessRefusal::unavailable(AUTHENTICATE)),
        };
        if user.is_master() {
            return Ok(());
        }
        let (verb, path) = (request.method.as_str().to_ascii_lowercase(), request.uri.path());
        let verdict = self.reviews.authorize(&reviewers.authorization, &user, &verb, path);
        let Ok(Ok(verdict)) = timeout(LIMIT, verdict).await else {
            return Err(AccessRefusal::unavailable("authorize this client"));
        };
        if verdict.allowed {
            return Ok(());
        }
        let (user, reason) = (user.name, verdict.reason);
        debug!(user, path, reason, "Refused a request");
        Err(AccessRefusal {
            status: StatusCode::FORBIDDEN,
            message: format!("forbidden: User {user:?} cannot {verb} path {path:?}\n"),
        })
    }

    async fn identify(
        &self,
        request: &request::Parts,
        certificates: &[CertificateDer<'static>],
        reviewers: &Reviewers,
    ) -> Result<User, AccessRefusal> {
        let mut refused = false;
        if !certificates.is_empty() {
            let authorities = self.authorities().await;
            match authorities.map(|authorities| authorities.verify(certificates)) {
                Some(Ok(user)) => return Ok(user),
                Some(Err(error)) => {
                    debug!(error, "Rejected a client certificate");
                    refused = true;
                }
                None => {}
            }
        }
        if let Some(token) = user::bearer(&request.headers) {
            let user = self.reviews.authenticate(&reviewers.authentication, token).await;
            return user
                .map_err(|_| AccessRefusal::unavailable(AUTHENTICATE))?
                .ok_or_else(AccessRefusal::unauthorized);
        }
        if refused {
            Err(AccessRefusal::unauthorized())
        } else {
            Ok(User::anonymous())
        }
    }

    /// The authorities that verify client certificates, once they are known; `None` if there are none.
    async fn authorities(&self) -> Option<Authorities> {
        if let Some(file) = &self.clients {
            return Some(file.current());
        }
        let mut published = self.published.subscribe();
        let known = published.wait_for(Option::is_some).await;
        // The sender is in `self`, so that waiting cannot fail.
        known.ok().and_then(|known| known.clone()).flatten()
    }
}

#[cfg(test)]
mod tests;
