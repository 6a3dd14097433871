//! The way to the cloud: the `openstack` crate's session behind the gate. Nothing outside this module and its children
//! names that crate.
//!
//! The session brings the HTTP client, the credentials and the catalogue together. The crate's own authentication is not
//! used: it knows no trusts, no user ids and no scope but projects, and cannot renew a token that has not expired.
//! [`keystone`] is ours, plugged in as the session's `AuthType`. Requests go through [`ccm_core::client::rest`], so that
//! every refusal is mapped in one place ([`crate::error`]) and only the gate retries.

mod api;
pub(crate) mod catalogue;
mod generation;
pub(crate) mod identity;
mod keystone;
pub(crate) mod listing;
mod metrics;
mod ops;
mod quotas;
mod session;

pub(crate) use self::{
    api::{Api, Call, Connection, Gates, call, if_revision, read, with_microversion},
    generation::Generation,
    ops::Op,
    quotas::Quotas,
};
