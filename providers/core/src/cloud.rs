//! The cloud that a provider gives to the framework.

use std::{any::Any, fmt::Debug, path::PathBuf, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use crate::{
    Result, cluster_id::ClusterIdCell, instances::Instances, load_balancer::LoadBalancers, routes::Routes,
};

/// One cloud, accessed by one provider with one set of credentials.
///
/// A method that returns `None` means that this cloud, or its configuration, does not have the capability. The controllers
/// that need it are not started.
#[async_trait]
pub trait Cloud: Any + Debug + Send + Sync {
    /// The name in the registry, on `--cloud-provider` and before `://` in provider IDs.
    fn name(&self) -> &'static str;

    /// Whether a node with this `spec.providerID` belongs to this cloud. Every decision about a node checks this first:
    /// nodes of other clouds are left unchanged.
    fn owns(&self, provider_id: &str) -> bool {
        match provider_id.split_once("://") {
            Some((scheme, _)) => scheme == self.name(),
            None => self.owns_bare(provider_id),
        }
    }

    /// Whether an ID without a scheme, as written by old kubelets, belongs to this cloud.
    fn owns_bare(&self, _id: &str) -> bool {
        false
    }

    /// The endpoint and the account, for events and the log, such as
    /// `project "web" of https://keystone.example.com/v3, region "one"`. Never a secret.
    fn scope(&self) -> String {
        self.name().to_owned()
    }

    /// A number that changes whenever the credentials in use change. Two answers are from the same cloud and the same
    /// credentials only if it is equal before the first call and after the last answer.
    fn generation(&self) -> u64 {
        0
    }

    /// The minimum age of a node before it is deleted because its instance does not exist. Raises the default of
    /// `--node-deletion-grace` if the cloud may take longer to show a new instance.
    fn deletion_grace(&self) -> Duration {
        Duration::ZERO
    }

    /// The files that [`reload`](Self::reload) reads: the config file, and the files in it. May change with every
    /// reload.
    fn watched_files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Reads the configuration again and applies the keys that can change while running, such as credentials. Called
    /// when one of the [`watched_files`](Self::watched_files) has changed; may be called without any change.
    ///
    /// With an error, the previous configuration stays in effect.
    ///
    /// # Errors
    /// The new files are invalid, as [`Provider::validate`](crate::Provider) reports it, or the cloud does not accept the
    /// new credentials.
    async fn reload(&self) -> Result<Reload> {
        Ok(Reload::default())
    }

    /// The instances of the cloud.
    fn instances(&self) -> Option<&dyn Instances> {
        None
    }

    /// The load balancers of Services.
    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        None
    }

    /// The routes to the nodes' Pods.
    fn routes(&self) -> Option<&dyn Routes> {
        None
    }

    /// The ID by which the objects of load balancers are named, if it is kept in a ConfigMap of the cluster. The framework reads it before it
    /// asks about load balancers, and follows it while it runs.
    fn cluster_id(&self) -> Option<&ClusterIdCell> {
        None
    }

    /// The source component of a provider's own events ([`ServiceEvent`](crate::load_balancer::ServiceEvent)): that of
    /// the cloud's previous controller.
    fn event_component(&self) -> &'static str {
        "service-controller"
    }
}

/// The methods of a [`Cloud`] that are delegated to the field `nodes`: a cloud without load balancers and routes, which
/// need it before the whole cloud exists.
#[macro_export]
macro_rules! cloud_of_nodes {
    ($nodes:ident) => {
        fn name(&self) -> &'static str {
            $crate::Cloud::name(&self.$nodes)
        }

        fn owns(&self, provider_id: &str) -> bool {
            $crate::Cloud::owns(&self.$nodes, provider_id)
        }

        fn scope(&self) -> String {
            $crate::Cloud::scope(&self.$nodes)
        }

        fn generation(&self) -> u64 {
            $crate::Cloud::generation(&self.$nodes)
        }

        fn instances(&self) -> Option<&dyn $crate::Instances> {
            $crate::Cloud::instances(&self.$nodes)
        }
    };
}

/// The result of [`Cloud::reload`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reload {
    /// The changed keys that are in effect now, by their names in the file.
    pub applied: Vec<String>,
    /// The changed keys that need a restart of the process to take effect.
    pub restart_needed: Vec<String>,
}

/// How old an answer may be.
///
/// The age of an answer counts from the moment when its request *began*: later changes in the cloud may be missing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// An answer is accepted if its request began at most this long ago.
    AtMost(Duration),
    /// An answer is accepted only if its request began at or after this instant. Never joins a request that began
    /// earlier, even if it is still in flight.
    After(Instant),
}

impl Freshness {
    /// Accepts only requests that begin after this call.
    #[must_use]
    pub fn now() -> Self {
        Self::After(Instant::now())
    }

    /// Whether an answer is accepted whose request began at `began`.
    #[must_use]
    pub fn allows(self, began: Instant) -> bool {
        match self {
            Self::AtMost(age) => began.elapsed() <= age,
            Self::After(instant) => began >= instant,
        }
    }
}

/// The priority of a cloud call. Both share one quota; see [`client`](crate::client).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// A user waits: a node joins, a Service changes, an object is deleted.
    User,
    /// No user waits: periodic refresh, slow verification.
    Background,
}
