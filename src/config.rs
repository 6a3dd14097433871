//! What the flags come to once they are checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use ccm_core::{Cloud, FlagValues, Provider};
use rustls::{CipherSuite, NamedGroup};

/// The command line, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The provider that `--cloud-provider` names.
    pub provider: &'static Provider,
    /// The flags that were given. Values of the provider's flags are well formed.
    pub flags: FlagValues,
    /// The provider's config file. Whether it exists and is right is the provider's to say.
    pub cloud_config: Option<PathBuf>,
    /// The cluster's name; part of the names of what is created in the cloud.
    pub cluster_name: String,
    /// The `User-Agent` of requests to the cloud.
    pub user_agent: String,
    /// How to reach the API server.
    pub api_server: ApiServerConfig,
    /// Whether each controller acts as a service account of its own.
    pub service_accounts: bool,
    /// Which controllers run.
    pub controllers: Controllers,
    /// The node controller.
    pub node: NodeConfig,
    /// The node lifecycle controller.
    pub lifecycle: LifecycleConfig,
    /// The service controller.
    pub service: ServiceConfig,
    /// The route controller.
    pub route: RouteConfig,
    /// The election of one leader among replicas; `None` if there is none.
    pub election: Option<ElectionConfig>,
    /// The HTTPS server; `None` if it is switched off.
    pub serving: Option<ServingConfig>,
    /// The log.
    pub logging: LoggingConfig,
    /// Nothing is written, no lease is taken: what would be done is logged.
    pub dry_run: bool,
    /// How long work in progress may take after a signal to stop.
    pub shutdown_drain: Duration,
    /// The version to report.
    pub version: String,
    /// Every flag with its value, for the log.
    pub values: Vec<(String, String)>,
    /// What was accepted but is worth a word in the log.
    pub warnings: Vec<String>,
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

/// Which controllers run: `--controllers`, and the file of a leader migration. All names are canonical.
#[derive(Clone, Debug, Default)]
pub struct Controllers {
    /// Those that are switched off.
    pub disabled: BTreeSet<&'static str>,
    /// Those that a leader migration has given to another component, with its name.
    pub elsewhere: BTreeMap<&'static str, String>,
    /// Those of the others that run under the [lease of the migration](MigrationConfig::lease).
    pub migrated: BTreeSet<&'static str>,
}

impl Controllers {
    /// Whether the controller of this canonical name, such as `cloud-node-controller`, is to run.
    #[must_use]
    pub fn is_enabled(&self, name: &str) -> bool {
        !self.disabled.contains(name) && !self.elsewhere.contains_key(name)
    }
}

/// The node lifecycle controller.
#[derive(Clone, Debug)]
pub struct LifecycleConfig {
    /// The shortest time between two questions about a node that is not ready.
    pub monitor_period: Duration,
    /// A node younger than this is never deleted.
    pub deletion_grace: Duration,
    /// How far apart the two answers must be that say that a node's machine is gone.
    pub deletion_confirm: Duration,
    /// If more than this share of the nodes (0 to 1), and more than three, seem gone, they are deleted slowly.
    pub deletion_share: f64,
}

impl LifecycleConfig {
    /// The default of [`Self::deletion_grace`].
    pub const DELETION_GRACE: Duration = Duration::from_secs(120);

    /// [`Self::deletion_grace`], raised to what this cloud needs if it has its default.
    #[must_use]
    pub fn grace(&self, cloud: &dyn Cloud) -> Duration {
        if self.deletion_grace == Self::DELETION_GRACE {
            self.deletion_grace.max(cloud.deletion_grace())
        } else {
            self.deletion_grace
        }
    }
}

/// The service controller.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// How many parts of load balancers are worked on at once.
    pub concurrent_syncs: NonZeroUsize,
    /// How often load balancers are compared with the cloud though nothing has changed here; `None` for never.
    pub drift_period: Option<Duration>,
    /// What becomes of load balancers whose Service does not exist.
    pub orphans: OrphanConfig,
}

/// What becomes of load balancers whose Service does not exist.
#[derive(Clone, Copy, Debug)]
pub struct OrphanConfig {
    /// Whether those with this cluster's ownership tag are deleted; otherwise they are only reported.
    pub delete: bool,
    /// How long one is seen before it is reported. Its Service may only be late.
    pub report_after: Duration,
    /// How long one is seen before it is deleted. Every restart, and every listing that lost Services, begins again.
    pub delete_after: Duration,
}

impl Default for OrphanConfig {
    fn default() -> Self {
        Self {
            delete: false,
            report_after: Duration::from_secs(120),
            delete_after: Duration::from_secs(3600),
        }
    }
}

/// The route controller.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    /// Whether routes are wanted: `--configure-cloud-routes`.
    pub enabled: bool,
    /// `--cluster-cidr` as it was given. What is wrong with it matters only where there are routes.
    pub cluster_cidr: String,
    /// How often everything is compared though nothing changed; `None` for as often as is good.
    pub period: Option<Duration>,
}

/// The election of one leader among replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// How long others wait after the last renewal that they saw before they take the lease.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long gives up. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// The time between two tries to get or to renew the lease.
    pub retry_period: Duration,
    /// The Lease's name.
    pub name: String,
    /// The Lease's namespace.
    pub namespace: String,
    /// The leader migration, if there is one.
    pub migration: Option<MigrationConfig>,
}

/// A leader migration: controllers that are handed over from one controller manager to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationConfig {
    /// The name of the Lease under which they run, in the namespace of the other one.
    pub lease: String,
    /// What the file says of each. What that comes to stands in [`Controllers`].
    pub leaders: Vec<ControllerLeader>,
}

/// Who runs a controller during a leader migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerLeader {
    /// The controller, by any of its names.
    pub name: String,
    /// The component; `*` for any that takes part.
    pub component: String,
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
    /// What it proves further names with, to clients that ask for them.
    pub named_certificates: Vec<NamedCertificate>,
    /// What it agrees to in a TLS handshake.
    pub tls: TlsConfig,
    /// How many HTTP/2 requests may run at once on one connection; `None` to speak HTTP/1.1 only.
    pub http2_max_streams: Option<u32>,
    /// Whether other processes may listen on the same port and share the connections (`SO_REUSEPORT`).
    pub share_port: bool,
    /// Who may see what.
    pub access: AccessConfig,
}

impl ServingConfig {
    /// Where it listens.
    #[must_use]
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.bind_address, self.port)
    }
}

/// Authentication and authorization of the HTTPS server's clients.
#[derive(Clone, Debug, Default)]
pub struct AccessConfig {
    /// Where the API server is asked who a client is; `None` for the pod's account, or that of the whole program.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// How long an answer about a token is remembered.
    pub token_ttl: Duration,
    /// Whether the cluster's client CA is not read.
    pub skip_lookup: bool,
    /// Whether to continue if the cluster refuses to give its client CA.
    pub tolerate_lookup_failure: bool,
    /// The file with the authorities that verify client certificates, in place of the cluster's client CA.
    pub client_authorities: Option<PathBuf>,
    /// Where the API server is asked what a client may do; `None` as for the other.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// How long a yes is remembered.
    pub allowed_ttl: Duration,
    /// How long a no is remembered.
    pub denied_ttl: Duration,
    /// The paths that are served to everybody; a `*` at the end stands for anything.
    pub open_paths: Vec<String>,
}

/// What the HTTPS server proves its name with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// A self-signed certificate that lives in memory.
    InMemory,
    /// The pair of files in this folder; created there if it is missing.
    Directory(PathBuf),
    /// These files, which are read again when they change.
    Files(CertificateFiles),
}

/// A certificate and its key in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate chain, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

/// A certificate for clients that ask for certain names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertificate {
    /// The certificate.
    pub files: CertificateFiles,
    /// The names, `*.` in front for all names one level below; empty for those in the certificate.
    pub names: Vec<String>,
}

/// What the HTTPS server agrees to in a TLS handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Whether TLS 1.2 is refused, too.
    pub only_tls13: bool,
    /// The cipher suites for TLS 1.2; `None` for all that are safe. Those of TLS 1.3 are not a choice.
    pub cipher_suites: Option<Vec<CipherSuite>>,
    /// The key exchange methods; `None` for the usual ones.
    pub key_exchange: Option<Vec<NamedGroup>>,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggingConfig {
    /// How much of it.
    pub verbosity: u8,
    /// How much of it for some modules; the first that matches counts.
    pub modules: Vec<ModuleVerbosity>,
    /// In which form.
    pub format: LogFormat,
}

/// How much some modules log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleVerbosity {
    /// Which modules: `*` and `?` stand for any characters. With a `::` for the whole path of a module, else for its last
    /// part.
    pub pattern: String,
    /// How much.
    pub verbosity: u8,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for each event.
    Text,
    /// A JSON object for each event.
    Json,
}
