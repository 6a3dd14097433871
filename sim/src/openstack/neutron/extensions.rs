//! Neutron's extensions, of which any can be switched off.

use http::StatusCode;
use serde_json::{Value, json};

use super::Api;
use crate::http::Reply;
use crate::openstack::webob_detail;

/// Extensions by alias, name and description, as a current cloud with routers and trunks has them.
const EXTENSIONS: &[(&str, &str, &str)] = &[
    (
        "allowed-address-pairs",
        "Allowed Address Pairs",
        "Provides allowed address pairs",
    ),
    (
        "empty-string-filtering",
        "Empty String Filtering Extension",
        "Allow filtering by attributes with empty string value",
    ),
    (
        "external-net",
        "Neutron external network",
        "Adds external network attribute to network resource.",
    ),
    (
        "filter-validation",
        "Filter parameters validation",
        "Provides validation on filter parameters.",
    ),
    (
        "ip-substring-filtering",
        "IP address substring filtering",
        "Provides IP address substring filtering when listing ports",
    ),
    (
        "net-mtu",
        "Network MTU",
        "Provides MTU attribute for a network resource.",
    ),
    (
        "pagination",
        "Pagination support",
        "Extension that indicates that pagination is enabled.",
    ),
    ("port-security", "Port Security", "Provides port security"),
    (
        "project-id",
        "project_id field enabled",
        "Extension that indicates that project_id field is enabled.",
    ),
    (
        "revision-if-match",
        "If-Match constraints based on revision_number",
        "Extension indicating that If-Match based on revision_number is supported.",
    ),
    (
        "security-group",
        "security-group",
        "The security groups extension.",
    ),
    (
        "sorting",
        "Sorting support",
        "Extension that indicates that sorting is enabled.",
    ),
    (
        "standard-attr-description",
        "standard-attr-description",
        "Extension to add descriptions to standard attributes",
    ),
    (
        "standard-attr-revisions",
        "Resource revision numbers",
        "This extension will display the revision number of neutron resources.",
    ),
    (
        "standard-attr-tag",
        "Tag support for resources with standard attribute",
        "Enables to set tag on resources with standard attribute.",
    ),
    (
        "standard-attr-timestamp",
        "Resource timestamps",
        "Adds created_at and updated_at fields to all Neutron resources that have Neutron standard attributes.",
    ),
    ("trunk", "Trunk Extension", "Provides support for trunk ports"),
    ("trunk-details", "Trunk port details", "Expose trunk port details"),
    (
        "extraroute",
        "Neutron Extra Route",
        "Extra routes configuration for L3 router",
    ),
    (
        "extraroute-atomic",
        "Atomically add/remove extra routes",
        "Edit extra routes of a router on server side by atomically adding/removing extra routes",
    ),
    (
        "fip-port-details",
        "Floating IP Port Details Extension",
        "Add port_details attribute to Floating IP resource",
    ),
    (
        "quotas",
        "Quota management support",
        "Expose functions for quotas management per project",
    ),
    (
        "router",
        "Neutron L3 Router",
        "Router abstraction for basic L3 forwarding between L2 Neutron networks and access to external networks via a NAT gateway.",
    ),
    (
        "security-groups-normalized-cidr",
        "Normalized CIDR field for security group rules",
        "Add new field with normalized remote_ip_prefix cidr in SG rule",
    ),
    (
        "stateful-security-group",
        "Stateful security group",
        "Indicates if the security group is stateful or not",
    ),
    (
        "subnet-external-network",
        "Subnet belongs to an external network",
        "Informs if the subnet belongs to an external network",
    ),
];

/// `GET /v2.0/extensions`.
pub(super) fn list(api: &Api<'_>) -> Reply {
    let missing = &api.cloud.settings.read().missing_extensions;
    let is_there = |(alias, ..): &&(&str, &str, &str)| !missing.iter().any(|known| known == alias);
    let extensions: Vec<Value> = EXTENSIONS.iter().filter(is_there).map(view).collect();
    Reply::json(StatusCode::OK, &json!({ "extensions": extensions }))
}

/// `GET /v2.0/extensions/{alias}`.
pub(super) fn show(api: &Api<'_>, wanted: &str) -> Reply {
    let missing = api
        .cloud
        .settings
        .read()
        .missing_extensions
        .iter()
        .any(|known| known == wanted);
    match EXTENSIONS.iter().find(|(alias, ..)| *alias == wanted && !missing) {
        Some(found) => Reply::json(StatusCode::OK, &json!({ "extension": view(found) })),
        None => {
            let detail = format!("Extension with alias {wanted} does not exist");
            webob_detail(api.request, StatusCode::NOT_FOUND, &detail)
        }
    }
}

fn view((alias, name, description): &(&str, &str, &str)) -> Value {
    json!({
        "alias": alias,
        "name": name,
        "description": description,
        "updated": "2016-01-01T10:00:00-00:00",
        "links": [],
    })
}
