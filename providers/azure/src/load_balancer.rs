//! Load balancers: reads, writes, and the pure rules that map Services to load balancers.
//!
//! | Module | Contents |
//! |---|---|
//! | [`annotations`] | the annotations of Services |
//! | [`spec`] | what a Service asks for, and why it is refused |
//! | [`names`] | names of load balancers, frontends, rules, addresses and pools, as the Go cloud-controller-manager builds them |
//! | [`namespaces`] | the labels of namespaces |
//! | [`rules`] | rules and probes of a Service |
//! | [`sources`] | which clients a Service admits |
//! | [`settings`] | the settings of the config, and the IDs of resources |
//! | [`document`] | changes of documents, and how documents are compared |
//! | [`desired`] | the desired load balancers and public IP addresses |
//! | [`security`] | the rules of the network security group |
//! | [`members`] | the machines in backend pools |
//! | [`placement`] | several load balancers of each kind: which of them serves a Service, and which has a node |
//! | [`private_link`] | private link services |
//! | [`sharing`] | ports of addresses that Services share |
//! | [`directory`] | load balancers and addresses in the listings, and the Services they belong to |
//! | [`model`] | the `PartModel` of Azure |
//! | [`store`] | the documents that were read or written last |
//! | [`calls`] | the calls of the plan |

pub(crate) mod annotations;
mod calls;
mod desired;
mod directory;
mod document;
#[cfg(test)]
mod laws;
mod members;
mod model;
pub(crate) mod names;
mod namespaces;
mod placement;
mod private_link;
pub(crate) mod rules;
mod security;
mod security_limits;
mod settings;
mod sharing;
pub(crate) mod sources;
pub(crate) mod spec;
mod store;

pub(crate) use self::{
    calls::BalancerCalls, model::Model, namespaces::Namespaces, settings::BalancerSettings,
};
