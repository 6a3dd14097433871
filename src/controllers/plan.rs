//! The actions that the controllers would apply: the result of `plan`, and the values that `--dry-run` compares.
//!
//! A controller decides on *actions*, whose `Display` is the sentence of a plan. The running program applies them; a plan
//! collects them as [`PlannedChange`]s. Each controller has a `plan` beside its loop that asks the same questions and calls the
//! same decisions.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use ccm_core::load_balancer::Effect;
use ipnet::IpNet;
use serde::{Serialize, Serializer};

/// All findings at one moment. The order depends on nothing but the content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Every Service and node that was read, and the parts and routes with a finding.
    objects: BTreeMap<Object, Findings>,
    /// Objects that could not be read.
    pub(crate) problems: BTreeSet<PlanProblem>,
}

/// The object of a finding. `Display` names it in the log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub(crate) enum Object {
    /// A Service, as `namespace/name`.
    Service { service: String },
    /// A part of the cloud that several Services share, or none.
    Part {
        part: String,
        services: BTreeSet<String>,
    },
    /// A node.
    Node { node: String },
    /// A route of the cloud.
    Route {
        #[serde(serialize_with = "as_text")]
        destination: IpNet,
        /// The node that has Pods there; none if no node has.
        node: Option<String>,
    },
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service { service } => write!(f, "Service {service}"),
            Self::Part { part, .. } => f.write_str(part),
            Self::Node { node } => write!(f, "node {node}"),
            Self::Route {
                destination,
                node: Some(node),
            } => write!(f, "route {destination} (node {node})"),
            Self::Route { destination, .. } => write!(f, "route {destination}"),
        }
    }
}

/// The findings about one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Findings {
    /// The actions that would be applied, in order.
    pub(crate) changes: Vec<PlannedChange>,
    /// Differences that would stay.
    pub(crate) blocked: Vec<Blocked>,
    /// Warnings beside that.
    pub(crate) warnings: Vec<String>,
}

/// An action as a plan shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PlannedChange {
    pub(crate) effect: Effect,
    pub(crate) kind: Kind,
    /// A sentence.
    pub(crate) what: String,
    /// The reason; empty where that is plain.
    pub(crate) why: String,
    /// The part of the cloud that is changed; none for an object of the cluster.
    pub(crate) part: Option<String>,
}

impl PlannedChange {
    /// The sentence of `action`, without a reason and a part.
    pub(crate) fn new(effect: Effect, kind: Kind, action: &impl fmt::Display) -> Self {
        Self {
            effect,
            kind,
            what: action.to_string(),
            why: String::new(),
            part: None,
        }
    }
}

/// The group that a change belongs to. Text output groups changes of nodes by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Something in the cloud.
    Cloud,
    /// Finalizer, annotations or status of a Service.
    Service,
    /// A node gets provider ID, addresses and labels, and loses its taint.
    Initialize,
    /// A node's labels.
    Labels,
    /// A node's addresses.
    Addresses,
    /// The taint of a node whose instance is switched off.
    Taint,
    /// The condition NetworkUnavailable of a node.
    Network,
    /// A node whose instance does not exist.
    DeleteNode,
    /// A route of the cloud, with the additions beside it.
    Route,
}

/// A difference that would stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Blocked {
    /// A sentence.
    pub(crate) what: String,
    /// The field, if one differs, ..
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// .. its observed value, ..
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) have: Option<String>,
    /// .. and the desired one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) want: Option<String>,
}

impl From<String> for Blocked {
    fn from(what: String) -> Self {
        Self {
            what,
            ..Self::default()
        }
    }
}

/// Something that could not be determined, so that the plan is not complete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct PlanProblem {
    /// Its object: a part of the cloud, nodes.
    pub(crate) about: String,
    pub(crate) error: String,
}

impl Findings {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// An action that would be applied.
    pub(crate) fn act(&mut self, action: impl Into<PlannedChange>) {
        self.changes.push(action.into());
    }

    /// Adds these findings.
    pub(crate) fn append(&mut self, other: Self) {
        self.changes.extend(other.changes);
        other.blocked.into_iter().for_each(|blocked| self.block(blocked));
        other.warnings.into_iter().for_each(|warning| self.warn(warning));
    }

    /// A difference that would stay. It is listed once.
    pub(crate) fn block(&mut self, blocked: impl Into<Blocked>) {
        push_new(&mut self.blocked, blocked.into());
    }

    /// A warning. It is listed once.
    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        push_new(&mut self.warnings, warning.into());
    }
}

fn push_new<T: PartialEq>(all: &mut Vec<T>, new: T) {
    if !all.contains(&new) {
        all.push(new);
    }
}

impl Plan {
    /// The findings about this object.
    pub(crate) fn of(&mut self, object: Object) -> &mut Findings {
        self.objects.entry(object).or_default()
    }

    pub(crate) fn service(&mut self, service: impl fmt::Display) -> &mut Findings {
        self.of(Object::Service {
            service: service.to_string(),
        })
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut Findings {
        self.of(Object::Node {
            node: name.to_owned(),
        })
    }

    pub(crate) fn route(&mut self, destination: IpNet, node: Option<&str>) -> &mut Findings {
        self.of(Object::Route {
            destination,
            node: node.map(str::to_owned),
        })
    }

    pub(crate) fn problem(&mut self, about: impl Into<String>, error: impl Into<String>) {
        self.problems.insert(PlanProblem {
            about: about.into(),
            error: error.into(),
        });
    }

    /// All objects in order: Services, parts, nodes, routes.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&Object, &Findings)> {
        self.objects.iter()
    }
}
