//! The kinds of calls, for metrics, quota and repetition.

use ccm_core::client::operations;

/// Keystone's quota.
pub(super) const IDENTITY: &str = "identity";
/// Nova's quota.
pub(super) const COMPUTE: &str = "compute";
/// Neutron's quota.
pub(super) const NETWORK: &str = "network";
/// Octavia's quota.
pub(super) const LOAD_BALANCER: &str = "load-balancer";
/// Barbican's quota.
pub(super) const KEY_MANAGER: &str = "key-manager";

// Octavia refuses a second change while it works on the first one, and a PUT with a revision cannot match twice: what was
// sent once and got no answer is looked up. Only what Neutron deletes may be deleted again without a look.
operations! {
    /// A kind of call. The names are those of the Go cloud controller where it has one.
    pub(crate) enum Op {
        /// Keystone's list of versions.
        VersionList = "version_list", IDENTITY, Read;
        /// A new token. A second one does no harm.
        TokenCreate = "token_create", IDENTITY, IdempotentWrite;
        /// A look at a token.
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
        /// One tag of a port less.
        PortTagDelete = "port_tag_delete", NETWORK, IdempotentWrite;
        /// One network.
        NetworkGet = "network_get", NETWORK, Read;
        /// A page of networks.
        NetworkList = "network_list", NETWORK, Read;
        /// A page of subnets.
        SubnetList = "subnet_list", NETWORK, Read;
        /// One subnet.
        SubnetGet = "subnet_get", NETWORK, Read;
        /// A page of floating addresses.
        FloatingIpList = "floating_ip_list", NETWORK, Read;
        /// How many things of each kind the project may have.
        NetworkQuotaGet = "quota_get", NETWORK, Read;
        /// The list of what this Neutron can.
        ExtensionList = "network_extension_list", NETWORK, Read;
        /// A router with its routes.
        RouterGet = "router_get", NETWORK, Read;
        /// All routes of a router, under its revision.
        RouterUpdate = "router_update", NETWORK, Write;
        /// More routes for a router. Those that it has already are no error.
        RouterAddRoutes = "router_add_extraroutes", NETWORK, IdempotentWrite;
        /// Fewer routes for a router. Those that it has not are no error.
        RouterRemoveRoutes = "router_remove_extraroutes", NETWORK, IdempotentWrite;
        /// A new floating address.
        FloatingIpCreate = "floating_ip_create", NETWORK, Write;
        /// A floating address gets another port, or none.
        FloatingIpUpdate = "floating_ip_update", NETWORK, Write;
        /// A floating address less.
        FloatingIpDelete = "floating_ip_delete", NETWORK, IdempotentWrite;
        /// A page of security groups.
        SecurityGroupList = "security_group_list", NETWORK, Read;
        /// A new security group.
        SecurityGroupCreate = "security_group_create", NETWORK, Write;
        /// A security group less.
        SecurityGroupDelete = "security_group_delete", NETWORK, IdempotentWrite;
        /// The rules of a security group.
        SecurityGroupRuleList = "security_group_rule_list", NETWORK, Read;
        /// A new rule.
        SecurityGroupRuleCreate = "security_group_rule_create", NETWORK, Write;
        /// A rule less.
        SecurityGroupRuleDelete = "security_group_rule_delete", NETWORK, IdempotentWrite;

        /// Octavia's list of versions.
        LoadBalancerVersions = "version_list", LOAD_BALANCER, Read;
        /// Octavia's providers.
        LoadBalancerProviders = "loadbalancer_provider_list", LOAD_BALANCER, Read;
        /// One of Octavia's flavors.
        LoadBalancerFlavorGet = "loadbalancer_flavor_get", LOAD_BALANCER, Read;
        /// One of Octavia's availability zones.
        LoadBalancerZoneGet = "loadbalancer_availabilityzone_get", LOAD_BALANCER, Read;
        /// How many things of each kind the project may have.
        LoadBalancerQuotaGet = "loadbalancer_quota_get", LOAD_BALANCER, Read;
        /// A page of load balancers.
        LoadBalancerList = "loadbalancer_list", LOAD_BALANCER, Read;
        /// One load balancer, or its state.
        LoadBalancerGet = "loadbalancer_get", LOAD_BALANCER, Read;
        /// A new load balancer, mostly with everything below it.
        LoadBalancerCreate = "loadbalancer_create", LOAD_BALANCER, Write;
        /// A load balancer's own fields.
        LoadBalancerUpdate = "loadbalancer_update", LOAD_BALANCER, Write;
        /// A load balancer less.
        LoadBalancerDelete = "loadbalancer_delete", LOAD_BALANCER, Write;
        /// A failover of a load balancer.
        LoadBalancerFailover = "loadbalancer_failover", LOAD_BALANCER, Write;
        /// One listener.
        ListenerGet = "loadbalancer_listener_get", LOAD_BALANCER, Read;
        /// A page of listeners.
        ListenerList = "loadbalancer_listener_list", LOAD_BALANCER, Read;
        /// A new listener.
        ListenerCreate = "loadbalancer_listener_create", LOAD_BALANCER, Write;
        /// A listener's fields.
        ListenerUpdate = "loadbalancer_listener_update", LOAD_BALANCER, Write;
        /// A listener less.
        ListenerDelete = "loadbalancer_listener_delete", LOAD_BALANCER, Write;
        /// One pool.
        PoolGet = "loadbalancer_pool_get", LOAD_BALANCER, Read;
        /// A page of pools.
        PoolList = "loadbalancer_pool_list", LOAD_BALANCER, Read;
        /// A new pool.
        PoolCreate = "loadbalancer_pool_create", LOAD_BALANCER, Write;
        /// A pool's fields.
        PoolUpdate = "loadbalancer_pool_update", LOAD_BALANCER, Write;
        /// A pool less.
        PoolDelete = "loadbalancer_pool_delete", LOAD_BALANCER, Write;
        /// The members of a pool.
        MemberList = "loadbalancer_member_list", LOAD_BALANCER, Read;
        /// Many members at once.
        MembersUpdate = "loadbalancer_members_update", LOAD_BALANCER, Write;
        /// A new member.
        MemberCreate = "loadbalancer_member_create", LOAD_BALANCER, Write;
        /// A member less.
        MemberDelete = "loadbalancer_member_delete", LOAD_BALANCER, Write;
        /// A page of health monitors.
        MonitorList = "loadbalancer_healthmonitor_list", LOAD_BALANCER, Read;
        /// One health monitor.
        MonitorGet = "loadbalancer_healthmonitor_get", LOAD_BALANCER, Read;
        /// A new health monitor.
        MonitorCreate = "loadbalancer_healthmonitor_create", LOAD_BALANCER, Write;
        /// A health monitor's fields.
        MonitorUpdate = "loadbalancer_healthmonitor_update", LOAD_BALANCER, Write;
        /// A health monitor less.
        MonitorDelete = "loadbalancer_healthmonitor_delete", LOAD_BALANCER, Write;

        /// A secret's description.
        SecretGet = "secret_get", KEY_MANAGER, Read;
        /// A container's description.
        ContainerGet = "container_get", KEY_MANAGER, Read;
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::client::{Effect, Operation};

    use super::*;

    #[test]
    fn names_say_what_a_call_does() {
        for op in Op::ALL {
            let name = op.name();
            let reads = ["_list", "_get"].iter().any(|end| name.ends_with(end));
            assert_eq!(reads, op.effect() == Effect::Read, "{name}");
            if op.bucket() == LOAD_BALANCER {
                assert_ne!(
                    op.effect(),
                    Effect::IdempotentWrite,
                    "{name}: the second one is refused"
                );
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
    fn no_name_stands_for_two_calls_of_one_service() {
        let mut seen = std::collections::HashSet::new();
        for op in Op::ALL {
            assert!(seen.insert((op.name(), op.bucket())), "{}", op.name());
        }
    }
}
