//! The plan of this controller, if every change is accepted. The limit of routes is known where the cloud
//! states one; whether it accepts a next hop is not known before.

use std::{collections::HashMap, fmt, sync::Arc};

use ccm_core::{
    Cloud, Error, ErrorKind, Priority,
    controllers::NodeObject,
    load_balancer::Effect,
    routes::{Changes, CloudRoute, Desired, DesiredRoute, RoutePlan, Routes, imagine},
};
use ipnet::IpNet;

use super::{
    cluster_cidrs,
    outcome::{self, Outcome, must_write},
    retries::Key,
};
use crate::{
    config::RouteConfig,
    controllers::{
        node_action::NodeAction,
        plan::{Blocked, Change, Kind, Plan},
    },
};

/// The name of the routes as a part of the cloud.
const PART: &str = "routes";

/// One change of a route.
#[derive(Clone, Debug)]
pub(super) struct RouteAction<'a> {
    change: RouteChange<'a>,
    /// What is kept beside routes in this cloud.
    beside: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum RouteChange<'a> {
    Create(&'a DesiredRoute),
    /// Another route to the same destination, instead of this one.
    Replace {
        old: &'a CloudRoute,
        new: &'a DesiredRoute,
    },
    /// Delete a route. `owner`: the desired route to the same destination.
    Delete {
        old: &'a CloudRoute,
        owner: Option<&'a DesiredRoute>,
    },
    /// Add what belongs beside a route and is missing.
    Complete(&'a DesiredRoute),
}

impl<'a> RouteAction<'a> {
    /// The changes by route. A route that is deleted where another one is created is one change of that route.
    pub(super) fn all(desired: &'a Desired, changes: &'a Changes, routes: &dyn Routes) -> Vec<Self> {
        let by_destination = |routes: &'a [DesiredRoute]| -> HashMap<_, _> {
            routes.iter().map(|route| (route.destination, route)).collect()
        };
        let owners = by_destination(&desired.wanted);
        let mut created = by_destination(&changes.create);
        let mut all = Vec::new();
        for old in &changes.delete {
            let destination = old.destination.trunc();
            let owner = owners.get(&destination).copied();
            all.push(match created.remove(&destination) {
                Some(new) => RouteChange::Replace { old, new },
                None => RouteChange::Delete { old, owner },
            });
        }
        let create = changes.create.iter();
        let create = create.filter(|route| created.contains_key(&route.destination));
        all.extend(create.map(RouteChange::Create));
        all.extend(changes.finish.iter().map(RouteChange::Complete));
        let beside = routes.beside();
        let all = all.into_iter();
        all.map(|change| Self { change, beside }).collect()
    }

    /// The destination, and the node that has Pods there.
    fn route(&self) -> (IpNet, Option<&str>) {
        let (destination, owner) = match self.change {
            RouteChange::Create(route)
            | RouteChange::Replace { new: route, .. }
            | RouteChange::Complete(route) => (route.destination, Some(route)),
            RouteChange::Delete { old, owner } => (old.destination.trunc(), owner),
        };
        (destination, owner.map(|route| route.node.view.name.as_str()))
    }
}

impl fmt::Display for RouteAction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beside = |before: &str| match self.beside {
            Some(beside) => format!("{before}{beside}"),
            None => String::new(),
        };
        match self.change {
            RouteChange::Create(route) => write!(f, "create route {route}{}", beside(", with ")),
            RouteChange::Replace { new, .. } => write!(f, "change route {new}{}", beside(", with ")),
            RouteChange::Delete { old, .. } => write!(f, "delete route {old}"),
            RouteChange::Complete(route) => write!(f, "complete route {route}{}", beside(": add ")),
        }
    }
}

impl From<&RouteAction<'_>> for Change {
    fn from(action: &RouteAction<'_>) -> Self {
        let (effect, why) = match action.change {
            RouteChange::Create(_) => (Effect::Create, String::new()),
            RouteChange::Replace { old, .. } => {
                let blackhole = if old.blackhole { " (a blackhole)" } else { "" };
                (Effect::Change, format!("now via {}{blackhole}", old.next_hop))
            }
            RouteChange::Delete { owner, .. } => {
                let why = match owner {
                    Some(owner) => format!("the node's is via {}", owner.next_hop),
                    None => "no node has this podCIDR".to_owned(),
                };
                (Effect::Delete, why)
            }
            RouteChange::Complete(_) => {
                let why = "what belongs beside it is missing, or could not be read";
                (Effect::Change, why.to_owned())
            }
        };
        Self {
            why,
            part: Some(PART.to_owned()),
            ..Self::new(effect, Kind::Route, action)
        }
    }
}

/// Collects the actions on routes, and on nodes because of them.
pub(crate) async fn plan(
    nodes: &[Arc<NodeObject>],
    cloud: &dyn Cloud,
    config: &RouteConfig,
    priority: Priority,
    plan: &mut Plan,
) {
    let Some(routes) = cloud.routes() else { return };
    let cidrs = match cluster_cidrs(config) {
        Ok(cidrs) => cidrs,
        Err(wrong) => {
            let what = format!("{wrong}; with --configure-cloud-routes=false no routes are wanted");
            return plan.problem(PART, what);
        }
    };
    let generation = cloud.generation();
    let views: Vec<_> = nodes.iter().filter_map(|node| outcome::view(node)).collect();
    let (desired, route_plan) = match imagine(cloud, routes, views, &cidrs, priority).await {
        Ok(imagined) => imagined,
        Err(error) => return plan.problem(PART, error.report()),
    };
    if cloud.generation() != generation {
        return plan.problem(PART, "the credentials changed while the cloud was asked");
    }
    for action in RouteAction::all(&desired, &route_plan.changes, routes) {
        let (destination, node) = action.route();
        plan.route(destination, node).act(&action);
    }
    collect(&desired, &route_plan, nodes, plan);
}

/// What stays as it is, and the nodes' conditions. Pure.
fn collect(desired: &Desired, route_plan: &RoutePlan, nodes: &[Arc<NodeObject>], plan: &mut Plan) {
    for route in &route_plan.held {
        let what = format!("nobody wants {route}, but nothing is deleted while no node has a podCIDR");
        plan.route(route.destination.trunc(), None)
            .block(Blocked::because(what));
    }
    if let Some(example) = desired.foreign_family {
        plan.route(example, None)
            .warn("--cluster-cidr names no network of this family, so that such podCIDRs get no routes");
    }

    // As if all changes had been made, and those beyond the limit waited.
    let changes = &route_plan.changes;
    let changed = changes.create.iter().chain(&changes.finish);
    let results: HashMap<_, _> = changed.map(|route| (Key::want(route), Ok(()))).collect();
    let mut waiting = HashMap::new();
    if let Some(beyond) = &route_plan.beyond {
        let limit = beyond.limit;
        let text = format!(
            "there is room for {} routes in all; raise {}",
            limit.routes, limit.raised_by
        );
        let full = Error::new(ErrorKind::QuotaExceeded, text);
        waiting.extend(beyond.routes.iter().map(|route| (Key::want(route), full.clone())));
    }
    let items = outcome::items(desired, route_plan, &results, &waiting);
    for (item, due) in items.iter().zip(&desired.due) {
        if let Outcome::Failed(error) = &item.outcome {
            let what = format!("no route is created: {}", error.report());
            plan.route(due.destination, Some(&due.node.view.name))
                .block(Blocked::because(what));
        }
    }
    let have: HashMap<_, _> = nodes
        .iter()
        .map(|node| (node.view.uid.as_str(), node.network))
        .collect();
    for (node, available) in outcome::verdicts(&items) {
        let have = have.get(node.view.uid.as_str());
        if have.is_some_and(|have| must_write(*have, available)) {
            plan.node(&node.view.name)
                .act(&NodeAction::SetNetworkAvailable(available));
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
