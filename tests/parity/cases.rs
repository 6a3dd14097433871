//! The Services of the cases, and their recordings.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

/// One or more Services, and their changes.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) config: Value,
    /// Further flags of the program.
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    pub(crate) services: Vec<Value>,
    /// The kinds of the cluster's machines, if the cloud has several, with the number of each.
    #[serde(default)]
    pub(crate) cluster: Value,
    /// Why the case is not played yet.
    #[serde(default)]
    pub(crate) unplayed: Option<String>,
    /// Resources of the user that exist before the Services.
    #[serde(default)]
    pub(crate) seed: Vec<Value>,
    /// Services that a step creates.
    #[serde(default)]
    pub(crate) later: Vec<String>,
    #[serde(default)]
    pub(crate) one_by_one: bool,
    #[serde(default)]
    pub(crate) steps: Vec<Value>,
}

/// Reads a file of a cloud's folder here.
pub(crate) fn read(cloud: &str, file: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/parity/{cloud}/{file}"));
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// The cases of a cloud that are played, those with the same machines, config and flags beside each other.
pub(crate) fn cases(cloud: &str) -> Result<Vec<Case>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/parity/{cloud}/cases"));
    let mut files: Vec<_> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = read(cloud, &format!("cases/{file}"))?;
        let documents: Vec<Case> = serde_saphyr::from_multiple(&text).context(file)?;
        cases.extend(documents.into_iter().filter(|case| case.unplayed.is_none()));
    }
    cases.sort_by_key(|case| (case.cluster.to_string(), case.config.to_string(), case.flags.clone()));
    Ok(cases)
}

/// The recording of a case.
pub(crate) fn recorded(cloud: &str, case: &str) -> Result<Value> {
    Ok(serde_json::from_str(&read(cloud, &format!("recorded/{case}.json"))?)?)
}

/// The state of a case while it is played.
pub(crate) struct CaseState {
    pub(crate) case: String,
    recorded: Value,
    pub(crate) uids: BTreeMap<String, String>,
    /// Numbers and UIDs with their names. They keep their names after the deletion of their object.
    pub(crate) words: BTreeMap<String, String>,
}

impl CaseState {
    pub(crate) fn new(cloud: &str, case: &Case) -> Result<Self> {
        Ok(Self {
            case: case.name.clone(),
            recorded: recorded(cloud, &case.name)?,
            uids: BTreeMap::new(),
            words: BTreeMap::new(),
        })
    }

    /// A recorded phase.
    pub(crate) fn expect(&self, phase: &str) -> Result<Value> {
        let phases = items(&self.recorded["phases"]);
        let found = phases.iter().find(|recorded| recorded["phase"] == phase);
        found.cloned().with_context(|| format!("{}: {phase} is not recorded", self.case))
    }
}

pub(crate) fn name_of(service: &Value) -> String {
    text(&service["metadata"]["name"])
}

pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
