//! Are we let in, which services are there, and what may be read.

use ccm_core::{
    Error, ErrorKind, Priority,
    check::{ConfigSource, Finding, Severity, in_time},
};
use serde::Deserialize;

use super::inspect::{CloudCheck, remedy};
use crate::{
    client::{Call, Op, catalogue::Service, read, with_microversion},
    instances::FLAVOR_INLINE,
    load_balancer::features::Version,
};

/// That there is an answer is enough.
#[derive(Deserialize)]
struct AnyDocument {}

/// What has to be readable, and where.
type Readable = (&'static str, Op, &'static [&'static str]);

const NETWORK: [Readable; 3] = [
    ("ports", Op::PortList, &["ports"]),
    ("networks", Op::NetworkList, &["networks"]),
    ("subnets", Op::SubnetList, &["subnets"]),
];
const FLOATING: Readable = ("floating addresses", Op::FloatingIpList, &["floatingips"]);
const GROUPS: Readable = ("security groups", Op::SecurityGroupList, &["security-groups"]);
const EXTENSIONS: Readable = ("extensions", Op::ExtensionList, &["extensions"]);
const LOAD_BALANCING: [Readable; 4] = [
    (
        "load balancers",
        Op::LoadBalancerList,
        &["lbaas", "loadbalancers"],
    ),
    ("listeners", Op::ListenerList, &["lbaas", "listeners"]),
    ("pools", Op::PoolList, &["lbaas", "pools"]),
    ("health monitors", Op::MonitorList, &["lbaas", "healthmonitors"]),
];

/// What people call a service.
fn title(service: Service) -> &'static str {
    match service {
        Service::Compute => "Nova",
        Service::Network => "Neutron",
        Service::LoadBalancer => "Octavia",
        Service::KeyManager => "Barbican",
    }
}

/// Why Keystone gave no token.
pub(super) fn no_entry(keys: ConfigSource<'_>, error: &Error) -> Finding {
    const SECRETS: [&str; 4] = [
        "application-credential-secret",
        "trustee-password",
        "token",
        "password",
    ];
    let given = SECRETS
        .into_iter()
        .find(|key| keys.locations.is_set(("Global", *key)));
    let (key, fix) = match error.kind() {
        ErrorKind::Unauthenticated | ErrorKind::PermissionDenied => (
            given.unwrap_or("auth-url"),
            "correct user, password and project, or the application credential: Keystone says no more than this",
        ),
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited => (
            "auth-url",
            "see that this address answers from here: the name, the network, https_proxy, and ca-file if its certificate is not \
             one that this machine trusts",
        ),
        _ => ("auth-url", "correct the config by what the answer says"),
    };
    keys.finding(Severity::of(error.kind()), ("Global", key), error.report())
        .fix(fix)
}

impl CloudCheck<'_> {
    /// Nova: servers.
    pub(super) async fn compute(&mut self) {
        if !self.is_there(Service::Compute).await {
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
                    Err(error) => self.may_not(Service::Compute, "servers", &error),
                }
            }
            Err(error) => self.may_not(Service::Compute, "servers", &error),
        }
    }

    /// Neutron. Whether it can be asked more.
    pub(super) async fn network(&mut self) -> bool {
        if !self.is_there(Service::Network).await {
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
        self.may_read(Service::Network, &all, "").await
    }

    /// Octavia, if load balancers are wanted. Its version, if it can be asked more.
    pub(super) async fn load_balancing(&mut self) -> Option<Version> {
        if !self.settings.load_balancing.conf.enabled {
            self.seen
                .report
                .pass("Octavia", "not needed: load balancers are switched off");
            return None;
        }
        if !self.is_there(Service::LoadBalancer).await {
            return None;
        }
        let version = match in_time(self.reads.version(Priority::User)).await {
            Ok(version) => version,
            Err(error) => {
                self.may_not(Service::LoadBalancer, "its versions", &error);
                return None;
            }
        };
        let all: Vec<_> = LOAD_BALANCING.iter().collect();
        let seen = format!("API version 2.{}; ", version.0);
        self.may_read(Service::LoadBalancer, &all, &seen)
            .await
            .then_some(version)
    }

    /// Whether the catalogue has the service; if not, that is noted.
    async fn is_there(&mut self, service: Service) -> bool {
        let reason = match in_time(self.api.missing(service)).await {
            Ok(None) => return true,
            Ok(Some(reason)) => reason,
            Err(error) => {
                self.may_not(service, "the catalogue", &error);
                return false;
            }
        };
        match service {
            Service::LoadBalancer => self.seen.note(
                // Nodes and routes do without.
                Severity::Warning,
                ("LoadBalancer", "enabled"),
                format!("there is no Octavia, so that no Service gets a load balancer: {reason}"),
                "write enabled = false if that is known, else correct region and os-endpoint-type",
            ),
            _ => self.seen.note(
                Severity::Error,
                ("Global", "region"),
                format!("there is no {}: {reason}", title(service)),
                "correct region and os-endpoint-type, or the project",
            ),
        }
        false
    }

    /// Reads one of each. Whether it is worth to go on: a service that does not answer is not asked again.
    async fn may_read(&mut self, service: Service, all: &[&Readable], seen: &str) -> bool {
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
                    self.may_not(service, what, &error);
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

    fn may_not(&mut self, service: Service, what: &str, error: &Error) {
        let message = format!("{what} can not be read: {}", error.report());
        let finding = Finding::new(Severity::of(error.kind()), title(service), message);
        self.seen.report.findings.push(finding.fix(remedy(error.kind())));
    }
}
