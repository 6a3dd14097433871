//! Octavia's state: load balancers and what hangs below them, and the states through which changes pass.
//!
//! A change is accepted at once and takes effect later, as in Octavia, whose workers do what its API only writes down:
//! until then the whole load balancer is locked. Nothing runs in the background; whoever looks after the time is up
//! finds the change done ([`Balancing::settle`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    LoadBalancer,
    Listener,
    Pool,
    Member,
    Monitor,
}

/// Where an object stands between a wish and its fulfilment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provisioning {
    Active,
    PendingCreate,
    PendingUpdate,
    PendingDelete,
    Error,
}

impl Provisioning {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::PendingCreate => "PENDING_CREATE",
            Self::PendingUpdate => "PENDING_UPDATE",
            Self::PendingDelete => "PENDING_DELETE",
            Self::Error => "ERROR",
        }
    }

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        let all = [
            Self::Active,
            Self::PendingCreate,
            Self::PendingUpdate,
            Self::PendingDelete,
            Self::Error,
        ];
        all.into_iter().find(|status| status.name() == name)
    }

    fn is_pending(self) -> bool {
        !matches!(self, Self::Active | Self::Error)
    }
}

/// Attributes by name.
pub(crate) type Attrs = BTreeMap<&'static str, Value>;

/// A load balancer, listener, pool, member or health monitor.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) project_id: String,
    /// The load balancer to which it belongs; its own id if it is one.
    pub(crate) balancer: String,
    /// The pool of a member or monitor, else the load balancer.
    pub(crate) parent: String,
    pub(crate) attrs: Attrs,
    pub(crate) provisioning: Provisioning,
    pub(crate) operating: &'static str,
    pub(crate) created: Timestamp,
    pub(crate) updated: Option<Timestamp>,
}

impl Object {
    /// An attribute, or null.
    pub(crate) fn get(&self, name: &str) -> &Value {
        self.attrs.get(name).unwrap_or(&Value::Null)
    }

    /// A text attribute, or nothing.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).as_str().unwrap_or_default()
    }
}

/// The kinds that a change is about, of all that it locks.
fn innermost(pending: &[Arc<Object>]) -> Vec<Kind> {
    let levels: [&[Kind]; 4] = [
        &[Kind::Member, Kind::Monitor],
        &[Kind::Pool],
        &[Kind::Listener],
        &[Kind::LoadBalancer],
    ];
    let is_there = |kinds: &&&[Kind]| pending.iter().any(|object| kinds.contains(&object.kind));
    levels
        .iter()
        .find(is_there)
        .map(|kinds| kinds.to_vec())
        .unwrap_or_default()
}

/// All of a region's load balancing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Balancing {
    objects: HashMap<String, Arc<Object>>,
    by_kind: BTreeMap<Kind, BTreeSet<String>>,
    /// What hangs directly below an object, by kind in the order of ids, as the service's database has it.
    below: HashMap<String, BTreeMap<Kind, BTreeSet<String>>>,
    /// When changes take effect, by time and load balancer, and whether they fail.
    pending: BTreeMap<(Timestamp, String), bool>,
    /// How many of the next changes fail.
    pub(crate) failing: u32,
}

impl Balancing {
    pub(crate) fn get(&self, kind: Kind, id: &str) -> Option<&Arc<Object>> {
        self.objects.get(id).filter(|object| object.kind == kind)
    }

    /// An object of whichever kind.
    pub(crate) fn any(&self, id: &str) -> Option<&Arc<Object>> {
        self.objects.get(id)
    }

    /// All objects of a kind in the order of their ids.
    pub(crate) fn all(&self, kind: Kind) -> impl Iterator<Item = &Arc<Object>> {
        let ids = self.by_kind.get(&kind).into_iter().flatten();
        ids.filter_map(|id| self.objects.get(id))
    }

    /// Objects of a kind directly below another.
    pub(crate) fn below(&self, id: &str, kind: Kind) -> impl Iterator<Item = &Arc<Object>> {
        let ids = self.below.get(id).and_then(|kinds| kinds.get(&kind));
        ids.into_iter().flatten().filter_map(|id| self.objects.get(id))
    }

    /// A pool's health monitor.
    pub(crate) fn monitor(&self, pool: &str) -> Option<&Arc<Object>> {
        self.below(pool, Kind::Monitor).next()
    }

    /// Listeners that lead to a pool.
    pub(crate) fn listeners_of(&self, pool: &Object) -> Vec<String> {
        self.below(&pool.balancer, Kind::Listener)
            .filter(|listener| listener.text("default_pool_id") == pool.id)
            .map(|listener| listener.id.clone())
            .collect()
    }

    pub(crate) fn insert(&mut self, object: Object) {
        self.by_kind
            .entry(object.kind)
            .or_default()
            .insert(object.id.clone());
        if object.kind != Kind::LoadBalancer {
            self.below
                .entry(object.parent.clone())
                .or_default()
                .entry(object.kind)
                .or_default()
                .insert(object.id.clone());
        }
        self.objects.insert(object.id.clone(), Arc::new(object));
    }

    pub(crate) fn change(&mut self, id: &str, change: impl FnOnce(&mut Object)) {
        if let Some(object) = self.objects.get_mut(id) {
            change(Arc::make_mut(object));
        }
    }

    /// Sets the state of an object. The database notes the time of every change but the first writing.
    pub(crate) fn mark(&mut self, id: &str, status: Provisioning, at: Timestamp) {
        self.change(id, |object| {
            object.provisioning = status;
            object.updated = Some(crate::clock::seconds(at));
        });
    }

    /// Takes an object out with all that hangs below it.
    pub(crate) fn remove(&mut self, id: &str) {
        let below = self.below.remove(id).unwrap_or_default();
        for child in below.into_values().flatten() {
            self.remove(&child);
        }
        let Some(object) = self.objects.remove(id) else {
            return;
        };
        if let Some(ids) = self.by_kind.get_mut(&object.kind) {
            ids.remove(id);
        }
        let siblings = self.below.get_mut(&object.parent);
        if let Some(siblings) = siblings.and_then(|kinds| kinds.get_mut(&object.kind)) {
            siblings.remove(id);
        }
        match object.kind {
            Kind::Pool => {
                for listener in self.listeners_of(&object) {
                    self.change(&listener, |listener| {
                        listener.attrs.insert("default_pool_id", Value::Null);
                    });
                }
            }
            Kind::Monitor => {
                let members: Vec<String> = self
                    .below(&object.parent, Kind::Member)
                    .map(|member| member.id.clone())
                    .collect();
                for member in members {
                    self.change(&member, |member| member.operating = "NO_MONITOR");
                }
            }
            Kind::LoadBalancer => self.forget_pending(id),
            Kind::Listener | Kind::Member => {}
        }
    }

    /// A load balancer and everything below it.
    fn tree(&self, balancer: &str) -> Vec<String> {
        let mut found = vec![balancer.to_owned()];
        let mut at = 0;
        while let Some(id) = found.get(at) {
            let below = self.below.get(id).into_iter().flat_map(BTreeMap::values);
            let below: Vec<String> = below.flatten().cloned().collect();
            found.extend(below);
            at += 1;
        }
        found
    }

    /// Lets what was changed at a load balancer take effect at a time.
    pub(crate) fn take_effect(&mut self, balancer: &str, at: Timestamp) {
        let fails = self.failing > 0;
        self.failing = self.failing.saturating_sub(1);
        self.pending.insert((at, balancer.to_owned()), fails);
    }

    pub(crate) fn forget_pending(&mut self, balancer: &str) {
        self.pending.retain(|(_, id), _| id != balancer);
    }

    /// Whether a change takes effect by now.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.pending.keys().next().is_some_and(|(at, _)| *at <= now)
    }

    /// Lets the changes take effect whose time is up. Returns the load balancers that are gone.
    pub(crate) fn settle(&mut self, now: Timestamp, heartbeats: bool) -> Vec<Arc<Object>> {
        let mut gone = Vec::new();
        while self.is_due(now) {
            let Some(((at, balancer), fails)) = self.pending.pop_first() else {
                break;
            };
            gone.extend(self.settle_one(&balancer, at, fails, heartbeats));
        }
        gone
    }

    fn settle_one(
        &mut self,
        balancer: &str,
        at: Timestamp,
        fails: bool,
        heartbeats: bool,
    ) -> Option<Arc<Object>> {
        let found = self.get(Kind::LoadBalancer, balancer).cloned()?;
        if found.provisioning == Provisioning::PendingDelete && !fails {
            self.remove(balancer);
            return Some(found);
        }
        if fails && found.provisioning != Provisioning::PendingUpdate {
            // What was to be made with it stays as it is.
            self.mark(balancer, Provisioning::Error, at);
            return None;
        }
        let pending: Vec<Arc<Object>> = self
            .tree(balancer)
            .iter()
            .filter_map(|id| self.objects.get(id))
            .filter(|object| object.provisioning.is_pending())
            .cloned()
            .collect();
        // What the change was about breaks, and what was only locked with it does not.
        let broken = if fails { innermost(&pending) } else { Vec::new() };
        for object in &pending {
            if broken.contains(&object.kind) {
                self.mark(&object.id, Provisioning::Error, at);
            } else if object.provisioning == Provisioning::PendingDelete {
                self.remove(&object.id);
            } else {
                self.mark(&object.id, Provisioning::Active, at);
            }
        }
        self.operate(balancer, heartbeats);
        None
    }

    /// Sets the operating states that follow. Without the heartbeats of its machines Octavia knows only of monitors.
    fn operate(&mut self, balancer: &str, heartbeats: bool) {
        for id in self.tree(balancer) {
            let Some(object) = self.objects.get(&id) else {
                continue;
            };
            let active = object.provisioning == Provisioning::Active;
            let up = object.get("admin_state_up") != &Value::Bool(false);
            let state = match object.kind {
                Kind::Monitor if active => "ONLINE",
                Kind::Monitor => continue,
                _ if !heartbeats || !active => continue,
                Kind::Member if self.monitor(&object.parent).is_none() => "NO_MONITOR",
                Kind::Member if object.get("weight") == &Value::from(0) => "DRAINING",
                _ if up => "ONLINE",
                _ => "OFFLINE",
            };
            self.change(&id, |object| object.operating = state);
        }
    }
}
