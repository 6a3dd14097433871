//! Which nodes become members: `node-selector`.

use ccm_core::{
    Labels,
    load_balancer::{AddressGroup, ClusterView, IpFamily, ServiceNode},
};

/// Labels that a node must have, all of them. An empty selector takes every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector(Vec<(String, String)>);

impl Selector {
    /// Reads `key=value, other`: a key without a value (or with an empty one) need only be there. Of a key that stands
    /// twice the last one counts. Nothing is refused.
    pub(crate) fn parse(text: &str) -> Self {
        let mut labels: Vec<(String, String)> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            labels.retain(|(known, _)| known != key);
            labels.push((key.to_owned(), value.to_owned()));
        }
        Self(labels)
    }

    /// Whether a node with these labels is taken.
    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|(key, wanted)| {
            labels
                .get(key)
                .is_some_and(|value| wanted.is_empty() || value == wanted)
        })
    }

    /// The nodes that become members, by address.
    pub(crate) fn nodes<'a>(
        &self,
        cluster: &'a ClusterView,
        family: Option<IpFamily>,
    ) -> Vec<AddressGroup<'a>> {
        let matches = |node: &ServiceNode| self.matches(&node.view.labels);
        cluster.nodes.by_address(family, matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_keys_with_or_without_a_value() {
        let read = |text: &str| Selector::parse(text).0;
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
        let node: Labels = [("env", "prod"), ("pool", ""), ("x", "a=b")]
            .into_iter()
            .collect();
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
            assert_eq!(Selector::parse(selector).matches(&node), matches, "{selector:?}");
        }
        let bare = Labels::default();
        assert!(!Selector::parse("env").matches(&bare) && Selector::parse("").matches(&bare));
    }
}
