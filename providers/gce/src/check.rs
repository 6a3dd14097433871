//! Checks of the config and the project: the provider's part of `validate`. Nothing is changed.

use ccm_core::{
    BuildContext, Error, ErrorKind, Priority, Result, async_trait,
    check::{Checker, CloudReport, ConfigSource, Finding, Inspection, PermissionCheck, Severity, in_time},
    config::{ConfigFiles, Parsed},
    load_balancer::{Claim, ServiceFinding, ServiceView},
    registry::CheckerResult,
};

use crate::{
    client::{Api, last_component, permissions},
    config::{self, Config, NameOrPath},
    load_balancer::{
        annotations::TABLE,
        spec::{self, Spec},
    },
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

/// Checks one config and the project that it refers to.
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
        let (api, site) = match Box::pin(in_time(self.connect())).await {
            Ok(connected) => connected,
            Err(error) => {
                report.findings.push(connection_finding(&error));
                report.leave_out("GCE: cannot be checked without credentials, project and zone.");
                return report;
            }
        };
        report.scope = Some(site.to_string());
        report.pass("credentials", "the API accepts them");
        let mut inspection = Inspection {
            keys: ConfigSource::of(&self.context, &self.loaded),
            report,
            remedy: |kind| match kind {
                ErrorKind::PermissionDenied => "grant the permission to the service account",
                _ => "",
            },
        };
        self.check_network(&api, &site, &mut inspection).await;
        let mut report = inspection.report;
        self.check_permissions(&api, &site, &mut report).await;
        report
    }

    fn claims(&self, service: &ServiceView) -> Claim {
        spec::claims(service, &self.loaded.value.load_balancing)
    }

    fn service(&self, service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        let spec = Spec::read(service);
        Some(TABLE.findings(&service.annotations, &spec.invalid, &spec.ignored))
    }
}

impl Inspector {
    async fn connect(&self) -> Result<(Api, Site)> {
        let config = &self.loaded.value;
        let api = Api::connect(config.connection.clone(), &config.conf.quota, &self.context).await?;
        let site = Site::find(&api, config, &self.context.metrics).await?;
        Ok((api, site))
    }

    /// Checks that network and subnetwork exist.
    async fn check_network(&self, api: &Api, site: &Site, inspection: &mut Inspection<'_>) {
        let client = api.at(Priority::User);
        let (project, region) = (&site.network_project, &site.region);
        let name = site.network_name();
        let key = ("global", "network-name");
        let read = in_time(client.network(project, name)).await;
        let missing = format!(
            "network {name:?} not found in project {project:?} (it does not exist or is not visible)"
        );
        let Some(network) =
            inspection.require(key, read, missing, "correct network-name and network-project-id")
        else {
            return;
        };
        inspection.report.pass("network-name", format!("{name} exists"));
        let key = ("global", "subnetwork-name");
        let wanted = match &self.loaded.value.subnetwork {
            Some(NameOrPath::Name(name)) => name.as_str(),
            Some(NameOrPath::Path(path)) => last_component(path),
            None if network.is_legacy => return,
            None => {
                if !network.is_auto {
                    let text = format!(
                        "network {name:?} is in custom mode: internal load balancers need a subnetwork"
                    );
                    inspection.add_finding(Severity::Warning, key, text, "set subnetwork-name");
                    return;
                }
                match in_time(client.subnetworks(project, region)).await {
                    Ok(all) => match all.iter().find(|subnetwork| subnetwork.network == site.network) {
                        Some(found) => {
                            inspection
                                .report
                                .pass("subnetwork-name", format!("{} ({})", found.name, found.range));
                        }
                        None => {
                            let text = format!("network {name:?} has no subnetwork in region {region:?}");
                            inspection.add_finding(
                                Severity::Warning,
                                key,
                                text,
                                "create one, or set subnetwork-name",
                            );
                        }
                    },
                    Err(error) => inspection.failed(key, &error),
                }
                return;
            }
        };
        let read = in_time(client.subnetwork(project, region, wanted)).await;
        let missing = format!("subnetwork {wanted:?} not found in region {region:?} of project {project:?}");
        let Some(subnetwork) = inspection.require(key, read, missing, "correct subnetwork-name") else {
            return;
        };
        if subnetwork.network == site.network {
            inspection
                .report
                .pass("subnetwork-name", format!("{wanted} ({}) exists", subnetwork.range));
        } else {
            let text = format!(
                "subnetwork {wanted:?} is one of network {:?}, not of {name:?}",
                last_component(&subnetwork.network)
            );
            inspection.add_finding(Severity::Error, key, text, "correct subnetwork-name or network-name");
        }
    }

    /// Names the permissions that the credentials lack.
    async fn check_permissions(&self, api: &Api, site: &Site, report: &mut CloudReport) {
        for project in permissions::projects(site, self.context.has_routes()) {
            let check = PermissionCheck {
                place: format!("project {:?}", project.name),
                grant: "grant the service account a role with these, such as deploy/gce/role.yaml",
                ask: "enable the Resource Manager API in the project, or check the role by hand",
            };
            report.permissions(
                &check,
                in_time(api.missing_permissions(project.name, &project.permissions)).await,
            );
        }
    }
}

/// The finding for a failed connection.
fn connection_finding(error: &Error) -> Finding {
    let (about, fix) = match error.kind() {
        ErrorKind::Unauthenticated => (
            "credentials",
            "check that the instance has a service account, or that token-url and the credentials file are right",
        ),
        ErrorKind::PermissionDenied => (
            "credentials",
            "grant the permission to the service account; an instance also needs the scope cloud-platform or compute",
        ),
        ErrorKind::NotFound => ("project-id", "correct project-id"),
        ErrorKind::Unavailable | ErrorKind::Timeout => (
            "GCE",
            "check that the endpoint is reachable from here: network, HTTPS_PROXY, api-endpoint",
        ),
        _ => ("GCE", ""),
    };
    Finding::of_error(about, error).fix(fix)
}
