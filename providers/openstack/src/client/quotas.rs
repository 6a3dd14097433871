//! `[Quota]`.

use ccm_core::config::quota_section;

use super::ops::{COMPUTE, IDENTITY, LOAD_BALANCER, NETWORK};

quota_section! {
    /// How much is asked of the cloud at most. OpenStack publishes no limits, so that these are careful; raise them where a
    /// large cluster waits for its cloud (`ccm_cloud_wait_seconds` tells). A service that asks to slow down is obeyed in any
    /// case. The Go cloud controller does not know this section.
    pub(crate) struct Quotas {
        "compute" => pub(crate) compute: COMPUTE, "Nova";
        "network" => pub(crate) network: NETWORK, "Neutron";
        "load-balancer" => pub(crate) load_balancer: LOAD_BALANCER, "Octavia";
        "identity" => pub(crate) identity: IDENTITY, "Keystone";
    }
}
