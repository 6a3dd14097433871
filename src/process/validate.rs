//! `validate`: one look at config, cloud and manifests, printed.

use ccm_core::client::Fence;

use super::prepare_to_look;
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
    let config = &request.config;
    let context = prepare_to_look(config, &Fence::standby());
    let report = look(config.provider, context, &request.manifests).await;
    Ok(Validated {
        text: match request.output {
            Output::Text => as_text(&report),
            Output::Json => as_json(&report)?,
        },
        exit_code: report.verdict().exit_code(request.strict),
    })
}
