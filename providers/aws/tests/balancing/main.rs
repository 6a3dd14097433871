//! The load balancers of AWS, on moto.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod adoption;
mod classic;
mod conformance;
mod faults;
mod network;
mod stage;
