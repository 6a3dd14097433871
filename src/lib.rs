//! One cloud-controller-manager for Kubernetes, with each cloud as a Cargo feature.
//!
//! This crate knows no cloud. It reads the flags ([`options`]), runs the HTTPS server and the controllers, and calls the
//! provider that `--cloud-provider` names. The providers are those that are linked in ([`providers`]).
//!
//! A binary with another provider registers it with `ccm_core::register_provider!` and calls [`main`]; see
//! `examples/out_of_tree.rs`.
//!
//! | Module | Contents |
//! |---|---|
//! | `process` | start order, signals, end |
//! | [`options`] | flags |
//! | `config` | the checked values of the flags |
//! | [`providers`] | the clouds of this repository |
//! | `logging` | the log |
//! | `metrics` | the description of every metric, and their registration |
//! | `server` | health and metrics over HTTPS |
//! | `election` | one leader among replicas |
//! | `api` | access to the Kubernetes API server: clients and credentials |
//! | `app` | the shared stores, and the start and end of the controllers |
//! | `plan` | the changes that a run would apply: `plan` and `--dry-run` |
//! | `validate` | problems of config, cloud and manifests, without a cluster |
//! | `events` | the objects that Events refer to |
//! | `files` | files that other programs replace |
//! | `reload` | reload of the cloud's config when its files change |
//! | `controllers` | the table of the framework's controllers, one folder for each (stores, queues: `ccm_core::controllers`) |

// Warns about a provider crate that no code names: the linker would leave it out silently. Tests have further crates that not
// each of them uses.
#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod api;
mod app;
mod config;
mod controllers;
mod election;
mod events;
mod files;
mod logging;
mod metrics;
pub mod options;
mod plan;
mod process;
pub mod providers;
mod reload;
mod server;
mod validate;
mod watches;

/// The commit of this build. Only builds of images and releases set it.
pub(crate) const COMMIT: Option<&str> = option_env!("CCM_COMMIT");

pub use process::{Printed, main, plan, run, validate};
