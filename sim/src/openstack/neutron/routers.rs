//! Static routes of routers: replacing, adding and removing them.

use std::net::IpAddr;

use http::StatusCode;
use ipnet::IpNet;
use serde_json::{Value, json};

use super::body::{self, Attribute, AttributeKind, free, shown};
use super::{NeutronApi, NeutronEdit, NeutronFault, listing};
use crate::http::Reply;
use crate::openstack::region::{Route, Router};

const ATTRIBUTES: &[Attribute] = &[
    free("name", AttributeKind::Text),
    free("description", AttributeKind::Text),
    free("admin_state_up", AttributeKind::Bool),
    free("routes", AttributeKind::Other),
    shown("id"),
    shown("status"),
    shown("tags"),
    shown("external_gateway_info"),
    shown("created_at"),
    shown("updated_at"),
    shown("revision_number"),
];

/// The change of the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteChange {
    Replace,
    Add,
    Remove,
}

/// `PUT /v2.0/routers/{id}` and below it `add_extraroutes` and `remove_extraroutes`.
pub(super) fn update(edit: &mut NeutronEdit<'_>, id: &str, change: RouteChange) -> Result<(), NeutronFault> {
    let is_missing = |alias: &str| {
        let missing = &edit.cloud.settings.read().missing_extensions;
        missing.iter().any(|known| known == alias)
    };
    if change != RouteChange::Replace && is_missing("extraroute-atomic") {
        return Err(NeutronFault::no_resource());
    }
    let fields = body::resource(edit.request, "router", ATTRIBUTES, false)?;
    if fields.contains_key("routes") && is_missing("extraroute") {
        return Err(NeutronFault::http_bad_request("Unrecognized attribute(s) 'routes'"));
    }
    let known = edit.find::<Router>(id)?;
    edit.check_revision(known.revision)?;
    let routes = match fields.get("routes") {
        None => None,
        Some(given) => {
            let given = parse(given, change)?;
            let mut routes = known.routes.clone();
            match change {
                RouteChange::Replace => routes = given,
                RouteChange::Add => {
                    for route in given {
                        if !routes.contains(&route) {
                            routes.push(route);
                        }
                    }
                }
                RouteChange::Remove => routes.retain(|route| !given.contains(route)),
            }
            check(edit, &known, &routes)?;
            Some(routes)
        }
    };
    let now = crate::clock::seconds(edit.cloud.clock.now());
    let name = body::text(&fields, "name").map(str::to_owned);
    edit.region.network.change_router(id, |router| {
        if let Some(routes) = routes {
            router.routes = routes;
        }
        if let Some(name) = name {
            router.name = name;
        }
        router.updated = now;
    });
    Ok(())
}

/// Parses the given routes. Additions and removals are checked less strictly than the whole set.
fn parse(given: &Value, change: RouteChange) -> Result<Vec<Route>, NeutronFault> {
    let whole = change == RouteChange::Replace;
    let bad = |reason: String| body::invalid("routes", &reason);
    let list = given
        .as_array()
        .ok_or_else(|| bad(format!("Invalid data format for hostroute: '{}'.", body::python(given))))?;
    let mut routes = Vec::new();
    for entry in list {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let exact = entry.as_object().is_some_and(|fields| fields.len() == 2);
        let (destination, nexthop) = (text("destination"), text("nexthop"));
        if !whole && (destination.is_empty() || nexthop.is_empty()) {
            return Err(NeutronFault::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "HTTPInternalServerError",
                "Request Failed: internal server error while processing your request.",
            ));
        }
        if !exact || destination.is_empty() || nexthop.is_empty() {
            return Err(bad(format!("Invalid data format for hostroute: '{}'.", body::python(entry))));
        }
        let nexthop: IpAddr =
            nexthop.parse().map_err(|_| bad(format!("'{nexthop}' is not a valid IP address.")))?;
        let destination: IpNet = destination.parse().map_err(|_| {
            if whole {
                bad(format!("'{destination}' is not a valid IP subnet."))
            } else {
                let message = format!("invalid IPNetwork {destination}");
                NeutronFault::new(StatusCode::BAD_REQUEST, "AddrFormatError", message)
            }
        })?;
        if whole && destination != destination.trunc() {
            return Err(bad(format!(
                "'{destination}' isn't a recognized IP subnet cidr, '{}' is recommended.",
                destination.trunc()
            )));
        }
        let route = Route { destination, nexthop };
        if routes.contains(&route) {
            return Err(bad(format!("Duplicate hostroute '{}'.", body::python(entry))));
        }
        routes.push(route);
    }
    Ok(routes)
}

/// The answer to additions and removals of routes, which has additional fields.
pub(super) fn shown_whole(api: &NeutronApi<'_>, id: &str) -> Result<Reply, NeutronFault> {
    let mut document: Value =
        serde_json::from_slice(&listing::shown::<Router>(api, StatusCode::OK, id)?.body)
            .map_err(|error| NeutronFault::http_bad_request(error.to_string()))?;
    let gateway = listing::find::<Router>(api, id)?.gateway.clone();
    if let Some(router) = document.get_mut("router").and_then(Value::as_object_mut) {
        let more = [
            ("distributed", json!(false)),
            ("enable_default_route_bfd", json!(false)),
            ("enable_default_route_ecmp", json!(false)),
            ("enable_snat", json!(true)),
            ("gw_port_id", json!(gateway.map(|(_, _, port)| port))),
            ("ha", json!(false)),
            ("ha_vr_id", json!(0)),
        ];
        router.extend(more.map(|(name, value)| (name.to_owned(), value)));
    }
    Ok(Reply::json(StatusCode::OK, &document))
}

/// Checks the whole resulting set, including existing routes.
fn check(edit: &NeutronEdit<'_>, router: &Router, routes: &[Route]) -> Result<(), NeutronFault> {
    let quota = edit.cloud.settings.read().resource_quotas.get("router_route").copied();
    if quota.is_some_and(|quota| routes.len() as u64 > quota) {
        return Err(NeutronFault::over_quota("router_route"));
    }
    let network = &edit.region.network;
    let connected = network.connected(router);
    let own: Vec<IpAddr> = network
        .ports_of(&router.id)
        .flat_map(|port| port.fixed_ips.iter().map(|ip| ip.address))
        .collect();
    for route in routes {
        let reason = if own.contains(&route.nexthop) {
            "the nexthop is used by router"
        } else if !connected.iter().any(|cidr| cidr.contains(&route.nexthop)) {
            "the nexthop is not connected with router"
        } else {
            continue;
        };
        let shown: Vec<String> = routes
            .iter()
            .map(|route| {
                format!("{{'destination': '{}', 'nexthop': '{}'}}", route.destination, route.nexthop)
            })
            .collect();
        return Err(NeutronFault::new(
            StatusCode::BAD_REQUEST,
            "InvalidRoutes",
            format!("Invalid format for routes: [{}], {reason}", shown.join(", ")),
        ));
    }
    Ok(())
}
