//! One leader among replicas: an election on a Lease, with the semantics of client-go, so that both can contend for the
//! same one.
//!
//! The process that can write its name into the Lease leads. A leader renews it every `retry_period`. Another process takes it
//! when it has seen no renewal for the lease's duration, by its own clock alone. The API server refuses the second of two
//! writers (`resourceVersion`).
//!
//! That alone does not stop a leader that lost its lease unnoticed from writing. Each renewal therefore opens the [`Fence`] that
//! all writes pass, until `renew_deadline` after the *sending* of the renewal. That is before another process may take the
//! lease. Nothing has to happen for the fence to close.
//!
//! | Module | Contents |
//! |---|---|
//! | [`lease`] | the object, read and changed |
//! | [`state`] | the decision what to do: pure |
//! | [`elector`] | the loop |
//! | [`api`] | the API server |
//!
//! A process that takes part in a leader migration holds two leases: its own, and, once it has that, the lease of the
//! controllers that migrate between managers. Each has a fence of its own. The loss of either ends the process.
//!
//! The end: a leader that is to stop renews the lease until its last write has returned, and then releases it. A leader that
//! lost the lease stops at once.

mod api;
mod elector;
mod lease;
mod metrics;
mod state;

use std::time::Duration;

use anyhow::anyhow;
use ccm_core::{
    client::Fence,
    controllers::events::{self, EventMetrics},
};
use futures_util::future::{join_all, select_all};
use kube::Client;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span};

use crate::{
    config::ElectionConfig,
    server::{CheckKind, Checks, Shown},
};
use api::LeaseApi;
use elector::Elector;
pub(crate) use elector::Leader;
use metrics::LeaseMetrics;
use state::ElectionState;

/// Source of the election's events.
const COMPONENT: &str = "cloud-controller-manager";
/// How long after the end of its lease a leader that neither renews it nor exits counts as stuck.
const STUCK: Duration = Duration::from_secs(20);
/// The limit of the events about the end.
const LAST_EVENTS: Duration = Duration::from_secs(1);
/// The limit of the release of the lease, and of the event about it.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How long one request of the election may take.
pub(crate) fn request_timeout(config: &ElectionConfig) -> Duration {
    (config.renew_deadline / 2).max(Duration::from_secs(1))
}

/// A replica's part in the election.
#[derive(Clone, Debug)]
pub(crate) struct Candidacy {
    begin: CancellationToken,
    leader: watch::Receiver<Leader>,
}

impl Candidacy {
    /// The current leader.
    pub(crate) fn leader(&self) -> Leader {
        self.leader.borrow().clone()
    }

    /// Takes part from now on, and returns when this process leads. Never returns if the election has ended.
    pub(crate) async fn lead(&mut self) {
        self.begin.cancel();
        if self.leader.wait_for(Leader::is_we).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The purpose of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// One leader among replicas.
    Main,
    /// The controllers that migrate between managers.
    Migration,
}

impl Purpose {
    fn check(self) -> &'static str {
        match self {
            Self::Main => "leaderElection",
            Self::Migration => "leaderElection-migration",
        }
    }

    /// The reason for the end of the process, in the words of other components.
    fn lost(self, lost: elector::Lost) -> anyhow::Error {
        match self {
            Self::Main => lost.into(),
            Self::Migration => anyhow!("migration {lost}"),
        }
    }
}

/// The common inputs of the elections of one process.
pub(crate) struct Contest<'a> {
    config: &'a ElectionConfig,
    pub(crate) client: Client,
    identity: String,
    metrics: LeaseMetrics,
    event_metrics: &'a EventMetrics,
    checks: &'a Checks,
}

impl<'a> Contest<'a> {
    /// `client` is for the elections alone, and is not fenced.
    pub(crate) fn new(
        config: &'a ElectionConfig,
        client: Client,
        shown: &'a Shown,
        event_metrics: &'a EventMetrics,
    ) -> Self {
        Self {
            config,
            client,
            identity: identity(),
            metrics: shown.metrics.with(LeaseMetrics::register),
            event_metrics,
            checks: &shown.checks,
        }
    }
}

/// One election of the process.
#[derive(Debug)]
pub(crate) struct Election {
    fence: Fence,
    stop: CancellationToken,
    /// `None` without an election, or after its end.
    task: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Election {
    /// No election: this process leads.
    pub(crate) fn none(fence: Fence) -> (Self, Candidacy) {
        // The receiver keeps the value after the sender is dropped.
        let (_, leader) = watch::channel(Leader::We(Instant::now()));
        Self::new(fence, leader)
    }

    /// An election without a task.
    fn new(fence: Fence, leader: watch::Receiver<Leader>) -> (Self, Candidacy) {
        let candidacy = Candidacy {
            begin: CancellationToken::new(),
            leader,
        };
        let election = Self {
            fence,
            stop: CancellationToken::new(),
            task: None,
        };
        (election, candidacy)
    }

    /// An election for the Lease of this name that begins with [`Candidacy::lead`] and opens this fence.
    pub(crate) fn start(
        contest: &Contest<'_>,
        purpose: Purpose,
        name: &str,
        fence: Fence,
    ) -> (Self, Candidacy) {
        let config = contest.config;
        let (sender, leader) = watch::channel(Leader::default());
        let longest = config.lease_duration + STUCK;
        let seen = leader.clone();
        let check = purpose.check();
        contest
            .checks
            .register_probe(check, CheckKind::Live, move || match seen.borrow().renewed() {
                Some(at) if at.elapsed() > longest => {
                    Err("the lease has expired, and the process still leads".to_owned())
                }
                _ => Ok(()),
            });
        let writer = events::Writer::new(contest.client.clone(), contest.event_metrics);
        let elector = Elector::new(
            LeaseApi::new(contest.client.clone(), &config.namespace, name, writer.recorder(COMPONENT)),
            ElectionState::new(config, &contest.identity, name),
            fence.clone(),
            contest.metrics.of(name),
            sender,
        );
        let (mut election, candidacy) = Self::new(fence, leader);
        let (begin, end) = (candidacy.begin.clone(), election.stop.clone());
        let span = info_span!("election", lease = format!("{}/{name}", config.namespace));
        let elect = async move {
            let writer = tokio::spawn(writer.run());
            tokio::select! {
                biased;
                () = end.cancelled() => return Ok(()),
                () = begin.cancelled() => {}
            }
            let ended = elector.run(end).await;
            // The recorder was dropped with the elector, so that the writer ends with the last event.
            let _ = timeout(LAST_EVENTS, writer).await;
            ended.map_err(|lost| purpose.lost(lost))
        };
        election.task = Some(tokio::spawn(elect.instrument(span)));
        (election, candidacy)
    }

    /// Returns if the election ends unexpectedly, with the reason. The fence is closed then.
    pub(crate) async fn lost(&mut self) -> anyhow::Error {
        let Some(task) = &mut self.task else {
            return std::future::pending().await;
        };
        let ended = task.await;
        self.task = None;
        self.fence.close();
        match ended {
            Ok(Err(error)) => error,
            Ok(Ok(())) => anyhow!("the leader election ended unexpectedly"),
            Err(error) => anyhow!(error).context("the leader election panicked"),
        }
    }

    /// Ends it: waits at most until `limit` for writes in progress, refuses further writes, and releases the lease.
    pub(crate) async fn end(mut self, limit: Instant) {
        let _ = timeout_at(limit, self.fence.idle()).await;
        self.fence.close();
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = timeout(END_LIMIT, task).await;
        }
    }
}

/// All elections of the process.
#[derive(Debug)]
pub(crate) struct Elections(pub(crate) Vec<Election>);

impl Elections {
    /// As [`Election::lost`], of the first election that ends.
    pub(crate) async fn lost(&mut self) -> anyhow::Error {
        let all = self.0.iter_mut().map(|election| Box::pin(election.lost()));
        select_all(all).await.0
    }

    /// As [`Election::end`], of all elections.
    pub(crate) async fn end(self, limit: Instant) {
        join_all(self.0.into_iter().map(|election| election.end(limit))).await;
    }
}

/// `<host name>_<uuid>`, as client-go's components call themselves.
fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::env::var("HOSTNAME"))
        .unwrap_or_default();
    let host = match host.trim() {
        "" => "unknown",
        host => host,
    };
    let uuid = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
    format!("{host}_{uuid}")
}

#[cfg(test)]
mod tests;
