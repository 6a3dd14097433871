//! What a Service's status says.

use ccm_core::load_balancer::{Ingress, IpMode};

/// The config's part in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostnameRule {
    /// `enable-ingress-hostname`.
    pub(crate) enabled: bool,
    /// `ingress-hostname-suffix`.
    pub(crate) suffix: String,
}

/// The one entry of `status.loadBalancer.ingress`. `hostname`: the annotation; `proxy`: members get the PROXY protocol,
/// which a node that short-cuts the load balancer would not speak.
pub(crate) fn ingress(address: &str, hostname: Option<&str>, proxy: bool, rule: &HostnameRule) -> Ingress {
    let named = |name: &str| Ingress {
        hostname: Some(name.into()),
        ..Ingress::default()
    };
    if let Some(hostname) = hostname.filter(|name| !name.is_empty()) {
        return named(hostname);
    }
    if proxy && rule.enabled {
        return named(&format!("{address}.{}", rule.suffix));
    }
    Ingress {
        ip: Some(address.into()),
        ip_mode: Some(if proxy { IpMode::Proxy } else { IpMode::Vip }),
        ..Ingress::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_hides_the_address() {
        let rule = |enabled| HostnameRule {
            enabled,
            suffix: "nip.io".into(),
        };
        let show = |hostname, proxy, enabled| {
            let ingress = ingress("192.0.2.1", hostname, proxy, &rule(enabled));
            let (ip, name) = (ingress.ip.as_deref(), ingress.hostname.as_deref());
            format!("{} {:?}", ip.or(name).unwrap_or_default(), ingress.ip_mode)
        };
        assert_eq!(show(None, false, false), "192.0.2.1 Some(Vip)");
        assert_eq!(show(None, false, true), "192.0.2.1 Some(Vip)");
        assert_eq!(show(None, true, false), "192.0.2.1 Some(Proxy)");
        assert_eq!(show(None, true, true), "192.0.2.1.nip.io None");
        assert_eq!(show(Some("web.example"), true, true), "web.example None");
        assert_eq!(show(Some("web.example"), false, false), "web.example None");
        assert_eq!(show(Some(""), false, false), "192.0.2.1 Some(Vip)");
    }
}
