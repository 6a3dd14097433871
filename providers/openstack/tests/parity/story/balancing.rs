//! The life of a load balancer: created with everything below it, changed in every part, refused invalid changes,
//! deleted.

mod refusals;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Step, call, send, with};

const ABSENT: &str = "5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11";

fn get(path: &str) -> Step {
    call("load-balancer", Method::GET, &format!("/v2.0/lbaas{path}"))
}

fn delete(path: &str) -> Step {
    call("load-balancer", Method::DELETE, &format!("/v2.0/lbaas{path}"))
}

fn post(path: &str, body: &Value) -> Step {
    send("load-balancer", Method::POST, &format!("/v2.0/lbaas{path}"), body)
}

fn put(path: &str, body: &Value) -> Step {
    send("load-balancer", Method::PUT, &format!("/v2.0/lbaas{path}"), body)
}

pub(super) fn story() -> Vec<Step> {
    let mut steps = before();
    steps.extend(birth());
    steps.extend(reads());
    steps.extend(parts());
    steps.extend(refusals::refusals());
    steps.extend(changes());
    steps.extend(end());
    steps
}

/// Requests that need no load balancer.
fn before() -> Vec<Step> {
    let bare = |path: &str| Step::new(crate::table::Case::new("load-balancer", Method::GET, path));
    let mut steps = vec![
        bare(""),
        bare("/"),
        bare("/v2.0/lbaas/loadbalancers"),
        Step::new(
            crate::table::Case::new("load-balancer", Method::GET, "/v2.0/lbaas/loadbalancers")
                .token("nonsense"),
        ),
        Step::new(
            crate::table::Case::new("load-balancer", Method::GET, "/v2.0/lbaas/loadbalancers")
                .token("<unscoped-token>"),
        ),
        get("/loadbalancers"),
        get(&format!("/loadbalancers/{ABSENT}")),
        get("/loadbalancers/x"),
        get("/quotas/<project>"),
        delete(&format!("/loadbalancers/{ABSENT}")),
        delete(&format!("/listeners/{ABSENT}")),
        delete(&format!("/pools/{ABSENT}")),
        delete(&format!("/healthmonitors/{ABSENT}")),
        call("load-balancer", Method::POST, "/v2.0/lbaas/loadbalancers"),
    ];
    for query in [
        "nothing=1",
        "limit=x",
        "marker=x",
        "name=nothing",
        "project_id=<project>",
        "project_id=nobody",
        "vip_port_id=nothing",
        "fields=id",
    ] {
        steps.push(get(&format!("/loadbalancers?{query}")));
    }
    for path in ["/listeners", "/pools", "/healthmonitors"] {
        steps.push(get(path));
        steps.push(get(&format!("{path}/{ABSENT}")));
        steps.push(get(&format!("{path}?loadbalancer_id={ABSENT}")));
    }
    steps.push(get(&format!("/pools/{ABSENT}/members")));
    let lb = json!({"name": "bad", "vip_subnet_id": "<subnet>"});
    for changes in [
        json!({"vip_subnet_id": "-"}),
        json!({"vip_subnet_id": ABSENT}),
        json!({"vip_subnet_id": "x"}),
        json!({"vip_network_id": ABSENT}),
        json!({"vip_port_id": ABSENT}),
        json!({"vip_subnet_id": "-", "vip_port_id": "<port-a>"}),
        json!({"vip_address": "x"}),
        json!({"vip_subnet_id": "-", "vip_network_id": "<net>", "vip_address": "192.0.2.1"}),
        json!({"provider": "nothing"}),
        json!({"flavor_id": ABSENT}),
        json!({"availability_zone": "nothing"}),
        json!({"name": "x".repeat(256)}),
        json!({"name": 5}),
        json!({"nothing": 1}),
        json!({"tags": "x"}),
        json!({"tags": [1]}),
        json!({"admin_state_up": "perhaps"}),
        json!({"project_id": "nobody"}),
        json!({"listeners": [{"name": "l"}]}),
        json!({"listeners": [{"protocol": "TCP"}]}),
        json!({"listeners": [{"protocol": "X", "protocol_port": 1}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": 0}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": 70000}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": "x"}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": 1, "nothing": 1}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": 1, "default_pool": {"protocol": "TCP"}}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": 1, "default_pool": {"name": "p"}}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": 1, "default_pool": {"name": "p", "protocol": "TCP"}}]}),
        json!({"pools": [{"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}, {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": 1}, {"protocol": "HTTP", "protocol_port": 1}]}),
        json!({"listeners": [{"protocol": "TCP", "protocol_port": 1, "allowed_cidrs": ["x"]}]}),
        json!({"listeners": [{"protocol": "UDP", "protocol_port": 1, "default_pool": {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}}]}),
        json!({"pools": [{"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": [{"address": "10.8.0.9"}]}]}),
        json!({"pools": [{"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": [{"address": "169.254.169.254", "protocol_port": 1}]}]}),
        json!({"pools": [{"name": "p", "protocol": "UDP", "lb_algorithm": "ROUND_ROBIN", "healthmonitor": {"type": "UDP-CONNECT", "delay": 1, "timeout": 1, "max_retries": 1}}]}),
        json!({"pools": [{"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "healthmonitor": {"type": "UDP-CONNECT", "delay": 5, "timeout": 1, "max_retries": 1}}]}),
        json!({"pools": [{"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "healthmonitor": {"type": "TCP", "delay": 5, "timeout": 1, "max_retries": 11}}]}),
        json!({"pools": [{"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "healthmonitor": {"type": "TCP", "delay": 5, "timeout": 1, "max_retries": 1, "url_path": "/x"}}]}),
    ] {
        let body = json!({"loadbalancer": with(&lb, &changes)});
        steps.push(post("/loadbalancers", &body));
    }
    for body in [
        json!({}),
        json!([]),
        json!({"x": 1}),
        json!({"loadbalancer": null}),
    ] {
        steps.push(post("/loadbalancers", &body));
    }
    steps.push(Step::new(
        crate::table::Case::new("load-balancer", Method::POST, "/v2.0/lbaas/loadbalancers")
            .token("<token>")
            .with("content-type", "application/json")
            .raw("{"),
    ));
    steps
}

/// The load balancer as the controller creates it: everything in one request. No change is possible meanwhile.
fn birth() -> Vec<Step> {
    let member = |port: u16| json!({"address": "10.8.0.201", "protocol_port": port, "name": "node-1", "subnet_id": "<subnet>"});
    let monitor = json!({"name": "monitor_0", "type": "TCP", "delay": 5, "timeout": 3, "max_retries": 1, "max_retries_down": 3});
    let tcp = json!({
        "name": "pool_0", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": [member(30080)], "healthmonitor": monitor,
    });
    let udp = json!({
        "name": "pool_1", "protocol": "UDP", "lb_algorithm": "SOURCE_IP", "members": [member(30053)],
        "session_persistence": {"type": "SOURCE_IP"},
    });
    let body = json!({"loadbalancer": {
        "name": "balanced", "description": "made at once", "provider": "amphora", "tags": ["balanced"],
        "vip_subnet_id": "<subnet>", "vip_network_id": "<net>",
        "listeners": [
            {"name": "listener_0", "protocol": "TCP", "protocol_port": 80, "connection_limit": -1, "tags": ["balanced"],
             "timeout_client_data": 50000, "timeout_member_connect": 5000, "timeout_member_data": 50000,
             "timeout_tcp_inspect": 0, "allowed_cidrs": ["0.0.0.0/0", "10.1.2.3/24"], "default_pool": tcp},
            {"name": "listener_1", "protocol": "UDP", "protocol_port": 80, "tags": ["balanced"], "default_pool": udp},
        ],
    }});
    let name = json!({"loadbalancer": {"name": "renamed"}});
    let pool = json!({"pool": {"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "loadbalancer_id": "<lb>"}});
    let listener = json!({"listener": {"protocol": "TCP", "protocol_port": 81, "loadbalancer_id": "<lb>"}});
    vec![
        post("/loadbalancers", &body)
            .note("lb", "/loadbalancer/id")
            .note("vip", "/loadbalancer/vip_address")
            .note("vip-port", "/loadbalancer/vip_port_id")
            .note_named("l0", "/loadbalancer/listeners", "listener_0")
            .note_named("l1", "/loadbalancer/listeners", "listener_1")
            .note_named("p0", "/loadbalancer/pools", "pool_0")
            .note_named("p1", "/loadbalancer/pools", "pool_1"),
        put("/loadbalancers/<lb>", &name),
        post("/pools", &pool),
        post("/listeners", &listener),
        put("/pools/<p0>", &json!({"pool": {"name": "x"}})),
        put("/pools/<p0>/members", &json!({"members": []})),
        delete("/listeners/<l0>"),
        delete("/loadbalancers/<lb>"),
        delete("/loadbalancers/<lb>?cascade=true"),
        get("/loadbalancers/<lb>?fields=provisioning_status").rest(),
    ]
}

fn reads() -> Vec<Step> {
    let mut steps = vec![
        get("/loadbalancers/<lb>"),
        get("/loadbalancers/<lb>?fields=provisioning_status&fields=id"),
        get("/loadbalancers?fields=id,name"),
        get("/loadbalancers?fields="),
        get("/listeners/<l0>"),
        get("/pools/<p0>"),
        get("/pools/<p1>"),
        get("/pools/<p0>/members").note("m0", "/members/0/id"),
        get("/pools/<p0>/members?fields=id&fields=weight"),
        get("/healthmonitors?project_id=<project>").note("h0", "/healthmonitors/0/id"),
        get("/healthmonitors/<h0>"),
        get("/loadbalancers?limit=1"),
        get("/loadbalancers?limit=1&marker=<lb>"),
        get("/loadbalancers?limit=5&name=balanced"),
        call("network", Method::GET, "/v2.0/ports/<vip-port>"),
        call("network", Method::GET, "/v2.0/ports?device_id=lb-<lb>&fields=id"),
        call("network", Method::GET, "/v2.0/security-groups?name=lb-<lb>"),
    ];
    for query in [
        "name=balanced",
        "name=BALANCED",
        "name=other",
        "vip_port_id=<vip-port>",
        "vip_address=<vip>",
        "provisioning_status=ACTIVE",
        "admin_state_up=true",
        "admin_state_up=False",
        "provider=amphora",
        "id=<lb>",
        "project_id=<project>&limit=1000",
    ] {
        steps.push(get(&format!("/loadbalancers?fields=id&{query}")));
    }
    for query in [
        "loadbalancer_id=<lb>",
        "protocol=TCP",
        "protocol_port=80&protocol=UDP",
        "default_pool_id=<p0>",
        "load_balancer_id=<lb>",
        "pool_id=<p0>",
    ] {
        steps.push(get(&format!("/listeners?fields=name&{query}")));
    }
    for path in [
        "/pools?fields=name&loadbalancer_id=<lb>",
        "/pools?fields=name&listener_id=<l0>",
        "/pools?fields=name&lb_algorithm=SOURCE_IP",
        "/healthmonitors?fields=name&pool_id=<p0>",
        "/healthmonitors?fields=name&type=TCP",
        "/pools/<p0>/members?fields=name&address=10.8.0.201",
        "/pools/<p0>/members?fields=name&nothing=1",
    ] {
        steps.push(get(path));
    }
    steps
}

/// Each object, created and changed separately.
fn parts() -> Vec<Step> {
    let node = |last: u8| json!({"address": format!("10.8.0.{last}"), "protocol_port": 30080, "name": format!("node-{last}")});
    vec![
        put("/pools/<p0>/members", &json!({"members": [node(201), node(202)]})).rest(),
        get("/pools/<p0>/members"),
        put(
            "/pools/<p0>/members?additive_only=true",
            &json!({"members": [{"address": "10.8.0.203", "protocol_port": 30080, "name": "named", "weight": 0, "backup": true, "monitor_port": 10256}]}),
        )
        .rest(),
        get("/pools/<p0>/members").note_named("m3", "/members", "named"),
        // A batch resets omitted fields, except the name.
        put("/pools/<p0>/members", &json!({"members": [{"address": "10.8.0.203", "protocol_port": 30080}]})).rest(),
        get("/pools/<p0>/members"),
        delete("/pools/<p0>/members/<m3>").rest(),
        get("/pools/<p0>/members"),
        put("/pools/<p0>/members", &json!({"members": []})),
        post("/pools/<p0>/members", &json!({"member": node(204)})).rest(),
        put("/listeners/<l0>", &json!({"listener": {"tags": ["balanced", "another"], "timeout_client_data": 1, "allowed_cidrs": ["10.0.0.0/8"]}}))
            .rest(),
        get("/listeners/<l0>"),
        put("/listeners/<l0>", &json!({"listener": {"timeout_client_data": null, "allowed_cidrs": null, "connection_limit": null}})).rest(),
        get("/listeners/<l0>"),
        put("/pools/<p0>", &json!({"pool": {"session_persistence": {"type": "SOURCE_IP"}, "lb_algorithm": "LEAST_CONNECTIONS"}})).rest(),
        get("/pools/<p0>"),
        put("/pools/<p0>", &json!({"pool": {"session_persistence": null, "name": "renamed"}})).rest(),
        get("/pools/<p0>"),
        put("/healthmonitors/<h0>", &json!({"healthmonitor": {"delay": 7, "max_retries": 2, "name": "watch"}})).rest(),
        get("/healthmonitors/<h0>"),
        delete("/healthmonitors/<h0>").rest(),
        get("/healthmonitors/<h0>"),
        get("/pools/<p0>"),
        post("/healthmonitors", &json!({"healthmonitor": {"name": "h", "type": "HTTP", "delay": 5, "timeout": 3, "max_retries": 1, "pool_id": "<p0>", "url_path": "/healthz"}}))
            .note("h0", "/healthmonitor/id")
            .rest(),
        get("/healthmonitors/<h0>"),
        post("/listeners", &json!({"listener": {"name": "l2", "protocol": "HTTP", "protocol_port": 8080, "loadbalancer_id": "<lb>", "insert_headers": {"X-Forwarded-For": "true"}, "tags": ["balanced"]}}))
            .note("l2", "/listener/id")
            .rest(),
        post("/pools", &json!({"pool": {"name": "p2", "protocol": "PROXY", "lb_algorithm": "ROUND_ROBIN", "listener_id": "<l2>"}}))
            .note("p2", "/pool/id")
            .rest(),
        get("/listeners/<l2>"),
        get("/pools/<p2>"),
    ]
}

fn changes() -> Vec<Step> {
    vec![
        put(
            "/loadbalancers/<lb>",
            &json!({"loadbalancer": {"name": "renamed", "tags": ["a", "b"], "description": null}}),
        )
        .rest(),
        get("/loadbalancers/<lb>"),
        delete("/pools/<p2>").rest(),
        get("/pools/<p2>"),
        get("/listeners/<l2>"),
        delete("/listeners/<l2>").rest(),
        get("/listeners/<l2>"),
        delete("/listeners/<l1>").rest(),
        get("/pools/<p1>"),
        get("/loadbalancers/<lb>"),
    ]
}

/// Deletes it with its port; another one on a port of the user, which stays.
fn end() -> Vec<Step> {
    let port = json!({"port": {"network_id": "<net>", "name": "own"}});
    let floating = json!({"floatingip": {"floating_network_id": "<public-net>", "port_id": "<vip-port>"}});
    vec![
        send("network", Method::POST, "/v2.0/floatingips", &floating)
            .note("outer", "/floatingip/floating_ip_address")
            .note("fip", "/floatingip/id"),
        delete("/loadbalancers/<lb>?cascade=true"),
        get("/loadbalancers/<lb>?fields=provisioning_status").rest(),
        get("/loadbalancers/<lb>"),
        get("/pools/<p0>"),
        get("/listeners?fields=id"),
        delete("/loadbalancers/<lb>?cascade=true"),
        call("network", Method::GET, "/v2.0/ports/<vip-port>"),
        call("network", Method::GET, "/v2.0/floatingips/<fip>"),
        call("network", Method::DELETE, "/v2.0/floatingips/<fip>"),
        send("network", Method::POST, "/v2.0/ports", &port)
            .note("own-port", "/port/id")
            .note("own-ip", "/port/fixed_ips/0/ip_address"),
        post(
            "/loadbalancers",
            &json!({"loadbalancer": {"name": "on a port", "vip_port_id": "<own-port>"}}),
        )
        .note("lb", "/loadbalancer/id")
        .rest(),
        get("/loadbalancers/<lb>"),
        call("network", Method::GET, "/v2.0/ports/<own-port>"),
        delete("/loadbalancers/<lb>"),
        get("/loadbalancers/<lb>?fields=provisioning_status").rest(),
        call("network", Method::DELETE, "/v2.0/ports/<own-port>"),
    ]
}
