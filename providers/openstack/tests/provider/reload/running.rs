//! A provider that runs while its files change.

use std::{path::PathBuf, sync::Arc};

use ccm_core::{
    BuildContext, Cloud, Freshness, InstanceQuery, InstanceState, Reload, Result, testkit::nodes,
};
use ccm_sim::openstack::{Config, OpenStack, UserSpec};

use crate::cloud::{context, present, provider};

/// A running provider whose files can be changed.
pub(crate) struct Running {
    pub(crate) sim: OpenStack,
    pub(crate) cloud: Arc<dyn Cloud>,
    folder: tempfile::TempDir,
}

impl Running {
    pub(crate) async fn new() -> Self {
        Self::with(OpenStack::start(Config::default()).await.unwrap(), |sim| sim.cloud_conf()).await
    }

    pub(crate) async fn with(sim: OpenStack, conf: impl FnOnce(&OpenStack) -> String) -> Self {
        let (folder, context) = context(&conf(&sim));
        let cloud = start(context).await;
        sim.clear_calls();
        Self { sim, cloud, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, conf: &str) {
        std::fs::write(self.path("cloud.conf"), conf).unwrap();
    }

    /// Reloads with another file.
    pub(crate) async fn change(&self, conf: &str) -> Result<Reload> {
        self.write(conf);
        self.cloud.reload().await
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

    pub(crate) fn count(&self, op: &str) -> u64 {
        self.sim.call_counts().get(op).copied().unwrap_or(0)
    }

    /// A project with a user in it, and the config for both.
    pub(crate) fn other_project(&self) -> (String, String) {
        let project = self.sim.create_project("other");
        let user = UserSpec {
            name: "other-user".into(),
            password: "other-password".into(),
            projects: Some(vec![project.clone()]),
            ..UserSpec::default()
        };
        self.sim.create_user(&user).unwrap();
        let conf = self
            .sim
            .cloud_conf()
            .replace("\"ccm\"", "\"other-user\"")
            .replace("correct-horse", "other-password")
            .replace("\"k8s\"", "\"other\"");
        (project, conf)
    }
}

pub(crate) async fn start(context: BuildContext) -> Arc<dyn Cloud> {
    (provider().validate)(&context).unwrap();
    (provider().build)(context).await.unwrap()
}

pub(crate) fn all_present(answers: Vec<Result<InstanceState>>) {
    for answer in answers {
        present(answer);
    }
}
