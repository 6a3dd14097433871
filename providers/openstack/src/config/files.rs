//! The files that a config is made of.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Every file that was looked at: also one that was not there, since the config would be another if it were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files(BTreeSet<PathBuf>);

impl Files {
    /// Adds a file.
    pub(super) fn note(&mut self, path: impl AsRef<Path>) {
        self.0.insert(path.as_ref().to_owned());
    }

    /// Adds those of another config.
    pub(crate) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// All of them.
    pub(crate) fn list(&self) -> Vec<PathBuf> {
        self.0.iter().cloned().collect()
    }
}
