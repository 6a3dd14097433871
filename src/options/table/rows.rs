//! The table. In every row: section, name, type, default, what it is for, and what becomes of it here.

use ccm_core::{
    FlagDef,
    FlagKind::{self, Address, Array, Bool, Duration, File, List, Number, Numbers, Period, Text},
};

use super::{
    Row,
    Status::{self, Deprecated, Moot, NoEffect, NoEffectYet, NotYet},
};

const fn row(
    section: &'static str,
    name: &'static str,
    kind: FlagKind,
    default: &'static str,
    help: &'static str,
    status: Status,
) -> Row {
    let flag = FlagDef {
        name,
        kind,
        default,
        help,
    };
    Row {
        section,
        flag,
        status,
    }
}

const GENERIC: &str = "Generic";
const AUTHENTICATION: &str = "Authentication";
const LIFECYCLE: &str = "Node lifecycle";
const ROUTES: &str = "Routes";
const DEBUGGING: &str = "Debugging";
const WEBHOOKS: &str = "Webhooks";
const LOGS: &str = "Logs";

const NO_FRONT_PROXY: &str =
    "clients authenticate themselves; only aggregated API servers need a front proxy";
const NO_WEBHOOKS: &str = "there are no webhooks";
const ONE_STREAM: &str = "every line goes to standard error at once";

pub(super) const ROWS: &[Row] = &[
    row(
        GENERIC,
        "min-resync-period",
        Duration,
        "12h",
        "How often everything is handled again as if it had changed, at least",
        NoEffect("each controller compares with the cloud in its own rhythm"),
    ),
    row(
        GENERIC,
        "controller-start-interval",
        Duration,
        "0s",
        "The pause between the starts of two controllers",
        NoEffect("they share one listing of the cluster, so that starting them together costs nothing"),
    ),
    row(
        GENERIC,
        "external-cloud-volume-plugin",
        Text,
        "",
        "The plugin for volumes of the cloud",
        NoEffect("volumes are handled by CSI drivers"),
    ),
    row(
        GENERIC,
        "allow-untagged-cloud",
        Bool,
        "false",
        "Start even if the cloud does not know the cluster by an ID",
        Deprecated("it has no effect, no ID is required"),
    ),
    row(
        GENERIC,
        "node-sync-period",
        Duration,
        "0s",
        "Once, how often nodes were handled",
        Deprecated(
            "it has no effect; --node-status-update-frequency says how often nodes are compared with the cloud",
        ),
    ),
    row(
        AUTHENTICATION,
        "requestheader-client-ca-file",
        File,
        "",
        "The authorities (PEM) of front proxies, which name a client in headers",
        NoEffect(NO_FRONT_PROXY),
    ),
    row(
        AUTHENTICATION,
        "requestheader-allowed-names",
        List,
        "",
        "The common names of front proxies",
        NoEffect(NO_FRONT_PROXY),
    ),
    row(
        AUTHENTICATION,
        "requestheader-username-headers",
        List,
        "x-remote-user",
        "The headers with the name of a client",
        NoEffect(NO_FRONT_PROXY),
    ),
    row(
        AUTHENTICATION,
        "requestheader-group-headers",
        List,
        "x-remote-group",
        "The headers with the groups of a client",
        NoEffect(NO_FRONT_PROXY),
    ),
    row(
        AUTHENTICATION,
        "requestheader-uid-headers",
        List,
        "",
        "The headers with the UID of a client",
        NoEffect(NO_FRONT_PROXY),
    ),
    row(
        AUTHENTICATION,
        "requestheader-extra-headers-prefix",
        List,
        "x-remote-extra-",
        "The prefixes of headers with more about a client",
        NoEffect(NO_FRONT_PROXY),
    ),
    row(
        LIFECYCLE,
        "concurrent-node-lifecycle-syncs",
        Number(1),
        "1",
        "How many nodes are asked about at once",
        NoEffect("the cloud is asked about all of them together"),
    ),
    row(
        ROUTES,
        "allocate-node-cidrs",
        Bool,
        "false",
        "Give each node addresses for its pods",
        NoEffect("kube-controller-manager or the pod network does that"),
    ),
    row(
        ROUTES,
        "cidr-allocator-type",
        Text,
        "RangeAllocator",
        "How each node is given addresses for its pods",
        NoEffect("kube-controller-manager or the pod network does that"),
    ),
    row(
        DEBUGGING,
        "profiling",
        Bool,
        "true",
        "Serve profiles of the running program below /debug/pprof/",
        NotYet("nothing is served there"),
    ),
    row(
        DEBUGGING,
        "contention-profiling",
        Bool,
        "false",
        "Also measure where the program waits for locks",
        NotYet("no profiles are served"),
    ),
    row(
        WEBHOOKS,
        "webhook-bind-address",
        Address,
        "0.0.0.0",
        "The IP address of the webhooks' HTTPS server",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        WEBHOOKS,
        "webhook-cert-dir",
        File,
        "",
        "The folder of its self-signed certificate",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        WEBHOOKS,
        "webhook-tls-cert-file",
        File,
        "",
        "The file with its certificate",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        WEBHOOKS,
        "webhook-tls-private-key-file",
        File,
        "",
        "The file with its private key",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        WEBHOOKS,
        "webhook-tls-sni-cert-key",
        Array("CERT,KEY[:NAMES]"),
        "",
        "Its certificates for other names",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        WEBHOOKS,
        "webhook-tls-min-version",
        Text,
        "",
        "The oldest version of TLS that it speaks",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        WEBHOOKS,
        "webhook-tls-cipher-suites",
        List,
        "",
        "Its cipher suites",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        WEBHOOKS,
        "webhook-tls-curve-preferences",
        Numbers,
        "",
        "Its key exchange methods",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        WEBHOOKS,
        "webhook-disable-http2-serving",
        Bool,
        "false",
        "Do not speak HTTP/2 there",
        NoEffectYet(NO_WEBHOOKS),
    ),
    row(
        LOGS,
        "log-flush-frequency",
        Period,
        "5s",
        "How long a line may wait before it is written",
        Moot("no line waits"),
    ),
    row(
        LOGS,
        "log-text-split-stream",
        Bool,
        "false",
        "With text: errors to standard error, the rest to standard output",
        NotYet(ONE_STREAM),
    ),
    row(
        LOGS,
        "log-text-info-buffer-size",
        Text,
        "0",
        "With text and two streams: how many bytes wait to be written together",
        NotYet(ONE_STREAM),
    ),
    row(
        LOGS,
        "log-json-split-stream",
        Bool,
        "false",
        "With json: errors to standard error, the rest to standard output",
        NotYet(ONE_STREAM),
    ),
    row(
        LOGS,
        "log-json-info-buffer-size",
        Text,
        "0",
        "With json and two streams: how many bytes wait to be written together",
        NotYet(ONE_STREAM),
    ),
];
