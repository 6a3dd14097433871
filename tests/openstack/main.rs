//! The whole program against a real kube-apiserver and a simulated OpenStack, and against a real OpenStack where its start is
//! allowed.
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
mod plan_scene;
mod real;
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
