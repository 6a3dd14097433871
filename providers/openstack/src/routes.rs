//! Routes to the nodes' Pods: the extra routes of routers, and the address pairs of the nodes' ports.
//!
//! | Step of a pass | Requests |
//! |---|---|
//! | read the extensions | one, once for each set of credentials |
//! | observe | the router; one for 90 nodes whose address pairs were not read for half an hour |
//! | delete | one for 90 ports, a PUT for each port that loses a pair, then one for all routes |
//! | create | one for all routes, one for 90 ports, a PUT for each port that lacks a pair |
//!
//! Neutron checks the whole resulting set, so one bad next hop, or one route too many, refuses a whole batch. The batch
//! is then divided until the bad routes are alone ([`bisect`]). Neutron's answer counts, not the request. With the
//! older extension, a whole list is written under the router's revision, and read again after a conflict ([`table`]).
//!
//! If the config names several routers, each has all routes ([`tables`]). A route that one of them lacks has to be
//! completed, like one whose pair is missing.
//!
//! A port forwards packets of Pods only if their network is an allowed address pair ([`pairs`]). The pair is added
//! after the route and removed before it: a route shows a later process that work remains.

mod bisect;
mod pairs;
mod records;
mod table;
mod tables;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use ccm_core::{
    AddressType, Error, ErrorKind, Priority, Result, async_trait,
    client::Fence,
    routes::{
        Applied, CloudRoute, DesiredRoute, NextHop, Observed, RouteChanges, RouteLimit, RouteNode, Routes,
    },
};
use ipnet::IpNet;
use parking_lot::Mutex;
use tracing::{debug, info};

use self::{
    bisect::is_passing,
    pairs::Pairs,
    records::{Extensions, RawRoute},
    table::{QUOTA, Table},
    tables::Tables,
};
use crate::{
    client::{Api, Call, Op, catalog::Service, read},
    view::Current,
};

/// The section of the config file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteSettings {
    /// IDs of the routers; empty: no routes.
    pub(crate) routers: Vec<String>,
    /// Whether address pairs of ports are managed, if Neutron supports them.
    pub(crate) address_pairs: bool,
}

/// The extensions that Neutron supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Features {
    /// Routes can be added and removed one by one.
    atomic: bool,
    /// The list of routes can be written.
    classic: bool,
    /// Ports have address pairs.
    pairs: bool,
}

impl Features {
    fn of(extensions: &Extensions) -> Self {
        let has = |alias: &str| extensions.extensions.iter().any(|known| known.alias == alias);
        Self {
            atomic: has("extraroute-atomic"),
            classic: has("extraroute"),
            pairs: has("allowed-address-pairs"),
        }
    }
}

/// The routes of one or several routers.
#[derive(Debug)]
pub(crate) struct RouterRoutes {
    current: Arc<Current>,
    /// The fence of route writes.
    fence: Fence,
    routers: Vec<String>,
    address_pairs: bool,
    /// The extensions, and the credentials under which they were read.
    features: Mutex<Option<(u64, Features)>>,
    /// The next hops of routes via other addresses of their nodes, by destination.
    accepted: Mutex<HashMap<IpNet, NextHop>>,
    pairs: Pairs,
}

impl RouterRoutes {
    /// `None` if the config names no router.
    pub(crate) fn new(current: Arc<Current>, settings: &RouteSettings, fence: &Fence) -> Option<Self> {
        (!settings.routers.is_empty()).then(|| Self {
            current,
            fence: fence.clone(),
            routers: settings.routers.clone(),
            address_pairs: settings.address_pairs,
            features: Mutex::default(),
            accepted: Mutex::default(),
            pairs: Pairs::default(),
        })
    }

    fn api(&self) -> Api {
        let (api, _) = self.current.clients();
        api.fenced_by(&self.fence)
    }

    async fn features(&self, priority: Priority) -> Result<Features> {
        let generation = self.current.generation();
        if let Some((of, features)) = *self.features.lock()
            && of == generation
        {
            return Ok(features);
        }
        let api = self.api();
        let get = Call {
            query: &[("fields", "alias")],
            ..read(Op::ExtensionList, Service::Network, &["extensions"])
        };
        let features = Features::of(&api.get(&get, priority).await?);
        // Logged once for each set of credentials.
        info!(
            router = self.routers.join(","),
            one_by_one = features.atomic,
            address_pairs = features.pairs && self.address_pairs,
            "Routes are managed on this router"
        );
        self.pairs.forget();
        *self.features.lock() = Some((generation, features));
        Ok(features)
    }

    fn tables<'a>(&'a self, api: &'a Api, features: Features, priority: Priority) -> Tables<'a> {
        let tables = self.routers.iter().map(|router| Table {
            api,
            router,
            atomic: features.atomic,
            priority,
        });
        Tables(tables.collect())
    }

    /// The routes with the next hops by which they exist.
    fn actual(&self, routes: &[DesiredRoute]) -> Vec<DesiredRoute> {
        let (accepted, mut routes) = (self.accepted.lock(), routes.to_vec());
        for route in &mut routes {
            if let Some(hop) = accepted.get(&route.destination) {
                route.next_hop = hop.clone();
            }
        }
        routes
    }

    /// The desired routes that exist and whose address pairs are missing or unknown.
    ///
    /// # Errors
    /// A passing error: it says nothing about the routes.
    async fn unfinished(
        &self,
        desired: &[DesiredRoute],
        routes: &[CloudRoute],
        priority: Priority,
    ) -> Result<Vec<usize>> {
        let observed: HashSet<_> =
            routes.iter().map(|route| (route.destination.trunc(), route.next_hop.as_str())).collect();
        self.pairs.keep(&observed);
        let mut unknown = Vec::new();
        let mut to_read = Vec::new();
        for (i, route) in desired.iter().enumerate() {
            let exists = observed.contains(&(route.destination, route.next_hop.as_str()));
            if exists && !self.pairs.is_known(route) {
                unknown.push(i);
                to_read.push(route);
            }
        }
        let api = self.api();
        let lacking = match self.pairs.lacking(&api, &to_read, priority).await {
            Ok(lacking) => lacking,
            Err(error) if is_passing(&error) && error.kind() != ErrorKind::Unexpected => return Err(error),
            Err(error) => {
                // The routes themselves are observed; an error of its pair is in the result of each route.
                debug!(error = %error.report(), "Could not read the address pairs of the nodes' ports");
                vec![true; to_read.len()]
            }
        };
        let both = unknown.into_iter().zip(lacking);
        Ok(both.filter(|(_, lacks)| *lacks).map(|(i, _)| i).collect())
    }
}

#[async_trait]
impl Routes for RouterRoutes {
    async fn unsupported_reason(&self, priority: Priority) -> Result<Option<String>> {
        let features = self.features(priority).await?;
        let none = !features.atomic && !features.classic;
        Ok(none.then(|| "Neutron has neither the extension extraroute-atomic nor extraroute".to_owned()))
    }

    fn next_hop(&self, node: &RouteNode, destination: IpNet) -> Result<NextHop> {
        internal_address(node, destination)
    }

    fn related_setting(&self) -> Option<&'static str> {
        let known = *self.features.lock();
        let pairs = known.is_some_and(|(_, features)| features.pairs && self.address_pairs);
        match (self.routers.len() > 1, pairs) {
            (false, false) => None,
            (false, true) => Some("an allowed address pair on the node's port"),
            (true, false) => Some("the same route on each router"),
            (true, true) => {
                Some("the same route on each router and an allowed address pair on the node's port")
            }
        }
    }

    async fn observe(&self, desired: &[DesiredRoute], priority: Priority) -> Result<Observed> {
        let features = self.features(priority).await?;
        let api = self.api();
        let mut seen = self.tables(&api, features, priority).read().await?;
        let (mut unfinished, routes) = (seen.incomplete(desired), seen.routes.clone());
        *self.accepted.lock() = seen.accept_other_addresses(desired);
        if features.pairs && self.address_pairs {
            let actual = self.actual(desired);
            unfinished.extend(self.unfinished(&actual, &routes, priority).await?);
            unfinished.sort_unstable();
            unfinished.dedup();
        }
        let routes = seen.routes;
        Ok(Observed { routes, unfinished })
    }

    async fn limit(&self, priority: Priority) -> Result<Option<RouteLimit>> {
        let features = self.features(priority).await?;
        let limit = self.tables(&self.api(), features, priority).limit().await?;
        Ok(limit.map(|routes| RouteLimit {
            routes,
            raised_by: QUOTA,
        }))
    }

    async fn apply(&self, changes: &RouteChanges, priority: Priority) -> Applied {
        let features = match self.features(priority).await {
            Ok(features) => features,
            Err(error) => return Applied::failed(changes, &error),
        };
        let api = self.api();
        let tables = self.tables(&api, features, priority);
        let with_pairs = features.pairs && self.address_pairs;
        let finish = self.actual(&changes.finish);

        // Pairs are removed before their routes.
        let mut deleted: Vec<Result<()>> = if with_pairs && !changes.delete.is_empty() {
            self.pairs.remove(&api, &self.routers, changes, priority).await
        } else {
            vec![Ok(()); changes.delete.len()]
        };
        let to_delete = places(&deleted);
        let raw: Vec<_> = chosen(&changes.delete, &to_delete).map(RawRoute::of_handle).collect();
        fill(&mut deleted, &to_delete, tables.remove(&raw).await);

        let mut created: Vec<_> =
            changes.create.iter().map(|route| fail_if_blocked(route, changes, &deleted)).collect();
        let to_create = places(&created);
        let raw: Vec<_> = chosen(&changes.create, &to_create).map(RawRoute::of_desired).collect();
        fill(&mut created, &to_create, tables.add(&raw).await);

        let mut finished: Vec<Result<()>> = vec![Ok(()); finish.len()];
        if self.routers.len() > 1 {
            // It is not known which router lacks the route; for the others, adding it has no effect.
            let raw: Vec<_> = finish.iter().map(RawRoute::of_desired).collect();
            finished = tables.add(&raw).await;
        }
        if with_pairs {
            let (to_create, complete) = (places(&created), places(&finished));
            let lacking: Vec<_> =
                chosen(&changes.create, &to_create).chain(chosen(&finish, &complete)).collect();
            let mut results = self.pairs.add(&api, &lacking, priority).await;
            let of_finished = results.split_off(to_create.len().min(results.len()));
            fill(&mut created, &to_create, results);
            fill(&mut finished, &complete, of_finished);
        }
        Applied {
            deleted,
            created,
            finished,
        }
    }
}

/// The node's first internal address of the destination's family.
fn internal_address(node: &RouteNode, destination: IpNet) -> Result<NextHop> {
    let v4 = matches!(destination, IpNet::V4(_));
    for address in &node.addresses {
        if address.kind == AddressType::InternalIP
            && let Ok(ip) = address.address.parse::<IpAddr>()
            && ip.is_ipv4() == v4
        {
            return Ok(NextHop::new(ip.to_string()));
        }
    }
    let family = if v4 { "IPv4" } else { "IPv6" };
    Err(Error::new(
        ErrorKind::InvalidSpec,
        format!("the node has no internal {family} address for the next hop of the route"),
    ))
}

/// The indexes of the successful results.
fn places(results: &[Result<()>]) -> Vec<usize> {
    let well = results.iter().enumerate().filter(|(_, result)| result.is_ok());
    well.map(|(i, _)| i).collect()
}

/// The items at these indexes.
fn chosen<'a, T>(all: &'a [T], places: &'a [usize]) -> impl Iterator<Item = &'a T> {
    places.iter().filter_map(|i| all.get(*i))
}

/// Stores results at their indexes.
fn fill(all: &mut [Result<()>], places: &[usize], results: Vec<Result<()>>) {
    for (place, result) in places.iter().zip(results) {
        if let Some(slot) = all.get_mut(*place) {
            *slot = result;
        }
    }
}

/// Fails a route while another route to its destination could not be deleted: it would get only a part of the packets.
fn fail_if_blocked(route: &DesiredRoute, changes: &RouteChanges, deleted: &[Result<()>]) -> Result<()> {
    for (old, result) in changes.delete.iter().zip(deleted) {
        if old.destination.trunc() == route.destination {
            result.clone()?;
        }
    }
    Ok(())
}
