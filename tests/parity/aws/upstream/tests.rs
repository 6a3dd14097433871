//! The rules, checked against the objects that upstream itself created.

use super::*;
use crate::rules::RecordedRules;

const RULES: RecordedRules = RecordedRules {
    cloud: "aws",
    nodes: [
        ("node-1", ("pool", "a")),
        ("node-2", ("pool", "a")),
        ("node-3", ("pool", "b")),
    ],
    complete: |name, service| {
        service["spec"]["type"] = json!("LoadBalancer");
        for port in service["spec"]["ports"].as_array_mut().unwrap() {
            port["nodePort"] = json!(format!("<nodeport:{name}:{}>", port["port"]));
        }
    },
    variables: &[
        ("${CERT1}", "<cert-1>"),
        ("${CERT2}", "<cert-2>"),
        ("${SG_EXTRA}", "<sg:extra>"),
    ],
    writes,
};

#[test]
fn upstream_does_not_change_its_own_objects() {
    // The emulator of the recordings did not keep the protocol to instances. `nlb-bad-values` has the state after an error.
    RULES.assert_unchanged(&["classic-https", "nlb-bad-values"], 25);
}

/// See [`RecordedRules::assert_writes`].
const CHANGES: &str = r#"
nlb-tcp | /cloud/v2 | [] | create load balancer
nlb-tcp | /cloud/v2/0/listeners/0/name | "TCP:1" | create listener TCP:443
nlb-tcp | /cloud/v2/0/listeners/0/name | "TCP:1" | delete listener TCP:1
nlb-tcp | /cloud/v2/0/listeners/0/policy | "x" | modify listener TCP:443
nlb-tls | /cloud/v2/0/listeners/0/certificates | ["<cert-2>"] | modify listener TLS:443
nlb-tcp | /cloud/target_groups/0/targets | [] | change the targets of TCP:443
nlb-tcp | /cloud/target_groups/0/protocol | "UDP" | replace the target group of TCP:443
nlb-tcp | /cloud/target_groups/0/health/HealthCheckIntervalSeconds | 7 | replace the target group of TCP:443
nlb-tcp | /cloud/target_groups/0/health/HealthyThresholdCount | 7 | change HealthyThresholdCount of TCP:443
nlb-attributes | /cloud/v2/0/attributes/access_logs.s3.bucket | "x" | change access_logs.s3.bucket
nlb-tcp | /cloud/security_groups/1/rules | [] | authorize tcp
nlb-source-ranges | /cloud/security_groups/1/rules/2 | "x (y)" | authorize tcp
nlb-tcp | /cloud/security_groups/1/rules/0 | "tcp 7-7 from 0.0.0.0/0 (kubernetes.io/rule/nlb/client=<lbname:nlb-tcp>)" | revoke tcp 7-7
nlb-tcp | /cloud/security_groups/1/rules/0 | "x (y)" | authorize icmp
nlb-managed-group | /cloud/v2/0/groups | ["<sg:extra>"] | set security groups
nlb-managed-group | /cloud/security_groups/0/rules | [] | authorize tcp 80-80
nlb-managed-group | /cloud/security_groups/0/tags | [] | tag group
nlb-tcp | /services/nlb-tcp/status | {} | change the status
nlb-tcp | /services/nlb-tcp/finalizers | [] | add the finalizer
classic-tcp | /cloud/classic | [] | create load balancer
classic-https | /cloud/classic/0/listeners/0/SSLCertificateId | "x" | create listener HTTPS:443
classic-tcp | /cloud/classic/0/subnets | [] | change the subnets
classic-tcp | /cloud/classic/0/groups | [] | change the groups
classic-tcp | /cloud/classic/0/instances | [] | change the instances
classic-tcp | /cloud/classic/0/health/Interval | 7 | configure the health check
classic-internal-proxy | /cloud/classic/0/backends | [] | change the policies
classic-https | /cloud/classic/0/attributes/ConnectionDraining/Timeout | 7 | change the draining timeout
classic-tcp | /cloud/security_groups/2/rules | [] | authorize the load balancer's group
"#;

#[test]
fn every_difference_that_upstream_compares_is_a_write() {
    RULES.assert_writes(CHANGES);
}
