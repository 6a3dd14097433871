//! Everything CI runs, in its order. Stops at the first step that fails.

use std::time::Instant;

use anyhow::Result;
use ccm_testbed::openstack_real::OpenStack;
use clap::Args;

use crate::{
    cargo::{Build, build_binary, cargo, run as execute},
    demo::{self, DemoOptions},
    docs, say,
};

#[derive(Args, Debug)]
pub(crate) struct TestOptions {
    /// Leave out the tests against a real OpenStack (minutes, root, Debian).
    #[arg(long)]
    quick: bool,

    /// Also what takes long: on the real OpenStack every recorded Service is played, not five of them.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
}

/// The environment variable that lets tests start a real OpenStack. Without it they would install packages on the
/// machine of somebody who only typed `cargo test`.
const REAL_OPENSTACK: &str = "CCM_TEST_OPENSTACK_REAL";

/// The environment variable that asks for all of what takes long.
const FULL: &str = "CCM_TEST_FULL";

/// Servers that the real cloud starts with.
const REAL_SERVERS: u32 = 6;

/// Every set of features that is built on its own: none, each cloud, all.
const FEATURE_SETS: [&[&str]; 3] = [
    &[],
    &["--features", "openstack"],
    &["--features", "all-providers"],
];

pub(crate) fn run(options: &TestOptions) -> Result<()> {
    step("format", || execute(&mut cargo(&["fmt", "--all", "--check"])))?;
    for features in FEATURE_SETS {
        let name = format!("clippy {}", features.last().unwrap_or(&"without features"));
        step(&name, || {
            let mut command = cargo(&["clippy", "--locked", "--all-targets"]);
            execute(command.args(features).args(["--", "-D", "warnings"]))
        })?;
    }
    step("clippy of the workspace", || {
        let args = [
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ];
        execute(&mut cargo(&args))
    })?;
    step("tests without a cloud", || {
        // Cargo builds examples only along with all tests.
        execute(&mut cargo(&["build", "--locked", "--example", "out_of_tree"]))?;
        let args = ["test", "--locked", "--test", "registry", "--test", "out_of_tree"];
        execute(&mut cargo(&args))
    })?;
    step("tests", || tests(options))?;
    step("demo", || {
        let program = build_binary("all-providers", Build::Dev)?;
        demo::run(&DemoOptions {
            nodes: Some(50),
            once: true,
            program: Some(program),
            ..DemoOptions::default()
        })
    })?;
    step("documentation", || {
        let mut command = cargo(&["doc", "--locked", "--workspace", "--all-features", "--no-deps"]);
        execute(command.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    step("licences and sources of dependencies", deny)?;
    step("generated documents", || {
        docs::run(&docs::DocsOptions { check: true })
    })
}

fn tests(options: &TestOptions) -> Result<()> {
    let mut command = cargo(&[
        "test",
        "--locked",
        "--workspace",
        "--all-features",
        "--no-fail-fast",
    ]);
    if options.full {
        command.env(FULL, "1");
    } else {
        command.env_remove(FULL);
    }
    let available = if options.quick {
        Err("--quick".to_owned())
    } else {
        OpenStack::available()
    };
    let runtime = tokio::runtime::Runtime::new()?;
    // Held during all the tests: those of each crate join the one that runs.
    let cloud = match available {
        Ok(()) => {
            say("starting a real OpenStack for the tests (installed on first use, some minutes)");
            command.env(REAL_OPENSTACK, "1");
            Some(runtime.block_on(OpenStack::start(REAL_SERVERS))?)
        }
        Err(reason) => {
            command.env_remove(REAL_OPENSTACK);
            say(&format!("tests against a real OpenStack are left out: {reason}"));
            None
        }
    };
    let outcome = execute(&mut command);
    match cloud {
        Some(cloud) => outcome.and(runtime.block_on(cloud.stop())),
        None => outcome,
    }
}

fn deny() -> Result<()> {
    let tools = ccm_testbed::cache::dir()?.join("tools");
    let program = tools.join("bin/cargo-deny");
    if !program.exists() {
        say("installing cargo-deny, which checks the licences of dependencies (some minutes, once)");
        let mut install = cargo(&[
            "install",
            "--quiet",
            "--locked",
            "--debug",
            "cargo-deny",
            "--root",
        ]);
        // In a folder of its own, or it would be built among our results.
        install.arg(&tools).env("CARGO_TARGET_DIR", tools.join("target"));
        execute(&mut install)?;
        let _ = std::fs::remove_dir_all(tools.join("target"));
    }
    let mut command = std::process::Command::new(program);
    command.args([
        "--all-features",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]);
    execute(command.current_dir(crate::cargo::root()))
}

fn step(name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    say(&format!("== {name}"));
    let began = Instant::now();
    run()?;
    say(&format!(
        "== {name}: ok after {:.0} s",
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}
