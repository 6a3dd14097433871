//! The changes of parts, one call each, and their effect on the observed state.

use ccm_core::{
    load_balancer::{Effect, StepDescription},
    plan::{
        self, Plan, Step,
        objects::{self, Action, Object, Objects},
    },
};

use super::{desired::GroupRef, groups::Group, kinds::Kind, names, observe::Observed};
use crate::instances::records::Port;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    /// A change of the load balancer with this name, an object below it, or its floating IP.
    Balancer(String, objects::Change<Kind>),
    /// Deletes a load balancer that never worked, so that it is created again. No other change deletes one that Services need.
    Recreate(objects::Change<Kind>),
    /// A change of a security group.
    Group(objects::Change<Group>),
    /// Deletes a tag that the Go cloud controller once added to ports: the ID of the group.
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
pub(crate) enum Reply {
    /// No data.
    Nothing,
    Balancer(objects::Reply<Kind>),
    Group(objects::Reply<Group>),
    Port(Box<Port>),
}

/// The plan for a load balancer.
pub(super) fn of_balancer(
    plan: Plan<objects::Change<Kind>>,
    into: impl Fn(objects::Change<Kind>) -> Change,
) -> Plan<Change> {
    let steps = plan.steps.into_iter().map(|Step { change, description }| {
        let step = Step::new(into(change)).because(description.reason);
        step.for_service(description.service.as_ref())
    });
    Plan {
        steps: steps.collect(),
        blocked: plan.blocked,
    }
}

impl plan::Change for Change {
    fn describe(&self) -> StepDescription {
        match self {
            Self::Balancer(name, change) => {
                let mut description = change.describe();
                description.needs_idle = !can_precede_balancer(change);
                if matches!(change.kind, Kind::Pool | Kind::Monitor) {
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
fn can_precede_balancer(change: &objects::Change<Kind>) -> bool {
    let is_recognized =
        |floating: &Object<Kind>| names::tag_of_floating_ip(floating.text("description")).is_some();
    match &change.action {
        _ if change.kind != Kind::Floating => false,
        Action::Create(floating, _) => is_recognized(floating),
        _ => true,
    }
}

/// As [`Objects::fold`]. A new load balancer has a port, whether known or not. Its deletion deletes the port, which
/// detaches the floating IP.
fn fold_balancer(
    objects: &mut Objects<Kind>,
    change: &objects::Change<Kind>,
    reply: Option<&objects::Reply<Kind>>,
) {
    let balancer = objects.of(Kind::Balancer).next();
    let port = balancer.map(|balancer| balancer.text("vip_port_id"));
    let port = port.filter(|port| !port.is_empty()).map(str::to_owned);
    objects.fold(change, reply);
    match (&change.action, port) {
        (Action::Create(..), _) if change.kind == Kind::Balancer && reply.is_none() => {
            for balancer in objects.all.iter_mut().filter(|object| object.kind == Kind::Balancer) {
                let port = format!("port of {}", balancer.key);
                balancer.attributes.entry("vip_port_id").or_insert_with(|| port.into());
            }
        }
        (Action::Delete(_), Some(port)) if change.kind == Kind::Balancer => {
            for floating in objects.all.iter_mut().filter(|object| object.text("port_id") == port) {
                floating.attributes.insert("port_id", "".into());
            }
        }
        _ => {}
    }
}

impl Change {
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
            (Kind::Floating, _) => None,
            (Kind::Balancer, Action::Create(..)) => Some(Effect::Create),
            (Kind::Balancer, Action::Delete(_)) => Some(Effect::Delete),
            _ => Some(Effect::Change),
        }
    }

    /// Folds the change into `observed`, with the cloud's answer or with its predictable effect.
    pub(crate) fn fold(&self, reply: Option<&Reply>, observed: &mut Observed) {
        match (self, observed) {
            (Self::Balancer(_, change) | Self::Recreate(change), Observed::Balancers(snapshot)) => {
                let reply = match reply {
                    Some(Reply::Balancer(reply)) => Some(reply),
                    _ => None,
                };
                fold_balancer(&mut snapshot.objects, change, reply);
                snapshot.was_deleted |= self.occupies_balancer() == Some(Effect::Delete);
            }
            (Self::Group(change), Observed::Groups(groups)) => {
                let reply = match reply {
                    Some(Reply::Group(reply)) => Some(reply),
                    _ => None,
                };
                groups.fold(change, reply);
            }
            (Self::DeletePortTag(port, group), Observed::Ports(ports, _)) => {
                if let Some(have) = ports.get_mut(&port.id) {
                    have.tags.retain(|tag| group.id.known() != Some(tag));
                }
            }
            (Self::SetPortGroups { port, add, remove }, Observed::Ports(ports, _)) => {
                let Some(have) = ports.get_mut(&port.id) else {
                    return;
                };
                if let Some(Reply::Port(now)) = reply {
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
