//! Load balancers: each is one document of the API.
//!
//! | Module | Contents |
//! |---|---|
//! | [`annotations`] | the annotations of Services, validated by the API's rules |
//! | [`desired`] | from a Service, nodes and settings to the fields that we manage |
//! | [`document`] | a load balancer as returned by the API: comparison, bodies of writes |
//! | [`ownership`] | to which cluster and Service a load balancer belongs |
//! | [`model`] | the `PartModel`: which Service has which load balancer, and the plan |
//! | [`calls`] | the `PartCloud`: reads, certificates, writes, polls |

pub(crate) mod annotations;
pub(crate) mod calls;
pub(crate) mod desired;
pub(crate) mod document;
#[cfg(test)]
mod laws;
pub(crate) mod model;
pub(crate) mod ownership;
