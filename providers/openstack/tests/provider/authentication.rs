//! Authentication: success, renewal, and reasons of failures.

use std::time::Duration;

use ccm_core::{
    ErrorKind, Freshness, RequestOutcome,
    testkit::server::{Server, answer},
};
use ccm_sim::{
    Action, Fault,
    openstack::{AppCredentialSpec, Config, OpenStack, ServerSpec, UserSpec},
};
use tokio::net::TcpListener;

use crate::cloud::{Connected, build, by_id, existence, present};

async fn sim() -> OpenStack {
    OpenStack::start(Config::default()).await.unwrap()
}

/// The config with a key's line replaced.
fn replaced(conf: &str, key: &str, value: &str) -> String {
    conf.lines()
        .map(|line| {
            if line.starts_with(&format!("{key}=")) {
                format!("{key}={value}\n")
            } else {
                format!("{line}\n")
            }
        })
        .collect()
}

fn without(conf: &str, keys: &[&str]) -> String {
    conf.lines()
        .filter(|line| !keys.iter().any(|key| line.starts_with(&format!("{key}="))))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// A token, requested like by any client.
async fn token(sim: &OpenStack) -> String {
    let body = serde_json::json!({"auth": {
        "identity": {"methods": ["password"], "password": {"user":
            {"name": "ccm", "domain": {"name": "Default"}, "password": "correct-horse"}}},
        "scope": {"project": {"id": sim.project_id()}}}});
    let url = format!("{}/auth/tokens", sim.auth_url().trim_end_matches('/'));
    let reply = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    reply.headers()["x-subject-token"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_kind_of_credentials_gets_in() {
    let sim = sim().await;
    let id = sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let credential = sim
        .create_app_credential(&AppCredentialSpec {
            name: "ccm".into(),
            ..AppCredentialSpec::default()
        })
        .unwrap();
    let url = sim.auth_url();
    let base = url.trim_end_matches('/').strip_suffix("/v3").unwrap();
    let password = sim.cloud_conf();
    let user = &credential.user_id;
    let project = sim.project_id();
    let token = token(&sim).await;
    let trustee = sim
        .create_user(&UserSpec {
            name: "trustee".into(),
            password: "pw".into(),
            projects: Some(vec![]),
            ..UserSpec::default()
        })
        .unwrap();
    let trust = sim.create_trust(user, &trustee, &project).unwrap();
    let secret = &credential.secret;
    let confs = [
        password.clone(),
        replaced(&password, "auth-url", base),
        replaced(&password, "auth-url", &format!("{base}/v3/")),
        format!("[Global]\nauth-url={url}\nuser-id={user}\npassword=correct-horse\ntenant-id={project}\n"),
        sim.cloud_conf_for(&credential),
        format!(
            "[Global]\nauth-url={url}\napplication-credential-name=ccm\napplication-credential-secret=\"{secret}\"\nuser-id={user}\n"
        ),
        format!(
            "[Global]\nauth-url={url}\napplication-credential-name=ccm\napplication-credential-secret=\"{secret}\"\nusername=ccm\nuser-domain-name=Default\n"
        ),
        format!("[Global]\nauth-url={url}\ntoken={token}\n"),
        format!("[Global]\nauth-url={url}\ntoken={token}\ntenant-id={project}\n"),
        format!("[Global]\nauth-url={url}\ntrust-id={trust}\ntrustee-id={trustee}\ntrustee-password=pw\n"),
    ];
    let mut c = Connected::new().await;
    for conf in confs {
        c.cloud = build(&conf).await.unwrap_or_else(|error| panic!("{conf}\n{error:?}"));
        present(c.ask(by_id("node-1", &id)).await);
    }
    // Dropped only here, since the clouds above use it.
    drop(sim);
}

#[tokio::test]
async fn wrong_credentials_are_named_without_the_secret() {
    let sim = sim().await;
    let credential = sim
        .create_app_credential(&AppCredentialSpec {
            name: "ccm".into(),
            ..AppCredentialSpec::default()
        })
        .unwrap();
    let cases = [
        (replaced(&sim.cloud_conf(), "password", "hunter2"), "user \"ccm\""),
        (replaced(&sim.cloud_conf(), "username", "nobody"), "user \"nobody\""),
        (replaced(&sim.cloud_conf(), "tenant-name", "nowhere"), "user \"ccm\""),
        (
            replaced(&sim.cloud_conf_for(&credential), "application-credential-secret", "hunter2"),
            credential.id.as_str(),
        ),
        (
            replaced(&sim.cloud_conf_for(&credential), "application-credential-id", "no-such-id"),
            "no-such-id",
        ),
        (format!("[Global]\nauth-url={}\ntoken=hunter2\n", sim.auth_url()), "the configured token"),
    ];
    for (conf, who) in cases {
        let error = build(&conf).await.unwrap_err();
        let text = error.report();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{conf}\n{text}");
        assert!(text.contains(&sim.auth_url()) && text.contains(who), "{text}");
        assert!(!text.contains("hunter2") && !text.contains(&credential.secret), "{text}");
    }
}

#[tokio::test]
async fn a_wrong_region_or_endpoint_type_is_reported_with_the_alternatives() {
    let config = Config {
        regions: vec!["RegionOne".into(), "RegionTwo".into()],
        ..Config::default()
    };
    let sim = OpenStack::start(config).await.unwrap();
    let error = build(&replaced(&sim.cloud_conf(), "region", "RegionThree")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("available regions: RegionOne, RegionTwo"), "{error}");
    // Without a project there is no catalog.
    let error = build(
        &without(&sim.cloud_conf(), &["tenant-name", "domain-name"])
            .replace("username", "user-domain-name=Default\nusername"),
    )
    .await
    .unwrap_err();
    assert!(error.to_string().contains("catalog is empty"), "{error}");
}

#[tokio::test]
async fn the_region_and_endpoint_type_decide_where_calls_go() {
    let config = Config {
        regions: vec!["RegionOne".into(), "RegionTwo".into()],
        ..Config::default()
    };
    let sim = OpenStack::start(config).await.unwrap();
    let id = sim
        .create_server(&ServerSpec {
            region: Some("RegionTwo".into()),
            ..ServerSpec::named("node-1")
        })
        .unwrap();
    let conf = replaced(&sim.cloud_conf(), "region", "RegionTwo");
    let cloud = build(&format!("{conf}os-endpoint-type=internal\n")).await.unwrap();
    let c = Connected { sim, cloud };
    let instance = present(c.ask(by_id("node-1", &id)).await);
    assert_eq!(instance.region.as_deref(), Some("RegionTwo"));
    let calls: Vec<_> = c.sim.calls().into_iter().filter(|call| call.service != "identity").collect();
    assert!(!calls.is_empty());
    assert!(
        calls.iter().all(|call| call.region == "RegionTwo" && call.interface == "internal"),
        "{calls:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_not_keystone_is_reported() {
    for answer in [
        answer("200 OK", "", "<html></html>"),
        answer("404 Not Found", "", ""),
        answer("201 Created", "", "{}"),
        answer("302 Found", "Location: http://127.0.0.2:1/login\r\n", ""),
    ] {
        let server = Server::start(move |_| answer.clone()).await;
        for path in ["", "/v3"] {
            let url = format!("{}{path}", server.url());
            let conf = format!("[Global]\nauth-url={url}\nuser-id=u\npassword=hunter2\ntenant-id=t\n");
            let error = build(&conf).await.unwrap_err();
            let text = error.report();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{text}");
            assert!(text.contains("no OpenStack Identity service answers") && text.contains(&url), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

#[tokio::test]
async fn an_unreachable_keystone_is_unavailable() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = build(&format!("[Global]\nauth-url=http://{address}/v3\nuser-id=u\npassword=p\n"))
        .await
        .unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, RequestOutcome::NotDone));
    assert!(error.report().contains(&format!("http://{address}/v3")), "{}", error.report());
}

#[tokio::test]
async fn a_storm_of_refused_tokens_gets_one_new_token() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(40, &ServerSpec::named("node-{i}")).unwrap();
    c.sim.revoke_tokens();
    let queries: Vec<_> = ids.iter().map(|id| existence(by_id("node-1", id))).collect();
    let asked = queries.chunks(1).map(|queries| c.describe(queries, Freshness::now()));
    for answer in futures_util::future::join_all(asked).await.into_iter().flatten() {
        present(answer);
    }
    assert_eq!(c.count("token_create"), 1, "{:?}", c.sim.call_counts());
    assert!(c.sim.calls().iter().any(|call| call.status == Some(401)));
}

#[tokio::test]
async fn a_token_that_is_refused_again_is_an_error_and_no_loop() {
    let c = Connected::new().await;
    let id = c.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    c.sim.add_fault(Fault::on("server_get", Action::status(401)));
    let error = c.ask(existence(by_id("node-1", &id))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.to_string().contains(&c.sim.auth_url()), "{error}");
    assert_eq!((c.count("server_get"), c.count("token_create")), (2, 1));
}

#[tokio::test]
async fn a_changed_password_is_reported_and_does_not_lock_the_user_out() {
    let c = Connected::new().await;
    let ids = c.sim.create_servers(20, &ServerSpec::named("node-{i}")).unwrap();
    c.sim.set_password(None, "another").unwrap();
    c.sim.revoke_tokens();
    for id in &ids {
        let error = c.ask(existence(by_id("node-1", id))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    }
    assert_eq!(c.count("token_create"), 1, "{:?}", c.sim.call_counts());
}

#[tokio::test]
async fn tokens_are_renewed_before_they_expire() {
    let config = Config {
        token_lifetime: Duration::from_secs(6),
        ..Config::default()
    };
    let c = Connected::with(config, "").await;
    let id = c.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let queries = [existence(by_id("node-1", &id))];
    // Each query is a call; the gate limits their rate.
    while c.count("token_create") == 0 {
        present(c.describe(&queries, Freshness::now()).await.pop().unwrap());
    }
    assert!(
        c.sim.calls().iter().all(|call| call.status != Some(401)),
        "a token expired while it was in use"
    );
}

#[tokio::test]
async fn a_token_that_expires_at_once_is_replaced_when_it_is_refused() {
    let config = Config {
        token_lifetime: Duration::from_millis(300),
        ..Config::default()
    };
    let c = Connected::with(config, "").await;
    let id = c.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    let queries = [existence(by_id("node-1", &id))];
    while c.count("token_create") == 0 {
        present(c.describe(&queries, Freshness::now()).await.pop().unwrap());
    }
    let refused = c.sim.calls().iter().filter(|call| call.status == Some(401)).count();
    assert_eq!(refused, 1, "one refusal, one new token");
}

#[tokio::test]
async fn a_keystone_that_is_down_does_not_matter_while_the_token_is_good() {
    let config = Config {
        token_lifetime: Duration::from_secs(8),
        ..Config::default()
    };
    let c = Connected::with(config, "").await;
    let id = c.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    c.sim.add_fault(Fault::on("token_create", Action::status(503)));
    let queries = [existence(by_id("node-1", &id))];
    while c.count("token_create") == 0 {
        present(c.describe(&queries, Freshness::now()).await.pop().unwrap());
    }
    present(c.describe(&queries, Freshness::now()).await.pop().unwrap());
    assert_eq!(c.count("token_create"), 1, "it is left alone for a while");
}

#[tokio::test]
async fn a_project_without_rights_is_distinguished_from_wrong_credentials() {
    let c = Connected::new().await;
    let id = c.sim.create_server(&ServerSpec::named("node-1")).unwrap();
    c.sim.add_fault(Fault::on("server_get", Action::status(403)));
    let error = c.ask(by_id("node-1", &id)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("request_id=req-"), "{error}");
}
