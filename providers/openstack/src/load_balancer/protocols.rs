//! Protocols of listeners and pools, and types of health monitors.

use ccm_core::load_balancer::Protocol;

use super::features::{Capabilities, Feature};

/// Whether and how members get the client's address by the PROXY protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Proxy {
    /// Off.
    #[default]
    Off,
    /// Version 1: a line of text.
    V1,
    /// Version 2: binary data.
    V2,
}

impl Proxy {
    /// Parses the annotation; `None` for an invalid value, which counts as `false`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "false" => Some(Self::Off),
            "true" | "v1" => Some(Self::V1),
            "v2" => Some(Self::V2),
            _ => None,
        }
    }

    /// Octavia's name of the pool's protocol.
    fn pool(self) -> Option<&'static str> {
        match self {
            Self::Off => None,
            Self::V1 => Some("PROXY"),
            Self::V2 => Some("PROXYV2"),
        }
    }
}

/// The protocol of a Service's listeners: TLS wins over the header.
pub(crate) fn listener(port: Protocol, tls: bool, forwarded_for: bool) -> &'static str {
    match (tls, forwarded_for) {
        (true, _) => "TERMINATED_HTTPS",
        (false, true) => "HTTP",
        (false, false) => port.as_str(),
    }
}

/// The protocol of the pool behind a listener with this protocol. UDP and SCTP have no PROXY protocol.
pub(crate) fn pool(listener: &'static str, proxy: Proxy) -> &'static str {
    match (listener, proxy.pool()) {
        ("UDP" | "SCTP", _) => listener,
        (_, Some(pool)) => pool,
        ("TERMINATED_HTTPS", None) => "HTTP",
        (_, None) => listener,
    }
}

/// The health check of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthCheck {
    /// Connects; for UDP, waits for a refusal.
    Connect(&'static str),
    /// Asks the node at this port whether it has endpoints.
    Healthz(u16),
}

impl HealthCheck {
    /// The check for members of a port. `health_port`: the port at which nodes report whether they have endpoints, if
    /// they do.
    pub(crate) fn of(port: Protocol, health_port: Option<u16>, capabilities: Capabilities) -> Self {
        match health_port {
            Some(health_port) if http_usable(port, capabilities) => Self::Healthz(health_port),
            _ => Self::Connect(match port {
                Protocol::Tcp => "TCP",
                Protocol::Sctp => "SCTP",
                Protocol::Udp => "UDP-CONNECT",
            }),
        }
    }

    /// Octavia's name of the monitor's type.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Connect(kind) => kind,
            Self::Healthz(_) => "HTTP",
        }
    }

    /// The port of the check, if it is not the member's.
    pub(crate) fn monitor_port(self) -> Option<u16> {
        match self {
            Self::Connect(_) => None,
            Self::Healthz(port) => Some(port),
        }
    }
}

/// The path, method and expected codes of monitors of type HTTP.
pub(crate) const HEALTHZ: (&str, &str, &str) = ("/healthz", "GET", "200");

fn http_usable(port: Protocol, capabilities: Capabilities) -> bool {
    !capabilities.ovn && (port != Protocol::Udp || capabilities.has(Feature::HttpMonitorOnUdp))
}

#[cfg(test)]
mod tests {
    use super::super::features::Version;
    use super::*;

    #[test]
    fn tls_wins_over_the_header_and_both_over_the_port() {
        for (port, tls, header, expected) in [
            (Protocol::Tcp, true, true, "TERMINATED_HTTPS"),
            (Protocol::Tcp, true, false, "TERMINATED_HTTPS"),
            (Protocol::Tcp, false, true, "HTTP"),
            (Protocol::Tcp, false, false, "TCP"),
            (Protocol::Udp, false, false, "UDP"),
            (Protocol::Sctp, false, false, "SCTP"),
        ] {
            assert_eq!(listener(port, tls, header), expected);
        }
    }

    #[test]
    fn pools_use_proxy_or_the_rest_of_the_listeners_protocol() {
        for (listener, proxy, expected) in [
            ("TCP", Proxy::Off, "TCP"),
            ("TCP", Proxy::V1, "PROXY"),
            ("TCP", Proxy::V2, "PROXYV2"),
            ("TERMINATED_HTTPS", Proxy::Off, "HTTP"),
            ("TERMINATED_HTTPS", Proxy::V1, "PROXY"),
            ("HTTP", Proxy::Off, "HTTP"),
            ("UDP", Proxy::Off, "UDP"),
        ] {
            assert_eq!(pool(listener, proxy), expected);
        }
    }

    #[test]
    fn proxy_has_five_values() {
        for (text, expected) in [
            ("", Some(Proxy::Off)),
            ("false", Some(Proxy::Off)),
            ("true", Some(Proxy::V1)),
            ("v1", Some(Proxy::V1)),
            ("v2", Some(Proxy::V2)),
            ("V2", None),
            ("yes", None),
        ] {
            assert_eq!(Proxy::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn nodes_are_checked_only_if_octavia_supports_it() {
        let of = |minor, provider| Capabilities::of(Version(minor), provider);
        for (port, health, capabilities, kind, at) in [
            (Protocol::Tcp, None, of(30, "amphora"), "TCP", None),
            (Protocol::Sctp, None, of(30, "amphora"), "SCTP", None),
            (Protocol::Udp, None, of(30, "amphora"), "UDP-CONNECT", None),
            (Protocol::Tcp, Some(31000), of(1, "amphora"), "HTTP", Some(31000)),
            (Protocol::Udp, Some(31000), of(16, "amphora"), "HTTP", Some(31000)),
            (Protocol::Udp, Some(31000), of(15, "amphora"), "UDP-CONNECT", None),
            (Protocol::Tcp, Some(31000), of(30, "ovn"), "TCP", None),
            (Protocol::Udp, Some(31000), of(30, "ovn"), "UDP-CONNECT", None),
        ] {
            let check = HealthCheck::of(port, health, capabilities);
            assert_eq!((check.kind(), check.monitor_port()), (kind, at), "{port} {capabilities:?}");
        }
    }
}
