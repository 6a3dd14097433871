//! Floating IPs. An attached one stays, whatever networks the Service names.
//!
//! # A changed `spec.loadBalancerIP`
//!
//! A tag of the load balancer records the address that the Service named when its floating IP was chosen. Another floating IP is
//! attached only if the Service names another address than the recorded one, and only if it exists in the project and is free. The
//! replaced one is never deleted. Without the record, a person may have attached the present one: it stays, and a Warning says so.

use ccm_core::{
    load_balancer::{Ownership, OwnershipTag, ServiceId},
    plan::objects::{Action, Attributes, Object, Objects},
};
use serde_json::Value;

use super::site::{BalancerPlan, Site, Step, blocked};
use crate::load_balancer::{
    desired::{ActiveService, DesiredBalancer, DesiredFloatingIp, Owner},
    fields,
    kinds::{ObjectKind, ObjectUpdate, REFUSED, REPLACED, SUBNETS},
    names,
    observe::{self, LoadBalancerSnapshot},
};

fn is_free(floating: &Object<ObjectKind>) -> bool {
    floating.text(fields::PORT_ID).is_empty()
}

/// Whether a cluster created the floating IP for a Service, and it is not another cluster's.
fn is_created(site: &Site<'_>, floating: &Object<ObjectKind>) -> bool {
    let ownership = observe::ownership_of_floating(floating, &site.desired.ownership_tag);
    floating.text(fields::DESCRIPTION).contains(names::FLOATING_IP_DESCRIPTION) && ownership.allows_changes()
}

/// A step that changes a floating IP of the load balancer with this name.
fn step(balancer: &str, floating: &Object<ObjectKind>, action: Action<ObjectKind>) -> Step {
    let parent = Some(balancer.to_owned());
    let floating = Object {
        parent,
        ..floating.clone()
    };
    floating.step(action)
}

fn update(fields: Attributes) -> Action<ObjectKind> {
    ObjectUpdate::Floating.action(fields)
}

/// The changes of a floating IP that is kept. It loses the ownership tag, so that no Service of the same name takes or deletes
/// it later.
fn untagged(floating: &Object<ObjectKind>, ownership_tag: &OwnershipTag) -> Attributes {
    let is_ours = observe::ownership_of_floating(floating, ownership_tag) == Ownership::Ours;
    let description = names::untagged_floating_ip(floating.text(fields::DESCRIPTION));
    let field = is_ours.then(|| (fields::DESCRIPTION, description.into()));
    field.into_iter().collect()
}

/// Deletes a floating IP with its Service, or keeps it.
fn let_go(
    floating: &Object<ObjectKind>,
    keep: bool,
    ownership_tag: &OwnershipTag,
) -> Option<Action<ObjectKind>> {
    if !keep {
        return Some(Action::Delete(false));
    }
    let fields = untagged(floating, ownership_tag);
    (!fields.is_empty()).then(|| update(fields))
}

fn new(site: &Site<'_>, desired: &DesiredFloatingIp, network: &str) -> Step {
    let new = Object::new(ObjectKind::Floating, &*desired.address)
        .with(fields::FLOATING_NETWORK_ID, network)
        .with(fields::FLOATING_IP_ADDRESS, &*desired.address)
        .with(fields::DESCRIPTION, &*desired.description)
        .with(fields::PORT_ID, site.balancer.text(fields::VIP_PORT_ID))
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
    // A Warning reports a public Service beside an internal one.
    if have.is_some() || comes || observe::is_v6(site.balancer) || snapshot.serves_internal(site.balancer) {
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
                fields.insert(fields::PORT_ID, Value::Null);
                update(fields)
            };
            let step = step(site.name, have, action).for_service(service);
            plan.steps.push(step.because("the Service is internal"));
        }
        return;
    }
    if let Some(have) = have {
        replace(site, owner, have, plan);
        return;
    }
    if observe::is_v6(site.balancer) {
        return;
    }
    if let Some(internal) = internal_user(site) {
        let have = format!("not public, because internal Service {internal} shares it");
        let field = format!("address of {}", site.balancer.title());
        plan.blocked.push(blocked(service, &field, &have, "public"));
        return;
    }
    let desired = &owner.floating;
    let existing = snapshot.objects.of(ObjectKind::Floating).find(|floating| {
        if desired.address.is_empty() {
            // It was detached, or its load balancer was deleted.
            is_free(floating) && owner.owner.created(floating, &site.desired.ownership_tag)
        } else {
            floating.text(fields::FLOATING_IP_ADDRESS) == desired.address
        }
    });
    let is_usable = existing.is_some_and(|existing| is_free(existing) && existing.text(REFUSED).is_empty());
    if !is_usable && let Some(former) = detached(site, owner) {
        // The one that should replace it cannot be attached anymore.
        let mut fields =
            Attributes::from([(fields::PORT_ID, site.balancer.text(fields::VIP_PORT_ID).into())]);
        if names::is_replaced_floating_ip(former.text(fields::DESCRIPTION), &owner.owner.service) {
            fields.insert(fields::DESCRIPTION, desired.description.as_str().into());
        }
        let step = step(site.name, former, update(fields)).for_service(service);
        plan.steps.push(step.because(format!("{} cannot replace it", desired.address)));
        return;
    }
    match (existing, &desired.network) {
        (Some(existing), _) if is_free(existing) => {
            let port = site.balancer.text(fields::VIP_PORT_ID).into();
            let step = step(site.name, existing, update([(fields::PORT_ID, port)].into()));
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

/// Whether another address is recorded than the Service names now.
pub(crate) fn names_another(recorded: Option<&str>, requested: &str) -> bool {
    !requested.is_empty() && recorded.is_some_and(|tag| tag != names::requested_address_tag(requested))
}

/// Whether the requested floating IP replaces the attached one. `recorded`: the tag that records the former request; `found`: the
/// requested floating IP.
///
/// # Errors
/// Why the attached one stays.
pub(crate) fn may_replace(
    recorded: Option<&str>,
    requested: &str,
    found: Option<&Object<ObjectKind>>,
) -> Result<(), String> {
    if !names_another(recorded, requested) {
        return Err("the attached one stays until someone detaches it".to_owned());
    }
    match found {
        None => Err("the project has no such floating IP: create it first".to_owned()),
        Some(found) if !is_free(found) => Err("it is attached to another port".to_owned()),
        Some(found) if !found.text(REFUSED).is_empty() => {
            Err(format!("Neutron refuses to attach it: {}", found.text(REFUSED)))
        }
        Some(_) => Ok(()),
    }
}

/// Plans the replacement of the attached floating IP by the requested one. One step does both, so that the attached one comes back
/// if the other cannot be attached.
fn replace(site: &Site<'_>, owner: &ActiveService, have: &Object<ObjectKind>, plan: &mut BalancerPlan) {
    let service = Some(&owner.owner.service);
    let (attached, requested) = (have.text(fields::FLOATING_IP_ADDRESS), &*owner.floating.address);
    if requested.is_empty() || attached == requested {
        return;
    }
    let found = site.objects.get(ObjectKind::Floating, requested);
    match (may_replace(recorded(site), requested, found), found) {
        (Ok(()), Some(found)) => {
            let mut fields = Attributes::from([
                (fields::PORT_ID, site.balancer.text(fields::VIP_PORT_ID).into()),
                (REPLACED, attached.into()),
            ]);
            if is_created(site, have) {
                let description = names::replaced_floating_ip(&site.desired.cluster, &owner.owner.service);
                fields.insert(fields::DESCRIPTION, description.into());
            }
            let step = step(site.name, found, ObjectUpdate::ReplaceFloating.action(fields));
            plan.steps.push(step.for_service(service).because("loadBalancerIP changed"));
        }
        (Err(reason), _) => {
            let field = format!("floating IP of {}", site.balancer.title());
            let want = format!("{requested} of loadBalancerIP; {reason}");
            plan.blocked.push(blocked(service, &field, attached, &want));
        }
        (Ok(()), None) => {}
    }
}

/// The floating IP of the Service that was detached to be replaced.
fn detached<'a>(site: &Site<'a>, owner: &ActiveService) -> Option<&'a Object<ObjectKind>> {
    if !names_another(recorded(site), &owner.floating.address) {
        return None;
    }
    site.objects.of(ObjectKind::Floating).find(|floating| {
        let address = floating.text(fields::FLOATING_IP_ADDRESS);
        let is_named = owner.owner.named.iter().any(|named| named == address);
        let is_replaced =
            names::is_replaced_floating_ip(floating.text(fields::DESCRIPTION), &owner.owner.service);
        is_free(floating)
            && address != owner.floating.address
            && is_named
            && (is_replaced || !is_created(site, floating))
    })
}

/// The tag that records the requested address.
fn recorded<'a>(site: &'a Site<'_>) -> Option<&'a str> {
    let mut tags = site.tags.iter().map(String::as_str);
    tags.find(|tag| names::is_requested_address_tag(tag))
}

/// The tag that has to record the address that the Service names, if the load balancer has or gets this address. `is_due`: whether
/// something else changes, too. Without a change, no record is added to a load balancer of upstream.
pub(super) fn new_record(
    site: &Site<'_>,
    owner: &ActiveService,
    is_due: bool,
    plan: &BalancerPlan,
) -> Option<String> {
    let requested = &*owner.floating.address;
    if !owner.is_public || observe::is_v6(site.balancer) {
        return None;
    }
    let have = observe::floating(site.objects, site.balancer);
    let is_attached = have.is_some_and(|have| have.text(fields::FLOATING_IP_ADDRESS) == requested);
    let is_replaced = plan
        .steps
        .iter()
        .any(|step| matches!(step.change.action, Action::Update(ObjectUpdate::ReplaceFloating, _)));
    let tag = names::requested_address_tag(requested);
    let is_new = match recorded(site) {
        Some(recorded) => recorded != tag && (is_attached || is_replaced),
        None => is_due && (is_attached || requested.is_empty()),
    };
    is_new.then_some(tag)
}

/// An internal Service that uses the load balancer of another one. A floating IP would expose it.
fn internal_user<'a>(site: &Site<'a>) -> Option<&'a ServiceId> {
    let active = site.desired.active.iter().map(|active| (active.internal, &active.owner));
    let frozen = site.desired.frozen.iter().map(|frozen| (frozen.internal, &frozen.owner));
    let mut users = active.chain(frozen);
    let (_, owner) = users
        .find(|(internal, owner)| *internal && !site.owned_by(owner) && site.tagged(&site.tags, owner))?;
    Some(&owner.service)
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
    objects: &'a Objects<ObjectKind>,
    owner: &'a Owner,
) -> impl Iterator<Item = &'a Object<ObjectKind>> {
    let floating = objects.of(ObjectKind::Floating);
    floating.filter(|floating| is_free(floating) && owner.created(floating, &desired.ownership_tag))
}

/// Deletes or keeps the floating IPs of leaving Services that are not attached.
pub(super) fn sweep(desired: &DesiredBalancer, objects: &Objects<ObjectKind>, plan: &mut BalancerPlan) {
    for leaving in &desired.leaving {
        for floating in left(desired, objects, &leaving.owner) {
            let Some(action) = let_go(floating, leaving.keep_floating_ip, &desired.ownership_tag) else {
                continue;
            };
            let step = step(&leaving.owner.tag, floating, action).for_service(Some(&leaving.owner.service));
            plan.steps.push(step.because("it is not attached"));
        }
    }
}
