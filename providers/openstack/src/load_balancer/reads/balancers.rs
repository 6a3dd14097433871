//! Load balancers, and the states of pending ones.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{ErrorKind, Freshness, Priority, Result, client::Listing, load_balancer::ReadOptions};
use tokio::time::Instant;

use super::{Reads, octavia};
use crate::{
    client::{Op, listing::Resource},
    load_balancer::{
        fields,
        responses::{LoadBalancer, LoadBalancerState, Provisioning, Status},
    },
};

/// The fields of a load balancer's state.
const STATE_FIELDS: [(&str, &str); 3] = [
    ("fields", fields::PROVISIONING_STATUS),
    ("fields", "operating_status"),
    ("fields", "updated_at"),
];
/// The number of states in a listing that cost as much as one request for a load balancer.
const STATES_PER_REQUEST: usize = 50;

impl Reads {
    /// The load balancers of the project. `id`: the one that matters to the caller.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(crate) async fn load_balancers(
        &self,
        id: Option<&str>,
        read: ReadOptions,
    ) -> Result<Arc<Listing<LoadBalancer>>> {
        self.shared(&self.balancers, id, &[], read).await
    }

    /// The load balancer with this ID, also of another project; `None` if it does not exist. A listing alone never
    /// proves that.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn load_balancer(
        &self,
        id: &str,
        read: ReadOptions,
    ) -> Result<Option<Arc<LoadBalancer>>> {
        let listing = self.load_balancers(Some(id), read).await?;
        if let Some(found) = listing.by_id(id) {
            return Ok(Some(Arc::clone(found)).filter(|found| found.provisioning_status.exists()));
        }
        self.load_balancer_uncached(id, read.priority).await
    }

    /// As [`Self::load_balancer`], without the cache.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn load_balancer_uncached(
        &self,
        id: &str,
        priority: Priority,
    ) -> Result<Option<Arc<LoadBalancer>>> {
        let found: Option<LoadBalancer> = self.uncached(Op::LoadBalancerGet, id, priority).await?;
        let found = found.filter(|found| found.provisioning_status.exists());
        Ok(found.map(Arc::new))
    }

    /// Reads an object of Octavia; `None` if it does not exist.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn uncached<T: Resource>(
        &self,
        op: Op,
        id: &str,
        priority: Priority,
    ) -> Result<Option<T>> {
        self.api.find(op, id, priority).await
    }

    /// Whether a page of states costs less than one read of each pending load balancer.
    pub(crate) fn is_worth_listing(&self, waiting: usize) -> bool {
        const FEW: usize = 2;
        // The length of the listing is unknown before its first read.
        let known = self.balancers.last_len().unwrap_or(usize::MAX);
        waiting > FEW && waiting.saturating_mul(STATES_PER_REQUEST) >= known
    }

    /// The state of a load balancer at `since` or later, from a shared listing of states.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn state_among_many(
        &self,
        id: &str,
        since: Instant,
        priority: Priority,
    ) -> Result<Option<LoadBalancerState>> {
        let api = self.api.clone();
        let states = self
            .states
            .get((), Freshness::After(since), priority, || async move {
                let project = api.project().await?;
                let mut query = vec![("fields", "id")];
                query.extend(STATE_FIELDS);
                query.extend(project.as_deref().map(|project| ("project_id", project)));
                let states: Vec<Status> = api.list(&query, priority).await?;
                Ok(states.into_iter().map(|one| (one.id, one.state)).collect::<HashMap<_, _>>())
            })
            .await?;
        match states.get(id) {
            Some(state) => Ok(self.update_state(id, state.clone())),
            // A listing alone never proves that the load balancer was deleted.
            None => self.state(id, priority).await,
        }
    }

    /// Reads the state of a load balancer; `None` if it does not exist. Updates the listing, too.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) async fn state(&self, id: &str, priority: Priority) -> Result<Option<LoadBalancerState>> {
        #[derive(serde::Deserialize)]
        struct StateDocument {
            loadbalancer: LoadBalancerState,
        }
        let path = ["lbaas", "loadbalancers", id];
        let get = octavia(Op::LoadBalancerGet, &path, &STATE_FIELDS);
        match self.api.get::<StateDocument>(&get, priority).await {
            Ok(StateDocument { loadbalancer: state }) => Ok(self.update_state(id, state)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.balancers.remove(id);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Updates a state in the listing.
    fn update_state(&self, id: &str, state: LoadBalancerState) -> Option<LoadBalancerState> {
        if !state.provisioning_status.exists() {
            self.balancers.remove(id);
            return None;
        }
        self.balancers.update(id, |balancer| {
            balancer.provisioning_status = state.provisioning_status.clone();
            balancer.operating_status.clone_from(&state.operating_status);
            balancer.updated_at.clone_from(&state.updated_at);
        });
        if state.provisioning_status == Provisioning::Error {
            // A change of an object below it failed.
            self.invalidate_children(id);
        }
        Some(state)
    }
}
