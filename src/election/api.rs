//! The requests of an election: GET, POST and PUT of one Lease, and events about it.

use ccm_core::controllers::{EventType, Recorder};
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
};

use super::lease::Lease;

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum LeaseFailure {
    /// The API server refused the request: nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// Another process wrote or created the object since it was read: nothing was changed.
    #[error("another process wrote it at the same time")]
    Conflict,
    /// No answer. The request may have been carried out.
    #[error("{0}")]
    Unknown(String),
}

/// The store of the Lease.
pub(super) trait LeaseStore: Send + Sync + 'static {
    /// The Lease, if there is one.
    fn get(&self) -> impl Future<Output = Result<Option<Lease>, LeaseFailure>> + Send;

    /// Creates it. [`LeaseFailure::Conflict`] if there is one.
    fn create(&self, lease: &Lease) -> impl Future<Output = Result<Lease, LeaseFailure>> + Send;

    /// Replaces it, unless another process wrote it since it was read ([`LeaseFailure::Conflict`]).
    fn update(&self, lease: &Lease) -> impl Future<Output = Result<Lease, LeaseFailure>> + Send;

    /// Publishes an event about the Lease. Does not wait.
    fn announce(&self, lease: &Lease, message: &str);
}

/// The API server.
#[derive(Debug)]
pub(super) struct LeaseApi {
    api: Api<DynamicObject>,
    name: String,
    recorder: Recorder,
}

impl LeaseApi {
    pub(super) fn new(client: Client, namespace: &str, name: &str, recorder: Recorder) -> Self {
        Self {
            api: Api::namespaced_with(client, namespace, &Lease::resource()),
            name: name.to_owned(),
            recorder,
        }
    }
}

impl LeaseStore for LeaseApi {
    async fn get(&self) -> Result<Option<Lease>, LeaseFailure> {
        match self.api.get(&self.name).await {
            Ok(object) => Ok(Some(Lease(object))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(failure(error)),
        }
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, LeaseFailure> {
        let created = self.api.create(&PostParams::default(), &lease.0).await;
        created.map(Lease).map_err(failure)
    }

    async fn update(&self, lease: &Lease) -> Result<Lease, LeaseFailure> {
        let params = PostParams::default();
        let updated = self.api.replace(&self.name, &params, &lease.0).await;
        updated.map(Lease).map_err(failure)
    }

    fn announce(&self, lease: &Lease, message: &str) {
        self.recorder.publish(lease.reference(), EventType::Normal, "LeaderElection", message);
    }
}

fn failure(error: kube::Error) -> LeaseFailure {
    match error {
        kube::Error::Api(status) if status.code == 409 => LeaseFailure::Conflict,
        // A server error may come from a proxy after the request went through.
        kube::Error::Api(status) if status.code < 500 => LeaseFailure::Refused(status.message.clone()),
        error => LeaseFailure::Unknown(ccm_core::error::report(&error)),
    }
}
