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
    /// Networks of the clients that are admitted, of both families.
    ALLOWED_RANGES = "service.beta.kubernetes.io/azure-allowed-ip-ranges", "networks, separated by commas";
    /// Service tags of the clients that are admitted.
    ALLOWED_TAGS = "service.beta.kubernetes.io/azure-allowed-service-tags", "service tags, separated by commas";
    /// All other clients are refused, also those that another rule admits.
    DENY_OTHERS = "service.beta.kubernetes.io/azure-deny-all-except-load-balancer-source-ranges", "bool, default false";
    /// Packets arrive at the node port of the node, not at the port of the load balancer.
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
}

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
