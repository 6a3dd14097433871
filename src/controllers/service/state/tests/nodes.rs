//! What follows the nodes, and parts in trouble while they change.

use super::*;

#[test]
fn only_parts_that_do_not_follow_the_nodes_are_run() {
    let mut fixture = Fixture::new();
    for service in ["a", "b"] {
        fixture.served(service);
    }
    fixture.node("n1");
    // Before the others follow, one is run for another reason and sees the node.
    fixture.change(&view("b", |view| view.ports[0].port = 2));
    fixture.discover();
    fixture.run("lb/b", &["b"]);
    assert_eq!(fixture.follow(), [""; 0], "joining nodes are gathered first");
    fixture.tick(2);
    assert_eq!(fixture.follow(), [SHARED, "lb/a"]);
    assert_eq!(fixture.take("lb/a").unwrap().job.ask().priority, Priority::User);
    fixture.tick(20);
    assert_eq!(fixture.follow(), [""; 0], "once");
}

#[test]
fn a_node_that_comes_during_a_pass_is_followed_by_the_next_one() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.change(&view("a", |view| view.ports[0].port = 2));
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    fixture.node("n1");
    fixture.conclude(&task, &done("lb/a", &["a"]));
    fixture.tick(2);
    assert!(fixture.follow().contains(&"lb/a".to_owned()));
}

#[test]
fn changed_nodes_do_not_wait_for_a_comparison_for_which_there_is_no_quota() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.state.changed(ClusterChange::Drift, fixture.now);
    fixture.discover();
    let fail = |fixture: &mut Fixture, task: &PartTask| {
        let error = Error::new(ErrorKind::RateLimited, "few remain");
        let ended = report("lb/a", PartState::Failed(error));
        reasons(&fixture.conclude(task, &ended).0).len()
    };
    let task = fixture.take("lb/a").unwrap();
    assert_eq!(fail(&mut fixture, &task), 0, "no Event");
    fixture.node("n1");
    fixture.tick(2);
    let at_once = |fixture: &mut Fixture| {
        let outputs = fixture.state.take_due(fixture.now);
        let is_run =
            |output: &Output| matches!(output, Output::Run(part, _) if part == &PartKey::new("lb/a"));
        outputs.iter().any(is_run)
    };
    assert!(at_once(&mut fixture));
    // What fails for users, too, waits.
    let task = fixture.take("lb/a").unwrap();
    assert_eq!(fail(&mut fixture, &task), 1);
    fixture.node("n2");
    fixture.tick(2);
    assert!(!at_once(&mut fixture));
    // A load balancer that serves, and whose failure the cloud reports, waits as well.
    let task = fixture.take("lb/a").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "impaired");
    let degraded = PartReport {
        state: PartState::Failed(error),
        ..done("lb/a", &["a"])
    };
    assert_eq!(reasons(&fixture.conclude(&task, &degraded).0).len(), 1);
    fixture.node("n3");
    fixture.tick(2);
    assert!(!at_once(&mut fixture));
}

/// A report in which one member is refused.
fn refused(part: &str, member: &str) -> PartReport {
    let mut report = done(part, &[member]);
    let error = Error::new(ErrorKind::InvalidSpec, "no such subnet");
    report.members[0].state = MemberState::Refused(error);
    report.members[0].finished = false;
    report
}

#[test]
fn parts_in_trouble_keep_their_wait_when_nodes_change() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.served("b");
    let task = fixture.take("lb/a");
    assert!(task.is_none());
    fixture.node("n0");
    fixture.tick(2);
    fixture.follow();
    for (part, member) in [("lb/b", "b"), (SHARED, "a")] {
        let task = fixture.take(part).unwrap();
        fixture.conclude(&task, &done(part, &[member]));
    }
    let task = fixture.take("lb/a").unwrap();
    let (_, next) = fixture.conclude(&task, &failed("lb/a", &["a"]));
    assert!(matches!(next, NextRun::Backoff { .. }), "{next:?}");
    assert_eq!(fixture.state.parts[&PartKey::new("lb/a")].status, PartStatus::Degraded);

    for change in 1..=20 {
        fixture.node(&format!("n{change}"));
        fixture.tick(3);
        let outputs = fixture.state.take_due(fixture.now);
        let ended: Vec<_> = outputs
            .iter()
            .filter_map(|output| match output {
                Output::Run(part, _) => Some(part.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(ended, [""; 0], "change {change}");
    }
    // Its own retry reads the cloud, and follows the newest nodes.
    let task = fixture.take("lb/a").unwrap();
    assert!(matches!(task.job.ask().freshness, Freshness::After(at) if at >= fixture.now - BURST));
    assert_eq!(task.snapshot.cluster.nodes.eligible().count(), 21);
}

#[test]
fn a_part_with_a_refused_member_follows_nodes_with_remembered_answers_and_keeps_its_retry() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.node("n0");
    fixture.tick(2);
    fixture.follow();
    let task = fixture.take("lb/a").unwrap();
    let (_, next) = fixture.conclude(&task, &refused("lb/a", "a"));
    assert!(matches!(next, NextRun::Backoff { .. }), "{next:?}");
    for change in 1..=20 {
        fixture.node(&format!("n{change}"));
        fixture.tick(3);
        let outputs = fixture.state.take_due(fixture.now);
        let is_run = |output: &Output| matches!(output, Output::Run(part, _) if part.as_str() == "lb/a");
        assert!(outputs.iter().any(is_run), "{outputs:?}");
        let task = fixture.take("lb/a").unwrap();
        assert_eq!(task.job.ask().freshness, Freshness::AtMost(REMEMBERED), "change {change}");
        let (_, next) = fixture.conclude(&task, &refused("lb/a", "a"));
        assert_eq!(next, NextRun::LastRetry);
    }
    // Its own retry.
    let task = fixture.take("lb/a").unwrap();
    assert!(matches!(task.job.ask().freshness, Freshness::After(_)));
    let (_, next) = fixture.conclude(&task, &refused("lb/a", "a"));
    assert!(matches!(next, NextRun::Backoff { .. }), "{next:?}");
}

#[test]
fn the_latency_of_nodes_does_not_wait_for_parts_that_fail() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.served("b");
    fixture.change(&view("a", |view| view.ports[0].port = 2));
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    fixture.conclude(&task, &failed("lb/a", &["a"]));
    fixture.run(SHARED, &["a", "b"]);

    let followed = |outputs: &[Output]| {
        let mut all = outputs.iter().filter_map(|output| match output {
            Output::NodesFollowed(took) => Some(*took),
            _ => None,
        });
        all.next()
    };
    fixture.node("n1");
    fixture.tick(2);
    assert_eq!(fixture.follow(), [SHARED, "lb/a", "lb/b"]);
    fixture.tick(1);
    assert_eq!(followed(&fixture.run("lb/b", &["b"])), None);
    // One that begins to fail does not keep it, either.
    let task = fixture.take(SHARED).unwrap();
    let (outputs, _) = fixture.conclude(&task, &failed(SHARED, &[]));
    assert_eq!(followed(&outputs), Some(Duration::from_secs(1)));
}
