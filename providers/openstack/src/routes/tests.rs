//! Next hops of routes, and Neutron's spelling.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use ccm_core::NodeAddress;
use serde_json::json;

use super::{
    records::{Pair, Router},
    *,
};

#[test]
fn a_route_leads_to_the_first_internal_address_of_its_family() {
    use AddressType::{ExternalIP, Hostname, InternalIP};
    let node = |addresses: &[(AddressType, &str)]| RouteNode {
        addresses: addresses.iter().map(|(kind, address)| NodeAddress::new(*kind, *address)).collect(),
        ..RouteNode::default()
    };
    let mixed = node(&[
        (Hostname, "n1"),
        (ExternalIP, "203.0.113.7"),
        (InternalIP, "fd00:0::7"),
        (InternalIP, "10.0.0.7"),
        (InternalIP, "10.0.0.8"),
        (InternalIP, "fd00::8"),
    ]);
    let hop = |node: &RouteNode, to: &str| {
        internal_address(node, to.parse().unwrap()).map(|hop| hop.as_str().to_owned())
    };
    assert_eq!(hop(&mixed, "10.244.0.0/24").unwrap(), "10.0.0.7");
    assert_eq!(hop(&mixed, "fd44::/64").unwrap(), "fd00::7", "in its one spelling");
    let only_external = node(&[(ExternalIP, "203.0.113.7"), (InternalIP, "fd00::7")]);
    let error = hop(&only_external, "10.244.0.0/24").unwrap_err();
    assert!(error.message().contains("no internal IPv4 address"), "{error}");
}

#[test]
fn routes_keep_the_spelling_by_which_they_are_deleted() {
    let router: Router = serde_json::from_value(json!({
        "id": "r", "revision_number": 3,
        "routes": [
            {"destination": "10.244.1.9/24", "nexthop": "10.0.0.7"},
            {"destination": "fd44:0::/64", "nexthop": "fd00:0::7"},
            {"destination": "somewhere", "nexthop": "10.0.0.7"},
        ],
    }))
    .unwrap();
    let routes: Vec<_> = router.routes.iter().filter_map(RawRoute::parse).collect();
    let shown: Vec<_> = routes.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.244.1.0/24 via 10.0.0.7", "fd44::/64 via fd00::7"]);
    for (route, raw) in routes.iter().zip(&router.routes) {
        assert_eq!(&RawRoute::of_handle(route), raw);
    }
    assert!(router.routes[1].is(&RawRoute {
        destination: "fd44::/64".to_owned(),
        nexthop: "fd00::7".to_owned(),
    }));
    let none: Router = serde_json::from_value(json!({"id": "r", "routes": null})).unwrap();
    assert!(none.routes.is_empty());
}

#[test]
fn pairs_are_networks_or_addresses_and_keep_what_is_unknown() {
    let pair: Pair =
        serde_json::from_value(json!({"ip_address": "10.244.1.0/24", "mac_address": "m", "active": true}))
            .unwrap();
    assert!(pair.is_for(&"10.244.1.0/24".parse().unwrap()));
    assert!(!pair.is_for(&"10.244.0.0/16".parse().unwrap()));
    assert_eq!(
        serde_json::to_value(&pair).unwrap(),
        json!({"ip_address": "10.244.1.0/24", "mac_address": "m", "active": true})
    );
    let single: Pair = serde_json::from_value(json!({"ip_address": "10.244.1.7"})).unwrap();
    assert!(single.is_for(&"10.244.1.7/32".parse().unwrap()));
}
