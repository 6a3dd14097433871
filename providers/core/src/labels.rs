//! The labels of an object, small.

use std::{fmt, sync::Arc};

/// Labels as they stand on an object: sorted by key, never changed.
///
/// A large cluster holds many thousands of labels whose keys and values are mostly the same. As shared strings in one
/// block they take a quarter of the memory of a map of strings.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// The value of the label, if it is there.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        self.0.get(found).map(|(_, value)| &**value)
    }

    /// Whether the label is there.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// All labels, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Replaces every string by an equal one that `share` knows already.
    pub fn share(&mut self, mut share: impl FnMut(&mut Arc<str>)) {
        for (key, value) in &mut self.0 {
            share(key);
            share(value);
        }
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    /// Of labels with the same key the last one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let mut labels: Vec<(Arc<str>, Arc<str>)> =
            labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        labels.reverse();
        labels.sort_by(|(a, _), (b, _)| a.cmp(b));
        labels.dedup_by(|(a, _), (b, _)| a == b);
        Self(labels.into_boxed_slice())
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_put_in() {
        let labels: Labels = [("b", "2"), ("a", "1"), ("c", "3"), ("a", "last")].into_iter().collect();
        assert_eq!(labels.len(), 3);
        assert_eq!(labels.get("a"), Some("last"));
        assert_eq!(labels.get("b"), Some("2"));
        assert_eq!(labels.get("d"), None);
        assert_eq!(labels.iter().map(|(key, _)| key).collect::<String>(), "abc");
        assert!(Labels::default().is_empty() && !Labels::default().contains_key("a"));
    }
}
