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

pub use balancers::FakeBalancers;
pub use cluster::TestCluster;
pub use fake::FakeCloud;
pub use routes::FakeRoutes;

/// The registered provider of this name.
///
/// # Panics
///
/// No provider of this name is linked.
#[must_use]
pub fn provider(name: &str) -> &'static crate::Provider {
    let mut all = crate::registry::all().into_iter();
    all.find(|provider| provider.name == name)
        .expect("the provider is linked")
}
