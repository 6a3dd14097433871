//! Tokens: fetched with the credential, shared by all calls, and replaced before they expire.
//!
//! A token is used until it expires. From five minutes before, one caller fetches a new one in the background, while all others
//! continue with the old one. So a short outage of the login delays no call.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, Priority, Result,
    client::{
        Gate, later,
        rest::{Answer, Failure, Proxies, Target, Tls, http_client, read_body, reqwest},
    },
};
use http::{HeaderValue, Method};
use jiff::Timestamp;
use parking_lot::RwLock;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::{sync::Mutex, time::Instant};
use tracing::warn;
use url::Url;

use super::ops::Op;
use crate::{
    config::{Credential, Endpoints, Identity},
    error,
};

/// A token is replaced this long before it expires.
const AHEAD: Duration = Duration::from_secs(300);
/// A token that expires earlier than that is replaced after half of its life.
const SHORT_LIFE: Duration = Duration::from_secs(600);
/// After a failed replacement, the next one waits.
const FAILED_PAUSE: Duration = Duration::from_secs(10);
/// The longest answer of a login.
const ANSWER_MAX: usize = 1 << 20;
/// The type of a signed login.
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// A token.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) secret: SecretString,
    expires: Instant,
    replace_after: Instant,
}

impl Token {
    /// The value of the `Authorization` header.
    ///
    /// # Errors
    /// The token contains bytes that a header cannot have.
    pub(crate) fn header(&self) -> Result<HeaderValue> {
        let text = format!("Bearer {}", self.secret.expose_secret());
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| Error::new(ErrorKind::Unexpected, "the token is not valid in a header"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// The tokens of one credential for one audience. A clone shares them.
#[derive(Clone, Debug)]
pub(crate) struct Tokens(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    source: TokenSource,
    current: RwLock<Option<Arc<Token>>>,
    /// Held by the caller that fetches a token.
    fetching: Mutex<()>,
    /// When the last replacement failed.
    failed: RwLock<Option<Instant>>,
}

/// Fetches tokens.
#[derive(Debug)]
pub(crate) struct TokenSource {
    pub(crate) credential: Credential,
    pub(crate) endpoints: Endpoints,
    pub(crate) adfs: bool,
    /// URL of the metadata service of the machine.
    pub(crate) metadata: Url,
    pub(crate) http: reqwest::Client,
    pub(crate) gate: Gate,
}

/// The answer of a login. Numbers may be texts.
#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    #[serde(default)]
    expires_in: Option<serde_json::Value>,
    #[serde(default)]
    expires_on: Option<serde_json::Value>,
    #[serde(default)]
    refresh_in: Option<serde_json::Value>,
}

impl TokenAnswer {
    /// How long the token is valid, and after which time it is replaced.
    fn life(&self, now: Timestamp) -> (Duration, Duration) {
        let on = seconds(self.expires_on.as_ref()).map(|on| on.saturating_sub(now.as_second()));
        let life = seconds(self.expires_in.as_ref()).or(on).and_then(|life| u64::try_from(life).ok());
        let life = Duration::from_secs(life.unwrap_or_default());
        let refresh = seconds(self.refresh_in.as_ref()).and_then(|life| u64::try_from(life).ok());
        let ahead = if life < SHORT_LIFE { life / 2 } else { life - AHEAD };
        (life, refresh.map_or(ahead, |refresh| ahead.min(Duration::from_secs(refresh))))
    }
}

fn seconds(value: Option<&serde_json::Value>) -> Option<i64> {
    let value = value?;
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
}

impl Tokens {
    pub(crate) fn new(source: TokenSource) -> Self {
        Self(Arc::new(Inner {
            source,
            current: RwLock::default(),
            fetching: Mutex::default(),
            failed: RwLock::default(),
        }))
    }

    /// A valid token.
    ///
    /// # Errors
    /// There is no valid token, and the login failed.
    pub(crate) async fn get(&self) -> Result<Arc<Token>> {
        let now = Instant::now();
        if let Some(token) = self.valid(now) {
            if token.replace_after <= now && self.may_replace(now) {
                self.replace_in_background();
            }
            return Ok(token);
        }
        self.fetch_unless(|_| true).await
    }

    /// A newer token than the one that was refused.
    ///
    /// # Errors
    /// The login failed.
    pub(crate) async fn renew(&self, refused: &Arc<Token>) -> Result<Arc<Token>> {
        self.fetch_unless(|token| !Arc::ptr_eq(token, refused)).await
    }

    fn valid(&self, now: Instant) -> Option<Arc<Token>> {
        let current = self.0.current.read();
        current.as_ref().filter(|token| token.expires > now).map(Arc::clone)
    }

    fn may_replace(&self, now: Instant) -> bool {
        let failed = *self.0.failed.read();
        failed.is_none_or(|failed| now.saturating_duration_since(failed) >= FAILED_PAUSE)
    }

    /// Fetches a token, unless another caller has stored one that is usable meanwhile.
    async fn fetch_unless(&self, is_usable: impl Fn(&Arc<Token>) -> bool) -> Result<Arc<Token>> {
        let _fetching = self.0.fetching.lock().await;
        if let Some(token) = self.valid(Instant::now())
            && is_usable(&token)
        {
            return Ok(token);
        }
        let token = Arc::new(self.0.source.fetch().await?);
        *self.0.current.write() = Some(Arc::clone(&token));
        *self.0.failed.write() = None;
        Ok(token)
    }

    fn replace_in_background(&self) {
        if self.0.fetching.try_lock().is_err() {
            return;
        }
        let tokens = self.clone();
        tokio::spawn(async move {
            let fetched = tokens.fetch_unless(|token| token.replace_after > Instant::now()).await;
            if let Err(error) = fetched {
                *tokens.0.failed.write() = Some(Instant::now());
                warn!(error = error.report(), "Could not replace the token; the old one is still valid");
            }
        });
    }
}

impl TokenSource {
    /// Logs in.
    async fn fetch(&self) -> Result<Token> {
        // Expiry counts from before the request.
        let began = Instant::now();
        let answer: TokenAnswer = self
            .gate
            .call(Op::TokenGet, Priority::User, || async {
                let request = self.request()?;
                send(request, self.host()).await
            })
            .await?;
        let (life, replace_after) = answer.life(Timestamp::now());
        Ok(Token {
            secret: answer.access_token.into(),
            expires: later(began, life),
            replace_after: later(began, replace_after),
        })
    }

    /// The host of the login, for messages.
    fn host(&self) -> &str {
        let url = match &self.credential {
            Credential::Managed {
                app_service: Some((url, _)),
                ..
            } => url,
            Credential::Managed { .. } => &self.metadata,
            _ => &self.endpoints.login,
        };
        url.host_str().unwrap_or_default()
    }

    fn request(&self) -> Result<reqwest::RequestBuilder> {
        match &self.credential {
            Credential::Secret {
                tenant,
                client,
                secret,
            } => Ok(self.login(tenant, client, ("client_secret", secret.expose_secret().to_owned()))),
            Credential::Certificate {
                tenant,
                client,
                certificate,
            } => {
                let audience = self.token_url(tenant);
                let now = Timestamp::now().as_second();
                let assertion = certificate.assertion(client, audience.as_str(), now)?;
                Ok(self.login(tenant, client, ("client_assertion", assertion)))
            }
            Credential::Workload { tenant, client, file } => {
                Ok(self.login(tenant, client, ("client_assertion", read_token(file)?)))
            }
            Credential::Managed {
                identity,
                app_service,
            } => self.managed(identity, app_service.as_ref()),
        }
    }

    fn token_url(&self, tenant: &str) -> Url {
        let mut url = self.endpoints.login.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty();
            if self.adfs {
                path.extend(["adfs", "oauth2", "token"]);
            } else {
                path.extend([tenant, "oauth2", "v2.0", "token"]);
            }
        }
        url
    }

    /// A login with a secret or a signed assertion.
    fn login(&self, tenant: &str, client: &str, proof: (&str, String)) -> reqwest::RequestBuilder {
        let mut form = BTreeMap::from([
            ("client_id", client.to_owned()),
            ("grant_type", "client_credentials".to_owned()),
        ]);
        let audience = &self.endpoints.audience;
        if self.adfs {
            form.insert("resource", audience.clone());
        } else {
            form.insert("scope", format!("{audience}/.default"));
        }
        if proof.0 == "client_assertion" {
            form.insert("client_assertion_type", ASSERTION_TYPE.to_owned());
        }
        form.insert(proof.0, proof.1);
        self.http.post(self.token_url(tenant)).form(&form)
    }

    fn managed(
        &self,
        identity: &Identity,
        app_service: Option<&(Url, SecretString)>,
    ) -> Result<reqwest::RequestBuilder> {
        let mut url = match app_service {
            Some((url, _)) => url.clone(),
            None => self.metadata.join("metadata/identity/oauth2/token").map_err(|error| {
                Error::new(ErrorKind::InvalidConfig, "no URL of a metadata service").with_source(error)
            })?,
        };
        let version = if app_service.is_some() {
            "2019-08-01"
        } else {
            "2018-02-01"
        };
        {
            let mut query = url.query_pairs_mut();
            query
                .append_pair("api-version", version)
                .append_pair("resource", &self.endpoints.audience);
            match (identity, app_service) {
                (Identity::System, _) => {}
                (Identity::Client(id), _) => {
                    query.append_pair("client_id", id);
                }
                (Identity::Resource(id), None) => {
                    query.append_pair("msi_res_id", id);
                }
                (Identity::Resource(id), Some(_)) => {
                    query.append_pair("mi_res_id", id);
                }
            }
        }
        // The metadata service must not be asked through a proxy.
        let direct = http_client(&Tls::default(), &Proxies::default(), crate::NAME)?;
        let request = direct.get(url);
        Ok(match app_service {
            Some((_, header)) => request.header("X-IDENTITY-HEADER", header.expose_secret()),
            None => request.header("Metadata", "true"),
        })
    }
}

/// Reads the service account token of a workload identity.
fn read_token(file: &PathBuf) -> Result<String> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let text = format!("could not read the service account token {}", file.display());
        Error::new(ErrorKind::Unauthenticated, text).with_source(error)
    })?;
    Ok(text.trim().to_owned())
}

async fn send(request: reqwest::RequestBuilder, host: &str) -> Result<TokenAnswer> {
    let target = Target {
        method: Method::POST,
        path: format!("login at {host}"),
    };
    // A login changes nothing: without an answer it is repeated.
    let response = request.send().await.map_err(|error| Failure::Transport(error).into_error(&target))?;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = read_body(response, ANSWER_MAX).await.map_err(|failure| failure.into_error(&target))?;
    if !status.is_success() {
        let answer = Answer {
            status,
            headers,
            body,
        };
        return Err(error::login_refused(host, &answer));
    }
    // The error of the parser could show the token.
    serde_json::from_slice(&body)
        .map_err(|_| Error::new(ErrorKind::Unavailable, format!("{target}: the answer contains no token")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_token_is_replaced_before_it_expires() {
        let now: Timestamp = "2026-08-01T10:00:00Z".parse().unwrap();
        let life = |text: &str| {
            let answer: TokenAnswer = serde_json::from_str(text).unwrap();
            let (life, replace) = answer.life(now);
            (life.as_secs(), replace.as_secs())
        };
        assert_eq!(life(r#"{"access_token":"x","expires_in":3600}"#), (3600, 3300));
        assert_eq!(life(r#"{"access_token":"x","expires_in":"86399","refresh_in":"43200"}"#), (86399, 43200));
        let on = now.as_second() + 60;
        assert_eq!(life(&format!(r#"{{"access_token":"x","expires_on":"{on}"}}"#)), (60, 30));
        assert_eq!(life(r#"{"access_token":"x"}"#), (0, 0));
    }
}
