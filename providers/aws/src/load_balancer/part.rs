//! The types of parts: what is read for them, and what a change returns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{
    load_balancer::ServiceId,
    plan::{Member, objects},
};

use super::{
    kinds::{Entry, Kind, Object, RULES},
    names,
    settings::{Flavor, LoadBalancing},
};
use crate::{client::ec2::Subnet, cluster::Cluster};

/// The model of load balancers.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<LoadBalancing>,
    pub(crate) cluster: Cluster,
}

/// A Service in a part.
pub(crate) type PartMember = Member<Model>;

/// The objects in the shared listings.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// Load balancers, network and classic, by name.
    pub(crate) balancers: BTreeMap<String, Object>,
    /// Target groups of the cluster that no load balancer uses.
    pub(crate) unused_target_groups: Vec<Object>,
    /// The security groups with the cluster's tag, by name.
    pub(crate) groups: BTreeMap<String, Object>,
    /// Load balancers that rules in these groups name, or whose security group is a source, with the ID of such a group.
    pub(crate) rule_owners: BTreeMap<String, String>,
}

/// The inputs in addition to Services and nodes.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    /// The objects in the shared listings.
    pub(crate) directory: Arc<Directory>,
    /// The subnets for each member's load balancer.
    pub(crate) subnets: BTreeMap<ServiceId, Vec<Subnet>>,
    /// Members that changed while this process ran.
    pub(crate) changed: BTreeSet<ServiceId>,
    /// CIDRs by subnet.
    pub(crate) cidrs: BTreeMap<String, Vec<String>>,
    /// The security group of each instance that is a target, or why it has none.
    pub(crate) groups: BTreeMap<String, Result<NodeGroup, String>>,
    /// Actions for reads that the credentials do not allow, with the error.
    pub(crate) unread: Vec<String>,
}

/// The data of a load balancer that the security groups of nodes need.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    /// Its subnets.
    pub(crate) subnets: Vec<String>,
    /// Whether it is a classic load balancer.
    pub(crate) is_classic: bool,
    /// The ID of the security group that only this classic load balancer has.
    pub(crate) own_source: Option<String>,
}

/// The reply to a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) objects: objects::Reply<Kind>,
    /// The action that the credentials do not allow, with the error. The change was not applied.
    pub(crate) denied: Option<(&'static str, String)>,
}

/// The security group of an instance whose rules let load balancers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeGroup {
    pub(crate) id: String,
    /// Other candidates.
    pub(crate) others: Vec<String>,
}

impl NodeGroup {
    /// The one of an instance's security groups that gets the rules: the first one with the cluster's tag, else the only one.
    /// `tag`: its key.
    ///
    /// # Errors
    /// No security group qualifies.
    pub(crate) fn choose(
        groups: Vec<String>,
        is_tagged: impl Fn(&String) -> bool,
        tag: &str,
    ) -> Result<Self, String> {
        let (mut tagged, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_tagged);
        tagged.sort();
        let (id, others) = match (tagged.split_first(), others.as_slice()) {
            (Some((id, others)), _) => (id.clone(), others.to_vec()),
            (None, [id]) => (id.clone(), Vec::new()),
            (None, []) => return Err("it has no security group".to_owned()),
            (None, several) => {
                let several = several.join(", ");
                return Err(format!(
                    "none of its security groups {several} has the tag {tag}; tag one"
                ));
            }
        };
        Ok(Self { id, others })
    }
}

impl Directory {
    /// Indexes the listings. `unused_target_groups`: those of the cluster that no load balancer uses.
    pub(crate) fn new<'a>(
        balancers: impl Iterator<Item = Object>,
        groups: impl Iterator<Item = &'a Object>,
        unused_target_groups: Vec<Object>,
    ) -> Self {
        let mut directory = Self {
            unused_target_groups,
            balancers: balancers.map(|object| (object.key.clone(), object)).collect(),
            groups: groups.map(|group| (group.key.clone(), group.clone())).collect(),
            rule_owners: BTreeMap::new(),
        };
        let groups = || directory.groups.values();
        let keys: BTreeMap<_, _> = groups().map(|group| (&*group.id, &*group.key)).collect();
        let owners = groups().flat_map(|group| {
            let rules = group.set(RULES).iter().filter_map(Entry::rule);
            let named = rules.filter_map(|rule| {
                let source = || keys.get(&*rule.source)?.strip_prefix(names::CLASSIC_GROUP);
                let from_group = || rule.is_from_group().then(source).flatten();
                rule.balancer().or_else(from_group)
            });
            named.map(|name| (name.to_owned(), group.id.clone()))
        });
        directory.rule_owners = owners.collect();
        directory
    }

    /// The kind of load balancer that a Service has.
    pub(crate) fn flavor(&self, service: &ServiceId) -> Option<Flavor> {
        let balancer = self.balancers.get(&names::balancer(service))?;
        Some(match balancer.kind {
            Kind::Classic => Flavor::Classic,
            _ => Flavor::Network,
        })
    }

    /// The security groups of a load balancer, its own one by name.
    pub(crate) fn sources(&self, balancer: &str) -> Vec<String> {
        let balancer = self.balancers.get(balancer).into_iter();
        let groups = balancer.flat_map(|balancer| balancer.texts("security_groups"));
        groups.map(str::to_owned).collect()
    }

    /// The ID of the security group that only this classic load balancer has.
    pub(crate) fn own_source(&self, balancer: &str) -> Option<String> {
        let own = self.groups.get(&names::classic_group(balancer));
        own.map(|group| group.id.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_security_group_of_a_node_is_the_first_one_with_the_clusters_tag() {
        type Outcome<'a> = Result<(&'a str, &'a [&'a str]), &'a str>;
        let cases: [(&[&str], &[&str], Outcome<'_>); 5] = [
            (&["sg-1"], &["sg-1"], Ok(("sg-1", &[]))),
            (
                &["sg-3", "sg-2", "sg-1"],
                &["sg-2", "sg-3"],
                Ok(("sg-2", &["sg-3"])),
            ),
            (&["sg-1"], &[], Ok(("sg-1", &[]))),
            (
                &["sg-1", "sg-2"],
                &[],
                Err("none of its security groups sg-1, sg-2 has the tag kubernetes.io/cluster/c"),
            ),
            (&[], &[], Err("it has no security group")),
        ];
        for (groups, tagged, expected) in cases {
            let groups = groups.iter().map(|id| (*id).to_owned()).collect();
            let chosen = NodeGroup::choose(
                groups,
                |id| tagged.contains(&id.as_str()),
                "kubernetes.io/cluster/c",
            );
            match (&chosen, expected) {
                (Ok(chosen), Ok((id, others))) => {
                    assert_eq!(
                        (chosen.id.as_str(), chosen.others.join(" ")),
                        (id, others.join(" "))
                    );
                }
                (Err(why), Err(text)) => assert!(why.starts_with(text), "{why}"),
                _ => panic!("{chosen:?} is not {expected:?}"),
            }
        }
    }
}
