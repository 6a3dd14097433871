//! Load balancers in memory, on the plan engine, for tests of its callers.
//!
//! It has two kinds of parts: a balancer for each Service (`lb/new:<name>`, then `lb/#<id>`), and `hosts`, one part for all
//! Services with the Services of each node. Reads and writes are recorded. A test can let writes fail, wait and hang.
//!
//! | Annotation | |
//! |---|---|
//! | [`COLOUR`] | `plaid` is refused, `pink` is ignored with an event |
//! | [`WOOD`] | cannot be changed |
//! | [`ID`] | written by the provider |

mod model;
mod region;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    Error,
    load_balancer::LoadBalancers,
    plan::{Engine, Fact, PlanMetrics},
};

pub use model::{Action, Directory, Key, Model, ModelChange};
pub use region::Read;
use region::RegionState;

/// A colour.
pub const COLOUR: &str = "fake/colour";
/// The material of a balancer, which cannot be changed.
pub const WOOD: &str = "fake/wood";
/// The balancer's id, written by the provider.
pub const ID: &str = "fake/load-balancer-id";
/// Whether the balancer is inside or outside: each has its own finalizer.
pub const PLACE: &str = "fake/place";
/// The [`PLACE`] of a Service that is another component's for this cloud.
pub const PLACE_ELSEWHERE: &str = "elsewhere";
/// The finalizer of a Service whose [`PLACE`] is `inside`.
pub const FINALIZER_INSIDE: &str = "fake.example.com/inside";
/// The finalizer of a Service whose [`PLACE`] is `outside`.
pub const FINALIZER_OUTSIDE: &str = "fake.example.com/outside";
/// A Service with this label has no parts.
pub const NO_PARTS: &str = "fake/no-parts";
/// A class that is this cloud's.
pub const CLASS: &str = "fake.example.com/balancer";
/// A class that is another component's for this cloud.
pub const CLASS_ELSEWHERE: &str = "elsewhere.example.com/balancer";

/// A load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// Its id.
    pub id: Fact<u64>,
    /// Its name; not unique.
    pub name: String,
    /// Its address.
    pub address: Fact<String>,
    /// The Service for which it is, as `namespace/name`.
    pub owner: String,
    /// The ownership tag of the cluster that created it.
    pub tag: Option<String>,
    /// Its material.
    pub wood: String,
    /// `TCP/80->30080`.
    pub ports: BTreeSet<String>,
    /// Names of nodes.
    pub members: BTreeSet<String>,
}

/// Load balancers in memory. Clones share their state; each [`FakeBalancers::engine`] is a process that has just started.
#[derive(Clone)]
pub struct FakeBalancers {
    pub(super) state: Arc<Mutex<RegionState>>,
    pub(super) open: watch::Sender<bool>,
}

impl Default for FakeBalancers {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            open: watch::Sender::new(true),
        }
    }
}

impl FakeBalancers {
    /// An engine without state.
    #[must_use]
    pub fn engine(&self, metrics: PlanMetrics) -> Arc<dyn LoadBalancers> {
        Arc::new(Engine::new(Model, Arc::new(self.clone()), metrics))
    }

    /// All balancers, by id.
    #[must_use]
    pub fn balancers(&self) -> Vec<Balancer> {
        self.state.lock().balancers.values().map(|balancer| Balancer::clone(balancer)).collect()
    }

    /// The balancer of a Service, `namespace/name`.
    #[must_use]
    pub fn of(&self, service: &str) -> Option<Balancer> {
        self.balancers().into_iter().find(|balancer| balancer.owner == service)
    }

    /// The Services of each node.
    #[must_use]
    pub fn hosts(&self) -> BTreeMap<String, BTreeSet<String>> {
        let hosts = self.state.lock().hosts.clone();
        hosts.into_iter().map(|(host, services)| (host, Arc::unwrap_or_clone(services))).collect()
    }

    /// Changes balancers as another client would.
    pub fn edit(&self, edit: impl FnOnce(&mut BTreeMap<u64, Balancer>)) {
        let mut state = self.state.lock();
        let known = std::mem::take(&mut state.balancers);
        let mut balancers =
            known.into_iter().map(|(id, balancer)| (id, Arc::unwrap_or_clone(balancer))).collect();
        edit(&mut balancers);
        state.balancers = balancers.into_iter().map(|(id, balancer)| (id, Arc::new(balancer))).collect();
    }

    /// Lets the next `times` writes fail whose sentence has this prefix.
    pub fn fail(&self, begin: &'static str, error: &Error, times: usize) {
        let faults = std::iter::repeat_n((begin, error.clone()), times);
        self.state.lock().faults.extend(faults);
    }

    /// Lets every read fail until it is called with `None`.
    pub fn fail_all(&self, error: Option<Error>) {
        self.state.lock().broken = error;
    }

    /// Sets the number of polls until a write is done, and limits those of writes in progress to it.
    pub fn set_polls(&self, polls: u32) {
        let mut state = self.state.lock();
        state.polls = polls;
        for left in state.in_progress.values_mut() {
            *left = polls.min(*left);
        }
    }

    /// Delays every write until [`FakeBalancers::resume`].
    pub fn pause(&self) {
        self.open.send_replace(false);
    }

    /// Lets delayed writes continue.
    pub fn resume(&self) {
        self.open.send_replace(true);
    }

    /// The writes so far, as sentences; refused ones are among them.
    #[must_use]
    pub fn writes(&self) -> Vec<String> {
        self.state.lock().writes.clone()
    }

    /// How often the parts of a Service were looked up in a listing.
    #[must_use]
    pub fn lookups(&self) -> usize {
        self.state.lock().lookups.load(Ordering::Relaxed)
    }

    /// All reads of parts.
    #[must_use]
    pub fn reads(&self) -> Vec<Read> {
        self.state.lock().reads.clone()
    }
}

impl fmt::Debug for FakeBalancers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBalancers").finish_non_exhaustive()
    }
}
