#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU16, Ordering};

use ccm_core::{
    controllers::Needs,
    testkit::{FakeCloud, FakeRoutes},
};
use serde_json::json;

use super::*;
use crate::controllers::fixture;

/// A controller whose store has one new node without the condition. `code`: the answer to a patch.
async fn controller(code: &Arc<AtomicU16>, routes: &FakeRoutes) -> RouteController {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1", "creationTimestamp": "2999-01-02T03:04:05Z"},
        "spec": {"providerID": "fake://n1", "podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    });
    let code = Arc::clone(code);
    let client = fixture::client(node, move || std::future::ready(code.load(Ordering::Relaxed)));
    let cloud = FakeCloud::default().with_routes(routes);
    let needs = Needs {
        pod_cidrs: true,
        ..Needs::default()
    };
    fixture::controller(client, cloud, needs, COMPONENT, RouteController::new).await
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_cannot_be_written_is_tried_again_after_growing_waits() {
    let code = Arc::new(AtomicU16::new(403));
    let mut controller = controller(&code, &FakeRoutes::default()).await;
    let cidrs = ClusterCidrs::parse("10.244.0.0/16").unwrap();
    let mut waits = Vec::new();
    for answer in [403, 403, 403, 403, 403, 403, 403, 403, 200, 403] {
        code.store(answer, Ordering::Relaxed);
        controller.written.clear();
        controller.pass(&cidrs).await;
        waits.push((controller.next - Instant::now()).as_secs_f64());
    }
    assert!(waits[0] <= 1.0 && waits[1] > 1.0 && waits[3] > 4.0, "{waits:?}");
    assert!(waits[7] > 45.0 && waits[7] <= 60.0, "{waits:?}");
    assert!(waits[8] > 60.0, "the usual period: {waits:?}");
    assert!(waits[9] <= 1.0, "from the beginning: {waits:?}");
}

#[tokio::test(start_paused = true)]
async fn without_any_route_of_the_cloud_new_nodes_are_left_unchanged() {
    let (code, routes) = (Arc::new(AtomicU16::new(200)), FakeRoutes::default());
    let mut controller = controller(&code, &routes).await;
    let cidrs = ClusterCidrs::parse("10.244.0.0/16").unwrap();
    let error = ccm_core::Error::new(ErrorKind::InvalidConfig, "no route table");
    routes.fail_all(Some(error));
    for _ in 0..=BLIND {
        controller.pass(&cidrs).await;
    }
    assert!(controller.written.is_empty(), "{:?}", controller.written);
    routes.fail_all(None);
    controller.pass(&cidrs).await;
    assert_eq!(controller.written.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pass_is_counted_by_its_trigger_which_a_retry_keeps() {
    let (code, routes) = (Arc::new(AtomicU16::new(200)), FakeRoutes::default());
    let mut controller = controller(&code, &routes).await;
    let cidrs = ClusterCidrs::parse("10.244.0.0/16").unwrap();
    let passes = |controller: &RouteController, outcome, trigger| {
        let labels = [("outcome", outcome), ("trigger", trigger)];
        controller.metrics.syncs.get_or_create(&labels).get()
    };
    controller.pass(&cidrs).await;
    assert_eq!(passes(&controller, "changed", "periodic"), 1);
    controller.pass(&cidrs).await;
    assert_eq!(passes(&controller, "noop", "periodic"), 1);
    controller.window.add(Instant::now());
    controller.pass(&cidrs).await;
    assert_eq!(passes(&controller, "noop", "node_change"), 1);

    controller.window.add(Instant::now());
    let error = ccm_core::Error::new(ErrorKind::Unavailable, "down");
    routes.fail_all(Some(error));
    controller.pass(&cidrs).await;
    controller.pass(&cidrs).await;
    assert_eq!(passes(&controller, "error", "node_change"), 2, "the retry as well");
    routes.fail_all(None);
    controller.pass(&cidrs).await;
    assert_eq!(passes(&controller, "noop", "node_change"), 2, "the last retry");
    controller.pass(&cidrs).await;
    assert_eq!(passes(&controller, "noop", "periodic"), 2);
}
