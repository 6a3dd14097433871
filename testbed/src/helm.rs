//! Helm 3, Helm 4 and kustomize, built from `tests/helm` and `tests/helm4`, and the charts of upstream that the project follows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::golang::{self, GoProgram};
use crate::manifests::copy_folder;
use crate::process::run_captured;

/// Replaces Bitnami's library chart, of which the chart for OpenStack uses one template, for labels of metadata.
const COMMON_LABELS: &str = r#"{{- define "common.labels.standard" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
"#;

/// Files of `deploy/`, and their copies in `deploy/chart/files/`. They are no links, because some consumers of charts leave links out.
/// `cargo xtask docs` writes the copies.
pub const CHART_FILES: [(&str, &str); 4] = [
    ("monitoring/alerts.yaml", "alerts.yaml"),
    ("monitoring/dashboard.json", "dashboard.json"),
    ("base/rbac.yaml", "rbac.yaml"),
    ("service-accounts/rbac.yaml", "service-accounts.yaml"),
];

fn tool(name: &str, sources: &str, package: &str, minutes: &str) -> Result<PathBuf> {
    golang::build(&GoProgram {
        sources,
        package,
        module_file: None,
        kind: name,
        name,
        link_flags: "-s -w".to_owned(),
        tags: None,
        what: format!("{name} ({minutes}, once)"),
    })
}

/// The output of `kustomize build` for this folder.
///
/// # Errors
/// When kustomize cannot be built, or refuses the folder.
pub fn kustomize(folder: &Path) -> Result<String> {
    let program = tool("kustomize", "helm", "sigs.k8s.io/kustomize/kustomize/v5", "2 minutes")?;
    run_captured(Command::new(program).arg("build").arg(folder))
}

/// The major versions of Helm that the chart supports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HelmVersion {
    /// Merges changes itself, with the manifest of the release before.
    V3,
    /// Lets the API server merge new releases (server-side apply), and reports conflicts with other owners of a field.
    V4,
}

impl HelmVersion {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V3, Self::V4];
}

/// Helm for one cluster, with its own home folder.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    home: TempDir,
    kubeconfig: PathBuf,
}

impl Helm {
    /// Builds Helm if needed. `helm template` needs no cluster, so that any path is accepted.
    ///
    /// # Errors
    /// When Helm cannot be built.
    pub fn new(version: HelmVersion, kubeconfig: impl Into<PathBuf>) -> Result<Self> {
        let program = match version {
            HelmVersion::V3 => tool("helm", "helm", "helm.sh/helm/v3/cmd/helm", "3 to 5 minutes")?,
            HelmVersion::V4 => tool("helm", "helm4", "helm.sh/helm/v4/cmd/helm", "3 to 5 minutes")?,
        };
        Ok(Self {
            program,
            home: tempfile::tempdir()?,
            kubeconfig: kubeconfig.into(),
        })
    }

    /// Runs Helm and returns its standard output.
    ///
    /// # Errors
    /// When Helm fails; with its standard error.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(args).env("HOME", self.home.path()).env("KUBECONFIG", &self.kubeconfig);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path());
        }
        run_captured(&mut command)
    }
}

/// Copies of the charts of upstream, in the versions that `tests/helm/upstream/go.mod` pins, by cloud.
#[derive(Debug)]
pub struct UpstreamCharts {
    folder: TempDir,
    modules: BTreeMap<String, PathBuf>,
}

impl UpstreamCharts {
    /// Downloads the modules if needed.
    ///
    /// # Errors
    /// When they cannot be downloaded.
    pub fn new() -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            modules: golang::modules("helm/upstream")?,
        })
    }

    /// The chart of a cloud.
    ///
    /// # Errors
    /// When the cloud has no chart.
    pub fn chart(&self, cloud: &str) -> Result<PathBuf> {
        let module = format!("k8s.io/cloud-provider-{cloud}");
        let module = self.modules.get(&module).with_context(|| format!("{module} is not in go.mod"))?;
        copy_upstream_chart(cloud, module, self.folder.path())
    }
}

/// Copies the chart of an upstream program from the sources of its module to a folder, with a stub of the library that it depends on.
///
/// # Errors
/// When files cannot be copied.
pub fn copy_upstream_chart(cloud: &str, module: &Path, folder: &Path) -> Result<PathBuf> {
    let name = format!("{cloud}-cloud-controller-manager");
    let chart = folder.join(&name);
    copy_folder(&module.join("charts").join(&name), &chart)?;
    if cloud == "openstack" {
        let common = chart.join("charts/common");
        fs::create_dir_all(common.join("templates"))?;
        let about = "apiVersion: v2\nname: common\ntype: library\nversion: 2.14.1\n";
        fs::write(common.join("Chart.yaml"), about)?;
        fs::write(common.join("templates/_labels.tpl"), COMMON_LABELS)?;
    }
    Ok(chart)
}
