//! The report for people.

use std::fmt::{self, Write as _};

use ccm_core::check::Severity;

use super::{FoundProblem, Report, ValidationVerdict};

/// The text of the report.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(report, &mut text);
    text
}

fn write(report: &Report, out: &mut String) -> fmt::Result {
    if let Some(scope) = &report.scope {
        writeln!(out, "Cloud {}: {scope}", report.provider)?;
    }
    for passed in &report.passed {
        writeln!(out, "  + {}: {}", passed.about, passed.what)?;
    }
    if !out.is_empty() {
        writeln!(out)?;
    }
    for found in &report.findings {
        write_finding(found, out)?;
    }
    if !report.findings.is_empty() {
        writeln!(out)?;
    }
    if !report.skipped.is_empty() || !report.left_out.is_empty() {
        writeln!(out, "Not checked")?;
        for skipped in &report.skipped {
            let (file, line) = (&skipped.file, skipped.line);
            writeln!(out, "  - {file}:{line}: Service {}: {}", skipped.service, skipped.why)?;
        }
        for left_out in &report.left_out {
            writeln!(out, "  - {left_out}")?;
        }
        writeln!(out)?;
    }
    write_summary(report, out)
}

fn write_finding(found: &FoundProblem, out: &mut String) -> fmt::Result {
    let finding = &found.finding;
    if let Some(place) = &finding.place {
        write!(out, "{place}: ")?;
    }
    write!(out, "{}: ", title(finding.severity))?;
    if let Some(service) = &found.service {
        write!(out, "Service {service}: ")?;
    }
    // Without a key of the config, file and line are enough.
    if !finding.about.is_empty() && finding.about != "config" {
        write!(out, "{}: ", finding.about)?;
    }
    writeln!(out, "{}", finding.message)?;
    if !finding.fix.is_empty() {
        writeln!(out, "    {}", finding.fix)?;
    }
    Ok(())
}

fn title(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Unknown => "not known",
    }
}

fn write_summary(report: &Report, out: &mut String) -> fmt::Result {
    let counts = [
        (report.count(Severity::Error), "error", "errors"),
        (report.count(Severity::Warning), "warning", "warnings"),
    ];
    let mut all: Vec<_> = counts
        .into_iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }))
        .collect();
    let unknown = report.count(Severity::Unknown);
    if unknown > 0 {
        all.push(format!("{unknown} not known"));
    }
    match report.verdict() {
        ValidationVerdict::Fine => write!(out, "Nothing is wrong.")?,
        _ => write!(out, "{}.", all.join(", "))?,
    }
    let skipped = report.skipped.len();
    let others: usize = report.others.values().sum();
    if report.services + skipped + others == 0 {
        return writeln!(out);
    }
    writeln!(
        out,
        " Services checked: {}; left out: {skipped}; other objects: {others}.",
        report.services
    )
}
