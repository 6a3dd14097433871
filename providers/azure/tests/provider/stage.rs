//! A server and the provider on it.

use std::{path::PathBuf, sync::Arc};

pub(crate) use ccm_core::testkit::nodes::present;
use ccm_core::{
    Cloud, Environment, Freshness, Instance, InstanceQuery, InstanceState, Need, Result,
    testkit::{
        self,
        nodes::{self, ask, describe},
    },
};
use ccm_testbed::arm::ArmServer;
use tempfile::TempDir;

/// A server and the provider on it.
pub(crate) struct Stage {
    pub(crate) server: ArmServer,
    pub(crate) cloud: Arc<dyn Cloud>,
    conf: String,
    folder: TempDir,
}

impl Stage {
    /// Starts a server with these options, and appends lines to the config file.
    pub(crate) async fn new(options: &[&str], more: &str) -> Self {
        let server = ArmServer::start(options).await.unwrap();
        let conf = format!("{}{more}", server.conf());
        let (folder, context) = testkit::context(&conf, Environment::default());
        let cloud = testkit::build_in("azure", context).await.unwrap();
        server.calls().await.unwrap();
        Self {
            server,
            cloud,
            conf,
            folder,
        }
    }

    /// A restarted process without state.
    pub(crate) async fn restarted(&self) -> Result<Arc<dyn Cloud>> {
        testkit::build("azure", &self.conf, Environment::default()).await
    }

    /// The config file.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("cloud.conf")
    }

    /// Replaces a text of the config file.
    pub(crate) fn rewrite(&self, old: &str, new: &str) {
        let conf = std::fs::read_to_string(self.file()).unwrap();
        assert!(conf.contains(old), "{conf}");
        std::fs::write(self.file(), conf.replace(old, new)).unwrap();
    }

    /// The calls since the last time, as `GET routeTables 2`, without logins.
    pub(crate) async fn calls(&self) -> Vec<String> {
        let calls = self.server.calls().await.unwrap();
        calls
            .into_iter()
            .filter(|(call, _)| call != "token" && !call.contains("_sim"))
            .map(|(call, count)| format!("{call} {count}"))
            .collect()
    }

    pub(crate) async fn describe(&self, queries: &[InstanceQuery]) -> Vec<Result<InstanceState>> {
        describe(&*self.cloud, queries, Freshness::now()).await
    }

    pub(crate) async fn ask(&self, query: InstanceQuery) -> Result<InstanceState> {
        ask(&*self.cloud, query).await
    }

    /// The instance of a node.
    pub(crate) async fn find(&self, name: &str, provider_id: Option<&str>) -> Instance {
        present(self.ask(query(name, provider_id)).await)
    }

    /// Ends the test: Microsoft's description allows all requests.
    pub(crate) async fn end(self) {
        assert_eq!(self.server.findings().await.unwrap(), [""; 0]);
    }
}

pub(crate) fn query(name: &str, provider_id: Option<&str>) -> InstanceQuery {
    nodes::query(name, provider_id, Need::Metadata)
}

/// The provider ID of a machine.
pub(crate) fn provider_id(id: &str) -> String {
    format!("azure://{id}")
}
