//! The provider on the simulated cloud, and on the real one: credentials, instances, routes and reload.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod authentication;
mod cloud;
mod conformance;
mod cost;
mod describe;
mod reload;
mod routes;
mod tls;
