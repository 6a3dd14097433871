//! Finds or builds the control plane program.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::cache;
use crate::golang::{self, GoProgram};

const PROGRAM: &str = "ccm-controlplane";

/// The variable that selects another minor version of Kubernetes, such as `1.36`, from `tests/controlplane/older`.
const KUBERNETES: &str = "CCM_TEST_KUBERNETES";

/// The program to start, and the directory of the prebuilt servers that it runs, if any.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) assets: Option<PathBuf>,
}

/// Finds or builds the program. `KUBEBUILDER_ASSETS`, the convention of envtest, names a directory with the servers
/// `etcd` and `kube-apiserver`; then a small build without servers of its own is enough.
pub(super) fn program() -> Result<Program> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = &assets {
        for server in ["etcd", "kube-apiserver"] {
            if !dir.join(server).is_file() {
                bail!("KUBEBUILDER_ASSETS is {}, which does not contain {server}", dir.display());
            }
        }
    }
    Ok(Program {
        path: build(assets.is_some())?,
        assets,
    })
}

fn build(light: bool) -> Result<PathBuf> {
    let sources = cache::sources("controlplane")?;
    let older = env::var(KUBERNETES).ok().filter(|minor| !minor.is_empty());
    let module_file = match &older {
        Some(minor) => format!("older/{minor}.mod"),
        None => "go.mod".to_owned(),
    };
    let modules = fs::read_to_string(sources.join(&module_file))
        .with_context(|| format!("{KUBERNETES}: tests/controlplane/{module_file} not found"))?;
    let version = kubernetes_version(&modules)
        .with_context(|| format!("no version of k8s.io/kubernetes in tests/controlplane/{module_file}"))?;
    let kind = match (light, &older) {
        (true, _) => "light".to_owned(),
        (false, None) => "full".to_owned(),
        (false, Some(_)) => format!("full-{version}"),
    };
    let what = if light {
        "the driver of etcd and kube-apiserver (half a minute, once)".to_owned()
    } else {
        format!("etcd and kube-apiserver {version} for tests (4 to 6 minutes, once; no cached build)")
    };
    golang::build(&GoProgram {
        sources: "controlplane",
        package: ".",
        module_file: older.as_ref().map(|_| module_file.as_str()),
        kind: &kind,
        name: PROGRAM,
        link_flags: link_flags(&version),
        tags: if light { Some("assets") } else { None },
        what,
    })
}

/// Sets the version that the API server reports, which clients check.
fn link_flags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    )
}

fn kubernetes_version(go_mod: &str) -> Option<String> {
    go_mod
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
        .map(|v| v.trim().to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn version_is_the_one_that_go_mod_requires() {
        let go_mod = "module x\n\nrequire (\n\tk8s.io/api v0.37.1\n\tk8s.io/kubernetes v1.37.1\n)\n";
        let version = kubernetes_version(go_mod).unwrap();
        assert_eq!(version, "v1.37.1");
        assert!(link_flags(&version).contains(".gitMinor=37"));
    }
}
