//! The checks of the laws.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::runtime::Runtime;

use super::{
    Broken, Case, CloudBehavior, Fault, Lawful, MemoryCloud, SERVICES, Sentences, Served, different,
    drive::{SettledState, engine, request, settle, settle_or_die},
    service_id, shape,
};
use crate::{
    Error,
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, LoadBalancers, MemberState, PartState, ServiceId, ServiceView,
    },
};

/// Checks all laws on one case.
///
/// # Errors
/// The first law that is broken.
pub fn check<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    runtime()?.block_on(async {
        let case = &built(model, case).await?;
        converges(model, case).await?;
        polite(model, case).await?;
        quiet(model, case).await?;
        predictable(model, case).await?;
        restartable(model, case).await?;
        reclaimable(model, case).await
    })
}

fn runtime() -> Result<Runtime, Broken> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    runtime.map_err(|error| broken("runtime", error.to_string()))
}

fn broken(law: &'static str, how: impl Into<String>) -> Broken {
    Broken { law, how: how.into() }
}

fn shape_of<L: Lawful>(model: &L, cloud: &MemoryCloud<L>) -> Vec<String> {
    shape(model, &cloud.truth())
}

/// Reports a call that must not fail as a broken law.
fn failed(law: &'static str) -> impl Fn(Error) -> Broken {
    move |error| broken(law, error.report())
}

fn worlds<T>(case: &Case<T>) -> Vec<Arc<ClusterSnapshot>> {
    case.worlds.iter().cloned().map(Arc::new).collect()
}

/// The contents of the cloud when the laws begin.
async fn start<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<L::Truth, Broken> {
    let mut truth = case.ground.clone();
    for (world, killed_after) in &case.built {
        let cloud = Arc::new(MemoryCloud::new(model.clone(), truth, CloudBehavior::default()));
        cloud.name_ids();
        if let Some(writes) = killed_after {
            cloud.fail(*writes, Fault::KilledAfterCommit);
        }
        let builder = engine(model, &cloud);
        let settled = settle_or_die(&builder, &cloud, &Arc::new(world.clone())).await;
        settled.map_err(|how| broken("converges", how))?;
        truth = cloud.truth();
    }
    let edits = model.edits();
    for (name, number) in &case.edits {
        for edit in edits.iter().filter(|edit| edit.name == *name) {
            edit.apply(&mut truth, *number);
        }
    }
    Ok(truth)
}

/// The case with a cloud after all builds and edits.
///
/// # Errors
/// If the cluster that builds never settles.
pub async fn built<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<Case<L::Truth>, Broken> {
    let truth = start(model, case).await?;
    Ok(Case {
        behavior: case.behavior,
        ..Case::of(truth, case.worlds.clone())
    })
}

async fn cloud<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<Arc<MemoryCloud<L>>, Broken> {
    let truth = start(model, case).await?;
    Ok(Arc::new(MemoryCloud::new(model.clone(), truth, case.behavior)))
}

/// Settles all snapshots of the cluster except the last one, without faults. Returns the cloud and the last one.
async fn prepare<L: Lawful>(
    law: &'static str,
    model: &L,
    case: &Case<L::Truth>,
) -> Result<(Arc<MemoryCloud<L>>, Arc<ClusterSnapshot>), Broken> {
    let cloud = cloud(model, case).await?;
    let mut worlds = worlds(case);
    let last = worlds.pop().ok_or_else(|| broken("generated", "a case needs a snapshot"))?;
    let engine = engine(model, &cloud);
    for world in &worlds {
        settle(&engine, world).await.map_err(|how| broken(law, how))?;
    }
    cloud.take_done();
    Ok((cloud, last))
}

/// From any state the engine reaches a state without steps. Then a Service without blocked differences or errors has the same
/// objects as alone in a new cloud, and one that has left has none.
///
/// # Errors
/// If that is not so.
pub async fn converges<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "converges";
    let cloud = cloud(model, case).await?;
    let engine = engine(model, &cloud);
    let mut blocked = BTreeSet::new();
    for world in worlds(case) {
        let settled = settle(&engine, &world).await.map_err(|how| broken(LAW, how))?;
        blocked.extend(settled.blocked.iter().cloned());
        for service in &world.services {
            let has_left = !service.wants_load_balancer();
            // One that has left all parts is in none of them any more.
            let state = settled.services.get(&service.id);
            let is_finished = state.map_or(has_left, |(_, finished)| *finished);
            let is_kept = if has_left {
                // Without the finalizer it was never served, as far as a new process knows.
                let is_served = service.has_finalizer() && model.claims(service) == Claim::Ours;
                !is_served || blocked.contains(&service.id)
            } else {
                settled.incomplete.contains(&service.id)
            };
            if !is_finished || is_kept {
                continue;
            }
            let have = Served::of(model, &cloud.truth(), &service.id, &world.cluster.name);
            let want = alone(model, service, &world.cluster).await?;
            if let Some(want) = want.filter(|want| !is_served(&have, want)) {
                let how = format!(
                    "{} has {have:?} without steps or blocked differences; alone it has {want:?}",
                    service.id
                );
                return Err(broken(LAW, how));
            }
        }
    }
    cloud.destroyed().map_or(Ok(()), |how| Err(broken(LAW, how)))?;
    cloud.too_early().map_or(Ok(()), |how| Err(broken("ordered", how)))
}

fn is_served(have: &Served, want: &Served) -> bool {
    if *want == Served::default() {
        return have == want;
    }
    have.exact == want.exact && have.at_least.is_superset(&want.at_least)
}

/// The objects of a Service that is alone in a new cloud. `None` if they are not comparable: its spec is not completely applied,
/// or the cluster has no nodes, so that members are kept.
async fn alone<L: Lawful>(
    model: &L,
    service: &Arc<ServiceView>,
    cluster: &ClusterView,
) -> Result<Option<Served>, Broken> {
    if !service.wants_load_balancer() {
        return Ok(Some(Served::default()));
    }
    if cluster.nodes.keeps_members() {
        return Ok(None);
    }
    let world = ClusterSnapshot {
        services: vec![Arc::clone(service)],
        cluster: cluster.clone(),
    };
    let (settled, truth) = build(model, &world).await?;
    let is_finished = settled.services.get(&service.id).is_some_and(|(_, finished)| *finished);
    let is_served = is_finished && !settled.incomplete.contains(&service.id);
    Ok(is_served.then(|| Served::of(model, &truth, &service.id, &cluster.name)))
}

/// Reconciles a snapshot of the cluster in a new cloud.
async fn build<L: Lawful>(model: &L, world: &ClusterSnapshot) -> Result<(SettledState, L::Truth), Broken> {
    let cloud = Arc::new(MemoryCloud::new(model.clone(), model.ground(), CloudBehavior::default()));
    let engine = engine(model, &cloud);
    let settled = settle(&engine, &Arc::new(world.clone())).await;
    let settled = settled.map_err(|how| broken("converges", how))?;
    Ok((settled, cloud.truth()))
}

/// Every visible setting changes the objects of a Service, and shows its text.
///
/// # Errors
/// If one does not, or if a Service without settings has no objects.
pub fn effective<L: Lawful>(model: &L) -> Result<(), Broken> {
    const LAW: &str = "effective";
    let (plain, with_settings) = model.clusters().with_each_setting();
    let served = |world: &ClusterSnapshot| {
        let (settled, truth) = runtime()?.block_on(build(model, world))?;
        let service = world.services.first().map(|service| &service.id);
        let service = service.ok_or_else(|| broken(LAW, "a cluster needs a Service"))?;
        Ok((
            settled.incomplete.contains(service),
            Served::of(model, &truth, service, &world.cluster.name),
        ))
    };
    let (is_incomplete, usual) = served(&plain)?;
    if is_incomplete || usual.exact.is_empty() {
        return Err(broken(LAW, format!("a Service without settings has {usual:?}")));
    }
    for (setting, shown, world) in with_settings {
        let (is_incomplete, with) = served(&world)?;
        let is_same = !is_incomplete && with == usual;
        let mut lines = with.exact.iter().chain(&with.at_least);
        let is_shown = shown.is_empty() || lines.any(|line| line.contains(shown));
        if is_same || !is_shown {
            let how = format!("a Service with {setting} has {with:?}, and without it {usual:?}");
            return Err(broken(LAW, how));
        }
    }
    Ok(())
}

/// A settled state is stable, also for a process that has just started.
///
/// # Errors
/// If that is not so.
pub async fn quiet<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "quiet";
    let (cloud, world) = prepare(LAW, model, case).await?;
    let first = engine(model, &cloud);
    let before = settle(&first, &world).await.map_err(|how| broken(LAW, how))?;
    let shape = shape_of(model, &cloud);
    cloud.take_done();
    still(LAW, &first, &cloud, &world, &before).await?;
    // A new process, without state.
    let second = engine(model, &cloud);
    let plans = second.plan(&request(&world), None).await.map_err(failed(LAW))?;
    if let Some(step) = plans.iter().flat_map(|plan| &plan.steps).next() {
        return Err(broken(LAW, format!("settled, but the plan has `{}`", step.description.sentence)));
    }
    still(LAW, &second, &cloud, &world, &before).await?;
    let now = shape_of(model, &cloud);
    if now != shape {
        return Err(broken(
            LAW,
            format!("the cloud changed: before and after {:?}", different(&shape, &now)),
        ));
    }
    Ok(())
}

async fn still<L: Lawful>(
    law: &'static str,
    engine: &super::LawEngine<L>,
    cloud: &MemoryCloud<L>,
    world: &Arc<ClusterSnapshot>,
    before: &SettledState,
) -> Result<(), Broken> {
    let again = settle(engine, world).await.map_err(|how| broken(law, how))?;
    if let Some(step) = cloud.take_done().first() {
        return Err(broken(law, format!("settled, but `{step}` was sent")));
    }
    for (service, now) in &again.services {
        // A Service that has left all parts has no objects whose effects could be reported again.
        match before.services.get(service) {
            Some(known)
                if known != now && known.1 && now.1 && !known.0.annotations.values().all(Option::is_none) =>
            {
                return Err(broken(law, format!("{service}: the effects were {known:?}, and are {now:?}")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// No write changes foreign objects.
///
/// # Errors
/// If that is not so.
pub async fn polite<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "polite";
    let cloud = cloud(model, case).await?;
    let engine = engine(model, &cloud);
    for world in worlds(case) {
        settle(&engine, &world).await.map_err(|how| broken(LAW, how))?;
    }
    cloud.foreign_change().map_or(Ok(()), |how| Err(broken(LAW, how)))
}

/// A dry run plans the steps that are then carried out.
///
/// # Errors
/// If that is not so.
pub async fn predictable<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "predictable";
    // A part that waits lets others run first, and then a frozen member may need another step.
    let calm = Case {
        behavior: CloudBehavior::default(),
        ..case.clone()
    };
    let (cloud, world) = prepare(LAW, model, &calm).await?;
    let engine = engine(model, &cloud);
    let plans = engine.plan(&request(&world), None).await.map_err(failed(LAW))?;
    if !cloud.take_done().is_empty() {
        return Err(broken(LAW, "the plan wrote to the cloud"));
    }
    let planned =
        count(plans.iter().flat_map(|plan| &plan.steps).map(|step| step.description.sentence.clone()));
    for plan in &plans {
        for member in &plan.members {
            if matches!((&member.state, &plan.state), (MemberState::Pending, PartState::Done)) {
                let how = format!("the plan leaves {} pending", member.service);
                return Err(broken(LAW, how));
            }
        }
    }
    let settled = settle(&engine, &world).await.map_err(|how| broken(LAW, how))?;
    let mut done = count(cloud.take_done().into_iter());
    // A plan deletes no orphan.
    for sentence in settled.deleted_orphans {
        if let Some(times) = done.get_mut(&sentence)
            && *times > planned.get(&sentence).copied().unwrap_or_default()
        {
            *times -= 1;
        }
    }
    done.retain(|_, times| *times > 0);
    if planned != done {
        return Err(broken(LAW, format!("the plan has {planned:?}, but the run did {done:?}")));
    }
    Ok(())
}

fn count(sentences: impl Iterator<Item = String>) -> Sentences {
    let mut counted = BTreeMap::new();
    for sentence in sentences {
        *counted.entry(sentence).or_default() += 1;
    }
    counted
}

/// After a fault in any write, the result is the same as without it.
///
/// # Errors
/// If that is not so.
pub async fn restartable<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "restartable";
    let (cloud, world) = prepare(LAW, model, case).await?;
    // The same start every time.
    let case = Case {
        behavior: case.behavior,
        ..Case::of(cloud.truth(), vec![(*world).clone()])
    };
    let first = engine(model, &cloud);
    settle(&first, &world).await.map_err(|how| broken(LAW, how))?;
    let shape = shape_of(model, &cloud);
    let writes = cloud.take_done().len();
    for at in 0..writes {
        for fault in Fault::for_write(at) {
            let cloud = self::cloud(model, &case).await?;
            cloud.fail(at, fault);
            let interrupted = engine(model, &cloud);
            let context = |how: String| broken(LAW, format!("write {at}, {fault:?}: {how}"));
            if settle_or_die(&interrupted, &cloud, &world).await.map_err(context)? {
                drop(interrupted);
                cloud.revive();
                settle(&engine(model, &cloud), &world).await.map_err(context)?;
            }
            let now = shape_of(model, &cloud);
            if now != shape {
                let done = cloud.take_done();
                return Err(context(format!(
                    "without the fault and with it: {:?} after {done:?}",
                    different(&shape, &now)
                )));
            }
            if let Some(how) = cloud.foreign_change() {
                return Err(broken("polite", format!("write {at}, {fault:?}: {how}")));
            }
            if let Some(how) = cloud.too_early() {
                return Err(broken("ordered", format!("write {at}, {fault:?}: {how}")));
            }
        }
    }
    Ok(())
}

/// After a fault while parts are being built and the deletion of the Services, no objects are left that are not left without
/// the fault.
///
/// # Errors
/// If that is not so.
pub async fn reclaimable<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "reclaimable";
    // Without polls, no part is built while other parts run.
    let behavior = CloudBehavior {
        polls: case.behavior.polls.max(2),
        ..CloudBehavior::default()
    };
    let case = Case {
        behavior,
        ..case.clone()
    };
    let (cloud, world) = prepare(LAW, model, &case).await?;
    // This law is about created objects. So every Service that the cluster ever had is deleted before: an orphan that
    // exists already may only be reported, and then it depends on the kill whether it has got the cluster's new name
    // and may be deleted.
    let mut former = ClusterSnapshot::clone(&world);
    let is_missing = |id: &ServiceId| !world.services.iter().any(|service| service.id == *id);
    let missing = (0..SERVICES).map(service_id).filter(is_missing);
    former.services.extend(missing.map(|id| {
        Arc::new(ServiceView {
            id,
            finalizers: vec![ServiceView::FINALIZER.into()],
            ..ServiceView::default()
        })
    }));
    let cleaner = engine(model, &cloud);
    let none = Arc::new(self::deleted(&former));
    settle(&cleaner, &none).await.map_err(|how| broken(LAW, how))?;
    let deleted = Arc::new(deleted(&world));
    cloud.take_done();
    let case = Case {
        behavior,
        ..Case::of(cloud.truth(), vec![(*world).clone()])
    };
    let first = engine(model, &cloud);
    settle(&first, &world).await.map_err(|how| broken(LAW, how))?;
    let writes = cloud.take_done().len();
    settle(&first, &deleted).await.map_err(|how| broken(LAW, how))?;
    let shape = shape_of(model, &cloud);
    for at in 0..writes {
        for fault in Fault::WHILE_BUILDING {
            let cloud = self::cloud(model, &case).await?;
            cloud.fail(at, fault);
            let interrupted = engine(model, &cloud);
            let context = |how: String| broken(LAW, format!("write {at}, {fault:?}: {how}"));
            let killed = settle_or_die(&interrupted, &cloud, &world).await.map_err(context)?;
            cloud.revive();
            let next = if killed {
                engine(model, &cloud)
            } else {
                interrupted
            };
            settle(&next, &deleted).await.map_err(context)?;
            cloud.edit(|truth| model.repair(truth));
            settle(&next, &deleted).await.map_err(context)?;
            // Objects that users asked to keep may not have been created yet.
            let mut leaked = shape_of(model, &cloud);
            for line in &shape {
                if let Some(at) = leaked.iter().position(|leaked| leaked == line) {
                    leaked.remove(at);
                }
            }
            if !leaked.is_empty() {
                let done = cloud.take_done();
                return Err(context(format!("{leaked:?} is left after {done:?}")));
            }
        }
    }
    Ok(())
}

/// The cluster with every Service being deleted.
fn deleted(world: &ClusterSnapshot) -> ClusterSnapshot {
    let services = world.services.iter().map(|service| {
        let mut service = ServiceView::clone(service);
        service.deleting = true;
        Arc::new(service)
    });
    ClusterSnapshot {
        services: services.collect(),
        cluster: world.cluster.clone(),
    }
}
