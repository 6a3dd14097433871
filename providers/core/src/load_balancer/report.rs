//! The results of a provider: discoveries and reports of passes.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Claim, PartKey, service::ServiceId};
use crate::Error;

/// The parts of the Services.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// All parts that a Service joins or leaves, without duplicates, in an order in which few of them must be run twice.
    pub parts: Vec<PartKey>,
    /// One for each Service of the snapshot, in its order.
    pub services: Vec<ServiceParts>,
    /// Objects in the cloud that carry this cluster's tag or name, and whose Service does not exist.
    pub orphans: Vec<OrphanPart>,
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
    /// Annotations that are written although it is not `finished`: they name an object that the cloud has begun to create.
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

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    /// Whether the part must be idle: the step waits until the cloud has finished the part's last change. A step that is
    /// sent before that must be done at once.
    pub needs_idle: bool,
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
            reason: String::new(),
            service: None,
        }
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
