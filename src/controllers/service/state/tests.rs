#![allow(clippy::unwrap_used)]

use ccm_core::{
    Error, ErrorKind, Freshness, Retry,
    load_balancer::{
        Blocked, Discovery, Effect, Effects, Ingress, MemberReport, MemberState, PartReport, PartState,
        Policy, ServiceParts, ServicePort, ServiceType, StepDescription,
    },
};
use serde_json::json;

use super::{
    ended::BLOCKED,
    jobs::{BURST, REMEMBERED},
    *,
};

const SHARED: &str = "hosts";

fn view(name: &str, change: impl FnOnce(&mut ServiceView)) -> Arc<ServiceView> {
    let mut view = ServiceView {
        id: ServiceId::new("ns", name, format!("uid-{name}")),
        service_type: ServiceType::LoadBalancer,
        finalizers: vec![ServiceView::FINALIZER.into()],
        ports: vec![ServicePort::default()],
        ..ServiceView::default()
    };
    change(&mut view);
    Arc::new(view)
}

fn node(name: &str) -> NodeObject {
    serde_json::from_value(
        json!({"metadata": {"name": name}, "spec": {"providerID": format!("fake://{name}")}}),
    )
    .unwrap()
}

/// The state and a clock.
struct Fixture {
    state: State,
    now: Instant,
    /// The provider's own finalizers for every Service.
    finalizers: ProviderFinalizers,
}

impl Fixture {
    fn new() -> Self {
        Self {
            state: State::new(
                "test".into(),
                OwnershipTag::Unknown,
                OrphanConfig {
                    delete: true,
                    ..OrphanConfig::default()
                },
            ),
            now: Instant::now(),
            finalizers: ProviderFinalizers::default(),
        }
    }

    fn tick(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn change(&mut self, view: &Arc<ServiceView>) -> Vec<Output> {
        self.change_of(view, Claim::Ours)
    }

    fn change_of(&mut self, view: &Arc<ServiceView>, claim: Claim) -> Vec<Output> {
        let name = name(&view.id);
        let now = Some((Arc::clone(view), claim, self.finalizers));
        self.state.changed(Change::Service(name, now), self.now)
    }

    fn delete(&mut self, service: &str) {
        let name = format!("ns/{service}").into();
        self.state.changed(Change::Service(name, None), self.now);
    }

    fn node(&mut self, name: &str) {
        let node = Some(Arc::new(node(name)));
        self.state.changed(Change::Node(name.to_owned(), node), self.now);
    }

    /// A discovery, whether one is due or not.
    fn task(&mut self) -> DiscoveryTask {
        let task = self.state.take_discovery(self.now);
        task.unwrap_or_else(|| DiscoveryTask {
            job: Job::now(Cause::Service),
            snapshot: self.state.snapshot(),
        })
    }

    /// A discovery in which every Service has a part of its own and a shared one.
    fn discover(&mut self) -> Vec<String> {
        let Some(task) = self.state.take_discovery(self.now) else {
            return Vec::new();
        };
        let services = task
            .snapshot
            .services
            .iter()
            .map(|view| {
                let parts = vec![PartKey::new(format!("lb/{}", view.id.name)), PartKey::new(SHARED)];
                let wants = view.wants_load_balancer();
                ServiceParts {
                    service: view.id.clone(),
                    claim: Claim::Ours,
                    joins: if wants { parts.clone() } else { Vec::new() },
                    leaves: if wants { Vec::new() } else { parts },
                }
            })
            .collect();
        let discover = Discovery {
            services,
            ..Discovery::default()
        };
        let outputs = self.state.discovery_ended(&task, Ok(discover), self.now);
        runs(&outputs)
    }

    fn follow(&mut self) -> Vec<String> {
        let outputs = self.state.take_due(self.now);
        runs(&outputs)
    }

    /// Takes a part up.
    fn take(&mut self, part: &str) -> Option<PartTask> {
        self.state.take_part(&PartKey::new(part), self.now)
    }

    fn conclude(&mut self, task: &PartTask, report: &PartReport) -> (Vec<Output>, Next) {
        self.state.part_ended(task, report, self.now)
    }

    /// Runs a part to a good end: everybody in it is served, with this address.
    fn run(&mut self, part: &str, members: &[&str]) -> Vec<Output> {
        let task = self.take(part).unwrap();
        self.conclude(&task, &done(part, members)).0
    }

    /// A Service that is served.
    fn served(&mut self, service: &str) {
        self.change(&view(service, |_| {}));
        self.discover();
        self.run(&format!("lb/{service}"), &[service]);
        let all: Vec<_> = self
            .state
            .services
            .values()
            .map(|entry| entry.view.id.name.to_string())
            .collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        self.run(SHARED, &all);
        assert!(self.record(service).is_served());
    }

    fn effects(&self, service: &str) -> &Effects {
        &self.record(service).served.as_ref().unwrap().effects
    }

    fn record(&self, service: &str) -> &ServiceEntry {
        &self.state.services[format!("ns/{service}").as_str()]
    }
}

fn report(part: &str, state: PartState) -> PartReport {
    PartReport {
        part: PartKey::new(part),
        renamed: None,
        state,
        steps: Vec::new(),
        pass_steps: 0,
        members: Vec::new(),
        blocked: Vec::new(),
        events: Vec::new(),
        next: Vec::new(),
    }
}

fn done(part: &str, members: &[&str]) -> PartReport {
    let members = members.iter().map(|name| MemberReport {
        service: ServiceId::new("ns", *name, format!("uid-{name}")),
        state: MemberState::Served,
        touched: true,
        effects: Effects {
            ingress: Some(vec![Ingress {
                ip: Some("192.0.2.1".into()),
                ..Ingress::default()
            }]),
            ..Effects::default()
        },
        early: Effects::default(),
        finished: true,
    });
    PartReport {
        members: members.collect(),
        pass_steps: 1,
        ..report(part, PartState::Done)
    }
}

fn runs(outputs: &[Output]) -> Vec<String> {
    let mut runs: Vec<_> = outputs
        .iter()
        .filter_map(|order| match order {
            Output::Run(part, _) | Output::RunUnlessWaiting(part) => Some(part.to_string()),
            _ => None,
        })
        .collect();
    runs.sort();
    runs
}

fn reasons(outputs: &[Output]) -> Vec<&'static str> {
    outputs
        .iter()
        .filter_map(|order| match order {
            Output::Event(event) | Output::ProviderEvent(event) => Some(event.reason),
            _ => None,
        })
        .collect()
}

fn steps(service: Option<&str>) -> Vec<StepDescription> {
    let description = StepDescription::new("balancer_update", Effect::Change, "do something");
    vec![StepDescription {
        service: service.map(|name| ServiceId::new("ns", name, format!("uid-{name}"))),
        ..description
    }]
}

// === Changes and work ===

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
fn passes_do_not_know_of_a_service_before_it_has_its_finalizer() {
    let mut fixture = Fixture::new();
    let outputs = fixture.change(&view("a", |view| view.finalizers.clear()));
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert!(fixture.state.snapshot().services.is_empty());
    assert_eq!(fixture.discover(), [""; 0]);
    fixture.change(&view("a", |_| {}));
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
    assert_eq!(fixture.take("lb/a").unwrap().snapshot.services.len(), 1);
}

#[test]
fn passes_do_not_know_of_a_service_before_it_has_the_finalizers_of_the_provider() {
    let mut fixture = Fixture::new();
    fixture.finalizers = ProviderFinalizers {
        needed: &["example.com/own"],
        all: &["example.com/own"],
    };
    let outputs = fixture.change(&view("a", |_| {}));
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert!(fixture.state.snapshot().services.is_empty());
    fixture.change(&view("a", |view| view.finalizers.push("example.com/own".into())));
    assert_eq!(fixture.state.snapshot().services.len(), 1);
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
}

#[test]
fn a_service_without_parts_is_finished() {
    let discover = |fixture: &mut Fixture| {
        let task = fixture.task();
        let services = task.snapshot.services.iter().map(|view| ServiceParts {
            service: view.id.clone(),
            claim: Claim::Ours,
            joins: Vec::new(),
            leaves: Vec::new(),
        });
        let discover = Discovery {
            services: services.collect(),
            ..Discovery::default()
        };
        fixture.state.discovery_ended(&task, Ok(discover), fixture.now)
    };
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    let outputs = discover(&mut fixture);
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert!(fixture.record("a").is_served());
    assert_eq!(fixture.effects("a"), &Effects::default());
    assert_eq!(fixture.state.due(false), None);
    // The status that was desired is forgotten: another controller writes it now.
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.change(&view("a", |view| view.external_ips = vec!["192.0.2.1".into()]));
    discover(&mut fixture);
    assert!(fixture.record("a").is_served());
    assert_eq!(fixture.effects("a"), &Effects::default());
    fixture.change(&view("a", |view| view.deleting = true));
    let outputs = discover(&mut fixture);
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert!(fixture.record("a").is_served());
}

#[test]
fn a_service_that_lost_its_finalizer_stays_known() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    let outputs = fixture.change(&view("a", |view| view.finalizers.clear()));
    assert!(matches!(outputs[..], [Output::Object(_)]), "{outputs:?}");
    assert_eq!(fixture.state.snapshot().services.len(), 1);
}

#[test]
fn only_what_a_service_asks_for_makes_its_parts_dirty() {
    type Case = (&'static str, fn(&mut ServiceView), bool);
    let cases: [Case; 17] = [
        ("nothing", |_| {}, false),
        ("status", |view| view.ingress = vec![Ingress::default()], false),
        ("finalizers", |view| view.finalizers.push("x".into()), false),
        (
            "labels",
            |view| view.labels = [("a", "b")].into_iter().collect(),
            true,
        ),
        ("type", |view| view.service_type = ServiceType::ClusterIp, true),
        ("ports", |view| view.ports.clear(), true),
        ("node port", |view| view.ports[0].node_port = 1, true),
        (
            "target port",
            |view| view.ports[0].target = ccm_core::load_balancer::PortTarget::Name("x".into()),
            true,
        ),
        (
            "appProtocol",
            |view| view.ports[0].app_protocol = Some("http".into()),
            true,
        ),
        (
            "external IPs",
            |view| view.external_ips = vec!["192.0.2.1".into()],
            true,
        ),
        (
            "source ranges",
            |view| view.source_ranges = Some(Vec::new()),
            true,
        ),
        (
            "traffic policy",
            |view| view.external_policy = Policy::Local,
            true,
        ),
        ("health check port", |view| view.health_check_node_port = 1, true),
        (
            "families",
            |view| view.ip_families = vec![ccm_core::load_balancer::IpFamily::V4],
            true,
        ),
        ("address", |view| view.load_balancer_ip = "192.0.2.1".into(), true),
        (
            "annotation",
            |view| view.annotations = [("a", "b")].into_iter().collect(),
            true,
        ),
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
fn a_service_of_another_controller_causes_no_discovery() {
    let mut fixture = Fixture::new();
    let changed = view("a", |view| view.ports[0].port = 2);
    for view in [view("a", |_| {}), Arc::clone(&changed)] {
        fixture.change_of(&view, Claim::NotOurs);
        assert!(fixture.state.discovery.is_none());
    }
    for claim in [Claim::Ours, Claim::Elsewhere] {
        fixture.change_of(&changed, claim);
        assert!(fixture.state.discovery.take().is_some(), "{claim:?}");
    }
}

#[test]
fn a_service_that_was_another_controllers_gets_our_finalizer_before_passes_know_of_it() {
    let mut fixture = Fixture::new();
    let new = view("a", |view| view.finalizers.clear());
    fixture.change_of(&new, Claim::NotOurs);
    fixture.change_of(&new, Claim::Ours);
    assert_eq!(fixture.state.snapshot().services.len(), 0);
}

#[test]
fn another_one_under_the_same_name_is_served() {
    let mut fixture = Fixture::new();
    fixture.change(&view("a", |_| {}));
    fixture.discover();
    fixture.change(&view("a", |view| view.id.uid = "another".into()));
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
    assert!(!fixture.record("a").is_served());
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
            orphans: vec![orphan],
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
fn drift_is_looked_for_in_the_background_and_does_not_end_a_wait() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.tick(100);
    fixture.state.changed(Change::Drift, fixture.now);
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
    let ask = fixture.take("lb/a").unwrap().job.ask();
    assert_eq!(
        (ask.freshness, ask.priority),
        (Freshness::After(fixture.now), Priority::Background)
    );
}

#[test]
fn changed_nodes_do_not_wait_for_a_comparison_for_which_there_is_no_quota() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.state.changed(Change::Drift, fixture.now);
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
    // A load balancer that serves, and whose failure the cloud reports, follows at once.
    let task = fixture.take("lb/a").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "impaired");
    let degraded = PartReport {
        state: PartState::Failed(error),
        ..done("lb/a", &["a"])
    };
    assert_eq!(reasons(&fixture.conclude(&task, &degraded).0).len(), 1);
    fixture.node("n3");
    fixture.tick(2);
    assert!(at_once(&mut fixture));
}

#[test]
fn a_new_service_does_not_wait_for_a_comparison_for_which_there_is_no_quota() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    fixture.state.changed(Change::Drift, fixture.now);
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

// === Service objects ===

fn object(
    view: Arc<ServiceView>,
    version: u32,
    claim: Claim,
) -> (Arc<ServiceObject>, Claim, ProviderFinalizers) {
    let object = json!({
        "metadata": {"uid": *view.id.uid, "resourceVersion": version.to_string()},
        "spec": {"type": "LoadBalancer"},
    });
    let mut object: ServiceObject = serde_json::from_value(object).unwrap();
    object.view = view;
    (Arc::new(object), claim, ProviderFinalizers::default())
}

#[test]
fn a_service_that_is_another_controllers_by_now_gets_no_finalizer() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    let bare = view("a", |view| view.finalizers.clear());
    for (claim, writes) in [
        (Claim::Ours, true),
        (Claim::NotOurs, false),
        (Claim::Elsewhere, false),
    ] {
        // The change of the claim is not handled yet.
        let object = object(Arc::clone(&bare), 1, claim);
        let task = fixture.state.take_object(&object, fixture.now);
        assert_eq!(matches!(task, ObjectTask::Write(_)), writes, "{claim:?}");
    }
}

#[test]
fn early_annotations_are_written_before_the_service_is_served() {
    let annotated = |id: Option<&str>, port, deleting| {
        view("a", |view| {
            view.annotations = id.map(|id| ("id", id)).into_iter().collect();
            (view.ports[0].port, view.deleting) = (port, deleting);
        })
    };
    let written = |fixture: &mut Fixture, view: &Arc<ServiceView>| {
        let object = object(Arc::clone(view), 1, Claim::Ours);
        match fixture.state.take_object(&object, fixture.now) {
            ObjectTask::Write(write) => write.change,
            _ => ServiceAction::default(),
        }
    };
    // The Service may change before the cloud has accepted the create.
    for (port, deleting) in [(80, false), (81, false), (80, true)] {
        let mut fixture = Fixture::new();
        fixture.change(&annotated(None, 80, false));
        fixture.discover();
        let task = fixture.take("lb/a").unwrap();
        let now = annotated(None, port, deleting);
        fixture.change(&now);
        fixture.discover();
        let mut accepted = done("lb/a", &["a"]);
        let member = &mut accepted.members[0];
        (member.state, member.finished) = (MemberState::Pending, false);
        member.early.annotate("id", Some("7"));
        fixture.conclude(&task, &accepted);
        let annotations = [("id".to_owned(), Some("7".to_owned()))].into();
        let due = ServiceAction {
            annotations,
            ..ServiceAction::default()
        };
        assert_eq!(written(&mut fixture, &now), due, "{now:?}");
        fixture.change(&annotated(Some("7"), port, deleting));
        assert_eq!(
            fixture.record("a").dirty,
            Some(Job::service(None)),
            "our own write"
        );
        // What others write then stays.
        let other = annotated(Some("8"), port, deleting);
        assert_eq!(written(&mut fixture, &other), ServiceAction::default());
    }
}

#[test]
fn a_change_that_another_client_keeps_undoing_is_written_after_growing_waits() {
    let mut fixture = Fixture::new();
    fixture.served("a");
    let object = |version: u32| object(view("a", |_| {}), version, Claim::Ours);
    let mut waits = Vec::new();
    for version in 0..100 {
        // Each time the status is empty again.
        let (object, began) = (object(version), fixture.now);
        let write = loop {
            match fixture.state.take_object(&object, fixture.now) {
                ObjectTask::Later(due) => fixture.now = due,
                ObjectTask::Write(write) => break write,
                ObjectTask::Nothing => panic!("nothing to write"),
            }
        };
        waits.push(fixture.now - began);
        fixture
            .state
            .object_ended(&object.0, write, Ok(false), fixture.now);
    }
    let [least, longest] = [47, 60].map(Duration::from_secs);
    assert!(
        waits[0].is_zero() && waits[1] < waits[3] && waits[3] < waits[5],
        "{waits:?}"
    );
    assert!(
        waits[10..].iter().all(|wait| *wait > least && *wait <= longest),
        "{waits:?}"
    );
    // After a quiet time it is written at once.
    fixture.tick(120);
    let task = fixture.state.take_object(&object(100), fixture.now);
    assert!(matches!(task, ObjectTask::Write(ObjectWrite { repeats: 0, .. })));
}

// === The end of a pass ===

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
    assert_eq!((next, outputs.len()), (Next::Until(until), 0));
    let task = fixture.take("lb/a").unwrap();
    assert_eq!(task.job.ask().freshness, Freshness::After(began));
    let error = Error::new(ErrorKind::Unavailable, "down");
    let (_, next) = fixture.conclude(&task, &report("lb/a", PartState::Failed(error)));
    let least = Duration::ZERO;
    assert_eq!(next, Next::Backoff { least });
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
        assert_eq!(kept, Next::Until(now + wait));
        for wait in [Duration::ZERO, wait, Duration::MAX] {
            let (raised, _) = next(Retry::After(wait), refused);
            assert_eq!(raised, Next::Backoff { least: wait });
        }
        // Nobody lives to see it, but nothing panics either.
        assert!(matches!(
            next(Retry::Fixed(Duration::MAX), refused).0,
            Next::Until(_)
        ));
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
        let outputs = fixture
            .conclude(&task, &report("lb/a", PartState::Failed(error)))
            .0;
        reasons(&outputs).len()
    };
    assert_eq!(
        [fail("down", "1"), fail("down", "2"), fail("away", "3")],
        [1, 0, 1]
    );
    fixture.run("lb/a", &["a"]);
    fixture.change(&view("a", |view| view.ports[0].port = 2));
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "away");
    let outputs = fixture
        .conclude(&task, &report("lb/a", PartState::Failed(error)))
        .0;
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
    let outputs = fixture
        .conclude(&task, &report("lb/a", PartState::Failed(error)))
        .0;
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
    let of_b = fixture
        .state
        .part_writes(&PartKey::new("lb/b"), &steps(Some("b")), Cause::Service);
    assert_eq!(texts(of_b), ["b EnsuringLoadBalancer"]);
    let again = fixture.state.part_writes(&shared, &steps(None), Cause::Service);
    assert_eq!(texts(again), [""; 0], "once, and what is done for all is for b");
    fixture.run("lb/b", &["b"]);
    // Nodes: nothing before, one word after.
    let nodes = fixture
        .state
        .part_writes(&PartKey::new("lb/b"), &steps(Some("b")), Cause::Nodes);
    assert_eq!(texts(nodes), [""; 0]);
    fixture.node("n1");
    fixture.tick(2);
    fixture.follow();
    let outputs = fixture.run("lb/b", &["b"]);
    assert_eq!(reasons(&outputs), ["UpdatedLoadBalancer"]);
    let outputs = fixture.run(SHARED, &["a", "b"]);
    assert_eq!(reasons(&outputs), [""; 0], "the first part speaks for all");
    fixture.change(&view("b", |view| view.deleting = true));
    fixture.discover();
    let leaving = fixture
        .state
        .part_writes(&PartKey::new("lb/b"), &steps(None), Cause::Service);
    assert_eq!(texts(leaving), ["b DeletingLoadBalancer"]);
}

/// A comparison with the cloud begins to repair the part of `a`.
fn repair(fixture: &mut Fixture) -> PartTask {
    fixture.state.changed(Change::Drift, fixture.now);
    fixture.discover();
    let task = fixture.take("lb/a").unwrap();
    fixture
        .state
        .part_writes(&PartKey::new("lb/a"), &steps(Some("a")), Cause::Drift);
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
    assert_eq!(
        reasons(&fixture.conclude(&task, &earlier).0),
        ["EnsuredLoadBalancer"]
    );
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
        for part in ["lb/a", SHARED] {
            // Its parts know nothing of it: the cloud shows something else than it did.
            let task = fixture.take(part).unwrap();
            fixture.conclude(&task, &done(part, &[]));
        }
        assert!(fixture.state.due(false).is_some_and(|due| due > fixture.now));
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
            fixture.conclude(&task, &done(part, &[]));
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
    assert_eq!((runs(&outputs), next), (vec![LB.to_owned()], Next::Done));
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
