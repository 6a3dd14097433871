//! What tests of providers and of the framework share: a recording fake cloud, the conformance suite, and the laws of
//! the plan engine.

pub mod conformance;
pub mod fake;
pub mod laws;

pub use fake::FakeCloud;
