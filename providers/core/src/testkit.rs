//! What tests of providers and of the framework share: a recording fake cloud with load balancers and routes, the
//! conformance suite, a cluster without an API server, and the laws of the plan engine.

#![expect(clippy::expect_used, reason = "a helper of tests fails as a test does")]

pub mod balancers;
pub mod cluster;
pub mod conformance;
pub mod fake;
pub mod laws;
pub mod nodes;
pub mod routes;
pub mod seeds;
pub mod server;

use std::sync::Arc;

use tempfile::TempDir;

use crate::{BuildContext, Cloud, Environment, Provider, Result};

pub use balancers::FakeBalancers;
pub use cluster::TestCluster;
pub use fake::FakeCloud;
pub use routes::FakeRoutes;

/// The user agent in [`context`].
pub const USER_AGENT: &str = "cloud-controller-manager/test";

/// The registered provider of this name.
///
/// # Panics
///
/// No provider of this name is linked.
#[must_use]
pub fn provider(name: &str) -> &'static Provider {
    let mut all = crate::registry::all().into_iter();
    all.find(|provider| provider.name == name).expect("the provider is linked")
}

/// A context whose config file `cloud.conf` has this text. The file exists as long as the folder.
///
/// # Panics
///
/// The file cannot be written.
#[must_use]
pub fn context(conf: &str, environment: Environment) -> (TempDir, BuildContext) {
    let folder = TempDir::new().expect("a folder for temporary files");
    let path = folder.path().join("cloud.conf");
    std::fs::write(&path, conf).expect("a file in the folder");
    let context = BuildContext {
        cloud_config: Some(path),
        environment,
        cluster_name: "kubernetes".to_owned(),
        user_agent: USER_AGENT.to_owned(),
        ..BuildContext::default()
    };
    (folder, context)
}

/// Builds the cloud of a registered provider with this config file, after its validation, as the process does.
///
/// # Errors
///
/// Those of the provider.
///
/// # Panics
///
/// As [`provider`] and [`context`].
pub async fn build(name: &str, conf: &str, environment: Environment) -> Result<Arc<dyn Cloud>> {
    let (_folder, context) = context(conf, environment);
    build_in(name, context).await
}

/// Builds the cloud of a registered provider in this context, after its validation.
///
/// # Errors
///
/// As of the provider.
///
/// # Panics
///
/// As [`provider`].
pub async fn build_in(name: &str, context: BuildContext) -> Result<Arc<dyn Cloud>> {
    let provider = provider(name);
    (provider.validate)(&context)?;
    (provider.build)(context).await
}
