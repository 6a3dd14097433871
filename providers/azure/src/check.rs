//! The checks of `validate`: credentials, the actions that their roles permit, and the objects of the config. Writes nothing.

use ccm_core::{
    BuildContext, ErrorKind, Priority, async_trait,
    check::{Checker, CloudReport, ConfigSource, Finding, Inspection, PermissionCheck, Severity, in_time},
    config::{ConfigFiles, KeyPath, Parsed},
    load_balancer::{ServiceFinding, ServiceView},
    registry::CheckerResult,
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    client::{Arm, resource::Resource},
    config::{self, Settings},
    load_balancer::{BalancerSettings, annotations::TABLE, spec::Spec},
    scope,
};

/// The actions that nodes need. `deploy/azure/role.json` has the same.
const NODE_ACTIONS: [&str; 6] = [
    "Microsoft.Network/networkInterfaces/read",
    "Microsoft.Network/publicIPAddresses/read",
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Compute/virtualMachineScaleSets/read",
    "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read",
    "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/networkInterfaces/read",
];
/// Further actions for instances of uniform scale sets, whose lists are below the scale set.
const SCALE_SET_ACTIONS: [&str; 2] = [
    "Microsoft.Compute/virtualMachineScaleSets/networkInterfaces/read",
    "Microsoft.Compute/virtualMachineScaleSets/publicIPAddresses/read",
];
/// The actions that routes need.
const ROUTE_ACTIONS: [&str; 2] = [
    "Microsoft.Network/routeTables/read",
    "Microsoft.Network/routeTables/write",
];

/// The actions that load balancers need.
const BALANCER_ACTIONS: [&str; 13] = [
    "Microsoft.Network/loadBalancers/read",
    "Microsoft.Network/loadBalancers/write",
    "Microsoft.Network/loadBalancers/delete",
    "Microsoft.Network/loadBalancers/backendAddressPools/join/action",
    "Microsoft.Network/publicIPAddresses/write",
    "Microsoft.Network/publicIPAddresses/delete",
    "Microsoft.Network/publicIPAddresses/join/action",
    "Microsoft.Network/publicIPPrefixes/join/action",
    "Microsoft.Network/networkInterfaces/write",
    "Microsoft.Network/networkSecurityGroups/join/action",
    "Microsoft.Compute/virtualMachineScaleSets/write",
    "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/write",
    "Microsoft.Network/loadBalancers/backendAddressPools/write",
];
/// Further actions for the network security group.
const SECURITY_GROUP_ACTIONS: [&str; 2] = [
    "Microsoft.Network/networkSecurityGroups/read",
    "Microsoft.Network/networkSecurityGroups/write",
];
/// Further actions for the subnets of internal load balancers and private link services.
const SUBNET_ACTIONS: [&str; 3] = [
    "Microsoft.Network/virtualNetworks/subnets/read",
    "Microsoft.Network/virtualNetworks/subnets/write",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
];
/// Further actions for private link services.
const LINK_ACTIONS: [&str; 4] = [
    "Microsoft.Network/privateLinkServices/read",
    "Microsoft.Network/privateLinkServices/write",
    "Microsoft.Network/privateLinkServices/delete",
    "Microsoft.Network/privateLinkServices/privateEndpointConnections/delete",
];

/// Actions that one role assignment permits.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Permission {
    actions: Vec<String>,
    not_actions: Vec<String>,
}

struct Inspector {
    context: BuildContext,
    loaded: Parsed<Settings>,
}

/// The checker of a config without errors.
pub(crate) fn checker(context: &BuildContext) -> CheckerResult {
    let loaded = config::load(context, &mut ConfigFiles::default())?;
    Ok(Box::new(Inspector {
        context: context.clone(),
        loaded,
    }))
}

#[async_trait]
impl Checker for Inspector {
    fn config(&self) -> Vec<Finding> {
        Finding::of_warnings(&self.loaded)
    }

    fn service(&self, service: &ServiceView) -> Option<Vec<ServiceFinding>> {
        let settings = BalancerSettings::new(&self.loaded.value);
        let spec = Spec::of(service, &self.context.cluster_name, &settings);
        Some(TABLE.findings(&service.annotations, &spec.invalid, &[]))
    }

    async fn cloud(&self) -> CloudReport {
        let settings = &self.loaded.value;
        let mut inspection = Inspection {
            keys: ConfigSource::of(&self.context, &self.loaded),
            report: CloudReport::default(),
            remedy: |kind| match kind {
                ErrorKind::PermissionDenied => "assign a role with the actions of deploy/azure/role.json",
                _ => "",
            },
        };
        let arm = match in_time(Arm::connect(settings, &self.context)).await {
            Ok(arm) => arm,
            Err(error) => {
                inspection.report.findings.push(Finding::of_error("login", &error));
                return inspection.report;
            }
        };
        inspection.report.scope = Some(scope(&arm, settings));
        inspection.report.pass("login", "Azure accepts the credentials");
        roles(&arm, settings, &mut inspection.report).await;
        route_table(&arm, settings, &mut inspection).await;
        security_group(&arm, settings, &mut inspection).await;
        inspection.report
    }
}

/// Compares the actions that the roles permit in the resource group with those that are needed.
async fn roles(arm: &Arm, settings: &Settings, report: &mut CloudReport) {
    let group = &settings.resource_group;
    let permissions = in_time(arm.list(Resource::Permissions { group }, Priority::User)).await;
    let missing = permissions.map(|permissions| missing_actions(&permissions, &needed_actions(settings)));
    let check = PermissionCheck {
        place: format!("resource group {group}"),
        grant: "assign a role with the actions of deploy/azure/role.json",
        ask: "correct resourceGroup, or permit Microsoft.Authorization/permissions/read there; or check the role by hand",
    };
    report.permissions(&check, missing);
}

fn needed_actions(settings: &Settings) -> Vec<&'static str> {
    let mut actions = NODE_ACTIONS.to_vec();
    if settings.machine_kinds.instances {
        actions.extend(SCALE_SET_ACTIONS);
    }
    let is_own_group = settings.route_table_group().eq_ignore_ascii_case(&settings.resource_group);
    if !settings.conf.route_table_name.is_empty() && is_own_group && !settings.has_network_subscription() {
        actions.extend(ROUTE_ACTIONS);
    }
    let is_here = |group: &str| {
        group.eq_ignore_ascii_case(&settings.resource_group) && !settings.has_network_subscription()
    };
    if !settings.conf.security_group_name.is_empty() && is_here(settings.load_balancer_group()) {
        actions.extend(BALANCER_ACTIONS);
        if is_here(settings.security_group_group()) {
            actions.extend(SECURITY_GROUP_ACTIONS);
        }
        if is_here(settings.network_group()) {
            actions.extend(SUBNET_ACTIONS);
        }
        if is_here(settings.link_group()) {
            actions.extend(LINK_ACTIONS);
        }
    }
    actions
}

fn missing_actions<'a>(permissions: &[Value], needed: &[&'a str]) -> Vec<&'a str> {
    let permissions: Vec<Permission> = permissions
        .iter()
        .filter_map(|value| serde_json::from_value(value.clone()).ok())
        .collect();
    let mut missing = needed.to_vec();
    missing.retain(|action| {
        let is_permitted = permissions.iter().any(|permission| {
            permission.actions.iter().any(|pattern| matches(pattern, action))
                && !permission.not_actions.iter().any(|pattern| matches(pattern, action))
        });
        !is_permitted
    });
    missing
}

/// Whether a pattern of a role, in which `*` is any text, is that of an action.
fn matches(pattern: &str, action: &str) -> bool {
    let (pattern, action) = (pattern.to_ascii_lowercase(), action.to_ascii_lowercase());
    let Some((begin, rest)) = pattern.split_once('*') else {
        return pattern == action;
    };
    let Some(mut left) = action.strip_prefix(begin) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = left.get(at + part.len()..).unwrap_or_default();
    }
    left.ends_with(end)
}

/// Whether the route table exists. Without it, the first route creates it.
async fn route_table(arm: &Arm, settings: &Settings, inspection: &mut Inspection<'_>) {
    let (group, name) = (settings.route_table_group(), settings.conf.route_table_name.as_str());
    if name.is_empty() {
        inspection.report.leave_out("Routes: routeTableName is not set.");
        return;
    }
    let key = KeyPath::key("routeTableName");
    match in_time(arm.find(Resource::RouteTable { group, name }, Priority::User)).await {
        Ok(Some(_)) => inspection.report.pass("routeTableName", format!("route table {name} exists")),
        Ok(None) => {
            let text =
                format!("route table {name} not found in resource group {group}; the first route creates it");
            let fix = "a new table has no effect until it is assigned to the nodes' subnet";
            inspection.add_finding(Severity::Warning, key, text, fix);
        }
        Err(error) => inspection.failed(key, &error),
    }
}

/// Whether the network security group exists, which load balancers need.
async fn security_group(arm: &Arm, settings: &Settings, inspection: &mut Inspection<'_>) {
    let (group, name) = (settings.security_group_group(), settings.conf.security_group_name.as_str());
    if name.is_empty() {
        inspection.report.leave_out("Load balancers: securityGroupName is not set.");
        return;
    }
    let key = KeyPath::key("securityGroupName");
    match in_time(arm.find(Resource::SecurityGroup { group, name }, Priority::User)).await {
        Ok(Some(_)) => {
            inspection
                .report
                .pass("securityGroupName", format!("network security group {name} exists"));
        }
        Ok(None) => {
            let text = format!("network security group {name} not found in resource group {group}");
            let fix = "create it and assign it to the nodes' subnet, or correct the name";
            inspection.add_finding(Severity::Error, key, text, fix);
        }
        Err(error) => inspection.failed(key, &error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_role_in_deploy_has_exactly_the_needed_actions() {
        let role: Value = serde_json::from_str(include_str!("../../../deploy/azure/role.json")).unwrap();
        let actions = role["Actions"].as_array().unwrap();
        let actions: BTreeSet<&str> = actions.iter().map(|action| action.as_str().unwrap()).collect();
        let needed = NODE_ACTIONS
            .iter()
            .chain(&SCALE_SET_ACTIONS)
            .chain(&ROUTE_ACTIONS)
            .chain(&BALANCER_ACTIONS);
        let needed = needed.chain(&SECURITY_GROUP_ACTIONS).chain(&SUBNET_ACTIONS).chain(&LINK_ACTIONS);
        assert_eq!(actions, needed.copied().collect());
    }

    #[test]
    fn patterns_of_roles() {
        let action = "Microsoft.Network/routeTables/read";
        for (pattern, is_match) in [
            ("*", true),
            ("*/read", true),
            ("microsoft.network/*", true),
            ("Microsoft.Network/*/read", true),
            ("Microsoft.Network/routeTables/read", true),
            ("Microsoft.Network/routeTables/write", false),
            ("Microsoft.Network/*/write", false),
            ("Microsoft.Compute/*", false),
            ("Microsoft.Network/routeTables", false),
        ] {
            assert_eq!(matches(pattern, action), is_match, "{pattern}");
        }
    }

    #[test]
    fn an_action_needs_one_role_that_permits_it() {
        let reader = json!({"actions": ["*/read"], "notActions": ["Microsoft.Compute/virtualMachines/*"]});
        let machines = json!({"actions": ["Microsoft.Compute/virtualMachines/read"], "notActions": []});
        let needed = [
            "Microsoft.Network/routeTables/write",
            "Microsoft.Compute/virtualMachines/read",
        ];
        assert_eq!(missing_actions(std::slice::from_ref(&reader), &needed), needed);
        assert_eq!(missing_actions(&[reader, machines], &needed), [needed[0]]);
        assert!(missing_actions(&[json!({"actions": ["*"]})], &needed).is_empty());
    }
}
