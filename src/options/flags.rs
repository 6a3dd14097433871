//! Every flag of the framework, declared once: name, form, default, status here, and help.
//!
//! Parsing, `--help`, `/flagz`, the documents and the comparison with upstream's flags follow from these declarations.
//! A section reads its flags with the same constants (see [`Reader`]).
//!
//! Manifests contain flags that this program does not support. A program that replaces another one must neither fail
//! because of a flag without consequences nor ignore a request. So each of these flags has a [`FlagStatus`]:
//!
//! - A value that *switches on* a missing feature, or requests a protection that would not exist, is **refused**. The error
//!   contains the value to write instead.
//! - A value that switches it off is accepted. A value that is the default elsewhere, although it requests a missing
//!   feature, is accepted with a **warning**.
//! - A *detail* of a missing feature (a period, a port, a file of its own) switches nothing on. It is accepted, with a
//!   **warning** if it is not the default elsewhere.
//! - A flag that this program does not need is accepted: with a **warning** if a user may rely on the effect.
//! - A deprecated flag is accepted with a **warning** for every value.
//!
//! In every case the value must be well-formed.

use ccm_core::{FlagDef, FlagKind, FlagValues, Provider};
use clap::{Arg, ArgAction};

use super::value::Reader;

/// A flag of the framework.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// Its section of `--help`.
    pub(super) section: &'static str,
    /// Name, kind, default and help.
    pub(super) def: FlagDef,
    /// The name of a value in `--help`, if it is not that of the kind.
    value_name: Option<&'static str>,
    status: FlagStatus,
}

/// The effect of a flag.
#[derive(Clone, Copy, Debug)]
enum FlagStatus {
    /// Its help describes it.
    Works,
    /// The same, and `--help` does not show the default.
    HiddenDefault,
    /// The same, and it has no value unless it is given.
    NoDefault,
    /// It requests a missing feature: why, or the alternative. Refused unless off or the default.
    NotYet(&'static str),
    /// A detail of a missing feature.
    NoEffectYet(&'static str),
    /// Nothing here depends on it, but a user may expect an effect.
    NoEffect(&'static str),
    /// Its request is always met, or its effect could not be noticed.
    Moot(&'static str),
    /// Deprecated elsewhere, and without effect here.
    Deprecated(&'static str),
}

impl FlagStatus {
    /// The limit of a flag that is only accepted, and the reason.
    fn limit(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Works | Self::HiddenDefault | Self::NoDefault => None,
            Self::NotYet(why) => Some(("Not implemented", why)),
            Self::NoEffectYet(why) => Some(("No effect yet", why)),
            Self::NoEffect(why) | Self::Moot(why) => Some(("No effect", why)),
            Self::Deprecated(why) => Some(("Deprecated", why)),
        }
    }
}

const NO_FRONT_PROXY: &str =
    "clients authenticate themselves; only aggregated API servers need a front proxy";
const NO_WEBHOOKS: &str = "there are no webhooks";
const ONE_STREAM: &str = "every line is written to standard error at once";

/// The second, if there is one.
macro_rules! or {
    ($default:expr) => {
        $default
    };
    ($default:expr, $value:expr) => {
        $value
    };
}

/// `NAME = "name": Kind, as "VALUE NAME", "default", Status;` in sections, with the help as doc comment.
macro_rules! flags {
    ($($section:literal { $(
        $(#[doc = $help:literal])+
        $flag:ident = $name:literal: $form:ident $(($least:expr))?, $(as $value_name:literal,)?
            $default:literal $(, $status:ident $(($why:expr))?)?;
    )+ })+) => {
        $($(
            $(#[doc = $help])+
            pub(super) const $flag: Flag = Flag {
                section: $section,
                def: FlagDef {
                    name: $name,
                    kind: FlagKind::$form $(($least))?,
                    default: $default,
                    help: concat!($($help),+),
                },
                value_name: or!(None $(, Some($value_name))?),
                status: or!(FlagStatus::Works $(, FlagStatus::$status $(($why))?)?),
            };
        )+)+

        /// All flags, in the order of `--help`.
        pub(super) const ALL: &[Flag] = &[$($($flag),+),+];
    };
}

flags! {
    "Plan" {
        /// Run, but write nothing: log the changes that a run would apply, at the start and whenever they differ. No lease is
        /// acquired, regardless of --leader-elect, so that a dry run can run beside the program that it will replace. It
        /// serves health and metrics (ccm_dry_run_*). On the same machine, set another --secure-port.
        DRY_RUN = "dry-run": Bool, "false", HiddenDefault;

        /// With plan: only this Service, as namespace/name, and no nodes.
        SERVICE = "service": Text, as "NAMESPACE/NAME", "";

        /// With plan: the context of the kubeconfig, in place of its current one.
        CONTEXT = "context": Text, as "NAME", "";

        /// With plan and validate: text, for people, or json, for programs (docs/reference/plan.md, docs/reference/validate.md).
        /// The output is on standard output, the log on standard error.
        OUTPUT = "output": Text, as "FORM", "text";
    }
    "Validate" {
        /// With validate: a file with manifests, YAML or JSON; - for standard input. Its Services of type LoadBalancer are
        /// checked. May be repeated.
        SERVICES = "services": Array("FILE"), "", NoDefault;

        /// With validate: warnings count as errors.
        STRICT = "strict": Bool, "false", HiddenDefault;

        /// With validate: no request to the cloud. Config and manifests are checked, credentials and IDs are not.
        OFFLINE = "offline": Bool, "false", HiddenDefault;
    }
    "Generic" {
        /// The cloud. By default the cloud in the program's own name, such as openstack-cloud-controller-manager, else the only
        /// one that this binary has. --list-providers prints all of them.
        CLOUD_PROVIDER = "cloud-provider": Text, as "NAME", "";

        /// The provider's config file. --help-cloud-config prints its keys. It is checked at the start, and read again until the
        /// cloud accepts it.
        CLOUD_CONFIG = "cloud-config": File, "";

        /// The cluster's name; part of the names of what is created in the cloud.
        CLUSTER_NAME = "cluster-name": Text, as "NAME", "kubernetes";

        /// The controllers that run: * for all, a name for one, a name with - in front for all but one. The first item that
        /// matches a controller counts. A list without * leaves out only cloud-node, cloud-node-lifecycle, route and service.
        CONTROLLERS = "controllers": List, "*";

        /// Switches of unfinished features, as name=true or name=false, separated by commas. A gate that requests a missing
        /// feature is refused; a gate without an effect gets a warning.
        FEATURE_GATES = "feature-gates": Array("GATES"), "", NoDefault;

        /// The content type of requests to the API server. Both application/json and application/vnd.kubernetes.protobuf are
        /// accepted; requests are JSON in either case.
        KUBE_API_CONTENT_TYPE = "kube-api-content-type": Text, as "TYPE", "application/vnd.kubernetes.protobuf";

        /// The maximum average of requests a second to the API server. Without it, or with 0 or less, there is no limit
        /// (Go cloud-controller-manager: 20): the API server's priority and fairness rules apply.
        KUBE_API_QPS = "kube-api-qps": Float, "", NoDefault;

        /// With --kube-api-qps: how many requests may be sent at once after a pause. Without it, no effect.
        KUBE_API_BURST = "kube-api-burst": Number(0), "30";

        /// Let controllers act as service accounts of their own, kube-system/node-controller, service-controller and
        /// route-controller, which every cluster has roles for, and on AWS tagging-controller. On Compute Engine, cloud-provider
        /// reads and creates the ID of the cluster. They are created if missing; the account of this process needs the rights of
        /// deploy/service-accounts. Without this flag, all controllers act as the account of this process.
        USE_SERVICE_ACCOUNT_CREDENTIALS = "use-service-account-credentials": Bool, "false";

        /// A word to add in front of the User-Agent of requests to the cloud. May be repeated.
        USER_AGENT = "user-agent": Array("TEXT"), "", NoDefault;

        /// The least time between two resyncs of all objects.
        MIN_RESYNC_PERIOD = "min-resync-period": Duration, "12h", NoEffect("each controller has a resync period of its own");

        /// The pause between the starts of two controllers.
        CONTROLLER_START_INTERVAL = "controller-start-interval": Duration, "0s", NoEffect("they share one listing of the cluster, so that starting them together costs nothing");

        /// The plugin for volumes of the cloud.
        EXTERNAL_CLOUD_VOLUME_PLUGIN = "external-cloud-volume-plugin": Text, "", NoEffect("volumes are handled by CSI drivers");

        /// Start even if the cluster has no ID in the cloud.
        ALLOW_UNTAGGED_CLOUD = "allow-untagged-cloud": Bool, "false", Deprecated("it has an effect only on AWS; other clouds require no ID");

        /// Formerly the time between two syncs of nodes.
        NODE_SYNC_PERIOD = "node-sync-period": Duration, "0s", Deprecated("it has no effect; --node-status-update-frequency sets how often nodes are compared with the cloud");
    }
    "Leader election" {
        /// Elect one leader among all replicas. Only the leader works, and the others stand by. Without election, only one
        /// replica may run.
        LEADER_ELECT = "leader-elect": Bool, "true";

        /// How long the other replicas wait after the last renewal of the lease before one of them acquires it. A duration of
        /// at least 1s, longer than --leader-elect-renew-deadline.
        LEADER_ELECT_LEASE_DURATION = "leader-elect-lease-duration": Duration, "15s";

        /// How long the leader tries to renew its lease before it exits. A duration, longer than --leader-elect-retry-period
        /// times 1.2.
        LEADER_ELECT_RENEW_DEADLINE = "leader-elect-renew-deadline": Duration, "10s";

        /// The time between two tries to acquire or to renew the lease. A duration.
        LEADER_ELECT_RETRY_PERIOD = "leader-elect-retry-period": Duration, "2s";

        /// The kind of the lock object. There is only one: leases.
        LEADER_ELECT_RESOURCE_LOCK = "leader-elect-resource-lock": Text, as "KIND", "leases";

        /// The name of the Lease.
        LEADER_ELECT_RESOURCE_NAME = "leader-elect-resource-name": Text, as "NAME", "cloud-controller-manager";

        /// The namespace of the Lease.
        LEADER_ELECT_RESOURCE_NAMESPACE = "leader-elect-resource-namespace": Text, as "NAME", "kube-system";
    }
    "Leader migration" {
        /// Migrate controllers between controller managers, such as from kube-controller-manager, so that only one manager runs
        /// each of them at any time: they run under a second Lease that all of these managers contend for. The other controllers
        /// run under the first Lease. Needs --leader-elect.
        ENABLE_LEADER_MIGRATION = "enable-leader-migration": Bool, "false";

        /// With --enable-leader-migration: the file with these controllers, the component that runs each of them, and the name of
        /// the second Lease (a LeaderMigrationConfiguration of controllermanager.config.k8s.io/v1, v1beta1 or v1alpha1).
        /// Without a file: service, route and cloud-node-lifecycle, any component, and the Lease
        /// cloud-provider-extraction-migration.
        LEADER_MIGRATION_CONFIG = "leader-migration-config": File, "";
    }
    "Nodes" {
        /// How many nodes are initialized at once (Go cloud-controller-manager: 1). It limits requests to the API server; one request to the cloud
        /// covers hundreds of nodes in any case.
        CONCURRENT_NODE_SYNCS = "concurrent-node-syncs": Number(0), "32";

        /// How many nodes the periodic comparison with the cloud patches at once; 0 for as many as --concurrent-node-syncs.
        CONCURRENT_NODE_STATUS_UPDATES = "concurrent-node-status-updates": Number(0), "0";

        /// Let the periodic comparison also change zone and region of initialized nodes. Volumes are bound to them, so that
        /// a difference is otherwise only reported, as an event and in a metric.
        REFRESH_TOPOLOGY_LABELS = "refresh-topology-labels": Bool, "false";
    }
    "Node lifecycle" {
        /// How often the machines of nodes that are not ready are read from the cloud: whether they exist, and whether they are
        /// shut down. A duration. One request covers all of these nodes.
        NODE_MONITOR_PERIOD = "node-monitor-period": Period, "5s";

        /// A node younger than this is never deleted: the cloud may not list its machine everywhere yet. A duration. Unless given,
        /// 2m, or longer if the cloud needs it.
        NODE_DELETION_GRACE = "node-deletion-grace": Duration, "";

        /// A node is deleted when its machine does not exist in two answers of the cloud, this long apart. A duration.
        NODE_DELETION_CONFIRM = "node-deletion-confirm": Period, "10s";

        /// If the machines of more than this share of all nodes seem missing (and of more than three), the nodes are deleted
        /// slowly, one a minute: the answers of the cloud may be wrong. A number from 0 to 1, or with a % sign.
        NODE_DELETION_SHARE = "node-deletion-share": Text, as "SHARE", "0.25";

        /// How many nodes are synced at once.
        CONCURRENT_NODE_LIFECYCLE_SYNCS = "concurrent-node-lifecycle-syncs": Number(1), "1", NoEffect("one request to the cloud covers all of them");
    }
    "Services" {
        /// How many load balancers are synced at once (Go cloud-controller-manager: 1). A load balancer that waits for the cloud does not count.
        CONCURRENT_SERVICE_SYNCS = "concurrent-service-syncs": Number(0), "8";

        /// How often load balancers are compared with the cloud if no Service changed, to revert changes by others. A
        /// duration, with jitter; 0 for never. It costs few requests, and changes of Services take precedence.
        SERVICE_DRIFT_PERIOD = "service-drift-period": Duration, "1h";

        /// Delete load balancers that carry this cluster's ownership tag and its --cluster-name when their Service has not existed
        /// for an hour. Without this flag they are only reported. More than three are deleted one a minute; a restart, or a
        /// listing in which Services vanished, restarts the hour. Load balancers that a deleted Service disowned (DigitalOcean)
        /// are deleted, too. Never set it in a cluster that was cloned or restored from a snapshot: such a cluster has the
        /// ownership tag of the original and would delete the load balancers of that cluster.
        DELETE_ORPHANED_LOAD_BALANCERS = "delete-orphaned-load-balancers": Bool, "false";
    }
    "Routes" {
        /// Reconcile routes in the cloud to the pods of each node (spec.podCIDRs), if the cloud provider supports them (OpenStack:
        /// with router-id). Otherwise, or with false, neither routes nor the condition NetworkUnavailable of nodes are changed.
        CONFIGURE_CLOUD_ROUTES = "configure-cloud-routes": Bool, "true";

        /// The network of all pods, such as 10.244.0.0/16; two networks, separated by a comma, with IPv4 and IPv6. Routes are
        /// created and deleted only inside it: a route there to no node is deleted. Needed for routes; without it the route
        /// controller reports that and does nothing, and the other controllers run.
        CLUSTER_CIDR = "cluster-cidr": Text, "";

        /// How often routes are compared with the cloud if no node changed, to revert changes by others. A duration. Unless
        /// given, 5m (Go cloud-controller-manager: 10s). Failed changes are retried regardless.
        ROUTE_RECONCILIATION_PERIOD = "route-reconciliation-period": Period, "";

        /// Allocate addresses for the pods of each node.
        ALLOCATE_NODE_CIDRS = "allocate-node-cidrs": Bool, "false", NoEffect("kube-controller-manager or the pod network does that");

        /// How addresses for the pods of each node are allocated.
        CIDR_ALLOCATOR_TYPE = "cidr-allocator-type": Text, "RangeAllocator", NoEffect("kube-controller-manager or the pod network does that");
    }
    "Misc" {
        /// The kubeconfig file with the API server and the credentials for it. Changed credentials are applied without a
        /// restart. With neither this nor --master: the service account of the pod. Only plan reads the environment variable
        /// KUBECONFIG, and ~/.kube/config outside of a pod.
        KUBECONFIG = "kubeconfig": File, "";

        /// The URL of the API server, in place of the URL in the kubeconfig file.
        MASTER = "master": Text, as "URL", "";

        /// How often all nodes are compared with the cloud: addresses, type, labels. A duration.
        NODE_STATUS_UPDATE_FREQUENCY = "node-status-update-frequency": Period, "5m";

        /// How long work in progress may take after SIGTERM or SIGINT before it is cut off. A duration. A second signal cuts it
        /// off at once. In a Pod, terminationGracePeriodSeconds (30 by default) has to be some seconds longer.
        SHUTDOWN_DRAIN = "shutdown-drain": Duration, "20s";
    }
    "Debugging" {
        /// Serve profiles of the running program below /debug/pprof/.
        PROFILING = "profiling": Bool, "true", NotYet("nothing is served there");

        /// Also measure where the program waits for locks.
        CONTENTION_PROFILING = "contention-profiling": Bool, "false", NotYet("no profiles are served");
    }
    "Secure serving" {
        /// The port of the HTTPS server with /healthz, /livez, /readyz, /metrics and /statusz. 0 for no server at
        /// all.
        SECURE_PORT = "secure-port": Text, as "PORT", "10258";

        /// The IP address of the HTTPS server. Both 0.0.0.0 and :: mean all interfaces, with IPv4 and IPv6.
        BIND_ADDRESS = "bind-address": Address, "0.0.0.0";

        /// The file with the HTTPS server's certificate (PEM; intermediate certificates after it). Read again when it changes.
        /// Without it a self-signed certificate is created.
        TLS_CERT_FILE = "tls-cert-file": File, "";

        /// The file with the private key of --tls-cert-file (PEM).
        TLS_PRIVATE_KEY_FILE = "tls-private-key-file": File, "";

        /// The folder of the self-signed certificate, cloud-controller-manager.crt and .key, which is used again after a
        /// restart. Without a folder, the certificate is only in memory. No effect with --tls-cert-file.
        CERT_DIR = "cert-dir": Text, as "FOLDER", "";

        /// A certificate and key for clients that request one of its names (SNI). After a colon: the names, separated by commas;
        /// *. in front matches all names one level below. Without names, those in the certificate apply. Read again when it
        /// changes. May be repeated.
        TLS_SNI_CERT_KEY = "tls-sni-cert-key": Array("CERT,KEY[:NAMES]"), "";

        /// The oldest version of TLS: VersionTLS12 or VersionTLS13. Unless given, TLS 1.2. Older versions are not supported;
        /// their names are accepted with a warning.
        TLS_MIN_VERSION = "tls-min-version": Text, as "VERSION", "";

        /// The cipher suites for TLS 1.2, by their usual names; those of TLS 1.3 are always offered. Unless given, all that are
        /// safe. Weak ones are left out with a warning.
        TLS_CIPHER_SUITES = "tls-cipher-suites": List, "";

        /// The key exchange methods, by number: 23 (P-256), 24 (P-384), 29 (X25519), 4587 and 4588 (with ML-KEM). Unless given,
        /// the usual ones.
        TLS_CURVE_PREFERENCES = "tls-curve-preferences": Numbers, "";

        /// Serve HTTP/1.1 only.
        DISABLE_HTTP2_SERVING = "disable-http2-serving": Bool, "false";

        /// How many HTTP/2 requests may run at once on one connection; 0 for 32.
        HTTP2_MAX_STREAMS_PER_CONNECTION = "http2-max-streams-per-connection": Number(0), "0";

        /// Let other processes listen on the same port, too; each receives a part of the connections (SO_REUSEPORT).
        PERMIT_PORT_SHARING = "permit-port-sharing": Bool, "false";

        /// Listen on a port that old connections are still bound to (SO_REUSEADDR).
        PERMIT_ADDRESS_SHARING = "permit-address-sharing": Bool, "false", Moot("this is always enabled, because a restart would have to wait otherwise");
    }
    "Authentication" {
        /// The kubeconfig file for TokenReviews, which authenticate clients. Without it: the service account of the pod; outside
        /// of a pod --kubeconfig and --master. It needs the right to create tokenreviews (system:auth-delegator).
        AUTHENTICATION_KUBECONFIG = "authentication-kubeconfig": File, "";

        /// How long the result of a TokenReview is cached. 0 for a review of each request.
        AUTHENTICATION_TOKEN_WEBHOOK_CACHE_TTL = "authentication-token-webhook-cache-ttl": Duration, "10s";

        /// Do not read the cluster's client CA (the ConfigMap extension-apiserver-authentication in kube-system). Tokens are
        /// still reviewed.
        AUTHENTICATION_SKIP_LOOKUP = "authentication-skip-lookup": Bool, "false";

        /// Continue if the cluster refuses to return its client CA: client certificates are then verified by --client-ca-file
        /// only. Otherwise the program exits after a refusal.
        AUTHENTICATION_TOLERATE_LOOKUP_FAILURE = "authentication-tolerate-lookup-failure": Bool, "false";

        /// The authorities (PEM) that verify client certificates: the common name is the user, the organizations are the groups.
        /// They replace the cluster's client CA. The file is read again when it changes.
        CLIENT_CA_FILE = "client-ca-file": File, "";

        /// The authorities (PEM) of front proxies, which identify a client in headers.
        REQUESTHEADER_CLIENT_CA_FILE = "requestheader-client-ca-file": File, "", NoEffect(NO_FRONT_PROXY);

        /// The common names of front proxies.
        REQUESTHEADER_ALLOWED_NAMES = "requestheader-allowed-names": List, "", NoEffect(NO_FRONT_PROXY);

        /// The headers with the name of a client.
        REQUESTHEADER_USERNAME_HEADERS = "requestheader-username-headers": List, "x-remote-user", NoEffect(NO_FRONT_PROXY);

        /// The headers with the groups of a client.
        REQUESTHEADER_GROUP_HEADERS = "requestheader-group-headers": List, "x-remote-group", NoEffect(NO_FRONT_PROXY);

        /// The headers with the UID of a client.
        REQUESTHEADER_UID_HEADERS = "requestheader-uid-headers": List, "", NoEffect(NO_FRONT_PROXY);

        /// The prefixes of headers with extra fields of a client.
        REQUESTHEADER_EXTRA_HEADERS_PREFIX = "requestheader-extra-headers-prefix": List, "x-remote-extra-", NoEffect(NO_FRONT_PROXY);
    }
    "Authorization" {
        /// The kubeconfig file for SubjectAccessReviews, which authorize clients. Without it: as for --authentication-kubeconfig.
        /// It needs the right to create subjectaccessreviews (system:auth-delegator).
        AUTHORIZATION_KUBECONFIG = "authorization-kubeconfig": File, "";

        /// How long a permission is cached. 0 for a review of each request.
        AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL = "authorization-webhook-cache-authorized-ttl": Duration, "10s";

        /// How long a denial is cached. 0 for a review of each request.
        AUTHORIZATION_WEBHOOK_CACHE_UNAUTHORIZED_TTL = "authorization-webhook-cache-unauthorized-ttl": Duration, "10s";

        /// The paths of the HTTPS server that are served without authentication; a * at the end matches any characters, and a
        /// health endpoint includes its single checks. With /metrics in the list, every client that can reach the port can read
        /// the metrics.
        AUTHORIZATION_ALWAYS_ALLOW_PATHS = "authorization-always-allow-paths": List, "/healthz,/readyz,/livez";
    }
    "Webhooks" {
        /// The admission webhooks that are served, written as for --controllers. Not implemented: this version has none.
        WEBHOOKS = "webhooks": List, "";

        /// The port of the webhooks' HTTPS server. 0 for no server at all. No effect yet: there are no webhooks.
        WEBHOOK_SECURE_PORT = "webhook-secure-port": Text, as "PORT", "10260";

        /// The IP address of the webhooks' HTTPS server.
        WEBHOOK_BIND_ADDRESS = "webhook-bind-address": Address, "0.0.0.0", NoEffectYet(NO_WEBHOOKS);

        /// The folder of the webhook server's self-signed certificate.
        WEBHOOK_CERT_DIR = "webhook-cert-dir": File, "", NoEffectYet(NO_WEBHOOKS);

        /// The file with the webhook server's certificate.
        WEBHOOK_TLS_CERT_FILE = "webhook-tls-cert-file": File, "", NoEffectYet(NO_WEBHOOKS);

        /// The file with the webhook server's private key.
        WEBHOOK_TLS_PRIVATE_KEY_FILE = "webhook-tls-private-key-file": File, "", NoEffectYet(NO_WEBHOOKS);

        /// The webhook server's certificates for other names.
        WEBHOOK_TLS_SNI_CERT_KEY = "webhook-tls-sni-cert-key": Array("CERT,KEY[:NAMES]"), "", NoEffectYet(NO_WEBHOOKS);

        /// The webhook server's oldest version of TLS.
        WEBHOOK_TLS_MIN_VERSION = "webhook-tls-min-version": Text, "", NoEffectYet(NO_WEBHOOKS);

        /// The webhook server's cipher suites.
        WEBHOOK_TLS_CIPHER_SUITES = "webhook-tls-cipher-suites": List, "", NoEffectYet(NO_WEBHOOKS);

        /// The webhook server's key exchange methods.
        WEBHOOK_TLS_CURVE_PREFERENCES = "webhook-tls-curve-preferences": Numbers, "", NoEffectYet(NO_WEBHOOKS);

        /// Do not serve HTTP/2 there.
        WEBHOOK_DISABLE_HTTP2_SERVING = "webhook-disable-http2-serving": Bool, "false", NoEffectYet(NO_WEBHOOKS);
    }
    "Logs" {
        /// The verbosity of the log on standard error. 0: changes of state, and failures. 2: the same of libraries. 4: reasons for
        /// changes and for objects that are left unchanged, retries, all flags at start. 6: requests to the API server and to the
        /// cloud, without their bodies. 8: also the work of libraries. Secrets are never logged.
        VERBOSITY = "v": Text, as "LEVEL", "0";

        /// The verbosity of single modules, as pattern=LEVEL, separated by commas; the first match counts. A pattern matches the
        /// last part of a module's name (refresh=6), or with :: or / in it the whole name (ccm_core::client::*=6); * and ? match
        /// any characters. -v=4 prints these names.
        VMODULE = "vmodule": Array("PATTERNS"), "";

        /// The format of the log: text or json.
        LOGGING_FORMAT = "logging-format": Text, as "FORMAT", "text";

        /// How long a line may wait before it is written.
        LOG_FLUSH_FREQUENCY = "log-flush-frequency": Period, "5s", Moot("lines are not buffered");

        /// With text: errors to standard error, the rest to standard output.
        LOG_TEXT_SPLIT_STREAM = "log-text-split-stream": Bool, "false", NotYet(ONE_STREAM);

        /// With text and two streams: how many bytes wait to be written together.
        LOG_TEXT_INFO_BUFFER_SIZE = "log-text-info-buffer-size": Text, "0", NotYet(ONE_STREAM);

        /// With json: errors to standard error, the rest to standard output.
        LOG_JSON_SPLIT_STREAM = "log-json-split-stream": Bool, "false", NotYet(ONE_STREAM);

        /// With json and two streams: how many bytes wait to be written together.
        LOG_JSON_INFO_BUFFER_SIZE = "log-json-info-buffer-size": Text, "0", NotYet(ONE_STREAM);
    }
    "Global" {
        /// Print this help.
        HELP = "help": Bool, "", NoDefault;

        /// Print the version; =raw with details. With =vX.Y.Z the program runs and reports that version.
        VERSION = "version": Text, as "FORM", "false", HiddenDefault;

        /// Print the cloud providers that are compiled into this binary.
        LIST_PROVIDERS = "list-providers": Bool, "false", HiddenDefault;

        /// Print the keys of the config file of --cloud-provider, or of all cloud providers of this binary.
        HELP_CLOUD_CONFIG = "help-cloud-config": Bool, "false", HiddenDefault;

        /// Print all metrics with their types, labels and meanings.
        HELP_METRICS = "help-metrics": Bool, "false", HiddenDefault;
    }
}

impl Flag {
    /// The flag for clap.
    pub(super) fn arg(&self) -> Arg {
        // clap prints no period at the end.
        let meaning = self.def.help.trim().trim_end_matches('.');
        let help = match self.status.limit() {
            None => meaning.to_owned(),
            Some((limit, why)) => format!("{meaning}. {limit}: {why}"),
        };
        let mut arg = arg(&self.def, self.section, help);
        if let Some(name) = self.value_name {
            arg = arg.value_name(name);
        }
        match self.status {
            FlagStatus::HiddenDefault => arg = arg.hide_default_value(true),
            FlagStatus::NoDefault => arg = arg.default_value(clap::builder::Resettable::Reset),
            _ => {}
        }
        match self.def.name {
            "help" => Arg::new("help")
                .long("help")
                .short('h')
                .help(arg.get_help().cloned().unwrap_or_default())
                .help_heading(self.section)
                .action(ArgAction::SetTrue),
            "output" => arg.short('o'),
            "v" => arg.short('v'),
            // `--version` alone, too.
            "version" => optional_value(arg),
            _ => arg,
        }
    }

    /// Whether it is accepted without an effect.
    pub(super) fn is_accepted_only(&self) -> bool {
        self.status.limit().is_some()
    }

    /// Checks the values of a flag that is only accepted.
    fn check_accepted(&self, values: &[String], reader: &mut Reader) {
        if let Err(message) = self.def.check(values) {
            return reader.refuse(message);
        }
        let FlagDef { name, kind, .. } = self.def;
        let flag = format!("--{name}={}", values.join(","));
        let is_default = self.def.is_default(values);
        match self.status {
            FlagStatus::Deprecated(why) => reader.warn(format!("deprecated: --{name}: {why}")),
            // Only a boolean can have a default that requests something.
            FlagStatus::NotYet(why) if is_default && self.def.default == "true" => {
                reader.warn(format!("{flag}: not implemented: {why}"));
            }
            FlagStatus::NotYet(why) if !is_default && !self.is_off(values) => {
                let instead = match kind {
                    FlagKind::Bool => format!("leave it out or write --{name}=false"),
                    _ => "leave it out".to_owned(),
                };
                reader.refuse(format!("{flag}: not implemented: {why}; {instead}"));
            }
            FlagStatus::NoEffectYet(why) if !is_default => {
                reader.warn(format!("{flag} has no effect yet: {why}"));
            }
            FlagStatus::NoEffect(why) if !is_default => reader.warn(format!("{flag} has no effect: {why}")),
            _ => {}
        }
    }

    fn is_off(&self, values: &[String]) -> bool {
        match self.def.kind {
            FlagKind::Bool => {
                values.last().is_some_and(|value| ccm_core::flags::parse_bool(value) == Ok(false))
            }
            _ => values.iter().all(String::is_empty),
        }
    }
}

/// The argument of a flag in this section of `--help`.
pub(super) fn arg(flag: &FlagDef, section: impl Into<clap::builder::Str>, help: String) -> Arg {
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .help(help)
        .help_heading(section.into())
        .value_name(flag.kind.value_name())
        .default_value(flag.default)
        .hide_default_value(flag.default.is_empty())
        .action(if flag.kind.is_repeated() {
            ArgAction::Append
        } else {
            ArgAction::Set
        });
    match flag.kind {
        FlagKind::Bool => optional_value(arg),
        _ => arg,
    }
}

/// The value follows a `=`; the flag alone means true.
fn optional_value(arg: Arg) -> Arg {
    arg.num_args(0..=1).require_equals(true).default_missing_value("true")
}

/// Whether a flag of this name is only accepted.
pub(super) fn accepts(name: &str) -> bool {
    ALL.iter().any(|flag| flag.def.name == name && flag.is_accepted_only())
}

/// Checks all flags that are only accepted, without those that the chosen provider defines, too.
pub(super) fn check_accepted(given: &FlagValues, provider: Option<&Provider>, reader: &mut Reader) {
    let provided = provider.map_or(&[][..], |provider| provider.flags);
    for flag in ALL.iter().filter(|flag| flag.is_accepted_only()) {
        let name = flag.def.name;
        if let Some(values) = given.given(name)
            && provided.iter().all(|flag| flag.name != name)
        {
            flag.check_accepted(values, reader);
        }
    }
}

#[cfg(test)]
mod tests;
