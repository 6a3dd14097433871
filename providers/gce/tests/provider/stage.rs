//! A project in memory and the provider on it.

use std::sync::Arc;

pub(crate) use ccm_core::testkit::nodes::present;
use ccm_core::{
    BuildContext, Cloud, Environment, Freshness, InstanceQuery, InstanceState, Need, Result,
    testkit::{
        self,
        nodes::{self, ask, describe},
    },
};
use ccm_provider_gce::NAME;
use ccm_testbed::{
    gce::GceOptions,
    test_cloud::{GceCloud, Machine, TestCloud as _},
};
use serde_json::{Value, json};

/// A project and the provider on it.
pub(crate) struct Stage {
    pub(crate) gce: GceCloud,
    pub(crate) cloud: Arc<dyn Cloud>,
    /// The config file.
    pub(crate) conf: String,
}

impl Stage {
    /// Appends lines to the config file.
    pub(crate) async fn new(more: &str) -> Self {
        Self::with(&GceOptions::default(), more).await
    }

    /// As [`Self::new`], on a server with these options.
    pub(crate) async fn with(options: &GceOptions, more: &str) -> Self {
        let gce = GceCloud::start_with(options).await.unwrap();
        let conf = format!("{}{more}", gce.config());
        let cloud = build(&gce, &conf).await.unwrap();
        gce.proxy.forget();
        Self { gce, cloud, conf }
    }

    /// A restarted process without state.
    pub(crate) async fn restarted(&self) -> Result<Arc<dyn Cloud>> {
        build(&self.gce, &self.conf).await
    }

    /// The calls of the API by method, in their order, since the last ones were forgotten.
    pub(crate) fn calls(&self) -> Vec<String> {
        calls(&self.gce)
    }

    pub(crate) fn count(&self, method: &str) -> usize {
        self.calls().iter().filter(|call| *call == method).count()
    }

    /// Creates instances with these names and fields, each in the next zone, and forgets the calls.
    pub(crate) async fn launch(&self, names: &[&str], fields: &Value) -> Vec<Value> {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let zones = &ccm_testbed::gce::ZONES[..3];
        let instances = self.gce.create_instances(&names, zones, fields).await.unwrap();
        self.gce.proxy.forget();
        instances
    }

    /// Creates machines with the names `n-1`, `n-2` and so on.
    pub(crate) async fn machines(&self, count: usize) -> Vec<Machine> {
        let names: Vec<_> = (1..=count).map(|at| format!("n-{at}")).collect();
        let machines = self.gce.create_machines(&names).await.unwrap();
        self.gce.proxy.forget();
        machines
    }

    /// The next call of this method fails, or with `late` its operation does.
    pub(crate) async fn fail(&self, method: &str, status: u16, reason: &str, message: &str, late: bool) {
        let fault = json!([{
            "method": method, "status": status, "reason": reason, "message": message, "late": late,
        }]);
        self.gce.set("faults", &fault).await.unwrap();
    }

    pub(crate) async fn describe(&self, queries: &[InstanceQuery]) -> Vec<Result<InstanceState>> {
        describe(&*self.cloud, queries, Freshness::now()).await
    }

    /// The instance of a node.
    pub(crate) async fn find(&self, name: &str, provider_id: Option<&str>) -> Result<InstanceState> {
        ask(&*self.cloud, query(name, provider_id)).await
    }
}

pub(crate) fn query(name: &str, provider_id: Option<&str>) -> InstanceQuery {
    nodes::query(name, provider_id, Need::Metadata)
}

/// The calls of the API by method, in their order.
pub(crate) fn calls(gce: &GceCloud) -> Vec<String> {
    let requests = gce.proxy.requests();
    requests
        .into_iter()
        .filter(|request| request.resource == "compute")
        .map(|request| request.name)
        .collect()
}

/// The variables of the program.
pub(crate) fn environment(gce: &GceCloud) -> Environment {
    gce.environment().into_iter().collect()
}

/// The provider with a config file.
pub(crate) async fn build(gce: &GceCloud, conf: &str) -> Result<Arc<dyn Cloud>> {
    testkit::build(NAME, conf, environment(gce)).await
}

/// The provider with flags.
pub(crate) async fn build_with(gce: &GceCloud, conf: &str, flags: &[(&str, &str)]) -> Result<Arc<dyn Cloud>> {
    let (_folder, context) = testkit::context(conf, environment(gce));
    let flags = flags.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
    let context = BuildContext {
        flags: flags.collect(),
        ..context
    };
    (testkit::provider(NAME).build)(context).await
}
