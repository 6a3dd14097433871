#![allow(clippy::unwrap_used)]

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use ccm_core::{
    AddressType, NodeAddress,
    controllers::{
        Needs, StoreChange,
        events::{EventMetrics, Writer},
    },
    testkit::FakeCloud,
};
use kube::Client;
use serde_json::json;
use tokio::{sync::Semaphore, time::timeout};

use super::*;
use crate::{api::answering, controllers::fixture};

/// The patches that the API server receives.
struct Patches {
    /// The code of every answer.
    code: u16,
    begun: Semaphore,
    /// How many may be answered.
    answers: Semaphore,
}

impl Patches {
    fn new(code: u16, answers: usize) -> Arc<Self> {
        Arc::new(Self {
            code,
            begun: Semaphore::new(0),
            answers: Semaphore::new(answers),
        })
    }
}

/// An API server with one node.
fn client(patches: &Arc<Patches>) -> Client {
    let patches = Arc::clone(patches);
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "1", "labels": {RACK: "a"}},
        "spec": {"providerID": "fake://n1"},
    });
    fixture::client(node, move || {
        let patches = Arc::clone(&patches);
        async move {
            patches.begun.add_permits(1);
            patches.answers.acquire().await.unwrap().forget();
            patches.code
        }
    })
}

/// An additional label.
const RACK: &str = "example.com/rack";

fn rack(value: &str) -> NewLabels {
    NewLabels::from([(RACK.to_owned(), value.to_owned())])
}

/// An address that the node lacks, and another rack.
fn instance() -> Instance {
    Instance {
        addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")],
        labels: rack("b"),
        ..Instance::default()
    }
}

/// A controller whose store has the node.
async fn controller(patches: &Arc<Patches>) -> Arc<NodeController> {
    let cloud = FakeCloud::default();
    cloud.insert("n1", instance());
    let (client, needs) = (client(patches), Needs::default());
    fixture::controller(client, cloud, needs, COMPONENT, NodeController::new).await
}

#[tokio::test(start_paused = true)]
async fn a_write_that_has_begun_is_finished_at_shutdown() {
    let patches = Patches::new(200, 0);
    let controller = controller(&patches).await;
    let mut refreshes = tokio::spawn(Arc::clone(&controller).refresh_forever());
    patches.begun.acquire().await.unwrap().forget();
    controller.shutdown.cancel();
    let early = timeout(Duration::from_secs(1), &mut refreshes).await;
    assert!(early.is_err(), "the write was dropped");
    patches.answers.add_permits(1);
    refreshes.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_writes_are_reported_until_they_work() {
    let (mut memory, failing) = (Memory::default(), Failing::default());
    for (code, fails) in [(403, true), (500, true), (200, false)] {
        let controller = controller(&Patches::new(code, 1)).await;
        controller.refresh(&mut memory, &failing).await;
        assert_eq!(failing.is_ongoing(), fails, "{code}");
    }
}

/// The memory after a pass in which the cloud reported the node's own rack.
fn known() -> Memory {
    let known = NodeMemory {
        labels: rack("a"),
        ..NodeMemory::default()
    };
    Memory::from([("u1".to_owned(), known)])
}

#[tokio::test(start_paused = true)]
async fn a_label_that_changes_while_the_provided_ip_is_missing_is_written_later() {
    let controller = controller(&Patches::new(200, 0)).await;
    let mut node = Arc::clone(&controller.nodes.list()[0]);
    let mut pass = Pass {
        before: known(),
        ..Pass::default()
    };
    for (node_ip, due) in [("10.0.0.9", 0), ("10.0.0.1", 1)] {
        Arc::make_mut(&mut node).provided_node_ip = Some(node_ip.to_owned());
        controller.decide(&node, Ok(InstanceState::Present(instance())), &mut pass);
        assert_eq!(pass.due.len(), due, "{node_ip}");
        pass.before = std::mem::take(&mut pass.after);
    }
    let (_, actions) = &pass.due[0];
    assert!(actions.contains(&NodeAction::SetLabels {
        labels: rack("b"),
        from: rack("a")
    }));
}

#[tokio::test(start_paused = true)]
async fn topologies_that_differ_get_a_limited_number_of_events() {
    let events = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&events);
    let client = answering::client(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
        std::future::ready((201, json!({"metadata": {}, "involvedObject": {}})))
    });
    let writer = Writer::new(client, &EventMetrics::default());
    let controller = controller(&Patches::new(200, 0)).await;
    let mut controller = Arc::into_inner(controller).unwrap();
    controller.recorder = writer.recorder(COMPONENT);
    let node = Arc::clone(&controller.nodes.list()[0]);
    let mut pass = Pass::default();
    for number in 0..50 {
        let mut node = Arc::clone(&node);
        let view = &mut Arc::make_mut(&mut node).view;
        (Arc::make_mut(view).name, Arc::make_mut(view).uid) = (format!("n{number}"), format!("u{number}"));
        let zone = Some("b".to_owned());
        let moved = Instance { zone, ..instance() };
        controller.decide(&node, Ok(InstanceState::Present(moved)), &mut pass);
    }
    assert_eq!((pass.mismatches.len(), pass.after.len()), (50, 50));
    controller.report_topology(&pass.mismatches);
    drop(controller);
    writer.run().await;
    assert_eq!(events.load(Ordering::Relaxed), EVENTS);
}

#[tokio::test(start_paused = true)]
async fn a_changed_label_that_could_not_be_written_is_tried_again() {
    let (mut memory, failing) = (known(), Failing::default());
    // The address comes first.
    for (code, writes) in [(500, 1), (200, 2)] {
        let patches = Patches::new(code, writes);
        controller(&patches).await.refresh(&mut memory, &failing).await;
        assert_eq!(patches.begun.available_permits(), writes, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_registered_again_does_not_wait_for_the_try_of_the_old_one() {
    let controller = controller(&Patches::new(200, 0)).await;
    let name = "gone".to_owned();
    controller.queue.add(name.clone());
    assert_eq!(controller.queue.next().await, name);
    let wait = controller.queue.done_with_backoff(&name);
    controller.observe(StoreChange::Deleted(name.clone()));
    let next = timeout(wait / 2, controller.queue.next()).await;
    assert_eq!(next, Ok(name));
}
