//! The provider on the simulated DigitalOcean.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod account;
mod answers;
mod balancing;
mod cloud;
mod conformance;
mod listings;
mod ownership;
