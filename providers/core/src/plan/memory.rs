//! What the engine remembers of Services between passes. Everything in it can be found out anew: after a restart it is
//! empty, and the first pass over each part fills it without a write.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::model::{PartModel, PartOutput};
use crate::load_balancer::{Effects, ServiceId, ServiceView};

/// What is known of all Services.
pub(super) struct Memory<M: PartModel> {
    services: HashMap<ServiceId, Known<M>>,
    /// Keys that a create replaced, until the listings show the new ones.
    aliases: HashMap<M::Key, Alias<M::Key>>,
    /// Surveys are numbered in the order in which they begin to read.
    surveys: u64,
    /// Those that have not ended.
    reading: BTreeSet<u64>,
    /// Grows whenever a survey would come out otherwise: a key is replaced, a part is left.
    pub(super) names: u64,
    /// Grows whenever a pass over another part may come to something else than before.
    pub(super) version: u64,
}

/// What a key that was replaced stands for.
struct Alias<K> {
    now: K,
    /// Surveys from this one on see the new key in the listings. Those that began before may have read listings that do
    /// not show it yet: for them the old key still means the new one.
    shown: Option<u64>,
}

/// A Service that was in no world for this long is forgotten. Passes see the world as it was when they were begun: that a
/// Service is not in one of them may mean that it came later.
const FORGOTTEN: Duration = Duration::from_secs(600);

struct Known<M: PartModel> {
    /// When it was last in the world of a survey, or in a pass.
    seen: Instant,
    /// What its parts said.
    output: BTreeMap<M::Key, PartOutput<M::Facts>>,
    /// Parts that do what it asked for when it looked like this.
    served: BTreeMap<M::Key, Arc<ServiceView>>,
    /// Parts that it has left.
    left: BTreeSet<M::Key>,
    /// What the parts that it left say about the Service object.
    last_effects: Effects,
    /// The parts that it leaves since it wants no load balancer any more. What is deleted on the way is named otherwise
    /// afterwards (by its name, no more by its id), and need not be left once more under that name.
    leaves: Vec<M::Key>,
}

impl<M: PartModel> Default for Known<M> {
    fn default() -> Self {
        Self {
            seen: Instant::now(),
            output: BTreeMap::new(),
            served: BTreeMap::new(),
            left: BTreeSet::new(),
            last_effects: Effects::default(),
            leaves: Vec::new(),
        }
    }
}

impl<M: PartModel> Default for Memory<M> {
    fn default() -> Self {
        Self {
            services: HashMap::new(),
            aliases: HashMap::new(),
            surveys: 0,
            reading: BTreeSet::new(),
            names: 0,
            version: 0,
        }
    }
}

/// What was new in what a part told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    /// It did not serve the Service as it is now before.
    pub(super) serves: bool,
    /// It tells other facts than before.
    pub(super) facts: bool,
}

impl<M: PartModel> Memory<M> {
    /// The key that stands for this one now.
    pub(super) fn current(&self, key: &M::Key) -> M::Key {
        self.aliases.get(key).map_or(key, |alias| &alias.now).clone()
    }

    /// The key that stands for this one in a survey.
    pub(super) fn current_in(&self, discovery: u64, key: &M::Key) -> M::Key {
        let alias = self.aliases.get(key);
        let alias = alias.filter(|alias| alias.shown.is_none_or(|shown| discovery < shown));
        alias.map_or(key, |alias| &alias.now).clone()
    }

    /// A survey begins to read; its number.
    pub(super) fn survey_begins(&mut self) -> u64 {
        self.surveys += 1;
        self.reading.insert(self.surveys);
        self.surveys
    }

    /// It has what it read.
    pub(super) fn survey_ended(&mut self, discovery: u64) {
        self.reading.remove(&discovery);
        let oldest = self.reading.first().copied().unwrap_or(u64::MAX);
        self.aliases
            .retain(|_, alias| alias.shown.is_none_or(|shown| oldest < shown));
    }

    /// From now on `old` means `new`.
    pub(super) fn rename(&mut self, old: &M::Key, new: &M::Key) {
        self.names += 1;
        self.version += 1;
        // No chains: whatever meant the old key means the new one.
        for alias in self.aliases.values_mut().filter(|alias| alias.now == *old) {
            alias.now.clone_from(new);
        }
        let alias = Alias {
            now: new.clone(),
            shown: None,
        };
        self.aliases.insert(old.clone(), alias);
        self.aliases.retain(|from, alias| *from != alias.now);
        for known in self.services.values_mut() {
            if let Some(output) = known.output.remove(old) {
                known.output.insert(new.clone(), output);
            }
            if let Some(view) = known.served.remove(old) {
                known.served.insert(new.clone(), view);
            }
            for key in known.leaves.iter_mut().filter(|key| *key == old) {
                key.clone_from(new);
            }
        }
    }

    /// The listings show these keys: from the next survey on, the names that stood for them are read from the listings
    /// again.
    pub(super) fn listed(&mut self, keys: &HashSet<M::Key>) {
        let next = self.surveys + 1;
        for alias in self.aliases.values_mut() {
            if alias.shown.is_none() && keys.contains(&alias.now) {
                alias.shown = Some(next);
                self.names += 1;
            }
        }
    }

    /// Forgets Services that are no more. `exists`: is in the world of a survey, maybe not of the newest one.
    pub(super) fn retain(&mut self, exists: impl Fn(&ServiceId) -> bool) {
        let now = Instant::now();
        self.services.retain(|id, known| {
            if exists(id) {
                known.seen = now;
            }
            now.saturating_duration_since(known.seen) < FORGOTTEN
        });
    }

    pub(super) fn output(&self, id: &ServiceId, key: &M::Key) -> Option<&PartOutput<M::Facts>> {
        self.services.get(id)?.output.get(key)
    }

    pub(super) fn has_served(&self, id: &ServiceId, key: &M::Key) -> bool {
        self.services
            .get(id)
            .is_some_and(|known| known.served.contains_key(key))
    }

    pub(super) fn serves_now(&self, view: &ServiceView, key: &M::Key) -> bool {
        self.services
            .get(&view.id)
            .and_then(|known| known.served.get(key))
            .is_some_and(|served| served.asks_the_same(view))
    }

    pub(super) fn has_left(&self, id: &ServiceId, key: &M::Key) -> bool {
        self.services
            .get(id)
            .is_some_and(|known| known.left.contains(key))
    }

    /// It wants a load balancer (again).
    pub(super) fn stays(&mut self, id: &ServiceId) {
        if let Some(known) = self.services.get_mut(id) {
            known.leaves.clear();
        }
    }

    /// The parts that a Service leaves that wants no load balancer: those that it left or leaves already, or `all` if
    /// it only begins, and beside them what still bears its mark.
    pub(super) fn leaves(&mut self, id: &ServiceId, all: Vec<M::Key>, tagged: &[M::Key]) -> Vec<M::Key> {
        if all.is_empty() {
            return all;
        }
        let known = self.services.entry(id.clone()).or_default();
        if known.leaves.is_empty() {
            known.leaves.clone_from(&all);
            return all;
        }
        let new = tagged.iter().filter(|key| !known.leaves.contains(key));
        new.chain(&known.leaves).cloned().collect()
    }

    /// It joins this part (again).
    pub(super) fn joins(&mut self, id: &ServiceId, key: &M::Key) {
        if let Some(known) = self.services.get_mut(id)
            && known.left.remove(key)
        {
            self.version += 1;
        }
    }

    /// A part said something; `serves`: it does all that the Service asks. `later`: the parts that listen.
    pub(super) fn record_output(
        &mut self,
        view: &Arc<ServiceView>,
        key: &M::Key,
        output: PartOutput<M::Facts>,
        serves: bool,
        later: &[M::Key],
    ) -> Changed {
        let known = self.services.entry(view.id.clone()).or_default();
        let news = Changed {
            serves: serves
                && !known
                    .served
                    .get(key)
                    .is_some_and(|served| served.asks_the_same(view)),
            facts: known
                .output
                .get(key)
                .is_none_or(|before| before.facts != output.facts),
        };
        known.output.insert(key.clone(), output);
        if serves {
            known.served.insert(key.clone(), Arc::clone(view));
        }
        if news.facts {
            // They served on what they knew before.
            for key in later {
                known.served.remove(key);
            }
        }
        if news.serves || news.facts {
            self.version += 1;
        }
        news
    }

    /// A part does not serve it any more.
    pub(super) fn withdraw_output(&mut self, id: &ServiceId, key: &M::Key) {
        if let Some(known) = self.services.get_mut(id)
            && (known.output.remove(key).is_some() | known.served.remove(key).is_some())
        {
            self.version += 1;
        }
    }

    /// It has left this part, which says this about the Service object. Whether that is news.
    pub(super) fn leave(&mut self, id: &ServiceId, key: &M::Key, last_effects: Option<&Effects>) -> bool {
        let known = self.services.entry(id.clone()).or_default();
        known.output.remove(key);
        known.served.remove(key);
        if let Some(effects) = last_effects {
            known.last_effects.merge(effects);
        }
        let news = known.left.insert(key.clone());
        self.names += u64::from(news);
        self.version += u64::from(news);
        news
    }

    /// What all parts together say about the Service object: those it left, then those it has, in order.
    pub(super) fn effects(&self, id: &ServiceId, joins: &[M::Key]) -> Effects {
        let Some(known) = self.services.get(id) else {
            return Effects::default();
        };
        let mut effects = known.last_effects.clone();
        for output in joins.iter().filter_map(|key| known.output.get(key)) {
            effects.merge(&output.effects);
        }
        effects
    }
}
