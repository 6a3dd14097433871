//! Flags of the section "Generic".

use std::path::PathBuf;

use clap::Args;

use super::{
    config::ClientLimit,
    value::{Reader, non_empty},
};

/// As elsewhere, for a limit without a burst.
const DEFAULT_BURST: u32 = 30;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Generic")]
pub(super) struct GenericOptions {
    /// The cloud. Required. --list-providers says which ones this binary has.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(super) cloud_provider: String,

    /// The provider's config file. --help-cloud-config says what may stand in it. It is checked before anything is
    /// started, and read again until the cloud has accepted what stands in it.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cloud_config: String,

    /// The cluster's name; part of the names of what is created in the cloud.
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub(super) cluster_name: String,

    /// At most so many requests a second to the API server, on average. Unless given, or if not above 0, there is no
    /// limit (elsewhere 20): the API server's priority and fairness rules apply.
    #[arg(long, value_name = "NUMBER")]
    kube_api_qps: Option<String>,

    /// With --kube-api-qps: how many requests may be sent at once after a pause; 30 unless given. Without it, no effect.
    #[arg(long, value_name = "NUMBER")]
    kube_api_burst: Option<String>,

    /// A word to put before this program's own in the User-Agent of requests to the cloud. May be repeated.
    #[arg(long, value_name = "TEXT", action = clap::ArgAction::Append)]
    user_agent: Vec<String>,
}

impl GenericOptions {
    pub(super) fn cloud_config(&self) -> Option<PathBuf> {
        non_empty(&self.cloud_config).map(PathBuf::from)
    }

    pub(super) fn client_limit(&self, reader: &mut Reader) -> Option<ClientLimit> {
        let burst = match &self.kube_api_burst {
            None => Some(DEFAULT_BURST),
            Some(text) => {
                reader
                    .integer("kube-api-burst", text)
                    .and_then(|number| match u32::try_from(number) {
                        Ok(burst) if burst > 0 => Some(burst),
                        _ => {
                            reader.refuse(format!(
                                "--kube-api-burst {number} must be between 1 and {}",
                                u32::MAX
                            ));
                            None
                        }
                    })
            }
        };
        let qps = self
            .kube_api_qps
            .as_ref()
            .and_then(|text| reader.float("kube-api-qps", text));
        Some(ClientLimit {
            qps: qps.filter(|qps| *qps > 0.0)?,
            burst: burst?,
        })
    }

    /// The later a word was given, the earlier it stands, as elsewhere.
    pub(super) fn user_agent(&self, version: &str, reader: &mut Reader) -> String {
        let own = format!("cloud-controller-manager/{version}");
        let words: Vec<_> = self
            .user_agent
            .iter()
            .rev()
            .map(String::as_str)
            .filter(|word| !word.is_empty())
            .collect();
        for word in &words {
            if http::HeaderValue::from_str(word).is_err() {
                reader.refuse(format!("--user-agent: {word:?} can not stand in an HTTP header"));
            }
        }
        words
            .into_iter()
            .chain([own.as_str()])
            .collect::<Vec<_>>()
            .join(" ")
    }
}
