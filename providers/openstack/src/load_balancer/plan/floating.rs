//! Floating addresses. An attached one always wins, whatever the Service says of networks and addresses.

use ccm_core::plan::Plan;

use super::{Site, blocked};
use crate::load_balancer::{
    desired::{ActiveService, DesiredBalancer},
    names,
    observe::LoadBalancerSnapshot,
    steps::{Action, Change, step},
};

/// What the owner wants of the floating address.
pub(super) fn change(
    site: &Site<'_>,
    admitted: &[&ActiveService],
    snapshot: &LoadBalancerSnapshot,
    plan: &mut Plan<Change>,
) {
    let tree = site.tree;
    let owner = admitted.iter().find(|active| site.owned_by(&active.owner));
    let before = plan.steps.len();
    if let Some(owner) = owner {
        own(site, owner, snapshot, plan);
    }
    let comes = plan.steps.len() > before && tree.floating.is_none();
    if tree.floating.is_some() || comes || tree.is_v6() {
        return;
    }
    for active in admitted {
        if !site.owned_by(&active.owner) && !active.internal {
            let field = format!("address of load balancer {}", tree.balancer.name);
            plan.blocked.push(blocked(
                Some(&active.owner.service),
                &field,
                "not public",
                "public by a Service that does not own it",
            ));
        }
    }
}

fn own(site: &Site<'_>, owner: &ActiveService, snapshot: &LoadBalancerSnapshot, plan: &mut Plan<Change>) {
    let tree = site.tree;
    let service = Some(&owner.owner.service);
    if owner.internal {
        if let Some(have) = &tree.floating {
            let address = have.floating_ip_address.clone();
            let ours = have.description.contains(names::FLOATING_IP_MARK);
            let action = if ours && !owner.keep_floating_ip {
                Action::DeleteFloating(address)
            } else {
                Action::DetachFloating(address)
            };
            plan.steps
                .push(site.step(action, service).because("the Service is internal"));
        }
        return;
    }
    if tree.floating.is_some() || tree.is_v6() {
        return;
    }
    let desired = &owner.floating;
    let there = snapshot.floating.iter().find(|floating| {
        if desired.address.is_empty() {
            // Somebody took it away; whoever wants it no more gets rid of it by other ways.
            floating.port_id.is_empty() && owner.owner.created(floating)
        } else {
            floating.floating_ip_address == desired.address
        }
    });
    match (there, &desired.network) {
        (Some(there), _) if there.port_id.is_empty() => {
            let address = there.floating_ip_address.clone();
            plan.steps
                .push(site.step(Action::AttachFloating(address), service));
        }
        (Some(_), _) => plan.blocked.push(blocked(
            service,
            &format!("floating address {}", desired.address),
            "in use elsewhere",
            "that of the load balancer",
        )),
        (None, Some(_)) => plan
            .steps
            .push(site.step(Action::CreateFloating(desired.clone()), service)),
        // A note says so.
        (None, None) => {}
    }
}

/// What goes together with the load balancer.
pub(super) fn release(site: &Site<'_>, plan: &mut Plan<Change>) {
    let leaving = &site.desired.leaving;
    let owner = leaving.iter().find(|leaving| site.owned_by(&leaving.owner));
    // Without a Service nobody can say any more whether it was to be kept.
    let Some(decides) = owner.or(leaving.last()) else {
        return;
    };
    if let Some(have) = &site.tree.floating
        && have.description.contains(names::FLOATING_IP_MARK)
        && !decides.keep_floating_ip
    {
        plan.steps
            .push(site.step(Action::DeleteFloating(have.floating_ip_address.clone()), None));
    }
}

/// Those whose load balancer is gone already.
pub(super) fn sweep(desired: &DesiredBalancer, snapshot: &LoadBalancerSnapshot, plan: &mut Plan<Change>) {
    for leaving in desired.leaving.iter().filter(|leaving| !leaving.keep_floating_ip) {
        let left = snapshot
            .floating
            .iter()
            .filter(|floating| floating.port_id.is_empty() && leaving.owner.created(floating));
        for floating in left {
            let action = Action::DeleteFloating(floating.floating_ip_address.clone());
            let step = step(&leaving.owner.tag, action).for_service(Some(&leaving.owner.service));
            plan.steps.push(step.because("its load balancer is gone"));
        }
    }
}
