//! As whom the program asks the API server: every form of a kubeconfig, what is replaced while it runs, and at what rate.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../binaries/mod.rs"]
mod binaries;

mod changes;
mod forms;
mod rate;
mod stage;
