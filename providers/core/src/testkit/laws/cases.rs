//! Generated cases: what the cluster itself built, perhaps half, and what others did to it.

use std::{fmt, sync::Arc};

use proptest::{collection::vec, option, prelude::*, sample};

use super::{Lawful, Weather, weather};
use crate::load_balancer::ClusterSnapshot;

/// A cloud as it was found, and what the cluster wants of it one after the other.
#[derive(Clone, Debug)]
pub struct Case<T> {
    /// What was in the cloud before the cluster.
    pub ground: T,
    /// What the cluster was like when it built, and after how many writes its process was killed, if it was.
    pub built: Vec<(ClusterSnapshot, Option<usize>)>,
    /// What others did after that: the name of an [`Edit`], and to which object.
    pub edits: Vec<(String, usize)>,
    /// What the cluster is like, then how it changes. At least one.
    pub worlds: Vec<ClusterSnapshot>,
    /// How the cloud answers.
    pub weather: Weather,
}

impl<T> Case<T> {
    /// A cloud in which the cluster has built nothing yet.
    pub fn of(ground: T, worlds: Vec<ClusterSnapshot>) -> Self {
        Self {
            ground,
            built: Vec::new(),
            edits: Vec::new(),
            worlds,
            weather: Weather::default(),
        }
    }
}

/// What an edit does, with its number.
type Apply<T> = dyn Fn(&mut T, usize) + Send + Sync;

/// Something that another client of the cloud does.
pub struct Edit<T> {
    /// Its name; unique.
    pub name: String,
    apply: Arc<Apply<T>>,
}

impl<T> Edit<T> {
    /// An edit. Its number chooses among the objects that it may concern; it does nothing if there is none.
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
    (built, edits, worlds, stays, weather()).prop_map(move |(built, edits, mut worlds, stays, weather)| {
        if let (true, Some((last, _)), Some(first)) = (stays, built.last(), worlds.first_mut()) {
            first.clone_from(last);
        }
        Case {
            ground: ground.clone(),
            built,
            edits,
            worlds,
            weather,
        }
    })
}
