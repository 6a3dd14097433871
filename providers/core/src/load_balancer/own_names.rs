//! Ownership of objects of kinds that have no place for an ownership tag, by their names.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::{ServiceId, default_name};

/// The texts by which names show that an object is this cluster's: the UIDs of its Services, as they are or as
/// [`default_name`] has them, and the ID of the cluster by which a cloud's objects are named.
///
/// Everything else that looks alike may be another cluster's in the same project.
///
/// ```
/// use ccm_core::load_balancer::{NameOwner, OwnNames, ServiceId};
///
/// let web = ServiceId::new("shop", "web", "1f-2e");
/// let names = OwnNames::new([&web], Some("c0ffee"));
/// assert_eq!(names.owner("a1f2e-TCP-80"), NameOwner::Service(web.clone()));
/// assert_eq!(names.owner("POOL-1F-2E"), NameOwner::Service(web));
/// assert_eq!(names.owner("k8s-ig--c0ffee"), NameOwner::Cluster);
/// // A Service of another cluster, or one that does not exist any more.
/// assert_eq!(names.owner("a1f2e3-TCP-80"), NameOwner::Unproven);
/// ```
#[derive(Clone, Debug, Default)]
pub struct OwnNames {
    owners: HashMap<String, NameOwner>,
    /// The lengths of the texts.
    lengths: BTreeSet<usize>,
}

/// The owner of an object without an ownership tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameOwner {
    /// Its name contains the UID of this Service.
    Service(ServiceId),
    /// Its name contains the ID of the cluster.
    Cluster,
    /// Its name proves nothing: it is not changed.
    Unproven,
}

impl OwnNames {
    /// The names of these Services and of the cluster with this ID, if its objects are named by one.
    #[must_use]
    pub fn new<'a>(services: impl IntoIterator<Item = &'a ServiceId>, cluster_id: Option<&str>) -> Self {
        let mut names = Self::default();
        for service in services {
            for text in [default_name(service), service.uid.to_string()] {
                // `a` alone is the name for a Service without a UID.
                if !service.uid.is_empty() {
                    names.add(&text, NameOwner::Service(service.clone()));
                }
            }
        }
        if let Some(id) = cluster_id.filter(|id| !id.is_empty()) {
            names.add(id, NameOwner::Cluster);
        }
        names
    }

    fn add(&mut self, text: &str, owner: NameOwner) {
        self.lengths.insert(text.len());
        self.owners.insert(text.to_ascii_lowercase(), owner);
    }

    /// The owner of the object with this name: one of the texts stands in it, in any case, without letters and digits around it.
    #[must_use]
    pub fn owner(&self, name: &str) -> NameOwner {
        let name = name.to_ascii_lowercase();
        let is_letter = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = name.as_bytes();
        for length in self.lengths.iter().rev() {
            for start in 0..=name.len().saturating_sub(*length) {
                let end = start + length;
                let before = start.checked_sub(1).and_then(|before| bytes.get(before));
                if is_letter(before) || is_letter(bytes.get(end)) {
                    continue;
                }
                if let Some(owner) = name.get(start..end).and_then(|text| self.owners.get(text)) {
                    return owner.clone();
                }
            }
        }
        NameOwner::Unproven
    }

    /// Whether the object with this name is this cluster's.
    #[must_use]
    pub fn prove(&self, name: &str) -> bool {
        self.owner(name) != NameOwner::Unproven
    }
}

impl super::ClusterSnapshot {
    /// The names of the objects of all Services, and of the cluster with this ID.
    #[must_use]
    pub fn own_names(&self, cluster_id: Option<&str>) -> OwnNames {
        OwnNames::new(self.services.iter().map(|service: &Arc<_>| &service.id), cluster_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_uids_and_the_own_cluster_id_prove_ownership() {
        let one = ServiceId::new("n", "one", "8d1c9f00-1111-2222-3333-444455556666");
        let other = ServiceId::new("n", "other", "8d1c9f00-1111-2222-3333-444455557777");
        let names = OwnNames::new([&one], Some("deadbeef"));
        let service = NameOwner::Service(one.clone());
        for (name, expected) in [
            (default_name(&one), &service),
            (format!("k8s-fw-{}", default_name(&one)), &service),
            (format!("{}-TCP-80-Internet", default_name(&one).to_uppercase()), &service),
            (format!("pool-{}", one.uid), &service),
            (default_name(&other), &NameOwner::Unproven),
            (format!("{}0", default_name(&one)), &NameOwner::Unproven),
            ("k8s-ig--deadbeef".to_owned(), &NameOwner::Cluster),
            ("k8s-ig--deadbeef0".to_owned(), &NameOwner::Unproven),
            ("deadbee".to_owned(), &NameOwner::Unproven),
            ("ü8d1c9f00".to_owned(), &NameOwner::Unproven),
            (String::new(), &NameOwner::Unproven),
        ] {
            assert_eq!(names.owner(&name), *expected, "{name}");
        }
    }

    #[test]
    fn nothing_is_proven_without_services_and_an_id() {
        let nobody = ServiceId::new("n", "web", "");
        let names = OwnNames::new([&nobody], Some(""));
        for name in ["", "a", "web"] {
            assert!(!names.prove(name), "{name}");
        }
    }
}
