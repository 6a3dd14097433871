//! A small cluster on any cloud: nodes join, are not ready, a Service comes, follows the nodes and goes, the program restarts.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ccm_testbed::{
    binary::Ccm,
    cloud::Cloud,
    document::write_section,
    nodes::{self, NodeSpec},
    progress::Watch,
    stage::Stage,
    test_cloud::{LoadBalancers, TestCloud},
};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::{
    measure::{LATENCY, PARALLEL, exclude, kinds, quiet, since, start},
    print, say,
};

/// Nothing takes this long unless it is broken.
const LIMIT: Duration = Duration::from_secs(600);
const PORTS: [u16; 3] = [80, 443, 8080];

/// What the Go program needed, measured on the same ground with 100 nodes: cloud, phase, figures.
const GO: [(&str, &str, &str); 6] = [
    ("aws", "join", "16.7 s, one DescribeInstances each"),
    ("aws", "not ready", "97 calls in 20 s"),
    ("aws", "Service created", "23 calls (13 writes), 2.6 s"),
    ("aws", "node out", "20 calls"),
    ("aws", "restart", "2 calls and one for each node"),
    ("aws", "Service deleted", "12 calls"),
];

#[derive(Args, Debug)]
pub(crate) struct LifeOptions {
    /// The cloud.
    #[arg(long, default_value = "openstack")]
    pub(crate) cloud: String,
    /// How many nodes the cluster has.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// For how many seconds no node is ready.
    #[arg(long, default_value_t = 20)]
    not_ready: u64,
    /// Write the result to docs/benchmarks.md.
    #[arg(long)]
    write: bool,
}

struct Phase {
    title: &'static str,
    seconds: f64,
    calls: BTreeMap<String, u64>,
}

struct Cluster<'a> {
    cloud: &'a dyn TestCloud,
    all: &'a Cloud,
    stage: Stage,
    client: kube::Client,
    phases: Vec<Phase>,
}

pub(crate) async fn run(options: &LifeOptions, program: &Path) -> Result<()> {
    say(&format!("{}, {} nodes: preparing", options.cloud, options.nodes));
    let cloud = Cloud::test(&options.cloud, LATENCY).await?;
    let names = cloud.servers(options.nodes).await?;
    let stage = Stage::set(program, false).await?;
    stage.write_cloud_config(&cloud.config()?)?;
    let Cloud::Test(test, _) = &cloud else {
        bail!("{} is no test cloud", options.cloud)
    };
    let mut cluster = Cluster {
        cloud: &**test,
        client: stage.control_plane.client().await?,
        all: &cloud,
        stage,
        phases: Vec::new(),
    };
    let specs: Vec<_> = names.iter().map(|name| NodeSpec::new(name).realistic()).collect();
    nodes::register(&cluster.client, &specs).await?;
    let mut watch = Watch::start(cluster.client.clone());

    let (began, before) = (Instant::now(), test.calls());
    let mut ccm = cluster.start()?;
    let done = watch.initialized(names.len(), LIMIT).await?;
    let end = done.finished.unwrap_or_else(Instant::now);
    cluster.note("join", end - began, &before);
    quiet(&cloud).await?;

    let before = test.calls();
    cluster.set_ready(&names, false).await?;
    let time = Duration::from_secs(options.not_ready);
    tokio::time::sleep(time).await;
    cluster.note("not ready", time, &before);
    cluster.set_ready(&names, true).await?;
    quiet(&cloud).await?;

    let (began, before) = (Instant::now(), test.calls());
    cluster.create().await?;
    let pools = |found: &LoadBalancers, wanted: usize| {
        found.pools.len() == PORTS.len() && found.pools.values().all(|nodes| nodes.len() == wanted)
    };
    cluster
        .until("the Service is served", async |found| {
            Ok(pools(&found, names.len()) && cluster.served().await?)
        })
        .await?;
    let seconds = began.elapsed();
    quiet(&cloud).await?;
    cluster.note("Service created", seconds, &before);

    let leaving = names.first().context("no nodes")?;
    let (began, before) = (Instant::now(), test.calls());
    exclude(&cluster.client, leaving).await?;
    cluster
        .until("the node has left", async |found| {
            Ok(pools(&found, names.len() - 1))
        })
        .await?;
    let seconds = began.elapsed();
    quiet(&cloud).await?;
    cluster.note("node out", seconds, &before);
    let rss_mb = ccm.rss_kib()? as f64 / 1024.0;

    ccm.terminate()?;
    ccm.wait(LIMIT).await?;
    let (began, before) = (Instant::now(), test.calls());
    let mut ccm = cluster.start()?;
    ccm.wait_healthy("/readyz", LIMIT).await?;
    let ready = began.elapsed();
    quiet(&cloud).await?;
    cluster.note("restart", ready, &before);

    let (began, before) = (Instant::now(), test.calls());
    cluster.services().delete("web", &DeleteParams::default()).await?;
    cluster
        .until("the Service is gone", async |found| {
            Ok(found.names.is_empty() && cluster.services().get_opt("web").await?.is_none())
        })
        .await?;
    let seconds = began.elapsed();
    quiet(&cloud).await?;
    cluster.note("Service deleted", seconds, &before);
    let peak_mb = ccm.peak_rss_kib()? as f64 / 1024.0;
    ccm.kill()?;

    let size = std::fs::metadata(program)?.len() as f64 / 1e6;
    let mut report = cluster.report(options);
    let _ = writeln!(
        report,
        "\nMemory: {rss_mb:.0} MB with the Service, {peak_mb:.0} MB at the peak after the restart. Binary: {size:.1} MB. Ready \
         {:.2} s after a restart.",
        ready.as_secs_f64(),
    );
    print(&report);
    if options.write {
        write_section(&format!("life {}", options.cloud), &report)?;
    }
    Ok(())
}

impl Cluster<'_> {
    fn start(&self) -> Result<Ccm> {
        start(
            &self.stage,
            self.all,
            &["--leader-elect=false", "--cluster-name=test"],
        )
    }

    fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    fn note(&mut self, title: &'static str, took: Duration, before: &BTreeMap<String, u64>) {
        let phase = Phase {
            title,
            seconds: took.as_secs_f64(),
            calls: since(before, self.cloud.calls()),
        };
        say(&format!(
            "{title}: {:.1} s, {}",
            phase.seconds,
            kinds(&phase.calls)
        ));
        self.phases.push(phase);
    }

    async fn set_ready(&self, names: &[String], ready: bool) -> Result<()> {
        let set = stream::iter(names).map(|name| nodes::set_ready(&self.client, name, ready));
        set.buffer_unordered(PARALLEL).try_collect().await
    }

    async fn create(&self) -> Result<()> {
        let ports = PORTS.map(|port| json!({"name": format!("p{port}"), "port": port}));
        let service = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "annotations": self.cloud.service().annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": ports},
        }))?;
        self.services().create(&PostParams::default(), &service).await?;
        Ok(())
    }

    async fn served(&self) -> Result<bool> {
        Ok(self
            .cloud
            .unserved(&self.services().get("web").await?)
            .await?
            .is_none())
    }

    async fn until(&self, what: &str, done: impl AsyncFn(LoadBalancers) -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        while !done(self.cloud.load_balancers().await?).await? {
            if began.elapsed() > LIMIT {
                bail!("not within {LIMIT:?}: {what}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn report(&self, options: &LifeOptions) -> String {
        let mut text = format!(
            "## A small cluster on {}\n\n{} nodes, one Service with {} ports, {} ms for every call.\n\n\
             | phase | seconds | calls | writes | Go |\n|---|---:|---:|---:|---|\n",
            options.cloud,
            options.nodes,
            PORTS.len(),
            LATENCY.as_millis(),
        );
        for Phase {
            title,
            seconds,
            calls,
        } in &self.phases
        {
            let writes = calls.iter().filter(|(op, _)| self.cloud.is_write(op));
            let go = GO
                .iter()
                .find(|(cloud, phase, _)| *cloud == options.cloud && phase == title);
            let _ = writeln!(
                text,
                "| {title} | {seconds:.1} | {} | {} | {} |",
                calls.values().sum::<u64>(),
                writes.map(|(_, count)| count).sum::<u64>(),
                go.map_or("-", |(.., figures)| figures),
            );
        }
        text.push_str("\nCalls by kind:\n\n");
        for phase in &self.phases {
            let _ = writeln!(text, "- {}: {}", phase.title, kinds(&phase.calls));
        }
        text
    }
}
