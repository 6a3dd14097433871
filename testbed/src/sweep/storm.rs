//! The fault storm.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{PAUSE, Scenario, begin, converged, examine};
use crate::binary::Ccm;

/// Maximum number of calls for each original call and for each failure.
const MOST_CALLS: f64 = 3.0;

/// A fault storm during one scenario.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// The seed of all random numbers.
    pub seed: u64,
    /// The storm ends after this many failures...
    pub failures: u64,
    /// ...or after this time from the first of them: a program on a slow machine may call nothing for seconds.
    pub longest: Duration,
    /// Time limit until its first failure, and from its end until nothing is missing.
    pub limit: Duration,
}

impl Storm {
    /// A storm of a few seconds.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            failures: 60,
            longest: Duration::from_secs(10),
            limit: Duration::from_secs(120),
        }
    }
}

/// The result of a storm.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StormReport {
    /// The scenario.
    pub scenario: String,
    /// The storm's seed.
    pub seed: u64,
    /// Failures, by party.
    pub failures: BTreeMap<&'static str, u64>,
    /// Calls, by party.
    pub calls: BTreeMap<&'static str, usize>,
    /// Calls of a run without faults, by party.
    pub calm_calls: BTreeMap<&'static str, usize>,
    /// The duration of the storm.
    pub duration: Duration,
    /// Time from its end until nothing was missing.
    pub recovery: Duration,
}

impl fmt::Display for StormReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}: ", self.scenario, self.seed)?;
        for (party, calls) in &self.calls {
            let failures = self.failures.get(party).copied().unwrap_or_default();
            let calm = self.calm_calls.get(party).copied().unwrap_or_default();
            let times = *calls as f64 / calm.max(1) as f64;
            write!(f, "{party} {calls} calls ({times:.1} x {calm}) with {failures} failures, ")?;
        }
        write!(
            f,
            "storm of {:.1} s, recovery in {:.1} s",
            self.duration.as_secs_f64(),
            self.recovery.as_secs_f64()
        )
    }
}

impl StormReport {
    /// Fails if the program retried failed calls too often.
    ///
    /// # Errors
    /// The program made too many calls; with the numbers.
    pub fn verdict(&self) -> Result<()> {
        let seconds = (self.duration + self.recovery).as_secs_f64();
        for (party, &calls) in &self.calls {
            let failures = self.failures.get(party).copied().unwrap_or_default() as f64;
            let calm = self.calm_calls.get(party).copied().unwrap_or_default() as f64;
            // A failed call is retried, and its operation may be repeated from the start. Periodic calls are made at most
            // once a second.
            let most = MOST_CALLS * (calm + failures) + calm * seconds;
            ensure!(calls as f64 <= most, "{self}: more than {most:.0} calls of the {party}");
        }
        Ok(())
    }
}

impl Storm {
    /// Runs the scenario in the storm. The program must not end, and must finish after the storm. [`super::Sweep::rehearse`]
    /// returns the numbers of calls without a storm.
    ///
    /// # Errors
    /// If it does not; with the seed.
    pub async fn run(&self, scenario: &dyn Scenario, calm_calls: &[usize]) -> Result<StormReport> {
        let report = self.play(scenario, calm_calls).await;
        for party in scenario.environment().parties() {
            party.clear_faults();
        }
        report.with_context(|| format!("{} in a storm with seed {}", scenario.name(), self.seed))
    }

    async fn play(&self, scenario: &dyn Scenario, calm_calls: &[usize]) -> Result<StormReport> {
        let launch = scenario.launch();
        begin(scenario, &launch.log).await?;
        let parties = scenario.environment().parties();
        for (seed, party) in (self.seed.wrapping_mul(1000)..).step_by(100).zip(&parties) {
            party.inject_faults(seed);
        }
        let began = Instant::now();
        let mut ccm = Ccm::start(&launch)?;
        let (acted, ()) = tokio::join!(scenario.act(), self.wait_for_end(scenario, began));
        acted?;
        let failures = parties.iter().map(|party| (party.name(), party.failures())).collect();
        for party in &parties {
            party.clear_faults();
        }
        let over = Instant::now();
        converged(scenario, &mut ccm, self.limit).await?;
        let recovery = over.elapsed();
        examine(scenario, &launch.log).await?;
        let calls = parties.iter().map(|party| (party.name(), party.calls().len())).collect();
        ccm.kill()?;
        Ok(StormReport {
            scenario: scenario.name(),
            seed: self.seed,
            failures,
            calls,
            calm_calls: parties.iter().map(|party| party.name()).zip(calm_calls.iter().copied()).collect(),
            duration: over.duration_since(began),
            recovery,
        })
    }

    /// Returns at the end of the storm: after enough failures or enough time, or when the program has finished.
    async fn wait_for_end(&self, scenario: &dyn Scenario, began: Instant) {
        let parties = scenario.environment().parties();
        let mut first_failure = None;
        let mut disturbed = false;
        loop {
            let failures: u64 = parties.iter().map(|party| party.failures()).sum();
            if failures > 0 && first_failure.is_none() {
                first_failure = Some(Instant::now());
            }
            let is_over = match first_failure {
                Some(first) => first.elapsed() >= self.longest,
                None => began.elapsed() >= self.limit,
            };
            if is_over || failures >= self.failures {
                return;
            }
            if !disturbed && failures >= self.failures / 4 {
                disturbed = true;
                // Problems are detected at the end.
                let _tried = scenario.environment().disturb().await;
            }
            if matches!(scenario.missing().await, Ok(None)) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
