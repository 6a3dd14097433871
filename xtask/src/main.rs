//! Everything a newcomer or CI runs: `cargo xtask demo`, `test`, `sweep`, `bench`, `docs`.
//!
//! Each command brings its own set-up: what it needs it builds or installs into `~/.cache/ccm` (or
//! `$CCM_CACHE_DIR`), says so in one line, and finds it there the next time.

mod demo;
mod docs;
mod sweep;
mod test;
mod tools;

use std::{io::Write, process::ExitCode};

use ccm_testbed::cargo::{cargo, run};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    about = "Demo, tests, benchmarks and generated documents, with all their set-up"
)]
struct CommandLine {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Watch nodes being initialised on a real control plane, from a simulated or a real cloud.
    Demo(demo::DemoOptions),
    /// Run everything that CI runs, in CI's order.
    Test(test::TestOptions),
    /// Kill the program at every call of a scenario, or play it in storms of faults.
    Sweep(sweep::SweepOptions),
    /// Measure calls, seconds and bytes (benches/).
    #[command(disable_help_flag = true)]
    Bench {
        /// The benchmark and its options; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Write the generated documents, docs/reference/*, and check the examples; or build docs/ as a site.
    Docs(docs::DocsOptions),
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().task {
        Task::Demo(options) => demo::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Sweep(options) => sweep::run(&options),
        Task::Bench { arguments } => bench(&arguments),
        Task::Docs(options) => docs::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmarks in the profile of the tests, which shares their dependencies: what is measured is a release build.
fn bench(arguments: &[String]) -> anyhow::Result<()> {
    let mut command = cargo(&[
        "bench",
        "--profile",
        "dev",
        "--features",
        "openstack",
        "--bench",
        "clouds",
        "--",
    ]);
    run(command.args(arguments))
}

/// A line about what is being done, on standard error.
pub(crate) fn say(line: &str) {
    // There is nobody left to tell if this fails.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A line of the result, on standard output.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
