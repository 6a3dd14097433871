//! Compares the objects of this program on an Azure subscription in memory for the cases of `azure/cases` with those of the upstream
//! program. Also checks that this program does not change the objects of upstream.
// The tests print their results for manual runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

mod azure;
mod cases;
mod compare;
mod names;
mod play;
mod run;
#[expect(dead_code, reason = "only Services depend on the properties of nodes")]
mod site;
mod takeover;

use azure::{AzureSite, Machines};
use cases::{Case, items};
use ccm_testbed::observe::eventually;
use play::Play;
use serde_json::{Value, json};
use site::{Normalizer, PresentNames, Site as _};

/// Subscriptions with a uniform scale set at the same time, because the tests mostly wait.
const LANES: usize = 4;
/// The case without Services.
const ROUTES: &str = "routes";
/// Cases without load balancers, or with names that depend on node ports, which differ in each run: the recording has no hash.
const NOT_REBUILT: [&str; 2] = [ROUTES, "floating-ip-off"];

fn cases(machines: Machines) -> Vec<Case> {
    let mut cases = cases::cases("azure").unwrap();
    cases.retain(|case| Machines::of(case) == machines);
    cases
}

async fn compare(machines: Machines, lanes: usize) {
    run::compare("emulated", lanes, cases(machines), async |_| AzureSite::start(machines).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_equal_those_of_upstream() {
    compare(Machines::Uniform, LANES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_equal_those_of_upstream_with_a_flexible_scale_set() {
    compare(Machines::Flexible, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_equal_those_of_upstream_with_standalone_machines() {
    compare(Machines::Standalone, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_equal_those_of_upstream_with_two_families() {
    compare(Machines::DualStack, 1).await;
}

/// Creates upstream's Services and their objects, one case after the other, before the program starts.
async fn take_over(machines: Machines) {
    run::take_over(cases(machines), &NOT_REBUILT, async |_| AzureSite::start(machines).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged() {
    take_over(Machines::Uniform).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged_with_a_flexible_scale_set() {
    take_over(Machines::Flexible).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged_with_standalone_machines() {
    take_over(Machines::Standalone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_upstream_stay_unchanged_with_two_families() {
    take_over(Machines::DualStack).await;
}

/// The recorded routes exist when the program starts for the first time. It reads the table, and writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn routes_of_upstream_stay_unchanged() {
    let case = cases(Machines::Uniform).into_iter().find(|case| case.name == ROUTES).unwrap();
    let recording = cases::recorded("azure", &case.name).unwrap();
    let _turn = run::TURNS.acquire().await.unwrap();
    let mut play = Play::set(AzureSite::start(Machines::Uniform).await.unwrap()).await.unwrap();
    // A former process initializes the nodes.
    play.run(&Value::Null).await.unwrap();
    play.stop().await.unwrap();
    play.site.rebuild(&recording["phases"][0], &mut PresentNames::default()).await.unwrap();
    let (before, _) = play.site.dump(&[].into()).await.unwrap();
    assert_eq!(items(&before["routes"]).len(), 3);

    let moment = play.site.mark().unwrap();
    play.run_with(&case.config, &case.flags).await.unwrap();
    let read = async || {
        let calls = play.calls(&moment).ok()?;
        calls.iter().any(|call| call.text.contains("routeTables.get")).then_some(())
    };
    let read = eventually(play.limit(), read).await;
    assert!(read.is_some(), "{}", play.log());
    play.wait_for_quiet(&moment).await.unwrap();
    let calls = play.calls(&moment).unwrap();
    let writes: Vec<_> = calls.iter().filter(|call| call.is_write).map(|call| &call.text).collect();
    assert!(writes.is_empty(), "{writes:?}\n{}", play.log());
    let (after, names) = play.site.dump(&[].into()).await.unwrap();
    assert_eq!(after, before);
    let got = Normalizer::new(&names).value(&json!({"cloud": after}));
    assert_eq!(play.site.writes_of_upstream(&got, &[], &Value::Null), [""; 0]);
    play.stop().await.unwrap();
}

/// The rules of upstream's comparison have no write for its own routes, and a write for each change.
#[tokio::test]
async fn upstream_would_correct_each_change_of_its_routes() {
    let site = AzureSite::start(Machines::Uniform).await.unwrap();
    let phase = cases::recorded("azure", "routes").unwrap()["phases"][0].clone();
    assert_eq!(site.writes_of_upstream(&phase, &[], &Value::Null), [""; 0]);
    for (path, value) in [
        ("/cloud/routes/0/addressPrefix", json!("10.244.9.0/24")),
        ("/cloud/routes/0/name", json!("<node-9>____102440024")),
    ] {
        let mut changed = phase.clone();
        *changed.pointer_mut(path).unwrap() = value;
        assert!(!site.writes_of_upstream(&changed, &[], &Value::Null).is_empty(), "{path}");
    }
}
