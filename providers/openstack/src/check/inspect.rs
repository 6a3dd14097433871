//! The check of a cloud, and the reads that it consists of.

use ccm_core::{
    ErrorKind, Priority, Result,
    check::{CloudReport, ConfigSource, Inspection, in_time},
    client::ClientMetrics,
};
use serde::de::DeserializeOwned;

use crate::{
    client::{Api, Op, catalog::Service, read},
    config::Settings,
    load_balancer::reads::Reads,
};

/// A check of one cloud.
pub(super) struct CloudCheck<'a> {
    pub(super) seen: Inspection<'a>,
    pub(super) settings: &'a Settings,
    pub(super) api: Api,
    pub(super) reads: Reads,
}

impl<'a> CloudCheck<'a> {
    /// Creates a check with an authenticated client.
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
            seen: Inspection { keys, report, remedy },
            settings,
            reads: Reads::new(api.clone(), metrics),
            api,
        }
    }

    /// Returns the findings, and what was not checked.
    pub(super) fn into_report(mut self) -> CloudReport {
        let left_out = [
            "Rights to write (load balancers, floating IPs, security groups, routes): they cannot be checked without \
             writing.",
            "Quotas of Nova: no servers are created.",
            "Ids in annotations of Services: only their form. `plan` reads them, with a cluster.",
        ];
        self.seen.report.left_out.extend(left_out.map(str::to_owned));
        self.seen.report
    }

    /// Reads one document; `None` if it does not exist.
    ///
    /// # Errors
    /// If the document cannot be read.
    pub(super) async fn read<T: DeserializeOwned + Send>(
        &self,
        op: Op,
        service: Service,
        path: &[&str],
    ) -> Result<Option<T>> {
        let get = read(op, service, path);
        match in_time(self.api.get(&get, Priority::User)).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The fix for an error of the cloud; empty if none is known.
pub(super) fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::PermissionDenied => {
            "give the user a role in the project that lets it read this: usually `reader` or `member`, for Octavia also \
             `load-balancer_member`"
        }
        ErrorKind::Unauthenticated => {
            "run this again; if the error remains, the service does not accept the token"
        }
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited => {
            "make sure that the service can be reached from here, then run this again"
        }
        _ => "",
    }
}
