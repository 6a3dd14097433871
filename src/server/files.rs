//! Whether a file has changed since it was read.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// Tells two states of a file apart: time, size and inode. A mounted Secret is replaced by switching a link, which changes
/// the inode.
pub(super) type FileMark = (i64, i64, u64, u64);

/// The file as it is now; `None` if it is not there.
pub(super) fn mark(path: &Path) -> Option<FileMark> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.mtime(), meta.mtime_nsec(), meta.len(), meta.ino()))
}
