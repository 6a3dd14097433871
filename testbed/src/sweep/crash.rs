//! The crash sweep.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ccm_sim::Moment;

use super::{Scenario, begin, converged, examine};
use crate::binary::Ccm;

/// A point at which the program is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// The index of the party among the scenario's parties.
    pub party: usize,
    /// The number of the call, counted from 1.
    pub nth: u64,
    /// The moment of the call.
    pub moment: Moment,
}

/// The selection of points.
#[derive(Clone, Copy, Debug, Default)]
pub enum Selection {
    /// All points.
    #[default]
    All,
    /// Every n-th point, but at least four.
    Every(usize),
    /// One of several shares, by number, which together are all points. Each has all moments.
    Share {
        /// The number of this share, from 0.
        number: usize,
        /// The number of shares.
        of: usize,
    },
}

impl Selection {
    /// About this many, spread evenly.
    #[must_use]
    pub fn about(count: usize, of: usize) -> Self {
        Self::Every(of.div_ceil(count.max(1)).max(1))
    }

    fn of(self, points: Vec<Point>) -> Vec<Point> {
        match self {
            Self::All => points,
            Self::Share { number, of } => {
                // Points of one call are next to each other.
                let moments = Moment::ALL.len();
                let share = |at: usize| (at / moments + at % moments) % of.max(1);
                let points = points.into_iter().enumerate();
                let points = points.filter(|(at, _)| share(*at) == number);
                points.map(|(_, point)| point).collect()
            }
            Self::Every(step) => {
                let step = step.min(points.len() / 4).max(1);
                // A multiple of three would select the same moment of every call.
                let step = if step.is_multiple_of(Moment::ALL.len()) {
                    step + 1
                } else {
                    step
                };
                points.into_iter().skip(step / 2).step_by(step).collect()
            }
        }
    }
}

/// A point from which the program did not recover.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The description of the point.
    pub place: String,
    /// The problem.
    pub problem: String,
}

/// The progress of a sweep.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Points that were played.
    pub done: usize,
    /// All points.
    pub total: usize,
    /// Failures among them.
    pub failures: usize,
    /// Estimated time until the end.
    pub left: Duration,
}

/// The result of a sweep.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The scenario.
    pub scenario: String,
    /// Calls of a run without faults, by party.
    pub calls: BTreeMap<&'static str, usize>,
    /// Possible points.
    pub possible: usize,
    /// Points that were played.
    pub played: usize,
    /// Points that were not reached, because a run made fewer calls.
    pub missed: usize,
    /// The failures.
    pub failures: Vec<Failure>,
    /// The duration of the sweep.
    pub elapsed: Duration,
    /// Longest time from a crash to the expected result.
    pub slowest: Duration,
}

impl Report {
    /// Fails if a point failed, with all failures.
    ///
    /// # Errors
    /// If a point failed, or too few points were reached.
    pub fn verdict(&self) -> Result<()> {
        if !self.failures.is_empty() {
            let mut text = format!("{self}");
            for failure in &self.failures {
                let _infallible = write!(text, "\n\nkilled at {}:\n{}", failure.place, failure.problem);
            }
            bail!("{text}");
        }
        if self.missed * 4 > self.played {
            bail!("{self}: too few points were reached");
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.scenario)?;
        for (party, calls) in &self.calls {
            write!(f, "{calls} calls of the {party}, ")?;
        }
        write!(
            f,
            "{} of {} points played in {:.0} s, {} missed, {} failed, recovery in at most {:.1} s",
            self.played,
            self.possible,
            self.elapsed.as_secs_f64(),
            self.missed,
            self.failures.len(),
            self.slowest.as_secs_f64()
        )
    }
}

/// A crash sweep of one scenario.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The selection of points.
    pub selection: Selection,
    /// Time limit of each step.
    pub limit: Duration,
}

impl Default for Sweep {
    fn default() -> Self {
        Self {
            selection: Selection::All,
            // Much more than a run takes on a machine that runs many control planes at once.
            limit: Duration::from_secs(240),
        }
    }
}

/// The end of a run with a stop.
enum RunEnd {
    /// The program was stopped at this call.
    Stopped(String),
    /// The program finished before the stop.
    Missed,
}

impl Sweep {
    /// Runs the scenario without faults, and returns the number of calls by party.
    ///
    /// # Errors
    /// If the scenario fails.
    pub async fn rehearse(&self, scenario: &dyn Scenario) -> Result<Vec<usize>> {
        let launch = scenario.launch();
        begin(scenario, &launch.log).await?;
        let mut ccm = Ccm::start(&launch)?;
        let acting = scenario.act();
        let (acted, done) = tokio::join!(acting, converged(scenario, &mut ccm, self.limit));
        acted?;
        done?;
        // All Events are written before an orderly end.
        finish(&mut ccm, self.limit).await?;
        examine(scenario, &launch.log).await?;
        Ok(scenario.environment().parties().iter().map(|party| party.calls().len()).collect())
    }

    /// Runs the sweep. It continues after failures.
    ///
    /// # Errors
    /// If the scenario fails without faults.
    pub async fn run(
        &self,
        scenario: &dyn Scenario,
        mut report_progress: impl FnMut(&Progress) + Send,
    ) -> Result<Report> {
        let began = Instant::now();
        let counts = self
            .rehearse(scenario)
            .await
            .with_context(|| format!("{} fails without faults", scenario.name()))?;
        let parties = scenario.environment().parties();
        let mut report = Report {
            scenario: scenario.name(),
            calls: parties.iter().map(|party| party.name()).zip(counts.clone()).collect(),
            ..Report::default()
        };
        let points = points(&counts);
        report.possible = points.len();
        let points = self.selection.of(points);
        let sweeping = Instant::now();
        for (done, point) in points.iter().enumerate() {
            match self.play(scenario, *point, &mut report.slowest).await {
                Ok(true) => {}
                Ok(false) => report.missed += 1,
                Err((place, error)) => report.failures.push(Failure {
                    place,
                    problem: format!("{error:#}"),
                }),
            }
            report.played = done + 1;
            let each = sweeping.elapsed().div_f64(report.played as f64);
            report_progress(&Progress {
                done: report.played,
                total: points.len(),
                failures: report.failures.len(),
                left: each.mul_f64((points.len() - report.played) as f64),
            });
        }
        report.elapsed = began.elapsed();
        Ok(report)
    }

    /// Runs one point. Returns `false` if it was not reached.
    async fn play(
        &self,
        scenario: &dyn Scenario,
        point: Point,
        slowest: &mut Duration,
    ) -> Result<bool, (String, anyhow::Error)> {
        let mut place = describe(scenario, point, None);
        let launch = scenario.launch();
        let outcome = async {
            begin(scenario, &launch.log).await?;
            match self.until_stopped(scenario, point).await? {
                RunEnd::Missed => {
                    examine(scenario, &launch.log).await?;
                    return Ok(false);
                }
                RunEnd::Stopped(call) => place = describe(scenario, point, Some(&call)),
            }
            for party in scenario.environment().parties() {
                // Stopped calls of the killed program must not be carried out.
                tokio::time::timeout(self.limit, party.none_held())
                    .await
                    .context("a call of the killed program is still stopped")?;
                party.clear_faults();
            }
            let restarted = Instant::now();
            let mut ccm = Ccm::start(&launch)?;
            converged(scenario, &mut ccm, self.limit).await?;
            *slowest = (*slowest).max(restarted.elapsed());
            examine(scenario, &launch.log).await?;
            ccm.kill()?;
            Ok(true)
        }
        .await;
        outcome.map_err(|error| (place, error))
    }

    /// Starts the program and kills it at the point.
    async fn until_stopped(&self, scenario: &dyn Scenario, point: Point) -> Result<RunEnd> {
        let parties = scenario.environment().parties();
        let party = parties.get(point.party).context("no such party")?;
        let reached = party.stop_at(point.nth, point.moment);
        let mut ccm = Ccm::start(&scenario.launch())?;
        let running = async {
            let done = async {
                converged(scenario, &mut ccm, self.limit).await?;
                finish(&mut ccm, self.limit).await
            };
            let ended = tokio::select! {
                biased;
                Some(call) = reached => Ok(RunEnd::Stopped(call)),
                done = done => done.map(|()| RunEnd::Missed),
            };
            // At once, while `act` may still run.
            ccm.kill()?;
            ended
        };
        let (acted, ended) = tokio::join!(scenario.act(), running);
        acted?;
        ended
    }
}

/// Terminates the program and waits for its end.
async fn finish(ccm: &mut Ccm, limit: Duration) -> Result<()> {
    ccm.terminate()?;
    let status = ccm.wait(limit).await?;
    if !status.success() {
        bail!("the program did not terminate cleanly: {status}");
    }
    Ok(())
}

fn points(calls: &[usize]) -> Vec<Point> {
    let of_party = |(party, count): (usize, &usize)| {
        (1..=*count as u64).flat_map(move |nth| Moment::ALL.map(|moment| Point { party, nth, moment }))
    };
    calls.iter().enumerate().flat_map(of_party).collect()
}

fn describe(scenario: &dyn Scenario, point: Point, call: Option<&str>) -> String {
    let parties = scenario.environment().parties();
    let party = parties.get(point.party).map_or("?", |party| party.name());
    let Point { nth, moment, .. } = point;
    match call {
        Some(call) => format!("call {nth} of the {party} ({call}), {moment}"),
        None => format!("call {nth} of the {party}, {moment}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_three_points() {
        let points = points(&[2, 1]);
        assert_eq!(points.len(), 9);
        assert_eq!(points.iter().filter(|point| point.party == 1).count(), 3);
        assert_eq!(points.first().map(|point| (point.nth, point.moment)), Some((1, Moment::Before)));
    }

    #[test]
    fn a_selection_visits_every_moment() {
        let all = points(&[100]);
        for count in [30, 50, 100] {
            let some = Selection::about(count, all.len()).of(all.clone());
            assert!((count / 2..=count).contains(&some.len()), "{} of {count}", some.len());
            for moment in Moment::ALL {
                assert!(some.iter().any(|point| point.moment == moment), "{moment}");
            }
        }
        // Zero also selects all points.
        for step in [0, 1] {
            assert_eq!(Selection::Every(step).of(all.clone()).len(), 300, "step {step}");
        }
    }

    #[test]
    fn shares_together_are_all_points() {
        let all = points(&[10, 7]);
        for of in [1, 2, 3] {
            let shares = (0..of).map(|number| Selection::Share { number, of }.of(all.clone()));
            let shares: Vec<_> = shares.collect();
            for share in &shares {
                let has = |moment| share.iter().any(|point| point.moment == moment);
                assert!(Moment::ALL.into_iter().all(has), "{share:?}");
            }
            let mut together = shares.concat();
            together.sort();
            assert_eq!(together, all);
        }
    }

    #[test]
    fn a_report_with_a_failure_names_its_place() {
        let mut report = Report {
            scenario: "join".to_owned(),
            played: 4,
            ..Report::default()
        };
        assert!(report.verdict().is_ok());
        report.failures.push(Failure {
            place: "call 3 of the cloud".to_owned(),
            problem: "node-1 is missing".to_owned(),
        });
        let text = report.verdict().map_err(|error| error.to_string()).err().unwrap_or_default();
        assert!(text.contains("call 3 of the cloud") && text.contains("node-1 is missing"), "{text}");
        report.failures.clear();
        report.missed = 2;
        assert!(report.verdict().is_err(), "a sweep that reaches too few points fails");
    }
}
