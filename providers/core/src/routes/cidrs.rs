//! `--cluster-cidr`.

use std::fmt;

use ipnet::IpNet;

/// The networks of the addresses of all Pods in the cluster: one, or one of each family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterCidrs(Vec<IpNet>);

impl ClusterCidrs {
    /// Reads the flag's value.
    ///
    /// # Errors
    /// The value is invalid. The text follows the flag's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("is empty; write the network of all Pods, such as 10.244.0.0/16".to_owned());
        }
        let mut networks = Vec::new();
        for item in text.split(',').map(str::trim) {
            let network: IpNet = item
                .parse()
                .map_err(|_| format!("{item:?} is not a network; write it as 10.244.0.0/16"))?;
            networks.push(network.trunc());
        }
        if networks.len() > 2 {
            return Err(format!(
                "has {} networks; write one, or one of IPv4 and one of IPv6",
                networks.len()
            ));
        }
        if let [a, b] = networks.as_slice()
            && is_v4(a) == is_v4(b)
        {
            return Err(format!(
                "has two networks of the same family, {a} and {b}; write one of IPv4 and one of IPv6"
            ));
        }
        Ok(Self(networks))
    }

    /// The networks.
    #[must_use]
    pub fn networks(&self) -> &[IpNet] {
        &self.0
    }

    /// Whether one of the networks contains this network.
    #[must_use]
    pub fn contain(&self, network: &IpNet) -> bool {
        self.0.iter().any(|cidr| cidr.contains(network))
    }

    /// Whether one of the networks has this network's family.
    #[must_use]
    pub fn has_family_of(&self, network: &IpNet) -> bool {
        self.0.iter().any(|cidr| is_v4(cidr) == is_v4(network))
    }
}

impl fmt::Display for ClusterCidrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, cidr) in self.0.iter().enumerate() {
            write!(f, "{}{cidr}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

fn is_v4(network: &IpNet) -> bool {
    matches!(network, IpNet::V4(_))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn one_network_or_one_of_each_family() {
        for (text, shown) in [
            ("10.244.0.0/16", "10.244.0.0/16"),
            (" 10.244.3.4/16 ", "10.244.0.0/16"),
            ("fd00::/48", "fd00::/48"),
            ("10.0.0.0/8, fd00:0:0::/48", "10.0.0.0/8,fd00::/48"),
        ] {
            assert_eq!(ClusterCidrs::parse(text).unwrap().to_string(), shown, "{text}");
        }
        for (text, expected) in [
            ("", "is empty"),
            ("10.244.0.0", "\"10.244.0.0\" is not a network"),
            ("10.0.0.0/8,", "\"\" is not a network"),
            ("10.0.0.0/8,11.0.0.0/8", "same family"),
            ("fd00::/48,fd01::/48", "same family"),
            ("10.0.0.0/8,fd00::/48,11.0.0.0/8", "has 3 networks"),
        ] {
            let error = ClusterCidrs::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn networks_are_inside_only_as_a_whole() {
        for (cidr, inside, outside) in [
            (
                "10.244.0.0/16",
                &[
                    "10.244.0.0/24",
                    "10.244.10.0/24",
                    "10.244.255.0/24",
                    "10.244.0.0/16",
                ][..],
                &[
                    "10.224.0.0/24",
                    "10.0.10.0/24",
                    "10.255.255.0/24",
                    "10.244.0.0/14",
                    "::/0",
                ][..],
            ),
            (
                "10.244.0.0/14",
                &["10.244.0.0/24", "10.247.255.0/24"],
                &["10.248.0.0/24", "10.243.255.0/24"],
            ),
            ("a00:100::/10", &["a00:100::/24"], &["b00:100::/24", "10.0.0.0/24"]),
        ] {
            let cidrs = ClusterCidrs::parse(cidr).unwrap();
            for network in inside {
                assert!(cidrs.contain(&network.parse().unwrap()), "{network} in {cidr}");
            }
            for network in outside {
                assert!(!cidrs.contain(&network.parse().unwrap()), "{network} not in {cidr}");
            }
        }
    }
}
