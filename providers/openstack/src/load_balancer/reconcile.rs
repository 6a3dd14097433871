//! Upstream's metrics of load balancers, under its names.

use ccm_core::{
    client::TimedConfig,
    load_balancer::{ReconcileMetricsConfig, Reconciliation},
};

use super::part::OpenStackPart;

/// Their names, labels and buckets.
pub(super) static RECONCILE_METRICS: ReconcileMetricsConfig = ReconcileMetricsConfig {
    metrics: TimedConfig {
        label: "operation",
        duration: (
            "cloudprovider_openstack_reconcile_duration_seconds",
            "Time taken by work on load balancers of the OpenStack provider",
        ),
        total: (
            "cloudprovider_openstack_reconcile",
            "Total number of times that load balancers were worked on",
        ),
        errors: (
            "cloudprovider_openstack_reconcile_errors",
            "Total number of times that work on load balancers failed",
        ),
        buckets: &[
            0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 17.5, 20.0, 22.5, 25.0, 27.5, 30.0,
            50.0, 75.0, 100.0, 1000.0,
        ],
    },
    operation: |kind| match kind {
        Reconciliation::Ensure => "loadbalancer_ensure",
        Reconciliation::Update => "loadbalancer_update",
        Reconciliation::Delete => "loadbalancer_delete",
    },
    is_load_balancer: |part| {
        matches!(part.as_str().parse(), Ok(OpenStackPart::Balancer(_) | OpenStackPart::New(_)))
    },
    kind: |step| match step.label {
        "loadbalancer_delete" => Reconciliation::Delete,
        "members_update" | "member_create" | "member_delete" => Reconciliation::Update,
        _ => Reconciliation::Ensure,
    },
};
