//! A simulated OpenStack with the provider on it, for the tests of this crate.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use ccm_core::{
    BuildContext, Cloud, Freshness, Instance, InstanceQuery, InstanceState, Need, NodeView, Priority,
    Provider, Result, registry,
};
use ccm_provider_openstack::NAME;
use ccm_sim::openstack::{Config, OpenStack};

/// The provider's user agent.
pub(crate) const USER_AGENT: &str = "openstack-cloud-controller-manager/test";

/// The registered provider.
pub(crate) fn provider() -> &'static Provider {
    registry::all()
        .into_iter()
        .find(|provider| provider.name == NAME)
        .unwrap()
}

/// A context whose config file has this text. The directory has to live as long.
pub(crate) fn context(cloud_conf: &str) -> (tempfile::TempDir, BuildContext) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cloud.conf");
    std::fs::write(&path, cloud_conf).unwrap();
    let context = BuildContext {
        cloud_config: Some(path),
        cluster_name: "kubernetes".into(),
        user_agent: USER_AGENT.into(),
        ..BuildContext::default()
    };
    (directory, context)
}

/// Builds the provider from this config file.
pub(crate) async fn build(cloud_conf: &str) -> Result<Arc<dyn Cloud>> {
    let (_directory, context) = context(cloud_conf);
    (provider().validate)(&context)?;
    (provider().build)(context).await
}

/// The simulator and the provider connected to it.
pub(crate) struct Connected {
    pub(crate) sim: OpenStack,
    pub(crate) cloud: Arc<dyn Cloud>,
}

impl Connected {
    pub(crate) async fn new() -> Self {
        Self::with(Config::default(), "").await
    }

    /// Adds lines at the end of the config file.
    pub(crate) async fn with(config: Config, more: &str) -> Self {
        let sim = OpenStack::start(config).await.unwrap();
        let cloud = build(&format!("{}{more}", sim.cloud_conf())).await.unwrap();
        sim.clear_calls();
        Self { sim, cloud }
    }

    pub(crate) async fn describe(
        &self,
        queries: &[InstanceQuery],
        freshness: Freshness,
    ) -> Vec<Result<InstanceState>> {
        self.cloud
            .instances()
            .unwrap()
            .describe(queries, freshness, Priority::User)
            .await
    }

    pub(crate) async fn ask(&self, query: InstanceQuery) -> Result<InstanceState> {
        self.describe(&[query], Freshness::now()).await.pop().unwrap()
    }

    /// The number of calls of a kind.
    pub(crate) fn count(&self, op: &str) -> u64 {
        self.sim.call_counts().get(op).copied().unwrap_or(0)
    }

    /// The number of all calls.
    pub(crate) fn total(&self) -> u64 {
        self.sim.call_counts().values().sum()
    }
}

/// Queries a node without a provider ID.
pub(crate) fn by_name(name: &str) -> InstanceQuery {
    InstanceQuery {
        node: Arc::new(node(name, None)),
        need: Need::Metadata,
    }
}

/// Queries a node with the provider ID of this server.
pub(crate) fn by_id(name: &str, server: &str) -> InstanceQuery {
    by_provider_id(name, &format!("openstack:///{server}"))
}

/// Queries a node with this provider ID.
pub(crate) fn by_provider_id(name: &str, provider_id: &str) -> InstanceQuery {
    InstanceQuery {
        node: Arc::new(node(name, Some(provider_id))),
        need: Need::Metadata,
    }
}

/// The same query, but only for existence.
pub(crate) fn existence(query: InstanceQuery) -> InstanceQuery {
    InstanceQuery {
        need: Need::Existence,
        ..query
    }
}

fn node(name: &str, provider_id: Option<&str>) -> NodeView {
    NodeView {
        name: name.into(),
        uid: format!("uid-of-{name}"),
        provider_id: provider_id.map(Into::into),
        ..NodeView::default()
    }
}

/// The instance in an answer.
pub(crate) fn present(answer: Result<InstanceState>) -> Instance {
    match answer {
        Ok(InstanceState::Present(instance)) => instance,
        other => panic!("expected Present, got {other:?}"),
    }
}

/// Addresses as short texts.
pub(crate) fn addresses(instance: &Instance) -> Vec<String> {
    instance
        .addresses
        .iter()
        .map(|address| format!("{}={}", address.kind, address.address))
        .collect()
}
