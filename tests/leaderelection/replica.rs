//! A cloud-controller-manager whose cloud is a log of writes. Each request for an instance is a *write* to a URL, which passes
//! the gate as every write does. So it writes continuously while it leads, and the log shows the writers in their order. Requests
//! for routes are written below the URL, under the name of their controller.
//!
//! `CCM_REPLICA_URL` is the URL, `CCM_REPLICA_ELECTION` the lease's name and the three durations in milliseconds,
//! separated by commas.

use std::{env, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use ccm_core::{
    AddressType, BuildContext, Cloud, Error, ErrorKind, Freshness, Instance, InstanceQuery, InstanceState,
    Instances, NodeAddress, Priority, RequestOutcome, Result, Routes, async_trait,
    client::{Effect, Gate, GateConfig, Operation, RetryPolicy},
    register_provider,
    routes::{Applied, DesiredRoute, NextHop, Observed, RouteChanges, RouteNode},
};
use cloud_controller_manager::options::{self, Config, ElectionConfig, Request};
use ipnet::IpNet;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Write;

impl Operation for Write {
    fn name(self) -> &'static str {
        "replica_write"
    }

    fn bucket(self) -> &'static str {
        "replica"
    }

    fn effect(self) -> Effect {
        Effect::Write
    }
}

#[derive(Clone, Debug)]
struct WriteLog {
    gate: Gate,
    /// The same for routes.
    route_gate: Gate,
    http: reqwest::Client,
    url: String,
}

register_provider! { name: "replica", summary: "A log of writes", build: WriteLog::build }

impl WriteLog {
    async fn build(context: BuildContext) -> Result<Arc<dyn Cloud>> {
        let url = env::var("CCM_REPLICA_URL")
            .map_err(|error| Error::new(ErrorKind::InvalidConfig, format!("CCM_REPLICA_URL: {error}")))?;
        let config = GateConfig {
            fence: context.fences.others,
            retry: RetryPolicy::never(),
            ..GateConfig::new("replica")
        };
        let http = reqwest::Client::builder().no_proxy().build();
        let gate = Gate::new(config, &context.metrics);
        Ok(Arc::new(Self {
            route_gate: gate.fenced_by(&context.fences.routes),
            gate,
            http: http.map_err(|error| Error::new(ErrorKind::Unexpected, error.to_string()))?,
            url,
        }))
    }

    async fn write(self, gate: Gate, url: String) -> Result<()> {
        let attempt = || async {
            let sent = self.http.post(&url).send().await;
            let answer = sent.and_then(reqwest::Response::error_for_status);
            answer.map(drop).map_err(|error| {
                Error::new(ErrorKind::Unavailable, error.to_string()).with_outcome(RequestOutcome::Unknown)
            })
        };
        gate.call(Write, Priority::User, attempt).await
    }
}

impl Cloud for WriteLog {
    fn name(&self) -> &'static str {
        "replica"
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }
}

#[async_trait]
impl Instances for WriteLog {
    async fn describe(
        &self,
        queries: &[InstanceQuery],
        _freshness: Freshness,
        _priority: Priority,
    ) -> Vec<Result<InstanceState>> {
        // Like a batch of writes, it continues when its caller no longer waits.
        let write = self.clone().write(self.gate.clone(), self.url.clone());
        let written = match tokio::spawn(write).await {
            Ok(written) => written,
            Err(error) => Err(Error::new(ErrorKind::Unexpected, error.to_string())),
        };
        let answer = |query: &InstanceQuery| {
            written.clone().map(|()| {
                InstanceState::Present(Instance {
                    provider_id: format!("replica://{}", query.node.name),
                    addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")],
                    ..Instance::default()
                })
            })
        };
        queries.iter().map(answer).collect()
    }
}

#[async_trait]
impl Routes for WriteLog {
    async fn unsupported_reason(&self, _: Priority) -> Result<Option<String>> {
        Ok(None)
    }

    fn next_hop(&self, node: &RouteNode, _: IpNet) -> Result<NextHop> {
        Ok(NextHop::new(node.view.name.as_str()))
    }

    async fn observe(&self, _: &[DesiredRoute], _: Priority) -> Result<Observed> {
        let url = format!("{}/node-route-controller", self.url);
        self.clone().write(self.route_gate.clone(), url).await?;
        Ok(Observed::default())
    }

    async fn apply(&self, _: &RouteChanges, _: Priority) -> Applied {
        // No node of these tests has a podCIDR.
        Applied::default()
    }
}

/// The election config of the environment, in place of that of the flags.
fn election(flags: Option<ElectionConfig>) -> anyhow::Result<ElectionConfig> {
    let text = env::var("CCM_REPLICA_ELECTION").context("CCM_REPLICA_ELECTION")?;
    let parts: Vec<_> = text.split(',').collect();
    let [name, lease, renew, retry] = parts[..] else {
        anyhow::bail!("CCM_REPLICA_ELECTION is {text:?}")
    };
    let millis = |text: &str| anyhow::Ok(Duration::from_millis(text.parse()?));
    Ok(ElectionConfig {
        lease_duration: millis(lease)?,
        renew_deadline: millis(renew)?,
        retry_period: millis(retry)?,
        name: name.to_owned(),
        namespace: "kube-system".to_owned(),
        migration: flags.and_then(|flags| flags.migration),
    })
}

fn config() -> anyhow::Result<Config> {
    let providers = cloud_controller_manager::providers::registered().map_err(anyhow::Error::msg)?;
    match options::parse(env::args_os().skip(1), &providers) {
        Ok(Request::Run(config)) => Ok(Config {
            election: Some(election(config.election.clone())?),
            ..*config
        }),
        Ok(other) => anyhow::bail!("not a request to run: {other:?}"),
        Err(errors) => anyhow::bail!("{errors:?}"),
    }
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_env_filter("info").init();
    let outcome = config().and_then(|config| {
        let runtime = tokio::runtime::Runtime::new()?;
        let outcome = runtime.block_on(cloud_controller_manager::run(config));
        runtime.shutdown_timeout(Duration::from_secs(1));
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "Exiting because of an error");
            ExitCode::FAILURE
        }
    }
}
