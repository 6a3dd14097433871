//! Routes: all of them created, one node replaced, nothing to do, a restart.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ccm_sim::openstack::{OpenStack, RouterSpec, ServerSpec};
use ccm_testbed::{
    binary::Ccm,
    cloud::Cloud,
    document::write_section,
    nodes::{self, NodeSpec},
    observe::eventually,
    stage::Stage,
};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::measure::{LATENCY, LIMIT, kinds, since, wait_for};
use crate::{print, say};

/// Pods' networks, which differ from those of the servers.
const CLUSTER: &str = "100.64.0.0/10";
/// Period of the passes without changes.
const PERIOD: Duration = Duration::from_secs(5);
/// Passes without changes.
const QUIET_PASSES: u64 = 4;
/// Requests to the API server at once.
const PARALLEL: usize = 64;
/// The program's own quota of requests to Neutron.
const GATE: (usize, f64) = (50, 20.0);

#[derive(Args, Debug)]
pub(crate) struct RoutesOptions {
    /// Nodes of each cluster.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 5000])]
    nodes: Vec<usize>,
    /// Leave address pairs of ports out.
    #[arg(long)]
    without_pairs: bool,
    /// Write the result to docs/benchmarks.md.
    #[arg(long)]
    write: bool,
}

/// The figures of one cluster.
struct Figures {
    nodes: usize,
    pairs: bool,
    /// The same patches by a program that does nothing else.
    bare: Duration,
    create: Phase,
    replace: Phase,
    quiet: (u64, BTreeMap<String, u64>),
    restart: Phase,
}

/// The time and the calls of one phase.
struct Phase {
    time: Duration,
    calls: BTreeMap<String, u64>,
}

pub(crate) async fn run(options: &RoutesOptions, program: &Path) -> Result<()> {
    let mut all = Vec::new();
    for nodes in &options.nodes {
        for pairs in [false, true] {
            if pairs && options.without_pairs {
                continue;
            }
            let beside = if pairs { "with" } else { "without" };
            say(&format!("{nodes} nodes {beside} address pairs"));
            let figures = measure(program, *nodes, pairs).await?;
            // Printed at once, because the whole benchmark takes long.
            say(&report(std::slice::from_ref(&figures)));
            all.push(figures);
        }
    }
    let report = report(&all);
    print(&report);
    if options.write {
        write_section("routes", &report)?;
    }
    Ok(())
}

/// A cluster whose nodes are initialized.
struct Cluster {
    cloud: OpenStack,
    stage: Stage,
    client: kube::Client,
    router: String,
}

impl Cluster {
    async fn start(program: &Path, count: usize, pairs: bool) -> Result<Self> {
        let Cloud::Simulated(cloud) = Cloud::simulated(LATENCY).await? else {
            bail!("only for the simulated cloud")
        };
        cloud.configure(|settings| settings.resource_quotas.clear());
        let router = cloud.create_router(&RouterSpec {
            name: "pods".to_owned(),
            networks: vec!["private".to_owned()],
            ..RouterSpec::default()
        })?;
        let stage = Stage::set(program).await?;
        let conf = cloud.cloud_conf();
        stage.write_cloud_config(&format!(
            "{conf}\n[Route]\nrouter-id={router}\nallowed-address-pairs={pairs}\n"
        ))?;
        let client = stage.control_plane.client().await?;
        let cluster = Self {
            cloud,
            stage,
            client,
            router,
        };
        let specs: Vec<_> = (0..count).map(|i| cluster.node(i)).collect::<Result<_>>()?;
        nodes::register(&cluster.client, &specs).await?;
        Ok(cluster)
    }

    /// Creates a server, and returns its node in the initialized state.
    fn node(&self, i: usize) -> Result<NodeSpec> {
        let name = format!("node-{i:05}");
        let id = self.cloud.create_server(&ServerSpec::named(&name))?;
        let ports = self.cloud.server_ports(&id);
        let addresses = ports.first().map(|port| self.cloud.port_addresses(port));
        let address = addresses.and_then(|addresses| addresses.first().copied());
        Ok(NodeSpec {
            provider_id: Some(format!("openstack:///{id}")),
            uninitialized: false,
            node_ip: address,
            pod_cidrs: vec![format!("100.{}.{}.0/24", 64 + i / 256, i % 256)],
            ..NodeSpec::new(name)
        })
    }

    fn launch(&self) -> Result<Ccm> {
        let period = format!("--route-reconciliation-period={}s", PERIOD.as_secs());
        let cidr = format!("--cluster-cidr={CLUSTER}");
        let flags = [
            "--controllers=route",
            "--leader-elect=false",
            cidr.as_str(),
            period.as_str(),
        ];
        self.stage.launch("openstack", &flags)
    }

    /// Patches a condition of every node, with the parallelism of the program.
    async fn bare(&self, count: usize) -> Result<Duration> {
        let api: Api<Node> = Api::all(self.client.clone());
        let began = Instant::now();
        stream::iter(0..count)
            .map(|i| {
                let api = api.clone();
                async move {
                    let patch = json!({"status": {"conditions": [{
                        "type": "NetworkUnavailable", "status": "True", "reason": "NotYet",
                        "message": "no route for this node has been created yet",
                        "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z",
                    }]}});
                    let name = format!("node-{i:05}");
                    api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
                        .await
                }
            })
            .buffer_unordered(PARALLEL)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        Ok(began.elapsed())
    }

    /// Waits until so many conditions have been written, and returns the time since `began`.
    async fn until_written(&self, ccm: &mut Ccm, conditions: usize, began: Instant) -> Result<Duration> {
        ccm.wait_healthy("/readyz", LIMIT).await?;
        wait_for(ccm, "ccm_route_conditions_total{result=\"written\"}", conditions as u64).await?;
        Ok(began.elapsed())
    }

    fn passes(&self) -> u64 {
        self.cloud.call_counts().get("router_get").copied().unwrap_or(0)
    }
}

async fn measure(program: &Path, count: usize, pairs: bool) -> Result<Figures> {
    let cluster = Cluster::start(program, count, pairs).await?;
    let bare = cluster.bare(count).await?;
    cluster.cloud.clear_calls();
    let began = Instant::now();
    let mut ccm = cluster.launch()?;
    let time = cluster.until_written(&mut ccm, count, began).await?;
    let create = Phase {
        time,
        calls: cluster.cloud.call_counts(),
    };
    if cluster.cloud.router_routes(&cluster.router).len() != count {
        bail!("not every node has its route");
    }

    say("one node is replaced");
    let before = cluster.cloud.call_counts();
    let began = Instant::now();
    let api: Api<Node> = Api::all(cluster.client.clone());
    let old = api.get("node-00000").await?;
    let id = old.spec.and_then(|spec| spec.provider_id).unwrap_or_default();
    cluster.cloud.delete_server(id.trim_start_matches("openstack:///"))?;
    api.delete("node-00000", &Default::default()).await?;
    nodes::register(&cluster.client, [&cluster.node(count)?]).await?;
    let time = cluster.until_written(&mut ccm, count + 1, began).await?;
    eventually(LIMIT, async || {
        (cluster.cloud.router_routes(&cluster.router).len() == count).then_some(())
    })
    .await
    .context("the old route was not deleted")?;
    let replace = Phase {
        time,
        calls: since(&before, cluster.cloud.call_counts()),
    };

    say("nothing happens");
    let (before, first) = (cluster.cloud.call_counts(), cluster.passes());
    eventually(LIMIT, async || (cluster.passes() >= first + QUIET_PASSES).then_some(()))
        .await
        .context("no further passes")?;
    let quiet = (cluster.passes() - first, since(&before, cluster.cloud.call_counts()));

    say("the program restarts");
    ccm.kill()?;
    let before = cluster.cloud.call_counts();
    let began = Instant::now();
    let mut ccm = cluster.launch()?;
    ccm.wait_healthy("/readyz", LIMIT).await?;
    wait_for(&ccm, "ccm_route_passes_total{result=\"ok\"}", 1).await?;
    let restart = Phase {
        time: began.elapsed(),
        calls: since(&before, cluster.cloud.call_counts()),
    };
    Ok(Figures {
        nodes: count,
        pairs,
        bare,
        create,
        replace,
        quiet,
        restart,
    })
}

/// The least time that the gate lets so many requests take.
fn gate_bound(requests: u64) -> f64 {
    let waiting = requests.saturating_sub(GATE.0 as u64);
    waiting as f64 / GATE.1
}

fn report(all: &[Figures]) -> String {
    let mut text = format!(
        "## Routes\n\n\
         Nodes are initialized and have a podCIDR each. The quota of routes is raised, and only the route controller runs. \"Create\" is\n\
         from the start of the process until every node's NetworkUnavailable is cleared. \"Bare\" is the measured time of the same\n\
         patches by a program that does nothing else. \"Gate, computed\" is the least time of the port updates with the default quota\n\
         of requests to Neutron ({} at once, then {} a second). Targets: one route call for 500 nodes, twice the bare time in\n\
         addition to the gate, two reads for a pass with nothing to do.\n\n\
         | nodes | address pairs | route calls | target | create, seconds | bare | gate, computed | replace one, seconds | restart, seconds |\n\
         |---:|---|---:|---:|---:|---:|---:|---:|---:|\n",
        GATE.0, GATE.1
    );
    for figures in all {
        let calls = |op: &str| figures.create.calls.get(op).copied().unwrap_or(0);
        let route_calls = calls("router_add_extraroutes") + calls("router_remove_extraroutes");
        let gate = if figures.pairs {
            format!("{:.1}", gate_bound(calls("port_update")))
        } else {
            "-".to_owned()
        };
        let _ = writeln!(
            text,
            "| {} | {} | {route_calls} | {} | {:.1} | {:.1} | {gate} | {:.1} | {:.1} |",
            figures.nodes,
            if figures.pairs { "on" } else { "off" },
            figures.nodes.div_ceil(500),
            figures.create.time.as_secs_f64(),
            figures.bare.as_secs_f64(),
            figures.replace.time.as_secs_f64(),
            figures.restart.time.as_secs_f64(),
        );
    }
    text.push_str("\nCalls by kind:\n\n");
    for figures in all {
        let pairs = if figures.pairs { "on" } else { "off" };
        let (passes, quiet) = &figures.quiet;
        let _ = writeln!(
            text,
            "- {} nodes, pairs {pairs}: create: {}; replace one: {}; {passes} passes with nothing to do: {}; restart: {}",
            figures.nodes,
            kinds(&figures.create.calls),
            kinds(&figures.replace.calls),
            kinds(quiet),
            kinds(&figures.restart.calls),
        );
    }
    text
}
