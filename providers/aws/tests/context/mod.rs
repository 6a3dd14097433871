//! The provider with a config file, for both test programs of this crate.

use std::sync::Arc;

use ccm_core::{BuildContext, Cloud, Environment, Provider, Result, testkit};

/// The registered provider.
pub(crate) fn provider() -> &'static Provider {
    testkit::provider(ccm_provider_aws::NAME)
}

/// A context whose config file has this text. The file exists as long as the directory value.
pub(crate) fn context(conf: &str, variables: &[(String, String)]) -> (tempfile::TempDir, BuildContext) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cloud.conf");
    std::fs::write(&path, conf).unwrap();
    let variables = variables.iter();
    let context = BuildContext {
        cloud_config: Some(path),
        environment: variables.fold(Environment::default(), |all, (name, value)| all.with(name, value)),
        cluster_name: "kubernetes".into(),
        user_agent: "aws-cloud-controller-manager/test".into(),
        ..BuildContext::default()
    };
    (directory, context)
}

/// Builds the provider from this config file.
pub(crate) async fn build(conf: &str, variables: &[(String, String)]) -> Result<Arc<dyn Cloud>> {
    let (_directory, context) = context(conf, variables);
    (provider().validate)(&context)?;
    (provider().build)(context).await
}
