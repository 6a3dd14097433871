//! The API calls, their quotas, and the metrics of their requests under the names of the Go cloud-controller-manager. Those count
//! each request; `ccm_cloud_*` counts whole calls.

use std::time::Duration;

use ccm_core::client::{Operation as _, PROMETHEUS_BUCKETS, operations, provider_metrics};
use prometheus_client::metrics::{family::Family, gauge::Gauge, histogram::Histogram};

/// The groups in which Google counts calls, each with a limit per project and minute.
///
/// No call is one of those that Google counts against the lower limits of *heavy-weight* reads (`aggregatedList`, and `wait` for
/// operations of zones and regions) and of *filtered lists* (`filter`).
pub(crate) mod bucket {
    pub(crate) const GLOBAL_READS: &str = "global_reads";
    pub(crate) const GLOBAL_WRITES: &str = "global_writes";
    pub(crate) const REGION_READS: &str = "reads_per_region";
    pub(crate) const REGION_WRITES: &str = "writes_per_region";
    pub(crate) const OPERATION_READS: &str = "operation_reads";
    pub(crate) const RESOURCE_MANAGER: &str = "resource_manager";
}

use bucket::{GLOBAL_READS, GLOBAL_WRITES, OPERATION_READS, REGION_READS, REGION_WRITES, RESOURCE_MANAGER};

operations! {
    /// The API calls. A name consists of the resource and the method. Changes carry the ID of their request, so that a repeated
    /// one does nothing.
    pub(crate) enum Op {
        /// A project.
        ProjectGet = "projects_get", GLOBAL_READS, Read;
        /// The zones of all regions.
        ZoneList = "zones_list", GLOBAL_READS, Read;
        /// A network.
        NetworkGet = "networks_get", GLOBAL_READS, Read;
        /// A subnetwork.
        SubnetworkGet = "subnetworks_get", REGION_READS, Read;
        /// The subnetworks of a region.
        SubnetworkList = "subnetworks_list", REGION_READS, Read;
        /// An instance.
        InstanceGet = "instances_get", REGION_READS, Read;
        /// A page of the instances of a zone.
        InstanceList = "instances_list", REGION_READS, Read;
        /// A page of the routes of a project.
        RouteList = "routes_list", GLOBAL_READS, Read;
        /// A route.
        RouteGet = "routes_get", GLOBAL_READS, Read;
        /// Creates a route.
        RouteCreate = "routes_create", GLOBAL_WRITES, IdempotentWrite;
        /// Deletes a route.
        RouteDelete = "routes_delete", GLOBAL_WRITES, IdempotentWrite;
        /// The addresses of a region.
        AddressList = "addresses_list", REGION_READS, Read;
        /// An address.
        AddressGet = "addresses_get", REGION_READS, Read;
        /// Reserves an address.
        AddressInsert = "addresses_insert", REGION_WRITES, IdempotentWrite;
        /// Releases an address.
        AddressDelete = "addresses_delete", REGION_WRITES, IdempotentWrite;
        /// The forwarding rules of a region.
        ForwardingRuleList = "forwardingRules_list", REGION_READS, Read;
        /// A forwarding rule.
        ForwardingRuleGet = "forwardingRules_get", REGION_READS, Read;
        /// Creates a forwarding rule.
        ForwardingRuleInsert = "forwardingRules_insert", REGION_WRITES, IdempotentWrite;
        /// Changes a forwarding rule.
        ForwardingRulePatch = "forwardingRules_patch", REGION_WRITES, IdempotentWrite;
        /// Deletes a forwarding rule.
        ForwardingRuleDelete = "forwardingRules_delete", REGION_WRITES, IdempotentWrite;
        /// The target pools of a region.
        TargetPoolList = "targetPools_list", REGION_READS, Read;
        /// Creates a target pool.
        TargetPoolInsert = "targetPools_insert", REGION_WRITES, IdempotentWrite;
        /// Adds instances to a target pool.
        TargetPoolAdd = "targetPools_addInstance", REGION_WRITES, IdempotentWrite;
        /// Removes instances from a target pool.
        TargetPoolRemove = "targetPools_removeInstance", REGION_WRITES, IdempotentWrite;
        /// Deletes a target pool.
        TargetPoolDelete = "targetPools_delete", REGION_WRITES, IdempotentWrite;
        /// The backend services of a region.
        BackendServiceList = "backendServices_list", REGION_READS, Read;
        /// A backend service.
        BackendServiceGet = "backendServices_get", REGION_READS, Read;
        /// Creates a backend service.
        BackendServiceInsert = "backendServices_insert", REGION_WRITES, IdempotentWrite;
        /// Changes a backend service.
        BackendServicePatch = "backendServices_patch", REGION_WRITES, IdempotentWrite;
        /// Deletes a backend service.
        BackendServiceDelete = "backendServices_delete", REGION_WRITES, IdempotentWrite;
        /// The legacy health checks of a project.
        HttpHealthCheckList = "httpHealthChecks_list", GLOBAL_READS, Read;
        /// Creates a legacy health check.
        HttpHealthCheckInsert = "httpHealthChecks_insert", GLOBAL_WRITES, IdempotentWrite;
        /// Changes a legacy health check.
        HttpHealthCheckPatch = "httpHealthChecks_patch", GLOBAL_WRITES, IdempotentWrite;
        /// Deletes a legacy health check.
        HttpHealthCheckDelete = "httpHealthChecks_delete", GLOBAL_WRITES, IdempotentWrite;
        /// The health checks of a project.
        HealthCheckList = "healthChecks_list", GLOBAL_READS, Read;
        /// Creates a health check.
        HealthCheckInsert = "healthChecks_insert", GLOBAL_WRITES, IdempotentWrite;
        /// Changes a health check.
        HealthCheckPatch = "healthChecks_patch", GLOBAL_WRITES, IdempotentWrite;
        /// Deletes a health check.
        HealthCheckDelete = "healthChecks_delete", GLOBAL_WRITES, IdempotentWrite;
        /// The firewall rules of a project.
        FirewallList = "firewalls_list", GLOBAL_READS, Read;
        /// A firewall rule.
        FirewallGet = "firewalls_get", GLOBAL_READS, Read;
        /// Creates a firewall rule.
        FirewallInsert = "firewalls_insert", GLOBAL_WRITES, IdempotentWrite;
        /// Changes a firewall rule.
        FirewallPatch = "firewalls_patch", GLOBAL_WRITES, IdempotentWrite;
        /// Replaces all fields of a firewall rule.
        FirewallUpdate = "firewalls_update", GLOBAL_WRITES, IdempotentWrite;
        /// Deletes a firewall rule.
        FirewallDelete = "firewalls_delete", GLOBAL_WRITES, IdempotentWrite;
        /// The instance groups of a zone.
        InstanceGroupList = "instanceGroups_list", REGION_READS, Read;
        /// The instances of an instance group.
        InstanceGroupListInstances = "instanceGroups_listInstances", REGION_READS, Read;
        /// Creates an instance group.
        InstanceGroupInsert = "instanceGroups_insert", REGION_WRITES, IdempotentWrite;
        /// Adds instances to an instance group.
        InstanceGroupAdd = "instanceGroups_addInstances", REGION_WRITES, IdempotentWrite;
        /// Removes instances from an instance group.
        InstanceGroupRemove = "instanceGroups_removeInstances", REGION_WRITES, IdempotentWrite;
        /// Deletes an instance group.
        InstanceGroupDelete = "instanceGroups_delete", REGION_WRITES, IdempotentWrite;
        /// The state of an operation.
        OperationGet = "operations_get", OPERATION_READS, Read;
        /// The state of a global operation, when it ends or after 2 minutes.
        OperationWait = "operations_wait", OPERATION_READS, Read;
        /// The latest operations of a scope.
        OperationList = "operations_list", OPERATION_READS, Read;
        /// The permissions of the credentials, for `validate`.
        PermissionsTest = "projects_test_iam_permissions", RESOURCE_MANAGER, Read;
    }
}

/// The place that a call concerns, for metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    Global,
    Region(&'a str),
    Zone(&'a str),
}

/// The labels of a request, those of the Go cloud-controller-manager.
type RequestLabels = [(&'static str, String); 4];

/// The label of a region or zone that a request does not have.
const NONE: &str = "<n/a>";

provider_metrics! {
    /// Metrics of requests.
    pub(super) struct RequestMetrics {
        duration: Family<RequestLabels, Histogram> = Family::new_with_constructor(|| Histogram::new(PROMETHEUS_BUCKETS)),
            "cloudprovider_gce_api_request_duration_seconds" => "Latency of requests to the API of GCE";
        // Gauges, since the format appends `_total` to the names of counters, and these names have no such suffix.
        errors: Family<RequestLabels, Gauge>, "cloudprovider_gce_api_request_errors" => "Failed requests to the API of GCE";
        tokens: Gauge, "get_token_count" => "Requests to the alternate token endpoint";
        failed_tokens: Gauge, "get_token_fail_count" => "Failed requests to the alternate token endpoint";
    }
}

impl RequestMetrics {
    /// Counts a request.
    pub(super) fn ended(&self, op: Op, place: Place<'_>, took: Duration, is_error: bool) {
        let (region, zone) = match place {
            Place::Global => (NONE, NONE),
            Place::Region(region) => (region, NONE),
            Place::Zone(zone) => (NONE, zone),
        };
        let labels = [
            ("request", op.name().to_owned()),
            ("region", region.to_owned()),
            ("zone", zone.to_owned()),
            ("version", "v1".to_owned()),
        ];
        if is_error {
            self.errors.get_or_create(&labels).inc();
        } else {
            self.duration.get_or_create(&labels).observe(took.as_secs_f64());
        }
    }

    /// Counts a request to the alternate token endpoint.
    pub(super) fn token(&self, is_error: bool) {
        self.tokens.inc();
        if is_error {
            self.failed_tokens.inc();
        }
    }
}
