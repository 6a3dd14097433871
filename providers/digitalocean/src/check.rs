//! What is wrong with configuration, account and Services, found without running: the provider's part of `validate`.

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, Result, async_trait,
    check::{Checker, CloudReport, Finding, ServiceFinding, Severity, in_time},
    config::{ConfigFiles, Parsed},
    load_balancer::{Claim, ServiceView},
    plan::PartModel as _,
    registry::CheckerResult,
};
use serde_json::Value;

use crate::{
    check_region,
    client::{Api, Op},
    config::{self, Settings},
    load_balancer::{annotations, desired, model::Model},
};

/// Reads the configuration, to check it and what it refers to.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn checker(context: &BuildContext) -> CheckerResult {
    let loaded = config::load(context, &mut ConfigFiles::default());
    let loaded = loaded.map_err(|error| Finding::of_load_error(&error))?;
    Ok(Box::new(Inspector {
        context: context.clone(),
        loaded,
    }))
}

struct Inspector {
    context: BuildContext,
    loaded: Parsed<Settings>,
}

/// What is read, and the scope of the token that it needs.
const SCOPES: [(Op, &str); 6] = [
    (Op::RegionList, "regions:read"),
    (Op::DropletList, "droplet:read"),
    (Op::LoadBalancerList, "load_balancer:read"),
    (Op::CertificateList, "certificate:read"),
    (Op::TagList, "tag:read"),
    (Op::FirewallList, "firewall:read"),
];

#[async_trait]
impl Checker for Inspector {
    fn config(&self) -> Vec<Finding> {
        let warnings = self.loaded.warnings.iter();
        warnings
            .map(|problem| Finding::of_problem(Severity::Warning, problem))
            .collect()
    }

    async fn cloud(&self) -> CloudReport {
        let settings = &self.loaded.value;
        let mut report = CloudReport::default();
        let api = match Api::new(settings, &self.context) {
            Ok(api) => api,
            Err(error) => {
                report.findings.push(Finding::of_error("API", &error));
                return report;
            }
        };
        let account = in_time(api.account(Priority::User)).await;
        match account.as_ref().map_err(Error::kind) {
            Ok(()) => report.pass("token", "the API accepts it"),
            Err(ErrorKind::PermissionDenied) => add(&mut report, "token", "account:read", account),
            Err(kind) => {
                let fix = match kind {
                    ErrorKind::Unauthenticated => {
                        "set DO_ACCESS_TOKEN to a token of the account that is not revoked"
                    }
                    _ => "see that the API answers from here, then try again",
                };
                let finding = account
                    .err()
                    .map(|error| Finding::of_error("token", &error).fix(fix));
                report.findings.extend(finding);
                let text = "The account: without a token nothing can be read.";
                report.left_out.push(text.to_owned());
                return report;
            }
        }
        report.scope = Some(api.url().to_string());
        let mut readable = Vec::new();
        for (op, scope) in SCOPES {
            if op == Op::FirewallList && settings.firewall.is_none() {
                continue;
            }
            let read = api.send(op, &[], &[("per_page", "1")], &Value::Null, Priority::User);
            match in_time(read).await {
                Ok(_) => readable.push(scope),
                Err(error) => add(&mut report, scope, scope, Err(error)),
            }
        }
        report.pass("scopes of the token", readable.join(", "));
        self.places(&api, &mut report).await;
        let left_out = "Scopes of the token that only a write needs: load_balancer:create, load_balancer:update, \
                        load_balancer:delete, firewall:create, firewall:update, tag:create.";
        report.left_out.push(left_out.to_owned());
        report
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        self.model().claims(service)
    }

    /// The refusals of upstream's admission webhook, as far as they do not ask the API.
    fn service(&self, service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        let reading = desired::read(service, &self.loaded.value, None, None);
        let table = annotations::TABLE;
        let mut findings: Vec<_> = reading
            .invalid
            .iter()
            .map(|invalid| table.invalid(invalid))
            .collect();
        findings.extend(reading.ignored.iter().map(|ignored| table.ignored(ignored)));
        findings.extend(table.unknown(&service.annotations));
        Some(findings)
    }
}

impl Inspector {
    fn model(&self) -> Model {
        Model {
            settings: std::sync::Arc::new(self.loaded.value.clone()),
            region: String::new(),
        }
    }

    /// Whether region and VPC exist.
    async fn places(&self, api: &Api, report: &mut CloudReport) {
        let settings = &self.loaded.value;
        if let Some(region) = &settings.region {
            match in_time(check_region(api, region)).await {
                Ok(()) => report.pass("REGION", format!("{region} exists")),
                Err(error) if error.kind() == ErrorKind::InvalidConfig => {
                    report.findings.push(Finding::of_error("REGION", &error));
                }
                // Reported as a missing scope or an error before.
                Err(_) => {}
            }
        } else {
            let text =
                "The region: it is read from the metadata service of the droplet where the program runs.";
            report.left_out.push(text.to_owned());
        }
        let Some(vpc) = &settings.vpc else { return };
        match in_time(api.find::<Value>(Op::VpcGet, vpc, Priority::User)).await {
            Ok(Some(_)) => report.pass("DO_CLUSTER_VPC_ID", "the VPC exists"),
            Ok(None) => {
                let text = format!("there is no VPC {vpc} in this account");
                let finding = Finding::new(Severity::Error, "DO_CLUSTER_VPC_ID", text);
                report.findings.push(finding);
            }
            Err(error) => add(report, "DO_CLUSTER_VPC_ID", "vpc:read", Err(error)),
        }
    }
}

/// Reports a failed read of `subject`, for which the token needs a scope.
fn add(report: &mut CloudReport, subject: &str, scope: &str, read: Result<()>) {
    let Err(error) = read else { return };
    if error.kind() != ErrorKind::PermissionDenied {
        report.findings.push(Finding::of_error(subject, &error));
        return;
    }
    let severity = match scope {
        // Nothing but this report and `DEBUG_ADDR` reads them.
        "account:read" | "vpc:read" => Severity::Warning,
        _ => Severity::Error,
    };
    let text = format!("the token lacks the scope {scope}");
    let finding = Finding::new(severity, "scopes of the token", text);
    report
        .findings
        .push(finding.fix("create a token with this scope"));
}
