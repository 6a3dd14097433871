//! The part of the suite about load balancers.
//!
//! The scenarios know Services, nodes and calls, not what a cloud's load balancer consists of. They hold for clouds whose
//! API has objects and for clouds whose load balancer is one document.

mod failures;
mod scenarios;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{BoxError, Checked};
use crate::{
    Cloud,
    load_balancer::{ServiceNode, ServiceView},
    testkit::cluster::{TestCluster, WaitUntil, service},
};

/// A cloud with load balancers under test.
///
/// One configuration of the provider is tested: with everything that Services have by default (health checks, firewall
/// rules), and with limits that do not slow down the suite.
#[async_trait]
pub trait BalancerSubject: Send + Sync {
    /// Empties the cloud: no machine, no load balancer, no failure that is still due.
    async fn reset(&self) -> Result<(), BoxError>;

    /// Starts a provider that knows nothing.
    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError>;

    /// Creates a machine and returns its node: eligible, ready, with an address if members are known by their addresses.
    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError>;

    /// Everything that Services can have in the cloud, as sorted lines. What differs from run to run (ids, addresses that
    /// nobody chose) is replaced by words. An object that exists twice is two lines.
    async fn picture(&self) -> Result<Vec<String>, BoxError>;

    /// The calls since this was last asked, in order.
    fn take_calls(&self) -> Vec<CloudCall>;

    /// The most calls that the suite's Service may cost.
    fn budgets(&self) -> Budgets;

    /// Whether a call can fail in this way.
    fn can_fail(&self, _call: &CloudCall, _failure: Failure) -> bool {
        true
    }

    /// Makes the call number `nth` from now (from 1; every call of [`Self::take_calls`] counts) fail once. With
    /// [`Failure::NoReply`], the future ends when the call was carried out.
    fn fail(&self, nth: usize, failure: Failure) -> BoxFuture<'static, ()>;

    /// How many calls of a turn fail, one in each run; spread evenly. Few where a run takes seconds.
    fn failure_points(&self) -> usize {
        usize::MAX
    }

    /// Edits that somebody else can make in the cloud.
    fn edits(&self) -> &[Edit];

    /// Makes the edit of this name.
    async fn edit(&self, name: &str) -> Result<(), BoxError>;

    /// Changes what only this cloud's Services can ask for. [`Self::picture`] must show it.
    fn change(&self, _service: &mut ServiceView) {}

    /// Waits until the instant. A simulator whose clock belongs to the test advances it.
    fn wait_until(&self) -> WaitUntil {
        |until| Box::pin(tokio::time::sleep_until(until))
    }
}

/// A call of the cloud's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudCall {
    /// The operation, as the cloud names it.
    pub operation: String,
    /// What it is for.
    pub kind: CallKind,
}

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It authenticates. It costs nothing and never fails.
    Authentication,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The cloud is at work on the object; nothing was done.
    Busy,
    /// Too many requests; nothing was done.
    Throttled,
    /// The service failed; nothing was done.
    Unavailable,
    /// The call was carried out, and the connection broke before the reply.
    LostReply,
    /// The call was carried out, and no reply ever comes.
    NoReply,
}

impl Failure {
    /// Every way.
    pub const ALL: [Self; 5] = [
        Self::Busy,
        Self::Throttled,
        Self::Unavailable,
        Self::LostReply,
        Self::NoReply,
    ];
}

/// Something that somebody else does to the cloud while the suite's Service `web` has its load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// What it is.
    pub name: &'static str,
    /// What becomes of it.
    pub expected: EditResult,
}

impl Edit {
    /// An edit with this name.
    #[must_use]
    pub const fn new(name: &'static str, expected: EditResult) -> Self {
        Self { name, expected }
    }
}

/// What becomes of an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditResult {
    /// The next process reverts it: an object of ours was deleted, or a field that we set was changed.
    Reverted,
    /// It stays for as long as the load balancer: a field that the provider does not know, or that people may set.
    Kept,
    /// It stays for ever: an object of somebody else. It can be made without a load balancer, too.
    Foreign,
}

/// Calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Exactly so many writes.
    pub writes: usize,
    /// At most so many reads, polls included.
    pub reads: usize,
}

/// What the suite's Service with three ports costs in a cluster with six nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// It is created.
    pub create: Cost,
    /// Reads of a process that starts and finds nothing to do.
    pub restart_reads: usize,
    /// A node joins.
    pub join: Cost,
    /// It is deleted, after one of its nodes left the cluster.
    pub delete: Cost,
}

/// Runs every scenario of the part about load balancers: [`balancer_scenarios`] and [`balancer_failures`] of every kind.
///
/// # Panics
///
/// If a scenario fails; the message lists all that did.
pub async fn balancers(subject: &dyn BalancerSubject) {
    let mut failed = scenarios::run(subject).await;
    failed.extend(failures::run(subject, &Failure::ALL).await);
    report(&failed);
}

/// The tests of [`balancers`], as functions that run side by side, each with a new subject.
///
/// ```ignore
/// balancer_tests!(Simulated::new().await);
/// ```
#[macro_export]
macro_rules! balancer_tests {
    ($subject:expr) => {
        #[tokio::test]
        async fn load_balancers_keep_the_contract() {
            $crate::testkit::conformance::balancer_scenarios(&$subject).await;
        }

        $crate::balancer_tests! { @ $subject, Busy, a_busy_load_balancer_is_waited_for }
        $crate::balancer_tests! { @ $subject, Throttled, a_throttled_call_is_repeated }
        $crate::balancer_tests! { @ $subject, Unavailable, a_failed_call_is_repeated }
        $crate::balancer_tests! { @ $subject, LostReply, a_change_whose_reply_is_lost_is_not_repeated }
        $crate::balancer_tests! { @ $subject, NoReply, a_change_whose_reply_never_comes_is_not_repeated }
    };
    (@ $subject:expr, $failure:ident, $test:ident) => {
        #[tokio::test]
        async fn $test() {
            use $crate::testkit::conformance::{Failure, balancer_failures};
            balancer_failures(&$subject, Failure::$failure).await;
        }
    };
}

/// The half of [`balancers`] in which no call fails.
///
/// # Panics
///
/// If a scenario fails; the message lists all that did.
pub async fn balancer_scenarios(subject: &dyn BalancerSubject) {
    report(&scenarios::run(subject).await);
}

/// The half of [`balancers`] in which each call fails once, in one way: tests of several subjects can run side by side.
///
/// # Panics
///
/// If a scenario fails; the message lists all that did.
pub async fn balancer_failures(subject: &dyn BalancerSubject, failure: Failure) {
    report(&failures::run(subject, &[failure]).await);
}

fn report(failed: &[String]) {
    assert!(
        failed.is_empty(),
        "{} scenarios failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// An empty cloud with a cluster of so many nodes, and a new process.
async fn new_cluster(subject: &dyn BalancerSubject, nodes: usize) -> Result<TestCluster, BoxError> {
    subject.reset().await?;
    let mut cluster = TestCluster::new(subject.start().await?, subject.wait_until());
    for _ in 0..nodes {
        join(subject, &mut cluster).await?;
    }
    subject.take_calls();
    Ok(cluster)
}

/// One more node.
async fn join(subject: &dyn BalancerSubject, cluster: &mut TestCluster) -> Checked {
    let name = format!("conf-node-{}", cluster.nodes.len());
    cluster.nodes.push(subject.create_node(&name).await?);
    Ok(())
}

/// A cluster of two nodes whose Service `web` has its load balancer.
async fn served(subject: &dyn BalancerSubject) -> Result<TestCluster, BoxError> {
    let mut cluster = new_cluster(subject, 2).await?;
    cluster.services.push(service("web", &[80, 443]));
    settle(&mut cluster).await?;
    web(&mut cluster)?;
    Ok(cluster)
}

/// The Service `web`, which must have an address.
fn web(cluster: &mut TestCluster) -> Result<&mut ServiceView, BoxError> {
    let web = cluster
        .services
        .iter_mut()
        .find(|service| &*service.id.name == "web");
    let web = web.ok_or("the Service web does not exist")?;
    ensure!(!web.ingress.is_empty(), "the Service web has no address");
    Ok(web)
}

/// Passes until nothing changes, after which nobody complains.
async fn settle(cluster: &mut TestCluster) -> Checked {
    cluster.settle().await?;
    let complaints = cluster.complaints();
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    Ok(())
}

/// A new process.
async fn restart(subject: &dyn BalancerSubject, cluster: &mut TestCluster) -> Checked {
    cluster.cloud = subject.start().await?;
    subject.take_calls();
    Ok(())
}

/// Passes that write nothing.
async fn settle_without_writes(subject: &dyn BalancerSubject, cluster: &mut TestCluster) -> Checked {
    subject.take_calls();
    settle(cluster).await?;
    no_writes(subject)
}

fn no_writes(subject: &dyn BalancerSubject) -> Checked {
    let calls = subject.take_calls().into_iter();
    let writes: Vec<_> = calls.filter(|call| call.kind == CallKind::Write).collect();
    ensure!(writes.is_empty(), "there were writes: {writes:?}");
    Ok(())
}

/// Deletes the Service `web`, after which the cloud holds this and nothing else.
async fn delete(subject: &dyn BalancerSubject, cluster: &mut TestCluster, left: &[String]) -> Checked {
    web(cluster)?.deleting = true;
    settle(cluster).await?;
    ensure!(
        cluster.find("web").is_none(),
        "the Service web keeps its finalizer"
    );
    same(&subject.picture().await?, left)
}

/// The lines are the same, in any order.
fn same(have: &[String], want: &[String]) -> Checked {
    let (surplus, missing) = (lines_without(have, want), lines_without(want, have));
    ensure!(
        surplus.is_empty() && missing.is_empty(),
        "the cloud has {surplus:#?} in place of {missing:#?}"
    );
    Ok(())
}

/// The lines without those of `others`, each as often as it is there.
fn lines_without(lines: &[String], others: &[String]) -> Vec<String> {
    let mut rest = lines.to_vec();
    for line in others {
        if let Some(at) = rest.iter().position(|have| have == line) {
            rest.remove(at);
        }
    }
    rest
}
