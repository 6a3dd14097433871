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

use crate::{
    config::Config,
    controllers::service::{self, KnownTag},
};

/// How many objects one page of a listing has.
const PAGE_SIZE: u32 = 200;

/// The nodes and Services of the cluster at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    /// All nodes, by name.
    pub(crate) nodes: Vec<Arc<NodeObject>>,
    /// The Services, by namespace and name. Some of those without a load balancer may be missing.
    pub(crate) services: Vec<Arc<ServiceObject>>,
    /// The ownership tag, if load balancers are planned.
    pub(crate) ownership_tag: OwnershipTag,
}

/// Follows the ownership tag of the cluster, if load balancers are planned.
pub(super) fn follow_ownership_tag(client: &Client, config: &Config, cloud: &dyn Cloud) -> Option<KnownTag> {
    let has_load_balancers = config.controllers.is_enabled(service::NAME) && cloud.load_balancers().is_some();
    has_load_balancers.then(|| service::follow_ownership_tag(client.clone(), None))
}

impl Cluster {
    /// Reads the cluster from the API server.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub(crate) async fn read(client: &Client, config: &Config, cloud: &dyn Cloud) -> anyhow::Result<Self> {
        let nodes = list(client).await.context("cannot list nodes")?;
        let Some(mut tag) = follow_ownership_tag(client, config, cloud) else {
            return Ok(Self::of(nodes, Vec::new(), OwnershipTag::default()));
        };
        let services = list(client).await.context("cannot list Services")?;
        let tag = service::wait_for_ownership_tag_of_plan(&mut tag)
            .await
            .context("cannot read which cluster this is (namespace kube-system)")?;
        if let Some(id) = cloud.cluster_id() {
            service::wait_for_cluster_id_of_plan(client, id).await;
        }
        Ok(Self::of(nodes, services, tag))
    }

    /// The cluster with these nodes and Services, which it sorts.
    pub(crate) fn of(
        mut nodes: Vec<Arc<NodeObject>>,
        mut services: Vec<Arc<ServiceObject>>,
        ownership_tag: OwnershipTag,
    ) -> Self {
        nodes.sort_by(|a, b| a.view.name.cmp(&b.view.name));
        services.sort_by(|a, b| a.view.id.cmp(&b.view.id));
        Self {
            nodes,
            services,
            ownership_tag,
        }
    }

    /// The number of Services that have, had or want a load balancer.
    pub(crate) fn concerned(&self) -> usize {
        let concerned = self.services.iter().filter(|object| object.is_concerned());
        concerned.count()
    }

    /// Whether a plan for both is the same, if the cloud is the same. A heartbeat of a node is no difference.
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
