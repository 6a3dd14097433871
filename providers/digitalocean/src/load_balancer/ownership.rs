//! To which cluster a load balancer belongs.
//!
//! Public evidence disagrees about the tags of load balancers: the API may omit them, and a `PUT` may not change them. So no
//! decision needs a tag to be there or to be current. What a Service and its nodes show decides:
//!
//! | Evidence | Shows |
//! |---|---|
//! | the Service names the ID | a person or this program assigned the load balancer to the Service |
//! | the status of the Service has its address | it served the Service |
//! | its name has the UID of the Service | it was created for the Service |
//! | its droplets are nodes of the cluster | it serves the cluster; if none is a node, it serves others |
//! | its region or VPC is another one | it serves others |
//! | a tag of the cluster | this program created or changed it, perhaps before another cluster took it over |
//! | only a tag of another cluster | the other cluster has it, or had it before |

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::load_balancer::{ClusterTag, NodeSet, Ownership, OwnershipTag, ServiceView, default_name};
use serde_json::Value;

use super::{
    annotations,
    desired::{self, hostname},
    document::{Balancer, addresses, field, kind, region, tags},
};
use crate::instances::droplet_id;

/// The prefix of the tag with a cluster's ID (`DO_CLUSTER_ID`).
pub(crate) const CLUSTER_PREFIX: &str = "k8s:";

/// The tags that identify a cluster's load balancers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterTags {
    /// By the UID of `kube-system`.
    owner: OwnershipTag,
    /// `k8s:<cluster id>`.
    cluster: Option<String>,
}

impl ClusterTags {
    /// The tags of the cluster with this ID.
    pub(crate) fn new(owner: &OwnershipTag, cluster_id: Option<&str>) -> Self {
        Self {
            owner: owner.clone(),
            cluster: cluster_id.map(cluster_tag),
        }
    }

    /// The tags of this cluster's load balancers.
    pub(crate) fn own(&self) -> impl Iterator<Item = &str> {
        let owner = self.owner.for_create().map(ClusterTag::as_str);
        self.cluster.as_deref().into_iter().chain(owner)
    }

    /// Whether the load balancer has the tag of this cluster's `kube-system`, which proves ownership.
    pub(crate) fn owns(&self, balancer: &Balancer) -> bool {
        self.owner.ownership(tags(balancer)) == Ownership::Ours
    }

    /// The tag of another cluster, if the load balancer has one and lacks ours.
    pub(crate) fn foreign(&self, balancer: &Balancer) -> Option<String> {
        match self.owner.ownership(tags(balancer)) {
            Ownership::Ours => None,
            Ownership::Foreign(tag) => Some(tag.to_string()),
            Ownership::Adopted | Ownership::Unverified => {
                let own = self.cluster.as_deref()?;
                if tags(balancer).any(|tag| tag == own) {
                    return None;
                }
                tags(balancer).find(|tag| tag.starts_with(CLUSTER_PREFIX)).map(str::to_owned)
            }
        }
    }

    /// The tags of other clusters.
    pub(crate) fn others<'a>(&'a self, balancer: &'a Balancer) -> impl Iterator<Item = &'a str> {
        tags(balancer).filter(|tag| self.is_foreign(tag) && !self.is_own(tag))
    }

    fn is_own(&self, tag: &str) -> bool {
        self.own().any(|own| own == tag)
    }

    fn is_foreign(&self, tag: &str) -> bool {
        let of_other = self.owner.for_create().is_some() && tag.starts_with(ClusterTag::PREFIX);
        of_other || (self.cluster.is_some() && tag.starts_with(CLUSTER_PREFIX))
    }

    /// The tags of the load balancer after a write: ours are added, those of other clusters are removed.
    pub(crate) fn added_to(&self, balancer: &Balancer) -> Vec<String> {
        let mut seen = BTreeSet::new();
        tags(balancer)
            .filter(|tag| self.is_own(tag) || !self.is_foreign(tag))
            .chain(self.own())
            .filter(|tag| seen.insert(*tag))
            .map(str::to_owned)
            .collect()
    }
}

/// The droplets of all nodes. `by_name`: those of nodes without a provider ID.
pub(crate) fn droplets_of(nodes: &NodeSet, by_name: &BTreeMap<String, u64>) -> BTreeSet<u64> {
    nodes
        .all()
        .iter()
        .filter_map(|node| droplet_id(node.view.provider_id.as_deref()?).ok()?)
        .chain(by_name.values().copied())
        .collect()
}

/// Whether both texts are known and differ.
fn differs(have: &str, own: &str) -> bool {
    !have.is_empty() && !own.is_empty() && have != own
}

/// The tag with a cluster's ID.
pub(crate) fn cluster_tag(cluster_id: &str) -> String {
    format!("{CLUSTER_PREFIX}{cluster_id}")
}

/// Whether the Service names this load balancer by its ID.
pub(crate) fn names(service: &ServiceView, balancer: &Balancer) -> bool {
    service.annotation(annotations::ID) == Some(balancer.id())
}

/// Whether the status of the Service shows an address of the load balancer. A host name shows it only with the ID.
pub(crate) fn shows_address(service: &ServiceView, balancer: &Balancer) -> bool {
    let hostname = if names(service, balancer) {
        hostname(service)
    } else {
        None
    };
    service.ingress.iter().any(|shown| {
        let ip = shown.ip.as_deref().unwrap_or_default();
        let has_name = hostname.is_some() && shown.hostname.as_deref() == hostname.as_deref();
        has_name || (!ip.is_empty() && addresses(balancer).any(|address| address == ip))
    })
}

/// Whether the name of the load balancer has the UID of the Service.
fn has_uid(service: &ServiceView, balancer: &Balancer) -> bool {
    balancer.name() == default_name(&service.id)
}

/// Whether the load balancer is certainly that of the Service, even if its droplets and tags are not known.
pub(crate) fn is_of(service: &ServiceView, balancer: &Balancer) -> bool {
    names(service, balancer) || shows_address(service, balancer) || has_uid(service, balancer)
}

/// Whose droplets are behind a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DropletOwner {
    /// There are none.
    None,
    /// All are nodes of the cluster.
    Cluster,
    /// Some are nodes of the cluster.
    Shared,
    /// None is a node of the cluster.
    Others,
    /// They are selected by a tag and not listed, or the load balancer forwards to others.
    Unknown,
}

/// What distinguishes the load balancers of this cluster from others in the account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterIdentity {
    pub(crate) tags: ClusterTags,
    region: String,
    vpc: Option<String>,
    /// The droplets of all nodes, whether or not they may be members.
    droplets: BTreeSet<u64>,
}

impl ClusterIdentity {
    /// The identity of a cluster with these nodes. `by_name`: the droplets of nodes without a provider ID.
    pub(crate) fn new(
        tags: ClusterTags,
        region: &str,
        vpc: Option<&str>,
        nodes: &NodeSet,
        by_name: &BTreeMap<String, u64>,
    ) -> Self {
        Self {
            tags,
            region: region.to_owned(),
            vpc: vpc.map(str::to_owned),
            droplets: droplets_of(nodes, by_name),
        }
    }

    fn droplet_owner(&self, balancer: &Balancer) -> DropletOwner {
        let ids: Vec<_> = balancer.list(field::DROPLET_IDS).filter_map(Value::as_u64).collect();
        let own = ids.iter().filter(|id| self.droplets.contains(id)).count();
        if ids.is_empty() {
            let is_unknown = !balancer.text(field::TAG).is_empty() || kind(balancer).is_none();
            return if is_unknown {
                DropletOwner::Unknown
            } else {
                DropletOwner::None
            };
        }
        if own == ids.len() {
            DropletOwner::Cluster
        } else if own == 0 {
            DropletOwner::Others
        } else {
            DropletOwner::Shared
        }
    }

    /// Why the Service may not get this load balancer, which it found by its name; `None` if it may, or if it names the ID.
    pub(crate) fn refusal(&self, service: &ServiceView, balancer: &Balancer) -> Option<String> {
        let name = balancer.name();
        if kind(balancer).is_none() {
            let (kind, id) = (balancer.text(field::TYPE), balancer.id());
            return Some(format!(
                "load balancer {name} ({id}) has the type {kind}; a Service needs one of type REGIONAL or REGIONAL_NETWORK"
            ));
        }
        if names(service, balancer) || shows_address(service, balancer) {
            return None;
        }
        let reason = match self.tags.foreign(balancer) {
            Some(tag) => format!("has the tag {tag} of another cluster"),
            None if has_uid(service, balancer) => return None,
            None => self.difference(balancer)?,
        };
        let (key, id) = (annotations::ID, balancer.id());
        Some(format!("load balancer {name} {reason}; to take it over, set {key} to {id}"))
    }

    /// Why a load balancer probably serves others.
    fn difference(&self, balancer: &Balancer) -> Option<String> {
        let (region, vpc) = (region(balancer), balancer.text(field::VPC));
        let (own_region, own_vpc) = (self.region.as_str(), self.vpc.as_deref().unwrap_or_default());
        if differs(region, own_region) {
            return Some(format!("is in the region {region}, and this cluster is in {own_region}"));
        }
        if differs(vpc, own_vpc) {
            return Some(format!("is in the VPC {vpc}, and this cluster is in {own_vpc}"));
        }
        match self.droplet_owner(balancer) {
            DropletOwner::Others => Some("has droplets, none of which is a node of this cluster".to_owned()),
            DropletOwner::Unknown => {
                let tag = balancer.text(field::TAG);
                Some(format!("selects droplets by the tag {tag}, which may be those of others"))
            }
            DropletOwner::None | DropletOwner::Cluster | DropletOwner::Shared => None,
        }
    }

    /// Whether the load balancer serves the Service, so that it follows the nodes even while the Service is refused.
    pub(crate) fn serves(&self, service: &ServiceView, balancer: &Balancer) -> bool {
        let owner = self.droplet_owner(balancer);
        shows_address(service, balancer)
            || matches!(owner, DropletOwner::Cluster | DropletOwner::Shared)
            || (owner == DropletOwner::None && self.tags.owns(balancer))
    }

    /// Whether the load balancer is deleted with the Service: it was created for the Service, or it served the Service. The tag
    /// of another cluster does not matter if the Service names the ID.
    pub(crate) fn is_deleted_with(&self, service: &ServiceView, balancer: &Balancer) -> bool {
        if kind(balancer).is_none() {
            return false;
        }
        let owner = self.droplet_owner(balancer);
        let is_empty = owner == DropletOwner::None;
        let serves = matches!(owner, DropletOwner::Cluster | DropletOwner::Shared);
        let served = serves || shows_address(service, balancer) || has_uid(service, balancer);
        let (is_tagged, is_foreign) = (self.tags.owns(balancer), self.tags.foreign(balancer).is_some());
        if names(service, balancer) {
            let has_name = balancer.name() == desired::name(service);
            return served || is_tagged || (is_empty && has_name && !is_foreign);
        }
        (served && !is_foreign) || (is_tagged && is_empty)
    }

    /// Whether the load balancer may be deleted although no Service has it: it has the cluster's tag and serves no others.
    pub(crate) fn is_deletable_orphan(&self, balancer: &Balancer) -> bool {
        let owner = self.droplet_owner(balancer);
        self.tags.owns(balancer) && matches!(owner, DropletOwner::None | DropletOwner::Cluster)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn balancer(tags: &[&str]) -> Balancer {
        serde_json::from_value(json!({"id": "x", "tags": tags})).unwrap()
    }

    #[test]
    fn another_clusters_tag_is_foreign_unless_ours_is_present() {
        let ours = ClusterTag::of("1");
        let tags = ClusterTags::new(&OwnershipTag::Known(ours.clone()), Some("a"));
        let theirs = ClusterTag::of("2");
        for (has, foreign) in [
            (vec![], None),
            (vec!["web"], None),
            (vec!["k8s:a"], None),
            (vec!["k8s:b"], Some("k8s:b")),
            (vec!["k8s:a", "k8s:b"], None),
            (vec!["k8s:a", theirs.as_str()], Some(theirs.as_str())),
            (vec!["k8s:b", ours.as_str()], None),
        ] {
            assert_eq!(tags.foreign(&balancer(&has)).as_deref(), foreign, "{has:?}");
        }
        let blind = ClusterTags::new(&OwnershipTag::Unknown, None);
        assert_eq!(blind.foreign(&balancer(&["k8s:b", theirs.as_str()])), None);
        let untagged: Balancer = serde_json::from_value(json!({"id": "x"})).unwrap();
        assert!(!tags.owns(&untagged) && tags.foreign(&untagged).is_none());
        let moved = tags.added_to(&balancer(&["web", "k8s:b", theirs.as_str()]));
        assert_eq!(moved, ["web", "k8s:a", ours.as_str()]);
    }
}
