//! Laws of parts that many Services share, such as a load balancer that is one document.
//!
//! | Law | Says |
//! |---|---|
//! | [`isolates`] | of many new Services, the cloud refuses one: the others are served, with few writes, before and after a restart, and the refused one is served when the cloud accepts it |
//! | [`batches`] | many Services that are created one after the other need few writes of what they share |
//!
//! Unlike the laws for all models, these create many Services, and a model calls them with the numbers that hold for its cloud.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, advance, sleep, sleep_until};

use super::{
    Broken, CloudBehavior, LawEngine, Lawful, MemoryCloud,
    drive::{engine, request, settle},
    service_id,
};
use crate::{
    Error,
    load_balancer::{ClusterSnapshot, LoadBalancers, PartReport, PartState, ServiceView},
};

/// A member that was refused is tried again after this long.
const TRIED_AGAIN: Duration = Duration::from_secs(301);
/// A pass that needs more calls never ends.
const MOST_PASSES: usize = 1000;

fn broken(law: &'static str, how: impl Into<String>) -> Broken {
    Broken { law, how: how.into() }
}

/// How the cloud refuses a Service in [`isolates`].
#[derive(Clone, Debug)]
pub struct ServiceRefusal {
    /// The number of Services.
    pub services: usize,
    /// The index of the one that is refused.
    pub refused: usize,
    /// The cloud's error.
    pub error: Error,
    /// The cloud accepts the change, and its operation fails.
    pub is_late: bool,
    /// The most writes of shared parts, refused ones included.
    pub most_writes: usize,
}

/// Of many new Services, the cloud refuses one ([`Lawful::concerns`]). The others are served, with few writes. So they are after
/// a restart. When the cloud accepts it, it is served, too. Returns the number of writes that the first process needs.
///
/// # Errors
/// If that is not so.
pub async fn isolates<L: Lawful>(
    model: &L,
    behavior: CloudBehavior,
    refusal: &ServiceRefusal,
) -> Result<usize, Broken> {
    const LAW: &str = "isolates";
    let world = Arc::new(model.clusters().with_services(refusal.services));
    let cloud = Arc::new(MemoryCloud::new(model.clone(), model.ground(), behavior));
    let Some(refused) = world.service(&service_id(refusal.refused)) else {
        return Err(broken("generated", "the refused Service is none of them"));
    };
    let (refusing, service, error) = (model.clone(), Arc::clone(refused), refusal.error.clone());
    cloud.refuse(refusal.is_late, move |change| refusing.concerns(change, &service).then(|| error.clone()));
    let mut first = None;
    for process in ["the first process", "after a restart"] {
        let engine = engine(model, &cloud);
        let check = |when: &str, most_writes: usize, settled: Result<_, String>| {
            served_except(&world, refused, &settled.map_err(|how| broken(LAW, how))?)
                .map_err(|how| broken(LAW, format!("{process}, {when}: {how}")))?;
            let writes = cloud.take_shared_writes();
            if writes > most_writes {
                let how = format!("{process}, {when}: {writes} writes, at most {most_writes} are allowed");
                return Err(broken(LAW, how));
            }
            Ok(writes)
        };
        let writes = check("at first", refusal.most_writes, settle(&engine, &world).await)?;
        first.get_or_insert(writes);
        check("in later passes", 0, settle(&engine, &world).await)?;
        advance(TRIED_AGAIN).await;
        check("when it is tried again", 1, settle(&engine, &world).await)?;
    }
    cloud.accept();
    let engine = engine(model, &cloud);
    let settled = settle(&engine, &world).await.map_err(|how| broken(LAW, how))?;
    let open = settled.services.iter().find(|(_, (_, is_finished))| !is_finished);
    match open {
        Some((service, _)) => {
            Err(broken(LAW, format!("{service} is not served although it is accepted now")))
        }
        None => Ok(first.unwrap_or_default()),
    }
}

/// Checks that all Services are served except this one, which has a problem.
fn served_except(
    world: &ClusterSnapshot,
    refused: &ServiceView,
    settled: &super::drive::SettledState,
) -> Result<(), String> {
    for service in &world.services {
        let is_finished = settled.services.get(&service.id).is_some_and(|(_, is_finished)| *is_finished);
        let is_refused = service.id == refused.id;
        if is_finished == is_refused {
            let state = if is_finished { "served" } else { "not served" };
            return Err(format!("{} is {state}", service.id));
        }
    }
    let text = format!("for {}", refused.id);
    if settled.problems.keys().any(|problem| problem.ends_with(&text)) {
        Ok(())
    } else {
        Err(format!("{} has no problem: {:?}", refused.id, settled.problems))
    }
}

/// Creates `count` Services, one after the other with this `interval`, each with a worker of its own. Returns the number of writes
/// of parts that they share, and the time from the first to the end.
///
/// # Errors
/// If a Service is not served.
pub async fn batches<L: Lawful>(
    model: &L,
    behavior: CloudBehavior,
    count: usize,
    interval: Duration,
) -> Result<(usize, Duration), Broken> {
    let world = model.clusters().with_services(count);
    let cloud = Arc::new(MemoryCloud::new(model.clone(), model.ground(), behavior));
    let engine = engine(model, &cloud);
    let began = Instant::now();
    let now = Mutex::new(Arc::new(ClusterSnapshot {
        services: Vec::new(),
        cluster: world.cluster.clone(),
    }));
    let workers = world.services.iter().zip(0_u32..).map(|(service, index)| {
        let (engine, now) = (&engine, &now);
        async move {
            sleep(interval * index).await;
            {
                let mut now = now.lock();
                let mut services = now.services.clone();
                services.push(Arc::clone(service));
                *now = Arc::new(ClusterSnapshot::new(services, now.cluster.clone()));
            }
            serve(engine, now, service).await
        }
    });
    for served in join_all(workers).await {
        served.map_err(|how| broken("batches", how))?;
    }
    Ok((cloud.take_shared_writes(), began.elapsed()))
}

/// Runs the parts of a Service until nothing is left to do for it.
async fn serve<L: Lawful>(
    engine: &LawEngine<L>,
    now: &Mutex<Arc<ClusterSnapshot>>,
    service: &ServiceView,
) -> Result<(), String> {
    let is_of_service = |report: &PartReport| {
        let mut members = report.members.iter();
        members.any(|member| member.service == service.id && member.finished)
    };
    for _ in 0..MOST_PASSES {
        let snapshot = Arc::clone(&now.lock());
        let discovery = engine.discover(&request(&snapshot)).await.map_err(|error| error.report())?;
        let parts = discovery.services.iter().find(|parts| parts.service == service.id);
        for part in parts.into_iter().flat_map(|parts| &parts.joins) {
            let snapshot = Arc::clone(&now.lock());
            let report = engine.run(part, &request(&snapshot)).await;
            if is_of_service(&report) {
                return Ok(());
            }
            match &report.state {
                PartState::Parked { until, .. } => sleep_until(*until).await,
                PartState::Failed(error) => return Err(error.report()),
                PartState::Done | PartState::Blocked(_) => {}
            }
        }
    }
    Err(format!("{} is not served", service.id))
}
