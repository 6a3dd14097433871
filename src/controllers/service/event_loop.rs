//! The event loop: passes changes of Services, nodes and time to the [state](super::state), and runs the discovery.

use std::{collections::HashSet, sync::Arc, time::Duration};

use ccm_core::{
    Retry,
    client::later,
    controllers::{self, Backoff},
    load_balancer::{PartKey, Request},
};
use futures_util::future::BoxFuture;
use rand::Rng;
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{
    COMPONENT, ServiceController,
    state::{Change, Job, Name, Next, Output},
};

/// Waits between tries of a discovery. Short: everything waits for it, and it is one listing.
const DISCOVERY_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(2),
    longest: Duration::from_secs(30),
};

/// The name of a discovery that fails in the log.
const DISCOVERY: &str = "survey";

/// Nodes that load balancers follow now.
#[derive(Debug)]
pub(super) struct Following {
    began: Instant,
    /// Parts that do not follow them yet.
    behind: HashSet<PartKey>,
}

/// The next time of something periodic: a tenth earlier or later, so that clusters that were started together do not
/// ask together.
fn next_time(period: Option<Duration>) -> Option<Instant> {
    let jitter = rand::rng().random_range(0.9..=1.1);
    period.map(|period| later(Instant::now(), period.mul_f64(jitter)))
}

impl ServiceController {
    /// Runs until `shutdown`.
    pub(super) async fn run_events(
        self: Arc<Self>,
        mut services: UnboundedReceiver<controllers::Change>,
        mut nodes: UnboundedReceiver<controllers::Change>,
        shutdown: CancellationToken,
    ) {
        let mut drift = next_time(self.config.drift_period);
        let mut retry: Option<(Instant, Job)> = None;
        let mut failures = 0;
        // At most one at a time. Changes and time go on meanwhile: what is known already does not wait for it.
        let mut discovery: Option<BoxFuture<'_, Result<(), (Job, Retry)>>> = None;
        loop {
            // Everything that is there, so that it is one moment.
            while let Ok(change) = nodes.try_recv() {
                self.node_changed(change);
            }
            while let Ok(change) = services.try_recv() {
                self.service_changed(change);
            }
            let now = Instant::now();
            if drift.is_some_and(|due| due <= now) {
                debug!(
                    controller = COMPONENT,
                    "Comparing all load balancers with the cloud"
                );
                self.change(Change::Drift);
                drift = next_time(self.config.drift_period);
            }
            if let Some((_, job)) = retry.take_if(|(due, _)| *due <= now) {
                self.state.lock().retry_discovery(job);
            }
            self.follow_nodes(now);
            if retry.is_none() && discovery.is_none() {
                discovery = self.discover(now);
            }
            if failures > 0 {
                let outputs = self.state.lock().requeue_known();
                self.apply(outputs);
            }
            self.metrics.show(&self.state.lock().counts(), self.parts.depth());
            let due = self.state.lock().due(discovery.is_some() || retry.is_some());
            let due = [due, drift, retry.map(|(due, _)| due)];
            let due = due.into_iter().flatten().min();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                result = ended(&mut discovery) => {
                    discovery = None;
                    match result {
                        Ok(()) => failures = 0,
                        Err((job, asked)) => {
                            failures += 1;
                            let wait = asked.wait(DISCOVERY_BACKOFF.delay(failures));
                            retry = Some((later(Instant::now(), wait), job));
                        }
                    }
                }
                () = self.changed.notified() => {}
                Some(change) = nodes.recv() => self.node_changed(change),
                Some(change) = services.recv() => self.service_changed(change),
                () = until(due) => {}
            }
        }
    }

    fn node_changed(&self, change: controllers::Change) {
        use controllers::Change::{Applied, Deleted, Vanished};
        let (Applied(name) | Deleted(name) | Vanished(name)) = change;
        let node = self.nodes.get(&name);
        self.change(Change::Node(name, node));
    }

    fn service_changed(&self, change: controllers::Change) {
        let name: Name = match change {
            controllers::Change::Applied(name) | controllers::Change::Deleted(name) => name.into(),
            controllers::Change::Vanished(name) => {
                self.change(Change::Vanished);
                name.into()
            }
        };
        let Some(balancers) = self.cloud.load_balancers() else {
            return;
        };
        let now = self.service(&name).map(|object| {
            let view = &object.view;
            let (claim, finalizers) = (balancers.claims(view), balancers.finalizers(view));
            (Arc::clone(view), claim, finalizers)
        });
        self.change(Change::Service(name, now));
    }

    /// A change came in.
    pub(super) fn change(&self, change: Change) {
        let outputs = self.state.lock().changed(change, Instant::now());
        self.apply(outputs);
    }

    /// If nodes have changed and it is time: runs the parts that do not follow them.
    fn follow_nodes(&self, now: Instant) {
        let Some(outputs) = self.state.lock().take_due(now) else {
            return;
        };
        let behind: HashSet<_> = outputs
            .iter()
            .filter_map(|output| match output {
                Output::Run(part) | Output::RunUnlessWaiting(part) => Some(part.clone()),
                _ => None,
            })
            .collect();
        info!(
            controller = COMPONENT,
            parts = behind.len(),
            "Load balancers follow changed nodes"
        );
        if !behind.is_empty() {
            *self.following.lock() = Some(Following { began: now, behind });
        }
        self.apply(outputs);
    }

    /// A pass over this part ended.
    pub(super) fn followed(&self, part: &PartKey, as_asked: &PartKey, next: Next) {
        let mut following = self.following.lock();
        if let Some(now) = &mut *following {
            let was_behind = now.behind.remove(as_asked);
            if next != Next::Done && was_behind {
                now.behind.insert(part.clone());
            }
            if now.behind.is_empty() {
                self.metrics.nodes_followed(now.began.elapsed());
                *following = None;
            }
        }
        drop(following);
        // Something may be due later.
        self.changed.notify_one();
    }

    /// If it is due: discovers the parts of all Services. Returns the job and when to try again if that failed.
    fn discover(&self, now: Instant) -> Option<BoxFuture<'_, Result<(), (Job, Retry)>>> {
        let balancers = self.cloud.load_balancers()?;
        let task = self.state.lock().take_discovery(now)?;
        Some(Box::pin(async move {
            let request = Request::new(Arc::clone(&task.snapshot), task.job.ask());
            let discovered = balancers.discover(&request).await;
            let retry = discovered.as_ref().err().map(ccm_core::Error::retry);
            match &discovered {
                Ok(_) => {
                    self.metrics.discovered("ok");
                    self.events.works(DISCOVERY);
                }
                Err(error) => {
                    self.metrics.discovered("error");
                    let kind = error.kind().as_str();
                    self.events.failed(DISCOVERY, kind, &error.report());
                }
            }
            let now = Instant::now();
            let outputs = self.state.lock().discovery_ended(&task, discovered, now);
            self.apply(outputs);
            retry.map_or(Ok(()), |retry| Err((task.job, retry)))
        }))
    }

    pub(super) fn apply(&self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Run(part) => self.parts.add(part),
                Output::RunUnlessWaiting(part) => self.parts.add_unless_waiting(part),
                Output::Object(name) => self.objects.add(name),
                Output::Event(event) => self.events.publish(&event),
                Output::Orphans(orphans) => {
                    let deletes = self.config.orphans.delete;
                    self.events.publish_orphans(&orphans, deletes);
                }
            }
        }
    }
}

/// The result of what is under way; never, if nothing is.
async fn ended<T>(under_way: &mut Option<BoxFuture<'_, T>>) -> T {
    match under_way {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
