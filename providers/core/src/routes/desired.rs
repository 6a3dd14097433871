//! What routes there should be, by the nodes alone.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ipnet::IpNet;

use super::{ClusterCidrs, DesiredRoute, NextHop, RouteNode};
use crate::{Error, Result};

/// What there should be. Oldest node first.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    /// The routes, no destination twice.
    pub wanted: Vec<DesiredRoute>,
    /// What each node has a right to. A node that is not in it has no routes due.
    pub due: Vec<Due>,
    /// Destinations whose routes are left as they are.
    pub kept: HashSet<IpNet>,
    /// Whether any node has a podCIDR at all. Without, nothing is deleted.
    pub any_pod_cidr: bool,
    /// A podCIDR of a family that has no cluster CIDR, if there is one. It is left alone.
    pub foreign_family: Option<IpNet>,
}

/// One podCIDR of one node.
#[derive(Clone, Debug)]
pub struct Due {
    /// The node.
    pub node: Arc<RouteNode>,
    /// Its podCIDR.
    pub destination: IpNet,
    /// What comes of it.
    pub want: Want,
}

/// What comes of a podCIDR.
#[derive(Clone, Debug)]
pub enum Want {
    /// The wanted route of this place.
    Route(usize),
    /// None, and why.
    Obstacle(Obstacle),
}

/// Why a podCIDR gets no route.
#[derive(Clone, Debug)]
pub enum Obstacle {
    /// The node is new and has no addresses yet.
    Waiting,
    /// It has nothing that a route could lead to.
    NoNextHop(Error),
    /// This older node has the same podCIDR.
    Taken(Arc<RouteNode>),
    /// It is outside the cluster's CIDRs. (If a route is there, it is fine.)
    Outside(NextHop),
}

impl Desired {
    /// From the nodes. `owns`: whether a provider ID is this cloud's; `next_hop`: see
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
                if node
                    .pod_cidrs
                    .iter()
                    .take(i)
                    .any(|earlier| earlier == destination)
                {
                    continue;
                }
                if node.view.provider_id.as_deref().is_some_and(|id| !owns(id)) {
                    desired.kept.insert(*destination);
                    continue;
                }
                if !cidrs.has_family_of(destination) {
                    desired.foreign_family.get_or_insert(*destination);
                    continue;
                }
                let want = desired.want(&node, *destination, cidrs, &mut claims, &next_hop);
                desired.due.push(Due {
                    node: Arc::clone(&node),
                    destination: *destination,
                    want,
                });
            }
        }
        desired
    }

    fn want(
        &mut self,
        node: &Arc<RouteNode>,
        destination: IpNet,
        cidrs: &ClusterCidrs,
        claims: &mut HashMap<IpNet, Arc<RouteNode>>,
        next_hop: impl Fn(&RouteNode, IpNet) -> Result<NextHop>,
    ) -> Want {
        if let Some(owner) = claims.get(&destination) {
            return Want::Obstacle(Obstacle::Taken(Arc::clone(owner)));
        }
        claims.insert(destination, Arc::clone(node));
        match next_hop(node, destination) {
            Err(_) if node.uninitialized => {
                self.kept.insert(destination);
                Want::Obstacle(Obstacle::Waiting)
            }
            Err(error) => {
                self.kept.insert(destination);
                Want::Obstacle(Obstacle::NoNextHop(error))
            }
            Ok(next_hop) if !cidrs.contain(&destination) => Want::Obstacle(Obstacle::Outside(next_hop)),
            Ok(next_hop) => {
                self.wanted.push(DesiredRoute {
                    destination,
                    next_hop,
                    node: Arc::clone(node),
                });
                Want::Route(self.wanted.len() - 1)
            }
        }
    }
}
