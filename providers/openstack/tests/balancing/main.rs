//! Services become load balancers of the simulated cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod broken;
#[path = "../cloud/mod.rs"]
mod cloud;
mod cost;
mod counts;
mod every_call;
mod features;
mod floating;
mod hands;
mod life;
mod naming;
mod outside;
mod places;
mod refusals;
mod rename;
mod sharing;
mod stage;
mod tags;
mod trouble;
