//! Being told when something happens in some directories.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::sync::Notify;
use tracing::debug;

/// Watches directories, as far as their file systems can tell. What they can not is found by looking from time to time.
#[derive(Debug)]
pub(super) struct Watcher {
    /// `None` if the system gives none.
    system: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    changed: Arc<Notify>,
}

impl Watcher {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        let changed = Arc::new(Notify::new());
        let told = Arc::clone(&changed);
        let system = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.map_or(true, |event| is_change(&event.kind)) {
                told.notify_one();
            }
        });
        Self {
            system: system
                .inspect_err(|error| debug!(%error, "Can not watch files, looking at them from time to time"))
                .ok(),
            watched: BTreeSet::new(),
            changed,
        }
    }

    /// Watches these directories and no others.
    pub(super) fn watch(&mut self, directories: BTreeSet<PathBuf>) {
        let Some(system) = &mut self.system else {
            return;
        };
        for gone in self.watched.difference(&directories) {
            // It may be gone itself, and its watch with it.
            let _ = system.unwatch(gone);
        }
        // Also what is watched: the directory may be another of the same name, which is not.
        for directory in &directories {
            if let Err(error) = system.watch(directory, RecursiveMode::NonRecursive) {
                debug!(directory = %directory.display(), %error, "Can not watch a directory, looking from time to time");
            }
        }
        self.watched = directories;
    }

    /// Waits until something has happened since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Reading is no change: our own looking would call us again and again.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}
