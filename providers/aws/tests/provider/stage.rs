//! An account on moto and the provider on it.

use std::sync::Arc;

use ccm_core::{
    BuildContext, Cloud, Environment, Freshness, Instance, InstanceQuery, InstanceState, Need, NodeView,
    Priority, Provider, Result, client::ClientMetrics, registry,
};
use ccm_provider_aws::NAME;
use ccm_testbed::{
    moto::{Account, Machine, Moto},
    proxy::{Action, Rule},
};
use serde_json::Value;

/// The cluster's id.
pub(crate) const CLUSTER: &str = "kubernetes";

/// The registered provider.
pub(crate) fn provider() -> &'static Provider {
    let found = registry::all().into_iter().find(|provider| provider.name == NAME);
    found.unwrap()
}

/// A context whose config file has this text. The file exists as long as the directory value.
pub(crate) fn context(conf: &str, variables: &[(String, String)]) -> (tempfile::TempDir, BuildContext) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cloud.conf");
    std::fs::write(&path, conf).unwrap();
    let environment = variables
        .iter()
        .fold(Environment::default(), |environment, (name, value)| {
            environment.with(name, value)
        });
    let context = BuildContext {
        cloud_config: Some(path),
        flags: Default::default(),
        environment,
        cluster_name: CLUSTER.into(),
        user_agent: "aws-cloud-controller-manager/test".into(),
        metrics: ClientMetrics::default(),
        plan: Default::default(),
        fences: Default::default(),
    };
    (directory, context)
}

/// Builds the provider from this config file.
pub(crate) async fn build(conf: &str, variables: &[(String, String)]) -> Result<Arc<dyn Cloud>> {
    let (_directory, context) = context(conf, variables);
    (provider().validate)(&context)?;
    (provider().build)(context).await
}

/// An account and the provider on it.
pub(crate) struct Stage {
    pub(crate) account: Account<'static>,
    pub(crate) cloud: Arc<dyn Cloud>,
    /// Additional lines of the config file.
    more: String,
}

impl Stage {
    /// Creates so many instances, and appends lines to the config file.
    pub(crate) async fn new(instances: usize, more: &str) -> Self {
        let moto = Moto::shared().await.unwrap();
        let account = moto.account(CLUSTER, instances).await.unwrap();
        let conf = format!("{}{more}", account.cloud_conf());
        let cloud = build(&conf, &account.environment()).await.unwrap();
        account.proxy.forget();
        Self {
            account,
            cloud,
            more: more.to_owned(),
        }
    }

    /// A restarted process without state.
    pub(crate) async fn restarted(&self) -> Result<Arc<dyn Cloud>> {
        let conf = format!("{}{}", self.account.cloud_conf(), self.more);
        build(&conf, &self.account.environment()).await
    }

    /// An operation by boto3's name, past the proxy.
    pub(crate) async fn call(&self, service: &str, operation: &str, arguments: Value) -> Value {
        self.account.call(service, operation, arguments).await.unwrap()
    }

    /// The actions that were requested.
    pub(crate) fn actions(&self) -> Vec<String> {
        let requests = self.account.proxy.requests();
        requests.into_iter().map(|request| request.name).collect()
    }

    /// Answers requests for this action, whose body contains a text, in place of moto.
    pub(crate) fn answer(
        &self,
        action: &'static str,
        containing: &'static str,
        code: u16,
        body: &str,
    ) -> u64 {
        let answer = Action::answer(code, body.to_owned());
        let rule = Rule::when(
            move |request| request.name == action && request.body.contains(containing),
            answer,
        );
        self.account.proxy.add(rule)
    }

    /// Answers requests with a failure in the format of EC2.
    pub(crate) fn refuse(
        &self,
        action: &'static str,
        containing: &'static str,
        status: u16,
        code: &str,
        message: &str,
    ) -> u64 {
        self.answer(action, containing, status, &refusal(code, message))
    }

    /// The number of requests for an action.
    pub(crate) fn count(&self, action: &str) -> usize {
        self.actions().iter().filter(|one| *one == action).count()
    }

    /// Runs an instance.
    pub(crate) async fn launch(&self, name: &str) -> Machine {
        self.account.launch(&[name.to_owned()]).await.unwrap().remove(0)
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

    /// The instance of a node.
    pub(crate) async fn find(&self, name: &str, provider_id: Option<&str>) -> Instance {
        present(self.ask(query(name, provider_id)).await)
    }
}

pub(crate) fn query(name: &str, provider_id: Option<&str>) -> InstanceQuery {
    let node = NodeView {
        name: name.into(),
        uid: format!("uid-of-{name}"),
        provider_id: provider_id.map(Into::into),
        ..NodeView::default()
    };
    InstanceQuery {
        node: Arc::new(node),
        need: Need::Metadata,
    }
}

pub(crate) fn present(answer: Result<InstanceState>) -> Instance {
    match answer {
        Ok(InstanceState::Present(instance)) => instance,
        other => panic!("expected Present, got {other:?}"),
    }
}

/// A failure in the format of EC2.
pub(crate) fn refusal(code: &str, message: &str) -> String {
    ccm_testbed::proxy::aws_refusal(true, code, message)
}
