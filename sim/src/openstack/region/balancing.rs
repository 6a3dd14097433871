//! Octavia's state: load balancers and the objects below them, and the states of changes.
//!
//! A change is accepted at once and takes effect later, like in Octavia, whose workers apply the changes that its API
//! stores. Until then the whole load balancer is locked. No task runs in the background: every access first applies the
//! due changes ([`Balancing::settle`]).

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

/// The progress of a change of an object.
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
    /// The ID of its load balancer; its own ID if it is one.
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

    /// A text attribute; empty if it is missing.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).as_str().unwrap_or_default()
    }
}

/// The kinds that a change is about, among those that it locks.
fn innermost(pending: &[Arc<Object>]) -> Vec<Kind> {
    let levels: [&[Kind]; 4] = [
        &[Kind::Member, Kind::Monitor],
        &[Kind::Pool],
        &[Kind::Listener],
        &[Kind::LoadBalancer],
    ];
    for kinds in levels {
        if pending.iter().any(|object| kinds.contains(&object.kind)) {
            return kinds.to_vec();
        }
    }
    Vec::new()
}

/// The load balancing of a region.
#[derive(Clone, Debug, Default)]
pub(crate) struct Balancing {
    objects: HashMap<String, Arc<Object>>,
    by_kind: BTreeMap<Kind, BTreeSet<String>>,
    /// The objects directly below another, by kind in the order of IDs, like in the service's database.
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

    /// An object of any kind.
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

    /// Listeners that use a pool.
    pub(crate) fn listeners_of(&self, pool: &Object) -> Vec<String> {
        self.below(&pool.balancer, Kind::Listener)
            .filter(|listener| listener.text("default_pool_id") == pool.id)
            .map(|listener| listener.id.clone())
            .collect()
    }

    pub(crate) fn insert(&mut self, object: Object) {
        self.by_kind.entry(object.kind).or_default().insert(object.id.clone());
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

    /// Sets the state of an object. The database stores the time of every change except the creation.
    pub(crate) fn set_status(&mut self, id: &str, status: Provisioning, at: Timestamp) {
        self.change(id, |object| {
            object.provisioning = status;
            object.updated = Some(crate::clock::seconds(at));
        });
    }

    /// Removes an object with everything below it.
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
                let members: Vec<String> =
                    self.below(&object.parent, Kind::Member).map(|member| member.id.clone()).collect();
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
            let below: Vec<String> =
                self.below.get(id).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect();
            found.extend(below);
            at += 1;
        }
        found
    }

    /// Schedules the changes of a load balancer.
    pub(crate) fn take_effect(&mut self, balancer: &str, at: Timestamp) {
        let fails = self.failing > 0;
        self.failing = self.failing.saturating_sub(1);
        self.pending.insert((at, balancer.to_owned()), fails);
    }

    pub(crate) fn forget_pending(&mut self, balancer: &str) {
        self.pending.retain(|(_, id), _| id != balancer);
    }

    /// Whether a change is due.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        self.pending.keys().next().is_some_and(|(at, _)| *at <= now)
    }

    /// Applies the due changes. Returns the deleted load balancers.
    pub(crate) fn settle(&mut self, now: Timestamp, heartbeats: bool) -> Vec<Arc<Object>> {
        let mut deleted = Vec::new();
        while self.is_due(now) {
            let Some(((at, balancer), fails)) = self.pending.pop_first() else {
                break;
            };
            deleted.extend(self.settle_one(&balancer, at, fails, heartbeats));
        }
        deleted
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
            // Objects that were to be created with it stay as they are.
            self.set_status(balancer, Provisioning::Error, at);
            return None;
        }
        let pending: Vec<Arc<Object>> = self
            .tree(balancer)
            .iter()
            .filter_map(|id| self.objects.get(id))
            .filter(|object| object.provisioning.is_pending())
            .cloned()
            .collect();
        // The objects of a failed change are in ERROR; objects that were only locked are not.
        let broken = if fails { innermost(&pending) } else { Vec::new() };
        for object in &pending {
            if broken.contains(&object.kind) {
                self.set_status(&object.id, Provisioning::Error, at);
            } else if object.provisioning == Provisioning::PendingDelete {
                self.remove(&object.id);
            } else {
                self.set_status(&object.id, Provisioning::Active, at);
            }
        }
        self.operate(balancer, heartbeats);
        None
    }

    /// Sets the resulting operating states. Without the heartbeats of its machines, Octavia only knows monitors.
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
