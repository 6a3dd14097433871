//! Routes to the nodes' Pods: the entries of the cluster's route tables.
//!
//! | Step of a pass | Requests |
//! |---|---|
//! | observe | one for 100 route tables; one for 200 instances whose source/destination check was not read for an hour |
//! | apply | the same once more, then one for each route and table |
//!
//! Every table has all routes: one that some table lacks exists and has to be finished. A route leads to an instance; if that
//! has several network interfaces, to its primary interface, as EC2 requires. A route whose target changes is replaced, so
//! that its Pods are never without one. An instance drops packets for Pods until its source/destination check is off.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Priority, Result, async_trait,
    client::Fence,
    error::accept,
    routes::{Applied, CloudRoute, DesiredRoute, NextHop, Observed, RouteChanges, RouteNode, Routes},
};
use futures_util::{StreamExt, stream};
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use crate::{
    client::ec2::{Instance, Route, RouteTable},
    client::{Api, Client},
    error::code,
    instances::provider_id::{self, ProviderId},
    site::Site,
};

/// How long a source/destination check counts as off without another read.
const CHECK_MAX_AGE: Duration = Duration::from_secs(3600);
/// Routes that are written at the same time.
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

/// The target of a route to an instance.
#[derive(Clone, Debug)]
struct RouteTarget {
    /// The ID of the instance or of its primary network interface.
    id: String,
    /// Whether its source/destination check is on.
    is_checked: bool,
}

impl RouteTarget {
    fn of(instance: &Instance) -> Self {
        let interfaces = instance.interfaces.iter();
        match interfaces.min_by_key(|interface| interface.device_index.unwrap_or(i32::MAX)) {
            Some(primary) if instance.interfaces.len() > 1 => Self {
                id: primary.id.clone(),
                is_checked: primary.source_dest_check,
            },
            _ => Self {
                id: instance.id.clone(),
                is_checked: instance.source_dest_check,
            },
        }
    }
}

/// The compared attributes of a route: destination, target, and whether the target does not exist.
type RouteKey = (IpNet, NextHop, bool);

/// The key of a route; `None` for routes that do not lead to a node.
fn key(route: &Route) -> Option<RouteKey> {
    let hop = match (route.target.as_deref(), route.blackhole) {
        (Some("local"), _) => return None,
        (Some(instance), _) if instance.starts_with("i-") => instance,
        (Some(interface), true) if interface.starts_with("eni-") => interface,
        (_, true) => "blackhole",
        (_, false) => return None,
    };
    Some((route.destination.trunc(), NextHop::new(hop), route.blackhole))
}

/// The route table with this ID; without one, those of the cluster.
pub(crate) async fn route_tables(client: &Client, site: &Site, id: Option<&str>) -> Result<Vec<RouteTable>> {
    let filter = match id {
        Some(id) => ("route-table-id", vec![id.to_owned()]),
        None => ("vpc-id", vec![site.vpc.clone()]),
    };
    let mut tables = client.route_tables(&[filter]).await?;
    tables.retain(|table| id.is_some() || site.cluster.has(&table.tags));
    Ok(tables)
}

fn key_of(route: &CloudRoute) -> RouteKey {
    (route.destination.trunc(), route.next_hop.clone(), route.blackhole)
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
        let tables = route_tables(&self.api.at(priority), &self.site, self.table.as_deref()).await?;
        if !tables.is_empty() {
            return Ok(tables);
        }
        let vpc = &self.site.vpc;
        let text = match (&self.table, self.site.cluster.key()) {
            (Some(id), _) => format!("route table {id} not found; correct [Global] RouteTableID"),
            (None, Some(key)) => format!(
                "no route table of VPC {vpc} has the tag {key}; tag one, or set [Global] RouteTableID"
            ),
            (None, None) => format!("VPC {vpc} has no route table"),
        };
        Err(Error::new(ErrorKind::InvalidConfig, text))
    }

    /// The instances with these ids as targets.
    async fn targets(
        &self,
        ids: &HashSet<String>,
        priority: Priority,
    ) -> Result<HashMap<String, RouteTarget>> {
        let ids: Vec<String> = ids.iter().cloned().collect();
        let mut targets = HashMap::new();
        for instance in self.api.at(priority).instances_among(&ids).await? {
            // EC2 shows a terminated instance for about an hour.
            if instance.state != "terminated" {
                targets.insert(instance.id.clone(), RouteTarget::of(&instance));
            }
        }
        let now = Instant::now();
        let mut unchecked = self.unchecked.lock();
        unchecked.retain(|_, since| since.elapsed() < CHECK_MAX_AGE);
        for (id, target) in &targets {
            if !target.is_checked {
                unchecked.insert(id.clone(), now);
            }
        }
        Ok(targets)
    }

    /// Writes a route to all tables, then switches the source/destination check off. No route is created after a
    /// table was full.
    async fn write(&self, route: &DesiredRoute, state: &RouteState, priority: Priority) -> Result<()> {
        let client = self.api.at(priority);
        let (hop, to) = (route.next_hop.as_str(), route.destination);
        let Some(RouteTarget { id, is_checked }) = state.targets.get(hop) else {
            return Err(Error::new(ErrorKind::NotFound, format!("instance {hop} was not found")));
        };
        for table in &state.tables {
            let existing = table.routes.iter().find(|entry| entry.destination.trunc() == to);
            let written = match existing.map(|entry| (key(entry), entry)) {
                None => match state.full.get() {
                    Some(error) => return Err(error.clone()),
                    None => client.create_route(&table.id, to, id).await,
                },
                Some((Some(key), _)) if state.deleted.contains(&key) => {
                    replace(&client, &table.id, to, id).await
                }
                Some((Some((_, current, _)), _)) if current == route.next_hop => continue,
                Some((_, other)) => {
                    let target = other.target.as_deref().unwrap_or("another target");
                    let text = format!("route table {} has a route for {to} to {target}", table.id);
                    return Err(Error::new(ErrorKind::AlreadyExists, text));
                }
            };
            written.map_err(|error| {
                let error = error.with_context("table", &table.id);
                if error.kind() == ErrorKind::QuotaExceeded {
                    // A concurrent write may have set it first.
                    let _ = state.full.set(error.clone());
                }
                error
            })?;
        }
        if *is_checked {
            client.disable_source_dest_check(id).await?;
            self.unchecked.lock().insert(hop.to_owned(), Instant::now());
        }
        Ok(())
    }

    /// Deletes a route from the tables in which its target is unchanged.
    async fn delete(&self, route: &CloudRoute, tables: &[RouteTable], priority: Priority) -> Result<()> {
        let client = self.api.at(priority);
        let deleted_key = Some(key_of(route));
        for table in tables {
            for entry in table.routes.iter().filter(|entry| key(entry) == deleted_key) {
                let deleted = delete(&client, &table.id, entry.destination).await;
                deleted.map_err(|error| error.with_context("table", &table.id))?;
            }
        }
        Ok(())
    }

    /// Whether the source/destination check of an instance was seen to be off lately.
    fn is_known_off(&self, id: &str) -> bool {
        self.unchecked.lock().get(id).is_some_and(|since| since.elapsed() < CHECK_MAX_AGE)
    }

    async fn state(&self, changes: &RouteChanges, priority: Priority) -> Result<RouteState> {
        let tables = self.tables(priority).await?;
        let desired = changes.create.iter().chain(&changes.finish);
        let ids = desired.map(|route| route.next_hop.to_string()).collect();
        Ok(RouteState {
            targets: self.targets(&ids, priority).await?,
            deleted: changes.delete.iter().map(key_of).collect(),
            tables,
            full: OnceLock::new(),
        })
    }
}

/// What identifies a desired route in all tables.
fn destination_and_hop(route: &DesiredRoute) -> (IpNet, NextHop) {
    (route.destination, route.next_hop.clone())
}

/// Gives a route another target.
async fn replace(client: &Client, table: &str, to: IpNet, target: &str) -> Result<()> {
    match client.replace_route(table, to, target).await {
        // Upstream's policy does not allow it; or another client deleted the route, for which AWS has two codes.
        Err(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound)
                || is_missing_route(&error) =>
        {
            let error = error.report();
            debug!(error, table, "Deleting the route and creating it again");
            delete(client, table, to).await?;
            client.create_route(table, to, target).await
        }
        replaced => replaced,
    }
}

/// Whether AWS says that the route to replace does not exist.
fn is_missing_route(error: &Error) -> bool {
    code(error) == Some("InvalidParameterValue") && error.message().contains("no route defined")
}

/// Deletes a route, if it exists.
async fn delete(client: &Client, table: &str, to: IpNet) -> Result<()> {
    accept(client.delete_route(table, to).await, ErrorKind::NotFound, ())
}

/// The results of changes, of which at most [`BATCH`] are sent at a time.
async fn in_turn(changes: Vec<impl Future<Output = Result<()>>>) -> Vec<Result<()>> {
    stream::iter(changes).buffered(BATCH).collect().await
}

/// The observed state at the start of a round of changes.
struct RouteState {
    tables: Vec<RouteTable>,
    /// The instances of desired routes.
    targets: HashMap<String, RouteTarget>,
    /// Routes to delete.
    deleted: HashSet<RouteKey>,
    /// The error after which no more routes are created: a table is full.
    full: OnceLock<Error>,
}

#[async_trait]
impl Routes for TableRoutes {
    async fn unsupported_reason(&self, _: Priority) -> Result<Option<String>> {
        // Tables may be tagged later. If none has the tag, every pass fails.
        Ok(None)
    }

    fn next_hop(&self, node: &RouteNode, _: IpNet) -> Result<NextHop> {
        let problem = match node.view.provider_id.as_deref() {
            None | Some("") => "the node has no provider ID yet",
            Some(id) => match provider_id::parse(id)? {
                ProviderId::Instance(id) => return Ok(NextHop::new(id)),
                ProviderId::Fargate(_) => "a Fargate node cannot be the target of routes",
                ProviderId::Foreign => "the node is not an EC2 instance",
            },
        };
        Err(Error::new(ErrorKind::InvalidSpec, problem))
    }

    fn related_setting(&self) -> Option<&'static str> {
        Some("the source/destination check of its instance switched off")
    }

    async fn observe(&self, desired: &[DesiredRoute], priority: Priority) -> Result<Observed> {
        let tables = self.tables(priority).await?;
        // In how many tables each route is, and in how many its target does not exist.
        let mut found: BTreeMap<(IpNet, NextHop), [usize; 2]> = BTreeMap::new();
        let keys = tables.iter().flat_map(|table| &table.routes).filter_map(key);
        for (destination, next_hop, blackhole) in keys {
            found.entry((destination, next_hop)).or_default()[usize::from(blackhole)] += 1;
        }
        let mut unknown = HashSet::new();
        for route in desired {
            if found.contains_key(&destination_and_hop(route)) && !self.is_known_off(route.next_hop.as_str())
            {
                unknown.insert(route.next_hop.to_string());
            }
        }
        let targets = self.targets(&unknown, priority).await?;
        for route in desired {
            let hop = route.next_hop.as_str();
            // EC2 also reports the route to a stopped instance as a blackhole. A new route would be one, too.
            let exists = targets.contains_key(hop) || !unknown.contains(hop);
            if exists && let Some([complete, blackhole]) = found.get_mut(&destination_and_hop(route)) {
                *complete += std::mem::take(blackhole);
            }
        }
        let mut unfinished = Vec::new();
        for (place, route) in desired.iter().enumerate() {
            let [complete, _] = found.get(&destination_and_hop(route)).copied().unwrap_or_default();
            let is_checked = targets.get(route.next_hop.as_str()).is_some_and(|target| target.is_checked);
            if complete > 0 && (complete < tables.len() || is_checked) {
                unfinished.push(place);
            }
        }
        let mut routes = Vec::new();
        for ((destination, next_hop), [complete, missing]) in found {
            for (blackhole, tables) in [(false, complete), (true, missing)] {
                if tables > 0 {
                    routes.push(CloudRoute {
                        handle: format!("{destination} {next_hop} {blackhole}"),
                        destination,
                        next_hop: next_hop.clone(),
                        blackhole,
                    });
                }
            }
        }
        Ok(Observed { routes, unfinished })
    }

    async fn apply(&self, changes: &RouteChanges, priority: Priority) -> Applied {
        if changes.is_empty() {
            return Applied::default();
        }
        let state = match self.state(changes, priority).await {
            Ok(state) => state,
            Err(error) => return Applied::failed(changes, &error),
        };
        let desired = changes.create.iter().chain(&changes.finish);
        let replaced: HashSet<IpNet> = desired.clone().map(|route| route.destination).collect();
        // Routes that are deleted make space in the tables.
        let deletes = changes.delete.iter().map(|route| {
            let is_replaced = replaced.contains(&route.destination.trunc());
            let tables = if is_replaced { &[][..] } else { &state.tables };
            self.delete(route, tables, priority)
        });
        let mut deleted = in_turn(deletes.collect()).await;
        let writes = desired.clone().map(|route| self.write(route, &state, priority));
        let mut created = in_turn(writes.collect()).await;
        // A route that could not be replaced still exists.
        let mut failures: HashMap<IpNet, &Error> = HashMap::new();
        for (route, result) in desired.zip(&created) {
            if let Err(error) = result {
                failures.insert(route.destination, error);
            }
        }
        for (route, deleted) in changes.delete.iter().zip(&mut deleted) {
            if let Some(error) = failures.get(&route.destination.trunc()) {
                *deleted = Err((*error).clone());
            }
        }
        let finished = created.split_off(changes.create.len());
        Applied {
            deleted,
            created,
            finished,
        }
    }
}
