//! Properties of every diff of objects: it converges, a process continues after a kill at any step, foreign objects are kept,
//! references are valid at every moment, and one invalid entry blocks no other.

use std::{collections::BTreeSet, fmt};

use ccm_core::{
    Error, ErrorKind, Result, async_trait,
    load_balancer::StepDescription,
    plan::objects::{
        self, Attribute, Attributes, ChangeReply, Desired, Object, ObjectCalls, Objects, Policy, Scalar,
        Schema, Set, SetOrder, send, stale,
    },
};
use parking_lot::Mutex;
use proptest::{collection::vec, option, prelude::*};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Pool,
    Balancer,
    Listener,
    Policy,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry(u8, bool);

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl objects::KeyedEntry for Entry {
    type Key = u8;

    fn key(&self) -> u8 {
        self.0
    }

    fn is_as(&self, desired: &Self) -> bool {
        self.1 == desired.1
    }
}

static POOL: Schema<Kind> = Schema {
    attributes: &[Attribute::new("method", Policy::Update("pool_update")).or(Scalar::Text("a"))],
    sets: &[Set {
        batch: 8,
        order: SetOrder::RemoveFirst,
        initial: || vec![Entry(200, true)],
        ..Set::new("target", "targets_add", "targets_remove")
    }],
    ..Schema::new("pool", "pool_create", "pool_delete")
};

static BALANCER: Schema<Kind> = Schema {
    attributes: &[
        Attribute::new("scheme", Policy::Blocked),
        Attribute::new("note", Policy::CreateOnly),
        Attribute::new("size", Policy::Update("balancer_resize")),
        Attribute::new("name", Policy::Update("balancer_update")),
    ],
    sets: &[Set {
        batch: 8,
        created_with_object: true,
        order: SetOrder::Around,
        is_removable: |entry| entry.0 < 3,
        ..Set::new("tag", "tags_add", "tags_remove")
    }],
    ..Schema::new("load balancer", "balancer_create", "balancer_delete")
};

static LISTENER: Schema<Kind> = Schema {
    parent: Some(Kind::Balancer),
    created_with_parent: true,
    deleted_with_parent: true,
    attributes: &[
        Attribute::new("transport", Policy::Replace),
        Attribute::new("pool", Policy::Update("listener_update")),
    ],
    ..Schema::new("listener", "listener_create", "listener_delete")
};

static POLICY: Schema<Kind> = Schema {
    parent: Some(Kind::Listener),
    created_with_parent: true,
    sets: &[Set::new("rule", "rule_create", "rule_delete")],
    ..Schema::new("policy", "policy_create", "policy_delete")
};

impl objects::Kind for Kind {
    type Entry = Entry;
    type Update = &'static str;

    fn schema(self) -> &'static Schema<Self> {
        match self {
            Self::Pool => &POOL,
            Self::Balancer => &BALANCER,
            Self::Listener => &LISTENER,
            Self::Policy => &POLICY,
        }
    }

    fn references(self, object: &Object<Self>) -> Option<Vec<(Self, String)>> {
        let pool = object.text("pool");
        let uses_pool = self == Self::Listener && !pool.is_empty();
        Some(uses_pool.then(|| (Self::Pool, pool.to_owned())).into_iter().collect())
    }
}

fn entries(kinds: std::ops::Range<u8>) -> impl Strategy<Value = Vec<Entry>> {
    vec((kinds, any::<bool>()), 0..5).prop_map(|entries| {
        let mut keys = BTreeSet::new();
        let once = entries.into_iter().filter(|(key, _)| keys.insert(*key));
        once.map(|(key, flag)| Entry(key, flag)).collect()
    })
}

/// Objects that refer only to objects among them.
fn some_objects() -> impl Strategy<Value = Vec<Object<Kind>>> {
    let pools = vec(option::of((0..2_u8, entries(0..12))), 3);
    let balancer = option::weighted(0.8, (0..3_u8, entries(0..6)));
    let listeners = vec(option::of((any::<bool>(), 0..3_usize, option::of(entries(0..3)))), 3);
    (pools, balancer, listeners).prop_map(|(pools, balancer, listeners)| {
        let mut objects = Vec::new();
        for (index, pool) in pools.into_iter().enumerate() {
            if let Some((method, targets)) = pool {
                let pool = Object::new(Kind::Pool, format!("p{index}")).entries("target", targets);
                let method = ["a", "b"][usize::from(method)];
                objects.push(if method == "a" {
                    pool
                } else {
                    pool.with("method", method)
                });
            }
        }
        let Some((value, tags)) = balancer else {
            return objects;
        };
        let keys: Vec<_> = objects.iter().map(|pool| pool.key.clone()).collect();
        let mut balancer = Object::new(Kind::Balancer, "b").entries("tag", tags);
        for attribute in BALANCER.attributes {
            balancer = balancer.with(attribute.name, value);
        }
        objects.push(balancer);
        for (index, listener) in listeners.into_iter().enumerate() {
            let (Some((udp, pool, rules)), false) = (listener, keys.is_empty()) else {
                continue;
            };
            let key = index.to_string();
            let listener = Object::new(Kind::Listener, &key)
                .with("transport", if udp { "udp" } else { "tcp" })
                .with("pool", keys[pool % keys.len()].as_str());
            objects.push(Object {
                parent: Some("b".into()),
                ..listener
            });
            if let Some(rules) = rules {
                let policy = Object::new(Kind::Policy, &key).entries("rule", rules);
                objects.push(Object {
                    parent: Some(key),
                    ..policy
                });
            }
        }
        objects
    })
}

#[derive(Clone, Debug)]
struct Case {
    observed: Objects<Kind>,
    desired: Desired<Kind>,
}

fn case() -> impl Strategy<Value = Case> {
    let separate = proptest::sample::subsequence(vec![Kind::Listener, Kind::Policy], 0..=2);
    (some_objects(), some_objects(), separate, 0..100_u8, option::weighted(0.2, 0..3_usize)).prop_map(
        |(observed, desired, separate, doubled, foreign)| {
            let mut observed: Objects<_> = observed.into_iter().collect();
            for object in &mut observed.all {
                object.id = format!("id-{:?}-{}", object.kind, object.key);
            }
            if doubled < 10 {
                let pool = observed.of(Kind::Pool).next().cloned();
                observed.all.extend(pool);
            }
            // A foreign pool that nothing of ours uses.
            let foreign = foreign.map(|index| format!("p{index}"));
            let unused =
                |key: &str| !observed.of(Kind::Listener).any(|listener| listener.text("pool") == key);
            if let Some(key) = foreign.filter(|key| unused(key)) {
                let pools =
                    observed.all.iter_mut().filter(|object| object.kind == Kind::Pool && object.key == key);
                pools.for_each(|pool| pool.foreign = Some("somebody's".into()));
            }
            Case {
                observed,
                desired: Desired {
                    objects: desired,
                    separate: separate.into_iter().collect(),
                    reason: "not needed",
                    ..Desired::default()
                },
            }
        },
    )
}

fn sorted(objects: &Objects<Kind>) -> Vec<String> {
    let mut all: Vec<_> = objects
        .all
        .iter()
        .map(|object| {
            let mut sets = object.sets.clone();
            for entries in sets.values_mut() {
                let mut sorted = entries.to_vec();
                sorted.sort_by_key(|entry| entry.0);
                *entries = sorted.into();
            }
            sets.retain(|_, entries| !entries.is_empty());
            format!("{:?} {} {:?} {sets:?}", object.kind, object.key, object.attributes)
        })
        .collect();
    all.sort();
    all
}

/// Carries out a plan; returns every intermediate state.
fn states(desired: &Desired<Kind>, from: &Objects<Kind>) -> Vec<Objects<Kind>> {
    let mut states = vec![from.clone()];
    for step in desired.diff(from).steps {
        let mut next = states.last().unwrap().clone();
        next.fold(&step.change, None);
        states.push(next);
    }
    states
}

/// Carries out a plan in one of the orders that the objects of its steps allow; returns every intermediate state.
fn states_in_any_order(desired: &Desired<Kind>, from: &Objects<Kind>, picks: &[usize]) -> Vec<Objects<Kind>> {
    let mut states = vec![from.clone()];
    let mut steps = desired.diff(from).steps;
    let mut picks = picks.iter().cycle();
    let waits = |earlier: &StepDescription, later: &StepDescription| match (&earlier.objects, &later.objects)
    {
        (Some(earlier), Some(later)) => earlier.conflict_with(later),
        _ => true,
    };
    while !steps.is_empty() {
        let is_ready = |at: &usize| {
            let later = &steps[*at].description;
            !steps[..*at].iter().any(|earlier| waits(&earlier.description, later))
        };
        let ready: Vec<_> = (0..steps.len()).filter(is_ready).collect();
        let step = steps.remove(ready[picks.next().unwrap() % ready.len()]);
        let mut next = states.last().unwrap().clone();
        next.fold(&step.change, None);
        let is_unique = |object: &Object<Kind>| {
            let same = |other: &&Object<Kind>| other.kind == object.kind && other.key == object.key;
            from.all.iter().filter(same).count() == 1
        };
        if from.all.iter().all(is_unique) {
            // The part may be read while the change is in progress.
            let once = sorted(&next);
            next.fold(&step.change, None);
            assert_eq!(sorted(&next), once, "{step}");
        }
        states.push(next);
    }
    states
}

fn broken_references(objects: &Objects<Kind>) -> Vec<String> {
    let listeners = objects.of(Kind::Listener);
    let broken = listeners.filter(|listener| objects.get(Kind::Pool, listener.text("pool")).is_none());
    let orphans = objects.all.iter().filter(|object| {
        let parent = objects::Kind::schema(object.kind).parent;
        parent
            .zip(object.parent.as_ref())
            .is_some_and(|(kind, key)| objects.get(kind, key).is_none())
    });
    broken.chain(orphans).map(Object::title).collect()
}

proptest! {
    #[test]
    fn one_plan_is_enough_and_every_state_on_the_way_is_a_good_start(case in case()) {
        let Case { observed, desired } = &case;
        let states = states(desired, observed);
        let end = states.last().unwrap();
        prop_assert_eq!(desired.diff(end).steps, vec![]);
        for state in &states {
            prop_assert_eq!(broken_references(state), Vec::<String>::new());
            let resumed = self::states(desired, state);
            prop_assert_eq!(sorted(resumed.last().unwrap()), sorted(end));
        }
        let foreign = |objects: &Objects<Kind>| {
            let all = objects.all.iter().filter(|object| object.foreign.is_some());
            all.cloned().collect::<Vec<_>>()
        };
        prop_assert_eq!(foreign(end), foreign(observed));
        if let (Some(before), Some(after)) = (observed.get(Kind::Balancer, "b"), end.get(Kind::Balancer, "b")) {
            let mut others = before.set("tag").iter().filter(|tag| tag.0 >= 3);
            prop_assert!(others.all(|tag| after.set("tag").iter().any(|now| now.0 == tag.0)));
        }
    }

    #[test]
    fn steps_may_be_sent_in_any_order_that_their_objects_allow(
        case in case(),
        picks in vec(any::<usize>(), 1..20),
    ) {
        let Case { observed, desired } = &case;
        let states = states_in_any_order(desired, observed, &picks);
        for state in &states {
            prop_assert_eq!(broken_references(state), Vec::<String>::new());
        }
        let end = self::states(desired, observed).pop().unwrap();
        prop_assert_eq!(sorted(states.last().unwrap()), sorted(&end));
    }

    #[test]
    fn nothing_is_left_over_and_nothing_is_missing(case in case()) {
        let Case { observed, desired } = &case;
        let end = states(desired, observed).pop().unwrap();
        let blocked: Vec<_> = desired.diff(&end).blocked.into_iter().map(|blocked| blocked.field).collect();
        for want in &desired.objects {
            let have = end.get(want.kind, &want.key);
            prop_assert!(have.is_some(), "{} is missing", want.title());
            if blocked.contains(&want.title()) {
                continue;
            }
            let have = have.unwrap();
            for (name, value) in &want.attributes {
                let field = format!("{name} of {}", want.title());
                let is_same = have.attributes.get(name) == Some(value);
                prop_assert!(is_same || *name == "note" || blocked.contains(&field), "{field} differs");
            }
            for (set, entries) in &want.sets {
                for entry in &**entries {
                    prop_assert!(have.set(set).contains(entry), "{entry} of {} is missing", want.title());
                }
                let removable = have.set(set).iter().filter(|entry| *set != "tag" || entry.0 < 3);
                prop_assert_eq!(removable.count(), entries.iter().filter(|entry| *set != "tag" || entry.0 < 3).count());
            }
        }
        let ours = end.all.iter().filter(|object| object.foreign.is_none()).count();
        let known = |object: &&Object<Kind>| {
            desired.objects.iter().any(|want| want.kind == object.kind && want.key == object.key)
        };
        prop_assert_eq!(ours, end.all.iter().filter(known).filter(|object| object.foreign.is_none()).count());
    }
}

/// A cloud that refuses calls with bad targets, and counts its calls.
struct Cloud {
    bad: Vec<u8>,
    kind: ErrorKind,
    calls: Mutex<Vec<usize>>,
}

impl Cloud {
    fn answer(&self, entries: &[Entry]) -> Result<()> {
        self.calls.lock().push(entries.len());
        match entries.iter().find(|entry| self.bad.contains(&entry.0)) {
            Some(_) if self.kind == ErrorKind::Conflict => Err(stale()),
            Some(bad) => Err(Error::new(self.kind, format!("target {bad} is not valid"))),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl ObjectCalls<Kind> for Cloud {
    async fn create(
        &self,
        object: &Object<Kind>,
        _: &[Object<Kind>],
        _: &Objects<Kind>,
    ) -> Result<ChangeReply<Kind>> {
        let mut answer = Object::new(object.kind, object.key.clone()).with("address", "192.0.2.1");
        answer.id = "id".to_owned();
        Ok(ChangeReply::object(answer))
    }

    async fn update(
        &self,
        _: &Object<Kind>,
        _: &'static str,
        _: &Attributes,
        _: &Objects<Kind>,
    ) -> Result<ChangeReply<Kind>> {
        Ok(ChangeReply::default())
    }

    async fn delete(&self, _: &Object<Kind>, _: bool) -> Result<()> {
        Ok(())
    }

    async fn add(&self, _: &Object<Kind>, _: &'static str, entries: &[Entry]) -> Result<ChangeReply<Kind>> {
        self.answer(entries).map(|()| ChangeReply::default())
    }

    async fn remove(&self, _: &Object<Kind>, _: &'static str, entries: &[Entry]) -> Result<()> {
        self.answer(entries)
    }
}

fn pool(targets: impl IntoIterator<Item = u8>) -> Object<Kind> {
    Object {
        id: "id".into(),
        ..Object::new(Kind::Pool, "p")
            .entries("target", targets.into_iter().map(|target| Entry(target, true)))
    }
}

/// Sends a whole plan, as the engine does. Returns the number of plans.
async fn run(cloud: &Cloud, desired: &Desired<Kind>, observed: &mut Objects<Kind>) -> Result<usize> {
    for round in 0..5 {
        let steps = desired.diff(observed).steps;
        if steps.is_empty() {
            return Ok(round);
        }
        for step in steps {
            let reply = send(cloud, &step.change, observed).await?;
            observed.fold(&step.change, Some(&reply));
        }
    }
    panic!("every plan has another step")
}

fn desired(objects: Vec<Object<Kind>>) -> Desired<Kind> {
    Desired {
        objects,
        ..Desired::default()
    }
}

#[tokio::test]
async fn a_refused_entry_is_found_and_blocked_and_the_others_are_added() {
    let cloud = Cloud {
        bad: vec![5],
        kind: ErrorKind::InvalidSpec,
        calls: Mutex::default(),
    };
    let desired = desired(vec![pool(0..16)]);
    let mut observed: Objects<_> = [pool([100])].into_iter().collect();
    assert_eq!(run(&cloud, &desired, &mut observed).await.unwrap(), 1);
    let added: BTreeSet<_> = observed.all[0].set("target").iter().map(|target| target.0).collect();
    assert_eq!(added, (0..16).filter(|target| *target != 5).collect());
    let plan = desired.diff(&observed);
    assert_eq!(plan.steps, []);
    assert_eq!(plan.blocked.len(), 1);
    assert_eq!(plan.blocked[0].field, "target 5 of pool p");
    assert!(plan.blocked[0].observed.contains("target 5 is not valid"), "{:?}", plan.blocked);
    // One to remove, eight that are refused and halved, eight that are fine.
    assert_eq!(*cloud.calls.lock(), [1, 8, 4, 4, 2, 1, 1, 2, 8]);
}

#[tokio::test]
async fn entries_that_are_refused_for_one_reason_are_one_difference() {
    let cloud = Cloud {
        bad: vec![5],
        kind: ErrorKind::QuotaExceeded,
        calls: Mutex::default(),
    };
    let desired = desired(vec![pool(0..8)]);
    let mut observed: Objects<_> = [pool([])].into_iter().collect();
    run(&cloud, &desired, &mut observed).await.unwrap();
    let plan = desired.diff(&observed);
    assert_eq!(plan.blocked.len(), 1, "{:?}", plan.blocked);
    assert_eq!(plan.blocked[0].field, "target 5, 6, 7 of pool p");
}

#[test]
fn a_refused_entry_is_tried_again_once_another_one_is_removed() {
    let desired = desired(vec![pool([1, 3])]);
    let mut observed: Objects<_> = [pool([1, 2])].into_iter().collect();
    let refusal = |target: u8| ChangeReply {
        refused: vec![(Entry(target, true), "full".to_owned())],
        ..ChangeReply::default()
    };
    let [remove, add] = desired.diff(&observed).steps.try_into().unwrap();
    observed.fold(&add.change, Some(&refusal(3)));
    assert_eq!(desired.diff(&observed).steps.first(), Some(&remove));
    let mut full = observed.clone();
    full.fold(&remove.change, Some(&refusal(2)));
    assert_eq!(desired.diff(&full).steps, []);
    observed.fold(&remove.change, Some(&ChangeReply::default()));
    assert_eq!(desired.diff(&observed).steps, [add]);
}

#[tokio::test]
async fn adding_a_present_entry_and_removing_an_absent_one_succeed() {
    let present = Cloud {
        bad: vec![1],
        kind: ErrorKind::AlreadyExists,
        calls: Mutex::default(),
    };
    let mut observed: Objects<_> = [pool([])].into_iter().collect();
    run(&present, &desired(vec![pool([1, 2])]), &mut observed).await.unwrap();
    assert_eq!((observed.all[0].set("target").len(), observed.refused.len()), (2, 0));
    let absent = Cloud {
        bad: vec![1],
        kind: ErrorKind::NotFound,
        calls: Mutex::default(),
    };
    run(&absent, &desired(vec![pool([])]), &mut observed).await.unwrap();
    assert_eq!((observed.all[0].set("target").len(), observed.refused.len()), (0, 0));
}

#[tokio::test]
async fn an_error_that_no_entry_causes_is_returned_at_once() {
    for kind in [ErrorKind::Unavailable, ErrorKind::Conflict] {
        let cloud = Cloud {
            bad: vec![1],
            kind,
            calls: Mutex::default(),
        };
        let mut observed: Objects<_> = [pool([])].into_iter().collect();
        let error = run(&cloud, &desired(vec![pool(0..8)]), &mut observed).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert_eq!(*cloud.calls.lock(), [8]);
    }
}

#[tokio::test]
async fn answers_are_merged_into_created_objects_and_an_unknown_id_needs_another_read() {
    let cloud = Cloud {
        bad: Vec::new(),
        kind: ErrorKind::Unexpected,
        calls: Mutex::default(),
    };
    let mut new = pool([1]);
    new.id.clear();
    let desired = desired(vec![new]);
    let mut observed = Objects::default();
    let steps = desired.diff(&observed).steps;
    let sentences: Vec<_> = steps.iter().map(ToString::to_string).collect();
    assert_eq!(
        sentences,
        [
            "create pool p",
            "remove targets 200 from pool p",
            "add targets 1 to pool p"
        ]
    );
    observed.fold(&steps[0].change, None);
    let error = send(&cloud, &steps[1].change, &observed).await.unwrap_err();
    assert_eq!(error.message(), stale().message());
    let reply = send(&cloud, &steps[0].change, &observed).await.unwrap();
    observed.fold(&steps[0].change, Some(&reply));
    assert_eq!(observed.id(Kind::Pool, "p").unwrap(), "id");
    assert_eq!(observed.all[0].text("address"), "192.0.2.1");
    assert_eq!(observed.id(Kind::Pool, "q").unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn a_new_object_is_created_filled_and_referenced_before_the_replaced_one_is_deleted() {
    let with = |name: &str| {
        let pool = Object::new(Kind::Pool, name).entries("target", [Entry(1, true), Entry(200, true)]);
        let listener = Object::new(Kind::Listener, "80").with("pool", name);
        vec![
            pool,
            Object::new(Kind::Balancer, "b"),
            Object {
                parent: Some("b".into()),
                ..listener
            },
        ]
    };
    let observed: Objects<_> = with("old").into_iter().collect();
    let steps = Desired {
        objects: with("new"),
        reason: "not needed",
        ..Desired::default()
    }
    .diff(&observed)
    .steps;
    let described: Vec<_> =
        steps.iter().map(|step| (step.to_string(), step.description.reason.as_str())).collect();
    let expected = [
        ("create pool new", ""),
        ("add targets 1 to pool new", ""),
        ("change listener 80 of load balancer b", "pool old -> new"),
        ("delete pool old", "not needed"),
    ];
    assert_eq!(described, expected.map(|(sentence, reason)| (sentence.to_owned(), reason)));
    let labels: Vec<_> = steps.iter().map(|step| step.description.label).collect();
    assert_eq!(labels, ["pool_create", "targets_add", "listener_update", "pool_delete"]);
}

#[test]
fn calls_that_cover_children_absorb_their_steps() {
    let listener = Object::new(Kind::Listener, "80").with("transport", "tcp");
    let policy = Object::new(Kind::Policy, "x").entries("rule", [Entry(1, true)]);
    let all = vec![
        Object::new(Kind::Balancer, "b").entries("tag", [Entry(1, true)]),
        Object {
            parent: Some("b".into()),
            ..listener
        },
        Object {
            parent: Some("80".into()),
            ..policy
        },
    ];
    let sentences = |desired: &Desired<Kind>, observed: &Objects<Kind>| {
        let steps = desired.diff(observed).steps;
        steps.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let together = desired(all.clone());
    assert_eq!(
        sentences(&together, &Objects::default()),
        [
            "create load balancer b with listener 80",
            "create rule in policy x of listener 80: 1"
        ]
    );
    let apart = Desired {
        separate: [Kind::Listener, Kind::Policy].into(),
        ..together
    };
    assert_eq!(
        sentences(&apart, &Objects::default()),
        [
            "create load balancer b",
            "create listener 80 of load balancer b",
            "create policy x of listener 80",
            "create rule in policy x of listener 80: 1",
        ]
    );
    let observed: Objects<_> = all.clone().into_iter().collect();
    assert_eq!(
        sentences(&desired(Vec::new()), &observed),
        [
            "delete policy x of listener 80",
            "delete load balancer b and everything below it"
        ]
    );
    let mut other = all;
    other[1] = other[1].clone().with("transport", "udp");
    let steps = desired(other).diff(&observed).steps;
    assert_eq!(
        (steps[1].to_string(), steps[1].description.reason.as_str()),
        ("delete listener 80 of load balancer b".to_owned(), "its transport is tcp, not udp")
    );
}
