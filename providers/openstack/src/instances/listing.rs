//! A listing of servers, and which of them to ask for.

use std::sync::Arc;

use tokio::time::Instant;

use super::records::Server;

/// The servers whose names begin with a prefix, or as many as were read of them.
#[derive(Debug)]
pub(super) struct Listing {
    /// When it began.
    pub(super) began: Instant,
    /// Which names it is about; empty: all.
    pub(super) prefix: String,
    /// Whether all pages were read.
    pub(super) complete: bool,
    /// Sorted by id.
    servers: Vec<Arc<Server>>,
    /// Indices of `servers` in the order of their names.
    by_name: Vec<usize>,
}

/// What a listing says of a name.
#[derive(Debug)]
pub(super) enum Named<'a> {
    /// Exactly one server has it.
    One(&'a Arc<Server>),
    /// Several have.
    Several(Vec<&'a str>),
    /// None has.
    None,
    /// The listing can not tell.
    Unknown,
}

impl Listing {
    pub(super) fn new(began: Instant, prefix: String, mut servers: Vec<Arc<Server>>, complete: bool) -> Self {
        servers.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        // A server may come twice when others are made or deleted during the walk.
        servers.dedup_by(|a, b| a.id == b.id);
        servers.shrink_to_fit();
        let mut by_name: Vec<usize> = (0..servers.len()).collect();
        by_name.sort_by(|a, b| {
            servers
                .get(*a)
                .map(|s| &s.name)
                .cmp(&servers.get(*b).map(|s| &s.name))
        });
        Self {
            began,
            prefix,
            complete,
            servers,
            by_name,
        }
    }

    pub(super) fn by_id(&self, id: &str) -> Option<&Arc<Server>> {
        let index = self
            .servers
            .binary_search_by(|server| server.id.as_str().cmp(id))
            .ok()?;
        self.servers.get(index)
    }

    pub(super) fn by_name(&self, name: &str) -> Named<'_> {
        let name_of = |index: &usize| self.servers.get(*index).map_or("", |server| server.name.as_str());
        let from = self.by_name.partition_point(|index| name_of(index) < name);
        let same: Vec<&Arc<Server>> = self
            .by_name
            .iter()
            .skip(from)
            .take_while(|index| name_of(index) == name)
            .filter_map(|index| self.servers.get(*index))
            .collect();
        match same.as_slice() {
            [_, _, ..] => Named::Several(same.iter().map(|server| server.id.as_str()).collect()),
            // There may be another on a page that was not read.
            _ if !self.complete || !name.starts_with(&self.prefix) => Named::Unknown,
            [one] => Named::One(one),
            [] => Named::None,
        }
    }
}

/// A prefix that all names have, and that the names of the same cluster's other nodes are likely to have too: up to the
/// last separator, without the number. So the batches of a burst share one listing.
pub(super) fn common_prefix<'a>(names: impl IntoIterator<Item = &'a str>) -> &'a str {
    let mut names = names.into_iter();
    let Some(first) = names.next() else { return "" };
    let mut prefix = first;
    for name in names {
        let same = prefix
            .char_indices()
            .zip(name.chars())
            .take_while(|((_, a), b)| a == b)
            .last();
        let end = same.map_or(0, |((at, c), _)| at + c.len_utf8());
        prefix = prefix.get(..end).unwrap_or_default();
    }
    match prefix.rfind(['-', '.', '_']) {
        Some(at) => prefix.get(..=at).unwrap_or_default(),
        None => prefix.trim_end_matches(|c: char| c.is_ascii_digit()),
    }
}

/// Escapes a text for Nova's `name` filter, which is a regular expression of its database.
///
/// An alternation would name many servers at once, but on MySQL Nova makes every `|` literal, so there is none here.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if matches!(
            c,
            '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$'
        ) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listing(servers: &[(&str, &str)], prefix: &str, complete: bool) -> Listing {
        let servers = servers
            .iter()
            .map(|(id, name)| {
                Arc::new(Server {
                    id: (*id).into(),
                    name: (*name).into(),
                    ..Server::default()
                })
            })
            .collect();
        Listing::new(Instant::now(), prefix.into(), servers, complete)
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
        assert_eq!(
            listing.by_id("c").map(|server| server.name.as_str()),
            Some("node-10")
        );
        assert!(listing.by_id("d").is_none());
        assert!(matches!(listing.by_name("node-1"), Named::One(server) if server.id == "a"));
        assert!(matches!(listing.by_name("node"), Named::None));
    }

    #[test]
    fn two_servers_of_one_name_are_told_with_their_ids() {
        let listing = listing(&[("b", "node"), ("a", "node"), ("c", "other")], "", false);
        assert!(matches!(listing.by_name("node"), Named::Several(ids) if ids == ["a", "b"]));
    }

    #[test]
    fn what_was_not_read_is_not_known() {
        let partial = listing(&[("a", "node-1")], "", false);
        assert!(
            matches!(partial.by_name("node-1"), Named::Unknown),
            "another page may have its namesake"
        );
        assert!(partial.by_id("a").is_some());
        let filtered = listing(&[("a", "node-1")], "node-", true);
        assert!(matches!(filtered.by_name("other"), Named::Unknown));
        assert!(matches!(filtered.by_name("node-2"), Named::None));
    }

    #[test]
    fn prefixes_are_those_of_a_cluster_and_not_of_a_batch() {
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

    #[test]
    fn nothing_in_a_name_is_a_pattern() {
        assert_eq!(escape("a.b-c|d"), r"a\.b-c\|d");
        assert_eq!(escape(r"(x)[y]{z}^$*+?\"), r"\(x\)\[y\]\{z\}\^\$\*\+\?\\");
    }

    proptest! {
        #[test]
        fn every_name_begins_with_the_common_prefix(names in prop::collection::vec("[ab1.ü-]{0,6}", 0..5)) {
            let prefix = common_prefix(names.iter().map(String::as_str));
            prop_assert!(names.iter().all(|name| name.starts_with(prefix)));
        }
    }
}
