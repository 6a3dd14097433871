//! A connection to the API server that is opened again when credentials change.

use std::{sync::Arc, time::Duration};

use ccm_core::error::report;
use http::{Request, Response, StatusCode};
use kube::{Client, client::Body, config::AuthInfo};
use tokio::sync::watch;
use tracing::warn;

use super::{
    credentials::{Credentials, Current},
    transport::{self, Keepalive, Versions},
};

/// Longer than a watch lives (the API server ends it within five minutes), so that no idle watch is cut off. It is for
/// servers that hang while their kernel still acknowledges packets; see [`Keepalive`] for those that are gone.
const READ_TIMEOUT: Duration = Duration::from_secs(330);

/// How to connect.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) connect_timeout: Duration,
    /// Whether requests with passing failures (429, 503, 504) are sent again.
    pub(super) retries: bool,
    /// Whether the connection has no credentials: requests bring their own.
    pub(super) anonymous: bool,
    pub(super) versions: Versions,
    pub(super) keepalive: Keepalive,
}

impl Connection {
    fn open(&self, current: &Current) -> kube::Result<Client> {
        let mut config = current.config.clone();
        config.connect_timeout = Some(self.connect_timeout);
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        config.default_retry = self.retries;
        if self.anonymous {
            config.auth_info = AuthInfo::default();
        }
        transport::open(&config, self.keepalive, self.versions)
    }
}

/// Sends requests with the credentials in force. A request in progress when they change ends on its old connection.
pub(super) struct Renewing {
    connection: Connection,
    credentials: Credentials,
    changes: watch::Receiver<Arc<Current>>,
    generation: u64,
    client: Client,
}

impl Renewing {
    /// Connects to nothing yet.
    pub(super) fn new(connection: Connection, credentials: &Credentials) -> kube::Result<Self> {
        let mut changes = credentials.subscribe();
        let current = Arc::clone(&changes.borrow_and_update());
        Ok(Self {
            client: connection.open(&current)?,
            connection,
            credentials: credentials.clone(),
            changes,
            generation: current.generation,
        })
    }

    fn follow(&mut self) {
        if !self.changes.has_changed().unwrap_or(false) {
            return;
        }
        let current = Arc::clone(&self.changes.borrow_and_update());
        match self.connection.open(&current) {
            Ok(client) => {
                self.client = client;
                self.generation = current.generation;
            }
            // Not expected: loading the credentials has checked them.
            Err(error) => warn!(
                error = report(&error),
                "Keeping the connection to the API server, there is none with the changed credentials"
            ),
        }
    }

    /// Sends a request, and reports an answer 401.
    pub(super) fn send(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = kube::Result<Response<Body>>> + Send + use<> {
        self.follow();
        let (client, generation) = (self.client.clone(), self.generation);
        // A request with a token of its own also gets another token by itself.
        let credentials = (!self.connection.anonymous).then(|| self.credentials.clone());
        async move {
            let answer = client.send(request).await?;
            if let Some(credentials) = credentials
                && answer.status() == StatusCode::UNAUTHORIZED
            {
                credentials.rejected(generation);
            }
            Ok(answer)
        }
    }
}
