//! The whole program against a real kube-apiserver and a simulated OpenStack; and, where it is allowed to be started,
//! against OpenStack itself.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod accounts;
mod burst;
mod faults;
mod image;
mod lifecycle;
mod nodes;
mod observe;
mod plan;
mod plan_routes;
mod real;
mod rehearsal;
mod reload;
mod restart;
mod rights;
mod routes;
mod routes_real;
mod scene;
mod services;
mod services_real;
mod start;
mod sweep;
mod validate;
