//! Checks of the config and the account: the provider's part of `validate`.
//!
//! All requests are reads, or writes with `DryRun`, for which EC2 checks only the permissions.

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, Result, async_trait,
    check::{Checker, CloudReport, ConfigSource, Finding, Inspection, Severity, in_time},
    config::{ConfigFiles, Parsed},
    error::accept,
    load_balancer::{Claim, ServiceFinding, ServiceView},
    registry::CheckerResult,
};

use crate::{
    client::{Api, Op},
    config::{self, Config},
    load_balancer::annotations::TABLE,
    load_balancer::spec::{self, Flavor, Spec},
    routes::route_tables,
    site::Site,
};

/// Reads the config and returns its checker.
///
/// # Errors
///
/// All problems of the config.
pub(crate) fn checker(context: &BuildContext) -> CheckerResult {
    let loaded = config::load(context, &mut ConfigFiles::default())?;
    let context = context.clone();
    Ok(Box::new(Inspector { context, loaded }))
}

/// Checks one config and the account that it refers to.
struct Inspector {
    context: BuildContext,
    loaded: Parsed<Config>,
}

#[async_trait]
impl Checker for Inspector {
    fn config(&self) -> Vec<Finding> {
        Finding::of_warnings(&self.loaded)
    }

    async fn cloud(&self) -> CloudReport {
        let mut report = CloudReport::default();
        let (api, site) = match Box::pin(in_time(self.connect(&mut report))).await {
            Ok(connected) => connected,
            Err(error) => {
                report.findings.push(connection_finding(&error));
                report.leave_out("AWS: cannot be checked without credentials, region and VPC.");
                return report;
            }
        };
        report.scope = Some(site.to_string());
        let mut inspection = Inspection {
            keys: ConfigSource::of(&self.context, &self.loaded),
            report,
            remedy: |kind| match kind {
                ErrorKind::PermissionDenied => "allow the action in the IAM policy",
                _ => "",
            },
        };
        let table = self.check_ids(&api, &site, &mut inspection).await;
        // Without routes, their rights are not needed.
        let tried_table = if self.context.has_routes() {
            table.as_deref()
        } else {
            None
        };
        let mut report = inspection.report;
        check_permissions(&api, &site, tried_table, &mut report).await;
        report.leave_out("Rights to write load balancers: Elastic Load Balancing has no dry runs.");
        report.leave_out(
            "Rights to change instances and rules of security groups: a dry run needs one of the cluster.",
        );
        report
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        spec::claims(service, &self.loaded.value.load_balancing)
    }

    fn service(&self, service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        let settings = &self.loaded.value.load_balancing;
        let flavor = Flavor::known(service, settings);
        let spec = Spec::read(service, settings, flavor);
        let mut invalid = spec.invalid;
        if spec::own_hostname(service).is_none() {
            invalid.extend(spec::refused_as_new(flavor, settings));
        }
        Some(TABLE.findings(&service.annotations, &invalid, &spec.ignored))
    }
}

impl Inspector {
    /// Connects with the credentials, and finds region, VPC and cluster.
    async fn connect(&self, report: &mut CloudReport) -> Result<(Api, Site)> {
        let config = &self.loaded.value;
        let api = Api::connect(config.connection.clone(), &config.conf.quota, &self.context).await?;
        match api.at(Priority::User).caller().await {
            Ok(arn) => report.pass("STS", format!("the credentials are those of {arn}")),
            // The first error has the reason.
            Err(error) if error.kind() == ErrorKind::Unauthenticated => return Err(error),
            // The provider also works if STS cannot be reached.
            Err(_) => {}
        }
        let site = Site::find(&api, config, &self.context.flags).await?;
        Ok((api, site))
    }

    /// Checks that all IDs in the config exist. Returns a route table, if one qualifies for routes.
    async fn check_ids(&self, api: &Api, site: &Site, inspection: &mut Inspection<'_>) -> Option<String> {
        let config = &self.loaded.value;
        let client = api.at(Priority::User);
        let mut found = |key: &str, id: &str, found: Result<Option<()>>, what: String| {
            let missing = format!("{id} does not exist in this account, region and VPC");
            let fix = "correct the id, or region and VPC";
            if inspection.require(("Global", key), found, missing, fix).is_some() {
                inspection.report.pass(key, what);
            }
        };
        let checked = in_time(client.check_vpc(&site.vpc)).await.map(Some);
        let vpc = accept(checked, ErrorKind::NotFound, None);
        found("VPC", &site.vpc, vpc, format!("{} exists", site.vpc));
        if let Some(id) = &config.subnet {
            let vpc = ("vpc-id", vec![site.vpc.clone()]);
            let filter = [("subnet-id", vec![id.clone()]), vpc];
            let subnets = in_time(client.subnets(&filter)).await;
            let subnet = subnets.map(|subnets| subnets.first().map(drop));
            found("SubnetID", id, subnet, format!("{id} is in {}", site.vpc));
        }
        let id = config.route_table.as_deref();
        let table = match in_time(route_tables(&client, site, id)).await {
            Ok(tables) => tables.into_iter().next(),
            Err(error) => {
                let finding = not_allowed(Op::RouteTables, &error, Severity::Error);
                inspection.report.findings.push(finding);
                return None;
            }
        };
        let takes = |id: &str| format!("{id} gets the routes to Pods");
        match (&table, id) {
            (_, Some(id)) => found("RouteTableID", id, Ok(table.as_ref().map(drop)), takes(id)),
            (None, None) => {
                let text = "none has the cluster's tag: --configure-cloud-routes will not work";
                inspection.report.pass("route tables", text);
            }
            (Some(table), None) => inspection.report.pass("route tables", takes(&table.id)),
        }
        table.map(|table| table.id)
    }
}

/// The finding for a failed connection to AWS.
fn connection_finding(error: &Error) -> Finding {
    let (about, fix) = match error.kind() {
        ErrorKind::Unauthenticated => (
            "credentials",
            "check that environment, shared credentials file, web identity or instance profile provide valid ones",
        ),
        ErrorKind::PermissionDenied => ("credentials", "allow the action, or allow assuming the role"),
        ErrorKind::Unavailable | ErrorKind::Timeout => (
            "AWS",
            "check that the endpoint is reachable from here: region, network, HTTPS_PROXY, AWS_CA_BUNDLE",
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

/// Checks the permissions that can be checked without a change.
async fn check_permissions(api: &Api, site: &Site, table: Option<&str>, report: &mut CloudReport) {
    let mut allowed = Vec::new();
    for (op, result) in api.at(Priority::User).try_out(&site.vpc, table).await {
        let severity = match op {
            // Upstream's policy does not allow it; DeleteRoute and CreateRoute are used instead.
            Op::RouteReplace => Severity::Warning,
            _ => Severity::Error,
        };
        match result {
            Ok(()) => allowed.push(op.iam_action()),
            Err(error) => report.findings.push(not_allowed(op, &error, severity)),
        }
    }
    if !allowed.is_empty() {
        allowed.dedup();
        report.pass("IAM actions", format!("allowed: {}", allowed.join(", ")));
    }
}
