//! From the config to the SDK's clients: credentials, endpoints, proxy and trusted authorities.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_config::{BehaviorVersion, Region, retry::RetryConfig, timeout::TimeoutConfig};
use aws_credential_types::{
    Credentials,
    credential_fn::provide_credentials_fn,
    provider::{self, SharedCredentialsProvider, error::CredentialsError},
};
use aws_sdk_elasticloadbalancing as elb;
use aws_sdk_elasticloadbalancingv2 as elbv2;
use aws_smithy_http_client::{
    Builder, Connector,
    proxy::ProxyConfig,
    tls::{self, TlsContext, TrustStore, rustls_provider::CryptoMode},
};
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::interceptors::{Intercept, context::BeforeTransmitInterceptorContextMut},
    client::{http::SharedHttpClient, runtime_components::RuntimeComponents},
};
use aws_smithy_types::config_bag::ConfigBag;
use aws_types::{SigningName, app_name::AppName, os_shim_internal::Env, region::SigningRegion};
use ccm_core::{Environment, Error, ErrorKind, Result, config::http_url_or_host};
use http::Uri;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Variables that the SDK reads. Their values come from the environment that the config was read with.
const VARIABLES: &str = "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_PROFILE AWS_CONFIG_FILE \
    AWS_SHARED_CREDENTIALS_FILE HOME PATH AWS_WEB_IDENTITY_TOKEN_FILE AWS_ROLE_ARN AWS_ROLE_SESSION_NAME \
    AWS_CONTAINER_CREDENTIALS_RELATIVE_URI AWS_CONTAINER_CREDENTIALS_FULL_URI AWS_CONTAINER_AUTHORIZATION_TOKEN \
    AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE AWS_EC2_METADATA_DISABLED AWS_EC2_METADATA_V1_DISABLED \
    AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE AWS_USE_FIPS_ENDPOINT AWS_USE_DUALSTACK_ENDPOINT \
    AWS_IGNORE_CONFIGURED_ENDPOINT_URLS";
/// The variables with endpoints, which the SDK reads, too.
pub(crate) const ENDPOINT_VARIABLES: &str = "AWS_ENDPOINT_URL AWS_ENDPOINT_URL_EC2 AWS_ENDPOINT_URL_STS \
    AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2 \
    AWS_EC2_METADATA_SERVICE_ENDPOINT";
/// The variable with the endpoint of the instance metadata service.
const METADATA_ENDPOINT: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
/// The longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest wait for a response.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The name of the session in which a role is assumed, as CloudTrail shows it.
const SESSION: &str = "aws-cloud-controller-manager";

/// An API that is used here, or the instance metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// EC2.
    Ec2,
    /// Elastic Load Balancing: classic load balancers.
    Elb,
    /// Elastic Load Balancing v2: network load balancers.
    ElbV2,
    /// STS.
    Sts,
    /// The instance metadata service.
    Metadata,
}

/// Each API with its name in the SDKs, which is also that of upstream's `[ServiceOverride]`, and the short names that were valid
/// in older Go SDKs.
const SERVICES: [(Service, &str, [&str; 2]); 5] = [
    (Service::Ec2, "EC2", ["ec2"; 2]),
    (Service::Elb, ELB, ["elasticloadbalancing", "elb"]),
    (Service::ElbV2, ELB_V2, ["elasticloadbalancingv2", "elbv2"]),
    (Service::Sts, "STS", ["sts"; 2]),
    (Service::Metadata, "ec2imds", ["ec2metadata"; 2]),
];
const ELB: &str = "Elastic Load Balancing";
const ELB_V2: &str = "Elastic Load Balancing v2";

impl Service {
    /// The name in the SDKs.
    pub(crate) fn name(self) -> &'static str {
        let entry = SERVICES.iter().find(|(service, ..)| *service == self);
        entry.map_or("", |(_, name, _)| name)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        SERVICES.map(|(_, name, _)| name).join(", ")
    }

    /// Reads a name of `[ServiceOverride]`; case does not count.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_name = |name: &str| name.eq_ignore_ascii_case(text);
        let mut services = SERVICES.into_iter();
        let found = services.find(|(_, name, short)| is_name(name) || short.iter().any(|name| is_name(name)));
        found.map(|(service, ..)| service)
    }
}

/// A custom endpoint, from `[ServiceOverride]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The API.
    pub(crate) service: Service,
    /// The region. `None`: that of the instance metadata service.
    pub(crate) region: Option<String>,
    /// Its URL.
    pub(crate) url: String,
    /// The region in signatures.
    pub(crate) signing_region: String,
    /// The service name in signatures, if it is not that of the API.
    pub(crate) signing_name: Option<String>,
}

/// An IAM role that is assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    /// `RoleARN`.
    pub(crate) arn: String,
    /// The account of the role.
    pub(crate) account: String,
    /// `SourceARN`.
    pub(crate) source_arn: Option<String>,
}

/// The connection to AWS. The URL of a proxy may have a password. It is only in the environment, whose `Debug` has no values.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// The region, if file or environment give it.
    pub(crate) region: Option<String>,
    /// The role to assume.
    pub(crate) role: Option<Role>,
    /// Other endpoints than those that the environment and the shared config file give.
    pub(crate) endpoints: Vec<Endpoint>,
    /// Certificates of the authorities to trust in place of the system's, PEM.
    pub(crate) ca_bundle: Option<Vec<u8>>,
    /// The source of credentials and proxy.
    pub(crate) environment: Environment,
}

/// Whether this is a PEM bundle of trusted certificates. The SDK panics if it is not.
pub(crate) fn is_certificates(pem: &[u8]) -> bool {
    let mut roots = RootCertStore::empty();
    let all_good = CertificateDer::pem_slice_iter(pem).all(|der| der.is_ok_and(|der| roots.add(der).is_ok()));
    all_good && !roots.is_empty()
}

impl Connection {
    /// The endpoint of an API in this region, if the file gives one.
    pub(crate) fn endpoint(&self, service: Service, region: &str) -> Option<&Endpoint> {
        let serves = |one: &&Endpoint| one.region.as_deref().is_none_or(|own| own == region);
        let endpoints = self.endpoints.iter().filter(serves);
        let of = |service| endpoints.clone().find(|one| one.service == service);
        // Upstream has one endpoint for both APIs of load balancers.
        of(service).or_else(|| of(Service::Elb).filter(|_| service == Service::ElbV2))
    }

    /// The endpoint of the instance metadata service, if it is another one.
    pub(super) fn metadata_endpoint(&self) -> Option<&str> {
        let of_file = self.endpoint(Service::Metadata, "");
        let of_file = of_file.map(|endpoint| endpoint.url.as_str());
        of_file.or_else(|| self.environment.var(METADATA_ENDPOINT))
    }

    /// The variable with the proxy for HTTPS, and the proxy's URL if it is valid.
    pub(crate) fn proxy(&self) -> Option<(&'static str, Option<Uri>)> {
        let names = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
        let (variable, url) = self.environment.first(&names)?;
        Some((variable, http_url_or_host(url)))
    }

    /// The HTTP client.
    ///
    /// # Errors
    ///
    /// The URL of the proxy is invalid.
    pub(super) fn http_client(&self) -> Result<SharedHttpClient> {
        let invalid = |text: String| Error::new(ErrorKind::InvalidConfig, text);
        let proxy = match self.proxy() {
            None => ProxyConfig::disabled(),
            Some((_, url)) => ProxyConfig::https(url.unwrap_or_default())
                .map_err(|_| invalid("HTTPS_PROXY: not a URL".to_owned()))?
                .no_proxy(self.environment.no_proxy()),
        };
        let trust = match &self.ca_bundle {
            None => TrustStore::default(),
            Some(pem) => TrustStore::empty().with_pem_certificate(pem.clone()),
        };
        let tls = TlsContext::builder().with_trust_store(trust).build();
        let tls = tls.map_err(|error| invalid(format!("AWS_CA_BUNDLE: {error}")))?;
        let client = Builder::new().build_with_connector_fn(move |settings, components| {
            let mut builder = Connector::builder().proxy_config(proxy.clone());
            builder.set_connector_settings(settings.cloned());
            builder.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
            let builder = builder.tls_provider(tls::Provider::Rustls(CryptoMode::AwsLc));
            builder.tls_context(tls.clone()).build()
        });
        Ok(client)
    }

    /// The variables that the SDK may read.
    fn variables(&self) -> Env {
        let names = VARIABLES.split_whitespace();
        let names = names.chain(ENDPOINT_VARIABLES.split_whitespace());
        let variables = names.filter_map(|name| Some((name, self.environment.var(name)?)));
        // The file takes precedence.
        let metadata = self.metadata_endpoint().map(|url| (METADATA_ENDPOINT, url));
        Env::from_slice(&variables.chain(metadata).collect::<Vec<_>>())
    }

    /// The clients, with new credentials.
    ///
    /// # Errors
    ///
    /// If the proxy is invalid. Credentials are read when they are needed.
    pub(super) async fn clients(&self, region: &str, user_agent: &str) -> Result<Clients> {
        let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT);
        let timeouts = timeouts.read_timeout(ANSWER_TIMEOUT).build();
        let mut loader = aws_config::defaults(BehaviorVersion::latest())
            .env(self.variables())
            .region(Region::new(region.to_owned()))
            .http_client(self.http_client()?)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts);
        let name = user_agent.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-");
        if let Ok(name) = AppName::new(name) {
            loader = loader.app_name(name);
        }
        let mut config = loader.load().await;
        /// The config of an API, with its endpoint if the file gives one.
        macro_rules! config_of {
            ($sdk:ident, $service:ident) => {{
                let builder = $sdk::config::Builder::from(&config);
                match self.endpoint(Service::$service, region) {
                    Some(endpoint) => builder
                        .endpoint_url(&endpoint.url)
                        .interceptor(BeforeSigning::Signature(endpoint.clone())),
                    None => builder,
                }
            }};
        }
        if let Some(role) = &self.role {
            // The gate does not see this call.
            let sts = config_of!(aws_sdk_sts, Sts).retry_config(RetryConfig::standard());
            let sts = sts.interceptor(BeforeSigning::ConfusedDeputy(role.clone()));
            let role = Arc::new((aws_sdk_sts::Client::from_conf(sts.build()), role.arn.clone()));
            let provider = provide_credentials_fn(move || assume(Arc::clone(&role)));
            let provider = SharedCredentialsProvider::new(provider);
            config = config.into_builder().credentials_provider(provider).build();
        }
        Ok(Clients {
            ec2: aws_sdk_ec2::Client::from_conf(config_of!(aws_sdk_ec2, Ec2).build()),
            elb: elb::Client::from_conf(config_of!(elb, Elb).build()),
            elbv2: elbv2::Client::from_conf(config_of!(elbv2, ElbV2).build()),
            sts: aws_sdk_sts::Client::from_conf(config_of!(aws_sdk_sts, Sts).build()),
        })
    }
}

/// The SDK's clients.
pub(super) struct Clients {
    pub(super) ec2: aws_sdk_ec2::Client,
    pub(super) elb: elb::Client,
    pub(super) elbv2: elbv2::Client,
    pub(super) sts: aws_sdk_sts::Client,
}

/// Headers that are set before requests are signed.
#[derive(Debug)]
enum BeforeSigning {
    /// Region and service name of the signature.
    Signature(Endpoint),
    /// The account and resource on whose behalf a role is assumed, so that a policy can refuse others.
    ConfusedDeputy(Role),
}

impl Intercept for BeforeSigning {
    fn name(&self) -> &'static str {
        "BeforeSigning"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        match self {
            Self::Signature(endpoint) => {
                let state = config.interceptor_state();
                state.store_put(SigningRegion::from(Region::new(endpoint.signing_region.clone())));
                let name = endpoint.signing_name.clone();
                name.map(|name| state.store_put(SigningName::from(name)));
            }
            Self::ConfusedDeputy(role) => {
                let headers = context.request_mut().headers_mut();
                headers.try_insert("x-amz-source-account", role.account.clone())?;
                if let Some(arn) = &role.source_arn {
                    headers.try_insert("x-amz-source-arn", arn.clone())?;
                }
            }
        }
        Ok(())
    }
}

/// The credentials of a role that is assumed.
async fn assume(role: Arc<(aws_sdk_sts::Client, String)>) -> provider::Result {
    let (client, arn) = &*role;
    let request = client.assume_role().role_arn(arn).role_session_name(SESSION);
    let reply = Box::pin(request.send()).await.map_err(|error| {
        let error = super::failure(&error).with_operation("sts:AssumeRole");
        let error = error.with_context("role", arn);
        CredentialsError::provider_error(match error.kind() {
            // Callers that need the role have no credentials.
            ErrorKind::PermissionDenied => {
                Error::new(ErrorKind::Unauthenticated, "could not assume the role").with_source(error)
            }
            _ => error,
        })
    })?;
    let given = reply.credentials;
    let given = given.ok_or_else(|| CredentialsError::provider_error("STS answered without credentials"))?;
    let expiry = SystemTime::try_from(given.expiration).map_err(CredentialsError::provider_error)?;
    Ok(Credentials::new(
        given.access_key_id,
        given.secret_access_key,
        Some(given.session_token),
        Some(expiry),
        "AssumedRole",
    ))
}
