//! A route table in memory, and passes over route tables of clouds.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use ipnet::IpNet;
use parking_lot::Mutex;

use crate::{
    AddressType, Cloud, Error, ErrorKind, Priority, Result,
    routes::{
        Applied, CloudRoute, ClusterCidrs, Desired, DesiredRoute, NextHop, Observed, RouteChanges,
        RouteLimit, RouteNode, RoutePlan, Routes, plan,
    },
};

/// Runs a pass of the route controller for these nodes.
///
/// # Errors
///
/// The routes cannot be read.
///
/// # Panics
///
/// The cloud has no routes.
pub async fn pass(
    cloud: &dyn Cloud,
    cidrs: &ClusterCidrs,
    nodes: &[Arc<RouteNode>],
) -> Result<(RoutePlan, Applied)> {
    let routes = cloud.routes().expect("the cloud has routes");
    let next_hop = |node: &RouteNode, destination| routes.next_hop(node, destination);
    let desired = Desired::of(nodes.iter().cloned(), cidrs, |id| cloud.owns(id), next_hop);
    let observed = routes.observe(&desired.routes, Priority::User).await?;
    let plan = plan(&desired, &observed, cidrs);
    let applied = routes.apply(&plan.changes, Priority::User).await;
    Ok((plan, applied))
}

/// Asserts that all results of a pass are successful. Returns the number of changes.
///
/// # Panics
///
/// A change failed.
#[must_use]
pub fn assert_all_ok((plan, applied): &(RoutePlan, Applied)) -> usize {
    for result in [&applied.deleted, &applied.created, &applied.finished].into_iter().flatten() {
        assert!(result.is_ok(), "{result:?}");
    }
    plan.changes.len()
}

/// A call of the route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteCall {
    /// A read of the table.
    Observe,
    /// A write, with the numbers of routes to delete, create and finish.
    Apply(usize, usize, usize),
}

/// A route table in memory. The next hop is the first internal address of the family. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct FakeRoutes(Arc<Mutex<RouteTableState>>);

#[derive(Debug, Default)]
struct RouteTableState {
    table: Vec<CloudRoute>,
    limit: Option<usize>,
    refused: HashSet<NextHop>,
    /// The destinations whose related settings are missing.
    unfinished: HashSet<IpNet>,
    broken: Option<Error>,
    unsupported: Option<String>,
    calls: Vec<RouteCall>,
}

impl FakeRoutes {
    /// The table, in the order of creation.
    #[must_use]
    pub fn table(&self) -> Vec<CloudRoute> {
        self.0.lock().table.clone()
    }

    /// Adds a route, as another client of the cloud would.
    pub fn insert(&self, destination: IpNet, next_hop: &str) {
        self.0.lock().table.push(route(destination, &NextHop::new(next_hop)));
    }

    /// Removes all routes to this destination, as another client of the cloud would.
    pub fn remove(&self, destination: IpNet) {
        self.0.lock().table.retain(|route| route.destination != destination);
    }

    /// Sets the most routes that the table accepts.
    pub fn set_limit(&self, limit: Option<usize>) {
        self.0.lock().limit = limit;
    }

    /// Sets whether routes via this next hop are refused.
    pub fn refuse(&self, next_hop: &str, refused: bool) {
        let next_hop = NextHop::new(next_hop);
        let mut state = self.0.lock();
        if refused {
            state.refused.insert(next_hop);
        } else {
            state.refused.remove(&next_hop);
        }
    }

    /// Removes the related settings of the route to this destination.
    pub fn set_unfinished(&self, destination: IpNet) {
        self.0.lock().unfinished.insert(destination);
    }

    /// Makes every call fail until it is called with `None`.
    pub fn fail_all(&self, error: Option<Error>) {
        self.0.lock().broken = error;
    }

    /// Sets the reason why the cloud does not support routes.
    pub fn set_unsupported(&self, reason: Option<&str>) {
        self.0.lock().unsupported = reason.map(str::to_owned);
    }

    /// The calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<RouteCall> {
        self.0.lock().calls.clone()
    }
}

fn route(destination: IpNet, next_hop: &NextHop) -> CloudRoute {
    CloudRoute {
        destination,
        next_hop: next_hop.clone(),
        blackhole: false,
        handle: format!("{destination} {next_hop}"),
    }
}

#[async_trait]
impl Routes for FakeRoutes {
    async fn unsupported_reason(&self, _: Priority) -> Result<Option<String>> {
        let state = self.0.lock();
        state.broken.clone().map_or(Ok(state.unsupported.clone()), Err)
    }

    fn next_hop(&self, node: &RouteNode, destination: IpNet) -> Result<NextHop> {
        let address = node.addresses.iter().find_map(|address| {
            let ip: IpAddr = address.address.parse().ok()?;
            let fits = ip.is_ipv4() == matches!(destination, IpNet::V4(_));
            (address.kind == AddressType::InternalIP && fits).then_some(ip)
        });
        address
            .map(|ip| NextHop::new(ip.to_string()))
            .ok_or_else(|| Error::new(ErrorKind::InvalidSpec, "the node has no address of this IP family"))
    }

    async fn observe(&self, desired: &[DesiredRoute], _: Priority) -> Result<Observed> {
        let mut state = self.0.lock();
        state.calls.push(RouteCall::Observe);
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let is_unfinished = |route: &DesiredRoute| state.unfinished.contains(&route.destination);
        let unfinished = desired.iter().enumerate().filter(|(_, route)| is_unfinished(route));
        Ok(Observed {
            unfinished: unfinished.map(|(i, _)| i).collect(),
            routes: state.table.clone(),
        })
    }

    async fn limit(&self, _: Priority) -> Result<Option<RouteLimit>> {
        let limit = self.0.lock().limit;
        Ok(limit.map(|routes| RouteLimit {
            routes,
            raised_by: "the limit of the fake",
        }))
    }

    async fn apply(&self, changes: &RouteChanges, _: Priority) -> Applied {
        let mut state = self.0.lock();
        state
            .calls
            .push(RouteCall::Apply(changes.delete.len(), changes.create.len(), changes.finish.len()));
        let broken = state.broken.clone().map_or(Ok(()), Err);
        let mut applied = Applied::default();
        for deleted in &changes.delete {
            if broken.is_ok() {
                state.table.retain(|route| route.handle != deleted.handle);
            }
            applied.deleted.push(broken.clone());
        }
        for new in &changes.create {
            let full = state.limit.is_some_and(|limit| state.table.len() >= limit);
            let new_route = route(new.destination, &new.next_hop);
            let result = if broken.is_err() {
                broken.clone()
            } else if state.table.contains(&new_route) {
                Ok(())
            } else if state.refused.contains(&new.next_hop) {
                Err(Error::new(ErrorKind::InvalidSpec, "no such next hop"))
            } else if full {
                Err(Error::new(ErrorKind::QuotaExceeded, "the table is full"))
            } else {
                state.table.push(new_route);
                Ok(())
            };
            applied.created.push(result);
        }
        for unfinished in &changes.finish {
            if broken.is_ok() {
                state.unfinished.remove(&unfinished.destination);
            }
            applied.finished.push(broken.clone());
        }
        applied
    }
}
