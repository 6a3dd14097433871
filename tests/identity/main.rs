//! Credentials for the API server: every form of a kubeconfig, changes while the program runs, and the rate of requests.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../binaries/mod.rs"]
mod binaries;

mod changes;
mod forms;
mod rate;
mod stage;
