//! Several operations of one part at a time: how long they take, and what a failure holds up.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    Error, ErrorKind, Freshness, Priority, RequestOutcome, Result, async_trait,
    load_balancer::{
        ClusterSnapshot, ClusterView, LoadBalancers, MemberState, PartKey, PartReport, PartState,
        ReadOptions, Request, ServiceView,
    },
    plan::{
        CloudChange as _, Engine, GatheredInputs, Member, PartCloud, PlanMetrics, ScopeCheck, SendOptions,
        SendOutcome, Wait,
    },
    testkit::laws::{CloudBehavior, Fault, Lawful, MemoryCloud},
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::{
    forwarding::{
        Forwarding, ForwardingChange, ForwardingDirectory, ForwardingKind, ForwardingObjects, ForwardingPart,
        StepOrder,
    },
    toy_cases::{nodes, service, world},
};

/// How long an operation takes.
const OPERATION: Duration = Duration::from_secs(1);

/// The calls of a cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Calls {
    reads: usize,
    /// The sentences of the writes, refused ones included.
    writes: Vec<String>,
    polls: usize,
}

/// A cloud in which every operation takes a second.
struct TimedCloud {
    memory: MemoryCloud<Forwarding>,
    calls: Mutex<Calls>,
    /// The next writes with this prefix fail.
    failures: Mutex<Vec<(&'static str, Error)>>,
}

#[async_trait]
impl PartCloud<Forwarding> for TimedCloud {
    /// When the operation ends.
    type Ticket = Instant;

    async fn directory(&self, read: ReadOptions) -> Result<Arc<ForwardingDirectory>> {
        self.memory.directory(read).await
    }

    async fn inputs(
        &self,
        key: &ForwardingPart,
        members: &[Member<Forwarding>],
        cluster: &ClusterView,
        read: ReadOptions,
    ) -> Result<GatheredInputs<()>> {
        self.memory.inputs(key, members, cluster, read).await
    }

    async fn observe(
        &self,
        key: &ForwardingPart,
        members: &[Member<Forwarding>],
        read: ReadOptions,
    ) -> Result<ForwardingObjects> {
        self.calls.lock().reads += 1;
        self.memory.observe(key, members, read).await
    }

    async fn send(
        &self,
        key: &ForwardingPart,
        change: &ForwardingChange,
        observed: &ForwardingObjects,
        options: &SendOptions,
    ) -> Result<SendOutcome<<Forwarding as ccm_core::plan::PartModel>::Reply, Instant>> {
        let sentence = change.describe().sentence;
        self.calls.lock().writes.push(sentence.clone());
        let failure = {
            let mut failures = self.failures.lock();
            let at = failures.iter().position(|(begin, _)| sentence.starts_with(begin));
            at.map(|at| failures.remove(at).1)
        };
        if let Some(error) = failure {
            return Err(error);
        }
        let reply = match self.memory.send(key, change, observed, options).await? {
            SendOutcome::Done(reply) | SendOutcome::Accepted { reply, .. } => reply,
        };
        Ok(SendOutcome::Accepted {
            reply,
            ticket: Instant::now() + OPERATION,
            wait: Wait {
                poll: OPERATION,
                deadline: Duration::from_secs(60),
            },
        })
    }

    async fn poll(&self, _: &ForwardingPart, ends: &Instant, _: Priority) -> Result<Option<Duration>> {
        self.calls.lock().polls += 1;
        let rest = ends.saturating_duration_since(Instant::now());
        Ok((!rest.is_zero()).then_some(rest))
    }

    async fn verify_scope(&self, cluster: &ClusterView, read: ReadOptions) -> Result<ScopeCheck> {
        self.memory.verify_scope(cluster, read).await
    }
}

struct TimedStage {
    engine: Engine<Forwarding, TimedCloud>,
    cloud: Arc<TimedCloud>,
    world: Arc<ClusterSnapshot>,
}

fn stage(order: StepOrder, service: ServiceView, node_names: &[&str]) -> TimedStage {
    let model = Forwarding {
        order,
        ignores_machines: false,
    };
    stage_of(model, service, node_names)
}

fn stage_of(model: Forwarding, service: ServiceView, node_names: &[&str]) -> TimedStage {
    let cloud = Arc::new(TimedCloud {
        memory: MemoryCloud::new(model.clone(), model.ground(), CloudBehavior::default()),
        calls: Mutex::default(),
        failures: Mutex::default(),
    });
    let ready = node_names.iter().map(|name| (*name, true));
    TimedStage {
        engine: Engine::new(model, Arc::clone(&cloud), PlanMetrics::default()),
        cloud,
        world: Arc::new(world(vec![service], nodes(ready))),
    }
}

const BALANCER: &str = "lb/lb-n-s0";

impl TimedStage {
    async fn run(&self, part: &str) -> PartReport {
        let read = ReadOptions {
            freshness: Freshness::AtMost(Duration::from_secs(60)),
            priority: Priority::User,
        };
        self.engine.run(&PartKey::new(part), &Request::new(Arc::clone(&self.world), read)).await
    }

    /// Runs the part until it waits no longer.
    async fn run_to_end(&self, part: &str) -> PartReport {
        loop {
            let report = self.run(part).await;
            match &report.state {
                PartState::Parked { until, .. } => sleep_until(*until).await,
                _ => return report,
            }
        }
    }

    fn fail(&self, begin: &'static str, error: Error) {
        self.cloud.failures.lock().push((begin, error));
    }

    fn writes_of(&self, begin: &str) -> usize {
        let calls = self.cloud.calls.lock();
        calls.writes.iter().filter(|sentence| sentence.starts_with(begin)).count()
    }

    fn objects(&self, kind: ForwardingKind) -> usize {
        self.cloud
            .memory
            .truth()
            .of(kind)
            .filter(|object| !object.text("service").is_empty())
            .count()
    }
}

/// A Service with so many ports that it needs twenty objects besides the chain of health check, pool and forwarding rule: an
/// address and nineteen firewalls.
fn service_with_twenty_independent_objects() -> ServiceView {
    let ports: Vec<_> = (1..=19).map(|port| 8000 + port).collect();
    service(0, &ports, &[])
}

/// Creates the load balancer. Returns the time that it takes and the calls.
async fn create(order: StepOrder) -> (Duration, Calls) {
    let stage = stage(order, service_with_twenty_independent_objects(), &[]);
    let machines = stage.run_to_end("machines").await;
    assert!(matches!(machines.state, PartState::Done), "{machines:?}");
    *stage.cloud.calls.lock() = Calls::default();
    let begin = Instant::now();
    let report = stage.run_to_end(BALANCER).await;
    assert!(matches!(report.state, PartState::Done), "{report:?}");
    assert!(report.members[0].finished && report.members[0].effects.ingress.is_some(), "{report:?}");
    assert_eq!(stage.objects(ForwardingKind::Rule), 1);
    (begin.elapsed(), stage.cloud.calls.lock().clone())
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_three_and_twenty_independent_steps_take_the_time_of_the_chain() {
    // Reads: a cached one, an uncached one before the first create, and one that shows the address. In sequence, that one may
    // come from a cache, so that another one follows before the next create. One poll for each operation, since each has ended
    // when it is polled.
    for (order, seconds, reads) in [(StepOrder::References, 3, 3), (StepOrder::Sequence, 23, 4)] {
        let (took, calls) = create(order).await;
        let expected = Duration::from_secs(seconds);
        assert!(took >= expected && took < expected + Duration::from_millis(100), "{order:?}: {took:?}");
        assert_eq!(
            (calls.writes.len(), calls.polls, calls.reads),
            (23, 23, reads),
            "{order:?}: {:?}",
            calls.writes
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_refused_for_a_moment_holds_up_only_what_needs_it() {
    let stage = stage(StepOrder::References, service_with_twenty_independent_objects(), &[]);
    stage.run_to_end("machines").await;
    stage.fail("create health check", Error::new(ErrorKind::Unavailable, "out of order"));
    let begin = Instant::now();
    let parked = stage.run(BALANCER).await;
    assert!(matches!(parked.state, PartState::Parked { .. }), "{parked:?}");
    assert_eq!((stage.objects(ForwardingKind::Firewall), stage.objects(ForwardingKind::Address)), (19, 1));
    let report = stage.run_to_end(BALANCER).await;
    assert!(matches!(report.state, PartState::Done) && report.members[0].finished, "{report:?}");
    // It is sent again after five seconds, and the chain takes three.
    assert_eq!(begin.elapsed().as_secs(), 8);
    assert_eq!(stage.writes_of("create health check"), 2);
    assert_eq!(stage.writes_of("create"), 24);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_refused_permanently_freezes_its_service_when_the_others_have_ended() {
    let stage = stage(StepOrder::References, service_with_twenty_independent_objects(), &[]);
    stage.run_to_end("machines").await;
    for _ in 0..2 {
        stage.fail("create health check", Error::new(ErrorKind::QuotaExceeded, "no more checks"));
    }
    let parked = stage.run(BALANCER).await;
    assert!(matches!(parked.members[0].state, MemberState::Refused(_)), "{parked:?}");
    let report = stage.run_to_end(BALANCER).await;
    let MemberState::Refused(error) = &report.members[0].state else {
        panic!("{report:?}");
    };
    assert!(error.report().contains("no more checks"), "{error}");
    assert_eq!((stage.objects(ForwardingKind::Firewall), stage.objects(ForwardingKind::Pool)), (19, 0));
    let report = stage.run_to_end(BALANCER).await;
    assert!(report.members[0].finished, "{report:?}");
    assert_eq!(stage.writes_of("create health check"), 3);
    assert_eq!(stage.writes_of("create"), 25);
}

#[tokio::test(start_paused = true)]
async fn a_busy_object_is_tried_again_while_other_operations_continue() {
    let stage = stage(StepOrder::References, service(0, &[80], &[]), &[]);
    stage.run_to_end("machines").await;
    let not_ready = Error::new(ErrorKind::Conflict, "the resource is not ready");
    let not_ready = not_ready.with_retry(ccm_core::Retry::Fixed(Duration::from_millis(500)));
    stage.fail("create pool", not_ready.clone());
    stage.fail("create health check", not_ready);
    let begin = Instant::now();
    let report = stage.run_to_end(BALANCER).await;
    assert!(report.members[0].finished, "{report:?}");
    assert!(report.steps.iter().all(|step| step.result.is_ok()), "busy is no failure: {report:?}");
    // The check begins after 0.5 s and ends after 1.5 s; the pool begins 0.5 s later.
    assert_eq!(begin.elapsed().as_secs_f32().floor(), 4.0);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_needs_the_end_of_an_earlier_one_waits_for_it() {
    let stage = stage(StepOrder::References, service(0, &[80], &[]), &["n0"]);
    let machines = stage.run("machines").await;
    assert!(matches!(machines.state, PartState::Parked { .. }), "{machines:?}");
    let early = stage.run(BALANCER).await;
    let MemberState::Frozen(why) = &early.members[0].state else {
        panic!("{early:?}");
    };
    assert!(why.contains("machines"), "{why}");
    assert_eq!(stage.writes_of("create forwarding"), 0);
    let machines = stage.run_to_end("machines").await;
    assert_eq!(machines.next, [PartKey::new(BALANCER)], "it can run now");
    let report = stage.run_to_end(BALANCER).await;
    assert!(report.members[0].finished, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_part_that_needs_nothing_of_an_earlier_one_is_created_beside_it() {
    let model = Forwarding {
        order: StepOrder::References,
        ignores_machines: true,
    };
    let stage = stage_of(model, service(0, &[80], &[]), &["n0"]);
    let machines = stage.run("machines").await;
    assert!(matches!(machines.state, PartState::Parked { .. }), "{machines:?}");
    let balancer = stage.run_to_end(BALANCER).await;
    assert!(matches!(balancer.members[0].state, MemberState::Served), "{balancer:?}");
    assert!(!balancer.members[0].finished, "the machines are not ready");
    let machines = stage.run_to_end("machines").await;
    assert!(machines.members[0].finished, "{machines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_result_is_unknown_is_sent_again_with_its_id() {
    for fault in [Fault::NoAnswerDone, Fault::NoAnswerNotDone] {
        let model = Forwarding::default();
        let slow = CloudBehavior {
            polls: 2,
            ..CloudBehavior::default()
        };
        let cloud = Arc::new(MemoryCloud::new(model.clone(), model.ground(), slow));
        let engine = Engine::new(model, Arc::clone(&cloud), PlanMetrics::default());
        let world = Arc::new(world(vec![service(0, &[80], &[])], nodes([])));
        let read = ReadOptions {
            freshness: Freshness::AtMost(Duration::from_secs(60)),
            priority: Priority::User,
        };
        let request = Request::new(world, read);
        engine.run(&PartKey::new("machines"), &request).await;
        cloud.fail(1, fault);
        let begin = Instant::now();
        loop {
            let report = engine.run(&PartKey::new(BALANCER), &request).await;
            match report.state {
                PartState::Parked { until, .. } => sleep_until(until).await,
                PartState::Done => break,
                _ => panic!("{fault:?}: {report:?}"),
            }
        }
        let done = cloud.take_done();
        assert_eq!(done.len(), 5, "each is carried out once: {done:?}");
        assert_eq!(cloud.too_early(), None);
        assert!(begin.elapsed() < Duration::from_secs(1), "{fault:?}: nothing waits for a late create");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_result_without_ids_is_read_while_other_operations_continue() {
    let stage = stage(StepOrder::References, service(0, &[80, 81], &[]), &[]);
    stage.run_to_end("machines").await;
    let lost = Error::new(ErrorKind::Timeout, "no reply").with_outcome(RequestOutcome::Unknown);
    stage.fail("create firewall lb-n-s0-TCP-81", lost);
    stage.cloud.calls.lock().reads = 0;
    let parked = stage.run(BALANCER).await;
    assert!(matches!(parked.state, PartState::Parked { .. }), "{parked:?}");
    // One more than without the failure.
    assert_eq!(stage.cloud.calls.lock().reads, 3);
    let report = stage.run_to_end(BALANCER).await;
    assert_eq!(stage.objects(ForwardingKind::Rule), 1, "{report:?}");
}
