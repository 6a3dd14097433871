//! The results of a provider: discoveries and reports of passes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{Claim, Ownership, PartKey, service::ServiceId};
use crate::Error;

/// The parts of the Services.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// One for each Service of the snapshot, in its order. Those that have not changed are the same values as in the last
    /// discovery.
    pub services: Vec<Arc<ServiceParts>>,
    /// Objects in the cloud that carry this cluster's tag or name, and whose Service does not exist. `None`: only
    /// [some Services](super::Request::services) were looked up.
    pub orphans: Option<Vec<OrphanPart>>,
}

impl Discovery {
    /// All parts that a Service joins or leaves, without duplicates, in an order in which few of them must be run twice.
    #[must_use]
    pub fn parts(&self) -> Vec<PartKey> {
        ServiceParts::in_order(self.services.iter().map(AsRef::as_ref))
    }
}

/// The parts of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceParts {
    /// The Service.
    pub service: ServiceId,
    /// The controller that is responsible for it. If it is not ours, it has no parts.
    pub claim: Claim,
    /// The parts that it names, in the order in which they are set up.
    pub joins: Vec<PartKey>,
    /// The parts that (may) still have its ownership tag and that it no longer names. Left in reverse order.
    pub leaves: Vec<PartKey>,
    /// Whether labels of nodes decide which of them serve it.
    pub selects_by_labels: bool,
    /// The load balancer that it had before, if another controller is responsible for it now and it has our finalizer.
    pub former: Option<FormerLoadBalancer>,
}

impl ServiceParts {
    /// All parts of these Services, without duplicates, in an order in which few passes have to wait: first those that are
    /// joined, in order, then those that are left, in reverse.
    pub fn in_order<'a>(services: impl Iterator<Item = &'a Self> + Clone) -> Vec<PartKey> {
        let joins = services.clone().map(|service| service.joins.len()).max().unwrap_or(0);
        let mut ranks: BTreeMap<&PartKey, usize> = BTreeMap::new();
        for service in services {
            let leaves = service.leaves.iter().rev().enumerate().map(|(rank, part)| (joins + rank, part));
            for (rank, part) in service.joins.iter().enumerate().chain(leaves) {
                let known = ranks.entry(part).or_default();
                *known = rank.max(*known);
            }
        }
        let mut parts: Vec<_> = ranks.into_iter().collect();
        // Parts of the same rank stay in the order of their names.
        parts.sort_by_key(|(_, rank)| *rank);
        parts.into_iter().map(|(part, _)| part.clone()).collect()
    }
}

/// The load balancer that a Service had from this provider, when another controller is responsible for the Service now.
///
/// A process that did not see the change knows only that the Service has our finalizer. Another controller may use the same
/// finalizer, so that the cloud must prove that the load balancer is ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FormerLoadBalancer {
    /// The cloud shows none.
    #[default]
    Missing,
    /// It was created for the Service in this cluster. With its description, for people.
    Ours(String),
    /// It may belong to another cluster.
    Unproven {
        /// Its description, for people.
        what: String,
        /// Why it may belong to another cluster: `it has the tag kube_cluster_id_.. of another cluster`.
        why: String,
    },
}

impl FormerLoadBalancer {
    /// The load balancer `what` with the Service's name and this owner. `is_identified`: its name contains the UID of the
    /// Service, or one of its members is a node of the cluster by the instance's ID.
    #[must_use]
    pub fn new(what: String, ownership: &Ownership, is_identified: bool) -> Self {
        let why = match ownership {
            Ownership::Ours => return Self::Ours(what),
            Ownership::Adopted if is_identified => return Self::Ours(what),
            Ownership::Adopted => "it has no ownership tag of this cluster".to_owned(),
            Ownership::Foreign(tag) => format!("it has the tag {tag} of another cluster"),
            Ownership::Unverified => "the ownership tag of this cluster is not known".to_owned(),
        };
        Self::Unproven { what, why }
    }
}

/// Something in the cloud that belongs to a Service of this cluster that does not exist.
///
/// It is reported. A pass deletes it only if it is `deletable` and [`Request::delete_orphan`] permits it.
///
/// [`Request::delete_orphan`]: super::Request::delete_orphan
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrphanPart {
    /// The part in which it is.
    pub part: PartKey,
    /// Its description, for people: `load balancer kube_service_a_b_c (0f3a..)`.
    pub what: String,
    /// Whether it is a whole load balancer with this cluster's ownership tag, its current name and no other user.
    pub deletable: bool,
}

/// The result of a pass over one part.
#[derive(Clone, Debug)]
pub struct PartReport {
    /// The requested part.
    pub part: PartKey,
    /// The part's current name, if a create changed it. Parked work continues under the new name. The old one is valid until
    /// the cloud's listings show the new one.
    pub renamed: Option<PartKey>,
    /// The state in which it ended.
    pub state: PartState,
    /// The steps of this call, in order. The last one may have failed.
    pub steps: Vec<StepReport>,
    /// The number of all steps of the pass, those before it was parked included.
    pub pass_steps: usize,
    /// Every member.
    pub members: Vec<MemberReport>,
    /// Differences that cannot be changed in place and are left unchanged.
    pub blocked: Vec<Blocked>,
    /// Events for members.
    pub events: Vec<ServiceEvent>,
    /// Parts that waited for this pass and should be run now.
    pub next: Vec<PartKey>,
}

impl PartReport {
    /// Removes entries that concern only other Services. Entries for the part as a whole are kept.
    pub(crate) fn keep_only(&mut self, service: &ServiceId) {
        self.members.retain(|member| &member.service == service);
        self.events.retain(|event| &event.service == service);
        let concerns = |of: &Option<ServiceId>| of.as_ref().is_none_or(|of| of == service);
        self.steps.retain(|step| concerns(&step.description.service));
        self.blocked.retain(|blocked| concerns(&blocked.service));
    }
}

/// The result of a pass.
#[derive(Clone, Debug)]
pub enum PartState {
    /// The observed state is the desired one, except for blocked differences and frozen members.
    Done,
    /// The cloud has not finished a change, or is busy. Not a failure. Run the part again at `until`.
    Parked {
        /// When to run the part again.
        until: Instant,
        /// When the wait began.
        since: Instant,
        /// The reason of the wait, for people.
        why: String,
    },
    /// Nothing was changed because a known object is not visible, and the credentials may be wrong. The text names the object.
    /// Finalizers are kept.
    Blocked(String),
    /// The pass failed. Retry with backoff.
    Failed(Error),
}

impl PartState {
    /// The metric label.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Parked { .. } => "parked",
            Self::Blocked(_) => "blocked",
            Self::Failed(_) => "failed",
        }
    }
}

/// The result of a pass for one member.
#[derive(Clone, Debug)]
pub struct MemberReport {
    /// The Service.
    pub service: ServiceId,
    /// The result for this part.
    pub state: MemberState,
    /// Whether a step of this pass was for it or for the part as a whole.
    pub touched: bool,
    /// The effects of all its parts on the Service object. Complete only if `finished`: before that, some may not be known
    /// yet.
    pub effects: Effects,
    /// Annotations and conditions that are written although it is not `finished`. The annotations name an object that the cloud
    /// has begun to create; the conditions say why it is refused.
    pub early: Effects,
    /// Nothing is left to do for this Service in any part: its current parts serve it, and its objects in parts that it left
    /// are deleted. Then its status may be written, and the finalizer may be removed if it no longer wants a load balancer.
    pub finished: bool,
}

/// The result of a pass for a member.
#[derive(Clone, Debug)]
pub enum MemberState {
    /// The part serves it as its spec asks.
    Served,
    /// The pass has not ended.
    Pending,
    /// It keeps its objects for now, for this reason.
    Frozen(String),
    /// Its spec is invalid, or a step failed. It keeps its objects.
    Refused(Error),
    /// The part has no object of it.
    Left,
}

/// The desired metadata and status of a Service object. Parts of one Service are merged in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// `status.loadBalancer.ingress`. `None`: this part does not know.
    pub ingress: Option<Vec<Ingress>>,
    /// Annotations to set or, with `None`, to remove.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Conditions to set, by their type.
    pub conditions: BTreeMap<String, Condition>,
}

impl Effects {
    /// Sets an annotation, or removes it.
    pub fn annotate(&mut self, key: &str, value: Option<&str>) {
        self.annotations.insert(key.to_owned(), value.map(str::to_owned));
    }

    /// Adds the effects of a later part, which take precedence.
    pub fn merge(&mut self, later: &Self) {
        if later.ingress.is_some() {
            self.ingress.clone_from(&later.ingress);
        }
        self.annotations
            .extend(later.annotations.iter().map(|(key, value)| (key.clone(), value.clone())));
        self.conditions
            .extend(later.conditions.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ingress {
    /// `ip`.
    pub ip: Option<Arc<str>>,
    /// `hostname`.
    pub hostname: Option<Arc<str>>,
    /// `ipMode`. The API server sets it to `VIP` if `ip` is set, so `None` and `Vip` are the same then.
    pub ip_mode: Option<IpMode>,
}

impl Ingress {
    /// An address.
    #[must_use]
    pub fn address(ip: &str, mode: IpMode) -> Self {
        Self {
            ip: Some(ip.into()),
            ip_mode: Some(mode),
            ..Self::default()
        }
    }

    /// A host name.
    #[must_use]
    pub fn name(hostname: &str) -> Self {
        Self {
            hostname: Some(hostname.into()),
            ..Self::default()
        }
    }
}

/// `ipMode` of an ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpMode {
    /// Traffic arrives at the nodes with the load balancer's address as its destination.
    Vip,
    /// Traffic arrives with a node's or a pod's address as its destination.
    Proxy,
}

/// One entry of `status.conditions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Condition {
    /// `type`.
    pub kind: Arc<str>,
    /// `status` is `True`.
    pub is_true: bool,
    /// `reason`.
    pub reason: Arc<str>,
    /// `message`.
    pub message: Arc<str>,
}

/// An event about a Service. Every pass returns it for as long as its cause lasts; the caller reports it when it is new.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceEvent {
    /// The Service.
    pub service: ServiceId,
    /// The event's reason.
    pub reason: &'static str,
    /// The event's message.
    pub message: String,
    /// A Warning; otherwise Normal.
    pub warning: bool,
}

impl ServiceEvent {
    /// A Warning about a Service.
    #[must_use]
    pub fn warning(service: &ServiceId, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            service: service.clone(),
            reason,
            message: message.into(),
            warning: true,
        }
    }
}

/// A difference that the cloud cannot change in place. Everything else is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocked {
    /// The Service that asks for it; `None`: the part as a whole.
    pub service: Option<ServiceId>,
    /// The field that differs: `flavor of load balancer kube_service_a_b_c`.
    pub field: String,
    /// The observed value.
    pub observed: String,
    /// The desired value.
    pub desired: String,
}

impl Blocked {
    /// The desired value of a field or annotation that is left as it is on purpose. The observed value then says why, in a clause.
    pub const UNCHANGED: &'static str = "left unchanged";
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.desired == Self::UNCHANGED {
            return write!(f, "{}: {}", self.field, self.observed);
        }
        let shown = |value: &str| match value {
            "" => "not set".to_owned(),
            value => value.to_owned(),
        };
        write!(
            f,
            "cannot change {} in place: observed {}, desired {}",
            self.field,
            shown(&self.observed),
            shown(&self.desired)
        )
    }
}

/// The effect of a step on the object that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Creates it.
    Create,
    /// Updates it.
    Change,
    /// Deletes it.
    Delete,
}

/// The description of a step, for reports, logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepDescription {
    /// The kind of step, as a metric label: `listener_create`.
    pub label: &'static str,
    /// The effect on the object. Before a step that creates or deletes, the engine ensures that the part was read within the
    /// last 30 seconds.
    pub effect: Effect,
    /// The step in words: `create listener tcp/443 on load balancer kube_service_a_b_web`.
    pub sentence: String,
    /// The object that the step creates, without its children; `None`: the sentence identifies it.
    pub creates: Option<String>,
    /// Whether the part must be idle: the step waits until the cloud has finished the changes of the part that it accepted,
    /// those of the same [objects](Self::objects) if it lists any.
    pub needs_idle: bool,
    /// The objects of the part that the step concerns. Steps on other objects are sent at the same time. `None`: the step is
    /// sent alone, when the steps before it have ended.
    pub objects: Option<StepObjects>,
    /// Whether the step is one of many that are alike, such as the membership of one machine. If the cloud refuses it
    /// permanently, the difference is reported as [`Blocked`], and the other steps continue.
    pub is_one_of_many: bool,
    /// Whether the step applies what several members ask for, such as the write of a document that all of them share. Such steps
    /// are written once for all changes of a short time. If the cloud refuses one permanently, the engine looks for the member
    /// that is the reason, and the step is sent without its changes.
    pub is_shared: bool,
    /// Why it is due: `connection limit 5 -> 10`. Empty if that is obvious.
    pub reason: String,
    /// The Service that the step is for; `None`: the part as a whole. If the step fails permanently, this Service is frozen
    /// and the others continue.
    pub service: Option<ServiceId>,
}

impl StepDescription {
    /// A step for the part as a whole that needs the part to be idle, without a reason.
    #[must_use]
    pub fn new(label: &'static str, effect: Effect, sentence: impl Into<String>) -> Self {
        Self {
            label,
            effect,
            sentence: sentence.into(),
            creates: None,
            needs_idle: true,
            objects: None,
            is_one_of_many: false,
            is_shared: false,
            reason: String::new(),
            service: None,
        }
    }
}

/// The objects of a part that a step concerns, by names that are unique in the part.
///
/// ```
/// use ccm_core::load_balancer::StepObjects;
///
/// // Waits until the steps before it on `pool web` and `address web` have ended. Later steps on these wait for it.
/// let rule = StepObjects::changing(["rule web"]).using(["pool web", "address web"]);
/// assert!(rule.uses.contains("pool web"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepObjects {
    /// The objects that it creates, updates or deletes.
    pub changes: BTreeSet<String>,
    /// Other objects that it needs: steps before it that change them must have ended, and steps after it that change them
    /// wait until it has ended.
    pub uses: BTreeSet<String>,
}

impl StepObjects {
    /// A step that creates, updates or deletes these objects.
    #[must_use]
    pub fn changing<T: Into<String>>(objects: impl IntoIterator<Item = T>) -> Self {
        Self {
            changes: objects.into_iter().map(Into::into).collect(),
            uses: BTreeSet::new(),
        }
    }

    /// Whether a step must wait until a step on these objects has ended.
    #[must_use]
    pub fn conflict_with(&self, other: &Self) -> bool {
        let has_shared = |one: &BTreeSet<String>, other: &BTreeSet<String>| !one.is_disjoint(other);
        has_shared(&self.changes, &other.changes)
            || has_shared(&self.changes, &other.uses)
            || has_shared(&self.uses, &other.changes)
    }

    /// The step also needs these objects.
    #[must_use]
    pub fn using<T: Into<String>>(mut self, objects: impl IntoIterator<Item = T>) -> Self {
        self.uses.extend(objects.into_iter().map(Into::into));
        self
    }
}

/// A step that was sent.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// The step.
    pub description: StepDescription,
    /// The result.
    pub result: Result<(), Error>,
    /// The duration of the request.
    pub took: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_left_unchanged_says_why() {
        let blocked = |desired: &str| Blocked {
            service: None,
            field: "annotation a/color".to_owned(),
            observed: "it has no effect".to_owned(),
            desired: desired.to_owned(),
        };
        let text = |desired| blocked(desired).to_string();
        assert_eq!(text(Blocked::UNCHANGED), "annotation a/color: it has no effect");
        assert_eq!(
            text("red"),
            "cannot change annotation a/color in place: observed it has no effect, desired red"
        );
    }

    #[test]
    fn effects_of_a_later_part_take_precedence() {
        let ingress = |ip: &str| {
            Some(vec![Ingress {
                ip: Some(ip.into()),
                ..Ingress::default()
            }])
        };
        let mut effects = Effects {
            ingress: ingress("10.0.0.1"),
            annotations: [("id".to_owned(), Some("1".to_owned())), ("old".to_owned(), None)].into(),
            ..Effects::default()
        };
        effects.merge(&Effects {
            annotations: [("id".to_owned(), Some("2".to_owned()))].into(),
            ..Effects::default()
        });
        assert_eq!(effects.ingress, ingress("10.0.0.1"), "the later part does not know");
        assert_eq!(effects.annotations.get("id"), Some(&Some("2".to_owned())));
        assert_eq!(effects.annotations.get("old"), Some(&None));
    }
}
