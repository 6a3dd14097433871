#![allow(clippy::unwrap_used, clippy::expect_used)]

use ccm_core::client::Fence;

use super::*;
use crate::election::Election;

struct Scene {
    signals: CancellationToken,
    shutdown: CancellationToken,
    stop_server: CancellationToken,
    fence: Fence,
}

impl Scene {
    fn new() -> Self {
        let signals = CancellationToken::new();
        Self {
            shutdown: signals.child_token(),
            signals,
            stop_server: CancellationToken::new(),
            fence: Fence::default(),
        }
    }

    async fn supervise(&self, work: JoinHandle<anyhow::Result<()>>, drain: u64) -> anyhow::Result<()> {
        let (main, _candidacy) = Election::none(self.fence.clone());
        Process {
            work,
            elections: Elections(vec![main]),
            server: tokio::spawn(until(self.stop_server.clone())),
            signals: self.signals.clone(),
            shutdown: self.shutdown.clone(),
            shutdown_check: Checks::default().register("shutdown"),
            drain: Duration::from_secs(drain),
            stop_server: self.stop_server.clone(),
        }
        .supervise()
        .await
    }
}

#[tokio::test(start_paused = true)]
async fn work_in_progress_ends_before_the_server_does() {
    let scene = Scene::new();
    let (shutdown, server_gone) = (scene.shutdown.clone(), scene.stop_server.clone());
    let work = tokio::spawn(async move {
        shutdown.cancelled().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!server_gone.is_cancelled(), "the server must answer while work drains");
        Ok(())
    });
    scene.signals.cancel();
    scene.supervise(work, 20).await.unwrap();
    assert!(scene.stop_server.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_end_is_cut_off() {
    for by_signal in [true, false] {
        let scene = Scene::new();
        let work = tokio::spawn(std::future::pending());
        let began = tokio::time::Instant::now();
        // Otherwise a controller has failed.
        let cause = if by_signal {
            &scene.signals
        } else {
            &scene.shutdown
        };
        cause.cancel();
        let outcome = scene.supervise(work, 20).await;
        assert_eq!(outcome.is_ok(), by_signal, "{outcome:?}");
        assert_eq!(began.elapsed().as_secs(), 20);
    }
}

#[tokio::test]
async fn a_part_that_fails_panics_or_just_ends_ends_the_process_with_its_reason() {
    let cases = [
        (
            tokio::spawn(async { Err(anyhow!("no more threads")) }),
            "the controllers failed: no more threads",
        ),
        (tokio::spawn(async { panic!("index out of bounds") }), "index out of bounds"),
        (tokio::spawn(async { Ok(()) }), "the controllers ended unexpectedly"),
    ];
    for (work, reason) in cases {
        let error = Scene::new().supervise(work, 20).await.unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(reason), "{error}");
    }
}
