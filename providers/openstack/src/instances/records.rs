//! What is kept of the records of Nova and Neutron. A page of a thousand servers is several megabytes of JSON; of a
//! server a few hundred bytes stay.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::client::listing::resources;

/// A Nova server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "WireServer")]
pub(crate) struct Server {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) status: String,
    pub(crate) flavor: Flavor,
    /// By network name. Sorted bytewise, which is the order in which they are to be walked.
    pub(crate) addresses: BTreeMap<String, Vec<NovaAddress>>,
    pub(crate) access_ipv4: String,
    pub(crate) access_ipv6: String,
    /// Metadata item `hostname`.
    pub(crate) hostname: Option<String>,
    pub(crate) availability_zone: String,
}

/// What a server record says of its flavor: the name from microversion 2.47 on, before it the id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Flavor {
    #[serde(default)]
    pub(crate) original_name: Option<String>,
    #[serde(default)]
    pub(crate) id: Option<String>,
}

/// An entry of a server's `addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "WireAddress")]
pub(crate) struct NovaAddress {
    pub(crate) addr: String,
    pub(crate) floating: bool,
}

#[derive(Deserialize)]
struct WireAddress {
    addr: String,
    #[serde(default, rename = "OS-EXT-IPS:type")]
    kind: Option<String>,
}

impl From<WireAddress> for NovaAddress {
    fn from(wire: WireAddress) -> Self {
        Self {
            addr: wire.addr,
            floating: wire.kind.as_deref() == Some("floating"),
        }
    }
}

#[derive(Deserialize)]
struct WireServer {
    id: String,
    // Partial records of a cell that is down have little more than an id.
    #[serde(default, deserialize_with = "nullable")]
    name: String,
    #[serde(default, deserialize_with = "nullable")]
    status: String,
    #[serde(default, deserialize_with = "nullable")]
    flavor: Flavor,
    #[serde(default, deserialize_with = "nullable")]
    addresses: BTreeMap<String, Vec<NovaAddress>>,
    #[serde(default, rename = "accessIPv4", deserialize_with = "nullable")]
    access_ipv4: String,
    #[serde(default, rename = "accessIPv6", deserialize_with = "nullable")]
    access_ipv6: String,
    #[serde(default, deserialize_with = "nullable")]
    metadata: Metadata,
    #[serde(
        default,
        rename = "OS-EXT-AZ:availability_zone",
        deserialize_with = "nullable"
    )]
    availability_zone: String,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    hostname: Option<String>,
}

impl From<WireServer> for Server {
    fn from(wire: WireServer) -> Self {
        Self {
            id: wire.id,
            name: wire.name,
            status: wire.status,
            flavor: wire.flavor,
            addresses: wire.addresses,
            access_ipv4: wire.access_ipv4,
            access_ipv6: wire.access_ipv6,
            hostname: wire.metadata.hostname,
            availability_zone: wire.availability_zone,
        }
    }
}

/// A Neutron port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Port {
    pub(crate) id: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) device_id: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) network_id: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) status: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) fixed_ips: Vec<FixedIp>,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) trunk_details: TrunkDetails,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) security_groups: Vec<String>,
    /// Whether security groups have an effect on it; missing where Neutron does not have that choice.
    #[serde(default)]
    pub(crate) port_security_enabled: Option<bool>,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) tags: Vec<String>,
    #[serde(default)]
    pub(crate) revision_number: Option<i64>,
}

/// An address of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct FixedIp {
    pub(crate) ip_address: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) subnet_id: String,
}

/// The trunk that a port is the parent of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct TrunkDetails {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) sub_ports: Vec<SubPort>,
}

/// One of a trunk's subports.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct SubPort {
    pub(crate) port_id: String,
}

/// A Neutron network.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Network {
    pub(crate) id: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) name: String,
    /// Its subnets, also those that we may not see.
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) subnets: Vec<String>,
}

resources! {
    Port: "port" "ports" of Network at ["ports"], PortList;
    Network: "network" "networks" of Network at ["networks"], NetworkList;
}

/// The answer to a read of one server.
#[derive(Debug, Deserialize)]
pub(crate) struct OneServer {
    pub(crate) server: Server,
}

/// The answer to a read of one flavor.
#[derive(Debug, Deserialize)]
pub(crate) struct OneFlavor {
    pub(crate) flavor: NamedFlavor,
}

/// A Nova flavor.
#[derive(Debug, Deserialize)]
pub(crate) struct NamedFlavor {
    pub(crate) name: String,
}

/// A page of servers.
#[derive(Debug, Deserialize)]
pub(crate) struct ServerPage {
    pub(crate) servers: Vec<Server>,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) servers_links: Vec<Link>,
}

/// A link of a page to another.
#[derive(Debug, Deserialize)]
pub(crate) struct Link {
    #[serde(default)]
    pub(crate) rel: String,
}

/// Whether there is a further page. Its address is not taken from the link: services behind a proxy often give one that
/// can not be reached. The marker is the last id.
pub(crate) fn has_next(links: &[Link]) -> bool {
    links.iter().any(|link| link.rel == "next")
}

/// `null` is as good as missing.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_a_partial_record_of_a_down_cell() {
        let server: Server =
            serde_json::from_str(r#"{"id": "a", "status": "UNKNOWN", "tenant_id": "p", "links": []}"#)
                .unwrap();
        assert_eq!(
            (server.id.as_str(), server.status.as_str(), server.name.as_str()),
            ("a", "UNKNOWN", "")
        );
    }

    #[test]
    fn null_is_as_good_as_missing() {
        let server: Server = serde_json::from_str(
            r#"{"id": "a", "name": null, "flavor": null, "addresses": null, "metadata": null, "accessIPv4": null,
                "OS-EXT-AZ:availability_zone": null}"#,
        )
        .unwrap();
        assert_eq!(
            server,
            Server {
                id: "a".into(),
                ..Server::default()
            }
        );
        let port: Port = serde_json::from_str(
            r#"{"id": "p", "device_id": null, "trunk_details": null, "fixed_ips": null}"#,
        )
        .unwrap();
        assert_eq!(
            port,
            Port {
                id: "p".into(),
                ..Port::default()
            }
        );
    }

    #[test]
    fn a_page_without_its_list_is_no_page() {
        assert!(serde_json::from_str::<ServerPage>("{}").is_err());
        assert!(serde_json::from_str::<OneServer>("{}").is_err());
    }
}
