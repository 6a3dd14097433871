//! Whether nodes whose machines are proven gone may be deleted: the brake. And whether one node, as it was just read, is
//! still the one that is to be deleted. Pure.
//!
//! Brake (a): nothing is deleted unless a node of this cloud was Present in the same pass. Wrong credentials, a wrong
//! project or a wrong region answer "not found" for everything.
//!
//! Brake (b): if more than a share of the nodes, and more than a few, seem gone, they go one a minute. A node without a
//! provider ID counts as well if nothing in the cloud has its name: a cloud that leaves machines out of its lists must
//! not cost all of them at once. Nodes that the autoscaler tainted before it deleted their machines do not count, and
//! do not wait.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    controllers::{NodeObject, node::Ready},
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::not_ready::{Answer, Finding, NotReadyNodes, is_managed};
use crate::controllers::{
    node_action::NodeAction,
    node_object::{AUTOSCALER_TAINT, SHUTDOWN_TAINT},
};

/// That many nodes may always go at once.
const FEW: usize = 3;
/// The time between two deletions while the brake is on.
pub(super) const SLOWLY: Duration = Duration::from_secs(60);
/// For how long a deletion counts as one of the nodes that seem gone. Otherwise nodes that turn not ready one after
/// another would never be many.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Why a node is not deleted although its machine is proven gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum BlockReason {
    /// No other node was found under the credentials in use.
    NothingPresent,
    /// Too many seem gone at once.
    Share,
}

impl BlockReason {
    pub(super) const ALL: [Self; 2] = [Self::NothingPresent, Self::Share];

    /// The label of metrics and logs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::NothingPresent => "nothing-present",
            Self::Share => "deletion-share",
        }
    }
}

/// What the brake knows of all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    /// Whether a node of this cloud was Present in this pass.
    pub(super) present: bool,
    /// How many nodes have a provider ID of this cloud, or seem gone without one.
    pub(super) all: usize,
    /// How many nodes' last answer is Absent or Unresolved, those that the autoscaler marked left out.
    pub(super) gone: usize,
    /// `--node-deletion-share`.
    pub(super) share: f64,
}

impl Whole {
    pub(super) fn of(
        not_ready: &NotReadyNodes,
        nodes: &[Arc<NodeObject>],
        cloud: &dyn Cloud,
        present: bool,
        share: f64,
    ) -> Self {
        let owned = |node: &NodeObject| {
            let id = node.view.provider_id.as_deref();
            id.is_some_and(|id| cloud.owns(id))
        };
        let gone = |answer| matches!(answer, Some(Answer::Absent | Answer::Unresolved));
        let gone = not_ready
            .iter()
            .filter(|known| gone(known.answer) && counts(&known.node));
        let gone: Vec<_> = gone.map(|known| owned(&known.node)).collect();
        let foreign = gone.iter().filter(|owned| !**owned).count();
        Self {
            present,
            all: nodes.iter().filter(|node| owned(node)).count() + foreign,
            gone: gone.len(),
            share,
        }
    }
}

/// What becomes of nodes that are proven gone, in the order in which they came.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) delete: Vec<Arc<NodeObject>>,
    pub(super) blocked: Vec<(Arc<NodeObject>, BlockReason)>,
    /// With nodes that were deleted a moment ago.
    pub(super) whole: Whole,
}

/// The brake's memory: which deletions there were.
#[derive(Debug, Default)]
pub(super) struct Brake {
    /// Deletions that count, the latest last.
    recent: VecDeque<Instant>,
    /// Deletions under way that count.
    under_way: usize,
}

/// Whether the deletion of a node is blocked by the share of nodes that seem gone. A node that was never initialized counts, too.
pub(super) fn counts(node: &NodeObject) -> bool {
    !node.has_taint(AUTOSCALER_TAINT)
}

impl Brake {
    /// Decides about the nodes that are proven gone.
    pub(super) fn decide(&mut self, proven: Vec<Arc<NodeObject>>, whole: &Whole, now: Instant) -> Decision {
        self.recent.retain(|at| *at + REMEMBERED > now);
        // What was deleted a moment ago was there a moment before. What is under way is still among the nodes.
        let mut decision = Decision {
            delete: Vec::new(),
            blocked: Vec::new(),
            whole: Whole {
                gone: whole.gone + self.recent.len(),
                all: whole.all + self.recent.len(),
                ..*whole
            },
        };
        let Whole { gone, all, .. } = decision.whole;
        let slow = gone > FEW && as_f64(gone) > whole.share * as_f64(all);
        let free = self.under_way == 0 && self.next_slot().is_none_or(|slot| slot <= now);
        let mut slots = if slow { usize::from(free) } else { usize::MAX };
        for node in proven {
            if !whole.present {
                decision.blocked.push((node, BlockReason::NothingPresent));
            } else if !counts(&node) {
                decision.delete.push(node);
            } else if slots > 0 {
                slots -= 1;
                self.under_way += 1;
                decision.delete.push(node);
            } else {
                decision.blocked.push((node, BlockReason::Share));
            }
        }
        decision
    }

    /// When the next one may go while the brake is on.
    pub(super) fn next_slot(&self) -> Option<Instant> {
        self.recent.back().map(|last| *last + SLOWLY)
    }

    /// A deletion of a node that [`counts`] ended. `done` if the node is gone by it, or may be.
    pub(super) fn ended(&mut self, done: bool, now: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
        if done {
            self.recent.push_back(now);
        }
    }
}

/// Why a node that is proven gone is deleted.
pub(super) fn why_gone(node: &NodeObject) -> String {
    match &node.view.provider_id {
        Some(id) => format!("it is not ready, and the cloud has no {id}"),
        None => "it is not ready, and the cloud has nothing of its name".to_owned(),
    }
}

/// The shutdown taint of nodes whose machines were found to be switched off.
pub(super) fn shutdowns(
    not_ready: &NotReadyNodes,
    findings: &[Finding],
) -> Vec<(Arc<NodeObject>, NodeAction)> {
    let (key, effect) = SHUTDOWN_TAINT;
    let known = findings
        .iter()
        .filter_map(|finding| not_ready.get(&finding.view.name));
    known
        .filter(|known| known.answer == Some(Answer::Off) && !known.node.has_exact_taint(key, effect))
        .map(|known| (Arc::clone(&known.node), NodeAction::SetShutdownTaint(true)))
        .collect()
}

/// Whether the node is ready and still has the shutdown taint.
pub(super) fn is_recovered(node: &NodeObject) -> bool {
    let (key, effect) = SHUTDOWN_TAINT;
    node.ready == Ready::True && node.meta.deletion_timestamp.is_none() && node.has_exact_taint(key, effect)
}

fn as_f64(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

/// Why a node, as it was just read, is not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another node has its name.
    OtherNode,
    /// Another client deletes it.
    Deleting,
    /// It is ready again.
    Ready,
    /// Its provider ID is another one, or it was initialised.
    OtherMachine,
    /// It is too young, by this much.
    Young(Duration),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherNode => "another node has its name",
            Self::Deleting => "it is being deleted",
            Self::Ready => "it is ready again",
            Self::OtherMachine => "its provider ID has changed",
            Self::Young(_) => "it is too young",
        })
    }
}

/// Whether the node as it was just `read` is still the one that was `decided` on. `now` is the API server's time
/// if it is known: a wrong local clock must not make a node look old.
pub(super) fn check(
    decided: &NodeObject,
    read: &NodeObject,
    now: Timestamp,
    grace: Duration,
) -> Result<(), Refusal> {
    if read.view.uid != decided.view.uid {
        return Err(Refusal::OtherNode);
    }
    if read.meta.deletion_timestamp.is_some() {
        return Err(Refusal::Deleting);
    }
    if read.ready == Ready::True {
        return Err(Refusal::Ready);
    }
    if read.view.provider_id != decided.view.provider_id || !is_managed(read, |_| true) {
        return Err(Refusal::OtherMachine);
    }
    // Without a time of creation nothing is known of its age.
    let created = read
        .meta
        .creation_timestamp
        .as_ref()
        .map_or(now, |created| created.0);
    let age = Duration::try_from(now.duration_since(created)).unwrap_or(Duration::ZERO);
    match grace.checked_sub(age) {
        Some(missing) if !missing.is_zero() => Err(Refusal::Young(missing)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
