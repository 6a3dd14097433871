//! The program inside a test's own process.

use std::{future::Future, thread, time::Duration};

use anyhow::Result;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// How long a program that is ended may still block.
const LIMIT: Duration = Duration::from_secs(10);

/// The program, run by a runtime of its own. When this is dropped, everything that the program does has ended, as in a crash:
/// whatever went on would meet the next test that uses the control plane.
#[derive(Debug)]
pub struct Inside {
    task: JoinHandle<Result<()>>,
    runtime: Option<Runtime>,
}

impl Inside {
    /// Starts the program.
    ///
    /// # Errors
    /// When there can be no runtime.
    pub fn start(program: impl Future<Output = Result<()>> + Send + 'static) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        Ok(Self {
            task: runtime.spawn(program),
            runtime: Some(runtime),
        })
    }

    /// Waits until the program has ended by itself.
    ///
    /// # Errors
    /// Those of the program, or its panic.
    pub async fn ended(&mut self) -> Result<()> {
        (&mut self.task).await?
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(runtime) = self.runtime.take() {
            // A runtime must not be waited for where another one runs tasks.
            let end = thread::spawn(move || runtime.shutdown_timeout(LIMIT));
            let _panicked = end.join();
        }
    }
}
