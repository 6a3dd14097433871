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
use openstack::OpenStackSite;
use play::Play;
use run::{compare, take_over};

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
