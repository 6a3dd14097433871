//! `--kube-api-qps` and `--kube-api-burst`.

use ccm_testbed::binary::Ccm;
use serde_json::json;

use super::stage::{LIMIT, Stage};

/// Seconds that reads waited for the rate limit.
async fn rate_limit_wait(ccm: &Ccm) -> Option<f64> {
    let (_, metrics) = ccm.get("/metrics").await.unwrap();
    let name = "rest_client_rate_limiter_duration_seconds_sum{verb=\"GET\"";
    let line = metrics.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_limited_only_if_a_rate_is_set() {
    let stage = Stage::set().await;
    stage.kubeconfig(&stage.trusted(), &json!({"token": stage.token}));
    // Requests for clients of the HTTPS server have a rate limit of their own.
    let without = "--authentication-skip-lookup";
    let mut free = stage.launch(&[without]);
    free.wait_healthy("/readyz", LIMIT).await.unwrap();
    assert_eq!(rate_limit_wait(&free).await, None);
    // A listing and a watch: the second waits.
    let mut slow = stage.launch(&[without, "--kube-api-qps=0.5", "--kube-api-burst=1"]);
    slow.wait_healthy("/readyz", LIMIT).await.unwrap();
    let waited = ccm_testbed::observe::eventually(LIMIT, async || {
        rate_limit_wait(&slow).await.filter(|seconds| *seconds > 1.5)
    });
    assert!(waited.await.is_some(), "{:?}", rate_limit_wait(&slow).await);
    let mut enough = stage.launch(&[without, "--kube-api-qps=0.5", "--kube-api-burst=10"]);
    enough.wait_healthy("/readyz", LIMIT).await.unwrap();
    let waited = rate_limit_wait(&enough).await.unwrap_or_default();
    assert!(waited < 0.5, "{waited}");
}
