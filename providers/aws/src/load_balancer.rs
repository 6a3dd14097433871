//! Load balancers: reads, writes, and the pure rules that map Services to load balancers.
//!
//! | Module | Contents |
//! |---|---|
//! | [`annotations`] | the annotations of Services |
//! | [`adoption`] | annotations without effect on load balancers that upstream created |
//! | [`spec`], [`classic`] | from a Service's fields and annotations to the requested load balancer |
//! | [`names`] | names, equal to those of upstream |
//! | [`fields`] | the names of attributes |
//! | [`updates`] | the changes of attributes and sets |
//! | [`kinds`] | the kinds of objects and the parts: `lb/<name>`, `node-sg` |
//! | [`desired`] | the desired state of a load balancer, and the plan from the observed state to it |
//! | [`named_attributes`] | attributes that are managed only while an annotation names them |
//! | [`node_groups`] | the security groups of nodes and their desired rules |
//! | [`model`] | the `PartModel` of AWS, and what is read for it |
//! | [`subnets`] | the subnets of a new load balancer |
//! | [`listings`] | the listings of the account, which all parts share |
//! | [`calls`] | reads and changes of parts |

mod adoption;
pub(crate) mod annotations;
pub(crate) mod calls;
pub(crate) mod classic;
pub(crate) mod desired;
pub(crate) mod fields;
pub(crate) mod kinds;
#[cfg(test)]
mod laws;
mod listings;
mod model;
mod named_attributes;
pub(crate) mod names;
mod node_groups;
pub(crate) mod spec;
mod subnets;
pub(crate) mod updates;

pub(crate) use self::{calls::BalancerCalls, model::Model};
