//! Flags of the sections "Authentication" and "Authorization": who a client of the HTTPS server is, and what it may see.

use std::path::PathBuf;

use clap::{ArgAction::Append, Args};
use http::HeaderName;

use super::{
    config::{AccessConfig, ProxyConfig, ProxyHeaders},
    value::{Reader, non_empty},
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authentication")]
pub(super) struct AuthenticationOptions {
    /// The kubeconfig file with which the API server is asked who a client is. Without it: the service account of the pod;
    /// outside of a pod what --kubeconfig and --master say. The right to create tokenreviews is needed
    /// (system:auth-delegator).
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    authentication_kubeconfig: String,

    /// How long the API server's answer about a token is remembered. 0 to ask every time.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    authentication_token_webhook_cache_ttl: String,

    /// Do not read from the cluster (the ConfigMap extension-apiserver-authentication in kube-system) which authorities
    /// vouch for clients and proxies. Tokens are asked about all the same.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    authentication_skip_lookup: String,

    /// Go on if the cluster does not permit that: certificates of clients are then only known from the files below. Else
    /// this ends the program.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    authentication_tolerate_lookup_failure: String,

    /// The authorities (PEM) whose certificates identify a client: the common name is the user, organizations are groups.
    /// Instead of those that the cluster names. Read again when it changes.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    client_ca_file: String,

    /// The authorities (PEM) of proxies that may name a client in headers. With it, this and the next flags count instead
    /// of what the cluster says. Read again when it changes.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    requestheader_client_ca_file: String,

    /// The common names of such proxies; empty for any.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, action = Append)]
    requestheader_allowed_names: Vec<String>,

    /// The headers with the name of a client; the first that is there counts.
    #[arg(long, value_name = "LIST", default_value = "x-remote-user", action = Append)]
    requestheader_username_headers: Vec<String>,

    /// The headers with the groups of a client.
    #[arg(long, value_name = "LIST", default_value = "x-remote-group", action = Append)]
    requestheader_group_headers: Vec<String>,

    /// The headers with the UID of a client.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, action = Append)]
    requestheader_uid_headers: Vec<String>,

    /// What the names of headers with more about a client begin with.
    #[arg(long, value_name = "LIST", default_value = "x-remote-extra-", action = Append)]
    requestheader_extra_headers_prefix: Vec<String>,
}

impl AuthenticationOptions {
    pub(super) fn complete(&self, reader: &mut Reader) -> AccessConfig {
        let headers = ProxyHeaders {
            allowed_names: names(
                "requestheader-allowed-names",
                &self.requestheader_allowed_names,
                reader,
            ),
            user: headers(
                "requestheader-username-headers",
                &self.requestheader_username_headers,
                reader,
            ),
            uid: headers(
                "requestheader-uid-headers",
                &self.requestheader_uid_headers,
                reader,
            ),
            groups: headers(
                "requestheader-group-headers",
                &self.requestheader_group_headers,
                reader,
            ),
            extra_prefixes: headers(
                "requestheader-extra-headers-prefix",
                &self.requestheader_extra_headers_prefix,
                reader,
            ),
        };
        let proxies = file(&self.requestheader_client_ca_file);
        if proxies.is_some() && headers.user.is_empty() {
            reader.refuse(
                "--requestheader-client-ca-file is given, but --requestheader-username-headers is empty: no proxy could \
                 name a client",
            );
        }
        AccessConfig {
            authentication_kubeconfig: file(&self.authentication_kubeconfig),
            token_ttl: reader.duration(
                "authentication-token-webhook-cache-ttl",
                &self.authentication_token_webhook_cache_ttl,
            ),
            skip_lookup: reader.boolean("authentication-skip-lookup", &self.authentication_skip_lookup),
            tolerate_lookup_failure: reader.boolean(
                "authentication-tolerate-lookup-failure",
                &self.authentication_tolerate_lookup_failure,
            ),
            client_authorities: file(&self.client_ca_file),
            proxies: proxies.map(|authorities| ProxyConfig { authorities, headers }),
            ..AccessConfig::default()
        }
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authorization")]
pub(super) struct AuthorizationOptions {
    /// The kubeconfig file with which the API server is asked what a client may read; without it as for
    /// --authentication-kubeconfig. The right to create subjectaccessreviews is needed (system:auth-delegator).
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    authorization_kubeconfig: String,

    /// How long a yes is remembered. 0 to ask every time.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    authorization_webhook_cache_authorized_ttl: String,

    /// How long a no is remembered. 0 to ask every time.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    authorization_webhook_cache_unauthorized_ttl: String,

    /// The paths of the HTTPS server that are served to everybody, without asking who it is; a * at the end stands for
    /// anything, and a health endpoint includes its single checks. With /metrics in the list everybody who reaches the port
    /// can read the metrics.
    #[arg(
        long,
        value_name = "LIST",
        default_value = "/healthz,/readyz,/livez",
        action = Append
    )]
    authorization_always_allow_paths: Vec<String>,
}

impl AuthorizationOptions {
    pub(super) fn complete(&self, access: &mut AccessConfig, reader: &mut Reader) {
        access.authorization_kubeconfig = file(&self.authorization_kubeconfig);
        access.allowed_ttl = reader.duration(
            "authorization-webhook-cache-authorized-ttl",
            &self.authorization_webhook_cache_authorized_ttl,
        );
        access.denied_ttl = reader.duration(
            "authorization-webhook-cache-unauthorized-ttl",
            &self.authorization_webhook_cache_unauthorized_ttl,
        );
        access.open_paths = reader.list(
            "authorization-always-allow-paths",
            &self.authorization_always_allow_paths,
        );
    }
}

fn file(value: &str) -> Option<PathBuf> {
    non_empty(value).map(PathBuf::from)
}

/// A list without empty items.
fn names(flag: &str, values: &[String], reader: &mut Reader) -> Vec<String> {
    let items = reader.list(flag, values);
    if items.iter().any(|item| item.trim().is_empty()) {
        reader.refuse(format!("--{flag}: empty value in {flag:?}"));
    }
    items
}

/// A list of names of headers, or of beginnings of such.
fn headers(flag: &str, values: &[String], reader: &mut Reader) -> Vec<String> {
    let items = names(flag, values, reader);
    for item in items.iter().filter(|item| !item.trim().is_empty()) {
        if HeaderName::from_bytes(item.as_bytes()).is_err() {
            reader.refuse(format!(
                "--{flag}: {item:?} can not be the name of an HTTP header"
            ));
        }
    }
    items
}
