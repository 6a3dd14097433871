//! Writes the sections of docs/benchmarks.md, one for each benchmark.

use std::{fs, path::Path, process::Command, thread::available_parallelism};

use anyhow::{Context, Result};

use crate::{
    cache::say,
    cargo::{output, root},
};

const TITLE: &str = "# Benchmarks\n\n\
    `cargo xtask bench <NAME> --write` writes these sections, each from one run. A real kube-apiserver with etcd, the simulated\n\
    OpenStack with 50 ms for every call, and the release build share one machine. A section of another cloud uses its emulator\n\
    or simulator.\n\n\
    Every figure is measured, except where its column, row or text says \"computed\". Targets are goals, not measurements.\n";

/// Replaces the section with this name, or appends it.
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
    write(&path, &replace(&old, name, &with_origin(section, &origin()?)))?;
    say(format!("wrote the section {name} of {}", path.display()));
    Ok(())
}

/// The date, commit and machine of a measurement.
fn origin() -> Result<String> {
    let line = |command: &str, args: &[&str]| {
        let text = output(Command::new(command).args(args).current_dir(root()))?;
        Ok::<_, anyhow::Error>(text.trim().to_owned())
    };
    let changed = match line("git", &["status", "--porcelain", "--untracked-files=no"])?.as_str() {
        "" => "",
        _ => " with uncommitted changes",
    };
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.split_once(':'));
        values.next().map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let memory = field("/proc/meminfo", "MemTotal");
    let memory: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
    Ok(format!(
        "Measured on {} at commit {}{changed}, with {} cores ({}) and {} GB of memory.",
        line("date", &["--utc", "+%F"])?,
        line("git", &["rev-parse", "--short", "HEAD"])?,
        available_parallelism()?,
        field("/proc/cpuinfo", "model name"),
        memory / 1_000_000,
    ))
}

/// Adds the origin below the section's heading.
fn with_origin(section: &str, origin: &str) -> String {
    match section.split_once("\n\n") {
        Some((heading, text)) => format!("{heading}\n\n{origin}\n\n{text}"),
        None => format!("{section}\n\n{origin}"),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn replace(old: &str, name: &str, section: &str) -> String {
    let (begin, end) = (format!("<!-- bench {name} -->"), format!("<!-- end of bench {name} -->"));
    let new = format!("{begin}\n\n{}\n\n{end}", section.trim());
    let parts = old.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    match parts {
        Some((before, after)) => format!("{before}{new}{after}"),
        None => format!("{}\n\n{new}\n", old.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_is_below_the_heading() {
        assert_eq!(with_origin("## Nodes\n\nFew.", "Now."), "## Nodes\n\nNow.\n\nFew.");
        assert!(origin().unwrap().starts_with("Measured on 2"));
    }

    #[test]
    fn a_section_replaces_its_previous_version_only() {
        let one = replace("# Title\n", "a", "first");
        let two = replace(&one, "b", "second\n");
        let three = replace(&two, "a", "\nthird");
        assert_eq!(
            three,
            "# Title\n\n<!-- bench a -->\n\nthird\n\n<!-- end of bench a -->\n\n<!-- bench b -->\n\nsecond\n\n<!-- end of bench b -->\n"
        );
    }
}
