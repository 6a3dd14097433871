//! Everything CI runs. Steps that mostly wait run beside steps that compute: the real cloud is installed and started while
//! the tests are compiled. The image and other programs are built, and documents and licenses are checked, while the tests
//! wait for servers. The first step that fails ends the run, after the steps beside it have ended.

mod programs;

use std::{env, iter, path::Path, process::Command, thread, time::Instant};

use anyhow::{Context, Result, anyhow, bail};
use ccm_testbed::{
    cargo::{cargo, root, run as execute},
    controlplane::ControlPlane,
    openstack_real::OpenStack,
};
use clap::Args;

use programs::Program;

use crate::{
    demo::{self, DemoOptions},
    docs, image, say, tools,
};

#[derive(Args, Debug)]
pub(crate) struct TestOptions {
    /// Leave out the tests against a real OpenStack (minutes, root, Debian).
    #[arg(long)]
    quick: bool,

    /// Also run long tests: on the real OpenStack every recorded Service is played, not five of them.
    #[arg(long, conflicts_with = "quick")]
    full: bool,

    /// Test one cloud, such as `openstack`, and the code that it shares with the others.
    #[arg(long, value_name = "NAME")]
    cloud: Option<String>,
}

/// The environment variable that lets tests start a real OpenStack. Without it, `cargo test`
/// alone would install packages on the machine.
const REAL_OPENSTACK: &str = "CCM_TEST_OPENSTACK_REAL";

/// The environment variable that enables long tests.
const FULL: &str = "CCM_TEST_FULL";

/// Servers that the real cloud starts with.
const REAL_SERVERS: u32 = 6;

/// The clouds that are tested.
struct Clouds {
    chosen: Vec<String>,
    others: Vec<String>,
}

impl Clouds {
    fn find(chosen: Option<&str>) -> Result<Self> {
        let all = crate::clouds()?;
        let Some(chosen) = chosen else {
            return Ok(Self {
                chosen: all,
                others: Vec::new(),
            });
        };
        if !all.iter().any(|name| name == chosen) {
            bail!("unknown cloud {chosen:?}; the clouds are {}", all.join(", "));
        }
        let (chosen, others) = all.into_iter().partition(|name| name == chosen);
        Ok(Self { chosen, others })
    }

    fn contain(&self, name: &str) -> bool {
        self.chosen.iter().any(|chosen| chosen == name)
    }

    /// All packages except those of untested clouds, as arguments of cargo. Their dependencies get the features that all of them
    /// need together. One package alone would select other features, and its dependencies would be compiled once more.
    fn packages(&self) -> Vec<String> {
        let others = self.others.iter();
        let excluded = others.map(|name| format!("--exclude=ccm-provider-{name}"));
        iter::once("--workspace".to_owned()).chain(excluded).collect()
    }

    /// The packages and features with everything that is tested, as arguments of cargo.
    fn selection(&self) -> Vec<String> {
        let mut arguments = self.packages();
        if self.others.is_empty() {
            arguments.push("--all-features".to_owned());
            return arguments;
        }
        let features: Vec<_> =
            self.chosen.iter().map(|name| format!("cloud-controller-manager/{name}")).collect();
        arguments.extend(["--features".to_owned(), features.join(",")]);
        arguments
    }
}

pub(crate) fn run(options: &TestOptions) -> Result<()> {
    let began = Instant::now();
    let clouds = Clouds::find(options.cloud.as_deref())?;
    step("format", || execute(&mut cargo(&["fmt", "--all", "--check"])))?;
    // Before the real cloud is installed: Debian's tools run one at a time.
    let has_image = can_build_image(&clouds);
    let program = thread::scope(|scope| {
        let real = scope.spawn(|| real_openstack(options, &clouds));
        let (programs, program) = step("building the tests", || {
            let mut command = checked_cargo(&["test", "--locked", "--no-run"]);
            programs::build(command.args(clouds.selection()))
        })?;
        let real = joined(real.join())?;
        let (clouds, built) = (&clouds, program.clone());
        let image_tests = has_image.then(|| programs.clone());
        let beside = scope.spawn(move || {
            checks(clouds, &built)?;
            image_tests.map_or(Ok(()), |programs| test_image(&programs))
        });
        let switches = [
            (FULL, options.full.then(|| "1".into())),
            (REAL_OPENSTACK, real.is_some().then(|| "1".into())),
        ];
        let tests = step("tests", || programs::run(programs, &switches));
        let beside = joined(beside.join());
        let stopped = match real {
            Some(cloud) => tokio::runtime::Runtime::new()?.block_on(cloud.stop()),
            None => Ok(()),
        };
        let errors: Vec<_> = [tests, beside, stopped]
            .into_iter()
            .filter_map(Result::err)
            .map(|error| format!("{error:#}"))
            .collect();
        if !errors.is_empty() {
            bail!("{}", errors.join("; "));
        }
        Ok(program)
    })?;
    step("demo", || {
        demo::run(&DemoOptions {
            cloud: "openstack".to_owned(),
            nodes: Some(50),
            once: true,
            program: Some(program),
            ..DemoOptions::default()
        })
    })?;
    say(&format!("== all: ok after {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

fn joined<T>(result: thread::Result<Result<T>>) -> Result<T> {
    result.unwrap_or_else(|_| Err(anyhow!("a step panicked")))
}

/// A cargo command whose compiler for this workspace is Clippy, so that code is checked as it is built. `cargo clippy` would
/// compile all dependencies once more.
fn checked_cargo(args: &[&str]) -> Command {
    let mut command = cargo(args);
    command.envs([
        ("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"),
        ("CLIPPY_ARGS", "-Dwarnings"),
    ]);
    command
}

/// Builds and tests the program without a cloud and with each cloud alone, and builds the benchmarks.
fn other_builds(clouds: &Clouds) -> Result<()> {
    step("tests without a cloud", || {
        // Cargo builds examples only along with all tests.
        let example = other_build(&["build", "--locked", "--example", "out_of_tree"]);
        execute(example?.args(clouds.packages()))?;
        let tests = other_build(&["test", "--locked", "--test", "registry", "--test", "out_of_tree"]);
        execute(tests?.args(clouds.packages()))
    })?;
    for cloud in &clouds.chosen {
        step(&format!("tests of the registry with {cloud} alone"), || {
            let features = format!("cloud-controller-manager/{cloud}");
            let tests = other_build(&["test", "--locked", "--test", "registry", "--features", &features]);
            execute(tests?.args(clouds.packages()))
        })?;
    }
    if clouds.others.is_empty() {
        step("building the benchmarks", || {
            let benchmarks = other_build(&["build", "--locked", "--bench", "clouds"]);
            execute(benchmarks?.args(clouds.selection()))
        })?;
    }
    Ok(())
}

/// A cargo command that does not replace the program under test. It uses what has been compiled for that program.
fn other_build(args: &[&str]) -> Result<Command> {
    let executable = env::current_exe()?;
    let compiled =
        executable.ancestors().nth(2).context("this program is not in a target folder of cargo")?;
    let mut command = checked_cargo(args);
    command
        .env("CARGO_BUILD_BUILD_DIR", compiled)
        .env("CARGO_TARGET_DIR", compiled.join("other-builds"));
    Ok(command)
}

/// Builds an image and runs its tests.
fn test_image(programs: &[Program]) -> Result<()> {
    let image = step("building an image", || image::for_test("openstack"))?;
    step("tests of the image", || programs::test_image(programs, &image))
}

/// Runs the steps that do not need servers, while the tests wait for theirs.
fn checks(clouds: &Clouds, program: &Path) -> Result<()> {
    // Tests wait for it. On a new machine it takes minutes, which nothing beside it should prolong.
    ControlPlane::build()?;
    other_builds(clouds)?;
    step("documentation of the code and its examples", || {
        let mut command = checked_cargo(&["test", "--locked", "--doc"]);
        command.env("RUSTDOC", root().join("xtask/rustdoc.sh"));
        execute(command.args(clouds.selection()))
    })?;
    step("licenses and sources of dependencies", deny)?;
    if clouds.others.is_empty() {
        step("generated documents and examples", || {
            docs::run(&docs::DocsOptions {
                check: true,
                site: false,
                program: Some(program.to_owned()),
            })
        })?;
    }
    step("documentation as a site", docs::build_site)
}

/// The real cloud of the tests, installed on first use. It runs during all tests, and those of each crate use it.
fn real_openstack(options: &TestOptions, clouds: &Clouds) -> Result<Option<OpenStack>> {
    let available = if options.quick {
        Err("--quick".to_owned())
    } else {
        is_openstack_available(clouds)
    };
    if let Err(reason) = available {
        say(&format!("tests against a real OpenStack are left out: {reason}"));
        return Ok(None);
    }
    say("starting a real OpenStack for the tests (installed on first use, some minutes)");
    let runtime = tokio::runtime::Runtime::new()?;
    let cloud = runtime.block_on(OpenStack::start(REAL_SERVERS));
    cloud.context("cannot start a real OpenStack").map(Some)
}

/// Whether a real OpenStack is wanted and can run here, or the reason why not.
fn is_openstack_available(clouds: &Clouds) -> Result<(), String> {
    if !clouds.contain("openstack") {
        return Err("another cloud is tested".to_owned());
    }
    OpenStack::available()
}

/// Installs the packages of Debian that build images. Returns whether they are installed.
fn can_build_image(clouds: &Clouds) -> bool {
    let installed = is_openstack_available(clouds)
        .and_then(|()| image::install_packages(&[]).map_err(|error| format!("{error:#}")));
    if let Err(reason) = &installed {
        say(&format!("tests of the image are left out: {reason}"));
    }
    installed.is_ok()
}

fn deny() -> Result<()> {
    let mut command = Command::new(tools::compiled("cargo-deny")?);
    command.args([
        "--all-features",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]);
    execute(command.current_dir(root()))
}

fn step<T>(name: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    say(&format!("== {name}"));
    let began = Instant::now();
    let result = run().with_context(|| format!("step {name:?} failed"))?;
    say(&format!("== {name}: ok after {:.0} s", began.elapsed().as_secs_f64()));
    Ok(result)
}
