//! Services become load balancers of the simulated cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../cloud/mod.rs"]
mod cloud;
mod life;
mod stage;
mod trouble;
