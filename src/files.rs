//! The content of files that other programs replace while this one runs: config, credentials, certificates.
//!
//! Contents are compared, in one way everywhere: a mounted Secret changes by a replaced symbolic link, not every file system
//! sends notifications, and a touch without a change must cause nothing. Loops compare every few seconds; the HTTPS server
//! compares whenever it uses a file.

use std::{
    collections::BTreeMap,
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::Result;
use parking_lot::Mutex;
use tracing::{info, warn};

/// The most bytes of a file that are compared. Config files are never longer.
const MAX_BYTES: u64 = 16 << 20;

/// Files and their content when they were last read, as hashes: files may contain secrets.
#[derive(Clone, Debug)]
pub(crate) struct WatchedFiles {
    hasher: RandomState,
    seen: Contents,
}

/// A hash of each file, or why it is unreadable.
pub(crate) type Contents = BTreeMap<PathBuf, Result<u64, io::ErrorKind>>;

impl WatchedFiles {
    /// Reads the files. Call it before the files are used, so that no change between the two is missed. Blocks.
    pub(crate) fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut watched = Self {
            hasher: RandomState::new(),
            seen: BTreeMap::new(),
        };
        watched.replace(files);
        watched
    }

    /// Watches these files from now on.
    pub(crate) fn replace(&mut self, files: impl IntoIterator<Item = PathBuf>) {
        self.seen = self.read(files);
    }

    /// The content of these files now. Blocks.
    pub(crate) fn read(&self, files: impl IntoIterator<Item = PathBuf>) -> Contents {
        let files = files.into_iter();
        files.map(|path| (path.clone(), self.hash(&path))).collect()
    }

    fn hash(&self, path: &Path) -> Result<u64, io::ErrorKind> {
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| error.kind())?;
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(|error| error.kind())?;
        Ok(self.hasher.hash_one(bytes))
    }

    /// Whether a file has changed since the last call. Blocks.
    pub(crate) fn has_changed(&mut self) -> bool {
        let now = self.read(self.seen.keys().cloned());
        let has_changed = now != self.seen;
        self.seen = now;
        has_changed
    }
}

/// A value that is loaded from files, and again when they change. Unusable files leave the value in use unchanged.
#[derive(Debug)]
pub(crate) struct LoadedFiles<F, T> {
    /// The name of the value, for the log.
    what: &'static str,
    files: F,
    load: fn(&F) -> Result<T>,
    current: Mutex<(WatchedFiles, T)>,
}

impl<F, T: Clone> LoadedFiles<F, T> {
    /// Loads the value. Its files have these `paths`.
    pub(crate) fn open(
        what: &'static str,
        files: F,
        paths: impl IntoIterator<Item = PathBuf>,
        load: fn(&F) -> Result<T>,
    ) -> Result<Self> {
        let watched = WatchedFiles::new(paths);
        Ok(Self {
            current: Mutex::new((watched, load(&files)?)),
            what,
            files,
            load,
        })
    }

    /// The value in use, loaded again if the files have changed.
    pub(crate) fn current(&self) -> T {
        let (watched, value) = &mut *self.current.lock();
        if watched.has_changed() {
            let (what, files) = (self.what, watched.seen.keys());
            match (self.load)(&self.files) {
                Ok(changed) => {
                    info!(what, ?files, "Loaded changed files");
                    *value = changed;
                }
                Err(error) => warn!(
                    what,
                    error = format!("{error:#}"),
                    "Changed files are not usable, keeping the previous content"
                ),
            }
        }
        value.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn contents_differ_when_bytes_do_and_not_by_a_touch() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cloud.conf");
        let mut watched = WatchedFiles::new([file.clone()]);
        for (content, expected) in [("a", true), ("a", false), ("b", true)] {
            fs::write(&file, content).unwrap();
            assert_eq!(watched.has_changed(), expected, "{content}");
        }
        assert!(!watched.has_changed());
        fs::remove_file(&file).unwrap();
        assert!(watched.has_changed());
        assert!(!watched.has_changed());
    }

    #[test]
    fn links_on_the_way_to_a_file_may_be_replaced_lead_nowhere_or_in_a_circle() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (version, content) in [("1", "a"), ("2", "b")] {
            fs::create_dir(root.join(version)).unwrap();
            fs::write(root.join(version).join("cloud.conf"), content).unwrap();
        }
        symlink("..data/cloud.conf", root.join("cloud.conf")).unwrap();
        let mut watched = WatchedFiles::new([root.join("cloud.conf")]);
        for (target, expected) in [("1", true), ("2", true), ("gone", true), ("..data", true)] {
            symlink(target, root.join("next")).unwrap();
            fs::rename(root.join("next"), root.join("..data")).unwrap();
            assert_eq!(watched.has_changed(), expected, "{target}");
            assert!(!watched.has_changed(), "{target}");
        }
    }
}
