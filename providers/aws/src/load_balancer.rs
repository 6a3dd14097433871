//! Load balancers: reads, writes, and the pure rules that map Services to load balancers.
//!
//! | Module | Contents |
//! |---|---|
//! | [`annotations`] | the annotations of Services |
//! | [`spec`], [`classic`] | from a Service's fields and annotations to the requested load balancer |
//! | [`names`] | names, equal to those of the Go cloud controller |
//! | [`kinds`] | the kinds of objects and the parts: `lb/<name>`, `node-sg` |
//! | [`desired`] | the desired state of a load balancer, and the plan from the observed state to it |
//! | [`node_groups`] | the security groups of nodes and their desired rules |
//! | [`model`] | the `PartModel` of AWS, and what is read for it |
//! | [`subnets`] | the subnets of a new load balancer |
//! | [`listings`] | the listings of the account, which all parts share |
//! | [`calls`] | reads and changes of parts |

pub(crate) mod annotations;
pub(crate) mod calls;
pub(crate) mod classic;
pub(crate) mod desired;
pub(crate) mod kinds;
#[cfg(test)]
mod laws;
mod listings;
mod model;
pub(crate) mod names;
mod node_groups;
pub(crate) mod spec;
mod subnets;

pub(crate) use self::{calls::Calls, model::Model};
