//! Routes to the Pods of nodes: static routes of the cluster's network.
//!
//! A route of the cluster has the name `<cluster name, at most 26 characters>-<UID of the node>` and the description `k8s-node-route`. Others are
//! neither seen nor deleted. All routes of the project are listed without a filter, since Google counts those against a low limit, and
//! objects are compared by their resource paths: the URLs in answers have another host than those that were sent.

use std::{
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    sync::{Arc, OnceLock},
};

use ccm_core::{
    Error, ErrorKind, Priority, Result, async_trait,
    client::Fence,
    error::accept,
    routes::{Applied, CloudRoute, DesiredRoute, NextHop, Observed, RouteChanges, RouteNode, Routes},
};
use futures_util::{StreamExt as _, stream};
use ipnet::IpNet;

use crate::{
    client::{Api, Client, Route},
    instances::{canonical, provider_id},
    site::Site,
};

/// The description of the routes of all clusters. Source: the Go cloud-controller-manager.
const DESCRIPTION: &str = "k8s-node-route";
/// The priority of routes. Source: the Go cloud-controller-manager.
const PRIORITY: u32 = 1000;
/// The longest part of the cluster's name in a route's name.
const CLUSTER_NAME_MAX: usize = 26;
/// Routes that are written at the same time.
const BATCH: usize = 10;

/// The routes of one cluster.
#[derive(Debug)]
pub(crate) struct NetworkRoutes {
    api: Api,
    site: Arc<Site>,
    /// The beginning of the names of the cluster's routes.
    prefix: String,
}

impl NetworkRoutes {
    pub(crate) fn new(api: &Api, site: &Arc<Site>, cluster: &str, fence: &Fence) -> Self {
        let cluster: String = cluster.chars().take(CLUSTER_NAME_MAX).collect();
        Self {
            api: api.fenced_by(fence),
            site: Arc::clone(site),
            prefix: format!("{cluster}-"),
        }
    }

    /// The name of the route to a network of a node. In the Go cloud-controller-manager, all routes of a node have the same name, so that only
    /// that of the first podCIDR is ever created.
    fn name(&self, route: &DesiredRoute) -> String {
        let (prefix, uid) = (&self.prefix, &route.node.view.uid);
        let place = route.node.pod_cidrs.iter().position(|cidr| *cidr == route.destination);
        // A name has at most 63 characters: a UID has 36 of them, or 32 without dashes.
        let short = uid.replace('-', "");
        match place {
            Some(0) => format!("{prefix}{uid}"),
            Some(at) => format!("{prefix}{short}-{}", at + 1),
            // None of its podCIDRs.
            None => {
                let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(route.destination);
                format!("{prefix}{short}-x{:02x}", hash % 256)
            }
        }
    }

    /// Whether a route is one of this cluster.
    fn is_ours(&self, route: &Route) -> bool {
        route.description == DESCRIPTION
            && route.name.starts_with(&self.prefix)
            && route.network == self.site.network
    }

    /// Creates a route. After a quota was exhausted, none is created.
    async fn create(&self, client: &Client, route: &DesiredRoute, full: &OnceLock<Error>) -> Result<()> {
        if let Some(error) = full.get() {
            return Err(error.clone());
        }
        let project = &self.site.network_project;
        let body = Route {
            name: self.name(route),
            description: DESCRIPTION.to_owned(),
            network: self.site.network.clone(),
            destination: route.destination.to_string(),
            instance: Some(route.next_hop.to_string()),
            priority: PRIORITY,
            is_blackhole: false,
        };
        match client.create_route(project, &body).await {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let existing = client.route(project, &body.name).await?;
                if existing.destination == body.destination
                    && existing.instance == body.instance
                    && self.is_ours(&existing)
                {
                    return Ok(());
                }
                Err(error.with_context("route", body.name))
            }
            Err(error) => {
                if error.kind() == ErrorKind::QuotaExceeded {
                    // A concurrent write may have set it first.
                    let _ = full.set(error.clone());
                }
                Err(error.with_context("route", body.name))
            }
            Ok(()) => Ok(()),
        }
    }

    async fn delete(&self, client: &Client, route: &CloudRoute) -> Result<()> {
        let deleted = client.delete_route(&self.site.network_project, &route.handle).await;
        accept(deleted, ErrorKind::NotFound, ()).map_err(|error| error.with_context("route", &route.handle))
    }
}

/// The results of changes, of which at most [`BATCH`] are sent at a time.
async fn in_turn(changes: Vec<impl Future<Output = Result<()>>>) -> Vec<Result<()>> {
    stream::iter(changes).buffered(BATCH).collect().await
}

#[async_trait]
impl Routes for NetworkRoutes {
    async fn unsupported_reason(&self, _: Priority) -> Result<Option<String>> {
        Ok(None)
    }

    fn next_hop(&self, node: &RouteNode, _: IpNet) -> Result<NextHop> {
        let problem = match node.view.provider_id.as_deref() {
            None | Some("") => "the node has no provider ID yet",
            Some(id) => match provider_id::parse(id)? {
                None => "the node is not an instance of GCE",
                Some(instance) => {
                    let (project, zone) = (&instance.project, &instance.zone);
                    let name = canonical(&instance.name);
                    return Ok(NextHop::new(format!("projects/{project}/zones/{zone}/instances/{name}")));
                }
            },
        };
        Err(Error::new(ErrorKind::InvalidSpec, problem))
    }

    async fn observe(&self, _: &[DesiredRoute], priority: Priority) -> Result<Observed> {
        let listed = self.api.at(priority).routes(&self.site.network_project).await?;
        let mut observed = Observed::default();
        for route in listed.into_iter().filter(|route| self.is_ours(route)) {
            if let (Ok(destination), Some(instance)) = (route.destination.parse::<IpNet>(), route.instance) {
                observed.routes.push(CloudRoute {
                    destination,
                    next_hop: NextHop::new(instance),
                    blackhole: route.is_blackhole,
                    handle: route.name,
                });
            }
        }
        Ok(observed)
    }

    async fn apply(&self, changes: &RouteChanges, priority: Priority) -> Applied {
        let (client, full) = (self.api.at(priority), OnceLock::new());
        // A route keeps its name until it is deleted, and makes space for others then.
        let deletes = changes.delete.iter().map(|route| self.delete(&client, route)).collect();
        let deleted = in_turn(deletes).await;
        let creates = changes.create.iter().map(|route| self.create(&client, route, &full)).collect();
        Applied {
            deleted,
            created: in_turn(creates).await,
            // Routes have no related setting.
            finished: changes.finish.iter().map(|_| Ok(())).collect(),
        }
    }
}
