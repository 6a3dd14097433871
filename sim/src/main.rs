//! `ccm-sim`: runs a simulated cloud until it is interrupted.
//!
//! One line of JSON on standard output has its address and the credentials.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use ccm_sim::digitalocean::{self, DigitalOcean};
use ccm_sim::openstack::{Config, OpenStack, ServerSpec};
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

/// A simulator of the clouds' HTTP APIs.
#[derive(Parser)]
#[command(name = "ccm-sim", version)]
struct Cli {
    #[command(subcommand)]
    cloud: ServedCloud,
}

#[derive(Subcommand)]
enum ServedCloud {
    /// Simulate an OpenStack: Keystone, Nova, Neutron, Octavia, Barbican
    Openstack(OpenStackArgs),
    /// Simulate DigitalOcean: droplets and load balancers
    Digitalocean(DigitalOceanArgs),
}

#[derive(Args)]
struct DigitalOceanArgs {
    /// Address to listen on; port 0 lets the system choose
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Number of droplets at the start, named node-00000 and so on
    #[arg(long, default_value_t = 0)]
    droplets: usize,
}

#[derive(Args)]
struct OpenStackArgs {
    /// Address to listen on; port 0 lets the system choose
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Regions, the first being the default one
    #[arg(long = "region", default_value = "RegionOne")]
    regions: Vec<String>,
    /// Number of servers at the start
    #[arg(long, default_value_t = 0)]
    servers: usize,
    /// Names of these servers; {i} is replaced by the number, {i:05} for the same with leading zeros
    #[arg(long, default_value = "node-{i:05}")]
    server_name: String,
    /// Answer time of every request in milliseconds
    #[arg(long, default_value_t = 0)]
    latency_ms: u64,
    /// Minor number of Nova's newest microversion
    #[arg(long, default_value_t = 104)]
    max_microversion: u32,
    /// Seed of all random values
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse().cloud {
        ServedCloud::Openstack(args) => openstack(args).await,
        ServedCloud::Digitalocean(args) => digitalocean(args).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the error cannot be reported.
            let _closed = writeln!(std::io::stderr(), "ccm-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn openstack(args: OpenStackArgs) -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config {
        listen: args.listen,
        regions: args.regions,
        seed: args.seed,
        ..Config::default()
    };
    config.settings.max_microversion = args.max_microversion;
    let cloud = OpenStack::start(config).await?;
    if args.servers > 0 {
        cloud.create_servers(args.servers, &ServerSpec::named(args.server_name))?;
    }
    cloud.set_latency(Duration::from_millis(args.latency_ms));
    let line = json!({
        "auth_url": cloud.auth_url(),
        "control_url": cloud.control_url(),
        "region": cloud.region(),
        "project_id": cloud.project_id(),
        "cloud_conf": cloud.cloud_conf(),
    });
    serve(&line).await?;
    cloud.shutdown().await;
    Ok(())
}

async fn digitalocean(args: DigitalOceanArgs) -> Result<(), Box<dyn std::error::Error>> {
    let config = digitalocean::Config {
        listen: args.listen,
        ..digitalocean::Config::default()
    };
    let token = config.token.clone();
    let cloud = DigitalOcean::start(config).await?;
    for number in 0..args.droplets {
        cloud.create_droplet(&format!("node-{number:05}"));
    }
    let line = json!({"url": cloud.url(), "control_url": cloud.control_url(), "token": token});
    serve(&line).await?;
    cloud.shutdown().await;
    Ok(())
}

/// Prints the line, and waits for Ctrl-C or SIGTERM. Whoever has read the line may send one at once.
async fn serve(line: &Value) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
