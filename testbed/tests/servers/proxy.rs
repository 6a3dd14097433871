//! The proxy for the API server: forwarded requests, and all faults.

use std::time::Duration;

use ccm_sim::Moment;
use ccm_testbed::controlplane::{ControlPlane, client};
use ccm_testbed::nodes::{self, NodeSpec};
use ccm_testbed::observe::eventually;
use ccm_testbed::proxy::{Action, Proxy, Request, Rule};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};

const LIMIT: Duration = Duration::from_secs(30);

struct Fixture {
    plane: ControlPlane,
    proxy: Proxy,
    /// A client through the proxy.
    maps: Api<ConfigMap>,
    /// A client without the proxy.
    direct: Api<ConfigMap>,
    client: kube::Client,
}

impl Fixture {
    async fn set() -> Self {
        let plane = ControlPlane::start().await.unwrap();
        let admin = plane.client().await.unwrap();
        let proxy = Proxy::start(admin.clone(), plane.dir()).await.unwrap();
        let client = client(proxy.kubeconfig()).await.unwrap();
        Self {
            maps: Api::default_namespaced(client.clone()),
            direct: Api::default_namespaced(admin),
            client,
            proxy,
            plane,
        }
    }

    async fn create(&self, name: &str) -> kube::Result<ConfigMap> {
        self.maps.create(&PostParams::default(), &map(name)).await
    }

    async fn exists(&self, name: &str) -> bool {
        self.direct.get_opt(name).await.unwrap().is_some()
    }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({ "metadata": { "name": name } })).unwrap()
}

fn code(result: kube::Result<ConfigMap>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(_) => 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_forwarded_and_logged_in_order() {
    let fixture = Fixture::set().await;
    fixture.create("a").await.unwrap();
    nodes::register(&fixture.client, [&NodeSpec::new("n-1")]).await.unwrap();
    let nodes: Api<Node> = Api::all(fixture.client.clone());
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 1);
    nodes.delete("n-1", &DeleteParams::default()).await.unwrap();
    let seen: Vec<_> = fixture.proxy.requests().iter().map(ToString::to_string).collect();
    assert_eq!(seen, ["POST configmaps", "POST nodes", "GET nodes", "DELETE nodes n-1"]);
    let writes = fixture.proxy.writes();
    assert_eq!(writes.len(), 3);
    assert!(writes.iter().all(|write| write.status.is_some_and(|status| status < 300)));
    assert!(fixture.exists("a").await);
    fixture.proxy.forget();
    assert!(fixture.proxy.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_apply_before_or_after_the_api_server() {
    let fixture = Fixture::set().await;
    let once = |action| fixture.proxy.add(Rule::when(Request::is_write, action).at(1));
    for (name, action, expected, done) in [
        (
            "throttled",
            Action::Status {
                code: 429,
                retry_after: Some(1),
                body: None,
            },
            429,
            false,
        ),
        ("failed", Action::status(503), 503, false),
        ("reset", Action::Reset, 0, false),
        ("lost", Action::CommitThenReset, 0, true),
        ("cut", Action::Truncate, 0, true),
        ("late", Action::Delay(Duration::from_millis(20)), 200, true),
    ] {
        once(action);
        assert_eq!(code(fixture.create(name).await), expected, "{name}");
        assert_eq!(fixture.exists(name).await, done, "{name}");
        assert_eq!(fixture.proxy.fired(), 1, "{name}");
        fixture.proxy.clear();
    }
    assert_eq!(code(fixture.create("after").await), 200, "no fault is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_held_at_every_moment() {
    let fixture = Fixture::set().await;
    for (name, moment, done) in [
        ("before", Moment::Before, false),
        ("committed", Moment::AfterCommit, true),
    ] {
        let rule = fixture.proxy.add(Rule::when(Request::is_write, Action::Hold(moment)).at(1));
        let meanwhile = async {
            let held = fixture.proxy.reached(rule).await;
            assert_eq!(held.as_deref(), Some("POST configmaps"));
            assert_eq!(fixture.exists(name).await, done);
            fixture.proxy.remove(rule);
        };
        let (created, ()) = tokio::join!(fixture.create(name), meanwhile);
        assert_eq!(code(created), 200, "the request continues when the rule is removed");
    }
    let rule = fixture.proxy.add(Rule::new(Action::Hold(Moment::AfterReply)).at(1));
    fixture.create("replied").await.unwrap();
    assert!(fixture.proxy.reached(rule).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_request_of_a_disconnected_client_is_not_carried_out() {
    let fixture = Fixture::set().await;
    let rule = fixture.proxy.add(Rule::when(Request::is_write, Action::Hold(Moment::Before)).at(1));
    tokio::select! {
        created = fixture.create("given-up") => panic!("{created:?} although it is held"),
        held = fixture.proxy.reached(rule) => assert!(held.is_some()),
    }
    fixture.proxy.none_held().await;
    fixture.proxy.remove(rule);
    assert_eq!(code(fixture.create("next").await), 200);
    assert!(!fixture.exists("given-up").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_are_forwarded_broken_and_silenced() {
    let fixture = Fixture::set().await;
    let params = WatchParams::default();
    let mut events = fixture.maps.watch(&params, "0").await.unwrap().boxed();
    // The watch starts with existing objects.
    let seen = async |events: &mut futures_util::stream::BoxStream<'_, _>, name: &str| loop {
        match events.next().await {
            Some(Ok(WatchEvent::Added(map))) => {
                let map: ConfigMap = map;
                if map.metadata.name.as_deref() == Some(name) {
                    return;
                }
            }
            Some(Ok(_)) => {}
            other => panic!("the watch ended: {other:?}"),
        }
    };
    fixture.direct.create(&PostParams::default(), &map("first")).await.unwrap();
    tokio::time::timeout(LIMIT, seen(&mut events, "first")).await.unwrap();

    let silence = fixture.proxy.add(Rule::new(Action::Silence));
    fixture.direct.create(&PostParams::default(), &map("second")).await.unwrap();
    let mut second = Box::pin(seen(&mut events, "second"));
    let held = fixture.maps.get("first");
    tokio::select! {
        () = &mut second => panic!("a silenced watch got an event"),
        _ = held => panic!("a silenced request got an answer"),
        _ = fixture.proxy.reached(silence) => {}
    }
    fixture.proxy.remove(silence);
    tokio::time::timeout(LIMIT, second).await.unwrap();

    let outage = fixture.proxy.refuse(|request| request.resource == "configmaps");
    let broken = tokio::time::timeout(LIMIT, events.next()).await.unwrap();
    assert!(!matches!(broken, Some(Ok(_))), "{broken:?}");
    assert_eq!(code(fixture.maps.get("first").await), 0);
    let closed = eventually(LIMIT, async || (fixture.proxy.watches() == 0).then_some(())).await;
    assert!(closed.is_some());
    fixture.proxy.remove(outage);
    assert_eq!(code(fixture.maps.get("first").await), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_fail_while_the_api_server_is_down() {
    let mut fixture = Fixture::set().await;
    fixture.plane.kill().unwrap();
    assert_eq!(code(fixture.create("a").await), 0);
    fixture.plane.restart().await.unwrap();
    assert_eq!(code(fixture.create("a").await), 200);
}
