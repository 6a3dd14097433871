//! The settings of load balancers, and the IDs of resources.

use super::names;
use crate::{
    config::{CloudConf, MultipleLoadBalancer, Settings},
    tags::ResourceTags,
};

/// The settings.
#[derive(Clone, Debug)]
pub(crate) struct BalancerSettings {
    /// The subscription of the machines.
    pub(crate) subscription: String,
    /// The subscription of network resources.
    pub(crate) network_subscription: String,
    /// The resource group of the cluster, in lower case.
    pub(crate) group: String,
    /// The resource group of load balancers, in lower case.
    pub(crate) balancer_group: String,
    /// The resource group of the network security group, in lower case.
    pub(crate) security_group_group: String,
    /// The resource group of the virtual network, in lower case.
    pub(crate) network_group: String,
    /// The resource group of private link services, in lower case.
    pub(crate) link_group: String,
    /// The region.
    pub(crate) location: String,
    /// Tags of all resources.
    pub(crate) tags: ResourceTags,
    /// Whether the API is that of an Azure Stack, which has no zones.
    pub(crate) is_azure_stack: bool,
    /// The keys of the config.
    pub(crate) conf: CloudConf,
}

impl BalancerSettings {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            subscription: settings.subscription.clone(),
            network_subscription: settings.network_subscription.clone(),
            group: settings.resource_group.clone(),
            balancer_group: settings.load_balancer_group().to_ascii_lowercase(),
            security_group_group: settings.security_group_group().to_ascii_lowercase(),
            network_group: settings.network_group().to_ascii_lowercase(),
            link_group: settings.link_group().to_ascii_lowercase(),
            location: settings.location.clone(),
            tags: ResourceTags::of(&settings.conf),
            is_azure_stack: settings.is_azure_stack,
            conf: settings.conf.clone(),
        }
    }

    /// The name of the load balancer of a kind.
    pub(crate) fn balancer(&self, cluster: &str, is_internal: bool) -> String {
        let name = match self.conf.load_balancer_name.trim() {
            "" => cluster,
            name => name,
        };
        names::load_balancer(name, is_internal)
    }

    /// The load balancers of which each kind has one; empty: one of each kind.
    pub(crate) fn several(&self) -> &[MultipleLoadBalancer] {
        &self.conf.multiple_load_balancers
    }

    /// The ID of a resource of Microsoft.Network.
    pub(crate) fn network_id(&self, group: &str, kind: &str, name: &str) -> String {
        let subscription = &self.network_subscription;
        format!(
            "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Network/{kind}/{name}"
        )
    }

    /// The ID of a load balancer by its part: group and name.
    pub(crate) fn balancer_id(&self, part: &str) -> String {
        let (group, name) = part.split_once('/').unwrap_or_default();
        self.network_id(group, "loadBalancers", name)
    }

    /// The ID of a public IP address by its part: group and name.
    pub(crate) fn address_id(&self, part: &str) -> String {
        let (group, name) = part.split_once('/').unwrap_or_default();
        self.network_id(group, "publicIPAddresses", name)
    }

    /// The ID of a subnet of the cluster's network.
    pub(crate) fn subnet_id(&self, name: &str) -> String {
        let network = self.network_id(&self.network_group, "virtualNetworks", &self.conf.vnet_name);
        format!("{network}/subnets/{name}")
    }

    /// Whether nodes of the control plane stay out of load balancers. Basic ones may have them.
    pub(crate) fn excludes_control_plane(&self) -> bool {
        !self.conf.is_basic() && self.conf.exclude_master.unwrap_or(true)
    }

    /// Whether the members of backend pools are addresses of nodes.
    pub(crate) fn has_address_pools(&self) -> bool {
        self.conf.backend_pool_type.eq_ignore_ascii_case("nodeIP")
    }

    /// Whether the members of this load balancer's pools are managed by others.
    pub(crate) fn is_pre_configured(&self, balancer: &str) -> bool {
        let kind = if names::is_internal(balancer) {
            "internal"
        } else {
            "external"
        };
        let pools = &self.conf.pre_configured_pools;
        pools.eq_ignore_ascii_case("all") || pools.eq_ignore_ascii_case(kind)
    }
}
