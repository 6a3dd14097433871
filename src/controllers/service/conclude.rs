//! What a pass means for the Services that it was for.

use ccm_core::{
    ErrorKind, Retry,
    client::later,
    controllers::{Backoff, EventType},
    load_balancer::{MemberReport, MemberState, PartKey, PartReport, PartState, ServiceId, StepDescription},
};
use tokio::time::{Duration, Instant};

use super::{
    job::{self, Cause},
    ledger::Ledger,
    records::{Name, Order, Record, State, Task, name},
    show,
    tell::{Failure, Telling},
};

/// A Service that is not served although nothing is under way for it is looked at again after this long, the next time
/// after twice as long.
const LOST: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(300),
};

/// When the part is to be run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// When there is news.
    Done,
    /// Then. No failure, or the provider said when.
    Until(Instant),
    /// With growing waits, none of them shorter than the one that the cloud asks for.
    Backoff { least: Duration },
}

impl Ledger {
    /// A pass over `part` is about to do these steps: whom to tell.
    pub(super) fn steps_due(
        &mut self,
        part: &PartKey,
        steps: &[StepDescription],
        cause: Cause,
    ) -> Vec<Telling> {
        if let Some(part) = self.parts.get_mut(part) {
            part.plan = Some(show::plan(steps));
        }
        let is_named = |id: &ServiceId| steps.iter().any(|step| step.service.as_ref() == Some(id));
        let for_all = steps.iter().any(|step| step.service.is_none());
        let members: Vec<(Name, bool, bool)> = self
            .members_of(part)
            .map(|(name, record)| {
                // One that was served before is not the reason for what is done for all.
                let was_served = record.is_settled() || (record.inherited && record.served.is_none());
                (Name::clone(name), is_named(&record.view.id), !was_served)
            })
            .collect();
        let alone = members.len() == 1;
        let nobody = !members.iter().any(|(_, named, waits)| *named || *waits);
        let mut tellings = Vec::new();
        for (name, named, waits) in members {
            let Some(record) = self.records.get_mut(&name) else {
                continue;
            };
            let concerned = named || (for_all && (waits || (alone && nobody)));
            if concerned {
                tellings.extend(announce(record, cause));
            }
        }
        tellings
    }

    /// A pass has ended.
    pub(super) fn conclude(&mut self, task: &Task, report: &PartReport, at: Instant) -> (Vec<Order>, Next) {
        let part = report.renamed.as_ref().unwrap_or(&report.part);
        if part != &report.part {
            self.rename(&report.part, part);
        }
        let mut orders = Vec::new();
        for member in &report.members {
            self.conclude_member(part, task, report, member, &mut orders);
        }
        let next = self.conclude_part(part, task, report, at, &mut orders);
        for other in &report.next {
            self.dirty(other, task.job);
            orders.push(Order::Run(other.clone()));
        }
        self.find_lost(part, at);
        if part != &report.part
            && next == Next::Done
            && self.parts.get(part).is_some_and(|part| part.job.is_some())
        {
            // What came meanwhile came under the old name.
            orders.push(Order::Run(part.clone()));
        }
        (orders, next)
    }

    fn conclude_part(
        &mut self,
        part: &PartKey,
        task: &Task,
        report: &PartReport,
        at: Instant,
        orders: &mut Vec<Order>,
    ) -> Next {
        let held = report.members.iter().find_map(|member| match &member.state {
            MemberState::Refused(error) => Some(error),
            _ => None,
        });
        let after = |error: &ccm_core::Error| match error.retry() {
            Retry::Fixed(wait) => Next::Until(later(at, wait)),
            retry => Next::Backoff {
                least: retry.wait(Duration::ZERO),
            },
        };
        let (state, next) = match &report.state {
            PartState::Done => match held {
                None => (State::Done, Next::Done),
                Some(error) => {
                    self.kinds.insert(Failure::Error(error).label());
                    (State::Held, after(error))
                }
            },
            PartState::Parked { until, .. } => (State::Parked, Next::Until(*until)),
            PartState::Blocked(why) => {
                self.tell_all(part, task, report, &Failure::Blocked(why), orders);
                let least = Duration::ZERO;
                (State::Blocked, Next::Backoff { least })
            }
            PartState::Failed(error) => {
                self.tell_all(part, task, report, &Failure::Error(error), orders);
                (State::Failed, after(error))
            }
        };
        let entry = self.parts.entry(part.clone()).or_default();
        (entry.state, entry.running) = (state, false);
        if matches!(report.state, PartState::Done) {
            entry.follows = Some(task.nodes);
        }
        if next != Next::Done {
            job::add(&mut entry.job, task.job);
        }
        next
    }

    /// The pass failed for everybody.
    fn tell_all(
        &mut self,
        part: &PartKey,
        task: &Task,
        report: &PartReport,
        failure: &Failure<'_>,
        orders: &mut Vec<Order>,
    ) {
        if matches!(failure, Failure::Error(error) if error.kind() == ErrorKind::NotLeader) {
            return;
        }
        let mut names: Vec<Name> = report
            .members
            .iter()
            .map(|member| name(&member.service))
            .collect();
        if names.is_empty() {
            names = self.members_of(part).map(|(name, _)| Name::clone(name)).collect();
        }
        self.kinds.insert(failure.label());
        let nodes = &task.snapshot.cluster.nodes;
        for name in names {
            if let Some(record) = self.records.get_mut(&name) {
                orders.extend(failure.tell(record, part, task.job.cause, nodes).map(Order::Tell));
            }
        }
    }

    fn conclude_member(
        &mut self,
        part: &PartKey,
        task: &Task,
        report: &PartReport,
        member: &MemberReport,
        orders: &mut Vec<Order>,
    ) {
        let id = &member.service;
        let Some(record) = self.record(id) else { return };
        let settled = record.is_settled();
        // What was true before this process came was told by the one before.
        let known = record.inherited && !record.told.contains_key(part) && report.pass_steps == 0;
        tell_notes(record, part, report, known, orders);
        if member_is_done(report, member) {
            let told = record.told.entry(part.clone()).or_default();
            (told.failure, told.kind) = (None, None);
            let no_nodes = task.snapshot.cluster.nodes.keeps_members()
                && record.view.wants_load_balancer()
                && record.joins.first() == Some(part);
            if no_nodes && !std::mem::replace(&mut told.no_nodes, true) && !known {
                let text = "There are no available nodes for LoadBalancer".to_owned();
                orders.push(Order::Tell(Telling::warning(id, "UnAvailableLoadBalancer", text)));
            }
            told.no_nodes = no_nodes;
            let updated = member.touched && settled && task.job.cause == Cause::Nodes;
            if updated && record.joins.first() == Some(part) && !record.announced {
                let text = "Updated load balancer with new hosts";
                orders.push(Order::Tell(Telling::normal(id, "UpdatedLoadBalancer", text)));
            }
        }
        if let MemberState::Refused(error) = &member.state
            && matches!(report.state, PartState::Done)
        {
            let nodes = &task.snapshot.cluster.nodes;
            let failure = Failure::Error(error);
            let telling = failure.tell(record, part, task.job.cause, nodes);
            orders.extend(telling.map(Order::Tell));
        }
        let services = &task.snapshot.services;
        let view = services
            .binary_search_by(|view| view.id.cmp(id))
            .ok()
            .and_then(|found| services.get(found));
        let Some(view) = view.filter(|view| member.finished && view.asks_the_same(&record.view)) else {
            return;
        };
        record.served = Some(view.clone());
        (record.again, record.lost) = (None, 0);
        record.effects = Some(member.effects.clone());
        orders.push(Order::Object(name(id)));
        if record.view.wants_load_balancer() && std::mem::take(&mut record.announced) {
            let text = "Ensured load balancer";
            orders.push(Order::Tell(Telling::normal(id, "EnsuredLoadBalancer", text)));
        }
    }

    /// Services that are not served although nothing is under way for them: the cloud shows something else than it did
    /// when their parts were found out.
    fn find_lost(&mut self, part: &PartKey, at: Instant) {
        let lost: Vec<_> = self
            .members_of(part)
            .filter(|(_, record)| self.is_lost(record))
            .map(|(name, _)| Name::clone(name))
            .collect();
        for name in lost {
            if let Some(record) = self.records.get_mut(&name) {
                record.lost = record.lost.saturating_add(1);
                record.again.get_or_insert(at + LOST.delay(record.lost));
            }
        }
    }
}

/// The pass is over and the member has from it what it can have now.
fn member_is_done(report: &PartReport, member: &MemberReport) -> bool {
    matches!(report.state, PartState::Done)
        && matches!(
            member.state,
            MemberState::Served | MemberState::Left | MemberState::Frozen(_)
        )
}

/// Says that work on the Service begins, once.
fn announce(record: &mut Record, cause: Cause) -> Option<Telling> {
    let wants = record.view.wants_load_balancer();
    if (wants && cause == Cause::Nodes && record.is_settled())
        || std::mem::replace(&mut record.announced, true)
    {
        return None;
    }
    let id = &record.view.id;
    Some(if wants {
        Telling::normal(id, "EnsuringLoadBalancer", "Ensuring load balancer")
    } else {
        Telling::normal(id, "DeletingLoadBalancer", "Deleting load balancer")
    })
}

/// Notes of the provider, and differences that stay. `known`: people know them already.
fn tell_notes(
    record: &mut Record,
    part: &PartKey,
    report: &PartReport,
    known: bool,
    orders: &mut Vec<Order>,
) {
    let id = record.view.id.clone();
    let over = matches!(report.state, PartState::Done);
    let told = record.told.entry(part.clone()).or_default();
    let notes: Vec<_> = report.events.iter().filter(|note| note.service == id).collect();
    for note in &notes {
        let is_known = told
            .notes
            .iter()
            .any(|(reason, message)| *reason == note.reason && message == &note.message);
        if !is_known && !known {
            orders.push(Order::Tell(Telling {
                service: id.clone(),
                kind: if note.warning {
                    EventType::Warning
                } else {
                    EventType::Normal
                },
                reason: note.reason,
                message: note.message.clone(),
                by_provider: true,
            }));
        }
    }
    let notes = notes.iter().map(|note| (note.reason, note.message.clone()));
    if over {
        told.notes = notes.collect();
    } else {
        // A pass that goes on later does not say them all again.
        let new: Vec<_> = notes.filter(|note| !told.notes.contains(note)).collect();
        told.notes.extend(new);
        return;
    }
    let blocked: Vec<_> = report
        .blocked
        .iter()
        .filter(|blocked| blocked.service.as_ref().is_none_or(|service| service == &id))
        .map(ToString::to_string)
        .collect();
    let blocked = (!blocked.is_empty()).then(|| blocked.join("; "));
    if told.blocked != blocked {
        if let Some(text) = &blocked
            && !known
        {
            let telling = Telling::warning(&id, "LoadBalancerChangeBlocked", text.clone());
            orders.push(Order::Tell(telling));
        }
        told.blocked = blocked;
    }
}

#[cfg(test)]
#[path = "conclude_tests.rs"]
mod tests;
