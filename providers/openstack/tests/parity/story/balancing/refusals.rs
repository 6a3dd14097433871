//! Requests that Octavia refuses.

use super::*;

/// Invalid requests.
pub(super) fn refusals() -> Vec<Step> {
    let mut steps = Vec::new();
    let listener = json!({"name": "bad", "protocol": "TCP", "protocol_port": 90, "loadbalancer_id": "<lb>"});
    for changes in [
        json!({"protocol_port": 80}),
        json!({"protocol": "HTTPS", "protocol_port": 80}),
        json!({"loadbalancer_id": ABSENT}),
        json!({"loadbalancer_id": "-"}),
        json!({"timeout_client_data": -1}),
        json!({"timeout_client_data": 2_073_600_001_u64}),
        json!({"connection_limit": -2}),
        json!({"default_pool_id": ABSENT}),
        json!({"default_pool_id": "<p1>"}),
        json!({"insert_headers": {"X-Forwarded-For": "true"}}),
        json!({"protocol": "HTTP", "insert_headers": {"X-Nothing": "true"}}),
        json!({"protocol": "HTTP", "insert_headers": {"X-SSL-Client-CN": "true"}}),
        json!({"protocol": "UDP", "insert_headers": {"X-Forwarded-For": "true"}}),
        json!({"protocol": "TERMINATED_HTTPS"}),
        json!({"default_tls_container_ref": "http://x/v1/containers/x"}),
        json!({"allowed_cidrs": ["fd00::/64"]}),
        json!({"allowed_cidrs": "10.0.0.0/8"}),
        json!({"nothing": 1}),
    ] {
        steps.push(post("/listeners", &json!({"listener": with(&listener, &changes)})));
    }
    for body in [
        json!({"protocol": "TCP"}),
        json!({"allowed_cidrs": ["fd00::/64"]}),
        json!({"insert_headers": {"X-Forwarded-For": "true"}}),
        json!({"default_pool_id": "<p1>"}),
        json!({"timeout_client_data": "x"}),
    ] {
        steps.push(put("/listeners/<l0>", &json!({"listener": body})));
    }
    steps.push(put(&format!("/listeners/{ABSENT}"), &json!({"listener": {"name": "x"}})));
    let pool =
        json!({"name": "bad", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "loadbalancer_id": "<lb>"});
    for changes in [
        json!({"loadbalancer_id": "-"}),
        json!({"loadbalancer_id": ABSENT}),
        json!({"loadbalancer_id": "-", "listener_id": "<l0>"}),
        json!({"loadbalancer_id": "-", "listener_id": "<l1>"}),
        json!({"protocol": "X"}),
        json!({"lb_algorithm": "X"}),
        json!({"lb_algorithm": "-"}),
        json!({"lb_algorithm": "SOURCE_IP_PORT"}),
        json!({"session_persistence": {}}),
    ] {
        steps.push(post("/pools", &json!({"pool": with(&pool, &changes)})));
    }
    for body in [
        json!({"lb_algorithm": "X"}),
        json!({"protocol": "UDP"}),
        json!({"lb_algorithm": "SOURCE_IP_PORT"}),
    ] {
        steps.push(put("/pools/<p0>", &json!({"pool": body})));
    }
    let member = json!({"address": "10.8.0.210", "protocol_port": 30080});
    for changes in [
        json!({"address": "x"}),
        json!({"address": "-"}),
        json!({"protocol_port": 0}),
        json!({"weight": 257}),
        json!({"weight": -1}),
        json!({"subnet_id": ABSENT}),
        json!({"address": "169.254.169.254"}),
        json!({"address": "10.8.0.204"}),
        json!({"monitor_port": 0}),
        json!({"nothing": 1}),
    ] {
        let body = with(&member, &changes);
        steps.push(post("/pools/<p0>/members", &json!({"member": body})));
        if changes != json!({"address": "10.8.0.204"}) {
            steps.push(put("/pools/<p0>/members", &json!({"members": [body]})));
        }
    }
    steps.push(put("/pools/<p0>/members", &json!({"members": [member, member]})));
    let known = json!({"address": "10.8.0.204", "protocol_port": 30080});
    steps.push(put("/pools/<p0>/members", &json!({"members": [known, known]})));
    steps.push(put("/pools/<p0>/members?nothing=1", &json!({"members": []})));
    steps.push(post(&format!("/pools/{ABSENT}/members"), &json!({"member": member})));
    steps.push(put(&format!("/pools/{ABSENT}/members"), &json!({"members": []})));
    steps.push(delete(&format!("/pools/<p0>/members/{ABSENT}")));
    let monitor = json!({"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 1, "pool_id": "<p2>"});
    for changes in [
        json!({"pool_id": ABSENT}),
        json!({"pool_id": "<p0>"}),
        json!({"pool_id": "<p1>", "type": "PING"}),
        json!({"pool_id": "<p1>", "type": "UDP-CONNECT", "delay": 2}),
        json!({"type": "UDP-CONNECT"}),
        json!({"type": "X"}),
        json!({"max_retries": 0}),
        json!({"max_retries": 11}),
        json!({"max_retries_down": 11}),
        json!({"delay": -1}),
        json!({"delay": null}),
        json!({"url_path": "/x"}),
        json!({"type": "HTTP", "url_path": "x"}),
        json!({"type": "HTTP", "expected_codes": "20"}),
        json!({"type": "HTTP", "http_method": "X"}),
    ] {
        steps.push(post("/healthmonitors", &json!({"healthmonitor": with(&monitor, &changes)})));
    }
    for body in [
        json!({"max_retries": 0}),
        json!({"type": "TCP"}),
        json!({"delay": null}),
    ] {
        steps.push(put("/healthmonitors/<h0>", &json!({"healthmonitor": body})));
    }
    for body in [
        json!({"vip_address": "10.8.0.9"}),
        json!({"name": 5}),
        json!({"tags": null}),
    ] {
        let step = put("/loadbalancers/<lb>", &json!({"loadbalancer": body}));
        // The last of them is valid.
        steps.push(step.rest());
    }
    steps.push(put("/loadbalancers/<lb>/failover", &json!({})));
    steps.push(delete("/loadbalancers/<lb>"));
    steps
}
