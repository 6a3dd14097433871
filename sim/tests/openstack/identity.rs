//! Keystone.

use std::time::Duration;

use ccm_sim::openstack::{AppCredentialSpec, Config, UserSpec};
use reqwest::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Session, password_login};

const UNAUTHORIZED: &str = "The request you have made requires authentication.";

fn app_credential(data: &Value) -> Value {
    json!({"auth": {"identity": {"methods": ["application_credential"], "application_credential": data}}})
}

#[tokio::test]
async fn lists_its_versions_with_300() {
    let session = Session::start().await;
    let answer = session.get("/identity/").await;
    assert_eq!(answer.status, 300);
    assert_eq!(answer.at("/versions/values/0/id"), "v3.14");
    assert_eq!(answer.at("/versions/values/0/links/0/href"), format!("{}/", session.cloud.auth_url()));
    let answer = session.get("/identity/v3").await;
    assert_eq!((answer.status, answer.at("/version/status")), (200, "stable"));
}

#[tokio::test]
async fn a_login_answers_a_token_and_a_catalog_of_all_regions_and_interfaces() {
    let config = Config {
        regions: vec!["RegionOne".into(), "RegionTwo".into()],
        ..Config::default()
    };
    let session = Session::with(config).await;
    let answer = session.login(&password_login("ccm", "correct-horse", Some("k8s"))).await;
    assert_eq!(answer.status, 201);
    assert!(answer.header("x-subject-token").len() > 100);
    assert!(answer.header("x-openstack-request-id").starts_with("req-"));
    assert_eq!(answer.at("/token/project/id"), session.cloud.project_id());
    assert!(answer.at("/token/expires_at").ends_with(".000000Z"));
    let mut endpoints = Vec::new();
    for service in answer.json["token"]["catalog"].as_array().unwrap() {
        for endpoint in service["endpoints"].as_array().unwrap() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            endpoints.push((text(&service["type"]), text(&endpoint["region"]), text(&endpoint["interface"])));
            // The path of an object below it.
            let below = match service["type"].as_str().unwrap() {
                "compute" => "/flavors/2",
                "key-manager" => "/v1/secrets/none",
                _ => "",
            };
            let found = session.get(&(text(&endpoint["url"]) + below)).await;
            assert!(matches!(found.status, 200 | 300 | 404), "{endpoint}: {}", found.status);
        }
    }
    endpoints.sort();
    endpoints.dedup();
    assert_eq!(endpoints.len(), 5 * 2 * 3);
    let interfaces: Vec<&str> = session.cloud.calls().iter().map(|call| call.interface).collect();
    assert_eq!(interfaces.iter().filter(|name| **name == "internal").count(), 10);
}

#[tokio::test]
async fn refuses_wrong_credentials_as_keystone_does() {
    let session = Session::start().await;
    let credential = session.cloud.create_app_credential(&AppCredentialSpec::default()).unwrap();
    for (case, body, status, message) in [
        ("wrong password", password_login("ccm", "wrong", Some("k8s")), 401, UNAUTHORIZED),
        ("unknown user", password_login("nobody", "x", Some("k8s")), 401, UNAUTHORIZED),
        (
            "unknown project",
            password_login("ccm", "correct-horse", Some("other")),
            401,
            UNAUTHORIZED,
        ),
        (
            "wrong secret",
            app_credential(&json!({"id": credential.id, "secret": "wrong"})),
            401,
            UNAUTHORIZED,
        ),
        (
            "unknown credential",
            app_credential(&json!({"id": "abc", "secret": "x"})),
            404,
            "Could not find Application Credential: abc.",
        ),
    ] {
        let answer = session.login(&body).await;
        assert_eq!((answer.status, answer.at("/error/message")), (status, message), "{case}");
        let challenge = answer.header("www-authenticate");
        assert_eq!(challenge.starts_with("Keystone uri="), status == 401, "{case}");
    }
}

#[tokio::test]
async fn an_application_credential_brings_its_own_scope() {
    let session = Session::start().await;
    let spec = AppCredentialSpec {
        name: "ccm-cred".into(),
        ..AppCredentialSpec::default()
    };
    let credential = session.cloud.create_app_credential(&spec).unwrap();
    let by_id = app_credential(&json!({"id": credential.id, "secret": credential.secret}));
    let user = json!({"name": "ccm", "domain": {"name": "Default"}});
    let by_name = app_credential(&json!({"name": "ccm-cred", "secret": credential.secret, "user": user}));
    for body in [&by_id, &by_name] {
        let answer = session.login(body).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        assert_eq!(answer.at("/token/project/name"), "k8s");
        assert_eq!(answer.at("/token/application_credential/id"), credential.id);
    }
    let mut scoped = by_id.clone();
    scoped["auth"]["scope"] = json!({"project": {"id": session.cloud.project_id()}});
    let answer = session.login(&scoped).await;
    assert_eq!(answer.status, 401);
    assert!(answer.at("/error/message").ends_with("Application credentials cannot request a scope."));

    let token = session.login(&by_id).await.header("x-subject-token").to_owned();
    let rescope = json!({"auth": {"identity": {"methods": ["token"], "token": {"id": token}}}});
    assert_eq!(session.login(&rescope).await.status, 403);
    session.cloud.delete_app_credential(&credential.id).unwrap();
    assert_eq!(session.login(&rescope).await.status, 404, "the credential's tokens are gone with it");
}

#[tokio::test]
async fn a_token_makes_a_token_that_ends_no_later() {
    let session = Session::start().await;
    let unscoped = session.login(&password_login("ccm", "correct-horse", None)).await;
    assert!(unscoped.json["token"].get("catalog").is_none());
    session.cloud.advance_clock(Duration::from_secs(600));
    let scope = json!({"project": {"id": session.cloud.project_id()}});
    let token = json!({"id": unscoped.header("x-subject-token")});
    let body = json!({"auth": {"identity": {"methods": ["token"], "token": token}, "scope": scope}});
    let scoped = session.login(&body).await;
    assert_eq!(scoped.status, 201);
    assert_eq!(scoped.at("/token/expires_at"), unscoped.at("/token/expires_at"));
    assert_eq!(scoped.at("/token/project/name"), "k8s");
}

#[tokio::test]
async fn a_trust_is_for_its_trustee() {
    let session = Session::start().await;
    let spec = UserSpec {
        name: "trustee".into(),
        password: "t".into(),
        projects: Some(vec![]),
        admin: false,
    };
    session.cloud.create_user(&spec).unwrap();
    let trust = session.cloud.create_trust("ccm", "trustee", "k8s").unwrap();
    let mut body = password_login("trustee", "t", None);
    body["auth"]["scope"] = json!({"OS-TRUST:trust": {"id": trust}});
    let answer = session.login(&body).await;
    assert_eq!(answer.status, 201, "{}", answer.text);
    assert_eq!(answer.at("/token/OS-TRUST:trust/id"), trust);
    assert_eq!(answer.at("/token/project/name"), "k8s");
    let mut body = password_login("ccm", "correct-horse", None);
    body["auth"]["scope"] = json!({"OS-TRUST:trust": {"id": trust}});
    assert_eq!(session.login(&body).await.status, 403);
}

#[tokio::test]
async fn refuses_malformed_requests_with_400() {
    let session = Session::start().await;
    let post = |content_type: &'static str, body: &'static str| {
        let url = format!("{}/auth/tokens", session.cloud.auth_url());
        let request = session.http.post(url).header("content-type", content_type).body(body);
        async { Answer::of(request.send().await.unwrap()).await }
    };
    for (content_type, body, message) in [
        ("application/json", "{", "Expecting to find valid JSON in request body."),
        ("application/json", "[]", "Expecting to find auth in request body."),
        ("application/json", "{}", "Expecting to find auth in request body."),
        (
            "application/json",
            r#"{"auth":{"identity":{"methods":["password"]}}}"#,
            "Expecting to find password in identity.",
        ),
        (
            "application/json",
            r#"{"auth":{"identity":{"methods":["password"],"password":{"user":{"name":"ccm","password":"x"}}}}}"#,
            "Expecting to find domain in user.",
        ),
    ] {
        let answer = post(content_type, body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.at("/error/message").starts_with(message), "{body}: {}", answer.text);
    }
}

#[tokio::test]
async fn a_token_can_be_read_until_it_expires() {
    let session = Session::start().await;
    let look = || {
        let request = session.request(Method::GET, "/identity/v3/auth/tokens");
        let request = request.header("x-subject-token", &session.token);
        async { Answer::of(request.send().await.unwrap()).await }
    };
    let answer = look().await;
    assert_eq!((answer.status, answer.at("/token/user/name")), (200, "ccm"));
    assert_eq!(session.nova("2.1", "/servers/detail").await.status, 200);
    session.cloud.advance_clock(Duration::from_secs(3601));
    assert_eq!(look().await.status, 401);
    for path in [
        "/RegionOne/compute/v2.1/servers/detail",
        "/RegionOne/network/v2.0/ports",
    ] {
        let answer = session.get(path).await;
        assert_eq!((answer.status, answer.at("/error/message")), (401, UNAUTHORIZED), "{path}");
        assert!(answer.header("www-authenticate").starts_with("Keystone uri="), "{path}");
    }
}

#[tokio::test]
async fn tokens_end_when_they_are_revoked_or_the_password_changes() {
    let session = Session::start().await;
    let login = password_login("ccm", "correct-horse", Some("k8s"));
    session.cloud.revoke_tokens();
    assert_eq!(session.nova("2.1", "/servers/detail").await.status, 401);
    let token = session.login(&login).await.header("x-subject-token").to_owned();
    let session = Session { token, ..session };
    assert_eq!(session.nova("2.1", "/servers/detail").await.status, 200);
    session.cloud.set_password(None, "new").unwrap();
    assert_eq!(session.nova("2.1", "/servers/detail").await.status, 401);
    assert_eq!(session.login(&login).await.status, 401);
    assert_eq!(session.login(&password_login("ccm", "new", Some("k8s"))).await.status, 201);
}

#[tokio::test]
async fn without_a_project_only_public_documents_are_visible() {
    let session = Session::start().await;
    let unscoped = session.login(&password_login("ccm", "correct-horse", None)).await;
    let session = Session {
        token: unscoped.header("x-subject-token").to_owned(),
        ..session
    };
    assert_eq!(session.nova("2.1", "/servers/detail").await.status, 403);
    assert_eq!(session.neutron("/ports").await.each("ports", "id"), Vec::<String>::new());
    let networks = session.neutron("/networks").await;
    assert_eq!(networks.each("networks", "name"), ["public"]);
}

#[tokio::test]
async fn a_revoked_token_is_known_as_one_and_nonsense_is_not() {
    let session = Session::start().await;
    let login = password_login("ccm", "correct-horse", Some("k8s"));
    let other = session.login(&login).await.header("x-subject-token").to_owned();
    let look = |method: Method, subject: &str| {
        let request = session.request(method, "/identity/v3/auth/tokens");
        let request = request.header("x-subject-token", subject);
        async { Answer::of(request.send().await.unwrap()).await }
    };
    assert_eq!(look(Method::DELETE, &other).await.status, 204);
    for (subject, message) in [
        (other.as_str(), "Failed to validate token"),
        ("nonsense", "Could not recognize Fernet token"),
    ] {
        let answer = look(Method::GET, subject).await;
        assert_eq!((answer.status, answer.at("/error/message")), (404, message));
    }
    assert_eq!(session.get("/identity/v3/auth/tokens").await.status, 403, "no subject");
}
