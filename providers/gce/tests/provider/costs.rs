//! Calls of load balancers whose parts are reconciled at the same time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use ccm_core::{
    load_balancer::{PartKey, PartState},
    testkit::{
        cluster::{TestCluster, advance_to, annotate, service},
        nodes::service_node,
    },
};
use ccm_testbed::{
    gce::{GceOptions, ZONES},
    proxy::is_gce_write,
    test_cloud::{GceCloud, TestCloud as _},
};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::{
    load_balancers::{INTERNAL, start},
    stage::calls,
};

/// The duration of an operation, and the delay of each call, where seconds are measured.
const OPERATION: Duration = Duration::from_secs(1);
const LATENCY: Duration = Duration::from_millis(50);
/// The age of listings when a change begins. They are too old for a pass that creates or deletes.
const AGE: Duration = Duration::from_secs(20);

/// A cluster with two nodes in each of three zones.
struct Costs {
    gce: GceCloud,
    cluster: TestCluster,
    conf: String,
}

/// What a change cost.
struct Cost {
    seconds: f64,
    writes: usize,
    /// All calls but reads of operations, whose number depends on the time.
    calls: usize,
    polls: usize,
    by_name: BTreeMap<String, usize>,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seconds,
            writes,
            calls,
            polls,
            by_name,
        } = self;
        write!(f, "{seconds:.1} s, {calls} calls and {polls} polls, {writes} writes: {by_name:?}")
    }
}

/// The number of calls with these names.
fn calls_of(by_name: &BTreeMap<String, usize>, is_counted: impl Fn(&str) -> bool) -> usize {
    by_name.iter().filter(|(name, _)| is_counted(name)).map(|(_, count)| count).sum()
}

fn sleep_to(until: Instant) -> BoxFuture<'static, ()> {
    sleep_until(until).boxed()
}

impl Costs {
    async fn new(operation: Duration, latency: Duration) -> Self {
        let options = GceOptions {
            operation,
            ..GceOptions::default()
        };
        let gce = GceCloud::start_with(&options).await.unwrap();
        let conf = gce.config();
        let mut cluster = TestCluster::new(start(&gce, &conf, &[]).await, sleep_to);
        let names: Vec<_> = (1..=6).map(|at| format!("node-{at}")).collect();
        let tags = json!({"tags": {"items": ["node"]}});
        for (at, name) in names.iter().enumerate() {
            let zone = ZONES[at % 3];
            gce.create_instances(std::slice::from_ref(name), &[zone], &tags).await.unwrap();
            let id = format!("gce://{}/{zone}/{name}", gce.project());
            cluster.nodes.push(service_node(name, &id, Vec::new()));
        }
        gce.set_latency(latency);
        Self { gce, cluster, conf }
    }

    /// Runs all parts at the same time, as the service controller does, until none is due. Then writes the results into the Services,
    /// and asserts that this takes no write.
    #[expect(
        clippy::print_stdout,
        reason = "times depend on the machine: they are not checked"
    )]
    async fn reconcile(&mut self, what: &str) -> Cost {
        advance_to(Instant::now() + AGE).await;
        self.gce.proxy.forget();
        let began = Instant::now();
        self.run_all().await;
        let seconds = began.elapsed().as_secs_f64();
        let mut by_name = BTreeMap::new();
        for call in calls(&self.gce) {
            *by_name.entry(call).or_insert(0) += 1;
        }
        let writes = calls_of(&by_name, is_gce_write);
        let cost = Cost {
            seconds,
            writes,
            calls: calls_of(&by_name, |name| !name.starts_with("operations.")),
            polls: calls_of(&by_name, |name| name.starts_with("operations.")),
            by_name,
        };
        println!("{what}: {cost}");
        self.gce.proxy.forget();
        self.cluster.settle_well().await;
        let later = self.gce.proxy.writes();
        assert!(later.is_empty(), "{what} was not finished: {later:?}");
        cost
    }

    async fn run_all(&self) {
        let request = self.cluster.request();
        let balancers = self.cluster.load_balancers().unwrap();
        let parts = balancers.discover(&request).await.unwrap().parts();
        let mut due: BTreeMap<PartKey, Instant> =
            parts.into_iter().map(|part| (part, Instant::now())).collect();
        let mut running = BTreeSet::new();
        let mut passes = FuturesUnordered::new();
        while !due.is_empty() || !passes.is_empty() {
            let now = Instant::now();
            let ready: Vec<_> = due
                .iter()
                .filter(|(part, at)| **at <= now && !running.contains(*part))
                .map(|(part, _)| part.clone())
                .collect();
            for part in ready {
                due.remove(&part);
                running.insert(part.clone());
                let request = &request;
                passes.push(async move {
                    let report = balancers.run(&part, request).await;
                    (part, report)
                });
            }
            let waiting = due.iter().filter(|(part, _)| !running.contains(*part));
            let next = waiting.map(|(_, at)| *at).min();
            let timer = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some((part, report)) = passes.next() => {
                    running.remove(&part);
                    match report.state {
                        PartState::Done => {}
                        PartState::Parked { until, .. } => {
                            let at = due.entry(part).or_insert(until);
                            *at = until.min(*at);
                        }
                        state => panic!("{part}: {state:?}"),
                    }
                    for part in report.next {
                        due.insert(part, Instant::now());
                    }
                }
                () = timer => {}
            }
        }
    }

    async fn restart(&mut self) {
        self.cluster.cloud = start(&self.gce, &self.conf, &[]).await;
    }

    /// Creates a Service of three ports, with the finalizer that the service controller adds first.
    fn create(&mut self, name: &str, kind: Option<&str>) {
        let mut created = service(name, &[80, 443, 8080]);
        annotate(&mut created, INTERNAL, kind);
        created.finalizers.push(match kind {
            None => "gke.networking.io/l4-netlb-v1".into(),
            Some(_) => "gke.networking.io/l4-ilb-v1".into(),
        });
        self.cluster.services.push(created);
    }

    fn delete(&mut self, name: &str) {
        self.cluster.service(name).deleting = true;
    }
}

/// Each change of a cluster in turn, with its cost.
async fn all_changes(mut costs: Costs) -> BTreeMap<&'static str, Cost> {
    let mut all = BTreeMap::new();
    costs.reconcile("start").await;
    costs.create("web", None);
    all.insert("external create", costs.reconcile("external create").await);
    costs.create("api", Some("Internal"));
    all.insert("internal create", costs.reconcile("internal create").await);
    costs.restart().await;
    all.insert("restart", costs.reconcile("restart with one of each").await);
    costs.delete("api");
    all.insert("internal delete", costs.reconcile("internal delete").await);
    let node = costs.cluster.nodes.pop().unwrap();
    all.insert("node out", costs.reconcile("node out").await);
    costs.cluster.nodes.push(node);
    all.insert("node in", costs.reconcile("node in").await);
    costs.delete("web");
    all.insert("external delete", costs.reconcile("external delete").await);
    all
}

#[tokio::test]
async fn parts_share_listings_and_nothing_is_written_in_vain() {
    let all = all_changes(Costs::new(Duration::ZERO, Duration::ZERO).await).await;
    for (what, writes, calls) in [
        ("external create", 7, 16),
        ("internal create", 13, 22),
        ("restart", 0, 17),
        ("internal delete", 8, 16),
        ("node out", 1, 1),
        ("node in", 1, 1),
        ("external delete", 5, 10),
    ] {
        let cost = &all[what];
        assert!(cost.writes == writes && cost.calls <= calls, "{what}: {cost}");
    }
}

#[tokio::test]
#[ignore = "measures seconds, which depend on the machine; prints them and the polls with --nocapture"]
async fn seconds_with_operations_of_a_second() {
    all_changes(Costs::new(OPERATION, LATENCY).await).await;
}
