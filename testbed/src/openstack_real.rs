//! A real OpenStack on loopback: Keystone, Nova with a fake hypervisor, Neutron, Octavia, Glance and Placement, installed
//! by the scripts in `tests/openstack-real`.
//!
//! One cloud serves all processes of a user, because it takes most of a minute to start. Each process has a shared lock and
//! a guard process that detects its end. After the last one, the services are stopped and their state is deleted. Tests that
//! share the cloud use different names.

mod calls;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use tokio::sync::OnceCell;

pub use calls::{Call, Mark};

use crate::cache::{self, Kind, Lock, lock_file, say};
use crate::controlplane::blocking;
use crate::process::{run_captured, run_logged};
use crate::rest::{Rest, by_credential};

/// A running cloud with one tenant `k8s`, its network, router and servers `node-1`, `node-2`, ... and a second tenant
/// `other` without objects.
#[derive(Debug)]
pub struct OpenStack {
    scripts: Scripts,
    seed: BTreeMap<String, String>,
    // In this order: the guard, when it sees its input end, waits for the lock.
    guard: Guard,
    _users: Lock,
}

/// A server of the tenant.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    /// The UUID.
    pub id: String,
    /// The name.
    pub name: String,
    /// `ACTIVE`, `SHUTOFF`, ...
    pub status: String,
    /// All addresses.
    pub addresses: Vec<String>,
}

#[derive(Clone, Debug)]
struct Scripts {
    sources: PathBuf,
    dir: PathBuf,
    cache: PathBuf,
}

/// The process that stops the cloud after its last user; its standard input is a pipe from this process.
#[derive(Debug)]
struct Guard {
    child: Child,
}

impl OpenStack {
    /// Whether this machine can run OpenStack. The error is the reason, in one line.
    ///
    /// # Errors
    /// When it cannot: the scripts install Debian packages as root.
    pub fn available() -> Result<(), String> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let uid = status
            .lines()
            .find_map(|l| l.strip_prefix("Uid:"))
            .and_then(|l| l.split_whitespace().nth(1));
        if uid != Some("0") {
            return Err("OpenStack needs Debian packages, and this user is not root".to_owned());
        }
        if !Path::new("/etc/debian_version").exists() {
            return Err("OpenStack needs Debian packages, and this system is not Debian".to_owned());
        }
        if run_captured(Command::new("apt-get").arg("--version")).is_err() {
            return Err("OpenStack needs Debian packages, and apt-get is missing".to_owned());
        }
        Ok(())
    }

    /// The cloud of this process, started on first use; it ends with the process.
    ///
    /// # Errors
    /// The errors of [`Self::start`].
    pub async fn shared(servers: u32) -> Result<&'static Self> {
        static SHARED: OnceCell<OpenStack> = OnceCell::const_new();
        let cloud = SHARED.get_or_try_init(|| Self::start(servers)).await?;
        if cloud.scripts.seeded().is_none_or(|seeded| seeded < servers) {
            cloud.seed_servers(servers).await?;
        }
        Ok(cloud)
    }

    /// Starts the cloud, or uses the running one, and creates missing servers of `node-1` to `node-N`. Installs the cloud if
    /// needed.
    ///
    /// # Errors
    /// When one of the scripts fails; with the end of its output.
    pub async fn start(servers: u32) -> Result<Self> {
        blocking(move || Self::start_blocking(servers)).await
    }

    fn start_blocking(servers: u32) -> Result<Self> {
        let cache = cache::dir()?.join("openstack-real");
        let dir = env::var_os("OSREAL_DIR")
            .filter(|v| !v.is_empty())
            .map_or_else(|| cache.join("cloud"), PathBuf::from);
        cache::make_dir(&cache)?;
        cache::make_dir(&dir)?;
        let scripts = Scripts {
            sources: cache::sources("openstack-real")?,
            dir,
            cache,
        };
        let users_lock = scripts.beside("users.lock");
        // Waits while a guard is stopping the cloud.
        let users = lock_file(&users_lock, Kind::Shared)?;
        let guard = Guard::start(&scripts, &users_lock)?;
        let seed = {
            let _starting = lock_file(&scripts.beside("start.lock"), Kind::Exclusive)?;
            scripts.ensure_running(servers)?;
            parse_env(&fs::read_to_string(scripts.dir.join("seed.env"))?)
        };
        Ok(Self {
            scripts,
            seed,
            guard,
            _users: users,
        })
    }

    async fn seed_servers(&self, servers: u32) -> Result<()> {
        let have: Vec<String> = self.list_servers().await?.into_iter().map(|s| s.name).collect();
        let missing: Vec<String> =
            (1..=servers).map(|i| format!("node-{i}")).filter(|name| !have.contains(name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.servers("create", missing).await?;
        self.scripts.note_seeded(servers)
    }

    /// Releases the cloud and, if this was its last user, waits until it has stopped. Dropping releases it without waiting.
    ///
    /// # Errors
    /// When the guard cannot be waited for.
    pub async fn stop(self) -> Result<()> {
        let Self {
            mut guard,
            _users: users,
            ..
        } = self;
        blocking(move || {
            drop(users);
            drop(guard.child.stdin.take());
            guard.child.wait()?;
            Ok(())
        })
        .await
    }

    /// The cloud configuration of the tenant, with an application credential.
    #[must_use]
    pub fn cloud_conf(&self) -> PathBuf {
        self.scripts.dir.join("cloud.conf")
    }

    /// A session of the tenant, with its application credential.
    ///
    /// # Errors
    /// When the cloud configuration cannot be read, or Keystone refuses the credential.
    pub async fn log_in(&self) -> Result<Rest> {
        let conf = fs::read_to_string(self.cloud_conf()).context("cannot read the cloud configuration")?;
        Rest::log_in(self.auth_url(), &by_credential(&conf)?).await
    }

    /// The cloud configuration with an application credential of the other tenant, which sees no servers.
    #[must_use]
    pub fn other_cloud_conf(&self) -> PathBuf {
        self.scripts.dir.join("cloud-other.conf")
    }

    /// The URL of Keystone (`.../v3`).
    #[must_use]
    pub fn auth_url(&self) -> &str {
        self.seed("OS_AUTH_URL").unwrap_or_default()
    }

    /// An id from the seed: `PROJECT_ID`, `PUBLIC_NET`, `NET`, `SUBNET`, `ROUTER`, `NODE_SG`, `IMAGE`, `FLAVOR`.
    #[must_use]
    pub fn seed(&self, name: &str) -> Option<&str> {
        self.seed.get(name).map(String::as_str)
    }

    /// The directory of its state; logs are in `log`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.scripts.dir
    }

    /// All calls so far, by service. A call is logged after its answer was sent.
    ///
    /// # Errors
    /// When the logs cannot be read.
    pub fn calls(&self) -> Result<Vec<Call>> {
        self.calls_since(&Mark::default())
    }

    /// The present position in the logs, for [`Self::calls_since`].
    ///
    /// # Errors
    /// When the logs cannot be read.
    pub fn mark(&self) -> Result<Mark> {
        calls::mark(&self.scripts.dir.join("log"))
    }

    /// The calls after a position in the logs, by service.
    ///
    /// # Errors
    /// When the logs cannot be read.
    pub fn calls_since(&self, mark: &Mark) -> Result<Vec<Call>> {
        calls::since(&self.scripts.dir.join("log"), mark)
    }

    /// The tenant's servers.
    ///
    /// # Errors
    /// When the cloud does not answer.
    pub async fn list_servers(&self) -> Result<Vec<Server>> {
        self.servers("list", Vec::new()).await
    }

    /// Creates servers and waits until they are active.
    ///
    /// # Errors
    /// When a server does not become active.
    pub async fn create_servers(&self, names: &[&str]) -> Result<Vec<Server>> {
        self.servers("create", owned(names)).await
    }

    /// Deletes servers and waits until they are deleted.
    ///
    /// # Errors
    /// When a server does not exist, or is not deleted.
    pub async fn delete_servers(&self, names: &[&str]) -> Result<Vec<Server>> {
        self.servers("delete", owned(names)).await
    }

    /// Shuts servers off and waits until they are.
    ///
    /// # Errors
    /// When there is no such server, or it does not get there.
    pub async fn stop_servers(&self, names: &[&str]) -> Result<Vec<Server>> {
        self.servers("stop", owned(names)).await
    }

    /// Starts servers that were shut off, and waits until they are active.
    ///
    /// # Errors
    /// When there is no such server, or it does not get there.
    pub async fn start_servers(&self, names: &[&str]) -> Result<Vec<Server>> {
        self.servers("start", owned(names)).await
    }

    async fn servers(&self, verb: &'static str, names: Vec<String>) -> Result<Vec<Server>> {
        let scripts = self.scripts.clone();
        blocking(move || {
            let json = run_captured(scripts.command("servers.sh").arg(verb).args(&names))
                .with_context(|| format!("cannot {verb} servers {names:?}"))?;
            Ok(serde_json::from_str(&json)?)
        })
        .await
    }
}

impl Scripts {
    /// A file next to the state's directory, which is kept when the state is deleted.
    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.dir.clone().into_os_string();
        name.push(format!(".{suffix}"));
        PathBuf::from(name)
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new(self.sources.join(script));
        command.env("OSREAL_DIR", &self.dir).env("OSREAL_CACHE", &self.cache);
        command
    }

    /// The minimum number of servers, if the tenant was created. Deleted with the state.
    fn seeded(&self) -> Option<u32> {
        fs::read_to_string(self.seed_note()).ok()?.trim().parse().ok()
    }

    fn note_seeded(&self, servers: u32) -> Result<()> {
        fs::write(self.seed_note(), servers.to_string()).context("cannot record the seeded servers")
    }

    fn seed_note(&self) -> PathBuf {
        self.dir.join("seed.servers")
    }

    /// An incomplete cloud is recreated, not repaired, because a restarted fake hypervisor loses its servers.
    fn ensure_running(&self, servers: u32) -> Result<()> {
        let log = self.beside("start.log");
        if run_captured(&mut self.command("status.sh")).is_err() {
            let started = Instant::now();
            say("installing OpenStack from Debian and PyPI if it is not in the cache (1 to 3 minutes, once)");
            run_logged(&self.command("install.sh"), &log)?;
            say("starting OpenStack (about 40 s)");
            run_logged(self.command("stop.sh").arg("--wipe"), &log)?;
            run_logged(&self.command("start.sh"), &log)?;
            say(format!("OpenStack runs after {} s", started.elapsed().as_secs()));
        }
        if self.seeded().is_some_and(|seeded| seeded >= servers) {
            return Ok(());
        }
        say(format!("seeding OpenStack with {servers} servers"));
        run_logged(self.command("seed.sh").arg(servers.to_string()), &log)?;
        self.note_seeded(servers)
    }
}

impl Guard {
    /// Its own session protects it from signals of the terminal.
    fn start(scripts: &Scripts, users_lock: &Path) -> Result<Self> {
        let script = scripts.command("guard.sh");
        let mut command = Command::new("setsid");
        command.arg(script.get_program()).arg(users_lock);
        command.env("OSREAL_DIR", &scripts.dir).env("OSREAL_CACHE", &scripts.cache);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self {
            child: command.spawn().context("cannot start the guard of OpenStack")?,
        })
    }
}

fn parse_env(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|l| l.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}
