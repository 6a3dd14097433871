//! Pages with the config and the state.

use ccm_testbed::nodes::{self, NodeSpec};
use serde_json::Value;

use super::stage::{LIMIT, Stage, until};

const OPEN: &str = "--authorization-always-allow-paths=/*";

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_config_flags_and_state() {
    let stage = Stage::set().await;
    let account = stage.account(true).await;
    nodes::register(&stage.client, &[NodeSpec::new("one"), NodeSpec::new("two")])
        .await
        .unwrap();
    let mut ccm = stage.launch(&account, &[OPEN, "--node-status-update-frequency=90s"]);
    ccm.wait_healthy("/readyz", LIMIT).await.unwrap();

    let configz: Value = serde_json::from_str(&until(200, || ccm.get("/configz")).await).unwrap();
    let config = &configz["cloudcontrollermanager.config.k8s.io"];
    assert_eq!(config["kind"], "CloudControllerManagerConfiguration");
    assert_eq!(config["apiVersion"], "cloudcontrollermanager.config.k8s.io/v1alpha1");
    assert_eq!(config["NodeStatusUpdateFrequency"], "1m30s");
    assert_eq!(config["Generic"]["Port"], ccm.port());
    assert_eq!(config["KubeCloudShared"]["CloudProvider"]["Name"], "acme");

    let flagz = until(200, || ccm.get("/flagz")).await;
    assert!(flagz.contains("\nnode-status-update-frequency=90s\n"), "{flagz}");
    let flagz: Value = serde_json::from_str(&get_json(&ccm, "/flagz").await).unwrap();
    assert_eq!((&flagz["kind"], &flagz["flags"]["cloud-provider"]), (&"Flagz".into(), &"acme".into()));

    let status: Value = serde_json::from_str(&get_json(&ccm, "/statusz").await).unwrap();
    assert_eq!(status["kind"], "Statusz");
    assert_eq!(status["provider"], "acme");
    assert_eq!(status["nodes"]["total"], 2);
    assert_eq!(status["leadership"]["leads"], true);
    let page = until(200, || ccm.get("/statusz")).await;
    assert!(page.starts_with("<!doctype html>") && page.contains("Works alone"), "{page}");
    let ready = until(200, || ccm.get("/readyz?verbose")).await;
    for check in [
        "cloud-reachable",
        "cloud-node-controller",
        "cloud-node-lifecycle-controller",
    ] {
        assert!(ready.contains(&format!("[+]{check} ok\n")), "{ready}");
    }
    assert_eq!(ccm.get("/livez/cloud-node-controller").await.unwrap().0, 200);
    let slis = until(200, || ccm.get("/metrics/slis")).await;
    assert!(
        slis.contains("kubernetes_healthcheck{name=\"informer-sync\",type=\"readyz\"} 1"),
        "{slis}"
    );
}

async fn get_json(ccm: &ccm_testbed::binary::Ccm, path: &str) -> String {
    let http = reqwest::Client::builder().danger_accept_invalid_certs(true).no_proxy().build().unwrap();
    let url = format!("https://127.0.0.1:{}{path}", ccm.port());
    let request = http.get(url).header("accept", "application/json");
    request.send().await.unwrap().text().await.unwrap()
}
