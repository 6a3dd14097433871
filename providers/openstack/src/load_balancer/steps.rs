//! What can be done to the parts, one call each.

use std::fmt;

use ccm_core::{
    load_balancer::{Effect, ServiceId},
    plan::Step as CoreStep,
};

use super::{
    bodies::{ListenerChange, MonitorChange, NewListener, NewLoadBalancer, NewMonitor, NewPool, PoolChange},
    desired::{FloatingWish, GroupRef, MemberWish, RuleTuple},
    observe::Slot,
};

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// Name of the load balancer, security group, or node address that is changed.
    pub(crate) of: String,
    pub(crate) change: Change,
    pub(crate) service: Option<ServiceId>,
    pub(crate) why: String,
}

/// What is changed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    CreateBalancer(Box<NewLoadBalancer>),
    DeleteBalancer {
        cascade: bool,
        /// It never worked, and is made anew.
        anew: bool,
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
    CreateListener(Slot, Box<NewListener>),
    UpdateListener(Slot, Box<ListenerChange>),
    DeleteListener(Slot),
    CreatePool(Slot, Box<NewPool>),
    UpdatePool(Slot, PoolChange),
    DeletePool(Slot),
    /// A pool that no listener has; by its id, since nothing else tells it from others.
    DeleteLoosePool(String),
    AddMembers(Slot, Vec<MemberWish>),
    SetMembers(Slot, Vec<MemberWish>),
    CreateMember(Slot, MemberWish),
    DeleteMember(Slot, String, u16),
    CreateMonitor(Slot, NewMonitor),
    UpdateMonitor(Slot, MonitorChange),
    DeleteMonitor(Slot),
    CreateFloating(FloatingWish),
    AttachFloating(String),
    DetachFloating(String),
    DeleteFloating(String),
    CreateGroup(String),
    DeleteGroup,
    CreateRule(RuleTuple),
    /// What it lets in or out, for people, and its id: some have no other identity.
    DeleteRule(String, String),
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
    /// One that was sent, and is waited for: no more than what is said of it. What it does was done to what was observed.
    Sent {
        sentence: String,
        label: &'static str,
        effect: Effect,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.of;
        match &self.change {
            Change::CreateBalancer(body) => {
                write!(f, "create load balancer {of}")?;
                let slots: Vec<_> = body
                    .listeners
                    .iter()
                    .map(|listener| format!("{}/{}", listener.protocol, listener.protocol_port))
                    .collect();
                if slots.is_empty() {
                    return Ok(());
                }
                write!(f, " with listeners {}", slots.join(", "))
            }
            Change::DeleteBalancer { cascade: true, .. } => {
                write!(f, "delete load balancer {of} and everything below it")
            }
            Change::DeleteBalancer { cascade: false, .. } => write!(f, "delete load balancer {of}"),
            Change::Failover => write!(f, "fail over load balancer {of}"),
            Change::Rename { from, to } => write!(
                f,
                "rename load balancer {of} and change its tags: cluster {to} in place of {from}"
            ),
            Change::Retag { add, remove } => {
                let parts = [("add", add), ("remove", remove)];
                let parts: Vec<_> = parts
                    .iter()
                    .filter(|(_, tags)| !tags.is_empty())
                    .map(|(verb, tags)| format!("{verb} {}", tags.join(", ")))
                    .collect();
                write!(f, "change tags of load balancer {of}: {}", parts.join("; "))
            }
            Change::CreateListener(slot, _) => write!(f, "create listener {slot} on load balancer {of}"),
            Change::UpdateListener(slot, _) => write!(f, "change listener {slot} on load balancer {of}"),
            Change::DeleteListener(slot) => write!(f, "delete listener {slot} on load balancer {of}"),
            Change::CreatePool(slot, _) => write!(f, "create pool of listener {slot} on load balancer {of}"),
            Change::UpdatePool(slot, _) => write!(f, "change pool of listener {slot} on load balancer {of}"),
            Change::DeletePool(slot) => write!(f, "delete pool of listener {slot} on load balancer {of}"),
            Change::DeleteLoosePool(id) => {
                write!(f, "delete pool {id} without a listener on load balancer {of}")
            }
            Change::AddMembers(slot, members) => {
                write!(
                    f,
                    "add members {} to the pool of listener {slot} on load balancer {of}",
                    list(members)
                )
            }
            Change::SetMembers(slot, members) => {
                write!(
                    f,
                    "set the members of the pool of listener {slot} on load balancer {of} to {}",
                    list(members)
                )
            }
            Change::CreateMember(slot, member) => write!(
                f,
                "create member {}:{} in the pool of listener {slot} on load balancer {of}",
                member.address, member.port
            ),
            Change::DeleteMember(slot, address, port) => write!(
                f,
                "delete member {address}:{port} in the pool of listener {slot} on load balancer {of}"
            ),
            Change::CreateMonitor(slot, _) => {
                write!(
                    f,
                    "create health monitor of listener {slot} on load balancer {of}"
                )
            }
            Change::UpdateMonitor(slot, _) => {
                write!(
                    f,
                    "change health monitor of listener {slot} on load balancer {of}"
                )
            }
            Change::DeleteMonitor(slot) => {
                write!(
                    f,
                    "delete health monitor of listener {slot} on load balancer {of}"
                )
            }
            Change::CreateFloating(wish) if wish.address.is_empty() => {
                write!(f, "create floating address for load balancer {of}")
            }
            Change::CreateFloating(wish) => {
                write!(
                    f,
                    "create floating address {} for load balancer {of}",
                    wish.address
                )
            }
            Change::AttachFloating(address) => {
                write!(f, "attach floating address {address} to load balancer {of}")
            }
            Change::DetachFloating(address) => {
                write!(f, "detach floating address {address} from load balancer {of}")
            }
            Change::DeleteFloating(address) => {
                write!(f, "delete floating address {address} of load balancer {of}")
            }
            Change::CreateGroup(_) => write!(f, "create security group {of}"),
            Change::DeleteGroup => write!(f, "delete security group {of}"),
            Change::CreateRule(rule) => write!(
                f,
                "create rule in security group {of}: {} {} from {}",
                rule.protocol, rule.port, rule.range
            ),
            Change::DeleteRule(what, _) => write!(f, "delete rule in security group {of}: {what}"),
            Change::DeletePortTag { group, .. } => {
                write!(
                    f,
                    "remove the tag of security group {} from node port {of}",
                    group.name
                )
            }
            Change::SetPortGroups { add, remove, .. } => {
                let add: Vec<_> = add.iter().map(|group| format!("add {}", group.name)).collect();
                let remove = remove.iter().map(|group| format!("remove {}", group.name));
                let all: Vec<_> = add.into_iter().chain(remove).collect();
                write!(f, "change security groups of node port {of}: {}", all.join(", "))
            }
            Change::Sent { sentence, .. } => f.write_str(sentence),
        }
    }
}

/// Of thousands nobody wants to read all.
fn list(members: &[MemberWish]) -> String {
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

impl CoreStep for Step {
    fn label(&self) -> &'static str {
        match self.change {
            Change::CreateBalancer(_) => "loadbalancer_create",
            Change::DeleteBalancer { .. } => "loadbalancer_delete",
            Change::Failover => "loadbalancer_failover",
            Change::Retag { .. } | Change::Rename { .. } => "loadbalancer_update",
            Change::CreateListener(..) => "listener_create",
            Change::UpdateListener(..) => "listener_update",
            Change::DeleteListener(_) => "listener_delete",
            Change::CreatePool(..) => "pool_create",
            Change::UpdatePool(..) => "pool_update",
            Change::DeletePool(_) | Change::DeleteLoosePool(_) => "pool_delete",
            Change::AddMembers(..) | Change::SetMembers(..) => "members_update",
            Change::CreateMember(..) => "member_create",
            Change::DeleteMember(..) => "member_delete",
            Change::CreateMonitor(..) => "healthmonitor_create",
            Change::UpdateMonitor(..) => "healthmonitor_update",
            Change::DeleteMonitor(_) => "healthmonitor_delete",
            Change::CreateFloating(_) => "floatingip_create",
            Change::AttachFloating(_) | Change::DetachFloating(_) => "floatingip_update",
            Change::DeleteFloating(_) => "floatingip_delete",
            Change::CreateGroup(_) => "security_group_create",
            Change::DeleteGroup => "security_group_delete",
            Change::CreateRule(_) => "security_group_rule_create",
            Change::DeleteRule(..) => "security_group_rule_delete",
            Change::DeletePortTag { .. } => "port_tag_delete",
            Change::SetPortGroups { .. } => "port_update",
            Change::Sent { label, .. } => label,
        }
    }

    fn effect(&self) -> Effect {
        match self.change {
            Change::CreateBalancer(_)
            | Change::CreateListener(..)
            | Change::CreatePool(..)
            | Change::CreateMember(..)
            | Change::CreateMonitor(..)
            | Change::CreateFloating(_)
            | Change::CreateGroup(_)
            | Change::CreateRule(_) => Effect::Create,
            Change::DeleteBalancer { .. }
            | Change::DeleteListener(_)
            | Change::DeletePool(_)
            | Change::DeleteLoosePool(_)
            | Change::DeleteMember(..)
            | Change::DeleteMonitor(_)
            | Change::DeleteFloating(_)
            | Change::DeleteGroup
            | Change::DeleteRule(..) => Effect::Delete,
            Change::Sent { effect, .. } => effect,
            _ => Effect::Change,
        }
    }

    fn service(&self) -> Option<&ServiceId> {
        self.service.as_ref()
    }

    fn why(&self) -> String {
        self.why.clone()
    }

    fn sent(&self) -> Self {
        match self.change {
            // These hold what may be thousands of members.
            Change::CreateBalancer(_) | Change::AddMembers(..) | Change::SetMembers(..) => Self {
                of: self.of.clone(),
                service: self.service.clone(),
                why: self.why.clone(),
                change: Change::Sent {
                    sentence: self.to_string(),
                    label: self.label(),
                    effect: self.effect(),
                },
            },
            _ => self.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_balancer::bodies::MemberBody;

    #[test]
    fn one_that_was_sent_says_the_same_and_keeps_no_members() {
        let wishes: Vec<_> = (0..12)
            .map(|node| MemberWish {
                address: format!("10.0.0.{node}"),
                port: 30080,
                ..MemberWish::default()
            })
            .collect();
        let slot = Slot {
            transport: ccm_core::load_balancer::Protocol::Tcp,
            port: 80,
        };
        let listener = NewListener {
            protocol: "TCP",
            protocol_port: 80,
            default_pool: Some(NewPool {
                members: vec![MemberBody::default()],
                ..NewPool::default()
            }),
            ..NewListener::default()
        };
        let balancer = NewLoadBalancer {
            listeners: vec![listener],
            ..NewLoadBalancer::default()
        };
        for change in [
            Change::CreateBalancer(Box::new(balancer)),
            Change::AddMembers(slot, wishes.clone()),
            Change::SetMembers(slot, wishes),
        ] {
            let step = Step {
                of: "web".to_owned(),
                change,
                service: Some(ServiceId::new("shop", "web", "u")),
                why: "a node joined".to_owned(),
            };
            let sent = step.sent();
            assert!(matches!(sent.change, Change::Sent { .. }), "{sent:?}");
            assert_eq!(sent.text(), step.text());
            assert_eq!(sent.label(), step.label());
        }
    }

    #[test]
    fn of_many_members_some_are_named() {
        let wish = |node| MemberWish {
            address: format!("10.0.0.{node}"),
            port: 1,
            ..MemberWish::default()
        };
        let ten: Vec<_> = (0..10).map(wish).collect();
        assert!(list(&ten).ends_with("10.0.0.9:1"), "{}", list(&ten));
        let more: Vec<_> = (0..5000).map(wish).collect();
        assert_eq!(list(&more), format!("{} and 4990 more", list(&ten)));
        assert_eq!(list(&[]), "none");
    }
}
