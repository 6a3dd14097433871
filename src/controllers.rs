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
#[cfg(test)]
#[path = "controllers/upstream_metrics_tests.rs"]
mod upstream_metrics;

use std::{panic, sync::Arc};

use ccm_core::{
    Provider,
    controllers::{
        ControllerContext, ControllerDef, ControllerFuture, ControllerNames, ControllerSetup, Needs,
        NotStarted,
    },
};
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::task::JoinError;

use crate::{
    config::Config,
    server::{Checks, Status},
};

/// The controllers of the framework.
pub(crate) static FRAMEWORK: [FrameworkController; 4] = [
    node::CONTROLLER,
    lifecycle::CONTROLLER,
    service::CONTROLLER,
    route::CONTROLLER,
];

/// A controller of the framework. It runs unless `--controllers` disables it.
pub(crate) struct FrameworkController {
    pub(crate) names: ControllerNames,
    /// As [`ControllerDef::needs`].
    pub(crate) needs: fn(&ControllerSetup, &Framework) -> Result<Needs, NotStarted>,
    /// As [`ControllerDef::start`].
    pub(crate) start: fn(ControllerContext, &Framework) -> ControllerFuture,
}

/// A controller that may run.
#[derive(Clone, Copy)]
pub(crate) enum Controller {
    Framework(&'static FrameworkController),
    Provider(&'static ControllerDef),
}

impl Controller {
    pub(crate) fn names(self) -> &'static ControllerNames {
        match self {
            Self::Framework(controller) => &controller.names,
            Self::Provider(controller) => &controller.names,
        }
    }

    /// Whether it runs unless `--controllers` disables it.
    pub(crate) fn is_default_on(self) -> bool {
        match self {
            Self::Framework(_) => true,
            Self::Provider(controller) => controller.default_on,
        }
    }

    /// What it needs, or why it does not run with this cloud and this configuration.
    pub(crate) fn needs(self, setup: &ControllerSetup, framework: &Framework) -> Result<Needs, NotStarted> {
        match self {
            Self::Framework(controller) => (controller.needs)(setup, framework),
            Self::Provider(controller) => (controller.needs)(setup),
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// A failure that a restart may fix.
    pub(crate) fn start(
        self,
        context: ControllerContext,
        framework: &Framework,
    ) -> ccm_core::Result<ControllerFuture> {
        match self {
            Self::Framework(controller) => Ok((controller.start)(context, framework)),
            Self::Provider(controller) => (controller.start)(context),
        }
    }
}

/// How many nodes of a pass get an Event about the same.
const EVENTS: usize = 20;

/// All controllers that may run with this provider.
pub(crate) fn all(provider: &Provider) -> impl Iterator<Item = Controller> + Clone + use<> {
    let framework = FRAMEWORK.iter().map(Controller::Framework);
    framework.chain(provider.controllers.iter().map(Controller::Provider))
}

/// The parts of the process for the framework's controllers only.
pub(crate) struct Framework {
    pub(crate) config: Arc<Config>,
    /// The API server with the process's own account, independent of the rights of the controllers' accounts.
    pub(crate) client: kube::Client,
    /// The API server with the account that reads and creates the ID of the cluster, for clouds that keep one in the cluster.
    pub(crate) cluster_id_client: kube::Client,
    /// The status page.
    pub(crate) status: Status,
    /// The health checks.
    pub(crate) checks: Checks,
    /// The object of Events about the cloud as a whole: this process's Pod or Lease.
    pub(crate) process: ObjectReference,
}

/// The result of a controller's task. A panic of the task ends the process through the task that runs the controller.
fn task_result<T>(ended: Result<T, JoinError>) -> T {
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
fn needs_instances(setup: &ControllerSetup, _: &Framework) -> Result<Needs, NotStarted> {
    let unsupported = NotStarted::Unsupported("the cloud provider does not support instances");
    let instances = setup.cloud.instances();
    instances.map(|_| Needs::default()).ok_or(unsupported)
}
