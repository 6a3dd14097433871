//! The laws themselves.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Broken, Case, Fault, Lawful, MemoryCloud, Sentences, Weather,
    drive::{Rest, engine, request, settle, settle_or_die},
};
use crate::{
    Error,
    load_balancer::{ClusterSnapshot, LoadBalancers, MemberState, ServiceView},
};

/// Checks all laws on one case.
///
/// # Errors
/// The first law that is broken.
pub fn check<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| broken("runtime", error.to_string()))?;
    runtime.block_on(async {
        converges(model, case).await?;
        polite(model, case).await?;
        quiet(model, case).await?;
        foretold(model, case).await?;
        restartable(model, case).await?;
        reclaimable(model, case).await
    })
}

fn broken(law: &'static str, how: impl Into<String>) -> Broken {
    Broken { law, how: how.into() }
}

/// A call that may not fail has failed.
fn failed(law: &'static str) -> impl Fn(Error) -> Broken {
    move |error| broken(law, error.report())
}

fn worlds<T>(case: &Case<T>) -> Vec<Arc<ClusterSnapshot>> {
    case.worlds.iter().cloned().map(Arc::new).collect()
}

fn cloud<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Arc<MemoryCloud<L>> {
    Arc::new(MemoryCloud::new(model.clone(), case.truth.clone(), case.weather))
}

/// Everything but the last world, undisturbed. What comes back holds the last one.
async fn prepare<L: Lawful>(
    law: &'static str,
    model: &L,
    case: &Case<L::Truth>,
) -> Result<(Arc<MemoryCloud<L>>, Arc<ClusterSnapshot>), Broken> {
    let cloud = cloud(model, case);
    let mut worlds = worlds(case);
    let last = worlds
        .pop()
        .ok_or_else(|| broken("generated", "a case needs a world"))?;
    let engine = engine(model, &cloud);
    for world in &worlds {
        settle(&engine, world).await.map_err(|how| broken(law, how))?;
    }
    cloud.take_done();
    Ok((cloud, last))
}

/// From any state the engine comes to rest, and then every difference is blocked or held back.
///
/// # Errors
/// If that is not so.
pub async fn converges<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "converges";
    let cloud = cloud(model, case);
    let engine = engine(model, &cloud);
    for world in worlds(case) {
        settle(&engine, &world).await.map_err(|how| broken(LAW, how))?;
        let survey = engine.discover(&request(&world)).await.map_err(failed(LAW))?;
        for part in survey.parts {
            let seen = engine.inspect(&part, &request(&world)).await;
            let Some(seen) = seen.map_err(failed(LAW))? else {
                continue;
            };
            if let Some(step) = seen.plan.steps.first() {
                return Err(broken(LAW, format!("{part}: at rest, but `{step}` is due")));
            }
            let fields: Vec<_> = seen.plan.blocked.iter().map(|blocked| &blocked.field).collect();
            for field in model.differences(&seen.desired, &seen.observed) {
                if !fields.contains(&&field) {
                    let how = format!(
                        "{part}: the {field} differs, and neither is a step due nor is it blocked: {:?} is not {:?}",
                        seen.observed, seen.desired
                    );
                    return Err(broken(LAW, how));
                }
            }
        }
    }
    cloud.destroyed().map_or(Ok(()), |how| Err(broken(LAW, how)))
}

/// What has come to rest stays at rest, also for a process that has just started.
///
/// # Errors
/// If that is not so.
pub async fn quiet<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "quiet";
    let (cloud, world) = prepare(LAW, model, case).await?;
    let first = engine(model, &cloud);
    let before = settle(&first, &world).await.map_err(|how| broken(LAW, how))?;
    let shape = model.shape(&cloud.truth());
    cloud.take_done();
    still(LAW, &first, &cloud, &world, &before).await?;
    // A new process, with nothing in its memory.
    let second = engine(model, &cloud);
    let plans = second.plan(&request(&world), None).await.map_err(failed(LAW))?;
    if let Some(step) = plans.iter().flat_map(|plan| &plan.steps).next() {
        return Err(broken(
            LAW,
            format!("at rest, but the plan has `{}`", step.sentence),
        ));
    }
    still(LAW, &second, &cloud, &world, &before).await?;
    let now = model.shape(&cloud.truth());
    if now != shape {
        return Err(broken(LAW, format!("it was {shape:?} and is {now:?}")));
    }
    Ok(())
}

async fn still<L: Lawful>(
    law: &'static str,
    engine: &super::LawEngine<L>,
    cloud: &MemoryCloud<L>,
    world: &Arc<ClusterSnapshot>,
    before: &Rest,
) -> Result<(), Broken> {
    let again = settle(engine, world).await.map_err(|how| broken(law, how))?;
    if let Some(step) = cloud.take_done().first() {
        return Err(broken(law, format!("at rest, but `{step}` was sent")));
    }
    for (service, said) in &again.services {
        // A Service that has left everything leaves nothing behind that could say so again.
        match before.services.get(service) {
            Some(known)
                if known != said
                    && known.1
                    && said.1
                    && !known.0.annotations.values().all(Option::is_none) =>
            {
                return Err(broken(
                    law,
                    format!("{service}: {known:?} was said, and now {said:?}"),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Every write leaves what is not ours as it was.
///
/// # Errors
/// If that is not so.
pub async fn polite<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "polite";
    let cloud = cloud(model, case);
    let engine = engine(model, &cloud);
    for world in worlds(case) {
        settle(&engine, &world).await.map_err(|how| broken(LAW, how))?;
    }
    cloud.rude().map_or(Ok(()), |how| Err(broken(LAW, how)))
}

/// An imagined plan names the steps that are then carried out.
///
/// # Errors
/// If that is not so.
pub async fn foretold<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "foretold";
    // What has to wait lets others go first; then what is held back meanwhile may need one more step.
    let calm = Case {
        weather: Weather::default(),
        ..case.clone()
    };
    let (cloud, world) = prepare(LAW, model, &calm).await?;
    let engine = engine(model, &cloud);
    let plans = engine.plan(&request(&world), None).await.map_err(failed(LAW))?;
    if !cloud.take_done().is_empty() {
        return Err(broken(LAW, "making a plan wrote to the cloud"));
    }
    let said = count(
        plans
            .iter()
            .flat_map(|plan| &plan.steps)
            .map(|step| step.sentence.clone()),
    );
    for plan in &plans {
        for member in &plan.members {
            if matches!(member.state, MemberState::Pending) && plan.problem.is_none() {
                let how = format!("the plan leaves {} in the air", member.service);
                return Err(broken(LAW, how));
            }
        }
    }
    let rest = settle(&engine, &world).await.map_err(|how| broken(LAW, how))?;
    let mut done = count(cloud.take_done().into_iter());
    // A plan deletes no orphan.
    for sentence in rest.deleted_orphans {
        if let Some(times) = done.get_mut(&sentence)
            && *times > said.get(&sentence).copied().unwrap_or_default()
        {
            *times -= 1;
        }
    }
    done.retain(|_, times| *times > 0);
    if said != done {
        return Err(broken(
            LAW,
            format!("the plan said {said:?} and {done:?} was done"),
        ));
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

/// Whatever goes wrong with whichever write: the end is the same as if nothing had.
///
/// # Errors
/// If that is not so.
pub async fn restartable<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "restartable";
    let (cloud, world) = prepare(LAW, model, case).await?;
    // The same start every time.
    let case = Case {
        truth: cloud.truth(),
        worlds: vec![(*world).clone()],
        weather: case.weather,
    };
    let first = engine(model, &cloud);
    settle(&first, &world).await.map_err(|how| broken(LAW, how))?;
    let shape = model.shape(&cloud.truth());
    let writes = cloud.take_done().len();
    for at in 0..writes {
        for fault in Fault::for_write(at) {
            let cloud = self::cloud(model, &case);
            cloud.fail(at, fault);
            let doomed = engine(model, &cloud);
            let context = |how: String| broken(LAW, format!("write {at}, {fault:?}: {how}"));
            if settle_or_die(&doomed, &cloud, &world).await.map_err(context)? {
                drop(doomed);
                cloud.revive();
                settle(&engine(model, &cloud), &world).await.map_err(context)?;
            }
            let now = model.shape(&cloud.truth());
            if now != shape {
                let done = cloud.take_done();
                return Err(context(format!(
                    "it ends as {now:?} instead of {shape:?} after {done:?}"
                )));
            }
            if let Some(how) = cloud.rude() {
                return Err(broken("polite", format!("write {at}, {fault:?}: {how}")));
            }
        }
    }
    Ok(())
}

/// Whatever goes wrong while parts are being built: once the Services are deleted, nothing is left that is not left when
/// nothing went wrong.
///
/// # Errors
/// If that is not so.
pub async fn reclaimable<L: Lawful>(model: &L, case: &Case<L::Truth>) -> Result<(), Broken> {
    const LAW: &str = "reclaimable";
    // Without polls nothing is built while other parts run.
    let weather = Weather {
        polls: case.weather.polls.max(2),
        ..Weather::default()
    };
    let case = Case {
        weather,
        ..case.clone()
    };
    let (cloud, world) = prepare(LAW, model, &case).await?;
    let deleted = Arc::new(deleted(&world));
    // This law is about what is created: what others or former Services left is not in the way.
    let cleaner = engine(model, &cloud);
    settle(&cleaner, &deleted).await.map_err(|how| broken(LAW, how))?;
    cloud.take_done();
    let case = Case {
        truth: cloud.truth(),
        worlds: vec![(*world).clone()],
        weather,
    };
    let first = engine(model, &cloud);
    settle(&first, &world).await.map_err(|how| broken(LAW, how))?;
    let writes = cloud.take_done().len();
    settle(&first, &deleted).await.map_err(|how| broken(LAW, how))?;
    let shape = model.shape(&cloud.truth());
    for at in 0..writes {
        for fault in Fault::WHILE_BUILDING {
            let cloud = self::cloud(model, &case);
            cloud.fail(at, fault);
            let doomed = engine(model, &cloud);
            let context = |how: String| broken(LAW, format!("write {at}, {fault:?}: {how}"));
            let killed = settle_or_die(&doomed, &cloud, &world).await.map_err(context)?;
            cloud.revive();
            let next = if killed { engine(model, &cloud) } else { doomed };
            settle(&next, &deleted).await.map_err(context)?;
            cloud.edit(|truth| model.repair(truth));
            settle(&next, &deleted).await.map_err(context)?;
            // What people asked to keep may not have been created yet.
            let mut leaked = model.shape(&cloud.truth());
            leaked.retain(|line| !shape.contains(line));
            if !leaked.is_empty() {
                let done = cloud.take_done();
                return Err(context(format!(
                    "{leaked:?} is left beside {shape:?} after {done:?}"
                )));
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
