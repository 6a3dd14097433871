//! The cloud's config files: when they change, the cloud takes over what it can while running.
//!
//! A mounted Secret is changed by replacing a symbolic link, so directories are watched, not files; and since not every
//! file system tells, contents are compared every minute as well. A touch without a change of content is nothing.
//!
//! What is wrong with a new config is told once for each content, by log and Event, and it is tried again with growing
//! pauses: what the cloud refuses now it may accept later. Until then, what was in force stays in force.
//!
//! | Metric | Meaning |
//! |---|---|
//! | `ccm_config_reloads_total{result}` | looks at a changed config: `applied`, `unchanged` (nothing that matters), `invalid`, `rejected` (by the cloud) |
//! | `ccm_config_last_reload_successful` | 1, or 0 while the files hold something else than what is in force because of an error |

mod files;
#[cfg(test)]
mod tests;
mod watcher;

use std::{collections::BTreeSet, hash::RandomState, path::PathBuf, sync::Arc, time::Duration};

use ccm_core::{
    Cloud, Error, ErrorKind, Reload,
    controllers::{EventType, Recorder},
};
use k8s_openapi::api::core::v1::ObjectReference;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub(crate) use self::files::Contents;

use self::watcher::Watcher;
use crate::options::ElectionConfig;

/// The source of events.
pub(crate) const COMPONENT: &str = "cloud-controller-manager";

/// The reason of the event that tells that all is well.
const RELOADED: &str = "CloudConfigReloaded";

/// How long after the first sign of a change files are read: they are often changed one after the other.
const SETTLE: Duration = Duration::from_secs(1);
/// How often files are compared though nothing told of a change.
const POLL: Duration = Duration::from_secs(60);
/// The first and the longest pause before a config that failed is tried again. Not shorter: a cloud may lock a user out who
/// tries a wrong password too often.
const RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));
/// A provider has deadlines of its own; this is for one that forgot.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug)]
struct ReloadMetrics {
    reloads: Family<ResultLabel, Counter>,
    successful: Gauge,
}

impl ReloadMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reloads: Family::default(),
            successful: Gauge::default(),
        };
        metrics.successful.set(1);
        registry.register(
            "ccm_config_reloads",
            "Reloads of the cloud config, by result: applied, unchanged, invalid or rejected",
            metrics.reloads.clone(),
        );
        registry.register(
            "ccm_config_last_reload_successful",
            "Whether the cloud config was taken over the last time that it changed",
            metrics.successful.clone(),
        );
        metrics
    }

    fn count(&self, result: &'static str) {
        self.reloads.get_or_create(&ResultLabel { result }).inc();
    }
}

/// Sees to it that a changed config is taken over.
pub(crate) struct Reloader {
    cloud: Arc<dyn Cloud>,
    recorder: Recorder,
    /// What events are about.
    object: ObjectReference,
    metrics: ReloadMetrics,
    settle: Duration,
    poll: Duration,
    hasher: RandomState,
    state: State,
}

/// What was seen and said so far.
#[derive(Default)]
struct State {
    /// What was looked at last. `None` before the first time.
    seen: Option<Contents>,
    failure: Option<Failure>,
    /// The keys that wait for a restart.
    restart_needed: BTreeSet<String>,
}

/// A config that is not in force.
#[derive(Debug)]
struct Failure {
    reason: &'static str,
    again_at: Instant,
    pause: Duration,
}

impl Reloader {
    pub(crate) fn new(
        cloud: Arc<dyn Cloud>,
        recorder: Recorder,
        object: ObjectReference,
        registry: &mut Registry,
    ) -> Self {
        Self {
            cloud,
            recorder,
            object,
            metrics: ReloadMetrics::register(registry),
            settle: SETTLE,
            poll: POLL,
            hasher: RandomState::new(),
            state: State::default(),
        }
    }

    /// Runs until `shutdown`. A reload that is under way then is given up.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled_owned(self.watch()).await;
    }

    async fn watch(mut self) {
        let mut watcher = Watcher::new();
        loop {
            let files = self.cloud.watched_files();
            // The watch first: what changes after the look is a sign then.
            watcher.watch(files.iter().flat_map(|path| files::directories(path)).collect());
            let others = self.look(files).await;
            let poll = Instant::now() + self.poll;
            let again = match &self.state.failure {
                _ if others => Instant::now() + self.settle,
                Some(failure) => failure.again_at.min(poll),
                None => poll,
            };
            tokio::select! {
                () = watcher.changed() => sleep(self.settle).await,
                () = sleep_until(again) => {}
            }
        }
    }

    /// Looks at the files, and has them taken over if that is due. Returns whether there are others to be looked at now.
    async fn look(&mut self, files: Vec<PathBuf>) -> bool {
        let Some(contents) = self.contents(&files).await else {
            return false;
        };
        let changed = self.state.seen.as_ref() != Some(&contents);
        let due = self
            .state
            .failure
            .as_ref()
            .is_some_and(|failure| Instant::now() >= failure.again_at);
        if !changed && !due {
            return false;
        }
        let outcome = timeout(RELOAD_TIMEOUT, self.cloud.reload())
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Timeout, "no answer from the cloud in time")));
        let now = self.cloud.watched_files();
        let others = now != files;
        // The look before the reload counts, so that what changed during it is a change.
        self.state.seen = match (&outcome, others) {
            (_, false) => Some(contents),
            // Files that nobody had looked at before: once more, now that they are watched. It costs the cloud nothing.
            (Ok(_), true) => None,
            // Once more would be one more try with what was just refused.
            (Err(_), true) => self.contents(&now).await.map(|now| now.with_seen(&contents)),
        };
        match outcome {
            Ok(reload) => self.taken_over(&reload),
            Err(error) => self.refused(&error, changed),
        }
        others
    }

    fn taken_over(&mut self, reload: &Reload) {
        let failure = self.state.failure.take();
        self.metrics.successful.set(1);
        let scope = self.cloud.scope();
        if !reload.applied.is_empty() {
            self.metrics.count("applied");
            let keys = reload.applied.join(", ");
            info!(keys, scope, "Took over the changed cloud config");
            self.tell(
                EventType::Normal,
                RELOADED,
                &format!("Took over {keys}; asking {scope}"),
            );
        } else if failure.is_some() {
            self.metrics.count("unchanged");
            info!(scope, "The cloud config is as it was before it failed");
            let message = format!("The cloud config is as it was before; asking {scope}");
            self.tell(EventType::Normal, RELOADED, &message);
        } else {
            self.metrics.count("unchanged");
            debug!("Nothing in the cloud config's files that could be taken over has changed");
        }
        let keys: BTreeSet<_> = reload.restart_needed.iter().cloned().collect();
        if keys == self.state.restart_needed {
            return;
        }
        if keys.is_empty() {
            info!("What needed a restart in the cloud config is as it was at the start");
        } else {
            let keys = keys.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            warn!(keys, "Changed in the cloud config, restart needed");
        }
        self.state.restart_needed = keys;
    }

    /// `changed`: the content was not tried before.
    fn refused(&mut self, error: &Error, changed: bool) {
        let (result, reason) = match error.kind() {
            ErrorKind::InvalidConfig => ("invalid", "CloudConfigInvalid"),
            _ => ("rejected", "CloudConfigRejected"),
        };
        self.metrics.count(result);
        self.metrics.successful.set(0);
        let before = self.state.failure.take().filter(|_| !changed);
        let pause = before
            .as_ref()
            .map_or(RETRY.0, |before| (before.pause * 2).min(RETRY.1));
        self.state.failure = Some(Failure {
            reason,
            again_at: Instant::now() + pause,
            pause,
        });
        let report = error.report();
        if before.is_some_and(|before| before.reason == reason) {
            debug!(error = report, retry_in = ?pause, "The changed cloud config still can not be taken over");
            return;
        }
        warn!(
            error = report,
            "The changed cloud config can not be taken over, keeping what is in force"
        );
        let message = format!("Keeping the config in force, the changed one can not be taken over: {report}");
        self.tell(EventType::Warning, reason, &message);
    }

    fn tell(&self, kind: EventType, reason: &str, message: &str) {
        self.recorder.publish(self.object.clone(), kind, reason, message);
    }

    async fn contents(&self, files: &[PathBuf]) -> Option<Contents> {
        let (files, hasher) = (files.to_vec(), self.hasher.clone());
        tokio::task::spawn_blocking(move || Contents::read(&files, &hasher))
            .await
            .ok()
    }
}

/// What events about the process are about: its Pod, if the manifest says which it is (`POD_NAME`, `POD_NAMESPACE` and
/// perhaps `POD_UID` by the downward API), else the Lease that stands for all replicas.
pub(crate) fn process_object(
    election: Option<&ElectionConfig>,
    variable: impl Fn(&str) -> Option<String>,
) -> ObjectReference {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let (Some(name), Some(namespace)) = (variable("POD_NAME"), variable("POD_NAMESPACE")) {
        return ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(name),
            namespace: Some(namespace),
            uid: variable("POD_UID"),
            ..ObjectReference::default()
        };
    }
    ObjectReference {
        api_version: Some("coordination.k8s.io/v1".to_owned()),
        kind: Some("Lease".to_owned()),
        name: Some(election.map_or_else(|| COMPONENT.to_owned(), |lease| lease.name.clone())),
        namespace: Some(election.map_or_else(|| "kube-system".to_owned(), |lease| lease.namespace.clone())),
        ..ObjectReference::default()
    }
}
