//! What this controller would do, by the same decisions, if every change was accepted. How many routes there is room for
//! is known where the cloud says so; whether it takes a next hop is not known beforehand.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ccm_core::{
    Cloud, Error, ErrorKind, Priority,
    controllers::NodeObject,
    routes::{CloudRoute, Desired, DesiredRoute, RoutePlan, imagine},
};

use super::{
    cluster_cidrs,
    condition::words,
    holds::Key,
    outcome::{self, Outcome, must_write},
};
use crate::{
    options::RouteConfig,
    review::{Blocked, Change, EffectOf, Kind, Review},
};

/// What routes are called as a part of the cloud, and as something that can not be found out.
const PART: &str = "routes";

/// Adds what would be done to routes, and to nodes because of them. Only where [`idle`](super::idle) says nothing.
pub(crate) async fn review(
    nodes: &[Arc<NodeObject>],
    cloud: &dyn Cloud,
    config: &RouteConfig,
    priority: Priority,
    review: &mut Review,
) {
    let Some(routes) = cloud.routes() else { return };
    let cidrs = match cluster_cidrs(config) {
        Ok(cidrs) => cidrs,
        Err(wrong) => {
            let what = format!("{wrong}; with --configure-cloud-routes=false no routes are wanted");
            return review.problem(PART, what);
        }
    };
    let generation = cloud.generation();
    let views: Vec<_> = nodes
        .iter()
        .filter_map(|node| outcome::view(node))
        .map(Arc::new)
        .collect();
    let (desired, plan) = match imagine(cloud, routes, views, &cidrs, priority).await {
        Ok(imagined) => imagined,
        Err(error) => return review.problem(PART, error.report()),
    };
    if cloud.generation() != generation {
        return review.problem(PART, "the credentials changed while the cloud was asked");
    }
    tell(&desired, &plan, routes.beside(), nodes, review);
}

/// What a plan comes to. Pure.
fn tell(
    desired: &Desired,
    plan: &RoutePlan,
    beside: Option<&str>,
    nodes: &[Arc<NodeObject>],
    review: &mut Review,
) {
    add_changes(desired, plan, beside, review);
    for route in &plan.held {
        let what = format!("nobody wants {route}, but nothing is deleted while no node has a podCIDR");
        let subject = review.route(route.destination.trunc(), None);
        subject.block(Blocked::because(what));
    }
    if let Some(example) = desired.foreign_family {
        let what = "--cluster-cidr names no network of this family, so that such podCIDRs get no routes";
        review.route(example, None).warn(what.to_owned());
    }

    // As if all of it had been done, and what has no room waited for some.
    let changed = plan.changes.create.iter().chain(&plan.changes.finish);
    let results: HashMap<_, _> = changed.map(|route| (Key::want(route), Ok(()))).collect();
    let mut waiting = HashMap::new();
    if let Some(beyond) = &plan.beyond {
        let limit = beyond.limit;
        let text = format!(
            "there is room for {} routes in all; raise {}",
            limit.routes, limit.raised_by
        );
        let full = Error::new(ErrorKind::QuotaExceeded, text);
        waiting.extend(beyond.routes.iter().map(|route| (Key::want(route), full.clone())));
    }
    let items = outcome::items(desired, plan, &results, &waiting);
    for (item, due) in items.iter().zip(&desired.due) {
        if let Outcome::Failed(error) = &item.outcome {
            let what = format!("no route is made: {}", error.report());
            let subject = review.route(due.destination, Some(&due.node.view.name));
            subject.block(Blocked::because(what));
        }
    }
    let have: HashMap<_, _> = nodes
        .iter()
        .map(|node| (node.view.uid.as_str(), node.network))
        .collect();
    for (node, available) in outcome::verdicts(&items) {
        let differs = have
            .get(node.view.uid.as_str())
            .is_some_and(|have| must_write(*have, available));
        if differs {
            let (status, reason, _) = words(available);
            let what = format!("set condition NetworkUnavailable to {status} ({reason})");
            let why = if available {
                "it has all of its routes then"
            } else {
                "it lacks a route"
            };
            let subject = review.node(&node.view.name);
            subject.change(EffectOf::Change, Kind::Network, what, why);
        }
    }
}

fn add_changes(desired: &Desired, plan: &RoutePlan, beside: Option<&str>, review: &mut Review) {
    let wanted: HashMap<_, _> = desired
        .wanted
        .iter()
        .map(|route| (route.destination, route))
        .collect();
    // A route that goes where another one comes is one change of that route, however it is carried out.
    let mut comes: HashMap<_, &DesiredRoute> = plan
        .changes
        .create
        .iter()
        .map(|route| (route.destination, route))
        .collect();
    let mut changed = HashSet::new();
    let with = beside.map_or_else(String::new, |beside| format!(", with {beside}"));
    for old in &plan.changes.delete {
        let destination = old.destination.trunc();
        let owner = wanted.get(&destination);
        let node = owner.map(|route| route.node.view.name.as_str());
        let subject = review.route(destination, node);
        let change = match (comes.remove(&destination), owner) {
            (Some(new), _) => {
                changed.insert(destination);
                let why = format!("now via {}", hop(old));
                change(EffectOf::Change, format!("change route {new}{with}"), why)
            }
            (None, Some(owner)) => {
                let why = format!("the node's is via {}", owner.next_hop);
                change(EffectOf::Delete, format!("delete route {old}"), why)
            }
            (None, None) => {
                let why = "no node has this podCIDR".to_owned();
                change(EffectOf::Delete, format!("delete route {old}"), why)
            }
        };
        subject.changes.push(change);
    }
    let new = plan.changes.create.iter();
    for route in new.filter(|route| !changed.contains(&route.destination)) {
        let subject = review.route(route.destination, Some(&route.node.view.name));
        let what = format!("create route {route}{with}");
        subject
            .changes
            .push(change(EffectOf::Create, what, String::new()));
    }
    for route in &plan.changes.finish {
        let subject = review.route(route.destination, Some(&route.node.view.name));
        let what = match beside {
            Some(beside) => format!("complete route {route}: add {beside}"),
            None => format!("complete route {route}"),
        };
        let why = "what belongs beside it is missing, or could not be read".to_owned();
        subject.changes.push(change(EffectOf::Change, what, why));
    }
}

fn hop(route: &CloudRoute) -> String {
    let blackhole = if route.blackhole { " (a blackhole)" } else { "" };
    format!("{}{blackhole}", route.next_hop)
}

fn change(effect: EffectOf, what: String, why: String) -> Change {
    Change {
        effect,
        kind: Kind::Route,
        what,
        why,
        part: Some(PART.to_owned()),
    }
}

#[cfg(test)]
#[path = "review_tests.rs"]
mod tests;
