//! The routes of all routers in the config. Each has all of them.

use std::collections::{HashMap, HashSet};

use ccm_core::{
    Result,
    routes::{CloudRoute, DesiredRoute, NextHop},
};
use futures_util::future::{join_all, try_join_all};
use ipnet::IpNet;

use super::{
    records::{RawRoute, Router},
    table::Table,
};

/// Reads and writes all routers, with one request for each.
#[derive(Debug)]
pub(super) struct Tables<'a>(pub(super) Vec<Table<'a>>);

/// The observed routes of the routers.
#[derive(Debug)]
pub(super) struct ObservedTables {
    /// The routes of any router.
    pub(super) routes: Vec<CloudRoute>,
    /// The destinations and next hops of each router.
    each: Vec<HashSet<(IpNet, String)>>,
}

impl Tables<'_> {
    /// Reads all routers.
    pub(super) async fn read(&self) -> Result<ObservedTables> {
        let routers = try_join_all(self.0.iter().map(Table::read)).await?;
        Ok(ObservedTables::of(&routers))
    }

    /// The lowest known limit of any router.
    pub(super) async fn limit(&self) -> Result<Option<usize>> {
        let limits = try_join_all(self.0.iter().map(Table::limit)).await?;
        Ok(limits.into_iter().flatten().min())
    }

    /// Removes routes from all routers. A missing one is no error.
    pub(super) async fn remove(&self, routes: &[RawRoute]) -> Vec<Result<()>> {
        merged(join_all(self.0.iter().map(|table| table.remove(routes))).await)
    }

    /// Adds routes to all routers. If they exceed a limit, the first ones are added.
    pub(super) async fn add(&self, routes: &[RawRoute]) -> Vec<Result<()>> {
        merged(join_all(self.0.iter().map(|table| table.add(routes))).await)
    }
}

impl ObservedTables {
    fn of(routers: &[Router]) -> Self {
        let (mut routes, mut each) = (Vec::new(), Vec::new());
        let mut handles = HashSet::new();
        for router in routers {
            let mut has = HashSet::new();
            for route in router.routes.iter().filter_map(RawRoute::parse) {
                has.insert((route.destination, route.next_hop.to_string()));
                if handles.insert(route.handle.clone()) {
                    routes.push(route);
                }
            }
            each.push(has);
        }
        Self { routes, each }
    }

    /// A route via another address of its node counts as the desired one if every router has one, as upstream: another next hop
    /// would interrupt traffic, and the router may not reach it. Returns the next hops of such routes that all routers have.
    pub(super) fn accept_other_addresses(&mut self, desired: &[DesiredRoute]) -> HashMap<IpNet, NextHop> {
        let (mut accepted, each) = (HashMap::new(), &self.each);
        for route in desired {
            let has = |table: &HashSet<_>, hop: &str| table.contains(&(route.destination, hop.to_owned()));
            let addresses = || route.node.addresses.iter().map(|known| &*known.address);
            let is_missing = !each.iter().any(|table| has(table, route.next_hop.as_str()));
            if is_missing
                && each.iter().all(|table: &HashSet<_>| addresses().any(|address| has(table, address)))
            {
                for other in &mut self.routes {
                    if other.destination.trunc() != route.destination
                        || !addresses().any(|address| address == other.next_hop.as_str())
                    {
                        continue;
                    }
                    let hop = std::mem::replace(&mut other.next_hop, route.next_hop.clone());
                    if each.iter().all(|table| has(table, hop.as_str())) {
                        accepted.insert(route.destination, hop);
                    }
                }
            }
        }
        accepted
    }

    /// The indexes of the desired routes that some routers have and others lack.
    pub(super) fn incomplete(&self, desired: &[DesiredRoute]) -> Vec<usize> {
        let mut incomplete = Vec::new();
        if self.each.len() < 2 {
            return incomplete;
        }
        for (i, route) in desired.iter().enumerate() {
            let key = (route.destination, route.next_hop.to_string());
            let have = self.each.iter().filter(|has| has.contains(&key)).count();
            if have > 0 && have < self.each.len() {
                incomplete.push(i);
            }
        }
        incomplete
    }
}

/// The result of each route: a success only if all routers succeeded.
fn merged(of_each: Vec<Vec<Result<()>>>) -> Vec<Result<()>> {
    let mut of_each = of_each.into_iter();
    let mut all = of_each.next().unwrap_or_default();
    for results in of_each {
        for (slot, result) in all.iter_mut().zip(results) {
            if slot.is_ok() {
                *slot = result;
            }
        }
    }
    all
}
