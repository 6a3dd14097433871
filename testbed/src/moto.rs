//! moto: an emulator of AWS, and accounts on it.
//!
//! One server serves all tests of a process; each test has its own [`Account`] behind a [`CloudProxy`]. The sources are in
//! `tests/parity/aws`: `moto_server.py` corrects differences from AWS, and `account.py` creates and reads the objects of an
//! account with boto3.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::cache;
use crate::controlplane::blocking;
use crate::process::{self, Running};
use crate::proxy::{AwsDialect, CloudProxy};
use crate::python;

/// The secret access key of all accounts.
pub const SECRET: &str = "emulated-secret-access-key";
/// The region of all accounts.
pub const REGION: &str = "us-east-1";
/// Time limit until the server has started.
const LIMIT: Duration = Duration::from_secs(300);

/// The Python interpreter with moto, and the folder of the sources.
async fn installed() -> Result<(PathBuf, PathBuf)> {
    let sources = cache::sources("parity/aws")?;
    let requirements = sources.join("requirements.txt");
    let install = move || python::environment("moto", &requirements, "moto, an emulator of AWS,");
    Ok((blocking(install).await?, sources))
}

/// A running moto server. It is stopped when dropped or when this process ends.
#[derive(Debug)]
pub struct Moto {
    _process: Running,
    port: u16,
    control: u16,
    client: reqwest::Client,
    accounts: AtomicU64,
    _folder: tempfile::TempDir,
}

impl Moto {
    /// The server of this process, installed and started on first use.
    ///
    /// # Errors
    /// When it cannot be installed or started.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<Moto> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    async fn start() -> Result<Self> {
        let (python, sources) = installed().await?;
        let folder = tempfile::tempdir()?;
        let [log, ready] = ["moto.log", "ports.json"].map(|name| folder.path().join(name));
        let mut command = Command::new(python);
        command
            .arg(sources.join("moto_server.py"))
            .arg("--ready")
            .arg(&ready)
            // Python must not write into the checkout.
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let mut process = Running::start(&command, &log)?;
        let started = Instant::now();
        while !ready.exists() {
            if process.exit_status()?.is_some() || started.elapsed() > LIMIT {
                bail!("moto does not start; {}", process::log_tail(&log));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (port, control) = serde_json::from_slice(&fs::read(&ready)?)?;
        Ok(Self {
            _process: process,
            port,
            control,
            // Connections are not pooled, because every test has its own runtime.
            client: crate::http::client().pool_max_idle_per_host(0).build()?,
            accounts: AtomicU64::new(123_456_789_012),
            _folder: folder,
        })
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A new account with the network and instances `node-1` to `node-N` of a cluster with this name, behind a proxy.
    ///
    /// # Errors
    /// When the objects cannot be created.
    pub async fn account(&self, cluster: &str, instances: usize) -> Result<Account<'_>> {
        let id = self.accounts.fetch_add(1, Ordering::Relaxed).to_string();
        let proxy = CloudProxy::<AwsDialect>::start(&self.url(), &id).await?;
        let mut account = Account {
            moto: self,
            id,
            cluster: cluster.to_owned(),
            ids: Value::Null,
            proxy,
        };
        account.ids = account.run("seed", json!({"cluster": cluster, "instances": instances})).await?;
        Ok(account)
    }
}

/// An account with a VPC of three public and three private subnets in three zones, security groups `nodes` (tagged) and
/// `extra`, two certificates, three elastic addresses and instances.
#[derive(Debug)]
pub struct Account<'a> {
    moto: &'a Moto,
    id: String,
    cluster: String,
    ids: Value,
    /// The endpoint of the program.
    pub proxy: CloudProxy<AwsDialect>,
}

impl Drop for Account<'_> {
    /// Fails the test that sent a request that AWS would refuse.
    fn drop(&mut self) {
        let refused = self.proxy.dialect().take_refused();
        assert!(
            refused.is_empty() || std::thread::panicking(),
            "AWS would refuse {} requests, the first one: {:#?}",
            refused.len(),
            refused.first()
        );
    }
}

/// An instance of an account: name, private DNS name, instance ID, zone.
pub type Machine = (String, String, String, String);

impl Account<'_> {
    /// An id by its name in the cases: `VPC`, `SG_NODES`, `SG_EXTRA`, `CERT1`, `EIP1`, `PUBLIC_A`, `PRIVATE_A` and so on.
    #[must_use]
    pub fn id(&self, name: &str) -> &str {
        self.ids.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// A cloud.conf for this account: off-instance mode, all services at the proxy.
    #[must_use]
    pub fn cloud_conf(&self) -> String {
        let mut text = format!(
            "[Global]\nZone={REGION}a\nVPC={}\nSubnetID={}\nKubernetesClusterID={}\n",
            self.id("VPC"),
            self.id("PUBLIC_A"),
            self.cluster,
        );
        for (at, service) in [
            "EC2",
            "Elastic Load Balancing",
            "Elastic Load Balancing v2",
            "STS",
        ]
        .iter()
        .enumerate()
        {
            text += &format!(
                "[ServiceOverride \"{at}\"]\nService={service}\nRegion={REGION}\nURL={}\nSigningRegion={REGION}\n",
                self.proxy.url(),
            );
        }
        text
    }

    /// Environment variables with credentials and region. The metadata service is disabled.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", "x"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", REGION),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .to_vec()
    }

    /// Launches instances with these names.
    ///
    /// # Errors
    /// When moto refuses them.
    pub async fn launch(&self, names: &[String]) -> Result<Vec<Machine>> {
        self.run("launch", json!({"names": names})).await
    }

    /// Calls an operation of `ec2`, `v2` (ELBv2), `elb` (classic) or `acm` by boto3's name, without the proxy.
    ///
    /// # Errors
    /// When moto refuses the operation; with AWS's error code.
    pub async fn call(&self, service: &str, operation: &str, arguments: Value) -> Result<Value> {
        let mut body = json!({"service": service, "operation": operation});
        if let (Some(body), Value::Object(arguments)) = (body.as_object_mut(), arguments) {
            body.extend(arguments);
        }
        self.run("call", body).await
    }

    /// Load balancers, target groups and security groups with their rules, and the names of their ids. Ids are replaced by
    /// the names of the load balancers in `names`.
    ///
    /// # Errors
    /// When moto cannot be read.
    pub async fn dump(&self, names: &Value) -> Result<(Value, Value)> {
        self.run("dump", json!({"lbs_of": names})).await
    }

    /// Creates the objects of a recording, a result of [`Self::dump`] with names in place of ids. `words`: names and their
    /// values. Returns the values of further names: ids of the account, and host names of the load balancers.
    ///
    /// # Errors
    /// When moto refuses one of them.
    pub async fn rebuild(&self, objects: &Value, words: &Value) -> Result<Value> {
        self.run("rebuild", json!({"cloud": objects, "words": words})).await
    }

    /// Deletes load balancers, target groups and the rules and groups that were added.
    ///
    /// # Errors
    /// When moto refuses it.
    pub async fn clean(&self) -> Result<()> {
        self.run("clean", json!({})).await
    }

    /// What AWS would refuse in the forms of these requests.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn check(&self, forms: &[String]) -> Result<Vec<String>> {
        self.run("check", json!({"forms": forms})).await
    }

    /// A method of `account.py`.
    async fn run<T: DeserializeOwned>(&self, method: &str, arguments: Value) -> Result<T> {
        let url = format!("http://127.0.0.1:{}/{}/{method}", self.moto.control, self.id);
        let answer = self.moto.client.post(url).json(&arguments).send().await?;
        let (status, text) = (answer.status(), answer.text().await?);
        if !status.is_success() {
            bail!("{method} of account {}: {text}", self.id);
        }
        serde_json::from_str(&text).with_context(|| format!("{method}: {text}"))
    }
}
