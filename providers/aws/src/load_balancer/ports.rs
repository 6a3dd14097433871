//! Listeners, as a Service requests them.

use ccm_core::load_balancer::ServicePort;

/// A listener and its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortSpec {
    pub(crate) port: u16,
    pub(crate) node_port: u16,
    /// On a network load balancer `TCP`, `UDP`, `TCP_UDP` or `TLS`, on a classic one `TCP`, `HTTP`, `SSL` or `HTTPS`.
    pub(crate) protocol: &'static str,
    /// The protocol to the targets.
    pub(crate) target_protocol: &'static str,
}

impl PortSpec {
    /// The listener of a Service's port, with its protocol and that to the targets.
    pub(super) fn new(port: &ServicePort, [protocol, target_protocol]: [&'static str; 2]) -> Self {
        Self {
            port: port.port,
            node_port: port.node_port,
            protocol,
            target_protocol,
        }
    }

    /// Whether the listener has a certificate.
    pub(crate) fn is_secure(&self) -> bool {
        ["TLS", "SSL", "HTTPS"].contains(&self.protocol)
    }
}

/// The IP protocols of a protocol of AWS.
pub(crate) fn transports(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "UDP" => &["udp"],
        "TCP_UDP" => &["tcp", "udp"],
        _ => &["tcp"],
    }
}
