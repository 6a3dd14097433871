//! The plan of this controller, if every change is accepted. The limit of routes is known where the cloud has one;
//! whether the cloud accepts a next hop is not known before.

use std::{collections::HashMap, sync::Arc};

use ccm_core::{
    Cloud, Error, ErrorKind, Priority,
    controllers::NodeObject,
    load_balancer::Effect,
    routes::{Desired, DesiredRoute, RouteChanges, RoutePlan, Routes, preview},
};
use ipnet::IpNet;

use super::{
    cluster_cidrs,
    outcome::{RouteOutcome, items, must_write, verdicts, view},
    retries::Key,
};
use crate::{
    config::RouteConfig,
    controllers::{
        node_action::NodeAction,
        plan::{Kind, Plan, PlannedChange},
    },
};

/// The name of the routes as a part of the cloud.
const PART: &str = "routes";

/// One change of a route.
pub(super) struct RouteAction<'a> {
    destination: IpNet,
    /// The node that has Pods there.
    node: Option<&'a str>,
    pub(super) change: PlannedChange,
}

/// The changes by route. A route that is deleted where another one is created is one change of that route.
pub(super) fn actions<'a>(
    desired: &'a Desired,
    changes: &'a RouteChanges,
    routes: &dyn Routes,
) -> Vec<RouteAction<'a>> {
    let by_destination = |routes: &'a [DesiredRoute]| -> HashMap<IpNet, &'a DesiredRoute> {
        routes.iter().map(|route| (route.destination, route)).collect()
    };
    let owners = by_destination(&desired.routes);
    let mut created = by_destination(&changes.create);
    let setting = |before: &str| match routes.related_setting() {
        Some(setting) => format!("{before}{setting}"),
        None => String::new(),
    };
    let action =
        |effect, destination, owner: Option<&'a DesiredRoute>, what: String, why: &str| RouteAction {
            destination,
            node: owner.map(|route| route.node.view.name.as_str()),
            change: PlannedChange {
                why: why.to_owned(),
                part: Some(PART.to_owned()),
                ..PlannedChange::new(effect, Kind::Route, &what)
            },
        };
    let mut all = Vec::new();
    for old in &changes.delete {
        let destination = old.destination.trunc();
        let (effect, owner, what, why) = match created.remove(&destination) {
            Some(new) => {
                let blackhole = if old.blackhole { " (a blackhole)" } else { "" };
                let what = format!("change route {new}{}", setting(", with "));
                let why = format!("now via {}{blackhole}", old.next_hop);
                (Effect::Change, Some(new), what, why)
            }
            None => {
                let owner = owners.get(&destination).copied();
                let why = match owner {
                    Some(owner) => format!("the node's is via {}", owner.next_hop),
                    None => "no node has this podCIDR".to_owned(),
                };
                (Effect::Delete, owner, format!("delete route {old}"), why)
            }
        };
        all.push(action(effect, destination, owner, what, &why));
    }
    let create = changes.create.iter();
    for route in create.filter(|route| created.contains_key(&route.destination)) {
        let what = format!("create route {route}{}", setting(", with "));
        all.push(action(Effect::Create, route.destination, Some(route), what, ""));
    }
    for route in &changes.finish {
        let what = format!("complete route {route}{}", setting(": add "));
        let why = "the route exists, but what it needs is missing or could not be read";
        all.push(action(Effect::Change, route.destination, Some(route), what, why));
    }
    all
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
            let what = format!("{wrong}; with --configure-cloud-routes=false no routes are desired");
            return plan.problem(PART, what);
        }
    };
    let generation = cloud.generation();
    let views: Vec<_> = nodes.iter().filter_map(|node| view(node)).collect();
    let (desired, route_plan) = match preview(cloud, routes, views, &cidrs, priority).await {
        Ok(planned) => planned,
        Err(error) => return plan.problem(PART, error.report()),
    };
    if cloud.generation() != generation {
        return plan.problem(PART, "the credentials changed while the cloud was asked");
    }
    for action in actions(&desired, &route_plan.changes, routes) {
        plan.route(action.destination, action.node).act(action.change);
    }
    collect(&desired, &route_plan, nodes, plan);
}

/// Collects blocked routes, and the conditions of the nodes. Pure.
fn collect(desired: &Desired, route_plan: &RoutePlan, nodes: &[Arc<NodeObject>], plan: &mut Plan) {
    for route in &route_plan.blocked {
        let what = format!("no node needs {route}, but nothing is deleted while no node has a podCIDR");
        plan.route(route.destination.trunc(), None).block(what);
    }
    if let Some(example) = desired.foreign_family {
        plan.route(example, None)
            .warn("--cluster-cidr names no network of this family, so that such podCIDRs get no routes");
    }

    // As if all changes were applied, and those over the limit waited.
    let changes = &route_plan.changes;
    let changed = changes.create.iter().chain(&changes.finish);
    let results: HashMap<_, _> = changed.map(|route| (Key::desired(route), Ok(()))).collect();
    let mut waiting = HashMap::new();
    if let Some(over_limit) = &route_plan.over_limit {
        let limit = over_limit.limit;
        let text = format!("the limit is {} routes in all; raise {}", limit.routes, limit.raised_by);
        let full = Error::new(ErrorKind::QuotaExceeded, text);
        let routes = over_limit.routes.iter();
        waiting.extend(routes.map(|route| (Key::desired(route), full.clone())));
    }
    let items = items(desired, route_plan, &results, &waiting);
    for (item, pod_cidr) in items.iter().zip(&desired.pod_cidrs) {
        if let RouteOutcome::Failed(error) = &item.outcome {
            let what = format!("no route is created: {}", error.report());
            plan.route(pod_cidr.destination, Some(&pod_cidr.node.view.name)).block(what);
        }
    }
    let have: HashMap<_, _> = nodes.iter().map(|node| (node.view.uid.as_str(), node.network)).collect();
    for (node, available) in verdicts(&items) {
        let have = have.get(node.view.uid.as_str());
        if have.is_some_and(|have| must_write(*have, available)) {
            plan.node(&node.view.name).act(&NodeAction::SetNetworkAvailable(available));
        }
    }
}

#[cfg(test)]
mod tests;
