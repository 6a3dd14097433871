//! A listing of instances, and the prefix to list.

use std::sync::Arc;

use tokio::time::Instant;

use super::Record;

/// The instances whose names begin with a prefix, or as many of them as were read.
#[derive(Debug)]
pub(super) struct Listing<R> {
    /// The start of the listing.
    pub(super) began: Instant,
    /// The prefix of the listed names; empty: all.
    pub(super) prefix: String,
    /// Whether all pages were read.
    pub(super) complete: bool,
    /// Sorted by id.
    records: Vec<Arc<R>>,
    /// Names and indices of `records`, sorted.
    by_name: Vec<(Box<str>, usize)>,
}

/// The instances with a name in a listing.
#[derive(Debug)]
pub(super) enum NameMatch<'a, R> {
    /// Exactly one instance has the name.
    One(&'a Arc<R>),
    /// Several instances have it, with these ids.
    Several(Vec<&'a str>),
    /// No instance has it.
    None,
    /// The listing does not cover the name.
    Unknown,
}

impl<R: Record> Listing<R> {
    pub(super) fn new(began: Instant, prefix: String, mut records: Vec<Arc<R>>, complete: bool) -> Self {
        records.sort_unstable_by(|a, b| a.id().cmp(b.id()));
        // An instance may be listed twice if others are created or deleted in the meantime.
        records.dedup_by(|a, b| a.id() == b.id());
        records.shrink_to_fit();
        let mut by_name: Vec<(Box<str>, usize)> = Vec::new();
        for (index, record) in records.iter().enumerate() {
            for name in record.names() {
                by_name.push((Box::from(name), index));
            }
        }
        by_name.sort_unstable();
        by_name.dedup();
        by_name.shrink_to_fit();
        Self {
            began,
            prefix,
            complete,
            records,
            by_name,
        }
    }

    pub(super) fn by_id(&self, id: &str) -> Option<&Arc<R>> {
        let index = self.records.binary_search_by(|record| record.id().cmp(id)).ok()?;
        self.records.get(index)
    }

    pub(super) fn by_name(&self, name: &str) -> NameMatch<'_, R> {
        let from = self.by_name.partition_point(|(known, _)| **known < *name);
        let same: Vec<&Arc<R>> = self
            .by_name
            .iter()
            .skip(from)
            .take_while(|(known, _)| **known == *name)
            .filter_map(|(_, index)| self.records.get(*index))
            .collect();
        match same.as_slice() {
            [_, _, ..] => NameMatch::Several(same.iter().map(|record| record.id()).collect()),
            // A page that was not read may contain another one.
            _ if !self.complete || !name.starts_with(&self.prefix) => NameMatch::Unknown,
            [one] => NameMatch::One(one),
            [] => NameMatch::None,
        }
    }
}

/// A prefix that all names have, and that the names of the same cluster's other nodes are likely to have too: up to the
/// last separator, without the number. The batches of a burst then share one listing.
pub(super) fn common_prefix<'a>(names: impl IntoIterator<Item = &'a str>) -> &'a str {
    let mut names = names.into_iter();
    let Some(first) = names.next() else { return "" };
    let mut prefix = first;
    for name in names {
        let same = prefix.char_indices().zip(name.chars()).take_while(|((_, a), b)| a == b).last();
        let end = same.map_or(0, |((at, c), _)| at + c.len_utf8());
        prefix = prefix.get(..end).unwrap_or_default();
    }
    match prefix.rfind(['-', '.', '_']) {
        Some(at) => prefix.get(..=at).unwrap_or_default(),
        None => prefix.trim_end_matches(|c: char| c.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug)]
    struct TestInstance {
        id: String,
        name: String,
    }

    impl Record for TestInstance {
        fn id(&self) -> &str {
            &self.id
        }

        fn names(&self) -> Vec<&str> {
            vec![&self.name]
        }
    }

    fn listing(instances: &[(&str, &str)], prefix: &str, complete: bool) -> Listing<TestInstance> {
        let instances = instances
            .iter()
            .map(|(id, name)| {
                Arc::new(TestInstance {
                    id: (*id).into(),
                    name: (*name).into(),
                })
            })
            .collect();
        Listing::new(Instant::now(), prefix.into(), instances, complete)
    }

    #[test]
    fn finds_by_id_and_by_exact_name() {
        let listing = listing(
            &[
                ("b", "node-2"),
                ("a", "node-1"),
                ("c", "node-10"),
                ("a", "node-1"),
            ],
            "",
            true,
        );
        assert_eq!(listing.by_id("c").map(|instance| instance.name.as_str()), Some("node-10"));
        assert!(listing.by_id("d").is_none());
        assert!(matches!(listing.by_name("node-1"), NameMatch::One(instance) if instance.id == "a"));
        assert!(matches!(listing.by_name("node"), NameMatch::None));
    }

    #[test]
    fn two_instances_of_one_name_are_reported_with_their_ids() {
        let listing = listing(&[("b", "node"), ("a", "node"), ("c", "other")], "", false);
        assert!(matches!(listing.by_name("node"), NameMatch::Several(ids) if ids == ["a", "b"]));
    }

    #[test]
    fn a_partial_listing_does_not_prove_absence() {
        let partial = listing(&[("a", "node-1")], "", false);
        assert!(
            matches!(partial.by_name("node-1"), NameMatch::Unknown),
            "another page may contain the same name"
        );
        assert!(partial.by_id("a").is_some());
        let filtered = listing(&[("a", "node-1")], "node-", true);
        assert!(matches!(filtered.by_name("other"), NameMatch::Unknown));
        assert!(matches!(filtered.by_name("node-2"), NameMatch::None));
    }

    #[test]
    fn prefixes_are_those_of_a_cluster_instead_of_a_batch() {
        for (names, prefix) in [
            (&["node-10", "node-11", "node-12"][..], "node-"),
            (&["prod-worker-a1", "prod-windows-b2"], "prod-"),
            (&["worker1", "worker12"], "worker"),
            (&["a.example.com", "b.example.com"], ""),
            (&["cp-1", "worker-1"], ""),
            (&["node-1"], "node-"),
            (&["größe-1", "größe-2"], "größe-"),
            (&[], ""),
        ] {
            assert_eq!(common_prefix(names.iter().copied()), prefix, "{names:?}");
        }
    }

    proptest! {
        #[test]
        fn every_name_begins_with_the_common_prefix(names in prop::collection::vec("[ab1.ü-]{0,6}", 0..5)) {
            let prefix = common_prefix(names.iter().map(String::as_str));
            prop_assert!(names.iter().all(|name| name.starts_with(prefix)));
        }
    }
}
