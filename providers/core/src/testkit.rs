//! What tests of providers and of the framework share: a recording fake cloud and the conformance suite.

pub mod conformance;
pub mod fake;

pub use fake::FakeCloud;
