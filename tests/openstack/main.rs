//! The whole program against a real kube-apiserver and a simulated OpenStack; and, where it is allowed to be started,
//! against OpenStack itself.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod burst;
mod faults;
mod lifecycle;
mod nodes;
mod real;
mod reload;
mod restart;
mod rights;
mod scene;
mod start;
mod sweep;
