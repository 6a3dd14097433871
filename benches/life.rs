//! A cluster on any cloud: nodes join and become not ready, Services are created, follow the nodes and are deleted, and the
//! program restarts.

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
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use crate::{
    measure::{LATENCY, PARALLEL, exclude, kinds, quiet, since, start},
    print, say,
};

/// Pause between two reads of the cloud. It lasts at least twice as long as a read.
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(1800);
/// The Service that is created beside a single one.
const SECOND: &str = "second";

/// Cloud with its kind of machines, phase and figures of upstream, measured in the same setup with 100 nodes and one external Service with
/// three ports.
const GO: [(&str, &str, &str); 23] = [
    ("aws", "join", "16.7 s, one DescribeInstances each"),
    ("aws", "not ready", "97 calls in 20 s"),
    ("aws", "Service created", "23 calls (13 writes), 2.6 s"),
    ("aws", "node out", "20 calls"),
    ("aws", "restart", "2 calls and one for each node"),
    ("aws", "Service deleted", "12 calls"),
    ("gce", "join", "299 calls, 29.3 s"),
    ("gce", "not ready", "400 calls in 60 s"),
    ("gce", "Service created", "32 calls (7 writes), 9.8 s"),
    ("gce", "node out", "7 calls (1 write), 1.6 s"),
    ("gce", "Service deleted", "14 calls (8 writes), 4.9 s"),
    ("azure uniform", "join", "cannot; its node managers need about 700 calls"),
    ("azure uniform", "not ready", "3 calls in 60 s, with answers up to 600 s old"),
    ("azure uniform", "Service created", "37 s"),
    ("azure uniform", "node out", "17 calls, 16 s"),
    ("azure uniform", "restart", "15 calls (1 write)"),
    ("azure uniform", "Service deleted", "37 s"),
    ("azure standalone", "join", "cannot; its node managers need about 700 calls"),
    ("azure standalone", "not ready", "100 calls in 60 s"),
    ("azure standalone", "Service created", "22 s"),
    ("azure standalone", "node out", "312 calls, 16 s"),
    ("azure standalone", "restart", "412 calls (1 write)"),
    ("azure standalone", "Service deleted", "21 s"),
];

/// The same with one internal Service.
const GO_INTERNAL: [(&str, &str, &str); 5] = [
    ("gce", "join", "299 calls, 29.3 s"),
    ("gce", "not ready", "400 calls in 60 s"),
    ("gce", "Service created", "50 calls (13 writes), 17.4 s"),
    ("gce", "node out", "9 calls (1 write), 1.8 s"),
    ("gce", "Service deleted", "21 calls (11 writes), 9.7 s"),
];

#[derive(Args, Debug)]
pub(crate) struct LifeOptions {
    /// The cloud.
    #[arg(long, default_value = "openstack")]
    pub(crate) cloud: String,
    /// The kind of all machines on Azure: uniform, flex or standalone. Without it, there are some of each. `uniform:20`: in 20 scale sets.
    #[arg(long)]
    machines: Option<String>,
    /// How many nodes the cluster has.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// For how many seconds no node is ready.
    #[arg(long, default_value_t = 20)]
    not_ready: u64,
    /// How many Services there are.
    #[arg(long, default_value_t = 1)]
    services: usize,
    /// How many of them are internal.
    #[arg(long, default_value_t = 0)]
    internal: usize,
    /// How many ports each Service has.
    #[arg(long, default_value_t = 3)]
    ports: u16,
    /// A further line of the cloud config, on AWS of its section `[Global]`: such as DisableSecurityGroupIngress=true.
    #[arg(long, value_name = "LINE")]
    config: Vec<String>,
    /// Write the result to docs/benchmarks.md.
    #[arg(long)]
    write: bool,
}

impl LifeOptions {
    /// The names of the Services.
    fn names(&self) -> Vec<String> {
        (1..=self.services).map(|at| format!("web-{at:03}")).collect()
    }

    /// The name of the section: the cloud, and options that differ from the default.
    fn section(&self) -> String {
        format!("life {}", self.title())
    }

    /// The cloud, and the kind of its machines if it was chosen.
    fn ground(&self) -> String {
        match &self.machines {
            Some(machines) => format!("{} {machines}", self.cloud),
            None => self.cloud.clone(),
        }
    }

    /// The cloud, and options that differ from the default.
    fn title(&self) -> String {
        let mut title = self.ground();
        if self.nodes != 100 {
            let _ = write!(title, " {} nodes", self.nodes);
        }
        if self.services != 1 {
            let _ = write!(title, " {} services", self.services);
        }
        if self.internal != 0 {
            let _ = write!(title, " {} internal", self.internal);
        }
        title
    }
}

struct Phase {
    title: &'static str,
    seconds: f64,
    calls: BTreeMap<String, u64>,
}

struct Cluster<'a> {
    options: &'a LifeOptions,
    cloud: &'a dyn TestCloud,
    all: &'a Cloud,
    stage: Stage,
    client: kube::Client,
    phases: Vec<Phase>,
}

pub(crate) async fn run(options: &LifeOptions, program: &Path) -> Result<()> {
    say(&format!(
        "{}, {} nodes, {} Services: preparing",
        options.cloud, options.nodes, options.services
    ));
    let cloud = Cloud::test(&options.cloud, LATENCY).await?;
    if let (Some(machines), Cloud::Test(test, _)) = (&options.machines, &cloud) {
        test.choose_machines(machines)?;
    }
    let names = cloud.servers(options.nodes).await?;
    let stage = Stage::set(program).await?;
    let lines: String = options.config.iter().map(|line| format!("{line}\n")).collect();
    let config = cloud.config()?;
    let config = match config.split_once("[Global]\n") {
        Some((before, after)) => format!("{before}[Global]\n{lines}{after}"),
        None => config + &lines,
    };
    stage.write_cloud_config(&config)?;
    let Cloud::Test(test, _) = &cloud else {
        bail!("{} is not a test cloud", options.cloud)
    };
    let mut cluster = Cluster {
        options,
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
    cluster.record("join", end - began, &before);
    quiet(&cloud).await?;

    let before = test.calls();
    cluster.set_ready(&names, false).await?;
    let time = Duration::from_secs(options.not_ready);
    tokio::time::sleep(time).await;
    cluster.record("not ready", time, &before);
    cluster.set_ready(&names, true).await?;
    quiet(&cloud).await?;

    let (began, before) = (Instant::now(), test.calls());
    cluster.create().await?;
    let seconds = cluster
        .until("the Services are served", began, async |found| {
            Ok(cluster.leads_to(&found, names.len()) && cluster.served().await?)
        })
        .await?;
    quiet(&cloud).await?;
    cluster.record("Service created", seconds, &before);
    if options.services == 1 {
        cluster.second_service().await?;
    }

    let leaving = names.first().context("no nodes")?;
    let (began, before) = (Instant::now(), test.calls());
    exclude(&cluster.client, leaving).await?;
    let seconds = cluster
        .until("the node has left", began, async |found| Ok(cluster.leads_to(&found, names.len() - 1)))
        .await?;
    quiet(&cloud).await?;
    cluster.record("node out", seconds, &before);
    let rss_mb = ccm.rss_kib()? as f64 / 1024.0;

    ccm.terminate()?;
    ccm.wait(LIMIT).await?;
    let (began, before) = (Instant::now(), test.calls());
    let mut ccm = cluster.start()?;
    ccm.wait_healthy("/readyz", LIMIT).await?;
    let ready = began.elapsed();
    quiet(&cloud).await?;
    cluster.record("restart", ready, &before);

    let (began, before) = (Instant::now(), test.calls());
    cluster.delete().await?;
    let seconds = cluster
        .until("the Services are deleted", began, async |found| {
            Ok(found.names.is_empty()
                && cluster.services().list(&ListParams::default()).await?.items.len() == 1)
        })
        .await?;
    quiet(&cloud).await?;
    cluster.record("Service deleted", seconds, &before);
    let peak_mb = ccm.peak_rss_kib()? as f64 / 1024.0;
    ccm.kill()?;

    let size = std::fs::metadata(program)?.len() as f64 / 1e6;
    let mut report = cluster.report(options);
    let _ = writeln!(
        report,
        "\nMemory: {rss_mb:.0} MB with the Services, {peak_mb:.0} MB at the peak after the restart. Binary: {size:.1} MB. Ready \
         {:.2} s after a restart.",
        ready.as_secs_f64(),
    );
    print(&report);
    if options.write {
        write_section(&options.section(), &report)?;
    }
    Ok(())
}

/// Whether the status of a Service has an address.
fn has_address(service: &Service) -> bool {
    let status = service.status.as_ref();
    let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_deref());
    ingress.is_some_and(|ingress| !ingress.is_empty())
}

impl Cluster<'_> {
    fn start(&self) -> Result<Ccm> {
        start(&self.stage, self.all, &["--leader-elect=false", "--cluster-name=test"])
    }

    fn services(&self) -> Api<Service> {
        Api::default_namespaced(self.client.clone())
    }

    fn record(&mut self, title: &'static str, took: Duration, before: &BTreeMap<String, u64>) {
        let phase = Phase {
            title,
            seconds: took.as_secs_f64(),
            calls: since(before, self.cloud.calls()),
        };
        say(&format!("{title}: {:.1} s, {}", phase.seconds, kinds(&phase.calls)));
        self.phases.push(phase);
    }

    /// Whether every port leads to `nodes` nodes.
    fn leads_to(&self, found: &LoadBalancers, nodes: usize) -> bool {
        let pools_of_service = if self.cloud.service().shares_pool {
            1
        } else {
            usize::from(self.options.ports)
        };
        // On Azure, all Services of a load balancer share its pool.
        let pools = match self.options.cloud.as_str() {
            "azure" => 1,
            _ => self.options.services * pools_of_service,
        };
        found.pools.len() == pools && found.pools.values().all(|pool| pool.len() == nodes)
    }

    async fn set_ready(&self, names: &[String], ready: bool) -> Result<()> {
        let set = stream::iter(names).map(|name| nodes::set_ready(&self.client, name, ready));
        set.buffer_unordered(PARALLEL).try_collect().await
    }

    async fn create(&self) -> Result<()> {
        let names = self.options.names();
        let create = stream::iter(names.iter().enumerate())
            .map(|(at, name)| self.create_service(name, at < self.options.internal));
        create.buffer_unordered(PARALLEL).try_collect().await
    }

    async fn create_service(&self, name: &str, is_internal: bool) -> Result<()> {
        let ports = (0..self.options.ports).map(|at| json!({"name": format!("p{at}"), "port": 8000 + at}));
        let shape = self.cloud.service();
        let annotations = if is_internal {
            &shape.internal
        } else {
            &shape.annotations
        };
        let service = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": ports.collect::<Vec<_>>()},
        }))?;
        self.services().create(&PostParams::default(), &service).await?;
        Ok(())
    }

    /// A second Service of the same kind is created and deleted.
    async fn second_service(&mut self) -> Result<()> {
        let (began, before) = (Instant::now(), self.cloud.calls());
        self.create_service(SECOND, self.options.internal > 0).await?;
        let seconds = self
            .until("the second Service is served", began, async |_| {
                Ok(has_address(&self.services().get(SECOND).await?))
            })
            .await?;
        quiet(self.all).await?;
        self.record("second created", seconds, &before);

        let (began, before) = (Instant::now(), self.cloud.calls());
        self.services().delete(SECOND, &DeleteParams::default()).await?;
        let seconds = self
            .until("the second Service is deleted", began, async |_| {
                Ok(self.services().get_opt(SECOND).await?.is_none())
            })
            .await?;
        quiet(self.all).await?;
        self.record("second deleted", seconds, &before);
        Ok(())
    }

    async fn delete(&self) -> Result<()> {
        let names = self.options.names();
        let delete = stream::iter(&names).map(async |name| {
            self.services().delete(name, &DeleteParams::default()).await?;
            anyhow::Ok(())
        });
        delete.buffer_unordered(PARALLEL).try_collect().await
    }

    async fn served(&self) -> Result<bool> {
        let names = self.options.names();
        if let [name] = names.as_slice() {
            let service = self.services().get(name).await?;
            return Ok(self.cloud.unserved(&service).await?.is_none());
        }
        let services = self.services().list(&ListParams::default()).await?.items;
        Ok(services.iter().filter(|service| has_address(service)).count() == names.len())
    }

    /// Waits until the load balancers are as desired, and returns how long it took. Many load balancers are read only when the
    /// program makes no more calls, so that the reads do not slow down the emulator. The time then ends with the last call.
    async fn until(
        &self,
        what: &str,
        began: Instant,
        done: impl AsyncFn(LoadBalancers) -> Result<bool>,
    ) -> Result<Duration> {
        loop {
            let last = match self.options.services {
                1 => None,
                _ => Some(quiet(self.all).await?),
            };
            let read = Instant::now();
            if done(self.cloud.load_balancers().await?).await? {
                return Ok(last.unwrap_or_else(Instant::now) - began);
            }
            if began.elapsed() > LIMIT {
                bail!("not within {LIMIT:?}: {what}");
            }
            tokio::time::sleep(PAUSE.max(read.elapsed() * 2)).await;
        }
    }

    fn report(&self, options: &LifeOptions) -> String {
        let mut text = format!(
            "## A cluster: {}\n\n{} nodes, {} with {} ports, {} ms for every call.{}\n\n\
             | phase | seconds | calls | writes | Go |\n|---|---:|---:|---:|---|\n",
            options.title(),
            options.nodes,
            match (options.services, options.internal) {
                (1, 0) => "one Service".to_owned(),
                (1, _) => "one internal Service".to_owned(),
                (services, 0) => format!("{services} Services"),
                (services, internal) => format!("{services} Services, {internal} of them internal,"),
            },
            options.ports,
            LATENCY.as_millis(),
            match options.config.as_slice() {
                [] => String::new(),
                lines => format!(" The cloud config has `{}`.", lines.join("`, `")),
            },
        );
        for Phase {
            title,
            seconds,
            calls,
        } in &self.phases
        {
            let writes = calls.iter().filter(|(op, _)| self.cloud.is_write(op));
            let is_comparable = options.nodes == 100 && options.services == 1 && options.ports == 3;
            let go: &[_] = match options.internal {
                _ if !is_comparable => &[],
                0 => &GO,
                _ => &GO_INTERNAL,
            };
            let go = go.iter().find(|(cloud, phase, _)| *cloud == options.ground() && phase == title);
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
