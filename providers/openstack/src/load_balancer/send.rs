//! Sends one call for each change; IDs come from the observed state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind, Outcome, Priority, Result, async_trait,
    plan::objects::{self, Attributes, Kind as _, Object, ObjectCalls, Objects, stale},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    kinds::{self, FAILOVER, Kind, MEMBERS, OWNER, SINGLE_MEMBERS, SUBNETS},
    member::{Member, by_identity},
    member_id::MemberId,
    names,
    observe::{Observed, is_broken},
    reads::Reads,
    responses::{Listener, LoadBalancer, Monitor, Pool},
    steps::{Change, Reply},
    writes::Writes,
};
use crate::client::{Api, Op};

/// Sends changes.
pub(super) struct Sender<'a> {
    reads: &'a Reads,
    writes: Writes<'a>,
    priority: Priority,
    /// Whether a load balancer is deleted together with everything below it.
    cascade: bool,
}

fn id(text: &str) -> Result<&str> {
    Some(text).filter(|text| !text.is_empty()).ok_or_else(stale)
}

/// The set fields of a new object.
fn fields(object: &Object<Kind>) -> BTreeMap<&'static str, &Value> {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    let fields = object.attributes.iter();
    let fields = fields.filter(|(name, value)| ![OWNER, SUBNETS].contains(name) && is_set(value));
    fields.map(|(name, value)| (*name, value)).collect()
}

/// A new load balancer or an object below it, with its children.
#[derive(Serialize)]
struct Tree<'a> {
    #[serde(flatten)]
    fields: BTreeMap<&'static str, &'a Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listeners: Vec<Self>,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_pool: Option<Box<Self>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    healthmonitor: Option<Box<Self>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    members: &'a [Member],
}

impl<'a> Tree<'a> {
    fn of(object: &'a Object<Kind>, all: &'a [Object<Kind>]) -> Self {
        let below = |kind: Kind| {
            let children = all.iter().filter(move |child| {
                child.kind == kind
                    && kind.schema().parent == Some(object.kind)
                    && child.parent.as_ref() == Some(&object.key)
            });
            children.map(|child| Self::of(child, all))
        };
        Self {
            fields: fields(object),
            listeners: below(Kind::Listener).collect(),
            default_pool: below(Kind::Pool).next().map(Box::new),
            healthmonitor: below(Kind::Monitor).next().map(Box::new),
            members: object.set(MEMBERS),
        }
    }
}

impl<'a> Sender<'a> {
    pub(super) fn new(api: &'a Api, reads: &'a Reads, priority: Priority, cascade: bool) -> Self {
        Self {
            reads,
            writes: Writes::new(api, reads, priority),
            priority,
            cascade,
        }
    }

    /// Sends one change. The error is stale if an ID is not known.
    pub(super) async fn send(&self, change: &Change, observed: &Observed) -> Result<Reply> {
        match (change, observed) {
            (Change::Balancer(_, change) | Change::Recreate(change), Observed::Balancers(snapshot)) => {
                let calls = BalancerCalls {
                    sender: self,
                    observed: &snapshot.objects,
                };
                let reply = objects::send(&calls, change, &snapshot.objects).await;
                reply.map(Reply::Balancer)
            }
            (Change::Group(change), Observed::Groups(groups)) => {
                let reply = objects::send(&self.writes, change, groups).await;
                reply.map(Reply::Group)
            }
            (Change::DeletePortTag(port, group), Observed::Ports(ports, _)) => {
                let port = ports.get(&port.id).ok_or_else(stale)?;
                self.writes.delete_port_tag(port, group.id.get()?).await?;
                Ok(Reply::Nothing)
            }
            (Change::SetPortGroups { port, add, remove }, Observed::Ports(ports, _)) => {
                let port = ports.get(&port.id).ok_or_else(stale)?;
                let mut groups = port.security_groups.clone();
                groups.retain(|group| !remove.iter().any(|gone| gone.id.known() == Some(group)));
                for group in add {
                    groups.push(group.id.get()?.clone());
                }
                let now = self.writes.set_port_groups(port, &groups).await?;
                Ok(Reply::Port(Box::new(now)))
            }
            _ => {
                Err(Error::new(ErrorKind::Unexpected, "the step does not belong to this part; this is a bug"))
            }
        }
    }
}

/// The calls for a load balancer.
struct BalancerCalls<'a> {
    sender: &'a Sender<'a>,
    observed: &'a Objects<Kind>,
}

/// An object with only its ID known.
fn with_id(object: &Object<Kind>, id: String) -> objects::Reply<Kind> {
    objects::Reply::object(Object {
        id,
        ..Object::new(object.kind, &*object.key)
    })
}

impl BalancerCalls<'_> {
    /// The load balancer's ID.
    fn balancer(&self) -> Result<&str> {
        let balancer = self.observed.of(Kind::Balancer).next().ok_or_else(stale)?;
        id(&balancer.id)
    }

    fn id(&self, kind: Kind, object: &Object<Kind>) -> Result<Value> {
        Ok(self.observed.id(kind, &object.key)?.into())
    }

    async fn create_balancer(
        &self,
        balancer: &Object<Kind>,
        below: &[Object<Kind>],
    ) -> Result<objects::Reply<Kind>> {
        let members = below.iter().map(|object| object.set(MEMBERS).len()).sum();
        let body = Tree::of(balancer, below);
        let created = self.sender.writes.create_load_balancer(&body, members).await?;
        let mut object: Object<Kind> = (&created.balancer).into();
        // The engine waits for `ACTIVE` before it plans again.
        object.attributes.insert("provisioning_status", "ACTIVE".into());
        let mut reply = objects::Reply::object(object);
        reply.objects.extend(created.members.into_iter().map(|(listener, members)| {
            let mut pool = kinds::below(Kind::Pool, listener, "");
            pool.sets.insert(MEMBERS, members);
            pool
        }));
        Ok(reply)
    }

    /// Creates a floating IP from the first subnet with a free address.
    async fn create_floating(&self, floating: &Object<Kind>) -> Result<objects::Reply<Kind>> {
        let port = id(floating.text("port_id"))?;
        let mut subnets: Vec<_> = kinds::texts(floating, SUBNETS).map(Value::from).collect();
        if subnets.is_empty() {
            subnets.push(Value::Null);
        }
        let mut last = stale();
        for subnet in &subnets {
            let mut body = fields(floating);
            if !subnet.is_null() {
                body.insert("subnet_id", subnet);
            }
            match self.sender.writes.create_floating_ip(port, &body).await {
                Ok(created) => {
                    let created: Object<Kind> = (&created).into();
                    let key = floating.key.clone();
                    return Ok(objects::Reply::object(Object { key, ..created }));
                }
                // The floating IP may exist nevertheless.
                Err(error) if error.outcome() == Outcome::Unknown => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Reads whether an object still has the tags of the plan. Tags are written as a whole, so tags that others added
    /// meanwhile would be lost. They may also change the plan.
    async fn has_planned_tags(&self, object: &Object<Kind>) -> Result<bool> {
        let (reads, id, priority) = (self.sender.reads, &object.id, self.sender.priority);
        macro_rules! now {
            ($record:ident by $op:ident) => {
                reads.uncached::<$record>(Op::$op, id, priority).await?.map(|now| now.tags)
            };
        }
        let now = match object.kind {
            Kind::Balancer => now!(LoadBalancer by LoadBalancerGet),
            Kind::Listener => now!(Listener by ListenerGet),
            _ => now!(Pool by PoolGet),
        };
        let now = now.iter().flatten().map(String::as_str);
        let now: BTreeSet<_> = now.filter(|tag| !tag.is_empty()).collect();
        Ok(now == kinds::texts(object, "tags").collect())
    }

    /// The ID of a member, which is read if the member was created since the last listing.
    async fn member_id(&self, pool: &str, member: &Member) -> Result<MemberId> {
        if !member.id.is_empty() {
            return Ok(member.id.clone());
        }
        let (reads, priority) = (self.sender.reads, self.sender.priority);
        let now = reads.members_uncached(pool, priority).await?;
        let found = now.iter().find(|now| now.identity() == member.identity());
        Ok(found.ok_or_else(stale)?.id.clone())
    }

    /// The whole list of members, with fields that users set on the existing ones.
    async fn merged(&self, pool: &str, members: &[Member]) -> Result<Vec<Member>> {
        let now = self.sender.reads.members_uncached(pool, self.sender.priority).await?;
        let now = by_identity(&now);
        let merged = members.iter().map(|want| match now.get(&want.identity()) {
            None => Member {
                // The member was deleted meanwhile, so its own settings are unknown.
                weight: None,
                backup: None,
                admin_state_up: None,
                ..want.clone()
            },
            Some(have) => {
                let mut host = Arc::clone(&have.host);
                if host.name != want.host.name {
                    Arc::make_mut(&mut host).name.clone_from(&want.host.name);
                }
                Member {
                    host,
                    monitor_port: want.monitor_port,
                    ..(*have).clone()
                }
            }
        });
        Ok(merged.collect())
    }
}

#[async_trait]
impl ObjectCalls<Kind> for BalancerCalls<'_> {
    async fn create(
        &self,
        object: &Object<Kind>,
        below: &[Object<Kind>],
        _: &Objects<Kind>,
    ) -> Result<objects::Reply<Kind>> {
        let writes = &self.sender.writes;
        let (parent, value) = match object.kind {
            Kind::Balancer => return self.create_balancer(object, below).await,
            Kind::Floating => return self.create_floating(object).await,
            Kind::Listener => ("loadbalancer_id", self.balancer()?.into()),
            Kind::Pool => ("listener_id", self.id(Kind::Listener, object)?),
            Kind::Monitor => ("pool_id", self.id(Kind::Pool, object)?),
        };
        let balancer = self.balancer()?;
        let mut body = fields(object);
        body.insert(parent, &value);
        let id = match object.kind {
            Kind::Listener => writes.create::<Listener>(balancer, &body).await?.id,
            Kind::Pool => writes.create::<Pool>(balancer, &body).await?.id,
            _ => writes.create::<Monitor>(balancer, &body).await?.id,
        };
        Ok(with_id(object, id))
    }

    async fn update(
        &self,
        object: &Object<Kind>,
        call: &'static str,
        body: &Attributes,
        _: &Objects<Kind>,
    ) -> Result<objects::Reply<Kind>> {
        let (writes, id) = (&self.sender.writes, &*object.id);
        if body.contains_key("tags") && !self.has_planned_tags(object).await? {
            return Err(stale());
        }
        match object.kind {
            Kind::Balancer if call == FAILOVER => writes.failover(id).await?,
            Kind::Balancer => drop(writes.update_load_balancer(id, body).await?),
            Kind::Listener => drop(writes.update::<Listener>(self.balancer()?, id, body).await?),
            Kind::Pool => drop(writes.update::<Pool>(self.balancer()?, id, body).await?),
            Kind::Monitor => drop(writes.update::<Monitor>(self.balancer()?, id, body).await?),
            Kind::Floating => {
                let port = match body.get("port_id").and_then(Value::as_str) {
                    Some(port) => self::id(port)?,
                    None => object.text("port_id"),
                };
                drop(writes.update_floating_ip(port, id, body).await?);
            }
        }
        Ok(objects::Reply::default())
    }

    async fn delete(&self, object: &Object<Kind>, _: bool) -> Result<()> {
        let (writes, id) = (&self.sender.writes, &*object.id);
        match object.kind {
            Kind::Balancer => {
                let cascade = self.sender.cascade || is_broken(object);
                writes.delete_load_balancer(id, cascade).await
            }
            Kind::Listener => writes.delete::<Listener>(self.balancer()?, "", id).await,
            Kind::Pool => writes.delete::<Pool>(self.balancer()?, "", id).await,
            Kind::Monitor => {
                let pool = self.observed.id(Kind::Pool, &object.key)?;
                writes.delete::<Monitor>(self.balancer()?, pool, id).await
            }
            Kind::Floating => writes.delete_floating_ip(object.text("port_id"), id).await,
        }
    }

    async fn add(
        &self,
        pool: &Object<Kind>,
        set: &'static str,
        members: &[Member],
    ) -> Result<objects::Reply<Kind>> {
        let (writes, balancer) = (&self.sender.writes, self.balancer()?);
        if set == MEMBERS {
            writes.add_members(balancer, &pool.id, members).await?;
        }
        let known = by_identity(pool.set(SINGLE_MEMBERS));
        for member in members.iter().filter(|_| set == SINGLE_MEMBERS) {
            if let Some(have) = known.get(&member.identity()) {
                let (of, id) = ((balancer, &*pool.id), self.member_id(&pool.id, have).await?);
                writes.update_member(of, &id, member.monitor_port).await?;
                continue;
            }
            let mut member = member.clone();
            let host = Arc::make_mut(&mut member.host);
            host.name = names::serial_member(&host.name, &host.address, member.protocol_port);
            writes.create_member(balancer, &pool.id, &member).await?;
        }
        Ok(objects::Reply::default())
    }

    async fn remove(&self, pool: &Object<Kind>, _: &'static str, members: &[Member]) -> Result<()> {
        for member in members {
            let (id, balancer) = (self.member_id(&pool.id, member).await?, self.balancer()?);
            self.sender.writes.delete_member(balancer, &pool.id, &id).await?;
        }
        Ok(())
    }

    async fn set(
        &self,
        pool: &Object<Kind>,
        _: &'static str,
        members: &[Member],
    ) -> Result<objects::Reply<Kind>> {
        let members = self.merged(&pool.id, members).await?;
        let writes = &self.sender.writes;
        writes.set_members(self.balancer()?, &pool.id, &members).await?;
        Ok(objects::Reply::default())
    }
}
