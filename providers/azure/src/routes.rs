//! Routes to the nodes' Pods: entries of one route table, which is one document.
//!
//! All changes of a pass are one `PUT` with the etag of the document that was read. If another client changed the table in between,
//! the table is read again and the same changes are made to it. Entries and members that are not ours are sent back as they
//! were. The changes have the result of the `PUT`: they succeed when Azure reports that the operation did.

use std::net::IpAddr;

use ccm_core::{
    AddressType, Error, ErrorKind, Priority, RequestOutcome, Result, async_trait,
    client::Fence,
    routes::{Applied, CloudRoute, DesiredRoute, NextHop, Observed, RouteChanges, RouteNode, Routes},
};
use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::debug;

use crate::{
    client::{Arm, field, resource::Resource},
    config::Settings,
    tags::ResourceTags,
};

/// The list of routes in the properties of a route table.
const ROUTES: &str = "routes";
/// Members of a route.
const PREFIX: &str = "addressPrefix";
const HOP_TYPE: &str = "nextHopType";
const HOP_ADDRESS: &str = "nextHopIpAddress";
/// The type of a next hop that is an address.
const APPLIANCE: &str = "VirtualAppliance";
/// Between the node and its network in the name of a route.
const SEPARATOR: &str = "____";
/// The most routes of a table, unless Azure's support raised the limit.
const ROUTES_MAX: usize = 400;
/// How often changes are merged into a table that others change at the same time.
const ATTEMPTS: u32 = 3;

/// The routes of the cluster's route table.
#[derive(Debug)]
pub(crate) struct TableRoutes {
    arm: Arm,
    group: String,
    name: String,
    location: String,
    tags: ResourceTags,
    /// The table as it was read or written last.
    last: Mutex<Option<Value>>,
}

impl TableRoutes {
    pub(crate) fn new(arm: &Arm, settings: &Settings, fence: &Fence) -> Self {
        let group = settings.route_table_group();
        // Only a table of the cluster's own resource group gets its tags.
        let is_own = group.eq_ignore_ascii_case(&settings.resource_group);
        Self {
            arm: arm.fenced_by(fence),
            group: group.to_owned(),
            name: settings.conf.route_table_name.clone(),
            location: settings.location.clone(),
            tags: if is_own {
                ResourceTags::of(&settings.conf)
            } else {
                ResourceTags::default()
            },
            last: Mutex::default(),
        }
    }

    fn resource(&self) -> Resource<'_> {
        Resource::RouteTable {
            group: &self.group,
            name: &self.name,
        }
    }

    /// Reads the table; `None` if it does not exist.
    pub(crate) async fn read(&self, priority: Priority) -> Result<Option<Value>> {
        let table = self.arm.find(self.resource(), priority).await?;
        self.last.lock().clone_from(&table);
        Ok(table)
    }

    /// Writes the changes, at most `limit` routes in total. Returns how many of the routes to create are in the table.
    async fn write(
        &self,
        changes: &RouteChanges,
        limit: usize,
        priority: Priority,
    ) -> Result<usize, WriteFailure> {
        let cached = self.last.lock().take();
        let mut table = match cached {
            Some(table) => Some(table),
            None => self.read(priority).await.map_err(WriteFailure::Other)?,
        };
        for attempt in 1.. {
            let (edited, created) = edit(table.as_ref(), changes, limit, &self.location, &self.tags);
            let Some(edited) = edited else {
                return Ok(created);
            };
            match self.arm.put(self.resource(), &edited, priority).await {
                Ok(written) => {
                    *self.last.lock() = written;
                    return Ok(created);
                }
                Err(error) if error.kind() == ErrorKind::Conflict && attempt < ATTEMPTS => {
                    debug!(
                        error = error.report(),
                        "The route table was changed by others; merging the changes"
                    );
                    table = self.read(priority).await.map_err(WriteFailure::Other)?;
                }
                // The next read shows whether it was written.
                Err(error) => return Err(WriteFailure::of(error, &edited)),
            }
        }
        Ok(0)
    }
}

#[async_trait]
impl Routes for TableRoutes {
    async fn unsupported_reason(&self, _: Priority) -> Result<Option<String>> {
        let is_missing = self.name.is_empty();
        Ok(is_missing.then(|| "routeTableName is not set in the cloud config".to_owned()))
    }

    fn next_hop(&self, node: &RouteNode, destination: IpNet) -> Result<NextHop> {
        next_hop(node, destination)
    }

    async fn observe(&self, _: &[DesiredRoute], priority: Priority) -> Result<Observed> {
        let table = self.read(priority).await?;
        Ok(Observed {
            routes: table.as_ref().map(routes).unwrap_or_default(),
            unfinished: Vec::new(),
        })
    }

    async fn apply(&self, changes: &RouteChanges, priority: Priority) -> Applied {
        if changes.is_empty() {
            return Applied::default();
        }
        let (created, error) = match self.write(changes, usize::MAX, priority).await {
            Ok(created) => (created, None),
            Err(WriteFailure::TooMany(error)) => match self.write(changes, ROUTES_MAX, priority).await {
                Ok(created) => (created, Some(error)),
                Err(failure) => return Applied::failed(changes, failure.error()),
            },
            Err(failure) => return Applied::failed(changes, failure.error()),
        };
        let results = (0..changes.create.len()).map(|at| match &error {
            Some(error) if at >= created => Err(error.clone()),
            _ => Ok(()),
        });
        Applied {
            deleted: vec![Ok(()); changes.delete.len()],
            created: results.collect(),
            finished: vec![Ok(()); changes.finish.len()],
        }
    }
}

/// Why a table was not written.
enum WriteFailure {
    /// It was refused, and has more routes than Azure allows by default: it may have room for some of them.
    TooMany(Error),
    Other(Error),
}

impl WriteFailure {
    fn of(error: Error, table: &Value) -> Self {
        let is_refused = error.outcome() == RequestOutcome::NotDone
            && matches!(error.kind(), ErrorKind::QuotaExceeded | ErrorKind::InvalidSpec);
        if is_refused && entries(table).len() > ROUTES_MAX {
            Self::TooMany(error)
        } else {
            Self::Other(error)
        }
    }

    fn error(&self) -> &Error {
        match self {
            Self::TooMany(error) | Self::Other(error) => error,
        }
    }
}

/// The first internal address of the network's family.
fn next_hop(node: &RouteNode, destination: IpNet) -> Result<NextHop> {
    let is_v4 = matches!(destination, IpNet::V4(_));
    let internal = node.addresses.iter().filter(|address| address.kind == AddressType::InternalIP);
    let mut ips = internal.filter_map(|address| address.address.parse::<IpAddr>().ok());
    match ips.find(|ip| ip.is_ipv4() == is_v4) {
        Some(ip) => Ok(NextHop::new(ip.to_string())),
        None => {
            let family = if is_v4 { "IPv4" } else { "IPv6" };
            Err(Error::new(ErrorKind::InvalidSpec, format!("the node has no internal {family} address")))
        }
    }
}

/// The name of the route to a node's Pods: the node, and the network without its signs.
fn route_name(node: &str, destination: IpNet) -> String {
    let network: String =
        destination.to_string().chars().filter(|sign| !matches!(sign, ':' | '.' | '/')).collect();
    format!("{node}{SEPARATOR}{network}")
}

/// The routes of a table. Those to a service tag in place of a network are left out.
fn routes(table: &Value) -> Vec<CloudRoute> {
    entries(table).iter().filter_map(cloud_route).collect()
}

fn entries(table: &Value) -> &[Value] {
    let routes = table.get(field::PROPERTIES).and_then(|properties| properties.get(ROUTES));
    routes.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn cloud_route(entry: &Value) -> Option<CloudRoute> {
    let text = |key: &str| entry.get(field::PROPERTIES)?.get(key)?.as_str();
    let destination: IpNet = text(PREFIX)?.parse().ok()?;
    let next_hop = match text(HOP_ADDRESS) {
        Some(address) => address
            .parse::<IpAddr>()
            .map_or_else(|_| address.to_owned(), |address| address.to_string()),
        None => text(HOP_TYPE)?.to_owned(),
    };
    Some(CloudRoute {
        destination: destination.trunc(),
        next_hop: NextHop::new(next_hop),
        blackhole: false,
        handle: entry.get(field::NAME)?.as_str()?.to_owned(),
    })
}

/// The table with the changes, or `None` if it has them already; and how many of the routes to create it contains then.
fn edit(
    table: Option<&Value>,
    changes: &RouteChanges,
    limit: usize,
    location: &str,
    tags: &ResourceTags,
) -> (Option<Value>, usize) {
    let mut entries: Vec<Value> = table.map(entries).unwrap_or_default().to_vec();
    let before = entries.clone();
    // A route of the same name that leads elsewhere was written after the question.
    entries.retain(|entry| {
        let route = cloud_route(entry);
        !changes.delete.iter().any(|deleted| {
            route.as_ref().is_some_and(|route| {
                route.handle.eq_ignore_ascii_case(&deleted.handle)
                    && route.destination == deleted.destination.trunc()
                    && route.next_hop == deleted.next_hop
            })
        })
    });
    let mut created = 0;
    for desired in changes.create.iter().chain(&changes.finish) {
        if has_route(&entries, desired) {
            created += 1;
            continue;
        }
        let name = route_name(&desired.node.view.name, desired.destination);
        let properties = json!({
            PREFIX: desired.destination.to_string(),
            HOP_TYPE: APPLIANCE,
            HOP_ADDRESS: desired.next_hop.as_str(),
        });
        let route = json!({field::NAME: name, field::PROPERTIES: properties});
        let is_full = entries.len() >= limit;
        let same_name = entries.iter_mut().find(|entry| {
            entry
                .get(field::NAME)
                .and_then(Value::as_str)
                .is_some_and(|other| other.eq_ignore_ascii_case(&name))
        });
        match same_name {
            Some(entry) => *entry = route,
            None if is_full => break,
            None => entries.push(route),
        }
        created += 1;
    }
    if entries == before {
        return (None, created);
    }
    let mut edited = table.cloned().unwrap_or_else(|| json!({"location": location, field::PROPERTIES: {}}));
    if let Some(document) = edited.as_object_mut() {
        let properties = document.entry(field::PROPERTIES).or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            properties.insert(ROUTES.to_owned(), entries.into());
        }
        let mut all = document.get(field::TAGS).and_then(Value::as_object).cloned().unwrap_or_default();
        tags.apply(&mut all);
        if !all.is_empty() {
            document.insert(field::TAGS.to_owned(), all.into());
        }
    }
    (Some(edited), created)
}

/// Whether a route exists, whatever its name is.
fn has_route(entries: &[Value], desired: &DesiredRoute) -> bool {
    entries
        .iter()
        .filter_map(cloud_route)
        .any(|route| route.destination == desired.destination && route.next_hop == desired.next_hop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use ccm_core::{NodeAddress, NodeView};

    use super::*;

    fn desired(node: &str, destination: &str, hop: &str) -> DesiredRoute {
        let view = NodeView {
            name: node.to_owned(),
            ..NodeView::default()
        };
        DesiredRoute {
            destination: destination.parse().unwrap(),
            next_hop: NextHop::new(hop),
            node: Arc::new(RouteNode {
                view: Arc::new(view),
                ..RouteNode::default()
            }),
        }
    }

    fn entry(name: &str, destination: &str, hop: &str) -> Value {
        json!({
            "name": name, "etag": "W/\"1\"", "newMember": true,
            "properties": {"addressPrefix": destination, "nextHopType": "VirtualAppliance", "nextHopIpAddress": hop},
        })
    }

    fn table(entries: &[Value]) -> Value {
        json!({
            "name": "routes", "etag": "W/\"1\"", "location": "eastus", "futureMember": {"a": []},
            "properties": {"disableBgpRoutePropagation": false, "emptyList": [], "routes": entries},
        })
    }

    fn changes(delete: &[&Value], create: &[DesiredRoute]) -> RouteChanges {
        RouteChanges {
            delete: delete.iter().map(|entry| cloud_route(entry).unwrap()).collect(),
            create: create.to_vec(),
            finish: Vec::new(),
        }
    }

    fn edited(table: Option<&Value>, changes: &RouteChanges) -> Option<Value> {
        edit(table, changes, usize::MAX, "eastus", &ResourceTags::default()).0
    }

    fn names(table: &Value) -> Vec<&str> {
        entries(table).iter().filter_map(|entry| entry["name"].as_str()).collect()
    }

    #[test]
    fn names_are_those_of_the_go_program() {
        let name = |node: &str, network: &str| route_name(node, network.parse().unwrap());
        assert_eq!(name("aks-a-0", "10.244.1.0/24"), "aks-a-0____102441024");
        assert_eq!(name("aks-a-0", "fd00:10:244::/64"), "aks-a-0____fd001024464");
    }

    #[test]
    fn unknown_members_and_foreign_routes_are_kept() {
        let foreign = json!({"name": "firewall", "properties": {"addressPrefix": "Storage", "nextHopType": "Internet"}});
        let old = entry("node-1____102440024", "10.244.0.0/24", "10.0.0.4");
        let table = table(&[foreign.clone(), old.clone()]);
        let new = desired("node-2", "10.244.1.0/24", "10.0.0.5");
        let edited = edited(Some(&table), &changes(&[], &[new])).unwrap();
        let mut expected = table.clone();
        let route = json!({
            "name": "node-2____102441024",
            "properties": {"addressPrefix": "10.244.1.0/24", "nextHopType": "VirtualAppliance", "nextHopIpAddress": "10.0.0.5"},
        });
        expected["properties"]["routes"] = json!([foreign, old, route]);
        assert_eq!(edited, expected);
    }

    #[test]
    fn only_the_exact_route_is_deleted() {
        let routes = [
            entry("node-1____102440024", "10.244.0.0/24", "10.0.0.4"),
            entry("node-10____102441024", "10.244.1.0/24", "10.0.0.5"),
            entry("node-1____fd0064", "fd00::/64", "fd00:1::4"),
            entry("node-1", "10.244.9.0/24", "10.0.0.4"),
        ];
        let table = table(&routes);
        let after = edited(Some(&table), &changes(&[&routes[0]], &[])).unwrap();
        assert_eq!(names(&after), ["node-10____102441024", "node-1____fd0064", "node-1"]);
        // Deleted by others meanwhile.
        assert_eq!(edited(Some(&after), &changes(&[&routes[0]], &[])), None);
        // Replaced by others meanwhile.
        let moved = self::table(&[entry("node-1____102440024", "10.244.0.0/24", "10.0.0.9")]);
        assert_eq!(edited(Some(&moved), &changes(&[&routes[0]], &[])), None);
    }

    #[test]
    fn existing_routes_are_not_written() {
        let same = desired("node-1", "10.244.0.0/24", "10.0.0.4");
        let other_name = table(&[entry("node-1", "10.244.0.0/24", "10.0.0.4")]);
        assert_eq!(edited(Some(&other_name), &changes(&[], std::slice::from_ref(&same))), None);
        let old = entry("NODE-1____102440024", "10.244.0.0/24", "10.0.0.3");
        let moved = edited(Some(&table(std::slice::from_ref(&old))), &changes(&[&old], &[same])).unwrap();
        assert_eq!(routes(&moved).len(), 1);
        assert_eq!(routes(&moved)[0].next_hop.as_str(), "10.0.0.4");
    }

    #[test]
    fn a_missing_table_is_created_with_its_tags_and_only_then() {
        let conf = crate::config::CloudConf {
            tags: "team=web".to_owned(),
            ..Default::default()
        };
        let tags = ResourceTags::of(&conf);
        let new = changes(&[], &[desired("node-1", "10.244.0.0/24", "10.0.0.4")]);
        let (created, _) = edit(None, &new, usize::MAX, "eastus", &tags);
        let created = created.unwrap();
        assert_eq!((&created["location"], &created["tags"]["team"]), (&json!("eastus"), &json!("web")));
        assert_eq!(names(&created), ["node-1____102440024"]);
        let old = entry("a", "10.244.0.0/24", "10.0.0.4");
        assert_eq!(edit(None, &changes(&[&old], &[]), usize::MAX, "eastus", &tags).0, None);
        // Tags alone are no reason to write.
        assert_eq!(edit(Some(&table(&[])), &RouteChanges::default(), usize::MAX, "eastus", &tags).0, None);
    }

    #[test]
    fn the_first_routes_fill_the_limit() {
        let new: Vec<_> = (0..5).map(|i| desired("n", &format!("10.244.{i}.0/24"), "10.0.0.4")).collect();
        let table = table(&[entry("x", "10.0.0.0/8", "10.0.0.1")]);
        let (edited, created) =
            edit(Some(&table), &changes(&[], &new), 3, "eastus", &ResourceTags::default());
        assert_eq!((entries(&edited.unwrap()).len(), created), (3, 2));
    }

    #[test]
    fn other_next_hops_are_shown_by_their_type() {
        let internet =
            json!({"name": "i", "properties": {"addressPrefix": "0.0.0.0/0", "nextHopType": "Internet"}});
        assert_eq!(cloud_route(&internet).unwrap().next_hop.as_str(), "Internet");
    }

    #[test]
    fn the_next_hop_is_an_internal_address_of_the_family() {
        let address = |kind, text: &str| NodeAddress::new(kind, text);
        let node = RouteNode {
            addresses: vec![
                address(AddressType::ExternalIP, "20.0.0.1"),
                address(AddressType::InternalIP, "10.0.0.4"),
                address(AddressType::InternalIP, "FD00:0::4"),
            ],
            ..RouteNode::default()
        };
        let hop = |network: &str| next_hop(&node, network.parse().unwrap()).unwrap().to_string();
        assert_eq!(hop("10.244.0.0/24"), "10.0.0.4");
        assert_eq!(hop("fd01::/64"), "fd00::4");
        let error = next_hop(&RouteNode::default(), "fd01::/64".parse().unwrap()).unwrap_err();
        assert!(error.report().contains("IPv6"), "{error}");
    }
}
