//! Whether nodes whose machines are proven missing may be deleted: the brake. And whether one node, as it was just read, is
//! still the one that is to be deleted. Pure.
//!
//! Brake (a): nothing is deleted unless a node of this cloud was Present in the same pass. Wrong credentials, a wrong
//! project or a wrong region answer "not found" for everything.
//!
//! Brake (b): if more than a share of the nodes, and more than a few, seem missing, one a minute is deleted. A node without a
//! provider ID counts as well if nothing in the cloud has its name. So a cloud that leaves machines out of its lists does
//! not cost all of them at once. Nodes that the autoscaler tainted before it deleted their machines do not count, and
//! do not wait.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use ccm_core::{
    Cloud,
    controllers::{NodeObject, node::Ready},
};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::not_ready::{Answer, Finding, NotReadyNodes, has_reported, is_managed};
use crate::controllers::{
    node_action::NodeAction,
    node_object::{AUTOSCALER_TAINT, SHUTDOWN_TAINT},
};

/// This many nodes may always be deleted at once.
const FEW: usize = 3;
/// The time between two deletions while the brake is on.
pub(super) const SLOWLY: Duration = Duration::from_secs(60);
/// For how long a deleted node counts as one that seems missing. Otherwise nodes that turn not ready one after another
/// would never be many.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Why a node is not deleted although its machine is proven missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum BlockReason {
    /// No other node was found under the credentials in use.
    NothingPresent,
    /// Too many seem missing at once.
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

/// Totals of all nodes, for the brake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    /// Whether a node of this cloud was Present in this pass.
    pub(super) present: bool,
    /// How many nodes have a provider ID of this cloud, or seem missing without one.
    pub(super) all: usize,
    /// How many nodes' last answer is Absent or Unresolved, without those that the autoscaler tainted.
    pub(super) missing: usize,
    /// `--node-deletion-share`.
    pub(super) share: f64,
}

impl Totals {
    pub(super) fn of(
        not_ready: &NotReadyNodes,
        nodes: &[Arc<NodeObject>],
        cloud: &dyn Cloud,
        present: bool,
        share: f64,
    ) -> Self {
        let is_owned = |node: &NodeObject| {
            let id = node.view.provider_id.as_deref();
            id.is_some_and(|id| cloud.owns(id))
        };
        let missing: Vec<_> = not_ready
            .iter()
            .filter(|known| known.answer.is_some_and(Answer::is_missing))
            .map(|known| &known.node)
            .filter(|node| counts(node))
            .collect();
        let without_id = missing.iter().filter(|node| !is_owned(node)).count();
        Self {
            present,
            all: nodes.iter().filter(|node| is_owned(node)).count() + without_id,
            missing: missing.len(),
            share,
        }
    }
}

/// The decision about nodes that are proven missing, in their order.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) delete: Vec<Arc<NodeObject>>,
    pub(super) blocked: Vec<(Arc<NodeObject>, BlockReason)>,
    /// With nodes that were deleted a moment ago.
    pub(super) totals: Totals,
}

/// The brake, with the deletions that it counts.
#[derive(Debug, Default)]
pub(super) struct Brake {
    /// Deletions that count, the latest last.
    recent: VecDeque<Instant>,
    /// Running deletions that count.
    under_way: usize,
}

/// Whether the node counts for the share of nodes that seem missing, and may have to wait because of it.
pub(super) fn counts(node: &NodeObject) -> bool {
    !node.has_taint(AUTOSCALER_TAINT)
}

impl Brake {
    /// Decides about the nodes that are proven missing.
    pub(super) fn decide(&mut self, proven: Vec<Arc<NodeObject>>, totals: &Totals, now: Instant) -> Decision {
        self.recent.retain(|at| *at + REMEMBERED > now);
        // Nodes that were deleted a moment ago count as nodes that existed before. Running deletions are still among the nodes.
        let mut decision = Decision {
            delete: Vec::new(),
            blocked: Vec::new(),
            totals: Totals {
                missing: totals.missing + self.recent.len(),
                all: totals.all + self.recent.len(),
                ..*totals
            },
        };
        let Totals { missing, all, .. } = decision.totals;
        let slow = missing > FEW && as_f64(missing) > totals.share * as_f64(all);
        let free = self.under_way == 0 && self.next_slot().is_none_or(|slot| slot <= now);
        let mut slots = if slow { usize::from(free) } else { usize::MAX };
        for node in proven {
            if !totals.present {
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

    /// When the next one may be deleted while the brake is on.
    pub(super) fn next_slot(&self) -> Option<Instant> {
        self.recent.back().map(|last| *last + SLOWLY)
    }

    /// A deletion of a node that [`counts`] ended. `done` if it deleted the node, or may have.
    pub(super) fn ended(&mut self, done: bool, now: Instant) {
        self.under_way = self.under_way.saturating_sub(1);
        if done {
            self.recent.push_back(now);
        }
    }
}

/// Why a node that is proven missing is deleted.
pub(super) fn deletion_reason(node: &NodeObject) -> String {
    match &node.view.provider_id {
        Some(id) => format!("it is not ready, and the cloud has no {id}"),
        None => "its kubelet is silent, and no machine in the cloud has its name".to_owned(),
    }
}

/// The shutdown taint of nodes whose machines were found to be switched off.
pub(super) fn shutdowns(
    not_ready: &NotReadyNodes,
    findings: &[Finding],
) -> Vec<(Arc<NodeObject>, NodeAction)> {
    let (key, effect) = SHUTDOWN_TAINT;
    let known = findings.iter().filter_map(|finding| not_ready.get(&finding.view.name));
    known
        .filter(|known| known.answer == Some(Answer::Off))
        .filter(|known| !known.tainting && !known.node.has_exact_taint(key, effect))
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
    /// It has changed.
    Changed(&'static str),
    /// It is too young, by this much.
    Young(Duration),
}

/// Whether the node as it was just `read` is still the one that was `decided` on. `now` is the API server's time
/// if it is known, since a wrong local clock must not make a node seem old.
pub(super) fn check(
    decided: &NodeObject,
    read: &NodeObject,
    now: Timestamp,
    grace: Duration,
) -> Result<(), Refusal> {
    if read.view.uid != decided.view.uid {
        return Err(Refusal::Changed("another node has its name"));
    }
    if read.meta.deletion_timestamp.is_some() {
        return Err(Refusal::Changed("it is being deleted"));
    }
    if read.ready == Ready::True {
        return Err(Refusal::Changed("it is ready again"));
    }
    if read.view.provider_id != decided.view.provider_id || !is_managed(read, |_| true) {
        return Err(Refusal::Changed("its provider ID has changed"));
    }
    if has_reported(decided, read) {
        return Err(Refusal::Changed("its kubelet reports"));
    }
    // Without a time of creation, the node counts as new.
    let created = read.meta.creation_timestamp.as_ref().map_or(now, |created| created.0);
    let age = Duration::try_from(now.duration_since(created)).unwrap_or(Duration::ZERO);
    match grace.checked_sub(age) {
        Some(missing) if !missing.is_zero() => Err(Refusal::Young(missing)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
