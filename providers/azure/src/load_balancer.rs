//! Decisions about load balancers. No calls are made yet: the provider has no load balancers.
//!
//! | Module | Contents |
//! |---|---|
//! | [`annotations`] | the annotations of Services |
//! | [`names`] | names of load balancers, frontends, rules, addresses and pools, as the Go cloud-controller-manager builds them |
//! | [`rules`] | rules and probes of a Service |
//! | [`sources`] | whom a Service admits, and the security rules for that |

pub(crate) mod annotations;
pub(crate) mod names;
pub(crate) mod rules;
pub(crate) mod sources;
