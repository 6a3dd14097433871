//! Services on the status page.

use ccm_testbed::binary::free_port;
use serde_json::Value;

use super::stage::Stage;
use crate::fake::{self, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_page_shows_each_service_with_its_address_and_last_plan() {
    let mut stage = Stage::prepare("status").await;
    let port = free_port().unwrap();
    stage.run(|config| {
        let flags = [
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            "--authorization-always-allow-paths=/statusz".to_owned(),
        ];
        config.serving = fake::config(&flags).serving;
    });
    let service = stage.served("web").await;
    let ingress = service.status.unwrap().load_balancer.unwrap().ingress.unwrap();
    let address = ingress[0].ip.clone().unwrap();
    let http = reqwest::Client::builder().danger_accept_invalid_certs(true).no_proxy().build().unwrap();
    let url = format!("https://127.0.0.1:{port}/statusz");
    let row = eventually("the page shows that the Service is served", async || {
        let request = http.get(&url).header("accept", "application/json");
        let status: Value = request.send().await.ok()?.json().await.ok()?;
        let row = status["services"]["shown"][0].clone();
        (row["state"] == "served").then_some(row)
    })
    .await;
    assert_eq!(row["name"], "default/web");
    assert_eq!(row["addresses"][0], address.as_str());
    let plan = &row["parts"][0]["lastPlan"];
    assert!(plan["count"].as_u64() > Some(0), "{row:#}");
    assert!(!plan["steps"][0].as_str().unwrap().is_empty(), "{row:#}");
    assert_eq!(row["error"], Value::Null);
}
