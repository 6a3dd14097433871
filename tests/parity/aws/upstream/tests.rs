//! The rules, checked against the objects that upstream itself created.

use super::*;
use crate::cases::{Case, cases, recorded};

/// The desired state of a case in one of its phases: its Services with the patches so far, and the excluded nodes.
fn desired(case: &Case, phase: &str) -> (Value, Vec<Host>) {
    let mut services = case.services.clone();
    let mut hosts: Vec<_> = [("node-1", "a"), ("node-2", "a"), ("node-3", "b")]
        .into_iter()
        .map(|(name, pool)| Host {
            name: name.to_owned(),
            labels: [("pool".to_owned(), pool.to_owned())].into(),
            excluded: false,
        })
        .collect();
    for step in &case.steps {
        let reached = items(&recorded("aws", &case.name).unwrap()["phases"])
            .iter()
            .map(|one| text(&one["phase"]))
            .collect::<Vec<_>>();
        let place = |name: &str| reached.iter().position(|one| one == name).unwrap();
        if place(&text(&step["name"])) > place(phase) {
            break;
        }
        if step["patch"].is_object() {
            merge(&mut services[0], &step["patch"]);
        }
        if let Some(node) = step["node"].as_str() {
            let host = hosts.iter_mut().find(|host| host.name == node).unwrap();
            let labels = &step["patch_node"]["metadata"]["labels"];
            host.excluded = labels.as_object().unwrap().values().any(|label| label == "true");
        }
        if let Some(name) = step["delete"].as_str() {
            services.retain(|service| service["metadata"]["name"] != name);
        }
    }
    let specs = services.into_iter().map(|mut service| {
        let name = text(&service["metadata"]["name"]);
        service["spec"]["type"] = json!("LoadBalancer");
        for port in service["spec"]["ports"].as_array_mut().unwrap() {
            port["nodePort"] = json!(format!("<nodeport:{name}:{}>", port["port"]));
            if port["protocol"].is_null() {
                port["protocol"] = json!("TCP");
            }
        }
        service["spec"]["healthCheckNodePort"] = json!(format!("<hcnodeport:{name}>"));
        (name, names(&service))
    });
    (Value::Object(specs.collect()), hosts)
}

/// Replaces the variables of the cases by the names of the recordings.
fn names(value: &Value) -> Value {
    let mut text = value.to_string();
    for (variable, name) in [
        ("${CERT1}", "<cert-1>"),
        ("${CERT2}", "<cert-2>"),
        ("${SG_EXTRA}", "<sg:extra>"),
    ] {
        text = text.replace(variable, name);
    }
    serde_json::from_str(&text).unwrap()
}

fn merge(value: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *value = patch.clone();
        return;
    };
    for (key, patch) in patch {
        merge(&mut value[key], patch);
    }
}

fn seen(case: &Case, phase: &Value) -> (Value, Vec<Host>) {
    let (specs, hosts) = desired(case, &text(&phase["phase"]));
    let mut got = phase.clone();
    got["specs"] = specs;
    (got, hosts)
}

#[test]
fn upstream_does_not_change_its_own_objects() {
    // The emulator of the recordings did not keep the protocol to instances. `nlb-bad-values` has the state after an error.
    const LEFT_OUT: [&str; 2] = ["classic-https", "nlb-bad-values"];
    let (mut checked, mut problems) = (0, Vec::new());
    for case in cases("aws").unwrap() {
        for phase in items(&recorded("aws", &case.name).unwrap()["phases"]) {
            if phase["phase"] == "delete" || LEFT_OUT.contains(&case.name.as_str()) {
                continue;
            }
            let (got, hosts) = seen(&case, phase);
            let found = writes(&got, &hosts, &case.config);
            problems.extend(found.iter().map(|write| format!("{}: {write}", phase["phase"])));
            checked += 1;
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(checked > 25, "{checked} phases");
}

/// Changes one value of a case's first phase, and returns the writes of upstream after it.
fn changed(case: &str, path: &str, value: Value) -> Vec<String> {
    let case = cases("aws").unwrap().into_iter().find(|one| one.name == case).unwrap();
    let phase = recorded("aws", &case.name).unwrap()["phases"][0].clone();
    let (mut got, hosts) = seen(&case, &phase);
    *got.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
    writes(&got, &hosts, &case.config)
}

/// A case, a path in its first phase, the changed value, and a write of upstream that follows.
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
    for row in CHANGES.trim().lines() {
        let [case, path, value, expected] = row.splitn(4, " | ").collect::<Vec<_>>().try_into().unwrap();
        let found = changed(case, path, serde_json::from_str(value).unwrap());
        let is_written = found.iter().any(|write| write.contains(expected));
        assert!(is_written, "{row}: {found:?}");
    }
}
