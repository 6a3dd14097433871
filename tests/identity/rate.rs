//! `--kube-api-qps` and `--kube-api-burst`.

use ccm_testbed::binary::Ccm;
use serde_json::json;

use crate::stage::{LIMIT, Stage};

/// Seconds that reads were held back.
async fn held_back(ccm: &Ccm) -> Option<f64> {
    let (_, metrics) = ccm.get("/metrics").await.unwrap();
    let name = "rest_client_rate_limiter_duration_seconds_sum{verb=\"GET\"";
    let line = metrics.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_keep_to_the_rate_that_is_given_and_to_none_otherwise() {
    let stage = Stage::set().await;
    stage.kubeconfig(&stage.trusted(), &json!({"token": stage.token}));
    // What clients of the HTTPS server need has a rate of its own.
    let without = "--authentication-skip-lookup";
    let mut free = stage.launch(&[without]);
    free.wait_healthy("/readyz", LIMIT).await.unwrap();
    assert_eq!(held_back(&free).await, None);
    // A listing and a watch: the second waits.
    let mut slow = stage.launch(&[without, "--kube-api-qps=0.5", "--kube-api-burst=1"]);
    slow.wait_healthy("/readyz", LIMIT).await.unwrap();
    let waited = ccm_testbed::observe::eventually(LIMIT, async || {
        held_back(&slow).await.filter(|seconds| *seconds > 1.5)
    });
    assert!(waited.await.is_some(), "{:?}", held_back(&slow).await);
    let mut enough = stage.launch(&[without, "--kube-api-qps=0.5", "--kube-api-burst=10"]);
    enough.wait_healthy("/readyz", LIMIT).await.unwrap();
    let waited = held_back(&enough).await.unwrap_or_default();
    assert!(waited < 0.5, "{waited}");
}
