//! Runs cargo in the checkout.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::cache::say;

/// The root of the checkout.
pub fn root() -> PathBuf {
    // This crate is one level below.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// A cargo command in the root of the checkout.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs a command, and fails if the command fails.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command.status().with_context(|| format!("could not run `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// Runs a command and returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not run `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` failed ({})", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The build profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The dev profile, for a fast build.
    Dev,
    /// The release profile, for measurements.
    Release,
}

/// The given binary, else a new build with this cloud.
pub fn program(given: Option<&PathBuf>, cloud: &str, build: Build) -> Result<PathBuf> {
    if let Some(program) = given {
        return Ok(program.clone());
    }
    let time = match build {
        Build::Dev => "(minutes the first time)",
        Build::Release => "as a release (ten minutes the first time)",
    };
    say(format!("building the program with --features {cloud} {time}"));
    build_binary(cloud, build)
}

/// Builds the binary with these features and returns its path.
fn build_binary(features: &str, build: Build) -> Result<PathBuf> {
    let mut args = vec![
        "build",
        "--bin",
        "cloud-controller-manager",
        "--features",
        features,
    ];
    if build == Build::Release {
        args.push("--release");
    }
    args.push("--message-format=json-render-diagnostics");
    let printed = output(&mut cargo(&args))?;
    let executable = printed.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    executable.context("cargo did not report the path of the binary")
}
