//! The cloud calls of the fake load balancers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    Balancer, FakeBalancers,
    model::{Action, Directory, Hosts, Key, Model, ModelChange, Observed, RegionReply, change_host},
};
use crate::{
    Error, ErrorKind, Freshness, Priority, Result,
    load_balancer::{ClusterView, ReadOptions},
    plan::{
        CloudChange as _, Fact, GatheredInputs, Member, PartCloud, ScopeCheck, SendOptions, SendOutcome, Wait,
    },
};

/// A read of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The key of the part.
    pub part: String,
    /// Whether the answer had to be newer than some moment.
    pub fresh: bool,
    /// The priority.
    pub priority: Priority,
}

#[derive(Debug, Default)]
pub(crate) struct RegionState {
    pub(super) balancers: BTreeMap<u64, Arc<Balancer>>,
    pub(super) hosts: Hosts,
    pub(super) faults: Vec<(&'static str, Error)>,
    pub(super) broken: Option<Error>,
    pub(super) polls: u32,
    pub(super) writes: Vec<String>,
    pub(super) reads: Vec<Read>,
    /// Counts the lookups in its listings.
    pub(super) lookups: Arc<AtomicUsize>,
    last: u64,
    /// The number of polls until each accepted step is done.
    pub(super) in_progress: HashMap<String, u32>,
    /// The cached listing, and when it was read.
    directory: Option<(Instant, Arc<Directory>)>,
}

const WAIT: Wait = Wait {
    poll: Duration::from_millis(20),
    deadline: Duration::from_secs(60),
};

impl RegionState {
    fn check(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn carry_out(&mut self, change: &ModelChange, seen: &Observed) -> Result<Option<RegionReply>> {
        if matches!(change.action, Action::Create(_) | Action::Delete | Action::Host(..)) {
            // The others change nothing that the listings show.
            self.directory = None;
        }
        if let Action::Host(joins, leaves) = &change.action {
            change_host(&mut self.hosts, &change.thing, joins, leaves);
            return Ok(None);
        }
        if let Action::Create(new) = &change.action {
            self.last += 1;
            let id = self.last;
            let address = format!("192.0.2.{id}");
            let created = Balancer {
                id: Fact::Known(id),
                address: Fact::Known(address.clone()),
                ..new.clone()
            };
            self.balancers.insert(id, Arc::new(created));
            return Ok(Some(RegionReply { id, address }));
        }
        let not_found = || Error::new(ErrorKind::NotFound, "balancer not found");
        let Observed::Balancer(Some(seen)) = seen else {
            return Err(not_found());
        };
        let id = *seen.id.get()?;
        let balancer = Arc::make_mut(self.balancers.get_mut(&id).ok_or_else(not_found)?);
        match &change.action {
            Action::Ports(ports) => balancer.ports.clone_from(ports),
            Action::Members(members) => balancer.members.clone_from(members),
            _ => {
                self.balancers.remove(&id);
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl PartCloud<Model> for FakeBalancers {
    /// The sentence.
    type Ticket = String;

    async fn directory(&self, read: ReadOptions) -> Result<Arc<Directory>> {
        let mut state = self.state.lock();
        state.check()?;
        if let Some((began, directory)) = &state.directory
            && read.freshness.allows(*began)
        {
            return Ok(Arc::clone(directory));
        }
        let directory = Arc::new(Directory::new(&state));
        state.directory = Some((Instant::now(), Arc::clone(&directory)));
        Ok(directory)
    }

    async fn inputs(
        &self,
        _: &Key,
        _: &[Member<Model>],
        cluster: &ClusterView,
        _: ReadOptions,
    ) -> Result<GatheredInputs<()>> {
        // A cluster without a name is an error of the caller.
        if cluster.name.is_empty() {
            return Err(Error::new(ErrorKind::Unexpected, "the cluster has no name"));
        }
        Ok(GatheredInputs::from(()))
    }

    async fn observe(&self, key: &Key, _: &[Member<Model>], read: ReadOptions) -> Result<Observed> {
        let mut state = self.state.lock();
        state.reads.push(Read {
            part: key.to_string(),
            fresh: matches!(read.freshness, Freshness::After(_)),
            priority: read.priority,
        });
        state.check()?;
        Ok(match key {
            Key::Hosts => Observed::Hosts(state.hosts.clone()),
            Key::Id(id) => {
                Observed::Balancer(state.balancers.get(id).map(|balancer| Balancer::clone(balancer)))
            }
            Key::New(name) => {
                let named = state.balancers.values().find(|balancer| &balancer.name == name);
                Observed::Balancer(named.map(|balancer| Balancer::clone(balancer)))
            }
        })
    }

    async fn send(
        &self,
        _: &Key,
        change: &ModelChange,
        observed: &Observed,
        _: &SendOptions,
    ) -> Result<SendOutcome<Option<RegionReply>, String>> {
        let sentence = change.describe().sentence;
        self.state.lock().writes.push(sentence.clone());
        let mut open = self.open.subscribe();
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = open.wait_for(|open| *open).await;
        let mut state = self.state.lock();
        let fault = state.faults.iter().position(|(begin, _)| sentence.starts_with(begin));
        if let Some(fault) = fault {
            return Err(state.faults.remove(fault).1);
        }
        let reply = state.carry_out(change, observed)?;
        if state.polls == 0 {
            return Ok(SendOutcome::Done(reply));
        }
        let polls = state.polls;
        state.in_progress.insert(sentence.clone(), polls);
        Ok(SendOutcome::Accepted {
            reply,
            ticket: sentence,
            wait: WAIT,
        })
    }

    async fn poll(&self, _: &Key, ticket: &String, _: Priority) -> Result<Option<Duration>> {
        let mut state = self.state.lock();
        let left = state.in_progress.entry(ticket.clone()).or_default();
        *left = left.saturating_sub(1);
        Ok((*left > 0).then_some(WAIT.poll))
    }

    async fn verify_scope(&self, _: &ClusterView, _: ReadOptions) -> Result<ScopeCheck> {
        Ok(ScopeCheck::Verified)
    }
}
