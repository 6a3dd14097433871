//! Reuses control planes for several tests, because a start needs more CPU time than most tests.
//!
//! Before the next test, all objects in etcd are deleted except those that the API server created itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ControlPlane;
use crate::http;

/// Unused control planes of this process.
static IDLE: Mutex<Vec<ControlPlane>> = Mutex::new(Vec::new());

/// The range of the API server's keys.
const KEYS: [&str; 2] = ["/registry/", "/registry0"];
/// The last object that the API server creates at its start.
const LAST: &str = "/registry/services/specs/default/kubernetes";
/// Prefixes of keys that the API server writes periodically.
const VOLATILE: [&str; 2] = [
    "/registry/leases/kube-system/apiserver-",
    "/registry/peerserverleases/",
];
/// Kinds whose caches in the API server must observe that their objects are deleted.
const CACHED: [&str; 9] = [
    "/api/v1/nodes",
    "/api/v1/services",
    "/api/v1/events",
    "/api/v1/configmaps",
    "/api/v1/serviceaccounts",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
];
/// Maximum number of unused control planes. Three tests run at a time, and one on each cloud uses three.
const MAX_IDLE: usize = 9;
/// Maximum number of comparisons.
const PASSES: usize = 100;

/// The keys of a new control plane in etcd.
#[derive(Debug)]
pub(super) struct Baseline {
    etcd: Etcd,
    /// Value and revision of each key.
    keys: BTreeMap<String, (String, u64)>,
}

#[derive(Debug)]
struct Etcd {
    url: String,
}

/// Takes an unused control plane of this process, and restores its initial state.
pub(super) async fn take() -> Result<Option<ControlPlane>> {
    let idle = IDLE.lock().pop();
    let Some(mut plane) = idle else { return Ok(None) };
    let mut baseline = plane.baseline.take().context("the control plane has no baseline")?;
    baseline.restore().await?;
    let client = plane.client().await?;
    for path in CACHED {
        // A list waits until the API server's cache is up to date with etcd.
        client.request_text(::http::Request::get(path).body(Vec::new())?).await?;
    }
    plane.baseline = Some(baseline);
    // The API server appends to it.
    fs::File::create(plane.audit_file())?;
    Ok(Some(plane))
}

/// Keeps a control plane for another test. The number is limited, because each needs memory and some CPU time.
pub(super) fn keep(plane: ControlPlane) {
    let mut idle = IDLE.lock();
    idle.push(plane);
    let surplus = (idle.len() > MAX_IDLE).then(|| idle.remove(0));
    drop(idle);
    if let Some(mut surplus) = surplus {
        surplus.baseline = None;
    }
}

impl Baseline {
    /// Reads the keys of a control plane that was just started.
    pub(super) async fn read(plane: &ControlPlane) -> Result<Self> {
        let state: Value = serde_json::from_str(&fs::read_to_string(plane.dir.join("state.json"))?)?;
        let etcd = Etcd {
            url: format!("http://127.0.0.1:{}", state["etcd_client"]),
        };
        let mut keys = etcd.list(false).await?;
        while !keys.contains_key(LAST) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            keys = etcd.list(false).await?;
        }
        Ok(Self { etcd, keys })
    }

    /// Deletes added keys and restores changed ones until all are equal, because a process that was just killed may have sent
    /// one more request.
    async fn restore(&mut self) -> Result<()> {
        for _ in 0..PASSES {
            if !self.restore_once().await? {
                return Ok(());
            }
        }
        bail!("another process still writes to the control plane of a test that has ended");
    }

    /// Returns whether a key differed.
    async fn restore_once(&mut self) -> Result<bool> {
        let there = self.etcd.list(true).await?;
        let mut has_changed = false;
        let mut added: Option<[String; 2]> = None;
        for key in there.keys() {
            if !self.keys.contains_key(key) && !is_volatile(key) {
                let end = format!("{key}\0");
                match &mut added {
                    Some([_, last]) => *last = end,
                    None => added = Some([key.clone(), end]),
                }
            } else if let Some(range) = added.take() {
                self.etcd.delete(&range).await?;
                has_changed = true;
            }
        }
        if let Some(range) = added {
            self.etcd.delete(&range).await?;
            has_changed = true;
        }
        for (key, (value, revision)) in &mut self.keys {
            if !is_volatile(key) && there.get(key).is_none_or(|(_, now)| now != revision) {
                *revision = self.etcd.put(key, value).await?;
                has_changed = true;
            }
        }
        Ok(has_changed)
    }
}

fn is_volatile(key: &str) -> bool {
    VOLATILE.iter().any(|prefix| key.starts_with(prefix))
}

impl Etcd {
    /// Value and revision of each key.
    async fn list(&self, keys_only: bool) -> Result<BTreeMap<String, (String, u64)>> {
        let [first, end] = KEYS.map(|key| BASE64.encode(key));
        let body = json!({"key": first, "range_end": end, "keys_only": keys_only});
        let reply = self.call("range", body).await?;
        let mut keys = BTreeMap::new();
        for entry in reply["kvs"].as_array().into_iter().flatten() {
            let text = |name: &str| entry[name].as_str().unwrap_or_default();
            let key = String::from_utf8(BASE64.decode(text("key"))?)?;
            keys.insert(key, (text("value").to_owned(), text("mod_revision").parse()?));
        }
        Ok(keys)
    }

    async fn delete(&self, [first, end]: &[String; 2]) -> Result<()> {
        let body = json!({"key": BASE64.encode(first), "range_end": BASE64.encode(end)});
        self.call("deleterange", body).await.map(drop)
    }

    /// Returns the revision.
    async fn put(&self, key: &str, value: &str) -> Result<u64> {
        let reply = self.call("put", json!({"key": BASE64.encode(key), "value": value})).await?;
        Ok(reply["header"]["revision"].as_str().unwrap_or_default().parse()?)
    }

    async fn call(&self, method: &str, body: Value) -> Result<Value> {
        let url = format!("{}/v3/kv/{method}", self.url);
        let reply = http::client().build()?.post(url).json(&body).send().await?;
        Ok(reply.error_for_status()?.json().await?)
    }
}

/// Starts a process that removes the directory of a control plane when its value is dropped or this process ends.
pub(super) fn remover(plane: u32, dir: &Path) -> Result<Child> {
    const SCRIPT: &str = r#"cat; while kill -0 "$1"; do sleep 0.1; done; rm -rf "$2""#;
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", SCRIPT, "sh", &plane.to_string()]).arg(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command
        .spawn()
        .context("cannot start the process that removes the control plane's directory")
}
