//! The client of Compute Engine: Google's SDK behind the gate. Only this module and its children use the SDK.
//!
//! | Module | Contents |
//! |---|---|
//! | [`credentials`] | tokens of the metadata server, of credentials files and of the alternate endpoint |
//! | [`metadata`] | the metadata server |
//! | [`ops`] | the API calls, their quotas, and metrics under the names of the Go cloud-controller-manager |
//! | [`operations`] | waits for changes |
//! | [`compute`] | projects, zones, networks, instances, routes |
//! | [`balancing`] | the objects of load balancers |
//! | [`permissions`] | the permissions of the credentials |
//!
//! The SDK does not retry: the gate does. Its path `/compute/v1/` is fixed. It reads the environment of the process in three cases, which
//! the config cannot change: proxies (`HTTPS_PROXY`, `NO_PROXY`), `GOOGLE_CLOUD_UNIVERSE_DOMAIN`, and what a credentials file refers to.

mod balancing;
pub(crate) mod compute;
pub(crate) mod credentials;
pub(crate) mod metadata;
mod operations;
mod ops;
pub(crate) mod permissions;

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, RequestOutcome, Result, Retry,
    client::{
        Cache, CacheConfig, CallOptions, Fence, Gate, GateConfig, Refill,
        rest::{Proxies, Tls, http_client, reqwest},
    },
    error::report,
};
use google_cloud_auth::errors::CredentialsError;
use google_cloud_compute_v1::client::{
    Addresses, Firewalls, ForwardingRules, GlobalOperations, HealthChecks, HttpHealthChecks, InstanceGroups,
    Instances, Networks, Projects, RegionBackendServices, RegionOperations, Routes, Subnetworks, TargetPools,
    ZoneOperations, Zones,
};
use google_cloud_gax::{
    client_builder, error::rpc::StatusDetails, options::RequestOptionsBuilder, retry_policy::NeverRetry,
};
use parking_lot::RwLock;
use tokio::time::Instant;
use tracing::{debug, trace};

pub(crate) use self::{
    balancing::{Collection, ObjectPlace},
    compute::{Instance, Route},
    operations::{AwaitedOperation, ComputeOperation, EndedOperation},
    ops::{Place, bucket},
};
use self::{
    credentials::{GOOGLE, Identity},
    metadata::Metadata,
    operations::OpenOperations,
    ops::{Op, RequestMetrics},
};
use crate::{
    config::{Connection, Quotas},
    error::Refusal,
};

/// How long one attempt may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The shortest time between two reads of credentials that Google refuses.
const RENEW_AFTER: Duration = Duration::from_secs(10);
/// The scopes whose latest operations are cached, and for how long.
const LISTINGS: usize = 16;
const LISTINGS_AGE: Duration = Duration::from_secs(10);

/// The API of Compute Engine. A clone shares quota and credentials.
#[derive(Clone)]
pub(crate) struct Api {
    shared: Arc<SharedConnection>,
    gate: Gate,
}

/// The API with the priority of its calls. Each call is a method, in the child modules.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    api: Api,
    priority: Priority,
}

/// What all clones of an [`Api`] share.
struct SharedConnection {
    /// For everything but Compute Engine.
    http: reqwest::Client,
    metadata: Metadata,
    state: RwLock<ConnectionState>,
    metrics: RequestMetrics,
    operations: Arc<OpenOperations>,
    user_agent: String,
}

struct ConnectionState {
    clients: Arc<SdkClients>,
    /// When credentials that Google refused were last read again.
    renewed: Option<Instant>,
    /// The number of earlier connections, as [`Api::reconnect`] counts them.
    generation: u64,
}

/// The SDK's clients with one set of credentials.
struct SdkClients {
    connection: Connection,
    identity: Identity,
    user_agent: String,
    addresses: Addresses,
    backend_services: RegionBackendServices,
    firewalls: Firewalls,
    forwarding_rules: ForwardingRules,
    global_operations: GlobalOperations,
    health_checks: HealthChecks,
    http_health_checks: HttpHealthChecks,
    instance_groups: InstanceGroups,
    instances: Instances,
    networks: Networks,
    projects: Projects,
    region_operations: RegionOperations,
    routes: Routes,
    subnetworks: Subnetworks,
    target_pools: TargetPools,
    zone_operations: ZoneOperations,
    zones: Zones,
}

/// The last component of a URL or path.
pub(crate) fn last_component(link: &str) -> &str {
    link.rsplit('/').next().unwrap_or(link)
}

/// The ID of a request. The service carries out only one request with an ID, so that a change can be repeated.
fn request_id() -> String {
    uuid::Uuid::from_bytes(rand::random()).to_string()
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl SdkClients {
    async fn new(
        connection: Connection,
        metadata: &Metadata,
        http: &reqwest::Client,
        metrics: &RequestMetrics,
        user_agent: &str,
    ) -> Result<Self> {
        let identity = Identity::of(&connection.credentials, metadata, http, metrics).await?;
        // The endpoint of Google in this universe, unless the config has another one.
        let endpoint = match &connection.endpoint {
            Some(url) => url.as_str().trim_end_matches('/').to_owned(),
            None => format!("https://compute.{}", identity.universe),
        };
        let site = SdkSite {
            endpoint,
            identity: &identity,
        };
        Ok(Self {
            addresses: built(site.configured(Addresses::builder()).build().await)?,
            backend_services: built(site.configured(RegionBackendServices::builder()).build().await)?,
            firewalls: built(site.configured(Firewalls::builder()).build().await)?,
            forwarding_rules: built(site.configured(ForwardingRules::builder()).build().await)?,
            health_checks: built(site.configured(HealthChecks::builder()).build().await)?,
            http_health_checks: built(site.configured(HttpHealthChecks::builder()).build().await)?,
            instance_groups: built(site.configured(InstanceGroups::builder()).build().await)?,
            target_pools: built(site.configured(TargetPools::builder()).build().await)?,
            global_operations: built(site.configured(GlobalOperations::builder()).build().await)?,
            instances: built(site.configured(Instances::builder()).build().await)?,
            networks: built(site.configured(Networks::builder()).build().await)?,
            projects: built(site.configured(Projects::builder()).build().await)?,
            region_operations: built(site.configured(RegionOperations::builder()).build().await)?,
            routes: built(site.configured(Routes::builder()).build().await)?,
            subnetworks: built(site.configured(Subnetworks::builder()).build().await)?,
            zone_operations: built(site.configured(ZoneOperations::builder()).build().await)?,
            zones: built(site.configured(Zones::builder()).build().await)?,
            user_agent: user_agent.to_owned(),
            identity,
            connection,
        })
    }

    /// The request with the options of all requests.
    fn prepared<R: RequestOptionsBuilder>(&self, request: R) -> R {
        request.with_user_agent(&self.user_agent)
    }
}

/// The place and the credentials of the SDK's clients.
struct SdkSite<'a> {
    endpoint: String,
    identity: &'a Identity,
}

impl SdkSite<'_> {
    fn configured<F>(
        &self,
        builder: client_builder::ClientBuilder<F, google_cloud_auth::credentials::Credentials>,
    ) -> client_builder::ClientBuilder<F, google_cloud_auth::credentials::Credentials> {
        builder
            .with_endpoint(&self.endpoint)
            .with_credentials(self.identity.credentials.clone())
            .with_universe_domain(&self.identity.universe)
            .with_retry_policy(NeverRetry)
    }
}

/// A client of the SDK, or the error of the config.
fn built<T>(client: client_builder::Result<T>) -> Result<T> {
    client.map_err(|error| {
        let text = format!("the client of Compute Engine cannot be created: {}", report(&error));
        Error::new(ErrorKind::InvalidConfig, text)
    })
}

impl SharedConnection {
    fn clients(&self) -> Arc<SdkClients> {
        Arc::clone(&self.state.read().clients)
    }

    async fn connect(&self, connection: Connection) -> Result<SdkClients> {
        SdkClients::new(connection, &self.metadata, &self.http, &self.metrics, &self.user_agent).await
    }
}

impl Api {
    /// Creates the clients. Tokens are read with the first call.
    ///
    /// # Errors
    ///
    /// A proxy or a credentials file cannot be used, or the metadata server cannot be reached.
    pub(crate) async fn connect(
        connection: Connection,
        quotas: &Quotas,
        context: &BuildContext,
    ) -> Result<Self> {
        // Also installs the cryptography that the SDK uses.
        let direct = http_client(&Tls::default(), &Proxies::default(), &context.user_agent)?;
        let proxies = Proxies::of(&connection.environment);
        let http = http_client(&Tls::default(), &proxies, &context.user_agent)?;
        let metadata = Metadata::new(direct, connection.metadata.clone());
        let metrics = RequestMetrics::publish(crate::NAME, &context.metrics);
        let clients = SdkClients::new(connection, &metadata, &http, &metrics, &context.user_agent).await?;
        let gate = GateConfig {
            buckets: quotas.buckets(),
            refill: Refill::EachMinute,
            // Other programs in the project use the same limits.
            reserved: 0.5,
            attempt_timeout: ANSWER_TIMEOUT,
            // Routes have a fence of their own.
            fence: context.fences.load_balancers.clone(),
            ..GateConfig::new(crate::NAME)
        };
        let listings = CacheConfig::bounded("gce_operations", LISTINGS, LISTINGS_AGE);
        Ok(Self {
            gate: Gate::new(gate, &context.metrics),
            shared: Arc::new(SharedConnection {
                http,
                metadata,
                metrics,
                operations: Arc::new(OpenOperations::new(Cache::new(listings, &context.metrics))),
                user_agent: context.user_agent.clone(),
                state: RwLock::new(ConnectionState {
                    clients: Arc::new(clients),
                    renewed: None,
                    generation: 0,
                }),
            }),
        })
    }

    /// The calls, with this priority.
    pub(crate) fn at(&self, priority: Priority) -> Client {
        let api = self.clone();
        Client { api, priority }
    }

    /// The metadata server.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.shared.metadata
    }

    /// The endpoint of Compute Engine, for messages.
    pub(crate) fn endpoint(&self) -> String {
        let clients = self.shared.clients();
        match &clients.connection.endpoint {
            Some(url) => url.as_str().trim_end_matches('/').to_owned(),
            None if clients.identity.universe == GOOGLE => "Google Cloud".to_owned(),
            None => clients.identity.universe.clone(),
        }
    }

    /// The number of times that other credentials were applied.
    pub(crate) fn generation(&self) -> u64 {
        self.shared.state.read().generation
    }

    /// The API whose writes pass this fence.
    pub(crate) fn fenced_by(&self, fence: &Fence) -> Self {
        Self {
            gate: self.gate.fenced_by(fence),
            ..self.clone()
        }
    }

    /// Replaces the quotas.
    pub(crate) fn set_quotas(&self, quotas: &Quotas) {
        for (bucket, quota) in quotas.buckets() {
            self.gate.bucket(bucket).set_quota(quota);
        }
    }

    /// Switches to other credentials, if they can read the zones of this project.
    ///
    /// # Errors
    ///
    /// Google does not accept the credentials, or cannot be reached; then nothing changes.
    pub(crate) async fn reconnect(&self, connection: Connection, project: &str) -> Result<()> {
        let clients = Arc::new(self.shared.connect(connection).await?);
        let zones = self.gate.call(Op::ZoneList, Priority::User, || async {
            let request = clients.zones.list().set_project(project).set_max_results(1_u32);
            Box::pin(clients.prepared(request).send()).await.map_err(|error| failure(&error))
        });
        match zones.await {
            Err(error) if error.kind() != ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
        let mut state = self.shared.state.write();
        state.clients = clients;
        state.generation += 1;
        Ok(())
    }

    /// Reads the credentials again, unless that was done since these clients were created, or a moment ago. Returns whether
    /// they may have changed.
    async fn renew(&self, refused: &Arc<SdkClients>) -> bool {
        let shared = &self.shared;
        {
            let state = shared.state.read();
            if !Arc::ptr_eq(&state.clients, refused) {
                return true;
            }
            if state.renewed.is_some_and(|last| last.elapsed() < RENEW_AFTER) {
                return false;
            }
        }
        let clients = match shared.connect(refused.connection.clone()).await {
            Ok(clients) => clients,
            Err(error) => {
                debug!(error = error.report(), "Could not read the credentials again");
                return false;
            }
        };
        let mut state = shared.state.write();
        if Arc::ptr_eq(&state.clients, refused) {
            (state.clients, state.renewed) = (Arc::new(clients), Some(Instant::now()));
        }
        true
    }
}

impl Client {
    /// Makes a call through the gate: `request` is sent once or, where that is safe, several times.
    ///
    /// # Errors
    ///
    /// The errors of Compute Engine, by the table of [`crate::error`].
    async fn call<T, F, Fut>(&self, op: Op, place: Place<'_>, request: F) -> Result<T>
    where
        T: Send,
        F: Fn(&SdkClients) -> Fut + Send + Sync,
        Fut: Future<Output = google_cloud_gax::Result<T>> + Send,
    {
        self.call_for(op, place, None, request).await
    }

    /// As [`Self::call`]. `timeout`: how long one attempt may take, if longer than others.
    async fn call_for<T, F, Fut>(
        &self,
        op: Op,
        place: Place<'_>,
        timeout: Option<Duration>,
        request: F,
    ) -> Result<T>
    where
        T: Send,
        F: Fn(&SdkClients) -> Fut + Send + Sync,
        Fut: Future<Output = google_cloud_gax::Result<T>> + Send,
    {
        let Api { shared, gate } = &self.api;
        let options = CallOptions {
            priority: self.priority,
            timeout,
        };
        let answer = gate.call(op, options, || async {
            let clients = shared.clients();
            let began = Instant::now();
            // The SDK's futures are large.
            let answer = Box::pin(request(&clients)).await;
            let elapsed = began.elapsed();
            shared.metrics.ended(op, place, elapsed, answer.is_err());
            let status = answer.as_ref().err().and_then(google_cloud_gax::error::Error::http_status_code);
            trace!(?place, status, ?elapsed, "The cloud answered");
            let error = match answer {
                Ok(reply) => return Ok(reply),
                Err(error) => failure(&error),
            };
            // A token may have been revoked before its end. If it cannot be read, another attempt would fail as well.
            let is_refused = error.kind() == ErrorKind::Unauthenticated && error.status().is_some();
            if is_refused && self.api.renew(&clients).await {
                return Err(error.with_retry(Retry::Backoff));
            }
            Err(error)
        });
        answer.await
    }
}

/// The error of credentials that cannot be used: nothing was sent.
fn credentials_error(error: &CredentialsError) -> Error {
    let kind = if error.is_transient() {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Unauthenticated
    };
    Error::new(kind, format!("no token: {}", report(error)))
}

/// The error for a failure of the SDK.
fn failure(error: &google_cloud_gax::error::Error) -> Error {
    let cause = std::error::Error::source(error);
    if let Some(credentials) = cause.and_then(|cause| cause.downcast_ref::<CredentialsError>()) {
        return credentials_error(credentials);
    }
    if let Some(status) = error.http_status_code() {
        let header = |name: &str| Some(error.http_headers()?.get(name)?.to_str().ok()?.to_owned());
        let (reason, message) = match error.status() {
            Some(status) => {
                let reason = status.details.iter().find_map(|detail| match detail {
                    StatusDetails::ErrorInfo(info) => Some(info.reason.clone()),
                    _ => None,
                });
                (reason.unwrap_or_default(), status.message.clone())
            }
            None => {
                let body = String::from_utf8_lossy(error.http_payload().map_or(&[], |body| body));
                let begin: String = body.chars().take(200).collect();
                (String::new(), begin.split_whitespace().collect::<Vec<_>>().join(" "))
            }
        };
        return Refusal {
            status: Some(status),
            reason,
            message,
            date: header("date"),
        }
        .into_error();
    }
    let text = report(error);
    if error.is_connect() {
        Error::new(ErrorKind::Unavailable, text)
    } else if error.is_deserialization() {
        Error::new(ErrorKind::Unexpected, text).with_outcome(RequestOutcome::Unknown)
    } else if error.is_timeout() {
        Error::new(ErrorKind::Timeout, text).with_outcome(RequestOutcome::Unknown)
    } else if error.is_binding() || error.is_serialization() {
        Error::new(ErrorKind::Unexpected, text)
    } else {
        Error::new(ErrorKind::Unavailable, text).with_outcome(RequestOutcome::Unknown)
    }
}
