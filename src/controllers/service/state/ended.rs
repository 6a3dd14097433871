//! The consequences of work that ended.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Retry,
    client::later,
    controllers::{Backoff, ServiceObject},
    load_balancer::{
        ClusterSnapshot, Discovery, Effects, MemberReport, MemberState, NodeSet, PartKey, PartReport,
        PartState, ServiceEvent, ServiceId, ServiceParts, ServiceView, StepDescription,
    },
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    Cause, ControllerState, DiscoveryTask, Job, Name, NextRun, ObjectWrite, Output, PartEntry, PartStatus,
    PartTask,
    entry::{Served, ServiceEntry, WrittenObject},
    name,
};
use crate::{
    controllers::service::events::{Failure, normal},
    server::status::LastPlan,
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

/// A member of a part whose steps are about to be sent.
struct AnnouncedMember {
    name: Name,
    /// A step is for this Service.
    is_named: bool,
    /// It is not served yet.
    is_waiting: bool,
}

impl ControllerState {
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
                self.discovers_all |= task.services.is_none();
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
        let mut due: BTreeMap<PartKey, Job> = BTreeMap::new();
        let mut outputs = Vec::new();
        let concerned: Vec<_> = self
            .concerned(&discovery.services)
            .into_iter()
            .filter_map(|index| snapshot.services.get(index).zip(discovery.services.get(index)))
            .collect();
        for &(view, parts) in &concerned {
            if let Some(entry) = self.entry(&parts.service) {
                let before: Vec<_> = entry.parts().cloned().collect();
                outputs.extend(entry.apply_former(view, parts.former.as_ref(), at));
                let is_timed = entry.again.is_some();
                outputs.extend(entry.apply_parts(view, parts, &mut due));
                if is_timed {
                    self.timed.insert(name(&parts.service));
                }
                self.update_members(&parts.service, &before);
            }
        }
        let order = ServiceParts::in_order(concerned.iter().map(|(_, parts)| parts.as_ref()));
        drop(concerned);
        self.discovered = discovery.services;
        let complete = self.all_included();
        if let Some(listed) = discovery.orphans {
            let orphans = self.orphans.listed(listed, complete, at);
            if !orphans.report.is_empty() {
                outputs.push(Output::Orphans(orphans.report));
            }
            for part in orphans.delete {
                due.entry(part).or_insert(Job::drift(at));
            }
        }
        if !std::mem::replace(&mut self.started, true) {
            // Every part is run now, and follows the nodes as they are then.
            self.nodes.forget_changes();
            self.discovered_nodes = self.nodes.generation();
        }
        // In the order of the discovery: few of them are then run twice.
        let mut ordered: Vec<_> = order.iter().filter_map(|part| due.remove_entry(part)).collect();
        ordered.extend(due);
        outputs.extend(ordered.iter().map(|(part, job)| self.make_dirty(part, *job)));
        outputs
    }

    /// The positions of the Services that a discovery may change something for: those with other parts than before, and those that
    /// wait for it.
    fn concerned(&self, services: &[Arc<ServiceParts>]) -> BTreeSet<usize> {
        let mut concerned = BTreeSet::new();
        // Both are in the order of the ids, and nearly all are the same values.
        let mut known = self.discovered.iter().peekable();
        for (index, parts) in services.iter().enumerate() {
            let is_same = |known: &Arc<ServiceParts>| Arc::ptr_eq(known, parts);
            while known.next_if(|known| !is_same(known) && known.service < parts.service).is_some() {}
            let is_unchanged = known.next_if(|known| known.service == parts.service).is_some_and(is_same);
            if !is_unchanged || parts.former.is_some() {
                concerned.insert(index);
            }
        }
        for entry in self.services.values() {
            let is_settled = entry.is_ours() || entry.former.is_known;
            if entry.dirty.is_some() || entry.requeued.is_some() || !is_settled {
                let found = services.binary_search_by(|parts| parts.service.cmp(&entry.view.id));
                concerned.extend(found.ok());
            }
        }
        concerned
    }

    /// The Service had these parts before.
    fn update_members(&mut self, id: &ServiceId, before: &[PartKey]) {
        let name = name(id);
        let now: Vec<_> =
            self.services.get(&name).into_iter().flat_map(ServiceEntry::parts).cloned().collect();
        for part in before.iter().filter(|part| !now.contains(part)) {
            self.remove_member(part, &name);
        }
        for part in now {
            self.parts.entry(part.clone()).or_default();
            self.members.entry(part).or_default().insert(Arc::clone(&name));
        }
    }

    pub(super) fn remove_member(&mut self, part: &PartKey, name: &Name) {
        if let Some(members) = self.members.get_mut(part) {
            members.remove(name);
            if members.is_empty() {
                self.members.remove(part);
            }
        }
        self.forget_if_idle(part);
    }

    /// Forgets a part without work and without members.
    fn forget_if_idle(&mut self, part: &PartKey) {
        if !self.members.contains_key(part) && self.parts.get(part).is_some_and(PartEntry::is_idle) {
            self.parts.remove(part);
        }
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
            part.plan = Some(LastPlan {
                at: Timestamp::now(),
                steps: sentences.collect(),
                count: steps.len(),
            });
        }
        let for_all = steps.iter().any(|step| step.service.is_none());
        let members: Vec<AnnouncedMember> = self
            .members_of(part)
            .map(|(name, entry)| AnnouncedMember {
                name: Name::clone(name),
                is_named: steps.iter().any(|step| step.service.as_ref() == Some(&entry.view.id)),
                // A Service that was served before is not the reason for a step for all.
                is_waiting: !entry.is_served() && (!entry.inherited || entry.served.is_some()),
            })
            .collect();
        let is_alone = members.len() == 1;
        let none_waits = !members.iter().any(|member| member.is_named || member.is_waiting);
        let mut events = Vec::new();
        for member in members {
            let is_for_it = for_all && (member.is_waiting || (is_alone && none_waits));
            if !member.is_named && !is_for_it {
                continue;
            }
            let Some(entry) = self.services.get_mut(&member.name) else {
                continue;
            };
            let wants = entry.view.wants_load_balancer();
            let only_nodes = wants && cause == Cause::Nodes && entry.is_served();
            if !only_nodes && !std::mem::replace(&mut entry.reported.work, true) {
                let id = &entry.view.id;
                events.push(if wants {
                    normal(id, "EnsuringLoadBalancer", "Ensuring load balancer")
                } else {
                    normal(id, "DeletingLoadBalancer", "Deleting load balancer")
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
    ) -> (Vec<Output>, NextRun) {
        let part = report.renamed.as_ref().unwrap_or(&report.part);
        let is_renamed = part != &report.part;
        if is_renamed {
            self.rename(&report.part, part);
        }
        let mut outputs = Vec::new();
        for member in &report.members {
            outputs.extend(self.member_ended(part, task, report, member, at));
        }
        let (status, failure) = PartStatus::of(report);
        let backoff = |least| NextRun::Backoff { least };
        let next = match (&report.state, &failure) {
            (PartState::Parked { until, .. }, _) => NextRun::Until(*until),
            (_, None) => NextRun::Done,
            _ if task.keeps_retry && status == PartStatus::Refused => NextRun::LastRetry,
            (_, Some(Failure::Blocked(_))) => backoff(Duration::ZERO),
            (_, Some(Failure::Error(error))) => match error.retry() {
                Retry::Fixed(wait) => NextRun::Until(later(at, wait)),
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
        if next != NextRun::Done {
            task.job.add_to(&mut entry.job);
        }
        for other in &report.next {
            outputs.push(self.make_next_dirty(other, task.job));
        }
        if let Some((began, generation)) = self.following
            && !self.has_lagging_part(generation)
        {
            self.following = None;
            outputs.push(Output::NodesFollowed(at.saturating_duration_since(began)));
        }
        outputs.extend(self.after_pass(part, task, report, at));
        let has_job = self.parts.get(part).is_some_and(|part| part.job.is_some());
        if is_renamed && next == NextRun::Done && has_job {
            // Jobs that came meanwhile were queued under the old name.
            outputs.push(Output::Run(part.clone(), task.job.priority));
        }
        self.forget_if_idle(part);
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

    /// Applies what a pass reports about one of its members: its events, then its annotations and status, then the end of the
    /// work on it.
    fn member_ended(
        &mut self,
        part: &PartKey,
        task: &PartTask,
        report: &PartReport,
        member: &MemberReport,
        at: Instant,
    ) -> Vec<Output> {
        let id = &member.service;
        let entry = self.services.get_mut(&name(id));
        let Some(entry) = entry.filter(|entry| entry.view.id == *id) else {
            return Vec::new();
        };
        let mut outputs = entry.report_member(part, task, report, member);
        if member.early != Effects::default() {
            // Even if it has changed since then: with another name it must not get another load balancer.
            entry.early = member.early.clone();
            let passed = task.snapshot.service(id);
            if !passed.is_some_and(|passed| passed.asks_the_same(&entry.view)) {
                entry.early.conditions.clear();
            }
            outputs.push(Output::Object(name(id)));
        }
        let finished = entry.finished_view(task, member);
        if let Some(view) = &finished {
            outputs.extend(entry.finish(view, &member.effects, at));
            if entry.again.is_some() {
                self.timed.insert(name(id));
            }
        }
        let is_served = matches!(member.state, MemberState::Served);
        if finished.is_none() && (!is_served || !entry.is_served()) {
            return outputs;
        }
        let is_finished = finished.is_some();
        outputs.extend(self.ensured_event(&name(id), part, report, is_finished));
        outputs
    }

    /// The event that the load balancer of a Service is ensured, once no work on it is left.
    fn ensured_event(
        &mut self,
        name: &Name,
        part: &PartKey,
        report: &PartReport,
        is_finished: bool,
    ) -> Option<Output> {
        let entry = self.services.get_mut(name)?;
        // A repair does not change the view: the Service counts as served while its parts are at work. If two parts end together,
        // the report that finds everything served may come first.
        let others = entry.parts().filter(|other| *other != part);
        let waits = others.filter_map(|other| self.parts.get(other)).any(|part| {
            let is_due = !is_finished && part.job.is_some();
            part.running || is_due || part.waits_for_quota || part.status == PartStatus::Parked
        });
        let is_done = matches!(report.state, PartState::Done);
        let is_ensured = is_done && !waits && entry.reported.failure_kind().is_none();
        if is_ensured && entry.view.wants_load_balancer() && std::mem::take(&mut entry.reported.work) {
            let event = normal(&entry.view.id, "EnsuredLoadBalancer", "Ensured load balancer");
            return Some(Output::Event(event));
        }
        None
    }

    /// What follows from the end of a pass for members that are not served, or whose event waits, also if it did not report them.
    fn after_pass(
        &mut self,
        part: &PartKey,
        task: &PartTask,
        report: &PartReport,
        at: Instant,
    ) -> Vec<Output> {
        let waiting: Vec<_> = self
            .members_of(part)
            .filter(|(_, entry)| !entry.is_served() || entry.reported.work)
            .map(|(name, _)| Name::clone(name))
            .collect();
        let reported: HashSet<_> = report.members.iter().map(|member| &member.service).collect();
        // Another client deleted an object while its part was renamed, so that the part has its former name again.
        let names_unknown_part = report.next.iter().any(|next| !self.members.contains_key(next));
        let mut outputs = Vec::new();
        for name in &waiting {
            let Some(entry) = self.services.get(name) else {
                continue;
            };
            let is_reported = reported.contains(&entry.view.id);
            if !is_reported && entry.is_served() {
                outputs.extend(self.ensured_event(name, part, report, false));
            } else if names_unknown_part || (!is_reported && matches!(report.state, PartState::Done)) {
                self.find_moved(name, task);
            }
        }
        self.find_lost(&waiting, at);
        outputs
    }

    /// A pass did not find a Service that was a member of its part by the last discovery, or named a part that no Service is known
    /// to have: the load balancer was deleted, by another client or before the Service asked for it again. It has other parts now.
    fn find_moved(&mut self, name: &Name, task: &PartTask) {
        let Some(entry) = self.services.get_mut(name) else {
            return;
        };
        let waits = entry.is_ours() && entry.included && entry.dirty.is_none();
        let is_known = task.view(&entry.view.id).is_some_and(|view| view.asks_the_same(&entry.view));
        // Only once until its parts change.
        if waits && is_known && !std::mem::replace(&mut entry.moved, true) {
            let job = Job::now(Cause::Service);
            job.add_to(&mut entry.dirty);
            job.add_to(&mut self.discovery);
        }
    }

    /// Finds Services that are not served although no work runs for them. The cloud has changed since their parts
    /// were discovered.
    fn find_lost(&mut self, waiting: &[Name], at: Instant) {
        for name in waiting {
            let Some(entry) = self.services.get(name).filter(|entry| self.is_lost(entry)) else {
                continue;
            };
            let parts: Vec<_> = entry.parts().cloned().collect();
            for part in &parts {
                if let Some(part) = self.parts.get_mut(part) {
                    part.report_all = true;
                }
            }
            if let Some(entry) = self.services.get_mut(name) {
                entry.lost = entry.lost.saturating_add(1);
                let due = at + LOST.delay(entry.lost);
                entry.again = Some(entry.again.map_or(due, |again| again.min(due)));
                self.timed.insert(Name::clone(name));
            }
        }
    }

    fn is_lost(&self, entry: &ServiceEntry) -> bool {
        entry.is_ours()
            && entry.included
            && entry.dirty.is_none()
            && !entry.is_served()
            && entry.parts().all(|part| self.parts.get(part).is_none_or(PartEntry::is_idle))
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
            for parts in [&mut entry.joins, &mut entry.leaves] {
                if parts.contains(new) {
                    // A listing showed the new name first.
                    parts.retain(|part| part != old);
                }
                for part in parts.iter_mut().filter(|part| *part == old) {
                    part.clone_from(new);
                }
            }
            entry.reported.rename(old, new);
            self.members.entry(new.clone()).or_default().insert(name);
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
            entry.written = Some(WrittenObject {
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

impl ServiceEntry {
    /// The events about what a pass found for it in this part.
    fn report_member(
        &mut self,
        part: &PartKey,
        task: &PartTask,
        report: &PartReport,
        member: &MemberReport,
    ) -> Vec<Output> {
        let (id, nodes) = (&member.service, &task.snapshot.cluster.nodes);
        // Probably, the process before this one reported the same. If it is still so after a while, it is reported again.
        let is_served = matches!(member.state, MemberState::Served);
        let is_known = is_served && self.inherited && !self.reported.has(part) && report.pass_steps == 0;
        let mut outputs = Vec::new();
        let new = self.reported.pass_ended(part, id, report);
        if is_known {
            self.reported.of(part).expect_repetition();
        } else {
            outputs.extend(new);
        }
        if !matches!(report.state, PartState::Done) {
            return outputs;
        }
        match &member.state {
            MemberState::Served | MemberState::Left | MemberState::Frozen(_) => {
                let is_first = self.joins.first() == Some(part);
                let no_nodes = nodes.keeps_members() && self.view.wants_load_balancer() && is_first;
                let reports = self.reported.of(part);
                reports.failure = None;
                let is_new = !is_known && std::mem::replace(&mut reports.no_nodes, no_nodes) != no_nodes;
                if no_nodes && is_new {
                    let text = "There are no available nodes for LoadBalancer";
                    outputs.push(Output::Event(ServiceEvent::warning(id, "UnAvailableLoadBalancer", text)));
                }
                let is_updated = member.touched && self.is_served() && task.job.cause == Cause::Nodes;
                // Several parts may follow the same nodes.
                let is_published = std::ptr::eq(self.updated_for.as_ptr(), Arc::as_ptr(&task.snapshot));
                if is_updated && !is_published && !self.reported.work && self.reported.blocked().is_none() {
                    self.updated_for = Arc::downgrade(&task.snapshot);
                    let text = "Updated load balancer with new hosts";
                    outputs.push(Output::Event(normal(id, "UpdatedLoadBalancer", text)));
                }
            }
            MemberState::Refused(error) => {
                let failure = Failure::Error(error);
                outputs.extend(self.fail(&failure, part, task.job.cause, nodes));
            }
            MemberState::Pending => {}
        }
        outputs
    }

    /// The view with which a pass found it finished, unless it has changed since then.
    fn finished_view(&self, task: &PartTask, member: &MemberReport) -> Option<Arc<ServiceView>> {
        if !member.finished {
            return None;
        }
        let view = task.view(&member.service)?;
        view.asks_the_same(&self.view).then(|| Arc::clone(view))
    }

    /// It is served in all of its parts. Returns the output if its object may differ now.
    fn finish(&mut self, view: &Arc<ServiceView>, effects: &Effects, at: Instant) -> Option<Output> {
        let blocked = self.reported.blocked();
        self.again = blocked.map(|_| at + BLOCKED);
        self.lost = 0;
        // A pass over a part that many Services share changes the objects of few of them.
        let is_known = self
            .served
            .as_ref()
            .is_some_and(|served| served.effects == *effects && served.view.asks_the_same(view));
        if is_known {
            return None;
        }
        self.served = Some(Served {
            view: Arc::clone(view),
            effects: effects.clone(),
        });
        Some(Output::Object(name(&view.id)))
    }
}
