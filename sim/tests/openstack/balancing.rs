//! Octavia: states and their timing, refusals, and changes by other clients.

mod listings;

use std::time::Duration;

use ccm_sim::openstack::{Config, UserSpec};
use ccm_sim::{Action, Fault};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Session, password_login};

impl Session {
    pub(crate) async fn lb(&self, method: Method, path: &str, body: Value) -> Answer {
        let path = format!("/RegionOne/load-balancer/v2.0/lbaas{path}");
        let request = self.request(method.clone(), &path);
        let request = if body.is_null() {
            request
        } else {
            request.json(&body)
        };
        Answer::of(request.send().await.unwrap()).await
    }

    async fn lb_get(&self, path: &str) -> Answer {
        self.lb(Method::GET, path, Value::Null).await
    }

    pub(crate) async fn network(&self, method: Method, path: &str, body: Value) -> Answer {
        let request = self.request(method, &format!("/RegionOne/network/v2.0{path}"));
        let request = if body.is_null() {
            request
        } else {
            request.json(&body)
        };
        Answer::of(request.send().await.unwrap()).await
    }

    async fn private_subnet(&self) -> String {
        let answer = self.neutron("/subnets?name=private-0").await;
        answer.at("/subnets/0/id").to_owned()
    }

    /// A load balancer with one TCP port and one member.
    pub(crate) async fn balancer(&self, changes: Value) -> Answer {
        let mut lb = json!({
            "name": "web",
            "vip_subnet_id": self.private_subnet().await,
            "tags": ["web"],
            "listeners": [{
                "name": "l0", "protocol": "TCP", "protocol_port": 80,
                "default_pool": {
                    "name": "p0", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
                    "members": [{"address": "10.0.0.9", "protocol_port": 30080, "name": "node-1"}],
                    "healthmonitor": {"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 1},
                },
            }],
        });
        for (name, value) in changes.as_object().unwrap() {
            lb[name] = value.clone();
        }
        self.lb(Method::POST, "/loadbalancers", json!({ "loadbalancer": lb })).await
    }

    async fn status_of(&self, id: &str) -> String {
        let answer = self.lb_get(&format!("/loadbalancers/{id}?fields=provisioning_status")).await;
        answer.at("/loadbalancer/provisioning_status").to_owned()
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// A cloud in which changes take an hour, and tokens live longer.
async fn slow() -> Session {
    let mut config = Config {
        token_lifetime: 100 * HOUR,
        ..Config::default()
    };
    let ways = &mut config.settings.load_balancing;
    (ways.create_time, ways.update_time, ways.delete_time) = (HOUR, HOUR, HOUR);
    Session::with(config).await
}

#[tokio::test]
async fn a_load_balancer_is_locked_until_the_change_has_taken_effect() {
    let session = slow().await;
    let made = session.balancer(json!({})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let id = made.at("/loadbalancer/id").to_owned();
    let pool = made.at("/loadbalancer/pools/0/id").to_owned();
    assert_eq!(made.at("/loadbalancer/pools/0/members/0/provisioning_status"), "PENDING_CREATE");
    assert!(made.json["loadbalancer"]["updated_at"].is_null());
    let port = made.at("/loadbalancer/vip_port_id").to_owned();
    let shown = session.neutron(&format!("/ports/{port}")).await;
    assert_eq!(shown.at("/port/device_owner"), "Octavia");
    assert_eq!(shown.at("/port/fixed_ips/0/ip_address"), made.at("/loadbalancer/vip_address"));
    let path = format!("/loadbalancers/{id}");
    let members = format!("/pools/{pool}/members");
    let batch = json!({"members": [{"address": "10.0.0.10", "protocol_port": 30080}]});
    for (method, path, body) in [
        (Method::PUT, &path, json!({"loadbalancer": {"name": "x"}})),
        (Method::DELETE, &format!("{path}?cascade=true"), Value::Null),
        (Method::PUT, &members, batch.clone()),
        (Method::PUT, &format!("/pools/{pool}"), json!({"pool": {"name": "x"}})),
    ] {
        let answer = session.lb(method.clone(), path, body).await;
        assert_eq!(answer.status, 409, "{method} {path}: {}", answer.text);
    }
    session.cloud.advance_clock(HOUR);
    assert_eq!(session.status_of(&id).await, "ACTIVE");
    assert!(session.lb_get(&path).await.json["loadbalancer"]["updated_at"].is_string());
    assert_eq!(session.lb(Method::PUT, &members, batch.clone()).await.status, 202);
    let state = session.cloud.load_balancers().remove(0);
    for object in [&state.loadbalancer, &state.listeners[0], &state.pools[0]] {
        assert_eq!(object.provisioning_status, "PENDING_UPDATE", "{}", object.name);
    }
    assert_eq!(session.lb(Method::PUT, &members, batch).await.status, 409);
    session.cloud.advance_clock(HOUR);
    assert_eq!(session.lb_get(&members).await.each("members", "address"), ["10.0.0.10"]);
    let cascade = format!("{path}?cascade=true");
    assert_eq!(session.lb(Method::DELETE, &path, Value::Null).await.status, 400);
    assert_eq!(session.lb(Method::DELETE, &cascade, Value::Null).await.status, 204);
    assert_eq!(session.status_of(&id).await, "PENDING_DELETE");
    assert_eq!(session.lb(Method::DELETE, &cascade, Value::Null).await.status, 409);
    session.cloud.advance_clock(HOUR);
    assert_eq!(session.lb_get(&path).await.status, 404);
    assert_eq!(session.neutron(&format!("/ports/{port}")).await.status, 404);
    assert!(session.cloud.load_balancers().is_empty());
}

#[tokio::test]
async fn an_immediate_change_is_visible_to_the_next_request() {
    let session = Session::start().await;
    let made = session.balancer(json!({})).await;
    assert_eq!(made.at("/loadbalancer/provisioning_status"), "PENDING_CREATE");
    let id = made.at("/loadbalancer/id");
    assert_eq!(session.status_of(id).await, "ACTIVE");
    let state = &session.cloud.load_balancers()[0];
    assert_eq!(state.loadbalancer.operating_status, "ONLINE");
    assert_eq!(state.members[0].operating_status, "ONLINE");
    assert_eq!(state.healthmonitors[0].parent_id, state.pools[0].id);
}

#[tokio::test]
async fn a_batch_sets_back_what_it_does_not_repeat_unless_it_only_adds() {
    let session = Session::start().await;
    let made = session.balancer(json!({})).await;
    let pool = made.at("/loadbalancer/pools/0/id");
    let members = format!("/pools/{pool}/members");
    let weighted = json!({"members": [{"address": "10.0.0.9", "protocol_port": 30080, "weight": 0}]});
    session.lb(Method::PUT, &members, weighted).await;
    let add = json!({"members": [{"address": "10.0.0.10", "protocol_port": 30080}]});
    let answer = session.lb(Method::PUT, &format!("{members}?additive_only=true"), add).await;
    assert_eq!(answer.status, 202);
    let state = || session.cloud.load_balancers()[0].members.clone();
    let of = |address: &str| {
        let found = state().into_iter().find(|member| member.attributes["address"] == address);
        found.map(|member| (member.attributes["weight"].clone(), member.name))
    };
    assert_eq!(of("10.0.0.9"), Some((json!(0), "node-1".to_owned())));
    assert_eq!(of("10.0.0.10"), Some((json!(1), String::new())));
    let again = json!({"members": [{"address": "10.0.0.9", "protocol_port": 30080}]});
    session.lb(Method::PUT, &members, again).await;
    assert_eq!(
        of("10.0.0.9"),
        Some((json!(1), "node-1".to_owned())),
        "the name is kept, the weight is not"
    );
    assert_eq!(of("10.0.0.10"), None);
}

#[tokio::test]
async fn a_failed_load_balancer_is_in_error_and_can_only_be_deleted() {
    let session = Session::start().await;
    session.cloud.fail_next_changes(1);
    let made = session.balancer(json!({})).await;
    let id = made.at("/loadbalancer/id");
    assert_eq!(session.status_of(id).await, "ERROR");
    let state = session.cloud.load_balancers().remove(0);
    assert_eq!(state.members[0].provisioning_status, "PENDING_CREATE");
    let rename = json!({"loadbalancer": {"name": "x"}});
    let path = format!("/loadbalancers/{id}");
    assert_eq!(session.lb(Method::PUT, &path, rename.clone()).await.status, 409);
    let cascade = format!("{path}?cascade=true");
    assert_eq!(session.lb(Method::DELETE, &cascade, Value::Null).await.status, 204);
    assert_eq!(session.lb_get(&path).await.status, 404);

    let made = session.balancer(json!({})).await;
    let path = format!("/loadbalancers/{}", made.at("/loadbalancer/id"));
    session.cloud.fail_next_changes(1);
    let state = session.cloud.load_balancers().remove(0);
    let known = &state.members[0].attributes;
    let change = json!({"address": known["address"], "protocol_port": known["protocol_port"], "weight": 2});
    let members = format!("/pools/{}/members?additive_only=true", state.pools[0].id);
    let answer = session.lb(Method::PUT, &members, json!({"members": [change]})).await;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let state = session.cloud.load_balancers().remove(0);
    assert_eq!(state.members[0].provisioning_status, "ERROR");
    assert_eq!(state.pools[0].provisioning_status, "ACTIVE");
    assert_eq!(state.loadbalancer.provisioning_status, "ACTIVE");
    let member = state.members[0].id.clone();
    session.cloud.set_provisioning_status(&member, "ACTIVE").unwrap();
    session.cloud.set_provisioning_status(&member, "ERROR").unwrap();
    let state = session.cloud.load_balancers().remove(0);
    assert_eq!(state.members[0].provisioning_status, "ERROR");
    assert_eq!(
        session.lb(Method::PUT, &path, rename).await.status,
        200,
        "a member in error locks nothing"
    );
    assert!(session.cloud.set_provisioning_status("none", "ERROR").is_err());
    assert!(session.cloud.set_provisioning_status(made.at("/loadbalancer/id"), "BROKEN").is_err());
}

#[tokio::test]
async fn other_clients_change_and_delete_objects() {
    let session = Session::start().await;
    let made = session.balancer(json!({})).await;
    let state = session.cloud.load_balancers().remove(0);
    let weight = json!({"weight": 7});
    let patch = |value: &Value| value.as_object().unwrap().clone();
    session.cloud.patch_object(&state.members[0].id, &patch(&weight)).unwrap();
    session
        .cloud
        .patch_object(&state.loadbalancer.id, &patch(&json!({"name": "theirs"})))
        .unwrap();
    assert!(
        session
            .cloud
            .patch_object(&state.loadbalancer.id, &patch(&json!({"nothing": 1})))
            .is_err()
    );
    let found = session.lb_get("/loadbalancers?name=theirs").await;
    assert_eq!(found.each("loadbalancers", "id"), [made.at("/loadbalancer/id")]);
    let members = session.lb_get(&format!("/pools/{}/members", state.pools[0].id)).await;
    assert_eq!(members.json["members"][0]["weight"], 7);
    session.cloud.delete_object(&state.pools[0].id).unwrap();
    let listener = session.lb_get(&format!("/listeners/{}", state.listeners[0].id)).await;
    assert!(listener.json["listener"]["default_pool_id"].is_null());
    assert!(session.cloud.load_balancers()[0].members.is_empty());
    let path = format!("/load_balancers/{}", state.loadbalancer.id);
    let answer = session.sim(Method::PATCH, &path, json!({"provisioning_status": "ERROR"})).await;
    assert_eq!(answer.status, 204, "{}", answer.text);
    assert_eq!(session.status_of(&state.loadbalancer.id).await, "ERROR");
    assert_eq!(session.sim(Method::DELETE, &path, json!({})).await.status, 204);
    let all = session.sim(Method::GET, "/load_balancers", json!({})).await;
    assert_eq!(all.json["load_balancers"], json!([]));
}

#[tokio::test]
async fn quotas_are_met_with_403_and_409() {
    let session = Session::start().await;
    let change =
        json!({"resource_quotas": {"load_balancer": 1, "member": 2, "floatingip": 1, "security_group": 2}});
    assert_eq!(session.sim(Method::PATCH, "/settings", change).await.status, 200);
    let made = session.balancer(json!({})).await;
    assert_eq!(made.status, 201);
    let more = session.balancer(json!({"listeners": []})).await;
    assert_eq!(
        (more.status, more.at("/faultstring")),
        (403, "Quota has been met for resources: Load Balancer")
    );
    let members: Vec<Value> = (0..3)
        .map(|last| json!({"address": format!("10.0.0.{}", 20 + last), "protocol_port": 1}))
        .collect();
    let path = format!("/pools/{}/members", made.at("/loadbalancer/pools/0/id"));
    let answer = session.lb(Method::PUT, &path, json!({ "members": members })).await;
    assert_eq!(answer.at("/faultstring"), "Quota has been met for resources: Member");
    let network = session.neutron("/networks?name=public").await;
    let floating = json!({"floatingip": {"floating_network_id": network.at("/networks/0/id")}});
    assert_eq!(session.network(Method::POST, "/floatingips", floating.clone()).await.status, 201);
    let answer = session.network(Method::POST, "/floatingips", floating).await;
    assert_eq!((answer.status, answer.at("/NeutronError/type")), (409, "OverQuota"));
    let group = json!({"security_group": {"name": "g"}});
    assert_eq!(session.network(Method::POST, "/security-groups", group.clone()).await.status, 201);
    assert_eq!(
        session.network(Method::POST, "/security-groups", group).await.status,
        409,
        "one is the default"
    );
}

#[tokio::test]
async fn an_older_version_knows_fewer_attributes() {
    let session = Session::start().await;
    session.cloud.configure(|settings| settings.load_balancing.max_minor = 4);
    let versions = session.get("/RegionOne/load-balancer/").await;
    let last = versions.json["versions"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["id"], &last["status"]), (&json!("v2.4"), &json!("CURRENT")));
    let refused = session.balancer(json!({})).await;
    assert_eq!(
        refused.at("/faultstring"),
        "Unknown attribute for argument load_balancer.loadbalancer: tags"
    );
    session.cloud.configure(|settings| settings.load_balancing.max_minor = 10);
    let made = session.balancer(json!({})).await;
    assert_eq!(made.status, 201);
    assert!(made.json.pointer("/loadbalancer/listeners/0/allowed_cidrs").is_none());
    let path = format!("/pools/{}/members?additive_only=true", made.at("/loadbalancer/pools/0/id"));
    let answer = session.lb(Method::PUT, &path, json!({"members": []})).await;
    assert_eq!((answer.status, answer.at("/faultstring")), (400, "Unknown argument: \"additive_only\""));
    let cidrs = json!({"protocol": "TCP", "protocol_port": 81, "loadbalancer_id": made.at("/loadbalancer/id"), "allowed_cidrs": ["10.0.0.0/8"]});
    assert_eq!(session.lb(Method::POST, "/listeners", json!({ "listener": cidrs })).await.status, 400);
}

#[tokio::test]
async fn ovn_refuses_unsupported_features() {
    let session = Session::start().await;
    let pool = |protocol: &str, algorithm: &str| json!({"name": "p", "protocol": protocol, "lb_algorithm": algorithm});
    let listener = |changes: Value| {
        let mut listener = json!({"protocol": "TCP", "protocol_port": 80});
        for (name, value) in changes.as_object().unwrap() {
            listener[name] = value.clone();
        }
        json!([listener])
    };
    for (listeners, status) in [
        (listener(json!({"default_pool": pool("TCP", "SOURCE_IP_PORT")})), 201),
        (listener(json!({"default_pool": pool("TCP", "ROUND_ROBIN")})), 501),
        (listener(json!({"default_pool": pool("PROXY", "SOURCE_IP_PORT")})), 501),
        (listener(json!({"allowed_cidrs": ["10.0.0.0/8"]})), 501),
        (listener(json!({"protocol": "HTTP"})), 501),
    ] {
        let answer = session.balancer(json!({"provider": "ovn", "listeners": listeners})).await;
        assert_eq!(answer.status, status, "{listeners}: {}", answer.text);
    }
    assert_eq!(session.cloud.load_balancers().len(), 1, "what is refused leaves nothing behind");
    let ports = session.neutron("/ports?device_owner=Octavia").await;
    assert_eq!(ports.each("ports", "id").len(), 1);
    let flavor = session.cloud.create_balancer_flavor("small", true).unwrap();
    assert_eq!(session.balancer(json!({"provider": "ovn", "flavor_id": flavor})).await.status, 501);
    let made = session.balancer(json!({"flavor_id": flavor})).await;
    assert_eq!(made.at("/loadbalancer/flavor_id"), flavor);
    session.cloud.create_balancer_zone("near", true).unwrap();
    let made = session.balancer(json!({"availability_zone": "near"})).await;
    assert_eq!(made.at("/loadbalancer/availability_zone"), "near");
}
