//! Access to the Kubernetes API server: clients, their credentials, and what each request passes.
//!
//! ```text
//! controllers, informers, election, HTTPS server
//!      |
//!      v
//! client: limit, user agent, fence (writes), requests (metrics) --> renewing --> transport --> API server
//!      ^                                                                ^
//!      +-- accounts: tokens of other service accounts                   +-- credentials: kubeconfig, pod, plugin
//! ```
//!
//! [`credentials`] are loaded and renewed here, not by kube: kube does not renew them after a 401 answer, keeps the
//! certificates of a kubeconfig that changed, and leaves the output of a plugin out of its errors.

#[cfg(test)]
#[path = "api/answering_tests.rs"]
pub(crate) mod answering;

mod accounts;
mod client;
mod credentials;
mod requests;
mod transport;

pub(crate) use accounts::Accounts;
pub(crate) use client::{ApiServer, Work};
pub(crate) use credentials::{Credentials, Source};
pub(crate) use requests::ApiRequests;

/// Whether another try of a request may succeed.
pub(crate) fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::BuildRequest(_) | kube::Error::SerdeError(_) => false,
        _ => true,
    }
}
