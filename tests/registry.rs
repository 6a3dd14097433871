//! Five lists of this repository's clouds agree: the folders in `providers/`, the features of the root package, the list in
//! `src/providers.rs`, the providers in the binary, and the table of the README.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use cloud_controller_manager::providers::{self, enabled};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn listed() -> BTreeSet<String> {
    providers::FEATURES.iter().map(ToString::to_string).collect()
}

/// The lines of a section of the root manifest, as key and value.
fn manifest_section(name: &str) -> Vec<(String, String)> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, rest) = manifest.split_once(&format!("\n[{name}]\n")).expect(name);
    rest.lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = "))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

#[test]
fn folders_are_the_listed_clouds() {
    let folders: BTreeSet<_> = fs::read_dir(root().join("providers"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("Cargo.toml").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name != "core")
        .collect();
    assert_eq!(folders, listed());
}

#[test]
fn features_are_the_listed_clouds() {
    let features = manifest_section("features");
    let clouds: BTreeSet<_> = features
        .iter()
        .filter(|(name, _)| name != "default" && name != "all-providers")
        .map(|(name, value)| {
            assert_eq!(value, &format!("[\"dep:ccm-provider-{name}\"]"), "feature {name}");
            name.clone()
        })
        .collect();
    assert_eq!(clouds, listed());
    let all = features.iter().find(|(name, _)| name == "all-providers").map(|(_, value)| value).unwrap();
    let all: BTreeSet<_> = all
        .trim_matches(['[', ']'])
        .split(", ")
        .map(|name| name.trim_matches('"').to_owned())
        .collect();
    assert_eq!(all, listed(), "all-providers");
}

#[test]
fn the_readme_has_a_row_for_each() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let rows: BTreeSet<_> = text
        .lines()
        .filter(|line| line.starts_with("| "))
        .flat_map(|line| line.split('|').map(str::trim))
        .filter_map(|cell| cell.strip_prefix('`')?.strip_suffix('`'))
        .filter(|cell| !cell.contains(['/', '-', '.', '<']))
        .map(str::to_owned)
        .collect();
    assert_eq!(rows, listed());
}

#[test]
fn exactly_the_enabled_clouds_are_linked_in() {
    let linked: Vec<_> = providers::registered().unwrap().iter().map(|provider| provider.name).collect();
    assert_eq!(linked, enabled());
}

#[test]
fn the_binary_lists_its_providers() {
    let output = Command::new(env!("CARGO_BIN_EXE_cloud-controller-manager"))
        .arg("--list-providers")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, enabled());
    assert_eq!(output.status.success(), !enabled().is_empty());
}

#[test]
fn each_cloud_reports_a_missing_config_file_with_the_other_problems() {
    let flag = ("--kube-api-qps=fast", "--kube-api-qps");
    let kubeconfig = ("--kubeconfig=no/such/kubeconfig", "no/such/kubeconfig");
    let problems = [flag, kubeconfig];
    for (provider, (further, problem)) in enabled().iter().flat_map(|name| problems.map(|one| (name, one))) {
        let output = Command::new(env!("CARGO_BIN_EXE_cloud-controller-manager"))
            .args(["--cloud-config=no/such/cloud.conf", further, "--secure-port=0"])
            .arg(format!("--cloud-provider={provider}"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{provider}");
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(log.contains("no/such/cloud.conf"), "{provider}: {log}");
        assert!(log.contains(problem), "not all problems are reported: {provider}: {log}");
    }
}
