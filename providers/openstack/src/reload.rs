//! Taking over a changed config while running.

use std::path::PathBuf;

use ccm_core::{BuildContext, Reload, Result, config::Problem};
use parking_lot::Mutex;
use tracing::warn;

use crate::{
    client::{Api, Connection, Gates},
    config::{self, Files, Loaded},
    view::Current,
};

/// The region of a catalogue that is new may be new as well.
const REGION: &str = "[Global] region";

/// Reads the config again and compares it with what is in force.
#[derive(Debug)]
pub(crate) struct Reloader {
    context: BuildContext,
    gates: Gates,
    /// Held by whoever reloads.
    configs: tokio::sync::Mutex<Configs>,
    files: Mutex<Files>,
}

#[derive(Debug)]
struct Configs {
    /// What the process started with: whatever can not be changed live is in force as it stands here.
    start: Loaded,
    /// The last one that was taken over.
    last: Loaded,
    /// What it was made of.
    files: Files,
}

impl Reloader {
    /// Of a provider that began with this config.
    pub(crate) fn new(context: BuildContext, gates: Gates, start: Loaded, files: Files) -> Self {
        Self {
            context,
            gates,
            files: Mutex::new(files.clone()),
            configs: tokio::sync::Mutex::new(Configs {
                last: start.clone(),
                start,
                files,
            }),
        }
    }

    /// The files of the config in force; after a failure also those of the one that was refused.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.files.lock().list()
    }

    /// Takes over what can be. All or nothing: with an error everything is as it was.
    pub(crate) async fn reload(&self, current: &Current) -> Result<Reload> {
        let mut configs = self.configs.lock().await;
        let mut files = Files::default();
        let taken = self.take_over(current, &mut configs, &mut files).await;
        // Also a file that makes a bad config good has to be noticed.
        let mut watched = files.clone();
        if taken.is_ok() {
            configs.files = files;
        } else {
            watched.join(configs.files.clone());
        }
        *self.files.lock() = watched;
        taken
    }

    async fn take_over(&self, current: &Current, configs: &mut Configs, files: &mut Files) -> Result<Reload> {
        let path = self.context.cloud_config.as_deref();
        let new = config::load(path, &self.context.environment, files)?;
        let changes = configs.last.changes(&new);
        let restart_needed = configs.start.changes(&new).restart;
        if changes.reconnect {
            let start = &configs.start.settings.connection;
            let connection = Connection {
                credentials: new.settings.connection.credentials.clone(),
                tls: new.settings.connection.tls.clone(),
                region: start.region.clone(),
                interface: start.interface,
            };
            let connected = Api::connect(
                connection,
                &self.gates,
                &self.context.user_agent,
                current.generation_handle(),
            );
            let api = connected.await.map_err(|error| {
                if restart_needed.iter().any(|key| key == REGION) {
                    // Perhaps the credentials are of a cloud that has only the new one.
                    error.with_context("needs_a_restart", REGION)
                } else {
                    error
                }
            })?;
            current.swap(api);
        }
        self.gates.set_quotas(&new.settings.quotas);
        warn_of(&new.warnings, &configs.last.warnings);
        configs.last = new;
        Ok(Reload {
            applied: changes.live,
            restart_needed,
        })
    }
}

/// Says what is suspicious and was not said before.
pub(crate) fn warn_of(warnings: &[Problem], said: &[Problem]) {
    for warning in warnings {
        if !said.iter().any(|said| said.message() == warning.message()) {
            warn!(%warning, "Suspicious cloud config");
        }
    }
}
