//! The writers of Service objects: finalizers, status, annotations.

use std::{sync::Arc, time::Duration};

use ccm_core::controllers::ServiceObject;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    COMPONENT, ServiceController,
    ledger::Ledger,
    object::ObjectChange,
    records::{Name, Written},
    tell::Telling,
};
use crate::controllers::node_object::is_gone;

/// For so long the store may lag behind what was written.
const STORE_LAG: Duration = Duration::from_secs(10);

/// What is to be written to a Service object.
struct Due {
    change: ObjectChange,
    /// People are told when the finalizers are gone: there was a load balancer.
    tell_deleted: bool,
}

/// What is to be done about a Service object.
enum Verdict {
    Nothing,
    /// What was written is not in the store yet.
    Later(Instant),
    Write(Due),
}

impl Ledger {
    /// What the object does not say yet.
    fn object_due(&self, name: &Name, object: &ServiceObject, at: Instant) -> Verdict {
        let Some(record) = self
            .records
            .get(name)
            .filter(|record| record.view.id == object.view.id)
        else {
            return Verdict::Nothing;
        };
        let served = record.served.as_ref();
        // What is known is about the Service as it was served.
        let current = served.is_some_and(|served| served.asks_the_same(&object.view));
        let effects = record.effects.as_ref().filter(|_| current);
        let change = ObjectChange::due(&object.view, record.claim, record.finalizers, effects);
        if change.is_empty() {
            return Verdict::Nothing;
        }
        if let Some(written) = &record.written
            && written.version == object.meta.resource_version
        {
            let due = written.at + STORE_LAG;
            if written.in_vain && written.change == change {
                return Verdict::Nothing;
            }
            if !written.in_vain && at < due {
                return Verdict::Later(due);
            }
        }
        Verdict::Write(Due {
            change,
            tell_deleted: record.is_ours() && (record.announced || !object.view.ingress.is_empty()),
        })
    }
}

impl ServiceController {
    /// Writes until `shutdown`; the patch that is under way then is finished.
    pub(super) async fn work_on_objects(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            let name = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                name = self.objects.next() => name,
            };
            self.sync_object(&name).await;
        }
    }

    async fn sync_object(&self, name: &Name) {
        let Some(object) = self.service(name) else {
            self.teller.works(name);
            return self.objects.done(name);
        };
        let verdict = self.ledger.lock().object_due(name, &object, Instant::now());
        match verdict {
            Verdict::Nothing => {
                self.teller.works(name);
                self.objects.done(name);
            }
            Verdict::Later(due) => self.objects.done_until(name, due),
            Verdict::Write(due) => self.write(name, &object, due).await,
        }
    }

    async fn write(&self, name: &Name, object: &ServiceObject, due: Due) {
        let Due { change, tell_deleted } = due;
        let view = &object.view;
        let api: Api<ServiceObject> = Api::namespaced(self.client.clone(), &view.id.namespace);
        let body = Patch::Strategic(change.patch(view, Timestamp::now()));
        let result = api
            .patch_status(&view.id.name, &PatchParams::default(), &body)
            .await;
        let removed = !view.wants_load_balancer() && !change.remove_finalizers.is_empty();
        match result {
            Ok(reply) => {
                let in_vain = reply.meta.resource_version == object.meta.resource_version;
                self.metrics.wrote(if in_vain { "unchanged" } else { "written" });
                info!(
                    controller = COMPONENT,
                    service = &**name,
                    add_finalizers = ?change.add_finalizers,
                    remove_finalizers = ?change.remove_finalizers,
                    ingress = ?change.ingress,
                    annotations = ?change.annotations.keys(),
                    "Updated Service"
                );
                if removed && tell_deleted {
                    let deleted = Telling::normal(&view.id, "DeletedLoadBalancer", "Deleted load balancer");
                    self.teller.tell(&deleted);
                }
                if let Some(record) = self.ledger.lock().record(&view.id) {
                    record.unwritten = None;
                    record.announced &= !removed;
                    record.written = Some(Written {
                        version: object.meta.resource_version.clone(),
                        change,
                        at: Instant::now(),
                        in_vain,
                    });
                }
                self.teller.works(name);
                self.objects.done(name);
            }
            Err(error) if is_gone(&error) => {
                self.metrics.wrote("gone");
                self.teller.works(name);
                self.objects.done(name);
            }
            Err(error) => {
                self.metrics.wrote("failed");
                self.tell_unwritten(name, object, &change, &error);
                self.objects.done_with_backoff(name);
            }
        }
    }

    fn tell_unwritten(
        &self,
        name: &Name,
        object: &ServiceObject,
        change: &ObjectChange,
        error: &kube::Error,
    ) {
        let id = &object.view.id;
        let text = ccm_core::error::report(error);
        self.teller.failed(name, "ServiceNotWritten", &text);
        let message = format!("Error syncing load balancer: {}: {text}", change.failure());
        let mut ledger = self.ledger.lock();
        let Some(record) = ledger.record(id) else { return };
        if record.unwritten.as_ref() == Some(&message) {
            return;
        }
        record.unwritten = Some(message.clone());
        drop(ledger);
        self.teller
            .tell(&Telling::warning(id, "SyncLoadBalancerFailed", message));
    }
}
