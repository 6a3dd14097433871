//! `[Quota]`.

use ccm_core::config::quota_section;

use super::ops::{COMPUTE, IDENTITY, LOAD_BALANCER, NETWORK};

quota_section! {
    /// The limits on calls of the cloud. OpenStack publishes no limits, so the defaults are low. Raise them if a large
    /// cluster waits for its cloud (see `ccm_cloud_wait_seconds`). Requests of a service to slow down are always
    /// respected. Upstream does not know this section.
    pub(crate) struct Quotas {
        "compute" => pub(crate) compute: COMPUTE, "Nova";
        "network" => pub(crate) network: NETWORK, "Neutron";
        "load-balancer" => pub(crate) load_balancer: LOAD_BALANCER, "Octavia";
        "identity" => pub(crate) identity: IDENTITY, "Keystone";
    }
}
