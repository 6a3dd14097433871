//! The workers: one kind runs passes over parts, the other writes Service objects. Each takes work from the
//! [state](super::state) and returns the result to it.

use std::sync::Arc;

use ccm_core::{
    client::later,
    controllers::{ServiceObject, WorkQueue},
    error::report,
    load_balancer::{PartKey, PartReport, PartState, Request, StepDescription},
};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    BACKOFF, COMPONENT, ServiceController,
    state::{Cause, Name, NextRun, ObjectTask, ObjectWrite, PartStatus},
};
use crate::{controllers::node_object::is_not_found, metrics::increment};

/// After so many repeats of a write, another client is known to undo it.
const UNDONE: u32 = 2;

// === Parts ===

impl ServiceController {
    /// Runs parts until shutdown. Then the running pass is finished, and the next process continues with parts that wait
    /// for the cloud.
    pub(super) async fn work_on_parts(self: Arc<Self>) {
        while let Some(part) = self.shutdown.run_until_cancelled(self.parts.next()).await {
            self.metrics.running.inc();
            self.run_part(&part).await;
            self.metrics.running.dec();
        }
    }

    async fn run_part(self: &Arc<Self>, part: &PartKey) {
        let task = self.state.lock().take_part(part, Instant::now());
        let (Some(task), Some(balancers)) = (task, self.cloud.load_balancers()) else {
            return self.parts.done(part);
        };
        let (controller, name, cause) = (Arc::clone(self), part.clone(), task.job.cause);
        let announce = move |steps: &[StepDescription]| {
            let events = controller.state.lock().part_writes(&name, steps, cause);
            for event in events {
                controller.events.publish(&event);
            }
        };
        let request = Request {
            delete_orphan: task.delete_orphan,
            report_all: task.report_all,
            announce: Some(Arc::new(announce)),
            ..Request::new(Arc::clone(&task.snapshot), task.job.ask())
        };
        let began = Instant::now();
        let report = balancers.run(part, &request).await;
        let now = Instant::now();
        let (outputs, next) = self.state.lock().part_ended(&task, &report, now);
        self.show_pass(part, cause, &report, began);
        put_back(&self.parts, part, report.renamed.as_ref(), next);
        self.apply(outputs);
        // Something may be due later.
        self.changed.notify_one();
    }

    /// Log and metrics of a pass.
    fn show_pass(&self, part: &PartKey, cause: Cause, report: &PartReport, began: Instant) {
        let took = began.elapsed();
        let name = report.renamed.as_ref().unwrap_or(part);
        let (status, failure) = PartStatus::of(report);
        self.metrics.pass_ended(cause, took, status);
        if name != part {
            self.events.works(part.as_str());
        }
        match (&failure, &report.state) {
            (Some(failure), _) if failure.is_not_leader() => {}
            (Some(failure), _) => {
                increment(&self.metrics.retries, "reason", failure.label());
                self.events.failed(name.as_str(), failure.label(), &failure.text());
            }
            (None, PartState::Parked { why, .. }) => {
                debug!(controller = COMPONENT, part = %name, why, "Waiting for the cloud");
                increment(&self.metrics.retries, "reason", "parked");
            }
            (None, _) => self.events.works(name.as_str()),
        }
        let steps = report.steps.len();
        debug!(controller = COMPONENT, part = %name, ?cause, steps, state = status.as_str(), elapsed = ?took, "Pass ended");
    }
}

/// Puts a part back into the queue after a pass, under its new name if a create renamed it.
pub(super) fn put_back(queue: &WorkQueue<PartKey>, part: &PartKey, renamed: Option<&PartKey>, next: NextRun) {
    let Some(new) = renamed else {
        match next {
            NextRun::Done => queue.done(part),
            NextRun::Until(due) => queue.done_until(part, due),
            NextRun::Backoff { least } => {
                queue.done_with_backoff_of_at_least(part, least);
            }
            NextRun::LastRetry => queue.done_until_retry(part),
        }
        return;
    };
    let due = match next {
        NextRun::Done => return queue.done(part),
        NextRun::Until(due) => due,
        NextRun::Backoff { least } => later(Instant::now(), BACKOFF.first.max(least)),
        NextRun::LastRetry => later(Instant::now(), BACKOFF.first),
    };
    queue.renamed_until(part, new.clone(), due);
}

// === Objects ===

impl ServiceController {
    /// Writes Service objects until shutdown. Then the running patch is finished.
    pub(super) async fn work_on_objects(self: Arc<Self>) {
        while let Some(name) = self.shutdown.run_until_cancelled(self.objects.next()).await {
            self.sync_object(&name).await;
        }
    }

    async fn sync_object(&self, name: &Name) {
        let Some(now) = self.service(name) else {
            self.events.works(name);
            return self.objects.done(name);
        };
        if self.waits_for_former(&now.object, now.claim) {
            return self.objects.done(name);
        }
        let task = self.state.lock().take_object(&now, Instant::now());
        let is_done = match task {
            ObjectTask::Later(due) => return self.objects.done_until(name, due),
            ObjectTask::Write(write) => self.write(name, &now.object, write).await,
            ObjectTask::Nothing => true,
        };
        if is_done {
            self.events.works(name);
            self.objects.done(name);
        } else {
            self.objects.done_with_backoff(name);
        }
    }

    /// Writes a Service object. Returns whether no retry is needed.
    async fn write(&self, name: &Name, object: &ServiceObject, write: ObjectWrite) -> bool {
        let change = &write.change;
        if write.repeats == UNDONE {
            warn!(
                controller = COMPONENT,
                service = &**name,
                %change,
                "Another client keeps undoing a change of the Service; it is written again after growing waits"
            );
        }
        let view = &object.view;
        let api: Api<ServiceObject> = Api::namespaced(self.client.clone(), &view.id.namespace);
        let mut body = change.patch(view, Timestamp::now());
        if !change.remove_finalizers.is_empty() {
            // A Service that wants a load balancer again meanwhile must keep them.
            body["metadata"]["resourceVersion"] = json!(object.meta.resource_version);
        }
        let body = Patch::Strategic(body);
        let result = api.patch_status(&view.id.name, &PatchParams::default(), &body).await;
        let (label, end) = match &result {
            Err(error) if is_not_found(error) => {
                increment(&self.metrics.writes, "result", "missing");
                return true;
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // It changed: it is compared again.
                increment(&self.metrics.writes, "result", "conflict");
                return false;
            }
            Err(error) => {
                let error = report(error);
                self.events.failed(name, "ServiceNotWritten", &error);
                ("failed", Err(error))
            }
            Ok(reply) => {
                info!(
                    controller = COMPONENT,
                    service = &**name,
                    add_finalizers = ?change.add_finalizers,
                    remove_finalizers = ?change.remove_finalizers,
                    ingress = ?change.ingress,
                    annotations = ?change.annotations.keys(),
                    "Updated Service"
                );
                let in_vain = reply.meta.resource_version == object.meta.resource_version;
                (if in_vain { "unchanged" } else { "written" }, Ok(in_vain))
            }
        };
        increment(&self.metrics.writes, "result", label);
        let event = self.state.lock().object_ended(object, write, end, Instant::now());
        if let Some(event) = event {
            self.events.publish(&event);
        }
        result.is_ok()
    }
}
