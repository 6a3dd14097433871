//! Another config while running: what is swapped, what is kept, what needs a restart.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../cloud/mod.rs"]
mod cloud;
mod keys;
mod running;
mod swap;
