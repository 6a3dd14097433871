//! Checks whether the credentials are valid, which services exist, and what can be read.

use ccm_core::{
    Error, ErrorKind, Priority,
    check::{ConfigSource, Finding, Severity, in_time},
};
use serde::Deserialize;

use super::inspect::{CloudCheck, remedy};
use crate::{
    client::{Call, Op, catalog::Service, read, with_microversion},
    instances::FLAVOR_INLINE,
    load_balancer::features::Version,
};

/// Only the existence of an answer matters.
#[derive(Deserialize)]
struct AnyDocument {}

/// An object that has to be readable, and its path.
type Readable = (&'static str, Op, &'static [&'static str]);

const NETWORK: [Readable; 3] = [
    ("ports", Op::PortList, &["ports"]),
    ("networks", Op::NetworkList, &["networks"]),
    ("subnets", Op::SubnetList, &["subnets"]),
];
const FLOATING: Readable = ("floating IPs", Op::FloatingIpList, &["floatingips"]);
const GROUPS: Readable = ("security groups", Op::SecurityGroupList, &["security-groups"]);
const EXTENSIONS: Readable = ("extensions", Op::ExtensionList, &["extensions"]);
const LOAD_BALANCING: [Readable; 4] = [
    ("load balancers", Op::LoadBalancerList, &["lbaas", "loadbalancers"]),
    ("listeners", Op::ListenerList, &["lbaas", "listeners"]),
    ("pools", Op::PoolList, &["lbaas", "pools"]),
    ("health monitors", Op::MonitorList, &["lbaas", "healthmonitors"]),
];

/// The common name of a service.
fn title(service: Service) -> &'static str {
    match service {
        Service::Compute => "Nova",
        Service::Network => "Neutron",
        Service::LoadBalancer => "Octavia",
        Service::KeyManager => "Barbican",
    }
}

/// The finding for an error of authentication.
pub(super) fn authentication_failure(keys: ConfigSource<'_>, error: &Error) -> Finding {
    const SECRETS: [&str; 4] = [
        "application-credential-secret",
        "trustee-password",
        "token",
        "password",
    ];
    let given = SECRETS.into_iter().find(|key| keys.locations.is_set(("Global", *key)));
    let (key, fix) = match error.kind() {
        ErrorKind::Unauthenticated | ErrorKind::PermissionDenied => (
            given.unwrap_or("auth-url"),
            "correct user, password and project, or the application credential: Keystone gives no further reason",
        ),
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited => (
            "auth-url",
            "make sure that this address can be reached from here: check the name, the network, https_proxy, and ca-file if its certificate is not \
             one that this machine trusts",
        ),
        _ => ("auth-url", "correct the config as the answer says"),
    };
    keys.finding(Severity::of(error.kind()), ("Global", key), error.report()).fix(fix)
}

impl CloudCheck<'_> {
    /// Checks Nova: servers.
    pub(super) async fn compute(&mut self) {
        if !self.has_service(Service::Compute).await {
            return;
        }
        let page = |version| {
            let read = read(Op::ServerList, Service::Compute, &["servers", "detail"]);
            let query = &[("limit", "1")];
            with_microversion(version, Call { query, ..read })
        };
        let newer = page(Some(FLAVOR_INLINE));
        match in_time(self.api.get::<AnyDocument>(&newer, Priority::User)).await {
            Ok(AnyDocument {}) => self.seen.report.pass("Nova", "servers can be read"),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                match in_time(self.api.get::<AnyDocument>(&page(None), Priority::User)).await {
                    Ok(AnyDocument {}) => {
                        let seen = format!(
                            "servers can be read; microversion {FLAVOR_INLINE} is missing, flavors are read one by one"
                        );
                        self.seen.report.pass("Nova", seen);
                    }
                    Err(error) => self.report_unreadable(Service::Compute, "servers", &error),
                }
            }
            Err(error) => self.report_unreadable(Service::Compute, "servers", &error),
        }
    }

    /// Checks Neutron. Returns whether it can be read further.
    pub(super) async fn network(&mut self) -> bool {
        if !self.has_service(Service::Network).await {
            return false;
        }
        let load_balancing = &self.settings.load_balancing.conf;
        let mut all: Vec<&Readable> = NETWORK.iter().collect();
        if load_balancing.enabled {
            all.push(&FLOATING);
            if load_balancing.manage_security_groups {
                all.push(&GROUPS);
            }
        }
        if !self.settings.routes.routers.is_empty() {
            all.push(&EXTENSIONS);
        }
        self.read_all(Service::Network, &all, "").await
    }

    /// Checks Octavia, if load balancers are switched on. Returns its version if it can be read further.
    pub(super) async fn load_balancing(&mut self) -> Option<Version> {
        if !self.settings.load_balancing.conf.enabled {
            self.seen.report.pass("Octavia", "not needed: load balancers are switched off");
            return None;
        }
        if !self.has_service(Service::LoadBalancer).await {
            return None;
        }
        let version = match in_time(self.reads.version()).await {
            Ok(version) => version,
            Err(error) => {
                self.report_unreadable(Service::LoadBalancer, "its versions", &error);
                return None;
            }
        };
        let all: Vec<_> = LOAD_BALANCING.iter().collect();
        let seen = format!("API version 2.{}; ", version.0);
        self.read_all(Service::LoadBalancer, &all, &seen).await.then_some(version)
    }

    /// Whether the catalog has the service. Reports a missing one.
    async fn has_service(&mut self, service: Service) -> bool {
        let reason = match in_time(self.api.missing(service)).await {
            Ok(None) => return true,
            Ok(Some(reason)) => reason,
            Err(error) => {
                self.report_unreadable(service, "the catalog", &error);
                return false;
            }
        };
        match service {
            Service::LoadBalancer => self.seen.add_finding(
                // Nodes and routes do not need Octavia.
                Severity::Warning,
                ("LoadBalancer", "enabled"),
                format!("Octavia not found, no Service gets a load balancer: {reason}"),
                "write enabled = false if that is intended, otherwise correct region and os-endpoint-type",
            ),
            _ => self.seen.add_finding(
                Severity::Error,
                ("Global", "region"),
                format!("{} not found: {reason}", title(service)),
                "correct region and os-endpoint-type, or the project",
            ),
        }
        false
    }

    /// Reads one object of each kind. Returns false if the service does not answer.
    async fn read_all(&mut self, service: Service, all: &[&Readable], seen: &str) -> bool {
        let mut readable = Vec::new();
        for (what, op, path) in all {
            let get = Call {
                // Neutron's list of extensions has no pages.
                query: if *op == Op::ExtensionList {
                    &[]
                } else {
                    &[("limit", "1")]
                },
                ..read(*op, service, path)
            };
            match in_time(self.api.get::<AnyDocument>(&get, Priority::User)).await {
                Ok(AnyDocument {}) => readable.push(*what),
                Err(error) => {
                    self.report_unreadable(service, what, &error);
                    if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) {
                        return false;
                    }
                }
            }
        }
        if !readable.is_empty() {
            let seen = format!("{seen}{} can be read", readable.join(", "));
            self.seen.report.pass(title(service), seen);
        }
        true
    }

    fn report_unreadable(&mut self, service: Service, what: &str, error: &Error) {
        let message = format!("{what} cannot be read: {}", error.report());
        let finding = Finding::new(Severity::of(error.kind()), title(service), message);
        self.seen.report.findings.push(finding.fix(remedy(error.kind())));
    }
}
