//! A load balancer that was made when the cluster had another name.
//!
//! The cluster's name is part of every name and tag. Where it has changed, everything goes on under the former names, and
//! once nothing else is due they are changed: what is below the load balancer first, then itself, so that a process
//! that is killed in between still finds by its name what is left to do. If by then the cluster is called as before again,
//! only what is below has another name, and that is a former one, too.

use std::cmp::Reverse;

use ccm_core::{
    load_balancer::Ownership,
    plan::objects::{Action, Attributes, Object},
};

use super::site::{BalancerPlan, Site, owners};
use crate::load_balancer::{
    desired::Owner,
    kinds::{self, Kind},
    names,
};

/// The cluster's former names: that of the load balancer, and those that only something below it has.
pub(super) fn former<'a>(site: &Site<'a>) -> Vec<&'a str> {
    let Site {
        desired,
        objects,
        balancer,
        name,
        ..
    } = *site;
    let has = |tag: &str| name == tag || site.tags.iter().any(|have| have == tag);
    let surely_ours = |owner: &Owner| site.ownership == Ownership::Ours || owner.knows(objects, balancer);
    let mut all: Vec<&str> = Vec::new();
    // Another cluster may well have a Service of the same name.
    if let Some(cluster) = names::cluster_of(name)
        && cluster != desired.cluster
        && !owners(desired).any(|owner| owner.owns(name))
        && owners(desired)
            .any(|owner| has(&names::load_balancer(cluster, &owner.service)) && surely_ours(owner))
    {
        all.push(cluster);
    }
    // And it may share the load balancer, but then its tags say so.
    let shares = |cluster| kinds::texts(balancer, "tags").any(|tag| names::cluster_of(tag) == Some(cluster));
    for below in objects
        .all
        .iter()
        .filter(|object| is_below(object))
        .flat_map(names_of)
    {
        if let Some(cluster) = names::cluster_of(below)
            && cluster != desired.cluster
            && !all.contains(&cluster)
            && !shares(cluster)
            && owners(desired).any(|owner| {
                let uses = owner.owns(name)
                    || has(&owner.tag)
                    || all
                        .iter()
                        .any(|former| has(&names::load_balancer(former, &owner.service)));
                uses && below.ends_with(&names::load_balancer(cluster, &owner.service)) && surely_ours(owner)
            })
        {
            all.push(cluster);
        }
    }
    all
}

/// Whether it is a listener, or below one.
fn is_below(object: &Object<Kind>) -> bool {
    object.kind != Kind::Floating && object.parent.is_some()
}

/// The name and the tags of an object.
fn names_of(object: &Object<Kind>) -> impl Iterator<Item = &str> {
    let tags = kinds::texts(object, "tags").filter(|_| object.kind == Kind::Listener);
    tags.chain([object.text("name")])
}

/// The steps that rename.
pub(super) fn steps(site: &Site<'_>, plan: &mut BalancerPlan) {
    let cluster = &site.desired.cluster;
    let why = format!(
        "the cluster is called {cluster}, no more {}",
        site.former.join(" or ")
    );
    let mut objects: Vec<_> = site
        .objects
        .all
        .iter()
        .filter(|object| is_below(object))
        .collect();
    // From below.
    objects.sort_by_key(|object| Reverse(object.kind));
    let former = site.former_of(site.name);
    for object in objects.into_iter().chain(former.map(|_| site.balancer)) {
        let mut fields = Attributes::new();
        let name = object.text("name");
        if let Some(former) = site.former_of(name) {
            fields.insert("name", names::with_cluster(name, former, cluster).into());
        }
        let mut tags = kinds::tags(object);
        if matches!(object.kind, Kind::Listener | Kind::Balancer) {
            for former in &site.former {
                tags = names::tags_with_cluster(&tags, former, cluster);
            }
        }
        if !kinds::texts(object, "tags").eq(tags.iter().map(String::as_str)) {
            fields.insert("tags", tags.into());
        }
        if !fields.is_empty() {
            let step = object.step(Action::Update(object.kind.update(), fields));
            plan.steps.push(step.because(why.clone()));
        }
    }
}
