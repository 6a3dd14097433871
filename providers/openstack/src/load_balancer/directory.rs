//! What there is, by name: which load balancer is whose.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::load_balancer::{ClusterView, Marks, Ownership, ServiceId, ServiceView};

use super::{annotations as note, key::Key, names};

/// What the listings show.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Directory {
    /// Load balancers that are there to stay, by id.
    pub(crate) balancers: BTreeMap<String, Entry>,
    /// Names of the security groups that were made for Services.
    pub(crate) groups: BTreeSet<String>,
}

/// A load balancer in the [`Directory`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
}

impl Directory {
    fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a String> {
        let all = self.balancers.iter();
        all.filter(move |(_, entry)| entry.name == name).map(|(id, _)| id)
    }

    /// The only one that bears our mark and was made for the Service when the cluster had another name.
    fn former(&self, service: &ServiceId, marks: &Marks) -> Option<Key> {
        let mut all = self.balancers.iter().filter(|(_, entry)| {
            let tags = entry.tags.iter().map(String::as_str);
            names::is_tag_of(&entry.name, service) && marks.judge(tags) == Ownership::Ours
        });
        let (id, _) = all.next()?;
        all.next().is_none().then(|| Key::Balancer(id.clone()))
    }

    /// The only one with this name.
    fn only(&self, name: &str) -> Option<Key> {
        let mut ids = self.named(name);
        let id = ids.next()?;
        ids.next().is_none().then(|| Key::Balancer(id.clone()))
    }

    /// The load balancer of this Service, or the one that is to be made.
    pub(super) fn balancer_of(&self, service: &ServiceView, cluster: &ClusterView) -> Key {
        let name = names::load_balancer(&cluster.name, &service.id);
        let by_name = || {
            if self.named(&name).next().is_some() {
                return self.only(&name);
            }
            self.only(&names::legacy_load_balancer(&service.id))
                .or_else(|| self.former(&service.id, &cluster.marks))
        };
        let given = service.annotation(note::LOAD_BALANCER_ID);
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            return by_name().unwrap_or(Key::New(name));
        };
        if self.balancers.contains_key(given) {
            return Key::Balancer(given.to_owned());
        }
        // The id may be that of one in whose place we made another.
        let replaced = service
            .annotation(note::LOAD_BALANCER_ADDRESS)
            .and_then(|_| by_name());
        self.only(given)
            .or(replaced)
            .unwrap_or_else(|| Key::Balancer(given.to_owned()))
    }
}
