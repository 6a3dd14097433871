//! Services become load balancers of the simulated cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod annotated_tags;
mod annotations;
mod broken;
mod conformance;
mod cost;
mod counts;
mod dual_stack;
mod features;
mod floating;
mod former;
mod life;
mod naming;
mod nodes;
mod optional;
mod orphans;
mod other_client;
mod outside;
mod places;
mod ranges;
mod refusals;
mod rename;
mod retry_after;
mod sharing;
mod stage;
mod tags;
mod trouble;
