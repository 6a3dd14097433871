//! The difference between what there should be and what there is.

use std::{collections::HashSet, sync::Arc};

use super::{
    Changes, CloudRoute, ClusterCidrs, Desired, DesiredRoute, NextHop, Observed, Obstacle, RouteLimit,
    RouteNode, Routes, Want,
};
use crate::{Cloud, Error, ErrorKind, Priority, Result};

/// What there is to do, and what is as it should be.
#[derive(Clone, Debug, Default)]
pub struct RoutePlan {
    /// What there is to do.
    pub changes: Changes,
    /// For each wanted route, by its place: whether nothing is to do for it.
    pub done: Vec<bool>,
    /// For each thing that is due, by its place: whether its route is there although it would not be made.
    pub there: Vec<bool>,
    /// Routes inside the cluster's CIDRs that stay although nobody wants them, because no node has a podCIDR.
    pub held: Vec<CloudRoute>,
    /// Routes outside the cluster's CIDRs, which are nobody's business here.
    pub foreign: usize,
    /// What there is no room for, if somebody looked ahead.
    pub beyond: Option<Beyond>,
}

/// Wanted routes for which there is no room.
#[derive(Clone, Debug)]
pub struct Beyond {
    /// What bounds them.
    pub limit: RouteLimit,
    /// The routes. They are not among the changes.
    pub routes: Vec<DesiredRoute>,
}

impl RoutePlan {
    /// Keeps to a limit, `stay` of which is taken: the first routes come.
    fn bound(&mut self, limit: RouteLimit, stay: usize) {
        let room = limit.routes.saturating_sub(stay);
        if room < self.changes.create.len() {
            let routes = self.changes.create.split_off(room);
            self.beyond = Some(Beyond { limit, routes });
        }
    }
}

/// The difference, in an order that is safe: see the [module](super).
#[must_use]
pub fn plan(desired: &Desired, observed: &Observed, cidrs: &ClusterCidrs) -> RoutePlan {
    let mut plan = RoutePlan::default();
    let wanted: HashSet<_> = desired
        .wanted
        .iter()
        .map(|route| (route.destination, &route.next_hop))
        .collect();
    let mut there: HashSet<(_, &NextHop)> = HashSet::new();
    for route in &observed.routes {
        let destination = route.destination.trunc();
        let key = (destination, &route.next_hop);
        if !route.blackhole {
            there.insert(key);
        }
        if !cidrs.contain(&destination) {
            plan.foreign += 1;
        } else if desired.kept.contains(&destination) || (!route.blackhole && wanted.contains(&key)) {
        } else if desired.any_pod_cidr {
            plan.changes.delete.push(route.clone());
        } else {
            plan.held.push(route.clone());
        }
    }
    let unfinished: HashSet<_> = observed.unfinished.iter().copied().collect();
    for (i, route) in desired.wanted.iter().enumerate() {
        let is_there = there.contains(&(route.destination, &route.next_hop));
        plan.done.push(is_there && !unfinished.contains(&i));
        if !is_there {
            plan.changes.create.push(route.clone());
        } else if unfinished.contains(&i) {
            plan.changes.finish.push(route.clone());
        }
    }
    plan.there = desired
        .due
        .iter()
        .map(|due| match &due.want {
            Want::Obstacle(Obstacle::Outside(next_hop)) => there.contains(&(due.destination, next_hop)),
            Want::Obstacle(_) | Want::Route(_) => false,
        })
        .collect();
    plan
}

/// What would be done, by reads alone, as far as there is room for it.
///
/// # Errors
/// If the cloud has no routes, or they cannot be read.
pub async fn imagine(
    cloud: &dyn Cloud,
    routes: &dyn Routes,
    nodes: impl IntoIterator<Item = Arc<RouteNode>> + Send,
    cidrs: &ClusterCidrs,
    priority: Priority,
) -> Result<(Desired, RoutePlan)> {
    if let Some(why) = routes.missing(priority).await? {
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    let next_hop = |node: &RouteNode, destination| routes.next_hop(node, destination);
    let desired = Desired::of(nodes, cidrs, |id| cloud.owns(id), next_hop);
    let observed = routes.observe(&desired.wanted, priority).await?;
    let mut plan = plan(&desired, &observed, cidrs);
    if !plan.changes.create.is_empty()
        && let Some(limit) = routes.limit(priority).await?
    {
        let stay = observed.routes.len().saturating_sub(plan.changes.delete.len());
        plan.bound(limit, stay);
    }
    Ok((desired, plan))
}
