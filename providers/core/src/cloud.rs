//! What a provider hands to the framework.

use std::{any::Any, fmt::Debug, path::PathBuf, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use crate::{Result, instances::Instances, load_balancer::LoadBalancers, routes::Routes};

/// One cloud, as one provider sees it with one set of credentials.
///
/// A capability is a value: a method that returns `None` says that this cloud (or this configuration of it) does
/// not have it, and the controllers that need it are not started.
#[async_trait]
pub trait Cloud: Any + Debug + Send + Sync {
    /// The name in the registry, on `--cloud-provider` and before `://` in provider IDs.
    fn name(&self) -> &'static str;

    /// Whether a node with this `spec.providerID` is this cloud's. Every decision about a node asks this first;
    /// what belongs to another cloud is left alone.
    fn owns(&self, provider_id: &str) -> bool {
        match provider_id.split_once("://") {
            Some((scheme, _)) => scheme == self.name(),
            None => self.owns_bare(provider_id),
        }
    }

    /// The same for an ID without a scheme, as old kubelets wrote them.
    fn owns_bare(&self, _id: &str) -> bool {
        false
    }

    /// Where and as whom the cloud is asked, in words for events and the log, such as
    /// `project "web" of https://keystone.example.com/v3, region "one"`. Never a secret.
    fn scope(&self) -> String {
        self.name().to_owned()
    }

    /// A number that changes whenever the credentials in use change. Two answers are from the same cloud and the same
    /// credentials only if it was the same before the first question and after the last answer.
    fn generation(&self) -> u64 {
        0
    }

    /// How old a node must be at least before it is deleted because its machine does not exist. Raises the default of
    /// `--node-deletion-grace` where the cloud may take longer to show a new machine to everybody.
    fn deletion_grace(&self) -> Duration {
        Duration::ZERO
    }

    /// The files that [`reload`](Self::reload) reads: the config file, and whatever it refers to. May change with every
    /// reload.
    fn watched_files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Reads the configuration again and takes over what can be taken over while running, above all credentials. Called
    /// when one of the [`watched_files`](Self::watched_files) has changed; may be called without any change.
    ///
    /// All or nothing: with an error, everything is as it was before the call.
    ///
    /// # Errors
    /// Everything that is wrong with the new files, as [`Provider::validate`](crate::Provider) reports it, or the cloud
    /// does not accept the new credentials.
    async fn reload(&self) -> Result<Reload> {
        Ok(Reload::default())
    }

    /// Which machines there are and what is known of them.
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

    /// The source component of events about what a provider found out itself ([`ServiceEvent`](crate::load_balancer::ServiceEvent)): that
    /// of the program that was here before.
    fn event_component(&self) -> &'static str {
        "service-controller"
    }
}

/// The methods of a [`Cloud`] that the field `nodes` answers, itself a cloud without load balancers and routes. These need
/// it before the whole cloud exists.
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

/// What [`Cloud::reload`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reload {
    /// The keys that changed and are in force now, by the names that they have in the file.
    pub applied: Vec<String>,
    /// The keys that changed and need a restart of the process to be in force.
    pub restart_needed: Vec<String>,
}

/// How old an answer may be.
///
/// The age of an answer counts from the moment when the request for it *began*: what happened in the cloud after
/// that moment may be missing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// An answer whose request began at most this long ago will do.
    AtMost(Duration),
    /// Only an answer whose request began at or after this instant will do. Never joins a request that began
    /// earlier, even if its reply is still on the way.
    After(Instant),
}

impl Freshness {
    /// Nothing that was asked before this call.
    #[must_use]
    pub fn now() -> Self {
        Self::After(Instant::now())
    }

    /// Whether an answer whose request began at `began` will do.
    #[must_use]
    pub fn allows(self, began: Instant) -> bool {
        match self {
            Self::AtMost(age) => began.elapsed() <= age,
            Self::After(instant) => began >= instant,
        }
    }
}

/// The priority of a cloud call. Both share one quota; see the client kit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits: a node joins, a Service changes, something is deleted.
    User,
    /// Nobody waits: periodic refresh, slow verification.
    Background,
}
