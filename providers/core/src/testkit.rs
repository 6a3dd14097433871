//! What tests of providers and of the framework share: a recording fake cloud with load balancers and routes, the
//! conformance suite, a cluster without an API server, and the laws of the plan engine.

pub mod balancers;
pub mod cluster;
pub mod conformance;
pub mod fake;
pub mod laws;
pub mod routes;

pub use balancers::FakeBalancers;
pub use cluster::TestCluster;
pub use fake::FakeCloud;
pub use routes::FakeRoutes;
