//! Tens of thousands of servers. Times are bounded only loosely: this guards against the wrong order of growth.

use std::time::Duration;

use ccm_sim::openstack::{PortSpec, ServerSpec};

use crate::client::Session;

#[tokio::test]
async fn twenty_thousand_servers_are_paged_and_looked_up_without_effort() {
    let session = Session::start().await;
    let spec = ServerSpec {
        ports: Some(vec![PortSpec::on("private"), PortSpec::on("private")]),
        ..ServerSpec::named("node-{i:05}")
    };
    let ids = session.cloud.create_servers(20_000, &spec).unwrap();
    let mut url = "/RegionOne/compute/v2.1/servers/detail?limit=1000".to_owned();
    let mut seen = 0;
    while !url.is_empty() {
        let page = session.get(&url).await;
        seen += page.each("servers", "id").len();
        url = page.at("/servers_links/0/href").to_owned();
    }
    assert_eq!(seen, 20_000);
    let devices = ids
        .iter()
        .take(150)
        .map(|id| format!("device_id={id}"))
        .collect::<Vec<_>>()
        .join("&");
    let ports = session
        .neutron(&format!(
            "/ports?{devices}&fields=id&fields=device_id&fields=fixed_ips"
        ))
        .await;
    assert_eq!(ports.each("ports", "id").len(), 300);
    let named = session.nova("2.1", "/servers/detail?name=^node-19999$").await;
    assert_eq!(named.each("servers", "name"), ["node-19999"]);
    session.cloud.set_status(&ids[7], "SHUTOFF").unwrap();
    let calls = session.cloud.calls();
    let slowest = calls.iter().map(|call| (call.duration, call.op)).max().unwrap();
    assert!(slowest.0 < Duration::from_secs(5), "{slowest:?}");
}
