//! Reload of the cloud's config: when its files change, the cloud applies what it can while running.
//!
//! The files are compared every few seconds ([`WatchedFiles`]). A problem of a changed config is reported once for each
//! content, by log and Event, and the config is tried again with growing waits: the cloud may accept it later. Meanwhile the
//! previous config stays in use.
//!
//! | Metric | Meaning |
//! |---|---|
//! | `ccm_config_reloads_total{result}` | reloads of a changed config: `applied`, `unchanged` (without effect), `invalid`, `rejected` (by the cloud) |
//! | `ccm_config_last_reload_successful` | 1, or 0 while the content of the files is not in use because of an error |

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Error, ErrorKind, Reload,
    controllers::{Backoff, EventType, Recorder},
};
use k8s_openapi::api::core::v1::ObjectReference;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    files::{Contents, WatchedFiles},
    metrics::{Labels, increment, metrics},
};

/// The reason of the Event after a successful reload.
const RELOADED: &str = "CloudConfigReloaded";

/// How long after a change the files are read: they are often changed one after the other.
const SETTLE: Duration = Duration::from_secs(1);
/// How often files are compared.
const POLL: Duration = Duration::from_secs(3);
/// The waits before a config that failed is tried again. Not shorter: a cloud may lock out a user after too many wrong
/// passwords.
const BACKOFF: Backoff = Backoff::seconds(10, 300);
/// The limit of a reload, for a provider without deadlines of its own.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(300);

metrics! {
    struct ReloadMetrics {
        reloads: Family<Labels<1>, Counter> = "ccm_config_reloads",
        successful: Gauge = "ccm_config_last_reload_successful",
    }
}

/// Applies a changed config.
pub(crate) struct Reloader {
    cloud: Arc<dyn Cloud>,
    recorder: Recorder,
    /// The object of Events.
    object: ObjectReference,
    metrics: ReloadMetrics,
    files: WatchedFiles,
    /// The content that was compared last. `None` before the first time.
    seen: Option<Contents>,
    failure: Option<ReloadFailure>,
    /// The keys that wait for a restart.
    restart_needed: BTreeSet<String>,
}

/// A config that is not in use.
#[derive(Debug)]
struct ReloadFailure {
    reason: &'static str,
    /// Failures of this content in a row.
    count: u32,
    again_at: Instant,
}

impl Reloader {
    pub(crate) fn new(
        cloud: Arc<dyn Cloud>,
        recorder: Recorder,
        object: ObjectReference,
        registry: &mut Registry,
    ) -> Self {
        let metrics = ReloadMetrics::register(registry);
        metrics.successful.set(1);
        Self {
            cloud,
            recorder,
            object,
            metrics,
            files: WatchedFiles::new([]),
            seen: None,
            failure: None,
            restart_needed: BTreeSet::new(),
        }
    }

    /// Runs until `shutdown`, which cancels a reload in progress.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled_owned(self.watch()).await;
    }

    async fn watch(mut self) {
        loop {
            self.check().await;
            let poll = Instant::now() + POLL;
            let retry = self.failure.as_ref().map(|failure| failure.again_at);
            sleep_until(retry.map_or(poll, |retry| retry.min(poll))).await;
        }
    }

    /// Compares the files, and reloads the config if they have changed or a retry is due.
    async fn check(&mut self) {
        let files = self.cloud.watched_files();
        let Some(mut contents) = self.contents(&files).await else {
            return;
        };
        if self.seen.as_ref().is_some_and(|seen| *seen != contents) {
            sleep(SETTLE).await;
            contents = self.contents(&files).await.unwrap_or(contents);
        }
        let changed = self.seen.as_ref() != Some(&contents);
        let failure = self.failure.as_ref();
        if !changed && failure.is_none_or(|failure| Instant::now() < failure.again_at) {
            return;
        }
        let outcome = timeout(RELOAD_TIMEOUT, self.cloud.reload())
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Timeout, "no answer from the cloud in time")));
        let now = self.cloud.watched_files();
        // The content before the reload counts, so that a change during the reload is a change.
        self.seen = match &outcome {
            _ if now == files => Some(contents),
            // Files that were not compared before: the cloud reads them once more, at no cost.
            Ok(_) => None,
            // Another reload would be one more try with the refused content.
            Err(_) => self.contents(&now).await.map(|mut now| {
                for (path, content) in contents {
                    now.entry(path).and_modify(|seen| *seen = content);
                }
                now
            }),
        };
        match outcome {
            Ok(reload) => self.report_success(&reload),
            Err(error) => self.report_failure(&error, changed),
        }
    }

    fn report_success(&mut self, reload: &Reload) {
        let failure = self.failure.take();
        self.metrics.successful.set(1);
        let scope = self.cloud.scope();
        if !reload.applied.is_empty() {
            increment(&self.metrics.reloads, "result", "applied");
            let keys = reload.applied.join(", ");
            info!(keys, scope, "Applied the changed cloud config");
            let message = format!("Applied {keys}; using {scope}");
            self.publish(EventType::Normal, RELOADED, &message);
        } else if failure.is_some() {
            increment(&self.metrics.reloads, "result", "unchanged");
            info!(scope, "The failed change of the cloud config was reverted");
            let message = format!("The failed change was reverted; using {scope}");
            self.publish(EventType::Normal, RELOADED, &message);
        } else {
            increment(&self.metrics.reloads, "result", "unchanged");
            debug!("The files of the cloud config changed without effect");
        }
        let keys: BTreeSet<_> = reload.restart_needed.iter().cloned().collect();
        if keys == self.restart_needed {
            return;
        }
        if keys.is_empty() {
            info!("Changes of the cloud config no longer need a restart");
        } else {
            let keys = keys.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            warn!(keys, "Changed in the cloud config, restart needed");
        }
        self.restart_needed = keys;
    }

    /// `changed`: the content was not tried before.
    fn report_failure(&mut self, error: &Error, changed: bool) {
        let (result, reason) = match error.kind() {
            ErrorKind::InvalidConfig => ("invalid", "CloudConfigInvalid"),
            _ => ("rejected", "CloudConfigRejected"),
        };
        increment(&self.metrics.reloads, "result", result);
        self.metrics.successful.set(0);
        let before = if changed { None } else { self.failure.take() };
        let count = before.as_ref().map_or(1, |before| before.count + 1);
        let wait = BACKOFF.delay(count);
        self.failure = Some(ReloadFailure {
            reason,
            count,
            again_at: Instant::now() + wait,
        });
        let report = error.report();
        if before.is_some_and(|before| before.reason == reason) {
            debug!(error = report, retry_in = ?wait, "The changed cloud config still cannot be applied");
            return;
        }
        warn!(
            error = report,
            "The changed cloud config cannot be applied, keeping the previous config in use"
        );
        let message =
            format!("Keeping the previous config in use, the changed one cannot be applied: {report}");
        self.publish(EventType::Warning, reason, &message);
    }

    fn publish(&self, kind: EventType, reason: &str, message: &str) {
        self.recorder.publish(self.object.clone(), kind, reason, message);
    }

    async fn contents(&self, files: &[PathBuf]) -> Option<Contents> {
        let (watched, files) = (self.files.clone(), files.to_vec());
        tokio::task::spawn_blocking(move || watched.read(files)).await.ok()
    }
}
