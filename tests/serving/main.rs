//! The HTTPS server of the whole program before a real API server: who is served what, and what happens when the API
//! server cannot be asked, or certificates change.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../binaries/mod.rs"]
mod binaries;
mod clients;
mod faults;
mod pages;
mod stage;
