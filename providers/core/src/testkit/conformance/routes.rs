//! The conformance scenarios of routes.
//!
//! The scenarios hold for a router that takes many routes in one call (OpenStack), for tables that take one route per call
//! (AWS, GCE), and for a table that is one document (Azure). They do not limit the number of calls of a change.

mod fixture;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use ipnet::IpNet;

use self::fixture::{RouteFixture, apply, ensure_applied, pods, routes_of, with_pods};
use super::{BoxError, Checked, Subject, by_name, present, report};
use crate::{
    Cloud, ErrorKind, NodeView, Priority,
    routes::{Applied, CloudRoute, ClusterCidrs, Desired, Observed, RouteChanges, RouteNode, RoutePlan},
};

/// The cluster CIDR of the suite. No other routes in the cloud under test may use it.
pub const CLUSTER_CIDR: &str = "10.249.0.0/16";
/// A destination outside the cluster CIDR. No other routes may use it either.
const OUTSIDE: &str = "10.250.7.0/24";

/// The most machines: each has its own network inside [`CLUSTER_CIDR`], and some scenarios need more networks.
const MAX_MACHINES: usize = 90;

/// A cloud with routes under test. Machines are those of [`Subject`]; routes can lead to all of them.
#[async_trait]
pub trait RouteSubject: Subject {
    /// A new provider on the same cloud, with empty caches.
    async fn restarted(&self) -> Result<Arc<dyn Cloud>, BoxError>;

    /// All routes as another client reads them, as destination and next hop; `None` if there is no other client.
    async fn table(&self) -> Result<Option<Vec<(IpNet, String)>>, BoxError> {
        Ok(None)
    }

    /// A node with a next hop that this cloud refuses, if there is one.
    fn unroutable(&self) -> Option<RouteNode> {
        None
    }

    /// Sets the limit of routes in total; `None` restores the default. Returns whether the cloud supports this.
    async fn set_limit(&self, limit: Option<usize>) -> Result<bool, BoxError> {
        let _ = limit;
        Ok(false)
    }
}

/// Runs every scenario of routes.
///
/// # Panics
///
/// A scenario fails; the message lists all failed ones.
pub async fn routes(subject: &dyn RouteSubject) {
    let fixture = match RouteFixture::new(subject).await {
        Ok(fixture) => fixture,
        Err(error) => panic!("could not prepare the scenarios: {error}"),
    };
    let mut failed = Vec::new();
    macro_rules! run {
        ($($scenario:ident),+ $(,)?) => {$(
            let result = match $scenario(&fixture).await {
                Ok(()) => fixture.delete_routes().await,
                Err(error) => {
                    // The first error is reported; a failed cleanup shows in the next scenario.
                    let _ = fixture.delete_routes().await;
                    Err(error)
                }
            };
            if let Err(error) = result {
                failed.push(format!("{}: {error}", stringify!($scenario)));
            }
        )+};
    }
    run!(
        the_cloud_supports_routes,
        a_next_hop_always_has_the_same_text,
        an_empty_node_has_no_next_hop,
        no_changes_send_no_request,
        a_restart_finds_all_routes_complete,
        a_read_costs_less_than_one_request_per_route,
        changes_are_idempotent,
        a_route_with_a_new_next_hop_exists_once,
        routes_outside_the_cluster_cidr_are_left_unchanged,
        the_route_of_a_deleted_machine_can_be_deleted,
        an_invalid_route_does_not_block_others,
        the_first_routes_fill_the_limit,
        an_abandoned_call_is_completed_later,
    );
    if let Err(error) = fixture.clean_up().await {
        failed.push(format!("cleanup: {error}"));
    }
    report(&failed);
}

async fn the_cloud_supports_routes(fixture: &RouteFixture<'_>) -> Checked {
    let cloud = fixture.subject.cloud();
    let reason = routes_of(&*cloud)?.unsupported_reason(Priority::User).await?;
    ensure!(reason.is_none(), "no routes: {}", reason.unwrap_or_default());
    Ok(())
}

async fn a_next_hop_always_has_the_same_text(fixture: &RouteFixture<'_>) -> Checked {
    let (old, new) = (fixture.subject.cloud(), fixture.subject.restarted().await?);
    let mut hops = BTreeSet::new();
    for node in fixture.nodes(fixture.nodes.len())? {
        let hop = routes_of(&*old)?.next_hop(&node, pods(0)?)?;
        for (cloud, place) in [(&old, 0), (&old, 1), (&new, 0)] {
            let again = routes_of(&**cloud)?.next_hop(&node, pods(place)?)?;
            ensure!(again == hop, "{again} was {hop} before");
        }
        hops.insert(hop);
    }
    ensure!(hops.len() == fixture.nodes.len(), "several nodes have the same next hop: {hops:?}");
    Ok(())
}

async fn an_empty_node_has_no_next_hop(fixture: &RouteFixture<'_>) -> Checked {
    let cloud = fixture.subject.cloud();
    match routes_of(&*cloud)?.next_hop(&RouteNode::default(), pods(0)?) {
        Ok(hop) => Err(format!("a node without provider ID and addresses has the next hop {hop}").into()),
        Err(_) => Ok(()),
    }
}

async fn no_changes_send_no_request(fixture: &RouteFixture<'_>) -> Checked {
    let cloud = fixture.subject.cloud();
    // The first call may read what later calls need.
    routes_of(&*cloud)?.unsupported_reason(Priority::User).await?;
    let before = fixture.subject.requests();
    ensure_applied(&apply(&*cloud, &RouteChanges::default()).await?)?;
    let after = fixture.subject.requests();
    ensure!(before == after, "{before:?} requests before, {after:?} after");
    Ok(())
}

async fn a_restart_finds_all_routes_complete(fixture: &RouteFixture<'_>) -> Checked {
    let before = fixture.table().await?;
    let nodes = fixture.nodes(fixture.nodes.len())?;
    fixture.converge(&nodes).await?;
    let after = fixture.table().await?;
    ensure!(
        after.len() == before.len() + nodes.len(),
        "{} routes before, {} after creating {}",
        before.len(),
        after.len(),
        nodes.len()
    );
    ensure!(before.iter().all(|route| after.contains(route)), "a foreign route was deleted");
    // The first half is deleted.
    let rest = nodes.get(nodes.len() / 2..).unwrap_or_default();
    fixture.converge(rest).await?;
    let after = fixture.table().await?;
    ensure!(after.len() == before.len() + rest.len(), "not all were deleted: {after:?}");
    Ok(())
}

async fn a_read_costs_less_than_one_request_per_route(fixture: &RouteFixture<'_>) -> Checked {
    let nodes = fixture.nodes(fixture.nodes.len())?;
    fixture.converge(&nodes).await?;
    let cloud = fixture.subject.cloud();
    let before = fixture.subject.requests();
    fixture.plan(&*cloud, &nodes).await?;
    let after = fixture.subject.requests();
    if let (Some(before), Some(after)) = (before, after) {
        ensure!(after - before < nodes.len(), "{} requests for {} routes", after - before, nodes.len());
    }
    Ok(())
}

async fn changes_are_idempotent(fixture: &RouteFixture<'_>) -> Checked {
    let nodes = fixture.nodes(2)?;
    let (created, applied) = fixture.pass(&nodes).await?;
    ensure_applied(&applied)?;
    let expected = fixture.table().await?;
    // The reply was lost, so the same changes are applied again, by this process and by a restarted one.
    for cloud in [fixture.subject.cloud(), fixture.subject.restarted().await?] {
        ensure_applied(&apply(&*cloud, &created.changes).await?)?;
        ensure!(fixture.table().await? == expected, "the second call changed the table");
    }
    let last = fixture.nodes(3)?.split_off(2);
    let deleted = fixture.plan(&*fixture.subject.cloud(), &last).await?.changes;
    ensure!(deleted.delete.len() == 2, "{:?}", deleted.sentences());
    for _ in 0..2 {
        let applied = apply(&*fixture.subject.cloud(), &deleted).await?;
        ensure_applied(&applied)?;
    }
    fixture.converge(&last).await
}

async fn a_route_with_a_new_next_hop_exists_once(fixture: &RouteFixture<'_>) -> Checked {
    let [one, other] = [0, 1].map(|i| fixture.nodes.get(i));
    let (Some(one), Some(other)) = (one, other) else {
        return Err("too few nodes".into());
    };
    for node in [one, other, one] {
        fixture.converge(&[with_pods(node, 0)?]).await?;
        let cloud = fixture.subject.cloud();
        let hop = routes_of(&*cloud)?.next_hop(node, pods(0)?)?.to_string();
        let hops = fixture.hops(pods(0)?).await?;
        ensure!(hops == BTreeSet::from([hop.clone()]), "the next hops are {hops:?} instead of {hop}");
    }
    Ok(())
}

async fn routes_outside_the_cluster_cidr_are_left_unchanged(fixture: &RouteFixture<'_>) -> Checked {
    let cloud = fixture.subject.cloud();
    let nodes = fixture.nodes(3)?;
    let outside: IpNet = OUTSIDE.parse()?;
    let mut foreign = fixture.desired(&*cloud, nodes.get(..1).unwrap_or_default())?.routes;
    for route in &mut foreign {
        route.destination = outside;
    }
    let changes = RouteChanges {
        create: foreign,
        ..RouteChanges::default()
    };
    ensure_applied(&apply(&*cloud, &changes).await?)?;
    for remaining in [&nodes[..], nodes.get(2..).unwrap_or_default()] {
        fixture.converge(remaining).await?;
        ensure!(!fixture.hops(outside).await?.is_empty(), "a foreign route was deleted");
    }
    let plan = fixture.plan(&*cloud, &nodes).await?;
    ensure!(plan.foreign > 0, "the route outside is not counted as foreign");
    Ok(())
}

async fn the_route_of_a_deleted_machine_can_be_deleted(fixture: &RouteFixture<'_>) -> Checked {
    let remaining = fixture.nodes(1)?;
    let leaver = fixture.machine("conf-route-leaver", 100).await?;
    let mut nodes = remaining.clone();
    nodes.push(with_pods(&leaver, 100)?);
    fixture.converge(&nodes).await?;
    fixture.subject.delete("conf-route-leaver").await?;
    // Its node is deleted later, and then its route, which may be a blackhole by now.
    fixture.converge(&remaining).await?;
    ensure!(fixture.hops(pods(100)?).await?.is_empty(), "its route still exists");
    Ok(())
}

async fn an_invalid_route_does_not_block_others(fixture: &RouteFixture<'_>) -> Checked {
    let Some(mut bad) = fixture.subject.unroutable() else {
        return Ok(());
    };
    // The invalid route is neither the first nor the last one.
    bad.created = 1;
    bad.view = Arc::new(NodeView {
        name: "conf-route-bad".to_owned(),
        uid: "uid-of-conf-route-bad".to_owned(),
        ..NodeView::default()
    });
    let mut nodes = fixture.nodes(3)?;
    nodes.push(with_pods(&bad, 101)?);
    let (plan, applied) = fixture.pass(&nodes).await?;
    let created = plan.changes.create.iter();
    for (route, result) in created.zip(&applied.created) {
        let is_bad = route.node.view.name == bad.view.name;
        match result {
            Ok(()) if is_bad => return Err("the invalid route was created".into()),
            Err(error) if !is_bad => return Err(error.report().into()),
            Err(error) => ensure!(
                matches!(error.kind(), ErrorKind::InvalidSpec | ErrorKind::NotFound),
                "the error of the invalid route is {}: {}",
                error.kind(),
                error.report()
            ),
            Ok(()) => {}
        }
    }
    nodes.pop();
    fixture.converge(&nodes).await
}

async fn the_first_routes_fill_the_limit(fixture: &RouteFixture<'_>) -> Checked {
    let free = fixture.nodes.len() / 2;
    let limit = fixture.table().await?.len() + free;
    if !fixture.subject.set_limit(Some(limit)).await? {
        return Ok(());
    }
    let filled = fill(fixture, free).await;
    fixture.subject.set_limit(None).await?;
    filled?;
    fixture.converge(&fixture.nodes(fixture.nodes.len())?).await
}

async fn fill(fixture: &RouteFixture<'_>, free: usize) -> Checked {
    let nodes = fixture.nodes(fixture.nodes.len())?;
    let (plan, applied) = fixture.pass(&nodes).await?;
    for (i, (route, result)) in plan.changes.create.iter().zip(&applied.created).enumerate() {
        match result {
            Ok(()) if i < free => {}
            Ok(()) => return Err(format!("{route} was created although the limit is reached").into()),
            Err(error) if i >= free && error.kind() == ErrorKind::QuotaExceeded => {}
            Err(error) => return Err(format!("{route}: {}", error.report()).into()),
        }
    }
    ensure!(applied.created.len() == nodes.len(), "not all routes have a result");
    Ok(())
}

async fn an_abandoned_call_is_completed_later(fixture: &RouteFixture<'_>) -> Checked {
    let nodes = fixture.nodes(3)?;
    let cloud = fixture.subject.cloud();
    let plan = fixture.plan(&*cloud, &nodes).await?;
    // Dropped before the cloud can answer.
    let abandoned = apply(&*cloud, &plan.changes);
    let _ = tokio::time::timeout(Duration::ZERO, abandoned).await;
    fixture.converge(&nodes).await
}
