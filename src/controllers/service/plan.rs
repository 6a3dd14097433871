//! The plan of this controller: the plan engine's passes without writes, and the change of each Service object that
//! follows.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{bail, ensure};
use ccm_core::{
    Error, ErrorKind,
    controllers::{NodeObject, ServiceObject},
    load_balancer::{
        Claim, ClusterSnapshot, ClusterView, Discovery, Effects, LoadBalancers, MemberState, OwnershipTag,
        PartReport, PartState, ReadOptions, Request, ServiceId,
    },
};
use tokio::time::Instant;

use super::{former, nodes::Nodes, object::ServiceAction, orphans};
use crate::controllers::plan::{Blocked, Findings, Kind, Object, Plan, PlannedChange};

/// The cluster, with nodes as they are after their planned changes.
pub(crate) struct PlannedCluster<'a> {
    pub(crate) services: &'a [Arc<ServiceObject>],
    pub(crate) nodes: &'a [Arc<NodeObject>],
    pub(crate) cluster_name: &'a str,
    pub(crate) ownership_tag: &'a OwnershipTag,
    /// `--delete-orphaned-load-balancers`.
    pub(crate) delete_orphans: bool,
}

/// Collects the actions for all Services, or `only` for one.
pub(crate) async fn plan(
    cluster: &PlannedCluster<'_>,
    balancers: &dyn LoadBalancers,
    only: Option<&ServiceId>,
    ask: ReadOptions,
    plan: &mut Plan,
) {
    let request = Request::new(Arc::new(cluster.snapshot()), ask);
    let planned = |id: &ServiceId| only.is_none_or(|only| only == id);
    for view in request.snapshot.services.iter().filter(|view| planned(&view.id)) {
        let findings = plan.service(&view.id);
        if only.is_some() && balancers.claims(view) != Claim::Ours {
            let class = view.class.as_deref().unwrap_or_default();
            findings.warn(format!(
                "left unchanged: its loadBalancerClass {class:?} belongs to another controller"
            ));
        }
    }
    let read = async {
        let mut request = request;
        let mut discovery = balancers.discover(&request).await?;
        if let Some(with_cleanups) = with_cleanups(&request, balancers, &discovery) {
            discovery = balancers.discover(&with_cleanups).await?;
            request = with_cleanups;
        }
        let parts = balancers.plan(&request, only).await?;
        Ok::<_, Error>((request, discovery, parts))
    };
    let (request, discovery, parts) = match read.await {
        Ok(read) => read,
        Err(error) => return plan.problem("load balancers", error.report()),
    };
    for part in &parts {
        add_part(part, &discovery, plan);
    }
    add_frozen(&parts, plan);
    for (view, has) in request.snapshot.services.iter().zip(&discovery.services) {
        if !planned(&view.id) {
            continue;
        }
        let former = has.former.as_ref();
        if let Some(event) = former.and_then(|former| former::event(view, has.claim, former)) {
            plan.service(&view.id).warn(event.message);
        }
        let nothing = Effects::default();
        let mut members = parts.iter().flat_map(|part| &part.members);
        let effects = match members.find(|member| member.service == view.id && member.finished) {
            Some(member) => Some(&member.effects),
            // It desires no load balancer, and has none.
            None if has.joins.is_empty() && has.leaves.is_empty() && !view.wants_load_balancer() => {
                Some(&nothing)
            }
            None => None,
        };
        let mut action = ServiceAction::due(view, has.claim, balancers.finalizers(view), effects);
        let no_address = effects.is_some_and(|effects| effects.ingress.is_none());
        action.address_follows = view.wants_load_balancer() && no_address && view.ingress.is_empty();
        if !action.is_empty() {
            plan.service(&view.id).act(&action);
        }
    }
    if only.is_some() {
        return;
    }
    for orphan in discovery.orphans.iter().flatten() {
        let consequence = orphans::consequence(orphan, cluster.delete_orphans);
        plan.of(part_of(&orphan.what, BTreeSet::new()))
            .warn(format!("its Service does not exist; {consequence}"));
    }
}

/// The same request, with the cleanup views of the Services whose former load balancers are to be deleted. `None` if there are
/// none.
fn with_cleanups(request: &Request, balancers: &dyn LoadBalancers, discovery: &Discovery) -> Option<Request> {
    let mut snapshot = ClusterSnapshot::clone(&request.snapshot);
    let mut has_cleanups = false;
    for (view, parts) in snapshot.services.iter_mut().zip(&discovery.services) {
        if let Some(former) = &parts.former
            && former::is_due(view, former)
            && let Some(cleanup) = balancers.cleanup_view(view, view)
        {
            *view = Arc::new(cleanup);
            has_cleanups = true;
        }
    }
    has_cleanups.then(|| Request::new(Arc::new(snapshot), request.read))
}

impl PlannedCluster<'_> {
    /// The only Service that is planned.
    ///
    /// # Errors
    /// If it does not exist or never had a load balancer.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> anyhow::Result<ServiceId> {
        let services = self.services.iter();
        let named = services.filter(|object| &*object.view.id.name == name);
        let (named, elsewhere): (Vec<_>, Vec<_>) =
            named.partition(|object| &*object.view.id.namespace == namespace);
        let Some(object) = named.first() else {
            let others: Vec<_> = elsewhere.iter().map(|object| object.view.id.to_string()).collect();
            let hint = match others.as_slice() {
                [] => String::new(),
                others => format!("; there is {}", others.join(", ")),
            };
            bail!("--service: Service {namespace}/{name} not found{hint}");
        };
        ensure!(
            object.is_concerned(),
            "--service: {namespace}/{name} is not of type LoadBalancer and never had a load balancer"
        );
        Ok(object.view.id.clone())
    }

    /// All Services that concern load balancers, also those without our finalizer, which they would get first.
    fn snapshot(&self) -> ClusterSnapshot {
        let mut nodes = Nodes::default();
        for node in self.nodes {
            nodes.apply(&node.view.name, Some(node), Instant::now());
        }
        let concerned = self.services.iter().filter(|object| object.is_concerned());
        let services = concerned.map(|object| Arc::clone(&object.view)).collect();
        let cluster = ClusterView {
            name: self.cluster_name.into(),
            ownership_tag: self.ownership_tag.clone(),
            nodes: nodes.set(),
        };
        ClusterSnapshot::new(services, cluster)
    }
}

fn part_of(part: &str, services: BTreeSet<String>) -> Object {
    Object::Part {
        part: part.to_owned(),
        services,
    }
}

/// Adds the findings about a part to its Services. A finding about the part as a whole is added to the part, or to its
/// only Service.
fn add_part(report: &PartReport, discovery: &Discovery, plan: &mut Plan) {
    let part = &report.part;
    let services: Vec<_> = discovery
        .services
        .iter()
        .filter(|parts| parts.joins.contains(part) || parts.leaves.contains(part))
        .map(|parts| &parts.service)
        .collect();
    let whole = match services.as_slice() {
        [alone] => Object::Service {
            service: alone.to_string(),
        },
        services => part_of(part.as_str(), services.iter().map(ToString::to_string).collect()),
    };
    let mut of_whole = Findings::default();
    for step in report.steps.iter().map(|step| &step.description) {
        let findings = step.service.as_ref().map(|id| plan.service(id));
        findings.unwrap_or(&mut of_whole).act(PlannedChange {
            why: step.reason.clone(),
            part: Some(part.to_string()),
            ..PlannedChange::new(step.effect, Kind::Cloud, &step.sentence)
        });
    }
    for blocked in &report.blocked {
        let findings = blocked.service.as_ref().map(|id| plan.service(id));
        findings.unwrap_or(&mut of_whole).block(Blocked {
            what: blocked.to_string(),
            field: Some(blocked.field.clone()),
            have: Some(blocked.observed.clone()),
            want: Some(blocked.desired.clone()),
        });
    }
    for warning in report.events.iter().filter(|event| event.warning) {
        plan.service(&warning.service).warn(warning.message.as_str());
    }
    for member in &report.members {
        match &member.state {
            MemberState::Refused(error) if is_no_answer(error.kind()) => {
                plan.problem(member.service.to_string(), error.report());
            }
            MemberState::Refused(error) => {
                let text = format!("{}; it keeps what it has", error.report());
                plan.service(&member.service).block(text);
            }
            _ => {}
        }
    }
    match &report.state {
        PartState::Done => {}
        PartState::Blocked(why) => of_whole.block(why.clone()),
        // A plan does not wait.
        PartState::Parked { why, .. } => plan.problem(part.as_str(), why),
        PartState::Failed(error) => plan.problem(part.as_str(), error.report()),
    }
    if !of_whole.is_empty() {
        plan.of(whole).append(of_whole);
    }
}

/// Adds Services that keep what they have, unless another finding is the reason.
fn add_frozen(parts: &[PartReport], plan: &mut Plan) {
    for member in parts.iter().flat_map(|part| &part.members) {
        let MemberState::Frozen(why) = &member.state else {
            continue;
        };
        let name = member.service.to_string();
        let unknown = plan.problems.iter().any(|problem| problem.about == name);
        let findings = plan.service(name);
        if findings.blocked.is_empty() && findings.warnings.is_empty() && !unknown {
            findings.block(format!("it keeps what it has: {why}"));
        }
    }
}

/// Whether the cloud did not answer. Otherwise it refused.
fn is_no_answer(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::RateLimited | ErrorKind::Unauthenticated
    )
}
