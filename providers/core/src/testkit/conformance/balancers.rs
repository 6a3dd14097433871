//! The conformance scenarios of load balancers.
//!
//! The scenarios use Services, nodes and calls, not the objects that a cloud's load balancer consists of. They hold for clouds whose
//! API has objects and for clouds whose load balancer is one document.

mod failures;
mod scenarios;

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

pub use self::{failures::balancer_failures, scenarios::balancer_scenarios};
use super::{BoxError, Checked, report};
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
    /// Empties the cloud: no machine, no load balancer, no pending failure.
    async fn reset(&self) -> Result<(), BoxError>;

    /// Starts a provider with empty caches.
    async fn start(&self) -> Result<Arc<dyn Cloud>, BoxError>;

    /// Creates a machine and returns its node: eligible, ready, with an address if members are known by their addresses.
    async fn create_node(&self, name: &str) -> Result<ServiceNode, BoxError>;

    /// All objects in the cloud that Services can own, as sorted lines. Values that differ from run to run (ids, assigned
    /// addresses) are replaced by words. An object that exists twice is two lines.
    async fn picture(&self) -> Result<Vec<String>, BoxError>;

    /// Whether the provider can read who owns an object. Without the right to, the name alone identifies the Service.
    fn reads_ownership(&self) -> bool {
        true
    }

    /// The calls since the last call of this method, in order.
    fn take_calls(&self) -> Vec<CloudCall>;

    /// The most calls for the suite's Service.
    fn budgets(&self) -> Budgets;

    /// Whether a call can fail in this way.
    fn can_fail(&self, _call: &CloudCall, _failure: Failure) -> bool {
        true
    }

    /// Makes the call number `nth` from now (from 1; every call of [`Self::take_calls`] counts) fail once. With
    /// [`Failure::NoReply`], the future ends when the cloud has executed the call.
    fn fail(&self, nth: usize, failure: Failure) -> BoxFuture<'static, ()>;

    /// How many calls of each phase fail, one in each run, evenly spread. Few if a run takes seconds.
    fn failure_points(&self) -> usize {
        usize::MAX
    }

    /// Edits that another client can make in the cloud.
    fn edits(&self) -> &[Edit];

    /// Makes the edit of this name.
    async fn edit(&self, name: &str) -> Result<(), BoxError>;

    /// Changes a field or annotation that is specific to this cloud. [`Self::picture`] must show it.
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
    /// The kind of the call.
    pub kind: CallKind,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// An authentication. It is not counted and never fails.
    Authentication,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The object is busy; the call had no effect.
    Busy,
    /// Too many requests; the call had no effect.
    Throttled,
    /// The service failed; the call had no effect.
    Unavailable,
    /// The call was executed, and the connection broke before the reply.
    LostReply,
    /// The call was executed, and no reply ever arrives.
    NoReply,
}

/// An edit in the cloud by another client while the suite's Service `web` has its load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The name of the edit.
    pub name: &'static str,
    /// The expected result.
    pub expected: EditResult,
}

impl Edit {
    /// An edit with this name.
    #[must_use]
    pub const fn new(name: &'static str, expected: EditResult) -> Self {
        Self { name, expected }
    }
}

/// The result of an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditResult {
    /// The next process reverts it: an object of ours was deleted, or a field that we set was changed.
    Reverted,
    /// It is kept until the load balancer is deleted: a field that the provider does not manage, or that users may set.
    Unchanged,
    /// It is never reverted: a foreign object. The edit works without a load balancer, too.
    Foreign,
}

/// The calls of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The exact number of writes.
    pub writes: usize,
    /// The most reads, including polls.
    pub reads: usize,
}

/// The calls for the suite's Service with three ports in a cluster with six nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// The Service is created.
    pub create: Cost,
    /// Reads of a process that starts and has no changes to apply.
    pub restart_reads: usize,
    /// A node joins.
    pub join: Cost,
    /// The Service is deleted, after one of its nodes left the cluster.
    pub delete: Cost,
}

/// The tests of load balancers: [`balancer_scenarios`], and [`balancer_failures`] of every kind. They run in parallel, each with
/// a new subject.
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

/// Creates an empty cloud, a cluster with this number of nodes, and a new process.
async fn new_cluster(subject: &dyn BalancerSubject, nodes: usize) -> Result<TestCluster, BoxError> {
    subject.reset().await?;
    let mut cluster = TestCluster::new(subject.start().await?, subject.wait_until());
    for _ in 0..nodes {
        join(subject, &mut cluster).await?;
    }
    subject.take_calls();
    Ok(cluster)
}

/// Adds a node.
async fn join(subject: &dyn BalancerSubject, cluster: &mut TestCluster) -> Checked {
    let name = format!("conf-node-{}", cluster.nodes.len());
    cluster.nodes.push(subject.create_node(&name).await?);
    Ok(())
}

/// Creates a cluster of two nodes whose Service `web` has a load balancer.
async fn served(subject: &dyn BalancerSubject) -> Result<TestCluster, BoxError> {
    let mut cluster = new_cluster(subject, 2).await?;
    cluster.services.push(service("web", &[80, 443]));
    settle(&mut cluster).await?;
    web(&mut cluster)?;
    Ok(cluster)
}

/// Returns the Service `web`, which must have an address.
fn web(cluster: &mut TestCluster) -> Result<&mut ServiceView, BoxError> {
    let web = cluster.services.iter_mut().find(|service| &*service.id.name == "web");
    let web = web.ok_or("the Service web does not exist")?;
    ensure!(!web.ingress.is_empty(), "the Service web has no address");
    Ok(web)
}

/// Runs passes until nothing changes, and checks that no problem is reported.
async fn settle(cluster: &mut TestCluster) -> Checked {
    cluster.settle().await?;
    let complaints = cluster.complaints();
    ensure!(complaints.is_empty(), "{}", complaints.join("; "));
    Ok(())
}

/// Starts a new process.
async fn restart(subject: &dyn BalancerSubject, cluster: &mut TestCluster) -> Checked {
    cluster.cloud = subject.start().await?;
    subject.take_calls();
    Ok(())
}

/// Runs passes, and checks that they write nothing.
async fn settle_without_writes(subject: &dyn BalancerSubject, cluster: &mut TestCluster) -> Checked {
    subject.take_calls();
    settle(cluster).await?;
    no_writes(subject)
}

fn no_writes(subject: &dyn BalancerSubject) -> Checked {
    let calls = subject.take_calls().into_iter();
    let writes: Vec<_> = calls.filter(|call| call.kind == CallKind::Write).collect();
    ensure!(writes.is_empty(), "unexpected writes: {writes:?}");
    Ok(())
}

/// Deletes the Service `web`, and checks that the cloud contains exactly the objects of `left`.
async fn delete(subject: &dyn BalancerSubject, cluster: &mut TestCluster, left: &[String]) -> Checked {
    web(cluster)?.deleting = true;
    settle(cluster).await?;
    ensure!(cluster.find("web").is_none(), "the Service web keeps its finalizer");
    same(&subject.picture().await?, left)
}

/// Checks that the lines are the same, in any order.
fn same(observed: &[String], expected: &[String]) -> Checked {
    let surplus = lines_without(observed, expected);
    let missing = lines_without(expected, observed);
    ensure!(
        surplus.is_empty() && missing.is_empty(),
        "the cloud has {surplus:#?} instead of {missing:#?}"
    );
    Ok(())
}

/// Returns the lines without those of `others`. Each line of `others` removes one.
fn lines_without(lines: &[String], others: &[String]) -> Vec<String> {
    let mut rest = lines.to_vec();
    for line in others {
        if let Some(at) = rest.iter().position(|other| other == line) {
            rest.remove(at);
        }
    }
    rest
}
