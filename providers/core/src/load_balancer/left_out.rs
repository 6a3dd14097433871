//! Nodes that a load balancer leaves out.

use std::fmt;

use super::{report::ServiceEvent, service::ServiceId};

/// A node that a load balancer leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLeftOut {
    /// The node's name.
    pub node: String,
    /// Why, as the end of a sentence about the node: `has no IPv6 address`.
    pub reason: String,
}

impl NodeLeftOut {
    /// The reason of the Event.
    pub const EVENT: &'static str = "NodesLeftOut";
    /// The number of nodes that a text names.
    const SHOWN: usize = 3;

    /// A node with the reason.
    #[must_use]
    pub fn new(node: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            node: node.into(),
            reason: reason.into(),
        }
    }

    /// Up to three nodes with their reasons, and the number of the others: `n1 ..; n2 ..; n3 ..; and 1 more`.
    #[must_use]
    pub fn list(nodes: &[Self]) -> String {
        let shown: Vec<_> = nodes.iter().take(Self::SHOWN).map(ToString::to_string).collect();
        let shown = shown.join("; ");
        match nodes.len().saturating_sub(Self::SHOWN) {
            0 => shown,
            more => format!("{shown}; and {more} more"),
        }
    }
}

/// `node-1 has no IPv6 address`
impl fmt::Display for NodeLeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.node, self.reason)
    }
}

impl ServiceEvent {
    /// The Warning about nodes that are left out, with up to three of them; `None` if there are none. `what`: the beginning of the
    /// message.
    ///
    /// `Nodes left out of the load balancer (4): n1 has no IPv6 address; n2 ..; n3 ..; and 1 more`
    #[must_use]
    pub fn nodes_left_out(service: &ServiceId, what: &str, nodes: &[NodeLeftOut]) -> Option<Self> {
        if nodes.is_empty() {
            return None;
        }
        let message = format!("{what} ({}): {}", nodes.len(), NodeLeftOut::list(nodes));
        Some(Self::warning(service, NodeLeftOut::EVENT, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_nodes_are_named_and_the_others_counted() {
        let service = ServiceId::new("shop", "web", "u");
        let message = |count: usize| {
            let nodes: Vec<_> = (1..=count)
                .map(|number| NodeLeftOut::new(format!("n{number}"), "has no IPv6 address"))
                .collect();
            let event = ServiceEvent::nodes_left_out(&service, "Nodes left out", &nodes);
            event.map(|event| event.message)
        };
        assert_eq!(message(0), None);
        assert_eq!(message(1).unwrap(), "Nodes left out (1): n1 has no IPv6 address");
        let four = message(4).unwrap();
        assert!(four.starts_with("Nodes left out (4): n1 has no IPv6 address; n2 "), "{four}");
        assert!(four.ends_with("; n3 has no IPv6 address; and 1 more"), "{four}");
    }
}
