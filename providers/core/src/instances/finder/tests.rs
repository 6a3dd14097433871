#![allow(clippy::unwrap_used)]
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use super::*;

#[derive(Clone, Debug)]
struct TestInstance {
    id: String,
    name: String,
}

impl Record for TestInstance {
    fn id(&self) -> &str {
        &self.id
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name]
    }
}

/// A cloud that counts its calls. `IDS`: the most ids of one targeted read.
#[derive(Clone)]
struct Cloud<const IDS: usize> {
    instances: Arc<Mutex<BTreeMap<String, String>>>,
    page_size: usize,
    calls: Arc<Mutex<BTreeMap<&'static str, usize>>>,
    /// Pages that fail, by number of the call, and how.
    failures: Arc<Mutex<Vec<(usize, ErrorKind)>>>,
    /// Reads by ID fail.
    fails_reads: Arc<AtomicBool>,
    /// From which call pages are shorter, and their size.
    shorter: Option<(usize, usize)>,
}

impl<const IDS: usize> Cloud<IDS> {
    fn with(instances: usize, page_size: usize) -> Self {
        let instances = (0..instances).map(|n| (format!("id-{n:03}"), format!("node-{n:03}")));
        Self {
            instances: Arc::new(Mutex::new(instances.collect())),
            page_size,
            calls: Arc::default(),
            failures: Arc::default(),
            fails_reads: Arc::default(),
            shorter: None,
        }
    }

    fn finder(&self) -> Finder<Self> {
        Finder::new(self.clone(), &ClientMetrics::default())
    }

    fn count(&self, call: &'static str) -> usize {
        let mut calls = self.calls.lock();
        let count = calls.entry(call).or_default();
        *count += 1;
        *count
    }

    /// The calls since the last time.
    fn calls(&self) -> Vec<(&'static str, usize)> {
        std::mem::take(&mut *self.calls.lock()).into_iter().collect()
    }

    fn some(&self, mut keep: impl FnMut(&str, &str) -> bool) -> Vec<TestInstance> {
        let instances = self.instances.lock();
        let kept = instances.iter().filter(|(id, name)| keep(id, name));
        kept.map(|(id, name)| TestInstance {
            id: id.clone(),
            name: name.clone(),
        })
        .collect()
    }
}

#[async_trait]
impl<const IDS: usize> InstanceSource for Cloud<IDS> {
    type Record = TestInstance;
    type Marker = String;

    const CACHE: &'static str = "test_instances";
    const IDS_PER_READ: usize = IDS;
    const LISTS_BY_PREFIX: bool = true;

    fn lookup(&self, node: &NodeView) -> Lookup {
        match node.provider_id.as_deref() {
            Some("foreign") => Lookup::Known(Ok(InstanceState::Unmanaged)),
            Some(id) => Lookup::Id(id.to_owned()),
            None => Lookup::Name,
        }
    }

    async fn by_ids(&self, ids: &[&str], _: Priority) -> Vec<Result<Option<TestInstance>>> {
        assert!(ids.len() <= IDS);
        self.count("by_ids");
        let fails = self.fails_reads.load(Ordering::Relaxed);
        let found = |id: &&str| match fails {
            true => Err(Error::new(ErrorKind::Timeout, "no answer")),
            false => Ok(self.some(|known, _| known == *id).pop()),
        };
        ids.iter().map(found).collect()
    }

    async fn by_names(&self, names: &[&str], _: Priority) -> Vec<Result<Vec<TestInstance>>> {
        assert_eq!(names.len(), 1);
        self.count("by_names");
        names.iter().map(|name| Ok(self.some(|_, known| known == *name))).collect()
    }

    async fn page(
        &self,
        prefix: &str,
        marker: Option<String>,
        _: Priority,
    ) -> Result<Page<TestInstance, String>> {
        let number = self.count("page");
        if let Some((_, kind)) = self.failures.lock().iter().find(|(call, _)| *call == number) {
            return Err(Error::new(*kind, "no such marker"));
        }
        let after = marker.unwrap_or_default();
        let mut items = self.some(|id, name| *id > *after && name.starts_with(prefix));
        let all = items.len();
        let shorter = self.shorter.filter(|(from, _)| number >= *from);
        items.truncate(shorter.map_or(self.page_size, |(_, size)| size));
        let more = items.len() < all;
        let next = items.last().map(|last| last.id.clone()).filter(|_| more);
        Ok(Page { items, next })
    }

    fn existence(&self, instance: &TestInstance) -> Instance {
        Instance {
            provider_id: instance.id.clone(),
            ..Instance::default()
        }
    }

    async fn metadata(&self, instances: &[&TestInstance], _: Priority) -> Vec<Result<Instance>> {
        self.count("metadata");
        let ids: HashSet<&str> = instances.iter().map(|instance| instance.id()).collect();
        assert_eq!(ids.len(), instances.len(), "each is asked for once");
        let described = instances.iter().map(|instance| Instance {
            zone: Some("a".into()),
            ..self.existence(instance)
        });
        described.map(Ok).collect()
    }
}

fn query(name: String, provider_id: Option<String>, need: Need) -> InstanceQuery {
    let node = NodeView {
        name,
        provider_id,
        ..NodeView::default()
    };
    InstanceQuery {
        node: Arc::new(node),
        need,
    }
}

fn by_id(n: usize) -> InstanceQuery {
    query(format!("node-{n:03}"), Some(format!("id-{n:03}")), Need::Existence)
}

fn by_name(n: usize) -> InstanceQuery {
    query(format!("node-{n:03}"), None, Need::Existence)
}

async fn ask<const IDS: usize>(finder: &Finder<Cloud<IDS>>, queries: &[InstanceQuery]) -> Vec<InstanceState> {
    let answers = finder.describe(queries, Freshness::now(), Priority::User).await;
    answers.into_iter().map(Result::unwrap).collect()
}

fn ids(states: &[InstanceState]) -> Vec<&str> {
    states
        .iter()
        .map(|state| match state {
            InstanceState::Present(instance) => instance.provider_id.as_str(),
            InstanceState::Absent => "absent",
            InstanceState::Unresolved => "unresolved",
            InstanceState::Unmanaged => "unmanaged",
        })
        .collect()
}

#[tokio::test]
async fn one_instance_is_read_and_many_are_listed() {
    let cloud = Cloud::<1>::with(30, 50);
    let finder = cloud.finder();
    assert_eq!(ids(&ask(&finder, &[by_id(7)]).await), ["id-007"]);
    assert_eq!(cloud.calls(), [("by_ids", 1)]);
    assert_eq!(ids(&ask(&finder, &[by_id(7), by_name(8)]).await), ["id-007", "id-008"]);
    assert_eq!(cloud.calls(), [("page", 1)]);
}

#[tokio::test(start_paused = true)]
async fn similar_names_come_from_the_last_listings_also_when_these_are_freed() {
    let cloud = Cloud::<1>::with(2, 50);
    let instances = [
        ("id-a", "node-v1.2-a"),
        ("id-b", "node-v1.2-b"),
        ("id-c", "node-v1_2-a"),
    ];
    cloud
        .instances
        .lock()
        .extend(instances.map(|(id, name)| (id.to_owned(), name.to_owned())));
    let finder = cloud.finder();
    assert_eq!(finder.similar_names("node-v1-2-a"), [""; 0], "nothing was listed");
    ask(&finder, &[by_id(0), by_id(1)]).await;
    tokio::time::advance(10 * LISTING_MAX_AGE).await;
    cloud.calls();
    let expected = ["node-v1.2-a", "node-v1_2-a", "node-v1.2-b"];
    assert_eq!(finder.similar_names("node-v1-2-a"), expected);
    assert_eq!(cloud.calls(), [], "nothing is read");
    finder.forget();
    assert_eq!(finder.similar_names("node-v1-2-a"), [""; 0], "other credentials show other instances");
}

#[tokio::test]
async fn only_a_targeted_read_proves_that_an_id_is_absent() {
    let cloud = Cloud::<1>::with(30, 50);
    let finder = cloud.finder();
    let states = ask(&finder, &[by_id(1), by_id(77), by_name(78)]).await;
    assert_eq!(ids(&states), ["id-001", "absent", "unresolved"]);
    // The listing began after the question: a missing name is not read again.
    assert_eq!(cloud.calls(), [("by_ids", 1), ("page", 1)]);
}

#[tokio::test]
async fn a_cached_listing_proves_only_that_an_instance_exists() {
    let cloud = Cloud::<1>::with(30, 50);
    let finder = cloud.finder();
    ask(&finder, &[by_id(1), by_id(2)]).await;
    cloud.calls();
    let recent = Freshness::AtMost(Duration::from_secs(30));
    cloud.instances.lock().insert("id-new".into(), "node-new".into());
    cloud.instances.lock().remove("id-003");
    for (query, state, calls) in [
        (by_id(2), "id-002", vec![]),
        (by_id(3), "id-003", vec![]),
        (by_id(77), "absent", vec![("by_ids", 1)]),
        (query("node-new".into(), None, Need::Existence), "id-new", vec![("by_names", 1)]),
    ] {
        let answers = finder.describe(&[query], recent, Priority::User).await;
        let states: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(ids(&states), [state]);
        assert_eq!(cloud.calls(), calls, "{state}");
    }
    assert_eq!(ids(&ask(&finder, &[by_id(3)]).await), ["absent"]);
}

#[tokio::test]
async fn a_listing_in_vain_at_most_doubles_the_cost_once() {
    let cloud = Cloud::<1>::with(100, 10);
    let finder = cloud.finder();
    let queries = [by_id(97), by_id(98), by_id(99)];
    ask(&finder, &queries).await;
    assert_eq!(cloud.calls(), [("by_ids", 3), ("page", 3)]);
    ask(&finder, &queries).await;
    assert_eq!(cloud.calls(), [("by_ids", 3)], "the listing is known to be long");
    let all: Vec<_> = (0..100).map(by_id).collect();
    ask(&finder, &all).await;
    assert_eq!(cloud.calls(), [("page", 10)]);
}

#[tokio::test]
async fn a_read_of_many_ids_is_preferred_to_a_listing() {
    let cloud = Cloud::<200>::with(30, 50);
    let finder = cloud.finder();
    let states = ask(&finder, &[by_id(1), by_id(2), by_id(77)]).await;
    assert_eq!(ids(&states), ["id-001", "id-002", "absent"]);
    assert_eq!(cloud.calls(), [("by_ids", 1)]);
}

#[tokio::test]
async fn repeated_questions_are_read_once() {
    let cloud = Cloud::<1>::with(30, 50);
    let finder = cloud.finder();
    let metadata = InstanceQuery {
        need: Need::Metadata,
        ..by_id(7)
    };
    let foreign = query("node".into(), Some("foreign".into()), Need::Metadata);
    let states = ask(&finder, &[by_id(7), metadata.clone(), foreign, metadata]).await;
    assert_eq!(ids(&states), ["id-007", "id-007", "unmanaged", "id-007"]);
    let zones: Vec<_> = states
        .iter()
        .map(|state| match state {
            InstanceState::Present(instance) => instance.zone.clone(),
            _ => None,
        })
        .collect();
    let zone = Some("a".to_owned());
    assert_eq!(zones, [None, zone.clone(), None, zone]);
    assert_eq!(cloud.calls(), [("by_ids", 1), ("metadata", 1)]);
}

#[tokio::test]
async fn a_name_of_two_instances_is_an_error() {
    let cloud = Cloud::<1>::with(30, 50);
    cloud.instances.lock().insert("id-new".into(), "node-001".into());
    let finder = cloud.finder();
    for queries in [vec![by_name(1)], vec![by_name(1), by_name(2)]] {
        let answers = finder.describe(&queries, Freshness::now(), Priority::User).await;
        let error = answers.into_iter().next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSpec);
        assert!(error.to_string().contains("id-001, id-new"), "{error}");
    }
}

#[tokio::test]
async fn instances_with_names_other_than_their_nodes_are_listed_without_a_prefix() {
    let cloud = Cloud::<1>::with(30, 50);
    let finder = cloud.finder();
    let queries: Vec<_> = (0..8)
        .map(|n| query(format!("other-{n}"), Some(format!("id-{n:03}")), Need::Existence))
        .collect();
    ask(&finder, &queries).await;
    assert_eq!(cloud.calls(), [("by_ids", 8), ("page", 1)]);
    ask(&finder, &queries).await;
    assert_eq!(cloud.calls(), [("page", 1)]);
}

#[tokio::test]
async fn a_listing_restarts_once_after_a_lost_marker_and_a_failed_one_proves_no_absence() {
    let cloud = Cloud::<1>::with(30, 10);
    let finder = cloud.finder();
    let all: Vec<_> = (0..30).map(by_id).collect();
    cloud.failures.lock().push((2, ErrorKind::Unexpected));
    assert_eq!(ask(&finder, &all).await.len(), 30);
    assert_eq!(cloud.calls(), [("page", 5)]);
    *cloud.failures.lock() = vec![(1, ErrorKind::NotFound)];
    let answers = finder.describe(&all, Freshness::now(), Priority::User).await;
    assert!(
        answers
            .iter()
            .all(|answer| { answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) })
    );
    assert_eq!(cloud.calls(), [("page", 1)]);
}

#[tokio::test(start_paused = true)]
async fn instances_are_read_one_by_one_while_listings_fail() {
    let cloud = Cloud::<1>::with(30, 50);
    let finder = cloud.finder();
    let five: Vec<_> = (0..5).map(by_id).collect();
    let fails = async || {
        let answers = finder.describe(&five, Freshness::now(), Priority::User).await;
        let errors = answers.into_iter().map(|answer| answer.unwrap_err().kind());
        assert_eq!(errors.collect::<Vec<_>>(), [ErrorKind::Timeout; 5]);
    };
    let failures = (1..=10).map(|call| (call, ErrorKind::Timeout));
    cloud.failures.lock().extend(failures);
    fails().await;
    assert_eq!(cloud.calls(), [("page", 1)]);
    let found = ["id-000", "id-001", "id-002", "id-003", "id-004"];
    assert_eq!(ids(&ask(&finder, &five).await), found);
    assert_eq!(cloud.calls(), [("by_ids", 5), ("page", 1)]);
    // The listing is not tried each time, since it may fail slowly.
    let mut mixed = five.clone();
    mixed.extend([by_name(5), by_id(77)]);
    let states = ask(&finder, &mixed).await;
    assert_eq!(ids(&states)[..5], found);
    assert_eq!(ids(&states)[5..], ["id-005", "absent"]);
    assert_eq!(cloud.calls(), [("by_ids", 6), ("by_names", 1)]);
    tokio::time::advance(LISTING_PAUSE).await;
    assert_eq!(ids(&ask(&finder, &five).await), found);
    assert_eq!(cloud.calls(), [("by_ids", 5), ("page", 1)]);
    // If nothing answers, one read shows it.
    cloud.fails_reads.store(true, Ordering::Relaxed);
    fails().await;
    assert_eq!(cloud.calls(), [("by_ids", 1)]);
    cloud.fails_reads.store(false, Ordering::Relaxed);
    // It works again.
    cloud.failures.lock().clear();
    for pause in [LISTING_PAUSE, Duration::from_secs(1)] {
        tokio::time::advance(pause).await;
        assert_eq!(ids(&ask(&finder, &five).await), found);
        assert_eq!(cloud.calls(), [("page", 1)]);
    }
}

#[tokio::test]
async fn a_listing_that_restarts_with_shorter_pages_finds_all_instances_again() {
    let mut cloud = Cloud::<1>::with(30, 13);
    cloud.failures.lock().push((3, ErrorKind::Unexpected));
    cloud.shorter = Some((4, 5));
    let all: Vec<_> = (0..30).map(by_id).collect();
    assert_eq!(ask(&cloud.finder(), &all).await.len(), 30);
    assert_eq!(cloud.calls(), [("by_ids", 5), ("page", 8)]);
}
