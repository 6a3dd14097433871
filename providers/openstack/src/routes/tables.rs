//! The routes of all routers that the config names. Each has all of them.

use std::collections::HashSet;

use ccm_core::{
    Result,
    routes::{CloudRoute, DesiredRoute},
};
use futures_util::future::{join_all, try_join_all};
use ipnet::IpNet;

use super::{
    records::{RawRoute, Router},
    table::Table,
};

/// Reads and writes all routers. One request for each router where there is one for a router alone.
#[derive(Debug)]
pub(super) struct Tables<'a>(pub(super) Vec<Table<'a>>);

/// What is on the routers.
#[derive(Debug)]
pub(super) struct ObservedTables {
    /// The routes that any of them has.
    pub(super) routes: Vec<CloudRoute>,
    /// What each of them has, as destinations and next hops.
    each: Vec<HashSet<(IpNet, String)>>,
}

impl Tables<'_> {
    /// The routers as they are now.
    pub(super) async fn read(&self) -> Result<ObservedTables> {
        Ok(ObservedTables::of(
            &try_join_all(self.0.iter().map(Table::read)).await?,
        ))
    }

    /// How many routes the router may have that may have the fewest, if that is known of any.
    pub(super) async fn limit(&self) -> Result<Option<usize>> {
        let limits = try_join_all(self.0.iter().map(Table::limit)).await?;
        Ok(limits.into_iter().flatten().min())
    }

    /// Takes routes away from all. One that is nowhere is gone.
    pub(super) async fn remove(&self, routes: &[RawRoute]) -> Vec<Result<()>> {
        merged(join_all(self.0.iter().map(|table| table.remove(routes))).await)
    }

    /// Adds routes to all, the first ones if there is not room for all.
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

    /// Those of the wanted routes that some of the routers have and others lack, by their places.
    pub(super) fn incomplete(&self, wanted: &[DesiredRoute]) -> Vec<usize> {
        let mut incomplete = Vec::new();
        if self.each.len() < 2 {
            return incomplete;
        }
        for (i, route) in wanted.iter().enumerate() {
            let key = (route.destination, route.next_hop.to_string());
            let have = self.each.iter().filter(|has| has.contains(&key)).count();
            if have > 0 && have < self.each.len() {
                incomplete.push(i);
            }
        }
        incomplete
    }
}

/// What became of each route: well only if it is so on all routers.
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
