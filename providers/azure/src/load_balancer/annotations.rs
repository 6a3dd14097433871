//! The annotations of Services.
//!
//! A boolean is true if it is `true` in any case; everything else is false, as in the Go cloud-controller-manager.

use ccm_core::load_balancer::{ServiceView, annotations};

annotations! {
    prefixes: ["service.beta.kubernetes.io/azure-"];
    reference: "docs/reference/azure.md";
    /// The load balancer has no public address.
    INTERNAL = "service.beta.kubernetes.io/azure-load-balancer-internal", "bool, default false";
    /// Subnet of an internal load balancer.
    INTERNAL_SUBNET = "service.beta.kubernetes.io/azure-load-balancer-internal-subnet", "name, default `subnetName`";
    /// Address of an internal load balancer, or an existing public IP address. It wins over `spec.loadBalancerIP`.
    ADDRESS_V4 = "service.beta.kubernetes.io/azure-load-balancer-ipv4", "IPv4 address";
    /// The same for IPv6.
    ADDRESS_V6 = "service.beta.kubernetes.io/azure-load-balancer-ipv6", "IPv6 address";
    /// Existing public IP address by its name. It wins over all other annotations that choose an address.
    ADDRESS_NAME = "service.beta.kubernetes.io/azure-pip-name", "name";
    /// The same for IPv6. A Service with IPv6 alone may use either.
    ADDRESS_NAME_V6 = "service.beta.kubernetes.io/azure-pip-name-ipv6", "name";
    /// Load balancers that may serve the Service, of `multipleStandardLoadBalancerConfigurations`. It moves if its own is not among them.
    CONFIGURATIONS = "service.beta.kubernetes.io/azure-load-balancer-configurations", "names, separated by commas";
    /// Resource group of the public IP address.
    ADDRESS_GROUP = "service.beta.kubernetes.io/azure-load-balancer-resource-group", "name, default `resourceGroup`";
    /// Further addresses at which clients reach the Service, such as that of a global load balancer. The status and the rules of the
    /// network security group have them.
    ADDITIONAL_ADDRESSES = "service.beta.kubernetes.io/azure-additional-public-ips", "IP addresses, separated by commas";
    /// Public IP prefix from which a new public IP address is taken. Another prefix means another address.
    PREFIX = "service.beta.kubernetes.io/azure-pip-prefix-id", "resource ID";
    /// The same for IPv6. A Service with IPv6 alone may use either.
    PREFIX_V6 = "service.beta.kubernetes.io/azure-pip-prefix-id-ipv6", "resource ID";
    /// Tags of the public IP address. A tag that is removed here stays.
    ADDRESS_TAGS = "service.beta.kubernetes.io/azure-pip-tags", "`a=b,c=d`";
    /// IP tags of a new public IP address.
    IP_TAGS = "service.beta.kubernetes.io/azure-pip-ip-tags", "`RoutingPreference=Internet,..`";
    /// DNS label of the public IP address; an empty value removes it.
    DNS_LABEL = "service.beta.kubernetes.io/azure-dns-label-name", "label";
    /// Networks of the clients that are admitted, of both families.
    ALLOWED_RANGES = "service.beta.kubernetes.io/azure-allowed-ip-ranges", "networks, separated by commas";
    /// Service tags of the clients that are admitted.
    ALLOWED_TAGS = "service.beta.kubernetes.io/azure-allowed-service-tags", "service tags, separated by commas";
    /// The network security group gets no rules for the Service.
    NO_SECURITY_RULES = "service.beta.kubernetes.io/azure-disable-load-balancer-nsg-rule", "bool, default false";
    /// All other clients are refused, also those that another rule admits.
    DENY_OTHERS = "service.beta.kubernetes.io/azure-deny-all-except-load-balancer-source-ranges", "bool, default false";
    /// Packets arrive at the addresses and node ports of nodes, not at the address of the load balancer.
    NO_FLOATING_IP = "service.beta.kubernetes.io/azure-disable-load-balancer-floating-ip", "bool, default false";
    /// Minutes until an idle TCP connection ends.
    IDLE_TIMEOUT = "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout", "4 to 100, default 4";
    /// Idle connections end without a reset.
    NO_TCP_RESET = "service.beta.kubernetes.io/azure-load-balancer-disable-tcp-reset", "bool, default false";
    /// One rule for all ports and protocols. Only for internal load balancers.
    ALL_PORTS = "service.beta.kubernetes.io/azure-load-balancer-enable-high-availability-ports", "bool, default false";
    /// Protocol of health probes.
    PROBE_PROTOCOL = "service.beta.kubernetes.io/azure-load-balancer-health-probe-protocol", "`tcp`, `http` or `https`, default `tcp`";
    /// Seconds between health probes.
    PROBE_INTERVAL = "service.beta.kubernetes.io/azure-load-balancer-health-probe-interval", "number, at least 5, default 5";
    /// Number of probes after which a node is healthy or not.
    PROBE_COUNT = "service.beta.kubernetes.io/azure-load-balancer-health-probe-num-of-probe", "number, at least 2, default 2";
    /// Path of health probes with HTTP.
    PROBE_PATH = "service.beta.kubernetes.io/azure-load-balancer-health-probe-request-path", "path, default `/`";
    /// The frontend gets a private link service. Without it, a private link service of the Service is deleted.
    LINK_CREATE = "service.beta.kubernetes.io/azure-pls-create", "bool, default false";
    /// Name of the private link service. It cannot change.
    LINK_NAME = "service.beta.kubernetes.io/azure-pls-name", "name, default `pls-` and the name of the frontend";
    /// Resource group of the private link service. It cannot change.
    LINK_GROUP = "service.beta.kubernetes.io/azure-pls-resource-group", "name, default `privateLinkServiceResourceGroup`";
    /// Subnet of the addresses from which its connections come. Its network policies for private link services are disabled.
    LINK_SUBNET = "service.beta.kubernetes.io/azure-pls-ip-configuration-subnet", "name, default that of the internal load balancer";
    /// Number of its addresses.
    LINK_ADDRESS_COUNT = "service.beta.kubernetes.io/azure-pls-ip-configuration-ip-address-count", "1 to 8, default 1";
    /// Addresses that it has. Azure chooses the others.
    LINK_ADDRESSES = "service.beta.kubernetes.io/azure-pls-ip-configuration-ip-address", "IPv4 addresses, separated by spaces";
    /// Names that private endpoints get.
    LINK_FQDNS = "service.beta.kubernetes.io/azure-pls-fqdns", "names, separated by spaces";
    /// Connections begin with a header of the proxy protocol, version 2.
    LINK_PROXY_PROTOCOL = "service.beta.kubernetes.io/azure-pls-proxy-protocol", "bool, default false";
    /// Subscriptions that see the private link service.
    LINK_VISIBILITY = "service.beta.kubernetes.io/azure-pls-visibility", "subscriptions, separated by spaces, or `*`";
    /// Subscriptions whose connections are approved at once.
    LINK_AUTO_APPROVAL = "service.beta.kubernetes.io/azure-pls-auto-approval", "subscriptions, separated by spaces";
}

/// The annotation of the Go cloud-controller-manager that chooses one of several basic load balancers, which this program does not have.
pub(crate) const MODE: &str = "service.beta.kubernetes.io/azure-load-balancer-mode";

/// The value of a boolean annotation.
pub(crate) fn is_true(service: &ServiceView, key: &str) -> bool {
    service.annotation(key).is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
}

/// An annotation of one port, such as `health-probe_protocol`: key and value.
pub(crate) fn of_port<'a>(service: &'a ServiceView, port: u16, name: &str) -> Option<(String, &'a str)> {
    let key = format!("service.beta.kubernetes.io/port_{port}_{name}");
    let value = service.annotation_text(&key)?;
    Some((key, value))
}
