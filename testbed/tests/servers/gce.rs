//! Compute Engine in memory: Google's own client, permissions, quotas, and many instances.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ccm_testbed::cache::say;
use ccm_testbed::gce::{GceOptions, GceServer, ZONES};
use ccm_testbed::proxy::Rule;
use ccm_testbed::test_cloud::{GceCloud, TestCloud as _};
use reqwest::Method;
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(60);

fn names(count: usize) -> Vec<String> {
    (1..=count).map(|at| format!("node-{at}")).collect()
}

async fn server(more: &[&str]) -> GceServer {
    let more = more.iter().map(|option| (*option).to_owned()).collect();
    let options = GceOptions {
        more,
        ..GceOptions::default()
    };
    GceServer::start(&options).await.unwrap()
}

fn firewall(name: &str) -> Value {
    json!({"name": name, "allowed": [{"IPProtocol": "tcp", "ports": ["80"]}]})
}

async fn refusal(
    server: &GceServer,
    project: &str,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> String {
    server.call_in(project, method, path, body).await.unwrap_err().to_string()
}

#[tokio::test]
async fn googles_own_client_agrees_with_the_server() {
    let options = GceOptions {
        projects: vec!["parity".to_owned()],
        operation: Duration::from_millis(20),
        ..GceOptions::default()
    };
    let server = GceServer::start(&options).await.unwrap();
    server.check_with_google_client().await.unwrap();
    let calls = server.take_calls().await.unwrap();
    assert!(calls["forwardingRules.insert"] > 5 && calls["zoneOperations.wait"] > 5, "{calls:?}");
}

#[tokio::test]
async fn what_is_not_described_is_refused() {
    let server = server(&[]).await;
    let mut misspelled = firewall("a");
    misspelled["sourceRange"] = json!(["10.0.0.0/8"]);
    let project = server.project();
    let text = refusal(&server, project, Method::POST, "global/firewalls", Some(&misspelled)).await;
    assert!(text.contains("sourceRange") && text.contains("400"), "{text}");
    let text = refusal(&server, project, Method::GET, "zones?filters=x", None).await;
    assert!(text.contains("filters"), "{text}");
    let text = refusal(&server, project, Method::GET, "global/images", None).await;
    assert!(text.contains("404"), "{text}");
}

#[tokio::test]
async fn five_thousand_instances_are_listed_in_pages() {
    let options = GceOptions {
        instance_bytes: 20_000,
        ..GceOptions::default()
    };
    let server = GceServer::start(&options).await.unwrap();
    let started = Instant::now();
    let created = server.create_instances(&names(5000), &ZONES, &json!({})).await.unwrap();
    let created_in = started.elapsed();
    let addresses: BTreeSet<_> = created
        .iter()
        .map(|instance| instance["networkInterfaces"][0]["networkIP"].as_str().unwrap())
        .collect();
    assert_eq!(addresses.len(), 5000);
    assert!(created[0].to_string().len() >= 20_000);
    let mut listed = 0;
    for zone in ZONES {
        let mut token = String::new();
        loop {
            let path = format!("zones/{zone}/instances?pageToken={token}");
            let page = server.call(Method::GET, &path, None).await.unwrap();
            listed += page["items"].as_array().unwrap().len();
            match page["nextPageToken"].as_str() {
                Some(next) => token = next.to_owned(),
                None => break,
            }
        }
    }
    assert_eq!(listed, 5000);
    let calls = server.take_calls().await.unwrap();
    assert_eq!(calls["instances.list"], 12, "1,250 instances in each zone, 500 on a page");
    say(format!("5,000 instances created in {created_in:?}, listed after {:?}", started.elapsed()));
}

/// A host project of a shared network refuses the cluster's account, and names the missing permission.
#[tokio::test]
async fn permissions_are_those_of_each_project() {
    let options = GceOptions {
        projects: vec!["service".to_owned(), "host".to_owned()],
        ..GceOptions::default()
    };
    let server = GceServer::start(&options).await.unwrap();
    let denied = json!({"host": {"granted": ["compute.projects.get", "compute.networks.get", "compute.firewalls.get"]}});
    server.set("iam", &denied).await.unwrap();
    let body = firewall("web");
    let text = refusal(&server, "host", Method::POST, "global/firewalls", Some(&body)).await;
    assert!(text.contains("forbidden") && text.contains("compute.firewalls.create"), "{text}");
    server.call_in("host", Method::GET, "global/networks/default", None).await.unwrap();
    server.call_in("service", Method::POST, "global/firewalls", Some(&body)).await.unwrap();
    // A resource of the service project uses the host's network.
    let network = "https://www.googleapis.com/compute/v1/projects/host/global/networks/default";
    let mut shared = firewall("shared");
    shared["network"] = json!(network);
    server.call_in("service", Method::POST, "global/firewalls", Some(&shared)).await.unwrap();

    let asked = json!({"permissions": ["compute.firewalls.get", "compute.firewalls.create"]});
    let url = format!("{}/v1/projects/host:testIamPermissions", server.url());
    let request = reqwest::Client::new().post(url).bearer_auth("x").json(&asked);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer, json!({"permissions": ["compute.firewalls.get"]}));
    let project = server.call_in("host", Method::GET, "", None).await.unwrap();
    assert_eq!(project["xpnProjectStatus"], "HOST");
}

#[tokio::test]
async fn quotas_count_by_minute_and_region() {
    let server = server(&["--rate=reads=2", "--minute=3"]).await;
    let read = async |region: &str| {
        let path = format!("regions/{region}/addresses");
        server.call(Method::GET, &path, None).await
    };
    // Two reads are in one minute, or the third one begins a new one.
    let mut refused = None;
    for _ in 0..6 {
        refused = refused.or(read("us-central1").await.err());
    }
    let text = refused.unwrap().to_string();
    assert!(text.contains("rateLimitExceeded") && text.contains("403"), "{text}");
    read("europe-west1").await.unwrap();
    let started = Instant::now();
    while read("us-central1").await.is_err() {
        assert!(started.elapsed() < DEADLINE, "the next minute does not begin");
    }
}

#[tokio::test]
async fn faults_are_in_answers_and_in_operations() {
    let server = server(&["--operation=0.02"]).await;
    let faults = json!([
        {"method": "firewalls.insert", "status": 403, "reason": "quotaExceeded"},
        {"method": "firewalls.insert", "status": 403, "reason": "QUOTA_EXCEEDED", "late": true},
    ]);
    server.set("faults", &faults).await.unwrap();
    let body = firewall("web");
    for expected in ["quotaExceeded", "QUOTA_EXCEEDED"] {
        let text = refusal(&server, server.project(), Method::POST, "global/firewalls", Some(&body)).await;
        assert!(text.contains(expected), "{text}");
    }
    server.call(Method::POST, "global/firewalls", Some(&body)).await.unwrap();
    let limits = json!({"firewalls": 1});
    server.set("limits", &limits).await.unwrap();
    let other = firewall("other");
    let text = refusal(&server, server.project(), Method::POST, "global/firewalls", Some(&other)).await;
    assert!(text.contains("quotaExceeded") && text.contains("FIREWALLS"), "{text}");
    server.call(Method::DELETE, "global/firewalls/web", None).await.unwrap();
    server.call(Method::POST, "global/firewalls", Some(&other)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_test_cloud_creates_machines_and_counts_calls() {
    let cloud = GceCloud::start().await.unwrap();
    let machines = cloud.create_machines(&names(5)).await.unwrap();
    let zones: Vec<_> = machines.iter().map(|machine| machine.provider_id.as_str()).collect();
    assert_eq!(
        zones,
        [
            "gce://test-project/us-central1-a/node-1",
            "gce://test-project/us-central1-b/node-2",
            "gce://test-project/us-central1-c/node-3",
            "gce://test-project/us-central1-a/node-4",
            "gce://test-project/us-central1-b/node-5",
        ]
    );
    let next = cloud.create_machine("next").await.unwrap();
    assert!(next.provider_id.contains("us-central1-c"), "{next:?}");

    let client = reqwest::Client::new();
    let list = format!("{}projects/test-project/zones/us-central1-a/instances", cloud.proxy.api_endpoint());
    let request = || client.get(&list).bearer_auth("x");
    let answer: Value = request().send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["items"].as_array().unwrap().len(), 2);
    let token = "computeMetadata/v1/instance/service-accounts/default/token";
    let url = format!("http://{}/{token}", cloud.proxy.metadata_host());
    let answer = client.get(url).header("Metadata-Flavor", "Google").send().await.unwrap();
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(vec![answer["access_token"].as_str().unwrap().to_owned()], cloud.secrets());
    let calls = cloud.calls();
    assert_eq!(calls["compute instances.list"], 1, "{calls:?}");
    assert!(cloud.proxy.writes().is_empty() && !cloud.is_write("compute instances.list"));

    let throttled = ccm_testbed::proxy::gce_refusal(403, "rateLimitExceeded");
    cloud.proxy.add(Rule::new(ccm_testbed::proxy::Action::answer(403, throttled)));
    let answer: Value = request().send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["error"]["errors"][0]["reason"], "rateLimitExceeded");
}
