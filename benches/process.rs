//! The process itself: the times of its start and end, its memory, and the size of the binary.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use ccm_sim::openstack::{Config, OpenStack};
use ccm_testbed::{
    binary::Ccm,
    cloud::Cloud,
    document::write_section,
    nodes::{self, NodeSpec},
    progress::Watch,
    stage::Stage,
};
use clap::Args;
use kube::Api;

use crate::measure::{LATENCY, create_services, median, metric, served, wait_for};
use crate::{print, say};

/// Nodes of the small cluster, with which upstream was measured.
const FEW: usize = 6;
/// Starts and ends that are measured.
const TIMES: usize = 5;
/// Time after its last work until a process counts as idle.
const REST: Duration = Duration::from_secs(20);
/// The number of refreshes of all nodes. The first one runs at the start, if there are initialized nodes.
const REFRESHES: &str = "ccm_node_refresh_duration_seconds_count";
/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(1800);

#[derive(Args, Debug)]
pub(crate) struct ProcessOptions {
    /// Nodes of the large cluster, which is always simulated; 0 leaves it out.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// Services of the large cluster, with a load balancer each that leads to all nodes.
    #[arg(long, default_value_t = 500)]
    services: usize,
    /// A real OpenStack for the small cluster, as in the measurement of upstream (root, Debian).
    #[arg(long)]
    real: bool,
    /// Write the result to docs/benchmarks.md.
    #[arg(long)]
    write: bool,
}

/// From one start of the process to its end.
#[derive(Clone, Copy, Debug)]
struct Life {
    /// From its start to `/readyz`.
    ready: Duration,
    /// The part of it until the cloud accepted the credentials.
    authentication: Duration,
    /// From SIGTERM to its end.
    end: Duration,
}

/// Resident memory, in MB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    rest: f64,
    peak: f64,
}

pub(crate) async fn run(options: &ProcessOptions, program: &Path) -> Result<()> {
    let size = fs::metadata(program).with_context(|| format!("cannot read {}", program.display()))?.len();
    let cloud = match options.real {
        true => Cloud::real(u32::try_from(FEW)?).await?,
        false => Cloud::simulated(LATENCY).await?,
    };
    let (lives, few) = small(program, &cloud).await?;
    say(&format!("{FEW} nodes: {few:?}"));
    let many = match options.nodes {
        0 => None,
        _ => Some(large(program, options).await?),
    };
    let report = report(options, size, &lives, few, many);
    print(&report);
    if options.write {
        write_section("process", &report)?;
    }
    Ok(())
}

/// Measures a cluster of few nodes, all initialized, with nothing to do.
async fn small(program: &Path, cloud: &Cloud) -> Result<(Vec<Life>, Memory)> {
    say(&format!("{FEW} nodes: preparing"));
    let names = cloud.servers(FEW).await?;
    let stage = Stage::set(program).await?;
    stage.write_cloud_config(&cloud.config()?)?;
    let client = stage.control_plane.client().await?;
    let specs: Vec<_> = names.iter().map(NodeSpec::new).map(NodeSpec::realistic).collect();
    nodes::register(&client, &specs).await?;
    let mut watch = Watch::start(client);
    let mut first = stage.launch("openstack", &[])?;
    watch.initialized(FEW, LIMIT).await?;
    first.terminate()?;
    first.wait(LIMIT).await?;

    let mut lives = Vec::new();
    for _ in 0..TIMES {
        lives.push(life(&stage).await?);
    }
    let mut ccm = stage.launch("openstack", &[])?;
    ccm.wait_healthy("/readyz", LIMIT).await?;
    wait_for(&ccm, REFRESHES, 1).await?;
    let memory = at_rest(&ccm).await?;
    ccm.kill()?;
    Ok((lives, memory))
}

async fn life(stage: &Stage) -> Result<Life> {
    let began = Instant::now();
    let mut ccm = stage.launch("openstack", &[])?;
    ccm.wait_healthy("/readyz", LIMIT).await?;
    let ready = began.elapsed();
    let (_, page) = ccm.get("/metrics").await?;
    let authentication: f64 =
        metric(&page, "ccm_cloud_call_duration_seconds_sum{provider=\"openstack\",op=\"token_create\"}")
            .context("no metric has the time of the authentication")?;
    // All controllers run when the first refresh is done.
    wait_for(&ccm, REFRESHES, 1).await?;
    let began = Instant::now();
    ccm.terminate()?;
    ccm.wait(LIMIT).await?;
    Ok(Life {
        ready,
        authentication: Duration::from_secs_f64(authentication),
        end: began.elapsed(),
    })
}

/// Measures a cluster of many nodes, and Services that lead to all of them.
async fn large(program: &Path, options: &ProcessOptions) -> Result<Memory> {
    say(&format!("{} nodes, {} Services: preparing", options.nodes, options.services));
    // Large enough for a floating IP for each Service.
    let config = Config {
        public_subnet: "198.18.0.0/15".parse()?,
        ..Config::default()
    };
    let cloud = OpenStack::start(config).await?;
    cloud.configure(|settings| settings.resource_quotas.clear());
    cloud.set_latency(LATENCY);
    let cloud = Cloud::Simulated(cloud);
    let names = cloud.servers(options.nodes).await?;
    let stage = Stage::set(program).await?;
    // Only memory is measured, so that quotas need not apply.
    let quota = ["compute", "network", "load-balancer"]
        .map(|service| format!("{service}-requests-per-second=1000\n{service}-burst=1000\n"))
        .concat();
    stage.write_cloud_config(&format!("{}\n[Quota]\n{quota}", cloud.config()?))?;
    let client = stage.control_plane.client().await?;
    let specs: Vec<_> = names.iter().map(NodeSpec::new).map(NodeSpec::realistic).collect();
    nodes::register(&client, &specs).await?;
    let mut watch = Watch::start(client.clone());
    let mut ccm = stage.launch("openstack", &[])?;
    watch.initialized(options.nodes, LIMIT).await?;
    say(&format!("all nodes are initialized: {:?}", memory(&ccm)?));
    let services = Api::namespaced(client, "default");
    let names: Vec<_> = (0..options.services).map(|i| format!("web-{i:03}")).collect();
    create_services(&services, &names, 1).await?;
    served(&services, options.services, LIMIT).await?;
    let memory = at_rest(&ccm).await?;
    say(&format!("all Services are served: {memory:?}"));
    ccm.kill()?;
    Ok(memory)
}

/// The memory of the idle process.
async fn at_rest(ccm: &Ccm) -> Result<Memory> {
    tokio::time::sleep(REST).await;
    memory(ccm)
}

fn memory(ccm: &Ccm) -> Result<Memory> {
    Ok(Memory {
        rest: ccm.rss_kib()? as f64 / 1024.0,
        peak: ccm.peak_rss_kib()? as f64 / 1024.0,
    })
}

fn report(options: &ProcessOptions, size: u64, lives: &[Life], few: Memory, many: Option<Memory>) -> String {
    let middle = |of: fn(&Life) -> Duration| median(lives.iter().map(of).collect()).as_secs_f64();
    let cloud = match options.real {
        true => "real OpenStack",
        false => "simulated OpenStack",
    };
    let malloc = match env::var_os("MALLOC_TRIM_THRESHOLD_") {
        Some(_) => "",
        None => "not ",
    };
    let mut text = format!(
        "## The process\n\n\
         Default flags. \"Ready\" is from the start to `/readyz`, authentication included. Memory is resident memory {} s after the last\n\
         work, and nodes are about 10 kB each. The {FEW} nodes are those of a {cloud}. The large cluster is simulated: each of its\n\
         Services has a load balancer with every node as a member. Times are medians of {TIMES}. The variables of malloc are\n\
         {malloc}as in the image (Dockerfile). \"Go\" is the Go cloud-controller-manager, measured with {FEW} nodes of a real OpenStack.\n\n\
         | what | measured | target | Go |\n|---|---:|---:|---:|\n\
         | start to ready, without authentication | {:.2} s | 0.3 s | - |\n\
         | start to ready | {:.2} s | - | 0.67 s |\n\
         | SIGTERM to the end, lease released | {:.2} s | - | at once, lease kept |\n\
         | memory, {FEW} nodes | {:.1} MB (peak {:.1} MB) | 15 MB | 58 MB |\n",
        REST.as_secs(),
        middle(|life| life.ready.saturating_sub(life.authentication)),
        middle(|life| life.ready),
        middle(|life| life.end),
        few.rest,
        few.peak,
    );
    if let Some(many) = many {
        let _ = writeln!(
            text,
            "| memory, {} nodes, {} Services | {:.0} MB (peak {:.0} MB) | - | - |",
            options.nodes, options.services, many.rest, many.peak
        );
    }
    let _ =
        writeln!(text, "| binary, `--features openstack` | {:.1} MB | 20 MB | 65 MB |", size as f64 / 1e6);
    text
}
