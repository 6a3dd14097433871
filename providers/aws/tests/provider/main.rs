//! The provider on moto, an independent emulator of AWS. One server for all tests; each test has an account.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod conformance;
mod context;
mod instances;
mod routes;
mod server;
mod stage;
mod start;
mod tagging;
