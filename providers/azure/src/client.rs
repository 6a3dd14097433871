//! The client of the Azure Resource Manager. All calls pass the gate.
//!
//! | Module | Contents |
//! |---|---|
//! | [`ops`] | the calls and the quotas of resource providers |
//! | [`quota`] | Azure's front door, rate limits of the config, counts of remaining requests |
//! | [`resource`] | resources and the requests for them; the only module that names the SDK's clients and models |
//! | [`transport`] | sends the requests of the SDK and our own |
//! | [`token`] | tokens of service principals, managed and workload identities |

pub(crate) mod ops;
mod quota;
pub(crate) mod resource;
mod token;
mod transport;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, Result, Retry,
    client::{
        Fence, Gate, GateConfig,
        rest::{Answer, Failure, Proxies, Target, Tls, http_client, reqwest},
    },
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use url::Url;

use self::{
    ops::{BUCKETS, Op},
    quota::{BucketNames, Quotas},
    resource::Resource,
    token::{Token, TokenSource, Tokens},
    transport::{AUXILIARY, Additions, Exchange, OneToken},
};
use crate::{
    config::{Credential, EndpointSource, Endpoints, Settings},
    error::{self, CloudError},
};

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an operation may take.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The first read of an operation's state comes after this time.
const FIRST_POLL: Duration = Duration::from_secs(1);
/// The longest time between two reads of an operation's state.
const LONGEST_POLL: Duration = Duration::from_secs(30);
/// The wait before a change of a busy resource is tried again.
const BUSY: Duration = Duration::from_secs(2);
/// Members of documents that many readers use.
pub(crate) mod field {
    pub(crate) const ETAG: &str = "etag";
    pub(crate) const NAME: &str = "name";
    pub(crate) const PROPERTIES: &str = "properties";
    pub(crate) const TAGS: &str = "tags";
    /// The path of the state.
    pub(crate) const STATE_PATH: &str = "/properties/provisioningState";
}

/// The Azure Resource Manager with the credentials of one principal. Clones share everything except the fence.
#[derive(Clone, Debug)]
pub(crate) struct Arm {
    shared: Arc<Shared>,
    gate: Gate,
}

#[derive(Debug)]
struct Shared {
    http: reqwest::Client,
    endpoints: Endpoints,
    is_azure_stack: bool,
    subscription: String,
    network_subscription: String,
    quotas: Quotas,
    principal: RwLock<Principal>,
}

/// The tokens in use.
#[derive(Clone, Debug)]
struct Principal {
    own: Tokens,
    /// Those for network resources in another tenant.
    network: Option<Tokens>,
    /// Counts the principals before this one.
    generation: u64,
}

/// The account that a call uses.
struct Account {
    subscription: String,
    tokens: Tokens,
    /// The tokens for a further tenant whose resources the call may name.
    auxiliary: Option<Tokens>,
    buckets: BucketNames,
}

/// What a call is about: a resource, or the next page of a list.
#[derive(Clone, Copy, Debug)]
enum Subject<'a> {
    Resource(Resource<'a>),
    Link { url: &'a Url, op: Op, is_network: bool },
}

/// A request to the Azure Resource Manager.
#[derive(Debug)]
struct ArmRequest<'a> {
    subject: Subject<'a>,
    method: Method,
    body: Option<Vec<u8>>,
    if_match: Option<HeaderValue>,
    /// Whether the caller waits if the resource is busy, so that the gate does not.
    returns_busy: bool,
}

/// A change that Azure accepted.
#[derive(Debug)]
pub(crate) struct AcceptedPut {
    /// The document in the answer.
    pub(crate) document: Value,
    /// The operation, unless it has ended.
    pub(crate) operation: Option<AsyncOperation>,
}

/// An operation that Azure has not finished.
#[derive(Debug)]
pub(crate) struct AsyncOperation {
    url: Url,
    is_network: bool,
    began: Instant,
    /// The time from the acceptance to the first poll.
    pub(crate) first_poll: Duration,
}

/// One page of a list.
#[derive(Debug, Deserialize)]
struct ListPage {
    #[serde(default)]
    value: Vec<Value>,
    #[serde(default, rename = "nextLink")]
    next: Option<String>,
}

impl AsyncOperation {
    /// The time until the next poll. A change is seen at most this much later than it could be.
    fn next_poll(&self, answer: &Answer) -> Duration {
        let pause = (self.began.elapsed().mul_f64(0.15) + FIRST_POLL).min(LONGEST_POLL);
        pause.max(requested_pause(answer))
    }
}

/// The pause that an answer asks for.
fn requested_pause(answer: &Answer) -> Duration {
    let seconds = answer.header("retry-after").and_then(|text| text.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or_default()).min(Retry::LONGEST_AFTER)
}

/// The state of an operation.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OperationState {
    status: Option<String>,
    error: Option<CloudError>,
}

impl ArmRequest<'_> {
    fn op(&self) -> Op {
        match &self.subject {
            Subject::Resource(resource) => resource.op(&self.method),
            Subject::Link { op, .. } => *op,
        }
    }

    fn is_network(&self) -> bool {
        match &self.subject {
            Subject::Resource(resource) => resource.is_network(),
            Subject::Link { is_network, .. } => *is_network,
        }
    }
}

impl Arm {
    /// Connects: reads the endpoints of the cloud if they are not known, and gets a token.
    ///
    /// # Errors
    /// The cloud cannot be reached, or refuses the credentials.
    pub(crate) async fn connect(settings: &Settings, context: &BuildContext) -> Result<Self> {
        let agent = match settings.conf.user_agent.as_str() {
            "" => &context.user_agent,
            agent => agent,
        };
        let http = http_client(&Tls::default(), &Proxies::of(&context.environment), agent)?;
        let config = GateConfig {
            buckets: BUCKETS.into_iter().chain(quota::front_door_buckets()).collect(),
            attempt_timeout: REQUEST_TIMEOUT,
            deadline: 2 * REQUEST_TIMEOUT + REQUEST_TIMEOUT,
            retry: settings.retry,
            fence: context.fences.routes.clone(),
            ..GateConfig::new(crate::NAME)
        };
        let gate = Gate::new(config, &context.metrics);
        let endpoints = match &settings.endpoints {
            EndpointSource::Known(endpoints) => endpoints.clone(),
            EndpointSource::Discovery(url, cloud) => discover(&gate, &http, url, cloud).await?,
        };
        let principal = Principal::new(settings, &endpoints, &http, &gate, 0);
        principal.own.get().await?;
        let shared = Shared {
            quotas: Quotas::new(&gate, &settings.rate_limits),
            http,
            endpoints,
            is_azure_stack: settings.is_azure_stack,
            subscription: settings.subscription.clone(),
            network_subscription: settings.network_subscription.clone(),
            principal: RwLock::new(principal),
        };
        Ok(Self {
            shared: Arc::new(shared),
            gate,
        })
    }

    /// The same client, for writes that pass another fence.
    pub(crate) fn fenced_by(&self, fence: &Fence) -> Self {
        Self {
            gate: self.gate.fenced_by(fence),
            ..self.clone()
        }
    }

    /// URL of the Azure Resource Manager.
    pub(crate) fn url(&self) -> &Url {
        &self.shared.endpoints.manager
    }

    /// Counts the credentials that were in use before.
    pub(crate) fn generation(&self) -> u64 {
        self.shared.principal.read().generation
    }

    /// Uses other credentials from now on, if Azure accepts them.
    ///
    /// # Errors
    /// Azure refuses them; the old ones stay in use.
    pub(crate) async fn replace_credentials(&self, settings: &Settings) -> Result<()> {
        let shared = &self.shared;
        let generation = self.generation() + 1;
        let new = Principal::new(settings, &shared.endpoints, &shared.http, &self.gate, generation);
        new.own.get().await?;
        if let Some(network) = &new.network {
            network.get().await?;
        }
        *shared.principal.write() = new;
        Ok(())
    }

    /// Reads a document; `None` if Azure reports that it does not exist.
    ///
    /// # Errors
    /// It could not be read.
    pub(crate) async fn find(&self, resource: Resource<'_>, priority: Priority) -> Result<Option<Value>> {
        let request = ArmRequest {
            subject: Subject::Resource(resource),
            method: Method::GET,
            body: None,
            if_match: None,
            returns_busy: false,
        };
        match self.json(&request, priority).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads one page of a list. `link`: that of the page before.
    ///
    /// # Errors
    /// It could not be read, or its link leads to another host.
    pub(crate) async fn page(
        &self,
        resource: Resource<'_>,
        link: Option<&Url>,
        priority: Priority,
    ) -> Result<(Vec<Value>, Option<Url>)> {
        let subject = match link {
            None => Subject::Resource(resource),
            Some(url) => Subject::Link {
                url,
                op: resource.op(&Method::GET),
                is_network: resource.is_network(),
            },
        };
        let request = ArmRequest {
            subject,
            method: Method::GET,
            body: None,
            if_match: None,
            returns_busy: false,
        };
        let page: ListPage = self.json(&request, priority).await?;
        let next = page.next.filter(|next| !next.is_empty()).map(|next| self.own_url(&next)).transpose()?;
        Ok((page.value, next))
    }

    /// Reads a whole list.
    ///
    /// # Errors
    /// A page could not be read. A list that lacks a page is never returned.
    pub(crate) async fn list(&self, resource: Resource<'_>, priority: Priority) -> Result<Vec<Value>> {
        let (mut all, mut link) = (Vec::new(), None);
        loop {
            let (items, next) = self.page(resource, link.as_ref(), priority).await?;
            all.extend(items);
            if next.is_none() {
                return Ok(all);
            }
            if next == link {
                let text = "a page of a list of Azure names itself as the next one";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            link = next;
        }
    }

    /// Replaces a document, waits until the change is in effect, and returns the document then. `If-Match` is that of the document
    /// that was read: a change by others in between is a `Conflict`.
    ///
    /// # Errors
    /// Azure refused the change, or the operation failed. With [`RequestOutcome::Unknown`](ccm_core::RequestOutcome), it may be in
    /// effect.
    pub(crate) async fn put(
        &self,
        resource: Resource<'_>,
        document: &Value,
        priority: Priority,
    ) -> Result<Option<Value>> {
        let accepted = self.send_put(resource, document, false, priority).await?;
        if let Some(operation) = accepted.operation {
            self.wait(&operation, priority).await?;
        }
        self.find(resource, priority).await
    }

    /// Replaces a document, and does not wait until the change is in effect. `If-Match` as in [`put`](Self::put).
    ///
    /// # Errors
    /// As [`put`](Self::put). A resource that is busy is a `Conflict` with a wait.
    pub(crate) async fn begin_put(
        &self,
        resource: Resource<'_>,
        document: &Value,
        priority: Priority,
    ) -> Result<AcceptedPut> {
        self.send_put(resource, document, true, priority).await
    }

    /// Deletes a resource. `None`: it does not exist any more.
    ///
    /// # Errors
    /// As [`begin_put`](Self::begin_put).
    pub(crate) async fn begin_delete(
        &self,
        resource: Resource<'_>,
        priority: Priority,
    ) -> Result<Option<AsyncOperation>> {
        let request = ArmRequest {
            subject: Subject::Resource(resource),
            method: Method::DELETE,
            body: None,
            if_match: None,
            returns_busy: true,
        };
        match self.send(&request, priority).await {
            Ok((_, answer)) if answer.status == StatusCode::NO_CONTENT => Ok(None),
            Ok((_, answer)) => self.operation(&request, &answer),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn send_put(
        &self,
        resource: Resource<'_>,
        document: &Value,
        returns_busy: bool,
        priority: Priority,
    ) -> Result<AcceptedPut> {
        let body = serde_json::to_vec(document).map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the document is not JSON").with_source(error)
        })?;
        let etag = document.get(field::ETAG).and_then(Value::as_str).filter(|etag| !etag.is_empty());
        let if_match = etag.map(HeaderValue::from_str).transpose();
        let request = ArmRequest {
            subject: Subject::Resource(resource),
            method: Method::PUT,
            body: Some(body),
            if_match: if_match.map_err(|_| Error::new(ErrorKind::Unexpected, "the etag is not a header"))?,
            returns_busy,
        };
        let (_, answer) = self.send(&request, priority).await?;
        let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let state = document.pointer(field::STATE_PATH).and_then(Value::as_str);
        let is_done = state.is_some_and(|state| state.eq_ignore_ascii_case("Succeeded"));
        let operation = if is_done {
            None
        } else {
            self.operation(&request, &answer)?
        };
        Ok(AcceptedPut { document, operation })
    }

    /// The operation that an answer names.
    fn operation(&self, request: &ArmRequest<'_>, answer: &Answer) -> Result<Option<AsyncOperation>> {
        let url = answer.header("azure-asyncoperation").or_else(|| answer.header("location"));
        let Some(url) = url else {
            return Ok(None);
        };
        Ok(Some(AsyncOperation {
            url: self.own_url(url)?,
            is_network: request.is_network(),
            began: Instant::now(),
            first_poll: FIRST_POLL.max(requested_pause(answer)),
        }))
    }

    /// Waits for the end of an operation.
    async fn wait(&self, operation: &AsyncOperation, priority: Priority) -> Result<()> {
        let mut pause = operation.first_poll;
        loop {
            sleep(pause).await;
            match self.poll(operation, priority).await? {
                None => return Ok(()),
                Some(next) => pause = next,
            }
            let elapsed = operation.began.elapsed();
            if elapsed > OPERATION_TIMEOUT {
                let path = operation.url.path();
                let text = format!("{path}: not finished after {} s", elapsed.as_secs());
                let error = Error::new(ErrorKind::Timeout, text).with_retry(Retry::Never);
                return Err(error.with_outcome(ccm_core::RequestOutcome::Unknown));
            }
        }
    }

    /// Reads the state of an operation. `None`: it has ended with success; otherwise the time until the next poll.
    ///
    /// # Errors
    /// The operation failed, or its state could not be read.
    pub(crate) async fn poll(
        &self,
        operation: &AsyncOperation,
        priority: Priority,
    ) -> Result<Option<Duration>> {
        let request = ArmRequest {
            subject: Subject::Link {
                url: &operation.url,
                op: Op::OperationGet,
                is_network: operation.is_network,
            },
            method: Method::GET,
            body: None,
            if_match: None,
            returns_busy: false,
        };
        let (target, answer) = self.send(&request, priority).await?;
        if answer.status != StatusCode::ACCEPTED {
            let state: OperationState = serde_json::from_slice(&answer.body).unwrap_or_default();
            match state.status.as_deref() {
                // The answer of `Location` has no state: it is the result.
                None | Some("Succeeded") => return Ok(None),
                Some(status @ ("Failed" | "Canceled")) => {
                    let cloud = state.error.unwrap_or_default();
                    return Err(error::operation_failed(&target, status, &cloud));
                }
                Some(_) => {}
            }
        }
        Ok(Some(operation.next_poll(&answer)))
    }

    /// A URL of Azure's answers. It must have the origin of the endpoint, which gets the token.
    fn own_url(&self, text: &str) -> Result<Url> {
        let url = Url::parse(text).ok().filter(|url| url.origin() == self.url().origin());
        url.ok_or_else(|| {
            let text = "an answer of Azure contains a link that does not lead to its endpoint";
            Error::new(ErrorKind::Unexpected, text)
        })
    }

    async fn json<T: for<'de> Deserialize<'de>>(
        &self,
        request: &ArmRequest<'_>,
        priority: Priority,
    ) -> Result<T> {
        let (target, answer) = self.send(request, priority).await?;
        serde_json::from_slice(&answer.body).map_err(|error| Failure::Shape(error).into_error(&target))
    }

    async fn send(&self, request: &ArmRequest<'_>, priority: Priority) -> Result<(Target, Answer)> {
        let (op, shared) = (request.op(), &self.shared);
        let buckets = self.account(request.is_network()).buckets;
        let permits = shared.quotas.acquire(op, buckets, &request.method, priority).await?;
        let result = self.gate.call(op, priority, || Box::pin(self.attempt(request))).await;
        permits.end(&result);
        result
    }

    /// Sends the request, and again if its token is refused and there is a newer one.
    async fn attempt(&self, request: &ArmRequest<'_>) -> Result<(Target, Answer)> {
        let account = self.account(request.is_network());
        let token = account.tokens.get().await?;
        let (mut target, mut answer) = self.exchange(request, &account, &token).await?;
        if answer.status == StatusCode::UNAUTHORIZED {
            let renewed = account.tokens.renew(&token).await?;
            (target, answer) = self.exchange(request, &account, &renewed).await?;
        }
        self.shared
            .quotas
            .observe(request.op(), account.buckets, &request.method, &answer.headers);
        let is_success = match request.method {
            Method::GET => {
                matches!(answer.status, StatusCode::OK | StatusCode::ACCEPTED | StatusCode::NO_CONTENT)
            }
            _ => answer.status.is_success(),
        };
        if is_success {
            return Ok((target, answer));
        }
        let error = error::refused(&target, &answer);
        if request.returns_busy && error.kind() == ErrorKind::Conflict && error.retry() == Retry::Backoff {
            return Err(error.with_retry(Retry::Fixed(BUSY)));
        }
        Err(error)
    }

    async fn exchange(
        &self,
        request: &ArmRequest<'_>,
        account: &Account,
        token: &Arc<Token>,
    ) -> Result<(Target, Answer)> {
        let shared = &self.shared;
        let (version, stack_version) = request.op().api_version();
        let api_version = match (&request.subject, shared.is_azure_stack) {
            // Links contain the version that they need.
            (Subject::Link { .. }, _) => None,
            (Subject::Resource(_), true) => Some(stack_version),
            (Subject::Resource(_), false) => Some(version),
        };
        let mut headers = HeaderMap::new();
        if let Some(etag) = &request.if_match {
            headers.insert(header::IF_MATCH, etag.clone());
        }
        if let Some(auxiliary) = &account.auxiliary {
            headers.insert(AUXILIARY, auxiliary.get().await?.header()?);
        }
        let additions = Additions {
            api_version,
            headers,
            body: request.body.clone(),
        };
        let exchange = Exchange::new(&shared.http, additions);
        let (manager, subscription) = (self.url(), &account.subscription);
        let url = match request.subject {
            Subject::Link { url, .. } => Some(url.clone()),
            Subject::Resource(resource) => resource.url(&request.method, manager, subscription),
        };
        if let Some(url) = url {
            let (target, answer) = exchange.send(request.method.clone(), url, token.header()?).await;
            return Ok((target, answer?));
        }
        if let Subject::Resource(resource) = request.subject {
            let scope = format!("{}/.default", shared.endpoints.audience);
            let token = OneToken(token.secret.clone());
            resource
                .send_by_sdk(&request.method, manager, subscription, &scope, token, &exchange)
                .await?;
        }
        exchange.into_reply()
    }

    fn account(&self, is_network: bool) -> Account {
        let principal = self.shared.principal.read().clone();
        let has_own_quota = self.shared.network_subscription != self.shared.subscription;
        if is_network {
            return Account {
                subscription: self.shared.network_subscription.clone(),
                tokens: principal.network.unwrap_or(principal.own),
                auxiliary: None,
                buckets: if has_own_quota { quota::NETWORK } else { quota::OWN },
            };
        }
        Account {
            subscription: self.shared.subscription.clone(),
            tokens: principal.own,
            auxiliary: principal.network,
            buckets: quota::OWN,
        }
    }
}

impl Principal {
    fn new(
        settings: &Settings,
        endpoints: &Endpoints,
        http: &reqwest::Client,
        gate: &Gate,
        generation: u64,
    ) -> Self {
        let tokens = |credential: &Credential| {
            Tokens::new(TokenSource {
                credential: credential.clone(),
                endpoints: endpoints.clone(),
                adfs: settings.adfs,
                metadata: settings.metadata.clone(),
                http: http.clone(),
                gate: gate.clone(),
            })
        };
        Self {
            own: tokens(&settings.credential),
            network: settings.network_credential.as_ref().map(tokens),
            generation,
        }
    }
}

/// The endpoints of one cloud, as an Azure Resource Manager returns them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CloudMetadata {
    name: String,
    resource_manager: String,
    authentication: AuthenticationMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AuthenticationMetadata {
    audiences: Vec<String>,
    login_endpoint: String,
}

/// Reads the endpoints of the cloud.
async fn discover(gate: &Gate, http: &reqwest::Client, manager: &Url, cloud: &str) -> Result<Endpoints> {
    let mut url = manager.clone();
    url.set_path("metadata/endpoints");
    url.query_pairs_mut().append_pair("api-version", Op::EndpointsGet.api_version().0);
    let read = gate.call(Op::EndpointsGet, Priority::User, || async {
        let target = Target {
            method: Method::GET,
            path: url.path().to_owned(),
        };
        let response = http
            .get(url.clone())
            .send()
            .await
            .map_err(|error| Failure::Transport(error).into_error(&target))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(|error| Failure::Transport(error).into_error(&target))?;
        let answer = Answer {
            status,
            headers,
            body: body.to_vec(),
        };
        if !status.is_success() {
            return Err(error::refused(&target, &answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| Failure::Shape(error).into_error(&target))
    });
    let clouds: Vec<CloudMetadata> = read.await?;
    let found = clouds
        .into_iter()
        .find(|found| cloud.is_empty() || found.name.eq_ignore_ascii_case(cloud));
    let invalid = |what: &str| {
        let text = format!("resourceManagerEndpoint: {manager} returns no {what} of the cloud {cloud:?}");
        Error::new(ErrorKind::InvalidConfig, text)
    };
    let found = found.ok_or_else(|| invalid("endpoints"))?;
    let audience = found.authentication.audiences.first().ok_or_else(|| invalid("audience"))?;
    let manager = match found.resource_manager.as_str() {
        "" => manager.clone(),
        text => Url::parse(text).map_err(|_| invalid("URL of the resource manager"))?,
    };
    Ok(Endpoints {
        manager,
        audience: audience.trim_end_matches('/').to_owned(),
        login: Url::parse(&found.authentication.login_endpoint).map_err(|_| invalid("login"))?,
    })
}
