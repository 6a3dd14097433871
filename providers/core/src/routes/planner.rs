//! The difference between desired and observed routes.

use std::{collections::HashSet, sync::Arc};

use super::{
    CloudRoute, ClusterCidrs, Desired, DesiredRoute, NextHop, Observed, RouteChanges, RouteDecision,
    RouteLimit, RouteNode, Routes, SkipReason,
};
use crate::{Cloud, Error, ErrorKind, Priority, Result};

/// The changes of routes, and the state of the desired ones.
#[derive(Clone, Debug, Default)]
pub struct RoutePlan {
    /// The changes.
    pub changes: RouteChanges,
    /// For each desired route, in the same order: whether it needs no change.
    pub complete: Vec<bool>,
    /// For each podCIDR of [`Desired::pod_cidrs`]: whether its route exists, also one that would not be created.
    pub exists: Vec<bool>,
    /// Undesired routes inside the cluster's CIDRs that are not deleted because no node has a podCIDR.
    pub blocked: Vec<CloudRoute>,
    /// The number of routes outside the cluster's CIDRs. They are left unchanged.
    pub foreign: usize,
    /// The desired routes that exceed the cloud's limit. Only [`preview`] sets this.
    pub over_limit: Option<OverLimit>,
}

/// Desired routes that exceed a limit.
#[derive(Clone, Debug)]
pub struct OverLimit {
    /// The limit.
    pub limit: RouteLimit,
    /// The routes. They are not among the changes.
    pub routes: Vec<DesiredRoute>,
}

impl RoutePlan {
    /// Drops the last routes to create if they exceed the limit. `used`: how many routes remain in the table.
    fn apply_limit(&mut self, limit: RouteLimit, used: usize) {
        let free = limit.routes.saturating_sub(used);
        if free < self.changes.create.len() {
            let routes = self.changes.create.split_off(free);
            self.over_limit = Some(OverLimit { limit, routes });
        }
    }
}

/// Computes the changes, in a safe order: see the [module](super).
#[must_use]
pub fn plan(desired: &Desired, observed: &Observed, cidrs: &ClusterCidrs) -> RoutePlan {
    let mut plan = RoutePlan::default();
    let desired_keys: HashSet<_> =
        desired.routes.iter().map(|route| (route.destination, &route.next_hop)).collect();
    let mut existing: HashSet<(_, &NextHop)> = HashSet::new();
    for route in &observed.routes {
        let destination = route.destination.trunc();
        let key = (destination, &route.next_hop);
        if !route.blackhole {
            existing.insert(key);
        }
        if !cidrs.contain(&destination) {
            plan.foreign += 1;
        } else if desired.protected.contains(&destination)
            || (!route.blackhole && desired_keys.contains(&key))
        {
        } else if desired.any_pod_cidr {
            plan.changes.delete.push(route.clone());
        } else {
            plan.blocked.push(route.clone());
        }
    }
    let unfinished: HashSet<_> = observed.unfinished.iter().copied().collect();
    for (i, route) in desired.routes.iter().enumerate() {
        let exists = existing.contains(&(route.destination, &route.next_hop));
        plan.complete.push(exists && !unfinished.contains(&i));
        if !exists {
            plan.changes.create.push(route.clone());
        } else if unfinished.contains(&i) {
            plan.changes.finish.push(route.clone());
        }
    }
    plan.exists = desired
        .pod_cidrs
        .iter()
        .map(|pod_cidr| match &pod_cidr.decision {
            RouteDecision::Skip(SkipReason::OutsideClusterCidr(next_hop)) => {
                existing.contains(&(pod_cidr.destination, next_hop))
            }
            RouteDecision::Route(place) => desired
                .routes
                .get(*place)
                .is_some_and(|route| existing.contains(&(route.destination, &route.next_hop))),
            RouteDecision::Skip(_) => false,
        })
        .collect();
    plan
}

/// Computes the plan without writing, within the cloud's limit of routes.
///
/// # Errors
/// The cloud does not support routes, or they could not be read.
pub async fn preview(
    cloud: &dyn Cloud,
    routes: &dyn Routes,
    nodes: impl IntoIterator<Item = Arc<RouteNode>> + Send,
    cidrs: &ClusterCidrs,
    priority: Priority,
) -> Result<(Desired, RoutePlan)> {
    if let Some(why) = routes.unsupported_reason(priority).await? {
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    let desired = Desired::of(
        nodes,
        cidrs,
        |id| cloud.owns(id),
        |node, destination| routes.next_hop(node, destination),
    );
    let observed = routes.observe(&desired.routes, priority).await?;
    let mut plan = plan(&desired, &observed, cidrs);
    if !plan.changes.create.is_empty()
        && let Some(limit) = routes.limit(priority).await?
    {
        let used = observed.routes.len().saturating_sub(plan.changes.delete.len());
        plan.apply_limit(limit, used);
    }
    Ok((desired, plan))
}
