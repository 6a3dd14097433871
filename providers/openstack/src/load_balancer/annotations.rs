//! The annotations of Services.
//!
//! Values that the Go cloud-controller-manager tolerates get its default here, too, and are reported. A value that it or
//! Octavia refuses is an error that names the annotation. An empty value overrides the config's value.

use ccm_core::load_balancer::annotations;

annotations! {
    prefixes: ["loadbalancer.openstack.org/", "service.beta.kubernetes.io/openstack-"];
    reference: "docs/reference/openstack.md";
    /// No floating IP. Always the case if the config has `internal-lb`.
    INTERNAL = "service.beta.kubernetes.io/openstack-internal-load-balancer", "bool, default `internal-lb`";
    /// Networks of clients, if `spec.loadBalancerSourceRanges` names none.
    SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges", "CIDRs, default all clients";
    /// Id of the load balancer to use. Also written by the controller.
    LOAD_BALANCER_ID = "loadbalancer.openstack.org/load-balancer-id", "text";
    /// Address of the load balancer. Written by the controller.
    LOAD_BALANCER_ADDRESS = "loadbalancer.openstack.org/load-balancer-address", "text";
    /// With the PROXY protocol, whether the status shows a host name in place of the address. The Go cloud-controller-manager does not know
    /// this annotation.
    ENABLE_INGRESS_HOSTNAME = "loadbalancer.openstack.org/enable-ingress-hostname", "bool, default `enable-ingress-hostname`";
    /// The status shows only this name.
    HOSTNAME = "loadbalancer.openstack.org/hostname", "text";
    /// The `[LoadBalancerClass]` of the config to use.
    CLASS = "loadbalancer.openstack.org/class", "text";
    /// External network of the floating IP.
    FLOATING_NETWORK_ID = "loadbalancer.openstack.org/floating-network-id", "text, default `floating-network-id`";
    /// Subnet of the floating IP.
    FLOATING_SUBNET_ID = "loadbalancer.openstack.org/floating-subnet-id", "text, default `floating-subnet-id`";
    /// Pattern for the name of the floating IP's subnet. Ignored if `loadBalancerIP` is set.
    FLOATING_SUBNET = "loadbalancer.openstack.org/floating-subnet", "text, default `floating-subnet`";
    /// Tags of the floating IP's subnet. Ignored if `loadBalancerIP` is set.
    FLOATING_SUBNET_TAGS = "loadbalancer.openstack.org/floating-subnet-tags", "text, default `floating-subnet-tags`";
    /// The floating IP is kept when the Service is deleted or becomes internal.
    KEEP_FLOATING_IP = "loadbalancer.openstack.org/keep-floatingip", "bool, default false";
    /// Subnet of the virtual address. Only when the load balancer is created.
    SUBNET_ID = "loadbalancer.openstack.org/subnet-id", "text, default `subnet-id`";
    /// Network of the virtual address. Only when the load balancer is created.
    NETWORK_ID = "loadbalancer.openstack.org/network-id", "text, default `network-id`";
    /// Port with the virtual address. Only when the load balancer is created.
    PORT_ID = "loadbalancer.openstack.org/port-id", "text";
    /// Subnet of the members.
    MEMBER_SUBNET_ID = "loadbalancer.openstack.org/member-subnet-id", "text, default `member-subnet-id`";
    /// The most simultaneous connections; -1 is no limit.
    CONNECTION_LIMIT = "loadbalancer.openstack.org/connection-limit", "number, default -1";
    /// How connections are distributed over the members.
    LB_METHOD = "loadbalancer.openstack.org/lb-method", "text, default `lb-method`";
    /// Members get the client's address by the PROXY protocol: `true` or `v1`, or `v2`. Only at TCP ports.
    PROXY_PROTOCOL = "loadbalancer.openstack.org/proxy-protocol", "text, default `false`";
    /// Members get the client's address by the header `X-Forwarded-For`.
    X_FORWARDED_FOR = "loadbalancer.openstack.org/x-forwarded-for", "bool, default false";
    /// The load balancer terminates TLS with this certificate.
    TLS_CONTAINER_REF = "loadbalancer.openstack.org/default-tls-container-ref", "text, default `default-tls-container-ref`";
    /// The longest inactivity of a client.
    TIMEOUT_CLIENT_DATA = "loadbalancer.openstack.org/timeout-client-data", "milliseconds, default 50000";
    /// The longest time to connect to a member.
    TIMEOUT_MEMBER_CONNECT = "loadbalancer.openstack.org/timeout-member-connect", "milliseconds, default 5000";
    /// The longest inactivity of a member.
    TIMEOUT_MEMBER_DATA = "loadbalancer.openstack.org/timeout-member-data", "milliseconds, default 50000";
    /// The time to wait for more data to inspect.
    TIMEOUT_TCP_INSPECT = "loadbalancer.openstack.org/timeout-tcp-inspect", "milliseconds, default 0";
    /// Whether the health of members is monitored.
    ENABLE_HEALTH_MONITOR = "loadbalancer.openstack.org/enable-health-monitor", "bool, default `create-monitor`";
    /// Time between two checks.
    HEALTH_MONITOR_DELAY = "loadbalancer.openstack.org/health-monitor-delay", "seconds, default `monitor-delay`";
    /// The longest duration of a check.
    HEALTH_MONITOR_TIMEOUT = "loadbalancer.openstack.org/health-monitor-timeout", "seconds, default `monitor-timeout`";
    /// Successful checks before a member is up.
    HEALTH_MONITOR_MAX_RETRIES = "loadbalancer.openstack.org/health-monitor-max-retries", "1 to 10, default `monitor-max-retries`";
    /// Failed checks before a member is down.
    HEALTH_MONITOR_MAX_RETRIES_DOWN = "loadbalancer.openstack.org/health-monitor-max-retries-down", "1 to 10, default `monitor-max-retries-down`";
    /// Octavia flavor. Only when the load balancer is created.
    FLAVOR_ID = "loadbalancer.openstack.org/flavor-id", "text, default `flavor-id`";
    /// Octavia availability zone. Only when the load balancer is created.
    AVAILABILITY_ZONE = "loadbalancer.openstack.org/availability-zone", "text, default `availability-zone`";
    /// Tags of the load balancer, in addition to the controller's and those that others added. If Services share it, it has the tags of all.
    LOAD_BALANCER_TAGS = "loadbalancer.openstack.org/load-balancer-tags", "tags, separated by commas";
    /// Tags of the Service's listeners, in addition to the controller's and those that others added.
    LISTENER_TAGS = "loadbalancer.openstack.org/listener-tags", "tags, separated by commas";
    /// Tags of the Service's pools, in addition to those that others added.
    POOL_TAGS = "loadbalancer.openstack.org/pool-tags", "tags, separated by commas";
    /// Tags that the load balancer has because of the annotation. Written by the controller.
    APPLIED_LOAD_BALANCER_TAGS = "loadbalancer.openstack.org/applied-load-balancer-tags", "text";
    /// Tags that the listeners have because of the annotation. Written by the controller.
    APPLIED_LISTENER_TAGS = "loadbalancer.openstack.org/applied-listener-tags", "text";
    /// Tags that the pools have because of the annotation. Written by the controller.
    APPLIED_POOL_TAGS = "loadbalancer.openstack.org/applied-pool-tags", "text";
    /// Labels of the nodes that become members.
    NODE_SELECTOR = "loadbalancer.openstack.org/node-selector", "text, default `node-selector`";
}

/// The rules for all annotations.
pub(crate) const INTRODUCTION: &str = "An empty text overrides the config's value, except for subnet-id, network-id, member-subnet-id and lb-method. An invalid value counts as the default, and a Warning Event \
     reports it. A value that Octavia refuses is an error.";

/// The ranges that Octavia accepts.
pub(crate) mod allowed {
    use std::ops::RangeInclusive;

    /// Timeouts of listeners, in milliseconds: 24 days.
    pub(crate) const TIMEOUT: RangeInclusive<i64> = 0..=2_073_600_000;
    /// The most simultaneous connections.
    pub(crate) const CONNECTION_LIMIT: RangeInclusive<i64> = -1..=i64::MAX;
    /// Checks before a member is up or down.
    pub(crate) const RETRIES: RangeInclusive<i64> = 1..=10;
    /// Times of health monitors, in seconds.
    pub(crate) const SECONDS: RangeInclusive<i64> = 1..=i64::MAX;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_annotation_is_described_once() {
        let mut names: Vec<_> = TABLE.entries.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        for entry in TABLE.entries {
            assert!(
                entry.name.contains('/') && !entry.values.is_empty() && entry.about.trim().ends_with('.'),
                "{}",
                entry.name
            );
        }
    }
}
