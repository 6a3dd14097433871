//! One call for each change; ids come from what was observed.

use std::collections::BTreeSet;

use ccm_core::{Error, ErrorKind, Outcome, Priority, Result, Retry, plan::objects};

use super::{
    bodies::{
        FloatingIpChange, LoadBalancerChange, MemberBody, NewFloatingIp, NewListener, NewMonitor, NewPool,
        PortChange, Set,
    },
    desired::{DesiredFloatingIp, DesiredMember},
    fold::Reply,
    member::by_identity,
    names,
    observe::{ListenerKey, ListenerTree, LoadBalancerSnapshot, LoadBalancerTree, Observed, PoolTree},
    plan::member,
    reads::Reads,
    responses::{Listener, LoadBalancer, Pool},
    steps::{Action, Change},
    writes::Writes,
};
use crate::client::{Api, Op};

/// Makes changes.
pub(super) struct Sender<'a> {
    reads: &'a Reads,
    writes: Writes<'a>,
    priority: Priority,
}

fn id(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Nothing was sent: what the change needs is not as it was observed.
pub(super) fn stale() -> Error {
    Error::new(ErrorKind::Conflict, "it is not as it was read").with_retry(Retry::Never)
}

impl<'a> Sender<'a> {
    pub(super) fn new(api: &'a Api, reads: &'a Reads, priority: Priority) -> Self {
        Self {
            reads,
            writes: Writes::new(api, reads, priority),
            priority,
        }
    }

    /// Sends one change. The error is stale if an id is not known.
    pub(super) async fn send(&self, change: &Change, observed: &Observed) -> Result<Reply> {
        match observed {
            Observed::Balancers(snapshot) => match &change.action {
                Action::CreateBalancer(body) => {
                    let created = self.writes.create_load_balancer(body).await?;
                    Ok(Reply::Balancer(Box::new(created)))
                }
                Action::CreateFloating(_)
                | Action::AttachFloating(_)
                | Action::DetachFloating(_)
                | Action::DeleteFloating(_) => self.floating(&change.action, snapshot).await,
                action => {
                    let tree = snapshot.trees.first().ok_or_else(stale)?;
                    let balancer = id(&tree.balancer.id).ok_or_else(stale)?;
                    self.below(action, tree, balancer).await
                }
            },
            Observed::Groups(groups) => match &change.action {
                Action::Group(change) => {
                    let reply = objects::send(&self.writes, change, groups).await?;
                    reply.map(Reply::Group).ok_or_else(stale)
                }
                _ => Err(mismatch(change)),
            },
            Observed::Ports(ports) => match &change.action {
                Action::DeletePortTag { port, group } => {
                    let port = ports.get(port).ok_or_else(stale)?;
                    self.writes.delete_port_tag(port, group.id.get()?).await?;
                    Ok(Reply::Nothing)
                }
                Action::SetPortGroups { port, add, remove } => {
                    let port = ports.get(port).ok_or_else(stale)?;
                    let mut groups = port.security_groups.clone();
                    groups.retain(|group| !remove.iter().any(|gone| gone.id.known() == Some(group)));
                    for group in add {
                        groups.push(group.id.get()?.clone());
                    }
                    let body = PortChange {
                        security_groups: Set::To(groups),
                    };
                    let now = self.writes.update_port(port, &body).await?;
                    Ok(Reply::Port(Box::new(now)))
                }
                _ => Err(mismatch(change)),
            },
        }
    }

    async fn floating(&self, action: &Action, snapshot: &LoadBalancerSnapshot) -> Result<Reply> {
        let tree = snapshot.trees.first();
        let port = tree.map(|tree| tree.balancer.vip_port_id.as_str());
        let find = |address: &String| {
            let attached = tree.and_then(|tree| tree.floating.as_ref());
            let mut all = attached.into_iter().chain(&snapshot.floating);
            all.find(|floating| floating.floating_ip_address == *address)
        };
        match action {
            Action::CreateFloating(desired) => {
                let port = port.and_then(id).ok_or_else(stale)?;
                self.create_floating(desired, port).await
            }
            Action::AttachFloating(address) => {
                let port = port.and_then(id).ok_or_else(stale)?;
                let floating = find(address).ok_or_else(stale)?;
                let body = FloatingIpChange {
                    port_id: Set::To(port.to_owned()),
                };
                let now = self.writes.update_floating_ip(port, &floating.id, &body).await?;
                Ok(Reply::Floating(Box::new(now)))
            }
            Action::DetachFloating(address) => {
                let floating = find(address).ok_or_else(stale)?;
                let body = FloatingIpChange { port_id: Set::Clear };
                self.writes
                    .update_floating_ip(&floating.port_id, &floating.id, &body)
                    .await?;
                Ok(Reply::Nothing)
            }
            Action::DeleteFloating(address) => {
                let floating = find(address).ok_or_else(stale)?;
                let floating_id = id(&floating.id).ok_or_else(stale)?;
                self.writes
                    .delete_floating_ip(&floating.port_id, floating_id)
                    .await?;
                Ok(Reply::Nothing)
            }
            _ => Err(stale()),
        }
    }

    /// From the first of the subnets that has one left.
    async fn create_floating(&self, desired: &DesiredFloatingIp, port: &str) -> Result<Reply> {
        let mut subnets: Vec<_> = desired.subnets.iter().map(String::as_str).collect();
        if subnets.is_empty() {
            subnets.push("");
        }
        let mut last = None;
        for subnet in subnets {
            let body = NewFloatingIp {
                floating_network_id: desired.network.clone().unwrap_or_default(),
                port_id: port.to_owned(),
                description: desired.description.clone(),
                subnet_id: subnet.to_owned(),
                floating_ip_address: desired.address.clone(),
            };
            match self.writes.create_floating_ip(&body).await {
                Ok(created) => return Ok(Reply::Floating(Box::new(created))),
                // It may be there all the same.
                Err(error) if error.outcome() == Outcome::Unknown => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| {
            Error::new(
                ErrorKind::Unexpected,
                "there is no subnet to take an address from",
            )
        }))
    }

    async fn below(&self, action: &Action, tree: &LoadBalancerTree, balancer: &str) -> Result<Reply> {
        if !self.has_planned_tags(action, tree, balancer).await? {
            return Err(stale());
        }
        match action {
            Action::DeleteBalancer { cascade, .. } => {
                self.writes.delete_load_balancer(balancer, *cascade).await?;
            }
            Action::Failover => self.writes.failover(balancer).await?,
            Action::Rename { from, to } => {
                let body = LoadBalancerChange {
                    name: Set::To(names::with_cluster(&tree.balancer.name, from, to)),
                    tags: Set::To(names::tags_with_cluster(&tree.balancer.tags, from, to)),
                };
                self.writes.update_load_balancer(balancer, &body).await?;
            }
            Action::Retag { add, remove } => {
                let mut tags = tree.balancer.tags.clone();
                tags.retain(|tag| !remove.contains(tag));
                for tag in add {
                    if !tags.contains(tag) {
                        tags.push(tag.clone());
                    }
                }
                let body = LoadBalancerChange {
                    tags: Set::To(tags),
                    ..LoadBalancerChange::default()
                };
                self.writes.update_load_balancer(balancer, &body).await?;
            }
            Action::CreateListener(_, body) => {
                let body = NewListener {
                    loadbalancer_id: balancer.to_owned(),
                    ..(**body).clone()
                };
                let created = self.writes.create_listener(&body).await?;
                return Ok(Reply::Listener(Box::new(created)));
            }
            Action::UpdateListener(listener_key, body) => {
                let listener = listener(tree, *listener_key).ok_or_else(stale)?;
                self.writes.update_listener(balancer, listener, body).await?;
            }
            Action::DeleteListener(listener_key) => {
                let listener = listener(tree, *listener_key).ok_or_else(stale)?;
                self.writes.delete_listener(balancer, listener).await?;
            }
            Action::CreatePool(listener_key, body) => {
                let listener = listener(tree, *listener_key).ok_or_else(stale)?;
                let body = NewPool {
                    listener_id: listener.to_owned(),
                    ..(**body).clone()
                };
                let created = self.writes.create_pool(balancer, &body).await?;
                return Ok(Reply::Pool(Box::new(created)));
            }
            Action::DeleteOrphanedPool(pool) => {
                self.writes.delete_pool(balancer, pool).await?;
            }
            Action::UpdatePool(listener_key, _)
            | Action::DeletePool(listener_key)
            | Action::AddMembers(listener_key, _)
            | Action::SetMembers(listener_key, _)
            | Action::CreateMember(listener_key, _)
            | Action::DeleteMember(listener_key, ..)
            | Action::CreateMonitor(listener_key, _)
            | Action::UpdateMonitor(listener_key, _)
            | Action::DeleteMonitor(listener_key) => {
                let pool_tree = tree
                    .listener_tree(*listener_key)
                    .and_then(|listener_tree| listener_tree.pool_tree.as_ref())
                    .ok_or_else(stale)?;
                let pool = id(&pool_tree.pool.id).ok_or_else(stale)?;
                return self.in_pool(action, pool_tree, balancer, pool).await;
            }
            _ => return Err(stale()),
        }
        Ok(Reply::Nothing)
    }

    /// Whether that of which the change writes the tags still has those with which it was planned; asked now. Tags are
    /// written as a whole, so what somebody else added meanwhile would be lost; and with it the plan may be another one.
    async fn has_planned_tags(
        &self,
        action: &Action,
        tree: &LoadBalancerTree,
        balancer: &str,
    ) -> Result<bool> {
        let (now, planned) = match action {
            Action::Rename { .. } | Action::Retag { .. } => {
                let op = Op::LoadBalancerGet;
                let now = self.reads.uncached::<LoadBalancer>(op, balancer, self.priority);
                (now.await?.map(|now| now.tags), &tree.balancer.tags)
            }
            Action::UpdateListener(listener_key, body) if !body.tags.is_keep() => {
                let Some(ListenerTree { listener, .. }) = tree.listener_tree(*listener_key) else {
                    return Ok(false);
                };
                let op = Op::ListenerGet;
                let now = self.reads.uncached::<Listener>(op, &listener.id, self.priority);
                (now.await?.map(|now| now.tags), &listener.tags)
            }
            Action::UpdatePool(listener_key, body) if !body.tags.is_keep() => {
                let pool_tree = tree
                    .listener_tree(*listener_key)
                    .and_then(|listener_tree| listener_tree.pool_tree.as_ref());
                let Some((pool, id)) =
                    pool_tree.and_then(|pool_tree| Some((&pool_tree.pool, id(&pool_tree.pool.id)?)))
                else {
                    return Ok(false);
                };
                let now = self.reads.uncached::<Pool>(Op::PoolGet, id, self.priority);
                (now.await?.map(|now| now.tags), &pool.tags)
            }
            _ => return Ok(true),
        };
        let now = now.as_ref().map(|now| now.iter().collect::<BTreeSet<_>>());
        Ok(now == Some(planned.iter().collect()))
    }

    async fn in_pool(
        &self,
        action: &Action,
        pool_tree: &PoolTree,
        balancer: &str,
        pool: &str,
    ) -> Result<Reply> {
        let monitor = pool_tree.monitor.as_ref().and_then(|monitor| id(&monitor.id));
        match action {
            Action::UpdatePool(_, body) => drop(self.writes.update_pool(balancer, pool, body).await?),
            Action::DeletePool(_) => self.writes.delete_pool(balancer, pool).await?,
            Action::AddMembers(_, members) => {
                let bodies: Vec<_> = members.iter().map(member).collect();
                self.writes.add_members(balancer, pool, &bodies).await?;
            }
            Action::SetMembers(_, members) => {
                let bodies = self.merged(pool, members).await?;
                self.writes.set_members(balancer, pool, &bodies).await?;
            }
            Action::CreateMember(_, desired) => {
                // What is made one by one has neither a subnet nor a monitor's port of its own.
                let body = MemberBody {
                    subnet_id: String::new(),
                    ..member(desired)
                };
                self.writes.create_member(balancer, pool, &body).await?;
            }
            Action::DeleteMember(_, address, port) => {
                let identity = (address.as_str(), *port);
                let known = pool_tree
                    .members
                    .iter()
                    .find(|member| member.identity() == identity);
                let mut gone = known.map(|member| member.id.clone()).unwrap_or_default();
                if gone.is_empty() {
                    let now = self.reads.members_uncached(pool, self.priority).await?;
                    let found = now.iter().find(|member| member.identity() == identity);
                    gone = found.ok_or_else(stale)?.id.clone();
                }
                self.writes.delete_member(balancer, pool, &gone).await?;
            }
            Action::CreateMonitor(_, body) => {
                let body = NewMonitor {
                    pool_id: pool.to_owned(),
                    ..body.clone()
                };
                let created = self.writes.create_monitor(balancer, &body).await?;
                return Ok(Reply::Monitor(Box::new(created)));
            }
            Action::UpdateMonitor(_, body) => {
                self.writes
                    .update_monitor(balancer, monitor.ok_or_else(stale)?, body)
                    .await?;
            }
            Action::DeleteMonitor(_) => {
                self.writes
                    .delete_monitor(balancer, pool, monitor.ok_or_else(stale)?)
                    .await?;
            }
            _ => return Err(stale()),
        }
        Ok(Reply::Nothing)
    }

    /// The whole list, with what people have set on those that stay.
    async fn merged(&self, pool: &str, members: &[DesiredMember]) -> Result<Vec<MemberBody>> {
        let now = self.reads.members_uncached(pool, self.priority).await?;
        let now = by_identity(&now);
        let bodies = members.iter().map(|desired| {
            let body = member(desired);
            match now.get(&desired.identity()) {
                None => body,
                Some(have) => MemberBody {
                    // Neither can be changed.
                    subnet_id: have.host.subnet_id.clone(),
                    monitor_address: have.host.monitor_address.clone(),
                    weight: have.weight,
                    backup: have.backup,
                    admin_state_up: have.admin_state_up,
                    ..body
                },
            }
        });
        Ok(bodies.collect())
    }
}

fn listener(tree: &LoadBalancerTree, listener_key: ListenerKey) -> Option<&str> {
    id(&tree.listener_tree(listener_key)?.listener.id)
}

fn mismatch(change: &Change) -> Error {
    Error::new(
        ErrorKind::Unexpected,
        "this is no step of this part; this is a bug",
    )
    .with_context("step", change.to_string())
}
