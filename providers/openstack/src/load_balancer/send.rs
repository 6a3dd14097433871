//! Sends one call for each change; IDs come from the observed state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, RequestOutcome, Result, async_trait,
    load_balancer::ReadOptions,
    plan::objects::{self, Attributes, Kind as _, Object, ObjectCalls, Objects, stale, unsupported},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    fields,
    kinds::{
        self, ADDITIONAL_VIPS, MemberSet, OTHER_ADDITIONAL_SUBNETS, OTHER_VIP_SUBNETS, OWNER, ObjectKind,
        ObjectUpdate, REPLACED, SUBNETS,
    },
    member::{Member, by_identity},
    member_id::MemberId,
    names,
    observe::{ObservedPart, is_broken},
    reads::Reads,
    responses::{Listener, LoadBalancer, Monitor, Pool},
    steps::{PartChange, PartReply},
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

/// Whether the same change may succeed a moment later.
fn is_retried(error: &Error) -> bool {
    error.outcome() == RequestOutcome::Unknown
        || matches!(
            error.kind(),
            ErrorKind::Unavailable
                | ErrorKind::Timeout
                | ErrorKind::RateLimited
                | ErrorKind::Unauthenticated
                | ErrorKind::NotLeader
        )
}

/// The set fields of a new object.
fn fields(object: &Object<ObjectKind>) -> BTreeMap<&'static str, &Value> {
    let fields = object.attributes.iter().filter(|(name, value)| {
        ![OWNER, SUBNETS, OTHER_VIP_SUBNETS, OTHER_ADDITIONAL_SUBNETS].contains(name) && is_set(value)
    });
    fields.map(|(name, value)| (*name, value)).collect()
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// The new load balancer with each choice of subnets for its addresses, in order. Only administrators can ask Neutron which subnets
/// have free addresses, so that the next one is tried when Octavia says that one has none.
fn vip_choices(balancer: &Object<ObjectKind>) -> Vec<Object<ObjectKind>> {
    /// The most choices. Each costs a call.
    const MOST: usize = 10;
    let mut choices = vec![balancer.clone()];
    choices.extend(
        kinds::texts(balancer, OTHER_VIP_SUBNETS)
            .map(|subnet: &str| balancer.clone().with(fields::VIP_SUBNET_ID, subnet)),
    );
    let mut all = Vec::new();
    for choice in choices {
        all.push(choice.clone());
        for subnet in kinds::texts(balancer, OTHER_ADDITIONAL_SUBNETS) {
            all.push(choice.clone().with(ADDITIONAL_VIPS, json!([{"subnet_id": subnet}])));
        }
    }
    all.truncate(MOST);
    all
}

/// Whether Octavia created no load balancer because the subnet of an address has no free one.
fn lacks_free_address(error: &Error) -> bool {
    error.message().contains("No more IP addresses available")
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
    fn of(object: &'a Object<ObjectKind>, all: &'a [Object<ObjectKind>]) -> Self {
        let below = |kind: ObjectKind| {
            let children = all.iter().filter(move |child| {
                child.kind == kind
                    && kind.schema().parent == Some(object.kind)
                    && child.parent.as_ref() == Some(&object.key)
            });
            children.map(|child| Self::of(child, all))
        };
        Self {
            fields: fields(object),
            listeners: below(ObjectKind::Listener).collect(),
            default_pool: below(ObjectKind::Pool).next().map(Box::new),
            healthmonitor: below(ObjectKind::Monitor).next().map(Box::new),
            members: object.set(MemberSet::Listed.name()),
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
    pub(super) async fn send(&self, change: &PartChange, observed: &ObservedPart) -> Result<PartReply> {
        match (change, observed) {
            (
                PartChange::Balancer(_, change) | PartChange::Recreate(change),
                ObservedPart::Balancers(snapshot),
            ) => {
                let calls = BalancerCalls {
                    sender: self,
                    observed: &snapshot.objects,
                };
                let reply = objects::send(&calls, change, &snapshot.objects).await;
                reply.map(PartReply::Balancer)
            }
            (PartChange::Group(change), ObservedPart::Groups(groups)) => {
                let reply = objects::send(&self.writes, change, groups).await;
                reply.map(PartReply::Group)
            }
            (PartChange::DeletePortTag(port, group), ObservedPart::Ports(ports, _)) => {
                let port = ports.get(&port.id).ok_or_else(stale)?;
                self.writes.delete_port_tag(port, group.id.get()?).await?;
                Ok(PartReply::Nothing)
            }
            (PartChange::SetPortGroups { port, add, remove }, ObservedPart::Ports(ports, _)) => {
                let port = ports.get(&port.id).ok_or_else(stale)?;
                let mut groups = port.security_groups.clone();
                groups.retain(|group| !remove.iter().any(|gone| gone.id.known() == Some(group)));
                for group in add {
                    groups.push(group.id.get()?.clone());
                }
                let now = self.writes.set_port_groups(port, &groups).await?;
                Ok(PartReply::Port(Box::new(now)))
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
    observed: &'a Objects<ObjectKind>,
}

/// An object with only its ID known.
fn with_id(object: &Object<ObjectKind>, id: String) -> objects::ChangeReply<ObjectKind> {
    objects::ChangeReply::object(Object {
        id,
        ..Object::new(object.kind, &*object.key)
    })
}

impl BalancerCalls<'_> {
    /// The load balancer's ID.
    fn balancer(&self) -> Result<&str> {
        let balancer = self.observed.of(ObjectKind::Balancer).next().ok_or_else(stale)?;
        id(&balancer.id)
    }

    fn id(&self, kind: ObjectKind, object: &Object<ObjectKind>) -> Result<Value> {
        Ok(self.observed.id(kind, &object.key)?.into())
    }

    async fn create_balancer(
        &self,
        balancer: &Object<ObjectKind>,
        below: &[Object<ObjectKind>],
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        let members = below.iter().map(|object| object.set(MemberSet::Listed.name()).len()).sum();
        let mut result = Err(stale());
        for choice in vip_choices(balancer) {
            let body = Tree::of(&choice, below);
            result = self.sender.writes.create_load_balancer(&body, members).await;
            if !result.as_ref().is_err_and(lacks_free_address) {
                break;
            }
        }
        let created = result?;
        let mut object: Object<ObjectKind> = (&created.balancer).into();
        // The engine waits for `ACTIVE` before it plans again.
        object.attributes.insert(fields::PROVISIONING_STATUS, "ACTIVE".into());
        let mut reply = objects::ChangeReply::object(object);
        reply.objects.extend(created.members.into_iter().map(|(listener, members)| {
            let mut pool = kinds::below(ObjectKind::Pool, listener, "");
            pool.sets.insert(MemberSet::Listed.name(), members);
            pool
        }));
        Ok(reply)
    }

    /// Creates a floating IP from the first subnet with a free address.
    async fn create_floating(
        &self,
        floating: &Object<ObjectKind>,
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        let port = id(floating.text(fields::PORT_ID))?;
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
                    let created: Object<ObjectKind> = (&created).into();
                    let key = floating.key.clone();
                    return Ok(objects::ChangeReply::object(Object { key, ..created }));
                }
                // The floating IP may exist nevertheless.
                Err(error) if error.outcome() == RequestOutcome::Unknown => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Detaches a floating IP and attaches another one in its place. If Neutron refuses the other one, the former one is attached
    /// again, and the refusal is remembered.
    async fn replace_floating(&self, new: &Object<ObjectKind>, body: &Attributes) -> Result<()> {
        let Sender {
            reads,
            writes,
            priority,
            ..
        } = self.sender;
        let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
        let former = self.observed.get(ObjectKind::Floating, text(REPLACED)).ok_or_else(stale)?;
        let (port, new_id, former_id) = (id(text(fields::PORT_ID))?, id(&new.id)?, id(&former.id)?);
        // Another client may have attached it since the listing was read.
        let read = ReadOptions {
            freshness: Freshness::After(Instant::now()),
            priority: *priority,
        };
        let listing = reads.floating_ips(None, read).await?;
        if listing.by_id(new_id).is_none_or(|now| !now.port_id.is_empty()) {
            return Err(stale());
        }
        let mut detached = Attributes::from([(fields::PORT_ID, Value::Null)]);
        if let Some(description) = body.get(fields::DESCRIPTION) {
            detached.insert(fields::DESCRIPTION, description.clone());
        }
        writes.update_floating_ip(port, former_id, &detached).await?;
        let attached = Attributes::from([(fields::PORT_ID, port.into())]);
        let Err(error) = writes.update_floating_ip(port, new_id, &attached).await else {
            return Ok(());
        };
        let restored = Attributes::from([
            (fields::PORT_ID, port.into()),
            (fields::DESCRIPTION, former.text(fields::DESCRIPTION).into()),
        ]);
        let result = writes.update_floating_ip(port, former_id, &restored).await;
        if is_retried(&error) {
            return Err(error);
        }
        let reason = error.message().to_owned();
        reads.refused_floating_ips.insert(new_id.to_owned(), reason, Instant::now());
        // The next plan reports the refusal.
        result.and(Err(stale()))
    }

    /// Reads whether an object still has the tags of the plan. Tags are written as a whole, so tags that others added
    /// meanwhile would be lost. They may also change the plan.
    async fn has_planned_tags(&self, object: &Object<ObjectKind>) -> Result<bool> {
        let (reads, id, priority) = (self.sender.reads, &object.id, self.sender.priority);
        let tags = match object.kind {
            ObjectKind::Balancer => {
                let now = reads.uncached::<LoadBalancer>(Op::LoadBalancerGet, id, priority).await?;
                now.map(|balancer| balancer.tags)
            }
            ObjectKind::Listener => {
                let now = reads.uncached::<Listener>(Op::ListenerGet, id, priority).await?;
                now.map(|listener| listener.tags)
            }
            _ => {
                let now = reads.uncached::<Pool>(Op::PoolGet, id, priority).await?;
                now.map(|pool| pool.tags)
            }
        };
        let now: BTreeSet<_> =
            tags.iter().flatten().map(String::as_str).filter(|tag| !tag.is_empty()).collect();
        Ok(now == kinds::texts(object, fields::TAGS).collect())
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
        let observed = self.sender.reads.members_uncached(pool, self.sender.priority).await?;
        let known = by_identity(&observed);
        let merged = members.iter().map(|want| match known.get(&want.identity()) {
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
impl ObjectCalls<ObjectKind> for BalancerCalls<'_> {
    async fn create(
        &self,
        object: &Object<ObjectKind>,
        below: &[Object<ObjectKind>],
        _: &Objects<ObjectKind>,
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        let writes = &self.sender.writes;
        let (parent, value) = match object.kind {
            ObjectKind::Balancer => return self.create_balancer(object, below).await,
            ObjectKind::Floating => return self.create_floating(object).await,
            ObjectKind::Listener => ("loadbalancer_id", self.balancer()?.into()),
            ObjectKind::Pool => ("listener_id", self.id(ObjectKind::Listener, object)?),
            ObjectKind::Monitor => ("pool_id", self.id(ObjectKind::Pool, object)?),
        };
        let balancer = self.balancer()?;
        let mut body = fields(object);
        body.insert(parent, &value);
        let id = match object.kind {
            ObjectKind::Listener => writes.create::<Listener>(balancer, &body).await?.id,
            ObjectKind::Pool => writes.create::<Pool>(balancer, &body).await?.id,
            _ => writes.create::<Monitor>(balancer, &body).await?.id,
        };
        Ok(with_id(object, id))
    }

    async fn update(
        &self,
        object: &Object<ObjectKind>,
        update: ObjectUpdate,
        body: &Attributes,
        _: &Objects<ObjectKind>,
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        let (writes, id) = (&self.sender.writes, &*object.id);
        if body.contains_key(fields::TAGS) && !self.has_planned_tags(object).await? {
            return Err(stale());
        }
        match update {
            ObjectUpdate::Balancer => {
                writes.update_load_balancer(id, body).await?;
            }
            ObjectUpdate::Failover => writes.failover(id).await?,
            ObjectUpdate::Listener => {
                writes.update::<Listener>(self.balancer()?, id, body).await?;
            }
            ObjectUpdate::Pool => {
                writes.update::<Pool>(self.balancer()?, id, body).await?;
            }
            ObjectUpdate::Monitor => {
                writes.update::<Monitor>(self.balancer()?, id, body).await?;
            }
            ObjectUpdate::Floating => {
                let port = match body.get(fields::PORT_ID).and_then(Value::as_str) {
                    Some(port) => self::id(port)?,
                    None => object.text(fields::PORT_ID),
                };
                writes.update_floating_ip(port, id, body).await?;
            }
            ObjectUpdate::ReplaceFloating => self.replace_floating(object, body).await?,
        }
        Ok(objects::ChangeReply::default())
    }

    async fn delete(&self, object: &Object<ObjectKind>, _: bool) -> Result<()> {
        let (writes, id) = (&self.sender.writes, &*object.id);
        match object.kind {
            ObjectKind::Balancer => {
                let cascade = self.sender.cascade || is_broken(object);
                writes.delete_load_balancer(id, cascade).await
            }
            ObjectKind::Listener => writes.delete::<Listener>(self.balancer()?, "", id).await,
            ObjectKind::Pool => writes.delete::<Pool>(self.balancer()?, "", id).await,
            ObjectKind::Monitor => {
                let pool = self.observed.id(ObjectKind::Pool, &object.key)?;
                writes.delete::<Monitor>(self.balancer()?, pool, id).await
            }
            ObjectKind::Floating => writes.delete_floating_ip(object.text(fields::PORT_ID), id).await,
        }
    }

    async fn add(
        &self,
        pool: &Object<ObjectKind>,
        set: &'static str,
        members: &[Member],
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        let (writes, balancer) = (&self.sender.writes, self.balancer()?);
        match MemberSet::of(set).ok_or_else(|| unsupported(pool, set))? {
            MemberSet::Listed => writes.add_members(balancer, &pool.id, members).await?,
            MemberSet::Single => {
                let known = by_identity(pool.set(set));
                for member in members {
                    if let Some(have) = known.get(&member.identity()) {
                        let id = self.member_id(&pool.id, have).await?;
                        writes.update_member((balancer, &pool.id), &id, member.monitor_port).await?;
                        continue;
                    }
                    let mut member = member.clone();
                    let host = Arc::make_mut(&mut member.host);
                    host.name = names::serial_member(&host.name, &host.address, member.protocol_port);
                    writes.create_member(balancer, &pool.id, &member).await?;
                }
            }
        }
        Ok(objects::ChangeReply::default())
    }

    async fn remove(&self, pool: &Object<ObjectKind>, _: &'static str, members: &[Member]) -> Result<()> {
        for member in members {
            let (id, balancer) = (self.member_id(&pool.id, member).await?, self.balancer()?);
            self.sender.writes.delete_member(balancer, &pool.id, &id).await?;
        }
        Ok(())
    }

    async fn set(
        &self,
        pool: &Object<ObjectKind>,
        _: &'static str,
        members: &[Member],
    ) -> Result<objects::ChangeReply<ObjectKind>> {
        let members = self.merged(&pool.id, members).await?;
        let writes = &self.sender.writes;
        writes.set_members(self.balancer()?, &pool.id, &members).await?;
        Ok(objects::ChangeReply::default())
    }
}
