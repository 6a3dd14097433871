//! A selection of nodes by their labels, as annotations and config files give it.

use super::{AddressGroup, ClusterView, IpFamily};
use crate::Labels;

/// Labels that a node must have, all of them. An empty selector selects every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelector(Vec<(String, String)>);

impl NodeSelector {
    /// Reads `key=value, other`: of a key without a value, or with an empty one, the label need only exist. If a key is
    /// repeated, the last one counts. No text is refused.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut labels: Vec<(String, String)> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            labels.retain(|(known, _)| known != key);
            labels.push((key.to_owned(), value.to_owned()));
        }
        Self(labels)
    }

    /// Whether it selects every node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a node with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|(key, required)| {
            labels.get(key).is_some_and(|value| required.is_empty() || value == required)
        })
    }

    /// The selected nodes of the cluster that may be members, by their address of the family.
    #[must_use]
    pub fn nodes<'a>(&self, cluster: &'a ClusterView, family: Option<IpFamily>) -> Vec<AddressGroup<'a>> {
        let nodes = &cluster.nodes;
        nodes.by_address(family, |node| self.matches(&node.view.labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_keys_with_or_without_a_value() {
        let read = |text: &str| NodeSelector::parse(text).0;
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(read("k1=v1,k2=v2"), [pair("k1", "v1"), pair("k2", "v2")]);
        assert_eq!(read("k2=v2=true"), [pair("k2", "v2=true")]);
        assert_eq!(read("k1,k2="), [pair("k1", ""), pair("k2", "")]);
        assert_eq!(read(" k1=v1 , k2 "), [pair("k1", "v1"), pair("k2", "")]);
        assert_eq!(read("=emptykey"), [pair("", "emptykey")]);
        assert_eq!(read("k=a,k=b"), [pair("k", "b")]);
        assert_eq!(read(" ,, "), []);
    }

    #[test]
    fn all_items_have_to_match() {
        let node: Labels = [("env", "prod"), ("pool", ""), ("x", "a=b")].into_iter().collect();
        for (selector, matches) in [
            ("", true),
            ("env=prod", true),
            ("env", true),
            ("env=", true),
            ("pool", true),
            ("x=a=b", true),
            ("env=prod,pool", true),
            ("env=test", false),
            ("env=prod,missing", false),
            ("=prod", false),
        ] {
            assert_eq!(NodeSelector::parse(selector).matches(&node), matches, "{selector:?}");
        }
        let bare = Labels::default();
        assert!(!NodeSelector::parse("env").matches(&bare) && NodeSelector::parse("").matches(&bare));
    }
}
