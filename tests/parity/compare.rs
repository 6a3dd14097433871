//! Two recordings side by side, and what may differ.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::Value;

/// A difference that is meant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// Names of cases; `*` stands for any characters here and in all the others.
    cases: Vec<String>,
    /// Names of phases; all if there is none.
    #[serde(default)]
    phases: Vec<String>,
    /// The place, as the comparison prints it.
    path: String,
    /// What the recording has there; anything if it is not said.
    want: Option<String>,
    /// What is there instead.
    got: Option<String>,
    /// Only on this cloud: `real` or `simulated`, `moto` or `restricted`.
    only: Option<String>,
    /// Why so.
    why: String,
}

/// A write of the upstream program, when it comes back, that is accepted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Back {
    cases: Vec<String>,
    phases: Vec<String>,
    write: String,
    why: String,
}

/// A phase that is to look like another one of its case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Instead {
    case: String,
    phase: String,
    like: String,
    why: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    instead: Vec<Instead>,
    differences: Vec<Rule>,
    back: Vec<Back>,
}

/// The table of differences that are meant, and which of them were seen.
pub(crate) struct Rules {
    rules: Vec<Rule>,
    seen: Vec<usize>,
    instead: Vec<Instead>,
    back: Vec<Back>,
    seen_back: Vec<usize>,
    cloud: &'static str,
}

const NOTHING: &str = "nothing";

impl Rules {
    pub(crate) fn parse(text: &str, cloud: &'static str) -> Result<Self> {
        let Table {
            differences: rules,
            instead,
            back,
        } = serde_saphyr::from_str(text)?;
        if let Some(rule) = back
            .iter()
            .find(|rule| rule.why.trim().is_empty() || rule.cases.is_empty())
        {
            bail!("a rule needs cases and a reason: {rule:?}");
        }
        if let Some(rule) = instead.iter().find(|rule| rule.why.trim().is_empty()) {
            bail!("a rule needs a reason: {rule:?}");
        }
        for rule in &rules {
            if rule.why.trim().is_empty() || rule.path.trim_matches('*').is_empty() || rule.cases.is_empty() {
                bail!("a rule needs cases, a path and a reason: {rule:?}");
            }
        }
        let (seen, seen_back) = (vec![0; rules.len()], vec![0; back.len()]);
        Ok(Self {
            rules,
            seen,
            instead,
            back,
            seen_back,
            cloud,
        })
    }

    /// The recorded phase that a phase is to look like.
    pub(crate) fn like<'a>(&'a self, case: &str, phase: &'a str) -> &'a str {
        let rule = self
            .instead
            .iter()
            .find(|rule| rule.case == case && rule.phase == phase);
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

    /// The differences that no rule speaks of, and the rules that spoke.
    pub(crate) fn judge(&self, case: &str, phase: &str, rows: Vec<Row>) -> (Vec<Row>, Vec<usize>) {
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

    /// The same for what the upstream program would write.
    pub(crate) fn judge_back(
        &self,
        case: &str,
        phase: &str,
        writes: Vec<String>,
    ) -> (Vec<String>, Vec<usize>) {
        let mut used = Vec::new();
        let left = writes
            .into_iter()
            .filter(|write| {
                let excuse = self.back.iter().position(|rule| {
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

    pub(crate) fn note(&mut self, used: &[usize], used_back: &[usize]) {
        for index in used {
            if let Some(count) = self.seen.get_mut(*index) {
                *count += 1;
            }
        }
        for index in used_back {
            if let Some(count) = self.seen_back.get_mut(*index) {
                *count += 1;
            }
        }
    }

    /// Rules of these cases that matched nothing.
    pub(crate) fn idle(&self, cases: &[String]) -> Vec<String> {
        let idle = self.rules.iter().zip(&self.seen).filter(|(rule, seen)| {
            **seen == 0
                && rule.only.as_ref().is_none_or(|only| only == self.cloud)
                && rule
                    .cases
                    .iter()
                    .all(|name| cases.iter().any(|case| fits(name, case)))
        });
        let mut idle: Vec<String> = idle
            .map(|(rule, _)| format!("a rule that matches nothing: {rule:?}"))
            .collect();
        for (rule, seen) in self.back.iter().zip(&self.seen_back) {
            if *seen == 0
                && rule
                    .cases
                    .iter()
                    .all(|name| cases.iter().any(|case| fits(name, case)))
            {
                idle.push(format!("a rule that matches nothing: {rule:?}"));
            }
        }
        idle
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

/// Where two recordings of a phase differ.
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

/// Leaves by path. Objects in lists go by what names them, so that order alone is no difference.
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
        return format!(
            "{}:{}",
            text("protocol").unwrap_or_default(),
            value["protocol_port"]
        );
    }
    if let (Some(listeners), true) = (value["listeners"].as_array(), value["lb_algorithm"].is_string()) {
        let names: Vec<&str> = listeners.iter().filter_map(Value::as_str).collect();
        return names.join("+");
    }
    if value["direction"].is_string() {
        let bound = |key: &str| {
            value[key]
                .as_str()
                .map_or_else(|| value[key].to_string(), str::to_owned)
        };
        return format!(
            "{} {} from {}",
            bound("protocol"),
            bound("port_range_min"),
            bound("remote_ip_prefix")
        );
    }
    match value {
        Value::Object(_) => text("name")
            .or_else(|| text("reason"))
            .unwrap_or_else(|| index.to_string()),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether a text fits a pattern in which `*` stands for any characters.
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
    fn stars_stand_for_any_characters() {
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
    fn order_is_no_difference_and_everything_else_is() {
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
    fn rules_excuse_what_they_name_and_idle_ones_are_told() {
        let table = "instead: []\nback: [{cases: [c], phases: ['*'], write: 'tag *', why: w}]\ndifferences:\n\
                     - {cases: [c], path: 'cloud/tags[x*]', want: nothing, why: w}\n\
                     - {cases: [c], path: 'cloud/y', why: w}\n";
        let mut rules = Rules::parse(table, "simulated").unwrap();
        let rows = differences(
            &json!({"cloud": {"tags": []}}),
            &json!({"cloud": {"tags": ["x1", "z"]}}),
        );
        let (left, used) = rules.judge("c", "create", rows.clone());
        assert_eq!(left.len(), 1);
        rules.note(&used, &[]);
        assert_eq!(rules.idle(&["c".to_owned()]).len(), 2);
        let writes = vec!["tag it".to_owned(), "delete it".to_owned()];
        let (left, used) = rules.judge_back("c", "create", writes);
        assert_eq!(left, ["delete it"]);
        rules.note(&[], &used);
        assert_eq!(rules.idle(&["c".to_owned()]).len(), 1);
        assert_eq!(rules.idle(&["d".to_owned()]).len(), 0);
        assert_eq!(rules.judge("d", "create", rows).0.len(), 2);
        assert!(
            Rules::parse(
                "{instead: [], back: [], differences: [{cases: [c], path: '*', why: w}]}",
                "real"
            )
            .is_err()
        );
    }
}
