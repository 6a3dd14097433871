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
    pub(crate) task_state: Option<String>,
    pub(crate) power_state: u8,
    pub(crate) flavor: Arc<Flavor>,
    pub(crate) availability_zone: String,
    pub(crate) cell: String,
    pub(crate) host: String,
    pub(crate) host_id: String,
    pub(crate) image_id: String,
    pub(crate) reservation_id: String,
    pub(crate) key_name: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) tags: Vec<String>,
    pub(crate) access_ipv4: Option<Ipv4Addr>,
    pub(crate) access_ipv6: Option<Ipv6Addr>,
    pub(crate) addresses: Option<BTreeMap<String, Vec<AddressSpec>>>,
    pub(crate) fault: Option<String>,
    pub(crate) created: Timestamp,
    pub(crate) updated: Timestamp,
    pub(crate) launched: Option<Timestamp>,
    pub(crate) deleted: Option<Timestamp>,
    pub(crate) visible: Timestamp,
    pub(crate) ports: Vec<String>,
}

impl Server {
    /// The status that Nova shows.
    pub(crate) fn shown_status(&self) -> &str {
        if self.deleted.is_some() {
            "DELETED"
        } else {
            &self.status
        }
    }

    /// The host name that Nova makes of the name.
    pub(crate) fn hostname(&self) -> String {
        let cut: String = self
            .name
            .chars()
            .filter(|c| u32::from(*c) < 0x100)
            .take(63)
            .collect();
        let dashed = cut.replace([' ', '_', '.'], "-");
        let kept: String = dashed
            .chars()
            .filter(|c| c.is_alphanumeric() || *c == '-')
            .collect();
        let name = kept.to_lowercase().trim_matches('-').to_owned();
        if name.is_empty() {
            format!("Server-{}", self.id)
        } else {
            name
        }
    }

    fn age_key(&self) -> AgeKey {
        (Reverse(self.created.as_second()), self.id.clone())
    }
}

/// Nova's order of listings: newest first, and by id within a second.
pub(crate) type AgeKey = (Reverse<i64>, String);

/// Status, virtual machine state and task states behind it (empty: any), usual power state.
const STATUSES: &[(&str, &str, &[&str], u8)] = &[
    ("ACTIVE", "active", &[], 1),
    ("BUILD", "building", &[], 0),
    ("DELETED", "deleted", &[], 0),
    ("ERROR", "error", &[], 0),
    (
        "HARD_REBOOT",
        "active",
        &["rebooting_hard", "reboot_pending_hard", "reboot_started_hard"],
        1,
    ),
    ("MIGRATING", "active", &["migrating"], 1),
    ("PASSWORD", "active", &["updating_password"], 1),
    ("PAUSED", "paused", &[], 3),
    (
        "REBOOT",
        "active",
        &["rebooting", "reboot_pending", "reboot_started"],
        1,
    ),
    (
        "REBUILD",
        "active",
        &["rebuilding", "rebuild_block_device_mapping", "rebuild_spawning"],
        1,
    ),
    ("RESCUE", "rescued", &[], 1),
    (
        "RESIZE",
        "active",
        &[
            "resize_prep",
            "resize_migrating",
            "resize_migrated",
            "resize_finish",
        ],
        1,
    ),
    ("REVERT_RESIZE", "resized", &["resize_reverting"], 1),
    ("SHELVED", "shelved", &[], 4),
    ("SHELVED_OFFLOADED", "shelved_offloaded", &[], 4),
    ("SHUTOFF", "stopped", &[], 4),
    ("SOFT_DELETED", "soft-delete", &[], 1),
    ("SUSPENDED", "suspended", &[], 4),
    ("VERIFY_RESIZE", "resized", &[], 1),
];

fn find_status(status: &str) -> Option<&'static (&'static str, &'static str, &'static [&'static str], u8)> {
    STATUSES.iter().find(|(name, ..)| *name == status)
}

/// Whether Nova has such a status. Filters may write it in any case; records may not.
pub(crate) fn is_status(status: &str) -> bool {
    find_status(status).is_some()
}

/// The power state that usually goes with a status.
pub(crate) fn power_state_of(status: &str) -> u8 {
    find_status(status).map_or(0, |(.., power)| *power)
}

/// The virtual machine state behind a status.
pub(crate) fn vm_state_of(status: &str) -> &'static str {
    find_status(status).map_or("active", |(_, vm_state, ..)| vm_state)
}

/// The task states behind a status; the first is what a server with that status shows.
pub(crate) fn task_states(status: &str) -> &'static [&'static str] {
    find_status(status).map_or(&[], |(_, _, tasks, _)| tasks)
}

/// All servers of a region, deleted ones included, with their indices.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerIndex {
    by_id: HashMap<String, Arc<Server>>,
    by_age: BTreeSet<AgeKey>,
    by_project: HashMap<String, BTreeSet<AgeKey>>,
    /// Lower-case names: the database compares without regard to case.
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
        self.by_age.insert(key.clone());
        self.by_project
            .entry(server.project_id.clone())
            .or_default()
            .insert(key.clone());
        self.by_name
            .entry(server.name.to_lowercase())
            .or_default()
            .insert(key);
        self.by_id.insert(server.id.clone(), Arc::new(server));
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<Arc<Server>> {
        let server = self.by_id.remove(id)?;
        let key = server.age_key();
        self.by_age.remove(&key);
        remove_from(&mut self.by_project, &server.project_id, &key);
        remove_from(&mut self.by_name, &server.name.to_lowercase(), &key);
        Some(server)
    }

    /// Changes a server, if there is one with this id. Its creation time and project never change.
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

    /// Servers in listing order, of one project or all, after a marker.
    pub(crate) fn newest_first<'a>(
        &'a self,
        project: Option<&str>,
        after: Option<&AgeKey>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Server>> + 'a> {
        let index = match project {
            None => Some(&self.by_age),
            Some(project) => self.by_project.get(project),
        };
        let Some(index) = index else {
            return Box::new(std::iter::empty());
        };
        let start = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        Box::new(
            index
                .range((start, Bound::Unbounded))
                .filter_map(|(_, id)| self.by_id.get(id)),
        )
    }

    /// Servers with exactly this name, in any case, in listing order, after a marker.
    pub(crate) fn named<'a>(
        &'a self,
        name: &str,
        after: Option<&AgeKey>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Server>> + 'a> {
        let Some(index) = self.by_name.get(&name.to_lowercase()) else {
            return Box::new(std::iter::empty());
        };
        let start = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        Box::new(
            index
                .range((start, Bound::Unbounded))
                .filter_map(|(_, id)| self.by_id.get(id)),
        )
    }

    /// The position of a server in the listing order.
    pub(crate) fn position(&self, id: &str) -> Option<AgeKey> {
        self.by_id.get(id).map(|server| server.age_key())
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
