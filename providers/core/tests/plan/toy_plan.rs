//! The toy's way from how it is to how it should be, and what steps do.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::{
    load_balancer::{Ownership, ServiceId},
    plan::{Fact, Plan},
};

use crate::toy::{
    Action, Board, Box, Desired, Flaw, Observed, Reply, Shelf, Toy, ToyChange, ToyStep, WantedBox, blocked,
    ownership, step,
};

/// What a box is to be like. Without nodes it keeps those that it has.
fn wanted(wanted: &WantedBox, tag: &str) -> Box {
    Box {
        owner: tag.to_owned(),
        colour: wanted.colour.clone(),
        nodes: wanted.nodes.clone(),
    }
}

pub fn shelf(toy: &Toy, desired: &Desired, shelf: Option<&Shelf>) -> Plan<ToyChange> {
    let Desired::Shelf {
        marks,
        name,
        wood,
        joined,
        kept,
        following,
        leaving,
        boxes,
        nodes,
    } = desired
    else {
        return Plan::default();
    };
    let mut plan = Plan::default();
    let Some(shelf) = shelf else {
        match name {
            None => {
                for service in joined.values() {
                    plan.blocked
                        .push(blocked(Some(service), "shelf", "not there", "there"));
                }
            }
            Some(name) => plan.steps.push(create(toy, desired, name)),
        }
        return plan;
    };
    let step = |action, service: Option<&ServiceId>| step(&shelf.name, action, service);
    let ours = ownership(marks, shelf);
    if shelf.is_made_by_a_cluster() && !ours.allows_changes() {
        for service in joined.values() {
            plan.blocked
                .push(blocked(Some(service), "shelf", "another cluster's", "ours"));
        }
        return plan;
    }
    let stays = |tag: &&String| joined.contains_key(*tag) || kept.contains(*tag);
    let others = shelf
        .tags()
        .filter(|tag| !stays(tag) && !leaving.contains(*tag))
        .count();
    if joined.is_empty() && !shelf.tags().any(|tag| stays(&tag)) {
        let swept = leaving.is_empty() && kept.is_empty() && ours == Ownership::Ours;
        let left = !leaving.is_empty() && kept.is_empty() && others == 0;
        if shelf.is_made_by_a_cluster() && (swept || left) {
            plan.steps.push(step(Action::DeleteShelf, None));
            return plan;
        }
    }
    if let Some(wood) = wood
        && *wood != shelf.wood
    {
        if toy.has(Flaw::Recreates) {
            plan.steps.push(step(Action::DeleteShelf, None));
            return plan;
        }
        plan.blocked.push(blocked(None, "wood", &shelf.wood, wood));
    }
    let missing: BTreeSet<_> = joined
        .keys()
        .filter(|tag| !shelf.marks.contains(*tag))
        .cloned()
        .collect();
    let surplus: BTreeSet<_> = leaving.intersection(&shelf.marks).cloned().collect();
    for (port, have) in &shelf.boxes {
        let theirs = joined.contains_key(&have.owner) || leaving.contains(&have.owner);
        let keeps = boxes
            .get(port)
            .is_some_and(|want| have.owner == crate::toy::tag(&want.service));
        if theirs && !keeps {
            plan.steps
                .push(step(Action::RemoveBox(*port), joined.get(&have.owner)));
        } else if following.contains(&have.owner)
            && let Some(nodes) = nodes
            && *nodes != have.nodes
        {
            plan.steps.push(step(Action::Fill(*port, nodes.clone()), None));
        }
    }
    for (port, want) in boxes {
        let (service, tag) = (Some(&want.service), crate::toy::tag(&want.service));
        match shelf.boxes.get(port) {
            Some(have) if have.owner == tag => {
                let paints = have.colour != want.colour && !toy.has(Flaw::ForgetsColour);
                if paints || toy.has(Flaw::PaintsAlways) {
                    plan.steps
                        .push(step(Action::Paint(*port, want.colour.clone()), service));
                }
                if have.nodes != want.nodes && nodes.is_some() {
                    plan.steps
                        .push(step(Action::Fill(*port, want.nodes.clone()), service));
                }
            }
            Some(have) if joined.contains_key(&have.owner) || leaving.contains(&have.owner) => {
                plan.steps
                    .push(step(Action::AddBox(*port, wanted(want, &tag)), service));
            }
            Some(have) => {
                plan.blocked
                    .push(blocked(service, format!("box {port}"), &have.owner, &tag));
            }
            None => plan
                .steps
                .push(step(Action::AddBox(*port, wanted(want, &tag)), service)),
        }
    }
    let due = !plan.steps.is_empty() || !missing.is_empty() || !surplus.is_empty();
    let mark = marks
        .for_update(&ours, due)
        .filter(|_| shelf.is_made_by_a_cluster())
        .map(ToString::to_string);
    // Ownership tags come first and go last: whoever is killed in between finds the rest by them.
    let add: BTreeSet<_> = missing.into_iter().chain(mark).collect();
    if !add.is_empty() {
        plan.steps
            .insert(0, step(Action::Retag(add, BTreeSet::new()), None));
    }
    if !surplus.is_empty() {
        plan.steps
            .push(step(Action::Retag(BTreeSet::new(), surplus), None));
    }
    plan
}

fn create(toy: &Toy, desired: &Desired, name: &str) -> ToyStep {
    let Desired::Shelf {
        marks,
        wood,
        joined,
        boxes,
        ..
    } = desired
    else {
        unreachable!("only shelves are created")
    };
    let mark = marks.for_create().map(ToString::to_string);
    let tags: BTreeSet<String> = if toy.has(Flaw::TagsLater) {
        BTreeSet::new()
    } else {
        joined.keys().cloned().chain(mark).collect()
    };
    let boxes = boxes
        .iter()
        .map(|(port, want)| (*port, wanted(want, &crate::toy::tag(&want.service))))
        .collect();
    let new = Shelf {
        id: Fact::Later(format!("the id of shelf {name}").into()),
        name: name.to_owned(),
        marks: tags,
        wood: wood.clone().unwrap_or_default(),
        address: Fact::Later(format!("the address of shelf {name}").into()),
        boxes,
    };
    step(name, Action::CreateShelf(new), None)
}

pub fn board(
    pins: &Board,
    services: &BTreeMap<String, ServiceId>,
    kept: &BTreeSet<String>,
    leaving: &BTreeSet<String>,
    have: &Board,
) -> Plan<ToyChange> {
    let step = |action, service: Option<&ServiceId>| step("board", action, service);
    let mut plan = Plan::default();
    // Without any node the pins stay.
    let keeps = |tag: &String| kept.contains(tag) || (services.contains_key(tag) && pins.is_empty());
    for ((node, tag), address) in have {
        let theirs = services.contains_key(tag) || leaving.contains(tag);
        if theirs && !keeps(tag) && pins.get(&(node.clone(), tag.clone())) != Some(address) {
            plan.steps
                .push(step(Action::Unpin(node.clone(), tag.clone()), services.get(tag)));
        }
    }
    for ((node, tag), address) in pins {
        if have.get(&(node.clone(), tag.clone())) != Some(address) {
            let pin = Action::Pin(node.clone(), tag.clone(), address.clone());
            plan.steps.push(step(pin, services.get(tag)));
        }
    }
    plan
}

pub fn fold(toy: &Toy, change: &ToyChange, reply: Option<&Reply>, observed: &mut Observed) {
    match observed {
        Observed::Board(pins) => match &change.action {
            Action::Pin(node, tag, address) => {
                pins.insert((node.clone(), tag.clone()), address.clone());
            }
            Action::Unpin(node, tag) => {
                pins.remove(&(node.clone(), tag.clone()));
            }
            _ => {}
        },
        Observed::Shelf(shelves) => fold_shelf(toy, change, reply, shelves),
    }
}

fn fold_shelf(toy: &Toy, change: &ToyChange, reply: Option<&Reply>, shelves: &mut Vec<Shelf>) {
    if let Action::CreateShelf(new) = &change.action {
        let mut new = new.clone();
        if let Some(reply) = reply {
            new.id = Fact::Known(reply.id);
            new.address = Fact::Known(reply.address.clone());
        }
        // A later reply to the same step tells nothing new.
        if !shelves.iter().any(|shelf| shelf.id == new.id) {
            shelves.push(new);
        }
        return;
    }
    if change.action == Action::DeleteShelf {
        if !shelves.is_empty() {
            shelves.remove(0);
        }
        return;
    }
    let Some(shelf) = shelves.first_mut() else { return };
    match &change.action {
        Action::AddBox(port, new) => {
            shelf.boxes.insert(*port, new.clone());
        }
        Action::Paint(port, colour) => {
            if let Some(have) = shelf.boxes.get_mut(port) {
                have.colour.clone_from(colour);
            }
        }
        Action::Fill(port, nodes) => {
            if let Some(have) = shelf.boxes.get_mut(port) {
                have.nodes.clone_from(nodes);
            }
        }
        Action::RemoveBox(port) => {
            shelf.boxes.remove(port);
        }
        Action::Retag(add, remove) => {
            if toy.has(Flaw::Rude) {
                shelf.marks.remove("books");
            }
            shelf.marks.retain(|mark| !remove.contains(mark));
            shelf.marks.extend(add.iter().cloned());
        }
        _ => {}
    }
}
