//! `/configz` and `/flagz`: the configuration of the program. No flag has a secret as its value, and credentials in URLs are
//! removed when flags are read.

use std::fmt::Write;

use ccm_core::config::duration::{format as time, parse};
use serde_json::{Value, json};

use crate::config::{Config, MigrationConfig};

/// The content of the pages. It does not change while the program runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigPages {
    configz: Value,
    flags: Vec<(String, String)>,
}

impl ConfigPages {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            configz: configz(config),
            flags: config.values.clone(),
        }
    }

    pub(super) fn configz(&self) -> String {
        format!("{:#}\n", self.configz)
    }

    pub(super) fn flagz(&self) -> String {
        let mut text = "cloud-controller-manager flagz\nWarning: This endpoint is not meant to be machine parseable, has \
                        no formatting compatibility guarantees and is for debugging purposes only.\n\n"
            .to_owned();
        for (flag, value) in &self.flags {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{flag}={value}");
        }
        text
    }

    pub(super) fn flagz_json(&self) -> String {
        let flags: serde_json::Map<_, _> = self
            .flags
            .iter()
            .map(|(flag, value)| (flag.clone(), Value::from(value.clone())))
            .collect();
        let page = json!({
            "kind": "Flagz",
            "apiVersion": "config.k8s.io/v1alpha1",
            "metadata": {"name": "cloud-controller-manager"},
            "flags": flags,
        });
        format!("{page:#}\n")
    }
}

/// The format of upstream. Fields that they lack are in `Extra`.
fn configz(config: &Config) -> Value {
    let value = |flag: &str| {
        let found = config.values.iter().find(|(name, _)| name == flag);
        found.map_or("", |(_, value)| value.as_str())
    };
    // In Go's format, if it is a duration.
    let given_time = |flag: &str| {
        let text = value(flag);
        parse(text).map_or_else(|_| "0s".to_owned(), time)
    };
    let given_bool = |flag: &str| matches!(value(flag), "1" | "t" | "T" | "true" | "TRUE" | "True");
    let list = |flag: &str| -> Vec<&str> { value(flag).split(',').filter(|item| !item.is_empty()).collect() };
    let limit = config.api_server.limit;
    let election = config.election.as_ref();
    let serving = config.serving.as_ref();
    let configuration = json!({
        "kind": "CloudControllerManagerConfiguration",
        "apiVersion": "cloudcontrollermanager.config.k8s.io/v1alpha1",
        "Generic": {
            "Port": serving.map_or(0, |serving| serving.address.port()),
            "Address": value("bind-address"),
            "MinResyncPeriod": given_time("min-resync-period"),
            "ClientConnection": {
                "kubeconfig": value("kubeconfig"),
                "acceptContentTypes": "",
                "contentType": "application/json",
                "qps": limit.map_or(-1.0, |limit| limit.qps),
                "burst": limit.map_or(0, |limit| limit.burst),
            },
            "ControllerStartInterval": given_time("controller-start-interval"),
            "LeaderElection": {
                "leaderElect": election.is_some(),
                "leaseDuration": election.map_or_else(|| "0s".to_owned(), |election| time(election.lease_duration)),
                "renewDeadline": election.map_or_else(|| "0s".to_owned(), |election| time(election.renew_deadline)),
                "retryPeriod": election.map_or_else(|| "0s".to_owned(), |election| time(election.retry_period)),
                "resourceLock": "leases",
                "resourceName": election.map_or("", |election| election.name.as_str()),
                "resourceNamespace": election.map_or("", |election| election.namespace.as_str()),
            },
            "Controllers": list("controllers"),
            "Debugging": {"enableProfiling": false, "enableContentionProfiling": false},
            "LeaderMigrationEnabled": given_bool("enable-leader-migration"),
            "LeaderMigration": migration(election.and_then(|election| election.migration.as_ref())),
        },
        "KubeCloudShared": {
            "CloudProvider": {"Name": config.provider.name, "CloudConfigFile": value("cloud-config")},
            "ExternalCloudVolumePlugin": value("external-cloud-volume-plugin"),
            "UseServiceAccountCredentials": given_bool("use-service-account-credentials"),
            "AllowUntaggedCloud": given_bool("allow-untagged-cloud"),
            "RouteReconciliationPeriod": given_time("route-reconciliation-period"),
            "NodeMonitorPeriod": time(config.lifecycle.monitor_period),
            "ClusterName": config.cluster_name,
            "ClusterCIDR": value("cluster-cidr"),
            "AllocateNodeCIDRs": given_bool("allocate-node-cidrs"),
            "CIDRAllocatorType": value("cidr-allocator-type"),
            "ConfigureCloudRoutes": given_bool("configure-cloud-routes"),
            "NodeSyncPeriod": given_time("node-sync-period"),
        },
        "NodeController": {
            "ConcurrentNodeSyncs": config.node.concurrent_syncs,
            "ConcurrentNodeStatusUpdates": config.node.concurrent_status_updates,
        },
        "ServiceController": {"ConcurrentServiceSyncs": config.service.concurrent_syncs},
        "NodeStatusUpdateFrequency": time(config.node.status_update_frequency),
        "Webhook": {"Webhooks": list("webhooks")},
        "Extra": {
            "DisabledControllers": config.controllers.disabled,
            "NodeDeletionGrace": config.lifecycle.deletion_grace.map(time),
            "NodeDeletionConfirm": time(config.lifecycle.deletion_confirm),
            "NodeDeletionShare": config.lifecycle.deletion_share,
            "RefreshTopologyLabels": config.node.refresh_topology_labels,
            "ServiceDriftPeriod": config.service.drift_period.map(time),
            "ShutdownDrain": time(config.shutdown_drain),
        },
    });
    json!({"cloudcontrollermanager.config.k8s.io": configuration})
}

/// The format of upstream.
fn migration(migration: Option<&MigrationConfig>) -> Value {
    let Some(migration) = migration else {
        return json!({"leaderName": "", "resourceLock": "", "controllerLeaders": null});
    };
    let leaders = migration
        .leaders
        .iter()
        .map(|leader| json!({"name": leader.name, "component": leader.component}));
    json!({
        "leaderName": migration.lease,
        "resourceLock": "leases",
        "controllerLeaders": leaders.collect::<Vec<_>>(),
    })
}
