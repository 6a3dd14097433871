//! Renames a load balancer that was created under another name of the cluster.
//!
//! The cluster's name is part of every name and tag. After it changed, the former names stay in use until nothing else
//! is due. Then the objects below the load balancer are renamed first, so that a killed process still finds the rest by
//! the load balancer's name. If the cluster's name changes back meanwhile, the new name counts as a former one.

use std::cmp::Reverse;

use ccm_core::{
    load_balancer::Ownership,
    plan::objects::{Attributes, Object},
};

use super::site::{BalancerPlan, Site, owners};
use crate::load_balancer::{
    desired::Owner,
    fields,
    kinds::{self, ObjectKind},
    names,
};

/// The former cluster names in the name of the load balancer and of the objects below it.
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
    // Another cluster may have a Service of the same name.
    if let Some(cluster) = names::cluster_of(name)
        && cluster != desired.cluster
        && !owners(desired).any(|owner| owner.owns(name))
        && owners(desired)
            .any(|owner| has(&names::load_balancer(cluster, &owner.service)) && surely_ours(owner))
    {
        all.push(cluster);
    }
    // A cluster that shares the load balancer has tags on it.
    let shares =
        |cluster| kinds::texts(balancer, fields::TAGS).any(|tag| names::cluster_of(tag) == Some(cluster));
    for below in objects.all.iter().filter(|object| is_below(object)).flat_map(names_of) {
        if let Some(cluster) = names::cluster_of(below)
            && cluster != desired.cluster
            && !all.contains(&cluster)
            && !shares(cluster)
            && owners(desired).any(|owner| {
                let uses = owner.owns(name)
                    || has(&owner.tag)
                    || all.iter().any(|former| has(&names::load_balancer(former, &owner.service)));
                uses && below.ends_with(&names::load_balancer(cluster, &owner.service)) && surely_ours(owner)
            })
        {
            all.push(cluster);
        }
    }
    all
}

/// Whether the object is a listener or below one.
fn is_below(object: &Object<ObjectKind>) -> bool {
    object.kind != ObjectKind::Floating && object.parent.is_some()
}

/// The name and the tags of an object.
fn names_of(object: &Object<ObjectKind>) -> impl Iterator<Item = &str> {
    let tags = if object.kind == ObjectKind::Listener {
        Some(kinds::texts(object, fields::TAGS))
    } else {
        None
    };
    tags.into_iter().flatten().chain([object.text(fields::NAME)])
}

/// Plans the renaming.
pub(super) fn steps(site: &Site<'_>, plan: &mut BalancerPlan) {
    let cluster = &site.desired.cluster;
    let why = format!("the cluster is named {cluster}, no longer {}", site.former.join(" or "));
    let mut objects: Vec<_> = site.objects.all.iter().filter(|object| is_below(object)).collect();
    // The lowest objects come first.
    objects.sort_by_key(|object| Reverse(object.kind));
    let former = site.former_of(site.name);
    for object in objects.into_iter().chain(former.map(|_| site.balancer)) {
        let mut fields = Attributes::new();
        let name = object.text(fields::NAME);
        if let Some(former) = site.former_of(name) {
            fields.insert(fields::NAME, names::with_cluster(name, former, cluster).into());
        }
        let mut tags = kinds::tags(object);
        if matches!(object.kind, ObjectKind::Listener | ObjectKind::Balancer) {
            for former in &site.former {
                tags = names::tags_with_cluster(&tags, former, cluster);
            }
        }
        if !kinds::texts(object, fields::TAGS).eq(tags.iter().map(String::as_str)) {
            fields.insert(fields::TAGS, tags.into());
        }
        if !fields.is_empty() {
            let step = object.step(object.kind.update().action(fields));
            plan.steps.push(step.because(why.clone()));
        }
    }
}
