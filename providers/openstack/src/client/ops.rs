//! The kinds of calls, with their metric label, quota bucket and idempotency.

use ccm_core::client::operations;

/// The bucket of Keystone.
pub(super) const IDENTITY: &str = "identity";
/// The bucket of Nova.
pub(super) const COMPUTE: &str = "compute";
/// The bucket of Neutron.
pub(super) const NETWORK: &str = "network";
/// The bucket of Octavia.
pub(super) const LOAD_BALANCER: &str = "load-balancer";
/// The bucket of Barbican.
pub(super) const KEY_MANAGER: &str = "key-manager";

// Octavia refuses a second change during the first one, and a PUT with a revision cannot match twice. A write without
// an answer is therefore followed by a read. Only deletions in Neutron may be repeated without one.
operations! {
    /// A kind of call. Where upstream has it, the name is the same.
    pub(crate) enum Op {
        /// Keystone's list of versions.
        VersionList = "version_list", IDENTITY, Read;
        /// Requests a token. A second one does no harm.
        TokenCreate = "token_create", IDENTITY, IdempotentWrite;
        /// Validates a token.
        TokenGet = "token_get", IDENTITY, Read;

        /// A page of servers.
        ServerList = "server_list", COMPUTE, Read;
        /// One server.
        ServerGet = "server_get", COMPUTE, Read;
        /// One flavor.
        FlavorGet = "flavor_get", COMPUTE, Read;

        /// A page of ports.
        PortList = "port_list", NETWORK, Read;
        /// A port's security groups or address pairs.
        PortUpdate = "port_update", NETWORK, Write;
        /// Removes a tag from a port.
        PortTagDelete = "port_tag_delete", NETWORK, IdempotentWrite;
        /// One network.
        NetworkGet = "network_get", NETWORK, Read;
        /// A page of networks.
        NetworkList = "network_list", NETWORK, Read;
        /// A page of subnets.
        SubnetList = "subnet_list", NETWORK, Read;
        /// One subnet.
        SubnetGet = "subnet_get", NETWORK, Read;
        /// A page of floating IPs.
        FloatingIpList = "floating_ip_list", NETWORK, Read;
        /// The quotas of the project.
        NetworkQuotaGet = "quota_get", NETWORK, Read;
        /// The extensions of Neutron.
        ExtensionList = "network_extension_list", NETWORK, Read;
        /// A router with its routes.
        RouterGet = "router_get", NETWORK, Read;
        /// Writes all routes of a router, under its revision.
        RouterUpdate = "router_update", NETWORK, Write;
        /// Adds routes to a router. Existing ones are no error.
        RouterAddRoutes = "router_add_extraroutes", NETWORK, IdempotentWrite;
        /// Removes routes from a router. Missing ones are no error.
        RouterRemoveRoutes = "router_remove_extraroutes", NETWORK, IdempotentWrite;
        /// Creates a floating IP.
        FloatingIpCreate = "floating_ip_create", NETWORK, Write;
        /// Moves a floating IP to another port, or detaches it.
        FloatingIpUpdate = "floating_ip_update", NETWORK, Write;
        /// Deletes a floating IP.
        FloatingIpDelete = "floating_ip_delete", NETWORK, IdempotentWrite;
        /// A page of security groups.
        SecurityGroupList = "security_group_list", NETWORK, Read;
        /// Creates a security group.
        SecurityGroupCreate = "security_group_create", NETWORK, Write;
        /// Deletes a security group.
        SecurityGroupDelete = "security_group_delete", NETWORK, IdempotentWrite;
        /// The rules of a security group.
        SecurityGroupRuleList = "security_group_rule_list", NETWORK, Read;
        /// Creates a rule.
        SecurityGroupRuleCreate = "security_group_rule_create", NETWORK, Write;
        /// Deletes a rule.
        SecurityGroupRuleDelete = "security_group_rule_delete", NETWORK, IdempotentWrite;

        /// Octavia's list of versions.
        LoadBalancerVersions = "version_list", LOAD_BALANCER, Read;
        /// Octavia's providers.
        LoadBalancerProviders = "loadbalancer_provider_list", LOAD_BALANCER, Read;
        /// One of Octavia's flavors.
        LoadBalancerFlavorGet = "loadbalancer_flavor_get", LOAD_BALANCER, Read;
        /// One of Octavia's availability zones.
        LoadBalancerZoneGet = "loadbalancer_availabilityzone_get", LOAD_BALANCER, Read;
        /// The quotas of the project.
        LoadBalancerQuotaGet = "loadbalancer_quota_get", LOAD_BALANCER, Read;
        /// A page of load balancers.
        LoadBalancerList = "loadbalancer_list", LOAD_BALANCER, Read;
        /// One load balancer, or its state.
        LoadBalancerGet = "loadbalancer_get", LOAD_BALANCER, Read;
        /// Creates a load balancer, usually with everything below it.
        LoadBalancerCreate = "loadbalancer_create", LOAD_BALANCER, Write;
        /// Updates a load balancer's own fields.
        LoadBalancerUpdate = "loadbalancer_update", LOAD_BALANCER, Write;
        /// Deletes a load balancer.
        LoadBalancerDelete = "loadbalancer_delete", LOAD_BALANCER, Write;
        /// Fails over a load balancer.
        LoadBalancerFailover = "loadbalancer_failover", LOAD_BALANCER, Write;
        /// One listener.
        ListenerGet = "loadbalancer_listener_get", LOAD_BALANCER, Read;
        /// A page of listeners.
        ListenerList = "loadbalancer_listener_list", LOAD_BALANCER, Read;
        /// Creates a listener.
        ListenerCreate = "loadbalancer_listener_create", LOAD_BALANCER, Write;
        /// Updates a listener.
        ListenerUpdate = "loadbalancer_listener_update", LOAD_BALANCER, Write;
        /// Deletes a listener.
        ListenerDelete = "loadbalancer_listener_delete", LOAD_BALANCER, Write;
        /// One pool.
        PoolGet = "loadbalancer_pool_get", LOAD_BALANCER, Read;
        /// A page of pools.
        PoolList = "loadbalancer_pool_list", LOAD_BALANCER, Read;
        /// Creates a pool.
        PoolCreate = "loadbalancer_pool_create", LOAD_BALANCER, Write;
        /// Updates a pool.
        PoolUpdate = "loadbalancer_pool_update", LOAD_BALANCER, Write;
        /// Deletes a pool.
        PoolDelete = "loadbalancer_pool_delete", LOAD_BALANCER, Write;
        /// The members of a pool.
        MemberList = "loadbalancer_member_list", LOAD_BALANCER, Read;
        /// Replaces or adds several members.
        MembersUpdate = "loadbalancer_members_update", LOAD_BALANCER, Write;
        /// Creates a member.
        MemberCreate = "loadbalancer_member_create", LOAD_BALANCER, Write;
        /// Updates a member.
        MemberUpdate = "loadbalancer_member_update", LOAD_BALANCER, Write;
        /// Deletes a member.
        MemberDelete = "loadbalancer_member_delete", LOAD_BALANCER, Write;
        /// A page of health monitors.
        MonitorList = "loadbalancer_healthmonitor_list", LOAD_BALANCER, Read;
        /// One health monitor.
        MonitorGet = "loadbalancer_healthmonitor_get", LOAD_BALANCER, Read;
        /// Creates a health monitor.
        MonitorCreate = "loadbalancer_healthmonitor_create", LOAD_BALANCER, Write;
        /// Updates a health monitor.
        MonitorUpdate = "loadbalancer_healthmonitor_update", LOAD_BALANCER, Write;
        /// Deletes a health monitor.
        MonitorDelete = "loadbalancer_healthmonitor_delete", LOAD_BALANCER, Write;

        /// The metadata of a secret.
        SecretGet = "secret_get", KEY_MANAGER, Read;
        /// The metadata of a container.
        ContainerGet = "container_get", KEY_MANAGER, Read;
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::client::{Effect, Operation};

    use super::*;

    #[test]
    fn names_match_the_calls() {
        for op in Op::ALL {
            let name = op.name();
            let reads = ["_list", "_get"].iter().any(|end| name.ends_with(end));
            assert_eq!(reads, op.effect() == Effect::Read, "{name}");
            if op.bucket() == LOAD_BALANCER {
                assert_ne!(op.effect(), Effect::IdempotentWrite, "{name}: the second one is refused");
            }
        }
    }

    #[test]
    fn every_request_that_dashboards_of_the_go_cloud_controller_know_has_its_name() {
        let names = "flavor_get floating_ip_create floating_ip_delete floating_ip_list floating_ip_update \
            loadbalancer_create loadbalancer_delete loadbalancer_get loadbalancer_list loadbalancer_update \
            loadbalancer_healthmonitor_create loadbalancer_healthmonitor_delete loadbalancer_healthmonitor_get \
            loadbalancer_healthmonitor_update loadbalancer_listener_create loadbalancer_listener_delete \
            loadbalancer_listener_list loadbalancer_listener_update loadbalancer_member_list \
            loadbalancer_members_update loadbalancer_pool_create loadbalancer_pool_delete loadbalancer_pool_list \
            loadbalancer_pool_update network_extension_list network_list port_list port_update port_tag_delete \
            router_get router_update security_group_create security_group_delete security_group_rule_create \
            security_group_rule_delete security_group_rule_list server_get server_list subnet_get subnet_list \
            version_list";
        for name in names.split_whitespace() {
            assert!(Op::ALL.iter().any(|op| op.name() == name), "{name}");
        }
    }

    #[test]
    fn names_are_unique_in_a_service() {
        let mut seen = std::collections::HashSet::new();
        for op in Op::ALL {
            assert!(seen.insert((op.name(), op.bucket())), "{}", op.name());
        }
    }
}
