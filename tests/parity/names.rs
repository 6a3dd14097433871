//! Names of objects in the cloud that several upstream programs give.

use ccm_core::load_balancer::{ServiceId, default_name};

/// The name of a Service's load balancer, or the start of it, which follows from the Service's UID.
pub(crate) fn balancer_name(uid: &str) -> String {
    default_name(&ServiceId::new("", "", uid))
}
