//! The cache directory for built and installed programs.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Prints one line of progress to standard error.
#[allow(clippy::print_stderr, reason = "progress messages of a command-line tool")]
pub fn say(line: impl AsRef<str>) {
    eprintln!("testbed: {}", line.as_ref());
}

/// The cache directory, created if missing: `$CCM_CACHE_DIR`, else `~/.cache/ccm`.
///
/// # Errors
/// When neither variable is set, or the directory cannot be created.
pub fn dir() -> Result<PathBuf> {
    let dir = match env::var_os("CCM_CACHE_DIR").filter(|v| !v.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            let home = env::var_os("HOME").context("neither CCM_CACHE_DIR nor HOME is set")?;
            PathBuf::from(home).join(".cache").join("ccm")
        }
    };
    make_dir(&dir)?;
    Ok(dir)
}

/// A lock between processes. It is released when dropped or when the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Acquires the lock `NAME.lock` of the cache directory. It prevents that two processes build or install the same program at
/// the same time.
///
/// # Errors
/// When the lock file cannot be opened.
pub fn lock(name: &str) -> Result<Lock> {
    lock_file(&dir()?.join(format!("{name}.lock")), Kind::Exclusive)
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Shared,
    Exclusive,
}

pub(crate) fn lock_file(path: &Path, kind: Kind) -> Result<Lock> {
    let open = || -> std::io::Result<File> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        match kind {
            Kind::Shared => file.lock_shared()?,
            Kind::Exclusive => file.lock()?,
        }
        Ok(file)
    };
    Ok(Lock {
        _file: open().with_context(|| format!("cannot lock {}", path.display()))?,
    })
}

pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

/// A hash of the files directly in `dir` with one of the extensions, by name and content, together with `extra`.
///
/// The name of a cached build. Another Rust release may hash differently, which costs one more build.
pub(crate) fn hash_sources(dir: &Path, extensions: &[&str], extra: &str) -> Result<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().and_then(OsStr::to_str).is_some_and(|e| extensions.contains(&e)) {
            files.push(path);
        }
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    extra.hash(&mut hasher);
    for file in files {
        file.file_name().hash(&mut hasher);
        fs::read(&file)
            .with_context(|| format!("cannot read {}", file.display()))?
            .hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The folder with the sources of a program of the testbed that is not Rust.
pub(crate) fn sources(name: &str) -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests")
        .join(name)
        .canonicalize()
        .with_context(|| format!("folder tests/{name} not found"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn hash_changes_with_content_and_names_and_ignores_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let hash = || hash_sources(dir.path(), &["go"], "flags").unwrap();
        fs::write(dir.path().join("a.go"), "package a").unwrap();
        let first = hash();
        fs::write(dir.path().join("README.md"), "x").unwrap();
        assert_eq!(hash(), first);
        fs::write(dir.path().join("a.go"), "package b").unwrap();
        let second = hash();
        assert_ne!(second, first);
        fs::rename(dir.path().join("a.go"), dir.path().join("b.go")).unwrap();
        assert_ne!(hash(), second);
        assert_ne!(hash_sources(dir.path(), &["go"], "other").unwrap(), hash());
    }
}
