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
        Blocked, Claim, ClusterSnapshot, ClusterTag, ClusterView, Effect, Effects, IgnoredValue, Ingress,
        InvalidField, IpMode, ServiceEvent, ServiceId, ServiceView, default_name,
    },
    plan::{
        CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan, Step,
        document::{self, Edit},
        part_keys,
    },
};
use serde_json::{Value, json};

use super::{
    annotations,
    desired::{self, Backends, Reading, Spec, hostname},
    document::{
        Balancer, ClusterTags, RULES, WriteOnly, certificate, immutable, is_active, is_internal, is_new,
        is_proxy, kind, sendable, tags, title,
    },
};
use crate::{
    client::Op,
    config::{LbType, Settings},
};

/// Delay of the first poll of a load balancer that others create. The engine increases the next ones.
const PENDING: Duration = Duration::from_secs(2);
/// The reason of Events about a Service that its nodes cannot serve (upstream's).
const CONFIG_ERROR: &str = "LoadBalancerConfigError";

part_keys! {
    /// The parts.
    pub(crate) enum Key {
        /// The load balancer with this ID.
        Balancer(String) = "lb/";
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
pub(crate) struct Inputs {
    /// The load balancer, of which only immutable fields are used.
    pub(crate) existing: Option<Arc<Balancer>>,
    /// The certificates of the members.
    pub(crate) certificates: BTreeMap<ServiceId, String>,
    /// The droplets of nodes without a provider ID, by the nodes' names.
    pub(crate) by_name: Arc<BTreeMap<String, u64>>,
    /// Droplets that do not exist.
    pub(crate) missing: BTreeSet<u64>,
}

/// The desired state.
#[derive(Clone, Debug)]
pub(crate) struct Desired {
    tags: ClusterTags,
    /// The IDs in the annotations of Services that stay: load balancers of other clusters with these IDs are taken over.
    named: BTreeSet<String>,
    state: DesiredState,
}

#[derive(Clone, Debug)]
enum DesiredState {
    /// No load balancer. `known`: it belonged to a Service, so that it is deleted even without our tag.
    Absent { known: bool },
    /// The observed load balancer with these fields. `check_ports`: the health check node ports of its Services.
    Frozen { fields: Value, check_ports: Vec<u16> },
    /// The load balancer that the Service requests.
    Present(Box<DesiredBalancer>),
}

/// The load balancer that a Service requests.
#[derive(Clone, Debug)]
struct DesiredBalancer {
    service: ServiceId,
    /// With nodes and tags; `create` is the body of a create.
    spec: Spec,
}

/// The observed state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) balancer: Option<Balancer>,
    /// All members leave, so that a create in progress is not waited for.
    pub(crate) leaving: bool,
    /// Services whose certificate was renewed under another id.
    pub(crate) renewed: BTreeSet<ServiceId>,
}

/// A change: one call.
pub(crate) type Change = document::Change<Op>;

/// The API's reply: the load balancer, unless it was deleted.
pub(crate) type Reply = Option<Balancer>;

fn change(operation: Op, effect: Effect, name: &str, body: Value) -> Step<Change> {
    let title = format!("load balancer {name}");
    Step::new(Change {
        operation,
        effect,
        title,
        body,
    })
}

/// Whether the Service names this load balancer by its id.
pub(crate) fn names(service: &ServiceView, balancer: &Balancer) -> bool {
    service.annotation(annotations::ID) == Some(balancer.id())
}

/// Whether the status of the Service has the address of the load balancer, or the host name that replaces it.
fn has_address(service: &ServiceView, balancer: &Balancer) -> bool {
    let address = |ingress: &Ingress| ingress.ip.clone().or_else(|| ingress.hostname.clone());
    let known = ingress(service, balancer).unwrap_or_default();
    let mut shown = service.ingress.iter().filter_map(address);
    shown.any(|shown| known.iter().filter_map(address).any(|known| known == shown))
}

impl Model {
    pub(crate) fn tags(&self, cluster: &ClusterView) -> ClusterTags {
        ClusterTags::new(&cluster.ownership_tag, self.settings.cluster_id.as_deref())
    }

    fn reading(&self, service: &ServiceView, inputs: &Inputs) -> Reading {
        let certificate = inputs.certificates.get(&service.id).map(String::as_str);
        desired::read(service, &self.settings, inputs.existing.as_deref(), certificate)
    }

    fn backends(kind: LbType, internal: bool, cluster: &ClusterView, inputs: &Inputs) -> Backends {
        desired::backends(kind, internal, &cluster.nodes, &inputs.by_name, &inputs.missing)
    }

    fn balancer_of(&self, service: &ServiceView, cluster: &ClusterView, inputs: &Inputs) -> DesiredBalancer {
        let mut spec = self.reading(service, inputs).spec;
        let backends = Self::backends(spec.kind, spec.internal, cluster, inputs);
        if let Some(droplets) = backends.droplets {
            spec.fields["droplet_ids"] = json!(droplets);
        }
        let create = &mut spec.create;
        create["region"] = json!(self.region);
        create["network_stack"] = json!(spec.stack.unwrap_or(backends.stack));
        create["tags"] = json!(self.tags(cluster).own().collect::<Vec<_>>());
        document::extend(create, &spec.fields);
        spec.create = sendable(spec.create, &spec.write_only);
        let service = service.id.clone();
        DesiredBalancer { service, spec }
    }

    /// The owner of the load balancer: the Service that has its ID and its address, or only its ID while no Service has its
    /// address. Without one, the Service that it was created for, then a Service that has an address.
    fn decides<'a>(
        members: impl Iterator<Item = &'a PartMember>,
        existing: Option<&Balancer>,
    ) -> Option<&'a PartMember> {
        let members: Vec<_> = members.collect();
        let serves = |member: &&PartMember| existing.is_some_and(|found| has_address(&member.service, found));
        let is_in_use = members.iter().any(serves);
        members.into_iter().min_by_key(|member| {
            let service = &member.service;
            let is_named = existing.is_some_and(|balancer| names(service, balancer));
            let is_its = is_named && (serves(member) || !is_in_use);
            let created_for = existing.is_some_and(|balancer| balancer.name() == desired::name(service));
            (!is_its, !created_for, service.ingress.is_empty(), &service.id)
        })
    }
}

impl PartModel for Model {
    type Key = Key;
    type Directory = Listing<Balancer>;
    type Inputs = Inputs;
    type Facts = ();
    type Desired = Desired;
    type Observed = Observed;
    type Change = Change;
    type Reply = Reply;

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

    fn parts(&self, service: &ServiceView, _: &ClusterView, directory: &Listing<Balancer>) -> Parts<Key> {
        let id = service.annotation(annotations::ID);
        let by_id = id.and_then(|id| directory.by_id(id));
        let by_name = |name: String| directory.by_key(&name).find(|found| found.name() == name);
        let found = by_id
            .or_else(|| by_name(desired::name(service)))
            .or_else(|| by_name(default_name(&service.id)));
        let key = found.map(|found| Key::Balancer(found.id().to_owned()));
        Parts::from(key.unwrap_or_else(|| Key::New(desired::name(service))))
    }

    fn orphans(&self, snapshot: &ClusterSnapshot, directory: &Listing<Balancer>) -> Vec<Orphan<Key>> {
        let tags = self.tags(&snapshot.cluster);
        let services = || snapshot.services.iter();
        let parts = |service| self.parts(service, &snapshot.cluster, directory).named;
        let used: BTreeSet<Key> = services().flat_map(|service| parts(service)).collect();
        let waiting: BTreeSet<String> = services().map(|service| default_name(&service.id)).collect();
        let owned = directory.all().filter(|balancer| tags.owns(balancer));
        let orphans = owned.map(|balancer| Orphan {
            key: Key::Balancer(balancer.id().to_owned()),
            what: title(balancer),
            // The Service that it was created for may use it again.
            deletable: !waiting.contains(balancer.name()),
        });
        orphans.filter(|orphan| !used.contains(&orphan.key)).collect()
    }

    fn check(&self, _: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> CheckResult {
        let mut result = CheckResult::default();
        let existing = inputs.existing.as_deref();
        let owner = Self::decides(PartMember::staying(members), existing);
        for member in PartMember::active(members) {
            let service = &member.service;
            if let Some(owner) = owner.filter(|owner| owner.service.id != service.id) {
                let owner = &owner.service.id;
                let text = format!(
                    "the load balancer belongs to Service {owner}; Services cannot share a load balancer"
                );
                result.refuse(&service.id, text);
                continue;
            }
            let reading = self.reading(service, inputs);
            let ignored = IgnoredValue::event(&reading.ignored, &service.id);
            result.events.extend(ignored);
            let foreign = existing.filter(|balancer| !names(service, balancer));
            let foreign = foreign.and_then(|found| Some((found, self.tags(cluster).foreign(found)?)));
            if let Some((balancer, tag)) = foreign {
                let text = format!(
                    "load balancer {} has the tag {tag} of another cluster; to take it over, set {} to {}",
                    balancer.name(),
                    annotations::ID,
                    balancer.id()
                );
                result.refuse(&service.id, text);
                continue;
            }
            let spec = &reading.spec;
            let backends = Self::backends(spec.kind, spec.internal, cluster, inputs);
            let problem = desired::uncreatable(spec, &backends);
            let event =
                |(text, _): &(String, bool)| ServiceEvent::warning(&service.id, CONFIG_ERROR, text.clone());
            let events = problem.iter().filter(|(_, has_event)| *has_event).map(event);
            result.events.extend(events);
            if !reading.invalid.is_empty() {
                let error = InvalidField::error(&reading.invalid);
                result.refused.push((service.id.clone(), error));
            } else if let Some((text, _)) = problem.filter(|_| existing.is_none()) {
                result.refuse(&service.id, text);
            }
        }
        result
    }

    fn desired(&self, _: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> Desired {
        let existing = inputs.existing.as_deref();
        let state = if let Some(member) = Self::decides(PartMember::active(members), existing) {
            DesiredState::Present(Box::new(self.balancer_of(&member.service, cluster, inputs)))
        } else if PartMember::staying(members).next().is_some() {
            // A Service that was never served by it does not take it over while it is refused.
            let follows = |member: &PartMember, balancer: &Balancer| {
                let is_its = self.tags(cluster).owns(balancer) || has_address(&member.service, balancer);
                member.follows_nodes() && is_its
            };
            let existing = existing.filter(|found| members.iter().any(|member| follows(member, found)));
            let droplets = existing.and_then(|balancer| {
                Self::backends(kind(balancer)?, is_internal(balancer), cluster, inputs).droplets
            });
            let fields = droplets.map(|droplets| json!({"droplet_ids": droplets, "tag": null}));
            let services = members.iter().map(|member| &member.service);
            let check_ports = services.filter_map(|service| service.health_check_port());
            DesiredState::Frozen {
                fields: fields.unwrap_or_else(|| json!({})),
                check_ports: check_ports.collect(),
            }
        } else {
            let had = |service: &ServiceView| {
                let is_its = |found| names(service, found) || found.name() == default_name(&service.id);
                !service.ingress.is_empty() || existing.is_some_and(is_its)
            };
            let known = members.iter().any(|member| had(&member.service));
            DesiredState::Absent { known }
        };
        let named =
            PartMember::staying(members).filter_map(|member| member.service.annotation(annotations::ID));
        Desired {
            tags: self.tags(cluster),
            named: named.map(str::to_owned).collect(),
            state,
        }
    }

    fn missing(&self, key: &Key, members: &[PartMember], observed: &Observed) -> Option<String> {
        let knew = |member: &PartMember| {
            let id = member.service.annotation_text(annotations::ID);
            !member.service.ingress.is_empty() || id.is_some()
        };
        let (Key::Balancer(name) | Key::New(name)) = key;
        let is_missing = observed.balancer.is_none() && members.iter().any(knew);
        is_missing.then(|| format!("load balancer {name}"))
    }

    fn pending(&self, _: &Key, observed: &Observed) -> Option<(Duration, String)> {
        let balancer = observed.balancer.as_ref().filter(|_| !observed.leaving)?;
        is_new(balancer).then(|| (PENDING, format!("{} is being created", title(balancer))))
    }

    /// Whether the address is missing, as in the reply to a create.
    fn lacks_result(&self, observed: &Observed) -> bool {
        observed.balancer.as_ref().is_some_and(is_new)
    }

    fn degraded(&self, _: &Key, members: &[PartMember], observed: &Observed) -> Option<Error> {
        PartMember::staying(members).next()?;
        let balancer = observed.balancer.as_ref()?;
        let status = balancer.text("status");
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

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<Change> {
        let mut plan = Plan::default();
        let Some(balancer) = &observed.balancer else {
            if let DesiredState::Present(target) = &desired.state {
                let spec = &target.spec;
                let name = spec.fields["name"].as_str().unwrap_or_default();
                let step = change(Op::LoadBalancerCreate, Effect::Create, name, spec.create.clone());
                plan.steps.push(step.for_service(Some(&target.service)));
            }
            return plan;
        };
        let is_foreign = desired.tags.foreign(balancer).is_some();
        let takes_over = is_foreign && desired.named.contains(balancer.id());
        match &desired.state {
            DesiredState::Absent { known } => {
                let name = balancer.name();
                let step = change(Op::LoadBalancerDelete, Effect::Delete, name, Value::Null);
                let is_ours = desired.tags.owns(balancer) || (*known && !is_foreign);
                plan.steps.extend(is_ours.then_some(step));
            }
            _ if is_foreign && !takes_over => {}
            DesiredState::Frozen { .. } if is_foreign => {}
            DesiredState::Frozen { fields, check_ports } => {
                let write_only = WriteOnly {
                    plain_checks: desired::omits_plain_check(balancer, check_ports).then_some(true),
                    ..WriteOnly::default()
                };
                let step = update(balancer, fields, &desired.tags, false, &write_only);
                plan.steps.extend(step);
            }
            DesiredState::Present(target) => {
                let (spec, tags) = (&target.spec, &desired.tags);
                let step = update(balancer, &spec.fields, tags, takes_over, &spec.write_only);
                let step = step.map(|step| step.for_service(Some(&target.service)));
                plan.steps.extend(step);
                plan.blocked = target.blocked(balancer);
            }
        }
        plan
    }

    fn fold(&self, _: &Key, change: &Change, reply: Option<&Reply>, observed: &mut Observed) {
        RULES.fold(change, reply.and_then(Option::as_ref), &mut observed.balancer);
    }

    fn rekey(&self, key: &Key, observed: &Observed) -> Option<Key> {
        let id = observed.balancer.as_ref().map(Balancer::id)?;
        let now = Key::Balancer(id.to_owned());
        (!id.is_empty() && now != *key).then_some(now)
    }

    fn facts(&self, key: &Key, member: &PartMember, observed: &Observed) -> Option<PartOutput<()>> {
        let service = &member.service;
        let balancer = observed.balancer.as_ref();
        let is_named = balancer.is_some_and(|balancer| names(service, balancer));
        let mut effects = Effects::default();
        if member.leaves() {
            let stays =
                is_named && balancer.is_some_and(|found| *key == Key::Balancer(found.id().to_owned()));
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
        let is_its = member.membership == Membership::Active || is_named;
        let serves = |balancer: &&Balancer| is_active(balancer) || balancer.id().is_empty();
        let balancer = balancer.filter(serves).filter(|_| is_its)?;
        if !balancer.id().is_empty() {
            effects.annotate(annotations::ID, Some(balancer.id()));
        }
        // The annotation with another requested type is kept, and the change is blocked.
        let asked = service.annotation_text(annotations::TYPE);
        let kind = immutable(balancer, "type");
        if asked.is_none() || asked == kind {
            effects.annotate(annotations::TYPE, kind);
        }
        let renewed = observed.renewed.contains(&service.id);
        if let Some(certificate) = certificate(balancer).filter(|_| renewed) {
            effects.annotate(annotations::CERTIFICATE_ID, Some(certificate));
        }
        effects.ingress = ingress(service, balancer);
        Some(PartOutput { facts: (), effects })
    }

    fn early_effects(&self, _: &PartMember, observed: &Observed) -> Effects {
        let mut effects = Effects::default();
        if let Some(balancer) = &observed.balancer {
            effects.annotate(annotations::ID, Some(balancer.id()));
        }
        effects
    }
}

impl DesiredBalancer {
    /// The requested changes of immutable fields.
    fn blocked(&self, balancer: &Balancer) -> Vec<Blocked> {
        let differing = self.spec.requested.iter().filter_map(|(field, requested)| {
            // A field that the API omits may not differ.
            let have = immutable(balancer, field)?;
            (have != *requested).then(|| Blocked {
                service: Some(self.service.clone()),
                field: format!("{field} of load balancer {}", balancer.name()),
                observed: have.to_owned(),
                desired: requested.clone(),
            })
        });
        differing.collect()
    }
}

/// The write that sets these fields, if they differ. Our tags are added only with another change, so that a takeover writes
/// nothing. Another cluster's tag is replaced at once (`retags`).
fn update(
    balancer: &Balancer,
    fields: &Value,
    tags: &ClusterTags,
    retags: bool,
    write_only: &WriteOnly,
) -> Option<Step<Change>> {
    if !retags && RULES.edit(balancer, fields).is_none() {
        return None;
    }
    let mut fields = fields.clone();
    fields["tags"] = json!(tags.added_to(balancer));
    let edit = RULES.edit(balancer, &fields).unwrap_or_else(|| Edit {
        document: RULES.writable(balancer),
        changes: Vec::new(),
    });
    let body = sendable(edit.document, write_only);
    let step = change(Op::LoadBalancerUpdate, Effect::Change, balancer.name(), body);
    Some(step.because(edit.changes.join(", ")))
}

/// The status: the host name that the Service requests, else the addresses. Without an ownership tag, which the first change
/// adds, the modes in the status are kept, so that a takeover writes nothing.
fn ingress(service: &ServiceView, balancer: &Balancer) -> Option<Vec<Ingress>> {
    if let Some(hostname) = hostname(service) {
        return Some(vec![Ingress::name(&hostname)]);
    }
    let mode = match is_proxy(balancer) {
        true => IpMode::Proxy,
        false => IpMode::Vip,
    };
    let is_tagged = tags(balancer).any(|tag| tag.starts_with(ClusterTag::PREFIX));
    let ingress = |address: &str| {
        let mut shown = service.ingress.iter().filter(|_| !is_tagged);
        let shown = shown.find(|shown| shown.ip.as_deref() == Some(address));
        let mode = shown.map_or(mode, |shown| shown.ip_mode.unwrap_or(IpMode::Vip));
        Ingress::address(address, mode)
    };
    let addresses = ["ip", "ipv6"].map(|field| balancer.text(field)).into_iter();
    let addresses = addresses.filter(|address| !address.is_empty());
    let ingress: Vec<_> = addresses.map(ingress).collect();
    (!ingress.is_empty()).then_some(ingress)
}
