//! The results of a provider: discoveries, reports of passes, plans.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Claim, PartKey, service::ServiceId};
use crate::Error;

/// Which parts the Services have.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// All parts that a Service joins or leaves: each once, and in an order in which few of them have to be run twice.
    pub parts: Vec<PartKey>,
    /// One for each Service of the world, in its order.
    pub services: Vec<ServiceParts>,
    /// Objects in the cloud that carry this cluster's tag or name, and whose Service does not exist.
    pub orphans: Vec<OrphanPart>,
}

/// The parts of one Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceParts {
    /// Which one.
    pub service: ServiceId,
    /// Which controller is responsible for it. If it is not ours, it has no parts.
    pub claim: Claim,
    /// The parts that it names, in the order in which they are set up.
    pub joins: Vec<PartKey>,
    /// The parts on which its traces stand (or may stand) and that it names no more. Left in reverse order.
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
    /// What it is, for people: `load balancer kube_service_a_b_c (0f3a..)`.
    pub what: String,
    /// Whether it is a whole load balancer with this cluster's ownership tag, its current name and no other user.
    pub deletable: bool,
}

/// What a pass over one part came to.
#[derive(Clone, Debug)]
pub struct PartReport {
    /// The part as it was asked for.
    pub part: PartKey,
    /// The part's name now, if a create gave it another one. Parked work goes on under the new name; the old one is
    /// understood for as long as the cloud's listings do not show the new one.
    pub renamed: Option<PartKey>,
    /// How it ended.
    pub state: PartState,
    /// What this call did, in order. The last one may have failed.
    pub steps: Vec<StepReport>,
    /// How many steps the pass has done in all, those before it was parked included.
    pub pass_steps: usize,
    /// Every member.
    pub members: Vec<MemberReport>,
    /// What cannot be changed in place and stays as it is.
    pub blocked: Vec<Blocked>,
    /// Events for members.
    pub events: Vec<ServiceEvent>,
    /// Parts that should be run now because of what this pass did: they wait for it.
    pub next: Vec<PartKey>,
}

/// How a pass ended.
#[derive(Clone, Debug)]
pub enum PartState {
    /// Everything is as the members want it, but for what is blocked or held back.
    Done,
    /// The cloud is at work, or busy. Not a failure. Run the part again at `until`.
    Parked {
        /// When to come back.
        until: Instant,
        /// Since when it waits for the same thing.
        since: Instant,
        /// What it waits for, for people.
        why: String,
    },
    /// Nothing was changed because something that was known is not visible, and the credentials may be wrong. The text says
    /// what. Finalizers stay.
    Blocked(String),
    /// It failed. Try again with backoff.
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

/// What a pass came to for one member.
#[derive(Clone, Debug)]
pub struct MemberReport {
    /// Which Service.
    pub service: ServiceId,
    /// The result for this part.
    pub state: MemberState,
    /// Whether a step of this pass was for it or for the part as a whole.
    pub touched: bool,
    /// What all its parts together say about the Service object. Complete only if `finished`; before that, what is not
    /// in it is not known yet.
    pub effects: Effects,
    /// Nothing is left to do for this Service in any part: everything that it asks for serves, everything that it left
    /// is gone. Then its status may be written, and the finalizer may go if it wants no load balancer any more.
    pub finished: bool,
}

/// The result of a pass for a member.
#[derive(Clone, Debug)]
pub enum MemberState {
    /// The part does for it what it asks.
    Served,
    /// Not reached yet: the pass has not ended.
    Pending,
    /// It keeps what it has, for now, for this reason.
    Frozen(String),
    /// What it asks for is invalid, or failed. It keeps what it has.
    Refused(Error),
    /// Nothing of it is left in the part.
    Left,
}

/// What a Service object should say. Parts of one Service are merged in order.
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

    /// Adds what a later part says; it wins.
    pub fn merge(&mut self, later: &Self) {
        if later.ingress.is_some() {
            self.ingress.clone_from(&later.ingress);
        }
        self.annotations.extend(
            later
                .annotations
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        self.conditions.extend(
            later
                .conditions
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
    }
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ingress {
    /// `ip`.
    pub ip: Option<Arc<str>>,
    /// `hostname`.
    pub hostname: Option<Arc<str>>,
    /// `ipMode`. The API server makes it `VIP` where there is an `ip`, so `None` and `Vip` are the same there.
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
    /// About which Service.
    pub service: ServiceId,
    /// The event's reason.
    pub reason: &'static str,
    /// What to say.
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
    /// Which Service asks for it; `None`: the part as a whole.
    pub service: Option<ServiceId>,
    /// What differs: `flavor of load balancer kube_service_a_b_c`.
    pub field: String,
    /// How it is.
    pub have: String,
    /// How it was asked for.
    pub want: String,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &str| match value {
            "" => "not set".to_owned(),
            value => value.to_owned(),
        };
        write!(
            f,
            "the {} is {} and can not be made {} without making it anew",
            self.field,
            shown(&self.have),
            shown(&self.want)
        )
    }
}

/// What a step does to the thing that it names.
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

/// What a step does, for reports, logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepDescription {
    /// The kind of step, as a metric label: `listener_create`.
    pub label: &'static str,
    /// What it does to the object. Before a step that creates, the engine makes sure that the part was read in this very
    /// pass, not from a cache.
    pub effect: Effect,
    /// What it does: `create listener tcp/443 on load balancer kube_service_a_b_web`.
    pub sentence: String,
    /// Whether the part must be idle: the step waits until the cloud has finished the part's last change. A step that is
    /// sent while the cloud is at work must be done at once.
    pub needs_idle: bool,
    /// Why it is due: `connection limit 5 -> 10`. Empty where that is plain.
    pub reason: String,
    /// The Service that the step is for; `None`: the part as a whole. If the step fails for good, this Service is frozen
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
            needs_idle: true,
            reason: String::new(),
            service: None,
        }
    }
}

/// A step that was tried.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Which one.
    pub description: StepDescription,
    /// What became of it.
    pub result: Result<(), Error>,
    /// How long the request took.
    pub took: Duration,
}

/// What would be done to one part.
#[derive(Clone, Debug, Default)]
pub struct PartPlan {
    /// The part.
    pub part: Option<PartKey>,
    /// Its members.
    pub members: Vec<MemberPlan>,
    /// The steps, in order.
    pub steps: Vec<StepDescription>,
    /// What cannot be changed in place.
    pub blocked: Vec<Blocked>,
    /// Events that members would get.
    pub events: Vec<ServiceEvent>,
    /// Why the plan of this part is not complete.
    pub problem: Option<PlanProblem>,
}

impl PartPlan {
    /// Leaves out what is for other Services alone. What is for the part as a whole stays.
    pub(crate) fn keep_only(&mut self, service: &ServiceId) {
        self.members.retain(|member| &member.service == service);
        self.events.retain(|event| &event.service == service);
        let concerns = |of: &Option<ServiceId>| of.as_ref().is_none_or(|of| of == service);
        self.steps.retain(|step| concerns(&step.service));
        self.blocked.retain(|blocked| concerns(&blocked.service));
    }
}

/// Why the plan of a part is not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanProblem {
    /// Nothing would be changed, since something that was known is not visible ([`PartState::Blocked`]).
    Blocked(String),
    /// It could not be found out.
    Failed(String),
}

/// A member in a [`PartPlan`].
#[derive(Clone, Debug)]
pub struct MemberPlan {
    /// Which Service.
    pub service: ServiceId,
    /// How it would stand with the part afterwards.
    pub state: MemberState,
    /// What all its parts together would say about the Service object, as far as that is known beforehand.
    pub effects: Effects,
    /// Nothing would be left to do for the Service in any part: what it says would be written.
    pub finished: bool,
}

/// The status of a part, for the status page.
#[derive(Clone, Debug)]
pub struct PartStatus {
    /// The part.
    pub part: PartKey,
    /// Its members when it was last run.
    pub members: Vec<ServiceId>,
    /// How the last pass ended, in one line.
    pub state: String,
    /// When that was.
    pub at: Instant,
    /// Passes that failed since the last one that did not.
    pub failures: u32,
    /// Steps done since the process started.
    pub steps: u64,
    /// What cannot be changed in place.
    pub blocked: Vec<Blocked>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_part_says_wins() {
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
        assert_eq!(
            effects.ingress,
            ingress("10.0.0.1"),
            "the later part does not know"
        );
        assert_eq!(effects.annotations.get("id"), Some(&Some("2".to_owned())));
        assert_eq!(effects.annotations.get("old"), Some(&None));
    }
}
