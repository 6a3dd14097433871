//! Tokens: getting, keeping and renewing them.
//!
//! One token serves all requests. It is renewed before it expires, in the background while the old one is still good;
//! and when a service refuses it (revoked, or Keystone lost it). However many requests find out at once, one renewal
//! serves them all. The catalogue comes with the token, so that each renewal also brings moved endpoints.

mod answer;

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, Priority, Result,
    client::{
        Gate,
        rest::{Answer, Failure, Target, read_body},
    },
};
use http::{HeaderValue, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use rand::Rng;
use reqwest::{Client, RequestBuilder};
use secrecy::ExposeSecret;
use tokio::time::Instant;
use tracing::{Instrument, debug, warn};
use url::Url;

use self::answer::{AUTH_TOKEN, SUBJECT_TOKEN, User, below};
use super::{
    catalogue::{Catalogue, Interface, Service},
    generation::Generation,
    identity::Credentials,
    ops::Op,
};
use crate::error::{self, Fault};

/// Answers of Keystone are larger than this only if something is wrong. A catalogue has a few dozen kilobytes.
const BODY_MAX: usize = 8 << 20;
/// After Keystone refused the credentials it is not asked again for so long: it may lock the user out for trying.
const COOL_DOWN: Duration = Duration::from_secs(10);
/// How long after a failed early renewal the next is tried.
const EARLY_RETRY: Duration = Duration::from_secs(30);
/// How long a token is used that seems to have expired already when it is given.
const DISPUTED: Duration = Duration::from_secs(30);
/// A token that is given with less time left than this is not renewed early: the renewal would bring no more.
const SHORTEST_EARLY: Duration = Duration::from_secs(2);

/// A token and what came with it.
pub(crate) struct Token {
    header: HeaderValue,
    pub(crate) catalogue: Catalogue,
    /// Counts renewals: tells whether a refused token is still the one in use.
    pub(crate) generation: u64,
    renew_at: Instant,
    expires_at: Instant,
    /// For whom Keystone made it.
    holder: User,
}

/// Without the token.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// The project that it is good for, if it is for one.
    pub(crate) fn project(&self) -> Option<String> {
        self.holder.project_id()
    }

    /// Puts it on a request.
    pub(crate) fn apply(&self, request: RequestBuilder) -> RequestBuilder {
        request.header(AUTH_TOKEN, self.header.clone())
    }
}

/// Our account with Keystone.
pub(crate) struct Keystone {
    credentials: Credentials,
    http: Client,
    /// Does not retry: the call that needs the token does.
    gate: Gate,
    /// Advanced when a renewed token is for somebody else than the one before.
    identity: Generation,
    state: Mutex<State>,
    /// Locked during a renewal.
    renewing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// Where the API begins, once known: `auth-url`, or what Keystone's version document says.
    api: Option<Url>,
    token: Option<Arc<Token>>,
    generation: u64,
    /// The last renewal, if it failed: when it ended, and how.
    failed: Option<(Instant, Error)>,
    /// Not before this is the next renewal in the background.
    early_not_before: Option<Instant>,
}

impl fmt::Debug for Keystone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keystone")
            .field("auth_url", &self.auth_url())
            .finish_non_exhaustive()
    }
}

impl Keystone {
    /// Does not ask for a token yet.
    pub(crate) fn new(credentials: Credentials, http: Client, gate: Gate, identity: Generation) -> Self {
        Self {
            credentials,
            http,
            gate,
            identity,
            state: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
        }
    }

    /// The URL of a service.
    ///
    /// # Errors
    ///
    /// If there is no token to be had, or the catalogue has no such endpoint.
    pub(crate) async fn endpoint(
        self: &Arc<Self>,
        service: Service,
        interface: Interface,
        region: Option<&str>,
    ) -> Result<Url> {
        self.token().await?.catalogue.endpoint(service, interface, region)
    }

    /// A token that is good as far as we know.
    ///
    /// # Errors
    ///
    /// If there is none and Keystone gives none.
    pub(crate) async fn token(self: &Arc<Self>) -> Result<Arc<Token>> {
        let now = Instant::now();
        let (token, early) = {
            let mut state = self.state.lock();
            let token = state.token.clone().filter(|token| now < token.expires_at);
            let early = token.as_ref().is_some_and(|token| now >= token.renew_at)
                && state.early_not_before.is_none_or(|at| now >= at);
            if early {
                state.early_not_before = Some(now + jittered(EARLY_RETRY));
            }
            (token, early)
        };
        let Some(token) = token else {
            let generation = self.state.lock().generation;
            return self.renew(generation).await;
        };
        if early {
            let (keystone, generation) = (Arc::clone(self), token.generation);
            let renewal = async move {
                if let Err(error) = keystone.renew(generation).await {
                    warn!(
                        error = error.report(),
                        "Could not renew the token early, keeping the old one"
                    );
                }
            };
            tokio::spawn(renewal.in_current_span());
        }
        Ok(token)
    }

    /// A newer token than the one of this generation. All callers that ask during a renewal are served by it, also if it
    /// fails.
    ///
    /// # Errors
    ///
    /// If Keystone gives none.
    pub(crate) async fn renew(&self, generation: u64) -> Result<Arc<Token>> {
        let asked = Instant::now();
        let _renewing = self.renewing.lock().await;
        {
            let state = self.state.lock();
            if let Some(token) = state.token.as_ref().filter(|token| token.generation > generation) {
                return Ok(Arc::clone(token));
            }
            if let Some((ended, error)) = &state.failed {
                let refused = error.kind() == ErrorKind::Unauthenticated && ended.elapsed() < COOL_DOWN;
                if *ended >= asked || refused {
                    return Err(error.clone());
                }
            }
        }
        let result = self.fetch().await;
        let mut state = self.state.lock();
        match result {
            Ok(mut token) => {
                state.generation += 1;
                token.generation = state.generation;
                let token = Arc::new(token);
                let before = state.token.as_ref().map(|token| &token.holder);
                if before.is_some_and(|before| !before.is(&token.holder)) {
                    // A project or user of the same name took the place of another.
                    warn!(
                        was = before.map(ToString::to_string),
                        is = %token.holder,
                        "The same credentials are somebody else's now"
                    );
                    self.identity.advance();
                }
                state.token = Some(Arc::clone(&token));
                state.failed = None;
                state.early_not_before = None;
                debug!(generation = token.generation, "Got a token");
                Ok(token)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The generation of the token in use; 0 if there is none yet.
    pub(crate) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// Why the last renewal failed, if it did.
    pub(crate) fn last_failure(&self) -> Option<Error> {
        self.state.lock().failed.as_ref().map(|(_, error)| error.clone())
    }

    async fn fetch(&self) -> Result<Token> {
        let api = self.api().await?;
        let url = below(&api, "auth/tokens");
        let (op, request, given) = match self.credentials.bare_token() {
            None => (
                Op::TokenCreate,
                self.http.post(url).json(&self.credentials.body()),
                None,
            ),
            Some(token) => {
                let header = answer::secret_header(token.expose_secret()).ok_or_else(|| {
                    Error::new(
                        ErrorKind::InvalidConfig,
                        "[Global] token holds characters that no token can have",
                    )
                })?;
                let request = self.http.get(url).header(AUTH_TOKEN, header.clone());
                (
                    Op::TokenGet,
                    request.header(SUBJECT_TOKEN, header.clone()),
                    Some(header),
                )
            }
        };
        let began = Instant::now();
        let reply = self.send(op, request).await?;
        if !matches!(reply.status, StatusCode::OK | StatusCode::CREATED) {
            return Err(self.refused(&reply));
        }
        let parsed = answer::parse(&reply, given).map_err(|what| self.no_keystone(&what))?;
        let mut left = parsed.time_left(&reply.headers, Timestamp::now());
        if left < Duration::from_secs(1) {
            // Nobody gives tokens that have expired: clocks disagree. A refusal will tell when it has.
            left = DISPUTED;
        }
        Ok(Token {
            header: parsed.header,
            catalogue: parsed.catalogue,
            generation: 0,
            renew_at: began + early(left),
            expires_at: began + left,
            holder: parsed.holder,
        })
    }

    /// Where Keystone's API version 3 begins.
    async fn api(&self) -> Result<Url> {
        if let Some(api) = self.state.lock().api.clone() {
            return Ok(api);
        }
        let auth_url = &self.credentials.auth_url;
        let path = auth_url.path().trim_end_matches('/');
        let api = if path.ends_with("/v3") {
            below(auth_url, "")
        } else if matches!(self.credentials.scope, super::identity::Scope::Trust(_)) {
            // The flow of trusts has no version discovery.
            below(auth_url, "v3/")
        } else {
            let reply = self
                .send(Op::VersionList, self.http.get(below(auth_url, "")))
                .await?;
            if !matches!(reply.status, StatusCode::OK | StatusCode::MULTIPLE_CHOICES) {
                return Err(self.refused(&reply));
            }
            answer::choose_version(auth_url, &reply.body).map_err(|what| self.no_keystone(&what))?
        };
        self.state.lock().api = Some(api.clone());
        Ok(api)
    }

    /// Sends a request and reads the answer, whatever it is.
    async fn send(&self, op: Op, request: RequestBuilder) -> Result<Answer> {
        let attempt = || async {
            let (http, request) = request.try_clone().map_or((None, None), |r| {
                let (http, request) = r.build_split();
                (Some(http), Some(request))
            });
            let (Some(http), Some(Ok(request))) = (http, request) else {
                return Err(Error::new(
                    ErrorKind::Unexpected,
                    "the request to Keystone could not be made",
                ));
            };
            let target = Target {
                method: request.method().clone(),
                path: request.url().path().to_owned(),
            };
            let reply = async {
                let response = http.execute(request).await.map_err(Failure::Transport)?;
                let (status, headers) = (response.status(), response.headers().clone());
                Ok(Answer {
                    status,
                    headers,
                    body: read_body(response, BODY_MAX).await?,
                })
            };
            let reply = reply
                .await
                .map_err(|failure: Failure| self.about(failure.into_error(&target)))?;
            if reply.status.is_server_error() || reply.status == StatusCode::TOO_MANY_REQUESTS {
                // Here, so that the gate sees a reply that asks to slow down.
                return Err(self.about(error::refused(&target, &reply)));
            }
            Ok(reply)
        };
        self.gate.call(op, Priority::User, attempt).await
    }

    /// The error for an answer that says no.
    fn refused(&self, reply: &Answer) -> Error {
        let fault = Fault::parse(&reply.body);
        if !fault.is_openstack {
            let status = reply.status;
            return self.no_keystone(&if status.is_redirection() {
                "it answers with a redirect to another host".to_owned()
            } else {
                format!("the answer is {} {}", status.as_u16(), fault.message)
            });
        }
        let kind = match reply.status {
            // An unknown application credential is "not found", in Keystone's words.
            StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND => ErrorKind::Unauthenticated,
            StatusCode::FORBIDDEN => ErrorKind::PermissionDenied,
            // What we sent comes from the config.
            _ => ErrorKind::InvalidConfig,
        };
        self.about(Error::new(
            kind,
            format!("keystone refused the credentials: {}", fault.message),
        ))
    }

    /// The error for an answer that Keystone does not give.
    fn no_keystone(&self, what: &str) -> Error {
        self.about(Error::new(
            ErrorKind::InvalidConfig,
            format!("no OpenStack Identity service answers at auth-url: {what}"),
        ))
    }

    /// Adds the endpoint and the user. Never the secret.
    pub(super) fn about(&self, error: Error) -> Error {
        error
            .with_context("auth_url", self.auth_url())
            .with_context("as", self.credentials.identity.to_string())
    }

    /// For errors and events: for whom the token in use is, as whom, and where.
    pub(super) fn scope(&self) -> String {
        let holder = self
            .state
            .lock()
            .token
            .as_ref()
            .map(|token| token.holder.to_string());
        let holder = holder.unwrap_or_else(|| "no project".to_owned());
        format!("{holder} as {} of {}", self.credentials.identity, self.auth_url())
    }

    fn auth_url(&self) -> String {
        let mut url = self.credentials.auth_url.clone();
        // A password may stand there.
        let _ = url.set_password(None);
        url.to_string()
    }
}

/// When a token with so much time left is renewed: at 80 % of it, or ten minutes before the end where that is later
/// still; a little earlier by chance, so that a fleet that started together does not renew together.
fn early(left: Duration) -> Duration {
    if left < SHORTEST_EARLY {
        return left;
    }
    let at = left
        .mul_f64(0.8)
        .max(left.saturating_sub(Duration::from_secs(600)));
    at.mul_f64(rand::rng().random_range(0.95..=1.0))
}

fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(rand::rng().random_range(0.7..=1.3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_before_they_expire() {
        for seconds in [5, 60, 3600, 86_400, 1_300_000] {
            let left = Duration::from_secs(seconds);
            let at = early(left);
            assert!(at < left && at >= left.mul_f64(0.7), "{seconds}: {at:?}");
        }
        assert_eq!(early(Duration::from_secs(1)), Duration::from_secs(1));
    }

    #[test]
    fn paths_are_joined_with_one_slash() -> Result<(), url::ParseError> {
        for base in [
            "http://ks/identity/v3",
            "http://ks/identity/v3/",
            "http://ks/identity/v3//?x#y",
        ] {
            assert_eq!(
                below(&Url::parse(base)?, "auth/tokens").as_str(),
                "http://ks/identity/v3/auth/tokens"
            );
        }
        Ok(())
    }
}
