//! The fault storm.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{PAUSE, Scenario, begin, converged, examine};
use crate::binary::Ccm;

/// How many calls a call may become, and how many a failure may cost.
const MOST_CALLS: f64 = 3.0;

/// A storm over one scenario.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// From which everything random is drawn.
    pub seed: u64,
    /// It is over after this many failures...
    pub failures: u64,
    /// ...or after this time.
    pub longest: Duration,
    /// Longest time from its end until nothing is missing any more.
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

/// What came of a storm.
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
    /// Calls of a run that nothing disturbed, by party.
    pub calm_calls: BTreeMap<&'static str, usize>,
    /// How long it raged.
    pub raged: Duration,
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
            write!(
                f,
                "{party} {calls} calls ({times:.1} x {calm}) with {failures} failures, "
            )?;
        }
        write!(
            f,
            "raged {:.1} s, done {:.1} s later",
            self.raged.as_secs_f64(),
            self.recovery.as_secs_f64()
        )
    }
}

impl StormReport {
    /// Fails if the program answered failures with many more calls.
    ///
    /// # Errors
    /// With the figures.
    pub fn verdict(&self) -> Result<()> {
        let seconds = (self.raged + self.recovery).as_secs_f64();
        for (party, &calls) in &self.calls {
            let failures = self.failures.get(party).copied().unwrap_or_default() as f64;
            let calm = self.calm_calls.get(party).copied().unwrap_or_default() as f64;
            // A failed call is made again, and what it was for may be asked anew from the start. What is asked
            // periodically is asked once a second at most.
            let most = MOST_CALLS * (calm + failures) + calm * seconds;
            ensure!(
                calls as f64 <= most,
                "{self}: more than {most:.0} calls of the {party}"
            );
        }
        Ok(())
    }
}

impl Storm {
    /// Plays the scenario in the storm. The program must live through it and finish when it is over. The numbers of
    /// calls without a storm are what [`super::Sweep::rehearse`] says.
    ///
    /// # Errors
    /// If it does not; the text has the seed.
    pub async fn run(&self, scenario: &dyn Scenario, calm_calls: &[usize]) -> Result<StormReport> {
        let report = self.play(scenario, calm_calls).await;
        for party in scenario.parties() {
            party.calm();
        }
        report.with_context(|| format!("{} in a storm with seed {}", scenario.name(), self.seed))
    }

    async fn play(&self, scenario: &dyn Scenario, calm_calls: &[usize]) -> Result<StormReport> {
        let launch = scenario.launch();
        begin(scenario, &launch.log).await?;
        let parties = scenario.parties();
        for (seed, party) in (self.seed.wrapping_mul(1000)..).step_by(100).zip(&parties) {
            party.rage(seed);
        }
        let began = Instant::now();
        let mut ccm = Ccm::start(&launch)?;
        let (acted, ()) = tokio::join!(scenario.act(), self.rage(scenario, began));
        acted?;
        let failures = parties
            .iter()
            .map(|party| (party.name(), party.failures()))
            .collect();
        for party in &parties {
            party.calm();
        }
        let over = Instant::now();
        converged(scenario, &mut ccm, self.limit).await?;
        let recovery = over.elapsed();
        examine(scenario, &launch.log).await?;
        let calls = parties
            .iter()
            .map(|party| (party.name(), party.calls().len()))
            .collect();
        ccm.kill()?;
        Ok(StormReport {
            scenario: scenario.name(),
            seed: self.seed,
            failures,
            calls,
            calm_calls: parties
                .iter()
                .map(|party| party.name())
                .zip(calm_calls.iter().copied())
                .collect(),
            raged: over.duration_since(began),
            recovery,
        })
    }

    /// Returns when the storm is over: enough has failed, it lasted long enough, or the program is done in spite of it.
    async fn rage(&self, scenario: &dyn Scenario, began: Instant) {
        let parties = scenario.parties();
        let failures = || parties.iter().map(|party| party.failures()).sum::<u64>();
        let mut disturbed = false;
        while failures() < self.failures && began.elapsed() < self.longest {
            if !disturbed && failures() >= self.failures / 4 {
                disturbed = true;
                // What it breaks is seen in the end.
                let _tried = scenario.disturb().await;
            }
            if matches!(scenario.missing().await, Ok(None)) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
