//! Compares the objects of this program for the Services of `openstack/cases` with those of the upstream program, on the
//! simulator and on a real OpenStack. Also checks that neither program changes the objects of the other.
// The tests print their results for manual runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

mod cases;
mod compare;
mod openstack;
mod play;
mod run;
mod site;
mod takeover;

use std::{env, time::Duration};

use anyhow::Result;
use cases::{Case, text};
use ccm_testbed::observe;
use kube::api::{Patch, PatchParams};
use openstack::{OpenStackSite, left_unchanged};
use play::Play;
use run::{compare, take_over};
use serde_json::{Value, json};
use site::Site as _;

const CLOUD: &str = "openstack";
/// Cases of the real cloud in every run. A full run has all cases.
const FEW: [&str; 5] = [
    "external-tcp",
    "internal",
    "etp-local",
    "shared-lb",
    "type-change",
];
/// Simulated clouds at the same time, because the tests mostly wait. One real cloud keeps the machine busy.
const LANES: usize = 3;
/// The case for which upstream created nothing.
const REFUSED: [&str; 1] = ["proxy-and-xff-refused"];

fn cases() -> Vec<Case> {
    cases::cases(CLOUD).unwrap()
}

/// The cases for the real cloud. The list is empty if the real cloud must not be started.
fn cases_of_real() -> Vec<Case> {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        ccm_testbed::cache::say(
            "left out, since CCM_TEST_OPENSTACK_REAL is not set: the comparison on a real OpenStack",
        );
        return Vec::new();
    }
    let mut cases = cases();
    if env::var_os("CCM_TEST_FULL").is_none() {
        cases.retain(|case| FEW.contains(&case.name.as_str()));
    }
    cases
}

async fn simulated(name: String) -> Result<OpenStackSite> {
    OpenStackSite::simulated(&name).await
}

async fn real(name: String) -> Result<OpenStackSite> {
    OpenStackSite::real(&name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn services_equal_those_of_upstream_on_the_simulator() {
    compare("simulated", LANES, cases(), simulated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_equal_those_of_upstream_on_a_real_cloud() {
    compare("real", 1, cases_of_real(), real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged_on_the_simulator() {
    take_over(cases(), &REFUSED, simulated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged_on_a_real_cloud() {
    take_over(cases_of_real(), &REFUSED, real).await;
}

/// The program corrects a difference, and then also sets the ownership tag.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_by_others_are_corrected() {
    let mut play = Play::set(simulated("takeover".to_owned()).await.unwrap()).await.unwrap();
    play.run(&serde_json::Value::Null).await.unwrap();
    play.stop().await.unwrap();
    let cases = cases::cases(CLOUD).unwrap();
    let case = cases.iter().find(|case| case.name == "external-tcp").unwrap();
    let _scene = takeover::build(&play, case).await.unwrap();
    let lbaas = "load-balancer/v2.0/lbaas";
    let rest = play.site.rest.clone();
    let listeners = rest.list(&format!("{lbaas}/listeners")).await.unwrap();
    let listener = format!("{lbaas}/listeners/{}", text(&listeners[0]["id"]));
    let change = serde_json::json!({"listener": {"connection_limit": 7}});
    rest.put(&listener, change).await.unwrap();
    play.run(&case.config).await.unwrap();
    let right = async || {
        let listener = rest.get(&listener).await.ok()?["listener"].clone();
        let balancers = rest.list(&format!("{lbaas}/loadbalancers")).await.ok()?;
        let tags = cases::items(&balancers.first()?["tags"]).iter().map(text);
        let marked = tags.into_iter().any(|tag| tag.starts_with("kube_cluster_id_"));
        (listener["connection_limit"] == -1 && marked).then_some(())
    };
    let right = observe::eventually(Duration::from_secs(60), right).await;
    assert!(right.is_some(), "{}", play.log());
}

/// Pools that exist follow `sessionAffinity`, with a tag that upstream does not know. After each change, upstream would write
/// nothing. What it would leave as it is stands in docs/migration.md.
#[tokio::test(flavor = "multi_thread")]
async fn upstream_leaves_session_persistence_unchanged() {
    const CASE: &str = "external-tcp";
    let _turn = run::TURNS.acquire().await.unwrap();
    let mut play = Play::set(simulated("affinity".to_owned()).await.unwrap()).await.unwrap();
    play.run(&Value::Null).await.unwrap();
    play.stop().await.unwrap();
    let case = cases().into_iter().find(|case| case.name == CASE).unwrap();
    let mut state = takeover::build(&play, &case).await.unwrap();
    let start = play.site.mark().unwrap();
    play.run(&case.config).await.unwrap();
    // Only a change that the program sees counts.
    play.wait_for_quiet(&start).await.unwrap();
    let patch = async |play: &Play<OpenStackSite>, affinity: &str| {
        let patch = json!({"spec": {"sessionAffinity": affinity, "sessionAffinityConfig": null}});
        play.services.patch(CASE, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    };
    for (affinity, kind, is_tagged) in [
        ("ClientIP", json!("SOURCE_IP"), true),
        ("None", Value::Null, false),
        ("ClientIP", json!("SOURCE_IP"), true),
    ] {
        let moment = play.site.mark().unwrap();
        patch(&play, affinity).await;
        let applied = async {
            loop {
                let got = play.observe(&mut state).await.unwrap();
                let pools = cases::items(&got["cloud"]["loadbalancers"][0]["pools"]);
                let has_tag = |pool: &Value| {
                    let mut tags = cases::items(&pool["tags"]).iter();
                    tags.any(|tag| tag == "kube_session_affinity")
                };
                let is_applied =
                    |pool: &Value| pool["session_persistence"]["type"] == kind && has_tag(pool) == is_tagged;
                if !pools.is_empty() && pools.iter().all(is_applied) {
                    return;
                }
                play.wait_for_quiet(&moment).await.unwrap();
            }
        };
        let in_time = tokio::time::timeout(play.limit(), applied).await;
        assert!(in_time.is_ok(), "{affinity}\n{}", play.log());
        play.wait_for_quiet(&moment).await.unwrap();
        let got = play.observe(&mut state).await.unwrap();
        let writes = play.site.writes_of_upstream(&got, &play.hosts().await.unwrap(), &case.config);
        assert_eq!(writes, [""; 0], "{affinity}");
        assert_eq!(left_unchanged(&got), [""; 0], "{affinity}");
    }
    // Upstream does not remove it, and the tag changes nothing about that.
    play.stop().await.unwrap();
    patch(&play, "None").await;
    let got = play.observe(&mut state).await.unwrap();
    let writes = play.site.writes_of_upstream(&got, &play.hosts().await.unwrap(), &case.config);
    assert_eq!(writes, [""; 0]);
    let pools = cases::items(&got["cloud"]["loadbalancers"][0]["pools"]).len();
    assert_eq!(left_unchanged(&got).len(), pools);
    play.clear(&[CASE.to_owned()]).await.unwrap();
    play.site.leave().await.unwrap();
}
