//! A binary with its own provider has this provider and, built without features, no other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod binaries;

use std::{process::Output, time::Duration};

use ccm_testbed::{
    binary::Ccm,
    controlplane::AuditEntry,
    nodes::{self, NodeSpec},
    observe,
    stage::Stage,
};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, api::PostParams};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_binary_with_its_own_provider_lists_exactly_that() {
    let output = binaries::example("out_of_tree").arg("--list-providers").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let mut expected: Vec<_> = ccm_core::registry::all().iter().map(|provider| provider.name).collect();
    // The features of this build of the workspace add their providers.
    expected.push("acme");
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert!(text.contains("acme") && text.contains("Acme Cloud"), "{text}");
}

#[test]
fn it_has_the_flags_of_every_provider() {
    let output = binaries::example("out_of_tree")
        .args(["--cloud-provider=acne", "--secure-port=x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("did you mean \"acme\"?") && errors.contains("--secure-port"), "{errors}");
}

fn acme(more: &[&str]) -> Output {
    let mut command = binaries::example("out_of_tree");
    command.arg("--cloud-provider=acme").args(more).output().unwrap()
}

fn errors(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_shows_its_controller_and_its_flag_under_its_name() {
    let help = String::from_utf8(acme(&["--help"]).stdout).unwrap();
    let (_, section) = help.split_once("\nProvider acme:\n").unwrap();
    let flag = section.trim_start();
    assert!(flag.starts_with("--acme-firewall-delay <DURATION>\n"), "{help}");
    assert!(section.contains("[default: 1s]"), "{help}");
    let names = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(names.contains("service, route; with --cloud-provider=acme also acme-firewall"), "{help}");
}

#[test]
fn wrong_values_of_its_flag_and_misspelled_controllers_are_reported_with_all_problems() {
    let output = acme(&[
        "--acme_firewall_delay=soon",
        "--secure-port=x",
        "--controllers=*,-acme-firewal",
    ]);
    let errors = errors(&output);
    for text in [
        "--acme-firewall-delay: invalid value \"soon\": write a number with one of the units",
        "--secure-port",
        "\"acme-firewal\" is not in the list of known controllers; did you mean \"acme-firewall\"?",
    ] {
        assert!(errors.contains(text), "{text}: {errors}");
    }
}

#[test]
fn without_the_provider_its_flag_and_its_controller_are_errors_that_name_it() {
    for other in ccm_core::registry::all() {
        let output = binaries::example("out_of_tree")
            .arg(format!("--cloud-provider={}", other.name))
            .args(["--acme-firewall-delay=1s", "--controllers=-acme-firewall"])
            .output()
            .unwrap();
        let errors = errors(&output);
        for text in [
            "--acme-firewall-delay: this is a flag of the cloud provider acme, but --cloud-provider is",
            "\"acme-firewall\" is a controller of the cloud provider acme",
        ] {
            assert!(errors.contains(text), "{text}: {errors}");
        }
    }
}

/// Starts the program on a control plane with a node and a NodePort Service.
async fn with_a_service(flags: &[&str]) -> (Stage, Ccm) {
    let stage = Stage::set(binaries::example("out_of_tree").get_program()).await.unwrap();
    let client = stage.control_plane.client().await.unwrap();
    nodes::register(&client, &[NodeSpec::new("node-1")]).await.unwrap();
    let service = json!({
        "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]},
    });
    let services: Api<Service> = Api::namespaced(client, "default");
    let service = serde_json::from_value(service).unwrap();
    services.create(&PostParams::default(), &service).await.unwrap();
    let mut ccm = stage.launch("acme", flags).unwrap();
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();
    (stage, ccm)
}

async fn logged(ccm: &Ccm, text: &str) {
    let found = observe::eventually(LIMIT, async || ccm.log().unwrap().contains(text).then_some(())).await;
    assert!(found.is_some(), "{text:?} is not in the log:\n{}", ccm.log().unwrap());
}

async fn metrics(ccm: &Ccm) -> String {
    ccm.get("/metrics").await.unwrap().1
}

const RUNS: &str = "running_managed_controllers{name=\"acme-firewall\",manager=\"cloud-controller-manager\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_controller_sees_nodes_and_services_and_ends_with_the_process() {
    let (stage, mut ccm) = with_a_service(&["--acme-firewall-delay=10ms"]).await;
    logged(&ccm, "Updated the firewall nodes=1 ports={30080}").await;
    let client = stage.control_plane.client().await.unwrap();
    nodes::register(&client, &[NodeSpec::new("node-2")]).await.unwrap();
    logged(&ccm, "Updated the firewall nodes=2 ports={30080}").await;
    let text = metrics(&ccm).await;
    for line in [format!("{RUNS} 1"), "acme_firewall_ports 1".to_owned()] {
        assert!(text.lines().any(|there| there == line), "{line}: {text}");
    }
    let live = ccm.get("/livez?verbose").await.unwrap().1;
    assert!(live.contains("[+]acme-firewall-controller ok"), "{live}");
    ccm.terminate().unwrap();
    assert!(ccm.wait(LIMIT).await.unwrap().success());
    let log = ccm.log().unwrap();
    assert!(log.contains("Firewall controller stopped"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_is_switched_off_costs_nothing() {
    let (stage, ccm) = with_a_service(&["--controllers=*,-acme-firewall"]).await;
    logged(&ccm, "Controller started controller=\"cloud-node-controller\"").await;
    let text = metrics(&ccm).await;
    assert!(text.lines().any(|line| line == format!("{RUNS} 0")), "{text}");
    assert!(!text.contains("acme_firewall_ports") && !ccm.log().unwrap().contains("firewall nodes"));
    let asks = |entry: &AuditEntry| {
        entry.resource == "services" && entry.user_agent.contains("cloud-controller-manager")
    };
    let audit = stage.control_plane.audit_log().unwrap();
    assert!(!audit.iter().any(asks), "no controller needs Services");
}
