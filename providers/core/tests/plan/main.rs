//! The plan engine, on a toy cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod conformance;
mod credentials;
mod engine;
mod forwarding;
mod forwarding_conformance;
mod forwarding_laws;
mod laws;
mod operations;
mod pool;
mod races;
mod rulebook;
mod rulebook_conformance;
mod shared;
mod stage;
mod suite;
mod toy;
mod toy_cases;
mod toy_plan;
mod toy_step;
mod untagged;
