//! The HTTPS server of the whole program with a real API server: access of clients, failures of the API server, and changed
//! certificates.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../binaries/mod.rs"]
mod binaries;
mod clients;
mod faults;
mod pages;
mod stage;
