//! Load balancers: reads, writes, and the pure rules that map Services to load balancers.
//!
//! | Module | Contents |
//! |---|---|
//! | [`annotations`] | the annotations of Services |
//! | [`spec`] | from a Service's fields and annotations to the requested load balancer, and which controller is responsible |
//! | [`names`] | names, descriptions and ports in firewall rules, equal to those of upstream |
//! | [`fields`] | the names of attributes |
//! | [`kinds`] | the kinds of objects and the parts: `lb/<name>`, the shared health checks, instance groups and backend services |
//! | [`settings`] | the settings from the config, the flags and the site |
//! | [`directory`] | the objects in the shared listings, and which of them refer to others |
//! | [`members`] | nodes as members of target pools and instance groups |
//! | [`desired`] | the desired state of a load balancer, and the plan from the observed state to it |
//! | [`shared`] | the same of the parts that Services share |
//! | [`firewalls`] | firewall rules that the credentials may not change |
//! | [`model`] | the `PartModel` of GCE |
//! | [`json`] | from the objects of the API to the objects of parts, and back |
//! | [`calls`] | the calls of the plan: reads and changes of parts |
//! | [`silent`] | zones that do not answer |

pub(crate) mod annotations;
mod calls;
pub(crate) mod desired;
pub(crate) mod directory;
pub(crate) mod fields;
pub(crate) mod firewalls;
mod json;
pub(crate) mod kinds;
#[cfg(test)]
mod laws;
pub(crate) mod members;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod settings;
pub(crate) mod shared;
mod silent;
pub(crate) mod spec;

pub(crate) use self::{calls::BalancerCalls, model::Model};
