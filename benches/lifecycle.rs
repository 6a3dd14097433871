//! Nodes that are not ready, nodes whose server was deleted, and a leader that ends.

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
    nodes::{self, NodeSpec, set_ready},
    observe::eventually,
    progress::Watch,
    stage::Stage,
};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::measure::{LATENCY, Writes, kinds, median, since, wait_for, writes};
use crate::{print, say};

/// Upstream makes four calls for each node that is not ready, every five seconds.
const GO_CALLS: u64 = 4;
const GO_PERIOD: Duration = Duration::from_secs(5);
/// How long a node must exist before it may be deleted, by default.
const GRACE: Duration = Duration::from_secs(120);
/// Servers that are deleted at once.
const DELETED: usize = 50;
/// Measurements of each figure that is a median.
const TIMES: usize = 5;
/// Requests to the API server at once.
const PARALLEL: usize = 32;
/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Args, Debug)]
pub(crate) struct LifecycleOptions {
    /// Nodes of the larger cluster.
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// For how many minutes nodes are not ready.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Only end leaders, and print how long the next one takes.
    #[arg(long, conflicts_with = "write")]
    leader: bool,
    /// Write the result to docs/benchmarks.md.
    #[arg(long)]
    write: bool,
}

/// How a leader ends.
#[derive(Clone, Copy)]
enum End {
    /// By SIGTERM: it finishes its work and releases the lease.
    Drained,
    /// By SIGKILL.
    Killed,
}

/// How leaders end, and in clusters of how many nodes.
const FAILOVERS: [(End, usize); 4] = [
    (End::Drained, 5),
    (End::Drained, 1000),
    (End::Drained, 5000),
    (End::Killed, 5),
];

/// Times until the next leader has worked.
struct Failovers {
    end: End,
    nodes: usize,
    times: Vec<Duration>,
}

/// A cluster whose nodes are initialized, with the program running.
struct Cluster {
    cloud: Cloud,
    stage: Stage,
    client: kube::Client,
    watch: Watch,
    /// Runs for as long as this lives.
    _ccm: Ccm,
}

/// Figures of a time in which nodes were not ready.
struct NotReady {
    nodes: usize,
    calls: BTreeMap<String, u64>,
    writes: Writes,
}

/// Figures of the deletion of servers.
struct Deletion {
    seconds: f64,
    calls: BTreeMap<String, u64>,
    writes: Writes,
}

pub(crate) async fn run(options: &LifecycleOptions, program: &Path) -> Result<()> {
    let mut failovers = Vec::new();
    for (end, nodes) in FAILOVERS {
        say(&format!("the leader of a cluster with {nodes} nodes ends"));
        let times = fail_over(program, end, nodes).await?;
        failovers.push(Failovers { end, nodes, times });
    }
    if options.leader {
        print(&failovers_report(&failovers));
        return Ok(());
    }
    let time = Duration::from_secs(options.minutes * 60);
    let (mut large, mut small) =
        tokio::try_join!(Cluster::start(program, options.nodes), Cluster::start(program, 10))?;
    say(&format!("nodes are not ready for {} minutes", options.minutes));
    let (all, one) = tokio::try_join!(large.not_ready(options.nodes, time), small.not_ready(1, time))?;
    let not_ready = [all, one];
    say(&format!("{DELETED} of {} servers are deleted", options.nodes));
    let many = large.delete_servers(DELETED).await?;
    drop(large);
    say("servers are deleted one by one");
    let mut single = Vec::new();
    for _ in 0..TIMES {
        single.push(small.delete_servers(1).await?);
    }
    drop(small);

    let report = report(options, &not_ready, &many, &single, &failovers);
    print(&report);
    if options.write {
        write_section("lifecycle", &report)?;
    }
    Ok(())
}

impl Cluster {
    /// Returns when the nodes are initialized and old enough to be deleted.
    async fn start(program: &Path, count: usize) -> Result<Self> {
        let cloud = Cloud::simulated(LATENCY).await?;
        let names = cloud.servers(count).await?;
        let stage = Stage::set(program).await?;
        stage.write_cloud_config(&cloud.config()?)?;
        let client = stage.control_plane.client().await?;
        let specs: Vec<_> = names.iter().map(NodeSpec::new).collect();
        nodes::register(&client, &specs).await?;
        let registered = Instant::now();
        let mut watch = Watch::start(client.clone());
        let ccm = stage.launch("openstack", &[])?;
        watch.initialized(count, LIMIT).await?;
        wait_for(&ccm, "ccm_events_total{result=\"written\"}", count as u64).await?;
        say(&format!("{count} nodes initialized; waiting until they are older than the grace"));
        tokio::time::sleep(GRACE.saturating_sub(registered.elapsed())).await;
        Ok(Self {
            cloud,
            stage,
            client,
            watch,
            _ccm: ccm,
        })
    }

    /// The names of the first `count` nodes.
    fn names(&self, count: usize) -> Vec<String> {
        self.watch.now().rows.keys().take(count).cloned().collect()
    }

    async fn set_ready(&self, names: &[String], ready: bool) -> Result<()> {
        stream::iter(names)
            .map(|name| set_ready(&self.client, name, ready))
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await
    }

    /// Sets nodes to not ready for a time while their servers run.
    async fn not_ready(&self, count: usize, time: Duration) -> Result<NotReady> {
        let names = self.names(count);
        let (calls, before) = (self.cloud.calls()?, writes(&self.stage)?);
        self.set_ready(&names, false).await?;
        tokio::time::sleep(time).await;
        let figures = NotReady {
            nodes: count,
            calls: since(&calls, self.cloud.calls()?),
            writes: writes(&self.stage)?.since(before),
        };
        self.set_ready(&names, true).await?;
        if self.watch.now().rows.len() < count {
            bail!("a node whose server runs was deleted");
        }
        Ok(figures)
    }

    /// Deletes servers and sets their nodes to not ready. Returns when the nodes are deleted.
    async fn delete_servers(&mut self, count: usize) -> Result<Deletion> {
        let Cloud::Simulated(cloud) = &self.cloud else {
            bail!("only for the simulated cloud");
        };
        let names = self.names(count);
        let left = self.watch.now().rows.len() - count;
        let (calls, before) = (self.cloud.calls()?, writes(&self.stage)?);
        for name in &names {
            let rows = self.watch.now();
            let id = rows.rows.get(name).map(|row| row.provider_id.clone()).unwrap_or_default();
            let id = id.rsplit('/').next().context("a node without provider ID")?;
            cloud.delete_server(id)?;
        }
        self.set_ready(&names, false).await?;
        let began = Instant::now();
        self.watch.left(left, LIMIT).await?;
        let seconds = began.elapsed().as_secs_f64();
        // Events come last.
        let events = before.events + count;
        eventually(LIMIT, async || (writes(&self.stage).ok()?.events >= events).then_some(()))
            .await
            .context("deleted nodes without an Event each")?;
        Ok(Deletion {
            seconds,
            calls: since(&calls, self.cloud.calls()?),
            writes: writes(&self.stage)?.since(before),
        })
    }
}

/// Times from the signal to a leader until the next leader has initialized a node that joined at that moment.
async fn fail_over(program: &Path, end: End, nodes: usize) -> Result<Vec<Duration>> {
    let cloud = Cloud::simulated(LATENCY).await?;
    let mut names = cloud.servers(nodes + TIMES).await?;
    let joining = names.split_off(nodes);
    let stage = Stage::set(program).await?;
    stage.write_cloud_config(&cloud.config()?)?;
    let client = stage.control_plane.client().await?;
    let mut watch = Watch::start(client.clone());
    let specs: Vec<_> = names.iter().map(NodeSpec::new).collect();
    nodes::register(&client, &specs).await?;
    let mut leader = stage.launch("openstack", &[])?;
    watch.initialized(nodes, LIMIT).await?;
    let leads = "leader_election_master_status{name=\"cloud-controller-manager\"}";
    let mut times = Vec::new();
    for (i, name) in joining.iter().enumerate() {
        leader.wait_healthy("/readyz", LIMIT).await?;
        wait_for(&leader, leads, 1).await?;
        let mut standby = stage.launch("openstack", &[])?;
        standby.wait_healthy("/readyz", LIMIT).await?;
        let began = Instant::now();
        match end {
            End::Drained => leader.terminate()?,
            End::Killed => leader.kill()?,
        }
        nodes::register(&client, [&NodeSpec::new(name)]).await?;
        watch.initialized(nodes + i + 1, LIMIT).await?;
        times.push(began.elapsed());
        leader = standby;
    }
    Ok(times)
}

fn report(
    options: &LifecycleOptions,
    not_ready: &[NotReady; 2],
    many: &Deletion,
    single: &[Deletion],
    failovers: &[Failovers],
) -> String {
    let mut text = format!(
        "## Nodes that are not ready\n\n\
         For {} minutes, with default flags. The figures include the refreshes of all nodes every 5 minutes. \"Go, computed\" is\n\
         what the Go cloud-controller-manager needs by its design: 4 calls for each such node every 5 s.\n\n\
         | nodes not ready | cloud calls | target | Go, computed | ratio | node writes | events |\n|---:|---:|---:|---:|---:|---:|---:|\n",
        options.minutes
    );
    for figures in not_ready {
        let calls: u64 = figures.calls.values().sum();
        let go = GO_CALLS * figures.nodes as u64 * options.minutes * 60 / GO_PERIOD.as_secs();
        let target = if figures.nodes == 1 { "-" } else { "150" };
        let _ = writeln!(
            text,
            "| {} | {calls} | {target} | {go} | 1 : {:.0} | {} | {} |",
            figures.nodes,
            go as f64 / calls.max(1) as f64,
            figures.writes.nodes,
            figures.writes.events,
        );
    }
    text.push_str("\nCalls by kind:\n\n");
    for figures in not_ready {
        let _ = writeln!(text, "- {} nodes: {}", figures.nodes, kinds(&figures.calls));
    }
    let seconds: Vec<_> = single.iter().map(|deletion| Duration::from_secs_f64(deletion.seconds)).collect();
    let _ = write!(
        text,
        "\n## Deleted servers\n\n\
         From the moment when the servers are deleted and the nodes not ready until the Nodes are deleted, with default flags. The\n\
         nodes are older than the grace period. The second answer comes 10 s after the first.\n\n\
         | deleted | of | seconds | target | cloud calls | node writes | events |\n|---:|---:|---:|---:|---:|---:|---:|\n\
         | {DELETED} | {} | {:.1} | - | {} | {} | {} |\n\
         | 1 | 10 | {:.1} (median of {TIMES}) | 20 | {} | {} | {} |\n",
        options.nodes,
        many.seconds,
        kinds(&many.calls),
        many.writes.nodes,
        many.writes.events,
        median(seconds).as_secs_f64(),
        single.first().map(|deletion| kinds(&deletion.calls)).unwrap_or_default(),
        single.first().map_or(0, |deletion| deletion.writes.nodes),
        single.first().map_or(0, |deletion| deletion.writes.events),
    );
    text.push_str(&failovers_report(failovers));
    text
}

fn failovers_report(failovers: &[Failovers]) -> String {
    let mut text = String::from(
        "\n## A leader ends\n\n\
         From the signal until the other replica has initialized a node that joined at that moment. Flags are the defaults (lease\n\
         15 s, an attempt every 2 to 4.4 s). A new leader lists all nodes and Services again before it decides.\n\n\
         | end | nodes | median, seconds | target | all |\n|---|---:|---:|---:|---|\n",
    );
    for Failovers { end, nodes, times } in failovers {
        let (what, target) = match end {
            End::Drained => ("SIGTERM: drained, lease released", "4"),
            End::Killed => ("SIGKILL", "-"),
        };
        let all: Vec<_> = times.iter().map(|time| format!("{:.1}", time.as_secs_f64())).collect();
        let median = median(times.clone()).as_secs_f64();
        let _ = writeln!(text, "| {what} | {nodes} | {median:.1} | {target} | {} |", all.join(", "));
    }
    text
}
