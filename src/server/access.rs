//! Who is served what.
//!
//! Whoever asks for an open path is served without being asked for anything, so that probes work while the API server is
//! down. For all else two questions are answered, as everywhere in Kubernetes:
//!
//! | Who is it? | in this order |
//! |---|---|
//! | a proxy's certificate, and headers that say whom it speaks for | authorities of `--requestheader-client-ca-file`, or those that the cluster names |
//! | a certificate of its own | authorities of `--client-ca-file`, or those that the cluster names |
//! | a bearer token | the API server is asked: TokenReview |
//! | nothing of these | `system:anonymous` |
//!
//! What may it do? `system:masters` everything; for others the API server is asked: SubjectAccessReview. Answers are
//! remembered for a few seconds. If the API server can not be asked, nobody is served who would have to be asked about.

mod authorities;
mod cache;
mod lookup;
mod reviews;
mod user;

use http::{HeaderMap, Method, StatusCode};
use prometheus_client::registry::Registry;
use rustls::pki_types::CertificateDer;
use tokio::{sync::watch, time::timeout};
use tracing::debug;

pub(crate) use reviews::Reviewers;

use self::{
    authorities::{Authorities, AuthorityFile},
    lookup::Known,
    reviews::{LIMIT, Reviews},
    user::{Subject, User},
};
use crate::options::{AccessConfig, ProxyHeaders};

/// Decides who is served what.
#[derive(Debug)]
pub(super) struct Access {
    open_paths: Vec<String>,
    clients: Option<AuthorityFile>,
    proxies: Option<(AuthorityFile, ProxyHeaders)>,
    /// Whether the cluster is asked for those that are not given.
    looks_up: bool,
    tolerates: bool,
    /// `None` until the cluster has told, or refused to.
    known: watch::Sender<Option<Known>>,
    reviews: Reviews,
}

/// What is asked for, and by whom.
pub(super) struct Asking<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) headers: &'a HeaderMap,
    /// The certificates that the client has shown.
    pub(super) certificates: &'a [CertificateDer<'static>],
}

/// Why somebody is not served: the status and what is said.
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
            message: format!("the API server could not be asked {what}; the log says why\n"),
        }
    }
}

impl Access {
    /// Reads files; nobody is asked for anything yet.
    ///
    /// # Errors
    /// What is wrong with them, in words for the user.
    pub(super) fn open(config: &AccessConfig, registry: &mut Registry) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        let mut open = |flag, path: &std::path::PathBuf| {
            AuthorityFile::open(flag, path.clone())
                .map_err(|error| problems.push(error))
                .ok()
        };
        let clients = config
            .client_authorities
            .as_ref()
            .and_then(|path| open("--client-ca-file", path));
        let proxies = config.proxies.as_ref().and_then(|proxies| {
            let file = open("--requestheader-client-ca-file", &proxies.authorities)?;
            Some((file, proxies.headers.clone()))
        });
        if !problems.is_empty() {
            return Err(problems);
        }
        let looks_up = !config.skip_lookup && (clients.is_none() || proxies.is_none());
        Ok(Self {
            open_paths: config.open_paths.clone(),
            clients,
            proxies,
            looks_up,
            tolerates: config.tolerate_lookup_failure,
            known: watch::Sender::new((!looks_up).then(Known::default)),
            reviews: Reviews::new(config, registry),
        })
    }

    /// Keeps up with what the cluster says, for ever.
    ///
    /// # Errors
    /// The cluster refuses to say it, and must.
    pub(super) async fn follow(&self, reviewers: &Reviewers) -> Result<(), String> {
        if self.looks_up {
            let required = reviewers.lookup_required && !self.tolerates;
            lookup::follow(reviewers.authentication.clone(), required, &self.known).await?;
        }
        std::future::pending().await
    }

    /// Whether a path is served to everybody.
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

    /// Whether whoever asks may have it.
    ///
    /// # Errors
    /// It may not, or that could not be found out.
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
            .may(&reviewers.authorization, &user, &verb, asking.path);
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
            let known = self.known().await;
            match self.by_certificate(asking, &known) {
                Ok(Some(user)) => return Ok(user),
                Ok(None) => {}
                Err(error) => {
                    debug!(error, "Nobody vouches for a client's certificate");
                    refused = true;
                }
            }
        }
        if let Some(token) = user::bearer(asking.headers) {
            let user = self.reviews.who(&reviewers.authentication, token).await;
            return user
                .map_err(|_| Refusal::unavailable("who this is"))?
                .ok_or_else(Refusal::unauthorized);
        }
        match refused {
            true => Err(Refusal::unauthorized()),
            false => Ok(User::anonymous()),
        }
    }

    /// What the cluster says, once it has said it or refused to.
    async fn known(&self) -> Known {
        let mut known = self.known.subscribe();
        let known = known.wait_for(Option::is_some).await;
        // The sender is in `self`, so that waiting can not fail.
        known.ok().and_then(|known| known.clone()).unwrap_or_default()
    }

    /// The user behind a certificate; `None` if nobody is there who could vouch for one.
    fn by_certificate(&self, asking: &Asking<'_>, known: &Known) -> Result<Option<User>, String> {
        let proxies = match &self.proxies {
            Some((file, headers)) => Some((file.current(), headers.clone())),
            None => known.proxies.clone(),
        };
        if let Some((authorities, headers)) = proxies
            && let Ok(subject) = authorities.vouch_for(asking.certificates)
            && may_speak(&subject, &headers)
            && let Some(user) = User::of_headers(asking.headers, &headers)
        {
            return Ok(Some(user));
        }
        let clients: Option<Authorities> = match &self.clients {
            Some(file) => Some(file.current()),
            None => known.clients.clone(),
        };
        let Some(authorities) = clients else {
            return Ok(None);
        };
        let subject = authorities.vouch_for(asking.certificates)?;
        User::of_subject(&subject)
            .map(Some)
            .ok_or_else(|| "it has no common name".to_owned())
    }
}

fn may_speak(proxy: &Subject, headers: &ProxyHeaders) -> bool {
    let name = proxy.common_name.as_deref().unwrap_or_default();
    headers.allowed_names.is_empty() || headers.allowed_names.iter().any(|allowed| allowed == name)
}

#[cfg(test)]
mod tests;
