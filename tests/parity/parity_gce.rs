//! Compares the objects of this program on Compute Engine in memory for the cases of `gce/cases` with those of the upstream
//! program. Also checks that neither program changes the objects of the other.
// The tests print their results for manual runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

mod cases;
mod compare;
mod gce;
mod names;
mod play;
mod rules;
mod run;
mod site;
mod takeover;

use anyhow::Result;
use cases::{Case, items};
use ccm_testbed::observe::eventually;
use gce::GceSite;
use play::Play;
use serde_json::{Value, json};
use site::{Normalizer, PresentNames, Site as _};

/// Projects at the same time, because the tests mostly wait.
const LANES: usize = 4;
/// Cases without load balancers of upstream: it refused the Services, left them to another controller, or there are none.
const WITHOUT: [&str; 3] = ["external-bad-values", "left-alone", ROUTES];
/// The case without Services.
const ROUTES: &str = "routes";

fn cases() -> Vec<Case> {
    let mut cases = cases::cases("gce").unwrap();
    for case in &mut cases {
        // The nodes are initialized, too: in the recordings, they were before.
        if case.flags.iter().any(|flag| flag.starts_with("--controllers=")) {
            case.flags.push("--controllers=*".to_owned());
        }
        // The phase after another client removed an object shows it only to a program that reads the object again. A change of the
        // Service alone does not do that within 30 s of the last answer, so whether it did depended on how long the phase before took.
        if case.steps.iter().any(|step| !step["drop"].is_null()) {
            case.flags.push("--service-drift-period=5s".to_owned());
        }
    }
    cases
}

async fn project(_: String) -> Result<GceSite> {
    GceSite::start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_equal_those_of_upstream() {
    run::compare("emulated", LANES, cases(), project).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged() {
    run::take_over(cases(), &WITHOUT, project).await;
}

/// The recorded routes exist when the program starts for the first time. It lists them, and writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn routes_of_upstream_stay_unchanged() {
    let case = cases().into_iter().find(|case| case.name == ROUTES).unwrap();
    let recording = cases::recorded("gce", &case.name).unwrap();
    let _turn = run::TURNS.acquire().await.unwrap();
    let mut play = Play::set(project(String::new()).await.unwrap()).await.unwrap();
    // A former process initializes the nodes.
    play.run(&Value::Null).await.unwrap();
    play.stop().await.unwrap();
    let mut names = PresentNames::default();
    for (name, uid) in play.uids_of_nodes().await.unwrap() {
        names.insert(format!("<uid:{name}>"), json!(uid));
    }
    play.site.rebuild(&recording["phases"][0], &mut names).await.unwrap();
    let (before, _) = play.site.dump(&[].into()).await.unwrap();
    assert_eq!(items(&before["routes"]).len(), 3);

    let moment = play.site.mark().unwrap();
    play.run_with(&case.config, &case.flags).await.unwrap();
    let listed = async || {
        let calls = play.calls(&moment).ok()?;
        calls.iter().any(|call| call.text.contains("routes.list")).then_some(())
    };
    let listed = eventually(play.limit(), listed).await;
    assert!(listed.is_some(), "{}", play.log());
    play.wait_for_quiet(&moment).await.unwrap();
    let calls = play.calls(&moment).unwrap();
    let writes: Vec<_> = calls.iter().filter(|call| call.is_write).map(|call| &call.text).collect();
    assert!(writes.is_empty(), "{writes:?}\n{}", play.log());
    assert_eq!(play.site.dump(&[].into()).await.unwrap().0, before);
    let got = Normalizer::new(&play.site.dump(&[].into()).await.unwrap().1).value(&json!({"cloud": before}));
    assert_eq!(play.site.writes_of_upstream(&got, &[], &Value::Null), [""; 0]);
    play.stop().await.unwrap();
}

/// The rules of upstream's comparison have no write for its own routes, and a write for each change.
#[tokio::test]
async fn upstream_would_correct_each_change_of_its_routes() {
    let site = GceSite::start().await.unwrap();
    let phase = cases::recorded("gce", "routes").unwrap()["phases"][0].clone();
    assert_eq!(site.writes_of_upstream(&phase, &[], &Value::Null), [""; 0]);
    for (path, value) in [
        ("/cloud/routes/0/destRange", json!("10.200.9.0/24")),
        ("/cloud/routes/0/description", json!("other")),
        ("/cloud/routes/0/name", json!("other-cluster")),
        ("/cloud/routes/0/nextHopInstance", json!("<api>/projects/parity/zones/z/instances/node-9")),
    ] {
        let mut changed = phase.clone();
        *changed.pointer_mut(path).unwrap() = value;
        assert!(!site.writes_of_upstream(&changed, &[], &Value::Null).is_empty(), "{path}");
    }
}
