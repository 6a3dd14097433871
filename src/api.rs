//! Access to the Kubernetes API server: clients, their credentials, and what each request passes.
//!
//! ```text
//! controllers, informers, election, HTTPS server
//!      |
//!      v
//! client: limit, user agent, fence (writes), measurement --> renewing --> transport --> API server
//!      ^                                                        ^
//!      +-- accounts: tokens of other service accounts           +-- credentials: kubeconfig, pod, plugin
//! ```
//!
//! [`credentials`] are loaded and renewed here, not by kube: kube does not renew them after a 401 answer, keeps the
//! certificates of a kubeconfig that changed, and leaves the output of a plugin out of its errors.

mod accounts;
mod client;
mod credentials;
mod fence;
mod renewing;
mod requests;
mod transport;

pub(crate) use accounts::Accounts;
pub(crate) use client::{ApiServer, Work};
pub(crate) use credentials::{Credentials, Source};
pub(crate) use requests::ApiRequests;
