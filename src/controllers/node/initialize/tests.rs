#![allow(clippy::unwrap_used)]

use ccm_core::{
    AddressType, Error, ErrorKind, Instance, NodeAddress,
    controllers::{
        Needs,
        events::{EventMetrics, Writer},
    },
    testkit::FakeCloud,
};
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::{
    api::answering,
    controllers::{fixture, node_object::UNINITIALIZED_TAINT},
};

const FILTER: &str = "[Networking] internal-network-name other";

/// A machine all of whose addresses are left out.
fn filtered() -> Instance {
    Instance {
        address_filter: Some(FILTER.to_owned()),
        ..Instance::default()
    }
}

/// What a test observes: the number of patches of the node, and the Events.
#[derive(Debug, Default)]
struct Observed {
    patches: Mutex<usize>,
    events: Mutex<Vec<Value>>,
}

impl Observed {
    fn client(self: &Arc<Self>, annotations: &Value) -> Client {
        let observed = Arc::clone(self);
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1", "annotations": annotations},
            "spec": {"taints": [{"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"}]},
        });
        fixture::client(node, move || {
            let observed = Arc::clone(&observed);
            async move {
                *observed.patches.lock() += 1;
                200
            }
        })
    }

    /// The Warnings so far, each as its reason and message.
    fn warnings(&self) -> Vec<(String, String)> {
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let events = self.events.lock();
        let warnings = events.iter().filter(|event| event["type"] == "Warning");
        warnings.map(|event| (text(event, "reason"), text(event, "message"))).collect()
    }
}

/// Runs a controller for one node until `done` or for ten minutes.
async fn run(cloud: &FakeCloud, annotations: &Value, done: impl Fn(&Observed) -> bool) -> Arc<Observed> {
    let observed = Arc::new(Observed::default());
    let client = observed.client(annotations);
    let controller =
        fixture::controller(client, cloud.clone(), Needs::default(), COMPONENT, NodeController::new).await;
    let mut controller = Arc::into_inner(controller).unwrap();
    let sink = Arc::clone(&observed);
    let events = answering::client(move |request| {
        let sink = Arc::clone(&sink);
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            sink.events.lock().push(serde_json::from_slice(&body).unwrap());
            (201, json!({"metadata": {}, "involvedObject": {}}))
        }
    });
    let writer = Writer::new(events, &EventMetrics::default());
    controller.recorder = writer.recorder(COMPONENT);
    let shutdown = controller.shutdown.clone();
    let running = tokio::spawn(Arc::new(controller).run());
    let writing = tokio::spawn(writer.run());
    let is_done = async {
        while !done(&observed) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    // The caller asserts what happened until then.
    let _ = timeout(Duration::from_secs(600), is_done).await;
    shutdown.cancel();
    running.await.unwrap();
    writing.await.unwrap();
    observed
}

fn is_patched(observed: &Observed) -> bool {
    *observed.patches.lock() > 0
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_addresses_are_all_left_out_is_initialized_after_two_answers() {
    let cloud = FakeCloud::default();
    cloud.insert("n1", filtered());
    let observed = run(&cloud, &json!({}), is_patched).await;
    let calls = cloud.calls();
    let [first, second] = calls.as_slice() else {
        panic!("not two answers: {calls:?}");
    };
    assert!(second.at - first.at >= LEFT_OUT_PAUSE);
    assert!(second.at - first.at < LEFT_OUT_PAUSE + Duration::from_secs(2));
    // One patch removes the taint, and none writes addresses.
    assert_eq!(*observed.patches.lock(), 1);
    let warnings = observed.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0].0, desired::ADDRESSES_LEFT_OUT);
    assert!(warnings[0].1.contains(FILTER), "{warnings:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_with_an_address_or_an_error_ends_the_wait() {
    let cloud = FakeCloud::default();
    cloud.insert("n1", filtered());
    let with_address = Instance {
        addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")],
        ..Instance::default()
    };
    let later = (cloud.clone(), with_address);
    tokio::spawn(async move {
        tokio::time::sleep(LEFT_OUT_PAUSE / 2).await;
        later.0.insert("n1", later.1);
    });
    let observed = run(&cloud, &json!({}), is_patched).await;
    // Addresses, then the taint.
    assert_eq!(*observed.patches.lock(), 2);
    assert_eq!(observed.warnings(), []);

    let cloud = FakeCloud::default();
    cloud.insert("n1", filtered());
    let failing = cloud.clone();
    tokio::spawn(async move {
        tokio::time::sleep(LEFT_OUT_PAUSE / 2).await;
        failing.fail("n1", &Error::new(ErrorKind::Unavailable, "down"), 1);
    });
    run(&cloud, &json!({}), is_patched).await;
    let calls = cloud.calls();
    let [.., before, last] = calls.as_slice() else {
        panic!("{calls:?}");
    };
    assert_eq!(calls.len(), 4, "{calls:?}");
    assert!(last.at - before.at >= LEFT_OUT_PAUSE);
}

#[tokio::test(start_paused = true)]
async fn a_provided_ip_still_blocks_a_node_whose_addresses_are_all_left_out() {
    let cloud = FakeCloud::default();
    cloud.insert("n1", filtered());
    let annotation = json!({"alpha.kubernetes.io/provided-node-ip": "10.0.0.1"});
    let observed = run(&cloud, &annotation, is_patched).await;
    assert_eq!(*observed.patches.lock(), 0);
    let warnings = observed.warnings();
    assert_eq!(warnings[0].0, "InvalidNodeIP", "{warnings:?}");
}
