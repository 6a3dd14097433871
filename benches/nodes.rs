//! Joining nodes, the idle cluster, Services that follow a node, and one node in a project of many servers.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use ccm_sim::openstack::ServerSpec;
use ccm_testbed::{
    cloud::Cloud,
    document::write_section,
    nodes::{self, NodeSpec},
    progress::Watch,
    stage::Stage,
};
use clap::Args;
use k8s_openapi::api::core::v1::Service;
use kube::Api;

use crate::measure::{
    LATENCY, LIMIT, create_services, exclude, kinds, quiet, served, since, start, wait_for, writes,
};
use crate::{print, say};

/// Changes of nodes in the hour that is extrapolated.
const CHANGES: u64 = 6;
/// Refreshes of all nodes in an hour with upstream's default of 5 minutes.
const REFRESHES_PER_HOUR: u64 = 12;
/// Refreshes that are counted for the idle figures.
const PASSES: u64 = 3;
/// Time between the refreshes that are counted.
const REFRESH: Duration = Duration::from_secs(10);
/// Servers of the large project.
const LARGE_PROJECT: usize = 20_000;

#[derive(Args, Debug)]
pub(crate) struct NodesOptions {
    /// The cloud.
    #[arg(long, default_value = "openstack")]
    pub(crate) cloud: String,
    /// How many Services follow a node that changes, after the nodes joined.
    #[arg(long, default_value_t = 0)]
    services: usize,
    /// Numbers of nodes.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 5000])]
    nodes: Vec<usize>,
    /// Write the result to docs/benchmarks.md.
    #[arg(long)]
    write: bool,
}

/// The figures for one number of nodes.
struct Figures {
    nodes: usize,
    seconds: f64,
    calls: BTreeMap<String, u64>,
    writes_per_node: f64,
    events_per_node: f64,
    peak_rss_mb: f64,
    idle_calls_per_hour: u64,
    /// Calls of a restart and of one node that changes, if there are Services.
    with_services: Option<[BTreeMap<String, u64>; 2]>,
}

pub(crate) async fn run(options: &NodesOptions, program: &Path) -> Result<()> {
    let mut figures = Vec::new();
    for &count in &options.nodes {
        figures.push(join(options, program, count).await?);
    }
    let is_openstack = options.cloud == "openstack";
    let single = match is_openstack {
        true => Some(one_in_a_large_project(program).await?),
        false => None,
    };
    let report = report(options, &figures, single.as_ref());
    print(&report);
    if options.write {
        let name = match is_openstack {
            true => "nodes".to_owned(),
            false => format!("nodes {}", options.cloud),
        };
        write_section(&name, &report)?;
    }
    Ok(())
}

/// The simulated cloud of this provider.
async fn simulated(provider: &str) -> Result<Cloud> {
    match provider {
        "openstack" => Cloud::simulated(LATENCY).await,
        _ => Cloud::test(provider, LATENCY).await,
    }
}

/// All nodes exist and are tainted when the program starts, so that only its own time is measured.
async fn join(options: &NodesOptions, program: &Path, count: usize) -> Result<Figures> {
    say(&format!("{count} nodes: preparing"));
    let cloud = simulated(&options.cloud).await?;
    let names = cloud.servers(count).await?;
    let stage = Stage::set(program).await?;
    stage.write_cloud_config(&cloud.config()?)?;
    let client = stage.control_plane.client().await?;
    let specs: Vec<_> = names.iter().map(|name| NodeSpec::new(name).realistic()).collect();
    let registering = Instant::now();
    nodes::register(&client, &specs).await?;
    say(&format!(
        "{count} nodes: registered in {:.0} s, starting",
        registering.elapsed().as_secs_f64()
    ));
    let mut watch = Watch::start(client.clone());

    let began = Instant::now();
    let mut ccm = start(&stage, &cloud, &[])?;
    let done = watch.initialized(count, Duration::from_secs(600)).await?;
    let seconds = done.finished.map_or_else(|| began.elapsed(), |at| at.duration_since(began)).as_secs_f64();
    let calls = cloud.calls()?;
    // Events come last.
    wait_for(&ccm, "ccm_events_total{result=\"written\"}", count as u64).await?;
    let peak_rss_mb = ccm.peak_rss_kib()? as f64 / 1024.0;
    let (writes_per_node, events_per_node) = writes_per_node(&stage, count)?;
    ccm.kill()?;

    say(&format!("{count} nodes: initialized after {seconds:.1} s, measuring the idle cluster"));
    let frequency = format!("--node-status-update-frequency={}s", REFRESH.as_secs());
    let mut ccm = start(&stage, &cloud, &[&frequency])?;
    ccm.wait_healthy("/readyz", Duration::from_secs(60)).await?;
    let passes = "ccm_node_refresh_duration_seconds_count";
    let first = wait_for(&ccm, passes, 1).await?;
    let before: u64 = cloud.calls()?.values().sum();
    let last = wait_for(&ccm, passes, first + PASSES).await?;
    say(&format!("{count} nodes: {:.0} MB at rest", ccm.rss_kib()? as f64 / 1024.0));
    let idle_calls = cloud.calls()?.values().sum::<u64>() - before;
    ccm.kill()?;
    let mut with_services = None;
    if let Some(node) = names.first().filter(|_| options.services > 0) {
        with_services = Some(follow(options, &stage, &cloud, &client, node).await?);
    }
    Ok(Figures {
        nodes: count,
        seconds,
        calls,
        writes_per_node,
        events_per_node,
        peak_rss_mb,
        idle_calls_per_hour: idle_calls * REFRESHES_PER_HOUR / (last - first),
        with_services,
    })
}

/// Calls of a restart with Services, and of a node that leaves their load balancers.
async fn follow(
    options: &NodesOptions,
    stage: &Stage,
    cloud: &Cloud,
    client: &kube::Client,
    node: &str,
) -> Result<[BTreeMap<String, u64>; 2]> {
    say(&format!("{} Services", options.services));
    // The lease of the former process has not expired yet.
    let flags = ["--leader-elect=false"];
    let mut ccm = start(stage, cloud, &flags)?;
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let names: Vec<_> = (0..options.services).map(|number| format!("web-{number:03}")).collect();
    create_services(&services, &names, 1).await?;
    served(&services, names.len(), LIMIT).await?;
    ccm.kill()?;
    let before = cloud.calls()?;
    let mut ccm = start(stage, cloud, &flags)?;
    ccm.wait_healthy("/readyz", LIMIT).await?;
    quiet(cloud).await?;
    let restart = since(&before, cloud.calls()?);
    say("a node changes");
    let before = cloud.calls()?;
    exclude(client, node).await?;
    quiet(cloud).await?;
    let change = since(&before, cloud.calls()?);
    ccm.kill()?;
    Ok([restart, change])
}

/// The program's writes of nodes, and its events, for each node.
fn writes_per_node(stage: &Stage, count: usize) -> Result<(f64, f64)> {
    let writes = writes(stage)?;
    let per_node = |total: usize| total as f64 / count as f64;
    Ok((per_node(writes.nodes), per_node(writes.events)))
}

/// Calls, without those of the start, for one node that joins a project of many servers.
async fn one_in_a_large_project(program: &Path) -> Result<BTreeMap<String, u64>> {
    say(&format!("one node in a project of {LARGE_PROJECT} servers"));
    let cloud = Cloud::simulated(LATENCY).await?;
    if let Cloud::Simulated(cloud) = &cloud {
        cloud.create_servers(LARGE_PROJECT, &ServerSpec::named("other-{i:05}"))?;
    }
    let names = cloud.servers(1).await?;
    let stage = Stage::set(program).await?;
    stage.write_cloud_config(&cloud.config()?)?;
    let client = stage.control_plane.client().await?;
    let mut watch = Watch::start(client.clone());
    let mut ccm = start(&stage, &cloud, &[])?;
    ccm.wait_healthy("/readyz", Duration::from_secs(60)).await?;
    let before = cloud.calls()?;
    let specs: Vec<_> = names.iter().map(NodeSpec::new).collect();
    nodes::register(&client, &specs).await?;
    watch.initialized(1, Duration::from_secs(60)).await?;
    Ok(since(&before, cloud.calls()?))
}

/// Targets for the calls of the program while `nodes` nodes join, and in an idle hour; and the calls of upstream for
/// a node, at initialization and at every refresh.
fn targets(cloud: &str, nodes: usize) -> (String, String, usize) {
    match cloud {
        "openstack" => {
            let pages = nodes as f64 / 1000.0 + nodes as f64 / 150.0;
            let idle = format!("{:.0}", REFRESHES_PER_HOUR as f64 * (2.0 + pages));
            ((15 + nodes / 100).to_string(), idle, 4)
        }
        // 20 pages of droplets, and one of those with a GPU.
        "digitalocean" if nodes == 1000 => ("24".to_owned(), "270".to_owned(), 1),
        _ => ("-".to_owned(), "-".to_owned(), 1),
    }
}

fn report(options: &NodesOptions, figures: &[Figures], single: Option<&BTreeMap<String, u64>>) -> String {
    let (.., go_calls) = targets(&options.cloud, 0);
    let mut text = format!(
        "## Nodes join{}\n\n\
         Nodes are about 10 kB each (50 images, 20 labels, conditions, managedFields). They are registered and tainted\n\
         before the program starts. The seconds include the start of the program and its authentication.\n\n\
         \"Go, computed\" is what the Go cloud-controller-manager needs by its design: {go_calls} call{} for each node, one node after the other.\n\n\
         | nodes | seconds | Go, seconds, computed | cloud calls | target | Go, calls, computed | ratio | node writes per node | events per node | peak RSS |\n\
         |---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        match options.cloud.as_str() {
            "openstack" => String::new(),
            cloud => format!(" on {cloud}"),
        },
        if go_calls == 1 { "" } else { "s" },
    );
    for figures in figures {
        let calls: u64 = figures.calls.values().sum();
        let go = figures.nodes * go_calls;
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.0} | {calls} | {} | {go} | 1 : {:.0} | {:.2} | {:.2} | {:.0} MB |",
            figures.nodes,
            figures.seconds,
            go as f64 * LATENCY.as_secs_f64(),
            targets(&options.cloud, figures.nodes).0,
            go as f64 / calls as f64,
            figures.writes_per_node,
            figures.events_per_node,
            figures.peak_rss_mb,
        );
    }
    text.push_str(
        "\nThe API server is the limit, not the cloud: it writes two patches and an Event for each node, and shares its cores\n\
         with everything else.\n\n",
    );
    for figures in figures {
        let requests = figures.nodes as f64 * (figures.writes_per_node + figures.events_per_node);
        let rate = requests / figures.seconds;
        let _ = writeln!(text, "- {} nodes: {rate:.0} writes to the API server a second", figures.nodes);
    }
    text.push_str("\nCalls by kind:\n\n");
    for figures in figures {
        let _ = writeln!(text, "- {} nodes: {}", figures.nodes, kinds(&figures.calls));
    }
    let _ = write!(
        text,
        "\n## Idle\n\n\
         Calls in an hour with `--node-status-update-frequency=5m`, computed: the measured calls of {PASSES} refreshes, one every {} s, \
         times {}.\n\n\
         | nodes | calls per hour | target | Go, computed |\n|---:|---:|---:|---:|\n",
        REFRESH.as_secs(),
        REFRESHES_PER_HOUR / PASSES,
    );
    for figures in figures {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            figures.nodes,
            figures.idle_calls_per_hour,
            targets(&options.cloud, figures.nodes).1,
            REFRESHES_PER_HOUR as usize * go_calls * figures.nodes,
        );
    }
    for figures in figures {
        let Some([restart, change]) = &figures.with_services else {
            continue;
        };
        let sum = |calls: &BTreeMap<String, u64>| calls.values().sum::<u64>();
        let _ = write!(
            text,
            "\n## {} Services and {} nodes\n\n\
             - A restart: {} calls ({}).\n\
             - A node leaves all load balancers: {} calls ({}).\n\
             - An hour with {CHANGES} such changes, and the refreshes above: {} calls.\n",
            options.services,
            figures.nodes,
            sum(restart),
            kinds(restart),
            sum(change),
            kinds(change),
            figures.idle_calls_per_hour + CHANGES * sum(change),
        );
    }
    let Some(single) = single else {
        return text;
    };
    let _ = write!(
        text,
        "\n## One node joins a project of {LARGE_PROJECT} servers\n\n{} calls ({}); target: at most 3.\n",
        single.values().sum::<u64>(),
        kinds(single),
    );
    text
}
