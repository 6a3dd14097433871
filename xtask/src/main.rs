//! Everything a newcomer or CI runs: `cargo xtask demo`, `test`, `sweep`, `bench`, `docs`, `image`, `release`.
//!
//! Each command brings its own set-up: what it needs it builds or installs into `~/.cache/ccm` (or
//! `$CCM_CACHE_DIR`), says so in one line, and finds it there the next time.

mod demo;
mod docs;
mod image;
mod release;
mod sweep;
mod test;
mod tools;
mod upstream;

use std::{io::Write, process::ExitCode};

use ccm_testbed::{
    cargo::{cargo, root, run},
    golang,
};
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
    /// Build container images, without Docker or a registry.
    Image(image::ImageOptions),
    /// Build everything that a release consists of, in one folder.
    Release(release::ReleaseOptions),
    /// List what the newest releases of the Go programs have and this project does not.
    Upstream,
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().task {
        Task::Demo(options) => demo::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Sweep(options) => sweep::run(&options),
        Task::Bench { arguments } => bench(&arguments),
        Task::Docs(options) => docs::run(&options),
        Task::Image(options) => image::run(&options),
        Task::Release(options) => release::run(&options),
        Task::Upstream => upstream::run(),
    };
    match result.and(golang::remove_objects()) {
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

/// The clouds: the folders of `providers/`.
pub(crate) fn clouds() -> anyhow::Result<Vec<String>> {
    let mut clouds = Vec::new();
    for entry in std::fs::read_dir(root().join("providers"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "core" && entry.path().join("Cargo.toml").exists() {
            clouds.push(name);
        }
    }
    clouds.sort();
    Ok(clouds)
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
