//! A release in one folder: images, chart, manifests for `kubectl apply`, SBOMs, notes and checksums.
//!
//! The workflow `.github/workflows/release.yml` pushes and signs the result.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ccm_testbed::{
    cargo::{output, root},
    helm::{Helm, HelmVersion, kustomize},
};
use clap::Args;

use crate::{
    image::{self, ImageOptions},
    print, say,
};

#[derive(Args, Debug)]
pub(crate) struct ReleaseOptions {
    /// Accept uncommitted changes, a missing tag of this version, and unreleased entries of the changelog, to try a release.
    #[arg(long)]
    dry_run: bool,

    /// The folder of the release.
    #[arg(long, value_name = "FOLDER", default_value = "target/release-files")]
    output: PathBuf,

    /// The images' features, such as `openstack`; may be repeated. Default: each cloud, and all.
    #[arg(long, value_name = "FEATURES")]
    features: Vec<String>,

    /// amd64 or arm64; may be repeated. Default: both.
    #[arg(long, value_name = "NAME")]
    arch: Vec<String>,
}

pub(crate) fn run(options: &ReleaseOptions) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let notes = check(version, options.dry_run)?;
    let folder = root().join(&options.output);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("could not remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("NOTES.md"), notes)?;
    say("packing the chart and the manifests");
    let chart = root().join("deploy/chart");
    Helm::new(HelmVersion::V3, "")?.run(&[
        "package",
        &chart.display().to_string(),
        "--destination",
        &folder.display().to_string(),
    ])?;
    for cloud in crate::clouds()? {
        let manifest = folder.join(format!("install-{cloud}.yaml"));
        let image = format!("cloud-controller-manager:v{version}-{cloud}");
        let note = format!("# Replace the image {image} with the same image in your registry.\n");
        fs::write(manifest, note + &install_manifest(&cloud)?)?;
    }
    let images = ImageOptions {
        features: options.features.clone(),
        arch: options.arch.clone(),
        output: options.output.clone(),
        check: false,
    };
    for image in image::build(&images)? {
        for (architecture, sbom) in &image.sboms {
            let name = format!("sbom-{}-{architecture}.cdx.json", image.features);
            fs::copy(sbom, folder.join(name))?;
        }
    }
    let sums = checksums(&folder)?;
    fs::write(folder.join("SHA256SUMS"), &sums)?;
    print(sums.trim_end());
    Ok(())
}

/// Checks all requirements of a release, and reports all problems at once. Returns the section of the changelog.
fn check(version: &str, dry_run: bool) -> Result<String> {
    let mut problems = Vec::new();
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    let section_of = |name: &str| {
        let mut sections = changelog.split("\n## [");
        sections.find(|section| section.starts_with(&format!("{name}]")))
    };
    let section = section_of(version);
    if section.is_none() {
        problems.push(format!("CHANGELOG.md has no section [{version}]"));
    }
    let mut require = |path: &str, wanted: String| -> Result<()> {
        let text = fs::read_to_string(root().join(path))?;
        if !text.lines().any(|line| line.trim() == wanted) {
            problems.push(format!("{path} has no line \"{wanted}\""));
        }
        Ok(())
    };
    require("deploy/chart/Chart.yaml", format!("version: {version}"))?;
    require("deploy/chart/Chart.yaml", format!("appVersion: {version}"))?;
    require("Dockerfile", format!("ARG VERSION={version}"))?;
    for cloud in crate::clouds()? {
        let path = format!("deploy/{cloud}/kustomization.yaml");
        require(&path, format!("newTag: v{version}-{cloud}"))?;
    }
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(root()).args(arguments));
    if !dry_run {
        let unreleased = section_of("Unreleased");
        if unreleased.is_some_and(|section| section.lines().any(|line| line.starts_with("- "))) {
            problems.push(format!("CHANGELOG.md: move the entries of [Unreleased] to [{version}]"));
        }
        if !git(&["status", "--porcelain"])?.is_empty() {
            problems.push("there are uncommitted changes".to_owned());
        }
        let tag = format!("v{version}");
        if !git(&["tag", "--points-at", "HEAD"])?.lines().any(|line| line == tag) {
            problems.push(format!("this commit has no tag {tag}"));
        }
    }
    if !problems.is_empty() {
        bail!(
            "no release: {} (--dry-run accepts a missing tag, and changes that are not committed or not released)",
            problems.join("; ")
        );
    }
    let section = section.unwrap_or_default();
    Ok(section.split_once('\n').map_or("", |(_, text)| text.trim()).to_owned() + "\n")
}

/// The objects of `deploy/<cloud>` without its Secret, which contains credentials of the user.
fn install_manifest(cloud: &str) -> Result<String> {
    let folder = tempfile::tempdir()?;
    ccm_testbed::manifests::copy_folder(&root().join("deploy"), folder.path())?;
    let cloud = folder.path().join(cloud);
    let path = cloud.join("kustomization.yaml");
    let text = fs::read_to_string(&path)?;
    fs::write(&path, without_secrets(&text))?;
    kustomize(&cloud)
}

/// A kustomization without the component and the generators of Secrets.
fn without_secrets(kustomization: &str) -> String {
    let mut kept = String::new();
    let mut is_secret = false;
    for line in kustomization.lines() {
        if !line.starts_with([' ', '#']) {
            is_secret = line.starts_with("components:") || line.starts_with("secretGenerator:");
        }
        if !is_secret {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The checksum of each file, in the form of `sha256sum`.
fn checksums(folder: &Path) -> Result<String> {
    let script = "find . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum";
    output(Command::new("sh").args(["-c", script]).current_dir(folder))
}
