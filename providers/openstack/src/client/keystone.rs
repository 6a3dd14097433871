//! Keystone tokens: how they are requested, cached and renewed.
//!
//! One token serves all requests. It is renewed in the background before it expires, and when a service refuses it
//! (revoked, or lost by Keystone). Concurrent refusals share one renewal. The catalog comes with the token, so each
//! renewal also updates the endpoints.

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

use self::answer::{AUTH_TOKEN, SUBJECT_TOKEN, TokenUser, below};
use super::{
    catalog::{Catalog, Interface, Service},
    generation::Generation,
    identity::Credentials,
    ops::Op,
};
use crate::error::{self, Fault};

/// The largest accepted answer of Keystone. A catalog has a few dozen kilobytes.
const BODY_MAX: usize = 8 << 20;
/// The pause after Keystone refused the credentials: further attempts may lock the user out.
const COOL_DOWN: Duration = Duration::from_secs(10);
/// The pause after a failed early renewal.
const EARLY_RETRY: Duration = Duration::from_secs(30);
/// How long a token is used that has already expired when it is issued.
const DISPUTED: Duration = Duration::from_secs(30);
/// The shortest lifetime with an early renewal. Below it, a renewal gains nothing.
const SHORTEST_EARLY: Duration = Duration::from_secs(2);

/// A token and the data that came with it.
pub(crate) struct Token {
    header: HeaderValue,
    pub(crate) catalog: Catalog,
    /// The number of the renewal. It shows whether a refused token is still the current one.
    pub(crate) generation: u64,
    renew_at: Instant,
    expires_at: Instant,
    /// The user and project that Keystone issued it for.
    holder: TokenUser,
}

/// Omits the token.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl Token {
    /// The ID of the token's project, if it has one.
    pub(crate) fn project(&self) -> Option<String> {
        self.holder.project_id()
    }

    /// Adds the token to a request.
    pub(crate) fn apply(&self, request: RequestBuilder) -> RequestBuilder {
        request.header(AUTH_TOKEN, self.header.clone())
    }
}

/// The client of Keystone.
pub(crate) struct Keystone {
    credentials: Credentials,
    http: Client,
    /// Never retries: the call that needs the token does.
    gate: Gate,
    /// Incremented when a renewed token has another user or project.
    identity: Generation,
    state: Mutex<KeystoneState>,
    /// Locked during a renewal.
    renewing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct KeystoneState {
    /// The base URL of API version 3, once known: from `auth-url` or Keystone's list of versions.
    api: Option<Url>,
    token: Option<Arc<Token>>,
    generation: u64,
    /// The last renewal, if it failed: its end and its error.
    failed: Option<(Instant, Error)>,
    /// The earliest time of the next renewal in the background.
    early_not_before: Option<Instant>,
}

impl fmt::Debug for Keystone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keystone").field("auth_url", &self.auth_url()).finish_non_exhaustive()
    }
}

impl Keystone {
    /// Creates the client. Requests no token yet.
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
    /// If no token can be obtained, or the catalog has no such endpoint.
    pub(crate) async fn endpoint(
        self: &Arc<Self>,
        service: Service,
        interface: Interface,
        region: Option<&str>,
    ) -> Result<Url> {
        self.token().await?.catalog.endpoint(service, interface, region)
    }

    /// Returns a token that has not expired. Renews it when necessary.
    ///
    /// # Errors
    ///
    /// If the token has expired and Keystone issues none.
    pub(crate) async fn token(self: &Arc<Self>) -> Result<Arc<Token>> {
        let now = Instant::now();
        let (token, early) = {
            let mut state = self.state.lock();
            let token = state.token.clone().filter(|token| now < token.expires_at);
            let early = token.as_ref().is_some_and(|token| now >= token.renew_at)
                && state.early_not_before.is_none_or(|at| now >= at);
            if early {
                state.early_not_before = Some(now + EARLY_RETRY.mul_f64(rand::rng().random_range(0.7..=1.3)));
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
                    warn!(error = error.report(), "Could not renew the token early, keeping the old one");
                }
            };
            tokio::spawn(renewal.in_current_span());
        }
        Ok(token)
    }

    /// Returns a newer token than that of this generation. All callers during a renewal share its result, also a
    /// failure.
    ///
    /// # Errors
    ///
    /// If Keystone issues none.
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
                    // Another project or user now has the configured name.
                    warn!(
                        was = before.map(ToString::to_string),
                        is = %token.holder,
                        "The credentials now belong to another user or project"
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

    /// The generation of the current token; 0 if there is none yet.
    pub(crate) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    /// The error of the last renewal, if it failed.
    pub(crate) fn last_failure(&self) -> Option<Error> {
        self.state.lock().failed.as_ref().map(|(_, error)| error.clone())
    }

    async fn fetch(&self) -> Result<Token> {
        let api = self.api().await?;
        let url = below(&api, "auth/tokens");
        let (op, request, given) = match self.credentials.bare_token() {
            None => (Op::TokenCreate, self.http.post(url).json(&self.credentials.body()), None),
            Some(token) => {
                let header = answer::secret_header(token.expose_secret()).ok_or_else(|| {
                    Error::new(
                        ErrorKind::InvalidConfig,
                        "[Global] token contains characters that are invalid in a token",
                    )
                })?;
                let request = self.http.get(url).header(AUTH_TOKEN, header.clone());
                (Op::TokenGet, request.header(SUBJECT_TOKEN, header.clone()), Some(header))
            }
        };
        let began = Instant::now();
        let reply = self.send(op, request).await?;
        if !matches!(reply.status, StatusCode::OK | StatusCode::CREATED) {
            return Err(self.refused(&reply));
        }
        let parsed = answer::parse(&reply, given).map_err(|what| self.not_keystone(&what))?;
        let mut left = parsed.time_left(&reply.headers, Timestamp::now());
        if left < Duration::from_secs(1) {
            // Keystone issues no expired tokens, so the clocks disagree. A refusal will show the expiry.
            left = DISPUTED;
        }
        Ok(Token {
            header: parsed.header,
            catalog: parsed.catalog,
            generation: 0,
            renew_at: began + early(left),
            expires_at: began + left,
            holder: parsed.holder,
        })
    }

    /// The base URL of Keystone's API version 3.
    async fn api(&self) -> Result<Url> {
        if let Some(api) = self.state.lock().api.clone() {
            return Ok(api);
        }
        let auth_url = &self.credentials.auth_url;
        let path = auth_url.path().trim_end_matches('/');
        let api = if path.ends_with("/v3") {
            below(auth_url, "")
        } else if matches!(self.credentials.scope, super::identity::Scope::Trust(_)) {
            // Trusts have no version discovery.
            below(auth_url, "v3/")
        } else {
            let reply = self.send(Op::VersionList, self.http.get(below(auth_url, ""))).await?;
            if !matches!(reply.status, StatusCode::OK | StatusCode::MULTIPLE_CHOICES) {
                return Err(self.refused(&reply));
            }
            answer::choose_version(auth_url, &reply.body).map_err(|what| self.not_keystone(&what))?
        };
        self.state.lock().api = Some(api.clone());
        Ok(api)
    }

    /// Sends a request and returns the answer, whatever its status.
    async fn send(&self, op: Op, request: RequestBuilder) -> Result<Answer> {
        let answer = self.gate.call(op, Priority::User, || async {
            let (http, request) = request.try_clone().map_or((None, None), |r| {
                let (http, request) = r.build_split();
                (Some(http), Some(request))
            });
            let (Some(http), Some(Ok(request))) = (http, request) else {
                let text = "the request to Keystone could not be built";
                return Err(Error::new(ErrorKind::Unexpected, text));
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
            let reply = reply.await.map_err(|failure: Failure| self.about(failure.into_error(&target)))?;
            if reply.status.is_server_error() || reply.status == StatusCode::TOO_MANY_REQUESTS {
                // Fails here, so that the gate sees a request to slow down.
                return Err(self.about(error::refused(&target, &reply)));
            }
            Ok(reply)
        });
        answer.await
    }

    /// The error for a refusal.
    fn refused(&self, reply: &Answer) -> Error {
        let fault = Fault::parse(&reply.body);
        if !fault.is_openstack {
            let status = reply.status;
            return self.not_keystone(&if status.is_redirection() {
                "the answer is a redirect to another host".to_owned()
            } else {
                format!("the answer is {} {}", status.as_u16(), fault.message)
            });
        }
        let kind = match reply.status {
            // Keystone answers "not found" for an unknown application credential.
            StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND => ErrorKind::Unauthenticated,
            StatusCode::FORBIDDEN => ErrorKind::PermissionDenied,
            // The request comes from the config.
            _ => ErrorKind::InvalidConfig,
        };
        self.about(Error::new(kind, format!("keystone refused the credentials: {}", fault.message)))
    }

    /// The error for an answer that cannot be Keystone's.
    fn not_keystone(&self, what: &str) -> Error {
        self.about(Error::new(
            ErrorKind::InvalidConfig,
            format!("no OpenStack Identity service answers at auth-url: {what}"),
        ))
    }

    /// Adds the endpoint and the user to an error. Never adds the secret.
    pub(super) fn about(&self, error: Error) -> Error {
        error
            .with_context("auth_url", self.auth_url())
            .with_context("as", self.credentials.identity.to_string())
    }

    /// The project and user of the current token and the URL, for errors and Events.
    pub(super) fn scope(&self) -> String {
        let holder = self
            .state
            .lock()
            .token
            .as_ref()
            .map(|token| token.holder.to_string())
            .unwrap_or_else(|| "no project".to_owned());
        format!("{holder} as {} of {}", self.credentials.identity, self.auth_url())
    }

    fn auth_url(&self) -> String {
        let mut url = self.credentials.auth_url.clone();
        // The URL may contain a password.
        let _ = url.set_password(None);
        url.to_string()
    }
}

/// When to renew a token with this time left: at 80 %, or ten minutes before its expiry if that is later. Random jitter
/// spreads the renewals of processes that started together.
fn early(left: Duration) -> Duration {
    if left < SHORTEST_EARLY {
        return left;
    }
    let at = left.mul_f64(0.8).max(left.saturating_sub(Duration::from_secs(600)));
    at.mul_f64(rand::rng().random_range(0.95..=1.0))
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
