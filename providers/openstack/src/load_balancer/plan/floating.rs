//! Floating addresses. An attached one always wins, whatever the Service says of networks and addresses.

use ccm_core::plan::Plan;

use super::{Site, blocked};
use crate::load_balancer::{
    desired::{Joined, Wish},
    names,
    observe::Sight,
    steps::{Action, Change, step},
};

/// What the owner wants of the floating address.
pub(super) fn change(site: &Site<'_>, admitted: &[&Joined], sight: &Sight, plan: &mut Plan<Change>) {
    let tree = site.tree;
    let owner = admitted.iter().find(|joined| site.owned_by(&joined.who));
    let before = plan.steps.len();
    if let Some(owner) = owner {
        own(site, owner, sight, plan);
    }
    let comes = plan.steps.len() > before && tree.floating.is_none();
    if tree.floating.is_some() || comes || tree.is_v6() {
        return;
    }
    for joined in admitted {
        if !site.owned_by(&joined.who) && !joined.internal {
            let field = format!("address of load balancer {}", tree.balancer.name);
            plan.blocked.push(blocked(
                Some(&joined.who.service),
                &field,
                "not public",
                "public by a Service that does not own it",
            ));
        }
    }
}

fn own(site: &Site<'_>, owner: &Joined, sight: &Sight, plan: &mut Plan<Change>) {
    let tree = site.tree;
    let service = Some(&owner.who.service);
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
    let wish = &owner.floating;
    let there = sight.floating.iter().find(|floating| {
        if wish.address.is_empty() {
            // Somebody took it away; whoever wants it no more gets rid of it by other ways.
            floating.port_id.is_empty() && owner.who.made(floating)
        } else {
            floating.floating_ip_address == wish.address
        }
    });
    match (there, &wish.network) {
        (Some(there), _) if there.port_id.is_empty() => {
            let address = there.floating_ip_address.clone();
            plan.steps
                .push(site.step(Action::AttachFloating(address), service));
        }
        (Some(_), _) => plan.blocked.push(blocked(
            service,
            &format!("floating address {}", wish.address),
            "in use elsewhere",
            "that of the load balancer",
        )),
        (None, Some(_)) => plan
            .steps
            .push(site.step(Action::CreateFloating(wish.clone()), service)),
        // A note says so.
        (None, None) => {}
    }
}

/// What goes together with the load balancer.
pub(super) fn release(site: &Site<'_>, plan: &mut Plan<Change>) {
    let leaving = &site.wish.leaving;
    let owner = leaving.iter().find(|leaver| site.owned_by(&leaver.who));
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
pub(super) fn sweep(wish: &Wish, sight: &Sight, plan: &mut Plan<Change>) {
    for leaver in wish.leaving.iter().filter(|leaver| !leaver.keep_floating_ip) {
        let left = sight
            .floating
            .iter()
            .filter(|floating| floating.port_id.is_empty() && leaver.who.made(floating));
        for floating in left {
            let action = Action::DeleteFloating(floating.floating_ip_address.clone());
            let step = step(&leaver.who.tag, action).for_service(Some(&leaver.who.service));
            plan.steps.push(step.because("its load balancer is gone"));
        }
    }
}
