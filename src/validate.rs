//! `validate`: the problems of a config, its cloud and manifests of Services, without a cluster.
//!
//! | Module | Contents |
//! |---|---|
//! | this file | the checks, and their result |
//! | [`manifest`] | Services in files, and the positions of their fields |
//! | [`text`] | the report for people |
//! | [`json`] | the report for programs |
//!
//! The provider decides what is a problem ([`ccm_core::check`]). Nothing is written, neither to a cloud nor to a cluster.

#[cfg(test)]
#[path = "validate/any_bytes_tests.rs"]
mod any_bytes;
mod json;
mod manifest;
#[cfg(test)]
mod tests;
mod text;

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Read, stdin},
    path::PathBuf,
    time::Duration,
};

use ccm_core::{
    BuildContext, Provider,
    check::{Checker, Finding, Passed, Severity},
    load_balancer::Claim,
};
use serde::Serialize;
use tokio::{task::spawn_blocking, time::timeout};

use self::manifest::{Manifest, Skipped};
pub(crate) use self::{json::render as as_json, text::render as as_text};

/// The limit of authentication at a cloud without a checker.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// What is left out with `--offline`.
const OFFLINE: &str =
    "The cloud, with credentials, rights, IDs and quotas: --offline sends no request to it.";
/// Larger files are not manifests.
const MAX_BYTES: u64 = 64 << 20;

/// A source of manifests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manifests {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

/// Whether the checks send requests to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudAccess {
    /// They do.
    Online,
    /// They do not: the cloud is not checked, and counts as one that supports everything.
    Offline,
}

/// The name in messages.
impl fmt::Display for Manifests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Stdin => f.write_str("(standard input)"),
        }
    }
}

/// The result of all checks.
#[derive(Debug, Default)]
pub(crate) struct Report {
    provider: &'static str,
    /// The scope of the credentials in the cloud.
    scope: Option<String>,
    /// The problems of config, cloud and manifests, each in its order.
    findings: Vec<FoundProblem>,
    passed: Vec<Passed>,
    /// Checks that were skipped, in sentences.
    left_out: Vec<String>,
    /// The number of checked Services.
    services: usize,
    skipped: Vec<Skipped>,
    /// The number of objects of other kinds.
    others: BTreeMap<String, usize>,
}

/// A finding with its source.
#[derive(Debug)]
struct FoundProblem {
    source: FindingSource,
    /// The Service, as its manifest names it.
    service: Option<String>,
    finding: Finding,
}

/// The subject of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FindingSource {
    Config,
    Cloud,
    Manifests,
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ValidationVerdict {
    /// Nothing is wrong.
    Fine,
    /// Only warnings.
    Warnings,
    /// Something will not work. There may be checks that were not possible.
    Errors,
    /// Some check was not possible, and the others found no error.
    Incomplete,
}

impl ValidationVerdict {
    /// As those of `plan`, where 2 also requests an action of the user. `strict`: so do warnings.
    pub(crate) fn exit_code(self, strict: bool) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Warnings => u8::from(strict) * 2,
            Self::Errors => 2,
            Self::Incomplete => 1,
        }
    }
}

impl Report {
    pub(crate) fn verdict(&self) -> ValidationVerdict {
        match (self.count(Severity::Unknown), self.count(Severity::Error), self.count(Severity::Warning)) {
            (0, 0, 0) => ValidationVerdict::Fine,
            (0, 0, _) => ValidationVerdict::Warnings,
            // A pipeline that cannot reach the cloud must see the errors, too.
            (_, 1.., _) => ValidationVerdict::Errors,
            _ => ValidationVerdict::Incomplete,
        }
    }

    fn count(&self, severity: Severity) -> usize {
        let all = self.findings.iter();
        all.filter(|found| found.finding.severity == severity).count()
    }

    fn add(&mut self, source: FindingSource, findings: impl IntoIterator<Item = Finding>) {
        self.findings.extend(findings.into_iter().map(|finding| FoundProblem {
            source,
            service: None,
            finding,
        }));
    }

    fn leave_out(&mut self, what: impl Into<String>) {
        self.left_out.push(what.into());
    }

    /// Checks a Service with the provider.
    fn check(&mut self, checker: &dyn Checker, manifest: &Manifest) {
        let view = &manifest.view;
        if checker.claims(view) != Claim::Ours {
            let class = view.class.as_deref().unwrap_or_default();
            let why = format!("loadBalancerClass {class:?} belongs to another component");
            self.skipped.push(manifest.skipped(why));
            return;
        }
        let Some(findings) = checker.service(view) else {
            let why = format!("the provider {} does not check Services", self.provider);
            self.skipped.push(manifest.skipped(why));
            return;
        };
        self.services += 1;
        self.findings.extend(findings.into_iter().map(|found| {
            FoundProblem {
                source: FindingSource::Manifests,
                service: Some(manifest.name.clone()),
                finding: Finding::new(found.severity, found.field.to_string(), found.message)
                    .at(manifest.place(&found.field))
                    .fix(found.fix),
            }
        }));
    }
}

/// Checks config, cloud and manifests.
pub(crate) async fn check(
    provider: &Provider,
    context: BuildContext,
    sources: &[Manifests],
    access: CloudAccess,
) -> Report {
    let mut report = Report {
        provider: provider.name,
        ..Report::default()
    };
    let checker = match provider.checker {
        Some(checker) => with_checker(checker(&context), access, &mut report).await,
        None => {
            without_checker(provider, context, access, &mut report).await;
            None
        }
    };
    for source in sources {
        let reading = match content(source.clone()).await {
            Ok(content) => manifest::read(&source.to_string(), &content),
            Err(error) => {
                let message = format!("could not read {source}: {error}");
                let finding = Finding::new(Severity::Unknown, "--services", message)
                    .fix("name a file that can be read, or - for standard input");
                report.add(FindingSource::Manifests, [finding]);
                continue;
            }
        };
        if reading.is_empty() {
            let finding = Finding::new(Severity::Warning, "--services", format!("{source} has no object"))
                .fix("if a command writes it, check whether this command failed");
            report.add(FindingSource::Manifests, [finding]);
        }
        let first = report.findings.len();
        report.skipped.extend(reading.skipped);
        for (kind, count) in reading.others {
            *report.others.entry(kind).or_default() += count;
        }
        let found = reading.findings.into_iter().map(|(service, finding)| FoundProblem {
            source: FindingSource::Manifests,
            service,
            finding,
        });
        report.findings.extend(found);
        let services = reading.services.iter();
        match &checker {
            Some(checker) => services.for_each(|manifest| report.check(&**checker, manifest)),
            None => {
                let skipped = |manifest: &Manifest| manifest.skipped("only its form was checked".to_owned());
                report.skipped.extend(services.map(skipped));
            }
        }
        // The problems of form and of content, in the order of the file.
        if let Some(of_file) = report.findings.get_mut(first..) {
            of_file.sort_by_key(|found| found.finding.place.as_ref().and_then(|place| place.position));
        }
    }
    report
}

async fn with_checker(
    checker: Result<Box<dyn Checker>, Vec<Finding>>,
    access: CloudAccess,
    report: &mut Report,
) -> Option<Box<dyn Checker>> {
    let checker = match checker {
        Ok(checker) => checker,
        Err(findings) => {
            report.add(FindingSource::Config, findings);
            report.leave_out("The cloud, and the Services: the config must be correct first.");
            return None;
        }
    };
    report.add(FindingSource::Config, checker.config());
    if access == CloudAccess::Offline {
        report.leave_out(OFFLINE);
        return Some(checker);
    }
    let cloud = checker.cloud().await;
    report.scope = cloud.scope;
    report.passed = cloud.passed;
    report.left_out = cloud.left_out;
    let mut findings = cloud.findings;
    // Findings without a line come first, in the order of the checks.
    findings.sort_by_key(|finding| finding.place.as_ref().and_then(|place| place.position));
    report.add(FindingSource::Cloud, findings);
    Some(checker)
}

/// Checks a provider without a checker: its config is read, and it connects.
async fn without_checker(
    provider: &Provider,
    context: BuildContext,
    access: CloudAccess,
    report: &mut Report,
) {
    if let Err(error) = (provider.validate)(&context) {
        let lines = error.message().lines();
        let all = lines.map(|line| Finding::new(Severity::Error, "config", line));
        report.add(FindingSource::Config, all);
        report.leave_out("The cloud: the config must be correct first.");
        return;
    }
    if access == CloudAccess::Offline {
        report.leave_out(OFFLINE);
        return;
    }
    match timeout(CONNECT_TIMEOUT, (provider.build)(context)).await {
        Ok(Ok(cloud)) => {
            report.scope = Some(cloud.scope());
            report.passed.push(Passed {
                about: "cloud".to_owned(),
                what: "the program can connect".to_owned(),
            });
        }
        Ok(Err(error)) => report.add(FindingSource::Cloud, [Finding::of_error("cloud", &error)]),
        Err(_) => {
            let message = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
            report.add(FindingSource::Cloud, [Finding::new(Severity::Unknown, "cloud", message)]);
        }
    }
    let name = provider.name;
    report.leave_out(format!(
        "Rights, ids in the config, quotas, Services: the provider {name} does not check them."
    ));
}

async fn content(source: Manifests) -> io::Result<Vec<u8>> {
    let read = spawn_blocking(move || match source {
        Manifests::File(path) => all_of(File::open(path)?),
        Manifests::Stdin => all_of(stdin()),
    });
    read.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn all_of(source: impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_BYTES {
        let text = format!("it has more than {} MiB", MAX_BYTES >> 20);
        return Err(io::Error::other(text));
    }
    Ok(content)
}
