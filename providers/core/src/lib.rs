//! Everything an author of a cloud provider needs, and nothing of any SDK or controller.
//!
//! | Module | Holds |
//! |---|---|
//! | [`cloud`], [`instances`], [`load_balancer`], [`routes`] | the contract between the framework and a provider |
//! | [`plan`] | the engine that carries out a provider's model of its load balancers, and says beforehand what it will do |
//! | [`check`] | what is found wrong with a config, its cloud and Services without running |
//! | [`registry`] | how a provider makes itself known ([`register_provider!`]) |
//! | [`flags`] | flags of a provider |
//! | `controllers` | controllers of a provider, and what all controllers share (feature `controllers`) |
//! | [`error`] | the one error type that crosses crate boundaries |
//! | [`client`] | the kit every cloud call goes through: quota gate, retry, cache, batcher, pagination, metrics |
//! | [`config`] | the config file dialect, durations, secrets, generated key tables |
//! | `testkit` | a recording fake cloud and the conformance suite (feature `testkit`) |
//!
//! The contract is *batched first*: a method takes everything that is asked at one moment and answers item by
//! item, so that the cost of a cluster in cloud calls grows with its changes and not with its nodes.
//! Dependencies point one way: the binary depends on providers, providers depend on this crate.

pub mod check;
pub mod client;
pub mod cloud;
pub mod cluster_id;
pub mod config;
#[cfg(feature = "controllers")]
pub mod controllers;
mod environment;
pub mod error;
pub mod flags;
pub mod instances;
mod labels;
pub mod load_balancer;
pub mod plan;
pub mod registry;
pub mod routes;
#[cfg(feature = "testkit")]
pub mod testkit;

pub use async_trait::async_trait;
pub use cloud::{Cloud, Freshness, Priority, Reload};
pub use environment::Environment;
pub use error::{Error, ErrorKind, RequestOutcome, Result, Retry};
pub use flags::{FlagDef, FlagKind, FlagValues};
pub use instances::{
    AddressType, Instance, InstanceQuery, InstanceState, Instances, Need, NodeAddress, NodeView, Power,
};
pub use labels::Labels;
pub use load_balancer::LoadBalancers;
pub use registry::{BuildContext, BuildFuture, Provider};
pub use routes::Routes;

#[doc(hidden)]
pub mod private {
    //! What the expansion of our macros reaches, so that a provider crate needs no dependency of its own for it.
    pub use inventory;
}
