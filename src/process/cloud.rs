//! Connecting to the cloud, for as long as it takes.

use std::{sync::Arc, time::Duration};

use ccm_core::{BuildContext, Cloud, Error, ErrorKind, Provider, controllers::Backoff};
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use crate::{logging::Failing, server::CheckHandle};

const BACKOFF: Backoff = Backoff::seconds(1, 30);
/// For a provider without deadlines of its own.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);

/// Repeats the provider's `build` until it succeeds. It reads its files again each time, so that a corrected Secret needs
/// no restart.
pub(super) async fn connect(
    provider: &Provider,
    context: &BuildContext,
    check: &CheckHandle,
) -> Arc<dyn Cloud> {
    let (build, provider) = (provider.build, provider.name);
    check.set_failing("not connected yet");
    let failing = Failing::default();
    let mut attempt: u32 = 0;
    loop {
        attempt = attempt.saturating_add(1);
        debug!(provider, attempt, "Connecting to the cloud");
        let built = timeout(ATTEMPT_TIMEOUT, build(context.clone()))
            .await
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Timeout, "no answer from the cloud in time")));
        let failure = match built {
            Ok(cloud) => {
                info!(provider, attempt, "Connected to the cloud");
                check.set_ok();
                return cloud;
            }
            Err(failure) => failure,
        };
        let pause = BACKOFF.delay(attempt);
        let report = failure.report();
        // Most failures need an action of the user; the others may end. They are reported once, not at every attempt.
        if !failing.begins(report.clone()) {
            debug!(provider, attempt, retry_in = ?pause, error = report, "Still not connected to the cloud");
        } else if matches!(
            failure.kind(),
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited | ErrorKind::Conflict
        ) {
            warn!(provider, attempt, error = report, "Not connected to the cloud, trying again");
        } else {
            error!(provider, attempt, error = report, "Not connected to the cloud, trying again");
        }
        check.set_failing(report);
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::sync::atomic::{AtomicU64, Ordering};

    use ccm_core::{BuildFuture, client::ClientMetrics};

    use super::*;
    use crate::server::Checks;

    #[derive(Debug)]
    struct Healed;

    impl Cloud for Healed {
        fn name(&self) -> &'static str {
            "healed"
        }
    }

    fn heals_at_the_fifth_attempt(_: BuildContext) -> BuildFuture {
        static ATTEMPTS: AtomicU64 = AtomicU64::new(0);
        Box::pin(async {
            match ATTEMPTS.fetch_add(1, Ordering::Relaxed) {
                0 => std::future::pending().await,
                1..=3 => Err(Error::new(ErrorKind::Unauthenticated, "wrong password")),
                _ => Ok(Arc::new(Healed) as Arc<dyn Cloud>),
            }
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_cloud_that_heals_is_connected_without_a_restart() {
        let provider = Provider::new("healed", "for this test", heals_at_the_fifth_attempt);
        let context = BuildContext {
            cloud_config: None,
            flags: Default::default(),
            environment: Default::default(),
            cluster_name: "kubernetes".into(),
            user_agent: "test".into(),
            metrics: ClientMetrics::default(),
            plan: Default::default(),
            fences: Default::default(),
        };
        let began = tokio::time::Instant::now();
        let check = Checks::default().register("cloud-provider");
        assert_eq!(connect(&provider, &context, &check).await.name(), "healed");
        // The one that hung, and pauses of up to 1, 2, 4 and 8 seconds.
        assert!(began.elapsed() <= ATTEMPT_TIMEOUT + Duration::from_secs(16), "{:?}", began.elapsed());
    }
}
