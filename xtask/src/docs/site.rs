//! The documentation as a site, built by mdBook. A link to a file or heading that does not exist is an error.

use std::{
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result, bail};
use ccm_testbed::cargo::root;

use crate::{say, tools};

/// Builds the site into `target/site/html`.
pub(crate) fn build() -> Result<()> {
    let mut mdbook = Command::new(tools::compiled("mdbook")?);
    let site = root().join("target/site/html");
    mdbook.arg("build").arg("--dest-dir").arg(&site);
    let built = run(mdbook.env_remove("RUST_BACKTRACE"))?;
    let log = String::from_utf8_lossy(&built.stderr);
    // mdBook only logs a missing file of an include.
    if !built.status.success() || log.contains("ERROR") {
        bail!("mdbook could not build the site:\n{log}");
    }
    check_links(&site)?;
    say(&format!("wrote {}", site.join("index.html").display()));
    Ok(())
}

/// Checks the links of the site. Those to the web are not checked, because a build must not depend on servers of others.
fn check_links(site: &Path) -> Result<()> {
    let mut lychee = Command::new(tools::compiled("lychee")?);
    lychee.args(["--offline", "--include-fragments", "--no-progress", "--root-dir"]);
    let checked = run(lychee.arg(site).arg(site))?;
    if !checked.status.success() {
        let printed = [checked.stdout, checked.stderr].concat();
        bail!("links that lead nowhere:\n{}", String::from_utf8_lossy(&printed));
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command.current_dir(root()).output();
    output.with_context(|| format!("could not run {}", command.get_program().display()))
}
