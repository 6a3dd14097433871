//! Neutron v2.0: version document, extensions, networks, subnets, ports and their tags, floating IPs, security groups
//! and their rules, routers and quotas.

mod body;
mod floating;
mod groups;
mod listing;
mod ops;
mod ports;
mod resources;
mod routers;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
pub(crate) use ops::{op, writes};
use resources::Resource;
use serde_json::{Value, json};

use crate::http::{Reply, Request};
use crate::openstack::OpenStackCloud;
use crate::openstack::identity::Caller;
use crate::openstack::region::{
    FloatingIp, Network, Port, Region, Router, SecurityGroup, SecurityGroupRule, Subnet,
};
use crate::server::{Cloud as _, Target};

/// An error in Neutron's words.
#[derive(Debug)]
pub(crate) struct NeutronFault {
    status: StatusCode,
    /// Name of the exception's class.
    class: &'static str,
    message: String,
}

impl NeutronFault {
    fn new(status: StatusCode, class: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            class,
            message: message.into(),
        }
    }

    /// A request that the framework refuses.
    fn http_bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "HTTPBadRequest", message)
    }

    fn no_resource() -> Self {
        Self::new(StatusCode::NOT_FOUND, "HTTPNotFound", "The resource could not be found.")
    }

    /// A project's quota is exceeded.
    fn over_quota(resource: &str) -> Self {
        let message = format!("Quota exceeded for resources: ['{resource}'].");
        Self::new(StatusCode::CONFLICT, "OverQuota", message)
    }
}

/// Neutron's error document.
pub(crate) fn error(status: StatusCode, class: &str, message: &str) -> Reply {
    let body = json!({"NeutronError": {"type": class, "message": message, "detail": ""}});
    Reply::json(status, &body)
}

/// A request below `/v2.0` with all inputs of its answer.
struct NeutronApi<'a> {
    cloud: &'a OpenStackCloud,
    region: &'a Region,
    request: &'a Request,
    caller: &'a Caller,
    /// URL of the requested endpoint.
    endpoint: String,
}

/// A request that changes an object.
struct NeutronEdit<'a> {
    cloud: &'a OpenStackCloud,
    region: &'a mut Region,
    request: &'a Request,
    caller: &'a Caller,
    endpoint: String,
}

impl NeutronEdit<'_> {
    fn api(&self) -> NeutronApi<'_> {
        NeutronApi {
            cloud: self.cloud,
            region: self.region,
            request: self.request,
            caller: self.caller,
            endpoint: self.endpoint.clone(),
        }
    }

    /// An object that is visible to the caller.
    fn find<T: Resource>(&self, id: &str) -> Result<Arc<T>, NeutronFault> {
        listing::find::<T>(&self.api(), id)
    }

    /// Checks the quota of a project that has `have` objects.
    fn check_quota(&self, resource: &str, have: usize) -> Result<(), NeutronFault> {
        let quotas = &self.cloud.settings.read().resource_quotas;
        match quotas.get(resource) {
            Some(quota) if have as u64 >= *quota => Err(NeutronFault::over_quota(resource)),
            _ => Ok(()),
        }
    }

    /// Checks the revision in the header `If-Match`.
    fn check_revision(&self, revision: u64) -> Result<(), NeutronFault> {
        let Some(requested) = self.request.header("if-match") else {
            return Ok(());
        };
        let number = requested.strip_prefix("revision_number=").and_then(|number| number.parse::<u64>().ok());
        match number {
            Some(number) if number == revision => Ok(()),
            Some(number) => Err(NeutronFault::new(
                StatusCode::PRECONDITION_FAILED,
                "RevisionNumberConstraintFailed",
                format!("Constrained to {number}, but current revision is {revision}"),
            )),
            // An unknown form has no effect.
            None => Ok(()),
        }
    }
}

/// Answers a request to Neutron.
pub(crate) fn handle(cloud: &OpenStackCloud, region: &Region, request: &Request, target: &Target) -> Reply {
    let endpoint = cloud.endpoint(target);
    if target.op == "version_list" {
        let link = json!([{"rel": "self", "href": format!("{endpoint}/v2.0/")}]);
        let versions = json!({"versions": [{"id": "v2.0", "status": "CURRENT", "links": link}]});
        return Reply::json(StatusCode::OK, &versions);
    }
    let caller = match cloud.caller(request) {
        Ok(caller) => caller,
        Err(reply) => return *reply,
    };
    let api = NeutronApi {
        cloud,
        region,
        request,
        caller: &caller,
        endpoint,
    };
    answer(&api, target).unwrap_or_else(|fault| error(fault.status, fault.class, &fault.message))
}

/// Answers a request that changes an object.
pub(crate) fn write(cloud: &OpenStackCloud, request: &Request, target: &Target) -> Reply {
    let caller = match cloud.caller(request) {
        Ok(caller) => caller,
        Err(reply) => return *reply,
    };
    let mut regions = cloud.regions.write();
    let found = Arc::make_mut(&mut regions).iter_mut().find(|region| region.name == target.region);
    let Some(region) = found else {
        return cloud.refuse(target, StatusCode::NOT_FOUND);
    };
    let mut edit = NeutronEdit {
        cloud,
        region,
        request,
        caller: &caller,
        endpoint: cloud.endpoint(target),
    };
    carry_out(&mut edit, target).unwrap_or_else(|fault| error(fault.status, fault.class, &fault.message))
}

fn carry_out(edit: &mut NeutronEdit<'_>, target: &Target) -> Result<Reply, NeutronFault> {
    let part = |index: usize| target.rest.get(index).map(String::as_str).unwrap_or_default();
    let id = part(2);
    if target.op.starts_with("security_group_") {
        let now = edit.cloud.clock.now();
        let project = edit.caller.project_id.clone();
        edit.region.network.default_group(&project, now, &edit.cloud.ids);
    }
    match target.op {
        "floating_ip_create" => {
            let id = floating::create(edit)?;
            let reply = listing::shown::<FloatingIp>(&edit.api(), StatusCode::CREATED, &id);
            edit.region.network.report_floating(&id);
            reply
        }
        "floating_ip_update" => {
            floating::update(edit, id)?;
            let reply = listing::shown::<FloatingIp>(&edit.api(), StatusCode::OK, id);
            edit.region.network.report_floating(id);
            reply
        }
        "floating_ip_delete" => floating::delete(edit, id).map(no_content),
        "security_group_create" => {
            let id = groups::create(edit)?;
            listing::shown::<SecurityGroup>(&edit.api(), StatusCode::CREATED, &id)
        }
        "security_group_delete" => groups::delete(edit, id).map(no_content),
        "security_group_rule_create" => {
            let id = groups::create_rule(edit)?;
            listing::shown::<SecurityGroupRule>(&edit.api(), StatusCode::CREATED, &id)
        }
        "security_group_rule_delete" => groups::delete_rule(edit, id).map(no_content),
        "port_create" => {
            let id = ports::create(edit)?;
            listing::shown::<Port>(&edit.api(), StatusCode::CREATED, &id)
        }
        "port_update" => {
            ports::update(edit, id)?;
            listing::shown::<Port>(&edit.api(), StatusCode::OK, id)
        }
        "port_delete" => ports::delete(edit, id).map(no_content),
        "router_update" => {
            routers::update(edit, id, routers::RouteChange::Replace)?;
            listing::shown::<Router>(&edit.api(), StatusCode::OK, id)
        }
        "router_add_extraroutes" => {
            routers::update(edit, id, routers::RouteChange::Add)?;
            routers::shown_whole(&edit.api(), id)
        }
        "router_remove_extraroutes" => {
            routers::update(edit, id, routers::RouteChange::Remove)?;
            routers::shown_whole(&edit.api(), id)
        }
        "tag_add" | "tag_remove" => ports::tag(edit, target.op == "tag_add", id, part(4)),
        _ => answer(&edit.api(), target),
    }
}

fn no_content(_: ()) -> Reply {
    Reply::empty(StatusCode::NO_CONTENT)
}

fn answer(api: &NeutronApi<'_>, target: &Target) -> Result<Reply, NeutronFault> {
    let id = target.rest.get(2).map(String::as_str).unwrap_or_default();
    match target.op {
        "network_list" => listing::list::<Network>(api),
        "network_get" => listing::show::<Network>(api, id),
        "subnet_list" => listing::list::<Subnet>(api),
        "subnet_get" => listing::show::<Subnet>(api, id),
        "port_list" => listing::list::<Port>(api),
        "port_get" => listing::show::<Port>(api, id),
        "floating_ip_list" => listing::list::<FloatingIp>(api),
        "floating_ip_get" => listing::show::<FloatingIp>(api, id),
        "security_group_list" => listing::list::<SecurityGroup>(api),
        "security_group_get" => listing::show::<SecurityGroup>(api, id),
        "security_group_rule_list" => listing::list::<SecurityGroupRule>(api),
        "security_group_rule_get" => listing::show::<SecurityGroupRule>(api, id),
        "router_list" => listing::list::<Router>(api),
        "router_get" => listing::show::<Router>(api, id),
        "quota_get" => Ok(quotas(api)),
        _ => Ok(extension_list(api)),
    }
}

/// The quotas of a project; -1 is unlimited.
fn quotas(api: &NeutronApi<'_>) -> Reply {
    let quotas = &api.cloud.settings.read().resource_quotas;
    let kinds = [
        "network",
        "subnet",
        "subnetpool",
        "port",
        "router_route",
        "router",
        "floatingip",
        "rbac_policy",
        "security_group",
        "security_group_rule",
    ];
    let shown: BTreeMap<&str, Value> = kinds
        .into_iter()
        .map(|kind| {
            let default = if kind == "rbac_policy" { 10 } else { -1 };
            (kind, quotas.get(kind).map_or(json!(default), |quota| json!(quota)))
        })
        .collect();
    Reply::json(StatusCode::OK, &json!({ "quota": shown }))
}

/// The extensions of a current cloud with routers and trunks.
const EXTENSIONS: [&str; 26] = [
    "allowed-address-pairs",
    "empty-string-filtering",
    "external-net",
    "filter-validation",
    "ip-substring-filtering",
    "net-mtu",
    "pagination",
    "port-security",
    "project-id",
    "revision-if-match",
    "security-group",
    "sorting",
    "standard-attr-description",
    "standard-attr-revisions",
    "standard-attr-tag",
    "standard-attr-timestamp",
    "trunk",
    "trunk-details",
    "extraroute",
    "extraroute-atomic",
    "fip-port-details",
    "quotas",
    "router",
    "security-groups-normalized-cidr",
    "stateful-security-group",
    "subnet-external-network",
];

/// `GET /v2.0/extensions`, without those that are disabled.
fn extension_list(api: &NeutronApi<'_>) -> Reply {
    let missing = &api.cloud.settings.read().missing_extensions;
    let extensions: Value = EXTENSIONS
        .iter()
        .filter(|alias| !missing.iter().any(|known| known == *alias))
        .map(|alias| {
            json!({
                "alias": alias,
                "name": alias,
                "description": "",
                "updated": "2016-01-01T10:00:00-00:00",
                "links": [],
            })
        })
        .collect();
    Reply::json(StatusCode::OK, &json!({ "extensions": extensions }))
}
