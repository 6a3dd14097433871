//! Figures of docs/sizing.md. They are measurements, so docs/benchmarks.md must have them.

use std::fs;

use anyhow::{Context, Result, bail};
use ccm_testbed::cargo::root;
use regex::Regex;

/// Checks every size and time.
pub(crate) fn check() -> Result<()> {
    let read =
        |page: &str| fs::read_to_string(root().join(page)).with_context(|| format!("could not read {page}"));
    let missing = unmeasured(&read("docs/sizing.md")?, &read("docs/benchmarks.md")?)?;
    if !missing.is_empty() {
        bail!(
            "docs/sizing.md has figures that docs/benchmarks.md does not have: {}; correct them",
            missing.join(", ")
        );
    }
    Ok(())
}

/// The sizes and times of a text that are not in the measurements. There, the unit of a time may be in the head of a table.
fn unmeasured(text: &str, measurements: &str) -> Result<Vec<String>> {
    let figure = Regex::new(r"([0-9][0-9.]*) (MB|s)\b")?;
    let mut missing = Vec::new();
    for found in figure.captures_iter(text) {
        let measured = match &found[2] {
            "MB" => format!(" {}", &found[0]),
            _ => format!(" {} ", &found[1]),
        };
        if !measurements.contains(&measured) {
            missing.push(found[0].to_owned());
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn sizes_and_times_must_be_measured() {
        let measurements = "| 1 | 54.5 | - |\n- 100 Services: 35 MB, peak 36 MB\n";
        let text = "It took 54.5 s and 35 MB, with 1,000 nodes and 20 requests.";
        assert_eq!(unmeasured(text, measurements).unwrap(), [""; 0]);
        let text = "It took 53.7 s and 5 MB.";
        assert_eq!(unmeasured(text, measurements).unwrap(), ["53.7 s", "5 MB"]);
        assert_eq!(unmeasured("38 MB", measurements).unwrap(), ["38 MB"]);
    }
}
