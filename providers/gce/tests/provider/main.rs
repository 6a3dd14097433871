//! The provider on Compute Engine in memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod balancer_conformance;
mod conformance;
mod costs;
mod faults;
mod instances;
mod load_balancers;
mod routes;
mod stage;
mod start;
mod validate;
