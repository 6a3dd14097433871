//! Load balancers: reads, writes, and the pure rules that map Services to load balancers.
//!
//! | Module | Contents |
//! |---|---|
//! | [`annotations`] | the annotations of Services |
//! | [`spec`], [`classic`] | from a Service's fields and annotations to the requested load balancer |
//! | [`settings`] | the settings of the config |
//! | [`ports`] | listeners, as a Service requests them |
//! | [`names`] | names, equal to those of the Go cloud controller |
//! | [`kinds`] | the kinds of objects and the parts: `lb/<name>`, `node-sg` |
//! | [`desired`] | the desired state of a load balancer, and the plan from the observed state to it |
//! | [`node_groups`] | the desired rules of the security groups of nodes |
//! | [`part`] | the types of parts: what is read for them, and what a change returns |
//! | [`model`] | the `PartModel` of AWS |
//! | [`subnets`] | the subnets of a new load balancer |
//! | [`listings`] | the listings of the account, shared by all parts |
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
mod part;
pub(crate) mod ports;
pub(crate) mod settings;
pub(crate) mod spec;
mod subnets;

pub(crate) use self::{calls::Calls, part::Model};
