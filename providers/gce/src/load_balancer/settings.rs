//! The settings of load balancers: from the config, the flags and the site.

use super::names;

/// The settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct BalancerSettings {
    /// The ID of the cluster's project.
    pub(crate) project: String,
    /// The ID of the network's project, in which firewall rules are. With Shared VPC, it is another one.
    pub(crate) network_project: String,
    pub(crate) region: String,
    /// The resource path of the network.
    pub(crate) network: String,
    /// A network without subnetworks.
    pub(crate) is_legacy_network: bool,
    /// The network tags of nodes; empty: they are derived from the instances.
    pub(crate) node_tags: Vec<String>,
    /// The networks from which Google checks the health of instances, sorted.
    pub(crate) check_ranges: Vec<String>,
    /// Whether firewall rules are created, updated and deleted.
    pub(crate) manages_firewalls: bool,
    /// Whether instance groups are created, filled and deleted. If not, all groups with the prefix of their name are used.
    pub(crate) manages_groups: bool,
    /// Whether new internal load balancers are left to another controller.
    pub(crate) leaves_new_internal: bool,
    /// Whether external load balancers without a class are left to another controller.
    pub(crate) leaves_new_external: bool,
    /// Whether Services get annotations with the names of their objects.
    pub(crate) annotates: bool,
    /// Whether a rule denies all other traffic to an external load balancer.
    pub(crate) denies: bool,
    /// Whether such rules are deleted when they are no longer wanted.
    pub(crate) deletes_denies: bool,
}

impl BalancerSettings {
    /// Whether the network is in another project, in which the credentials may have fewer permissions.
    pub(crate) fn is_shared_network(&self) -> bool {
        self.project != self.network_project
    }

    /// The priority of rules that admit traffic: a rule that denies all other traffic comes after them.
    pub(crate) fn allow_priority(&self) -> u32 {
        if self.denies { 999 } else { 1000 }
    }

    /// The resource path of a subnetwork by name.
    pub(crate) fn subnetwork_path(&self, name: &str) -> String {
        format!("projects/{}/regions/{}/subnetworks/{name}", self.network_project, self.region)
    }

    /// The resource path of an object of the region.
    pub(crate) fn region_path(&self, collection: &str, name: &str) -> String {
        format!("projects/{}/regions/{}/{collection}/{name}", self.project, self.region)
    }

    /// The resource path of a global object of the cluster's project.
    pub(crate) fn global_path(&self, collection: &str, name: &str) -> String {
        format!("projects/{}/global/{collection}/{name}", self.project)
    }

    /// The resource path of the cluster's instance group in a zone.
    pub(crate) fn group_path(&self, zone: &str, cluster_id: &str) -> String {
        format!("projects/{}/zones/{zone}/instanceGroups/{}", self.project, names::group(cluster_id))
    }
}
