//! Server records and the indices behind Nova's listings.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;

use super::Flavor;
use crate::openstack::spec::AddressSpec;

/// A server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) project_id: String,
    pub(crate) user_id: String,
    pub(crate) status: String,
    pub(crate) flavor: Arc<Flavor>,
    pub(crate) availability_zone: String,
    pub(crate) cell: String,
    pub(crate) host_id: String,
    pub(crate) image_id: String,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) access_ipv4: Option<Ipv4Addr>,
    pub(crate) access_ipv6: Option<Ipv6Addr>,
    pub(crate) addresses: Option<BTreeMap<String, Vec<AddressSpec>>>,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
    pub(crate) launched: Option<Timestamp>,
    pub(crate) deleted: Option<Timestamp>,
    pub(crate) ports: Vec<String>,
}

impl Server {
    /// Its position in listings.
    pub(crate) fn age_key(&self) -> AgeKey {
        (Reverse(self.created.as_second()), self.id.clone())
    }
}

/// Nova's order of listings: newest first, and by id within a second.
pub(crate) type AgeKey = (Reverse<i64>, String);

/// The statuses of servers, with the states of the virtual machine and its power that belong to them.
const STATUSES: &[(&str, &str, u8)] = &[
    ("ACTIVE", "active", 1),
    ("BUILD", "building", 0),
    ("DELETED", "deleted", 0),
    ("ERROR", "error", 0),
    ("HARD_REBOOT", "active", 1),
    ("MIGRATING", "active", 1),
    ("PASSWORD", "active", 1),
    ("PAUSED", "paused", 3),
    ("REBOOT", "active", 1),
    ("REBUILD", "active", 1),
    ("RESCUE", "rescued", 1),
    ("RESIZE", "active", 1),
    ("REVERT_RESIZE", "resized", 1),
    ("SHELVED", "shelved", 4),
    ("SHELVED_OFFLOADED", "shelved_offloaded", 4),
    ("SHUTOFF", "stopped", 4),
    ("SOFT_DELETED", "soft-delete", 1),
    ("SUSPENDED", "suspended", 4),
    ("VERIFY_RESIZE", "resized", 1),
];

fn find_status(status: &str) -> Option<&'static (&'static str, &'static str, u8)> {
    STATUSES.iter().find(|(name, ..)| *name == status)
}

/// Whether Nova has the status.
pub(crate) fn is_status(status: &str) -> bool {
    find_status(status).is_some()
}

/// The power state of a server by its status.
pub(crate) fn power_state_of(status: &str) -> u8 {
    find_status(status).map_or(0, |(.., power)| *power)
}

/// The state of a server's virtual machine by its status.
pub(crate) fn vm_state_of(status: &str) -> &'static str {
    find_status(status).map_or("active", |(_, vm_state, _)| vm_state)
}

/// All servers of a region, deleted ones included, with their indices.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerIndex {
    by_id: HashMap<String, Arc<Server>>,
    by_project: HashMap<String, BTreeSet<AgeKey>>,
    /// Lower-case names: the database ignores case.
    by_name: HashMap<String, BTreeSet<AgeKey>>,
}

impl ServerIndex {
    pub(crate) fn get(&self, id: &str) -> Option<&Arc<Server>> {
        self.by_id.get(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.by_id.values()
    }

    pub(crate) fn insert(&mut self, server: Server) {
        let key = server.age_key();
        self.by_project.entry(server.project_id.clone()).or_default().insert(key.clone());
        self.by_name.entry(server.name.to_lowercase()).or_default().insert(key);
        self.by_id.insert(server.id.clone(), Arc::new(server));
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<Arc<Server>> {
        let server = self.by_id.remove(id)?;
        let key = server.age_key();
        remove_from(&mut self.by_project, &server.project_id, &key);
        remove_from(&mut self.by_name, &server.name.to_lowercase(), &key);
        Some(server)
    }

    /// Changes a server, if it exists. Its creation time and project never change.
    pub(crate) fn change(&mut self, id: &str, change: impl FnOnce(&mut Server)) {
        let Some(server) = self.by_id.get_mut(id) else {
            return;
        };
        let old_name = server.name.clone();
        let server = Arc::make_mut(server);
        change(server);
        if server.name != old_name {
            let (key, name) = (server.age_key(), server.name.to_lowercase());
            remove_from(&mut self.by_name, &old_name.to_lowercase(), &key);
            self.by_name.entry(name).or_default().insert(key);
        }
    }

    /// Servers of a project, or with exactly this name in any case, in listing order, after a marker.
    pub(crate) fn newest_first<'a>(
        &'a self,
        project: &str,
        name: Option<&str>,
        after: Option<&AgeKey>,
    ) -> impl Iterator<Item = &'a Arc<Server>> + use<'a> {
        let index = match name {
            Some(name) => self.by_name.get(&name.to_lowercase()),
            None => self.by_project.get(project),
        };
        let start = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        let keys = index.into_iter();
        keys.flat_map(move |index| index.range((start.clone(), Bound::Unbounded)))
            .filter_map(|(_, id)| self.by_id.get(id))
    }
}

fn remove_from(index: &mut HashMap<String, BTreeSet<AgeKey>>, key: &str, entry: &AgeKey) {
    if let Some(set) = index.get_mut(key) {
        set.remove(entry);
        if set.is_empty() {
            index.remove(key);
        }
    }
}
