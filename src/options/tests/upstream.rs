//! The flags of the framework that all other cloud-controller-managers are built on, compared with ours.

use clap::{Arg, ArgAction};

use super::*;

/// Name, type, default, and whether it is deprecated: version 1.37 of the framework, as its own flag library prints it.
/// `-` stands for an empty default.
const UPSTREAM: &str = "
allocate-node-cidrs bool false
allow-untagged-cloud bool false deprecated
authentication-kubeconfig string -
authentication-skip-lookup bool false
authentication-token-webhook-cache-ttl duration 10s
authentication-tolerate-lookup-failure bool false
authorization-always-allow-paths list /healthz,/readyz,/livez
authorization-kubeconfig string -
authorization-webhook-cache-authorized-ttl duration 10s
authorization-webhook-cache-unauthorized-ttl duration 10s
bind-address ip 0.0.0.0
cert-dir string -
cidr-allocator-type string RangeAllocator
client-ca-file string -
cloud-config string -
cloud-provider string -
cluster-cidr string -
cluster-name string kubernetes
concurrent-node-lifecycle-syncs number 1
concurrent-node-status-updates number 0
concurrent-node-syncs number 1
concurrent-service-syncs number 1
configure-cloud-routes bool true
contention-profiling bool false
controller-start-interval duration 0s
controllers list *
disable-http2-serving bool false
enable-leader-migration bool false
external-cloud-volume-plugin string -
feature-gates map -
help help -
http2-max-streams-per-connection number 0
kube-api-burst number 30
kube-api-content-type string application/vnd.kubernetes.protobuf
kube-api-qps number 20
kubeconfig string -
leader-elect bool true
leader-elect-lease-duration duration 15s
leader-elect-renew-deadline duration 10s
leader-elect-resource-lock string leases
leader-elect-resource-name string cloud-controller-manager
leader-elect-resource-namespace string kube-system
leader-elect-retry-period duration 2s
leader-migration-config string -
log-flush-frequency duration 5s
log-json-info-buffer-size string 0
log-json-split-stream bool false
log-text-info-buffer-size string 0
log-text-split-stream bool false
logging-format string text
master string -
min-resync-period duration 12h
node-monitor-period duration 5s
node-status-update-frequency duration 5m
node-sync-period duration 0s deprecated
permit-address-sharing bool false
permit-port-sharing bool false
profiling bool true
requestheader-allowed-names list -
requestheader-client-ca-file string -
requestheader-extra-headers-prefix list x-remote-extra-
requestheader-group-headers list x-remote-group
requestheader-uid-headers list -
requestheader-username-headers list x-remote-user
route-reconciliation-period duration 10s
secure-port number 10258
tls-cert-file string -
tls-cipher-suites list -
tls-curve-preferences list -
tls-min-version string -
tls-private-key-file string -
tls-sni-cert-key list -
use-service-account-credentials bool false
v number 0
version version false
vmodule map -
webhook-bind-address ip 0.0.0.0
webhook-cert-dir string -
webhook-disable-http2-serving bool false
webhook-secure-port number 10260
webhook-tls-cert-file string -
webhook-tls-cipher-suites list -
webhook-tls-curve-preferences list -
webhook-tls-min-version string -
webhook-tls-private-key-file string -
webhook-tls-sni-cert-key list -
webhooks list -
";

/// Defaults that differ on purpose; `--help` says so for each.
const OTHER_DEFAULTS: &[(&str, &str)] = &[
    ("concurrent-node-syncs", "32"),
    ("concurrent-service-syncs", "8"),
    ("kube-api-qps", "-"),
    ("route-reconciliation-period", "-"),
];

fn kind(arg: &Arg) -> String {
    let name = arg.get_value_names().and_then(<[_]>::first).map(ToString::to_string).unwrap_or_default();
    let kind = match (arg.get_action(), name.as_str()) {
        (ArgAction::SetTrue, _) => "help",
        (_, "BOOL") if arg.is_require_equals_set() => "bool",
        (_, "FORM") if arg.is_require_equals_set() => "version",
        (ArgAction::Append, "GATES" | "PATTERNS") => "map",
        (ArgAction::Append, _) => "list",
        (_, "DURATION") => "duration",
        (_, "NUMBER" | "PORT" | "LEVEL") => "number",
        (_, "IP") => "ip",
        _ => "string",
    };
    kind.to_owned()
}

fn default(arg: &Arg) -> String {
    let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    match values.join(",") {
        text if text.is_empty() => "-".to_owned(),
        text => text,
    }
}

#[test]
fn every_flag_of_the_framework_is_here_with_its_type_and_default() {
    let command = command(&[]);
    let arg = |name: &str| {
        command
            .get_arguments()
            .find(|arg| arg.get_long() == Some(name))
            .unwrap_or_else(|| panic!("--{name} is missing"))
    };
    for line in UPSTREAM.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (name, type_name, upstream_default, deprecated) = (word(), word(), word(), word());
        let arg = arg(name);
        assert_eq!(kind(arg), type_name, "--{name}");
        let expected = OTHER_DEFAULTS
            .iter()
            .find_map(|(other, value)| (*other == name).then_some(*value))
            .unwrap_or(upstream_default);
        // clap gives a flag without a value one of its own.
        if type_name != "help" {
            assert_eq!(default(arg), expected, "--{name}");
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        assert_eq!(help.contains("Deprecated: "), deprecated == "deprecated", "--{name}: {help}");
        if expected != upstream_default {
            assert!(
                help.contains(&format!("Go cloud-controller-manager: {upstream_default}")),
                "--{name} must name the default of others: {help}"
            );
        }
    }
}

#[test]
fn short_flags_are_those_of_the_framework_and_one_of_plan() {
    let shorts: Vec<_> = command(&[])
        .get_arguments()
        .filter_map(|arg| Some((arg.get_short()?, arg.get_long()?.to_owned())))
        .collect();
    let expected = [('o', "output"), ('v', "v"), ('h', "help")];
    assert_eq!(shorts, expected.map(|(short, long)| (short, long.to_owned())));
}

#[test]
fn every_default_can_be_written_out() {
    for arg in command(&[]).get_arguments() {
        let (Some(name), values) = (arg.get_long(), arg.get_default_values()) else {
            continue;
        };
        if matches!(name, "cloud-provider" | "version") || values.is_empty() {
            continue;
        }
        let values: Vec<_> = values.iter().map(|value| value.to_string_lossy()).collect();
        config(&[&format!("--{name}={}", values.join(","))]);
    }
    // Also those that are only the default elsewhere.
    for (name, _) in OTHER_DEFAULTS {
        let line = UPSTREAM.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        let value = line.split(' ').nth(2).unwrap();
        config(&[&format!("--{name}={value}")]);
    }
}
