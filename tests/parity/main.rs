//! What the program builds for the Services of `openstack/cases` against what the upstream program built for them, on
//! the simulator and on a real OpenStack; and whether each leaves alone what the other has built.
// What was compared is printed for whoever runs them by hand.
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
/// Cases of the real cloud in every run; all others take part in the full one.
const FEW: [&str; 5] = [
    "external-tcp",
    "internal",
    "etp-local",
    "shared-lb",
    "type-change",
];
/// Clouds side by side: most of the time is spent waiting. On the real one the machine is busy with one.
const LANES: usize = 3;
/// Upstream built nothing for that one.
const REFUSED: [&str; 1] = ["proxy-and-xff-refused"];

fn cases() -> Vec<Case> {
    cases::cases(CLOUD).unwrap()
}

/// The cases to play on the real cloud; none if it may not be started.
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
async fn services_look_as_upstream_makes_them_on_the_simulator() {
    compare("simulated", LANES, cases(), simulated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_look_as_upstream_makes_them_on_a_real_cloud() {
    compare("real", 1, cases_of_real(), real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_upstream_built_is_left_alone_on_the_simulator() {
    take_over(cases(), &REFUSED, simulated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_upstream_built_is_left_alone_on_a_real_cloud() {
    take_over(cases_of_real(), &REFUSED, real).await;
}

/// What is different is put right, and then the mark is set, too.
#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_changed_meanwhile_is_put_right() {
    let mut play = Play::set(simulated("takeover".to_owned()).await.unwrap())
        .await
        .unwrap();
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
