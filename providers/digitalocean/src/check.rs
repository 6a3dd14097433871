//! What is wrong with configuration, account and Services, found without running: the provider's part of `validate`.

use ccm_core::{
    BuildContext, ErrorKind, Priority, Result, async_trait,
    check::{Checker, CloudReport, Finding, ServiceFinding, Severity, in_time},
    config::{ConfigFiles, Parsed},
    load_balancer::{Claim, ServiceView},
    plan::PartModel as _,
    registry::CheckerResult,
};
use serde_json::Value;

use crate::{
    client::{Api, Op, Region},
    config::{self, Settings},
    load_balancer::{annotations, desired, model::Model},
};

/// Reads the configuration, to look over what it leads to.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn checker(context: &BuildContext) -> CheckerResult {
    let path = context.cloud_config.as_deref();
    let loaded = config::load(path, &context.environment, &mut ConfigFiles::default());
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
const SCOPES: [(Op, &str, &str); 6] = [
    (Op::RegionList, "regions", "regions:read"),
    (Op::DropletList, "droplets", "droplet:read"),
    (Op::LoadBalancerList, "load_balancers", "load_balancer:read"),
    (Op::CertificateList, "certificates", "certificate:read"),
    (Op::TagList, "tags", "tag:read"),
    (Op::FirewallList, "firewalls", "firewall:read"),
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
        match in_time(api.account(Priority::User)).await {
            Ok(()) => report.pass("token", "the API accepts it"),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                report
                    .findings
                    .push(missing_scope("account:read", Severity::Warning));
            }
            Err(error) => {
                let fix = match error.kind() {
                    ErrorKind::Unauthenticated => {
                        "set DO_ACCESS_TOKEN to a token of the account that is not revoked"
                    }
                    _ => "see that the API answers from here, then try again",
                };
                report.findings.push(Finding::of_error("token", &error).fix(fix));
                report
                    .left_out
                    .push("The account: without a token nothing can be read.".to_owned());
                return report;
            }
        }
        report.scope = Some(api.url().to_string());
        let mut readable = Vec::new();
        for (op, collection, scope) in SCOPES {
            if op == Op::FirewallList && settings.firewall.is_none() {
                continue;
            }
            let query = [("per_page", "1")];
            let read = in_time(api.get::<Value>(op, &[collection], &query, Priority::User)).await;
            match read {
                Ok(_) => readable.push(scope),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    report.findings.push(missing_scope(scope, Severity::Error));
                }
                Err(error) => report.findings.push(Finding::of_error(collection, &error)),
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
        if let Some(wanted) = &settings.region {
            let list = api.list::<Region>(Op::RegionList, "regions", &[], Priority::User);
            match in_time(list).await {
                Ok(regions) if regions.iter().any(|region| region.slug == *wanted) => {
                    report.pass("REGION", format!("{wanted} exists"));
                }
                Ok(regions) => {
                    let known: Vec<_> = regions.iter().map(|region| region.slug.as_str()).collect();
                    let finding = Finding::new(
                        Severity::Error,
                        "REGION",
                        format!("there is no region {wanted:?}"),
                    );
                    report
                        .findings
                        .push(finding.fix(format!("write one of {}", known.join(", "))));
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
        let read: Result<Option<Value>> = in_time(api.find(Op::VpcGet, &["vpcs", vpc], Priority::User)).await;
        match read {
            Ok(Some(_)) => report.pass("DO_CLUSTER_VPC_ID", "the VPC exists"),
            Ok(None) => {
                let text = format!("there is no VPC {vpc} in this account");
                report
                    .findings
                    .push(Finding::new(Severity::Error, "DO_CLUSTER_VPC_ID", text));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                report.findings.push(missing_scope("vpc:read", Severity::Warning));
            }
            Err(error) => report
                .findings
                .push(Finding::of_error("DO_CLUSTER_VPC_ID", &error)),
        }
    }
}

fn missing_scope(scope: &str, severity: Severity) -> Finding {
    let finding = Finding::new(
        severity,
        "scopes of the token",
        format!("the token lacks the scope {scope}"),
    );
    finding.fix("create a token with this scope")
}
