//! Routes of the OpenStack provider on the simulated cloud.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../cloud/mod.rs"]
mod cloud;
mod life;
mod pairs;
mod several;
mod stage;
mod trouble;
