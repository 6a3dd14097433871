//! Child processes: runs them, sends signals, and reads the ends of their logs for error messages.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{LazyLock, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};

/// Number of log lines in an error message.
const TAIL_LINES: usize = 15;

/// The last lines of a log file, for an error message.
pub(crate) fn log_tail(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default();
    format!("end of {}:\n{}", path.display(), tail.join("\n"))
}

/// Opens a log file of a child for appending, so that a restart keeps earlier lines.
pub(crate) fn open_log(path: &Path) -> Result<fs::File> {
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Runs a command to its end with its output in a log file. The command is killed when this process ends.
pub(crate) fn run_logged(command: &Command, log: &Path) -> Result<()> {
    let status = spawn_tied(command, open_log(log)?)?.wait()?;
    if !status.success() {
        bail!("{} failed ({status}); {}", command.get_program().display(), log_tail(log));
    }
    Ok(())
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn run_captured(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        // Some programs print errors as part of their results.
        let printed = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
        let error = printed.iter().map(|text| text.trim()).find(|text| !text.is_empty());
        bail!("{program} failed ({}): {}", output.status, error.unwrap_or_default());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} did not print UTF-8"))
}

/// A child process. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts a program with its output in a log. It is also killed when this process ends.
    pub(crate) fn start(command: &Command, log: &Path) -> Result<Self> {
        Ok(Self(spawn_tied(command, open_log(log)?)?))
    }

    /// The process ID, also after its end.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// The exit status, if the program has ended.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }

    /// Sends a signal, by its name without `SIG`. The shell's `kill` is on every system and needs no unsafe code.
    pub(crate) fn signal(&self, name: &str) -> Result<()> {
        let script = "kill -\"$1\" \"$2\"";
        let id = self.id().to_string();
        run_captured(Command::new("sh").args(["-c", script, "sh", name, &id])).map(drop)
    }

    /// Terminates the program (SIGTERM).
    ///
    /// # Errors
    /// When it has ended already.
    pub fn terminate(&self) -> Result<()> {
        self.signal("TERM")
    }

    /// Kills the program (SIGKILL) unless it has ended, and waits for its end.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// When it still runs after the time limit. It is then killed.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            if Instant::now() >= end {
                self.kill()?;
                bail!("process {} still ran after {limit:?}", self.id());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl From<Child> for Running {
    fn from(child: Child) -> Self {
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have already ended.
        let _ended = self.kill();
    }
}

type Job = (Command, mpsc::Sender<std::io::Result<Child>>);

/// Starts a program with its output in a log. It is killed when this process ends, also by SIGKILL.
///
/// The kernel sends that signal when the *thread* that started the child ends. Therefore one thread, which never ends, starts
/// all children. Without `setpriv`, the program starts without this signal.
fn spawn_tied(command: &Command, log: fs::File) -> Result<Child> {
    static JOBS: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let jobs = JOBS.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        thread::spawn(move || {
            while let Ok((mut command, answer)) = queue.recv() {
                // Fails only if the caller no longer waits for the result.
                let _ = answer.send(command.spawn());
            }
        });
        jobs
    });
    let mut tied = tie(command);
    let err = log.try_clone()?;
    tied.stdin(Stdio::null()).stdout(log).stderr(err);
    let (answer, result) = mpsc::channel();
    jobs.send((tied, answer))
        .map_err(|_| anyhow!("the thread that starts processes has ended"))?;
    result
        .recv()
        .context("the thread that starts processes has ended")?
        .with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// The command, started through `setpriv`, which executes it with the same process ID.
fn tie(command: &Command) -> Command {
    static HAS_SETPRIV: LazyLock<bool> = LazyLock::new(|| {
        let version = Command::new("setpriv").arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    });
    let mut tied = if *HAS_SETPRIV {
        let mut tied = Command::new("setpriv");
        tied.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program());
        tied
    } else {
        Command::new(command.get_program())
    };
    tied.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(name, value),
            None => tied.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        tied.current_dir(dir);
    }
    tied
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn an_error_contains_the_end_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let error = run_logged(Command::new("sh").args(["-c", "seq 100; echo broken >&2; exit 3"]), &log)
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.ends_with("99\n100\nbroken"), "{error}");
        assert!(!error.contains("\n50\n"), "{error}");
    }

    #[tokio::test]
    async fn terminate_reaches_a_tied_child() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Running::start(Command::new("sleep").arg("100"), &dir.path().join("log")).unwrap();
        child.terminate().unwrap();
        assert!(!child.wait(Duration::from_secs(10)).await.unwrap().success());
    }
}
