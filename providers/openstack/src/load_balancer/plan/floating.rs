//! Floating IPs. An attached one always stays, whatever networks and addresses the Service names.

use ccm_core::{
    load_balancer::{Ownership, OwnershipTag},
    plan::objects::{Action, Attributes, Object, Objects},
};
use serde_json::Value;

use super::site::{BalancerPlan, Site, Step, blocked};
use crate::load_balancer::{
    desired::{ActiveService, DesiredBalancer, DesiredFloatingIp, Owner},
    kinds::{Kind, SUBNETS},
    names,
    observe::{self, LoadBalancerSnapshot},
};

fn is_free(floating: &Object<Kind>) -> bool {
    floating.text("port_id").is_empty()
}

/// Whether a cluster created the floating IP for a Service, and it is not another cluster's.
fn is_created(site: &Site<'_>, floating: &Object<Kind>) -> bool {
    let ownership = observe::ownership_of_floating(floating, &site.desired.ownership_tag);
    floating.text("description").contains(names::FLOATING_IP_DESCRIPTION) && ownership.allows_changes()
}

/// A step that changes a floating IP of the load balancer with this name.
fn step(balancer: &str, floating: &Object<Kind>, action: Action<Kind>) -> Step {
    let parent = Some(balancer.to_owned());
    let floating = Object {
        parent,
        ..floating.clone()
    };
    floating.step(action)
}

fn update(fields: Attributes) -> Action<Kind> {
    Action::Update(Kind::Floating.update(), fields)
}

/// The changes of a floating IP that is kept. It loses the ownership tag, so that no Service of the same name takes or deletes
/// it later.
fn untagged(floating: &Object<Kind>, ownership_tag: &OwnershipTag) -> Attributes {
    let is_ours = observe::ownership_of_floating(floating, ownership_tag) == Ownership::Ours;
    let description = names::untagged_floating_ip(floating.text("description"));
    let field = is_ours.then(|| ("description", description.into()));
    field.into_iter().collect()
}

/// Deletes a floating IP with its Service, or keeps it.
fn let_go(floating: &Object<Kind>, keep: bool, ownership_tag: &OwnershipTag) -> Option<Action<Kind>> {
    if !keep {
        return Some(Action::Delete(false));
    }
    let fields = untagged(floating, ownership_tag);
    (!fields.is_empty()).then(|| update(fields))
}

fn new(site: &Site<'_>, desired: &DesiredFloatingIp, network: &str) -> Step {
    let new = Object::new(Kind::Floating, &*desired.address)
        .with("floating_network_id", network)
        .with("floating_ip_address", &*desired.address)
        .with("description", &*desired.description)
        .with("port_id", site.balancer.text("vip_port_id"))
        .with(SUBNETS, &*desired.subnets);
    step(site.name, &new, Action::Create(Box::new(new.clone()), Vec::new()))
}

/// Plans the floating IP of the load balancer's owner.
pub(super) fn change(
    site: &Site<'_>,
    admitted: &[&ActiveService],
    snapshot: &LoadBalancerSnapshot,
    plan: &mut BalancerPlan,
) {
    let have = observe::floating(site.objects, site.balancer);
    let owner = admitted.iter().find(|active| site.owned_by(&active.owner));
    let before = plan.steps.len();
    if let Some(owner) = owner {
        own(site, owner, snapshot, plan);
    }
    let comes = plan.steps.len() > before && have.is_none();
    if have.is_some() || comes || observe::is_v6(site.balancer) {
        return;
    }
    for active in admitted {
        if !site.owned_by(&active.owner) && !active.internal {
            let field = format!("address of {}", site.balancer.title());
            plan.blocked.push(blocked(
                Some(&active.owner.service),
                &field,
                "not public",
                "public, for a Service that does not own the load balancer",
            ));
        }
    }
}

fn own(site: &Site<'_>, owner: &ActiveService, snapshot: &LoadBalancerSnapshot, plan: &mut BalancerPlan) {
    let service = Some(&owner.owner.service);
    let have = observe::floating(site.objects, site.balancer);
    if owner.internal {
        if let Some(have) = have {
            let action = if is_created(site, have) && !owner.keep_floating_ip {
                Action::Delete(false)
            } else {
                let mut fields = untagged(have, &site.desired.ownership_tag);
                fields.insert("port_id", Value::Null);
                update(fields)
            };
            let step = step(site.name, have, action).for_service(service);
            plan.steps.push(step.because("the Service is internal"));
        }
        return;
    }
    if have.is_some() || observe::is_v6(site.balancer) {
        return;
    }
    let desired = &owner.floating;
    let existing = snapshot.objects.of(Kind::Floating).find(|floating| {
        if desired.address.is_empty() {
            // It was detached, or its load balancer was deleted.
            is_free(floating) && owner.owner.created(floating, &site.desired.ownership_tag)
        } else {
            floating.text("floating_ip_address") == desired.address
        }
    });
    match (existing, &desired.network) {
        (Some(existing), _) if is_free(existing) => {
            let port = site.balancer.text("vip_port_id").into();
            let step = step(site.name, existing, update([("port_id", port)].into()));
            plan.steps.push(step.for_service(service).because("it is attached"));
        }
        (Some(_), _) => plan.blocked.push(blocked(
            service,
            &format!("floating IP {}", desired.address),
            "attached to another port",
            "attached to the load balancer",
        )),
        (None, Some(network)) => plan.steps.push(new(site, desired, network).for_service(service)),
        // A Warning reports this.
        (None, None) => {}
    }
}

/// Deletes or keeps the floating IP of a load balancer that is being deleted.
pub(super) fn release(site: &Site<'_>, plan: &mut BalancerPlan) {
    let leaving = &site.desired.leaving;
    let owner = leaving.iter().find(|leaving| site.owned_by(&leaving.owner));
    // Without a Service, nothing shows whether to keep it.
    let Some(decides) = owner.or(leaving.last()) else {
        return;
    };
    if let Some(have) = observe::floating(site.objects, site.balancer)
        && is_created(site, have)
        && let Some(action) = let_go(have, decides.keep_floating_ip, &site.desired.ownership_tag)
    {
        plan.steps.push(step(site.name, have, action));
    }
    sweep(site.desired, site.objects, plan);
}

/// The floating IPs that were created for a Service and are not attached: its load balancer was deleted.
pub(super) fn left<'a>(
    desired: &'a DesiredBalancer,
    objects: &'a Objects<Kind>,
    owner: &'a Owner,
) -> impl Iterator<Item = &'a Object<Kind>> {
    let floating = objects.of(Kind::Floating);
    floating.filter(|floating| is_free(floating) && owner.created(floating, &desired.ownership_tag))
}

/// Deletes or keeps the floating IPs of leaving Services that are not attached.
pub(super) fn sweep(desired: &DesiredBalancer, objects: &Objects<Kind>, plan: &mut BalancerPlan) {
    for leaving in &desired.leaving {
        for floating in left(desired, objects, &leaving.owner) {
            let Some(action) = let_go(floating, leaving.keep_floating_ip, &desired.ownership_tag) else {
                continue;
            };
            let step = step(&leaving.owner.tag, floating, action);
            let step = step.for_service(Some(&leaving.owner.service));
            plan.steps.push(step.because("it is not attached"));
        }
    }
}
