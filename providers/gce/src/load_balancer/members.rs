//! Nodes as members of target pools and instance groups, and their network tags.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::load_balancer::{ClusterView, NodeLeftOut, ServiceNode};

use super::{kinds::InstanceEntry, settings::BalancerSettings};
use crate::{
    client::last_component,
    instances::{
        canonical,
        provider_id::{self, InstanceName},
    },
};

/// The most instances of an instance group.
pub(crate) const GROUP_SIZE: usize = 1000;
/// The labels of a node with its zone, in the order in which they are read.
const ZONE_LABELS: [&str; 2] = [
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/zone",
];
/// The label of a node with its subnetwork, if that is not the cluster's.
const SUBNET_LABEL: &str = "cloud.google.com/gke-node-pool-subnet";

/// The instances of a zone by name, with their network tags.
pub(crate) type ZoneInstances = BTreeMap<String, Vec<String>>;

/// The instances of the zones in which nodes are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct InstanceIndex {
    pub(crate) zones: BTreeMap<String, Arc<ZoneInstances>>,
    /// The zones that do not answer. Of their instances, nothing is known.
    pub(crate) silent: BTreeSet<String>,
}

impl InstanceIndex {
    fn tags(&self, instance: &InstanceEntry) -> Option<&[String]> {
        let tags = self.zones.get(&instance.zone)?.get(&instance.name)?;
        Some(tags)
    }

    fn has(&self, instance: &InstanceEntry) -> bool {
        self.tags(instance).is_some()
    }

    /// The eligible nodes whose instances are not in it, by name, each with its zone if that is known. Those of silent zones, other clouds
    /// and other projects do not count.
    pub(crate) fn missing(
        &self,
        cluster: &ClusterView,
        settings: &BalancerSettings,
    ) -> BTreeMap<String, Option<String>> {
        let mut missing = BTreeMap::new();
        for node in cluster.nodes.eligible() {
            let zone = match placed(node, self, settings) {
                Ok(instance) if self.has(&instance) || self.silent.contains(&instance.zone) => continue,
                Ok(instance) => Some(instance.zone),
                Err(Unplaced::Foreign(_)) => continue,
                Err(Unplaced::Unknown(_)) => None,
            };
            missing.insert(node.view.name.clone(), zone);
        }
        missing
    }

    /// The instance with this name, if there is only one.
    fn by_name(&self, name: &str) -> Option<InstanceEntry> {
        let mut having = self.zones.iter().filter(|(_, instances)| instances.contains_key(name));
        match (having.next(), having.next()) {
            (Some((zone, _)), None) => Some(InstanceEntry::new(zone, name)),
            _ => None,
        }
    }
}

/// The eligible nodes of the cluster, as instances.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeMembers {
    /// Instances that exist, sorted by name.
    pub(crate) instances: Vec<InstanceEntry>,
    /// Nodes without a known instance.
    pub(crate) left_out: Vec<NodeLeftOut>,
    /// The names of instances whose zone is not known, or does not answer. Those that are members stay.
    pub(crate) unplaced: BTreeSet<String>,
    /// The zones of nodes that do not answer.
    pub(crate) silent: BTreeSet<String>,
    /// Whether members stay as they are: no node is eligible, or no instance of one was found.
    pub(crate) keeps: bool,
}

impl NodeMembers {
    /// The members of load balancers. `subnet`: only nodes of this subnetwork, by their label.
    pub(crate) fn of(
        cluster: &ClusterView,
        index: &InstanceIndex,
        settings: &BalancerSettings,
        subnet: Option<&str>,
    ) -> Self {
        let mut members = Self::default();
        for node in cluster.nodes.eligible() {
            if !is_in_subnet(node, subnet) {
                continue;
            }
            match placed(node, index, settings) {
                Ok(instance) if index.has(&instance) => members.instances.push(instance),
                Ok(instance) if index.silent.contains(&instance.zone) => {
                    members.unplaced.insert(instance.name);
                    members.silent.insert(instance.zone);
                }
                Ok(instance) => {
                    let why = format!("(instance {instance} does not exist)");
                    members.left_out.push(NodeLeftOut::new(&*node.view.name, why));
                }
                Err(Unplaced::Foreign(why)) => {
                    members.left_out.push(NodeLeftOut::new(&*node.view.name, why));
                }
                Err(Unplaced::Unknown(name)) => {
                    members.unplaced.insert(name);
                }
            }
        }
        members
            .instances
            .sort_by(|one, other| (&one.name, &one.zone).cmp(&(&other.name, &other.zone)));
        members.instances.dedup();
        members.keeps = cluster.nodes.keeps_members()
            || (members.instances.is_empty()
                && !(members.left_out.is_empty() && members.unplaced.is_empty()));
        members
    }

    /// The zones of the members.
    pub(crate) fn zones(&self) -> BTreeSet<&str> {
        let known = self.instances.iter().map(|instance| instance.zone.as_str());
        known.chain(self.silent.iter().map(String::as_str)).collect()
    }

    /// The members in a zone: at most as many as fit into an instance group, the first by name.
    pub(crate) fn in_zone<'a>(&'a self, zone: &'a str) -> impl Iterator<Item = &'a InstanceEntry> {
        let all = self.instances.iter().filter(move |instance| instance.zone == zone);
        all.take(GROUP_SIZE)
    }

    /// The number of members that do not fit into the instance groups of their zones.
    pub(crate) fn surplus(&self) -> usize {
        let sizes = self.zones().into_iter().map(|zone| {
            let all = self.instances.iter().filter(|instance| instance.zone == zone);
            all.count().saturating_sub(GROUP_SIZE)
        });
        sizes.sum()
    }

    /// The members, and those of the present ones whose node has no known zone.
    pub(crate) fn with_unplaced(
        &self,
        desired: impl IntoIterator<Item = InstanceEntry>,
        present: &[InstanceEntry],
    ) -> Vec<InstanceEntry> {
        let kept = present.iter().filter(|instance| self.unplaced.contains(&instance.name)).cloned();
        let all: BTreeSet<_> = desired.into_iter().chain(kept).collect();
        all.into_iter().collect()
    }

    /// The network tags to which firewall rules apply: those of the config, else of each instance the longest one that is a prefix of
    /// its name. Also the instances without such a tag.
    pub(crate) fn tags(
        &self,
        index: &InstanceIndex,
        settings: &BalancerSettings,
    ) -> (Vec<String>, Vec<String>) {
        if !settings.node_tags.is_empty() {
            let tags: BTreeSet<_> = settings.node_tags.iter().cloned().collect();
            return (tags.into_iter().collect(), Vec::new());
        }
        let (mut tags, mut untagged) = (BTreeSet::new(), Vec::new());
        for instance in &self.instances {
            let known = index.tags(instance).unwrap_or_default().iter();
            let prefixes = known.filter(|tag| instance.name.starts_with(tag.as_str()));
            match prefixes.max_by_key(|tag| tag.len()) {
                Some(tag) => drop(tags.insert(tag.clone())),
                None => untagged.push(instance.name.clone()),
            }
        }
        (tags.into_iter().collect(), untagged)
    }
}

/// Whether a node may be a member of load balancers of this subnetwork.
fn is_in_subnet(node: &ServiceNode, subnet: Option<&str>) -> bool {
    let label = node.view.labels.get(SUBNET_LABEL).filter(|label| !label.is_empty());
    match (label, subnet) {
        (Some(label), Some(subnet)) => label == subnet,
        _ => true,
    }
}

/// Why the instance of a node is not known.
enum Unplaced {
    /// The node is not one of this project.
    Foreign(String),
    /// The instance has this name, in an unknown zone.
    Unknown(String),
}

/// The instance of a node: by its provider ID, else by its name and its zone's label, else by its name alone.
fn placed(
    node: &ServiceNode,
    index: &InstanceIndex,
    settings: &BalancerSettings,
) -> Result<InstanceEntry, Unplaced> {
    let view = &node.view;
    let is_in_region =
        |zone: &str| zone.rsplit_once('-').is_some_and(|(region, _)| region == settings.region);
    if let Some(id) = view.provider_id.as_deref().filter(|id| !id.is_empty()) {
        return match provider_id::parse(id) {
            Ok(Some(InstanceName { project, zone, name })) if project == settings.project => {
                if is_in_region(&zone) {
                    Ok(InstanceEntry::new(&zone, &name))
                } else {
                    Err(Unplaced::Foreign(format!("(zone {zone} is not in region {})", settings.region)))
                }
            }
            Ok(Some(_)) => Err(Unplaced::Foreign(format!("(its provider ID {id:?} is of another project)"))),
            Ok(None) => Err(Unplaced::Foreign(format!("(its provider ID {id:?} is not of GCE)"))),
            Err(error) => Err(Unplaced::Foreign(format!("({})", error.message()))),
        };
    }
    let name = canonical(&view.name);
    let zone = ZONE_LABELS
        .iter()
        .find_map(|label| view.labels.get(label))
        .filter(|zone| is_in_region(zone));
    match zone {
        Some(zone) => Ok(InstanceEntry::new(zone, name)),
        None => index.by_name(name).ok_or_else(|| Unplaced::Unknown(name.to_owned())),
    }
}

/// The instances of all nodes, as far as they are known without the instances of the region.
pub(crate) fn instances(cluster: &ClusterView, settings: &BalancerSettings) -> BTreeSet<InstanceEntry> {
    let none = InstanceIndex::default();
    let all = cluster.nodes.all().iter();
    all.filter_map(|node| placed(node, &none, settings).ok()).collect()
}

/// The zones of the eligible nodes; `None`: the zone of one is known only by its instance.
pub(crate) fn known_zones(cluster: &ClusterView, settings: &BalancerSettings) -> Option<BTreeSet<String>> {
    let none = InstanceIndex::default();
    let mut zones = BTreeSet::new();
    for node in cluster.nodes.eligible() {
        match placed(node, &none, settings) {
            Ok(instance) => {
                zones.insert(instance.zone);
            }
            Err(Unplaced::Foreign(_)) => {}
            Err(Unplaced::Unknown(_)) => return None,
        }
    }
    Some(zones)
}

/// The zones of the eligible nodes, as far as they are known without the instances.
pub(crate) fn zones(cluster: &ClusterView, settings: &BalancerSettings) -> BTreeSet<String> {
    let none = InstanceIndex::default();
    let placed = cluster.nodes.eligible().filter_map(|node| placed(node, &none, settings).ok());
    placed.map(|instance| instance.zone).collect()
}

/// The name of a subnetwork in its resource path.
pub(crate) fn subnet_name(path: &str) -> &str {
    last_component(path)
}

#[cfg(test)]
mod tests {
    use ccm_core::{NodeView, load_balancer::NodeSet};

    use super::*;

    fn settings() -> BalancerSettings {
        BalancerSettings {
            project: "p".to_owned(),
            region: "z".to_owned(),
            ..BalancerSettings::default()
        }
    }

    fn node(name: &str, id: Option<&str>, labels: &[(&str, &str)]) -> ServiceNode {
        ServiceNode {
            view: Arc::new(NodeView {
                name: name.to_owned(),
                provider_id: id.map(str::to_owned),
                labels: labels.iter().copied().collect(),
                ..NodeView::default()
            }),
            eligible: true,
            ..ServiceNode::default()
        }
    }

    fn cluster(nodes: impl IntoIterator<Item = ServiceNode>) -> ClusterView {
        ClusterView {
            nodes: nodes.into_iter().collect::<NodeSet>(),
            ..ClusterView::default()
        }
    }

    fn index(instances: &[(&str, &str, &[&str])]) -> InstanceIndex {
        let mut zones: BTreeMap<String, ZoneInstances> = BTreeMap::new();
        for (zone, name, tags) in instances {
            let tags = tags.iter().map(ToString::to_string).collect();
            zones.entry((*zone).to_owned()).or_default().insert((*name).to_owned(), tags);
        }
        InstanceIndex {
            zones: zones.into_iter().map(|(zone, instances)| (zone, Arc::new(instances))).collect(),
            ..InstanceIndex::default()
        }
    }

    fn texts(instances: &[InstanceEntry]) -> Vec<String> {
        instances.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nodes_are_placed_by_provider_id_label_or_name() {
        let index = index(&[
            ("z-a", "one", &[]),
            ("z-b", "two", &[]),
            ("z-c", "three", &[]),
            ("z-a", "twin", &[]),
            ("z-b", "twin", &[]),
        ]);
        let cluster = cluster([
            node("one", Some("gce://p/z-a/one"), &[(ZONE_LABELS[0], "wrong")]),
            node("two.example.com", None, &[(ZONE_LABELS[1], "z-b")]),
            node("three.example.com", None, &[]),
            node("twin", None, &[]),
            node("gone", Some("gce://p/z-a/gone"), &[]),
            node("other", Some("gce://q/z-a/other"), &[]),
            node("aws", Some("aws:///a/i-1"), &[]),
        ]);
        let members = NodeMembers::of(&cluster, &index, &settings(), None);
        assert_eq!(texts(&members.instances), ["z-a/one", "z-c/three", "z-b/two"]);
        let left_out: Vec<_> = members.left_out.iter().map(|left| left.node.as_str()).collect();
        assert_eq!(left_out, ["aws", "gone", "other"]);
        assert_eq!(members.unplaced, ["twin".to_owned()].into());
        // A member without a known zone stays a member, and does not become one.
        let present = [
            InstanceEntry::new("z-b", "twin"),
            InstanceEntry::new("z-a", "old"),
        ];
        let desired = members.with_unplaced(members.in_zone("z-b").cloned(), &present);
        assert_eq!(texts(&desired), ["z-b/twin", "z-b/two"]);
    }

    #[test]
    fn members_stay_while_no_instance_is_found() {
        let cluster = cluster([node("one", Some("gce://p/z-a/one"), &[])]);
        assert!(NodeMembers::of(&cluster, &index(&[]), &settings(), None).keeps);
        assert!(!NodeMembers::of(&cluster, &index(&[("z-a", "one", &[])]), &settings(), None).keeps);
        assert!(NodeMembers::of(&ClusterView::default(), &index(&[]), &settings(), None).keeps);
    }

    #[test]
    fn members_in_a_zone_that_does_not_answer_stay() {
        let index = InstanceIndex {
            silent: ["z-b".to_owned()].into(),
            ..index(&[("z-a", "one", &[])])
        };
        let cluster = cluster([
            node("one", Some("gce://p/z-a/one"), &[]),
            node("two", Some("gce://p/z-b/two"), &[]),
            node("three", Some("gce://p/z-b/three"), &[]),
        ]);
        let members = NodeMembers::of(&cluster, &index, &settings(), None);
        let present = [InstanceEntry::new("z-b", "two"), InstanceEntry::new("z-b", "old")];
        let desired = members.with_unplaced(members.instances.iter().cloned(), &present);
        assert_eq!(texts(&desired), ["z-a/one", "z-b/two"]);
        assert!(members.left_out.is_empty() && index.missing(&cluster, &settings()).is_empty());
        assert_eq!(members.zones(), ["z-a", "z-b"].into(), "the backend service keeps the group of the zone");
    }

    #[test]
    fn a_group_has_the_first_thousand_instances_by_name() {
        let names: Vec<_> = (0..=GROUP_SIZE).map(|number| format!("n-{number:04}")).collect();
        let all: Vec<(&str, &str, &[&str])> =
            names.iter().map(|name| ("z-a", name.as_str(), &[][..])).collect();
        let index = index(&all);
        let ids: Vec<_> = names.iter().map(|name| format!("gce://p/z-a/{name}")).collect();
        let cluster = cluster(names.iter().zip(&ids).map(|(name, id)| node(name, Some(id), &[])));
        let members = NodeMembers::of(&cluster, &index, &settings(), None);
        assert_eq!((members.in_zone("z-a").count(), members.surplus()), (GROUP_SIZE, 1));
        assert!(members.in_zone("z-a").all(|instance| instance.name != "n-1000"));
    }

    #[test]
    fn nodes_of_another_subnetwork_are_no_members_of_internal_load_balancers() {
        let index = index(&[("z-a", "one", &[]), ("z-a", "two", &[])]);
        let other = node("two", Some("gce://p/z-a/two"), &[(SUBNET_LABEL, "other")]);
        let cluster = cluster([node("one", Some("gce://p/z-a/one"), &[(SUBNET_LABEL, "")]), other]);
        let of = |subnet| texts(&NodeMembers::of(&cluster, &index, &settings(), subnet).instances);
        assert_eq!(of(Some("default")), ["z-a/one"]);
        assert_eq!(of(Some("other")), ["z-a/one", "z-a/two"]);
        assert_eq!(of(None), ["z-a/one", "z-a/two"]);
    }

    #[test]
    fn a_tag_is_the_longest_prefix_of_the_name() {
        let index = index(&[
            ("z-a", "node-1", &["no", "node", "web"]),
            ("z-a", "pool-a-1", &["pool", "pool-a"]),
            ("z-a", "bare-1", &["web"]),
        ]);
        let id = |name: &str| format!("gce://p/z-a/{name}");
        let names = ["node-1", "pool-a-1", "bare-1"];
        let cluster = cluster(names.iter().map(|name| node(name, Some(&id(name)), &[])));
        let mut settings = settings();
        let members = NodeMembers::of(&cluster, &index, &settings, None);
        let (tags, untagged) = members.tags(&index, &settings);
        assert_eq!((tags.join(" "), untagged.join(" ")), ("node pool-a".to_owned(), "bare-1".to_owned()));
        settings.node_tags = vec!["workers".to_owned(), "extra".to_owned()];
        let (tags, untagged) = members.tags(&index, &settings);
        assert_eq!((tags.join(" "), untagged.len()), ("extra workers".to_owned(), 0));
    }
}
