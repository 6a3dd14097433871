//! The annotations of Services.
//!
//! Names and meanings are those of the Go cloud-controller-manager.

use ccm_core::load_balancer::annotations;

annotations! {
    prefixes: ["networking.gke.io/load-balancer-", "networking.gke.io/internal-load-balancer-", "cloud.google.com/load-balancer-"];
    reference: "docs/reference/gce.md";
    /// The load balancer has no public address, and is an internal passthrough load balancer. Any other value is ignored.
    TYPE = "networking.gke.io/load-balancer-type", "Internal or internal; default external";
    /// Deprecated form of `networking.gke.io/load-balancer-type`, which takes precedence.
    OLD_TYPE = "cloud.google.com/load-balancer-type", "Internal or internal; default external";
    /// The network tier of an external load balancer and its address. While the annotation is missing, an existing load balancer keeps
    /// its tier. Another tier means another address.
    NETWORK_TIER = "cloud.google.com/network-tier", "Premium or Standard; default Premium";
    /// Leaves the Service to the GKE ingress controller, whose external load balancers consist of backend services.
    BACKEND_SERVICES = "cloud.google.com/l4-rbs", "enabled";
    /// Clients in all regions reach an internal load balancer.
    GLOBAL_ACCESS = "networking.gke.io/internal-load-balancer-allow-global-access", "true; default false";
    /// The subnetwork from which an internal load balancer gets its address. Another subnetwork means another address.
    SUBNET = "networking.gke.io/internal-load-balancer-subnet", "name; default `subnetwork-name`";
    /// Internal load balancers with the same protocol and session affinity share one backend service. Not with
    /// `externalTrafficPolicy: Local`.
    SHARE_BACKEND = "alpha.cloud.google.com/load-balancer-backend-share", "true; default false";
    /// Deprecated form of `alpha.cloud.google.com/load-balancer-backend-share`, which takes precedence.
    OLD_SHARE_BACKEND = "cloud.google.com/load-balancer-backend-share", "true; default false";
    /// Networks of clients, if `spec.loadBalancerSourceRanges` is empty.
    SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges", "list of CIDRs; default 0.0.0.0/0";
    /// Written by this program with `--enable-l4-lb-annotations`: the name of the target pool of an external load balancer.
    TARGET_POOL = "networking.gke.io/target-pool", "name";
    /// Written by this program with `--enable-l4-lb-annotations`: the name of the backend service of an internal load balancer.
    BACKEND_SERVICE = "networking.gke.io/backend-service", "name";
}
