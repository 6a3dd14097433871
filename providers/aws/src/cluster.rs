//! The cluster's id, and the tags by which resources belong to it.

use std::collections::BTreeMap;

use ccm_core::{Error, ErrorKind, Result};

/// Tags of a resource.
pub(crate) type Tags = BTreeMap<String, String>;

/// `kubernetes.io/cluster/<id>` with [`OWNED`] or `shared`.
const PREFIX: &str = "kubernetes.io/cluster/";
/// The tag of clusters from before that one.
pub(crate) const LEGACY: &str = "KubernetesCluster";
/// The value on what is deleted with the cluster.
pub(crate) const OWNED: &str = "owned";
/// The tag with `<namespace>/<name>` of the Service on load balancers, target groups and listeners.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Whether a resource belongs to a cluster, other than ours included.
pub(crate) fn has_any_cluster(tags: &Tags) -> bool {
    tags.keys().any(|key| key.starts_with(PREFIX))
}

/// How resources of the cluster are tagged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// The cluster's id. Empty with `--allow-untagged-cloud`: then every resource counts as the cluster's.
    pub(crate) id: String,
    /// Whether new resources get the legacy tag, too.
    pub(crate) legacy: bool,
}

impl Cluster {
    /// The key of the cluster's tag; `None` without an id.
    pub(crate) fn key(&self) -> Option<String> {
        (!self.id.is_empty()).then(|| format!("{PREFIX}{}", self.id))
    }

    /// The key of the tag that all resources of the cluster have; `None` if some may have the legacy one instead. There is no
    /// filter for either of two tags.
    pub(crate) fn common_key(&self) -> Option<String> {
        self.key().filter(|_| !self.legacy)
    }

    /// Whether a resource belongs to the cluster, also to others with it.
    pub(crate) fn has(&self, tags: &Tags) -> bool {
        match self.key() {
            None => true,
            Some(key) => tags.contains_key(&key) || self.has_legacy(tags),
        }
    }

    /// Whether a resource belongs to the cluster alone, so that it may be deleted with it.
    pub(crate) fn owns(&self, tags: &Tags) -> bool {
        let Some(key) = self.key() else {
            return false;
        };
        tags.get(&key).is_some_and(|value| value == OWNED) || self.has_legacy(tags)
    }

    fn has_legacy(&self, tags: &Tags) -> bool {
        tags.get(LEGACY).is_some_and(|id| *id == self.id)
    }

    /// The tags of a new resource that belongs to the cluster alone: those that the user asks for, and ours, which win.
    pub(crate) fn tags(&self, extra: &Tags) -> Tags {
        let mut tags = extra.clone();
        if let Some(key) = self.key() {
            if self.legacy {
                tags.insert(LEGACY.to_owned(), self.id.clone());
            }
            tags.insert(key, OWNED.to_owned());
        }
        tags
    }

    /// The cluster in the tags of an instance; without an id if it has no such tag.
    ///
    /// # Errors
    ///
    /// The tags name more than one cluster.
    pub(crate) fn of_instance(tags: &Tags) -> Result<Self> {
        let mut ids: Vec<&str> = tags.keys().filter_map(|key| key.strip_prefix(PREFIX)).collect();
        let legacy = tags.get(LEGACY).map(String::as_str);
        ids.extend(legacy);
        ids.sort_unstable();
        ids.dedup();
        match ids.as_slice() {
            [] => Ok(Self::default()),
            [id] => Ok(Self {
                id: (*id).to_owned(),
                legacy: legacy.is_some(),
            }),
            several => Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the tags of this instance name several clusters: {}; keep one, or set [Global] KubernetesClusterID",
                    several.join(", ")
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tags(tags: &[(&str, &str)]) -> Tags {
        tags.iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect()
    }

    #[test]
    fn the_cluster_is_found_in_the_tags_of_the_instance() {
        let found =
            |given: &[(&str, &str)]| Cluster::of_instance(&tags(given)).map(|found| (found.id, found.legacy));
        assert_eq!(found(&[("Name", "cp")]).unwrap(), (String::new(), false));
        assert_eq!(
            found(&[("kubernetes.io/cluster/a", "owned")]).unwrap(),
            ("a".into(), false)
        );
        assert_eq!(found(&[("KubernetesCluster", "a")]).unwrap(), ("a".into(), true));
        let both = [("KubernetesCluster", "a"), ("kubernetes.io/cluster/a", "owned")];
        assert_eq!(found(&both).unwrap(), ("a".into(), true));
        for two in [
            [("KubernetesCluster", "b"), ("kubernetes.io/cluster/a", "owned")],
            [
                ("kubernetes.io/cluster/b", "shared"),
                ("kubernetes.io/cluster/a", "owned"),
            ],
        ] {
            let error = found(&two).unwrap_err();
            assert!(error.message().contains("several clusters: a, b"), "{error}");
        }
    }

    #[test]
    fn tags_say_whose_a_resource_is() {
        let cluster = Cluster {
            id: "a".into(),
            legacy: true,
        };
        let untagged = Cluster::default();
        for (given, has, owns) in [
            (tags(&[("kubernetes.io/cluster/a", "owned")]), true, true),
            (tags(&[("kubernetes.io/cluster/a", "shared")]), true, false),
            (tags(&[("KubernetesCluster", "a")]), true, true),
            (tags(&[("kubernetes.io/cluster/b", "owned")]), false, false),
            (tags(&[("KubernetesCluster", "b")]), false, false),
            (tags(&[]), false, false),
        ] {
            assert_eq!(
                (cluster.has(&given), cluster.owns(&given)),
                (has, owns),
                "{given:?}"
            );
            assert_eq!(
                (untagged.has(&given), untagged.owns(&given)),
                (true, false),
                "{given:?}"
            );
        }
        let made = cluster.tags(&tags(&[("team", "x"), ("kubernetes.io/cluster/a", "mine")]));
        let expected = [
            ("team", "x"),
            ("kubernetes.io/cluster/a", "owned"),
            ("KubernetesCluster", "a"),
        ];
        assert_eq!(made, tags(&expected));
        assert!(has_any_cluster(&made) && !has_any_cluster(&tags(&[("KubernetesCluster", "a")])));
    }
}
