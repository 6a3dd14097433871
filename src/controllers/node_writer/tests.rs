#![allow(clippy::unwrap_used)]

use ccm_core::AddressType;

use super::*;
use crate::api::answering;

/// The patch as it is sent.
fn body(patch: &Patch<Value>) -> Value {
    match patch {
        Patch::Json(patch) => serde_json::to_value(patch).unwrap(),
        Patch::Merge(value) => value.clone(),
        other => panic!("not a patch of ours: {other:?}"),
    }
}

fn tainted(labels: &Value) -> NodeObject {
    serde_json::from_value(json!({
        "metadata": {"name": "n1", "uid": "u1", "labels": labels},
        "spec": {"taints": [
            {"key": "foreign", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"},
            {"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"},
            {"key": UNINITIALIZED_TAINT, "value": "again", "effect": "NoExecute"},
        ]},
    }))
    .unwrap()
}

fn desired() -> Initialization {
    Initialization {
        addresses: Some(vec![NodeAddress::new(AddressType::InternalIP, "10.0.0.1")]),
        labels: [("topology.kubernetes.io/zone".to_owned(), "z".to_owned())].into(),
        provider_id: Some("fake://n1".to_owned()),
    }
}

fn initialize(labels: &Value) -> Value {
    let node = tainted(labels);
    body(&guarded(&node, initialization(&node, &desired()).unwrap()))
}

#[tokio::test]
async fn a_refused_patch_of_a_node_that_still_exists_is_an_error() {
    let node = tainted(&json!({}));
    for (uid, refused) in [("u1", true), ("u2", false)] {
        let client = answering::client(move |request| async move {
            match *request.method() {
                http::Method::GET => (200, json!({"metadata": {"name": "n1", "uid": uid}})),
                _ => answering::failure(409),
            }
        });
        let writer = NodeWriter::new(client);
        for action in [
            NodeAction::SetNetworkAvailable(true),
            NodeAction::Initialize(desired()),
        ] {
            let result = writer.apply(&node, &action).await;
            match refused {
                true => assert!(result.is_err(), "{action}: {result:?}"),
                false => assert_eq!(result.unwrap(), Written::Missing, "{action}"),
            }
        }
    }
}

#[test]
fn one_guarded_patch_initializes_a_node() {
    let foreign = json!({"key": "foreign", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"});
    assert_eq!(
        initialize(&json!({"a": "b"})),
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u1"},
            {"op": "test", "path": "/spec/taints", "value": [
                foreign,
                {"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"},
                {"key": UNINITIALIZED_TAINT, "value": "again", "effect": "NoExecute"},
            ]},
            {"op": "add", "path": "/metadata/labels/topology.kubernetes.io~1zone", "value": "z"},
            {"op": "add", "path": "/spec/providerID", "value": "fake://n1"},
            {"op": "add", "path": "/spec/taints", "value": [foreign]},
        ])
    );
}

#[test]
fn a_node_without_labels_gets_the_map_only_if_it_still_has_none() {
    let patch = initialize(&json!(null));
    assert_eq!(patch[2], json!({"op": "test", "path": "/metadata/labels", "value": null}));
    assert_eq!(patch[3]["path"], "/metadata/labels");
}

#[test]
fn addresses_are_the_whole_list_under_the_uid() {
    assert_eq!(
        body(&addresses_patch("u1", &desired().addresses.unwrap())),
        json!({
            "metadata": {"uid": "u1"},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
        })
    );
}

#[test]
fn taints_are_set_as_a_whole_under_a_test_of_what_was_read() {
    let foreign = json!({"key": "foreign", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"});
    let node: NodeObject = serde_json::from_value(json!({
        "metadata": {"name": "n1", "uid": "u1"},
        "spec": {"taints": [foreign]},
    }))
    .unwrap();
    assert_eq!(
        body(&guarded(&node, vec![set_taints(&node.taints_with("ours", "NoSchedule"))])),
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u1"},
            {"op": "test", "path": "/spec/taints", "value": [foreign]},
            {"op": "add", "path": "/spec/taints", "value": [foreign, {"key": "ours", "effect": "NoSchedule"}]},
        ])
    );
}

#[test]
fn a_node_without_taints_is_tested_for_having_none() {
    let node: NodeObject = serde_json::from_value(json!({"metadata": {"name": "n1", "uid": "u1"}})).unwrap();
    let patch = body(&guarded(&node, vec![set_taints(&node.taints_with("ours", "NoSchedule"))]));
    assert_eq!(patch[1], json!({"op": "test", "path": "/spec/taints", "value": null}));
}

#[test]
fn the_patch_is_of_one_condition_of_one_node() {
    let now = "2026-01-02T03:04:05.678Z".parse().unwrap();
    let text = condition_patch("u1", true, now);
    assert_eq!(text["metadata"]["uid"], "u1");
    let condition = &text["status"]["conditions"][0];
    assert_eq!(condition["lastTransitionTime"], "2026-01-02T03:04:05Z");
    assert_eq!(condition["reason"], "RouteCreated");
    assert_eq!(condition_patch("u1", false, now)["status"]["conditions"][0]["status"], "True");
}
