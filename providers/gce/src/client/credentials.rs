//! The credentials of all calls: tokens of the metadata server, of a credentials file, or of an alternate token endpoint.
//!
//! Google's library serves credentials files (service account, user, workload identity federation, impersonation). It reads the
//! environment of the process where these need it: the keys and the region of AWS, and whether a command may be run. The other two
//! sources are here, behind the library's trait, so that they use the config and its environment.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use ccm_core::{
    Error, ErrorKind, Result,
    client::{
        Bucket, Quota,
        rest::{one_line, reqwest},
    },
    error::report,
};
use google_cloud_auth::{
    credentials::{
        CacheableResource, Credentials, CredentialsProvider, EntityTag, external_account,
        external_account_authorized_user, impersonated, service_account, user_account,
    },
    errors::CredentialsError,
};
use http::{Extensions, HeaderMap, HeaderValue, header::AUTHORIZATION};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::Mutex, time::Instant};
use tracing::warn;
use url::Url;

use super::{
    metadata::{Metadata, TOKEN},
    ops::RequestMetrics,
};

/// The scope of all tokens.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// The domain of Google's APIs.
pub(crate) const GOOGLE: &str = "googleapis.com";
/// A token is replaced when less of its life remains. The metadata server has a new one 5 minutes before the end.
const REMAINING: Duration = Duration::from_secs(225);
/// How often the alternate token endpoint is asked, as by the Go cloud-controller-manager.
const ALTERNATE: Quota = Quota {
    rate: 0.05,
    burst: 3,
    max_in_flight: 1,
};
/// How long the alternate token endpoint may take.
const ALTERNATE_TIMEOUT: Duration = Duration::from_secs(30);

/// A type of credentials files, and the fields that it needs.
struct KeyType {
    name: &'static str,
    fields: &'static [&'static str],
    build: fn(Value) -> BuildResult,
}

type BuildResult = std::result::Result<Credentials, google_cloud_auth::build_errors::Error>;

const KEY_TYPES: [KeyType; 5] = [
    KeyType {
        name: "service_account",
        fields: &["client_email", "private_key"],
        build: |key| {
            let scopes = service_account::AccessSpecifier::from_scopes([SCOPE]);
            service_account::Builder::new(key).with_access_specifier(scopes).build()
        },
    },
    KeyType {
        name: "authorized_user",
        fields: &["client_id", "client_secret", "refresh_token"],
        build: |key| user_account::Builder::new(key).with_scopes([SCOPE]).build(),
    },
    KeyType {
        name: "external_account",
        fields: &["audience", "subject_token_type", "token_url", "credential_source"],
        build: |key| external_account::Builder::new(key).with_scopes([SCOPE]).build(),
    },
    KeyType {
        name: "external_account_authorized_user",
        fields: &["client_id", "client_secret", "refresh_token", "token_url"],
        build: |key| external_account_authorized_user::Builder::new(key).build(),
    },
    KeyType {
        name: "impersonated_service_account",
        fields: &["service_account_impersonation_url", "source_credentials"],
        build: |key| impersonated::Builder::new(key).with_scopes([SCOPE]).build(),
    },
];

/// The source of tokens.
#[derive(Clone, Debug)]
pub(crate) enum CredentialSource {
    /// The service account of the instance that this program runs on.
    Metadata,
    /// A credentials file.
    File(Box<AdcKey>),
    /// An endpoint that exchanges a token of the metadata server for another one.
    Alternate { url: Url, body: SecretString },
}

impl PartialEq for CredentialSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Metadata, Self::Metadata) => true,
            (Self::File(a), Self::File(b)) => a == b,
            (
                Self::Alternate { url, body },
                Self::Alternate {
                    url: other,
                    body: rest,
                },
            ) => url == other && body.expose_secret() == rest.expose_secret(),
            _ => false,
        }
    }
}

/// A credentials file.
#[derive(Clone, Debug)]
pub(crate) struct AdcKey {
    pub(crate) path: PathBuf,
    /// The index of its type in [`KEY_TYPES`].
    key_type: usize,
    json: SecretString,
    universe: Option<String>,
}

impl PartialEq for AdcKey {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.json.expose_secret() == other.json.expose_secret()
    }
}

impl AdcKey {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The problem, with its fix. It shows no value of the file.
    pub(crate) fn parse(path: PathBuf, text: &str) -> std::result::Result<Self, String> {
        let file = path.display();
        let fix = "create the file again, for example with gcloud iam service-accounts keys create";
        let Ok(Value::Object(json)) = serde_json::from_str::<Value>(text) else {
            return Err(format!("{file} is not a JSON object; {fix}"));
        };
        let name = json.get("type").and_then(Value::as_str).unwrap_or_default();
        let Some(key_type) = KEY_TYPES.iter().position(|known| known.name == name) else {
            let known: Vec<_> = KEY_TYPES.iter().map(|known| known.name).collect();
            return Err(format!("{file}: type {name:?} is not supported; use one of {}", known.join(", ")));
        };
        let fields = KEY_TYPES.get(key_type).map_or(&[][..], |known| known.fields);
        let missing: Vec<_> = fields
            .iter()
            .filter(|field| json.get(**field).is_none_or(Value::is_null))
            .copied()
            .collect();
        if !missing.is_empty() {
            return Err(format!("{file}: {} is missing in a file of type {name}; {fix}", missing.join(", ")));
        }
        let universe = json.get("universe_domain").and_then(Value::as_str);
        Ok(Self {
            key_type,
            json: text.into(),
            universe: universe.filter(|domain| !domain.is_empty()).map(str::to_owned),
            path,
        })
    }

    fn credentials(&self) -> Result<Credentials> {
        let invalid = |text: String| {
            let text = format!("{} cannot be used: {text}", self.path.display());
            Error::new(ErrorKind::InvalidConfig, text)
        };
        let key: Value =
            serde_json::from_str(self.json.expose_secret()).map_err(|_| invalid("not JSON".to_owned()))?;
        let key_type = KEY_TYPES.get(self.key_type).ok_or_else(|| invalid("unknown type".to_owned()))?;
        (key_type.build)(key).map_err(|error| invalid(report(&error)))
    }
}

/// Credentials, and the domain of the APIs that accept them.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) credentials: Credentials,
    pub(crate) universe: String,
}

impl Identity {
    /// The credentials of a source. Tokens are read with the first call.
    ///
    /// # Errors
    ///
    /// The file cannot be used, or the metadata server cannot be reached.
    pub(super) async fn of(
        source: &CredentialSource,
        metadata: &Metadata,
        http: &reqwest::Client,
        metrics: &RequestMetrics,
    ) -> Result<Self> {
        let source = match source {
            CredentialSource::File(key) => {
                return Ok(Self {
                    credentials: key.credentials()?,
                    universe: key.universe.clone().unwrap_or_else(|| GOOGLE.to_owned()),
                });
            }
            CredentialSource::Metadata => TokenSource::Metadata,
            CredentialSource::Alternate { url, body } => {
                TokenSource::Alternate(Box::new(AlternateEndpoint {
                    http: http.clone(),
                    url: url.clone(),
                    body: body.clone(),
                    bucket: Bucket::new(ALTERNATE),
                    metrics: metrics.clone(),
                }))
            }
        };
        let universe = metadata.universe_domain().await?.unwrap_or_else(|| GOOGLE.to_owned());
        let tokens = Tokens {
            source,
            metadata: metadata.clone(),
            universe: universe.clone(),
            cached: Mutex::default(),
        };
        Ok(Self {
            credentials: Credentials::from(tokens),
            universe,
        })
    }
}

#[derive(Debug)]
enum TokenSource {
    Metadata,
    Alternate(Box<AlternateEndpoint>),
}

#[derive(Debug)]
struct AlternateEndpoint {
    http: reqwest::Client,
    url: Url,
    body: SecretString,
    bucket: Bucket,
    metrics: RequestMetrics,
}

/// A token and the end of its life.
#[derive(Clone, Debug)]
struct CachedToken {
    header: HeaderValue,
    ends: Instant,
}

/// Tokens of the metadata server or of the alternate endpoint, shared by all calls.
#[derive(Debug)]
struct Tokens {
    source: TokenSource,
    metadata: Metadata,
    universe: String,
    cached: Mutex<Option<CachedToken>>,
}

/// The answer of the metadata server.
#[derive(Deserialize)]
struct MetadataToken {
    access_token: SecretString,
    expires_in: u64,
}

/// The answer of the alternate endpoint.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AlternateToken {
    access_token: SecretString,
    expire_time: jiff::Timestamp,
}

impl CredentialsProvider for Tokens {
    async fn headers(
        &self,
        _: Extensions,
    ) -> std::result::Result<CacheableResource<HeaderMap>, CredentialsError> {
        let token = self.token().await.map_err(|error| {
            let is_transient = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout);
            CredentialsError::from_msg(is_transient, error.report())
        })?;
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, token);
        Ok(CacheableResource::New {
            entity_tag: EntityTag::new(),
            data: headers,
        })
    }

    async fn universe_domain(&self) -> Option<String> {
        Some(self.universe.clone())
    }
}

impl Tokens {
    /// The cached token, or a new one if it ends soon. While no new one can be read, the old one is used to its end.
    async fn token(&self) -> Result<HeaderValue> {
        let mut cached = self.cached.lock().await;
        let now = Instant::now();
        if let Some(token) = &*cached
            && token.ends > now + REMAINING
        {
            return Ok(token.header.clone());
        }
        let read = match &self.source {
            TokenSource::Metadata => self.metadata_token().await,
            TokenSource::Alternate(endpoint) => self.alternate_token(endpoint).await,
        };
        match (read, &*cached) {
            (Ok(token), _) => {
                let header = token.header.clone();
                *cached = Some(token);
                Ok(header)
            }
            (Err(error), Some(old)) if old.ends > now => {
                warn!(
                    error = error.report(),
                    "Could not read a new token; using the old one until it expires"
                );
                Ok(old.header.clone())
            }
            (Err(error), _) => Err(error),
        }
    }

    async fn metadata_token(&self) -> Result<CachedToken> {
        let text = self.metadata.get(TOKEN).await?;
        let token: MetadataToken = serde_json::from_str(&text).map_err(|_| {
            Error::new(ErrorKind::Unexpected, "the metadata server returned something other than a token")
        })?;
        Ok(CachedToken {
            header: bearer(&token.access_token)?,
            ends: Instant::now() + Duration::from_secs(token.expires_in),
        })
    }

    async fn alternate_token(&self, endpoint: &AlternateEndpoint) -> Result<CachedToken> {
        let authorization = self.metadata_token().await?;
        let mut permit = endpoint.bucket.acquire(ccm_core::Priority::User).await;
        permit.begin();
        let answer = endpoint.token(&authorization.header).await;
        endpoint.metrics.token(answer.is_err());
        answer
    }
}

impl AlternateEndpoint {
    async fn token(&self, authorization: &HeaderValue) -> Result<CachedToken> {
        let failed = |kind, text: String| Error::new(kind, format!("alternate token endpoint: {text}"));
        let unavailable =
            |error: reqwest::Error| failed(ErrorKind::Unavailable, report(&error.without_url()));
        let request = self
            .http
            .post(self.url.clone())
            .header(AUTHORIZATION, authorization.clone())
            .header(http::header::CONTENT_TYPE, "application/json")
            .timeout(ALTERNATE_TIMEOUT)
            .body(self.body.expose_secret().to_owned());
        let response = request.send().await.map_err(unavailable)?;
        let status = response.status().as_u16();
        let body = response.text().await.map_err(unavailable)?;
        if status != 200 {
            let kind = match status {
                429 | 500.. => ErrorKind::Unavailable,
                _ => ErrorKind::Unauthenticated,
            };
            let body: String = one_line(&body).chars().take(200).collect();
            return Err(failed(kind, format!("it answers {status} {body}")));
        }
        let token: AlternateToken = serde_json::from_str(&body).map_err(|_| {
            failed(ErrorKind::Unexpected, "the answer has no accessToken with an expireTime".to_owned())
        })?;
        let ends = SystemTime::from(token.expire_time);
        Ok(CachedToken {
            header: bearer(&token.access_token)?,
            ends: Instant::now() + ends.duration_since(SystemTime::now()).unwrap_or_default(),
        })
    }
}

/// The header with a token.
fn bearer(token: &SecretString) -> Result<HeaderValue> {
    let text = format!("Bearer {}", token.expose_secret());
    let mut header = HeaderValue::from_str(&text).map_err(|_| {
        Error::new(ErrorKind::Unexpected, "the token contains characters that cannot be sent")
    })?;
    header.set_sensitive(true);
    Ok(header)
}
