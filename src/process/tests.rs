#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;

struct Process {
    shutdown: CancellationToken,
    stop_server: CancellationToken,
    check: CheckHandle,
}

impl Process {
    fn new() -> Self {
        Self {
            shutdown: CancellationToken::new(),
            stop_server: CancellationToken::new(),
            check: Checks::default().register("shutdown", Kind::Ready),
        }
    }

    async fn supervise(&self, work: JoinHandle<anyhow::Result<()>>, drain: u64) -> anyhow::Result<()> {
        let server = tokio::spawn(until(self.stop_server.clone()));
        let drain = Duration::from_secs(drain);
        supervise(
            work,
            server,
            &self.shutdown,
            &self.check,
            drain,
            &self.stop_server,
        )
        .await
    }
}

#[tokio::test(start_paused = true)]
async fn work_in_progress_ends_before_the_server_does() {
    let process = Process::new();
    let (shutdown, server_gone) = (process.shutdown.clone(), process.stop_server.clone());
    let work = tokio::spawn(async move {
        shutdown.cancelled().await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(
            !server_gone.is_cancelled(),
            "the server must answer while work drains"
        );
        Ok(())
    });
    process.shutdown.cancel();
    process.supervise(work, 20).await.unwrap();
    assert!(process.stop_server.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_end_is_cut_off() {
    let process = Process::new();
    let work = tokio::spawn(std::future::pending());
    let began = tokio::time::Instant::now();
    process.shutdown.cancel();
    process.supervise(work, 20).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 20);
}

#[tokio::test]
async fn a_part_that_fails_panics_or_just_ends_ends_the_process_with_its_reason() {
    let cases = [
        (
            tokio::spawn(async { Err(anyhow!("no more threads")) }),
            "the controllers failed: no more threads",
        ),
        (
            tokio::spawn(async { panic!("index out of bounds") }),
            "index out of bounds",
        ),
        (
            tokio::spawn(async { Ok(()) }),
            "the controllers ended without being told to",
        ),
    ];
    for (work, reason) in cases {
        let error = Process::new().supervise(work, 20).await.unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(reason), "{error}");
    }
}
