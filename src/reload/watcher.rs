//! Being told when something happens in some directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::Arc,
};

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
    /// Each with what it is, since another one of the same name is not watched.
    watched: BTreeMap<PathBuf, Option<Inode>>,
    changed: Arc<Notify>,
}

/// Device and inode.
type Inode = (u64, u64);

impl Watcher {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        Self {
            system: None,
            watched: BTreeMap::new(),
            changed: Arc::new(Notify::new()),
        }
    }

    /// Watches these directories and no others. What happened before may have been missed.
    pub(super) fn watch(&mut self, directories: BTreeSet<PathBuf>) {
        let directories: BTreeMap<_, _> = directories
            .into_iter()
            .map(|path| {
                let metadata = fs::metadata(&path).ok();
                (path, metadata.map(|metadata| (metadata.dev(), metadata.ino())))
            })
            .collect();
        if directories == self.watched {
            return;
        }
        // All anew: with a directory that was deleted its watch is gone as well, and could not be taken off.
        let told = Arc::clone(&self.changed);
        let system = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.map_or(true, |event| is_change(&event.kind)) {
                told.notify_one();
            }
        });
        self.system = match system {
            Ok(mut system) => {
                for directory in directories.keys() {
                    if let Err(error) = system.watch(directory, RecursiveMode::NonRecursive) {
                        debug!(directory = %directory.display(), %error, "Can not watch a directory, looking from time to time");
                    }
                }
                Some(system)
            }
            Err(error) => {
                debug!(%error, "Can not watch files, looking at them from time to time");
                None
            }
        };
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
