//! Writes of Service objects.

use super::*;

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

/// The change that is due to a Service object.
fn written(fixture: &mut Fixture, view: &Arc<ServiceView>) -> ServiceAction {
    let object = object(Arc::clone(view), 1, Claim::Ours);
    match fixture.state.take_object(&object, fixture.now) {
        ObjectTask::Write(write) => write.change,
        _ => ServiceAction::default(),
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
fn the_condition_of_a_refused_service_is_written_unless_its_spec_changed() {
    let condition = Condition {
        kind: "PortsError".into(),
        is_true: true,
        reason: "Mixed".into(),
        message: "mixed protocols".into(),
    };
    for port in [80, 81] {
        let mut fixture = Fixture::new();
        let first = view("a", |view| view.ports[0].port = 80);
        fixture.change(&first);
        fixture.discover();
        let task = fixture.take("lb/a").unwrap();
        let now = view("a", |view| view.ports[0].port = port);
        fixture.change(&now);
        fixture.discover();
        let mut refused = done("lb/a", &["a"]);
        let member = &mut refused.members[0];
        member.finished = false;
        member.state = MemberState::Refused(Error::new(ErrorKind::InvalidSpec, "mixed protocols"));
        member.early.conditions.insert("PortsError".to_owned(), condition.clone());
        fixture.conclude(&task, &refused);
        let due = if port == 80 {
            vec![condition.clone()]
        } else {
            Vec::new()
        };
        assert_eq!(written(&mut fixture, &now).conditions, due, "{port}");
        let with_condition = view("a", |view| {
            view.ports[0].port = port;
            view.conditions = vec![condition.clone()];
        });
        assert_eq!(written(&mut fixture, &with_condition).conditions, []);
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
