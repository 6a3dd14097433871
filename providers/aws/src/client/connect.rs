//! From the config to the SDK's clients: credentials, endpoints, proxy and trusted authorities.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_config::{BehaviorVersion, Region, SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
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
const VARIABLES: &[&str] = &[
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "HOME",
    "PATH",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_V1_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE",
    "AWS_USE_FIPS_ENDPOINT",
    "AWS_USE_DUALSTACK_ENDPOINT",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
];
/// The variables with endpoints, which the SDK reads, too.
pub(crate) const ENDPOINT_VARIABLES: &[&str] = &[
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_EC2",
    "AWS_ENDPOINT_URL_STS",
    "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING",
    "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
];
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

impl Service {
    /// All of them, for messages and for names.
    const ALL: [Self; 5] = [Self::Ec2, Self::Elb, Self::ElbV2, Self::Sts, Self::Metadata];

    /// The name in the SDKs, which is also that of upstream's `[ServiceOverride]`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "EC2",
            Self::Elb => "Elastic Load Balancing",
            Self::ElbV2 => "Elastic Load Balancing v2",
            Self::Sts => "STS",
            Self::Metadata => "ec2imds",
        }
    }

    /// The short names that were valid in older Go SDKs.
    fn short_names(self) -> &'static [&'static str] {
        match self {
            Self::Ec2 => &["ec2"],
            Self::Elb => &["elasticloadbalancing", "elb"],
            Self::ElbV2 => &["elasticloadbalancingv2", "elbv2"],
            Self::Sts => &["sts"],
            Self::Metadata => &["ec2metadata"],
        }
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// Reads a name of `[ServiceOverride]`; case does not count.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| {
            let is_short = service.short_names().iter().any(|name| name.eq_ignore_ascii_case(text));
            is_short || service.name().eq_ignore_ascii_case(text)
        })
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
        let own = self.endpoints.iter().find(|endpoint| {
            endpoint.service == service && endpoint.region.as_deref().is_none_or(|own| own == region)
        });
        match (own, service) {
            // Upstream has one endpoint for both APIs of load balancers.
            (None, Service::ElbV2) => self.endpoint(Service::Elb, region),
            (own, _) => own,
        }
    }

    /// The endpoint of the instance metadata service, if it is another one.
    pub(super) fn metadata_endpoint(&self) -> Option<&str> {
        match self.endpoint(Service::Metadata, "") {
            Some(endpoint) => Some(&endpoint.url),
            None => self.environment.var(METADATA_ENDPOINT),
        }
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
        let proxy = match self.proxy() {
            None => ProxyConfig::disabled(),
            Some((_, url)) => ProxyConfig::https(url.unwrap_or_default())
                .map_err(|_| Error::new(ErrorKind::InvalidConfig, "HTTPS_PROXY: not a URL"))?
                .no_proxy(self.environment.no_proxy()),
        };
        let trust = match &self.ca_bundle {
            None => TrustStore::default(),
            Some(pem) => TrustStore::empty().with_pem_certificate(pem.clone()),
        };
        let tls = TlsContext::builder()
            .with_trust_store(trust)
            .build()
            .map_err(|error| Error::new(ErrorKind::InvalidConfig, format!("AWS_CA_BUNDLE: {error}")))?;
        Ok(Builder::new().build_with_connector_fn(move |settings, components| {
            let mut builder = Connector::builder();
            builder.set_connector_settings(settings.cloned());
            builder.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
            builder
                .proxy_config(proxy.clone())
                .tls_provider(tls::Provider::Rustls(CryptoMode::AwsLc))
                .tls_context(tls.clone())
                .build()
        }))
    }

    /// The variables that the SDK may read.
    fn variables(&self) -> Env {
        let mut variables: Vec<_> = VARIABLES
            .iter()
            .chain(ENDPOINT_VARIABLES)
            .filter_map(|name| Some((*name, self.environment.var(name)?)))
            .collect();
        // The file takes precedence.
        if let Some(url) = self.metadata_endpoint() {
            variables.push((METADATA_ENDPOINT, url));
        }
        Env::from_slice(&variables)
    }

    /// The clients, with new credentials.
    ///
    /// # Errors
    ///
    /// If the proxy is invalid. Credentials are read when they are needed.
    pub(super) async fn clients(&self, region: &str, user_agent: &str) -> Result<SdkClients> {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(ANSWER_TIMEOUT)
            .build();
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
        if let Some(role) = &self.role {
            let client = self.role_client(&config, role, region);
            let session = Arc::new((client, role.arn.clone()));
            let provider = provide_credentials_fn(move || assume(Arc::clone(&session)));
            let provider = SharedCredentialsProvider::new(provider);
            config = config.into_builder().credentials_provider(provider).build();
        }
        let mut ec2 = aws_sdk_ec2::config::Builder::from(&config);
        if let Some(endpoint) = self.endpoint(Service::Ec2, region) {
            ec2 = ec2.endpoint_url(&endpoint.url).interceptor(BeforeSigning::Signature(endpoint.clone()));
        }
        let mut elb = elb::config::Builder::from(&config);
        if let Some(endpoint) = self.endpoint(Service::Elb, region) {
            elb = elb.endpoint_url(&endpoint.url).interceptor(BeforeSigning::Signature(endpoint.clone()));
        }
        let mut elbv2 = elbv2::config::Builder::from(&config);
        if let Some(endpoint) = self.endpoint(Service::ElbV2, region) {
            elbv2 = elbv2.endpoint_url(&endpoint.url).interceptor(BeforeSigning::Signature(endpoint.clone()));
        }
        Ok(SdkClients {
            ec2: aws_sdk_ec2::Client::from_conf(ec2.build()),
            elb: elb::Client::from_conf(elb.build()),
            elbv2: elbv2::Client::from_conf(elbv2.build()),
            sts: aws_sdk_sts::Client::from_conf(self.sts_config(&config, region).build()),
        })
    }

    /// The config of STS, with its endpoint if the file gives one.
    fn sts_config(&self, config: &SdkConfig, region: &str) -> aws_sdk_sts::config::Builder {
        let sts = aws_sdk_sts::config::Builder::from(config);
        match self.endpoint(Service::Sts, region) {
            Some(endpoint) => {
                let signature = BeforeSigning::Signature(endpoint.clone());
                sts.endpoint_url(&endpoint.url).interceptor(signature)
            }
            None => sts,
        }
    }

    /// The client that assumes a role. The gate does not see its calls.
    fn role_client(&self, config: &SdkConfig, role: &Role, region: &str) -> aws_sdk_sts::Client {
        let sts = self
            .sts_config(config, region)
            .retry_config(RetryConfig::standard())
            .interceptor(BeforeSigning::ConfusedDeputy(role.clone()));
        aws_sdk_sts::Client::from_conf(sts.build())
    }
}

/// The SDK's clients.
pub(super) struct SdkClients {
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
                if let Some(name) = &endpoint.signing_name {
                    state.store_put(SigningName::from(name.clone()));
                }
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
        let error = super::failure(&error).with_operation("sts:AssumeRole").with_context("role", arn);
        CredentialsError::provider_error(match error.kind() {
            // Callers that need the role have no credentials.
            ErrorKind::PermissionDenied => {
                Error::new(ErrorKind::Unauthenticated, "could not assume the role").with_source(error)
            }
            _ => error,
        })
    })?;
    let Some(given) = reply.credentials else {
        return Err(CredentialsError::provider_error("STS answered without credentials"));
    };
    let expiry = SystemTime::try_from(given.expiration).map_err(CredentialsError::provider_error)?;
    Ok(Credentials::new(
        given.access_key_id,
        given.secret_access_key,
        Some(given.session_token),
        Some(expiry),
        "AssumedRole",
    ))
}
