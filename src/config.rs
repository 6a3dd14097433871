//! The checked values of the flags.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    num::NonZeroUsize,
    path::PathBuf,
    time::Duration,
};

use ccm_core::{Cloud, FlagValues, Provider};
use rustls::{CipherSuite, NamedGroup};

/// The checked command line.
#[derive(Clone, Debug)]
pub struct Config {
    /// The provider that `--cloud-provider` names.
    pub provider: &'static Provider,
    /// The flags that were given. Values of the provider's flags are well-formed.
    pub flags: FlagValues,
    /// The provider's config file. The provider checks it.
    pub cloud_config: Option<PathBuf>,
    /// The cluster's name; part of the names of what is created in the cloud.
    pub cluster_name: String,
    /// The `User-Agent` of requests to the cloud.
    pub user_agent: String,
    /// How to reach the API server.
    pub api_server: ApiServerConfig,
    /// Whether each controller acts as a service account of its own.
    pub service_accounts: bool,
    /// The controllers that run.
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
    /// Nothing is written and no lease is acquired; the log reports what a run would do.
    pub dry_run: bool,
    /// How long work in progress may take after a signal to stop.
    pub shutdown_drain: Duration,
    /// The version to report.
    pub version: String,
    /// Every flag with its value, for the log.
    pub values: Vec<(String, String)>,
    /// Warnings about accepted values, for the log.
    pub warnings: Vec<String>,
}

/// The address of the API server, and the limit on requests. With neither file nor address, it is that of a pod.
#[derive(Clone, Debug, Default)]
pub struct ApiServerConfig {
    /// The kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig, in place of its current one.
    pub context: Option<String>,
    /// The server's URL or `host:port`, in place of the kubeconfig's.
    pub master: Option<String>,
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
    /// How many nodes are initialized at once.
    pub concurrent_syncs: NonZeroUsize,
    /// How many nodes the periodic comparison patches at once.
    pub concurrent_status_updates: NonZeroUsize,
    /// Whether zone and region of initialized nodes may change.
    pub refresh_topology_labels: bool,
}

/// The controllers that run: `--controllers`, and the file of a leader migration. All names are canonical.
#[derive(Clone, Debug, Default)]
pub struct Controllers {
    /// The controllers that are switched off.
    pub disabled: BTreeSet<&'static str>,
    /// The controllers that a leader migration assigns to another component, with its name.
    pub elsewhere: BTreeMap<&'static str, String>,
    /// The enabled controllers that run under the [lease of the migration](MigrationConfig::lease).
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
    /// The shortest time between two reads of a node that is not ready.
    pub monitor_period: Duration,
    /// A node younger than this is never deleted; `None` for the default.
    pub deletion_grace: Option<Duration>,
    /// The least time between the two answers that a node's machine does not exist.
    pub deletion_confirm: Duration,
    /// For how long a node without a provider ID must be silent, and every answer be that no machine has its name. No flag
    /// sets it.
    pub unresolved_confirm: Duration,
    /// If the machines of more than this share of the nodes (0 to 1), and of more than three, seem missing, nodes are deleted
    /// slowly.
    pub deletion_share: f64,
}

impl LifecycleConfig {
    /// The least default of [`Self::deletion_grace`].
    pub const DELETION_GRACE: Duration = Duration::from_secs(120);
    /// [`Self::unresolved_confirm`].
    pub const UNRESOLVED_CONFIRM: Duration = Duration::from_secs(600);

    /// [`Self::deletion_grace`]. The default is raised to the time that the cloud needs.
    #[must_use]
    pub fn grace(&self, cloud: &dyn Cloud) -> Duration {
        self.deletion_grace.unwrap_or_else(|| Self::DELETION_GRACE.max(cloud.deletion_grace()))
    }
}

/// The service controller.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// How many parts of load balancers are worked on at once.
    pub concurrent_syncs: NonZeroUsize,
    /// How often load balancers are compared with the cloud although nothing changed here; `None` for never.
    pub drift_period: Option<Duration>,
    /// The handling of load balancers without a Service.
    pub orphans: OrphanConfig,
}

/// The handling of load balancers whose Service does not exist.
#[derive(Clone, Copy, Debug)]
pub struct OrphanConfig {
    /// Whether load balancers with this cluster's ownership tag are deleted; otherwise they are only reported.
    pub delete: bool,
    /// How long an orphan is observed before it is reported. Its Service may only be late.
    pub report_after: Duration,
    /// How long an orphan is observed before it is deleted. A restart, or a listing that lost Services, restarts this time.
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
    /// `--configure-cloud-routes`.
    pub enabled: bool,
    /// `--cluster-cidr` as it was given. It has an effect only where there are routes.
    pub cluster_cidr: String,
    /// How often all routes are compared with the cloud although nothing changed; `None` for the default.
    pub period: Option<Duration>,
}

/// The election of one leader among replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    /// How long other processes wait after the last renewal that they observed before they acquire the lease.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long exits. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// The time between two tries to acquire or to renew the lease.
    pub retry_period: Duration,
    /// The Lease's name.
    pub name: String,
    /// The Lease's namespace.
    pub namespace: String,
    /// The leader migration, if there is one.
    pub migration: Option<MigrationConfig>,
}

/// A leader migration: controllers that move from one controller manager to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationConfig {
    /// The name of the Lease of these controllers, in the namespace of the other Lease.
    pub lease: String,
    /// The content of the file. [`Controllers`] has its effect.
    pub leaders: Vec<ControllerLeader>,
}

/// The component that runs a controller during a leader migration.
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
    /// The address and the port that it listens on.
    pub address: SocketAddr,
    /// Its certificate.
    pub certificate: Certificate,
    /// Certificates for other server names.
    pub named_certificates: Vec<NamedCertificate>,
    /// Limits on the TLS handshake.
    pub tls: TlsConfig,
    /// How many HTTP/2 requests may run at once on one connection; `None` for HTTP/1.1 only.
    pub http2_max_streams: Option<u32>,
    /// Whether other processes may listen on the same port and share the connections (`SO_REUSEPORT`).
    pub share_port: bool,
    /// Authentication and authorization of clients.
    pub access: AccessConfig,
}

/// Authentication and authorization of the HTTPS server's clients.
#[derive(Clone, Debug, Default)]
pub struct AccessConfig {
    /// The kubeconfig for TokenReviews; `None` for the pod's account, or that of the whole program.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// How long the result of a TokenReview is cached.
    pub token_ttl: Duration,
    /// Whether the cluster's client CA is not read.
    pub skip_lookup: bool,
    /// Whether to continue if the cluster refuses to return its client CA.
    pub tolerate_lookup_failure: bool,
    /// The file with the authorities that verify client certificates, in place of the cluster's client CA.
    pub client_authorities: Option<PathBuf>,
    /// The kubeconfig for SubjectAccessReviews; `None` as for TokenReviews.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// How long a permission is cached.
    pub allowed_ttl: Duration,
    /// How long a denial is cached.
    pub denied_ttl: Duration,
    /// The paths that are served to all clients; a `*` at the end matches any characters.
    pub open_paths: Vec<String>,
}

/// The certificate of the HTTPS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// A self-signed certificate in memory.
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

/// Limits on the TLS handshake of the HTTPS server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// Whether TLS 1.2 is refused, too.
    pub only_tls13: bool,
    /// The cipher suites of TLS 1.2; `None` for all that are safe. The suites of TLS 1.3 cannot be chosen.
    pub cipher_suites: Option<Vec<CipherSuite>>,
    /// The key exchange methods; `None` for the usual ones.
    pub key_exchange: Option<Vec<NamedGroup>>,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggingConfig {
    /// The value of `-v`.
    pub verbosity: u8,
    /// The verbosity of single modules; the first match counts.
    pub modules: Vec<ModuleVerbosity>,
    /// The format.
    pub format: OutputFormat,
}

/// The verbosity of some modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleVerbosity {
    /// A pattern with `*` and `?`. With a `::` it matches the whole path of a module, else the last part of it.
    pub pattern: String,
    /// The value on the scale of `-v`.
    pub verbosity: u8,
}

/// The format of the log, of a plan or of a validation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// Text for people; a line for each event of the log.
    #[default]
    Text,
    /// JSON for programs; an object for each event of the log.
    Json,
}
