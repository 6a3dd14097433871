//! Features of the newest releases of upstream that this project does not know: annotations, config keys, chart values
//! and rules of the role. A nightly job runs it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use ccm_testbed::{
    cargo::{output, root},
    golang,
    helm::{Helm, HelmVersion, copy_upstream_chart},
    manifests,
};
use regex::Regex;
use serde_json::Value;

use crate::{print, say};

/// The places in which an upstream program declares the names that users write.
struct Upstream {
    cloud: &'static str,
    /// The repository, if no Go proxy has the program. It then has manifests in place of a chart.
    repository: Option<&'static str>,
    /// Searches in its Go files: a folder, and an expression whose first group is the name.
    names: &'static [(&'static str, &'static str)],
}

const UPSTREAM: [Upstream; 3] = [
    Upstream {
        cloud: "aws",
        repository: None,
        names: &[
            ("pkg", r#""(service\.beta\.kubernetes\.io/[a-z0-9-]+)""#),
            ("pkg/providers/v1/config", r"(?m)^\t\t([A-Z]\w+) +(?:\[\])?(?:string|bool|int32)\b"),
        ],
    },
    Upstream {
        cloud: "digitalocean",
        repository: Some("https://github.com/digitalocean/digitalocean-cloud-controller-manager"),
        names: &[
            (
                "cloud-controller-manager/do",
                r#""((?:service\.)?kubernetes\.(?:io|digitalocean\.com)/[a-z0-9-]+)""#,
            ),
            // The rest of the name, after a constant.
            ("cloud-controller-manager/do", r#"annDOLoadBalancerBase \+ "([a-z0-9-]+)""#),
            ("cloud-controller-manager/do", r#"(?:Env|EnvVar)\s+(?:string )?= "([A-Z_]+)""#),
        ],
    },
    Upstream {
        cloud: "openstack",
        repository: None,
        names: &[
            (
                "pkg/openstack",
                r#""((?:loadbalancer\.openstack\.org|service\.beta\.kubernetes\.io)/[a-z0-9-]+)""#,
            ),
            ("pkg/openstack", r#"gcfg:"([a-z0-9-]+)""#),
            ("pkg/client", r#"gcfg:"([a-z0-9-]+)""#),
        ],
    },
];

/// Lists the rights of upstream that this program does not need.
const SECURITY: &str = "docs/security.md";

pub(crate) fn run() -> Result<()> {
    let mut unknown = 0;
    let mut is_complete = true;
    for upstream in &UPSTREAM {
        let folder = tempfile::tempdir()?;
        let newest = match upstream.repository {
            Some(repository) => newest_tag(repository, &folder.path().join("source")),
            None => golang::newest(&format!("k8s.io/cloud-provider-{}", upstream.cloud)),
        };
        let (version, source) = match newest {
            Ok(newest) => newest,
            Err(error) => {
                print(&format!("{}: no release to compare with: {error:#}", upstream.cloud));
                is_complete = false;
                continue;
            }
        };
        say(&format!("comparing with {} {version}", upstream.cloud));
        let mut report = |what: &str, names: BTreeSet<String>| {
            for name in names {
                print(&format!("{} {version}: {what} {name}", upstream.cloud));
                unknown += 1;
            }
        };
        let path = format!("docs/reference/{}.md", upstream.cloud);
        let reference = fs::read_to_string(root().join(path))?.to_lowercase();
        for (folder, expression) in upstream.names {
            let mut names = BTreeSet::new();
            collect(&source.join(folder), &Regex::new(expression)?, &mut names)?;
            names.retain(|name| !reference.contains(&name.to_lowercase()));
            report("name", names);
        }
        let granted = match upstream.repository {
            Some(_) => {
                let manifest = format!("releases/{}-cloud-controller-manager/{version}.yml", upstream.cloud);
                rights(&manifests::read(&source.join(manifest))?)
            }
            None => {
                let chart = copy_upstream_chart(upstream.cloud, &source, folder.path())?;
                report("chart value", unknown_values(upstream.cloud, &chart)?);
                let chart = chart.display().to_string();
                chart_rights(&[&chart, "--show-only", "templates/clusterrole.yaml"])?
            }
        };
        report("right", unknown_rights(upstream.cloud, granted)?);
    }
    if unknown > 0 {
        bail!(
            "{unknown} names of the Go cloud-controller-managers are unknown here: support them, or add the reason to the references or, for a right, to {SECURITY}"
        );
    }
    ensure!(is_complete, "not all Go cloud-controller-managers were compared");
    Ok(())
}

/// Clones the newest release of a repository to a folder. Returns its version and the folder.
fn newest_tag(repository: &str, folder: &Path) -> Result<(String, PathBuf)> {
    let mut list = Command::new("git");
    list.args([
        "ls-remote",
        "--tags",
        "--refs",
        "--sort=-version:refname",
        repository,
        "v*",
    ]);
    let references = output(&mut list)?;
    let tag = references
        .lines()
        .filter_map(|line| Some(line.split_once("refs/tags/")?.1))
        // Not an alpha, beta or candidate.
        .find(|tag| !tag.contains('-'))
        .context("it has no release")?;
    let mut clone = Command::new("git");
    clone.args([
        "-c",
        "advice.detachedHead=false",
        "clone",
        "--quiet",
        "--depth=1",
        "--branch",
        tag,
        repository,
    ]);
    output(clone.arg(folder))?;
    Ok((tag.to_owned(), folder.to_owned()))
}

/// Adds the matches of the expression in the Go files below a folder, without tests.
fn collect(folder: &Path, expression: &Regex, names: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.to_string_lossy();
        if path.is_dir() {
            collect(&path, expression, names)?;
        } else if name.ends_with(".go") && !name.ends_with("_test.go") {
            let text = fs::read_to_string(&path)?;
            names.extend(expression.captures_iter(&text).map(|found| found[1].to_owned()));
        }
    }
    Ok(())
}

/// Top-level values of the upstream chart that this chart does not have.
fn unknown_values(cloud: &str, chart: &Path) -> Result<BTreeSet<String>> {
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(root().join("deploy/chart/values.schema.json"))?)?;
    let mut theirs = keys(&chart.join("values.yaml"))?;
    let ours = keys(&root().join(format!("deploy/chart/clouds/{cloud}.yaml")))?;
    theirs.retain(|key| !ours.contains(key) && schema["properties"].get(key).is_none());
    Ok(theirs)
}

/// The top-level keys of a file with values.
fn keys(path: &Path) -> Result<BTreeSet<String>> {
    let values = manifests::read(path)?.pop().unwrap_or_default();
    Ok(values.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect())
}

/// The given rights, without those that the role of this chart grants, and those that it does not need.
fn unknown_rights(cloud: &str, theirs: BTreeSet<String>) -> Result<BTreeSet<String>> {
    let chart = root().join("deploy/chart").display().to_string();
    // Any image: the chart requires one.
    let values = format!("cloud={cloud},image.repository=any");
    let ours = chart_rights(&[&chart, "--show-only", "templates/rbac.yaml", "--set", &values])?;
    let security = fs::read_to_string(root().join(SECURITY))?;
    let unneeded: BTreeSet<_> = security.lines().flat_map(unneeded_rights).collect();
    let missing = theirs.into_iter().filter(|right| !ours.contains(right) && !unneeded.contains(right));
    Ok(missing.collect())
}

/// The rights that a chart grants with these arguments of `helm template`.
fn chart_rights(arguments: &[&str]) -> Result<BTreeSet<String>> {
    let arguments = [&["template", "ccm"], arguments].concat();
    Ok(rights(&manifests::parse(&Helm::new(HelmVersion::V3, "")?.run(&arguments)?)?))
}

/// All rights that these objects grant.
fn rights(objects: &[Value]) -> BTreeSet<String> {
    manifests::rights(objects)
        .iter()
        .map(|granted| right(&granted.verb, &format!("{}.{}", granted.resource, granted.group)))
        .collect()
}

/// The rights in a row of the table: `resource.group`, verbs, reason.
fn unneeded_rights(row: &str) -> Vec<String> {
    let mut cells = row.split('|').skip(1).map(str::trim);
    let (Some(resource), Some(verbs)) = (cells.next(), cells.next()) else {
        return Vec::new();
    };
    let resource = resource.trim_matches('`');
    verbs.split(", ").map(|verb| right(verb, resource)).collect()
}

/// `verb resource.group`. The core group has no name.
fn right(verb: &str, resource: &str) -> String {
    format!("{verb} {}", resource.trim_end_matches('.'))
}
