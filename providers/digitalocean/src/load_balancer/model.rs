//! The [`PartModel`]: which Service has which load balancer, and what is to be changed.
//!
//! A part is one load balancer. A Service finds it by the id in its annotation, else by its name, which is unique in an
//! account. One Service decides about a load balancer; others that name it are refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    Error, ErrorKind,
    client::{Indexed, Listing, Operation as _},
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, Effect, Effects, Ingress, InvalidField, IpMode,
        ServiceEvent, ServiceId, ServiceView, StepDescription, default_load_balancer_name,
    },
    plan::{
        Change as PlanChange, CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan,
        Step, part_keys,
    },
};
use serde_json::{Map, Value, json};

use super::{
    annotations,
    desired::{self, Backends, Reading},
    document::{Balancer, ClusterTags, Unread, sendable},
};
use crate::{
    client::Op,
    config::{LbType, Settings},
};

/// When to poll a load balancer that others create, for the first time. The engine's waits grow.
const PENDING: Duration = Duration::from_secs(2);
/// The reason of Events about a Service that asks for something that its nodes cannot serve (upstream's).
const CONFIG_ERROR: &str = "LoadBalancerConfigError";
/// The reason of Events about annotations without effect.
const IGNORED: &str = "IgnoredAnnotation";

part_keys! {
    /// The parts.
    pub(crate) enum Key {
        /// The load balancer with this id.
        Balancer(String) = "lb/";
        /// The load balancer with this name, which does not exist yet.
        New(String) = "lb/new:";
    }
}

/// The decisions.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) settings: Arc<Settings>,
    pub(crate) region: String,
}

pub(crate) type PartMember = Member<Model>;

/// What is read before a part is planned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inputs {
    /// The load balancer, of which only what cannot change is used.
    pub(crate) existing: Option<Arc<Balancer>>,
    /// The certificates that the members name.
    pub(crate) certificates: BTreeMap<ServiceId, String>,
    /// The droplets of nodes without a provider ID, by the nodes' names.
    pub(crate) by_name: Arc<BTreeMap<String, u64>>,
    /// Droplets that the API does not know.
    pub(crate) gone: BTreeSet<u64>,
}

/// The desired state.
#[derive(Clone, Debug)]
pub(crate) struct Desired {
    tags: ClusterTags,
    /// The ids in the annotations of Services that stay: another cluster's load balancer is taken over.
    named: BTreeSet<String>,
    state: DesiredState,
}

#[derive(Clone, Debug)]
enum DesiredState {
    /// No load balancer. `known`: a Service had it, so that it is deleted even without our tag.
    Absent { known: bool },
    /// As it is, with these fields.
    Frozen(Map<String, Value>),
    /// As its Service asks for it.
    Wanted(Box<Wanted>),
}

/// A load balancer as its Service asks for it.
#[derive(Clone, Debug)]
struct Wanted {
    service: ServiceId,
    fields: Map<String, Value>,
    unread: Unread,
    /// The body of a create.
    create: Value,
    requested: Vec<(&'static str, String)>,
}

/// The observed state.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) balancer: Option<Balancer>,
    /// All members leave: what the API is creating need not be waited for.
    pub(crate) leaving: bool,
    /// Services whose certificate was renewed under another id.
    pub(crate) renewed: BTreeSet<ServiceId>,
}

/// A change: one call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) op: Op,
    /// The name of the load balancer.
    pub(crate) name: String,
    /// Null for a deletion.
    pub(crate) body: Value,
}

impl PlanChange for Change {
    fn describe(&self) -> StepDescription {
        let (effect, verb) = match self.op {
            Op::LoadBalancerCreate => (Effect::Create, "create"),
            Op::LoadBalancerDelete => (Effect::Delete, "delete"),
            _ => (Effect::Change, "update"),
        };
        let sentence = format!("{verb} load balancer {}", self.name);
        StepDescription::new(self.op.name(), effect, sentence)
    }
}

/// The API's reply: the load balancer, unless it was deleted.
#[derive(Clone, Debug)]
pub(crate) struct Reply(pub(crate) Option<Balancer>);

/// Whether the Service names this load balancer by its id.
fn names(service: &ServiceView, balancer: &Balancer) -> bool {
    service.annotation(annotations::ID) == Some(balancer.id())
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
        desired::backends(kind, internal, &cluster.nodes, &inputs.by_name, &inputs.gone)
    }

    fn wanted(&self, service: &ServiceView, cluster: &ClusterView, inputs: &Inputs) -> Wanted {
        let mut spec = self.reading(service, inputs).spec;
        let backends = Self::backends(spec.kind, spec.internal, cluster, inputs);
        spec.fields.extend(backends.field());
        let tags = self.tags(cluster);
        spec.create.extend(desired::object(json!({
            "region": self.region,
            "network_stack": spec.stack.unwrap_or(backends.stack),
            "tags": tags.own().collect::<Vec<_>>(),
        })));
        spec.create.extend(spec.fields.clone());
        Wanted {
            service: service.id.clone(),
            create: sendable(Value::Object(spec.create), Some(&spec.unread)),
            fields: spec.fields,
            unread: spec.unread,
            requested: spec.requested,
        }
    }

    /// The member that decides about the load balancer: one that it was created for comes first, then the one that has had it.
    fn decides<'a>(
        members: impl Iterator<Item = &'a PartMember>,
        existing: Option<&Balancer>,
    ) -> Option<&'a PartMember> {
        members.min_by_key(|member| {
            let service = &member.service;
            let made_for = existing.is_some_and(|balancer| balancer.name() == desired::name(service));
            (!made_for, service.ingress.is_empty(), &service.id)
        })
    }
}

fn staying(members: &[PartMember]) -> impl Iterator<Item = &PartMember> {
    members
        .iter()
        .filter(|member| member.membership != Membership::Leaving)
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
        if service.class.is_some() {
            Claim::NotOurs
        } else if desired::is_disowned(service) {
            Claim::Elsewhere
        } else {
            Claim::Ours
        }
    }

    fn kind(&self, key: &Key) -> &'static str {
        key.kind()
    }

    fn parts(&self, service: &ServiceView, _: &ClusterView, directory: &Listing<Balancer>) -> Parts<Key> {
        let id = service.annotation(annotations::ID);
        let by_id = id.and_then(|id| directory.by_id(id));
        let by_name = |name: String| directory.by_key(&name).find(|found| found.name() == name);
        let found = by_id
            .or_else(|| by_name(desired::name(service)))
            .or_else(|| by_name(default_load_balancer_name(&service.id)));
        let key = found.map_or_else(
            || Key::New(desired::name(service)),
            |found| Key::Balancer(found.id().to_owned()),
        );
        Parts {
            named: vec![key],
            tagged: Vec::new(),
        }
    }

    fn orphans(&self, world: &ClusterSnapshot, directory: &Listing<Balancer>) -> Vec<Orphan<Key>> {
        let tags = self.tags(&world.cluster);
        let services = || world.services.iter();
        let parts = |service| self.parts(service, &world.cluster, directory).named;
        let used: BTreeSet<Key> = services().flat_map(|service| parts(service)).collect();
        let waiting: BTreeSet<String> = services()
            .map(|service| default_load_balancer_name(&service.id))
            .collect();
        let owned = directory.all().filter(|balancer| tags.owns(balancer));
        let orphans = owned.map(|balancer| Orphan {
            key: Key::Balancer(balancer.id().to_owned()),
            what: balancer.to_string(),
            // The Service that it was created for may name it again.
            deletable: !waiting.contains(balancer.name()),
        });
        orphans.filter(|orphan| !used.contains(&orphan.key)).collect()
    }

    fn check(&self, _: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> CheckResult {
        let mut result = CheckResult::default();
        let existing = inputs.existing.as_deref();
        let owner = Self::decides(staying(members), existing);
        let active = members
            .iter()
            .filter(|member| member.membership == Membership::Active);
        for service in active.map(|member| &member.service) {
            let reading = self.reading(service, inputs);
            let invalid = |text: String| Some(Error::new(ErrorKind::InvalidSpec, text));
            let foreign = existing.filter(|balancer| !names(service, balancer));
            let foreign = foreign.and_then(|found| Some((found, self.tags(cluster).foreign(found)?)));
            let other = owner.filter(|owner| owner.service.id != service.id);
            let refused = if let Some(owner) = other {
                invalid(format!(
                    "the load balancer is the one of Service {}; two Services cannot share one",
                    owner.service.id
                ))
            } else if let Some((balancer, tag)) = foreign {
                invalid(format!(
                    "load balancer {} has the tag {tag} of another cluster; to take it over, set {} to {}",
                    balancer.name(),
                    annotations::ID,
                    balancer.id()
                ))
            } else if !reading.invalid.is_empty() {
                Some(InvalidField::error(&reading.invalid))
            } else if existing.is_none() {
                let spec = &reading.spec;
                let backends = Self::backends(spec.kind, spec.internal, cluster, inputs);
                desired::uncreatable(spec, &backends).and_then(|(text, has_event)| {
                    let event = || ServiceEvent::warning(&service.id, CONFIG_ERROR, text.clone());
                    result.events.extend(has_event.then(event));
                    invalid(text)
                })
            } else {
                None
            };
            if !reading.ignored.is_empty() && other.is_none() {
                let texts: Vec<_> = reading.ignored.iter().map(ToString::to_string).collect();
                let event = ServiceEvent::warning(&service.id, IGNORED, texts.join("; "));
                result.events.push(event);
            }
            result
                .refused
                .extend(refused.map(|error| (service.id.clone(), error)));
        }
        result
    }

    fn desired(&self, _: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> Desired {
        let existing = inputs.existing.as_deref();
        let active = staying(members).filter(|member| member.membership == Membership::Active);
        let state = if let Some(member) = Self::decides(active, existing) {
            DesiredState::Wanted(Box::new(self.wanted(&member.service, cluster, inputs)))
        } else if staying(members).next().is_some() {
            let existing = existing.filter(|_| members.iter().any(Member::follows_nodes));
            let droplets = existing.and_then(|balancer| {
                let kind = LbType::parse(balancer.kind())?;
                Self::backends(kind, balancer.is_internal(), cluster, inputs).field()
            });
            DesiredState::Frozen(droplets.into_iter().collect())
        } else {
            let had = |service: &ServiceView| {
                let is_its =
                    |found| names(service, found) || found.name() == default_load_balancer_name(&service.id);
                !service.ingress.is_empty() || existing.is_some_and(is_its)
            };
            let known = members.iter().any(|member| had(&member.service));
            DesiredState::Absent { known }
        };
        let named = staying(members).filter_map(|member| member.service.annotation(annotations::ID));
        Desired {
            tags: self.tags(cluster),
            named: named.map(str::to_owned).collect(),
            state,
        }
    }

    fn missing(&self, key: &Key, members: &[PartMember], observed: &Observed) -> Option<String> {
        let knew = |member: &PartMember| {
            let id = member.service.annotation(annotations::ID);
            !member.service.ingress.is_empty() || id.is_some_and(|id| !id.is_empty())
        };
        let (Key::Balancer(name) | Key::New(name)) = key;
        let is_missing = observed.balancer.is_none() && members.iter().any(knew);
        is_missing.then(|| format!("load balancer {name}"))
    }

    fn pending(&self, _: &Key, observed: &Observed) -> Option<(Duration, String)> {
        let balancer = observed.balancer.as_ref().filter(|_| !observed.leaving)?;
        balancer
            .is_new()
            .then(|| (PENDING, format!("{balancer} is being created")))
    }

    /// The reply to a create has no address.
    fn lacks_result(&self, observed: &Observed) -> bool {
        observed.balancer.as_ref().is_some_and(Balancer::is_new)
    }

    fn degraded(&self, _: &Key, members: &[PartMember], observed: &Observed) -> Option<Error> {
        let balancer = observed
            .balancer
            .as_ref()
            .filter(|balancer| balancer.is_errored())?;
        staying(members).next()?;
        let text = format!(
            "{balancer} has the status {}; it is not deleted, since it may still serve; if it does not, delete it (doctl \
             compute load-balancer delete {}) to have it created again",
            balancer.text("status"),
            balancer.id()
        );
        Some(Error::new(ErrorKind::Unavailable, text))
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<Change> {
        let mut plan = Plan::default();
        let Some(balancer) = &observed.balancer else {
            if let DesiredState::Wanted(wanted) = &desired.state {
                let change = Change {
                    op: Op::LoadBalancerCreate,
                    name: Balancer::planned(&wanted.create).name().to_owned(),
                    body: wanted.create.clone(),
                };
                let step = Step::new(change).for_service(Some(&wanted.service));
                plan.steps.push(step);
            }
            return plan;
        };
        let is_foreign = desired.tags.foreign(balancer).is_some();
        let takes_over = is_foreign && desired.named.contains(balancer.id());
        let is_kept = is_foreign && !takes_over;
        match &desired.state {
            DesiredState::Absent { known } => {
                let change = Change {
                    op: Op::LoadBalancerDelete,
                    name: balancer.name().to_owned(),
                    body: Value::Null,
                };
                let is_ours = desired.tags.owns(balancer) || (*known && !is_foreign);
                plan.steps.extend(is_ours.then(|| Step::new(change)));
            }
            _ if is_kept => {}
            DesiredState::Frozen(fields) => {
                plan.steps
                    .extend(update(balancer, fields, &desired.tags, false, None));
            }
            DesiredState::Wanted(wanted) => {
                let unread = Some(&wanted.unread);
                let step = update(balancer, &wanted.fields, &desired.tags, takes_over, unread);
                plan.steps
                    .extend(step.map(|step| step.for_service(Some(&wanted.service))));
                plan.blocked = wanted.blocked(balancer);
            }
        }
        plan
    }

    fn fold(&self, _: &Key, change: &Change, reply: Option<&Reply>, observed: &mut Observed) {
        let reply = reply.and_then(|reply| reply.0.as_ref());
        observed.balancer = match (change.op, &observed.balancer) {
            (Op::LoadBalancerDelete, _) => None,
            (Op::LoadBalancerCreate, _) => {
                Some(reply.cloned().unwrap_or_else(|| Balancer::planned(&change.body)))
            }
            (_, before) => before.as_ref().map(|before| before.after(&change.body, reply)),
        };
    }

    fn rekey(&self, key: &Key, observed: &Observed) -> Option<Key> {
        let id = observed.balancer.as_ref().map(Indexed::id)?;
        let now = Key::Balancer(id.to_owned());
        (!id.is_empty() && now != *key).then_some(now)
    }

    fn facts(&self, key: &Key, member: &PartMember, observed: &Observed) -> Option<PartOutput<()>> {
        let service = &member.service;
        let balancer = observed.balancer.as_ref();
        let is_named = balancer.is_some_and(|balancer| names(service, balancer));
        let mut effects = Effects::default();
        let mut set = |key: &str, value: Option<&str>| {
            effects
                .annotations
                .insert(key.to_owned(), value.map(str::to_owned));
        };
        if member.membership == Membership::Leaving {
            let stays =
                is_named && balancer.is_some_and(|found| *key == Key::Balancer(found.id().to_owned()));
            if service.annotation(annotations::ID).is_some() && !stays && !service.wants_load_balancer() {
                set(annotations::ID, None);
                // It may be the user's, but says what holds without it.
                if service.annotation(annotations::TYPE) == Some(self.settings.default_type.as_str()) {
                    set(annotations::TYPE, None);
                }
            }
            return Some(PartOutput { facts: (), effects });
        }
        let is_its = member.membership == Membership::Active || is_named;
        let serves = |balancer: &&Balancer| balancer.is_active() || balancer.id().is_empty();
        let balancer = balancer.filter(serves).filter(|_| is_its)?;
        if !balancer.id().is_empty() {
            set(annotations::ID, Some(balancer.id()));
        }
        // Another type that the Service asks for stays, and is blocked.
        let asked = service.annotation(annotations::TYPE).unwrap_or_default();
        if asked.is_empty() || asked == balancer.kind() {
            set(annotations::TYPE, Some(balancer.kind()));
        }
        let renewed = observed.renewed.contains(&service.id);
        if let Some(certificate) = balancer.certificate().filter(|_| renewed) {
            set(annotations::CERTIFICATE_ID, Some(certificate));
        }
        effects.ingress = ingress(service, balancer);
        Some(PartOutput { facts: (), effects })
    }
}

impl Wanted {
    /// What the Service asks for and cannot be changed.
    fn blocked(&self, balancer: &Balancer) -> Vec<Blocked> {
        let differing = self.requested.iter().filter_map(|(field, want)| {
            // What the API does not show is not known to differ.
            let have = balancer.immutable(field)?;
            (have != *want).then(|| Blocked {
                service: Some(self.service.clone()),
                field: format!("{field} of load balancer {}", balancer.name()),
                have: have.to_owned(),
                want: want.clone(),
            })
        });
        differing.collect()
    }
}

/// The one write that makes the fields these. Our tags come with a write that is due anyway, so that a takeover writes
/// nothing; another cluster's tag is replaced at once (`retags`).
fn update(
    balancer: &Balancer,
    fields: &Map<String, Value>,
    tags: &ClusterTags,
    retags: bool,
    unread: Option<&Unread>,
) -> Option<Step<Change>> {
    if !retags && balancer.edit(fields).is_none() {
        return None;
    }
    let mut fields = fields.clone();
    fields.insert("tags".to_owned(), json!(tags.added_to(balancer)));
    let edit = balancer.edit(&fields);
    let (document, changes) = edit.unwrap_or_else(|| (balancer.copy(), Vec::new()));
    let change = Change {
        op: Op::LoadBalancerUpdate,
        name: balancer.name().to_owned(),
        body: sendable(document, unread),
    };
    Some(Step::new(change).because(changes.join(", ")))
}

/// The status: the name that the Service asks for, else the addresses.
fn ingress(service: &ServiceView, balancer: &Balancer) -> Option<Vec<Ingress>> {
    if let Some(hostname) = desired::hostname(service) {
        return Some(vec![Ingress {
            hostname: Some(hostname.into()),
            ..Ingress::default()
        }]);
    }
    let mode = if balancer.is_proxy() {
        IpMode::Proxy
    } else {
        IpMode::Vip
    };
    let addresses = ["ip", "ipv6"].map(|field| balancer.text(field)).into_iter();
    let addresses = addresses.filter(|address| !address.is_empty());
    let ingress = addresses.map(|address| Ingress {
        ip: Some(address.into()),
        ip_mode: Some(mode),
        ..Ingress::default()
    });
    let ingress: Vec<_> = ingress.collect();
    (!ingress.is_empty()).then_some(ingress)
}
