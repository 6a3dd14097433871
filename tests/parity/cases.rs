//! The Services that are played, and what was recorded of them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::rest::{items, text};

/// The folder with cases and recordings.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/openstack")
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) config: Value,
    pub(crate) services: Vec<Value>,
    #[serde(default)]
    pub(crate) one_by_one: bool,
    #[serde(default)]
    pub(crate) steps: Vec<Value>,
}

/// All cases, those with the same config beside each other.
pub(crate) fn cases() -> Result<Vec<Case>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder().join("cases"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        let documents: Vec<Case> =
            serde_saphyr::from_multiple(&text).with_context(|| file.display().to_string())?;
        cases.extend(documents);
    }
    cases.sort_by_key(|case| case.config.to_string());
    Ok(cases)
}

/// The recording of a case.
pub(crate) fn recorded(case: &str) -> Result<Value> {
    let path = folder().join("recorded").join(format!("{case}.json"));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// A case while it is played.
pub(crate) struct Scene {
    pub(crate) case: String,
    recorded: Value,
    pub(crate) uids: BTreeMap<String, String>,
    /// Numbers keep their names when what had them is gone.
    pub(crate) words: BTreeMap<String, String>,
}

impl Scene {
    pub(crate) fn new(case: &Case) -> Result<Self> {
        Ok(Self {
            case: case.name.clone(),
            recorded: recorded(&case.name)?,
            uids: BTreeMap::new(),
            words: BTreeMap::new(),
        })
    }

    pub(crate) fn expect(&self, phase: &str) -> Result<Value> {
        let phases = items(&self.recorded["phases"]);
        let found = phases.iter().find(|recorded| recorded["phase"] == phase);
        found
            .cloned()
            .with_context(|| format!("{}: {phase} is not recorded", self.case))
    }
}

pub(crate) fn name_of(service: &Value) -> String {
    text(&service["metadata"]["name"])
}
