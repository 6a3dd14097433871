//! A load balancer that was made when the cluster had another name.
//!
//! The cluster's name is part of every name and tag. Where it has changed, everything goes on under the former names, and
//! once nothing else is due they are changed: what is below the load balancer first, then itself, so that whoever is
//! stopped in between still finds out by its name what there is to do. If by then the cluster is called as before again,
//! only what is below has another name, and that is a former one, too.

use ccm_core::{load_balancer::Ownership, plan::Plan};

use super::{Site, whos};
use crate::load_balancer::{
    bodies::{ListenerChange, MonitorChange, PoolChange, Set},
    desired::{DesiredBalancer, Owner},
    names,
    observe::{ListenerTree, LoadBalancerTree},
    steps::{Action, Change},
};

/// The cluster's former names: that of the load balancer, and those that only something below it has.
pub(super) fn former<'a>(
    desired: &DesiredBalancer,
    tree: &'a LoadBalancerTree,
    ownership: &Ownership,
) -> Vec<&'a str> {
    let balancer = &tree.balancer;
    let has = |name: &str| balancer.name == name || balancer.tags.iter().any(|tag| tag == name);
    let surely_ours = |owner: &Owner| *ownership == Ownership::Ours || owner.knows(tree);
    let mut all: Vec<&str> = Vec::new();
    // Another cluster may well have a Service of the same name.
    if let Some(cluster) = names::cluster_of(&balancer.name)
        && cluster != desired.cluster
        && !whos(desired).any(|owner| owner.owns(&balancer.name))
        && whos(desired)
            .any(|owner| has(&names::load_balancer(cluster, &owner.service)) && surely_ours(owner))
    {
        all.push(cluster);
    }
    // And it may share the load balancer, but then its tags say so.
    let shares = |cluster| {
        balancer
            .tags
            .iter()
            .any(|tag| names::cluster_of(tag) == Some(cluster))
    };
    for name in tree.listener_trees.iter().flat_map(names_of) {
        if let Some(cluster) = names::cluster_of(name)
            && cluster != desired.cluster
            && !all.contains(&cluster)
            && !shares(cluster)
            && whos(desired).any(|owner| {
                let uses = owner.owns(&balancer.name)
                    || has(&owner.tag)
                    || all
                        .iter()
                        .any(|former| has(&names::load_balancer(former, &owner.service)));
                uses && name.ends_with(&names::load_balancer(cluster, &owner.service)) && surely_ours(owner)
            })
        {
            all.push(cluster);
        }
    }
    all
}

/// Every name and tag of a listener and of what is below it.
fn names_of(listener_tree: &ListenerTree) -> impl Iterator<Item = &String> {
    let pool_tree = listener_tree.pool_tree.as_ref();
    let pool = pool_tree.map(|pool_tree| &pool_tree.pool.name);
    let monitor = pool_tree
        .and_then(|pool_tree| pool_tree.monitor.as_ref())
        .map(|monitor| &monitor.name);
    let listener = &listener_tree.listener;
    listener
        .tags
        .iter()
        .chain([&listener.name])
        .chain(pool)
        .chain(monitor)
}

/// The steps that rename.
pub(super) fn steps(site: &Site<'_>, plan: &mut Plan<Change>) {
    if site.former.is_empty() {
        return;
    }
    let cluster = &site.desired.cluster;
    let why = format!(
        "the cluster is called {cluster}, no more {}",
        site.former.join(" or ")
    );
    let mut push = |action| plan.steps.push(site.step(action, None).because(why.clone()));
    for listener_tree in &site.tree.listener_trees {
        below(site, listener_tree, &mut push);
    }
    if let Some(former) = site.former_of(&site.tree.balancer.name) {
        push(Action::Rename {
            from: former.to_owned(),
            to: cluster.clone(),
        });
    }
}

fn below(site: &Site<'_>, listener_tree: &ListenerTree, push: &mut impl FnMut(Action)) {
    let cluster = site.desired.cluster.as_str();
    let listener_key = listener_tree.listener_key();
    let renamed = |name: &String| match site.former_of(name) {
        Some(former) => Set::To(names::with_cluster(name, former, cluster)),
        None => Set::Keep,
    };
    let pool_tree = listener_tree.pool_tree.as_ref();
    let monitor = pool_tree.and_then(|pool_tree| pool_tree.monitor.as_ref());
    let change = MonitorChange {
        name: monitor.map_or(Set::Keep, |monitor| renamed(&monitor.name)),
        ..MonitorChange::default()
    };
    if !change.name.is_keep() {
        push(Action::UpdateMonitor(listener_key, change));
    }
    let change = PoolChange {
        name: pool_tree.map_or(Set::Keep, |pool_tree| renamed(&pool_tree.pool.name)),
        ..PoolChange::default()
    };
    if !change.name.is_keep() {
        push(Action::UpdatePool(listener_key, change));
    }
    let listener = &listener_tree.listener;
    let mut tags = listener.tags.clone();
    for former in &site.former {
        tags = names::tags_with_cluster(&tags, former, cluster);
    }
    let change = ListenerChange {
        name: renamed(&listener.name),
        tags: if tags == listener.tags {
            Set::Keep
        } else {
            Set::To(tags)
        },
        ..ListenerChange::default()
    };
    if change != ListenerChange::default() {
        push(Action::UpdateListener(listener_key, Box::new(change)));
    }
}
