//! The simulated DigitalOcean over plain HTTP: answers and effects.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Once;
use std::time::Duration;

use ccm_sim::digitalocean::{Config, DigitalOcean, SERVICE, Switches};
use ccm_sim::{Action, Fault, Quota};
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Map, Value, json};

struct Session {
    cloud: DigitalOcean,
    http: reqwest::Client,
    token: String,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    json: Value,
}

impl Session {
    async fn with(config: Config) -> Self {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        });
        let token = config.token.clone();
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20));
        Self {
            cloud: DigitalOcean::start(config).await.unwrap(),
            http: http.build().unwrap(),
            token,
        }
    }

    async fn start() -> Self {
        Self::with(Config::default()).await
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Answer {
        let url = if path.starts_with("http") {
            path.to_owned()
        } else {
            format!("{}{path}", self.cloud.url())
        };
        let mut request = self.http.request(method, url).bearer_auth(&self.token);
        if !body.is_null() {
            request = request.json(body);
        }
        let response = request.send().await.unwrap();
        Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            json: serde_json::from_str(&response.text().await.unwrap()).unwrap_or(Value::Null),
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &Value::Null).await
    }

    fn droplets(&self, count: usize) -> Vec<u64> {
        let create = |number| self.cloud.create_droplet(&format!("node-{number}"));
        (0..count).map(|number| create(number).parse().unwrap()).collect()
    }
}

fn balancer(name: &str, droplets: &[u64]) -> Value {
    let rule =
        json!({"entry_protocol": "tcp", "entry_port": 80, "target_protocol": "tcp", "target_port": 30080});
    json!({
        "name": name, "region": "nyc3", "type": "REGIONAL", "droplet_ids": droplets, "forwarding_rules": [rule],
        "health_check": {"protocol": "tcp", "port": 30080},
    })
}

#[tokio::test]
async fn droplets_are_listed_in_pages_with_links_and_a_total() {
    let session = Session::start().await;
    let ids = session.droplets(5);
    let mut seen = Vec::new();
    let mut next = Some("/v2/droplets?per_page=2".to_owned());
    while let Some(path) = next {
        let page = session.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.json);
        assert_eq!(page.json["meta"]["total"], 5);
        let droplets = page.json["droplets"].as_array().unwrap();
        seen.extend(droplets.iter().map(|droplet| droplet["id"].as_u64().unwrap()));
        next = page.json["links"]["pages"]["next"].as_str().map(str::to_owned);
    }
    assert_eq!(seen, ids);
    let one = session.get("/v2/droplets?name=NODE-3").await;
    assert_eq!(one.json["droplets"][0]["id"], ids[3]);
    assert_eq!(one.json["links"], json!({}));
    let gpus = session.get("/v2/droplets?type=gpus").await;
    assert_eq!(gpus.json["meta"]["total"], 0);
    assert_eq!(session.get("/v2/droplets?per_page=201").await.status, 422);
    assert_eq!(session.get("/v2/droplets?page=0").await.status, 422);
    assert_eq!(session.cloud.take_violations().len(), 2);
}

#[tokio::test]
async fn a_droplet_is_shown_as_the_control_api_changes_it() {
    let session = Session::start().await;
    let id = session.cloud.create_droplet("node-1");
    let path = format!("/v2/droplets/{id}");
    assert_eq!(session.get(&path).await.json["droplet"]["status"], "active");
    let off = Map::from_iter([("status".to_owned(), json!("off"))]);
    session.cloud.change("droplets", &id, off).unwrap();
    assert_eq!(session.get(&path).await.json["droplet"]["status"], "off");
    session.cloud.remove("droplets", &id).unwrap();
    let absent = session.get(&path).await;
    assert_eq!(absent.status, 404);
    assert_eq!(absent.json["id"], "not_found");
    assert!(session.cloud.remove("droplets", &id).is_err());
}

#[tokio::test]
async fn an_invalid_answer_is_not_sent() {
    let session = Session::start().await;
    let id = session.cloud.create_droplet("node-1");
    let wrong = Map::from_iter([("status".to_owned(), json!("sleeping"))]);
    session.cloud.change("droplets", &id, wrong).unwrap();
    let answer = session.get("/v2/droplets").await;
    assert_eq!(answer.status, 500);
    let message = answer.json["message"].as_str().unwrap();
    assert!(message.contains("body/droplets/0/status: \"sleeping\" is not one of"), "{message}");
    assert_eq!(session.cloud.take_violations().len(), 1);
}

#[tokio::test]
async fn a_load_balancer_is_created_changed_and_deleted() {
    let config = Config {
        create_time: Duration::from_secs(30),
        ..Config::default()
    };
    let session = Session::with(config).await;
    let droplets = session.droplets(2);
    let made = session.send(Method::POST, "/v2/load_balancers", &balancer("web", &droplets)).await;
    assert_eq!(made.status, 202, "{}", made.json);
    let id = made.json["load_balancer"]["id"].as_str().unwrap();
    let path = format!("/v2/load_balancers/{id}");
    assert_eq!(made.json["load_balancer"]["status"], "new");
    assert_eq!(session.get(&path).await.json["load_balancer"]["ip"], "");
    session.cloud.advance_clock(Duration::from_secs(30));
    let active = session.get(&path).await.json;
    assert_eq!(active["load_balancer"]["status"], "active");
    assert_ne!(active["load_balancer"]["ip"], "");
    assert_eq!(active["load_balancer"]["health_check"]["unhealthy_threshold"], 5);

    let mut body = balancer("web", &droplets[..1]);
    body["enable_proxy_protocol"] = json!(true);
    let changed = session.send(Method::PUT, &path, &body).await;
    assert_eq!(changed.status, 200, "{}", changed.json);
    let changed = &changed.json["load_balancer"];
    assert_eq!(changed["droplet_ids"], json!([droplets[0]]));
    assert_eq!(changed["enable_proxy_protocol"], true);
    assert_eq!(changed["ip"], active["load_balancer"]["ip"]);
    // Omitted fields get their defaults again.
    let body = balancer("web", &droplets);
    let changed = session.send(Method::PUT, &path, &body).await.json;
    assert_eq!(changed["load_balancer"]["enable_proxy_protocol"], false);

    assert_eq!(session.send(Method::DELETE, &path, &Value::Null).await.status, 204);
    assert_eq!(session.send(Method::DELETE, &path, &Value::Null).await.status, 404);
    assert_eq!(session.get("/v2/load_balancers").await.json["meta"]["total"], 0);
    let counts = session.cloud.call_counts();
    assert_eq!(counts["loadBalancers_create"], 1);
    assert_eq!(counts["loadBalancers_update"], 2);
}

#[tokio::test]
async fn a_creation_may_end_in_an_error() {
    let session = Session::start().await;
    session.cloud.fail_next_changes(1);
    let made = session.send(Method::POST, "/v2/load_balancers", &balancer("web", &[])).await;
    let path = format!("/v2/load_balancers/{}", made.json["load_balancer"]["id"].as_str().unwrap());
    assert_eq!(session.get(&path).await.json["load_balancer"]["status"], "errored");
}

#[tokio::test]
#[should_panic(expected = "GET /v2/nothing: The description has no such operation.")]
async fn an_unread_violation_fails_the_test() {
    let session = Session::start().await;
    assert_eq!(session.get("/v2/nothing").await.status, 404);
}

#[tokio::test]
async fn requests_that_the_description_or_the_service_refuses() {
    let session = Session::start().await;
    let post = async |body: Value| session.send(Method::POST, "/v2/load_balancers", &body).await;
    assert_eq!(post(balancer("taken", &[])).await.status, 202);
    let with = |name: &str, value: Value| {
        let mut body = balancer("web", &[]);
        body[name] = value;
        body
    };
    let rule = |port: u64, protocol: &str| json!([{"entry_protocol": protocol, "entry_port": port, "target_protocol": "tcp", "target_port": 1}]);
    for (body, reason) in [
        (with("forwarding_rules", json!([])), "body/forwarding_rules: [] has less than 1 item"),
        (
            with("forwarding_rules", rule(80, "sctp")),
            "body/forwarding_rules/0/entry_protocol: \"sctp\" is not one of",
        ),
        (with("http_idle_timeout_seconds", json!(10)), "less than the minimum of 30"),
        (with("tag", json!("both")), "oneOf"),
        (with("region", json!("moon1")), "body/region: \"moon1\" is not one of"),
        (with("tsl_cipher_policy", json!("STRONG")), "'tsl_cipher_policy' was unexpected"),
        (
            with("health_check", json!({"protocol": "tcp", "port": 1, "colour": "red"})),
            "'colour' was unexpected",
        ),
        (balancer("taken", &[]), "already a load balancer with the name taken"),
        (balancer("web", &[77]), "droplet 77 does not exist"),
        (with("forwarding_rules", rule(50053, "tcp")), "entry port 50053 is reserved"),
    ] {
        let answer = post(body.clone()).await;
        assert_eq!(answer.status, 422, "{body}: {}", answer.json);
        let message = answer.json["message"].as_str().unwrap();
        assert!(message.contains(reason), "{reason}: {message}");
    }
    let anonymous = session.http.get(format!("{}/v2/droplets", session.cloud.url()));
    assert_eq!(anonymous.send().await.unwrap().status().as_u16(), 401);
    let vpc = "/v2/vpcs/5a4981aa-9653-4bd1-bef5-d6bff52042e4";
    let absent = session.send(Method::DELETE, vpc, &Value::Null).await;
    assert_eq!(absent.status, 501);
    assert_eq!(absent.json["message"], "The simulator does not have this operation.");
    assert_eq!(session.get("/v2/nothing").await.status, 404);
    let violations = session.cloud.take_violations();
    assert_eq!(violations.len(), 9, "{violations:#?}");
}

#[tokio::test]
async fn rate_limits_are_announced_and_kept() {
    let session = Session::start().await;
    let answer = session.get("/v2/droplets").await;
    assert_eq!(answer.headers["ratelimit-limit"], "5000");
    assert_eq!(answer.headers["ratelimit-remaining"], "4999");
    assert!(answer.headers.contains_key("ratelimit-reset"));
    let quota = Quota {
        per_second: 0.1,
        burst: 1,
    };
    session.cloud.set_quota(SERVICE, Some(quota));
    assert_eq!(session.get("/v2/droplets").await.status, 200);
    let refused = session.get("/v2/droplets").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.json["id"], "too_many_requests");
    assert_eq!(refused.headers["retry-after"], "10");
}

#[tokio::test]
async fn faults_and_the_control_api_are_those_of_every_cloud() {
    let session = Session::start().await;
    session.droplets(1);
    session.cloud.add_fault(Fault::on("droplets_list", Action::StaleRead).once());
    session.droplets(1);
    assert_eq!(session.get("/v2/droplets").await.json["meta"]["total"], 1);
    assert_eq!(session.get("/v2/droplets").await.json["meta"]["total"], 2);
    let sim = async |method: Method, path: &str, body: Value| {
        let url = format!("{}{path}", session.cloud.control_url());
        session.send(method, &url, &body).await
    };
    let fault = json!({"op": "droplets_list", "count": 1, "action": {"kind": "status", "code": 503}});
    assert_eq!(sim(Method::POST, "/faults", fault).await.status, 201);
    let refused = session.get("/v2/droplets").await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json["id"], "service_unavailable");
    let calls = sim(Method::GET, "/calls?op=droplets_list", Value::Null).await.json;
    let calls = calls["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 3);
    assert_eq!(calls[2]["fault"], "status");
    let made = sim(Method::POST, "/documents/droplets", json!({"name": "node-9", "tags": ["k8s"]})).await;
    let id = made.json["id"].as_str().unwrap();
    let tagged = session.get("/v2/droplets?tag_name=k8s").await.json;
    assert_eq!(tagged["droplets"][0]["id"].to_string(), id);
    let path = format!("/documents/droplets/{id}");
    let change = sim(Method::PATCH, &path, json!({"status": "off"})).await;
    assert_eq!(change.status, 204);
    assert_eq!(sim(Method::DELETE, &path, Value::Null).await.status, 204);
    assert_eq!(sim(Method::DELETE, &path, Value::Null).await.status, 404);
    let all = sim(Method::GET, "/documents/droplets", Value::Null).await.json;
    assert_eq!(all["droplets"].as_array().unwrap().len(), 2);
    let limit = sim(Method::PUT, "/limits/load_balancers", json!({"count": 0})).await;
    assert_eq!(limit.status, 204);
    let refused = session.send(Method::POST, "/v2/load_balancers", &balancer("web", &[])).await;
    assert_eq!(refused.status, 422);
}

#[tokio::test]
async fn a_minute_has_a_limit_of_its_own() {
    let session = Session::start().await;
    for _ in 0..250 {
        assert_eq!(session.get("/v2/regions").await.status, 200);
    }
    assert_eq!(session.get("/v2/regions").await.status, 429);
    session.cloud.advance_clock(Duration::from_secs(61));
    assert_eq!(session.get("/v2/regions").await.status, 200);
    // Without a quota there is no limit.
    session.cloud.set_quota(SERVICE, None);
    for _ in 0..260 {
        assert_eq!(session.get("/v2/regions").await.status, 200);
    }
}

#[tokio::test]
async fn tags_are_returned_and_changed_as_the_switches_say() {
    let rule =
        json!({"entry_protocol": "tcp", "entry_port": 80, "target_protocol": "tcp", "target_port": 80});
    for (returns_tags, put_changes_tags) in [(true, true), (true, false), (false, true), (false, false)] {
        let switches = Switches {
            returns_tags,
            put_changes_tags,
            ..Switches::default()
        };
        let config = Config {
            switches,
            ..Config::default()
        };
        let session = Session::with(config).await;
        let body = |tag: &str| {
            json!({
                "name": "web", "region": "nyc3", "forwarding_rules": [rule], "droplet_ids": [], "tags": [tag],
            })
        };
        let created = session.send(Method::POST, "/v2/load_balancers", &body("one")).await;
        assert_eq!(created.status, 202);
        let id = created.json["load_balancer"]["id"].as_str().unwrap().to_owned();
        let path = format!("/v2/load_balancers/{id}");
        assert_eq!(session.send(Method::PUT, &path, &body("two")).await.status, 200);
        let tags = || session.cloud.document("load_balancers", &id).unwrap()["tags"].clone();
        assert_eq!(tags(), json!([if put_changes_tags { "two" } else { "one" }]));
        for found in [
            session.get(&path).await.json["load_balancer"].clone(),
            session.get("/v2/load_balancers").await.json["load_balancers"][0].clone(),
        ] {
            assert_eq!(found.get("tags").is_some(), returns_tags);
        }
        // The tags API changes them in any case. The tag exists since it was created with the load balancer.
        let resources = json!({"resources": [{"resource_id": id, "resource_type": "load_balancer"}]});
        let path = "/v2/tags/one/resources";
        assert_eq!(session.send(Method::DELETE, path, &resources).await.status, 204);
        assert!(!tags().as_array().unwrap().contains(&json!("one")));
        assert_eq!(session.send(Method::POST, path, &resources).await.status, 204);
        assert!(tags().as_array().unwrap().contains(&json!("one")));
    }
}
