//! The cluster at one moment.

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use ccm_core::{
    Cloud,
    controllers::{NodeObject, ServiceObject},
    error::report,
    load_balancer::OwnershipTag,
};
use kube::{Api, Client, api::ListParams};
use serde::de::DeserializeOwned;

use crate::{config::Config, controllers::service};

/// How many objects one page of a listing holds.
const PAGE_SIZE: u32 = 200;

/// The nodes and Services of the cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// All nodes, by name.
    pub(crate) nodes: Vec<Arc<NodeObject>>,
    /// The Services, by namespace and name. Some of those without a load balancer may be missing.
    pub(crate) services: Vec<Arc<ServiceObject>>,
}

/// Whether load balancers are part of the plan.
fn has_load_balancers(config: &Config, cloud: &dyn Cloud) -> bool {
    config.controllers.is_enabled(service::NAME) && cloud.load_balancers().is_some()
}

/// Follows the ownership tag of the cluster, if load balancers are planned.
pub(super) fn follow_ownership_tag(
    client: &Client,
    config: &Config,
    cloud: &dyn Cloud,
) -> Option<service::KnownTag> {
    has_load_balancers(config, cloud).then(|| service::follow_ownership_tag(client.clone()))
}

/// Reads the ownership tag of the cluster for one plan.
///
/// # Errors
/// If the API server does not answer.
pub(crate) async fn read_ownership_tag(
    client: &Client,
    config: &Config,
    cloud: &dyn Cloud,
) -> anyhow::Result<OwnershipTag> {
    let Some(mut tag) = follow_ownership_tag(client, config, cloud) else {
        return Ok(OwnershipTag::default());
    };
    let tag = service::wait_for_ownership_tag(&mut tag).await;
    tag.context("the API server does not say which cluster this is (namespace kube-system)")
}

impl Cluster {
    /// Reads the cluster from the API server.
    ///
    /// # Errors
    /// If a listing fails.
    pub(crate) async fn read(client: &Client, config: &Config, cloud: &dyn Cloud) -> anyhow::Result<Self> {
        let nodes = list(client).await.context("cannot list nodes")?;
        let services = if has_load_balancers(config, cloud) {
            list(client).await.context("cannot list Services")?
        } else {
            Vec::new()
        };
        Ok(Self::of(nodes, services))
    }

    /// Sorts these nodes and Services.
    pub(crate) fn of(mut nodes: Vec<Arc<NodeObject>>, mut services: Vec<Arc<ServiceObject>>) -> Self {
        nodes.sort_by(|a, b| a.view.name.cmp(&b.view.name));
        services.sort_by(|a, b| a.view.id.cmp(&b.view.id));
        Self { nodes, services }
    }

    /// The number of Services that have, had or want a load balancer.
    pub(crate) fn concerned(&self) -> usize {
        let concerned = self.services.iter().filter(|object| object.is_concerned());
        concerned.count()
    }

    /// Whether a plan for both is the same, if the cloud is the same. Heartbeats of nodes make no difference.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        fn node(node: &Arc<NodeObject>) -> impl PartialEq + '_ {
            let status = (&node.addresses, node.ready, node.network);
            let spec = (&node.taints, &node.pod_cidrs, &node.provided_node_ip);
            (&node.view, &node.meta.deletion_timestamp, status, spec)
        }
        let service = |object: &Arc<ServiceObject>| Arc::clone(&object.view);
        let (nodes, services) = (self.nodes.iter(), self.services.iter());
        nodes.map(node).eq(other.nodes.iter().map(node))
            && services.map(service).eq(other.services.iter().map(service))
    }
}

async fn list<K>(client: &Client) -> anyhow::Result<Vec<Arc<K>>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE_SIZE);
    loop {
        let listed = api.list(&page).await;
        let list = listed.map_err(|error| anyhow!(report(&error)))?;
        all.extend(list.items.into_iter().map(Arc::new));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}
