//! The provider's part of `validate`: finds problems of configuration, account and Services without running the controllers.

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, async_trait,
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
    load_balancer::{
        annotations,
        desired::{self, Reading},
        document::field,
        model::Model,
    },
};

/// Reads the configuration, to check it and what it refers to.
///
/// # Errors
/// All problems of the configuration.
pub(crate) fn checker(context: &BuildContext) -> CheckerResult {
    let loaded = config::load(context, &mut ConfigFiles::default())?;
    let api = Api::new(&loaded.value, context).map_err(|error| vec![Finding::of_error("API", &error)])?;
    Ok(Box::new(Inspector { api, loaded }))
}

struct Inspector {
    api: Api,
    loaded: Parsed<Settings>,
}

/// The operations to try, and the token scope that each needs.
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
        Finding::of_warnings(&self.loaded)
    }

    async fn cloud(&self) -> CloudReport {
        let (settings, api) = (&self.loaded.value, &self.api);
        let mut report = CloudReport::default();
        match in_time(api.account(Priority::User)).await {
            Ok(()) => report.pass("token", "the API accepts it"),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                add(&mut report, "token", "account:read", &error);
            }
            Err(error) => {
                let fix = if error.kind() == ErrorKind::Unauthenticated {
                    "set DO_ACCESS_TOKEN to a token of the account that is not revoked"
                } else {
                    "check that the API is reachable from this host, then try again"
                };
                report.findings.push(Finding::of_error("token", &error).fix(fix));
                report.leave_out("The account: no requests are possible without a token.");
                return report;
            }
        }
        report.scope = Some(api.url().to_string());
        let mut readable = Vec::new();
        for (op, scope) in SCOPES {
            if op == Op::FirewallList && !settings.has_firewall() {
                continue;
            }
            let read = api.send(op, &[], &[("per_page", "1")], &Value::Null, Priority::User);
            match in_time(read).await {
                Ok(answer) => {
                    readable.push(scope);
                    if op == Op::LoadBalancerList {
                        report.findings.extend(missing_tags(&answer));
                    }
                }
                Err(error) => add(&mut report, scope, scope, &error),
            }
        }
        report.pass("scopes of the token", readable.join(", "));
        self.places(&mut report).await;
        report.leave_out(
            "Token scopes that only writes need: load_balancer:create, load_balancer:update, \
             load_balancer:delete, firewall:create, firewall:update, tag:create.",
        );
        report
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        self.model().claims(service)
    }

    /// The checks of upstream's admission webhook that need no API call.
    fn service(&self, service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        let Reading { ignored, invalid, .. } = desired::read(service, &self.loaded.value, None, None);
        Some(annotations::TABLE.findings(&service.annotations, &invalid, &ignored))
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
    async fn places(&self, report: &mut CloudReport) {
        let (settings, api) = (&self.loaded.value, &self.api);
        if let Some(region) = &settings.region {
            match in_time(check_region(api, region)).await {
                Ok(()) => report.pass("REGION", format!("{region} exists")),
                Err(error) if error.kind() == ErrorKind::InvalidConfig => {
                    report.findings.push(Finding::of_error("REGION", &error));
                }
                // Already reported, as a missing scope or an error.
                Err(_) => {}
            }
        } else {
            report.leave_out("The region: the program reads it from the metadata service of its droplet.");
        }
        let Some(vpc) = &settings.vpc else { return };
        let key = "DO_CLUSTER_VPC_ID";
        match in_time(api.find::<Value>(Op::VpcGet, vpc, Priority::User)).await {
            Ok(Some(_)) => report.pass(key, "the VPC exists"),
            Ok(None) => {
                let text = format!("VPC {vpc} not found in this account");
                report.findings.push(Finding::new(Severity::Error, key, text));
            }
            Err(error) => add(report, key, "vpc:read", &error),
        }
    }
}

/// The finding about load balancers without tags.
fn missing_tags(listing: &Value) -> Option<Finding> {
    let balancers = listing["load_balancers"].as_array()?;
    if !balancers.iter().any(|balancer| balancer[field::TAGS].is_null()) {
        return None;
    }
    let text =
        "the API returns load balancers without their tags, so that orphaned load balancers are not found";
    let fix = "delete load balancers without a Service by hand (doctl compute load-balancer list)";
    Some(Finding::new(Severity::Warning, "tags of load balancers", text).fix(fix))
}

/// Reports a failed read of `subject`, for which the token needs a scope.
fn add(report: &mut CloudReport, subject: &str, scope: &str, error: &Error) {
    if error.kind() != ErrorKind::PermissionDenied {
        report.findings.push(Finding::of_error(subject, error));
        return;
    }
    let severity = match scope {
        // Only this report and `DEBUG_ADDR` need these scopes.
        "account:read" | "vpc:read" => Severity::Warning,
        _ => Severity::Error,
    };
    let finding = Finding::new(severity, "scopes of the token", format!("the token lacks the scope {scope}"));
    report.findings.push(finding.fix("create a token with this scope"));
}
