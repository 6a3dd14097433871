//! Runs the program in the test's process.

use std::{future::Future, thread, time::Duration};

use anyhow::Result;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// Time limit for blocking tasks of the program after it is stopped.
const LIMIT: Duration = Duration::from_secs(10);

/// The program in its own async runtime. Dropping it ends all of the program's tasks, like a crash, so that they do not disturb
/// the next test on the same control plane.
#[derive(Debug)]
pub struct InProcess {
    task: JoinHandle<Result<()>>,
    runtime: Option<Runtime>,
}

impl InProcess {
    /// Starts the program.
    ///
    /// # Errors
    /// When the runtime cannot be created.
    pub fn start(program: impl Future<Output = Result<()>> + Send + 'static) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self {
            task: runtime.spawn(program),
            runtime: Some(runtime),
        })
    }

    /// Waits until the program ends.
    ///
    /// # Errors
    /// The error or panic of the program.
    pub async fn ended(&mut self) -> Result<()> {
        (&mut self.task).await?
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(runtime) = self.runtime.take() {
            // Waiting for a runtime is not allowed in a thread of another runtime.
            let end = thread::spawn(move || runtime.shutdown_timeout(LIMIT));
            let _panicked = end.join();
        }
    }
}
