//! The [`PartModel`]: assigns load balancers to Services, and plans changes.
//!
//! A part is one load balancer. A Service finds it by the id in its annotation, else by its name, which is unique in an
//! account. One Service owns a load balancer; others that name it are refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind,
    client::Listing,
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterTag, ClusterView, Effect, Effects, FormerLoadBalancer,
        IgnoredValue, Ingress, InvalidField, IpMode, NodeLeftOut, ServiceEvent, ServiceId, ServiceView,
        default_name,
    },
    plan::{
        CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan, Step, document,
        part_keys,
    },
};
use serde_json::{Value, json};

use super::{
    annotations,
    desired::{self, Backends, Reading, Spec, hostname},
    document::{
        Balancer, RULES, WriteOnly, addresses, certificate, dropped, field, immutable, is_active,
        is_internal, is_new, is_proxy, kind, sendable, tags, title, written,
    },
    ownership::{ClusterIdentity, ClusterTags, names, shows_address},
};
use crate::{
    client::Op,
    config::{LbType, Settings, is_uuid},
};

/// Delay of the first poll of a load balancer that others create. The engine increases the next ones.
const PENDING: Duration = Duration::from_secs(2);
/// The reason of Events about a Service that its nodes cannot serve (upstream's).
const CONFIG_ERROR: &str = "LoadBalancerConfigError";
/// The reason of Events about a load balancer that is not deleted with its Service.
const NOT_DELETED: &str = "LoadBalancerNotDeleted";

part_keys! {
    /// The parts.
    pub(crate) enum BalancerKey {
        /// The load balancer with this ID.
        Existing(String) = "lb/";
        /// The load balancer with this name, which does not exist yet.
        New(String) = "lb/new:";
    }
}

/// The plan model of load balancers.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<Settings>,
    pub(crate) region: String,
}

pub(crate) type PartMember = Member<Model>;

/// The objects that are read before a part is planned.
#[derive(Clone, Debug, Default)]
pub(crate) struct BalancerInputs {
    /// The load balancer, of which only immutable fields are used.
    pub(crate) existing: Option<Arc<Balancer>>,
    /// What the active members ask for. Their annotations are read once in each pass.
    pub(crate) readings: BTreeMap<ServiceId, Reading>,
    /// The droplets of nodes without a provider ID, by the nodes' names.
    pub(crate) by_name: Arc<BTreeMap<String, u64>>,
    /// Droplets that do not exist.
    pub(crate) missing: BTreeSet<u64>,
    /// What distinguishes this cluster's load balancers.
    pub(crate) identity: Arc<ClusterIdentity>,
}

/// The desired state.
#[derive(Clone, Debug)]
pub(crate) struct DesiredBalancer {
    identity: Arc<ClusterIdentity>,
    state: DesiredState,
}

#[derive(Clone, Debug)]
enum DesiredState {
    /// No load balancer for these Services, which leave. Without any, the load balancer is an orphan.
    Absent { services: Vec<Arc<ServiceView>> },
    /// The observed load balancer with these fields. `check_ports`: the health check node ports of its Services.
    Frozen { fields: Value, check_ports: Vec<u16> },
    /// The load balancer that the Service requests.
    Present(Box<RequestedBalancer>),
}

/// The load balancer that a Service requests.
#[derive(Clone, Debug)]
struct RequestedBalancer {
    service: Arc<ServiceView>,
    /// With nodes and tags; `create` is the body of a create.
    spec: Spec,
}

/// The observed state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedBalancer {
    pub(crate) balancer: Option<Balancer>,
    /// All members leave, so that a create in progress is not waited for.
    pub(crate) leaving: bool,
    /// Services whose certificate was renewed under another id.
    pub(crate) renewed: BTreeSet<ServiceId>,
    /// What distinguishes this cluster's load balancers.
    pub(crate) identity: Arc<ClusterIdentity>,
    /// Tags that this process has added to the load balancer or removed from it. They are not written again, since the API
    /// may omit them in its answers.
    pub(crate) written_tags: BTreeSet<String>,
    /// Changes that this process has sent and that the API did not apply. They are not sent again.
    pub(crate) dropped: BTreeSet<String>,
}

/// The load balancers of the account.
#[derive(Clone, Debug)]
pub(crate) struct BalancerDirectory {
    pub(crate) listing: Arc<Listing<Balancer>>,
    /// False while listings fail: load balancers may be missing, or have changed.
    pub(crate) is_current: bool,
}

/// A change: one call.
pub(crate) type BalancerChange = document::DocumentChange<Op>;

/// The API's reply: the load balancer, unless it was deleted.
pub(crate) type BalancerReply = Option<Balancer>;

fn change(operation: Op, effect: Effect, name: &str, body: Value) -> Step<BalancerChange> {
    Step::new(BalancerChange {
        operation,
        effect,
        title: format!("load balancer {name}"),
        body,
    })
}

impl Model {
    /// What distinguishes the load balancers of this cluster. `by_name`: the droplets of nodes without a provider ID.
    pub(crate) fn identity(&self, cluster: &ClusterView, by_name: &BTreeMap<String, u64>) -> ClusterIdentity {
        let tags = ClusterTags::new(&cluster.ownership_tag, self.settings.cluster_id.as_deref());
        let vpc = self.settings.vpc.as_deref();
        ClusterIdentity::new(tags, &self.region, vpc, &cluster.nodes, by_name)
    }

    /// Checks the Service that owns the load balancer.
    fn check_owner(
        result: &mut CheckResult,
        service: &ServiceView,
        cluster: &ClusterView,
        inputs: &BalancerInputs,
    ) {
        // A member without a reading was refused when the inputs were gathered, and is not active.
        let Some(reading) = inputs.readings.get(&service.id) else {
            return;
        };
        let (spec, existing) = (&reading.spec, inputs.existing.as_deref());
        result.events.extend(IgnoredValue::event(&reading.ignored, &service.id));
        if let Some(text) = existing.and_then(|found| inputs.identity.refusal(service, found)) {
            result.refuse(&service.id, text);
            return;
        }
        let backends = Self::backends(spec.kind, spec.internal, cluster, inputs);
        if let Some(text) = backends.left_out() {
            result.events.push(ServiceEvent::warning(&service.id, NodeLeftOut::EVENT, text));
        }
        let problem = desired::uncreatable(spec, &backends);
        if let Some(problem) = &problem
            && problem.needs_event
        {
            let event = ServiceEvent::warning(&service.id, CONFIG_ERROR, problem.text.clone());
            result.events.push(event);
        }
        if !reading.invalid.is_empty() {
            result.refused.push((service.id.clone(), InvalidField::error(&reading.invalid)));
        } else if let Some(problem) = problem
            && existing.is_none()
        {
            result.refuse(&service.id, problem.text);
        }
    }

    fn backends(kind: LbType, internal: bool, cluster: &ClusterView, inputs: &BalancerInputs) -> Backends {
        desired::backends(kind, internal, &cluster.nodes, &inputs.by_name, &inputs.missing)
    }

    /// The load balancer that this Service requests with `spec`.
    fn requested(
        &self,
        service: &Arc<ServiceView>,
        mut spec: Spec,
        cluster: &ClusterView,
        inputs: &BalancerInputs,
    ) -> RequestedBalancer {
        let backends = Self::backends(spec.kind, spec.internal, cluster, inputs);
        if let Some(droplets) = backends.droplets {
            spec.fields[field::DROPLET_IDS] = json!(droplets);
        }
        spec.create[field::REGION] = json!(self.region);
        spec.create[field::NETWORK_STACK] = json!(spec.stack.unwrap_or(backends.stack));
        spec.create[field::TAGS] = json!(inputs.identity.tags.own().collect::<Vec<_>>());
        document::extend(&mut spec.create, &spec.fields);
        spec.create = sendable(spec.create, &spec.write_only);
        RequestedBalancer {
            service: Arc::clone(service),
            spec,
        }
    }

    /// The owner of the load balancer: the Service that has its ID and its address, or only its ID while no Service has its
    /// address. Without one, the Service that it was created for, then a Service that has an address.
    fn owner<'a>(
        members: impl Iterator<Item = &'a PartMember>,
        existing: Option<&Balancer>,
    ) -> Option<&'a PartMember> {
        let members: Vec<_> = members.collect();
        let Some(balancer) = existing else {
            return members.into_iter().min_by_key(|member| {
                let service = &member.service;
                (service.ingress.is_empty(), &service.id)
            });
        };
        let is_in_use = members.iter().any(|member| shows_address(&member.service, balancer));
        members.into_iter().min_by_key(|member| {
            let service = &member.service;
            let is_its = names(service, balancer) && (shows_address(service, balancer) || !is_in_use);
            let is_created_for = balancer.name() == desired::name(service);
            (!is_its, !is_created_for, service.ingress.is_empty(), &service.id)
        })
    }
}

impl PartModel for Model {
    type Key = BalancerKey;
    type Directory = BalancerDirectory;
    type Inputs = BalancerInputs;
    type Spec = ();
    type Facts = ();
    type Desired = DesiredBalancer;
    type Observed = ObservedBalancer;
    type Change = BalancerChange;
    type Reply = BalancerReply;

    fn provider(&self) -> &'static str {
        crate::NAME
    }

    /// A disowned Service is ignored: its load balancer stays, and only our finalizer is removed when it is deleted.
    fn claims(&self, service: &ServiceView) -> Claim {
        match service.class {
            Some(_) => Claim::NotOurs,
            None if matches!(desired::is_disowned(service), Ok(true)) => Claim::Elsewhere,
            None => Claim::Ours,
        }
    }

    fn spec(&self, _: &ServiceView, _: &ClusterView) {}

    /// While listings fail, a Service keeps the load balancer whose ID it names. That is read alone.
    fn parts(
        &self,
        service: &ServiceView,
        _: &ClusterView,
        directory: &BalancerDirectory,
    ) -> Parts<BalancerKey> {
        if let Some(id) = service.annotation(annotations::ID) {
            let is_listed = directory.listing.by_id(id).is_some();
            if is_listed || (!directory.is_current && is_uuid(id)) {
                return Parts::from(BalancerKey::Existing(id.to_owned()));
            }
        }
        let name = desired::name(service);
        let found = directory.by_name(&name).or_else(|| directory.by_name(&default_name(&service.id)));
        Parts::from(match found {
            Some(found) => BalancerKey::Existing(found.id().to_owned()),
            None => BalancerKey::New(name),
        })
    }

    /// What it had before is deleted with the Service by the same evidence as the load balancer of a Service of ours.
    fn former(
        &self,
        service: &ServiceView,
        cluster: &ClusterView,
        directory: &BalancerDirectory,
    ) -> FormerLoadBalancer {
        let parts = self.parts(service, cluster, directory);
        let Some(BalancerKey::Existing(id)) = parts.named.first() else {
            return FormerLoadBalancer::Missing;
        };
        let Some(balancer) = directory.listing.by_id(id) else {
            return FormerLoadBalancer::Unproven {
                what: format!("load balancer {id}"),
                why: "load balancers cannot be listed".to_owned(),
            };
        };
        let what = title(balancer);
        let identity = self.identity(cluster, &BTreeMap::new());
        if identity.is_deleted_with(service, balancer) {
            return FormerLoadBalancer::Ours(what);
        }
        let why = match identity.tags.foreign(balancer) {
            Some(tag) => format!("it has the tag {tag} of another cluster"),
            None => "it has no tag of this cluster, and none of its droplets is a node".to_owned(),
        };
        FormerLoadBalancer::Unproven { what, why }
    }

    fn orphans(&self, snapshot: &ClusterSnapshot, directory: &BalancerDirectory) -> Vec<Orphan<BalancerKey>> {
        if !directory.is_current {
            return Vec::new();
        }
        let identity = self.identity(&snapshot.cluster, &BTreeMap::new());
        let mut used = BTreeSet::new();
        let mut waiting = BTreeSet::new();
        for service in &snapshot.services {
            used.extend(self.parts(service, &snapshot.cluster, directory).named);
            waiting.insert(default_name(&service.id));
        }
        let mut orphans = Vec::new();
        for balancer in directory.listing.all() {
            let key = BalancerKey::Existing(balancer.id().to_owned());
            if identity.tags.owns(balancer) && !used.contains(&key) {
                orphans.push(Orphan {
                    key,
                    what: title(balancer),
                    // The Service that it was created for may use it again, and another cluster may have taken it over.
                    deletable: !waiting.contains(balancer.name()) && identity.is_deletable_orphan(balancer),
                });
            }
        }
        orphans
    }

    fn check(
        &self,
        _: &BalancerKey,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &BalancerInputs,
    ) -> CheckResult {
        let mut result = CheckResult::default();
        let existing = inputs.existing.as_deref();
        if let Some(existing) = existing
            && PartMember::staying(members).next().is_none()
        {
            result.events = not_deleted(members, &inputs.identity, existing);
        }
        let owner = Self::owner(PartMember::staying(members), existing).map(|owner| &owner.service.id);
        for member in PartMember::active(members) {
            let service = &member.service;
            match owner {
                Some(owner) if *owner != service.id => {
                    let text = format!(
                        "the load balancer belongs to Service {owner}; Services cannot share a load balancer"
                    );
                    result.refuse(&service.id, text);
                }
                _ => Self::check_owner(&mut result, service, cluster, inputs),
            }
        }
        result
    }

    fn desired(
        &self,
        _: &BalancerKey,
        members: &[PartMember],
        cluster: &ClusterView,
        inputs: &BalancerInputs,
    ) -> DesiredBalancer {
        let existing = inputs.existing.as_deref();
        let owner = Self::owner(PartMember::active(members), existing);
        let reading = owner.and_then(|owner| inputs.readings.get(&owner.service.id));
        let state = if let (Some(owner), Some(reading)) = (owner, reading) {
            let requested = self.requested(&owner.service, reading.spec.clone(), cluster, inputs);
            DesiredState::Present(Box::new(requested))
        } else if PartMember::staying(members).next().is_some() {
            // A Service that was never served by it does not take it over while it is refused.
            let droplets = existing
                .filter(|balancer| {
                    members.iter().any(|member| {
                        member.follows_nodes() && inputs.identity.serves(&member.service, balancer)
                    })
                })
                .and_then(|balancer| {
                    Self::backends(kind(balancer)?, is_internal(balancer), cluster, inputs).droplets
                });
            DesiredState::Frozen {
                fields: match droplets {
                    Some(droplets) => json!({ field::DROPLET_IDS: droplets, field::TAG: null }),
                    None => json!({}),
                },
                check_ports: members.iter().filter_map(|member| member.service.health_check_port()).collect(),
            }
        } else {
            DesiredState::Absent {
                services: members.iter().map(|member| Arc::clone(&member.service)).collect(),
            }
        };
        DesiredBalancer {
            identity: Arc::clone(&inputs.identity),
            state,
        }
    }

    fn missing(
        &self,
        key: &BalancerKey,
        members: &[PartMember],
        observed: &ObservedBalancer,
    ) -> Option<String> {
        let was_known = members.iter().any(|member| {
            let service = &member.service;
            !service.ingress.is_empty() || service.annotation_text(annotations::ID).is_some()
        });
        let (BalancerKey::Existing(name) | BalancerKey::New(name)) = key;
        let is_missing = observed.balancer.is_none() && was_known;
        is_missing.then(|| format!("load balancer {name}"))
    }

    fn pending(&self, _: &BalancerKey, observed: &ObservedBalancer) -> Option<(Duration, String)> {
        let balancer = observed.balancer.as_ref()?;
        let is_pending = is_new(balancer) && !observed.leaving;
        is_pending.then(|| (PENDING, format!("{} is being created", title(balancer))))
    }

    /// Whether the address is missing, as in the reply to a create.
    fn lacks_result(&self, observed: &ObservedBalancer) -> bool {
        observed.balancer.as_ref().is_some_and(is_new)
    }

    fn degraded(
        &self,
        _: &BalancerKey,
        members: &[PartMember],
        observed: &ObservedBalancer,
    ) -> Option<Error> {
        PartMember::staying(members).next()?;
        let balancer = observed.balancer.as_ref()?;
        let status = balancer.text(field::STATUS);
        if status.is_empty() || is_new(balancer) || is_active(balancer) {
            return None;
        }
        let (title, id) = (title(balancer), balancer.id());
        let text = format!(
            "{title} has the status {status}; it is not deleted, since it may still serve; if it does not, delete it (doctl \
             compute load-balancer delete {id}) to have it created again"
        );
        Some(Error::new(ErrorKind::Unavailable, text))
    }

    fn plan(&self, desired: &DesiredBalancer, observed: &ObservedBalancer) -> Plan<BalancerChange> {
        let mut plan = Plan::default();
        let Some(balancer) = &observed.balancer else {
            if let DesiredState::Present(requested) = &desired.state {
                let RequestedBalancer { service, spec } = &**requested;
                let name = spec.fields[field::NAME].as_str().unwrap_or_default();
                let step = change(Op::LoadBalancerCreate, Effect::Create, name, spec.create.clone());
                plan.steps.push(step.for_service(Some(&service.id)));
            }
            return plan;
        };
        let identity = &desired.identity;
        match &desired.state {
            DesiredState::Absent { services } => {
                let is_deleted = if services.is_empty() {
                    identity.is_deletable_orphan(balancer)
                } else {
                    services.iter().any(|service| identity.is_deleted_with(service, balancer))
                };
                if is_deleted {
                    let name = balancer.name();
                    plan.steps.push(change(Op::LoadBalancerDelete, Effect::Delete, name, Value::Null));
                }
            }
            DesiredState::Frozen { fields, check_ports } => {
                let write_only = WriteOnly {
                    plain_checks: desired::omits_plain_check(balancer, check_ports).then_some(true),
                    ..WriteOnly::default()
                };
                if let Some(update) = update(observed, balancer, fields, identity, &write_only) {
                    plan.steps.extend(tag_step(observed, balancer, identity));
                    plan.steps.push(update);
                }
            }
            // Another client created it meanwhile. The next pass reports the refusal.
            DesiredState::Present(requested) if identity.refusal(&requested.service, balancer).is_some() => {}
            DesiredState::Present(requested) => {
                let RequestedBalancer { service, spec } = &**requested;
                let update = update(observed, balancer, &spec.fields, identity, &spec.write_only);
                // A takeover of a load balancer without tags writes nothing.
                if update.is_some() || identity.tags.foreign(balancer).is_some() {
                    let tags = tag_step(observed, balancer, identity);
                    plan.steps.extend(tags.map(|step| step.for_service(Some(&service.id))));
                }
                plan.steps.extend(update.map(|step| step.for_service(Some(&service.id))));
                plan.blocked = requested.blocked(balancer);
                plan.blocked.extend(requested.dropped(observed, balancer));
            }
        }
        plan
    }

    fn fold(
        &self,
        _: &BalancerKey,
        change: &BalancerChange,
        reply: Option<&BalancerReply>,
        observed: &mut ObservedBalancer,
    ) {
        if let (Op::TagAssign, Some(balancer)) = (change.operation, &observed.balancer) {
            let changed = TagChange::of(&change.body);
            observed.written_tags.extend(changed.all());
            observed.balancer = Some(changed.applied(balancer));
            return;
        }
        let reply = reply.and_then(Option::as_ref);
        if let (Effect::Change, Some(before), Some(reply)) = (change.effect, &observed.balancer, reply) {
            observed.dropped = dropped(&change.body, reply);
            observed.balancer = Some(written(before, &change.body, reply));
            return;
        }
        RULES.fold(change, reply, &mut observed.balancer);
    }

    fn rekey(&self, key: &BalancerKey, observed: &ObservedBalancer) -> Option<BalancerKey> {
        let id = observed.balancer.as_ref()?.id();
        let now = BalancerKey::Existing(id.to_owned());
        (!id.is_empty() && now != *key).then_some(now)
    }

    fn facts(
        &self,
        key: &BalancerKey,
        member: &PartMember,
        observed: &ObservedBalancer,
    ) -> Option<PartOutput<()>> {
        let service = &member.service;
        let balancer = observed.balancer.as_ref();
        let is_named = balancer.is_some_and(|balancer| names(service, balancer));
        let mut effects = Effects::default();
        if member.leaves() {
            let stays = is_named
                && balancer.is_some_and(|found| *key == BalancerKey::Existing(found.id().to_owned()));
            if service.annotation(annotations::ID).is_some() && !stays && !service.wants_load_balancer() {
                effects.annotate(annotations::ID, None);
                // Also removes a user's annotation that equals the default.
                let annotated = service.annotation(annotations::TYPE).and_then(LbType::parse);
                if annotated == Some(self.settings.conf.default_type) {
                    effects.annotate(annotations::TYPE, None);
                }
            }
            return Some(PartOutput { facts: (), effects });
        }
        let refused = balancer.and_then(|found| observed.identity.refusal(service, found));
        let is_its = (member.membership == Membership::Active && refused.is_none()) || is_named;
        let balancer = balancer?;
        let serves = is_active(balancer) || balancer.id().is_empty();
        if !serves || !is_its {
            return None;
        }
        if !balancer.id().is_empty() {
            effects.annotate(annotations::ID, Some(balancer.id()));
        }
        // The annotation with another requested type is kept, and the change is blocked.
        let asked = service.annotation_text(annotations::TYPE);
        let kind = immutable(balancer, field::TYPE);
        if asked.is_none() || asked == kind {
            effects.annotate(annotations::TYPE, kind);
        }
        if let Some(certificate) = certificate(balancer)
            && observed.renewed.contains(&service.id)
        {
            effects.annotate(annotations::CERTIFICATE_ID, Some(certificate));
        }
        effects.ingress = ingress(service, balancer);
        Some(PartOutput { facts: (), effects })
    }

    fn early_effects(&self, _: &PartMember, observed: &ObservedBalancer) -> Effects {
        let mut effects = Effects::default();
        if let Some(balancer) = &observed.balancer {
            effects.annotate(annotations::ID, Some(balancer.id()));
        }
        effects
    }
}

impl BalancerDirectory {
    fn by_name(&self, name: &str) -> Option<&Arc<Balancer>> {
        self.listing.by_key(name).find(|found| found.name() == name)
    }
}

impl RequestedBalancer {
    /// The changes that the API did not apply, although it accepted them.
    fn dropped(&self, observed: &ObservedBalancer, balancer: &Balancer) -> Vec<Blocked> {
        let Some(edit) = RULES.edit(balancer, &self.spec.fields) else {
            return Vec::new();
        };
        let mut blocked = Vec::new();
        for change in edit.changes {
            if observed.dropped.contains(&change) {
                let (field, desired) = change.split_once(' ').unwrap_or((&change, ""));
                let observed = "without the change, which the API accepted and did not apply";
                blocked.push(self.blocked_field(balancer, field, observed, desired));
            }
        }
        blocked
    }

    /// The requested changes of immutable fields.
    fn blocked(&self, balancer: &Balancer) -> Vec<Blocked> {
        let mut blocked = Vec::new();
        for (field, requested) in &self.spec.requested {
            // A field that the API omits may not differ.
            if let Some(observed) = immutable(balancer, field)
                && observed != requested
            {
                blocked.push(self.blocked_field(balancer, field, observed, requested));
            }
        }
        blocked
    }

    fn blocked_field(&self, balancer: &Balancer, field: &str, observed: &str, desired: &str) -> Blocked {
        Blocked {
            service: Some(self.service.id.clone()),
            field: format!("{field} of load balancer {}", balancer.name()),
            observed: observed.to_owned(),
            desired: desired.to_owned(),
        }
    }
}

/// The Events about a load balancer that stays when these Services are deleted.
fn not_deleted(members: &[PartMember], identity: &ClusterIdentity, balancer: &Balancer) -> Vec<ServiceEvent> {
    if members.iter().any(|member| identity.is_deleted_with(&member.service, balancer)) {
        return Vec::new();
    }
    let (title, id) = (title(balancer), balancer.id());
    let text = format!(
        "{title} is not deleted: nothing shows that it served this Service; if nothing uses it, delete it (doctl compute \
         load-balancer delete {id})"
    );
    members
        .iter()
        .filter(|member| names(&member.service, balancer))
        .map(|member| ServiceEvent::warning(&member.service.id, NOT_DELETED, text.clone()))
        .collect()
}

/// The write that sets these fields, if they differ and the API may apply it. Our tags are part of the body, in case a `PUT`
/// replaces the tags.
fn update(
    observed: &ObservedBalancer,
    balancer: &Balancer,
    fields: &Value,
    identity: &ClusterIdentity,
    write_only: &WriteOnly,
) -> Option<Step<BalancerChange>> {
    let requested = RULES.edit(balancer, fields)?;
    if requested.changes.iter().all(|change| observed.dropped.contains(change)) {
        return None;
    }
    let mut tagged_fields = fields.clone();
    tagged_fields[field::TAGS] = json!(identity.tags.added_to(balancer));
    let edit = RULES.edit(balancer, &tagged_fields)?;
    let body = sendable(edit.document, write_only);
    let step = change(Op::LoadBalancerUpdate, Effect::Change, balancer.name(), body);
    Some(step.because(edit.changes.join(", ")))
}

/// The change of tags that is due, in case a `PUT` does not replace the tags. It comes before another write: if this process ends
/// after that, nothing is due anymore.
fn tag_step(
    observed: &ObservedBalancer,
    balancer: &Balancer,
    identity: &ClusterIdentity,
) -> Option<Step<BalancerChange>> {
    let mut change = TagChange::default();
    for tag in identity.tags.own() {
        if !tags(balancer).any(|known| known == tag) && !observed.written_tags.contains(tag) {
            change.added.push(tag.to_owned());
        }
    }
    for tag in identity.tags.others(balancer) {
        if !observed.written_tags.contains(tag) {
            change.removed.push(tag.to_owned());
        }
    }
    (!change.is_empty()).then(|| change.step(balancer))
}

/// Tags that are added to a load balancer, and tags that are removed from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TagChange {
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
}

impl TagChange {
    /// The change in the body of a step with [`Op::TagAssign`].
    pub(crate) fn of(body: &Value) -> Self {
        Self {
            added: texts(&body["added"]),
            removed: texts(&body["removed"]),
        }
    }

    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }

    fn step(&self, balancer: &Balancer) -> Step<BalancerChange> {
        let mut reasons = Vec::new();
        if !self.added.is_empty() {
            reasons.push(format!("add {}", self.added.join(", ")));
        }
        if !self.removed.is_empty() {
            reasons.push(format!("remove {}", self.removed.join(", ")));
        }
        let step = Step::new(BalancerChange {
            operation: Op::TagAssign,
            effect: Effect::Change,
            title: format!("the tags of load balancer {}", balancer.name()),
            body: json!({"added": self.added, "removed": self.removed}),
        });
        step.because(reasons.join(", "))
    }

    /// All tags of the change.
    pub(crate) fn all(&self) -> impl Iterator<Item = String> {
        self.added.iter().chain(&self.removed).cloned()
    }

    /// The load balancer after the change.
    pub(crate) fn applied(&self, balancer: &Balancer) -> Balancer {
        let all: Vec<_> = tags(balancer)
            .filter(|tag| !self.all().any(|changed| changed == *tag))
            .chain(self.added.iter().map(String::as_str))
            .collect();
        let mut fields = balancer.fields().clone();
        fields[field::TAGS] = json!(all);
        Balancer::planned(&fields)
    }
}

/// The texts of a list.
fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

/// The status: the host name that the Service requests, else the addresses. Without an ownership tag, which the first change
/// adds, the modes in the status are kept, so that a takeover writes nothing.
fn ingress(service: &ServiceView, balancer: &Balancer) -> Option<Vec<Ingress>> {
    if let Some(hostname) = hostname(service) {
        return Some(vec![Ingress::name(&hostname)]);
    }
    let mode = if is_proxy(balancer) {
        IpMode::Proxy
    } else {
        IpMode::Vip
    };
    let is_tagged = tags(balancer).any(|tag| tag.starts_with(ClusterTag::PREFIX));
    let mut ingress = Vec::new();
    for address in addresses(balancer) {
        let shown = service.ingress.iter().find(|shown| shown.ip.as_deref() == Some(address));
        let mode = match shown {
            Some(shown) if !is_tagged => shown.ip_mode.unwrap_or(IpMode::Vip),
            _ => mode,
        };
        ingress.push(Ingress::address(address, mode));
    }
    (!ingress.is_empty()).then_some(ingress)
}
