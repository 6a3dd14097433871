#![allow(clippy::unwrap_used)]

use std::time::Duration;

use ccm_core::{
    ErrorKind, Freshness, Retry,
    load_balancer::{
        Effect, Effects, Ingress, MemberReport, MemberState, PartReport, PartState, Policy, ServicePort,
        StepText,
    },
};
use serde_json::json;

use super::*;
use crate::{
    controllers::service::{conclude::Next, tell::Telling},
    informers::node::NodeObject,
};

const LB: &str = "lb/#1";
const SHARED: &str = "hosts";

fn view(name: &str, change: impl FnOnce(&mut ServiceView)) -> Arc<ServiceView> {
    let mut view = ServiceView {
        id: ServiceId::new("ns", name, format!("uid-{name}")),
        is_load_balancer: true,
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

/// A ledger and a clock.
struct Book {
    ledger: Ledger,
    now: Instant,
}

impl Book {
    fn new() -> Self {
        Self {
            ledger: Ledger::new("test".into(), Marks::Unknown),
            now: Instant::now(),
        }
    }

    fn tick(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn change(&mut self, view: &Arc<ServiceView>) -> Vec<Order> {
        let name = name(&view.id);
        let now = Some((Arc::clone(view), Claim::Ours));
        self.ledger.service_changed(&name, now, self.now)
    }

    fn delete(&mut self, service: &str) {
        self.ledger
            .service_changed(&format!("ns/{service}").into(), None, self.now);
    }

    fn node(&mut self, name: &str) {
        let news = self.ledger.nodes.apply(name, Some(&node(name)), self.now);
        self.ledger.node_changed(news);
    }

    /// A survey in which every Service has a part of its own and a shared one.
    fn survey(&mut self) -> Vec<String> {
        let Some(_) = self.ledger.survey_wanted(self.now) else {
            return Vec::new();
        };
        let world = self.ledger.begin_survey();
        let services = world
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
        let survey = Survey {
            services,
            ..Survey::default()
        };
        let orders = self.ledger.surveyed(survey, &world, self.now);
        runs(&orders)
    }

    fn follow(&mut self) -> Vec<String> {
        let orders = self.ledger.follow_nodes(self.now);
        runs(&orders.unwrap_or_default())
    }

    /// Takes a part up.
    fn take(&mut self, part: &str) -> Option<Task> {
        self.ledger.take(&PartKey::new(part), self.now)
    }

    fn conclude(&mut self, task: &Task, report: &PartReport) -> (Vec<Order>, Next) {
        self.ledger.conclude(task, report, self.now)
    }

    /// Runs a part to a good end: everybody in it is served, with this address.
    fn run(&mut self, part: &str, members: &[&str]) -> Vec<Order> {
        let task = self.take(part).unwrap();
        self.conclude(&task, &done(part, members)).0
    }

    /// A Service that is served.
    fn served(&mut self, service: &str) {
        self.change(&view(service, |_| {}));
        self.survey();
        self.run(&format!("lb/{service}"), &[service]);
        let all: Vec<_> = self
            .ledger
            .records
            .values()
            .map(|record| record.view.id.name.to_string())
            .collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        self.run(SHARED, &all);
        assert!(self.record(service).is_settled());
    }

    fn record(&self, service: &str) -> &Record {
        &self.ledger.records[format!("ns/{service}").as_str()]
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
        notes: Vec::new(),
        next: Vec::new(),
    }
}

fn done(part: &str, members: &[&str]) -> PartReport {
    let members = members.iter().map(|name| MemberReport {
        service: ServiceId::new("ns", *name, format!("uid-{name}")),
        state: MemberState::Serves,
        touched: true,
        effects: Effects {
            ingress: Some(vec![Ingress {
                ip: Some("192.0.2.1".into()),
                ..Ingress::default()
            }]),
            ..Effects::default()
        },
        finished: true,
    });
    PartReport {
        members: members.collect(),
        pass_steps: 1,
        ..report(part, PartState::Done)
    }
}

fn runs(orders: &[Order]) -> Vec<String> {
    let mut runs: Vec<_> = orders
        .iter()
        .filter_map(|order| match order {
            Order::Run(part) | Order::RunUnlessWaiting(part) => Some(part.to_string()),
            _ => None,
        })
        .collect();
    runs.sort();
    runs
}

fn reasons(orders: &[Order]) -> Vec<&'static str> {
    orders
        .iter()
        .filter_map(|order| match order {
            Order::Tell(telling) => Some(telling.reason),
            _ => None,
        })
        .collect()
}

fn steps(service: Option<&str>) -> Vec<StepText> {
    vec![StepText {
        sentence: "do something".to_owned(),
        why: String::new(),
        effect: Effect::Change,
        service: service.map(|name| ServiceId::new("ns", name, format!("uid-{name}"))),
    }]
}

#[test]
fn passes_do_not_know_of_a_service_before_it_has_its_finalizer() {
    let mut book = Book::new();
    let orders = book.change(&view("a", |view| view.finalizers.clear()));
    assert!(matches!(orders[..], [Order::Object(_)]), "{orders:?}");
    assert!(book.ledger.world().services.is_empty());
    assert_eq!(book.survey(), [""; 0]);
    book.change(&view("a", |_| {}));
    assert_eq!(book.survey(), [SHARED, "lb/a"]);
    assert_eq!(book.take("lb/a").unwrap().world.services.len(), 1);
}

#[test]
fn a_service_that_lost_its_finalizer_stays_known() {
    let mut book = Book::new();
    book.served("a");
    let orders = book.change(&view("a", |view| view.finalizers.clear()));
    assert!(matches!(orders[..], [Order::Object(_)]), "{orders:?}");
    assert_eq!(book.ledger.world().services.len(), 1);
}

#[test]
fn only_what_a_service_asks_for_makes_its_parts_dirty() {
    type Case = (&'static str, fn(&mut ServiceView), bool);
    let cases: [Case; 16] = [
        ("nothing", |_| {}, false),
        ("status", |view| view.ingress = vec![Ingress::default()], false),
        ("finalizers", |view| view.finalizers.push("x".into()), false),
        ("type", |view| view.is_load_balancer = false, true),
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
        let mut book = Book::new();
        book.served("a");
        book.tick(10);
        book.change(&view("a", change));
        assert_eq!(!book.survey().is_empty(), expected, "{what}");
        if expected {
            let ask = book.take("lb/a").unwrap().job.ask();
            assert_eq!(ask.freshness, Freshness::After(book.now), "{what}");
            assert_eq!(ask.priority, Priority::User);
        }
    }
}

#[test]
fn another_one_under_the_same_name_is_served_and_the_first_one_let_go() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    book.change(&view("a", |view| view.id.uid = "another".into()));
    assert_eq!(book.survey(), [SHARED, "lb/a"]);
    assert!(!book.record("a").is_settled());
}

#[test]
fn what_nobody_took_away_is_run_when_its_service_is_gone() {
    let mut book = Book::new();
    book.served("a");
    book.delete("a");
    assert_eq!(book.survey(), [SHARED, "lb/a"]);
    // In order: nothing is left to do.
    let mut book = Book::new();
    book.served("a");
    book.change(&view("a", |view| view.deleting = true));
    book.survey();
    book.run("lb/a", &["a"]);
    book.run(SHARED, &["a"]);
    book.delete("a");
    assert_eq!(book.survey(), [""; 0]);
}

#[test]
fn only_parts_that_do_not_follow_the_nodes_are_run() {
    let mut book = Book::new();
    for service in ["a", "b"] {
        book.served(service);
    }
    book.node("n1");
    // Before the others follow, one is run for another reason and sees the node.
    book.change(&view("b", |view| view.ports[0].port = 2));
    book.survey();
    book.run("lb/b", &["b"]);
    assert_eq!(book.follow(), [""; 0], "joining nodes are gathered first");
    book.tick(2);
    assert_eq!(book.follow(), [SHARED, "lb/a"]);
    assert_eq!(book.take("lb/a").unwrap().job.ask().priority, Priority::User);
    book.tick(20);
    assert_eq!(book.follow(), [""; 0], "once");
}

#[test]
fn a_node_that_comes_during_a_pass_is_followed_by_the_next_one() {
    let mut book = Book::new();
    book.served("a");
    book.change(&view("a", |view| view.ports[0].port = 2));
    book.survey();
    let task = book.take("lb/a").unwrap();
    book.node("n1");
    book.conclude(&task, &done("lb/a", &["a"]));
    book.tick(2);
    assert!(book.follow().contains(&"lb/a".to_owned()));
}

#[test]
fn what_is_parked_goes_on_with_the_same_question_and_what_failed_with_a_new_one() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    let began = book.now;
    let task = book.take("lb/a").unwrap();
    book.tick(30);
    let until = book.now;
    let parked = PartState::Parked {
        until,
        since: began,
        why: "it is at work".to_owned(),
    };
    let (orders, next) = book.conclude(&task, &report("lb/a", parked));
    assert_eq!((next, orders.len()), (Next::Until(until), 0));
    let task = book.take("lb/a").unwrap();
    assert_eq!(task.job.ask().freshness, Freshness::After(began));
    let error = Error::new(ErrorKind::Unavailable, "down");
    let (_, next) = book.conclude(&task, &report("lb/a", PartState::Failed(error)));
    assert_eq!(next, Next::Backoff);
    let ask = book.take("lb/a").unwrap().job.ask();
    assert_eq!(ask.freshness, Freshness::After(book.now));
}

#[test]
fn a_wait_that_the_cloud_asks_for_is_kept_to() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    let wait = Duration::from_secs(42);
    let error = Error::new(ErrorKind::RateLimited, "slow").with_retry(Retry::After(wait));
    let due = Next::Until(book.now + wait);
    let task = book.take("lb/a").unwrap();
    assert_eq!(
        book.conclude(&task, &report("lb/a", PartState::Failed(error.clone())))
            .1,
        due
    );
    // The same for one that is held back.
    let task = book.take("lb/a").unwrap();
    let mut held = done("lb/a", &["a"]);
    held.members[0].state = MemberState::Held(error);
    held.members[0].finished = false;
    assert_eq!(book.conclude(&task, &held).1, due);
}

#[test]
fn a_failure_is_told_once_until_it_is_another_one_or_over() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    let mut fail = |message: &str, id: &str| {
        let task = book.take("lb/a").unwrap();
        let error = Error::new(ErrorKind::Unavailable, message).with_context("request_id", id);
        let orders = book.conclude(&task, &report("lb/a", PartState::Failed(error))).0;
        reasons(&orders).len()
    };
    assert_eq!(
        [fail("down", "1"), fail("down", "2"), fail("away", "3")],
        [1, 0, 1]
    );
    book.run("lb/a", &["a"]);
    book.change(&view("a", |view| view.ports[0].port = 2));
    book.survey();
    let task = book.take("lb/a").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "away");
    let orders = book.conclude(&task, &report("lb/a", PartState::Failed(error))).0;
    assert_eq!(reasons(&orders), ["SyncLoadBalancerFailed"]);
}

#[test]
fn a_failure_to_follow_nodes_has_its_own_reason() {
    let mut book = Book::new();
    book.served("a");
    book.node("n1");
    book.tick(2);
    book.follow();
    let task = book.take("lb/a").unwrap();
    let error = Error::new(ErrorKind::Unavailable, "down");
    let orders = book.conclude(&task, &report("lb/a", PartState::Failed(error))).0;
    let [Order::Tell(telling)] = &orders[..] else {
        panic!("{orders:?}")
    };
    assert_eq!(telling.reason, "UpdateLoadBalancerFailed");
    assert_eq!(
        telling.message,
        "Error updating load balancer with new hosts [n1] [node names limited, total number of nodes: 1], error: down"
    );
}

#[test]
fn work_is_announced_to_those_for_whom_it_is() {
    let mut book = Book::new();
    book.served("a");
    book.change(&view("b", |_| {}));
    book.survey();
    let told = |tellings: Vec<Telling>| -> Vec<String> {
        let text = |telling: Telling| format!("{} {}", telling.service.name, telling.reason);
        tellings.into_iter().map(text).collect()
    };
    let shared = PartKey::new(SHARED);
    let of_b = book
        .ledger
        .steps_due(&PartKey::new("lb/b"), &steps(Some("b")), Cause::Service);
    assert_eq!(told(of_b), ["b EnsuringLoadBalancer"]);
    let again = book.ledger.steps_due(&shared, &steps(None), Cause::Service);
    assert_eq!(told(again), [""; 0], "once, and what is done for all is for b");
    book.run("lb/b", &["b"]);
    // Nodes: nothing before, one word after.
    let nodes = book
        .ledger
        .steps_due(&PartKey::new("lb/b"), &steps(Some("b")), Cause::Nodes);
    assert_eq!(told(nodes), [""; 0]);
    book.node("n1");
    book.tick(2);
    book.follow();
    let orders = book.run("lb/b", &["b"]);
    assert_eq!(reasons(&orders), ["UpdatedLoadBalancer"]);
    let orders = book.run(SHARED, &["a", "b"]);
    assert_eq!(reasons(&orders), [""; 0], "the first part speaks for all");
    book.change(&view("b", |view| view.deleting = true));
    book.survey();
    let leaving = book
        .ledger
        .steps_due(&PartKey::new("lb/b"), &steps(None), Cause::Service);
    assert_eq!(told(leaving), ["b DeletingLoadBalancer"]);
}

#[test]
fn an_empty_set_of_nodes_is_told_once() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    assert_eq!(reasons(&book.run("lb/a", &["a"])), ["UnAvailableLoadBalancer"]);
    book.change(&view("a", |view| view.ports[0].port = 2));
    book.survey();
    assert_eq!(reasons(&book.run("lb/a", &["a"])), [""; 0]);
}

#[test]
fn one_that_is_not_served_though_nothing_is_under_way_is_looked_at_again() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    for part in ["lb/a", SHARED] {
        // Its parts know nothing of it: the cloud shows something else than it did.
        let task = book.take(part).unwrap();
        book.conclude(&task, &done(part, &[]));
    }
    assert!(book.ledger.due().is_some_and(|due| due > book.now));
    assert_eq!(book.survey(), [""; 0]);
    book.tick(1);
    assert_eq!(book.survey(), [SHARED, "lb/a"]);
    assert_eq!(book.take("lb/a").unwrap().job.after, None);
}

#[test]
fn a_part_goes_on_under_its_new_name() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    let task = book.take("lb/a").unwrap();
    let renamed = PartReport {
        renamed: Some(PartKey::new(LB)),
        ..done("lb/a", &["a"])
    };
    // News that came meanwhile came under the old name.
    let job = task.job;
    book.ledger.dirty(&PartKey::new("lb/a"), job);
    let (orders, next) = book.conclude(&task, &renamed);
    assert_eq!((runs(&orders), next), (vec![LB.to_owned()], Next::Done));
    assert_eq!(book.record("a").joins[0], PartKey::new(LB));
    assert!(book.take("lb/a").is_none() && book.take(LB).is_some());
}

#[test]
fn drift_is_looked_for_in_the_background_and_does_not_end_a_wait() {
    let mut book = Book::new();
    book.served("a");
    book.tick(100);
    book.ledger.check_drift(book.now);
    assert_eq!(book.survey(), [SHARED, "lb/a"]);
    let ask = book.take("lb/a").unwrap().job.ask();
    assert_eq!(
        (ask.freshness, ask.priority),
        (Freshness::After(book.now), Priority::Background)
    );
}
