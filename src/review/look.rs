//! One look at cluster and cloud, by all controllers that would run.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use ccm_core::{
    Cloud,
    controllers::{NodeObject, ServiceObject},
    load_balancer::OwnershipTag,
    load_balancer::ReadOptions,
};
use kube::{Api, Client, api::ListParams};
use serde::de::DeserializeOwned;

use super::Review;
use crate::{
    controllers::{lifecycle, node, route, service},
    options::Config,
};

/// How many objects a listing asks for at a time.
const PAGE_SIZE: u32 = 200;
/// For the API server to say which cluster this is.
const MARKS_TIMEOUT: Duration = Duration::from_secs(60);

/// The cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// All nodes, by name.
    pub(crate) nodes: Vec<Arc<NodeObject>>,
    /// The Services, by namespace and name. Of those that have nothing to do with load balancers some may be missing.
    pub(crate) services: Vec<Arc<ServiceObject>>,
}

/// What is looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of it.
    #[default]
    Everything,
    /// One Service, and no nodes.
    Service { namespace: String, name: String },
}

/// Looks at cluster and cloud.
pub(crate) struct Looker<'a> {
    pub(crate) cloud: &'a dyn Cloud,
    pub(crate) config: &'a Config,
    pub(crate) marks: &'a OwnershipTag,
}

/// The ownership tag of the cluster, if load balancers are looked at.
pub(crate) fn ownership_tag(
    client: &Client,
    config: &Config,
    cloud: &dyn Cloud,
) -> Option<service::KnownTag> {
    let wanted = config.controllers.is_enabled(service::NAME) && cloud.load_balancers().is_some();
    wanted.then(|| service::follow_ownership_tag(client.clone()))
}

/// The same for one look.
///
/// # Errors
/// If the API server does not answer.
pub(crate) async fn marks(
    client: &Client,
    config: &Config,
    cloud: &dyn Cloud,
) -> anyhow::Result<OwnershipTag> {
    let Some(mut tag) = ownership_tag(client, config, cloud) else {
        return Ok(OwnershipTag::default());
    };
    match tokio::time::timeout(MARKS_TIMEOUT, tag.wait_for(Option::is_some)).await {
        Ok(Ok(marks)) => Ok(marks.clone().unwrap_or_default()),
        _ => Err(anyhow!(
            "the API server does not say which cluster this is (namespace kube-system)"
        )),
    }
}

impl Cluster {
    /// Reads it from the API server.
    ///
    /// # Errors
    /// If it can not be read.
    pub(crate) async fn read(client: &Client, config: &Config, cloud: &dyn Cloud) -> anyhow::Result<Self> {
        let nodes: Vec<NodeObject> = list(client).await.context("can not list nodes")?;
        let with_services = config.controllers.is_enabled(service::NAME) && cloud.load_balancers().is_some();
        let services: Vec<ServiceObject> = if with_services {
            list(client).await.context("can not list Services")?
        } else {
            Vec::new()
        };
        Ok(Self::of(
            nodes.into_iter().map(Arc::new).collect(),
            services.into_iter().map(Arc::new).collect(),
        ))
    }

    /// These, in order.
    pub(crate) fn of(mut nodes: Vec<Arc<NodeObject>>, mut services: Vec<Arc<ServiceObject>>) -> Self {
        nodes.sort_by(|a, b| a.view.name.cmp(&b.view.name));
        services.sort_by(|a, b| a.view.id.cmp(&b.view.id));
        Self { nodes, services }
    }
}

impl Cluster {
    /// How many Services have, had or want a load balancer.
    pub(crate) fn concerned(&self) -> usize {
        self.services
            .iter()
            .filter(|object| object.is_concerned())
            .count()
    }

    /// Whether a look at both would come to the same, if the cloud is the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let nodes = |a: &NodeObject, b: &NodeObject| {
            a.view == b.view
                && a.taints == b.taints
                && a.addresses == b.addresses
                && a.provided_node_ip == b.provided_node_ip
                && a.ready == b.ready
                && a.pod_cidrs == b.pod_cidrs
                && a.network == b.network
                && a.meta.deletion_timestamp == b.meta.deletion_timestamp
        };
        self.nodes.len() == other.nodes.len()
            && self.services.len() == other.services.len()
            && self.nodes.iter().zip(&other.nodes).all(|(a, b)| nodes(a, b))
            && self
                .services
                .iter()
                .zip(&other.services)
                .all(|(a, b)| a.view == b.view)
    }
}

async fn list<K>(client: &Client) -> anyhow::Result<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE_SIZE);
    loop {
        let list = api
            .list(&page)
            .await
            .map_err(|error| anyhow!(ccm_core::error::report(&error)))?;
        all.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}

impl Looker<'_> {
    /// What would be done, as far as it can be found out.
    ///
    /// # Errors
    /// If what is asked for is not there.
    pub(crate) async fn look(
        &self,
        cluster: &Cluster,
        scope: &Scope,
        ask: ReadOptions,
    ) -> anyhow::Result<Review> {
        let mut review = Review::default();
        let mut nodes = cluster.nodes.clone();
        let enabled = |name| self.config.controllers.is_enabled(name);
        if *scope == Scope::Everything {
            for node in &cluster.nodes {
                review.node(&node.view.name);
            }
        }
        // What follows from nodes follows from nodes as they would be. Of a Service only that is of interest.
        let mut silent = Review::default();
        let of_nodes = match scope {
            Scope::Everything => &mut review,
            Scope::Service { .. } => &mut silent,
        };
        if enabled(lifecycle::COMPONENT) && *scope == Scope::Everything {
            lifecycle::review(&mut nodes, self.cloud, &self.config.lifecycle, of_nodes).await;
        }
        if enabled(node::COMPONENT) && (*scope == Scope::Everything || node::has_new(&nodes)) {
            node::review(&mut nodes, self.cloud, &self.config.node, ask, of_nodes).await;
        }
        let balancers = self.cloud.load_balancers().filter(|_| enabled(service::NAME));
        match (balancers, scope) {
            (Some(balancers), _) => {
                let what = service::Reviewed {
                    services: &cluster.services,
                    nodes: &nodes,
                    cluster_name: &self.config.cluster_name,
                    marks: self.marks,
                    delete_orphans: self.config.service.orphans.delete,
                };
                service::review(&what, balancers, scope, ask, &mut review).await?;
            }
            (None, Scope::Service { .. }) if !enabled(service::NAME) => {
                match self.config.controllers.elsewhere.get(service::NAME) {
                    Some(component) => {
                        bail!(
                            "--service: --leader-migration-config gives the service controller to {component}"
                        )
                    }
                    None => bail!("--service: the service controller is switched off by --controllers"),
                }
            }
            (None, Scope::Service { .. }) => bail!(
                "--service: the cloud provider {} has no load balancers",
                self.cloud.name()
            ),
            (None, Scope::Everything) => {}
        }
        let with_routes = enabled(route::NAME) && self.config.route.enabled && self.cloud.routes().is_some();
        if *scope == Scope::Everything && with_routes {
            route::review(&nodes, self.cloud, &self.config.route, ask.priority, &mut review).await;
        }
        Ok(review)
    }
}
