//! The desired routes, computed from the nodes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ipnet::IpNet;

use super::{ClusterCidrs, DesiredRoute, NextHop, RouteNode};
use crate::{Error, Result};

/// The desired routes. Oldest node first.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    /// The routes. No destination occurs twice.
    pub routes: Vec<DesiredRoute>,
    /// The podCIDRs of the nodes. Nodes that are not in the list need no routes.
    pub pod_cidrs: Vec<PodCidr>,
    /// Destinations whose routes are left unchanged.
    pub protected: HashSet<IpNet>,
    /// Whether any node has a podCIDR. Otherwise, no route is deleted.
    pub any_pod_cidr: bool,
    /// A podCIDR of a family that has no cluster CIDR, if any. Its routes are left unchanged.
    pub foreign_family: Option<IpNet>,
}

/// One podCIDR of one node.
#[derive(Clone, Debug)]
pub struct PodCidr {
    /// The node.
    pub node: Arc<RouteNode>,
    /// Its podCIDR.
    pub destination: IpNet,
    /// Whether it gets a route.
    pub decision: RouteDecision,
}

/// Whether a podCIDR gets a route.
#[derive(Clone, Debug)]
pub enum RouteDecision {
    /// The route at this index of [`Desired::routes`].
    Route(usize),
    /// No route, for this reason.
    Skip(SkipReason),
}

/// Why a podCIDR gets no route.
#[derive(Clone, Debug)]
pub enum SkipReason {
    /// The node is new and has no addresses yet.
    Uninitialized,
    /// The node has no next hop.
    NoNextHop(Error),
    /// This older node has the same podCIDR.
    Duplicate(Arc<RouteNode>),
    /// The podCIDR is outside the cluster's CIDRs. An existing route via this next hop is accepted.
    OutsideClusterCidr(NextHop),
}

impl Desired {
    /// Computes the desired routes. `owns`: whether a provider ID belongs to this cloud; `next_hop`: see
    /// [`Routes::next_hop`](super::Routes::next_hop).
    pub fn of(
        nodes: impl IntoIterator<Item = Arc<RouteNode>>,
        cidrs: &ClusterCidrs,
        owns: impl Fn(&str) -> bool,
        next_hop: impl Fn(&RouteNode, IpNet) -> Result<NextHop>,
    ) -> Self {
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_by(|a, b| (a.created, &a.view.name).cmp(&(b.created, &b.view.name)));
        let mut desired = Self::default();
        let mut claims: HashMap<IpNet, Arc<RouteNode>> = HashMap::new();
        for node in nodes {
            for (i, destination) in node.pod_cidrs.iter().enumerate() {
                desired.any_pod_cidr = true;
                if node.pod_cidrs.iter().take(i).any(|earlier| earlier == destination) {
                    continue;
                }
                if node.view.provider_id.as_deref().is_some_and(|id| !owns(id)) {
                    desired.protected.insert(*destination);
                    continue;
                }
                if !cidrs.has_family_of(destination) {
                    desired.foreign_family.get_or_insert(*destination);
                    continue;
                }
                let decision = desired.decide(&node, *destination, cidrs, &mut claims, &next_hop);
                desired.pod_cidrs.push(PodCidr {
                    node: Arc::clone(&node),
                    destination: *destination,
                    decision,
                });
            }
        }
        desired
    }

    fn decide(
        &mut self,
        node: &Arc<RouteNode>,
        destination: IpNet,
        cidrs: &ClusterCidrs,
        claims: &mut HashMap<IpNet, Arc<RouteNode>>,
        next_hop: impl Fn(&RouteNode, IpNet) -> Result<NextHop>,
    ) -> RouteDecision {
        if let Some(owner) = claims.get(&destination) {
            return RouteDecision::Skip(SkipReason::Duplicate(Arc::clone(owner)));
        }
        claims.insert(destination, Arc::clone(node));
        match next_hop(node, destination) {
            Err(_) if node.uninitialized => {
                self.protected.insert(destination);
                RouteDecision::Skip(SkipReason::Uninitialized)
            }
            Err(error) => {
                self.protected.insert(destination);
                RouteDecision::Skip(SkipReason::NoNextHop(error))
            }
            Ok(next_hop) if !cidrs.contain(&destination) => {
                RouteDecision::Skip(SkipReason::OutsideClusterCidr(next_hop))
            }
            Ok(next_hop) => {
                self.routes.push(DesiredRoute {
                    destination,
                    next_hop,
                    node: Arc::clone(node),
                });
                RouteDecision::Route(self.routes.len() - 1)
            }
        }
    }
}
