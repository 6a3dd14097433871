//! Flags of the section "Generic".

use std::path::PathBuf;

use clap::Args;

use super::{
    config::{ClientLimit, Controllers},
    gates,
    selection::Known,
    value::{Reader, non_empty},
};

/// What may be asked for; we speak the first in either case.
const CONTENT_TYPES: [&str; 2] = ["application/json", "application/vnd.kubernetes.protobuf"];

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Generic")]
pub(super) struct GenericOptions {
    /// The cloud. By default the one in the program's own name, such as openstack-cloud-controller-manager, else the only one
    /// that this binary has. --list-providers says which ones it has.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(super) cloud_provider: String,

    /// The provider's config file. --help-cloud-config says what may stand in it. It is checked before anything is
    /// started, and read again until the cloud has accepted what stands in it.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cloud_config: String,

    /// The cluster's name; part of the names of what is created in the cloud.
    #[arg(long, value_name = "NAME", default_value = "kubernetes")]
    pub(super) cluster_name: String,

    /// Which controllers run: * for all, a name for one, a name with - in front for all but one. The first that mentions a
    /// controller counts.
    #[arg(long, value_name = "LIST", default_value = "*", action = clap::ArgAction::Append)]
    controllers: Vec<String>,

    /// Switches of unfinished features, as name=true or name=false, separated by commas. Those that are known elsewhere are
    /// known here; one that asks for something missing is refused.
    #[arg(long, value_name = "GATES", action = clap::ArgAction::Append)]
    feature_gates: Vec<String>,

    /// The form of requests to the API server. Both application/json and application/vnd.kubernetes.protobuf are accepted,
    /// and JSON is spoken in either case.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "application/vnd.kubernetes.protobuf"
    )]
    kube_api_content_type: String,

    /// At most so many requests a second to the API server, on average. Unless given, or if not above 0, there is no
    /// limit (elsewhere 20): the API server's priority and fairness rules apply.
    #[arg(long, value_name = "NUMBER")]
    kube_api_qps: Option<String>,

    /// With --kube-api-qps: how many requests may be sent at once after a pause. Without it, no effect.
    #[arg(long, value_name = "NUMBER", default_value = "30")]
    kube_api_burst: String,

    /// Let controllers act as service accounts of their own, kube-system/node-controller, service-controller and
    /// route-controller, which every cluster has roles for. They are made if missing; the account of this process needs the
    /// rights of deploy/service-accounts. Without it all act as the account of this process.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    use_service_account_credentials: String,

    /// A word to put before this program's own in the User-Agent of requests to the cloud. May be repeated.
    #[arg(long, value_name = "TEXT", action = clap::ArgAction::Append)]
    user_agent: Vec<String>,
}

impl GenericOptions {
    pub(super) fn cloud_config(&self) -> Option<PathBuf> {
        non_empty(&self.cloud_config).map(PathBuf::from)
    }

    pub(super) fn client_limit(&self, reader: &mut Reader) -> Option<ClientLimit> {
        let burst = reader
            .integer("kube-api-burst", &self.kube_api_burst)
            .and_then(|number| match u32::try_from(number) {
                Ok(burst) if burst > 0 => Some(burst),
                _ => {
                    reader.refuse(format!(
                        "--kube-api-burst {number} must be between 1 and {}",
                        u32::MAX
                    ));
                    None
                }
            });
        let qps = self
            .kube_api_qps
            .as_ref()
            .and_then(|text| reader.float("kube-api-qps", text));
        Some(ClientLimit {
            qps: qps.filter(|qps| *qps > 0.0)?,
            burst: burst?,
        })
    }

    pub(super) fn controllers(&self, known: &Known, reader: &mut Reader) -> Controllers {
        let items = reader.list("controllers", &self.controllers);
        known.select(&items, reader)
    }

    pub(super) fn service_accounts(&self, reader: &mut Reader) -> bool {
        reader.boolean(
            "use-service-account-credentials",
            &self.use_service_account_credentials,
        )
    }

    pub(super) fn check_gates(&self, reader: &mut Reader) {
        gates::check(&self.feature_gates, reader);
    }

    pub(super) fn check_content_type(&self, reader: &mut Reader) {
        let value = self.kube_api_content_type.as_str();
        if !CONTENT_TYPES.contains(&value) {
            reader.invalid(
                "kube-api-content-type",
                value,
                format!("write {}", CONTENT_TYPES.join(" or ")),
            );
        }
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
