//! What benchmarks read off a running program.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use ccm_testbed::{binary::Ccm, stage::Stage};

/// Every call of the simulated cloud takes this long.
pub(super) const LATENCY: Duration = Duration::from_millis(50);

/// The program's requests to the API server that change something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Writes {
    /// Of nodes.
    pub(super) nodes: usize,
    /// New or updated Events.
    pub(super) events: usize,
}

impl Writes {
    /// Those that came after `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            nodes: self.nodes - before.nodes,
            events: self.events - before.events,
        }
    }
}

/// The program's writes so far.
pub(super) fn writes(stage: &Stage) -> Result<Writes> {
    let mut writes = Writes::default();
    for entry in stage.control_plane.audit_log()? {
        if !entry.user_agent.starts_with("cloud-controller-manager") {
            continue;
        }
        match (entry.resource.as_str(), entry.verb.as_str()) {
            ("nodes", "patch" | "update" | "create" | "delete") => writes.nodes += 1,
            ("events", "create" | "patch") => writes.events += 1,
            _ => {}
        }
    }
    Ok(writes)
}

/// Waits until a metric has reached this value; returns the value it has then.
pub(super) async fn wait_for(ccm: &Ccm, name: &str, value: u64) -> Result<u64> {
    let wait = async {
        loop {
            let now = metric(&ccm.get("/metrics").await?.1, name);
            if now >= value {
                return Ok(now);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), wait)
        .await
        .with_context(|| format!("{name} did not reach {value}"))?
}

/// The value of a metric, named with its labels.
fn metric(text: &str, name: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// The calls that came after `before`, by what they do.
pub(super) fn since(before: &BTreeMap<String, u64>, mut now: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    for (op, count) in before {
        if let Some(total) = now.get_mut(op) {
            *total -= count;
        }
    }
    now.retain(|_, count| *count > 0);
    now
}

/// The calls in words.
pub(super) fn kinds(calls: &BTreeMap<String, u64>) -> String {
    calls
        .iter()
        .map(|(op, count)| format!("{op} {count}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The middle one of these times.
pub(super) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
