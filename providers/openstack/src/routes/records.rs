//! The stored part of Neutron's routers, ports and extensions.

use std::net::IpAddr;

use ccm_core::routes::{CloudRoute, DesiredRoute, NextHop};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    client::listing::resources,
    instances::records::{FixedIp, records},
};

/// `GET /v2.0/extensions`.
#[derive(Debug, Deserialize)]
pub(super) struct Extensions {
    pub(super) extensions: Vec<Extension>,
}

/// An extension.
#[derive(Debug, Deserialize)]
pub(super) struct Extension {
    #[serde(default)]
    pub(super) alias: String,
}

/// `GET /v2.0/quotas/{project}`.
#[derive(Debug, Deserialize)]
pub(super) struct Quotas {
    pub(super) quota: Quota,
}

/// The quotas of the project; negative: unlimited.
#[derive(Debug, Deserialize)]
pub(super) struct Quota {
    /// Routes of one router. Missing in older releases, whose config file has the limit.
    #[serde(default)]
    pub(super) router_route: Option<i64>,
}

records! {
    /// A router.
    Router[id] {
        project_id: String,
        routes: Vec<RawRoute>,
        revision_number: Option<i64>,
    }

    /// A port with its allowed packets.
    PairPort[id] {
        device_id: String,
        network_id: String,
        mac_address: String,
        fixed_ips: Vec<FixedIp>,
        /// Missing where Neutron does not support port security, or where the field is hidden.
        port_security_enabled: Option<bool>,
        allowed_address_pairs: Vec<Pair>,
        revision_number: Option<i64>,
    }
}

/// A route in Neutron's spelling.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct RawRoute {
    pub(super) destination: String,
    pub(super) nexthop: String,
}

impl RawRoute {
    /// Parses the route; `None` if it is not a route between networks and addresses.
    pub(super) fn parse(&self) -> Option<CloudRoute> {
        let destination: IpNet = self.destination.parse().ok()?;
        let next_hop: IpAddr = self.nexthop.parse().ok()?;
        Some(CloudRoute {
            destination: destination.trunc(),
            next_hop: NextHop::new(next_hop.to_string()),
            blackhole: false,
            handle: format!("{} {}", self.destination, self.nexthop),
        })
    }

    /// The spelling on the router.
    pub(super) fn of_handle(route: &CloudRoute) -> Self {
        let spelled = route.handle.split_once(' ');
        let (destination, nexthop) = match spelled {
            Some((destination, nexthop)) => (destination.to_owned(), nexthop.to_owned()),
            None => (route.destination.to_string(), route.next_hop.to_string()),
        };
        Self { destination, nexthop }
    }

    /// The spelling of a new route.
    pub(super) fn of_desired(route: &DesiredRoute) -> Self {
        Self {
            destination: route.destination.to_string(),
            nexthop: route.next_hop.to_string(),
        }
    }

    /// Whether both are the same route, whatever their spelling.
    pub(super) fn is(&self, other: &Self) -> bool {
        self == other
            || matches!((self.parse(), other.parse()), (Some(a), Some(b))
                if a.destination == b.destination && a.next_hop == b.next_hop)
    }
}

/// An address pair. Unknown fields are sent back unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub(super) ip_address: String,
    #[serde(flatten)]
    pub(super) further: Map<String, Value>,
}

impl Pair {
    /// Whether the pair is for this network.
    pub(super) fn is_for(&self, network: &IpNet) -> bool {
        let have = self
            .ip_address
            .parse::<IpNet>()
            .map(|have| have.trunc())
            .or_else(|_| self.ip_address.parse::<IpAddr>().map(IpNet::from));
        have.is_ok_and(|have| have == *network)
    }
}

resources! {
    Router: "router" "routers" of Network at ["routers"], RouterGet;
    PairPort: "port" "ports" of Network at ["ports"], PortList;
}
