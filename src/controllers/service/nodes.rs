//! The nodes that may be members of load balancers, and the changes of them that need a pass.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ccm_core::{
    controllers::{NodeObject, node::Ready},
    load_balancer::{NodeSet, ServiceNode},
};
use tokio::time::Instant;

use crate::controllers::node_object::AUTOSCALER_TAINT;

/// A node with this label is not a member of a load balancer, unless the value is a Go `false`.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes join in bursts: a pass waits until no node joined for this long, ..
const QUIET: Duration = Duration::from_secs(2);
/// .. but not longer than this after the first one.
const PATIENCE: Duration = Duration::from_secs(10);

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
    /// Grows with every change that load balancers may have to follow.
    generation: u64,
    window: Option<Window>,
    /// All nodes as one value, until one changes.
    set: Option<NodeSet>,
}

/// A change that was not followed yet.
#[derive(Clone, Copy, Debug)]
struct Window {
    first: Instant,
    due: Instant,
    /// A member is lost.
    loss: bool,
}

impl Nodes {
    /// Applies the current form of a node; `None` if it does not exist. Returns whether it differs for load balancers.
    ///
    /// They follow a change unless the node is not and was not a member, or only its readiness changed.
    pub(super) fn apply(&mut self, name: &str, node: Option<&NodeObject>, now: Instant) -> bool {
        let new = node.map(|node| ServiceNode {
            view: Arc::clone(&node.view),
            addresses: node.addresses.as_slice().into(),
            eligible: is_eligible(node),
            ready: node.ready == Ready::True,
        });
        let old = self.nodes.get(name);
        let was = old.is_some_and(|node| node.eligible);
        let is = new.as_ref().is_some_and(|node| node.eligible);
        if old == new.as_ref() {
            return false;
        }
        let only_ready = old.zip(new.as_ref()).is_some_and(|(old, new)| {
            let ready = new.ready;
            ServiceNode { ready, ..old.clone() } == *new
        });
        self.set = None;
        match new {
            Some(node) => self.nodes.insert(name.to_owned(), node),
            None => self.nodes.remove(name),
        };
        if (!was && !is) || only_ready {
            return true;
        }
        self.generation += 1;
        let first = self.window.map_or(now, |window| window.first);
        // A node that joins meanwhile does not delay it.
        let loss = (was && !is) || self.window.is_some_and(|window| window.loss);
        // Traffic goes to a lost member until it is removed.
        let due = match loss {
            true => now,
            false => (now + QUIET).min(first + PATIENCE),
        };
        self.window = Some(Window { first, due, loss });
        true
    }

    pub(super) fn generation(&self) -> u64 {
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
            self.window = None;
        }
        due
    }

    /// Forgets the changes, since every load balancer follows the nodes anyway.
    pub(super) fn forget_changes(&mut self) {
        self.window = None;
    }
}

#[cfg(test)]
mod tests;
