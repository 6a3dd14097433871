//! The kubelet's `--node-ip`, from the node's annotation.

use std::{fmt, net::IpAddr};

use crate::NodeAddress;

/// An error of the annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProvidedIpError {
    /// It is neither one IP nor two of different families.
    Malformed {
        /// The annotation.
        value: String,
        /// The error.
        reason: String,
    },
    /// The instance does not have this address in the cloud.
    NotOfTheMachine {
        /// The IP in the annotation.
        ip: IpAddr,
        /// The instance's addresses in the cloud.
        addresses: Vec<NodeAddress>,
    },
}

impl fmt::Display for ProvidedIpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { value, reason } => write!(f, "failed to parse node IP {value:?}: {reason}"),
            Self::NotOfTheMachine { ip, addresses } => {
                write!(
                    f,
                    "failed to get node address from cloud provider that matches ip: {ip} (the cloud has "
                )?;
                for (i, address) in addresses.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{} {}", address.kind, address.address)?;
                }
                f.write_str(if addresses.is_empty() { "none)" } else { ")" })
            }
        }
    }
}

impl std::error::Error for ProvidedIpError {}

/// Reads the annotation: one IP, or two of different families with a comma between and no spaces.
///
/// # Errors
///
/// The text of upstream for the same value.
fn parse(value: &str) -> Result<Vec<IpAddr>, ProvidedIpError> {
    let malformed = |reason: String| ProvidedIpError::Malformed {
        value: value.to_owned(),
        reason,
    };
    let ips = value
        .split(',')
        .map(|part| part.parse::<IpAddr>().map_err(|_| malformed(format!("could not parse {part:?}"))))
        .collect::<Result<Vec<_>, _>>()?;
    match ips.as_slice() {
        [_] => Ok(ips),
        [first, second] if first.is_ipv4() != second.is_ipv4() => {
            if first.is_unspecified() || second.is_unspecified() {
                return Err(malformed("dual-stack node IP cannot include '0.0.0.0' or '::'".to_owned()));
            }
            Ok(ips)
        }
        _ => Err(malformed("must contain either a single IP or a dual-stack pair of IPs".to_owned())),
    }
}

/// Reduces the instance's addresses to the provided ones: of each type that has a provided IP, only the provided
/// IPs are kept, in the annotation's order and as the cloud writes them; the other types follow unchanged.
///
/// # Errors
///
/// The annotation is malformed, or names an IP that the instance does not have.
pub fn select(value: &str, addresses: &[NodeAddress]) -> Result<Vec<NodeAddress>, ProvidedIpError> {
    let mut selected = Vec::with_capacity(addresses.len());
    let mut matched = Vec::new();
    for ip in parse(value)? {
        let before = selected.len();
        for address in addresses.iter().filter(|address| address.address.parse() == Ok(ip)) {
            selected.push(address.clone());
            matched.push(address.kind);
        }
        if selected.len() == before {
            return Err(ProvidedIpError::NotOfTheMachine {
                ip,
                addresses: addresses.to_vec(),
            });
        }
    }
    selected.extend(addresses.iter().filter(|address| !matched.contains(&address.kind)).cloned());
    Ok(selected)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::AddressType;

    /// `I 10.1.1.1, H name` -> addresses.
    fn list(text: &str) -> Vec<NodeAddress> {
        text.split(", ")
            .map(|entry| {
                let (kind, address) = entry.split_once(' ').unwrap();
                let kind = match kind {
                    "I" => AddressType::InternalIP,
                    "E" => AddressType::ExternalIP,
                    "ID" => AddressType::InternalDNS,
                    "ED" => AddressType::ExternalDNS,
                    _ => AddressType::Hostname,
                };
                NodeAddress::new(kind, address)
            })
            .collect()
    }

    #[test]
    fn selects_as_upstream_does() {
        let dual = "10.1.1.1,fc01:1234::5678";
        for (annotation, cloud, expected) in [
            ("10.1.1.1", "I 10.1.1.1, H n", "I 10.1.1.1, H n"),
            ("55.55.55.55", "I 10.1.1.1, E 55.55.55.55, H n", "E 55.55.55.55, I 10.1.1.1, H n"),
            (
                "55.55.55.55",
                "I 44.44.44.44, E 44.44.44.44, I 55.55.55.55, E 55.55.55.55, H n",
                "I 55.55.55.55, E 55.55.55.55, H n",
            ),
            (
                "10.1.1.1",
                "I 10.1.1.1, E 55.55.55.55, ID i.example, ED e.example, H n",
                "I 10.1.1.1, E 55.55.55.55, ID i.example, ED e.example, H n",
            ),
            (
                "10.1.1.1",
                "I 10.1.1.1, I 10.2.2.2, I 10.3.3.3, E 55.55.55.55, H n",
                "I 10.1.1.1, E 55.55.55.55, H n",
            ),
            (
                "2600:1f14:1d4:d101::ba3d",
                "I 10.1.1.1, I 2600:1f14:1d4:d101:0:0:0:ba3d, H n",
                "I 2600:1f14:1d4:d101:0:0:0:ba3d, H n",
            ),
            (dual, "I 10.1.1.1, I fc01:1234::5678, H n", "I 10.1.1.1, I fc01:1234::5678, H n"),
            (dual, "I fc01:1234::5678, I 10.1.1.1, H n", "I 10.1.1.1, I fc01:1234::5678, H n"),
            (
                dual,
                "I 10.1.1.1, I 10.1.1.2, I fc01:1234::1234, I fc01:1234::5678, E 55.55.55.55, H n",
                "I 10.1.1.1, I fc01:1234::5678, E 55.55.55.55, H n",
            ),
            (
                "fc01:1234::5678,10.1.1.1",
                "I 10.1.1.1, E 55.55.55.55, I fc01:1234::5678, E 2001:db1::1, H n",
                "I fc01:1234::5678, I 10.1.1.1, E 55.55.55.55, E 2001:db1::1, H n",
            ),
            (
                "55.55.55.55,fc01:1234::5678",
                "I 10.1.1.1, E 55.55.55.55, I fc01:1234::5678, E 2001:db1::1, H n",
                "E 55.55.55.55, I fc01:1234::5678, H n",
            ),
        ] {
            assert_eq!(select(annotation, &list(cloud)).unwrap(), list(expected), "{annotation} of {cloud}");
        }
    }

    #[test]
    fn refuses_what_the_machine_does_not_have() {
        for (annotation, cloud) in [
            ("10.2.2.2", "I 10.1.1.1, E 55.55.55.55, H n"),
            ("10.1.1.1,fc01:1234::5678", "I 10.1.1.1, H n"),
        ] {
            let error = select(annotation, &list(cloud)).unwrap_err();
            assert!(matches!(error, ProvidedIpError::NotOfTheMachine { .. }));
            assert!(error.to_string().contains("InternalIP 10.1.1.1"), "{error}");
        }
    }

    #[test]
    fn refuses_malformed_annotations() {
        for (annotation, reason) in [
            ("invalid-ip", "could not parse \"invalid-ip\""),
            ("", "could not parse \"\""),
            ("10.1.1.1, fc01::1", "could not parse \" fc01::1\""),
            ("10.1.1.1,10.1.1.2", "must contain either a single IP or a dual-stack pair of IPs"),
            ("10.1.1.1,fc01::1,fc01::2", "must contain either a single IP or a dual-stack pair of IPs"),
            ("0.0.0.0,fc01::1", "dual-stack node IP cannot include '0.0.0.0' or '::'"),
        ] {
            let error = parse(annotation).unwrap_err().to_string();
            assert!(error.contains(reason), "{annotation}: {error}");
        }
    }
}
