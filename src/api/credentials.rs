//! Credentials for the API server, and their renewal.
//!
//! The kubelet, an administrator or a plugin replaces tokens, certificates and authorities while the program runs. They are
//! loaded again when the content of a file has changed, shortly before they expire if they have an expiry, and when the API
//! server answers 401. Unusable credentials leave the previous ones in use.
//!
//! The address of the server never changes: the state of this process belongs to one cluster.

mod plugin;
mod source;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use kube::Config;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

pub(crate) use source::Source;

use crate::{
    files::WatchedFiles,
    logging::{Failing, warn_if_new},
};
use source::Loaded;

/// How often files are compared and a failed plugin is run again. Also the least time between two reloads after answers 401: a
/// run of a plugin may be expensive.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long before their expiry credentials are renewed; a fifth of their life if that is shorter.
const LEAD: Duration = Duration::from_secs(60);

/// The credentials in use.
pub(super) struct Current {
    /// Complete: no file and no plugin is needed for it.
    pub(super) config: Config,
    /// Counts up.
    pub(super) generation: u64,
}

/// The credentials of one source. A clone is the same.
#[derive(Clone)]
pub(crate) struct Credentials(Arc<Shared>);

struct Shared {
    source: Source,
    current: watch::Sender<Arc<Current>>,
    /// The newest generation that the API server has answered 401 to.
    rejected: watch::Sender<u64>,
}

impl Credentials {
    /// Loads the source, and follows its changes until the last clone is dropped.
    ///
    /// # Errors
    /// The problem of the source, for the user.
    pub(crate) async fn load(source: Source) -> Result<Self, String> {
        Self::load_at(source, INTERVAL).await
    }

    /// The same with another interval.
    async fn load_at(source: Source, interval: Duration) -> Result<Self, String> {
        // Before the source is loaded, so that no later change is missed.
        let mut watch = Watch::new(&source, interval);
        let loaded = source.load().await?;
        let current = Current {
            config: loaded.config,
            generation: 1,
        };
        let shared = Arc::new(Shared {
            source,
            current: watch::Sender::new(Arc::new(current)),
            rejected: watch::Sender::default(),
        });
        watch.loaded(loaded.expires, loaded.from_plugin);
        tokio::spawn(watch.follow(Arc::downgrade(&shared), shared.rejected.subscribe()));
        Ok(Self(shared))
    }

    pub(crate) fn source(&self) -> &Source {
        &self.0.source
    }

    /// The credentials in use.
    pub(super) fn current(&self) -> Arc<Current> {
        self.0.current.borrow().clone()
    }

    /// Records that the API server has answered 401 to this generation.
    pub(super) fn rejected(&self, generation: u64) {
        let current = self.current().generation;
        self.0.rejected.send_if_modified(|newest| {
            let is_new = generation >= current && generation > *newest;
            if is_new {
                *newest = generation;
            }
            is_new
        });
    }
}

/// The state between two checks of a source.
struct Watch {
    interval: Duration,
    /// The files with the content that was last compared, usable or not.
    files: WatchedFiles,
    /// When the credentials are renewed even if no file changes.
    due: Option<Instant>,
    from_plugin: bool,
    /// The problems of changed credentials.
    failing: Failing<String>,
    /// Whether the credentials in use are rejected.
    rejected: Failing,
}

impl Watch {
    fn new(source: &Source, interval: Duration) -> Self {
        Self {
            interval,
            files: WatchedFiles::new(source.files()),
            due: None,
            from_plugin: false,
            failing: Failing::default(),
            rejected: Failing::default(),
        }
    }

    fn loaded(&mut self, expires: Option<Timestamp>, from_plugin: bool) {
        // A plugin that returns expired credentials is not run in a loop.
        self.due = expires.map(|end| Instant::now() + until_renewal(end).max(self.interval));
        self.from_plugin = from_plugin;
        self.failing.ends();
    }

    async fn follow(mut self, shared: Weak<Shared>, mut rejected: watch::Receiver<u64>) {
        let mut last_rejection: Option<Instant> = None;
        loop {
            let next = Instant::now() + self.interval;
            let is_rejected = tokio::select! {
                () = sleep_until(self.due.map_or(next, |due| due.min(next))) => false,
                changed = rejected.changed() => changed.is_ok(),
            };
            if is_rejected {
                if let Some(last) = last_rejection {
                    sleep_until(last + self.interval).await;
                }
                last_rejection = Some(Instant::now());
            }
            let Some(shared) = shared.upgrade() else {
                return;
            };
            self.check(&shared, is_rejected).await;
        }
    }

    async fn check(&mut self, shared: &Shared, is_rejected: bool) {
        let source = &shared.source;
        let has_changed = self.files.has_changed();
        let is_due = self.due.is_some_and(|due| due <= Instant::now());
        if !(has_changed || is_due || (is_rejected && self.from_plugin)) {
            if is_rejected {
                self.report_rejection(source);
            }
            return;
        }
        if has_changed {
            // Before the source is loaded, so that no later change is missed.
            self.files.replace(source.files());
        }
        let before = shared.current.borrow().clone();
        let loaded = source.load().await;
        match loaded.and_then(|loaded| same_server(&before, loaded)) {
            Ok(loaded) => {
                self.loaded(loaded.expires, loaded.from_plugin);
                if is_rejected && same_user(&before.config, &loaded.config) {
                    self.report_rejection(source);
                } else {
                    self.rejected.ends();
                    info!(%source, "Applied changed credentials for the API server");
                }
                shared.current.send_replace(Arc::new(Current {
                    config: loaded.config,
                    generation: before.generation + 1,
                }));
            }
            Err(error) => {
                self.due = Some(Instant::now() + self.interval);
                warn_if_new!(
                    self.failing.begins(error.clone()),
                    error,
                    "Changed credentials for the API server are not usable, keeping the previous ones"
                );
            }
        }
    }

    fn report_rejection(&mut self, source: &Source) {
        if self.rejected.begins(()) {
            warn!(
                %source,
                "The API server does not accept the credentials (401); they are loaded again when they change"
            );
        }
    }
}

fn same_user(old: &Config, new: &Config) -> bool {
    let secrets = |config: &Config| serde_json::to_value(&config.auth_info).ok();
    secrets(old) == secrets(new)
}

fn same_server(before: &Current, loaded: Loaded) -> Result<Loaded, String> {
    let (old, new) = (&before.config.cluster_url, &loaded.config.cluster_url);
    if old != new {
        return Err(format!(
            "the server is {new} now, it was {old}; restart the program to change the API server"
        ));
    }
    Ok(loaded)
}

/// How long credentials with this expiry are used.
fn until_renewal(end: Timestamp) -> Duration {
    let left = Duration::try_from(end.duration_since(Timestamp::now())).unwrap_or_default();
    left.saturating_sub(LEAD.min(left / 5))
}
