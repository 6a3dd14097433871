//! Services become load balancers of the simulated cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod annotated_tags;
mod broken;
mod conformance;
mod cost;
mod counts;
mod features;
mod floating;
mod life;
mod naming;
mod nodes;
mod orphans;
mod other_client;
mod outside;
mod places;
mod refusals;
mod rename;
mod retry_after;
mod sharing;
mod stage;
mod tags;
mod trouble;
