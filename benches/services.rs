//! Services from creation to deletion: calls, seconds, memory and processor time.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ccm_sim::openstack::{Config, OpenStack, ServerSpec};
use ccm_testbed::{
    binary::Ccm,
    document::write_section,
    nodes::{self, NodeSpec},
    stage::Stage,
};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, api::DeleteParams};

use crate::measure::{LATENCY, PARALLEL, create_services, kinds, served};
use crate::{print, say};

/// Times of Octavia in a small cloud.
const CREATE: Duration = Duration::from_secs(7);
const UPDATE: Duration = Duration::from_secs(1);
const DELETE: Duration = Duration::from_secs(3);
/// Ports of a Service.
const PORTS: u16 = 3;
/// Time without a call after which the program counts as idle.
const QUIET: Duration = Duration::from_secs(6);
/// Period of the drift check, where that is measured. A check and the time until the program counts as idle are shorter, so
/// that one check is measured.
const DRIFT: Duration = Duration::from_secs(40);
/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(900);
/// Flags of every run: nodes are initialized already, and no other replica runs.
const FLAGS: [&str; 2] = ["--controllers=service-lb-controller", "--leader-elect=false"];

#[derive(Args, Debug)]
pub(crate) struct ServicesOptions {
    /// Clusters to measure: Services and nodes.
    #[arg(
        long,
        value_name = "SERVICES:NODES",
        value_delimiter = ',',
        default_value = "1:6,100:100,1:1000"
    )]
    clusters: Vec<String>,
    /// Write the result to docs/benchmarks.md.
    #[arg(long)]
    write: bool,
}

/// The calls of one phase, without those of authentication.
#[derive(Clone, Debug, Default)]
struct Calls {
    reads: usize,
    writes: usize,
    kinds: BTreeMap<String, u64>,
}

/// One phase.
#[derive(Clone, Debug, Default)]
struct Phase {
    calls: Calls,
    seconds: f64,
    /// Processor time of the program, in seconds.
    cpu: f64,
}

/// The figures of one cluster.
#[derive(Debug, Default)]
struct Figures {
    services: usize,
    nodes: usize,
    create: Phase,
    join: Phase,
    drift: Phase,
    restart: Phase,
    delete: Phase,
    rss_mb: f64,
    peak_rss_mb: f64,
}

struct Cluster {
    cloud: OpenStack,
    stage: Stage,
    services: Api<Service>,
    client: kube::Client,
}

pub(crate) async fn run(options: &ServicesOptions, program: &Path) -> Result<()> {
    let mut figures = Vec::new();
    for cluster in &options.clusters {
        let (services, nodes) = cluster
            .split_once(':')
            .and_then(|(services, nodes)| Some((services.parse().ok()?, nodes.parse().ok()?)))
            .with_context(|| format!("{cluster:?} is not SERVICES:NODES"))?;
        figures.push(measure(program, services, nodes).await?);
    }
    let report = report(&figures);
    print(&report);
    if options.write {
        write_section("services", &report)?;
    }
    Ok(())
}

async fn measure(program: &Path, services: usize, nodes: usize) -> Result<Figures> {
    say(&format!("{services} Services, {nodes} nodes: preparing"));
    let cluster = Cluster::start(program, nodes).await?;
    let mut figures = Figures {
        services,
        nodes,
        ..Figures::default()
    };
    let mut ccm = cluster.launch(&[]).await?;
    cluster.quiet(Instant::now()).await?;
    let names: Vec<_> = (0..services).map(|number| format!("web-{number:03}")).collect();

    let watch = cluster.begin(&ccm)?;
    cluster.create(&names).await?;
    cluster.served(services).await?;
    figures.create = cluster.end(&ccm, watch).await?;
    figures.rss_mb = ccm.rss_kib()? as f64 / 1024.0;
    figures.peak_rss_mb = ccm.peak_rss_kib()? as f64 / 1024.0;
    say(&format!("all served: {:?}", figures.create));

    let watch = cluster.begin(&ccm)?;
    cluster.join(nodes).await?;
    figures.join = cluster.end(&ccm, watch).await?;
    cluster.check_members(services, nodes + 1)?;
    say(&format!("one node joined: {:?}", figures.join));

    ccm.kill()?;
    let began = Instant::now();
    cluster.cloud.clear_calls();
    ccm = cluster.launch(&[]).await?;
    figures.restart = cluster.end(&ccm, (began, 0.0)).await?;
    say(&format!("restarted: {:?}", figures.restart));

    ccm.kill()?;
    let drift = format!("--service-drift-period={}s", DRIFT.as_secs());
    ccm = cluster.launch(&[&drift]).await?;
    cluster.quiet(Instant::now()).await?;
    let (_, processor) = cluster.begin(&ccm)?;
    cluster.first_call().await?;
    figures.drift = cluster.end(&ccm, (Instant::now(), processor)).await?;
    say(&format!("compared: {:?}", figures.drift));
    ccm.kill()?;
    ccm = cluster.launch(&[]).await?;
    cluster.quiet(Instant::now()).await?;

    let watch = cluster.begin(&ccm)?;
    cluster.delete(&names).await?;
    cluster.served(0).await?;
    figures.delete = cluster.end(&ccm, watch).await?;
    say(&format!("deleted: {:?}", figures.delete));
    if !cluster.cloud.load_balancers().is_empty() {
        bail!("a load balancer still exists");
    }
    ccm.kill()?;
    Ok(figures)
}

impl Cluster {
    async fn start(program: &Path, count: usize) -> Result<Self> {
        let cloud = OpenStack::start(Config::default()).await?;
        cloud.configure(|settings| {
            let octavia = &mut settings.load_balancing;
            (octavia.create_time, octavia.update_time, octavia.delete_time) = (CREATE, UPDATE, DELETE);
        });
        let stage = Stage::set(program).await?;
        let conf = format!("{}\n[LoadBalancer]\nmanage-security-groups = true\n", cloud.cloud_conf());
        stage.write_cloud_config(&conf)?;
        let client = stage.control_plane.client().await?;
        let cluster = Self {
            services: Api::namespaced(client.clone(), "default"),
            cloud,
            stage,
            client,
        };
        for number in 0..count {
            cluster.join(number).await?;
        }
        cluster.cloud.set_latency(LATENCY);
        Ok(cluster)
    }

    /// Adds a node that is already initialized.
    async fn join(&self, number: usize) -> Result<()> {
        let name = format!("node-{number:04}");
        let id = self.cloud.create_server(&ServerSpec::named(&name))?;
        let port = self.cloud.server_ports(&id);
        let port = port.first().context("a server without a port")?;
        let spec = NodeSpec {
            provider_id: Some(format!("openstack:///{id}")),
            node_ip: self.cloud.port_addresses(port).first().copied(),
            uninitialized: false,
            ..NodeSpec::new(name)
        };
        nodes::register(&self.client, [&spec]).await
    }

    async fn launch(&self, flags: &[&str]) -> Result<Ccm> {
        let flags: Vec<_> = FLAGS.iter().chain(flags).copied().collect();
        let mut ccm = self.stage.launch("openstack", &flags)?;
        ccm.wait_healthy("/readyz", LIMIT).await?;
        Ok(ccm)
    }

    async fn create(&self, names: &[String]) -> Result<()> {
        create_services(&self.services, names, PORTS).await
    }

    async fn delete(&self, names: &[String]) -> Result<()> {
        let delete_all = stream::iter(names).map(|name| async move {
            self.services.delete(name, &DeleteParams::default()).await?;
            Ok(())
        });
        delete_all.buffer_unordered(PARALLEL).try_collect().await
    }

    /// Waits until exactly `count` Services exist and all of them have an address.
    async fn served(&self, count: usize) -> Result<()> {
        served(&self.services, count, LIMIT).await
    }

    fn check_members(&self, services: usize, nodes: usize) -> Result<()> {
        let members: usize = self.cloud.load_balancers().iter().map(|balancer| balancer.members.len()).sum();
        let expected = services * nodes * usize::from(PORTS);
        if members != expected {
            bail!("{members} members, not {expected}");
        }
        Ok(())
    }

    fn total(&self) -> u64 {
        self.cloud.call_counts().values().sum()
    }

    async fn first_call(&self) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < LIMIT {
            if self.total() > 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("nothing happens")
    }

    /// Waits until the program is idle. Returns the time of the last call, or `since` if there was none.
    async fn quiet(&self, since: Instant) -> Result<Instant> {
        let (mut last, mut total) = (since, self.total());
        let began = Instant::now();
        while last.elapsed() < QUIET || began.elapsed() < QUIET / 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = self.total();
            if now != total {
                (last, total) = (Instant::now(), now);
            }
            if began.elapsed() > LIMIT {
                bail!("the program does not become idle: {:?}", self.cloud.call_counts());
            }
        }
        Ok(last)
    }

    /// Begins a phase. Returns its start, and the processor time that was used before.
    fn begin(&self, ccm: &Ccm) -> Result<(Instant, f64)> {
        self.cloud.clear_calls();
        Ok((Instant::now(), cpu(ccm)?))
    }

    /// Ends a phase with its last call.
    async fn end(&self, ccm: &Ccm, (began, before): (Instant, f64)) -> Result<Phase> {
        let last = self.quiet(Instant::now()).await?;
        let mut calls = Calls::default();
        for call in self.cloud.calls() {
            if call.service == "identity" {
                continue;
            }
            if call.method == "GET" {
                calls.reads += 1;
            } else {
                calls.writes += 1;
            }
            *calls.kinds.entry(call.op.to_owned()).or_default() += 1;
        }
        Ok(Phase {
            calls,
            seconds: last.duration_since(began).as_secs_f64(),
            cpu: cpu(ccm)? - before,
        })
    }
}

/// The processor time that the program has used, in seconds.
fn cpu(ccm: &Ccm) -> Result<f64> {
    /// The unit of times in `/proc`, on every Linux in use.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = std::fs::read_to_string(format!("/proc/{}/stat", ccm.pid()))?;
    // The name of the program, in brackets, may contain spaces.
    let (_, fields) = text.rsplit_once(')').context("an unknown format")?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let ticks = fields.get(11..13).context("an unknown format")?;
    let ticks: Vec<f64> = ticks.iter().filter_map(|ticks| ticks.parse().ok()).collect();
    Ok(ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

fn report(all: &[Figures]) -> String {
    let mut text = format!(
        "## Services\n\n\
         Each Service has {PORTS} ports, a security group and a floating IP. Flags and quotas are the defaults (20 calls a second, burst 50). The\n\
         simulator takes {} s to create a load balancer, {} s to change it and {} s to delete it. Nodes are initialized before. Calls of\n\
         authentication are left out, and the seconds end with the last call. A restart counts from its start, and a comparison (the\n\
         drift check, once an hour by default) from its first call. \"Go\" is the Go cloud-controller-manager on a real OpenStack.\n\n\
         | Services | nodes | what | writes | reads | target | Go, calls | seconds | target | processor, s |\n\
         |---:|---:|---|---:|---:|---|---:|---:|---|---:|\n",
        CREATE.as_secs(),
        UPDATE.as_secs(),
        DELETE.as_secs(),
    );
    for figures in all {
        let one = figures.services == 1 && figures.nodes == 6;
        let rows = [
            (
                "create",
                &figures.create,
                "14 writes, 8 reads and the waiting",
                "58 (14 writes), 21.5 s",
                "9",
            ),
            ("one node joins", &figures.join, "4 writes, 2 reads and the waiting", "29", "-"),
            ("restart", &figures.restart, "0 writes", "25", "-"),
            ("compare", &figures.drift, "0 writes", "25", "-"),
            ("delete", &figures.delete, "9 writes, 5 reads", "18", "-"),
        ];
        for (what, phase, target, go, seconds) in rows {
            let per_service = figures.services > 1 && matches!(what, "restart" | "compare");
            let go = match (one, per_service) {
                (true, _) => go.to_owned(),
                (false, true) => format!("{} (computed: {go} each)", 25 * figures.services),
                _ => "-".to_owned(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {what} | {} | {} | {} | {go} | {:.1} | {} | {:.2} |",
                figures.services,
                figures.nodes,
                phase.calls.writes,
                phase.calls.reads,
                if one { target } else { "-" },
                phase.seconds,
                if one { seconds } else { "-" },
                phase.cpu,
            );
        }
    }
    text.push_str("\nWith one Service, the node that joined stays, so that 7 ports lose the security group at the deletion, not 6.\n");
    text.push_str("\nMemory when all Services are served:\n\n");
    for figures in all {
        let _ = writeln!(
            text,
            "- {} Services, {} nodes: {:.0} MB, peak {:.0} MB",
            figures.services, figures.nodes, figures.rss_mb, figures.peak_rss_mb
        );
    }
    text.push_str("\nCalls by kind:\n\n");
    for figures in all {
        let phases = [
            ("create", &figures.create),
            ("one node joins", &figures.join),
            ("restart", &figures.restart),
            ("compare", &figures.drift),
            ("delete", &figures.delete),
        ];
        for (what, phase) in phases {
            let _ = writeln!(
                text,
                "- {} Services, {} nodes, {what}: {}",
                figures.services,
                figures.nodes,
                kinds(&phase.calls.kinds)
            );
        }
    }
    text
}
