//! The control API over HTTP, the call log, and related parts.

use ccm_sim::openstack::{AppCredentialSpec, Config, OpenStack, ServerSpec};
use reqwest::Method;
use serde_json::json;

use crate::client::{Session, http_client};

#[tokio::test]
async fn objects_are_created_changed_and_deleted_over_http() {
    let session = Session::start().await;
    let made = session.sim(Method::POST, "/servers", json!({"name": "node-{i:02}", "count": 12})).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let id = made.json["ids"][3].as_str().unwrap().to_owned();
    assert_eq!(session.nova("2.1", &format!("/servers/{id}")).await.at("/server/name"), "node-03");
    let path = format!("/servers/{id}");
    assert_eq!(session.sim(Method::PATCH, &path, json!({"status": "SHUTOFF"})).await.status, 204);
    assert_eq!(session.nova("2.1", &path).await.at("/server/status"), "SHUTOFF");
    assert_eq!(session.sim(Method::DELETE, &path, json!({})).await.status, 204);
    assert_eq!(session.nova("2.1", &path).await.status, 404);
    assert_eq!(session.cloud.server_count(), 11);
    assert_eq!(session.neutron("/ports").await.each("ports", "id").len(), 11);
}

#[tokio::test]
async fn behavior_is_set_over_http() {
    let session = Session::start().await;
    for (method, path, body, status) in [
        (Method::PATCH, "/settings", json!({"max_microversion": 1}), 200),
        (Method::PUT, "/quotas/network", json!({"per_second": 0.0, "burst": 1}), 204),
        (Method::POST, "/latency", json!({"ms": 1}), 204),
        (
            Method::POST,
            "/faults",
            json!({"op": "flavor_get", "action": {"kind": "status", "code": 503}}),
            201,
        ),
        (Method::POST, "/clock", json!({"advance_ms": 1000}), 204),
    ] {
        let answer = session.sim(method.clone(), path, body.clone()).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
    }
    assert_eq!(session.nova("2.2", "/servers/detail").await.status, 406);
    assert_eq!(session.neutron("/ports").await.status, 200);
    assert_eq!(session.neutron("/ports").await.status, 429);
    assert_eq!(session.nova("2.1", "/flavors/2").await.status, 503);
    assert_eq!(session.sim(Method::GET, "/faults", json!({})).await.json["faults"][0]["fired"], 1);
}

#[tokio::test]
async fn mistakes_are_told() {
    let session = Session::start().await;
    for (method, path, body, status, message) in [
        (Method::POST, "/servers", json!({"nam": "x"}), 400, "unknown field `nam`"),
        (Method::POST, "/servers", json!({"name": 7}), 400, "invalid type"),
        (
            Method::POST,
            "/servers",
            json!({"name": "x", "flavor": "none"}),
            404,
            "no flavor \"none\"",
        ),
        (Method::POST, "/servers", json!({"name": "x", "status": "FINE"}), 400, "no server status"),
        (Method::PATCH, "/servers/none", json!({}), 404, "no server or port \"none\""),
        (Method::PATCH, "/settings", json!({"max_limit": "many"}), 400, "invalid type"),
        (Method::POST, "/faults", json!({"action": {"kind": "explode"}}), 400, "unknown variant"),
        (Method::GET, "/nothing", json!({}), 404, "no control operation"),
    ] {
        let answer = session.sim(method.clone(), path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text);
        assert!(answer.at("/error").contains(message), "{method} {path}: {}", answer.text);
    }
    assert_eq!(session.cloud.server_count(), 0);
}

#[tokio::test]
async fn a_failed_creation_leaves_nothing_behind() {
    let session = Session::start().await;
    let ports = json!([{"network": "private"}, {"network": "none"}]);
    let answer = session.sim(Method::POST, "/servers", json!({"name": "half", "ports": ports})).await;
    assert_eq!(answer.status, 404);
    assert_eq!(session.cloud.server_count(), 0);
    assert!(session.neutron("/ports").await.each("ports", "id").is_empty());
}

#[tokio::test]
async fn every_call_is_logged_with_its_particulars() {
    let session = Session::start().await;
    let request = session.request(Method::GET, "/RegionOne/internal/compute/v2.1/servers/detail?limit=5");
    let request = request.header("user-agent", "test/1").header("openstack-api-version", "compute 2.47");
    let length = request.send().await.unwrap().bytes().await.unwrap().len();
    session.neutron("/ports?device_id=a&device_id=b").await;
    session.get("/nowhere").await;
    let calls = session.cloud.calls();
    let first = &calls[0];
    assert_eq!(
        (first.service, &*first.region, first.interface, first.op),
        ("compute", "RegionOne", "internal", "server_list")
    );
    assert_eq!(
        (&*first.method, &*first.path, &*first.query),
        ("GET", "/RegionOne/internal/compute/v2.1/servers/detail", "limit=5")
    );
    assert_eq!((first.status, first.bytes), (Some(200), length));
    assert_eq!(
        (first.user_agent.as_deref(), first.microversion.as_deref()),
        (Some("test/1"), Some("compute 2.47"))
    );
    assert_eq!(calls[1].query, "device_id=a&device_id=b");
    assert_eq!((calls[2].op, calls[2].status), ("unknown", Some(501)));
    assert!(
        calls
            .windows(2)
            .all(|pair| pair[0].seq < pair[1].seq && pair[0].started <= pair[1].started)
    );
    assert_eq!(session.cloud.call_counts()["port_list"], 1);

    let over_http = session.sim(Method::GET, "/calls?op=port_list", json!({})).await;
    assert_eq!(over_http.json["calls"].as_array().unwrap().len(), 1, "control requests are not logged");
    let since = session.sim(Method::GET, &format!("/calls?since={}", first.seq), json!({})).await;
    assert_eq!(since.each("calls", "op"), ["port_list", "unknown"]);
    assert_eq!(session.sim(Method::GET, "/calls/counts", json!({})).await.json["server_list"], 1);
    session.cloud.clear_calls();
    assert!(session.cloud.calls().is_empty() && session.cloud.call_counts().is_empty());
}

#[tokio::test]
async fn cloud_conf_names_the_cloud_and_quotes_its_values() {
    let config = Config {
        password: "a;b\"c".into(),
        ..Config::default()
    };
    let session = Session::with(config).await;
    let conf = session.cloud.cloud_conf();
    assert!(conf.starts_with(&format!("[Global]\nauth-url={}\n", session.cloud.auth_url())), "{conf}");
    assert!(conf.contains("password=\"a;b\\\"c\"\n"), "{conf}");
    let credential = session.cloud.create_app_credential(&AppCredentialSpec::default()).unwrap();
    let conf = session.cloud.cloud_conf_for(&credential);
    assert!(conf.contains(&format!("application-credential-id={}\n", credential.id)), "{conf}");
    assert!(!conf.contains("username"), "{conf}");
    let over_http = session.sim(Method::GET, "/cloud.conf", json!({})).await;
    assert_eq!(over_http.text, session.cloud.cloud_conf());
}

#[tokio::test]
async fn regions_have_their_own_things() {
    let config = Config {
        regions: vec!["RegionOne".into(), "Region Two".into()],
        ..Config::default()
    };
    let session = Session::with(config).await;
    let spec = ServerSpec {
        region: Some("Region Two".into()),
        ..ServerSpec::named("far")
    };
    let id = session.cloud.create_server(&spec).unwrap();
    assert_eq!(session.nova("2.1", &format!("/servers/{id}")).await.status, 404);
    let answer = session.get(&format!("/Region%20Two/compute/v2.1/servers/{id}")).await;
    assert_eq!(answer.at("/server/name"), "far");
}

#[tokio::test]
async fn stops_listening_when_dropped() {
    let cloud = OpenStack::start(Config::default()).await.unwrap();
    let url = cloud.auth_url();
    let http = http_client();
    assert!(http.get(&url).send().await.is_ok());
    let listen = url.trim_start_matches("http://").split('/').next().unwrap().parse().unwrap();
    cloud.shutdown().await;
    assert!(http.get(&url).send().await.is_err());
    let again = OpenStack::start(Config {
        listen,
        ..Config::default()
    })
    .await
    .unwrap();
    assert_eq!(again.auth_url(), url, "the same address can be used again");
    let taken = OpenStack::start(Config {
        listen,
        ..Config::default()
    })
    .await;
    assert!(taken.unwrap_err().to_string().contains("cannot listen on 127.0.0.1"));
}

#[tokio::test]
async fn the_same_seed_makes_the_same_cloud() {
    let ids = || async {
        let cloud = OpenStack::start(Config {
            seed: 42,
            ..Config::default()
        })
        .await
        .unwrap();
        cloud.create_servers(3, &ServerSpec::named("n{i}")).unwrap()
    };
    assert_eq!(ids().await, ids().await);
}

#[tokio::test]
async fn a_cloud_needs_a_region() {
    let error = OpenStack::start(Config {
        regions: vec![],
        ..Config::default()
    })
    .await
    .unwrap_err();
    assert_eq!(error.to_string(), "a cloud needs at least one region");
}
