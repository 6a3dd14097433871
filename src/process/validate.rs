//! `validate`: one look at config, cloud and manifests, printed.

use ccm_core::{
    BuildContext,
    client::{ClientMetrics, Fence},
    plan::PlanMetrics,
};
use prometheus_client::registry::Registry;
use tracing::warn;

use crate::{
    options::{Output, ValidateRequest},
    validate::{as_json, as_text, look},
};

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validated {
    /// To be printed.
    pub text: String,
    /// 0: nothing is wrong, or only warnings. 2: errors, or warnings that count as such. 1: not everything could be found
    /// out.
    pub exit_code: u8,
}

/// Says what is wrong with what [`run`](crate::run) would be started with, and with manifests of Services. Asks the cloud,
/// but no cluster, and writes nothing.
///
/// # Errors
/// If the result can not be put into words.
pub async fn validate(request: &ValidateRequest) -> anyhow::Result<Validated> {
    // As for a process that runs; someone else may have chosen another one before.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = &request.config;
    for warning in &config.warnings {
        warn!(warning, "Command line");
    }
    let mut registry = Registry::default();
    let context = BuildContext {
        cloud_config: config.cloud_config.clone(),
        cluster_name: config.cluster_name.clone(),
        user_agent: config.user_agent.clone(),
        metrics: ClientMetrics::register(&mut registry),
        plan: PlanMetrics::register(&mut registry),
        // Never opened: whatever is tried, nothing is written.
        fences: Fence::standby().into(),
    };
    let report = look(config.provider, context, &request.manifests).await;
    Ok(Validated {
        text: match request.output {
            Output::Text => as_text(&report),
            Output::Json => as_json(&report)?,
        },
        exit_code: report.verdict().exit_code(request.strict),
    })
}
