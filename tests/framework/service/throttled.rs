//! An API server that refuses the writes of controllers for a while (429): priority and fairness, or a webhook that is down.

use std::time::Instant;

use ccm_core::{AddressType, Instance, NodeAddress, testkit::FakeCloud};
use ccm_testbed::{
    nodes::{self, NodeSpec},
    observe::is_initialized,
    proxy::{Action, Proxy, Request, Rule},
};
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};

use super::stage::{Stage, addresses, has_finalizer};
use crate::fake::eventually;

fn is_write_of_an_object(request: &Request) -> bool {
    request.is_write() && matches!(request.resource.as_str(), "nodes" | "services")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_the_api_server_refuses_for_a_while_are_delayed_and_not_lost() {
    let mut stage = Stage::prepare("throttled").await;
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(stage.client.clone(), folder.path()).await.unwrap();
    let kubeconfig = proxy.kubeconfig().to_owned();
    let machines = FakeCloud::default();
    let instance = Instance {
        addresses: vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.3")],
        ..Instance::default()
    };
    machines.insert("n3", instance);
    stage.run_controllers("service,cloud-node", &machines, |config| {
        config.api_server.kubeconfig = Some(kubeconfig);
    });
    stage.served("web").await;

    let refuses = Action::Status {
        code: 429,
        retry_after: Some(1),
        body: None,
    };
    let (began, seen) = (Instant::now(), proxy.requests().len());
    let rule = proxy.add(Rule::when(is_write_of_an_object, refuses));
    stage.delete("web").await;
    stage.create("new", |_| {}).await;
    nodes::register(&stage.client, &[NodeSpec::new("n3")]).await.unwrap();
    // Warnings name what fails. The cloud has what it can have, and nothing that would leak.
    for (service, what) in [("web", "finalizer"), ("new", "finalizer")] {
        let message = stage.event(service, "SyncLoadBalancerFailed").await;
        assert!(message.contains(what) && message.contains("refused on purpose"), "{message}");
    }
    let events: Api<Event> = Api::all(stage.client.clone());
    let of_node = ListParams::default().fields("involvedObject.name=n3,reason=WriteFailed");
    eventually("a Warning about the node", async || events.list(&of_node).await.ok()?.items.pop()).await;
    assert_eq!(stage.cloud.of("default/web"), None);
    assert_eq!(stage.cloud.of("default/new"), None);
    assert!(has_finalizer(&stage.services.get("web").await.unwrap()));
    // The wait that the API server asks for is kept.
    let requests = proxy.requests().split_off(seen);
    let refused = |name: &str| {
        let of_name = requests.iter().filter(|request| request.status == Some(429) && request.name == name);
        of_name.count() as u64
    };
    let longest = began.elapsed().as_secs() + 2;
    for name in ["web", "new", "n3"] {
        assert!((2..=longest).contains(&refused(name)), "{name}: {} in {longest} s", refused(name));
    }

    proxy.remove(rule);
    stage.deleted("web").await;
    stage.service("new", "has an address", |service| !addresses(service).is_empty()).await;
    eventually("the node is initialized", async || {
        stage.nodes.get("n3").await.ok().filter(is_initialized)
    })
    .await;
    stage.balancer("new", |balancer| balancer.members.len() == 3).await;
    let writes = stage.cloud.writes();
    for (begin, name) in [
        ("create", "default_web"),
        ("delete", "default_web"),
        ("create", "default_new"),
    ] {
        let same = writes.iter().filter(|write| write.starts_with(begin) && write.contains(name));
        assert_eq!(same.count(), 1, "{begin} {name}: {writes:?}");
    }
}
