//! The proxy before the API server: what it passes on, and every way in which it does not.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use ccm_sim::Moment;
use ccm_testbed::controlplane::{ControlPlane, Options, client};
use ccm_testbed::nodes::{self, NodeSpec};
use ccm_testbed::observe::eventually;
use ccm_testbed::proxy::{Action, Proxy, Request, Rule};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};

const LIMIT: Duration = Duration::from_secs(30);

struct Scene {
    plane: ControlPlane,
    proxy: Proxy,
    /// Through the proxy.
    maps: Api<ConfigMap>,
    /// Past it.
    direct: Api<ConfigMap>,
    client: kube::Client,
}

impl Scene {
    async fn set() -> Self {
        let plane = ControlPlane::start(Options::default()).await.unwrap();
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
async fn requests_pass_and_are_known_with_their_order_and_client() {
    let scene = Scene::set().await;
    scene.create("a").await.unwrap();
    nodes::register(&scene.client, [&NodeSpec::new("n-1")])
        .await
        .unwrap();
    let nodes: Api<Node> = Api::all(scene.client.clone());
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 1);
    nodes.delete("n-1", &DeleteParams::default()).await.unwrap();
    let seen: Vec<_> = scene.proxy.requests().iter().map(ToString::to_string).collect();
    assert_eq!(
        seen,
        ["POST configmaps", "POST nodes", "GET nodes", "DELETE nodes n-1"]
    );
    let writes = scene.proxy.writes();
    assert_eq!(writes.len(), 3);
    assert!(
        writes
            .iter()
            .all(|write| write.status.is_some_and(|status| status < 300))
    );
    assert!(scene.exists("a").await);
    scene.proxy.forget();
    assert!(scene.proxy.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_answer_without_the_api_server_or_after_it() {
    let scene = Scene::set().await;
    let once = |action| scene.proxy.add(Rule::when(Request::is_write, action).at(1));
    for (name, action, wanted, done) in [
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
        assert_eq!(code(scene.create(name).await), wanted, "{name}");
        assert_eq!(scene.exists(name).await, done, "{name}");
        assert_eq!(scene.proxy.fired(), 1, "{name}");
        scene.proxy.clear();
    }
    assert_eq!(code(scene.create("after").await), 200, "nothing is left of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_held_at_every_moment_of_its_life() {
    let scene = Scene::set().await;
    for (name, moment, done) in [
        ("before", Moment::Before, false),
        ("committed", Moment::AfterCommit, true),
    ] {
        let rule = scene
            .proxy
            .add(Rule::when(Request::is_write, Action::Hold(moment)).at(1));
        let meanwhile = async {
            let held = scene.proxy.reached(rule).await;
            assert_eq!(held.as_deref(), Some("POST configmaps"));
            assert_eq!(scene.exists(name).await, done);
            scene.proxy.remove(rule);
        };
        let (created, ()) = tokio::join!(scene.create(name), meanwhile);
        assert_eq!(code(created), 200, "it goes on when the rule is gone");
    }
    let rule = scene.proxy.add(Rule::new(Action::Hold(Moment::AfterReply)).at(1));
    scene.create("replied").await.unwrap();
    assert!(scene.proxy.reached(rule).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_of_a_client_that_is_gone_is_not_carried_out() {
    let scene = Scene::set().await;
    let rule = scene
        .proxy
        .add(Rule::when(Request::is_write, Action::Hold(Moment::Before)).at(1));
    tokio::select! {
        created = scene.create("given-up") => panic!("{created:?} although it is held"),
        held = scene.proxy.reached(rule) => assert!(held.is_some()),
    }
    scene.proxy.none_held().await;
    scene.proxy.remove(rule);
    assert_eq!(code(scene.create("next").await), 200);
    assert!(!scene.exists("given-up").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_stream_break_and_fall_silent() {
    let scene = Scene::set().await;
    let params = WatchParams::default();
    let mut events = scene.maps.watch(&params, "0").await.unwrap().boxed();
    // The watch begins with what is there.
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
    scene
        .direct
        .create(&PostParams::default(), &map("first"))
        .await
        .unwrap();
    tokio::time::timeout(LIMIT, seen(&mut events, "first"))
        .await
        .unwrap();

    let silence = scene.proxy.add(Rule::new(Action::Silence));
    scene
        .direct
        .create(&PostParams::default(), &map("second"))
        .await
        .unwrap();
    let mut second = Box::pin(seen(&mut events, "second"));
    let held = scene.maps.get("first");
    tokio::select! {
        () = &mut second => panic!("it came through the silence"),
        _ = held => panic!("it was answered in the silence"),
        _ = scene.proxy.reached(silence) => {}
    }
    scene.proxy.remove(silence);
    tokio::time::timeout(LIMIT, second).await.unwrap();

    let outage = scene.proxy.refuse(|request| request.resource == "configmaps");
    let broken = tokio::time::timeout(LIMIT, events.next()).await.unwrap();
    assert!(!matches!(broken, Some(Ok(_))), "{broken:?}");
    assert_eq!(code(scene.maps.get("first").await), 0);
    let closed = eventually(LIMIT, async || (scene.proxy.watches() == 0).then_some(())).await;
    assert!(closed.is_some());
    scene.proxy.remove(outage);
    assert_eq!(code(scene.maps.get("first").await), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_gone_is_a_connection_that_breaks() {
    let mut scene = Scene::set().await;
    scene.plane.kill().unwrap();
    assert_eq!(code(scene.create("a").await), 0);
    scene.plane.restart().await.unwrap();
    assert_eq!(code(scene.create("a").await), 200);
}
