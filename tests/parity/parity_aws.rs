//! Compares the objects of this program on moto for the Services of `aws/cases` with those of the upstream program. Also checks
//! that neither program changes the objects of the other.
// The tests print their results for manual runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

mod aws;
mod cases;
mod compare;
mod names;
mod play;
mod rules;
mod run;
mod site;
mod takeover;

use anyhow::Result;
use aws::AwsSite;
use cases::{Case, CaseState};
use kube::api::{Patch, PatchParams};
use play::Play;
use serde_json::{Value, json};
use site::Site as _;

/// Accounts at the same time, because the tests mostly wait.
const LANES: usize = 4;
/// Upstream refused the Services of the first two. The third was recorded on an emulator that did not keep the protocol to
/// instances, so that the recording differs from upstream's request.
const WITHOUT: [&str; 3] = ["nlb-udp-and-tcp", "nlb-bad-values", "classic-https"];

fn cases() -> Vec<Case> {
    cases::cases("aws").unwrap()
}

async fn account(_: String) -> Result<AwsSite> {
    AwsSite::start().await
}

async fn restricted_account(name: String) -> Result<AwsSite> {
    let site = account(name).await?;
    site.restrict()?;
    Ok(site)
}

#[tokio::test(flavor = "multi_thread")]
async fn services_equal_those_of_upstream() {
    run::compare("moto", LANES, cases(), account).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_equal_those_of_upstream_with_its_rights() {
    run::compare("restricted", LANES, cases(), restricted_account).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged() {
    run::take_over(cases(), &WITHOUT, account).await;
}

/// The prefix of the annotations of Services.
const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// A change of the Service, and a value of the account that follows from it: its path, and the value.
struct ChangeOfService {
    patch: Value,
    path: &'static str,
    value: Value,
}

/// Takes over objects of upstream with annotations that upstream does not read, changes the Service, and checks after each change
/// that upstream would write nothing.
#[tokio::test(flavor = "multi_thread")]
async fn upstream_writes_nothing_after_changes_of_this_program() {
    let annotations = |all: &[(&str, Option<&str>)]| {
        let all = all.iter().map(|(key, value)| (format!("{PREFIX}{key}"), json!(value)));
        let all: serde_json::Map<_, _> = all.collect();
        json!({"metadata": {"annotations": all}})
    };
    let ports = json!({"spec": {"ports": [
        {"name": "http", "port": 80}, {"name": "https", "port": 443}, {"name": "more", "port": 8080},
    ]}});
    let proxy = "proxy_protocol_v2.enabled";
    let changes = [
        // Its listener comes with the first write to the adopted load balancer.
        ChangeOfService {
            patch: ports,
            path: "/v2/0/listeners/1/name",
            value: json!("TCP:8080"),
        },
        ChangeOfService {
            patch: annotations(&[("alpn-policy", Some("HTTP1Only"))]),
            path: "/v2/0/listeners/2/alpn",
            value: json!(["HTTP1Only"]),
        },
        ChangeOfService {
            patch: annotations(&[("target-group-attributes", Some("proxy_protocol_v2.enabled=true"))]),
            path: "/target_groups/0/attributes/proxy_protocol_v2.enabled",
            value: json!("true"),
        },
        ChangeOfService {
            patch: annotations(&[("target-group-attributes", None)]),
            path: "/target_groups/0/attributes/proxy_protocol_v2.enabled",
            value: json!("false"),
        },
        ChangeOfService {
            patch: annotations(&[("healthcheck-timeout", Some("9"))]),
            path: "/target_groups/0/health/HealthCheckTimeoutSeconds",
            value: json!(9),
        },
        ChangeOfService {
            patch: annotations(&[("alpn-policy", None)]),
            path: "/v2/0/listeners/2/alpn",
            value: json!(["None"]),
        },
    ];
    let case = cases().into_iter().find(|case| case.name == "nlb-tls").unwrap();
    let _turn = run::TURNS.acquire().await.unwrap();
    let mut play = Play::set(AwsSite::start().await.unwrap()).await.unwrap();
    // A former process initializes the nodes.
    play.run(&Value::Null).await.unwrap();
    play.stop().await.unwrap();
    let mut state = takeover::build(&play, &case).await.unwrap();
    let patch = async |play: &Play<AwsSite>, patch: &Value| {
        let merge = PatchParams::default();
        play.services.patch("nlb-tls", &merge, &Patch::Merge(patch)).await.unwrap();
    };
    // Upstream does not read these.
    let unread = [
        ("alpn-policy", Some("HTTP2Preferred")),
        ("proxy-protocol", Some("*")),
        ("scheme", Some("internal")),
        ("healthcheck-timeout", Some("7")),
        ("attributes", Some("deletion_protection.enabled=true")),
    ];
    patch(&play, &annotations(&unread)).await;
    play.run(&case.config).await.unwrap();
    for change in changes {
        let moment = play.site.mark().unwrap();
        patch(&play, &change.patch).await;
        let applied = async {
            loop {
                let got = play.observe(&mut state).await.unwrap();
                if got["cloud"].pointer(change.path) == Some(&change.value) {
                    return;
                }
                play.wait_for_quiet(&moment).await.unwrap();
            }
        };
        let in_time = tokio::time::timeout(play.limit(), applied).await;
        assert!(in_time.is_ok(), "{}: {}\n{}", change.path, change.value, play.log());
        play.wait_for_quiet(&moment).await.unwrap();
        let got = play.observe(&mut state).await.unwrap();
        let hosts = play.hosts().await.unwrap();
        let writes = play.site.writes_of_upstream(&got, &hosts, &case.config);
        assert_eq!(writes, [""; 0], "{}", change.patch);
        let attributes = &got["cloud"]["v2"][0]["attributes"];
        assert_ne!(attributes["deletion_protection.enabled"], "true", "{}", change.patch);
        assert_ne!(got["cloud"]["v2"][0]["scheme"], "internal");
        let groups = got["cloud"]["target_groups"].as_array().unwrap();
        assert!(groups.iter().all(|group| group["attributes"][proxy] != "true") || change.value == "true");
    }
    play.stop().await.unwrap();
    play.clear(&["nlb-tls".to_owned()]).await.unwrap();
}

/// New load balancers that are internal only by an annotation that upstream does not read. Neither program exposes them again.
/// Upstream moves a classic one to public subnets, unless the annotation that it reads is set before.
#[tokio::test(flavor = "multi_thread")]
async fn upstream_does_not_expose_new_load_balancers_that_are_internal_by_their_scheme() {
    let _turn = run::TURNS.acquire().await.unwrap();
    let mut play = Play::set(AwsSite::start().await.unwrap()).await.unwrap();
    for (name, list, writes_before) in [
        ("nlb-tcp", "v2", [].as_slice()),
        ("classic-tcp", "classic", ["classic-tcp: change the subnets"].as_slice()),
    ] {
        let mut case = cases().into_iter().find(|case| case.name == name).unwrap();
        case.services[0]["metadata"]["annotations"][format!("{PREFIX}scheme")] = json!("internal");
        play.run(&case.config).await.unwrap();
        let moment = play.site.mark().unwrap();
        let mut state = CaseState::new(AwsSite::CLOUD, &case).unwrap();
        play.create(&mut state, &case.services[0]).await.unwrap();
        let served = async {
            loop {
                let got = play.observe(&mut state).await.unwrap();
                if !got["services"][name]["status"]["loadBalancer"]["ingress"].is_null() {
                    return;
                }
                play.wait_for_quiet(&moment).await.unwrap();
            }
        };
        let in_time = tokio::time::timeout(play.limit(), served).await;
        assert!(in_time.is_ok(), "{name}\n{}", play.log());
        // What upstream reads, as a person sets it before a rollback.
        let named = json!({"metadata": {"annotations": {format!("{PREFIX}internal"): "true"}}});
        for (patch, expected) in [(None, writes_before), (Some(named), &[])] {
            let moment = play.site.mark().unwrap();
            if let Some(patch) = patch {
                play.services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            }
            play.wait_for_quiet(&moment).await.unwrap();
            let got = play.observe(&mut state).await.unwrap();
            assert_eq!(got["cloud"][list][0]["scheme"], "internal", "{name}");
            let hosts = play.hosts().await.unwrap();
            assert_eq!(play.site.writes_of_upstream(&got, &hosts, &case.config), expected, "{name}");
        }
        play.stop().await.unwrap();
        play.clear(&[name.to_owned()]).await.unwrap();
    }
}
