//! Changes of Neutron for load balancers and routes: floating IPs, security groups, ports, routers.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Step, call, send, with};
use crate::table::Case;

const ABSENT: &str = "5f3d3a3c-95d8-4b52-8a0c-0d6b7f0c3f11";

fn get(path: &str) -> Step {
    call("network", Method::GET, &format!("/v2.0{path}"))
}

fn delete(path: &str) -> Step {
    call("network", Method::DELETE, &format!("/v2.0{path}"))
}

fn post(path: &str, body: &Value) -> Step {
    send("network", Method::POST, &format!("/v2.0{path}"), body)
}

fn put(path: &str, body: &Value) -> Step {
    send("network", Method::PUT, &format!("/v2.0{path}"), body)
}

pub(super) fn story() -> Vec<Step> {
    let mut steps = floating();
    steps.extend(groups());
    steps.extend(ports());
    steps.extend(routers());
    steps
}

fn floating() -> Vec<Step> {
    let wanted = json!({"floating_network_id": "<public-net>", "description": "d"});
    let mut steps = vec![
        post("/ports", &json!({"port": {"network_id": "<net>", "name": "inner"}}))
            .note("inner", "/port/id")
            .note("inner-ip", "/port/fixed_ips/0/ip_address"),
        post("/floatingips", &json!({ "floatingip": wanted }))
            .note("f", "/floatingip/id")
            .note("f-ip", "/floatingip/floating_ip_address"),
        get("/floatingips/<f>"),
        put("/floatingips/<f>", &json!({"floatingip": {"port_id": "<inner>"}})),
        get("/floatingips/<f>"),
        post("/floatingips", &json!({"floatingip": with(&wanted, &json!({"port_id": "<port-a>"}))})),
        put("/floatingips/<f>", &json!({"floatingip": {"description": "other"}})),
    ];
    for query in [
        "port_id=<inner>",
        "port_id=nothing",
        "floating_ip_address=<f-ip>",
        "description=other",
        "project_id=<project>&description=other",
        "floating_network_id=<public-net>&status=ACTIVE&description=other",
        "nothing=1",
        "limit=1&description=other",
        "fixed_ip_address=<inner-ip>",
        "router_id=nothing",
    ] {
        steps.push(get(&format!("/floatingips?fields=id&{query}")));
    }
    for changes in [
        json!({"floating_network_id": "<net>"}),
        json!({"floating_network_id": ABSENT}),
        json!({"floating_network_id": "x"}),
        json!({"floating_network_id": "-"}),
        json!({"subnet_id": "<subnet>"}),
        json!({"port_id": ABSENT}),
        json!({"port_id": "x"}),
        json!({"floating_ip_address": "203.0.113.9"}),
        json!({"floating_ip_address": "x"}),
        json!({"nothing": 1}),
        json!({"description": 5}),
        json!({"id": "x"}),
    ] {
        steps.push(post("/floatingips", &json!({"floatingip": with(&wanted, &changes)})));
    }
    steps.extend([
        put("/floatingips/<f>", &json!({"floatingip": {"floating_network_id": "<public-net>"}})),
        put("/floatingips/<f>", &json!({"floatingip": {"port_id": ABSENT}})),
        put(&format!("/floatingips/{ABSENT}"), &json!({"floatingip": {"port_id": null}})),
        put("/floatingips/<f>", &json!({"floatingip": {"port_id": null}})),
        get("/floatingips/<f>"),
        post("/floatingips", &json!({"x": {}})),
        call("network", Method::POST, "/v2.0/floatingips"),
        Step::new(Case::new("network", Method::POST, "/v2.0/floatingips").token("<token>").raw("{")),
        Step::new(Case::new("network", Method::GET, "/v2.0/floatingips")),
        get("/floatingips/x"),
        delete("/floatingips/<f>"),
        delete("/floatingips/<f>"),
        delete("/ports/<inner>"),
        get("/quotas/<project>"),
    ]);
    steps
}

fn groups() -> Vec<Step> {
    let rule = json!({
        "security_group_id": "<g>", "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp",
        "port_range_min": 30080, "port_range_max": 30080, "remote_ip_prefix": "10.7.0.0/24",
    });
    let mut steps = vec![
        get("/security-groups?name=default"),
        post("/security-groups", &json!({"security_group": {"name": "g", "description": "d"}}))
            .note("g", "/security_group/id"),
        post("/security-groups", &json!({"security_group": {"name": "g"}})).note("g2", "/security_group/id"),
        post("/security-groups", &json!({"security_group": {"name": "default"}})),
        post("/security-groups", &json!({"security_group": {"nothing": 1}})),
        get("/security-groups?name=g&description=d"),
        get("/security-groups/<g>?fields=name"),
        get("/security-group-rules?security_group_id=<g>"),
        post("/security-group-rules", &json!({ "security_group_rule": rule }))
            .note("r", "/security_group_rule/id"),
        get("/security-group-rules/<r>"),
        get("/security-group-rules?security_group_id=<g>&direction=ingress"),
        get("/security-group-rules?security_group_id=<g>&protocol=tcp&fields=id"),
        get("/security-group-rules?security_group_id=<g>&port_range_min=30080&fields=id"),
        get("/security-group-rules?nothing=1"),
    ];
    for changes in [
        json!({}),
        json!({"protocol": "TCP"}),
        json!({"protocol": "x"}),
        json!({"protocol": "-"}),
        json!({"port_range_min": 30081}),
        json!({"port_range_min": "-"}),
        json!({"port_range_max": 70000}),
        json!({"port_range_max": "x"}),
        json!({"remote_ip_prefix": "x"}),
        json!({"remote_ip_prefix": "fd00::/64"}),
        json!({"remote_group_id": "<g>"}),
        json!({"ethertype": "x"}),
        json!({"direction": "x"}),
        json!({"direction": "-"}),
        json!({"security_group_id": ABSENT}),
        json!({"security_group_id": "x"}),
        json!({"nothing": 1}),
    ] {
        let body = json!({"security_group_rule": with(&rule, &changes)});
        steps.push(post("/security-group-rules", &body));
    }
    for changes in [
        json!({"protocol": "udp", "description": "x"}),
        json!({"protocol": "sctp"}),
        json!({"ethertype": "IPv6", "remote_ip_prefix": "fd00::/64"}),
        json!({"remote_ip_prefix": "10.8.0.9"}),
        json!({"remote_ip_prefix": "10.8.0.9/24", "port_range_max": 30090}),
        json!({"remote_ip_prefix": "0.0.0.0/0"}),
    ] {
        let body = json!({"security_group_rule": with(&rule, &changes)});
        steps.push(post("/security-group-rules", &body));
    }
    steps.extend([
        delete("/security-group-rules/<r>"),
        delete("/security-group-rules/<r>"),
        get("/security-groups/<g>"),
        get(&format!("/security-groups/{ABSENT}")),
        delete(&format!("/security-groups/{ABSENT}")),
        delete("/security-groups/<g2>"),
    ]);
    steps
}

fn ports() -> Vec<Step> {
    let if_match = |revision: &str, body: &Value| {
        let case = Case::new("network", Method::PUT, "/v2.0/ports/<own>").token("<token>");
        Step::new(case.json(body).with("if-match", revision))
    };
    let pairs = json!({"port": {"allowed_address_pairs": [{"ip_address": "10.9.0.0/24"}]}});
    vec![
        post("/ports", &json!({"port": {"network_id": "<net>", "name": "own-2"}}))
            .note("own", "/port/id")
            .note("own-2-ip", "/port/fixed_ips/0/ip_address")
            .note("default-group", "/port/security_groups/0"),
        put("/ports/<own>", &json!({"port": {"security_groups": ["<default-group>", "<g>"]}})),
        get("/ports?security_groups=<g>"),
        delete("/security-groups/<g>"),
        put("/ports/<own>", &json!({"port": {"security_groups": [ABSENT]}})),
        put("/ports/<own>", &json!({"port": {"security_groups": "x"}})),
        if_match("revision_number=1", &pairs),
        if_match("revision_number=2", &pairs),
        if_match("x", &pairs),
        put(
            "/ports/<own>",
            &json!({"port": {"allowed_address_pairs": [{"mac_address": "fa:16:3e:00:00:01"}]}}),
        ),
        put("/ports/<own>", &json!({"port": {"allowed_address_pairs": [{"ip_address": "x"}]}})),
        put(
            "/ports/<own>",
            &json!({"port": {"allowed_address_pairs": [{"ip_address": "10.9.0.0/24"}, {"ip_address": "10.9.0.0/24"}]}}),
        ),
        put("/ports/<own>", &json!({"port": {"port_security_enabled": false}})),
        put("/ports/<own>", &json!({"port": {"nothing": 1}})),
        put("/ports/<own>", &json!({"port": {"network_id": "<net>"}})),
        put(&format!("/ports/{ABSENT}"), &json!({"port": {"name": "x"}})),
        get("/ports/<own>"),
        call("network", Method::PUT, "/v2.0/ports/<own>/tags/a"),
        delete("/ports/<own>/tags/a"),
        delete("/ports/<own>/tags/a"),
        put("/ports/<own>", &json!({"port": {"security_groups": []}})),
        delete("/security-groups/<g>"),
        delete("/ports/<own>"),
        delete("/ports/<own>"),
    ]
}

fn routers() -> Vec<Step> {
    let route = |third: u32, hop: &str| json!({"destination": format!("10.9.{third}.0/24"), "nexthop": hop});
    let routes = |routes: Vec<Value>| json!({"router": {"routes": routes}});
    let (a, b) = (route(0, "<ip-a>"), route(1, "<ip-b>"));
    vec![
        get("/routers"),
        get("/routers/<router>"),
        get(&format!("/routers/{ABSENT}")),
        put("/routers/<router>", &routes(vec![a.clone()])),
        put("/routers/<router>/add_extraroutes", &routes(vec![route(5, "192.0.2.1")])),
        put("/routers/<router>/add_extraroutes", &routes(vec![a.clone(), b.clone()])),
        put("/routers/<router>/add_extraroutes", &routes(vec![route(0, "<ip-c>")])),
        put(
            "/routers/<router>/add_extraroutes",
            &routes(vec![json!({"destination": "x", "nexthop": "<ip-a>"})]),
        ),
        put("/routers/<router>/add_extraroutes", &routes(vec![json!({"destination": "10.9.0.0/24"})])),
        put(
            "/routers/<router>/add_extraroutes",
            &routes(vec![json!({"destination": "10.9.0.1/24", "nexthop": "<ip-a>"})]),
        ),
        put("/routers/<router>/remove_extraroutes", &routes(vec![b, route(7, "<ip-a>")])),
        put("/routers/<router>", &routes((0..31).map(|third| route(third, "<ip-a>")).collect())),
        put("/routers/<router>", &json!({"router": {"nothing": 1}})),
        get("/routers/<router>?fields=routes"),
        put("/routers/<router>", &routes(Vec::new())),
        // One owner at a time: ports are sorted by their IDs, which differ between the clouds.
        get(
            "/ports?device_id=<router>&device_owner=network:router_gateway&fields=network_id&fields=fixed_ips",
        ),
        get(
            "/ports?device_id=<router>&device_owner=network:router_interface&fields=network_id&fields=fixed_ips",
        ),
    ]
}
