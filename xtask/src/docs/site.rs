//! The documentation as a site, built by mdBook. A link to a file or heading that does not exist is an error.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ccm_testbed::cargo::root;

use crate::{say, tools::Tool};

const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    // Only for building: without web server and file watcher.
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
        .env_remove("RUST_BACKTRACE")
        .current_dir(root())
        .output()
        .context("could not run mdbook")?;
    let log = String::from_utf8_lossy(&built.stderr);
    // mdBook only logs a missing file of an include.
    if !built.status.success() || log.contains("ERROR") {
        bail!("mdbook could not build the site:\n{log}");
    }
    let pages = pages(&target.join("html"))?;
    let broken: Vec<_> = pages
        .iter()
        .flat_map(|page| missing_headings(page, &pages))
        .collect();
    if !broken.is_empty() {
        bail!("links to headings that do not exist:\n{}", broken.join("\n"));
    }
    say(&format!("wrote {}", target.join("html/index.html").display()));
    Ok(())
}

/// A page of the site.
struct Page {
    path: PathBuf,
    text: String,
}

/// The pages below this folder, without the one to print, which repeats all of them.
fn pages(folder: &Path) -> Result<Vec<Page>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "html")
            && !path.ends_with("print.html")
        {
            found.push(Page {
                text: fs::read_to_string(&path)?,
                path: path.canonicalize()?,
            });
        }
    }
    Ok(found)
}

/// The links of a page to a heading that its page does not have. mdbook-linkcheck2 only checks the page.
fn missing_headings(page: &Page, pages: &[Page]) -> Vec<String> {
    let links = page
        .text
        .split("href=\"")
        .skip(1)
        .filter_map(|rest| rest.split_once('"'));
    let links = links.filter_map(|(link, _)| Some((link, link.split_once('#')?)));
    let missing = links.filter(|(_, (file, heading))| {
        let path = match file.is_empty() {
            true => page.path.clone(),
            false => page.path.with_file_name(file),
        };
        let Ok(path) = path.canonicalize() else {
            return false;
        };
        let target = pages.iter().find(|page| page.path == path);
        target.is_some_and(|target| !target.text.contains(&format!("id=\"{heading}\"")))
    });
    missing
        .map(|(link, _)| format!("{}: {link}", page.path.display()))
        .collect()
}

/// The search path of programs with this folder first.
fn path_with(folder: &Path) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [folder.to_owned()].into_iter().chain(env::split_paths(&path));
    Ok(env::join_paths(folders)?)
}
