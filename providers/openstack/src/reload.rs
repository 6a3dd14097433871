//! Applies a changed config at run time.

use std::path::PathBuf;

use ccm_core::{
    BuildContext, Reload, Result,
    config::{self, ConfigFiles, Parsed},
};

use crate::{
    client::{Api, Connection, Gates},
    config::Config,
    view::Current,
};

/// The key that a new catalog may require to change, too.
const REGION: &str = "[Global] region";

/// Reads the config again and compares it with the current one.
#[derive(Debug)]
pub(crate) struct Reloader {
    context: BuildContext,
    gates: Gates,
    configs: config::Reloader<Config>,
}

impl Reloader {
    /// Creates a reloader for a provider that started with this config.
    pub(crate) fn new(
        context: BuildContext,
        gates: Gates,
        start: Parsed<Config>,
        files: ConfigFiles,
    ) -> Self {
        Self {
            context,
            gates,
            configs: config::Reloader::new(start, files),
        }
    }

    /// The files to watch.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.configs.files()
    }

    /// Applies all changes that need no restart. After an error nothing has changed.
    pub(crate) async fn reload(&self, current: &Current) -> Result<Reload> {
        let mut pending = self.configs.begin().await;
        let new = crate::config::load(&self.context, &mut pending.files)?;
        let changes = pending.last().changes(&new.value);
        let restart_needed = pending.start().changes(&new.value).restart;
        let settings = &new.value.settings;
        if changes.reconnect {
            let start = &pending.start().settings.connection;
            let connection = Connection {
                credentials: settings.connection.credentials.clone(),
                tls: settings.connection.tls.clone(),
                region: start.region.clone(),
                interface: start.interface,
            };
            let connected =
                Api::connect(connection, &self.gates, &self.context.user_agent, current.generation_handle());
            let api = connected.await.map_err(|error| {
                if restart_needed.iter().any(|key| key == REGION) {
                    // The new credentials may belong to a cloud that has only the new region.
                    error.with_context("needs_a_restart", REGION)
                } else {
                    error
                }
            })?;
            current.swap(api);
        }
        self.gates.set_quotas(&settings.quotas);
        Ok(pending.commit(new, changes.live, restart_needed))
    }
}
