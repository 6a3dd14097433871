//! The loop of an election: it runs the steps that [`ElectionState`] decides.

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
    api::{LeaseFailure, LeaseStore},
    metrics::ElectionMetrics,
    request_timeout,
    state::{ElectionState, Step},
};
use crate::logging::{Failing, warn_if_new};

/// While waiting, up to this share of the retry period is added to it, so that replicas do not send requests at once.
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
    /// The process with this identity.
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
enum AttemptOutcome {
    /// This process holds the lease, until this time unless it is renewed.
    Acquired(Instant),
    /// Another process holds it.
    Waiting,
    /// The holder is not known.
    Failed(String),
}

pub(super) struct Elector<L> {
    pub(super) leases: L,
    pub(super) state: ElectionState,
    pub(super) fence: Fence,
    pub(super) metrics: ElectionMetrics,
    /// The current leader, for readers.
    pub(super) leader: watch::Sender<Leader>,
    /// When the last try began.
    tried: Instant,
    /// Whether a write that would acquire the lease had no answer.
    unanswered: bool,
    failing: Failing,
}

impl<L: LeaseStore> Elector<L> {
    pub(super) fn new(
        leases: L,
        state: ElectionState,
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

    /// Waits for the lease, renews it until `stop`, and releases it.
    ///
    /// # Errors
    /// It was lost. The fence is closed then.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Lost> {
        let until = tokio::select! {
            biased;
            () = stop.cancelled() => {
                if self.unanswered {
                    // The write may have acquired it; other processes should not wait for this one.
                    self.release().await;
                }
                return Ok(());
            }
            until = self.acquire() => until,
        };
        info!(identity = self.state.identity(), "Became leader");
        self.announce("became leader");
        let ended = self.renew(until, &stop).await;
        // First of all, whatever the reason.
        if ended.is_err() {
            self.fence.close();
        }
        self.leader.send_replace(Leader::Unknown);
        self.metrics.master.set(0);
        info!(identity = self.state.identity(), "Stopped leading");
        self.announce("stopped leading");
        ended?;
        if self.fence.is_settled(self.state.config().lease_duration) {
            self.release().await;
        } else {
            // That write could arrive after a write of a successor that begins now.
            warn!("Not releasing the lease before it expires: a write was cut off and may still arrive");
        }
        Ok(())
    }

    /// Returns when this process holds the lease, and until when.
    async fn acquire(&mut self) -> Instant {
        info!(identity = self.state.identity(), "Waiting to become leader");
        loop {
            let outcome = self.attempt().await;
            self.report(&outcome);
            if let AttemptOutcome::Acquired(until) = outcome {
                return until;
            }
            let jitter = rand::random_range(0.0..=JITTER);
            sleep(self.state.config().retry_period.mul_f64(1.0 + jitter)).await;
        }
    }

    /// Renews the lease, which this process holds until this time, until `stop`.
    async fn renew(&mut self, mut until: Instant, stop: &CancellationToken) -> Result<(), Lost> {
        let mut why = "there was no time to renew the lease".to_owned();
        loop {
            let next = self.tried.checked_add(self.state.config().retry_period).unwrap_or(until);
            let renewal = async {
                sleep_until(next).await;
                // Not after a pause of this process.
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
                AttemptOutcome::Acquired(renewed) => until = renewed,
                AttemptOutcome::Failed(reason) => why = reason,
                AttemptOutcome::Waiting => {
                    let holder = self.state.lease().map_or("", |lease| lease.holder());
                    return Err(Lost(format!("{holder:?} has acquired the lease")));
                }
            }
        }
    }

    /// One try to acquire or to renew the lease.
    async fn attempt(&mut self) -> AttemptOutcome {
        self.tried = Instant::now();
        if let Some(lease) = self.state.renewal(self.tried, Timestamp::now()) {
            match self.write(&Step::Update(lease)).await {
                Ok(outcome) => return outcome,
                Err(error) => debug!(%error, "Could not renew the lease at once, reading it"),
            }
        }
        let found = match self.ask(self.leases.get()).await {
            Ok(found) => found,
            Err(error) => return AttemptOutcome::Failed(format!("cannot read the lease: {error}")),
        };
        let leads = self.state.until().is_some();
        let Some(step) = self.state.observe(found, Instant::now(), Timestamp::now()) else {
            return AttemptOutcome::Waiting;
        };
        if leads {
            self.metrics.slow_path.inc();
        }
        match self.write(&step).await {
            Ok(outcome) => outcome,
            Err(error) => AttemptOutcome::Failed(format!("cannot write the lease: {error}")),
        }
    }

    /// Writes the Lease with this process as its holder.
    async fn write(&mut self, step: &Step) -> Result<AttemptOutcome, LeaseFailure> {
        let sent = Instant::now();
        // Also if this future is dropped.
        self.unanswered = true;
        let written = match step {
            Step::Create(lease) => self.ask(self.leases.create(lease)).await,
            Step::Update(lease) => self.ask(self.leases.update(lease)).await,
        };
        self.unanswered = matches!(written, Err(LeaseFailure::Unknown(_)));
        match self.state.written(written?, sent) {
            Some(until) => {
                self.fence.allow_until(until);
                self.leader.send_replace(Leader::We(sent));
                self.metrics.master.set(1);
                Ok(AttemptOutcome::Acquired(until))
            }
            None => Ok(AttemptOutcome::Waiting),
        }
    }

    async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, LeaseFailure>>,
    ) -> Result<T, LeaseFailure> {
        let limit = request_timeout(self.state.config());
        timeout(limit, request)
            .await
            .unwrap_or_else(|_| Err(LeaseFailure::Unknown(format!("no answer within {limit:?}"))))
    }

    /// Releases the lease if this process holds it. A renewal that was cut off may have been carried out meanwhile.
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
                    Err(LeaseFailure::Conflict) => {}
                    outcome => return outcome.map(|_| true),
                }
            }
        });
        match released.await {
            Ok(Ok(true)) => info!("Released the lease"),
            Ok(Ok(false)) => debug!("Another process holds the lease, nothing to release"),
            Ok(Err(error)) => warn!(%error, "Could not release the lease, it will expire"),
            Err(_) => warn!(limit = ?RELEASE_LIMIT, "Could not release the lease in time, it will expire"),
        }
    }

    fn announce(&self, what: &str) {
        if let Some(lease) = self.state.lease() {
            self.leases.announce(lease, &format!("{} {what}", self.state.identity()));
        }
    }

    /// Logs changes of the outcome.
    fn report(&mut self, outcome: &AttemptOutcome) {
        if let AttemptOutcome::Failed(error) = outcome {
            warn_if_new!(self.failing.begins(()), error, "Cannot acquire or renew the lease, trying again");
            return;
        }
        if self.failing.ends() {
            info!("The lease can be read and written again");
        }
        if *outcome == AttemptOutcome::Waiting
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
