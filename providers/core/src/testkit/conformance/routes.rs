//! The part of the suite about routes.
//!
//! What is relied on holds for a router that takes many routes in one call (OpenStack), for tables that take one route a
//! call (AWS, GCE) and for a table that is one document (Azure). So nothing is said of how many calls a change costs.

mod ground;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use ipnet::IpNet;

use self::ground::{Ground, apply, pods, routes_of, well, with_pods};
use super::{BoxError, Checked, Subject, by_name, present};
use crate::{
    Cloud, ErrorKind, NodeView, Priority,
    routes::{Applied, Changes, CloudRoute, ClusterCidrs, Desired, Observed, RouteNode, RoutePlan},
};

/// The cluster of the suite's routes. Nobody else may use it in the cloud under test.
pub const CLUSTER_CIDR: &str = "10.249.0.0/16";
/// A destination outside. Nobody else may use it either.
const OUTSIDE: &str = "10.250.7.0/24";

/// The most machines: each has a network of its own below [`CLUSTER_CIDR`], and some scenarios have further ones.
const CROWD: usize = 90;

/// A cloud with routes under test. Machines are those of [`Subject`]; routes can lead to all of them.
#[async_trait]
pub trait RouteSubject: Subject {
    /// A provider that has just been started on the same cloud and knows nothing.
    async fn restarted(&self) -> Result<Arc<dyn Cloud>, BoxError>;

    /// All routes as the cloud shows them to others, as destination and next hop; `None` if nobody else can be asked.
    async fn table(&self) -> Result<Option<Vec<(IpNet, String)>>, BoxError> {
        Ok(None)
    }

    /// A node to which this cloud makes no route although the provider finds a next hop, if there is such a thing.
    fn unroutable(&self) -> Option<RouteNode> {
        None
    }

    /// Lets the table have so many routes in all; `None`: as many as before. Says whether that can be done.
    async fn set_limit(&self, limit: Option<usize>) -> Result<bool, BoxError> {
        let _ = limit;
        Ok(false)
    }
}

/// Runs every scenario of the part about routes.
///
/// # Panics
///
/// If a scenario fails; the message lists all that did.
pub async fn routes(subject: &dyn RouteSubject) {
    let ground = match Ground::lay(subject).await {
        Ok(ground) => ground,
        Err(error) => panic!("the scenarios can not be prepared: {error}"),
    };
    let mut failed = Vec::new();
    let mut passed = 0;
    macro_rules! run {
        ($($scenario:ident),+ $(,)?) => {$(
            let played = match $scenario(&ground).await {
                Ok(()) => ground.clear().await,
                Err(error) => {
                    // What is wrong is known; the next scenario begins with what it finds.
                    let _ = ground.clear().await;
                    Err(error)
                }
            };
            match played {
                Ok(()) => passed += 1,
                Err(error) => failed.push(format!("{}: {error}", stringify!($scenario))),
            }
        )+};
    }
    run!(
        there_can_be_routes,
        a_next_hop_has_one_spelling,
        a_node_without_anything_has_no_next_hop,
        nothing_to_do_asks_for_nothing,
        routes_come_and_a_restart_finds_nothing_to_do,
        a_look_costs_less_than_one_request_for_each_route,
        what_is_done_can_be_done_again,
        a_route_that_moves_is_there_once,
        routes_outside_the_cluster_stay,
        a_machine_that_is_gone_takes_no_route_with_it,
        one_bad_route_holds_up_no_other,
        a_limit_is_filled_by_the_first,
        a_caller_that_goes_away_leaves_nothing_half_done,
    );
    if let Err(error) = ground.leave().await {
        failed.push(format!("at the end: {error}"));
    }
    assert!(
        failed.is_empty(),
        "{passed} scenarios passed, {} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

async fn there_can_be_routes(ground: &Ground<'_>) -> Checked {
    let cloud = ground.subject.cloud();
    let missing = routes_of(&*cloud)?.missing(Priority::User).await?;
    ensure!(missing.is_none(), "no routes: {}", missing.unwrap_or_default());
    Ok(())
}

async fn a_next_hop_has_one_spelling(ground: &Ground<'_>) -> Checked {
    let (old, new) = (ground.subject.cloud(), ground.subject.restarted().await?);
    let mut hops = BTreeSet::new();
    for node in ground.nodes(ground.nodes.len())? {
        let hop = routes_of(&*old)?.next_hop(&node, pods(0)?)?;
        for (cloud, place) in [(&old, 0), (&old, 1), (&new, 0)] {
            let again = routes_of(&**cloud)?.next_hop(&node, pods(place)?)?;
            ensure!(again == hop, "{again} was {hop} before");
        }
        hops.insert(hop);
    }
    ensure!(
        hops.len() == ground.nodes.len(),
        "several nodes have the same next hop: {hops:?}"
    );
    Ok(())
}

async fn a_node_without_anything_has_no_next_hop(ground: &Ground<'_>) -> Checked {
    let cloud = ground.subject.cloud();
    match routes_of(&*cloud)?.next_hop(&RouteNode::default(), pods(0)?) {
        Ok(hop) => Err(format!("a node without provider ID and addresses has the next hop {hop}").into()),
        Err(_) => Ok(()),
    }
}

async fn nothing_to_do_asks_for_nothing(ground: &Ground<'_>) -> Checked {
    let cloud = ground.subject.cloud();
    // What a provider has to know first, it knows from the beginning.
    routes_of(&*cloud)?.missing(Priority::User).await?;
    let before = ground.subject.requests();
    well(&apply(&*cloud, &Changes::default()).await?)?;
    let after = ground.subject.requests();
    ensure!(before == after, "{before:?} requests before, {after:?} after");
    Ok(())
}

async fn routes_come_and_a_restart_finds_nothing_to_do(ground: &Ground<'_>) -> Checked {
    let before = ground.table().await?;
    let nodes = ground.nodes(ground.nodes.len())?;
    ground.settle(&nodes).await?;
    let after = ground.table().await?;
    ensure!(
        after.len() == before.len() + nodes.len(),
        "{} routes before, {} after {} came",
        before.len(),
        after.len(),
        nodes.len()
    );
    ensure!(
        before.iter().all(|route| after.contains(route)),
        "a foreign route is gone"
    );
    // The first half goes.
    let rest = nodes.get(nodes.len() / 2..).unwrap_or_default();
    ground.settle(rest).await?;
    let after = ground.table().await?;
    ensure!(
        after.len() == before.len() + rest.len(),
        "not all went: {after:?}"
    );
    Ok(())
}

async fn a_look_costs_less_than_one_request_for_each_route(ground: &Ground<'_>) -> Checked {
    let nodes = ground.nodes(ground.nodes.len())?;
    ground.settle(&nodes).await?;
    let cloud = ground.subject.cloud();
    let before = ground.subject.requests();
    ground.plan(&*cloud, &nodes).await?;
    let after = ground.subject.requests();
    if let (Some(before), Some(after)) = (before, after) {
        ensure!(
            after - before < nodes.len(),
            "{} requests for {} routes",
            after - before,
            nodes.len()
        );
    }
    Ok(())
}

async fn what_is_done_can_be_done_again(ground: &Ground<'_>) -> Checked {
    let nodes = ground.nodes(2)?;
    let (come, applied) = ground.pass(&nodes).await?;
    well(&applied)?;
    let there = ground.table().await?;
    // The answer was lost, and so the same is asked for once more; by this process and by the next one.
    for cloud in [ground.subject.cloud(), ground.subject.restarted().await?] {
        well(&apply(&*cloud, &come.changes).await?)?;
        ensure!(ground.table().await? == there, "twice is not once");
    }
    let last = ground.nodes(3)?.split_off(2);
    let go = ground.plan(&*ground.subject.cloud(), &last).await?.changes;
    ensure!(go.delete.len() == 2, "{:?}", go.sentences());
    for _ in 0..2 {
        let applied = apply(&*ground.subject.cloud(), &go).await?;
        well(&applied)?;
    }
    ground.settle(&last).await
}

async fn a_route_that_moves_is_there_once(ground: &Ground<'_>) -> Checked {
    let [one, other] = [0, 1].map(|i| ground.nodes.get(i));
    let (Some(one), Some(other)) = (one, other) else {
        return Err("too few nodes".into());
    };
    for node in [one, other, one] {
        ground.settle(&[with_pods(node, 0)?]).await?;
        let cloud = ground.subject.cloud();
        let hop = routes_of(&*cloud)?.next_hop(node, pods(0)?)?.to_string();
        let hops = ground.hops(pods(0)?).await?;
        ensure!(hops == BTreeSet::from([hop.clone()]), "{hops:?} and not {hop}");
    }
    Ok(())
}

async fn routes_outside_the_cluster_stay(ground: &Ground<'_>) -> Checked {
    let cloud = ground.subject.cloud();
    let nodes = ground.nodes(3)?;
    let outside: IpNet = OUTSIDE.parse()?;
    let mut foreign = ground
        .desired(&*cloud, nodes.get(..1).unwrap_or_default())?
        .wanted;
    for route in &mut foreign {
        route.destination = outside;
    }
    let changes = Changes {
        create: foreign,
        ..Changes::default()
    };
    well(&apply(&*cloud, &changes).await?)?;
    for some in [&nodes[..], nodes.get(2..).unwrap_or_default()] {
        ground.settle(some).await?;
        ensure!(!ground.hops(outside).await?.is_empty(), "a foreign route is gone");
    }
    let plan = ground.plan(&*cloud, &nodes).await?;
    ensure!(plan.foreign > 0, "it is not counted as foreign");
    Ok(())
}

async fn a_machine_that_is_gone_takes_no_route_with_it(ground: &Ground<'_>) -> Checked {
    let stays = ground.nodes(1)?;
    let leaver = ground.machine("conf-route-leaver", 100).await?;
    let mut nodes = stays.clone();
    nodes.push(with_pods(&leaver, 100)?);
    ground.settle(&nodes).await?;
    ground.subject.delete("conf-route-leaver").await?;
    // Its node goes later, and then its route, whatever the cloud has made of it.
    ground.settle(&stays).await?;
    ensure!(ground.hops(pods(100)?).await?.is_empty(), "its route is left");
    Ok(())
}

async fn one_bad_route_holds_up_no_other(ground: &Ground<'_>) -> Checked {
    let Some(mut bad) = ground.subject.unroutable() else {
        return Ok(());
    };
    // Older than one and younger than the other.
    bad.created = 1;
    bad.view = Arc::new(NodeView {
        name: "conf-route-bad".to_owned(),
        uid: "uid-of-conf-route-bad".to_owned(),
        ..NodeView::default()
    });
    let mut nodes = ground.nodes(3)?;
    nodes.push(with_pods(&bad, 101)?);
    let (plan, applied) = ground.pass(&nodes).await?;
    let wanted = plan.changes.create.iter();
    for (route, result) in wanted.zip(&applied.created) {
        let is_bad = route.node.view.name == bad.view.name;
        match result {
            Ok(()) if is_bad => return Err("a route was made that can not be".into()),
            Err(error) if !is_bad => return Err(error.report().into()),
            Err(error) => ensure!(
                matches!(error.kind(), ErrorKind::InvalidSpec | ErrorKind::NotFound),
                "a bad route is {}: {}",
                error.kind(),
                error.report()
            ),
            Ok(()) => {}
        }
    }
    nodes.pop();
    ground.settle(&nodes).await
}

async fn a_limit_is_filled_by_the_first(ground: &Ground<'_>) -> Checked {
    let room = ground.nodes.len() / 2;
    let limit = ground.table().await?.len() + room;
    if !ground.subject.set_limit(Some(limit)).await? {
        return Ok(());
    }
    let filled = fill(ground, room).await;
    ground.subject.set_limit(None).await?;
    filled?;
    ground.settle(&ground.nodes(ground.nodes.len())?).await
}

async fn fill(ground: &Ground<'_>, room: usize) -> Checked {
    let nodes = ground.nodes(ground.nodes.len())?;
    let (plan, applied) = ground.pass(&nodes).await?;
    for (i, (route, result)) in plan.changes.create.iter().zip(&applied.created).enumerate() {
        match result {
            Ok(()) if i < room => {}
            Ok(()) => return Err(format!("{route} was made out of its turn").into()),
            Err(error) if i >= room && error.kind() == ErrorKind::QuotaExceeded => {}
            Err(error) => return Err(format!("{route}: {}", error.report()).into()),
        }
    }
    ensure!(applied.created.len() == nodes.len(), "not all were tried");
    Ok(())
}

async fn a_caller_that_goes_away_leaves_nothing_half_done(ground: &Ground<'_>) -> Checked {
    let nodes = ground.nodes(3)?;
    let cloud = ground.subject.cloud();
    let plan = ground.plan(&*cloud, &nodes).await?;
    // Dropped before the cloud can have answered.
    let abandoned = apply(&*cloud, &plan.changes);
    let _ = tokio::time::timeout(Duration::ZERO, abandoned).await;
    ground.settle(&nodes).await
}
