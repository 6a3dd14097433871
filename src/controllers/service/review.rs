//! What this controller would do, by the same decisions: the plan engine's passes with every write only imagined, and
//! what the Service objects would say afterwards.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{anyhow, bail};
use ccm_core::{
    Error, ErrorKind,
    controllers::{NodeObject, ServiceObject},
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, Discovery, Effects, Ingress, LoadBalancers, MemberState,
        OwnershipTag, PartPlan, PlanProblem, ProviderFinalizers, ReadOptions, Request, ServiceId,
        ServiceParts, ServiceView, StepDescription,
    },
};
use tokio::time::Instant;

use super::{nodes::NodeBoard, object::ObjectChange, orphans};
use crate::review::{Blocked, Change, EffectOf, Kind, Review, Scope, Shared, Subject};

/// What is looked at.
pub(crate) struct Reviewed<'a> {
    pub(crate) services: &'a [Arc<ServiceObject>],
    pub(crate) nodes: &'a [Arc<NodeObject>],
    pub(crate) cluster_name: &'a str,
    pub(crate) marks: &'a OwnershipTag,
    /// `--delete-orphaned-load-balancers`.
    pub(crate) delete_orphans: bool,
}

/// Adds what would be done for Services: for all of them, or for one.
///
/// # Errors
/// If there is no such Service.
pub(crate) async fn review(
    what: &Reviewed<'_>,
    balancers: &dyn LoadBalancers,
    scope: &Scope,
    ask: ReadOptions,
    review: &mut Review,
) -> anyhow::Result<()> {
    let only = match scope {
        Scope::Everything => None,
        Scope::Service { namespace, name } => Some(find(what, namespace, name)?),
    };
    let shown = |view: &ServiceView| only.as_ref().is_none_or(|only| only == &view.id);
    let request = Request::new(Arc::new(snapshot(what)), ask);
    let views = || request.snapshot.services.iter().filter(|view| shown(view));
    for view in views() {
        let subject = review.services.entry(view.id.to_string()).or_default();
        if only.is_some() && balancers.claims(view) != Claim::Ours {
            let class = view.class.as_deref().unwrap_or_default();
            subject.warn(format!(
                "left alone: its loadBalancerClass {class:?} is another controller's"
            ));
        }
    }
    let planned = async {
        let survey = balancers.discover(&request).await?;
        let plans = balancers.plan(&request, only.as_ref()).await?;
        Ok::<_, Error>((survey, plans))
    };
    let (survey, plans) = match planned.await {
        Ok(planned) => planned,
        Err(error) => {
            review.problem("load balancers", error.report());
            return Ok(());
        }
    };
    for plan in &plans {
        add_part(plan, &survey, review);
    }
    tell_kept(&plans, review);
    for (view, parts) in request.snapshot.services.iter().zip(&survey.services) {
        if shown(view) {
            let finalizers = balancers.finalizers(view);
            add_object(view, finalizers, parts, &plans, review);
        }
    }
    if only.is_none() {
        for orphan in &survey.orphans {
            let shared = review.shared.entry(orphan.what.clone()).or_default();
            let consequence = orphans::consequence(orphan, what.delete_orphans);
            shared
                .subject
                .warn(format!("its Service does not exist; {consequence}"));
        }
    }
    Ok(())
}

fn find(what: &Reviewed<'_>, namespace: &str, name: &str) -> anyhow::Result<ServiceId> {
    let id = |object: &Arc<ServiceObject>| object.view.id.clone();
    let named = |object: &&Arc<ServiceObject>| {
        let id = &object.view.id;
        &*id.namespace == namespace && &*id.name == name
    };
    if let Some(object) = what.services.iter().find(named) {
        if object.is_concerned() {
            return Ok(id(object));
        }
        bail!("--service: {namespace}/{name} is not of type LoadBalancer and never had a load balancer");
    }
    // In another namespace, perhaps.
    let others: Vec<_> = what
        .services
        .iter()
        .filter(|object| &*object.view.id.name == name)
        .map(|object| object.view.id.to_string())
        .collect();
    let hint = match others.as_slice() {
        [] => String::new(),
        others => format!("; there is {}", others.join(", ")),
    };
    Err(anyhow!("--service: there is no Service {namespace}/{name}{hint}"))
}

/// All Services that have to do with load balancers, those that still have to get our finalizer among them: it is the
/// first thing they would get.
fn snapshot(what: &Reviewed<'_>) -> ClusterSnapshot {
    let now = Instant::now();
    let mut board = NodeBoard::default();
    for node in what.nodes {
        board.apply(&node.view.name, Some(node), now);
    }
    let mut services: Vec<_> = what
        .services
        .iter()
        .filter(|object| object.is_concerned())
        .map(|object| Arc::clone(&object.view))
        .collect();
    services.sort_by(|a, b| a.id.cmp(&b.id));
    ClusterSnapshot {
        services,
        cluster: ClusterView {
            name: what.cluster_name.into(),
            ownership_tag: what.marks.clone(),
            nodes: board.set(),
        },
    }
}

fn add_part(plan: &PartPlan, survey: &Discovery, review: &mut Review) {
    let Some(part) = &plan.part else { return };
    let mut whole = Subject::default();
    for step in &plan.steps {
        let change = change(step, part.as_str());
        match &step.service {
            Some(id) => service(review, id).changes.push(change),
            None => whole.changes.push(change),
        }
    }
    for blocked in &plan.blocked {
        let text = Blocked {
            what: blocked.to_string(),
            field: Some(blocked.field.clone()),
            have: Some(blocked.have.clone()),
            want: Some(blocked.want.clone()),
        };
        match &blocked.service {
            Some(id) => service(review, id).block(text),
            None => whole.block(text),
        }
    }
    for note in plan.events.iter().filter(|note| note.warning) {
        service(review, &note.service).warn(note.message.clone());
    }
    for member in &plan.members {
        match &member.state {
            MemberState::Refused(error) if is_ignorance(error.kind()) => {
                review.problem(member.service.to_string(), error.report());
            }
            MemberState::Refused(error) => {
                let text = format!("{}; it keeps what it has", error.report());
                service(review, &member.service).block(Blocked::because(text));
            }
            _ => {}
        }
    }
    match &plan.problem {
        None => {}
        Some(PlanProblem::Failed(error)) => review.problem(part.as_str(), error),
        Some(PlanProblem::Blocked(why)) => whole.block(Blocked::because(why)),
    }
    if whole.is_empty() {
        return;
    }
    let sharers = survey
        .services
        .iter()
        .filter(|parts| parts.joins.contains(part) || parts.leaves.contains(part));
    let sharers: Vec<_> = sharers.map(|parts| &parts.service).collect();
    if let [alone] = sharers.as_slice() {
        let subject = service(review, alone);
        subject.changes.extend(whole.changes);
        for blocked in whole.blocked {
            subject.block(blocked);
        }
        return;
    }
    let shared = Shared {
        services: sharers.iter().map(ToString::to_string).collect(),
        subject: whole,
    };
    review.shared.insert(part.to_string(), shared);
}

/// Services that are not served as they ask, though nothing else says why.
fn tell_kept(plans: &[PartPlan], review: &mut Review) {
    for member in plans.iter().flat_map(|plan| &plan.members) {
        let MemberState::Frozen(why) = &member.state else {
            continue;
        };
        let name = member.service.to_string();
        let unknown = review.problems.iter().any(|problem| problem.about == name);
        let subject = service(review, &member.service);
        if subject.blocked.is_empty() && subject.warnings.is_empty() && !unknown {
            subject.block(Blocked::because(format!("it keeps what it has: {why}")));
        }
    }
}

fn service<'a>(review: &'a mut Review, id: &ServiceId) -> &'a mut Subject {
    review.services.entry(id.to_string()).or_default()
}

fn change(step: &StepDescription, part: &str) -> Change {
    Change {
        effect: step.effect.into(),
        kind: Kind::Cloud,
        what: step.sentence.clone(),
        why: step.reason.clone(),
        part: Some(part.to_owned()),
    }
}

/// It is not that the answer is no: there was none.
fn is_ignorance(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited | ErrorKind::Unauthenticated
    )
}

/// What the Service object would say.
fn add_object(
    view: &ServiceView,
    finalizers: ProviderFinalizers,
    parts: &ServiceParts,
    plans: &[PartPlan],
    review: &mut Review,
) {
    let has_parts = !parts.joins.is_empty() || !parts.leaves.is_empty();
    let wants = view.wants_load_balancer();
    let finished = plans
        .iter()
        .flat_map(|plan| &plan.members)
        .find(|member| member.service == view.id && member.finished);
    let nothing = Effects::default();
    let effects = match finished {
        Some(member) => Some(&member.effects),
        // It wants nothing, and there is nothing.
        None if !has_parts && !wants => Some(&nothing),
        None => None,
    };
    let change = ObjectChange::due(view, parts.claim, finalizers, effects);
    let mut parts = sentences(&change);
    let later = wants && effects.is_some_and(|effects| effects.ingress.is_none()) && view.ingress.is_empty();
    if later {
        parts.push("its address to the status, once the cloud has given one".to_owned());
    }
    if parts.is_empty() {
        return;
    }
    let what = format!("write to the Service: {}", parts.join("; "));
    service(review, &view.id).change(EffectOf::Change, Kind::Service, what, "");
}

fn sentences(change: &ObjectChange) -> Vec<String> {
    let mut parts = Vec::new();
    let add = change.add_finalizers.iter();
    parts.extend(add.map(|name| format!("add finalizer {name}")));
    let remove = change.remove_finalizers.iter();
    parts.extend(remove.map(|name| format!("remove finalizer {name}")));
    for (key, value) in &change.annotations {
        parts.push(match value {
            Some(value) => format!("set annotation {key}={value}"),
            None => format!("remove annotation {key}"),
        });
    }
    if let Some(ingress) = &change.ingress {
        let all: Vec<_> = ingress.iter().map(address).collect();
        parts.push(if all.is_empty() {
            "no address in the status".to_owned()
        } else {
            format!("{} in the status", all.join(", "))
        });
    }
    let conditions: BTreeMap<_, _> = change
        .conditions
        .iter()
        .map(|condition| (&*condition.kind, condition.is_true))
        .collect();
    for (kind, is_true) in conditions {
        parts.push(format!(
            "condition {kind}={}",
            if is_true { "True" } else { "False" }
        ));
    }
    parts
}

fn address(ingress: &Ingress) -> String {
    let text = ingress.ip.as_deref().or(ingress.hostname.as_deref());
    text.unwrap_or_default().to_owned()
}
