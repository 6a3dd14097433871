//! Controllers under service accounts of their own: `--use-service-account-credentials`.
//!
//! A controller's account is `kube-system/NAME`, where NAME is the name of its client. The account of the process creates it if
//! it is missing, and requests its tokens. A token is replaced when a fifth of its life is left, while requests use the old
//! one. A token that the API server answers 401 to is replaced at once, and the request is sent again.
//!
//! Time is measured from the request for the token, so that only this machine's clock counts.

use std::{sync::Arc, time::Duration};

use ccm_core::{client::Fenced, controllers::Backoff, error::report};
use http::{HeaderValue, Request, Response, StatusCode, header};
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    client::Body,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, sleep},
};
use tower::BoxError;
use tracing::{debug, info, warn};

use super::client::Work;

const NAMESPACE: &str = "kube-system";
/// The requested lifetime of a token in seconds. The API server may set another one.
const LIFETIME: i64 = 3600;
/// The most requests for a token before that has failed.
const TRIES: u32 = 4;
/// The waits between them.
const BACKOFF: Backoff = Backoff::millis(500, 2000);
/// How long a failure is the result for all requests, before another token is requested.
const FAILED: Duration = Duration::from_secs(5);
/// How long a token that could not be replaced is used before that is tried again.
const POSTPONED: Duration = Duration::from_secs(30);

/// Creates clients for controllers.
pub(crate) struct Accounts {
    /// The connection of their requests.
    work: Work,
    /// The process's own client, which requests tokens.
    client: Client,
}

impl Accounts {
    /// `client` is the process's own. Requests through `work` have no credentials but those of the accounts.
    pub(crate) fn new(work: Work, client: Client) -> Self {
        Self { work, client }
    }

    /// The client of this name, with the account of this name. Sends nothing before its first request.
    pub(crate) fn client(&self, name: &'static str) -> anyhow::Result<Client> {
        let account = Account::new(name, self.client.clone());
        self.work
            .client_with(Some(name), move |transport, request| Arc::clone(&account).send(transport, request))
    }
}

/// One account and its token.
struct Account {
    name: &'static str,
    client: Client,
    state: Mutex<AccountState>,
    /// Locked during a request for a token.
    asking: Arc<AsyncMutex<()>>,
}

#[derive(Default)]
struct AccountState {
    token: Option<Token>,
    /// Why there is no token, and until when this is the result.
    failure: Option<(Instant, String)>,
}

#[derive(Clone)]
struct Token {
    /// The value of the header `Authorization`.
    header: HeaderValue,
    renewal: Instant,
    end: Instant,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
enum NoToken {
    #[error(transparent)]
    Fenced(#[from] Fenced),
    #[error("no token for the service account {NAMESPACE}/{0}: {1}")]
    Failed(&'static str, String),
}

impl Account {
    fn new(name: &'static str, client: Client) -> Arc<Self> {
        Arc::new(Self {
            name,
            client,
            state: Mutex::default(),
            asking: Arc::default(),
        })
    }

    /// Sends a request with the token.
    async fn send(
        self: Arc<Self>,
        client: Client,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let token = self.token().await?;
        request.headers_mut().insert(header::AUTHORIZATION, token.clone());
        let (head, body) = request.into_parts();
        // `None` if its body cannot be sent twice.
        let again = body.try_clone().map(|body| Request::from_parts(head.clone(), body));
        let answer = client.send(Request::from_parts(head, body)).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        self.rejected(&token);
        let Some(mut again) = again else {
            return Ok(answer);
        };
        // The API server did nothing for an unknown client, so that nothing is done twice.
        let token = self.token().await?;
        again.headers_mut().insert(header::AUTHORIZATION, token);
        Ok(client.send(again).await?)
    }

    /// The value of the header `Authorization`.
    async fn token(self: &Arc<Self>) -> Result<HeaderValue, NoToken> {
        if let Some(token) = self.valid() {
            if Instant::now() >= token.renewal {
                self.renew();
            }
            return Ok(token.header);
        }
        let _asking = self.asking.lock().await;
        // The result of a request is also the result for all that waited for it.
        if let Some(token) = self.valid() {
            return Ok(token.header);
        }
        if let Some((until, failure)) = &self.state.lock().failure
            && Instant::now() < *until
        {
            return Err(NoToken::Failed(self.name, failure.clone()));
        }
        self.ask().await
    }

    fn valid(&self) -> Option<Token> {
        let token = self.state.lock().token.clone();
        token.filter(|token| Instant::now() < token.end)
    }

    /// Replaces the token, unless it is being replaced already.
    fn renew(self: &Arc<Self>) {
        let Ok(asking) = Arc::clone(&self.asking).try_lock_owned() else {
            return;
        };
        let account = Arc::clone(self);
        tokio::spawn(async move {
            let _asking = asking;
            if account.ask().await.is_err()
                && let Some(token) = &mut account.state.lock().token
            {
                token.renewal = Instant::now() + POSTPONED;
            }
        });
    }

    /// The API server does not accept the token.
    fn rejected(&self, header: &HeaderValue) {
        let mut state = self.state.lock();
        if state.token.as_ref().is_some_and(|token| token.header == *header) {
            debug!(account = self.name, "The token is not accepted any more");
            state.token = None;
        }
    }

    /// Requests a token until there is one or a failure is final, and stores the result.
    async fn ask(&self) -> Result<HeaderValue, NoToken> {
        let asked = self.try_to_ask().await;
        let mut state = self.state.lock();
        match &asked {
            Ok(token) => {
                if state.token.is_none() {
                    info!(
                        account = format!("{NAMESPACE}/{}", self.name),
                        "Got a token, the controller acts as its service account"
                    );
                }
                *state = AccountState {
                    token: Some(token.clone()),
                    failure: None,
                };
            }
            Err(NoToken::Failed(name, failure)) => {
                let before = state.failure.as_ref();
                if before.is_none_or(|(_, before)| before != failure) {
                    warn!(
                        account = format!("{NAMESPACE}/{name}"),
                        error = failure,
                        "Could not get a token for the service account of a controller"
                    );
                }
                state.failure = Some((Instant::now() + FAILED, failure.clone()));
            }
            Err(NoToken::Fenced(_)) => {}
        }
        asked.map(|token| token.header)
    }

    async fn try_to_ask(&self) -> Result<Token, NoToken> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut failure = match self.request().await {
                Ok(token) => return Ok(token),
                Err(failure) => failure,
            };
            if let TokenFailure::Request(_, kube::Error::Api(status)) = &failure
                && status.code == 404
                && tries < TRIES
            {
                match self.create().await {
                    Ok(()) => continue,
                    Err(error) => failure = error,
                }
            }
            if let TokenFailure::Request(_, kube::Error::Service(error)) = &failure
                && let Some(fenced) = error.downcast_ref::<Fenced>()
            {
                return Err((*fenced).into());
            }
            let passes = match &failure {
                TokenFailure::Request(_, error) => super::may_pass(error),
                TokenFailure::Unreadable => true,
            };
            if !passes || tries == TRIES {
                return Err(NoToken::Failed(self.name, failure.explain()));
            }
            sleep(BACKOFF.delay(tries)).await;
        }
    }

    async fn request(&self) -> Result<Token, TokenFailure> {
        let failed = |error| TokenFailure::Request("create serviceaccounts/token", error);
        let began = Instant::now();
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{}/token", self.name);
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": LIFETIME},
        });
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| failed(kube::Error::HttpError(error)))?;
        // kube would log an answer that it cannot read as a `TokenRequest`, and the answer contains a secret.
        let text = self.client.request_text(request).await.map_err(failed)?;
        let answer: TokenRequest = serde_json::from_str(&text).map_err(|_| TokenFailure::Unreadable)?;
        let token = answer
            .status
            .map(|status| status.token)
            .filter(|token| !token.is_empty())
            .ok_or(TokenFailure::Unreadable)?;
        let mut header =
            HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| TokenFailure::Unreadable)?;
        header.set_sensitive(true);
        let lifetime = answer.spec.expiration_seconds.unwrap_or(LIFETIME);
        let lifetime = Duration::from_secs(lifetime.unsigned_abs());
        Ok(Token {
            header,
            renewal: began + lifetime / 5 * 4,
            end: began + lifetime,
        })
    }

    async fn create(&self) -> Result<(), TokenFailure> {
        let account = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(self.name.to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        match api.create(&PostParams::default(), &account).await {
            Ok(_) => {
                info!(
                    account = format!("{NAMESPACE}/{}", self.name),
                    "Created the service account of a controller"
                );
                Ok(())
            }
            // Another process has created it.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(TokenFailure::Request("create serviceaccounts", error)),
        }
    }
}

enum TokenFailure {
    /// With the right that the request needed.
    Request(&'static str, kube::Error),
    Unreadable,
}

impl TokenFailure {
    fn explain(&self) -> String {
        match self {
            Self::Request(right, kube::Error::Api(status)) if status.code == 403 => format!(
                "{}; grant the account of this program {right} in {NAMESPACE}, or leave --use-service-account-credentials \
                 out",
                status.message
            ),
            Self::Request(_, error) => report(error),
            Self::Unreadable => "the answer of the API server contains no token".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
