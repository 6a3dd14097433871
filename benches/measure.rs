//! Measurements of a running program, shared by the benchmarks.

use std::{
    collections::BTreeMap,
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ccm_testbed::{binary::Ccm, cloud::Cloud, stage::Stage};
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

/// Every call of the simulated cloud takes this long.
pub(crate) const LATENCY: Duration = Duration::from_millis(50);

/// Requests to the API server at once.
pub(crate) const PARALLEL: usize = 32;

/// The program's requests to the API server that change something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Writes {
    /// The number of nodes.
    pub(crate) nodes: usize,
    /// New or updated Events.
    pub(crate) events: usize,
}

impl Writes {
    /// The writes after `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            nodes: self.nodes - before.nodes,
            events: self.events - before.events,
        }
    }
}

/// The program's writes so far.
pub(crate) fn writes(stage: &Stage) -> Result<Writes> {
    let mut writes = Writes::default();
    for entry in stage.control_plane.audit_log()? {
        if !entry.is_ours() {
            continue;
        }
        match (entry.resource.as_str(), entry.verb.as_str()) {
            ("nodes", "patch" | "update" | "create" | "delete") => writes.nodes += 1,
            ("events", "create" | "patch") => writes.events += 1,
            _ => {}
        }
    }
    Ok(writes)
}

/// Time without a call after which the program counts as idle.
const QUIET: Duration = Duration::from_secs(5);

/// Starts the program on this cloud, with further flags.
pub(crate) fn start(stage: &Stage, cloud: &Cloud, flags: &[&str]) -> Result<Ccm> {
    let kubeconfig = stage.control_plane.kubeconfig();
    let mut launch = stage.command(cloud.provider(), &kubeconfig, flags);
    launch.envs = cloud.environment();
    Ccm::start(&launch)
}

/// Waits until the program is idle, and returns the time of the last call.
pub(crate) async fn quiet(cloud: &Cloud) -> Result<Instant> {
    let (mut calls, mut last) = (cloud.calls()?, Instant::now());
    while last.elapsed() < QUIET {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = cloud.calls()?;
        if now != calls {
            (calls, last) = (now, Instant::now());
        }
    }
    Ok(last)
}

/// Excludes a node from load balancers.
pub(crate) async fn exclude(client: &kube::Client, node: &str) -> Result<()> {
    const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
    let patch = Patch::Merge(json!({"metadata": {"labels": {EXCLUDED: "true"}}}));
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Time limit of each wait. The ports of 5,000 nodes pass the gate in four minutes.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

/// Waits until a metric has reached this value, and returns its value.
pub(crate) async fn wait_for(ccm: &Ccm, name: &str, value: u64) -> Result<u64> {
    let wait = async {
        loop {
            let now = metric(&ccm.get("/metrics").await?.1, name).unwrap_or(0);
            if now >= value {
                return Ok(now);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait)
        .await
        .with_context(|| format!("{name} did not reach {value}"))?
}

/// Creates Services of type LoadBalancer with `ports` ports each.
pub(crate) async fn create_services(api: &Api<Service>, names: &[String], ports: u16) -> Result<()> {
    let create_all = stream::iter(names).map(|name| async move {
        let ports: Vec<_> =
            (0..ports).map(|port| json!({"name": format!("p{port}"), "port": 8000 + port})).collect();
        let service: Service = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name},
            "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": ports},
        }))?;
        let create = async || match api.create(&PostParams::default(), &service).await {
            // An attempt before created it, and its connection broke before the answer came.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            result => result.map(drop),
        };
        with_retries(create).await
    });
    create_all.buffer_unordered(PARALLEL).try_collect().await
}

/// Repeats a request whose connection broke. A busy API server closes some connections.
async fn with_retries<T>(request: impl AsyncFn() -> kube::Result<T>) -> Result<T> {
    for _ in 0..10 {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error @ kube::Error::Api(_)) => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
    Ok(request().await?)
}

/// Waits until exactly `count` Services exist and all of them have an address.
pub(crate) async fn served(api: &Api<Service>, count: usize, limit: Duration) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < limit {
        let all = with_retries(async || api.list(&ListParams::default()).await).await?.items;
        let ours = all
            .iter()
            .filter(|service| service.spec.iter().any(|spec| spec.type_.as_deref() == Some("LoadBalancer")));
        let (mut served, mut existing) = (0, 0);
        for service in ours {
            existing += 1;
            let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
            served += usize::from(status.is_some_and(|status| status.ingress.is_some()));
        }
        if served == count && existing == count {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("not all of {count} Services are served")
}

/// The value of a metric, named with its labels, or `None` if the page has no such sample.
pub(crate) fn metric<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value?.trim().parse().ok()
}

/// The calls after `before`, by operation.
pub(crate) fn since(before: &BTreeMap<String, u64>, mut now: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    for (op, count) in before {
        if let Some(total) = now.get_mut(op) {
            *total -= count;
        }
    }
    now.retain(|_, count| *count > 0);
    now
}

/// The calls as text.
pub(crate) fn kinds(calls: &BTreeMap<String, u64>) -> String {
    calls.iter().map(|(op, count)| format!("{op} {count}")).collect::<Vec<_>>().join(", ")
}

/// The middle one of these times.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
