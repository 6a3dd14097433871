//! For any nodes and any table: one pass corrects it, a second pass changes nothing, and foreign routes are left unchanged.

use std::sync::Arc;

use ccm_core::{
    Priority,
    routes::{ClusterCidrs, RouteNode, Routes, plan},
    testkit::FakeRoutes,
};
use proptest::prelude::*;

use crate::{desired, net, node};

const CIDRS: &str = "10.120.0.0/16,a000::/16";

/// Destinations, some inside and some outside.
fn destination(i: u8) -> String {
    match i % 4 {
        0 | 1 => format!("10.120.{}.0/24", i / 4),
        2 => format!("a000:{:x}::/32", i / 4),
        _ => format!("10.{}.0.0/16", 100 + i / 4),
    }
}

fn hop(i: u8, destination: &str) -> String {
    match destination.contains(':') {
        true => format!("fd00::{:x}", i + 1),
        false => format!("10.0.0.{}", i + 1),
    }
}

prop_compose! {
    fn any_node()(created in 0i64..40, cidrs in prop::collection::vec(0u8..24, 0..3), four in any::<bool>(), six in any::<bool>())
        -> Arc<RouteNode> {
        let cidrs: Vec<_> = cidrs.into_iter().map(destination).collect();
        let address = u8::try_from(created % 10).unwrap();
        let mut addresses = Vec::new();
        addresses.extend(four.then(|| hop(address, "")));
        addresses.extend(six.then(|| hop(address, ":")));
        let cidrs: Vec<_> = cidrs.iter().map(String::as_str).collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        node(created, &cidrs, &addresses)
    }
}

proptest! {
    #[test]
    fn one_pass_is_enough(
        nodes in prop::collection::vec(any_node(), 0..12),
        table in prop::collection::vec((0u8..24, 0u8..10), 0..20),
    ) {
        let routes = FakeRoutes::default();
        for (destination_of, next_hop) in table {
            let destination = destination(destination_of);
            let next_hop = hop(next_hop, &destination);
            if !routes.table().iter().any(|r| r.destination == net(&destination) && r.next_hop.as_str() == next_hop) {
                routes.insert(net(&destination), &next_hop);
            }
        }
        let cidrs = ClusterCidrs::parse(CIDRS).unwrap();
        let desired = desired(&nodes, CIDRS);
        let before = routes.table();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let pass = || runtime.block_on(async {
            let observed = routes.observe(&desired.routes, Priority::User).await.unwrap();
            let plan = plan(&desired, &observed, &cidrs);
            routes.apply(&plan.changes, Priority::User).await;
            plan
        });
        pass();
        let after = routes.table();
        for desired in &desired.routes {
            let to: Vec<_> = after.iter().filter(|route| route.destination == desired.destination).collect();
            prop_assert_eq!(to.len(), 1, "{}", desired);
            prop_assert_eq!(&to[0].next_hop, &desired.next_hop);
        }
        for route in &before {
            if !cidrs.contain(&route.destination) || desired.protected.contains(&route.destination) {
                prop_assert!(after.contains(route), "{} is left unchanged", route);
            }
        }
        if !desired.any_pod_cidr {
            prop_assert_eq!(&before, &after);
        }
        let second = pass();
        prop_assert!(second.changes.is_empty(), "{:?}", second.changes.sentences());
        prop_assert!(second.complete.iter().all(|complete| *complete));
    }
}
