//! Names, exactly as the Go cloud-controller-manager builds them: it finds its objects by them.

use ccm_core::load_balancer::{IpFamily, Protocol, ServiceId, default_name};

/// The end of the name of an internal load balancer.
pub(crate) const INTERNAL: &str = "-internal";
/// The end of IPv6 objects of a dual-stack Service, and of IPv6 pools.
const IPV6: &str = "-IPv6";
/// The longest name, without room for the end of IPv6 objects.
const LONGEST: usize = 75;
/// The probe that Services share.
pub(crate) const SHARED_PROBE: &str = "cluster-service-shared-health-probe";
/// The begin of an IP address in place of the name of a public IP address. No name has a colon.
pub(crate) const PINNED: &str = "ip:";
/// The begin of the names of our security rules.
pub(crate) const RULE_PREFIX: &str = "k8s-azure-lb";

/// The names of one Service's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceNames {
    /// `a` and 31 digits of the UID.
    base: String,
    /// The subnet of the annotation, for an internal load balancer.
    subnet: Option<String>,
    is_dual_stack: bool,
}

impl ServiceNames {
    pub(crate) fn new(service: &ServiceId, subnet: Option<&str>, is_dual_stack: bool) -> Self {
        Self {
            base: default_name(service),
            subnet: subnet.map(str::to_owned),
            is_dual_stack,
        }
    }

    /// The begin of the names of all objects of the Service.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Whether a frontend or rule is one of the Service.
    pub(crate) fn owns(&self, name: &str) -> bool {
        let begin = name.get(..self.base.len());
        begin.is_some_and(|begin| begin.eq_ignore_ascii_case(&self.base))
    }

    /// The frontend of a family.
    pub(crate) fn frontend(&self, family: IpFamily) -> String {
        let name = match &self.subnet {
            Some(subnet) => format!("{}-{subnet}", self.base),
            None => self.base.clone(),
        };
        format!("{}{}", cut_to_word(name), self.family_end(family))
    }

    /// The frontend of a family for an address, if other Services have the usual one for another address.
    pub(crate) fn spare_frontend(&self, family: IpFamily, address: &str) -> String {
        // A name has no colon.
        let name = format!("{}-{}", self.base, address.replace(':', "-"));
        format!("{}{}", cut_to_word(name), self.family_end(family))
    }

    /// The rule of a port, and its probe.
    pub(crate) fn rule(&self, protocol: Protocol, port: u16, family: IpFamily) -> String {
        let port = format!("-{}-{port}", protocol_of(protocol));
        let name = match &self.subnet {
            // Only the subnet is cut.
            Some(subnet) => {
                let room = LONGEST.saturating_sub(self.base.len() + 1 + port.len());
                let subnet: String = subnet.chars().take(room).collect();
                format!("{}-{subnet}{port}", self.base)
            }
            None => format!("{}{port}", self.base),
        };
        format!("{name}{}", self.family_end(family))
    }

    /// The public address that the program creates. `prefix`: the ID of the prefix that it belongs to.
    pub(crate) fn public_address(&self, cluster: &str, prefix: Option<&str>, family: IpFamily) -> String {
        let name = format!("{cluster}-{}", self.base);
        let name = match prefix.and_then(|prefix| prefix.rsplit('/').next()) {
            Some(prefix) => format!("{name}-{prefix}"),
            None => name,
        };
        format!("{}{}", cut(&name), self.family_end(family))
    }

    /// Only a Service with both families tells its objects apart.
    fn family_end(&self, family: IpFamily) -> &'static str {
        match family {
            IpFamily::V6 if self.is_dual_stack => IPV6,
            _ => "",
        }
    }
}

/// The name of a load balancer.
pub(crate) fn load_balancer(cluster: &str, is_internal: bool) -> String {
    let end = if is_internal { INTERNAL } else { "" };
    format!("{cluster}{end}")
}

/// Whether a load balancer is internal.
pub(crate) fn is_internal(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(INTERNAL)
}

/// The private link service of a frontend.
pub(crate) fn private_link(frontend: &str) -> String {
    format!("pls-{frontend}")
}

/// The backend pool of a family, which all Services share.
pub(crate) fn pool(cluster: &str, family: IpFamily) -> String {
    let end = if family == IpFamily::V6 { IPV6 } else { "" };
    format!("{cluster}{end}")
}

/// The backend pools that the Go cloud-controller-manager creates for a Service with `externalTrafficPolicy: Local`, of both families, if
/// the cluster has several load balancers.
pub(crate) fn local_pools(service: &ServiceId) -> [String; 2] {
    let name = format!("{}-{}", service.namespace, service.name).to_ascii_lowercase();
    let v6 = format!("{name}-ipv6");
    [name, v6]
}

/// A security rule that admits clients: Services with the same protocol, sources and ports share it.
pub(crate) fn allow_rule(family: IpFamily, protocol: &str, sources: &[String], ports: &[String]) -> String {
    let sorted = |items: &[String]| {
        let mut items = items.to_vec();
        items.sort_unstable();
        items.join(",")
    };
    let content = format!("{protocol}_{}_{}", sorted(sources), sorted(ports));
    format!("{RULE_PREFIX}_allow_{}_{:x}", family_name(family), md5::compute(content))
}

/// The security rule that refuses all other clients.
pub(crate) fn deny_rule(family: IpFamily) -> String {
    format!("{RULE_PREFIX}_deny-all_{}", family_name(family))
}

fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

fn protocol_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

/// A name of at most 75 characters.
fn cut(name: &str) -> String {
    name.chars().take(LONGEST).collect()
}

/// A name of at most 75 characters. A cut one ends with a letter or an underscore.
fn cut_to_word(name: String) -> String {
    let mut short = cut(&name);
    if short.len() == name.len() {
        return name;
    }
    if let Some(last) = short.pop() {
        short.push(if last.is_ascii_alphabetic() { last } else { '_' });
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "1f2a3b4c-5d6e-7f80-9a0b-1c2d3e4f5061";
    const BASE: &str = "a1f2a3b4c5d6e7f809a0b1c2d3e4f506";

    fn names(subnet: Option<&str>, is_dual_stack: bool) -> ServiceNames {
        ServiceNames::new(&ServiceId::new("shop", "web", UID), subnet, is_dual_stack)
    }

    #[test]
    fn objects_of_a_service() {
        let one = names(None, false);
        assert_eq!(one.base(), BASE);
        assert_eq!(one.frontend(IpFamily::V4), BASE);
        // A Service of IPv6 alone has the plain names.
        assert_eq!(one.frontend(IpFamily::V6), BASE);
        assert_eq!(one.rule(Protocol::Tcp, 80, IpFamily::V4), format!("{BASE}-TCP-80"));
        assert_eq!(one.public_address("kubernetes", None, IpFamily::V4), format!("kubernetes-{BASE}"));
        let prefix = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/publicIPPrefixes/pre";
        assert_eq!(
            one.public_address("kubernetes", Some(prefix), IpFamily::V4),
            format!("kubernetes-{BASE}-pre")
        );
        let dual = names(Some("apps"), true);
        assert_eq!(dual.frontend(IpFamily::V4), format!("{BASE}-apps"));
        assert_eq!(dual.frontend(IpFamily::V6), format!("{BASE}-apps-IPv6"));
        assert_eq!(dual.rule(Protocol::Udp, 53, IpFamily::V6), format!("{BASE}-apps-UDP-53-IPv6"));
    }

    #[test]
    fn long_names_are_cut() {
        let subnet = "s".repeat(80);
        let long = names(Some(&subnet), true);
        assert_eq!(long.frontend(IpFamily::V4).len(), 75);
        assert_eq!(long.frontend(IpFamily::V6).len(), 80);
        let rule = long.rule(Protocol::Tcp, 65535, IpFamily::V4);
        assert!(rule.len() == 75 && rule.ends_with("s-TCP-65535"), "{rule}");
        let address = names(None, false).public_address(&"c".repeat(60), Some("/p"), IpFamily::V4);
        assert_eq!(address.len(), 75);
        for end in ["-", "7"] {
            let name = cut_to_word(format!("{}{end}x", "c".repeat(74)));
            assert!(name.len() == 75 && name.ends_with("c_"), "{name}");
        }
    }

    #[test]
    fn a_service_owns_names_that_begin_with_its_own() {
        let one = names(None, false);
        for (name, owns) in [
            (BASE.to_owned(), true),
            (format!("{}-TCP-80", BASE.to_uppercase()), true),
            (format!("b{}", &BASE[1..]), false),
            ("short".to_owned(), false),
        ] {
            assert_eq!(one.owns(&name), owns, "{name}");
        }
    }

    #[test]
    fn shared_objects() {
        assert_eq!(load_balancer("kubernetes", true), "kubernetes-internal");
        assert!(is_internal("Kubernetes-Internal") && !is_internal("kubernetes"));
        assert_eq!(pool("kubernetes", IpFamily::V6), "kubernetes-IPv6");
        assert_eq!(deny_rule(IpFamily::V4), "k8s-azure-lb_deny-all_IPv4");
    }

    #[test]
    fn hashes_are_those_of_the_go_program() {
        for (protocol, sources, ports, hash) in [
            ("Tcp", &["Internet"][..], &["80"][..], "d39272f7f57ed937951650d93992ad77"),
            ("Tcp", &["Internet"], &["80", "443"], "556f7044ec033071ec0dfcf7cd85bc93"),
            ("Udp", &["Internet"], &["53"], "eacf5e21d4ad7b5345009ad51af9d388"),
            ("Tcp", &["192.0.2.0/24", "10.0.0.0/8"], &["443"], "16ae48098f5b59a23dc00f037e3264d8"),
            ("*", &["Internet"], &["5000"], "9041453ad5c95ba2f399da5edec62bb3"),
        ] {
            let texts = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
            let name = allow_rule(IpFamily::V4, protocol, &texts(sources), &texts(ports));
            assert_eq!(name, format!("k8s-azure-lb_allow_IPv4_{hash}"));
        }
    }
}
