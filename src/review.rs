//! What this program would do, for people and programs that look before it does: `plan`, `--dry-run`.
//!
//! Each controller has a `review` beside its loop. It asks the same pure decisions the same questions and puts what
//! follows in here in place of carrying it out. So there is no second set of rules that could come to something else.
//!
//! | Part | Holds |
//! |---|---|
//! | this file | what there is to say, and what it comes to |
//! | [`look`] | the cluster at one moment, and what all controllers say of it |
//! | [`text`] | the same for people to read |
//! | [`json`] | the same for programs |
//! | [`standing`] | `--dry-run`: looks again and again, and says what is new |
//!
//! Routes of the cloud are a list of their own, by destination and node; what a node says of them is among the node's.

mod json;
mod look;
mod standing;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use ccm_core::load_balancer::Effect;
use ipnet::IpNet;
use serde::Serialize;

pub(crate) use json::render as as_json;
pub(crate) use look::{Cluster, Looker, Scope, marks};
pub(crate) use standing::{Standing, run as stand};
pub(crate) use text::render as as_text;

/// Everything that was found out at one moment. All lists are in an order that depends on nothing but their content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Review {
    /// By `namespace/name`; every Service that was looked at.
    pub(crate) services: BTreeMap<String, Subject>,
    /// What concerns parts of the cloud that several Services share, or none. By the part's name.
    pub(crate) shared: BTreeMap<String, Shared>,
    /// By name; every node that was looked at.
    pub(crate) nodes: BTreeMap<String, Subject>,
    /// The routes about which there is something to say.
    pub(crate) routes: BTreeMap<RouteId, Subject>,
    /// What could not be found out.
    pub(crate) problems: BTreeSet<Problem>,
}

/// What is to be said about a Service, a node or a part of the cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Subject {
    /// What would be done, in order.
    pub(crate) changes: Vec<Change>,
    /// What differs and would stay so.
    pub(crate) blocked: Vec<Blocked>,
    /// What a person should know beside that.
    pub(crate) warnings: Vec<String>,
}

/// A part of the cloud with what concerns it as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shared {
    /// Whom it serves, as `namespace/name`.
    pub(crate) services: BTreeSet<String>,
    pub(crate) subject: Subject,
}

/// A route, by what it is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId {
    /// Where packets are for.
    pub(crate) destination: IpNet,
    /// The node that has Pods there; none if no node has.
    pub(crate) node: Option<String>,
}

impl fmt::Display for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {}", self.destination)?;
        match &self.node {
            Some(node) => write!(f, " (node {node})"),
            None => Ok(()),
        }
    }
}

/// One thing that would be done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Change {
    pub(crate) effect: EffectOf,
    pub(crate) kind: Kind,
    /// A sentence.
    pub(crate) what: String,
    /// Why; empty where that is plain.
    pub(crate) why: String,
    /// The part of the cloud that is changed; none for an object of the cluster.
    pub(crate) part: Option<String>,
}

/// [`Effect`] in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EffectOf {
    Create,
    Change,
    Delete,
}

impl From<Effect> for EffectOf {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Create => Self::Create,
            Effect::Change => Self::Change,
            Effect::Delete => Self::Delete,
        }
    }
}

impl EffectOf {
    pub(crate) const ALL: [Self; 3] = [Self::Create, Self::Change, Self::Delete];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Change => "change",
            Self::Delete => "delete",
        }
    }
}

/// What kind of thing would be done. By this, changes of nodes are grouped.
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
    /// The taint of a node whose machine is switched off.
    Taint,
    /// The condition NetworkUnavailable of a node.
    Network,
    /// A node whose machine is gone.
    DeleteNode,
    /// A route of the cloud, with what is beside it.
    Route,
}

/// A difference that would stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Blocked {
    /// A sentence.
    pub(crate) what: String,
    /// What differs, if it is one thing, ..
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    /// .. how it is, ..
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) have: Option<String>,
    /// .. and how it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) want: Option<String>,
}

impl Blocked {
    pub(crate) fn because(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }
}

/// Something that could not be found out, so that the review is not complete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Problem {
    /// About what: a part of the cloud, nodes.
    pub(crate) about: String,
    pub(crate) error: String,
}

/// What a review comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything is as it should be.
    Nothing,
    /// There is something to do.
    Changes,
    /// Something differs, and nothing would be done about it.
    Blocked,
    /// Not everything could be found out.
    Incomplete,
}

impl Verdict {
    /// The exit code of `plan`.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Nothing => 0,
            Self::Incomplete => 1,
            Self::Changes => 2,
            Self::Blocked => 3,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Changes => "changes",
            Self::Blocked => "blocked",
            Self::Incomplete => "incomplete",
        }
    }
}

/// A review in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    pub(crate) create: usize,
    pub(crate) change: usize,
    pub(crate) delete: usize,
    pub(crate) blocked: usize,
    pub(crate) warnings: usize,
    pub(crate) problems: usize,
}

impl Summary {
    pub(crate) fn of(&self, effect: EffectOf) -> usize {
        match effect {
            EffectOf::Create => self.create,
            EffectOf::Change => self.change,
            EffectOf::Delete => self.delete,
        }
    }

    pub(crate) fn verdict(&self) -> Verdict {
        if self.problems > 0 {
            Verdict::Incomplete
        } else if self.create + self.change + self.delete > 0 {
            Verdict::Changes
        } else if self.blocked > 0 {
            Verdict::Blocked
        } else {
            Verdict::Nothing
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            create,
            change,
            delete,
            ..
        } = self;
        write!(f, "{create} to create, {change} to change, {delete} to delete")?;
        let further = [
            (self.blocked, "blocked"),
            (self.problems, "not found out"),
            (
                self.warnings,
                if self.warnings == 1 { "warning" } else { "warnings" },
            ),
        ];
        let mut sign = ";";
        for (number, name) in further.into_iter().filter(|(number, _)| *number > 0) {
            write!(f, "{sign} {number} {name}")?;
            sign = ",";
        }
        Ok(())
    }
}

impl Subject {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Something that would be done to an object of the cluster.
    pub(crate) fn change(&mut self, effect: EffectOf, kind: Kind, what: String, why: impl Into<String>) {
        self.changes.push(Change {
            effect,
            kind,
            what,
            why: why.into(),
            part: None,
        });
    }

    /// Something that stays as it is. Said once.
    pub(crate) fn block(&mut self, blocked: Blocked) {
        if !self.blocked.contains(&blocked) {
            self.blocked.push(blocked);
        }
    }

    /// Something to know. Said once.
    pub(crate) fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

impl Review {
    pub(crate) fn node(&mut self, name: &str) -> &mut Subject {
        self.nodes.entry(name.to_owned()).or_default()
    }

    pub(crate) fn route(&mut self, destination: IpNet, node: Option<&str>) -> &mut Subject {
        let id = RouteId {
            destination,
            node: node.map(str::to_owned),
        };
        self.routes.entry(id).or_default()
    }

    pub(crate) fn problem(&mut self, about: impl Into<String>, error: impl Into<String>) {
        self.problems.insert(Problem {
            about: about.into(),
            error: error.into(),
        });
    }

    /// All subjects, Services first.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = (Whose<'_>, &Subject)> {
        let services = self.services.iter();
        let shared = self.shared.iter();
        let nodes = self.nodes.iter();
        services
            .map(|(name, subject)| (Whose::Service(name), subject))
            .chain(shared.map(|(part, shared)| (Whose::Part(part), &shared.subject)))
            .chain(nodes.map(|(name, subject)| (Whose::Node(name), subject)))
            .chain(
                self.routes
                    .iter()
                    .map(|(id, subject)| (Whose::Route(id), subject)),
            )
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut summary = Summary {
            problems: self.problems.len(),
            ..Summary::default()
        };
        for (_, subject) in self.subjects() {
            for change in &subject.changes {
                match change.effect {
                    EffectOf::Create => summary.create += 1,
                    EffectOf::Change => summary.change += 1,
                    EffectOf::Delete => summary.delete += 1,
                }
            }
            summary.blocked += subject.blocked.len();
            summary.warnings += subject.warnings.len();
        }
        summary
    }
}

/// About whom something is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose<'a> {
    Service(&'a str),
    Part(&'a str),
    Node(&'a str),
    Route(&'a RouteId),
}

#[cfg(test)]
mod tests;
