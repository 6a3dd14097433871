//! A simulated OpenStack with the provider on it, for the tests of this crate.

use std::sync::Arc;

pub(crate) use ccm_core::testkit::{USER_AGENT, nodes::present};
use ccm_core::{
    BuildContext, Cloud, Environment, Freshness, Instance, InstanceQuery, InstanceState, Need, Provider,
    Result,
    testkit::{self, nodes},
};
use ccm_provider_openstack::NAME;
use ccm_sim::openstack::{Config, OpenStack};

/// The registered provider.
pub(crate) fn provider() -> &'static Provider {
    testkit::provider(NAME)
}

/// A context whose config file has this text. The file exists as long as the folder.
pub(crate) fn context(cloud_conf: &str) -> (tempfile::TempDir, BuildContext) {
    testkit::context(cloud_conf, Environment::default())
}

/// Builds the provider from this config file.
pub(crate) async fn build(cloud_conf: &str) -> Result<Arc<dyn Cloud>> {
    testkit::build(NAME, cloud_conf, Environment::default()).await
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
        nodes::describe(&*self.cloud, queries, freshness).await
    }

    pub(crate) async fn ask(&self, query: InstanceQuery) -> Result<InstanceState> {
        nodes::ask(&*self.cloud, query).await
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
    nodes::query(name, None, Need::Metadata)
}

/// Queries a node with the provider ID of this server.
pub(crate) fn by_id(name: &str, server: &str) -> InstanceQuery {
    by_provider_id(name, &format!("openstack:///{server}"))
}

/// Queries a node with this provider ID.
pub(crate) fn by_provider_id(name: &str, provider_id: &str) -> InstanceQuery {
    nodes::query(name, Some(provider_id), Need::Metadata)
}

/// The same query, but only for existence.
pub(crate) fn existence(query: InstanceQuery) -> InstanceQuery {
    InstanceQuery {
        need: Need::Existence,
        ..query
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
