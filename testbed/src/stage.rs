//! The control plane and the program of a whole-program test, the demo or a benchmark.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::binary::{Ccm, Launch};
use crate::controlplane::ControlPlane;
use crate::observe;

/// Time limit of each wait. A real cloud is slow on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A control plane, a program that is not started yet, and a folder for the program's config and log.
#[derive(Debug)]
pub struct Stage {
    /// The control plane.
    pub control_plane: ControlPlane,
    program: PathBuf,
    folder: TempDir,
}

impl Stage {
    /// Starts a control plane for this program.
    ///
    /// # Errors
    /// When the control plane cannot be started.
    pub async fn set(program: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self {
            control_plane: ControlPlane::start().await?,
            program: program.into(),
            folder: tempfile::tempdir()?,
        })
    }

    /// The folder for config and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The program's cloud config.
    #[must_use]
    pub fn cloud_config(&self) -> PathBuf {
        self.folder().join("cloud.conf")
    }

    /// The file with the program's log; all programs of this stage append to it.
    #[must_use]
    pub fn log_path(&self) -> PathBuf {
        self.folder().join("cloud-controller-manager.log")
    }

    /// The program's log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until the check returns a value.
    ///
    /// # Panics
    /// If it returns none in time; with the program's log.
    pub async fn eventually<T>(&self, what: &str, check: impl AsyncFn() -> Option<T>) -> T {
        let found = observe::eventually(LIMIT, check).await;
        found.unwrap_or_else(|| panic!("not within {LIMIT:?}: {what}; the program's log:\n{}", self.log()))
    }

    /// Writes the program's cloud config atomically.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_cloud_config(&self, text: &str) -> Result<()> {
        let unfinished = self.folder().join("cloud.conf.unfinished");
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, self.cloud_config()))
            .context("cannot write the cloud config")
    }

    /// Starts the program for this cloud provider as the control plane's administrator, with further flags.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn launch(&self, provider: &str, flags: &[&str]) -> Result<Ccm> {
        self.launch_as(provider, &self.control_plane.kubeconfig(), flags)
    }

    /// Starts the program with a kubeconfig file.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn launch_as(&self, provider: &str, kubeconfig: &Path, flags: &[&str]) -> Result<Ccm> {
        Ccm::start(&self.command(provider, kubeconfig, flags))
    }

    /// The command line of [`Self::launch_as`].
    #[must_use]
    pub fn command(&self, provider: &str, kubeconfig: &Path, flags: &[&str]) -> Launch {
        let mut args = vec![
            format!("--cloud-provider={provider}"),
            format!("--cloud-config={}", self.cloud_config().display()),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Launch {
            program: self.program.clone(),
            args,
            envs: Vec::new(),
            log: self.log_path(),
        }
    }
}
