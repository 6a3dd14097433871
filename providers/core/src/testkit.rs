//! What tests of providers and of the framework share: a recording fake cloud with load balancers and routes, the
//! conformance suite, and the laws of the plan engine.

pub mod balancers;
pub mod conformance;
pub mod fake;
pub mod laws;
pub mod routes;

pub use balancers::FakeBalancers;
pub use fake::FakeCloud;
pub use routes::FakeRoutes;
