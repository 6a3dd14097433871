//! Runs an engine until no pass has steps, as the service controller does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{LawEngine, Lawful, MemoryCloud};
use crate::{
    Freshness, Priority,
    load_balancer::{
        Blocked, ClusterSnapshot, Effects, LoadBalancers, MemberReport, MemberState, PartKey, PartReport,
        PartState, ReadOptions, Request, ServiceId,
    },
    plan::{Engine, PlanMetrics},
};

/// The most rounds over all parts. Cases are small, and every round before the settled state has at least one step.
const ROUNDS: usize = 400;

/// The state in which no pass has steps.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SettledState {
    /// The effects on each Service, and whether nothing is left to do for it.
    pub(super) services: BTreeMap<ServiceId, (Effects, bool)>,
    /// Parts that could not be finished, with the problem.
    pub(super) problems: BTreeMap<String, String>,
    /// Services whose specs are not completely applied.
    pub(super) incomplete: BTreeSet<ServiceId>,
    /// Services with a blocked difference in any round. After a Service has left, later rounds do not report it.
    pub(super) blocked: BTreeSet<ServiceId>,
    /// Steps on orphans.
    pub(super) deleted_orphans: Vec<String>,
}

pub(super) fn engine<L: Lawful>(model: &L, cloud: &Arc<MemoryCloud<L>>) -> LawEngine<L> {
    Engine::new(model.clone(), Arc::clone(cloud), PlanMetrics::default())
}

pub(super) fn request(world: &Arc<ClusterSnapshot>) -> Request {
    Request::new(
        Arc::clone(world),
        ReadOptions {
            freshness: Freshness::AtMost(Duration::from_secs(3600)),
            priority: Priority::User,
        },
    )
}

/// Runs parts until no pass has steps, orphans that may be deleted included. Parts keep their order from round to round, as in
/// a plan: the order decides how many writes of tags are needed.
pub(super) async fn settle<L: Lawful>(
    engine: &LawEngine<L>,
    world: &Arc<ClusterSnapshot>,
) -> Result<SettledState, String> {
    let request = request(world);
    let mut last = String::new();
    let sweep = Request {
        delete_orphan: true,
        ..request.clone()
    };
    let (mut with_blocked, mut deleted_orphans) = (BTreeSet::new(), Vec::new());
    let mut order: Vec<PartKey> = Vec::new();
    for _ in 0..ROUNDS {
        let mut settled = SettledState::default();
        let mut progressed = false;
        let discovery = engine.discover(&request).await.map_err(|error| error.report())?;
        let orphans: Vec<_> = discovery.orphans.iter().flatten().filter(|orphan| orphan.deletable).collect();
        let orphans = orphans.iter().map(|orphan| (&orphan.part, &sweep));
        let all = discovery.parts();
        let mut parts: Vec<_> = all.iter().collect();
        parts.sort_by_key(|part| order.iter().position(|known| known == *part).unwrap_or(usize::MAX));
        for part in &parts {
            if !order.contains(part) {
                order.push((*part).clone());
            }
        }
        let parts = parts.into_iter().map(|part| (part, &request));
        for (part, request) in parts.chain(orphans) {
            let report = engine.run(part, request).await;
            if let Some(renamed) = &report.renamed {
                for known in order.iter_mut().filter(|known| *known == part) {
                    known.clone_from(renamed);
                }
            }
            progressed |= !report.steps.is_empty() || !report.next.is_empty() || report.renamed.is_some();
            match &report.state {
                PartState::Done => {}
                PartState::Parked { until, why, .. } => {
                    progressed = true;
                    tokio::time::advance(until.saturating_duration_since(Instant::now())).await;
                    last = format!("{part}: {why}");
                }
                PartState::Blocked(why) => {
                    settled.problems.insert(part.to_string(), why.clone());
                }
                PartState::Failed(error) => {
                    last = format!("{part}: {}", error.report());
                    settled.problems.insert(part.to_string(), error.report());
                }
            }
            if request.delete_orphan {
                deleted_orphans.extend(report.steps.iter().map(|step| step.description.sentence.clone()));
            }
            if let Some(step) = report.steps.last() {
                last = format!("{part}: {}", step.description.sentence);
            }
            settled.incomplete.extend(incomplete(&report));
            with_blocked.extend(blocked(&report));
            for member in report.members {
                record(&mut settled, part.as_str(), member);
            }
        }
        if !progressed {
            return Ok(SettledState {
                blocked: with_blocked,
                deleted_orphans,
                ..settled
            });
        }
    }
    Err(format!("the passes always have steps; last: {last}"))
}

/// The members of a part whose specs are not completely applied to it.
fn incomplete(report: &PartReport) -> impl Iterator<Item = ServiceId> {
    let is_done = matches!(report.state, PartState::Done);
    let is_incomplete = move |member: &&MemberReport| {
        let mut blocked = report.blocked.iter();
        !is_done || !matches!(member.state, MemberState::Served) || blocked.any(|one| concerns(one, member))
    };
    report.members.iter().filter(is_incomplete).map(|member| member.service.clone())
}

/// The members with a blocked difference.
fn blocked(report: &PartReport) -> impl Iterator<Item = ServiceId> {
    let has_blocked = |member: &&MemberReport| report.blocked.iter().any(|one| concerns(one, member));
    let members = report.members.iter().filter(has_blocked);
    members.map(|member| member.service.clone())
}

/// Whether a difference is one of this member or of the whole part.
fn concerns(blocked: &Blocked, member: &MemberReport) -> bool {
    let service = blocked.service.as_ref();
    service.is_none_or(|service| *service == member.service)
}

fn record(settled: &mut SettledState, part: &str, member: MemberReport) {
    if let MemberState::Refused(error) = &member.state {
        let key = format!("{part} for {}", member.service);
        settled.problems.insert(key, error.report());
    }
    settled.services.insert(member.service, (member.effects, member.finished));
}

/// Like [`settle`], until the process is killed. Returns whether it was.
pub(super) async fn settle_or_die<L: Lawful>(
    engine: &LawEngine<L>,
    cloud: &MemoryCloud<L>,
    world: &Arc<ClusterSnapshot>,
) -> Result<bool, String> {
    tokio::select! {
        biased;
        settled = settle(engine, world) => settled.map(|_| false),
        () = cloud.killed.notified() => Ok(true),
    }
}
