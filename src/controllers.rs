//! The controllers. Each is a loop over shared stores, split into pure decisions and thin effects.

pub(crate) mod lifecycle;
pub(crate) mod node;
pub(crate) mod node_object;
pub(crate) mod route;
pub(crate) mod service;
