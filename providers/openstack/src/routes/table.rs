//! The routes of one router: reading, adding and removing them.

use std::collections::{BTreeMap, HashSet};

use ccm_core::{Error, ErrorKind, Priority, RequestOutcome, Result};
use tracing::debug;

use super::{
    bisect::{divide, is_overtaken, is_passing},
    records::{Quotas, RawRoute, Router},
};
use crate::client::{Api, Call, Op, call, catalog::Service, if_revision, listing::Single, read};
use http::Method;

/// How often a whole list is written while others change it.
const TRIES: usize = 8;

/// The limit on the routes of a router.
pub(super) const QUOTA: &str = "the quota router_route of the router's project";

/// Reads and writes one router.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'a> {
    pub(super) api: &'a Api,
    pub(super) router: &'a str,
    /// Whether single routes can be added and removed.
    pub(super) atomic: bool,
    pub(super) priority: Priority,
}

impl Table<'_> {
    /// Reads the router.
    pub(super) async fn read(&self) -> Result<Router> {
        let path = ["routers", self.router];
        let query = ["id", "project_id", "routes", "revision_number"].map(|field| ("fields", field));
        let get = Call {
            query: &query,
            ..read(Op::RouterGet, Service::Network, &path)
        };
        let Single(router) = self.api.get(&get, self.priority).await.map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                let text = format!(
                    "router {} not found; [Route] router-id has to name one of this project",
                    self.router
                );
                return Error::new(ErrorKind::NotFound, text).with_source(error);
            }
            error
        })?;
        Ok(router)
    }

    /// The most routes of the router; `None` if its project's quota has no limit or is not visible.
    pub(super) async fn limit(&self) -> Result<Option<usize>> {
        let router = self.read().await?;
        let path = ["quotas", router.project_id.as_str()];
        let get = read(Op::NetworkQuotaGet, Service::Network, &path);
        match self.api.get::<Quotas>(&get, self.priority).await {
            Ok(Quotas { quota }) => Ok(quota.router_route.and_then(|limit| usize::try_from(limit).ok())),
            Err(error) if is_passing(&error) => Err(error),
            Err(error) => {
                debug!(error = %error.report(), "The limit on routes of the router is not known");
                Ok(None)
            }
        }
    }

    /// Removes routes. A missing one is no error.
    pub(super) async fn remove(&self, routes: &[RawRoute]) -> Vec<Result<()>> {
        divide(routes, |batch| async move {
            let after = self.change(&[], batch).await?;
            let present: HashSet<_> = after.routes.iter().collect();
            let each = batch.iter().map(|route| expected(!present.contains(route)));
            Ok(each.collect())
        })
        .await
    }

    /// Adds routes. If they exceed the limit, the first ones are added.
    pub(super) async fn add(&self, routes: &[RawRoute]) -> Vec<Result<()>> {
        divide(routes, |batch| async move {
            let after = self.change(batch, &[]).await.map_err(|error| self.explain(error, batch))?;
            let present: HashSet<_> = after.routes.iter().collect();
            let each = batch.iter().map(|route| {
                // Hashing first avoids comparing two long lists. Routes with another spelling are searched for.
                expected(present.contains(route) || after.routes.iter().any(|known| known.is(route)))
            });
            Ok(each.collect())
        })
        .await
    }

    /// Adds the fix to a refusal. The text does not depend on the router's other routes.
    fn explain(&self, error: Error, batch: &[RawRoute]) -> Error {
        let text = match (error.kind(), batch) {
            (ErrorKind::QuotaExceeded, _) => {
                format!("router {} has as many routes as it may have; raise {QUOTA}", self.router)
            }
            (ErrorKind::InvalidSpec, [route]) => format!(
                "router {} does not take the next hop {}: {}",
                self.router,
                route.nexthop,
                reason(error.message())
            ),
            _ => return error,
        };
        Error::new(error.kind(), text).with_source(error)
    }

    /// Sends one request, and returns the router after it.
    async fn change(&self, add: &[RawRoute], remove: &[RawRoute]) -> Result<Router> {
        if !self.atomic {
            return self.rewrite(add, remove).await;
        }
        let (op, what, routes) = if remove.is_empty() {
            (Op::RouterAddRoutes, "add_extraroutes", add)
        } else {
            (Op::RouterRemoveRoutes, "remove_extraroutes", remove)
        };
        let path = ["routers", self.router, what];
        self.put(op, &path, routes, None).await
    }

    async fn put(&self, op: Op, path: &[&str], routes: &[RawRoute], revision: Option<i64>) -> Result<Router> {
        let write = if_revision(revision, call(op, Service::Network, Method::PUT, path));
        let body = BTreeMap::from([("routes", routes)]);
        self.api.write_one(write, &body, self.priority).await
    }

    /// Writes the whole list, if the router did not change since it was read. Other routes stay.
    async fn rewrite(&self, add: &[RawRoute], remove: &[RawRoute]) -> Result<Router> {
        let path = ["routers", self.router];
        let mut last = None;
        for _ in 0..TRIES {
            let known = self.read().await?;
            let mut routes: Vec<RawRoute> = known.routes.clone();
            routes.retain(|route| !remove.contains(route));
            for new in add {
                if !routes.iter().any(|route| route.is(new)) {
                    routes.push(new.clone());
                }
            }
            if routes == known.routes {
                return Ok(known);
            }
            let put = self.put(Op::RouterUpdate, &path, &routes, known.revision_number);
            match put.await {
                Ok(router) => return Ok(router),
                // The change conflicted, or its result is unknown: the next read shows it.
                Err(error) if is_overtaken(&error) || error.outcome() == RequestOutcome::Unknown => {
                    debug!(router = self.router, error = %error.report(), "Reading the router again");
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Conflict, "the router changes too often")))
    }
}

/// The reason in Neutron's message, which begins with the list of all routes.
fn reason(message: &str) -> &str {
    message.rsplit_once("], ").map_or(message, |(_, reason)| reason)
}

fn expected(is_so: bool) -> Result<()> {
    if is_so {
        return Ok(());
    }
    let text = "Neutron accepted the change, but does not show it";
    Err(Error::new(ErrorKind::Unexpected, text))
}
