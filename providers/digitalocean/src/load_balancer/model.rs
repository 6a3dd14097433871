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
    client::{Indexed, Listing},
    load_balancer::{
        Blocked, Claim, ClusterSnapshot, ClusterView, Effect, Effects, Ingress, InvalidField, IpMode,
        ServiceEvent, ServiceId, ServiceView, StepDescription,
    },
    plan::{
        Change as PlanChange, CheckResult, Member, Membership, Orphan, PartModel, PartOutput, Parts, Plan,
        Step, part_keys,
    },
};
use serde_json::{Map, Value, json};

use super::{
    annotations,
    desired::{self, Backends, Reading, Spec},
    document::{Balancer, ClusterTags, Unread, sendable},
};
use crate::config::{LbType, Settings};

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
    pub(crate) by_name: BTreeMap<String, u64>,
    /// Droplets that the API does not know.
    pub(crate) gone: BTreeSet<u64>,
}

/// The desired state.
#[derive(Clone, Debug)]
pub(crate) enum Desired {
    /// No load balancer.
    Absent {
        tags: ClusterTags,
        /// A Service had it, so that it is deleted even without our tag.
        known: bool,
    },
    /// As it is, with these droplets.
    Frozen {
        tags: ClusterTags,
        droplets: Option<Vec<u64>>,
        named: BTreeSet<String>,
    },
    /// As its Service asks for it.
    Wanted(Box<Wanted>),
}

/// A load balancer as its Service asks for it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    service: ServiceId,
    pub(crate) fields: Map<String, Value>,
    unread: Unread,
    /// The body of a create.
    create: Value,
    pub(crate) requested: Vec<(&'static str, String)>,
    pub(crate) tags: ClusterTags,
    /// The id in the Service's annotation: another cluster's load balancer is taken over.
    pub(crate) named: Option<String>,
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
pub(crate) enum Change {
    Create { name: String, body: Value },
    Update { name: String, body: Value },
    Delete { name: String },
}

impl PlanChange for Change {
    fn describe(&self) -> StepDescription {
        let (label, effect, verb, name) = match self {
            Self::Create { name, .. } => ("load_balancer_create", Effect::Create, "create", name),
            Self::Update { name, .. } => ("load_balancer_update", Effect::Change, "update", name),
            Self::Delete { name } => ("load_balancer_delete", Effect::Delete, "delete", name),
        };
        StepDescription::new(label, effect, format!("{verb} load balancer {name}"))
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
        let Spec {
            kind,
            internal,
            stack,
            mut fields,
            mut create,
            unread,
            requested,
            ..
        } = self.reading(service, inputs).spec;
        let backends = Self::backends(kind, internal, cluster, inputs);
        let tags = self.tags(cluster);
        let own: Vec<_> = tags.own().collect();
        create.insert("region".to_owned(), json!(self.region));
        create.insert("network_stack".to_owned(), json!(stack.unwrap_or(backends.stack)));
        create.insert("tags".to_owned(), json!(own));
        create.extend(fields.clone());
        if let Some(droplets) = backends.droplets {
            create.insert("droplet_ids".to_owned(), json!(droplets));
            fields.insert("droplet_ids".to_owned(), json!(droplets));
        }
        Wanted {
            service: service.id.clone(),
            fields,
            create: sendable(Value::Object(create), Some(&unread)),
            unread,
            requested,
            tags,
            named: service.annotation(annotations::ID).map(str::to_owned),
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

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidSpec, text)
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

    /// A disowned Service is nobody's: its load balancer stays, and only our finalizer goes when it is deleted.
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
            .or_else(|| by_name(desired::default_name(service)));
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
        let used: BTreeSet<Key> = world
            .services
            .iter()
            .flat_map(|service| self.parts(service, &world.cluster, directory).named)
            .collect();
        let waiting: BTreeSet<String> = world
            .services
            .iter()
            .map(|service| desired::default_name(service))
            .collect();
        let orphans = directory
            .all()
            .filter(|balancer| tags.owns(balancer))
            .filter_map(|balancer| {
                let key = Key::Balancer(balancer.id().to_owned());
                (!used.contains(&key)).then(|| Orphan {
                    key,
                    what: format!("load balancer {} ({})", balancer.name(), balancer.id()),
                    // The Service that it was created for may name it again.
                    deletable: !waiting.contains(balancer.name()),
                })
            });
        orphans.collect()
    }

    fn check(&self, _: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> CheckResult {
        let mut result = CheckResult::default();
        let existing = inputs.existing.as_deref();
        let owner = Self::decides(staying(members), existing);
        for member in members
            .iter()
            .filter(|member| member.membership == Membership::Active)
        {
            let service = &member.service;
            let mut refuse = |error: Error| result.refused.push((service.id.clone(), error));
            if let Some(owner) = owner.filter(|owner| owner.service.id != service.id) {
                let text = format!(
                    "the load balancer is the one of Service {}; two Services cannot share one",
                    owner.service.id
                );
                refuse(invalid(text));
                continue;
            }
            let foreign = existing.filter(|balancer| !names(service, balancer));
            if let Some((balancer, tag)) =
                foreign.and_then(|found| Some((found, self.tags(cluster).foreign(found)?)))
            {
                let text = format!(
                    "load balancer {} has the tag {tag} of another cluster; to take it over, set {} to {}",
                    balancer.name(),
                    annotations::ID,
                    balancer.id()
                );
                refuse(invalid(text));
                continue;
            }
            let reading = self.reading(service, inputs);
            if !reading.invalid.is_empty() {
                refuse(InvalidField::error(&reading.invalid));
            } else if existing.is_none() {
                let spec = &reading.spec;
                let backends = Self::backends(spec.kind, spec.internal, cluster, inputs);
                if let Some((text, has_event)) = desired::uncreatable(spec, &backends) {
                    refuse(invalid(text.clone()));
                    let event = ServiceEvent::warning(&service.id, CONFIG_ERROR, text);
                    result.events.extend(has_event.then_some(event));
                }
            }
            if !reading.ignored.is_empty() {
                let texts: Vec<_> = reading.ignored.iter().map(ToString::to_string).collect();
                result
                    .events
                    .push(ServiceEvent::warning(&service.id, IGNORED, texts.join("; ")));
            }
        }
        result
    }

    fn desired(&self, _: &Key, members: &[PartMember], cluster: &ClusterView, inputs: &Inputs) -> Desired {
        let tags = self.tags(cluster);
        let active = staying(members).filter(|member| member.membership == Membership::Active);
        if let Some(member) = Self::decides(active, inputs.existing.as_deref()) {
            return Desired::Wanted(Box::new(self.wanted(&member.service, cluster, inputs)));
        }
        let had = |service: &ServiceView| {
            let existing = inputs.existing.as_deref();
            !service.ingress.is_empty()
                || existing.is_some_and(|found| {
                    names(service, found) || found.name() == desired::default_name(service)
                })
        };
        if staying(members).next().is_none() {
            return Desired::Absent {
                tags,
                known: members.iter().any(|member| had(&member.service)),
            };
        }
        let follows = members.iter().any(Member::follows_nodes);
        let existing = inputs.existing.as_deref().filter(|_| follows);
        let kind = existing.and_then(|balancer| LbType::parse(balancer.kind()));
        let backends = existing
            .zip(kind)
            .map(|(balancer, kind)| Self::backends(kind, balancer.is_internal(), cluster, inputs));
        let ids = members
            .iter()
            .filter_map(|member| member.service.annotation(annotations::ID));
        Desired::Frozen {
            tags,
            droplets: backends.and_then(|backends| backends.droplets),
            named: ids.map(str::to_owned).collect(),
        }
    }

    fn missing(&self, key: &Key, members: &[PartMember], observed: &Observed) -> Option<String> {
        let knew = |member: &PartMember| {
            let service = &member.service;
            !service.ingress.is_empty()
                || service
                    .annotation(annotations::ID)
                    .is_some_and(|id| !id.is_empty())
        };
        let is_missing = observed.balancer.is_none() && members.iter().any(knew);
        is_missing.then(|| match key {
            Key::Balancer(id) => format!("load balancer {id}"),
            Key::New(name) => format!("load balancer {name}"),
        })
    }

    fn pending(&self, _: &Key, observed: &Observed) -> Option<(Duration, String)> {
        let balancer = observed.balancer.as_ref().filter(|_| !observed.leaving)?;
        let what = || {
            format!(
                "load balancer {} ({}) is being created",
                balancer.name(),
                balancer.id()
            )
        };
        balancer.is_new().then(|| (PENDING, what()))
    }

    /// The reply to a create has no address.
    fn lacks_result(&self, observed: &Observed) -> bool {
        observed.balancer.as_ref().is_some_and(Balancer::is_new)
    }

    fn degraded(&self, _: &Key, members: &[PartMember], observed: &Observed) -> Option<Error> {
        let balancer = observed.balancer.as_ref()?;
        (balancer.is_errored() && staying(members).next().is_some()).then(|| {
            let text = format!(
                "load balancer {} ({}) has the status {}; it is not deleted, since it may still serve; if it does not, \
                 delete it (doctl compute load-balancer delete {}) to have it created again",
                balancer.name(),
                balancer.id(),
                balancer.text("status"),
                balancer.id()
            );
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    fn plan(&self, desired: &Desired, observed: &Observed) -> Plan<Change> {
        match (desired, &observed.balancer) {
            (Desired::Absent { tags, known }, Some(balancer)) => {
                let is_ours = tags.owns(balancer) || (*known && tags.foreign(balancer).is_none());
                let change = Change::Delete {
                    name: balancer.name().to_owned(),
                };
                Plan {
                    steps: is_ours.then(|| Step::new(change)).into_iter().collect(),
                    blocked: Vec::new(),
                }
            }
            (
                Desired::Frozen {
                    tags,
                    droplets,
                    named,
                },
                Some(balancer),
            ) => {
                let may_change = tags.foreign(balancer).is_none() || named.contains(balancer.id());
                let mut fields = Map::new();
                fields.extend(droplets.iter().map(|ids| ("droplet_ids".to_owned(), json!(ids))));
                let step = update(balancer, fields, tags, false, None).filter(|_| may_change);
                Plan {
                    steps: step.into_iter().collect(),
                    blocked: Vec::new(),
                }
            }
            (Desired::Wanted(wanted), Some(balancer)) => wanted.plan(balancer),
            (Desired::Wanted(wanted), None) => {
                let change = Change::Create {
                    name: Balancer::planned(&wanted.create).name().to_owned(),
                    body: wanted.create.clone(),
                };
                Plan {
                    steps: vec![Step::new(change).for_service(Some(&wanted.service))],
                    blocked: Vec::new(),
                }
            }
            (_, None) => Plan::default(),
        }
    }

    fn fold(&self, _: &Key, change: &Change, reply: Option<&Reply>, observed: &mut Observed) {
        let reply = reply.and_then(|reply| reply.0.as_ref());
        observed.balancer = match change {
            Change::Create { body, .. } => Some(reply.cloned().unwrap_or_else(|| Balancer::planned(body))),
            Change::Update { body, .. } => observed
                .balancer
                .as_ref()
                .map(|balancer| balancer.after(body, reply)),
            Change::Delete { .. } => None,
        };
    }

    fn rekey(&self, key: &Key, observed: &Observed) -> Option<Key> {
        let id = observed.balancer.as_ref().map(Indexed::id)?;
        let now = Key::Balancer(id.to_owned());
        (!id.is_empty() && now != *key).then_some(now)
    }

    fn facts(&self, key: &Key, member: &PartMember, observed: &Observed) -> Option<PartOutput<()>> {
        let service = &member.service;
        let mut effects = Effects::default();
        if member.membership == Membership::Leaving {
            let left = |balancer: &Balancer| *key == Key::Balancer(balancer.id().to_owned());
            let id = service.annotation(annotations::ID);
            let stays = observed
                .balancer
                .as_ref()
                .is_some_and(|balancer| names(service, balancer) && left(balancer));
            if id.is_some() && !stays && !service.wants_load_balancer() {
                effects.annotations.insert(annotations::ID.to_owned(), None);
                // It may be the user's, but says what holds without it.
                if service.annotation(annotations::TYPE) == Some(self.settings.default_type.as_str()) {
                    effects.annotations.insert(annotations::TYPE.to_owned(), None);
                }
            }
            return Some(PartOutput { facts: (), effects });
        }
        let balancer = observed.balancer.as_ref()?;
        let is_its = member.membership == Membership::Active || names(service, balancer);
        if !is_its || !(balancer.is_active() || balancer.id().is_empty()) {
            return None;
        }
        let mut set = |key: &str, value: &str| {
            effects.annotations.insert(key.to_owned(), Some(value.to_owned()));
        };
        if !balancer.id().is_empty() {
            set(annotations::ID, balancer.id());
        }
        // Another type that the Service asks for stays, and is blocked.
        let asked = service.annotation(annotations::TYPE).unwrap_or_default();
        if asked.is_empty() || asked == balancer.kind() {
            set(annotations::TYPE, balancer.kind());
        }
        let renewed = observed.renewed.contains(&service.id);
        if let Some(certificate) = balancer.certificate().filter(|_| renewed) {
            set(annotations::CERTIFICATE_ID, certificate);
        }
        effects.ingress = ingress(service, balancer);
        Some(PartOutput { facts: (), effects })
    }
}

impl Wanted {
    fn plan(&self, balancer: &Balancer) -> Plan<Change> {
        let is_foreign = self.tags.foreign(balancer).is_some();
        let takes_over = self.named.as_deref() == Some(balancer.id());
        if is_foreign && !takes_over {
            return Plan::default();
        }
        let step = update(
            balancer,
            self.fields.clone(),
            &self.tags,
            is_foreign,
            Some(&self.unread),
        );
        let blocked = self.requested.iter().filter_map(|(field, want)| {
            let have = balancer.shown(field);
            let have = match (*field, have.as_str()) {
                // The API's defaults.
                ("type", "") => "REGIONAL".to_owned(),
                ("network", "") => "EXTERNAL".to_owned(),
                _ => have,
            };
            // What the API does not show is not known to differ.
            (!have.is_empty() && have != *want).then(|| Blocked {
                service: Some(self.service.clone()),
                field: format!("{field} of load balancer {}", balancer.name()),
                have,
                want: want.clone(),
            })
        });
        Plan {
            steps: step
                .map(|step| step.for_service(Some(&self.service)))
                .into_iter()
                .collect(),
            blocked: blocked.collect(),
        }
    }
}

/// The one write that makes the fields these. Our tags come with a write that is due anyway, so that a takeover writes
/// nothing; another cluster's tag is replaced at once (`retags`).
fn update(
    balancer: &Balancer,
    mut fields: Map<String, Value>,
    tags: &ClusterTags,
    retags: bool,
    unread: Option<&Unread>,
) -> Option<Step<Change>> {
    let is_due = retags || balancer.edit(&fields).is_some();
    if !is_due {
        return None;
    }
    fields.insert("tags".to_owned(), json!(tags.added_to(balancer)));
    let (document, changes) = balancer
        .edit(&fields)
        .unwrap_or_else(|| (balancer.copy(), Vec::new()));
    let change = Change::Update {
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
    let addresses = [balancer.text("ip"), balancer.text("ipv6")].into_iter();
    let ingress: Vec<_> = addresses
        .filter(|address| !address.is_empty())
        .map(|address| Ingress {
            ip: Some(address.into()),
            ip_mode: Some(mode),
            ..Ingress::default()
        })
        .collect();
    (!ingress.is_empty()).then_some(ingress)
}
