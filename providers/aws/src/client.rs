//! The client of AWS: the SDK behind the gate. Only this module and its children use the SDK.
//!
//! | Module | Contents |
//! |---|---|
//! | [`connect`] | credentials, endpoints, proxy, trusted authorities: from the config to the SDK's clients |
//! | [`ops`] | the API calls, their quotas, and metrics under the names of upstream |
//! | [`metadata`] | the instance metadata service |
//! | [`ec2`] | instances, subnets, route tables, security groups, tags |
//! | [`dry_run`] | checks of permissions |
//! | [`elb`] | reads of load balancers, network and classic |
//! | [`send`] | writes of load balancers and security groups |
//!
//! The SDK does not retry: the gate does. A call names its operation and the request of the SDK, which is sent for each attempt:
//! `client.call(Op::Zones, |sdk| sdk.ec2.describe_availability_zones().send())`.

mod connect;
pub(crate) mod dry_run;
pub(crate) mod ec2;
pub(crate) mod elb;
pub(crate) mod metadata;
mod ops;
pub(crate) mod send;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_runtime_api::client::{orchestrator::HttpResponse, result::SdkError};
use aws_smithy_types::{DateTime, date_time::Format, error::metadata::ProvideErrorMetadata};
use aws_types::request_id::RequestId;
use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, RequestOutcome, Result, Retry,
    client::{Fence, Gate, GateConfig},
    error::{accept, report},
};
use parking_lot::RwLock;
use tokio::time::Instant;
use tracing::{trace, warn};

use self::{
    connect::{ANSWER_TIMEOUT, SdkClients},
    metadata::{Metadata, REGION},
    ops::RequestMetrics,
};
pub(crate) use self::{
    connect::{Connection, ENDPOINT_VARIABLES, Endpoint, Role, Service, is_certificates},
    ops::{Op, Quotas},
};

/// The shortest time between two reads of credentials that AWS refuses.
const RENEW_AFTER: Duration = Duration::from_secs(10);
/// AWS accepts signatures whose time differs less than this from its own; it refuses from 5 minutes.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(4 * 60);
/// The codes with which AWS refuses the time of a signature. Those of wrong credentials are among them.
const SIGNATURE_CODES: &[&str] = &[
    "AuthFailure",
    "InvalidSignatureException",
    "RequestExpired",
    "RequestInTheFuture",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];

/// The API of AWS in one region. A clone shares quota and credentials.
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
    region: String,
    metadata: Metadata,
    state: RwLock<ConnectionState>,
    metrics: RequestMetrics,
    user_agent: String,
}

struct ConnectionState {
    connection: Connection,
    clients: Arc<SdkClients>,
    /// When credentials that AWS refused were last read again.
    renewed: Option<Instant>,
    /// The number of earlier connections, as [`Api::reconnect`] counts them.
    generation: u64,
}

impl ConnectionState {
    /// The connection with new clients.
    async fn new(connection: Connection, region: &str, user_agent: &str) -> Result<Self> {
        Ok(Self {
            clients: Arc::new(connection.clients(region, user_agent).await?),
            connection,
            renewed: None,
            generation: 0,
        })
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("region", &self.shared.region).finish_non_exhaustive()
    }
}

impl Api {
    /// Creates the clients, including that of the instance metadata service, which returns the region if the config has none.
    /// Credentials are read with the first call.
    ///
    /// # Errors
    ///
    /// If the proxy is invalid, or no region is known.
    pub(crate) async fn connect(
        connection: Connection,
        quotas: &Quotas,
        context: &BuildContext,
    ) -> Result<Self> {
        let metadata = Metadata::new(&connection)?;
        let region = match &connection.region {
            Some(region) => region.clone(),
            None => metadata.get(REGION).await?,
        };
        let mut config = GateConfig::new(crate::NAME);
        config.buckets = quotas.all_buckets().into_iter().collect();
        // Other programs in the account use the same limits.
        config.reserved = 0.5;
        config.attempt_timeout = ANSWER_TIMEOUT;
        // Routes and tags have fences of their own; all other writes are for load balancers.
        config.fence = context.fences.load_balancers.clone();
        let metrics = RequestMetrics::publish(crate::NAME, &context.metrics);
        let state = ConnectionState::new(connection, &region, &context.user_agent).await?;
        Ok(Self {
            gate: Gate::new(config, &context.metrics),
            shared: Arc::new(SharedConnection {
                region,
                metadata,
                state: RwLock::new(state),
                metrics,
                user_agent: context.user_agent.clone(),
            }),
        })
    }

    /// The calls, with this priority.
    pub(crate) fn at(&self, priority: Priority) -> Client {
        let api = self.clone();
        Client { api, priority }
    }

    /// The region.
    pub(crate) fn region(&self) -> &str {
        &self.shared.region
    }

    /// The instance metadata service.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.shared.metadata
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
        for (bucket, quota) in quotas.all_buckets() {
            self.gate.bucket(bucket).set_quota(quota);
        }
    }

    /// Switches to other credentials and endpoints, if they are valid. The region does not change.
    ///
    /// # Errors
    ///
    /// AWS does not accept the credentials, or cannot be reached; then nothing changes.
    pub(crate) async fn reconnect(&self, connection: Connection) -> Result<()> {
        let shared = &self.shared;
        let mut state = ConnectionState::new(connection, &shared.region, &shared.user_agent).await?;
        let zones = self.gate.call(Op::Zones, Priority::User, || async {
            let request = state.clients.ec2.describe_availability_zones();
            Box::pin(request.send()).await.map_err(|error| failure(&error))
        });
        accepted(zones.await)?;
        let mut last = shared.state.write();
        state.generation = last.generation + 1;
        *last = state;
        Ok(())
    }

    /// Reads the credentials again, unless that was done since these clients were created, or a moment ago. Returns whether
    /// they may have changed.
    async fn renew(&self, refused: &Arc<SdkClients>) -> bool {
        let shared = &self.shared;
        let connection = {
            let state = shared.state.read();
            if !Arc::ptr_eq(&state.clients, refused) {
                return true;
            }
            if state.renewed.is_some_and(|last| last.elapsed() < RENEW_AFTER) {
                return false;
            }
            state.connection.clone()
        };
        let Ok(clients) = connection.clients(&shared.region, &shared.user_agent).await else {
            return false;
        };
        let mut state = shared.state.write();
        if Arc::ptr_eq(&state.clients, refused) {
            (state.clients, state.renewed) = (Arc::new(clients), Some(Instant::now()));
        }
        true
    }
}

/// Whether AWS accepts the credentials of a call, even if they do not allow this call.
///
/// # Errors
///
/// The error of the call.
pub(crate) fn accepted<T>(answer: Result<T>) -> Result<()> {
    accept(answer.map(drop), ErrorKind::PermissionDenied, ())
}

impl Client {
    /// Makes a call through the gate: `request` is sent once or, where that is safe, several times.
    ///
    /// # Errors
    ///
    /// The errors of AWS, by the table of [`crate::error`].
    async fn call<T, E, F, Fut>(&self, op: Op, request: F) -> Result<T>
    where
        T: Send,
        F: Fn(&SdkClients) -> Fut + Send + Sync,
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: ProvideErrorMetadata + std::error::Error + Send + 'static,
    {
        let Api { shared, gate } = &self.api;
        let clock_corrected = AtomicBool::new(false);
        let answer = gate.call(op, self.priority, || async {
            let clients = Arc::clone(&shared.state.read().clients);
            let began = Instant::now();
            // The SDK's futures are large.
            let answer = Box::pin(request(&clients)).await;
            let elapsed = began.elapsed();
            let response = answer.as_ref().err().and_then(SdkError::raw_response);
            let status = response.map(|response| response.status().as_u16());
            trace!(action = op.iam_action(), status, ?elapsed, "The cloud answered");
            let sdk_error = match answer {
                Ok(reply) => {
                    shared.metrics.succeeded(op, elapsed);
                    return Ok(reply);
                }
                Err(error) => error,
            };
            let error = failure(&sdk_error);
            shared.metrics.failed(op, status, error.kind() == ErrorKind::RateLimited);
            if error.kind() != ErrorKind::Unauthenticated {
                return Err(error);
            }
            // The SDK measures the difference with each response, and signs later requests of the same client with it.
            if is_clock_wrong(&sdk_error) && !clock_corrected.swap(true, Ordering::Relaxed) {
                warn!(error = error.report(), "The clock of this machine is wrong; using that of AWS");
                return Err(error.with_retry(Retry::Backoff));
            }
            if self.api.renew(&clients).await {
                return Err(error.with_retry(Retry::Backoff));
            }
            Err(error)
        });
        answer.await
    }

    /// As [`Self::call`], for a call whose response has no content.
    async fn execute<T, E, F, Fut>(&self, op: Op, request: F) -> Result<()>
    where
        T: Send,
        F: Fn(&SdkClients) -> Fut + Send + Sync,
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: ProvideErrorMetadata + std::error::Error + Send + 'static,
    {
        self.call(op, request).await?;
        Ok(())
    }
}

/// Whether AWS refused a signature because of its time: the clock of this machine differs from that of AWS.
fn is_clock_wrong<E: ProvideErrorMetadata>(error: &SdkError<E, HttpResponse>) -> bool {
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
    let date = error.raw_response().and_then(|response| response.headers().get("date"));
    let (Some(code), Some(date)) = (code, date) else {
        return false;
    };
    let Ok(cloud) = DateTime::from_str(date, Format::HttpDate) else {
        return false;
    };
    let here = DateTime::from(SystemTime::now());
    let difference = cloud.secs().abs_diff(here.secs());
    SIGNATURE_CODES.contains(&code) && difference > CLOCK_DIFFERENCE.as_secs()
}

/// The error for a failure of the SDK.
fn failure<E>(error: &SdkError<E, HttpResponse>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    if let Some(error) = credentials_error(error) {
        return error;
    }
    let (service, response) = (error.as_service_error(), error.raw_response());
    let text = match (service.and_then(ProvideErrorMetadata::message), error) {
        (Some(message), _) => message.to_owned(),
        (None, SdkError::ServiceError(_) | SdkError::ResponseError(_)) => {
            let body = response.and_then(|response| response.body().bytes());
            let body = String::from_utf8_lossy(body.unwrap_or_default());
            body.chars().take(200).collect()
        }
        (None, _) => report(error),
    };
    let status = response.map(|response| response.status().as_u16());
    let code = service.and_then(ProvideErrorMetadata::code);
    match error {
        SdkError::TimeoutError(_) => {
            Error::new(ErrorKind::Timeout, text).with_outcome(RequestOutcome::Unknown)
        }
        SdkError::ConstructionFailure(_) => Error::new(ErrorKind::Unexpected, text),
        _ => crate::error::of(status, code, &text, error.request_id()),
    }
}

/// The error of missing or invalid credentials: nothing was sent.
fn credentials_error(error: &(dyn std::error::Error + 'static)) -> Option<Error> {
    let chain = || std::iter::successors(Some(error), |cause| cause.source());
    if let Some(own) = chain().find_map(|cause| cause.downcast_ref::<Error>()) {
        return Some(own.clone().with_outcome(RequestOutcome::NotDone));
    }
    let error = chain().find_map(|cause| cause.downcast_ref::<CredentialsError>())?;
    let none = "no credentials found in environment, profile, web identity, container and instance metadata";
    Some(match error {
        CredentialsError::CredentialsNotLoaded(_) => Error::new(ErrorKind::Unauthenticated, none),
        CredentialsError::ProviderTimedOut(_) => Error::new(ErrorKind::Unavailable, report(error)),
        _ => Error::new(ErrorKind::Unauthenticated, report(error)),
    })
}
