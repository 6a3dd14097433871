//! The event loop: passes changes of Services, nodes and time to the [state](super::state), and runs the discovery.

use std::{sync::Arc, time::Duration};

use ccm_core::{Priority, client::later, controllers};
use futures_util::future::{BoxFuture, OptionFuture};
use rand::Rng;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::{
    COMPONENT, EVENT_LOOP_CHECK, KnownTag, ServiceController, ownership_tag,
    state::{ClusterChange, Name, Output},
};
use crate::{metrics::increment, server::Turns};

/// The least time between two updates of the metrics that count all Services.
const SHOWN: Duration = Duration::from_millis(250);

/// The name of a discovery that fails in the log.
const DISCOVERY: &str = "discovery";

/// The next time of a periodic action, up to a tenth of the period earlier or later. So clusters that were started together
/// do not ask together.
fn next_time(period: Option<Duration>) -> Option<Instant> {
    let jitter = rand::rng().random_range(0.9..=1.1);
    period.map(|period| later(Instant::now(), period.mul_f64(jitter)))
}

impl ServiceController {
    /// Runs until shutdown. `tag`: of the ownership tag, unless it is known.
    pub(super) async fn run_events(self: Arc<Self>, mut tag: Option<KnownTag>) {
        let (mut services, mut nodes) = (self.services.subscribe(), self.nodes.subscribe());
        let mut drift = next_time(self.config.drift_period);
        // At most one at a time. Changes and timers are handled meanwhile, and known parts do not wait for it.
        let mut discovery: OptionFuture<BoxFuture<'_, ()>> = None.into();
        let mut discovers = false;
        let turns = Turns::new(&self.checks, EVENT_LOOP_CHECK);
        let mut shown: Option<Instant> = None;
        loop {
            turns.begin();
            // All queued changes, so that they are one moment.
            while let Ok(change) = nodes.try_recv() {
                self.node_changed(change);
            }
            while let Ok(change) = services.try_recv() {
                self.service_changed(change);
            }
            let now = Instant::now();
            if drift.is_some_and(|due| due <= now) {
                debug!(controller = COMPONENT, "Comparing all load balancers with the cloud");
                self.change(ClusterChange::Drift);
                drift = next_time(self.config.drift_period);
            }
            let due = self.state.lock().take_due(now);
            self.apply(due);
            if !discovers && let Some(task) = self.discover(now) {
                discovery = Some(task).into();
                discovers = true;
            }
            // Each turn of the loop may have changed what they show.
            let show = shown.map(|at| at + SHOWN).filter(|due| *due > now);
            if show.is_none() {
                let queue = self.parts.depth();
                self.state.lock().show(&self.metrics, queue);
                shown = Some(now);
            }
            let work = self.state.lock().due(discovers);
            let due = work.into_iter().chain(drift).chain(show).min();
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return,
                Some(()) = &mut discovery, if discovers => discovers = false,
                () = self.changed.notified() => {}
                Some(change) = nodes.recv() => self.node_changed(change),
                Some(change) = services.recv() => self.service_changed(change),
                Some(Some(known)) = OptionFuture::from(tag.as_mut().map(ownership_tag::known)) => {
                    tag = None;
                    self.change(ClusterChange::OwnershipTag(known));
                }
                Some(()) = OptionFuture::from(due.map(sleep_until)) => {}
                () = turns.due() => {}
            }
        }
    }

    fn node_changed(&self, change: controllers::StoreChange) {
        let name = change.into_key();
        let node = self.nodes.get(&name);
        self.change(ClusterChange::Node(name, node));
    }

    fn service_changed(&self, change: controllers::StoreChange) {
        if matches!(change, controllers::StoreChange::Vanished(_)) {
            self.change(ClusterChange::Vanished);
        }
        let name: Name = change.into_key().into();
        let now = self.service(&name);
        self.change(ClusterChange::Service(name, now.map(|service| service.input())));
    }

    /// A change came in.
    pub(super) fn change(&self, change: ClusterChange) {
        let outputs = self.state.lock().changed(change, Instant::now());
        self.apply(outputs);
    }

    /// Discovers the parts of all Services, if a discovery is due.
    fn discover(&self, now: Instant) -> Option<BoxFuture<'_, ()>> {
        let balancers = self.cloud.load_balancers()?;
        let task = self.state.lock().take_discovery(now)?;
        Some(Box::pin(async move {
            let discovered = balancers.discover(&task.request()).await;
            let result = match &discovered {
                Ok(_) => {
                    self.events.works(DISCOVERY);
                    "ok"
                }
                Err(error) => {
                    let kind = error.kind().as_str();
                    self.events.failed(DISCOVERY, kind, &error.report());
                    "error"
                }
            };
            increment(&self.metrics.discoveries, "result", result);
            let now = Instant::now();
            let outputs = self.state.lock().discovery_ended(&task, discovered, now);
            self.apply(outputs);
        }))
    }

    pub(super) fn apply(&self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Run(part, Priority::User) => self.parts.add_first(part),
                Output::Run(part, _) => self.parts.add(part),
                Output::RunUnlessWaiting(part) => self.parts.add_unless_waiting(part),
                Output::Object(name) => self.objects.add(name),
                Output::CleanUp(name) => self.clean_up(&name),
                Output::Event(event) => self.events.publish(&event),
                Output::ProviderEvent(event) => self.events.publish_for_provider(&event),
                Output::FollowNodes { parts } => {
                    info!(controller = COMPONENT, parts, "Load balancers follow changed nodes");
                }
                Output::NodesFollowed(took) => self.metrics.node_latency.observe(took.as_secs_f64()),
                Output::Orphans(orphans) => {
                    let deletes = self.config.orphans.delete;
                    self.events.publish_orphans(&orphans, deletes);
                }
            }
        }
    }
}
