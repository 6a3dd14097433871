//! Controllers: their declarations, and what all controllers share.
//!
//! The framework's controllers and those of a provider ([`ControllerDef`]) have the same names ([`ControllerNames`]) and start
//! with one [`ControllerContext`]. The framework provides the rest: `--controllers`, leader election and leader migration, one watch per
//! kind, clients and their accounts, a check on `/livez`, the metric `running_managed_controllers`, and shutdown.
//! The upstream equivalent is in `k8s.io/cloud-provider/app` (`ControllerInitFuncConstructor`, `ControllerAliases`).
//!
//! | Module | Contents |
//! |---|---|
//! | [`informer`] | a watch of all objects of one kind, and its store |
//! | [`node`], [`service`] | the stored fields of a Node and of a Service |
//! | [`events`] | Kubernetes Events |
//! | [`ipam`] | the networks of the Pods of nodes |
//! | [`queue`] | work queues: each key once, backoff per key |
//! | [`provided_ip`] | the annotation of the kubelet's `--node-ip` |
//!
//! ```
//! use ccm_core::controllers::{
//!     ControllerContext, ControllerDef, ControllerFuture, ControllerNames, ControllerSetup, Needs, NotStarted,
//! };
//!
//! /// For [`Provider::controllers`](ccm_core::Provider).
//! const FIREWALL: ControllerDef = ControllerDef {
//!     names: ControllerNames {
//!         name: "acme-firewall-controller",
//!         aliases: &["acme-firewall"],
//!         migration_name: None,
//!         client_name: "acme-firewall-controller",
//!     },
//!     default_on: true,
//!     needs,
//!     start,
//! };
//!
//! fn needs(_: &ControllerSetup) -> Result<Needs, NotStarted> {
//!     Ok(Needs { node_port_services: true, ..Needs::default() })
//! }
//!
//! fn start(context: ControllerContext) -> ccm_core::Result<ControllerFuture> {
//!     Ok(Box::pin(async move {
//!         let mut changes = context.services.subscribe();
//!         loop {
//!             tokio::select! {
//!                 () = context.shutdown.cancelled() => return,
//!                 Some(change) = changes.recv() => drop(change),
//!             }
//!         }
//!     }))
//! }
//! ```

/// Implements `kube::Resource` for a trimmed object with a field `meta`, as a resource of the original kind.
macro_rules! impl_resource {
    ($trimmed:ty, $kind:ty) => {
        impl kube::Resource for $trimmed {
            type DynamicType = ();
            type Scope = <$kind as kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::plural(&())
            }

            fn meta(&self) -> &ObjectMeta {
                &self.meta
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.meta
            }
        }
    };
}

pub mod events;
pub mod informer;
mod interner;
pub mod ipam;
pub mod metrics_text;
pub mod node;
pub mod provided_ip;
pub mod queue;
pub mod service;

use std::{any::Any, fmt, pin::Pin, sync::Arc};

use parking_lot::RwLock;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::{
    Cloud, Error, ErrorKind, FlagValues, Result,
    client::{ClientMetrics, Fence},
};
pub use events::{EventType, Recorder};
pub use informer::{Informer, StoreChange};
pub use node::NodeObject;
#[cfg(feature = "testkit")]
pub use queue::seed_jitter;
pub use queue::{Backoff, QueueMetrics, WorkQueue};
pub use service::ServiceObject;

/// All names of a controller of the framework or of a provider.
#[derive(Clone, Copy, Debug)]
pub struct ControllerNames {
    /// The canonical name: in `--controllers`, on `/livez`, in the log. Lower-case letters and `-`; ends in `-controller`.
    pub name: &'static str,
    /// Further names in `--controllers`. The first one is the name in `--help` and in `running_managed_controllers`.
    pub aliases: &'static [&'static str],
    /// The name in the files of leader migrations, if it differs. A controller of the framework that has one takes
    /// part in the default leader migration, which needs no file.
    pub migration_name: Option<&'static str>,
    /// The name of its client of the API server: the end of the user agent, and with
    /// `--use-service-account-credentials` its service account in `kube-system`. Controllers of one name share the client
    /// and its rate limit.
    pub client_name: &'static str,
}

/// A controller of a provider.
#[derive(Clone, Copy, Debug)]
pub struct ControllerDef {
    /// Its names.
    pub names: ControllerNames,
    /// Whether it runs unless `--controllers` disables it. Otherwise, `--controllers` must name it. A list without `*` disables
    /// only controllers of the framework.
    pub default_on: bool,
    /// Called once, when the cloud is connected and before any watch starts. Returns the fields that the shared stores must
    /// keep for this controller, or why it does not run with this cloud and this configuration. Must not block.
    pub needs: fn(&ControllerSetup) -> Result<Needs, NotStarted>,
    /// Starts the controller, when this process leads. The future ends soon after [`ControllerContext::shutdown`], when work
    /// in progress is finished; ending earlier ends the process. The controller itself waits for the stores
    /// ([`Informer::synced`]). It does not take part in `plan` and does not start with `--dry-run`.
    ///
    /// An error ends the process: it is for failures that a restart may fix. [`Provider::validate`](crate::Provider) reports
    /// errors of flags and the config file.
    pub start: fn(ControllerContext) -> Result<ControllerFuture>,
}

/// The names of the framework's service controller.
pub const SERVICE_CONTROLLER: ControllerNames = ControllerNames {
    name: "service-lb-controller",
    aliases: &["service"],
    migration_name: Some("service-controller"),
    client_name: "service-controller",
};

impl ControllerNames {
    /// Whether a list of `--controllers` switches this controller on or off. The first item that names it decides. `None`: no item
    /// names it.
    #[must_use]
    pub fn listed<T: AsRef<str>>(&self, items: &[T]) -> Option<bool> {
        items.iter().map(AsRef::as_ref).find_map(|item| match item.strip_prefix('-') {
            Some(name) => self.is_called(name).then_some(false),
            None => self.is_called(item).then_some(true),
        })
    }

    /// The short name: the first alias.
    #[must_use]
    pub fn short_name(&self) -> &'static str {
        self.aliases.first().unwrap_or(&self.name)
    }

    /// Whether `--controllers` may use this name.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        name == self.name || self.aliases.contains(&name)
    }

    /// All names that files of leader migrations may use.
    pub fn migration_names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(self.aliases.iter().copied()).chain(self.migration_name)
    }
}

/// A running controller.
pub type ControllerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The fields that the shared stores must keep for a controller, in addition to those that all controllers read. Stores are
/// trimmed, so that memory grows slowly with the cluster: fields that no running controller needs are not stored. A new field
/// that few controllers read gets a field here, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Services that have, had or request a load balancer. If no controller needs Services, they are not watched.
    pub load_balancer_services: bool,
    /// Services with node ports. Implies the field above.
    pub node_port_services: bool,
    /// [`NodeObject::pod_cidrs`].
    pub pod_cidrs: bool,
}

impl Needs {
    /// Whether Services are watched.
    #[must_use]
    pub fn services(&self) -> bool {
        self.load_balancer_services || self.node_port_services
    }

    /// The union of both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            load_balancer_services: self.load_balancer_services || other.load_balancer_services,
            node_port_services: self.node_port_services || other.node_port_services,
            pod_cidrs: self.pod_cidrs || other.pod_cidrs,
        }
    }
}

/// Why an enabled controller does not run. Not an error; the reason is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// The cloud does not support the controller. Logged as a warning.
    Unsupported(&'static str),
    /// The configuration does not enable it.
    NotConfigured(&'static str),
}

impl NotStarted {
    /// The reason for the log.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Unsupported(reason) | Self::NotConfigured(reason) => reason,
        }
    }
}

/// The input for starting controllers.
#[derive(Clone)]
pub struct ControllerSetup {
    /// The cloud.
    pub cloud: Arc<dyn Cloud>,
    /// `--cluster-name`.
    pub cluster_name: String,
    /// The flags of the command line.
    pub flags: FlagValues,
}

impl fmt::Debug for ControllerSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerSetup")
            .field("cloud", &self.cloud)
            .field("cluster_name", &self.cluster_name)
            .field("flags", &self.flags)
            .finish()
    }
}

impl ControllerSetup {
    /// The cloud as the type that the provider built, for the provider's own controllers.
    ///
    /// # Errors
    /// It is another type: a bug.
    pub fn cloud_as<T: Cloud>(&self) -> Result<Arc<T>> {
        let cloud: Arc<dyn Any + Send + Sync> = self.cloud.clone();
        cloud.downcast().map_err(|_| {
            let expected = std::any::type_name::<T>();
            Error::new(ErrorKind::Unexpected, format!("bug: a controller was started without its {expected}"))
        })
    }

    /// Implements [`ControllerDef::needs`] of a provider's controller that runs only if it is configured. `why`: the reason
    /// for the log otherwise.
    ///
    /// # Errors
    /// It is not configured.
    pub fn needs_if<T: Cloud>(
        &self,
        is_configured: impl FnOnce(&T) -> bool,
        why: &'static str,
        needs: Needs,
    ) -> Result<Needs, NotStarted> {
        match self.cloud_as::<T>() {
            Ok(cloud) if is_configured(&cloud) => Ok(needs),
            _ => Err(NotStarted::NotConfigured(why)),
        }
    }
}

/// The input for a controller.
pub struct ControllerContext {
    /// Cloud, cluster name and flags.
    pub setup: ControllerSetup,
    /// The API server, as [`ControllerNames::client_name`]. Writes are refused unless this process leads.
    pub client: kube::Client,
    /// All nodes of the cluster, trimmed.
    pub nodes: Arc<Informer<NodeObject>>,
    /// The Services that controllers need, trimmed. Empty and never synced if no controller needs Services.
    pub services: Arc<Informer<ServiceObject>>,
    /// Writes Events with the controller's name as source component.
    pub recorder: Recorder,
    /// Whether this process may write: the fence of the lease under which the controller runs. The client has it already;
    /// for the cloud see [`Gate::fenced_by`](crate::client::Gate::fenced_by).
    pub fence: Fence,
    /// The metrics of the controller and its queues.
    pub metrics: ControllerMetrics,
    /// The metrics of cloud calls, for the controller's own batchers and caches.
    pub cloud_metrics: ClientMetrics,
    /// Cancelled when the process ends.
    pub shutdown: CancellationToken,
}

/// The metrics registry for controllers. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics {
    registry: Arc<RwLock<Registry>>,
    queues: QueueMetrics,
}

impl ControllerMetrics {
    /// Registers metrics. Names are `ccm_<noun>_<unit>`, or upstream's.
    pub fn with<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.registry.write())
    }

    /// Reads the registry.
    pub fn read<T>(&self, read: impl FnOnce(&Registry) -> T) -> T {
        read(&self.registry.read())
    }

    /// The `workqueue_*` metrics, for [`WorkQueue::new`].
    #[must_use]
    pub fn queues(&self) -> &QueueMetrics {
        &self.queues
    }
}
