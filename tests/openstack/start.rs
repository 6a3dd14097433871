//! Output of the program if flags, config or credentials are wrong at its start.

use std::process::{Command, Output};

use ccm_testbed::binary::Ccm;
use tempfile::TempDir;

use serde_json::Value;

use crate::scene::{LIMIT, Scene, names, program};

const SECRET: &str = "open-sesame-7";

/// Runs the program with this config until it ends by itself.
fn run(config: &str, further: &[&str]) -> (Output, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cloud.conf");
    std::fs::write(&path, config).unwrap();
    let output = Command::new(program())
        .args(["--cloud-provider=openstack", "--secure-port=0"])
        .arg(format!("--cloud-config={}", path.display()))
        .args(further)
        .output()
        .unwrap();
    (output, folder)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_missing_or_unreadable_config_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("nowhere.conf");
    for (path, text) in [(missing.as_path(), "nowhere.conf"), (folder.path(), "directory")] {
        let output = Command::new(program())
            .args(["--cloud-provider=openstack", "--secure-port=0"])
            .arg(format!("--cloud-config={}", path.display()))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let errors = stderr(&output).to_lowercase();
        assert!(errors.contains(text), "{errors}");
    }
    let output = Command::new(program())
        .args(["--cloud-provider=openstack", "--secure-port=0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("no OpenStack cloud provider config file given"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn all_problems_of_the_config_are_reported_at_once_and_no_secret() {
    let config = format!(
        "[Global]\n\
         auth-url = http://127.0.0.1:1/v3\n\
         username = ccm\n\
         password = \"{SECRET}\"\n\
         tenant-name = k8s\n\
         domain-name = Default\n\
         use-clouds = perhaps\n\
         regoin = RegionOne\n\
         [LoadBalancer]\n\
         monitor-delay = 5\n\
         max-shared-lb = many\n\
         create-monitor = \n\
         [Networking\n"
    );
    let (output, folder) = run(&config, &[]);
    assert_eq!(output.status.code(), Some(1));
    let errors = stderr(&output);
    for text in [
        "cloud.conf:7:",
        "cloud.conf:10:",
        "cloud.conf:11:",
        "cloud.conf:12:",
        "cloud.conf:13:",
    ] {
        assert!(errors.contains(text), "{text} is missing:\n{errors}");
    }
    assert!(errors.contains("write 5s"), "{errors}");
    assert!(!errors.contains(SECRET), "{errors}");
    drop(folder);
}

#[test]
fn credentials_that_contradict_each_other_are_refused() {
    let config = format!(
        "[Global]\n\
         auth-url = http://127.0.0.1:1/v3\n\
         username = ccm\n\
         password = \"{SECRET}\"\n\
         application-credential-id = abc\n\
         application-credential-secret = \"{SECRET}\"\n"
    );
    let (output, _folder) = run(&config, &[]);
    assert_eq!(output.status.code(), Some(1));
    let errors = stderr(&output);
    assert!(errors.contains("both a password and an application credential"), "{errors}");
    assert!(!errors.contains(SECRET), "{errors}");
}

/// Waits until the probe of the cloud fails while the process is healthy.
async fn waits_for_the_cloud(ccm: &Ccm) {
    assert_eq!(ccm.get("/healthz").await.unwrap().0, 200);
    assert_eq!(ccm.get("/livez").await.unwrap().0, 200);
    assert_eq!(ccm.get("/readyz/cloud-provider").await.unwrap().0, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_reported_and_need_no_restart_after_the_fix() {
    let scene = Scene::set().await;
    let right = scene.cloud.cloud_conf();
    let wrong = right.replace("correct-horse", SECRET);
    assert_ne!(right, wrong);
    scene.stage.write_cloud_config(&wrong).unwrap();
    let mut ccm = scene.launch(&["-v=4"]);
    let log = scene.logged("Not connected to the cloud").await;
    assert!(log.contains(&scene.cloud.auth_url()), "{log}");
    assert!(log.contains("ccm"), "the user's name: {log}");
    assert!(!log.contains(SECRET) && !log.contains("correct-horse"), "{log}");
    waits_for_the_cloud(&ccm).await;
    // The failure is reported once for all attempts.
    scene.logged("Still not connected to the cloud").await;
    assert_eq!(scene.log().matches("Not connected to the cloud").count(), 1, "{}", scene.log());

    scene.stage.write_cloud_config(&right).unwrap();
    let node = names("healed", 1);
    scene.servers(&node);
    scene.register(&node).await;
    scene.initialized("healed-1").await;
    assert!(ccm.exit_status().unwrap().is_none());
    assert!(!scene.log().contains("correct-horse"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_region_lists_the_available_ones() {
    let scene = Scene::set().await;
    let config = scene.cloud.cloud_conf().replace("RegionOne", "RegionNone");
    scene.stage.write_cloud_config(&config).unwrap();
    let ccm = scene.launch(&[]);
    let log = scene.logged("Not connected to the cloud").await;
    assert!(log.contains("RegionNone") && log.contains("RegionOne"), "{log}");
    waits_for_the_cloud(&ccm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_auth_url_that_leads_nowhere_or_elsewhere_is_named() {
    let scene = Scene::set().await;
    let auth_url = scene.cloud.auth_url();
    // A port without a listener, and a server that is not OpenStack, but answers with HTTP and JSON.
    let free = ccm_testbed::binary::free_port().unwrap();
    let elsewhere = scene.cloud.control_url();
    for url in [format!("http://127.0.0.1:{free}/v3"), format!("{elsewhere}/v3")] {
        let config = scene.cloud.cloud_conf().replace(&auth_url, &url);
        assert!(config.contains(&url));
        scene.stage.write_cloud_config(&config).unwrap();
        let mut ccm = scene.launch(&[]);
        let log = scene.logged(&url).await;
        assert!(log.contains("Not connected to the cloud"), "{log}");
        waits_for_the_cloud(&ccm).await;
        ccm.kill().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_keys_cause_warnings_and_no_errors() {
    let scene = Scene::set().await;
    let config = format!(
        "{}\n[LoadBalancer]\nmax-shared-lbs = 4\n[Router]\nrouter-id = x\n",
        scene.cloud.cloud_conf()
    );
    scene.stage.write_cloud_config(&config).unwrap();
    scene.start(&[]).await;
    let log = scene.log();
    assert!(log.contains("max-shared-lbs") && log.contains("did you mean max-shared-lb?"), "{log}");
    assert!(log.contains("did you mean [Route]?"), "{log}");
    assert_eq!(log.matches("max-shared-lbs").count(), 1, "{log}");
}

/// The parts of the container in the Go program's manifest that affect the start.
const UPSTREAM: &str = "
args:
  - /bin/openstack-cloud-controller-manager
  - --v=1
  - --cluster-name=$(CLUSTER_NAME)
  - --cloud-config=$(CLOUD_CONFIG)
  - --cloud-provider=openstack
  - --use-service-account-credentials=false
  - --bind-address=127.0.0.1
env:
  - {name: CLOUD_CONFIG, value: /etc/config/cloud.conf}
  - {name: CLUSTER_NAME, value: kubernetes}
";

/// These arguments, with the config in this file.
pub(crate) fn upstream_arguments(config: &str) -> Vec<String> {
    let container: Value = serde_saphyr::from_str(UPSTREAM).unwrap();
    let fill = |word: &Value| {
        let variables = container["env"].as_array().unwrap().iter();
        let word = variables.fold(word.as_str().unwrap().to_owned(), |word, variable| {
            let [name, value] = ["name", "value"].map(|key| variable[key].as_str().unwrap());
            word.replace(&format!("$({name})"), value)
        });
        word.replace("/etc/config/cloud.conf", config)
    };
    container["args"].as_array().unwrap().iter().map(fill).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_arguments_of_upstreams_manifest_start_the_program() {
    let scene = Scene::set().await;
    let mut launch = scene.stage.command("openstack", &scene.account, &[]);
    // The test has no Pod, so neither its Secret nor its account exists.
    launch.args = upstream_arguments(scene.stage.cloud_config().to_str().unwrap());
    launch.args.push(format!("--kubeconfig={}", scene.account.display()));
    let mut ccm = Ccm::start(&launch).unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
}
