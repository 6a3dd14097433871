//! The loop of an election: asks [`State`] what to do and does it.

use std::time::Duration;

use ccm_core::client::Fence;
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    api::{Failure, Leases},
    metrics::ElectionMetrics,
    request_timeout,
    state::{State, Step},
};
use crate::logging::{Failing, warn_if_new};

/// While waiting, up to this share of the retry period is added to it, so that replicas do not ask in step.
const JITTER: f64 = 1.2;
/// The release of the lease must not keep the process from ending.
const RELEASE_LIMIT: Duration = Duration::from_secs(3);

/// The leader, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leader {
    #[default]
    Unknown,
    /// This process, which sent the last renewal then.
    We(Instant),
    /// The one with this identity.
    Other(String),
}

impl Leader {
    /// When the lease was last renewed, if this process leads.
    pub(crate) fn renewed(&self) -> Option<Instant> {
        match self {
            Self::We(renewed) => Some(*renewed),
            Self::Unknown | Self::Other(_) => None,
        }
    }

    pub(crate) fn is_we(&self) -> bool {
        self.renewed().is_some()
    }
}

/// The lease is lost, or may be soon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leaderelection lost: {0}")]
pub(super) struct Lost(pub(super) String);

/// The result of one try.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Ours.
    Held,
    /// Somebody else's.
    Waiting,
    /// Nothing is known.
    Failed(String),
    /// It was ours.
    Taken,
}

pub(super) struct Elector<L> {
    pub(super) leases: L,
    pub(super) state: State,
    pub(super) fence: Fence,
    pub(super) metrics: ElectionMetrics,
    /// Shows others who leads.
    pub(super) leader: watch::Sender<Leader>,
    /// When the last try began.
    tried: Instant,
    /// Whether a write that would make the lease ours had no answer.
    unanswered: bool,
    failing: Failing,
}

impl<L: Leases> Elector<L> {
    pub(super) fn new(
        leases: L,
        state: State,
        fence: Fence,
        metrics: ElectionMetrics,
        leader: watch::Sender<Leader>,
    ) -> Self {
        Self {
            leases,
            state,
            fence,
            metrics,
            leader,
            tried: Instant::now(),
            unanswered: false,
            failing: Failing::default(),
        }
    }

    /// Waits for the lease, keeps it until `stop`, and releases it.
    ///
    /// # Errors
    /// It was lost. The fence is closed then.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Lost> {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.acquire() => {}
        }
        if self.state.until().is_none() {
            if self.unanswered {
                // It may be ours without our knowing; nobody should have to wait for us.
                self.release().await;
            }
            return Ok(());
        }
        info!(identity = self.state.identity(), "Became leader");
        self.announce("became leader");
        let held = self.hold(&stop).await;
        // Before anything else, whichever way it ended.
        if held.is_err() {
            self.fence.close();
        }
        self.leader.send_replace(Leader::Unknown);
        self.metrics.leads(false);
        info!(identity = self.state.identity(), "Stopped leading");
        self.announce("stopped leading");
        held?;
        if self.fence.is_settled(self.state.config().lease_duration) {
            self.release().await;
        } else {
            // A successor that begins now could be overtaken by it.
            warn!(
                "Not giving up the lease before it runs out: a write was cut off and may still arrive at its destination"
            );
        }
        Ok(())
    }

    /// Returns when the lease is ours.
    async fn acquire(&mut self) {
        info!(identity = self.state.identity(), "Waiting to become leader");
        loop {
            let outcome = self.attempt().await;
            self.report(&outcome);
            if outcome == Outcome::Held {
                return;
            }
            let jitter = rand::random_range(0.0..=JITTER);
            sleep(self.state.config().retry_period.mul_f64(1.0 + jitter)).await;
        }
    }

    /// Renews the lease until `stop`.
    async fn hold(&mut self, stop: &CancellationToken) -> Result<(), Lost> {
        let mut why = "there was no time to renew the lease".to_owned();
        loop {
            let Some(until) = self.state.until() else {
                return Err(Lost(
                    "the API server gave the lease to another process".to_owned(),
                ));
            };
            let next = self
                .tried
                .checked_add(self.state.config().retry_period)
                .unwrap_or(until);
            let renewal = async {
                sleep_until(next).await;
                // Not after a time in which this process did not run.
                if Instant::now() < until {
                    self.attempt().await
                } else {
                    std::future::pending().await
                }
            };
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = sleep_until(until) => {
                    return Err(Lost(format!("the lease was not renewed in time: {why}")));
                }
                outcome = renewal => outcome,
            };
            self.report(&outcome);
            match outcome {
                Outcome::Held => {}
                Outcome::Failed(reason) => why = reason,
                Outcome::Waiting | Outcome::Taken => {
                    let holder = self.state.lease().map_or("", |lease| lease.holder());
                    return Err(Lost(format!("{holder:?} has taken the lease")));
                }
            }
        }
    }

    /// One try to get or to keep the lease.
    async fn attempt(&mut self) -> Outcome {
        self.tried = Instant::now();
        if let Some(lease) = self.state.renewal(self.tried, Timestamp::now()) {
            match self.write(&Step::Update(lease)).await {
                Ok(outcome) => return outcome,
                Err(error) => debug!(%error, "Could not renew the lease at once, reading it"),
            }
        }
        let found = match self.ask(self.leases.get()).await {
            Ok(found) => found,
            Err(error) => return Outcome::Failed(format!("cannot read the lease: {error}")),
        };
        let leads = self.state.until().is_some();
        let step = self.state.found(found, Instant::now(), Timestamp::now());
        match step {
            Step::Wait => Outcome::Waiting,
            Step::Lost => Outcome::Taken,
            Step::Create(_) | Step::Update(_) => {
                if leads {
                    self.metrics.slow_path();
                }
                match self.write(&step).await {
                    Ok(outcome) => outcome,
                    Err(error) => Outcome::Failed(format!("cannot write the lease: {error}")),
                }
            }
        }
    }

    /// Writes the Lease as ours.
    async fn write(&mut self, step: &Step) -> Result<Outcome, Failure> {
        let sent = Instant::now();
        // Also if this is cancelled.
        self.unanswered = true;
        let written = match step {
            Step::Create(lease) => self.ask(self.leases.create(lease)).await,
            Step::Update(lease) => self.ask(self.leases.update(lease)).await,
            Step::Wait | Step::Lost => return Ok(Outcome::Waiting),
        };
        self.unanswered = matches!(written, Err(Failure::Unknown(_)));
        match self.state.written(written?, sent) {
            Some(until) => {
                self.fence.allow_until(until);
                self.leader.send_replace(Leader::We(sent));
                self.metrics.leads(true);
                Ok(Outcome::Held)
            }
            None => Ok(Outcome::Waiting),
        }
    }

    async fn ask<T>(&self, request: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let limit = request_timeout(self.state.config());
        timeout(limit, request)
            .await
            .unwrap_or_else(|_| Err(Failure::Unknown(format!("no answer within {limit:?}"))))
    }

    /// Gives the lease up if it is ours. A renewal that was cut off may have been carried out meanwhile.
    async fn release(&mut self) {
        let released = timeout(RELEASE_LIMIT, async {
            loop {
                let Some(lease) = self.ask(self.leases.get()).await? else {
                    return Ok(false);
                };
                if lease.holder() != self.state.identity() {
                    return Ok(false);
                }
                let released = lease.released(Timestamp::now());
                match self.ask(self.leases.update(&released)).await {
                    Err(Failure::Conflict) => {}
                    outcome => return outcome.map(|_| true),
                }
            }
        });
        match released.await {
            Ok(Ok(true)) => info!("Gave up the lease"),
            Ok(Ok(false)) => debug!("The lease is not ours, nothing to give up"),
            Ok(Err(error)) => warn!(%error, "Could not give up the lease, it will run out"),
            Err(_) => warn!(limit = ?RELEASE_LIMIT, "Could not give up the lease in time, it will run out"),
        }
    }

    fn announce(&self, what: &str) {
        if let Some(lease) = self.state.lease() {
            self.leases
                .announce(lease, &format!("{} {what}", self.state.identity()));
        }
    }

    /// Logs a change.
    fn report(&mut self, outcome: &Outcome) {
        if let Outcome::Failed(error) = outcome {
            warn_if_new!(
                self.failing.begins(()),
                error,
                "Cannot get or renew the lease, trying again"
            );
            return;
        }
        if self.failing.ends() {
            info!("The lease can be read and written again");
        }
        if *outcome == Outcome::Waiting
            && let Some(lease) = self.state.lease()
        {
            let other = Leader::Other(lease.holder().to_owned());
            let before = self.leader.send_replace(other.clone());
            if before != other {
                info!(leader = lease.holder(), "Another process leads");
            }
        }
    }
}
