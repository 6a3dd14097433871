//! Octavia v2: load balancers, listeners, pools, members, health monitors; reads of providers, flavors, availability
//! zones and quotas.

mod balancers;
mod catalog;
mod edit;
mod fault;
mod listeners;
mod listing;
mod members;
mod monitors;
mod pools;
mod schema;
mod types;
mod view;
mod vip;

pub(crate) use fault::error;

use fault::OctaviaFault;
use http::{Method, StatusCode};
use serde_json::json;

use crate::http::{Reply, Request};
use crate::openstack::identity::Caller;
use crate::openstack::region::{Balancing, Kind, Object, Region};
use crate::openstack::{OpenStackCloud, listing as listings, ops};
use crate::server::Target;

/// A kind's name in messages.
fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::LoadBalancer => "Load Balancer",
        Kind::Listener => "Listener",
        Kind::Pool => "Pool",
        Kind::Member => "Member",
        Kind::Monitor => "Health Monitor",
    }
}

/// A kind's name in documents, for one and for many.
fn names(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::LoadBalancer => ("loadbalancer", "loadbalancers"),
        Kind::Listener => ("listener", "listeners"),
        Kind::Pool => ("pool", "pools"),
        Kind::Member => ("member", "members"),
        Kind::Monitor => ("healthmonitor", "healthmonitors"),
    }
}

/// A request with all inputs of its answer.
struct OctaviaApi<'a> {
    cloud: &'a OpenStackCloud,
    region: &'a Region,
    request: &'a Request,
    caller: &'a Caller,
    /// URL of the requested endpoint.
    endpoint: String,
    /// Minor number of the newest version.
    minor: u32,
}

impl OctaviaApi<'_> {
    fn state(&self) -> &Balancing {
        &self.region.balancing
    }

    /// An object that is visible to the caller.
    fn find(&self, kind: Kind, id: &str) -> Result<&Object, OctaviaFault> {
        let found = self.state().get(kind, id).ok_or_else(|| OctaviaFault::not_found(title(kind), id))?;
        self.authorize(&found.project_id)?;
        Ok(found)
    }

    fn authorize(&self, project: &str) -> Result<(), OctaviaFault> {
        if self.caller.admin || self.caller.project_id == project {
            Ok(())
        } else {
            Err(OctaviaFault::forbidden())
        }
    }
}

/// Collections and the operations on them: list, create, get, update and delete.
const COLLECTIONS: [(&str, [&str; 5]); 8] = [
    (
        "loadbalancers",
        [
            "loadbalancer_list",
            "loadbalancer_create",
            "loadbalancer_get",
            "loadbalancer_update",
            "loadbalancer_delete",
        ],
    ),
    (
        "listeners",
        [
            "loadbalancer_listener_list",
            "loadbalancer_listener_create",
            "loadbalancer_listener_get",
            "loadbalancer_listener_update",
            "loadbalancer_listener_delete",
        ],
    ),
    (
        "pools",
        [
            "loadbalancer_pool_list",
            "loadbalancer_pool_create",
            "loadbalancer_pool_get",
            "loadbalancer_pool_update",
            "loadbalancer_pool_delete",
        ],
    ),
    (
        "healthmonitors",
        [
            "loadbalancer_healthmonitor_list",
            "loadbalancer_healthmonitor_create",
            "loadbalancer_healthmonitor_get",
            "loadbalancer_healthmonitor_update",
            "loadbalancer_healthmonitor_delete",
        ],
    ),
    (
        "providers",
        [
            "loadbalancer_provider_list",
            ops::UNKNOWN,
            ops::UNKNOWN,
            ops::UNKNOWN,
            ops::UNKNOWN,
        ],
    ),
    (
        "flavors",
        [
            ops::UNKNOWN,
            ops::UNKNOWN,
            "loadbalancer_flavor_get",
            ops::UNKNOWN,
            ops::UNKNOWN,
        ],
    ),
    (
        "availabilityzones",
        [
            ops::UNKNOWN,
            ops::UNKNOWN,
            "loadbalancer_availabilityzone_get",
            ops::UNKNOWN,
            ops::UNKNOWN,
        ],
    ),
    (
        "quotas",
        [
            ops::UNKNOWN,
            ops::UNKNOWN,
            "loadbalancer_quota_get",
            ops::UNKNOWN,
            ops::UNKNOWN,
        ],
    ),
];

/// The operations on the members of a pool.
const MEMBERS: [&str; 5] = [
    "loadbalancer_member_list",
    "loadbalancer_member_create",
    ops::UNKNOWN,
    "loadbalancer_member_update",
    "loadbalancer_member_delete",
];

/// The operation of a request to Octavia.
pub(crate) fn op(request: &Request, rest: &[&str]) -> &'static str {
    let method = &request.method;
    if listings::is_unsupported(request) {
        return ops::UNKNOWN;
    }
    let rest = match rest {
        [] | [""] if *method == Method::GET => return "version_list",
        ["v2" | "v2.0", "lbaas", rest @ ..] => rest,
        _ => return ops::UNKNOWN,
    };
    match rest {
        ["loadbalancers", _, "failover"] if *method == Method::PUT => "loadbalancer_failover",
        ["pools", _, "members"] if *method == Method::PUT => "loadbalancer_members_update",
        ["pools", _, "members"] => ops::of_collection(method, false, MEMBERS),
        ["pools", _, "members", _] => ops::of_collection(method, true, MEMBERS),
        [collection, item @ ..] if item.len() < 2 => {
            let found = COLLECTIONS.iter().find(|(name, _)| name == collection);
            found.map_or(ops::UNKNOWN, |(_, names)| ops::of_collection(method, !item.is_empty(), *names))
        }
        _ => ops::UNKNOWN,
    }
}

/// Whether an operation changes an object.
pub(crate) fn writes(op: &str) -> bool {
    op.starts_with("loadbalancer_")
        && ["_create", "_update", "_delete", "_failover"].iter().any(|end| op.ends_with(end))
}

/// The caller of a request.
fn admit(cloud: &OpenStackCloud, request: &Request) -> Result<Caller, Box<Reply>> {
    cloud.caller(request).map_err(|_| {
        let message = "The request you have made requires authentication.";
        let body = json!({"error": {"code": 401, "title": "Unauthorized", "message": message}});
        let reply = Reply::json(StatusCode::UNAUTHORIZED, &body);
        Box::new(reply.with("WWW-Authenticate", &format!("Keystone uri=\"{}/identity/v3\"", cloud.base)))
    })
}

/// Answers a read.
pub(crate) fn handle(cloud: &OpenStackCloud, region: &Region, request: &Request, target: &Target) -> Reply {
    let endpoint = cloud.endpoint(target);
    let minor = cloud.settings.read().load_balancing.max_minor;
    if target.op == "version_list" {
        return catalog::versions(&endpoint, minor);
    }
    let caller = match admit(cloud, request) {
        Ok(caller) => caller,
        Err(reply) => return *reply,
    };
    let api = OctaviaApi {
        cloud,
        region,
        request,
        caller: &caller,
        endpoint,
        minor,
    };
    answer(&api, target).unwrap_or_else(OctaviaFault::reply)
}

/// The IDs in a path.
fn ids(target: &Target) -> (&str, &str) {
    let part = |index: usize| target.rest.get(index).map(String::as_str).unwrap_or_default();
    (part(3), part(5))
}

/// Checks that the pool in the path exists.
fn check_pool_in_path(state: &Balancing, target: &Target) -> Result<(), OctaviaFault> {
    let (id, _) = ids(target);
    let through = target.op.starts_with("loadbalancer_member");
    if through && state.get(Kind::Pool, id).is_none() {
        return Err(OctaviaFault::missing_pool(id));
    }
    Ok(())
}

fn answer(api: &OctaviaApi<'_>, target: &Target) -> Result<Reply, OctaviaFault> {
    let (id, _) = ids(target);
    check_pool_in_path(api.state(), target)?;
    match target.op {
        "loadbalancer_list" => listing::list(api, Kind::LoadBalancer, None),
        "loadbalancer_get" => listing::show(api, Kind::LoadBalancer, id),
        "loadbalancer_listener_list" => listing::list(api, Kind::Listener, None),
        "loadbalancer_listener_get" => listing::show(api, Kind::Listener, id),
        "loadbalancer_pool_list" => listing::list(api, Kind::Pool, None),
        "loadbalancer_pool_get" => listing::show(api, Kind::Pool, id),
        "loadbalancer_member_list" => {
            api.find(Kind::Pool, id)?;
            listing::list(api, Kind::Member, Some(id))
        }
        "loadbalancer_healthmonitor_list" => listing::list(api, Kind::Monitor, None),
        "loadbalancer_healthmonitor_get" => listing::show(api, Kind::Monitor, id),
        "loadbalancer_provider_list" => Ok(catalog::providers(api)),
        "loadbalancer_flavor_get" => catalog::flavor(api, id),
        "loadbalancer_availabilityzone_get" => catalog::zone(api, id),
        _ => catalog::quota(api, id),
    }
}

/// Answers a request that changes an object.
pub(crate) fn write(cloud: &OpenStackCloud, request: &Request, target: &Target) -> Reply {
    let caller = match admit(cloud, request) {
        Ok(caller) => caller,
        Err(reply) => return *reply,
    };
    let settings = cloud.settings.read().clone();
    let mut regions = cloud.regions.write();
    let found = std::sync::Arc::make_mut(&mut regions)
        .iter_mut()
        .find(|region| region.name == target.region);
    let Some(region) = found else {
        return OctaviaFault::framework(StatusCode::NOT_FOUND, "").reply();
    };
    let mut edit = edit::OctaviaEdit {
        cloud,
        region,
        request,
        caller: &caller,
        endpoint: cloud.endpoint(target),
        settings: &settings,
    };
    carry_out(&mut edit, target).unwrap_or_else(OctaviaFault::reply)
}

fn carry_out(edit: &mut edit::OctaviaEdit<'_>, target: &Target) -> Result<Reply, OctaviaFault> {
    let (id, below) = ids(target);
    check_pool_in_path(&edit.region.balancing, target)?;
    for (name, _) in &edit.request.params {
        let is_known = match name.as_str() {
            "cascade" => target.op == "loadbalancer_delete",
            "additive_only" => target.op == "loadbalancer_members_update" && edit.minor() >= 11,
            _ => false,
        };
        if !is_known {
            return Err(OctaviaFault::unknown_argument(name));
        }
    }
    let no_content = |()| Reply::empty(StatusCode::NO_CONTENT);
    let accepted = |()| Reply::empty(StatusCode::ACCEPTED);
    match target.op {
        "loadbalancer_create" => {
            let id = balancers::create(edit)?;
            edit.shown_whole(&id)
        }
        "loadbalancer_update" => {
            balancers::update(edit, id)?;
            edit.shown(StatusCode::OK, Kind::LoadBalancer, id)
        }
        "loadbalancer_delete" => balancers::delete(edit, id).map(no_content),
        "loadbalancer_failover" => balancers::failover(edit, id).map(accepted),
        "loadbalancer_listener_create" => {
            let id = listeners::create(edit)?;
            edit.shown(StatusCode::CREATED, Kind::Listener, &id)
        }
        "loadbalancer_listener_update" => {
            listeners::update(edit, id)?;
            edit.shown(StatusCode::OK, Kind::Listener, id)
        }
        "loadbalancer_listener_delete" => listeners::delete(edit, id).map(no_content),
        "loadbalancer_pool_create" => {
            let id = pools::create(edit)?;
            edit.shown(StatusCode::CREATED, Kind::Pool, &id)
        }
        "loadbalancer_pool_update" => {
            pools::update(edit, id)?;
            edit.shown(StatusCode::OK, Kind::Pool, id)
        }
        "loadbalancer_pool_delete" => pools::delete(edit, id).map(no_content),
        "loadbalancer_member_create" => {
            let member = members::create(edit, id)?;
            edit.shown(StatusCode::CREATED, Kind::Member, &member)
        }
        "loadbalancer_member_update" => {
            members::update(edit, id, below)?;
            edit.shown(StatusCode::OK, Kind::Member, below)
        }
        "loadbalancer_member_delete" => members::delete(edit, id, below).map(no_content),
        "loadbalancer_members_update" => members::update_all(edit, id).map(accepted),
        "loadbalancer_healthmonitor_create" => {
            let id = monitors::create(edit)?;
            edit.shown(StatusCode::CREATED, Kind::Monitor, &id)
        }
        "loadbalancer_healthmonitor_update" => {
            monitors::update(edit, id)?;
            edit.shown(StatusCode::OK, Kind::Monitor, id)
        }
        _ => monitors::delete(edit, id).map(no_content),
    }
}
