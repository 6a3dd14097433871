//! The report for programs. `docs/reference/validate.md` describes its format; fields may be added, but none changes its
//! meaning without another `version`.

use std::collections::BTreeMap;

use ccm_core::check::{Passed, Severity};
use serde::Serialize;

use super::{FindingSource, Report, ValidationVerdict, manifest::Skipped};

const VERSION: u32 = 1;

#[derive(Serialize)]
struct ReportDocument<'a> {
    version: u32,
    provider: &'a str,
    verdict: ValidationVerdict,
    summary: ReportSummary<'a>,
    /// The scope of the credentials in the cloud.
    cloud: Option<&'a str>,
    findings: Vec<FindingView<'a>>,
    passed: &'a [Passed],
    skipped: &'a [Skipped],
    left_out: &'a [String],
}

#[derive(Serialize)]
struct ReportSummary<'a> {
    errors: usize,
    warnings: usize,
    unknown: usize,
    services: usize,
    skipped: usize,
    others: &'a BTreeMap<String, usize>,
}

#[derive(Serialize)]
struct FindingView<'a> {
    severity: &'static str,
    source: FindingSource,
    file: Option<&'a str>,
    line: Option<usize>,
    column: Option<usize>,
    service: Option<&'a str>,
    about: &'a str,
    message: &'a str,
    fix: &'a str,
}

/// The JSON of the report.
///
/// # Errors
/// Never, as it contains only texts and numbers.
pub(crate) fn render(report: &Report) -> serde_json::Result<String> {
    let findings = report.findings.iter().map(|found| {
        let place = found.finding.place.as_ref();
        let position = place.and_then(|place| place.position);
        FindingView {
            severity: found.finding.severity.as_str(),
            source: found.source,
            file: place.map(|place| place.file.as_str()),
            line: position.map(|position| position.line),
            column: position.map(|position| position.column),
            service: found.service.as_deref(),
            about: &found.finding.about,
            message: &found.finding.message,
            fix: &found.finding.fix,
        }
    });
    let document = ReportDocument {
        version: VERSION,
        provider: report.provider,
        verdict: report.verdict(),
        summary: ReportSummary {
            errors: report.count(Severity::Error),
            warnings: report.count(Severity::Warning),
            unknown: report.count(Severity::Unknown),
            services: report.services,
            skipped: report.skipped.len(),
            others: &report.others,
        },
        cloud: report.scope.as_deref(),
        findings: findings.collect(),
        passed: &report.passed,
        skipped: &report.skipped,
        left_out: &report.left_out,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
