//! Parameters of the control API: objects to create and changes, in Rust and as JSON.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A server to create. All fields but the name have defaults.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSpec {
    /// Name. In a bulk creation `{i}` is replaced by the number, `{i:05}` by the number with leading zeros.
    pub name: String,
    /// UUID; random if not said.
    pub id: Option<String>,
    /// Region; the first one if not said.
    pub region: Option<String>,
    /// Project, by id or name; the default project if not said.
    pub project: Option<String>,
    /// Nova status; `ACTIVE` if not said.
    pub status: Option<String>,
    /// Flavor, by id or name; the region's first if not said.
    pub flavor: Option<String>,
    /// Availability zone; `nova` if not said.
    pub availability_zone: Option<String>,
    /// Cell; `cell1` if not said.
    pub cell: Option<String>,
    /// Metadata of the server.
    pub metadata: BTreeMap<String, String>,
    /// `accessIPv4`.
    pub access_ipv4: Option<Ipv4Addr>,
    /// `accessIPv6`.
    pub access_ipv6: Option<Ipv6Addr>,
    /// Ports; one on the default network if not said.
    pub ports: Option<Vec<PortSpec>>,
    /// Replaces the addresses that Nova shows, which otherwise follow from ports and floating IPs.
    pub addresses: Option<BTreeMap<String, Vec<AddressSpec>>>,
}

impl ServerSpec {
    /// A server with this name and the defaults.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}

/// One entry of Nova's addresses.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressSpec {
    /// The address.
    pub addr: IpAddr,
    /// `fixed` or `floating`.
    #[serde(default = "fixed")]
    pub kind: String,
}

fn fixed() -> String {
    "fixed".to_owned()
}

/// Changes to a server; missing fields do not change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerPatch {
    /// New name.
    pub name: Option<String>,
    /// New status; the power state follows.
    pub status: Option<String>,
    /// New flavor, by id or name.
    pub flavor: Option<String>,
    /// New availability zone.
    pub availability_zone: Option<String>,
    /// New cell.
    pub cell: Option<String>,
    /// New `hostId`, as after a migration.
    pub host_id: Option<String>,
    /// Replaces all metadata.
    pub metadata: Option<BTreeMap<String, String>>,
    /// New `accessIPv4`.
    pub access_ipv4: Option<Ipv4Addr>,
    /// New `accessIPv6`.
    pub access_ipv6: Option<Ipv6Addr>,
    /// Addresses that Nova shows from now on.
    pub addresses: Option<BTreeMap<String, Vec<AddressSpec>>>,
}

/// A port to create.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PortSpec {
    /// UUID; random if not said.
    pub id: Option<String>,
    /// Name.
    pub name: String,
    /// Network, by id or name; the region's first internal one if not said.
    pub network: Option<String>,
    /// Fixed addresses; the next free one of each of the network's subnets if not said.
    pub addresses: Option<Vec<IpAddr>>,
    /// Neutron status; `ACTIVE` if not said.
    pub status: Option<String>,
    /// Floating IP on the first fixed one.
    pub floating: Option<IpAddr>,
    /// Tags.
    pub tags: Vec<String>,
}

impl PortSpec {
    /// A port on this network with the next free addresses.
    pub fn on(network: impl Into<String>) -> Self {
        Self {
            network: Some(network.into()),
            ..Self::default()
        }
    }
}

/// Changes to a port; missing fields do not change.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PortPatch {
    /// Replaces all fixed addresses.
    pub addresses: Option<Vec<IpAddr>>,
    /// Replaces all tags.
    pub tags: Option<Vec<String>>,
}

/// A network with its subnets.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkSpec {
    /// Name; need not be unique.
    pub name: String,
    /// UUID; random if not said.
    pub id: Option<String>,
    /// Region; the first one if not said.
    pub region: Option<String>,
    /// Project, by id or name; the default project if not said.
    pub project: Option<String>,
    /// Whether every project sees it.
    pub shared: bool,
    /// Whether it is an external network.
    pub external: bool,
    /// Subnets by their address range.
    pub subnets: Vec<IpNet>,
    /// Tags.
    pub tags: Vec<String>,
}

/// A subnet to add to a network.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubnetSpec {
    /// Name; need not be unique.
    pub name: String,
    /// UUID; random if not said.
    pub id: Option<String>,
    /// Address range.
    pub cidr: Option<IpNet>,
    /// Tags.
    pub tags: Vec<String>,
}

/// A router.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterSpec {
    /// Name; need not be unique.
    pub name: String,
    /// UUID; random if not said.
    pub id: Option<String>,
    /// Region; the first one if not said.
    pub region: Option<String>,
    /// Project, by id or name; the default project if not said.
    pub project: Option<String>,
    /// External network of the gateway, by ID or name.
    pub gateway: Option<String>,
    /// Networks, by id or name, whose subnets it connects.
    pub networks: Vec<String>,
    /// Whether its interfaces have no ports. Real ones have ports; tests that count ports use this.
    pub without_ports: bool,
}

/// A secret of the key manager, or a container of secrets.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretSpec {
    /// Name.
    pub name: String,
    /// UUID; random if not said.
    pub id: Option<String>,
    /// Whether it is a container.
    pub container: bool,
}

/// A flavor.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlavorSpec {
    /// Name.
    pub name: String,
    /// Id; random if not said.
    pub id: Option<String>,
    /// Region; the first one if not said.
    pub region: Option<String>,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory in MiB.
    pub ram: u32,
    /// Root disk in GiB.
    pub disk: u32,
}

/// A user with a password.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserSpec {
    /// Name.
    pub name: String,
    /// Password.
    pub password: String,
    /// Projects, by id or name, in which the user is a member; the default project if not said.
    pub projects: Option<Vec<String>>,
    /// Whether the user has the role `admin` there.
    pub admin: bool,
}

/// An application credential to create.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AppCredentialSpec {
    /// Name.
    pub name: String,
    /// Its owner, by id or name; the default user if not said.
    pub user: Option<String>,
    /// Its project, by id or name; the default project if not said.
    pub project: Option<String>,
    /// Secret; random if not said.
    pub secret: Option<String>,
}

/// An application credential with its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppCredential {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Secret, as a client sends it.
    pub secret: String,
    /// The owner's user id.
    pub user_id: String,
    /// The project's id.
    pub project_id: String,
}
