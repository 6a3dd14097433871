//! The nodes that may be members of load balancers, and the changes of them that need a pass.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    controllers::{NodeObject, node::Ready},
    load_balancer::{NodeSet, ServiceNode},
};
use tokio::time::Instant;

use crate::controllers::node_object::AUTOSCALER_TAINT;

/// A node with this label is not a member of a load balancer, unless the value is a Go `false`.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes change in bursts: load balancers follow them when no node has changed for this long.
const QUIET: Duration = Duration::from_secs(2);
/// Load balancers follow a change after this time at the latest, and an upgrade of the nodes this often.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a node left, others are likely to leave and to join for this long.
const UPGRADE: Duration = Duration::from_secs(60);

/// Whether a node may be a member. Whether it is ready or initialized does not matter: the load balancer has health
/// checks of its own, and a control plane that loses contact with all nodes must not empty every load balancer.
fn is_eligible(node: &NodeObject) -> bool {
    let excluded = match node.view.labels.get(EXCLUDED) {
        None | Some("0" | "f" | "F" | "false" | "FALSE" | "False") => false,
        // A value that cannot be parsed excludes, too.
        Some(_) => true,
    };
    node.meta.deletion_timestamp.is_none() && !excluded && !node.has_taint(AUTOSCALER_TAINT)
}

/// The nodes as load balancers see them.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: BTreeMap<String, ServiceNode>,
    generation: NodeGeneration,
    window: Option<ChangeWindow>,
    /// When load balancers last began to follow changes.
    followed: Option<Instant>,
    /// When a member last left.
    departed: Option<Instant>,
    /// Nodes that left in the window, and whose kubelet still reports.
    leaving: BTreeSet<String>,
    /// All nodes as one value, until one changes.
    set: Option<NodeSet>,
}

/// Numbers that grow with the changes that load balancers may have to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeGeneration {
    /// Members joined, left, or changed in another way than by their labels.
    members: u64,
    /// Labels of members changed.
    labels: u64,
}

impl NodeGeneration {
    /// Whether a load balancer that followed the nodes of this generation has to follow those of a `later` one.
    pub(super) fn is_behind(self, later: Self, selects_by_labels: bool) -> bool {
        self.members < later.members || (selects_by_labels && self.labels < later.labels)
    }
}

/// A change that was not followed yet.
#[derive(Clone, Copy, Debug)]
struct ChangeWindow {
    first: Instant,
    due: Instant,
    /// The instance of a member is gone, or its kubelet does not report any more.
    loss: bool,
}

impl Nodes {
    /// Applies the current form of a node; `None` if it does not exist. Returns whether it differs for load balancers.
    ///
    /// They follow a change unless the node is not and was not a member, or only its readiness changed. If only its labels
    /// changed, those follow that select nodes by labels.
    pub(super) fn apply(&mut self, name: &str, node: Option<&NodeObject>, now: Instant) -> bool {
        let new = node.map(|node| ServiceNode {
            view: Arc::clone(&node.view),
            addresses: node.addresses.as_slice().into(),
            eligible: is_eligible(node),
            ready: node.ready == Ready::True,
        });
        let old = self.nodes.get(name);
        if old == new.as_ref() && !self.leaving.contains(name) {
            return false;
        }
        let was = old.is_some_and(|node| node.eligible);
        let is = new.as_ref().is_some_and(|node| node.eligible);
        let is_dead = is_dead(old, node);
        let both = old.zip(new.as_ref());
        let only_ready = both.is_some_and(|(old, new)| old.view == new.view && has_same_address(old, new));
        let only_labels = both.is_some_and(|(old, new)| {
            let (old_view, new_view) = (&old.view, &new.view);
            has_same_address(old, new)
                && (&old_view.uid, &old_view.provider_id) == (&new_view.uid, &new_view.provider_id)
        });
        let differs = old != new.as_ref();
        if differs {
            self.set = None;
        }
        match new {
            Some(node) => self.nodes.insert(name.to_owned(), node),
            None => self.nodes.remove(name),
        };
        if is {
            self.leaving.remove(name);
        } else if self.leaving.contains(name) && is_dead {
            // Load balancers still send traffic to a node that died while it was leaving.
            self.leaving.remove(name);
            self.open_window(true, now);
        }
        if (!was && !is) || only_ready {
            return differs;
        }
        if only_labels {
            self.generation.labels += 1;
        } else {
            self.generation.members += 1;
        }
        let leaves = was && !is;
        if leaves {
            self.departed = Some(now);
        }
        if leaves && !is_dead {
            self.leaving.insert(name.to_owned());
        }
        self.open_window(leaves && is_dead, now);
        true
    }

    /// Load balancers have to follow a change. `loss`: at once, since they send traffic to a node that cannot answer.
    fn open_window(&mut self, loss: bool, now: Instant) {
        let first = self.window.map_or(now, |window| window.first);
        // A node that joins meanwhile does not delay the removal of a lost one.
        let loss = loss || self.window.is_some_and(|window| window.loss);
        let due = if loss {
            now
        } else {
            let due = (now + QUIET).min(first + PATIENCE);
            let is_upgrade = self.departed.is_some_and(|departed| now < departed + UPGRADE);
            match self.followed {
                Some(followed) if is_upgrade => due.max(followed + PATIENCE),
                _ => due,
            }
        };
        self.window = Some(ChangeWindow { first, due, loss });
    }

    pub(super) fn generation(&self) -> NodeGeneration {
        self.generation
    }

    /// All nodes.
    pub(super) fn set(&mut self) -> NodeSet {
        let nodes = &self.nodes;
        self.set.get_or_insert_with(|| nodes.values().cloned().collect()).clone()
    }

    /// When load balancers should follow the last changes.
    pub(super) fn due(&self) -> Option<Instant> {
        self.window.map(|window| window.due)
    }

    /// Whether load balancers should follow the last changes now. Then the changes are forgotten.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let due = self.window.is_some_and(|window| window.due <= now);
        if due {
            self.forget_changes();
            self.followed = Some(now);
        }
        due
    }

    /// Forgets the changes, since every load balancer follows the nodes anyway.
    pub(super) fn forget_changes(&mut self) {
        self.window = None;
        self.leaving.clear();
    }
}

/// Whether a node that leaves cannot answer any more: its kubelet does not report, or it is deleted and was not ready. The node
/// lifecycle controller deletes only such nodes. A node that is drained or deleted while it is ready answers for a while.
fn is_dead(old: Option<&ServiceNode>, new: Option<&NodeObject>) -> bool {
    match new {
        Some(node) if node.meta.deletion_timestamp.is_some() => node.ready != Ready::True,
        Some(node) => node.ready == Ready::Unknown,
        None => old.is_some_and(|node| !node.ready),
    }
}

/// Whether the same addresses can be members.
fn has_same_address(old: &ServiceNode, new: &ServiceNode) -> bool {
    old.eligible == new.eligible && old.addresses == new.addresses
}

#[cfg(test)]
mod tests;
