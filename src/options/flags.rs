//! Every flag of the framework, declared once: name, form, default, status here, and help.
//!
//! Parsing, `--help`, `/flagz`, the documents and the comparison with upstream's flags follow from these declarations.
//! A section reads its flags with the same constants (see [`Reader`]).
//!
//! Manifests carry flags that this program does not support, and a program that replaces another one must not fail over
//! a flag that asks for nothing. It must not ignore one that asks for something either. So each of them has a
//! [`Status`]:
//!
//! - A value that *switches on* something missing, or asks for a protection that would not exist, is **refused**, and
//!   the error says what to write instead.
//! - A value that switches it off is accepted. A value that is the default elsewhere, though it asks for something
//!   missing, is accepted with a **warning**.
//! - A *detail* of something missing (a period, a port, a file of its own) turns nothing on. It is accepted, with a
//!   **warning** if it is not the default elsewhere.
//! - A flag that this program does not need is accepted: with a **warning** if a user may rely on the effect.
//! - A deprecated flag is accepted with a **warning** whatever its value.
//!
//! In every case the value must be well formed.

use ccm_core::{FlagDef, FlagKind, FlagValues, Provider};
use clap::{Arg, ArgAction};

use super::value::Reader;

/// A flag of the framework.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    /// Its section of `--help`.
    pub(super) section: &'static str,
    /// Name, form, default and help.
    pub(super) def: FlagDef,
    /// The name of a value in `--help`, if it is not that of the form.
    value_name: Option<&'static str>,
    status: Status,
}

/// What a flag does here.
#[derive(Clone, Copy, Debug)]
enum Status {
    /// What its help says.
    Works,
    /// The same, and `--help` does not show the default.
    HiddenDefault,
    /// The same, and it has no value unless it is given.
    NoDefault,
    /// It asks for something that is missing: why, or what instead. Refused unless off or the default.
    NotYet(&'static str),
    /// A detail of something that is missing.
    NoEffectYet(&'static str),
    /// Nothing here depends on it, but a user may expect an effect.
    NoEffect(&'static str),
    /// What it asks for is so anyway, or makes no difference that could be noticed.
    Moot(&'static str),
    /// Deprecated elsewhere, and without effect here.
    Deprecated(&'static str),
}

const NO_FRONT_PROXY: &str =
    "clients authenticate themselves; only aggregated API servers need a front proxy";
const NO_WEBHOOKS: &str = "there are no webhooks";
const ONE_STREAM: &str = "every line goes to standard error at once";

/// The second, if there is one.
macro_rules! or {
    ($default:expr) => {
        $default
    };
    ($default:expr, $value:expr) => {
        $value
    };
}

/// `NAME = "name": Form, as "VALUE NAME", "default", Status;` in sections, with the help as doc comment.
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
                status: or!(Status::Works $(, Status::$status $(($why))?)?),
            };
        )+)+

        /// All flags, in the order of `--help`.
        pub(super) const ALL: &[Flag] = &[$($($flag),+),+];
    };
}

flags! {
    "Plan" {
        /// Run on and log what would be done, at the start and whenever it changes, in place of doing it. Nothing is written,
        /// and no lease is taken, whatever --leader-elect says: it may run beside the program whose place it is to take. It
        /// serves health and metrics (ccm_dry_run_*); on the same machine give it a --secure-port of its own.
        DRY_RUN = "dry-run": Bool, "false", HiddenDefault;

        /// With plan: only this Service, as namespace/name, and no nodes.
        SERVICE = "service": Text, as "NAMESPACE/NAME", "";

        /// With plan and validate: text, for people, or json, for programs (docs/reference/plan.md, docs/reference/validate.md).
        /// It goes to standard output, and the log to standard error.
        OUTPUT = "output": Text, as "FORM", "text";
    }
    "Validate" {
        /// With validate: a file with manifests, YAML or JSON, of which the Services of type LoadBalancer are looked at; - for
        /// standard input. May be repeated.
        SERVICES = "services": Array("FILE"), "", NoDefault;

        /// With validate: warnings count as errors.
        STRICT = "strict": Bool, "false", HiddenDefault;
    }
    "Generic" {
        /// The cloud. By default the one in the program's own name, such as openstack-cloud-controller-manager, else the only one
        /// that this binary has. --list-providers says which ones it has.
        CLOUD_PROVIDER = "cloud-provider": Text, as "NAME", "";

        /// The provider's config file. --help-cloud-config says what may stand in it. It is checked before anything is
        /// started, and read again until the cloud has accepted what stands in it.
        CLOUD_CONFIG = "cloud-config": File, "";

        /// The cluster's name; part of the names of what is created in the cloud.
        CLUSTER_NAME = "cluster-name": Text, as "NAME", "kubernetes";

        /// Which controllers run: * for all, a name for one, a name with - in front for all but one. The first that mentions a
        /// controller counts.
        CONTROLLERS = "controllers": List, "*";

        /// Switches of unfinished features, as name=true or name=false, separated by commas. A gate that asks for something
        /// missing is refused; one without a meaning here gets a warning.
        FEATURE_GATES = "feature-gates": Array("GATES"), "", NoDefault;

        /// The form of requests to the API server. Both application/json and application/vnd.kubernetes.protobuf are accepted,
        /// and JSON is spoken in either case.
        KUBE_API_CONTENT_TYPE = "kube-api-content-type": Text, as "TYPE", "application/vnd.kubernetes.protobuf";

        /// At most so many requests a second to the API server, on average. Unless given, or if not above 0, there is no
        /// limit (elsewhere 20): the API server's priority and fairness rules apply.
        KUBE_API_QPS = "kube-api-qps": Float, "", NoDefault;

        /// With --kube-api-qps: how many requests may be sent at once after a pause. Without it, no effect.
        KUBE_API_BURST = "kube-api-burst": Number(0), "30";

        /// Let controllers act as service accounts of their own, kube-system/node-controller, service-controller and
        /// route-controller, which every cluster has roles for. They are created if missing; the account of this process needs the
        /// rights of deploy/service-accounts. Without it all act as the account of this process.
        USE_SERVICE_ACCOUNT_CREDENTIALS = "use-service-account-credentials": Bool, "false";

        /// A word to put before this program's own in the User-Agent of requests to the cloud. May be repeated.
        USER_AGENT = "user-agent": Array("TEXT"), "", NoDefault;

        /// How often everything is handled again as if it had changed, at least.
        MIN_RESYNC_PERIOD = "min-resync-period": Duration, "12h", NoEffect("each controller compares with the cloud in its own rhythm");

        /// The pause between the starts of two controllers.
        CONTROLLER_START_INTERVAL = "controller-start-interval": Duration, "0s", NoEffect("they share one listing of the cluster, so that starting them together costs nothing");

        /// The plugin for volumes of the cloud.
        EXTERNAL_CLOUD_VOLUME_PLUGIN = "external-cloud-volume-plugin": Text, "", NoEffect("volumes are handled by CSI drivers");

        /// Start even if the cloud does not know the cluster by an ID.
        ALLOW_UNTAGGED_CLOUD = "allow-untagged-cloud": Bool, "false", Deprecated("it has no effect, no ID is required");

        /// Once, how often nodes were handled.
        NODE_SYNC_PERIOD = "node-sync-period": Duration, "0s", Deprecated("it has no effect; --node-status-update-frequency says how often nodes are compared with the cloud");
    }
    "Leader election" {
        /// Elect one leader among all replicas, which alone works; the others wait to take over. Without it, only one replica
        /// may run.
        LEADER_ELECT = "leader-elect": Bool, "true";

        /// How long the others wait after the last sign of life of the leader before one of them takes over. A duration of at
        /// least 1s, longer than --leader-elect-renew-deadline.
        LEADER_ELECT_LEASE_DURATION = "leader-elect-lease-duration": Duration, "15s";

        /// How long the leader tries to renew its lease before it gives up and ends. A duration, longer than
        /// --leader-elect-retry-period times 1.2.
        LEADER_ELECT_RENEW_DEADLINE = "leader-elect-renew-deadline": Duration, "10s";

        /// The time between two tries to take or to renew the lease. A duration.
        LEADER_ELECT_RETRY_PERIOD = "leader-elect-retry-period": Duration, "2s";

        /// The kind of object that says who leads. There is only one: leases.
        LEADER_ELECT_RESOURCE_LOCK = "leader-elect-resource-lock": Text, as "KIND", "leases";

        /// The name of the Lease.
        LEADER_ELECT_RESOURCE_NAME = "leader-elect-resource-name": Text, as "NAME", "cloud-controller-manager";

        /// The namespace of the Lease.
        LEADER_ELECT_RESOURCE_NAMESPACE = "leader-elect-resource-namespace": Text, as "NAME", "kube-system";
    }
    "Leader migration" {
        /// Hand controllers over from one kind of controller manager to another, such as kube-controller-manager, so that each is
        /// run by one of them at any time: they run under a second Lease that all of these managers contend for. The others run
        /// under the first one, as ever. Needs --leader-elect.
        ENABLE_LEADER_MIGRATION = "enable-leader-migration": Bool, "false";

        /// With --enable-leader-migration: the file that says which controllers, by which component each is run, and what the
        /// second Lease is called (a LeaderMigrationConfiguration of controllermanager.config.k8s.io/v1, v1beta1 or v1alpha1).
        /// Without it: service, route and cloud-node-lifecycle, any, and cloud-provider-extraction-migration.
        LEADER_MIGRATION_CONFIG = "leader-migration-config": File, "";
    }
    "Nodes" {
        /// How many nodes are initialised at once (elsewhere 1). It bounds requests to the API server; the cloud is asked for
        /// hundreds of nodes at once anyway.
        CONCURRENT_NODE_SYNCS = "concurrent-node-syncs": Number(0), "32";

        /// How many nodes the periodic comparison with the cloud patches at once; 0 for as many as --concurrent-node-syncs.
        CONCURRENT_NODE_STATUS_UPDATES = "concurrent-node-status-updates": Number(0), "0";

        /// Let the periodic comparison also change zone and region of nodes that are initialised already. Volumes are bound to
        /// them, so that otherwise a difference is only reported, as an event and in a metric.
        REFRESH_TOPOLOGY_LABELS = "refresh-topology-labels": Bool, "false";
    }
    "Node lifecycle" {
        /// How often the cloud is asked about nodes that are not ready: does the machine still exist, is it shut down? A duration.
        /// All of them together cost one question to the cloud.
        NODE_MONITOR_PERIOD = "node-monitor-period": Period, "5s";

        /// A node younger than this is never deleted: its machine may not be known everywhere in the cloud yet. A duration.
        NODE_DELETION_GRACE = "node-deletion-grace": Duration, "2m";

        /// A node is deleted when two answers of the cloud, this long apart, say that its machine does not exist. A duration.
        NODE_DELETION_CONFIRM = "node-deletion-confirm": Period, "10s";

        /// If more than this share of all nodes seem gone (and more than three), they are deleted slowly, one a minute: it may
        /// well be a mistake. A number from 0 to 1, or with a % sign.
        NODE_DELETION_SHARE = "node-deletion-share": Text, as "SHARE", "0.25";

        /// How many nodes are asked about at once.
        CONCURRENT_NODE_LIFECYCLE_SYNCS = "concurrent-node-lifecycle-syncs": Number(1), "1", NoEffect("the cloud is asked about all of them together");
    }
    "Services" {
        /// How many load balancers are worked on at once (elsewhere 1). One that waits for the cloud does not count.
        CONCURRENT_SERVICE_SYNCS = "concurrent-service-syncs": Number(0), "8";

        /// How often load balancers are compared with the cloud though nothing has changed here, to mend what was changed there.
        /// A duration, varied a little; 0 for never. It costs few requests, and changes by users come first.
        SERVICE_DRIFT_PERIOD = "service-drift-period": Duration, "1h";

        /// Delete load balancers that carry this cluster's ownership tag and its --cluster-name when their Service has not existed
        /// for an hour. Without this flag they are only reported. More than three are deleted one a minute; a restart and a
        /// listing in which Services vanished begin the hour again. Never set it in a cluster that was cloned or restored from a
        /// snapshot: such a cluster has the ownership tag of the original, whose load balancers it would delete.
        DELETE_ORPHANED_LOAD_BALANCERS = "delete-orphaned-load-balancers": Bool, "false";
    }
    "Routes" {
        /// Keep routes in the cloud to the pods of each node (spec.podCIDRs), if the cloud provider's config says where. Else,
        /// or with false, no route is touched, and no node's condition NetworkUnavailable.
        CONFIGURE_CLOUD_ROUTES = "configure-cloud-routes": Bool, "true";

        /// The network of all pods, such as 10.244.0.0/16; two of them, separated by a comma, with IPv4 and IPv6. Routes are
        /// created and deleted only inside it: a route there that leads to no node is deleted. Needed where routes are created;
        /// without it the route controller reports that and does nothing, and the other controllers run.
        CLUSTER_CIDR = "cluster-cidr": Text, "";

        /// How often routes are compared with the cloud though no node has changed, to mend what was changed there (elsewhere
        /// 10s; here 5m unless it is set). A duration. What failed is tried again by itself.
        ROUTE_RECONCILIATION_PERIOD = "route-reconciliation-period": Period, "";

        /// Give each node addresses for its pods.
        ALLOCATE_NODE_CIDRS = "allocate-node-cidrs": Bool, "false", NoEffect("kube-controller-manager or the pod network does that");

        /// How each node is given addresses for its pods.
        CIDR_ALLOCATOR_TYPE = "cidr-allocator-type": Text, "RangeAllocator", NoEffect("kube-controller-manager or the pod network does that");
    }
    "Misc" {
        /// The kubeconfig file with the API server and the credentials for it, which are taken over while running when they
        /// change. With neither this nor --master: the service account of the pod. The environment variable KUBECONFIG is not
        /// read.
        KUBECONFIG = "kubeconfig": File, "";

        /// The URL of the API server, in place of the one in the kubeconfig file.
        MASTER = "master": Text, as "URL", "";

        /// How often all nodes are compared with the cloud: addresses, type, labels. A duration.
        NODE_STATUS_UPDATE_FREQUENCY = "node-status-update-frequency": Period, "5m";

        /// How long work in progress may take after SIGTERM or SIGINT before it is cut off. A duration. A second signal cuts it
        /// off at once.
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

        /// The IP address of the HTTPS server. 0.0.0.0 and :: stand for all interfaces and for IPv4 and IPv6 alike.
        BIND_ADDRESS = "bind-address": Address, "0.0.0.0";

        /// The file with the HTTPS server's certificate (PEM; intermediate certificates after it). Read again when it changes.
        /// Without it a self-signed certificate is created.
        TLS_CERT_FILE = "tls-cert-file": File, "";

        /// The file with the private key of --tls-cert-file (PEM).
        TLS_PRIVATE_KEY_FILE = "tls-private-key-file": File, "";

        /// The folder where the self-signed certificate is kept, as cloud-controller-manager.crt and .key, and used again after
        /// a restart. Without it the certificate lives in memory. No effect with --tls-cert-file.
        CERT_DIR = "cert-dir": Text, as "FOLDER", "";

        /// A further certificate and its key, and after a colon the names that it is for, separated by commas, *. in front for
        /// all names one level below; without names those in the certificate. Clients that ask for such a name get it. Read
        /// again when it changes. May be repeated.
        TLS_SNI_CERT_KEY = "tls-sni-cert-key": Array("CERT,KEY[:NAMES]"), "";

        /// The oldest version of TLS that is spoken: VersionTLS12 or VersionTLS13. Unless given, TLS 1.2. Older ones are not
        /// spoken; they are accepted here with a warning.
        TLS_MIN_VERSION = "tls-min-version": Text, as "VERSION", "";

        /// The cipher suites for TLS 1.2, by their usual names; those of TLS 1.3 are always offered. Unless given, all that are
        /// safe. Weak ones are left out with a warning.
        TLS_CIPHER_SUITES = "tls-cipher-suites": List, "";

        /// The key exchange methods, by number: 23 (P-256), 24 (P-384), 29 (X25519), 4587 and 4588 (with ML-KEM). Unless given,
        /// the usual ones.
        TLS_CURVE_PREFERENCES = "tls-curve-preferences": Numbers, "";

        /// Speak HTTP/1.1 only.
        DISABLE_HTTP2_SERVING = "disable-http2-serving": Bool, "false";

        /// How many HTTP/2 requests may run at once on one connection; 0 for 32.
        HTTP2_MAX_STREAMS_PER_CONNECTION = "http2-max-streams-per-connection": Number(0), "0";

        /// Let other processes listen on the same port, too; each gets a part of the connections (SO_REUSEPORT).
        PERMIT_PORT_SHARING = "permit-port-sharing": Bool, "false";

        /// Listen on a port that old connections are still bound to (SO_REUSEADDR). That is always so: a restart would have to
        /// wait otherwise.
        PERMIT_ADDRESS_SHARING = "permit-address-sharing": Bool, "false";
    }
    "Authentication" {
        /// The kubeconfig file with which the API server is asked who a client is. Without it: the service account of the pod;
        /// outside of a pod what --kubeconfig and --master say. The right to create tokenreviews is needed
        /// (system:auth-delegator).
        AUTHENTICATION_KUBECONFIG = "authentication-kubeconfig": File, "";

        /// How long the API server's answer about a token is remembered. 0 to ask every time.
        AUTHENTICATION_TOKEN_WEBHOOK_CACHE_TTL = "authentication-token-webhook-cache-ttl": Duration, "10s";

        /// Do not read the cluster's client CA (the ConfigMap extension-apiserver-authentication in kube-system). Tokens are
        /// still reviewed.
        AUTHENTICATION_SKIP_LOOKUP = "authentication-skip-lookup": Bool, "false";

        /// Continue if the cluster refuses to give its client CA: client certificates are then verified by the file below only.
        /// Otherwise the refusal ends the program.
        AUTHENTICATION_TOLERATE_LOOKUP_FAILURE = "authentication-tolerate-lookup-failure": Bool, "false";

        /// The authorities (PEM) that verify client certificates: the common name is the user, the organizations are the groups.
        /// It replaces the cluster's client CA. It is read again when it changes.
        CLIENT_CA_FILE = "client-ca-file": File, "";

        /// The authorities (PEM) of front proxies, which name a client in headers.
        REQUESTHEADER_CLIENT_CA_FILE = "requestheader-client-ca-file": File, "", NoEffect(NO_FRONT_PROXY);

        /// The common names of front proxies.
        REQUESTHEADER_ALLOWED_NAMES = "requestheader-allowed-names": List, "", NoEffect(NO_FRONT_PROXY);

        /// The headers with the name of a client.
        REQUESTHEADER_USERNAME_HEADERS = "requestheader-username-headers": List, "x-remote-user", NoEffect(NO_FRONT_PROXY);

        /// The headers with the groups of a client.
        REQUESTHEADER_GROUP_HEADERS = "requestheader-group-headers": List, "x-remote-group", NoEffect(NO_FRONT_PROXY);

        /// The headers with the UID of a client.
        REQUESTHEADER_UID_HEADERS = "requestheader-uid-headers": List, "", NoEffect(NO_FRONT_PROXY);

        /// The prefixes of headers with more about a client.
        REQUESTHEADER_EXTRA_HEADERS_PREFIX = "requestheader-extra-headers-prefix": List, "x-remote-extra-", NoEffect(NO_FRONT_PROXY);
    }
    "Authorization" {
        /// The kubeconfig file with which the API server is asked what a client may read; without it as for
        /// --authentication-kubeconfig. The right to create subjectaccessreviews is needed (system:auth-delegator).
        AUTHORIZATION_KUBECONFIG = "authorization-kubeconfig": File, "";

        /// How long a yes is remembered. 0 to ask every time.
        AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL = "authorization-webhook-cache-authorized-ttl": Duration, "10s";

        /// How long a no is remembered. 0 to ask every time.
        AUTHORIZATION_WEBHOOK_CACHE_UNAUTHORIZED_TTL = "authorization-webhook-cache-unauthorized-ttl": Duration, "10s";

        /// The paths of the HTTPS server that are served to everybody, without asking who it is; a * at the end stands for
        /// anything, and a health endpoint includes its single checks. With /metrics in the list everybody who reaches the port
        /// can read the metrics.
        AUTHORIZATION_ALWAYS_ALLOW_PATHS = "authorization-always-allow-paths": List, "/healthz,/readyz,/livez";
    }
    "Webhooks" {
        /// Which admission webhooks are served, written as for --controllers. Not there yet: there is none that could be
        /// named.
        WEBHOOKS = "webhooks": List, "";

        /// The port of the webhooks' HTTPS server. 0 for no server at all. No effect yet: there are no webhooks.
        WEBHOOK_SECURE_PORT = "webhook-secure-port": Text, as "PORT", "10260";

        /// The IP address of the webhooks' HTTPS server.
        WEBHOOK_BIND_ADDRESS = "webhook-bind-address": Address, "0.0.0.0", NoEffectYet(NO_WEBHOOKS);

        /// The folder of its self-signed certificate.
        WEBHOOK_CERT_DIR = "webhook-cert-dir": File, "", NoEffectYet(NO_WEBHOOKS);

        /// The file with its certificate.
        WEBHOOK_TLS_CERT_FILE = "webhook-tls-cert-file": File, "", NoEffectYet(NO_WEBHOOKS);

        /// The file with its private key.
        WEBHOOK_TLS_PRIVATE_KEY_FILE = "webhook-tls-private-key-file": File, "", NoEffectYet(NO_WEBHOOKS);

        /// Its certificates for other names.
        WEBHOOK_TLS_SNI_CERT_KEY = "webhook-tls-sni-cert-key": Array("CERT,KEY[:NAMES]"), "", NoEffectYet(NO_WEBHOOKS);

        /// The oldest version of TLS that it speaks.
        WEBHOOK_TLS_MIN_VERSION = "webhook-tls-min-version": Text, "", NoEffectYet(NO_WEBHOOKS);

        /// Its cipher suites.
        WEBHOOK_TLS_CIPHER_SUITES = "webhook-tls-cipher-suites": List, "", NoEffectYet(NO_WEBHOOKS);

        /// Its key exchange methods.
        WEBHOOK_TLS_CURVE_PREFERENCES = "webhook-tls-curve-preferences": Numbers, "", NoEffectYet(NO_WEBHOOKS);

        /// Do not speak HTTP/2 there.
        WEBHOOK_DISABLE_HTTP2_SERVING = "webhook-disable-http2-serving": Bool, "false", NoEffectYet(NO_WEBHOOKS);
    }
    "Logs" {
        /// How much is logged, on standard error. 0: changes of state, and what went wrong. 2: the same of the libraries, too.
        /// 4: why things were done or left alone, retries, all flags at start. 6: requests to the API server and to the cloud,
        /// without their bodies. 8: everything. Secrets are never logged.
        VERBOSITY = "v": Text, as "LEVEL", "0";

        /// How much parts of the program log, as pattern=LEVEL, separated by commas; the first that matches counts. A pattern
        /// stands for the last part of a module's name (refresh=6), or with :: or / in it for the whole name
        /// (ccm_core::client::*=6); * and ? stand for any characters. -v=4 prints these names.
        VMODULE = "vmodule": Array("PATTERNS"), "";

        /// The form of the log: text or json.
        LOGGING_FORMAT = "logging-format": Text, as "FORMAT", "text";

        /// How long a line may wait before it is written.
        LOG_FLUSH_FREQUENCY = "log-flush-frequency": Period, "5s", Moot("no line waits");

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

        /// Print the version; =raw with details. =vX.Y.Z runs the program and makes it report that version.
        VERSION = "version": Text, as "FORM", "false", HiddenDefault;

        /// Print the cloud providers that are compiled into this binary.
        LIST_PROVIDERS = "list-providers": Bool, "false", HiddenDefault;

        /// Print what may stand in the config file of --cloud-provider, or of all compiled in.
        HELP_CLOUD_CONFIG = "help-cloud-config": Bool, "false", HiddenDefault;

        /// Print all metrics with their types, labels and meanings.
        HELP_METRICS = "help-metrics": Bool, "false", HiddenDefault;
    }
}

impl Flag {
    /// The flag for clap.
    pub(super) fn arg(&self) -> Arg {
        // As clap ends them.
        let meaning = self.def.help.trim().trim_end_matches('.');
        let help = match self.status {
            Status::Works | Status::HiddenDefault | Status::NoDefault => meaning.to_owned(),
            Status::NotYet(why) => format!("{meaning}. Not there yet: {why}"),
            Status::NoEffectYet(why) => format!("{meaning}. No effect yet: {why}"),
            Status::NoEffect(why) | Status::Moot(why) => format!("{meaning}. No effect: {why}"),
            Status::Deprecated(why) => format!("{meaning}. Deprecated: {why}"),
        };
        let mut arg = arg(&self.def, self.section, help);
        if let Some(name) = self.value_name {
            arg = arg.value_name(name);
        }
        match self.status {
            Status::HiddenDefault => arg = arg.hide_default_value(true),
            Status::NoDefault => arg = arg.default_value(clap::builder::Resettable::Reset),
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

    /// Whether it does nothing here but is accepted.
    pub(super) fn is_accepted_only(&self) -> bool {
        !matches!(
            self.status,
            Status::Works | Status::HiddenDefault | Status::NoDefault
        )
    }

    /// Checks the values of a flag that is only accepted.
    fn judge(&self, values: &[String], reader: &mut Reader) {
        if let Err(message) = self.def.check(values) {
            return reader.refuse(message);
        }
        let FlagDef { name, kind, .. } = self.def;
        let flag = format!("--{name}={}", values.join(","));
        match self.status {
            Status::Deprecated(why) => reader.warn(format!("deprecated: --{name}: {why}")),
            Status::NotYet(why) if self.def.is_default(values) => {
                // Only a boolean can have a default that asks for something.
                if self.def.default == "true" {
                    reader.warn(format!("{flag}: not there yet: {why}"));
                }
            }
            Status::NotYet(_) if self.is_off(values) => {}
            Status::NotYet(why) => {
                let instead = match kind {
                    FlagKind::Bool => format!("leave it out or write --{name}=false"),
                    _ => "leave it out".to_owned(),
                };
                reader.refuse(format!("{flag}: not there yet: {why}; {instead}"));
            }
            _ if self.def.is_default(values) => {}
            Status::NoEffectYet(why) => reader.warn(format!("{flag} has no effect yet: {why}")),
            Status::NoEffect(why) => reader.warn(format!("{flag} has no effect: {why}")),
            Status::Moot(_) | Status::Works | Status::HiddenDefault | Status::NoDefault => {}
        }
    }

    fn is_off(&self, values: &[String]) -> bool {
        match self.def.kind {
            FlagKind::Bool => values
                .last()
                .is_some_and(|value| ccm_core::flags::parse_bool(value) == Ok(false)),
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
        .action(match flag.kind.is_repeated() {
            true => ArgAction::Append,
            false => ArgAction::Set,
        });
    match flag.kind {
        FlagKind::Bool => optional_value(arg),
        _ => arg,
    }
}

/// The value follows a `=`; the flag alone is true.
fn optional_value(arg: Arg) -> Arg {
    arg.num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
}

/// Whether a flag of this name is only accepted.
pub(super) fn accepts(name: &str) -> bool {
    ALL.iter()
        .any(|flag| flag.def.name == name && flag.is_accepted_only())
}

/// Checks all flags that are only accepted. One that the chosen provider defines, too, is that of the provider.
pub(super) fn judge(given: &FlagValues, provider: Option<&Provider>, reader: &mut Reader) {
    let provided = provider.map_or(&[][..], |provider| provider.flags);
    for flag in ALL.iter().filter(|flag| flag.is_accepted_only()) {
        let name = flag.def.name;
        if let Some(values) = given.given(name)
            && provided.iter().all(|flag| flag.name != name)
        {
            flag.judge(values, reader);
        }
    }
}

#[cfg(test)]
#[path = "flags_tests.rs"]
mod tests;
