//! The instance metadata service (IMDS): data about the instance that this program runs on.

use aws_config::{imds::client::Client, provider_config::ProviderConfig};
use ccm_core::{Error, ErrorKind, Result};

use super::Connection;

/// The path of the region of this instance, and the setting to use instead.
pub(crate) const REGION: [&str; 2] = ["placement/region", "set [Global] Region or AWS_REGION"];
/// The path of the id of this instance, and the settings to use instead.
pub(crate) const INSTANCE_ID: [&str; 2] = ["instance-id", "set [Global] VPC and KubernetesClusterID"];

/// Reads the metadata of the instance that this program runs on.
#[derive(Clone, Debug)]
pub(crate) struct Metadata {
    /// `None`: the environment disables the service.
    client: Option<Client>,
}

impl Metadata {
    /// A client for the endpoint of this connection.
    ///
    /// # Errors
    ///
    /// The endpoint is not a URL.
    pub(crate) fn new(connection: &Connection) -> Result<Self> {
        let disabled = connection.environment.var("AWS_EC2_METADATA_DISABLED");
        if disabled.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(Self { client: None });
        }
        let config = ProviderConfig::empty().with_http_client(connection.http_client()?);
        // Without an endpoint, the SDK reads the variables and files of the process.
        let environment = &connection.environment;
        let usual = match environment.var("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE") {
            Some(mode) if mode.eq_ignore_ascii_case("ipv6") => "http://[fd00:ec2::254]",
            _ => "http://169.254.169.254",
        };
        let url = connection.metadata_endpoint().unwrap_or(usual);
        match Client::builder().configure(&config).max_attempts(2).endpoint(url) {
            Ok(builder) => Ok(Self {
                client: Some(builder.build()),
            }),
            Err(error) => {
                let text = format!("endpoint {url:?} of the instance metadata service: {error}");
                Err(Error::new(ErrorKind::InvalidConfig, text))
            }
        }
    }

    /// Reads a value: [`REGION`] or [`INSTANCE_ID`].
    ///
    /// # Errors
    ///
    /// The service cannot be reached: probably, this is not an instance, or a container whose packets to the service are
    /// dropped.
    pub(crate) async fn get(&self, [path, instead]: [&str; 2]) -> Result<String> {
        let Some(client) = &self.client else {
            let text =
                format!("the instance metadata service is disabled by AWS_EC2_METADATA_DISABLED; {instead}");
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        };
        let value = Box::pin(client.get(format!("/latest/meta-data/{path}"))).await.map_err(|error| {
            let text = format!(
                "could not read {path} from the instance metadata service: {}; in a container the service needs a hop limit of 2; \
                 outside EC2, {instead}",
                ccm_core::error::report(&error)
            );
            Error::new(ErrorKind::Unavailable, text)
        })?;
        Ok(value.as_ref().to_owned())
    }
}
