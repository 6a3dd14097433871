//! Flags of the section "Misc".

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{
    config::{ApiServerConfig, ClientLimit},
    value::{Reader, non_empty},
};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Misc")]
pub(super) struct MiscOptions {
    /// The kubeconfig file with the API server and the credentials for it, which are taken over while running when they
    /// change. With neither this nor --master: the service account of the pod. The environment variable KUBECONFIG is not
    /// read.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    kubeconfig: String,

    /// The URL of the API server, in place of the one in the kubeconfig file.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    master: String,

    /// How often all nodes are compared with the cloud: addresses, type, labels. A duration.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    node_status_update_frequency: String,

    /// How long work in progress may take after SIGTERM or SIGINT before it is cut off. A duration. A second signal cuts it
    /// off at once.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    shutdown_drain: String,
}

impl MiscOptions {
    pub(super) fn api_server(&self, limit: Option<ClientLimit>, reader: &mut Reader) -> ApiServerConfig {
        let master = non_empty(&self.master).and_then(|text| {
            let url = read_url(text);
            if url.is_none() {
                reader.refuse(format!(
                    "--master: invalid value {text:?}: write a URL such as https://10.0.0.1:6443"
                ));
            }
            url
        });
        ApiServerConfig {
            kubeconfig: non_empty(&self.kubeconfig).map(PathBuf::from),
            master,
            limit,
        }
    }

    pub(super) fn node_status_update_frequency(&self, reader: &mut Reader) -> Duration {
        reader.positive_duration("node-status-update-frequency", &self.node_status_update_frequency)
    }

    pub(super) fn shutdown_drain(&self, reader: &mut Reader) -> Duration {
        reader.duration("shutdown-drain", &self.shutdown_drain)
    }
}

/// Without a scheme it is `http`, as in Go's client.
fn read_url(text: &str) -> Option<http::Uri> {
    let text = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let url: http::Uri = text.parse().ok()?;
    (matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some_and(|host| !host.is_empty()))
        .then_some(url)
}
