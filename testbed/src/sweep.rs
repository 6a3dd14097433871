//! Crash sweeps and fault storms, for any scenario and any cloud.
//!
//! A *crash sweep* runs a scenario once without faults to count its calls, and then once for every call and every moment of
//! the call (before it is handled, after it, after the reply). The program is killed at that point, started again, and must
//! reach the same result. A *storm* runs the scenario while the API server and the cloud fail at random, reproducibly by
//! a seed.
//!
//! Faults are injected by the [`Party`]s: the API server behind its [`crate::proxy::Proxy`], and a simulated cloud. The
//! [`Scenario`] defines the actions and the expected result.

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
pub(crate) use parties::{LIKELY, REFUSAL, status, storm};
pub use storm::{Storm, StormReport};

/// The shortest interval between checks of the state.
const PAUSE: Duration = Duration::from_millis(25);
/// The interval between checks, as a multiple of a check's duration, to limit the load of the checks.
const PAUSE_FACTOR: u32 = 3;
/// The program's log message for a panic, which no log may contain.
const BUG: &str = "Bug:";

/// A server of the program that can stop the program at a call, and inject faults.
pub trait Party: Send + Sync {
    /// The name in reports.
    fn name(&self) -> &'static str;
    /// Clears the log of calls. A new run begins: what was created before is no longer new.
    fn forget(&self);
    /// The counted calls since then, in their order.
    fn calls(&self) -> Vec<String>;
    /// Stops at the n-th call from now, counted from 1. Resolves with the call when it is stopped, or with `None` after
    /// [`Self::clear_faults`].
    fn stop_at(&self, nth: u64, moment: Moment) -> BoxFuture<'static, Option<String>>;
    /// Resolves when no call is stopped any more. Calls of a killed program are dropped when its connections are closed.
    fn none_held(&self) -> BoxFuture<'static, ()>;
    /// Answers as the real service where its emulator is kinder: listings in any order and without objects that were just
    /// created, and requests that name an object before all servers know it. Lasts until the party is dropped.
    fn imitate_real_service(&self) {}
    /// Starts random failures.
    fn inject_faults(&self, seed: u64);
    /// The number of failures since then.
    fn failures(&self) -> u64;
    /// Ends stops and failures. Stopped calls continue.
    fn clear_faults(&self);
}

/// The servers of the program, for any scenario.
#[async_trait(?Send)]
pub trait Environment: Send + Sync {
    /// The servers that inject faults.
    fn parties(&self) -> Vec<&dyn Party>;
    /// An additional failure in the middle of a storm.
    async fn disturb(&self) -> Result<()> {
        Ok(())
    }
    /// Texts that must not appear in the program's log.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Changes of a cluster, and the expected result.
#[async_trait(?Send)]
pub trait Scenario: Send + Sync {
    /// The name in reports.
    fn name(&self) -> String;
    /// The command line of the program.
    fn launch(&self) -> Launch;
    /// The servers of the program.
    fn environment(&self) -> &dyn Environment;
    /// Creates the initial state from any present state. The program does not run.
    async fn prepare(&self) -> Result<()>;
    /// The changes while the program runs, or after it was killed.
    async fn act(&self) -> Result<()> {
        Ok(())
    }
    /// The difference from the expected result, if any.
    async fn missing(&self) -> Result<Option<String>>;
    /// Checks the result after nothing is missing, and that no forbidden action happened since [`Self::prepare`].
    async fn check(&self) -> Result<()>;
}

/// Starts a run with the initial state, an empty log and no counted calls.
async fn begin(scenario: &dyn Scenario, log: &Path) -> Result<()> {
    for party in scenario.environment().parties() {
        party.clear_faults();
        party.imitate_real_service();
    }
    scenario.prepare().await.context("cannot prepare the scenario")?;
    if log.exists() {
        fs::write(log, "").context("cannot empty the log")?;
    }
    for party in scenario.environment().parties() {
        party.forget();
    }
    Ok(())
}

/// Waits until nothing is missing.
async fn converged(scenario: &dyn Scenario, ccm: &mut Ccm, limit: Duration) -> Result<()> {
    let end = tokio::time::Instant::now() + limit;
    loop {
        let began = tokio::time::Instant::now();
        let missing = match scenario.missing().await {
            Ok(None) => return Ok(()),
            Ok(Some(missing)) => missing,
            // In a storm the API server may be restarting.
            Err(error) => format!("cannot read the state: {error:#}"),
        };
        if let Some(status) = ccm.exit_status()? {
            bail!("the program ended ({status}); {}", process::log_tail(ccm.log_path()));
        }
        if tokio::time::Instant::now() >= end {
            bail!("not done after {limit:?}: {missing}; {}", process::log_tail(ccm.log_path()));
        }
        tokio::time::sleep(PAUSE.max(began.elapsed() * PAUSE_FACTOR)).await;
    }
}

/// The checks at the end of every run.
async fn examine(scenario: &dyn Scenario, log: &Path) -> Result<()> {
    scenario.check().await?;
    let text = fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    if let Some(line) = text.lines().find(|line| line.contains(BUG)) {
        bail!("the log contains a panic: {line}");
    }
    for secret in scenario.environment().secrets() {
        if let Some(line) = text.lines().find(|line| line.contains(&secret)) {
            bail!("the log contains a secret: {line}");
        }
    }
    Ok(())
}
