//! Load balancers: reads, writes, and the pure rules that turn Services into load balancers.
//! | Module | Contents |
//! |---|---|
//! | [`part`] | the parts: a load balancer, a Service's security group, the ports of all nodes |
//! | [`spec`], [`desired`] | from a Service's fields, annotations, class and the config to the desired state of a part |
//! | [`observe`] | the observed state of a part |
//! | [`kinds`], [`groups`], [`fields`] | the kinds of objects: attributes and their names, sets, policies of changes |
//! | [`plan`], [`steps`] | the changes from observed to desired, and their effects |
//! | [`directory`], [`orphans`] | the load balancers of each Service, and those without a Service |
//! | [`former`] | load balancers of Services that got the class of another controller |
//! | [`warnings`] | warnings about a Service |
//! | [`model`] | the `PartModel` that combines these |
//! | [`apply`], [`discover`], [`send`] | the calls |
//! | [`reconcile`] | upstream's metrics |
//! | [`reads`] | shared listings of the project's load balancers and the objects of theirs |
//! | [`writes`] | one function for each change of Octavia and Neutron |
//! | [`responses`], [`member`], [`member_id`] | responses, and members as they are stored and sent |
//! | [`features`] | the features of a version of Octavia and of a provider |
//! | [`annotations`] | the annotations of Services |
//! | [`names`], [`tags`] | names, tags and descriptions, and the cluster's name in them |
//! | [`protocols`] | protocols of listeners and pools, types of health monitors |
//! | [`settings`] | the sections of the config |
//! | [`subnets`], [`secrets`] | patterns for subnets; references to certificates |

pub(crate) mod annotations;
pub(crate) mod apply;
pub(crate) mod desired;
pub(crate) mod directory;
pub(crate) mod discover;
pub(crate) mod features;
pub(crate) mod fields;
mod former;
pub(crate) mod groups;
pub(crate) mod kinds;
#[cfg(test)]
mod laws;
pub(crate) mod member;
pub(crate) mod member_id;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod observe;
mod orphans;
pub(crate) mod part;
pub(crate) mod plan;
pub(crate) mod protocols;
pub(crate) mod reads;
mod reconcile;
pub(crate) mod responses;
pub(crate) mod secrets;
mod send;
pub(crate) mod settings;
pub(crate) mod spec;
pub(crate) mod steps;
pub(crate) mod subnets;
pub(crate) mod tags;
pub(crate) mod warnings;
pub(crate) mod writes;
