//! The `openstack` crate's session on top of [`Keystone`].

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{Error, ErrorKind, Result};
use openstack::{EndpointFilters, InterfaceType, auth::AuthType, session::Session};
use reqwest::RequestBuilder;
use url::Url;

use super::{
    catalog::{Interface, Service},
    keystone::{Keystone, Token},
};

/// Creates a session whose requests use this HTTP client.
///
/// # Errors
/// If Keystone cannot be reached or refuses.
pub(super) async fn connect(
    http: reqwest::Client,
    keystone: &Arc<Keystone>,
    interface: Interface,
    region: Option<String>,
) -> Result<Session> {
    let auth = Auth {
        keystone: Arc::clone(keystone),
    };
    let session = Session::new_with_client(http, auth).await.map_err(|error| {
        // The session keeps only the text of our error.
        let own = keystone.last_failure();
        own.unwrap_or_else(|| Error::new(ErrorKind::Unexpected, "the session failed").with_source(error))
    })?;
    let mut filters = EndpointFilters::default().with_interfaces(interface.sdk());
    filters.region = region;
    Ok(session.with_endpoint_filters(filters))
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

/// Adapts [`Keystone`] to the session.
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
        let Some(service) = Service::ALL.into_iter().find(|service| service.catalog_type() == service_type)
        else {
            let text = format!("service type {service_type:?} is not used");
            return Err(openstack::Error::new(openstack::ErrorKind::EndpointNotFound, text));
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
