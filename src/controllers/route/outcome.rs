//! The outcome of each node's routes, and its desired condition.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind,
    controllers::{NodeObject, node::NetworkCondition},
    routes::{Desired, RouteDecision, RouteNode, RoutePlan, SkipReason},
};

use super::retries::Key;
use crate::controllers::node_object::UNINITIALIZED_TAINT;

/// The outcome for one podCIDR of one node.
#[derive(Clone, Debug)]
pub(super) enum RouteOutcome {
    /// Its route exists, with everything beside it.
    Done,
    /// Its route is missing, or something beside it.
    Failed(Error),
    /// No change was tried yet.
    Pending,
}

/// A podCIDR and its outcome.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) node: Arc<RouteNode>,
    pub(super) destination: String,
    pub(super) outcome: RouteOutcome,
    /// Whether this is the outcome of an attempt, and was not known before.
    pub(super) tried: bool,
    /// Whether the route exists, whatever is missing beside it.
    pub(super) exists: bool,
}

/// The outcome of every podCIDR. `results`: of changes that were tried; `waiting`: why others were not.
pub(super) fn items(
    desired: &Desired,
    plan: &RoutePlan,
    results: &HashMap<Key, Result<(), Error>>,
    waiting: &HashMap<Key, Error>,
) -> Vec<Item> {
    let each = desired.pod_cidrs.iter().enumerate().map(|(i, pod_cidr)| {
        let (outcome, tried) = match &pod_cidr.decision {
            RouteDecision::Route(place) if plan.complete.get(*place) == Some(&true) => {
                (RouteOutcome::Done, false)
            }
            RouteDecision::Route(place) => match desired.routes.get(*place) {
                Some(route) => of_incomplete(&Key::desired(route), results, waiting),
                None => (RouteOutcome::Pending, false),
            },
            RouteDecision::Skip(reason) => (of_skipped(reason, plan.exists.get(i).copied()), false),
        };
        Item {
            node: Arc::clone(&pod_cidr.node),
            destination: pod_cidr.destination.to_string(),
            outcome,
            tried,
            exists: plan.exists.get(i).copied().unwrap_or_default(),
        }
    });
    each.collect()
}

/// The outcome of a route that does not exist as desired, and whether it was tried.
fn of_incomplete(
    key: &Key,
    results: &HashMap<Key, Result<(), Error>>,
    waiting: &HashMap<Key, Error>,
) -> (RouteOutcome, bool) {
    match (results.get(key), waiting.get(key)) {
        (Some(Ok(())), _) => (RouteOutcome::Done, true),
        (Some(Err(error)), _) => (RouteOutcome::Failed(error.clone()), true),
        (None, Some(error)) => (RouteOutcome::Failed(error.clone()), false),
        (None, None) => (RouteOutcome::Pending, false),
    }
}

fn of_skipped(reason: &SkipReason, exists: Option<bool>) -> RouteOutcome {
    let failed = |text: String| RouteOutcome::Failed(Error::new(ErrorKind::InvalidSpec, text));
    match reason {
        // It has no Pods yet. Its addresses will be a change.
        SkipReason::Uninitialized => RouteOutcome::Pending,
        SkipReason::NoNextHop(error) => RouteOutcome::Failed(error.clone()),
        SkipReason::Duplicate(owner) => {
            failed(format!("the older node {} has the same podCIDR", owner.view.name))
        }
        SkipReason::OutsideClusterCidr(_) if exists == Some(true) => RouteOutcome::Done,
        SkipReason::OutsideClusterCidr(_) => {
            failed("it is outside --cluster-cidr, and only routes inside are created".to_owned())
        }
    }
}

/// The desired condition of each node: whether all of its routes exist. Nodes for which that is not known
/// are left out.
pub(super) fn verdicts(items: &[Item]) -> Vec<(Arc<RouteNode>, bool)> {
    let mut nodes: BTreeMap<&str, Vec<&Item>> = BTreeMap::new();
    for item in items {
        let of_node = nodes.entry(item.node.view.uid.as_str()).or_default();
        of_node.push(item);
    }
    let verdicts = nodes.into_values().filter_map(|items| {
        // A missing route is enough. If one is unknown, or something beside it could not be read or changed, the condition
        // stays: the route may work.
        let lacks_one =
            items.iter().any(|item| matches!(item.outcome, RouteOutcome::Failed(_)) && !item.exists);
        if !lacks_one && !items.iter().all(|item| matches!(item.outcome, RouteOutcome::Done)) {
            return None;
        }
        Some((Arc::clone(&items.first()?.node), !lacks_one))
    });
    verdicts.collect()
}

/// Whether a node's condition has to be written.
pub(super) fn must_write(have: NetworkCondition, available: bool) -> bool {
    match have {
        NetworkCondition::RouteCreated => !available,
        NetworkCondition::NoRouteCreated => available,
        NetworkCondition::Absent | NetworkCondition::Other => true,
    }
}

/// The node as routes see it; `None` if it has no podCIDRs.
pub(super) fn view(node: &NodeObject) -> Option<Arc<RouteNode>> {
    if node.pod_cidrs.is_empty() {
        return None;
    }
    let created = node.meta.creation_timestamp.as_ref();
    Some(Arc::new(RouteNode {
        view: Arc::clone(&node.view),
        addresses: node.addresses.clone(),
        pod_cidrs: node.pod_cidrs.to_vec(),
        created: created.map_or(0, |created| created.0.as_second()),
        uninitialized: node.has_taint(UNINITIALIZED_TAINT),
    }))
}

/// A fingerprint of the fields that decide about a node's routes; `None` if it cannot have any yet.
pub(super) fn fingerprint(node: &NodeObject, hasher: &RandomState) -> Option<u64> {
    if node.pod_cidrs.is_empty() {
        return None;
    }
    let new = node.has_taint(UNINITIALIZED_TAINT);
    if new && node.addresses.is_empty() {
        return None;
    }
    let view = &node.view;
    // A next hop that failed while the node was new is read again when it is initialized.
    Some(hasher.hash_one((&view.uid, &view.provider_id, &node.pod_cidrs, &node.addresses, new)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use serde_json::json;

    use super::*;

    fn node(change: impl FnOnce(&mut serde_json::Value)) -> NodeObject {
        let mut node = json!({
            "metadata": {"name": "n", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {"providerID": "fake://n", "podCIDRs": ["10.244.1.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
        });
        change(&mut node);
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn only_fields_that_decide_about_routes_matter() {
        let hasher = RandomState::new();
        let print = |change: &dyn Fn(&mut serde_json::Value)| fingerprint(&node(change), &hasher);
        let plain = print(&|_| {});
        assert!(plain.is_some());
        assert_eq!(print(&|node| node["status"]["images"] = json!([{"names": ["x"]}])), plain);
        assert_eq!(
            print(&|node| node["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}])),
            plain
        );
        for (path, value) in [
            ("/status/addresses/0/address", json!("10.0.0.2")),
            ("/spec/podCIDRs/0", json!("10.244.2.0/24")),
            ("/spec/providerID", json!("fake://m")),
            ("/metadata/uid", json!("v")),
        ] {
            let changed = print(&|node| *node.pointer_mut(path).unwrap() = value.clone());
            assert!(changed.is_some() && changed != plain, "{path}");
        }
        let uninitialized = |node: &mut serde_json::Value| {
            node["spec"]["taints"] = json!([{"key": UNINITIALIZED_TAINT, "effect": "NoSchedule"}]);
        };
        let with_taint = print(&uninitialized);
        assert!(with_taint.is_some() && with_taint != plain, "the taint is removed");
        assert_eq!(print(&|node| node["spec"]["podCIDRs"] = json!([])), None);
        let new = |node: &mut serde_json::Value| {
            node["spec"]["taints"] = json!([{"key": UNINITIALIZED_TAINT, "effect": "NoSchedule"}]);
            node["status"]["addresses"] = json!([]);
        };
        assert_eq!(print(&new), None, "it cannot have a route yet");
    }

    #[test]
    fn the_condition_is_written_only_if_it_differs() {
        use NetworkCondition::{Absent, NoRouteCreated, Other, RouteCreated};
        for (have, available, write) in [
            (Absent, true, true),
            (Absent, false, true),
            (RouteCreated, true, false),
            (RouteCreated, false, true),
            (NoRouteCreated, false, false),
            (NoRouteCreated, true, true),
            (Other, true, true),
            (Other, false, true),
        ] {
            assert_eq!(must_write(have, available), write, "{have:?} {available}");
        }
    }

    #[test]
    fn a_node_has_its_routes_when_all_of_them_exist() {
        let failed = || RouteOutcome::Failed(Error::new(ErrorKind::Unavailable, "no"));
        for (outcomes, exists, expected) in [
            (vec![RouteOutcome::Done], false, Some(true)),
            (vec![RouteOutcome::Done, RouteOutcome::Done], false, Some(true)),
            (vec![RouteOutcome::Done, failed()], false, Some(false)),
            (vec![RouteOutcome::Done, failed()], true, None),
            (vec![RouteOutcome::Pending, failed()], false, Some(false)),
            (vec![RouteOutcome::Pending, RouteOutcome::Done], false, None),
            (vec![RouteOutcome::Done, RouteOutcome::Pending], false, None),
        ] {
            let items: Vec<_> = outcomes
                .iter()
                .map(|outcome| Item {
                    node: Arc::default(),
                    destination: String::new(),
                    outcome: outcome.clone(),
                    tried: true,
                    exists,
                })
                .collect();
            let verdicts: Vec<_> = verdicts(&items).into_iter().map(|(_, all)| all).collect();
            assert_eq!(verdicts, expected.into_iter().collect::<Vec<_>>(), "{outcomes:?}");
        }
    }
}
