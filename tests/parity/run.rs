//! Plays the cases on several clouds at the same time, and collects the differences.

use std::{collections::BTreeMap, env, fs};

use anyhow::Result;
use ccm_testbed::observe;
use futures_util::future::try_join_all;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::{
    cases::{self, Case},
    compare::{Rules, differences},
    play::{Phase, Play},
    site::Site,
    takeover,
};

/// Clouds with a control plane at the same time. The tests of this program wait for each other, because the start of a control
/// plane needs more CPU time than a case, and those that are not used any more are reused.
pub(crate) static TURNS: Semaphore = Semaphore::const_new(4);

/// The table of deliberate differences for this cloud: `real`, `simulated`, `moto` or `restricted`.
fn rules<S: Site>(cloud: &'static str) -> Rules {
    let table = cases::read(S::CLOUD, "agreed.yaml").unwrap();
    Rules::parse(&table, cloud).unwrap()
}

/// All of the cases, or those that `CCM_TEST_PARITY_ONLY` names.
fn selected(mut cases: Vec<Case>) -> Vec<Case> {
    if let Ok(only) = env::var("CCM_TEST_PARITY_ONLY") {
        cases.retain(|case| only.split(',').any(|name| name == case.name));
    }
    cases
}

/// Plays some of the cases on a cloud of their own.
async fn lane<S: Site>(
    lane: usize,
    site: S,
    cases: &[Case],
    rules: &Rules,
) -> Result<Vec<(String, Vec<Phase>)>> {
    let _turn = TURNS.acquire().await?;
    let mut play = Play::set(site).await?;
    let mut all = Vec::new();
    for case in cases {
        let phases = play.case(case, rules).await?;
        report(&case.name, &phases);
        all.push((case.name.clone(), phases));
    }
    play.stop().await?;
    play.site.leave().await?;
    if let Ok(path) = env::var("CCM_TEST_PARITY_LOG") {
        fs::write(format!("{path}.{lane}"), play.log())?;
    }
    Ok(all)
}

fn report(case: &str, phases: &[Phase]) {
    for phase in phases {
        println!(
            "{case} / {}: {} differences, {} agreed; {} calls ({} writes) against {}",
            phase.name,
            phase.rows.len(),
            phase.used.len(),
            phase.calls,
            phase.writes,
            phase.recorded_calls
        );
        for row in &phase.rows {
            println!("    {row}");
        }
        for write in &phase.upstream_writes {
            println!("    upstream would write: {write}");
        }
    }
}

/// Plays cases on one cloud for each lane, prints the results, and fails if a case differs.
pub(crate) async fn compare<S: Site>(
    cloud: &'static str,
    lanes: usize,
    cases: Vec<Case>,
    site: impl AsyncFn(String) -> Result<S>,
) {
    let cases = selected(cases);
    if cases.is_empty() {
        return;
    }
    let mut rules = rules::<S>(cloud);
    let mut shares = vec![Vec::new(); lanes];
    for (index, case) in cases.iter().enumerate() {
        shares[index % lanes].push(case.clone());
    }
    let played = shares.iter().enumerate().map(async |(index, cases)| {
        let name = format!("parity-{}-{index}", std::process::id());
        lane(index, site(name).await?, cases, &rules).await
    });
    let played: Vec<_> = try_join_all(played).await.unwrap().into_iter().flatten().collect();
    let mut bad = Vec::new();
    let mut equal = 0;
    for (case, phases) in &played {
        let before = bad.len();
        for phase in phases {
            rules.count(&phase.used, &phase.used_writes);
            let place = format!("{case} / {}", phase.name);
            bad.extend(phase.rows.iter().map(|row| format!("{place}: {row}")));
            bad.extend(
                phase
                    .upstream_writes
                    .iter()
                    .map(|write| format!("{place}: upstream would write: {write}")),
            );
        }
        equal += usize::from(bad.len() == before);
    }
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    bad.extend(rules.unused(&names));
    println!("{cloud}: {equal} of {} cases equal", cases.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Creates upstream's Services and all their objects before the program starts, and checks that it writes nothing but what the site
/// names. `without`: cases for which upstream created nothing.
pub(crate) async fn take_over<S: Site>(
    cases: Vec<Case>,
    without: &[&str],
    site: impl AsyncFn(String) -> Result<S>,
) {
    // The cases that are taken over at the same time.
    let mut groups: BTreeMap<(String, Vec<String>, Option<String>), Vec<Case>> = BTreeMap::new();
    for case in selected(cases) {
        if !without.contains(&case.name.as_str()) {
            let alone = S::SHARES_LOAD_BALANCERS.then(|| case.name.clone());
            groups.entry((case.config.to_string(), case.flags.clone(), alone)).or_default().push(case);
        }
    }
    if groups.is_empty() {
        return;
    }
    let _turn = TURNS.acquire().await.unwrap();
    let name = format!("takeover-{}", std::process::id());
    let mut play = Play::set(site(name).await.unwrap()).await.unwrap();
    // A former process initializes the nodes.
    play.run(&serde_json::Value::Null).await.unwrap();
    for cases in groups.values() {
        play.stop().await.unwrap();
        let mut case_states = Vec::new();
        for case in cases {
            case_states.push(takeover::build(&play, case).await.unwrap());
        }
        let before = takeover::versions(&play, &case_states).await.unwrap();
        let uids: BTreeMap<_, _> =
            case_states.iter().flat_map(|case_state| case_state.uids.clone()).collect();
        let (objects, _) = play.site.dump(&uids).await.unwrap();
        let moment = play.site.mark().unwrap();
        play.run_with(&cases[0].config, &cases[0].flags).await.unwrap();
        let done = async || {
            let parts = play.parts().await.ok()?;
            let all: u64 = parts.values().sum();
            (parts.get("done") == Some(&all) && all >= before.len() as u64).then_some(())
        };
        let limit = play.limit();
        let done = observe::eventually(limit, done).await;
        play.wait_for_quiet(&moment).await.unwrap();
        assert!(done.is_some(), "{:?}\n{}", play.parts().await, play.log());
        let calls = play.calls(&moment).unwrap();
        let writes = calls.iter().filter(|call| call.is_write);
        let (deliberate, other): (Vec<_>, Vec<_>) =
            writes.partition(|call| play.site.is_takeover_write(&call.text));
        assert!(other.is_empty(), "{other:?}\n{}", play.log());
        let after = play.site.dump(&uids).await.unwrap().0;
        let mut changes = differences(&json!({"cloud": objects}), &json!({"cloud": after}));
        changes.retain(|row| !play.site.is_changed_by_takeover(&row.path));
        assert_eq!(changes, []);
        assert_eq!(takeover::versions(&play, &case_states).await.unwrap(), before, "{}", play.log());
        for case_state in &mut case_states {
            let got = play.observe(case_state).await.unwrap();
            for (service, events) in got["events"].as_object().unwrap() {
                let mut events = crate::cases::items(events).to_vec();
                // Each process reports invalid values once.
                events.retain(|event| event["reason"] != "LoadBalancerAnnotationIgnored");
                // A write for the only Service of a part is reported as every other change.
                if !deliberate.is_empty() {
                    events.retain(|event| {
                        let reason = event["reason"].as_str().unwrap_or_default();
                        !["EnsuringLoadBalancer", "EnsuredLoadBalancer"].contains(&reason)
                    });
                }
                assert!(events.is_empty(), "{service}: {events:?}");
            }
        }
        println!(
            "{} load balancers taken over with {} calls, {} of them deliberate writes and no other write",
            before.len(),
            calls.len(),
            deliberate.len()
        );
        let names: Vec<String> = before.into_keys().collect();
        play.stop().await.unwrap();
        play.clear(&names).await.unwrap();
    }
    play.site.leave().await.unwrap();
}
