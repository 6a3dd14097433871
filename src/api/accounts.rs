//! Controllers under service accounts of their own: `--use-service-account-credentials`.
//!
//! A controller's account is `kube-system/NAME`, where NAME is what its client is called. It is made if it is not there,
//! by the account of the process, which also asks for its tokens. A token is replaced when a fifth of its life is left,
//! while requests go on with the old one; one that the API server answers 401 to is replaced at once, and the request is
//! sent again.
//!
//! Time is measured from the question for the token, so that no clock but this machine's counts.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use ccm_core::{client::Fenced, controllers::Backoff, error::report};
use http::{HeaderValue, Request, Response, StatusCode, header};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, sleep},
};
use tower::{BoxError, Layer, Service};
use tracing::{debug, info, warn};

use super::client::{Through, Work};

const NAMESPACE: &str = "kube-system";
/// What is asked for, in seconds. The API server may give another one.
const LIFETIME: u64 = 3600;
/// How often the API server is asked for a token before that has failed.
const TRIES: u32 = 4;
/// The waits between them.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    longest: Duration::from_secs(2),
};
/// How long a failure is told to whoever needs a token, before the API server is asked again.
const FAILED: Duration = Duration::from_secs(5);
/// How long a token that could not be replaced is used before that is tried again.
const POSTPONED: Duration = Duration::from_secs(30);

/// Makes clients for controllers.
pub(crate) struct Accounts {
    /// The way of their requests.
    work: Work,
    /// The process's own, which asks for tokens.
    client: Client,
}

impl Accounts {
    /// `client` is the process's own; requests through `work` show what the accounts give them.
    pub(crate) fn new(work: Work, client: Client) -> Self {
        Self { work, client }
    }

    /// The client of this name, acting as the account of this name. Nothing is asked for before its first request.
    pub(crate) fn client(&self, name: &'static str) -> anyhow::Result<Client> {
        let account = Account::new(name, self.client.clone());
        self.work.through(Some(name), &AccountLayer(account))
    }
}

/// One account and its token. A clone is the same.
#[derive(Clone, Debug)]
struct Account(Arc<Inner>);

struct Inner {
    name: &'static str,
    client: Client,
    state: Mutex<State>,
    /// One asks at a time.
    asking: Arc<AsyncMutex<()>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// Why there is none, and until when that is the answer.
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
    fn new(name: &'static str, client: Client) -> Self {
        Self(Arc::new(Inner {
            name,
            client,
            state: Mutex::default(),
            asking: Arc::default(),
        }))
    }

    /// What a request is to show.
    async fn token(&self) -> Result<HeaderValue, NoToken> {
        let now = Instant::now();
        let kept = self.0.state.lock().token.clone().filter(|token| now < token.end);
        if let Some(token) = kept {
            if now >= token.renewal {
                self.renew();
            }
            return Ok(token.header);
        }
        let _asking = self.0.asking.lock().await;
        let now = Instant::now();
        {
            // What the one before has found holds for those that waited for it.
            let state = self.0.state.lock();
            if let Some(token) = state.token.as_ref().filter(|token| now < token.end) {
                return Ok(token.header.clone());
            }
            if let Some((until, failure)) = &state.failure
                && now < *until
            {
                return Err(NoToken::Failed(self.0.name, failure.clone()));
            }
        }
        self.0.ask().await
    }

    /// Replaces the token, unless that is being done.
    fn renew(&self) {
        let Ok(asking) = Arc::clone(&self.0.asking).try_lock_owned() else {
            return;
        };
        let inner = Arc::clone(&self.0);
        tokio::spawn(async move {
            let _asking = asking;
            if inner.ask().await.is_err()
                && let Some(token) = &mut inner.state.lock().token
            {
                token.renewal = Instant::now() + POSTPONED;
            }
        });
    }

    /// The API server does not accept it.
    fn refused(&self, header: &HeaderValue) {
        let mut state = self.0.state.lock();
        if state.token.as_ref().is_some_and(|token| token.header == *header) {
            debug!(account = self.0.name, "The token is not accepted any more");
            state.token = None;
        }
    }
}

/// As much of a TokenRequest as is needed.
#[derive(Deserialize)]
struct Answer {
    spec: AnswerSpec,
    status: AnswerStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerSpec {
    expiration_seconds: Option<u64>,
}

#[derive(Deserialize)]
struct AnswerStatus {
    token: String,
}

impl Inner {
    /// Asks until there is a token or it is clear that there will be none, and keeps what came of it.
    async fn ask(&self) -> Result<HeaderValue, NoToken> {
        let asked = self.try_to_ask().await;
        let mut state = self.state.lock();
        match asked {
            Ok(token) => {
                let header = token.header.clone();
                if state.token.is_none() {
                    info!(
                        account = format!("{NAMESPACE}/{}", self.name),
                        "Got a token, the controller acts as its service account"
                    );
                }
                *state = State {
                    token: Some(token),
                    failure: None,
                };
                Ok(header)
            }
            Err(NoToken::Failed(name, failure)) => {
                if state
                    .failure
                    .as_ref()
                    .is_none_or(|(_, before)| *before != failure)
                {
                    warn!(
                        account = format!("{NAMESPACE}/{name}"),
                        error = failure,
                        "There is no token for the service account of a controller"
                    );
                }
                state.failure = Some((Instant::now() + FAILED, failure.clone()));
                Err(NoToken::Failed(name, failure))
            }
            Err(fenced) => Err(fenced),
        }
    }

    async fn try_to_ask(&self) -> Result<Token, NoToken> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut failure = match self.request().await {
                Ok(token) => return Ok(token),
                Err(failure) => failure,
            };
            if failure.code() == Some(StatusCode::NOT_FOUND) && tries < TRIES {
                match self.create().await {
                    Ok(()) => continue,
                    Err(error) => failure = error,
                }
            }
            if let Failure::Asking(_, kube::Error::Service(error)) = &failure
                && let Some(fenced) = error.downcast_ref::<Fenced>()
            {
                return Err((*fenced).into());
            }
            let passes = failure
                .code()
                .is_none_or(|code| code.is_server_error() || code == StatusCode::TOO_MANY_REQUESTS);
            if !passes || tries == TRIES {
                return Err(NoToken::Failed(self.name, failure.explain()));
            }
            sleep(BACKOFF.delay(tries)).await;
        }
    }

    async fn request(&self) -> Result<Token, Failure> {
        let asked = Instant::now();
        let path = format!(
            "/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{}/token",
            self.name
        );
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": LIFETIME},
        });
        let text = self.post("create serviceaccounts/token", &path, &body).await?;
        // The library would log an answer that it can not read, and this one holds a secret.
        let answer: Answer = serde_json::from_str(&text).map_err(|_| Failure::Unreadable)?;
        let mut header = HeaderValue::try_from(format!("Bearer {}", answer.status.token))
            .map_err(|_| Failure::Unreadable)?;
        header.set_sensitive(true);
        let lifetime = Duration::from_secs(answer.spec.expiration_seconds.unwrap_or(LIFETIME));
        Ok(Token {
            header,
            renewal: asked + lifetime / 5 * 4,
            end: asked + lifetime,
        })
    }

    async fn create(&self) -> Result<(), Failure> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
        let body = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
        });
        match self.post("create serviceaccounts", &path, &body).await {
            Ok(_) => {
                info!(
                    account = format!("{NAMESPACE}/{}", self.name),
                    "Made the service account of a controller"
                );
                Ok(())
            }
            // Somebody else has made it.
            Err(failure) if failure.code() == Some(StatusCode::CONFLICT) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    async fn post(
        &self,
        right: &'static str,
        path: &str,
        body: &serde_json::Value,
    ) -> Result<String, Failure> {
        let request = Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into_bytes())
            .map_err(|error| Failure::Asking(right, kube::Error::HttpError(error)))?;
        self.client
            .request_text(request)
            .await
            .map_err(|error| Failure::Asking(right, error))
    }
}

enum Failure {
    /// With the right that the request needed.
    Asking(&'static str, kube::Error),
    Unreadable,
}

impl Failure {
    fn code(&self) -> Option<StatusCode> {
        match self {
            Self::Asking(_, kube::Error::Api(status)) => StatusCode::from_u16(status.code).ok(),
            _ => None,
        }
    }

    fn explain(&self) -> String {
        match self {
            Self::Asking(right, kube::Error::Api(status)) if status.code == 403 => format!(
                "{}; grant the account of this program {right} in {NAMESPACE}, or leave --use-service-account-credentials \
                 out",
                status.message
            ),
            Self::Asking(_, error) => report(error),
            Self::Unreadable => "the answer of the API server holds none".to_owned(),
        }
    }
}

/// Lets requests act as an account.
struct AccountLayer(Account);

impl Layer<Through> for AccountLayer {
    type Service = Acting;

    fn layer(&self, inner: Through) -> Acting {
        Acting {
            inner,
            account: self.0.clone(),
        }
    }
}

pub(crate) struct Acting {
    inner: Through,
    account: Account,
}

impl Service<Request<Body>> for Acting {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // Always ready, and a clone is the same.
        let (mut inner, account) = (self.inner.clone(), self.account.clone());
        Box::pin(async move {
            let token = account.token().await?;
            request.headers_mut().insert(header::AUTHORIZATION, token.clone());
            let again = copy(&request);
            let answer = inner.call(request).await?;
            if answer.status() != StatusCode::UNAUTHORIZED {
                return Ok(answer);
            }
            account.refused(&token);
            let Some(mut again) = again else {
                return Ok(answer);
            };
            // Nothing was done for somebody unknown, so that nothing is done twice.
            let token = account.token().await?;
            again.headers_mut().insert(header::AUTHORIZATION, token);
            Ok(inner.call(again).await?)
        })
    }
}

/// The same request, if its body can be sent twice.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    Some(copy)
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;
