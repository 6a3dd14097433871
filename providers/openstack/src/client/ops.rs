//! The kinds of calls, for metrics, quota and repetition.

use ccm_core::client::{Effect, Operation};

/// Keystone's quota.
pub(super) const IDENTITY: &str = "identity";
/// Nova's quota.
pub(super) const COMPUTE: &str = "compute";
/// Neutron's quota.
pub(super) const NETWORK: &str = "network";

/// A kind of call. The names are those of the Go cloud controller where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    /// Keystone's list of versions.
    VersionList,
    /// A new token.
    TokenCreate,
    /// A look at a token.
    TokenGet,
    /// A page of servers.
    ServerList,
    /// One server.
    ServerGet,
    /// One flavor.
    FlavorGet,
    /// A page of ports.
    PortList,
    /// A page of networks.
    NetworkList,
}

impl Operation for Op {
    fn name(self) -> &'static str {
        match self {
            Self::VersionList => "version_list",
            Self::TokenCreate => "token_create",
            Self::TokenGet => "token_get",
            Self::ServerList => "server_list",
            Self::ServerGet => "server_get",
            Self::FlavorGet => "flavor_get",
            Self::PortList => "port_list",
            Self::NetworkList => "network_list",
        }
    }

    fn bucket(self) -> &'static str {
        match self {
            Self::VersionList | Self::TokenCreate | Self::TokenGet => IDENTITY,
            Self::ServerList | Self::ServerGet | Self::FlavorGet => COMPUTE,
            Self::PortList | Self::NetworkList => NETWORK,
        }
    }

    fn effect(self) -> Effect {
        match self {
            // A second token does no harm.
            Self::TokenCreate => Effect::IdempotentWrite,
            _ => Effect::Read,
        }
    }
}
