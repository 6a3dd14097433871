//! Quotations of log lines and other sentences of the program in pages. The sources must contain them.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};
use ccm_testbed::cargo::root;

/// The pages that quote the program.
const PAGES: [&str; 6] = [
    "README.md",
    "docs/migration.md",
    "docs/operations.md",
    "docs/quick-start/aws.md",
    "docs/quick-start/openstack.md",
    "docs/troubleshooting.md",
];

/// Checks every quotation.
pub(crate) fn check() -> Result<()> {
    let mut sources = String::new();
    for folder in ["src", "providers"] {
        read(&root().join(folder), &mut sources)?;
    }
    let sources = joined(&sources);
    let mut missing = Vec::new();
    for page in PAGES {
        let text = fs::read_to_string(root().join(page)).with_context(|| format!("could not read {page}"))?;
        let quotes = quotes(&text).into_iter().filter(|quote| !sources.contains(*quote));
        missing.extend(quotes.map(|quote| format!("{page}: {quote:?}")));
    }
    if !missing.is_empty() {
        bail!("not in the sources of the program, change the page:\n{}", missing.join("\n"));
    }
    Ok(())
}

/// All Rust sources below a folder.
fn read(folder: &Path, text: &mut String) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path)?);
        }
    }
    Ok(())
}

/// Strings that continue on the next line become one line.
fn joined(source: &str) -> String {
    let mut parts = source.split("\\\n");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.trim_start());
    }
    text
}

/// Texts in backticks that begin with a capital letter and have several words. These are sentences of the program, because flags,
/// keys, metrics and headers have other forms.
fn quotes(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    let marked = prose.flat_map(|prose| prose.split('`').skip(1).step_by(2));
    let sentences = marked.filter(|text| {
        text.starts_with(char::is_uppercase) && text.contains(' ') && !text.contains([':', '"', '='])
    });
    sentences.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_quotations_and_headers_are_not() {
        let page =
            "`Would do` and `--v`.\n```sh\n`No code`\n```\n`Accept: json`, `User \"x\" may`, `Nothing to do`";
        assert_eq!(quotes(page), ["Would do", "Nothing to do"]);
        assert_eq!(joined("\"one \\\n    two\""), "\"one two\"");
    }
}
