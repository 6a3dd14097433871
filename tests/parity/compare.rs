//! Compares two recordings, with a table of accepted differences.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// A deliberate difference.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// Names of cases. `*` matches any characters, here and in all other fields.
    cases: Vec<String>,
    /// Names of phases. Without any, the rule is for all phases.
    #[serde(default)]
    phases: Vec<String>,
    /// The place, as the comparison prints it.
    path: String,
    /// The value in the recording. Without it, any value matches.
    want: Option<String>,
    /// The observed value. Without it, any value matches.
    got: Option<String>,
    /// Only on this cloud: `real` or `simulated`, `moto` or `restricted`.
    only: Option<String>,
    /// The reason.
    why: String,
}

/// An accepted write of the upstream program after a rollback to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptedWrite {
    cases: Vec<String>,
    phases: Vec<String>,
    write: String,
    why: String,
}

/// A phase that is compared with another recorded phase of its case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CompareWith {
    case: String,
    phase: String,
    like: String,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    compare_with: Vec<CompareWith>,
    differences: Vec<Rule>,
    accepted_writes: Vec<AcceptedWrite>,
}

/// The table of deliberate differences, with the number of uses of each.
pub(crate) struct Rules {
    rules: Vec<Rule>,
    seen: Vec<usize>,
    compare_with: Vec<CompareWith>,
    accepted_writes: Vec<AcceptedWrite>,
    seen_writes: Vec<usize>,
    cloud: &'static str,
}

const NOTHING: &str = "nothing";

impl Rules {
    pub(crate) fn parse(text: &str, cloud: &'static str) -> Result<Self> {
        let Table {
            differences: rules,
            compare_with,
            accepted_writes,
        } = serde_saphyr::from_str(text)?;
        if let Some(rule) =
            accepted_writes.iter().find(|rule| rule.why.trim().is_empty() || rule.cases.is_empty())
        {
            bail!("a rule needs cases and a reason: {rule:?}");
        }
        if let Some(rule) = compare_with.iter().find(|rule| rule.why.trim().is_empty()) {
            bail!("a rule needs a reason: {rule:?}");
        }
        for rule in &rules {
            if rule.why.trim().is_empty() || rule.path.trim_matches('*').is_empty() || rule.cases.is_empty() {
                bail!("a rule needs cases, a path and a reason: {rule:?}");
            }
        }
        let (seen, seen_writes) = (vec![0; rules.len()], vec![0; accepted_writes.len()]);
        Ok(Self {
            rules,
            seen,
            compare_with,
            accepted_writes,
            seen_writes,
            cloud,
        })
    }

    /// The recorded phase with which a phase is compared.
    pub(crate) fn like<'a>(&'a self, case: &str, phase: &'a str) -> &'a str {
        let rule = self.compare_with.iter().find(|rule| rule.case == case && rule.phase == phase);
        rule.map_or(phase, |rule| rule.like.as_str())
    }

    fn excuse(&self, case: &str, phase: &str, row: &Row) -> Option<usize> {
        self.rules.iter().position(|rule| {
            rule.cases.iter().any(|name| fits(name, case))
                && (rule.phases.is_empty() || rule.phases.iter().any(|name| fits(name, phase)))
                && rule.only.as_ref().is_none_or(|only| only == self.cloud)
                && fits(&rule.path, &row.path)
                && rule.want.as_ref().is_none_or(|want| fits(want, &row.want))
                && rule.got.as_ref().is_none_or(|got| fits(got, &row.got))
        })
    }

    /// The differences without a rule, and the rules that matched.
    pub(crate) fn unexpected(&self, case: &str, phase: &str, rows: Vec<Row>) -> (Vec<Row>, Vec<usize>) {
        let mut used = Vec::new();
        let left = rows
            .into_iter()
            .filter(|row| match self.excuse(case, phase, row) {
                Some(rule) => {
                    used.push(rule);
                    false
                }
                None => true,
            })
            .collect();
        (left, used)
    }

    /// The same for the writes of the upstream program.
    pub(crate) fn unexpected_writes(
        &self,
        case: &str,
        phase: &str,
        writes: Vec<String>,
    ) -> (Vec<String>, Vec<usize>) {
        let mut used = Vec::new();
        let left = writes
            .into_iter()
            .filter(|write| {
                let excuse = self.accepted_writes.iter().position(|rule| {
                    rule.cases.iter().any(|name| fits(name, case))
                        && rule.phases.iter().any(|name| fits(name, phase))
                        && fits(&rule.write, write)
                });
                used.extend(excuse);
                excuse.is_none()
            })
            .collect();
        (left, used)
    }

    pub(crate) fn count(&mut self, used: &[usize], used_writes: &[usize]) {
        for index in used {
            if let Some(count) = self.seen.get_mut(*index) {
                *count += 1;
            }
        }
        for index in used_writes {
            if let Some(count) = self.seen_writes.get_mut(*index) {
                *count += 1;
            }
        }
    }

    /// Rules of these cases that matched nothing.
    pub(crate) fn unused(&self, cases: &[String]) -> Vec<String> {
        let unused = self.rules.iter().zip(&self.seen).filter(|(rule, seen)| {
            **seen == 0
                && rule.only.as_ref().is_none_or(|only| only == self.cloud)
                && rule.cases.iter().all(|name| cases.iter().any(|case| fits(name, case)))
        });
        let mut unused: Vec<String> =
            unused.map(|(rule, _)| format!("a rule matches nothing: {rule:?}")).collect();
        for (rule, seen) in self.accepted_writes.iter().zip(&self.seen_writes) {
            if *seen == 0 && rule.cases.iter().all(|name| cases.iter().any(|case| fits(name, case))) {
                unused.push(format!("a rule matches nothing: {rule:?}"));
            }
        }
        unused
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) path: String,
    pub(crate) want: String,
    pub(crate) got: String,
}

impl std::fmt::Display for Row {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: want {}, got {}", self.path, self.want, self.got)
    }
}

/// The differences between two recordings of a phase.
pub(crate) fn differences(want: &Value, got: &Value) -> Vec<Row> {
    let leaves = |phase: &Value| {
        let mut leaves = BTreeMap::new();
        for part in ["cloud", "services", "events"] {
            flatten(&phase[part], part.to_owned(), &mut leaves);
        }
        leaves
    };
    let (want, got) = (leaves(want), leaves(got));
    let mut paths: Vec<&String> = want.keys().chain(got.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|path| want.get(*path) != got.get(*path))
        .map(|path| {
            let show = |leaves: &BTreeMap<String, String>| leaves.get(path).cloned();
            Row {
                path: path.clone(),
                want: show(&want).unwrap_or_else(|| NOTHING.to_owned()),
                got: show(&got).unwrap_or_else(|| NOTHING.to_owned()),
            }
        })
        .collect()
}

/// Leaves by path. Objects in lists are identified by their names, so that order alone is not a difference.
fn flatten(value: &Value, path: String, leaves: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                flatten(value, format!("{path}/{key}"), leaves);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                let mut place = format!("{path}[{}]", label(value, index));
                while leaves.keys().any(|known| known.starts_with(&place)) {
                    place.push('\'');
                }
                flatten(value, place, leaves);
            }
        }
        Value::String(text) => drop(leaves.insert(path, text.clone())),
        other => drop(leaves.insert(path, other.to_string())),
    }
}

fn label(value: &Value, index: usize) -> String {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    if value["timeout_client_data"].is_number() {
        return format!("{}:{}", text("protocol").unwrap_or_default(), value["protocol_port"]);
    }
    if let (Some(listeners), true) = (value["listeners"].as_array(), value["lb_algorithm"].is_string()) {
        let names: Vec<&str> = listeners.iter().filter_map(Value::as_str).collect();
        return names.join("+");
    }
    // A rule of a security group of OpenStack. Firewalls of GCE have a direction, too, and a name.
    if value["direction"].is_string() && !value["name"].is_string() {
        let bound = |key: &str| value[key].as_str().map_or_else(|| value[key].to_string(), str::to_owned);
        return format!(
            "{} {} from {}",
            bound("protocol"),
            bound("port_range_min"),
            bound("remote_ip_prefix")
        );
    }
    match value {
        Value::Object(_) => text("name").or_else(|| text("reason")).unwrap_or_else(|| index.to_string()),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether a text matches a pattern in which `*` matches any characters.
fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else {
        return rest.is_empty();
    };
    let mut rest = rest;
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = rest.get(at + piece.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stars_match_any_characters() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn only_order_is_not_a_difference() {
        let want =
            json!({"cloud": {"tags": ["a", "b"], "pools": [{"name": "p", "x": 1}, {"name": "q", "x": 2}]}});
        let same =
            json!({"cloud": {"tags": ["b", "a"], "pools": [{"name": "q", "x": 2}, {"name": "p", "x": 1}]}});
        assert_eq!(differences(&want, &same), []);
        let other =
            json!({"cloud": {"tags": ["a"], "pools": [{"name": "p", "x": 1}, {"name": "q", "x": 3}]}});
        let rows: Vec<String> = differences(&want, &other).iter().map(Row::to_string).collect();
        assert_eq!(
            rows,
            [
                "cloud/pools[q]/x: want 2, got 3",
                "cloud/tags[b]: want b, got nothing"
            ]
        );
        let twice = json!({"cloud": {"tags": ["a", "b", "b"], "pools": want["cloud"]["pools"]}});
        assert_eq!(differences(&want, &twice).len(), 1);
    }

    #[test]
    fn rules_accept_their_differences_and_unused_ones_are_reported() {
        let table = "compare_with: []\naccepted_writes: [{cases: [c], phases: ['*'], write: 'tag *', why: w}]\ndifferences:\n\
                     - {cases: [c], path: 'cloud/tags[x*]', want: nothing, why: w}\n\
                     - {cases: [c], path: 'cloud/y', why: w}\n";
        let mut rules = Rules::parse(table, "simulated").unwrap();
        let rows = differences(&json!({"cloud": {"tags": []}}), &json!({"cloud": {"tags": ["x1", "z"]}}));
        let (left, used) = rules.unexpected("c", "create", rows.clone());
        assert_eq!(left.len(), 1);
        rules.count(&used, &[]);
        assert_eq!(rules.unused(&["c".to_owned()]).len(), 2);
        let writes = vec!["tag it".to_owned(), "delete it".to_owned()];
        let (left, used) = rules.unexpected_writes("c", "create", writes);
        assert_eq!(left, ["delete it"]);
        rules.count(&[], &used);
        assert_eq!(rules.unused(&["c".to_owned()]).len(), 1);
        assert_eq!(rules.unused(&["d".to_owned()]).len(), 0);
        assert_eq!(rules.unexpected("d", "create", rows).0.len(), 2);
        assert!(
            Rules::parse(
                "{compare_with: [], accepted_writes: [], differences: [{cases: [c], path: '*', why: w}]}",
                "real"
            )
            .is_err()
        );
    }
}
