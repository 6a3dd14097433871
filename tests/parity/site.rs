//! The interface of a cloud for the comparison: a project with a network and machines, its objects by name, and the calls.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, bail};
use ccm_testbed::nodes::NodeSpec;
use kube::Client;
use regex::Regex;
use serde_json::{Map, Value};

/// A cloud of its own for some cases.
pub(crate) trait Site {
    /// The value of `--cloud-provider`, and the folder of cases and recordings.
    const CLOUD: &'static str;
    /// Whether names of objects contain the UIDs of nodes.
    const NAMES_NODES_BY_UID: bool = false;
    /// Whether Services share load balancers, so that the recordings of two cases cannot be rebuilt beside each other.
    const SHARES_LOAD_BALANCERS: bool = false;
    /// A moment in the log of calls.
    type Moment;

    /// Creates the objects of the cluster that a case needs.
    async fn prepare(&self, _client: &Client) -> Result<()> {
        Ok(())
    }

    /// The nodes of the cluster: `node-1`, `node-2` and `node-3` of the recordings.
    fn nodes(&self) -> Vec<NodeSpec>;

    /// The program's config, with the changes of a case.
    fn cloud_conf(&self, changes: &Value) -> String;

    /// Variables for the program's environment.
    fn environment(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Flags that only this cloud has.
    fn flags(&self) -> Vec<String> {
        Vec::new()
    }

    /// The value of a `${NAME}` in a case.
    fn variable(&self, name: &str) -> Option<String>;

    /// The time limit of a phase, and the time without a call after which it has ended.
    fn patience(&self) -> (Duration, Duration) {
        (Duration::from_secs(300), Duration::from_millis(1100))
    }

    /// The present moment, for [`Self::calls_since`].
    fn mark(&self) -> Result<Self::Moment>;

    /// The program's calls since then, without those of authentication.
    fn calls_since(&self, moment: &Self::Moment) -> Result<Vec<Call>>;

    /// All objects that may be created for the Services of these UIDs, and the names of their IDs.
    async fn dump(&self, uids: &BTreeMap<String, String>) -> Result<(Value, Names)>;

    /// Creates resources of the user that exist before the Services of a case.
    async fn seed(&self, _resources: &[Value]) -> Result<()> {
        Ok(())
    }

    /// Removes the first object whose path matches this regular expression, without the program.
    async fn remove(&self, pattern: &str) -> Result<()> {
        bail!("{} has no step that removes {pattern}", Self::CLOUD)
    }

    /// Deletes all these objects.
    async fn clear(&self) -> Result<()>;

    /// Creates the objects of a recorded phase with requests of its own, and records their IDs.
    async fn rebuild(&self, phase: &Value, names: &mut PresentNames) -> Result<()>;

    /// Releases resources of the cloud.
    async fn leave(&self) -> Result<()> {
        Ok(())
    }

    /// Whether the program sends this call deliberately when it takes over upstream's objects.
    fn is_takeover_write(&self, _call: &str) -> bool {
        false
    }

    /// Whether such a write changes the value at this path, as the comparison prints it.
    fn is_changed_by_takeover(&self, _path: &str) -> bool {
        false
    }

    /// The writes of the upstream program after a rollback to it. `got`: the result of [`crate::play::Play::observe`].
    fn writes_of_upstream(&self, got: &Value, hosts: &[Host], config: &Value) -> Vec<String>;
}

/// A node with the properties that upstream reads, and its name in the recordings.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) excluded: bool,
}

/// One call of the program to the cloud.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The text that is printed.
    pub(crate) text: String,
    pub(crate) is_write: bool,
}

/// The names of all values that differ in each run.
#[derive(Clone, Default)]
pub(crate) struct Names {
    pub(crate) ids: BTreeMap<String, String>,
    pub(crate) addresses: BTreeMap<String, String>,
    /// Numbers and UIDs of the Services.
    pub(crate) words: BTreeMap<String, String>,
    /// Further texts, and their replacements.
    pub(crate) patterns: Vec<(Regex, &'static str)>,
}

/// Replaces the IDs, addresses and numbers of one run by names.
pub(crate) struct Normalizer {
    words: Vec<(String, String)>,
    patterns: Vec<(Regex, String)>,
    numbers: BTreeMap<String, String>,
}

impl Normalizer {
    pub(crate) fn new(names: &Names) -> Self {
        let longest_first = |maps: &[&BTreeMap<String, String>]| {
            let pairs = maps.iter().flat_map(|map| (*map).clone());
            let mut list: Vec<_> = pairs.filter(|(key, _)| !key.is_empty()).collect();
            list.sort_by_key(|(key, _)| std::cmp::Reverse(key.len()));
            list
        };
        let mut patterns = Vec::new();
        let mut words = longest_first(&[&names.words, &names.ids]);
        words.retain(|(key, name)| {
            let is_number = key.bytes().all(|byte| byte.is_ascii_digit());
            if is_number {
                patterns.push((Regex::new(&format!(r"\b{key}\b")).unwrap(), name.clone()));
            }
            !is_number
        });
        for (key, name) in longest_first(&[&names.addresses]) {
            let pattern = format!(r"(^|[^\d.]){}($|[^\d.]|\.$|\.[^\d])", regex::escape(&key));
            patterns.push((Regex::new(&pattern).unwrap(), format!("${{1}}{name}${{2}}")));
        }
        let time = (Regex::new(r"\b20\d\d-\d\d-\d\dT[\d:.]+Z?\b").unwrap(), "<time>");
        for (pattern, name) in names.patterns.iter().chain([&time]) {
            patterns.push((pattern.clone(), (*name).to_owned()));
        }
        Self {
            words,
            patterns,
            numbers: names.words.clone(),
        }
    }

    pub(crate) fn text(&self, given: &str) -> String {
        let mut text = given.to_owned();
        for (key, name) in &self.words {
            text = text.replace(key, name);
        }
        for (pattern, name) in &self.patterns {
            text = pattern.replace_all(&text, name).into_owned();
        }
        text
    }

    pub(crate) fn value(&self, given: &Value) -> Value {
        match given {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| (self.text(key), self.value(value)))
                .collect::<Map<_, _>>()
                .into(),
            Value::Array(list) => list.iter().map(|value| self.value(value)).collect(),
            Value::String(text) => Value::String(self.text(text)),
            Value::Number(number) => match self.numbers.get(&number.to_string()) {
                Some(name) => Value::String(name.clone()),
                None => given.clone(),
            },
            _ => given.clone(),
        }
    }
}

/// Replaces names of a recording by their present values.
#[derive(Default)]
pub(crate) struct PresentNames {
    pub(crate) words: Vec<(String, Value)>,
}

impl PresentNames {
    /// Records the value of a name.
    pub(crate) fn insert(&mut self, name: impl Into<String>, value: Value) {
        self.words.push((name.into(), value));
    }

    pub(crate) fn value(&self, given: &Value) -> Value {
        match given {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| (key.clone(), self.value(value)))
                .collect::<Map<_, _>>()
                .into(),
            Value::Array(list) => list.iter().map(|value| self.value(value)).collect(),
            Value::String(whole) => {
                if let Some((_, value)) = self.words.iter().find(|(word, _)| word == whole) {
                    return value.clone();
                }
                let mut text = whole.clone();
                for (word, value) in &self.words {
                    match value {
                        Value::String(value) => text = text.replace(word, value),
                        value => text = text.replace(word, &value.to_string()),
                    }
                }
                Value::String(text)
            }
            _ => given.clone(),
        }
    }
}
