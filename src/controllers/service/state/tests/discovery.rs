//! What a change makes due: discoveries, and passes over parts.

use super::*;

#[test]
fn together_jobs_want_the_newest_answer_for_whoever_waits() {
    let now = Instant::now();
    let nodes = Job {
        cause: Cause::Nodes,
        after: None,
        priority: Priority::User,
    };
    let drift = Job {
        cause: Cause::Drift,
        after: Some(now),
        priority: Priority::Background,
    };
    let both = Job {
        priority: Priority::User,
        ..drift
    };
    assert_eq!(nodes.and(drift), both);
    assert_eq!(drift.and(nodes), both);
    assert_eq!(both.ask().freshness, Freshness::After(now));
    assert_eq!(nodes.ask().freshness, Freshness::AtMost(REMEMBERED));
}

#[test]
fn a_burst_shares_one_moment() {
    let start = Instant::now();
    let mut moment = Moment::default();
    assert_eq!(moment.at(start), start);
    assert_eq!(moment.at(start + BURST / 2), start);
    assert_eq!(moment.at(start + BURST), start + BURST);
}

#[test]
fn only_what_a_service_asks_for_makes_its_parts_dirty() {
    type Case = (&'static str, fn(&mut ServiceView), bool);
    let cases: [Case; 17] = [
        ("nothing", |_| {}, false),
        ("status", |view| view.ingress = vec![Ingress::default()], false),
        ("finalizers", |view| view.finalizers.push("x".into()), false),
        ("labels", |view| view.labels = [("a", "b")].into_iter().collect(), true),
        ("type", |view| view.service_type = ServiceType::ClusterIp, true),
        ("ports", |view| view.ports.clear(), true),
        ("node port", |view| view.ports[0].node_port = 1, true),
        (
            "target port",
            |view| view.ports[0].target = ccm_core::load_balancer::PortTarget::Name("x".into()),
            true,
        ),
        ("appProtocol", |view| view.ports[0].app_protocol = Some("http".into()), true),
        ("external IPs", |view| view.external_ips = vec!["192.0.2.1".into()], true),
        ("source ranges", |view| view.source_ranges = Some(Vec::new()), true),
        ("traffic policy", |view| view.external_policy = Policy::Local, true),
        ("health check port", |view| view.health_check_node_port = 1, true),
        ("families", |view| view.ip_families = vec![ccm_core::load_balancer::IpFamily::V4], true),
        ("address", |view| view.load_balancer_ip = "192.0.2.1".into(), true),
        ("annotation", |view| view.annotations = [("a", "b")].into_iter().collect(), true),
        ("deletion", |view| view.deleting = true, true),
    ];
    for (what, change, expected) in cases {
        let mut fixture = Fixture::new();
        fixture.served("a");
        fixture.tick(10);
        fixture.change(&view("a", change));
        assert_eq!(!fixture.discover().is_empty(), expected, "{what}");
        if expected {
            let ask = fixture.take("lb/a").unwrap().job.ask();
            assert_eq!(ask.freshness, Freshness::After(fixture.now), "{what}");
            assert_eq!(ask.priority, Priority::User);
        }
    }
}

#[test]
fn an_orphan_is_not_deleted_while_a_new_service_may_take_it_over() {
    let discover = |fixture: &mut Fixture| {
        let orphan = OrphanPart {
            part: PartKey::new("lb/lost"),
            what: "load balancer lost".to_owned(),
            deletable: true,
        };
        let discover = Discovery {
            orphans: Some(vec![orphan]),
            ..Discovery::default()
        };
        let task = fixture.task();
        runs(&fixture.state.discovery_ended(&task, Ok(discover), fixture.now))
    };
    let mut fixture = Fixture::new();
    assert_eq!(discover(&mut fixture), [""; 0]);
    fixture.tick(3600);
    assert_eq!(discover(&mut fixture), ["lb/lost"]);
    fixture.change(&view("lost", |view| view.finalizers.clear()));
    assert!(!fixture.take("lb/lost").unwrap().delete_orphan);
    // Only when every Service is known is it permitted again.
    assert_eq!(discover(&mut fixture), [""; 0]);
    fixture.delete("lost");
    assert_eq!(discover(&mut fixture), ["lb/lost"]);
    assert!(fixture.take("lb/lost").unwrap().delete_orphan);
}

#[test]
fn a_service_deleted_without_cleanup_causes_no_pass_but_a_discovery() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.delete("a");
    assert!(fixture.state.discovery.is_some());
    assert_eq!(fixture.discover(), [""; 0]);
    // In order: nothing is left to do.
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.change(&view("a", |view| view.deleting = true));
    fixture.discover();
    fixture.run("lb/a", &["a"]);
    fixture.run(SHARED, &["a"]);
    fixture.delete("a");
    assert!(fixture.state.discovery.is_none());
    assert!(fixture.state.parts.is_empty());
}

#[test]
fn a_discovery_looks_up_the_services_that_changed_and_now_and_then_all() {
    let mut fixture = Fixture::new();
    let asked = |fixture: &mut Fixture, change: &dyn Fn(&mut Fixture)| {
        change(fixture);
        let task = fixture.state.take_discovery(fixture.now).unwrap();
        let ended = fixture.state.discovery_ended(&task, Ok(Discovery::default()), fixture.now);
        drop(ended);
        let names =
            |services: BTreeSet<ServiceId>| services.iter().map(|id| id.name.to_string()).collect::<Vec<_>>();
        task.services.map(names)
    };
    let add = |name: &'static str| move |fixture: &mut Fixture| drop(fixture.change(&view(name, |_| {})));
    fixture.change(&view("z", |_| {}));
    assert_eq!(asked(&mut fixture, &add("a")), None, "the first one");
    fixture.tick(1);
    assert_eq!(asked(&mut fixture, &add("b")), Some(["a", "b", "z"].map(str::to_owned).to_vec()));
    let drift = |fixture: &mut Fixture| drop(fixture.state.changed(ClusterChange::Drift, fixture.now));
    assert_eq!(asked(&mut fixture, &drift), None);
    assert_eq!(asked(&mut fixture, &|fixture| fixture.delete("a")), None, "orphans are looked for");

    // One that failed is repeated for as many.
    fixture.tick(1);
    fixture.state.changed(ClusterChange::Drift, fixture.now);
    let task = fixture.state.take_discovery(fixture.now).unwrap();
    let error = Error::new(ErrorKind::Unavailable, "no answer");
    fixture.state.discovery_ended(&task, Err(error), fixture.now);
    fixture.tick(5);
    assert_eq!(asked(&mut fixture, &add("c")), None);
    fixture.tick(1);
    assert!(asked(&mut fixture, &add("d")).is_some());
    fixture.tick(10);
    assert_eq!(asked(&mut fixture, &add("e")), None, "the last one is 10 s ago");
}

#[test]
fn drift_is_looked_for_in_the_background_and_does_not_end_a_wait() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.tick(100);
    fixture.state.changed(ClusterChange::Drift, fixture.now);
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
    let ask = fixture.take("lb/a").unwrap().job.ask();
    assert_eq!((ask.freshness, ask.priority), (Freshness::After(fixture.now), Priority::Background));
}

#[test]
fn a_part_that_fails_keeps_its_wait_when_an_earlier_part_has_changed() {
    let mut fixture = Fixture::new();
    let services: Vec<_> = (0..10).map(|number| format!("s{number}")).collect();
    for service in &services {
        fixture.change(&view(service, |_| {}));
    }
    fixture.discover();
    let task = fixture.take(SHARED).unwrap();
    fixture.conclude(&task, &failed(SHARED, &[]));
    let mut ended = 0;
    for service in &services {
        let part = format!("lb/{service}");
        let task = fixture.take(&part).unwrap();
        let report = PartReport {
            next: vec![PartKey::new(SHARED)],
            ..done(&part, &[service])
        };
        let (outputs, _) = fixture.conclude(&task, &report);
        let is_run = |output: &&Output| matches!(output, Output::Run(part, _) if part.as_str() == SHARED);
        ended += outputs.iter().filter(is_run).count();
    }
    assert_eq!(ended, 0);
    // A user's change does not wait.
    fixture.change(&view("s1", |view| view.ports[0].port = 2));
    assert_eq!(fixture.discover(), [SHARED, "lb/s1"]);
    assert_eq!(fixture.state.parts[&PartKey::new(SHARED)].ended_wait, Some(Cause::Service));
}

#[test]
fn a_change_of_status_or_finalizers_makes_no_snapshot() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.served("b");
    let before = fixture.state.snapshot();
    let address = |view: &mut ServiceView| {
        view.ingress = vec![Ingress {
            ip: Some("192.0.2.1".into()),
            ..Ingress::default()
        }];
    };
    fixture.change(&view("a", address));
    fixture.change(&view("b", |view| {
        view.finalizers.push("example.com/other".into());
    }));
    assert!(Arc::ptr_eq(&before, &fixture.state.snapshot()));
    // A Service that waits for its finalizer is in no snapshot.
    fixture.change(&view("new", |view| view.finalizers.clear()));
    assert!(Arc::ptr_eq(&before, &fixture.state.snapshot()));

    // A part that fails may depend on the address.
    fixture.state.changed(ClusterChange::Drift, fixture.now);
    fixture.discover();
    let knows_address = |snapshot: &ClusterSnapshot| {
        let services = snapshot.services.iter();
        let mut a = services.filter(|view| &*view.id.name == "a");
        a.any(|view| !view.ingress.is_empty())
    };
    let task = fixture.take("lb/a").unwrap();
    assert!(knows_address(&task.snapshot), "after a while, all are known");
    fixture.conclude(&task, &failed("lb/a", &["a"]));
    fixture.change(&view("a", |view| {
        address(view);
        view.ingress[0].ip = Some("192.0.2.2".into());
    }));
    let retry = fixture.take("lb/a").unwrap();
    assert!(!Arc::ptr_eq(&task.snapshot, &retry.snapshot));

    for change in [
        view("a", |view| view.ports[0].port = 2),
        view("new", |_| {}),
        // It wants none any more, and its finalizers decide what it leaves.
        view("b", |view| view.service_type = ServiceType::ClusterIp),
        view("b", |view| {
            view.service_type = ServiceType::ClusterIp;
            view.finalizers.clear();
        }),
    ] {
        let before = fixture.state.snapshot();
        fixture.change(&change);
        let after = fixture.state.snapshot();
        assert!(!Arc::ptr_eq(&before, &after), "{change:?}");
    }
}

#[test]
fn a_pass_over_a_shared_part_leads_only_to_objects_that_differ() {
    let mut fixture = Fixture::new();
    for service in ["a", "b", "c"] {
        fixture.served(service);
    }
    let objects = |outputs: &[Output]| {
        let names = outputs.iter().filter_map(|output| match output {
            Output::Object(name) => Some(name.to_string()),
            _ => None,
        });
        names.collect::<Vec<_>>()
    };
    fixture.node("n1");
    fixture.tick(2);
    fixture.follow();
    let outputs = fixture.run(SHARED, &["a", "b", "c"]);
    assert_eq!(objects(&outputs), [""; 0]);

    fixture.node("n2");
    fixture.tick(2);
    fixture.follow();
    let task = fixture.take(SHARED).unwrap();
    let mut report = done(SHARED, &["a", "b", "c"]);
    report.members[1].effects.ingress = Some(Vec::new());
    let (outputs, _) = fixture.conclude(&task, &report);
    assert_eq!(objects(&outputs), ["ns/b"]);
}

#[test]
fn a_new_service_does_not_wait_for_a_comparison_for_which_there_is_no_quota() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.state.changed(ClusterChange::Drift, fixture.now);
    let task = fixture.state.take_discovery(fixture.now).unwrap();
    let wait = Retry::After(Duration::from_secs(60));
    let error = Error::new(ErrorKind::RateLimited, "few remain").with_retry(wait);
    let outputs = fixture.state.discovery_ended(&task, Err(error), fixture.now);
    assert!(outputs.is_empty(), "no Event: {outputs:?}");
    assert!(fixture.state.take_discovery(fixture.now).is_none());
    fixture.change(&view("new", |_| {}));
    assert_eq!(fixture.discover(), [SHARED, "lb/a", "lb/new"]);
}

#[test]
fn known_parts_of_changed_services_do_not_wait_for_a_discovery_that_fails() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.served("quiet");
    fixture.change(&view("a", |view| view.ports[0].port = 2));
    fixture.change(&view("new", |_| {}));
    let fail = |fixture: &mut Fixture| {
        fixture.tick(10);
        let task = fixture.state.take_discovery(fixture.now).unwrap();
        let error = Error::new(ErrorKind::Unavailable, "down");
        let outputs = fixture.state.discovery_ended(&task, Err(error), fixture.now);
        assert!(fixture.state.take_discovery(fixture.now).is_none(), "not at once");
        reasons(&outputs).len()
    };
    assert_eq!(fail(&mut fixture), 2, "of a and new");
    assert_eq!(runs(&fixture.state.requeue_known()), [SHARED, "lb/a"]);
    // Each change once.
    assert_eq!(fail(&mut fixture), 0);
    assert_eq!(runs(&fixture.state.requeue_known()), [""; 0]);
    fixture.tick(10);
    for port in [3, 4] {
        fixture.change(&view("a", |view| view.ports[0].port = port));
        assert_eq!(runs(&fixture.state.requeue_known()), [SHARED, "lb/a"], "{port}");
    }
    // The failure of the deletion is another one.
    fixture.change(&view("a", |view| view.deleting = true));
    assert_eq!(fail(&mut fixture), 1);
    fixture.tick(60);
    // Answers about others meanwhile are not lost.
    assert_eq!(fixture.discover(), [SHARED, "lb/a", "lb/new"]);
    assert_eq!(fixture.record("a").requeued, None);
}
