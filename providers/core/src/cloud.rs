//! What a provider hands to the framework.

use std::{fmt::Debug, time::Duration};

use tokio::time::Instant;

use crate::instances::Instances;

/// One cloud, as one provider sees it with one set of credentials.
///
/// A capability is a value: a method that returns `None` says that this cloud (or this configuration of it) does
/// not have it, and the controllers that need it are not started.
pub trait Cloud: Debug + Send + Sync {
    /// The name in the registry, on `--cloud-provider` and before `://` in provider IDs.
    fn name(&self) -> &'static str;

    /// Whether a node with this `spec.providerID` is this cloud's. Every decision about a node asks this first;
    /// what belongs to another cloud is left alone.
    fn owns(&self, provider_id: &str) -> bool {
        provider_id
            .split_once("://")
            .is_some_and(|(scheme, _)| scheme == self.name())
    }

    /// Which machines there are and what is known of them.
    fn instances(&self) -> Option<&dyn Instances> {
        None
    }
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

/// Who waits for a cloud call. Both share one quota; see the client kit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits: a node joins, a Service changes, something is deleted.
    User,
    /// Nobody waits: periodic refresh, slow verification.
    Background,
}
