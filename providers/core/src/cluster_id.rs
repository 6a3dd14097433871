//! The ID by which a cloud's objects are named, kept in a ConfigMap of the cluster.
//!
//! Some clouds share the names of objects with another controller of the same cluster. Both read the ID from one ConfigMap; the first
//! one creates it.
//!
//! ```text
//!   ConfigMap  --->  framework  --- set --->  ClusterIdCell  --- get --->  provider
//!                    creates it, if it leads                               no writes without an ID
//! ```
//!
//! An ID never changes while a process runs: with another one, it would create all objects again under new names, and forget the old
//! ones. If the ConfigMap changes, is deleted or is malformed, [`ClusterIdCell::get`] fails until it has the ID again.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Error, ErrorKind, Result};

/// The ConfigMap with the ID of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterIdSource {
    /// Its namespace.
    pub namespace: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The keys with the ID. The first one that exists wins. A new ConfigMap has all of them.
    pub keys: &'static [&'static str],
    /// Why a text cannot be an ID, if it cannot.
    pub problem: fn(&str) -> Option<String>,
    /// A new ID.
    pub generate: fn() -> String,
}

impl ClusterIdSource {
    /// The ID in the data of the ConfigMap. `get`: the value of a key.
    ///
    /// # Errors
    /// The problem, in words that follow "the ConfigMap".
    pub fn read<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> Result<&'a str, String> {
        let Some((key, id)) = self.keys.iter().find_map(|key| Some((key, get(key)?))) else {
            return Err(format!("has none of the keys {}", self.keys.join(", ")));
        };
        match (self.problem)(id) {
            None => Ok(id),
            Some(problem) => Err(format!("has {id:?} in the key {key}, {problem}")),
        }
    }
}

/// The ID of the cluster, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum KnownId {
    /// It was not read yet.
    #[default]
    Unknown,
    /// It was read.
    Known(Arc<str>),
    /// It was read and is not there any more, or is another one. The text says why.
    Lost { first: Arc<str>, why: Arc<str> },
}

/// The ID of the cluster. Clones share it.
#[derive(Clone, Debug)]
pub struct ClusterIdCell {
    source: ClusterIdSource,
    known: Arc<RwLock<KnownId>>,
}

impl ClusterIdCell {
    /// The ID in this ConfigMap, which was not read yet.
    #[must_use]
    pub fn new(source: ClusterIdSource) -> Self {
        Self {
            source,
            known: Arc::default(),
        }
    }

    /// The ConfigMap.
    #[must_use]
    pub fn source(&self) -> &ClusterIdSource {
        &self.source
    }

    /// The ID.
    ///
    /// # Errors
    /// `Unavailable`: it was not read yet. `InvalidConfig`: the ConfigMap has lost it, or has another one now.
    pub fn get(&self) -> Result<Arc<str>> {
        let ClusterIdSource { namespace, name, .. } = self.source;
        match &*self.known.read() {
            KnownId::Known(id) => Ok(Arc::clone(id)),
            KnownId::Unknown => {
                let text = format!("the ID of the cluster is not known yet (ConfigMap {namespace}/{name})");
                Err(Error::new(ErrorKind::Unavailable, text))
            }
            KnownId::Lost { first, why } => {
                let text = format!(
                    "the ConfigMap {namespace}/{name} {why}; objects in the cloud are named by {first:?}, and are left unchanged \
                     until the ConfigMap has this ID again"
                );
                Err(Error::new(ErrorKind::InvalidConfig, text))
            }
        }
    }

    /// Sets what the ConfigMap has now: the ID, or the problem, in words that follow "the ConfigMap". A problem before the first ID
    /// changes nothing. Returns whether [`get`](Self::get) has another result now.
    pub fn set(&self, read: Result<&str, String>) -> bool {
        let mut known = self.known.write();
        let next = match (&*known, read) {
            (KnownId::Unknown, Err(_)) => KnownId::Unknown,
            (KnownId::Unknown, Ok(id)) => KnownId::Known(id.into()),
            (KnownId::Known(first) | KnownId::Lost { first, .. }, Ok(id)) if **first == *id => {
                KnownId::Known(Arc::clone(first))
            }
            (KnownId::Known(first) | KnownId::Lost { first, .. }, read) => KnownId::Lost {
                first: Arc::clone(first),
                why: match read {
                    Ok(id) => format!("has the ID {id:?} now").into(),
                    Err(problem) => problem.into(),
                },
            },
        };
        let is_new = *known != next;
        *known = next;
        is_new
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    const SOURCE: ClusterIdSource = ClusterIdSource {
        namespace: "kube-system",
        name: "cluster-id",
        keys: &["provider-id", "id"],
        problem: |id| id.is_empty().then(|| "which is empty".to_owned()),
        generate: || "new".to_owned(),
    };

    fn read(data: &[(&str, &'static str)]) -> Result<&'static str, String> {
        let data: BTreeMap<_, _> = data.iter().copied().collect();
        SOURCE.read(|key| data.get(key).copied())
    }

    #[test]
    fn the_first_key_that_exists_has_the_id() {
        assert_eq!(read(&[("id", "a"), ("provider-id", "b"), ("x", "c")]), Ok("b"));
        assert_eq!(read(&[("id", "a")]), Ok("a"));
        assert_eq!(read(&[("x", "c")]).unwrap_err(), "has none of the keys provider-id, id");
        let error = read(&[("id", "a"), ("provider-id", "")]).unwrap_err();
        assert_eq!(error, "has \"\" in the key provider-id, which is empty");
    }

    #[test]
    fn an_id_never_changes() {
        let cell = ClusterIdCell::new(SOURCE);
        assert_eq!(cell.get().unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(!cell.set(Err("does not exist".to_owned())));
        assert_eq!(cell.get().unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(cell.set(Ok("a")));
        assert_eq!(&*cell.get().unwrap(), "a");
        assert!(!cell.set(Ok("a")));
        for (now, text) in [
            (Ok("b"), "the ConfigMap kube-system/cluster-id has the ID \"b\" now; objects"),
            (Err("was deleted".to_owned()), "the ConfigMap kube-system/cluster-id was deleted; objects"),
        ] {
            assert!(cell.clone().set(now));
            let error = cell.get().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(
                error.message().starts_with(text) && error.message().contains("named by \"a\""),
                "{error}"
            );
        }
        assert!(cell.set(Ok("a")));
        assert_eq!(&*cell.get().unwrap(), "a");
    }
}
