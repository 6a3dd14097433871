//! `validate`: one look at config, cloud and manifests, printed.

use ccm_core::client::Fence;

use super::{Printed, prepare_to_look};
use crate::{
    options::{Output, ValidateRequest},
    validate::{as_json, as_text, look},
};

/// Checks the config of [`run`](crate::run), and manifests of Services. Sends requests to the cloud, none to a cluster, and
/// writes nothing.
///
/// Exit codes: 0 for nothing wrong or only warnings, 2 for errors or for warnings that count as such, 1 if the answer is
/// incomplete.
///
/// # Errors
/// The result cannot be printed.
pub async fn validate(request: &ValidateRequest) -> anyhow::Result<Printed> {
    let config = &request.config;
    let context = prepare_to_look(config, &Fence::standby());
    let report = look(config.provider, context, &request.manifests).await;
    Ok(Printed {
        text: match request.output {
            Output::Text => as_text(&report),
            Output::Json => as_json(&report)?,
        },
        exit_code: report.verdict().exit_code(request.strict),
    })
}
