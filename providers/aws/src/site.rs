//! The location of the cluster: region and VPC. The cluster's id, and the tags of its resources.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use ccm_core::{Error, ErrorKind, FlagValues, Priority, Result, error::accept};

use crate::{
    ALLOW_UNTAGGED,
    client::{Api, accepted, metadata::INSTANCE_ID},
    config::Config,
};

/// Tags of a resource.
pub(crate) type Tags = BTreeMap<String, String>;

/// `kubernetes.io/cluster/<id>` with [`OWNED`] or `shared`.
const PREFIX: &str = "kubernetes.io/cluster/";
/// The legacy tag of older clusters.
pub(crate) const LEGACY: &str = "KubernetesCluster";
/// The tag value of resources that are deleted with the cluster.
pub(crate) const OWNED: &str = "owned";
/// The tag with `<namespace>/<name>` of the Service on load balancers, target groups and listeners.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Whether a resource belongs to any cluster.
pub(crate) fn has_any_cluster(tags: &Tags) -> bool {
    tags.keys().any(|key| key.starts_with(PREFIX))
}

/// The tags of the cluster's resources.
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
        if self.id.is_empty() {
            return None;
        }
        Some(format!("{PREFIX}{}", self.id))
    }

    /// Whether a resource belongs to the cluster, alone or shared.
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

    /// The tags of a new resource of the cluster alone: the user's, and the cluster's, which take precedence.
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
        let legacy = tags.get(LEGACY).map(String::as_str);
        let named = tags.keys().filter_map(|key| key.strip_prefix(PREFIX));
        let unique: BTreeSet<&str> = named.chain(legacy).collect();
        let ids: Vec<_> = unique.into_iter().collect();
        if ids.len() > 1 {
            let text = format!(
                "the tags of this instance name several clusters: {}; keep one, or set [Global] KubernetesClusterID",
                ids.join(", ")
            );
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(Self {
            id: ids.concat(),
            legacy: legacy.is_some(),
        })
    }
}

/// The location of the cluster. Determined once, at the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site {
    /// The region.
    pub(crate) region: String,
    /// The VPC.
    pub(crate) vpc: String,
    /// The subnet for load balancers if no other qualifies.
    pub(crate) subnet: Option<String>,
    /// The cluster's id and tags.
    pub(crate) cluster: Cluster,
}

/// The text in Events and the log.
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {}, VPC {}", self.region, self.vpc)?;
        match self.cluster.id.as_str() {
            "" => f.write_str(", no cluster id"),
            id => write!(f, ", cluster {id:?}"),
        }
    }
}

impl Site {
    /// Determines region, VPC and cluster from the config, or from the instance that this program runs on. In both cases AWS
    /// gets a request, which proves that it accepts the credentials.
    ///
    /// # Errors
    ///
    /// AWS cannot be reached or refuses, or the cluster id is unknown.
    pub(crate) async fn find(api: &Api, config: &Config, flags: &FlagValues) -> Result<Self> {
        let client = api.at(Priority::User);
        let mut site = Self {
            region: api.region().to_owned(),
            subnet: config.subnet.clone(),
            cluster: config.cluster.clone(),
            vpc: config.vpc.clone().unwrap_or_default(),
        };
        if !site.vpc.is_empty() && !site.cluster.id.is_empty() {
            return accepted(client.zones().await).map(|()| site);
        }
        let id = api.metadata().get(INSTANCE_ID).await?;
        let found = client.instances_by_id(std::slice::from_ref(&id)).await;
        let Some(own) = accept(found, ErrorKind::NotFound, Vec::new())?.pop() else {
            let region = &site.region;
            let text =
                format!("instance {id}, which this program runs on, was not found; check region {region}");
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        if site.vpc.is_empty() {
            site.vpc = own.vpc;
            if site.subnet.is_none() && !own.subnet.is_empty() {
                site.subnet = Some(own.subnet);
            }
        }
        if site.cluster.id.is_empty() {
            site.cluster = Cluster::of_instance(&own.tags)?;
        }
        if site.cluster.id.is_empty() && !flags.boolean(&ALLOW_UNTAGGED) {
            let text = format!(
                "cluster id not found: tag instance {id} with kubernetes.io/cluster/<id>, set [Global] \
                 KubernetesClusterID, or set --allow-untagged-cloud"
            );
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        if site.vpc.is_empty() {
            let text = format!("instance {id} is not in a VPC; set [Global] VPC");
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(site)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub(crate) fn tags(tags: &[(&str, &str)]) -> Tags {
        tags.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn the_cluster_is_found_in_the_tags_of_the_instance() {
        let found = |given: &[(&str, &str)]| {
            let found = Cluster::of_instance(&tags(given))?;
            Ok::<_, Error>((found.id, found.legacy))
        };
        let (ours, legacy) = (("kubernetes.io/cluster/a", "owned"), ("KubernetesCluster", "a"));
        assert_eq!(found(&[("Name", "cp")]).unwrap(), (String::new(), false));
        assert_eq!(found(&[ours]).unwrap(), ("a".into(), false));
        assert_eq!(found(&[legacy]).unwrap(), ("a".into(), true));
        assert_eq!(found(&[legacy, ours]).unwrap(), ("a".into(), true));
        for two in [
            [("KubernetesCluster", "b"), ours],
            [("kubernetes.io/cluster/b", "shared"), ours],
        ] {
            let error = found(&two).unwrap_err();
            assert!(error.message().contains("several clusters: a, b"), "{error}");
        }
    }

    #[test]
    fn tags_identify_the_cluster_of_a_resource() {
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
            assert_eq!((cluster.has(&given), cluster.owns(&given)), (has, owns), "{given:?}");
            let any = (untagged.has(&given), untagged.owns(&given));
            assert_eq!(any, (true, false), "{given:?}");
        }
        let created = cluster.tags(&tags(&[("team", "x"), ("kubernetes.io/cluster/a", "mine")]));
        let expected = [
            ("team", "x"),
            ("kubernetes.io/cluster/a", "owned"),
            ("KubernetesCluster", "a"),
        ];
        assert_eq!(created, tags(&expected));
        assert!(has_any_cluster(&created) && !has_any_cluster(&tags(&[("KubernetesCluster", "a")])));
    }
}
