//! The Services in the pages of a cloud, checked by `validate --services`, and by the table of its annotations.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use ccm_testbed::{cargo::root, test_cloud};
use serde_json::Value;

use super::reference;
use crate::say;

/// Checks that every Service in the cloud's pages is valid, and that its guide names every annotation.
pub(crate) fn check(program: &Path, cloud: &str) -> Result<()> {
    let reference = reference(program, cloud)?;
    let annotations = annotations(&reference);
    let mut wrong = Vec::new();
    let guide = format!("docs/guides/{cloud}.md");
    for page in [&guide, &format!("docs/quick-start/{cloud}.md")] {
        let text = fs::read_to_string(root().join(page)).with_context(|| format!("could not read {page}"))?;
        if *page == guide {
            let missing = annotations.iter().filter(|name| !text.contains(short(name)));
            wrong.extend(missing.map(|name| format!("{page}: {name} is not described")));
        }
        let services = services(&text);
        for (number, line) in (1..).zip(services.lines()) {
            let key = line.trim().split_once(": ").map_or("", |(key, _)| key);
            if key.contains('/') && !key.starts_with('#') && !reference.contains(&format!("| `{key}` |")) {
                wrong.push(format!("{page}:{number}: {key} is not an annotation"));
            }
        }
        let report = validate(program, cloud, &services)?;
        let (counts, findings) = (&report["summary"], report["findings"].as_array());
        for finding in findings.into_iter().flatten() {
            if finding["source"] != "manifests" {
                continue;
            }
            let [line, service, about, message] =
                ["line", "service", "about", "message"].map(|field| finding[field].to_string());
            wrong.push(format!("{page}:{line}: {service} {about}: {message}"));
        }
        let seen = [&counts["services"], &counts["skipped"]].map(|count| count.as_u64().unwrap_or_default());
        let written = services.lines().filter(|line| *line == "kind: Service").count();
        if written == 0 || usize::try_from(seen.iter().sum::<u64>())? != written {
            wrong.push(format!("{page}: {written} Services, but validate counted {seen:?}"));
        }
    }
    if !wrong.is_empty() {
        bail!("examples of {cloud}:\n{}", wrong.join("\n"));
    }
    say(&format!("the examples of {cloud} are valid"));
    Ok(())
}

/// The annotations of Services.
fn annotations(reference: &str) -> Vec<&str> {
    let (_, table) = reference.split_once("# Annotations of Services").unwrap_or_default();
    let table = table.split("\n# ").next().unwrap_or_default();
    let names = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    names.map(|(name, _)| name).collect()
}

/// The name without its domain.
fn short(annotation: &str) -> &str {
    annotation.rsplit('/').next().unwrap_or(annotation)
}

/// The Services of a page, at their lines: everything else is left empty.
fn services(page: &str) -> String {
    let mut text = String::new();
    let mut blocks = page.split("```");
    while let Some(prose) = blocks.next() {
        text.extend(prose.chars().filter(|c| *c == '\n'));
        let Some(block) = blocks.next() else { break };
        match block.strip_prefix("yaml\n") {
            Some(manifest) if manifest.contains("kind: Service\n") => {
                text.push_str("---\n");
                text.push_str(manifest);
            }
            _ => text.extend(block.chars().filter(|c| *c == '\n')),
        }
    }
    text
}

fn validate(program: &Path, cloud: &str, services: &str) -> Result<Value> {
    let config =
        test_cloud::documents_config(cloud).with_context(|| format!("there is no test cloud for {cloud}"))?;
    let folder = root().join("target");
    fs::create_dir_all(&folder)?;
    let file = folder.join(format!("examples-{cloud}.conf"));
    fs::write(&file, config.file)?;
    let mut child = Command::new(program)
        .args(["validate", "-o", "json", "--services=-"])
        .arg(format!("--cloud-provider={cloud}"))
        .arg(format!("--cloud-config={}", file.display()))
        .envs(config.environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("could not run {}", program.display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(services.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    serde_json::from_slice(&output.stdout).context("validate printed no report")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_keep_their_lines() {
        let page = "# Title\n\n```sh\nls\n```\n\n```yaml\nkind: Service\na: b\n```\nEnd\n";
        let lines: Vec<_> = services(page).lines().map(str::to_owned).collect();
        assert_eq!(lines.iter().position(|line| line == "kind: Service"), Some(7));
        assert_eq!(page.lines().nth(7), Some("kind: Service"));
        assert!(!lines.iter().any(|line| line.contains("ls") || line.contains("End")));
    }
}
