//! Calls, seconds and bytes: each benchmark starts a real control plane, a cloud and the release build on this machine.
//!
//! `cargo xtask bench services` runs one; so does `cargo bench --features openstack --bench clouds -- services`.

mod life;
mod lifecycle;
mod measure;
mod nodes;
mod process;
mod routes;
mod services;

use std::{io::Write, path::PathBuf};

use anyhow::Result;
use ccm_testbed::cargo::{Build, program};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "clouds",
    bin_name = "cargo xtask bench",
    about = "Measure calls, seconds and bytes"
)]
struct BenchOptions {
    /// Measure this binary instead of building one, to compare versions.
    #[arg(long, global = true)]
    program: Option<PathBuf>,
    /// Cargo adds this flag to the arguments of every benchmark.
    #[arg(long, global = true, hide = true)]
    bench: bool,
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Nodes that join, an idle cluster, one node in a large project.
    Nodes(nodes::NodesOptions),
    /// Nodes that are not ready, nodes whose server was deleted, a leader that ends.
    Lifecycle(lifecycle::LifecycleOptions),
    /// A small cluster on any cloud, from its first node to its last Service.
    Life(life::LifeOptions),
    /// Services from creation to deletion, and nodes that their load balancers follow.
    Services(services::ServicesOptions),
    /// Routes to the nodes' Pods: all created, one node replaced, nothing to do, a restart.
    Routes(routes::RoutesOptions),
    /// The process: start, end, memory, size of the binary.
    Process(process::ProcessOptions),
}

fn main() -> Result<()> {
    let options = BenchOptions::parse();
    let cloud = match &options.benchmark {
        Benchmark::Life(options) => &options.cloud,
        Benchmark::Nodes(options) => &options.cloud,
        _ => "openstack",
    };
    let program = program(options.program.as_ref(), cloud, Build::Release)?;
    let runtime = tokio::runtime::Runtime::new()?;
    match &options.benchmark {
        Benchmark::Nodes(options) => runtime.block_on(nodes::run(options, &program)),
        Benchmark::Lifecycle(options) => runtime.block_on(lifecycle::run(options, &program)),
        Benchmark::Life(options) => runtime.block_on(life::run(options, &program)),
        Benchmark::Services(options) => runtime.block_on(services::run(options, &program)),
        Benchmark::Routes(options) => runtime.block_on(routes::run(options, &program)),
        Benchmark::Process(options) => runtime.block_on(process::run(options, &program)),
    }
}

/// Prints a line about the progress, on standard error.
fn say(line: &str) {
    // A closed standard error does not end the benchmark.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a line of the result, on standard output.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
