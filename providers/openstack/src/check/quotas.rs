//! The use of quotas by load balancers and routes.
//!
//! Neither Octavia nor every Neutron reports how much of a quota is used, so existing objects are counted. A quota that
//! the credentials cannot read is left out.

use std::collections::BTreeMap;

use ccm_core::{
    Error, ErrorKind, Priority, Result,
    check::{Finding, QuotaUsage, in_time},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::inspect::{CloudCheck, remedy};
use crate::{
    client::{Op, catalog::Service, listing::Resource},
    load_balancer::responses::{FloatingIp, Listener, LoadBalancer, Monitor, Pool, SecurityGroup},
};

/// Quotas of Neutron and Octavia, among other values. Negative numbers and `null` are no limit.
#[derive(Deserialize)]
struct Limits {
    quota: BTreeMap<String, Limit>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Limit {
    Number(i64),
    Other(IgnoredAny),
}

impl Limits {
    /// The quota of a kind under any of its names. `None`: the service has no such quota. `Some(None)`: no limit.
    fn of(&self, names: &[&str]) -> Option<Option<u64>> {
        let found = names.iter().find_map(|name| self.quota.get(*name))?;
        Some(match found {
            Limit::Number(number) => u64::try_from(*number).ok(),
            Limit::Other(_) => None,
        })
    }
}

/// How many objects of a kind exist.
struct Usage {
    what: &'static str,
    names: &'static [&'static str],
    count: usize,
}

impl CloudCheck<'_> {
    /// Reports the use of the quotas of the services that can be read.
    pub(super) async fn quotas(&mut self, network: bool, load_balancing: bool) {
        let project = match in_time(self.api.project()).await {
            Ok(Some(project)) => project,
            Ok(None) => {
                let text = "Quotas: the credentials have no project.";
                self.seen.report.left_out.push(text.to_owned());
                return;
            }
            Err(error) => {
                self.seen.report.findings.push(Finding::of_error("quotas", &error));
                return;
            }
        };
        if network {
            let path = ["quotas", project.as_str()];
            let limits = self.read(Op::NetworkQuotaGet, Service::Network, &path).await;
            if let Some(limits) = self.limits("Neutron", limits) {
                let used = self.network_use(&project).await;
                self.report_usage("Neutron", &limits, used);
            }
        }
        if load_balancing {
            let path = ["lbaas", "quotas", project.as_str()];
            let limits = self.read(Op::LoadBalancerQuotaGet, Service::LoadBalancer, &path).await;
            if let Some(limits) = self.limits("Octavia", limits) {
                let used = self.load_balancer_use(&project).await;
                self.report_usage("Octavia", &limits, used);
            }
        }
    }

    fn limits(&mut self, service: &str, limits: Result<Option<Limits>>) -> Option<Limits> {
        let why = match limits {
            Ok(Some(limits)) => return Some(limits),
            Ok(None) => "it shows none",
            Err(error) if error.kind() == ErrorKind::PermissionDenied => "the credentials may not read them",
            Err(error) => {
                self.unknown(service, &error);
                return None;
            }
        };
        let text = format!("Quotas of {service}: {why}.");
        self.seen.report.left_out.push(text);
        None
    }

    fn unknown(&mut self, service: &str, error: &Error) {
        let finding = Finding::of_error(format!("quotas of {service}"), error);
        self.seen.report.findings.push(finding.fix(remedy(error.kind())));
    }

    /// # Errors
    /// If the objects cannot be counted.
    async fn network_use(&self, project: &str) -> Result<Vec<Usage>> {
        let mut all = Vec::new();
        if self.settings.load_balancing.conf.enabled {
            let floating = self.mine::<FloatingIp>(project, &["id"]).await?.len();
            all.push(used("floating IPs", &["floatingip"], floating));
            if self.settings.load_balancing.conf.manage_security_groups {
                let fields = ["id", "security_group_rules"];
                let groups = self.mine::<SecurityGroup>(project, &fields).await?;
                let rules = groups.iter().map(|group| group.rules.len()).sum();
                all.push(used("security groups", &["security_group"], groups.len()));
                all.push(used("rules of security groups", &["security_group_rule"], rules));
            }
        }
        // The quota applies to each router. Another check reports missing routers.
        for router in &self.settings.routes.routers {
            let path = ["routers", router.as_str()];
            let found = self.read::<Value>(Op::RouterGet, Service::Network, &path).await?;
            if let Some(document) = found {
                let count = document["router"]["routes"].as_array().map_or(0, Vec::len);
                all.push(used("routes of the router", &["router_route"], count));
            }
        }
        Ok(all)
    }

    /// # Errors
    /// If the objects cannot be counted.
    async fn load_balancer_use(&self, project: &str) -> Result<Vec<Usage>> {
        let balancers = self.mine::<LoadBalancer>(project, &["id"]).await?.len();
        let listeners = self.mine::<Listener>(project, &["id"]).await?.len();
        let pools = self.mine::<Pool>(project, &["id", "members"]).await?;
        let members = pools.iter().map(|pool| pool.members.len()).sum();
        let monitors = self.mine::<Monitor>(project, &["id"]).await?.len();
        Ok(vec![
            used("load balancers", &["loadbalancer", "load_balancer"], balancers),
            used("listeners", &["listener"], listeners),
            used("pools", &["pool"], pools.len()),
            used("members", &["member"], members),
            used("health monitors", &["healthmonitor", "health_monitor"], monitors),
        ])
    }

    async fn mine<T: Resource>(&self, project: &str, fields: &[&str]) -> Result<Vec<T>> {
        let mut query = vec![("project_id", project)];
        query.extend(fields.iter().map(|field| ("fields", *field)));
        in_time(self.api.list(&query, Priority::User)).await
    }

    fn report_usage(&mut self, service: &str, limits: &Limits, used: Result<Vec<Usage>>) {
        let used = match used {
            Ok(used) => used,
            // Another check already reported the missing permission.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let text = format!("Quotas of {service}: the usage cannot be read.");
                self.seen.report.left_out.push(text);
                return;
            }
            Err(error) => return self.unknown(service, &error),
        };
        let usage = used.into_iter().filter_map(|Usage { what, names, count }| {
            Some(QuotaUsage {
                what,
                used: count,
                limit: limits.of(names)?,
                name: names.join(" or "),
            })
        });
        self.seen.report.quotas(service, &usage.collect::<Vec<_>>());
    }
}

fn used(what: &'static str, names: &'static [&'static str], count: usize) -> Usage {
    Usage { what, names, count }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn limits_have_several_names_and_forms() {
        let text = r#"{"quota": {"load_balancer": 3, "pool": -1, "member": null, "project_id": "p", "listener": 0}}"#;
        let limits: Limits = serde_json::from_str(text).unwrap();
        assert_eq!(limits.of(&["loadbalancer", "load_balancer"]), Some(Some(3)));
        assert_eq!(limits.of(&["listener"]), Some(Some(0)));
        for unlimited in ["pool", "member"] {
            assert_eq!(limits.of(&[unlimited]), Some(None), "{unlimited}");
        }
        assert_eq!(limits.of(&["healthmonitor"]), None);
    }
}
