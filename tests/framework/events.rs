//! Events that the API server does not take as fast as controllers publish them.

use ccm_core::controllers::{
    EventType,
    events::{EventMetrics, Writer},
};
use ccm_testbed::{
    controlplane::{self, ControlPlane},
    proxy::{Action, Moment, Proxy, Request, Rule},
};
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::{Api, api::ListParams};
use prometheus_client::{encoding::text::encode, registry::Registry};

use crate::fake::eventually;

/// More than the queue holds.
const PUBLISHED: usize = 21_000;

fn object(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Service".to_owned()),
        namespace: Some("default".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(format!("uid-{name}")),
        ..ObjectReference::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_events_that_overflows_delays_no_controller_and_no_warning() {
    let control_plane = ControlPlane::start().await.unwrap();
    let client = control_plane.client().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(client.clone(), folder.path()).await.unwrap();
    let is_event = |request: &Request| request.is_write() && request.resource == "events";
    let held = proxy.add(Rule::when(is_event, Action::Hold(Moment::Before)));
    let mut registry = Registry::default();
    let metrics = EventMetrics::register(&mut registry);
    let writer = Writer::new(controlplane::client(proxy.kubeconfig()).await.unwrap(), &metrics);
    let recorder = writer.recorder("service-controller");
    let writing = tokio::spawn(writer.run());
    let count = |result: &str| -> usize {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let name = format!("ccm_events_total{{result=\"{result}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or_default()
    };

    for number in 0..PUBLISHED {
        let object = object(&format!("web-{number}"));
        recorder.publish(object, EventType::Normal, "EnsuredLoadBalancer", "Ensured load balancer");
    }
    recorder.publish(object("broken"), EventType::Warning, "SyncLoadBalancerFailed", "no quota");
    let dropped = count("dropped");
    // The writer took a few of them before the queue was full.
    assert!((PUBLISHED - 20_100..=PUBLISHED - 20_000).contains(&dropped), "{dropped}");

    // When the API server answers again, the Warning does not wait for 20,000 other events.
    proxy.remove(held);
    let events: Api<Event> = Api::namespaced(client, "default");
    let warnings = ListParams::default().fields("type=Warning,reason=SyncLoadBalancerFailed");
    let warning = eventually("the Warning", async || events.list(&warnings).await.ok()?.items.pop()).await;
    assert_eq!(warning.message.as_deref(), Some("no quota"));
    let of_services = ListParams::default().fields("reason=EnsuredLoadBalancer").limit(1);
    eventually("others follow", async || events.list(&of_services).await.ok()?.items.pop()).await;
    assert!(count("written") < PUBLISHED / 2, "{}", count("written"));
    assert_eq!(count("dropped"), dropped);
    writing.abort();
}
