//! The cloud's API: how a call becomes a request, and which URL it has.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header::IF_MATCH};
use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, Result,
    client::{
        Fence, Gate, GateConfig, Operation, RetryPolicy, TimedMetrics,
        rest::{self, Answer, Proxies, RestApi, Target, Tls},
    },
};
use openstack::session::Session;
use parking_lot::Mutex;
use reqwest::RequestBuilder;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use url::Url;

use super::{
    catalog::{self, Interface, Service},
    generation::Generation,
    identity::Credentials,
    keystone::{Keystone, Token},
    metrics::REQUEST_METRICS,
    ops::{self, Op},
    quotas::Quotas,
    session,
};
use crate::error;

/// Nova's microversion.
const MICROVERSION: HeaderName = HeaderName::from_static("openstack-api-version");

/// The settings that are needed to reach the cloud.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// The identity.
    pub(crate) credentials: Credentials,
    /// TLS options.
    pub(crate) tls: Tls,
    /// `region`.
    pub(crate) region: Option<String>,
    /// `os-endpoint-type`.
    pub(crate) interface: Interface,
}

/// State that all connections to one cloud share, whatever their credentials: the quota is per process.
#[derive(Clone, Debug)]
pub(crate) struct Gates {
    calls: Gate,
    /// Never retries: a call that needs a token repeats its attempt, and with it the request for the token.
    logins: Gate,
    requests: TimedMetrics,
    proxies: Proxies,
}

impl Gates {
    /// Creates gates with full buckets.
    pub(crate) fn new(request_timeout: Duration, quotas: &Quotas, context: &BuildContext) -> Self {
        let mut config = GateConfig::new(crate::NAME);
        config.attempt_timeout = request_timeout;
        config.deadline = config.deadline.max(request_timeout * 2);
        config.buckets = quotas.buckets();
        let once = GateConfig {
            retry: RetryPolicy::never(),
            ..config.clone()
        };
        // Token requests have no fence: a standby needs a token, too. Routes have a fence of their own; all other
        // writes are for load balancers.
        config.fence = context.fences.load_balancers.clone();
        Self {
            requests: TimedMetrics::publish(crate::NAME, &REQUEST_METRICS, &context.metrics),
            proxies: Proxies::of(&context.environment),
            calls: Gate::new(config, &context.metrics),
            logins: Gate::new(once, &context.metrics),
        }
    }

    /// Replaces the quotas.
    pub(crate) fn set_quotas(&self, quotas: &Quotas) {
        for (bucket, quota) in quotas.buckets() {
            let gate = if bucket == ops::IDENTITY {
                &self.logins
            } else {
                &self.calls
            };
            gate.bucket(bucket).set_quota(quota);
        }
    }
}

/// The page size. It is the largest that the services return by default.
const PAGE_SIZE: usize = 1000;
/// The factor by which pages shrink when one is too large to be read. A pool lists the IDs of its members, so a
/// thousand pools can exceed the limit.
const SHORTER: usize = 8;

/// How long pages are shorter after one failed: the service, or a proxy in front of it, may need too long for a longer one.
const SHORTER_FOR: Duration = Duration::from_secs(600);

/// The page sizes of kinds that differ from [`PAGE_SIZE`].
#[derive(Clone, Debug, Default)]
pub(crate) struct PageSizes {
    most: Arc<Mutex<HashMap<&'static str, usize>>>,
    /// When a page could not be read in time.
    failed: Arc<Mutex<HashMap<&'static str, Instant>>>,
}

impl PageSizes {
    pub(crate) fn get(&self, kind: &str) -> usize {
        let most = self.most.lock().get(kind).copied().unwrap_or(PAGE_SIZE);
        let failed = self.failed.lock().get(kind).copied();
        if failed.is_some_and(|at| at.elapsed() < SHORTER_FOR) {
            most.min(PAGE_SIZE / SHORTER)
        } else {
            most
        }
    }

    /// Reduces the page size of a kind after a page of `size` was too large. False: no smaller size exists.
    pub(super) fn shorten(&self, kind: &'static str, size: usize) -> bool {
        let shorter = (size / SHORTER).max(1);
        let mut sizes = self.most.lock();
        // Another task may have reduced it further.
        let known = sizes.entry(kind).or_insert(shorter);
        *known = shorter.min(*known);
        shorter < size
    }

    /// Reduces the page size of a kind for a while if the read of a page failed because it took too long.
    pub(crate) fn failed(&self, kind: &'static str, error: &Error) {
        if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable) {
            self.failed.lock().insert(kind, Instant::now());
        }
    }
}

/// The cloud's API.
#[derive(Clone)]
pub(crate) struct Api {
    session: Session,
    keystone: Arc<Keystone>,
    gate: Gate,
    requests: TimedMetrics,
    region: Option<String>,
    interface: Interface,
    pub(crate) page_sizes: PageSizes,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("keystone", &self.keystone)
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

impl Api {
    /// Authenticates, and reads the endpoints of Nova and Neutron.
    ///
    /// # Errors
    ///
    /// If Keystone cannot be reached or refuses, or a service has no endpoint.
    pub(crate) async fn connect(
        connection: Connection,
        gates: &Gates,
        user_agent: &str,
        generation: &Generation,
    ) -> Result<Self> {
        let api = Self::authenticate(connection, gates, user_agent, generation).await?;
        for service in [Service::Compute, Service::Network] {
            api.endpoint(service).await?;
        }
        Ok(api)
    }

    /// Authenticates, without checking which services exist.
    ///
    /// # Errors
    ///
    /// If Keystone cannot be reached or refuses.
    pub(crate) async fn authenticate(
        connection: Connection,
        gates: &Gates,
        user_agent: &str,
        generation: &Generation,
    ) -> Result<Self> {
        let Connection {
            credentials,
            tls,
            region,
            interface,
        } = connection;
        let http = rest::http_client(&tls, &gates.proxies, user_agent)?;
        let keystone =
            Arc::new(Keystone::new(credentials, http.clone(), gates.logins.clone(), generation.clone()));
        let session = session::connect(http, &keystone, interface, region.clone()).await?;
        Ok(Self {
            session,
            keystone,
            gate: gates.calls.clone(),
            requests: gates.requests.clone(),
            region,
            interface,
            page_sizes: PageSizes::default(),
        })
    }

    /// The same client with another fence for writes.
    pub(crate) fn fenced_by(&self, fence: &Fence) -> Self {
        Self {
            gate: self.gate.fenced_by(fence),
            ..self.clone()
        }
    }

    /// The project, the user and the region of the credentials.
    pub(crate) fn scope(&self) -> String {
        let region = self.region.as_deref().map(|region| format!(", region {region:?}")).unwrap_or_default();
        format!("{}{region}", self.keystone.scope())
    }

    /// The project of the token. Without one, requests concern everything that is visible.
    ///
    /// # Errors
    ///
    /// If no token can be obtained.
    pub(crate) async fn project(&self) -> Result<Option<String>> {
        Ok(self.keystone.token().await?.project())
    }

    /// Why the catalog has no endpoint of a service; `None` if it has one.
    ///
    /// # Errors
    ///
    /// If no token can be obtained.
    pub(crate) async fn missing(&self, service: Service) -> Result<Option<String>> {
        self.keystone.token().await?;
        match self.endpoint(service).await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidConfig => Ok(Some(error.report())),
            Err(error) => Err(error),
        }
    }

    /// Sends a read.
    ///
    /// # Errors
    ///
    /// As [`crate::error`] maps them.
    pub(crate) async fn get<T: DeserializeOwned + Send>(
        &self,
        get: &Call<'_>,
        priority: Priority,
    ) -> Result<T> {
        rest::json(self, get, priority).await
    }

    /// Reads a document above the service's version.
    ///
    /// # Errors
    ///
    /// As [`crate::error`] maps them.
    pub(crate) async fn get_unversioned<T: DeserializeOwned + Send>(
        &self,
        get: Call<'_>,
        priority: Priority,
    ) -> Result<T> {
        let (service, unversioned) = (get.endpoint.service, true);
        let endpoint = RequestTarget { service, unversioned };
        rest::json(self, &Call { endpoint, ..get }, priority).await
    }

    /// Sends a change, and reads the object from the answer.
    ///
    /// # Errors
    ///
    /// As [`crate::error`] maps them. With [`ccm_core::RequestOutcome::Unknown`] the change may have happened nevertheless.
    pub(crate) async fn write<T: DeserializeOwned + Send>(
        &self,
        write: &Call<'_>,
        priority: Priority,
    ) -> Result<T> {
        rest::json(self, write, priority).await
    }

    /// Sends a change whose answer has no further content. Deleting a missing object is an error of kind `NotFound`.
    ///
    /// # Errors
    ///
    /// As for [`Self::write`].
    pub(crate) async fn execute(&self, write: &Call<'_>, priority: Priority) -> Result<()> {
        rest::execute(self, write, priority).await
    }

    async fn endpoint(&self, service: Service) -> Result<Url> {
        let filters = self.session.endpoint_filters();
        match self.session.client().get_endpoint(service.catalog_type(), filters).await {
            Ok(url) => Ok(url),
            // The session's error is only text, so read the endpoint again for an error with its kind.
            Err(_) => self.keystone.endpoint(service, self.interface, self.region.as_deref()).await,
        }
    }
}

/// The target of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTarget {
    service: Service,
    /// The service's URL without its version.
    unversioned: bool,
}

impl RestApi for Api {
    type Operation = Op;
    type Endpoint = RequestTarget;
    type Credentials = Arc<Token>;

    // A page of a thousand servers has about three megabytes; with much metadata ten times that. The limit is lower in
    // unit tests, so that they can exceed it with less data.
    const BODY_MAX: usize = if cfg!(test) { 4 << 20 } else { 64 << 20 };
    const REQUEST_ID: &'static str = error::REQUEST_ID;

    fn http(&self) -> &reqwest::Client {
        self.session.client().inner()
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    async fn credentials(&self) -> Result<Arc<Token>> {
        self.keystone.token().await
    }

    /// Renews a token that a service refused, because it was revoked or Keystone lost it. Another task may have renewed
    /// it already.
    async fn renew(&self, refused: &Arc<Token>) -> Result<Option<Arc<Token>>> {
        self.keystone.renew(refused.generation).await.map(Some)
    }

    async fn base_url(&self, endpoint: RequestTarget) -> Result<Url> {
        let url = self.endpoint(endpoint.service).await?;
        Ok(if endpoint.unversioned {
            catalog::unversioned(url)
        } else {
            url
        })
    }

    fn authorize(&self, request: RequestBuilder, token: &Arc<Token>) -> RequestBuilder {
        token.apply(request)
    }

    fn is_success(&self, endpoint: RequestTarget, method: &Method, status: StatusCode) -> bool {
        match status {
            StatusCode::OK => true,
            // The status of a list of versions.
            StatusCode::MULTIPLE_CHOICES => endpoint.unversioned,
            _ => *method != Method::GET && status.is_success(),
        }
    }

    fn refused(&self, target: &Target, answer: &Answer) -> Error {
        let error = error::refused(target, answer);
        match answer.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.keystone.about(error),
            _ => error,
        }
    }

    fn answered(&self, op: Op, method: &Method, answer: Option<(StatusCode, &HeaderMap)>, elapsed: Duration) {
        let ok = answer.is_some_and(|(status, _)| {
            let gone = *method == Method::DELETE && status == StatusCode::NOT_FOUND;
            status.is_success() || gone
        });
        self.requests.observe(op.name(), elapsed, ok);
    }
}

/// A call of the cloud's API.
pub(crate) type Call<'a> = rest::Call<'a, Op, RequestTarget>;

/// A call below a service's URL.
pub(crate) fn call<'a>(op: Op, service: Service, method: Method, path: &'a [&'a str]) -> Call<'a> {
    let unversioned = false;
    let endpoint = RequestTarget { service, unversioned };
    Call::new(op, endpoint, method, path)
}

/// A read.
pub(crate) fn read<'a>(op: Op, service: Service, path: &'a [&'a str]) -> Call<'a> {
    call(op, service, Method::GET, path)
}

/// Adds Nova's microversion; without one Nova uses 2.1. A Nova that does not know the header ignores it.
pub(crate) fn with_microversion<'a>(version: Option<&str>, mut call: Call<'a>) -> Call<'a> {
    if let Some(version) = version {
        insert(&mut call.headers, MICROVERSION, &format!("compute {version}"));
    }
    call
}

/// Makes Neutron refuse the call unless the object still has this revision. The error is then
/// [stale](ccm_core::plan::WriteConflict::Stale).
pub(crate) fn if_revision<'a>(revision: Option<i64>, mut call: Call<'a>) -> Call<'a> {
    if let Some(revision) = revision {
        let text = format!("revision_number={revision}");
        insert(&mut call.headers, IF_MATCH, &text);
    }
    call
}

/// Adds a header whose value is plain ASCII.
fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
