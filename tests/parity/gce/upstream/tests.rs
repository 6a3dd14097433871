//! The rules, checked against the objects that upstream itself created.

use super::*;
use crate::rules::RecordedRules;

const RULES: RecordedRules = RecordedRules {
    cloud: "gce",
    nodes: [
        ("node-1", (ZONE, "us-central1-a")),
        ("node-2", (ZONE, "us-central1-b")),
        ("node-3", (ZONE, "us-central1-c")),
    ],
    complete: |_, _| {},
    variables: &[
        ("${STATIC_PREMIUM_2}", "<static-premium-2>"),
        ("${STATIC_PREMIUM}", "<static-premium>"),
        ("${STATIC_STANDARD}", "<static-standard>"),
        ("${STATIC_INTERNAL}", "<static-internal>"),
    ],
    writes,
};

#[test]
fn upstream_does_not_change_its_own_objects() {
    RULES.assert_unchanged(&[], 50);
}

/// See [`RecordedRules::assert_writes`].
const CHANGES: &str = r#"
external-tcp | /cloud/forwardingRules | [] | create the forwarding rule
external-tcp | /cloud/forwardingRules/0/portRange | "80-81" | replace the forwarding rule, ports
external-tcp | /cloud/forwardingRules/0/IPProtocol | "UDP" | replace the forwarding rule, protocol
external-tcp | /cloud/forwardingRules/0/loadBalancingScheme | "INTERNAL" | replace the forwarding rule, scheme
external-network-tier | /cloud/forwardingRules/0/networkTier | "PREMIUM" | replace the forwarding rule, tier
external-static-ip | /cloud/forwardingRules/0/IPAddress | "<ip:x>" | replace the forwarding rule, address
external-tcp | /cloud/targetPools | [] | create the target pool
external-tcp | /cloud/targetPools/0/instances | [] | update the members of the target pool
external-session-affinity | /cloud/targetPools/0/sessionAffinity | "NONE" | replace the target pool, affinity
external-tcp | /cloud/httpHealthChecks | [] | create the health check
external-tcp | /cloud/httpHealthChecks/0/port | 80 | update port of the health check
external-tcp | /cloud/httpHealthChecks/0/checkIntervalSec | 5 | update checkIntervalSec
external-etp-local | /cloud/httpHealthChecks/0/port | 10256 | update port of the health check
external-tcp | /cloud/firewalls | [] | create the firewall k8s-fw-
external-tcp | /cloud/firewalls | [] | create the firewall k8s-<cid>-node-http-hc
external-source-ranges | /cloud/firewalls/1/sourceRanges | ["0.0.0.0/0"] | update sources
external-tcp | /cloud/firewalls/1/allowed/0/ports | ["80"] | update ports
external-tcp | /cloud/firewalls/1/destinationRanges | [] | update destinations
external-tcp | /cloud/firewalls/1/description | "" | update description
external-tcp | /cloud/firewalls/1/allowed/0/IPProtocol | "esp" | update protocol
internal-tcp | /cloud/firewalls/1/allowed/0/IPProtocol | "udp" | update protocol
external-tcp | /cloud/firewalls/1/priority | 999 | update priority
internal-tcp | /cloud/instanceGroups | [] | create the instance group
internal-tcp | /cloud/instanceGroups/0/instances | [] | update the members of zones/us-central1-a
internal-tcp | /cloud/healthChecks/0/httpHealthCheck/port | 80 | update port of the health check
internal-tcp | /cloud/backendServices | [] | create the backend service
internal-tcp | /cloud/backendServices/0/backends | [] | update groups of the backend service
internal-tcp | /cloud/backendServices/0/sessionAffinity | "CLIENT_IP" | update affinity
internal-tcp | /cloud/backendServices/0/healthChecks | [] | update health checks
internal-tcp | /cloud/forwardingRules/0/ports | ["80"] | replace the forwarding rule, ports
internal-tcp | /cloud/forwardingRules/0/subnetwork | "x" | replace the forwarding rule, subnetwork
internal-tcp | /cloud/forwardingRules/0/backendService | "x" | replace the forwarding rule, backend service
internal-global-access | /cloud/forwardingRules/0/allowGlobalAccess | false | replace the forwarding rule, global access
internal-tcp | /cloud/firewalls/0/targetTags | ["other"] | update tags
"#;

#[test]
fn every_difference_that_upstream_compares_is_a_write() {
    RULES.assert_writes(CHANGES);
}
