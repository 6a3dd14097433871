//! The provider on an Azure Resource Manager in memory, which checks every request against Microsoft's description. Each test has a
//! server.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

// The registry of the binary links the provider by its name.
use ccm_provider_azure as _;

mod addresses;
mod balancer_conformance;
mod basic;
mod check;
mod conformance;
mod credentials;
mod faults;
mod instances;
mod load_balancers;
mod private_link;
mod rights;
mod routes;
mod several_balancers;
mod stage;
mod subscription;
