//! The plan of the toy, and the effects of its steps.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    load_balancer::{Ownership, ServiceId, StepObjects},
    plan::{Fact, Plan},
};

use crate::toy::{
    Action, Balancer, Desired, DesiredListener, Firewall, Flaw, Listener, Observed, Toy, ToyChange, ToyReply,
    ToyStep, blocked, ownership, step,
};

/// The desired listener. Without nodes it keeps its members.
fn listener(desired: &DesiredListener, tag: &str) -> Listener {
    Listener {
        owner: tag.to_owned(),
        algorithm: desired.algorithm.clone(),
        nodes: desired.nodes.clone(),
    }
}

pub fn balancer(toy: &Toy, desired: &Desired, balancer: Option<&Balancer>) -> Plan<ToyChange> {
    let Desired::Balancer {
        tags,
        name,
        flavor,
        joined,
        frozen,
        following,
        leaving,
        listeners,
        nodes,
    } = desired
    else {
        return Plan::default();
    };
    let mut plan = Plan::default();
    let Some(balancer) = balancer else {
        match name {
            None => {
                for service in joined.values() {
                    plan.blocked.push(blocked(Some(service), "balancer", "absent", "present"));
                }
            }
            Some(name) => plan.steps.push(create(toy, desired, name)),
        }
        return plan;
    };
    let step = |action, service: Option<&ServiceId>| step(&balancer.name, action, service);
    let ours = ownership(tags, balancer);
    if balancer.is_created_by_a_cluster() && !ours.allows_changes() {
        for service in joined.values() {
            plan.blocked.push(blocked(Some(service), "balancer", "another cluster's", "ours"));
        }
        return plan;
    }
    let stays = |tag: &&String| joined.contains_key(*tag) || frozen.contains(*tag);
    let others = balancer.service_tags().filter(|tag| !stays(tag) && !leaving.contains(*tag)).count();
    if joined.is_empty() && !balancer.service_tags().any(|tag| stays(&tag)) {
        let swept = leaving.is_empty() && frozen.is_empty() && ours == Ownership::Ours;
        let left = !leaving.is_empty() && frozen.is_empty() && others == 0;
        if balancer.is_created_by_a_cluster() && (swept || left) {
            plan.steps.push(step(Action::DeleteBalancer, None));
            return plan;
        }
    }
    if let Some(flavor) = flavor
        && *flavor != balancer.flavor
    {
        if toy.has(Flaw::Recreates) {
            plan.steps.push(step(Action::DeleteBalancer, None));
            return plan;
        }
        plan.blocked.push(blocked(None, "flavor", &balancer.flavor, flavor));
    }
    let missing: BTreeSet<_> = joined.keys().filter(|tag| !balancer.tags.contains(*tag)).cloned().collect();
    let surplus: BTreeSet<_> = leaving.intersection(&balancer.tags).cloned().collect();
    for (port, have) in &balancer.listeners {
        let theirs = joined.contains_key(&have.owner) || leaving.contains(&have.owner);
        let keeps = listeners.get(port).is_some_and(|want| have.owner == crate::toy::tag(&want.service));
        if theirs && !keeps {
            plan.steps.push(step(Action::DeleteListener(*port), joined.get(&have.owner)));
        } else if following.contains(&have.owner)
            && let Some(nodes) = nodes
            && *nodes != have.nodes
        {
            plan.steps.push(step(Action::Fill(*port, nodes.clone()), None));
        }
    }
    for (port, want) in listeners {
        let (service, tag) = (Some(&want.service), crate::toy::tag(&want.service));
        match balancer.listeners.get(port) {
            Some(have) if have.owner == tag => {
                let updates = have.algorithm != want.algorithm && !toy.has(Flaw::IgnoresAlgorithm);
                if updates || toy.has(Flaw::UpdatesAlways) {
                    plan.steps.push(step(Action::UpdateListener(*port, want.algorithm.clone()), service));
                }
                if have.nodes != want.nodes && nodes.is_some() {
                    plan.steps.push(step(Action::Fill(*port, want.nodes.clone()), service));
                }
            }
            Some(have) if joined.contains_key(&have.owner) || leaving.contains(&have.owner) => {
                plan.steps.push(step(Action::CreateListener(*port, listener(want, &tag)), service));
            }
            Some(have) => {
                plan.blocked.push(blocked(service, format!("listener {port}"), &have.owner, &tag));
            }
            None => plan.steps.push(step(Action::CreateListener(*port, listener(want, &tag)), service)),
        }
    }
    let due = !plan.steps.is_empty() || !missing.is_empty() || !surplus.is_empty();
    let tag_text = tags
        .for_update(&ours, due)
        .filter(|_| balancer.is_created_by_a_cluster())
        .map(ToString::to_string);
    // Ownership tags are added first and removed last: after a kill in between, they identify the remaining objects.
    let add: BTreeSet<_> = missing.into_iter().chain(tag_text).collect();
    if !add.is_empty() {
        plan.steps.insert(0, step(Action::Retag(add, BTreeSet::new()), None));
    }
    if !surplus.is_empty() {
        plan.steps.push(step(Action::Retag(BTreeSet::new(), surplus), None));
    }
    plan
}

fn create(toy: &Toy, desired: &Desired, name: &str) -> ToyStep {
    let Desired::Balancer {
        tags,
        flavor,
        joined,
        listeners,
        ..
    } = desired
    else {
        unreachable!("only balancers are created")
    };
    let tag_text = tags.for_create().map(ToString::to_string);
    let tags: BTreeSet<String> = if toy.has(Flaw::TagsLater) {
        BTreeSet::new()
    } else {
        joined.keys().cloned().chain(tag_text).collect()
    };
    let listeners = listeners
        .iter()
        .map(|(port, want)| (*port, listener(want, &crate::toy::tag(&want.service))))
        .collect();
    let new = Balancer {
        id: Fact::Later(format!("the id of balancer {name}").into()),
        name: name.to_owned(),
        tags,
        flavor: flavor.clone().unwrap_or_default(),
        address: Fact::Later(format!("the address of balancer {name}").into()),
        listeners,
    };
    step(name, Action::CreateBalancer(new), None)
}

pub fn firewall(
    rules: &Firewall,
    services: &BTreeMap<String, ServiceId>,
    frozen: &BTreeSet<String>,
    leaving: &BTreeSet<String>,
    have: &Firewall,
) -> Plan<ToyChange> {
    let step = |node: &str, tag: &str, action, service: Option<&ServiceId>| {
        // Rules are independent of each other.
        step("firewall", action, service).with_objects(StepObjects::changing([format!("rule {node} {tag}")]))
    };
    let mut plan = Plan::default();
    // Without nodes the rules stay.
    let keeps = |tag: &String| frozen.contains(tag) || (services.contains_key(tag) && rules.is_empty());
    for ((node, tag), address) in have {
        let theirs = services.contains_key(tag) || leaving.contains(tag);
        if theirs && !keeps(tag) && rules.get(&(node.clone(), tag.clone())) != Some(address) {
            let rule = Action::DeleteRule(node.clone(), tag.clone());
            plan.steps.push(step(node, tag, rule, services.get(tag)));
        }
    }
    for ((node, tag), address) in rules {
        if have.get(&(node.clone(), tag.clone())) != Some(address) {
            let rule = Action::CreateRule(node.clone(), tag.clone(), address.clone());
            plan.steps.push(step(node, tag, rule, services.get(tag)));
        }
    }
    plan
}

pub fn fold(toy: &Toy, change: &ToyChange, reply: Option<&ToyReply>, observed: &mut Observed) {
    match observed {
        Observed::Firewall(rules) => match &change.action {
            Action::CreateRule(node, tag, address) => {
                rules.insert((node.clone(), tag.clone()), address.clone());
            }
            Action::DeleteRule(node, tag) => {
                rules.remove(&(node.clone(), tag.clone()));
            }
            _ => {}
        },
        Observed::Balancer(balancers) => fold_balancer(toy, change, reply, balancers),
    }
}

fn fold_balancer(toy: &Toy, change: &ToyChange, reply: Option<&ToyReply>, balancers: &mut Vec<Balancer>) {
    if let Action::CreateBalancer(new) = &change.action {
        let mut new = new.clone();
        if let Some(reply) = reply {
            new.id = Fact::Known(reply.id);
            new.address = Fact::Known(reply.address.clone());
        }
        // A later reply to the same step has no new information.
        if !balancers.iter().any(|balancer| balancer.id == new.id) {
            balancers.push(new);
        }
        return;
    }
    if change.action == Action::DeleteBalancer {
        if !balancers.is_empty() {
            balancers.remove(0);
        }
        return;
    }
    let Some(balancer) = balancers.first_mut() else {
        return;
    };
    match &change.action {
        Action::CreateListener(port, new) => {
            balancer.listeners.insert(*port, new.clone());
        }
        Action::UpdateListener(port, algorithm) => {
            if let Some(have) = balancer.listeners.get_mut(port) {
                have.algorithm.clone_from(algorithm);
            }
        }
        Action::Fill(port, nodes) => {
            if let Some(have) = balancer.listeners.get_mut(port) {
                have.nodes.clone_from(nodes);
            }
        }
        Action::DeleteListener(port) => {
            balancer.listeners.remove(port);
        }
        Action::Retag(add, remove) => {
            if toy.has(Flaw::RemovesForeignTags) {
                balancer.tags.remove("books");
            }
            balancer.tags.retain(|tag_text| !remove.contains(tag_text));
            balancer.tags.extend(add.iter().cloned());
        }
        _ => {}
    }
}
