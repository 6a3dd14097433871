//! Each rule on its own.

use super::*;
use crate::cases::recorded;

/// The recording of the first case, and its Service.
fn seen() -> Value {
    let mut got = recorded("openstack", "external-tcp").unwrap()["phases"][0].clone();
    let ports: Vec<Value> = [80, 443, 8080]
        .iter()
        .map(|port| json!({"port": port, "protocol": "TCP", "nodePort": format!("<nodeport:external-tcp:{port}>")}))
        .collect();
    let annotations = got["services"]["external-tcp"]["annotations"].clone();
    got["specs"] = json!({"external-tcp": {
        "metadata": {"annotations": annotations},
        "spec": {"type": "LoadBalancer", "ports": ports},
    }});
    got
}

fn hosts() -> Vec<Host> {
    let host = |name: &str| Host {
        name: name.to_owned(),
        labels: std::collections::BTreeMap::new(),
        excluded: false,
    };
    ["node-1", "node-2", "node-3"].map(host).to_vec()
}

const CONFIG: UpstreamConfig = UpstreamConfig {
    monitors: true,
    groups: true,
};

#[test]
fn upstream_does_not_change_its_own_objects() {
    assert_eq!(writes(&seen(), &hosts(), CONFIG), Vec::<String>::new());
}

/// A path, the changed value, and a write of upstream that follows.
const CHANGES: &str = r#"
/cloud/loadbalancers/0/tags | [] | tag the load balancer
/cloud/loadbalancers/0/name | "kube_service_other_default_x" | rename everything
/cloud/loadbalancers/0/listeners/0/tags | ["other"] | change tags of listener TCP/80
/cloud/loadbalancers/0/listeners/1/timeout_client_data | 1 | change timeout_client_data of listener TCP/443
/cloud/loadbalancers/0/listeners/1/connection_limit | 1 | change connection_limit of listener TCP/443
/cloud/loadbalancers/0/listeners/1/allowed_cidrs | ["10.0.0.0/8"] | change allowed_cidrs of listener TCP/443
/cloud/loadbalancers/0/listeners/2/protocol_port | 81 | create listener TCP/8080
/cloud/loadbalancers/0/pools/0/protocol | "PROXY" | recreate the pool of TCP/443
/cloud/loadbalancers/0/pools/0/lb_algorithm | "SOURCE_IP" | change the method of TCP/443
/cloud/loadbalancers/0/pools/0/members/0/name | "x" | set the members of TCP/443
/cloud/loadbalancers/0/pools/0/members/0/monitor_port | 7 | set the members of TCP/443
/cloud/loadbalancers/0/pools/0/health_monitor/name | "x" | rename the monitor of TCP/443
/cloud/loadbalancers/0/pools/0/health_monitor/delay | 7 | change delay of the monitor of TCP/443
/cloud/loadbalancers/0/pools/0/health_monitor | null | create the monitor of TCP/443
/cloud/floatingips | [] | add a floating IP
/cloud/security_groups/0/rules/0/protocol | "udp" | delete rule
/cloud/security_groups/0/name | "x" | create the security group
/cloud/node_ports/node-1/security_groups | [] | add the group to the port of node-1
/services/external-tcp/status | {} | change the status
/services/external-tcp/finalizers | [] | add the finalizer
/specs/external-tcp/metadata/annotations | {} | set annotation load-balancer-id
"#;

#[test]
fn every_difference_that_upstream_compares_is_a_write() {
    for row in CHANGES.trim().lines() {
        let [path, value, expected] = row.splitn(3, " | ").collect::<Vec<_>>().try_into().unwrap();
        let mut got = seen();
        *got.pointer_mut(path).unwrap() = serde_json::from_str(value).unwrap();
        let found = writes(&got, &hosts(), CONFIG);
        let is_written = found.iter().any(|write| write.contains(expected));
        assert!(is_written, "{row}: {found:?}");
    }
    assert!(!writes(&seen(), &hosts()[..2], CONFIG).is_empty());
}

#[test]
fn session_persistence_of_a_pool_that_exists_is_left_unchanged() {
    let mut got = seen();
    assert_eq!(left_unchanged(&got), [""; 0]);
    got["cloud"]["loadbalancers"][0]["pools"][0]["session_persistence"] = json!({"type": "SOURCE_IP"});
    assert_eq!(left_unchanged(&got), ["external-tcp: session persistence \"SOURCE_IP\" of TCP:443"]);
    assert_eq!(writes(&got, &hosts(), CONFIG), [""; 0]);
    got["specs"]["external-tcp"]["spec"]["sessionAffinity"] = json!("ClientIP");
    assert_eq!(left_unchanged(&got).len(), 2, "{:?}", left_unchanged(&got));
}
