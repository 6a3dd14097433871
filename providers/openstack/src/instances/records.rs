//! The stored part of the records of Nova and Neutron. A page of a thousand servers is several megabytes of JSON; a few
//! hundred bytes of each server are stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::client::listing::resources;

/// Declares records. Every field may be missing or `null`, but for the ID.
macro_rules! records {
    ($($(#[$about:meta])* $name:ident $([$id:ident])? { $($(#[$meta:meta])* $field:ident: $type:ty,)+ })+) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
        pub(crate) struct $name {
            $(pub(crate) $id: String,)?
            $(
                $(#[$meta])*
                #[serde(default, deserialize_with = "crate::instances::records::nullable")]
                pub(crate) $field: $type,
            )+
        }
    )+};
}
pub(crate) use records;

records! {
    /// A Nova server. Partial records of a cell that is down have little more than an id.
    Server[id] {
        name: String,
        status: String,
        flavor: Flavor,
        /// By network name, sorted bytewise.
        addresses: BTreeMap<String, Vec<NovaAddress>>,
        #[serde(rename = "accessIPv4")]
        access_ipv4: String,
        #[serde(rename = "accessIPv6")]
        access_ipv6: String,
        metadata: Metadata,
        #[serde(rename = "OS-EXT-AZ:availability_zone")]
        availability_zone: String,
        /// A hash of the compute host and the project. Empty while the server is on no host.
        #[serde(rename = "hostId")]
        host_id: String,
    }

    /// The used part of a server's metadata.
    Metadata {
        hostname: Option<String>,
    }

    /// The flavor of a server record: its name from microversion 2.47 on, before that its ID.
    Flavor {
        original_name: Option<String>,
        id: Option<String>,
    }

    /// A Neutron port.
    Port[id] {
        device_id: String,
        network_id: String,
        status: String,
        fixed_ips: Vec<FixedIp>,
        trunk_details: TrunkDetails,
        security_groups: Vec<String>,
        /// Whether security groups affect the port; missing where Neutron does not support the choice.
        port_security_enabled: Option<bool>,
        tags: Vec<String>,
        revision_number: Option<i64>,
        /// Why Neutron has refused a change of the security groups. Never part of an answer.
        refused: String,
    }

    /// The trunk that a port is the parent of.
    TrunkDetails {
        sub_ports: Vec<SubPort>,
    }

    /// A Neutron network.
    Network[id] {
        name: String,
        /// Its subnets, including those that are not visible.
        subnets: Vec<String>,
    }
}

/// An entry of a server's `addresses`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
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

/// An address of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct FixedIp {
    pub(crate) ip_address: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) subnet_id: String,
}

/// One of a trunk's subports.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct SubPort {
    pub(crate) port_id: String,
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
    pub(crate) servers_links: Vec<ServersLink>,
}

/// A link of a page to another.
#[derive(Debug, Deserialize)]
pub(crate) struct ServersLink {
    #[serde(default)]
    pub(crate) rel: String,
}

/// Whether there is another page. The link's URL is not used: services behind a proxy often return one that cannot be
/// reached. The marker is the last ID.
pub(crate) fn has_next(links: &[ServersLink]) -> bool {
    links.iter().any(|link| link.rel == "next")
}

/// Reads `null` as the default.
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
        assert_eq!((server.id.as_str(), server.status.as_str(), server.name.as_str()), ("a", "UNKNOWN", ""));
    }

    #[test]
    fn null_counts_as_missing() {
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
    fn a_page_without_its_list_is_an_error() {
        assert!(serde_json::from_str::<ServerPage>("{}").is_err());
        assert!(serde_json::from_str::<OneServer>("{}").is_err());
    }
}
