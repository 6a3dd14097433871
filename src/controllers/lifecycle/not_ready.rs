//! The nodes that are not ready: the cloud's answers, since when, and when to ask again.
//!
//! Pure: no calls, no clock.
//!
//! A node is asked about at once when it turns not ready, then after the monitor period, then after waits that double
//! while the answer stays the same. So a large outage costs little. A change of the answer or of the node shortens
//! the wait again. Nodes whose wait is half over join those that are due, so that many share one listing.
//!
//! Two equal answers, one at each end of the required time, prove that a machine is missing. Any other answer in between
//! begins that time again, also an error. So does, for a node without a provider ID, any report of its kubelet: a node whose
//! kubelet reports has a machine, only under another name.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    InstanceState, NodeView, Power,
    controllers::{NodeObject, node::Ready},
};
use tokio::time::Instant;

use super::{decide::BlockReason, pass::Answers};
use crate::{controllers::node_object::UNINITIALIZED_TAINT, logging::Failing};

/// Nodes that turn not ready within this time are asked about together.
pub(super) const COALESCE: Duration = Duration::from_millis(200);
/// The longest wait between two questions about one of a few nodes, ..
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// .. the addition for each node, ..
const WAIT_PER_NODE: Duration = Duration::from_millis(300);
/// .. and the longest wait with many nodes.
const LONGEST_WAIT_OF_MANY: Duration = Duration::from_secs(300);
/// How many of the nodes that wait for their turn are asked about when it comes. More than one, in case that one is ready
/// again.
const CANDIDATES: usize = 3;

/// The cloud's answer about a node's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It exists and runs.
    On,
    /// It exists and is switched off.
    Off,
    /// Its id does not exist.
    Absent,
    /// Nothing has the node's name.
    Unresolved,
    /// The cloud's rules leave it unchanged.
    Unmanaged,
    /// The read failed.
    Failed,
}

impl Answer {
    pub(super) fn of(answer: &ccm_core::Result<InstanceState>) -> Self {
        match answer {
            Ok(InstanceState::Present(instance)) => match instance.power {
                Power::On => Self::On,
                Power::Off => Self::Off,
            },
            Ok(InstanceState::Absent) => Self::Absent,
            Ok(InstanceState::Unresolved) => Self::Unresolved,
            Ok(InstanceState::Unmanaged) => Self::Unmanaged,
            Err(_) => Self::Failed,
        }
    }

    /// The metric label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::On => "present",
            Self::Off => "shutdown",
            Self::Absent => "absent",
            Self::Unresolved => "unresolved",
            Self::Unmanaged => "unmanaged",
            Self::Failed => "failed",
        }
    }

    /// Whether the machine exists.
    pub(super) fn is_present(self) -> bool {
        matches!(self, Self::On | Self::Off)
    }

    /// Whether the machine seems missing.
    pub(super) fn is_missing(self) -> bool {
        matches!(self, Self::Absent | Self::Unresolved)
    }
}

/// When a node is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// At this time, or earlier with others.
    Due(Instant),
    /// At this time, since an earlier answer would not help.
    At(Instant),
    /// It is being asked about right now.
    Asked,
    /// It is being deleted right now.
    Deleting,
}

impl Next {
    /// When it is due, if it is going to be asked about.
    fn time(self) -> Option<Instant> {
        match self {
            Self::Due(time) | Self::At(time) => Some(time),
            Self::Asked | Self::Deleting => None,
        }
    }
}

/// A node that is not ready.
#[derive(Debug)]
pub(super) struct NotReadyNode {
    /// The last observed form.
    pub(super) node: Arc<NodeObject>,
    /// When the last question about it began.
    asked: Option<Instant>,
    pub(super) answer: Option<Answer>,
    /// When the first of the latest equal answers came. `None` if that answer proves nothing.
    since: Option<Instant>,
    /// The wait after the last answer.
    wait: Duration,
    next: Next,
    /// Whether the shutdown taint was sent, and `node` is not newer.
    pub(super) tainting: bool,
    /// Why it is not deleted.
    pub(super) blocked: Option<BlockReason>,
    /// The reasons that were reported as events.
    reported: BTreeSet<BlockReason>,
    /// The failures of its deletion, as text.
    pub(super) failures: Arc<Failing<String>>,
}

impl NotReadyNode {
    /// Whether the cloud's answers, the last one included, prove that the machine is missing. `began`: when the last
    /// question began.
    fn is_proven(&self, began: Instant, required: &RequiredTimes) -> bool {
        let required = match self.answer {
            Some(Answer::Absent) => required.absent,
            Some(Answer::Unresolved) => required.unresolved,
            _ => return false,
        };
        self.since.is_some_and(|since| since + required <= began)
    }

    /// Whether it is being asked about right now.
    pub(super) fn is_asked(&self) -> bool {
        self.next == Next::Asked
    }

    /// Forgets why it is not deleted.
    fn unblock(&mut self) {
        self.blocked = None;
        self.reported.clear();
    }
}

/// For how long equal answers must last to prove that a machine is missing.
#[derive(Clone, Copy, Debug)]
struct RequiredTimes {
    absent: Duration,
    unresolved: Duration,
}

/// Whether the node has no provider ID and its kubelet reports: it has a machine, perhaps under another name.
fn is_alive_without_id(node: &NodeObject) -> bool {
    node.view.provider_id.is_none() && node.ready != Ready::Unknown
}

/// Whether the kubelet of a node without a provider ID reported after `earlier` was observed, also if it is silent again.
pub(super) fn has_reported(earlier: &NodeObject, node: &NodeObject) -> bool {
    is_alive_without_id(node) || (node.view.provider_id.is_none() && node.ready_since != earlier.ready_since)
}

/// Whether the lifecycle controller would act on a node that is not ready: it has a provider ID of this
/// cloud, or still waits for one. All others (another cloud's, bare metal) are never changed or asked about.
pub(super) fn is_managed(node: &NodeObject, owns: impl Fn(&str) -> bool) -> bool {
    match node.view.provider_id.as_deref() {
        Some(id) => owns(id),
        None => node.has_taint(UNINITIALIZED_TAINT),
    }
}

/// The answer about one node in a pass.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    /// The node as it was asked about.
    pub(super) view: Arc<NodeView>,
    pub(super) answer: Answer,
}

/// All nodes that are not ready, by name.
#[derive(Debug)]
pub(super) struct NotReadyNodes {
    monitor_period: Duration,
    required: RequiredTimes,
    // In the order of names, so that the order of actions does not depend on chance.
    nodes: BTreeMap<String, NotReadyNode>,
    /// When nodes that are ready now were asked about. Questions about one that keeps changing are limited, too.
    recent: HashMap<String, Instant>,
}

impl NotReadyNodes {
    /// `confirm`: for how long an ID must be absent; `unresolved_confirm`: for how long a name must be unknown.
    pub(super) fn new(monitor_period: Duration, confirm: Duration, unresolved_confirm: Duration) -> Self {
        Self {
            monitor_period,
            required: RequiredTimes {
                absent: confirm,
                unresolved: unresolved_confirm,
            },
            nodes: BTreeMap::new(),
            recent: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NotReadyNode> {
        self.nodes.values()
    }

    pub(super) fn get(&self, name: &str) -> Option<&NotReadyNode> {
        self.nodes.get(name)
    }

    /// Observes the node as it is now.
    pub(super) fn observe(&mut self, node: &Arc<NodeObject>, managed: bool, now: Instant) {
        let name = &node.view.name;
        if node.ready == Ready::True || node.meta.deletion_timestamp.is_some() || !managed {
            return self.forget(name);
        }
        let period = self.monitor_period;
        let soon = |asked: Option<Instant>| {
            let coalesced = now + COALESCE;
            asked.map_or(coalesced, |asked| coalesced.max(asked + period))
        };
        match self.nodes.get_mut(name) {
            Some(known)
                if known.node.view.uid == node.view.uid
                    && known.node.view.provider_id == node.view.provider_id =>
            {
                let changed = known.node.ready != node.ready || known.node.taints != node.taints;
                if has_reported(&known.node, node) {
                    known.since = None;
                }
                known.node = Arc::clone(node);
                known.tainting = false;
                if changed {
                    known.wait = Duration::ZERO;
                    if let Next::Due(due) = known.next {
                        known.next = Next::Due(due.min(soon(known.asked)));
                    }
                }
            }
            // A new one, or another machine: no earlier answer is about it.
            known => {
                let asked = match known {
                    Some(known) => known.asked,
                    None => self.recent.remove(name),
                };
                let new = NotReadyNode {
                    node: Arc::clone(node),
                    asked,
                    answer: None,
                    since: None,
                    wait: Duration::ZERO,
                    next: Next::Due(soon(asked)),
                    tainting: false,
                    blocked: None,
                    reported: BTreeSet::new(),
                    failures: Arc::default(),
                };
                self.nodes.insert(name.clone(), new);
            }
        }
    }

    /// The node is ready, deleted, or not ours.
    pub(super) fn forget(&mut self, name: &str) {
        let forgotten = self.nodes.remove(name);
        if let Some(asked) = forgotten.and_then(|node| node.asked) {
            self.recent.insert(name.to_owned(), asked);
        }
    }

    /// The credentials changed: no earlier answer counts any more, and all are asked about again.
    pub(super) fn start_over(&mut self, now: Instant) {
        for node in self.nodes.values_mut() {
            node.unblock();
            (node.answer, node.since, node.wait) = (None, None, Duration::ZERO);
            if node.next != Next::Deleting {
                node.next = Next::Due(now + COALESCE);
            }
        }
    }

    /// When a question is due next. Nodes that are due soon after each other are asked about together, when the last of them is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let times = || self.nodes.values().filter_map(|node| node.next.time());
        let together = times().min()? + self.pause();
        times().filter(|time| *time <= together).max()
    }

    /// The time from the beginning of one pass to the next. The more nodes are not ready, the longer a pass waits for others.
    pub(super) fn pause(&self) -> Duration {
        let many = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let each = Duration::from_millis(5);
        (COALESCE + each.saturating_mul(many)).min(self.monitor_period.max(COALESCE))
    }

    /// Takes the nodes to ask about now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Arc<NodeObject>> {
        self.recent.retain(|_, asked| *asked + self.monitor_period > now);
        let is_due = |known: &NotReadyNode| known.next.time().is_some_and(|due| due <= now);
        if !self.nodes.values().any(is_due) {
            return Vec::new();
        }
        let joins = |known: &NotReadyNode| {
            let earliest = self.monitor_period.max(known.wait / 2);
            matches!(known.next, Next::Due(_)) && known.asked.is_none_or(|asked| asked + earliest <= now)
        };
        self.nodes
            .values_mut()
            .filter(|known| is_due(known) || joins(known))
            .map(|known| {
                known.asked = Some(now);
                known.next = Next::Asked;
                Arc::clone(&known.node)
            })
            .collect()
    }

    /// Whether one more answer about this node may prove that its machine is missing, or the answer counts only if another
    /// node is present. In both cases, present nodes are read for comparison.
    pub(super) fn needs_comparison(&self, name: &str, began: Instant) -> bool {
        self.get(name).is_some_and(|known| {
            let by_name = known.node.view.provider_id.is_none() && !is_alive_without_id(&known.node);
            by_name || known.is_proven(began, &self.required)
        })
    }

    /// Records the answers of one pass. Returns the nodes whose machines are proven missing.
    pub(super) fn record(&mut self, answers: &Answers) -> Vec<Arc<NodeObject>> {
        let longest = self.longest_wait();
        let (monitor_period, required, began) = (self.monitor_period, self.required, answers.began);
        let mut proven = Vec::new();
        for Finding { view, answer } in &answers.findings {
            let Some(known) = self.nodes.get_mut(&view.name) else {
                continue;
            };
            if known.next != Next::Asked {
                continue;
            }
            let now = &known.node.view;
            if now.uid != view.uid || now.provider_id != view.provider_id {
                known.next = Next::Due(began + monitor_period);
                continue;
            }
            let same = known.answer == Some(*answer);
            known.answer = Some(*answer);
            let proves = match answer {
                Answer::Absent => true,
                // Counts only if another node was found, and its kubelet does not prove the contrary.
                Answer::Unresolved => answers.present && !is_alive_without_id(&known.node),
                _ => false,
            };
            let since = known.since.filter(|_| same).unwrap_or(answers.ended);
            known.since = proves.then_some(since);
            if !same {
                known.unblock();
            }
            known.wait = if same && !known.wait.is_zero() {
                known.wait.saturating_mul(2).min(longest)
            } else {
                monitor_period
            };
            known.next = Next::Due(began + known.wait);
            if known.is_proven(began, &required) {
                proven.push(Arc::clone(&known.node));
            } else if *answer == Answer::Absent {
                known.next = Next::At(since + required.absent);
            }
        }
        proven
    }

    /// The answers of a pass do not count.
    pub(super) fn discard(&mut self, now: Instant) {
        for known in self.nodes.values_mut() {
            if known.next == Next::Asked {
                known.next = Next::Due(now + COALESCE);
            }
        }
    }

    /// The shutdown taint is being sent, or was not added.
    pub(super) fn tainting(&mut self, name: &str, begins: bool) {
        if let Some(known) = self.nodes.get_mut(name) {
            known.tainting = begins;
        }
    }

    /// The node is being deleted; it is not asked about until [`Self::again_at`] or [`Self::forget`].
    pub(super) fn deleting(&mut self, name: &str) {
        if let Some(known) = self.nodes.get_mut(name) {
            known.blocked = None;
            known.next = Next::Deleting;
        }
    }

    /// Asks about the node, if it is still this one, at this time and not earlier.
    pub(super) fn again_at(&mut self, name: &str, uid: &str, at: Instant) {
        let known = self.nodes.get_mut(name);
        if let Some(known) = known.filter(|known| known.node.view.uid == uid)
            && known.next != Next::Asked
        {
            known.next = Next::At(at);
        }
    }

    /// Records why a node is not deleted. Returns whether this reason is new.
    pub(super) fn block(&mut self, name: &str, reason: BlockReason) -> bool {
        self.nodes.get_mut(name).is_some_and(|node| {
            node.blocked = Some(reason);
            node.reported.insert(reason)
        })
    }

    /// Asks about a few of the nodes that are deleted one at a time, at this time at the latest, so that one of them can be
    /// deleted then. Those whose deletion failed come last.
    pub(super) fn ask_some(&mut self, at: Instant) {
        let mut nodes: Vec<_> =
            self.nodes.values_mut().filter(|node| node.blocked == Some(BlockReason::Share)).collect();
        nodes.sort_by_key(|node| node.failures.is_ongoing());
        for node in nodes.into_iter().take(CANDIDATES) {
            if node.next.time().is_some_and(|due| due > at) {
                node.next = Next::At(at);
            }
        }
    }

    fn longest_wait(&self) -> Duration {
        let many = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        WAIT_PER_NODE
            .saturating_mul(many)
            .clamp(LONGEST_WAIT, LONGEST_WAIT_OF_MANY)
            .max(self.monitor_period)
    }
}

#[cfg(test)]
mod tests;
