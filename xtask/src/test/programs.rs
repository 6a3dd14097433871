//! Builds the test programs and runs several at once: most of them wait for servers most of the time.

use std::{
    collections::VecDeque,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use ccm_testbed::cargo::output;

use crate::{print, say};

/// Test programs that run at the same time.
const PROGRAMS: usize = 3;

/// Tests of a program that run at the same time. More than there are cores, because they wait.
const THREADS: &str = "3";

/// The most seconds that a program may take: several times those of the longest one.
const LIMIT: &str = "2400";

/// The environment variable with the image that is tested.
const IMAGE: &str = "CCM_TEST_IMAGE";

/// The longest programs start first, so that the run does not end with a wait for one of them.
const LONG: [&str; 10] = [
    "every_cloud",
    "framework",
    "openstack",
    "balancing",
    "ccm_provider_aws",
    "ccm_provider_openstack",
    "parity_aws",
    "parity",
    "chart",
    "provider",
];

/// The tests of a program that run together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// All except those of the other parts.
    Main,
    /// The tests against the real cloud. They share one cloud, and each compares the objects in it. So they run one program
    /// after the other, with as many threads as there are cores.
    Real,
    /// The tests of the image, which is built while the other tests run.
    Image,
}

/// A compiled test program, or a part of its tests.
#[derive(Clone, Debug)]
pub(super) struct Program {
    name: String,
    executable: PathBuf,
    /// The folder of its package. Its tests read files relative to it.
    folder: PathBuf,
    part: Part,
}

/// Builds the test programs with this command of cargo, and returns them with the program under test. Building that program
/// alone would compile the clouds' SDKs with other features once more.
///
/// # Errors
/// If something does not compile.
pub(super) fn build(cargo: &mut Command) -> Result<(Vec<Program>, PathBuf)> {
    let messages = output(cargo.arg("--message-format=json-render-diagnostics"))?;
    let mut programs: Vec<_> = messages.lines().filter_map(Program::parse).collect();
    if programs.is_empty() {
        bail!("cargo built no test program");
    }
    programs.sort_by_key(Program::rank);
    let executable = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_ours = message.pointer("/target/name")? == "cloud-controller-manager"
            && message.pointer("/target/kind/0")? == "bin"
            && message.pointer("/profile/test")? == false;
        if !is_ours {
            return None;
        }
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    Ok((programs, executable.context("cargo did not print the path of the binary")?))
}

/// Runs the programs. `switches`: variables that are set to a value, or unset.
///
/// # Errors
/// With the names of the programs in which a test failed.
pub(super) fn run(programs: Vec<Program>, switches: &[(&str, Option<OsString>)]) -> Result<()> {
    say(&format!("running {} test programs, {PROGRAMS} at a time", programs.len()));
    let real = with(Part::Real, &programs);
    let queue = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    let run_one = |program: Program| {
        let passed = program.run(switches).unwrap_or_else(|error| {
            say(&format!("error: {error:#}"));
            false
        });
        if !passed && let Ok(mut failed) = failed.lock() {
            failed.push(program.shown());
        }
    };
    let run_queue = || {
        loop {
            let next = queue.lock().ok().and_then(|mut queue| queue.pop_front());
            match next {
                Some(program) => run_one(program),
                None => return,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..PROGRAMS {
            scope.spawn(run_queue);
        }
        real.into_iter().for_each(run_one);
        run_queue();
    });
    match failed.into_inner() {
        Ok(failed) if failed.is_empty() => Ok(()),
        Ok(failed) => bail!("tests failed in {}", failed.join(", ")),
        Err(_) => bail!("a test program could not be run"),
    }
}

/// Runs the tests of an image.
///
/// # Errors
/// If one failed.
pub(super) fn test_image(programs: &[Program], image: &Path) -> Result<()> {
    for program in with(Part::Image, programs) {
        if !program.run(&[(IMAGE, Some(image.into()))])? {
            bail!("tests failed in {}", program.shown());
        }
    }
    Ok(())
}

/// The programs that have tests of this part.
fn with(part: Part, programs: &[Program]) -> Vec<Program> {
    let parts = programs.iter().map(|program| Program {
        part,
        ..program.clone()
    });
    parts.filter(Program::has_tests).collect()
}

impl Part {
    /// A part of the names of its tests.
    fn filter(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Real => "real",
            Self::Image => "image::",
        }
    }
}

impl Program {
    /// The test program in a line of cargo's messages, if there is one.
    fn parse(line: &str) -> Option<Self> {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = message.get("profile")?.get("test")?.as_bool()?;
        if !is_test {
            return None;
        }
        let executable = message.get("executable")?.as_str()?;
        let manifest = Path::new(message.get("manifest_path")?.as_str()?);
        let target = message.get("target")?;
        // Benchmarks are programs of this kind, too.
        let kinds = target.get("kind")?.as_array()?;
        if kinds.iter().any(|kind| kind == "bench") {
            return None;
        }
        Some(Self {
            name: target.get("name")?.as_str()?.to_owned(),
            executable: executable.into(),
            folder: manifest.parent()?.to_owned(),
            part: Part::Main,
        })
    }

    /// The folder of its package and its name.
    fn shown(&self) -> String {
        let folder = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let part = match self.part {
            Part::Main => "",
            Part::Real => " (real cloud)",
            Part::Image => " (image)",
        };
        format!("{folder} {}{part}", self.name)
    }

    /// Whether the program has tests of its part.
    fn has_tests(&self) -> bool {
        match Command::new(&self.executable).args(["--list", self.part.filter()]).output() {
            Ok(list) => String::from_utf8_lossy(&list.stdout).contains(": test"),
            Err(_) => false,
        }
    }

    /// Its place in the order of starts.
    fn rank(&self) -> usize {
        let long = LONG.iter().position(|name| *name == self.name);
        long.unwrap_or(LONG.len())
    }

    /// Runs its tests and prints their output when they have ended. Returns whether all passed.
    fn run(&self, switches: &[(&str, Option<OsString>)]) -> Result<bool> {
        // The program ends with this process. A test that waits forever is also ended, and the output has its name.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "timeout", "--kill-after=10", LIMIT]);
        if self.part == Part::Real {
            // A session of its own gets as much of the processor from Linux as all other tests together, because the real
            // cloud is slow.
            command.arg("setsid");
        }
        command
            .arg(&self.executable)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null());
        for (variable, value) in switches {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        match self.part {
            Part::Main => {
                for other in [Part::Real, Part::Image] {
                    command.args(["--skip", other.filter()]);
                }
                command.env("RUST_TEST_THREADS", THREADS);
            }
            other => {
                command.arg(other.filter());
            }
        }
        let began = Instant::now();
        let done = command.output().with_context(|| format!("cannot run {}", self.executable.display()))?;
        let took = began.elapsed().as_secs_f64();
        let ended = match done.status.code() {
            Some(124) => " and was ended, because a test did not come to an end",
            _ => "",
        };
        print(&format!(
            "     Ran {} in {took:.0} s{ended}\n{}{}",
            self.shown(),
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr),
        ));
        Ok(done.status.success())
    }
}
