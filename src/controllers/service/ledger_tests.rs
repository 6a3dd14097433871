#![allow(clippy::unwrap_used)]

use ccm_core::{
    Error, ErrorKind, Freshness,
    load_balancer::{Claim, Discovery, Effects, Ingress, OrphanPart, Policy, ServiceParts, ServiceType},
};

use super::*;
use crate::controllers::service::book::{Book, SHARED, done, reasons, runs, view};

#[test]
fn passes_do_not_know_of_a_service_before_it_has_its_finalizer() {
    let mut book = Book::new();
    let orders = book.change(&view("a", |view| view.finalizers.clear()));
    assert!(matches!(orders[..], [Order::Object(_)]), "{orders:?}");
    assert!(book.ledger.snapshot().services.is_empty());
    assert_eq!(book.survey(), [""; 0]);
    book.change(&view("a", |_| {}));
    assert_eq!(book.survey(), [SHARED, "lb/a"]);
    assert_eq!(book.take("lb/a").unwrap().snapshot.services.len(), 1);
}

#[test]
fn passes_do_not_know_of_a_service_before_it_has_the_finalizers_of_the_provider() {
    let mut book = Book::new();
    book.finalizers = ProviderFinalizers {
        needed: &["example.com/own"],
        all: &["example.com/own"],
    };
    let orders = book.change(&view("a", |_| {}));
    assert!(matches!(orders[..], [Order::Object(_)]), "{orders:?}");
    assert!(book.ledger.snapshot().services.is_empty());
    book.change(&view("a", |view| view.finalizers.push("example.com/own".into())));
    assert_eq!(book.ledger.snapshot().services.len(), 1);
    assert_eq!(book.survey(), [SHARED, "lb/a"]);
}

#[test]
fn a_service_without_parts_is_finished() {
    let survey = |book: &mut Book| {
        let snapshot = book.ledger.begin_survey();
        let services = snapshot.services.iter().map(|view| ServiceParts {
            service: view.id.clone(),
            claim: Claim::Ours,
            joins: Vec::new(),
            leaves: Vec::new(),
        });
        let survey = Discovery {
            services: services.collect(),
            ..Discovery::default()
        };
        book.ledger.surveyed(survey, &snapshot, book.now)
    };
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    let orders = survey(&mut book);
    assert!(matches!(orders[..], [Order::Object(_)]), "{orders:?}");
    assert!(book.record("a").is_settled());
    assert_eq!(book.record("a").effects, Some(Effects::default()));
    assert_eq!(book.ledger.due(), None);
    // What it said about the status is forgotten: whoever serves it now writes there.
    let mut book = Book::new();
    book.served("a");
    book.change(&view("a", |view| view.external_ips = vec!["192.0.2.1".into()]));
    survey(&mut book);
    assert!(book.record("a").is_settled());
    assert_eq!(book.record("a").effects, Some(Effects::default()));
    book.change(&view("a", |view| view.deleting = true));
    let orders = survey(&mut book);
    assert!(matches!(orders[..], [Order::Object(_)]), "{orders:?}");
    assert!(book.record("a").is_settled());
}

#[test]
fn a_service_that_lost_its_finalizer_stays_known() {
    let mut book = Book::new();
    book.served("a");
    let orders = book.change(&view("a", |view| view.finalizers.clear()));
    assert!(matches!(orders[..], [Order::Object(_)]), "{orders:?}");
    assert_eq!(book.ledger.snapshot().services.len(), 1);
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
fn another_one_under_the_same_name_is_served() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    book.change(&view("a", |view| view.id.uid = "another".into()));
    assert_eq!(book.survey(), [SHARED, "lb/a"]);
    assert!(!book.record("a").is_settled());
}

#[test]
fn an_orphan_is_not_deleted_while_a_new_service_may_take_it_over() {
    let survey = |book: &mut Book| {
        let orphan = OrphanPart {
            part: PartKey::new("lb/lost"),
            what: "load balancer lost".to_owned(),
            deletable: true,
        };
        let survey = Discovery {
            orphans: vec![orphan],
            ..Discovery::default()
        };
        let snapshot = book.ledger.begin_survey();
        runs(&book.ledger.surveyed(survey, &snapshot, book.now))
    };
    let mut book = Book::new();
    assert_eq!(survey(&mut book), [""; 0]);
    book.tick(3600);
    assert_eq!(survey(&mut book), ["lb/lost"]);
    book.change(&view("lost", |view| view.finalizers.clear()));
    assert!(!book.take("lb/lost").unwrap().delete_orphan);
    // Only when every Service is known is it permitted again.
    assert_eq!(survey(&mut book), [""; 0]);
    book.delete("lost");
    assert_eq!(survey(&mut book), ["lb/lost"]);
    assert!(book.take("lb/lost").unwrap().delete_orphan);
}

#[test]
fn a_service_that_is_gone_without_cleanup_makes_no_pass_but_a_survey() {
    let mut book = Book::new();
    book.served("a");
    book.delete("a");
    assert!(book.ledger.survey_wanted(book.now).is_some());
    assert_eq!(book.survey(), [""; 0]);
    // In order: nothing is left to do.
    let mut book = Book::new();
    book.served("a");
    book.change(&view("a", |view| view.deleting = true));
    book.survey();
    book.run("lb/a", &["a"]);
    book.run(SHARED, &["a"]);
    book.delete("a");
    assert!(book.ledger.survey_wanted(book.now).is_none());
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

#[test]
fn known_parts_of_changed_services_do_not_wait_for_a_discovery_that_fails() {
    let mut book = Book::new();
    book.served("a");
    book.served("quiet");
    book.change(&view("a", |view| view.ports[0].port = 2));
    book.change(&view("new", |_| {}));
    let fail = |book: &mut Book| {
        book.ledger.survey_wanted(book.now).unwrap();
        book.ledger.begin_survey();
        let error = Error::new(ErrorKind::Unavailable, "down");
        let orders = book.ledger.survey_failed(&error);
        let job = book.record("a").dirty.unwrap();
        book.ledger.want_survey(job);
        reasons(&orders).len()
    };
    assert_eq!(fail(&mut book), 2, "of a and new");
    assert_eq!(runs(&book.ledger.requeue_known()), [SHARED, "lb/a"]);
    // Each change once.
    assert_eq!(fail(&mut book), 0);
    assert_eq!(runs(&book.ledger.requeue_known()), [""; 0]);
    book.tick(10);
    book.change(&view("a", |view| view.ports[0].port = 3));
    assert_eq!(runs(&book.ledger.requeue_known()), [SHARED, "lb/a"]);
    // What was found out meanwhile about others is not lost.
    assert_eq!(book.survey(), [SHARED, "lb/a", "lb/new"]);
    assert_eq!(book.record("a").requeued, None);
}
