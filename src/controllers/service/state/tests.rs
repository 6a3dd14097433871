#![allow(clippy::unwrap_used)]

mod ended;
mod growth;
mod histories;
mod labels;
mod upgrade;

use ccm_core::{
    Error, ErrorKind, Freshness, Retry,
    load_balancer::{
        Blocked, Discovery, Effect, Effects, FormerLoadBalancer, Ingress, MemberReport, MemberState,
        PartReport, PartState, Policy, ServiceParts, ServicePort, ServiceType, StepDescription,
    },
};
use serde_json::json;

use super::{
    ended::BLOCKED,
    jobs::{BURST, REMEMBERED},
    *,
};

const SHARED: &str = "hosts";
/// A Service with this annotation selects nodes by their labels.
const SELECTS: &str = "test/selects";

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
    state: ControllerState,
    now: Instant,
    /// The provider's own finalizers for every Service.
    finalizers: ProviderFinalizers,
}

impl Fixture {
    fn new() -> Self {
        Self {
            state: ControllerState::new(
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
        let now = Some(ServiceInput {
            view: Arc::clone(view),
            claim,
            finalizers: self.finalizers,
        });
        self.state.changed(ClusterChange::Service(name, now), self.now)
    }

    fn delete(&mut self, service: &str) {
        let name = format!("ns/{service}").into();
        self.state.changed(ClusterChange::Service(name, None), self.now);
    }

    fn node(&mut self, name: &str) {
        let node = Some(Arc::new(node(name)));
        self.state.changed(ClusterChange::Node(name.to_owned(), node), self.now);
    }

    /// A node has this value of a label now.
    fn label(&mut self, name: &str, value: &str) {
        let node = json!({
            "metadata": {"name": name, "labels": {"disk": value}},
            "spec": {"providerID": format!("fake://{name}")},
        });
        let node = Some(Arc::new(serde_json::from_value(node).unwrap()));
        self.state.changed(ClusterChange::Node(name.to_owned(), node), self.now);
    }

    /// A discovery, whether one is due or not.
    fn task(&mut self) -> DiscoveryTask {
        let task = self.state.take_discovery(self.now);
        task.unwrap_or_else(|| DiscoveryTask {
            job: Job::now(Cause::Service),
            snapshot: self.state.snapshot(),
            services: None,
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
                Arc::new(ServiceParts {
                    service: view.id.clone(),
                    claim: Claim::Ours,
                    joins: if wants { parts.clone() } else { Vec::new() },
                    leaves: if wants { Vec::new() } else { parts },
                    selects_by_labels: view.annotations.contains_key(SELECTS),
                    former: None,
                })
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
        let all: Vec<_> = self.state.services.values().map(|entry| entry.view.id.name.to_string()).collect();
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
            selects_by_labels: false,
            former: None,
        });
        let discover = Discovery {
            services: services.map(Arc::new).collect(),
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
fn a_service_of_another_controller_causes_no_discovery() {
    let mut fixture = Fixture::new();
    let changed = view("a", |view| {
        view.finalizers.clear();
        view.ports[0].port = 2;
    });
    let first = view("a", |view| view.finalizers.clear());
    for view in [first, Arc::clone(&changed)] {
        fixture.change_of(&view, Claim::NotOurs);
        assert!(fixture.state.discovery.is_none());
    }
    let changed = view("a", |view| view.ports[0].port = 2);
    for claim in [Claim::Ours, Claim::Elsewhere] {
        fixture.change_of(&changed, claim);
        assert!(fixture.state.discovery.take().is_some(), "{claim:?}");
    }
}

/// A discovery that finds this former load balancer of every Service. Returns the outputs as texts.
fn discover_former(fixture: &mut Fixture, former: &FormerLoadBalancer) -> Vec<String> {
    let task = fixture.task();
    let services = task.snapshot.services.iter().map(|view| ServiceParts {
        service: view.id.clone(),
        claim: Claim::NotOurs,
        joins: Vec::new(),
        leaves: Vec::new(),
        selects_by_labels: false,
        former: Some(former.clone()),
    });
    let discovery = Discovery {
        services: services.map(Arc::new).collect(),
        ..Discovery::default()
    };
    let outputs = fixture.state.discovery_ended(&task, Ok(discovery), fixture.now);
    let texts = outputs.iter().map(|output| match output {
        Output::Object(_) => "object".to_owned(),
        Output::CleanUp(_) => "clean up".to_owned(),
        Output::Event(event) => event.reason.to_owned(),
        other => format!("{other:?}"),
    });
    texts.collect()
}

#[test]
fn the_former_load_balancer_of_a_service_of_another_controller_is_discovered() {
    let ours = FormerLoadBalancer::Ours("load balancer a".to_owned());
    let unproven = FormerLoadBalancer::Unproven {
        what: "load balancer a".to_owned(),
        why: "it has no ownership tag of this cluster".to_owned(),
    };
    let exists = view("a", |view| view.class = Some("other".into()));
    let deleting = view("a", |view| {
        view.class = Some("other".into());
        view.deleting = true;
    });
    let mut fixture = Fixture::new();
    fixture.change_of(&exists, Claim::NotOurs);
    let ask = fixture.state.discovery.unwrap().ask();
    assert_eq!(ask.freshness, Freshness::AtMost(REMEMBERED));
    // While the Service exists, only one that is certainly left is reported, once.
    assert_eq!(discover_former(&mut fixture, &unproven), ["object"]);
    assert_eq!(discover_former(&mut fixture, &ours), ["FormerLoadBalancerExists"]);
    assert_eq!(discover_former(&mut fixture, &ours), [""; 0]);
    assert!(fixture.state.is_former_known(&exists));
    // A change of the status changes nothing.
    let address = view("a", |view| {
        view.class = Some("other".into());
        view.ingress = vec![Ingress::name("other")];
    });
    fixture.change_of(&address, Claim::NotOurs);
    assert!(fixture.state.discovery.is_none());
    // A discovery that began before the deletion decides nothing.
    let old = fixture.task();
    fixture.change_of(&deleting, Claim::NotOurs);
    assert!(!fixture.state.is_former_known(&deleting));
    fixture.state.discovery_ended(&old, Ok(Discovery::default()), fixture.now);
    assert_eq!(discover_former(&mut fixture, &unproven), ["object", "LoadBalancerNotDeleted"]);
    assert_eq!(discover_former(&mut fixture, &unproven), [""; 0]);
    assert_eq!(discover_former(&mut fixture, &ours), ["clean up"]);
}

#[test]
fn a_finalizer_that_another_controller_does_not_remove_is_reported_after_a_minute() {
    let mut fixture = Fixture::new();
    let deleting = view("a", |view| {
        view.class = Some("other".into());
        view.deleting = true;
    });
    fixture.change_of(&deleting, Claim::NotOurs);
    let missing = FormerLoadBalancer::Missing;
    assert_eq!(discover_former(&mut fixture, &missing), ["object"]);
    let due = fixture.now + Duration::from_secs(60);
    assert_eq!(fixture.state.due(false), Some(due));
    fixture.tick(60);
    assert_eq!(discover_former(&mut fixture, &missing), ["FinalizerNotRemoved"]);
    assert_eq!(fixture.state.due(false), None);
    fixture.tick(600);
    assert_eq!(discover_former(&mut fixture, &missing), [""; 0]);
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
    fixture.state.changed(ClusterChange::Drift, fixture.now);
    assert_eq!(fixture.discover(), [SHARED, "lb/a"]);
    let ask = fixture.take("lb/a").unwrap().job.ask();
    assert_eq!((ask.freshness, ask.priority), (Freshness::After(fixture.now), Priority::Background));
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

/// A report that fails, with or without a member that is served.
fn failed(part: &str, members: &[&str]) -> PartReport {
    let error = Error::new(ErrorKind::Unavailable, "it is in the state ERROR");
    PartReport {
        state: PartState::Failed(error),
        pass_steps: 0,
        ..done(part, members)
    }
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
    assert!(matches!(next, Next::Backoff { .. }), "{next:?}");
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
    assert!(matches!(next, Next::Backoff { .. }), "{next:?}");
    for change in 1..=20 {
        fixture.node(&format!("n{change}"));
        fixture.tick(3);
        let outputs = fixture.state.take_due(fixture.now);
        let is_run = |output: &Output| matches!(output, Output::Run(part, _) if part.as_str() == "lb/a");
        assert!(outputs.iter().any(is_run), "{outputs:?}");
        let task = fixture.take("lb/a").unwrap();
        assert_eq!(task.job.ask().freshness, Freshness::AtMost(REMEMBERED), "change {change}");
        let (_, next) = fixture.conclude(&task, &refused("lb/a", "a"));
        assert_eq!(next, Next::LastRetry);
    }
    // Its own retry.
    let task = fixture.take("lb/a").unwrap();
    assert!(matches!(task.job.ask().freshness, Freshness::After(_)));
    let (_, next) = fixture.conclude(&task, &refused("lb/a", "a"));
    assert!(matches!(next, Next::Backoff { .. }), "{next:?}");
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

// === Service objects ===

fn object(view: Arc<ServiceView>, version: u32, claim: Claim) -> ClaimedService {
    let object = json!({
        "metadata": {"uid": *view.id.uid, "resourceVersion": version.to_string()},
        "spec": {"type": "LoadBalancer"},
    });
    let mut object: ServiceObject = serde_json::from_value(object).unwrap();
    object.view = view;
    ClaimedService {
        object: Arc::new(object),
        claim,
        finalizers: ProviderFinalizers::default(),
    }
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
        assert_eq!(fixture.record("a").dirty, Some(Job::service(None)), "our own write");
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
        fixture.state.object_ended(&object.object, write, Ok(false), fixture.now);
    }
    let [least, longest] = [47, 60].map(Duration::from_secs);
    assert!(waits[0].is_zero() && waits[1] < waits[3] && waits[3] < waits[5], "{waits:?}");
    assert!(waits[10..].iter().all(|wait| *wait > least && *wait <= longest), "{waits:?}");
    // After a quiet time it is written at once.
    fixture.tick(120);
    let task = fixture.state.take_object(&object(100), fixture.now);
    assert!(matches!(task, ObjectTask::Write(ObjectWrite { repeats: 0, .. })));
}
