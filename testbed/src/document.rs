//! docs/benchmarks.md: a section for each benchmark, each written by itself.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::{cache::say, cargo::root};

const TITLE: &str = "# Benchmarks\n\n\
    Made by `cargo xtask bench <NAME> --write`: a real kube-apiserver and etcd, the simulated OpenStack (or the emulator or\n\
    simulator of the cloud that a section names) with 50 ms for every call, and the release build, all on the same machine.\n\
    Each section is from one run.\n";

/// Puts the section in the place of the one that has this name, or at the end.
///
/// # Errors
/// If the file cannot be read or written.
pub fn write_section(name: &str, section: &str) -> Result<()> {
    let path = root().join("docs/benchmarks.md");
    let old = if path.exists() {
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?
    } else {
        TITLE.to_owned()
    };
    write(&path, &replace(&old, name, section))?;
    say(format!("wrote the section {name} of {}", path.display()));
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn replace(old: &str, name: &str, section: &str) -> String {
    let (begin, end) = (
        format!("<!-- bench {name} -->"),
        format!("<!-- end of bench {name} -->"),
    );
    let new = format!("{begin}\n\n{}\n\n{end}", section.trim());
    let parts = old
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    match parts {
        Some((before, after)) => format!("{before}{new}{after}"),
        None => format!("{}\n\n{new}\n", old.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_takes_the_place_of_its_older_self_and_leaves_the_others() {
        let one = replace("# Title\n", "a", "first");
        let two = replace(&one, "b", "second\n");
        let three = replace(&two, "a", "\nthird");
        assert_eq!(
            three,
            "# Title\n\n<!-- bench a -->\n\nthird\n\n<!-- end of bench a -->\n\n<!-- bench b -->\n\nsecond\n\n<!-- end of bench b -->\n"
        );
    }
}
