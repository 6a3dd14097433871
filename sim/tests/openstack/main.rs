//! The simulated OpenStack over plain HTTP: answers and effects.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod around;
mod balancing;
mod client;
mod compute;
mod control;
mod faults;
mod identity;
mod listing;
mod network;
mod routers;
mod scale;
