//! An account on moto and the provider on it.

use std::sync::Arc;

pub(crate) use ccm_core::testkit::nodes::present;
use ccm_core::{
    Cloud, Freshness, Instance, InstanceQuery, InstanceState, Need, Result,
    testkit::nodes::{self, ask, describe},
};
use ccm_testbed::{
    moto::{Account, Machine, Moto},
    proxy::{Action, Request, Rule},
};
use serde_json::Value;

use crate::context::build;

/// The cluster's id.
pub(crate) const CLUSTER: &str = "kubernetes";

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
        let is_matched = move |request: &Request| request.name == action && request.body.contains(containing);
        let rule = Rule::when(is_matched, answer);
        self.account.proxy.add(rule)
    }

    /// Answers requests for this action, whose body contains a text, with a failure in the format of EC2.
    pub(crate) fn refuse(
        &self,
        action: &'static str,
        containing: &'static str,
        status: u16,
        code: &str,
    ) -> u64 {
        self.answer(action, containing, status, &refusal(code, "refused by the test"))
    }

    /// The number of requests for an action.
    pub(crate) fn count(&self, action: &str) -> usize {
        self.actions().iter().filter(|one| *one == action).count()
    }

    /// Runs an instance.
    pub(crate) async fn launch(&self, name: &str) -> Machine {
        self.account.launch(&[name.to_owned()]).await.unwrap().remove(0)
    }

    /// Runs instances with these names, and forgets the requests.
    pub(crate) async fn launch_all(&self, names: &[String]) -> Vec<Machine> {
        let machines = self.account.launch(names).await.unwrap();
        self.account.proxy.forget();
        machines
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
}

pub(crate) fn query(name: &str, provider_id: Option<&str>) -> InstanceQuery {
    nodes::query(name, provider_id, Need::Metadata)
}

/// A failure in the format of EC2.
pub(crate) fn refusal(code: &str, message: &str) -> String {
    ccm_testbed::proxy::aws_refusal(true, code, message)
}
