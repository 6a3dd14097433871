//! A load balancer that was made when the cluster had another name.
//!
//! The cluster's name is part of every name and tag. Where it has changed, everything goes on under the former names, and
//! once nothing else is due they are changed: what is below the load balancer first, then itself, so that whoever is
//! stopped in between still finds out by its name what there is to do.

use ccm_core::{load_balancer::Ownership, plan::Plan};

use super::{Site, whos};
use crate::load_balancer::{
    bodies::{ListenerChange, MonitorChange, PoolChange, Set},
    desired::Wish,
    names,
    observe::{Branch, Tree},
    steps::{Change, Step},
};

/// The cluster's former name, if the load balancer bears it and is surely ours: by the cluster's mark, or because a
/// Service knows it by its id and its address. Another cluster may well have a Service of the same name.
pub(super) fn former<'a>(wish: &Wish, tree: &'a Tree, ownership: &Ownership) -> Option<&'a str> {
    let balancer = &tree.balancer;
    let cluster = names::cluster_of(&balancer.name)?;
    if cluster == wish.cluster || whos(wish).any(|who| who.owns(&balancer.name)) {
        return None;
    }
    let ours = whos(wish).any(|who| {
        let former = names::load_balancer(cluster, &who.service);
        let uses = balancer.name == former || balancer.tags.contains(&former);
        uses && (*ownership == Ownership::Ours || who.knows(tree))
    });
    ours.then_some(cluster)
}

/// The steps that rename.
pub(super) fn steps(site: &Site<'_>, plan: &mut Plan<Step>) {
    let Some(former) = site.former else { return };
    let why = format!("the cluster is called {}, no more {former}", site.wish.cluster);
    let mut push = |change| {
        plan.steps.push(Step {
            why: why.clone(),
            ..site.step(change, None)
        });
    };
    for branch in &site.tree.branches {
        below(site, former, branch, &mut push);
    }
    push(Change::Rename {
        from: former.to_owned(),
        to: site.wish.cluster.clone(),
    });
}

fn below(site: &Site<'_>, former: &str, branch: &Branch, push: &mut impl FnMut(Change)) {
    let cluster = site.wish.cluster.as_str();
    let slot = branch.slot();
    let renamed = |name: &String| {
        if names::cluster_of(name) == Some(former) {
            Set::To(names::with_cluster(name, former, cluster))
        } else {
            Set::Keep
        }
    };
    let twig = branch.twig.as_ref();
    let monitor = twig.and_then(|twig| twig.monitor.as_ref());
    let change = MonitorChange {
        name: monitor.map_or(Set::Keep, |monitor| renamed(&monitor.name)),
        ..MonitorChange::default()
    };
    if !change.name.is_keep() {
        push(Change::UpdateMonitor(slot, change));
    }
    let change = PoolChange {
        name: twig.map_or(Set::Keep, |twig| renamed(&twig.pool.name)),
        ..PoolChange::default()
    };
    if !change.name.is_keep() {
        push(Change::UpdatePool(slot, change));
    }
    let listener = &branch.listener;
    let tags = names::tags_with_cluster(&listener.tags, former, cluster);
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
        push(Change::UpdateListener(slot, Box::new(change)));
    }
}
