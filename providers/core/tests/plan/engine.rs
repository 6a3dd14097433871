//! The engine apart from the laws: parking, repeated reads, frozen members, refusals, new keys, reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, RequestOutcome, Retry,
    load_balancer::{
        Effects, LoadBalancers, MemberState, PartKey, PartReport, PartState, Request, ServiceType,
        ServiceView,
    },
    plan::{Engine, Fact, PlanMetrics, ScopeCheck},
    testkit::laws::{CloudBehavior, MemoryCloud},
};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};

use crate::{
    stage::{Answer, Stage, WAIT, stage},
    toy::{ALGORITHM, BALANCER, Balancer, FLAVOR, Listener, Toy, WAS, balancer_name, tag},
    toy_cases::{Truth, id, nodes, service, tags, world},
};

fn sentences(report: &PartReport) -> Vec<&str> {
    report.steps.iter().map(|step| step.description.sentence.as_str()).collect()
}

fn parked(report: &PartReport) -> (Duration, Duration) {
    let PartState::Parked { until, since, .. } = report.state else {
        panic!("not parked: {report:?}");
    };
    (until - tokio::time::Instant::now(), since.elapsed())
}

fn own_balancer(index: usize) -> Balancer {
    Balancer {
        id: Fact::Known(10 + index as u64),
        name: balancer_name(&id(index)),
        tags: [tag(&id(index)), tags().for_create().unwrap().to_string()].into(),
        flavor: "pine".to_owned(),
        address: Fact::Known("192.0.2.1".to_owned()),
        listeners: BTreeMap::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_is_parked_polled_when_it_is_time_and_finished_under_its_new_key() {
    let stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    stage.answer("create balancer", Answer::Wait(WAIT));
    stage.cloud.script.lock().polls = vec![
        Ok(false),
        Err(Error::new(ErrorKind::Unavailable, "down")),
        Ok(true),
    ];
    let report = stage.run("balancer/new:balancer_n_s0").await;
    assert_eq!(parked(&report), (WAIT.poll, Duration::ZERO));
    let renamed = report.renamed.clone().unwrap();
    assert!(renamed.as_str().starts_with("balancer/#"), "{renamed}");
    assert!(matches!(report.members[0].state, MemberState::Pending));
    assert_eq!(report.next, [PartKey::new("firewall")], "it can run meanwhile");

    tokio::time::advance(Duration::from_secs(2)).await;
    let early = stage.run(renamed.as_str()).await;
    assert_eq!(parked(&early), (Duration::from_secs(3), Duration::from_secs(2)));
    assert_eq!(stage.cloud.script.lock().polled, 0, "the time of the poll has not come");

    tokio::time::advance(Duration::from_secs(3)).await;
    // The old name is still valid.
    assert_eq!(parked(&stage.run("balancer/new:balancer_n_s0").await).0, WAIT.poll);
    tokio::time::advance(WAIT.poll).await;
    let failed = stage.run(renamed.as_str()).await;
    assert!(matches!(&failed.state, PartState::Failed(error) if error.kind() == ErrorKind::Unavailable));
    let done = stage.run(renamed.as_str()).await;
    assert!(matches!(done.state, PartState::Done), "{done:?}");
    assert_eq!(sentences(&done), ["create balancer balancer_n_s0 with 1 listeners"]);
    assert_eq!(done.pass_steps, 1);
    assert!(done.members[0].touched && !done.members[0].finished);
    assert!(done.next.is_empty(), "its facts have not changed: {done:?}");
    assert_eq!(stage.cloud.memory.truth().balancers.len(), 1);

    let firewall = stage.run("firewall").await;
    assert_eq!(sentences(&firewall), ["create rule svc:n/s0/u0 for n0"]);
    let member = &firewall.members[0];
    assert!(member.finished);
    let ip = member.effects.ingress.as_ref().unwrap()[0].ip.clone().unwrap();
    assert!(ip.starts_with("10.100."), "{ip}");
    assert!(member.effects.annotations[WAS].is_some());
}

/// A balancer that the cloud is creating, and its key.
async fn being_built() -> (Stage, String) {
    let stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    stage.answer("create balancer", Answer::Wait(WAIT));
    let report = stage.run("balancer/new:balancer_n_s0").await;
    (stage, report.renamed.unwrap().to_string())
}

#[tokio::test(start_paused = true)]
async fn later_parts_run_while_a_part_is_built_and_the_service_is_finished_with_the_last_of_them() {
    let (stage, balancer) = being_built().await;
    let firewall = stage.run("firewall").await;
    assert_eq!(sentences(&firewall), ["create rule svc:n/s0/u0 for n0"]);
    let member = &firewall.members[0];
    assert!(matches!(member.state, MemberState::Served) && !member.finished, "{member:?}");
    assert_eq!(member.effects, Effects::default(), "early facts have no effects");
    tokio::time::advance(WAIT.poll).await;
    stage.cloud.script.lock().polls = vec![Ok(true)];
    let done = stage.run(&balancer).await;
    assert!(done.members[0].finished && done.next.is_empty(), "{done:?}");
    assert!(done.members[0].effects.ingress.is_some());
    assert!(stage.run("firewall").await.steps.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_create_that_fails_is_reported_and_later_parts_keep_their_objects_but_create_none() {
    let (mut stage, balancer) = being_built().await;
    stage.run("firewall").await;
    tokio::time::advance(WAIT.poll).await;
    stage.cloud.script.lock().polls = vec![Err(Error::new(ErrorKind::Unexpected, "broken"))];
    let failed = stage.run(&balancer).await;
    let PartState::Failed(error) = &failed.state else {
        panic!("{failed:?}");
    };
    let text = error.report();
    assert!(text.contains("broken") && text.contains("create balancer"), "{text}");
    let services = vec![service(0, &[80], &[])];
    stage.world = Arc::new(world(services, nodes([("n0", true), ("n1", true)])));
    let firewall = stage.run("firewall").await;
    assert!(firewall.steps.is_empty(), "{firewall:?}");
    let member = &firewall.members[0];
    assert!(matches!(&member.state, MemberState::Frozen(why) if why.contains(&balancer)), "{member:?}");
    assert_eq!(stage.cloud.memory.truth().firewall.len(), 1);
    // A read shows that it exists.
    let next = stage.run(&balancer).await;
    assert!(next.next.contains(&PartKey::new("firewall")), "{next:?}");
    assert_eq!(sentences(&stage.run("firewall").await), ["create rule svc:n/s0/u0 for n1"]);
}

/// A balancer with a listener to create, which the cloud accepts and does not finish, and an old listener of this owner.
fn busy_balancer(owner: String) -> Stage {
    let mut balancer = own_balancer(0);
    let grey = Listener {
        owner,
        algorithm: "grey".to_owned(),
        nodes: ["n0".to_owned()].into(),
    };
    balancer.listeners.insert(81, grey);
    let truth = Truth {
        balancers: vec![balancer],
        ..Truth::default()
    };
    let stage = stage(truth, vec![service(0, &[80, 81], &[(ALGORITHM, "blue")])]);
    stage.answer("create listener 80", Answer::Wait(WAIT));
    stage
}

#[tokio::test(start_paused = true)]
async fn a_step_that_needs_no_idle_part_is_sent_before_the_cloud_has_finished() {
    let stage = busy_balancer(tag(&id(0)));
    let report = stage.run("balancer/#10").await;
    assert_eq!(parked(&report).0, WAIT.poll);
    assert_eq!(sentences(&report), ["update listener 81 on balancer balancer_n_s0 blue"]);
    stage.cloud.script.lock().observed.clear();
    tokio::time::advance(WAIT.poll).await;
    stage.cloud.script.lock().polls = vec![Ok(true)];
    let done = stage.run("balancer/#10").await;
    assert!(matches!(done.state, PartState::Done), "{done:?}");
    assert_eq!(sentences(&done), ["create listener 80 on balancer balancer_n_s0"]);
    assert!(stage.cloud.script.lock().observed.is_empty(), "the state is known");
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_before_the_cloud_has_finished_is_planned_again_from_a_read() {
    let stage = busy_balancer(tag(&id(0)));
    let quota = Error::new(ErrorKind::QuotaExceeded, "no more update");
    stage.answer("update", Answer::Fail(quota));
    let report = stage.run("balancer/#10").await;
    assert_eq!(parked(&report).0, WAIT.poll);
    assert!(report.steps[0].result.is_err());
    stage.cloud.script.lock().observed.clear();
    tokio::time::advance(WAIT.poll).await;
    stage.cloud.script.lock().polls = vec![Ok(true)];
    let done = stage.run("balancer/#10").await;
    assert!(matches!(done.state, PartState::Done), "{done:?}");
    assert_eq!(sentences(&done)[1..], ["update listener 81 on balancer balancer_n_s0 blue"]);
    let (_, fresh) = stage.cloud.script.lock().observed[0].clone();
    assert!(fresh);
}

#[tokio::test(start_paused = true)]
async fn after_an_accepted_change_fails_nothing_is_sent_before_a_read() {
    let stage = busy_balancer(tag(&id(0)));
    stage.answer("update", Answer::Busy(Duration::from_secs(1)));
    stage.run("balancer/#10").await;
    stage.cloud.script.lock().observed.clear();
    tokio::time::advance(WAIT.poll).await;
    stage.cloud.script.lock().polls = vec![Err(Error::new(ErrorKind::Unexpected, "broken"))];
    let failed = stage.run("balancer/#10").await;
    assert!(matches!(failed.state, PartState::Failed(_)) && failed.steps.len() == 1, "{failed:?}");
    assert!(stage.cloud.script.lock().observed.is_empty());
    let next = stage.run("balancer/#10").await;
    assert_eq!(sentences(&next), ["update listener 81 on balancer balancer_n_s0 blue"]);
    assert!(stage.cloud.script.lock().observed[0].1, "not from a cache");
}

#[tokio::test(start_paused = true)]
async fn a_service_with_a_blocked_difference_has_no_early_facts() {
    let stage = busy_balancer("somebody".to_owned());
    let report = stage.run("balancer/#10").await;
    assert_eq!(parked(&report).0, WAIT.poll);
    assert_eq!(report.blocked[0].service, Some(id(0)), "{report:?}");
    assert!(report.next.is_empty(), "{report:?}");
    assert!(stage.run("firewall").await.steps.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_create_without_a_reply_is_not_sent_again_at_once() {
    let mut stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    // The cloud is still at work on it, and no read shows it.
    let lost = Error::new(ErrorKind::Timeout, "no reply").with_outcome(RequestOutcome::Unknown);
    stage.answer("create balancer", Answer::Fail(lost));
    let report = stage.run("balancer/new:balancer_n_s0").await;
    let wait = Retry::After(Duration::from_secs(30));
    assert!(matches!(&report.state, PartState::Failed(error) if error.retry() == wait), "{report:?}");
    assert_eq!(report.steps.len(), 1, "{report:?}");
    // A later pass waits, whatever its reason, also if the Service has other ports by now.
    stage.world = Arc::new(world(vec![service(0, &[80, 81], &[])], nodes([("n0", true)])));
    let next = stage.run("balancer/new:balancer_n_s0").await;
    assert_eq!(parked(&next).0, Duration::from_secs(30), "{next:?}");
    tokio::time::advance(Duration::from_secs(30)).await;
    let next = stage.run("balancer/new:balancer_n_s0").await;
    assert!(matches!(next.state, PartState::Done), "{next:?}");
    assert_eq!(stage.cloud.memory.truth().balancers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_does_not_leave_before_its_create_without_a_reply_can_be_read() {
    let mut stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    let lost = Error::new(ErrorKind::Timeout, "no reply").with_outcome(RequestOutcome::Unknown);
    stage.answer("create balancer", Answer::Fail(lost));
    stage.run("balancer/new:balancer_n_s0").await;
    let mut deleted = service(0, &[80], &[]);
    deleted.deleting = true;
    stage.world = Arc::new(world(vec![deleted], nodes([("n0", true)])));
    stage.run("firewall").await;
    let waits = stage.run("balancer/new:balancer_n_s0").await;
    assert_eq!(parked(&waits).0, Duration::from_secs(30), "{waits:?}");
    assert!(!waits.members[0].finished, "{waits:?}");
    // The cloud shows it late.
    stage.cloud.memory.edit(|truth| truth.balancers.push(own_balancer(0)));
    tokio::time::advance(Duration::from_secs(30)).await;
    let left = stage.run("balancer/new:balancer_n_s0").await;
    assert_eq!(sentences(&left), ["delete balancer balancer_n_s0"]);
    assert!(left.members[0].finished, "{left:?}");
    assert!(stage.cloud.memory.truth().balancers.is_empty());
}

#[tokio::test]
async fn a_known_part_follows_its_service_while_listings_fail() {
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let mut stage = stage(truth, vec![service(0, &[80], &[])]);
    stage.run("balancer/#10").await;
    stage.world = Arc::new(world(vec![service(0, &[80, 81], &[])], nodes([("n0", true)])));
    let refused = Error::new(ErrorKind::PermissionDenied, "listing refused");
    stage.cloud.script.lock().directory_fails = Some(refused);
    assert!(stage.engine.discover(&stage.request()).await.is_err());
    let report = stage.run("balancer/#10").await;
    assert!(matches!(report.members[0].state, MemberState::Served), "{report:?}");
    assert_eq!(sentences(&report), ["create listener 81 on balancer balancer_n_s0"]);
    assert!(matches!(stage.run("balancer/unknown").await.state, PartState::Failed(_)));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_not_done_in_time_fails_and_the_part_is_read_again() {
    let stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    stage.answer("create balancer", Answer::Wait(WAIT));
    stage.cloud.script.lock().polls = vec![Ok(false)];
    stage.run("balancer/new:balancer_n_s0").await;
    tokio::time::advance(WAIT.deadline).await;
    let late = stage.run("balancer/new:balancer_n_s0").await;
    assert!(matches!(&late.state, PartState::Failed(error) if error.kind() == ErrorKind::Timeout));
    stage.cloud.script.lock().observed.clear();
    let next = stage.run("balancer/new:balancer_n_s0").await;
    assert!(matches!(next.state, PartState::Done));
    let (_, fresh) = stage.cloud.script.lock().observed[0].clone();
    assert!(fresh, "a read before the failure does not count");
    assert_eq!(stage.cloud.memory.truth().balancers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_pass_that_was_dropped_during_a_write_the_next_one_reads_the_part() {
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let stage = stage(truth, vec![service(0, &[80], &[])]);
    stage.answer("create listener 80", Answer::Hang);
    let dropped = tokio::time::timeout(Duration::from_secs(1), stage.run("balancer/#10")).await;
    assert!(dropped.is_err());
    stage.cloud.script.lock().observed.clear();
    let report = stage.run("balancer/#10").await;
    assert!(stage.cloud.script.lock().observed[0].1, "not from a cache");
    assert!(report.steps.is_empty(), "it was done: {report:?}");
}

#[tokio::test]
async fn a_create_needs_an_uncached_read_and_other_steps_need_no_second_one() {
    let stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    stage.run("balancer/new:balancer_n_s0").await;
    let observed = std::mem::take(&mut stage.cloud.script.lock().observed);
    let fresh: Vec<_> = observed.iter().map(|(_, fresh)| *fresh).collect();
    assert_eq!(fresh, [false, true]);
    // Nothing to create: one read, from the cache if possible.
    stage.run("balancer/new:balancer_n_s0").await;
    assert_eq!(stage.cloud.script.lock().observed.len(), 1);
    assert!(!stage.cloud.script.lock().observed[0].1);
}

#[tokio::test(start_paused = true)]
async fn busy_is_not_a_failure_and_has_the_time_of_its_begin() {
    let stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    for _ in 0..3 {
        stage.answer("create balancer", Answer::Busy(Duration::from_secs(7)));
    }
    let first = stage.run("balancer/new:balancer_n_s0").await;
    assert_eq!(parked(&first), (Duration::from_secs(7), Duration::ZERO));
    assert!(first.steps.is_empty());
    tokio::time::advance(Duration::from_secs(7)).await;
    let second = stage.run("balancer/new:balancer_n_s0").await;
    assert_eq!(parked(&second), (Duration::from_millis(8050), Duration::from_secs(7)));
    assert!(second.events.is_empty(), "{second:?}");
    tokio::time::advance(Duration::from_secs(300)).await;
    let third = stage.run("balancer/new:balancer_n_s0").await;
    assert_eq!(parked(&third).1, Duration::from_secs(307));
    assert_eq!(third.events[0].reason, "LoadBalancerPending");
    let text = &third.events[0].message;
    assert!(text.contains("Waiting for 5 minutes: create balancer"), "{text}");
    assert!(text.contains("not now"), "the cloud's reason: {text}");
    assert!(matches!(stage.run("balancer/new:balancer_n_s0").await.state, PartState::Done));
}

#[tokio::test]
async fn a_stale_part_is_read_again_three_times() {
    let stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    for _ in 0..3 {
        stage.answer("create balancer", Answer::Stale);
    }
    assert!(matches!(stage.run("balancer/new:balancer_n_s0").await.state, PartState::Done));
    let other = crate::stage::stage(Truth::default(), vec![service(0, &[80], &[])]);
    for _ in 0..4 {
        other.answer("create balancer", Answer::Stale);
    }
    let report = other.run("balancer/new:balancer_n_s0").await;
    assert!(matches!(report.state, PartState::Failed(error) if error.kind() == ErrorKind::Conflict));
}

#[tokio::test]
async fn failed_inputs_freeze_only_one_member() {
    let mut balancer = own_balancer(0);
    balancer.tags.insert(tag(&id(1)));
    let truth = Truth {
        balancers: vec![balancer],
        ..Truth::default()
    };
    let services = vec![
        service(0, &[80], &[(BALANCER, "10")]),
        service(1, &[81], &[(BALANCER, "10")]),
        service(2, &[82], &[(BALANCER, "10"), (ALGORITHM, "plaid")]),
    ];
    let stage = stage(truth, services);
    let error = Error::new(ErrorKind::InvalidSpec, "no such secret");
    stage.cloud.script.lock().refused.insert("s1".to_owned(), error);
    let report = stage.run("balancer/#10").await;
    assert!(matches!(report.state, PartState::Done));
    assert_eq!(sentences(&report), ["create listener 80 on balancer balancer_n_s0"]);
    assert!(matches!(report.members[0].state, MemberState::Served));
    for member in &report.members[1..] {
        assert!(matches!(member.state, MemberState::Refused(_)) && !member.finished);
    }
}

#[tokio::test]
async fn a_step_that_fails_freezes_only_its_service() {
    // At once, after several reads, and when the create may have been carried out.
    let quota = Error::new(ErrorKind::QuotaExceeded, "no more listeners");
    let conflict = Error::new(ErrorKind::AlreadyExists, "the port is in use");
    let unknown = Error::new(ErrorKind::Unavailable, "500").with_outcome(RequestOutcome::Unknown);
    for (failure, tries) in [(quota, 1), (conflict, 4), (unknown, 1)] {
        let truth = Truth {
            balancers: vec![own_balancer(0)],
            ..Truth::default()
        };
        let services = vec![service(0, &[80], &[]), service(1, &[81], &[(BALANCER, "10")])];
        let stage = stage(truth, services);
        for _ in 0..tries {
            stage.answer("create listener 80", Answer::Fail(failure.clone()));
        }
        let report = stage.run("balancer/#10").await;
        assert!(matches!(report.state, PartState::Done), "{report:?}");
        let MemberState::Refused(error) = &report.members[0].state else {
            panic!("{report:?}");
        };
        assert_eq!(error.kind(), failure.kind());
        assert!(matches!(report.members[1].state, MemberState::Served));
        let balancer = &stage.cloud.memory.truth().balancers[0];
        let listeners: BTreeSet<_> = balancer.listeners.keys().copied().collect();
        assert_eq!(listeners, [81].into(), "{failure}");
    }
}

#[tokio::test]
async fn a_service_with_a_refused_step_follows_the_nodes() {
    let mut stage = busy_balancer(tag(&id(0)));
    let services = stage.world.services.iter().map(|service| (**service).clone());
    stage.world = Arc::new(world(services.collect(), nodes([("n0", true), ("n1", true)])));
    stage.cloud.script.lock().sends.clear();
    for begin in ["create listener 80", "update listener 81"] {
        let quota = Error::new(ErrorKind::QuotaExceeded, "no more");
        stage.answer(begin, Answer::Fail(quota));
    }
    let report = stage.run("balancer/#10").await;
    assert!(matches!(report.members[0].state, MemberState::Refused(_)), "{report:?}");
    let listener = &stage.cloud.memory.truth().balancers[0].listeners[&81];
    assert_eq!(listener.nodes, ["n0".to_owned(), "n1".to_owned()].into());
}

#[tokio::test(start_paused = true)]
async fn a_delete_needs_a_recent_read() {
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let mut stage = stage(truth, vec![service(0, &[], &[])]);
    stage.run("balancer/#10").await;
    stage.cloud.script.lock().observed.clear();
    let mut leaving = service(0, &[], &[]);
    leaving.deleting = true;
    stage.world = Arc::new(world(vec![leaving], nodes([("n0", true)])));
    stage.run("firewall").await;
    stage.run("balancer/#10").await;
    assert!(stage.cloud.memory.truth().balancers.is_empty());
    let observed = std::mem::take(&mut stage.cloud.script.lock().observed);
    let (part, fresh) = observed.last().unwrap();
    assert!(part.starts_with("balancer") && *fresh, "{observed:?}");
}

#[tokio::test]
async fn nothing_is_changed_if_a_known_part_is_missing_and_the_scope_is_unverified() {
    let mut leaving = service(0, &[80], &[(BALANCER, "10"), (WAS, "10")]);
    leaving.deleting = true;
    let stage = stage(Truth::default(), vec![leaving]);
    stage
        .cloud
        .memory
        .set_scope_check(ScopeCheck::Unverified("no node is visible".to_owned()));
    stage.run("firewall").await;
    let report = stage.run("balancer/#10").await;
    let PartState::Blocked(why) = &report.state else {
        panic!("{report:?}");
    };
    assert!(why.contains("balancer #10") && why.contains("no node is visible"), "{why}");
    assert!(!report.members[0].finished, "the finalizer must stay");
    stage.cloud.memory.set_scope_check(ScopeCheck::Verified);
    let report = stage.run("balancer/#10").await;
    assert!(matches!(report.members[0].state, MemberState::Left));
    assert!(report.members[0].finished);
    assert_eq!(report.members[0].effects.annotations[WAS], None);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_moves_joins_the_new_part_before_it_leaves_the_old_one() {
    let truth = Truth {
        balancers: vec![own_balancer(0), own_balancer(1)],
        ..Truth::default()
    };
    let mut stage = stage(truth, vec![service(0, &[80], &[]), service(1, &[81], &[])]);
    for part in ["balancer/#10", "balancer/#11", "firewall"] {
        stage.run(part).await;
    }
    let moved = service(1, &[81], &[(BALANCER, "10")]);
    stage.world = Arc::new(world(vec![service(0, &[80], &[]), moved], nodes([("n0", true)])));
    stage.answer("create listener", Answer::Fail(Error::new(ErrorKind::Unavailable, "down")));
    let old = stage.run("balancer/#11").await;
    assert!(matches!(&old.members[0].state, MemberState::Frozen(why) if why.contains("balancer/#10")));
    assert!(matches!(stage.run("balancer/#10").await.state, PartState::Failed(_)));
    assert!(stage.run("balancer/#11").await.steps.is_empty(), "the new one does not serve yet");
    let new = stage.run("balancer/#10").await;
    assert!(new.next.contains(&PartKey::new("balancer/#11")), "{:?}", new.next);
    stage.run("firewall").await;
    stage.answer("delete balancer", Answer::Wait(WAIT));
    assert_eq!(parked(&stage.run("balancer/#11").await).0, WAIT.poll);
    // The listings no longer show it, but the Service has not left it yet.
    let ours = Arc::clone(&stage.world);
    let mut other = service(1, &[81], &[]);
    other.class = Some("acme".into());
    stage.world = Arc::new(world(vec![service(0, &[80], &[]), other], nodes([("n0", true)])));
    assert_eq!(leaves_of_second(&stage).await, []);
    stage.world = ours;
    assert_eq!(leaves_of_second(&stage).await, [PartKey::new("balancer/#11")]);
    assert!(!stage.run("balancer/#10").await.members[1].finished);
    tokio::time::advance(WAIT.poll).await;
    stage.cloud.script.lock().polls = vec![Ok(true)];
    let old = stage.run("balancer/#11").await;
    assert_eq!(sentences(&old), ["delete balancer balancer_n_s1"]);
    assert!(old.members[0].finished, "{old:?}");
    assert_eq!(leaves_of_second(&stage).await, []);
}

async fn leaves_of_second(stage: &Stage) -> Vec<PartKey> {
    let discovery = stage.engine.discover(&stage.request()).await.unwrap();
    discovery.services[1].leaves.clone()
}

#[tokio::test]
async fn a_part_that_is_left_is_read_in_its_turn_and_not_before() {
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let mut stage = stage(truth, vec![service(0, &[80], &[])]);
    for part in ["balancer/#10", "firewall"] {
        stage.run(part).await;
    }
    let mut leaving = service(0, &[80], &[]);
    leaving.deleting = true;
    stage.world = Arc::new(world(vec![leaving], nodes([("n0", true)])));
    stage.cloud.script.lock().observed.clear();
    let early = stage.run("balancer/#10").await;
    assert!(matches!(early.state, PartState::Done), "{early:?}");
    assert!(
        matches!(&early.members[0].state, MemberState::Frozen(why) if why.contains("firewall")),
        "{:?}",
        early.members
    );
    let observed = stage.cloud.script.lock().observed.clone();
    assert!(observed.is_empty(), "{observed:?}");
    let firewall = stage.run("firewall").await;
    assert_eq!(firewall.next, [PartKey::new("balancer/#10")]);
    let balancer = stage.run("balancer/#10").await;
    assert_eq!(sentences(&balancer), ["delete balancer balancer_n_s0"]);
    assert!(balancer.members[0].finished);
}

#[tokio::test]
async fn a_blocked_difference_does_not_block_other_steps() {
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let stage = stage(truth, vec![service(0, &[80], &[(FLAVOR, "oak")])]);
    let report = stage.run("balancer/#10").await;
    assert_eq!(report.blocked[0].field, "flavor");
    assert_eq!(report.blocked[0].to_string(), "cannot change flavor in place: observed pine, desired oak");
    assert_eq!(sentences(&report), ["create listener 80 on balancer balancer_n_s0"]);
    assert!(matches!(report.members[0].state, MemberState::Served));
}

#[tokio::test]
async fn steps_are_announced_once() {
    let stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    let announced = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&announced);
    let request = Request {
        announce: Some(Arc::new(move |steps| log.lock().push(steps.len()))),
        ..stage.request()
    };
    stage.answer("create balancer", Answer::Busy(Duration::ZERO));
    let part = PartKey::new("balancer/new:balancer_n_s0");
    for _ in 0..3 {
        stage.engine.run(&part, &request).await;
    }
    assert_eq!(*announced.lock(), [1]);
}

#[tokio::test]
async fn a_service_of_another_class_is_left_unchanged() {
    let mut other = service(0, &[80], &[]);
    other.class = Some("acme".into());
    other.deleting = true;
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let stage = stage(truth, vec![other]);
    let discovery = stage.engine.discover(&stage.request()).await.unwrap();
    assert!(discovery.services[0].joins.is_empty() && discovery.services[0].leaves.is_empty());
    assert!(discovery.parts().is_empty() && discovery.orphans.as_ref().unwrap().is_empty());
    stage.run("balancer/#10").await;
    assert_eq!(stage.cloud.memory.truth().balancers.len(), 1);
}

#[tokio::test]
async fn an_orphan_is_deleted_only_by_a_pass_that_is_permitted_to() {
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let stage = stage(truth, vec![service(1, &[80], &[])]);
    let discovery = stage.engine.discover(&stage.request()).await.unwrap();
    let orphan = &discovery.orphans.as_ref().unwrap()[0];
    assert!(orphan.deletable && !discovery.parts().contains(&orphan.part), "{discovery:?}");
    assert!(sentences(&stage.run("balancer/#10").await).is_empty());
    let plans = stage.engine.plan(&stage.request(), None).await.unwrap();
    assert!(plans.iter().all(|plan| plan.part != orphan.part));
    assert_eq!(stage.cloud.memory.truth().balancers.len(), 1);
    let permitted = Request {
        delete_orphan: true,
        ..stage.request()
    };
    // The permission is only for orphans.
    stage.engine.run(&PartKey::new("balancer/new:balancer_n_s1"), &permitted).await;
    let report = stage.engine.run(&orphan.part, &permitted).await;
    assert_eq!(sentences(&report), ["delete balancer balancer_n_s0"]);
    let left = stage.cloud.memory.truth().balancers;
    assert!(left.len() == 1 && left[0].name == balancer_name(&id(1)), "{left:?}");
}

#[tokio::test]
async fn a_plan_of_one_service_shows_its_parts_and_writes_nothing() {
    let stage = stage(Truth::default(), vec![service(0, &[80], &[]), service(1, &[81], &[])]);
    let plans = stage.engine.plan(&stage.request(), Some(&id(1))).await.unwrap();
    let text: Vec<_> = plans
        .iter()
        .flat_map(|plan| &plan.steps)
        .map(|step| step.description.sentence.as_str())
        .collect();
    assert_eq!(
        text,
        [
            "create balancer balancer_n_s1 with 1 listeners",
            "create rule svc:n/s1/u1 for n0"
        ]
    );
    assert!(stage.cloud.memory.truth().balancers.is_empty());
    // The rules are for all Services; the other Service is not in the plan.
    let of_whom = plans.iter().flat_map(|plan| &plan.members);
    let of_whom: BTreeSet<_> = of_whom.map(|member| &member.service).collect();
    assert_eq!(of_whom, [&id(1)].into());
    let finished = plans.iter().flat_map(|plan| &plan.members).all(|member| member.finished);
    assert!(finished, "{plans:?}");
}

#[tokio::test]
async fn a_plan_of_one_service_has_no_problems_of_other_services() {
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let services = vec![
        service(0, &[80], &[(ALGORITHM, "plaid")]),
        service(1, &[81], &[(BALANCER, "10")]),
    ];
    let stage = stage(truth, services);
    let of_all = stage.engine.plan(&stage.request(), None).await.unwrap();
    let tells_of_other = |plans: &[PartReport]| {
        let members = plans.iter().flat_map(|plan| &plan.members).map(|member| &member.service);
        let notes = plans.iter().flat_map(|plan| &plan.events).map(|note| &note.service);
        members.chain(notes).any(|service| service == &id(0))
    };
    assert!(tells_of_other(&of_all));
    let of_one = stage.engine.plan(&stage.request(), Some(&id(1))).await.unwrap();
    assert!(!of_one.is_empty() && !tells_of_other(&of_one), "{of_one:?}");
}

#[tokio::test]
async fn steps_and_passes_are_counted() {
    let mut registry = Registry::default();
    let metrics = PlanMetrics::register(&mut registry);
    let cloud = Arc::new(MemoryCloud::new(Toy::default(), Truth::default(), CloudBehavior::default()));
    let engine = Engine::new(Toy::default(), cloud, metrics);
    let stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    engine.run(&PartKey::new("balancer/new:balancer_n_s0"), &stage.request()).await;
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        "ccm_plan_passes_total{provider=\"toy\",part=\"balancer\",result=\"done\"} 1",
        "ccm_plan_steps_total{provider=\"toy\",part=\"balancer\",step=\"balancer_create\",result=\"ok\"} 1",
        "ccm_plan_step_duration_seconds_count{provider=\"toy\",step=\"balancer_create\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_changes_while_a_part_is_parked_is_not_finished() {
    let mut stage = stage(Truth::default(), vec![service(0, &[80], &[])]);
    stage.run("balancer/new:balancer_n_s0").await;
    assert!(stage.run("firewall").await.members[0].finished);
    // The cloud accepts the rule of a second node and does not finish it.
    stage.world = Arc::new(world(vec![service(0, &[80], &[])], nodes([("n0", true), ("n1", true)])));
    stage.answer("create rule", Answer::Wait(WAIT));
    let report = stage.run("firewall").await;
    assert_eq!(parked(&report).0, WAIT.poll);

    let leaving = ServiceView {
        deleting: true,
        ..service(0, &[80], &[])
    };
    stage.world = Arc::new(world(vec![leaving], nodes([("n0", true), ("n1", true)])));
    let early = stage.run("firewall").await;
    assert!(matches!(early.state, PartState::Parked { .. }), "{early:?}");
    let member = &early.members[0];
    assert!(!member.finished, "its finalizer would be removed before its objects: {member:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_returns_while_a_part_is_deleted_is_not_finished() {
    let truth = Truth {
        balancers: vec![own_balancer(0)],
        ..Truth::default()
    };
    let before = service(0, &[80], &[(BALANCER, "10")]);
    let mut stage = stage(truth, vec![before.clone()]);
    stage.run("balancer/#10").await;
    assert!(stage.run("firewall").await.members[0].finished);
    let leaving = ServiceView {
        service_type: ServiceType::NodePort,
        ..before.clone()
    };
    stage.world = Arc::new(world(vec![leaving], nodes([("n0", true)])));
    stage.run("firewall").await;
    stage.answer("delete balancer", Answer::Wait(WAIT));
    let report = stage.run("balancer/#10").await;
    assert_eq!(parked(&report).0, WAIT.poll);

    stage.world = Arc::new(world(vec![before], nodes([("n0", true)])));
    let member = &stage.run("firewall").await.members[0];
    assert!(matches!(member.state, MemberState::Served) && !member.finished, "{member:?}");
}
