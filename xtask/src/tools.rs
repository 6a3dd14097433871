//! Cargo tools, installed on first use into the cache.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use ccm_testbed::{
    cache,
    cargo::{cargo, run},
};

use crate::say;

/// A program of crates.io.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// Pinned: a new release must not change what CI accepts.
    pub(crate) version: &'static str,
    /// Arguments of `cargo install`, such as features.
    pub(crate) args: &'static [&'static str],
    /// The purpose of the program, printed when it is installed.
    pub(crate) purpose: &'static str,
}

impl Tool {
    /// Installs this version unless it is installed, and returns the program.
    pub(crate) fn install(&self) -> Result<PathBuf> {
        let Self { name, version, .. } = self;
        let folder = cache::dir()?.join("tools");
        if !self.is_installed(&folder) {
            say(&format!(
                "installing {name} {version}, which {} (some minutes, once)",
                self.purpose
            ));
            let package = format!("{name}@{version}");
            let mut install = cargo(&["install", "--quiet", "--locked", "--debug", &package, "--root"]);
            // In a folder of its own, so that it is not built into the results of this workspace.
            let target = folder.join(format!("target-{name}"));
            install
                .arg(&folder)
                .args(self.args)
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
