//! Generated cases: objects that the cluster created, perhaps incompletely, and edits by other clients.

use std::{fmt, sync::Arc};

use proptest::{collection::vec, option, prelude::*, sample};

use super::{CloudBehavior, Lawful, behavior};
use crate::load_balancer::ClusterSnapshot;

/// The initial state of a cloud, and the snapshots of the cluster to reconcile it with, in order.
#[derive(Clone, Debug)]
pub struct Case<T> {
    /// The contents of the cloud before the cluster.
    pub ground: T,
    /// The earlier snapshots of the cluster, and the number of writes before its process was killed, if it was.
    pub built: Vec<(ClusterSnapshot, Option<usize>)>,
    /// The edits after that: the name of an [`Edit`], and the number of the object.
    pub edits: Vec<(String, usize)>,
    /// The snapshots of the cluster, at least one.
    pub worlds: Vec<ClusterSnapshot>,
    /// The replies of the cloud.
    pub behavior: CloudBehavior,
}

impl<T> Case<T> {
    /// A cloud in which the cluster has created nothing yet.
    pub fn of(ground: T, worlds: Vec<ClusterSnapshot>) -> Self {
        Self {
            ground,
            built: Vec::new(),
            edits: Vec::new(),
            worlds,
            behavior: CloudBehavior::default(),
        }
    }
}

/// The function of an edit, with its number.
type Apply<T> = dyn Fn(&mut T, usize) + Send + Sync;

/// A change by another client of the cloud.
pub struct Edit<T> {
    /// Its name; unique.
    pub name: String,
    apply: Arc<Apply<T>>,
}

impl<T> Edit<T> {
    /// An edit. Its number selects one of the objects that it may change; it does nothing if no such object exists.
    pub fn new(name: impl Into<String>, apply: impl Fn(&mut T, usize) + Send + Sync + 'static) -> Self {
        Self {
            name: name.into(),
            apply: Arc::new(apply),
        }
    }

    pub(super) fn apply(&self, truth: &mut T, pick: usize) {
        (self.apply)(truth, pick);
    }
}

impl<T> fmt::Debug for Edit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Edit").field(&self.name).finish()
    }
}

/// One of the items, by number.
pub fn pick<T>(items: impl IntoIterator<Item = T>, number: usize) -> Option<T> {
    let mut items: Vec<_> = items.into_iter().collect();
    let at = number.checked_rem(items.len())?;
    Some(items.swap_remove(at))
}

/// Removes one of the items that `filter` accepts, by number.
pub fn remove<T>(items: &mut Vec<T>, number: usize, filter: impl Fn(&T) -> bool) -> Option<T> {
    let accepted = (0..items.len()).filter(|at| items.get(*at).is_some_and(&filter));
    let at = pick(accepted, number)?;
    Some(items.remove(at))
}

/// Cases of this model's clusters and edits.
pub fn cases<L: Lawful>(model: &L) -> impl Strategy<Value = Case<L::Truth>> + use<L> {
    let world = model.clusters().snapshots();
    let names: Vec<_> = model.edits().into_iter().map(|edit| edit.name).collect();
    let built = vec((world.clone(), option::weighted(0.4, 0..16_usize)), 0..=2);
    let edits = vec((sample::select(names), 0..512_usize), 0..=4);
    // Sometimes nothing but the edits has changed.
    let (worlds, stays) = (vec(world, 1..=2), proptest::bool::weighted(0.4));
    let ground = model.ground();
    (built, edits, worlds, stays, behavior()).prop_map(move |(built, edits, mut worlds, stays, behavior)| {
        if let (true, Some((last, _)), Some(first)) = (stays, built.last(), worlds.first_mut()) {
            first.clone_from(last);
        }
        Case {
            ground: ground.clone(),
            built,
            edits,
            worlds,
            behavior,
        }
    })
}
