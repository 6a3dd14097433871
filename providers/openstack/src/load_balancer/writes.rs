//! The changes of Octavia and Neutron, one function for each.
//!
//! Every function also puts into the shared listings what it did: the answer of the service, or that something
//! happened of which the answer says nothing or was lost. A thing below a load balancer is put there as it will be once
//! the load balancer has settled; until then the load balancer itself says that it has not.

mod graph;
mod network;

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Outcome, Priority, Result,
    client::{Indexed, IndexedCache},
};
use serde::Serialize;
use tokio::time::Instant;

use self::graph::{Graph, NewChildren};
use super::{
    bodies::{
        Envelope, ListenerChange, LoadBalancerChange, MemberBody, Members, MonitorChange, NewListener,
        NewLoadBalancer, NewMonitor, NewPool, PoolChange,
    },
    member::Member,
    member_id::MemberId,
    observe::ListenerKey,
    reads::Reads,
    responses::{self, Listener, LoadBalancer, Monitor, Pool, Provisioning},
};
use crate::{
    client::{
        Api, Op, Verb, Write,
        catalogue::Service,
        listing::{One, Resource},
    },
    error::gone_is_deleted,
};

/// Octavia checks each member against its subnet before it answers: hundreds of them take longer than other requests.
const BULK: Duration = Duration::from_secs(300);
/// Above so many members.
const MANY: usize = 50;

/// A new load balancer, and the members of its pools by listener, as far as the answer says enough of them.
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
    /// Changes that are put into these listings.
    pub(crate) fn new(api: &'a Api, reads: &'a Reads, priority: Priority) -> Self {
        Self { api, reads, priority }
    }

    /// Makes a load balancer, mostly with everything below it.
    ///
    /// # Errors
    /// As [`crate::error`] maps them; so for all of them.
    pub(crate) async fn create_load_balancer(&self, body: &NewLoadBalancer) -> Result<CreatedLoadBalancer> {
        let pools = body
            .listeners
            .iter()
            .filter_map(|listener| listener.default_pool.as_ref());
        let members: usize = pools.map(|pool| pool.members.len()).sum();
        let envelope = Envelope(LoadBalancer::ONE, body);
        let write = Write {
            timeout: bulk(members),
            ..Write::new(
                Op::LoadBalancerCreate,
                Service::LoadBalancer,
                Verb::Post,
                LoadBalancer::PATH,
            )
        };
        let Graph { balancer, children } = self.api.write(&write.json(&envelope), self.priority).await?;
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
            let of = listeners
                .iter()
                .filter(|listener| listener.default_pool_id == pool.id);
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

    /// Changes a load balancer's own fields.
    pub(crate) async fn update_load_balancer(
        &self,
        id: &str,
        body: &LoadBalancerChange,
    ) -> Result<LoadBalancer> {
        let path = ["lbaas", "loadbalancers", id];
        let result = self
            .send(Op::LoadBalancerUpdate, Verb::Put, &path, Some(body), None)
            .await;
        self.note(&self.reads.balancers, id, result)
    }

    /// Begins to delete a load balancer, with everything below it if `cascade`. That there is none is no error.
    pub(crate) async fn delete_load_balancer(&self, id: &str, cascade: bool) -> Result<()> {
        let path = ["lbaas", "loadbalancers", id];
        let write = Write {
            query: if cascade { &[("cascade", "true")] } else { &[] },
            ..Write::new(Op::LoadBalancerDelete, Service::LoadBalancer, Verb::Delete, &path)
        };
        let result = self.api.execute(&write, self.priority).await;
        self.reads.balancers.invalidate(id);
        self.reads.invalidate_children(id);
        gone_is_deleted(result)
    }

    /// Begins to make a load balancer's machines anew.
    pub(crate) async fn failover(&self, id: &str) -> Result<()> {
        let path = ["lbaas", "loadbalancers", id, "failover"];
        let write = Write::new(Op::LoadBalancerFailover, Service::LoadBalancer, Verb::Put, &path);
        let result = self.api.execute(&write, self.priority).await;
        self.reads.balancers.invalidate(id);
        result
    }

    /// Makes a listener; its body names the load balancer.
    pub(crate) async fn create_listener(&self, body: &NewListener) -> Result<Listener> {
        let result = self
            .send(Op::ListenerCreate, Verb::Post, Listener::PATH, Some(body), None)
            .await;
        self.below(&body.loadbalancer_id, &self.reads.listeners, result)
    }

    /// Changes a listener.
    pub(crate) async fn update_listener(
        &self,
        balancer: &str,
        id: &str,
        body: &ListenerChange,
    ) -> Result<Listener> {
        let path = ["lbaas", "listeners", id];
        let result = self
            .send(Op::ListenerUpdate, Verb::Put, &path, Some(body), None)
            .await;
        self.below(balancer, &self.reads.listeners, result)
    }

    /// Deletes a listener. That there is none is no error. Its pool stays.
    pub(crate) async fn delete_listener(&self, balancer: &str, id: &str) -> Result<()> {
        let path = ["lbaas", "listeners", id];
        let result = self
            .delete(Op::ListenerDelete, Service::LoadBalancer, &path)
            .await;
        // Its pool no longer says that it is the listener's.
        self.reads.pools.invalidate(balancer);
        self.less(balancer, &self.reads.listeners, id, result)
    }

    /// Makes a pool for a listener, which its body names.
    pub(crate) async fn create_pool(&self, balancer: &str, body: &NewPool) -> Result<Pool> {
        let result = self
            .send(
                Op::PoolCreate,
                Verb::Post,
                Pool::PATH,
                Some(body),
                bulk(body.members.len()),
            )
            .await;
        self.reads.listeners.invalidate(balancer);
        self.below(balancer, &self.reads.pools, result)
    }

    /// Changes a pool.
    pub(crate) async fn update_pool(&self, balancer: &str, id: &str, body: &PoolChange) -> Result<Pool> {
        let path = ["lbaas", "pools", id];
        let result = self
            .send(Op::PoolUpdate, Verb::Put, &path, Some(body), None)
            .await;
        self.below(balancer, &self.reads.pools, result)
    }

    /// Deletes a pool with its members and its health monitor. That there is none is no error.
    pub(crate) async fn delete_pool(&self, balancer: &str, id: &str) -> Result<()> {
        let path = ["lbaas", "pools", id];
        let result = self.delete(Op::PoolDelete, Service::LoadBalancer, &path).await;
        self.reads.members.forget(id);
        self.reads.listeners.invalidate(balancer);
        self.reads.monitors.invalidate(balancer);
        self.less(balancer, &self.reads.pools, id, result)
    }

    /// Adds members to a pool, or changes those that are there; the others stay. Needs
    /// [`AdditiveMembers`](super::features::Feature::AdditiveMembers).
    pub(crate) async fn add_members(&self, balancer: &str, pool: &str, members: &[MemberBody]) -> Result<()> {
        let result = self
            .members_update(pool, members, &[("additive_only", "true")])
            .await;
        let known = result.is_ok()
            && self
                .reads
                .members
                .added(pool, members.iter().map(Member::expected));
        self.members_changed((balancer, pool), known, result)
    }

    /// Gives a pool these members and no others.
    pub(crate) async fn set_members(&self, balancer: &str, pool: &str, members: &[MemberBody]) -> Result<()> {
        let result = self.members_update(pool, members, &[]).await;
        let now = members.iter().map(Member::expected).collect();
        let known = result.is_ok() && self.reads.members.replaced(pool, now);
        self.members_changed((balancer, pool), known, result)
    }

    /// Makes one member.
    pub(crate) async fn create_member(
        &self,
        balancer: &str,
        pool: &str,
        body: &MemberBody,
    ) -> Result<Member> {
        let path = ["lbaas", "pools", pool, "members"];
        let result: Result<responses::Member> = self
            .send(Op::MemberCreate, Verb::Post, &path, Some(body), None)
            .await;
        // It is read once again, with its id.
        self.members_changed((balancer, pool), false, result.map(Member::from))
    }

    /// Deletes one member. That there is none is no error.
    pub(crate) async fn delete_member(&self, balancer: &str, pool: &str, id: &MemberId) -> Result<()> {
        let text = id.to_string();
        let path = ["lbaas", "pools", pool, "members", text.as_str()];
        let result = self.delete(Op::MemberDelete, Service::LoadBalancer, &path).await;
        let known = result.is_ok() && self.reads.members.removed(pool, id);
        self.members_changed((balancer, pool), known, result)
    }

    /// Makes a health monitor for a pool, which its body names.
    pub(crate) async fn create_monitor(&self, balancer: &str, body: &NewMonitor) -> Result<Monitor> {
        let result = self
            .send(Op::MonitorCreate, Verb::Post, Monitor::PATH, Some(body), None)
            .await;
        let result: Result<Monitor> = self.below(balancer, &self.reads.monitors, result);
        match &result {
            Ok(monitor) => self.reads.pools.update(&body.pool_id, |pool| {
                pool.healthmonitor_id.clone_from(&monitor.id);
            }),
            Err(_) => self.reads.pools.invalidate(balancer),
        }
        result
    }

    /// Changes a health monitor.
    pub(crate) async fn update_monitor(
        &self,
        balancer: &str,
        id: &str,
        body: &MonitorChange,
    ) -> Result<Monitor> {
        let path = ["lbaas", "healthmonitors", id];
        let result = self
            .send(Op::MonitorUpdate, Verb::Put, &path, Some(body), None)
            .await;
        self.below(balancer, &self.reads.monitors, result)
    }

    /// Deletes the health monitor of a pool. That there is none is no error.
    pub(crate) async fn delete_monitor(&self, balancer: &str, pool: &str, id: &str) -> Result<()> {
        let path = ["lbaas", "healthmonitors", id];
        let result = self.delete(Op::MonitorDelete, Service::LoadBalancer, &path).await;
        match &result {
            Ok(()) => self
                .reads
                .pools
                .update(pool, |pool| pool.healthmonitor_id.clear()),
            Err(_) => self.reads.pools.invalidate(balancer),
        }
        self.less(balancer, &self.reads.monitors, id, result)
    }

    async fn send<B: Serialize, T: Resource>(
        &self,
        op: Op,
        verb: Verb,
        path: &[&str],
        body: Option<&B>,
        timeout: Option<Duration>,
    ) -> Result<T> {
        let envelope = body.map(|body| Envelope(T::ONE, body));
        let write = Write {
            op,
            service: T::SERVICE,
            verb,
            path,
            query: &[],
            body: envelope.as_ref(),
            revision: None,
            timeout,
        };
        let One(thing) = self.api.write(&write, self.priority).await?;
        Ok(thing)
    }

    async fn delete(&self, op: Op, service: Service, path: &[&str]) -> Result<()> {
        let write = Write::new(op, service, Verb::Delete, path);
        gone_is_deleted(self.api.execute(&write, self.priority).await)
    }

    async fn members_update(
        &self,
        pool: &str,
        members: &[MemberBody],
        query: &'static [(&'static str, &'static str)],
    ) -> Result<()> {
        let path = ["lbaas", "pools", pool, "members"];
        let body = Members { members };
        let write = Write {
            query,
            timeout: bulk(members.len()),
            ..Write::new(Op::MembersUpdate, Service::LoadBalancer, Verb::Put, &path)
        };
        self.api.execute(&write.json(&body), self.priority).await
    }

    /// Puts what a thing became into its listing.
    fn note<T: Indexed + Clone>(&self, cache: &IndexedCache<T>, key: &str, result: Result<T>) -> Result<T> {
        match &result {
            Ok(thing) => cache.insert(thing.clone()),
            Err(_) => cache.invalidate(key),
        }
        result
    }

    /// As [`Self::note`], for a thing below a load balancer.
    fn below<T: Below + Clone>(
        &self,
        balancer: &str,
        cache: &IndexedCache<T>,
        result: Result<T>,
    ) -> Result<T> {
        match &result {
            Ok(thing) => {
                let mut settled = thing.clone();
                settled.settle();
                cache.insert(settled);
            }
            Err(_) => cache.invalidate(balancer),
        }
        self.at_work(balancer, result)
    }

    fn less<T: Indexed>(
        &self,
        balancer: &str,
        cache: &IndexedCache<T>,
        id: &str,
        result: Result<()>,
    ) -> Result<()> {
        let result = noted_delete(cache, balancer, id, result);
        self.at_work(balancer, result)
    }

    /// `known`: which members the pool has now, though not which ids they have, for that is in no answer.
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

    /// Octavia is at work on the load balancer if it accepted a change of anything below it.
    fn at_work<T>(&self, balancer: &str, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_) => self.reads.balancers.update(balancer, |balancer| {
                balancer.provisioning_status = Provisioning::PendingUpdate;
            }),
            // Also what was refused may have been because of a change that is not ours.
            Err(_) => self.reads.balancers.invalidate(balancer),
        }
        if result
            .as_ref()
            .is_err_and(|error| error.outcome() == Outcome::Unknown)
        {
            self.reads.invalidate_children(balancer);
        }
        result
    }
}

/// A thing below a load balancer.
trait Below: Indexed {
    /// Is as it will be once the load balancer has settled.
    fn settle(&mut self);
}

macro_rules! below {
    ($($thing:ident)+) => {$(
        impl Below for $thing {
            fn settle(&mut self) {
                self.provisioning_status = Provisioning::Active;
            }
        }
    )+};
}

below! { Listener Pool Monitor }

fn noted_delete<T: Indexed>(cache: &IndexedCache<T>, key: &str, id: &str, result: Result<()>) -> Result<()> {
    match &result {
        Ok(()) => cache.remove(id),
        Err(_) => cache.invalidate(key),
    }
    result
}

fn bulk(members: usize) -> Option<Duration> {
    (members > MANY).then_some(BULK)
}
