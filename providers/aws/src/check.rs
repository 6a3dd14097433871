//! What is wrong with config and account, found without running: the provider's part of `validate`.
//!
//! All requests are reads, or writes with `DryRun`, which EC2 refuses after it has looked at the rights.

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, Result, async_trait,
    check::{Checker, CloudReport, ConfigSource, Finding, Severity, in_time},
    config::{ConfigFiles, Parsed},
    registry::CheckerResult,
};
use futures_util::future::join_all;

use crate::{
    client::{Api, Op, dry_run::Trial, metadata::Metadata},
    config::{self, Config},
    site::Site,
};

/// Reads the config, to look over what it leads to.
///
/// # Errors
///
/// Everything that is wrong with it.
pub(crate) fn checker(context: &BuildContext) -> CheckerResult {
    let path = context.cloud_config.as_deref();
    let loaded = config::load(path, &context.environment, &mut ConfigFiles::default());
    let loaded = loaded.map_err(|error| Finding::of_load_error(&error))?;
    if let Err(error) = crate::tagging::check(context) {
        return Err(vec![Finding::of_error("flags", &error)]);
    }
    Ok(Box::new(Inspector {
        context: context.clone(),
        loaded,
    }))
}

/// Looks over one config and what it leads to.
struct Inspector {
    context: BuildContext,
    loaded: Parsed<Config>,
}

/// What is read of the account.
struct Connected {
    api: Api,
    site: Site,
}

#[async_trait]
impl Checker for Inspector {
    fn config(&self) -> Vec<Finding> {
        let warnings = self.loaded.warnings.iter();
        warnings
            .map(|problem| Finding::of_problem(Severity::Warning, problem))
            .collect()
    }

    async fn cloud(&self) -> CloudReport {
        let mut report = CloudReport::default();
        let Connected { api, site } = match Box::pin(in_time(self.connect(&mut report))).await {
            Ok(connected) => connected,
            Err(error) => {
                report.findings.push(no_entry(&error));
                report
                    .left_out
                    .push("AWS: without credentials, region and VPC there is nothing to ask.".to_owned());
                return report;
            }
        };
        report.scope = Some(site.to_string());
        let table = self.places(&api, &site, &mut report).await;
        rights(&api, &site, table.as_deref(), &mut report).await;
        report.left_out.extend(
            [
                "Rights to write load balancers: Elastic Load Balancing has no dry runs.",
                "Rights to change instances and rules of security groups: a dry run needs one that may be changed.",
            ]
            .map(str::to_owned),
        );
        report
    }
}

impl Inspector {
    fn keys(&self) -> ConfigSource<'_> {
        ConfigSource {
            file: self.context.cloud_config.as_deref(),
            locations: &self.loaded.locations,
        }
    }

    /// Finds region, credentials and place of the cluster.
    async fn connect(&self, report: &mut CloudReport) -> Result<Connected> {
        let settings = &self.loaded.value.settings;
        let metadata = Metadata::new(&settings.connection)?;
        let region = match &settings.connection.region {
            Some(region) => region.clone(),
            None => metadata.region().await?,
        };
        let api = Api::new(
            settings.connection.clone(),
            region,
            &settings.quotas,
            &self.context,
        )
        .await?;
        // An account in which STS cannot be reached can be used all the same.
        if let Ok(arn) = api.at(Priority::User).caller().await {
            report.pass("STS", format!("the credentials are those of {arn}"));
        }
        let untagged = self.context.flags.boolean(&crate::ALLOW_UNTAGGED);
        let site = Site::find(&api, &metadata, &settings.site, untagged).await?;
        Ok(Connected { api, site })
    }

    /// Whether what the config names exists. Returns a route table, if there is one for routes.
    async fn places(&self, api: &Api, site: &Site, report: &mut CloudReport) -> Option<String> {
        let settings = &self.loaded.value.settings;
        match in_time(api.at(Priority::User).check_vpc(&site.vpc)).await {
            Ok(()) => report.pass("VPC", format!("{} exists", site.vpc)),
            Err(error) => report.findings.push(self.missing("VPC", &site.vpc, &error)),
        }
        if let Some(id) = &settings.site.subnet {
            let filter = [
                ("subnet-id", vec![id.clone()]),
                ("vpc-id", vec![site.vpc.clone()]),
            ];
            match in_time(api.at(Priority::User).subnets(&filter)).await {
                Ok(found) if found.is_empty() => {
                    report.findings.push(self.missing("SubnetID", id, &not_found()));
                }
                Ok(_) => report.pass("subnet", format!("{id} is in {}", site.vpc)),
                Err(error) => report.findings.push(self.missing("SubnetID", id, &error)),
            }
        }
        let filter = match &settings.route_table {
            Some(id) => vec![("route-table-id", vec![id.clone()])],
            None => vec![("vpc-id", vec![site.vpc.clone()])],
        };
        match in_time(api.at(Priority::User).route_tables(&filter)).await {
            Ok(tables) => {
                let named = settings.route_table.is_some();
                let mut tables = tables
                    .into_iter()
                    .filter(|table| named || site.cluster.has(&table.tags));
                let first = tables.next().map(|table| table.id);
                match (&first, &settings.route_table) {
                    (None, Some(id)) => report
                        .findings
                        .push(self.missing("RouteTableID", id, &not_found())),
                    (None, None) => {
                        let text = "none has the cluster's tag: --configure-cloud-routes will not work";
                        report.pass("route tables", text);
                    }
                    (Some(id), _) => report.pass("route tables", format!("{id} takes routes to Pods")),
                }
                first
            }
            Err(error) => {
                report
                    .findings
                    .push(not_allowed(Op::RouteTables, &error, Severity::Error));
                None
            }
        }
    }

    /// Something that a key names does not exist, or could not be read.
    fn missing(&self, key: &str, id: &str, error: &Error) -> Finding {
        let what = if error.kind() == ErrorKind::NotFound {
            format!("{id} does not exist in this account, region and VPC")
        } else {
            format!("{id} could not be read: {}", error.report())
        };
        let finding = self
            .keys()
            .finding(Severity::of(error.kind()), ("Global", key), what);
        finding.fix(match error.kind() {
            ErrorKind::NotFound => "correct the id, or region and VPC",
            ErrorKind::PermissionDenied => "allow the action in the IAM policy",
            _ => "",
        })
    }
}

fn not_found() -> Error {
    Error::new(ErrorKind::NotFound, "not found")
}

/// Why AWS cannot be asked.
fn no_entry(error: &Error) -> Finding {
    let (about, fix) = match error.kind() {
        ErrorKind::Unauthenticated => (
            "credentials",
            "see that environment, shared credentials file, web identity or instance profile give valid ones",
        ),
        ErrorKind::PermissionDenied => ("credentials", "allow the action, or let the role be assumed"),
        ErrorKind::Unavailable | ErrorKind::Timeout => (
            "AWS",
            "see that the endpoint answers from here: region, network, HTTPS_PROXY, AWS_CA_BUNDLE",
        ),
        _ => ("AWS", ""),
    };
    Finding::of_error(about, error).fix(fix)
}

/// An action that failed when it was tried.
fn not_allowed(op: Op, error: &Error, severity: Severity) -> Finding {
    let action = op.iam_action();
    if error.kind() == ErrorKind::PermissionDenied {
        let finding = Finding::new(severity, format!("IAM action {action}"), "is not allowed");
        finding.fix(format!("allow {action} in the IAM policy"))
    } else {
        Finding::of_error(format!("IAM action {action}"), error)
    }
}

/// Tries the actions that can be tried without a change.
async fn rights(api: &Api, site: &Site, table: Option<&str>, report: &mut CloudReport) {
    let trial = Trial {
        vpc: &site.vpc,
        table,
    };
    let tried = Trial::OPERATIONS
        .iter()
        .map(|op| async { (*op, in_time(api.at(Priority::User).try_out(*op, &trial)).await) });
    let mut allowed = Vec::new();
    for (op, result) in join_all(tried).await {
        match result {
            Ok(true) => allowed.push(op.iam_action()),
            Ok(false) => {}
            // Upstream's policy has no such action, and DeleteRoute with CreateRoute does instead.
            Err(error) if op == Op::RouteReplace => {
                report.findings.push(not_allowed(op, &error, Severity::Warning));
            }
            Err(error) => report.findings.push(not_allowed(op, &error, Severity::Error)),
        }
    }
    if !allowed.is_empty() {
        allowed.dedup();
        report.pass("IAM actions", format!("allowed: {}", allowed.join(", ")));
    }
}
