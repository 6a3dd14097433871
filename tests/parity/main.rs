//! What the program builds for the Services of `openstack/cases` against what the upstream program built for them, on
//! the simulator and on a real OpenStack; and whether each leaves alone what the other has built.
// What was compared is printed for who runs them by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

mod cases;
mod compare;
mod play;
mod record;
mod rest;
mod site;
mod takeover;
mod upstream;

use std::{collections::BTreeMap, env, fs, time::Duration};

use anyhow::Result;
use cases::{Case, cases, folder};
use ccm_testbed::observe;
use compare::Rules;
use futures_util::future::try_join_all;
use play::{Phase, Play};
use record::Things;
use site::Site;

/// Cases of the real cloud in every run; all others take part in the full one.
const FEW: [&str; 5] = [
    "external-tcp",
    "internal",
    "etp-local",
    "shared-lb",
    "type-change",
];
/// Clouds side by side: most of the time is spent waiting.
const LANES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Simulator,
    Real,
}

impl On {
    fn name(self) -> &'static str {
        match self {
            Self::Simulator => "simulated",
            Self::Real => "real",
        }
    }

    async fn site(self, name: &str) -> Result<Site> {
        match self {
            Self::Simulator => Site::simulated().await,
            Self::Real => Site::real(name).await,
        }
    }

    fn lanes(self) -> usize {
        match self {
            Self::Simulator => LANES,
            // The machine is busy with one.
            Self::Real => 1,
        }
    }

    /// The cases to play; none if it may not be started.
    fn cases(self) -> Vec<Case> {
        let mut cases = cases().unwrap();
        if self == Self::Real {
            if env::var_os("CCM_TEST_OPENSTACK_REAL").is_none() {
                ccm_testbed::cache::say(
                    "left out, since CCM_TEST_OPENSTACK_REAL is not set: the comparison on a real OpenStack",
                );
                return Vec::new();
            }
            if env::var_os("CCM_TEST_FULL").is_none() {
                cases.retain(|case| FEW.contains(&case.name.as_str()));
            }
        }
        if let Ok(only) = env::var("CCM_TEST_PARITY_ONLY") {
            cases.retain(|case| only.split(',').any(|name| name == case.name));
        }
        cases
    }
}

fn rules(on: On) -> Rules {
    let table = fs::read_to_string(folder().join("agreed.yaml")).unwrap();
    Rules::parse(&table, on.name()).unwrap()
}

/// Plays some of the cases on a cloud of their own.
async fn lane(on: On, lane: usize, cases: &[Case], rules: &Rules) -> Result<Vec<(String, Vec<Phase>)>> {
    let agent = format!("parity-{}-{lane}", std::process::id());
    let mut play = Play::set(on.site(&agent).await?, &agent).await?;
    let mut all = Vec::new();
    for case in cases {
        let phases = play.case(case, rules).await?;
        tell(&case.name, &phases);
        all.push((case.name.clone(), phases));
    }
    play.stop().await?;
    play.site.leave().await?;
    if let Ok(path) = env::var("CCM_TEST_PARITY_LOG") {
        fs::write(format!("{path}.{lane}"), play.log())?;
    }
    Ok(all)
}

fn tell(case: &str, phases: &[Phase]) {
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
        for write in &phase.back {
            println!("    upstream would write: {write}");
        }
    }
}

/// Plays cases, tells how they went, and fails if one of them differs.
async fn compare(on: On) {
    let cases = on.cases();
    if cases.is_empty() {
        return;
    }
    let mut rules = rules(on);
    let mut lanes = vec![Vec::new(); on.lanes()];
    for (index, case) in cases.iter().enumerate() {
        lanes[index % on.lanes()].push(case.clone());
    }
    let played = lanes
        .iter()
        .enumerate()
        .map(|(index, cases)| lane(on, index, cases, &rules));
    let played: Vec<_> = try_join_all(played)
        .await
        .unwrap()
        .into_iter()
        .flatten()
        .collect();
    let mut bad = Vec::new();
    let mut equal = 0;
    for (case, phases) in &played {
        let before = bad.len();
        for phase in phases {
            rules.note(&phase.used, &phase.used_back);
            let place = format!("{case} / {}", phase.name);
            bad.extend(phase.rows.iter().map(|row| format!("{place}: {row}")));
            bad.extend(
                phase
                    .back
                    .iter()
                    .map(|write| format!("{place}: upstream would write: {write}")),
            );
        }
        equal += usize::from(bad.len() == before);
    }
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    bad.extend(rules.idle(&names));
    println!("{}: {equal} of {} cases equal", on.name(), cases.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Upstream's Services and all they have are there before the program begins, which then has nothing to do.
async fn take_over(on: On) {
    let mut by_config: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for case in on.cases() {
        // Upstream built nothing for that one.
        if case.name != "proxy-and-xff-refused" {
            by_config.entry(case.config.to_string()).or_default().push(case);
        }
    }
    if by_config.is_empty() {
        return;
    }
    let agent = format!("takeover-{}", std::process::id());
    let mut play = Play::set(on.site(&agent).await.unwrap(), &agent).await.unwrap();
    // The nodes are initialized by a program before this one.
    play.run(&serde_json::Value::Null).await.unwrap();
    for cases in by_config.values() {
        play.stop().await.unwrap();
        let mut scenes = Vec::new();
        for case in cases {
            scenes.push(takeover::build(&play, case).await.unwrap());
        }
        let before = takeover::versions(&play, &scenes).await.unwrap();
        let things = Things::of(&play.site).await.unwrap().ids();
        let moment = play.site.mark().unwrap();
        play.run(&cases[0].config).await.unwrap();
        let done = async || {
            let parts = play.parts().await.ok()?;
            let all: u64 = parts.values().sum();
            (parts.get("done") == Some(&all) && all >= before.len() as u64).then_some(())
        };
        let limit = Duration::from_secs(120);
        let done = observe::eventually(limit, done).await;
        play.rest_of_calls(&moment).await.unwrap();
        assert!(done.is_some(), "{:?}\n{}", play.parts().await, play.log());
        let calls = play.calls(&moment).unwrap();
        let writes: Vec<_> = calls
            .iter()
            .filter(|call| call.is_write())
            .map(ToString::to_string)
            .collect();
        assert!(writes.is_empty(), "{writes:?}\n{}", play.log());
        assert_eq!(Things::of(&play.site).await.unwrap().ids(), things);
        assert_eq!(
            takeover::versions(&play, &scenes).await.unwrap(),
            before,
            "{}",
            play.log()
        );
        for scene in &mut scenes {
            let got = play.look(scene).await.unwrap();
            for (service, events) in got["events"].as_object().unwrap() {
                let mut events = rest::items(events).to_vec();
                // Values without a meaning are told by every process once.
                events.retain(|event| event["reason"] != "LoadBalancerAnnotationIgnored");
                assert!(events.is_empty(), "{service}: {events:?}");
            }
        }
        println!(
            "{}: {} load balancers taken over with {} reads and no write",
            on.name(),
            cases.len(),
            calls.len()
        );
        let names: Vec<String> = before.into_keys().collect();
        play.stop().await.unwrap();
        play.clear(&names).await.unwrap();
    }
    play.site.leave().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn services_look_as_upstream_makes_them_on_the_simulator() {
    compare(On::Simulator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_look_as_upstream_makes_them_on_a_real_cloud() {
    compare(On::Real).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_upstream_built_is_left_alone_on_the_simulator() {
    take_over(On::Simulator).await;
}

/// What is different is put right, and then the mark is set, too.
#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_changed_meanwhile_is_put_right() {
    let mut play = Play::set(Site::simulated().await.unwrap(), "takeover")
        .await
        .unwrap();
    play.run(&serde_json::Value::Null).await.unwrap();
    play.stop().await.unwrap();
    let cases = cases().unwrap();
    let case = cases.iter().find(|case| case.name == "external-tcp").unwrap();
    let _scene = takeover::build(&play, case).await.unwrap();
    let lbaas = "load-balancer/v2.0/lbaas";
    let rest = play.site.rest.clone();
    let listeners = rest.list(&format!("{lbaas}/listeners")).await.unwrap();
    let listener = format!("{lbaas}/listeners/{}", rest::text(&listeners[0]["id"]));
    let change = serde_json::json!({"listener": {"connection_limit": 7}});
    rest.put(&listener, change).await.unwrap();
    play.run(&case.config).await.unwrap();
    let right = async || {
        let listener = rest.get(&listener).await.ok()?["listener"].clone();
        let balancers = rest.list(&format!("{lbaas}/loadbalancers")).await.ok()?;
        let tags = rest::items(&balancers.first()?["tags"]).iter().map(rest::text);
        let marked = tags.into_iter().any(|tag| tag.starts_with("kube_cluster_id_"));
        (listener["connection_limit"] == -1 && marked).then_some(())
    };
    let right = observe::eventually(Duration::from_secs(60), right).await;
    assert!(right.is_some(), "{}", play.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_upstream_built_is_left_alone_on_a_real_cloud() {
    take_over(On::Real).await;
}
