//! Each rule on its own.

use serde_json::json;

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

#[test]
fn every_difference_that_upstream_compares_is_a_write() {
    let lb = "/cloud/loadbalancers/0";
    for (path, value, expected) in [
        ("/tags", json!([]), "tag the load balancer"),
        (
            "/name",
            json!("kube_service_other_default_x"),
            "rename everything",
        ),
        (
            "/listeners/0/tags",
            json!(["other"]),
            "change tags of listener TCP/80",
        ),
        (
            "/listeners/1/timeout_client_data",
            json!(1),
            "change timeout_client_data of listener TCP/443",
        ),
        (
            "/listeners/1/connection_limit",
            json!(1),
            "change connection_limit of listener TCP/443",
        ),
        (
            "/listeners/1/allowed_cidrs",
            json!(["10.0.0.0/8"]),
            "change allowed_cidrs of listener TCP/443",
        ),
        (
            "/listeners/2/protocol_port",
            json!(81),
            "create listener TCP/8080",
        ),
        (
            "/pools/0/protocol",
            json!("PROXY"),
            "recreate the pool of TCP/443",
        ),
        (
            "/pools/0/lb_algorithm",
            json!("SOURCE_IP"),
            "change the method of TCP/443",
        ),
        (
            "/pools/0/members/0/name",
            json!("x"),
            "set the members of TCP/443",
        ),
        (
            "/pools/0/members/0/monitor_port",
            json!(7),
            "set the members of TCP/443",
        ),
        (
            "/pools/0/health_monitor/name",
            json!("x"),
            "rename the monitor of TCP/443",
        ),
        (
            "/pools/0/health_monitor/delay",
            json!(7),
            "change delay of the monitor of TCP/443",
        ),
        (
            "/pools/0/health_monitor",
            Value::Null,
            "create the monitor of TCP/443",
        ),
    ] {
        let mut got = seen();
        *got.pointer_mut(&format!("{lb}{path}")).unwrap() = value;
        let found = writes(&got, &hosts(), CONFIG);
        let expected = format!("external-tcp: {expected}");
        assert!(found.contains(&expected), "{path}: {found:?} has no {expected:?}");
    }
    for (path, value, expected) in [
        ("/cloud/floatingips", json!([]), "add a floating IP"),
        (
            "/cloud/security_groups/0/rules/0/protocol",
            json!("udp"),
            "delete rule",
        ),
        (
            "/cloud/security_groups/0/name",
            json!("x"),
            "create the security group",
        ),
        (
            "/cloud/node_ports/node-1/security_groups",
            json!([]),
            "add the group to the port of node-1",
        ),
        ("/services/external-tcp/status", json!({}), "change the status"),
        (
            "/services/external-tcp/finalizers",
            json!([]),
            "add the finalizer",
        ),
        (
            "/specs/external-tcp/metadata/annotations",
            json!({}),
            "set annotation load-balancer-id",
        ),
    ] {
        let mut got = seen();
        *got.pointer_mut(path).unwrap() = value;
        let found = writes(&got, &hosts(), CONFIG);
        assert!(
            found.iter().any(|write| write.contains(expected)),
            "{path}: {found:?}"
        );
    }
    assert!(!writes(&seen(), &hosts()[..2], CONFIG).is_empty());
}
