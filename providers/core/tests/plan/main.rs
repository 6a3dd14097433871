//! The plan engine, on a toy cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod laws;
mod toy;
mod toy_cases;
mod toy_plan;
