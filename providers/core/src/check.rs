//! Checks of a config, its cloud and Services without running the controllers: `validate`.
//!
//! A provider returns a [`Checker`] ([`Provider::checker`](crate::Provider::checker)). The framework reads manifests, asks the
//! checker about each Service, and combines the findings. Without a checker, the provider still reads its config and connects.
//!
//! Checks only read the cloud. A check that would need a write (above all the rights to write) is listed in
//! [`CloudReport::left_out`].

use std::{fmt, path::Path, time::Duration};

use async_trait::async_trait;
use tokio::time::timeout;

pub use crate::load_balancer::{Field, ServiceFinding, Severity};
use crate::{
    BuildContext, Error, ErrorKind, Result,
    config::{KeyPath, LoadError, Locations, Parsed, Position, Problem},
    load_balancer::{Claim, ServiceView},
};

/// How long to wait for one answer of the cloud. A user waits for the report, and can run the check again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the answer of the cloud if it arrives within 20 seconds.
///
/// # Errors
/// The error of the call; [`ErrorKind::Timeout`] without an answer.
pub async fn in_time<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(ANSWER_TIMEOUT, call).await.unwrap_or_else(|_| {
        let text = format!("no answer within {} s", ANSWER_TIMEOUT.as_secs());
        Err(Error::new(ErrorKind::Timeout, text))
    })
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, as the user gave it.
    pub file: String,
    /// The position in the file, if the finding is about one line.
    pub position: Option<Position>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        match self.position {
            Some(position) => write!(f, ":{position}"),
            None => Ok(()),
        }
    }
}

/// A problem with the config or the cloud. Never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The place to fix, if it is in a file.
    pub place: Option<Place>,
    /// The subject, such as `[LoadBalancer] subnet-id` or `quota of load balancers`.
    pub about: String,
    /// The problem. One line, lower case, no full stop.
    pub message: String,
    /// The remedy; empty if the message contains it.
    pub fix: String,
}

impl Finding {
    /// A finding without a place and a fix.
    #[must_use]
    pub fn new(severity: Severity, about: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity,
            place: None,
            about: about.into(),
            message: message.into(),
            fix: String::new(),
        }
    }

    /// A finding from an error of a check.
    #[must_use]
    pub fn of_error(about: impl Into<String>, error: &Error) -> Self {
        Self::new(Severity::of(error.kind()), about, error.report())
    }

    /// A finding from a diagnostic of a config file's reader. The message names the key and the correction.
    #[must_use]
    pub fn of_problem(severity: Severity, problem: &Problem) -> Self {
        let place = Place {
            file: problem.file().to_owned(),
            position: problem.position(),
        };
        let (key, message) = problem.split();
        Self::new(severity, key.unwrap_or("config"), message).at(place)
    }

    /// The warnings of a config that could be read: the usual [`Checker::config`].
    #[must_use]
    pub fn of_warnings<T>(parsed: &Parsed<T>) -> Vec<Self> {
        Self::of_problems(Severity::Warning, &parsed.warnings).collect()
    }

    fn of_problems(severity: Severity, problems: &[Problem]) -> impl Iterator<Item = Self> {
        problems.iter().map(move |problem| Self::of_problem(severity, problem))
    }

    /// Adds the place to fix.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Adds the remedy.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }
}

/// The errors and warnings of a config that could not be read.
impl From<LoadError> for Vec<Finding> {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::File(error) => vec![Finding::of_error("--cloud-config", &error)],
            LoadError::Content(errors) => {
                let problems = Finding::of_problems(Severity::Error, errors.problems());
                let warnings = Finding::of_problems(Severity::Warning, errors.warnings());
                problems.chain(warnings).collect()
            }
        }
    }
}

/// A config file, to report the places of findings.
#[derive(Clone, Copy, Debug)]
pub struct ConfigSource<'a> {
    /// Its path, as the user gave it.
    pub file: Option<&'a Path>,
    /// The locations of its keys.
    pub locations: &'a Locations,
}

impl<'a> ConfigSource<'a> {
    /// The file that a config was read from.
    #[must_use]
    pub fn of<T>(context: &'a BuildContext, parsed: &'a Parsed<T>) -> Self {
        Self {
            file: context.cloud_config.as_deref(),
            locations: &parsed.locations,
        }
    }

    /// A finding about a key. Its place is that of the key, or of its section if the key is not set.
    pub fn finding<'k>(
        self,
        severity: Severity,
        path: impl Into<KeyPath<'k>>,
        message: impl Into<String>,
    ) -> Finding {
        let path = path.into();
        let file = self.file.map(Path::to_string_lossy).unwrap_or_default();
        let place = Place {
            file: file.into_owned(),
            position: self.locations.nearest(path),
        };
        Finding::new(severity, path.to_string(), message).at(place)
    }
}

/// A check of a cloud: the findings so far, reported by config key.
#[derive(Clone, Debug)]
pub struct Inspection<'a> {
    /// The config.
    pub keys: ConfigSource<'a>,
    /// The findings so far.
    pub report: CloudReport,
    /// The remedy for an error of the cloud; empty if there is none.
    pub remedy: fn(ErrorKind) -> &'static str,
}

impl Inspection<'_> {
    /// Reports a finding about a key.
    pub fn add_finding<'k>(
        &mut self,
        severity: Severity,
        path: impl Into<KeyPath<'k>>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let finding = self.keys.finding(severity, path, message).fix(fix);
        self.report.findings.push(finding);
    }

    /// Reports that the object of a key could not be read.
    pub fn failed<'k>(&mut self, path: impl Into<KeyPath<'k>>, error: &Error) {
        let message = format!("could not be read: {}", error.report());
        let (severity, fix) = (Severity::of(error.kind()), (self.remedy)(error.kind()));
        self.add_finding(severity, path, message, fix);
    }

    /// Returns the object of a key. Reports a finding if it does not exist or could not be read.
    pub fn require<'k, T>(
        &mut self,
        path: impl Into<KeyPath<'k>>,
        object: Result<Option<T>>,
        missing: impl Into<String>,
        fix: impl Into<String>,
    ) -> Option<T> {
        match object {
            Ok(Some(object)) => return Some(object),
            Ok(None) => self.add_finding(Severity::Error, path, missing, fix),
            Err(error) => self.failed(path, &error),
        }
        None
    }
}

/// The permissions that a provider needs in one place, for a cloud that answers in one call which of them it grants.
///
/// ```
/// use ccm_core::{Error, ErrorKind, check::{CloudReport, PermissionCheck}};
///
/// let check = PermissionCheck {
///     place: "project \"shop\"".to_owned(),
///     grant: "grant a role with these",
///     ask: "enable the Resource Manager API",
/// };
/// let mut report = CloudReport::default();
/// report.permissions(&check, Ok(vec!["routes.create"]));
/// let refused = Error::new(ErrorKind::PermissionDenied, "the API is disabled");
/// report.permissions::<&str>(&check, Err(refused));
/// let texts: Vec<_> = report.findings.iter().map(|finding| finding.message.as_str()).collect();
/// assert_eq!(texts, ["the credentials lack routes.create", "not checked: the API is disabled"]);
/// ```
#[derive(Clone, Debug)]
pub struct PermissionCheck {
    /// Where they are needed: `project "shop"`.
    pub place: String,
    /// The remedy if some are missing.
    pub grant: &'static str,
    /// The remedy if the cloud refuses to answer.
    pub ask: &'static str,
}

/// The usage of one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUsage {
    /// The counted objects, in the plural.
    pub what: &'static str,
    /// The number of existing objects.
    pub used: usize,
    /// The limit; `None`: no limit.
    pub limit: Option<u64>,
    /// The cloud's own name of the quota.
    pub name: String,
}

/// A check that passed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Passed {
    /// The subject.
    pub about: String,
    /// The observation.
    pub what: String,
}

/// The result of the checks of a cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudReport {
    /// The cloud's address and the account, as [`Cloud::scope`](crate::Cloud::scope); `None` if authentication failed.
    pub scope: Option<String>,
    /// The problems, in the order of the checks.
    pub findings: Vec<Finding>,
    /// The checks that passed.
    pub passed: Vec<Passed>,
    /// The skipped checks, in whole sentences.
    pub left_out: Vec<String>,
}

impl CloudReport {
    /// Records a check that passed.
    pub fn pass(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.passed.push(Passed {
            about: about.into(),
            what: what.into(),
        });
    }

    /// Records a skipped check, in a whole sentence.
    pub fn leave_out(&mut self, what: impl Into<String>) {
        self.left_out.push(what.into());
    }

    /// Reports which permissions the credentials lack, by the answer of the cloud. If it was refused, or did not come, they were not
    /// checked: they may be complete, so that is no error.
    pub fn permissions<T: AsRef<str>>(&mut self, check: &PermissionCheck, missing: Result<Vec<T>>) {
        let about = format!("permissions in {}", check.place);
        match missing {
            Ok(missing) if missing.is_empty() => self.pass(about, "complete"),
            Ok(missing) => {
                let missing: Vec<_> = missing.iter().map(AsRef::as_ref).collect();
                let text = format!("the credentials lack {}", missing.join(", "));
                self.findings.push(Finding::new(Severity::Error, about, text).fix(check.grant));
            }
            // The cloud cannot be asked at this address.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let place = &check.place;
                self.leave_out(format!("Permissions in {place}: not checked, {}.", error.message()));
            }
            Err(error) => {
                let severity = match Severity::of(error.kind()) {
                    Severity::Unknown => Severity::Unknown,
                    Severity::Error | Severity::Warning => Severity::Warning,
                };
                let text = format!("not checked: {}", error.report());
                self.findings.push(Finding::new(severity, about, text).fix(check.ask));
            }
        }
    }

    /// Reports the quotas of a service: a warning for each with less than a tenth left, and one line for all others.
    pub fn quotas(&mut self, service: &str, usage: &[QuotaUsage]) {
        let mut fine = Vec::new();
        for QuotaUsage {
            what,
            used,
            limit,
            name,
        } in usage
        {
            match limit {
                None => fine.push(format!("{used} {what} (no limit)")),
                Some(limit) if is_short(*used, *limit) => {
                    let left = match limit.saturating_sub(count(*used)) {
                        0 => "none is left".to_owned(),
                        1 => "only one is left".to_owned(),
                        left => format!("only {left} are left"),
                    };
                    let message = format!("{used} of {limit} are used, {left}");
                    let finding = Finding::new(Severity::Warning, format!("quota of {what}"), message);
                    let fix = format!("raise the project's quota of {name} in {service}");
                    self.findings.push(finding.fix(fix));
                }
                Some(limit) => fine.push(format!("{used} of {limit} {what}")),
            }
        }
        if !fine.is_empty() {
            self.pass(format!("quotas of {service}"), fine.join(", "));
        }
    }
}

fn count(used: usize) -> u64 {
    u64::try_from(used).unwrap_or(u64::MAX)
}

/// Whether less than a tenth is left.
fn is_short(used: usize, limit: u64) -> bool {
    let used = count(used);
    limit.saturating_sub(used).saturating_mul(10) < limit || used >= limit
}

/// Checks a config, its cloud and Services. Created from a config that was read without errors.
#[async_trait]
pub trait Checker: Send + Sync {
    /// Problems of the config itself. Sends no call.
    fn config(&self) -> Vec<Finding>;

    /// Checks the credentials and their permissions to read, the existence of the objects in the config, and the usage of
    /// the quotas. Called once, before any [`service`](Self::service).
    ///
    /// Writes nothing. Every failure is a finding; failures that only follow from another one are left out.
    async fn cloud(&self) -> CloudReport;

    /// The controller that is responsible for this Service, as in [`LoadBalancers::claims`](crate::LoadBalancers::claims).
    fn claims(&self, service: &ServiceView) -> Claim {
        match service.class {
            None => Claim::Ours,
            Some(_) => Claim::NotOurs,
        }
    }

    /// Problems of a Service of type LoadBalancer that is ours, by the config and by what [`cloud`](Self::cloud) observed.
    /// Sends no call. `None`: this provider does not check Services.
    fn service(&self, _service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::Problems;

    #[test]
    fn a_problem_of_the_config_names_its_key() {
        let mut problems = Problems::new("cloud.conf", Locations::default());
        problems.error(("Global", "region"), "missing: write one");
        problems.error(("LoadBalancerClass", "gold", "subnet-id"), "odd");
        let errors = problems.finish().unwrap_err();
        let found: Vec<_> = errors
            .problems()
            .iter()
            .map(|problem| Finding::of_problem(Severity::Error, problem))
            .collect();
        let texts: Vec<_> =
            found.iter().map(|finding| (finding.about.as_str(), finding.message.as_str())).collect();
        assert_eq!(
            texts,
            [
                ("[Global] region", "missing: write one"),
                ("[LoadBalancerClass \"gold\"] subnet-id", "odd")
            ]
        );
        assert_eq!(found.first().unwrap().place.as_ref().unwrap().to_string(), "cloud.conf");
    }

    #[test]
    fn less_than_a_tenth_is_short() {
        for (used, limit, short) in [
            (0, 10, false),
            (9, 10, false),
            (10, 10, true),
            (11, 10, true),
            (91, 100, true),
            (90, 100, false),
            (0, 0, true),
            (0, 1, false),
        ] {
            assert_eq!(is_short(used, limit), short, "{used} of {limit}");
        }
    }

    #[test]
    fn permissions_are_complete_missing_or_not_checked() {
        let check = PermissionCheck {
            place: "group web".to_owned(),
            grant: "assign a role",
            ask: "check by hand",
        };
        let report_of = |missing: Result<Vec<&str>>| {
            let mut report = CloudReport::default();
            report.permissions(&check, missing);
            report
        };
        let complete = report_of(Ok(Vec::new()));
        assert_eq!((complete.passed.len(), complete.findings.len()), (1, 0));
        assert_eq!(complete.passed.first().unwrap().about, "permissions in group web");

        for (missing, severity, text, fix) in [
            (
                Ok(vec!["a/read", "b/write"]),
                Severity::Error,
                "the credentials lack a/read, b/write",
                "assign a role",
            ),
            (
                Err(Error::new(ErrorKind::PermissionDenied, "no")),
                Severity::Warning,
                "not checked: no",
                "check by hand",
            ),
            (
                Err(Error::new(ErrorKind::Timeout, "late")),
                Severity::Unknown,
                "not checked: late",
                "check by hand",
            ),
        ] {
            let report = report_of(missing);
            let finding = report.findings.first().unwrap();
            assert_eq!(
                (finding.severity, finding.message.as_str(), finding.fix.as_str()),
                (severity, text, fix)
            );
            assert!(report.passed.is_empty(), "{report:?}");
        }

        let elsewhere = report_of(Err(Error::new(ErrorKind::Unsupported, "the address is not known")));
        assert_eq!(elsewhere.left_out, ["Permissions in group web: not checked, the address is not known."]);
        assert!(elsewhere.findings.is_empty() && elsewhere.passed.is_empty());
    }

    #[test]
    fn quotas_are_a_line_each_or_a_warning() {
        let usage = |what, used, limit| QuotaUsage {
            what,
            used,
            limit,
            name: format!("max_{what}"),
        };
        let mut report = CloudReport::default();
        report.quotas(
            "Compute",
            &[
                usage("machines", 3, None),
                usage("disks", 1, Some(9)),
                usage("keys", 19, Some(20)),
            ],
        );
        let passed = report.passed.first().unwrap();
        assert_eq!(passed.about, "quotas of Compute");
        assert_eq!(passed.what, "3 machines (no limit), 1 of 9 disks");
        let [keys] = report.findings.as_slice() else {
            panic!("{report:?}")
        };
        assert_eq!(keys.about, "quota of keys");
        assert_eq!(keys.message, "19 of 20 are used, only one is left");
        assert_eq!(keys.fix, "raise the project's quota of max_keys in Compute");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_times_out() {
        let error = in_time(std::future::pending::<Result<()>>()).await.unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Timeout, "no answer within 20 s"));
    }

    #[test]
    fn temporary_errors_are_of_unknown_severity() {
        for (kind, severity) in [
            (ErrorKind::PermissionDenied, Severity::Error),
            (ErrorKind::Unauthenticated, Severity::Error),
            (ErrorKind::NotFound, Severity::Error),
            (ErrorKind::Unavailable, Severity::Unknown),
            (ErrorKind::Timeout, Severity::Unknown),
            (ErrorKind::RateLimited, Severity::Unknown),
        ] {
            assert_eq!(Severity::of(kind), severity, "{kind}");
        }
    }

    #[test]
    fn a_field_has_a_path_and_a_display_name() {
        let annotation = Field::Annotation("example.com/x".to_owned());
        assert_eq!(annotation.path(), ["metadata", "annotations", "example.com/x"]);
        assert_eq!(annotation.to_string(), "example.com/x");
        assert_eq!(Field::Spec("ports").path(), ["spec", "ports"]);
        assert_eq!(Field::Spec("ports").to_string(), "spec.ports");
        assert!(Field::Whole.path().is_empty() && Field::Whole.to_string().is_empty());
    }
}
