//! The address pairs of the nodes' ports. A port without one for the network of its Pods drops their packets.
//!
//! Each PUT has the port's revision, since the port's security groups may change at the same time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Priority, Result,
    routes::{CloudRoute, DesiredRoute, RouteChanges},
};
use futures_util::future::{join_all, try_join_all};
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use super::{
    bisect::{is_overtaken, is_passing},
    records::{Pair, PairPort},
};
use crate::{
    client::{Api, Op, call, catalog::Service, if_revision},
    instances::provider_id::{self, ProviderId},
};
use http::Method;

/// The most addresses of one request. An IPv6 address takes up to 77 bytes of the query, so the URL stays below 7.5 kB.
/// The lowest limit of servers in front of Neutron is 8 KiB.
const ADDRESSES: usize = 90;
/// How long an observed pair is cached.
const KEPT: Duration = Duration::from_secs(1800);
/// How long the networks of the routers are cached.
const NETWORKS_MAX_AGE: Duration = Duration::from_secs(600);
/// How often a port is written while others change it.
const TRIES: usize = 5;
/// The fields of a port.
const FIELDS: [&str; 8] = [
    "id",
    "device_id",
    "network_id",
    "mac_address",
    "fixed_ips",
    "port_security_enabled",
    "allowed_address_pairs",
    "revision_number",
];

/// The cached pairs, under one set of credentials.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// When the pair of each route was observed, by destination and next hop.
    known: Mutex<HashMap<(IpNet, String), Instant>>,
    /// The networks of the routers.
    networks: Mutex<Option<(Vec<String>, Instant)>>,
}

/// Ports by their addresses.
type PortsByAddress = HashMap<IpAddr, Vec<PairPort>>;

/// A change of the pairs of one port.
struct Edit<'a> {
    port: &'a PairPort,
    /// The networks, each with the index of its result.
    networks: Vec<(usize, IpNet)>,
}

impl Pairs {
    /// Clears the caches.
    pub(super) fn forget(&self) {
        self.known.lock().clear();
        *self.networks.lock() = None;
    }

    /// Forgets the pairs of missing routes: the pair was removed before its route.
    pub(super) fn keep(&self, observed: &HashSet<(IpNet, &str)>) {
        let mut known = self.known.lock();
        known.retain(|(destination, hop), _| observed.contains(&(*destination, hop.as_str())));
    }

    /// Whether this route's pair was observed recently.
    pub(super) fn is_known(&self, route: &DesiredRoute) -> bool {
        let known = self.known.lock();
        known.get(&key(route)).is_some_and(|seen| seen.elapsed() < KEPT)
    }

    /// Reads which of these routes lack their pair.
    pub(super) async fn lacking(
        &self,
        api: &Api,
        routes: &[&DesiredRoute],
        priority: Priority,
    ) -> Result<Vec<bool>> {
        let ports = ports(api, routes.iter().map(|route| route.next_hop.as_str()), priority).await?;
        let lacking: Vec<bool> = routes
            .iter()
            .map(|route| !port_of(&ports, route).is_ok_and(|port| lets_through(port, &route.destination)))
            .collect();
        let mut known = self.known.lock();
        known.retain(|_, seen| seen.elapsed() < KEPT);
        let now = Instant::now();
        let fine = routes.iter().zip(&lacking).filter(|(_, lacks)| !**lacks);
        known.extend(fine.map(|(route, _)| (key(route), now)));
        Ok(lacking)
    }

    /// Adds the missing pairs of these routes, with one PUT for each port.
    pub(super) async fn add(
        &self,
        api: &Api,
        routes: &[&DesiredRoute],
        priority: Priority,
    ) -> Vec<Result<()>> {
        let ports = match ports(api, routes.iter().map(|route| route.next_hop.as_str()), priority).await {
            Ok(ports) => ports,
            Err(error) => return vec![Err(error); routes.len()],
        };
        let mut results: Vec<Result<()>> = Vec::with_capacity(routes.len());
        let mut edits: BTreeMap<&str, Edit<'_>> = BTreeMap::new();
        for (i, route) in routes.iter().enumerate() {
            let port = port_of(&ports, route);
            results.push(port.as_ref().map(|_| ()).map_err(Clone::clone));
            let Ok(port) = port else { continue };
            if !lets_through(port, &route.destination) {
                add_edit(&mut edits, port, i, route.destination);
            }
        }
        let done = edit_all(api, edits, priority, |pairs, network| {
            if !pairs.iter().any(|pair| pair.is_for(network)) {
                pairs.push(Pair {
                    ip_address: network.to_string(),
                    ..Pair::default()
                });
            }
        });
        for (place, result) in done.await {
            if let Some(slot) = results.get_mut(place) {
                *slot = result;
            }
        }
        let now = Instant::now();
        let mut known = self.known.lock();
        let fine = routes.iter().zip(&results).filter(|(_, result)| result.is_ok());
        known.extend(fine.map(|(route, _)| (key(route), now)));
        results
    }

    /// Removes the pairs of deleted routes from ports in the routers' networks, unless a new route leads to the same
    /// port. A permanent error of a pair does not stop the deletion of its route.
    pub(super) async fn remove(
        &self,
        api: &Api,
        routers: &[String],
        changes: &RouteChanges,
        priority: Priority,
    ) -> Vec<Result<()>> {
        let all_failed = |error: Error| vec![Err(error); changes.delete.len()];
        let networks = match self.networks_of(api, routers, priority).await {
            Ok(networks) => networks,
            Err(error) if is_passing(&error) => return all_failed(error),
            Err(error) => {
                debug!(error = %error.report(), "Address pairs of deleted routes stay on their ports");
                return changes.delete.iter().map(|_| Ok(())).collect();
            }
        };
        let coming = || changes.create.iter().chain(&changes.finish);
        let hops = changes
            .delete
            .iter()
            .map(|route| route.next_hop.as_str())
            .chain(coming().map(|route| route.next_hop.as_str()));
        let ports = match ports(api, hops, priority).await {
            Ok(ports) => ports,
            Err(error) => return all_failed(error),
        };
        let stays = |port: &PairPort, going: &CloudRoute| {
            coming().any(|route| {
                route.destination == going.destination.trunc()
                    && port_of(&ports, route).is_ok_and(|other| other.id == port.id)
            })
        };
        let mut edits = BTreeMap::new();
        for (i, route) in changes.delete.iter().enumerate() {
            let destination = route.destination.trunc();
            let hop = route.next_hop.as_str();
            self.known.lock().remove(&(destination, hop.to_owned()));
            for port in at(&ports, hop) {
                let mut pairs = port.allowed_address_pairs.iter();
                let has = pairs.any(|pair| pair.is_for(&destination));
                if has && networks.contains(&port.network_id) && !stays(port, route) {
                    add_edit(&mut edits, port, i, destination);
                }
            }
        }
        let mut results: Vec<Result<()>> = changes.delete.iter().map(|_| Ok(())).collect();
        let done = edit_all(api, edits, priority, |pairs, network| {
            pairs.retain(|pair| !pair.is_for(network));
        });
        for (place, result) in done.await {
            match result {
                Ok(()) => {}
                Err(error) if is_passing(&error) => {
                    if let Some(slot) = results.get_mut(place) {
                        *slot = Err(error);
                    }
                }
                Err(error) => debug!(error = %error.report(), "An address pair stays on its port"),
            }
        }
        results
    }

    /// The networks of the routers' visible ports.
    async fn networks_of(&self, api: &Api, routers: &[String], priority: Priority) -> Result<Vec<String>> {
        if let Some((networks, read)) = self.networks.lock().as_ref()
            && read.elapsed() < NETWORKS_MAX_AGE
        {
            return Ok(networks.clone());
        }
        let began = Instant::now();
        let devices = routers.iter().map(|router| ("device_id", router.as_str()));
        let mut query: Vec<_> = devices.collect();
        query.extend([("fields", "id"), ("fields", "network_id")]);
        let ports: Vec<PairPort> = api.list(&query, priority).await?;
        let mut networks: Vec<_> = ports.into_iter().map(|port| port.network_id).collect();
        networks.sort_unstable();
        networks.dedup();
        if !networks.is_empty() {
            *self.networks.lock() = Some((networks.clone(), began));
        }
        Ok(networks)
    }
}

fn key(route: &DesiredRoute) -> (IpNet, String) {
    (route.destination, route.next_hop.as_str().to_owned())
}

/// The ports with any of these addresses.
async fn ports<'a>(
    api: &Api,
    addresses: impl Iterator<Item = &'a str>,
    priority: Priority,
) -> Result<PortsByAddress> {
    let mut filters: Vec<String> = addresses.map(|address| format!("ip_address={address}")).collect();
    filters.sort_unstable();
    filters.dedup();
    let each = filters.chunks(ADDRESSES).map(|filters| {
        let addresses = filters.iter().map(|filter| ("fixed_ips", filter.as_str()));
        let mut query: Vec<_> = addresses.collect();
        query.extend(FIELDS.map(|field| ("fields", field)));
        async move { api.list::<PairPort>(&query, priority).await }
    });
    let mut by_address: PortsByAddress = HashMap::new();
    for port in try_join_all(each).await?.into_iter().flatten() {
        for ip in &port.fixed_ips {
            if let Ok(address) = ip.ip_address.parse() {
                by_address.entry(address).or_default().push(port.clone());
            }
        }
    }
    Ok(by_address)
}

fn at<'a>(ports: &'a PortsByAddress, address: &str) -> &'a [PairPort] {
    let address = address.parse::<IpAddr>().ok();
    let found = address.and_then(|address| ports.get(&address));
    found.map(Vec::as_slice).unwrap_or_default()
}

/// The node's port with the route's next hop: that of its server, or the only port with the address.
fn port_of<'a>(ports: &'a PortsByAddress, route: &DesiredRoute) -> Result<&'a PairPort> {
    let all = at(ports, route.next_hop.as_str());
    let id = route.node.view.provider_id.as_deref();
    let server = match id.map(provider_id::parse) {
        Some(Ok(ProviderId::Server { id, .. })) => Some(id),
        _ => None,
    };
    let own = all.iter().find(|port| Some(port.device_id.as_str()) == server);
    match (own, all) {
        (Some(port), _) => Ok(port),
        (None, [port]) => Ok(port),
        (None, []) => {
            let text = format!(
                "no visible port has the address {}, so no address pair can be added to it",
                route.next_hop
            );
            Err(Error::new(ErrorKind::InvalidSpec, text))
        }
        (None, several) => {
            let text = format!(
                "{} ports have the address {} and none belongs to the node's server, so no address pair is added",
                several.len(),
                route.next_hop
            );
            Err(Error::new(ErrorKind::InvalidSpec, text))
        }
    }
}

/// Whether the port forwards packets of this network. A pair may be for a larger network, but not for another MAC
/// address.
fn lets_through(port: &PairPort, network: &IpNet) -> bool {
    if port.port_security_enabled == Some(false) {
        return true;
    }
    port.allowed_address_pairs.iter().any(|pair| {
        let mac = pair.further.get("mac_address").and_then(|mac| mac.as_str());
        let same_mac = mac.is_none_or(|mac| mac == port.mac_address);
        let have = pair.ip_address.parse::<IpNet>();
        let covers = have.is_ok_and(|have| have.contains(network));
        same_mac && (covers || pair.is_for(network))
    })
}

fn add_edit<'a>(edits: &mut BTreeMap<&'a str, Edit<'a>>, port: &'a PairPort, place: usize, network: IpNet) {
    let edit = edits.entry(port.id.as_str()).or_insert_with(|| Edit {
        port,
        networks: Vec::new(),
    });
    edit.networks.push((place, network));
}

/// Edits each port once, for all of its networks. Returns results by index. The gate limits the concurrency.
async fn edit_all(
    api: &Api,
    edits: BTreeMap<&str, Edit<'_>>,
    priority: Priority,
    edit_one: impl Fn(&mut Vec<Pair>, &IpNet) + Copy,
) -> Vec<(usize, Result<()>)> {
    let each = edits.into_values().map(|edit| async move {
        let result = write(api, edit.port, priority, |pairs| {
            for (_, network) in &edit.networks {
                edit_one(pairs, network);
            }
        })
        .await;
        let places = edit.networks.into_iter().map(|(place, _)| place);
        places.map(|place| (place, result.clone())).collect::<Vec<_>>()
    });
    join_all(each).await.into_iter().flatten().collect()
}

async fn write(api: &Api, port: &PairPort, priority: Priority, edit: impl Fn(&mut Vec<Pair>)) -> Result<()> {
    let mut port = port.clone();
    let mut last = None;
    for _ in 0..TRIES {
        let mut pairs = port.allowed_address_pairs.clone();
        edit(&mut pairs);
        if pairs == port.allowed_address_pairs {
            return Ok(());
        }
        let body = BTreeMap::from([("allowed_address_pairs", pairs)]);
        let path = ["ports", port.id.as_str()];
        let put =
            if_revision(port.revision_number, call(Op::PortUpdate, Service::Network, Method::PUT, &path));
        match api.write_one::<PairPort>(put, &body, priority).await {
            Ok(_) => return Ok(()),
            Err(error) if is_overtaken(&error) => last = Some(error),
            Err(error) => return Err(error.with_context("port", port.id.as_str())),
        }
        let mut query = vec![("id", port.id.as_str())];
        query.extend(FIELDS.map(|field| ("fields", field)));
        let read: Vec<PairPort> = api.list(&query, priority).await?;
        match read.into_iter().next() {
            Some(read) => port = read,
            None => {
                let text = format!("port {} was deleted", port.id);
                return Err(Error::new(ErrorKind::NotFound, text));
            }
        }
    }
    Err(last.unwrap_or_else(|| Error::new(ErrorKind::Conflict, "the port changes too often")))
}
