//! Python environments with packages from the package index, cached between runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::cache::{self, say};
use crate::process::{run_captured, run_logged};

/// The Python of the distribution, if it can create environments. Version managers, which come first on the PATH, build one
/// without optimization, which is slower.
const SYSTEM: &str = "/usr/bin/python3";

/// The Python interpreter for programs without packages.
pub(crate) fn interpreter() -> &'static str {
    let can = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    match run_captured(Command::new(SYSTEM).args(["-c", can])) {
        Ok(_) => SYSTEM,
        Err(_) => "python3",
    }
}

/// The interpreter of a virtual environment with the packages of this `requirements.txt`.
///
/// # Errors
/// When Python 3 is missing, or the packages cannot be installed; with the end of pip's output.
pub fn environment(name: &str, requirements: &Path, why: &str) -> Result<PathBuf> {
    let folder = requirements.parent().context("no folder")?;
    let interpreter = interpreter();
    let hash = cache::hash_sources(folder, &["txt"], &format!("{name} {interpreter}"))?;
    let base = cache::dir()?.join(name);
    let ready = base.join(&hash);
    let python = ready.join("bin/python");
    if python.is_file() {
        return Ok(python);
    }
    let _lock = cache::lock(name)?;
    if python.is_file() {
        return Ok(python);
    }
    say(format!(
        "installing {why} (Python packages from the package index) into {}",
        ready.display()
    ));
    let started = Instant::now();
    // Remove other versions.
    if base.exists() {
        fs::remove_dir_all(&base).with_context(|| format!("cannot remove {}", base.display()))?;
    }
    let unfinished = base.join("unfinished");
    cache::make_dir(&base)?;
    let log = base.join("install.log");
    // Scripts of the environment contain the path of the unfinished folder, so that only the interpreter is used.
    run_logged(Command::new(interpreter).args(["-m", "venv"]).arg(&unfinished), &log)?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-r",
    ];
    run_logged(Command::new(unfinished.join("bin/python")).args(pip).arg(requirements), &log)?;
    fs::rename(&unfinished, &ready)?;
    say(format!("installed in {} s", started.elapsed().as_secs()));
    Ok(python)
}
