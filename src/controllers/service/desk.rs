//! Where news arrive: changes of Services and nodes, time. Finds out which parts they are for.

use std::{collections::HashSet, sync::Arc, time::Duration};

use ccm_core::{
    Retry,
    client::later,
    controllers::{Backoff, Change},
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
    conclude::Next,
    job::Job,
    records::{Name, Order},
};

/// Waits between tries to find out which parts there are. Short: everything waits for it, and it is one listing.
const SURVEY_BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(2),
    longest: Duration::from_secs(30),
};

/// What a survey that fails is called in the log.
const SURVEY: &str = "survey";

/// Nodes that load balancers follow now.
#[derive(Debug)]
pub(super) struct Following {
    began: Instant,
    /// Parts that do not follow them yet.
    behind: HashSet<PartKey>,
}

/// A time that comes again and again, never at the same distance.
struct Drift {
    period: Option<Duration>,
    next: Option<Instant>,
}

impl Drift {
    fn new(period: Option<Duration>) -> Self {
        let mut drift = Self { period, next: None };
        drift.wind();
        drift
    }

    /// A tenth more or less, so that clusters that were started together do not ask together.
    fn wind(&mut self) {
        self.next = self.period.map(|period| {
            later(
                Instant::now(),
                period.mul_f64(rand::rng().random_range(0.9..=1.1)),
            )
        });
    }
}

impl ServiceController {
    /// Runs until `shutdown`.
    pub(super) async fn desk(
        self: Arc<Self>,
        mut services: UnboundedReceiver<Change>,
        mut nodes: UnboundedReceiver<Change>,
        shutdown: CancellationToken,
    ) {
        let mut drift = Drift::new(self.config.drift_period);
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
            if drift.next.is_some_and(|next| next <= now) {
                debug!(
                    controller = COMPONENT,
                    "Comparing all load balancers with the cloud"
                );
                self.ledger.lock().check_drift(now);
                drift.wind();
            }
            if let Some((_, job)) = retry.take_if(|(due, _)| *due <= now) {
                self.ledger.lock().want_survey(job);
            }
            self.follow_nodes(now);
            if retry.is_none() && discovery.is_none() {
                discovery = self.survey(now);
            }
            if failures > 0 {
                let orders = self.ledger.lock().requeue_known();
                self.carry_out(orders);
            }
            self.show();
            let discovers = discovery.is_some() || retry.is_some();
            let due = {
                let ledger = self.ledger.lock();
                // What only leads to a discovery waits for the one that is due already.
                if discovers {
                    ledger.nodes_due()
                } else {
                    ledger.due()
                }
            };
            let due = [due, drift.next, retry.map(|(due, _)| due)];
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
                            let wait = asked.wait(SURVEY_BACKOFF.delay(failures));
                            retry = Some((later(Instant::now(), wait), job));
                        }
                    }
                }
                () = self.news.notified() => {}
                Some(change) = nodes.recv() => self.node_changed(change),
                Some(change) = services.recv() => self.service_changed(change),
                () = until(due) => {}
            }
        }
    }

    fn node_changed(&self, change: Change) {
        let name = match change {
            Change::Applied(name) | Change::Deleted(name) | Change::Vanished(name) => name,
        };
        let node = self.nodes.get(&name);
        let mut ledger = self.ledger.lock();
        let news = ledger.nodes.apply(&name, node.as_deref(), Instant::now());
        ledger.node_changed(news);
    }

    fn service_changed(&self, change: Change) {
        let name: Name = match change {
            Change::Applied(name) | Change::Deleted(name) => name.into(),
            Change::Vanished(name) => {
                self.ledger.lock().orphans.restart(Instant::now());
                name.into()
            }
        };
        let Some(balancers) = self.cloud.load_balancers() else {
            return;
        };
        let now = self.service(&name).map(|object| {
            let view = &object.view;
            (
                Arc::clone(view),
                balancers.claims(view),
                balancers.finalizers(view),
            )
        });
        let orders = self.ledger.lock().service_changed(&name, now, Instant::now());
        self.carry_out(orders);
    }

    /// If nodes have changed and it is time: runs what does not follow them.
    fn follow_nodes(&self, now: Instant) {
        let Some(orders) = self.ledger.lock().follow_nodes(now) else {
            return;
        };
        let behind: HashSet<_> = orders
            .iter()
            .filter_map(|order| match order {
                Order::Run(part) | Order::RunUnlessWaiting(part) => Some(part.clone()),
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
        self.carry_out(orders);
    }

    /// A pass over this part has ended.
    pub(super) fn follow(&self, part: &PartKey, as_asked: &PartKey, next: Next) {
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
        // It may have found something that is to be done later.
        self.news.notify_one();
    }

    /// If it is wanted: finds out which parts all Services have. Returns what was wanted if that failed, and when to try
    /// again.
    fn survey(&self, now: Instant) -> Option<BoxFuture<'_, Result<(), (Job, Retry)>>> {
        let balancers = self.cloud.load_balancers()?;
        let (job, snapshot) = {
            let mut ledger = self.ledger.lock();
            let job = ledger.survey_wanted(now)?;
            (job, ledger.begin_survey())
        };
        Some(Box::pin(async move {
            let request = Request::new(Arc::clone(&snapshot), job.ask());
            match balancers.discover(&request).await {
                Ok(survey) => {
                    self.metrics.surveyed("ok");
                    self.teller.works(SURVEY);
                    let orders = self.ledger.lock().surveyed(survey, &snapshot, Instant::now());
                    self.carry_out(orders);
                    Ok(())
                }
                Err(error) => {
                    self.metrics.surveyed("error");
                    self.teller.failed(SURVEY, error.kind().as_str(), &error.report());
                    let orders = self.ledger.lock().survey_failed(&error);
                    self.carry_out(orders);
                    Err((job, error.retry()))
                }
            }
        }))
    }

    pub(super) fn carry_out(&self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Run(part) => self.parts.add(part),
                Order::RunUnlessWaiting(part) => self.parts.add_unless_waiting(part),
                Order::Object(name) => self.objects.add(name),
                Order::Tell(telling) => self.teller.tell(&telling),
                Order::ReportOrphans(orphans) => self.report_orphans(&orphans),
            }
        }
    }

    fn show(&self) {
        self.metrics.show(&self.ledger.lock(), self.parts.depth());
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
