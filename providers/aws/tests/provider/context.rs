//! The provider with a config file.

use std::sync::Arc;

use ccm_core::{BuildContext, Cloud, Provider, Result, testkit};
use ccm_provider_aws::NAME;

/// The registered provider.
pub(crate) fn provider() -> &'static Provider {
    testkit::provider(NAME)
}

/// A context whose config file has this text. The file exists as long as the folder.
pub(crate) fn context(conf: &str, variables: &[(String, String)]) -> (tempfile::TempDir, BuildContext) {
    testkit::context(conf, variables.iter().cloned().collect())
}

/// Builds the provider from this config file.
pub(crate) async fn build(conf: &str, variables: &[(String, String)]) -> Result<Arc<dyn Cloud>> {
    testkit::build(NAME, conf, variables.iter().cloned().collect()).await
}
