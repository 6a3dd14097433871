//! The image, as `cargo xtask image` builds it: its program runs without an operating system, as the image's user.

use std::{
    env, fs,
    net::UdpSocket,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use ccm_testbed::{
    binary::{Ccm, Launch, free_port},
    cache::say,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    scene::{LIMIT, Scene, names},
    start::upstream_arguments,
};

/// The user of the image.
const USER: &str = "65532:65532";

/// The name of the API server, from /etc/hosts; its certificate has it.
const API_SERVER: &str = "kubernetes.default.svc";

/// The name of Keystone, from the name server.
const KEYSTONE: &str = "keystone.cloud.example";

/// The files of the image in a folder. Returns `None` and prints the reason if no image was built.
fn unpacked() -> Option<TempDir> {
    let Some(archive) = env::var_os("CCM_TEST_IMAGE") else {
        say(
            "left out, since CCM_TEST_IMAGE is not set: the image (`cargo xtask test` builds one, as root on Debian)",
        );
        return None;
    };
    let layout = tempfile::tempdir().unwrap();
    unpack(Path::new(&archive), layout.path());
    let blob = |digest: &Value| {
        let digest = digest.as_str().unwrap().strip_prefix("sha256:").unwrap();
        layout.path().join("blobs/sha256").join(digest)
    };
    let read = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let index = read(layout.path().join("index.json"));
    let mut manifest = read(blob(&index["manifests"][0]["digest"]));
    if manifest["manifests"].is_array() {
        manifest = read(blob(&manifest["manifests"][0]["digest"]));
    }
    let config = read(blob(&manifest["config"]["digest"]));
    assert_eq!(config["config"]["User"], USER);
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/bin/cloud-controller-manager"]));
    let environment = config["config"]["Env"].as_array().unwrap();
    assert!(environment.contains(&Value::from("MALLOC_ARENA_MAX=2")), "{environment:?}");
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.version"], concat!("v", env!("CARGO_PKG_VERSION")));
    let files = tempfile::tempdir().unwrap();
    for layer in manifest["layers"].as_array().unwrap() {
        unpack(&blob(&layer["digest"]), files.path());
    }
    Some(files)
}

fn unpack(archive: &Path, folder: &Path) {
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(folder);
    assert!(tar.status().unwrap().success(), "{}", archive.display());
}

/// Runs the image with these arguments until it ends by itself.
fn run(files: &TempDir, user: &str, arguments: &[&str]) -> Output {
    let mut chroot = Command::new("chroot");
    chroot.arg(format!("--userspec={user}")).arg(files.path());
    chroot.arg("/bin/cloud-controller-manager").args(arguments);
    chroot.env_clear().env("PATH", "/bin:/usr/sbin").output().unwrap()
}

/// Starts a name server that knows only [`KEYSTONE`] as 127.0.0.1. Returns its address. The port is 53, because resolv.conf
/// cannot name another one.
fn name_server() -> String {
    let port = free_port().unwrap();
    let address = format!("127.53.{}.{}", port >> 8, (port & 0xff).clamp(1, 254));
    let socket = UdpSocket::bind((address.as_str(), 53)).unwrap();
    std::thread::spawn(move || {
        let mut packet = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut packet) {
            let Some(end) = packet[12..length].iter().position(|byte| *byte == 0) else {
                continue;
            };
            let question = &packet[12..12 + end + 5];
            let is_address = question[end + 1..end + 3] == [0, 1];
            let known = KEYSTONE.split('.').flat_map(|label| {
                let length = u8::try_from(label.len()).unwrap_or_default();
                std::iter::once(length).chain(label.bytes())
            });
            let is_known = question[..end].iter().copied().eq(known);
            let answers = u8::from(is_known && is_address);
            let code = if is_known { 0x80 } else { 0x83 };
            let mut reply = packet[..2].to_vec();
            reply.extend([0x81, code, 0, 1, 0, answers, 0, 0, 0, 0]);
            reply.extend(question);
            if answers == 1 {
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            let _ = socket.send_to(&reply, client);
        }
    });
    address
}

fn write(files: &TempDir, path: &str, text: &str) {
    let path = files.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_image_runs_with_upstreams_arguments_as_any_user() {
    let Some(files) = unpacked() else { return };
    let scene = Scene::set().await;
    let config = scene.cloud.cloud_conf().replace("127.0.0.1", KEYSTONE);
    assert!(config.contains(KEYSTONE));
    write(&files, "etc/config/cloud.conf", &config);
    let kubeconfig = fs::read_to_string(&scene.account).unwrap();
    write(&files, "etc/kubeconfig", &kubeconfig.replace("127.0.0.1", API_SERVER));
    write(&files, "etc/hosts", &format!("127.0.0.1 {API_SERVER}\n"));
    write(&files, "etc/resolv.conf", &format!("nameserver {}\n", name_server()));
    // Every container runtime provides these devices. A static program reads random numbers from them.
    fs::create_dir_all(files.path().join("dev")).unwrap();
    for (name, minor) in [("random", "8"), ("urandom", "9")] {
        let mut mknod = Command::new("mknod");
        mknod.arg("--mode=666").arg(files.path().join("dev").join(name));
        assert!(mknod.args(["c", "1", minor]).status().unwrap().success());
    }
    // The files belong to root, so that the program's user can write nowhere.
    for (user, node) in [(USER, "image"), ("4711:0", "elsewhere")] {
        let mut launch = Launch {
            program: "chroot".into(),
            log: scene.stage.command("openstack", &scene.account, &[]).log,
            ..Launch::default()
        };
        launch.args = vec![format!("--userspec={user}"), files.path().display().to_string()];
        launch.args.push("/bin/openstack-cloud-controller-manager".to_owned());
        launch.args.extend(upstream_arguments("/etc/config/cloud.conf"));
        launch.args.push("--kubeconfig=/etc/kubeconfig".to_owned());
        let mut ccm = Ccm::start(&launch).unwrap();
        let ready = ccm.wait_healthy("/readyz", LIMIT).await;
        assert!(ready.is_ok(), "{ready:?}: {}", ccm.log().unwrap());
        let metrics = ccm.get("/metrics").await.unwrap().1;
        assert!(!metrics.contains("commit=\"\""), "the image has no commit");
        let nodes = names(node, 1);
        scene.servers(&nodes);
        scene.register(&nodes).await;
        scene.initialized(&format!("{node}-1")).await;
        ccm.kill().unwrap();
    }
}

#[test]
fn an_image_without_usable_arguments_reports_a_fix() {
    let Some(files) = unpacked() else { return };
    let cases: [(&[&str], &str); 3] = [
        (&[], "no OpenStack cloud provider config file given"),
        (&["--cloud-provider=nimbus"], "openstack"),
        (
            &[
                "--cloud-provider=openstack",
                "--cloud-config=/etc/config/cloud.conf",
            ],
            "/etc/config/cloud.conf",
        ),
    ];
    for (arguments, text) in cases {
        let output = run(&files, USER, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains(text), "{arguments:?}: {errors}");
    }
    let listed = run(&files, USER, &["--list-providers"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("openstack"));
    for file in [
        "sbom.cdx.json",
        "licenses/LICENSE",
        "licenses/THIRD-PARTY.txt",
        "etc/ssl/certs/ca-certificates.crt",
    ] {
        assert!(fs::metadata(files.path().join(file)).unwrap().len() > 1000, "{file}");
    }
}
