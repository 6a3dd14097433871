//! The changes of Octavia and Neutron, one function for each.
//!
//! Each function also updates the shared listings: from the answer, or by invalidation if the answer is incomplete or
//! lost. An object below a load balancer is stored as it will be when the load balancer is active again. Until then the
//! load balancer is pending.

mod below;
mod graph;
mod network;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    ErrorKind, Priority, RequestOutcome, Result,
    client::{Indexed, IndexedCache},
    error::accept,
};
use http::Method;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use self::{
    below::Below,
    graph::{Graph, NewChildren},
};
use super::{
    kinds::ListenerKey,
    member::Member,
    member_id::MemberId,
    reads::Reads,
    responses::{self, LoadBalancer, Provisioning},
};
use crate::client::{Api, Call, Op, call, catalog::Service, listing::Resource};

/// The timeout of large changes: Octavia checks each member against its subnet before it answers.
const BULK: Duration = Duration::from_secs(300);
/// The number of members above which a change is large.
const MANY: usize = 50;

/// A new load balancer, and the members of its pools by listener, if the answer contains them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CreatedLoadBalancer {
    pub(crate) balancer: LoadBalancer,
    pub(crate) members: Vec<(ListenerKey, Arc<[Member]>)>,
}

/// The changes; see the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writes<'a> {
    api: &'a Api,
    reads: &'a Reads,
    priority: Priority,
}

impl<'a> Writes<'a> {
    /// Creates the changes with the listings that they update.
    pub(crate) fn new(api: &'a Api, reads: &'a Reads, priority: Priority) -> Self {
        Self { api, reads, priority }
    }

    /// Creates a load balancer, usually with everything below it. `members`: their number.
    ///
    /// # Errors
    /// As [`crate::error`] maps them; this applies to all changes.
    pub(crate) async fn create_load_balancer(
        &self,
        body: &impl Serialize,
        members: usize,
    ) -> Result<CreatedLoadBalancer> {
        let body = [(LoadBalancer::ONE, body)].into_iter().collect::<BTreeMap<_, _>>();
        let (op, path) = (Op::LoadBalancerCreate, LoadBalancer::PATH);
        let write = Call {
            timeout: bulk(members),
            ..call(op, Service::LoadBalancer, Method::POST, path)
        };
        let Graph { balancer, children } = self.api.write(&write.json(&body)?, self.priority).await?;
        self.reads.balancers.insert(balancer.clone());
        let mut created = CreatedLoadBalancer {
            balancer,
            members: Vec::new(),
        };
        let id = &created.balancer.id;
        let Some(children) = children else {
            self.reads.invalidate_children(id);
            return Ok(created);
        };
        let NewChildren {
            listeners,
            pools,
            monitors,
        } = children;
        let pools = pools.into_iter().map(|(pool, members)| {
            let members = self.reads.members.read(&pool.id, members, Instant::now());
            let of = listeners.iter().filter(|listener| listener.default_pool_id == pool.id);
            created
                .members
                .extend(of.map(|listener| (ListenerKey::of(listener), Arc::clone(&members))));
            pool
        });
        self.reads.pools.insert_complete(id, pools);
        self.reads.listeners.insert_complete(id, listeners);
        self.reads.monitors.insert_complete(id, monitors);
        Ok(created)
    }

    /// Updates a load balancer's own fields.
    pub(crate) async fn update_load_balancer(&self, id: &str, body: &impl Serialize) -> Result<LoadBalancer> {
        let result = self.send(Op::LoadBalancerUpdate, Method::PUT, id, body).await;
        store(&self.reads.balancers, id, result)
    }

    /// Starts the deletion of a load balancer, with everything below it if `cascade`. A missing one is no error.
    pub(crate) async fn delete_load_balancer(&self, id: &str, cascade: bool) -> Result<()> {
        let path = ["lbaas", "loadbalancers", id];
        let write = Call {
            query: if cascade { &[("cascade", "true")] } else { &[] },
            ..call(Op::LoadBalancerDelete, Service::LoadBalancer, Method::DELETE, &path)
        };
        let result = self.api.execute(&write, self.priority).await;
        self.reads.balancers.invalidate(id);
        self.reads.invalidate_children(id);
        self.reads.members.forget_all(id);
        accept(result, ErrorKind::NotFound, ())
    }

    /// Starts a failover, which replaces a load balancer's machines.
    pub(crate) async fn failover(&self, id: &str) -> Result<()> {
        let path = ["lbaas", "loadbalancers", id, "failover"];
        let op = Op::LoadBalancerFailover;
        let write = call(op, Service::LoadBalancer, Method::PUT, &path);
        let result = self.api.execute(&write, self.priority).await;
        self.reads.balancers.invalidate(id);
        result
    }

    /// Creates an object below a load balancer. The body names its parent.
    pub(crate) async fn create<T: Below>(&self, balancer: &str, body: &impl Serialize) -> Result<T> {
        let [create, ..] = T::OPS;
        let result = self.send(create, Method::POST, "", body).await;
        T::created(self.reads, balancer, result.as_ref().ok());
        self.below(balancer, result)
    }

    /// Updates an object below a load balancer.
    pub(crate) async fn update<T: Below>(
        &self,
        balancer: &str,
        id: &str,
        body: &impl Serialize,
    ) -> Result<T> {
        let [_, update, _] = T::OPS;
        let result = self.send(update, Method::PUT, id, body).await;
        self.below(balancer, result)
    }

    /// Deletes an object below a load balancer; a pool with its members and its health monitor, a listener without its
    /// pool. A missing one is no error. `pool`: that of a health monitor.
    pub(crate) async fn delete<T: Below>(&self, balancer: &str, pool: &str, id: &str) -> Result<()> {
        let [.., delete] = T::OPS;
        let path: Vec<_> = T::PATH.iter().copied().chain([id]).collect();
        let result = self.remove(delete, Service::LoadBalancer, &path).await;
        T::deleted(self.reads, (balancer, pool, id), result.is_ok());
        let result = store_delete(T::cache(self.reads), balancer, id, result);
        self.at_work(balancer, result)
    }

    /// Adds members to a pool or updates existing ones; the others stay. Needs
    /// [`AdditiveMembers`](super::features::Feature::AdditiveMembers).
    pub(crate) async fn add_members(&self, balancer: &str, pool: &str, members: &[Member]) -> Result<()> {
        let result = self.members_update(pool, members, &[("additive_only", "true")]).await;
        let known = result.is_ok() && self.reads.members.added(pool, members.iter().map(Member::expected));
        self.members_changed((balancer, pool), known, result)
    }

    /// Replaces all members of a pool.
    pub(crate) async fn set_members(&self, balancer: &str, pool: &str, members: &[Member]) -> Result<()> {
        let result = self.members_update(pool, members, &[]).await;
        let now = members.iter().map(Member::expected).collect();
        let known = result.is_ok() && self.reads.members.replaced(pool, now);
        self.members_changed((balancer, pool), known, result)
    }

    /// Creates one member.
    pub(crate) async fn create_member(&self, balancer: &str, pool: &str, member: &Member) -> Result<Member> {
        let path = ["lbaas", "pools", pool, "members"];
        let write = call(Op::MemberCreate, Service::LoadBalancer, Method::POST, &path);
        let created: Result<responses::Member> = self.api.write_one(write, member, self.priority).await;
        // The pool is read once more, to learn the ID.
        self.members_changed((balancer, pool), false, created.map(Member::from))
    }

    /// Sets the port of one member's health check, or with `None` that of the member.
    pub(crate) async fn update_member(
        &self,
        pool: (&str, &str),
        id: &MemberId,
        port: Option<u16>,
    ) -> Result<()> {
        let text = id.to_string();
        let path = ["lbaas", "pools", pool.1, "members", text.as_str()];
        let write = call(Op::MemberUpdate, Service::LoadBalancer, Method::PUT, &path);
        let body = json!({"member": {"monitor_port": port}});
        let result = self.api.execute(&write.json(&body)?, self.priority).await;
        self.members_changed(pool, false, result)
    }

    /// Deletes one member. A missing one is no error.
    pub(crate) async fn delete_member(&self, balancer: &str, pool: &str, id: &MemberId) -> Result<()> {
        let text = id.to_string();
        let path = ["lbaas", "pools", pool, "members", text.as_str()];
        let result = self.remove(Op::MemberDelete, Service::LoadBalancer, &path).await;
        let known = result.is_ok() && self.reads.members.removed(pool, id);
        self.members_changed((balancer, pool), known, result)
    }

    /// Sends an object: a new one if `id` is empty.
    async fn send<T: Resource>(&self, op: Op, method: Method, id: &str, body: &impl Serialize) -> Result<T> {
        let id = Some(id).filter(|id| !id.is_empty());
        let path: Vec<_> = T::PATH.iter().copied().chain(id).collect();
        let write = call(op, T::SERVICE, method, &path);
        self.api.write_one(write, body, self.priority).await
    }

    async fn remove(&self, op: Op, service: Service, path: &[&str]) -> Result<()> {
        let write = call(op, service, Method::DELETE, path);
        let result = self.api.execute(&write, self.priority).await;
        accept(result, ErrorKind::NotFound, ())
    }

    async fn members_update(
        &self,
        pool: &str,
        members: &[Member],
        query: &'static [(&'static str, &'static str)],
    ) -> Result<()> {
        let path = ["lbaas", "pools", pool, "members"];
        let body = BTreeMap::from([("members", members)]);
        let write = Call {
            query,
            timeout: bulk(members.len()),
            ..call(Op::MembersUpdate, Service::LoadBalancer, Method::PUT, &path)
        };
        self.api.execute(&write.json(&body)?, self.priority).await
    }

    /// As [`store`], for an object below a load balancer.
    fn below<T: Below>(&self, balancer: &str, result: Result<T>) -> Result<T> {
        let settled = result.clone().map(|mut object| {
            object.settle();
            object
        });
        drop(store(T::cache(self.reads), balancer, settled));
        self.at_work(balancer, result)
    }

    /// Updates the listings after a change of members. `known`: whether the members are known, apart from their IDs.
    fn members_changed<T>(
        &self,
        (balancer, pool): (&str, &str),
        known: bool,
        result: Result<T>,
    ) -> Result<T> {
        if !known {
            self.reads.members.forget(pool);
            self.reads.pools.invalidate(balancer);
        }
        self.at_work(balancer, result)
    }

    /// Updates the load balancer's state in the listing: an accepted change makes it pending.
    fn at_work<T>(&self, balancer: &str, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_) => self.reads.balancers.update(balancer, |balancer| {
                balancer.provisioning_status = Provisioning::PendingUpdate;
            }),
            // Another client's change may be the reason of a refusal.
            Err(_) => self.reads.balancers.invalidate(balancer),
        }
        if result.as_ref().is_err_and(|error| error.outcome() == RequestOutcome::Unknown) {
            self.reads.invalidate_children(balancer);
        }
        result
    }
}

/// Updates an object in its listing.
fn store<T: Indexed + Clone>(cache: &IndexedCache<T>, key: &str, result: Result<T>) -> Result<T> {
    match &result {
        Ok(object) => cache.insert(object.clone()),
        Err(_) => cache.invalidate(key),
    }
    result
}

fn store_delete<T: Indexed>(cache: &IndexedCache<T>, key: &str, id: &str, result: Result<()>) -> Result<()> {
    match &result {
        Ok(()) => cache.remove(id),
        Err(_) => cache.invalidate(key),
    }
    result
}

fn bulk(members: usize) -> Option<Duration> {
    (members > MANY).then_some(BULK)
}
