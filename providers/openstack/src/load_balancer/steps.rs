//! The changes of parts, one call each, and their effect on the observed state.

use ccm_core::{
    load_balancer::{Effect, StepDescription},
    plan::{
        self, Plan, Step,
        objects::{self, Action, Attributes, Objects},
    },
};
use serde_json::Value;

use super::{
    desired::GroupRef,
    fields,
    groups::Group,
    kinds::{ObjectKind, ObjectUpdate, REPLACED},
    names,
    observe::ObservedPart,
};
use crate::instances::records::Port;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PartChange {
    /// A change of the load balancer with this name, an object below it, or its floating IP.
    Balancer(String, objects::ObjectChange<ObjectKind>),
    /// Deletes a load balancer that never worked, so that it is created again. No other change deletes one that Services need.
    Recreate(objects::ObjectChange<ObjectKind>),
    /// A change of a security group.
    Group(objects::ObjectChange<Group>),
    /// Deletes a tag that upstream once added to ports: the ID of the group.
    DeletePortTag(NodePort, GroupRef),
    /// Adds security groups to a port and removes others.
    SetPortGroups {
        port: NodePort,
        add: Vec<GroupRef>,
        remove: Vec<GroupRef>,
    },
}

/// A node's port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodePort {
    pub(crate) id: String,
    /// The address by which users know it.
    pub(crate) address: String,
}

/// The cloud's answer to a change.
#[derive(Clone, Debug)]
pub(crate) enum PartReply {
    /// No data.
    Nothing,
    Balancer(objects::ChangeReply<ObjectKind>),
    Group(objects::ChangeReply<Group>),
    Port(Box<Port>),
}

/// The plan for a load balancer.
pub(super) fn of_balancer(
    plan: Plan<objects::ObjectChange<ObjectKind>>,
    into: impl Fn(objects::ObjectChange<ObjectKind>) -> PartChange,
) -> Plan<PartChange> {
    let steps = plan.steps.into_iter().map(|Step { change, description }| {
        let step = Step::new(into(change)).because(description.reason);
        step.for_service(description.service.as_ref())
    });
    Plan {
        steps: steps.collect(),
        blocked: plan.blocked,
    }
}

impl plan::CloudChange for PartChange {
    fn describe(&self) -> StepDescription {
        match self {
            Self::Balancer(name, change) => {
                let mut description = change.describe();
                description.needs_idle = !can_precede_balancer(change);
                if let Some(fields) = replacement(change) {
                    let former = fields.get(REPLACED).and_then(Value::as_str).unwrap_or_default();
                    description.sentence = format!(
                        "replace floating IP {former} of load balancer {name} by {}; {former} stays in the project",
                        change.key
                    );
                }
                if matches!(change.kind, ObjectKind::Pool | ObjectKind::Monitor) {
                    description.sentence += &format!(" (load balancer {name})");
                }
                description
            }
            Self::Recreate(change) => change.describe(),
            Self::Group(change) => change.describe(),
            Self::DeletePortTag(port, group) => {
                let sentence = format!(
                    "remove the tag of security group {} from node port {}",
                    group.name, port.address
                );
                StepDescription::new("port_tag_delete", Effect::Change, sentence)
            }
            Self::SetPortGroups { port, add, remove } => {
                let add = add.iter().map(|group| format!("add {}", group.name));
                let remove = remove.iter().map(|group| format!("remove {}", group.name));
                let all: Vec<_> = add.chain(remove).collect();
                let sentence =
                    format!("change security groups of node port {}: {}", port.address, all.join(", "));
                StepDescription::new("port_update", Effect::Change, sentence)
            }
        }
    }
}

/// Whether the change is sent while Octavia is working on the load balancer, which may still fail. Neutron attaches a
/// floating IP to the port of a load balancer in `PENDING_CREATE`. A floating IP without our ownership tag has to wait:
/// if the creation failed, nothing would identify its owner.
fn can_precede_balancer(change: &objects::ObjectChange<ObjectKind>) -> bool {
    if change.kind != ObjectKind::Floating {
        return false;
    }
    match &change.action {
        Action::Create(floating, _) => {
            names::tag_of_floating_ip(floating.text(fields::DESCRIPTION)).is_some()
        }
        _ => true,
    }
}

/// As [`Objects::fold`]. A new load balancer has a port, whether known or not. Its deletion deletes the port, which
/// detaches the floating IP. A new floating IP is known by its address as soon as a reply names it.
fn fold_balancer(
    objects: &mut Objects<ObjectKind>,
    change: &objects::ObjectChange<ObjectKind>,
    reply: Option<&objects::ChangeReply<ObjectKind>>,
) {
    let balancer = objects.of(ObjectKind::Balancer).next();
    let port = balancer
        .map(|balancer| balancer.text(fields::VIP_PORT_ID))
        .filter(|port| !port.is_empty())
        .map(str::to_owned);
    if let Some(fields) = replacement(change) {
        fold_replacement(objects, change, fields);
        return;
    }
    objects.fold(change, reply);
    for object in &mut objects.all {
        if object.kind == ObjectKind::Floating && object.key.is_empty() {
            object.key = object.text(fields::FLOATING_IP_ADDRESS).to_owned();
        }
    }
    match (&change.action, port) {
        (Action::Create(..), _) if change.kind == ObjectKind::Balancer && reply.is_none() => {
            for balancer in objects.all.iter_mut().filter(|object| object.kind == ObjectKind::Balancer) {
                let port = format!("port of {}", balancer.key);
                balancer.attributes.entry(fields::VIP_PORT_ID).or_insert_with(|| port.into());
            }
        }
        (Action::Delete(_), Some(port)) if change.kind == ObjectKind::Balancer => {
            for floating in objects.all.iter_mut().filter(|object| object.text(fields::PORT_ID) == port) {
                floating.attributes.insert(fields::PORT_ID, "".into());
            }
        }
        _ => {}
    }
}

/// The fields of a change that replaces a floating IP by another one.
fn replacement(change: &objects::ObjectChange<ObjectKind>) -> Option<&Attributes> {
    match &change.action {
        Action::Update(ObjectUpdate::ReplaceFloating, fields) => Some(fields),
        _ => None,
    }
}

/// The replaced floating IP gets the new description, and the other one the port.
fn fold_replacement(
    objects: &mut Objects<ObjectKind>,
    change: &objects::ObjectChange<ObjectKind>,
    fields: &Attributes,
) {
    let floating = objects.all.iter_mut().filter(|object| object.kind == ObjectKind::Floating);
    for object in floating {
        if fields.get(REPLACED).and_then(Value::as_str) == Some(&*object.key) {
            object.attributes.insert(fields::PORT_ID, "".into());
            if let Some(description) = fields.get(fields::DESCRIPTION) {
                object.attributes.insert(fields::DESCRIPTION, description.clone());
            }
        } else if object.key == change.key {
            object
                .attributes
                .insert(fields::PORT_ID, fields.get(fields::PORT_ID).cloned().unwrap_or_default());
        }
    }
}

impl PartChange {
    /// Whether the change deletes a security group.
    pub(crate) fn deletes_group(&self) -> bool {
        matches!(self, Self::Group(change) if matches!(change.action, Action::Delete(_)))
    }

    /// The work of Octavia on the load balancer after the change. Until it ends, Octavia refuses other changes.
    pub(crate) fn occupies_balancer(&self) -> Option<Effect> {
        let (Self::Balancer(_, change) | Self::Recreate(change)) = self else {
            return None;
        };
        match (change.kind, &change.action) {
            (ObjectKind::Floating, _) => None,
            (ObjectKind::Balancer, Action::Create(..)) => Some(Effect::Create),
            (ObjectKind::Balancer, Action::Delete(_)) => Some(Effect::Delete),
            _ => Some(Effect::Change),
        }
    }

    /// Folds the change into `observed`, with the cloud's answer or with its predictable effect.
    pub(crate) fn fold(&self, reply: Option<&PartReply>, observed: &mut ObservedPart) {
        match (self, observed) {
            (Self::Balancer(_, change) | Self::Recreate(change), ObservedPart::Balancers(snapshot)) => {
                let reply = match reply {
                    Some(PartReply::Balancer(reply)) => Some(reply),
                    _ => None,
                };
                fold_balancer(&mut snapshot.objects, change, reply);
                snapshot.was_deleted |= self.occupies_balancer() == Some(Effect::Delete);
            }
            (Self::Group(change), ObservedPart::Groups(groups)) => {
                let reply = match reply {
                    Some(PartReply::Group(reply)) => Some(reply),
                    _ => None,
                };
                groups.fold(change, reply);
            }
            (Self::DeletePortTag(port, group), ObservedPart::Ports(ports, _)) => {
                if let Some(have) = ports.get_mut(&port.id) {
                    have.tags.retain(|tag| group.id.known() != Some(tag));
                }
            }
            (Self::SetPortGroups { port, add, remove }, ObservedPart::Ports(ports, _)) => {
                let Some(have) = ports.get_mut(&port.id) else {
                    return;
                };
                if let Some(PartReply::Port(now)) = reply {
                    *have = (**now).clone();
                    return;
                }
                let groups = &mut have.security_groups;
                groups.retain(|group| !remove.iter().any(|gone| gone.id.known() == Some(group)));
                for group in add.iter().map(|group| group.id.to_string()) {
                    if !groups.contains(&group) {
                        groups.push(group);
                    }
                }
            }
            _ => {}
        }
    }
}
