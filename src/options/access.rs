//! Flags of the sections "Authentication" and "Authorization": who a client of the HTTPS server is, and what it may see.

use std::path::PathBuf;

use clap::{ArgAction::Append, Args};

use super::{
    config::AccessConfig,
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

    /// Do not read the cluster's client CA (the ConfigMap extension-apiserver-authentication in kube-system). Tokens are
    /// still reviewed.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    authentication_skip_lookup: String,

    /// Continue if the cluster refuses to give its client CA: client certificates are then verified by the file below only.
    /// Otherwise the refusal ends the program.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    authentication_tolerate_lookup_failure: String,

    /// The authorities (PEM) that verify client certificates: the common name is the user, the organizations are the groups.
    /// It replaces the cluster's client CA. It is read again when it changes.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    client_ca_file: String,
}

impl AuthenticationOptions {
    pub(super) fn complete(&self, reader: &mut Reader) -> AccessConfig {
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
