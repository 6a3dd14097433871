//! Load balancers: what they are read with and written with, and the pure rules by which Services become load balancers.
//!
//! | Room | Holds |
//! |---|---|
//! | [`reads`] | shared listings of the project's load balancers and what belongs to them |
//! | [`writes`] | one function for each change of Octavia and Neutron |
//! | [`records`], [`bodies`] | what is received and what is sent |
//! | [`features`] | what a version of Octavia and a provider can |
//! | [`annotations`] | what Services ask for beyond their fields |
//! | [`names`] | names, tags and descriptions, and the cluster's name in them |
//! | [`protocols`] | protocols of listeners and pools, types of health monitors |
//! | [`selector`], [`source_ranges`], [`subnets`], [`secrets`], [`ingress`] | one rule each |

pub(crate) mod annotations;
pub(crate) mod bodies;
pub(crate) mod features;
pub(crate) mod ingress;
pub(crate) mod names;
pub(crate) mod protocols;
pub(crate) mod reads;
pub(crate) mod records;
pub(crate) mod secrets;
pub(crate) mod selector;
pub(crate) mod source_ranges;
pub(crate) mod subnets;
pub(crate) mod writes;
