//! The way to the cloud: the `openstack` crate's session behind the gate. Nothing outside this module and its children
//! names that crate.
//!
//! The session brings the HTTP client, the credentials and the catalogue together. What the crate itself has of
//! authentication is not used: it knows no trusts, no user ids and no scope but projects, and can not renew a token that
//! has not expired. [`keystone`] is ours, plugged in as the session's [`AuthType`]. Answers are taken unchecked, so that
//! every refusal is mapped in one place ([`crate::error`]). The crate repeats nothing; only the gate does.

mod body;
mod call;
pub(crate) mod catalogue;
pub(crate) mod http;
pub(crate) mod identity;
mod keystone;
pub(crate) mod listing;
mod metrics;
mod ops;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    BuildContext, Error, ErrorKind, Result,
    client::{Fence, Gate, GateConfig, RetryPolicy},
};
use openstack::{EndpointFilters, InterfaceType, auth::AuthType, session::Session};
use reqwest::RequestBuilder;
use url::Url;

pub(crate) use self::{
    call::{Get, Verb, Write},
    http::Tls,
    ops::Op,
};
use self::{
    catalogue::{Interface, Service},
    identity::Credentials,
    keystone::{Keystone, Token},
    listing::PageSizes,
    metrics::RequestMetrics,
};
use crate::{config::Quotas, view::Generation};

/// A page of a thousand servers has some three megabytes; a server with much metadata ten times that. Less in
/// unit tests, so that what happens beyond it can be seen without that much.
const BODY_MAX: usize = if cfg!(test) { 4 << 20 } else { 64 << 20 };
/// What is read of a refusal.
const FAULT_MAX: usize = 1 << 20;

/// What is needed to reach the cloud.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// Who we are.
    pub(crate) credentials: Credentials,
    /// TLS options.
    pub(crate) tls: Tls,
    /// `region`.
    pub(crate) region: Option<String>,
    /// `os-endpoint-type`.
    pub(crate) interface: Interface,
}

/// What all connections to one cloud share, whatever their credentials: the quota is the process's.
#[derive(Clone, Debug)]
pub(crate) struct Gates {
    calls: Gate,
    /// A call that needs a token repeats its attempt, and with it the request for the token.
    logins: Gate,
    requests: RequestMetrics,
    proxies: http::Proxies,
}

impl Gates {
    /// Gates with full buckets.
    pub(crate) fn new(request_timeout: Duration, quotas: &Quotas, context: &BuildContext) -> Self {
        let mut config = GateConfig::new(crate::NAME);
        config.attempt_timeout = request_timeout;
        config.deadline = config.deadline.max(request_timeout * 2);
        let once = GateConfig {
            retry: RetryPolicy::never(),
            buckets: vec![(ops::IDENTITY, quotas.identity)],
            ..config.clone()
        };
        config.buckets = vec![
            (ops::COMPUTE, quotas.compute),
            (ops::NETWORK, quotas.network),
            (ops::LOAD_BALANCER, quotas.load_balancer),
        ];
        // Not for tokens: a standby needs one, too. Routes have a fence of their own; all other writes are for load
        // balancers.
        config.fence = context.fences.load_balancers.clone();
        let requests = RequestMetrics::default();
        context.metrics.publish(crate::NAME, Arc::new(requests.clone()));
        Self {
            requests,
            proxies: http::Proxies::of(&context.environment),
            calls: Gate::new(config, &context.metrics),
            logins: Gate::new(once, &context.metrics),
        }
    }

    /// Replaces the quotas.
    pub(crate) fn set_quotas(&self, quotas: &Quotas) {
        self.logins.bucket(ops::IDENTITY).set_quota(quotas.identity);
        self.calls.bucket(ops::COMPUTE).set_quota(quotas.compute);
        self.calls.bucket(ops::NETWORK).set_quota(quotas.network);
        self.calls
            .bucket(ops::LOAD_BALANCER)
            .set_quota(quotas.load_balancer);
    }
}

/// The cloud's API.
#[derive(Clone)]
pub(crate) struct Api {
    session: Session,
    keystone: Arc<Keystone>,
    gate: Gate,
    requests: RequestMetrics,
    region: Option<String>,
    interface: Interface,
    page_sizes: PageSizes,
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
    /// Authenticates, and looks the services up.
    ///
    /// # Errors
    ///
    /// If Keystone can not be reached or refuses, or a service has no endpoint.
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

    /// Authenticates; which services there are is not looked at.
    ///
    /// # Errors
    ///
    /// If Keystone can not be reached or refuses.
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
        let http = http::client(&tls, &gates.proxies, user_agent)?;
        let keystone = Arc::new(Keystone::new(
            credentials,
            http.clone(),
            gates.logins.clone(),
            generation.clone(),
        ));
        let session = Session::new_with_client(
            http,
            Auth {
                keystone: Arc::clone(&keystone),
            },
        )
        .await
        .map_err(|error| precise(keystone.last_failure(), error))?;
        let mut filters = EndpointFilters::default().with_interfaces(interface.sdk());
        filters.region.clone_from(&region);
        let session = session.with_endpoint_filters(filters);
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

    /// The same, but writes pass this fence.
    pub(crate) fn fenced_by(&self, fence: &Fence) -> Self {
        Self {
            gate: self.gate.fenced_by(fence),
            ..self.clone()
        }
    }

    /// Whom the cloud sees in us, and where.
    pub(crate) fn scope(&self) -> String {
        let region = self.region.as_deref();
        let region = region
            .map(|region| format!(", region {region:?}"))
            .unwrap_or_default();
        format!("{}{region}", self.keystone.scope())
    }

    /// The project that the token is good for; without one everything that may be seen is meant.
    ///
    /// # Errors
    ///
    /// If there is no token to be had.
    pub(crate) async fn project(&self) -> Result<Option<String>> {
        Ok(self.keystone.token().await?.project())
    }

    /// Why a service is not there; `None` if it is.
    ///
    /// # Errors
    ///
    /// If there is no token to be had, and so no catalogue.
    pub(crate) async fn missing(&self, service: Service) -> Result<Option<String>> {
        self.keystone.token().await?;
        match self.endpoint(service).await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::InvalidConfig => Ok(Some(error.report())),
            Err(error) => Err(error),
        }
    }

    async fn endpoint(&self, service: Service) -> Result<Url> {
        let filters = self.session.endpoint_filters();
        match self
            .session
            .client()
            .get_endpoint(service.catalogue_type(), filters)
            .await
        {
            Ok(url) => Ok(url),
            // The session's error is only text.
            Err(_) => {
                self.keystone
                    .endpoint(service, self.interface, self.region.as_deref())
                    .await
            }
        }
    }
}

/// Our own error behind one that went through the session, which keeps only text.
fn precise(own: Option<Error>, session: openstack::Error) -> Error {
    own.unwrap_or_else(|| Error::new(ErrorKind::Unexpected, "the session failed").with_source(session))
}

impl Interface {
    fn sdk(self) -> InterfaceType {
        match self {
            Self::Public => InterfaceType::Public,
            Self::Internal => InterfaceType::Internal,
            Self::Admin => InterfaceType::Admin,
        }
    }

    fn from_sdk(filters: &EndpointFilters) -> Self {
        match filters.interfaces.first() {
            Some(InterfaceType::Internal) => Self::Internal,
            Some(InterfaceType::Admin) => Self::Admin,
            _ => Self::Public,
        }
    }
}

/// Our [`Keystone`] as the session sees it.
#[derive(Debug)]
struct Auth {
    keystone: Arc<Keystone>,
}

#[async_trait]
impl AuthType for Auth {
    async fn authenticate(
        &self,
        _: &reqwest::Client,
        request: RequestBuilder,
    ) -> Result<RequestBuilder, openstack::Error> {
        self.keystone
            .token()
            .await
            .map(|token| Token::apply(&token, request))
            .map_err(|error| session_error(&error))
    }

    async fn get_endpoint(
        &self,
        _: &reqwest::Client,
        service_type: &str,
        filters: &EndpointFilters,
    ) -> Result<Url, openstack::Error> {
        let Some(service) = Service::ALL
            .into_iter()
            .find(|service| service.catalogue_type() == service_type)
        else {
            let text = format!("service type {service_type:?} is not used");
            return Err(openstack::Error::new(
                openstack::ErrorKind::EndpointNotFound,
                text,
            ));
        };
        let (interface, region) = (Interface::from_sdk(filters), filters.region.as_deref());
        self.keystone
            .endpoint(service, interface, region)
            .await
            .map_err(|error| session_error(&error))
    }

    async fn refresh(&self, _: &reqwest::Client) -> Result<(), openstack::Error> {
        self.keystone
            .renew(self.keystone.generation())
            .await
            .map(drop)
            .map_err(|error| session_error(&error))
    }
}

fn session_error(error: &Error) -> openstack::Error {
    let kind = match error.kind() {
        ErrorKind::Unauthenticated => openstack::ErrorKind::AuthenticationFailed,
        ErrorKind::InvalidConfig => openstack::ErrorKind::InvalidConfig,
        _ => openstack::ErrorKind::OperationFailed,
    };
    openstack::Error::new(kind, error.report())
}
