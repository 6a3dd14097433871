//! Parts that many Services share: one that is refused holds up no other, and many changes are few writes.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority,
    load_balancer::{
        LoadBalancers, MemberReport, MemberState, PartKey, PartReport, PartState, ReadOptions, Request,
        ServiceView,
    },
    plan::{Engine, PlanMetrics},
    testkit::laws::{
        CloudBehavior, Lawful, MemoryCloud, concurrent, laws,
        shared::{ServiceRefusal, batches, isolates},
    },
};
use tokio::time::{Instant, sleep_until};

use crate::{
    rulebook::{NOTE, Rulebook, RulebookChange, RulebookFlaw, error_about},
    toy_cases::{nodes, service, world},
};

const SLOW: CloudBehavior = CloudBehavior {
    polls: 2,
    busy_every: 0,
    stale_every: 0,
};

fn refusal(refused: usize) -> ServiceRefusal {
    ServiceRefusal {
        services: 100,
        refused,
        error: Error::new(ErrorKind::InvalidSpec, "a rule is invalid"),
        is_late: false,
        // 1 is refused, 7 find the Service, 1 has all others.
        most_writes: 9,
    }
}

#[test]
fn a_shared_document_keeps_the_laws() {
    laws(&Rulebook::default(), 60);
}

#[test]
fn a_shared_document_keeps_the_laws_when_passes_run_at_the_same_time() {
    concurrent::histories(&Rulebook::default(), 200);
}

#[tokio::test(start_paused = true)]
async fn one_refused_service_among_a_hundred_holds_up_no_other() {
    let mut writes = Vec::new();
    for refused in [0, 37, 99] {
        let isolated = isolates(&Rulebook::default(), CloudBehavior::default(), &refusal(refused)).await;
        writes.push(isolated.unwrap());
    }
    assert_eq!(writes, [8, 8, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_operation_fails_holds_up_no_other() {
    let late = ServiceRefusal {
        is_late: true,
        error: Error::new(ErrorKind::Unexpected, "the operation failed"),
        ..refusal(37)
    };
    isolates(&Rulebook::default(), SLOW, &late).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_service_that_the_error_names_is_not_searched_for() {
    let model = Rulebook {
        reads_names: true,
        ..Rulebook::default()
    };
    for (is_late, behavior) in [(false, CloudBehavior::default()), (true, SLOW)] {
        let named = ServiceRefusal {
            error: Error::new(ErrorKind::InvalidSpec, error_about(37)),
            is_late,
            most_writes: 2,
            ..refusal(37)
        };
        isolates(&model, behavior, &named).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_not_shared_breaks_isolates() {
    let model = Rulebook {
        flaw: Some(RulebookFlaw::IsAlone),
        ..Rulebook::default()
    };
    let broken = isolates(&model, CloudBehavior::default(), &refusal(37)).await.unwrap_err();
    assert_eq!(broken.law, "isolates", "{broken}");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_services_that_are_created_at_once_are_few_writes() {
    let mut seen = Vec::new();
    for behavior in [CloudBehavior::default(), SLOW] {
        for interval in [0, 50, 100] {
            let interval = Duration::from_millis(interval);
            let (writes, took) = batches(&Rulebook::default(), behavior, 100, interval).await.unwrap();
            assert!(writes <= 6, "{interval:?}: {writes} writes");
            seen.push((writes, took.as_millis()));
            assert!(took <= 100 * interval + Duration::from_secs(10), "{interval:?}: {took:?}");
        }
    }
    // The first Service, then all others; after 2 s and 6 s; after 2 s, 6 s and 14 s.
    assert_eq!(seen, [(2, 2000), (3, 6000), (4, 14000), (2, 2000), (3, 6000), (4, 14000)]);
    let alone = Rulebook {
        flaw: Some(RulebookFlaw::IsAlone),
        ..Rulebook::default()
    };
    let interval = Duration::from_millis(100);
    let (writes, _) = batches(&alone, CloudBehavior::default(), 100, interval).await.unwrap();
    assert!(writes > 50, "{writes} writes: the cloud does not show what the window is for");
}

#[tokio::test(start_paused = true)]
async fn a_single_change_does_not_wait() {
    let (writes, took) = batches(&Rulebook::default(), CloudBehavior::default(), 2, Duration::from_secs(10))
        .await
        .unwrap();
    assert_eq!((writes, took), (2, Duration::from_secs(10)));
}

struct SharedStage {
    engine: Engine<Rulebook, MemoryCloud<Rulebook>>,
    cloud: Arc<MemoryCloud<Rulebook>>,
}

fn shared_stage() -> SharedStage {
    let model = Rulebook::default();
    let cloud = Arc::new(MemoryCloud::new(model.clone(), model.ground(), CloudBehavior::default()));
    SharedStage {
        engine: Engine::new(model, Arc::clone(&cloud), PlanMetrics::default()),
        cloud,
    }
}

impl SharedStage {
    /// Runs the pools of these Services, then the document until it waits no longer.
    async fn run(&self, services: &[ServiceView]) -> PartReport {
        let read = ReadOptions {
            freshness: Freshness::AtMost(Duration::from_secs(60)),
            priority: Priority::User,
        };
        let request = Request::new(Arc::new(world(services.to_vec(), nodes([("n0", true)]))), read);
        for service in services {
            let pool = PartKey::new(format!("pool/pool-{}", service.id.uid));
            self.engine.run(&pool, &request).await;
        }
        loop {
            let report = self.engine.run(&PartKey::new("document"), &request).await;
            match &report.state {
                PartState::Parked { until, .. } => sleep_until(*until).await,
                _ => return report,
            }
        }
    }

    /// Refuses rules with the note `bad`.
    fn refuse_bad_notes(&self) {
        self.cloud.refuse(false, |change| match change {
            RulebookChange::Write { document, .. } if document.fields().to_string().contains("bad") => {
                Some(Error::new(ErrorKind::InvalidSpec, "a note is bad"))
            }
            _ => None,
        });
    }

    fn notes(&self) -> Vec<String> {
        let truth = self.cloud.truth();
        let rules = truth
            .document
            .list("rules")
            .filter(|rule| rule["name"].as_str().unwrap().starts_with('u'));
        rules.map(|rule| rule["note"].as_str().unwrap().to_owned()).collect()
    }
}

fn with_notes(notes: &[&str]) -> Vec<ServiceView> {
    let services = notes.iter().enumerate();
    services.map(|(index, note)| service(index, &[80], &[(NOTE, note)])).collect()
}

fn is_served(member: &MemberReport) -> bool {
    matches!(member.state, MemberState::Served) && member.finished
}

#[tokio::test(start_paused = true)]
async fn a_refused_service_keeps_its_rules_and_is_tried_again_at_once_when_it_changes() {
    let stage = shared_stage();
    stage.refuse_bad_notes();
    let report = stage.run(&with_notes(&["one", "one", "one"])).await;
    assert!(report.members.iter().all(is_served), "{report:?}");

    let report = stage.run(&with_notes(&["two", "bad", "two"])).await;
    let MemberState::Refused(error) = &report.members[1].state else {
        panic!("{report:?}");
    };
    assert_eq!(error.report(), "a note is bad");
    assert!(is_served(&report.members[0]) && is_served(&report.members[2]), "{report:?}");
    assert_eq!(stage.notes(), ["two", "one", "two"]);

    // Another Service can change, with one write, and the refused one is not sent again.
    stage.cloud.take_shared_writes();
    let report = stage.run(&with_notes(&["three", "bad", "two"])).await;
    assert!(matches!(report.members[1].state, MemberState::Refused(_)), "{report:?}");
    assert_eq!((stage.notes(), stage.cloud.take_shared_writes()), (texts(["three", "one", "two"]), 1));

    let began = Instant::now();
    let report = stage.run(&with_notes(&["three", "good", "two"])).await;
    assert!(report.members.iter().all(is_served), "{report:?}");
    assert!(began.elapsed() <= Duration::from_secs(10));
    assert_eq!(stage.notes(), ["three", "good", "two"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_leaves_is_not_held_up_by_a_refused_one() {
    let stage = shared_stage();
    stage.refuse_bad_notes();
    stage.run(&with_notes(&["one", "one"])).await;
    let mut services = with_notes(&["one", "bad"]);
    services[0].deleting = true;
    let report = stage.run(&services).await;
    assert!(matches!(report.members[0].state, MemberState::Left), "{report:?}");
    assert!(matches!(report.members[1].state, MemberState::Refused(_)), "{report:?}");
    assert_eq!(stage.notes(), ["one"]);
}

#[tokio::test(start_paused = true)]
async fn if_every_change_is_refused_the_part_fails_and_is_searched_once_in_five_minutes() {
    let stage = shared_stage();
    stage.cloud.refuse(false, |change| {
        let is_write = matches!(change, RulebookChange::Write { .. });
        is_write.then(|| Error::new(ErrorKind::PermissionDenied, "the document is locked"))
    });
    let services = with_notes(&["one"; 20]);
    let (mut writes, mut failed) = (Vec::new(), 0);
    for _ in 0..3 {
        let report = stage.run(&services).await;
        failed += usize::from(
            matches!(&report.state, PartState::Failed(error) if error.report().contains("locked")),
        );
        assert!(!report.members.iter().any(is_served), "{report:?}");
        writes.push(stage.cloud.take_shared_writes());
    }
    assert_eq!((writes, failed), (vec![15, 1, 1], 3));
    stage.cloud.accept();
    let report = stage.run(&services).await;
    assert!(report.members.iter().all(is_served), "{report:?}");
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

#[tokio::test(start_paused = true)]
async fn with_many_refused_services_the_others_are_served_after_some_searches() {
    let stage = shared_stage();
    stage.refuse_bad_notes();
    let mut notes = ["good"; 100];
    for bad in [3, 4, 40, 66, 67, 99] {
        notes[bad] = "bad";
    }
    let services = with_notes(&notes);
    let (mut served, mut writes) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        stage.run(&services).await;
        served.push(stage.notes().len());
        writes.push(stage.cloud.take_shared_writes());
        tokio::time::advance(Duration::from_secs(61)).await;
    }
    // After a minute, all others are served. Those that were found first are tried again after five minutes.
    assert_eq!((served, writes), (vec![57, 94, 94, 94, 94, 94], vec![27, 19, 0, 0, 0, 5]));
}
