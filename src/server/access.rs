//! Authentication and authorization of requests.
//!
//! Open paths are served without any question, so that probes work while the API server is down. Elsewhere a request is
//! authenticated and authorized, as everywhere in Kubernetes:
//!
//! | Credentials, in this order | Verified by |
//! |---|---|
//! | a client certificate | authorities of `--client-ca-file`, or those that the cluster publishes |
//! | a bearer token | the API server: TokenReview |
//! | none | `system:anonymous` |
//!
//! `system:masters` may read everything; for others the API server decides: SubjectAccessReview. Answers are remembered for a
//! few seconds. While the API server is unreachable, requests that need a review are refused.

mod authorities;
mod cache;
mod reviews;
mod user;

use http::{HeaderMap, Method, StatusCode};
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use tokio::{sync::watch, time::timeout};
use tracing::debug;

pub(crate) use reviews::Reviewers;

use self::{
    authorities::{Authorities, AuthorityFile, Published},
    reviews::{LIMIT, Reviews},
    user::User,
};
use crate::config::AccessConfig;

/// Decides which requests are served.
#[derive(Debug)]
pub(super) struct Access {
    open_paths: Vec<String>,
    clients: Option<AuthorityFile>,
    /// Whether the cluster's client CA is used.
    looks_up: bool,
    tolerates: bool,
    published: Published,
    reviews: Reviews,
}

/// A request with the credentials of its client.
pub(super) struct Asking<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) headers: &'a HeaderMap,
    /// The client's certificates, not verified yet.
    pub(super) certificates: &'a [CertificateDer<'static>],
}

/// Why a request is not served: the status and the body of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl Refusal {
    fn unauthorized() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            message: "unauthorized: the credentials are not valid\n".to_owned(),
        }
    }

    fn unavailable(what: &str) -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: format!("the API server could not be asked {what}; see the log\n"),
        }
    }
}

impl Access {
    /// Reads files. No request is sent yet.
    ///
    /// # Errors
    /// What is wrong with the files, in words for the user.
    pub(super) fn open(config: &AccessConfig, registry: &mut Registry) -> Result<Self, String> {
        let clients = config
            .client_authorities
            .clone()
            .map(AuthorityFile::open)
            .transpose()?;
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

    /// Follows the cluster's client CA, forever.
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
        let bare = |path: &str| path.trim_start_matches('/').to_owned();
        let path = bare(path);
        self.open_paths
            .iter()
            .any(|open| match bare(open).strip_suffix('*') {
                Some(start) => path.starts_with(start),
                None => path == bare(open),
            })
    }

    /// Authenticates and authorizes a request.
    ///
    /// # Errors
    /// The request is refused, or a review failed.
    pub(super) async fn check(&self, asking: &Asking<'_>, reviewers: &Reviewers) -> Result<(), Refusal> {
        let user = match timeout(LIMIT, self.identify(asking, reviewers)).await {
            Ok(user) => user?,
            Err(_) => return Err(Refusal::unavailable("who this is")),
        };
        if user.is_master() {
            return Ok(());
        }
        let verb = asking.method.as_str().to_ascii_lowercase();
        let verdict = self
            .reviews
            .authorize(&reviewers.authorization, &user, &verb, asking.path);
        let Ok(Ok(verdict)) = timeout(LIMIT, verdict).await else {
            return Err(Refusal::unavailable("what this client may read"));
        };
        if verdict.allowed {
            return Ok(());
        }
        debug!(
            user = user.name,
            path = asking.path,
            reason = verdict.reason,
            "Refused a request"
        );
        Err(Refusal {
            status: StatusCode::FORBIDDEN,
            message: format!(
                "forbidden: User {:?} cannot {verb} path {:?}\n",
                user.name, asking.path
            ),
        })
    }

    async fn identify(&self, asking: &Asking<'_>, reviewers: &Reviewers) -> Result<User, Refusal> {
        let mut refused = false;
        if !asking.certificates.is_empty() {
            match self
                .authorities()
                .await
                .map(|known| known.verify(asking.certificates))
            {
                Some(Ok(user)) => return Ok(user),
                Some(Err(error)) => {
                    debug!(error, "Rejected a client certificate");
                    refused = true;
                }
                None => {}
            }
        }
        if let Some(token) = user::bearer(asking.headers) {
            let user = self.reviews.authenticate(&reviewers.authentication, token).await;
            return user
                .map_err(|_| Refusal::unavailable("who this is"))?
                .ok_or_else(Refusal::unauthorized);
        }
        match refused {
            true => Err(Refusal::unauthorized()),
            false => Ok(User::anonymous()),
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
