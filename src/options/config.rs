//! What the flags come to once they are checked.

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use ccm_core::Provider;

/// Everything that the program was told on its command line, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The provider that `--cloud-provider` names.
    pub provider: &'static Provider,
    /// The provider's config file. Whether it exists and is right is the provider's to say.
    pub cloud_config: Option<PathBuf>,
    /// The cluster's name; part of the names of what is created in the cloud.
    pub cluster_name: String,
    /// The `User-Agent` of requests to the cloud.
    pub user_agent: String,
    /// How to reach the API server.
    pub api_server: ApiServerConfig,
    /// The node controller.
    pub node: NodeConfig,
    /// The HTTPS server; `None` if it is switched off.
    pub serving: Option<ServingConfig>,
    /// The log.
    pub logging: LoggingConfig,
    /// How long work in progress may take after a signal to stop.
    pub shutdown_drain: Duration,
    /// The version to report.
    pub version: String,
    /// Every flag with its value, for the log.
    pub values: Vec<(String, String)>,
}

/// How to reach the API server. With neither file nor address: as a pod does.
#[derive(Clone, Debug, Default)]
pub struct ApiServerConfig {
    /// The kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// The server's URL, in place of the kubeconfig's.
    pub master: Option<http::Uri>,
    /// The limit on requests; `None` for no limit.
    pub limit: Option<ClientLimit>,
}

/// A limit on requests to the API server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientLimit {
    /// Requests a second on average. More than zero.
    pub qps: f64,
    /// How many may be sent at once after a pause.
    pub burst: u32,
}

/// The node controller.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// How often all nodes are compared with the cloud.
    pub status_update_frequency: Duration,
    /// How many nodes are initialised at once.
    pub concurrent_syncs: NonZeroUsize,
    /// How many nodes the periodic comparison patches at once.
    pub concurrent_status_updates: NonZeroUsize,
    /// Whether zone and region of initialised nodes may change.
    pub refresh_topology_labels: bool,
}

/// The HTTPS server.
#[derive(Clone, Debug)]
pub struct ServingConfig {
    /// Where it listens.
    pub bind_address: IpAddr,
    /// The port.
    pub port: u16,
    /// What it proves its name with.
    pub certificate: Certificate,
}

impl ServingConfig {
    /// Where it listens.
    #[must_use]
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.bind_address, self.port)
    }
}

/// What the HTTPS server proves its name with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// A self-signed certificate that lives in memory.
    InMemory,
    /// The pair of files in this folder; made there if it is missing.
    Directory(PathBuf),
    /// These files, which are read again when they change.
    Files {
        /// The certificate chain, PEM.
        certificate: PathBuf,
        /// The private key, PEM.
        key: PathBuf,
    },
}

/// The log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggingConfig {
    /// How much of it.
    pub verbosity: u8,
    /// In which form.
    pub format: LogFormat,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for each event.
    Text,
    /// A JSON object for each event.
    Json,
}
