//! Tens of thousands of servers, and many requests at once.

use std::sync::Arc;
use std::time::Duration;

use ccm_sim::openstack::{PortSpec, ServerSpec};

use crate::client::{Session, password_login};

#[tokio::test]
async fn twenty_thousand_servers_are_paged_and_read_quickly() {
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
    let devices = ids.iter().take(150).map(|id| format!("device_id={id}")).collect::<Vec<_>>().join("&");
    let ports = session
        .neutron(&format!("/ports?{devices}&fields=id&fields=device_id&fields=fixed_ips"))
        .await;
    assert_eq!(ports.each("ports", "id").len(), 300);
    let named = session.nova("2.1", "/servers/detail?name=^node-19999$").await;
    assert_eq!(named.each("servers", "name"), ["node-19999"]);
    session.cloud.set_status(&ids[7], "SHUTOFF").unwrap();
    assert_eq!(session.nova("2.1", &format!("/servers/{}", ids[7])).await.at("/server/status"), "SHUTOFF");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_logins_and_changes_at_once_do_not_block_each_other() {
    let session = Arc::new(Session::start().await);
    let ids = session.cloud.create_servers(50, &ServerSpec::named("n{i}")).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for round in 0..200 {
        let (session, id) = (Arc::clone(&session), ids[round % ids.len()].clone());
        tasks.spawn(async move {
            match round % 4 {
                0 => session.login(&password_login("ccm", "correct-horse", Some("k8s"))).await.status,
                1 => session.nova("2.1", "/servers/detail").await.status,
                2 => session.neutron("/ports").await.status,
                _ => {
                    session.cloud.set_status(&id, "SHUTOFF").unwrap();
                    assert!(session.cloud.cloud_conf().contains("RegionOne"));
                    session.cloud.set_token_lifetime(Duration::from_secs(3600));
                    session.nova("2.1", &format!("/servers/{id}")).await.status
                }
            }
        });
    }
    while let Some(status) = tasks.join_next().await {
        assert!(matches!(status.unwrap(), 200 | 201));
    }
}
