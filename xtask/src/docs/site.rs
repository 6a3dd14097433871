//! The documentation as a site, built by mdBook. A link to a file that does not exist is an error.

use std::{env, ffi::OsString, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use ccm_testbed::cargo::root;

use crate::{say, tools::Tool};

const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    // The site is only built here: no web server and no file watcher.
    args: &["--no-default-features", "--features", "search"],
    purpose: "builds the documentation as a site",
};

/// mdBook runs it as a renderer, see `book.toml`.
const LINKCHECK: Tool = Tool {
    name: "mdbook-linkcheck2",
    version: "0.13.0",
    args: &[],
    purpose: "checks the links of the documentation",
};

/// Builds the site into `target/site/html`.
pub(crate) fn build() -> Result<()> {
    let mdbook = MDBOOK.install()?;
    let linkcheck = LINKCHECK.install()?;
    let target = root().join("target/site");
    let built = Command::new(mdbook)
        .arg("build")
        .arg("--dest-dir")
        .arg(&target)
        .env("PATH", path_with(linkcheck.parent().unwrap_or(Path::new(".")))?)
        .current_dir(root())
        .output()
        .context("could not run mdbook")?;
    let log = String::from_utf8_lossy(&built.stderr);
    // A file that an include does not find is only logged.
    if !built.status.success() || log.contains("ERROR") {
        bail!("mdbook could not build the site:\n{log}");
    }
    say(&format!("wrote {}", target.join("html/index.html").display()));
    Ok(())
}

/// The search path of programs with this folder first.
fn path_with(folder: &Path) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [folder.to_owned()].into_iter().chain(env::split_paths(&path));
    Ok(env::join_paths(folders)?)
}
