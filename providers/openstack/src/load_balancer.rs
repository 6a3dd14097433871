//! Load balancers: what they are read with and written with, and the pure rules by which Services become load balancers.
//!
//! | Room | Holds |
//! |---|---|
//! | [`key`] | the parts: a load balancer, a Service's security group, the ports of all nodes |
//! | [`wanted`], [`desired`] | from a Service's fields, annotations, class and the config to how a part should be |
//! | [`observe`] | how a part is, as values |
//! | [`plan`], [`steps`], [`fold`] | the way from one to the other, each change by itself, and what it leads to |
//! | [`directory`] | which load balancer is whose |
//! | [`notes`] | what people are told beside it |
//! | [`model`] | the `PartModel` of all that |
//! | [`apply`], [`discover`], [`send`] | the calls |
//! | [`reconcile`] | the Go cloud controller's metrics of this work |
//! | [`pace`] | when to look whether Octavia is done |
//! | [`reads`] | shared listings of the project's load balancers and what belongs to them |
//! | [`writes`] | one function for each change of Octavia and Neutron |
//! | [`records`], [`bodies`], [`id`] | what is received and what is sent |
//! | [`features`] | what a version of Octavia and a provider can |
//! | [`annotations`] | what Services ask for beyond their fields |
//! | [`names`] | names, tags and descriptions, and the cluster's name in them |
//! | [`protocols`] | protocols of listeners and pools, types of health monitors |
//! | [`selector`], [`source_ranges`], [`subnets`], [`secrets`], [`ingress`] | one rule each |

pub(crate) mod annotations;
pub(crate) mod apply;
pub(crate) mod bodies;
pub(crate) mod desired;
pub(crate) mod directory;
pub(crate) mod discover;
pub(crate) mod features;
pub(crate) mod fold;
pub(crate) mod holders;
pub(crate) mod id;
pub(crate) mod ingress;
pub(crate) mod key;
#[cfg(test)]
mod laws;
pub(crate) mod member;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod notes;
pub(crate) mod observe;
mod orphans;
mod pace;
pub(crate) mod plan;
pub(crate) mod protocols;
pub(crate) mod reads;
pub(crate) mod reconcile;
pub(crate) mod records;
pub(crate) mod secrets;
pub(crate) mod selector;
mod send;
pub(crate) mod source_ranges;
pub(crate) mod steps;
pub(crate) mod subnets;
pub(crate) mod tags;
pub(crate) mod wanted;
pub(crate) mod writes;
