#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ccm_core::ErrorKind;
use http::Method;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::api::answering;

const SOURCE: ClusterIdSource = ClusterIdSource {
    namespace: "kube-system",
    name: "ingress-uid",
    keys: &["provider-uid", "uid"],
    problem: |id| id.is_empty().then(|| "which is empty".to_owned()),
    generate: || "generated".to_owned(),
};

/// An API server with this ConfigMap.
#[derive(Default)]
struct Store {
    data: Option<Value>,
    /// Creates are refused with this status so many times.
    refusals: (u16, usize),
    /// Another controller creates the ConfigMap just before.
    faster: Option<Value>,
    creates: usize,
}

impl Store {
    fn answer(&mut self, method: &Method, body: &[u8]) -> (u16, Value) {
        let object = |data: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ingress-uid"}, "data": data});
        if method == Method::GET {
            return match &self.data {
                Some(data) => (200, object(data)),
                None => answering::failure(404),
            };
        }
        self.creates += 1;
        if self.refusals.1 > 0 {
            self.refusals.1 -= 1;
            return answering::failure(self.refusals.0);
        }
        if let Some(data) = self.faster.take() {
            self.data = Some(data);
            return answering::failure(409);
        }
        let created: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(created["metadata"]["name"], "ingress-uid");
        self.data = Some(created["data"].clone());
        (201, created)
    }
}

/// A cluster with this store, and the ID of the provider.
struct Cluster {
    store: Arc<Mutex<Store>>,
    client: Client,
    cell: ClusterIdCell,
}

impl Cluster {
    fn new(store: Store) -> Self {
        let store = Arc::new(Mutex::new(store));
        let answering = Arc::clone(&store);
        let client = answering::client(move |request: http::Request<Body>| {
            let store = Arc::clone(&answering);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                assert!(parts.uri.path().starts_with("/api/v1/namespaces/kube-system/configmaps"));
                store.lock().answer(&parts.method, &body)
            }
        });
        Self {
            store,
            client,
            cell: ClusterIdCell::new(SOURCE),
        }
    }

    fn id(&self) -> Option<String> {
        self.cell.get().ok().map(|id| id.to_string())
    }

    async fn wait(&self) -> Option<String> {
        // Without an answer, the test ends.
        let _ = timeout(Duration::from_secs(3600), wait(&self.client, &self.cell, IfMissing::Create)).await;
        self.id()
    }
}

#[tokio::test(start_paused = true)]
async fn an_existing_id_is_read_and_nothing_is_created() {
    for (data, id) in [
        (json!({"uid": "a", "provider-uid": "b"}), "b"),
        (json!({"uid": "a"}), "a"),
    ] {
        let data = Some(data);
        let cluster = Cluster::new(Store {
            data,
            ..Store::default()
        });
        assert_eq!(cluster.wait().await.as_deref(), Some(id));
        assert_eq!(cluster.store.lock().creates, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_configmap_is_created_with_both_keys() {
    let cluster = Cluster::new(Store::default());
    assert_eq!(cluster.wait().await.as_deref(), Some("generated"));
    let data = json!({"uid": "generated", "provider-uid": "generated"});
    assert_eq!(cluster.store.lock().data, Some(data));
}

#[tokio::test(start_paused = true)]
async fn the_faster_controller_chooses_the_id() {
    let cluster = Cluster::new(Store {
        faster: Some(json!({"uid": "theirs"})),
        ..Store::default()
    });
    assert_eq!(cluster.wait().await.as_deref(), Some("theirs"));
    assert_eq!(cluster.store.lock().creates, 1);
}

#[tokio::test(start_paused = true)]
async fn load_balancers_wait_until_the_right_to_create_is_granted() {
    let cluster = Cluster::new(Store {
        refusals: (403, 3),
        ..Store::default()
    });
    assert_eq!(cluster.cell.get().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(cluster.wait().await.as_deref(), Some("generated"));
    assert_eq!(cluster.store.lock().creates, 4);
}

#[tokio::test(start_paused = true)]
async fn a_plan_creates_nothing() {
    let cluster = Cluster::new(Store::default());
    wait_for_plan(&cluster.client, &cluster.cell).await;
    assert_eq!((cluster.id(), cluster.store.lock().creates), (None, 0));
    let waiting = timeout(Duration::from_secs(300), wait(&cluster.client, &cluster.cell, IfMissing::Wait));
    assert!(waiting.await.is_err(), "a dry run waits");
    assert_eq!(cluster.store.lock().creates, 0);
    cluster.store.lock().data = Some(json!({"uid": "a"}));
    wait_for_plan(&cluster.client, &cluster.cell).await;
    assert_eq!(cluster.id().as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn another_id_stops_the_writes_until_the_first_one_is_back() {
    let data = Some(json!({"uid": "a"}));
    let cluster = Cluster::new(Store {
        data: data.clone(),
        ..Store::default()
    });
    cluster.wait().await;
    let following = tokio::spawn(follow(cluster.client.clone(), cluster.cell.clone()));
    for (now, text) in [
        (Some(json!({"uid": "b"})), "has the ID \"b\" now"),
        (None, "does not exist"),
        (Some(json!({"uid": ""})), "which is empty"),
        (Some(json!({"other": "x"})), "has none of the keys provider-uid, uid"),
    ] {
        cluster.store.lock().data = now;
        sleep(INTERVAL + Duration::from_secs(1)).await;
        let error = cluster.cell.get().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.message().contains(text), "{error}");
        cluster.store.lock().data.clone_from(&data);
        sleep(INTERVAL + Duration::from_secs(1)).await;
        assert_eq!(cluster.id().as_deref(), Some("a"));
    }
    assert_eq!(cluster.store.lock().creates, 0, "a lost ConfigMap is not created again");
    following.abort();
}
