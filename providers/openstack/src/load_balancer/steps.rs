//! What can be done to the parts, one call each.

use std::fmt;

use ccm_core::{
    load_balancer::{Effect, StepDescription},
    plan::{self, Change as _, objects},
};

use super::{
    bodies::{ListenerChange, MonitorChange, NewListener, NewLoadBalancer, NewMonitor, NewPool, PoolChange},
    desired::{DesiredFloatingIp, DesiredMember, GroupRef},
    groups::Group,
    observe::ListenerKey,
};

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    /// Name of the load balancer, security group, or node address that is changed.
    pub(crate) target: String,
    pub(crate) action: Action,
}

/// A planned change.
pub(crate) type Step = plan::Step<Change>;

/// A step that changes the object of this name.
pub(crate) fn step(target: &str, action: Action) -> Step {
    let target = target.to_owned();
    Step::new(Change { target, action })
}

/// What is changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    CreateBalancer(Box<NewLoadBalancer>),
    DeleteBalancer {
        cascade: bool,
        /// It never worked, and is made anew.
        recreate: bool,
    },
    /// Its machines are made anew, behind the same addresses.
    Failover,
    /// Its name and tags get another cluster's name.
    Rename {
        from: String,
        to: String,
    },
    /// Tags to add and to take away.
    Retag {
        add: Vec<String>,
        remove: Vec<String>,
    },
    CreateListener(ListenerKey, Box<NewListener>),
    UpdateListener(ListenerKey, Box<ListenerChange>),
    DeleteListener(ListenerKey),
    CreatePool(ListenerKey, Box<NewPool>),
    UpdatePool(ListenerKey, PoolChange),
    DeletePool(ListenerKey),
    /// A pool that no listener has; by its id, since nothing else tells it from others.
    DeleteOrphanedPool(String),
    AddMembers(ListenerKey, Vec<DesiredMember>),
    SetMembers(ListenerKey, Vec<DesiredMember>),
    CreateMember(ListenerKey, DesiredMember),
    DeleteMember(ListenerKey, String, u16),
    CreateMonitor(ListenerKey, NewMonitor),
    UpdateMonitor(ListenerKey, MonitorChange),
    DeleteMonitor(ListenerKey),
    CreateFloating(DesiredFloatingIp),
    AttachFloating(String),
    DetachFloating(String),
    DeleteFloating(String),
    /// A change of a security group.
    Group(objects::Change<Group>),
    /// A tag that the Go cloud controller once gave to ports: the id of the group.
    DeletePortTag {
        port: String,
        group: GroupRef,
    },
    SetPortGroups {
        port: String,
        add: Vec<GroupRef>,
        remove: Vec<GroupRef>,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.target;
        match &self.action {
            Action::CreateBalancer(body) => {
                write!(f, "create load balancer {of}")?;
                let listener_keys: Vec<_> = body
                    .listeners
                    .iter()
                    .map(|listener| format!("{}/{}", listener.protocol, listener.protocol_port))
                    .collect();
                if listener_keys.is_empty() {
                    return Ok(());
                }
                write!(f, " with listeners {}", listener_keys.join(", "))
            }
            Action::DeleteBalancer { cascade: true, .. } => {
                write!(f, "delete load balancer {of} and everything below it")
            }
            Action::DeleteBalancer { cascade: false, .. } => write!(f, "delete load balancer {of}"),
            Action::Failover => write!(f, "fail over load balancer {of}"),
            Action::Rename { from, to } => write!(
                f,
                "rename load balancer {of} and change its tags: cluster {to} in place of {from}"
            ),
            Action::Retag { add, remove } => {
                let parts = [("add", add), ("remove", remove)];
                let parts: Vec<_> = parts
                    .iter()
                    .filter(|(_, tags)| !tags.is_empty())
                    .map(|(verb, tags)| format!("{verb} {}", tags.join(", ")))
                    .collect();
                write!(f, "change tags of load balancer {of}: {}", parts.join("; "))
            }
            Action::CreateListener(listener_key, _) => {
                write!(f, "create listener {listener_key} on load balancer {of}")
            }
            Action::UpdateListener(listener_key, _) => {
                write!(f, "change listener {listener_key} on load balancer {of}")
            }
            Action::DeleteListener(listener_key) => {
                write!(f, "delete listener {listener_key} on load balancer {of}")
            }
            Action::CreatePool(listener_key, _) => {
                write!(f, "create pool of listener {listener_key} on load balancer {of}")
            }
            Action::UpdatePool(listener_key, _) => {
                write!(f, "change pool of listener {listener_key} on load balancer {of}")
            }
            Action::DeletePool(listener_key) => {
                write!(f, "delete pool of listener {listener_key} on load balancer {of}")
            }
            Action::DeleteOrphanedPool(id) => {
                write!(f, "delete pool {id} without a listener on load balancer {of}")
            }
            Action::AddMembers(listener_key, members) => {
                write!(
                    f,
                    "add members {} to the pool of listener {listener_key} on load balancer {of}",
                    list(members)
                )
            }
            Action::SetMembers(listener_key, members) => {
                write!(
                    f,
                    "set the members of the pool of listener {listener_key} on load balancer {of} to {}",
                    list(members)
                )
            }
            Action::CreateMember(listener_key, member) => write!(
                f,
                "create member {}:{} in the pool of listener {listener_key} on load balancer {of}",
                member.address, member.port
            ),
            Action::DeleteMember(listener_key, address, port) => write!(
                f,
                "delete member {address}:{port} in the pool of listener {listener_key} on load balancer {of}"
            ),
            Action::CreateMonitor(listener_key, _) => {
                write!(
                    f,
                    "create health monitor of listener {listener_key} on load balancer {of}"
                )
            }
            Action::UpdateMonitor(listener_key, _) => {
                write!(
                    f,
                    "change health monitor of listener {listener_key} on load balancer {of}"
                )
            }
            Action::DeleteMonitor(listener_key) => {
                write!(
                    f,
                    "delete health monitor of listener {listener_key} on load balancer {of}"
                )
            }
            Action::CreateFloating(desired) if desired.address.is_empty() => {
                write!(f, "create floating address for load balancer {of}")
            }
            Action::CreateFloating(desired) => {
                write!(
                    f,
                    "create floating address {} for load balancer {of}",
                    desired.address
                )
            }
            Action::AttachFloating(address) => {
                write!(f, "attach floating address {address} to load balancer {of}")
            }
            Action::DetachFloating(address) => {
                write!(f, "detach floating address {address} from load balancer {of}")
            }
            Action::DeleteFloating(address) => {
                write!(f, "delete floating address {address} of load balancer {of}")
            }
            Action::Group(change) => f.write_str(&change.describe().sentence),
            Action::DeletePortTag { group, .. } => {
                write!(
                    f,
                    "remove the tag of security group {} from node port {of}",
                    group.name
                )
            }
            Action::SetPortGroups { add, remove, .. } => {
                let add: Vec<_> = add.iter().map(|group| format!("add {}", group.name)).collect();
                let remove = remove.iter().map(|group| format!("remove {}", group.name));
                let all: Vec<_> = add.into_iter().chain(remove).collect();
                write!(f, "change security groups of node port {of}: {}", all.join(", "))
            }
        }
    }
}

/// Of thousands nobody wants to read all.
fn list(members: &[DesiredMember]) -> String {
    const SHOWN: usize = 10;
    let shown = members.iter().take(SHOWN);
    let shown: Vec<_> = shown
        .map(|member| format!("{}:{}", member.address, member.port))
        .collect();
    match members.len() {
        0 => "none".to_owned(),
        all if all > SHOWN => format!("{} and {} more", shown.join(", "), all - SHOWN),
        _ => shown.join(", "),
    }
}

impl Change {
    fn label(&self) -> &'static str {
        match &self.action {
            Action::CreateBalancer(_) => "loadbalancer_create",
            Action::DeleteBalancer { .. } => "loadbalancer_delete",
            Action::Failover => "loadbalancer_failover",
            Action::Retag { .. } | Action::Rename { .. } => "loadbalancer_update",
            Action::CreateListener(..) => "listener_create",
            Action::UpdateListener(..) => "listener_update",
            Action::DeleteListener(_) => "listener_delete",
            Action::CreatePool(..) => "pool_create",
            Action::UpdatePool(..) => "pool_update",
            Action::DeletePool(_) | Action::DeleteOrphanedPool(_) => "pool_delete",
            Action::AddMembers(..) | Action::SetMembers(..) => "members_update",
            Action::CreateMember(..) => "member_create",
            Action::DeleteMember(..) => "member_delete",
            Action::CreateMonitor(..) => "healthmonitor_create",
            Action::UpdateMonitor(..) => "healthmonitor_update",
            Action::DeleteMonitor(_) => "healthmonitor_delete",
            Action::CreateFloating(_) => "floatingip_create",
            Action::AttachFloating(_) | Action::DetachFloating(_) => "floatingip_update",
            Action::DeleteFloating(_) => "floatingip_delete",
            Action::Group(change) => change.describe().label,
            Action::DeletePortTag { .. } => "port_tag_delete",
            Action::SetPortGroups { .. } => "port_update",
        }
    }

    fn effect(&self) -> Effect {
        match &self.action {
            Action::CreateBalancer(_)
            | Action::CreateListener(..)
            | Action::CreatePool(..)
            | Action::CreateMember(..)
            | Action::CreateMonitor(..)
            | Action::CreateFloating(_) => Effect::Create,
            Action::DeleteBalancer { .. }
            | Action::DeleteListener(_)
            | Action::DeletePool(_)
            | Action::DeleteOrphanedPool(_)
            | Action::DeleteMember(..)
            | Action::DeleteMonitor(_)
            | Action::DeleteFloating(_) => Effect::Delete,
            Action::Group(change) => change.describe().effect,
            _ => Effect::Change,
        }
    }
}

impl Change {
    /// Whether it deletes a security group.
    pub(crate) fn deletes_group(&self) -> bool {
        matches!(&self.action, Action::Group(change) if matches!(change.action, objects::Action::Delete(_)))
    }
}

impl plan::Change for Change {
    fn describe(&self) -> StepDescription {
        StepDescription {
            needs_idle: self.action.occupies_balancer(),
            ..StepDescription::new(self.label(), self.effect(), self.to_string())
        }
    }
}

impl Action {
    /// Whether Octavia works on the load balancer after this change, and refuses it while it works on another one.
    pub(crate) fn occupies_balancer(&self) -> bool {
        !matches!(
            self,
            Self::CreateFloating(_)
                | Self::AttachFloating(_)
                | Self::DetachFloating(_)
                | Self::DeleteFloating(_)
                | Self::Group(_)
                | Self::DeletePortTag { .. }
                | Self::SetPortGroups { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_members_some_are_named() {
        let desired = |node| DesiredMember {
            address: format!("10.0.0.{node}"),
            port: 1,
            ..DesiredMember::default()
        };
        let ten: Vec<_> = (0..10).map(desired).collect();
        assert!(list(&ten).ends_with("10.0.0.9:1"), "{}", list(&ten));
        let more: Vec<_> = (0..5000).map(desired).collect();
        assert_eq!(list(&more), format!("{} and 4990 more", list(&ten)));
        assert_eq!(list(&[]), "none");
    }
}
