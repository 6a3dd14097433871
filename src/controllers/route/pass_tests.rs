#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU16, Ordering};

use ccm_core::{
    controllers::Needs,
    testkit::{FakeCloud, FakeRoutes},
};
use serde_json::json;

use super::*;
use crate::controllers::fixture;

/// A controller whose store has one node without the condition. `code`: the answer to a patch.
async fn controller(code: &Arc<AtomicU16>) -> RouteController {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1"},
        "spec": {"providerID": "fake://n1", "podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    });
    let code = Arc::clone(code);
    let client = fixture::client(node, move || std::future::ready(code.load(Ordering::Relaxed)));
    let cloud = FakeCloud::default().with_routes(&FakeRoutes::default());
    let needs = Needs {
        pod_cidrs: true,
        ..Needs::default()
    };
    fixture::controller(client, cloud, needs, COMPONENT, RouteController::new).await
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_cannot_be_written_is_tried_again_after_growing_waits() {
    let code = Arc::new(AtomicU16::new(403));
    let mut controller = controller(&code).await;
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
