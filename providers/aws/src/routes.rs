//! Routes to the nodes' Pods: the entries of the cluster's route tables.
//!
//! | Step of a pass | Requests |
//! |---|---|
//! | observe | one for 100 route tables; one for 200 instances whose source/destination check was not read for an hour |
//! | apply | the same once more, then one for each route and table |
//!
//! Every table has all routes: one that some table lacks is there and has to be finished. A route leads to an instance; to one
//! with several network interfaces EC2 takes only its primary interface. A route whose target changes is replaced, so that its
//! Pods are never without one. An instance drops packets for Pods until its source/destination check is off.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Priority, Result, async_trait,
    client::Fence,
    routes::{Applied, Changes, CloudRoute, DesiredRoute, NextHop, Observed, RouteNode, Routes},
};
use futures_util::future::join_all;
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use crate::{
    client::{
        Api, Client,
        ec2::{FILTER_VALUES, Instance, Route, RouteTable, RouteTarget},
    },
    instances::provider_id::{self, ProviderId},
    site::Site,
};

/// So long it is believed that a source/destination check is still off.
const CHECK_MAX_AGE: Duration = Duration::from_secs(3600);
/// Routes that are written at the same time. After a batch that met the limit of a table, no more are tried.
const BATCH: usize = 10;

/// The routes of the cluster's route tables.
#[derive(Debug)]
pub(crate) struct TableRoutes {
    api: Api,
    site: Arc<Site>,
    /// `RouteTableID`.
    table: Option<String>,
    /// Instances whose source/destination check was off, and when.
    unchecked: Mutex<HashMap<String, Instant>>,
}

/// The instance of a route, as a target.
#[derive(Clone, Debug)]
struct Target {
    target: RouteTarget,
    /// Whether its source/destination check is on.
    is_checked: bool,
}

impl Target {
    fn of(instance: &Instance) -> Self {
        let primary = instance
            .interfaces
            .iter()
            .min_by_key(|one| one.device_index.unwrap_or(i32::MAX));
        match primary {
            Some(primary) if instance.interfaces.len() > 1 => Self {
                target: RouteTarget::Interface(primary.id.clone()),
                is_checked: primary.source_dest_check,
            },
            _ => Self {
                target: RouteTarget::Instance(instance.id.clone()),
                is_checked: instance.source_dest_check,
            },
        }
    }
}

/// A route as it is compared: where to, where through, and whether that is gone.
type Key = (IpNet, NextHop, bool);

/// What is compared of a route; `None` for those that no node is behind.
fn key(route: &Route) -> Option<Key> {
    if route.gateway.as_deref() == Some("local") {
        return None;
    }
    let hop = match (&route.instance, &route.interface, route.blackhole) {
        (Some(instance), _, _) => instance.as_str(),
        (None, Some(interface), true) => interface,
        (None, None, true) => "gone",
        (None, _, false) => return None,
    };
    Some((route.destination.trunc(), NextHop::new(hop), route.blackhole))
}

impl TableRoutes {
    pub(crate) fn new(api: &Api, site: &Arc<Site>, table: Option<String>, fence: &Fence) -> Self {
        Self {
            api: api.fenced_by(fence),
            site: Arc::clone(site),
            table,
            unchecked: Mutex::default(),
        }
    }

    /// The tables, read now.
    async fn tables(&self, priority: Priority) -> Result<Vec<RouteTable>> {
        let mut filter = Vec::new();
        let cluster = &self.site.cluster;
        if let Some(id) = &self.table {
            filter.push(("route-table-id", vec![id.clone()]));
        } else {
            filter.push(("vpc-id", vec![self.site.vpc.clone()]));
            filter.extend(
                cluster
                    .key()
                    .filter(|_| !cluster.legacy)
                    .map(|key| ("tag-key", vec![key])),
            );
        }
        let mut tables = self.api.at(priority).route_tables(&filter).await?;
        if self.table.is_none() {
            tables.retain(|table| cluster.has(&table.tags));
        }
        if tables.is_empty() {
            let text = match (&self.table, cluster.key()) {
                (Some(id), _) => format!("there is no route table {id}; correct [Global] RouteTableID"),
                (None, Some(key)) => format!(
                    "no route table of VPC {} has the tag {key}; tag one, or set [Global] RouteTableID",
                    self.site.vpc
                ),
                (None, None) => format!("VPC {} has no route table", self.site.vpc),
            };
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(tables)
    }

    /// The instances with these ids as targets.
    async fn targets(&self, ids: &HashSet<String>, priority: Priority) -> Result<HashMap<String, Target>> {
        let ids: Vec<String> = ids.iter().cloned().collect();
        let reads = ids.chunks(FILTER_VALUES).map(|chunk| async move {
            let filter = [("instance-id", chunk.to_vec())];
            self.api.at(priority).instances(&filter).await
        });
        let mut targets = HashMap::new();
        for found in join_all(reads).await {
            targets.extend(found?.iter().map(|one| (one.id.clone(), Target::of(one))));
        }
        let now = Instant::now();
        let mut unchecked = self.unchecked.lock();
        unchecked.retain(|_, since| since.elapsed() < CHECK_MAX_AGE);
        let off = targets.iter().filter(|(_, target)| !target.is_checked);
        unchecked.extend(off.map(|(id, _)| (id.clone(), now)));
        Ok(targets)
    }

    /// Creates, replaces or finishes a route in all tables, then lets its packets pass.
    async fn write(&self, route: &DesiredRoute, state: &State, priority: Priority) -> Result<()> {
        let client = self.api.at(priority);
        let (hop, to) = (route.next_hop.as_str(), route.destination);
        let Some(Target { target, is_checked }) = state.targets.get(hop) else {
            let text = format!("instance {hop} was not found");
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        for table in &state.tables {
            let mut routes = table.routes.iter();
            let there = routes.find(|there| there.destination.trunc() == to);
            let written = match there.map(|there| (key(there), there)) {
                None => client.create_route(&table.id, to, target).await,
                Some((Some((_, there, false)), _)) if there == route.next_hop => continue,
                Some((Some(there), _)) if state.deleted.contains(&there) => {
                    replace(&client, &table.id, to, target).await
                }
                Some((_, there)) => {
                    let leads = [&there.instance, &there.interface, &there.gateway];
                    let leads = leads.into_iter().flatten().next();
                    let leads = leads.map_or("something else", String::as_str);
                    let text = format!("route table {} has a route for {to} to {leads}", table.id);
                    return Err(Error::new(ErrorKind::AlreadyExists, text));
                }
            };
            written.map_err(|error| error.with_context("table", &table.id))?;
        }
        if *is_checked {
            client.disable_source_dest_check(target).await?;
            self.unchecked.lock().insert(hop.to_owned(), Instant::now());
        }
        Ok(())
    }

    /// Deletes a route from the tables in which it still leads where it led.
    async fn delete(&self, route: &CloudRoute, tables: &[RouteTable], priority: Priority) -> Result<()> {
        let client = self.api.at(priority);
        let gone = (route.destination.trunc(), route.next_hop.clone(), route.blackhole);
        for table in tables {
            let routes = table.routes.iter();
            for there in routes.filter(|there| key(there).as_ref() == Some(&gone)) {
                let deleted = delete(&client, &table.id, there.destination).await;
                deleted.map_err(|error| error.with_context("table", &table.id))?;
            }
        }
        Ok(())
    }

    async fn state(&self, changes: &Changes, priority: Priority) -> Result<State> {
        let tables = self.tables(priority).await?;
        let desired = changes.create.iter().chain(&changes.finish);
        let ids: HashSet<String> = desired.map(|route| route.next_hop.to_string()).collect();
        let deleted = changes.delete.iter();
        Ok(State {
            targets: self.targets(&ids, priority).await?,
            deleted: deleted
                .map(|route| (route.destination.trunc(), route.next_hop.clone(), route.blackhole))
                .collect(),
            tables,
        })
    }
}

/// Gives a route another target.
async fn replace(client: &Client, table: &str, to: IpNet, target: &RouteTarget) -> Result<()> {
    match client.replace_route(table, to, target).await {
        // Upstream's policy does not allow it; or somebody else deleted the route.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) => {
            let error = error.report();
            debug!(error, table, "Deleting the route and creating it again");
            delete(client, table, to).await?;
            client.create_route(table, to, target).await
        }
        replaced => replaced,
    }
}

/// Deletes a route, if it exists.
async fn delete(client: &Client, table: &str, to: IpNet) -> Result<()> {
    match client.delete_route(table, to).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

/// What a round of changes begins with, read now.
struct State {
    tables: Vec<RouteTable>,
    /// The instances of desired routes.
    targets: HashMap<String, Target>,
    /// Routes that go.
    deleted: HashSet<Key>,
}

#[async_trait]
impl Routes for TableRoutes {
    async fn missing(&self, _: Priority) -> Result<Option<String>> {
        // Tables may be tagged later. That there are none now is an error of every pass.
        Ok(None)
    }

    fn next_hop(&self, node: &RouteNode, _: IpNet) -> Result<NextHop> {
        let invalid = |text: &str| Error::new(ErrorKind::InvalidSpec, text);
        let id = node.view.provider_id.as_deref().filter(|id| !id.is_empty());
        match provider_id::parse(id.ok_or_else(|| invalid("the node has no provider ID yet"))?)? {
            ProviderId::Instance(id) => Ok(NextHop::new(id)),
            ProviderId::Fargate(_) => Err(invalid("a Fargate node takes no routes")),
            ProviderId::Foreign => Err(invalid("the node is not an EC2 instance")),
        }
    }

    fn beside(&self) -> Option<&'static str> {
        Some("the source/destination check of its instance switched off")
    }

    async fn observe(&self, desired: &[DesiredRoute], priority: Priority) -> Result<Observed> {
        let tables = self.tables(priority).await?;
        let mut found: BTreeMap<Key, Vec<&str>> = BTreeMap::new();
        for table in &tables {
            for key in table.routes.iter().filter_map(key) {
                found.entry(key).or_default().push(&table.id);
            }
        }
        let there = |route: &DesiredRoute| found.get(&(route.destination, route.next_hop.clone(), false));
        let unknown: HashSet<String> = {
            let unchecked = self.unchecked.lock();
            let is_off = |id: &str| {
                unchecked
                    .get(id)
                    .is_some_and(|since| since.elapsed() < CHECK_MAX_AGE)
            };
            let hops = desired.iter().filter(|route| there(route).is_some());
            hops.map(|route| route.next_hop.to_string())
                .filter(|id| !is_off(id))
                .collect()
        };
        let checked: HashSet<String> = match self.targets(&unknown, priority).await {
            Ok(targets) => targets
                .into_iter()
                .filter(|(_, one)| one.is_checked)
                .map(|(id, _)| id)
                .collect(),
            Err(error) => {
                // The routes themselves are known. Finishing them says what is wrong.
                debug!(
                    error = error.report(),
                    "Could not read the source/destination checks of nodes"
                );
                unknown
            }
        };
        let is_unfinished = |route: &DesiredRoute| {
            there(route).is_some_and(|of| of.len() < tables.len())
                || checked.contains(route.next_hop.as_str())
        };
        Ok(Observed {
            unfinished: (0..)
                .zip(desired)
                .filter(|(_, route)| there(route).is_some() && is_unfinished(route))
                .map(|(place, _)| place)
                .collect(),
            routes: found
                .iter()
                .map(|((destination, next_hop, blackhole), tables)| CloudRoute {
                    destination: *destination,
                    next_hop: next_hop.clone(),
                    blackhole: *blackhole,
                    handle: tables.join(","),
                })
                .collect(),
        })
    }

    async fn apply(&self, changes: &Changes, priority: Priority) -> Applied {
        if changes.is_empty() {
            return Applied::default();
        }
        let state = match self.state(changes, priority).await {
            Ok(state) => state,
            Err(error) => {
                return Applied {
                    deleted: changes.delete.iter().map(|_| Err(error.clone())).collect(),
                    created: changes.create.iter().map(|_| Err(error.clone())).collect(),
                    finished: changes.finish.iter().map(|_| Err(error.clone())).collect(),
                };
            }
        };
        let desired = changes.create.iter().chain(&changes.finish);
        let replaced: HashSet<IpNet> = desired.map(|route| route.destination).collect();
        let mut applied = Applied::default();
        // What is not replaced makes room first.
        for batch in changes.delete.chunks(BATCH) {
            let deletes = batch.iter().map(|route| async {
                if replaced.contains(&route.destination.trunc()) {
                    return Ok(());
                }
                self.delete(route, &state.tables, priority).await
            });
            applied.deleted.extend(join_all(deletes).await);
        }
        let mut full: Option<Error> = None;
        for (routes, results) in [
            (&changes.create, &mut applied.created),
            (&changes.finish, &mut applied.finished),
        ] {
            for batch in routes.chunks(BATCH) {
                if let Some(error) = &full {
                    results.extend(batch.iter().map(|_| Err(error.clone())));
                    continue;
                }
                let written = join_all(batch.iter().map(|route| self.write(route, &state, priority))).await;
                let mut refused = written.iter().filter_map(|result| result.as_ref().err());
                full = refused
                    .find(|error| error.kind() == ErrorKind::QuotaExceeded)
                    .cloned();
                results.extend(written);
            }
        }
        // A route that could not be replaced is still there.
        let creates = changes.create.iter().zip(&applied.created);
        let written: HashMap<IpNet, &Result<()>> = creates
            .chain(changes.finish.iter().zip(&applied.finished))
            .map(|(route, result)| (route.destination, result))
            .collect();
        for (route, deleted) in changes.delete.iter().zip(&mut applied.deleted) {
            if let Some(Err(error)) = written.get(&route.destination.trunc()) {
                *deleted = Err(error.clone());
            }
        }
        applied
    }
}
