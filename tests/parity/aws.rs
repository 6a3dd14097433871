//! What the program builds on moto for the Services of `aws/cases` against what the upstream program built for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, missing_docs)]

#[path = "compare.rs"]
#[allow(dead_code, reason = "the way back to upstream is shown for OpenStack only")]
mod compare;

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use anyhow::{Context as _, Result};
use ccm_testbed::{
    controlplane::{ControlPlane, Options},
    moto,
};
use compare::Rules;
use futures_util::future::try_join_all;
use serde_json::Value;

/// Recorders side by side: most of the time is spent waiting.
const LANES: usize = 4;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/parity/aws")
}

fn read(path: PathBuf) -> Result<Value> {
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// Names of the recorded cases, those with the same config of the program side by side.
fn cases() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder().join("recorded"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    if let Ok(only) = env::var("CCM_TEST_PARITY_ONLY") {
        names.retain(|name| only.split(',').any(|wanted| wanted == name));
    }
    names.sort();
    names
}

/// Records some of the cases with a control plane and a moto of their own.
async fn record(names: Vec<String>) -> Result<Vec<(String, Value)>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let control_plane = ControlPlane::start(Options { audit: false }).await?;
    let out = tempfile::tempdir()?;
    let arguments = [
        ("--binary", PathBuf::from(env!("CARGO_BIN_EXE_cloud-controller-manager"))),
        ("--kubeconfig", control_plane.kubeconfig()),
        ("--cases", folder().join("cases")),
        ("--out", out.path().join("got")),
        ("--only", names.join(",").into()),
    ];
    let said = moto::python("record.py", &arguments).await?;
    println!("{said}");
    let recorded = |name: String| Ok((name.clone(), read(out.path().join(format!("got/{name}.json")))?));
    names.into_iter().map(recorded).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn services_look_as_upstream_makes_them() {
    let mut rules = Rules::parse(&fs::read_to_string(folder().join("agreed.yaml")).unwrap(), "moto").unwrap();
    let names = cases();
    let mut lanes = vec![Vec::new(); LANES];
    for (at, name) in names.iter().enumerate() {
        lanes[at % LANES].push(name.clone());
    }
    let recorded = try_join_all(lanes.into_iter().map(record)).await.unwrap();
    let mut problems = Vec::new();
    for (name, got) in recorded.into_iter().flatten() {
        let want = read(folder().join(format!("recorded/{name}.json"))).unwrap();
        let phases = |recording: &Value| -> BTreeMap<String, Value> {
            let phases = recording["phases"].as_array().unwrap().iter();
            phases.map(|phase| (phase["phase"].as_str().unwrap().to_owned(), phase.clone())).collect()
        };
        let (want, got) = (phases(&want), phases(&got));
        assert!(want.keys().eq(got.keys()), "{name}: phases {:?}", got.keys());
        for (phase, want) in &want {
            let (rows, used) = rules.judge(&name, phase, compare::differences(want, &got[phase]));
            rules.note(&used, &[]);
            problems.extend(rows.iter().map(|row| format!("{name} / {phase}: {row}")));
        }
    }
    problems.extend(rules.idle(&names));
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}
