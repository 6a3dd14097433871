//! `cargo xtask demo`: nodes and Services, live.

mod balancers;
mod forward;
mod pods;
mod services;
mod tables;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{IsTerminal, Write as _},
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use ccm_testbed::{
    binary::Ccm,
    cargo::{Build, program},
    cloud::Cloud,
    nodes::{self, NodeSpec},
    progress::{Nodes, Row, Watch},
    stage::Stage,
};
use clap::Args;
use ipnet::IpNet;

use self::{forward::Forwarder, services::ServiceDemo, tables::row};
use crate::{print, say};

/// The cloud whose load balancers can be used in the demo, and the only one with `--real`.
const OPENSTACK: &str = "openstack";
/// Rows of the table that is redrawn while nodes join.
const LIVE_ROWS: usize = 15;
/// Rows of the table at the end.
const FINAL_ROWS: usize = 20;
/// Until all nodes are initialized.
const LIMIT: Duration = Duration::from_secs(600);
/// How many nodes join after the Services are created.
const JOINING: usize = 2;

#[derive(Args, Debug, Default)]
pub(crate) struct DemoOptions {
    /// The cloud: the name of its folder in `providers/`.
    #[arg(long, value_name = "NAME", default_value = OPENSTACK)]
    pub(crate) cloud: String,
    /// How many nodes join at first [default: 100; with --real 5]
    #[arg(long)]
    pub(crate) nodes: Option<usize>,
    /// A real OpenStack in place of the simulated one (root, Debian).
    #[arg(long)]
    pub(crate) real: bool,
    /// End when everything has been shown, with the Services deleted again.
    #[arg(long)]
    pub(crate) once: bool,
    /// Take this binary instead of building one.
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
}

pub(crate) fn run(options: &DemoOptions) -> Result<()> {
    let clouds = crate::clouds()?;
    if !clouds.contains(&options.cloud) {
        bail!("unknown cloud {:?}; the clouds are {}", options.cloud, clouds.join(", "));
    }
    if options.real && options.cloud != OPENSTACK {
        bail!("--real is for OpenStack only");
    }
    let program = program(options.program.as_ref(), &options.cloud, Build::Dev)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        tokio::select! {
            outcome = demo(options, program) => outcome,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                say("");
                say("stopping everything");
                Ok(())
            }
        }
    })
}

async fn demo(options: &DemoOptions, program: PathBuf) -> Result<()> {
    let count = options.nodes.unwrap_or(if options.real { 5 } else { 100 });
    if count == 0 {
        bail!("--nodes must be at least 1");
    }
    let place = Place::claim()?;
    let cloud = if options.real {
        say(&format!(
            "starting a real OpenStack with {} servers (a minute or two the first time)",
            count + JOINING
        ));
        Cloud::real(u32::try_from(count + JOINING).context("too many servers")?).await?
    } else {
        let latency = Duration::from_millis(50);
        match options.cloud.as_str() {
            OPENSTACK => Cloud::on_loopback(latency, place.private()?, place.public()?).await?,
            other => Cloud::test(other, latency).await?,
        }
    };
    let mut names = cloud.servers(count + JOINING).await?;
    let joining = names.split_off(count.min(names.len()));
    if joining.len() < JOINING {
        bail!("the cloud has {} servers, not {}", names.len(), count + JOINING);
    }
    say("starting etcd and kube-apiserver");
    let stage = Stage::set(program).await?;
    stage.write_cloud_config(&cloud.config()?)?;
    let client = stage.control_plane.client().await?;
    let mut watch = Watch::start(client.clone());
    let cluster = format!("--cluster-name={}", services::CLUSTER);
    let kubeconfig = stage.control_plane.kubeconfig();
    let mut launch = stage.command(cloud.provider(), &kubeconfig, &[&cluster]);
    launch.envs = cloud.environment();
    let mut ccm = Ccm::start(&launch)?;
    ccm.wait_healthy("/readyz", Duration::from_secs(60)).await?;
    let baseline: u64 = cloud.calls()?.values().sum();
    say(&format!("cluster: {}; cloud: {}", stage.control_plane.server(), cloud.describe()));
    say(&format!("registering {} tainted nodes, as their kubelets would", names.len()));

    let began = Instant::now();
    let specs: Vec<_> = names.iter().map(NodeSpec::new).collect();
    let mut screen = Screen::default();
    let watched = watch_nodes(&cloud, &mut ccm, &mut watch, &mut screen, names.len(), baseline, began);
    let ((), finished) = tokio::try_join!(nodes::register(&client, &specs), watched)?;
    let elapsed = finished.finished.map_or_else(|| began.elapsed(), |at| at.duration_since(began));
    let at_end = Progress::read(&cloud, names.len(), baseline, elapsed)?;
    screen.clear();
    print(at_end.render(&finished, FINAL_ROWS).trim_end());

    let forwarder = match &cloud {
        Cloud::Simulated(cloud) => Some(Forwarder::start(cloud.control())),
        Cloud::Real(..) | Cloud::Test(..) => None,
    };
    let mut service_demo = ServiceDemo::new(&cloud, forwarder, &mut ccm, client, place.port, &names);
    let played = service_demo.play(&joining).await;
    // A real cloud is shared: objects in it are deleted even after a failure.
    if options.once || options.real {
        let cleaned = service_demo.clean().await;
        played.and(cleaned)?;
    } else {
        played?;
    }
    print("");
    print(service_demo.summary().trim_end());
    if options.once {
        return Ok(());
    }
    wait(&stage, &mut ccm).await
}

/// Shows how to reach the cluster, and waits for Ctrl-C.
async fn wait(stage: &Stage, ccm: &mut Ccm) -> Result<()> {
    print("");
    print(&format!("export KUBECONFIG={}", stage.control_plane.kubeconfig().display()));
    print("");
    say(&format!(
        "everything is running: kubectl get nodes,services -o wide; log: {}; curl -k https://127.0.0.1:{}/metrics. Ctrl-C ends it.",
        stage.log_path().display(),
        ccm.port()
    ));
    loop {
        if let Some(status) = ccm.exit_status()? {
            bail!("the program ended ({status}); its log:\n{}", ccm.log()?);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The addresses of a simulated cloud on this machine: a network of 127.0.0.0/8 of its own.
struct Place {
    network: u8,
    /// The port of the Services, on which no other process listens.
    port: u16,
    /// Reserves the network. It never accepts a connection.
    _claim: TcpListener,
}

impl Place {
    fn claim() -> Result<Self> {
        for port in [8080, 8081, 18080, 28080] {
            for network in 77..=254 {
                // The address of the network's router, which no load balancer or node gets.
                let socket = TcpListener::bind((Ipv4Addr::new(127, network, 0, 1), port));
                if let Ok(claim) = socket {
                    return Ok(Self {
                        network,
                        port,
                        _claim: claim,
                    });
                }
            }
        }
        bail!(
            "cannot listen on 127.77.0.1:8080, nor on 8081, 18080 or 28080 of any network up to 127.254: the demo needs one of these ports for its Services"
        )
    }

    /// The network of the nodes and of internal load balancers.
    fn private(&self) -> Result<IpNet> {
        Ok(format!("127.{}.0.0/17", self.network).parse()?)
    }

    /// The network of floating IPs.
    fn public(&self) -> Result<IpNet> {
        Ok(format!("127.{}.128.0/24", self.network).parse()?)
    }
}

/// Shows the nodes until all of them are initialized.
async fn watch_nodes(
    cloud: &Cloud,
    ccm: &mut Ccm,
    watch: &mut Watch,
    screen: &mut Screen,
    count: usize,
    baseline: u64,
    began: Instant,
) -> Result<Arc<Nodes>> {
    let live = std::io::stdout().is_terminal();
    loop {
        if let Some(status) = ccm.exit_status()? {
            bail!("the program ended ({status}); its log:\n{}", ccm.log()?);
        }
        let elapsed = began.elapsed();
        let state = Progress::read(cloud, count, baseline, elapsed)?;
        if live {
            screen.draw(&state.render(&watch.now(), LIVE_ROWS));
        } else {
            screen.line(&state.summary(&watch.now()));
        }
        let pause = Duration::from_millis(if live { 200 } else { 1000 });
        if let Ok(nodes) = watch.initialized(count, pause).await {
            return Ok(nodes);
        }
        if elapsed > LIMIT {
            bail!("not all nodes were initialized within {LIMIT:?}; the program's log:\n{}", ccm.log()?);
        }
    }
}

/// The progress of the nodes.
struct Progress {
    count: usize,
    calls: BTreeMap<String, u64>,
    /// Calls of the start.
    baseline: u64,
    elapsed: Duration,
    /// Calls for a node if each one is read alone.
    one_by_one: usize,
}

impl Progress {
    fn read(cloud: &Cloud, count: usize, baseline: u64, elapsed: Duration) -> Result<Self> {
        Ok(Self {
            count,
            calls: cloud.calls()?,
            baseline,
            elapsed,
            one_by_one: cloud.calls_one_by_one(),
        })
    }

    fn summary(&self, nodes: &Nodes) -> String {
        let total: u64 = self.calls.values().sum();
        format!(
            "{} of {} nodes initialized after {:.1} s; cloud calls: {} ({} at start); one node at a time: {}",
            nodes.initialized(),
            self.count,
            self.elapsed.as_secs_f64(),
            total - self.baseline,
            self.baseline,
            self.count * self.one_by_one,
        )
    }

    fn render(&self, nodes: &Nodes, rows: usize) -> String {
        let mut table = vec![row(&[
            "NODE",
            "STATE",
            "PROVIDER ID",
            "ZONE",
            "TYPE",
            "ADDRESSES",
        ])];
        for (name, node) in nodes.rows.iter().take(rows) {
            let Row {
                provider_id,
                zone,
                instance_type,
                addresses,
                ..
            } = node;
            let state = if node.initialized {
                "initialized"
            } else {
                "uninitialized"
            };
            table.push(row(&[name, state, provider_id, zone, instance_type, addresses]));
        }
        let mut text = tables::table(&table);
        if nodes.rows.len() > rows {
            let _ = writeln!(text, "... and {} more", nodes.rows.len() - rows);
        }
        let kinds: Vec<_> = self.calls.iter().map(|(op, count)| format!("{op} {count}")).collect();
        let _ = writeln!(text, "\n{}", self.summary(nodes));
        let _ = writeln!(text, "all cloud calls by kind: {}", kinds.join(", "));
        text
    }
}

/// Redraws a table in place.
#[derive(Default)]
struct Screen {
    lines: usize,
    last: String,
}

impl Screen {
    fn draw(&mut self, text: &str) {
        let mut out = std::io::stdout().lock();
        self.clear_into(&mut out);
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
        self.lines = text.lines().count();
    }

    /// Prints a line to a log, if it differs from the last one in more than the time.
    fn line(&mut self, text: &str) {
        let fixed = text.split(" after ").next().unwrap_or_default().to_owned();
        if fixed != self.last {
            say(text);
            self.last = fixed;
        }
    }

    fn clear(&mut self) {
        let mut out = std::io::stdout().lock();
        self.clear_into(&mut out);
        self.lines = 0;
    }

    fn clear_into(&self, out: &mut impl std::io::Write) {
        if self.lines > 0 {
            // Up, and erase from there to the end of the screen.
            let _ = write!(out, "\x1b[{}A\x1b[J", self.lines);
        }
    }
}
