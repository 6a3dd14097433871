//! The metadata server: data about the instance that this program runs on, and tokens of its service account.

use std::time::Duration;

use ccm_core::{Error, ErrorKind, Result, client::rest::reqwest, error::report};
use tracing::debug;
use url::Url;

/// The header of every request and every answer. Without it, an answer is that of another server.
const FLAVOR: (&str, &str) = ("Metadata-Flavor", "Google");
/// The server answers from memory.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The waits before the second and the third attempt.
const WAITS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

/// A value of the metadata server, and the setting to use without one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataValue {
    pub(crate) path: &'static str,
    pub(crate) instead: &'static str,
}

/// `projects/<number>/zones/<zone>`.
pub(crate) const ZONE: MetadataValue = MetadataValue {
    path: "instance/zone",
    instead: "set local-zone",
};
/// The ID of the project.
pub(crate) const PROJECT: MetadataValue = MetadataValue {
    path: "project/project-id",
    instead: "set project-id",
};
/// The number of the project.
pub(crate) const PROJECT_NUMBER: MetadataValue = MetadataValue {
    path: "project/numeric-project-id",
    instead: "set network-project-id",
};
/// `projects/<number>/networks/<name>`.
pub(crate) const NETWORK: MetadataValue = MetadataValue {
    path: "instance/network-interfaces/0/network",
    instead: "set network-name",
};
/// A token of the instance's service account.
pub(crate) const TOKEN: MetadataValue = MetadataValue {
    path: "instance/service-accounts/default/token",
    instead: UNIVERSE.instead,
};
/// The domain of the APIs.
const UNIVERSE: MetadataValue = MetadataValue {
    path: "universe/universe-domain",
    instead: "set token-url = nil and GOOGLE_APPLICATION_CREDENTIALS",
};

/// Reads the metadata server.
#[derive(Clone, Debug)]
pub(crate) struct Metadata {
    http: reqwest::Client,
    url: Url,
}

impl Metadata {
    /// The server at this URL. The client must not use a proxy.
    pub(crate) fn new(http: reqwest::Client, url: Url) -> Self {
        Self { http, url }
    }

    /// Reads a value.
    ///
    /// # Errors
    ///
    /// The server cannot be reached: probably, this is not an instance. Or it does not have the value.
    pub(crate) async fn get(&self, value: MetadataValue) -> Result<String> {
        self.find(value).await?.ok_or_else(|| {
            let MetadataValue { path, instead } = value;
            let text = format!("the metadata server has no {path}; {instead}");
            Error::new(ErrorKind::InvalidConfig, text)
        })
    }

    /// The domain of the APIs. `None`: the server does not know the value.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub(crate) async fn universe_domain(&self) -> Result<Option<String>> {
        Ok(self.find(UNIVERSE).await?.filter(|domain| !domain.is_empty()))
    }

    async fn find(&self, value: MetadataValue) -> Result<Option<String>> {
        let MetadataValue { path, instead } = value;
        self.read(path).await.map_err(|error| {
            let text = format!(
                "could not read {path} from the metadata server: {}; outside GCE, {instead}",
                error.message()
            );
            Error::new(error.kind(), text)
        })
    }

    /// Reads a value; `None` if the server does not have it.
    async fn read(&self, path: &str) -> Result<Option<String>> {
        for wait in WAITS {
            match self.attempt(path).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    debug!(error = error.report(), path, "Will retry a read of the metadata server");
                    tokio::time::sleep(wait).await;
                }
                result => return result,
            }
        }
        self.attempt(path).await
    }

    async fn attempt(&self, path: &str) -> Result<Option<String>> {
        let unavailable =
            |error: reqwest::Error| Error::new(ErrorKind::Unavailable, report(&error.without_url()));
        let mut url = self.url.clone();
        url.set_path(&format!("computeMetadata/v1/{path}"));
        let request = self.http.get(url).header(FLAVOR.0, FLAVOR.1).timeout(TIMEOUT);
        let response = request.send().await.map_err(unavailable)?;
        let status = response.status().as_u16();
        if response.headers().get(FLAVOR.0).is_none_or(|flavor| flavor != FLAVOR.1) {
            let text =
                format!("the answer ({status}) is not that of a metadata server: it lacks {}", FLAVOR.0);
            return Err(Error::new(ErrorKind::Unexpected, text));
        }
        match status {
            200 => Ok(Some(response.text().await.map_err(unavailable)?.trim().to_owned())),
            404 => Ok(None),
            429 | 500.. => Err(Error::new(ErrorKind::Unavailable, format!("it answers {status}"))),
            _ => Err(Error::new(ErrorKind::Unexpected, format!("it answers {status}"))),
        }
    }
}
