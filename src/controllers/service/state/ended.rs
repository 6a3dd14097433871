//! The consequences of work that ended.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ccm_core::{
    Retry,
    client::later,
    controllers::{Backoff, ServiceObject},
    load_balancer::{
        ClusterSnapshot, Discovery, Effects, MemberReport, MemberState, NodeSet, PartKey, PartReport,
        PartState, ServiceEvent, ServiceId, StepDescription,
    },
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Cause, DiscoveryTask, Job, Name, Next, ObjectWrite, Output, PartEntry, PartStatus, PartTask, State,
    entry::{Served, ServiceEntry, Written},
    name,
};
use crate::{
    controllers::service::events::{Failure, normal},
    server::status::Plan,
};

/// Waits between tries of a discovery. Short, since everything waits for it, and it is one listing.
const DISCOVERY_BACKOFF: Backoff = Backoff::seconds(2, 30);

/// A Service that is not served although no work runs for it is compared again after this time, the next time
/// after twice as long.
const LOST: Backoff = Backoff::seconds(1, 300);

/// A difference that is blocked is compared again after this: the cloud may accept the change later, such as a target whose
/// instance was stopped. The cloud is not read for it.
pub(super) const BLOCKED: Duration = Duration::from_secs(600);

/// How many steps of a plan the status page shows.
const STEPS: usize = 10;

impl State {
    /// A discovery ended. If it failed, it is due again later.
    pub(in crate::controllers::service) fn discovery_ended(
        &mut self,
        task: &DiscoveryTask,
        result: ccm_core::Result<Discovery>,
        at: Instant,
    ) -> Vec<Output> {
        match result {
            Ok(discovery) => {
                self.failed_discoveries = 0;
                self.discovered(discovery, &task.snapshot, at)
            }
            Err(error) => {
                self.failed_discoveries = self.failed_discoveries.saturating_add(1);
                let wait = error.retry().wait(DISCOVERY_BACKOFF.delay(self.failed_discoveries));
                self.retry_discovery = Some(later(at, wait));
                task.job.add_to(&mut self.discovery);
                self.discovery_waits_for_quota = task.job.waits_for_quota(&error);
                if self.discovery_waits_for_quota {
                    return Vec::new();
                }
                let failure = Failure::Error(&error);
                self.kinds.insert(failure.label());
                let entries = self.services.values_mut();
                entries
                    .filter(|entry| entry.waits_for_discovery())
                    .filter_map(|entry| {
                        let nodes = NodeSet::default();
                        entry.fail(&failure, &PartKey::new(""), Cause::Service, &nodes)
                    })
                    .collect()
            }
        }
    }

    fn discovered(&mut self, discovery: Discovery, snapshot: &ClusterSnapshot, at: Instant) -> Vec<Output> {
        let mut due: HashMap<PartKey, Job> = HashMap::new();
        let mut outputs = Vec::new();
        for (view, parts) in snapshot.services.iter().zip(discovery.services) {
            if let Some(entry) = self.entry(&parts.service) {
                outputs.extend(entry.apply_parts(view, parts, &mut due));
            }
        }
        let complete = self.all_included();
        let orphans = self.orphans.listed(discovery.orphans, complete, at);
        if !orphans.report.is_empty() {
            outputs.push(Output::Orphans(orphans.report));
        }
        for part in orphans.delete {
            due.entry(part).or_insert(Job::drift(at));
        }
        self.index();
        if !std::mem::replace(&mut self.started, true) {
            // Every part is run now, and follows the nodes as they are then.
            self.nodes.forget_changes();
        }
        // In the order of the discovery: few of them are then run twice.
        let parts = discovery.parts.iter();
        let mut ordered: Vec<_> = parts.filter_map(|part| due.remove_entry(part)).collect();
        ordered.extend(due);
        outputs.extend(ordered.iter().map(|(part, job)| self.make_dirty(part, *job)));
        outputs
    }

    /// Updates the members of each part.
    fn index(&mut self) {
        self.members.clear();
        for (name, entry) in &self.services {
            for part in entry.parts() {
                let members = self.members.entry(part.clone()).or_default();
                members.push(Arc::clone(name));
            }
        }
        self.forget_idle_parts();
        for key in self.members.keys() {
            self.parts.entry(key.clone()).or_default();
        }
    }

    /// Forgets parts without work and without members.
    pub(super) fn forget_idle_parts(&mut self) {
        let members = &mut self.members;
        members.retain(|_, names| !names.is_empty());
        self.parts
            .retain(|key, part| part.job.is_some() || part.running || members.contains_key(key));
    }

    /// A pass over `part` is about to apply these steps: the events that announce it.
    pub(in crate::controllers::service) fn part_writes(
        &mut self,
        part: &PartKey,
        steps: &[StepDescription],
        cause: Cause,
    ) -> Vec<ServiceEvent> {
        if let Some(part) = self.parts.get_mut(part) {
            let sentences = steps.iter().take(STEPS).map(|step| step.sentence.clone());
            part.plan = Some(Plan {
                at: Timestamp::now(),
                steps: sentences.collect(),
                count: steps.len(),
            });
        }
        let is_named = |id: &ServiceId| steps.iter().any(|step| step.service.as_ref() == Some(id));
        let for_all = steps.iter().any(|step| step.service.is_none());
        let members: Vec<(Name, bool, bool)> = self
            .members_of(part)
            .map(|(name, entry)| {
                // A Service that was served before is not the reason for a step for all.
                let was_served = entry.is_served() || (entry.inherited && entry.served.is_none());
                (Name::clone(name), is_named(&entry.view.id), !was_served)
            })
            .collect();
        let alone = members.len() == 1;
        let none_waits = !members.iter().any(|(_, named, waits)| *named || *waits);
        let concerned = members
            .into_iter()
            .filter(|(_, named, waits)| *named || (for_all && (*waits || (alone && none_waits))));
        let mut events = Vec::new();
        for (name, ..) in concerned {
            let Some(entry) = self.services.get_mut(&name) else {
                continue;
            };
            let wants = entry.view.wants_load_balancer();
            let only_nodes = wants && cause == Cause::Nodes && entry.is_served();
            if !only_nodes && !std::mem::replace(&mut entry.reported.work, true) {
                let id = &entry.view.id;
                events.push(match wants {
                    true => normal(id, "EnsuringLoadBalancer", "Ensuring load balancer"),
                    false => normal(id, "DeletingLoadBalancer", "Deleting load balancer"),
                });
            }
        }
        events
    }

    /// A pass ended.
    pub(in crate::controllers::service) fn part_ended(
        &mut self,
        task: &PartTask,
        report: &PartReport,
        at: Instant,
    ) -> (Vec<Output>, Next) {
        let part = report.renamed.as_ref().unwrap_or(&report.part);
        let is_renamed = part != &report.part;
        if is_renamed {
            self.rename(&report.part, part);
        }
        let mut outputs = Vec::new();
        for member in &report.members {
            self.member_ended(part, task, report, (member, at), &mut outputs);
        }
        let (status, failure) = PartStatus::of(report);
        let backoff = |least| Next::Backoff { least };
        let next = match (&report.state, &failure) {
            (PartState::Parked { until, .. }, _) => Next::Until(*until),
            (_, None) => Next::Done,
            (_, Some(Failure::Blocked(_))) => backoff(Duration::ZERO),
            (_, Some(Failure::Error(error))) => match error.retry() {
                Retry::Fixed(wait) => Next::Until(later(at, wait)),
                retry => backoff(retry.wait(Duration::ZERO)),
            },
        };
        // A comparison that comes later is no failure for users.
        let waits_for_quota =
            matches!(&report.state, PartState::Failed(error) if task.job.waits_for_quota(error));
        if let Some(failure) = &failure {
            match status {
                PartStatus::Refused => {
                    self.kinds.insert(failure.label());
                }
                _ if waits_for_quota => {}
                _ => self.fail_all(part, task, report, failure, &mut outputs),
            }
        }
        let entry = self.parts.entry(part.clone()).or_default();
        (entry.status, entry.running) = (status, false);
        entry.waits_for_quota = waits_for_quota;
        if matches!(report.state, PartState::Done) {
            entry.follows = Some(task.nodes);
        }
        if next != Next::Done {
            task.job.add_to(&mut entry.job);
        }
        for other in &report.next {
            self.make_dirty(other, task.job);
            outputs.push(Output::Run(other.clone(), task.job.priority));
        }
        if let Some((began, generation)) = self.following
            && self.behind(generation).next().is_none()
        {
            self.following = None;
            outputs.push(Output::NodesFollowed(at.saturating_duration_since(began)));
        }
        self.find_lost(part, at);
        let has_job = || self.parts.get(part).is_some_and(|part| part.job.is_some());
        if is_renamed && next == Next::Done && has_job() {
            // Jobs that came meanwhile were queued under the old name.
            outputs.push(Output::Run(part.clone(), task.job.priority));
        }
        (outputs, next)
    }

    /// The pass failed for all members.
    fn fail_all(
        &mut self,
        part: &PartKey,
        task: &PartTask,
        report: &PartReport,
        failure: &Failure<'_>,
        outputs: &mut Vec<Output>,
    ) {
        if failure.is_not_leader() {
            return;
        }
        let reported = report.members.iter().map(|member| name(&member.service));
        let mut names: Vec<Name> = reported.collect();
        if names.is_empty() {
            names = self.members_of(part).map(|(name, _)| Name::clone(name)).collect();
        }
        self.kinds.insert(failure.label());
        let nodes = &task.snapshot.cluster.nodes;
        for name in names {
            if let Some(entry) = self.services.get_mut(&name) {
                outputs.extend(entry.fail(failure, part, task.job.cause, nodes));
            }
        }
    }

    fn member_ended(
        &mut self,
        part: &PartKey,
        task: &PartTask,
        report: &PartReport,
        (member, at): (&MemberReport, Instant),
        outputs: &mut Vec<Output>,
    ) {
        let (id, parts, nodes) = (&member.service, &self.parts, &task.snapshot.cluster.nodes);
        let entry = self.services.get_mut(&name(id));
        let Some(entry) = entry.filter(|entry| entry.view.id == *id) else {
            return;
        };
        let was_served = entry.is_served();
        // Probably, the process before this one reported the same. If it is still so after a while, it is reported again.
        let is_served = matches!(member.state, MemberState::Served);
        let known = is_served && entry.inherited && !entry.reported.has(part) && report.pass_steps == 0;
        let new = entry.reported.pass_ended(part, id, report);
        match known {
            true => entry.reported.of(part).expect_repetition(),
            false => outputs.extend(new),
        }
        let mut publish = |event| outputs.push(Output::Event(event));
        let is_done = matches!(report.state, PartState::Done);
        let is_first = entry.joins.first() == Some(part);
        match &member.state {
            MemberState::Served | MemberState::Left | MemberState::Frozen(_) if is_done => {
                let no_nodes = nodes.keeps_members() && entry.view.wants_load_balancer() && is_first;
                let reports = entry.reported.of(part);
                reports.failure = None;
                let is_new = !known && std::mem::replace(&mut reports.no_nodes, no_nodes) != no_nodes;
                if no_nodes && is_new {
                    let text = "There are no available nodes for LoadBalancer".to_owned();
                    publish(ServiceEvent::warning(id, "UnAvailableLoadBalancer", text));
                }
                let updated = member.touched && was_served && task.job.cause == Cause::Nodes;
                if updated && is_first && !entry.reported.work && entry.reported.blocked().is_none() {
                    let text = "Updated load balancer with new hosts";
                    publish(normal(id, "UpdatedLoadBalancer", text));
                }
            }
            MemberState::Refused(error) if is_done => {
                let failure = Failure::Error(error);
                outputs.extend(entry.fail(&failure, part, task.job.cause, nodes));
            }
            _ => {}
        }
        if member.early != Effects::default() {
            // Even if it has changed since then: with another name it must not get another load balancer.
            entry.early = member.early.clone();
            outputs.push(Output::Object(name(id)));
        }
        let services = &task.snapshot.services;
        let found = services.binary_search_by(|view| view.id.cmp(id)).ok();
        let view = found.and_then(|found| services.get(found));
        let view = view.filter(|view| member.finished && view.asks_the_same(&entry.view));
        if let Some(view) = view {
            entry.served = Some(Served {
                view: Arc::clone(view),
                effects: member.effects.clone(),
            });
            let blocked = entry.reported.blocked();
            (entry.again, entry.lost) = (blocked.map(|_| at + BLOCKED), 0);
            outputs.push(Output::Object(name(id)));
        } else if !is_served || !entry.is_served() {
            return;
        }
        // A repair does not change the view: the Service counts as served while its parts are at work. If two parts end together,
        // the report that finds everything served may come first.
        let is_busy = |part: &PartEntry| {
            let is_due = view.is_none() && part.job.is_some();
            part.running || is_due || part.waits_for_quota || part.status == PartStatus::Parked
        };
        let others = entry.parts().filter(|other| *other != part);
        let waits = others.filter_map(|other| parts.get(other)).any(is_busy);
        let is_ensured = is_done && !waits && entry.reported.failure_kind().is_none();
        if is_ensured && entry.view.wants_load_balancer() && std::mem::take(&mut entry.reported.work) {
            let event = normal(id, "EnsuredLoadBalancer", "Ensured load balancer");
            outputs.push(Output::Event(event));
        }
    }

    /// Finds Services that are not served although no work runs for them. The cloud has changed since their parts
    /// were discovered.
    fn find_lost(&mut self, part: &PartKey, at: Instant) {
        let lost = self.members_of(part).filter(|(_, entry)| self.is_lost(entry));
        let lost: Vec<_> = lost.map(|(name, _)| Name::clone(name)).collect();
        for name in lost {
            if let Some(entry) = self.services.get_mut(&name) {
                entry.lost = entry.lost.saturating_add(1);
                let due = at + LOST.delay(entry.lost);
                entry.again = Some(entry.again.map_or(due, |again| again.min(due)));
            }
        }
    }

    fn is_lost(&self, entry: &ServiceEntry) -> bool {
        let is_idle = |part: &PartEntry| part.job.is_none() && !part.running;
        entry.is_ours()
            && entry.included
            && entry.dirty.is_none()
            && !entry.is_served()
            && entry.parts().all(|part| self.parts.get(part).is_none_or(is_idle))
    }

    /// The part has another name after a create.
    fn rename(&mut self, old: &PartKey, new: &PartKey) {
        let mut part = self.parts.remove(old).unwrap_or_default();
        if let Some(job) = self.parts.remove(new).and_then(|other| other.job) {
            job.add_to(&mut part.job);
        }
        self.parts.insert(new.clone(), part);
        for name in self.members.remove(old).unwrap_or_default() {
            let Some(entry) = self.services.get_mut(&name) else {
                continue;
            };
            for key in entry.joins.iter_mut().chain(&mut entry.leaves) {
                if key == old {
                    key.clone_from(new);
                }
            }
            entry.reported.rename(old, new);
            let known = self.members.entry(new.clone()).or_default();
            if !known.contains(&name) {
                known.push(name);
            }
        }
    }

    /// The write of a Service object ended. `in_vain`: whether it changed nothing. Returns the event, if there is one.
    pub(in crate::controllers::service) fn object_ended(
        &mut self,
        object: &ServiceObject,
        write: ObjectWrite,
        in_vain: Result<bool, String>,
        at: Instant,
    ) -> Option<ServiceEvent> {
        let id = &object.view.id;
        // The Service may be deleted already.
        let entry = self.entry(id);
        let in_vain = match in_vain {
            Ok(in_vain) => in_vain,
            Err(error) => {
                let message = format!("Error syncing load balancer: {}: {error}", write.change.failure());
                let last = entry?.reported.not_written.replace(message.clone());
                let is_new = last.as_ref() != Some(&message);
                return is_new.then(|| ServiceEvent::warning(id, "SyncLoadBalancerFailed", message));
            }
        };
        let removed = !object.view.wants_load_balancer() && !write.change.remove_finalizers.is_empty();
        if let Some(entry) = entry {
            entry.reported.not_written = None;
            entry.reported.work &= !removed;
            entry.written = Some(Written {
                version: object.meta.resource_version.clone(),
                change: write.change,
                at,
                repeats: write.repeats,
                in_vain,
            });
        }
        (removed && write.had_load_balancer)
            .then(|| normal(id, "DeletedLoadBalancer", "Deleted load balancer"))
    }
}
