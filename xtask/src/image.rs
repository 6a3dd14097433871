//! Container images: one for each cloud and one with all, for both architectures. Neither Docker nor a registry is needed.
//!
//! `deploy/image/root.sh` builds the files of an image. The last stage of the Dockerfile turns them into one, by buildah. The
//! result is a folder in the OCI image layout, packed as `<name>-<version>-<cloud>.tar`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use ccm_testbed::cargo::{output, root, run as execute};
use clap::Args;

use crate::{print, say, tools::Tool};

#[derive(Args, Debug)]
pub(crate) struct ImageOptions {
    /// The clouds of an image, such as `openstack`; may be repeated. Default: an image for each cloud, and one with all.
    #[arg(long, value_name = "FEATURES")]
    pub(crate) features: Vec<String>,

    /// amd64 or arm64; may be repeated. Default: both, in one image.
    #[arg(long, value_name = "NAME")]
    pub(crate) arch: Vec<String>,

    /// The folder of the images.
    #[arg(long, value_name = "FOLDER", default_value = "target/images")]
    pub(crate) output: PathBuf,

    /// Build from two clean clones in different folders, compare the images byte by byte, and run each program.
    #[arg(long)]
    pub(crate) check: bool,
}

/// Debian's packages that build images, with a program of each.
const PACKAGES: [(&str, &str); 2] = [("buildah", "buildah"), ("cmake", "cmake")];

/// Those that build for arm64 on another machine.
const ARM64_PACKAGES: [(&str, &str); 3] = [
    ("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
    ("g++-aarch64-linux-gnu", "aarch64-linux-gnu-g++"),
    ("qemu-user-static", "qemu-aarch64-static"),
];

/// Those that build for amd64 on another machine.
const AMD64_PACKAGES: [(&str, &str); 3] = [
    ("gcc-x86-64-linux-gnu", "x86_64-linux-gnu-gcc"),
    ("g++-x86-64-linux-gnu", "x86_64-linux-gnu-g++"),
    ("qemu-user-static", "qemu-x86_64-static"),
];

/// Tools that list the dependencies of the program, in the program and as a file. The releases are also in the Dockerfile.
const AUDITABLE: [Tool; 2] = [
    Tool {
        name: "cargo-auditable",
        version: "0.7.7",
        purpose: "lists the dependencies of the program in it",
    },
    Tool {
        name: "auditable2cdx",
        version: "0.1.0",
        purpose: "writes the dependencies of a program to a file",
    },
];

/// Variables of the build for a program that is built soon.
const NOT_OPTIMIZED: [(&str, &str); 5] = [
    // Values that do not depend on checkout and commit, so that others reuse the dependencies that are built.
    ("CCM_KEPT_PATH", "/kept"),
    ("SOURCE_DATE_EPOCH", "0"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
];

/// An image that was built.
#[derive(Debug)]
pub(crate) struct Image {
    /// The features of its program.
    pub(crate) features: String,
    /// The file.
    archive: PathBuf,
    digest: String,
    /// The list of the program's dependencies (CycloneDX), by architecture.
    pub(crate) sboms: Vec<(String, PathBuf)>,
}

pub(crate) fn run(options: &ImageOptions) -> Result<()> {
    if !options.check {
        for image in build(options)? {
            print(&image.line());
        }
        return Ok(());
    }
    let images = Images::prepare(options)?;
    // Both before the first build, which takes minutes: they have the same commit.
    let clones = (images.clone_to("first")?, images.clone_to("second")?);
    let (first, second) = (images.build_clone(&clones.0)?, images.build_clone(&clones.1)?);
    let mut differing = Vec::new();
    for (one, other) in first.iter().zip(&second) {
        print(&one.line());
        if one.digest != other.digest {
            differing.push(one.features.clone());
        }
    }
    if !differing.is_empty() {
        bail!("two builds of the same commit differ: {}", differing.join(", "));
    }
    say("two clones in different folders gave the same bytes");
    Ok(())
}

/// Builds images from this checkout.
pub(crate) fn build(options: &ImageOptions) -> Result<Vec<Image>> {
    Images::prepare(options)?.build(&root())
}

/// Builds the image of a cloud for this machine, to be tested. Its program is not optimized, which would take many minutes.
pub(crate) fn for_test(cloud: &str) -> Result<PathBuf> {
    let options = ImageOptions {
        features: vec![cloud.to_owned()],
        arch: vec![own_architecture().to_owned()],
        output: ccm_testbed::cache::dir()?.join("images/test"),
        check: false,
    };
    let images = Images {
        profile: &NOT_OPTIMIZED,
        ..Images::prepare(&options)?
    };
    let image = images.build(&root())?.pop().context("no image was built")?;
    Ok(image.archive)
}

/// The name that images have for this machine's architecture.
fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

impl Image {
    fn line(&self) -> String {
        format!("{}  {}", self.digest, self.archive.display())
    }
}

/// The images to build, and the settings of the build.
struct Images {
    /// The features of each image.
    features: Vec<String>,
    architectures: Vec<String>,
    output: PathBuf,
    /// Variables of the build that replace its defaults.
    profile: &'static [(&'static str, &'static str)],
    /// Folder of the tools and of intermediate results.
    cache: PathBuf,
}

impl Images {
    /// Installs missing tools and checks the options.
    fn prepare(options: &ImageOptions) -> Result<Self> {
        let mut features = options.features.clone();
        if features.is_empty() {
            features = crate::clouds()?;
            features.push("all-providers".to_owned());
        }
        let mut architectures = options.arch.clone();
        if architectures.is_empty() {
            architectures = vec!["amd64".to_owned(), "arm64".to_owned()];
        }
        let images = Self {
            features,
            architectures,
            output: root().join(&options.output),
            profile: &[],
            cache: ccm_testbed::cache::dir()?,
        };
        let mut others = images.architectures.iter().filter(|name| *name != own_architecture());
        install_packages(match others.next().map(String::as_str) {
            Some("arm64") => &ARM64_PACKAGES,
            Some("amd64") => &AMD64_PACKAGES,
            _ => &[],
        })?;
        for tool in &AUDITABLE {
            tool.install()?;
        }
        for architecture in &images.architectures {
            let target = match architecture.as_str() {
                "amd64" => "x86_64-unknown-linux-gnu",
                "arm64" => "aarch64-unknown-linux-gnu",
                other => bail!("unknown architecture {other:?}: it must be amd64 or arm64"),
            };
            execute(Command::new("rustup").args(["--quiet", "target", "add", target]))?;
        }
        Ok(images)
    }

    /// Builds the images from a checkout.
    fn build(&self, checkout: &Path) -> Result<Vec<Image>> {
        let version = env!("CARGO_PKG_VERSION");
        let commit = git(checkout, &["rev-parse", "--short=12", "HEAD"])?;
        let time = git(checkout, &["log", "-1", "--format=%ct"])?;
        let recipe = self.cache.join("images/Dockerfile");
        fs::create_dir_all(self.cache.join("images"))?;
        fs::write(&recipe, last_stage(&fs::read_to_string(checkout.join("Dockerfile"))?)?)?;
        fs::create_dir_all(&self.output)?;
        let mut built = Vec::new();
        for features in &self.features {
            let name = format!("cloud-controller-manager-v{version}-{features}");
            // The image does not exist the first time.
            let _ = self.buildah(&["manifest", "rm", &name]).output();
            let mut sboms = Vec::new();
            for architecture in &self.architectures {
                say(&format!("building the program with --features {features} for {architecture} (minutes)"));
                let files = self.cache.join(format!("images/{name}-{architecture}"));
                self.files(checkout, features, architecture, &files)?;
                let mut build = self.buildah(&["build", "--quiet", "--isolation=chroot", "--layers=false"]);
                build.args([
                    format!("--manifest={name}"),
                    format!("--platform=linux/{architecture}"),
                    format!("--timestamp={time}"),
                    format!("--build-arg=FEATURES={features}"),
                    format!("--build-arg=COMMIT={commit}"),
                    format!("--build-arg=VERSION={version}"),
                ]);
                output(build.arg("--file").arg(&recipe).arg(&files))?;
                sboms.push((architecture.clone(), files.join("sbom.cdx.json")));
            }
            let layout = self.cache.join(format!("images/{name}"));
            let _ = fs::remove_dir_all(&layout);
            let to = format!("oci:{}", layout.display());
            execute(
                self.buildah(&["manifest", "push", "--quiet", "--all", &name, &to])
                    .stdout(std::process::Stdio::null()),
            )?;
            let archive = self.output.join(format!("{name}.tar"));
            let mut tar = Command::new("tar");
            tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
            tar.arg(format!("--mtime=@{time}")).arg("--file").arg(&archive);
            execute(tar.arg("--create").arg("--directory").arg(&layout).arg("."))?;
            built.push(Image {
                features: features.clone(),
                archive,
                digest: digest(&layout)?,
                sboms,
            });
        }
        Ok(built)
    }

    /// Builds the files of an image, and runs its program.
    fn files(&self, checkout: &Path, features: &str, architecture: &str, files: &Path) -> Result<()> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut build = Command::new(checkout.join("deploy/image/root.sh"));
        build.args([features, architecture]).arg(files);
        build.envs(self.profile.iter().copied());
        build.env("PATH", format!("{}:{path}", self.cache.join("tools/bin").display()));
        if checkout != root() {
            build.env("CARGO_TARGET_DIR", checkout.join("target"));
        }
        execute(build.stdout(std::process::Stdio::null()))?;
        let program = files.join("bin/cloud-controller-manager");
        let mut list = Command::new(match architecture {
            own if own == own_architecture() => "env",
            "arm64" => "qemu-aarch64-static",
            _ => "qemu-x86_64-static",
        });
        list.arg(&program);
        // Without this check, a provider that the linker left out would be noticed at the first start only.
        let listed = output(list.arg("--list-providers"))?;
        let size = fs::metadata(&program)?.len();
        let names: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
        say(&format!("{architecture}: {} MB, with {}", size / 1_000_000, names.join(", ")));
        if names.is_empty() {
            bail!("the program has no provider");
        }
        Ok(())
    }

    /// Clones this repository to a folder of this name in the cache.
    fn clone_to(&self, name: &str) -> Result<PathBuf> {
        let clone = self.cache.join("images").join(name);
        let _ = fs::remove_dir_all(&clone);
        let mut git = Command::new("git");
        execute(git.args(["clone", "--quiet"]).arg(root()).arg(&clone))?;
        Ok(clone)
    }

    /// Builds the images from a clone, to a folder of its name, and deletes the clone.
    fn build_clone(&self, clone: &Path) -> Result<Vec<Image>> {
        let images = Self {
            features: self.features.clone(),
            architectures: self.architectures.clone(),
            output: self.output.join(clone.file_name().unwrap_or_default()),
            profile: self.profile,
            cache: self.cache.clone(),
        };
        let built = images.build(clone)?;
        fs::remove_dir_all(clone)?;
        Ok(built)
    }

    /// buildah, with a storage of our own that needs no kernel module.
    fn buildah(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        command.arg("--storage-driver=vfs");
        command.arg("--root").arg(self.cache.join("images/storage"));
        command.arg("--runroot").arg(self.cache.join("images/run"));
        command.args(arguments);
        command
    }
}

/// The last stage of the Dockerfile, with the build context in the place of the stage that builds.
fn last_stage(dockerfile: &str) -> Result<String> {
    let start = dockerfile.find("FROM scratch").context("Dockerfile: no stage FROM scratch")?;
    Ok(dockerfile[start..].replace("COPY --from=build /root-file-system/ /", "COPY . /"))
}

/// The digest of the image in an OCI layout.
fn digest(layout: &Path) -> Result<String> {
    let index: serde_json::Value = serde_json::from_str(&fs::read_to_string(layout.join("index.json"))?)?;
    let digest = index.pointer("/manifests/0/digest").and_then(|digest| digest.as_str());
    digest.map(str::to_owned).context("the image has no digest")
}

fn git(checkout: &Path, arguments: &[&str]) -> Result<String> {
    let printed = output(Command::new("git").arg("-C").arg(checkout).args(arguments))?;
    Ok(printed.trim().to_owned())
}

/// Installs the packages of Debian whose programs are missing.
pub(crate) fn install_packages(further: &[(&'static str, &'static str)]) -> Result<()> {
    let missing: Vec<_> = PACKAGES
        .iter()
        .chain(further)
        .filter(|(_, program)| Command::new(program).arg("--version").output().is_err())
        .map(|(package, _)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(", ");
    say(&format!("installing {list}, which build images (Debian, once)"));
    // A new machine has no list of packages yet.
    let hint = format!("install {list} as root, or their equivalents on another system");
    execute(Command::new("apt-get").args(["update", "--quiet"])).context(hint.clone())?;
    let mut install = Command::new("apt-get");
    install.args([
        "install",
        "--quiet",
        "--yes",
        "--no-install-recommends",
        "--option=DPkg::Lock::Timeout=300",
    ]);
    install.args(missing).env("DEBIAN_FRONTEND", "noninteractive");
    execute(&mut install).context(hint)
}
