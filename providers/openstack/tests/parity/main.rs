//! Compares the simulator with the real OpenStack: the same requests to both must have answers that a client cannot
//! distinguish. Only runs if `CCM_TEST_OPENSTACK_REAL` is set, as by `cargo xtask test`: it installs packages and
//! starts a dozen services.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod compare;
mod http;
mod story;
mod table;
mod world;

use std::env;

use ccm_testbed::openstack_real::OpenStack as RealOpenStack;
use compare::Difference;
use http::Answer;
use serde_json::Value;
use table::Case;
use world::ClusterSnapshot;

async fn send(world: &ClusterSnapshot, case: &Case) -> Answer {
    let fill = |text: &str| {
        let mut text = text.to_owned();
        for (name, value) in &world.vars {
            text = text.replace(&format!("<{name}>"), value);
        }
        text
    };
    let url = format!("{}{}", world.var(case.service), fill(&case.path));
    let mut request = world.http.request(case.method.clone(), url);
    for (name, value) in &case.headers {
        request = request.header(*name, fill(value));
    }
    if let Some(body) = &case.body {
        request = request.body(fill(body));
    }
    http::send(request).await
}

#[tokio::test]
async fn the_simulator_equals_the_real_openstack() {
    if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
        ccm_testbed::cache::say(
            "left out, since CCM_TEST_OPENSTACK_REAL is not set: the comparison with a real OpenStack",
        );
        return;
    }
    let cloud = RealOpenStack::shared(1).await.unwrap();
    let real = ClusterSnapshot::real(cloud, &format!("parity-{}", std::process::id())).await;
    let simulated = ClusterSnapshot::simulated(&real).await;
    // The services are separate processes, so they can be queried at the same time.
    let by_service = ["identity", "compute", "network"].map(|service| {
        let cases = table::cases();
        let cases: Vec<Case> = cases.into_iter().filter(|case| case.service == service).collect();
        compare_all(&real, &simulated, cases)
    });
    let stories = story::stories();
    let sequences = stories.into_iter().map(|story| run_sequence(real.again(), simulated.again(), story));
    let (by_service, sequences) =
        tokio::join!(futures_util::future::join_all(by_service), futures_util::future::join_all(sequences));
    let reports: Vec<String> = by_service.into_iter().chain(sequences).flatten().collect();
    assert!(
        reports.is_empty(),
        "{} requests are answered differently:\n{}",
        reports.len(),
        reports.concat()
    );
}

/// The same for requests that depend on each other.
async fn run_sequence(
    mut real: ClusterSnapshot,
    mut simulated: ClusterSnapshot,
    story: Vec<story::Step>,
) -> Vec<String> {
    let mut reports = Vec::new();
    for step in story {
        let case = &step.case;
        let (a, b) = tokio::join!(send(&real, case), send(&simulated, case));
        tokio::join!(step.finish(&mut real, a.json.as_ref()), step.finish(&mut simulated, b.json.as_ref()));
        let found = compare::differences(&compare::document(&real, &a), &compare::document(&simulated, &b));
        if !found.is_empty() {
            reports.push(report(case, found));
        }
    }
    reports
}

/// The differences, one text for each request.
async fn compare_all(real: &ClusterSnapshot, simulated: &ClusterSnapshot, cases: Vec<Case>) -> Vec<String> {
    let mut reports = Vec::new();
    for case in cases {
        let (a, b) = tokio::join!(send(real, &case), send(simulated, &case));
        let found = compare::differences(&compare::document(real, &a), &compare::document(simulated, &b));
        if !found.is_empty() {
            reports.push(report(&case, found));
        }
    }
    reports
}

fn report(case: &Case, found: Vec<Difference>) -> String {
    let show = |value: Option<Value>| value.map_or("nothing".to_owned(), |value| value.to_string());
    let mut report = format!("{case}\n");
    for Difference {
        path,
        real,
        simulated,
    } in found
    {
        let (real, simulated) = (show(real), show(simulated));
        report.push_str(&format!("  {path}\n    real:      {real}\n    simulated: {simulated}\n"));
    }
    report
}
