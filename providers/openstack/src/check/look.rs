//! What one look at the cloud is made of.

use ccm_core::{
    Error, ErrorKind, Priority, Result,
    check::{CloudReport, ConfigSource, Severity, in_time},
    client::ClientMetrics,
    config::KeyPath,
};
use serde::de::DeserializeOwned;

use crate::{
    client::{Api, Get, Op, catalogue::Service},
    config::Settings,
    load_balancer::reads::Reads,
};

/// One look: with what it is taken, and what is seen.
pub(super) struct Look<'a> {
    pub(super) keys: ConfigSource<'a>,
    pub(super) settings: &'a Settings,
    pub(super) api: Api,
    pub(super) reads: Reads,
    pub(super) report: CloudReport,
}

impl<'a> Look<'a> {
    /// Nothing was seen yet but that we are let in.
    pub(super) fn new(
        keys: ConfigSource<'a>,
        settings: &'a Settings,
        api: Api,
        metrics: &ClientMetrics,
    ) -> Self {
        let mut report = CloudReport {
            scope: Some(api.scope()),
            ..CloudReport::default()
        };
        report.pass("Keystone", "the credentials are good");
        Self {
            keys,
            settings,
            reads: Reads::new(api.clone(), metrics),
            api,
            report,
        }
    }

    /// What was seen, and what was not looked at.
    pub(super) fn into_report(mut self) -> CloudReport {
        let left_out = [
            "Rights to write (load balancers, floating addresses, security groups, routes): they can not be tried without \
             writing.",
            "Quotas of Nova: no servers are made.",
            "Ids in annotations of Services: only their form. `plan` reads them, with a cluster.",
        ];
        self.report.left_out.extend(left_out.map(str::to_owned));
        self.report
    }

    /// Notes something about a key.
    pub(super) fn note<'k>(
        &mut self,
        severity: Severity,
        path: impl Into<KeyPath<'k>>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let finding = self.keys.finding(severity, path, message).fix(fix);
        self.report.findings.push(finding);
    }

    /// Notes that what a key names could not be looked up.
    pub(super) fn failed<'k>(&mut self, path: impl Into<KeyPath<'k>>, error: &Error) {
        let message = format!("could not be looked up: {}", error.report());
        self.note(Severity::of(error.kind()), path, message, remedy(error.kind()));
    }

    /// Notes that there is not what a key names, or that it could not be looked up; otherwise returns it.
    pub(super) fn found<'k, T>(
        &mut self,
        path: impl Into<KeyPath<'k>>,
        found: Result<Option<T>>,
        missing: impl Into<String>,
        fix: impl Into<String>,
    ) -> Option<T> {
        match found {
            Ok(Some(found)) => return Some(found),
            Ok(None) => self.note(Severity::Error, path, missing, fix),
            Err(error) => self.failed(path, &error),
        }
        None
    }

    /// Reads one document; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        op: Op,
        service: Service,
        path: &[&str],
    ) -> Result<Option<T>> {
        let get = Get::new(op, service, path);
        match in_time(self.api.get(&get, Priority::User)).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What to do about an error of the cloud; empty if that is not known.
pub(super) fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied => {
            "give the user a role in the project that lets it read this: mostly `reader` or `member`, for Octavia also \
             `load-balancer_member`"
        }
        ErrorKind::Unauthenticated => "look again; if it stays, the token is not good for this service",
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited => {
            "see that the service answers from here, then look again"
        }
        _ => "",
    }
}
