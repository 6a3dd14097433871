//! A pool of many machines: one part, with a step for each machine.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind, Freshness, NodeView, Priority, Result, async_trait,
    load_balancer::{
        ClusterSnapshot, ClusterView, Effect, LoadBalancers, MemberState, NodeSet, PartKey, PartReport,
        PartState, ReadOptions, Request, ServiceNode, ServiceView, StepDescription, StepObjects,
    },
    plan::{
        CloudChange, Engine, GatheredInputs, Member, PartCloud, PartModel, PartOutput, Parts, Plan,
        PlanMetrics, ScopeCheck, SendOptions, SendOutcome, Step, Wait, part_keys,
    },
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use crate::toy_cases::{service, world};

part_keys! {
    enum PoolPart {
        Pool = "pool";
    }
}

#[derive(Clone, Debug, PartialEq)]
enum PoolChange {
    Add(String),
    Remove(String),
}

impl PoolChange {
    fn machine(&self) -> &str {
        match self {
            Self::Add(machine) | Self::Remove(machine) => machine,
        }
    }
}

impl CloudChange for PoolChange {
    fn describe(&self) -> StepDescription {
        match self {
            Self::Add(machine) => StepDescription::new(
                "machine_add",
                Effect::Change,
                format!("add machine {machine} to the pool"),
            ),
            Self::Remove(machine) => StepDescription::new(
                "machine_remove",
                Effect::Change,
                format!("remove machine {machine} from the pool"),
            ),
        }
    }
}

struct PoolModel;

impl PartModel for PoolModel {
    type Key = PoolPart;
    type Directory = ();
    type Inputs = ();
    type Spec = ();
    type Facts = ();
    type Desired = BTreeSet<String>;
    type Observed = BTreeSet<String>;
    type Change = PoolChange;
    type Reply = ();

    fn provider(&self) -> &'static str {
        "pool"
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    fn parts(&self, _: &ServiceView, _: &ClusterView, (): &()) -> Parts<PoolPart> {
        PoolPart::Pool.into()
    }

    fn desired(
        &self,
        _: &PoolPart,
        members: &[Member<Self>],
        cluster: &ClusterView,
        (): &(),
    ) -> BTreeSet<String> {
        let stays = Member::staying(members).next().is_some();
        cluster.nodes.eligible().filter(|_| stays).map(|node| node.view.name.clone()).collect()
    }

    fn plan(&self, desired: &BTreeSet<String>, observed: &BTreeSet<String>) -> Plan<PoolChange> {
        let add = desired.difference(observed).cloned().map(PoolChange::Add);
        let remove = observed.difference(desired).cloned().map(PoolChange::Remove);
        let steps = add.chain(remove).map(|change| {
            let machine = change.machine().to_owned();
            Step::new(change).with_objects(StepObjects::changing([machine])).one_of_many()
        });
        Plan {
            steps: steps.collect(),
            blocked: Vec::new(),
        }
    }

    fn fold(&self, _: &PoolPart, change: &PoolChange, _: Option<&()>, observed: &mut BTreeSet<String>) {
        match change {
            PoolChange::Add(machine) => observed.insert(machine.clone()),
            PoolChange::Remove(machine) => observed.remove(machine),
        };
    }

    fn facts(&self, _: &PoolPart, _: &Member<Self>, _: &BTreeSet<String>) -> Option<PartOutput<()>> {
        Some(PartOutput::default())
    }
}

#[derive(Default)]
struct PoolCloud {
    machines: Mutex<BTreeSet<String>>,
    /// Machines whose changes are refused.
    refused: Mutex<BTreeSet<String>>,
    /// Machines whose operations fail.
    failing: Mutex<BTreeSet<String>>,
    writes: AtomicUsize,
    reads: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

/// How long a write takes until it is accepted.
const ACCEPTED_AFTER: Duration = Duration::from_millis(10);
const OPERATION: Duration = Duration::from_secs(2);

/// An operation: the change, and when it ends.
struct Operation(PoolChange, Instant);

fn quota() -> Error {
    Error::new(ErrorKind::QuotaExceeded, "quota exceeded")
}

#[async_trait]
impl PartCloud<PoolModel> for PoolCloud {
    type Ticket = Operation;

    async fn directory(&self, _: ReadOptions) -> Result<Arc<()>> {
        Ok(Arc::new(()))
    }

    async fn inputs(
        &self,
        _: &PoolPart,
        _: &[Member<PoolModel>],
        _: &ClusterView,
        _: ReadOptions,
    ) -> Result<GatheredInputs<()>> {
        Ok(().into())
    }

    async fn observe(
        &self,
        _: &PoolPart,
        _: &[Member<PoolModel>],
        _: ReadOptions,
    ) -> Result<BTreeSet<String>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        Ok(self.machines.lock().clone())
    }

    async fn send(
        &self,
        _: &PoolPart,
        change: &PoolChange,
        _: &BTreeSet<String>,
        _: &SendOptions,
    ) -> Result<SendOutcome<(), Operation>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_in_flight.fetch_max(in_flight, Ordering::Relaxed);
        sleep(ACCEPTED_AFTER).await;
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.refused.lock().contains(change.machine()) {
            return Err(quota());
        }
        Ok(SendOutcome::Accepted {
            reply: (),
            ticket: Operation(change.clone(), Instant::now() + OPERATION),
            wait: Wait {
                poll: ACCEPTED_AFTER + OPERATION,
                deadline: Duration::from_secs(60),
            },
        })
    }

    async fn poll(&self, _: &PoolPart, operation: &Operation, _: Priority) -> Result<Option<Duration>> {
        let Operation(change, ends) = operation;
        let rest = ends.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            return Ok(Some(rest));
        }
        if self.failing.lock().contains(change.machine()) {
            return Err(quota());
        }
        let mut machines = self.machines.lock();
        match change {
            PoolChange::Add(machine) => machines.insert(machine.clone()),
            PoolChange::Remove(machine) => machines.remove(machine),
        };
        Ok(None)
    }

    async fn verify_scope(&self, _: &ClusterView, _: ReadOptions) -> Result<ScopeCheck> {
        Ok(ScopeCheck::Verified)
    }
}

fn nodes(count: usize) -> NodeSet {
    let nodes = (0..count).map(|number| ServiceNode {
        view: Arc::new(NodeView {
            name: format!("vm-{number:04}"),
            ..NodeView::default()
        }),
        eligible: true,
        ..ServiceNode::default()
    });
    nodes.collect()
}

async fn run_to_end(engine: &Engine<PoolModel, PoolCloud>, world: &Arc<ClusterSnapshot>) -> PartReport {
    let read = ReadOptions {
        freshness: Freshness::AtMost(Duration::from_secs(60)),
        priority: Priority::User,
    };
    let request = Request::new(Arc::clone(world), read);
    loop {
        let report = engine.run(&PartKey::new("pool"), &request).await;
        match &report.state {
            PartState::Parked { until, .. } => sleep_until(*until).await,
            _ => return report,
        }
    }
}

fn writes(cloud: &PoolCloud) -> usize {
    cloud.writes.swap(0, Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn a_hundred_machines_join_in_the_time_of_one() {
    let cloud = Arc::new(PoolCloud::default());
    let engine = Engine::new(PoolModel, Arc::clone(&cloud), PlanMetrics::default());
    let world = Arc::new(world(vec![service(0, &[80], &[])], nodes(100)));
    let begin = Instant::now();
    let report = run_to_end(&engine, &world).await;
    assert!(report.members[0].finished && report.blocked.is_empty(), "{report:?}");
    assert!(begin.elapsed() < Duration::from_millis(2100), "{:?}", begin.elapsed());
    assert_eq!((writes(&cloud), cloud.machines.lock().len()), (100, 100));
}

#[tokio::test(start_paused = true)]
async fn refused_machines_are_one_warning_and_the_others_join() {
    let cloud = Arc::new(PoolCloud::default());
    let engine = Engine::new(PoolModel, Arc::clone(&cloud), PlanMetrics::default());
    *cloud.refused.lock() = ["vm-0007".to_owned()].into();
    *cloud.failing.lock() = ["vm-0008".to_owned(), "vm-4000".to_owned()].into();
    let services = vec![service(0, &[80], &[]), service(1, &[81], &[])];
    let joined = Arc::new(world(services.clone(), nodes(5000)));
    let report = run_to_end(&engine, &joined).await;
    assert!(matches!(report.state, PartState::Done), "{:?}", report.state);
    for member in &report.members {
        assert!(matches!(member.state, MemberState::Served) && member.finished, "{member:?}");
    }
    let blocked: Vec<_> = report.blocked.iter().map(ToString::to_string).collect();
    assert_eq!(
        blocked,
        [
            "add machine vm-0007 to the pool, add machine vm-0008 to the pool, add machine vm-4000 to the pool: \
             the cloud refuses it: quota exceeded"
        ]
    );
    assert_eq!((writes(&cloud), cloud.machines.lock().len()), (5000, 4997));
    assert!(cloud.most_in_flight.load(Ordering::Relaxed) <= 32, "other parts need the gate, too");

    // They are not sent again at once, and the Warning stays.
    let again = run_to_end(&engine, &joined).await;
    assert_eq!((writes(&cloud), again.blocked.len()), (0, 1));
    cloud.refused.lock().clear();
    sleep(Duration::from_secs(301)).await;
    let later = run_to_end(&engine, &joined).await;
    assert_eq!((writes(&cloud), cloud.machines.lock().len()), (3, 4998));
    assert_eq!(later.blocked.len(), 1, "{later:?}");
}

#[tokio::test(start_paused = true)]
async fn a_service_has_not_left_a_pool_whose_machines_cannot_be_removed() {
    let cloud = Arc::new(PoolCloud::default());
    let engine = Engine::new(PoolModel, Arc::clone(&cloud), PlanMetrics::default());
    let joined = Arc::new(world(vec![service(0, &[80], &[])], nodes(3)));
    run_to_end(&engine, &joined).await;
    *cloud.refused.lock() = ["vm-0001".to_owned()].into();
    let leaving = ServiceView {
        deleting: true,
        ..service(0, &[80], &[])
    };
    let left = Arc::new(world(vec![leaving], nodes(3)));
    let report = run_to_end(&engine, &left).await;
    let PartState::Failed(error) = &report.state else {
        panic!("{report:?}");
    };
    assert!(error.report().contains("remove machine vm-0001"), "{}", error.report());
    assert!(!report.members[0].finished, "{report:?}");
    assert_eq!(cloud.machines.lock().len(), 1, "the others were removed");
    cloud.refused.lock().clear();
    sleep(Duration::from_secs(301)).await;
    let report = run_to_end(&engine, &left).await;
    assert!(report.members[0].finished, "{report:?}");
    assert!(cloud.machines.lock().is_empty());
}
