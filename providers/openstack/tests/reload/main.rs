//! A changed config of a running provider: replaced values, unchanged values, and values that need a restart.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../cloud/mod.rs"]
mod cloud;
mod keys;
mod running;
mod swap;
