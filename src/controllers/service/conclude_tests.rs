#![allow(clippy::unwrap_used)]

use ccm_core::{Error, Freshness};

use super::*;
use crate::controllers::service::book::{Book, SHARED, done, reasons, report, runs, steps, view};

const LB: &str = "lb/#1";

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
    let least = Duration::ZERO;
    assert_eq!(next, Next::Backoff { least });
    let ask = book.take("lb/a").unwrap().job.ask();
    assert_eq!(ask.freshness, Freshness::After(book.now));
}

#[test]
fn a_wait_of_the_provider_is_kept_and_one_of_a_header_raised_to_the_backoff() {
    let mut book = Book::new();
    book.change(&view("a", |_| {}));
    book.survey();
    let mut next = |retry, held: bool| {
        let error = Error::new(ErrorKind::RateLimited, "slow").with_retry(retry);
        let task = book.take("lb/a").unwrap();
        let ended = if held {
            let mut held = done("lb/a", &["a"]);
            held.members[0].state = MemberState::Refused(error);
            held.members[0].finished = false;
            held
        } else {
            report("lb/a", PartState::Failed(error))
        };
        (book.conclude(&task, &ended).1, book.now)
    };
    let wait = Duration::from_secs(42);
    for held in [false, true] {
        let (kept, now) = next(Retry::Fixed(wait), held);
        assert_eq!(kept, Next::Until(now + wait));
        for wait in [Duration::ZERO, wait, Duration::MAX] {
            let (raised, _) = next(Retry::After(wait), held);
            assert_eq!(raised, Next::Backoff { least: wait });
        }
        // Nobody lives to see it, but nothing panics either.
        assert!(matches!(
            next(Retry::Fixed(Duration::MAX), held).0,
            Next::Until(_)
        ));
    }
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
fn a_note_of_a_part_that_waits_is_told_once_also_after_a_restart() {
    let mut book = Book::new();
    let ingress = vec![ccm_core::load_balancer::Ingress::default()];
    book.change(&view("a", |view| view.ingress = ingress));
    book.survey();
    assert!(book.record("a").inherited);
    let mut park = |told: bool| {
        let mut parked = done("lb/a", &["a"]);
        parked.state = PartState::Parked {
            until: book.now,
            since: book.now,
            why: "it is PENDING".to_owned(),
        };
        parked.pass_steps = 0;
        parked.members[0].state = MemberState::Pending;
        parked.members[0].finished = false;
        parked
            .events
            .extend(told.then(|| ccm_core::load_balancer::ServiceEvent {
                service: parked.members[0].service.clone(),
                reason: "LoadBalancerPending",
                message: "for 5 minutes".to_owned(),
                warning: true,
            }));
        let task = book.take("lb/a").unwrap();
        reasons(&book.conclude(&task, &parked).0).len()
    };
    assert_eq!([false, true, true, false, true].map(&mut park), [0, 1, 0, 0, 0]);
}
