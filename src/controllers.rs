//! The controllers of the framework. Each is a loop over shared stores, split into pure decisions and thin effects.

#[cfg(test)]
#[path = "controllers/fixture_tests.rs"]
mod fixture;
pub(crate) mod lifecycle;
pub(crate) mod node;
pub(crate) mod node_action;
pub(crate) mod node_object;
mod node_writer;
pub(crate) mod plan;
pub(crate) mod route;
pub(crate) mod service;

use std::{panic, sync::Arc};

use ccm_core::{
    Provider,
    controllers::{ControllerDef, ControllerSetup, Needs, NotStarted},
};
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::task::JoinError;

use crate::{config::Config, server::Status};

/// The controllers of the framework.
pub(crate) static FRAMEWORK: [ControllerDef; 4] = [node::DEF, lifecycle::DEF, service::DEF, route::DEF];

/// How many nodes of a pass get an Event about the same.
const EVENTS: usize = 20;

/// All controllers that may run with this provider.
pub(crate) fn all(provider: &Provider) -> impl Iterator<Item = &'static ControllerDef> + Clone + use<> {
    FRAMEWORK.iter().chain(provider.controllers)
}

/// The parts of the process for the framework's controllers only: [`ControllerSetup::framework`].
pub(crate) struct Framework {
    pub(crate) config: Arc<Config>,
    /// The API server with the process's own account, independent of the rights of the controllers' accounts.
    pub(crate) client: kube::Client,
    /// The status page.
    pub(crate) status: Status,
    /// The object of Events about the cloud as a whole: this process's Pod or Lease.
    pub(crate) process: ObjectReference,
}

/// The result of a controller's task. A panic of the task ends the process through the task that runs the controller.
fn finished<T>(ended: Result<T, JoinError>) -> T {
    match ended {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => panic::resume_unwind(panic),
            // A task is aborted only if no other task waits for it.
            Err(error) => panic::panic_any(error.to_string()),
        },
    }
}

/// The client of both controllers of nodes.
const NODE_CLIENT: &str = "node-controller";

/// The needs of the controllers of nodes.
fn needs_instances(setup: &ControllerSetup) -> Result<Needs, NotStarted> {
    let unsupported = NotStarted::Unsupported("the cloud provider does not support instances");
    let instances = setup.cloud.instances();
    instances.map(|_| Needs::default()).ok_or(unsupported)
}
