//! The loop against an API server in memory that hangs, fails and loses answers. The clock is paused.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::time::sleep;

use super::{
    api::{LeaseFailure, LeaseStore},
    elector::{Leader, Lost},
    lease::{Lease, Terms},
    metrics::ElectionMetrics,
    *,
};

const SECOND: Duration = Duration::from_secs(1);

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// It never arrives, and no answer comes.
    Hang,
    /// It is carried out, and no answer comes.
    AnswerLost,
    /// It is refused.
    Refuse,
}

/// The API server. Each client of it has faults of its own.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    lease: Option<Lease>,
    version: u64,
    requests: Vec<(&'static str, &'static str)>,
    faults: BTreeMap<&'static str, Fault>,
    events: Vec<String>,
}

impl Store {
    fn fault(&self, client: &'static str, fault: Fault) {
        self.0.lock().faults.insert(client, fault);
    }

    fn holder(&self) -> String {
        self.0.lock().lease.as_ref().map(|lease| lease.holder().to_owned()).unwrap_or_default()
    }

    fn lease(&self) -> Lease {
        self.0.lock().lease.clone().unwrap()
    }

    /// As a user with `kubectl edit` would.
    fn edit(&self, change: impl FnOnce(&mut Option<Lease>)) {
        let mut stored = self.0.lock();
        stored.version += 1;
        let version = stored.version.to_string();
        change(&mut stored.lease);
        if let Some(lease) = &mut stored.lease {
            lease.0.metadata.resource_version = Some(version);
        }
    }

    fn requests(&self) -> Vec<(&'static str, &'static str)> {
        std::mem::take(&mut self.0.lock().requests)
    }

    fn events(&self) -> Vec<String> {
        self.0.lock().events.clone()
    }
}

struct Client {
    store: Store,
    name: &'static str,
}

impl Client {
    async fn serve<T>(
        &self,
        verb: &'static str,
        serve: impl FnOnce(&mut Stored) -> Result<T, LeaseFailure>,
    ) -> Result<T, LeaseFailure> {
        sleep(Duration::from_millis(5)).await;
        let (fault, answer) = {
            let mut stored = self.store.0.lock();
            stored.requests.push((self.name, verb));
            let fault = stored.faults.get(self.name).copied().unwrap_or(Fault::None);
            let answer = matches!(fault, Fault::None | Fault::AnswerLost).then(|| serve(&mut stored));
            (fault, answer)
        };
        sleep(Duration::from_millis(5)).await;
        match (fault, answer) {
            (Fault::None, Some(answer)) => answer,
            (Fault::Refuse, _) => Err(LeaseFailure::Refused("no".to_owned())),
            _ => std::future::pending().await,
        }
    }
}

fn put(stored: &mut Stored, lease: &Lease) -> Lease {
    stored.version += 1;
    let mut lease = lease.clone();
    lease.0.metadata.resource_version = Some(stored.version.to_string());
    stored.lease = Some(lease.clone());
    lease
}

impl LeaseStore for Client {
    async fn get(&self) -> Result<Option<Lease>, LeaseFailure> {
        self.serve("get", |stored| Ok(stored.lease.clone())).await
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, LeaseFailure> {
        self.serve("create", |stored| match &stored.lease {
            Some(_) => Err(LeaseFailure::Conflict),
            None => Ok(put(stored, lease)),
        })
        .await
    }

    async fn update(&self, lease: &Lease) -> Result<Lease, LeaseFailure> {
        self.serve("update", |stored| match &stored.lease {
            None => Err(LeaseFailure::Refused("not found".to_owned())),
            Some(have) if have.0.metadata.resource_version != lease.0.metadata.resource_version => {
                Err(LeaseFailure::Conflict)
            }
            Some(_) => Ok(put(stored, lease)),
        })
        .await
    }

    fn announce(&self, _: &Lease, message: &str) {
        self.store.0.lock().events.push(message.to_owned());
    }
}

/// client-go's default times.
pub(super) fn config() -> ElectionConfig {
    ElectionConfig {
        lease_duration: 15 * SECOND,
        renew_deadline: 10 * SECOND,
        retry_period: 2 * SECOND,
        name: "ccm".to_owned(),
        namespace: "kube-system".to_owned(),
        migration: None,
    }
}

/// A replica with client-go's default times.
struct Replica {
    fence: Fence,
    leader: watch::Receiver<Leader>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Lost>>,
    metrics: ElectionMetrics,
}

impl Replica {
    fn start(store: &Store, name: &'static str) -> Self {
        let (sender, leader) = watch::channel(Leader::default());
        let (fence, stop) = (Fence::standby(), CancellationToken::new());
        let client = Client {
            store: store.clone(),
            name,
        };
        let metrics = ElectionMetrics::default();
        let state = ElectionState::new(&config(), name, "ccm");
        let elector = Elector::new(client, state, fence.clone(), metrics.clone(), sender);
        Self {
            fence,
            leader,
            task: tokio::spawn(elector.run(stop.clone())),
            stop,
            metrics,
        }
    }

    async fn started(store: &Store, name: &'static str) -> Self {
        let mut replica = Self::start(store, name);
        replica.leads().await;
        replica
    }

    async fn leads(&mut self) {
        self.leader.wait_for(Leader::is_we).await.unwrap();
    }

    /// As the process does it.
    async fn end(self) -> Result<(), Lost> {
        self.fence.close();
        self.stop.cancel();
        self.task.await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_renews_with_one_write_each_two_seconds() {
    let store = Store::default();
    let replica = Replica::started(&store, "a").await;
    assert_eq!(store.requests(), [("a", "get"), ("a", "create")]);
    let transitions = store.lease().transitions();
    sleep(20 * SECOND).await;
    let requests = store.requests();
    assert!((9..=10).contains(&requests.len()), "{requests:?}");
    assert!(requests.iter().all(|request| *request == ("a", "update")), "{requests:?}");
    assert!(replica.fence.allows());
    assert_eq!(store.lease().transitions(), transitions);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_up_is_taken_within_a_retry_period_and_its_jitter() {
    let store = Store::default();
    let first = Replica::started(&store, "a").await;
    let mut second = Replica::start(&store, "b");
    sleep(60 * SECOND).await;
    assert!(!second.fence.allows());
    first.end().await.unwrap();
    let released = store.lease();
    assert_eq!((released.holder(), released.duration()), ("", Some(SECOND)));
    let began = Instant::now();
    second.leads().await;
    assert!(began.elapsed() <= Duration::from_millis(4500), "{:?}", began.elapsed());
    assert_eq!(store.lease().transitions(), 1);
    assert_eq!(store.events(), ["a became leader", "a stopped leading", "b became leader"]);
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_followed_after_its_lease() {
    let store = Store::default();
    let first = Replica::started(&store, "a").await;
    let mut second = Replica::start(&store, "b");
    sleep(30 * SECOND).await;
    first.task.abort();
    let began = Instant::now();
    second.leads().await;
    let waited = began.elapsed();
    // The lease counts from the read that observed the last renewal, and ends at another read: each up to 4.4 s after its due time.
    assert!((13 * SECOND..24 * SECOND).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_can_not_renew_stops_writing_ten_seconds_after_its_last_renewal() {
    for fault in [Fault::Hang, Fault::Refuse, Fault::AnswerLost] {
        let store = Store::default();
        let replica = Replica::started(&store, "a").await;
        let mut second = Replica::start(&store, "b");
        sleep(30 * SECOND).await;
        let renewed = replica.leader.borrow().renewed().unwrap();
        store.fault("a", fault);
        replica.fence.closed().await;
        let closed = Instant::now();
        assert!(
            closed - renewed <= 10 * SECOND + Duration::from_millis(2),
            "{fault:?}: {:?}",
            closed - renewed
        );
        let lost = replica.task.await.unwrap().unwrap_err();
        assert!(
            lost.to_string().starts_with("leaderelection lost: the lease was not renewed in time"),
            "{lost}"
        );
        assert!(closed.elapsed() < SECOND / 10, "{fault:?}");
        assert!(!replica.fence.allows());
        assert_ne!(store.holder(), "b", "{fault:?}: taken before the old leader had stopped");
        second.leads().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_and_foreign_writes_cost_nothing_but_a_slow_path() {
    let store = Store::default();
    let replica = Replica::started(&store, "a").await;
    sleep(5 * SECOND).await;
    store.fault("a", Fault::Refuse);
    sleep(6 * SECOND).await;
    store.fault("a", Fault::None);
    sleep(4 * SECOND).await;
    store.requests();
    store.edit(|lease| {
        let labels = [("team".to_owned(), "x".to_owned())];
        lease.as_mut().unwrap().0.metadata.labels = Some(labels.into());
    });
    sleep(4 * SECOND).await;
    let requests: Vec<_> = store.requests().into_iter().map(|(_, verb)| verb).collect();
    assert!(requests.starts_with(&["update", "get", "update", "update"]), "{requests:?}");
    assert_eq!(store.lease().0.metadata.labels.unwrap()["team"], "x");
    assert_eq!(replica.metrics.slow_path.get(), 1);
    assert!(replica.fence.allows() && !replica.task.is_finished());
    assert_eq!(store.lease().transitions(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_taken_away_is_lost_at_the_next_renewal() {
    let store = Store::default();
    let replica = Replica::started(&store, "a").await;
    store.edit(|lease| {
        let terms = Terms {
            identity: "b".to_owned(),
            lease_duration: 15 * SECOND,
        };
        *lease = lease.take().map(|lease| lease.acquired(&terms, "2030-01-01T00:00:00Z".parse().unwrap()));
    });
    let began = Instant::now();
    let fence = replica.fence.clone();
    let lost = replica.task.await.unwrap().unwrap_err();
    assert_eq!(lost.to_string(), "leaderelection lost: \"b\" has acquired the lease");
    assert!(began.elapsed() <= 2 * SECOND + SECOND / 10);
    assert!(!fence.allows());
    assert_eq!(store.holder(), "b");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_or_emptied_is_created_again() {
    let store = Store::default();
    let replica = Replica::started(&store, "a").await;
    store.edit(|lease| *lease = None);
    sleep(3 * SECOND).await;
    assert_eq!(store.holder(), "a");
    store.edit(|lease| {
        let lease = lease.as_mut().unwrap();
        lease.0.data = serde_json::json!({"spec": null});
    });
    sleep(3 * SECOND).await;
    assert_eq!((store.holder().as_str(), store.lease().transitions()), ("a", 1));
    assert!(replica.fence.allows());
}

#[tokio::test(start_paused = true)]
async fn an_end_without_settled_writes_leaves_the_lease_to_run_out() {
    let store = Store::default();
    let replica = Replica::started(&store, "a").await;
    let fence = replica.fence.clone();
    let write = tokio::spawn(async move { fence.run(std::future::pending::<()>()).await });
    sleep(SECOND).await;
    replica.end().await.unwrap();
    assert!(write.await.unwrap().is_err(), "it was cut off");
    assert_eq!(store.holder(), "a", "the write may still arrive");
}

#[tokio::test(start_paused = true)]
async fn a_standby_ends_at_once_and_gives_up_what_it_may_have_acquired() {
    let store = Store::default();
    let leader = Replica::started(&store, "a").await;
    let standby = Replica::start(&store, "b");
    sleep(5 * SECOND).await;
    store.requests();
    let began = Instant::now();
    standby.end().await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(store.holder(), "a");
    leader.end().await.unwrap();

    // Its acquisition is carried out and it does not know.
    store.fault("c", Fault::None);
    let standby = Replica::start(&store, "c");
    while store.requests().last() != Some(&("c", "get")) {
        sleep(Duration::from_millis(1)).await;
    }
    store.fault("c", Fault::AnswerLost);
    while store.holder() != "c" {
        sleep(Duration::from_millis(1)).await;
    }
    store.fault("c", Fault::None);
    assert!(!standby.leader.borrow().is_we());
    standby.end().await.unwrap();
    assert_eq!(store.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn an_end_in_the_middle_of_a_renewal_gives_up_the_lease_nevertheless() {
    let store = Store::default();
    let replica = Replica::started(&store, "a").await;
    sleep(SECOND).await;
    store.requests();
    // Carried out, the answer on its way.
    while store.requests().last() != Some(&("a", "update")) {
        sleep(Duration::from_millis(1)).await;
    }
    replica.end().await.unwrap();
    assert_eq!(store.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_does_not_keep_the_process_from_ending() {
    let store = Store::default();
    let replica = Replica::started(&store, "a").await;
    store.fault("a", Fault::Hang);
    let began = Instant::now();
    replica.end().await.unwrap();
    assert!(began.elapsed() <= 3 * SECOND, "{:?}", began.elapsed());
}

/// Random faults of three replicas, five times an hour: there is never more than one writer, and usually a leader.
#[tokio::test(start_paused = true)]
async fn whatever_fails_no_two_replicas_may_write_at_the_same_time() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    for seed in 0..5 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let store = Store::default();
        let mut replicas = NAMES.map(|name| Replica::start(&store, name));
        let (mut led, mut changes, mut last) = (0, 0, None);
        for second in 0..3600 {
            for (replica, name) in replicas.iter_mut().zip(NAMES) {
                if rng.random_ratio(1, 40) {
                    let faults = [
                        Fault::None,
                        Fault::None,
                        Fault::Hang,
                        Fault::AnswerLost,
                        Fault::Refuse,
                    ];
                    store.fault(name, faults[rng.random_range(0..faults.len())]);
                }
                if replica.task.is_finished() {
                    *replica = Replica::start(&store, name);
                }
            }
            if rng.random_ratio(1, 200) {
                // Killed and started again.
                let killed = rng.random_range(0..NAMES.len());
                replicas[killed].task.abort();
                replicas[killed].fence.close();
                replicas[killed] = Replica::start(&store, NAMES[killed]);
            }
            sleep(SECOND).await;
            let may: Vec<_> = (0..NAMES.len()).filter(|i| replicas[*i].fence.allows()).collect();
            assert!(may.len() <= 1, "seed {seed}, second {second}: {may:?}");
            led += may.len();
            if let [leader] = may[..] {
                changes += usize::from(last.replace(leader) != Some(leader));
            }
        }
        assert!(led > 1000, "seed {seed}: led for {led} s");
        assert!(changes > 10, "seed {seed}: {changes} changes of leader");
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_election_one_leads_at_once() {
    let fence = Fence::default();
    let (election, mut candidacy) = Election::none(fence.clone());
    candidacy.lead().await;
    assert!(fence.allows());
    let began = Instant::now();
    election.end(Instant::now() + SECOND).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(!fence.allows());
}

#[tokio::test(start_paused = true)]
async fn an_end_waits_for_writes_that_outlive_their_controllers() {
    let fence = Fence::default();
    let (election, _candidacy) = Election::none(fence.clone());
    let write = {
        let fence = fence.clone();
        tokio::spawn(async move { fence.run(sleep(5 * SECOND)).await })
    };
    tokio::task::yield_now().await;
    let began = Instant::now();
    election.end(Instant::now() + 20 * SECOND).await;
    assert_eq!(began.elapsed().as_secs(), 5);
    write.await.unwrap().unwrap();
}

#[test]
fn identities_are_a_host_and_a_random_uuid() {
    let identity = identity();
    let (host, id) = identity.rsplit_once('_').unwrap();
    assert!(!host.is_empty() && !host.contains('\n'), "{identity}");
    let lengths: Vec<_> = id.split('-').map(str::len).collect();
    assert_eq!(lengths, [8, 4, 4, 4, 12], "{identity}");
    assert_eq!(id.get(14..15), Some("4"), "{identity}");
    assert_ne!(super::identity(), identity);
}
