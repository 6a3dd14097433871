//! One conformance suite for every provider: the behavior that the framework relies on.
//!
//! A provider's tests implement [`Subject`] over its simulator, its emulator or the real cloud and call
//! [`instances`]; [`RouteSubject`] and [`routes()`], if it has routes; [`BalancerSubject`] and [`balancer_tests!`], if it has
//! load balancers. Scenarios run one after another; all failures are reported together.

use std::{error::Error as StdError, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::nodes::query;
use crate::{Cloud, Freshness, Instance, InstanceQuery, InstanceState, Instances, Need, Power, Priority};

/// An error while a test prepares the cloud.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A cloud under test, and how a test changes its machines.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The provider under test. Always the same one, so that its caches are tested, too.
    fn cloud(&self) -> Arc<dyn Cloud>;

    /// Creates a running machine with at least one address. Returns when the cloud's own API shows both.
    async fn create(&self, name: &str) -> Result<(), BoxError>;

    /// Deletes the machine. Returns when the cloud's own API no longer shows it.
    async fn delete(&self, name: &str) -> Result<(), BoxError>;

    /// Switches the machine off. Returns when the cloud's own API shows it.
    async fn shut_down(&self, name: &str) -> Result<(), BoxError>;

    /// A well-formed provider ID of a machine that never existed.
    fn absent_provider_id(&self) -> String;

    /// A malformed provider ID with this cloud's scheme.
    fn malformed_provider_id(&self) -> String;

    /// The name of the node of a machine that the suite calls `name`. Some clouds choose it.
    fn node_name(&self, name: &str) -> String {
        name.to_owned()
    }

    /// The number of requests to the cloud so far, if they are counted.
    fn requests(&self) -> Option<usize> {
        None
    }

    /// How many machines the larger scenarios create; few if a machine takes seconds.
    fn machine_count(&self) -> usize {
        20
    }
}

type Checked = Result<(), BoxError>;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}

/// Runs scenarios one after another.
///
/// # Panics
///
/// A scenario fails; the message lists all failed ones.
macro_rules! scenarios {
    ($subject:expr, $($scenario:ident),+ $(,)?) => {{
        let mut failed = Vec::new();
        $(if let Err(error) = $scenario($subject).await {
            failed.push(format!("{}: {error}", stringify!($scenario)));
        })+
        report(&failed);
    }};
}

fn report(failed: &[String]) {
    assert!(failed.is_empty(), "{} scenarios failed:\n{}", failed.len(), failed.join("\n"));
}

mod balancers;
mod routes;

pub use crate::balancer_tests;
pub use balancers::{
    BalancerSubject, Budgets, CallKind, CloudCall, Cost, Edit, EditResult, Failure, balancer_failures,
    balancer_scenarios,
};
pub use routes::{CLUSTER_CIDR, RouteSubject, routes};

/// Runs every scenario of instances.
///
/// # Panics
///
/// A scenario fails; the message lists all failed ones.
pub async fn instances(subject: &dyn Subject) {
    scenarios!(
        subject,
        no_queries_have_no_answers,
        finds_a_machine_by_name_and_then_by_its_id,
        existence_gives_the_same_id,
        an_unknown_name_is_unresolved,
        an_unknown_id_is_absent,
        a_foreign_id_is_never_absent,
        a_malformed_id_does_not_affect_others,
        keeps_order_and_count_with_repeated_queries,
        names_are_literal,
        a_machine_created_after_a_miss_is_found,
        a_deleted_machine_is_absent_to_a_fresh_read,
        a_deleted_machine_becomes_unresolved_by_name,
        a_stopped_machine_is_off,
        many_machines_cost_less_than_one_request_each,
        an_abandoned_call_does_not_affect_others,
    );
}

async fn describe(
    subject: &dyn Subject,
    queries: &[InstanceQuery],
    freshness: Freshness,
) -> Result<Vec<crate::Result<InstanceState>>, BoxError> {
    let cloud = subject.cloud();
    let instances: &dyn Instances = cloud.instances().ok_or("the cloud has no instances")?;
    let mut queries = queries.to_vec();
    for query in &mut queries {
        let node = Arc::make_mut(&mut query.node);
        node.name = subject.node_name(&node.name);
    }
    let answers = instances.describe(&queries, freshness, Priority::User).await;
    ensure!(answers.len() == queries.len(), "{} answers to {} queries", answers.len(), queries.len());
    Ok(answers)
}

async fn ask(subject: &dyn Subject, query: InstanceQuery) -> Result<crate::Result<InstanceState>, BoxError> {
    let mut answers = describe(subject, &[query], Freshness::now()).await?;
    answers.pop().ok_or_else(|| "no answer".into())
}

async fn by_name(subject: &dyn Subject, name: &str) -> Result<InstanceState, BoxError> {
    Ok(ask(subject, query(name, None, Need::Metadata)).await??)
}

fn present(state: InstanceState) -> Result<Instance, BoxError> {
    match state {
        InstanceState::Present(instance) => Ok(instance),
        other => Err(format!("expected Present, got {other:?}").into()),
    }
}

async fn no_queries_have_no_answers(subject: &dyn Subject) -> Checked {
    ensure!(describe(subject, &[], Freshness::now()).await?.is_empty(), "answers without a query");
    Ok(())
}

async fn finds_a_machine_by_name_and_then_by_its_id(subject: &dyn Subject) -> Checked {
    subject.create("conf-one").await?;
    let first = present(by_name(subject, "conf-one").await?)?;
    ensure!(subject.cloud().owns(&first.provider_id), "does not own its own id {}", first.provider_id);
    ensure!(!first.addresses.is_empty(), "no address");
    ensure!(first.power == Power::On, "power is {:?}", first.power);
    // The node's name does not matter if the node has a provider ID.
    let second = ask(subject, query("other-name", Some(&first.provider_id), Need::Metadata)).await??;
    ensure!(second == InstanceState::Present(first.clone()), "by id: {second:?}; by name: {first:?}");
    subject.delete("conf-one").await
}

async fn existence_gives_the_same_id(subject: &dyn Subject) -> Checked {
    subject.create("conf-exists").await?;
    let metadata = present(by_name(subject, "conf-exists").await?)?;
    for id in [None, Some(metadata.provider_id.as_str())] {
        let existence = present(ask(subject, query("conf-exists", id, Need::Existence)).await??)?;
        ensure!(
            existence.provider_id == metadata.provider_id,
            "{} is not {}",
            existence.provider_id,
            metadata.provider_id
        );
        ensure!(existence.power == metadata.power, "power differs");
    }
    subject.delete("conf-exists").await
}

async fn an_unknown_name_is_unresolved(subject: &dyn Subject) -> Checked {
    for need in [Need::Existence, Need::Metadata] {
        let state = ask(subject, query("conf-nobody", None, need)).await??;
        ensure!(state == InstanceState::Unresolved, "{need:?}: {state:?}");
    }
    Ok(())
}

async fn an_unknown_id_is_absent(subject: &dyn Subject) -> Checked {
    let id = subject.absent_provider_id();
    for need in [Need::Existence, Need::Metadata] {
        let state = ask(subject, query("conf-nobody", Some(&id), need)).await??;
        ensure!(state == InstanceState::Absent, "{need:?}: {state:?}");
    }
    Ok(())
}

async fn a_foreign_id_is_never_absent(subject: &dyn Subject) -> Checked {
    let foreign = "another-cloud://zone/i-0123456789";
    ensure!(!subject.cloud().owns(foreign), "owns {foreign}");
    match ask(subject, query("conf-foreign", Some(foreign), Need::Existence)).await? {
        Ok(InstanceState::Unmanaged) | Err(_) => Ok(()),
        Ok(other) => Err(format!("expected Unmanaged or an error, got {other:?}").into()),
    }
}

async fn a_malformed_id_does_not_affect_others(subject: &dyn Subject) -> Checked {
    subject.create("conf-good").await?;
    let malformed = subject.malformed_provider_id();
    let queries = [
        query("conf-bad", Some(&malformed), Need::Metadata),
        query("conf-good", None, Need::Metadata),
        query("conf-gone", Some(&subject.absent_provider_id()), Need::Metadata),
    ];
    let answers = describe(subject, &queries, Freshness::now()).await?;
    match answers.as_slice() {
        [
            Err(error),
            Ok(InstanceState::Present(_)),
            Ok(InstanceState::Absent),
        ] => {
            ensure!(
                error.report().contains(&malformed),
                "the error does not name the id: {}",
                error.report()
            );
        }
        other => return Err(format!("{other:?}").into()),
    }
    subject.delete("conf-good").await
}

async fn keeps_order_and_count_with_repeated_queries(subject: &dyn Subject) -> Checked {
    subject.create("conf-a").await?;
    subject.create("conf-b").await?;
    let names = ["conf-b", "conf-nobody", "conf-a", "conf-b"];
    let queries: Vec<_> = names.iter().map(|name| query(name, None, Need::Metadata)).collect();
    let answers = describe(subject, &queries, Freshness::now()).await?;
    let mut ids = Vec::new();
    for (name, answer) in names.iter().zip(answers) {
        match (*name, answer?) {
            ("conf-nobody", InstanceState::Unresolved) => {}
            (_, InstanceState::Present(instance)) => ids.push((*name, instance.provider_id)),
            (name, other) => return Err(format!("{name}: {other:?}").into()),
        }
    }
    let [(_, b), (_, a), (_, again)] = ids.as_slice() else {
        return Err(format!("{ids:?}").into());
    };
    ensure!(b == again && a != b, "{ids:?}");
    subject.delete("conf-a").await?;
    subject.delete("conf-b").await
}

async fn names_are_literal(subject: &dyn Subject) -> Checked {
    subject.create("conf-x.y").await?;
    subject.create("conf-xzy").await?;
    let dotted = present(by_name(subject, "conf-x.y").await?)?;
    let plain = present(by_name(subject, "conf-xzy").await?)?;
    ensure!(dotted.provider_id != plain.provider_id, "both are {}", plain.provider_id);
    for pattern in [
        "conf-x.*",
        "conf-x",
        "onf-xzy",
        "conf-xzy|conf-x.y",
        "(conf",
        "[",
        "conf-x.y\\",
    ] {
        let state = by_name(subject, pattern).await?;
        ensure!(state == InstanceState::Unresolved, "{pattern} found {state:?}");
    }
    subject.delete("conf-x.y").await?;
    subject.delete("conf-xzy").await
}

async fn a_machine_created_after_a_miss_is_found(subject: &dyn Subject) -> Checked {
    let hour = Freshness::AtMost(Duration::from_secs(3600));
    let queries = [query("conf-late", None, Need::Metadata)];
    let before = describe(subject, &queries, hour).await?;
    ensure!(matches!(before.as_slice(), [Ok(InstanceState::Unresolved)]), "{before:?}");
    subject.create("conf-late").await?;
    // Cached answers prove only that a machine exists, whatever the freshness.
    let after = describe(subject, &queries, hour).await?;
    ensure!(matches!(after.as_slice(), [Ok(InstanceState::Present(_))]), "{after:?}");
    subject.delete("conf-late").await
}

async fn a_deleted_machine_is_absent_to_a_fresh_read(subject: &dyn Subject) -> Checked {
    subject.create("conf-gone").await?;
    let id = present(by_name(subject, "conf-gone").await?)?.provider_id;
    subject.delete("conf-gone").await?;
    for need in [Need::Existence, Need::Metadata] {
        let state = ask(subject, query("conf-gone", Some(&id), need)).await??;
        ensure!(state == InstanceState::Absent, "{need:?}: {state:?}");
    }
    Ok(())
}

async fn a_deleted_machine_becomes_unresolved_by_name(subject: &dyn Subject) -> Checked {
    subject.create("conf-lost").await?;
    present(by_name(subject, "conf-lost").await?)?;
    subject.delete("conf-lost").await?;
    let state = by_name(subject, "conf-lost").await?;
    ensure!(state == InstanceState::Unresolved, "{state:?}");
    Ok(())
}

async fn a_stopped_machine_is_off(subject: &dyn Subject) -> Checked {
    subject.create("conf-off").await?;
    let id = present(by_name(subject, "conf-off").await?)?.provider_id;
    subject.shut_down("conf-off").await?;
    for need in [Need::Existence, Need::Metadata] {
        let instance = present(ask(subject, query("conf-off", Some(&id), need)).await??)?;
        ensure!(instance.power == Power::Off, "{need:?}: {:?}", instance.power);
    }
    subject.delete("conf-off").await
}

async fn many_machines_cost_less_than_one_request_each(subject: &dyn Subject) -> Checked {
    let names: Vec<_> = (0..subject.machine_count()).map(|i| format!("conf-machine-{i}")).collect();
    for name in &names {
        subject.create(name).await?;
    }
    let queries: Vec<_> = names.iter().map(|name| query(name, None, Need::Metadata)).collect();
    let before = subject.requests();
    let answers = describe(subject, &queries, Freshness::now()).await?;
    let after = subject.requests();
    for (name, answer) in names.iter().zip(answers) {
        present(answer?).map_err(|error| format!("{name}: {error}"))?;
    }
    if let (Some(before), Some(after)) = (before, after) {
        ensure!(after - before < names.len(), "{} requests for {} machines", after - before, names.len());
    }
    for name in &names {
        subject.delete(name).await?;
    }
    Ok(())
}

async fn an_abandoned_call_does_not_affect_others(subject: &dyn Subject) -> Checked {
    subject.create("conf-stay").await?;
    let queries = [query("conf-stay", None, Need::Metadata)];
    // Dropped before the cloud can answer.
    let abandoned = describe(subject, &queries, Freshness::now());
    let _ = tokio::time::timeout(Duration::ZERO, abandoned).await;
    present(by_name(subject, "conf-stay").await?)?;
    subject.delete("conf-stay").await
}
