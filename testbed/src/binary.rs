//! Runs the program under test as a child process.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::process::{self, Running};

/// Beginnings of the variables that configure a cloud.
const CLOUD_VARIABLES: [&str; 8] = [
    "AWS_",
    "DO_",
    "OS_",
    "PUBLIC_ACCESS_",
    "DEFAULT_LB_TYPE",
    "METRICS_ADDR",
    "DEBUG_ADDR",
    "REGION",
];

const PORT_FLAG: &str = "--secure-port";
const OPEN_PATHS_FLAG: &str = "--authorization-always-allow-paths";

/// The default paths that [`Ccm::get`] may read without credentials.
pub const OPEN_PATHS: &str = "/healthz,/readyz,/livez,/metrics,/statusz";

/// How to start the program.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The binary.
    pub program: PathBuf,
    /// The arguments. `--secure-port` with a free port, `--bind-address=127.0.0.1` and [`OPEN_PATHS`] are added if missing.
    pub args: Vec<String>,
    /// Variables added to the environment.
    pub envs: Vec<(String, String)>,
    /// The file to which its output is appended.
    pub log: PathBuf,
}

/// A running cloud-controller-manager. It is killed when this value is dropped or this process ends.
#[derive(Debug)]
pub struct Ccm {
    process: Running,
    port: u16,
    log: PathBuf,
    http: reqwest::Client,
}

impl Ccm {
    /// Starts the program. [`Self::wait_healthy`] waits until it is healthy.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(launch: &Launch) -> Result<Self> {
        let mut args = launch.args.clone();
        let given = args.iter().find_map(|a| a.strip_prefix(PORT_FLAG)?.strip_prefix('=').map(str::to_owned));
        let port = match given {
            Some(port) => port.parse().with_context(|| format!("invalid port {port:?}"))?,
            None => {
                let port = free_port()?;
                args.push(format!("{PORT_FLAG}={port}"));
                port
            }
        };
        if !args.iter().any(|a| a.starts_with("--bind-address")) {
            args.push("--bind-address=127.0.0.1".to_owned());
        }
        if !args.iter().any(|a| a.starts_with(OPEN_PATHS_FLAG)) {
            args.push(format!("{OPEN_PATHS_FLAG}={OPEN_PATHS}"));
        }
        let mut command = Command::new(&launch.program);
        // The shell may have the credentials of a real cloud.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if CLOUD_VARIABLES.iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        // No server under test has a certificate that it verifies. To parse them takes most of a start without optimization.
        command.env_remove("SSL_CERT_DIR");
        command.args(&args).envs(launch.envs.iter().cloned());
        // The program's certificate is self-signed and cannot be verified.
        let http = crate::http::client()
            .danger_accept_invalid_certs(true)
            .timeout(Duration::from_secs(60))
            .build()?;
        Ok(Self {
            process: Running::start(&command, &launch.log)?,
            port,
            log: launch.log.clone(),
            http,
        })
    }

    /// The process ID, also after its end.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The port of its HTTPS server on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The file with its output.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The output so far.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<String> {
        let bytes = fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// [`Self::get`] with a bearer token.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get_as(&self, token: &str, path: &str) -> Result<(u16, String)> {
        let url = format!("https://127.0.0.1:{}{path}", self.port);
        let response = self.http.get(url).bearer_auth(token).send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// GET of a path of its HTTPS server, such as `/metrics`: the status and the body.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let response = self.http.get(format!("https://127.0.0.1:{}{path}", self.port)).send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Waits until a path answers with 200, in general `/healthz` or `/readyz`.
    ///
    /// # Errors
    /// When that does not happen in time, or the program ends; with the end of its log.
    pub async fn wait_healthy(&mut self, path: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let answer = self.get(path).await;
            if matches!(answer, Ok((200, _))) {
                return Ok(());
            }
            if let Some(status) = self.exit_status()? {
                bail!("the program ended ({status}); {}", process::log_tail(&self.log));
            }
            if Instant::now() >= end {
                bail!("{path} is not healthy after {limit:?}: {answer:?}; {}", process::log_tail(&self.log));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The exit status, if the program has ended.
    ///
    /// # Errors
    /// When the status cannot be read.
    pub fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        self.process.exit_status()
    }

    /// Kills the program (SIGKILL).
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Terminates the program (SIGTERM).
    ///
    /// # Errors
    /// When it has ended already.
    pub fn terminate(&self) -> Result<()> {
        self.process.terminate()
    }

    /// Interrupts the program (SIGINT).
    ///
    /// # Errors
    /// When it has ended already.
    pub fn interrupt(&self) -> Result<()> {
        self.process.signal("INT")
    }

    /// Stops all threads (SIGSTOP) until [`Self::resume`].
    ///
    /// # Errors
    /// When it has ended already.
    pub fn pause(&self) -> Result<()> {
        self.process.signal("STOP")
    }

    /// Continues the program (SIGCONT) after [`Self::pause`].
    ///
    /// # Errors
    /// When it has ended already.
    pub fn resume(&self) -> Result<()> {
        self.process.signal("CONT")
    }

    /// Waits for the end of the program.
    ///
    /// # Errors
    /// When it still runs after the time limit. It is then killed.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.process.wait(limit).await
    }

    /// Resident memory in KiB.
    ///
    /// # Errors
    /// When it does not run.
    pub fn rss_kib(&self) -> Result<u64> {
        self.memory("VmRSS:")
    }

    /// Peak resident memory since the start, in KiB.
    ///
    /// # Errors
    /// When it does not run.
    pub fn peak_rss_kib(&self) -> Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        parse_memory(&text, field).with_context(|| format!("no {field} in {path}: the program has ended"))
    }
}

fn parse_memory(status: &str, field: &str) -> Option<u64> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(field))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()
}

/// A free port. The program binds it later, so that a conflict is a failed start.
///
/// # Errors
/// When no port is free.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn shell(script: &str, dir: &Path) -> Ccm {
        let args = vec!["-c".to_owned(), script.to_owned(), "sh".to_owned()];
        Ccm::start(&Launch {
            program: "sh".into(),
            args,
            envs: Vec::new(),
            log: dir.join("log"),
        })
        .unwrap()
    }

    #[tokio::test]
    async fn the_port_is_passed_and_output_is_logged() {
        let dir = tempfile::tempdir().unwrap();
        let mut ccm = shell("echo \"$@\"; echo bad >&2; exit 3", dir.path());
        assert_eq!(ccm.wait(Duration::from_secs(10)).await.unwrap().code(), Some(3));
        let expected = format!(
            "--secure-port={} --bind-address=127.0.0.1 {OPEN_PATHS_FLAG}={OPEN_PATHS}\nbad\n",
            ccm.port()
        );
        assert_eq!(ccm.log().unwrap(), expected);
        assert!(ccm.rss_kib().is_err());
    }

    #[tokio::test]
    async fn the_wait_for_health_ends_when_the_program_ends() {
        let dir = tempfile::tempdir().unwrap();
        let mut ccm = shell("echo no such flag; exit 2", dir.path());
        let error = ccm.wait_healthy("/healthz", Duration::from_secs(60)).await.unwrap_err().to_string();
        assert!(error.contains("no such flag"), "{error}");
    }

    #[tokio::test]
    async fn memory_is_read_while_it_runs() {
        let dir = tempfile::tempdir().unwrap();
        let mut ccm = shell("exec sleep 100", dir.path());
        assert!(ccm.peak_rss_kib().unwrap() > 0);
        ccm.terminate().unwrap();
        assert!(!ccm.wait(Duration::from_secs(10)).await.unwrap().success());
    }

    #[test]
    fn memory_is_parsed_from_proc_status() {
        let status = "Name:\tx\nVmHWM:\t   61440 kB\nVmRSS:\t   51200 kB\n";
        assert_eq!(parse_memory(status, "VmHWM:"), Some(61_440));
        assert_eq!(parse_memory(status, "VmRSS:"), Some(51_200));
        assert_eq!(parse_memory("Name:\tx\n", "VmRSS:"), None);
    }
}
