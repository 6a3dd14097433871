//! Access to the cloud: the `openstack` crate's session behind the gate. Only this module and its children use that
//! crate.
//!
//! The session combines the HTTP client, the credentials and the catalog. The crate's own authentication is not used:
//! it supports no trusts, user IDs or domain scopes, and cannot renew a token before it expires. [`keystone`] replaces
//! it as the session's `AuthType`. Requests go through [`ccm_core::client::rest`], so that [`crate::error`] maps every
//! refusal and only the gate retries.

mod api;
pub(crate) mod catalog;
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
