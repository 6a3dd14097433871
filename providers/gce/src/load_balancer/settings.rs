//! The settings of load balancers: from the config, the flags and the site.

use ccm_core::{
    FlagValues,
    config::{KeyPath, Problems},
    controllers::{ControllerNames, SERVICE_CONTROLLER},
};
use ipnet::Ipv4Net;

use super::{
    json::networks,
    names,
    spec::{Scheme, Spec},
};
use crate::{
    ANNOTATE, CHECK_RANGES, DENY, DENY_CLEANUP, LEAVE_EXTERNAL,
    config::{Global, ILB_SUBSETS, SKIP_GROUPS},
    site::Site,
};

/// The value of `firewall-management` with which users manage firewall rules.
const UNMANAGED: &str = "unmanaged";

/// The settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct BalancerSettings {
    /// The ID of the cluster's project.
    pub(crate) project: String,
    /// The ID of the network's project, in which firewall rules are. With Shared VPC, it is another one.
    pub(crate) network_project: String,
    pub(crate) region: String,
    /// The zones of the region when the process started.
    pub(crate) zones: Vec<String>,
    /// The resource path of the network.
    pub(crate) network: String,
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
    /// Whether Services without a class are left to another controller.
    pub(crate) serves_only_classes: bool,
    /// Whether Services get annotations with the names of their objects.
    pub(crate) annotates: bool,
    /// Whether a rule denies all other traffic to an external load balancer.
    pub(crate) denies: bool,
    /// Whether such rules are deleted when they are no longer wanted.
    pub(crate) deletes_denies: bool,
}

/// The names of upstream's service controller for Services with a class of GCE.
pub(crate) const CLASS_CONTROLLER: ControllerNames = ControllerNames {
    name: "gke-service-lb-controller",
    aliases: &["gke-service"],
    migration_name: None,
    client_name: "service-controller",
};

impl BalancerSettings {
    /// The settings of the config file and the flags. The site is not known yet.
    pub(crate) fn read(global: &Global, flags: &FlagValues, problems: &mut Problems) -> Self {
        let has_feature = |name: &str| global.alpha_features.iter().any(|feature| feature == name);
        let management = global.firewall_management.trim();
        let is_known = ["", "managed", UNMANAGED].contains(&management);
        let what = format!("{management:?} is unknown; write managed or {UNMANAGED}");
        problems.require(is_known, ("global", "firewall-management"), what);
        let (denies, deletes_denies) = (flags.boolean(&DENY), flags.boolean(&DENY_CLEANUP));
        let what = format!("needs --{}, so that its rules can be deleted again", DENY_CLEANUP.name);
        problems.require(!denies || deletes_denies, KeyPath::key("--enable-l4-deny-firewall"), what);
        Self {
            node_tags: global.node_tags.clone(),
            check_ranges: check_ranges(flags, problems),
            manages_firewalls: management != UNMANAGED,
            manages_groups: !has_feature(SKIP_GROUPS),
            leaves_new_internal: has_feature(ILB_SUBSETS),
            leaves_new_external: flags.boolean(&LEAVE_EXTERNAL),
            serves_only_classes: serves_only_classes(flags),
            annotates: flags.boolean(&ANNOTATE),
            denies,
            deletes_denies,
            ..Self::default()
        }
    }

    /// The settings for the cluster at this site.
    pub(crate) fn at(&self, site: &Site) -> Self {
        Self {
            project: site.project.clone(),
            network_project: site.network_project.clone(),
            region: site.region.clone(),
            zones: site.known_zones(),
            network: site.network.clone(),
            ..self.clone()
        }
    }

    /// Whether the network is in another project, in which the credentials may have fewer permissions.
    pub(crate) fn is_shared_network(&self) -> bool {
        self.project != self.network_project
    }

    /// The priority of rules that admit traffic: a rule that denies all other traffic comes after them.
    pub(crate) fn allow_priority(&self) -> u32 {
        if self.denies { 999 } else { 1000 }
    }

    /// The resource path of the subnetwork that an internal Service names, or in which it requests an address; `None`: it requests
    /// nothing. `usual`: that of the cluster.
    pub(crate) fn requested_subnetwork(&self, spec: &Spec, usual: &str) -> Option<String> {
        match &spec.subnet {
            _ if spec.scheme != Scheme::Internal => None,
            Some(name) => Some(self.subnetwork_path(name)),
            None if spec.address.is_empty() || usual.is_empty() => None,
            None => Some(usual.to_owned()),
        }
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

/// Whether `--controllers` has upstream's controller for Services with a class, and not the one for the others.
fn serves_only_classes(flags: &FlagValues) -> bool {
    let values = flags.given("controllers").unwrap_or_default();
    let items: Vec<_> = values.iter().flat_map(|value| value.split(',')).collect();
    let serves_others = SERVICE_CONTROLLER.listed(&items).unwrap_or_else(|| items.contains(&"*"));
    CLASS_CONTROLLER.listed(&items) == Some(true) && !serves_others
}

/// The networks from which Google checks the health of instances.
fn check_ranges(flags: &FlagValues, problems: &mut Problems) -> Vec<String> {
    let mut ranges = Vec::new();
    for text in flags.text(&CHECK_RANGES).split(',').map(str::trim) {
        let what = format!("{text:?} is not a network; write one such as 130.211.0.0/22");
        problems.require(
            text.parse::<Ipv4Net>().is_ok(),
            KeyPath::key("--cloud-provider-gce-lb-src-cidrs"),
            what,
        );
        ranges.push(text.to_owned());
    }
    networks(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_services_with_a_class_are_served_without_the_controller_for_the_others() {
        let only_classes = |values: &[&str]| {
            let values: Vec<_> = values.iter().map(ToString::to_string).collect();
            serves_only_classes(&[("controllers".to_owned(), values)].into_iter().collect())
        };
        assert!(!serves_only_classes(&FlagValues::default()));
        assert!(only_classes(&["gke-service-lb-controller"]));
        assert!(only_classes(&["*,-service-lb-controller,gke-service"]));
        assert!(only_classes(&["gke-service-lb-controller", "-service-lb-controller"]));
        assert!(!only_classes(&["gke-service-lb-controller,service"]));
        assert!(!only_classes(&["*,gke-service-lb-controller"]));
        assert!(!only_classes(&["-service-lb-controller,-gke-service-lb-controller"]));
    }
}
