//! Reads Nodes and Events, and waits for conditions.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node};
use tokio::time::Instant;

use crate::nodes::UNINITIALIZED;

/// The field managers of the API server, alone or in our control plane.
const API_SERVERS: [&str; 2] = ["kube-apiserver", "ccm-controlplane"];

/// The first and the longest poll interval. The interval grows to limit the load of slow conditions.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(400)];

/// Polls until the check returns a value. `None` if it returns none within the limit.
pub async fn eventually<T>(limit: Duration, check: impl AsyncFn() -> Option<T>) -> Option<T> {
    let wait = async {
        let [mut pause, longest] = PAUSES;
        loop {
            let began = Instant::now();
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(pause.max(began.elapsed() * 2)).await;
            pause = longest.min(pause * 5 / 4);
        }
    };
    tokio::time::timeout(limit, wait).await.ok()
}

/// Whether the API server wrote this Event itself, as it does at its start.
#[must_use]
pub fn is_from_api_server(event: &Event) -> bool {
    let mut writers = event.metadata.managed_fields.iter().flatten();
    writers.any(|entry| {
        let writer = entry.manager.as_deref();
        writer.is_some_and(|writer| API_SERVERS.contains(&writer))
    })
}

/// The keys of a Node's taints.
#[must_use]
pub fn taints(node: &Node) -> Vec<&str> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    taints.unwrap_or_default().iter().map(|taint| taint.key.as_str()).collect()
}

/// Whether a Node is initialized.
#[must_use]
pub fn is_initialized(node: &Node) -> bool {
    !taints(node).contains(&UNINITIALIZED)
}

/// A Node's provider ID, or an empty text.
#[must_use]
pub fn provider_id(node: &Node) -> &str {
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    id.unwrap_or_default()
}

/// The value of a Node's label.
#[must_use]
pub fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// A Node's addresses: type and address.
#[must_use]
pub fn addresses(node: &Node) -> Vec<(&str, &str)> {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref());
    addresses
        .unwrap_or_default()
        .iter()
        .map(|address| (address.type_.as_str(), address.address.as_str()))
        .collect()
}

/// Asserts that a text contains all parts.
///
/// # Panics
/// If a part is missing.
pub fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
