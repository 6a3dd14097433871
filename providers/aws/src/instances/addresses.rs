//! From the network interfaces of an instance to the addresses of its node.

use ccm_core::{AddressType, NodeAddress, load_balancer::IpFamily};

use crate::client::ec2::Instance;

/// The addresses in the order of upstream: family by family, interfaces by their device index.
pub(crate) fn addresses(instance: &Instance, families: &[IpFamily]) -> Vec<NodeAddress> {
    use AddressType::{ExternalDNS, ExternalIP, Hostname, InternalDNS, InternalIP};
    let mut interfaces: Vec<_> = instance.interfaces.iter().filter(|interface| interface.in_use).collect();
    // Those without an index come last.
    interfaces.sort_by_key(|interface| interface.device_index.unwrap_or(i32::MAX));
    let mut addresses = Vec::new();
    let mut add = |kind, text: &str| {
        if !text.is_empty() {
            addresses.push(NodeAddress::new(kind, text));
        }
    };
    for family in families {
        let ips = interfaces.iter().flat_map(|interface| match family {
            IpFamily::V4 => interface.addresses.as_slice(),
            IpFamily::V6 => interface.ipv6.get(..1).unwrap_or_default(),
        });
        let has_family = ips.clone().next().is_some();
        ips.for_each(|ip| add(InternalIP, ip));
        if instance.is_fargate {
            if has_family {
                add(InternalDNS, &instance.private_dns);
            }
        } else if *family == IpFamily::V4 {
            add(ExternalIP, &instance.public_ip);
            add(InternalDNS, &instance.private_dns);
            add(Hostname, &instance.private_dns);
            add(ExternalDNS, &instance.public_dns);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::client::ec2::Interface;

    fn instance(interfaces: Vec<Interface>) -> Instance {
        Instance {
            private_dns: "ip-10-0-0-1.ec2.internal".into(),
            interfaces,
            ..Instance::default()
        }
    }

    fn interface(index: Option<i32>, ips: &[&str], ipv6: &[&str]) -> Interface {
        Interface {
            device_index: index,
            in_use: true,
            addresses: ips.iter().map(ToString::to_string).collect(),
            ipv6: ipv6.iter().map(ToString::to_string).collect(),
            ..Interface::default()
        }
    }

    fn shown(instance: &Instance, families: &[IpFamily]) -> String {
        let found = addresses(instance, families);
        let shown = found.iter().map(|address| format!("{}={}", address.kind, address.address));
        shown.collect::<Vec<_>>().join(" ")
    }

    const DNS: &str = "InternalDNS=ip-10-0-0-1.ec2.internal Hostname=ip-10-0-0-1.ec2.internal";

    #[test]
    fn interfaces_come_in_the_order_of_their_devices() {
        let interfaces = vec![
            interface(None, &["10.0.3.1"], &[]),
            interface(Some(1), &["10.0.2.1"], &["fd00::2", "fd00::3"]),
            interface(Some(0), &["10.0.0.1", "10.0.0.9"], &["fd00::1"]),
            Interface {
                in_use: false,
                ..interface(Some(2), &["10.0.4.1"], &[])
            },
        ];
        let v4 = "InternalIP=10.0.0.1 InternalIP=10.0.0.9 InternalIP=10.0.2.1 InternalIP=10.0.3.1";
        let v6 = "InternalIP=fd00::1 InternalIP=fd00::2";
        let machine = instance(interfaces);
        assert_eq!(shown(&machine, &[IpFamily::V4]), format!("{v4} {DNS}"));
        assert_eq!(shown(&machine, &[IpFamily::V6]), v6);
        let both = shown(&machine, &[IpFamily::V6, IpFamily::V4]);
        assert_eq!(both, format!("{v6} {v4} {DNS}"));
    }

    #[test]
    fn public_address_and_names_follow() {
        let mut machine = instance(vec![interface(Some(0), &["10.0.0.1"], &[])]);
        machine.public_ip = "198.51.100.1".into();
        machine.public_dns = "ec2-198-51-100-1.example.com".into();
        let rest = format!("ExternalIP=198.51.100.1 {DNS} ExternalDNS=ec2-198-51-100-1.example.com");
        let all = format!("InternalIP=10.0.0.1 {rest}");
        assert_eq!(shown(&machine, &[IpFamily::V4]), all);
        machine.interfaces.clear();
        assert_eq!(shown(&machine, &[IpFamily::V4]), rest);
    }

    #[test]
    fn a_fargate_node_has_no_hostname() {
        let mut machine = instance(vec![interface(Some(1), &["10.0.0.1"], &["fd00::1"])]);
        machine.is_fargate = true;
        let both = [IpFamily::V4, IpFamily::V6];
        let (dns, _) = DNS.split_once(' ').unwrap();
        let v4 = format!("InternalIP=10.0.0.1 {dns}");
        assert_eq!(shown(&machine, &both), format!("{v4} InternalIP=fd00::1 {dns}"));
        machine.interfaces[0].ipv6.clear();
        assert_eq!(shown(&machine, &both), v4);
    }
}
