//! The framework without a cloud: the program with a provider in memory, or with one of the examples, and a real API server.
//! One program, because its tests reuse their control planes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../binaries/mod.rs"]
mod binaries;
mod election;
mod events;
mod fake;
mod flags;
mod identity;
mod lifecycle;
mod nodes;
mod server;
mod service;
mod serving;
