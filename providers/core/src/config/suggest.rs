//! "Did you mean ...?": the known name that is nearest to an unknown one.
//!
//! Used for sections and keys of config files, and for the names of flags and providers.

/// Names longer than this are not compared: all known names are shorter, and the cost is quadratic.
const MAX_LEN: usize = 80;

/// The known name nearest to `name`, if the difference can be a typo: at most one edit per three characters (two for
/// short names). An edit is an extra, missing or wrong character, or two swapped ones. Case is ignored, and `_` equals `-`.
///
/// If several names are equally near, the first one is returned.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(name, known, |longest| (longest / 3).max(2))
}

/// As [`nearest`], but with at most two edits however long the name is: for names that are
/// similar to other valid names.
#[must_use]
pub fn typo<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(name, known, |_| 2)
}

/// The known names of instances that are similar to `name`, the most similar first and each once: with at most two edits, where
/// `.` and `_` equal `-` and case is ignored. A name that is equal in every character is not similar.
#[must_use]
pub fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    const EDITS: usize = 2;
    let normal = normalise_host(name);
    let mut similar: Vec<(usize, &str)> = known
        .into_iter()
        .filter(|candidate| *candidate != name)
        .filter_map(|candidate| {
            let other = normalise_host(candidate);
            if normal.len().abs_diff(other.len()) > EDITS {
                return None;
            }
            let (one, other) = without_common_ends(&normal, &other);
            let distance = edits(one, other);
            (distance <= EDITS).then_some((distance, candidate))
        })
        .collect();
    similar.sort_unstable();
    similar.dedup();
    similar.into_iter().map(|(_, candidate)| candidate).collect()
}

fn normalise_host(name: &str) -> Vec<char> {
    name.chars()
        .flat_map(char::to_lowercase)
        .map(|c| if matches!(c, '.' | '_') { '-' } else { c })
        .collect()
}

/// The two texts without the characters that they have in common at the beginning and at the end, which cost no edit.
fn without_common_ends<'t>(one: &'t [char], other: &'t [char]) -> (&'t [char], &'t [char]) {
    let first = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (one.get(first..).unwrap_or_default(), other.get(first..).unwrap_or_default());
    let last = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    (
        one.get(..one.len() - last).unwrap_or_default(),
        other.get(..other.len() - last).unwrap_or_default(),
    )
}

fn nearest_within<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    allowed: impl Fn(usize) -> usize,
) -> Option<&'a str> {
    let name = normalise(name);
    if name.is_empty() || name.len() > MAX_LEN {
        return None;
    }
    known
        .into_iter()
        .filter_map(|candidate| {
            let normal = normalise(candidate);
            let longest = name.len().max(normal.len());
            // At least one character must match.
            let allowed = allowed(longest).min(longest.saturating_sub(1));
            if normal.len() > MAX_LEN || name.len().abs_diff(normal.len()) > allowed {
                return None;
            }
            let distance = edits(&name, &normal);
            (distance <= allowed).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn normalise(name: &str) -> Vec<char> {
    name.chars()
        .take(MAX_LEN + 1)
        .flat_map(char::to_lowercase)
        .map(|c| if c == '_' { '-' } else { c })
        .collect()
}

/// Edit distance with swaps of neighbours (each character is edited once).
fn edits(a: &[char], b: &[char]) -> usize {
    // Three rows of the usual table: the one being filled and the two above it.
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        for (j, y) in b.iter().enumerate() {
            let at = |cells: &[usize], column: usize| cells.get(column).copied().unwrap_or(usize::MAX / 2);
            let mut cost =
                (at(&above, j) + usize::from(x != y)).min(at(&above, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                cost = cost.min(at(&before, j - 1) + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use proptest::prelude::*;

    use super::{edits, nearest, normalise, normalise_host, similar, typo, without_common_ends};

    const KEYS: [&str; 6] = [
        "auth-url",
        "username",
        "user-id",
        "user-domain-id",
        "user-domain-name",
        "application-credential-id",
    ];

    #[test]
    fn finds_typos() {
        let cases = [
            ("auth_url", Some("auth-url")),
            ("AUTH-URL", Some("auth-url")),
            ("authurl", Some("auth-url")),
            ("auht-url", Some("auth-url")),
            ("user-name", Some("username")),
            ("user-domian-id", Some("user-domain-id")),
            ("aplication-credentials-id", Some("application-credential-id")),
            ("colour", None),
            ("", None),
            ("x", None),
        ];
        for (name, expected) in cases {
            assert_eq!(nearest(name, KEYS), expected, "{name}");
        }
        assert_eq!(nearest("Router", ["Global", "Route", "Networking"]), Some("Route"));
        assert_eq!(nearest("open-stack", ["aws", "openstack"]), Some("openstack"));
    }

    #[test]
    fn a_typo_has_at_most_two_edits() {
        let known = ["node-route-controller", "service-lb-controller"];
        assert_eq!(typo("service-lb-controler", known), Some("service-lb-controller"));
        assert_eq!(typo("node-ipam-controller", known), None);
        assert!(nearest("node-ipam-controller", known).is_some());
    }

    #[test]
    fn names_of_machines_are_similar_if_little_differs() {
        let machines = [
            "db-1",
            "worker_2.example",
            "c-md-0-v1.26.4-abc",
            "c-md-0-v1.26.4-abd",
            "c-md-0-v1.26.4-abc",
            "C-MD-0-v1.26.4-xyz",
        ];
        let cases: [(&str, &[&str]); 5] = [
            ("c-md-0-v1-26-4-abc", &["c-md-0-v1.26.4-abc", "c-md-0-v1.26.4-abd"]),
            ("worker-2-example", &["worker_2.example"]),
            ("workr-2.exampel", &["worker_2.example"]),
            ("db-1", &[]),
            ("elsewhere", &[]),
        ];
        for (name, expected) in cases {
            assert_eq!(similar(name, machines), expected, "{name}");
        }
    }

    #[test]
    fn a_very_long_name_has_no_nearest_name() {
        assert_eq!(nearest(&"a".repeat(1_000_000), KEYS), None);
    }

    #[test]
    fn counts_edits() {
        let distance = |a: &str, b: &str| edits(&normalise(a), &normalise(b));
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("ab", "ba"), 1);
    }

    proptest! {
        #[test]
        fn common_ends_cost_no_edit(a in "[a-c.]{0,8}", b in "[a-c.]{0,8}") {
            let (a, b) = (normalise_host(&a), normalise_host(&b));
            let (inner_a, inner_b) = without_common_ends(&a, &b);
            prop_assert_eq!(edits(inner_a, inner_b), edits(&a, &b));
        }

        #[test]
        fn distance_is_symmetric_and_zero_only_for_equals(a in "[a-d]{0,8}", b in "[a-d]{0,8}") {
            let (a, b) = (normalise(&a), normalise(&b));
            prop_assert_eq!(edits(&a, &b), edits(&b, &a));
            prop_assert_eq!(edits(&a, &b) == 0, a == b);
        }
    }
}
