//! The end of a pass.

use super::*;

const LB: &str = "lb/#1";

#[test]
fn what_is_parked_goes_on_with_the_same_question_and_what_failed_with_a_new_one() {
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    fixture.discover();
    let began = fixture.now;
    let task = fixture.take("lb/a").unwrap();
    fixture.tick(30);
    let until = fixture.now;
    let parked = PartState::Parked {
        until,
        since: began,
        why: "it is at work".to_owned(),
    };
    let (outputs, next) = fixture.conclude(&task, &report("lb/a", parked));
    assert_eq!((next, outputs.len()), (NextRun::Until(until), 0));
    let task = fixture.take("lb/a").unwrap();
    assert_eq!(task.job.ask().freshness, Freshness::After(began));
    let error = Error::new(ErrorKind::Unavailable, "down");
    let (_, next) = fixture.conclude(&task, &report("lb/a", PartState::Failed(error)));
    let least = Duration::ZERO;
    assert_eq!(next, NextRun::Backoff { least });
    let ask = fixture.take("lb/a").unwrap().job.ask();
    assert_eq!(ask.freshness, Freshness::After(fixture.now));
}

#[test]
fn a_wait_of_the_provider_is_kept_and_one_of_a_header_raised_to_the_backoff() {
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    fixture.discover();
    let mut next = |retry, refused: bool| {
        let error = Error::new(ErrorKind::RateLimited, "slow").with_retry(retry);
        let task = fixture.take("lb/a").unwrap();
        let ended = if refused {
            let mut refused = done("lb/a", &["a"]);
            refused.members[0].state = MemberState::Refused(error);
            refused.members[0].finished = false;
            refused
        } else {
            report("lb/a", PartState::Failed(error))
        };
        (fixture.conclude(&task, &ended).1, fixture.now)
    };
    let wait = Duration::from_secs(42);
    for refused in [false, true] {
        let (kept, now) = next(Retry::Fixed(wait), refused);
        assert_eq!(kept, NextRun::Until(now + wait));
        for wait in [Duration::ZERO, wait, Duration::MAX] {
            let (raised, _) = next(Retry::After(wait), refused);
            assert_eq!(raised, NextRun::Backoff { least: wait });
        }
        // Nobody lives to see it, but nothing panics either.
        assert!(matches!(next(Retry::Fixed(Duration::MAX), refused).0, NextRun::Until(_)));
    }
}

#[test]
fn a_failure_is_reported_once_until_it_changes_or_ends() {
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    fixture.discover();
    let mut fail = |message: &str, id: &str| {
        let task = fixture.take("lb/a").unwrap();
        let error = Error::new(ErrorKind::Unavailable, message).with_context("request_id", id);
        let outputs = fixture.conclude(&task, &report("lb/a", PartState::Failed(error))).0;
        reasons(&outputs).len()
    };
    assert_eq!([fail("down", "1"), fail("down", "2"), fail("away", "3")], [1, 0, 1]);
    fixture.run("lb/a", &["a"]);
    fixture.change(&view("a", |view| view.ports[0].port = 2));
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "away");
    let outputs = fixture.conclude(&task, &report("lb/a", PartState::Failed(error))).0;
    assert_eq!(reasons(&outputs), ["SyncLoadBalancerFailed"]);
}

#[test]
fn a_failure_to_follow_nodes_has_its_own_reason() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.node("n1");
    fixture.tick(2);
    fixture.follow();
    let task = fixture.take("lb/a").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "down");
    let outputs = fixture.conclude(&task, &report("lb/a", PartState::Failed(error))).0;
    let [Output::Event(event)] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!(event.reason, "UpdateLoadBalancerFailed");
    assert_eq!(
        event.message,
        "Error updating load balancer with new hosts [n1] [node names limited, total number of nodes: 1], error: down"
    );
}

#[test]
fn work_is_announced_to_those_for_whom_it_is() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.change(&view("b", |_| {}));
    fixture.discover();
    let texts = |events: Vec<ServiceEvent>| -> Vec<String> {
        let text = |event: ServiceEvent| format!("{} {}", event.service.name, event.reason);
        events.into_iter().map(text).collect()
    };
    let shared = PartKey::new(SHARED);
    let of_b = fixture.state.part_writes(&PartKey::new("lb/b"), &steps(Some("b")), Cause::Service);
    assert_eq!(texts(of_b), ["b EnsuringLoadBalancer"]);
    let again = fixture.state.part_writes(&shared, &steps(None), Cause::Service);
    assert_eq!(texts(again), [""; 0], "once, and what is done for all is for b");
    fixture.run("lb/b", &["b"]);
    // Nodes: nothing before, one word after.
    let nodes = fixture.state.part_writes(&PartKey::new("lb/b"), &steps(Some("b")), Cause::Nodes);
    assert_eq!(texts(nodes), [""; 0]);
    fixture.node("n1");
    fixture.tick(2);
    fixture.follow();
    let outputs = fixture.run("lb/b", &["b"]);
    assert_eq!(reasons(&outputs), ["UpdatedLoadBalancer"]);
    let outputs = fixture.run(SHARED, &["a", "b"]);
    assert_eq!(reasons(&outputs), [""; 0], "one part speaks for all");
    // The members of some clouds are in a part that is not the first one.
    fixture.node("n2");
    fixture.tick(2);
    fixture.follow();
    let outputs = fixture.run(SHARED, &["b"]);
    assert_eq!(reasons(&outputs), ["UpdatedLoadBalancer"]);
    let outputs = fixture.run("lb/b", &["b"]);
    assert_eq!(reasons(&outputs), [""; 0]);
    fixture.change(&view("b", |view| view.deleting = true));
    fixture.discover();
    let leaving = fixture.state.part_writes(&PartKey::new("lb/b"), &steps(None), Cause::Service);
    assert_eq!(texts(leaving), ["b DeletingLoadBalancer"]);
}

/// A comparison with the cloud begins to repair the part of `a`.
fn repair(fixture: &mut Fixture) -> PartTask {
    fixture.state.changed(ClusterChange::Drift, fixture.now);
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    fixture.state.part_writes(&PartKey::new("lb/a"), &steps(Some("a")), Cause::Drift);
    task
}

#[test]
fn a_repair_is_reported_when_no_part_is_parked_and_none_fails() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    let parked = PartState::Parked {
        until: fixture.now,
        since: fixture.now,
        why: "it is at work".to_owned(),
    };
    let failed = PartState::Failed(Error::new(ErrorKind::Unavailable, "down"));
    for (state, expected) in [(parked, &[][..]), (failed, &["SyncLoadBalancerFailed"])] {
        let task = repair(&mut fixture);
        // The last known state serves the Service.
        let unfinished = PartReport {
            state,
            ..done("lb/a", &["a"])
        };
        assert_eq!(reasons(&fixture.conclude(&task, &unfinished).0), expected);
        assert_eq!(reasons(&fixture.run(SHARED, &["a"])), [""; 0]);
        assert_eq!(reasons(&fixture.run("lb/a", &["a"])), ["EnsuredLoadBalancer"]);
    }
    // The pass that repairs it has not ended.
    let task = repair(&mut fixture);
    assert_eq!(reasons(&fixture.run(SHARED, &["a"])), [""; 0]);
    let (outputs, _) = fixture.conclude(&task, &done("lb/a", &["a"]));
    assert_eq!(reasons(&outputs), ["EnsuredLoadBalancer"]);
    // Its report was made before the other part served the Service, and comes later.
    let task = repair(&mut fixture);
    assert_eq!(reasons(&fixture.run(SHARED, &["a"])), [""; 0]);
    let mut earlier = done("lb/a", &["a"]);
    earlier.members[0].finished = false;
    assert_eq!(reasons(&fixture.conclude(&task, &earlier).0), ["EnsuredLoadBalancer"]);
}

#[test]
fn an_empty_set_of_nodes_is_reported_once() {
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    fixture.discover();
    assert_eq!(reasons(&fixture.run("lb/a", &["a"])), ["UnAvailableLoadBalancer"]);
    fixture.change(&view("a", |view| view.ports[0].port = 2));
    fixture.discover();
    assert_eq!(reasons(&fixture.run("lb/a", &["a"])), [""; 0]);
}

#[test]
fn one_that_is_not_served_though_nothing_is_under_way_is_looked_at_again() {
    for was_served in [false, true] {
        let mut fixture = Fixture::new();
        if was_served {
            // Its load balancer is being deleted when it has its type again.
            fixture.served("a");
            fixture.change(&view("a", |view| view.service_type = ServiceType::NodePort));
            fixture.discover();
        }
        fixture.change(&view("a", |_| {}));
        fixture.discover();
        let object = object(view("a", |_| {}), 1, Claim::Ours);
        let task = fixture.state.take_object(&object, fixture.now);
        assert!(matches!(task, ObjectTask::Nothing), "the address of before");
        // Its parts know nothing of it: the cloud shows something else than it did.
        let conclude_without_it = |fixture: &mut Fixture| {
            for part in ["lb/a", SHARED] {
                let task = fixture.take(part).unwrap();
                fixture.conclude(&task, &done(part, &[]));
            }
        };
        conclude_without_it(&mut fixture);
        assert_eq!(fixture.discover(), [SHARED, "lb/a"], "it may have other parts now");
        conclude_without_it(&mut fixture);
        assert!(
            fixture.state.due(false).is_some_and(|due| due > fixture.now),
            "but the discovery found none"
        );
        assert_eq!(fixture.discover(), [""; 0]);
        fixture.tick(1);
        assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
        assert_eq!(fixture.take("lb/a").unwrap().job.after, None);
    }
}

#[test]
fn one_that_was_not_served_for_long_does_not_wait_longer_after_a_change() {
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    for (wait, port) in [(1, 1), (2, 1), (4, 1), (1, 2)] {
        fixture.change(&view("a", |view| view.ports[0].port = port));
        assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
        for part in ["lb/a", SHARED] {
            let task = fixture.take(part).unwrap();
            let mut report = done(part, &["a"]);
            report.members[0].state = MemberState::Frozen("it waits".to_owned());
            report.members[0].finished = false;
            fixture.conclude(&task, &report);
        }
        let due = fixture.state.due(false).unwrap() - fixture.now;
        let wait = Duration::from_secs(wait);
        assert!(due <= wait && due > wait / 2, "{due:?}");
        fixture.now += wait;
    }
}

#[test]
fn a_blocked_difference_is_compared_again_without_reading_the_cloud() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    let mut blocked = done("lb/a", &["a"]);
    blocked.blocked.push(Blocked {
        service: None,
        field: "target server1".to_owned(),
        observed: "absent".to_owned(),
        desired: "present".to_owned(),
    });
    fixture.change(&view("a", |view| view.ports[0].port = 2));
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    fixture.conclude(&task, &blocked);
    fixture.run(SHARED, &["a"]);
    for reported in [&blocked, &done("lb/a", &["a"])] {
        assert_eq!(fixture.state.due(false), Some(fixture.now + BLOCKED));
        fixture.tick(BLOCKED.as_secs());
        assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
        let task = fixture.take("lb/a").unwrap();
        assert_eq!((task.job.cause, task.job.after), (Cause::Nodes, None));
        let events = reasons(&fixture.conclude(&task, reported).0);
        let is_done = reported.blocked.is_empty();
        assert_eq!(events.contains(&"UpdatedLoadBalancer"), is_done, "{events:?}");
        fixture.run(SHARED, &["a"]);
    }
    assert_eq!(fixture.state.due(false), None);
}

#[test]
fn a_part_goes_on_under_its_new_name() {
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    let renamed = PartReport {
        renamed: Some(PartKey::new(LB)),
        ..done("lb/a", &["a"])
    };
    // News that came meanwhile came under the old name.
    let job = task.job;
    fixture.state.make_dirty(&PartKey::new("lb/a"), job);
    let (outputs, next) = fixture.conclude(&task, &renamed);
    assert_eq!((runs(&outputs), next), (vec![LB.to_owned()], NextRun::Done));
    assert_eq!(fixture.record("a").joins[0], PartKey::new(LB));
    assert!(fixture.take("lb/a").is_none() && fixture.take(LB).is_some());
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_difference_that_stays_is_reported_later_and_a_missing_load_balancer_at_once() {
    // A machine runs longer than its processes.
    tokio::time::advance(Duration::from_secs(3600)).await;
    for (state, expected) in [
        (MemberState::Served, [0, 0, 1, 0]),
        (MemberState::Pending, [1, 0, 0, 0]),
    ] {
        let mut fixture = Fixture::new();
        fixture.change(&view("a", |view| view.ingress = vec![Ingress::default()]));
        fixture.discover();
        let mut blocked = done("lb/a", &["a"]);
        blocked.pass_steps = 0;
        blocked.members[0].state = state;
        blocked.blocked.push(Blocked {
            service: None,
            field: "load balancer".to_owned(),
            observed: "missing".to_owned(),
            desired: "present".to_owned(),
        });
        let task = fixture.take("lb/a").unwrap();
        for (seconds, expected) in [0, 60, BLOCKED.as_secs(), 60].into_iter().zip(expected) {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            let outputs = fixture.conclude(&task, &blocked).0;
            let mut events = reasons(&outputs);
            events.retain(|reason| *reason == "LoadBalancerChangeBlocked");
            assert_eq!(events.len(), expected, "{seconds}");
        }
    }
}

#[test]
fn an_event_of_a_part_that_waits_is_reported_once_also_after_a_restart() {
    let mut fixture = Fixture::new();
    let ingress = vec![Ingress::default()];
    fixture.change(&view("a", |view| view.ingress = ingress));
    fixture.discover();
    assert!(fixture.record("a").inherited);
    let mut park = |with_event: bool| {
        let mut parked = done("lb/a", &["a"]);
        parked.state = PartState::Parked {
            until: fixture.now,
            since: fixture.now,
            why: "it is PENDING".to_owned(),
        };
        parked.pass_steps = 0;
        parked.members[0].state = MemberState::Pending;
        parked.members[0].finished = false;
        parked.events.extend(with_event.then(|| ServiceEvent {
            service: parked.members[0].service.clone(),
            reason: "LoadBalancerPending",
            message: "for 5 minutes".to_owned(),
            warning: true,
        }));
        let task = fixture.take("lb/a").unwrap();
        reasons(&fixture.conclude(&task, &parked).0).len()
    };
    assert_eq!([false, true, true, false, true].map(&mut park), [0, 1, 0, 0, 0]);
}
