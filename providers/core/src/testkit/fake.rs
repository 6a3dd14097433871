//! A cloud in memory that records its calls.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{FakeBalancers, FakeRoutes};
use crate::{
    Cloud, Error, ErrorKind, Freshness, Instance, InstanceQuery, InstanceState, Instances, Need, Priority,
    Result, Routes, config::suggest, load_balancer::LoadBalancers, plan::PlanMetrics,
};

/// One recorded call of [`Instances::describe`].
#[derive(Clone, Debug)]
pub struct DescribeCall {
    /// The names of the queried nodes, in order.
    pub nodes: Vec<String>,
    /// Whether any query needs metadata.
    pub metadata: bool,
    /// How old the answer may be.
    pub freshness: Freshness,
    /// The priority.
    pub priority: Priority,
    /// When it was called.
    pub at: Instant,
}

/// A cloud in memory: machines by name, injected failures, and a log of the calls.
///
/// Clones share their state: a test keeps one and passes the other to the code under test.
#[derive(Clone)]
pub struct FakeCloud {
    state: Arc<Mutex<FakeState>>,
    open: watch::Sender<bool>,
    balancers: Option<Arc<dyn LoadBalancers>>,
    routes: Option<FakeRoutes>,
}

#[derive(Debug, Default)]
struct FakeState {
    machines: BTreeMap<String, Instance>,
    faults: BTreeMap<String, VecDeque<Error>>,
    broken: Option<Error>,
    /// The scope of the credentials, and how often they changed.
    scope: Option<String>,
    generation: u64,
    /// No machine is visible, as with the credentials of another project.
    invisible: bool,
    calls: Vec<DescribeCall>,
}

impl Default for FakeCloud {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            open: watch::Sender::new(true),
            balancers: None,
            routes: None,
        }
    }
}

impl FakeCloud {
    /// The scheme of its provider IDs and its name.
    pub const NAME: &'static str = "fake";

    /// The same cloud with these load balancers, with empty caches, as after a restart.
    #[must_use]
    pub fn with_balancers(&self, balancers: &FakeBalancers, metrics: PlanMetrics) -> Self {
        self.with_engine(balancers.engine(metrics))
    }

    /// The same cloud with these load balancers.
    #[must_use]
    pub fn with_engine(&self, balancers: Arc<dyn LoadBalancers>) -> Self {
        Self {
            balancers: Some(balancers),
            ..self.clone()
        }
    }

    /// The same cloud with this route table.
    #[must_use]
    pub fn with_routes(&self, routes: &FakeRoutes) -> Self {
        Self {
            routes: Some(routes.clone()),
            ..self.clone()
        }
    }

    /// Adds or replaces the machine called `name`. An empty provider ID becomes `fake://<name>`.
    pub fn insert(&self, name: &str, mut instance: Instance) {
        if instance.provider_id.is_empty() {
            instance.provider_id = format!("{}://{name}", Self::NAME);
        }
        self.state.lock().machines.insert(name.to_owned(), instance);
    }

    /// Removes the machine called `name`.
    pub fn remove(&self, name: &str) {
        self.state.lock().machines.remove(name);
    }

    /// Makes the next `times` answers about the node called `name` fail.
    pub fn fail(&self, name: &str, error: &Error, times: usize) {
        let mut state = self.state.lock();
        state
            .faults
            .entry(name.to_owned())
            .or_default()
            .extend(std::iter::repeat_n(error.clone(), times));
    }

    /// Makes every answer fail until it is called with `None`.
    pub fn fail_all(&self, error: Option<Error>) {
        self.state.lock().broken = error;
    }

    /// Switches to other credentials, described by `scope`.
    pub fn change_credentials(&self, scope: &str) {
        let mut state = self.state.lock();
        state.scope = Some(scope.to_owned());
        state.generation += 1;
    }

    /// Sets whether all machines are invisible, as with the credentials of another project.
    pub fn set_invisible(&self, invisible: bool) {
        self.state.lock().invisible = invisible;
    }

    /// Blocks every call until [`FakeCloud::resume`].
    pub fn pause(&self) {
        self.open.send_replace(false);
    }

    /// Unblocks the blocked calls.
    pub fn resume(&self) {
        self.open.send_replace(true);
    }

    /// The calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<DescribeCall> {
        self.state.lock().calls.clone()
    }
}

impl Cloud for FakeCloud {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn scope(&self) -> String {
        let scope = self.state.lock().scope.clone();
        scope.unwrap_or_else(|| Self::NAME.to_owned())
    }

    fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        self.balancers.as_deref()
    }

    fn routes(&self) -> Option<&dyn Routes> {
        self.routes.as_ref().map(|routes| routes as &dyn Routes)
    }

    fn event_component(&self) -> &'static str {
        "cloud-provider-fake"
    }
}

impl fmt::Debug for FakeCloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeCloud").finish_non_exhaustive()
    }
}

#[async_trait]
impl Instances for FakeCloud {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
        priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        self.state.lock().calls.push(DescribeCall {
            nodes: queries.iter().map(|query| query.node.name.clone()).collect(),
            metadata: queries.iter().any(|query| query.need == Need::Metadata),
            freshness,
            priority,
            at: Instant::now(),
        });
        let mut open = self.open.subscribe();
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = open.wait_for(|open| *open).await;
        let mut state = self.state.lock();
        queries.iter().map(|query| state.answer(query)).collect()
    }

    fn similar_names(&self, name: &str) -> Vec<String> {
        let state = self.state.lock();
        let visible = state.machines.keys().filter(|_| !state.invisible);
        let similar = suggest::similar(name, visible.map(String::as_str));
        similar.into_iter().map(ToOwned::to_owned).collect()
    }
}

impl FakeState {
    fn answer(&mut self, query: &InstanceQuery) -> Result<InstanceState> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let node = &query.node;
        let invisible = self.invisible;
        if let Some(error) = self.faults.get_mut(&node.name).and_then(VecDeque::pop_front) {
            return Err(error);
        }
        let Some(id) = &node.provider_id else {
            return Ok(match self.machines.get(&node.name).filter(|_| !invisible) {
                Some(instance) => InstanceState::Present(instance.clone()),
                None => InstanceState::Unresolved,
            });
        };
        match id.split_once("://") {
            Some((FakeCloud::NAME, rest)) if !rest.is_empty() => {
                Ok(match self.machines.values().find(|instance| !invisible && &instance.provider_id == id) {
                    Some(instance) => InstanceState::Present(instance.clone()),
                    None => InstanceState::Absent,
                })
            }
            Some((scheme, _)) if scheme != FakeCloud::NAME => Ok(InstanceState::Unmanaged),
            _ => Err(Error::new(
                ErrorKind::InvalidSpec,
                "the provider ID does not have the form fake://<name>",
            )
            .with_context("provider_id", id.clone())),
        }
    }
}
