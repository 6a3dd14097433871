//! The start: metadata server, credentials, project, zone and network; and their change while the program runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    BuildContext, Cloud, Environment, ErrorKind, InstanceState, Priority, Result,
    testkit::{
        self,
        cluster::advance_to,
        server::{Server, answer},
    },
};
use ccm_provider_gce::NAME;
use ccm_testbed::{
    gce::{GceOptions, PROJECT_NUMBER, TOKEN},
    observe::assert_has,
    proxy::{Action, Request, Rule},
    test_cloud::GceCloud,
};
use serde_json::json;
use tokio::time::Instant;

use crate::stage::{Stage, build, calls, environment, present};

/// The config file that only names the endpoint.
fn endpoint(gce: &GceCloud) -> String {
    format!("[global]\napi-endpoint = {}\n", gce.proxy.api_endpoint())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metadata_server_answers_what_the_config_leaves_out() {
    let gce = GceCloud::start().await.unwrap();
    let cloud = build(&gce, &endpoint(&gce)).await.unwrap();
    assert_has(&cloud.scope(), &["project \"test-project\"", "region \"us-central1\""]);
    assert_eq!(calls(&gce), ["zones.list"]);
    let read: Vec<_> = gce
        .proxy
        .requests()
        .into_iter()
        .filter(|request| request.resource == "metadata")
        .map(|request| request.path.replace("/computeMetadata/v1/", ""))
        .collect();
    let expected = [
        "universe/universe-domain",
        "project/project-id",
        "instance/zone",
        "instance/network-interfaces/0/network",
        "project/numeric-project-id",
        "instance/service-accounts/default/token",
    ];
    assert_eq!(read, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_network_of_an_instance_may_be_that_of_another_project() {
    let options = GceOptions {
        projects: vec!["test-project".to_owned(), "host-project".to_owned()],
        ..GceOptions::default()
    };
    let gce = GceCloud::start_with(&options).await.unwrap();
    let environment = metadata_server(
        "projects/123456789012/zones/us-central1-a",
        "projects/123456789013/networks/default",
    )
    .await;
    let cloud = testkit::build(NAME, &endpoint(&gce), environment).await.unwrap();
    let route = cloud.routes().unwrap().observe(&[], Priority::User).await;
    assert!(route.unwrap().routes.is_empty());
    let listed = gce.proxy.requests().into_iter().find(|request| request.name == "routes.list").unwrap();
    assert_has(&listed.path, &["/projects/host-project/global/routes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_calls_share_one_token() {
    let stage = Stage::new("").await;
    stage.machines(5).await;
    for _ in 0..3 {
        stage.find("n-1", None).await.unwrap();
    }
    assert_eq!(token_reads(&stage.gce), 0, "the token of the start is still good");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_may_be_given_by_its_number() {
    let gce = GceCloud::start().await.unwrap();
    let conf = format!("{}project-id = {PROJECT_NUMBER}\n", endpoint(&gce));
    let cloud = build(&gce, &conf).await.unwrap();
    assert_has(&cloud.scope(), &["project \"test-project\""]);
    assert_eq!(calls(&gce), ["projects.get", "zones.list"]);
    // Without the right to read it, the number is used.
    gce.set("iam", &json!({"test-project": {"granted": ["*"], "denied": ["compute.projects.get"]}}))
        .await
        .unwrap();
    match build(&gce, &conf).await {
        Ok(cloud) => assert_has(&cloud.scope(), &[PROJECT_NUMBER]),
        // The server does not know numbers in paths.
        Err(error) => assert_has(&error.report(), &[PROJECT_NUMBER]),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zone_that_does_not_exist_is_named_with_those_that_do() {
    let gce = GceCloud::start().await.unwrap();
    let error = build(&gce, &format!("{}local-zone = us-central1-d\n", endpoint(&gce))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_has(
        &error.report(),
        &[
            "zone \"us-central1-d\" does not exist in project \"test-project\"",
            "us-central1-a, us-central1-b",
        ],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_metadata_server_the_keys_are_named() {
    let nowhere = Environment::default().with("GCE_METADATA_HOST", "127.0.0.1:9");
    let conf = "[global]\napi-endpoint = http://127.0.0.1:9\n";
    let error = testkit::build(NAME, conf, nowhere).await.unwrap_err();
    assert_has(
        &error.report(),
        &[
            "metadata server",
            "outside GCE, set token-url = nil and GOOGLE_APPLICATION_CREDENTIALS",
        ],
    );

    // Another server at this address.
    let server = Server::start(|_| answer("200 OK", "", "<html>")).await;
    let other = Environment::default().with("GCE_METADATA_HOST", format!("127.0.0.1:{}", server.port()));
    let error = testkit::build(NAME, conf, other).await.unwrap_err();
    assert_has(&error.report(), &["is not that of a metadata server"]);
}

/// A metadata server of an instance in this zone and this network.
async fn metadata_server(zone: &'static str, network: &'static str) -> Environment {
    let server = Server::start(move |request| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (status, value) = match path.strip_prefix("/computeMetadata/v1/").unwrap_or_default() {
            "project/project-id" => ("200 OK", "test-project"),
            "project/numeric-project-id" => ("200 OK", PROJECT_NUMBER),
            "instance/zone" => ("200 OK", zone),
            "instance/network-interfaces/0/network" => ("200 OK", network),
            "instance/service-accounts/default/token" => {
                ("200 OK", r#"{"access_token": "t", "expires_in": 3599}"#)
            }
            _ => ("404 Not Found", ""),
        };
        answer(status, "Metadata-Flavor: Google\r\n", value)
    })
    .await;
    Environment::default().with("GCE_METADATA_HOST", format!("127.0.0.1:{}", server.port()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zone_of_the_metadata_server_without_a_hyphen_is_refused() {
    let gce = GceCloud::start().await.unwrap();
    let network = "projects/123456789012/networks/default";
    for (zone, text) in [
        ("projects/123456789012/zones/central", "\"central\" is not a zone; set local-zone"),
        ("zones/us-central1-a", "which has not four parts; set local-zone"),
    ] {
        let environment = metadata_server(zone, network).await;
        let error = testkit::build(NAME, &endpoint(&gce), environment).await.unwrap_err();
        assert_has(&error.report(), &[text]);
    }
    assert_eq!(calls(&gce), [""; 0]);
}

/// A key of a service account.
fn service_account(more: &str) -> String {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let mut file = json!({
        "type": "service_account", "client_email": "ccm@test-project.iam.gserviceaccount.com", "private_key_id": "1",
        "private_key": key.serialize_pem(), "project_id": "test-project",
    });
    if !more.is_empty() {
        file["universe_domain"] = json!(more);
    }
    file.to_string()
}

/// A folder with a credentials file, and a context with it.
struct WithKey {
    folder: tempfile::TempDir,
    context: BuildContext,
    _conf: tempfile::TempDir,
}

impl WithKey {
    fn new(gce: &GceCloud, key: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.json");
        std::fs::write(&path, key).unwrap();
        let environment = environment(gce).with("GOOGLE_APPLICATION_CREDENTIALS", path.to_str().unwrap());
        let conf = format!("{}token-url = nil\nproject-id = test-project\n", endpoint(gce));
        let (conf, context) = testkit::context(&conf, environment);
        Self {
            folder,
            context,
            _conf: conf,
        }
    }

    async fn build(&self) -> Result<Arc<dyn Cloud>> {
        (testkit::provider(NAME).validate)(&self.context)?;
        (testkit::provider(NAME).build)(self.context.clone()).await
    }

    fn write(&self, key: &str) {
        std::fs::write(self.folder.path().join("key.json"), key).unwrap();
    }
}

/// The values of a header in the requests of a server.
fn header(server: &Server, name: &str) -> Vec<String> {
    let prefix = format!("{name}: ");
    let requests = server.requests();
    requests
        .iter()
        .filter_map(|request| {
            request.lines().find_map(|line| {
                line.to_lowercase().starts_with(&prefix).then(|| line[prefix.len()..].to_owned())
            })
        })
        .collect()
}

const ZONES: &str = r#"{"kind": "compute#zoneList", "id": "z", "selfLink": "z", "items": [
    {"name": "us-central1-a", "region": "https://www.googleapis.com/compute/v1/projects/p/regions/us-central1"}]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_service_account_signs_its_own_tokens() {
    let server = Server::start(|_| answer("200 OK", "Content-Type: application/json\r\n", ZONES)).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key.json");
    std::fs::write(&path, service_account("example-cloud.test")).unwrap();
    let environment = Environment::default().with("GOOGLE_APPLICATION_CREDENTIALS", path.to_str().unwrap());
    let conf = format!(
        "[global]\ntoken-url = nil\nproject-id = p\nlocal-zone = us-central1-a\nnetwork-name = default\napi-endpoint = {}\n",
        server.url()
    );
    let cloud = testkit::build(NAME, &conf, environment).await.unwrap();
    assert_has(&cloud.scope(), &["project \"p\"", &server.url()]);
    assert_has(&server.lines()[0], &["GET /compute/v1/projects/p/zones?"]);
    let token = header(&server, "authorization").remove(0);
    // A signed JWT. The emulated metadata server was not asked.
    assert_eq!(token.strip_prefix("Bearer ").unwrap().split('.').count(), 3, "{token}");
    assert_eq!(header(&server, "user-agent"), [testkit::USER_AGENT]);
}

/// The path at which an account is impersonated.
const IMPERSONATION: &str =
    "/v1/projects/-/serviceAccounts/ccm@p.iam.gserviceaccount.com:generateAccessToken";

/// A server for tokens of all kinds, and for the zones.
async fn token_service() -> Server {
    Server::start(|request| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let body = match path {
            "/user" => r#"{"access_token": "of-user", "token_type": "Bearer", "expires_in": 3599}"#,
            "/exchange" => {
                r#"{"access_token": "federated", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
                    "token_type": "Bearer", "expires_in": 3599}"#
            }
            IMPERSONATION => r#"{"accessToken": "impersonated", "expireTime": "2099-01-01T00:00:00Z"}"#,
            _ => ZONES,
        };
        answer("200 OK", "Content-Type: application/json\r\n", body)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn users_federated_workloads_and_impersonated_accounts_get_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let subject = folder.path().join("subject");
    std::fs::write(&subject, "of-workload").unwrap();
    for (kind, token, path, sent) in [
        ("authorized_user", "of-user", "/user", "\"refresh_token\":\"r\""),
        ("external_account", "federated", "/exchange", "of-workload"),
        ("impersonated_service_account", "impersonated", IMPERSONATION, "of-user"),
    ] {
        let server = token_service().await;
        let user = json!({
            "type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "r",
            "token_uri": format!("{}/user", server.url()),
        });
        let key = match kind {
            "authorized_user" => user,
            "external_account" => json!({
                "type": kind, "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
                "token_url": format!("{}/exchange", server.url()),
                "credential_source": {"file": subject.to_str().unwrap()},
            }),
            _ => json!({
                "type": kind, "service_account_impersonation_url": format!("{}{IMPERSONATION}", server.url()),
                "source_credentials": user,
            }),
        };
        let file = folder.path().join("key.json");
        std::fs::write(&file, key.to_string()).unwrap();
        let environment =
            Environment::default().with("GOOGLE_APPLICATION_CREDENTIALS", file.to_str().unwrap());
        let conf = format!(
            "[global]\ntoken-url = nil\nproject-id = p\nlocal-zone = us-central1-a\nnetwork-name = default\napi-endpoint = {}\n",
            server.url()
        );
        testkit::build(NAME, &conf, environment).await.unwrap();
        let requests = server.requests();
        let exchange = requests.iter().find(|request| request.starts_with(&format!("POST {path} ")));
        assert_has(exchange.unwrap_or_else(|| panic!("{kind}: {requests:#?}")), &[sent]);
        assert_eq!(header(&server, "authorization").last(), Some(&format!("Bearer {token}")), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_domain_of_a_credentials_file_is_that_of_the_api() {
    let gce = GceCloud::start().await.unwrap();
    let key = WithKey::new(&gce, &service_account("universe.invalid"));
    let conf =
        "[global]\ntoken-url = nil\nproject-id = p\nlocal-zone = us-central1-a\nnetwork-name = default\n";
    let (_folder, context) = testkit::context(conf, key.context.environment.clone());
    let error = (testkit::provider(NAME).build)(context).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert_has(&error.report(), &["universe.invalid"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_credentials_file_is_used_if_the_api_accepts_it() {
    let gce = GceCloud::start().await.unwrap();
    let with_key = WithKey::new(&gce, &service_account(""));
    let cloud = with_key.build().await.unwrap();
    assert!(
        cloud.watched_files().iter().any(|file| file.ends_with("key.json")),
        "{:?}",
        cloud.watched_files()
    );
    assert_eq!(cloud.generation(), 0);
    assert!(cloud.reload().await.unwrap().applied.is_empty(), "nothing changed");
    assert_eq!(cloud.generation(), 0);

    with_key.write(&service_account(""));
    let reload = cloud.reload().await.unwrap();
    assert_has(&reload.applied.join(" "), &["key.json"]);
    assert_eq!(cloud.generation(), 1);

    // The API refuses another one: the last one stays in use.
    with_key.write(&service_account(""));
    gce.set(
        "faults",
        &json!([{"method": "zones.list", "status": 401, "reason": "authError", "times": 9}]),
    )
    .await
    .unwrap();
    let error = cloud.reload().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error:?}");
    assert_eq!(cloud.generation(), 1);
    gce.set("faults", &json!([])).await.unwrap();
    with_key.write("{}");
    let error = cloud.reload().await.unwrap_err();
    assert_has(&error.report(), &["type \"\" is not supported"]);
    assert_eq!(cloud.generation(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alternate_endpoint_exchanges_the_token_of_the_metadata_server() {
    let tokens = Server::start(|_| {
        let body = r#"{"accessToken": "exchanged", "expireTime": "2099-01-01T00:00:00Z"}"#;
        answer("200 OK", "Content-Type: application/json\r\n", body)
    })
    .await;
    let gce = GceCloud::start().await.unwrap();
    let more = format!("token-url = {}/generate\ntoken-body = \"{{\\\"a\\\": 1}}\"\n", tokens.url());
    let cloud = build(&gce, &format!("{}{more}", endpoint(&gce))).await.unwrap();
    assert_has(&cloud.scope(), &["test-project"]);
    let requests = tokens.requests();
    assert_eq!(requests.len(), 1, "{requests:#?}");
    assert_has(&requests[0], &["POST /generate", "{\"a\": 1}"]);
    assert_eq!(header(&tokens, "authorization"), [format!("Bearer {TOKEN}")]);

    let refused = Server::start(|_| answer("403 Forbidden", "", "not you")).await;
    let more = format!("token-url = {}\n", refused.url());
    let error = build(&gce, &format!("{}{more}", endpoint(&gce))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error:?}");
    assert_has(&error.report(), &["alternate token endpoint: it answers 403 not you"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_replaced_once() {
    let stage = Stage::new("").await;
    stage.launch(&["n-1"], &json!({})).await;
    stage.fail("instances.get", 401, "authError", "Invalid Credentials", false).await;
    let id = "gce://test-project/us-central1-a/n-1";
    stage.find("n-1", Some(id)).await.unwrap();
    assert_eq!((token_reads(&stage.gce), stage.count("instances.get")), (1, 2));
}

/// The requests for tokens since the last ones were forgotten.
fn token_reads(gce: &GceCloud) -> usize {
    let requests = gce.proxy.requests();
    requests.iter().filter(|request| request.path.ends_with("/token")).count()
}

/// From now on, the metadata server has this token, which lives an hour, and the API accepts these.
async fn set_tokens(gce: &GceCloud, issued: &str, accepted: &[&str]) {
    let tokens = json!({"issued": issued, "seconds": HOUR.as_secs(), "accepted": accepted});
    gce.set("tokens", &tokens).await.unwrap();
}

const HOUR: Duration = Duration::from_secs(3600);
/// The instance of the tests of tokens.
const INSTANCE: &str = "gce://test-project/us-central1-a/n-1";

#[tokio::test]
async fn a_token_is_replaced_before_it_expires() {
    let stage = Stage::new("").await;
    stage.launch(&["n-1"], &json!({})).await;
    let find = async || stage.find("n-1", Some(INSTANCE)).await;
    // The token of the start expires, and the API accepts only the next one.
    set_tokens(&stage.gce, "second", &["second"]).await;
    advance_to(Instant::now() + HOUR - Duration::from_secs(60)).await;
    present(find().await);
    assert_eq!((token_reads(&stage.gce), stage.calls()), (1, vec!["instances.get".to_owned()]));

    // The metadata server does not answer: the token is used until it expires, and never after that.
    let is_token = |request: &Request| request.path.ends_with("/token");
    let silent = stage.gce.proxy.add(Rule::when(is_token, Action::Reset));
    advance_to(Instant::now() + HOUR - Duration::from_secs(60)).await;
    present(find().await);
    advance_to(Instant::now() + Duration::from_secs(60)).await;
    stage.gce.proxy.forget();
    let error = find().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert_has(&error.report(), &["no token", "metadata server"]);
    assert_eq!(stage.calls(), [""; 0], "nothing was sent with an expired token");

    stage.gce.proxy.remove(silent);
    present(find().await);
}

#[tokio::test]
async fn with_a_revoked_token_no_instance_is_absent_and_the_next_token_is_used() {
    let stage = Stage::new("").await;
    let find = async || stage.find("n-1", Some(INSTANCE)).await;
    // The metadata server still has the revoked token. The instance does not exist, which must not be known now.
    set_tokens(&stage.gce, TOKEN, &[]).await;
    for _ in 0..3 {
        let error = find().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error:?}");
        assert_has(&error.report(), &["authError"]);
    }
    assert_eq!(token_reads(&stage.gce), 1, "the metadata server is not asked with each call");
    assert_eq!(stage.count("instances.get"), 3 + 1, "only the call with a new token is repeated");

    set_tokens(&stage.gce, "next", &["next"]).await;
    advance_to(Instant::now() + Duration::from_secs(10)).await;
    assert_eq!(find().await.unwrap(), InstanceState::Absent);
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_changed_while_the_program_runs() {
    let gce = GceCloud::start_with(&GceOptions::default()).await.unwrap();
    let conf = endpoint(&gce);
    let (_folder, context) = testkit::context(&conf, environment(&gce));
    let path = context.cloud_config.clone().unwrap();
    let cloud = (testkit::provider(NAME).build)(context).await.unwrap();
    std::fs::write(&path, format!("{conf}node-tags = a\n[Quota]\nregion-reads-per-minute = 100\n")).unwrap();
    let reload = cloud.reload().await.unwrap();
    assert_eq!(reload.applied, ["[Quota] region-reads-per-minute"]);
    assert_eq!(reload.restart_needed, ["[global] node-tags"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_exceeds_the_rate_is_repeated_in_the_next_minute_of_the_cloud() {
    // The clock of the cloud is at the last second of a minute.
    let refusal = r#"{"error": {"code": 403, "message": "Quota exceeded for quota metric 'Read requests'.",
        "errors": [{"domain": "usageLimits", "reason": "rateLimitExceeded", "message": "x"}]}}"#;
    let refused = AtomicBool::new(false);
    let server = Server::start(move |_| {
        if refused.swap(true, Ordering::Relaxed) {
            answer("200 OK", "Content-Type: application/json\r\n", ZONES)
        } else {
            answer("403 Forbidden", "Date: Sun, 29 Nov 2026 01:40:59 GMT\r\n", refusal)
        }
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key.json");
    std::fs::write(&path, service_account("")).unwrap();
    let environment = Environment::default().with("GOOGLE_APPLICATION_CREDENTIALS", path.to_str().unwrap());
    let conf = format!(
        "[global]\ntoken-url = nil\nproject-id = p\nlocal-zone = us-central1-a\nnetwork-name = default\napi-endpoint = {}\n",
        server.url()
    );
    testkit::build(NAME, &conf, environment).await.unwrap();
    assert_eq!(server.lines().len(), 2, "{:?}", server.lines());
}
