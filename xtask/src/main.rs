//! Everything a newcomer or CI runs: `cargo xtask demo`, `test`, `sweep`, `bench`, `docs`, `image`, `release`.
//!
//! Each command has its own set-up: it builds or installs its requirements into `~/.cache/ccm` (or `$CCM_CACHE_DIR`), prints
//! one line about each, and uses them again the next time.

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
    /// Watch nodes being initialized on a real control plane, from a simulated or a real cloud.
    Demo(demo::DemoOptions),
    /// Run everything that CI runs, in CI's order.
    Test(test::TestOptions),
    /// Kill the program at every call of a scenario, or run it in storms of faults.
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
    /// Build all files of a release, in one folder.
    Release(release::ReleaseOptions),
    /// List features of the newest releases of upstream that this project does not have.
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

/// Runs the benchmarks in the profile of the tests, which shares their dependencies. The measured program is a release build.
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

/// Prints a line about the progress, on standard error.
pub(crate) fn say(line: &str) {
    // A closed standard error does not end the command.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a line of the result, on standard output.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
