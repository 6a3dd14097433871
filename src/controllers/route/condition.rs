//! The condition `NetworkUnavailable`.

use std::{collections::HashMap, sync::Arc};

use super::{COMPONENT, outcome::must_write};
use crate::{
    controllers::{
        node_action::network_condition,
        node_object::{STORE_LAG, is_gone, is_refused},
    },
    logging::{Failing, warn_if_new},
};
use ccm_core::controllers::NodeObject;
use futures_util::{StreamExt, stream};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;

/// How many nodes are written at once: enough to keep the API server busy.
const WRITERS: usize = 64;

/// Writes conditions.
pub(super) struct Conditions {
    api: Api<NodeObject>,
    /// What was written last of each node, by uid.
    written: HashMap<String, (bool, Instant)>,
    failing: Failing,
}

/// What became of the writes of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) written: u64,
    /// The nodes are gone, or others of the same name.
    pub(super) gone: u64,
    pub(super) failed: u64,
}

impl Conditions {
    pub(super) fn new(client: Client) -> Self {
        Self {
            api: Api::all(client),
            written: HashMap::new(),
            failing: Failing::default(),
        }
    }

    /// Writes the conditions that differ from whether each node's routes are all there.
    pub(super) async fn write(&mut self, verdicts: Vec<(Arc<NodeObject>, bool)>) -> Written {
        self.written.retain(|_, (_, at)| at.elapsed() < STORE_LAG);
        let due = verdicts.into_iter().filter(|(node, available)| {
            let just = self.written.get(&node.view.uid);
            let shown_soon = just.is_some_and(|(written, _)| written == available);
            must_write(node.network, *available) && !shown_soon
                || just.is_some_and(|(written, _)| written != available)
        });
        let due: Vec<_> = due.collect();
        let api = &self.api;
        let results: Vec<_> = stream::iter(due)
            .map(|(node, available)| async move {
                let patch = Patch::Strategic(patch(&node.view.uid, available, Timestamp::now()));
                let name = node.view.name.as_str();
                let result = api.patch_status(name, &PatchParams::default(), &patch).await;
                (node, available, result)
            })
            .buffer_unordered(WRITERS)
            .collect()
            .await;
        let mut summary = Written::default();
        for (node, available, result) in results {
            match result {
                Ok(_) => {
                    summary.written += 1;
                    self.written
                        .insert(node.view.uid.clone(), (available, Instant::now()));
                }
                Err(error) if is_gone(&error) || is_refused(&error) => summary.gone += 1,
                Err(error) => {
                    summary.failed += 1;
                    warn_if_new!(
                        self.failing.begins(()),
                        controller = COMPONENT,
                        node = node.view.name,
                        error = ccm_core::error::report(&error),
                        "Could not write the condition NetworkUnavailable, trying again"
                    );
                }
            }
        }
        if summary.failed == 0 {
            self.failing.ends();
        }
        summary
    }
}

/// That one condition of the node of this uid; another node of the same name is refused.
fn patch(uid: &str, available: bool, now: Timestamp) -> Value {
    let (status, reason, message) = network_condition(available);
    // Whole seconds, as Kubernetes writes times.
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "metadata": {"uid": uid},
        "status": {"conditions": [{
            "type": "NetworkUnavailable",
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }]},
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn the_patch_is_of_one_condition_of_one_node() {
        let now = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let text = patch("u1", true, now);
        assert_eq!(text["metadata"]["uid"], "u1");
        let condition = &text["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2026-01-02T03:04:05Z");
        assert_eq!(condition["reason"], "RouteCreated");
        assert_eq!(
            patch("u1", false, now)["status"]["conditions"][0]["status"],
            "True"
        );
    }
}
