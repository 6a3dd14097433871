//! Crash sweeps and fault storms, for any scenario and any cloud.
//!
//! A *crash sweep* plays a scenario once undisturbed, to learn which calls it makes, and then once for every call and
//! every moment of it (before it is handled, after it, after the reply): the program is killed right there, started
//! again, and must finish as if nothing had happened. A *storm* plays it while everything around the program fails at
//! random, and what is random can be repeated from its seed.
//!
//! What fails and stops are the [`Party`]s: the API server behind its [`crate::proxy::Proxy`], a simulated cloud.
//! What happens, and what must be true in the end, says the [`Scenario`].

mod crash;
mod parties;
mod storm;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use ccm_sim::Moment;
use futures_util::future::BoxFuture;

use crate::binary::{Ccm, Launch};
use crate::process;

pub use crash::{Failure, Point, Progress, Report, Selection, Sweep};
pub(crate) use parties::{LIKELY, status, storm};
pub use storm::{Storm, StormReport};

/// How often the state is looked at, at most.
const PAUSE: Duration = Duration::from_millis(25);
/// Time between two looks in terms of the time that a look takes, so that looking does not slow down what it looks at.
const PATIENCE: u32 = 3;
/// What no log may hold: the program says this of a panic.
const BUG: &str = "Bug:";

/// Somebody the program talks to, who can stop it at a call, and can fail.
pub trait Party: Send + Sync {
    /// What it is called in reports.
    fn name(&self) -> &'static str;
    /// Forgets calls so far.
    fn forget(&self);
    /// The calls since then that count, in their order.
    fn calls(&self) -> Vec<String>;
    /// Stops at the n-th call from now, counted from 1. Resolves when it is there, with the call, or without one if
    /// [`Self::calm`] came first.
    fn stop_at(&self, nth: u64, moment: Moment) -> BoxFuture<'static, Option<String>>;
    /// Resolves when no call waits where it was stopped: those of a program that was killed are forgotten as soon as its
    /// connections are seen to be closed.
    fn none_held(&self) -> BoxFuture<'static, ()>;
    /// Fails at random from now on.
    fn rage(&self, seed: u64);
    /// How often it has failed since.
    fn failures(&self) -> u64;
    /// Neither stops nor fails any more; what was held goes on.
    fn calm(&self);
}

/// Something that happens to a cluster, and what must become of it.
#[async_trait(?Send)]
pub trait Scenario: Send + Sync {
    /// What it is called.
    fn name(&self) -> String;
    /// How the program is started.
    fn launch(&self) -> Launch;
    /// Everybody the program talks to.
    fn parties(&self) -> Vec<&dyn Party>;
    /// Makes the state before it, whatever the state is now. The program does not run.
    async fn prepare(&self) -> Result<()>;
    /// What happens while the program runs, or has just been killed.
    async fn act(&self) -> Result<()> {
        Ok(())
    }
    /// What is still to be done, or nothing.
    async fn missing(&self) -> Result<Option<String>>;
    /// Looks at everything once nothing is missing: what must be there, and what must never have happened since
    /// [`Self::prepare`].
    async fn check(&self) -> Result<()>;
    /// Something that goes wrong in the middle of a storm besides the parties' failures.
    async fn disturb(&self) -> Result<()> {
        Ok(())
    }
    /// Texts that must not stand in the program's log.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Begins a run: the state before, an empty log, nothing counted.
async fn begin(scenario: &dyn Scenario, log: &Path) -> Result<()> {
    for party in scenario.parties() {
        party.calm();
    }
    scenario.prepare().await.context("cannot prepare the scenario")?;
    if log.exists() {
        fs::write(log, "").context("cannot empty the log")?;
    }
    for party in scenario.parties() {
        party.forget();
    }
    Ok(())
}

/// Waits until nothing is missing.
async fn converged(scenario: &dyn Scenario, ccm: &mut Ccm, limit: Duration) -> Result<()> {
    let end = tokio::time::Instant::now() + limit;
    loop {
        let looked = tokio::time::Instant::now();
        let missing = match scenario.missing().await {
            Ok(None) => return Ok(()),
            Ok(Some(missing)) => missing,
            // In a storm the API server may be restarting.
            Err(error) => format!("cannot look: {error:#}"),
        };
        if let Some(status) = ccm.exit_status()? {
            bail!(
                "the program ended ({status}); {}",
                process::log_tail(ccm.log_path())
            );
        }
        if tokio::time::Instant::now() >= end {
            bail!(
                "not done after {limit:?}: {missing}; {}",
                process::log_tail(ccm.log_path())
            );
        }
        tokio::time::sleep(PAUSE.max(looked.elapsed() * PATIENCE)).await;
    }
}

/// What must be true at the end of every run.
async fn examine(scenario: &dyn Scenario, log: &Path) -> Result<()> {
    scenario.check().await?;
    let text = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    if let Some(line) = text.lines().find(|line| line.contains(BUG)) {
        bail!("a panic in the log: {line}");
    }
    for secret in scenario.secrets() {
        if let Some(line) = text.lines().find(|line| line.contains(&secret)) {
            bail!("a secret in the log: {line}");
        }
    }
    Ok(())
}
