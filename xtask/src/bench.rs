//! `cargo xtask bench`: calls, seconds and bytes, on one machine in one run.

mod document;
mod lifecycle;
mod measure;
mod nodes;
mod process;
mod routes;
mod services;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::cargo::{Build, program};

#[derive(Args, Debug)]
pub(crate) struct BenchOptions {
    /// Measure this binary instead of building one, to compare versions.
    #[arg(long, global = true)]
    program: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Nodes that join, an idle cluster, one node in a large project.
    Nodes(nodes::NodesOptions),
    /// Nodes that are not ready, nodes whose server is gone, a leader that ends.
    Lifecycle(lifecycle::LifecycleOptions),
    /// Services that come, stay and go, and nodes that their load balancers follow.
    Services(services::ServicesOptions),
    /// Routes to the nodes' Pods: all made, one node replaced, nothing to do, a restart.
    Routes(routes::RoutesOptions),
    /// The process: start, end, memory, size of the binary.
    Process(process::ProcessOptions),
}

pub(crate) fn run(options: &BenchOptions) -> Result<()> {
    let program = program(options.program.as_ref(), Build::Release)?;
    let runtime = tokio::runtime::Runtime::new()?;
    match &options.what {
        What::Nodes(options) => runtime.block_on(nodes::run(options, &program)),
        What::Lifecycle(options) => runtime.block_on(lifecycle::run(options, &program)),
        What::Services(options) => runtime.block_on(services::run(options, &program)),
        What::Routes(options) => runtime.block_on(routes::run(options, &program)),
        What::Process(options) => runtime.block_on(process::run(options, &program)),
    }
}
