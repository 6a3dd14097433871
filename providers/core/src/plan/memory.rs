//! What the engine remembers of Services between passes. Everything in it can be found out anew: after a restart it is
//! empty, and the first pass over each part fills it without a write.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::model::{PartModel, Told};
use crate::load_balancer::{Effects, ServiceId, ServiceView};

/// What is known of all Services.
pub(super) struct Memory<M: PartModel> {
    services: HashMap<ServiceId, Known<M>>,
    /// Keys that a create replaced, until the listings show the new ones.
    aliases: HashMap<M::Key, M::Key>,
    /// Grows whenever a key is replaced.
    pub(super) names: u64,
    /// Grows whenever a pass over another part may come to something else than before.
    pub(super) version: u64,
}

struct Known<M: PartModel> {
    /// What its parts said.
    told: BTreeMap<M::Key, Told<M::Facts>>,
    /// Parts that do what it asked for when it looked like this.
    served: BTreeMap<M::Key, Arc<ServiceView>>,
    /// Parts that it has left.
    left: BTreeSet<M::Key>,
    /// What the parts that it left say about the Service object.
    parting: Effects,
}

impl<M: PartModel> Default for Known<M> {
    fn default() -> Self {
        Self {
            told: BTreeMap::new(),
            served: BTreeMap::new(),
            left: BTreeSet::new(),
            parting: Effects::default(),
        }
    }
}

impl<M: PartModel> Default for Memory<M> {
    fn default() -> Self {
        Self {
            services: HashMap::new(),
            aliases: HashMap::new(),
            names: 0,
            version: 0,
        }
    }
}

/// What was new in what a part told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    /// It did not serve the Service as it is now before.
    pub(super) serves: bool,
    /// It tells other facts than before.
    pub(super) facts: bool,
}

impl<M: PartModel> Memory<M> {
    /// The key that stands for this one now.
    pub(super) fn current(&self, key: &M::Key) -> M::Key {
        self.aliases.get(key).unwrap_or(key).clone()
    }

    /// From now on `old` means `new`.
    pub(super) fn rename(&mut self, old: &M::Key, new: &M::Key) {
        self.names += 1;
        self.version += 1;
        self.aliases.insert(old.clone(), new.clone());
        // No chains: whatever meant the old key means the new one.
        for target in self.aliases.values_mut() {
            if target == old {
                target.clone_from(new);
            }
        }
        self.aliases.retain(|from, to| from != to);
        for known in self.services.values_mut() {
            if let Some(told) = known.told.remove(old) {
                known.told.insert(new.clone(), told);
            }
            if let Some(view) = known.served.remove(old) {
                known.served.insert(new.clone(), view);
            }
        }
    }

    /// The listings show these keys: the names that stood for them are read from the listings again.
    pub(super) fn listed(&mut self, keys: &HashSet<M::Key>) {
        let before = self.aliases.len();
        self.aliases.retain(|_, to| !keys.contains(to));
        if self.aliases.len() != before {
            self.names += 1;
        }
    }

    /// Forgets Services that are no more.
    pub(super) fn retain(&mut self, exists: impl Fn(&ServiceId) -> bool) {
        self.services.retain(|id, _| exists(id));
    }

    pub(super) fn told(&self, id: &ServiceId, key: &M::Key) -> Option<&Told<M::Facts>> {
        self.services.get(id)?.told.get(key)
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

    /// It joins this part (again).
    pub(super) fn joins(&mut self, id: &ServiceId, key: &M::Key) {
        if let Some(known) = self.services.get_mut(id)
            && known.left.remove(key)
        {
            self.version += 1;
        }
    }

    /// A part said something; `serves`: it does all that the Service asks. `later`: the parts that listen.
    pub(super) fn tell(
        &mut self,
        view: &Arc<ServiceView>,
        key: &M::Key,
        told: Told<M::Facts>,
        serves: bool,
        later: &[M::Key],
    ) -> News {
        let known = self.services.entry(view.id.clone()).or_default();
        let news = News {
            serves: serves
                && !known
                    .served
                    .get(key)
                    .is_some_and(|served| served.asks_the_same(view)),
            facts: known
                .told
                .get(key)
                .is_none_or(|before| before.facts != told.facts),
        };
        known.told.insert(key.clone(), told);
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
    pub(super) fn silence(&mut self, id: &ServiceId, key: &M::Key) {
        if let Some(known) = self.services.get_mut(id)
            && (known.told.remove(key).is_some() | known.served.remove(key).is_some())
        {
            self.version += 1;
        }
    }

    /// It has left this part, which says this about the Service object. Whether that is news.
    pub(super) fn leave(&mut self, id: &ServiceId, key: &M::Key, parting: Option<&Effects>) -> bool {
        let known = self.services.entry(id.clone()).or_default();
        known.told.remove(key);
        known.served.remove(key);
        if let Some(effects) = parting {
            known.parting.merge(effects);
        }
        let news = known.left.insert(key.clone());
        self.version += u64::from(news);
        news
    }

    /// What all parts together say about the Service object: those it left, then those it has, in order.
    pub(super) fn effects(&self, id: &ServiceId, joins: &[M::Key]) -> Effects {
        let Some(known) = self.services.get(id) else {
            return Effects::default();
        };
        let mut effects = known.parting.clone();
        for told in joins.iter().filter_map(|key| known.told.get(key)) {
            effects.merge(&told.effects);
        }
        effects
    }
}
